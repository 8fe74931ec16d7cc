/*
 * Checks before a process listens: unless the configuration allows it explicitly, other hosts must not be able to reach
 * a router or worker without a secret, or the ports for clients without a key.
 */
#ifndef SL_CLI_EXPOSURE_H
#define SL_CLI_EXPOSURE_H

#include "base/config.h"
#include "base/msg.h"

/*
 * True if only this host can reach a listener on this host name. Names are resolved. False for "", for wildcard
 * addresses, and for a name that cannot be resolved.
 */
bool sl_cli_loopback(const char *host);

/* router_host: the host where workers reach the router. SL_ERR_INVALID: err names the key and what to set. */
sl_status sl_cli_check_exposure(const sl_config *cfg, sl_role role, const char *router_host, sl_err *err);

#endif
