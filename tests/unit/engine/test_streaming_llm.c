/*
 * streaming_llm through the real engine, over rows of grouped-query attention and over latent rows: with a window of the
 * whole context it is dense attention, bit by bit; hierarchical and resident decode have the same bits with a hot buffer
 * that holds the list alone; and rows outside sinks and window are never read again, because NaN in their place in the
 * host store changes nothing. The lists themselves are compared with their definition by tests/unit/sparse/
 * test_conformance.c. Run from the repository's root.
 */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "fix.h"
#include "kernels/backend_impl.h"
#include "strategies.h"

enum { CONTEXT = 256, PROMPT = 150, LENGTH = 200, SINKS = 4, RECENT = 40 };

static const fix_opts models[] = {
    {.dir = "tests/golden/model/llama-odd", .rows = SL_ROW_GQA_F32, .act = SL_F32},
    {.dir = "tests/golden/model/qwen3-norms", .rows = SL_ROW_GQA_FP8, .act = SL_BF16},
    {.dir = "tests/golden/model/ds-odd", .rows = SL_ROW_MLA_BF16, .act = SL_BF16},
};

static fix_opts opts_of(int i)
{
    fix_opts o = models[i];
    o.threads = 1, o.max_tokens = o.max_context = CONTEXT;
    o.max_seqs = 1, o.max_hot = 1, o.tail_rows = 3, o.hot_rows = SINKS + RECENT;
    o.algorithm = "streaming_llm";
    o.gates = (sl_gates){.sink_tokens = SINKS, .recent_tokens = RECENT};
    return o;
}

/* Rows of tokens from..to-1 in the host store become NaN. */
static void forget(fix *f, const fix_run *r, int32_t from, int32_t to)
{
    const sl_geometry *g = sl_arena_geometry(f->arena);
    const sl_cache_plane *rows = &g->shape.planes[SL_CACHE_ROWS];
    for (int32_t l = 0; l < f->cfg->n_layers; l++) {
        sl_host_plane h =
            sl_geometry_plane(g, sl_arena_base(f->arena), sl_arena_pages(f->arena), l, SL_CACHE_ROWS);
        for (int32_t pos = from; pos < to; pos++)
            memset(h.base + r->pages[pos / SL_PAGE_TOKENS] * h.page_stride +
                       pos % SL_PAGE_TOKENS * h.row_stride,
                   0xff, (size_t)sl_cache_unit_bytes(rows));
    }
}

/* The hashes of the logits from the prompt's end on. */
static void decode(const fix_opts *o, int32_t chunk, bool spill, sl_key *out)
{
    fix f;
    fix_run r = {0};
    fix_text t;
    sl_err err = {0};
    fix_open(&f, o);
    fix_prompt(&f, &t, LENGTH, 11);
    fix_seq_open(&f, &r, SL_RESIDENT, 0, LENGTH);
    fix_feed(&f, &r, &t, PROMPT - 1, chunk);
    if (spill) {
        ck_assert_msg(sl_engine_seq_spill(f.engine, r.seq, &err) == SL_OK, "%s", err.text);
        forget(&f, &r, SINKS, PROMPT - RECENT);
    }
    for (int32_t n = PROMPT; n <= LENGTH; n++) {
        t.n = n;
        out[n] = fix_hash(&f, fix_feed(&f, &r, &t, n, 1));
    }
    fix_seq_close(&f, &r, false);
    fix_close(&f);
}

static void same(const sl_key *a, const sl_key *b)
{
    for (int32_t n = PROMPT; n <= LENGTH; n++)
        ck_assert_msg(memcmp(&a[n], &b[n], sizeof a[n]) == 0, "logits differ after token %d", n);
}

START_TEST(reads_sinks_and_window_only)
{
    sl_key want[LENGTH + 1], got[LENGTH + 1];
    fix_opts o = opts_of(_i);
    decode(&o, CONTEXT, false, want);
    decode(&o, 31, true, got);
    same(want, got);
}
END_TEST

START_TEST(a_whole_window_is_dense)
{
    sl_key want[LENGTH + 1], got[LENGTH + 1];
    fix_opts o = opts_of(_i);
    o.hot_rows = CONTEXT, o.gates.recent_tokens = CONTEXT;
    decode(&o, 64, false, got);
    o.gates = (sl_gates){0}, o.algorithm = "dense";
    decode(&o, 64, false, want);
    same(want, got);
}
END_TEST

START_TEST(a_window_is_needed)
{
    fix f;
    sl_engine *e;
    sl_err err = {0};
    fix_opts o = opts_of(0);
    fix_open(&f, &o);
    sl_engine_opts eo = f.eo;
    eo.gates.recent_tokens = 0;
    ck_assert_int_eq(sl_engine_create(f.be, f.model, f.arena, &eo, &e, &err), SL_ERR_INVALID);
    ck_assert_msg(strstr(err.text, "recent_tokens is 0") != NULL, "%s", err.text);
    eo = f.eo, eo.hot_rows = SINKS + RECENT - 1;
    ck_assert_int_eq(sl_engine_create(f.be, f.model, f.arena, &eo, &e, &err), SL_ERR_INVALID);
    ck_assert_msg(strstr(err.text, "hot_rows 43 of layer 0 is less than the longest selection, 44") != NULL,
                  "%s", err.text);
    fix_close(&f);
}
END_TEST

Suite *streaming_llm_suite(void)
{
    Suite *s = suite_create("engine/streaming_llm");
    TCase *c = tcase_create("streaming_llm");
    tcase_set_timeout(c, 120);
    tcase_add_loop_test(c, reads_sinks_and_window_only, 0, SL_COUNT(models));
    tcase_add_loop_test(c, a_whole_window_is_dense, 0, SL_COUNT(models));
    tcase_add_test(c, a_window_is_needed);
    suite_add_tcase(s, c);
    return s;
}
