/*
 * Metrics: every metric of every process is a row of one table (base/metrics_table.c) with its kind, labels, buckets,
 * the roles that export it and its help text. The documentation page, the series that exist at start with value 0, and
 * the test that everything documented is exported are all derived from it.
 *
 *   sl_metrics_create(SL_METRICS_DECODE, &m);
 *   sl_counter *hits = sl_metrics_counter(m, "sluice_swap_rows_total", SL_LABELS("3", "hit"));
 *   sl_counter_add(hits, n);
 *
 * A handle is looked up once, which takes a lock and creates its series if necessary; then any thread updates it
 * without a lock. Handles belong to the registry and live as long as it does. A name that is not in the table, or of
 * another kind, or a wrong number of labels is a broken invariant. A NULL registry gives NULL handles, and updating a
 * NULL handle does nothing, so code runs unchanged without metrics.
 *
 * Units: seconds, bytes, tokens. Counters of seconds are added to in nanoseconds.
 */
#ifndef SL_BASE_METRICS_H
#define SL_BASE_METRICS_H

#include "base/status.h"

typedef enum { SL_METRIC_COUNTER, SL_METRIC_GAUGE, SL_METRIC_HISTOGRAM } sl_metric_kind;

enum {
    SL_METRICS_ROUTER = 1,
    SL_METRICS_PREFILL = 2,
    SL_METRICS_DECODE = 4,
    SL_METRICS_RANK =
        8, /* ranks of groups: a worker asks for these series when it joins a group, others never */
    SL_METRICS_WORKERS = SL_METRICS_PREFILL | SL_METRICS_DECODE,
    SL_METRICS_ALL = SL_METRICS_ROUTER | SL_METRICS_WORKERS
};

typedef struct sl_buckets {
    const double *bounds; /* ascending, +Inf left out */
    size_t n;
} sl_buckets;

typedef struct sl_metric_def {
    const char *name;
    sl_metric_kind kind;
    unsigned roles;            /* which processes export it */
    const char *labels;        /* "stage,outcome=ok|failed"; values after '=' exist from the start */
    const sl_buckets *buckets; /* histograms only */
    bool nanoseconds;          /* a counter that is added to in nanoseconds and exported in seconds */
    const char *help;
} sl_metric_def;

extern const sl_buckets sl_buckets_ttft, sl_buckets_itl, sl_buckets_e2e, sl_buckets_short, sl_buckets_wire,
    sl_buckets_batch, sl_buckets_age;

/* The whole table. */
const sl_metric_def *sl_metrics_describe(size_t *n);
/* The table as a Markdown page (docs/metrics.md), malloc'ed; NULL when out of memory. */
char *sl_metrics_reference(void);

typedef struct sl_metrics sl_metrics;
typedef struct sl_counter sl_counter;
typedef struct sl_gauge sl_gauge;
typedef struct sl_histogram sl_histogram;

/* Label values in the order of the table, NULL-terminated; NULL when there are no labels. */
#define SL_LABELS(...) ((const char *const[]){__VA_ARGS__, NULL})

/* roles: SL_METRICS_*. Series of these roles whose label values are all known in advance exist at once, with the
 * value 0. */
sl_status sl_metrics_create(unsigned roles, sl_metrics **out);
void sl_metrics_destroy(sl_metrics *m);

/* Looks up a series, or creates it. NULL: m is NULL, or memory is exhausted. */
sl_counter *sl_metrics_counter(sl_metrics *m, const char *name, const char *const *labels);
sl_gauge *sl_metrics_gauge(sl_metrics *m, const char *name, const char *const *labels);
sl_histogram *sl_metrics_histogram(sl_metrics *m, const char *name, const char *const *labels);

void sl_counter_add(sl_counter *c, uint64_t n);
void sl_gauge_set(sl_gauge *g, double v);
void sl_gauge_add(sl_gauge *g, double v);
void sl_histogram_observe(sl_histogram *h, double v);
/* Current values, for tests and `bench`. NULL reads as 0. */
uint64_t sl_counter_value(const sl_counter *c);
double sl_gauge_value(const sl_gauge *g);
uint64_t sl_histogram_count(const sl_histogram *h);
/* The counts of its buckets, one more than the bounds, which it returns with their number; 0: h is NULL, or cap is too small. */
size_t sl_histogram_read(const sl_histogram *h, uint64_t *counts, size_t cap, const double **bounds);

/* Prometheus text exposition 0.0.4, malloc'ed; NULL when out of memory. Any thread. */
char *sl_metrics_text(sl_metrics *m);
#define SL_METRICS_CONTENT_TYPE "text/plain; version=0.0.4; charset=utf-8"

#endif
