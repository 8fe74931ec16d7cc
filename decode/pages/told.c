/* See told.h: open addressing, at most three quarters full; a removal moves the entries after it back. */
#include "decode/pages/told.h"

#include <stdlib.h>

#include "base/hash.h"

enum { FIRST_SLOTS = 64 };

/* 0 marks an empty slot; two pages whose hashes are 0 and 1 are told as one. */
static uint64_t stored(uint64_t hash)
{
    return hash ? hash : 1;
}

/* Where the search for a hash begins. Hashes are of the pages of clients: see sl_key_place(). */
static size_t home(const sl_told *t, uint64_t h)
{
    return (size_t)sl_key_place((sl_key){h, 0}) & t->mask;
}

static size_t find(const sl_told *t, uint64_t h)
{
    size_t i = home(t, h);
    while (t->slots[i] && t->slots[i] != h)
        i = (i + 1) & t->mask;
    return i;
}

static bool grow(sl_told *t)
{
    size_t slots = t->slots ? 2 * (t->mask + 1) : FIRST_SLOTS;
    sl_told bigger = {.slots = calloc(slots, sizeof *bigger.slots), .mask = slots - 1, .n = t->n};
    if (!bigger.slots)
        return false;
    for (size_t i = 0; t->slots && i <= t->mask; i++) {
        if (t->slots[i])
            bigger.slots[find(&bigger, t->slots[i])] = t->slots[i];
    }
    free(t->slots);
    *t = bigger;
    return true;
}

bool sl_told_add(sl_told *t, uint64_t hash)
{
    uint64_t h = stored(hash);
    if ((!t->slots || t->n >= (t->mask + 1) / 4 * 3) && !grow(t))
        return false;
    size_t i = find(t, h);
    if (t->slots[i])
        return false;
    t->slots[i] = h;
    t->n++;
    return true;
}

bool sl_told_has(const sl_told *t, uint64_t hash)
{
    return t->slots && t->slots[find(t, stored(hash))];
}

bool sl_told_remove(sl_told *t, uint64_t hash)
{
    if (!sl_told_has(t, hash))
        return false;
    size_t i = find(t, stored(hash));
    for (size_t j = (i + 1) & t->mask; t->slots[j]; j = (j + 1) & t->mask) {
        if (((j - home(t, t->slots[j])) & t->mask) >=
            ((j - i) & t->mask)) { /* this entry may move to the free place */
            t->slots[i] = t->slots[j];
            i = j;
        }
    }
    t->slots[i] = 0;
    t->n--;
    return true;
}

void sl_told_clear(sl_told *t)
{
    free(t->slots);
    *t = (sl_told){0};
}
