/*
 * The last hour of a router in steps of ten seconds: rates, queue, quantiles of latencies, requests that ended with an
 * error. Quantiles are estimated from the buckets of the histograms, as Prometheus does. The loop's thread.
 */
#ifndef SL_ROUTER_PAGE_HISTORY_H
#define SL_ROUTER_PAGE_HISTORY_H

#include <jansson.h>

#include "router/stats.h"

enum { SL_HISTORY_STEP_S = 10, SL_HISTORY_STEPS = 360 };

/* Outcomes of requests that are errors, in the order of the counts. */
enum { SL_HISTORY_OUTCOMES = 6 };
extern const char *const sl_history_outcomes[SL_HISTORY_OUTCOMES];

typedef struct sl_history sl_history;

sl_history *sl_history_create(void); /* NULL when out of memory */
void sl_history_free(sl_history *h);
/* Takes a sample when one is due. */
void sl_history_tick(sl_history *h, sl_router_stats *s, uint64_t now_ns);
/* {"step_s", "age_s": since the newest sample, and arrays of the same length, oldest first; null where there was nothing}. */
json_t *sl_history_json(const sl_history *h, uint64_t now_ns);
/* {outcome: number in the last hour}. */
json_t *sl_history_errors(const sl_history *h);

/* The q-quantile of n + 1 counts whose first n have upper bounds; -1: no count. */
double sl_history_quantile(double q, const uint64_t *counts, const double *bounds, size_t n);

#endif
