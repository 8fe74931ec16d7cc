/* Figures of an engine: what the swap-in counted and what its memory holds; see engine.h. */
#include "engine/engine_impl.h"
#include "engine/blocks.h"

#include <string.h>

/* What was counted of units of blocks. */
static void add_blocks(const sl_engine *e, bool wait, sl_layer_stats *out)
{
    const sl_blocks *b = e->blocks;
    sl_coord_counters c[SL_MAX_LAYERS];
    if (!b || (wait ? sl_swapin_counters(b->swapin, c, -1, NULL, NULL)
                    : sl_swapin_peek(b->swapin, c, NULL)) != SL_OK)
        return;
    for (int32_t l = 0; l < e->cfg->n_layers; l++) {
        out[l].hits += c[l].hits, out[l].misses += c[l].misses;
        out[l].tail_hits += c[l].tail_hits, out[l].evictions += c[l].evictions;
        out[l].swap_bytes += c[l].misses * (uint64_t)b->layers[l].rows.row_bytes;
    }
}

static void layer_stats(const sl_engine *e, bool wait, sl_layer_stats *out)
{
    sl_coord_counters c[SL_MAX_LAYERS];
    memset(out, 0, (size_t)e->cfg->n_layers * sizeof *out);
    sl_status st =
        wait ? sl_coord_counters_get(e->coord, c, -1, NULL, NULL) : sl_coord_counters_peek(e->coord, c, NULL);
    if (st != SL_OK)
        return;
    for (int32_t l = 0; l < e->cfg->n_layers; l++)
        out[l] = (sl_layer_stats){.hits = c[l].hits,
                                  .misses = c[l].misses,
                                  .tail_hits = c[l].tail_hits,
                                  .evictions = c[l].evictions,
                                  .swap_bytes = c[l].misses * (uint64_t)sl_geometry_row_bytes(&e->geo)};
    add_blocks(e, wait, out);
}

void sl_engine_layer_stats_get(const sl_engine *e, sl_layer_stats *out)
{
    layer_stats(e, true, out);
}

void sl_engine_layer_stats_peek(const sl_engine *e, sl_layer_stats *out)
{
    layer_stats(e, false, out);
}

static void pool_bytes(const sl_engine *e, sl_engine_stats *s)
{
    const sl_dpool *pool = sl_dmem_pool(e->mem);
    sl_dpool_stats p;
    sl_dpool_stats_get(pool, &p);
    s->kv_bytes = s->pool_bytes = p.total;
    s->kv_bytes_used = p.used, s->pool_free = p.total - p.used, s->pool_moved = p.moved * p.unit;
    for (sl_dpool_kind k = 0; k < SL_DPOOL_KINDS; k++)
        s->pool_held[k] =
            (uint64_t)(sl_dmem_n(e->mem, k) - sl_dmem_n_free(e->mem, k)) * sl_dpool_object_bytes(pool, k);
}

static void kv_bytes(const sl_engine *e, sl_engine_stats *s)
{
    uint64_t index_page = 0, row_page = 0, hot_slot = 0, row = (uint64_t)sl_geometry_row_bytes(&e->geo);
    uint64_t page = (uint64_t)sl_cache_page_bytes(&e->geo.shape.planes[SL_CACHE_ROWS]);
    for (int32_t l = 0; l < e->cfg->n_layers; l++) {
        const sl_coord_layer *y = &e->layers[l];
        for (int32_t p = 0; p < SL_ALGO_PLANES; p++)
            index_page += y->planes[p].device ? (uint64_t)y->planes[p].device_stride : 0;
        if (y->absent)
            continue;
        index_page += y->resident ? page : 0;
        row_page += y->resident ? 0 : page;
        hot_slot += y->resident ? 0 : (uint64_t)(y->rows.hot_rows + y->rows.tail_rows) * row;
    }
    for (int32_t l = 0; e->blocks && l < e->cfg->n_layers; l++) {
        const sl_row_view *v = &e->blocks->layers[l].rows;
        row_page += (uint64_t)((SL_PAGE_TOKENS >> v->block_log2) * v->row_bytes);
        hot_slot += (uint64_t)((v->hot_rows + v->tail_rows) * v->row_bytes);
    }
    s->kv_bytes = (uint64_t)e->o.index_pages * index_page + (uint64_t)e->o.row_pages * row_page +
                  (uint64_t)e->o.max_hot_seqs * hot_slot;
    s->kv_bytes_used = s->kv_bytes - (uint64_t)s->index_pages_free * index_page -
                       (uint64_t)s->row_pages_free * row_page - (uint64_t)s->hot_slots_free * hot_slot;
}

static void all_stats(const sl_engine *e, bool wait, sl_engine_stats *out)
{
    sl_layer_stats layers[SL_MAX_LAYERS];
    sl_engine_stats s = e->stats;
    layer_stats(e, wait, layers);
    for (int32_t l = 0; l < e->cfg->n_layers; l++) {
        s.hits += layers[l].hits;
        s.misses += layers[l].misses;
        s.tail_hits += layers[l].tail_hits;
        s.evictions += layers[l].evictions;
        s.swap_bytes += layers[l].swap_bytes;
    }
    uint64_t tiles[2];
    if (sl_coord_tiles(e->coord, tiles, NULL) == SL_OK)
        s.tiles = tiles[0], s.tiles_skipped = tiles[1];
    sl_coord_clock clock;
    sl_coord_times(e->coord, &clock);
    s.attend_ns = clock.attend_ns, s.swap_ns = clock.swap_ns, s.swap_exposed_ns = clock.exposed_ns;
    s.index_pages_free = sl_dmem_n_free(e->mem, SL_DPOOL_INDEX);
    s.row_pages_free = sl_dmem_n_free(e->mem, SL_DPOOL_ROWS);
    s.hot_slots_free = sl_dmem_n_free(e->mem, SL_DPOOL_HOT);
    s.device_bytes = sl_dmem_bytes(e->mem) + sl_coord_device_bytes(e->coord);
    (sl_dmem_pool(e->mem) ? pool_bytes : kv_bytes)(e, &s);
    *out = s;
}

void sl_engine_stats_get(const sl_engine *e, sl_engine_stats *out)
{
    all_stats(e, true, out);
}

void sl_engine_stats_peek(const sl_engine *e, sl_engine_stats *out)
{
    all_stats(e, false, out);
}
