/* See exposure.h. */
#include "cli/exposure.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

#include "events/events.h"
#include "transport/transport.h"

static bool is_loopback(const struct sockaddr *sa)
{
    if (sa->sa_family == AF_INET)
        return ntohl(((const struct sockaddr_in *)sa)->sin_addr.s_addr) >> 24 == 127;
    return sa->sa_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&((const struct sockaddr_in6 *)sa)->sin6_addr);
}

bool sl_cli_loopback(const char *host)
{
    struct addrinfo *found = NULL, hints = {.ai_socktype = SOCK_STREAM};
    if (!host[0] || getaddrinfo(host, NULL, &hints, &found) != 0)
        return false;
    bool all = found != NULL;
    for (const struct addrinfo *a = found; a; a = a->ai_next)
        all &= is_loopback(a->ai_addr);
    freeaddrinfo(found);
    return all;
}

static sl_status check_cluster(const sl_config *c, const char *router_host, sl_err *err)
{
    const char *advertised = c->cluster.advertise_host;
    if (c->cluster.secret[0] || sl_config_insecure(&c->cluster, SL_CFG_WORKERS))
        return SL_OK;
    if (!sl_cli_loopback(router_host))
        return sl_fail(
            err, SL_ERR_INVALID,
            "cluster.secret_file: not set, and router and workers meet at \"%s\", which other hosts reach: "
            "set it to a file with the same secret on every host, or set cluster.insecure: [workers]",
            router_host);
    if (advertised[0] && !sl_cli_loopback(advertised))
        return sl_fail(
            err, SL_ERR_INVALID,
            "cluster.secret_file: not set, and other hosts can reach this worker at cluster.advertise_host \"%s\": "
            "set it, or set cluster.insecure: [workers]",
            advertised);
    return SL_OK;
}

static sl_status check_clients(const sl_config *c, sl_err *err)
{
    if (c->router.api_key[0] || c->router.keys_file[0] || sl_config_insecure(&c->cluster, SL_CFG_CLIENTS) ||
        sl_cli_loopback(c->router.host))
        return SL_OK;
    return sl_fail(
        err, SL_ERR_INVALID,
        "router.host is \"%s\", which other hosts reach, and clients need no key: set router.keys_file or "
        "router.api_key_file, or set cluster.insecure: [clients]",
        c->router.host);
}

sl_status sl_cli_check_exposure(const sl_config *cfg, sl_role role, const char *router_host, sl_err *err)
{
    SL_TRY(check_cluster(cfg, router_host, err));
    if (sl_role_does(role, SL_ROLE_DECODE) && !sl_config_insecure(&cfg->cluster, SL_CFG_EVENTS))
        SL_TRY(sl_events_check_exposure(sl_config_part(cfg, &sl_events_table), sl_cli_loopback, err));
    return role == SL_ROLE_ROUTER ? check_clients(cfg, err) : SL_OK;
}
