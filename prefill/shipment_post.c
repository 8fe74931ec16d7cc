/*
 * See shipment.h: posting, and the turns of shipments that send. The path of the connection (path.h) moves the bytes; this file
 * decides which bytes come next, and what follows when all are posted.
 *
 * Checksums of the pages are computed when a layer is opened, while the engine computes the next layer.
 */
#include "prefill/path.h"

#include "prefill/prefill_impl.h"

enum {
    WINDOW = 256, /* largest number of operations in flight per connection */
    PAGE = SL_PAGE_TOKENS
};

/* Computes the checksums, for COMMIT, of the pages that this piece completes in its open layer. */
static void checksum_layer(sl_prefill *p, sl_prefill_job *j)
{
    const sl_ship_cursor *c = &j->ship.cursor;
    int32_t n_tokens = (int32_t)j->msg->n_tokens, from = (int32_t)j->msg->matched_pages;
    for (int32_t page = c->piece.first / PAGE; page <= (c->piece.end - 1) / PAGE; page++) {
        bool partial = page < j->at.pages && (page + 1) * PAGE > n_tokens;
        int32_t page_end = partial ? n_tokens : (page + 1) * PAGE;
        if (page < from || page_end > c->piece.end)
            continue;
        j->ship.crc[(size_t)(page - from) * (size_t)p->geo->n_layers + (size_t)c->layer] =
            sl_arena_page_crc(p->o.role.arena, j->own_pages[page], c->layer, page_end - page * PAGE);
    }
}

/*
 * Opens the cursor's next layer. Rows that were just computed are also in device memory (dev_rows was set before their
 * mail was posted); the path decides whether they are read from there.
 */
static bool open_layer(sl_prefill *p, sl_prefill_job *j)
{
    sl_ship_cursor *c = &j->ship.cursor;
    sl_page_map *map = &j->ship.map;
    const sl_decode_peer *d = j->ship.peer;
    if (!sl_cursor_open_layer(c))
        return false;
    checksum_layer(p, j);
    bool device = c->piece.computed && j->dev_rows && d->path->from_device(d);
    map->dev = device ? p->dev_layers : NULL;
    map->dev_rows = device ? j->dev_rows : NULL;
    map->dev_index = device ? j->dev_index : NULL;
    sl_cursor_walk(c, map);
    return true;
}

bool sl_ship_has_window(const sl_decode_peer *d)
{
    return d->remote.in_flight < WINDOW;
}

/* SL_AGAIN: the window or the path is full. */
static sl_status post_next(sl_prefill *p, sl_prefill_job *j)
{
    const sl_decode_peer *d = j->ship.peer;
    if (sl_cursor_done(&j->ship.cursor))
        return SL_INPROGRESS;
    if (!sl_ship_has_window(d))
        return SL_AGAIN;
    for (;;) {
        sl_status st =
            j->ship.cursor.walking || j->ship.cursor.held.bytes ? d->path->post(p, j) : SL_INPROGRESS;
        if (st == SL_OK && !j->ship.first_ns)
            j->ship.first_ns = sl_now_ns();
        if (st != SL_INPROGRESS)
            return st;
        if (!open_layer(p, j))
            return SL_INPROGRESS;
    }
}

/* All present pieces are posted: if the engine has finished, posts a flush, if there were puts. */
static sl_ship_turn flush_all(sl_prefill *p, sl_prefill_job *j)
{
    if (!j->ship.finish_ns)
        return SHIP_IDLE;
    sl_ship_turn turn = SHIP_MOVED;
    if (j->ship.unflushed) {
        sl_status st = sl_ship_post_flush(j);
        if (st == SL_AGAIN)
            return SHIP_BLOCKED;
        if (st != SL_OK) {
            sl_ship_fail(p, j, SL_ERR_PEER, true, "cannot flush: %s", sl_status_name(st));
            return SHIP_IDLE;
        }
        turn = SHIP_POSTED;
    }
    j->ship.state = SHIP_FLUSHING;
    return turn;
}

sl_ship_turn sl_ship_turn_of(sl_prefill *p, sl_prefill_job *j, sl_status st)
{
    if (st == SL_OK)
        return SHIP_POSTED;
    if (st == SL_AGAIN)
        return SHIP_BLOCKED;
    sl_ship_fail(p, j, SL_ERR_PEER, true, "cannot post: %s", sl_status_name(st));
    return SHIP_IDLE;
}

sl_ship_turn sl_ship_send(sl_prefill *p, sl_prefill_job *j)
{
    if (!j->ship.peer || j->ship.peer->remote.state != SL_REMOTE_UP)
        return SHIP_IDLE;
    sl_status st = post_next(p, j);
    return st == SL_INPROGRESS ? flush_all(p, j) : sl_ship_turn_of(p, j, st);
}
