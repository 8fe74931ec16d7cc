/*
 * Where the rows of a running request are: all of them on the device while there is room (resident), otherwise the
 * selected ones in a hot buffer (hierarchical). Engine thread.
 *
 * A resident request needs no swap-in, so requests are resident while the device has row pages. When no page is free,
 * the longest resident request is spilled, and no request is made resident at the cost of a shorter one: residency
 * saves about the same swap-in per step for every length of context, but its pages are proportional to that length.
 * Spilling copies no rows, because the host has all of them, and happens between two steps. A spilled request stays
 * hierarchical.
 */
#include <inttypes.h>

#include "decode/decode_impl.h"

static int64_t pages_used(const sl_decode *d)
{
    int64_t n = 0;
    for (const sl_ticket *t = d->tickets.list; t; t = t->next)
        n += t->resident ? t->seq_pages : 0;
    return n;
}

static sl_ticket *longest(const sl_decode *d)
{
    sl_ticket *best = NULL;
    for (sl_ticket *t = d->tickets.list; t; t = t->next)
        if (t->resident && (!best || t->seq_pages > best->seq_pages))
            best = t;
    return best;
}

/* Makes t hierarchical; ends t if the runner fails to. */
static void spill(sl_decode *d, sl_ticket *t)
{
    sl_err err = {0};
    sl_status st = d->o.role.runner->spill(d->o.role.runner->impl, t->seq, &err);
    t->resident = false;
    if (st != SL_OK) {
        sl_ticket_failed(d, t, st, true, "cannot spill: %.200s", err.text);
        return;
    }
    d->run.count.spilled++;
    sl_counter_add(d->report.m.spills, 1);
    sl_log(SL_LOG_DEBUG, "decode", "spilled", "rid=%016" PRIx64 " attempt=%u pages=%d", t->rid, t->attempt,
           t->seq_pages);
}

/* Whether n row pages are free; to this end it spills requests of more than n pages, if that frees enough. */
static bool room_for(sl_decode *d, int32_t n)
{
    int64_t used = pages_used(d), longer = 0;
    for (const sl_ticket *t = d->tickets.list; t; t = t->next)
        longer += t->resident && t->seq_pages > n ? t->seq_pages : 0;
    if (d->o.row_pages - used + longer < n)
        return false;
    while (d->o.row_pages - pages_used(d) < n)
        spill(d, longest(d));
    return true;
}

sl_status sl_residency_open(sl_decode *d, sl_ticket *t, int32_t pages, sl_err *err)
{
    const sl_runner *r = d->o.role.runner;
    sl_residency mode = d->o.residency;
    bool hot = mode == SL_HIERARCHICAL;
    if (hot && d->o.row_pages > 0 && room_for(d, pages + 1)) /* one more: its next row may need a new page */
        mode = SL_RESIDENT;
    sl_status st =
        sl_runner_open(r, mode, sl_lease_pages(t->lease), pages, t->n_tokens - 1, t->n_prompt, &t->seq, err);
    if (st == SL_ERR_EXHAUSTED && hot && mode == SL_RESIDENT) {
        mode = SL_HIERARCHICAL;
        st = sl_runner_open(r, mode, sl_lease_pages(t->lease), pages, t->n_tokens - 1, t->n_prompt, &t->seq,
                            err);
    }
    t->resident = st == SL_OK && hot && mode == SL_RESIDENT;
    return st;
}

sl_status sl_residency_adopt(sl_decode *d, sl_ticket *t, sl_err *err)
{
    const sl_runner *r = d->o.role.runner;
    if (d->o.residency == SL_RESIDENT)
        return SL_OK;
    t->resident = d->o.row_pages > 0 && room_for(d, t->seq_pages + 1);
    if (t->resident || r->spill(r->impl, t->seq, err) == SL_OK)
        return SL_OK;
    r->close(r->impl, t->seq);
    t->seq = NULL;
    return sl_residency_open(d, t, sl_lease_n_pages(t->lease), err);
}

bool sl_residency_give(sl_decode *d)
{
    sl_ticket *t = longest(d);
    if (t)
        spill(d, t);
    return t != NULL;
}

bool sl_residency_relieve(sl_decode *d, const sl_ticket *t)
{
    if (!t->resident)
        return false;
    spill(d, longest(d));
    return true;
}

int32_t sl_residency_count(const sl_decode *d)
{
    int32_t n = 0;
    for (const sl_ticket *t = d->tickets.list; t; t = t->next)
        n += t->resident;
    return n;
}
