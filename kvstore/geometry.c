/*
 * Page geometry: sizes from the model's dimensions, layouts as strides, the wire form that peers compare.
 *
 * Every layout gives the same bytes per page; only where a layer's rows and index block lie differs, so
 * planes of a remote arena are computed with the same functions from its base address and page count.
 */
#include <inttypes.h>
#include <string.h>

#include "kernels/cache.h"
#include "kvstore/arena.h"

enum {
    GEOMETRY_VERSION = 1,
    MAX_LORA = 4096,
    MAX_ROPE = 1024,
    MAX_INDEX_DIM = 1024,
};

static const sl_layout_desc layouts[] = {
    [SL_LAYOUT_PAGE_FIRST] = {"page_first", "a page is contiguous: layer by layer", SL_LAYOUT_PAGE_FIRST},
    [SL_LAYOUT_LAYER_FIRST] = {"layer_first", "a layer's rows of all pages are contiguous",
                               SL_LAYOUT_LAYER_FIRST},
    [SL_LAYOUT_PAGE_HEAD] = {"page_head", "a token's rows of all layers are contiguous", SL_LAYOUT_PAGE_HEAD},
};
static const char *const layout_names[] = {"page_first", "layer_first", "page_head", NULL};

const sl_layout_desc *sl_layout_find(const char *name)
{
    for (size_t i = 0; name && i < SL_COUNT(layouts); i++)
        if (strcmp(layouts[i].name, name) == 0)
            return &layouts[i];
    return NULL;
}

const char *const *sl_layout_names(void)
{
    return layout_names;
}

const char *sl_layout_name(sl_layout l)
{
    return (unsigned)l < SL_COUNT(layouts) ? layouts[l].name : "?";
}

static int32_t indexers_before(const sl_geometry *g, int32_t layer)
{
    int32_t n = 0;
    for (int32_t l = 0; l < layer; l++)
        n += g->has_index[l];
    return n;
}

static sl_status check(const sl_geometry *g, sl_err *err)
{
    if (g->n_layers < 1 || g->n_layers > SL_GEOMETRY_MAX_LAYERS)
        return sl_fail(err, SL_ERR_INVALID, "geometry: n_layers %d is not in 1..%d", g->n_layers,
                       SL_GEOMETRY_MAX_LAYERS);
    if ((unsigned)g->layout >= SL_COUNT(layouts))
        return sl_fail(err, SL_ERR_INVALID, "geometry: layout %d is unknown", (int)g->layout);
    if ((unsigned)g->row_format > SL_ROW_MLA_FP8)
        return sl_fail(err, SL_ERR_INVALID, "geometry: row_format %d is unknown", (int)g->row_format);
    if ((unsigned)g->index_format > SL_INDEX_OFFICIAL)
        return sl_fail(err, SL_ERR_INVALID, "geometry: index_format %d is unknown", (int)g->index_format);
    if (g->lora < 1 || g->lora > MAX_LORA)
        return sl_fail(err, SL_ERR_INVALID, "geometry: lora %d is not in 1..%d", g->lora, MAX_LORA);
    if (g->rope < 0 || g->rope > MAX_ROPE)
        return sl_fail(err, SL_ERR_INVALID, "geometry: rope %d is not in 0..%d", g->rope, MAX_ROPE);
    bool indexed = indexers_before(g, g->n_layers) > 0;
    if (indexed && (g->index_dim < 1 || g->index_dim > MAX_INDEX_DIM))
        return sl_fail(err, SL_ERR_INVALID, "geometry: index_dim %d is not in 1..%d", g->index_dim,
                       MAX_INDEX_DIM);
    return SL_OK;
}

sl_status sl_geometry_finish(sl_geometry *g, sl_err *err)
{
    sl_status st = check(g, err);
    if (st != SL_OK)
        return st;
    int32_t indexed = indexers_before(g, g->n_layers);
    g->row_bytes = sl_row_bytes(g->row_format, g->lora, g->rope);
    g->index_block_bytes = indexed ? sl_index_block_bytes(g->index_format, g->index_dim) : 0;
    g->page_bytes = g->n_layers * SL_PAGE_TOKENS * g->row_bytes + indexed * g->index_block_bytes;
    return SL_OK;
}

void sl_geometry_write(const sl_geometry *g, sl_wr *w)
{
    sl_wr_u8(w, GEOMETRY_VERSION);
    sl_wr_u64(w, g->fingerprint.lo);
    sl_wr_u64(w, g->fingerprint.hi);
    sl_wr_u8(w, (uint8_t)g->layout);
    sl_wr_u8(w, (uint8_t)g->row_format);
    sl_wr_u8(w, (uint8_t)g->index_format);
    sl_wr_i32(w, g->lora);
    sl_wr_i32(w, g->rope);
    sl_wr_i32(w, g->index_dim);
    sl_wr_i32(w, g->n_layers);
    for (int32_t l = 0; l < g->n_layers; l++)
        sl_wr_u8(w, g->has_index[l]);
}

sl_status sl_geometry_read(const void *bytes, size_t n, sl_geometry *out, sl_err *err)
{
    sl_rd r = sl_rd_init(bytes, n);
    uint8_t version = sl_rd_u8(&r);
    if (r.bad || version != GEOMETRY_VERSION)
        return sl_fail(err, SL_ERR_CORRUPT, "geometry: version %u, this build knows %d", version,
                       GEOMETRY_VERSION);
    sl_geometry g;
    memset(&g, 0, sizeof g);
    g.fingerprint.lo = sl_rd_u64(&r);
    g.fingerprint.hi = sl_rd_u64(&r);
    g.layout = (sl_layout)sl_rd_u8(&r);
    g.row_format = (sl_row_format)sl_rd_u8(&r);
    g.index_format = (sl_index_format)sl_rd_u8(&r);
    g.lora = sl_rd_i32(&r);
    g.rope = sl_rd_i32(&r);
    g.index_dim = sl_rd_i32(&r);
    g.n_layers = sl_rd_i32(&r);
    if (r.bad || g.n_layers < 1 || g.n_layers > SL_GEOMETRY_MAX_LAYERS)
        return sl_fail(err, SL_ERR_CORRUPT, "geometry: bad n_layers");
    for (int32_t l = 0; l < g.n_layers; l++) {
        uint8_t v = sl_rd_u8(&r);
        r.bad |= v > 1;
        g.has_index[l] = v == 1;
    }
    if (sl_rd_done(&r) != SL_OK)
        return sl_fail(err, SL_ERR_CORRUPT, "geometry: %zu bytes do not hold %d layers", n, g.n_layers);
    if (sl_geometry_finish(&g, err) != SL_OK)
        return SL_ERR_CORRUPT;
    *out = g;
    return SL_OK;
}

static sl_status differs(sl_err *err, const char *field, int64_t mine, int64_t theirs)
{
    return sl_fail(err, SL_ERR_REFUSED, "%s differs: %" PRId64 " here, %" PRId64 " there", field, mine,
                   theirs);
}

sl_status sl_geometry_compatible(const sl_geometry *mine, const sl_geometry *theirs, sl_err *err)
{
    if (mine->n_layers != theirs->n_layers)
        return differs(err, "n_layers", mine->n_layers, theirs->n_layers);
    if (mine->lora != theirs->lora)
        return differs(err, "kv_lora_rank", mine->lora, theirs->lora);
    if (mine->rope != theirs->rope)
        return differs(err, "qk_rope_head_dim", mine->rope, theirs->rope);
    if (mine->row_format != theirs->row_format)
        return sl_fail(err, SL_ERR_REFUSED, "row_format differs: %s here, %s there",
                       sl_row_format_name(mine->row_format), sl_row_format_name(theirs->row_format));
    if (mine->index_format != theirs->index_format)
        return sl_fail(err, SL_ERR_REFUSED, "index_format differs: %s here, %s there",
                       sl_index_format_name(mine->index_format), sl_index_format_name(theirs->index_format));
    if (mine->index_dim != theirs->index_dim)
        return differs(err, "index_head_dim", mine->index_dim, theirs->index_dim);
    for (int32_t l = 0; l < mine->n_layers; l++) {
        if (mine->has_index[l] != theirs->has_index[l])
            return sl_fail(err, SL_ERR_REFUSED, "layer %d: indexer %s here, %s there", l,
                           mine->has_index[l] ? "yes" : "no", theirs->has_index[l] ? "yes" : "no");
    }
    if (!sl_key_eq(mine->fingerprint, theirs->fingerprint))
        return sl_fail(err, SL_ERR_REFUSED,
                       "model fingerprint differs: %016" PRIx64 "%016" PRIx64 " here, %016" PRIx64
                       "%016" PRIx64 " there",
                       mine->fingerprint.hi, mine->fingerprint.lo, theirs->fingerprint.hi,
                       theirs->fingerprint.lo);
    return SL_OK;
}

/* Bytes of one page's planes in all layers before this one. */
static int64_t bytes_before(const sl_geometry *g, int32_t layer)
{
    return layer * SL_PAGE_TOKENS * g->row_bytes + indexers_before(g, layer) * g->index_block_bytes;
}

sl_host_plane sl_geometry_row_plane(const sl_geometry *g, uint8_t *base, int64_t n_pages, int32_t layer)
{
    int64_t rows = SL_PAGE_TOKENS * g->row_bytes;
    switch (g->layout) {
    case SL_LAYOUT_PAGE_FIRST:
        return (sl_host_plane){base + bytes_before(g, layer), g->page_bytes, g->row_bytes};
    case SL_LAYOUT_LAYER_FIRST:
        return (sl_host_plane){base + n_pages * bytes_before(g, layer), rows, g->row_bytes};
    case SL_LAYOUT_PAGE_HEAD:
        return (sl_host_plane){base + layer * g->row_bytes, g->page_bytes, g->n_layers * g->row_bytes};
    }
    return (sl_host_plane){0};
}

sl_host_plane sl_geometry_index_plane(const sl_geometry *g, uint8_t *base, int64_t n_pages, int32_t layer)
{
    int64_t rows = SL_PAGE_TOKENS * g->row_bytes;
    if (!g->has_index[layer])
        return (sl_host_plane){0};
    switch (g->layout) {
    case SL_LAYOUT_PAGE_FIRST:
        return (sl_host_plane){base + bytes_before(g, layer) + rows, g->page_bytes, 0};
    case SL_LAYOUT_LAYER_FIRST:
        return (sl_host_plane){base + n_pages * (bytes_before(g, layer) + rows), g->index_block_bytes, 0};
    case SL_LAYOUT_PAGE_HEAD:
        return (sl_host_plane){base + g->n_layers * rows + indexers_before(g, layer) * g->index_block_bytes,
                               g->page_bytes, 0};
    }
    return (sl_host_plane){0};
}
