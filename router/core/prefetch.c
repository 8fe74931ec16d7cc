/*
 * Prefetch at queueing: a request that cannot be placed at once is announced to the decode worker that will probably get it
 * (PREFETCH), so that the worker can load the pages of its prompt from disk, from a shared store or from another worker
 * while the request waits. It is advice: whether and how much is loaded is the worker's decision, and placement decides
 * again when a place is free.
 *
 * Each attempt is considered once. It is announced if the worker that the policy would choose, were there room on every
 * worker, could load something. Bounds: PER_WORKER announced requests on each worker, CONSIDERED requests in one placement.
 * The announcement ends when the request is placed there, and is withdrawn by ABORT when it is placed elsewhere or ends.
 *
 * The second kind: the decode worker of a request that reserves says that it is loading many pages (LOADING). The request's prefill
 * worker is told by PREFETCH, and fetches these pages while others are still being loaded. That ends with PREFILL, and is
 * withdrawn by ABORT when the attempt is left before.
 */
#include <string.h>

#include "kvstore/page_key.h"
#include "router/core/core_impl.h"

enum { PER_WORKER = 4, CONSIDERED = 32, MAX_CANDIDATES = 1024 };

static void send_prefetch(const sl_estimate *e, const sl_request *q, sl_member *w, const sl_candidate *c)
{
    sl_msg m = {.type = SL_MSG_PREFETCH};
    m.prefetch.rid = q->rid;
    m.prefetch.attempt = q->attempt.n + 1;
    m.prefetch.tokens = q->tokens;
    m.prefetch.n_tokens = q->n_tokens;
    m.prefetch.seed = q->keys.seed;
    m.prefetch.tenant = q->group->tenant;
    uint32_t pages = 0;
    const sl_member *owner = c->peer_tokens ? sl_estimate_owner(e, w, &pages) : NULL;
    if (owner)
        sl_placement_source(owner, pages, &m.prefetch.source);
    sl_router_link_send(w, &m);
}

/* Announces q; false: every worker has been told of as many requests as it may. */
static bool announce(sl_router *r, sl_request *q)
{
    sl_member *at[MAX_CANDIDATES];
    sl_candidate c[MAX_CANDIDATES];
    sl_estimate e;
    size_t n = 0;
    if (sl_request_update_keys(q, r->cluster.fingerprint))
        return true; /* placement will end the request */
    sl_estimate_begin(r, q, &e);
    for (sl_member *w = r->cluster.members; w && n < MAX_CANDIDATES; w = w->next) {
        if (!w->id || !sl_role_does(w->role, SL_ROLE_DECODE) || w->state != SL_MEMBER_READY ||
            w->account.prefetches >= PER_WORKER)
            continue;
        sl_estimate_candidate(&e, w, q, &c[n]);
        at[n++] = w;
    }
    if (!n)
        return false;
    q->prefetch.considered = true;
    sl_pick_request req = {
        .n_tokens = (uint32_t)q->n_tokens, .sequence = r->queue.picks, .token_bytes = e.token_bytes};
    size_t i = r->queue.policy->pick(r->queue.policy_options, &req, c, n);
    if (!(c[i].disk_tokens || c[i].shared_tokens || c[i].peer_tokens))
        return true;
    q->prefetch.decode = at[i]->id;
    at[i]->account.prefetches++;
    sl_counter_add(r->stats.placement.prefetch_sent, 1);
    send_prefetch(&e, q, at[i], &c[i]);
    return true;
}

void sl_prefetch_waiting(sl_router *r)
{
    if (!r->o.placement.prefetch || !r->queue.waiting)
        return;
    int left = CONSIDERED;
    for (sl_lane *l = r->queue.lanes; l; l = l->next) {
        for (sl_request *q = l->list.head; q; q = q->q_next) {
            if (q->held || q->deaths.alone || q->prefetch.considered)
                continue;
            if (!left-- || !announce(r, q))
                return;
        }
    }
}

static void withdraw(sl_member *w, const sl_request *q, uint32_t attempt)
{
    sl_msg m = {.type = SL_MSG_ABORT};
    m.abort.rid = q->rid;
    m.abort.attempt = attempt;
    m.abort.status = SL_ERR_CANCELLED;
    sl_router_link_send(w, &m);
}

void sl_prefetch_loading(sl_member *w, const sl_msg_loading *m)
{
    sl_router *r = w->r;
    sl_request *q = sl_request_find(r, m->rid);
    sl_member *p =
        q && q->attempt.n == m->attempt && q->state == SL_REQUEST_RESERVING && q->attempt.decode == w->id
            ? sl_member_find(r, q->attempt.prefill)
            : NULL;
    if (!p || p == w || q->prefetch.prefill || !r->o.placement.prefetch ||
        m->pages > (q->n_tokens - 1) / SL_KEY_PAGE_TOKENS)
        return;
    q->prefetch.prefill = p->id;
    sl_msg f = {.type = SL_MSG_PREFETCH};
    f.prefetch.rid = q->rid;
    f.prefetch.attempt = q->attempt.n;
    f.prefetch.tokens = q->tokens;
    f.prefetch.n_tokens = q->n_tokens;
    f.prefetch.seed = q->keys.seed;
    f.prefetch.tenant = q->group->tenant;
    sl_placement_source(w, m->pages, &f.prefetch.source);
    sl_router_link_send(p, &f);
}

void sl_prefetch_leave(sl_router *r, sl_request *q, uint32_t attempt)
{
    sl_member *p = sl_member_find(r, q->prefetch.prefill);
    q->prefetch.prefill = 0;
    if (p)
        withdraw(p, q, attempt);
}

void sl_prefetch_end(sl_router *r, sl_request *q, uint32_t decode, uint32_t attempt)
{
    sl_member *w = sl_member_find(r, q->prefetch.decode);
    bool used = decode && q->prefetch.decode == decode;
    q->prefetch.decode = 0;
    if (!w)
        return;
    w->account.prefetches--;
    sl_counter_add(used ? r->stats.placement.prefetch_used : r->stats.placement.prefetch_withdrawn, 1);
    if (!used)
        withdraw(w, q, attempt);
}
