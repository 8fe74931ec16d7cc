/* The hit rate of an ideal LRU cache of blocks, with which simulations are compared. */
#include <stdlib.h>

#include "simulate/simulate.h"

enum { NONE = -1 };

typedef struct lru {
    int32_t *prev, *next; /* [blocks of the trace]; prev of a block that is not cached: ABSENT */
    int32_t newest, oldest;
    uint64_t n, max;
} lru;

enum { ABSENT = -2 };

static void take_out(lru *c, int32_t b)
{
    *(c->prev[b] == NONE ? &c->oldest : &c->next[c->prev[b]]) = c->next[b];
    *(c->next[b] == NONE ? &c->newest : &c->prev[c->next[b]]) = c->prev[b];
    c->prev[b] = ABSENT;
    c->n--;
}

static void use(lru *c, int32_t b)
{
    if (c->prev[b] != ABSENT)
        take_out(c, b);
    if (c->max && c->n == c->max)
        take_out(c, c->oldest);
    c->prev[b] = c->newest;
    c->next[b] = NONE;
    *(c->newest == NONE ? &c->oldest : &c->next[c->newest]) = b;
    c->newest = b;
    c->n++;
}

double sl_sim_lru(const sl_sim_trace *t, uint64_t blocks)
{
    lru c = {.newest = NONE, .oldest = NONE, .max = blocks};
    uint64_t hits = 0, all = 0;
    c.prev = malloc((t->n_blocks + 1) * sizeof *c.prev);
    c.next = malloc((t->n_blocks + 1) * sizeof *c.next);
    for (uint32_t i = 0; c.prev && c.next && i < t->n_blocks; i++)
        c.prev[i] = ABSENT;
    for (size_t i = 0; c.prev && c.next && i < t->n; i++) {
        const uint32_t *id = t->ids + t->requests[i].first;
        uint32_t n = t->requests[i].n_blocks, matched = 0;
        while (matched < n && c.prev[id[matched]] != ABSENT)
            matched++;
        for (uint32_t b = n; b > 0; b--) /* from the end: the first block of a prompt is given up last */
            use(&c, (int32_t)id[b - 1]);
        hits += matched;
        all += n;
    }
    bool ok = c.prev && c.next;
    free(c.prev);
    free(c.next);
    return ok ? (all ? (double)hits / (double)all : 0) : -1;
}
