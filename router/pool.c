/*
 * The thread pool; see pool.h. libuv's own queue is first in, first out, so no more jobs are given to it than run at
 * once, and the others wait here.
 */
#include "router/pool.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "router/budget.h"

enum {
    MAX_JOBS = 1024,
    CLIENT_PART = 4, /* one client has at most 3 of 4 parts of what may wait */
    /* libuv has 4 threads; one is always free for what was posted. */
    SLOTS = 3,
    LONG_SLOTS = 2,
    CLIENT_SLOTS = 2,
    LONG_BYTES = 64 << 10,
    JOB_COST = 1024 /* of a job without bytes */
};

struct sl_pool_lane {
    sl_pool_lane *next;
    char client[SL_CLIENT_MAX];
    double served; /* bytes of its jobs, as in the queue: a client that returns has no claim */
    size_t bytes;  /* of its jobs that wait or run */
    uint32_t waiting, running;
    sl_front_job *head, *tail; /* that wait */
    sl_front_job *at_work[SLOTS];
};

/* ---- guards ---- */

static bool hold(sl_guard *g, uint64_t bytes)
{
    sl_front_job *j = (sl_front_job *)((char *)g - offsetof(sl_front_job, guard));
    return sl_front_hold(j->r, &g->held, bytes);
}

const sl_pool_job sl_pool_jobs[SL_POOL_JOB_KINDS] = {
#define SL_POOL_JOB_ROW(id, run, done, lanes, looks, cost) {#id, run, done, lanes, looks, cost},
    SL_POOL_JOBS(SL_POOL_JOB_ROW)
#undef SL_POOL_JOB_ROW
};

void sl_front_job_init(sl_router *r, sl_front_job *j, sl_pool_job_id kind)
{
    j->kind = &sl_pool_jobs[kind];
    j->r = r;
    j->guard.hold = hold;
    j->guard.most = sl_front_most(sl_router_options(r));
    j->why = SL_ERR_CANCELLED;
}

/* ---- lanes ---- */

static sl_pool_lane *lane_of(sl_pool *p, const char *client)
{
    sl_pool_lane *l = p->lanes;
    while (l && strcmp(l->client, client))
        l = l->next;
    if (l)
        return l;
    l = calloc(1, sizeof *l);
    if (!l)
        return NULL;
    snprintf(l->client, sizeof l->client, "%s", client);
    l->served = p->served;
    l->next = p->lanes;
    p->lanes = l;
    return l;
}

/* A lane without jobs is kept while it is ahead of the others: leaving gives no new claim. */
static void sweep(sl_pool *p)
{
    for (sl_pool_lane **at = &p->lanes; *at;) {
        sl_pool_lane *l = *at;
        if (l->waiting || l->running || (l->served > p->served && (p->waiting || p->running))) {
            at = &l->next;
            continue;
        }
        *at = l->next;
        free(l);
    }
}

static bool is_long(const sl_front_job *j)
{
    return j->unknown || j->bytes > LONG_BYTES;
}

static bool may_start(const sl_pool *p, const sl_pool_lane *l)
{
    return l->head && l->running < CLIENT_SLOTS && (!is_long(l->head) || p->running_long < LONG_SLOTS);
}

static sl_pool_lane *next_lane(const sl_pool *p)
{
    sl_pool_lane *best = NULL;
    for (sl_pool_lane *l = p->lanes; l; l = l->next) {
        if (may_start(p, l) && (!best || l->served < best->served))
            best = l;
    }
    return best;
}

static void unlink_job(sl_pool *p, sl_pool_lane *l, sl_front_job *j)
{
    sl_front_job *before = NULL;
    for (sl_front_job *k = l->head; k != j; k = k->next)
        before = k;
    *(before ? &before->next : &l->head) = j->next;
    if (l->tail == j)
        l->tail = before;
    j->next = NULL;
    l->waiting--;
    p->waiting--;
}

static void forget(sl_pool *p, sl_front_job *j)
{
    j->lane->bytes -= j->bytes;
    p->bytes -= j->bytes;
    j->lane = NULL;
}

/* ---- running ---- */

static uint64_t thread_cpu_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void on_work(uv_work_t *w)
{
    sl_front_job *j = w->data;
    sl_pool *p = sl_router_pool(j->r);
    const size_t kind = (size_t)(j->kind - sl_pool_jobs);
    const uint64_t begin = thread_cpu_ns();
    j->kind->run(j);
    __atomic_fetch_add(&p->cpu_ns[kind], thread_cpu_ns() - begin, __ATOMIC_RELAXED);
    __atomic_fetch_add(&p->ran[kind], 1, __ATOMIC_RELAXED);
}

static void start_more(sl_router *r);

static void on_done(uv_work_t *w, int status)
{
    sl_front_job *j = w->data;
    sl_router *r = j->r;
    sl_pool *p = sl_router_pool(r);
    sl_pool_lane *l = j->lane;
    j->running = false;
    l->running--;
    l->served += (double)j->extra;
    p->running--;
    p->running_long -= is_long(j);
    for (int i = 0; i < SLOTS; i++) {
        if (l->at_work[i] == j)
            l->at_work[i] = NULL;
    }
    forget(p, j);
    const char *before = sl_router_work(r, "end of a job of the pool");
    j->kind->done(j, status == 0);
    start_more(r);
    sl_router_work(r, before);
}

static void start(sl_pool *p, sl_pool_lane *l)
{
    sl_front_job *j = l->head;
    unlink_job(p, l, j);
    if (l->served > p->served)
        p->served = l->served;
    l->served += (double)(j->bytes + JOB_COST);
    l->running++;
    p->running++;
    p->running_long += is_long(j);
    j->running = true;
    for (int i = 0; i < SLOTS; i++) {
        if (!l->at_work[i]) {
            l->at_work[i] = j;
            break;
        }
    }
    SL_CHECK(!uv_queue_work(j->loop, &j->work, on_work, on_done), "uv_queue_work refuses a callback");
}

static void start_more(sl_router *r)
{
    sl_pool *p = sl_router_pool(r);
    sl_pool_lane *l;
    while (p->running < SLOTS && (l = next_lane(p)))
        start(p, l);
    sweep(p);
}

sl_status sl_front_job_start(sl_router *r, uv_loop_t *loop, sl_front_job *j, const char *client, size_t bytes,
                             uint64_t deadline_ns, sl_err *err)
{
    sl_pool *p = sl_router_pool(r);
    uint64_t most = sl_router_options(r)->front.max_request_bytes / 2, part = most - most / CLIENT_PART;
    sl_pool_lane *l = lane_of(p, client);
    SL_CHECK(j->kind->lanes, "a kind of job that does not wait in lanes");
    if (!l)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    if (p->waiting >= MAX_JOBS || (p->bytes && p->bytes + bytes > most) ||
        l->waiting >= MAX_JOBS - MAX_JOBS / CLIENT_PART || (l->bytes && l->bytes + bytes > part))
        return sl_fail(err, SL_ERR_EXHAUSTED, "too many requests wait to be tokenized; try again later");
    if (!l->waiting && !l->running && l->served < p->served)
        l->served = p->served;
    j->work.data = j;
    j->loop = loop;
    j->bytes = bytes;
    j->deadline_ns = deadline_ns;
    j->lane = l;
    j->next = NULL;
    *(l->tail ? &l->tail->next : &l->head) = j;
    l->tail = j;
    l->waiting++;
    l->bytes += bytes;
    p->waiting++;
    p->bytes += bytes;
    start_more(r);
    return SL_OK;
}

/* ---- stopping ---- */

void sl_front_job_cancel(sl_front_job *j, sl_status why)
{
    if (!j->lane)
        return;
    if (!sl_guard_check(&j->guard, NULL))
        j->why = why;
    sl_guard_stop(&j->guard);
    if (j->running)
        return;
    sl_pool *p = sl_router_pool(j->r);
    unlink_job(p, j->lane, j);
    forget(p, j);
    j->kind->done(j, false);
}

static void stop_lane(sl_pool_lane *l, uint64_t now_ns, sl_status why)
{
    for (int i = 0; i < SLOTS; i++) {
        sl_front_job *j = l->at_work[i];
        if (j && (!now_ns || (j->deadline_ns && now_ns >= j->deadline_ns)))
            sl_front_job_cancel(j, why);
    }
    for (sl_front_job *j = l->head, *next; j; j = next) {
        next = j->next;
        if (!now_ns || (j->deadline_ns && now_ns >= j->deadline_ns))
            sl_front_job_cancel(j, why);
    }
}

void sl_router_pool_tick(sl_router *r, uint64_t now_ns)
{
    for (sl_pool_lane *l = sl_router_pool(r)->lanes; l; l = l->next)
        stop_lane(l, now_ns, SL_ERR_DEADLINE);
}

void sl_router_pool_stop(sl_router *r, sl_status why)
{
    for (sl_pool_lane *l = sl_router_pool(r)->lanes; l; l = l->next)
        stop_lane(l, 0, why);
    sweep(sl_router_pool(r));
}

/* ---- posted work ---- */

static void on_posted(uv_work_t *w, int status)
{
    sl_front_job *j = w->data;
    sl_router *r = j->r;
    const char *before = sl_router_work(r, "end of posted work");
    j->kind->done(j, status == 0);
    sl_router_work(r, before);
}

void sl_front_job_post(uv_loop_t *loop, sl_front_job *j)
{
    SL_CHECK(!j->kind->lanes, "a kind of job that waits in lanes");
    j->work.data = j;
    SL_CHECK(!uv_queue_work(loop, &j->work, on_work, on_posted), "uv_queue_work refuses a callback");
}

typedef struct drop_job {
    sl_front_job job; /* first: an sl_front_job pointer is a drop_job pointer */
    void *p;
} drop_job;

void *sl_front_dropped(sl_front_job *j)
{
    return ((drop_job *)j)->p;
}

void sl_job_dropped(sl_front_job *j, bool ran)
{
    if (!ran)
        j->kind->run(j);
    free(j);
}

void sl_front_drop(sl_router *r, uv_loop_t *loop, sl_pool_job_id kind, void *p)
{
    drop_job *d = calloc(1, sizeof *d), here = {.p = p};
    if (!d) {
        sl_pool_jobs[kind].run(&here.job);
        return;
    }
    d->p = p;
    sl_front_job_init(r, &d->job, kind);
    sl_front_job_post(loop, &d->job);
}
