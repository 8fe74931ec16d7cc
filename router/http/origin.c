/*
 * What a request says of its sender besides the key: a request id that the client chose, and the origin of the page whose script
 * sends it.
 *
 * Scripts of other pages may read answers if a key is needed, which such a page has to know, or if the page is one of this host
 * (localhost in its origin). Otherwise any page in an operator's browser could ask a server on loopback in its name.
 */
#include <stdio.h>
#include <string.h>

#include "router/http/http_impl.h"

static bool is_plain_id(const char *id, size_t most)
{
    size_t n = strspn(id, "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ._:-");
    return n && n < most && !id[n];
}

static bool needs_key(const sl_router_opts *o)
{
    return (o->front.api_key && *o->front.api_key) || (o->front.keys_file && *o->front.keys_file);
}

/* For example "http://localhost:3000". */
static bool is_local(const char *origin)
{
    static const char *const hosts[] = {"localhost", "127.0.0.1", "[::1]"};
    const char *host = strstr(origin, "://");
    for (size_t i = 0; host && i < SL_COUNT(hosts); i++) {
        size_t n = strlen(hosts[i]);
        if (!strncmp(host + 3, hosts[i], n) && (!host[3 + n] || host[3 + n] == ':'))
            return true;
    }
    return false;
}

static bool is_plain_origin(const char *origin, size_t most)
{
    size_t n = strspn(origin, "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.:/[]-_");
    return n && n < most && !origin[n];
}

void http_adopt(http_req *q)
{
    const char *id = MHD_lookup_connection_value(q->c, MHD_HEADER_KIND, "X-Request-Id");
    const char *origin = MHD_lookup_connection_value(q->c, MHD_HEADER_KIND, MHD_HTTP_HEADER_ORIGIN);
    if (id && is_plain_id(id, sizeof q->given_id))
        snprintf(q->given_id, sizeof q->given_id, "%s", id);
    if (origin && is_plain_origin(origin, sizeof q->origin) && (needs_key(q->h->o) || is_local(origin)))
        snprintf(q->origin, sizeof q->origin, "%s", origin);
}

void http_add_origin(const http_req *q, struct MHD_Response *res)
{
    if (!q->origin[0])
        return;
    MHD_add_response_header(res, "Access-Control-Allow-Origin", q->origin);
    MHD_add_response_header(res, "Access-Control-Expose-Headers", "X-Request-Id, Retry-After");
    MHD_add_response_header(res, MHD_HTTP_HEADER_VARY, "Origin");
    if (q->code != 204)
        return;
    MHD_add_response_header(res, "Access-Control-Allow-Methods", "GET, POST");
    MHD_add_response_header(res, "Access-Control-Max-Age", "600");
    MHD_add_response_header(
        res, "Access-Control-Allow-Headers",
        "Authorization, Content-Type, Content-Encoding, X-Api-Key, X-Request-Id, Traceparent, Tracestate, Anthropic-Version, Anthropic-Beta, "
        "Anthropic-Dangerous-Direct-Browser-Access, X-Stainless-Arch, X-Stainless-Lang, X-Stainless-OS, "
        "X-Stainless-Package-Version, X-Stainless-Retry-Count, X-Stainless-Runtime, "
        "X-Stainless-Runtime-Version, X-Stainless-Timeout, X-Stainless-Helper-Method");
}

void http_preflight(http_req *q)
{
    http_reply(q, 204, "text/plain", strdup(""));
}
