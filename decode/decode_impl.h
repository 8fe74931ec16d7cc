/*
 * The decode worker's data. Everything about requests belongs to the engine thread; connections belong to the
 * transport thread; check jobs travel to the checker thread and back.
 */
#ifndef SL_DECODE_DECODE_IMPL_H
#define SL_DECODE_DECODE_IMPL_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/log.h"
#include "decode/decode.h"
#include "kvstore/store.h"
#include "model/sampler.h"
#include "worker/direct.h"
#include "worker/token.h"

enum {
    /* transport -> engine */
    DM_MSG = 1,     /* sl_wmsg from the router (ep_serial 0) or from a writer (worker_id) */
    DM_CONNECTED,   /* sl_fence: that writer got the key */
    DM_FENCED,      /* sl_fence: that writer has no connection any more */
    DM_ROUTER_UP,   /* sl_note */
    DM_ROUTER_DOWN, /* sl_note */
    DM_FATAL,
    /* checker -> engine */
    DM_CHECKED, /* sl_check */
    /* engine -> transport */
    DM_FENCE, /* sl_fence: close that writer's connection, answer DM_FENCED */
    /* engine -> checker */
    DM_CHECK,
    DM_CHECKER_STOP,
};

typedef enum {
    TICKET_LANDING,
    TICKET_CHECKING,
    TICKET_WAITING,
    TICKET_RUNNING,
    TICKET_QUARANTINE
} ticket_state;

typedef struct sl_ticket {
    struct sl_ticket *next, *prev; /* all tickets, oldest first */
    ticket_state state;
    sl_wmsg *m; /* RESERVE */
    uint64_t rid, number, deadline_ns, fence_ns, reserved_ns, order;
    uint32_t attempt, writer;
    sl_status abort_status; /* why it is in quarantine */
    bool drained;           /* its writer writes no more */
    bool dead;              /* goes as soon as no check is on its way */
    int checks;             /* on their way */
    sl_lease *lease;
    sl_sampling sampling;
    int32_t *tokens; /* prompt + produced */
    int32_t n_tokens, cap, n_prompt;
    uint32_t cached_tokens;
    sl_msg_token first;
    void *seq;
    int32_t seq_pages;
    bool resident; /* all its rows are on the device, by choice (residency.c) */
} sl_ticket;

/* Checksums of pages, computed on the checker thread. The ticket stays alive meanwhile. */
typedef struct sl_check {
    sl_wmail mail;
    sl_ticket *ticket;
    sl_wmsg *m; /* COMMIT or PAGES_ASK */
    int32_t *pages;
    int32_t n_pages, last_tokens; /* tokens in the last page */
    uint32_t *crc;                /* out, for PAGES_ASK */
    size_t n_crc, bad;
} sl_check;

typedef struct sl_fence {
    sl_wmail mail;
    uint32_t writer;
} sl_fence;

typedef struct sl_note {
    sl_wmail mail;
} sl_note;

/* A writer's connection; transport thread. */
typedef struct sl_wpeer {
    struct sl_wpeer *next;
    sl_wep *ep;         /* NULL: closed, but its direct writes are not known to have ended */
    uint32_t worker_id; /* 0 before PEER_HELLO */
    int slot;           /* its right to write directly, -1: none */
    uint64_t hello_deadline_ns;
    char address[SL_TP_ADDRESS_MAX];
} sl_wpeer;

enum { MAX_BANS = 64, MAX_WRITERS = 1024 };

struct sl_decode {
    sl_decode_opts o;
    sl_msg_hello hello;
    sl_wr geometry;
    const sl_geometry *geo;
    sl_worker *worker;
    sl_mailbox *inbox, *checker_inbox;
    pthread_t checker;
    bool checker_runs;
    sl_wmail checker_stop;

    /* engine thread */
    sl_store *store;
    sl_sampler *sampler;
    sl_ticket *tickets, *tickets_tail;
    int32_t n_tickets, n_running;
    sl_ticket **batch; /* [max_batch] of the current step */
    sl_step_item *items;
    uint32_t connected[MAX_WRITERS]; /* writers, as far as the mail tells */
    uint32_t n_connected;
    uint64_t next_number, next_order;
    bool draining, fatal;
    sl_status fatal_status;
    char fatal_reason[400];
    uint64_t steps, tokens, stale, corrupt, retracted, spilled, fences;
    sl_wr kv_stored, kv_removed;
    bool kv_cleared, router_up;
    uint64_t kv_sequence;
    uint64_t store_queries, store_hits, store_evictions;
    sl_engine_stats engine_seen;
    uint64_t engine_seen_ns;
    sl_layer_stats *layers_seen, *layers_now;

    /* transport thread */
    sl_wpeer *peers;
    sl_direct_host *direct; /* NULL: nobody writes directly */
    uint32_t bans[MAX_BANS];
    uint32_t n_bans;
    sl_wmail fatal_mail;

    struct {
        _Atomic uint32_t running, waiting, free_pages, cached_pages, draining;
        _Atomic uint64_t queued_tokens, tokens_done, hits, misses, swap_bytes;
    } load;
    struct {
        sl_counter *stale, *refused, *t_committed, *t_aborted, *t_expired, *t_refused, *checksum,
            *retractions, *spills, *tokens, *queries, *hits, *evictions, *swap_bytes, *swap_exposed,
            *swap_hidden;
        sl_counter **layer_hit, **layer_miss, **layer_evict;
        sl_gauge *running, *waiting, *resident, *v_running, *v_waiting, *usage, *pages_free, *pages_cached,
            *pages_active, *pages_landing, *reserved, *filling, *quarantined, *device_used, *device_total;
        sl_histogram *step, *batch;
    } c;
};

/* ticket.c */
void sl_tickets_msg(sl_decode *d, sl_wmsg *m);
void sl_tickets_checked(sl_decode *d, sl_check *c);
void sl_tickets_connected(sl_decode *d, uint32_t writer);
void sl_tickets_fenced(sl_decode *d, uint32_t writer);
void sl_tickets_router_down(sl_decode *d);
/* Deadlines; returns the next one. */
uint64_t sl_tickets_tick(sl_decode *d, uint64_t now);
/* Ends a ticket whose writer is done: closes the sequence, gives pages back (full ones stay cached if keep).
 */
void sl_ticket_free(sl_decode *d, sl_ticket *t, bool keep);
void sl_ticket_failed(sl_decode *d, sl_ticket *t, sl_status st, bool retryable, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));

/* batch.c */
void sl_batch_admit(sl_decode *d);
/* The first token of a ticket that has just been verified. */
void sl_batch_first_token(sl_decode *d, sl_ticket *t);
/* One step; false: nothing runs. A negative *st is fatal. */
bool sl_batch_step(sl_decode *d, sl_status *st, sl_err *err);

/* residency.c */
/* Opens the sequence of t, whose lease has `pages` pages, where there is room for it; sets t->seq. Errors as
 * the runner's open. May spill, and end, other tickets. */
sl_status sl_residency_open(sl_decode *d, sl_ticket *t, int32_t pages, sl_err *err);
/* The device has no page for t's next row: spills the longest resident request, perhaps t, if t is resident.
 * True: try again, unless t has gone (its seq is closed). */
bool sl_residency_relieve(sl_decode *d, const sl_ticket *t);
int32_t sl_residency_count(const sl_decode *d);

/* report.c */
void sl_report_event(void *ctx, sl_store_event ev, sl_key parent, sl_key key);
void sl_report_router_up(sl_decode *d);
void sl_report_kv_events(sl_decode *d);
void sl_report_load(sl_decode *d);
void sl_report_metrics_find(sl_decode *d, sl_metrics *m);

/* checker.c */
sl_status sl_checker_start(sl_decode *d, sl_err *err);
void sl_checker_stop(sl_decode *d);
/* pages are copied. False: out of memory. Takes m over on success. */
bool sl_checker_post(sl_decode *d, sl_ticket *t, sl_wmsg *m, const int32_t *pages, int32_t n,
                     int32_t last_tokens);
void sl_check_free(sl_check *c);

/* wpeer.c, transport thread */
void sl_wpeer_accepted(sl_decode *d, sl_wep *ep, const char *address);
void sl_wpeer_msg(sl_decode *d, sl_wep *ep, sl_wmsg *m);
void sl_wpeer_failed(sl_decode *d, sl_wep *ep, sl_status st, const char *why);
void sl_wpeer_closed(sl_decode *d, sl_wep *ep);
void sl_wpeer_fence(sl_decode *d, sl_fence *f);
void sl_wpeer_router_down(sl_decode *d);
uint64_t sl_wpeer_tick(sl_decode *d, uint64_t now);

#endif
