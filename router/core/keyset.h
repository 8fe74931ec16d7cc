/*
 * A bounded set of page keys: the router's approximate knowledge of one worker's prefix cache. Open addressing, linear
 * probing; it grows to `max` keys, after which the keys inserted first are forgotten. A wrong set only reduces speed:
 * the decode worker itself determines which pages it has. Threads: one owner. Ownership: the set owns its table.
 */
#ifndef SL_ROUTER_KEYSET_H
#define SL_ROUTER_KEYSET_H

#include "base/hash.h"

typedef struct sl_keyset sl_keyset;

sl_status sl_keyset_create(size_t max, sl_keyset **out);
void sl_keyset_destroy(sl_keyset *s);
/* Adds a key, unless it is present; does nothing when out of memory. */
void sl_keyset_add(sl_keyset *s, sl_key key);
void sl_keyset_remove(sl_keyset *s, sl_key key);
void sl_keyset_clear(sl_keyset *s);
bool sl_keyset_has(const sl_keyset *s, sl_key key);
size_t sl_keyset_count(const sl_keyset *s);
/* The number of leading keys of keys[0..n) that are in the set. */
size_t sl_keyset_match(const sl_keyset *s, const sl_key *keys, size_t n);

#endif
