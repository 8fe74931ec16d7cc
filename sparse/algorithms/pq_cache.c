/*
 * pq_cache: tokens by products with quantised keys (PQCache, arXiv 2407.12820), for models with KV heads. The prompt is
 * computed dense. At its end each KV head gets a codebook: k-means over its keys, by pieces of n_subvec. A token's code is
 * the number of the nearest centroid of each piece; it is made when the token leaves the recent window. Later tokens
 * read the first tokens, the recent window, and the tokens with the largest weights by their codes; the softmax
 * weights of the query heads of a KV head are summed (kernels/codes.h).
 *
 * When codebooks are made: with the last token of the prompt, or later, when the request has as many tokens as a list; until
 * then everything is read. They are made of all keys after the sinks, and never change. Codebooks are therefore a function of
 * the prompt's keys and its number of tokens, and of the first generated tokens after a short prompt; chunks, batches,
 * threads and the worker do not matter. They lie on the device, for running requests only, and a worker that opens the pages
 * of a prompt makes them again; see cluster_kv.c for the reasons, which are the same.
 *
 * What differs from the paper's code, and why: the budget is a number of tokens, not a share of the prompt, because the hot
 * buffer has a fixed size; the recent window counts the query's own token; and k-means runs a fixed number of iterations,
 * not as many as there is time for, because the result must not depend on the machine.
 */
#include "sparse/algorithm.h"

#include <stdlib.h>

#include "kernels/codes.h"
#include "kernels/scratch.h"
#include "sparse/algorithms/by_scores.h"
#include "sparse/algorithms/rows.h"
#include "sparse/budgets.h"
#include "sparse/keys.h"

enum { DEFAULT_SINKS = 32 };

typedef struct pq_options {
    int token_budget, niter, n_subvec, n_subbits;
    double recent_ratio, list_mass;
    char budgets_path[256];
    const sl_budgets *budgets; /* no option: the contents of that file */
} pq_options;

static const sl_option option_rows[] = {
    SL_ROW_TOKEN_BUDGET(
        pq_options,
        "Tokens that a query reads at most, sinks and recent tokens included; at most the model's context."),
    SL_ROW_NITER(pq_options),
    SL_ROW_LIST_MASS(pq_options),
    SL_ROW_BUDGETS(pq_options),
    SL_ROW_INT(pq_options, n_subvec, "2", 1, 1024,
               "Pieces of a key that are quantised by themselves; it divides head_dim."),
    SL_ROW_INT(pq_options, n_subbits, "6", 1, 8, "Bits of the code of a piece."),
    SL_OPTION(pq_options, recent_ratio, SL_OPTION_FLOAT, SL_OPTION_PAGES, "0.5", 0, 1,
              "Share of token_budget, without sink_tokens, that the newest tokens get."),
};
static const sl_options table = {.section = "sparse_attention",
                                 .name = "pq_cache",
                                 .seam = "sparse_attention.algorithm",
                                 .rows = option_rows,
                                 .n = SL_COUNT(option_rows),
                                 .bytes = sizeof(pq_options)};
_Static_assert(sizeof(pq_options) <= SL_SELECT_BYTES, "options are kept in sl_select_options");

static pq_options options_of(const sl_cache_dims *d)
{
    pq_options o;
    sl_algo_options(&table, d, &o);
    return o;
}

typedef struct pq_cache {
    sl_algo base;
    sl_backend *be;
    sl_algo_dims dims;
    int32_t budget, sinks, recent;
    int32_t parts, k;
    sl_by_scores scores;
    sl_limits limits;
    float *centroids; /* device [layers][seqs][kv_heads][k][dim] */
    uint8_t *codes;   /* device [layers][seqs][kv_heads][max_context][parts] */
    int32_t *trained; /* device [seqs] tokens of which the codebook is made */
    int32_t *pages;   /* device: the host pages of the request whose prompt is announced */
} pq_cache;

static int32_t budget_of(const sl_cache_dims *d)
{
    return options_of(d).token_budget;
}

static int32_t parts_of(const sl_cache_dims *d)
{
    return options_of(d).n_subvec;
}

static int32_t codes_of_part(const sl_cache_dims *d)
{
    return 1 << options_of(d).n_subbits;
}

/* The recent window, which has at least the query's own token. */
static int32_t recent_of(const sl_cache_dims *d, int32_t sinks)
{
    int32_t n = (int32_t)((double)(budget_of(d) - sinks) * options_of(d).recent_ratio);
    return n > 1 ? n : 1;
}

static sl_selector pq_selector(const sl_cache_dims *d)
{
    (void)d;
    return (sl_selector){.unit_tokens = 1,
                         .block_tokens = 1,
                         .key = SL_KEY_STORED,
                         .score = SL_SCORE_RAW,
                         .scope = SL_SCOPE_KV_HEAD};
}

static sl_status pq_check(const sl_algo_dims *d, const sl_gates *g, sl_err *err)
{
    const sl_cache_dims *c = &d->cache;
    if (c->query_heads < 1 || c->query_heads % c->kv_heads)
        return sl_fail(err, SL_ERR_INVALID, "pq_cache: %d query heads for %d KV heads", c->query_heads,
                       c->kv_heads);
    if (c->head_dim % parts_of(c))
        return sl_fail(err, SL_ERR_INVALID, "pq_cache: n_subvec %d does not divide head_dim %d", parts_of(c),
                       c->head_dim);
    if (g->recent_tokens > 0)
        return sl_fail(
            err, SL_ERR_INVALID,
            "pq_cache: recent_tokens is %d, but recent_ratio says what is read of the newest tokens",
            g->recent_tokens);
    if (!(options_of(c).recent_ratio < 1) || budget_of(c) <= g->sink_tokens + recent_of(c, g->sink_tokens))
        return sl_fail(err, SL_ERR_INVALID,
                       "pq_cache: token_budget %d leaves nothing to select after sink_tokens %d and "
                       "recent_ratio %g",
                       budget_of(c), g->sink_tokens, options_of(c).recent_ratio);
    return SL_OK;
}

static sl_status pq_prepare(void *options, const sl_algo_model *m, uint64_t *content, sl_err *err)
{
    pq_options *o = options;
    return sl_budgets_prepare(o->budgets_path, m, &o->budgets, content, err);
}

/* Tokens of every list: the sinks, and the recent window of the whole budget. */
static int32_t least_tokens(const sl_algo_dims *d)
{
    return d->sinks + recent_of(&d->cache, d->sinks);
}

/* Tokens of the longest list of a layer; -1: of all. A request without a codebook reads all of its tokens, which may be as many
 * as token_budget. */
static int32_t most_tokens(const sl_algo_dims *d, int32_t layer)
{
    const int32_t budget = budget_of(&d->cache),
                  n = sl_budgets_longest(options_of(&d->cache).budgets, layer, budget, least_tokens(d));
    return n > budget ? n : budget;
}

static int32_t pq_layer_width(const sl_algo_dims *d, int32_t dense_below, int32_t layer)
{
    return sl_budget_width(d, most_tokens(d, layer), dense_below);
}

static int32_t pq_width(const sl_algo_dims *d, int32_t dense_below)
{
    return pq_layer_width(d, dense_below, -1);
}

/* A codebook is made of one KV head at least at a time, and the codes of its tokens. */
static size_t pq_scratch(const sl_algo_dims *d)
{
    const sl_cache_dims *c = &d->cache;
    const int32_t parts = parts_of(c), k = codes_of_part(c);
    const size_t head = sl_points_space_of(1, d->max_context, c->head_dim, parts, k).bytes,
                 token = sl_codes_space_of(1, c->query_heads, parts, k, d->max_context).bytes,
                 points = sl_slices_most(head, c->kv_heads),
                 scores = sl_slices_most(token, d->max_step_tokens);
    return points > scores ? points : scores;
}

typedef struct sizes {
    uint64_t scores, centroids, codes, trained, pages; /* bytes */
} sizes;

static sizes sizes_of(const sl_algo_dims *d)
{
    const uint64_t heads = (uint64_t)d->n_layers * (uint64_t)d->max_seqs * (uint64_t)d->cache.kv_heads;
    return (sizes){.scores = 4 * (uint64_t)sl_by_scores_floats(d, d->cache.kv_heads, 0),
                   .centroids = 4 * heads * (uint64_t)codes_of_part(&d->cache) * (uint64_t)d->cache.head_dim,
                   .codes = heads * (uint64_t)d->max_context * (uint64_t)parts_of(&d->cache),
                   .trained = 4 * (uint64_t)d->max_seqs,
                   .pages = 4 * (uint64_t)sl_pages_for(d->max_context)};
}

static uint64_t pq_device_bytes(const sl_algo_dims *d)
{
    const sizes z = sizes_of(d);
    return z.scores + z.centroids + z.codes + z.trained + z.pages +
           sl_limits_bytes(options_of(&d->cache).budgets, d->cache.kv_heads);
}

/* The codebook and all codes. */
static uint64_t pq_query_bytes(const sl_cache_dims *d, int32_t tokens)
{
    return (uint64_t)d->kv_heads * (4 * (uint64_t)codes_of_part(d) * (uint64_t)d->head_dim +
                                    (uint64_t)tokens * (uint64_t)parts_of(d));
}

static void pq_destroy(sl_algo *a)
{
    pq_cache *s = (pq_cache *)a;
    if (!s)
        return;
    sl_be_free(s->be, SL_MEM_DEVICE, s->pages);
    sl_be_free(s->be, SL_MEM_DEVICE, s->trained);
    sl_be_free(s->be, SL_MEM_DEVICE, s->codes);
    sl_be_free(s->be, SL_MEM_DEVICE, s->centroids);
    sl_limits_close(&s->limits);
    sl_by_scores_close(&s->scores);
    free(s);
}

static sl_status allocate(pq_cache *s, sl_err *err)
{
    const sizes z = sizes_of(&s->dims);
    SL_TRY(sl_by_scores_open(&s->scores, s->be, (int64_t)(z.scores / 4), err));
    SL_TRY(sl_limits_open(&s->limits, s->be, options_of(&s->dims.cache).budgets, s->dims.cache.kv_heads,
                          s->budget, least_tokens(&s->dims), err));
    SL_TRY(sl_be_alloc(s->be, SL_MEM_DEVICE, z.centroids, (void **)&s->centroids, err));
    SL_TRY(sl_be_alloc(s->be, SL_MEM_DEVICE, z.codes, (void **)&s->codes, err));
    SL_TRY(sl_be_alloc(s->be, SL_MEM_DEVICE, z.trained, (void **)&s->trained, err));
    SL_TRY(sl_be_alloc(s->be, SL_MEM_DEVICE, z.pages, (void **)&s->pages, err));
    return sl_be_fill(s->be, s->trained, 0, z.trained, err);
}

static sl_status pq_create(sl_backend *be, const sl_algo_dims *d, sl_algo **out, sl_err *err)
{
    pq_cache *s = calloc(1, sizeof *s);
    if (!s)
        return sl_fail(err, SL_ERR_NO_MEMORY, "pq_cache: out of memory");
    *s = (pq_cache){.base.desc = &sl_algo_pq_cache,
                    .be = be,
                    .dims = *d,
                    .budget = budget_of(&d->cache),
                    .sinks = d->sinks,
                    .recent = recent_of(&d->cache, d->sinks),
                    .parts = parts_of(&d->cache),
                    .k = codes_of_part(&d->cache)};
    sl_status st = allocate(s, err);
    if (st != SL_OK)
        goto destroy;
    *out = &s->base;
    return SL_OK;
destroy:
    pq_destroy(&s->base);
    return st;
}

/* ---- codebooks and codes ---- */

static int64_t request_at(const pq_cache *s, int32_t layer, int32_t seq)
{
    return ((int64_t)layer * s->dims.max_seqs + seq) * s->dims.cache.kv_heads;
}

static float *book_of(const pq_cache *s, int32_t layer, int32_t seq)
{
    return s->centroids + request_at(s, layer, seq) * s->k * s->dims.cache.head_dim;
}

static uint8_t *codes_at(const pq_cache *s, int32_t layer, int32_t seq)
{
    return s->codes + request_at(s, layer, seq) * s->dims.max_context * s->parts;
}

/* The tokens with which the codebook is made. */
static int32_t trained(const pq_cache *s, int32_t prompt)
{
    return prompt > s->budget ? prompt : s->budget;
}

static sl_status make_book(pq_cache *s, const sl_key_source *keys, int32_t layer, int32_t seq, int32_t tokens,
                           sl_err *err)
{
    const sl_kmeans_params p = {.keys = *keys,
                                .first = s->sinks,
                                .tokens = tokens - s->sinks,
                                .parts = s->parts,
                                .k = s->k,
                                .iterations = options_of(&s->dims.cache).niter,
                                .metric = SL_KMEANS_L2,
                                .centroids = book_of(s, layer, seq),
                                .ld_centroids = s->k};
    return sl_be_run(s->be, SL_OP_KMEANS, &p, err);
}

/* A request had `from` tokens and has `to` now. If it had no codebook and gets one: this, and the codes of the tokens that have
 * left the window. */
static sl_status begin_book(pq_cache *s, const sl_key_source *keys, int32_t layer, int32_t seq,
                            int32_t prompt, int32_t from, int32_t to, sl_err *err)
{
    const int32_t at = trained(s, prompt);
    if (to < at || from >= at)
        return SL_OK;
    SL_TRY(make_book(s, keys, layer, seq, at, err));
    const sl_codes_params p = {.keys = *keys,
                               .first = s->sinks,
                               .tokens = to - s->recent - s->sinks,
                               .parts = s->parts,
                               .k = s->k,
                               .centroids = book_of(s, layer, seq),
                               .codes = codes_at(s, layer, seq),
                               .ld_codes = s->dims.max_context};
    return sl_be_run(s->be, SL_OP_CODES, &p, err);
}

static sl_status pq_prompt(sl_algo *a, const sl_algo_prompt *p, sl_err *err)
{
    pq_cache *s = (pq_cache *)a;
    const sl_key_source keys = sl_algo_keys_of_prompt(&s->dims.cache, p, s->pages);
    const int32_t at = trained(s, p->tokens);
    SL_TRY(sl_be_copy(s->be, s->trained + p->seq, &at, sizeof at, err));
    SL_TRY(sl_be_copy(s->be, s->pages, p->host_pages, 4 * (size_t)sl_pages_for(p->n_cached), err));
    return begin_book(s, &keys, p->layer, p->seq, p->tokens, 0, p->n_cached, err);
}

/* The codes of the tokens that leave the window of a request with a codebook, whichever these are. */
static sl_status code_step(pq_cache *s, const sl_algo_call *call, sl_err *err)
{
    const int32_t layer = call->attn->layer;
    const sl_codes_step step = {.seqs = call->attn->seqs, .trained = s->trained, .recent = s->recent};
    const sl_codes_params p = {.keys = {.rows = call->rows,
                                        .host = call->host_rows,
                                        .heads = s->dims.cache.kv_heads,
                                        .dim = s->dims.cache.head_dim,
                                        .format = s->dims.cache.rows->format},
                               .step = &step,
                               .tokens = call->attn->seqs->n_tokens,
                               .parts = s->parts,
                               .k = s->k,
                               .centroids = book_of(s, layer, 0),
                               .codes = codes_at(s, layer, 0),
                               .ld_codes = s->dims.max_context};
    return sl_be_run(s->be, SL_OP_CODES, &p, err);
}

static sl_status pq_update(sl_algo *a, const sl_algo_call *call, sl_err *err)
{
    pq_cache *s = (pq_cache *)a;
    for (int32_t i = 0; i < call->n_runs; i++) {
        const sl_algo_run *run = &call->runs[i];
        const sl_key_source keys = sl_algo_keys_of_run(&s->dims.cache, call, run);
        SL_TRY(
            begin_book(s, &keys, call->attn->layer, run->seq, run->prompt, run->pos, run->pos + run->n, err));
    }
    return code_step(s, call, err);
}

/* Whether a run gets its codebook. */
static bool pq_once(const sl_algo *a, const sl_algo_run *runs, int32_t n_runs)
{
    const pq_cache *s = (const pq_cache *)a;
    for (int32_t i = 0; i < n_runs; i++) {
        const int32_t at = trained(s, runs[i].prompt);
        if (runs[i].pos < at && runs[i].pos + runs[i].n >= at)
            return true;
    }
    return false;
}

/* ---- lists ---- */

static sl_status write_scores(sl_algo *a, const sl_algo_call *call, const sl_score_slice *slice, sl_err *err)
{
    pq_cache *s = (pq_cache *)a;
    const sl_attn_call *c = call->attn;
    const sl_code_scores_params p = {.q = c->gqa.attn.q,
                                     .seqs = c->seqs,
                                     .centroids = book_of(s, c->layer, 0),
                                     .codes = codes_at(s, c->layer, 0),
                                     .scores = s->scores.scores,
                                     .token_first = slice->first,
                                     .token_count = slice->count,
                                     .heads = c->gqa.attn.heads,
                                     .kv_heads = s->dims.cache.kv_heads,
                                     .dim = s->dims.cache.head_dim,
                                     .parts = s->parts,
                                     .k = s->k,
                                     .ld_codes = s->dims.max_context,
                                     .ld_scores = slice->ld,
                                     .sinks = s->sinks,
                                     .recent = s->recent,
                                     .from_pos = slice->from_pos,
                                     .scale = c->gqa.attn.scale};
    return sl_be_run(s->be, SL_OP_CODE_SCORES, &p, err);
}

/* Lists of everything: all tokens are before dense_below, and no score is read. */
static sl_status take_all(const pq_cache *s, const sl_algo_call *call, int32_t first, int32_t count,
                          int32_t *ids, sl_err *err)
{
    const sl_seq_tables seqs = sl_seq_tables_slice(call->attn->seqs, first, count);
    const sl_topk_params t = {.scores = s->scores.scores,
                              .seqs = &seqs,
                              .ids = ids,
                              .token_count = count,
                              .k = 1,
                              .ld_scores = call->max_pos + 1,
                              .ld_ids = call->k,
                              .dense_below = call->k,
                              .lists = call->lists};
    return sl_be_run(s->be, SL_OP_TOPK, &t, err);
}

/* Of the step's tokens from `at` on: how many do the same as the first of them, up to `end`. Tokens before the codebook read
 * everything, and so does padding. */
static int32_t alike(const pq_cache *s, const sl_algo_call *call, int32_t at, int32_t end, bool *selects)
{
    int32_t n = 0;
    for (int32_t i = 0; i < call->n_runs && at + n < end; i++) {
        const sl_algo_run *run = &call->runs[i];
        const int32_t of_run = run->first + run->n, edge = trained(s, run->prompt) - run->pos + run->first;
        while (at + n < of_run && at + n < end) {
            const bool now = at + n >= edge;
            if (n > 0 && now != *selects)
                return n;
            *selects = now;
            int32_t to = now || edge > of_run ? of_run : edge;
            n = (to < end ? to : end) - at;
        }
    }
    if (n > 0)
        return n;
    *selects = false;
    return end - at;
}

/* Whether a token of the step is one of a prompt. Elsewhere a token without a codebook is at a position below the budget, so
 * that top-k takes everything; a step that may be a graph then has the same ops whatever its runs are. */
static bool in_prompts(const sl_algo_call *call)
{
    for (int32_t i = 0; i < call->n_runs; i++)
        if (call->runs[i].pos < call->runs[i].prompt)
            return true;
    return false;
}

static sl_status pq_retrieve(sl_algo *a, const sl_algo_call *call, int32_t first, int32_t count, int32_t *ids,
                             sl_err *err)
{
    pq_cache *s = (pq_cache *)a;
    const sl_best best = {.budget = most_tokens(&s->dims, call->attn->layer),
                          .sinks = s->sinks,
                          .recent = s->recent,
                          .mass = options_of(&s->dims.cache).list_mass,
                          .limits = sl_limits_at(&s->limits, call->attn->layer),
                          .score = write_scores};
    /* Without a codebook there are no scores by which a list could be cut. */
    sl_algo_call mine = *call;
    if (mine.dense_below < s->budget && (best.mass > 0 || best.limits))
        mine.dense_below = s->budget < call->k ? s->budget : call->k;
    call = &mine;
    if (!in_prompts(call))
        return sl_by_scores_retrieve(&s->scores, &best, a, call, first, count, ids, err);
    for (int32_t done = 0; done < count;) {
        bool selects = false;
        const int32_t at = first + done, n = alike(s, call, at, first + count, &selects);
        int32_t *to = ids + (int64_t)done * call->lists * call->k;
        SL_TRY(selects ? sl_by_scores_retrieve(&s->scores, &best, a, call, at, n, to, err)
                       : take_all(s, call, at, n, to, err));
        done += n;
    }
    return SL_OK;
}

/* The last token alone: the codebook is made when it is computed, or from pages that have it. */
static int32_t pq_prompt_window(const sl_cache_dims *d)
{
    (void)d;
    return 1;
}

const sl_algo_desc sl_algo_pq_cache = {
    .name = "pq_cache",
    .description = "tokens with the largest products of the query with their quantised keys",
    .action = SL_ACTION_VISIBILITY,
    .options = &table,
    .needs_kv_heads = true,
    .constant_k = true,
    .budget_key = "token_budget",
    .default_sinks = DEFAULT_SINKS,
    .prefix_reuse = true,
    .chunked_prefill = true,
    .disaggregation = true,
    .selector = pq_selector,
    .check = pq_check,
    .width = pq_width,
    .layer_width = pq_layer_width,
    .prepare = pq_prepare,
    .device_bytes = pq_device_bytes,
    .scratch = pq_scratch,
    .query_bytes = pq_query_bytes,
    .create = pq_create,
    .destroy = pq_destroy,
    .prompt = pq_prompt,
    .prompt_window = pq_prompt_window,
    .update = pq_update,
    .once = pq_once,
    .retrieve = pq_retrieve,
};
