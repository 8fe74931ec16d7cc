/*
 * Cascade: the host store with a storage tier below it. Pages of the prefix tree are written to the tier before their
 * memory is used for other rows, and pages that a request needs are loaded back into the store before the request
 * reserves its pages.
 *
 * Writing. Each page of the tree is offered to the tier once:
 *
 *   write_back      when it is among the pages that will be evicted next, and all pages are when the owner stops
 *                   (sl_cascade_finish). Little is written, but pages that are only in memory are lost with the process
 *   write_through   as soon as it is published. A page that is evicted has been written already
 *
 * A page that is being written can be matched and pinned meanwhile; if it is evicted, its memory is free only when the
 * write has ended (sl_store_hold). When a request needs memory at once, pages that were not offered yet are evicted all the
 * same and are counted as lost by pressure.
 *
 * Loading. sl_cascade_wait() looks for the pages that continue the cached prefix of a prompt. If the tier has some, they
 * are read straight into pages of the store, and published when they are verified. All requests that need a page that is
 * being loaded wait for that one load. The prefix tree has no node for pages that are being loaded: a load has a lease and
 * a list of keys of its own, so that everything in the tree is always complete. Whatever happens to a load, the waiting
 * requests continue: with the pages that arrived, and they compute the others.
 *
 * What keeps a wrong page from being used. A page is stored with its seed, the key of the page before it, its tokens, and
 * the checksums that the worker has kept since the page was complete (kvstore/seal.h). A loaded page must have exactly the
 * seed, key and tokens of the request, and its bytes in the store must have these checksums. So damage in the tier, in
 * memory before the page was written, and in memory after it was read are all found. A damaged page is removed from
 * the tier.
 *
 * Bounds. Loads: their number, and half of the store's pages. Writes: SL_CASCADE_BATCHES x SL_CASCADE_BATCH pages, and one in
 * eight pages of the store. The time that a request waits: load_timeout_ms. While a load is later than that, no other
 * begins.
 *
 * Threads: one owner thread, the owner of the store; nothing here waits for the tier. Ownership: the cascade owns the
 * tier, and borrows store and arena.
 */
#ifndef SL_KVSTORE_CASCADE_H
#define SL_KVSTORE_CASCADE_H

#include "kvstore/arena.h"
#include "kvstore/store.h"
#include "kvstore/tier.h"

enum { SL_CASCADE_BATCH = 16, SL_CASCADE_BATCHES = 2, SL_CASCADE_LOADS = 64 };

typedef struct sl_cascade sl_cascade;
/* A load or a batch of writes that waits for checksums. */
typedef struct sl_cascade_job sl_cascade_job;

typedef enum { SL_CASCADE_WRITE_BACK, SL_CASCADE_WRITE_THROUGH } sl_cascade_policy;

/*
 * Work that the owner does, because it reads pages and must not be done on the owner's thread. Both functions return false
 * when the work cannot be begun. The pages are complete and nothing writes them until the answer. The answer may not come inside
 * of the call.
 */
typedef struct sl_cascade_calls {
    void *ctx;
    /* Wanted: the checksums that are kept for these pages, answered by sl_cascade_sums(). */
    bool (*read_sums)(void *ctx, sl_cascade_job *job, const int32_t *pages, int32_t n);
    /* Wanted: whether the pages have these checksums, crc[n][layers], and if so that they are kept; answered by
     * sl_cascade_checked(). crc belongs to the job until then. */
    bool (*check_sums)(void *ctx, sl_cascade_job *job, const int32_t *pages, int32_t n, const uint32_t *crc);
} sl_cascade_calls;

typedef struct sl_cascade_opts {
    sl_store *store;
    const sl_arena *arena;
    sl_cascade_policy policy;
    uint32_t load_timeout_ms; /* how long a request waits for its pages */
    sl_cascade_calls calls;
} sl_cascade_opts;

/* A request that waits. The caller's, who leaves it in place until `ready` or sl_cascade_leave(). */
typedef struct sl_cascade_waiter {
    void (*ready)(struct sl_cascade_waiter *w); /* what it waited for has ended. May call the cascade */

    /* the cascade's; zeroed before the first wait */
    sl_cascade_job *load;
    struct sl_cascade_waiter *next;
    bool looked_up;
    int8_t rounds;
} sl_cascade_waiter;

/* Why pages that a request could have used were not loaded. */
typedef enum {
    SL_MISS_ABSENT,  /* the tier does not have them, or one before them */
    SL_MISS_DAMAGED, /* they, or one before them, were damaged */
    SL_MISS_IO,      /* the device failed */
    SL_MISS_LATE,    /* not there within load_timeout_ms */
    SL_MISS_ROOM,    /* no pages of the store for them, or too many loads */
    SL_MISS_REASONS
} sl_cascade_miss;

/* Why pages that were meant for the tier did not get there. */
typedef enum {
    SL_LOST_PRESSURE,  /* evicted before they could be written */
    SL_LOST_ADMISSION, /* offered for the first time, and the tier stores at the second */
    SL_LOST_ROOM,      /* the tier had no room that it could free */
    SL_LOST_IO,        /* the device failed */
    SL_LOST_SUMS,      /* their checksums could not be read */
    SL_LOST_REASONS
} sl_cascade_lost;

typedef struct sl_cascade_stats {
    uint64_t hits, misses[SL_MISS_REASONS]; /* pages that requests looked for */
    uint64_t stored, lost[SL_LOST_REASONS]; /* pages; stored: also those that the tier had already */
    uint64_t bytes_loaded, bytes_stored;    /* of these hits and stored pages */
    uint64_t loads, load_ns;   /* loads that had pages to read, and their durations from the lookup on */
    uint64_t writes, write_ns; /* batches that were written, and their durations */
    int32_t loading, writing, waiting; /* pages, pages, requests: now */
} sl_cascade_stats;

/* "absent", "pressure"… as in the metrics. */
extern const char *const sl_cascade_miss_names[SL_MISS_REASONS],
    *const sl_cascade_lost_names[SL_LOST_REASONS];

/* The size of a page in the tier, for sl_tier_opts.page_bytes, and the identity of its format. False: out of memory. */
bool sl_cascade_page_format(const sl_geometry *g, size_t *page_bytes, sl_key *format);

/* The label that is stored with each page: what identifies it, and its kept checksums crc[n_layers]. */
size_t sl_cascade_label_bytes(const sl_geometry *g);
void sl_cascade_label_write(const sl_store_page *page, uint8_t *label);
void sl_cascade_label_sums(uint8_t *label, const uint32_t *crc, int32_t n_layers);

/* Takes the tier over, also when it fails. SL_ERR_NO_MEMORY. */
sl_status sl_cascade_create(const sl_cascade_opts *opts, sl_tier *tier, sl_cascade **out);
/* Closes the tier. Waits for the operations of the tier that have begun; jobs that wait for checksums are forgotten, so the owner
 * answers none of them afterwards. No request may wait. NULL is allowed. */
void sl_cascade_destroy(sl_cascade *c);

/*
 * Whether this request should wait before it takes a lease: the tier is asked for the pages that continue its cached
 * prefix, or they are being loaded for another request. Then w->ready is called later, inside of any other function of the
 * cascade, and the request calls this again with the same w. False: there is nothing to wait for.
 */
bool sl_cascade_wait(sl_cascade *c, sl_key seed, const int32_t *tokens, int32_t n_tokens,
                     sl_cascade_waiter *w);
/* The request waits no more; ready is not called. */
void sl_cascade_leave(sl_cascade *c, sl_cascade_waiter *w);

/* Takes what the tier has completed, begins writes, ends waits that are too long. Returns when it must be called again at
 * the latest (UINT64_MAX: not by time). Call it also when the descriptor is readable, and after pages were published. */
uint64_t sl_cascade_tick(sl_cascade *c, uint64_t now_ns);
int sl_cascade_fd(const sl_cascade *c);

/* The answers to sl_cascade_calls. crc: [n][layers], copied; NULL: a page has no checksums. */
void sl_cascade_sums(sl_cascade *c, sl_cascade_job *job, const uint32_t *crc);
void sl_cascade_checked(sl_cascade *c, sl_cascade_job *job, bool right);

/* From now on every page of the tree is offered, whatever the policy, and nothing is loaded. */
void sl_cascade_finish(sl_cascade *c);
/* No page waits to be offered under the present policy, and nothing is in flight. */
bool sl_cascade_idle(const sl_cascade *c);

void sl_cascade_stats_get(const sl_cascade *c, sl_cascade_stats *out);
/* Health and numbers of the tier itself. */
sl_tier *sl_cascade_tier(const sl_cascade *c);

#endif
