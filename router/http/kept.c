/*
 * Answers that many ask for and that take long to make: metrics, workers, models, health. An answer is made for each of
 * the first few who ask in a tenth of a second; whoever asks after them gets the last one that was made, which all
 * connections share without a copy.
 */
#include <stdlib.h>

#include "base/log.h"
#include "router/http/http_impl.h"

enum { KEPT = 96, FRESH = 4 };
#define KEPT_NS (100 * SL_MS)

typedef struct kept {
    const http_route *route;
    bool admin, cross; /* cross: for scripts of pages that may read it (origin.c) */
    int code;
    uint64_t since_ns; /* of a tenth of a second, in which `made` were made */
    int made;
    struct MHD_Response *response;
} kept;

struct http_kept {
    kept at[KEPT];
};

static kept *slot(const http_req *q)
{
    sl_http *h = q->h;
    const http_route *route = q->route;
    bool admin = q->caller.admin, cross = q->origin[0] != 0;
    if (!h->kept)
        h->kept = calloc(1, sizeof *h->kept);
    for (int i = 0; h->kept && i < KEPT; i++) {
        kept *k = &h->kept->at[i];
        if (!k->route || (k->route == route && k->admin == admin && k->cross == cross))
            return k;
    }
    return NULL;
}

static void use(http_req *q, const kept *k)
{
    q->shared = k->response;
    q->code = k->code;
}

bool http_kept_find(http_req *q)
{
    if (!q->route || !q->route->kept)
        return false;
    kept *k = slot(q);
    if (!k)
        return false;
    uint64_t now = sl_now_ns();
    if (now - k->since_ns >= KEPT_NS) {
        k->since_ns = now;
        k->made = 0;
    }
    if (!k->response || k->made < FRESH)
        return false;
    use(q, k);
    return true;
}

void http_kept_add(http_req *q)
{
    kept *k = q->route && q->route->kept && q->reply ? slot(q) : NULL;
    struct MHD_Response *res =
        k ? MHD_create_response_from_buffer(q->reply_len, q->reply, MHD_RESPMEM_MUST_FREE) : NULL;
    if (!res)
        return;
    q->reply = NULL; /* the response owns it */
    MHD_add_response_header(res, MHD_HTTP_HEADER_CONTENT_TYPE, q->type);
    if (q->code == 503)
        MHD_add_response_header(res, MHD_HTTP_HEADER_RETRY_AFTER, "1");
    if (q->route->page)
        http_page_headers(res);
    if (k->response)
        MHD_destroy_response(k->response); /* connections that send it have references of their own */
    k->route = q->route;
    k->admin = q->caller.admin;
    k->cross = q->origin[0] != 0;
    if (k->cross)
        MHD_add_response_header(res, "Access-Control-Allow-Origin", "*");
    k->code = q->code;
    k->response = res;
    k->made++;
    use(q, k);
}

void http_kept_free(sl_http *h)
{
    for (int i = 0; h->kept && i < KEPT; i++) {
        if (h->kept->at[i].response)
            MHD_destroy_response(h->kept->at[i].response);
    }
    free(h->kept);
    h->kept = NULL;
}
