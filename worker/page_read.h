/*
 * Page read: the gets that bring pages of another worker's arena into pages of this one, in the order in which they are posted.
 * It yields spans and posts nothing; prefill workers read like this from the decode worker of a request, and decode workers from
 * each other:
 *
 *     sl_page_read_begin(&r, &map, first, end);
 *     while (sl_page_read_next(&r, &span))
 *         if (!post(&span)) { sl_page_read_hold(&r, &span); return; }     // the next call yields it first
 *
 * Where both arenas keep a page in one piece, a page is one span; elsewhere the spans are those of worker/pieces.h, layer by
 * layer. A span is at most SL_PAGE_READ_BYTES long, so that the progress of long reads can be seen.
 *
 * One thread uses it; it owns no memory, and is empty when it is zeroed.
 */
#ifndef SL_WORKER_PAGE_READ_H
#define SL_WORKER_PAGE_READ_H

#include "worker/pieces.h"

enum { SL_PAGE_READ_BYTES = 1 << 20 };

typedef struct sl_page_read {
    const sl_page_map *map; /* NULL: empty */
    int32_t first, end;     /* pages of the map */
    int32_t page, layer;    /* the next page (whole), or layer, that is not opened */
    bool whole, walking;
    sl_pieces walk;
    sl_span held; /* the next one; bytes 0: none */
} sl_page_read;

/* Pages [first, end) of the map, which is borrowed until they have been yielded. */
void sl_page_read_begin(sl_page_read *r, const sl_page_map *map, int32_t first, int32_t end);
/* The next span; false: there is none. */
bool sl_page_read_next(sl_page_read *r, sl_span *out);
/* Puts the span that was yielded last back. */
void sl_page_read_hold(sl_page_read *r, const sl_span *span);
/* Discards what was not yielded. */
void sl_page_read_stop(sl_page_read *r);

#endif
