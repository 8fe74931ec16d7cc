/*
 * The raw walk yields the runs of one plane in one page (sl_unit_walk). It goes page by page or plane by plane,
 * depending on which order makes more consecutive runs adjacent in memory. The public walk merges runs that are
 * adjacent on both sides. The cache shape defines the contents of a plane.
 */
#include "worker/pieces.h"

enum { PAGE = SL_PAGE_TOKENS };

static uint8_t *as_pointer(uint64_t address)
{
    return (uint8_t *)(uintptr_t)address;
}

static const sl_cache_plane *plane_of(const sl_pieces *it, int32_t plane)
{
    return &it->map->local->shape.planes[plane];
}

static bool on_device(const sl_page_map *m, int32_t plane)
{
    return m->dev && !m->local->shape.planes[plane].host_only;
}

/* True if the units are contiguous on both sides. */
static bool is_dense(const sl_pieces *it)
{
    const sl_cache_plane *p = plane_of(it, it->plane);
    int64_t unit = p->heads * sl_cache_unit_bytes(p);
    return it->local[it->plane].row_stride == unit && it->remote[it->plane].row_stride == unit;
}

static void begin_walk(sl_pieces *it)
{
    int32_t begin = it->first - it->page * PAGE, end = it->end - it->page * PAGE;
    bool last = end <= PAGE && it->end >= it->map->n_tokens;
    sl_unit_walk_init(&it->walk, plane_of(it, it->plane), begin > 0 ? begin : 0, end < PAGE ? end : PAGE,
                      last, is_dense(it));
}

static bool next_plane(sl_pieces *it)
{
    do
        it->plane++;
    while (it->plane < it->map->local->shape.n_planes &&
           !sl_geometry_has(it->map->local, it->layer, it->plane));
    return it->plane < it->map->local->shape.n_planes;
}

/* The first plane that this layer has; false: it keeps a state alone. */
static bool first_plane(sl_pieces *it)
{
    it->plane = -1;
    return next_plane(it);
}

/* Advances to the next page and plane. */
static void advance(sl_pieces *it)
{
    int32_t last = (it->end - 1) / PAGE;
    if (it->by_page) {
        if (!next_plane(it)) {
            it->done = ++it->page > last || !first_plane(it);
        }
    } else if (++it->page > last) {
        it->page = it->first / PAGE;
        it->done = !next_plane(it);
    }
    if (!it->done)
        begin_walk(it);
}

void sl_pieces_init(sl_pieces *it, const sl_page_map *map, int32_t layer, int32_t first, int32_t end)
{
    const sl_geometry *l = map->local, *r = map->remote;
    *it = (sl_pieces){.map = map, .layer = layer, .first = first, .end = end, .done = first >= end};
    for (int32_t p = 0; p < l->shape.n_planes; p++) {
        it->local[p] = on_device(map, p) ? map->dev[layer].planes[p]
                                         : sl_geometry_plane(l, map->local_base, map->local_n, layer, p);
        it->remote[p] = sl_geometry_plane(r, as_pointer(map->remote_base), map->remote_n, layer, p);
    }
    it->by_page = l->layout == SL_LAYOUT_PAGE_FIRST && r->layout == SL_LAYOUT_PAGE_FIRST;
    it->page = first / PAGE;
    it->done |= !first_plane(it);
    if (!it->done)
        begin_walk(it);
}

static int32_t local_page(const sl_pieces *it)
{
    const sl_page_map *m = it->map;
    if (!on_device(m, it->plane))
        return m->lpages[it->page];
    bool rows = it->plane == SL_CACHE_ROWS && !m->dev[it->layer].rows_by_index_page;
    return (rows ? m->dev_rows : m->dev_index)[it->page];
}

static sl_span span_of(const sl_pieces *it, const sl_unit_run *u)
{
    const sl_host_plane *l = &it->local[it->plane], *r = &it->remote[it->plane];
    int64_t in_unit = u->head * it->walk.unit_bytes + u->at;
    int64_t here = local_page(it) * l->page_stride + u->unit * l->row_stride;
    int64_t there = (int64_t)it->map->rpages[it->page] * r->page_stride + u->unit * r->row_stride;
    return (sl_span){.local = l->base + here + in_unit,
                     .remote = (uint64_t)(uintptr_t)r->base + (uint64_t)(there + in_unit),
                     .bytes = u->bytes,
                     .device = on_device(it->map, it->plane),
                     .plane = it->plane};
}

static bool raw_next(sl_pieces *it, sl_span *out)
{
    sl_unit_run u;
    for (; !it->done; advance(it)) {
        if (sl_unit_walk_next(&it->walk, &u)) {
            *out = span_of(it, &u);
            return true;
        }
    }
    return false;
}

bool sl_pieces_same_memory(const sl_span *a, const sl_span *b)
{
    return a->device == b->device && (!a->device || a->plane == b->plane);
}

bool sl_pieces_next(sl_pieces *it, sl_span *out)
{
    sl_span s = it->ahead, next;
    it->ahead.bytes = 0;
    if (!s.bytes && !raw_next(it, &s))
        return false;
    while (raw_next(it, &next)) {
        if (!sl_pieces_same_memory(&next, &s) || next.local != s.local + s.bytes ||
            next.remote != s.remote + (uint64_t)s.bytes) {
            it->ahead = next;
            break;
        }
        s.bytes += next.bytes;
    }
    *out = s;
    return true;
}
