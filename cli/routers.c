/* See routers.h. */
#include "cli/routers.h"

#include <stdio.h>
#include <string.h>

#include "base/log.h"

static sl_status parse(const char *key, const char *address, char host[SL_TP_ADDRESS_MAX], uint16_t *port,
                       sl_err *err)
{
    sl_err why = {0};
    sl_status st = sl_tp_address_parse(address, host, SL_TP_ADDRESS_MAX, port, &why);
    if (st != SL_OK || !*port)
        return sl_fail(err, SL_ERR_INVALID, "%s: \"%s\" is not HOST:PORT%s%s", key, address,
                       why.text[0] ? ": " : "", why.text);
    return SL_OK;
}

static sl_status shift_port(const char *key, int *port, int index, sl_err *err)
{
    if (!*port)
        return SL_OK;
    if (index > 65535 - *port)
        return sl_fail(err, SL_ERR_INVALID,
                       "%s: %d is too high for router %d, which listens %d ports above it", key, *port, index,
                       index);
    *port += index;
    return SL_OK;
}

sl_status sl_cli_router_place(sl_config *cfg, int index, sl_err *err)
{
    char host[SL_TP_ADDRESS_MAX];
    uint16_t port;
    SL_TRY(shift_port("router.http_port", &cfg->router.http_port, index, err));
    SL_TRY(shift_port("router.grpc_port", &cfg->router.grpc_port, index, err));
    if (!cfg->cluster.routers.n)
        return shift_port("cluster.router_port", &cfg->cluster.router_port, index, err);
    if (index >= cfg->cluster.routers.n)
        return sl_fail(err, SL_ERR_INVALID, "cluster.routers: has %d addresses, none for router %d (from 0)",
                       cfg->cluster.routers.n, index);
    SL_TRY(parse("cluster.routers", cfg->cluster.routers.v[index], host, &port, err));
    snprintf(cfg->cluster.router_host, sizeof cfg->cluster.router_host, "%s", host);
    cfg->cluster.router_port = port;
    return SL_OK;
}

sl_status sl_cli_router_listed(const sl_config *cfg, sl_err *err)
{
    char host[SL_TP_ADDRESS_MAX];
    uint16_t port;
    for (int i = 0; i < cfg->cluster.routers.n; i++) {
        SL_TRY(parse("cluster.routers", cfg->cluster.routers.v[i], host, &port, err));
        if (port == cfg->cluster.router_port)
            return SL_OK;
    }
    if (!cfg->cluster.routers.n)
        return SL_OK;
    return sl_fail(
        err, SL_ERR_INVALID,
        "cluster.routers: no entry has cluster.router_port %d, so no worker would find this router; --index "
        "says which entry it is",
        cfg->cluster.router_port);
}

sl_status sl_cli_routers_configured(const sl_config *cfg, sl_cli_routers *out, sl_err *err)
{
    char host[SL_TP_ADDRESS_MAX];
    uint16_t port;
    memset(out, 0, sizeof *out);
    for (int i = 0; i < cfg->cluster.routers.n; i++) {
        SL_TRY(parse("cluster.routers", cfg->cluster.routers.v[i], host, &port, err));
        snprintf(out->address[out->n++], sizeof out->address[0], "%s", cfg->cluster.routers.v[i]);
    }
    if (out->n)
        return SL_OK;
    if (cfg->cluster.router_port == 0)
        return sl_fail(
            err, SL_ERR_INVALID,
            "cluster.router_port: 0 needs `sluice serve` under mpirun, which passes the address on; "
            "set a port");
    snprintf(out->address[out->n++], sizeof out->address[0],
             strchr(cfg->cluster.router_host, ':') ? "[%.100s]:%d" : "%.100s:%d", cfg->cluster.router_host,
             cfg->cluster.router_port);
    return SL_OK;
}

sl_status sl_cli_routers_exchange(const sl_config *cfg, sl_launch *l, const char *own, sl_cli_routers *out,
                                  sl_err *err)
{
    memset(out, 0, sizeof *out);
    for (int rank = 0; rank < cfg->cluster.roles.n; rank++) {
        char address[SL_TP_ADDRESS_MAX] = "";
        if (cfg->cluster.roles.v[rank] != SL_ROLE_ROUTER)
            continue;
        if (rank == l->rank && own)
            snprintf(address, sizeof address, "%s", own);
        SL_TRY(sl_launch_bcast(l, rank, address, sizeof address, err));
        if (address[0])
            memcpy(out->address[out->n++], address, sizeof address);
        else if (!own)
            sl_log(SL_LOG_ERROR, "cluster", "router_missing",
                   "rank=%d reason=\"it could not start; its own message says why\"", rank);
    }
    if (!out->n)
        return sl_fail(err, SL_ERR_REFUSED, "no router could start; its own message says why");
    return SL_OK;
}
