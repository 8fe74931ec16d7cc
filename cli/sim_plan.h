/*
 * Whether the workers of a simulated cluster could start: what `sluice plan` says of the model of the configuration, with the
 * device memory that was given. The simulator itself knows neither weights nor devices. Main thread.
 */
#ifndef SL_CLI_SIM_PLAN_H
#define SL_CLI_SIM_PLAN_H

#include "engine/plan_group.h"
#include "local/checkpoint.h"
#include "simulate/simulate.h"

typedef struct sl_sim_plan {
    const char *preset; /* NULL: the model of model.path */
    uint64_t gpu_bytes; /* of one decode worker */
    int32_t longest;    /* tokens of the longest request of the trace */
    sl_local_checkpoint model;
    sl_select_options select;
    sl_plan_group group; /* of cluster.groups */
    sl_plan_in in;
} sl_sim_plan;

/* Reads the model and checks that the device has room for decode.max_batch requests. Errors name the key. p must not move. */
sl_status sl_cli_sim_plan_init(sl_sim_plan *p, const sl_config *cfg, const sl_sim_trace *trace, double length,
                               sl_err *err);
/* Whether a decode worker of these sizes has room for the longest request on the device and in host memory. ctx: an sl_sim_plan. */
sl_status sl_cli_sim_plan_fits(void *ctx, const sl_sim_opts *o, sl_err *err);

#endif
