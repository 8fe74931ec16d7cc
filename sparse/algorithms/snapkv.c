/*
 * snapkv: what the last tokens of a prompt attended to (arXiv 2404.14469), for models with KV heads. The prompt is
 * computed dense. At its end the queries of its last tokens, the observation window, vote for the keys before them
 * (kernels/window.h); every KV head keeps its best ones. Tokens after the prompt read the kept tokens, the window, and
 * the newest generated tokens.
 *
 * Where the selection happens. The window's queries are kept on the device as its tokens are computed, in whichever
 * steps that happens, and when the last token of the prompt is computed its layer selects. Everything that decides is
 * therefore a function of the prompt's tokens and their number: chunks, batches and the worker do not matter. The
 * request says where its prompt ends, also when it is computed again after a failure together with tokens that were
 * generated before: those tokens use the lists, as they did the first time.
 *
 * Where the selection lies. The kept positions of every KV head are metadata of the page with the prompt's last token,
 * in the host pages only. They travel with the page, and its checksum covers them. All rows stay in the host store: the
 * pages of a prompt are those of dense attention and can be shared by prefix, up to the window, and the next turn of a
 * conversation selects anew among all tokens.
 *
 *   metadata of a page and KV head: tokens of the prompt i32 | number of kept tokens i32 | gaps u16 [CAPACITY]
 *   gap: skipped tokens before the next kept one; 0xffff: 65,535 skipped tokens, and no kept one
 */
#include "sparse/algorithm.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/gqa.h"
#include "sparse/sparse.h"

enum {
    DEFAULT_BUDGET = 2048,
    DEFAULT_WINDOW = 32,
    DEFAULT_KERNEL = 5,
    HEADER = 8,     /* bytes */
    SKIP = 0xffff,  /* a gap that stands for as many tokens, none of which is kept */
    MOST_SKIPS = 32 /* contexts of up to 2M tokens */
};

typedef struct snapkv {
    sl_algo base;
    sl_backend *be;
    sl_algo_dims dims;
    int32_t plane, window, most; /* most: kept tokens of a list */
    float *queries;              /* device [layers][seqs][window][query heads][dim] */
    float *votes;                /* device [kv_heads][max_context] */
    int32_t *kept;               /* device [layers][seqs][kv_heads][most] */
    int32_t *prompts;            /* device [seqs][2], see sl_kept_lists_params */
    int32_t *place; /* device, sl_seq_tables of the token that top-k sees: token_seq, token_pos */
    int32_t *list;  /* host [most] */
} snapkv;

static int32_t window_of(const sl_cache_dims *d)
{
    return d->select.window > 0 ? d->select.window : DEFAULT_WINDOW;
}

static int32_t budget_of(const sl_cache_dims *d)
{
    return d->select.prompt_budget > 0 ? d->select.prompt_budget : DEFAULT_BUDGET;
}

static int32_t kernel_of(const sl_cache_dims *d)
{
    return d->select.kernel > 0 ? d->select.kernel : DEFAULT_KERNEL;
}

static int32_t most_kept(const sl_cache_dims *d)
{
    return budget_of(d) > window_of(d) ? budget_of(d) - window_of(d) : 0;
}

static sl_selector snapkv_selector(const sl_cache_dims *d)
{
    (void)d;
    return (sl_selector){.unit_tokens = 1,
                         .block_tokens = 1,
                         .key = SL_KEY_STORED,
                         .score = SL_SCORE_RAW,
                         .scope = SL_SCOPE_KV_HEAD};
}

/* ---- the metadata of a page ---- */

static int32_t gap_entries(const sl_cache_dims *d)
{
    return most_kept(d) + MOST_SKIPS;
}

static int32_t snapkv_planes(const sl_cache_dims *d, sl_cache_plane *out, int32_t most)
{
    if (most < 1)
        return 0;
    *out = (sl_cache_plane){.name = "kept",
                            .format = "snapkv_gaps",
                            .role = SL_PLANE_META,
                            .scope = SL_SCOPE_KV_HEAD,
                            .host_only = true,
                            .heads = d->kv_heads,
                            .unit_tokens = SL_PAGE_TOKENS,
                            .n_parts = 1};
    out->parts[0] = (sl_cache_part){.name = "gaps",
                                    .dtype = SL_I32,
                                    .per = SL_PER_OPEN_UNIT,
                                    .count = HEADER / 4 + (gap_entries(d) + 1) / 2};
    return 1;
}

static void put_gaps(int32_t prompt, const int32_t *kept, int32_t n, int32_t entries, uint8_t *out)
{
    const int32_t header[2] = {prompt, n};
    int32_t at = 0, next = 0;
    memcpy(out, header, HEADER);
    memset(out + HEADER, 0, 2 * (size_t)entries);
    for (int32_t i = 0; i < n; i++) {
        int32_t gap = kept[i] - next;
        for (; gap >= SKIP && at < entries; gap -= SKIP)
            memset(out + HEADER + 2 * (size_t)at++, 0xff, 2);
        SL_CHECK(at < entries, "%d kept tokens of %d do not fit", n, prompt);
        const uint16_t g = (uint16_t)gap;
        memcpy(out + HEADER + 2 * (size_t)at++, &g, 2);
        next = kept[i] + 1;
    }
}

/* False: these are not the tokens that a prompt of this length keeps. They came from another process. */
static bool take_gaps(const uint8_t *in, int32_t entries, int32_t prompt, int32_t n, int32_t before,
                      int32_t *kept)
{
    int32_t header[2], at = 0, next = 0;
    memcpy(header, in, HEADER);
    if (header[0] != prompt || header[1] != n)
        return false;
    for (int32_t i = 0; i < n;) {
        uint16_t g;
        if (at == entries)
            return false;
        memcpy(&g, in + HEADER + 2 * (size_t)at++, 2);
        next += g;
        if (next >= before)
            return false;
        if (g != SKIP)
            kept[i++] = next++;
    }
    return true;
}

static uint8_t *unit_of(const snapkv *s, const sl_algo_plane *plane, int32_t page, int32_t head)
{
    return plane->host.base + page * plane->host.page_stride +
           head * sl_cache_unit_bytes(&s->dims.shape.planes[s->plane]);
}

/* Tokens before the window of a prompt, and how many of them are kept. */
static int32_t before_window(const snapkv *s, int32_t prompt)
{
    return prompt > s->window ? prompt - s->window : 0;
}

static int32_t n_kept(const snapkv *s, int32_t prompt)
{
    int32_t before = before_window(s, prompt);
    return before < s->most ? before : s->most;
}

static int64_t request_at(const snapkv *s, int32_t layer, int32_t seq)
{
    return (int64_t)layer * s->dims.max_seqs + seq;
}

static int32_t *kept_of(const snapkv *s, int32_t layer, int32_t seq)
{
    return s->kept + request_at(s, layer, seq) * s->dims.cache.kv_heads * s->most;
}

/* ---- life ---- */

static sl_status snapkv_check(const sl_algo_dims *d, const sl_gates *g, sl_err *err)
{
    const sl_cache_dims *c = &d->cache;
    if (c->query_heads < 1 || c->query_heads % c->kv_heads)
        return sl_fail(err, SL_ERR_INVALID, "snapkv: %d query heads for %d KV heads", c->query_heads,
                       c->kv_heads);
    if (kernel_of(c) % 2 == 0)
        return sl_fail(err, SL_ERR_INVALID, "snapkv: kernel_size %d is even", kernel_of(c));
    if (g->recent_tokens > 0)
        return sl_fail(
            err, SL_ERR_INVALID,
            "snapkv: recent_tokens is %d, but window_size and output_tokens say what is read of the newest "
            "tokens",
            g->recent_tokens);
    if (d->max_context > MOST_SKIPS * SKIP)
        return sl_fail(err, SL_ERR_TOO_LARGE, "snapkv: a context of %d tokens, at most %d are possible",
                       d->max_context, MOST_SKIPS * SKIP);
    if ((int64_t)budget_of(c) < (int64_t)window_of(c) + 1 + g->sink_tokens)
        return sl_fail(
            err, SL_ERR_INVALID,
            "snapkv: prompt_budget %d leaves nothing to select after window_size %d and sink_tokens %d",
            budget_of(c), window_of(c), g->sink_tokens);
    return SL_OK;
}

static int32_t snapkv_width(const sl_algo_dims *d, int32_t dense_below)
{
    const int32_t output = d->cache.select.output_tokens;
    int64_t w = output > 0 ? (int64_t)budget_of(&d->cache) + output : d->max_context;
    w = w > dense_below ? w : dense_below;
    return w < d->max_context ? (int32_t)w : d->max_context;
}

typedef struct sizes {
    uint64_t queries, votes, kept, prompts, place; /* bytes */
} sizes;

static sizes sizes_of(const sl_algo_dims *d)
{
    const sl_cache_dims *c = &d->cache;
    const uint64_t requests = (uint64_t)d->n_layers * (uint64_t)d->max_seqs;
    return (sizes){.queries = 4 * requests * (uint64_t)window_of(c) * (uint64_t)c->query_heads *
                              (uint64_t)c->head_dim,
                   .votes = 4 * (uint64_t)c->kv_heads * (uint64_t)d->max_context,
                   .kept = 4 * requests * (uint64_t)c->kv_heads * (uint64_t)most_kept(c),
                   .prompts = 8 * (uint64_t)d->max_seqs,
                   .place = 8};
}

static uint64_t snapkv_device_bytes(const sl_algo_dims *d)
{
    const sizes z = sizes_of(d);
    return z.queries + z.votes + z.kept + z.prompts + z.place;
}

static void snapkv_destroy(sl_algo *a)
{
    snapkv *s = (snapkv *)a;
    if (!s)
        return;
    sl_be_free(s->be, SL_MEM_DEVICE, s->place);
    sl_be_free(s->be, SL_MEM_DEVICE, s->prompts);
    sl_be_free(s->be, SL_MEM_DEVICE, s->kept);
    sl_be_free(s->be, SL_MEM_DEVICE, s->votes);
    sl_be_free(s->be, SL_MEM_DEVICE, s->queries);
    free(s->list);
    free(s);
}

static sl_status allocate(snapkv *s, sl_err *err)
{
    const sizes z = sizes_of(&s->dims);
    s->list = calloc((size_t)s->most, sizeof *s->list);
    if (!s->list)
        return sl_fail(err, SL_ERR_NO_MEMORY, "snapkv: out of memory");
    SL_TRY(sl_be_alloc(s->be, SL_MEM_DEVICE, z.queries, (void **)&s->queries, err));
    SL_TRY(sl_be_alloc(s->be, SL_MEM_DEVICE, z.votes, (void **)&s->votes, err));
    SL_TRY(sl_be_alloc(s->be, SL_MEM_DEVICE, z.kept, (void **)&s->kept, err));
    SL_TRY(sl_be_alloc(s->be, SL_MEM_DEVICE, z.prompts, (void **)&s->prompts, err));
    SL_TRY(sl_be_alloc(s->be, SL_MEM_DEVICE, z.place, (void **)&s->place, err));
    return sl_be_fill(s->be, s->prompts, 0, z.prompts, err);
}

static sl_status snapkv_create(sl_backend *be, const sl_algo_dims *d, sl_algo **out, sl_err *err)
{
    snapkv *s = calloc(1, sizeof *s);
    if (!s)
        return sl_fail(err, SL_ERR_NO_MEMORY, "snapkv: out of memory");
    *s = (snapkv){.base.desc = &sl_algo_snapkv,
                  .be = be,
                  .dims = *d,
                  .plane = sl_cache_find(&d->shape, SL_PLANE_META),
                  .window = window_of(&d->cache),
                  .most = most_kept(&d->cache)};
    sl_status st = allocate(s, err);
    if (st != SL_OK)
        goto destroy;
    *out = &s->base;
    return SL_OK;
destroy:
    snapkv_destroy(&s->base);
    return st;
}

/* ---- a prompt ---- */

/* Takes the selection of a prompt whose rows exist from the page that holds its last token. */
static sl_status load_kept(snapkv *s, const sl_algo_prompt *p, sl_err *err)
{
    const sl_algo_plane *plane = &p->planes[s->plane];
    const int32_t n = n_kept(s, p->tokens), before = before_window(s, p->tokens);
    const int32_t page = p->host_pages[(p->tokens - 1) / SL_PAGE_TOKENS];
    for (int32_t h = 0; h < s->dims.cache.kv_heads; h++) {
        if (!take_gaps(unit_of(s, plane, page, h), gap_entries(&s->dims.cache), p->tokens, n, before,
                       s->list))
            return sl_fail(
                err, SL_ERR_INVALID,
                "snapkv: the pages do not have the tokens that layer %d keeps of a prompt of %d tokens",
                p->layer, p->tokens);
        if (n > 0)
            SL_TRY(sl_be_copy(s->be, kept_of(s, p->layer, p->seq) + (int64_t)h * s->most, s->list,
                              4 * (size_t)n, err));
    }
    return SL_OK;
}

static sl_status snapkv_prompt(sl_algo *a, const sl_algo_prompt *p, sl_err *err)
{
    snapkv *s = (snapkv *)a;
    const int32_t entry[2] = {p->tokens, n_kept(s, p->tokens)};
    if (p->n_cached > before_window(s, p->tokens) && p->n_cached < p->tokens)
        return sl_fail(
            err, SL_ERR_INVALID,
            "snapkv: %d of %d tokens of a prompt are cached, but its last %d tokens must be computed",
            p->n_cached, p->tokens, s->window);
    SL_TRY(sl_be_copy(s->be, s->prompts + 2 * (int64_t)p->seq, entry, sizeof entry, err));
    return p->n_cached >= p->tokens ? load_kept(s, p, err) : SL_OK;
}

/* The votes of all KV heads for the tokens before the window, and from them the kept tokens. */
static sl_status vote(snapkv *s, const sl_algo_call *call, const sl_algo_run *run, sl_err *err)
{
    const sl_attn_call *c = call->attn;
    const sl_cache_dims *d = &s->dims.cache;
    const int32_t before = before_window(s, run->prompt), last[2] = {0, before - 1};
    const int64_t at = request_at(s, c->layer, run->seq);
    sl_window_votes_params v = {.q = s->queries + at * s->window * d->query_heads * d->head_dim,
                                .row_pages = c->seqs->row_pages + (int64_t)run->seq * c->seqs->ld,
                                .rows = call->rows,
                                .votes = s->votes,
                                .tokens = run->prompt,
                                .window = s->window,
                                .heads = d->query_heads,
                                .kv_heads = d->kv_heads,
                                .dim = d->head_dim,
                                .ld_votes = s->dims.max_context,
                                .kernel = kernel_of(d),
                                .pooling = d->select.pooled ? d->select.pooling : SL_POOLING_AVG,
                                .scale = c->gqa.attn.scale,
                                .format = d->rows->format};
    SL_TRY(sl_be_run(s->be, SL_OP_WINDOW_VOTES, &v, err));
    SL_TRY(sl_be_copy(s->be, s->place, last, sizeof last, err));
    sl_seq_tables seqs = {
        .n_tokens = 1, .n_seqs = 1, .ld = c->seqs->ld, .token_seq = s->place, .token_pos = s->place + 1};
    sl_topk_params t = {.scores = s->votes,
                        .seqs = &seqs,
                        .ids = kept_of(s, c->layer, run->seq),
                        .token_count = 1,
                        .k = s->most,
                        .ld_scores = s->dims.max_context,
                        .ld_ids = s->most,
                        .sinks = s->dims.sinks,
                        .lists = d->kv_heads};
    return sl_be_run(s->be, SL_OP_TOPK, &t, err);
}

/* The prompt of the run ends in this step: selects, and writes the selection into the page of its last token. Device
 * memory is host memory (host_only), and ops have completed when run returns. */
static sl_status select_once(snapkv *s, const sl_algo_call *call, const sl_algo_run *run, sl_err *err)
{
    const sl_attn_call *c = call->attn;
    const int32_t n = n_kept(s, run->prompt);
    int32_t *kept = kept_of(s, c->layer, run->seq);
    if (before_window(s, run->prompt) > s->most) {
        SL_TRY(vote(s, call, run, err));
    } else { /* everything is kept */
        for (int32_t h = 0; h < s->dims.cache.kv_heads; h++)
            for (int32_t i = 0; i < n; i++)
                kept[(int64_t)h * s->most + i] = i;
    }
    const sl_algo_plane *plane = &call->planes[s->plane];
    if (!plane->host.base)
        return SL_OK;
    int32_t page = c->seqs->host_pages[(int64_t)run->seq * c->seqs->ld + (run->prompt - 1) / SL_PAGE_TOKENS];
    for (int32_t h = 0; h < s->dims.cache.kv_heads; h++)
        put_gaps(run->prompt, kept + (int64_t)h * s->most, n, gap_entries(&s->dims.cache),
                 unit_of(s, plane, page, h));
    return SL_OK;
}

/* The pages that begin in this run have no selection yet: zeros, so that their bytes do not depend on earlier requests. */
static void clear_pages(const snapkv *s, const sl_algo_call *call, const sl_algo_run *run)
{
    const sl_algo_plane *plane = &call->planes[s->plane];
    const int32_t *pages = call->attn->seqs->host_pages + (int64_t)run->seq * call->attn->seqs->ld;
    if (!plane->host.base)
        return;
    for (int32_t i = sl_pages_for(run->pos); i < sl_pages_for((int64_t)run->pos + run->n); i++)
        memset(unit_of(s, plane, pages[i], 0), 0,
               (size_t)sl_cache_page_bytes(&s->dims.shape.planes[s->plane]));
}

static sl_status snapkv_update(sl_algo *a, const sl_algo_call *call, sl_err *err)
{
    snapkv *s = (snapkv *)a;
    const sl_cache_dims *d = &s->dims.cache;
    const int64_t width = (int64_t)d->query_heads * d->head_dim;
    for (int32_t i = 0; i < call->n_runs; i++) {
        const sl_algo_run *run = &call->runs[i];
        const int32_t window = before_window(s, run->prompt), end = run->pos + run->n;
        const int32_t from = run->pos > window ? run->pos : window,
                      to = end < run->prompt ? end : run->prompt;
        float *queries = s->queries + request_at(s, call->attn->layer, run->seq) * s->window * width;
        clear_pages(s, call, run);
        if (from >= to)
            continue;
        SL_TRY(sl_be_copy(s->be, queries + (from - window) * width,
                          call->attn->gqa.attn.q + (run->first + (int64_t)from - run->pos) * width,
                          (size_t)((to - from) * width) * sizeof(float), err));
        if (to == run->prompt)
            SL_TRY(select_once(s, call, run, err));
    }
    return SL_OK;
}

static sl_status snapkv_retrieve(sl_algo *a, const sl_algo_call *call, int32_t first, int32_t count,
                                 int32_t *ids, sl_err *err)
{
    snapkv *s = (snapkv *)a;
    sl_kept_lists_params p = {.seqs = call->attn->seqs,
                              .prompts = s->prompts,
                              .kept = kept_of(s, call->attn->layer, 0),
                              .ids = ids,
                              .token_first = first,
                              .token_count = count,
                              .lists = call->lists,
                              .ld_kept = s->most,
                              .ld_ids = call->k,
                              .window = s->window,
                              .output = s->dims.cache.select.output_tokens,
                              .dense_below = call->dense_below};
    return sl_be_run(s->be, SL_OP_KEPT_LISTS, &p, err);
}

static int32_t snapkv_prompt_window(const sl_cache_dims *d)
{
    return window_of(d);
}

const sl_algo_desc sl_algo_snapkv = {
    .name = "snapkv",
    .description =
        "the tokens of the prompt to which its last tokens attended most, those, and what was generated",
    .action = SL_ACTION_VISIBILITY,
    .has_params = true,
    .needs_kv_heads = true,
    .host_only = true,
    .constant_k = true,
    .budget_key = "prompt_budget",
    .prefix_reuse = true,
    .chunked_prefill = true,
    .disaggregation = true,
    .selector = snapkv_selector,
    .planes = snapkv_planes,
    .check = snapkv_check,
    .width = snapkv_width,
    .device_bytes = snapkv_device_bytes,
    .create = snapkv_create,
    .destroy = snapkv_destroy,
    .prompt = snapkv_prompt,
    .prompt_window = snapkv_prompt_window,
    .update = snapkv_update,
    .retrieve = snapkv_retrieve,
};
