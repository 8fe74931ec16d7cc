/*
 * The live page over HTTP: its texts, its document, and who may have them. With keys, the texts are for everybody, for they
 * say nothing, and the document needs a key. Without keys both are for callers of this host whose browser was told to
 * come here: the name in Host must be an address or localhost, so that a page elsewhere whose name was made to point to
 * this host cannot read it.
 */
#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "router/http/http_impl.h"

static bool loopback_address(const struct sockaddr *a)
{
    if (a->sa_family == AF_INET)
        return ntohl(((const struct sockaddr_in *)(const void *)a)->sin_addr.s_addr) >> 24 == 127;
    if (a->sa_family != AF_INET6)
        return false;
    const struct in6_addr *v6 = &((const struct sockaddr_in6 *)(const void *)a)->sin6_addr;
    return IN6_IS_ADDR_LOOPBACK(v6) || (IN6_IS_ADDR_V4MAPPED(v6) && v6->s6_addr[12] == 127);
}

/* Host: an address, or localhost, with or without a port. */
static bool plain_host(const char *host)
{
    char name[64];
    unsigned char address[16];
    const char *end = host && host[0] == '[' ? strchr(host, ']') : host ? host + strcspn(host, ":") : NULL;
    const size_t skip = host && host[0] == '[';
    if (!end || (size_t)(end - host) >= sizeof name + skip)
        return false;
    const size_t n = (size_t)(end - host) - skip;
    memcpy(name, host + skip, n);
    name[n] = 0;
    return strcasecmp(name, "localhost") == 0 || inet_pton(AF_INET, name, address) == 1 ||
           inet_pton(AF_INET6, name, address) == 1;
}

bool http_page_allowed(http_req *q)
{
    const sl_router_opts *o = q->h->o;
    if ((o->front.api_key && *o->front.api_key) || (o->front.keys_file && *o->front.keys_file))
        return true; /* the route says what needs one */
    const union MHD_ConnectionInfo *peer = MHD_get_connection_info(q->c, MHD_CONNECTION_INFO_CLIENT_ADDRESS);
    return peer && peer->client_addr && loopback_address(peer->client_addr) &&
           plain_host(MHD_lookup_connection_value(q->c, MHD_HEADER_KIND, MHD_HTTP_HEADER_HOST));
}

void http_page_headers(struct MHD_Response *res)
{
    MHD_add_response_header(res, "Content-Security-Policy", sl_page_policy);
    MHD_add_response_header(res, "X-Content-Type-Options", "nosniff");
    MHD_add_response_header(res, "Referrer-Policy", "no-referrer");
    MHD_add_response_header(res, "Cross-Origin-Resource-Policy", "same-origin");
    MHD_add_response_header(res, MHD_HTTP_HEADER_CACHE_CONTROL, "no-store");
}

void http_live_text(http_req *q)
{
    size_t n;
    const char *type, *bytes = sl_page_text(q->path, &type, &n);
    char *copy = bytes ? malloc(n + 1) : NULL;
    if (copy) {
        memcpy(copy, bytes, n);
        copy[n] = 0;
    }
    http_reply(q, 200, copy ? type : "text/plain", copy);
}

void http_live_document(http_req *q)
{
    http_reply(q, 200, "application/json", sl_page_document(q->h->page, q->caller.admin));
}
