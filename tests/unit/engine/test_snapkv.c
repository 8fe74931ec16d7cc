/*
 * snapkv through the real engine. What is kept of a prompt is compared with a restatement of the definition in double
 * precision that reads the keys from the host pages and shares no code with the algorithm; the bits do not depend on
 * chunks, threads, the batch, residency, prefix reuse or on whether the tokens after the prompt were computed again; a
 * worker that opens the pages of a prompt continues with the same bits; and with a budget of the whole context they are
 * those of dense attention. Run from the repository's root.
 */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/gqa.h"
#include "strategies.h"
#include "tests/unit/run_suite.h"
#include "ways.h"
#include "witness.h"

static const char *const models[] = {"tests/golden/model/llama-odd", "tests/golden/model/qwen2-mha",
                                     "tests/golden/model/qwen3-norms", "tests/golden/model/llama-rope3"};
static const sl_row_format formats[] = {SL_ROW_GQA_F32, SL_ROW_GQA_BF16, SL_ROW_GQA_FP8};
static const select_params settings[] = {
    {.prompt_budget = 64, .window = 16, .output_tokens = 24},
    {.prompt_budget = 48, .window = 8, .kernel = 1, .output_tokens = 100},
    {.prompt_budget = 64,
     .window = 32,
     .kernel = 7,
     .pooled = true,
     .pooling = SL_POOLING_MAX,
     .output_tokens = 16},
    {.prompt_budget = 40,
     .window = 1,
     .kernel = 63,
     .pooled = true,
     .pooling = SL_POOLING_MAX,
     .output_tokens = 1},
};

enum { SETTINGS = SL_COUNT(settings), RUNS = 4 };

static fix_opts opts_of(int i)
{
    sl_row_format rows = formats[i % (int)SL_COUNT(formats)];
    const select_params *p = &settings[i % SETTINGS];
    return (fix_opts){.dir = models[(i + i / SETTINGS) % (int)SL_COUNT(models)],
                      .rows = rows,
                      .act = rows == SL_ROW_GQA_F32 ? SL_F32 : SL_BF16,
                      .threads = 1,
                      .max_tokens = WAYS_CONTEXT,
                      .max_context = WAYS_CONTEXT,
                      .max_seqs = 3,
                      .max_hot = 2,
                      .hot_rows = p->prompt_budget + p->output_tokens,
                      .tail_rows = 3,
                      .select = *p,
                      .gates = {.sink_tokens = i % 2 ? 3 : 0},
                      .algorithm = "snapkv"};
}

/* ---- the definition ---- */

/* A prompt token sees everything; a later one the kept tokens, the window, and the newest generated tokens. */
static void check_list(witness *w, const seen_list *l)
{
    const select_params *p = &w->f->o.select;
    const int32_t before = WAYS_PROMPT - p->window, pos = l->pos;
    const int32_t oldest = pos - WAYS_PROMPT >= p->output_tokens ? pos + 1 - p->output_tokens : WAYS_PROMPT;
    bool in[WAYS_CONTEXT] = {false};
    double votes[WAYS_PROMPT];
    const int32_t n = witness_ids(l, pos, in);
    int32_t n_kept = 0;
    if (pos < WAYS_PROMPT) {
        MUST(n == pos + 1);
        return;
    }
    for (int32_t j = 0; j < before; j++)
        n_kept += in[j];
    MUST(n_kept == p->prompt_budget - p->window);
    for (int32_t j = before; j <= pos; j++)
        MUST(in[j] == (j < WAYS_PROMPT || j >= oldest));
    w->lists++;
    if (pos != WAYS_PROMPT && pos != WAYS_LENGTH - 1)
        return;
    witness_votes(w, l, p->kernel ? p->kernel : 5, p->pooled && p->pooling == SL_POOLING_MAX, votes);
    witness_kept(w, votes, in, before);
}

START_TEST(equals_definition)
{
    fix f;
    fix_opts o = opts_of(_i);
    fix_run r = {0};
    fix_text t;
    witness w = {.f = &f, .run = &r, .check = check_list, .prompt = WAYS_PROMPT};
    o.desc = witness_of(&sl_algo_snapkv, &w);
    fix_open(&f, &o);
    fix_prompt(&f, &t, WAYS_LENGTH, 77);
    ways_prompt_open(&f, &r, SL_RESIDENT, 0, WAYS_PROMPT);
    fix_feed(&f, &r, &t, WAYS_PROMPT, 70);
    fix_feed(&f, &r, &t, WAYS_LENGTH, 1);
    ck_assert_int_eq(w.lists, (WAYS_LENGTH - WAYS_PROMPT) * f.cfg->n_layers * f.cfg->attn.n_kv_heads);
    fix_seq_close(&f, &r, false);
    fix_close(&f);
    witness_end(&w);
}
END_TEST

/* ---- the same bits on every way ---- */

START_TEST(chunks_threads_and_recomputing_do_not_matter)
{
    ways_prompt_chunks(opts_of(_i));
}
END_TEST

START_TEST(hierarchical_equals_resident)
{
    ways_prompt_hierarchical(opts_of(_i), _i);
}
END_TEST

START_TEST(pages_are_continued_with_the_same_bits)
{
    ways_prompt_pages(opts_of(_i), _i);
}
END_TEST

START_TEST(the_batch_does_not_matter)
{
    ways_prompt_batch(opts_of(_i));
}
END_TEST

/* With a budget of the whole prompt, and prompts shorter than the budget or the window, attention is dense. */
START_TEST(a_whole_budget_is_dense)
{
    const int32_t prompts[] = {WAYS_PROMPT, 40, 1, WAYS_PROMPT};
    const int32_t budgets[] = {WAYS_PROMPT, 64, 64, WAYS_CONTEXT};
    for (size_t k = 0; k < SL_COUNT(prompts); k++) {
        fix_opts o = opts_of(_i);
        o.select.prompt_budget = budgets[k], o.select.output_tokens = 0;
        ways_prompt_dense(o, prompts[k]);
    }
}
END_TEST

/* ---- one vote ---- */

/* The window's query has all of its weight on one key: that token and its kernel / 2 neighbours on each side have its
 * vote, and votes of the other KV head are its own. */
START_TEST(a_vote_spreads_over_the_kernel)
{
    enum { N = 100, DIM = 4, HEADS = 2, KERNEL = 7, WINDOW = 2 };
    sl_backend *be;
    sl_backend_opts bo = {.threads = 1};
    sl_err err = {0};
    ck_assert_int_eq(sl_backend_create("cpu", &bo, &be, &err), SL_OK);
    const int64_t row = sl_gqa_row_bytes(SL_ROW_GQA_F32, 1, DIM);
    uint8_t *rows = calloc(2 * SL_PAGE_TOKENS * HEADS, (size_t)row);
    float votes[HEADS][N],
        q[WINDOW][HEADS][DIM] = {{{100, 0, 0, 0}, {0, 100, 0, 0}}, {{100, 0, 0, 0}, {0, 100, 0, 0}}};
    const int32_t pages[] = {1, 0}, of_head[HEADS] = {70, 2};
    for (int32_t j = 0; j < N; j++)
        for (int32_t h = 0; h < HEADS; h++) {
            float k[DIM] = {j == of_head[0] ? 5 : 0, j == of_head[1] ? 5 : 0, 0, 0}, v[DIM] = {0};
            int64_t at =
                ((int64_t)pages[j / SL_PAGE_TOKENS] * SL_PAGE_TOKENS + j % SL_PAGE_TOKENS) * HEADS + h;
            sl_gqa_row_encode(SL_ROW_GQA_F32, 1, DIM, 0, 1, k, v, rows + at * row);
        }
    sl_window_votes_params p = {.q = &q[0][0][0],
                                .row_pages = pages,
                                .rows = {.base = rows, .row_bytes = row, .heads = HEADS},
                                .votes = &votes[0][0],
                                .tokens = N,
                                .window = WINDOW,
                                .heads = HEADS,
                                .kv_heads = HEADS,
                                .dim = DIM,
                                .ld_votes = N,
                                .kernel = KERNEL,
                                .pooling = SL_POOLING_MAX,
                                .scale = 1,
                                .format = SL_ROW_GQA_F32};
    for (int way = 0; way < 2; way++) {
        p.pooling = way ? SL_POOLING_AVG : SL_POOLING_MAX;
        ck_assert_msg(sl_be_run(be, SL_OP_WINDOW_VOTES, &p, &err) == SL_OK, "%s", err.text);
        for (int32_t h = 0; h < HEADS; h++)
            for (int32_t j = 0; j < N - WINDOW; j++) {
                double want =
                    abs(j - of_head[h]) <= KERNEL / 2 ? (way ? (double)WINDOW / KERNEL : WINDOW) : 0;
                MUST(fabs((double)votes[h][j] - want) < 1e-6);
            }
    }
    free(rows);
    sl_backend_destroy(be);
}
END_TEST

/* ---- refusals ---- */

START_TEST(refusals)
{
    fix f;
    fix_opts o = opts_of(0);
    fix_open(&f, &o);
    sl_engine_opts eo = f.eo;
    eo.hot_rows = 64 + 23;
    fix_refused(&f, &eo, SL_ERR_INVALID,
                "hot_rows 87 of layer 0 is less than the longest selection, 88 tokens");
    eo = f.eo, eo.gates.recent_tokens = 5;
    fix_refused(&f, &eo, SL_ERR_INVALID, "recent_tokens is 5, but window_size and output_tokens say");
    eo = f.eo, eo.gates.sink_tokens = 48;
    fix_refused(&f, &eo, SL_ERR_INVALID,
                "prompt_budget 64 leaves nothing to select after window_size 16 and sink_tokens 48");
    eo = f.eo, fix_option(&eo, "kernel_size", "4");
    fix_refused(&f, &eo, SL_ERR_INVALID, "kernel_size 4 is even");
    eo = f.eo, fix_option(&eo, "prompt_budget", "65");
    fix_refused(&f, &eo, SL_ERR_REFUSED, "cache plane kept");
    eo = f.eo, eo.select.stamp = 5;
    fix_refused(&f, &eo, SL_ERR_REFUSED, "cache plane rows: stamp differs");
    fix_close(&f);
}
END_TEST

static void prompt_refused(fix *f, fix_run *r, int32_t n_cached, int32_t prompt, const char *says)
{
    sl_err err = {0};
    fix_seq_open(f, r, SL_RESIDENT, n_cached, WAYS_LENGTH);
    ck_assert_int_eq(sl_engine_seq_prompt(f->engine, r->seq, prompt, &err), SL_ERR_INVALID);
    ck_assert_msg(strstr(err.text, says) != NULL, "\"%s\" does not say %s", err.text, says);
    fix_seq_close(f, r, true);
}

/* The end of the prompt is unknown, or the pages were not computed with it; damaged pages are noticed. */
START_TEST(prompts_are_checked)
{
    fix f;
    fix_run r = {0};
    fix_text t;
    sl_err err = {0};
    fix_opts o = opts_of(0);
    fix_open(&f, &o);
    fix_prompt(&f, &t, WAYS_LENGTH, 3);
    fix_seq_open(&f, &r, SL_RESIDENT, 0, WAYS_LENGTH);
    sl_step_item it = {.seq = r.seq, .tokens = t.ids, .n_tokens = 1};
    ck_assert_int_eq(sl_engine_step(f.engine, &it, 1, NULL, &err), SL_ERR_INVALID);
    ck_assert_msg(strstr(err.text, "the end of the prompt of sequence row") != NULL, "%s", err.text);
    ck_assert_int_eq(sl_engine_seq_prompt(f.engine, r.seq, WAYS_PROMPT, &err), SL_OK);
    fix_feed(&f, &r, &t, WAYS_PROMPT, 64);
    fix_seq_close(&f, &r, true);
    prompt_refused(&f, &r, WAYS_PROMPT - 15, WAYS_PROMPT, "its last 16 tokens must be computed");
    prompt_refused(&f, &r, WAYS_PROMPT, 140,
                   "do not have the tokens that layer 0 keeps of a prompt of 140 tokens");
    prompt_refused(&f, &r, WAYS_PROMPT, WAYS_CONTEXT + 1, "prompt of 257 tokens");
    const sl_geometry *g = sl_arena_geometry(f.arena);
    sl_host_plane kept = sl_geometry_plane(g, sl_arena_base(f.arena), sl_arena_pages(f.arena), 0, 1);
    uint8_t *gaps = kept.base + r.pages[WAYS_PROMPT / SL_PAGE_TOKENS] * kept.page_stride + 8;
    memset(gaps, 0xff, 4); /* skips more tokens than there are */
    prompt_refused(&f, &r, WAYS_PROMPT, WAYS_PROMPT, "do not have the tokens that layer 0 keeps");
    sl_engine_seq_close(f.engine, NULL);
    fix_close(&f);
}
END_TEST

/* Before the prompt's end a hierarchical request would need hot rows for the whole prompt. */
START_TEST(prompts_are_resident)
{
    fix f;
    fix_run r = {0};
    fix_text t;
    sl_err err = {0};
    fix_opts o = opts_of(0);
    fix_open(&f, &o);
    fix_prompt(&f, &t, WAYS_LENGTH, 3);
    ways_prompt_open(&f, &r, SL_RESIDENT, 0, WAYS_PROMPT);
    fix_feed(&f, &r, &t, 70, 64);
    ways_spill(&f, &r);
    sl_step_item it = {.seq = r.seq, .tokens = t.ids + 70, .n_tokens = 1};
    ck_assert_int_eq(sl_engine_step(f.engine, &it, 1, NULL, &err), SL_ERR_UNSUPPORTED);
    ck_assert_msg(strstr(err.text, "is hierarchical before the end of its prompt") != NULL, "%s", err.text);
    fix_seq_close(&f, &r, false);
    fix_close(&f);
}
END_TEST

/* A prompt that ends in a step of one token per request has ops of its own there, which a graph of decode steps must not have. */
START_TEST(prompts_end_op_by_op)
{
    fix f;
    fix_run r = {0};
    fix_text t;
    sl_engine_stats s;
    fix_opts o = opts_of(0);
    o.graphs = SL_GRAPHS_PAD;
    fix_open(&f, &o);
    fix_prompt(&f, &t, WAYS_LENGTH, 3);
    ways_prompt_open(&f, &r, SL_RESIDENT, 0, WAYS_PROMPT);
    fix_feed(&f, &r, &t, WAYS_PROMPT - 1, 64);
    fix_feed(&f, &r, &t, WAYS_PROMPT, 1);
    sl_engine_stats_get(f.engine, &s);
    ck_assert_uint_eq(s.decode_steps, 0);
    fix_feed(&f, &r, &t, WAYS_PROMPT + 3, 1);
    sl_engine_stats_get(f.engine, &s);
    ck_assert_uint_eq(s.decode_steps, 3);
    fix_seq_close(&f, &r, false);
    fix_close(&f);
}
END_TEST

Suite *snapkv_suite(void)
{
    Suite *s = suite_create("engine/snapkv");
    TCase *c = tcase_create("snapkv");
    tcase_set_timeout(c, 240);
    add_variants(c, equals_definition, RUNS);
    add_variants(c, chunks_threads_and_recomputing_do_not_matter, RUNS);
    add_variants(c, hierarchical_equals_resident, RUNS);
    add_variants(c, pages_are_continued_with_the_same_bits, RUNS);
    add_variants(c, the_batch_does_not_matter, RUNS);
    tcase_add_loop_test(c, a_whole_budget_is_dense, 0, 2);
    tcase_add_test(c, a_vote_spreads_over_the_kernel);
    tcase_add_test(c, refusals);
    tcase_add_test(c, prompts_are_checked);
    tcase_add_test(c, prompts_are_resident);
    tcase_add_test(c, prompts_end_op_by_op);
    suite_add_tcase(s, c);
    return s;
}
