/*
 * Whether the processes of a configuration would start on this host: the checks of `sluice config check` and of `sluice
 * doctor`. They are those of the processes themselves: a router is opened and closed, and a worker's are called without
 * a device and without loading weights. Main thread; ports are open for a moment.
 */
#ifndef SL_CLI_CONFIG_START_H
#define SL_CLI_CONFIG_START_H

#include "base/config.h"

/*
 * here: this is the host where the processes start, so its ports, memory and devices are checked too. *context (may be
 * NULL): tokens of the longest request. Errors name the key.
 */
sl_status sl_cli_check_start(const sl_config *cfg, bool here, int32_t *context, sl_err *err);

#endif
