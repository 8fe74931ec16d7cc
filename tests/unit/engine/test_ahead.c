/*
 * Rows of layers that share a list are fetched before their turn, on the side stream, which here runs as late as it may (discrete.h).
 * Tokens, hits and misses of every layer are those of an engine that fetches layer by layer: for random batches, groups, numbers of
 * tokens, layers in between that are resident, and after steps that ended early while rows were being fetched.
 */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "discrete.h"
#include "fix.h"
#include "kernels/backend_impl.h"
#include "tests/unit/run_suite.h"

#define SHARE "tests/golden/model/glm-share" /* layers 2, 3 read the list of 1, and 5 that of 4 */
#define YARN "tests/golden/model/ds-yarn"    /* every layer has its own */

enum { N = 4, FROM = 40, TO = 90, MOST = 3 };

static fix f;
static fix_text want[N], text;
static uint64_t dice;

static int roll(int n)
{
    dice = dice * 6364136223846793005ull + 1442695040888963407ull;
    return (int)((dice >> 33) % (uint64_t)n);
}

/* The n-th run of attention from now on is refused by the device; 0: none. */
static int fail_in;
static const sl_backend_desc *attention_of;

static sl_status run_attention(sl_backend *be, const void *params, sl_err *err)
{

    return fail_in > 0 && --fail_in == 0 ? sl_fail(err, SL_ERR_INTERNAL, "this attention fails")
                                         : attention_of->ops[SL_OP_SPARSE_ATTN]->run(be, params, err);
}

static void wrap(sl_backend *be)
{
    static sl_backend_desc desc;
    static sl_op_impl impl;
    discrete_wrap(be);
    attention_of = be->desc;
    desc = *be->desc;
    impl = *desc.ops[SL_OP_SPARSE_ATTN];
    impl.run = run_attention;
    desc.ops[SL_OP_SPARSE_ATTN] = &impl;
    be->desc = &desc;
}

/* What a variant is made of; the rest is drawn from its number. */
static fix_opts opts_of(int i)
{
    static int32_t hot[SL_MAX_LAYERS];
    fix_opts o = {.dir = i == 5 ? YARN : SHARE,
                  .rows = i % 2 ? SL_ROW_MLA_FP8 : SL_ROW_MLA_BF16,
                  .index = i % 2 ? SL_INDEX_OFFICIAL : SL_INDEX_PLAIN,
                  .groups = 1 + i % 3,
                  .max_seqs = N,
                  .max_hot = N,
                  .item_tokens = MOST,
                  .hot_rows = MOST * 16,
                  .tail_rows = 2 * (MOST - 1) + 1,
                  .max_context = 300};
    memset(hot, 0, sizeof hot);
    if (i > 0) /* layers with the same hot rows would have the same rows at the same places */
        hot[2] = 60, hot[3] = 72, hot[5] = 81, o.hot_rows_layer = hot;
    if (i == 4)
        hot[2] = SL_HOT_RESIDENT;
    return o;
}

/* One step of drawn sequences and numbers of tokens, some of which are wrong and taken back. `fails`: it may. */
static void step(fix_run *r, bool fails)
{
    sl_step_item items[N];
    int32_t tokens[N][MOST], right[N];
    int who[N], n = 0;
    for (int i = 0; i < N; i++) {
        const int32_t at = sl_engine_seq_len(r[i].seq), count = 1 + roll(MOST);
        if (roll(4) == 0 || at + count > TO + 3 * i)
            continue;
        right[n] = 1 + roll(count);
        for (int32_t k = 0; k < count; k++)
            tokens[n][k] = (want[i].ids[at + k] + (k < right[n] ? 0 : 1)) % f.cfg->vocab_size;
        fix_grow(&f, &r[i], at + count);
        who[n] = i;
        items[n] =
            (sl_step_item){.seq = r[i].seq, .tokens = tokens[n], .n_tokens = count, .want_logits = count};
        n++;
    }
    sl_err err = {0};
    sl_status st = n ? sl_engine_step(f.engine, items, n, NULL, &err) : SL_OK;
    ck_assert_msg(st == SL_OK || fails, "%s", err.text);
    for (int k = 0; st == SL_OK && k < n; k++) {
        const int32_t at = sl_engine_seq_len(r[who[k]].seq) - items[k].n_tokens;
        for (int32_t j = 0; j < right[k]; j++)
            if (!sl_key_eq(fix_hash(&f, items[k].logits + (int64_t)j * f.cfg->vocab_size),
                           want[who[k]].logits[at + j]))
                ck_abort_msg("sequence %d differs at %d, token %d of %d", who[k], at + j, j,
                             items[k].n_tokens);
        ck_assert_int_eq(sl_engine_seq_truncate(f.engine, r[who[k]].seq, at + right[k], NULL), SL_OK);
    }
}

static void open_all(fix_run *r)
{
    for (int i = 0; i < N; i++) {
        text = want[i], text.n = 0;
        r[i] = (fix_run){0};
        fix_prompt_open(&f, &r[i], SL_RESIDENT, 0, FROM + 3 * i, FROM + 3 * i);
        fix_feed(&f, &r[i], &text, FROM + 3 * i, 128);
        if (i != 1)
            ck_assert_int_eq(sl_engine_seq_spill(f.engine, r[i].seq, NULL), SL_OK);
    }
}

static void close_all(fix_run *r)
{
    for (int i = 0; i < N; i++)
        fix_seq_close(&f, &r[i], false);
}

/* The same steps; what every layer has counted. */
static void run(const fix_opts *o, uint64_t seed, sl_layer_stats *counts)
{
    fix_run r[N];
    fix_open(&f, o);
    open_all(r);
    dice = seed;
    for (int s = 0; s < 40; s++)
        step(r, false);
    sl_engine_layer_stats_get(f.engine, counts);
    close_all(r);
    fix_close(&f);
}

static void references(const fix_opts *o)
{
    fix_open(&f, o);
    for (int i = 0; i < N; i++)
        fix_reference(&f, &want[i], FROM + 3 * i, TO + 3 * i, 40 + (uint64_t)i);
    fix_close(&f);
}

START_TEST(the_same_as_layer_by_layer)
{
    sl_layer_stats each[SL_MAX_LAYERS] = {0}, ahead[SL_MAX_LAYERS] = {0};
    fix_opts o = opts_of(_i);
    references(&o);
    run(&o, 3 + (uint64_t)_i, each);
    o.wrap = wrap;
    discrete.stream_waits = 0;
    run(&o, 3 + (uint64_t)_i, ahead);
    for (int32_t l = 0; l < 6; l++)
        ck_assert_msg(memcmp(&each[l], &ahead[l], sizeof each[l]) == 0, "layer %d: %lu misses, not %lu", l,
                      (unsigned long)ahead[l].misses, (unsigned long)each[l].misses);
    ck_assert_uint_gt(ahead[_i == 5 ? 0 : 5].misses, 50);
    if (o.groups == 1) /* without groups it is the only user of the side stream */
        ck_assert_int_gt(discrete.stream_waits, 60);
}
END_TEST

/* Attention fails from time to time, while rows of the layers after it are in flight. */
START_TEST(steps_that_end_early)
{
    fix_run r[N];
    fix_opts o = opts_of(_i);
    o.wrap = wrap;
    references(&(fix_opts){.dir = o.dir, .rows = o.rows, .index = o.index, .max_context = o.max_context});
    fix_open(&f, &o);
    open_all(r);
    dice = 9 + (uint64_t)_i;
    int failed = 0;
    for (int s = 0; s < 120; s++) {
        fail_in = s % 3 ? 0 : 1 + roll(6 * o.groups);
        const int had = fail_in;
        step(r, true);
        failed += had > 0 && fail_in == 0;
        fail_in = 0;
    }
    ck_assert_int_gt(failed, 5);
    close_all(r);
    fix_close(&f);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("engine/ahead");
    TCase *c = tcase_create("ahead");
    tcase_set_timeout(c, 100);
    tcase_add_loop_test(c, the_same_as_layer_by_layer, 0, 6);
    tcase_add_loop_test(c, steps_that_end_early, 0, 4);
    suite_add_tcase(s, c);
    return run_suite(s);
}
