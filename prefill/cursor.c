/* See cursor.h. The queue is an array that is compacted when its end is reached, and doubled when it is full. */
#include "prefill/cursor.h"

#include <stdlib.h>
#include <string.h>

enum { FIRST_CAP = 128 };

sl_status sl_cursor_push(sl_ship_cursor *c, const sl_piece *piece)
{
    if (c->head && c->head + c->len == c->cap) {
        memmove(c->queue, c->queue + c->head, c->len * sizeof *c->queue);
        c->head = 0;
    }
    if (c->len == c->cap) {
        size_t cap = c->cap ? 2 * c->cap : FIRST_CAP;
        sl_piece *queue = realloc(c->queue, cap * sizeof *queue);
        if (!queue)
            return SL_ERR_NO_MEMORY;
        c->queue = queue;
        c->cap = cap;
    }
    c->queue[c->head + c->len++] = *piece;
    return SL_OK;
}

bool sl_cursor_open_layer(sl_ship_cursor *c)
{
    SL_CHECK(!c->walking, "layer %d has not ended", c->layer);
    if (c->piece.layer >= c->piece.end_layer) {
        if (!c->len)
            return false;
        c->piece = c->queue[c->head++];
        c->len--;
    }
    c->layer = c->piece.layer++;
    return true;
}

void sl_cursor_walk(sl_ship_cursor *c, const sl_page_map *map)
{
    sl_pieces_init(&c->walk, map, c->layer, c->piece.first, c->piece.end);
    c->walking = true;
}

bool sl_cursor_next(sl_ship_cursor *c, sl_span *out)
{
    if (c->held.bytes) {
        *out = c->held;
        c->held.bytes = 0;
        return true;
    }
    if (c->walking)
        c->walking = sl_pieces_next(&c->walk, out);
    return c->walking;
}

void sl_cursor_hold(sl_ship_cursor *c, const sl_span *span)
{
    SL_CHECK(!c->held.bytes, "a span is held already");
    c->held = *span;
}

bool sl_cursor_done(const sl_ship_cursor *c)
{
    return !c->walking && !c->held.bytes && c->piece.layer >= c->piece.end_layer && !c->len;
}

void sl_cursor_clear(sl_ship_cursor *c)
{
    *c = (sl_ship_cursor){.queue = c->queue, .cap = c->cap};
}

void sl_cursor_free(sl_ship_cursor *c)
{
    free(c->queue);
    *c = (sl_ship_cursor){0};
}
