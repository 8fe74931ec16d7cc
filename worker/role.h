/*
 * Role: the part that prefill and decode workers have in common in addition to the worker core (worker/worker.h): the
 * HELLO, the host store, the sampler, the engine thread's loop with draining, the load report, and the metrics of the
 * host store.
 *
 * A role embeds one sl_worker_role in its own data and passes its own work to the loop as a table of functions
 * (sl_worker_engine). The role itself has its requests, its step, its connections and its own metrics.
 *
 * Threads: each field belongs to the thread that its group names; the functions are grouped by the thread that calls
 * them. Ownership: init creates everything; close frees everything and is called after the worker core has stopped.
 */
#ifndef SL_WORKER_ROLE_H
#define SL_WORKER_ROLE_H

#include <stdatomic.h>

#include "kvstore/arena.h"
#include "kvstore/store.h"
#include "model/sampler.h"
#include "worker/checker.h"
#include "worker/constraint.h"
#include "worker/group.h"
#include "worker/runner.h"
#include "worker/worker.h"

/* The options that both roles have. Everything that is pointed to is borrowed until close. */
typedef struct sl_worker_role_opts {
    sl_worker_opts worker; /* the role fills in memory, hello and listens */
    const char *name, *model, *cluster_tag, *metrics_address;
    const sl_runner *runner;
    uint32_t bits; /* of the rows that it makes: sl_backend_bits() */
    sl_arena *arena;
    sl_row_sums *row_sums; /* of the arena; NULL: rows have no checksums */
    const char *model_dir; /* whose tokenizer constraints use; NULL: there are none */
    const int32_t *eos_ids;
    int32_t n_eos;
    bool prefix_cache, verify_checksums;
    sl_cfg_verify verify;       /* of the pages of the store, kvstore.verify */
    uint64_t patrol_rate;       /* decode: kvstore.patrol_rate; 0: 250 MiB */
    const sl_quota_opts *quota; /* of the store; NULL: none */
} sl_worker_role_opts;

/* The histograms of the ages at which pages of one tier are evicted; NULL without metrics. */
typedef struct sl_worker_ages {
    sl_histogram *unused, *age;
} sl_worker_ages;

/* tier: "host", "disk". */
sl_worker_ages sl_worker_ages_find(sl_metrics *m, const char *tier);
/* sl_store_evicted_fn and sl_tier_opts.aged, with an sl_worker_ages as ctx. Any thread. */
void sl_worker_ages_add(void *ctx, double unused_s, double age_s);

/* The load that heartbeats report: written by the engine thread, read by the transport thread. */
typedef struct sl_worker_load {
    _Atomic uint64_t turn_ns; /* when the engine thread's loop began its last iteration */
    _Atomic uint32_t running, waiting, free_pages, cached_pages, leaving;
    _Atomic uint64_t queued_tokens, tokens_done, hits, misses, swap_bytes;
    _Atomic uint64_t prefill_rate, disk_rate, shared_rate, peer_rate; /* as in sl_msg_load */
} sl_worker_load;

typedef struct sl_worker_role {
    /* constant after sl_worker_role_init */
    sl_msg_hello hello;
    sl_wr geometry; /* the bytes that hello.id.geometry points to */
    sl_mailbox *inbox;
    sl_wgroup *group; /* NULL: this worker is no rank of a group */
    uint32_t total_pages;
    sl_checker checker; /* opened by init; the role starts and stops it */

    /* engine thread */
    sl_store *store;
    sl_sampler *sampler;
    sl_constraints *constraints;
    bool leaving; /* it was told to stop, and the routers know */
    /* it leaves, and no router needs it any more: it takes no new work and gives back what waits */
    bool draining;
    bool failed;
    bool joined; /* of a group: it is whole, and the routers are joined */
    int ending;  /* of a group: ends of sessions of which requests may still be here, because it broke */
    sl_store_stats seen; /* the values that were already added to the counters below */
    sl_worker_ages ages; /* of pages that the store has evicted */
    struct {
        sl_counter *queries, *hits, *evictions, *damaged_reused, *damaged_running, *damaged_verified;
        sl_gauge *running, *waiting, *usage, *pages_free, *pages_cached, *pages_active;
    } metrics;

    /* transport thread; the engine thread reads the cause after it has received fatal_mail */
    sl_wmail fatal_mail;
    sl_status fatal_status;
    char fatal_reason[400];

    sl_worker_load load;
} sl_worker_role;

/*
 * Makes the store (event: see kvstore/store.h, may be NULL), the sampler, the mailbox of the engine thread and the
 * checker, whose jobs go back to that mailbox as mail of the kind checked_kind; fills the HELLO (max_batch: requests
 * processed concurrently) and finds the metrics. sl_worker_role_close() must be called after a failure, too.
 */
sl_status sl_worker_role_init(sl_worker_role *r, sl_role role, const sl_worker_role_opts *o,
                              int32_t max_batch, int checked_kind, sl_store_event_fn *event, void *event_ctx,
                              sl_err *err);
/* r may be zeroed. */
void sl_worker_role_close(sl_worker_role *r);

/* Options of the worker core: the caller's, with the arena as registered memory and the HELLO filled in. */
sl_worker_opts sl_worker_role_core_opts(const sl_worker_role *r, const sl_worker_role_opts *o, bool listens);

/* ---- transport thread ---- */

/* For sl_worker_calls.fatal: ends the loop of the engine thread with this cause. Only the first call has an effect. */
void sl_worker_role_fatal(sl_worker_role *r, sl_status st, const char *why);
/* For sl_worker_calls.load. */
void sl_worker_role_read_load(sl_worker_role *r, sl_msg_load *out);

/* ---- engine thread ---- */

/* The next mail for the role, or NULL. The fatal mail of sl_worker_role is handled here and not returned. */
sl_wmail *sl_worker_role_take(sl_worker_role *r);

typedef struct sl_worker_report {
    uint32_t running, waiting; /* requests */
    uint64_t queued_tokens;    /* tokens of prompts that are not computed, or have not arrived, yet */
    int32_t landing_pages;     /* pages in use whose rows have not all arrived yet */
} sl_worker_report;

/* Publishes the load, and the load and the state of the store as metrics. */
void sl_worker_role_report(sl_worker_role *r, const sl_worker_report *now);

/* The functions of the role that the loop calls. */
typedef struct sl_worker_engine {
    void *arg;
    void (*mail)(void *arg, sl_wmail *m);      /* owns m */
    uint64_t (*tick)(void *arg, uint64_t now); /* handles deadlines; the next one (ns), UINT64_MAX: none */
    bool (*idle)(const void *arg);             /* true when the role has no request */
    /* Admits requests and computes one step. *worked: whether there was a step to compute. A failure is fatal. */
    sl_status (*step)(void *arg, bool *worked, sl_err *err);
    void (*report)(void *arg); /* calls sl_worker_role_report() */
    int wake_fd;               /* readable when there is something to do for `tick`; -1: none */
} sl_worker_engine;

/*
 * Serves until *stop is set (by any thread or signal handler; it is read ten times per second), then tells the routers
 * DRAIN and serves until each of them has answered LEAVE or is gone, finishes its requests, and returns SL_OK; all this
 * within at most drain_timeout_ms. A negative status when the worker cannot continue
 * (refused by the router, device lost).
 */
sl_status sl_worker_role_run(sl_worker_role *r, sl_worker *w, const sl_worker_engine *e,
                             const volatile int *stop, uint32_t drain_timeout_ms, sl_err *err);

#endif
