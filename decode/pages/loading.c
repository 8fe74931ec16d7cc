/* See loading.h. */
#include "decode/pages/loading.h"

#include <stdlib.h>
#include <string.h>

#include "kvstore/snapshot.h"

static const uint64_t MS = 1000000;
enum { PAGE = SL_PAGE_TOKENS, SNAPSHOTS = 16 /* that a request looks for in the tiers */ };

/* A request that waits, or that has waited and is being handled again. */
typedef struct loading {
    sl_cascade_waiter wait; /* first member */
    struct loading *next;
    uint64_t number;
    uint32_t router;
    const sl_msg_reserve *r;
    /* then it continues with the pages that have arrived; 0: kvstore.prefetch sets no time */
    uint64_t until_ns;
    bool waits;
    bool over; /* that time has come */
    /* of models with states: how many snapshots were looked for, and the next one: that after this number of pages */
    int32_t tries, next_at;
} loading;

struct sl_loads {
    const sl_pages_env *e;
    sl_prefetches *prefetches;
    loading *list;
    int32_t waiting;
};

sl_loads *sl_loads_new(const sl_pages_env *e, sl_prefetches *prefetches)
{
    sl_loads *s = calloc(1, sizeof *s);
    if (s)
        *s = (sl_loads){.e = e, .prefetches = prefetches};
    return s;
}

static void drop(sl_loads *s, loading **at)
{
    loading *w = *at;
    *at = w->next;
    s->waiting -= w->waits;
    sl_cascade_leave(s->e->cascade, &w->wait);
    free(w);
}

void sl_loads_free(sl_loads *s)
{
    if (!s)
        return;
    while (s->list)
        drop(s, &s->list);
    free(s);
}

/* The place of this request in the list, or the end. */
static loading **find(sl_loads *s, uint64_t number)
{
    loading **at = &s->list;
    while (*at && (*at)->number != number)
        at = &(*at)->next;
    return at;
}

static sl_cascade_waiter waiter_of(const loading *w)
{
    return (sl_cascade_waiter){.kind = SL_WAITER_REQUEST,
                               .tenant = w->r->tenant,
                               .source = sl_prefetch_source(w->router, &w->r->source)};
}

/* Waits for the pages that continue the cached prefix up to its first `pages` pages, and for the snapshot after them. */
static bool wait_until(const sl_loads *s, loading *w, int32_t pages, int32_t snapshot)
{
    const sl_msg_reserve *r = w->r;
    const int32_t n = pages * PAGE, all = n + snapshot * PAGE + 1;
    int32_t *tokens = malloc((size_t)all * sizeof *tokens);
    if (!tokens)
        return false;
    memcpy(tokens, r->tokens, (size_t)n * sizeof *tokens);
    sl_snapshot_tokens(snapshot, tokens + n);
    tokens[all - 1] = 0;
    sl_cascade_leave(s->e->cascade, &w->wait); /* it is another question */
    w->wait = waiter_of(w);
    w->wait.source.pages = w->wait.source.pages >= pages ? pages + snapshot : 0;
    const bool waits = sl_cascade_wait(s->e->cascade, r->seed, tokens, all, &w->wait);
    free(tokens);
    return waits;
}

/*
 * Pages are of use up to the last snapshot only, and a tier does not say where it has one. So it is asked for the pages up to the
 * place where a prompt like this one has its snapshot, with that; and then, as far as pages have come or were here, for the snapshot
 * of each page, from the last one on.
 */
static bool wait_for_states(const sl_loads *s, loading *w, int32_t n, int32_t snapshot)
{
    const sl_pages_env *e = s->e;
    const sl_msg_reserve *r = w->r;
    const int32_t have = sl_snapshot_find(e->store, e->geo, r->seed, r->tokens, n) / PAGE;
    while (w->tries < SNAPSHOTS) {
        int32_t at = w->tries ? w->next_at : n > 0 ? (n - 1) / PAGE : 0;
        const int32_t rows = sl_store_match(e->store, r->seed, r->tokens, n);
        if (w->tries && at > rows)
            at = rows;
        if (at <= have || !sl_prefetch_worth(e, at - have))
            return false;
        w->tries++;
        w->next_at = at - 1;
        if (wait_until(s, w, at, snapshot))
            return true;
    }
    return false;
}

static bool wait_for_pages(const sl_loads *s, loading *w, int32_t n)
{
    const sl_pages_env *e = s->e;
    const sl_msg_reserve *r = w->r;
    const int32_t snapshot = sl_snapshot_pages(e->geo);
    if (snapshot)
        return wait_for_states(s, w, n, snapshot);
    return sl_prefetch_worth(e, (n - 1) / PAGE - sl_store_match(e->store, r->seed, r->tokens, n)) &&
           sl_cascade_wait(e->cascade, r->seed, r->tokens, n, &w->wait);
}

/* Joins or begins the load of a request, whose prefetch, if it was announced, ends here. */
static bool join(sl_loads *s, loading *w)
{
    const sl_msg_reserve *r = w->r;
    const sl_pages_env *e = s->e;
    const sl_prefetch_opts *o = &e->o->prefetch;
    int32_t n = sl_runner_shared(e->runner, (int32_t)r->n_prompt, (int32_t)r->n_tokens);
    sl_prefetch *p = sl_prefetch_find(s->prefetches, w->router, r->rid);
    bool late = p && !sl_prefetch_done(p);
    bool waits = !w->over && !(late && o->policy == SL_CFG_PREFETCH_BEST_EFFORT) && wait_for_pages(s, w, n);
    if (p) /* after the request has joined its load, which would end otherwise */
        sl_prefetch_finish(s->prefetches, p, late ? SL_PREFETCH_LATE : SL_PREFETCH_IN_TIME);
    if (waits && !w->until_ns && o->policy == SL_CFG_PREFETCH_TIMEOUT)
        w->until_ns = sl_now_ns() + (o->base_ms + (uint64_t)o->ms_per_1024 * r->n_tokens / 1024) * MS;
    return waits;
}

bool sl_loads_wait(sl_loads *s, uint64_t number, uint32_t router, const sl_msg_reserve *r)
{
    if (!s->e->cascade)
        return false;
    loading **at = find(s, number);
    if (!*at) {
        loading *w = calloc(1, sizeof *w);
        if (!w)
            return false;
        *w = (loading){.number = number, .router = router, .r = r};
        w->wait = waiter_of(w);
        *at = w;
    }
    loading *w = *at;
    SL_CHECK(!w->waits, "request %lu waits already", (unsigned long)number);
    w->waits = join(s, w);
    s->waiting += w->waits;
    if (w->waits)
        return true;
    drop(s, at);
    return false;
}

void sl_loads_leave(sl_loads *s, uint64_t number)
{
    loading **at = find(s, number);
    if (*at)
        drop(s, at);
}

int32_t sl_loads_waiting(const sl_loads *s)
{
    return s->waiting;
}

static void tell_begun(const sl_loads *s, const loading *w, int32_t pages)
{
    int32_t most = ((int32_t)w->r->n_tokens - 1) / SL_PAGE_TOKENS;
    if (sl_snapshot_pages(s->e->geo)) /* prefill workers fetch nothing ahead without a snapshot */
        return;
    sl_msg m = {.type = SL_MSG_LOADING};
    m.loading = (sl_msg_loading){
        .rid = w->r->rid, .attempt = w->r->attempt, .pages = (uint32_t)(pages < most ? pages : most)};
    sl_worker_tell_router(s->e->worker, w->router, &m);
}

static void ended(sl_loads *s, loading *w, sl_pages_event *out)
{
    w->waits = false;
    s->waiting--;
    *out = (sl_pages_event){.kind = SL_PAGES_LOADED,
                            .number = w->number,
                            .loaded = w->wait.loaded,
                            .loaded_end = w->wait.loaded_end};
}

bool sl_loads_news(sl_loads *s, const sl_cascade_news *news, sl_pages_event *out)
{
    loading *w = (loading *)news->w;
    if (news->ended)
        ended(s, w, out);
    else
        tell_begun(s, w, news->pages);
    return news->ended;
}

bool sl_loads_next(sl_loads *s, uint64_t now, sl_pages_event *out)
{
    for (loading *w = s->list; w; w = w->next) {
        if (!w->waits || !w->until_ns || now < w->until_ns)
            continue;
        w->over = true;
        sl_cascade_leave(s->e->cascade, &w->wait);
        ended(s, w, out);
        return true;
    }
    return false;
}

uint64_t sl_loads_due(const sl_loads *s)
{
    uint64_t due = UINT64_MAX;
    for (const loading *w = s->list; w; w = w->next) {
        if (w->waits && w->until_ns && w->until_ns < due)
            due = w->until_ns;
    }
    return due;
}
