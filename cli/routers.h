/*
 * Which routers a cluster has: where each listens, and how the other processes find them. One router is
 * cluster.router_host and cluster.router_port; several are the list cluster.routers, or ranks of mpirun that tell each
 * other their addresses. Main thread, before other threads start.
 */
#ifndef SL_CLI_ROUTERS_H
#define SL_CLI_ROUTERS_H

#include "base/config.h"
#include "transport/launch/launch.h"
#include "transport/transport.h"

typedef struct sl_cli_routers {
    int n;
    char address[SL_CFG_MAX_ROUTERS][SL_TP_ADDRESS_MAX]; /* "host:port" */
} sl_cli_routers;

/*
 * Makes cfg the configuration of router number `index`: it listens for workers at that entry of cluster.routers, or,
 * when that is empty, at router_port + index; for clients at http_port + index and grpc_port + index. A port of 0 stays
 * 0. SL_ERR_INVALID: there is no such entry, it is not HOST:PORT, or a port would exceed 65535.
 */
sl_status sl_cli_router_place(sl_config *cfg, int index, sl_err *err);

/*
 * Whether a router without a number, which listens at router_host and router_port, is one of cluster.routers: an entry
 * has its port, or there is no list. (The host may be another name, or a wildcard.) SL_ERR_INVALID: it is none.
 */
sl_status sl_cli_router_listed(const sl_config *cfg, sl_err *err);

/* The routers according to the configuration alone. SL_ERR_INVALID names the key. */
sl_status sl_cli_routers_configured(const sl_config *cfg, sl_cli_routers *out, sl_err *err);

/*
 * The routers according to the ranks of mpirun (cluster.roles). Collective: every rank calls it once. own: where this
 * rank listens, if it is a router; "" when it could not start, NULL: it is a worker. A router that could not start is
 * left out of *out, and logged; SL_ERR_REFUSED: there is none.
 */
sl_status sl_cli_routers_exchange(const sl_config *cfg, sl_launch *l, const char *own, sl_cli_routers *out,
                                  sl_err *err);

#endif
