/* See loading.h. */
#include "decode/pages/loading.h"

#include <stdlib.h>

static const uint64_t MS = 1000000;

/* A request that waits, or that has waited and is being handled again. */
typedef struct loading {
    sl_cascade_waiter wait; /* first member */
    struct loading *next;
    uint64_t number;
    uint32_t router;
    const sl_msg_reserve *r;
    uint64_t
        until_ns; /* then it continues with the pages that have arrived; 0: kvstore.prefetch sets no time */
    bool waits;
    bool over; /* that time has come */
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

/* Joins or begins the load of a request, whose prefetch, if it was announced, ends here. */
static bool join(sl_loads *s, loading *w)
{
    const sl_msg_reserve *r = w->r;
    const sl_pages_env *e = s->e;
    const sl_prefetch_opts *o = &e->o->prefetch;
    int32_t n = sl_runner_shared(e->runner, (int32_t)r->n_prompt, (int32_t)r->n_tokens);
    sl_prefetch *p = sl_prefetch_find(s->prefetches, w->router, r->rid);
    bool late = p && !sl_prefetch_done(p);
    bool waits =
        !w->over && !(late && o->policy == SL_CFG_PREFETCH_BEST_EFFORT) &&
        sl_prefetch_worth(e, (n - 1) / SL_PAGE_TOKENS - sl_store_match(e->store, r->seed, r->tokens, n)) &&
        sl_cascade_wait(e->cascade, r->seed, r->tokens, n, &w->wait);
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
        *w = (loading){.number = number,
                       .router = router,
                       .r = r,
                       .wait = {.kind = SL_WAITER_REQUEST,
                                .tenant = r->tenant,
                                .source = sl_prefetch_source(router, &r->source)}};
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
