/*
 * A bounded set of page keys: the router's approximate picture of one worker's prefix cache. Open addressing,
 * linear probing; grows to `max` keys, after which the oldest insertions are forgotten. Being wrong costs
 * speed, never correctness: the decode worker itself decides what it has. Threads: one owner. Ownership: the
 * set owns its table.
 */
#ifndef SL_ROUTER_KEYSET_H
#define SL_ROUTER_KEYSET_H

#include "base/hash.h"

typedef struct sl_keyset sl_keyset;

sl_status sl_keyset_create(size_t max, sl_keyset **out);
void sl_keyset_destroy(sl_keyset *s);
/* Adds a key (no-op when present, dropped when memory is out). */
void sl_keyset_add(sl_keyset *s, sl_key key);
void sl_keyset_remove(sl_keyset *s, sl_key key);
void sl_keyset_clear(sl_keyset *s);
bool sl_keyset_has(const sl_keyset *s, sl_key key);
size_t sl_keyset_count(const sl_keyset *s);
/* How many leading keys of keys[0..n) are in the set. */
size_t sl_keyset_match(const sl_keyset *s, const sl_key *keys, size_t n);

#endif
