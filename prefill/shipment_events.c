/*
 * The events of a shipment: they record what has happened and put it on the list of runnable shipments, and post and send nothing
 * (shipment.h). Peers and paths call them.
 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#include "prefill/prefill_impl.h"

const char *sl_ship_state_name(sl_ship_state s)
{
    static const char *const names[] = {"waiting", "connecting", "pulling",  "sending", "flushing",
                                        "leasing", "holding",    "draining", "over"};
    return names[s];
}

bool sl_ship_ends(const sl_prefill_job *j)
{
    return j->ship.ending.cause != SHIP_NOT_ENDING || j->ship.state == SHIP_OVER;
}

/* ---- the list of runnable shipments ---- */

void sl_ship_list_put(sl_ship_list *l, sl_prefill_job *j)
{
    if (!l->tail)
        l->tail = &l->head;
    j->ship.run.next = NULL;
    j->ship.run.pprev = l->tail;
    *l->tail = j;
    l->tail = &j->ship.run.next;
}

void sl_ship_list_out(sl_ship_list *l, sl_prefill_job *j)
{
    *j->ship.run.pprev = j->ship.run.next;
    if (j->ship.run.next)
        j->ship.run.next->ship.run.pprev = j->ship.run.pprev;
    else
        l->tail = j->ship.run.pprev;
    j->ship.run.pprev = NULL;
}

sl_prefill_job *sl_ship_list_first(sl_ship_list *l)
{
    sl_prefill_job *j = l->head;
    if (j)
        sl_ship_list_out(l, j);
    return j;
}

void sl_ship_runnable(sl_prefill *p, sl_prefill_job *j)
{
    if (!j->ship.run.pprev)
        sl_ship_list_put(&p->runnable, j);
}

/* ---- events ---- */

void sl_ship_fail(sl_prefill *p, sl_prefill_job *j, sl_status st, bool retryable, const char *fmt, ...)
{
    sl_ship_ending *e = &j->ship.ending;
    if (sl_ship_ends(j))
        return;
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(e->reason, sizeof e->reason, fmt, ap);
    va_end(ap);
    e->cause = SHIP_FAILED;
    e->status = st;
    e->retryable = retryable;
    sl_log(j->prefetch ? SL_LOG_INFO : SL_LOG_WARN, "prefill",
           j->prefetch ? "prefetch_failed" : "request_failed",
           "rid=%016" PRIx64 " attempt=%u status=%s retryable=%d reason=\"%s\"", j->rid, j->attempt,
           sl_status_name(st), retryable, e->reason);
    sl_ship_runnable(p, j);
}

void sl_ship_fail_peer(sl_prefill *p, const sl_decode_peer *d, sl_status st, const char *why)
{
    for (sl_prefill_job *j = p->ships; j; j = j->ship.next) {
        if (j->ship.peer == d)
            sl_ship_fail(p, j, st, true, "decode worker %s: %s", d->remote.address, why);
    }
}

void sl_ship_router_down(sl_prefill *p, uint32_t router)
{
    for (sl_prefill_job *j = p->ships; j; j = j->ship.next) {
        if (j->router == router)
            sl_ship_fail(p, j, SL_ERR_PEER, true, "the router is gone");
    }
}

void sl_ship_peer_up(sl_prefill *p, const sl_decode_peer *d)
{
    for (sl_prefill_job *j = p->ships; j; j = j->ship.next) {
        if (j->ship.peer == d)
            sl_ship_runnable(p, j);
    }
}

void sl_ship_peer_closed(sl_prefill *p, const sl_decode_peer *d)
{
    for (sl_prefill_job *j = p->ships; j; j = j->ship.next) {
        if (j->ship.peer == d) {
            j->ship.peer = NULL;
            sl_ship_runnable(p, j);
        }
    }
}

void sl_ship_posted(sl_prefill_job *j)
{
    sl_decode_peer *d = j->ship.peer;
    sl_remote_posted(&d->remote);
    j->ship.in_flight++;
}

void sl_ship_completed(sl_prefill_job *j, sl_decode_peer *d)
{
    sl_remote_completed(&d->remote);
    j->ship.in_flight--;
    sl_ship_runnable(j->ship.owner, j);
}
