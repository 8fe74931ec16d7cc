/*
 * Damage: a page of the prefix tree whose bytes are not those that were sealed (kvstore/seal.h), as a reader of this worker's
 * pages or an audit has found it. The page leaves the tree at once, together with the pages that continue it, so that no other
 * request gets it; requests that hold it learn this by an event (pages.h). What the checks of requests find is handled by the
 * requests.
 */
#ifndef SL_DECODE_PAGES_DAMAGE_H
#define SL_DECODE_PAGES_DAMAGE_H

#include "decode/pages/env.h"

typedef struct sl_damage sl_damage;

/* NULL: out of memory. */
sl_damage *sl_damage_new(const sl_pages_env *e);
void sl_damage_free(sl_damage *g);
/* The checker has verified pages of this lease: those that it found damaged leave the tree. */
void sl_damage_of_lease(sl_damage *g, const sl_check *k, sl_lease *lease);
/* A page of the tree, whose memory the caller holds, is damaged. */
void sl_damage_of_page(sl_damage *g, int32_t page, sl_key seed, sl_key key);
/* Takes the next damaged page that requests have to be told of. False: there is none. */
bool sl_damage_next(sl_damage *g, int32_t *page, int32_t *dropped);
void sl_damage_stats_get(const sl_damage *g, sl_damage_stats *out);

#endif
