/* The output of `sluice generate`. Internal to cli/. */
#ifndef SL_CLI_GENERATE_H
#define SL_CLI_GENERATE_H

#include <stdio.h>

#include "local/run.h"

/* Prints the finished run for human readers, or as one JSON object. */
sl_status sl_cli_print_run(const sl_local_run *r, const sl_local_run_opts *o, bool json, FILE *to,
                           sl_err *err);

#endif
