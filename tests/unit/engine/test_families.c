/*
 * The families of 2026 through the engine: the greedy tokens of transformers, and the same bits of every logit whether rows are
 * resident or hierarchical with hardly more hot rows than a selection, in chunks of any size, with one thread or two.
 * The goldens are made by tests/golden/model/make_families.py; run
 * from the repository's root.
 */
#include <check.h>
#include <stdio.h>
#include <string.h>

#include "golden.h"
#include "tests/unit/run_suite.h"

#define GOLDEN "tests/golden/model/"

static const char *const cases[] = {GOLDEN "hy4-share", GOLDEN "hy4-halves", GOLDEN "axk2-light",
                                    GOLDEN "axk2-groups"};

enum { CONTEXT = 256, GREEDY = GOLDEN_GREEDY, DECODED = 40 };

typedef struct way {
    int32_t chunk, hot_rows;
    sl_residency residency;
    int threads;
    sl_row_format rows;
    sl_dtype act;
} way;

static void open_case(fix *f, const char *dir, const way *w)
{
    fix_opts o = {.dir = dir,
                  .rows = w->rows,
                  .act = w->act,
                  .threads = w->threads,
                  .max_tokens = CONTEXT,
                  .max_context = CONTEXT,
                  .max_seqs = 2,
                  .max_hot = 2,
                  .hot_rows = w->hot_rows,
                  .tail_rows = 2};
    fix_open(f, &o);
}

/* Hashes of the logits after the prompt and after each token that follows it; the sequence becomes hierarchical after the prompt. */
static void hashes(fix *f, const fix_text *want, const way *w, sl_key *out)
{
    fix_run r = {0};
    fix_text t = *want;
    sl_err err = {0};
    fix_seq_open(f, &r, SL_RESIDENT, 0, want->n + DECODED);
    out[0] = fix_hash(f, fix_feed(f, &r, &t, want->n, w->chunk));
    if (w->residency == SL_HIERARCHICAL)
        ck_assert_msg(sl_engine_seq_spill(f->engine, r.seq, &err) == SL_OK, "%s", err.text);
    for (int32_t k = 1; k <= DECODED; k++) {
        t.n = want->n + k;
        const float *logits = fix_feed(f, &r, &t, t.n, 1);
        if (f->o.act == SL_F32 && k < DECODED)
            ck_assert_int_eq(fix_argmax(f, logits), want->ids[want->n + k]);
        out[k] = fix_hash(f, logits);
    }
    fix_seq_close(f, &r, false);
}

START_TEST(bits_do_not_depend_on_the_way)
{
    static const way ways[] = {{CONTEXT, 0, SL_RESIDENT, 1, 0, 0},
                               {1, 0, SL_RESIDENT, 1, 0, 0},
                               {7, 0, SL_RESIDENT, 2, 0, 0},
                               {64, 17, SL_HIERARCHICAL, 1, 0, 0},
                               {33, 40, SL_HIERARCHICAL, 2, 0, 0}};
    static const sl_row_format rows[] = {SL_ROW_MLA_F32, SL_ROW_MLA_BF16, SL_ROW_MLA_FP8};
    const char *dir = cases[_i / (int)SL_COUNT(rows)];
    sl_row_format format = rows[_i % (int)SL_COUNT(rows)];
    sl_key first[DECODED + 1], now[DECODED + 1];
    fix_text t;
    golden_read_last(dir, &t);
    for (size_t i = 0; i < SL_COUNT(ways); i++) {
        fix f;
        way w = ways[i];
        w.rows = format, w.act = format == SL_ROW_MLA_F32 ? SL_F32 : SL_BF16;
        open_case(&f, dir, &w);
        hashes(&f, &t, &w, i ? now : first);
        for (int32_t k = 0; i && k <= DECODED; k++)
            ck_assert_msg(memcmp(&now[k], &first[k], sizeof now[k]) == 0,
                          "%s, %s: way %zu differs after token %d", dir, sl_row_format_name(format), i, k);
        fix_close(&f);
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("families");
    TCase *t = tcase_create("families");
    tcase_set_timeout(t, 240);
    tcase_add_loop_test(t, bits_do_not_depend_on_the_way, 0, 3 * (int)SL_COUNT(cases));
    suite_add_tcase(s, t);
    return run_suite(s);
}
