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

/*
 * The wire form says of each layer its planes (version 2), or, where that is not all, its class (version 3). A geometry has
 * one form alone, because stored pages are named by its hash.
 */
enum { PLANES_VERSION = 2, CLASSES_VERSION = 3 };

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

/* ---- classes ---- */

/* The planes of a layer that has rows of tokens. */
static uint8_t token_planes(const sl_cache_shape *s, bool indexed)
{
    uint8_t mask = 0;
    for (int32_t p = 0; p < s->n_planes && p < SL_CACHE_PLANES; p++)
        if (s->planes[p].role != SL_PLANE_BLOCKS && (indexed || !s->planes[p].indexed_only))
            mask |= (uint8_t)(1u << p);
    return mask;
}

static sl_status check_class(const sl_geometry *g, const sl_geometry_class *c, sl_err *err)
{
    if (!c->name[0] || !memchr(c->name, 0, sizeof c->name))
        return sl_fail(err, SL_ERR_INVALID, "geometry: a layer class has no name");
    SL_TRY(sl_layer_state_check(c->name, c->kind, c->window, &c->state, err));
    const uint8_t least = token_planes(&g->shape, false), most = token_planes(&g->shape, true);
    const uint8_t blocks = (uint8_t)(((1u << g->shape.n_planes) - 1) & ~most);
    const bool good = c->kind == SL_LAYER_TOKENS   ? (c->planes & least) == least && !(c->planes & ~most)
                      : c->kind == SL_LAYER_BLOCKS ? c->planes && !(c->planes & ~blocks)
                                                   : c->planes == 0;
    if (!good)
        return sl_fail(err, SL_ERR_INVALID, "geometry: layer class %s has the wrong planes for kind %s",
                       c->name, sl_layer_kind_name(c->kind));
    return SL_OK;
}

/* Classes are in the order of their first layers, and none is there twice. */
static sl_status check_classes(const sl_geometry *g, sl_err *err)
{
    int32_t seen = 0;
    if (g->n_classes < 1 || g->n_classes > SL_LAYER_CLASSES)
        return sl_fail(err, SL_ERR_INVALID, "geometry: %d layer classes, 1..%d are possible", g->n_classes,
                       SL_LAYER_CLASSES);
    for (int32_t l = 0; l < g->n_layers; l++) {
        if (g->layer_class[l] > seen || g->layer_class[l] >= g->n_classes)
            return sl_fail(err, SL_ERR_INVALID, "geometry: layer %d: class %d of %d", l, g->layer_class[l],
                           g->n_classes);
        seen += g->layer_class[l] == seen;
    }
    if (seen != g->n_classes)
        return sl_fail(err, SL_ERR_INVALID, "geometry: layer class %s has no layer", g->classes[seen].name);
    for (int32_t c = 0; c < g->n_classes; c++) {
        SL_TRY(check_class(g, &g->classes[c], err));
        for (int32_t k = 0; k < c; k++)
            if (memcmp(&g->classes[c], &g->classes[k], sizeof *g->classes) == 0)
                return sl_fail(err, SL_ERR_INVALID, "geometry: layer class %s exists twice",
                               g->classes[c].name);
    }
    return SL_OK;
}

static sl_status check(const sl_geometry *g, sl_err *err)
{
    if (g->n_layers < 1 || g->n_layers > SL_GEOMETRY_MAX_LAYERS)
        return sl_fail(err, SL_ERR_INVALID, "geometry: n_layers %d is not in 1..%d", g->n_layers,
                       SL_GEOMETRY_MAX_LAYERS);
    if ((unsigned)g->layout >= SL_COUNT(layouts))
        return sl_fail(err, SL_ERR_INVALID, "geometry: layout %d is unknown", (int)g->layout);
    SL_TRY(sl_cache_shape_check(&g->shape, err));
    return check_classes(g, err);
}

int64_t sl_geometry_layer_bytes(const sl_geometry *g, int32_t layer)
{
    int64_t bytes = 0;
    for (int32_t p = 0; p < g->shape.n_planes; p++)
        if (sl_geometry_has(g, layer, p))
            bytes += sl_cache_page_bytes(&g->shape.planes[p]);
    return bytes;
}

static sl_status finish(sl_geometry *g, sl_err *err)
{
    SL_TRY(check(g, err));
    g->page_bytes = g->state_bytes = 0;
    for (int32_t l = 0; l < g->n_layers; l++) {
        g->page_bytes += sl_geometry_layer_bytes(g, l);
        g->state_bytes += sl_geometry_class_of(g, l)->state.bytes;
    }
    if (g->page_bytes == 0)
        return sl_fail(err, SL_ERR_INVALID, "geometry: no layer has rows, so a page would be empty");
    return SL_OK;
}

/* A string without bytes after its end, because classes are compared byte by byte. */
static void put_name(char out[SL_CACHE_NAME], const char *name)
{
    memset(out, 0, SL_CACHE_NAME);
    for (int32_t i = 0; i < SL_CACHE_NAME - 1 && name[i]; i++)
        out[i] = name[i];
}

/* The class of a layer for which the family states nothing else. */
static void plain_class(const sl_geometry *g, uint8_t planes, sl_geometry_class *out)
{
    memset(out, 0, sizeof *out);
    out->kind = SL_LAYER_TOKENS, out->planes = planes;
    put_name(out->name, planes == token_planes(&g->shape, true) ? "tokens" : "shared");
}

/* Layer l has this class, which is added if it is not there yet. */
static sl_status set_class(sl_geometry *g, int32_t l, const sl_geometry_class *c, sl_err *err)
{
    int32_t i = 0;
    while (i < g->n_classes && memcmp(&g->classes[i], c, sizeof *c) != 0)
        i++;
    if (i == SL_LAYER_CLASSES)
        return sl_fail(err, SL_ERR_INVALID, "geometry: more than %d layer classes", SL_LAYER_CLASSES);
    if (i == g->n_classes)
        memcpy(&g->classes[g->n_classes++], c, sizeof *c);
    g->layer_class[l] = (uint8_t)i;
    return SL_OK;
}

/* The stated class c of a layer; its planes are those of the shape from `first` on. */
static void stated_class(const sl_geometry *g, const sl_layer_class *c, int32_t first, bool indexed,
                         sl_geometry_class *out)
{
    memset(out, 0, sizeof *out);
    put_name(out->name, c->name);
    out->kind = c->kind, out->window = c->window;
    out->state = c->state;
    out->planes = c->kind == SL_LAYER_TOKENS ? token_planes(&g->shape, indexed)
                                             : (uint8_t)(((1u << c->n_planes) - 1) << first);
}

/* Adds the planes of the stated classes to the shape; first[c]: where those of class c begin. */
static sl_status add_planes(sl_geometry *g, const sl_geometry_opts *o, int32_t *first, sl_err *err)
{
    for (int32_t c = 0; c < o->n_classes; c++) {
        const sl_layer_class *k = &o->classes[c];
        first[c] = g->shape.n_planes;
        if (k->n_planes < 0 || k->n_planes > SL_CLASS_PLANES ||
            (k->n_planes > 0) != (k->kind == SL_LAYER_BLOCKS))
            return sl_fail(err, SL_ERR_INVALID, "geometry: layer class %s of kind %s has %d planes", k->name,
                           sl_layer_kind_name(k->kind), k->n_planes);
        if (k->n_planes > SL_CACHE_PLANES - g->shape.n_planes)
            return sl_fail(err, SL_ERR_INVALID, "geometry: more than %d cache planes with those of class %s",
                           SL_CACHE_PLANES, k->name);
        for (int32_t p = 0; p < k->n_planes; p++) {
            if (k->planes[p].role != SL_PLANE_BLOCKS)
                return sl_fail(err, SL_ERR_INVALID, "geometry: plane %s of layer class %s holds no blocks",
                               k->planes[p].name, k->name);
            g->shape.planes[g->shape.n_planes++] = k->planes[p];
        }
    }
    return SL_OK;
}

/* The class of each layer. */
static sl_status classify(sl_geometry *g, const sl_geometry_opts *o, sl_err *err)
{
    int32_t first[SL_MODEL_CLASSES] = {0};
    if (o->n_classes < 0 || o->n_classes > SL_MODEL_CLASSES || (o->n_classes > 0 && !o->layer_class))
        return sl_fail(err, SL_ERR_INVALID, "geometry: %d layer classes are stated, at most %d", o->n_classes,
                       SL_MODEL_CLASSES);
    SL_TRY(add_planes(g, o, first, err));
    for (int32_t l = 0; l < o->n_layers; l++) {
        const bool indexed = o->has_indexer && o->has_indexer[l];
        sl_geometry_class c;
        if (o->n_classes == 0)
            plain_class(g, token_planes(&g->shape, indexed), &c);
        else if (o->layer_class[l] >= o->n_classes)
            return sl_fail(err, SL_ERR_INVALID, "geometry: layer %d: class %d of %d", l, o->layer_class[l],
                           o->n_classes);
        else
            stated_class(g, &o->classes[o->layer_class[l]], first[o->layer_class[l]], indexed, &c);
        SL_TRY(set_class(g, l, &c, err));
    }
    return SL_OK;
}

sl_status sl_geometry_make(const sl_geometry_opts *o, sl_geometry *out, sl_err *err)
{
    sl_geometry g;
    memset(&g, 0, sizeof g); /* also the padding, because tests compare geometries byte by byte */
    g.fingerprint = o->fingerprint, g.layout = o->layout, g.n_layers = o->n_layers, g.shape = *o->shape;
    if (o->n_layers < 1 || o->n_layers > SL_GEOMETRY_MAX_LAYERS)
        return check(&g, err);
    SL_TRY(sl_cache_shape_check(o->shape, err));
    SL_TRY(classify(&g, o, err));
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

/* Whether the planes of its layers say everything. */
static bool is_plain(const sl_geometry *g)
{
    for (int32_t c = 0; c < g->n_classes; c++) {
        sl_geometry_class plain;
        plain_class(g, g->classes[c].planes, &plain);
        if (memcmp(&plain, &g->classes[c], sizeof plain) != 0)
            return false;
    }
    return true;
}

static void write_class(const sl_geometry_class *c, sl_wr *w)
{
    sl_wr_str(w, c->name);
    sl_wr_u8(w, (uint8_t)c->kind);
    sl_wr_u8(w, c->planes);
    sl_wr_i32(w, c->window);
    sl_wr_str(w, c->state.format);
    sl_wr_u64(w, c->state.stamp);
    sl_wr_u64(w, (uint64_t)c->state.bytes);
}

void sl_geometry_write(const sl_geometry *g, sl_wr *w)
{
    const bool plain = is_plain(g);
    sl_wr_u8(w, plain ? PLANES_VERSION : CLASSES_VERSION);
    sl_wr_u64(w, g->fingerprint.lo);
    sl_wr_u64(w, g->fingerprint.hi);
    sl_wr_u8(w, (uint8_t)g->layout);
    sl_wr_u8(w, (uint8_t)g->shape.n_planes);
    for (int32_t p = 0; p < g->shape.n_planes; p++)
        write_plane(&g->shape.planes[p], w);
    sl_wr_i32(w, g->n_layers);
    for (int32_t l = 0; l < g->n_layers; l++)
        sl_wr_u8(w, plain ? sl_geometry_class_of(g, l)->planes : g->layer_class[l]);
    if (plain)
        return;
    sl_wr_u8(w, (uint8_t)g->n_classes);
    for (int32_t c = 0; c < g->n_classes; c++)
        write_class(&g->classes[c], w);
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

static void read_class(sl_rd *r, sl_geometry_class *c)
{
    char name[SL_CACHE_NAME] = "", format[SL_CACHE_NAME] = "";
    memset(c, 0, sizeof *c);
    sl_rd_str(r, name, sizeof name);
    put_name(c->name, name);
    c->kind = (sl_layer_kind)sl_rd_u8(r);
    c->planes = sl_rd_u8(r);
    c->window = sl_rd_i32(r);
    sl_rd_str(r, format, sizeof format);
    put_name(c->state.format, format);
    c->state.stamp = sl_rd_u64(r);
    c->state.bytes = (int64_t)sl_rd_u64(r);
}

/* What follows the shape: of each layer its planes, or its class and then the classes. */
static sl_status read_layers(sl_rd *r, bool plain, sl_geometry *g, sl_err *err)
{
    for (int32_t l = 0; l < g->n_layers; l++) {
        g->layer_class[l] = sl_rd_u8(r);
        sl_geometry_class c;
        plain_class(g, g->layer_class[l], &c);
        if (plain)
            SL_TRY(set_class(g, l, &c, err));
    }
    if (plain)
        return SL_OK;
    g->n_classes = sl_rd_u8(r);
    for (int32_t c = 0; c < g->n_classes && c < SL_LAYER_CLASSES; c++)
        read_class(r, &g->classes[c]);
    return SL_OK;
}

sl_status sl_geometry_read(const void *bytes, size_t n, sl_geometry *out, sl_err *err)
{
    sl_rd r = sl_rd_init(bytes, n);
    uint8_t version = sl_rd_u8(&r);
    if (r.bad || version < PLANES_VERSION || version > CLASSES_VERSION)
        return sl_fail(err, SL_ERR_CORRUPT, "geometry: version %u, this build reads versions %d and %d",
                       version, PLANES_VERSION, CLASSES_VERSION);
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
    if (read_layers(&r, version == PLANES_VERSION, &g, err) != SL_OK)
        return SL_ERR_CORRUPT;
    if (sl_rd_done(&r) != SL_OK)
        return sl_fail(err, SL_ERR_CORRUPT, "geometry: %zu bytes do not hold %d layers", n, g.n_layers);
    if (finish(&g, err) != SL_OK)
        return SL_ERR_CORRUPT;
    if (version == CLASSES_VERSION && is_plain(&g))
        return sl_fail(err, SL_ERR_CORRUPT, "geometry: classes that say no more than planes");
    *out = g;
    return SL_OK;
}

/* What a layer's class says besides its planes. */
static sl_status same_class(const sl_geometry *mine, const sl_geometry *theirs, int32_t l, sl_err *err)
{
    const sl_geometry_class *a = sl_geometry_class_of(mine, l), *b = sl_geometry_class_of(theirs, l);
    if (a->kind != b->kind)
        return sl_fail(err, SL_ERR_REFUSED, "layer %d: kind of layer differs: %s here, %s there", l,
                       sl_layer_kind_name(a->kind), sl_layer_kind_name(b->kind));
    if (strcmp(a->state.format, b->state.format) != 0)
        return sl_fail(err, SL_ERR_REFUSED,
                       "layer %d: format of the state differs: \"%s\" here, \"%s\" there", l, a->state.format,
                       b->state.format);
    if (a->state.bytes != b->state.bytes || a->window != b->window || a->state.stamp != b->state.stamp)
        return sl_fail(err, SL_ERR_REFUSED,
                       "layer %d: state differs: %" PRId64 " bytes, window %d, stamp %016" PRIx64
                       " here, %" PRId64 ", %d, %016" PRIx64 " there",
                       l, a->state.bytes, a->window, a->state.stamp, b->state.bytes, b->window,
                       b->state.stamp);
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
    for (int32_t l = 0; l < mine->n_layers; l++)
        SL_TRY(same_class(mine, theirs, l, err));
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
