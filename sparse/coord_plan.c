/* Checks and sizes of a coordinator; see coord_plan.h. */
#include "sparse/coord_plan.h"

#include "sparse/swapin.h"

#define DEFAULT_WORKSPACE (64ll << 20)

static sl_status refuse(const sl_coord_opts *o, const char *why, sl_err *err)
{
    return sl_fail(err, SL_ERR_UNSUPPORTED, "sparse algorithm %s: %s", o->algorithm->name, why);
}

static const char *scope_name(sl_list_scope s)
{
    static const char *const names[] = {"request", "KV head", "query head"};
    return (unsigned)s < SL_COUNT(names) ? names[s] : "?";
}

static sl_status check_algorithm(const sl_coord_opts *o, const sl_algo_desc *a, const sl_adaptor *k,
                                 sl_err *err)
{
    if (a->action == SL_ACTION_EVICT)
        return refuse(o, "drops tokens permanently, which the host store's whole pages do not allow", err);
    if (a->action == SL_ACTION_KERNEL && !k->skips_tiles)
        return refuse(o, "skips inside the attention kernel, which the sparse MLA kernel does not", err);
    SL_TRY(sl_algo_serves(a, &o->cache, err));
    sl_selector s = a->selector(&o->cache);
    SL_TRY(sl_selector_check(&s, err));
    if (k->block_tokens % sl_selector_entry(&s))
        return sl_fail(
            err, SL_ERR_UNSUPPORTED,
            "sparse algorithm %s: selects blocks of %d tokens, but the %s kernel takes lists of %d%s",
            a->name, sl_selector_entry(&s), k->name, k->block_tokens,
            k->block_tokens > 1 ? " or a whole fraction" : "");
    if (s.scope > k->scope)
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "sparse algorithm %s: selects per %s, but the lists of the %s kernel are per %s",
                       a->name, scope_name(s.scope), k->name, scope_name(k->scope));
    if ((o->use & SL_USE_PREFIX_REUSE) && !a->prefix_reuse)
        return refuse(o, "cannot be combined with prefix reuse", err);
    if ((o->use & SL_USE_CHUNKED_PREFILL) && !a->chunked_prefill)
        return refuse(o, "cannot be combined with chunked prefill", err);
    if ((o->use & SL_USE_DISAGGREGATION) && !a->disaggregation)
        return refuse(o, "cannot be combined with disaggregation", err);
    return SL_OK;
}

static sl_status check_numbers(const sl_coord_opts *o, sl_err *err)
{
    if (o->n_layers < 1 || !o->layers)
        return sl_fail(err, SL_ERR_INVALID, "coordinator: no layers");
    if (o->max_seqs < 1 || o->max_step_tokens < 1 || o->max_context < 1 || o->hot_slots < 0)
        return sl_fail(err, SL_ERR_INVALID,
                       "coordinator: max_seqs %d, max_step_tokens %d, max_context %d, hot_slots %d",
                       o->max_seqs, o->max_step_tokens, o->max_context, o->hot_slots);
    for (int32_t l = 0; l < o->n_layers; l++)
        if (o->layers[l].absent && (o->layers[l].has_indexer || !o->layers[l].resident))
            return sl_fail(err, SL_ERR_INVALID,
                           "coordinator: layer %d has no rows, but an indexer or hot rows", l);
    for (int32_t l = 0; l < o->n_layers; l++)
        if (o->layers[l].has_indexer && o->cache.index_dim < 1)
            return sl_fail(err, SL_ERR_INVALID,
                           "coordinator: layer %d has an indexer, but index_head_dim is %d", l,
                           o->cache.index_dim);
    if (o->groups < 0 || o->groups > SL_COORD_GROUPS_MAX)
        return sl_fail(err, SL_ERR_INVALID, "coordinator: %d groups, at most %d", o->groups,
                       SL_COORD_GROUPS_MAX);
    const sl_gates *g = &o->gates;
    if (g->sink_tokens < 0 || g->recent_tokens < 0 || g->min_tokens < 0)
        return sl_fail(err, SL_ERR_INVALID,
                       "sink_tokens %d, recent_tokens %d and min_tokens %d must not be negative",
                       g->sink_tokens, g->recent_tokens, g->min_tokens);
    if (o->run_tokens < 0 || o->run_tokens > SL_RUN_TOKENS_MAX)
        return sl_fail(err, SL_ERR_INVALID, "coordinator: %d tokens of a sequence in one step, at most %d",
                       o->run_tokens, SL_RUN_TOKENS_MAX);
    for (int32_t i = 0; i < g->n_dense_layers; i++)
        if (g->dense_layers[i] < 0 || g->dense_layers[i] >= o->n_layers)
            return sl_fail(err, SL_ERR_INVALID, "dense_layers: layer %d is outside 0..%d", g->dense_layers[i],
                           o->n_layers - 1);
    for (int32_t i = 0; i < g->n_dense_layers; i++)
        if (o->layers[g->dense_layers[i]].absent)
            return sl_fail(err, SL_ERR_INVALID, "dense_layers: layer %d has no rows of tokens",
                           g->dense_layers[i]);
    return SL_OK;
}

static sl_status check_indexer(const sl_coord_opts *o, const sl_algo_desc *a, sl_err *err)
{
    if (!a->needs_indexer)
        return SL_OK;
    const sl_cache_dims *d = &o->cache;
    if (d->index_topk < 1 || d->index_dim < 1)
        return refuse(o, "the model has no indexer; dense serves it", err);
    int32_t first = 0;
    while (first < o->n_layers - 1 && o->layers[first].absent)
        first++;
    if (!o->layers[first].has_indexer && a->selector(d).shared_by_layers)
        return refuse(o, "the model's first layer has no indexer", err);
    if (o->gates.sink_tokens + o->gates.recent_tokens > d->index_topk)
        return sl_fail(err, SL_ERR_INVALID,
                       "sink_tokens %d + recent_tokens %d exceed the model's index_topk %d",
                       o->gates.sink_tokens, o->gates.recent_tokens, d->index_topk);
    return SL_OK;
}

bool sl_coord_is_dense(const sl_coord_opts *o, int32_t layer)
{
    for (int32_t i = 0; i < o->gates.n_dense_layers; i++)
        if (o->gates.dense_layers[i] == layer)
            return true;
    return !o->layers[layer].absent &&
           sl_algo_leaves_out(o->algorithm, &o->cache, o->layers[layer].has_indexer);
}

static bool any_dense(const sl_coord_opts *o)
{
    for (int32_t l = 0; l < o->n_layers; l++)
        if (sl_coord_is_dense(o, l))
            return true;
    return false;
}

int32_t sl_coord_layer_width(const sl_coord_sizes *z, const sl_gates *gates, int32_t layer)
{
    return z->algo->layer_width ? z->algo->layer_width(&z->dims, gates->min_tokens, layer) : z->width;
}

/* Longest list that layer l resolves against hot rows; 0 when it has none. */
static int32_t list_of(const sl_coord_opts *o, const sl_coord_sizes *z, int32_t l)
{
    return o->layers[l].resident     ? 0
           : sl_coord_is_dense(o, l) ? o->max_context
                                     : sl_coord_layer_width(z, &o->gates, l);
}

/* The same of the union of a run's lists. */
static int32_t need_of(const sl_coord_opts *o, const sl_coord_sizes *z, int32_t l)
{
    int64_t all = (int64_t)z->run * list_of(o, z, l);
    return all < o->max_context ? (int32_t)all : o->max_context;
}

/* The tail must have the tokens of a step, and before them still those that the step before may have overwritten. */
static sl_status check_tail(const sl_coord_opts *o, const sl_coord_sizes *z, int32_t l, sl_err *err)
{
    const int32_t tail = o->layers[l].rows.tail_rows / z->lists, need = 2 * z->spare + 1;
    if (o->layers[l].rows.tail_rows < 1)
        return sl_fail(err, SL_ERR_INVALID, "tail_rows must be at least 1");
    if (tail < need)
        return sl_fail(err, SL_ERR_INVALID,
                       "tail_rows %d of layer %d: %d tokens of a sequence in one step need %d",
                       tail << z->block_log2, l, z->run, need << z->block_log2);
    return SL_OK;
}

static sl_status check_hot_layer(const sl_coord_opts *o, const sl_coord_sizes *z, int32_t l, sl_err *err)
{
    const sl_row_view *v = &o->layers[l].rows;
    int32_t need = need_of(o, z, l);
    if (need == 0)
        return SL_OK;
    SL_TRY(check_tail(o, z, l, err));
    if (v->hot_rows / z->lists > SL_HOT_ROWS_MAX)
        return sl_fail(err, SL_ERR_TOO_LARGE, "hot_rows %d of layer %d exceeds %d", v->hot_rows / z->lists, l,
                       SL_HOT_ROWS_MAX);
    if (v->hot_rows >= sl_cache_units(&z->dims.shape.planes[SL_CACHE_ROWS], need))
        return SL_OK;
    int32_t hot = v->hot_rows / z->lists << z->block_log2; /* tokens of one list */
    if (list_of(o, z, l) > z->width || !z->algo->constant_k)
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "hot_rows %d of layer %d cannot hold a whole context of %d tokens, which %s need in "
                       "hierarchical mode",
                       hot, l, o->max_context, z->algo->constant_k ? "dense layers" : "dense queries");
    if (z->run > 1)
        return sl_fail(err, SL_ERR_INVALID,
                       "hot_rows %d of layer %d is less than the longest selections of %d tokens of a step, "
                       "%d tokens",
                       hot, l, z->run, need);
    return sl_fail(err, SL_ERR_INVALID,
                   "hot_rows %d of layer %d is less than the longest selection, %d tokens", hot, l,
                   list_of(o, z, l));
}

/* How the rows of the cache are divided, which must be what the algorithm selects. */
static sl_status divide_rows(const sl_coord_opts *o, sl_coord_sizes *z, sl_err *err)
{
    const sl_selector s = z->algo->selector(&o->cache);
    const sl_cache_plane *rows = &z->dims.shape.planes[SL_CACHE_ROWS];
    if (rows->unit_tokens != sl_selector_entry(&s) || rows->scope != s.scope)
        return sl_fail(
            err, SL_ERR_UNSUPPORTED,
            "sparse algorithm %s: selects blocks of %d tokens per %s, but rows of %s hold %d per %s",
            z->algo->name, sl_selector_entry(&s), scope_name(s.scope), o->cache.rows->name, rows->unit_tokens,
            scope_name(rows->scope));
    z->heads = rows->scope == SL_SCOPE_KV_HEAD ? rows->heads : 0;
    z->lists = rows->heads;
    z->by_keys = s.key != SL_KEY_NONE;
    while (1 << z->block_log2 < rows->unit_tokens)
        z->block_log2++;
    return SL_OK;
}

/* int32 entries of the lists of one token, if the longest is of this number of tokens. */
static int64_t entries_of(const sl_coord_sizes *z, int32_t tokens)
{
    return (int64_t)z->lists * sl_blocks_for(tokens, z->block_log2);
}

bool sl_coord_shares(const sl_coord_opts *o, const sl_coord_sizes *z, int32_t layer)
{
    const sl_coord_layer *l = &o->layers[layer];
    return z->algo->needs_indexer && z->algo->keeps_lists && !z->algo->layer_width && layer > 0 &&
           !l->has_indexer && !l->absent && !l->resident && !sl_coord_is_dense(o, layer);
}

/* Layers that can be fetched ahead, and room for the lists of a decode step, which may be padded. */
static void size_ahead(const sl_coord_opts *o, sl_coord_sizes *z)
{
    int32_t n = 0;
    for (int32_t l = 0; o->hot_slots > 0 && !o->in_turn && l < o->n_layers; l++) {
        n = sl_coord_shares(o, z, l) ? n + 1 : 0;
        z->ahead = n > z->ahead ? n : z->ahead;
    }
    z->ahead = z->ahead < SL_COORD_AHEAD ? z->ahead : SL_COORD_AHEAD;
    const int64_t tokens = 2ll * o->max_seqs * z->run,
                  most = tokens < o->max_step_tokens ? tokens : o->max_step_tokens,
                  room = most * entries_of(z, z->width);
    z->ahead_room = z->ahead == 0 ? 0 : room < z->slice ? room : z->slice;
}

sl_status sl_coord_check(const sl_coord_opts *o, sl_coord_sizes *out, sl_err *err)
{
    sl_coord_sizes z = {0};
    if (!o->algorithm)
        return sl_fail(err, SL_ERR_INVALID, "coordinator: no algorithm");
    z.algo = o->algorithm;
    if (!o->cache.rows)
        return sl_fail(err, SL_ERR_INVALID, "coordinator: the row format is unknown");
    z.adaptor = sl_adaptor_of(o->cache.rows->attn);
    if (!z.adaptor)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "row format %s: this build has no attention kernel for it",
                       o->cache.rows->name);
    SL_TRY(check_algorithm(o, z.algo, z.adaptor, err));
    SL_TRY(check_numbers(o, err));
    SL_TRY(check_indexer(o, z.algo, err));
    int64_t workspace = o->workspace_bytes > 0 ? o->workspace_bytes : DEFAULT_WORKSPACE;
    z.dims = (sl_algo_dims){
        .n_layers = o->n_layers,
        .max_step_tokens = o->max_step_tokens,
        .max_context = o->max_context,
        .cache = o->cache,
        .workspace_bytes = workspace,
        .max_seqs = o->max_seqs,
        .sinks = o->gates.sink_tokens,
        .recent = o->gates.recent_tokens,
        .truncates = o->run_tokens > 1,
    };
    SL_TRY(sl_algo_cache_shape(z.algo, &o->cache, &z.dims.shape, err));
    SL_TRY(divide_rows(o, &z, err));
    z.run = o->run_tokens > 0 ? o->run_tokens : 1;
    z.spare = sl_blocks_for(z.run - 1, z.block_log2);
    if (z.algo->check)
        SL_TRY(z.algo->check(&z.dims, &o->gates, err));
    z.width = z.algo->width(&z.dims, o->gates.min_tokens);
    z.any_dense = any_dense(o);
    z.longest = z.any_dense || z.algo->prompt ? o->max_context : z.width;
    for (int32_t l = 0; l < o->n_layers; l++) {
        int32_t need = need_of(o, &z, l);
        z.need_hot = need > z.need_hot ? need : z.need_hot;
        z.need_list = list_of(o, &z, l) > z.need_list ? list_of(o, &z, l) : z.need_list;
        if (o->hot_slots > 0)
            SL_TRY(check_hot_layer(o, &z, l, err));
    }
    z.ids = z.algo->keeps_lists ? o->max_step_tokens * entries_of(&z, z.width) : 0;
    int64_t one = entries_of(&z, z.longest), most = one * o->max_step_tokens, fit = workspace / 8;
    int64_t least = one * z.run; /* the tokens of a run are resolved together */
    z.slice = most < fit ? most : fit > least ? fit : least;
    size_ahead(o, &z);
    *out = z;
    return SL_OK;
}

sl_status sl_coord_width(const sl_coord_opts *opts, int32_t *width, int32_t *of_run, sl_err *err)
{
    sl_coord_opts o = *opts;
    o.hot_slots = 0; /* the answer must not depend on hot_rows being right already */
    sl_coord_sizes z;
    SL_TRY(sl_coord_check(&o, &z, err));
    *width = z.need_list;
    if (of_run)
        *of_run = z.need_hot;
    return SL_OK;
}

int32_t sl_coord_layer_hot(const sl_algo_desc *algorithm, const sl_cache_dims *cache, const sl_gates *gates,
                           int32_t max_context, int32_t layer, int32_t hot_rows)
{
    const sl_algo_dims d = {.max_context = max_context,
                            .cache = *cache,
                            .sinks = gates->sink_tokens,
                            .recent = gates->recent_tokens};
    for (int32_t i = 0; i < gates->n_dense_layers; i++)
        if (gates->dense_layers[i] == layer)
            return hot_rows;
    if (!algorithm->layer_width || hot_rows <= 0)
        return hot_rows;
    const int64_t all = algorithm->width(&d, gates->min_tokens),
                  own = algorithm->layer_width(&d, gates->min_tokens, layer);
    return own < all ? (int32_t)((hot_rows * own + all - 1) / all) : hot_rows;
}

sl_swapin_opts sl_coord_swapin_opts(const sl_coord_opts *o, const sl_coord_sizes *z)
{
    return (sl_swapin_opts){
        .n_layers = o->n_layers,
        .layers = o->layers,
        .hot_slots = o->hot_slots,
        .max_tokens = o->max_context,
        .width = sl_blocks_for(z->need_list, z->block_log2),
        .of_run = sl_blocks_for(z->need_hot, z->block_log2),
        .spare = z->spare,
        .policy = o->policy,
        .poison = o->poison,
        .groups = (o->groups > 0 ? o->groups : 1) * (1 + z->ahead),
        .lists = z->lists,
        .block_log2 = z->block_log2,
        .overlap_tokens = o->overlap && o->hot_slots > 0 && z->adaptor->awaits_blocks
                              ? (o->max_seqs < o->max_step_tokens ? o->max_seqs : o->max_step_tokens)
                              : 0,
    };
}

sl_status sl_coord_plan_bytes(const sl_coord_opts *opts, uint64_t *per_hot_slot, uint64_t *fixed,
                              uint64_t *algorithm, sl_err *err)
{
    sl_coord_sizes z;
    SL_TRY(sl_coord_check(opts, &z, err));
    uint64_t swap_fixed;
    sl_swapin_opts so = sl_coord_swapin_opts(opts, &z);
    sl_swapin_plan_bytes(&so, per_hot_slot, &swap_fixed);
    *algorithm = z.algo->device_bytes(&z.dims);
    *fixed = swap_fixed + (uint64_t)opts->max_seqs * 4 + (uint64_t)z.ids * 4 + (uint64_t)z.slice * 8 +
             (uint64_t)z.ahead * (uint64_t)z.ahead_room * 4 + *algorithm +
             (z.any_dense ? sl_algo_dense.device_bytes(&z.dims) : 0);
    return SL_OK;
}
