/*
 * Pages for the next rows of running requests. When there is none, on the host or on the device, a resident ticket is spilled or
 * admission makes room.
 *
 * Requests of equal lengths would all need their next page in the same step. So a request gets it up to AHEAD_ROWS rows
 * before, as one of the few of a turn, as long as pages lie unused: the page, its entries in the tables of the device
 * and their uploads are the work of several turns, each of which is far shorter than a step. Such a page of the host
 * takes nothing from another request; one of the device may be the last, and then a request is spilled or gives way up
 * to AHEAD_ROWS steps earlier.
 */
#include "decode/run/run_impl.h"

enum {
    PAGE = SL_PAGE_TOKENS,
    AHEAD_ROWS = PAGE / 4,
    AHEAD_TURNS = AHEAD_ROWS / 2, /* in which all running requests could get a page */
    UNUSED = 2,                   /* pages for each running request that stay free */
};

/* Whether room may be made for t now. Otherwise t waits: an item that is ahead until it is not, any other until no step is in
 * flight, because what would give way may be in flight, and frees nothing before it is collected. */
static bool may_take(sl_run *r, const sl_ticket *t)
{
    r->settle |= !t->steps && r->n_flights;
    return !r->n_flights;
}

static sl_status add_host(sl_run *r, const sl_ticket *t)
{
    sl_lease *lease = sl_run_of(t)->lease;
    const int32_t have = sl_lease_n_pages(lease);
    sl_status st = sl_lease_grow(lease, 1);
    while (st == SL_ERR_EXHAUSTED && sl_answers_give(r))
        st = sl_lease_grow(lease, 1);
    SL_TRY(st);
    sl_run_forget_sums(r, lease, have);
    return SL_OK;
}

static sl_status add_device(sl_run *r, sl_ticket *t, sl_err *err)
{
    sl_run_ticket *x = sl_run_of(t);
    const int32_t have = sl_lease_n_pages(x->lease);
    SL_TRY(r->runner->add_pages(r->runner->impl, x->seq, sl_lease_pages(x->lease) + x->seq_pages,
                                have - x->seq_pages, err));
    x->seq_pages = have;
    return SL_OK;
}

/* False: t has to wait for a page. */
static bool grow_host(sl_run *r, sl_ticket *t)
{
    if (add_host(r, t) == SL_OK)
        return true;
    if (!may_take(r, t))
        return false;
    sl_admission_make_room(&r->core, t, "no host pages", sl_lease_n_pages(sl_run_of(t)->lease) + 1,
                           sl_arena_pages(r->arena), sl_now_ns());
    return true;
}

static bool grow_device(sl_run *r, sl_ticket *t)
{
    sl_err err = {0};
    const sl_status st = add_device(r, t, &err);
    if (st == SL_OK)
        return true;
    if (st != SL_ERR_EXHAUSTED)
        sl_run_fail(r, t, st, "cannot grow: ", err.text);
    else if (!may_take(r, t))
        return false;
    else if (!sl_residency_relieve(r, t))
        sl_admission_make_room(&r->core, t, "no device pages", 1, 0, sl_now_ns());
    return true;
}

bool sl_run_ends_in_flight(const sl_run *r, const sl_ticket *t)
{
    return t->steps && (sl_run_tokens(t) - t->n_prompt >= t->sampling.max_tokens ||
                        sl_run_tokens(t) >= r->core.env.max_context);
}

/* Each turn of the loop brings a page or ends a ticket, which may be t. */
static void grow_now(sl_run *r, sl_ticket *t)
{
    sl_run_ticket *x = sl_run_of(t);
    bool more = !sl_run_ends_in_flight(r, t);
    while (more && t->state == SL_TICKET_RUNNING) {
        if (sl_run_tokens(t) > sl_lease_n_pages(x->lease) * PAGE)
            more = grow_host(r, t);
        else if (sl_run_tokens(t) > x->seq_pages * PAGE)
            more = grow_device(r, t);
        else
            break;
    }
}

/* Tokens that t will have at most. */
static int64_t limit(const sl_run *r, const sl_ticket *t)
{
    const int64_t most = (int64_t)t->n_prompt + t->sampling.max_tokens;
    return most < r->core.env.max_context ? most : r->core.env.max_context;
}

static bool needs_soon(const sl_run *r, const sl_ticket *t)
{
    const sl_run_ticket *x = sl_run_of(t);
    const int32_t have = sl_lease_n_pages(x->lease) * PAGE;
    return x->seq && sl_run_tokens(t) + AHEAD_ROWS > have && limit(r, t) > have;
}

static bool lie_unused(const sl_run *r)
{
    sl_store_stats s;
    sl_store_stats_get(r->role->store, &s);
    return s.free > UNUSED * r->core.tickets.count[SL_TICKET_RUNNING];
}

static void grow_ahead(sl_run *r)
{
    int left = 1 + r->core.tickets.count[SL_TICKET_RUNNING] / AHEAD_TURNS;
    for (sl_ticket *t = NULL;
         left > 0 && (t = sl_tickets_next(&r->core.tickets, t, SL_TICKETS_IN(RUNNING)));) {
        if (!needs_soon(r, t))
            continue;
        if (!lie_unused(r) || add_host(r, t) != SL_OK)
            return;
        left--;
        (void)add_device(r, t,
                         NULL); /* what is missing there is added, or room is made, when the row needs it */
    }
}

void sl_run_grow(sl_run *r)
{
    for (sl_ticket *t = NULL; (t = sl_tickets_next(&r->core.tickets, t, SL_TICKETS_IN(RUNNING)));)
        grow_now(r, t);
    grow_ahead(r);
}
