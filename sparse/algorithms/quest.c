/*
 * quest: blocks of keys by the bounds of their channels (arXiv 2406.10774), for models with KV heads. Its metadata are
 * the smallest and the largest value of each channel of the keys in a block (kernels/bounds.h), one sixteenth of the
 * KV bytes with blocks of 16 tokens. A query selects the blocks with the largest upper bounds of its product with a key;
 * the first and the newest block are always selected and count towards the budget.
 *
 * The bounds are a plane of the cache: they are made when a token is appended, lie in the host pages and travel with
 * them, so that pages from a prefix, a storage tier or another worker need no pass over their keys. Only the open block
 * at the end of such pages is made again, because a page that is shared with a longer request may hold the bounds of
 * more tokens.
 *
 * Every query selects, also those of a prompt. The paper's code and SGLang's keep prefill dense; a cache whose contents
 * depend on where a prompt ended could not be shared by prefix, recomputed after a failure, or continued by another
 * worker with the same bits. The gate min_tokens keeps all queries before a position dense.
 */
#include "sparse/algorithm.h"

#include <stdio.h>
#include <stdlib.h>

#include "kernels/bounds.h"
#include "sparse/algorithms/by_scores.h"
#include "sparse/algorithms/rows.h"
#include "sparse/budgets.h"
#include "sparse/load.h"

typedef struct quest_options {
    int token_budget, block_tokens;
    int list_scope, gqa_reduction, bounds_dtype;
    double list_mass;
    char budgets_path[256];
    const sl_budgets *budgets; /* no option: the contents of that file */
} quest_options;

static const char *const dtype_names[] = {"auto", "f32", "bf16", "int8", NULL};
static const sl_dtype dtypes[] = {SL_F32 /* not read */, SL_F32, SL_BF16, SL_I8};

static const sl_option option_rows[] = {
    SL_ROW_TOKEN_BUDGET(quest_options,
                        "Tokens that a query reads at most, sinks and recent tokens included; at most the "
                        "model's context."),
    SL_ROW_INT(quest_options, block_tokens, "16", 1, SL_PAGE_TOKENS,
               "Tokens of a block, which is selected and swapped in as a whole; it divides 64."),
    SL_ROW_LIST_SCOPE(quest_options),
    SL_ROW_GQA_REDUCTION(quest_options, "block"),
    SL_ROW_LIST_MASS(quest_options),
    SL_ROW_BUDGETS(quest_options),
    SL_OPTION_NAMES(
        quest_options, bounds_dtype, SL_OPTION_PAGES, "auto", dtype_names,
        "How the bounds of a block are stored. auto: f32 for gqa_f32 rows, else bf16, which holds their keys "
        "exactly. bf16 bounds of f32 keys are rounded outward. int8: half the bytes of bf16, rounded outward to "
        "8 bits with an exponent for every 16 channels."),
};
static const sl_options table = {.section = "sparse_attention",
                                 .name = "quest",
                                 .seam = "sparse_attention.algorithm",
                                 .rows = option_rows,
                                 .n = SL_COUNT(option_rows),
                                 .bytes = sizeof(quest_options)};
_Static_assert(sizeof(quest_options) <= SL_SELECT_BYTES, "options are kept in sl_select_options");

static quest_options options_of(const sl_cache_dims *d)
{
    quest_options o;
    sl_algo_options(&table, d, &o);
    return o;
}

typedef struct quest {
    sl_algo base;
    sl_backend *be;
    sl_algo_dims dims;
    sl_by_scores by_scores;
    sl_limits limits; /* blocks of each list */
    sl_row_view rows; /* how rows are divided; no memory */
    int32_t *tables;  /* sl_seq_tables of one open block, see construct */
    int32_t plane;    /* of the bounds */
    sl_dtype dtype;
} quest;

static int32_t block_tokens(const sl_cache_dims *d)
{
    return options_of(d).block_tokens;
}

static int32_t budget_blocks(const sl_cache_dims *d)
{
    return options_of(d).token_budget / block_tokens(d);
}

static sl_dtype bounds_type(const sl_cache_dims *d)
{
    const int type = options_of(d).bounds_dtype;
    return type ? dtypes[type] : sl_exact_key_type(d);
}

static sl_status quest_prepare(void *options, const sl_algo_model *m, uint64_t *content, sl_err *err)
{
    quest_options *o = options;
    SL_TRY(sl_budgets_prepare(o->budgets_path, m, &o->budgets, content, err));
    if (SL_PAGE_TOKENS % o->block_tokens)
        return sl_fail(err, SL_ERR_INVALID, "block_tokens %d does not divide a page of %d tokens",
                       o->block_tokens, SL_PAGE_TOKENS);
    return sl_algo_mass_check(o->list_mass, o->gqa_reduction, err);
}

static sl_selector quest_selector(const sl_cache_dims *d)
{
    return (sl_selector){.unit_tokens = block_tokens(d),
                         .block_tokens = block_tokens(d),
                         .key = SL_KEY_BOUNDS,
                         .score = SL_SCORE_BOUND,
                         .scope = options_of(d).list_scope == SL_ROW_SCOPE_REQUEST ? SL_SCOPE_REQUEST
                                                                                   : SL_SCOPE_KV_HEAD,
                         .force_first = 1,
                         .force_last = 1};
}

static int32_t quest_planes(const sl_cache_dims *d, sl_cache_plane *out, int32_t most)
{
    const sl_dtype type = bounds_type(d);
    if (most < 1)
        return 0;
    *out = (sl_cache_plane){.name = "bounds",
                            .role = SL_PLANE_META,
                            .scope = SL_SCOPE_KV_HEAD,
                            .heads = d->kv_heads,
                            .unit_tokens = block_tokens(d),
                            .n_parts = 2};
    snprintf(out->format, sizeof out->format, "quest_%s",
             type == SL_F32  ? "f32"
             : type == SL_I8 ? "int8"
                             : "bf16");
    out->parts[0] =
        (sl_cache_part){.name = "max", .dtype = type, .per = SL_PER_OPEN_UNIT, .count = d->head_dim};
    out->parts[1] =
        (sl_cache_part){.name = "min", .dtype = type, .per = SL_PER_OPEN_UNIT, .count = d->head_dim};
    if (type == SL_I8) {
        const int64_t exponents = sl_bounds_unit_bytes(d->head_dim, type) - 2 * (int64_t)d->head_dim;
        out->n_parts = 3;
        out->parts[2] = (sl_cache_part){
            .name = "exponent", .dtype = type, .per = SL_PER_OPEN_UNIT, .count = (int32_t)exponents};
    }
    return 1;
}

/* Tokens that are selected in any case: the first and the newest block are, also without gates. */
static int32_t at_least_one(int32_t tokens)
{
    return tokens > 1 ? tokens : 1;
}

static sl_status quest_check(const sl_algo_dims *d, const sl_gates *g, sl_err *err)
{
    const int32_t block = block_tokens(&d->cache), budget = budget_blocks(&d->cache);
    if (bounds_type(&d->cache) == SL_I8 && d->cache.head_dim % SL_BOUNDS_GROUP)
        return sl_fail(err, SL_ERR_INVALID,
                       "quest: bounds_dtype int8 needs heads of a multiple of %d channels, and these have %d",
                       SL_BOUNDS_GROUP, d->cache.head_dim);
    const int32_t forced =
        sl_forced_blocks(at_least_one(g->sink_tokens), at_least_one(g->recent_tokens), sl_log2_of(block));
    if (budget < forced)
        return sl_fail(
            err, SL_ERR_INVALID,
            "quest: token_budget %d is %d blocks of %d tokens, but sink_tokens %d, recent_tokens %d, the "
            "first and the newest block need %d",
            options_of(&d->cache).token_budget, budget, block, g->sink_tokens, g->recent_tokens, forced);
    return SL_OK;
}

/* Blocks that every list has. */
static int32_t least_blocks(const sl_algo_dims *d)
{
    return sl_forced_blocks(at_least_one(d->sinks), at_least_one(d->recent),
                            sl_log2_of(block_tokens(&d->cache)));
}

/* Blocks of the longest list of a layer; -1: of all. */
static int32_t most_blocks(const sl_algo_dims *d, int32_t layer)
{
    return sl_budgets_longest(options_of(&d->cache).budgets, layer, budget_blocks(&d->cache),
                              least_blocks(d));
}

static int32_t quest_layer_width(const sl_algo_dims *d, int32_t dense_below, int32_t layer)
{
    return sl_budget_width(d, (int64_t)most_blocks(d, layer) * block_tokens(&d->cache), dense_below);
}

static int32_t quest_width(const sl_algo_dims *d, int32_t dense_below)
{
    return quest_layer_width(d, dense_below, -1);
}

static int32_t lists_of(const sl_algo_dims *d)
{
    return options_of(&d->cache).list_scope == SL_ROW_SCOPE_REQUEST ? 1 : d->cache.kv_heads;
}

static int64_t score_floats(const sl_algo_dims *d)
{
    return sl_by_scores_floats(d, lists_of(d), sl_log2_of(block_tokens(&d->cache)));
}

/* token_seq[n], token_pos[n], and one entry each of host_pages and index_pages, for a block of n tokens. */
static int32_t table_entries(const sl_algo_dims *d)
{
    return 2 * block_tokens(&d->cache) + 2;
}

static uint64_t quest_device_bytes(const sl_algo_dims *d)
{
    return 4 * ((uint64_t)score_floats(d) + (uint64_t)table_entries(d)) +
           sl_limits_bytes(options_of(&d->cache).budgets, lists_of(d));
}

static void quest_destroy(sl_algo *a)
{
    quest *q = (quest *)a;
    if (!q)
        return;
    sl_be_free(q->be, SL_MEM_DEVICE, q->tables);
    sl_limits_close(&q->limits);
    sl_by_scores_close(&q->by_scores);
    free(q);
}

static sl_status quest_create(sl_backend *be, const sl_algo_dims *d, sl_algo **out, sl_err *err)
{
    quest *q = calloc(1, sizeof *q);
    if (!q)
        return sl_fail(err, SL_ERR_NO_MEMORY, "quest: out of memory");
    *q = (quest){.base.desc = &sl_algo_quest, .be = be, .dims = *d};
    const sl_cache_plane *rows = &d->shape.planes[SL_CACHE_ROWS];
    q->plane = sl_cache_find(&d->shape, SL_PLANE_META);
    q->dtype = bounds_type(&d->cache);
    q->rows = (sl_row_view){.row_bytes = sl_cache_unit_bytes(rows),
                            .heads = rows->scope == SL_SCOPE_KV_HEAD ? rows->heads : 0,
                            .block_log2 = sl_log2_of(rows->unit_tokens)};
    sl_status st = sl_by_scores_open(&q->by_scores, be, score_floats(d), err);
    if (st != SL_OK)
        goto destroy;
    st = sl_be_alloc(be, SL_MEM_DEVICE, (size_t)table_entries(d) * 4, (void **)&q->tables, err);
    if (st == SL_OK)
        st = sl_limits_open(&q->limits, be, options_of(&d->cache).budgets, lists_of(d),
                            budget_blocks(&d->cache), least_blocks(d), err);
    if (st != SL_OK)
        goto destroy;
    *out = &q->base;
    return SL_OK;
destroy:
    quest_destroy(&q->base);
    return st;
}

static sl_bounds_append_params append_params(const quest *q, const sl_algo_plane *plane)
{
    return (sl_bounds_append_params){.rows = q->rows,
                                     .base = plane->device,
                                     .page_stride = plane->device_stride,
                                     .heads = q->dims.cache.kv_heads,
                                     .dim = q->dims.cache.head_dim,
                                     .format = q->dims.cache.rows->format,
                                     .dtype = q->dtype,
                                     .whole = q->dims.truncates};
}

static sl_status quest_update(sl_algo *a, const sl_algo_call *call, sl_err *err)
{
    quest *q = (quest *)a;
    const sl_algo_plane *plane = &call->planes[q->plane];
    sl_bounds_append_params p = append_params(q, plane);
    p.seqs = call->attn->seqs;
    p.rows = call->rows;
    p.host_rows = call->host_rows;
    p.host = plane->host;
    return sl_be_run(q->be, SL_OP_BOUNDS_APPEND, &p, err);
}

/* The bounds of an open block from its rows in the host page. Its tokens are given positions within one page. */
static sl_status make_open_block(quest *q, const sl_algo_pages *p, int32_t first, sl_err *err)
{
    int32_t host[2 * SL_PAGE_TOKENS + 2], n = p->n_tokens - first, last = first / SL_PAGE_TOKENS;
    int32_t *pages = host + 2 * n;
    for (int32_t i = 0; i < n; i++)
        host[i] = 0, host[n + i] = (first + i) % SL_PAGE_TOKENS;
    pages[0] = p->host_pages[last], pages[1] = p->device_pages[last];
    SL_TRY(sl_be_copy(q->be, q->tables, host, 4 * (2 * (size_t)n + 2), err));
    const int32_t *t = q->tables;
    sl_seq_tables seqs = {.n_tokens = n,
                          .n_seqs = 1,
                          .ld = 1,
                          .token_seq = t,
                          .token_pos = t + n,
                          .host_pages = t + 2 * (int64_t)n,
                          .index_pages = t + 2 * (int64_t)n + 1};
    sl_bounds_append_params a = append_params(q, &p->planes[q->plane]);
    a.seqs = &seqs;
    a.host_rows = p->host_rows;
    return sl_be_run(q->be, SL_OP_BOUNDS_APPEND, &a, err);
}

static sl_status quest_construct(sl_algo *a, const sl_algo_pages *p, sl_err *err)
{
    quest *q = (quest *)a;
    const int32_t block = block_tokens(&q->dims.cache), first = p->n_tokens / block * block;
    SL_TRY(sl_load_plane(q->be, &q->dims.shape.planes[q->plane], &p->planes[q->plane], p->host_pages,
                         p->device_pages, p->n_pages, err));
    return first < p->n_tokens ? make_open_block(q, p, first, err) : SL_OK;
}

static sl_status quest_score(sl_algo *a, const sl_algo_call *call, const sl_score_slice *slice, sl_err *err)
{
    quest *q = (quest *)a;
    const sl_attn_call *c = call->attn;
    const sl_algo_plane *plane = &call->planes[q->plane];
    sl_bounds_scores_params s = {.q = c->gqa.attn.q,
                                 .seqs = c->seqs,
                                 .base = plane->device,
                                 .page_stride = plane->device_stride,
                                 .scores = q->by_scores.scores,
                                 .token_first = slice->first,
                                 .token_count = slice->count,
                                 .heads = c->gqa.attn.heads,
                                 .kv_heads = q->dims.cache.kv_heads,
                                 .dim = q->dims.cache.head_dim,
                                 .lists = call->lists,
                                 .block_log2 = call->block_log2,
                                 .ld_scores = slice->ld,
                                 .from_pos = slice->from_pos,
                                 .reduce = (sl_group_reduce)options_of(&q->dims.cache).gqa_reduction,
                                 .scale = c->gqa.attn.scale,
                                 .dtype = q->dtype};
    return sl_be_run(q->be, SL_OP_BOUNDS_SCORES, &s, err);
}

static sl_status quest_retrieve(sl_algo *a, const sl_algo_call *call, int32_t first, int32_t count,
                                int32_t *ids, sl_err *err)
{
    const quest *q = (const quest *)a;
    const sl_best best = {.budget = most_blocks(&q->dims, call->attn->layer),
                          .limits = sl_limits_at(&q->limits, call->attn->layer),
                          .sinks = at_least_one(call->sinks),
                          .recent = at_least_one(call->recent),
                          .mass = options_of(&q->dims.cache).list_mass,
                          .score = quest_score};
    return sl_by_scores_retrieve(&q->by_scores, &best, a, call, first, count, ids, err);
}

const sl_algo_desc sl_algo_quest = {
    .name = "quest",
    .description =
        "blocks with the largest upper bounds of q . k, from the smallest and largest keys of each channel",
    .action = SL_ACTION_VISIBILITY,
    .budget_key = "token_budget",
    .options = &table,
    .prepare = quest_prepare,
    .needs_kv_heads = true,
    .constant_k = true,
    .keeps_lists = true,
    .groupable = true,
    .reads_rows = true,
    .prefix_reuse = true,
    .chunked_prefill = true,
    .disaggregation = true,
    .selector = quest_selector,
    .planes = quest_planes,
    .check = quest_check,
    .width = quest_width,
    .layer_width = quest_layer_width,
    .device_bytes = quest_device_bytes,
    .create = quest_create,
    .destroy = quest_destroy,
    .construct = quest_construct,
    .update = quest_update,
    .retrieve = quest_retrieve,
};
