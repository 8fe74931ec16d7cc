/*
 * What a process refuses to do unless it is told to: to be reached beyond this host without a secret (router and workers)
 * or without a key (the ports for clients).
 */
#ifndef SL_CLI_EXPOSURE_H
#define SL_CLI_EXPOSURE_H

#include "base/config.h"
#include "base/msg.h"

/* Whether a listener on this host name is reached by this host only. Names are resolved; "" and wildcard addresses are
 * not. A name that does not resolve counts as reached by others. */
bool sl_cli_loopback(const char *host);

/* router_host: where workers reach the router. SL_ERR_INVALID names the key, and what to set. */
sl_status sl_cli_check_exposure(const sl_config *cfg, sl_role role, const char *router_host, sl_err *err);

#endif
