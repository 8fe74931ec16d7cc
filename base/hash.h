/*
 * Hashes: page keys (xxHash3-128, chained) and transfer checksums (CRC32C). Pure functions except for the secret, any
 * thread.
 */
#ifndef SL_BASE_HASH_H
#define SL_BASE_HASH_H

#include "base/status.h"

/* 128-bit key. Compared by value; all-zero means "none". */
typedef struct sl_key {
    uint64_t lo, hi;
} sl_key;

static inline bool sl_key_eq(sl_key a, sl_key b)
{
    return a.lo == b.lo && a.hi == b.hi;
}

/* XXH3-128 of the key prev followed by the bytes, so equal bytes after different prefixes have different keys. */
sl_key sl_hash_chain(sl_key prev, const void *bytes, size_t n);
/* CRC32C (Castagnoli) of bytes, continuing from crc (0 to start). */
uint32_t sl_crc32c(uint32_t crc, const void *bytes, size_t n);
/* 64 bits for the place of a key in a hash table in memory. Clients can choose prompts whose keys are alike; a secret random
 * number of the process is mixed in, so that they cannot choose places. */
uint64_t sl_key_place(sl_key key);
/* The secret from now on, for programs whose runs must be equal; before any table has a key. */
void sl_key_secret(uint64_t secret);
/* A random number from the system, for ids and epochs. */
uint64_t sl_random_u64(void);

#endif
