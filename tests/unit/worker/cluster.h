/*
 * A cluster in one process for protocol tests: prefill and decode workers on threads over loopback, fake
 * runners (or real engines, made by the caller), and a small router on the test's own thread that places,
 * retries, relays and keeps every token.
 *
 * This router is a test driver: it follows the protocol towards the workers and has no clients. A hook lets a test see
 * and swallow any message.
 */
#ifndef SL_TEST_CLUSTER_H
#define SL_TEST_CLUSTER_H

#include <check.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "decode/decode.h"
#include "model/sampler.h"
#include "prefill/prefill.h"
#include "tests/unit/worker/fake_runner.h"
#include "transport/loopback/loopback.h"

enum { MAX_WORKERS = 8, MAX_REQS = 1024, CLUSTER_PATIENCE = 8 };

typedef struct cluster cluster;

typedef struct cworker {
    cluster *c;
    int index;
    sl_role role;
    char name[32];
    sl_arena *arena;
    fake_runner *fake;
    sl_runner runner;
    sl_prefill *prefill;
    sl_decode *decode;
    pthread_t thread;
    bool running;
    volatile int stop;
    sl_status run_status;
    sl_err run_err;
    /* set by the test, read by the worker's transport thread */
    sl_loopback_faults faults;
    _Atomic int faults_change;         /* the hook sets `faults` as the default of new endpoints */
    _Atomic int broken;                /* the worker could not be created; run_err says why */
    _Atomic int ended;                 /* its engine thread has returned */
    _Atomic int kill;                  /* the hook kills the instance */
    _Atomic uint64_t device_bytes_put; /* of the instance, by the hook */
    /* used by the router */
    sl_tp_ep *ep;
    uint32_t id; /* worker id of the current session, 0: not joined */
    uint64_t epoch;
    char listen[128];
    bool refused, down;
    char refuse_reason[400];
    sl_msg_load load;
    uint64_t kv_events, kv_stored, kv_removed;
} cworker;

typedef enum {
    REQ_NEW,
    REQ_RESERVING,
    REQ_PREFILLING,
    REQ_DECODING,
    REQ_DONE,
    REQ_FAILED,
    REQ_ABORTED
} req_state;

typedef struct creq {
    uint64_t rid;
    uint32_t attempt;
    req_state state;
    int32_t *tokens;
    size_t n_tokens, n_prompt;
    /* tokens[n_tokens..n_sent) came once and must come again; they were not safe when damage was found */
    size_t n_sent;
    sl_sampling sampling;
    int prefill, decode; /* the wanted worker, -1: any; while placed: the worker in use */
    int use_prefill, use_decode;
    bool prefilled, prefill_sent;
    int attempts, max_attempts, exhausted, retractions;
    int repeated; /* tokens that came again and were equal; one that differs fails the request with DATA_LOSS */
    sl_status status; /* of the last failure */
    char reason[400];
    uint32_t cached_tokens, matched_pages;
    sl_key seed;              /* of its page keys */
    int source, source_pages; /* decode worker that RESERVE names as having these pages; -1: none */
    uint64_t source_epoch_off;
    uint8_t finish;
    int32_t matched_stop;
    uint64_t retry_ns;
    sl_msg_token last;
    bool got_drained_p, got_drained_d;
} creq;

/* Times of the fake runners and of the workers. */
typedef struct cluster_times {
    uint32_t prefill_layer_us, decode_layer_us, drain_ms, quarantine_ms, deadline_ms, pull_timeout_ms;
    uint32_t leave_ms;      /* drain_timeout_ms of the workers: one that was killed waits so long */
    uint32_t dead_after_ms; /* value that the router sends in WELCOME; 0: 3000 */
} cluster_times;

typedef struct cluster_opts {
    int n_prefill, n_decode, prefill_pages, decode_pages, layers, indexers;
    sl_layout prefill_layout, decode_layout;
    const sl_layout *second_decode_layout; /* of decode/1; NULL: decode_layout */
    const char *transport;                 /* NULL: loopback. Faults and kills need loopback */
    bool pull;                             /* decode workers lend and pull pages */
    bool no_prefill_cache; /* prefill workers keep no pages, so what is cached comes from decode workers */
    sl_row_format rows, prefill_rows; /* prefill_rows: only when prefill_differs */
    bool prefill_differs;
    sl_index_format index;
    int vocab, chunk_tokens, max_requests, max_batch, max_waiting, max_seqs, max_context;
    cluster_times times;
    bool no_verify;
    sl_cfg_verify verify; /* kvstore.verify; always by default */
    /* cluster_defaults: staging, or the one that SL_SHIP in the environment names. */
    const sl_shipping *shipping;
    sl_loopback_faults prefill_faults;
    bool decode_ships_by_staging;   /* independent of `shipping` */
    void (*direct_hook)(void *arg); /* gets the cworker */
    /*
     * If set, replaces the fake runners: makes w->runner for w->arena on the worker's thread; the next one destroys it.
     */
    bool (*make_runner)(cworker *w);
    void (*drop_runner)(cworker *w);
    cluster *second; /* a second router of the same workers, made by cluster_start; not started otherwise */
    /* on_msg of the second router at first */
    bool (*second_refuses)(cluster *c, cworker *w, const sl_msg *m);
    int64_t row_pages;    /* adaptive: device row pages of a decode worker */
    int32_t draft_tokens; /* as in sl_decode_opts */
    sl_geometry geometry; /* used when n_layers != 0, else made from the fields above */
    int32_t eos;
} cluster_opts;

struct cluster {
    cluster_opts o;
    char fabric[64], address[SL_TP_ADDRESS_MAX];
    sl_transport *tp;
    cworker w[MAX_WORKERS];
    int n;
    creq req[MAX_REQS];
    int n_req;
    uint32_t next_id;
    uint64_t next_beat_ns, tokens_seen;
    uint64_t spilled; /* by decode workers that have ended */
    /* Pages that workers which have ended found damaged in their stores. */
    uint64_t damaged_prefill, damaged_decode;
    uint64_t tokens_pulled;               /* by prefill workers that have ended */
    uint64_t pulled, pull_bytes, pull_ns; /* pages, by decode workers that have ended */
    int leases_left;                      /* that they held, or had lent, at their end */
    bool auto_place, silent;
    bool keeps; /* workers that leave serve on: DRAIN is not answered */
    /* True: the message is swallowed. */
    bool (*on_msg)(cluster *c, cworker *w, const sl_msg *m);
    void *user;
    sl_tp_ep *greeting; /* for on_msg: where HELLO came */
};

cluster_opts cluster_defaults(void);
void cluster_start(cluster *c, const cluster_opts *o);
/* Stops the workers (they drain), checks that they have given everything back, frees everything. */
void cluster_stop(cluster *c);
/*
 * Polls until cond is true of c and of its second router, which is polled too (as it is by every function with a
 * second); fails the test after `seconds`, the limit for an idle machine, times CLUSTER_PATIENCE: limits end what
 * hangs, they do not judge speed.
 */
void cluster_until(cluster *c, bool (*cond)(cluster *c), int seconds, const char *what);
void cluster_poll(cluster *c, int ms);
/* Polls for ms. */
void cluster_run_ms(cluster *c, int ms);
cworker *cluster_worker(cluster *c, sl_role role, int index);
void cworker_start(cluster *c, sl_role role, int index);
/* Behaves as if the process had died. After it has returned, nothing that the worker does reaches another process. */
void cworker_kill(cworker *w);
void cworker_join(cworker *w); /* after kill: joins and frees, so that it may be started again */

creq *cluster_request(cluster *c, const int32_t *prompt, int n_prompt, int max_tokens);
/* A request with a prompt of n tokens that follow from the seed. */
creq *cluster_ask(cluster *c, int n, int max_tokens, uint64_t seed);
void cluster_abort(cluster *c, creq *r, sl_status why);
bool cluster_idle(cluster *c); /* every request has ended */
void cluster_check_stream(cluster *c, const creq *r);
/* cluster_check_stream for every request that the test has not aborted; each must be done. */
void cluster_check_streams(cluster *c);
/* cluster_until every request has ended, then cluster_check_streams. */
void cluster_finish(cluster *c, int seconds);
void cluster_make_prompt(int32_t *out, int n, int vocab, uint64_t seed);
void cluster_send(cworker *w, const sl_msg *m);
/* Behaves as if the router's host lost its network for a moment: the connection of every worker breaks. */
void cluster_cut_all(cluster *c);
/* Sets the default faults of endpoints that the worker makes after the next iteration of its loop. */
void cworker_faults(cworker *w, sl_loopback_faults f);
/* Waits until a decode worker reports that everything but `held` pages is free or cached. */
void cluster_wait_pages(cluster *c, int held);

/* ---- shared by the files of the test cluster ---- */

/* Listens at c->address on c->fabric; with an empty address at any address. */
void cluster_router_open(cluster *c);
/* As if the router's process died: its connections are lost, its requests and what it knew of workers too. It may be
 * opened again. */
void cluster_router_kill(cluster *c);
/* The router regards the worker as dead: every request on it is started again. */
void cluster_worker_lost(cluster *c, cworker *w);

#endif
