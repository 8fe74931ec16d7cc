/*
 * The data of a decode worker, grouped by the thread that owns it. Requests belong to the engine thread, connections to
 * the transport thread; check jobs go to the checker thread (worker/checker.h) by mail and come back.
 */
#ifndef SL_DECODE_DECODE_IMPL_H
#define SL_DECODE_DECODE_IMPL_H

#include "base/log.h"
#include "decode/decode.h"
#include "decode/pull.h"
#include "decode/stall.h"
#include "decode/told.h"
#include "kvstore/cascade.h"
#include "worker/direct.h"
#include "worker/pace.h"
#include "worker/token.h"

enum {
    /* transport -> engine */
    DM_MSG = 1,     /* sl_wmsg from a router, or from a writer (worker_id) */
    DM_CONNECTED,   /* sl_fence: this writer has received the memory key */
    DM_FENCED,      /* sl_fence: nothing that this writer sends can reach the arena any more */
    DM_ROUTER_UP,   /* sl_note */
    DM_ROUTER_DOWN, /* sl_note */
    DM_READER_GONE, /* sl_reader_mail: no get of this connection can read the arena any more */
    DM_PULL_ASKED,  /* sl_pull: the lease, or why there is none (pull.h) */
    DM_PULL_GOT,    /* sl_pull_get: its pages are here, or why not */
    /* checker -> engine */
    DM_CHECKED, /* sl_check */
    /* engine -> transport */
    DM_FENCE,        /* sl_fence: close the connections of this writer, then answer DM_FENCED */
    DM_READER_FENCE, /* sl_reader_mail: close this connection, then answer DM_READER_GONE */
    DM_PULL_ASK,     /* sl_pull: answered by DM_PULL_ASKED */
    DM_PULL_GET,     /* sl_pull_get: answered by DM_PULL_GOT */
    DM_PULL_CANCEL,  /* sl_pull_cancel */
};

/*
 * A ticket is one attempt of a request on this worker. Its state machine runs on the engine thread alone:
 *
 *   state       entered when                            left when                                  deadline
 *   ----------  --------------------------------------  -----------------------------------------  ---------------
 *   LANDING     RESERVE is granted                      COMMIT -> CHECKING                         deadline_ns
 *   PROMPT      RESERVE without a writer is granted     its prompt is computed here -> CHECKING    none
 *   CHECKING    COMMIT arrives, or the prompt is        the checksums are right, and the pages of
 *               computed                                the prefix are undamaged -> WAITING        none
 *   WAITING     the rows are verified                   a slot is free -> RUNNING                  none
 *   RUNNING     its sequence is open                    DONE or retraction -> gone                 none
 *   QUARANTINE  it has ended, its writer may not have   DRAINED, COMMIT or fence -> gone           fence_ns
 *   ENDING      it has ended, a check reads its pages   the last check is back -> gone             none
 *
 * ABORT, a failure or the loss of its router end it in every state. All of them call sl_ticket_end(): LANDING
 * becomes QUARANTINE unless its writer has drained, a ticket with checks in flight becomes ENDING, every other is freed
 * at once. At deadline_ns the request has failed; at fence_ns the transport thread is asked to close the writer's
 * connection, and asked again while there is no answer. CHECKING needs no deadline: the checker always answers. PROMPT,
 * WAITING and RUNNING have none here: the router watches them.
 */
typedef enum {
    TICKET_LANDING,
    TICKET_PROMPT,
    TICKET_CHECKING,
    TICKET_WAITING,
    TICKET_RUNNING,
    TICKET_QUARANTINE,
    TICKET_ENDING,
    TICKET_STATES
} ticket_state;

typedef struct sl_ticket {
    /* constant */
    struct sl_ticket *next, *prev; /* in the list of all tickets */
    sl_wmsg *m;                    /* RESERVE */
    uint64_t rid, number, reserved_ns;
    uint32_t attempt;
    uint32_t router; /* the session in which RESERVE came; rid and writer are that router's */
    uint32_t writer;
    sl_lease *lease;
    sl_sampling sampling;
    int32_t n_prompt;

    ticket_state state;
    int checks;                     /* jobs in flight at the checker, which read the pages */
    bool unverified;                /* the matched pages of its prefix are still to be verified */
    bool drained;                   /* LANDING: its writer writes no more */
    uint64_t deadline_ns, fence_ns; /* LANDING; QUARANTINE */
    sl_status abort_status;         /* QUARANTINE: why it has ended */

    /* PROMPT; seq is NULL until it has a place. Its prompt is computed up to pos; the pages before start were matched */
    int32_t pos, start;
    int64_t passed; /* worker/order.h */
    uint64_t started_ns;

    /* from CHECKING on */
    bool arrived; /* the pages that were shipped are right, or were computed here */
    sl_msg_token first;
    uint32_t cached_tokens;
    /* from WAITING on */
    uint64_t order;  /* in which they were verified */
    int32_t *tokens; /* prompt + produced */
    int32_t n_tokens, cap;
    int32_t sealed; /* leading full pages whose checksums are kept; 0 if none are kept (kvstore.verify) */
    /* RUNNING, and PROMPT until it joins the batch */
    int32_t patrol_at; /* the next page to verify */
    uint64_t patrol_ns;
    void *seq;
    int32_t seq_pages;
    bool resident; /* residency.c has decided that all its rows are on the device */
} sl_ticket;

/* Tokens [first, end) of a prompt, which a step computes. */
typedef struct sl_prompt_part {
    sl_ticket *ticket;
    int32_t first, end;
} sl_prompt_part;

enum { SL_PROMPT_PARTS = 1024 }; /* the largest prefill.max_requests */

/* A writer as one router names it. A prefill worker that serves several routers is a writer of each, with a connection
 * for each, so that a fence or the loss of a router touches requests of that router only. */
typedef struct sl_writer {
    uint32_t router, id;
} sl_writer;

typedef struct sl_fence {
    sl_wmail mail;
    sl_writer writer;
} sl_fence;

typedef struct sl_note {
    sl_wmail mail;
    uint32_t router;
} sl_note;

/* A request of a router that was refused pages (claims.c). */
typedef struct sl_claim {
    bool made;
    uint64_t rid, asked_ns; /* asked_ns: its last RESERVE */
    uint32_t passed;        /* tickets of other routers that were granted since */
    uint64_t due_ns;        /* from when on pages are set aside for it; 0: not yet */
} sl_claim;

/* Metrics of one tenant in one tier (report_quota.c); zero until it is reported first. */
typedef struct sl_decode_tenant {
    sl_gauge *pages;
    sl_counter *evicted[SL_QUOTA_REASONS];
    uint64_t seen[SL_QUOTA_REASONS];
} sl_decode_tenant;

/* A router's session, as the engine thread knows it. */
typedef struct sl_decode_router {
    uint32_t session;
    sl_claim claim;
    uint64_t place_asked_ns; /* when its last RESERVE was refused because no place was free; 0: never */
    uint64_t kv_sequence;    /* of the last KV_EVENTS */
    /* the list of the pages on disk, with which the session begins (holdings.c) */
    bool listing;
    int list_tier;
    uint64_t list_cursor;
} sl_decode_router;

/* The connection of a reader (lend.c). */
typedef struct sl_reader_mail {
    sl_wmail mail;
    uint32_t ep_serial;
} sl_reader_mail;

typedef struct sl_pull_cancel {
    sl_wmail mail;
    uint64_t id;
} sl_pull_cancel;

/* The first member of what an endpoint's user pointer points to. */
typedef enum { DPEER_ACCEPTED, DPEER_OWNER } sl_dpeer_kind;

/* The connection of a writer, or of a reader; transport thread. */
typedef struct sl_wpeer {
    sl_dpeer_kind kind;
    bool reader; /* known from PEER_HELLO on */
    struct sl_wpeer *next;
    sl_wep *ep;       /* NULL: closed, but its direct writes may not have ended */
    sl_writer writer; /* id 0: before PEER_HELLO */
    int slot;         /* entry of its right to write directly, -1: none */
    uint64_t hello_deadline_ns;
    char address[SL_TP_ADDRESS_MAX];
} sl_wpeer;

enum { MAX_BANS = 64, MAX_WRITERS = 1024 };

/* A lease on pages of this worker that another one reads (lend.c). */
typedef struct sl_lent sl_lent;
typedef struct sl_lend_wait sl_lend_wait; /* a question for such pages that waits for a load */
/* A RESERVE that waits for pages of a storage tier (loading.c). */
typedef struct sl_loading sl_loading;
/* A request of which the router has announced that it will come (prefetch.c), and how that ended. */
typedef struct sl_prefetch sl_prefetch;
typedef enum {
    SL_PREFETCH_IN_TIME,   /* its load had ended when RESERVE came */
    SL_PREFETCH_LATE,      /* it had not */
    SL_PREFETCH_CANCELLED, /* there was no RESERVE */
    SL_PREFETCH_SKIPPED,   /* it exceeded the budget */
    SL_PREFETCH_ENDS
} sl_prefetch_end;
extern const char *const sl_prefetch_end_names[SL_PREFETCH_ENDS];

/* A job that goes over all pages of the cache (audit.c). */
typedef struct sl_audit sl_audit;

/* Tag of the checker's jobs that belong to the cascade, to leases and to an audit; those of tickets have 0, or what damage.c
 * says. */
enum { CHECK_CASCADE = 2, CHECK_LEND, CHECK_AUDIT };

struct sl_decode {
    /* constant once the worker core runs */
    sl_decode_opts o;
    const sl_geometry *geo;
    sl_worker *worker;

    sl_worker_role role; /* shared with prefill workers; its fields are grouped by thread as well */

    /* engine thread alone */
    struct {
        sl_ticket *tickets, *tickets_tail; /* all, oldest first */
        int32_t n_tickets, n_running;
        uint64_t next_number, next_order;
        sl_ticket **batch; /* [max_batch] tickets of the current step; valid during a step only */
        sl_step_item
            *items; /* [max_batch + prompts.max_requests]: those of the batch, then the parts of prompts */
        struct {    /* of role both (prompts.c) */
            sl_prompt_part *part; /* [max_requests]; n_parts of the current step */
            int32_t n_parts;
            sl_prefill_turn *turn; /* [max_requests] */
            sl_pace pace;
            sl_pace_rate rate;
            sl_prefill_bound bound;
            sl_stall stall;
        } prompts;
        /* writers with a connection, as the transport thread has reported */
        sl_writer connected[MAX_WRITERS];
        uint32_t n_connected;
        sl_decode_router routers[SL_WORKER_ROUTERS_MAX];
        int n_routers;
        sl_cascade *cascade; /* NULL: there is no storage tier */
        sl_loading *loading;
        int32_t n_loading;
        sl_prefetch *prefetches;
        int32_t n_prefetches, prefetch_pages; /* prefetch_pages: of the budget */
        sl_key open_seed;                     /* of the pages that sl_publish_event() may tell everybody */
        sl_tier *pull;             /* the tier "workers", which belongs to the cascade; NULL: there is none */
        sl_pull_rate prefill_rate; /* tokens per second, from RESERVED to COMMIT (pull_cost.h) */
        sl_pull_stats pull_seen;   /* what the metrics contain already */
        sl_lent *lent;
        int32_t n_lent, lent_pages;
        sl_lend_wait *lend_waits;
        int32_t n_lend_waits;
        uint64_t lend_seen; /* sl_cascade_changes() when these questions were looked at last */
        sl_told told;       /* pages on disk that subscribers have been told of (publish.c) */
        sl_audit *audit;    /* the last one; NULL: there was none */
        struct {
            sl_wr stored, removed, tokens; /* not yet sent to the routers; encoded as in sl_msg_kv_events */
            bool cleared;
            uint32_t only; /* the session that is told; 0: every one */
        } kv;
        struct {
            sl_wr stored, removed;
        } disk_kv; /* of pages on disk, likewise */
        struct {
            uint64_t prefetches[SL_PREFETCH_ENDS];
            uint64_t steps, tokens, prompt_tokens, stale, corrupt, damaged, retracted, spilled, fences;
        } count;
        bool patrolling; /* a job of the patrol is at the checker */
        uint64_t patrol_ns;
        /* what the metrics contain already */
        sl_engine_stats engine_seen;
        uint64_t engine_seen_ns;
        sl_decode_tenant tenants[2][2 + SL_QUOTA_RULES]; /* host store, disk tier */
        sl_layer_stats *layers_seen, *layers_now;        /* [n_layers] */
        struct {
            sl_cascade_stats cascade;
            sl_tier_stats tier;
            sl_tier_state state; /* as logged last */
        } tiers_seen[SL_CASCADE_TIERS];
    } e;

    /* transport thread alone */
    struct {
        sl_wpeer *peers;
        sl_direct_host *direct; /* NULL: no writer writes directly. Made before the thread starts */
        sl_writer bans[MAX_BANS];
        uint32_t n_bans;
        sl_owner *owners;
    } t;

    /* metrics: handles, constant; safe from every thread */
    struct {
        sl_counter *stale, *refused, *t_committed, *t_aborted, *t_expired, *t_refused, *checksum,
            *retractions, *spills, *tokens, *tiles_read, *tiles_skipped, *swap_bytes, *swap_exposed,
            *swap_hidden;
        sl_counter *prefetches[SL_PREFETCH_ENDS];
        sl_counter **layer_hit, **layer_miss, **layer_evict; /* [n_layers] */
        sl_gauge *running, *waiting, *resident, *pages_landing, *reserved, *filling, *quarantined,
            *device_used, *device_total;
        sl_histogram *step, *batch;
        struct {
            sl_counter *tokens, *reused;
            sl_gauge *running, *waiting;
            sl_histogram *chunk;
        } prompts;
        struct {
            sl_counter *hits, *misses[SL_MISS_REASONS], *stored, *lost[SL_LOST_REASONS], *bytes_loaded,
                *bytes_stored, *load_seconds, *store_seconds, *evictions;
            sl_gauge *pages, *bytes, *capacity, *state, *written_ever, *waiting, *rate;
        } tiers[SL_CASCADE_TIERS]; /* NULL without metrics */
        struct {
            sl_counter *granted, *refused, *expired, *pages;
            sl_gauge *leases, *pages_now;
        } lend;
        struct {
            sl_counter *asks, *pages, *misses[SL_PULL_REASONS], *bytes, *seconds;
            sl_gauge *leases, *pages_now, *rate;
        } pull;
    } c;
};

/* ticket.c */
/* Takes m, a message from the router or from a writer. */
void sl_tickets_msg(sl_decode *d, sl_wmsg *m);
void sl_tickets_connected(sl_decode *d, sl_writer writer);
void sl_tickets_fenced(sl_decode *d, sl_writer writer);
/* Ends every ticket of this session. */
void sl_tickets_router_down(sl_decode *d, uint32_t router);
/* Handles the deadlines that have passed; returns the next one. */
uint64_t sl_tickets_tick(sl_decode *d, uint64_t now);
/* The threads have ended: frees every ticket whatever its state. */
void sl_tickets_free_all(sl_decode *d);
/* Ends t in any state, see ticket_state. t may have been freed afterwards. Its full pages stay cached. */
void sl_ticket_end(sl_decode *d, sl_ticket *t, sl_status why);
/* The ticket of an attempt, in any state; NULL: there is none (any more). */
sl_ticket *sl_ticket_find(const sl_decode *d, uint32_t router, uint64_t rid, uint32_t attempt);
/* Its writer writes no more: frees the ticket now, or when the last check of its pages has come back. */
void sl_ticket_let_go(sl_decode *d, sl_ticket *t);
/* Counts and logs a message that is dropped because its ticket does not exist or is in another state. */
void sl_ticket_stale(sl_decode *d, const char *what, uint64_t rid, uint32_t attempt);
/* FAILED to the router, for an attempt that may have no ticket. */
void sl_ticket_tell_failed(sl_decode *d, uint32_t router, uint64_t rid, uint32_t attempt, sl_status st,
                           bool retryable, const char *why);
/* Tells the router FAILED and ends the ticket. */
void sl_ticket_failed(sl_decode *d, sl_ticket *t, sl_status st, bool retryable, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));

/* landing.c: each of these owns the message, or the check, that it is called with */
void sl_landing_reserve(sl_decode *d, sl_wmsg *m);
/* RESERVE again, after it has waited. */
void sl_landing_resume(sl_decode *d, sl_wmsg *m, sl_loading *waited);
void sl_landing_commit(sl_decode *d, sl_wmsg *m);
/* The prompt of t is computed, and its first token is known. t may have been freed afterwards. */
void sl_landing_computed(sl_decode *d, sl_ticket *t);
void sl_landing_pages_ask(sl_decode *d, sl_wmsg *m);
/* An answer of the checker, for a ticket in any state. */
void sl_landing_checked(sl_decode *d, sl_check *k);

/* loading.c */
/* Takes the tiers of the options over. */
sl_status sl_loading_open(sl_decode *d, sl_err *err);
/* Frees the requests that wait, and closes the tiers. The checker has ended, and what it has answered was dropped. */
void sl_loading_close(sl_decode *d);
/* True: this RESERVE, which would be granted now, waits for pages of the tier and owns m until sl_landing_resume(). again: it has
 * waited before; else NULL. */
bool sl_loading_wait(sl_decode *d, sl_wmsg *m, sl_loading *again);
/* How many leading ones of the pages that a request matches, which has waited (w), are to be verified: the others were compared
 * with their checksums by the load that has just ended. w NULL: all. */
int32_t sl_loading_to_verify(const sl_loading *w, int32_t matched);
/* True: the request waited, and is gone. */
bool sl_loading_abort(sl_decode *d, uint32_t router, uint64_t rid, uint32_t attempt);
void sl_loading_router_down(sl_decode *d, uint32_t router);
/* Whether a load of this number of pages is worth its costs. */
bool sl_loading_worth(const sl_decode *d, int32_t pages);
/* The other worker that a message of this session names, for the cascade. */
sl_tier_source sl_loading_source(uint32_t router, const sl_msg_source *s);
/* An answer of the checker whose tag is CHECK_CASCADE. */
void sl_loading_checked(sl_decode *d, sl_check *k);
uint64_t sl_loading_tick(sl_decode *d, uint64_t now);
/* No request waits, and every page that is to be written has been. */
bool sl_loading_idle(const sl_decode *d);

/* lend.c: messages of readers. The first one owns m */
void sl_lend_ask(sl_decode *d, sl_wmsg *m);
void sl_lend_end(sl_decode *d, const sl_wmsg *m);
void sl_lend_damaged(sl_decode *d, const sl_wmsg *m);
/* An answer of the checker whose tag is CHECK_LEND. */
void sl_lend_checked(sl_decode *d, sl_check *k);
void sl_lend_reader_gone(sl_decode *d, uint32_t ep_serial);
/* Closes the connections of the readers whose time has ended; returns the next such time. */
uint64_t sl_lend_tick(sl_decode *d, uint64_t now);
/* The threads have ended. */
void sl_lend_free_all(sl_decode *d);

/* inspect.c: CACHE_ASK. A place is 0 for host memory and 1 + t for tier t. */
enum { SL_INSPECT_ALL = -1 };
void sl_inspect_ask(sl_decode *d, const sl_wmsg *m);
int sl_inspect_places(const sl_decode *d);
const char *sl_inspect_place_name(const sl_decode *d, int place);
bool sl_inspect_can_list(const sl_decode *d, int place);
/* The place of this name, SL_INSPECT_ALL for "". SL_ERR_INVALID, SL_ERR_UNSUPPORTED. */
sl_status sl_inspect_place(const sl_decode *d, const char *tier, int *out, sl_err *err);

/* audit.c */
/* place: to verify or to empty; a drop needs one. rate 0: the default. SL_ERR_REFUSED: one is running, or the worker drains. */
sl_status sl_audit_begin(sl_decode *d, sl_cache_action action, int place, uint64_t rate, sl_err *err);
void sl_audit_cancel(sl_decode *d);
/* Fills what concerns the job; out->keys points to keys. */
void sl_audit_describe(const sl_decode *d, sl_msg_cache_job *out, sl_key keys[SL_CACHE_DAMAGED_MAX]);
/* An answer of the checker whose tag is CHECK_AUDIT. */
void sl_audit_checked(sl_decode *d, sl_check *k);
/* Begins what is due; returns when something is due next. */
uint64_t sl_audit_tick(sl_decode *d, uint64_t now);
/* Before the tiers are closed, and after that. */
void sl_audit_stop(sl_decode *d);
void sl_audit_free(sl_decode *d);

/* claims.c */
/* Whether there is a place for this request of the router; remembers that it was refused one. */
bool sl_claims_place(sl_decode *d, uint32_t router, uint64_t rid, uint64_t now);
/* Whether pages are set aside for another request than this one. */
bool sl_claims_bar(const sl_decode *d, uint32_t router, uint64_t rid, uint64_t now);
/* A RESERVE was refused because too few pages were free, or was granted. */
void sl_claims_refused(sl_decode *d, uint32_t router, uint64_t rid, uint64_t now);
void sl_claims_granted(sl_decode *d, uint32_t router, uint64_t rid, uint64_t now);

/* batch.c */
void sl_batch_admit(sl_decode *d);
/* The first token of a ticket that has just been verified. */
void sl_batch_first_token(sl_decode *d, sl_ticket *t);
/* RETRACTED: the router starts t again with the tokens that it has produced. Ends t. */
void sl_batch_retract(sl_decode *d, sl_ticket *t, const char *why);
/* One step of all running tickets; *worked: there were any. A failure ends the worker. */
sl_status sl_batch_step(sl_decode *d, bool *worked, sl_err *err);

/* The next token of t, whose tokens are all in its rows but the last one, or all of a prompt. False: t has failed. */
bool sl_batch_sample(sl_decode *d, sl_ticket *t, const float *logits, sl_msg_token *out);

/* prompts.c: role both; without it they do nothing */
sl_status sl_prompts_open(sl_decode *d, sl_err *err);
void sl_prompts_close(sl_decode *d);
/* Begins prompts that wait, while there are places and device memory. */
void sl_prompts_admit(sl_decode *d);
/* Puts the parts of the next step into e.items, after those of the `decoding` requests of the batch. Returns their number. */
int32_t sl_prompts_collect(sl_decode *d, int32_t decoding);
/* The step took `ns`; with parts of prompts or without. */
void sl_prompts_computed(sl_decode *d, int32_t decoding, uint64_t ns);
/* The step failed: so have its prompts. */
void sl_prompts_failed(sl_decode *d, sl_status st, const char *why);

/* residency.c */
/* t has its prompt's sequence, which is resident: it stays so while there is room, else it is spilled. Errors
 * as sl_residency_open(); t->seq is NULL then. */
sl_status sl_residency_adopt(sl_decode *d, sl_ticket *t, sl_err *err);
/* Spills the longest resident request for the sake of a prompt; false: there is none. */
bool sl_residency_give(sl_decode *d);
/* Opens the sequence of t, whose lease has `pages` pages, resident or with a hot buffer; sets t->seq. Errors as
 * the runner's open. May spill other tickets, and end those that cannot be spilled. */
sl_status sl_residency_open(sl_decode *d, sl_ticket *t, int32_t pages, sl_err *err);
/* The device has no page for t's next row. If t is resident, spills the longest resident request, which may be t, and
 * returns true: the caller looks for t again, since it may have ended, and tries again. */
bool sl_residency_relieve(sl_decode *d, const sl_ticket *t);
int32_t sl_residency_count(const sl_decode *d);

/* report.c */
sl_store_event_fn sl_report_event;
/* A session has begun: its router is told the whole prefix tree, and every change from now on. */
void sl_report_router_up(sl_decode *d, uint32_t router);
void sl_report_router_down(sl_decode *d, uint32_t router);
void sl_report_kv_events(sl_decode *d);
/* Reports the whole prefix tree to one session, because its router has missed a change. */
void sl_report_resync(sl_decode *d, uint32_t router);
void sl_report_load(sl_decode *d);
void sl_report_quotas(sl_decode *d); /* report_quota.c */
void sl_report_metrics_find(sl_decode *d, sl_metrics *m);

/* publish.c */
/* Opens the events of this configuration; *out NULL: they are off. The text of an error names the key. */
sl_status sl_publish_open(const sl_config *cfg, const sl_worker_launch *launch, sl_metrics *metrics,
                          sl_events **out, sl_err *err);
void sl_publish_begin(sl_decode *d);
/* A change of the store, as sl_store_event_fn. */
/* A page is in a tier (kvstore/cascade.h), or pages have left a local one. */
void sl_publish_held(void *ctx, int tier, const sl_store_page *page);
void sl_publish_gone(sl_decode *d, const sl_key *keys, int32_t n);
void sl_publish_event(sl_decode *d, sl_store_event ev, const sl_store_page *page);
/* At the end of each turn of the loop. */
void sl_publish_turn(sl_decode *d);

/* prefetch.c */
/* Takes m, a PREFETCH. */
void sl_prefetch_begin(sl_decode *d, sl_wmsg *m);
/* NULL: this request was not announced, or its prefetch has ended. */
sl_prefetch *sl_prefetch_find(const sl_decode *d, uint32_t router, uint64_t rid);
/* Its load has ended. */
bool sl_prefetch_done(const sl_prefetch *p);
/* Ends and frees it, whether its load has ended or not. */
void sl_prefetch_finish(sl_prefetch *p, sl_prefetch_end how);
/* Ends those of this session; NULL: all. */
void sl_prefetch_cancel(sl_decode *d, const uint32_t *router);
/* Ends those that are too old; returns when the next one is. */
uint64_t sl_prefetch_tick(sl_decode *d, uint64_t now);

/* holdings.c */
/* The cascade tells which pages are in its tiers now, or not any more. ctx: sl_decode. */
/* Whether the tier belongs to this worker alone and can list its pages. */
bool sl_holdings_local(const sl_decode *d, int tier);
void sl_holdings_stored(void *ctx, int tier, const sl_key *keys, int32_t n);
void sl_holdings_gone(void *ctx, int tier, const sl_key *keys, int32_t n);
/* This session is told everything that is on disk, from the next tick on. */
void sl_holdings_begin(sl_decode *d, uint32_t router);
/* Tells changes and parts of lists; whether there are more parts. */
bool sl_holdings_tick(sl_decode *d);

/* damage.c */
/* Has the checker verify n sealed pages of t's lease, from `first` on. False: out of memory. */
bool sl_damage_verify(sl_decode *d, sl_ticket *t, int32_t first, int32_t n, bool running);
/* The answer of the checker. False: pages were damaged; all requests that held them have ended and may have been freed,
 * perhaps the owner of k among them. */
bool sl_damage_verified(sl_decode *d, const sl_check *k);
/* The same for pages of a lease of another worker. */
void sl_damage_verified_lent(sl_decode *d, const sl_check *k, sl_lease *lease);
/* Has the checker seal the full page `page` of t's lease, whose rows were computed here. False: out of memory. */
bool sl_damage_seal(sl_decode *d, sl_ticket *t, int32_t page);
/* A page of the prefix tree, whose memory the caller holds, is damaged: it leaves the tree together with the pages that continue
 * it, and all requests that held it have ended and may have been freed. */
void sl_damage_found(sl_decode *d, int32_t page, sl_key seed, sl_key key);
/* Starts the patrol's next verification if it is due; returns when the next one is. */
uint64_t sl_damage_patrol(sl_decode *d, uint64_t now);

static inline bool sl_writer_eq(sl_writer a, sl_writer b)
{
    return a.router == b.router && a.id == b.id;
}

/* wpeer.c, transport thread */
void sl_wpeer_accepted(sl_decode *d, sl_wep *ep, const char *address);
void sl_wpeer_msg(sl_decode *d, sl_wep *ep, sl_wmsg *m);
void sl_wpeer_failed(sl_decode *d, sl_wep *ep, sl_status st, const char *why);
void sl_wpeer_closed(sl_decode *d, sl_wep *ep);
void sl_wpeer_fence(sl_decode *d, sl_fence *f);
void sl_wpeer_fence_reader(sl_decode *d, uint32_t ep_serial);
/* Closes the connections of the writers and readers that this router has introduced. */
void sl_wpeer_router_down(sl_decode *d, uint32_t router);
uint64_t sl_wpeer_tick(sl_decode *d, uint64_t now);

/* owner.c, transport thread */
void sl_owner_ask(sl_decode *d, sl_pull *p);
void sl_owner_get(sl_decode *d, sl_pull_get *g);
/* Of a question or a get, which may have been answered already. */
void sl_owner_cancel(sl_decode *d, uint64_t id);
void sl_owner_connected(sl_decode *d, sl_wep *ep, sl_status st, const char *why);
/* Takes m. */
void sl_owner_msg(sl_decode *d, sl_wep *ep, sl_wmsg *m);
void sl_owner_failed(sl_decode *d, sl_wep *ep, sl_status st, const char *why);
void sl_owner_closed(sl_decode *d, sl_wep *ep);
/* Closes the connections to the owners that this router has named. */
void sl_owner_router_down(sl_decode *d, uint32_t router);
uint64_t sl_owner_tick(sl_decode *d, uint64_t now);
/* The threads have ended. */
void sl_owner_free_all(sl_decode *d);

#endif
