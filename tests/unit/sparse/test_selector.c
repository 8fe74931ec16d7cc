/*
 * The description of a selection: it can state the trained sparse families, contradictions are refused, and the
 * coordinator refuses with the reason what its kernels cannot serve.
 */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "rig.h"
#include "sparse/algorithm.h"
#include "tests/unit/run_suite.h"

/* The published families with trained selection, as they describe themselves in their configs. */
static const struct {
    const char *family;
    sl_selector s;
} families[] = {
    {"one key per token (DeepSeek-V3.2, GLM-5, Hy4)",
     {.unit_tokens = 1,
      .block_tokens = 1,
      .key = SL_KEY_STORED,
      .score = SL_SCORE_WEIGHTED_RELU,
      .scope = SL_SCOPE_REQUEST,
      .shared_by_layers = true}},
    {"pooled keys and the open tail (GLM-5.3-Flash)",
     {.unit_tokens = 4,
      .block_tokens = 4,
      .key = SL_KEY_GATED_POOL,
      .score = SL_SCORE_WEIGHTED_RELU,
      .scope = SL_SCOPE_REQUEST,
      .force_open = true}},
    {"mean of four keys and the open tail (Qwen3.8-Flash-Next)",
     {.unit_tokens = 4,
      .block_tokens = 4,
      .key = SL_KEY_MEAN,
      .score = SL_SCORE_RELU,
      .scope = SL_SCOPE_REQUEST,
      .force_open = true}},
    {"blocks of 128 per KV head (MiniMax-M3)",
     {.unit_tokens = 1,
      .block_tokens = 128,
      .entry_tokens = 64,
      .key = SL_KEY_STORED,
      .score = SL_SCORE_RAW,
      .reduce = SL_REDUCE_MAX,
      .scope = SL_SCOPE_KV_HEAD,
      .force_last = 1}},
    {"compressed entries (DeepSeek-V4, CSA layers)",
     {.unit_tokens = 4,
      .block_tokens = 4,
      .key = SL_KEY_COMPRESSOR,
      .score = SL_SCORE_WEIGHTED_RELU,
      .scope = SL_SCOPE_REQUEST}},
    {"bounds of pages, without training (Quest)",
     {.unit_tokens = 16,
      .block_tokens = 16,
      .key = SL_KEY_BOUNDS,
      .score = SL_SCORE_BOUND,
      .scope = SL_SCOPE_QUERY_HEAD,
      .force_last = 1}},
};

START_TEST(families_can_be_stated)
{
    sl_err err = {0};
    ck_assert_msg(sl_selector_check(&families[_i].s, &err) == SL_OK, "%s: %s", families[_i].family, err.text);
}
END_TEST

START_TEST(registered_algorithms_are_consistent)
{
    sl_cache_dims d = {.index_dim = 128, .index_heads = 64, .index_topk = 2048};
    for (const sl_algo_desc *const *a = sl_algo_registry(); *a; a++) {
        d.index_block = (*a)->index_blocks ? 128 : 0;
        sl_selector s = (*a)->selector(&d);
        ck_assert_int_eq(sl_selector_check(&s, NULL), SL_OK);
    }
}
END_TEST

static void contradiction(sl_selector s, const char *word)
{
    sl_err err = {0};
    ck_assert_int_eq(sl_selector_check(&s, &err), SL_ERR_INVALID);
    ck_assert_msg(strstr(err.text, word) != NULL, "\"%s\" does not say %s", err.text, word);
}

START_TEST(contradictions_are_refused)
{
    sl_selector s = families[0].s;
    s.unit_tokens = 0;
    contradiction(s, "unit_tokens 0");
    s = families[1].s, s.block_tokens = 6;
    contradiction(s, "block_tokens 6");
    s = families[0].s, s.force_first = -1;
    contradiction(s, "force_first");
    s = families[0].s, s.scope = (sl_list_scope)3;
    contradiction(s, "scope");
    s = families[0].s, s.score = (sl_score_form)99;
    contradiction(s, "unknown");
    s = families[0].s, s.score = SL_SCORE_NONE;
    contradiction(s, "a score needs a key");
    s = families[5].s, s.score = SL_SCORE_RAW;
    contradiction(s, "bounds");
    s = families[0].s, s.unit_tokens = s.block_tokens = 2;
    contradiction(s, "one token");
    s = families[3].s, s.reduce = SL_REDUCE_NONE;
    contradiction(s, "reduced");
    s = families[0].s, s.reduce = SL_REDUCE_MAX;
    contradiction(s, "reduced");
    s = families[3].s, s.entry_tokens = 48;
    contradiction(s, "entry_tokens 48");
    s = families[3].s, s.entry_tokens = -1;
    contradiction(s, "entry_tokens -1");
}
END_TEST

/* ---- what the coordinator can serve ---- */

static sl_selector stated;

static sl_selector stated_selector(const sl_cache_dims *d)
{
    (void)d;
    return stated;
}

static void refused_on(const sl_algo_desc *a, sl_row_format rows, sl_status want, const char *word)
{
    rig_opts o = {.desc = a, .row_format = rows};
    sl_err err = {0};
    ck_assert_int_eq(rig_try(&o, &err), want);
    ck_assert_msg(strstr(err.text, word) != NULL, "\"%s\" does not say %s", err.text, word);
}

/* Index keys that select tokens or blocks, or none, for algorithms of either kind. */
START_TEST(index_keys_are_of_the_right_kind)
{
    static const struct {
        const char *algorithm, *says; /* NULL: served */
        int32_t dim, block;
    } c[] = {{"msa", NULL, 16, 8},
             {"msa", "needs index keys that select blocks, and the model's select tokens", 16, 0},
             {"msa", "has no index keys", 0, 0},
             {"dsa", "needs index keys that select tokens, and the model's select blocks", 16, 8}};
    for (size_t i = 0; i < SL_COUNT(c); i++) {
        const sl_cache_dims d = {.rows = sl_row_format_of(SL_ROW_GQA_F32),
                                 .kv_heads = 2,
                                 .head_dim = 8,
                                 .index_dim = c[i].dim,
                                 .index_heads = 2,
                                 .index_topk = 32,
                                 .index_block = c[i].block};
        sl_cache_shape shape;
        sl_err err = {0};
        const sl_status st = sl_algo_cache_shape(sl_algo_find(c[i].algorithm), &d, &shape, &err);
        ck_assert_msg(c[i].says ? st == SL_ERR_UNSUPPORTED && strstr(err.text, c[i].says) != NULL
                                : st == SL_OK,
                      "%zu: %s", i, err.text);
    }
}
END_TEST

static void refused(const sl_algo_desc *a, sl_status want, const char *word)
{
    refused_on(a, SL_ROW_MLA_F32, want, word);
}

/* Grouped-query attention takes lists per KV head and blocks within a page, and nothing finer or larger. */
START_TEST(grouped_query_attention_takes_lists_by_head)
{
    sl_algo_desc a = sl_algo_dsa;
    a.selector = stated_selector;
    rig_opts o = {.desc = &a, .row_format = SL_ROW_GQA_BF16};
    stated = families[5].s, stated.scope = SL_SCOPE_KV_HEAD;
    ck_assert_int_eq(rig_try(&o, NULL), SL_OK);
    stated.scope = SL_SCOPE_REQUEST;
    ck_assert_int_eq(rig_try(&o, NULL), SL_OK);
    stated = families[5].s;
    refused_on(&a, SL_ROW_GQA_BF16, SL_ERR_UNSUPPORTED,
               "selects per query head, but the lists of the grouped-query attention kernel are per KV head");
    stated = families[3].s; /* blocks of 128 as two rows of 64 */
    ck_assert_int_eq(rig_try(&o, NULL), SL_OK);
    stated.entry_tokens = 0;
    refused_on(
        &a, SL_ROW_GQA_BF16, SL_ERR_UNSUPPORTED,
        "selects blocks of 128 tokens, but the grouped-query attention kernel takes lists of 64 or a whole fraction");
}
END_TEST

START_TEST(the_coordinator_refuses_what_no_kernel_takes)
{
    sl_algo_desc a = sl_algo_dsa;
    a.selector = stated_selector;
    stated = families[0].s;
    rig_opts o = {.desc = &a};
    ck_assert_int_eq(rig_try(&o, NULL), SL_OK);
    stated = families[2].s;
    refused(&a, SL_ERR_UNSUPPORTED, "selects blocks of 4 tokens, but the sparse MLA kernel takes lists of 1");
    stated = families[0].s, stated.scope = SL_SCOPE_KV_HEAD;
    refused(&a, SL_ERR_UNSUPPORTED,
            "selects per KV head, but the lists of the sparse MLA kernel are per request");
    stated = families[0].s, stated.block_tokens = 0;
    refused(&a, SL_ERR_INVALID, "block_tokens 0");
    a = sl_algo_dsa, a.action = SL_ACTION_EVICT;
    refused(&a, SL_ERR_UNSUPPORTED, "drops tokens permanently");
    a = sl_algo_dsa, a.action = SL_ACTION_KERNEL;
    refused(&a, SL_ERR_UNSUPPORTED, "inside the attention kernel");
}
END_TEST

int main(void)
{
    Suite *s = suite_create("sparse/selector");
    TCase *c = tcase_create("selector");
    tcase_add_loop_test(c, families_can_be_stated, 0, (int)SL_COUNT(families));
    tcase_add_test(c, registered_algorithms_are_consistent);
    tcase_add_test(c, contradictions_are_refused);
    tcase_add_test(c, grouped_query_attention_takes_lists_by_head);
    tcase_add_test(c, index_keys_are_of_the_right_kind);
    tcase_add_test(c, the_coordinator_refuses_what_no_kernel_takes);
    suite_add_tcase(s, c);
    return run_suite(s);
}
