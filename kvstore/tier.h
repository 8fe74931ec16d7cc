/*
 * Storage tier seam: where pages can be stored outside of the host store (disk, shared stores). Pages are opaque blocks
 * of one fixed size, identified by their page key, so a tier knows neither models nor layouts. A page in memory is a list of
 * spans, because with the layout `layer_first` a page is not contiguous in the arena; the spans of one page, in their
 * order, hold exactly page_bytes bytes.
 *
 * Everything is asynchronous. A request (sl_tier_req) belongs to the caller, who keeps it, its keys, its pages and its
 * results untouched until `done` has run; the tier neither reads nor writes any of them afterwards. `done` runs inside
 * sl_tier_poll() or sl_tier_close() on the owner thread, never inside the call that made the request. Between two polls
 * the owner waits for sl_tier_fd() to become readable.
 *
 * Every request has one result per key, so that a missing key does not fail the others of its batch:
 *
 *   SL_OK             exists: the page is there; get: it has arrived and is exactly what was set; set: it is stored, or
 *                     was there before; remove: it was there and is gone
 *   SL_ERR_NOT_FOUND  exists, get, remove: the page is not there
 *   SL_ERR_CORRUPT    get: the stored page is short or damaged. It is forgotten, so it is not offered again
 *   SL_ERR_EXHAUSTED  set: there was no room that could be freed
 *   SL_AGAIN          set: not admitted at this first offer; the second offer of the same key is (second_use)
 *   SL_ERR_IO         the device failed. A get forgets the page
 *   SL_ERR_CANCELLED  the request was cancelled before this key began
 *
 * The spans of a get whose result is not SL_OK have undefined contents.
 *
 * What every implementation guarantees (tests/unit/kvstore/test_tier.c runs against all of them, and against each of
 * them with injected faults):
 *   - exists with a lease protects the pages that are there from eviction until the lease ends, so that a following get
 *     finds them. A lease that has ended is a miss, not an error.
 *   - set of a key that is there changes nothing, because keys name content. When there is no room, pages without a
 *     lease are evicted, those that were used least recently first, in the units of the implementation (one page, or
 *     one segment of pages). A set never evicts the pages of its own batch.
 *   - A request sees the effects of every request whose done has run before it was made. An `ordered` implementation
 *     also completes requests in the order in which they were made; another may complete them in any order, and a
 *     request may or may not see the effects of those in flight.
 *   - cancel drains: keys that have begun are finished, the others get SL_ERR_CANCELLED, and done runs with
 *     SL_ERR_CANCELLED when no buffer of the request is in use any more.
 *   - close cancels every request that is pending and runs its done before it returns.
 *   - After a failure of the device every request still ends, and sl_tier_health() names the reason.
 *   - sl_tier_opts.evicted names every page that has left the tier without a remove of its owner: evicted, or forgotten
 *     because a get found it damaged or could not read it. It is called before the `done` of every request that
 *     completed later than the page left.
 *
 * A tier belongs to one thread. Implementations: "memory" (kvstore/tier_memory.c), which is the example for others;
 * "disk" (kvstore/tier_disk.c), whose pages survive the process; "redis" (kvstore/tier_redis.c) and "nixl"
 * (kvstore/tier_nixl.c), whose pages are shared with other processes (`shared`): the store evicts by its own rules, and
 * a lease only makes that less likely, so that a get can miss what exists has found.
 */
#ifndef SL_KVSTORE_TIER_H
#define SL_KVSTORE_TIER_H

#include <sys/uio.h>

#include "base/hash.h"
#include "base/options.h"
#include "kvstore/quota.h"

typedef struct sl_tier_ops sl_tier_ops;

/* The first member of every implementation's object. */
typedef struct sl_tier {
    const sl_tier_ops *ops;
} sl_tier;

/*
 * The options that every tier of the configuration has; the struct of its options begins with them as `common`. A tier
 * describes its options in a table (sl_tier_ops.options), whose section is "kvstore." and its name.
 */
enum { SL_TIER_OPTIONS_BYTES = 6144 };
typedef struct sl_tier_common {
    uint64_t bytes; /* capacity */
} sl_tier_common;

/* Values of any tier's options. */
typedef struct sl_tier_values {
    _Alignas(16) unsigned char bytes[SL_TIER_OPTIONS_BYTES];
} sl_tier_values;

#define SL_TIER_BYTES(type, doc)                                                                             \
    SL_OPTION_AT(type, "bytes", common.bytes, SL_OPTION_SIZE, 0, "0", 0, (int64_t)1 << 60, NULL, doc)

typedef struct sl_tier_opts {
    size_t page_bytes; /* of every page */
    /* at most this much is kept, including what the tier needs for itself. Mandatory */
    uint64_t capacity_bytes;
    sl_key fingerprint;     /* sl_tier_fingerprint(): pages of another one are never offered */
    sl_key format;          /* identity of the page geometry, likewise */
    const char *directory;  /* persistent tiers: where the pages are. Borrowed for the call */
    uint64_t segment_bytes; /* disk: unit of eviction; 0 chooses by capacity */
    int32_t queue_depth;    /* operations in flight on the device; 0 chooses by page size */
    uint32_t slow_ms;       /* an operation that takes longer makes the tier degraded; 0 means 5,000 */
    bool required;          /* shared tiers: open fails when the store cannot be reached */
    bool second_use;        /* disk: store a page only when it is offered for the second time */
    /* Values of ops->options, borrowed for the call; mandatory where a tier has them, but for disk, for which NULL means
     * the fields of this struct. */
    const void *options;
    const char *instance; /* with options: the name of this worker among those of one host ("decode-0") */
    /* shared tiers: begins every name there: letters, digits, '_', '-' and '.', at most 24 */
    const char *prefix;
    /* NULL, or called inside of sl_tier_poll() on the owner thread, never during open and close: these pages are not in
     * the tier any more. keys are valid during the call; it must not call the tier. A tier that shares its pages with
     * other processes reports what it knows, which may be nothing. When memory is exhausted reports are lost. */
    void (*evicted)(void *ctx, const sl_key *keys, int32_t n);
    void *evicted_ctx;
    const sl_quota_opts *quota; /* disk: NULL, or what tenants may have. Borrowed for the call */
    /* disk: NULL, or called on any thread for each page that is evicted: seconds since it was used last (looked for, read, or stored
     * again), and since it was stored. For a page that open has found they count from there. */
    void (*aged)(void *ctx, double unused_s, double age_s);
    void *aged_ctx;
} sl_tier_opts;

/* One page in memory. */
typedef struct sl_tier_page {
    const struct iovec *spans;
    int32_t n_spans;
} sl_tier_page;

/* A worker that may have pages of one chain of keys in its memory: advice, for tiers that can use it (decode/pages/pull.h). */
typedef struct sl_tier_source {
    uint32_t router, worker; /* the session with the router that has named it, and its id there */
    uint64_t epoch;          /* of its session with that router */
    int32_t pages;           /* leading keys of the request that it has; 0: nothing is known */
    sl_key seed;             /* of the chain */
    char address[128];
} sl_tier_source;

typedef enum { SL_TIER_EXISTS, SL_TIER_GET, SL_TIER_SET, SL_TIER_REMOVE } sl_tier_op;

typedef struct sl_tier_req sl_tier_req;

/* st: SL_OK - every key was tried, see the results; SL_ERR_CANCELLED - cancelled, results as far as it came. May make
 * new requests. */
typedef void sl_tier_done_fn(sl_tier_req *req, sl_status st);

/* The caller fills in the first part; the second belongs to the tier until done has run. */
struct sl_tier_req {
    sl_tier_op op;
    int32_t n;                 /* keys, at least 1 */
    const sl_key *keys;        /* [n] */
    const sl_tier_page *pages; /* [n], get and set only */
    const uint64_t *tenants;   /* [n], set only: to whom the pages belong (kvstore/quota.h); NULL: to none */
    uint32_t lease_ms;         /* exists only; 0: no lease */
    bool not_a_use;            /* get only: does not count as a use of the pages, when the tier evicts */
    const sl_tier_source *source; /* exists only; NULL: nothing is known */
    sl_status *results;           /* [n], written before done */
    sl_tier_done_fn *done;
    void *cookie;

    sl_tier_req *next;
    int32_t begun, open; /* keys that have begun, and those of them that have not ended */
    int32_t admitted;    /* keys that may be stored */
    bool cancelled;
};

typedef enum {
    SL_TIER_HEALTHY,
    SL_TIER_DEGRADED, /* slow, or stores no new pages */
    SL_TIER_FAILED    /* every key ends with SL_ERR_IO */
} sl_tier_state;

typedef struct sl_tier_health {
    sl_tier_state state;
    char reason[256]; /* empty when healthy */
} sl_tier_health;

typedef struct sl_tier_stats {
    uint64_t pages, bytes, capacity_bytes; /* now; bytes: of pages */
    uint64_t leased;                       /* pages under a lease that has not ended */
    uint64_t hits, misses, damaged;        /* pages of gets */
    uint64_t sets, evictions;              /* pages stored, pages evicted */
    uint64_t not_stored_room, not_stored_admission,
        not_stored_io; /* pages of sets that are not stored, by reason */
    uint64_t io_errors;
    uint64_t bytes_read,
        bytes_written; /* to and from the device. bytes_written is the wear of this process */
    /* the wear since the store was created, in whole records; persistent tiers only */
    uint64_t bytes_written_ever;
    uint64_t recovered; /* pages that were found at open */
    bool set_aside;     /* persistent tiers: what was stored could not be used, and a new store was begun */
} sl_tier_stats;

struct sl_tier_ops {
    const char *name, *description;
    const sl_options *options; /* of the configuration; NULL: it cannot be configured */
    bool persistent;           /* pages survive close and open */
    bool ordered;              /* requests complete in the order in which they were made */
    bool shared;               /* other processes use the same pages, and the store decides what it evicts */
    bool needs_source;         /* exists finds pages only where the request names a source */
    /* pages belong to others: remove says that a page arrived damaged, and its owner decides */
    bool has_owners;
    sl_status (*open)(const sl_tier_opts *opts, sl_tier **out, sl_err *err);
    void (*close)(sl_tier *t);
    int (*fd)(const sl_tier *t);
    void (*submit)(sl_tier *t, sl_tier_req *req);
    void (*cancel)(sl_tier *t, sl_tier_req *req);
    void (*release)(sl_tier *t, const sl_key *keys, int32_t n);
    int (*poll)(sl_tier *t);
    void (*health)(sl_tier *t, sl_tier_health *out);
    void (*stats)(sl_tier *t, sl_tier_stats *out);
    /* NULL when the tier cannot list its pages. See sl_tier_list(). */
    int32_t (*list)(sl_tier *t, uint64_t *cursor, sl_key *keys, int32_t n);
    /* NULL when the tier knows no tenants. See sl_tier_quota_uses(). */
    int (*quota_uses)(sl_tier *t, sl_quota_use *out);
    /* For tests: changes the stored bytes of this page. False: there is no such page. No request may be in flight. */
    bool (*damage)(sl_tier *t, sl_key key);
};

extern const sl_tier_ops sl_tier_memory_ops, sl_tier_disk_ops, sl_tier_nixl_ops;
extern const sl_tier_ops sl_tier_redis_ops; /* only in builds that have hiredis: see sl_tier_find() */

/* The registry: the i-th implementation (NULL after the last), by name (NULL: unknown), all names (ends with NULL). */
const sl_tier_ops *sl_tier_at(size_t i);
const sl_tier_ops *sl_tier_find(const char *name);
const char *const *sl_tier_names(void);
/* Tables of options of tiers that this build lacks, whose keys are refused with the reason; ends with NULL. */
const sl_options *const *sl_tier_absent(void);

/*
 * Opens a tier. SL_ERR_INVALID: an option cannot be. SL_ERR_DENIED: wrong credentials. SL_ERR_REFUSED: what is stored
 * belongs to another user, model or format version; nothing is changed. SL_ERR_UNSUPPORTED, SL_ERR_EXHAUSTED,
 * SL_ERR_IO: the machine cannot, there is no room, it failed. SL_ERR_NO_MEMORY. The text names file, key and reason;
 * with options it begins with the key.
 */
static inline sl_status sl_tier_open(const sl_tier_ops *ops, const sl_tier_opts *opts, sl_tier **out,
                                     sl_err *err)
{
    return ops->open(opts, out, err);
}

/* SL_OK: done will run. SL_ERR_INVALID: n < 1, done will not run. Never waits. */
static inline sl_status sl_tier_submit(sl_tier *t, sl_tier_req *req)
{
    if (req->n < 1)
        return SL_ERR_INVALID;
    req->next = NULL;
    req->begun = req->open = 0;
    req->cancelled = false;
    t->ops->submit(t, req);
    return SL_OK;
}

/* Cancels a request whose done has not run. It still runs, in a later poll. Never waits. */
static inline void sl_tier_cancel(sl_tier *t, sl_tier_req *req)
{
    t->ops->cancel(t, req);
}

/* Readable (poll, epoll) when sl_tier_poll() has something to do. The tier's; the owner does not read it. */
static inline int sl_tier_fd(const sl_tier *t)
{
    return t->ops->fd(t);
}

/* Calls `done` of the requests that are complete; returns their number. Never waits. */
static inline int sl_tier_poll(sl_tier *t)
{
    return t->ops->poll(t);
}

/* Ends the leases of these keys, for all requests that are made afterwards. Never waits: another process that uses a `shared` tier
 * may see them a little longer. */
static inline void sl_tier_release(sl_tier *t, const sl_key *keys, int32_t n)
{
    t->ops->release(t, keys, n);
}

static inline void sl_tier_get_health(sl_tier *t, sl_tier_health *out)
{
    t->ops->health(t, out);
}

static inline void sl_tier_get_stats(sl_tier *t, sl_tier_stats *out)
{
    t->ops->stats(t, out);
}

/*
 * The keys of the pages that are in the tier, in parts: begins with *cursor 0, writes at most n keys (n >= 1), moves *cursor
 * and returns their number; 0: there are no more, or the tier cannot list them. A page that is stored, or leaves, between two
 * parts may or may not be listed. Its `done` or `evicted` is called after the part that lists it was returned.
 */
static inline int32_t sl_tier_list(sl_tier *t, uint64_t *cursor, sl_key *keys, int32_t n)
{
    return t->ops->list ? t->ops->list(t, cursor, keys, n) : 0;
}

/* What tenants have in the tier, for metrics; out has room for 2 + SL_QUOTA_RULES. Returns their number; 0: tenants are not told
 * apart. The names are valid until close. */
static inline int sl_tier_quota_uses(sl_tier *t, sl_quota_use *out)
{
    return t->ops->quota_uses ? t->ops->quota_uses(t, out) : 0;
}

/* Waits for the operations that have begun, except for those that their device does not end in time. NULL is allowed. */
static inline void sl_tier_close(sl_tier *t)
{
    if (t)
        t->ops->close(t);
}

/* The number of leading keys whose result is SL_OK: the part of a prefix that can be used. */
static inline int32_t sl_tier_prefix(const sl_tier_req *req)
{
    int32_t n = 0;
    while (n < req->n && req->results[n] == SL_OK)
        n++;
    return n;
}

/* What sl_tier_opts.fingerprint is for pages whose rows have these bits (sl_backend_bits()): that of the model, unless they are those
 * of GPUs, which differ from one architecture to the next. */
sl_key sl_tier_fingerprint(sl_key model, uint32_t bits);

/* Between a page in memory and page_bytes contiguous bytes, for implementations. */
void sl_tier_gather(const sl_tier_page *from, uint8_t *to, size_t page_bytes);
void sl_tier_scatter(const uint8_t *from, const sl_tier_page *to, size_t page_bytes);

#endif
