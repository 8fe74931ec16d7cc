/*
 * The hash table of the directory; see directory_impl.h. The table is divided into SHARDS by the high bits of the key.
 * Each shard is a hash table with linear probing that grows by itself, so no single growth or sweep step holds up the
 * loop: a shard of a 256 MiB directory has 9,500 entries.
 *
 * A holder is a number for one medium of one worker, or for the shared stores (SHARED_ID). An entry contains two holders, and the
 * others are in a list of nodes. When a worker leaves, its numbers are retired: place_of[] does not know them any more, so
 * lookups ignore them. A number is given to another worker after one full sweep, when no entry contains it.
 *
 * Deleting shifts the probe chain back, so there are no tombstones.
 */
#include "router/core/directory_impl.h"

#include <stdlib.h>
#include <string.h>

enum { FIRST_CAP = 16 };

/* ---- one shard ---- */

/* The keys are those of clients' prompts: see sl_key_place(). */
static uint64_t mix(sl_key key)
{
    return sl_key_place(key);
}

sl_dir_shard *sl_directory_shard(const sl_directory *d, sl_key key)
{
    return (sl_dir_shard *)&d->shard[mix(key) >> (64 - SHARD_BITS)];
}

static uint32_t home(const sl_dir_shard *s, sl_key key)
{
    return (uint32_t)((uint64_t)(uint32_t)(mix(key) >> 16) * s->cap >> 32);
}

static uint32_t after(const sl_dir_shard *s, uint32_t i)
{
    return i + 1 == s->cap ? 0 : i + 1;
}

/* The position of the key, or the empty one where it would be. cap > 0. */
static uint32_t position(const sl_dir_shard *s, sl_key key)
{
    uint32_t i = home(s, key);
    while (!sl_directory_empty(s->at[i].key) && !sl_key_eq(s->at[i].key, key))
        i = after(s, i);
    return i;
}

sl_dir_entry *sl_directory_find(const sl_directory *d, sl_key key)
{
    const sl_dir_shard *s = sl_directory_shard(d, key);
    if (!s->cap)
        return NULL;
    sl_dir_entry *e = &s->at[position(s, key)];
    return sl_directory_empty(e->key) ? NULL : e;
}

void sl_directory_delete(sl_directory *d, sl_dir_shard *s, uint32_t hole)
{
    s->count--;
    d->stats.pages--;
    for (uint32_t i = after(s, hole);; i = after(s, i)) {
        if (sl_directory_empty(s->at[i].key))
            break;
        uint32_t h = home(s, s->at[i].key);
        bool between = hole < i ? h > hole && h <= i : h > hole || h <= i;
        if (between)
            continue;
        s->at[hole] = s->at[i];
        hole = i;
    }
    memset(&s->at[hole], 0, sizeof s->at[hole]);
}

static void grow(sl_directory *d, sl_dir_shard *s)
{
    uint32_t cap = s->cap ? 2 * s->cap : FIRST_CAP;
    sl_dir_shard now = {.cap = cap < d->cap_max ? cap : d->cap_max, .count = s->count};
    now.at = calloc(now.cap, sizeof *now.at);
    if (!now.at)
        return; /* pages are forgotten instead */
    for (uint32_t i = 0; i < s->cap; i++) {
        if (!sl_directory_empty(s->at[i].key))
            now.at[position(&now, s->at[i].key)] = s->at[i];
    }
    d->stats.bytes += (now.cap - s->cap) * sizeof *now.at;
    free(s->at);
    *s = now;
}

/* ---- holders of an entry ---- */

static uint32_t first_node(const sl_dir_entry *e)
{
    return e->more & ~SEEN;
}

static void set_first_node(sl_dir_entry *e, uint32_t n)
{
    e->more = (e->more & SEEN) | n;
}

bool sl_directory_step(const sl_directory *d, sl_dir_entry *e, sl_dir_walk *w)
{
    uint32_t n = w->node ? IN_NODE : IN_ENTRY;
    w->i = w->who ? w->i + 1 : 0;
    if (w->i == n) {
        w->node = w->node ? d->node[w->node].next : first_node(e);
        w->i = 0;
        if (!w->node)
            return false;
    }
    w->who = w->node ? &d->node[w->node].who[w->i] : &e->who[w->i];
    return *w->who != 0;
}

static uint32_t new_node(sl_directory *d)
{
    uint32_t n = d->node_free;
    if (n) {
        d->node_free = d->node[n].next;
    } else {
        if (d->node_used >= d->node_cap) {
            uint32_t cap = d->node_cap ? 2 * d->node_cap : 256;
            cap = cap < d->node_max ? cap : d->node_max;
            sl_dir_node *list = cap > d->node_cap ? realloc(d->node, cap * sizeof *list) : NULL;
            if (!list)
                return 0;
            d->stats.bytes += (cap - d->node_cap) * sizeof *list;
            d->node = list;
            d->node_cap = cap;
        }
        n = d->node_used++;
    }
    memset(&d->node[n], 0, sizeof d->node[n]);
    return n;
}

static void free_node(sl_directory *d, uint32_t n)
{
    d->node[n].next = d->node_free;
    d->node_free = n;
}

static void count(sl_directory *d, uint16_t id, int by)
{
    d->count_of[id] += (uint32_t)by;
    if (id == SHARED_ID)
        d->stats.held[SL_MEDIUM_SHARED] += (uint64_t)(int64_t)by;
    else if (d->place_of[id] != NO_PLACE)
        d->stats.held[d->medium_of[id]] += (uint64_t)(int64_t)by;
}

/* Moves the last holder to *hole; frees the node that becomes empty. */
void sl_directory_drop(sl_directory *d, sl_dir_entry *e, uint16_t *hole)
{
    sl_dir_walk w = {0}, last = {0};
    uint32_t before = 0; /* the node before the last one */
    while (sl_directory_step(d, e, &w)) {
        if (w.node != last.node)
            before = last.node;
        last = w;
    }
    count(d, *hole, -1);
    *hole = *last.who;
    *last.who = 0;
    if (!last.node || last.i)
        return;
    if (before)
        d->node[before].next = 0;
    else
        set_first_node(e, 0);
    free_node(d, last.node);
}

static bool retired(const sl_directory *d, uint16_t id)
{
    return id != SHARED_ID && d->place_of[id] == NO_PLACE;
}

void sl_directory_drop_retired(sl_directory *d, sl_dir_entry *e)
{
    sl_dir_walk w = {0};
    bool more = sl_directory_step(d, e, &w);
    while (more) {
        if (!retired(d, *w.who)) {
            more = sl_directory_step(d, e, &w);
            continue;
        }
        sl_directory_drop(d, e, w.who);
        w = (sl_dir_walk){0}; /* the node may be gone */
        more = sl_directory_step(d, e, &w);
    }
}

void sl_directory_hold(sl_directory *d, sl_dir_entry *e, uint16_t id)
{
    if (first_node(e) && d->n_retired)
        sl_directory_drop_retired(d, e); /* the list stays short however often workers come and go */
    sl_dir_walk w = {0};
    while (sl_directory_step(d, e, &w)) {
        if (*w.who == id)
            return;
    }
    if (!*w.who) { /* the walk has ended at an unused position */
        *w.who = id;
    } else {
        uint32_t n = new_node(d), last = first_node(e);
        if (!n)
            return;
        d->node[n].who[0] = id;
        while (last && d->node[last].next)
            last = d->node[last].next;
        if (last)
            d->node[last].next = n;
        else
            set_first_node(e, n);
    }
    count(d, id, 1);
}

static void drop_all(sl_directory *d, sl_dir_entry *e)
{
    while (e->who[0])
        sl_directory_drop(d, e, &e->who[0]);
}

/* ---- pages ---- */

/* Forgets one page of a full shard. The clock passes each page with SEEN once, so it ends in its second round. */
static void forget_one(sl_directory *d, sl_dir_shard *s)
{
    for (;; s->hand = after(s, s->hand)) {
        if (s->hand >= s->cap)
            s->hand = 0;
        sl_dir_entry *e = &s->at[s->hand];
        if (sl_directory_empty(e->key))
            continue;
        if (d->n_retired)
            sl_directory_drop_retired(d, e);
        if (e->who[0] && e->more & SEEN) {
            e->more &= ~SEEN;
            continue;
        }
        d->stats.forgotten += e->who[0] != 0;
        drop_all(d, e);
        sl_directory_delete(d, s, s->hand);
        return;
    }
}

/* One page more would exceed the load up to which probe chains are short. */
static bool crowded(const sl_dir_shard *s)
{
    return ((uint64_t)s->count + 1) * 4 > (uint64_t)s->cap * 3;
}

/* The entry of the key, made if there is none; NULL: out of memory. */
sl_dir_entry *sl_directory_entry(sl_directory *d, sl_key key)
{
    sl_dir_shard *s = sl_directory_shard(d, key);
    uint32_t i = s->cap ? position(s, key) : 0;
    if (s->cap && !sl_directory_empty(s->at[i].key))
        return &s->at[i];
    if (crowded(s)) {
        if (s->cap < d->cap_max)
            grow(d, s);
        if (!s->cap)
            return NULL;
        while (crowded(s))
            forget_one(d, s);
        i = position(s, key);
    }
    s->at[i].key = key;
    s->count++;
    d->stats.pages++;
    return &s->at[i];
}

void sl_directory_prefetch(const sl_directory *d, sl_key key)
{
    const sl_dir_shard *s = sl_directory_shard(d, key);
    if (s->cap)
        __builtin_prefetch(&s->at[home(s, key)]);
}
