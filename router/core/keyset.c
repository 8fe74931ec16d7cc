/*
 * Open-addressing set with a ring in insertion order, which tells which key to forget. Deleting shifts the probe chain
 * back, so there are no tombstones and lookups stay short.
 */
#include "router/core/keyset.h"

#include <stdlib.h>
#include <string.h>

struct sl_keyset {
    sl_key *slot; /* [cap]; zeros: empty */
    size_t cap;   /* a power of two */
    size_t count, max;
    sl_key *ring; /* in insertion order; may contain keys that were removed since */
    size_t ring_cap, ring_head, ring_len;
};

static bool empty(sl_key k)
{
    return !(k.lo | k.hi);
}

sl_status sl_keyset_create(size_t max, sl_keyset **out)
{
    sl_keyset *s = calloc(1, sizeof *s);
    if (!s)
        return SL_ERR_NO_MEMORY;
    s->max = max ? max : 1;
    s->cap = 64;
    s->ring_cap = 2 * s->max;
    s->slot = calloc(s->cap, sizeof *s->slot);
    s->ring = calloc(s->ring_cap, sizeof *s->ring);
    if (!s->slot || !s->ring) {
        sl_keyset_destroy(s);
        return SL_ERR_NO_MEMORY;
    }
    *out = s;
    return SL_OK;
}

void sl_keyset_destroy(sl_keyset *s)
{
    if (!s)
        return;
    free(s->slot);
    free(s->ring);
    free(s);
}

static size_t find(const sl_keyset *s, sl_key key)
{
    size_t i = (size_t)sl_key_place(key) & (s->cap - 1);
    while (!empty(s->slot[i]) && !sl_key_eq(s->slot[i], key))
        i = (i + 1) & (s->cap - 1);
    return i;
}

static bool grow(sl_keyset *s)
{
    sl_key *old = s->slot;
    size_t old_cap = s->cap;
    sl_key *slot = calloc(old_cap * 2, sizeof *slot);
    if (!slot)
        return false;
    s->slot = slot;
    s->cap = old_cap * 2;
    for (size_t i = 0; i < old_cap; i++) {
        if (!empty(old[i]))
            s->slot[find(s, old[i])] = old[i];
    }
    free(old);
    return true;
}

void sl_keyset_remove(sl_keyset *s, sl_key key)
{
    size_t i = find(s, key);
    if (empty(s->slot[i]))
        return;
    s->count--;
    size_t hole = i;
    for (;;) {
        i = (i + 1) & (s->cap - 1);
        if (empty(s->slot[i]))
            break;
        size_t home = (size_t)sl_key_place(s->slot[i]) & (s->cap - 1);
        if (((i - home) & (s->cap - 1)) >= ((i - hole) & (s->cap - 1))) {
            s->slot[hole] = s->slot[i];
            hole = i;
        }
    }
    s->slot[hole] = (sl_key){0, 0};
}

static void forget_oldest(sl_keyset *s)
{
    while (s->ring_len && s->count >= s->max) {
        sl_key k = s->ring[s->ring_head];
        s->ring_head = (s->ring_head + 1) % s->ring_cap;
        s->ring_len--;
        sl_keyset_remove(s, k);
    }
}

void sl_keyset_add(sl_keyset *s, sl_key key)
{
    if (empty(key) || sl_keyset_has(s, key))
        return;
    if (s->ring_len == s->ring_cap) { /* full, also of removed keys: removes the oldest */
        sl_key k = s->ring[s->ring_head];
        s->ring_head = (s->ring_head + 1) % s->ring_cap;
        s->ring_len--;
        sl_keyset_remove(s, k);
    }
    forget_oldest(s);
    if ((s->count + 1) * 2 > s->cap && !grow(s))
        return;
    s->slot[find(s, key)] = key;
    s->count++;
    s->ring[(s->ring_head + s->ring_len++) % s->ring_cap] = key;
}

void sl_keyset_clear(sl_keyset *s)
{
    memset(s->slot, 0, s->cap * sizeof *s->slot);
    s->count = s->ring_len = s->ring_head = 0;
}

bool sl_keyset_has(const sl_keyset *s, sl_key key)
{
    return !empty(key) && !empty(s->slot[find(s, key)]);
}

size_t sl_keyset_count(const sl_keyset *s)
{
    return s->count;
}

size_t sl_keyset_match(const sl_keyset *s, const sl_key *keys, size_t n)
{
    size_t i = 0;
    while (i < n && sl_keyset_has(s, keys[i]))
        i++;
    return i;
}
