/*
 * A set of 64-bit hashes: the pages on disk that other programs have been told of (publish.c). About 12 bytes for each. One
 * thread.
 */
#ifndef SL_DECODE_PAGES_TOLD_H
#define SL_DECODE_PAGES_TOLD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct sl_told {
    uint64_t *slots; /* [mask + 1], 0: empty; NULL: the set is empty */
    size_t mask, n;
} sl_told;

/* True: it was not in the set and is now. False: it was, or memory is exhausted. */
bool sl_told_add(sl_told *t, uint64_t hash);
bool sl_told_has(const sl_told *t, uint64_t hash);
/* Whether it was in the set. */
bool sl_told_remove(sl_told *t, uint64_t hash);
void sl_told_clear(sl_told *t);

#endif
