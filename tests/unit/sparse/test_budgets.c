/* Files of budgets by layer and KV head: what is written is read again, every refusal with its place, and the lengths of lists
 * that follow from a share. */
#include "sparse/budgets.h"

#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "sparse/sparse.h"
#include "tests/unit/run_suite.h"

static sl_algo_model model = {.architecture = "LlamaForCausalLM",
                              .n_layers = 2,
                              .n_heads = 4,
                              .kv_heads = 2,
                              .head_dim = 4,
                              .hidden_size = 16,
                              .vocab_size = 100};

static const char good[] =
    "{\"schema_version\": 1, \"model_arch\": \"LlamaForCausalLM\", \"num_layers\": 2, "
    "\"num_heads\": 4, \"num_kv_heads\": 2, \"head_dim\": 4, \"budgets\": [[1, 0.5], [\"all\", 0]]}";

static sl_status parse(const char *text, sl_budgets **out, sl_err *err)
{
    return sl_budgets_parse(text, strlen(text), "file", &model, out, err);
}

START_TEST(a_share_is_a_length)
{
    sl_budgets *b = NULL;
    sl_err err = {0};
    ck_assert_msg(parse(good, &b, &err) == SL_OK, "%s", err.text);
    ck_assert_int_eq(sl_budgets_units(b, 0, 0, 100, 3), 100);
    ck_assert_int_eq(sl_budgets_units(b, 0, 1, 101, 3), 51); /* to the nearest */
    ck_assert_int_eq(sl_budgets_units(b, 1, 0, 100, 3), INT32_MAX);
    ck_assert_int_eq(sl_budgets_units(b, 1, 1, 100, 3), 3);
    ck_assert_int_eq(sl_budgets_longest(b, 0, 100, 3), 100);
    ck_assert_int_eq(sl_budgets_longest(b, -1, 100, 3), INT32_MAX);
    ck_assert_int_eq(sl_budgets_units(NULL, 0, 0, 77, 3), 77);
    ck_assert_int_eq(sl_budgets_longest(NULL, -1, 77, 3), 77);
    sl_budgets_free(b);
}
END_TEST

START_TEST(refusals_name_the_place)
{
    static const struct {
        const char *from, *to;
        sl_status st;
        const char *say;
    } bad[] = {
        {"\"budgets\": [[1, 0.5], [\"all\", 0]]", "\"budgets\": 3", SL_ERR_INVALID,
         "file.budgets: want a list for each layer"},
        {"[1, 0.5], ", "", SL_ERR_REFUSED, "file.budgets: 1 layers, but the model has 2"},
        {"[1, 0.5]", "[1]", SL_ERR_REFUSED, "file.budgets[0]: want a list of 2 entries"},
        {"[1, 0.5]", "7", SL_ERR_INVALID, "file.budgets[0]: want a list of 2 entries"},
        {"0.5", "-0.5", SL_ERR_INVALID, "file.budgets[0][1]: want a number from 0"},
        {"0.5", "1e9", SL_ERR_INVALID, "file.budgets[0][1]: want a number from 0"},
        {"0.5", "true", SL_ERR_INVALID, "file.budgets[0][1]: want a number from 0"},
        {"\"all\"", "\"every\"", SL_ERR_INVALID, "file.budgets[1][0]: want a number from 0"},
        {"\"num_kv_heads\": 2", "\"num_kv_heads\": 4", SL_ERR_REFUSED,
         "file.num_kv_heads: 4, but the model has 2"},
        {"LlamaForCausalLM", "Qwen3ForCausalLM", SL_ERR_REFUSED, "file.model_arch: Qwen3ForCausalLM"},
        {"\"schema_version\": 1", "\"schema_version\": 2", SL_ERR_INVALID, "file.schema_version"},
        {"\"head_dim\"", "\"model_print\": \"12\", \"head_dim\"", SL_ERR_INVALID, "file.model_print"},
        {"{\"schema", "[\"schema", SL_ERR_INVALID, "file"},
    };
    for (size_t i = 0; i < SL_COUNT(bad); i++) {
        char text[1024];
        const char *at = strstr(good, bad[i].from);
        sl_budgets *b = NULL;
        sl_err err = {0};
        ck_assert_ptr_nonnull(at);
        snprintf(text, sizeof text, "%.*s%s%s", (int)(at - good), good, bad[i].to, at + strlen(bad[i].from));
        ck_assert_msg(parse(text, &b, &err) == bad[i].st, "%zu: %s", i, err.text);
        ck_assert_msg(strstr(err.text, bad[i].say) != NULL, "%zu: %s", i, err.text);
        ck_assert_ptr_null(b);
    }
}
END_TEST

static uint64_t print_of(const void *ctx)
{
    return *(const uint64_t *)ctx;
}

/* Generated tables are the same after writing and loading; other weights are refused. */
START_TEST(what_is_written_is_read)
{
    char path[64];
    uint64_t weights = 0x1234abcd5678ull;
    snprintf(path, sizeof path, "/tmp/sl-budgets-%d.json", (int)getpid());
    for (int i = 0; i < 40; i++) {
        float share[7 * 5];
        sl_algo_model m = model;
        m.n_layers = 1 + i % 7, m.kv_heads = 1 + i % 5, m.n_heads = 2 * m.kv_heads;
        m.print = print_of, m.print_ctx = &weights;
        for (int32_t k = 0; k < m.n_layers * m.kv_heads; k++)
            share[k] = (k * 7 + i) % 11 == 0 ? INFINITY : (float)((k * 37 + i * 101) % 4000) / 1000;
        sl_err err = {0};
        const sl_budgets *b = NULL, *again = NULL;
        ck_assert_msg(sl_budgets_write(path, &m, "a \"model\"", "both", share, &err) == SL_OK, "%s",
                      err.text);
        ck_assert_msg(sl_budgets_load(path, &m, &b, &err) == SL_OK, "%s", err.text);
        ck_assert(b->n_layers == m.n_layers && b->kv_heads == m.kv_heads);
        ck_assert_mem_eq(b->share, share, sizeof(float) * (size_t)(m.n_layers * m.kv_heads));
        ck_assert_int_eq(sl_budgets_load(path, &m, &again, &err), SL_OK);
        ck_assert_ptr_eq(b, again);
        const uint64_t other = weights + 1;
        m.print_ctx = &other;
        ck_assert_int_eq(sl_budgets_load(path, &m, &again, &err), SL_ERR_REFUSED);
        ck_assert_ptr_nonnull(strstr(err.text, "model_print"));
    }
    remove(path);
}
END_TEST

/* The content of the file becomes a part of what pages depend on. */
START_TEST(the_stamp_has_the_shares)
{
    char path[64];
    snprintf(path, sizeof path, "/tmp/sl-budgets-s-%d.json", (int)getpid());
    uint64_t seen[3] = {0};
    const sl_budgets *b = NULL;
    sl_err err = {0};
    for (int i = 0; i < 2; i++) {
        const float share[] = {1, 1, 1, (float)i};
        ck_assert_int_eq(sl_budgets_write(path, &model, "m", "head", share, &err), SL_OK);
        ck_assert_msg(sl_budgets_prepare(path, &model, &b, &seen[i], &err) == SL_OK, "%s", err.text);
    }
    ck_assert(seen[0] && seen[1] && seen[0] != seen[1]);
    ck_assert_int_eq(sl_budgets_prepare("", &model, &b, &seen[2], &err), SL_OK);
    ck_assert(seen[2] == 0 && b == NULL);
    remove(path);
    ck_assert_int_eq(sl_budgets_prepare(path, &model, &b, &seen[2], &err), SL_ERR_NOT_FOUND);
    ck_assert_ptr_nonnull(strstr(err.text, "budgets_path"));
}
END_TEST

/* ---- hot rows ---- */

static int32_t width(const sl_algo_dims *d, int32_t dense_below)
{
    (void)d, (void)dense_below;
    return 100;
}

static int32_t layer_width(const sl_algo_dims *d, int32_t dense_below, int32_t layer)
{
    (void)d, (void)dense_below;
    return 100 - 30 * layer;
}

START_TEST(hot_rows_follow_the_lists)
{
    static const int32_t dense[] = {2};
    const sl_algo_desc a = {.width = width, .layer_width = layer_width}, even = {.width = width};
    const sl_cache_dims c = {0};
    const sl_gates none = {0}, one = {.dense_layers = dense, .n_dense_layers = 1};
    ck_assert_int_eq(sl_coord_layer_hot(&a, &c, &none, 1000, 0, 200), 200);
    ck_assert_int_eq(sl_coord_layer_hot(&a, &c, &none, 1000, 1, 200), 140);
    ck_assert_int_eq(sl_coord_layer_hot(&a, &c, &none, 1000, 2, 101), 41); /* never fewer than a list needs */
    ck_assert_int_eq(sl_coord_layer_hot(&a, &c, &none, 1000, 2, 100), 40);
    ck_assert_int_eq(sl_coord_layer_hot(&a, &c, &one, 1000, 2, 200), 200);
    ck_assert_int_eq(sl_coord_layer_hot(&even, &c, &none, 1000, 2, 200), 200);
    ck_assert_int_eq(sl_coord_layer_hot(&a, &c, &none, 1000, 1, -1), -1);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("budgets");
    TCase *t = tcase_create("files");
    tcase_add_test(t, a_share_is_a_length);
    tcase_add_test(t, refusals_name_the_place);
    tcase_add_test(t, what_is_written_is_read);
    tcase_add_test(t, the_stamp_has_the_shares);
    tcase_add_test(t, hot_rows_follow_the_lists);
    suite_add_tcase(s, t);
    return run_suite(s);
}
