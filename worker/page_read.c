/* See page_read.h. */
#include "worker/page_read.h"

enum { PAGE = SL_PAGE_TOKENS };

void sl_page_read_begin(sl_page_read *r, const sl_page_map *map, int32_t first, int32_t end)
{
    *r = (sl_page_read){.map = map,
                        .first = first,
                        .end = end,
                        .page = first,
                        .whole = map->local->layout == map->remote->layout &&
                                 map->local->layout != SL_LAYOUT_LAYER_FIRST};
}

/* Ignores SL_PAGE_READ_BYTES. */
static bool next(sl_page_read *r, sl_span *out)
{
    const sl_page_map *m = r->map;
    if (!m)
        return false;
    if (r->whole) {
        if (r->page == r->end)
            return false;
        int64_t bytes = m->local->page_bytes;
        int32_t i = r->page++;
        *out = (sl_span){.local = m->local_base + m->lpages[i] * bytes,
                         .remote = m->remote_base + (uint64_t)m->rpages[i] * (uint64_t)bytes,
                         .bytes = bytes};
        return true;
    }
    for (;;) {
        if (r->walking && sl_pieces_next(&r->walk, out))
            return true;
        if (r->layer == m->local->n_layers)
            return false;
        sl_pieces_init(&r->walk, m, r->layer++, r->first * PAGE, r->end * PAGE);
        r->walking = true;
    }
}

bool sl_page_read_next(sl_page_read *r, sl_span *out)
{
    sl_span s = r->held;
    if (!s.bytes && !next(r, &s))
        return false;
    int64_t n = s.bytes < SL_PAGE_READ_BYTES ? s.bytes : SL_PAGE_READ_BYTES;
    *out = s, out->bytes = n;
    r->held = sl_pieces_rest(s, n);
    return true;
}

void sl_page_read_hold(sl_page_read *r, const sl_span *span)
{
    r->held = (sl_span){.local = span->local, .remote = span->remote, .bytes = span->bytes + r->held.bytes};
}

void sl_page_read_stop(sl_page_read *r)
{
    *r = (sl_page_read){0};
}
