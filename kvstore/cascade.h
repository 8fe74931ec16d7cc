/*
 * Cascade: the host store with an ordered list of storage tiers below it, the cheapest to read first: for example a disk, the
 * memory of other workers, a shared store. Pages of the prefix tree are written to the tiers before their memory is used
 * for other rows, and pages that a request needs are loaded back into the store before the request reserves its pages.
 *
 * Writing. Each page of the tree is offered to each tier at most once, as the tier's policy says:
 *
 *   write_back               when it is among the pages that will be evicted next; when the owner stops, all pages are offered
 *                            (sl_cascade_finish). Little is written, but pages that are only in memory are lost with the
 *                            process
 *   write_through            as soon as it is published. A page that is evicted has been written already
 *   write_through_selective  as soon as a second request uses it. Pages that are used once are never written
 *   read_only                never; nothing is removed from the tier either. A tier whose pages have owners (tier.h) is told
 *                            which pages were damaged
 *
 * A page that is being written can be matched and pinned meanwhile; if it is evicted, its memory is free only when the
 * write has ended (sl_store_hold). When a request needs memory at once, pages that were not offered yet are evicted all the
 * same and are counted as lost by pressure. A page that was loaded from a tier is not offered to that tier.
 *
 * Loading. sl_cascade_wait() looks for the pages that continue the cached prefix of a prompt. The first tier is asked for all of
 * these pages, and every other tier for the pages that the tiers before it do not have; so a load may take its pages from several
 * tiers. A tier moves ahead of a tier that was given before it when reads of both were measured in the last 30 s and it was more
 * than SL_CASCADE_FASTER times as fast. The pages are read in chunks, a few at a time, straight into pages of the store. Each chunk
 * is verified and published while the next ones are read: a long load does not delay the others, and when it ends early, the
 * chunks that arrived can be used. A page that is missing or damaged in one tier, or cannot be read there, is looked for in the
 * others. All requests that need a page that is being loaded wait for that one load. The prefix tree has no node for pages that are
 * being loaded: a load has a lease and a list of keys of its own, so that everything in the tree is always complete. Whatever happens
 * to a load, the waiting requests continue: with the pages that arrived, and they compute the others. A load for which no request
 * waits any more ends early.
 *
 * What keeps a wrong page from being used. A page is stored with its seed, the key of the page before it, its tokens, and
 * the checksums that the worker has kept since the page was complete (kvstore/seal.h). A loaded page must have exactly the
 * seed, key and tokens of the request, and its bytes in the store must have these checksums. So damage in the tier, in
 * memory before the page was written, and in memory after it was read are all found. A damaged page is removed from
 * the tier.
 *
 * Bounds. Loads: their number, half of the store's pages, and a number of bytes in flight for each of them. Writes: for each
 * tier SL_CASCADE_BATCHES x SL_CASCADE_BATCH pages, and for all together one in eight pages of the store. The time that a
 * load waits for one tier: load_timeout_ms of that tier. While a load is later than that, no other asks this tier; the other
 * tiers are asked.
 *
 * Threads: one owner thread, the owner of the store; nothing here waits for a tier. Ownership: the cascade owns the
 * tiers, and borrows store and arena.
 */
#ifndef SL_KVSTORE_CASCADE_H
#define SL_KVSTORE_CASCADE_H

#include "kvstore/arena.h"
#include "kvstore/store.h"
#include "kvstore/tier.h"

enum {
    SL_CASCADE_TIERS = SL_STORE_TIERS,
    SL_CASCADE_BATCH = 16,
    SL_CASCADE_BATCHES = 2,
    SL_CASCADE_LOADS = 64,
    SL_CASCADE_FASTER = 2
};

typedef struct sl_cascade sl_cascade;
/* A chunk of a load or a batch of writes that waits for checksums. */
typedef struct sl_cascade_job sl_cascade_job;
typedef struct sl_cascade_load sl_cascade_load;
/* Where a tier reports the pages that it gives up, before and after the cascade exists. */
typedef struct sl_cascade_listener sl_cascade_listener;

typedef enum {
    SL_CASCADE_WRITE_BACK,
    SL_CASCADE_WRITE_THROUGH,
    SL_CASCADE_WRITE_SELECTIVE,
    SL_CASCADE_READ_ONLY
} sl_cascade_policy;

/* One tier of the list. */
typedef struct sl_cascade_tier {
    sl_tier *tier;
    sl_cascade_listener *listener; /* of the options with which it was opened; NULL: it reports nothing */
    sl_cascade_policy policy;
    uint32_t load_timeout_ms; /* how long a load waits for it */
} sl_cascade_tier;

/*
 * Work that the owner does, because it reads pages and must not be done on the owner's thread. Both functions return false
 * when the work cannot be begun. The pages are complete and nothing writes them until the answer. The answer may not come inside
 * of the call.
 */
typedef struct sl_cascade_calls {
    void *ctx;
    /* Wanted: the checksums that are kept for these pages, answered by sl_cascade_sums(). */
    bool (*read_sums)(void *ctx, sl_cascade_job *job, const int32_t *pages, int32_t n);
    /* Wanted: which of the pages do not have these checksums, crc[n][layers], and if all have them that they are kept; answered by
     * sl_cascade_checked(). crc belongs to the job until then. Pages may be asked for again. */
    bool (*check_sums)(void *ctx, sl_cascade_job *job, const int32_t *pages, int32_t n, const uint32_t *crc);
    /* For information, NULL: not wanted. These pages are in the tier now (written here, or there before), or are not in it any
     * more. Changes of one page are told in their order. They must not call the cascade. */
    void (*stored)(void *ctx, int tier, const sl_key *keys, int32_t n);
    void (*gone)(void *ctx, int tier, const sl_key *keys, int32_t n);
    /* Likewise, for one page with its tokens, which are valid during the call: it was written to the tier, or found there, or
     * loaded from it. */
    void (*held)(void *ctx, int tier, const sl_store_page *page);
} sl_cascade_calls;

typedef struct sl_cascade_opts {
    sl_store *store;
    const sl_arena *arena;
    sl_cascade_calls calls;
    int32_t chunk_pages; /* of a load; 0: about 32 MiB */
} sl_cascade_opts;

/* A request that waits. The caller's, who leaves it in place until sl_cascade_next() has named it, or sl_cascade_leave(). */
typedef struct sl_cascade_waiter {
    int kind;        /* the owner's: what kind of request it is */
    uint64_t tenant; /* of the request: the pages that it begins to load belong to it */
    /* Another worker that may have leading pages of the prompt; source.pages 0: none is known. The seed is filled in. */
    sl_tier_source source;

    /* When its wait has ended: pages [loaded, loaded_end) of the prompt were just loaded, compared with their checksums, and are
     * pinned until the next call of sl_cascade_next(). Equal: none. */
    int32_t loaded, loaded_end;

    /* the cascade's; zeroed before the first wait */
    sl_cascade_load *load;   /* for which it waits */
    sl_cascade_load *pinned; /* its wait has ended, which it was not told yet */
    struct sl_cascade_waiter *next, *next_news;
    int32_t begun; /* see sl_cascade_news; 0: there is nothing to tell */
    bool queued;
    uint64_t until_ns; /* the end of its time; 0: it has not waited */
    bool looked_up;
    int8_t rounds;
} sl_cascade_waiter;

/* What a request that waits is told. */
typedef struct sl_cascade_news {
    sl_cascade_waiter *w;
    /* what it waited for has ended; sl_cascade_wait() may be called again with it, or it may be freed */
    bool ended;
    /* Not ended: the load reads the first `pages` pages of the prompt, and more than one chunk is still to come; what has arrived
     * can be used meanwhile. Less may arrive, and pages after the first may be of another prompt with the same beginning. Told
     * at most once for each load. */
    int32_t pages;
} sl_cascade_news;

/* Why pages that a request could have used were not loaded from a tier that was asked. */
typedef enum {
    SL_MISS_ABSENT,  /* the tier does not have them, or no tier has one before them */
    SL_MISS_DAMAGED, /* they, or one before them, were damaged */
    SL_MISS_IO,      /* the device failed */
    SL_MISS_LATE,    /* not there within load_timeout_ms */
    SL_MISS_ROOM,    /* no pages of the store for them, or too many loads */
    SL_MISS_REASONS
} sl_cascade_miss;

/* Why pages that were meant for the tier did not get there. */
typedef enum {
    SL_LOST_PRESSURE, /* evicted before they could be written */
    SL_LOST_ADMISSION, /* evicted without a second use; or the tier stores a page only when it is offered a second time */
    SL_LOST_ROOM, /* the tier had no room that it could free */
    SL_LOST_IO,   /* the device failed */
    SL_LOST_SUMS, /* their checksums could not be read */
    SL_LOST_REASONS
} sl_cascade_lost;

/* Of one tier. */
typedef struct sl_cascade_stats {
    uint64_t hits, misses[SL_MISS_REASONS]; /* pages that requests looked for in it */
    uint64_t stored, lost[SL_LOST_REASONS]; /* pages; stored: also those that the tier had already */
    uint64_t bytes_loaded, bytes_stored;    /* of these hits and stored pages */
    uint64_t loads,
        load_ns; /* loads that had pages to read from it, and their durations from the lookup on */
    /* bytes per second of the last reads: their bytes by the time with a read in flight; 0: none yet */
    double read_rate;
    uint64_t writes, write_ns; /* batches that were written, and their durations */
    int32_t loading, writing;  /* pages, now */
    int32_t waiting;           /* requests, now: those whose load has a request at this tier */
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
/* Whether this is the label of the page with this key; if so, its checksums. */
bool sl_cascade_label_read(const uint8_t *label, sl_key key, uint32_t *crc, int32_t n_layers);

/* Makes the tier that will be opened with these options report to the cascade: sets o->evicted. Goes into sl_cascade_tier, or is
 * freed when the tier could not be opened. NULL: out of memory. */
sl_cascade_listener *sl_cascade_listen(sl_tier_opts *o);
/* Closes a tier that no cascade has taken over. An empty one is allowed. */
void sl_cascade_tier_close(sl_cascade_tier *t);

/* Takes the tiers over, also when it fails; 1 to SL_CASCADE_TIERS. SL_ERR_NO_MEMORY, also when descriptors are exhausted. */
sl_status sl_cascade_create(const sl_cascade_opts *opts, const sl_cascade_tier *tiers, int n,
                            sl_cascade **out);
/* Closes the tiers. Waits for their operations that have begun; jobs that wait for checksums are forgotten, so the owner
 * answers none of them afterwards. No request may wait. NULL is allowed. */
void sl_cascade_destroy(sl_cascade *c);

/*
 * Whether this request should wait before it takes a lease: the tiers are asked for the pages that continue its cached
 * prefix, or they are being loaded for another request. Then sl_cascade_next() names w when that has ended, and the request
 * calls this again with the same w. False: there is nothing to wait for.
 */
bool sl_cascade_wait(sl_cascade *c, sl_key seed, const int32_t *tokens, int32_t n_tokens,
                     sl_cascade_waiter *w);
/* Whether a load, for which requests wait, may still bring this page of a chain of keys. */
bool sl_cascade_may_load(const sl_cascade *c, sl_key seed, sl_key key);
/* A number that changes whenever pages were loaded and whenever the requests of a load continue: then it is time to ask
 * sl_cascade_may_load() again. */
uint64_t sl_cascade_changes(const sl_cascade *c);
/* The request waits no more, and is not told anything any more. */
void sl_cascade_leave(sl_cascade *c, sl_cascade_waiter *w);
/*
 * The next news for a request that waits, in the order in which it happened; false: there is none. The cascade calls no request:
 * its owner takes the news after each call that may have made some (wait, leave, tick, sums, checked) and may call the cascade
 * between two of them.
 */
bool sl_cascade_next(sl_cascade *c, sl_cascade_news *out);

/* Takes what the tiers have completed, begins writes, ends waits that are too long. Returns when it must be called
 * again at the latest (UINT64_MAX: not by time; now_ns: there is news). Call it also when the descriptor is readable,
 * and after pages were published. */
uint64_t sl_cascade_tick(sl_cascade *c, uint64_t now_ns);
int sl_cascade_fd(const sl_cascade *c);

/* The answers to sl_cascade_calls. crc: [n][layers], copied; NULL: a page has no checksums. damaged: the pages with other checksums,
 * in the order in which they were asked for. */
void sl_cascade_sums(sl_cascade *c, sl_cascade_job *job, const uint32_t *crc);
void sl_cascade_checked(sl_cascade *c, sl_cascade_job *job, const int32_t *damaged, int32_t n);

/* From now on nothing is loaded, and tiers with write_back are offered every page of the tree. */
void sl_cascade_finish(sl_cascade *c);
/* No page waits to be offered under the present policy, and nothing is in flight. */
bool sl_cascade_idle(const sl_cascade *c);

int sl_cascade_n_tiers(const sl_cascade *c);
void sl_cascade_stats_get(const sl_cascade *c, int tier, sl_cascade_stats *out);
/* Requests that wait for any tier. */
int32_t sl_cascade_waiting(const sl_cascade *c);
/* Health and numbers of a tier itself. */
sl_tier *sl_cascade_tier_at(const sl_cascade *c, int tier);

#endif
