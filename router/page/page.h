/*
 * The live page of a router: its texts (page.html, page.css, page.js, which load nothing from elsewhere) and the one JSON
 * document from which it is drawn. The document has what the router knows and, while it is asked for, figures of the
 * workers (scrape.h). What concerns single clients and requests is only for callers with admin rights, as in /metrics.
 *
 * Threads: the loop's. Lifetime: created and closed by the HTTP front.
 */
#ifndef SL_ROUTER_PAGE_PAGE_H
#define SL_ROUTER_PAGE_PAGE_H

#include <uv.h>

#include "router/core.h"

typedef struct sl_page sl_page;

/* NULL when out of memory. */
sl_page *sl_page_create(sl_router *r, uv_loop_t *loop);
void sl_page_close(sl_page *p); /* NULL is allowed */
void sl_page_tick(sl_page *p, uint64_t now_ns);
/* The document, malloc'ed; NULL when out of memory. Calling it says that the page is looked at. */
char *sl_page_document(sl_page *p, bool admin);

/* One of the texts: its content type and bytes; NULL: there is none of this path ("/", "/page.css", "/page.js"). */
const char *sl_page_text(const char *path, const char **type, size_t *n);

/* What every text of the page is sent with: nothing from elsewhere, no frame, no inline script. */
extern const char sl_page_policy[];

#endif
