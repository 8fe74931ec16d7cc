/* What `auto` resolves to on either kind of device, and that every name of the registries is taken as it is. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/choose.h"
#include "kernels/backend.h"
#include "sparse/channels.h"
#include "tests/unit/run_suite.h"

enum { APART = SL_BE_ASYNC | SL_BE_GRAPHS };

START_TEST(auto_depends_on_the_device)
{
    static const char *const texts[] = {"auto", NULL};
    for (size_t i = 0; i < SL_COUNT(texts); i++) {
        sl_evict_policy p;
        sl_layout l;
        ck_assert_int_eq(sl_choose_policy(texts[i], SL_BE_UNIFIED, &p, NULL), SL_OK);
        ck_assert_int_eq(sl_choose_layout(texts[i], SL_BE_UNIFIED, &l, NULL), SL_OK);
        ck_assert_int_eq(p, SL_EVICT_LRU);
        ck_assert_int_eq(l, SL_LAYOUT_PAGE_FIRST);
        ck_assert_int_eq(sl_choose_policy(texts[i], APART, &p, NULL), SL_OK);
        ck_assert_int_eq(sl_choose_layout(texts[i], APART, &l, NULL), SL_OK);
        ck_assert_int_eq(p, SL_EVICT_CLOCK);
        ck_assert_int_eq(l, SL_LAYOUT_LAYER_FIRST);
    }
}
END_TEST

START_TEST(a_name_is_taken_on_every_device)
{
    static const unsigned devices[] = {SL_BE_UNIFIED, APART};
    for (size_t d = 0; d < SL_COUNT(devices); d++) {
        for (const char *const *n = sl_evict_policy_names(); *n; n++) {
            sl_evict_policy p;
            ck_assert_int_eq(sl_choose_policy(*n, devices[d], &p, NULL), SL_OK);
            ck_assert_str_eq(sl_evict_policy_name(p), *n);
        }
        for (const char *const *n = sl_layout_names(); *n; n++) {
            sl_layout l;
            ck_assert_int_eq(sl_choose_layout(*n, devices[d], &l, NULL), SL_OK);
            ck_assert_str_eq(sl_layout_name(l), *n);
        }
    }
}
END_TEST

START_TEST(auto_algorithm_depends_on_the_model)
{
    const sl_model_config indexed = {.index.topk = 16}, other = {.attn.n_kv_heads = 2};
    const sl_algo_desc *a = NULL;
    static const char *const texts[] = {"auto", NULL};
    for (size_t i = 0; i < SL_COUNT(texts); i++) {
        ck_assert_int_eq(sl_choose_algorithm(texts[i], &indexed, &a, NULL), SL_OK);
        ck_assert_ptr_eq(a, &sl_algo_dsa);
        ck_assert_int_eq(sl_choose_algorithm(texts[i], &other, &a, NULL), SL_OK);
        ck_assert_ptr_eq(a, &sl_algo_dense);
    }
    for (const char *const *n = sl_algo_names(); *n; n++) {
        ck_assert_int_eq(sl_choose_algorithm(*n, &other, &a, NULL), SL_OK);
        ck_assert_str_eq(a->name, *n);
    }
}
END_TEST

static const sl_model_config indexed_model = {.index.topk = 16, .max_context = 4096};
static const sl_model_config kv_heads_model = {.attn.n_kv_heads = 2, .max_context = 4096};

/* text: "name=value:name=value" of the algorithm's options. */
static sl_status choose(const sl_algo_desc *a, const sl_model_config *cfg, const char *text, sl_gates g,
                        sl_select_options *out, sl_err *err)
{
    sl_select_options values;
    SL_TRY(sl_algo_select(a, text, &values, err));
    return sl_choose_selection(a, values.values, cfg, &g, out, err);
}

static sl_select_options chosen(const sl_algo_desc *a, const sl_model_config *cfg, const char *text,
                                sl_gates g)
{
    sl_select_options p;
    sl_err err = {0};
    ck_assert_msg(choose(a, cfg, text, g, &p, &err) == SL_OK, "%s", err.text);
    return p;
}

static double number(const sl_algo_desc *a, const sl_select_options *p, const char *name)
{
    return sl_options_number(a->options, p->values, name);
}

START_TEST(parameters_of_a_selection)
{
    sl_select_options p =
        chosen(&sl_algo_quest, &kv_heads_model,
               "token_budget=256:block_tokens=8:list_scope=request:gqa_reduction=softmax", (sl_gates){0});
    ck_assert(number(&sl_algo_quest, &p, "token_budget") == 256 &&
              number(&sl_algo_quest, &p, "block_tokens") == 8);
    ck_assert(number(&sl_algo_quest, &p, "gqa_reduction") == SL_GROUP_SOFTMAX);
    ck_assert(number(&sl_algo_quest, &p, "list_scope") == 1 &&
              number(&sl_algo_quest, &p, "bounds_dtype") == 0);
    sl_select_options usual;
    sl_gates none = {0};
    ck_assert_int_eq(sl_choose_selection(&sl_algo_quest, NULL, &kv_heads_model, &none, &usual, NULL), SL_OK);
    p = chosen(&sl_algo_quest, &kv_heads_model, "", (sl_gates){0});
    ck_assert_mem_eq(&p, &usual, sizeof p); /* no options: the defaults */
    ck_assert(number(&sl_algo_quest, &p, "token_budget") == 1024);
}
END_TEST

/* Rows of another selection than the model's own never match; those of the model's own have no stamp. */
START_TEST(stamps_tell_selections_apart)
{
    static const int32_t layers[] = {0, 1};
    uint64_t stamps[8];
    size_t n = 0;
    const sl_gates gates[] = {{.sink_tokens = 4},
                              {.recent_tokens = 4},
                              {.min_tokens = 4},
                              {.dense_layers = layers, .n_dense_layers = 2}};
    for (size_t i = 0; i < SL_COUNT(gates); i++)
        stamps[n++] = chosen(&sl_algo_dsa, &indexed_model, "", gates[i]).stamp;
    stamps[n++] = chosen(&sl_algo_quest, &kv_heads_model, "", gates[3]).stamp;
    stamps[n++] = chosen(&sl_algo_quest, &kv_heads_model, "", (sl_gates){0}).stamp;
    stamps[n++] = chosen(&sl_algo_dense, &indexed_model, "", (sl_gates){0}).stamp;
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j <= i; j++)
            ck_assert((stamps[i] == stamps[j]) == (i == j) && stamps[i] != 0);
    ck_assert_uint_eq(chosen(&sl_algo_dsa, &indexed_model, "", (sl_gates){0}).stamp, 0);
    ck_assert_uint_eq(chosen(&sl_algo_dense, &kv_heads_model, "", (sl_gates){0}).stamp, 0);
}
END_TEST

/* Another value of any option, from its own table: the next name, or a number nearby. */
static void other_value(const sl_option *o, const void *values, char *text, size_t cap)
{
    const char *const *names = sl_option_names(o);
    sl_options one = {.section = "t", .name = "t", .rows = o, .n = 1};
    double v = o->type == SL_OPTION_TEXT ? 0 : sl_options_number(&one, values, o->name);
    if (o->type == SL_OPTION_ENUM)
        snprintf(text, cap, "%s", names[(int)v + 1] ? names[(int)v + 1] : names[0]);
    else if (o->type == SL_OPTION_BOOL)
        snprintf(text, cap, "%s", v != 0 ? "false" : "true");
    else if (o->type == SL_OPTION_FLOAT)
        snprintf(text, cap, "%g", v / 2 + 0.125);
    else if (o->type == SL_OPTION_TEXT)
        snprintf(text, cap, "%s", "another");
    else
        snprintf(text, cap, "%d", 2 * v <= (double)o->max ? (int)(v > 0 ? 2 * v : 1) : (int)(v / 2));
}

/* Every option of every algorithm: the stamp changes exactly when its row says that pages depend on it. */
START_TEST(every_option_is_in_the_stamp_or_says_why_not)
{
    const sl_model_config m = {.attn.n_kv_heads = 2, .max_context = 1 << 20};
    int flipped = 0;
    for (const sl_algo_desc *const *a = sl_algo_registry(); *a; a++) {
        const sl_options *t = (*a)->options;
        if (!t || *a == &sl_algo_double_sparsity) /* needs a file: stamps_contain_the_channels */
            continue;
        for (size_t i = 0; i < t->n; i++) {
            sl_select_options v;
            char text[64], assignment[128];
            if (!strcmp(t->rows[i].name,
                        "budgets_path")) /* a file: the_stamp_has_the_shares of test_budgets */
                continue;
            ck_assert_int_eq(sl_algo_select(*a, "", &v, NULL), SL_OK);
            other_value(&t->rows[i], v.values, text, sizeof text);
            /* list_mass alone cannot be without another one */
            const char *with = !strcmp(t->rows[i].name, "list_mass") && sl_options_find(t, "gqa_reduction")
                                   ? "gqa_reduction=softmax"
                                   : "";
            snprintf(assignment, sizeof assignment, "%s%s%s=%s", with, *with ? ":" : "", t->rows[i].name,
                     text);
            const uint64_t usual = chosen(*a, &m, with, (sl_gates){0}).stamp;
            const bool pages = t->rows[i].flags & SL_OPTION_PAGES;
            ck_assert_msg((chosen(*a, &m, assignment, (sl_gates){0}).stamp != usual) == pages, "%s: %s",
                          (*a)->name, assignment);
            flipped++;
        }
    }
    ck_assert_int_ge(flipped, 25);
}
END_TEST

/* Pages made with another table of channels, or with more of them, never match. */
START_TEST(stamps_contain_the_channels)
{
    double importance[2][2 * 4] = {{1, 2, 3, 4, 1, 2, 3, 4}, {4, 3, 2, 1, 1, 2, 3, 4}};
    const sl_model_config m = {.architecture = "A",
                               .n_layers = 1,
                               .attn.n_heads = 2,
                               .attn.n_kv_heads = 2,
                               .attn.v_head_dim = 4,
                               .max_context = 4096};
    const sl_algo_model of_m = {
        .architecture = "A", .n_layers = 1, .n_heads = 2, .kv_heads = 2, .head_dim = 4};
    static const char *const more[] = {"heavy_channels=2",
                                       "heavy_channels=2",
                                       "heavy_channels=3",
                                       "heavy_channels=2:token_budget=65",
                                       "heavy_channels=2:gqa_reduction=mean",
                                       "heavy_channels=2:list_scope=request"};
    char paths[2][64], text[256];
    uint64_t stamps[SL_COUNT(more)];
    sl_err err = {0};
    for (int i = 0; i < 2; i++) {
        snprintf(paths[i], sizeof paths[i], "/tmp/sl-choose-%d-%d", (int)getpid(), i);
        ck_assert_int_eq(sl_channels_write(paths[i], &of_m, "m", "qk", 1, importance[i], &err), SL_OK);
    }
    for (size_t i = 0; i < SL_COUNT(more); i++) {
        snprintf(text, sizeof text, "channel_config_path=%s:%s", paths[i == 1], more[i]);
        stamps[i] = chosen(&sl_algo_double_sparsity, &m, text, (sl_gates){0}).stamp;
        for (size_t j = 0; j < i; j++)
            ck_assert(stamps[i] != stamps[j]);
    }
    sl_select_options p;
    snprintf(text, sizeof text, "channel_config_path=%s:heavy_channels=5", paths[0]);
    ck_assert_int_eq(choose(&sl_algo_double_sparsity, &m, text, (sl_gates){0}, &p, &err), SL_ERR_INVALID);
    ck_assert_msg(strstr(err.text, "heavy_channels is 5, but /tmp/sl-choose-") != NULL, "%s", err.text);
    ck_assert_int_eq(choose(&sl_algo_double_sparsity, &m, "", (sl_gates){0}, &p, &err), SL_ERR_INVALID);
    ck_assert_msg(strstr(err.text, "channel_config_path is not set") != NULL, "%s", err.text);
    /* The same contents under another name: the same pages. */
    ck_assert_int_eq(sl_channels_write(paths[1], &of_m, "m", "qk", 1, importance[0], &err), SL_OK);
    snprintf(text, sizeof text, "channel_config_path=%s:%s", paths[1], more[0]);
    ck_assert_uint_eq(chosen(&sl_algo_double_sparsity, &m, text, (sl_gates){0}).stamp, stamps[0]);
    for (int i = 0; i < 2; i++)
        unlink(paths[i]);
}
END_TEST

START_TEST(some_algorithms_have_default_gates)
{
    sl_gates none = {.min_tokens = 7}, some = {.recent_tokens = 100}, dsa = {0};
    sl_select_options p;
    ck_assert_int_eq(sl_choose_selection(&sl_algo_streaming_llm, NULL, &kv_heads_model, &none, &p, NULL),
                     SL_OK);
    ck_assert(none.sink_tokens == 4 && none.recent_tokens == 512 && none.min_tokens == 7);
    ck_assert_int_eq(sl_choose_selection(&sl_algo_streaming_llm, NULL, &kv_heads_model, &some, &p, NULL),
                     SL_OK);
    ck_assert(some.sink_tokens == 0 && some.recent_tokens == 100);
    ck_assert_int_eq(sl_choose_selection(&sl_algo_dsa, NULL, &indexed_model, &dsa, &p, NULL), SL_OK);
    ck_assert(dsa.sink_tokens == 0 && dsa.recent_tokens == 0);
    sl_gates clusters = {0}, codes = {0};
    ck_assert_int_eq(sl_choose_selection(&sl_algo_cluster_kv, NULL, &kv_heads_model, &clusters, &p, NULL),
                     SL_OK);
    ck_assert_int_eq(sl_choose_selection(&sl_algo_pq_cache, NULL, &kv_heads_model, &codes, &p, NULL), SL_OK);
    ck_assert(clusters.sink_tokens == 16 && codes.sink_tokens == 32);
}
END_TEST

START_TEST(impossible_parameters_are_refused)
{
    static const struct {
        const sl_algo_desc *a;
        const char *text, *says;
    } bad[] = {
        {&sl_algo_quest, "token_budget=4097", "token_budget 4097 exceeds the model's context of 4096 tokens"},
        {&sl_algo_snapkv, "prompt_budget=4097",
         "prompt_budget 4097 exceeds the model's context of 4096 tokens"},
        {&sl_algo_quest, "block_tokens=24", "block_tokens 24 does not divide a page of 64 tokens"},
        {&sl_algo_quest, "block_tokens=128", "block_tokens: \"128\" is out of bounds"},
        {&sl_algo_quest, "list_scope=head",
         "list_scope: \"head\" is not known (want one of: kv_head, request)"},
        {&sl_algo_quest, "list_mass=0.5",
         "list_mass 0.5 is a share of weights, which gqa_reduction softmax alone"},
        {&sl_algo_quest, "list_mass=0.5:gqa_reduction=union", "list_mass 0.5 is a share of weights"},
        {&sl_algo_quest, "list_mass=1.5:gqa_reduction=softmax", "list_mass"},
        {&sl_algo_quest, "gqa_reduction=sum", "(want one of: max, mean, softmax, union)"},
        {&sl_algo_quest, "bounds_dtype=f16", "(want one of: auto, f32, bf16, int8)"},
        {&sl_algo_double_sparsity, "klabel_dtype=bf16",
         "klabel_dtype: double_sparsity does not have this option"},
        {&sl_algo_quest, "topk=3", "topk: quest does not have this option"},
        {&sl_algo_dense, "topk=3", "topk=3: dense has no options"},
        {&sl_algo_quest, "token_budget", "\"token_budget\": want name=value"},
        {&sl_algo_rocket_kv, "topk=1025",
         "topk 1025 pages of page_size 4 tokens exceed the model's context of 4096"},
        {&sl_algo_rocket_kv, "topk=8:page_size=24", "page_size 24 does not divide a page of 64 tokens"},
        {&sl_algo_rocket_kv, "kt_cache_dtype=float8_e4m3", "(want one of: float8_e5m2, bfloat16)"},
    };
    for (size_t i = 0; i < SL_COUNT(bad); i++) {
        sl_select_options p = {.stamp = 77};
        sl_err err = {0};
        ck_assert_int_eq(choose(bad[i].a, &kv_heads_model, bad[i].text, (sl_gates){0}, &p, &err),
                         SL_ERR_INVALID);
        ck_assert_msg(strstr(err.text, bad[i].says) != NULL, "\"%s\" does not say %s", err.text, bad[i].says);
        ck_assert_uint_eq(p.stamp, 77);
    }
}
END_TEST

START_TEST(unknown_names_are_refused)
{
    sl_err err = {0};
    sl_evict_policy p = SL_EVICT_CLOCK;
    sl_layout l = SL_LAYOUT_PAGE_HEAD;
    ck_assert_int_eq(sl_choose_policy("fifo", 0, &p, &err), SL_ERR_NOT_FOUND);
    ck_assert_ptr_nonnull(strstr(err.text, "lru, clock"));
    ck_assert_int_eq(sl_choose_layout("column", 0, &l, &err), SL_ERR_NOT_FOUND);
    ck_assert_ptr_nonnull(strstr(err.text, "page_first"));
    const sl_algo_desc *a = &sl_algo_dense;
    const sl_model_config cfg = {.index.topk = 16};
    ck_assert_int_eq(sl_choose_algorithm("nothing", &cfg, &a, &err), SL_ERR_NOT_FOUND);
    ck_assert_ptr_nonnull(strstr(err.text, "dsa, dense"));
    ck_assert_ptr_eq(a, &sl_algo_dense);
    ck_assert_int_eq(p, SL_EVICT_CLOCK);
    ck_assert_int_eq(l, SL_LAYOUT_PAGE_HEAD);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("choose");
    TCase *t = tcase_create("choose");
    tcase_add_test(t, auto_depends_on_the_device);
    tcase_add_test(t, a_name_is_taken_on_every_device);
    tcase_add_test(t, auto_algorithm_depends_on_the_model);
    tcase_add_test(t, parameters_of_a_selection);
    tcase_add_test(t, stamps_tell_selections_apart);
    tcase_add_test(t, stamps_contain_the_channels);
    tcase_add_test(t, every_option_is_in_the_stamp_or_says_why_not);
    tcase_add_test(t, some_algorithms_have_default_gates);
    tcase_add_test(t, impossible_parameters_are_refused);
    tcase_add_test(t, unknown_names_are_refused);
    suite_add_tcase(s, t);
    return run_suite(s);
}
