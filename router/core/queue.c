/*
 * The queue of requests that wait for workers, fair between clients.
 *
 * Every client has a lane, which is first in, first out. The next request comes from the lane whose client has been
 * served the fewest tokens per weight (a virtual token counter: prompt tokens count when a request is placed, output
 * tokens when they are emitted). A client that returns continues at the counter of the lane that was served last, so
 * that it does not accumulate a claim while it is idle. Attempts that start again wait in a separate list, the oldest
 * request first, which is served before every lane, because their clients have already received a part of the stream.
 *
 * A held request keeps its place and is skipped.
 *
 * The bound: there is room for max_queue requests and for those that free places on workers take at once. A call is
 * admitted if all of its requests fit, and if its client then has at most FREE_SHARE times as many of these as stay free
 * (dynamic thresholds). So one client may use four fifths of an empty queue, but never the whole queue.
 */
#include <stdlib.h>
#include <string.h>

#include "router/core/core_impl.h"

enum { FREE_SHARE = 4, RATE_MS = 1000, RETRY_MAX_S = 60 };

static const uint64_t MINUTE_NS = 60000 * SL_MS;

/* ---- lanes ---- */

sl_lane *sl_queue_lane(sl_router *r, const char *client, uint32_t weight)
{
    sl_queue *u = &r->queue;
    sl_lane *l = u->lanes;
    while (l && strcmp(l->client, client))
        l = l->next;
    if (!l) {
        l = calloc(1, sizeof *l);
        if (!l)
            return NULL;
        sl_copy_text(l->client, sizeof l->client, client);
        l->next = u->lanes;
        u->lanes = l;
    }
    if (weight || !l->weight)
        l->weight = weight ? weight : 1;
    return l;
}

/* True while the buckets of a tenant's rate are not full, so that its account must be kept. */
static bool in_debt(const sl_lane *l, uint64_t now)
{
    return l->account.filled_ns && (now - l->account.filled_ns < MINUTE_NS || l->account.tokens < 0);
}

void sl_queue_free(sl_router *r)
{
    while (r->queue.lanes) {
        sl_lane *l = r->queue.lanes;
        r->queue.lanes = l->next;
        free(l);
    }
}

/* A lane without calls says nothing that the counter of the queue does not say, unless it is ahead of that. */
void sl_queue_sweep(sl_router *r)
{
    sl_queue *u = &r->queue;
    uint64_t now = sl_now_ns();
    for (sl_lane **p = &u->lanes; *p;) {
        sl_lane *l = *p;
        if (l->groups || l->reading || in_debt(l, now) || (l->served > u->served && r->requests.active)) {
            p = &l->next;
            continue;
        }
        *p = l->next;
        free(l);
    }
}

void sl_queue_charge(sl_request *q, size_t tokens)
{
    sl_lane *l = q->group->lane;
    l->served += (double)tokens / l->weight;
}

static bool may_be_placed(const sl_request *q, uint64_t now)
{
    return !q->held && now >= q->times.not_before_ns;
}

static sl_request *first_of(const sl_lane *l, uint64_t now)
{
    sl_request *q = l->list.head;
    while (q && !may_be_placed(q, now))
        q = q->q_next;
    return q;
}

sl_request *sl_queue_next(sl_router *r, uint64_t now)
{
    sl_request *best = NULL;
    for (sl_lane *l = r->queue.lanes; l; l = l->next) {
        if (best && l->served >= best->group->lane->served)
            continue;
        sl_request *q = first_of(l, now);
        best = q ? q : best;
    }
    if (best && best->group->lane->served > r->queue.served)
        r->queue.served = best->group->lane->served;
    return best;
}

sl_request *sl_queue_next_again(const sl_router *r, const sl_request *after, uint64_t now)
{
    sl_request *q = after ? after->q_next : r->queue.again.head;
    while (q && !may_be_placed(q, now))
        q = q->q_next;
    return q;
}

/* ---- entering and leaving ---- */

/* Inserts q after prev; NULL: at the head. */
static void insert_after(sl_request_list *list, sl_request *prev, sl_request *q)
{
    q->list = list;
    q->q_prev = prev;
    q->q_next = prev ? prev->q_next : list->head;
    *(q->q_prev ? &q->q_prev->q_next : &list->head) = q;
    *(q->q_next ? &q->q_next->q_prev : &list->tail) = q;
}

void sl_queue_push(sl_router *r, sl_request *q, bool again)
{
    sl_queue *u = &r->queue;
    sl_lane *l = q->group->lane;
    sl_request_list *list = again ? &u->again : &l->list;
    sl_request *prev = list->tail;
    if (!l->length && !again && l->served < u->served)
        l->served = u->served;
    while (again && prev && prev->rid > q->rid)
        prev = prev->q_prev;
    insert_after(list, prev, q);
    u->length++;
    l->length++;
    u->waiting += !q->held;
}

void sl_queue_remove(sl_router *r, sl_request *q)
{
    sl_request_list *list = q->list;
    if (!list)
        return;
    q->list = NULL;
    r->queue.length--;
    q->group->lane->length--;
    r->queue.waiting -= !q->held;
    *(q->q_prev ? &q->q_prev->q_next : &list->head) = q->q_next;
    *(q->q_next ? &q->q_next->q_prev : &list->tail) = q->q_prev;
    q->q_next = q->q_prev = NULL;
}

void sl_queue_unhold(sl_router *r, sl_request *q)
{
    if (!q->held)
        return;
    q->held = false;
    r->queue.waiting += q->list != NULL;
    r->queue.dirty = true;
}

/* ---- the bound ---- */

static bool fits(uint64_t own, uint64_t all, uint64_t n, uint64_t cap)
{
    return all + n <= cap && own + n <= FREE_SHARE * (cap - all - n + 1);
}

sl_status sl_queue_check(const sl_router *r, const sl_lane *l, uint32_t n, sl_err *err)
{
    uint32_t free_places, places;
    sl_places(r, &free_places, &places);
    uint64_t cap = (uint64_t)r->o.request.max_queue + places;
    uint64_t most = FREE_SHARE * (cap + 1) / (FREE_SHARE + 1); /* fits an empty queue */
    if (places && n > most) /* without workers it is unknown what never fits */
        return sl_fail(err, SL_ERR_INVALID,
                       "n: a call of %u requests never fits: one client may have %lu, four fifths of "
                       "router.max_queue (%u) and of the places on workers (%u)",
                       n, most, r->o.request.max_queue, places);
    if (fits(l->length, r->queue.length, n, (uint64_t)r->o.request.max_queue + free_places))
        return SL_OK;
    return sl_fail(
        err, SL_ERR_EXHAUSTED,
        "all workers are busy and %u requests are waiting, %u of this client (router.max_queue is %u)",
        r->queue.length, l->length, r->o.request.max_queue);
}

void sl_queue_tick(sl_router *r, uint64_t now)
{
    sl_queue *u = &r->queue;
    sl_queue_sweep(r);
    uint64_t ms = (now - u->rate_ns) / SL_MS;
    if (u->rate_ns && ms < RATE_MS)
        return;
    if (u->rate_ns)
        u->rate = 0.7 * u->rate + 0.3 * 1000.0 * (double)(u->first_picks - u->rate_picks) / (double)ms;
    u->rate_ns = now;
    u->rate_picks = u->first_picks;
}

uint32_t sl_cluster_retry_after_s(const sl_router *r)
{
    const sl_queue *u = &r->queue;
    double s = u->rate > 0.01 ? (double)(u->length + 1) / u->rate : u->length ? RETRY_MAX_S : 1;
    return s < 1 ? 1 : s > RETRY_MAX_S ? RETRY_MAX_S : (uint32_t)(s + 0.5);
}
