/*
 * MiniMax-M3 against Hugging Face transformers, through the engine with its own selection: logits within 1e-4 and the same greedy
 * tokens, resident and hierarchical with no more hot rows than a selection; and bits that do not depend on chunks, on where rows are, or
 * on the threads. Prompts are shorter than a block, past its edges, and so long that more than half is not selected. The goldens are made
 * by tests/golden/model/make_m3.py; run from the repository's root.
 */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "golden.h"
#include "tests/unit/run_suite.h"

#define GOLDEN "tests/golden/model/"
#define TOLERANCE 1e-4

/* topk: tokens of a selection. */
static const struct {
    const char *dir;
    int32_t topk;
} cases[] = {{GOLDEN "m3-vl", 48}, {GOLDEN "m3-text", 72}, {GOLDEN "m3-128", 256}, {GOLDEN "m3-lists", 20}};
static const sl_row_format formats[] = {SL_ROW_GQA_F32, SL_ROW_GQA_BF16, SL_ROW_GQA_FP8};

enum { CONTEXT = 704, GREEDY = GOLDEN_GREEDY };

typedef struct way {
    int32_t chunk, more_hot, threads;
    bool spill;
} way;

static void open_case(fix *f, int i, sl_row_format rows, const way *w)
{
    fix_opts o = {.dir = cases[i].dir,
                  .rows = rows,
                  .act = rows == SL_ROW_GQA_F32 ? SL_F32 : SL_BF16,
                  .threads = w->threads,
                  .max_tokens = CONTEXT,
                  .max_context = CONTEXT,
                  .max_seqs = 2,
                  .max_hot = 1,
                  .hot_rows = cases[i].topk + w->more_hot,
                  .tail_rows = 2,
                  .algorithm = "msa"};
    fix_open(f, &o);
}

static double answer_prompt(fix *f, const sl_safetensors *g, int prompt, const way *w)
{
    fix_run r = {0};
    fix_text want;
    sl_err err = {0};
    double worst = 0;
    golden_read(g, prompt, &want);
    fix_text t = want;
    const float *golden = golden_part(g, prompt, "logits")->data;
    fix_seq_open(f, &r, SL_RESIDENT, 0, t.n + GREEDY);
    const float *logits = fix_feed(f, &r, &t, t.n, w->chunk);
    for (int32_t v = 0; v < f->cfg->vocab_size; v++)
        worst = fmax(worst, fabs((double)logits[v] - (double)golden[v]));
    if (w->spill)
        ck_assert_msg(sl_engine_seq_spill(f->engine, r.seq, &err) == SL_OK, "%s", err.text);
    for (int32_t k = want.n; k < want.n + GREEDY; k++) {
        int32_t id = fix_argmax(f, logits);
        ck_assert_msg(id == want.ids[k], "prompt %d: greedy token %d is %d, the golden %d", prompt,
                      k - want.n, id, want.ids[k]);
        t.ids[k] = id;
        t.n = k + 1;
        logits = fix_feed(f, &r, &t, t.n, 1);
    }
    fix_seq_close(f, &r, false);
    return worst;
}

START_TEST(equals_transformers)
{
    static const way ways[] = {{48, 0, 1, false}, {CONTEXT, 0, 2, true}};
    const int i = _i / (int)SL_COUNT(ways);
    const way *w = &ways[_i % (int)SL_COUNT(ways)];
    fix f;
    open_case(&f, i, SL_ROW_GQA_F32, w);
    ck_assert_int_eq(f.cfg->index.topk, cases[i].topk);
    sl_safetensors *g = golden_open(cases[i].dir);
    double worst = 0;
    int prompts = 0;
    for (; golden_part(g, prompts, "ids"); prompts++)
        worst = fmax(worst, answer_prompt(&f, g, prompts, w));
    printf("%s: %d prompts, largest difference %.2g\n", cases[i].dir, prompts, worst);
    ck_assert_int_ge(prompts, 3);
    ck_assert_double_le(worst, TOLERANCE);
    sl_st_close(g);
    fix_close(&f);
}
END_TEST

/* The hash of the logits after every token from the prompt's last one on. spill: the rows move to the host after the prompt. */
static void hashes(fix *f, const fix_text *want, const way *w, sl_key *out)
{
    fix_run r = {0};
    fix_text t = *want;
    sl_err err = {0};
    fix_seq_open(f, &r, SL_RESIDENT, 0, want->n + GREEDY);
    out[0] = fix_hash(f, fix_feed(f, &r, &t, want->n, w->chunk));
    if (w->spill)
        ck_assert_msg(sl_engine_seq_spill(f->engine, r.seq, &err) == SL_OK, "%s", err.text);
    for (int32_t k = 1; k <= GREEDY; k++) {
        t.n = want->n + k;
        out[k] = fix_hash(f, fix_feed(f, &r, &t, t.n, 1));
    }
    fix_seq_close(f, &r, false);
}

START_TEST(bits_do_not_depend_on_the_way)
{
    static const way ways[] = {
        {CONTEXT, 0, 1, false}, {1, 0, 1, false}, {7, 0, 2, false}, {64, 0, 1, true}, {33, 64, 2, true}};
    const int i = _i / (int)SL_COUNT(formats);
    const sl_row_format rows = formats[_i % (int)SL_COUNT(formats)];
    sl_safetensors *g = golden_open(cases[i].dir);
    sl_key first[GREEDY + 1], now[GREEDY + 1];
    fix_text t;
    int prompt = 0;
    while (golden_part(g, prompt + 1, "ids") && golden_part(g, prompt + 1, "ids")->shape[0] <= 200)
        prompt++;
    golden_read(g, prompt, &t);
    for (size_t w = 0; w < SL_COUNT(ways); w++) {
        fix f;
        open_case(&f, i, rows, &ways[w]);
        hashes(&f, &t, &ways[w], w ? now : first);
        for (int32_t k = 0; w && k <= GREEDY; k++)
            ck_assert_msg(memcmp(&now[k], &first[k], sizeof now[k]) == 0,
                          "%s, %s: way %zu differs after token %d", cases[i].dir, sl_row_format_name(rows), w,
                          k);
        fix_close(&f);
    }
    sl_st_close(g);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("MiniMax-M3");
    TCase *t = tcase_create("goldens");
    tcase_set_timeout(t, 240);
    tcase_add_loop_test(t, equals_transformers, 0, 2 * (int)SL_COUNT(cases));
    tcase_add_loop_test(t, bits_do_not_depend_on_the_way, 0, (int)(SL_COUNT(cases) * SL_COUNT(formats)));
    suite_add_tcase(s, t);
    return run_suite(s);
}
