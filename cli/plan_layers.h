/* `sluice plan --locality`: hot rows by layer from a decode worker's metrics; the rule is in
 * engine/locality.h. */
#ifndef SL_CLI_PLAN_LAYERS_H
#define SL_CLI_PLAN_LAYERS_H

#include "engine/plan.h"

typedef struct sl_plan_layers {
    const char *file;  /* text of /metrics */
    int32_t context;   /* tokens of the requests to plan for */
    double swap_share; /* below 0: from the metrics */
} sl_plan_layers;

/* Prints the choice (a table and the line for the config, or JSON); returns an exit status. p has one
 * capacity for all layers. */
int sl_cli_plan_layers(const sl_plan_layers *o, const sl_plan *p, int32_t n_layers, bool json);

#endif
