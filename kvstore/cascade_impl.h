/*
 * The data of a cascade, shared by its parts: cascade.c (creation, time, statistics), cascade_wait.c (the requests that
 * wait), cascade_load.c (a load), cascade_lookup.c (which tier has its pages), cascade_read.c (its chunks),
 * cascade_write.c (store to tiers). No other file includes this.
 */
#ifndef SL_KVSTORE_CASCADE_IMPL_H
#define SL_KVSTORE_CASCADE_IMPL_H

#include "kvstore/cascade.h"
#include "kvstore/page_key.h"

enum { PAGE = SL_KEY_PAGE_TOKENS };

/* What a tier stores after the bytes of a page; the kept checksums, crc[layers], follow. Integers are native, as in page keys. */
typedef struct sl_cascade_label {
    sl_key seed, prev;
    int32_t tokens[PAGE];
} sl_cascade_label;

/* The memory of the pages of one request to a tier: n pages, each with its spans, of which the last is its label. */
typedef struct sl_cascade_block {
    int32_t n;
    struct iovec *spans; /* [n][n_spans + 1] */
    sl_tier_page *pages; /* [n] */
    uint8_t *labels;     /* [n][label_bytes] */
    sl_status *results;  /* [n] */
} sl_cascade_block;

struct sl_cascade_listener {
    sl_cascade *c; /* NULL: there is none yet */
    int tier;
};

typedef enum {
    LOAD_LOOKUP,
    CHUNK_READ,
    CHUNK_CHECK,
    CHUNK_REMOVE,
    CHUNK_READY, /* verified, and waits for the chunks before it */
    WRITE_SUMS,
    WRITE_SET
} sl_cascade_state;

/* A request to one tier with its memory: a lookup or a chunk of a load, or a batch of writes. */
struct sl_cascade_job {
    sl_cascade *c;
    sl_cascade_state state;
    sl_cascade_job *next;
    int tier; /* of the request in flight, or of the last one */
    sl_tier_req req;
    sl_tier_source advice; /* of a lookup */
    sl_cascade_block block;
    uint64_t start_ns;
    int32_t n;         /* keys of the request */
    sl_key *keys;      /* [n] */
    int32_t *page;     /* writes: [n] */
    uint64_t *tenants; /* writes: [n] */
    int32_t *which;    /* lookups and chunks: [n] place of each key in the load */
    /* chunks: keys [at, at + count) of the load; the block has their pages, asked and answers those of the request */
    sl_cascade_load *load;
    int32_t at, count;
    int32_t arrived; /* leading pages that are right, once it is CHECK or READY */
    sl_tier_page *asked;
    sl_status *answers;
    uint32_t *crc; /* [count][layers] */
    bool late;     /* the load has given it up, but it has not ended */
};

/* What is known about a page of a load at a tier: 0 nothing, SEEN_HAS, or SEEN_MISSED + sl_cascade_miss. */
enum { SEEN_HAS = 1, SEEN_MISSED = 2 };

struct sl_cascade_load {
    sl_cascade *c;
    sl_cascade_load *next;
    sl_cascade_waiter *waiters;
    sl_cascade_job *jobs;  /* lookups and chunks that have not ended, in the order of their pages */
    sl_lease *lease;       /* of the prefix with the pages that are read; NULL: not yet */
    sl_key seed, prev;     /* prev: key of the page before the first key */
    uint64_t tenant;       /* of the request that began it */
    sl_tier_source advice; /* of the request that began it; pages: of the whole prefix */
    int32_t *tokens;       /* [first + n][PAGE], of the whole prefix */
    int32_t first;         /* place of keys[0] in the prefix */
    int32_t n;
    sl_key *keys;   /* [n] */
    uint8_t *seen;  /* [tiers][n] */
    int8_t *source; /* [n] tier that has the page, or has delivered it; -1: none */
    bool *got;      /* [n] it is in the store */
    bool reading;   /* the lookup has ended, and there are pages to read */
    int32_t from;   /* first page to read: those before it have entered the tree since the lookup */
    int32_t limit;  /* the requests wait for pages [from, limit) */
    int32_t begun;  /* [from, begun) belong to a chunk */
    int32_t published;
    int32_t pages; /* of the store that it has taken */
    uint64_t start_ns, deadline_ns;
    uint64_t asked_ns[SL_CASCADE_TIERS]; /* when it asked each tier first; 0: not yet */
    uint8_t read_from;                   /* bit t: it has read from tier t */
    uint8_t order[SL_CASCADE_TIERS];     /* in which the tiers are asked */
    bool woken;                          /* its requests have continued: what is left only drains */
    int32_t pins;                        /* requests that continue with its pages, and were not told yet */
};

/* One tier, as the cascade uses it. */
typedef struct sl_cascade_slot {
    sl_cascade_tier t;
    sl_cascade_job *writes;
    int32_t n_writes, n_late;
    int32_t n_reads; /* gets in flight */
    /* while there are gets: the time up to which they are counted; then: the last one's end */
    uint64_t reads_due_ns;
    double rate_bytes, rate_ns; /* of the last reads, older ones count less */
    uint64_t scan_ns;  /* the next look at the oldest pages, unless there are others, or fewer are free */
    int32_t scan_free; /* pages, at the last look */
    uint64_t scan_evictions;
    sl_cascade_stats st;
} sl_cascade_slot;

struct sl_cascade {
    sl_cascade_opts o;
    sl_cascade_slot tiers[SL_CASCADE_TIERS];
    int n_tiers;
    int epoll; /* of the descriptors of the tiers */
    int32_t n_layers, n_spans;
    size_t page_bytes, label_bytes; /* of a page in the arena; of its label with the checksums */
    sl_cascade_load *loads;
    int32_t n_loads, waiting;
    sl_cascade_waiter *news, *news_tail; /* requests to tell, in order */
    sl_cascade_load *told;               /* of the request that was told last, which may still use its pins */
    int32_t loading;                     /* pages of the store that loads have taken */
    uint64_t changes;                    /* see sl_cascade_changes() */
    int32_t max_writing;                 /* pages, for each tier */
    int32_t chunk_pages;
    bool finishing, closing;
};

/* cascade.c */
bool sl_cascade_block_make(const sl_cascade *c, int32_t n, sl_cascade_block *out);
void sl_cascade_block_free(sl_cascade_block *b);
/* Makes page i of the block consist of this page of the arena and its label. */
void sl_cascade_block_page(const sl_cascade *c, sl_cascade_block *b, int32_t i, int32_t page);
static inline uint8_t *sl_cascade_block_label(const sl_cascade *c, const sl_cascade_block *b, int32_t i)
{
    return b->labels + (size_t)i * c->label_bytes;
}
void sl_cascade_job_unlink(sl_cascade_job **list, sl_cascade_job *job);
void sl_cascade_job_free(sl_cascade_job *job);

/* cascade_load.c */
/* Ends the waits that are too long; returns the next deadline. */
uint64_t sl_cascade_loads_tick(sl_cascade *c, uint64_t now);
void sl_cascade_load_free(sl_cascade_load *l);
/* Something of the load has changed: begins what can begin, lets requests continue, ends the load. l may be gone afterwards. */
void sl_cascade_load_advance(sl_cascade_load *l);
/* A load of pages [have, most) of this prefix, which nothing knows yet; NULL: out of memory. */
sl_cascade_load *sl_cascade_load_make(sl_cascade *c, sl_key seed, const int32_t *tokens, int32_t have,
                                      int32_t most);
static inline void sl_cascade_missed(sl_cascade_load *l, int tier, int32_t i, sl_cascade_miss why)
{
    l->seen[tier * l->n + i] = (uint8_t)(SEEN_MISSED + why);
}

/* cascade_lookup.c */
/* Whether a load may ask this tier now; if not, why. */
bool sl_cascade_usable(const sl_cascade *c, int tier, sl_cascade_miss *why);
/* Sets the order in which the load asks the tiers; the place of one in it. */
void sl_cascade_load_order(sl_cascade_load *l);
int sl_cascade_load_place(const sl_cascade_load *l, int tier);
/* Asks the next tier, from this place of the order on, for the pages that were not found; after the last one the reading
 * begins. */
void sl_cascade_look_up(sl_cascade_load *l, int at);
/* Notes the request of the job in flight, and submits it. */
void sl_cascade_load_submit(sl_cascade_job *j, sl_tier_op op, sl_tier_done_fn *done);
static inline bool sl_cascade_needs_advice(const sl_cascade *c, int tier)
{
    return c->tiers[tier].t.tier->ops->needs_source;
}

/* cascade_wait.c */
/* Puts the request in the list of those that are to be told, once. */
void sl_cascade_tell(sl_cascade *c, sl_cascade_waiter *w);
/* Tells a request that waits what will come, if it is worth while. */
void sl_cascade_tell_begun(const sl_cascade_load *l, sl_cascade_waiter *w);

/* cascade_read.c */
/* Begins the next chunk. False: not now, or there is none; then l->limit may be less than before. */
bool sl_cascade_chunk_begin(sl_cascade_load *l);
void sl_cascade_chunk_checked(sl_cascade_job *j, const int32_t *damaged, int32_t n);

/* cascade_write.c */
void sl_cascade_writes_begin(sl_cascade *c, int tier, uint64_t now);
void sl_cascade_write_sums(sl_cascade_job *b, const uint32_t *crc);
void sl_cascade_write_free(sl_cascade_job *b);

#endif
