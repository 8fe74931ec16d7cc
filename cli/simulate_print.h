/* The results of `sluice simulate`: a table for people, and one line of CSV for each run. */
#ifndef SL_CLI_SIMULATE_PRINT_H
#define SL_CLI_SIMULATE_PRINT_H

#include <stdio.h>

#include "simulate/simulate.h"

void sl_simulate_print(FILE *to, const sl_sim_opts *o, const sl_sim_result *r);
void sl_simulate_csv_head(FILE *to);
void sl_simulate_csv(FILE *to, const sl_sim_opts *o, const sl_sim_result *r);

/* One line for each request; ctx of sl_simulate_each: the FILE. */
void sl_simulate_each_head(FILE *to);
void sl_simulate_each(void *ctx, const sl_sim_each *e);

#endif
