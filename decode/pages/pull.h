/*
 * Pulls: pages that another decode worker has in its host store are read from there by get, under a lease, straight into
 * pages of this worker's store. For the cascade (kvstore/cascade.h) this is a read-only storage tier with the name
 * "workers": exists asks the worker that RESERVE has named for a lease, get moves the bytes, release gives the lease back.
 * Pages are found only for requests whose exists names a source (sl_tier_req.source).
 *
 *     reader                                             owner (lend.c)
 *     ------------------------------------------------   ------------------------------------------------------
 *     exists: LEASE_ASK with the keys              -->   pins the leading pages that it has, reads their kept
 *                                                  <--   checksums; LEASE: page numbers, checksums, tokens
 *     get: gets of the transport                         (its processor does nothing, with RDMA)
 *     release: no get is in flight any more; LEASE_END -> the pages can be evicted again
 *     remove: pages arrived damaged; LEASE_DAMAGED     -> verifies its own pages, drops those that are damaged
 *
 * Two files: pull.c is the tier, on the engine thread; decode/link/owners.c has the connections, on the transport thread. They exchange
 * leases and gets by mail; the thread that has an object may use it. The cost rule is pull_cost.h.
 *
 * What keeps wrong rows from being used: the label of each page (seed, key before, tokens) and its kept checksums come with
 * the lease, and the cascade compares them after the rows have arrived, as for every tier. So a page that was given away
 * too early, or was damaged at the owner, is a miss.
 *
 * What keeps gets from writing into pages that are used for something else: a request ends only when the gets that it has begun
 * have ended. If the owner hangs, its connection is closed by force after stall_ms without progress, and the request ends
 * when the transport has reported `closed`. So one page of a request that fails fails all of its pages that are in flight.
 *
 * A worker that failed is not asked again for a time that doubles from 1 s to 30 s. Ownership: the tier belongs to its
 * cascade; all leases and gets belong to the tier, wherever they are, and are freed with it after the transport thread has
 * ended.
 */
#ifndef SL_DECODE_PAGES_PULL_H
#define SL_DECODE_PAGES_PULL_H

#include "decode/pages/pull_cost.h"
#include "kvstore/arena.h"
#include "kvstore/tier.h"
#include "worker/page_read.h"
#include "worker/worker.h"

typedef struct sl_pull sl_pull;
typedef struct sl_pull_get sl_pull_get;
typedef struct sl_owner sl_owner;

/* One lease. From the question to the answer it belongs to the transport thread; before and after that it belongs to the engine
 * thread. After the answer the fields of the first two groups do not change, so gets on the transport thread may read them. */
struct sl_pull {
    sl_wmail mail;
    uint64_t id;
    sl_tier_source source;
    int32_t n;
    sl_key *keys; /* [n], consecutive pages of one chain */
    uint32_t lease_ms;

    sl_status status;
    int32_t granted; /* leading keys that the lease covers; 0: no lease */
    uint32_t *pages; /* [granted] page numbers at the owner */
    uint8_t *labels; /* [granted][label_bytes] */
    size_t label_bytes;
    uint32_t lent;      /* pages that the owner lent to others at that time */
    uint32_t ep_serial; /* of the connection to which the lease belongs */

    /* transport thread */
    sl_pull *next_there;
    uint64_t began_ns;

    /* engine thread */
    sl_pull *next;
    bool away;         /* at the transport thread */
    bool ending;       /* when its gets have ended */
    bool lost;         /* there is no connection any more to which it belongs */
    sl_tier_req *req;  /* exists, while it is away */
    sl_pull_get *gets; /* in flight */
    uint64_t asked_ns, end_ns;
};

/* One get under a lease. It is always at the transport thread, or in the mail. */
struct sl_pull_get {
    sl_wmail mail;
    uint64_t id;
    sl_pull *lease;
    int32_t n;
    int32_t *local;   /* [n] page numbers here */
    uint32_t *remote; /* [n] and there */

    /* result */
    sl_status status;
    uint64_t bytes, ns; /* with SL_OK */

    /* transport thread */
    sl_owner *at;
    sl_pull_get *next_there;
    uint64_t began_ns; /* of the first post; 0: none yet */
    uint32_t in_flight;
    bool all_posted, cancelled;
    sl_page_map map;
    sl_page_read read;

    /* engine thread */
    sl_pull_get *next;
    sl_tier_req *req;
    uint64_t asked_ns;
};

/* What the tier needs from its worker. */
typedef struct sl_pull_env {
    void *ctx;
    const sl_arena *arena;
    size_t page_bytes, label_bytes; /* of a page in the arena; of its label */
    uint32_t lease_ms;              /* that is asked for */
    int32_t min_pages;              /* fewer are never pulled */
    /* Asks for the lease; answered by sl_pull_asked(), not inside of the call. */
    void (*ask)(void *ctx, sl_pull *p);
    /* Reads the pages; answered by sl_pull_got(), not inside of the call. */
    void (*get)(void *ctx, sl_pull_get *g);
    /* This question or get is answered as soon as it has no operation in flight. It may have been answered already. */
    void (*cancel)(void *ctx, uint64_t id);
    /* Sends LEASE_END for a lease of which no get is in flight. */
    void (*end)(void *ctx, const sl_pull *p);
    /* Sends LEASE_DAMAGED: some of the pages [first, first + count) of this lease arrived damaged. */
    void (*damaged)(void *ctx, const sl_pull *p, int32_t first, int32_t count);
    /* Tokens per second, as in pull_cost.h; 0: not known. */
    double (*prefill_rate)(void *ctx);
} sl_pull_env;

/* Why pages that a request looked for were not pulled. */
typedef enum {
    SL_PULL_ABSENT, /* no worker was named, or it does not have them (any more) */
    SL_PULL_COST,   /* computing them is cheaper, or they are too few */
    SL_PULL_PEER,   /* the worker cannot be reached, failed, or failed a short time ago */
    SL_PULL_LATE,   /* given up, because the request waited too long */
    SL_PULL_REASONS
} sl_pull_miss;

extern const char *const sl_pull_miss_names[SL_PULL_REASONS];

typedef struct sl_pull_stats {
    uint64_t asks, pages, misses[SL_PULL_REASONS], bytes, ns; /* pages: that were pulled */
    int32_t leases, leased_pages;                             /* now */
    uint64_t rate; /* bytes per second of the last pulls; 0: not known */
} sl_pull_stats;

/* Engine thread. SL_ERR_NO_MEMORY. */
sl_status sl_pull_open(const sl_pull_env *env, sl_tier **out, sl_err *err);
void sl_pull_asked(sl_tier *t, sl_pull *p);
void sl_pull_got(sl_tier *t, sl_pull_get *g);
void sl_pull_stats_get(const sl_tier *t, sl_pull_stats *out);
/* Whether any lease exists. */
bool sl_pull_idle(const sl_tier *t);

#endif
