/*
 * Prefill worker: computes prompts chunk by chunk and puts their rows and index keys straight into a decode
 * worker's arena while the next layer computes.
 *
 * Two threads (worker/worker.h): the caller's thread becomes the engine thread (runner, store, sampler); the
 * transport thread owns the router link, the connections to decode workers and every shipment. They share
 * only mail.
 *
 * What a request goes through: PREFILL arrives and the prompt is matched with this worker's prefix cache. Pages
 * that only the decode worker has are pulled and checked; pages that only this worker has are shipped from its
 * cache. The other tokens are computed in chunks, shared with other requests, and shipped layer by layer. Then
 * flush, COMMIT (attempt, checksums, first token), PREFILLED. Every failure ends in one place: nothing more is
 * posted, what was posted is flushed or its endpoint is closed by force, then DRAINED (to decode worker and router)
 * or FAILED (to the router). prefill/shipment.h has the states.
 *
 * The rows take one of the paths of prefill/path.h: puts from the own arena (staging), copies into the decode
 * worker's arena where that is shared memory of this host (direct), puts from device memory (gpu). The path is
 * decided per connection and logged.
 *
 * It does not listen, does not retry (the router does) and keeps nothing on disk.
 */
#ifndef SL_PREFILL_PREFILL_H
#define SL_PREFILL_PREFILL_H

#include "worker/role.h"
#include "worker/setup.h"

typedef struct sl_prefill sl_prefill;

typedef struct sl_prefill_opts {
    sl_worker_role_opts role;
    int32_t chunk_tokens; /* per step, all requests together; <= the runner's max_step_tokens */
    int32_t max_requests;
    const char *backend; /* the runner's; a second instance copies rows to decode workers of this host */
    sl_backend_opts backend_opts;
    const sl_shipping
        *shipping;     /* NULL: auto. gpu is refused by sl_prefill_create where it is not possible */
    uint32_t drain_ms; /* how long posted puts may take to drain before the endpoint is closed by force */
    /* For tests: runs on the transport thread between taking the right to write directly and writing. */
    void (*direct_hook)(void *arg);
    void *direct_hook_arg;
} sl_prefill_opts;

/* Borrows runner, arena and strings. Errors as the transport's. */
sl_status sl_prefill_create(const sl_prefill_opts *opts, sl_prefill **out, sl_err *err);
/*
 * Serves until *stop is set (any thread or signal handler; looked at ten times a second) and the requests in
 * work are done, or at most drain_timeout_ms longer. SL_OK then; a negative status when the worker cannot go
 * on (refused by the router, device lost).
 */
sl_status sl_prefill_run(sl_prefill *p, const volatile int *stop, uint32_t drain_timeout_ms, sl_err *err);
void sl_prefill_destroy(sl_prefill *p);

typedef struct sl_prefill_counts {
    int32_t requests, pages_total, pages_free, pages_cached;         /* now; after run has returned */
    uint64_t tokens_computed, tokens_reused, tokens_pulled, damaged; /* damaged: pages of the own cache */
} sl_prefill_counts;

/* After run has returned (or before it was called). Also checks the store's invariants. */
sl_status sl_prefill_counts_get(const sl_prefill *p, sl_prefill_counts *out, sl_err *err);

/* The whole worker from a finished config: loads the model, makes arena and engine, serves. Blocks. */
sl_status sl_prefill_main(const sl_config *cfg, const sl_worker_launch *launch, const volatile int *stop,
                          sl_err *err);

#endif
