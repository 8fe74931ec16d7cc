/*
 * What a prompt keeps, see kept.h.
 *
 * Where the selection happens. The window's queries are kept on the device as its tokens are computed, in whichever
 * steps that happens, and when the last token of the prompt is computed its layer selects. Everything that decides is
 * therefore a function of the prompt's tokens and their number: chunks, batches and the worker do not matter. The
 * request says where its prompt ends, also when it is computed again after a failure together with tokens that were
 * generated before: those tokens use the lists, as they did the first time.
 *
 * Where the selection lies. The kept positions of every KV head are metadata of the page with the prompt's last token,
 * in the host pages only (SL_OP_KEPT_STORE says how). They travel with the page, and its checksum covers them.
 *
 * What runs where. Votes, top-k and the metadata of pages are ops, enqueued like all others, and nothing waits for the
 * device. The steps in which a prompt is computed run op by op (sl_algo_desc.once); in later steps update enqueues one op
 * that finds in the tables which pages begin, so that these steps can be graphs. The host itself reads the metadata when
 * it opens pages, which are complete then.
 */
#include "sparse/algorithms/kept.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_SKIPS = 32 /* contexts of up to 2M tokens */ };

static int32_t most_kept(const sl_kept_options *o)
{
    return o->prompt_budget > o->window_size ? o->prompt_budget - o->window_size : 0;
}

sl_selector sl_kept_selector(const sl_cache_dims *d)
{
    (void)d;
    return (sl_selector){.unit_tokens = 1,
                         .block_tokens = 1,
                         .key = SL_KEY_STORED,
                         .score = SL_SCORE_RAW,
                         .scope = SL_SCOPE_KV_HEAD};
}

/* ---- the metadata of a page ---- */

static int32_t gap_entries(const sl_kept_options *o)
{
    return most_kept(o) + MOST_SKIPS;
}

int32_t sl_kept_planes(const sl_cache_dims *d, const sl_kept_options *o, sl_cache_plane *out, int32_t most)
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
                                    .count = SL_KEPT_HEADER / 4 + (gap_entries(o) + 1) / 2};
    return 1;
}

/* False: these are not the tokens that a prompt of this length keeps. They came from another process. */
static bool take_gaps(const uint8_t *in, int32_t entries, int32_t prompt, int32_t n, int32_t before,
                      int32_t *kept)
{
    int32_t header[2], at = 0, next = 0;
    memcpy(header, in, SL_KEPT_HEADER);
    if (header[0] != prompt || header[1] != n)
        return false;
    for (int32_t i = 0; i < n;) {
        uint16_t g;
        if (at == entries)
            return false;
        memcpy(&g, in + SL_KEPT_HEADER + 2 * (size_t)at++, 2);
        next += g;
        if (next >= before)
            return false;
        if (g != SL_KEPT_SKIP)
            kept[i++] = next++;
    }
    return true;
}

static uint8_t *unit_of(const sl_kept *s, const sl_algo_plane *plane, int32_t page, int32_t head)
{
    return plane->host.base + page * plane->host.page_stride +
           head * sl_cache_unit_bytes(&s->dims.shape.planes[s->plane]);
}

/* Tokens before the window of a prompt, and how many of them are kept. */
int32_t sl_kept_before(const sl_kept *s, int32_t prompt)
{
    return prompt > s->window ? prompt - s->window : 0;
}

int32_t sl_kept_count(const sl_kept *s, int32_t prompt)
{
    int32_t before = sl_kept_before(s, prompt);
    return before < s->most ? before : s->most;
}

static int64_t request_at(const sl_kept *s, int32_t layer, int32_t seq)
{
    return (int64_t)layer * s->dims.max_seqs + seq;
}

int32_t *sl_kept_of(const sl_kept *s, int32_t layer, int32_t seq)
{
    return s->kept + request_at(s, layer, seq) * s->dims.cache.kv_heads * s->most;
}

/* ---- life ---- */

sl_status sl_kept_check(const char *name, const sl_algo_dims *d, const sl_gates *g, const sl_kept_options *o,
                        sl_err *err)
{
    const sl_cache_dims *c = &d->cache;
    if (c->query_heads < 1 || c->query_heads % c->kv_heads)
        return sl_fail(err, SL_ERR_INVALID, "%s: %d query heads for %d KV heads", name, c->query_heads,
                       c->kv_heads);
    if (o->kernel_size % 2 == 0)
        return sl_fail(err, SL_ERR_INVALID, "%s: kernel_size %d is even", name, o->kernel_size);
    if (d->max_context > MOST_SKIPS * SL_KEPT_SKIP)
        return sl_fail(err, SL_ERR_TOO_LARGE, "%s: a context of %d tokens, at most %d are possible", name,
                       d->max_context, MOST_SKIPS * SL_KEPT_SKIP);
    if ((int64_t)o->prompt_budget < (int64_t)o->window_size + 1 + g->sink_tokens)
        return sl_fail(
            err, SL_ERR_INVALID,
            "%s: prompt_budget %d leaves nothing to select after window_size %d and sink_tokens %d", name,
            o->prompt_budget, o->window_size, g->sink_tokens);
    return SL_OK;
}

typedef struct sizes {
    uint64_t queries, votes, kept, prompts, places; /* bytes */
} sizes;

static sizes sizes_of(const sl_algo_dims *d, const sl_kept_options *o)
{
    const sl_cache_dims *c = &d->cache;
    const uint64_t requests = (uint64_t)d->n_layers * (uint64_t)d->max_seqs;
    return (sizes){.queries = 4 * requests * (uint64_t)o->window_size * (uint64_t)c->query_heads *
                              (uint64_t)c->head_dim,
                   .votes = 4 * (uint64_t)c->kv_heads * (uint64_t)d->max_context,
                   .kept = 4 * requests * (uint64_t)c->kv_heads * (uint64_t)most_kept(o),
                   .prompts = 8 * (uint64_t)d->max_seqs,
                   .places = 8 * (uint64_t)d->max_seqs};
}

uint64_t sl_kept_device_bytes(const sl_algo_dims *d, const sl_kept_options *o)
{
    const sizes z = sizes_of(d, o);
    return z.queries + z.votes + z.kept + z.prompts + z.places;
}

void sl_kept_close(sl_kept *s)
{
    if (!s->be)
        return;
    sl_be_free(s->be, SL_MEM_DEVICE, s->places);
    sl_be_free(s->be, SL_MEM_DEVICE, s->prompts);
    sl_be_free(s->be, SL_MEM_DEVICE, s->kept);
    sl_be_free(s->be, SL_MEM_DEVICE, s->votes);
    sl_be_free(s->be, SL_MEM_DEVICE, s->queries);
    free(s->list);
}

static sl_status allocate(sl_kept *s, sl_err *err)
{
    const sizes z = sizes_of(&s->dims, &s->options);
    s->list = calloc((size_t)s->most, sizeof *s->list);
    if (!s->list)
        return sl_fail(err, SL_ERR_NO_MEMORY, "%s: out of memory", s->name);
    SL_TRY(sl_be_alloc(s->be, SL_MEM_DEVICE, z.queries, (void **)&s->queries, err));
    SL_TRY(sl_be_alloc(s->be, SL_MEM_DEVICE, z.votes, (void **)&s->votes, err));
    SL_TRY(sl_be_alloc(s->be, SL_MEM_DEVICE, z.kept, (void **)&s->kept, err));
    SL_TRY(sl_be_alloc(s->be, SL_MEM_DEVICE, z.prompts, (void **)&s->prompts, err));
    SL_TRY(sl_be_alloc(s->be, SL_MEM_DEVICE, z.places, (void **)&s->places, err));
    return sl_be_fill(s->be, s->prompts, 0, z.prompts, err);
}

sl_status sl_kept_open(sl_kept *s, const char *name, sl_backend *be, const sl_algo_dims *d,
                       const sl_kept_options *o, sl_err *err)
{
    *s = (sl_kept){.name = name,
                   .be = be,
                   .dims = *d,
                   .options = *o,
                   .plane = sl_cache_find(&d->shape, SL_PLANE_META),
                   .window = o->window_size,
                   .most = most_kept(o)};
    return allocate(s, err);
}

/* ---- a prompt ---- */

/* Takes the selection of a prompt whose rows exist from the page that holds its last token. */
static sl_status load_kept(sl_kept *s, const sl_algo_prompt *p, sl_err *err)
{
    const sl_algo_plane *plane = &p->planes[s->plane];
    const int32_t n = sl_kept_count(s, p->tokens), before = sl_kept_before(s, p->tokens);
    const int32_t page = p->host_pages[(p->tokens - 1) / SL_PAGE_TOKENS];
    for (int32_t h = 0; h < s->dims.cache.kv_heads; h++) {
        if (!take_gaps(unit_of(s, plane, page, h), gap_entries(&s->options), p->tokens, n, before, s->list))
            return sl_fail(
                err, SL_ERR_INVALID,
                "%s: the pages do not have the tokens that layer %d keeps of a prompt of %d tokens", s->name,
                p->layer, p->tokens);
        if (n > 0)
            SL_TRY(sl_be_copy(s->be, sl_kept_of(s, p->layer, p->seq) + (int64_t)h * s->most, s->list,
                              4 * (size_t)n, err));
    }
    return SL_OK;
}

sl_status sl_kept_prompt(sl_kept *s, const sl_algo_prompt *p, sl_err *err)
{
    const int32_t entry[2] = {p->tokens, sl_kept_count(s, p->tokens)};
    const int32_t place[2] = {0, sl_kept_before(s, p->tokens) - 1};
    if (p->n_cached > sl_kept_before(s, p->tokens) && p->n_cached < p->tokens)
        return sl_fail(err, SL_ERR_INVALID,
                       "%s: %d of %d tokens of a prompt are cached, but its last %d tokens must be computed",
                       s->name, p->n_cached, p->tokens, s->window);
    SL_TRY(sl_be_copy(s->be, s->prompts + 2 * (int64_t)p->seq, entry, sizeof entry, err));
    SL_TRY(sl_be_copy(s->be, s->places + 2 * (int64_t)p->seq, place, sizeof place, err));
    return p->n_cached >= p->tokens ? load_kept(s, p, err) : SL_OK;
}

/* The votes of all KV heads for the tokens before the window. */
static sl_status vote(sl_kept *s, const sl_algo_call *call, const sl_algo_run *run, sl_err *err)
{
    const sl_attn_call *c = call->attn;
    const sl_cache_dims *d = &s->dims.cache;
    const int64_t at = request_at(s, c->layer, run->seq);
    const sl_window_votes_params v = {.q = s->queries + at * s->window * d->query_heads * d->head_dim,
                                      .row_pages = c->seqs->row_pages + (int64_t)run->seq * c->seqs->ld,
                                      .rows = call->rows,
                                      .votes = s->votes,
                                      .tokens = run->prompt,
                                      .window = s->window,
                                      .heads = d->query_heads,
                                      .kv_heads = d->kv_heads,
                                      .dim = d->head_dim,
                                      .ld_votes = s->dims.max_context,
                                      .kernel = s->options.kernel_size,
                                      .pooling = (sl_pooling)s->options.pooling,
                                      .scale = c->gqa.attn.scale,
                                      .format = d->rows->format};
    return sl_be_run(s->be, SL_OP_WINDOW_VOTES, &v, err);
}

/* The prompt of the run ends in this step: chooses its kept tokens. Where all are kept, top-k does not read votes. */
static sl_status choose(sl_kept *s, const sl_algo_call *call, const sl_algo_run *run, sl_err *err)
{
    const sl_attn_call *c = call->attn;
    const int32_t before = sl_kept_before(s, run->prompt), *place = s->places + 2 * (int64_t)run->seq;
    if (before == 0)
        return SL_OK;
    if (before > s->most)
        SL_TRY(vote(s, call, run, err));
    const sl_seq_tables seqs = {
        .n_tokens = 1, .n_seqs = 1, .ld = c->seqs->ld, .token_seq = place, .token_pos = place + 1};
    const sl_topk_params t = {.scores = s->votes,
                              .seqs = &seqs,
                              .ids = sl_kept_of(s, c->layer, run->seq),
                              .token_count = 1,
                              .k = s->most,
                              .ld_scores = s->dims.max_context,
                              .ld_ids = s->most,
                              .sinks = s->dims.sinks,
                              .lists = s->dims.cache.kv_heads};
    return sl_be_run(s->be, SL_OP_TOPK, &t, err);
}

/* Keeps the queries of the run that are the window's, and chooses if the prompt ends. */
static sl_status see_run(sl_kept *s, const sl_algo_call *call, const sl_algo_run *run, sl_err *err)
{
    const sl_cache_dims *d = &s->dims.cache;
    const int64_t width = (int64_t)d->query_heads * d->head_dim;
    const int32_t window = sl_kept_before(s, run->prompt), end = run->pos + run->n;
    const int32_t from = run->pos > window ? run->pos : window, to = end < run->prompt ? end : run->prompt;
    float *queries = s->queries + request_at(s, call->attn->layer, run->seq) * s->window * width;
    if (from >= to)
        return SL_OK;
    SL_TRY(sl_be_copy(s->be, queries + (from - window) * width,
                      call->attn->gqa.attn.q + (run->first + (int64_t)from - run->pos) * width,
                      (size_t)((to - from) * width) * sizeof(float), err));
    return to == run->prompt ? choose(s, call, run, err) : SL_OK;
}

sl_status sl_kept_update(sl_kept *s, const sl_algo_call *call, sl_err *err)
{
    const sl_algo_plane *plane = &call->planes[s->plane];
    for (int32_t i = 0; i < call->n_runs; i++)
        SL_TRY(see_run(s, call, &call->runs[i], err));
    if (!plane->host.base)
        return SL_OK;
    const sl_kept_store_params p = {.seqs = call->attn->seqs,
                                    .prompts = s->prompts,
                                    .kept = sl_kept_of(s, call->attn->layer, 0),
                                    .host = plane->host,
                                    .lists = s->dims.cache.kv_heads,
                                    .ld_kept = s->most,
                                    .unit_bytes =
                                        (int32_t)sl_cache_unit_bytes(&s->dims.shape.planes[s->plane])};
    return sl_be_run(s->be, SL_OP_KEPT_STORE, &p, err);
}
