/*
 * The table is divided into SHARDS by the high bits of the key. Each shard is a hash table with linear probing that grows by
 * itself, so no single growth or sweep step holds up the loop: a shard of a 256 MiB directory has 9,500 entries.
 *
 * A holder is a number for one medium of one worker, or for the shared stores (SHARED_ID). An entry contains two holders, and the
 * others are in a list of nodes. When a worker leaves, its numbers are retired: place_of[] does not know them any more, so
 * lookups ignore them. A number is given to another worker after one full sweep, when no entry contains it.
 *
 * Deleting shifts the probe chain back, so there are no tombstones.
 */
#include "router/core/directory.h"

#include <stdlib.h>
#include <string.h>

enum {
    SHARD_BITS = 10,
    SHARDS = 1 << SHARD_BITS,
    SWEEP_SHARDS = 4, /* in one step; a full sweep takes 5 s at a tick of 20 ms */
    FIRST_CAP = 16,
    PLACES_MAX = 4096,
    IDS = 65536,
    SHARED_ID = 1, /* 0: no holder */
    IN_ENTRY = 2,
    IN_NODE = 6,
    AHEAD = 8, /* entries that are fetched into the processor's cache before they are needed */
    NO_PLACE = 0xffff,
};
#define SEEN (1u << 31) /* in entry.more: looked up, or reported once more, since the clock's hand passed */

typedef struct entry {
    sl_key key; /* zeros: empty */
    uint16_t who[IN_ENTRY];
    uint32_t more; /* number of the first node, 0: none; with SEEN */
} entry;

typedef struct node {
    uint16_t who[IN_NODE];
    uint32_t next;
} node;

typedef struct shard {
    entry *at;
    uint32_t cap, count, hand;
} shard;

struct sl_directory {
    shard shard[SHARDS];
    uint32_t cap_max; /* of a shard */
    node *node;       /* [node_cap]; the first one is not used */
    uint32_t node_cap, node_used, node_free, node_max;
    uint16_t place_of[IDS]; /* NO_PLACE: retired or never given */
    uint8_t medium_of[IDS];
    uint32_t count_of[IDS];
    uint16_t id_of[PLACES_MAX][SL_MEDIUM_SHARED]; /* 0: the place is free */
    uint32_t places;                              /* places that were ever given are below */
    uint32_t ids;                                 /* so are numbers of holders */
    uint16_t *unused;                             /* [n_unused] numbers that may be given again */
    uint32_t n_unused;
    struct {
        uint16_t id;
        uint64_t free_at; /* value of `swept` */
    } * retired;          /* a ring, oldest first */
    uint32_t retired_at, n_retired;
    uint64_t swept; /* shards, ever */
    sl_directory_match *match;
    uint32_t *run; /* [run_cap] scratch: pages in shared stores without a gap from here on */
    size_t run_cap;
    sl_directory_stats stats;
};

/* ---- life ---- */

sl_status sl_directory_create(size_t max_bytes, sl_directory **out)
{
    if (max_bytes < 1u << 20)
        return SL_ERR_INVALID;
    sl_directory *d = calloc(1, sizeof *d);
    if (!d)
        return SL_ERR_NO_MEMORY;
    memset(d->place_of, 0xff, sizeof d->place_of);
    size_t cap = max_bytes / 8 * 7 / sizeof(entry) / SHARDS, nodes = max_bytes / 8 / sizeof(node);
    d->cap_max = cap < UINT32_MAX / 2 ? (uint32_t)cap : UINT32_MAX / 2;
    d->node_max = nodes < SEEN - 1 ? (uint32_t)nodes : SEEN - 1;
    d->node_used = 1;
    d->stats.bytes = sizeof *d;
    d->ids = SHARED_ID + 1;
    d->unused = calloc(IDS, sizeof *d->unused);
    d->retired = calloc(IDS, sizeof *d->retired);
    d->match = calloc(PLACES_MAX, sizeof *d->match);
    if (!d->unused || !d->retired || !d->match) {
        sl_directory_destroy(d);
        return SL_ERR_NO_MEMORY;
    }
    d->stats.bytes += IDS * (sizeof *d->unused + sizeof *d->retired) + PLACES_MAX * sizeof *d->match;
    *out = d;
    return SL_OK;
}

void sl_directory_destroy(sl_directory *d)
{
    if (!d)
        return;
    for (size_t i = 0; i < SHARDS; i++)
        free(d->shard[i].at);
    free(d->node);
    free(d->unused);
    free(d->retired);
    free(d->match);
    free(d->run);
    free(d);
}

/* ---- one shard ---- */

static bool empty(sl_key k)
{
    return !(k.lo | k.hi);
}

static uint64_t mix(sl_key key)
{
    return (key.lo ^ (key.hi << 32 | key.hi >> 32)) * 0x9e3779b97f4a7c15u;
}

static shard *shard_of(const sl_directory *d, sl_key key)
{
    return (shard *)&d->shard[mix(key) >> (64 - SHARD_BITS)];
}

static uint32_t home(const shard *s, sl_key key)
{
    return (uint32_t)((uint64_t)(uint32_t)(mix(key) >> 16) * s->cap >> 32);
}

static uint32_t after(const shard *s, uint32_t i)
{
    return i + 1 == s->cap ? 0 : i + 1;
}

/* The position of the key, or the empty one where it would be. cap > 0. */
static uint32_t position(const shard *s, sl_key key)
{
    uint32_t i = home(s, key);
    while (!empty(s->at[i].key) && !sl_key_eq(s->at[i].key, key))
        i = after(s, i);
    return i;
}

static entry *find(const sl_directory *d, sl_key key)
{
    const shard *s = shard_of(d, key);
    if (!s->cap)
        return NULL;
    entry *e = &s->at[position(s, key)];
    return empty(e->key) ? NULL : e;
}

static void delete_at(sl_directory *d, shard *s, uint32_t hole)
{
    s->count--;
    d->stats.pages--;
    for (uint32_t i = after(s, hole);; i = after(s, i)) {
        if (empty(s->at[i].key))
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

static void grow(sl_directory *d, shard *s)
{
    uint32_t cap = s->cap ? 2 * s->cap : FIRST_CAP;
    shard now = {.cap = cap < d->cap_max ? cap : d->cap_max, .count = s->count};
    now.at = calloc(now.cap, sizeof *now.at);
    if (!now.at)
        return; /* pages are forgotten instead */
    for (uint32_t i = 0; i < s->cap; i++) {
        if (!empty(s->at[i].key))
            now.at[position(&now, s->at[i].key)] = s->at[i];
    }
    d->stats.bytes += (now.cap - s->cap) * sizeof *now.at;
    free(s->at);
    *s = now;
}

/* ---- holders of an entry ---- */

static uint32_t first_node(const entry *e)
{
    return e->more & ~SEEN;
}

static void set_first_node(entry *e, uint32_t n)
{
    e->more = (e->more & SEEN) | n;
}

/* A step through the holders of e. They fill the entry, then the nodes, without a gap. */
typedef struct walk {
    uint16_t *who; /* the holder; NULL after the last */
    uint32_t node, i;
} walk;

static bool step(const sl_directory *d, entry *e, walk *w)
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
            node *list = cap > d->node_cap ? realloc(d->node, cap * sizeof *list) : NULL;
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
static void drop_holder(sl_directory *d, entry *e, uint16_t *hole)
{
    walk w = {0}, last = {0};
    uint32_t before = 0; /* the node before the last one */
    while (step(d, e, &w)) {
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

static void drop_retired(sl_directory *d, entry *e)
{
    walk w = {0};
    bool more = step(d, e, &w);
    while (more) {
        if (!retired(d, *w.who)) {
            more = step(d, e, &w);
            continue;
        }
        drop_holder(d, e, w.who);
        w = (walk){0}; /* the node may be gone */
        more = step(d, e, &w);
    }
}

static void add_holder(sl_directory *d, entry *e, uint16_t id)
{
    if (first_node(e) && d->n_retired)
        drop_retired(d, e); /* the list stays short however often workers come and go */
    walk w = {0};
    while (step(d, e, &w)) {
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

static void drop_all(sl_directory *d, entry *e)
{
    while (e->who[0])
        drop_holder(d, e, &e->who[0]);
}

/* ---- pages ---- */

/* Forgets one page of a full shard. The clock passes each page with SEEN once, so it ends in its second round. */
static void forget_one(sl_directory *d, shard *s)
{
    for (;; s->hand = after(s, s->hand)) {
        if (s->hand >= s->cap)
            s->hand = 0;
        entry *e = &s->at[s->hand];
        if (empty(e->key))
            continue;
        if (d->n_retired)
            drop_retired(d, e);
        if (e->who[0] && e->more & SEEN) {
            e->more &= ~SEEN;
            continue;
        }
        d->stats.forgotten += e->who[0] != 0;
        drop_all(d, e);
        delete_at(d, s, s->hand);
        return;
    }
}

/* One page more would exceed the load up to which probe chains are short. */
static bool crowded(const shard *s)
{
    return ((uint64_t)s->count + 1) * 4 > (uint64_t)s->cap * 3;
}

/* The entry of the key, made if there is none; NULL: out of memory. */
static entry *entry_of(sl_directory *d, sl_key key)
{
    shard *s = shard_of(d, key);
    uint32_t i = s->cap ? position(s, key) : 0;
    if (s->cap && !empty(s->at[i].key))
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

static uint16_t id_at(const sl_directory *d, uint32_t place, sl_medium medium)
{
    if (medium == SL_MEDIUM_SHARED)
        return SHARED_ID;
    return place < d->places ? d->id_of[place][medium] : 0;
}

void sl_directory_add(sl_directory *d, uint32_t place, sl_medium medium, sl_key key)
{
    uint16_t id = id_at(d, place, medium);
    entry *e = id && !empty(key) ? entry_of(d, key) : NULL;
    if (!e)
        return;
    if (e->who[0])
        e->more |= SEEN; /* not a new one: pages that are never used again are forgotten before all others */
    add_holder(d, e, id);
}

void sl_directory_remove(sl_directory *d, uint32_t place, sl_medium medium, sl_key key)
{
    uint16_t id = id_at(d, place, medium);
    entry *e = id && !empty(key) ? find(d, key) : NULL;
    walk w = {0};
    while (e && step(d, e, &w)) {
        if (*w.who != id)
            continue;
        drop_holder(d, e, w.who);
        if (!e->who[0]) {
            shard *s = shard_of(d, key);
            delete_at(d, s, (uint32_t)(e - s->at));
        }
        return;
    }
}

bool sl_directory_has(const sl_directory *d, uint32_t place, sl_medium medium, sl_key key)
{
    uint16_t id = id_at(d, place, medium);
    entry *e = id && !empty(key) ? find(d, key) : NULL;
    walk w = {0};
    while (e && step(d, e, &w)) {
        if (*w.who == id)
            return true;
    }
    return false;
}

size_t sl_directory_count(const sl_directory *d, uint32_t place, sl_medium medium)
{
    return d->count_of[id_at(d, place, medium)];
}

/* ---- places and numbers of holders ---- */

static void sweep_shard(sl_directory *d, shard *s)
{
    for (uint32_t i = 0; i < s->cap;) {
        entry *e = &s->at[i];
        if (!empty(e->key)) {
            drop_retired(d, e);
            if (!e->who[0]) {
                delete_at(d, s, i); /* another entry may be here now */
                continue;
            }
        }
        i++;
    }
}

static void sweep(sl_directory *d, uint32_t shards)
{
    for (uint32_t k = 0; k < shards && d->n_retired; k++) {
        sweep_shard(d, &d->shard[d->swept++ % SHARDS]);
        while (d->n_retired && d->retired[d->retired_at].free_at <= d->swept) {
            d->unused[d->n_unused++] = d->retired[d->retired_at].id;
            d->retired_at = (d->retired_at + 1) % IDS;
            d->n_retired--;
        }
    }
}

void sl_directory_sweep(sl_directory *d)
{
    sweep(d, SWEEP_SHARDS);
}

/* 0: there is none. */
static uint16_t new_id(sl_directory *d, uint32_t place, sl_medium medium)
{
    if (!d->n_unused && d->ids == IDS)
        sweep(d, SHARDS);
    uint16_t id = 0;
    if (d->n_unused)
        id = d->unused[--d->n_unused];
    else if (d->ids < IDS)
        id = (uint16_t)d->ids++;
    d->place_of[id] = id ? (uint16_t)place : NO_PLACE;
    d->medium_of[id] = (uint8_t)medium;
    return id;
}

static void retire(sl_directory *d, uint16_t id)
{
    if (!id)
        return;
    d->stats.held[d->medium_of[id]] -= d->count_of[id];
    d->place_of[id] = NO_PLACE;
    if (!d->count_of[id]) { /* no entry contains it */
        d->unused[d->n_unused++] = id;
        return;
    }
    uint32_t at = (d->retired_at + d->n_retired++) % IDS;
    d->retired[at].id = id;
    d->retired[at].free_at = d->swept + SHARDS;
}

uint32_t sl_directory_join(sl_directory *d)
{
    uint32_t p = 0;
    while (p < d->places && d->id_of[p][SL_MEDIUM_HOST])
        p++;
    if (p == PLACES_MAX)
        return SL_DIRECTORY_NONE;
    uint16_t host = new_id(d, p, SL_MEDIUM_HOST), disk = new_id(d, p, SL_MEDIUM_DISK);
    if (!host || !disk) {
        retire(d, host);
        return SL_DIRECTORY_NONE;
    }
    d->id_of[p][SL_MEDIUM_HOST] = host;
    d->id_of[p][SL_MEDIUM_DISK] = disk;
    if (p == d->places)
        d->places++;
    return p;
}

void sl_directory_leave(sl_directory *d, uint32_t place)
{
    if (place >= d->places)
        return;
    for (int m = 0; m < SL_MEDIUM_SHARED; m++) {
        retire(d, d->id_of[place][m]);
        d->id_of[place][m] = 0;
    }
}

void sl_directory_clear(sl_directory *d, uint32_t place, sl_medium medium)
{
    uint16_t id = id_at(d, place, medium);
    if (!id || id == SHARED_ID || !d->count_of[id])
        return;
    uint16_t now = new_id(d, place, medium);
    if (!now)
        return; /* 65,534 workers left within one sweep; what is known here is wrong until it is removed */
    retire(d, id);
    d->id_of[place][medium] = now;
}

/* ---- lookup ---- */

/* Page i is in this medium of the worker. A page that is also in host memory does not count as one of the disk: the bit
 * `on_disk` says whether page local - 1 was counted so. */
static void extend(sl_directory_match *m, uint32_t i, sl_medium medium)
{
    bool host = medium == SL_MEDIUM_HOST,
         counted = m->shared != 0; /* `shared` is free until the walk has ended */
    if (host && m->host == i)
        m->host++;
    if (m->local == i) {
        m->local++;
        m->disk += !host;
        m->shared = !host;
    } else if (host && m->local == i + 1 && counted) {
        m->disk--;
        m->shared = 0;
    }
}

/* Updates all workers for page i. False: no prefix continues with it. */
static bool extend_all(sl_directory *d, entry *e, uint32_t i)
{
    bool any = false;
    for (walk w = {0}; step(d, e, &w);) {
        uint16_t place = d->place_of[*w.who];
        if (*w.who == SHARED_ID) {
            any = true;
            d->run[i] = 1;
        } else if (place != NO_PLACE && d->match[place].local >= i) {
            extend(&d->match[place], i, (sl_medium)d->medium_of[*w.who]);
            any = true;
        }
    }
    e->more |= SEEN;
    return any;
}

static bool make_runs(sl_directory *d, size_t n)
{
    if (n <= d->run_cap)
        return true;
    uint32_t *run = realloc(d->run, n * sizeof *run);
    if (!run)
        return false;
    d->stats.bytes += (n - d->run_cap) * sizeof *run;
    d->run = run;
    d->run_cap = n;
    return true;
}

static void add_shared(sl_directory *d, size_t n)
{
    for (size_t i = n; i-- > 1;) {
        if (d->run[i - 1])
            d->run[i - 1] += d->run[i];
    }
    for (uint32_t p = 0; p < d->places; p++) {
        sl_directory_match *m = &d->match[p];
        m->shared = m->local < n ? d->run[m->local] : 0;
    }
}

const sl_directory_match *sl_directory_lookup(sl_directory *d, const sl_key *keys, size_t n)
{
    memset(d->match, 0, d->places * sizeof *d->match);
    d->stats.lookups++;
    if (!n || !make_runs(d, n))
        return d->match;
    size_t i = 0;
    for (; i < n; i++) {
        if (i + AHEAD < n) {
            const shard *s = shard_of(d, keys[i + AHEAD]);
            if (s->cap)
                __builtin_prefetch(&s->at[home(s, keys[i + AHEAD])]);
        }
        d->run[i] = 0;
        entry *e = find(d, keys[i]);
        if (!e || !extend_all(d, e, (uint32_t)i))
            break;
    }
    d->stats.lookup_pages += i < n ? i + 1 : n;
    add_shared(d, i);
    return d->match;
}

void sl_directory_get_stats(const sl_directory *d, sl_directory_stats *out)
{
    *out = d->stats;
}
