/* See tickets.h. */
#include "decode/core/tickets.h"

#include <stdlib.h>

static size_t attempt_bucket(uint32_t router, uint64_t rid, uint32_t attempt)
{
    uint64_t h = (rid ^ ((uint64_t)router << 32 | attempt)) * 0x9e3779b97f4a7c15u;
    return h >> 54; /* SL_TICKET_BUCKETS */
}

_Static_assert(SL_TICKET_BUCKETS == 1 << (64 - 54), "buckets");

sl_ticket *sl_tickets_new(sl_tickets *a)
{
    sl_ticket *t = calloc(1, a->bytes ? a->bytes : sizeof *t);
    if (!t)
        return NULL;
    t->number = ++a->last_number;
    t->state = SL_TICKET_ASKED;
    t->deadline_ns = t->due_ns = UINT64_MAX;
    sl_sampling_default(&t->sampling);
    return t;
}

void sl_tickets_enter(sl_tickets *a, sl_ticket *t)
{
    sl_ticket **at = &a->by_attempt[attempt_bucket(t->router, t->rid, t->attempt)],
              **nr = &a->by_number[t->number % SL_TICKET_BUCKETS];
    t->same_attempt = *at;
    *at = t;
    t->same_number = *nr;
    *nr = t;
    *(a->last ? &a->last->next : &a->first) = t;
    a->last = t;
    a->count[t->state]++;
}

sl_ticket *sl_tickets_find(const sl_tickets *a, uint32_t router, uint64_t rid, uint32_t attempt)
{
    sl_ticket *t = a->by_attempt[attempt_bucket(router, rid, attempt)];
    while (t && (t->router != router || t->rid != rid || t->attempt != attempt || t->state == SL_TICKET_GONE))
        t = t->same_attempt;
    return t;
}

sl_ticket *sl_tickets_number(const sl_tickets *a, uint64_t number)
{
    sl_ticket *t = a->by_number[number % SL_TICKET_BUCKETS];
    while (t && t->number != number)
        t = t->same_number;
    return t && t->state != SL_TICKET_GONE ? t : NULL;
}

void sl_tickets_moved(sl_tickets *a, sl_ticket *t, sl_ticket_state before)
{
    if (t->state == before)
        return;
    a->count[before]--;
    a->count[t->state]++;
    if (t->state == SL_TICKET_WAITING)
        t->order = ++a->last_order;
}

static void free_ticket(sl_tickets *a, sl_ticket *t)
{
    sl_ticket **p = &a->by_attempt[attempt_bucket(t->router, t->rid, t->attempt)];
    while (*p != t)
        p = &(*p)->same_attempt;
    *p = t->same_attempt;
    p = &a->by_number[t->number % SL_TICKET_BUCKETS];
    while (*p != t)
        p = &(*p)->same_number;
    *p = t->same_number;
    a->count[t->state]--;
    if (a->free)
        a->free(t);
    sl_sampling_free(&t->sampling);
    free(t->own);
    free(t);
}

static void sweep(sl_tickets *a, bool all)
{
    sl_ticket *last = NULL;
    for (sl_ticket **p = &a->first, *t; (t = *p);) {
        if (all || t->state == SL_TICKET_GONE) {
            *p = t->next;
            free_ticket(a, t);
        } else {
            last = t;
            p = &t->next;
        }
    }
    a->last = last;
}

void sl_tickets_sweep(sl_tickets *a)
{
    if (a->count[SL_TICKET_GONE])
        sweep(a, false);
}

void sl_tickets_free(sl_tickets *a)
{
    sweep(a, true);
}

int32_t sl_tickets_placed(const sl_tickets *a)
{
    int32_t n = 0;
    for (int s = SL_TICKET_LANDING; s <= SL_TICKET_ENDING; s++)
        n += a->count[s];
    return n;
}

int32_t sl_tickets_of(const sl_tickets *a, uint32_t router)
{
    int32_t n = 0;
    for (const sl_ticket *t = a->first; t; t = t->next)
        n += t->router == router && sl_ticket_has_place(t);
    return n;
}

sl_ticket *sl_tickets_next(const sl_tickets *a, const sl_ticket *t, unsigned states)
{
    sl_ticket *n = t ? t->next : a->first;
    while (n && !(states & 1u << n->state))
        n = n->next;
    return n;
}
