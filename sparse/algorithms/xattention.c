/*
 * xattention: dense attention whose prompts are block-sparse (XAttention, arXiv 2503.16428), for models with KV heads. 64 neighbouring
 * tokens of a prompt read the pages of 64 tokens that have most of their attention, one list per KV head: how much that is, is
 * estimated from every 16th diagonal of the products (SL_OP_PROMPT_SCORES), and a list ends with the share list_mass. The first
 * page and the tokens' own are always read. Generated tokens read everything.
 *
 * Which pages a token reads follows from its prompt alone: from the keys before it and the queries of the 64 tokens of its page, all of
 * which are the prompt's. What is left of a prompt after its last whole page is dense. The 64 queries must be there at once, so a
 * step never divides a page (sl_algo_desc.prompt_lists); then chunks, the batch and the worker do not matter. With list_mass 1 or 0
 * every list has everything, and the bits are those of dense.
 *
 * What differs from the paper's code: blocks of 64 tokens, not 128; a list is that of the query heads of a KV head together, because
 * their keys are read once; and one threshold for all heads.
 */
#include "sparse/algorithm.h"

#include <stdlib.h>

#include "sparse/sparse.h"

enum { PAGE = SL_PAGE_TOKENS };

typedef struct x_options {
    double list_mass;
} x_options;

static const sl_option option_rows[] = {
    SL_OPTION(
        x_options, list_mass, SL_OPTION_FLOAT, SL_OPTION_PAGES, "0.9", 0, 1,
        "Share of the estimated attention of 64 neighbouring tokens of a prompt that the pages which they read keep; 0 or "
        "1: everything is read, as with dense."),
};
static const sl_options table = {.section = "sparse_attention",
                                 .name = "xattention",
                                 .seam = "sparse_attention.algorithm",
                                 .rows = option_rows,
                                 .n = SL_COUNT(option_rows),
                                 .bytes = sizeof(x_options)};
_Static_assert(sizeof(x_options) <= SL_SELECT_BYTES, "options are kept in sl_select_options");

/* The tables of a step: the list of each token, then of each block its first token, its sequence and its last position. */
typedef struct x_tables {
    int32_t *of, *first, *seq, *last;
} x_tables;

typedef struct xattention {
    sl_algo base;
    sl_algo *dense; /* its lists */
    sl_backend *be;
    sl_algo_dims dims;
    float mass;        /* 0: all */
    x_tables host, at; /* in host memory and the same on the device; owned by `of` */
    int32_t *pages;    /* device [blocks][kv_heads][pages of the context] */
    float *scores;     /* device, the same shape */
    int32_t *counted;  /* [blocks][kv_heads][pages of the context], or NULL: nothing was counted yet */
} xattention;

static float mass_of(const sl_cache_dims *d)
{
    x_options o;
    sl_algo_options(&table, d, &o);
    return o.list_mass < 1 ? (float)o.list_mass : 0;
}

typedef struct sizes {
    int32_t blocks;         /* most whole pages of a step */
    uint64_t tables, pages; /* bytes; scores are as many as pages */
} sizes;

static sizes sizes_of(const sl_algo_dims *d)
{
    const int32_t blocks = d->max_step_tokens / PAGE + 1;
    return (sizes){.blocks = blocks,
                   .tables = 4 * ((uint64_t)d->max_step_tokens + 3 * (uint64_t)blocks),
                   .pages = 4 * (uint64_t)blocks * (uint64_t)d->cache.kv_heads *
                            (uint64_t)sl_pages_for(d->max_context)};
}

static x_tables tables_at(const sl_algo_dims *d, int32_t *memory)
{
    const int32_t blocks = sizes_of(d).blocks;
    int32_t *first = memory + d->max_step_tokens;
    return (x_tables){
        .of = memory, .first = first, .seq = first + blocks, .last = first + 2 * (int64_t)blocks};
}

static sl_selector x_selector(const sl_cache_dims *d)
{
    return sl_algo_dense.selector(d);
}

static int32_t x_width(const sl_algo_dims *d, int32_t dense_below)
{
    return sl_algo_dense.width(d, dense_below);
}

static uint64_t x_device_bytes(const sl_algo_dims *d)
{
    const sizes z = sizes_of(d);
    return sl_algo_dense.device_bytes(d) + z.tables + 2 * z.pages;
}

static void x_destroy(sl_algo *a)
{
    xattention *x = (xattention *)a;
    if (!x)
        return;
    sl_be_free(x->be, SL_MEM_DEVICE, x->scores);
    sl_be_free(x->be, SL_MEM_DEVICE, x->pages);
    sl_be_free(x->be, SL_MEM_DEVICE, x->at.of);
    sl_algo_dense.destroy(x->dense);
    free(x->counted);
    free(x->host.of);
    free(x);
}

static sl_status allocate(xattention *x, sl_err *err)
{
    const sizes z = sizes_of(&x->dims);
    int32_t *host = malloc(z.tables), *device = NULL;
    if (!host)
        return sl_fail(err, SL_ERR_NO_MEMORY, "xattention: out of memory");
    x->host = tables_at(&x->dims, host);
    SL_TRY(sl_algo_dense.create(x->be, &x->dims, &x->dense, err));
    SL_TRY(sl_be_alloc(x->be, SL_MEM_DEVICE, z.tables, (void **)&device, err));
    x->at = tables_at(&x->dims, device);
    SL_TRY(sl_be_alloc(x->be, SL_MEM_DEVICE, z.pages, (void **)&x->pages, err));
    return sl_be_alloc(x->be, SL_MEM_DEVICE, z.pages, (void **)&x->scores, err);
}

static sl_status x_create(sl_backend *be, const sl_algo_dims *d, sl_algo **out, sl_err *err)
{
    xattention *x = calloc(1, sizeof *x);
    if (!x)
        return sl_fail(err, SL_ERR_NO_MEMORY, "xattention: out of memory");
    *x = (xattention){.base.desc = &sl_algo_xattention, .be = be, .dims = *d, .mass = mass_of(&d->cache)};
    sl_status st = allocate(x, err);
    if (st != SL_OK) {
        x_destroy(&x->base);
        return st;
    }
    *out = &x->base;
    return SL_OK;
}

/* Nothing is selected at the end of a prompt, but where it ends must be known: what follows it reads everything. */
static sl_status x_prompt(sl_algo *a, const sl_algo_prompt *p, sl_err *err)
{
    (void)a, (void)p, (void)err;
    return SL_OK;
}

static int32_t x_prompt_window(const sl_cache_dims *d)
{
    (void)d;
    return 1;
}

static sl_status x_retrieve(sl_algo *a, const sl_algo_call *call, int32_t first, int32_t count, int32_t *ids,
                            sl_err *err)
{
    return sl_algo_dense.retrieve(((xattention *)a)->dense, call, first, count, ids, err);
}

/* ---- lists ---- */

/* The whole pages of a prompt that the run computes, from block n on. Pages 0 and 1 have no page that could be left out. */
static int32_t add_blocks(const xattention *x, const sl_algo_run *r, int32_t first, int32_t n)
{
    const int32_t whole = r->prompt / PAGE * PAGE, end = r->pos + r->n < whole ? r->pos + r->n : whole;
    for (int32_t p = r->pos < 2 * PAGE ? 2 * PAGE : r->pos; p + PAGE <= end; p += PAGE, n++) {
        const int32_t at = r->first - first + p - r->pos;
        x->host.first[n] = at, x->host.seq[n] = r->seq, x->host.last[n] = p + PAGE - 1;
        for (int32_t k = 0; k < PAGE; k++)
            x->host.of[at + k] = n;
    }
    return n;
}

/* Fills the host's tables with those of tokens first .. first + count - 1 of the step; returns the number of blocks. */
static int32_t find_blocks(const xattention *x, const sl_algo_call *call, int32_t first, int32_t count)
{
    int32_t n = 0;
    for (int32_t i = 0; i < count; i++)
        x->host.of[i] = -1;
    for (int32_t i = 0; i < call->n_runs; i++) {
        const sl_algo_run *r = &call->runs[i];
        if (r->first >= first && r->first + r->n <= first + count)
            n = add_blocks(x, r, first, n);
    }
    return n;
}

/* Whether sinks and recent tokens cover all of `pages` pages, so that no list can leave one out. */
static bool all_forced(int32_t sinks, int32_t recent, int32_t pages)
{
    return (int64_t)sinks + recent > (int64_t)pages * PAGE ||
           sl_forced_blocks(sinks, recent, SL_PAGE_LOG2) > pages;
}

static sl_status score(xattention *x, const sl_algo_call *call, const sl_seq_tables *mine, int32_t skipped,
                       int32_t n, sl_err *err)
{
    const sl_gqa_attn_params *g = &call->attn->gqa.attn;
    const sl_prompt_scores_params s = {.q = g->q + (int64_t)skipped * g->heads * g->dim,
                                       .seqs = mine,
                                       .first = x->at.first,
                                       .rows = call->rows,
                                       .scores = x->scores,
                                       .n = n,
                                       .heads = g->heads,
                                       .kv_heads = g->kv_heads,
                                       .dim = g->dim,
                                       .ld_scores = call->max_pos / PAGE + 1,
                                       .max_pos = call->max_pos,
                                       .scale = g->scale,
                                       .format = g->format};
    return sl_be_run(x->be, SL_OP_PROMPT_SCORES, &s, err);
}

/* The pages of n blocks, by their scores; a block is to top-k a token at its last position. */
static sl_status choose(xattention *x, const sl_algo_call *call, int32_t n, int32_t sinks, int32_t recent,
                        sl_err *err)
{
    const int32_t ld = call->max_pos / PAGE + 1;
    sl_seq_tables blocks = *call->attn->seqs;
    blocks.n_tokens = n, blocks.token_seq = x->at.seq, blocks.token_pos = x->at.last;
    const sl_topk_params t = {.scores = x->scores,
                              .seqs = &blocks,
                              .ids = x->pages,
                              .token_count = n,
                              .k = ld,
                              .ld_scores = ld,
                              .ld_ids = ld,
                              .sinks = sinks,
                              .recent = recent,
                              .dense_below = call->dense_below,
                              .lists = x->dims.cache.kv_heads,
                              .block_log2 = SL_PAGE_LOG2,
                              .mass = x->mass};
    return sl_be_run(x->be, SL_OP_TOPK, &t, err);
}

/* Adds the tiles of the blocks' tokens and those that their lists leave out. Waits for the device. */
static sl_status count_tiles(xattention *x, const sl_algo_call *call, int32_t n, sl_err *err)
{
    const int32_t ld = call->max_pos / PAGE + 1, heads = x->dims.cache.kv_heads;
    const int64_t entries = (int64_t)n * heads * ld;
    if (!x->counted && !(x->counted = malloc(sizes_of(&x->dims).pages)))
        return sl_fail(err, SL_ERR_NO_MEMORY, "xattention: out of memory");
    SL_TRY(sl_be_copy(x->be, x->counted, x->pages, 4 * (size_t)entries, err));
    SL_TRY(sl_be_sync(x->be, err));
    uint64_t all = 0, read = 0;
    for (int32_t i = 0; i < n; i++)
        all += (uint64_t)heads * (uint64_t)(x->host.last[i] / PAGE + 1);
    for (int64_t i = 0; i < entries; i++)
        read += x->counted[i] >= 0;
    call->tiles[0] += PAGE * all, call->tiles[1] += PAGE * (all - read);
    return SL_OK;
}

static sl_status x_prompt_lists(sl_algo *a, const sl_algo_call *call, int32_t first, int32_t count,
                                sl_gqa_prompt_lists *out, sl_err *err)
{
    xattention *x = (xattention *)a;
    const int32_t sinks = x->dims.sinks > 1 ? x->dims.sinks : 1,
                  recent = x->dims.recent > 1 ? x->dims.recent : 1;
    const int32_t n = x->mass > 0 ? find_blocks(x, call, first, count) : 0;
    const sl_seq_tables mine = sl_seq_tables_slice(call->attn->seqs, first, count);
    *out = (sl_gqa_prompt_lists){0};
    if (n == 0 || all_forced(sinks, recent, call->max_pos / PAGE + 1))
        return SL_OK;
    SL_TRY(sl_be_copy(x->be, x->at.of, x->host.of, sizes_of(&x->dims).tables, err));
    SL_TRY(score(x, call, &mine, first, n, err));
    SL_TRY(choose(x, call, n, sinks, recent, err));
    *out = (sl_gqa_prompt_lists){.of = x->at.of, .pages = x->pages, .ld = call->max_pos / PAGE + 1};
    return call->tiles ? count_tiles(x, call, n, err) : SL_OK;
}

const sl_algo_desc sl_algo_xattention = {
    .name = "xattention",
    .description =
        "dense, but 64 tokens of a prompt read the pages to which they attend most, by sums over diagonals",
    .action = SL_ACTION_VISIBILITY,
    .options = &table,
    .needs_kv_heads = true,
    .reads_all = true,
    .prefix_reuse = true,
    .chunked_prefill = true,
    .disaggregation = true,
    .selector = x_selector,
    .width = x_width,
    .device_bytes = x_device_bytes,
    .create = x_create,
    .destroy = x_destroy,
    .prompt = x_prompt,
    .prompt_window = x_prompt_window,
    .prompt_lists = x_prompt_lists,
    .retrieve = x_retrieve,
};
