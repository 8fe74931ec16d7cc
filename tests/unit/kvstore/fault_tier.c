/*
 * See fault_tier.h. Each request has a copy that the inner tier works on; both use the caller's keys, pages and results.
 * An inner request that is complete goes to the list `held`, whose order is the order of completion.
 */
#include "tests/unit/kvstore/fault_tier.h"

#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

typedef struct fault_tier fault_tier;

typedef struct passed {
    sl_tier_req inner;
    sl_tier_req *outer;
    fault_tier *t;
    struct passed *next; /* in held */
    sl_status st;
    int64_t due; /* number of the poll that completes it */
    bool dead;   /* not given to the inner tier */
} passed;

struct fault_tier {
    sl_tier base;
    sl_tier *inner;
    sl_tier_ops ops; /* the inner tier's name and properties with the functions of this file */
    faults f;
    passed *held, **held_tail;
    passed *live[64]; /* with the inner tier */
    int64_t polls;
    int32_t requests, pages, in_flight;
    int event, epoll;
};

static bool every(int32_t period, int32_t count)
{
    return period > 0 && count % period == 0;
}

static bool is_dead(const fault_tier *t)
{
    return t->f.die_after > 0 && t->requests > t->f.die_after;
}

static void hold(passed *p, sl_status st)
{
    fault_tier *t = p->t;
    p->st = st;
    p->due = t->polls + t->f.delay_polls;
    p->next = NULL;
    *t->held_tail = p;
    t->held_tail = &p->next;
    eventfd_write(t->event, 1);
}

static void forget_second_half(const sl_tier_page *page)
{
    for (int32_t i = page->n_spans / 2; i < page->n_spans; i++)
        memset(page->spans[i].iov_base, 0x5a, page->spans[i].iov_len);
}

static void on_inner_done(sl_tier_req *r, sl_status st)
{
    passed *p = r->cookie;
    fault_tier *t = p->t;
    for (int i = 0; i < 64; i++)
        if (t->live[i] == p)
            t->live[i] = NULL;
    for (int32_t i = 0; r->op == SL_TIER_GET && i < r->n; i++) {
        t->pages++;
        if (every(t->f.lose_every, t->pages))
            r->results[i] = SL_ERR_NOT_FOUND;
        if (every(t->f.short_every, t->pages)) {
            forget_second_half(&r->pages[i]);
            r->results[i] = SL_ERR_CORRUPT;
        }
    }
    hold(p, st);
}

static void f_submit(sl_tier *base, sl_tier_req *req)
{
    fault_tier *t = (fault_tier *)base;
    passed *p = malloc(sizeof *p);
    SL_CHECK(p, "out of memory");
    *p = (passed){.inner = *req, .outer = req, .t = t};
    p->inner.done = on_inner_done;
    p->inner.cookie = p;
    for (int32_t i = 0; req->op == SL_TIER_GET && t->in_flight == 0 && i < req->n; i++)
        if (every(t->f.damage_every, t->pages + i + 1))
            t->inner->ops->damage(t->inner, req->keys[i]);
    t->requests++;
    t->in_flight++;
    if (is_dead(t)) {
        p->dead = true;
        for (int32_t i = 0; i < req->n; i++)
            req->results[i] = SL_ERR_IO;
        hold(p, SL_OK);
        return;
    }
    int i = 0;
    while (i < 64 && t->live[i])
        i++;
    SL_CHECK(i < 64, "more than 64 requests in flight");
    t->live[i] = p;
    sl_tier_submit(t->inner, &p->inner);
}

static void f_cancel(sl_tier *base, sl_tier_req *req)
{
    fault_tier *t = (fault_tier *)base;
    req->cancelled = true;
    for (int i = 0; i < 64; i++)
        if (t->live[i] && t->live[i]->outer == req)
            sl_tier_cancel(t->inner, &t->live[i]->inner);
}

static int f_complete(fault_tier *t, bool all)
{
    int n = 0;
    eventfd_t count;
    eventfd_read(t->event, &count);
    while (t->held && (all || t->held->due <= t->polls)) {
        passed *p = t->held;
        t->held = p->next;
        if (!t->held)
            t->held_tail = &t->held;
        t->in_flight--;
        p->outer->done(p->outer, p->outer->cancelled ? SL_ERR_CANCELLED : p->st);
        free(p);
        n++;
    }
    if (t->held)
        eventfd_write(t->event, 1);
    return n;
}

static int f_poll(sl_tier *base)
{
    fault_tier *t = (fault_tier *)base;
    t->polls++;
    int n = f_complete(
        t, false); /* before the inner tier's, so that what it completes now is held at least once */
    sl_tier_poll(t->inner);
    return n;
}

/* An outer request that is held was complete before close cancelled it. */
static void f_close(sl_tier *base)
{
    fault_tier *t = (fault_tier *)base;
    for (passed *p = t->held; p; p = p->next)
        p->outer->cancelled = true;
    sl_tier_close(t->inner);
    f_complete(t, true);
    close(t->epoll);
    close(t->event);
    free(t);
}

static int f_fd(const sl_tier *base)
{
    return ((const fault_tier *)base)->epoll;
}

static void f_release(sl_tier *base, const sl_key *keys, int32_t n)
{
    sl_tier_release(((fault_tier *)base)->inner, keys, n);
}

static void f_health(sl_tier *base, sl_tier_health *out)
{
    fault_tier *t = (fault_tier *)base;
    sl_tier_get_health(t->inner, out);
    if (is_dead(t))
        *out = (sl_tier_health){.state = SL_TIER_FAILED, .reason = "fault: died"};
}

static void f_stats(sl_tier *base, sl_tier_stats *out)
{
    sl_tier_get_stats(((fault_tier *)base)->inner, out);
}

static int32_t f_list(sl_tier *base, uint64_t *cursor, sl_key *keys, int32_t n)
{
    return sl_tier_list(((fault_tier *)base)->inner, cursor, keys, n);
}

static bool f_damage(sl_tier *base, sl_key key)
{
    sl_tier *inner = ((fault_tier *)base)->inner;
    return inner->ops->damage(inner, key);
}

sl_tier *fault_tier_wrap(sl_tier *inner, const faults *f)
{
    fault_tier *t = calloc(1, sizeof *t);
    SL_CHECK(t, "out of memory");
    t->inner = inner;
    t->f = *f;
    t->held_tail = &t->held;
    t->ops = *inner->ops;
    t->ops.close = f_close, t->ops.fd = f_fd, t->ops.submit = f_submit, t->ops.cancel = f_cancel;
    t->ops.release = f_release, t->ops.poll = f_poll, t->ops.health = f_health, t->ops.stats = f_stats;
    t->ops.damage = f_damage;
    t->ops.list = f_list;
    t->base.ops = &t->ops;
    t->event = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    t->epoll = epoll_create1(EPOLL_CLOEXEC);
    struct epoll_event in = {.events = EPOLLIN};
    SL_CHECK(t->event >= 0 && t->epoll >= 0 && epoll_ctl(t->epoll, EPOLL_CTL_ADD, t->event, &in) == 0 &&
                 epoll_ctl(t->epoll, EPOLL_CTL_ADD, sl_tier_fd(inner), &in) == 0,
             "no descriptors");
    return &t->base;
}

void fault_tier_set(sl_tier *t, const faults *f)
{
    ((fault_tier *)t)->f = *f;
}
