/*
 * Places of workers, the numbers of holders that stand for their media, and the lookup of a prompt. The table of pages is in
 * directory_table.c.
 */
#include "router/core/directory_impl.h"

#include <stdlib.h>
#include <string.h>

enum {
    SWEEP_SHARDS = 4, /* in one step; a full sweep takes 5 s at a tick of 20 ms */
    AHEAD = 8,        /* entries that are fetched into the processor's cache before they are needed */
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
    size_t cap = max_bytes / 8 * 7 / sizeof(sl_dir_entry) / SHARDS,
           nodes = max_bytes / 8 / sizeof(sl_dir_node);
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

/* ---- pages ---- */

static uint16_t id_at(const sl_directory *d, uint32_t place, sl_medium medium)
{
    if (medium == SL_MEDIUM_SHARED)
        return SHARED_ID;
    return place < d->places ? d->id_of[place][medium] : 0;
}

void sl_directory_add(sl_directory *d, uint32_t place, sl_medium medium, sl_key key)
{
    uint16_t id = id_at(d, place, medium);
    sl_dir_entry *e = id && !sl_directory_empty(key) ? sl_directory_entry(d, key) : NULL;
    if (!e)
        return;
    if (e->who[0])
        e->more |= SEEN; /* not a new one: pages that are never used again are forgotten before all others */
    sl_directory_hold(d, e, id);
}

void sl_directory_remove(sl_directory *d, uint32_t place, sl_medium medium, sl_key key)
{
    uint16_t id = id_at(d, place, medium);
    sl_dir_entry *e = id && !sl_directory_empty(key) ? sl_directory_find(d, key) : NULL;
    sl_dir_walk w = {0};
    while (e && sl_directory_step(d, e, &w)) {
        if (*w.who != id)
            continue;
        sl_directory_drop(d, e, w.who);
        if (!e->who[0]) {
            sl_dir_shard *s = sl_directory_shard(d, key);
            sl_directory_delete(d, s, (uint32_t)(e - s->at));
        }
        return;
    }
}

bool sl_directory_has(const sl_directory *d, uint32_t place, sl_medium medium, sl_key key)
{
    uint16_t id = id_at(d, place, medium);
    sl_dir_entry *e = id && !sl_directory_empty(key) ? sl_directory_find(d, key) : NULL;
    sl_dir_walk w = {0};
    while (e && sl_directory_step(d, e, &w)) {
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

static void sweep_shard(sl_directory *d, sl_dir_shard *s)
{
    for (uint32_t i = 0; i < s->cap;) {
        sl_dir_entry *e = &s->at[i];
        if (!sl_directory_empty(e->key)) {
            sl_directory_drop_retired(d, e);
            if (!e->who[0]) {
                sl_directory_delete(d, s, i); /* another entry may be here now */
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
static bool extend_all(sl_directory *d, sl_dir_entry *e, uint32_t i)
{
    bool any = false;
    for (sl_dir_walk w = {0}; sl_directory_step(d, e, &w);) {
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
        if (i + AHEAD < n)
            sl_directory_prefetch(d, keys[i + AHEAD]);
        d->run[i] = 0;
        sl_dir_entry *e = sl_directory_find(d, keys[i]);
        if (!e || !extend_all(d, e, (uint32_t)i))
            break;
    }
    d->stats.lookup_pages += i < n ? i + 1 : n;
    add_shared(d, i);
    return d->match;
}

void sl_directory_cut(sl_directory *d, uint32_t place, uint32_t pages)
{
    sl_directory_match *m = &d->match[place];
    const uint32_t memory = m->local - m->disk; /* the first ones, or among them */
    if (m->local + m->shared <= pages)
        return;
    m->shared = pages > m->local ? pages - m->local : 0;
    m->local = m->local < pages ? m->local : pages;
    m->host = m->host < pages ? m->host : pages;
    m->disk = m->local > memory ? m->local - memory : 0;
}

void sl_directory_get_stats(const sl_directory *d, sl_directory_stats *out)
{
    *out = d->stats;
}
