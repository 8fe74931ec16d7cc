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

#include "fix.h"
#include "kernels/backend_impl.h"
#include "kernels/gqa.h"
#include "tests/unit/run_suite.h"

enum { CONTEXT = 256, PROMPT = 150, LENGTH = 210 };

static const char *const models[] = {"tests/golden/model/llama-odd", "tests/golden/model/qwen2-mha",
                                     "tests/golden/model/qwen3-norms", "tests/golden/model/llama-rope3"};
static const sl_row_format formats[] = {SL_ROW_GQA_F32, SL_ROW_GQA_BF16, SL_ROW_GQA_FP8};
static const sl_select_params settings[] = {
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
    const sl_select_params *p = &settings[i % SETTINGS];
    return (fix_opts){.dir = models[(i + i / SETTINGS) % (int)SL_COUNT(models)],
                      .rows = rows,
                      .act = rows == SL_ROW_GQA_F32 ? SL_F32 : SL_BF16,
                      .threads = 1,
                      .max_tokens = CONTEXT,
                      .max_context = CONTEXT,
                      .max_seqs = 3,
                      .max_hot = 2,
                      .hot_rows = p->prompt_budget + p->output_tokens,
                      .tail_rows = 3,
                      .select = *p,
                      .gates = {.sink_tokens = i % 2 ? 3 : 0},
                      .algorithm = "snapkv"};
}

static void open_prompt(fix *f, fix_run *r, sl_residency residency, int32_t n_cached, int32_t prompt)
{
    sl_err err = {0};
    fix_seq_open(f, r, residency, n_cached, LENGTH);
    ck_assert_msg(sl_engine_seq_prompt(f->engine, r->seq, prompt, &err) == SL_OK, "%s", err.text);
}

/* ---- the definition ---- */

typedef struct checker {
    const fix *f;
    const fix_run *run;
    int64_t lists;
    float *q; /* [layers][window][heads][dim] of the window */
} checker;

static checker *seen;
static sl_algo_desc witnessed; /* snapkv, except these two functions */

static int32_t kernel_of(const checker *c)
{
    return c->f->o.select.kernel ? c->f->o.select.kernel : 5;
}

static void key_of(const checker *c, int32_t layer, int32_t pos, int32_t head, float *k)
{
    const sl_geometry *g = sl_arena_geometry(c->f->arena);
    const sl_cache_plane *rows = &g->shape.planes[SL_CACHE_ROWS];
    sl_host_plane h =
        sl_geometry_plane(g, sl_arena_base(c->f->arena), sl_arena_pages(c->f->arena), layer, SL_CACHE_ROWS);
    const uint8_t *unit = h.base + c->run->pages[pos / SL_PAGE_TOKENS] * h.page_stride +
                          pos % SL_PAGE_TOKENS * h.row_stride + head * sl_cache_unit_bytes(rows);
    float v[512];
    MUST(rows->unit_tokens == 1 && rows->heads == c->f->cfg->n_kv_heads);
    sl_gqa_row_decode(c->f->o.rows, 1, c->f->cfg->v_head_dim, unit, 0, k, v);
}

/* Votes of the window for the tokens before it, of one KV head. */
static void naive_votes(const checker *c, int32_t layer, int32_t head, float scale, double *votes)
{
    const sl_model_config *m = c->f->cfg;
    const int32_t window = c->f->o.select.window, before = PROMPT - window, dim = m->v_head_dim;
    const int32_t group = m->n_heads / m->n_kv_heads, half = kernel_of(c) / 2;
    static float keys[PROMPT][512];
    double sum[PROMPT] = {0};
    for (int32_t j = 0; j < PROMPT; j++)
        key_of(c, layer, j, head, keys[j]);
    for (int32_t w = 0; w < window; w++)
        for (int32_t g = 0; g < group; g++) {
            const float *q =
                c->q + (((int64_t)layer * window + w) * m->n_heads + (int64_t)head * group + g) * dim;
            double p[PROMPT], top = -INFINITY, all = 0;
            for (int32_t j = 0; j <= before + w; j++) {
                p[j] = 0;
                for (int32_t i = 0; i < dim; i++)
                    p[j] += (double)q[i] * (double)keys[j][i];
                top = fmax(top, p[j]);
            }
            for (int32_t j = 0; j <= before + w; j++)
                all += exp((double)scale * (p[j] - top));
            for (int32_t j = 0; j < before; j++)
                sum[j] += exp((double)scale * (p[j] - top)) / all;
        }
    for (int32_t j = 0; j < before; j++) {
        double total = 0, most = -INFINITY;
        for (int32_t i = j - half; i <= j + half; i++) {
            total += i >= 0 && i < before ? sum[i] : 0;
            most = i >= 0 && i < before ? fmax(most, sum[i]) : most;
        }
        votes[j] =
            c->f->o.select.pooled && c->f->o.select.pooling == SL_POOLING_MAX ? most : total / kernel_of(c);
    }
}

/* Whether `in` are the kept tokens: their least vote is not below the largest vote of another one, up to rounding. */
static void check_kept(const checker *c, const double *votes, const bool *in, int32_t before)
{
    const int32_t sinks = c->f->o.gates.sink_tokens;
    double least = INFINITY, most = -INFINITY;
    for (int32_t j = 0; j < before; j++) {
        MUST(j >= sinks || in[j]);
        if (j >= sinks && in[j])
            least = fmin(least, votes[j]);
        if (!in[j])
            most = fmax(most, votes[j]);
    }
    MUST(most <= least + 1e-5 * (1e-3 + fabs(most)));
}

/* A prompt token sees everything; a later one the kept tokens, the window, and the newest generated tokens. */
static void check_list(checker *c, const sl_attn_call *call, int32_t pos, int32_t head, const int32_t *ids,
                       int32_t k)
{
    const sl_select_params *s = &c->f->o.select;
    const int32_t before = PROMPT - s->window;
    const int32_t oldest = pos - PROMPT >= s->output_tokens ? pos + 1 - s->output_tokens : PROMPT;
    bool in[CONTEXT] = {false};
    int32_t n = 0, n_kept = 0;
    for (; n < k && ids[n] >= 0; n++) {
        MUST(ids[n] <= pos && (n == 0 || ids[n] > ids[n - 1]));
        in[ids[n]] = true;
        n_kept += ids[n] < before;
    }
    for (int32_t i = n; i < k; i++)
        MUST(ids[i] == -1);
    if (pos < PROMPT) {
        MUST(n == pos + 1);
        return;
    }
    MUST(n_kept == s->prompt_budget - s->window);
    for (int32_t j = before; j <= pos; j++)
        MUST(in[j] == (j < PROMPT || j >= oldest));
    c->lists++;
    if (pos != PROMPT && pos != LENGTH - 1)
        return;
    double votes[PROMPT];
    naive_votes(c, call->layer, head, call->gqa.attn.scale, votes);
    check_kept(c, votes, in, before);
}

static sl_status witnessed_create(sl_backend *be, const sl_algo_dims *d, sl_algo **out, sl_err *err)
{
    SL_TRY(sl_algo_snapkv.create(be, d, out, err));
    (*out)->desc = &witnessed;
    return SL_OK;
}

static sl_status witnessed_retrieve(sl_algo *a, const sl_algo_call *call, int32_t first, int32_t count,
                                    int32_t *ids, sl_err *err)
{
    const sl_attn_call *c = call->attn;
    const int32_t window = seen->f->o.select.window;
    const int64_t width = (int64_t)c->gqa.attn.heads * c->gqa.attn.dim;
    SL_TRY(sl_algo_snapkv.retrieve(a, call, first, count, ids, err));
    for (int32_t i = 0; i < count; i++) {
        int32_t pos = c->seqs->token_pos[first + i];
        if (c->seqs->token_seq[first + i] < 0)
            continue;
        if (pos >= PROMPT - window && pos < PROMPT)
            memcpy(seen->q + ((int64_t)c->layer * window + pos - (PROMPT - window)) * width,
                   c->gqa.attn.q + (first + i) * width, (size_t)width * sizeof(float));
        for (int32_t h = 0; h < call->lists; h++)
            check_list(seen, c, pos, h, ids + ((int64_t)i * call->lists + h) * call->k, call->k);
    }
    return SL_OK;
}

START_TEST(equals_definition)
{
    fix f;
    fix_opts o = opts_of(_i);
    witnessed = sl_algo_snapkv;
    witnessed.create = witnessed_create, witnessed.retrieve = witnessed_retrieve;
    o.desc = &witnessed;
    fix_open(&f, &o);
    fix_run r = {0};
    fix_text t;
    checker c = {.f = &f, .run = &r};
    c.q = calloc((size_t)f.cfg->n_layers * (size_t)o.select.window,
                 (size_t)f.cfg->n_heads * (size_t)f.cfg->v_head_dim * sizeof *c.q);
    seen = &c;
    fix_prompt(&f, &t, LENGTH, 77);
    open_prompt(&f, &r, SL_RESIDENT, 0, PROMPT);
    fix_feed(&f, &r, &t, PROMPT, 70);
    fix_feed(&f, &r, &t, LENGTH, 1);
    ck_assert_int_eq(c.lists, (LENGTH - PROMPT) * f.cfg->n_layers * f.cfg->n_kv_heads);
    fix_seq_close(&f, &r, false);
    fix_close(&f);
    free(c.q);
}
END_TEST

/* ---- the same bits on every way ---- */

/* The hashes of the logits of `t` from the prompt's last token on. */
static void decode_hashes(fix *f, fix_run *r, fix_text *t, int32_t from, sl_key *out)
{
    for (int32_t n = from; n <= LENGTH; n++) {
        t->n = n;
        out[n] = fix_hash(f, fix_feed(f, r, t, n, n == from ? CONTEXT : 1));
    }
}

static void same(const sl_key *a, const sl_key *b, int32_t from, const char *what)
{
    for (int32_t n = from; n <= LENGTH; n++)
        ck_assert_msg(memcmp(&a[n], &b[n], sizeof a[n]) == 0, "%s: logits differ after token %d", what, n);
}

/* Reference: resident, the prompt in one step. */
static void reference(const fix_opts *o, uint64_t seed, int32_t prompt, sl_key *out)
{
    fix f;
    fix_run r = {0};
    fix_text t;
    fix_open(&f, o);
    fix_prompt(&f, &t, LENGTH, seed);
    open_prompt(&f, &r, SL_RESIDENT, 0, prompt);
    decode_hashes(&f, &r, &t, prompt, out);
    fix_seq_close(&f, &r, false);
    fix_close(&f);
}

static void spill(fix *f, fix_run *r)
{
    sl_err err = {0};
    ck_assert_msg(sl_engine_seq_spill(f->engine, r->seq, &err) == SL_OK, "%s", err.text);
}

/* Chunks of the prompt, also such that divide the window; and chunks that reach beyond the prompt's end, as when a
 * request is computed again with the tokens that it had generated. */
START_TEST(chunks_threads_and_recomputing_do_not_matter)
{
    static const int32_t chunks[] = {1, 7, 64, CONTEXT};
    static const int32_t again[] = {PROMPT - 1, PROMPT - 1, PROMPT + 1, PROMPT + 43};
    sl_key want[LENGTH + 1], got[LENGTH + 1];
    fix_opts o = opts_of(_i);
    reference(&o, 5, PROMPT, want);
    for (size_t k = 0; k < SL_COUNT(chunks); k++) {
        fix f;
        fix_run r = {0};
        fix_text t;
        o.threads = 1 + (int)k % 2;
        fix_open(&f, &o);
        fix_prompt(&f, &t, LENGTH, 5);
        open_prompt(&f, &r, SL_RESIDENT, 0, PROMPT);
        fix_feed(&f, &r, &t, again[k], chunks[k]);
        decode_hashes(&f, &r, &t, again[k] + 1, got);
        same(want, got, again[k] + 1, "chunks");
        fix_seq_close(&f, &r, false);
        fix_close(&f);
    }
}
END_TEST

/* Spilled after the prompt, with the fewest possible hot rows, in slots that another request has used. */
START_TEST(hierarchical_equals_resident)
{
    sl_key want[LENGTH + 1], got[LENGTH + 1], other[LENGTH + 1];
    fix_opts o = opts_of(_i);
    o.policy = _i % 2 ? SL_EVICT_CLOCK : SL_EVICT_LRU;
    o.layout = (sl_layout)(_i % 3);
    reference(&o, 9, PROMPT, want);
    fix f;
    fix_open(&f, &o);
    for (int round = 0; round < 2; round++) {
        fix_run r = {0};
        fix_text t;
        sl_layer_stats s;
        fix_prompt(&f, &t, LENGTH, round ? 9 : 1234);
        open_prompt(&f, &r, SL_RESIDENT, 0, PROMPT);
        fix_feed(&f, &r, &t, PROMPT, 40);
        spill(&f, &r);
        decode_hashes(&f, &r, &t, PROMPT + 1, round ? got : other);
        sl_engine_seq_stats(f.engine, r.seq, &s);
        ck_assert_uint_gt(s.hits, 0);
        ck_assert_uint_gt(s.misses, 0);
        ck_assert_uint_gt(s.tail_hits, 0);
        fix_seq_close(&f, &r, false);
    }
    same(want, got, PROMPT + 1, "hierarchical");
    fix_close(&f);
}
END_TEST

/* Pages of a longer text, up to the window, are continued; and pages of the whole prompt, with its selection, are opened
 * as a decode worker does, hierarchical at once, also with tokens after the prompt. */
START_TEST(pages_are_continued_with_the_same_bits)
{
    sl_key want[LENGTH + 1], got[LENGTH + 1];
    fix_opts o = opts_of(_i);
    const int32_t window = o.select.window;
    const int32_t cuts[] = {1, 63, 64, PROMPT - window, PROMPT, PROMPT + 1, PROMPT + 45};
    o.layout = (sl_layout)((_i + 1) % 3);
    reference(&o, 31, PROMPT, want);
    for (size_t k = 0; k < SL_COUNT(cuts); k++) {
        bool whole = cuts[k] >= PROMPT;
        fix f;
        fix_run r = {0};
        fix_text t;
        fix_open(&f, &o);
        fix_prompt(&f, &t, LENGTH, 31);
        open_prompt(&f, &r, SL_RESIDENT, 0, whole ? PROMPT : LENGTH - 20);
        fix_feed(&f, &r, &t, whole ? cuts[k] : LENGTH - 20, 100);
        fix_seq_close(&f, &r, true);
        open_prompt(&f, &r, whole && k % 2 ? SL_HIERARCHICAL : SL_RESIDENT, cuts[k], PROMPT);
        if (!whole)
            fix_feed(&f, &r, &t, PROMPT - 1, 33);
        int32_t from = whole ? cuts[k] + 1 : PROMPT;
        decode_hashes(&f, &r, &t, from, got);
        same(want, got, from, "pages");
        fix_seq_close(&f, &r, false);
        fix_close(&f);
    }
}
END_TEST

/* A prompt that is being computed, a resident and a hierarchical request in the same steps. */
START_TEST(the_batch_does_not_matter)
{
    enum { N = 3, STEPS = 12, CHUNK = 13 };
    static const uint64_t seeds[N] = {41, 42, 43};
    sl_key want[N][LENGTH + 1];
    fix_opts o = opts_of(_i);
    fix f;
    fix_run r[N] = {0};
    static fix_text t[N];
    sl_step_item items[N];
    sl_err err = {0};
    for (int i = 0; i < N; i++)
        reference(&o, seeds[i], PROMPT, want[i]);
    fix_open(&f, &o);
    for (int i = 0; i < N; i++) {
        fix_prompt(&f, &t[i], LENGTH, seeds[i]);
        open_prompt(&f, &r[i], SL_RESIDENT, 0, PROMPT);
        fix_feed(&f, &r[i], &t[i], i ? PROMPT + 7 * i : PROMPT - CHUNK * STEPS / 2, 50);
    }
    spill(&f, &r[2]);
    for (int32_t step = 0; step < STEPS; step++) {
        for (int i = 0; i < N; i++) {
            int32_t at = sl_engine_seq_len(r[i].seq);
            items[i] = (sl_step_item){.seq = r[i].seq,
                                      .tokens = t[i].ids + at,
                                      .n_tokens = i == 0 && at < PROMPT ? CHUNK : 1,
                                      .want_logits = true};
        }
        ck_assert_msg(sl_engine_step(f.engine, items, N, NULL, &err) == SL_OK, "%s", err.text);
        for (int i = 0; i < N; i++) {
            int32_t len = sl_engine_seq_len(r[i].seq);
            sl_key now = fix_hash(&f, items[i].logits);
            ck_assert_msg(len < PROMPT || memcmp(&now, &want[i][len], sizeof now) == 0,
                          "request %d differs after token %d", i, len);
        }
    }
    for (int i = 0; i < N; i++)
        fix_seq_close(&f, &r[i], false);
    fix_close(&f);
}
END_TEST

/* With a budget of the whole prompt, and prompts shorter than the budget or the window, attention is dense. */
START_TEST(a_whole_budget_is_dense)
{
    const int32_t prompts[] = {PROMPT, 40, 1, PROMPT};
    const int32_t budgets[] = {PROMPT, 64, 64, CONTEXT};
    for (size_t k = 0; k < SL_COUNT(prompts); k++) {
        sl_key want[LENGTH + 1], got[LENGTH + 1];
        fix_opts o = opts_of(_i);
        o.select.prompt_budget = budgets[k], o.select.output_tokens = 0;
        o.hot_rows = CONTEXT;
        o.gates = (sl_gates){0};
        reference(&o, 3, prompts[k], got);
        o.select = (sl_select_params){0}, o.algorithm = "dense";
        reference(&o, 3, prompts[k], want);
        same(want, got, prompts[k], "dense");
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
    eo = f.eo, eo.select.kernel = 4;
    fix_refused(&f, &eo, SL_ERR_INVALID, "kernel_size 4 is even");
    eo = f.eo, eo.select.prompt_budget = 65;
    fix_refused(&f, &eo, SL_ERR_REFUSED, "cache plane kept");
    eo = f.eo, eo.select.stamp = 5;
    fix_refused(&f, &eo, SL_ERR_REFUSED, "cache plane rows: stamp differs");
    f.be->caps &= ~(unsigned)SL_BE_UNIFIED; /* as a GPU */
    fix_refused(&f, &f.eo, SL_ERR_UNSUPPORTED,
                "sparse algorithm snapkv: runs with backend.name cpu only so far");
    f.be->caps |= SL_BE_UNIFIED;
    fix_close(&f);
}
END_TEST

static void prompt_refused(fix *f, fix_run *r, int32_t n_cached, int32_t prompt, const char *says)
{
    sl_err err = {0};
    fix_seq_open(f, r, SL_RESIDENT, n_cached, LENGTH);
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
    fix_prompt(&f, &t, LENGTH, 3);
    fix_seq_open(&f, &r, SL_RESIDENT, 0, LENGTH);
    sl_step_item it = {.seq = r.seq, .tokens = t.ids, .n_tokens = 1};
    ck_assert_int_eq(sl_engine_step(f.engine, &it, 1, NULL, &err), SL_ERR_INVALID);
    ck_assert_msg(strstr(err.text, "the end of the prompt of sequence row") != NULL, "%s", err.text);
    ck_assert_int_eq(sl_engine_seq_prompt(f.engine, r.seq, PROMPT, &err), SL_OK);
    fix_feed(&f, &r, &t, PROMPT, 64);
    fix_seq_close(&f, &r, true);
    prompt_refused(&f, &r, PROMPT - 15, PROMPT, "its last 16 tokens must be computed");
    prompt_refused(&f, &r, PROMPT, 140,
                   "do not have the tokens that layer 0 keeps of a prompt of 140 tokens");
    prompt_refused(&f, &r, PROMPT, CONTEXT + 1, "prompt of 257 tokens");
    const sl_geometry *g = sl_arena_geometry(f.arena);
    sl_host_plane kept = sl_geometry_plane(g, sl_arena_base(f.arena), sl_arena_pages(f.arena), 0, 1);
    uint8_t *gaps = kept.base + r.pages[PROMPT / SL_PAGE_TOKENS] * kept.page_stride + 8;
    memset(gaps, 0xff, 4); /* skips more tokens than there are */
    prompt_refused(&f, &r, PROMPT, PROMPT, "do not have the tokens that layer 0 keeps");
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
    fix_prompt(&f, &t, LENGTH, 3);
    open_prompt(&f, &r, SL_RESIDENT, 0, PROMPT);
    fix_feed(&f, &r, &t, 70, 64);
    spill(&f, &r);
    sl_step_item it = {.seq = r.seq, .tokens = t.ids + 70, .n_tokens = 1};
    ck_assert_int_eq(sl_engine_step(f.engine, &it, 1, NULL, &err), SL_ERR_UNSUPPORTED);
    ck_assert_msg(strstr(err.text, "is hierarchical before the end of its prompt") != NULL, "%s", err.text);
    fix_seq_close(&f, &r, false);
    fix_close(&f);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("engine/snapkv");
    TCase *c = tcase_create("snapkv");
    tcase_set_timeout(c, 240);
    tcase_add_loop_test(c, equals_definition, 0, RUNS);
    tcase_add_loop_test(c, chunks_threads_and_recomputing_do_not_matter, 0, RUNS);
    tcase_add_loop_test(c, hierarchical_equals_resident, 0, RUNS);
    tcase_add_loop_test(c, pages_are_continued_with_the_same_bits, 0, RUNS);
    tcase_add_loop_test(c, the_batch_does_not_matter, 0, RUNS);
    tcase_add_loop_test(c, a_whole_budget_is_dense, 0, 2);
    tcase_add_test(c, a_vote_spreads_over_the_kernel);
    tcase_add_test(c, refusals);
    tcase_add_test(c, prompts_are_checked);
    tcase_add_test(c, prompts_are_resident);
    suite_add_tcase(s, c);
    return run_suite(s);
}
