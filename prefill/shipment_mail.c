/*
 * The beginning and the end of a shipment, and what the router, the engine and the copier say about it (shipment.h).
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "prefill/path.h"
#include "prefill/peer.h"

static const uint64_t MS = 1000000;
enum {
    PAGE = SL_PAGE_TOKENS,
    PREFETCH_MS = 120000 /* a prefetch whose request does not come ends */
};

static sl_prefill_job *find_kind(sl_prefill *p, bool prefetch, uint32_t router, uint64_t rid,
                                 uint32_t attempt)
{
    for (sl_prefill_job *j = p->ships; j; j = j->ship.next) {
        if (j->prefetch == prefetch && j->router == router && j->rid == rid && j->attempt == attempt)
            return j;
    }
    return NULL;
}

static sl_prefill_job *find(sl_prefill *p, uint32_t router, uint64_t rid, uint32_t attempt)
{
    return find_kind(p, false, router, rid, attempt);
}

static void reject(sl_prefill *p, const sl_wmsg *in, sl_status st, const char *why)
{
    const sl_msg_prefill *r = &in->msg.prefill;
    sl_msg m = {.type = SL_MSG_FAILED};
    memset(&m.failed, 0, sizeof m.failed);
    m.failed.rid = r->rid;
    m.failed.attempt = r->attempt;
    m.failed.status = st;
    m.failed.retryable = 1;
    snprintf(m.failed.reason, sizeof m.failed.reason, "%.399s", why);
    sl_worker_send_router(p->worker, in->router, &m);
}

static void init_mails(sl_prefill_job *j)
{
    for (int kind = PM_NEW; kind < SL_JOB_MAILS; kind++)
        j->mail[kind] = (sl_job_mail){.mail.kind = kind, .job = j};
}

/* Takes ownership of m if it succeeds. */
static sl_prefill_job *make_job(sl_prefill *p, sl_wmsg *m, const sl_snapshot_places *at, sl_err *err)
{
    const sl_msg_prefill *r = &m->msg.prefill;
    size_t n_crc = ((size_t)at->written - r->matched_pages) * (size_t)p->geo->n_layers;
    sl_prefill_job *j = calloc(1, sizeof *j);
    uint32_t *crc = calloc(n_crc + 1, sizeof *crc);
    if (!j || !crc)
        sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    sl_decode_peer *d = j && crc ? sl_peer_get(p, m->router, r, err) : NULL;
    if (!d) {
        free(crc);
        free(j);
        return NULL;
    }
    j->m = m;
    j->msg = r;
    j->rid = r->rid;
    j->attempt = r->attempt;
    j->at = *at;
    j->router = m->router;
    j->arrived_ns = sl_now_ns();
    j->deadline_ns = r->deadline_ms ? j->arrived_ns + r->deadline_ms * MS : UINT64_MAX;
    init_mails(j);
    j->ship = (sl_shipment){.owner = p, .crc = crc, .peer = d, .state = SHIP_WAITING, .next = p->ships};
    return j;
}

static void add(sl_prefill *p, sl_prefill_job *j)
{
    if (p->ships)
        p->ships->ship.prev = j;
    p->ships = j;
    sl_mailbox_post(p->role.inbox, &sl_job_mail_of(j, PM_NEW)->link);
}

/* Whatever prevents it is found again, and told, when the request itself comes. */
static void new_prefetch(sl_prefill *p, sl_wmsg *m)
{
    const sl_msg_prefetch *r = &m->msg.prefetch;
    sl_err err = {0};
    bool known = find(p, m->router, r->rid, r->attempt) ||
                 sl_past_has(&p->past, m->router, r->rid, r->attempt) ||
                 find_kind(p, true, m->router, r->rid, r->attempt);
    sl_prefill_job *j = NULL;
    if (!known && sl_ship_prefetch_msg(p, m)) {
        int32_t n = (int32_t)m->msg.prefill.n_pages;
        j = make_job(p, m, &(sl_snapshot_places){.pages = n, .written = n, .n = n}, &err);
    }
    if (!j) {
        sl_wmsg_free(m);
        return;
    }
    j->prefetch = true;
    j->deadline_ns = j->arrived_ns + PREFETCH_MS * MS;
    add(p, j);
}

void sl_ship_new(sl_prefill *p, sl_wmsg *m)
{
    if (m->msg.type == SL_MSG_PREFETCH) {
        new_prefetch(p, m);
        return;
    }
    const sl_msg_prefill *r = &m->msg.prefill;
    sl_err err = {0};
    if (find(p, m->router, r->rid, r->attempt) || sl_past_has(&p->past, m->router, r->rid, r->attempt)) {
        sl_counter_add(p->c.stale, 1);
        sl_wmsg_free(m);
        return;
    }
    if (r->matched_pages > (r->n_tokens - 1) / PAGE) {
        reject(p, m, SL_ERR_INVALID, "the matched prefix leaves no token to compute");
        sl_wmsg_free(m);
        return;
    }
    const sl_snapshot_places at =
        sl_snapshot_place(sl_prefill_snapshot(p), (int32_t)r->n_tokens, (int32_t)r->matched_pages);
    if (r->n_pages != (size_t)at.n) {
        reject(p, m, SL_ERR_INVALID,
               "the number of pages does not fit the tokens and the states of the model");
        sl_wmsg_free(m);
        return;
    }
    sl_prefill_job *j = make_job(p, m, &at, &err);
    if (!j) {
        reject(p, m, SL_ERR_PEER, err.text);
        sl_wmsg_free(m);
        return;
    }
    add(p, j);
}

void sl_ship_free(sl_prefill *p, sl_prefill_job *j)
{
    if (j->ship.run.pprev)
        sl_ship_list_out(&p->runnable, j);
    *(j->ship.prev ? &j->ship.prev->ship.next : &p->ships) = j->ship.next;
    if (j->ship.next)
        j->ship.next->ship.prev = j->ship.prev;
    sl_wmsg_free(j->m);
    free(j->own_pages);
    free(j->keys);
    sl_ship_pull_free(j);
    free(j->dev_rows); /* dev_index is in the same block */
    sl_cursor_free(&j->ship.cursor);
    free(j->ship.crc);
    sl_draft_state_free(&j->result.hidden);
    free(j);
}

static void end_prefetch(sl_prefill *p, sl_prefill_job *j)
{
    if (sl_ship_ends(j))
        return;
    j->ship.ending.cause = SHIP_ABORTED;
    sl_ship_runnable(p, j);
}

void sl_ship_abort(sl_prefill *p, uint32_t router, uint64_t rid, uint32_t attempt)
{
    sl_prefill_job *j = find(p, router, rid, attempt), *f = find_kind(p, true, router, rid, attempt);
    if (f)
        end_prefetch(p, f);
    if (!j || j->ship.state == SHIP_OVER) { /* there is no such shipment, or it has ended: it is drained */
        sl_ship_tell_drained(p, router, rid, attempt);
        return;
    }
    j->ship.ending.cause = SHIP_ABORTED;
    sl_log(SL_LOG_DEBUG, "prefill", "request_aborted", "rid=%016" PRIx64 " attempt=%u", rid, attempt);
    sl_ship_runnable(p, j);
}

static void push(sl_prefill *p, sl_prefill_job *j, sl_piece piece)
{
    if (sl_cursor_push(&j->ship.cursor, &piece) != SL_OK)
        sl_ship_fail(p, j, SL_ERR_NO_MEMORY, true, "out of memory");
    sl_ship_runnable(p, j);
}

/*
 * The engine has leased the own pages. First come the pages that are to be pulled, whose pieces are pushed chunk by chunk, or the
 * pages of the own cache that the decode worker does not have; at most one of the two sets is not empty.
 */
static void on_start(sl_prefill *p, sl_prefill_job *j)
{
    if (sl_ship_ends(j))
        return;
    int32_t theirs = (int32_t)j->msg->matched_pages, own = j->own_matched, layers = p->geo->n_layers;
    j->ship.state = SHIP_CONNECTING;
    j->ship.at = own;
    if (!j->prefetch && own > theirs)
        push(p, j, (sl_piece){.end_layer = layers, .first = theirs * PAGE, .end = own * PAGE});
    sl_ship_runnable(p, j);
}

static void on_layer(sl_prefill *p, const sl_layer_mail *m)
{
    for (int32_t i = 0; i < m->step->n; i++) {
        sl_prefill_job *j = m->step->item[i].job;
        int32_t from = (int32_t)j->msg->matched_pages * PAGE;
        int32_t first = m->step->item[i].first < from ? from : m->step->item[i].first;
        if (sl_ship_ends(j) || first >= m->step->item[i].end)
            continue;
        push(p, j,
             (sl_piece){.layer = m->layer,
                        .end_layer = m->layer + 1,
                        .first = first,
                        .end = m->step->item[i].end,
                        .computed = true});
    }
}

/* The prompt is computed, and its snapshots are made. */
static void on_finish(sl_prefill *p, sl_prefill_job *j)
{
    j->ship.finish_ns = sl_now_ns();
    if (j->at.end >= 0 && !sl_ship_ends(j))
        push(p, j,
             (sl_piece){
                 .end_layer = p->geo->n_layers, .first = j->at.end * PAGE, .end = j->at.written * PAGE});
    sl_ship_runnable(p, j);
}

void sl_ship_mail(sl_prefill *p, sl_wmail *m)
{
    if (m->kind == PM_COPIED) {
        sl_copies_back(p, (sl_copier_mail *)m);
        return;
    }
    sl_prefill_job *j = ((sl_job_mail *)m)->job;
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
        if (j->prefetch) {
            end_prefetch(p, j);
            break;
        }
        on_finish(p, j);
        break;
    case PM_FAIL:
        sl_ship_fail(p, j, j->failure.status, j->failure.retryable, "%s", j->failure.reason);
        break;
    case PM_RELEASE:
        sl_ship_free(p, j);
        break;
    default:
        SL_CHECK(false, "mail %d", m->kind);
    }
}
