/*
 * Ship cursor: yields the bytes of a shipment in the order in which they are posted.
 *
 * It holds a queue of pieces (token ranges of one or more layers), opens them layer by layer, and yields the spans of
 * the open layer. It does not know the connection and posts nothing:
 *
 *     while (sl_cursor_open_layer(c)) {          // c->layer of c->piece
 *         sl_cursor_walk(c, map);                // map says where the layer's bytes are on both sides
 *         while (sl_cursor_next(c, &span))
 *             if (!post(&span)) { sl_cursor_hold(c, &span); return; }   // the next call yields it first
 *     }
 *
 * One shipment owns it, one thread uses it. A zeroed cursor is an empty one; sl_cursor_free() releases its memory.
 */
#ifndef SL_PREFILL_CURSOR_H
#define SL_PREFILL_CURSOR_H

#include "worker/pieces.h"

/* Tokens [first, end) of layers [layer, end_layer), which are in the own arena or are to be pulled into it. */
typedef struct sl_piece {
    int32_t layer, end_layer, first, end;
    bool computed; /* by the step that just ran, so also in device memory; the piece then has one layer */
} sl_piece;

typedef struct sl_ship_cursor {
    sl_piece *queue; /* [cap]; the pieces that are not opened yet are queue[head..head+len) */
    size_t head, len, cap;
    sl_piece piece; /* the piece opened last; its layers from piece.layer on are not opened yet */
    int32_t layer;  /* the open layer */
    bool walking;   /* `walk` has been started on the open layer and has not ended */
    sl_pieces walk;
    sl_span held; /* yielded before the spans of `walk`; bytes 0: none */
} sl_ship_cursor;

/* Adds a piece at the end. SL_ERR_NO_MEMORY leaves the cursor as it was. */
sl_status sl_cursor_push(sl_ship_cursor *c, const sl_piece *piece);
/*
 * Opens the next layer of the piece, or the first one of the next piece; sets c->layer and c->piece. False: none is
 * left. To be called only after the open layer has ended.
 */
bool sl_cursor_open_layer(sl_ship_cursor *c);
/* Starts the walk over the open layer. map is borrowed until the walk has ended. */
void sl_cursor_walk(sl_ship_cursor *c, const sl_page_map *map);
/* The next span of the open layer; false: the layer has ended. */
bool sl_cursor_next(sl_ship_cursor *c, sl_span *out);
/* Puts a span, or its rest, back; sl_cursor_next() yields it first. */
void sl_cursor_hold(sl_ship_cursor *c, const sl_span *span);
/* True when no span is left; only sl_cursor_push() can add more. */
bool sl_cursor_done(const sl_ship_cursor *c);
/* Discards everything that was not yielded. */
void sl_cursor_clear(sl_ship_cursor *c);
void sl_cursor_free(sl_ship_cursor *c);

#endif
