/*
 * Shipments, on the transport thread: one per request, from PREFILL to END.
 *
 * A shipment owns a queue of pieces (layer, token range) that the engine has finished. Pieces become puts
 * when the window of the connection allows; when the last put is posted and FINISH is there, one flush
 * follows, and when everything has completed without error, COMMIT and PREFILLED. Checksums are taken here,
 * while the engine computes the next layer.
 *
 * One way out: settle(). OPEN and committed -> OVER; DRAINING and nothing outstanding -> OVER. `dirty` says
 * that puts were posted that no flush has covered, so "drained" is never claimed early; when the endpoint is
 * lost instead (closed by force), nothing is claimed towards the decode worker: its own side of the
 * connection is its fence.
 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "prefill/prefill_impl.h"

static const uint64_t MS = 1000000;
enum {
    WINDOW = 256, /* operations in flight per connection */
    PAGE = SL_PAGE_TOKENS,
    DIRECT_TURN = 16 << 20 /* bytes copied before messages are looked at again */
};

static void post(sl_prefill *p, sl_jmail *m)
{
    sl_mailbox_post(p->inbox, &m->mail.link);
}

static sl_pjob *find(sl_prefill *p, uint64_t rid, uint32_t gen)
{
    for (sl_pjob *j = p->ships; j; j = j->t.next) {
        if (j->rid == rid && j->gen == gen)
            return j;
    }
    return NULL;
}

static void init_mail(sl_jmail *m, sl_pjob *j, int kind)
{
    *m = (sl_jmail){.mail.kind = kind, .job = j};
}

static void tell_router_id(sl_prefill *p, sl_msg_type type, uint64_t rid, uint32_t gen)
{
    sl_msg m = {.type = type};
    m.id = (sl_msg_id){rid, gen};
    sl_worker_send_router(p->worker, &m);
}

static void reject(sl_prefill *p, const sl_msg_prefill *r, sl_status st, const char *why)
{
    sl_msg m = {.type = SL_MSG_FAILED};
    memset(&m.failed, 0, sizeof m.failed);
    m.failed.rid = r->rid;
    m.failed.gen = r->gen;
    m.failed.status = st;
    m.failed.retryable = 1;
    snprintf(m.failed.reason, sizeof m.failed.reason, "%.399s", why);
    sl_worker_send_router(p->worker, &m);
}

static bool is_past(const sl_prefill *p, uint64_t rid, uint32_t gen)
{
    for (uint32_t i = 0; i < PAST_JOBS; i++) {
        if (p->past[i].rid == rid && p->past[i].gen == gen)
            return true;
    }
    return false;
}

void sl_ship_new(sl_prefill *p, sl_wmsg *m)
{
    const sl_msg_prefill *r = &m->msg.prefill;
    if (find(p, r->rid, r->gen) || is_past(p, r->rid, r->gen)) {
        sl_counter_add(p->c.stale, 1);
        sl_wmsg_free(m);
        return;
    }
    if (r->matched_pages > (r->n_tokens - 1) / PAGE) {
        reject(p, r, SL_ERR_INVALID, "the matched prefix leaves no token to compute");
        sl_wmsg_free(m);
        return;
    }
    sl_pjob *j = calloc(1, sizeof *j);
    size_t n_crc = (r->n_pages - r->matched_pages) * (size_t)p->geo->n_layers;
    uint32_t *crc = j ? calloc(n_crc + 1, sizeof *crc) : NULL;
    sl_err err = {0};
    sl_dpeer *d = crc ? sl_dpeer_get(p, r, &err) : NULL;
    if (!d) {
        reject(p, r, SL_ERR_PEER, crc ? err.text : "out of memory");
        free(crc);
        free(j);
        sl_wmsg_free(m);
        return;
    }
    j->m = m;
    j->msg = r;
    j->rid = r->rid;
    j->gen = r->gen;
    j->arrived_ns = sl_now_ns();
    j->deadline_ns = r->deadline_ms ? j->arrived_ns + r->deadline_ms * MS : UINT64_MAX;
    init_mail(&j->m_new, j, PM_NEW);
    init_mail(&j->m_pulled, j, PM_PULLED);
    init_mail(&j->m_stop, j, PM_STOP);
    init_mail(&j->m_end, j, PM_END);
    init_mail(&j->m_start, j, PM_START);
    init_mail(&j->m_finish, j, PM_FINISH);
    init_mail(&j->m_fail, j, PM_FAIL);
    init_mail(&j->m_release, j, PM_RELEASE);
    j->t.owner = p;
    j->t.crc = crc;
    j->t.peer = d;
    j->t.state = SHIP_WAITING;
    j->t.next = p->ships;
    if (p->ships)
        p->ships->t.prev = j;
    p->ships = j;
    post(p, &j->m_new);
    if (d->up)
        sl_ship_peer_up(p, j);
}

void sl_ship_free(sl_prefill *p, sl_pjob *j)
{
    if (j->t.prev)
        j->t.prev->t.next = j->t.next;
    else
        p->ships = j->t.next;
    if (j->t.next)
        j->t.next->t.prev = j->t.prev;
    sl_wmsg_free(j->m);
    free(j->own_pages);
    free(j->dev_rows); /* dev_index is in the same block */
    free(j->t.queue);
    free(j->t.crc);
    free(j);
}

static bool push_piece(sl_pjob *j, int32_t layer, int32_t first, int32_t end)
{
    if (j->t.q_head && j->t.q_head + j->t.q_len == j->t.q_cap) {
        memmove(j->t.queue, j->t.queue + j->t.q_head, j->t.q_len * sizeof *j->t.queue);
        j->t.q_head = 0;
    }
    if (j->t.q_len == j->t.q_cap) {
        size_t cap = j->t.q_cap ? 2 * j->t.q_cap : 128;
        sl_piece *q = realloc(j->t.queue, cap * sizeof *q);
        if (!q)
            return false;
        j->t.queue = q;
        j->t.q_cap = cap;
    }
    j->t.queue[j->t.q_head + j->t.q_len++] = (sl_piece){layer, first, end};
    return true;
}

static bool ending(const sl_pjob *j)
{
    return j->t.state == SHIP_DRAINING || j->t.state == SHIP_OVER;
}

static void start_draining(sl_prefill *p, sl_pjob *j)
{
    j->t.state = SHIP_DRAINING;
    j->t.q_len = 0;
    j->t.it_active = j->t.it_device = false;
    j->t.held.bytes = 0;
    j->t.drain_deadline_ns = sl_now_ns() + p->o.drain_ms * MS;
    post(p, &j->m_stop);
    sl_ship_settle(p, j);
}

static void fail_with(sl_prefill *p, sl_pjob *j, sl_status st, bool retryable)
{
    j->t.status = st;
    j->t.retryable = retryable;
    sl_log(SL_LOG_WARN, "prefill", "request_failed",
           "rid=%016" PRIx64 " gen=%u status=%s retryable=%d reason=\"%s\"", j->rid, j->gen,
           sl_status_name(st), retryable, j->t.reason);
    start_draining(p, j);
}

void sl_ship_fail(sl_prefill *p, sl_pjob *j, sl_status st, bool retryable, const char *fmt, ...)
{
    if (ending(j))
        return;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(j->t.reason, sizeof j->t.reason, fmt, ap);
    va_end(ap);
    fail_with(p, j, st, retryable);
}

void sl_ship_abort(sl_prefill *p, uint64_t rid, uint32_t gen)
{
    sl_pjob *j = find(p, rid, gen);
    if (!j || j->t.state == SHIP_OVER) { /* nothing of it is left: it is drained */
        tell_router_id(p, SL_MSG_DRAINED, rid, gen);
        return;
    }
    j->t.aborted = true;
    sl_log(SL_LOG_INFO, "prefill", "request_aborted", "rid=%016" PRIx64 " gen=%u", rid, gen);
    if (j->t.state != SHIP_DRAINING)
        start_draining(p, j);
}

/* ---- the way out ---- */

static void over(sl_prefill *p, sl_pjob *j)
{
    j->t.state = SHIP_OVER;
    p->past[p->next_past].rid = j->rid;
    p->past[p->next_past].gen = j->gen;
    p->next_past = (p->next_past + 1) % PAST_JOBS;
    post(p, &j->m_end);
}

/* An ending that was not a COMMIT; nothing of ours is outstanding any more. */
static void report_end(sl_prefill *p, sl_pjob *j)
{
    /* its endpoint was closed by force with puts that no flush covered: what they did is not known here */
    bool unknown = !j->t.peer && j->t.dirty;
    if (j->t.peer && j->t.peer->up) {
        sl_msg m = {.type = SL_MSG_DRAINED};
        m.id = (sl_msg_id){j->rid, j->gen};
        sl_wep_send(j->t.peer->ep, &m);
    }
    sl_counter_add(j->t.aborted ? p->c.transfer_aborted : p->c.transfer_failed, 1);
    if (j->t.aborted) {
        if (!unknown)
            tell_router_id(p, SL_MSG_DRAINED, j->rid, j->gen);
        return;
    }
    sl_msg m = {.type = SL_MSG_FAILED};
    memset(&m.failed, 0, sizeof m.failed);
    m.failed.rid = j->rid;
    m.failed.gen = j->gen;
    m.failed.status = j->t.status;
    m.failed.retryable = j->t.retryable || unknown;
    snprintf(m.failed.reason, sizeof m.failed.reason, "%s", j->t.reason);
    sl_worker_send_router(p->worker, &m);
}

static void commit(sl_prefill *p, sl_pjob *j)
{
    uint64_t now = sl_now_ns();
    sl_msg m = {.type = SL_MSG_COMMIT};
    memset(&m.commit, 0, sizeof m.commit);
    m.commit.rid = j->rid;
    m.commit.gen = j->gen;
    m.commit.ticket = j->msg->ticket;
    m.commit.worker_id = sl_worker_id(p->worker);
    m.commit.n_tokens = (uint32_t)j->msg->n_tokens;
    m.commit.first_page = j->msg->matched_pages;
    m.commit.crc = j->t.crc;
    m.commit.n_crc = (j->msg->n_pages - j->msg->matched_pages) * (size_t)p->geo->n_layers;
    m.commit.first = j->first;
    m.commit.cached_tokens = j->cached_tokens;
    sl_wep_send(j->t.peer->ep, &m);

    sl_msg r = {.type = SL_MSG_PREFILLED};
    r.prefilled = (sl_msg_prefilled){.rid = j->rid,
                                     .gen = j->gen,
                                     .cached_tokens = j->cached_tokens,
                                     .queue_us = j->queue_us,
                                     .compute_us = j->compute_us,
                                     .ship_us = (now - j->t.finish_ns) / 1000,
                                     .bytes = j->t.bytes};
    sl_worker_send_router(p->worker, &r);
    sl_counter_add(p->c.transfer_ok, 1);
    sl_counter_add(p->c.transfer_bytes, j->t.bytes);
    sl_histogram_observe(p->c.exposed, (double)(now - j->t.finish_ns) / 1e9);
    sl_log(SL_LOG_INFO, "prefill", "commit",
           "rid=%016" PRIx64 " gen=%u tokens=%zu cached=%u bytes=%" PRIu64 " queue_us=%" PRIu64
           " compute_us=%" PRIu64 " exposed_us=%" PRIu64,
           j->rid, j->gen, j->msg->n_tokens, j->cached_tokens, j->t.bytes, j->queue_us, j->compute_us,
           r.prefilled.ship_us);
    over(p, j);
}

static void completed(sl_pjob *j)
{
    sl_dpeer *d = j->t.peer;
    j->t.in_flight--;
    if (d) {
        d->in_flight--;
        d->progress_ns = sl_now_ns();
    }
}

static sl_prefill *owner_of(const sl_pjob *j)
{
    return j->t.owner;
}

static void on_flushed(void *cookie, sl_status st)
{
    sl_pjob *j = cookie;
    sl_prefill *p = owner_of(j);
    completed(j);
    j->t.flush_posted = false;
    if (st == SL_OK) {
        j->t.flush_done = true;
        j->t.dirty = false;
    } else if (!ending(j)) {
        sl_ship_fail(p, j, SL_ERR_PEER, true, "flush failed: %s", sl_status_name(st));
        return;
    }
    sl_ship_settle(p, j);
}

/* SL_AGAIN leaves it for the next pump. */
static void post_flush(sl_prefill *p, sl_pjob *j)
{
    sl_dpeer *d = j->t.peer;
    sl_status st = sl_tp_flush(sl_wep_tp(d->ep), on_flushed, j);
    if (st == SL_AGAIN)
        return;
    if (st != SL_OK) { /* the endpoint is breaking; its `failed` follows */
        if (!ending(j))
            sl_ship_fail(p, j, SL_ERR_PEER, true, "cannot flush: %s", sl_status_name(st));
        return;
    }
    if (!d->in_flight)
        d->progress_ns = sl_now_ns();
    d->in_flight++;
    j->t.in_flight++;
    j->t.flush_posted = true;
}

static bool queue_empty(const sl_pjob *j)
{
    return !j->t.it_active && !j->t.q_len;
}

static void ask_about_pulled(sl_pjob *j)
{
    sl_msg m = {.type = SL_MSG_PAGES_ASK};
    m.pages_ask = (sl_msg_pages_ask){.rid = j->rid,
                                     .gen = j->gen,
                                     .ticket = j->msg->ticket,
                                     .first = (uint32_t)j->own_matched,
                                     .count = (uint32_t)(j->pull_end - j->own_matched)};
    j->t.asked = true;
    sl_wep_send(j->t.peer->ep, &m);
}

static void settle_draining(sl_prefill *p, sl_pjob *j)
{
    sl_dpeer *d = j->t.peer;
    if (j->t.in_flight)
        return;
    if (d && j->t.dirty) {
        if (!d->closing) /* else until it is closed */
            post_flush(p, j);
        return;
    }
    report_end(p, j);
    over(p, j);
}

void sl_ship_settle(sl_prefill *p, sl_pjob *j)
{
    sl_dpeer *d = j->t.peer;
    bool usable = d && d->up && !d->closing;
    if (j->t.state == SHIP_DRAINING) {
        settle_draining(p, j);
    } else if (j->t.state == SHIP_PULLING) {
        if (usable && queue_empty(j) && !j->t.in_flight && !j->t.asked)
            ask_about_pulled(j);
    } else if (j->t.state == SHIP_OPEN && j->t.finishing && usable && queue_empty(j)) {
        if (!j->t.dirty)
            j->t.flush_done = true; /* nothing that a flush would wait for */
        if (!j->t.flush_done && !j->t.flush_posted)
            post_flush(p, j);
        if (j->t.state == SHIP_OPEN && j->t.flush_done && !j->t.in_flight)
            commit(p, j);
    }
}

/* ---- posting ---- */

static void on_put(void *cookie, sl_status st)
{
    sl_pjob *j = cookie;
    sl_prefill *p = owner_of(j);
    completed(j);
    sl_counter_add(st == SL_OK ? p->c.put_ok : p->c.put_failed, 1);
    if (st != SL_OK && !ending(j))
        sl_ship_fail(p, j, SL_ERR_PEER, true, "put failed: %s", sl_status_name(st));
    else
        sl_ship_settle(p, j);
}

static void on_got(void *cookie, sl_status st)
{
    sl_pjob *j = cookie;
    sl_prefill *p = owner_of(j);
    completed(j);
    sl_counter_add(st == SL_OK ? p->c.get_ok : p->c.get_failed, 1);
    if (ending(j)) {
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
            sl_arena_page_crc(p->o.arena, j->own_pages[page], layer, page_end - page * PAGE);
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

/* ---- events ---- */

static bool landing_ok(const sl_pjob *j)
{
    for (size_t i = 0; i < j->msg->n_pages; i++) {
        if (j->msg->pages[i] >= (uint64_t)j->t.peer->n_pages)
            return false;
    }
    return true;
}

/* The peer is there and so are our pages: pull first, if there is something to pull. */
static void open_shipment(sl_prefill *p, sl_pjob *j)
{
    if (j->t.state != SHIP_WAITING || !j->t.started || !j->t.peer || !j->t.peer->up)
        return;
    if (!landing_ok(j)) {
        sl_ship_fail(p, j, SL_ERR_CORRUPT, true, "a landing page is outside the decode worker's arena");
        return;
    }
    j->t.map = (sl_page_map){.local = p->geo,
                             .remote = &j->t.peer->geo,
                             .local_base = sl_arena_base(p->o.arena),
                             .remote_base = j->t.peer->base,
                             .local_n = sl_arena_pages(p->o.arena),
                             .remote_n = j->t.peer->n_pages,
                             .lpages = j->own_pages,
                             .rpages = j->msg->pages};
    if (j->pull_end > j->own_matched && !j->t.answered_ask) {
        j->t.state = SHIP_PULLING;
        if (!push_piece(j, -1, j->own_matched * PAGE, j->pull_end * PAGE))
            sl_ship_fail(p, j, SL_ERR_NO_MEMORY, true, "out of memory");
        return;
    }
    j->t.state = SHIP_OPEN;
}

void sl_ship_peer_up(sl_prefill *p, sl_pjob *j)
{
    if (ending(j))
        return;
    open_shipment(p, j);
}

static void pull_done(sl_prefill *p, sl_pjob *j, bool ok)
{
    j->t.answered_ask = true;
    j->t.state = SHIP_OPEN;
    j->pull_ok = ok;
    post(p, &j->m_pulled);
}

/* The pulled bytes are right when they have the checksums of pages that the ticket still pins. */
void sl_ship_pages_crc(sl_prefill *p, const sl_msg_pages_crc *m)
{
    sl_pjob *j = find(p, m->rid, m->gen);
    if (!j || j->t.state != SHIP_PULLING || (int32_t)m->first != j->own_matched) {
        sl_counter_add(p->c.stale, 1);
        return;
    }
    size_t layers = (size_t)p->geo->n_layers, n = (size_t)(j->pull_end - j->own_matched) * layers, bad = 0;
    bool ok = m->n_crc == n;
    for (size_t i = 0; ok && i < n && p->o.verify_checksums; i++) {
        int32_t page = j->own_matched + (int32_t)(i / layers);
        bad += sl_arena_page_crc(p->o.arena, j->own_pages[page], (int32_t)(i % layers), PAGE) != m->crc[i];
    }
    if (bad) {
        sl_counter_add(p->c.checksum, bad);
        sl_log(SL_LOG_WARN, "prefill", "pull_damaged", "rid=%016" PRIx64 " gen=%u bad=%zu of=%zu", j->rid,
               j->gen, bad, n);
    }
    pull_done(p, j, ok && !bad);
}

static void on_start(sl_prefill *p, sl_pjob *j)
{
    if (ending(j))
        return;
    j->t.started = true;
    /* full pages that we had and the decode worker has not */
    int32_t from = (int32_t)j->msg->matched_pages;
    open_shipment(p, j);
    if (!ending(j) && j->own_matched > from && !push_piece(j, -1, from * PAGE, j->own_matched * PAGE))
        sl_ship_fail(p, j, SL_ERR_NO_MEMORY, true, "out of memory");
}

static void on_layer(sl_prefill *p, const sl_layer_mail *m)
{
    for (int32_t i = 0; i < m->step->n; i++) {
        sl_pjob *j = m->step->item[i].job;
        int32_t from = (int32_t)j->msg->matched_pages * PAGE;
        int32_t first = m->step->item[i].first < from ? from : m->step->item[i].first;
        if (ending(j) || first >= m->step->item[i].end)
            continue;
        if (!push_piece(j, m->layer, first, m->step->item[i].end))
            sl_ship_fail(p, j, SL_ERR_NO_MEMORY, true, "out of memory");
    }
}

void sl_ship_mail(sl_prefill *p, sl_wmail *m)
{
    if (m->kind == PM_COPIED) {
        sl_copies_back(p, (sl_copier_mail *)m);
        return;
    }
    sl_pjob *j = ((sl_jmail *)m)->job;
    switch (m->kind) {
    case PM_START:
        on_start(p, j);
        break;
    case PM_LAYER:
        on_layer(p, (const sl_layer_mail *)m);
        break;
    case PM_STEP_DONE:
        m->kind = PM_STEP_BACK;
        sl_mailbox_post(p->inbox, &m->link);
        break;
    case PM_FINISH:
        j->t.finishing = true;
        j->t.finish_ns = sl_now_ns();
        sl_ship_settle(p, j);
        break;
    case PM_FAIL:
        if (!ending(j)) {
            memcpy(j->t.reason, j->fail_reason, sizeof j->t.reason);
            fail_with(p, j, j->fail_status, j->fail_retryable);
        }
        break;
    case PM_RELEASE:
        sl_ship_free(p, j);
        break;
    default:
        SL_CHECK(false, "mail %d", m->kind);
    }
}

void sl_ship_router_down(sl_prefill *p)
{
    for (sl_pjob *j = p->ships, *next; j; j = next) {
        next = j->t.next;
        if (!ending(j))
            sl_ship_fail(p, j, SL_ERR_PEER, true, "the router is gone");
    }
}

uint64_t sl_ship_tick(sl_prefill *p, uint64_t now)
{
    uint64_t due = UINT64_MAX;
    for (sl_pjob *j = p->ships, *next; j; j = next) {
        next = j->t.next;
        if (!ending(j) && now >= j->deadline_ns)
            sl_ship_fail(p, j, SL_ERR_DEADLINE, true, "deadline of the request passed");
        if (j->t.state == SHIP_DRAINING) {
            sl_ship_settle(p, j);
            if (j->t.state == SHIP_DRAINING && now >= j->t.drain_deadline_ns && j->t.peer)
                sl_dpeer_drop(p, j->t.peer, SL_ERR_TIMEOUT, "posted operations do not drain");
            due = now + 50 * MS < due ? now + 50 * MS : due;
        } else if (j->t.state != SHIP_OVER && j->deadline_ns < due) {
            due = j->deadline_ns;
        }
    }
    return due;
}
