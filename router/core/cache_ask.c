/*
 * Questions of administrators to one decode worker about its cache: a part of its list of pages, or a job that verifies or drops
 * them (decode/pages/inspect.c, decode/pages/audit.c). A question is answered once: by the worker, by the loss of the worker, or by the end
 * of its time. The router keeps nothing else: cursors and jobs are the worker's.
 */
#include <stdlib.h>
#include <string.h>

#include "router/core/core_impl.h"

enum { CALLS = 64 };
static const uint64_t PATIENCE_NS = 10000 * SL_MS;

struct sl_cache_call {
    sl_cache_call *next;
    sl_router *r;
    uint64_t ask, deadline_ns;
    uint32_t worker;
    sl_cache_answer_fn *fn;
    void *arg;
};

/* The worker of this name that lives. */
static sl_member *find_worker(sl_router *r, const char *name)
{
    for (sl_member *w = r->cluster.members; w; w = w->next) {
        if (w->id && w->state != SL_MEMBER_DEAD && strcmp(w->name, name) == 0)
            return w;
    }
    return NULL;
}

sl_status sl_cache_ask(sl_router *r, const char *worker, const sl_msg_cache_ask *q, sl_cache_answer_fn *fn,
                       void *arg, sl_cache_call **out, sl_err *err)
{
    sl_member *w = find_worker(r, worker);
    if (!w)
        return sl_fail(err, SL_ERR_NOT_FOUND, "worker: there is no %s", worker);
    if (!sl_role_does(w->role, SL_ROLE_DECODE))
        return sl_fail(err, SL_ERR_INVALID, "worker: %s is no decode worker", worker);
    if (r->cluster.n_cache_calls >= CALLS)
        return sl_fail(err, SL_ERR_EXHAUSTED, "%d questions about caches are open; try again later", CALLS);
    sl_cache_call *c = calloc(1, sizeof *c);
    if (!c)
        return sl_fail(err, SL_ERR_EXHAUSTED, "out of memory");
    *c = (sl_cache_call){.next = r->cluster.cache_calls,
                         .r = r,
                         .ask = ++r->cluster.cache_asks,
                         .deadline_ns = sl_now_ns() + PATIENCE_NS,
                         .worker = w->id,
                         .fn = fn,
                         .arg = arg};
    r->cluster.cache_calls = c;
    r->cluster.n_cache_calls++;
    sl_msg m = {.type = SL_MSG_CACHE_ASK};
    m.cache_ask = *q;
    m.cache_ask.ask = c->ask;
    sl_router_link_send(w, &m);
    *out = c;
    return SL_OK;
}

void sl_cache_forget(sl_cache_call *c)
{
    if (!c)
        return;
    sl_cache_call **at = &c->r->cluster.cache_calls;
    while (*at != c)
        at = &(*at)->next;
    *at = c->next;
    c->r->cluster.n_cache_calls--;
    free(c);
}

static void answer(sl_cache_call *c, const sl_cache_answer *a)
{
    sl_cache_answer_fn *fn = c->fn;
    void *arg = c->arg;
    sl_cache_forget(c);
    fn(arg, a);
}

static void fail(sl_cache_call *c, sl_status st, const char *reason)
{
    answer(c, &(sl_cache_answer){.status = st, .reason = reason});
}

void sl_cache_on_message(sl_member *w, const sl_msg *m)
{
    bool pages = m->type == SL_MSG_CACHE_PAGES;
    uint64_t ask = pages ? m->cache_pages.ask : m->cache_job.ask;
    sl_cache_call *c = w->r->cluster.cache_calls;
    while (c && (c->ask != ask || c->worker != w->id))
        c = c->next;
    if (!c) { /* its client has gone, or its time was over */
        sl_counter_add(w->r->stats.workers.stale, 1);
        return;
    }
    sl_cache_answer a = {
        .pages = pages ? &m->cache_pages : NULL, .job = pages ? NULL : &m->cache_job, .reason = ""};
    if (!pages) {
        a.status = (sl_status)m->cache_job.status;
        a.reason = m->cache_job.reason;
    }
    answer(c, &a);
}

/* Ends the first question that is over; false: none is. */
static bool end_one(sl_router *r, uint32_t member, uint64_t now)
{
    for (sl_cache_call *c = r->cluster.cache_calls; c; c = c->next) {
        if (member ? c->worker == member : now >= c->deadline_ns) {
            fail(c, member ? SL_ERR_PEER : SL_ERR_DEADLINE,
                 member ? "the worker was lost" : "the worker does not answer");
            return true; /* the list may have changed */
        }
    }
    return false;
}

void sl_cache_member_lost(sl_router *r, uint32_t member)
{
    while (end_one(r, member, 0))
        ;
}

void sl_cache_tick(sl_router *r, uint64_t now)
{
    while (end_one(r, 0, now))
        ;
}

void sl_cache_free(sl_router *r)
{
    while (r->cluster.cache_calls)
        sl_cache_forget(r->cluster.cache_calls);
}
