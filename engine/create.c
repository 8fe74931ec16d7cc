/* Creation of an engine; see engine.h. Sequences are in seq.c, steps in step.c. */
#include "engine/draft.h"
#include "engine/engine_impl.h"
#include "engine/flight.h"
#include "engine/sampling.h"
#include "engine/blocks.h"
#include "engine/scratch.h"
#include "engine/states.h"
#include "kernels/paths.h"

#include <stdlib.h>
#include <string.h>

#define MAX_POOL_PAGES (INT32_MAX / SL_PAGE_TOKENS / 2)

sl_cache_dims sl_engine_cache_dims(const sl_model_config *cfg, sl_row_format row, sl_index_format index)
{
    sl_cache_dims d;
    sl_model_cache_dims(cfg, row, index, &d);
    return d;
}

sl_status sl_engine_geometry(const sl_model_config *cfg, const sl_cache_dims *cache,
                             const sl_algo_desc *algorithm, sl_layout layout, sl_key fingerprint,
                             sl_geometry *out, sl_err *err)
{
    sl_cache_shape shape;
    SL_TRY(sl_algo_cache_shape(algorithm, cache, &shape, err));
    sl_geometry_opts o = {.fingerprint = fingerprint,
                          .layout = layout,
                          .shape = &shape,
                          .n_layers = cfg->n_layers,
                          .has_indexer = cfg->layer_has_indexer,
                          .classes = cache->classes,
                          .n_classes = cache->n_classes,
                          .layer_class = cfg->layer_class};
    return sl_geometry_make(&o, out, err);
}

/* ---- create ---- */

static sl_status check_opts(const sl_engine_opts *o, const sl_model_opts *m, const sl_model_config *cfg,
                            sl_err *err)
{
    if (!o->algorithm)
        return sl_fail(err, SL_ERR_INVALID, "engine: no algorithm");
    if (o->max_seqs < 1 || o->max_hot_seqs < 0 || o->max_hot_seqs > o->max_seqs)
        return sl_fail(err, SL_ERR_INVALID, "engine: max_seqs %d, max_hot_seqs %d", o->max_seqs,
                       o->max_hot_seqs);
    if (o->max_step_tokens < 1 || o->max_step_tokens > m->max_tokens)
        return sl_fail(err, SL_ERR_INVALID,
                       "engine: max_step_tokens %d is outside 1..%d, the model's max_tokens",
                       o->max_step_tokens, m->max_tokens);
    if (o->max_context < 1 || o->max_context > cfg->max_context)
        return sl_fail(err, SL_ERR_INVALID, "engine: max_context %d is outside 1..%d, the model's limit",
                       o->max_context, cfg->max_context);
    if (o->index_pages < 1 || o->index_pages > MAX_POOL_PAGES || o->row_pages < 0 ||
        o->row_pages > MAX_POOL_PAGES)
        return sl_fail(err, SL_ERR_INVALID, "engine: index_pages %lld, row_pages %lld",
                       (long long)o->index_pages, (long long)o->row_pages);
    if (o->max_item_tokens < 0 || o->max_item_tokens > SL_RUN_TOKENS_MAX)
        return sl_fail(err, SL_ERR_INVALID, "engine: max_item_tokens %d is outside 0..%d", o->max_item_tokens,
                       SL_RUN_TOKENS_MAX);
    for (int32_t l = 0; o->hot_rows_layer && l < cfg->n_layers; l++)
        if (o->hot_rows_layer[l] < SL_HOT_RESIDENT)
            return sl_fail(err, SL_ERR_INVALID, "engine: hot_rows_layer %d of layer %d", o->hot_rows_layer[l],
                           l);
    return SL_OK;
}

/* Hot rows of a layer; SL_HOT_RESIDENT: all of them. */
static int32_t hot_rows_of(const sl_engine *e, int32_t l)
{
    const sl_engine_opts *o = &e->o;
    int32_t n = o->hot_rows_layer ? o->hot_rows_layer[l] : 0;
    return n ? n : sl_coord_layer_hot(o->algorithm, &e->cache, &o->gates, o->max_context, l, o->hot_rows);
}

static sl_status place_rows(const sl_engine *e, int32_t l, sl_coord_layer *y, int64_t *rows, sl_err *err)
{
    int32_t hot = hot_rows_of(e, l);
    bool any = e->o.max_hot_seqs > 0;
    y->absent = !sl_geometry_has(&e->geo, l, SL_CACHE_ROWS);
    y->resident = y->absent || hot == SL_HOT_RESIDENT ||
                  sl_algo_leaves_out(e->o.algorithm, &e->cache, e->cfg->layer_has_indexer[l]);
    if (y->absent) {
        *rows = 0;
        return SL_OK;
    }
    const sl_cache_plane *p = &e->geo.shape.planes[SL_CACHE_ROWS];
    int64_t pool = (y->resident ? e->o.index_pages : e->o.row_pages) * sl_cache_page_units(p);
    y->rows = (sl_row_view){.row_bytes = sl_cache_unit_bytes(p),
                            .hot_rows = any && !y->resident ? sl_cache_units(p, hot) : 0,
                            .tail_rows = any ? sl_cache_units(p, e->o.tail_rows) : 0};
    *rows = pool;
    if (!y->resident)
        *rows += (int64_t)e->o.max_hot_seqs * ((int64_t)y->rows.hot_rows + y->rows.tail_rows);
    if (*rows > INT32_MAX)
        return sl_fail(err, SL_ERR_TOO_LARGE, "engine: more than 2^31 rows of layer %d on the device", l);
    y->rows.hot_base = (int32_t)pool;
    return SL_OK;
}

static sl_status check_arena(sl_engine *e, sl_err *err)
{
    const sl_model_opts *m = sl_model_get_opts(e->model);
    const sl_geometry *g = sl_arena_geometry(e->arena);
    sl_geometry want;
    e->cache = sl_engine_cache_dims(e->cfg, m->row_format, m->index_format);
    e->cache.select = e->o.select;
    SL_TRY(sl_engine_geometry(e->cfg, &e->cache, e->o.algorithm, g->layout, sl_model_fingerprint(e->model),
                              &want, err));
    SL_TRY(sl_geometry_compatible(&want, g, err));
    e->geo = *g;
    return SL_OK;
}

/* The rows of a layer: pages, then the hot slots. */
static sl_status alloc_rows(sl_engine *e, sl_coord_layer *y, int64_t rows, sl_err *err)
{
    const int64_t page = sl_cache_page_bytes(&e->geo.shape.planes[SL_CACHE_ROWS]),
                  slot = (int64_t)(y->rows.hot_rows + y->rows.tail_rows) * y->rows.row_bytes;
    SL_TRY(sl_dmem_objects(e->mem, y->resident ? SL_DPOOL_INDEX : SL_DPOOL_ROWS, page,
                           (rows > 0 ? rows : 1) * y->rows.row_bytes, &y->rows.base, err));
    if (y->resident || e->o.max_hot_seqs == 0)
        return SL_OK;
    return sl_dmem_also(e->mem, SL_DPOOL_HOT, y->rows.base + y->rows.hot_base * y->rows.row_bytes, slot, err);
}

/* Device memory of one layer: the row pool with the hot slots, and a pool for each plane that is on the device
 * whole. */
static sl_status make_layer(sl_engine *e, int32_t l, sl_err *err)
{
    sl_coord_layer *y = &e->layers[l];
    int64_t pages = sl_arena_pages(e->arena), rows = 0;
    uint8_t *base = sl_arena_base(e->arena);
    sl_block_sizes z;
    sl_blocks_sizes(&e->geo, &e->cache, e->cfg, e->item_tokens, e->o.max_context, e->o.tail_rows, &z);
    const int32_t swapped = e->o.max_hot_seqs > 0 ? sl_blocks_plane(&z, &e->geo, e->cfg, l) : -1;
    y->has_indexer = e->cfg->layer_has_indexer[l] && sl_geometry_has(&e->geo, l, SL_CACHE_ROWS);
    y->host_rows = sl_geometry_plane(&e->geo, base, pages, l, SL_CACHE_ROWS);
    SL_TRY(place_rows(e, l, y, &rows, err));
    if (!y->absent)
        SL_TRY(alloc_rows(e, y, rows, err));
    for (int32_t p = SL_CACHE_ROWS + 1; p < e->geo.shape.n_planes; p++) {
        if (!sl_geometry_has(&e->geo, l, p))
            continue;
        sl_algo_plane *q = &y->planes[p];
        q->host = sl_geometry_plane(&e->geo, base, pages, l, p);
        q->device_stride = sl_cache_page_bytes(&e->geo.shape.planes[p]);
        if (e->geo.shape.planes[p].host_only || p == swapped)
            continue;
        SL_TRY(sl_dmem_objects(e->mem, SL_DPOOL_INDEX, q->device_stride, e->o.index_pages * q->device_stride,
                               &q->device, err));
    }
    sl_algo_plane *state = &y->planes[SL_ALGO_STATE];
    state->device_stride = y->absent ? 0 : sl_algo_page_state(e->o.algorithm, &e->cache);
    if (state->device_stride > 0)
        SL_TRY(sl_dmem_objects(e->mem, SL_DPOOL_INDEX, state->device_stride,
                               e->o.index_pages * state->device_stride, &state->device, err));
    return SL_OK;
}

/* Whether the algorithm's state is all that is in index pages, and not all tokens need it. */
static bool index_for_few(const sl_engine *e)
{
    bool few = e->o.algorithm->state_tokens != NULL;
    for (int32_t l = 0; l < e->cfg->n_layers; l++) {
        few = few && (!e->layers[l].resident || e->layers[l].absent);
        for (int32_t p = 0; p < SL_CACHE_PLANES; p++)
            few = few && !e->layers[l].planes[p].device;
    }
    return few;
}

static sl_status make_layers(sl_engine *e, sl_err *err)
{
    e->layers = calloc((size_t)e->cfg->n_layers, sizeof *e->layers);
    if (!e->layers)
        return sl_fail(err, SL_ERR_NO_MEMORY, "engine: out of memory");
    for (int32_t l = 0; l < e->cfg->n_layers; l++)
        SL_TRY(make_layer(e, l, err));
    e->few_index = index_for_few(e);
    return SL_OK;
}

static sl_status make_coord(sl_engine *e, sl_err *err)
{
    sl_coord_opts c = {
        .algorithm = e->o.algorithm,
        .use = SL_USE_PREFIX_REUSE | SL_USE_CHUNKED_PREFILL | SL_USE_DISAGGREGATION |
               (e->o.max_hot_seqs > 0 ? SL_USE_HIERARCHICAL : 0u),
        .n_layers = e->cfg->n_layers,
        .layers = e->layers,
        .cache = e->cache,
        .max_seqs = e->o.max_seqs,
        .hot_slots = e->o.max_hot_seqs,
        .max_step_tokens = e->o.max_step_tokens,
        .max_context = e->o.max_context,
        .policy = e->o.policy,
        .gates = e->o.gates,
        .draw = e->o.draw,
        .probe = e->o.probe,
        .count_tiles = e->o.count_tiles,
        .run_tokens = e->item_tokens,
        .overlap = !e->o.sequential,
        .in_turn = e->o.in_turn,
        .groups = e->o.groups,
        .poison = e->o.poison,
    };
    return sl_coord_create(e->be, &c, &e->coord, err);
}

static sl_status make_io(sl_engine *e, sl_err *err)
{
    size_t logits = (size_t)e->max_logits * (size_t)e->cfg->vocab_size * sizeof(float);
    SL_TRY(sl_tables_make(e, SL_MEM_HOST, &e->host, err));
    SL_TRY(sl_tables_make(e, SL_MEM_DEVICE, &e->dev, err));
    SL_TRY(sl_step_arrays_make(e, SL_MEM_DEVICE, &e->in_dev, err));
    SL_TRY(sl_dmem_alloc(e->mem, logits, (void **)&e->logits_dev, err));
    e->runs = calloc((size_t)e->o.max_seqs, sizeof *e->runs);
    if (!e->runs)
        return sl_fail(err, SL_ERR_NO_MEMORY, "engine: out of memory");
    if (!e->unified)
        return sl_be_alloc(e->be, SL_MEM_HOST, logits, (void **)&e->logits_host, err);
    e->logits_host = e->logits_dev;
    return SL_OK;
}

/* Whether and how decode steps are captured. */
static sl_status make_graphs(sl_engine *e, sl_err *err)
{
    const sl_graphs_opts o = {.pad = e->o.graphs == SL_GRAPHS_PAD,
                              .capture =
                                  e->o.graphs == SL_GRAPHS_AUTO && (sl_backend_caps(e->be) & SL_BE_GRAPHS),
                              .max_graphs = e->o.max_graphs,
                              .max_seqs = e->o.max_seqs,
                              .max_tokens = e->o.max_step_tokens,
                              .max_logits = e->max_logits,
                              .max_context = e->o.max_context};
    return sl_graphs_create(&o, &e->graphs, err);
}

/* From here on no op may ask for more than the steps of this engine need. */
static sl_status plan_scratch(sl_engine *e, sl_err *err)
{
    const sl_gpu *g = sl_be_gpu(e->be);
    const sl_model_opts *m = sl_model_get_opts(e->model);
    const int32_t experts = e->cfg->moe.n_routed, ranks = m->ranks > 1 ? m->ranks : 1;
    const sl_scratch_load load = {.step_tokens = e->o.max_step_tokens,
                                  .context = e->o.max_context,
                                  .seqs = e->o.max_seqs,
                                  .ranks = ranks,
                                  .experts = (experts + ranks - 1) / ranks,
                                  .act = m->act};
    return g ? sl_be_scratch(e->be, sl_engine_scratch_bytes(g, e->cfg, &e->cache, e->o.algorithm, &load), err)
             : SL_OK;
}

static sl_status make_parts(sl_engine *e, sl_err *err)
{
    SL_TRY(check_arena(e, err));
    SL_TRY(sl_agree_create(sl_model_get_opts(e->model)->comm, e->o.max_step_tokens, &e->agree, err));
    SL_TRY(plan_scratch(e, err));
    if (!e->o.arena_readable) {
        SL_TRY(sl_be_host_register(e->be, sl_arena_base(e->arena), sl_arena_bytes(e->arena), err));
        e->registered = true;
    }
    SL_TRY(sl_dmem_create(e->be, e->o.pool_bytes, e->o.poison, &e->mem, err));
    SL_TRY(make_layers(e, err));
    SL_TRY(sl_states_init(e, err));
    SL_TRY(sl_marks_init(e, err));
    SL_TRY(sl_seqs_init(e, err));
    SL_TRY(make_io(e, err));
    SL_TRY(sl_drafts_init(e, err));
    SL_TRY(sl_choices_init(e, err));
    SL_TRY(sl_scoring_init(e, err));
    SL_TRY(sl_flights_init(e, err));
    SL_TRY(sl_reports_create(e->be, e->cfg->n_layers, &e->reports, err));
    SL_TRY(make_coord(e, err));
    SL_TRY(make_graphs(e, err));
    return sl_be_sync(e->be, err);
}

sl_status sl_engine_create(sl_backend *be, sl_model *model, sl_arena *arena, const sl_engine_opts *opts,
                           sl_engine **out, sl_err *err)
{
    const sl_model_opts *m = sl_model_get_opts(model);
    const sl_model_config *cfg = sl_model_get_config(model);
    SL_TRY(check_opts(opts, m, cfg, err));
    sl_engine *e = calloc(1, sizeof *e);
    if (!e)
        return sl_fail(err, SL_ERR_NO_MEMORY, "engine: out of memory");
    e->be = be, e->model = model, e->arena = arena, e->o = *opts, e->cfg = cfg;
    e->sync = !(sl_backend_caps(be) & SL_BE_ASYNC);
    e->unified = (sl_backend_caps(be) & SL_BE_UNIFIED) != 0;
    e->ld = sl_pages_for(opts->max_context);
    e->item_tokens = opts->max_item_tokens > 0 ? opts->max_item_tokens : 1;
    const int64_t logits = (int64_t)opts->max_seqs * e->item_tokens;
    e->max_logits = m->max_logit_rows < logits ? m->max_logit_rows : (int32_t)logits;
    sl_status st = make_parts(e, err);
    if (st != SL_OK)
        goto destroy;
    /* The coordinator has copied these arrays; the caller may free them. */
    e->o.gates.dense_layers = e->o.hot_rows_layer = NULL;
    *out = e;
    return SL_OK;
destroy:
    sl_engine_destroy(e);
    return st;
}

void sl_engine_destroy(sl_engine *e)
{
    if (!e)
        return;
    sl_seqs_fini(e);
    sl_graphs_destroy(e->graphs);
    sl_coord_destroy(e->coord);
    sl_reports_destroy(e->reports);
    sl_flights_fini(e);
    sl_drafts_fini(e);
    sl_scoring_fini(e);
    sl_choices_fini(e);
    sl_marks_fini(e);
    if (e->logits_host != e->logits_dev)
        sl_be_free(e->be, SL_MEM_HOST, e->logits_host);
    sl_be_free(e->be, SL_MEM_DEVICE, e->logits_dev);
    free(e->runs);
    sl_be_free(e->be, SL_MEM_DEVICE, e->in_dev.ids);
    sl_be_free(e->be, SL_MEM_DEVICE, e->dev.host_pages);
    sl_be_free(e->be, SL_MEM_HOST, e->host.host_pages);
    for (int32_t l = 0; e->layers && l < e->cfg->n_layers; l++) {
        for (int32_t p = 0; p < SL_ALGO_PLANES; p++)
            sl_dmem_free_objects(e->mem, e->layers[l].planes[p].device);
        sl_dmem_free_objects(e->mem, e->layers[l].rows.base);
    }
    sl_states_fini(e);
    sl_dmem_destroy(e->mem);
    free(e->layers);
    sl_agree_destroy(e->agree);
    if (e->registered)
        sl_be_host_unregister(e->be, sl_arena_base(e->arena));
    free(e);
}
