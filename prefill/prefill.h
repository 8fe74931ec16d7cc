/*
 * Prefill worker: computes prompts chunk by chunk and writes their rows and index keys into a decode worker's arena
 * while the next layer is computed.
 *
 * There are two threads (worker/worker.h): the caller's thread becomes the engine thread (runner, store, sampler); the
 * transport thread owns the router link, the connections to decode workers and every shipment. They share only mail.
 *
 * The steps of a request: PREFILL arrives, and the prompt is matched with this worker's prefix cache. Pages that only
 * the decode worker has are pulled and checked; pages that only this worker has are shipped from its cache. The other
 * tokens are computed in chunks, which are shared with other requests, and shipped layer by layer. Then follow a flush,
 * COMMIT (attempt, checksums, first token) and PREFILLED. All failures are handled in the same way: nothing more is
 * posted, the operations that were posted are flushed, or their endpoint is closed by force, and then DRAINED is sent
 * to decode worker and router, or FAILED to the router. prefill/shipment.h has the states.
 *
 * The rows use one of the paths of prefill/path.h: puts from the own arena (staging), copies into the decode worker's
 * arena if that is shared memory of this host (direct), or puts from device memory (gpu). The path is chosen for each
 * connection and logged.
 *
 * A prefill worker does not listen, does not retry (the router does) and stores nothing on disk.
 */
#ifndef SL_PREFILL_PREFILL_H
#define SL_PREFILL_PREFILL_H

#include "worker/role.h"
#include "worker/setup.h"

typedef struct sl_prefill sl_prefill;

typedef struct sl_prefill_opts {
    sl_worker_role_opts role;
    /* most tokens of a step, of all requests together; at most the runner's max_step_tokens */
    int32_t chunk_tokens;
    bool automatic;          /* as in sl_prompt_queue_opts */
    int32_t max_step_ms;     /* the time of a step that chunk_tokens is reduced for; 0: no bound */
    int32_t short_step_ms;   /* the same while short prompts arrive (order.h); 0: no bound */
    int32_t min_step_tokens; /* which a step computes even if they take longer; 0 counts as 1 */
    int32_t max_requests;
    uint64_t pull_chunk_bytes; /* of the pages that a request pulls, see shipment.h; 0: 32 MiB */
    const char *backend; /* of the runner; a second instance copies rows to decode workers of this host */
    sl_backend_opts backend_opts;
    const sl_shipping *shipping; /* NULL: auto. sl_prefill_create() fails with gpu if that is not possible */
    uint32_t drain_ms; /* time that posted puts have to drain before the endpoint is closed by force */
    /* For tests: runs on the transport thread after it has taken the right to write directly and before it writes. */
    void (*direct_hook)(void *arg);
    void *direct_hook_arg;
} sl_prefill_opts;

/* Borrows runner, arena and strings. The errors are those of the transport. */
sl_status sl_prefill_create(const sl_prefill_opts *opts, sl_prefill **out, sl_err *err);
/*
 * Serves until *stop is set (by any thread or signal handler; it is read ten times per second), then finishes its
 * requests within at most drain_timeout_ms, and returns SL_OK. A negative status when the worker cannot continue
 * (refused by the router, device lost).
 */
sl_status sl_prefill_run(sl_prefill *p, const volatile int *stop, uint32_t drain_timeout_ms, sl_err *err);
void sl_prefill_destroy(sl_prefill *p);

typedef struct sl_prefill_counts {
    int32_t requests, pages_total, pages_free, pages_cached; /* now */
    uint64_t tokens_computed, tokens_reused, tokens_pulled;
    uint64_t damaged; /* pages of the own cache that were found damaged */
} sl_prefill_counts;

/* To be called before run, or after it has returned. Also checks the invariants of the store. */
sl_status sl_prefill_counts_get(const sl_prefill *p, sl_prefill_counts *out, sl_err *err);

/* Runs a whole worker from a complete configuration: loads the model, makes arena and engine, and serves. Blocks. */
sl_status sl_prefill_main(const sl_config *cfg, const sl_worker_launch *launch, const volatile int *stop,
                          sl_err *err);

#endif
