/*
 * Loading: requests whose prefix continues in storage tiers (kvstore/cascade.h).
 *
 * RESERVE that would be granted now waits here while the tiers are asked and the pages are loaded; then it is handled again
 * from the beginning and finds them in the prefix tree. It has no pages meanwhile, and the router sees only that its answer
 * comes later, and, when the load takes more than one chunk, LOADING: then the prefill worker begins to fetch the pages that have
 * arrived (lend.c).
 */
#ifndef SL_DECODE_PAGES_LOADING_H
#define SL_DECODE_PAGES_LOADING_H

#include "decode/pages/prefetch.h"

typedef struct sl_loads sl_loads;

/* NULL: out of memory. */
sl_loads *sl_loads_new(const sl_pages_env *e, sl_prefetches *prefetches);
/* All requests leave. */
void sl_loads_free(sl_loads *s);
/* As sl_pages_wait(), sl_pages_leave() and sl_pages_waiting(). */
bool sl_loads_wait(sl_loads *s, uint64_t number, uint32_t router, const sl_msg_reserve *r);
void sl_loads_leave(sl_loads *s, uint64_t number);
int32_t sl_loads_waiting(const sl_loads *s);
/* News of a waiter of the kind SL_WAITER_REQUEST. True: its wait has ended; *out says so. */
bool sl_loads_news(sl_loads *s, const sl_cascade_news *news, sl_pages_event *out);
/* The next request whose time is over. It continues with the pages that have arrived. False: there is none now. */
bool sl_loads_next(sl_loads *s, uint64_t now, sl_pages_event *out);
/* When the time of the next request is over. */
uint64_t sl_loads_due(const sl_loads *s);

#endif
