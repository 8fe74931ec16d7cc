/* Arithmetic of the memory plan; see plan.h. The sizes come from the same functions that allocate. */
#include "engine/plan.h"

#include "engine/choice.h"
#include "engine/draft.h"
#include "engine/blocks.h"
#include "engine/scratch.h"
#include "engine/states.h"
#include "kernels/paths.h"
#include "kvstore/snapshot.h"
#include "sparse/sparse.h"

static const int32_t contexts[SL_PLAN_ROWS] = {16 << 10, 32 << 10, 64 << 10, 128 << 10};

/* The engine's coordinator options for this plan; layers has SL_MAX_LAYERS entries. */
static sl_coord_opts coord_opts(const sl_plan_in *in, const sl_plan *p, const sl_geometry *g,
                                sl_coord_layer *layers, int32_t hot_slots)
{
    const sl_cache_plane *rows = &g->shape.planes[SL_CACHE_ROWS];
    for (int32_t l = 0; l < in->cfg->n_layers; l++) {
        int32_t hot = in->hot_rows_layer && in->hot_rows_layer[l] ? in->hot_rows_layer[l]
                      : p->all_resident                           ? SL_HOT_RESIDENT
                                        : sl_coord_layer_hot(in->algorithm, &in->cache, &in->gates,
                                                             p->max_context, l, p->hot_rows);
        const bool absent = !sl_geometry_has(g, l, SL_CACHE_ROWS);
        const bool resident = absent || hot == SL_HOT_RESIDENT ||
                              sl_algo_leaves_out(in->algorithm, &in->cache, in->cfg->layer_has_indexer[l]);
        layers[l] = (sl_coord_layer){
            .has_indexer = in->cfg->layer_has_indexer[l] && !absent,
            .absent = absent,
            .resident = resident,
            .rows = {.row_bytes = p->row_bytes,
                     .hot_rows = resident ? 0 : sl_cache_units(rows, hot),
                     .tail_rows = sl_cache_units(rows, p->tail_rows)},
        };
    }
    return (sl_coord_opts){
        .algorithm = in->algorithm,
        .use = SL_USE_PREFIX_REUSE | SL_USE_CHUNKED_PREFILL | SL_USE_DISAGGREGATION | SL_USE_HIERARCHICAL,
        .n_layers = in->cfg->n_layers,
        .layers = layers,
        .cache = in->cache,
        .max_seqs = in->max_seqs > 0 ? in->max_seqs : 256,
        .hot_slots = hot_slots,
        .max_step_tokens = in->max_step_tokens,
        .overlap = true,
        .groups = 2,
        .run_tokens = in->max_item_tokens,
        .max_context = p->max_context,
        .policy = in->policy,
        .gates = in->gates,
    };
}

/* Bytes of a page of one layer in the planes that are on the device whole. */
static uint64_t whole_bytes(const sl_geometry *g, int32_t layer)
{
    uint64_t bytes = 0;
    for (int32_t p = SL_CACHE_ROWS + 1; p < g->shape.n_planes; p++)
        if (sl_geometry_has(g, layer, p) && !g->shape.planes[p].host_only)
            bytes += (uint64_t)sl_cache_page_bytes(&g->shape.planes[p]);
    return bytes;
}

int32_t sl_plan_default_hot_rows(const sl_algo_desc *algorithm, int32_t width, int32_t of_run)
{
    int32_t rows = algorithm->constant_k ? width + of_run : of_run;
    return rows < SL_HOT_ROWS_MAX ? rows : SL_HOT_ROWS_MAX;
}

/* Page tables, the arrays of a step, and logits: one row for every token of every sequence's item, but at most one for every
 * token of a step. */
static void add_tables(const sl_plan_in *in, int32_t max_seqs, sl_plan *p)
{
    const uint64_t seqs = (uint64_t)max_seqs, tokens = (uint64_t)in->max_step_tokens,
                   results = seqs * (uint64_t)p->item_tokens, rows = results < tokens ? results : tokens;
    p->max_seqs = max_seqs;
    p->logit_bytes = rows * (uint64_t)in->cfg->vocab_size * sizeof(float);
    p->fixed_bytes += 4 * (seqs * (3 * (uint64_t)sl_pages_for(p->max_context) + 1) + 3 * tokens + rows);
    p->fixed_bytes += p->logit_bytes + sl_choices_bytes(rows, in->cfg->vocab_size);
    if (in->cfg->n_draft) /* of 16 bits, as activations on a GPU are */
        p->fixed_bytes +=
            4 * (tokens + seqs) + 2 * sl_drafts_rows(seqs, tokens) * (uint64_t)in->cfg->hidden_size;
}

/* Of ops on CUDA with activations of 16 bits, on a GPU of the size of an H200; an engine asks the GPU that it has. */
static uint64_t scratch_bytes(const sl_plan_in *in, const sl_plan *p, int32_t max_seqs)
{
    enum { H200 = 132, SHARED = 227 << 10 };
    const sl_gpu g = sl_gpu_of(90, H200, SHARED);
    const sl_plan_group *group = in->group;
    const sl_scratch_load load = {.step_tokens = in->max_step_tokens,
                                  .context = p->max_context,
                                  .seqs = max_seqs,
                                  .ranks = group ? group->ranks : 1,
                                  .experts = group ? group->experts : 0,
                                  .act = SL_BF16};
    return in->on_host ? 0 : sl_engine_scratch_bytes(&g, in->cfg, &in->cache, in->algorithm, &load);
}

/* What objects at the edges of units take in addition, at most a unit in every array: planes, hot slots, versions of states. */
static uint64_t edges_of(const sl_plan_in *in, const sl_plan *p, const sl_geometry *g)
{
    uint64_t arrays = 1 + (uint64_t)sl_states_turns(g, p->item_tokens);
    for (int32_t l = 0; l < in->cfg->n_layers; l++) {
        uint64_t planes = 0;
        for (int32_t q = 0; q < g->shape.n_planes; q++)
            planes += sl_geometry_has(g, l, q) && !g->shape.planes[q].host_only;
        arrays += planes > 0 ? planes + 2 : 0; /* hot slots, and what the algorithm keeps */
    }
    return arrays * in->pool_unit;
}

static sl_status plan_sizes(const sl_plan_in *in, sl_plan *p, sl_err *err)
{
    sl_coord_layer layers[SL_MAX_LAYERS];
    sl_geometry g;
    if (!in->algorithm)
        return sl_fail(err, SL_ERR_INVALID, "plan: no algorithm");
    SL_TRY(sl_engine_geometry(in->cfg, &in->cache, in->algorithm, SL_LAYOUT_PAGE_FIRST, (sl_key){1, 1}, &g,
                              err));
    const sl_cache_plane *rows = &g.shape.planes[SL_CACHE_ROWS];
    p->row_bytes = sl_cache_unit_bytes(rows), p->page_bytes = g.page_bytes;
    p->index_block_bytes = sl_geometry_index_bytes(&g);
    p->max_context = in->max_context > 0 ? in->max_context : in->cfg->max_context;
    p->tail_rows = in->tail_rows > 0 ? in->tail_rows : 64;
    for (int32_t l = 0; l < in->cfg->n_layers; l++)
        p->index_layers += in->cfg->layer_has_indexer[l];
    sl_coord_opts o = coord_opts(in, p, &g, layers, 0);
    int32_t of_run;
    p->item_tokens = in->max_item_tokens > 0 ? in->max_item_tokens : 1;
    SL_TRY(sl_coord_width(&o, &p->width, &of_run, err));
    int32_t hot = sl_plan_default_hot_rows(in->algorithm, p->width, of_run);
    p->hot_rows = in->hot_rows > 0 ? in->hot_rows : hot;
    p->all_resident = in->hot_rows <= 0 && !in->hot_rows_layer && !in->algorithm->constant_k && hot < of_run;
    o = coord_opts(in, p, &g, layers, 1);
    SL_TRY(sl_coord_plan_bytes(&o, &p->hot_meta_bytes, &p->fixed_bytes, &p->algorithm_bytes, err));
    const uint64_t page_rows = (uint64_t)sl_cache_page_bytes(rows);
    for (int32_t l = 0; l < in->cfg->n_layers; l++) {
        p->index_page_device += whole_bytes(&g, l);
        if (layers[l].absent)
            continue;
        p->index_page_device += (uint64_t)sl_algo_page_state(in->algorithm, &in->cache);
        p->resident_layers += layers[l].resident;
        *(layers[l].resident ? &p->index_page_device : &p->row_page_device) += page_rows;
        if (!layers[l].resident)
            p->hot_rows_bytes +=
                (uint64_t)(layers[l].rows.hot_rows + layers[l].rows.tail_rows) * (uint64_t)p->row_bytes;
    }
    sl_block_sizes z;
    sl_blocks_bytes swapped;
    sl_blocks_sizes(&g, &in->cache, in->cfg, p->item_tokens, p->max_context, p->tail_rows, &z);
    sl_blocks_plan(&z, &g, in->cfg, p->max_context, in->max_step_tokens, in->policy, &swapped);
    p->index_page_device -= swapped.page, p->row_page_device += swapped.page;
    p->hot_rows_bytes += swapped.hot_rows, p->hot_meta_bytes += swapped.hot_meta;
    p->fixed_bytes += swapped.fixed;
    p->state_device = (uint64_t)sl_states_bytes(&g, &in->cache, in->cfg, p->item_tokens);
    p->fixed_bytes += 4 * (uint64_t)sl_states_turns(&g, p->item_tokens) * (uint64_t)in->max_step_tokens;
    if (p->state_device > 0 && in->pool_unit > 0)
        p->pool_unit = in->pool_unit, p->pool_edges = edges_of(in, p, &g);
    p->snapshot_host = (uint64_t)sl_snapshot_pages(&g) * (uint64_t)g.page_bytes;
    if (in->algorithm->state_tokens && in->algorithm->page_state && p->resident_layers == 0 &&
        p->index_page_device == (uint64_t)in->cfg->n_layers * (uint64_t)in->algorithm->page_state(&in->cache))
        p->index_tokens =
            in->algorithm->state_tokens(&in->cache, p->max_context, p->max_context) + SL_PLAN_GENERATED;
    add_tables(in, o.max_seqs, p);
    p->scratch_bytes = scratch_bytes(in, p, o.max_seqs);
    p->fixed_bytes += p->scratch_bytes;
    p->host_pages = (int64_t)(in->host_bytes / (uint64_t)p->page_bytes);
    p->row_sums_bytes = sl_row_sums_bytes(&g, p->host_pages);
    p->fixed_bytes += in->row_sums ? sl_row_marks_bytes(p->host_pages) : 0;
    return SL_OK;
}

static int64_t at_most(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t index_pages_for(const sl_plan *p, int32_t context)
{
    return sl_pages_for(p->index_tokens > 0 && p->index_tokens < context ? p->index_tokens : context);
}

static uint64_t without(uint64_t bytes, uint64_t taken)
{
    return bytes > taken ? bytes - taken : 0;
}

static uint64_t slots_meta(const sl_plan *p, int32_t max_seqs)
{
    return (uint64_t)max_seqs * p->hot_meta_bytes;
}

static sl_plan_row plan_row(const sl_plan *p, uint64_t host_bytes, int64_t most_seqs, int32_t context)
{
    uint64_t n = (uint64_t)sl_pages_for(context), index = (uint64_t)index_pages_for(p, context);
    sl_plan_row r = {
        .context = context,
        .resident_bytes = index * p->index_page_device + n * p->row_page_device + p->state_device,
        .hierarchical_bytes =
            index * p->index_page_device + p->hot_rows_bytes + p->hot_meta_bytes + p->state_device,
        .host_bytes = n * (uint64_t)p->page_bytes + p->snapshot_host,
    };
    if (context > p->max_context)
        return r;
    r.resident_gpu = (int64_t)(without(p->cache_bytes, p->pool_edges) / r.resident_bytes);
    if (p->pool_unit > 0) /* all of the hot slots' metadata is there from the start */
        r.hierarchical_gpu = (int64_t)(without(p->cache_bytes, p->pool_edges + slots_meta(p, p->max_seqs)) /
                                       (r.hierarchical_bytes - p->hot_meta_bytes));
    else
        r.hierarchical_gpu = (int64_t)(p->cache_bytes / r.hierarchical_bytes);
    r.resident_gpu = at_most(r.resident_gpu, most_seqs);
    r.hierarchical_gpu = at_most(r.hierarchical_gpu, most_seqs);
    r.host_batch = (int64_t)(host_bytes / r.host_bytes);
    r.resident_batch = at_most(r.resident_gpu, r.host_batch);
    r.hierarchical_batch = at_most(r.hierarchical_gpu, r.host_batch);
    return r;
}

sl_status sl_plan_make(const sl_plan_in *in, sl_plan *out, sl_err *err)
{
    sl_plan p = {0};
    SL_TRY(plan_sizes(in, &p, err));
    uint64_t taken = in->weight_bytes + in->reserve_bytes + sl_plan_group_bytes(in) + p.fixed_bytes;
    p.cache_bytes = in->gpu_bytes > taken ? in->gpu_bytes - taken : 0;
    p.n_rows = SL_PLAN_ROWS;
    for (int32_t i = 0; i < p.n_rows; i++)
        p.rows[i] = plan_row(&p, in->host_bytes, in->max_seqs > 0 ? in->max_seqs : INT64_MAX, contexts[i]);
    *out = p;
    return SL_OK;
}

static sl_status too_small(const sl_plan *p, uint64_t need, sl_err *err)
{
    return sl_fail(
        err, SL_ERR_DEVICE_MEMORY,
        "device memory: %.1f MiB are left for the cache, the smallest configuration needs %.1f MiB; fewer "
        "sequences, hot_rows or a shorter context would help",
        (double)p->cache_bytes / 1048576, (double)need / 1048576);
}

static void set_opts(const sl_plan *p, bool hot, int32_t max_seqs, int32_t max_context, sl_engine_opts *out)
{
    out->max_seqs = max_seqs;
    out->max_hot_seqs = hot ? max_seqs : 0;
    out->max_context = max_context;
    out->hot_rows = p->hot_rows;
    out->tail_rows = p->tail_rows;
    out->max_item_tokens = p->item_tokens;
}

/* As many pages as the memory could hold if it held nothing else. */
static int64_t pages_in(uint64_t bytes, uint64_t page, int64_t most)
{
    return page > 0 ? at_most(most, (int64_t)(bytes / page)) : most;
}

static sl_status one_pool(const sl_plan *p, bool hot, int32_t max_seqs, int32_t max_context,
                          sl_engine_opts *out, sl_err *err)
{
    const int64_t per_seq = sl_pages_for(max_context), most = per_seq * max_seqs;
    const uint64_t meta = hot ? slots_meta(p, max_seqs) : 0,
                   one = (uint64_t)index_pages_for(p, max_context) * p->index_page_device + p->state_device +
                         (hot ? p->hot_rows_bytes : (uint64_t)per_seq * p->row_page_device),
                   need = meta + one + p->pool_edges;
    if (p->cache_bytes < need)
        return too_small(p, need, err);
    set_opts(p, hot, max_seqs, max_context, out);
    out->pool_bytes = (p->cache_bytes - meta) / p->pool_unit * p->pool_unit;
    out->index_pages = pages_in(out->pool_bytes, p->index_page_device, most);
    out->row_pages = pages_in(out->pool_bytes, p->row_page_device, most);
    return SL_OK;
}

sl_status sl_plan_pools(const sl_plan *p, sl_residency mode, int32_t max_seqs, int32_t max_context,
                        sl_engine_opts *out, sl_err *err)
{
    int64_t per_seq = sl_pages_for(max_context), most = per_seq * max_seqs;
    int64_t planned = index_pages_for(p, max_context) * max_seqs,
            most_index = planned > per_seq ? planned : per_seq;
    bool hot = mode == SL_HIERARCHICAL;
    if (p->pool_unit > 0)
        return one_pool(p, hot, max_seqs, max_context, out, err);
    uint64_t slots =
        (uint64_t)max_seqs * (p->state_device + (hot ? p->hot_rows_bytes + p->hot_meta_bytes : 0));
    uint64_t page = p->index_page_device + (hot ? 0 : p->row_page_device);
    uint64_t need = slots + (uint64_t)per_seq * page;
    if (p->cache_bytes < need)
        return too_small(p, need, err);
    uint64_t left = p->cache_bytes - slots;
    int64_t index = page > 0 ? at_most(most, (int64_t)(left / page)) : most, rows = index;
    if (p->index_tokens > 0)
        index = at_most(most_index, hot ? (int64_t)(left / p->index_page_device) : index);
    left -= (uint64_t)index * page;
    set_opts(p, hot, max_seqs, max_context, out);
    out->pool_bytes = 0;
    out->index_pages = index;
    out->row_pages = !hot                 ? rows
                     : p->row_page_device ? at_most(most, (int64_t)(left / p->row_page_device))
                                          : most;
    return SL_OK;
}
