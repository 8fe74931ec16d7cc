/*
 * Inside the metrics: the registry's types, which metrics.c (series, values) and metrics_text.c (the page of a scrape, the
 * reference) share.
 */
#ifndef SL_BASE_METRICS_IMPL_H
#define SL_BASE_METRICS_IMPL_H

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "base/metrics.h"
#include "base/strbuf.h"

enum { SL_METRIC_LABELS = 4, SL_METRIC_VALUES = 16 };

typedef struct sl_series {
    struct sl_series *next;
    char *labels; /* a="b",c="d" as in the exposition; "" without labels */
    char *values; /* the label values alone, each with its final 0 */
    size_t n_values;
    const sl_buckets *set;     /* histograms */
    _Atomic uint64_t value;    /* counter; or the bits of a double: gauge, sum of a histogram */
    _Atomic uint64_t counts[]; /* histogram: set->n + 1 */
} sl_series;

/* Each public handle type is a series; its kind is checked when the handle is created. */
struct sl_counter {
    sl_series s;
};
struct sl_gauge {
    sl_series s;
};
struct sl_histogram {
    sl_series s;
};

struct sl_metrics {
    pthread_mutex_t lock;
    unsigned roles;
    size_t nfamilies;
    uint16_t *slots;       /* hash table: row of the table + 1 by the hash of its name; 0: free */
    sl_series *families[]; /* by table row, newest last */
};

/* A label of a row of the table. */
typedef struct sl_label_spec {
    char name[48];
    char values[SL_METRIC_VALUES][32];
    size_t nvalues; /* 0: its values are not known in advance */
} sl_label_spec;

/* Splits the labels of a row, such as "stage,outcome=ok|failed"; returns their number. */
size_t sl_metric_labels(const char *text, sl_label_spec out[SL_METRIC_LABELS]);
/* Appends text with line breaks and backslashes escaped, and quotes if `quote`. */
void sl_metric_put_escaped(sl_strbuf *sb, const char *s, bool quote);

/* The value of a gauge or of a histogram's sum. */
static inline double sl_metric_double(uint64_t bits)
{
    double v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

#endif
