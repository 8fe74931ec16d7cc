/*
 * Posting, on the transport thread: pieces of open shipments become puts (and gets, where pages are pulled),
 * one span of each shipment in turn. Checksums are taken here, while the engine computes the next layer.
 */
#include "prefill/prefill_impl.h"

enum {
    WINDOW = 256, /* operations in flight per connection */
    PAGE = SL_PAGE_TOKENS,
    DIRECT_TURN = 16 << 20 /* bytes copied before messages are looked at again */
};

static void on_put(void *cookie, sl_status st)
{
    sl_pjob *j = cookie;
    sl_prefill *p = j->t.owner;
    sl_ship_completed(j);
    sl_counter_add(st == SL_OK ? p->c.put_ok : p->c.put_failed, 1);
    if (st != SL_OK && !sl_ship_ending(j))
        sl_ship_fail(p, j, SL_ERR_PEER, true, "put failed: %s", sl_status_name(st));
    else
        sl_ship_settle(p, j);
}

static void on_got(void *cookie, sl_status st)
{
    sl_pjob *j = cookie;
    sl_prefill *p = j->t.owner;
    sl_ship_completed(j);
    sl_counter_add(st == SL_OK ? p->c.get_ok : p->c.get_failed, 1);
    if (sl_ship_ending(j)) {
        sl_ship_settle(p, j);
        return;
    }
    if (st != SL_OK) {
        sl_ship_fail(p, j, SL_ERR_PEER, true, "get failed: %s", sl_status_name(st));
        return;
    }
    sl_ship_settle(p, j);
}

/* Pages of the piece's layer that are complete with it: their checksums go into COMMIT. */
static void checksum(sl_prefill *p, sl_pjob *j, int32_t layer, int32_t first, int32_t end)
{
    int32_t n_tokens = (int32_t)j->msg->n_tokens, from = (int32_t)j->msg->matched_pages;
    for (int32_t page = first / PAGE; page <= (end - 1) / PAGE; page++) {
        int32_t page_end = (page + 1) * PAGE < n_tokens ? (page + 1) * PAGE : n_tokens;
        if (page < from || page_end > end)
            continue;
        j->t.crc[(size_t)(page - from) * (size_t)p->geo->n_layers + (size_t)layer] =
            sl_arena_page_crc(p->o.role.arena, j->own_pages[page], layer, page_end - page * PAGE);
    }
}

/* Opens the next layer of the current piece, or the next piece. False: nothing is queued. */
static bool open_piece(sl_prefill *p, sl_pjob *j)
{
    if (!j->t.it_active) {
        if (!j->t.q_len)
            return false;
        sl_piece *q = &j->t.queue[j->t.q_head++];
        j->t.q_len--;
        j->t.it_layer = q->layer < 0 ? 0 : q->layer;
        j->t.it_end_layer = q->layer < 0 ? p->geo->n_layers : q->layer + 1;
        j->t.it_first = q->first;
        j->t.it_end = q->end;
        j->t.it_active = true;
        /* rows just computed are on the device; dev_rows was set before the mail that brought them */
        j->t.it_device = q->layer >= 0 && j->t.state == SHIP_OPEN && j->dev_rows &&
                         (j->t.peer->registered || j->t.peer->gpu);
    } else if (++j->t.it_layer >= j->t.it_end_layer) {
        j->t.it_active = false;
        return open_piece(p, j);
    }
    if (j->t.state == SHIP_OPEN)
        checksum(p, j, j->t.it_layer, j->t.it_first, j->t.it_end);
    j->t.map.dev = j->t.it_device ? p->dev_layers : NULL;
    j->t.map.dev_rows = j->t.it_device ? j->dev_rows : NULL;
    j->t.map.dev_index = j->t.it_device ? j->dev_index : NULL;
    sl_pieces_init(&j->t.it, &j->t.map, j->t.it_layer, j->t.it_first, j->t.it_end);
    return true;
}

static sl_status post_span(sl_prefill *p, sl_pjob *j, const sl_span *s)
{
    sl_dpeer *d = j->t.peer;
    sl_tp_ep *ep = sl_wep_tp(d->ep);
    bool pull = j->t.state == SHIP_PULLING, device = j->t.it_device;
    sl_tp_mem *mem = device ? sl_worker_device_memory(p->worker, s->local) : sl_worker_memory(p->worker);
    if (d->direct)
        return sl_direct_copy(p, j, s, pull);
    SL_CHECK(mem != NULL, "device rows outside the registered memory");
    sl_status st = pull ? sl_tp_get(ep, s->local, mem, (size_t)s->bytes, s->remote, d->rkey, on_got, j)
                        : sl_tp_put(ep, s->local, mem, (size_t)s->bytes, s->remote, d->rkey, on_put, j);
    if (st != SL_OK)
        return st;
    if (!d->in_flight)
        d->progress_ns = sl_now_ns();
    d->in_flight++;
    j->t.in_flight++;
    j->t.dirty |= !pull;
    j->t.flush_done = false;
    if (!pull)
        j->t.bytes += (uint64_t)s->bytes;
    sl_counter_add(pull ? p->c.get_bytes : p->c.put_bytes, (uint64_t)s->bytes);
    return SL_OK;
}

static bool by_copier(const sl_pjob *j)
{
    return j->t.it_active && j->t.it_device && !j->t.peer->gpu;
}

/* A span that goes on from one device pool into the next is two puts. */
static void cut(sl_prefill *p, sl_pjob *j, sl_span *s)
{
    const sl_tp_mem *m = sl_worker_device_memory(p->worker, s->local);
    int64_t room = m ? (uint8_t *)m->base + m->bytes - s->local : 0;
    if (room <= 0 || s->bytes <= room)
        return;
    j->t.held = (sl_span){s->local + room, s->remote + (uint64_t)room, s->bytes - room};
    s->bytes = room;
}

/* Posts one span of this job; false when it has none, or the transport is full. */
static bool post_one(sl_prefill *p, sl_pjob *j)
{
    if (by_copier(j)) {
        sl_status copies = sl_copies_post(p, j);
        if (copies == SL_OK || copies == SL_AGAIN)
            return copies == SL_OK;
        if (copies != SL_INPROGRESS) {
            sl_ship_fail(p, j, SL_ERR_PEER, true, "cannot copy: %s", sl_status_name(copies));
            return false;
        }
        if (open_piece(p, j))
            return true; /* of either kind; this job's next turn looks */
        sl_ship_settle(p, j);
        return false;
    }
    sl_span s = j->t.held;
    while (!s.bytes && (!j->t.it_active || !sl_pieces_next(&j->t.it, &s))) {
        if (!open_piece(p, j)) {
            sl_ship_settle(p, j);
            return false;
        }
        if (by_copier(j))
            return true; /* not this thread's memory: its next turn takes the way above */
    }
    const sl_span whole = s;
    j->t.held.bytes = 0;
    if (j->t.it_device)
        cut(p, j, &s);
    sl_status st = post_span(p, j, &s);
    if (st == SL_OK)
        return true;
    if (st == SL_AGAIN)
        j->t.held = whole;
    else
        sl_ship_fail(p, j, SL_ERR_PEER, true, "cannot post: %s", sl_status_name(st));
    return false;
}

static bool can_post(const sl_pjob *j)
{
    return (j->t.state == SHIP_OPEN || j->t.state == SHIP_PULLING) && j->t.started && j->t.peer &&
           j->t.peer->up && !j->t.peer->closing && j->t.peer->in_flight < WINDOW;
}

bool sl_ship_pump(sl_prefill *p)
{
    bool any = false, again = true;
    p->direct_left = DIRECT_TURN;
    while (again) { /* one span of each job in turn, so that a long prompt does not hold up short ones */
        again = false;
        for (sl_pjob *j = p->ships, *next; j; j = next) {
            next = j->t.next;
            if (can_post(j) && post_one(p, j))
                again = any = true;
        }
    }
    return any;
}
