/*
 * pq_cache through the real engine. Codebooks, codes and lists are compared with restatements in double precision over keys
 * that are read from the host pages; a code is written exactly when its token leaves the recent window. k-means has the
 * properties that product quantisation needs: more iterations never make the error larger, and with at least as many
 * centroids as different pieces the decoded keys are the keys, so that lists are the exact best tokens. The bits do not
 * depend on chunks, threads, the batch, residency, pages that exist already, or on whether tokens after the prompt are
 * computed again; and with a budget of the whole context they are those of dense attention. Run from the repository's root.
 */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/backend_impl.h"
#include "kernels/codes.h"
#include "kernels/gqa.h"
#include "prompts.h"
#include "strategies.h"
#include "tests/unit/kernels/ref.h"
#include "tests/unit/run_suite.h"
#include "witness.h"

enum { CONTEXT = PROMPTS_CONTEXT, PROMPT = 150, LENGTH = PROMPTS_LENGTH, LAYERS = 8, HEADS = 4 };

static const char *const models[] = {"tests/golden/model/llama-odd", "tests/golden/model/qwen2-mha",
                                     "tests/golden/model/qwen3-norms", "tests/golden/model/llama-rope3"};
static const sl_row_format formats[] = {SL_ROW_GQA_F32, SL_ROW_GQA_BF16, SL_ROW_GQA_FP8};

typedef struct setting {
    select_params select; /* reduce is what pq_cache always does; the witness reads it */
    int32_t sinks, prompt;
} setting;

/* The third has a prompt that is shorter than the budget; the last has a centroid for every key of the prompt. */
static const setting settings[] = {
    {{.token_budget = 64, .n_subvec = 2, .n_subbits = 4, .niter = 8, .recent_ratio = 0.5f}, 4, PROMPT},
    {{.token_budget = 40, .n_subvec = 1, .n_subbits = 6, .niter = 3, .recent_ratio = 0}, 0, PROMPT},
    {{.token_budget = 90, .n_subvec = 2, .n_subbits = 3, .recent_ratio = 0.3f}, 32, 60},
    {{.token_budget = 50, .n_subvec = 2, .n_subbits = 8, .niter = 2, .recent_ratio = 0.6f}, 2, PROMPT},
};

enum { SETTINGS = SL_COUNT(settings) };

static fix_opts opts_of(int i)
{
    sl_row_format rows = formats[i % (int)SL_COUNT(formats)];
    const setting *s = &settings[i % SETTINGS];
    fix_opts o = {.dir = models[(i + i / SETTINGS) % (int)SL_COUNT(models)],
                  .rows = rows,
                  .act = rows == SL_ROW_GQA_F32 ? SL_F32 : SL_BF16,
                  .threads = 1,
                  .max_tokens = CONTEXT,
                  .max_context = CONTEXT,
                  .max_seqs = 3,
                  .max_hot = 2,
                  .hot_rows = s->select.token_budget,
                  .tail_rows = 3,
                  .select = s->select,
                  .gates = {.sink_tokens = s->sinks},
                  .algorithm = "pq_cache"};
    o.select.reduce = SL_GROUP_SOFTMAX;
    return o;
}

static int32_t prompt_of(int i)
{
    return settings[i % SETTINGS].prompt;
}

static int32_t recent_of(const fix_opts *o)
{
    int32_t n =
        (int32_t)((double)(o->select.token_budget - o->gates.sink_tokens) * (double)o->select.recent_ratio);
    return n > 1 ? n : 1;
}

/* ---- the definition ---- */

typedef struct checker {
    witness w;
    int32_t prompt, trained;
    int32_t coded[LAYERS];  /* tokens before it have codes; 0: there is no codebook yet */
    float *books[LAYERS];   /* [kv_heads][k][dim] */
    uint8_t *codes[LAYERS]; /* [kv_heads][CONTEXT][parts] */
} checker;

static sl_key_source host_keys(const checker *c, int32_t layer)
{
    const fix *f = c->w.f;
    const sl_cache_plane *rows = &sl_arena_geometry(f->arena)->shape.planes[SL_CACHE_ROWS];
    MUST(sl_arena_geometry(f->arena)->shape.n_planes == 1 && rows->heads == f->cfg->attn.n_kv_heads);
    return (sl_key_source){.rows = {.heads = rows->heads, .row_bytes = sl_cache_unit_bytes(rows)},
                           .host = witness_plane(&c->w, layer, SL_CACHE_ROWS),
                           .pages = c->w.run->pages,
                           .heads = f->cfg->attn.n_kv_heads,
                           .dim = f->cfg->attn.v_head_dim,
                           .format = f->o.rows};
}

/* The codebook of a layer, and the codes of the tokens that a query at pos may read by them. */
static void restate(checker *c, int32_t layer, int32_t pos)
{
    const select_params *s = &c->w.f->o.select;
    const int32_t sinks = c->w.f->o.gates.sink_tokens, end = pos + 1 - recent_of(&c->w.f->o);
    const sl_kmeans_params b = {.keys = host_keys(c, layer),
                                .first = sinks,
                                .tokens = c->trained - sinks,
                                .parts = s->n_subvec,
                                .k = 1 << s->n_subbits,
                                .iterations = s->niter ? s->niter : 20,
                                .metric = SL_KMEANS_L2,
                                .centroids = c->books[layer],
                                .ld_centroids = 1 << s->n_subbits};
    if (c->coded[layer] == 0)
        ref_run(SL_OP_KMEANS, &b);
    const int32_t from = c->coded[layer] ? c->coded[layer] : sinks;
    const sl_codes_params p = {.keys = b.keys,
                               .first = from,
                               .tokens = end - from,
                               .parts = s->n_subvec,
                               .k = b.k,
                               .centroids = c->books[layer],
                               .codes = c->codes[layer],
                               .ld_codes = CONTEXT};
    if (end > from)
        ref_run(SL_OP_CODES, &p);
    c->coded[layer] = end > from ? end : from;
}

/* The product of a query with the decoded key of candidate `unit`, in double. */
static double decoded(const witness *w, const seen_list *l, const double *q, int32_t head, int32_t unit)
{
    const checker *c = (const checker *)w;
    const select_params *s = &w->f->o.select;
    const int32_t token = w->f->o.gates.sink_tokens + unit, width = l->dim / s->n_subvec,
                  k = 1 << s->n_subbits;
    double sum = 0;
    for (int32_t i = 0; i < l->dim; i++) {
        int32_t code = c->codes[l->layer][((int64_t)head * CONTEXT + token) * s->n_subvec + i / width];
        sum += q[i] * (double)c->books[l->layer][((int64_t)head * k + code) * l->dim + i];
    }
    return sum;
}

static void check_list(witness *w, const seen_list *l)
{
    checker *c = (checker *)w;
    const int32_t sinks = w->f->o.gates.sink_tokens, recent = recent_of(&w->f->o);
    const int32_t n = l->pos + 1 - recent - sinks, budget = w->f->o.select.token_budget;
    bool in[CONTEXT] = {false};
    const int32_t length = witness_ids(l, l->pos, in);
    if (l->pos < c->trained) {
        MUST(length == l->pos + 1);
        return;
    }
    MUST(length == budget);
    restate(c, l->layer, l->pos);
    double all[CONTEXT], got[CONTEXT];
    int32_t n_got = 0;
    for (int32_t j = 0; j <= l->pos; j++)
        MUST(in[j] || (j >= sinks && j <= l->pos - recent));
    witness_scores(w, l, n, decoded, all);
    for (int32_t i = 0; i < n; i++)
        if (in[sinks + i])
            got[n_got++] = all[i];
    MUST(n_got == budget - sinks - recent);
    witness_best(all, n, got, n_got);
    w->lists++;
}

/* ---- when codes are written ---- */

typedef struct written {
    const uint8_t *codes;
    int32_t end;
} written;

static sl_backend_desc wrapped;
static sl_status (*inner_codes)(sl_backend *be, const void *params, sl_err *err);
static written ranges[LAYERS];
static int n_ranges;

/* The codes of a layer are written token by token from the first one after the sinks: those of the step in which the codebook is
 * made by that op, which may be repeated by that of each step. There is one sequence. */
static sl_status witness_codes(sl_backend *be, const void *params, sl_err *err)
{
    const sl_codes_params *p = params;
    int32_t i = 0, first = p->first, end = p->first + p->tokens;
    if (p->step) {
        const int32_t *pos = p->step->seqs->token_pos, from = p->step->trained[0];
        end = pos[p->tokens - 1] + 1 - p->step->recent;
        first = (pos[0] > from ? pos[0] : from) - p->step->recent;
        if (pos[p->tokens - 1] < from)
            return inner_codes(be, params, err); /* it writes nothing */
    }
    while (i < n_ranges && ranges[i].codes != p->codes)
        i++;
    MUST(i < LAYERS && end > first && (i == n_ranges ? !p->step : first <= ranges[i].end));
    MUST(i == n_ranges || end >= ranges[i].end);
    n_ranges += i == n_ranges;
    ranges[i] = (written){p->codes, end};
    return inner_codes(be, params, err);
}

static void wrap(sl_backend *be)
{
    wrapped = *be->desc;
    static sl_op_impl codes;
    codes = *wrapped.ops[SL_OP_CODES];
    inner_codes = codes.run;
    codes.run = witness_codes;
    wrapped.ops[SL_OP_CODES] = &codes;
    be->desc = &wrapped;
    n_ranges = 0;
}

START_TEST(equals_definition)
{
    fix f;
    fix_opts o = opts_of(_i);
    fix_run r = {0};
    fix_text t;
    checker c = {.w = {.f = &f, .run = &r, .check = check_list}, .prompt = prompt_of(_i)};
    c.trained = c.prompt > o.select.token_budget ? c.prompt : o.select.token_budget;
    o.desc = witness_of(&sl_algo_pq_cache, &c.w);
    o.wrap = wrap;
    fix_open(&f, &o);
    ck_assert(f.cfg->n_layers <= LAYERS && f.cfg->attn.n_kv_heads <= HEADS);
    for (int32_t l = 0; l < f.cfg->n_layers; l++) {
        c.books[l] = calloc((size_t)(HEADS * f.cfg->attn.v_head_dim) << o.select.n_subbits, sizeof **c.books);
        c.codes[l] = calloc((size_t)(HEADS * CONTEXT * o.select.n_subvec), 1);
    }
    fix_prompt(&f, &t, LENGTH, 77);
    prompts_open(&f, &r, SL_RESIDENT, 0, c.prompt);
    fix_feed(&f, &r, &t, c.prompt, 70);
    for (int32_t n = c.prompt + 1; n <= 180; n++) {
        fix_feed(&f, &r, &t, n, 1);
        ck_assert_int_eq(n_ranges, n < c.trained ? 0 : f.cfg->n_layers);
        for (int i = 0; i < n_ranges; i++) /* the newest token's window has just left one more token */
            ck_assert_int_eq(ranges[i].end, n - recent_of(&o));
    }
    fix_feed(&f, &r, &t, LENGTH, 19); /* as when tokens are computed again */
    ck_assert_int_eq(c.w.lists, (int64_t)(LENGTH - c.trained) * f.cfg->n_layers * f.cfg->attn.n_kv_heads);
    fix_seq_close(&f, &r, false);
    fix_close(&f);
    for (int32_t l = 0; l < LAYERS; l++) {
        free(c.books[l]);
        free(c.codes[l]);
    }
}
END_TEST

/* ---- the properties of codebooks ---- */

enum { N = 150, DIM = 12, PARTS = 3, KINDS = 16 };

typedef struct store {
    float keys[N][DIM];
    uint8_t *rows;
    sl_kmeans_params kmeans;
    float centroids[KINDS][DIM];
    uint16_t labels[PARTS][N];
} store;

/* Random keys of one KV head, of which `kinds` are different (0: all). */
static void fill_store(store *s, int32_t kinds)
{
    static const int32_t pages[] = {2, 0, 1};
    const int64_t row = sl_gqa_row_bytes(SL_ROW_GQA_F32, 1, DIM);
    uint64_t x = 4711;
    s->rows = calloc(3 * SL_PAGE_TOKENS, (size_t)row);
    for (int32_t j = 0; j < N; j++) {
        float v[DIM] = {0};
        for (int32_t i = 0; i < DIM; i++) {
            x ^= x << 13, x ^= x >> 7, x ^= x << 17;
            s->keys[j][i] = kinds && j >= kinds ? s->keys[(j * 7) % kinds][i]
                                                : (float)((double)(x >> 11) / 9007199254740992.0 - 0.5);
        }
        int64_t at = (int64_t)pages[j / SL_PAGE_TOKENS] * SL_PAGE_TOKENS + j % SL_PAGE_TOKENS;
        sl_gqa_row_encode(SL_ROW_GQA_F32, 1, DIM, 0, 1, s->keys[j], v, s->rows + at * row);
    }
    s->kmeans = (sl_kmeans_params){.keys = {.rows = {.base = s->rows, .row_bytes = row, .heads = 1},
                                            .pages = pages,
                                            .heads = 1,
                                            .dim = DIM,
                                            .format = SL_ROW_GQA_F32},
                                   .tokens = N,
                                   .parts = PARTS,
                                   .k = KINDS,
                                   .metric = SL_KMEANS_L2,
                                   .centroids = &s->centroids[0][0],
                                   .labels = &s->labels[0][0],
                                   .ld_centroids = KINDS,
                                   .ld_labels = N};
}

/* The mean squared distance of the keys from what their labels decode to. */
static double mse(const store *s)
{
    double sum = 0;
    for (int32_t j = 0; j < N; j++)
        for (int32_t i = 0; i < DIM; i++) {
            double d = (double)s->keys[j][i] - (double)s->centroids[s->labels[i / (DIM / PARTS)][j]][i];
            sum += d * d;
        }
    return sum / N;
}

START_TEST(codebooks_have_their_properties)
{
    static store s;
    sl_backend *be;
    sl_backend_opts bo = {.threads = 2};
    sl_err err = {0};
    double before = INFINITY, first = 0;
    ck_assert_int_eq(sl_backend_create("cpu", &bo, &be, &err), SL_OK);
    fill_store(&s, 0);
    for (int32_t n = 0; n < 25; n++) {
        s.kmeans.iterations = n;
        ck_assert_msg(sl_be_run(be, SL_OP_KMEANS, &s.kmeans, &err) == SL_OK, "%s", err.text);
        double now = mse(&s);
        first = n == 0 ? now : first;
        MUST(now <= before * (1 + 1e-6));
        before = now;
    }
    MUST(before < 0.9 * first && before > 0);
    free(s.rows);
    for (int32_t kinds = 1; kinds <= KINDS; kinds += 5) { /* as many centroids as different keys, or more */
        fill_store(&s, kinds);
        s.kmeans.iterations = 1;
        ck_assert_msg(sl_be_run(be, SL_OP_KMEANS, &s.kmeans, &err) == SL_OK, "%s", err.text);
        MUST(mse(&s) == 0);
        free(s.rows);
    }
    sl_backend_destroy(be);
}
END_TEST

/* ---- the same bits on every way ---- */

START_TEST(chunks_threads_and_recomputing_do_not_matter)
{
    prompts_chunks(opts_of(_i), prompt_of(_i));
}
END_TEST

START_TEST(codebooks_and_graphs)
{
    const setting *s = &settings[_i];
    prompts_graphs(opts_of(_i), prompt_of(_i),
                   s->prompt < s->select.token_budget); /* once when a codebook is made late */
}
END_TEST

START_TEST(hierarchical_equals_resident)
{
    prompts_hierarchical(opts_of(_i), _i, prompt_of(_i));
}
END_TEST

START_TEST(pages_are_continued_with_the_same_bits)
{
    prompts_pages(opts_of(_i), _i, prompt_of(_i));
}
END_TEST

START_TEST(the_batch_does_not_matter)
{
    prompts_batch(opts_of(_i), PROMPT);
}
END_TEST

START_TEST(a_whole_budget_is_dense)
{
    fix_opts o = opts_of(_i);
    o.select.token_budget = CONTEXT;
    prompts_dense(o, prompt_of(_i));
}
END_TEST

START_TEST(refusals)
{
    fix f;
    fix_opts o = opts_of(0);
    fix_open(&f, &o);
    sl_engine_opts eo = f.eo;
    eo.hot_rows = 63;
    fix_refused(&f, &eo, SL_ERR_INVALID,
                "hot_rows 63 of layer 0 is less than the longest selection, 64 tokens");
    eo = f.eo, eo.gates.recent_tokens = 5;
    fix_refused(&f, &eo, SL_ERR_INVALID, "recent_tokens is 5, but recent_ratio says");
    eo = f.eo, eo.gates.sink_tokens = 63;
    fix_refused(&f, &eo, SL_ERR_INVALID, "token_budget 64 leaves nothing to select after sink_tokens 63 and");
    eo = f.eo, fix_option(&eo, "recent_ratio", "1");
    fix_refused(&f, &eo, SL_ERR_INVALID, "leaves nothing to select after sink_tokens 4 and recent_ratio 1");
    eo = f.eo, fix_option(&eo, "n_subvec", "5");
    fix_refused(&f, &eo, SL_ERR_INVALID, "n_subvec 5 does not divide head_dim");
    eo = f.eo, eo.select.stamp = 5;
    fix_refused(&f, &eo, SL_ERR_REFUSED, "cache plane rows: stamp differs");
    fix_close(&f);
}
END_TEST

Suite *pq_cache_suite(void)
{
    Suite *s = suite_create("engine/pq_cache");
    TCase *c = tcase_create("pq_cache");
    tcase_set_timeout(c, 240);
    add_variants(c, equals_definition, SETTINGS);
    tcase_add_test(c, codebooks_have_their_properties);
    add_variants(c, chunks_threads_and_recomputing_do_not_matter, SETTINGS);
    add_variants(c, codebooks_and_graphs, SETTINGS);
    add_variants(c, hierarchical_equals_resident, SETTINGS);
    add_variants(c, pages_are_continued_with_the_same_bits, SETTINGS);
    tcase_add_loop_test(c, the_batch_does_not_matter, 0, 2);
    tcase_add_loop_test(c, a_whole_budget_is_dense, 0, 2);
    tcase_add_test(c, refusals);
    suite_add_tcase(s, c);
    return s;
}
