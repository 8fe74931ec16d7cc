/*
 * The data of a cascade, shared by its parts: cascade.c (creation, time, statistics), cascade_load.c (tier to store),
 * cascade_write.c (store to tier). No other file includes this.
 */
#ifndef SL_KVSTORE_CASCADE_IMPL_H
#define SL_KVSTORE_CASCADE_IMPL_H

#include "kvstore/cascade.h"
#include "kvstore/page_key.h"

enum { PAGE = SL_KEY_PAGE_TOKENS };

/* What the tier stores after the bytes of a page; the kept checksums, crc[layers], follow. Integers are native, as in page keys. */
typedef struct sl_cascade_label {
    sl_key seed, prev;
    int32_t tokens[PAGE];
} sl_cascade_label;

/* The memory of the pages of one request to the tier: n pages, each with its spans, of which the last is its label. */
typedef struct sl_cascade_block {
    int32_t n;
    struct iovec *spans; /* [n][n_spans + 1] */
    sl_tier_page *pages; /* [n] */
    uint8_t *labels;     /* [n][label_bytes] */
    sl_status *results;  /* [n] */
} sl_cascade_block;

typedef enum { LOAD_LOOKUP, LOAD_READ, LOAD_CHECK, LOAD_REMOVE, WRITE_SUMS, WRITE_SET } sl_cascade_state;

/* A load, or a batch of writes. */
struct sl_cascade_job {
    sl_cascade *c;
    sl_cascade_state state;
    sl_cascade_job *next;
    sl_tier_req req;
    sl_cascade_block block;
    uint64_t start_ns;
    int32_t n;    /* keys */
    sl_key *keys; /* [n] */

    /* writes */
    int32_t page[SL_CASCADE_BATCH];

    /* loads */
    sl_cascade_waiter *waiters;
    sl_lease *lease;     /* NULL: not yet */
    sl_key seed, prev;   /* prev: key of the page before the first key */
    int32_t *tokens;     /* [first + n][PAGE], of the whole prefix */
    int32_t first;       /* place of keys[0] in the prefix */
    int32_t from, count; /* keys[from .. from + count) are read */
    int32_t arrived;     /* leading pages of those that are right so far */
    uint32_t *crc;       /* [count][layers] */
    uint64_t deadline_ns;
    bool late;
};

struct sl_cascade {
    sl_cascade_opts o;
    sl_tier *tier;
    int32_t n_layers, n_spans;
    size_t page_bytes, label_bytes; /* of a page in the arena; of its label with the checksums */
    sl_cascade_job *loads, *writes;
    int32_t n_loads, n_writes, n_late;
    int32_t max_writing; /* pages */
    uint64_t scan_ns;    /* the next look at the oldest pages, unless there are others, or fewer are free */
    int32_t scan_free;   /* pages, at the last look */
    uint64_t scan_evictions;
    bool finishing, closing;
    sl_cascade_stats st;
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

/* cascade_load.c */
/* Ends the waits that are too long; returns the next deadline. */
uint64_t sl_cascade_loads_tick(sl_cascade *c, uint64_t now);
void sl_cascade_load_free(sl_cascade_job *l);

/* cascade_write.c */
void sl_cascade_writes_begin(sl_cascade *c, uint64_t now);
void sl_cascade_write_sums(sl_cascade_job *b, const uint32_t *crc);
void sl_cascade_write_free(sl_cascade_job *b);

#endif
