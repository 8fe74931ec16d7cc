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
    const sl_model_config indexed = {.index_topk = 16}, other = {.n_kv_heads = 2};
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

static const sl_model_config indexed_model = {.index_topk = 16, .max_context = 4096};
static const sl_model_config kv_heads_model = {.n_kv_heads = 2, .max_context = 4096};

static sl_select_params chosen(const sl_algo_desc *a, const sl_model_config *cfg, sl_selection_keys k,
                               sl_gates g)
{
    sl_select_params p;
    sl_err err = {0};
    ck_assert_msg(sl_choose_selection(a, &k, cfg, &g, &p, &err) == SL_OK, "%s", err.text);
    return p;
}

START_TEST(parameters_of_a_selection)
{
    const sl_selection_keys usual = {.token_budget = 1024, .block_tokens = 16};
    sl_selection_keys k = {.token_budget = 256,
                           .block_tokens = 8,
                           .list_scope = "request",
                           .gqa_reduction = "softmax",
                           .bounds_dtype = "bf16"};
    sl_select_params p = chosen(&sl_algo_quest, &kv_heads_model, k, (sl_gates){0});
    ck_assert(p.token_budget == 256 && p.block_tokens == 8 && p.shared_lists);
    ck_assert(p.reduce == SL_GROUP_SOFTMAX && p.bounds_typed && p.bounds == SL_BF16);
    p = chosen(&sl_algo_quest, &kv_heads_model, usual, (sl_gates){0});
    ck_assert(p.token_budget == 1024 && !p.shared_lists && p.reduce == SL_GROUP_MAX && !p.bounds_typed);
    k = usual, k.bounds_dtype = "auto", k.list_scope = "kv_head", k.gqa_reduction = "max";
    ck_assert_uint_eq(chosen(&sl_algo_quest, &kv_heads_model, k, (sl_gates){0}).stamp, p.stamp);
}
END_TEST

/* Rows of another selection than the model's own never match; those of the model's own have no stamp. */
START_TEST(stamps_tell_selections_apart)
{
    static const int32_t layers[] = {0, 1};
    const sl_selection_keys usual = {.token_budget = 1024, .block_tokens = 16};
    sl_selection_keys k[6] = {usual, usual, usual, usual, usual, usual};
    uint64_t stamps[12];
    size_t n = 0;
    k[1].token_budget = 512, k[2].block_tokens = 32, k[3].list_scope = "request", k[4].gqa_reduction = "mean";
    k[5].bounds_dtype = "f32";
    for (size_t i = 0; i < SL_COUNT(k); i++)
        stamps[n++] = chosen(&sl_algo_quest, &kv_heads_model, k[i], (sl_gates){0}).stamp;
    const sl_gates gates[] = {{.sink_tokens = 4},
                              {.recent_tokens = 4},
                              {.min_tokens = 4},
                              {.dense_layers = layers, .n_dense_layers = 2}};
    for (size_t i = 0; i < SL_COUNT(gates); i++)
        stamps[n++] = chosen(&sl_algo_dsa, &indexed_model, usual, gates[i]).stamp;
    stamps[n++] = chosen(&sl_algo_quest, &kv_heads_model, usual, gates[3]).stamp;
    stamps[n++] = chosen(&sl_algo_dense, &indexed_model, usual, (sl_gates){0}).stamp;
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j <= i; j++)
            ck_assert((stamps[i] == stamps[j]) == (i == j) && stamps[i] != 0);
    ck_assert_uint_eq(chosen(&sl_algo_dsa, &indexed_model, usual, (sl_gates){0}).stamp, 0);
    ck_assert_uint_eq(chosen(&sl_algo_dsa, &indexed_model, k[1], (sl_gates){0}).stamp, 0);
    ck_assert_uint_eq(chosen(&sl_algo_dense, &kv_heads_model, usual, (sl_gates){0}).stamp, 0);
}
END_TEST

static void refused(sl_selection_keys k, sl_status want, const char *says)
{
    sl_select_params p = {.stamp = 77};
    sl_gates g = {0};
    sl_err err = {0};
    ck_assert_int_eq(sl_choose_selection(&sl_algo_quest, &k, &kv_heads_model, &g, &p, &err), want);
    ck_assert_msg(strstr(err.text, says) != NULL, "\"%s\" does not say %s", err.text, says);
    ck_assert_uint_eq(p.stamp, 77);
}

/* Pages made with another table of channels, or with more of them, never match. */
START_TEST(stamps_contain_the_channels)
{
    double importance[2][2 * 4] = {{1, 2, 3, 4, 1, 2, 3, 4}, {4, 3, 2, 1, 1, 2, 3, 4}};
    const sl_model_config m = {.architecture = "A",
                               .n_layers = 1,
                               .n_heads = 2,
                               .n_kv_heads = 2,
                               .v_head_dim = 4,
                               .max_context = 4096};
    const sl_channels_model of_m = {
        .architecture = "A", .n_layers = 1, .n_heads = 2, .kv_heads = 2, .head_dim = 4};
    char paths[2][64];
    sl_selection_keys k[5];
    uint64_t stamps[5];
    sl_err err = {0};
    for (int i = 0; i < 2; i++) {
        snprintf(paths[i], sizeof paths[i], "/tmp/sl-choose-%d-%d", (int)getpid(), i);
        ck_assert_int_eq(sl_channels_write(paths[i], &of_m, "m", "qk", 1, importance[i], &err), SL_OK);
    }
    for (int i = 0; i < 5; i++)
        k[i] = (sl_selection_keys){.token_budget = 64, .channel_config_path = paths[0], .heavy_channels = 2};
    k[1].channel_config_path = paths[1], k[2].heavy_channels = 3, k[3].klabel_dtype = "bf16",
    k[4].token_budget = 65;
    for (int i = 0; i < 5; i++) {
        const sl_select_params p = chosen(&sl_algo_double_sparsity, &m, k[i], (sl_gates){0});
        ck_assert_int_eq(p.channels->count, 4);
        stamps[i] = p.stamp;
        for (int j = 0; j < i; j++)
            ck_assert(stamps[i] != stamps[j]);
    }
    sl_select_params p;
    sl_gates g = {0};
    k[0].heavy_channels = 5;
    ck_assert_int_eq(sl_choose_selection(&sl_algo_double_sparsity, &k[0], &m, &g, &p, &err), SL_ERR_INVALID);
    ck_assert_msg(strstr(err.text, "heavy_channels is 5, but /tmp/sl-choose-") != NULL, "%s", err.text);
    k[0].channel_config_path = "";
    ck_assert_int_eq(sl_choose_selection(&sl_algo_double_sparsity, &k[0], &m, &g, &p, &err), SL_ERR_INVALID);
    ck_assert_msg(strstr(err.text, "channel_config_path is not set") != NULL, "%s", err.text);
    for (int i = 0; i < 2; i++)
        unlink(paths[i]);
}
END_TEST

/* Pages of other clusters or codes never match; keys of other algorithms do not matter, and neither do these for others. */
START_TEST(stamps_contain_what_k_means_depends_on)
{
    static const sl_algo_desc *const algorithms[] = {&sl_algo_cluster_kv, &sl_algo_pq_cache};
    const sl_selection_keys usual = {.token_budget = 64, .niter = 20, .recent_ratio = 0.5};
    for (size_t a = 0; a < SL_COUNT(algorithms); a++) {
        sl_selection_keys k[10];
        uint64_t stamps[10];
        for (int i = 0; i < 10; i++)
            k[i] = usual;
        k[1].token_budget = 65, k[2].niter = 21, k[3].cluster_tokens = 9, k[4].cluster_window = 7;
        k[5].window_nlist = 3, k[6].n_subvec = 4, k[7].n_subbits = 5, k[8].recent_ratio = 0.25;
        k[9].gqa_reduction = "mean";
        for (int i = 0; i < 10; i++) {
            stamps[i] = chosen(algorithms[a], &kv_heads_model, k[i], (sl_gates){0}).stamp;
            for (int j = 0; j < i; j++)
                ck_assert(stamps[i] != stamps[j]);
        }
        k[0].block_tokens = 32, k[0].window_size = 16, k[0].output_tokens = 5, k[0].list_scope = "request";
        sl_select_params p = chosen(algorithms[a], &kv_heads_model, k[0], (sl_gates){0});
        ck_assert_uint_eq(p.stamp, stamps[0]);
        ck_assert(!p.shared_lists && p.block_tokens == 0 && p.window == 0);
        uint64_t quest = chosen(&sl_algo_quest, &kv_heads_model, usual, (sl_gates){0}).stamp;
        ck_assert_uint_eq(quest, chosen(&sl_algo_quest, &kv_heads_model, k[2], (sl_gates){0}).stamp);
    }
}
END_TEST

START_TEST(some_algorithms_have_default_gates)
{
    const sl_selection_keys usual = {.token_budget = 1024, .block_tokens = 16};
    sl_gates none = {.min_tokens = 7}, some = {.recent_tokens = 100}, dsa = {0};
    sl_select_params p;
    ck_assert_int_eq(sl_choose_selection(&sl_algo_streaming_llm, &usual, &kv_heads_model, &none, &p, NULL),
                     SL_OK);
    ck_assert(none.sink_tokens == 4 && none.recent_tokens == 512 && none.min_tokens == 7);
    ck_assert_int_eq(sl_choose_selection(&sl_algo_streaming_llm, &usual, &kv_heads_model, &some, &p, NULL),
                     SL_OK);
    ck_assert(some.sink_tokens == 0 && some.recent_tokens == 100);
    ck_assert_int_eq(sl_choose_selection(&sl_algo_dsa, &usual, &indexed_model, &dsa, &p, NULL), SL_OK);
    ck_assert(dsa.sink_tokens == 0 && dsa.recent_tokens == 0);
    sl_gates clusters = {0}, codes = {0};
    ck_assert_int_eq(sl_choose_selection(&sl_algo_cluster_kv, &usual, &kv_heads_model, &clusters, &p, NULL),
                     SL_OK);
    ck_assert_int_eq(sl_choose_selection(&sl_algo_pq_cache, &usual, &kv_heads_model, &codes, &p, NULL),
                     SL_OK);
    ck_assert(clusters.sink_tokens == 16 && codes.sink_tokens == 32);
}
END_TEST

START_TEST(impossible_parameters_are_refused)
{
    sl_selection_keys k = {.token_budget = 4097, .block_tokens = 16};
    refused(k, SL_ERR_INVALID, "token_budget 4097 exceeds the model's context of 4096 tokens");
    k.token_budget = 64, k.block_tokens = 24;
    refused(k, SL_ERR_INVALID, "block_tokens 24 does not divide a page of 64 tokens");
    k.block_tokens = 128;
    refused(k, SL_ERR_INVALID, "block_tokens 128");
    k.block_tokens = 16, k.list_scope = "head";
    refused(k, SL_ERR_NOT_FOUND, "list_scope \"head\" does not exist; there are: kv_head, request");
    k.list_scope = NULL, k.gqa_reduction = "sum";
    refused(k, SL_ERR_NOT_FOUND, "gqa_reduction \"sum\" does not exist; there are: max, mean, softmax");
    k.gqa_reduction = NULL, k.bounds_dtype = "f16";
    refused(k, SL_ERR_NOT_FOUND, "bounds_dtype \"f16\" does not exist; there are: f32, bf16, int8");
    k.bounds_dtype = NULL, k.klabel_dtype = "int8";
    refused(k, SL_ERR_NOT_FOUND, "klabel_dtype \"int8\" does not exist; there are: f32, bf16");
}
END_TEST

/* The pages of rocket_kv: refused values, defaults, and what other algorithms forget. */
START_TEST(pages_of_retained_tokens)
{
    const sl_selection_keys usual = {
        .prompt_budget = 512, .window_size = 32, .topk = 64, .topr = 128, .page_size = 4};
    const struct {
        int32_t topk, page_size;
        const char *dtype;
        sl_status want;
        const char *says;
    } bad[] = {
        {1025, 4, NULL, SL_ERR_INVALID,
         "topk 1025 pages of page_size 4 tokens exceed the model's context of 4096"},
        {8, 24, NULL, SL_ERR_INVALID, "page_size 24 does not divide a page of 64 tokens"},
        {8, 4, "float8_e4m3", SL_ERR_NOT_FOUND,
         "kt_cache_dtype \"float8_e4m3\" does not exist; there are: float8_e5m2, bfloat16"},
    };
    for (size_t i = 0; i < SL_COUNT(bad); i++) {
        sl_selection_keys k = usual;
        sl_select_params p;
        sl_gates g = {0};
        sl_err err = {0};
        k.topk = bad[i].topk, k.page_size = bad[i].page_size, k.kt_cache_dtype = bad[i].dtype;
        ck_assert_int_eq(sl_choose_selection(&sl_algo_rocket_kv, &k, &kv_heads_model, &g, &p, &err),
                         bad[i].want);
        ck_assert_msg(strstr(err.text, bad[i].says) != NULL, "\"%s\" does not say %s", err.text, bad[i].says);
    }
    sl_selection_keys other[] = {usual, usual, usual, usual, usual};
    other[1].topk = 65, other[2].topr = 64, other[3].page_size = 8, other[4].kt_cache_dtype = "bfloat16";
    for (size_t i = 0; i < SL_COUNT(other); i++)
        for (size_t j = 0; j < i; j++) {
            ck_assert(chosen(&sl_algo_rocket_kv, &kv_heads_model, other[i], (sl_gates){0}).stamp !=
                      chosen(&sl_algo_rocket_kv, &kv_heads_model, other[j], (sl_gates){0}).stamp);
            ck_assert_uint_eq(chosen(&sl_algo_snapkv, &kv_heads_model, other[i], (sl_gates){0}).stamp,
                              chosen(&sl_algo_snapkv, &kv_heads_model, other[j], (sl_gates){0}).stamp);
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
    const sl_model_config cfg = {.index_topk = 16};
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
    tcase_add_test(t, stamps_contain_what_k_means_depends_on);
    tcase_add_test(t, some_algorithms_have_default_gates);
    tcase_add_test(t, impossible_parameters_are_refused);
    tcase_add_test(t, pages_of_retained_tokens);
    tcase_add_test(t, unknown_names_are_refused);
    suite_add_tcase(s, t);
    return run_suite(s);
}
