/*
 * The thread pool, for the fronts: work on the bytes of clients that is too long for the loop.
 *
 * Jobs wait in lanes, one of each client, and the next one is that of the client who has been given the fewest bytes of
 * work; a client has few jobs in work at once, and so have long jobs of all clients, so that a short one starts soon
 * whatever the others have sent. A job takes memory through its guard from the budget of bytes, and is stopped when its
 * client leaves, when its deadline passes, and when the router drains.
 *
 * Posted work is not work for a client's bytes that were just received: freeing what was built, or making the answer of
 * a request that was served. It does not wait in lanes.
 *
 * Threads: the loop's thread, except `run`. Ownership: a job is embedded in its owner's object, which lives until done.
 */
#ifndef SL_ROUTER_POOL_H
#define SL_ROUTER_POOL_H

#include <uv.h>

#include "base/guard.h"
#include "router/core.h"

typedef struct sl_front_job sl_front_job;
typedef struct sl_pool_lane sl_pool_lane;

struct sl_front_job {
    uv_work_t work;
    sl_router *r;
    sl_guard guard;                          /* of the budget of bytes; the owner gives back what is held */
    void (*run)(sl_front_job *j);            /* on a thread of the pool */
    void (*done)(sl_front_job *j, bool ran); /* in the loop; ran: false: it never ran */
    bool
        unknown; /* set before the start: how long it takes does not follow from its bytes, so it counts as long */
    size_t
        extra; /* set by run: what it did, in bytes of ordinary work, besides the bytes with which it was started */
    sl_status why; /* of a job that was stopped, or never ran: CANCELLED, DEADLINE, or PEER for a drain */
    /* private */
    uv_loop_t *loop;
    size_t bytes;
    uint64_t deadline_ns;
    sl_pool_lane *lane;
    sl_front_job *next;
    bool running;
};

/* Prepares the guard, for work in the loop too. */
void sl_front_job_init(sl_router *r, sl_front_job *j);

/* Input up to this size is handled in the loop at once; larger input goes to the pool. */
enum { SL_FRONT_POOL_BYTES = 4096 };

/* Starts run on the pool when it is the turn of this client. bytes: of its input. deadline_ns: 0 = none. EXHAUSTED: too
 * many jobs, or bytes of jobs, wait already, of all or of this client; nothing is called then. */
sl_status sl_front_job_start(sl_router *r, uv_loop_t *loop, sl_front_job *j, const char *client, size_t bytes,
                             uint64_t deadline_ns, sl_err *err);
/* No caller waits for the job any more. One that waits is done at once, before this returns. */
void sl_front_job_cancel(sl_front_job *j, sl_status why);

/* Starts run on the pool, however many jobs wait: for the end of work that was admitted, whose bytes are in the
 * budget. */
void sl_front_job_post(sl_router *r, uv_loop_t *loop, sl_front_job *j);
/* Calls drop(p) on the pool, for objects that take long to free; here when there is no memory for a job. */
void sl_front_drop(sl_router *r, uv_loop_t *loop, void (*drop)(void *p), void *p);

/* The pool of a router, zero at start. */
typedef struct sl_pool {
    sl_pool_lane *lanes;
    uint32_t waiting, running, running_long;
    size_t bytes; /* of jobs that wait or run */
    double served;
} sl_pool;

/* Stops jobs whose deadline has passed. */
void sl_pool_tick(sl_router *r, uint64_t now_ns);
/* Stops all jobs. */
void sl_pool_stop(sl_router *r, sl_status why);

#endif
