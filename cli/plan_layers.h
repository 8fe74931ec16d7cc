/*
 * `sluice plan --locality`: chooses the hot rows of each layer from a decode worker's metrics, see engine/locality.h.
 */
#ifndef SL_CLI_PLAN_LAYERS_H
#define SL_CLI_PLAN_LAYERS_H

#include "engine/plan.h"

typedef struct sl_plan_layers {
    const char *file;  /* path of a saved /metrics page */
    int32_t context;   /* tokens of the requests to plan for */
    double swap_share; /* fraction of a step spent waiting for rows; below 0: computed from the metrics */
} sl_plan_layers;

/*
 * Prints the choice as a table and a line for the configuration, or as JSON; returns an exit code. p: the plan with the
 * same number of hot rows in all layers.
 */
int sl_cli_plan_layers(const sl_plan_layers *o, const sl_plan *p, int32_t n_layers, bool json);

#endif
