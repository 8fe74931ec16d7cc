/*
 * The conformance suite of sparse algorithms: it runs against every registered algorithm that serves latent rows, in
 * every row and index format. For an algorithm that does not select by index scores, rig_check needs its own restatement of the
 * selection (see docs/sparse-algorithms.md).
 */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "rig.h"
#include "tests/unit/run_suite.h"

/* Variants each algorithm is run with: formats, sharing of selections, bounds of the workspace. */
static const rig_opts variants[] = {
    {.row_format = SL_ROW_MLA_F32, .index_format = SL_INDEX_PLAIN},
    {.row_format = SL_ROW_MLA_BF16, .index_format = SL_INDEX_PLAIN, .share = true},
    {.row_format = SL_ROW_MLA_FP8, .index_format = SL_INDEX_OFFICIAL, .share = true, .workspace = 1},
    {.row_format = SL_ROW_MLA_F32, .index_format = SL_INDEX_OFFICIAL, .workspace = 20000, .threads = 2},
    {.row_format = SL_ROW_MLA_FP8, .index_format = SL_INDEX_PLAIN, .no_poison = true},
};

/* The algorithms that serve latent rows and an index key for every token, which the rig has. Those of KV heads and of units of
 * tokens run through the engine (tests/unit/engine/test_quest.c, test_state_families.c). Returns NULL after the last one. */
static const sl_algo_desc *latent(int i)
{
    for (const sl_algo_desc *const *a = sl_algo_registry(); *a; a++)
        if (!(*a)->needs_kv_heads && !(*a)->pooled_keys && i-- == 0)
            return *a;
    return NULL;
}

/* Loop index -> algorithm and variant. */
static rig_opts opts_of(int i, bool hierarchical)
{
    rig_opts o = variants[i % (int)SL_COUNT(variants)];
    o.algorithm = latent(i / (int)SL_COUNT(variants))->name;
    if (strcmp(o.algorithm, "streaming_llm") == 0) /* as long as the lists of the rig's indexer */
        o.sinks = 4, o.recent = RIG_TOPK - o.sinks;
    o.hot_slots = hierarchical ? RIG_HOT_SLOTS : 0;
    return o;
}

static void feed(rig *r, int seq, int32_t n, int32_t chunk)
{
    while (n > 0) {
        int32_t m = n < chunk ? n : chunk;
        rig_step(r, &seq, &m, 1);
        n -= m;
    }
}

START_TEST(table_is_complete)
{
    const sl_algo_desc *a = sl_algo_registry()[_i];
    ck_assert(a->name && a->name[0] && a->description && a->description[0]);
    ck_assert(a->selector && a->width && a->device_bytes && a->create && a->destroy && a->retrieve);
    ck_assert_ptr_eq(sl_algo_find(a->name), a);
    ck_assert_str_eq(sl_algo_names()[_i], a->name);
    ck_assert(!sl_algo_registry()[_i + 1] == !sl_algo_names()[_i + 1]);
    sl_algo_dims d = {.n_layers = 2,
                      .max_step_tokens = 8,
                      .max_context = 100,
                      .cache = {.rows = sl_row_format_of(a->needs_kv_heads ? SL_ROW_GQA_F32 : SL_ROW_MLA_F32),
                                .latent = 32,
                                .kv_heads = 2,
                                .head_dim = 16,
                                .index_dim = 16,
                                .index_heads = 4,
                                .index_topk = 24,
                                .index_block = a->index_blocks ? 8 : 0,
                                .index_local = 1,
                                .index_unit = a->pooled_keys ? 4 : 0}};
    ck_assert_int_eq(sl_algo_cache_shape(a, &d.cache, &d.shape, NULL), SL_OK);
    sl_selector s = a->selector(&d.cache);
    ck_assert_int_ge(s.unit_tokens, 1);
    ck_assert_int_eq(s.block_tokens % s.unit_tokens, 0);
    ck_assert((s.block_tokens > s.unit_tokens) == (s.reduce != SL_REDUCE_NONE));
    ck_assert((s.key == SL_KEY_NONE) == (s.score == SL_SCORE_NONE));
    ck_assert(!s.shared_by_layers || a->keeps_lists);
    ck_assert(!a->groupable || (a->keeps_lists && a->constant_k));
    ck_assert_int_ge(a->width(&d, 0), 1);
    ck_assert_int_le(a->width(&d, 0), 100);
    ck_assert_int_ge(a->width(&d, 60), 60);
    ck_assert_int_le(a->width(&d, 1 << 20), 100);
}
END_TEST

/* What is computed is what the definition says, at every length. */
START_TEST(equals_definition)
{
    rig_opts o = opts_of(_i, false);
    rig *r = rig_create(&o);
    rig_open(r, 0, 77, false, 0);
    feed(r, 0, 200, 200);
    feed(r, 0, 30, 1);
    for (int32_t pos = 0; pos < 230; pos += pos < 30 || pos > 195 ? 1 : 13)
        rig_check(r, 0, pos);
    rig_close(r, 0);
    rig_destroy(r);
}
END_TEST

/* The bits do not depend on chunking, on the batch, or on the workspace. */
START_TEST(chunks_and_batches_do_not_matter)
{
    rig_opts o = opts_of(_i, false);
    rig *a = rig_create(&o);
    o.workspace = 3000;
    o.threads = 1;
    rig *b = rig_create(&o);
    rig_open(a, 0, 5, false, 0);
    feed(a, 0, 190, 190);
    for (int s = 0; s < 3; s++)
        rig_open(b, s, s == 1 ? 5 : 900 + (uint32_t)s, false, 0);
    for (int32_t done = 0, i = 0; done < 190; i++) {
        int32_t n[3] = {1 + i % 3, 1 + i * 7 % 23, 2};
        if (n[1] > 190 - done)
            n[1] = 190 - done;
        rig_step(b, (const int[]){0, 1, 2}, n, 3);
        done += n[1];
    }
    rig_same(rig_seq_at(a, 0), rig_seq_at(b, 1), 0, 190);
    for (int s = 0; s < 3; s++)
        rig_close(b, s);
    rig_close(a, 0);
    rig_destroy(a);
    rig_destroy(b);
}
END_TEST

/* Hierarchical decode gives the bits of resident decode, with the fewest possible hot rows and with slots that
 * other requests reuse. */
START_TEST(hierarchical_equals_resident)
{
    rig_opts o = opts_of(_i, true);
    o.policy = _i % 2 ? SL_EVICT_CLOCK : SL_EVICT_LRU;
    rig *r = rig_create(&o);
    o.hot_slots = 0;
    rig *plain = rig_create(&o);
    for (int round = 0; round < 3; round++) {
        uint32_t content = 40 + (uint32_t)round;
        int32_t prompt = 60 + 37 * round, len = 200 + 40 * round;
        rig_open(plain, 0, content, false, 0);
        feed(plain, 0, len, 100);
        rig_open(r, 0, content, false, 0);
        feed(r, 0, prompt, 50);
        rig_spill(r, 0);
        rig_open(r, 3, content, false, 0); /* a resident one in the same batches */
        feed(r, 3, prompt, 50);
        rig_copy_pages(r, 1, r, 3, prompt);
        rig_open(r, 1, content, true, prompt); /* a hierarchical one that was prefilled elsewhere */
        for (int32_t i = prompt; i < len; i++)
            rig_step(r, (const int[]){0, 1, 3}, (const int32_t[]){1, 1, 1}, 3);
        rig_same(rig_seq_at(plain, 0), rig_seq_at(r, 0), 0, len);
        rig_same(rig_seq_at(plain, 0), rig_seq_at(r, 1), 0, len);
        rig_same(rig_seq_at(plain, 0), rig_seq_at(r, 3), 0, len);
        rig_close(r, 0), rig_close(r, 1), rig_close(r, 3), rig_close(plain, 0);
    }
    rig_destroy(r);
    rig_destroy(plain);
}
END_TEST

/* Cached pages that are loaded through construct give the same results as computed ones; lengths around page ends. */
START_TEST(prefix_reuse_equals_recompute)
{
    static const int32_t cuts[] = {1, 63, 64, 65, 128, 150};
    rig_opts o = opts_of(_i, true);
    if (!latent(_i / (int)SL_COUNT(variants))->prefix_reuse)
        return;
    rig *a = rig_create(&o), *b = rig_create(&o);
    rig_open(a, 0, 8, false, 0);
    feed(a, 0, 180, 60);
    for (size_t i = 0; i < SL_COUNT(cuts); i++) {
        rig_copy_pages(b, 0, a, 0, cuts[i]);
        rig_open(b, 0, 8, false, cuts[i]);
        feed(b, 0, 180 - cuts[i], 33);
        rig_same(rig_seq_at(a, 0), rig_seq_at(b, 0), 0, 180);
        rig_close(b, 0);
        rig_copy_pages(b, 2, a, 0, cuts[i]);
        rig_open(b, 2, 8, true, cuts[i]);
        feed(b, 2, 30, 1);
        rig_same(rig_seq_at(a, 0), rig_seq_at(b, 2), 0, cuts[i] + 30);
        rig_close(b, 2);
    }
    rig_close(a, 0);
    rig_destroy(a);
    rig_destroy(b);
}
END_TEST

int main(void)
{
    int n = 0, n_latent = 0;
    while (sl_algo_registry()[n])
        n++;
    while (latent(n_latent))
        n_latent++;
    int all = n_latent * (int)SL_COUNT(variants);
    Suite *s = suite_create("sparse/conformance");
    TCase *c = tcase_create("algorithms");
    tcase_set_timeout(c, 120);
    tcase_add_loop_test(c, table_is_complete, 0, n);
    add_variants(c, equals_definition, all);
    add_variants(c, chunks_and_batches_do_not_matter, all);
    add_variants(c, hierarchical_equals_resident, all);
    add_variants(c, prefix_reuse_equals_recompute, all);
    suite_add_tcase(s, c);
    return run_suite(s);
}
