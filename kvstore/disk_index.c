/* See disk_index.h. */
#include "kvstore/disk_index.h"

#include <stdlib.h>

#include "base/log.h"

enum { UNNAMED_SHARE = 8 /* one in this many segments can belong to tenants without a rule */ };

static uint32_t now_s(void)
{
    return (uint32_t)(sl_now_ns() / 1000000000);
}

sl_status sl_disk_index_init(sl_disk_index *ix, const sl_disk_store *store, uint64_t n_segments,
                             const sl_quota_opts *quota)
{
    uint64_t n = 16;
    *ix = (sl_disk_index){
        .store = *store, .n_segments = n_segments, .n_slots = n_segments * store->slots_per_segment};
    sl_quota_init(&ix->quota, quota, (int64_t)n_segments,
                  n_segments < INT32_MAX ? (int)n_segments / UNNAMED_SHARE : SL_QUOTA_UNNAMED);
    for (int e = 0; e < SL_QUOTA_ENTRIES; e++)
        ix->active[e] = -1;
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
    *ix = (sl_disk_index){0};
}

int64_t sl_disk_index_find(const sl_disk_index *ix, sl_key key)
{
    int32_t s = ix->buckets[sl_key_place(key) & ix->mask];
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
    s->used_s = now_s();
}

bool sl_disk_index_admit(sl_disk_index *ix, sl_key key)
{
    uint64_t *ghost = &ix->ghosts[sl_key_place(key) & ix->mask];
    bool known = *ghost == (key.hi | 1); /* an unused one is 0 */
    *ghost = known ? 0 : key.hi | 1;
    return known;
}

static void link_slot(sl_disk_index *ix, int64_t slot, sl_key key)
{
    int32_t *bucket = &ix->buckets[sl_key_place(key) & ix->mask];
    ix->slots[slot].key = key;
    ix->slots[slot].chain = *bucket;
    *bucket = (int32_t)slot;
}

static sl_quota_use *use_of(sl_disk_index *ix, int64_t slot)
{
    return sl_quota_use_of(&ix->quota, sl_disk_index_seg(ix, slot)->tenant);
}

int64_t sl_disk_index_claim(sl_disk_index *ix, sl_key key, uint64_t tenant, uint64_t batch)
{
    int entry = sl_quota_enter(&ix->quota, tenant);
    int64_t active = ix->active[entry];
    sl_quota_leave(&ix->quota, entry);
    if (active < 0 || ix->segs[active].filled == ix->store.slots_per_segment)
        return -1;
    sl_disk_seg *g = &ix->segs[active];
    int64_t slot = active * ix->store.slots_per_segment + g->filled++;
    g->batch = batch;
    ix->slots[slot] = (sl_disk_slot){.state = SL_SLOT_WRITING};
    link_slot(ix, slot, key);
    return slot;
}

void sl_disk_index_publish(sl_disk_index *ix, int64_t slot)
{
    ix->slots[slot].state = SL_SLOT_STORED;
    ix->slots[slot].stored_s = now_s();
    ix->pages++;
    use_of(ix, slot)->pages++;
    sl_disk_index_touch(ix, slot);
}

void sl_disk_index_drop(sl_disk_index *ix, int64_t slot)
{
    sl_disk_slot *s = &ix->slots[slot];
    int32_t *at = &ix->buckets[sl_key_place(s->key) & ix->mask];
    if (s->state == SL_SLOT_EMPTY)
        return;
    while (*at != slot)
        at = &ix->slots[*at].chain;
    *at = s->chain;
    if (s->state == SL_SLOT_STORED) {
        ix->pages--;
        use_of(ix, slot)->pages--;
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

/* ---- which segment is emptied ---- */

/* The order in which a tenant takes segments: EMPTY first; PROTECTED only when no tenant is above its share. */
typedef enum { EMPTY, OPEN_TO_ALL, PROTECTED, FORBIDDEN } rank;

static rank rank_of(const sl_disk_index *ix, int entry, const sl_disk_seg *g)
{
    const sl_quota_entry *me = &ix->quota.entries[entry], *owner = &ix->quota.entries[g->tenant];
    bool own = g->owned && g->tenant == entry;
    if (me->used >= me->limit && !own)
        return FORBIDDEN;
    if (!g->filled)
        return EMPTY;
    if (own) /* with one more it would be above its share */
        return me->used >= me->limit || me->used >= me->share ? OPEN_TO_ALL : PROTECTED;
    return owner->used > owner->share ? OPEN_TO_ALL : PROTECTED;
}

/* Whether the pages of a were used less recently than those of b, on average. */
static bool older(const sl_disk_seg *a, const sl_disk_seg *b)
{
    return (double)a->use_sum * b->filled < (double)b->use_sum * a->filled;
}

/* The segment to empty for this tenant; -1, -2: see sl_disk_index_recycle(). */
static int64_t choose(const sl_disk_index *ix, int entry, uint64_t batch, uint64_t now_ns)
{
    int64_t best = -1;
    rank best_rank = FORBIDDEN, first = FORBIDDEN;
    bool busy = false;
    for (uint64_t i = 0; i < ix->n_segments; i++) {
        const sl_disk_seg *g = &ix->segs[i];
        rank r = rank_of(ix, entry, g);
        first = r < first ? r : first;
        if (r == FORBIDDEN || r > best_rank || (g->filled && g->batch == batch) ||
            (r == best_rank && !older(g, &ix->segs[best])) || has_lease(ix, i, now_ns))
            continue;
        if (g->busy) {
            busy = true;
            continue;
        }
        best = (int64_t)i;
        best_rank = r;
    }
    if (best >= 0 && best_rank == PROTECTED && first < PROTECTED)
        best = -1;
    return best < 0 && busy ? -2 : best;
}

/* Empties a segment, which belongs to no tenant afterwards. */
static void empty(sl_disk_index *ix, int64_t segment, sl_quota_reason why)
{
    sl_disk_seg *g = &ix->segs[segment];
    int64_t first = segment * ix->store.slots_per_segment;
    uint32_t now = now_s();
    for (uint32_t i = 0; i < g->filled; i++) {
        const sl_disk_slot *s = &ix->slots[first + i];
        bool stored = s->state == SL_SLOT_STORED;
        ix->evictions += stored;
        use_of(ix, first)->evicted[why] += stored;
        if (stored && ix->evicted)
            ix->evicted(ix->evicted_ctx, s->key, now - s->used_s, now - s->stored_s);
        sl_disk_index_drop(ix, first + i);
    }
    g->filled = 0;
    if (!g->owned)
        return;
    g->owned = false;
    ix->quota.entries[g->tenant].used--;
    sl_quota_leave(&ix->quota, g->tenant);
    if (ix->active[g->tenant] == segment)
        ix->active[g->tenant] = -1;
}

static void own(sl_disk_index *ix, int64_t segment, int entry, uint64_t generation)
{
    sl_disk_seg *g = &ix->segs[segment];
    g->owned = true;
    g->tenant = (uint8_t)entry;
    g->generation = generation;
    ix->quota.entries[entry].used++;
    sl_quota_hold(&ix->quota, entry);
}

int64_t sl_disk_index_recycle(sl_disk_index *ix, uint64_t tenant, uint64_t batch, uint64_t now_ns,
                              uint64_t generation)
{
    int entry = sl_quota_enter(&ix->quota, tenant);
    const sl_quota_entry *me = &ix->quota.entries[entry];
    int64_t best = choose(ix, entry, batch, now_ns);
    ix->active[entry] = -1;
    if (best >= 0) {
        empty(ix, best, me->used >= me->limit ? SL_QUOTA_LIMIT : SL_QUOTA_ROOM);
        own(ix, best, entry, generation);
    }
    sl_quota_leave(&ix->quota, entry);
    return best;
}

void sl_disk_index_open(sl_disk_index *ix, int64_t segment)
{
    ix->active[ix->segs[segment].tenant] = segment;
}

void sl_disk_index_own(sl_disk_index *ix, uint64_t segment, uint64_t generation, uint64_t tenant)
{
    int entry = sl_quota_enter(&ix->quota, tenant);
    own(ix, (int64_t)segment, entry, generation);
    ix->segs[segment].filled = ix->store.slots_per_segment;
    sl_quota_leave(&ix->quota, entry);
}

void sl_disk_index_trim(sl_disk_index *ix)
{
    for (int e = 0; e < ix->quota.n; e++) {
        while (sl_quota_above_limit(&ix->quota, e)) {
            int64_t oldest = -1;
            for (uint64_t i = 0; i < ix->n_segments; i++) {
                const sl_disk_seg *g = &ix->segs[i];
                if (g->owned && g->tenant == e && (oldest < 0 || older(g, &ix->segs[oldest])))
                    oldest = (int64_t)i;
            }
            empty(ix, oldest, SL_QUOTA_LIMIT);
        }
    }
}

void sl_disk_index_adopt(sl_disk_index *ix, int64_t slot, sl_key key, uint64_t sequence)
{
    int64_t old = sl_disk_index_find(ix, key);
    if (old >= 0 && ix->slots[old].used >= sequence)
        return;
    if (old >= 0)
        sl_disk_index_drop(ix, old);
    ix->slots[slot] =
        (sl_disk_slot){.state = SL_SLOT_STORED, .used = sequence, .used_s = now_s(), .stored_s = now_s()};
    link_slot(ix, slot, key);
    ix->pages++;
    use_of(ix, slot)->pages++;
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
