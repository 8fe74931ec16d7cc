/* See disk_index.h. */
#include "kvstore/disk_index.h"

#include <stdlib.h>

sl_status sl_disk_index_init(sl_disk_index *ix, const sl_disk_store *store, uint64_t n_segments)
{
    uint64_t n = 16;
    *ix = (sl_disk_index){.store = *store,
                          .n_segments = n_segments,
                          .n_slots = n_segments * store->slots_per_segment,
                          .active = -1};
    if (ix->n_slots > INT32_MAX)
        return SL_ERR_NO_MEMORY;
    while (n < ix->n_slots)
        n *= 2;
    ix->mask = n - 1;
    ix->slots = calloc(ix->n_slots, sizeof *ix->slots);
    ix->segs = calloc(n_segments, sizeof *ix->segs);
    ix->buckets = malloc(n * sizeof *ix->buckets);
    ix->ghosts = calloc(n, sizeof *ix->ghosts);
    if (!ix->slots || !ix->segs || !ix->buckets || !ix->ghosts) {
        sl_disk_index_free(ix);
        return SL_ERR_NO_MEMORY;
    }
    for (uint64_t i = 0; i < n; i++)
        ix->buckets[i] = -1;
    return SL_OK;
}

void sl_disk_index_free(sl_disk_index *ix)
{
    free(ix->slots);
    free(ix->segs);
    free(ix->buckets);
    free(ix->ghosts);
    *ix = (sl_disk_index){.active = -1};
}

int64_t sl_disk_index_find(const sl_disk_index *ix, sl_key key)
{
    int32_t s = ix->buckets[key.lo & ix->mask];
    while (s >= 0 && !sl_key_eq(ix->slots[s].key, key))
        s = ix->slots[s].chain;
    return s;
}

void sl_disk_index_touch(sl_disk_index *ix, int64_t slot)
{
    sl_disk_slot *s = &ix->slots[slot];
    ix->tick++;
    sl_disk_index_seg(ix, slot)->use_sum += ix->tick - s->used;
    s->used = ix->tick;
}

bool sl_disk_index_admit(sl_disk_index *ix, sl_key key)
{
    uint64_t *ghost = &ix->ghosts[key.lo & ix->mask];
    bool known = *ghost == (key.hi | 1); /* an unused one is 0 */
    *ghost = known ? 0 : key.hi | 1;
    return known;
}

static void link_slot(sl_disk_index *ix, int64_t slot, sl_key key)
{
    int32_t *bucket = &ix->buckets[key.lo & ix->mask];
    ix->slots[slot].key = key;
    ix->slots[slot].chain = *bucket;
    *bucket = (int32_t)slot;
}

int64_t sl_disk_index_claim(sl_disk_index *ix, sl_key key, uint64_t batch)
{
    if (ix->active < 0 || ix->segs[ix->active].filled == ix->store.slots_per_segment)
        return -1;
    sl_disk_seg *g = &ix->segs[ix->active];
    int64_t slot = ix->active * ix->store.slots_per_segment + g->filled++;
    g->batch = batch;
    ix->slots[slot] = (sl_disk_slot){.state = SL_SLOT_WRITING};
    link_slot(ix, slot, key);
    return slot;
}

void sl_disk_index_publish(sl_disk_index *ix, int64_t slot)
{
    ix->slots[slot].state = SL_SLOT_STORED;
    ix->pages++;
    sl_disk_index_touch(ix, slot);
}

void sl_disk_index_drop(sl_disk_index *ix, int64_t slot)
{
    sl_disk_slot *s = &ix->slots[slot];
    int32_t *at = &ix->buckets[s->key.lo & ix->mask];
    if (s->state == SL_SLOT_EMPTY)
        return;
    while (*at != slot)
        at = &ix->slots[*at].chain;
    *at = s->chain;
    if (s->state == SL_SLOT_STORED) {
        ix->pages--;
        sl_disk_index_seg(ix, slot)->use_sum -= s->used;
    }
    sl_disk_index_lease(ix, slot, 0);
    *s = (sl_disk_slot){.state = SL_SLOT_EMPTY};
}

void sl_disk_index_lease(sl_disk_index *ix, int64_t slot, uint64_t end_ns)
{
    uint64_t *end = &ix->slots[slot].lease_end_ns;
    if (end_ns && end_ns <= *end)
        return;
    ix->leases += (end_ns != 0) - (*end != 0);
    *end = end_ns;
}

static bool has_lease(const sl_disk_index *ix, uint64_t segment, uint64_t now_ns)
{
    const sl_disk_slot *s = &ix->slots[segment * ix->store.slots_per_segment];
    for (uint32_t i = 0; i < ix->segs[segment].filled; i++)
        if (s[i].state == SL_SLOT_STORED && s[i].lease_end_ns > now_ns)
            return true;
    return false;
}

int64_t sl_disk_index_recycle(sl_disk_index *ix, uint64_t batch, uint64_t now_ns, uint64_t generation)
{
    int64_t best = -1;
    bool busy = false;
    for (uint64_t i = 0; i < ix->n_segments; i++) {
        const sl_disk_seg *g = &ix->segs[i];
        if ((g->filled && g->batch == batch) || (best >= 0 && g->use_sum >= ix->segs[best].use_sum) ||
            has_lease(ix, i, now_ns))
            continue;
        if (g->busy)
            busy = true;
        else
            best = (int64_t)i;
    }
    ix->active = -1;
    if (best < 0)
        return busy ? -2 : -1;
    int64_t first = best * ix->store.slots_per_segment;
    for (uint32_t i = 0; i < ix->segs[best].filled; i++) {
        bool stored = ix->slots[first + i].state == SL_SLOT_STORED;
        ix->evictions += stored;
        if (stored && ix->evicted)
            ix->evicted(ix->evicted_ctx, ix->slots[first + i].key);
        sl_disk_index_drop(ix, first + i);
    }
    ix->segs[best].filled = 0;
    ix->segs[best].generation = generation;
    return best;
}

void sl_disk_index_adopt(sl_disk_index *ix, int64_t slot, sl_key key, uint64_t sequence)
{
    int64_t old = sl_disk_index_find(ix, key);
    if (old >= 0 && ix->slots[old].used >= sequence)
        return;
    if (old >= 0)
        sl_disk_index_drop(ix, old);
    ix->slots[slot] = (sl_disk_slot){.state = SL_SLOT_STORED, .used = sequence};
    link_slot(ix, slot, key);
    ix->pages++;
    sl_disk_index_seg(ix, slot)->use_sum += sequence;
    if (ix->tick < sequence)
        ix->tick = sequence;
}

uint64_t sl_disk_index_leased(const sl_disk_index *ix, uint64_t now_ns)
{
    uint64_t n = 0;
    for (uint64_t i = 0; ix->leases && i < ix->n_slots; i++)
        n += ix->slots[i].state == SL_SLOT_STORED && ix->slots[i].lease_end_ns > now_ns;
    return n;
}
