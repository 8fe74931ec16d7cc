/* See prefetch.h. */
#include "decode/pages/prefetch.h"

#include <stdlib.h>
#include <string.h>

enum { MOST = 1024 }; /* prefetches at a time: a router that announces without end costs no more memory */
static const uint64_t LIFE_NS = 60000000000;

const char *const sl_prefetch_end_names[SL_PREFETCH_ENDS] = {"in_time", "late", "cancelled", "skipped"};

struct sl_prefetch {
    sl_cascade_waiter wait; /* first member */
    struct sl_prefetch *next;
    sl_wmsg *m;    /* PREFETCH */
    int32_t pages; /* of the budget; 0 when the load has ended */
    uint64_t expires_ns;
};

struct sl_prefetches {
    const sl_pages_env *e;
    sl_prefetch *list;
    sl_prefetch_stats st;
};

sl_prefetches *sl_prefetches_new(const sl_pages_env *e)
{
    sl_prefetches *s = calloc(1, sizeof *s);
    if (s)
        s->e = e;
    return s;
}

void sl_prefetches_free(sl_prefetches *s)
{
    if (!s)
        return;
    sl_prefetch_cancel(s, NULL);
    free(s);
}

bool sl_prefetch_worth(const sl_pages_env *e, int32_t pages)
{
    return pages > 0 && pages * SL_PAGE_TOKENS >= e->o->prefetch.min_tokens;
}

sl_tier_source sl_prefetch_source(uint32_t router, const sl_msg_source *s)
{
    sl_tier_source out = {
        .router = router, .worker = s->worker, .epoch = s->epoch, .pages = (int32_t)s->pages};
    memcpy(out.address, s->addr, sizeof out.address);
    return out;
}

static bool load(const sl_prefetches *s, sl_prefetch *p)
{
    const sl_msg_prefetch *m = &p->m->msg.prefetch;
    return sl_cascade_wait(s->e->cascade, m->seed, m->tokens, (int32_t)m->n_tokens, &p->wait);
}

void sl_prefetch_loaded(sl_prefetches *s, sl_cascade_waiter *w)
{
    sl_prefetch *p = (sl_prefetch *)w;
    if (load(s, p)) /* it waited for the load of another request */
        return;
    s->st.pages -= p->pages;
    p->pages = 0;
}

void sl_prefetch_finish(sl_prefetches *s, sl_prefetch *p, sl_prefetch_end how)
{
    sl_prefetch **at = &s->list;
    while (*at != p)
        at = &(*at)->next;
    *at = p->next;
    s->st.now--;
    s->st.pages -= p->pages;
    s->st.ended[how]++;
    sl_cascade_leave(s->e->cascade, &p->wait);
    sl_wmsg_free(p->m);
    free(p);
}

sl_prefetch *sl_prefetch_find(const sl_prefetches *s, uint32_t router, uint64_t rid)
{
    sl_prefetch *p = s->list;
    while (p && (p->m->router != router || p->m->msg.prefetch.rid != rid))
        p = p->next;
    return p;
}

bool sl_prefetch_done(const sl_prefetch *p)
{
    return !p->wait.load;
}

/* The pages that this message would load; 0: none. */
static int32_t wanted(const sl_prefetches *s, const sl_wmsg *m)
{
    const sl_pages_env *e = s->e;
    const sl_msg_prefetch *r = &m->msg.prefetch;
    int32_t n = (int32_t)r->n_tokens;
    if (!e->cascade || *e->draining || !r->n_tokens || r->n_tokens > (size_t)e->runner->max_context ||
        sl_prefetch_find(s, m->router, r->rid))
        return 0;
    int32_t pages = (n - 1) / SL_PAGE_TOKENS - sl_store_match(e->store, r->seed, r->tokens, n);
    return sl_prefetch_worth(e, pages) ? pages : 0;
}

void sl_prefetch_begin(sl_prefetches *s, sl_wmsg *m)
{
    const sl_msg_prefetch *r = &m->msg.prefetch;
    int32_t pages = wanted(s, m);
    if (!pages) {
        sl_wmsg_free(m);
        return;
    }
    int32_t budget = (int32_t)(s->e->o->prefetch.budget * sl_arena_pages(s->e->arena));
    sl_prefetch *p = s->st.pages + pages <= budget && s->st.now < MOST ? calloc(1, sizeof *p) : NULL;
    if (!p) {
        s->st.ended[SL_PREFETCH_SKIPPED]++;
        sl_wmsg_free(m);
        return;
    }
    *p = (sl_prefetch){.wait = {.kind = SL_WAITER_PREFETCH,
                                .tenant = r->tenant,
                                .source = sl_prefetch_source(m->router, &r->source)},
                       .m = m,
                       .expires_ns = sl_now_ns() + LIFE_NS};
    if (!load(s, p)) {
        sl_wmsg_free(m);
        free(p);
        return;
    }
    p->pages = pages;
    p->next = s->list;
    s->list = p;
    s->st.now++;
    s->st.pages += pages;
}

void sl_prefetch_cancel(sl_prefetches *s, const uint32_t *router)
{
    for (sl_prefetch *p = s->list, *next; p; p = next) {
        next = p->next;
        if (!router || p->m->router == *router)
            sl_prefetch_finish(s, p, SL_PREFETCH_CANCELLED);
    }
}

uint64_t sl_prefetch_tick(sl_prefetches *s, uint64_t now)
{
    uint64_t due = UINT64_MAX;
    for (sl_prefetch *p = s->list, *next; p; p = next) {
        next = p->next;
        if (now >= p->expires_ns)
            sl_prefetch_finish(s, p, SL_PREFETCH_CANCELLED);
        else
            due = p->expires_ns < due ? p->expires_ns : due;
    }
    return due;
}

void sl_prefetch_stats_get(const sl_prefetches *s, sl_prefetch_stats *out)
{
    *out = s->st;
}
