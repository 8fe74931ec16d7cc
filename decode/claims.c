/*
 * Claims: pages and places are divided fairly between routers. Engine thread.
 *
 * A router knows only its own requests. When its long prompt has been refused pages here often enough, it places
 * nothing else here until the prompt has them (router/core/place.c), but another router would go on placing short
 * requests, which take every page that comes free. Therefore this worker, which alone decides on pages, bounds how
 * often a request is passed: RESERVE that is refused pages leaves a claim, one for each router. After CLAIM_PASSED
 * tickets of other routers were granted, the claim is due. While one is due, pages are reserved for that request only,
 * until it has them, or has not asked again for CLAIM_MS (it was placed elsewhere, or has ended), or its router is
 * lost. Of several that are due the one that became due first counts, so two routers never wait for each other. With
 * one router there are no claims.
 *
 * Places, max_batch + max_waiting, are alike, so which request has one does not matter. The router whose request ends
 * is told first and would always take the place that it leaves. Therefore a router that was refused a place keeps one
 * place for itself, for as long as it continues to ask, against every router that holds more tickets than it does. So
 * routers that together want more places than there are get equal numbers of places.
 */
#include "decode/decode_impl.h"

static const uint64_t MS = 1000000;
enum {
    CLAIM_PASSED = 16,
    CLAIM_MS = 2000 /* a router asks again within 500 ms, or when the load that it is told has changed */
};

static sl_decode_router *router_of(sl_decode *d, uint32_t session)
{
    for (int i = 0; i < d->tickets.n_routers; i++) {
        if (d->tickets.routers[i].session == session)
            return &d->tickets.routers[i];
    }
    return NULL;
}

static uint32_t tickets_of(const sl_decode *d, const sl_decode_router *r)
{
    uint32_t n = 0;
    for (const sl_ticket *t = d->tickets.list; t; t = t->next)
        n += t->router == r->session;
    return n;
}

static bool stands(const sl_decode_router *r, uint64_t now)
{
    return r->claim.made && now - r->claim.asked_ns < CLAIM_MS * MS;
}

bool sl_claims_place(sl_decode *d, uint32_t router, uint64_t rid, uint64_t now)
{
    sl_decode_router *r = router_of(d, router);
    uint32_t used = d->tickets.n, all = d->o.max_batch + d->o.max_waiting;
    for (int i = 0; r && i < d->tickets.n_routers; i++) {
        const sl_decode_router *o = &d->tickets.routers[i];
        used += o != r && o->place_asked_ns && now - o->place_asked_ns < CLAIM_MS * MS &&
                tickets_of(d, o) < tickets_of(d, r);
    }
    bool has = used < all;
    if (r)
        r->place_asked_ns = has ? 0 : now;
    if (!has && r && r->claim.made && r->claim.rid == rid)
        r->claim.asked_ns = now; /* it still wants pages */
    return has;
}

bool sl_claims_bar(const sl_decode *d, uint32_t router, uint64_t rid, uint64_t now)
{
    const sl_decode_router *first = NULL;
    for (int i = 0; i < d->tickets.n_routers; i++) {
        const sl_decode_router *r = &d->tickets.routers[i];
        if (stands(r, now) && r->claim.due_ns && (!first || r->claim.due_ns < first->claim.due_ns))
            first = r;
    }
    return first && (first->session != router || first->claim.rid != rid);
}

void sl_claims_refused(sl_decode *d, uint32_t router, uint64_t rid, uint64_t now)
{
    sl_decode_router *r = router_of(d, router);
    if (!r || d->tickets.n_routers < 2)
        return;
    if (!stands(r, now))
        r->claim = (sl_claim){.made = true, .rid = rid};
    if (r->claim.rid == rid)
        r->claim.asked_ns = now;
}

void sl_claims_granted(sl_decode *d, uint32_t router, uint64_t rid, uint64_t now)
{
    for (int i = 0; i < d->tickets.n_routers; i++) {
        sl_decode_router *r = &d->tickets.routers[i];
        if (r->session == router && r->claim.rid == rid)
            r->claim = (sl_claim){0};
        if (r->session != router && r->claim.made && ++r->claim.passed == CLAIM_PASSED) {
            r->claim.due_ns = now;
            sl_log(SL_LOG_INFO, "decode", "pages_set_aside",
                   "rid=%016lx reason=\"it was refused pages, and requests of another router passed it\"",
                   r->claim.rid);
        }
    }
}
