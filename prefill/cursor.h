/*
 * Ship cursor: which bytes of a shipment are to be posted next.
 *
 * It holds a queue of pieces (token ranges of one or more layers), opens them layer by layer, and yields the
 * spans of the open layer. It knows nothing of connections and posts nothing:
 *
 *     while (sl_cursor_open_layer(c)) {          // c->layer of c->piece
 *         sl_cursor_walk(c, map);                // map says where the layer's bytes are on both sides
 *         while (sl_cursor_next(c, &span))
 *             if (!post(&span)) { sl_cursor_hold(c, &span); return; }   // first again next time
 *     }
 *
 * Owned by one shipment and used by one thread. All zero is an empty cursor; sl_cursor_free releases its memory.
 */
#ifndef SL_PREFILL_CURSOR_H
#define SL_PREFILL_CURSOR_H

#include "prefill/pieces.h"

/* Tokens [first, end) of layers [layer, end_layer) are in the own arena (or are to be pulled into it). */
typedef struct sl_piece {
    int32_t layer, end_layer, first, end;
    bool computed; /* by the step that just ran: also in device memory. Such a piece has one layer */
} sl_piece;

typedef struct sl_ship_cursor {
    sl_piece *queue; /* [cap]; those not opened yet are queue[head..head+len) */
    size_t head, len, cap;
    sl_piece piece; /* opened last; its layers from piece.layer on are not opened yet */
    int32_t layer;  /* open layer */
    bool walking;   /* `walk` has been started on the open layer and has not ended */
    sl_pieces walk;
    sl_span held; /* comes before what `walk` yields; bytes 0: none */
} sl_ship_cursor;

/* Adds a piece at the end. SL_ERR_NO_MEMORY leaves the cursor as it was. */
sl_status sl_cursor_push(sl_ship_cursor *c, const sl_piece *piece);
/* Opens the next layer of the piece, or of the next piece: c->layer, c->piece. False: none is left. Only after
 * the open layer has ended. */
bool sl_cursor_open_layer(sl_ship_cursor *c);
/* Starts the walk over the open layer. map is borrowed until the walk has ended. */
void sl_cursor_walk(sl_ship_cursor *c, const sl_page_map *map);
/* The next span of the open layer; false: it has ended. */
bool sl_cursor_next(sl_ship_cursor *c, sl_span *out);
/* Puts one span (or what is left of it) back; sl_cursor_next yields it first. */
void sl_cursor_hold(sl_ship_cursor *c, const sl_span *span);
/* True when no span can come without a further sl_cursor_push. */
bool sl_cursor_done(const sl_ship_cursor *c);
/* Forgets everything that was not yielded. */
void sl_cursor_clear(sl_ship_cursor *c);
void sl_cursor_free(sl_ship_cursor *c);

#endif
