/*
 * Decode worker: keeps the whole cache in its host arena, gives out landing pages, and decodes everything
 * that has arrived in one continuous batch.
 *
 * Threads: the caller's thread becomes the engine thread (tickets, store, runner, sampler: all request
 * state); the transport thread owns the router link and the writers' connections; a checker thread computes
 * checksums. They share only mail.
 *
 * A ticket is one attempt (rid, attempt) of a request:
 *
 *   LANDING -> CHECKING -> WAITING -> RUNNING -> gone        (RESERVE, COMMIT, checksums right, a slot, DONE)
 *      \-> QUARANTINE -> gone                                 (ABORT or deadline before COMMIT)
 *
 * Landing pages of a dead ticket go back only when its writer is known to write no more: DRAINED from the
 * writer, DRAINED relayed by the router, its COMMIT, or its connection closed by force on our side and, if it
 * writes directly, its right to write taken back (worker/direct.h). A timeout alone never frees them; it
 * closes the connection. A token is produced only from rows whose checksums were
 * verified (or computed here).
 *
 * When pages run out in mid-flight the youngest request is retracted (RETRACTED; its full pages stay cached)
 * and the router starts it again. Loss of the router ends everything; the next session has a new epoch.
 */
#ifndef SL_DECODE_DECODE_H
#define SL_DECODE_DECODE_H

#include "worker/role.h"
#include "worker/setup.h"

typedef struct sl_decode sl_decode;

typedef struct sl_decode_opts {
    sl_worker_role_opts role;
    sl_residency residency;
    /* hierarchical: requests are resident while they fit into this many row pages of the device, and spilled
     * under pressure; 0: every request has a hot buffer from the start */
    int64_t row_pages;
    int32_t max_batch, max_waiting; /* requests in the batch; tickets beyond those */
    /* auto, direct: writers of this host may write into the arena directly, if it is shared and the system
     * can; direct refuses to start otherwise */
    sl_cfg_shipping shipping;
    uint32_t quarantine_ms; /* how long an aborted writer may stay silent before its connection is closed */
} sl_decode_opts;

/* Borrows runner, arena and strings. Errors as the transport's. */
sl_status sl_decode_create(const sl_decode_opts *opts, sl_decode **out, sl_err *err);
/*
 * Serves until *stop is set (any thread or signal handler; looked at ten times a second) and the requests in
 * work are done, or at most drain_timeout_ms longer. SL_OK then; negative when the worker cannot go on
 * (refused, device lost).
 */
sl_status sl_decode_run(sl_decode *d, const volatile int *stop, uint32_t drain_timeout_ms, sl_err *err);
void sl_decode_destroy(sl_decode *d);
/* "host:port" that prefill workers connect to. Constant. */
const char *sl_decode_address(const sl_decode *d);

typedef struct sl_decode_counts {
    int32_t tickets, quarantined, pages_total, pages_free, pages_cached;
    uint64_t steps, tokens, stale, corrupt, retracted, spilled, fences;
} sl_decode_counts;

/* After run has returned (or before it was called). Also checks the store's invariants. */
sl_status sl_decode_counts_get(const sl_decode *d, sl_decode_counts *out, sl_err *err);

/* The whole worker from a finished config: loads the model, makes arena and engine, serves. Blocks. */
sl_status sl_decode_main(const sl_config *cfg, const sl_worker_launch *launch, const volatile int *stop,
                         sl_err *err);

#endif
