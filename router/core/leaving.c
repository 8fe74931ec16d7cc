/*
 * Workers that leave by their own decision. One that has said DRAIN stays until the router answers LEAVE, for at most its
 * router.drain_timeout_ms. Usually that is at once: another worker of its role is ready, and new requests go there. The
 * last ones of a role stay while requests need them that were admitted before they said DRAIN, or, when the router drains
 * too, that were admitted at all: a stop of the whole cluster loses no request that it had accepted.
 *
 * Signals to the processes of one cluster do not arrive at the same moment. So the last worker of a role also stays for
 * GRACE_MS while there is any request: within this time the router learns that it drains, too.
 */
#include "router/core/core_impl.h"

enum { GRACE_MS = 1000 };

/* Whether no ready worker does some of the work that w does. */
static bool last_of_role(const sl_router *r, const sl_member *w)
{
    static const sl_role works[] = {SL_ROLE_PREFILL, SL_ROLE_DECODE};
    for (size_t i = 0; i < SL_COUNT(works); i++) {
        if (sl_role_does(w->role, works[i]) && !sl_members_count(r, works[i]))
            return true;
    }
    return false;
}

static bool admitted_before(const sl_router *r, const sl_request *q, const sl_member *w)
{
    return r->life.draining || q->times.start_ns <= w->drain_ns;
}

bool sl_member_serves(const sl_router *r, const sl_member *w, const sl_request *q)
{
    if (!w->id || w->state == SL_MEMBER_READY)
        return w->id != 0;
    return w->state == SL_MEMBER_DRAINING && !w->dismissed && admitted_before(r, q, w) && last_of_role(r, w);
}

bool sl_members_serve(const sl_router *r, sl_role role)
{
    if (sl_members_count(r, role))
        return true;
    for (const sl_member *w = r->cluster.members; w; w = w->next) {
        if (w->id && w->state == SL_MEMBER_DRAINING && !w->dismissed && sl_role_does(w->role, role))
            return true;
    }
    return false;
}

/* Whether q, which has not ended, may still have to be placed on w, the last of its role. While the router stays, those
 * that decode are left to other workers, should they be given back. */
static bool may_need(const sl_router *r, const sl_request *q, const sl_member *w)
{
    return r->life.draining || (q->state != SL_REQUEST_DECODING && admitted_before(r, q, w));
}

static bool needed(const sl_router *r, const sl_member *w, uint64_t now)
{
    bool last = last_of_role(r, w);
    if (!r->requests.active || r->life.cutting)
        return false;
    if (last && now - w->drain_ns < GRACE_MS * SL_MS)
        return true;
    for (const sl_group *g = r->requests.groups; g; g = g->next) {
        for (uint32_t i = 0; i < g->n_requests; i++) {
            const sl_request *q = g->requests[i];
            bool asked =
                q->state == SL_REQUEST_RESERVING && q->attempt.decode == w->id; /* RESERVE may be in flight */
            if (!sl_request_over(q) && (asked || (last && may_need(r, q, w))))
                return true;
        }
    }
    return false;
}

void sl_leaving_tick(sl_router *r, uint64_t now)
{
    for (sl_member *w = r->cluster.members; w; w = w->next) {
        if (!w->id || w->state != SL_MEMBER_DRAINING || w->dismissed || needed(r, w, now))
            continue;
        w->dismissed = true;
        sl_router_link_send(w, &(sl_msg){.type = SL_MSG_LEAVE});
        sl_log(SL_LOG_INFO, "router", "worker_dismissed", "worker=%s id=%u placed=%u", w->name, w->id,
               w->account.requests);
    }
}
