/*
 * Holdings: what this worker tells the routers about pages on its own disk: KV_EVENTS with medium disk, without parents and
 * tokens. Pages in host memory are told by changes.c, from the events of the store.
 *
 * A page is told as stored when the tier has reported its write, and as removed when the tier has given it up. A session
 * begins with everything that the local persistent tiers have, in batches, a few in each turn; that is also how pages
 * which a restart has found become known. Changes are told meanwhile. They come after the part of the list that they
 * concern, because a tier reports them in its poll, so what a router knows at the end is right.
 */
#ifndef SL_DECODE_PAGES_HOLDINGS_H
#define SL_DECODE_PAGES_HOLDINGS_H

#include "decode/pages/publish.h"
#include "decode/pages/sessions.h"

typedef struct sl_holdings sl_holdings;

/* NULL: out of memory. */
sl_holdings *sl_holdings_new(const sl_pages_env *e, sl_sessions *sessions, sl_publish *publish);
void sl_holdings_free(sl_holdings *h);
/* Pages are in a tier now, or not any more. */
void sl_holdings_stored(sl_holdings *h, int tier, const sl_key *keys, int32_t n);
void sl_holdings_gone(sl_holdings *h, int tier, const sl_key *keys, int32_t n);
/* This session is told everything that is on disk, from the next tick on. */
void sl_holdings_begin(sl_holdings *h, uint32_t session);
void sl_holdings_end(sl_holdings *h, uint32_t session);
/* Tells changes and parts of lists; whether there are more parts. */
bool sl_holdings_tick(sl_holdings *h);

#endif
