/*
 * The registry of fronts, and what they share.
 */
#include "router/front.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

static const sl_front_class *const fronts[SL_FRONTS] = {&sl_front_http, &sl_front_grpc};

const sl_front_class *sl_front_at(size_t i)
{
    return i < SL_COUNT(fronts) ? fronts[i] : NULL;
}

bool sl_front_key_ok(const char *authorization, const char *key)
{
    if (!key || !*key)
        return true;
    if (!authorization || strncasecmp(authorization, "Bearer ", 7))
        return false;
    const char *got = authorization + 7;
    size_t n = strlen(got), k = strlen(key);
    unsigned diff = n != k;
    for (size_t i = 0; i < n; i++)
        diff |= (unsigned char)got[i] ^ (unsigned char)key[i % k];
    return !diff;
}

bool sl_front_caller(sl_router *r, const char *authorization, const struct sockaddr *peer, sl_caller *out)
{
    const sl_router_opts *o = sl_router_options(r);
    bool has_file = o->keys_file && *o->keys_file, has_key = o->api_key && *o->api_key;
    *out = (sl_caller){.admin = true};
    sl_front_client(peer, out->client);
    if ((has_key || !has_file) && sl_front_key_ok(authorization, o->api_key))
        return true;
    if (!has_file || !authorization || strncasecmp(authorization, "Bearer ", 7))
        return false;
    const char *name = sl_router_tenant(r, authorization + 7, &out->admin);
    if (name)
        snprintf(out->client, sizeof out->client, "%s", name);
    return name != NULL;
}

void sl_front_client(const struct sockaddr *a, char out[SL_CLIENT_MAX])
{
    out[0] = 0;
    if (a && a->sa_family == AF_INET) {
        uv_ip4_name((const struct sockaddr_in *)a, out, SL_CLIENT_MAX);
    } else if (a && a->sa_family == AF_INET6) {
        struct sockaddr_in6 net = *(const struct sockaddr_in6 *)a;
        if (!IN6_IS_ADDR_V4MAPPED(&net.sin6_addr))
            memset(net.sin6_addr.s6_addr + 8, 0, 8);
        uv_ip6_name(&net, out, SL_CLIENT_MAX);
    }
}

void sl_front_count_refused(sl_router *r, const char *api, sl_status st)
{
    if (st != SL_ERR_EXHAUSTED)
        sl_router_stats_request(sl_router_get_stats(r), api, sl_router_stats_outcome(st));
}
