/*
 * Prefetch: the prefix of a request whose RESERVE still waits at the decode worker, which loads it from storage tiers, is fetched
 * from there while it arrives. Engine thread; shipment_lease.c has the transport's part.
 *
 * A prefetch is a job without tokens to compute. It leases own pages, and its shipment fills them, chunk by chunk, with those of the
 * decode worker. Each chunk is compared with the checksums that the decode worker keeps, and enters this worker's prefix tree. So
 * when PREFILL arrives, the request finds the pages as if an earlier request had left them, and everything else is as without a
 * prefetch: whatever fails here costs time and never a token.
 *
 *   engine.state  means                                             left by
 *   ------------  ------------------------------------------------  -------------------------------------------------------
 *   PULLING       chunks arrive                                     PULLED: no other follows -> READY
 *   READY         the pages stay pinned until the request begins    the request of the same attempt begins or ends -> FINISHED
 *   FINISHED      the transport thread was told to end it           STOP -> STOPPED
 *   STOPPED       nothing is used any more                          END, when no check is in flight -> freed
 *
 * STOP (an abort, a failure, the end of its time, the loss of its router or of the decode worker) ends it in every state. The
 * request waits in the queue while its own prefetch is PULLING, so that no page is fetched twice; other requests do not.
 *
 * With states there are none: pages without a snapshot are of no use.
 *
 * Bounds: as many as prefill.max_requests, and none begins while a request waits for its pages or its place. A request that finds
 * no pages here ends prefetches, the newest first: what a prefetch waits for may be pages of the decode worker that this request holds.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "kvstore/page_key.h"
#include "prefill/prefill_impl.h"

enum { PAGE = SL_PAGE_TOKENS };

static void end_shipment(sl_prefill *p, sl_prefill_job *j)
{
    if (j->engine.state != JOB_PULLING && j->engine.state != JOB_READY)
        return;
    j->engine.state = JOB_FINISHED;
    sl_worker_post(p->worker, sl_job_mail_of(j, PM_FINISH));
}

static bool place_left(const sl_prefill *p)
{
    int32_t n = 0;
    for (const sl_prefill_job *j = p->prefetches; j; j = j->engine.next)
        n++;
    for (const sl_prefill_job *j = p->jobs; j; j = j->engine.next)
        if (j->engine.state == JOB_QUEUED)
            return false;
    return n <= p->o.max_requests && !sl_prefill_snapshot(p) && !p->role.draining && p->o.role.prefix_cache;
}

/* Leases the pages; false: there is nothing to fetch, or no room. */
static bool begin(sl_prefill *p, sl_prefill_job *j)
{
    const sl_msg_prefill *r = j->msg;
    size_t n = r->matched_pages;
    if (!place_left(p) || (int32_t)n > sl_arena_pages(p->o.role.arena) ||
        sl_store_match(p->role.store, r->seed, r->tokens, (int32_t)n * PAGE + 1) == (int32_t)n ||
        sl_store_lease_pages(p->role.store, 0, r->seed, r->tokens, (int32_t)n, &j->engine.lease) != SL_OK)
        return false;
    j->own_pages = malloc(n * sizeof *j->own_pages);
    j->keys = malloc(n * sizeof *j->keys);
    if (!j->own_pages || !j->keys)
        return false;
    memcpy(j->own_pages, sl_lease_pages(j->engine.lease), n * sizeof *j->own_pages);
    sl_page_keys(r->seed, r->tokens, n * PAGE, j->keys);
    j->own_matched = j->engine.sealed = sl_lease_matched(j->engine.lease);
    j->pull_end = (int32_t)n;
    return true;
}

static void on_new(sl_prefill *p, sl_prefill_job *j)
{
    j->engine.next = p->prefetches;
    if (p->prefetches)
        p->prefetches->engine.prev = j;
    p->prefetches = j;
    j->engine.state = JOB_PULLING;
    if (begin(p, j))
        sl_worker_post(p->worker, sl_job_mail_of(j, PM_START));
    else
        end_shipment(p, j);
}

/* END has come, and the last check is back. */
void sl_prefill_prefetch_let_go(sl_prefill *p, sl_prefill_job *j)
{
    if (!j->engine.ended || j->engine.checks)
        return;
    sl_prefill_close_seq(p, j);
    sl_lease_release(j->engine.lease, true);
    *(j->engine.prev ? &j->engine.prev->engine.next : &p->prefetches) = j->engine.next;
    if (j->engine.next)
        j->engine.next->engine.prev = j->engine.prev;
    sl_worker_post(p->worker, sl_job_mail_of(j, PM_RELEASE));
}

void sl_prefill_prefetch_mail(sl_prefill *p, sl_prefill_job *j, int kind)
{
    switch (kind) {
    case PM_NEW:
        on_new(p, j);
        break;
    case PM_PULLED:
        if (j->engine.state == JOB_PULLING)
            j->engine.state = JOB_READY;
        break;
    case PM_STOP:
        j->engine.state = JOB_STOPPED;
        sl_prefill_close_seq(p, j);
        break;
    case PM_END:
        j->engine.ended = true;
        sl_prefill_prefetch_let_go(p, j);
        break;
    default:
        SL_CHECK(false, "mail %d", kind);
    }
}

/* ---- chunks ---- */

void sl_prefill_prefetch_compared(sl_prefill *p, sl_prefill_job *j)
{
    if (!j->engine.lease)
        return;
    sl_lease_publish(j->engine.lease, j->msg->tokens, j->engine.sealed * PAGE);
    if (j->engine.state == JOB_PULLING || j->engine.state == JOB_READY)
        sl_prefill_move_early(p, j, j->engine.sealed);
}

void sl_prefill_prefetch_failed(sl_prefill *p, sl_prefill_job *j)
{
    end_shipment(p, j);
}

/* ---- the request ---- */

static sl_prefill_job *prefetch_of(const sl_prefill *p, const sl_prefill_job *j)
{
    sl_prefill_job *f = p->prefetches;
    while (f && (f->router != j->router || f->rid != j->rid || f->attempt != j->attempt))
        f = f->engine.next;
    return f;
}

bool sl_prefill_prefetch_awaited(const sl_prefill *p, const sl_prefill_job *j)
{
    const sl_prefill_job *f = prefetch_of(p, j);
    return f && (f->engine.state == JOB_PULLING || (f->engine.state == JOB_READY && f->engine.checks));
}

void sl_prefill_prefetch_use(sl_prefill *p, const sl_prefill_job *j, int32_t *first, int32_t *end)
{
    sl_prefill_job *f = prefetch_of(p, j);
    *first = *end = 0;
    if (!f || f->engine.state != JOB_READY || !f->engine.lease)
        return;
    *first = f->own_matched;
    *end = f->engine.sealed;
    sl_lease_release(f->engine.lease, true); /* no get writes its pages any more, and no check reads them */
    f->engine.lease = NULL;
}

void sl_prefill_prefetch_give_seq(sl_prefill *p, sl_prefill_job *j)
{
    sl_prefill_job *f = prefetch_of(p, j);
    if (!f || !f->engine.seq)
        return;
    int32_t n = f->engine.seq_pages;
    if (j->own_pages && n <= j->own_matched &&
        !memcmp(j->own_pages, f->own_pages, (size_t)n * sizeof *f->own_pages)) {
        j->engine.seq = f->engine.seq;
        j->engine.seq_pages = n;
        f->engine.seq = NULL;
    }
    sl_prefill_close_seq(p, f);
}

bool sl_prefill_prefetch_yield(sl_prefill *p)
{
    bool any = false;
    for (sl_prefill_job *f = p->prefetches; f; f = f->engine.next) {
        any |= f->engine.seq != NULL;
        sl_prefill_close_seq(p, f);
    }
    return any;
}

void sl_prefill_prefetch_make_room(sl_prefill *p)
{
    sl_prefill_job *newest = NULL;
    for (sl_prefill_job *f = p->prefetches; f; f = f->engine.next) {
        const bool ends = f->engine.state == JOB_FINISHED || f->engine.state == JOB_STOPPED;
        if (f->engine.lease && ends)
            return; /* its pages come back soon */
        if (f->engine.lease && !newest)
            newest = f;
    }
    if (newest)
        end_shipment(p, newest);
}

void sl_prefill_prefetch_end(sl_prefill *p, const sl_prefill_job *j)
{
    sl_prefill_job *f = prefetch_of(p, j);
    if (f)
        end_shipment(p, f);
}

void sl_prefill_prefetch_drain(sl_prefill *p)
{
    for (sl_prefill_job *j = p->prefetches; j; j = j->engine.next)
        end_shipment(p, j);
}
