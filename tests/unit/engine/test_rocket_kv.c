/*
 * rocket_kv through the real engine. Every list after a prompt is compared with a restatement of both stages in double
 * precision that reads the keys from the host pages and shares no code with the algorithm; the bits do not depend on
 * chunks, threads, the batch, residency, prefix reuse or on whether the tokens after the prompt were computed again; a
 * worker that opens the pages of a prompt continues with the same bits; and with budgets of the whole context they are
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
    {.prompt_budget = 64, .window = 16, .top_pages = 8, .retained_page = 4, .kt_type = SL_KT_BF16},
    {.prompt_budget = 64, .window = 16, .top_pages = 24, .retained_page = 1, .kt_type = SL_KT_BF16},
    {.prompt_budget = 64, .window = 32, .kernel = 7, .top_pages = 5, .retained_page = 8, .top_channels = 5},
    {.prompt_budget = 41,
     .window = 1,
     .kernel = 5,
     .pooled = true,
     .pooling = SL_POOLING_AVG,
     .top_pages = 12,
     .retained_page = 2},
};

enum { RUNS = SL_COUNT(settings) };

static fix_opts opts_of(int i)
{
    sl_row_format rows = formats[i % (int)SL_COUNT(formats)];
    const select_params *p = &settings[i % RUNS];
    return (fix_opts){.dir = models[i % (int)SL_COUNT(models)],
                      .rows = rows,
                      .act = rows == SL_ROW_GQA_F32 ? SL_F32 : SL_BF16,
                      .threads = 1,
                      .max_tokens = WAYS_CONTEXT,
                      .max_context = WAYS_CONTEXT,
                      .max_seqs = 3,
                      .max_hot = 2,
                      .hot_rows = p->top_pages * p->retained_page,
                      .tail_rows = 3,
                      .select = *p,
                      .gates = {.sink_tokens = i % 2 ? 3 : 0, .recent_tokens = i == 2 ? 5 : 0},
                      .algorithm = "rocket_kv"};
}

/* ---- the definition ---- */

enum { MOST = WAYS_CONTEXT };

/* The positions of the retained tokens of a KV head for a query at pos; returns their number. The kept ones are those
 * that the page of the prompt's last token names. */
static int32_t retained_of(const witness *w, const seen_list *l, int32_t *at)
{
    const sl_geometry *g = sl_arena_geometry(w->f->arena);
    const int32_t plane = sl_cache_find_name(&g->shape, "kept"), before = WAYS_PROMPT - w->f->o.select.window;
    const sl_host_plane h = witness_plane(w, l->layer, plane);
    const uint8_t *unit = h.base + w->run->pages[(WAYS_PROMPT - 1) / SL_PAGE_TOKENS] * h.page_stride +
                          l->list * sl_cache_unit_bytes(&g->shape.planes[plane]);
    int32_t header[2], n = 0, next = 0;
    memcpy(header, unit, 8);
    MUST(header[0] == WAYS_PROMPT && header[1] == w->f->o.select.prompt_budget - w->f->o.select.window);
    for (; n < header[1]; n++) {
        uint16_t gap;
        memcpy(&gap, unit + 8 + 2 * (int64_t)n, 2);
        at[n] = next + gap, next = at[n] + 1;
    }
    for (int32_t pos = before; pos <= l->pos; pos++)
        at[n++] = pos;
    return n;
}

/* A bound as it is stored, up: the smallest value that is not below v. */
static double stored(const witness *w, double v, bool up)
{
    int e;
    if (w->f->o.select.kt_type == SL_KT_BF16)
        return witness_bf16(v, up ? ceil : floor);
    frexp(v, &e);
    double step = ldexp(1, e - 3 < -16 ? -16 : e - 3); /* of a number with 3 bits, at least 2^-16 */
    return (up ? ceil(v / step) : floor(v / step)) * step;
}

typedef struct pages {
    int32_t at[MOST], n, size, group; /* retained tokens, tokens of a page, query heads */
    bool channels[WITNESS_MAX_DIM];   /* of the scores */
    double sum[WITNESS_MAX_DIM];      /* of the group's queries */
} pages;

/* The channels with the largest sums over the group of |q|. */
static void choose_channels(const witness *w, const seen_list *l, pages *p)
{
    const int32_t r = w->f->o.select.top_channels ? w->f->o.select.top_channels : 128;
    double size[WITNESS_MAX_DIM];
    for (int32_t i = 0; i < l->dim; i++) {
        size[i] = p->sum[i] = 0;
        for (int32_t h = 0; h < l->n_q; h++) {
            size[i] += fabs((double)l->q[h * l->dim + i]);
            p->sum[i] += (double)l->q[h * l->dim + i];
        }
    }
    for (int32_t i = 0; i < l->dim; i++) {
        int32_t better = 0;
        for (int32_t j = 0; j < l->dim; j++)
            better += size[j] > size[i] || (size[j] == size[i] && j < i);
        p->channels[i] = better < r;
    }
}

/* Of one page: for each channel the bound on the side of the group's sign. With all channels their product with the
 * group's sum is an upper bound of that of every key. */
static void ext_of(const witness *w, const seen_list *l, const pages *p, int32_t page, double *ext)
{
    double least[WITNESS_MAX_DIM], most[WITNESS_MAX_DIM], product = -INFINITY, bound = 0;
    bool all = true;
    for (int32_t i = page * p->size; i < p->n && i < (page + 1) * p->size; i++) {
        float k[WITNESS_MAX_DIM];
        double dot = 0;
        witness_key(w, l->layer, p->at[i], l->list, k);
        for (int32_t c = 0; c < l->dim; c++) {
            double x = (double)k[c];
            dot += p->sum[c] * x;
            least[c] = i == page * p->size ? x : fmin(least[c], x);
            most[c] = i == page * p->size ? x : fmax(most[c], x);
        }
        product = fmax(product, dot);
    }
    for (int32_t c = 0; c < l->dim; c++) {
        ext[c] = p->sum[c] > 0 ? stored(w, most[c], true) : stored(w, least[c], false);
        bound += p->sum[c] * ext[c];
        all &= p->channels[c];
        ext[c] = p->channels[c] ? ext[c] : 0;
    }
    MUST(!all || product <= bound + 1e-9 * (1 + fabs(bound)));
}

/* Scores of all pages, open one included. */
static void naive_scores(const witness *w, const seen_list *l, const pages *p, int32_t n, double *out)
{
    static double ext[MOST][WITNESS_MAX_DIM];
    for (int32_t b = 0; b < n; b++) {
        ext_of(w, l, p, b, ext[b]);
        out[b] = 0;
    }
    for (int32_t h = 0; h < l->n_q; h++) {
        double each[MOST], top = -INFINITY, all = 0;
        for (int32_t b = 0; b < n; b++) {
            each[b] = 0;
            for (int32_t c = 0; c < l->dim; c++)
                each[b] += (double)l->q[h * l->dim + c] * ext[b][c];
            top = fmax(top, each[b]);
        }
        for (int32_t b = 0; b < n; b++)
            all += exp((double)l->scale * (each[b] - top));
        for (int32_t b = 0; b < n; b++)
            out[b] += exp((double)l->scale * (each[b] - top)) / all;
    }
}

/* With pages of one token, all channels, one query head and keys that the type holds, the list is the exact top-k. */
static void check_exact(const witness *w, const seen_list *l, const pages *p, const bool *in)
{
    double all[MOST], got[MOST];
    int32_t n_all = 0, n_got = 0;
    for (int32_t i = w->f->o.gates.sink_tokens; i < p->n; i++) {
        float k[WITNESS_MAX_DIM];
        double dot = 0;
        witness_key(w, l->layer, p->at[i], l->list, k);
        for (int32_t c = 0; c < l->dim; c++)
            dot += (double)l->q[c] * (double)k[c];
        all[n_all++] = dot;
        if (in[p->at[i]])
            got[n_got++] = dot;
    }
    witness_best(all, n_all, got, n_got);
}

static int64_t exact_lists;

/* Whole pages of retained tokens, as many as the budget allows, the forced ones and the best of the others. */
static void check_pages(witness *w, const seen_list *l, pages *p, const bool *in, int32_t n_ids)
{
    const select_params *s = &w->f->o.select;
    const int32_t n = (p->n + p->size - 1) / p->size;
    const int32_t recent = w->f->o.gates.recent_tokens, sinks = w->f->o.gates.sink_tokens;
    double scores[MOST], all[MOST], got[MOST];
    int32_t n_all = 0, n_got = 0, n_pages = 0, n_tokens = 0;
    choose_channels(w, l, p);
    naive_scores(w, l, p, n, scores);
    for (int32_t b = 0; b < n; b++) {
        const int32_t first = b * p->size, end = first + p->size < p->n ? first + p->size : p->n;
        const bool forced = first < sinks || end > p->n - recent;
        for (int32_t i = first; i < end; i++)
            MUST(in[p->at[i]] == in[p->at[first]]);
        MUST(!forced || in[p->at[first]]);
        n_pages += in[p->at[first]];
        n_tokens += in[p->at[first]] ? end - first : 0;
        if (forced)
            continue;
        all[n_all++] = scores[b];
        if (in[p->at[first]])
            got[n_got++] = scores[b];
    }
    MUST(n_tokens == n_ids && n_pages == (n < s->top_pages ? n : s->top_pages));
    witness_best(all, n_all, got, n_got);
    if (p->size == 1 && l->n_q == 1 && s->top_channels == 0 && w->f->o.rows != SL_ROW_GQA_F32) {
        check_exact(w, l, p, in);
        exact_lists++;
    }
}

static void check_list(witness *w, const seen_list *l)
{
    const select_params *s = &w->f->o.select;
    const int32_t before = WAYS_PROMPT - s->window;
    bool in[MOST] = {false}, kept[MOST] = {false};
    static pages p;
    const int32_t n = witness_ids(l, l->pos, in);
    if (l->pos < WAYS_PROMPT) {
        MUST(n == l->pos + 1);
        return;
    }
    w->lists++;
    p.size = s->retained_page;
    p.n = retained_of(w, l, p.at);
    if (l->pos == WAYS_PROMPT) {
        double votes[WAYS_PROMPT];
        for (int32_t i = 0; i < s->prompt_budget - s->window; i++)
            kept[p.at[i]] = true;
        witness_votes(w, l, s->kernel ? s->kernel : 63, !s->pooled || s->pooling == SL_POOLING_MAX, votes);
        witness_kept(w, votes, kept, before);
    }
    check_pages(w, l, &p, in, n);
}

START_TEST(equals_definition)
{
    fix f;
    fix_opts o = opts_of(_i);
    fix_run r = {0};
    fix_text t;
    witness w = {.f = &f, .run = &r, .check = check_list, .prompt = WAYS_PROMPT};
    exact_lists = 0;
    o.desc = witness_of(&sl_algo_rocket_kv, &w);
    fix_open(&f, &o);
    fix_prompt(&f, &t, WAYS_LENGTH, 77);
    ways_prompt_open(&f, &r, SL_RESIDENT, 0, WAYS_PROMPT);
    fix_feed(&f, &r, &t, WAYS_PROMPT, 70);
    fix_feed(&f, &r, &t, WAYS_LENGTH, 1);
    ck_assert_int_eq(w.lists, (WAYS_LENGTH - WAYS_PROMPT) * f.cfg->n_layers * f.cfg->attn.n_kv_heads);
    ck_assert(_i != 1 || exact_lists == w.lists);
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

/* The bounds are made again, from the keys in the host pages. */
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

/* With both budgets at the whole context, and prompts shorter than the window, attention is dense. */
START_TEST(whole_budgets_are_dense)
{
    const int32_t prompts[] = {WAYS_PROMPT, 40, 1};
    for (size_t k = 0; k < SL_COUNT(prompts); k++) {
        fix_opts o = opts_of(_i);
        o.select.prompt_budget = WAYS_CONTEXT;
        o.select.top_pages = WAYS_CONTEXT / o.select.retained_page;
        ways_prompt_dense(o, prompts[k]);
    }
}
END_TEST

/* A minimum length and a dense layer: chunks and a spill do not matter. */
START_TEST(gates_do_not_change_the_ways)
{
    static const int32_t first_layer[] = {0};
    sl_key want[WAYS_LENGTH + 1], got[WAYS_LENGTH + 1];
    for (int way = 0; way < 2; way++) {
        fix f;
        fix_run r = {0};
        fix_text t;
        fix_opts o = opts_of(_i);
        o.hot_rows = WAYS_CONTEXT;
        o.gates =
            (sl_gates){.sink_tokens = 4, .min_tokens = 170, .dense_layers = first_layer, .n_dense_layers = 1};
        fix_open(&f, &o);
        fix_prompt(&f, &t, WAYS_LENGTH, 8);
        ways_prompt_open(&f, &r, SL_RESIDENT, 0, WAYS_PROMPT);
        fix_feed(&f, &r, &t, WAYS_PROMPT, way ? 31 : WAYS_CONTEXT);
        if (way)
            ways_spill(&f, &r);
        ways_hashes(&f, &r, &t, WAYS_PROMPT + 1, way ? got : want);
        fix_seq_close(&f, &r, false);
        fix_close(&f);
    }
    ways_same(want, got, WAYS_PROMPT + 1, "gates");
}
END_TEST

/* ---- the sign of a group ---- */

/* Two query heads of opposite sign: the score of the second is not an upper bound of its products, so it prefers the page
 * whose best key it likes less. One request with a prompt of four tokens, which are all kept, and one token after it. */
START_TEST(a_shared_sign_bounds_no_single_head)
{
    enum { DIM = 2, N = 5 };
    static const float keys[N][DIM] = {{1, 0}, {2, 0}, {1.5f, 0}, {1.5f, 0}, {0, 0}};
    const float q[N][2][DIM] = {[N - 1] = {{3, 0}, {-1, 0}}};
    const int32_t seq[N] = {0}, pos[N] = {0, 1, 2, 3, 4}, page = 0, prompts[2] = {4, 3}, kept[3] = {0, 1, 2};
    const int64_t row = sl_gqa_row_bytes(SL_ROW_GQA_F32, 1, DIM);
    uint8_t *rows = calloc(SL_PAGE_TOKENS, (size_t)row), bounds[32 * 4 * DIM];
    float scores[N][3];
    int32_t place[2][N];
    sl_backend *be;
    sl_backend_opts bo = {.threads = 1};
    sl_err err = {0};
    ck_assert_int_eq(sl_backend_create("cpu", &bo, &be, &err), SL_OK);
    for (int32_t j = 0; j < N; j++)
        sl_gqa_row_encode(SL_ROW_GQA_F32, 1, DIM, 0, 1, keys[j], keys[j], rows + j * row);
    const sl_seq_tables seqs = {.n_tokens = N,
                                .n_seqs = 1,
                                .ld = 1,
                                .token_seq = seq,
                                .token_pos = pos,
                                .host_pages = &page,
                                .index_pages = &page};
    const sl_retained of = {.prompts = prompts,
                            .kept = kept,
                            .base = bounds,
                            .page_stride = sizeof bounds,
                            .host_rows = {.base = rows, .row_stride = row, .page_stride = 64 * row},
                            .rows = {.row_bytes = row, .heads = 1},
                            .ld_kept = 3,
                            .window = 1,
                            .page_log2 = 1,
                            .kv_heads = 1,
                            .dim = DIM,
                            .format = SL_ROW_GQA_F32,
                            .type = SL_KT_BF16};
    const sl_retained_append_params a = {.seqs = &seqs, .r = of};
    const sl_retained_scores_params s = {.q = &q[0][0][0],
                                         .seqs = &seqs,
                                         .r = of,
                                         .scores = &scores[0][0],
                                         .place = &place[0][0],
                                         .token_count = N,
                                         .heads = 2,
                                         .ld_scores = 3,
                                         .top_r = DIM,
                                         .select = 1,
                                         .scale = 1};
    ck_assert_msg(sl_be_run(be, SL_OP_RETAINED_APPEND, &a, &err) == SL_OK, "%s", err.text);
    ck_assert_msg(sl_be_run(be, SL_OP_RETAINED_SCORES, &s, &err) == SL_OK, "%s", err.text);
    const double first[3] = {6, 4.5, 0}, second[3] = {-2, -1.5, 0}, best_of_second = -1 * 1;
    ck_assert_double_lt(second[0],
                        best_of_second); /* q_1 . k of the page's first key is larger than its "bound" */
    for (int32_t b = 0; b < 3; b++) {
        double want = exp(first[b]) / (exp(6) + exp(4.5) + 1) + exp(second[b]) / (exp(-2) + exp(-1.5) + 1);
        ck_assert_double_le(fabs((double)scores[N - 1][b] - want), 1e-6);
    }
    ck_assert_int_eq(place[0][N - 1], 0);
    ck_assert_int_eq(place[1][N - 1], 4);
    free(rows);
    sl_backend_destroy(be);
}
END_TEST

/* ---- device pages ---- */

static int32_t free_index(const fix *f)
{
    sl_engine_stats s;
    sl_engine_stats_get(f->engine, &s);
    return (int32_t)s.index_pages_free;
}

/* A request has index pages for its retained tokens alone: 64 of the prompt, and those after it. What is missing is said before
 * anything is taken, and comes back with the request. */
START_TEST(index_pages_are_those_of_retained_tokens)
{
    fix f;
    fix_opts o = opts_of(0);
    o.max_context = 512, o.index_pages = 5;
    fix_open(&f, &o);
    fix_run r = {0};
    sl_seq *second;
    const int32_t other[3] = {f.free_pages[0], f.free_pages[1], f.free_pages[2]};
    sl_err err = {0};
    fix_prompt_open(&f, &r, SL_RESIDENT, 0, 150, 150);
    ck_assert_int_eq(free_index(&f), 3); /* three host pages: 64 + 192 - 150 tokens */
    fix_grow(&f, &r, 320);
    ck_assert_int_eq(free_index(&f), 1); /* 64 + 320 - 150 */
    ck_assert_int_eq(sl_engine_seq_open(f.engine, SL_RESIDENT, other, 3, 0, NULL, &second, &err), SL_OK);
    ck_assert_int_eq(free_index(&f), 1);
    ck_assert_int_eq(sl_engine_seq_prompt(f.engine, second, 150, &err), SL_ERR_EXHAUSTED);
    ck_assert_int_eq(free_index(&f), 1);
    fix_seq_close(&f, &r, false);
    ck_assert_int_eq(free_index(&f), 5);
    ck_assert_msg(sl_engine_seq_prompt(f.engine, second, 150, &err) == SL_OK, "%s", err.text);
    ck_assert_int_eq(free_index(&f), 3);
    sl_engine_seq_close(f.engine, second);
    ck_assert_int_eq(free_index(&f), 5);
    fix_close(&f);
}
END_TEST

/* Exactly as many index pages as the request needs at its end: the tokens are those of an engine with enough. */
START_TEST(few_index_pages_suffice)
{
    fix f;
    fix_opts o = opts_of(0);
    fix_text want, got;
    fix_run r = {0};
    o.max_context = 512;
    fix_open(&f, &o);
    fix_reference(&f, &want, 300, 330, 5);
    fix_close(&f);
    o.index_pages = 3; /* 64 + 384 - 300 tokens in six host pages */
    fix_open(&f, &o);
    fix_prompt(&f, &got, 300, 5);
    fix_prompt_open(&f, &r, SL_RESIDENT, 0, 300, 300);
    fix_feed(&f, &r, &got, 200, 100);
    fix_greedy(&f, &r, &got, 330);
    for (int32_t i = 299; i < 329; i++)
        MUST(memcmp(&got.logits[i], &want.logits[i], sizeof got.logits[i]) == 0);
    fix_seq_close(&f, &r, false);
    fix_close(&f);
}
END_TEST

/* ---- refusals ---- */

START_TEST(refusals)
{
    fix f;
    fix_opts o = opts_of(0);
    fix_open(&f, &o);
    sl_engine_opts eo = f.eo;
    eo.hot_rows = 31;
    fix_refused(&f, &eo, SL_ERR_INVALID,
                "hot_rows 31 of layer 0 is less than the longest selection, 32 tokens");
    eo = f.eo, eo.gates.recent_tokens = 17;
    fix_refused(&f, &eo, SL_ERR_INVALID, "rocket_kv: recent_tokens 17 are more than window_size 16");
    eo = f.eo, eo.gates.recent_tokens = 10, eo.gates.sink_tokens = 24;
    fix_refused(&f, &eo, SL_ERR_INVALID,
                "rocket_kv: topk is 8 pages of 4 tokens, but sink_tokens 24 and recent_tokens 10 need");
    eo = f.eo, eo.gates.sink_tokens = 48, fix_option(&eo, "topk", "30");
    fix_refused(
        &f, &eo, SL_ERR_INVALID,
        "rocket_kv: prompt_budget 64 leaves nothing to select after window_size 16 and sink_tokens 48");
    eo = f.eo, fix_option(&eo, "kernel_size", "4");
    fix_refused(&f, &eo, SL_ERR_INVALID, "rocket_kv: kernel_size 4 is even");
    eo = f.eo, fix_option(&eo, "page_size", "3");
    fix_refused(&f, &eo, SL_ERR_INVALID, "rocket_kv: page_size 3 does not divide a page of 64 tokens");
    eo = f.eo, fix_option(&eo, "prompt_budget", "65");
    fix_refused(&f, &eo, SL_ERR_REFUSED, "cache plane kept");
    eo = f.eo, eo.select.stamp = 5;
    fix_refused(&f, &eo, SL_ERR_REFUSED, "cache plane rows: stamp differs");
    fix_close(&f);
}
END_TEST

START_TEST(latent_rows_have_no_kv_heads)
{
    sl_cache_dims d = {.rows = sl_row_format_of(SL_ROW_MLA_BF16), .latent = 512, .rope = 64};
    sl_cache_shape shape;
    sl_err err = {0};
    ck_assert_int_eq(sl_algo_cache_shape(&sl_algo_rocket_kv, &d, &shape, &err), SL_ERR_UNSUPPORTED);
}
END_TEST

Suite *rocket_kv_suite(void)
{
    Suite *s = suite_create("engine/rocket_kv");
    TCase *c = tcase_create("rocket_kv");
    tcase_set_timeout(c, 240);
    add_variants(c, equals_definition, RUNS);
    add_variants(c, chunks_threads_and_recomputing_do_not_matter, RUNS);
    add_variants(c, hierarchical_equals_resident, RUNS);
    add_variants(c, pages_are_continued_with_the_same_bits, RUNS);
    add_variants(c, the_batch_does_not_matter, RUNS);
    tcase_add_loop_test(c, whole_budgets_are_dense, 0, 2);
    tcase_add_loop_test(c, gates_do_not_change_the_ways, 0, 2);
    tcase_add_test(c, a_shared_sign_bounds_no_single_head);
    tcase_add_test(c, index_pages_are_those_of_retained_tokens);
    tcase_add_test(c, few_index_pages_suffice);
    tcase_add_test(c, refusals);
    tcase_add_test(c, latent_rows_have_no_kv_heads);
    suite_add_tcase(s, c);
    return s;
}
