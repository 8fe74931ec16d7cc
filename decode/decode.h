/*
 * Decode worker: keeps the whole KV cache in its host arena, reserves pages into which prefill workers write (landing
 * pages), and decodes all requests whose rows have arrived, in one continuous batch.
 *
 * Threads: the caller's thread becomes the engine thread (tickets, store, runner, sampler: all state of requests); the
 * transport thread owns the connection to the router and those to the writers, which are the prefill workers; a checker
 * thread computes checksums. They share only the messages that they send each other.
 *
 * A ticket is one attempt (rid, attempt) of a request; decode/core/ticket.h has its state machine:
 *
 *   LANDING -> CHECKING -> WAITING -> RUNNING -> gone        (RESERVE, COMMIT, checksums right, a slot, DONE)
 *      \-> QUARANTINE -> gone                                 (ABORT or deadline before COMMIT)
 *
 * A worker of role both computes prompts itself (run/prompts.c): chunks of them are in the same steps as the tokens that are
 * decoded, and their rows are written into the store by the step. Such a ticket is PROMPT instead of LANDING; it has no
 * writer and no quarantine.
 *
 * The landing pages of a ticket that has ended become free only when its writer certainly writes no more. That is so
 * after DRAINED from the writer or relayed by the router, after its COMMIT, or after this side has closed the
 * connection by force and has revoked the writer's right to write directly, if it had one (worker/direct.h). A timeout
 * alone never frees them; it closes the connection. Tokens are produced only from rows whose checksums were verified,
 * or that were computed here.
 *
 * When no page is left for the next row of a running request, the request that was verified last is retracted
 * (RETRACTED; its full pages stay cached) and the router starts it again. Loss of the router ends every request; the
 * next session has a new epoch.
 */
#ifndef SL_DECODE_DECODE_H
#define SL_DECODE_DECODE_H

#include "decode/run/run.h"
#include "worker/role.h"
#include "worker/setup.h"

typedef struct sl_decode sl_decode;

typedef struct sl_decode_opts {
    sl_worker_role_opts role;
    sl_prompt_opts prompts;
    sl_residency residency;
    /* Hierarchical: requests that decode are resident while they fit into this number of row pages of the device, and are
     * spilled when pages are needed. 0: every request has a hot buffer from the start. */
    int64_t row_pages;
    int32_t max_batch;    /* requests in the batch */
    int32_t draft_tokens; /* as in sl_run_opts */
    sl_drawn drawn;       /* likewise */
    int32_t max_waiting;  /* tickets in addition to those */
    /* NULL: auto. Where it allows `direct`, writers of this host may write into the arena directly, provided that it is
     * shared memory and the system supports it. Where that is not possible, create fails if `direct` was chosen. */
    const sl_shipping *shipping;
    /* Its tiers and events are taken over by sl_decode_create(), also when it fails. */
    sl_pages_opts pages;
    uint32_t stall_ms;      /* gets without progress for this time end the connection; 0: quarantine_ms */
    uint32_t quarantine_ms; /* how long an aborted writer may stay silent before its connection is closed */
} sl_decode_opts;

/* Borrows runner, arena and strings. Errors as the transport's. */
sl_status sl_decode_create(const sl_decode_opts *opts, sl_decode **out, sl_err *err);
/* See sl_worker_role_run() (worker/role.h). */
sl_status sl_decode_run(sl_decode *d, const volatile int *stop, uint32_t drain_timeout_ms, sl_err *err);
void sl_decode_destroy(sl_decode *d);

typedef struct sl_decode_counts {
    int32_t tickets, quarantined, pages_total, pages_free, pages_cached;
    uint64_t steps, tokens, stale, corrupt, damaged, retracted, spilled, fences;
    uint64_t pulled, pull_bytes, pull_ns; /* pages, from other decode workers */
    int32_t pull_leases, lend_leases;     /* that exist */
} sl_decode_counts;

/* Before run is called or after it has returned. Also checks the invariants of the store. */
sl_status sl_decode_counts_get(const sl_decode *d, sl_decode_counts *out, sl_err *err);

/* Runs a whole worker from a finished configuration: loads the model, creates arena and engine, serves. Blocks. role:
 * SL_ROLE_DECODE or SL_ROLE_BOTH. */
sl_status sl_decode_main(const sl_config *cfg, const sl_worker_launch *launch, sl_role role,
                         const volatile int *stop, sl_err *err);

#endif
