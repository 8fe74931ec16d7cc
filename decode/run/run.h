/*
 * The running of a decode worker: it drives the machine of requests (decode/core/) with real messages, pages, sequences and
 * steps. Who else has pages (decode/pages/) is asked by it and knows its requests by their numbers.
 *
 *     requests.c   messages of routers and writers become events; what pages and sessions have to say, too
 *     world.c      what effects do: messages, leases, jobs of the checker
 *     checks.c     what the checker answers, damaged pages, the patrol
 *     batch.c      one step: who joins, its results as events
 *     growth.c     pages for the next rows
 *     laps.c       what the time between two steps is spent with
 *     prompts.c    prompts that are computed here, in the same steps (role both)
 *     residency.c  where the rows of a running request are
 *     states.c     snapshots of states that a prompt has, of models that keep states; answers.c: those among generated tokens
 *     drafts.c     drafts of the model's MTP layer
 *     draft_check.c  whether that layer drafts noise
 *
 * Threads: the engine thread. Ownership: sl_run_destroy() frees all requests; what sl_run_worker points to outlives it.
 */
#ifndef SL_DECODE_RUN_RUN_H
#define SL_DECODE_RUN_RUN_H

#include "base/drawn.h"
#include "decode/core/ticket.h"
#include "decode/mail/mail.h"
#include "decode/pages/pages.h"
#include "decode/run/draft_length.h"
#include "kvstore/snapshot.h"
#include "worker/role.h"

typedef struct sl_run sl_run;

/* Prompts that the worker computes itself (role both): see the keys of prefill and both in docs/configuration.md. */
typedef struct sl_prompt_opts {
    int32_t chunk_tokens; /* most prompt tokens in a step; 0: it computes none, which is the role decode */
    bool automatic;       /* as in sl_prompt_queue_opts */
    int32_t max_requests; /* prompts that are computed at the same time */
    int32_t max_step_ms, short_step_ms, min_step_tokens; /* as sl_order_steps_for() */
    int32_t max_stall_ms; /* time of the prompt tokens of a step in which requests decode; 0: no bound */
    /* benchmarks (bench.cached_tokens): first tokens of every prompt that are not computed */
    int32_t declared;
} sl_prompt_opts;

typedef struct sl_run_opts {
    sl_prompt_opts prompts;
    sl_residency residency;
    /* Hierarchical: requests that decode are resident while they fit into this number of row pages of the device, and are
     * spilled when pages are needed. 0: every request has a hot buffer from the start. */
    int64_t row_pages;
    int32_t draft_tokens; /* of a request in a step: 0 none, -1 as many as pay; needs a runner that drafts */
    sl_drawn drawn;       /* benchmarks (bench.selection): with drafts, how many stand is drawn */
    int32_t max_batch;    /* requests in the batch */
    int32_t max_waiting;  /* tickets in addition to those */
    uint32_t quarantine_ms; /* how long an aborted writer may stay silent before its connection is closed */
} sl_run_opts;

typedef struct sl_run_worker {
    sl_worker_role *role;            /* the store, the checker, the sampler, the load */
    const sl_worker_role_opts *opts; /* the runner, the arena, the metrics */
    sl_pages *pages;
} sl_run_worker;

/* SL_ERR_NO_MEMORY. */
sl_status sl_run_create(const sl_run_opts *o, const sl_run_worker *w, sl_run **out, sl_err *err);
/* Before there are requests: drafts on a fixed text, logs and counts how many of 32 are right, and warns if none is.
 * -1: there was no check, because nothing is drafted, the worker is a rank of a group, or a step failed. */
int32_t sl_drafts_check(sl_run *r);
/* The threads have begun (w), or have ended (NULL). */
void sl_run_threads(sl_run *r, sl_worker *w);
/* The threads have ended. NULL is allowed. */
void sl_run_destroy(sl_run *r);

/* ---- what has happened ---- */

/* A message about a request, from a router or from a writer. Takes m. */
void sl_run_msg(sl_run *r, sl_wmsg *m);
/* An answer of the checker to a job of a request. Takes k. */
void sl_run_checked(sl_run *r, sl_check *k);
void sl_run_connected(sl_run *r, sl_writer writer);
void sl_run_fenced(sl_run *r, sl_writer writer);
void sl_run_router_up(sl_run *r, uint32_t router);
/* Ends every request of this session. */
void sl_run_router_down(sl_run *r, uint32_t router);
void sl_run_pages_event(sl_run *r, const sl_pages_event *ev);
/* Handles the deadlines that have passed, and the patrol; returns when it must be called again. */
uint64_t sl_run_tick(sl_run *r, uint64_t now);
/* Admits requests and computes one step of all that compute; *worked: there were any. A failure ends the worker. */
sl_status sl_run_step(sl_run *r, bool *worked, sl_err *err);
/* At the end of a turn of the loop: frees the requests that have ended. */
void sl_run_turn(sl_run *r);
bool sl_run_idle(const sl_run *r);

/* ---- numbers ---- */

typedef struct sl_run_stats {
    /* since the beginning */
    uint64_t steps, tokens, prompt_tokens,
        prompt_reused; /* prompt_*: tokens of prompts, computed or found in the store */
    uint64_t stale;    /* messages that were dropped */
    uint64_t committed, aborted, expired, refused; /* tickets */
    uint64_t corrupt, checksums;                   /* COMMITs with wrong checksums; how many were wrong */
    /* damaged pages, found when a request begins, by the patrol, and when a step fetched their rows */
    uint64_t damaged_reused, damaged_running, damaged_fetched;
    uint64_t retracted, spilled, fences;
    /* Drafts by their place, those of them that stood, and the time of drafting; tokens are chosen in `decoded` items of steps. */
    uint64_t drafted[SL_DRAFTS_MAX], accepted[SL_DRAFTS_MAX], draft_ns, decoded;
    uint64_t snapshots[SL_SNAPSHOT_EVENTS];
    /* now */
    int32_t count[SL_TICKET_STATES];
    int32_t tickets;        /* that have a place */
    int32_t prompts;        /* PROMPT that have begun */
    int32_t resident;       /* RUNNING whose rows are all on the device, though they need not be */
    int32_t landing_pages;  /* whose rows have not all arrived yet, or are not verified */
    uint64_t queued_tokens; /* of prompts that are not computed, or have not arrived, yet */
} sl_run_stats;

void sl_run_stats_get(const sl_run *r, sl_run_stats *out);

#endif
