/*
 * Tells other programs' routers which pages this worker has (events/events.h).
 *
 * Subscribers are not authenticated, so only what may be known to everybody is told: pages of requests without a salt, where
 * everybody shares (kvstore.share: all). The others are not published at all: without their tokens another router could not
 * use them, and with them it would read the prompts.
 *
 * Pages on disk are told with their tokens, as the format requires. The worker knows the tokens when it writes a page and when
 * a request loads it, but not those of the other pages that a restart has found, and it keeps no tokens. So after AllBlocksCleared
 * a page on disk is told again when it is also in host memory, or else when it is written or loaded next.
 */
#ifndef SL_DECODE_PAGES_PUBLISH_H
#define SL_DECODE_PAGES_PUBLISH_H

#include "decode/pages/env.h"
#include "worker/setup.h"

/* Opens the events of this configuration; *out NULL: they are off. The text of an error names the key. */
sl_status sl_publish_open(const sl_config *cfg, const sl_worker_launch *launch, sl_metrics *metrics,
                          sl_events **out, sl_err *err);

typedef struct sl_publish sl_publish;

/* Owns the events, which may be NULL. NULL: out of memory; then they are closed. */
sl_publish *sl_publish_new(const sl_pages_env *e, sl_events *events);
void sl_publish_free(sl_publish *u);
/* A change of the store. */
void sl_publish_event(sl_publish *u, sl_store_event ev, const sl_store_page *page);
/* A page is in a tier (kvstore/cascade.h), or pages have left a local one. */
void sl_publish_held(sl_publish *u, int tier, const sl_store_page *page);
void sl_publish_gone(sl_publish *u, const sl_key *keys, int32_t n);
/* At the end of each turn of the loop. */
void sl_publish_turn(sl_publish *u);

#endif
