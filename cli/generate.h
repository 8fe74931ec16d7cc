/* The output of `sluice generate`. Internal to cli/. */
#ifndef SL_CLI_GENERATE_H
#define SL_CLI_GENERATE_H

#include <stdio.h>

#include "local/run.h"

sl_status sl_gen_print(const sl_gen *g, const sl_generate_opts *o, FILE *to, sl_err *err);

#endif
