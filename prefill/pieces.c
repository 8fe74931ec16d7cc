/*
 * Parts of a page in a layer: 0 the rows, 1 the index keys (with the scales when the page is whole), 2 the
 * scales. The raw walk yields one span per part (or per row where rows are not adjacent); the public walk
 * merges what touches.
 */
#include "prefill/pieces.h"

enum { PAGE = SL_PAGE_TOKENS };

static uint8_t *as_pointer(uint64_t address)
{
    return (uint8_t *)(uintptr_t)address;
}

static void first_page(sl_pieces *it)
{
    it->page = it->first / PAGE;
    it->row = it->first % PAGE;
}

void sl_pieces_init(sl_pieces *it, const sl_page_map *map, int32_t layer, int32_t first, int32_t end)
{
    const sl_geometry *l = map->local, *r = map->remote;
    *it = (sl_pieces){.map = map, .first = first, .end = end, .done = first >= end};
    it->lrow = sl_geometry_row_plane(l, map->local_base, map->local_n, layer);
    it->rrow = sl_geometry_row_plane(r, as_pointer(map->remote_base), map->remote_n, layer);
    it->parts = 1;
    if (l->has_index[layer]) {
        it->lindex = sl_geometry_index_plane(l, map->local_base, map->local_n, layer);
        it->rindex = sl_geometry_index_plane(r, as_pointer(map->remote_base), map->remote_n, layer);
        it->parts = l->index_format == SL_INDEX_OFFICIAL ? 3 : 2;
    }
    it->row_pages = it->index_pages = map->lpages;
    if (map->dev) {
        const sl_device_layer *d = &map->dev[layer];
        it->lrow = d->rows;
        it->lindex = d->index;
        it->index_pages = map->dev_index;
        it->row_pages = d->rows_by_index_page ? map->dev_index : map->dev_rows;
    }
    it->by_page = l->layout == SL_LAYOUT_PAGE_FIRST && r->layout == SL_LAYOUT_PAGE_FIRST;
    it->row_runs = it->lrow.row_stride == l->row_bytes && it->rrow.row_stride == l->row_bytes;
    first_page(it);
}

static int32_t page_end(const sl_pieces *it)
{
    int32_t end = it->end - it->page * PAGE;
    return end < PAGE ? end : PAGE;
}

static int32_t page_begin(const sl_pieces *it)
{
    int32_t begin = it->first - it->page * PAGE;
    return begin > 0 ? begin : 0;
}

/* Moves to the next part, page by page or part by part. */
static void advance(sl_pieces *it)
{
    int32_t last = (it->end - 1) / PAGE;
    if (it->by_page) {
        if (++it->part < it->parts)
            return;
        it->part = 0;
        it->done = ++it->page > last;
    } else if (++it->page > last) {
        it->page = it->first / PAGE;
        it->done = ++it->part >= it->parts;
    }
    if (!it->done)
        it->row = page_begin(it);
}

static sl_span span_at(const sl_host_plane *l, const sl_host_plane *r, int32_t lp, uint32_t rp,
                       int64_t offset_l, int64_t offset_r, int64_t bytes)
{
    return (sl_span){.local = l->base + lp * l->page_stride + offset_l,
                     .remote =
                         (uint64_t)(uintptr_t)r->base + (uint64_t)((int64_t)rp * r->page_stride + offset_r),
                     .bytes = bytes};
}

/* One span, or bytes 0 for a part that is covered by another. */
static sl_span raw(sl_pieces *it)
{
    const sl_page_map *m = it->map;
    const sl_geometry *g = m->local;
    int32_t b = page_begin(it), e = page_end(it);
    int32_t lp = it->part == 0 ? it->row_pages[it->page] : it->index_pages[it->page];
    uint32_t rp = m->rpages[it->page];
    if (it->part == 0) {
        int32_t row = it->row_runs ? b : it->row, n = it->row_runs ? e - b : 1;
        sl_span s = span_at(&it->lrow, &it->rrow, lp, rp, row * it->lrow.row_stride,
                            row * it->rrow.row_stride, n * g->row_bytes);
        if (it->row_runs || ++it->row >= e)
            advance(it);
        return s;
    }
    bool whole = b == 0 && e == PAGE;
    int64_t key = g->index_format == SL_INDEX_OFFICIAL ? g->index_dim : 4 * (int64_t)g->index_dim;
    int64_t at = it->part == 1 ? b * key : PAGE * key + b * 4;
    int64_t bytes = it->part == 1 ? (e - b) * key : (e - b) * 4;
    if (whole)
        bytes = it->part == 1 ? g->index_block_bytes : 0;
    sl_span s = span_at(&it->lindex, &it->rindex, lp, rp, at, at, bytes);
    advance(it);
    return s;
}

static bool raw_next(sl_pieces *it, sl_span *out)
{
    while (!it->done) {
        *out = raw(it);
        if (out->bytes)
            return true;
    }
    return false;
}

bool sl_pieces_next(sl_pieces *it, sl_span *out)
{
    sl_span s = it->ahead, next;
    it->ahead.bytes = 0;
    if (!s.bytes && !raw_next(it, &s))
        return false;
    while (raw_next(it, &next)) {
        if (next.local != s.local + s.bytes || next.remote != s.remote + (uint64_t)s.bytes) {
            it->ahead = next;
            break;
        }
        s.bytes += next.bytes;
    }
    *out = s;
    return true;
}
