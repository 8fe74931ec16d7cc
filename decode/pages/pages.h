/*
 * The pages that belong to no step: those that tiers and other workers bring (loading.c, prefetch.c, pull.c), those that are lent
 * (lend.c), how they are verified (audit.c, damage.c) and who is told of them (changes.c, holdings.c, publish.c). Engine
 * thread.
 */
#ifndef SL_DECODE_PAGES_PAGES_H
#define SL_DECODE_PAGES_PAGES_H

#include "decode/pages/pull.h"
#include "decode/pages/told.h"
#include "decode/tickets.h"
#include "worker/checker.h"

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

typedef struct sl_pages {
    sl_cascade *cascade; /* NULL: there is no storage tier */
    struct {
        sl_loading *list;
        int32_t n;
    } loads;
    struct {
        sl_prefetch *list;
        int32_t n, pages; /* pages: of the budget */
        uint64_t ended[SL_PREFETCH_ENDS];
    } prefetch;
    struct {
        sl_tier *tier;             /* "workers", which belongs to the cascade; NULL: there is none */
        sl_pull_rate prefill_rate; /* tokens per second, from RESERVED to COMMIT (pull_cost.h) */
    } pull;
    struct {
        sl_lent *list;
        int32_t n, pages;
        sl_lend_wait *waits;
        int32_t n_waits;
        uint64_t seen; /* sl_cascade_changes() when these questions were looked at last */
    } lend;
    sl_audit *audit; /* the last one; NULL: there was none */
    struct {
        uint64_t found;  /* damaged pages */
        bool patrolling; /* a job of the patrol is at the checker */
        uint64_t patrol_ns;
    } damage;
    struct {
        sl_key open_seed; /* of the pages that sl_publish_event() may tell everybody */
        sl_told told;     /* pages on disk that subscribers have been told of */
    } publish;
    struct {
        sl_wr stored, removed, tokens; /* not yet sent to the routers; encoded as in sl_msg_kv_events */
        bool cleared;
        uint32_t only; /* the session that is told; 0: every one */
    } changes;
    struct {
        sl_wr stored, removed;
    } holdings; /* of pages on disk, likewise */
} sl_pages;

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

/* inspect.c: CACHE_ASK. A place is 0 for host memory and 1 + t for tier t. */
enum { SL_INSPECT_ALL = -1 };
void sl_inspect_ask(sl_decode *d, const sl_wmsg *m);
int sl_inspect_places(const sl_decode *d);
const char *sl_inspect_place_name(const sl_decode *d, int place);
bool sl_inspect_can_list(const sl_decode *d, int place);
/* The place of this name, SL_INSPECT_ALL for "". SL_ERR_INVALID, SL_ERR_UNSUPPORTED. */
sl_status sl_inspect_place(const sl_decode *d, const char *tier, int *out, sl_err *err);

/* changes.c */
sl_store_event_fn sl_changes_event;
/* A session has begun: its router is told the whole prefix tree, and every change from now on. */
void sl_changes_router_up(sl_decode *d, uint32_t router);
void sl_changes_router_down(sl_decode *d, uint32_t router);
void sl_changes_tell(sl_decode *d);
/* Reports the whole prefix tree to one session, because its router has missed a change. */
void sl_changes_resync(sl_decode *d, uint32_t router);
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

#endif
