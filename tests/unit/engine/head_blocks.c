/* The double of head_blocks.h. */
#include "head_blocks.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "sparse/load.h"

head_blocks_options head_blocks;

typedef struct state {
    sl_algo base;
    sl_backend *be;
    sl_algo_dims dims;
    sl_row_view rows; /* how rows are divided; no memory */
    float *scores, *k, *v;
    int32_t plane, kv_heads, dim, lists, block, blocks; /* blocks: of the longest sequence */
    int32_t width;                                      /* floats of a bound in one unit of the plane */
} state;

static sl_selector selector(const sl_cache_dims *d)
{
    (void)d;
    return (sl_selector){.unit_tokens = head_blocks.block_tokens,
                         .block_tokens = head_blocks.block_tokens,
                         .key = SL_KEY_BOUNDS,
                         .score = SL_SCORE_BOUND,
                         .scope = head_blocks.scope,
                         .force_first = 1,
                         .force_last = 1};
}

static int32_t planes(const sl_cache_dims *d, sl_cache_plane *out, int32_t most)
{
    bool by_head = head_blocks.scope == SL_SCOPE_KV_HEAD;
    if (most < 1)
        return 0;
    *out = (sl_cache_plane){.name = "bounds",
                            .format = "f32",
                            .role = SL_PLANE_META,
                            .scope = head_blocks.scope,
                            .heads = by_head ? d->kv_heads : 1,
                            .unit_tokens = head_blocks.block_tokens,
                            .n_parts = 2};
    int32_t count = d->head_dim * (by_head ? 1 : d->kv_heads);
    out->parts[0] = (sl_cache_part){.name = "min", .dtype = SL_F32, .per = SL_PER_OPEN_UNIT, .count = count};
    out->parts[1] = (sl_cache_part){.name = "max", .dtype = SL_F32, .per = SL_PER_OPEN_UNIT, .count = count};
    return 1;
}

static int32_t width(const sl_algo_dims *d, int32_t dense_below)
{
    int32_t w = head_blocks.budget_tokens > dense_below ? head_blocks.budget_tokens : dense_below;
    return w < d->max_context ? w : d->max_context;
}

static int64_t score_floats(const sl_algo_dims *d)
{
    int64_t blocks = (d->max_context + head_blocks.block_tokens - 1) / head_blocks.block_tokens;
    int32_t lists = head_blocks.scope == SL_SCOPE_KV_HEAD ? d->cache.kv_heads : 1;
    return blocks * d->max_step_tokens * lists;
}

static uint64_t device_bytes(const sl_algo_dims *d)
{
    return 4 * ((uint64_t)score_floats(d) + 2 * (uint64_t)d->cache.head_dim);
}

static void destroy(sl_algo *a)
{
    state *s = (state *)a;
    if (!s)
        return;
    sl_be_free(s->be, SL_MEM_DEVICE, s->scores);
    free(s);
}

static sl_status create(sl_backend *be, const sl_algo_dims *d, sl_algo **out, sl_err *err)
{
    if (!(sl_backend_caps(be) & SL_BE_UNIFIED))
        return sl_fail(err, SL_ERR_UNSUPPORTED, "head_blocks: the backend's memory is not the host's");
    state *s = calloc(1, sizeof *s);
    if (!s)
        return sl_fail(err, SL_ERR_NO_MEMORY, "head_blocks: out of memory");
    *s = (state){.base.desc = &head_blocks_algo, .be = be, .dims = *d};
    const sl_cache_plane *rows = &d->shape.planes[SL_CACHE_ROWS];
    s->plane = sl_cache_find(&d->shape, SL_PLANE_META);
    s->kv_heads = d->cache.kv_heads, s->dim = d->cache.head_dim;
    s->lists = rows->heads, s->block = rows->unit_tokens;
    s->blocks = (d->max_context + s->block - 1) / s->block;
    s->width = d->shape.planes[s->plane].parts[0].count;
    s->rows.heads = rows->scope == SL_SCOPE_KV_HEAD ? rows->heads : 0;
    while (1 << s->rows.block_log2 < s->block)
        s->rows.block_log2++;
    s->rows.row_bytes = sl_cache_unit_bytes(rows);
    sl_status st = sl_be_alloc(be, SL_MEM_DEVICE, (size_t)device_bytes(d), (void **)&s->scores, err);
    if (st != SL_OK)
        goto destroy;
    s->k = s->scores + score_floats(d), s->v = s->k + s->dim;
    *out = &s->base;
    return SL_OK;
destroy:
    destroy(&s->base);
    return st;
}

/* The bounds of a list's block within a page: smallest values, then largest. */
static float *bounds_in(const state *s, uint8_t *page, int64_t unit_stride, int32_t pos, int32_t list)
{
    int64_t unit = pos % SL_PAGE_TOKENS / s->block;
    return (float *)(void *)(page + unit * unit_stride + list * 2 * (int64_t)s->width * 4);
}

/* The key of one token and head, as attention reads it; it stays in s->k. */
static void read_key(const state *s, const sl_host_plane *host, int32_t page, int32_t pos, int32_t head)
{
    const uint8_t *row =
        host->base + page * host->page_stride + pos % SL_PAGE_TOKENS / s->block * host->row_stride;
    int32_t heads = sl_gqa_row_heads(&s->rows, s->kv_heads), slots = sl_gqa_row_slots(&s->rows, s->kv_heads);
    if (s->rows.heads)
        row += head * s->rows.row_bytes, head = 0;
    sl_gqa_row_decode(s->dims.cache.rows->format, slots, s->dim, row, pos % s->block * heads + head, s->k,
                      s->v);
}

/* Adds the token at pos to the bounds of its block, on the device and, if write, in the host page. */
static void fold(const state *s, const sl_algo_plane *p, const sl_host_plane *rows, int32_t host_page,
                 int32_t device_page, int32_t pos, bool write)
{
    const int32_t per = s->kv_heads / s->lists; /* heads of a list */
    const int64_t unit = s->lists * 2 * (int64_t)s->width * 4;
    for (int32_t h = 0; h < s->kv_heads; h++) {
        float *b =
            bounds_in(s, p->device + device_page * p->device_stride, unit, pos, h / per) + h % per * s->dim;
        float *most = b + s->width;
        read_key(s, rows, host_page, pos, h);
        for (int32_t i = 0; i < s->dim; i++) {
            b[i] = pos % s->block == 0 || s->k[i] < b[i] ? s->k[i] : b[i];
            most[i] = pos % s->block == 0 || s->k[i] > most[i] ? s->k[i] : most[i];
        }
    }
    for (int32_t l = 0; write && l < s->lists; l++)
        memcpy(bounds_in(s, p->host.base + host_page * p->host.page_stride, p->host.row_stride, pos, l),
               bounds_in(s, p->device + device_page * p->device_stride, unit, pos, l), 8 * (size_t)s->width);
}

static sl_status update(sl_algo *a, const sl_algo_call *call, sl_err *err)
{
    state *s = (state *)a;
    const sl_seq_tables *t = call->attn->seqs;
    (void)err;
    for (int32_t i = 0; i < t->n_tokens; i++) {
        int64_t entry = (int64_t)t->token_seq[i] * t->ld + t->token_pos[i] / SL_PAGE_TOKENS;
        if (t->token_seq[i] >= 0)
            fold(s, &call->planes[s->plane], &call->host_rows, t->host_pages[entry], t->index_pages[entry],
                 t->token_pos[i], true);
    }
    return SL_OK;
}

/* The bounds of finished blocks are copied. Those of an open block are made again, because a page that is shared with a
 * longer request may hold bounds of more tokens. */
static sl_status construct(sl_algo *a, const sl_algo_pages *p, sl_err *err)
{
    state *s = (state *)a;
    const sl_algo_plane *plane = &p->planes[s->plane];
    SL_TRY(sl_load_plane(s->be, &s->dims.shape.planes[s->plane], plane, p->host_pages, p->device_pages,
                         p->n_pages, err));
    for (int32_t pos = p->n_tokens / s->block * s->block; pos < p->n_tokens; pos++)
        fold(s, plane, &p->host_rows, p->host_pages[pos / SL_PAGE_TOKENS],
             p->device_pages[pos / SL_PAGE_TOKENS], pos, false);
    return SL_OK;
}

static float bound_of(const float *q, const float *least, const float *most, int32_t dim)
{
    float sum = 0;
    for (int32_t i = 0; i < dim; i++)
        sum += q[i] * (q[i] > 0 ? most[i] : least[i]);
    return sum;
}

/* Scores of all blocks before that of pos, for one list of token t. */
static void score_blocks(const state *s, const sl_algo_call *call, int32_t t, int32_t list, float *out)
{
    const sl_attn_call *c = call->attn;
    const sl_algo_plane *p = &call->planes[s->plane];
    const int32_t heads = c->gqa.attn.heads, n_q = heads / s->lists, group = heads / s->kv_heads;
    const int32_t *pages = c->seqs->index_pages + (int64_t)c->seqs->token_seq[t] * c->seqs->ld;
    const float *q = c->gqa.attn.q + ((int64_t)t * heads + (int64_t)list * n_q) * s->dim;
    for (int32_t b = 0; b < c->seqs->token_pos[t] / s->block; b++) {
        int32_t pos = b * s->block;
        const float *least = bounds_in(s, p->device + pages[pos / SL_PAGE_TOKENS] * p->device_stride,
                                       s->lists * 2 * (int64_t)s->width * 4, pos, list);
        out[b] = -INFINITY;
        for (int32_t h = 0; h < n_q; h++) {
            const float *of_head = least + h / group * s->dim; /* 0 where the list is of one KV head */
            out[b] = fmaxf(out[b], bound_of(q + h * s->dim, of_head, of_head + s->width, s->dim));
        }
    }
}

static void tell(const state *s, const sl_algo_call *call, int32_t t, int32_t list, const int32_t *ids)
{
    const sl_attn_call *c = call->attn;
    const int32_t heads = c->gqa.attn.heads, n_q = heads / s->lists;
    head_blocks_list l = {.layer = c->layer,
                          .seq = c->seqs->token_seq[t],
                          .pos = c->seqs->token_pos[t],
                          .list = list,
                          .q = c->gqa.attn.q + ((int64_t)t * heads + (int64_t)list * n_q) * s->dim,
                          .ids = ids,
                          .n_q = n_q,
                          .dim = s->dim,
                          .k = call->k};
    head_blocks.made(head_blocks.ctx, &l);
}

static sl_status retrieve(sl_algo *a, const sl_algo_call *call, int32_t first, int32_t count, int32_t *ids,
                          sl_err *err)
{
    state *s = (state *)a;
    const sl_seq_tables *all = call->attn->seqs;
    const int32_t lists = count * s->lists, budget = head_blocks.budget_tokens / s->block;
    for (int32_t i = 0; i < lists; i++)
        if (all->token_seq[first + i / s->lists] >= 0)
            score_blocks(s, call, first + i / s->lists, i % s->lists, s->scores + (int64_t)i * s->blocks);
    sl_seq_tables seqs = sl_seq_tables_slice(all, first, count);
    sl_topk_params t = {.scores = s->scores,
                        .seqs = &seqs,
                        .ids = ids,
                        .token_count = count,
                        .k = budget < call->k ? budget : call->k,
                        .ld_scores = s->blocks,
                        .ld_ids = call->k,
                        .sinks = call->sinks > 1 ? call->sinks : 1,
                        .recent = call->recent > 1 ? call->recent : 1,
                        .dense_below = call->dense_below,
                        .lists = call->lists,
                        .block_log2 = call->block_log2};
    SL_TRY(sl_be_run(s->be, SL_OP_TOPK, &t, err));
    for (int32_t i = 0; head_blocks.made && i < lists; i++)
        if (all->token_seq[first + i / s->lists] >= 0)
            tell(s, call, first + i / s->lists, i % s->lists, ids + (int64_t)i * call->k);
    return SL_OK;
}

const sl_algo_desc head_blocks_algo = {
    .name = "head_blocks",
    .description = "a test's: blocks by the bounds of their keys",
    .action = SL_ACTION_VISIBILITY,
    .constant_k = true,
    .prefix_reuse = true,
    .chunked_prefill = true,
    .disaggregation = true,
    .selector = selector,
    .planes = planes,
    .width = width,
    .device_bytes = device_bytes,
    .create = create,
    .destroy = destroy,
    .construct = construct,
    .update = update,
    .retrieve = retrieve,
};
