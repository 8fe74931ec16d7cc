/*
 * What a decode worker reports: its load for the heartbeat, and its metrics. The other rooms count in their own structures; the
 * tables in report.c say which series each number is (rows.h). Engine thread.
 */
#ifndef SL_DECODE_REPORT_REPORT_H
#define SL_DECODE_REPORT_REPORT_H

#include "decode/link/link.h"
#include "decode/pages/pages.h"
#include "decode/run/run.h"
#include "worker/role.h"

typedef struct sl_report sl_report;

/* Everything that is pointed to outlives the report. */
typedef struct sl_report_opts {
    sl_worker_role *role;
    const sl_runner *runner;
    int32_t n_layers;
    sl_metrics *metrics;       /* NULL: none */
    const sl_cascade *cascade; /* NULL: there is no storage tier */
    bool prompts;              /* the worker computes prompts itself */
} sl_report_opts;

/* The numbers of the other rooms. */
typedef struct sl_report_now {
    sl_run_stats run;
    sl_pages_stats pages;
    sl_link_stats link;
} sl_report_now;

/* SL_ERR_NO_MEMORY. */
sl_status sl_report_create(const sl_report_opts *o, sl_report **out, sl_err *err);
void sl_report_destroy(sl_report *r);
/* At the end of each turn of the loop. */
void sl_report_turn(sl_report *r, const sl_report_now *now);

#endif
