/*
 * skip_softmax through the real engine: the factor 0 is dense bit for bit; a tiny factor leaves nothing out, a larger one
 * leaves out more, and one that is not below the length nothing again; and with tiles left out the bits do not depend on
 * chunks, threads, the batch, residency, slot reuse or prefix reuse. What the op computes is compared with a restatement in
 * double precision by the conformance cases of SL_OP_GQA_ATTN. Run from the repository's root.
 */
#include <check.h>
#include <string.h>

#include "kernels/backend_impl.h"
#include "strategies.h"
#include "ways.h"

static const char *const models[] = {"tests/golden/model/llama-odd", "tests/golden/model/qwen2-mha",
                                     "tests/golden/model/qwen3-norms"};
static const sl_row_format formats[] = {SL_ROW_GQA_F32, SL_ROW_GQA_BF16, SL_ROW_GQA_FP8};

static fix_opts opts_of(int i, float factor)
{
    return (fix_opts){.dir = models[i % (int)SL_COUNT(models)],
                      .rows = formats[i % (int)SL_COUNT(formats)],
                      .act = i % (int)SL_COUNT(formats) ? SL_BF16 : SL_F32,
                      .threads = 1,
                      .max_tokens = WAYS_CONTEXT,
                      .max_context = WAYS_CONTEXT,
                      .max_seqs = 3,
                      .max_hot = 2,
                      .hot_rows = WAYS_CONTEXT,
                      .tail_rows = 3,
                      .select = {.skip_factor = factor},
                      .algorithm = "skip_softmax"};
}

/* Runs a text and gives the hash of its last logits. */
static sl_key run(const fix_opts *o, sl_engine_stats *s)
{
    fix f;
    fix_run r = {0};
    fix_text t;
    fix_open(&f, o);
    fix_prompt(&f, &t, WAYS_LENGTH, 3);
    fix_seq_open(&f, &r, SL_RESIDENT, 0, WAYS_LENGTH);
    fix_feed(&f, &r, &t, WAYS_PROMPT, WAYS_CONTEXT);
    const float *logits = fix_feed(&f, &r, &t, WAYS_LENGTH, 1);
    sl_key k = fix_hash(&f, logits);
    sl_engine_stats_get(f.engine, s);
    fix_seq_close(&f, &r, false);
    fix_close(&f);
    return k;
}

START_TEST(the_factor_decides)
{
    static const float factors[] = {1e-6f, 60, 100, 140};
    sl_engine_stats s;
    uint64_t before = 0, tiles;
    fix_opts o = opts_of(_i, 0);
    const sl_key none = run(&o, &s);
    ck_assert(s.tiles == 0 && s.tiles_skipped == 0);
    o.algorithm = "dense";
    const sl_key dense = run(&o, &s);
    ck_assert(sl_key_eq(dense, none));
    o = opts_of(_i, 1e-6f);
    ck_assert(sl_key_eq(dense, run(&o, &s)));
    tiles = s.tiles;
    ck_assert_uint_gt(tiles, 0);
    ck_assert_uint_eq(s.tiles_skipped, 0);
    for (size_t i = 1; i < SL_COUNT(factors); i++) {
        o = opts_of(_i, factors[i]);
        sl_key k = run(&o, &s);
        ck_assert_uint_lt(s.tiles, tiles); /* queries at which L is at most the factor are dense */
        ck_assert_uint_lt(s.tiles_skipped, s.tiles);
        ck_assert(!s.tiles_skipped || !sl_key_eq(k, dense));
        before += s.tiles_skipped;
    }
    ck_assert_uint_gt(before, 0);
    o = opts_of(_i, WAYS_LENGTH); /* at most the factor everywhere */
    ck_assert(sl_key_eq(dense, run(&o, &s)));
    ck_assert(s.tiles == 0 && s.tiles_skipped == 0);
}
END_TEST

START_TEST(chunks_and_threads_do_not_matter)
{
    ways_chunks(opts_of(_i, 120));
}
END_TEST

START_TEST(hierarchical_equals_resident)
{
    ways_hierarchical(opts_of(_i, 120), _i);
}
END_TEST

START_TEST(prefix_reuse_equals_recompute)
{
    ways_prefix(opts_of(_i, 120), _i);
}
END_TEST

START_TEST(the_batch_does_not_matter)
{
    ways_batch(opts_of(_i, 120));
}
END_TEST

/* Dense layers and positions below min_tokens leave nothing out. */
START_TEST(gates_leave_nothing_out)
{
    static const int32_t layers[] = {0, 1, 2, 3, 4, 5, 6, 7};
    sl_engine_stats s;
    fix_opts o = opts_of(0, 120);
    sl_model_config m;
    ck_assert_int_eq(sl_model_config_load(o.dir, &m, NULL), SL_OK);
    o.algorithm = "dense";
    const sl_key dense = run(&o, &s);
    o = opts_of(0, 120), o.gates.min_tokens = WAYS_LENGTH;
    ck_assert(sl_key_eq(dense, run(&o, &s)));
    ck_assert_uint_eq(s.tiles, 0);
    ck_assert_int_le(m.n_layers, (int)SL_COUNT(layers));
    o = opts_of(0, 120), o.gates.dense_layers = layers, o.gates.n_dense_layers = m.n_layers;
    ck_assert(sl_key_eq(dense, run(&o, &s)));
    ck_assert_uint_eq(s.tiles, 0);
}
END_TEST

START_TEST(refusals)
{
    fix f;
    fix_opts o = opts_of(0, 120);
    fix_open(&f, &o);
    sl_engine_opts eo = f.eo;
    eo.gates.sink_tokens = 4;
    fix_refused(&f, &eo, SL_ERR_INVALID, "skip_softmax: sink_tokens 4 and recent_tokens 0");
    eo = f.eo, eo.hot_rows = 64;
    fix_refused(&f, &eo, SL_ERR_UNSUPPORTED, "cannot hold a whole context");
    fix_close(&f);
}
END_TEST

Suite *skip_softmax_suite(void)
{
    Suite *s = suite_create("engine/skip_softmax");
    TCase *c = tcase_create("skip_softmax");
    tcase_set_timeout(c, 240);
    tcase_add_loop_test(c, the_factor_decides, 0, 3);
    tcase_add_loop_test(c, chunks_and_threads_do_not_matter, 0, 2);
    tcase_add_loop_test(c, hierarchical_equals_resident, 1, 3);
    tcase_add_loop_test(c, prefix_reuse_equals_recompute, 0, 1);
    tcase_add_loop_test(c, the_batch_does_not_matter, 1, 2);
    tcase_add_test(c, gates_leave_nothing_out);
    tcase_add_test(c, refusals);
    suite_add_tcase(s, c);
    return s;
}
