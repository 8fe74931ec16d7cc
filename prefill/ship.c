/*
 * Shipments, on the transport thread: one per request, from PREFILL to END.
 *
 * A shipment owns a queue of pieces (layer, token range) that the engine has finished. ship_post.c makes them
 * puts when the window of the connection allows; when the last put is posted and FINISH is there, one flush
 * follows, and when everything has completed without error, COMMIT and PREFILLED (ship_end.c). Here is how a
 * shipment begins, and what it hears: mails of the engine, messages, the clock.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "prefill/prefill_impl.h"

static const uint64_t MS = 1000000;
enum { PAGE = SL_PAGE_TOKENS };

void sl_ship_tell_engine(sl_prefill *p, sl_jmail *m)
{
    sl_mailbox_post(p->role.inbox, &m->mail.link);
}

sl_pjob *sl_ship_find(sl_prefill *p, uint64_t rid, uint32_t attempt)
{
    for (sl_pjob *j = p->ships; j; j = j->t.next) {
        if (j->rid == rid && j->attempt == attempt)
            return j;
    }
    return NULL;
}

static void init_mail(sl_jmail *m, sl_pjob *j, int kind)
{
    *m = (sl_jmail){.mail.kind = kind, .job = j};
}

static void reject(sl_prefill *p, const sl_msg_prefill *r, sl_status st, const char *why)
{
    sl_msg m = {.type = SL_MSG_FAILED};
    memset(&m.failed, 0, sizeof m.failed);
    m.failed.rid = r->rid;
    m.failed.attempt = r->attempt;
    m.failed.status = st;
    m.failed.retryable = 1;
    snprintf(m.failed.reason, sizeof m.failed.reason, "%.399s", why);
    sl_worker_send_router(p->worker, &m);
}

static bool is_past(const sl_prefill *p, uint64_t rid, uint32_t attempt)
{
    for (uint32_t i = 0; i < PAST_JOBS; i++) {
        if (p->past[i].rid == rid && p->past[i].attempt == attempt)
            return true;
    }
    return false;
}

void sl_ship_new(sl_prefill *p, sl_wmsg *m)
{
    const sl_msg_prefill *r = &m->msg.prefill;
    if (sl_ship_find(p, r->rid, r->attempt) || is_past(p, r->rid, r->attempt)) {
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
    j->attempt = r->attempt;
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
    sl_ship_tell_engine(p, &j->m_new);
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
                             .local_base = sl_arena_base(p->o.role.arena),
                             .remote_base = j->t.peer->base,
                             .local_n = sl_arena_pages(p->o.role.arena),
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
    if (sl_ship_ending(j))
        return;
    open_shipment(p, j);
}

static void pull_done(sl_prefill *p, sl_pjob *j, bool ok)
{
    j->t.answered_ask = true;
    j->t.state = SHIP_OPEN;
    j->pull_ok = ok;
    sl_ship_tell_engine(p, &j->m_pulled);
}

/* The pulled bytes are right when they have the checksums of pages that the ticket still pins. */
void sl_ship_pages_crc(sl_prefill *p, const sl_msg_pages_crc *m)
{
    sl_pjob *j = sl_ship_find(p, m->rid, m->attempt);
    if (!j || j->t.state != SHIP_PULLING || (int32_t)m->first != j->own_matched) {
        sl_counter_add(p->c.stale, 1);
        return;
    }
    size_t layers = (size_t)p->geo->n_layers, n = (size_t)(j->pull_end - j->own_matched) * layers, bad = 0;
    bool ok = m->n_crc == n;
    for (size_t i = 0; ok && i < n && p->o.role.verify_checksums; i++) {
        int32_t page = j->own_matched + (int32_t)(i / layers);
        bad +=
            sl_arena_page_crc(p->o.role.arena, j->own_pages[page], (int32_t)(i % layers), PAGE) != m->crc[i];
    }
    if (bad) {
        sl_counter_add(p->c.checksum, bad);
        sl_log(SL_LOG_WARN, "prefill", "pull_damaged", "rid=%016" PRIx64 " attempt=%u bad=%zu of=%zu", j->rid,
               j->attempt, bad, n);
    }
    pull_done(p, j, ok && !bad);
}

static void on_start(sl_prefill *p, sl_pjob *j)
{
    if (sl_ship_ending(j))
        return;
    j->t.started = true;
    /* full pages that we had and the decode worker has not */
    int32_t from = (int32_t)j->msg->matched_pages;
    open_shipment(p, j);
    if (!sl_ship_ending(j) && j->own_matched > from && !push_piece(j, -1, from * PAGE, j->own_matched * PAGE))
        sl_ship_fail(p, j, SL_ERR_NO_MEMORY, true, "out of memory");
}

static void on_layer(sl_prefill *p, const sl_layer_mail *m)
{
    for (int32_t i = 0; i < m->step->n; i++) {
        sl_pjob *j = m->step->item[i].job;
        int32_t from = (int32_t)j->msg->matched_pages * PAGE;
        int32_t first = m->step->item[i].first < from ? from : m->step->item[i].first;
        if (sl_ship_ending(j) || first >= m->step->item[i].end)
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
        sl_mailbox_post(p->role.inbox, &m->link);
        break;
    case PM_FINISH:
        j->t.finishing = true;
        j->t.finish_ns = sl_now_ns();
        sl_ship_settle(p, j);
        break;
    case PM_FAIL:
        sl_ship_fail(p, j, j->fail_status, j->fail_retryable, "%s", j->fail_reason);
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
        if (!sl_ship_ending(j))
            sl_ship_fail(p, j, SL_ERR_PEER, true, "the router is gone");
    }
}

uint64_t sl_ship_tick(sl_prefill *p, uint64_t now)
{
    uint64_t due = UINT64_MAX;
    for (sl_pjob *j = p->ships, *next; j; j = next) {
        next = j->t.next;
        if (!sl_ship_ending(j) && now >= j->deadline_ns)
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
