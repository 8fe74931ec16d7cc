/*
 * The types of this room that its parts and its owner share; pages.h has the functions.
 */
#ifndef SL_DECODE_PAGES_TYPES_H
#define SL_DECODE_PAGES_TYPES_H

#include "decode/pages/pull.h"
#include "events/events.h"
#include "kvstore/cascade.h"

/* Loads of requests from storage tiers: see kvstore.prefetch in docs/configuration.md. */
typedef struct sl_prefetch_opts {
    sl_cfg_prefetch policy;
    uint32_t base_ms, ms_per_1024;
    int32_t min_tokens; /* fewest that are worth a load */
    double budget;      /* share of the store's pages */
} sl_prefetch_opts;

typedef struct sl_pages_opts {
    /* Storage tiers below the host store, the cheapest first. Taken over by sl_pages_create(), also when it fails. */
    sl_cascade_tier tiers[SL_CASCADE_TIERS];
    int n_tiers;
    sl_prefetch_opts prefetch;
    uint64_t load_chunk_bytes; /* of a load; 0: the cascade's default */
    /* For other programs' routers, NULL: off. Taken over likewise. */
    sl_events *events;
    /* Pages of other decode workers are pulled, and this worker lends its own. */
    bool pull, lend;
    uint32_t pull_timeout_ms; /* how long a request waits for pages of another worker */
} sl_pages_opts;

/* ---- what requests are told ---- */

typedef enum { SL_PAGES_LOADED, SL_PAGES_DAMAGED } sl_pages_event_kind;

typedef struct sl_pages_event {
    sl_pages_event_kind kind;
    uint64_t number; /* LOADED */
    /* LOADED: pages [loaded, loaded_end) of the prompt were just compared with their checksums, and are pinned until the next
     * call of sl_pages_next() */
    int32_t loaded, loaded_end;
    int32_t page;    /* DAMAGED */
    int32_t dropped; /* DAMAGED: pages that have left the tree */
} sl_pages_event;

/* ---- numbers ---- */

/* How an announced request (PREFETCH) ended. */
typedef enum {
    SL_PREFETCH_IN_TIME,   /* its load had ended when RESERVE came */
    SL_PREFETCH_LATE,      /* it had not */
    SL_PREFETCH_CANCELLED, /* there was no RESERVE */
    SL_PREFETCH_SKIPPED,   /* it exceeded the budget */
    SL_PREFETCH_ENDS
} sl_prefetch_end;
extern const char *const sl_prefetch_end_names[SL_PREFETCH_ENDS];

typedef struct sl_lend_stats {
    uint64_t granted, refused, expired, pages; /* leases; leases; leases; pages that were lent */
    int32_t leases, pages_now, waiting;        /* now; waiting: questions that wait for a load */
} sl_lend_stats;

typedef struct sl_prefetch_stats {
    uint64_t ended[SL_PREFETCH_ENDS];
    int32_t now, pages; /* that have not ended, and their pages of the budget */
} sl_prefetch_stats;

typedef struct sl_damage_stats {
    uint64_t reused, verified; /* damaged pages that a reader, or an audit, has found */
} sl_damage_stats;

typedef struct sl_pages_stats {
    uint64_t stale; /* messages that were dropped */
    sl_lend_stats lend;
    sl_prefetch_stats prefetch;
    sl_damage_stats damage;
    sl_pull_stats pull; /* zero without the tier of other workers */
} sl_pages_stats;

#endif
