/*
 * Prefetch: pages of requests that still wait in a router's queue (PREFETCH) are loaded from the storage tiers, and from the
 * other decode worker that PREFETCH names, before the RESERVE of the request. Engine thread.
 *
 * A prefetch holds no place and no ticket. Its load takes pages of the store as every load does (kvstore/cascade.h); when it has
 * ended, the pages are in the prefix tree, where RESERVE finds them, and nothing is held for the prefetch any more. It ends with
 * the RESERVE of its request, with ABORT, with the session of its router, when the worker drains, or after LIFE_NS. What it was
 * loading is given up then, unless another request waits for the same load.
 */
#include <stdlib.h>

#include "decode/decode_impl.h"

enum { MOST = 1024 }; /* prefetches at a time: a router that announces without end costs no more memory */
static const uint64_t LIFE_NS = 60000000000;

const char *const sl_prefetch_end_names[SL_PREFETCH_ENDS] = {"in_time", "late", "cancelled", "skipped"};

struct sl_prefetch {
    sl_cascade_waiter wait; /* first member */
    struct sl_prefetch *next;
    sl_decode *d;
    sl_wmsg *m;    /* PREFETCH */
    int32_t pages; /* of the budget; 0 when the load has ended */
    uint64_t expires_ns;
};

static void count(sl_decode *d, sl_prefetch_end how)
{
    d->pages.prefetch.ended[how]++;
    sl_counter_add(d->report.m.prefetches[how], 1);
}

static bool load(sl_prefetch *p)
{
    const sl_msg_prefetch *m = &p->m->msg.prefetch;
    return sl_cascade_wait(p->d->pages.cascade, m->seed, m->tokens, (int32_t)m->n_tokens, &p->wait);
}

static void on_ready(sl_cascade_waiter *wait)
{
    sl_prefetch *p = (sl_prefetch *)wait;
    if (load(p)) /* it waited for the load of another request */
        return;
    p->d->pages.prefetch.pages -= p->pages;
    p->pages = 0;
}

void sl_prefetch_finish(sl_prefetch *p, sl_prefetch_end how)
{
    sl_decode *d = p->d;
    sl_prefetch **at = &d->pages.prefetch.list;
    while (*at != p)
        at = &(*at)->next;
    *at = p->next;
    d->pages.prefetch.n--;
    d->pages.prefetch.pages -= p->pages;
    sl_cascade_leave(d->pages.cascade, &p->wait);
    count(d, how);
    sl_wmsg_free(p->m);
    free(p);
}

sl_prefetch *sl_prefetch_find(const sl_decode *d, uint32_t router, uint64_t rid)
{
    sl_prefetch *p = d->pages.prefetch.list;
    while (p && (p->m->router != router || p->m->msg.prefetch.rid != rid))
        p = p->next;
    return p;
}

bool sl_prefetch_done(const sl_prefetch *p)
{
    return !p->wait.load;
}

void sl_prefetch_begin(sl_decode *d, sl_wmsg *m)
{
    const sl_msg_prefetch *r = &m->msg.prefetch;
    int32_t n = (int32_t)r->n_tokens, pages = 0;
    bool wanted = d->pages.cascade && !d->role.draining && r->n_tokens &&
                  r->n_tokens <= (size_t)d->o.role.runner->max_context &&
                  !sl_prefetch_find(d, m->router, r->rid);
    if (wanted)
        pages = (n - 1) / SL_PAGE_TOKENS - sl_store_match(d->role.store, r->seed, r->tokens, n);
    if (!wanted || !sl_loading_worth(d, pages)) {
        sl_wmsg_free(m);
        return;
    }
    int32_t budget = (int32_t)(d->o.prefetch.budget * sl_arena_pages(d->o.role.arena));
    sl_prefetch *p =
        d->pages.prefetch.pages + pages <= budget && d->pages.prefetch.n < MOST ? calloc(1, sizeof *p) : NULL;
    if (!p) {
        count(d, SL_PREFETCH_SKIPPED);
        sl_wmsg_free(m);
        return;
    }
    *p = (sl_prefetch){
        .wait = {.ready = on_ready, .tenant = r->tenant, .source = sl_loading_source(m->router, &r->source)},
        .d = d,
        .m = m,
        .expires_ns = sl_now_ns() + LIFE_NS};
    if (!load(p)) {
        sl_wmsg_free(m);
        free(p);
        return;
    }
    p->pages = pages;
    p->next = d->pages.prefetch.list;
    d->pages.prefetch.list = p;
    d->pages.prefetch.n++;
    d->pages.prefetch.pages += pages;
}

void sl_prefetch_cancel(sl_decode *d, const uint32_t *router)
{
    for (sl_prefetch *p = d->pages.prefetch.list, *next; p; p = next) {
        next = p->next;
        if (!router || p->m->router == *router)
            sl_prefetch_finish(p, SL_PREFETCH_CANCELLED);
    }
}

uint64_t sl_prefetch_tick(sl_decode *d, uint64_t now)
{
    uint64_t due = UINT64_MAX;
    for (sl_prefetch *p = d->pages.prefetch.list, *next; p; p = next) {
        next = p->next;
        if (now >= p->expires_ns)
            sl_prefetch_finish(p, SL_PREFETCH_CANCELLED);
        else
            due = p->expires_ns < due ? p->expires_ns : due;
    }
    return due;
}
