/* Files of calibrated channels: what is written is read again, SGLang's forms, and every refusal with its place. */
#include "sparse/channels.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/unit/run_suite.h"

static const sl_algo_model model = {.architecture = "LlamaForCausalLM",
                                    .n_layers = 2,
                                    .n_heads = 4,
                                    .kv_heads = 2,
                                    .head_dim = 4,
                                    .hidden_size = 16,
                                    .vocab_size = 100};

static const char good[] = "{\"schema_version\": 1, \"model_arch\": \"LlamaForCausalLM\", \"num_layers\": 2, "
                           "\"num_heads\": 4, \"num_kv_heads\": 2, \"head_dim\": 4, \"heavy_channels\": 2, "
                           "\"channel_type\": \"k\", \"indexing\": \"global_kv_head_id\", \"channels\": "
                           "{\"0\": [[3, 1], [0, 2]], \"1\": [[1, 2], [2, 3]]}}";

static sl_status parse(const char *text, sl_channels **out, sl_err *err)
{
    return sl_channels_parse(text, strlen(text), "file", &model, out, err);
}

/* `good` with `from` replaced by `to`. */
static char *edited(const char *from, const char *to)
{
    const char *at = strstr(good, from);
    ck_assert_ptr_nonnull(at);
    const size_t n = sizeof good + strlen(to);
    char *s = malloc(n);
    snprintf(s, n, "%.*s%s%s", (int)(at - good), good, to, at + strlen(from));
    return s;
}

START_TEST(reads_the_newer_form)
{
    sl_channels *c = NULL;
    sl_err err = {0};
    static const int32_t want[] = {3, 1, 0, 2, 1, 2, 2, 3};
    ck_assert_msg(parse(good, &c, &err) == SL_OK, "%s", err.text);
    ck_assert(c->n_layers == 2 && c->kv_heads == 2 && c->head_dim == 4 && c->count == 2 && c->hash != 0);
    ck_assert_mem_eq(c->of, want, sizeof want);
    char *other = edited("[3, 1]", "[1, 3]");
    sl_channels *d = NULL;
    ck_assert_int_eq(parse(other, &d, &err), SL_OK);
    ck_assert(c->hash != d->hash);
    free(other);
    sl_channels_free(c);
    sl_channels_free(d);
}
END_TEST

/* The lists of qk_proj are those of query heads: the sums of ranks of heads 0 and 1, and of 2 and 3, decide. */
START_TEST(reads_the_older_form)
{
    static const char text[] =
        "{\"model.layers.0.self_attn.k_proj\": [[0, 1, 2, 3], [3, 2, 1, 0]],"
        "\"model.layers.0.self_attn.qk_proj\": [[0, 1, 2, 3], [1, 0, 3, 2], [3, 2, 1, 0], [3, 1, 2, 0]],"
        "\"model.layers.1.self_attn.qk_proj\": [[2, 0, 1, 3], [2, 1, 0, 3], [0, 3, 1, 2], [3, 0, 2, 1]]}";
    static const char keys[] = "{\"model.layers.0.self_attn.k_proj\": [[0, 1, 2, 3], [3, 2, 1, 0]],"
                               "\"model.layers.1.self_attn.k_proj\": [[2, 1, 0, 3], [1, 0, 3, 2]]}";
    static const int32_t want[] = {0, 1, 2, 3, 3, 1, 2, 0, 2, 0, 1, 3, 0, 3, 1, 2};
    static const int32_t want_keys[] = {0, 1, 2, 3, 3, 2, 1, 0, 2, 1, 0, 3, 1, 0, 3, 2};
    sl_channels *c = NULL;
    sl_err err = {0};
    ck_assert_msg(parse(text, &c, &err) == SL_OK, "%s", err.text);
    ck_assert_int_eq(c->count, 4);
    ck_assert_mem_eq(c->of, want, sizeof want);
    sl_channels_free(c);
    ck_assert_msg(parse(keys, &c, &err) == SL_OK, "%s", err.text);
    ck_assert_mem_eq(c->of, want_keys, sizeof want_keys);
    sl_channels_free(c);
}
END_TEST

static const struct {
    const char *from, *to, *says;
    sl_status st;
} wrong[] = {
    {"LlamaForCausalLM", "Qwen2ForCausalLM",
     "file.model_arch: Qwen2ForCausalLM, but the model is LlamaForCausalLM", SL_ERR_REFUSED},
    {"\"num_layers\": 2", "\"num_layers\": 3", "file.num_layers: 3, but the model has 2", SL_ERR_REFUSED},
    {"\"num_heads\": 4", "\"num_heads\": 8", "file.num_heads: 8, but the model has 4", SL_ERR_REFUSED},
    {"\"num_kv_heads\": 2", "\"num_kv_heads\": 4", "file.num_kv_heads: 4, but the model has 2",
     SL_ERR_REFUSED},
    {"\"head_dim\": 4", "\"head_dim\": 128", "file.head_dim: 128, but the model has 4", SL_ERR_REFUSED},
    {"\"head_dim\": 4", "\"head_dim\": 4, \"vocab_size\": 9", "file.vocab_size: 9, but", SL_ERR_REFUSED},
    {"\"head_dim\": 4", "\"head_dim\": \"4\"", "file.head_dim: want an integer", SL_ERR_INVALID},
    {"\"schema_version\": 1", "\"schema_version\": 2", "file.schema_version: 2 is out of bounds",
     SL_ERR_INVALID},
    {"global_kv_head_id", "query_head", "file.indexing: \"query_head\"", SL_ERR_INVALID},
    {"\"heavy_channels\": 2", "\"heavy_channels\": 3", "file.channels.0: 2 channels, 3 are needed",
     SL_ERR_INVALID},
    {"\"heavy_channels\": 2", "\"heavy_channels\": 5", "file.heavy_channels: 5 is out of bounds",
     SL_ERR_INVALID},
    {"[3, 1]", "[3, 4]", "file.channels.0: entry 1 is no channel in 0..3", SL_ERR_INVALID},
    {"[3, 1]", "[3, 3]", "file.channels.0: entry 1 is no channel in 0..3, or it is listed twice",
     SL_ERR_INVALID},
    {"[3, 1]", "[3, 1.5]", "file.channels.0: entry 1", SL_ERR_INVALID},
    {"[3, 1]", "7", "file.channels.0: want a list", SL_ERR_INVALID},
    {"[3, 1], ", "", "file.channels.0: 1 heads, but the model has 2", SL_ERR_REFUSED},
    {"[3, 1]", "[0, 1, 2, 3, 4]", "file.channels.0: 5 channels, but the model's head_dim is 4",
     SL_ERR_REFUSED},
    {"\"1\": [[1", "\"2\": [[1", "file.channels.1: want a list", SL_ERR_INVALID},
    {", \"1\": [[1, 2], [2, 3]]", "", "file.channels: 1 layers, but the model has 2", SL_ERR_REFUSED},
    {"\"channels\"", "\"chanels\"", "file.channels: is missing", SL_ERR_INVALID},
    {"\"channel_type\": \"k\"", "\"channel_type\": \"v\"", "file.channel_type: \"v\", but keys",
     SL_ERR_REFUSED},
    {"\"schema_version\": 1", "\"schema_version\": 1, \"model_print\": \"12\"",
     "file.model_print: \"12\", want 16", SL_ERR_INVALID},
};

START_TEST(refusals_say_where)
{
    sl_channels *c = NULL;
    sl_err err = {0};
    char *text = edited(wrong[_i].from, wrong[_i].to);
    ck_assert_int_eq(parse(text, &c, &err), wrong[_i].st);
    ck_assert_msg(strstr(err.text, wrong[_i].says) != NULL, "\"%s\" does not say %s", err.text,
                  wrong[_i].says);
    ck_assert_ptr_null(c);
    free(text);
}
END_TEST

START_TEST(older_files_of_another_shape_are_refused)
{
    sl_channels *c = NULL;
    sl_err err = {0};
    ck_assert_int_eq(parse("{\"model.layers.0.self_attn.k_proj\": [[0, 1, 2, 3], [3, 2, 1, 0]]}", &c, &err),
                     SL_ERR_REFUSED);
    ck_assert_str_eq(err.text,
                     "file.model.layers.1.self_attn.k_proj: is missing, but the model has 2 layers");
    ck_assert_int_eq(parse("{\"model.layers.0.self_attn.qk_proj\": [[0]], "
                           "\"model.layers.2.self_attn.qk_proj\": [[0]]}",
                           &c, &err),
                     SL_ERR_REFUSED);
    ck_assert_str_eq(err.text, "file.model.layers.2.self_attn.qk_proj: exists, but the model has 2 layers");
    ck_assert_int_eq(parse("[]", &c, &err), SL_ERR_INVALID);
    ck_assert_str_eq(err.text, "file: want an object");
    ck_assert_ptr_null(c);
}
END_TEST

START_TEST(what_is_written_is_read)
{
    double importance[2 * 2 * 4] = {1, 2, 3, 4, 4, 3, 2, 1, 5, 5, 6, 5, 0, 0, 0, 0};
    static const int32_t want[] = {3, 2, 1, 0, 0, 1, 2, 3, 2, 0, 1, 3, 0, 1, 2, 3};
    char path[] = "/tmp/sl-channels-XXXXXX";
    const sl_channels *c = NULL, *again = NULL;
    sl_err err = {0};
    int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    close(fd);
    ck_assert_msg(sl_channels_write(path, &model, "a \"name\"", "qk", 512, importance, &err) == SL_OK, "%s",
                  err.text);
    ck_assert_msg(sl_channels_load(path, &model, &c, &err) == SL_OK, "%s", err.text);
    ck_assert_int_eq(c->count, 4);
    ck_assert_mem_eq(c->of, want, sizeof want);
    ck_assert_int_eq(sl_channels_load(path, &model, &again, &err), SL_OK);
    ck_assert_ptr_eq(c, again); /* kept once */
    sl_algo_model other = model;
    other.hidden_size = 32;
    ck_assert_int_eq(sl_channels_load(path, &other, &again, &err), SL_ERR_REFUSED);
    ck_assert_msg(strstr(err.text, path) && strstr(err.text, "hidden_size: 16, but the model has 32"), "%s",
                  err.text);
    unlink(path);
    ck_assert_int_eq(sl_channels_load(path, &model, &again, &err), SL_ERR_NOT_FOUND);
    ck_assert_int_eq(sl_channels_write("/nowhere/file", &model, "m", "k", 1, importance, &err), SL_ERR_IO);
}
END_TEST

static uint64_t print_of(const void *print)
{
    return *(const uint64_t *)print;
}

/* A file says for which weights it was made: those of another fine-tune are refused, unknown ones are not compared. */
START_TEST(the_weights_are_compared)
{
    char path[] = "/tmp/sl-channels-XXXXXX";
    double importance[16];
    uint64_t print = 0xfedcba9876543210ull;
    const sl_channels *c = NULL;
    sl_algo_model m = model;
    sl_err err = {0};
    close(mkstemp(path));
    for (int i = 0; i < 16; i++)
        importance[i] = i;
    m.print = print_of, m.print_ctx = &print;
    ck_assert_int_eq(sl_channels_write(path, &m, "m", "qk", 1, importance, &err), SL_OK);
    ck_assert_msg(sl_channels_load(path, &m, &c, &err) == SL_OK, "%s", err.text);
    print = 0;
    ck_assert_int_eq(sl_channels_load(path, &m, &c, &err), SL_OK);
    ck_assert_int_eq(sl_channels_load(path, &model, &c, &err), SL_OK);
    print = 7;
    ck_assert_int_eq(sl_channels_load(path, &m, &c, &err), SL_ERR_REFUSED);
    ck_assert_msg(strstr(err.text, path) && strstr(err.text, "model_print: fedcba9876543210, but") &&
                      strstr(err.text, "0000000000000007"),
                  "%s", err.text);
    unlink(path);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("sparse/channels");
    TCase *c = tcase_create("channels");
    tcase_add_test(c, reads_the_newer_form);
    tcase_add_test(c, reads_the_older_form);
    tcase_add_loop_test(c, refusals_say_where, 0, (int)(sizeof wrong / sizeof *wrong));
    tcase_add_test(c, older_files_of_another_shape_are_refused);
    tcase_add_test(c, what_is_written_is_read);
    tcase_add_test(c, the_weights_are_compared);
    suite_add_tcase(s, c);
    return run_suite(s);
}
