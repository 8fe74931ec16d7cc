/*
 * The disk tier's index: which page is in which slot of the file, leases, admission, and which segment is evicted next.
 * It knows numbers, never bytes or files. The caller serialises all calls.
 *
 * Pages are appended to the active segment. When it is full, the segment whose pages were used least recently on average
 * is emptied as a whole and filled again. Its pages that were used are dropped, not rewritten: a page that is in use
 * is in host memory too and is offered again when it is evicted there, so every page costs exactly one
 * write of the device. With one page per segment this is LRU.
 *
 * Tenants (kvstore/quota.h). A segment belongs to one tenant, and every tenant has an active segment of its own, so what one
 * tenant writes never removes a page of another from a segment that both use. The unit of quotas is the segment, at least one for a
 * tenant whose limit is not 0. At most one in eight segments can belong to tenants without a rule that are told apart;
 * the others of them share segments.
 *
 * A slot is empty, being written, or stored. An empty slot is used again only after its segment has been emptied.
 */
#ifndef SL_KVSTORE_DISK_INDEX_H
#define SL_KVSTORE_DISK_INDEX_H

#include "kvstore/disk_format.h"
#include "kvstore/quota.h"

typedef enum { SL_SLOT_EMPTY, SL_SLOT_WRITING, SL_SLOT_STORED } sl_disk_slot_state;

typedef struct sl_disk_slot {
    sl_key key;
    uint64_t lease_end_ns, used; /* used: value of `tick` at the last use */
    uint32_t used_s,
        stored_s;  /* sl_now_ns() in seconds at the last use, and when it was stored or recovered */
    int32_t chain; /* next slot of the hash bucket, -1: none */
    uint8_t state;
} sl_disk_slot;

typedef struct sl_disk_seg {
    uint64_t generation;
    uint64_t use_sum; /* of `used` of its stored pages */
    uint64_t batch;   /* the last set that stored or found a page in it */
    uint32_t filled;  /* slots given out since it was emptied */
    int32_t busy;     /* operations in flight on its blocks */
    uint8_t tenant;   /* to which it belongs: an entry of the quota */
    bool owned;       /* false: to none, and it has no pages */
} sl_disk_seg;

typedef struct sl_disk_index {
    sl_disk_store store;
    uint64_t n_segments, n_slots;
    sl_disk_slot *slots; /* [n_slots] */
    sl_disk_seg *segs;   /* [n_segments] */
    int32_t *buckets;    /* [mask + 1] */
    uint64_t mask, tick, pages, evictions;
    uint64_t leases;                  /* slots with a lease that has not been released; it may have ended */
    sl_quota quota;                   /* in segments; its references are segments */
    int64_t active[SL_QUOTA_ENTRIES]; /* segment that a tenant fills; -1: none */
    /* NULL, or called for every page of a segment that is emptied: seconds since it was used last, and since it was stored */
    void (*evicted)(void *ctx, sl_key key, double unused_s, double age_s);
    void *evicted_ctx;
    uint64_t *ghosts; /* [mask + 1] hashes of keys that were offered once and not stored */
} sl_disk_index;

/* SL_ERR_NO_MEMORY. All slots are empty, all segments have generation 0. About 60 bytes for each slot. quota: NULL allowed. The
 * index must not be moved afterwards. */
sl_status sl_disk_index_init(sl_disk_index *ix, const sl_disk_store *store, uint64_t n_segments,
                             const sl_quota_opts *quota);
void sl_disk_index_free(sl_disk_index *ix);

/* The slot of a key, being written or stored; -1: none. */
int64_t sl_disk_index_find(const sl_disk_index *ix, sl_key key);
/* The page of a stored slot is used now. */
void sl_disk_index_touch(sl_disk_index *ix, int64_t slot);
/* False: the key was not offered before (it is remembered now). Memory is bounded, so an old offer can be forgotten. */
bool sl_disk_index_admit(sl_disk_index *ix, sl_key key);

/* The next slot of the tenant's active segment, being written from now on; -1: it has none or it is full. */
int64_t sl_disk_index_claim(sl_disk_index *ix, sl_key key, uint64_t tenant, uint64_t batch);
/* Empties the segment that the tenant fills next and gives it this generation; the tenant has no active one until
 * sl_disk_index_open(). -1: every segment that the tenant may take has a page under a lease or of this batch; -2: there is another
 * one, but operations on it are in flight. */
int64_t sl_disk_index_recycle(sl_disk_index *ix, uint64_t tenant, uint64_t batch, uint64_t now_ns,
                              uint64_t generation);
/* The header of a segment that was recycled is written: its tenant fills it from now on. */
void sl_disk_index_open(sl_disk_index *ix, int64_t segment);
/* The page of a slot is complete. */
void sl_disk_index_publish(sl_disk_index *ix, int64_t slot);
/* Empties a slot; leases end. */
void sl_disk_index_drop(sl_disk_index *ix, int64_t slot);
/* At recovery: a segment that was found; its slots are not used before it is recycled. */
void sl_disk_index_own(sl_disk_index *ix, uint64_t segment, uint64_t generation, uint64_t tenant);
/* After recovery: empties the least recently used segments of tenants that have more than their limit. */
void sl_disk_index_trim(sl_disk_index *ix);
/* At recovery: a page that was found; of two with one key the later one stays. */
void sl_disk_index_adopt(sl_disk_index *ix, int64_t slot, sl_key key, uint64_t sequence);
/* Gives the page of a stored slot a lease until then, unless it has a longer one; 0 releases it. */
void sl_disk_index_lease(sl_disk_index *ix, int64_t slot, uint64_t end_ns);
/* Pages under a lease. Reads all slots if there is one that has not been released. */
uint64_t sl_disk_index_leased(const sl_disk_index *ix, uint64_t now_ns);

static inline sl_disk_seg *sl_disk_index_seg(sl_disk_index *ix, int64_t slot)
{
    return &ix->segs[(uint64_t)slot / ix->store.slots_per_segment];
}

#endif
