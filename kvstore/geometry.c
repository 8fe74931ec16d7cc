/*
 * Page geometry: where the planes of a cache shape lie in an arena, and the wire form that peers compare.
 *
 * A page has the same number of bytes in every layout; only the places of the planes differ. The places in a remote
 * arena are computed by the same functions, from its base address and its number of pages. The contents of a row do not
 * matter here.
 */
#include <inttypes.h>
#include <string.h>

#include "kernels/cache.h"
#include "kvstore/arena.h"

enum { GEOMETRY_VERSION = 2 };

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

/* The number of layers before `layer` that have this plane. */
static int32_t layers_before(const sl_geometry *g, int32_t layer, int32_t plane)
{
    int32_t n = 0;
    for (int32_t l = 0; l < layer; l++)
        n += sl_geometry_has(g, l, plane);
    return n;
}

static sl_status check(const sl_geometry *g, sl_err *err)
{
    if (g->n_layers < 1 || g->n_layers > SL_GEOMETRY_MAX_LAYERS)
        return sl_fail(err, SL_ERR_INVALID, "geometry: n_layers %d is not in 1..%d", g->n_layers,
                       SL_GEOMETRY_MAX_LAYERS);
    if ((unsigned)g->layout >= SL_COUNT(layouts))
        return sl_fail(err, SL_ERR_INVALID, "geometry: layout %d is unknown", (int)g->layout);
    SL_TRY(sl_cache_shape_check(&g->shape, err));
    for (int32_t l = 0; l < g->n_layers; l++)
        for (int32_t p = 0; p < 8; p++)
            if (sl_geometry_has(g, l, p) ? p >= g->shape.n_planes
                                         : p < g->shape.n_planes && !g->shape.planes[p].indexed_only)
                return sl_fail(err, SL_ERR_INVALID, "geometry: layer %d has the wrong planes", l);
    return SL_OK;
}

static sl_status finish(sl_geometry *g, sl_err *err)
{
    SL_TRY(check(g, err));
    g->page_bytes = 0;
    for (int32_t p = 0; p < g->shape.n_planes; p++)
        g->page_bytes += layers_before(g, g->n_layers, p) * sl_cache_page_bytes(&g->shape.planes[p]);
    return SL_OK;
}

sl_status sl_geometry_make(const sl_geometry_opts *o, sl_geometry *out, sl_err *err)
{
    sl_geometry g;
    memset(&g, 0, sizeof g); /* also the padding, because tests compare geometries byte by byte */
    g.fingerprint = o->fingerprint, g.layout = o->layout, g.n_layers = o->n_layers, g.shape = *o->shape;
    for (int32_t l = 0; l < o->n_layers && l < SL_GEOMETRY_MAX_LAYERS; l++)
        for (int32_t p = 0; p < g.shape.n_planes && p < SL_CACHE_PLANES; p++)
            if (!g.shape.planes[p].indexed_only || (o->has_indexer && o->has_indexer[l]))
                g.layer_planes[l] |= (uint8_t)(1u << p);
    SL_TRY(finish(&g, err));
    *out = g;
    return SL_OK;
}

/* ---- wire form ---- */

static void write_plane(const sl_cache_plane *p, sl_wr *w)
{
    sl_wr_str(w, p->name);
    sl_wr_str(w, p->format);
    sl_wr_u64(w, p->stamp);
    sl_wr_u8(w, (uint8_t)p->role);
    sl_wr_u8(w, (uint8_t)p->scope);
    sl_wr_u8(w, p->indexed_only);
    sl_wr_i32(w, p->heads);
    sl_wr_i32(w, p->unit_tokens);
    sl_wr_u8(w, (uint8_t)p->n_parts);
    for (int32_t i = 0; i < p->n_parts; i++) {
        sl_wr_str(w, p->parts[i].name);
        sl_wr_u8(w, (uint8_t)p->parts[i].dtype);
        sl_wr_u8(w, (uint8_t)p->parts[i].per);
        sl_wr_i32(w, p->parts[i].count);
    }
}

void sl_geometry_write(const sl_geometry *g, sl_wr *w)
{
    sl_wr_u8(w, GEOMETRY_VERSION);
    sl_wr_u64(w, g->fingerprint.lo);
    sl_wr_u64(w, g->fingerprint.hi);
    sl_wr_u8(w, (uint8_t)g->layout);
    sl_wr_u8(w, (uint8_t)g->shape.n_planes);
    for (int32_t p = 0; p < g->shape.n_planes; p++)
        write_plane(&g->shape.planes[p], w);
    sl_wr_i32(w, g->n_layers);
    for (int32_t l = 0; l < g->n_layers; l++)
        sl_wr_u8(w, g->layer_planes[l]);
}

bool sl_geometry_format(const sl_geometry *g, sl_key *out)
{
    sl_geometry same = *g;
    sl_wr w;
    same.fingerprint = (sl_key){0};
    if (same.layout == SL_LAYOUT_LAYER_FIRST)
        same.layout = SL_LAYOUT_PAGE_FIRST;
    sl_wr_init(&w);
    sl_geometry_write(&same, &w);
    bool made = !w.bad;
    if (made)
        *out = sl_hash_chain((sl_key){0}, w.data, w.len);
    sl_wr_free(&w);
    return made;
}

static void read_plane(sl_rd *r, sl_cache_plane *p)
{
    sl_rd_str(r, p->name, sizeof p->name);
    sl_rd_str(r, p->format, sizeof p->format);
    p->stamp = sl_rd_u64(r);
    p->role = (sl_plane_role)sl_rd_u8(r);
    p->scope = (sl_list_scope)sl_rd_u8(r);
    uint8_t indexed_only = sl_rd_u8(r);
    r->bad |= indexed_only > 1;
    p->indexed_only = indexed_only == 1;
    p->heads = sl_rd_i32(r);
    p->unit_tokens = sl_rd_i32(r);
    p->n_parts = sl_rd_u8(r);
    for (int32_t i = 0; i < p->n_parts && i < SL_CACHE_PARTS; i++) {
        sl_rd_str(r, p->parts[i].name, sizeof p->parts[i].name);
        p->parts[i].dtype = (sl_dtype)sl_rd_u8(r);
        p->parts[i].per = (sl_part_per)sl_rd_u8(r);
        p->parts[i].count = sl_rd_i32(r);
    }
}

sl_status sl_geometry_read(const void *bytes, size_t n, sl_geometry *out, sl_err *err)
{
    sl_rd r = sl_rd_init(bytes, n);
    uint8_t version = sl_rd_u8(&r);
    if (r.bad || version != GEOMETRY_VERSION)
        return sl_fail(err, SL_ERR_CORRUPT, "geometry: version %u, this build reads version %d", version,
                       GEOMETRY_VERSION);
    sl_geometry g;
    memset(&g, 0, sizeof g);
    g.fingerprint.lo = sl_rd_u64(&r);
    g.fingerprint.hi = sl_rd_u64(&r);
    g.layout = (sl_layout)sl_rd_u8(&r);
    g.shape.n_planes = sl_rd_u8(&r);
    for (int32_t p = 0; p < g.shape.n_planes && p < SL_CACHE_PLANES; p++)
        read_plane(&r, &g.shape.planes[p]);
    g.n_layers = sl_rd_i32(&r);
    if (r.bad || g.n_layers < 1 || g.n_layers > SL_GEOMETRY_MAX_LAYERS)
        return sl_fail(err, SL_ERR_CORRUPT, "geometry: bad planes or n_layers");
    for (int32_t l = 0; l < g.n_layers; l++)
        g.layer_planes[l] = sl_rd_u8(&r);
    if (sl_rd_done(&r) != SL_OK)
        return sl_fail(err, SL_ERR_CORRUPT, "geometry: %zu bytes do not hold %d layers", n, g.n_layers);
    if (finish(&g, err) != SL_OK)
        return SL_ERR_CORRUPT;
    *out = g;
    return SL_OK;
}

sl_status sl_geometry_compatible(const sl_geometry *mine, const sl_geometry *theirs, sl_err *err)
{
    if (mine->n_layers != theirs->n_layers)
        return sl_fail(err, SL_ERR_REFUSED, "n_layers differs: %d here, %d there", mine->n_layers,
                       theirs->n_layers);
    SL_TRY(sl_cache_shape_compatible(&mine->shape, &theirs->shape, err));
    for (int32_t l = 0; l < mine->n_layers; l++)
        for (int32_t p = 0; p < mine->shape.n_planes; p++)
            if (sl_geometry_has(mine, l, p) != sl_geometry_has(theirs, l, p))
                return sl_fail(err, SL_ERR_REFUSED, "layer %d: cache plane %s: %s here, %s there", l,
                               mine->shape.planes[p].name, sl_geometry_has(mine, l, p) ? "yes" : "no",
                               sl_geometry_has(theirs, l, p) ? "yes" : "no");
    if (!sl_key_eq(mine->fingerprint, theirs->fingerprint))
        return sl_fail(err, SL_ERR_REFUSED,
                       "model fingerprint differs: %016" PRIx64 "%016" PRIx64 " here, %016" PRIx64
                       "%016" PRIx64 " there",
                       mine->fingerprint.hi, mine->fingerprint.lo, theirs->fingerprint.hi,
                       theirs->fingerprint.lo);
    return SL_OK;
}

/* ---- places ---- */

/* Bytes of a page in the layers before this one and in this layer's planes before `plane`. */
static int64_t bytes_before(const sl_geometry *g, int32_t layer, int32_t plane)
{
    int64_t bytes = 0;
    for (int32_t p = 0; p < g->shape.n_planes; p++) {
        int32_t n = layers_before(g, layer, p) + (p < plane && sl_geometry_has(g, layer, p));
        bytes += n * sl_cache_page_bytes(&g->shape.planes[p]);
    }
    return bytes;
}

/* page_head: one plane after the other; in a plane, for each unit the layers that have this plane. */
static sl_host_plane page_head_plane(const sl_geometry *g, uint8_t *base, int32_t layer, int32_t plane)
{
    const sl_cache_plane *p = &g->shape.planes[plane];
    int64_t unit = p->heads * sl_cache_unit_bytes(p), before = 0;
    for (int32_t q = 0; q < plane; q++)
        before += layers_before(g, g->n_layers, q) * sl_cache_page_bytes(&g->shape.planes[q]);
    return (sl_host_plane){.base = base + before + layers_before(g, layer, plane) * unit,
                           .page_stride = g->page_bytes,
                           .row_stride = layers_before(g, g->n_layers, plane) * unit};
}

sl_host_plane sl_geometry_plane(const sl_geometry *g, uint8_t *base, int64_t n_pages, int32_t layer,
                                int32_t plane)
{
    if (plane < 0 || !sl_geometry_has(g, layer, plane))
        return (sl_host_plane){0};
    const sl_cache_plane *p = &g->shape.planes[plane];
    int64_t unit = p->heads * sl_cache_unit_bytes(p);
    switch (g->layout) {
    case SL_LAYOUT_PAGE_FIRST:
        return (sl_host_plane){base + bytes_before(g, layer, plane), g->page_bytes, unit};
    case SL_LAYOUT_LAYER_FIRST:
        return (sl_host_plane){base + n_pages * bytes_before(g, layer, plane), sl_cache_page_bytes(p), unit};
    case SL_LAYOUT_PAGE_HEAD:
        return page_head_plane(g, base, layer, plane);
    }
    return (sl_host_plane){0};
}
