/*
 * The pump of the shipments: turns for those that can go on, and deadlines (shipment.h). shipment_post.c has the posting,
 * shipment_pull.c the pulling, shipment_end.c the end.
 */
#include "prefill/peer.h"

static const uint64_t MS = 1000000;
enum {
    DRAIN_LOOK_MS = 50,    /* interval of the turns that a draining shipment gets without an event */
    DIRECT_TURN = 16 << 20 /* bytes that the transport thread copies before it handles messages again */
};

static bool landing_pages_exist(const sl_prefill_job *j)
{
    for (size_t i = 0; i < j->msg->n_pages; i++) {
        if (j->msg->pages[i] >= (uint64_t)j->ship.peer->remote.n_pages)
            return false;
    }
    return true;
}

/* Moves from CONNECTING to PULLING, SENDING or LEASING if the peer is up. */
static sl_ship_turn connect_turn(sl_prefill *p, sl_prefill_job *j)
{
    const sl_decode_peer *d = j->ship.peer;
    if (!d || d->remote.state != SL_REMOTE_UP)
        return SHIP_IDLE;
    if (!landing_pages_exist(j)) {
        sl_ship_fail(p, j, SL_ERR_CORRUPT, true, "a landing page is outside the decode worker's arena");
        return SHIP_IDLE;
    }
    j->ship.map = (sl_page_map){.local = p->geo,
                                .remote = &d->remote.geo,
                                .local_base = sl_arena_base(p->o.role.arena),
                                .remote_base = d->remote.base,
                                .local_n = sl_arena_pages(p->o.role.arena),
                                .remote_n = d->remote.n_pages,
                                .lpages = j->own_pages,
                                .rpages = j->msg->pages,
                                .n_tokens = (int32_t)j->msg->n_tokens};
    j->ship.state = j->prefetch ? SHIP_LEASING : j->pull_end > j->own_matched ? SHIP_PULLING : SHIP_SENDING;
    if (j->ship.state == SHIP_PULLING)
        sl_ship_ask_sums(j);
    return SHIP_MOVED;
}

static sl_ship_turn take_turn(sl_prefill *p, sl_prefill_job *j)
{
    if (j->ship.ending.cause != SHIP_NOT_ENDING && j->ship.state < SHIP_DRAINING)
        sl_ship_begin_draining(p, j);
    switch (j->ship.state) {
    case SHIP_CONNECTING:
        return connect_turn(p, j);
    case SHIP_PULLING:
        return sl_ship_pull(p, j);
    case SHIP_SENDING:
        return sl_ship_send(p, j);
    case SHIP_FLUSHING:
        return sl_ship_finish(p, j);
    case SHIP_LEASING:
        return sl_ship_ask_lease(p, j);
    case SHIP_DRAINING:
        return sl_ship_drain(p, j);
    case SHIP_WAITING: /* waits for START */
    case SHIP_HOLDING: /* waits for FINISH */
    case SHIP_OVER:    /* waits for RELEASE */
        break;
    }
    return SHIP_IDLE;
}

/*
 * Gives turns to the runnable shipments until none of them posts any more. A turn posts one operation, so that a long
 * prompt does not delay short ones. True if something was posted.
 */
static bool pump(sl_prefill *p)
{
    bool posted = false;
    sl_ship_list blocked = {0};
    p->direct_left = DIRECT_TURN;
    for (sl_prefill_job *j; (j = sl_ship_list_first(&p->runnable));) {
        sl_ship_turn turn = take_turn(p, j);
        posted |= turn == SHIP_POSTED;
        if (turn == SHIP_BLOCKED && !j->ship.run.pprev)
            sl_ship_list_put(&blocked, j);
        else if (turn >= SHIP_MOVED)
            sl_ship_runnable(p, j);
    }
    for (sl_prefill_job *j; (j = sl_ship_list_first(&blocked));)
        sl_ship_list_put(&p->runnable, j);
    return posted;
}

static void check_deadlines(sl_prefill *p, uint64_t now)
{
    for (sl_prefill_job *j = p->ships; j; j = j->ship.next) {
        if (now >= j->deadline_ns)
            sl_ship_fail(p, j, SL_ERR_DEADLINE, true, "deadline of the request passed");
        if (j->ship.state != SHIP_DRAINING)
            continue;
        sl_ship_runnable(p, j); /* needed if its flush could not be posted, or failed */
        if (now >= j->ship.drain_deadline_ns && j->ship.peer)
            sl_peer_drop(p, j->ship.peer, SL_ERR_TIMEOUT, "posted operations do not drain");
    }
}

static uint64_t next_deadline(const sl_prefill *p, uint64_t now)
{
    uint64_t due = UINT64_MAX;
    for (const sl_prefill_job *j = p->ships; j; j = j->ship.next) {
        if (j->ship.state == SHIP_OVER)
            continue;
        uint64_t at = j->ship.state == SHIP_DRAINING ? now + DRAIN_LOOK_MS * MS : j->deadline_ns;
        due = at < due ? at : due;
    }
    return due;
}

uint64_t sl_ship_tick(sl_prefill *p, uint64_t now)
{
    check_deadlines(p, now);
    uint64_t peers = sl_peer_tick(p, now);
    if (pump(p))
        return now;
    uint64_t ships = next_deadline(p, now);
    return ships < peers ? ships : peers;
}
