/*
 * Reads the figures of the workers (figures.h) from their pages of metrics, while somebody looks at the live page: without
 * a viewer no connection is opened. One connection per worker at a time, each with a deadline and a bound of bytes, in the
 * router's loop without blocking it. A worker without metrics.port, or one that does not answer, has no figures.
 *
 * Threads: the loop's. Lifetime: closed before the loop ends; what is in flight frees itself when the loop runs again.
 */
#ifndef SL_ROUTER_PAGE_SCRAPE_H
#define SL_ROUTER_PAGE_SCRAPE_H

#include <uv.h>

#include "router/core.h"
#include "router/page/figures.h"

typedef struct sl_scrapes sl_scrapes;

/* NULL when out of memory. */
sl_scrapes *sl_scrapes_create(sl_router *r, uv_loop_t *loop);
/* Begins what is due, ends what takes too long. looked_at: the page is open somewhere. */
void sl_scrapes_tick(sl_scrapes *s, uint64_t now_ns, bool looked_at);
/* The newest figures of this member, NULL: none, or they are old. *age_ms: since they were read. */
const sl_figures *sl_scrapes_find(const sl_scrapes *s, uint32_t member, uint64_t now_ns, uint32_t *age_ms);
/* NULL is allowed. */
void sl_scrapes_close(sl_scrapes *s);

#endif
