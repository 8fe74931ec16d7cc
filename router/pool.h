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
 * Every job is of a kind, and every kind is a row of SL_POOL_JOBS, which says what its cost follows from and whether it looks at its
 * guard between pieces of work; tests/unit/router/test_pool.c measures each row.
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

/*
 * The kinds of jobs. X(id, run, done, lanes, looks, cost): `run` works on a thread of the pool, `done` follows in the loop. lanes: it waits
 * in the lane of a client, else it is posted. looks: at its guard, between pieces of work that have a bound; else `cost` says why the
 * whole job is such a piece. cost: the bytes from which its time follows, at most n log n of them.
 */
#define SL_POOL_JOBS(X)                                                                                      \
    X(HTTP_REQUEST, sl_job_http_request, sl_job_http_requested, true, true,                                  \
      "the body, inflated, and its constraint")                                                              \
    X(GRPC_REQUEST, sl_job_grpc_request, sl_job_grpc_requested, true, true,                                  \
      "the message and its constraint")                                                                      \
    X(HTTP_DOCUMENT, sl_job_document, sl_job_documented, false, true,                                        \
      "the answer, which is in the budget of bytes")                                                         \
    X(GRPC_COMPLETE, sl_job_complete, sl_job_completed, false, false,                                        \
      "the answer, in the budget, copied twice")                                                             \
    X(TOKENIZER_ARCHIVE, sl_job_archive, sl_job_archived, false, true,                                       \
      "files of the checkpoint, once for each front")                                                        \
    X(FREE_HTTP_REQUEST, sl_job_free_http_request, sl_job_dropped, false, false,                             \
      "what the body was parsed into")                                                                       \
    X(FREE_GRPC_REQUEST, sl_job_free_grpc_request, sl_job_dropped, false, false,                             \
      "what the message was unpacked into")                                                                  \
    X(FREE_ANSWER, sl_job_free_answer, sl_job_dropped, false, false, "the answer and its tools")

typedef enum {
#define SL_POOL_JOB_ID(id, run, done, lanes, looks, cost) SL_JOB_##id,
    SL_POOL_JOBS(SL_POOL_JOB_ID)
#undef SL_POOL_JOB_ID
        SL_POOL_JOB_KINDS
} sl_pool_job_id;

#define SL_POOL_JOB_FUNCTIONS(id, run, done, lanes, looks, cost)                                             \
    void run(sl_front_job *j);                                                                               \
    void done(sl_front_job *j, bool ran);
SL_POOL_JOBS(SL_POOL_JOB_FUNCTIONS)
#undef SL_POOL_JOB_FUNCTIONS

typedef struct sl_pool_job {
    const char *name;
    void (*run)(sl_front_job *j);
    void (*done)(sl_front_job *j, bool ran); /* ran: false: it never ran */
    bool lanes, looks;
    const char *cost;
} sl_pool_job;
extern const sl_pool_job sl_pool_jobs[SL_POOL_JOB_KINDS];

struct sl_front_job {
    uv_work_t work;
    sl_router *r;
    sl_guard guard; /* of the budget of bytes; the owner gives back what is held */
    /* set before the start: how long it takes does not follow from its bytes, so it counts as long */
    bool unknown;
    /* set by run: what it did, in bytes of ordinary work, besides the bytes with which it was started */
    size_t extra;
    sl_status why; /* of a job that was stopped, or never ran: CANCELLED, DEADLINE, or PEER for a drain */
    /* private */
    const sl_pool_job *kind;
    uv_loop_t *loop;
    size_t bytes;
    uint64_t deadline_ns;
    sl_pool_lane *lane;
    sl_front_job *next;
    bool running;
};

/* Prepares the job and its guard, for work in the loop too. */
void sl_front_job_init(sl_router *r, sl_front_job *j, sl_pool_job_id kind);

/* Input up to this size is handled in the loop at once; larger input goes to the pool. */
enum { SL_FRONT_POOL_BYTES = 4096 };

/* Starts it on the pool when it is the turn of this client. bytes: of its input. deadline_ns: 0 = none. EXHAUSTED: too
 * many jobs, or bytes of jobs, wait already, of all or of this client; nothing is called then. */
sl_status sl_front_job_start(sl_router *r, uv_loop_t *loop, sl_front_job *j, const char *client, size_t bytes,
                             uint64_t deadline_ns, sl_err *err);
/* No caller waits for the job any more. One that waits is done at once, before this returns. */
void sl_front_job_cancel(sl_front_job *j, sl_status why);

/* Starts it on the pool, however many jobs wait: for the end of work that was admitted, whose bytes are in the
 * budget. */
void sl_front_job_post(uv_loop_t *loop, sl_front_job *j);
/* Runs a kind that frees p, on the pool, for objects that take long to free; here when there is no memory for a job. */
void sl_front_drop(sl_router *r, uv_loop_t *loop, sl_pool_job_id kind, void *p);
/* The p of such a job. */
void *sl_front_dropped(sl_front_job *j);

/* The pool of a router, zero at start. */
typedef struct sl_pool {
    sl_pool_lane *lanes;
    uint32_t waiting, running, running_long;
    size_t bytes; /* of jobs that wait or run */
    double served;
    /* Of each kind: how many have run, and their processor time. Written by the threads of the pool, atomic. */
    uint64_t ran[SL_POOL_JOB_KINDS], cpu_ns[SL_POOL_JOB_KINDS];
} sl_pool;
sl_pool *sl_router_pool(sl_router *r);

/* Stops jobs whose deadline has passed. */
void sl_router_pool_tick(sl_router *r, uint64_t now_ns);
/* Stops all jobs. */
void sl_router_pool_stop(sl_router *r, sl_status why);

#endif
