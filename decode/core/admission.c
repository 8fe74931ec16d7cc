/*
 * Pages and places are divided fairly between routers.
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
 * Places are alike, so which request has one does not matter. The router whose request ends is told first and would
 * always take the place that it leaves. Therefore a router that was refused a place keeps one place for itself, for as
 * long as it continues to ask, against every router that holds more tickets than it does. So routers that together want
 * more places than there are get equal numbers of places.
 */
#include "decode/core/admission.h"

#include <stdio.h>

#include "base/log.h"
#include "decode/core/effects.h"

static const uint64_t MS = 1000000;
enum {
    CLAIM_PASSED = 16,
    CLAIM_MS = 2000 /* a router asks again within 500 ms, or when the load that it is told has changed */
};

/* ---- routers ---- */

static sl_admission_router *router_of(sl_admission *a, uint32_t session)
{
    for (int i = 0; i < a->n_routers; i++) {
        if (a->routers[i].session == session)
            return &a->routers[i];
    }
    return NULL;
}

void sl_admission_session(sl_core *c, uint32_t session, bool up)
{
    sl_admission *a = &c->admission;
    sl_admission_router *r = router_of(a, session);
    if (up && !r && a->n_routers < SL_ADMISSION_ROUTERS)
        a->routers[a->n_routers++] = (sl_admission_router){.session = session};
    if (!up && r)
        *r = a->routers[--a->n_routers];
}

static bool stands(const sl_admission_router *r, uint64_t now)
{
    return r->claims && now - r->claim_asked_ns < CLAIM_MS * MS;
}

/* Whether there is a place for this request; remembers that its router was refused one. */
static bool has_place(sl_core *c, const sl_ticket *t, uint64_t now)
{
    sl_admission *a = &c->admission;
    sl_admission_router *r = router_of(a, t->router);
    int32_t used = sl_tickets_placed(&c->tickets), all = a->o.max_batch + a->o.max_waiting;
    for (int i = 0; r && i < a->n_routers; i++) {
        const sl_admission_router *o = &a->routers[i];
        used += o != r && o->place_asked_ns && now - o->place_asked_ns < CLAIM_MS * MS &&
                sl_tickets_of(&c->tickets, o->session) < sl_tickets_of(&c->tickets, r->session);
    }
    bool has = used < all;
    if (r)
        r->place_asked_ns = has ? 0 : now;
    if (!has && r && r->claims && r->claim_rid == t->rid)
        r->claim_asked_ns = now; /* it still wants pages */
    return has;
}

/* Whether pages are set aside for another request than this one. */
static bool barred(const sl_admission *a, const sl_ticket *t, uint64_t now)
{
    const sl_admission_router *first = NULL;
    for (int i = 0; i < a->n_routers; i++) {
        const sl_admission_router *r = &a->routers[i];
        if (stands(r, now) && r->due_ns && (!first || r->due_ns < first->due_ns))
            first = r;
    }
    return first && (first->session != t->router || first->claim_rid != t->rid);
}

static void claim(sl_admission *a, const sl_ticket *t, uint64_t now)
{
    sl_admission_router *r = router_of(a, t->router);
    if (!r || a->n_routers < 2)
        return;
    if (!stands(r, now))
        *r = (sl_admission_router){
            .session = r->session, .place_asked_ns = r->place_asked_ns, .claims = true, .claim_rid = t->rid};
    if (r->claim_rid == t->rid)
        r->claim_asked_ns = now;
}

static void end_claims(sl_admission *a, const sl_ticket *t, uint64_t now)
{
    for (int i = 0; i < a->n_routers; i++) {
        sl_admission_router *r = &a->routers[i];
        if (r->session == t->router && r->claim_rid == t->rid)
            r->claims = false;
        if (!r->claims)
            r->passed = 0, r->due_ns = 0, r->claim_rid = 0;
        if (r->session != t->router && r->claims && ++r->passed == CLAIM_PASSED) {
            r->due_ns = now;
            sl_log(SL_LOG_INFO, "decode", "pages_set_aside",
                   "rid=%016lx reason=\"it was refused pages, and requests of another router passed it\"",
                   r->claim_rid);
        }
    }
}

/* ---- RESERVE ---- */

static void refuse(sl_core *c, sl_ticket *t, sl_status st, const char *why, uint64_t now)
{
    sl_ticket_event ev = {.kind = SL_ON_REFUSED, .now_ns = now};
    ev.failed.status = st;
    ev.failed.retryable = true;
    ev.failed.why = why;
    sl_core_event(c, t, &ev);
}

static bool has_room(const sl_core *c, const sl_ticket *t)
{
    const sl_world *w = &c->world;
    return sl_admission_has_room(w->missing(w->ctx, t), c->tickets.count[SL_TICKET_RUNNING],
                                 w->available(w->ctx), sl_tickets_placed(&c->tickets));
}

/* At most as many requests wait for a load as there are free places; the others are handled without the load. */
static bool may_load(const sl_core *c, const sl_ticket *t)
{
    int32_t others = c->tickets.count[SL_TICKET_LOADING] - (t->state == SL_TICKET_LOADING);
    return sl_tickets_placed(&c->tickets) + others < c->admission.o.max_batch + c->admission.o.max_waiting;
}

void sl_admission_ask(sl_core *c, sl_ticket *t, uint64_t now)
{
    const sl_world *w = &c->world;
    sl_admission *a = &c->admission;
    sl_grant g = {0};
    if (a->draining) {
        refuse(c, t, SL_ERR_EXHAUSTED, "draining", now);
        return;
    }
    if (!has_place(c, t, now)) {
        refuse(c, t, SL_ERR_EXHAUSTED, "all decode slots and all places in the queue are in use", now);
        return;
    }
    bool room = !barred(a, t, now) && has_room(c, t);
    if (room && may_load(c, t) && w->load(w->ctx, t)) {
        sl_core_signal(c, t, SL_ON_LOAD, now);
        return;
    }
    sl_status st = room ? w->lease(w->ctx, t, &g) : SL_ERR_EXHAUSTED;
    if (st != SL_OK) {
        claim(a, t, now);
        refuse(c, t, SL_ERR_EXHAUSTED, "no host pages", now);
        return;
    }
    end_claims(a, t, now);
    sl_ticket_event ev = {.kind = SL_ON_GRANTED, .now_ns = now};
    ev.granted.n_pages = g.n_pages;
    ev.granted.matched = g.matched;
    ev.granted.verify = g.verify;
    sl_core_event(c, t, &ev);
}

/* ---- the queue ---- */

sl_ticket *sl_admission_next(const sl_core *c)
{
    sl_ticket *first = NULL;
    if (c->tickets.count[SL_TICKET_RUNNING] >= c->admission.o.max_batch)
        return NULL;
    for (sl_ticket *t = NULL; (t = sl_tickets_next(&c->tickets, t, SL_TICKETS_IN(WAITING)));)
        first = !first || t->order < first->order ? t : first;
    return first;
}

/* ---- retraction ---- */

/* Of the tickets that can be retracted, the one that was verified last. */
static sl_ticket *youngest(const sl_core *c)
{
    sl_ticket *last = NULL;
    unsigned may = SL_TICKETS_IN(WAITING) | SL_TICKETS_IN(RUNNING);
    for (sl_ticket *t = NULL; (t = sl_tickets_next(&c->tickets, t, may));)
        last = !last || t->order > last->order ? t : last;
    return last;
}

void sl_admission_make_room(sl_core *c, sl_ticket *t, const char *what, int64_t needed, int64_t total,
                            uint64_t now)
{
    sl_ticket *y = youngest(c);
    if (y == t && sl_tickets_placed(&c->tickets) == 1 && needed > total) {
        char why[100];
        snprintf(why, sizeof why, "%s: this request does not fit even alone", what);
        sl_core_fail(c, t, SL_ERR_EXHAUSTED, false, why, now);
        return;
    }
    sl_core_event(c, y, &(sl_ticket_event){.kind = SL_ON_RETRACT, .now_ns = now, .retract_why = "exhausted"});
}

void sl_admission_give_back(sl_core *c, uint64_t now)
{
    unsigned may = SL_TICKETS_IN(WAITING) | SL_TICKETS_IN(PROMPT);
    for (sl_ticket *t = NULL; (t = sl_tickets_next(&c->tickets, t, may));) {
        if (!t->begun || t->state == SL_TICKET_WAITING)
            sl_core_event(
                c, t, &(sl_ticket_event){.kind = SL_ON_RETRACT, .now_ns = now, .retract_why = "draining"});
    }
}
