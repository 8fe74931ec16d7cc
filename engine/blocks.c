/* See blocks.h. */
#include "engine/blocks.h"

#include <stdlib.h>

#include "sparse/load.h"

/* ---- sizes ---- */

/* Rows are copied in pieces of SL_ROW_ALIGN bytes, so everything that lies in a page must be a multiple. */
static bool all_aligned(const sl_geometry *g, const sl_model_config *cfg)
{
    for (int32_t l = 0; l < cfg->n_layers; l++)
        for (int32_t p = 0; p < g->shape.n_planes; p++)
            if (sl_geometry_has(g, l, p) && sl_cache_page_bytes(&g->shape.planes[p]) % SL_ROW_ALIGN)
                return false;
    return true;
}

/* A unit is a row if it is one entry. Where entries divide no page, a unit is a page of several, and stays on the device. */
static bool can_be_rows(const sl_layer_class *c)
{
    const sl_cache_plane *p = &c->planes[0];
    const int32_t unit = p->unit_tokens;
    return c->n_planes > 0 && c->chosen > 0 && p->heads == 1 && p->n_parts == 1 &&
           p->parts[0].per == SL_PER_CLOSED_UNIT && unit <= SL_PAGE_TOKENS && (unit & (unit - 1)) == 0 &&
           sl_cache_unit_bytes(p) % SL_ROW_ALIGN == 0;
}

static int32_t least(int64_t a, int64_t b)
{
    return (int32_t)(a < b ? a : b);
}

void sl_blocks_sizes(const sl_geometry *g, const sl_cache_dims *cache, const sl_model_config *cfg,
                     int32_t item_tokens, int32_t max_context, int32_t tail_rows, sl_block_sizes *out)
{
    const int32_t run = item_tokens > 0 ? item_tokens : 1;
    sl_block_sizes z = {.class = -1};
    for (int32_t k = 0; k < cache->n_classes && z.class < 0; k++)
        if (can_be_rows(&cache->classes[k]))
            z.class = k;
    *out = z;
    if (z.class < 0 || !all_aligned(g, cfg))
        return;
    const sl_layer_class *c = &cache->classes[z.class];
    z.bytes = sl_cache_unit_bytes(&c->planes[0]);
    while (1 << z.log2 < c->planes[0].unit_tokens)
        z.log2++;
    const int64_t all = sl_blocks_for(max_context, z.log2);
    z.spare = sl_blocks_for(run - 1, z.log2);
    z.of_run = least((int64_t)run * c->chosen, all);
    z.hot = least(least((int64_t)(run + 1) * c->chosen, all), SL_HOT_ROWS_MAX);
    z.tail = sl_blocks_for(tail_rows, z.log2);
    z.tail = z.tail > 2 * z.spare + 1 ? z.tail : 2 * z.spare + 1;
    z.k = z.of_run <= z.hot ? c->chosen : 0;
    *out = z;
}

int32_t sl_blocks_plane(const sl_block_sizes *z, const sl_geometry *g, const sl_model_config *cfg,
                        int32_t layer)
{
    if (z->k == 0 || cfg->layer_class[layer] != z->class)
        return -1;
    for (int32_t p = 0; p < g->shape.n_planes; p++)
        if (g->shape.planes[p].role == SL_PLANE_BLOCKS && sl_geometry_has(g, layer, p))
            return p;
    return -1;
}

/* The layers as the swap-in manager sees them, without addresses. */
static void fill_layers(const sl_block_sizes *z, const sl_geometry *g, const sl_model_config *cfg,
                        int64_t row_pages, sl_coord_layer *layers)
{
    for (int32_t l = 0; l < cfg->n_layers; l++) {
        const bool is = sl_blocks_plane(z, g, cfg, l) >= 0;
        layers[l] = (sl_coord_layer){.absent = !is, .resident = !is};
        if (is)
            layers[l].rows = (sl_row_view){.row_bytes = z->bytes,
                                           .hot_base = (int32_t)(row_pages * (SL_PAGE_TOKENS >> z->log2)),
                                           .hot_rows = z->hot,
                                           .tail_rows = z->tail,
                                           .block_log2 = z->log2};
    }
}

static sl_swapin_opts swapin_opts(const sl_block_sizes *z, const sl_coord_layer *layers, int32_t n_layers,
                                  int32_t slots, int32_t max_context, sl_evict_policy policy)
{
    return (sl_swapin_opts){.n_layers = n_layers,
                            .layers = layers,
                            .hot_slots = slots,
                            .max_tokens = max_context,
                            .width = z->k,
                            .of_run = z->of_run,
                            .spare = z->spare,
                            .policy = policy,
                            .block_log2 = z->log2};
}

void sl_blocks_plan(const sl_block_sizes *z, const sl_geometry *g, const sl_model_config *cfg,
                    int32_t max_context, int32_t max_step_tokens, sl_evict_policy policy,
                    sl_blocks_bytes *out)
{
    sl_coord_layer layers[SL_MAX_LAYERS];
    *out = (sl_blocks_bytes){0};
    if (z->k == 0)
        return;
    fill_layers(z, g, cfg, 0, layers);
    sl_swapin_opts o = swapin_opts(z, layers, cfg->n_layers, 1, max_context, policy);
    sl_swapin_plan_bytes(&o, &out->hot_meta, &out->fixed);
    out->fixed += 4 * (uint64_t)max_step_tokens * (uint64_t)z->k;
    for (int32_t l = 0; l < cfg->n_layers; l++) {
        if (layers[l].absent)
            continue;
        out->page += (uint64_t)(z->bytes * (SL_PAGE_TOKENS >> z->log2));
        out->hot_rows += (uint64_t)(z->bytes * (z->hot + z->tail));
    }
}

/* ---- memory ---- */

static sl_status alloc_rows(sl_engine *e, const sl_block_sizes *z, sl_blocks *b, sl_err *err)
{
    for (int32_t l = 0; l < e->cfg->n_layers; l++) {
        const int32_t p = sl_blocks_plane(z, &e->geo, e->cfg, l);
        sl_coord_layer *y = &b->layers[l];
        if (p < 0)
            continue;
        const int64_t rows =
            y->rows.hot_base + (int64_t)e->o.max_hot_seqs * (y->rows.hot_rows + y->rows.tail_rows);
        if (e->o.row_pages * (SL_PAGE_TOKENS >> z->log2) > INT32_MAX || rows > INT32_MAX)
            return sl_fail(err, SL_ERR_TOO_LARGE, "engine: more than 2^31 units of layer %d on the device",
                           l);
        SL_TRY(sl_dmem_objects(e->mem, SL_DPOOL_ROWS, (SL_PAGE_TOKENS >> z->log2) * z->bytes,
                               (rows > 0 ? rows : 1) * z->bytes, &y->rows.base, err));
        SL_TRY(sl_dmem_also(e->mem, SL_DPOOL_HOT, y->rows.base + y->rows.hot_base * z->bytes,
                            (y->rows.hot_rows + y->rows.tail_rows) * z->bytes, err));
        y->host_rows = e->layers[l].planes[p].host;
    }
    return SL_OK;
}

sl_status sl_blocks_init(sl_engine *e, sl_err *err)
{
    sl_block_sizes z;
    sl_blocks_sizes(&e->geo, &e->cache, e->cfg, e->item_tokens, e->o.max_context, e->o.tail_rows, &z);
    if (z.k == 0 || e->o.max_hot_seqs == 0)
        return SL_OK;
    sl_blocks *b = e->blocks = calloc(1, sizeof *b);
    if (b)
        b->layers = calloc((size_t)e->cfg->n_layers, sizeof *b->layers);
    if (!b || !b->layers)
        return sl_fail(err, SL_ERR_NO_MEMORY, "engine: out of memory");
    b->k = z.k;
    fill_layers(&z, &e->geo, e->cfg, e->o.row_pages, b->layers);
    SL_TRY(alloc_rows(e, &z, b, err));
    SL_TRY(sl_dmem_alloc(e->mem, 4 * (uint64_t)e->o.max_step_tokens * (uint64_t)z.k, (void **)&b->phys, err));
    sl_swapin_opts o =
        swapin_opts(&z, b->layers, e->cfg->n_layers, e->o.max_hot_seqs, e->o.max_context, e->o.policy);
    o.poison = e->o.poison;
    SL_TRY(sl_swapin_create(e->be, &o, &b->swapin, err));
    sl_dmem_count(e->mem, sl_swapin_device_bytes(b->swapin));
    return SL_OK;
}

void sl_blocks_fini(sl_engine *e)
{
    sl_blocks *b = e->blocks;
    if (!b)
        return;
    sl_swapin_destroy(b->swapin);
    sl_be_free(e->be, SL_MEM_DEVICE, b->phys);
    for (int32_t l = 0; b->layers && l < e->cfg->n_layers; l++)
        sl_dmem_free_objects(e->mem, b->layers[l].rows.base);
    free(b->layers);
    free(b);
}

/* ---- requests and steps ---- */

sl_status sl_blocks_load(sl_seq *s, int32_t first, int32_t end, sl_err *err)
{
    const sl_engine *e = s->e;
    const sl_blocks *b = e->blocks;
    const int64_t at = (int64_t)s->row * e->ld;
    if (!b)
        return SL_OK;
    if (s->hot_slot >= 0)
        SL_TRY(sl_swapin_reset(b->swapin, s->hot_slot, true, err));
    for (int32_t l = 0; l < e->cfg->n_layers && end > first; l++) {
        const sl_coord_layer *y = &b->layers[l];
        if (y->absent)
            continue;
        if (s->hot_slot >= 0) /* units that are complete */
            SL_TRY(sl_load_tail(e->be, y, e->host.host_pages + at, s->hot_slot,
                                s->len >> y->rows.block_log2 << y->rows.block_log2, err));
        else
            SL_TRY(sl_load_rows(e->be, y, e->host.host_pages + at + first, e->host.row_pages + at + first,
                                (end - first) * SL_PAGE_TOKENS, err));
    }
    return SL_OK;
}

sl_status sl_blocks_step(sl_engine *e, sl_err *err)
{
    const sl_blocks *b = e->blocks;
    return b ? sl_swapin_step(b->swapin, true, err) : SL_OK;
}

void sl_blocks_forget(sl_engine *e, const sl_seq *s)
{
    const sl_blocks *b = e->blocks;
    if (b && s->hot_slot >= 0)
        (void)sl_swapin_reset(b->swapin, s->hot_slot, false, NULL);
}

sl_status sl_blocks_fetch(void *ctx, int32_t layer, const sl_seq_tables *seqs, const int32_t *ids,
                          const int32_t **phys, sl_err *err)
{
    const sl_engine *e = ctx;
    const sl_blocks *b = e->blocks;
    if (!b || b->layers[layer].absent)
        return sl_fail(err, SL_ERR_INTERNAL, "engine: units of layer %d are on the device whole", layer);
    SL_TRY(sl_swapin_resolve(b->swapin, layer, seqs, ids, b->phys, b->k, err));
    SL_TRY(sl_swapin_gather(b->swapin, layer, err));
    *phys = b->phys;
    return SL_OK;
}
