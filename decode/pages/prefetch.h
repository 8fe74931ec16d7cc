/*
 * Prefetch: pages of requests that still wait in a router's queue (PREFETCH) are loaded from the storage tiers, and from the
 * other decode worker that PREFETCH names, before the RESERVE of the request.
 *
 * A prefetch holds no place and no ticket. Its load takes pages of the store as every load does (kvstore/cascade.h); when it has
 * ended, the pages are in the prefix tree, where RESERVE finds them, and nothing is held for the prefetch any more. It ends with
 * the RESERVE of its request, with ABORT, with the session of its router, when the worker drains, or after one minute. What it
 * was loading is given up then, unless another request waits for the same load.
 */
#ifndef SL_DECODE_PAGES_PREFETCH_H
#define SL_DECODE_PAGES_PREFETCH_H

#include "decode/pages/env.h"

typedef struct sl_prefetches sl_prefetches;
typedef struct sl_prefetch sl_prefetch;

/* NULL: out of memory. */
sl_prefetches *sl_prefetches_new(const sl_pages_env *e);
/* Ends all of them. */
void sl_prefetches_free(sl_prefetches *s);
/* Takes m, a PREFETCH. */
void sl_prefetch_begin(sl_prefetches *s, sl_wmsg *m);
/* NULL: this request was not announced, or its prefetch has ended. */
sl_prefetch *sl_prefetch_find(const sl_prefetches *s, uint32_t router, uint64_t rid);
/* Its load has ended. */
bool sl_prefetch_done(const sl_prefetch *p);
/* Ends and frees it, whether its load has ended or not. */
void sl_prefetch_finish(sl_prefetches *s, sl_prefetch *p, sl_prefetch_end how);
/* Ends those of this session; NULL: all. */
void sl_prefetch_cancel(sl_prefetches *s, const uint32_t *router);
/* The wait of this waiter, of the kind SL_WAITER_PREFETCH, has ended. */
void sl_prefetch_loaded(sl_prefetches *s, sl_cascade_waiter *w);
/* Ends those that are too old; returns when the next one is. */
uint64_t sl_prefetch_tick(sl_prefetches *s, uint64_t now);
void sl_prefetch_stats_get(const sl_prefetches *s, sl_prefetch_stats *out);

/* Whether a load of this number of pages is worth its costs. */
bool sl_prefetch_worth(const sl_pages_env *e, int32_t pages);
/* The other worker that a message of this session names, for the cascade. */
sl_tier_source sl_prefetch_source(uint32_t router, const sl_msg_source *s);

#endif
