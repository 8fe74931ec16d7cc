/*
 * Where the rows of a running request are: all of them on the device while there is room (resident), otherwise the
 * selected ones in a hot buffer (hierarchical).
 *
 * A resident request needs no swap-in, so requests are resident while the device has row pages. When no page is free,
 * the longest resident request is spilled, and no request is made resident at the cost of a shorter one: residency
 * saves about the same swap-in per step for every length of context, but its pages are proportional to that length.
 * Spilling copies no rows, because the host has all of them, and happens between two steps. A spilled request stays
 * hierarchical.
 */
#include <inttypes.h>

#include "decode/run/run_impl.h"

/* Row pages that become free when the resident requests of more than `longer_than` pages are spilled, less the hot rows that each of
 * them then takes where rows and hot rows share one pool. */
static int64_t pages_spilled(const sl_run *r, int32_t longer_than)
{
    const int32_t own = r->runner->spill_pages;
    int64_t n = 0;
    for (sl_ticket *t = NULL; (t = sl_tickets_next(&r->core.tickets, t, ~0u));) {
        const sl_run_ticket *x = sl_run_of(t);
        n += x->resident && x->seq_pages > longer_than && x->seq_pages > own ? x->seq_pages - own : 0;
    }
    return n;
}

/* Row pages that no request holds. Of one pool the runner says how many fit into what is free. */
static int64_t pages_free(const sl_run *r)
{
    return r->runner->row_room ? r->runner->row_room(r->runner->impl) : r->o.row_pages - pages_spilled(r, 0);
}

/* The request whose pages are spilled first; NULL: none would free memory. */
static sl_ticket *longest(const sl_run *r)
{
    sl_ticket *best = NULL;
    for (sl_ticket *t = NULL; (t = sl_tickets_next(&r->core.tickets, t, ~0u));) {
        const sl_run_ticket *x = sl_run_of(t);
        if (x->resident && x->seq_pages > r->runner->spill_pages &&
            (!best || x->seq_pages > sl_run_of(best)->seq_pages))
            best = t;
    }
    return best;
}

/* Makes t hierarchical; t fails if the runner fails to. False: it stays resident, because one pool has no memory for its hot rows:
 * at the edges of units they may take more than its pages leave. */
static bool spill(sl_run *r, sl_ticket *t)
{
    sl_err err = {0};
    sl_run_ticket *x = sl_run_of(t);
    sl_status st = r->runner->spill(r->runner->impl, x->seq, &err);
    if (st == SL_ERR_EXHAUSTED && r->runner->row_room)
        return false;
    x->resident = false;
    if (st != SL_OK) {
        sl_run_fail(r, t, st, "cannot spill: ", err.text);
        return true;
    }
    r->st.spilled++;
    sl_log(SL_LOG_DEBUG, "decode", "spilled", "rid=%016" PRIx64 " attempt=%u pages=%d", t->rid, t->attempt,
           x->seq_pages);
    return true;
}

bool sl_residency_give(sl_run *r)
{
    sl_ticket *t = longest(r);
    return t && spill(r, t);
}

/* Whether n row pages are free; to this end it spills requests of more than n pages, if that frees enough. */
static bool room_for(sl_run *r, int32_t n)
{
    if (pages_free(r) + pages_spilled(r, n) < n)
        return false;
    while (pages_free(r) < n)
        if (!sl_residency_give(r))
            return false;
    return true;
}

static sl_status open_as(sl_run *r, sl_ticket *t, sl_residency mode, sl_err *err)
{
    sl_run_ticket *x = sl_run_of(t);
    return sl_runner_open(r->runner, mode, sl_lease_pages(x->lease), sl_lease_n_pages(x->lease),
                          t->n_tokens - 1, t->n_prompt, &x->seq, err);
}

/* In the mode that takes the least memory: of one pool a short request has fewer rows than a hot buffer. Longer requests make room,
 * for which they have to be spilled. */
static sl_status open_smallest(sl_run *r, sl_ticket *t, sl_residency *mode, sl_err *err)
{
    const bool resident =
        r->o.row_pages > 0 && sl_lease_n_pages(sl_run_of(t)->lease) < r->runner->spill_pages;
    sl_status st;
    *mode = resident ? SL_RESIDENT : SL_HIERARCHICAL;
    do {
        st = open_as(r, t, *mode, err);
    } while (st == SL_ERR_EXHAUSTED && r->runner->row_room && sl_residency_give(r));
    return st;
}

sl_status sl_residency_open(sl_run *r, sl_ticket *t, sl_err *err)
{
    sl_residency mode = r->o.residency;
    int32_t pages = sl_lease_n_pages(sl_run_of(t)->lease);
    bool hot = mode == SL_HIERARCHICAL;
    if (hot && r->o.row_pages > 0 && room_for(r, pages + 1)) /* one more: its next row may need a new page */
        mode = SL_RESIDENT;
    sl_status st = open_as(r, t, mode, err);
    if (st == SL_ERR_EXHAUSTED && hot &&
        (mode == SL_RESIDENT || r->runner->row_room)) /* else nothing would be different */
        st = open_smallest(r, t, &mode, err);
    if (st == SL_OK) {
        st = sl_run_states_resume(r, t, err);
        if (st != SL_OK)
            sl_run_close_seq(r, t);
        else
            sl_draft_state_give(&sl_run_of(t)->hidden, r->runner, sl_run_of(t)->seq);
    }
    sl_run_of(t)->resident = st == SL_OK && hot && mode == SL_RESIDENT;
    return st;
}

sl_status sl_residency_adopt(sl_run *r, sl_ticket *t, sl_err *err)
{
    sl_run_ticket *x = sl_run_of(t);
    if (r->o.residency == SL_RESIDENT)
        return SL_OK;
    x->resident = r->o.row_pages > 0 && room_for(r, x->seq_pages + 1);
    if (x->resident || r->runner->spill(r->runner->impl, x->seq, err) == SL_OK)
        return SL_OK;
    sl_draft_state_take(&x->hidden, r->runner, x->seq);
    sl_run_close_seq(r, t);
    return sl_residency_open(r, t, err);
}

bool sl_residency_held(const sl_run *r)
{
    bool held = r->n_flights > 0;
    for (sl_ticket *t = NULL; !held && (t = sl_tickets_next(&r->core.tickets, t, ~0u));)
        held = sl_run_of(t)->seq != NULL;
    return held;
}

bool sl_residency_relieve(sl_run *r, const sl_ticket *t)
{
    /* one pool: the pages of any request are what t can have */
    return (sl_run_of(t)->resident || r->runner->row_room) && sl_residency_give(r);
}
