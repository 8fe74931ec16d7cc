/* See rows.h. */
#include "decode/report/rows.h"

#include <stdlib.h>
#include <string.h>

typedef struct series {
    sl_series_type type;
    size_t at;
    sl_counter *counter; /* NULL: a gauge */
    sl_gauge *gauge;
    uint64_t seen; /* what the counter contains */
} series;

struct sl_series_list {
    size_t n;
    series list[];
};

static size_t size_of(sl_series_type type)
{
    return type == SL_SERIES_I32 ? sizeof(int32_t) : sizeof(uint64_t);
}

static bool is_counter(const sl_series_row *r)
{
    size_t n, i = 0;
    const sl_metric_def *d = sl_metrics_describe(&n);
    while (i < n && strcmp(d[i].name, r->name) != 0)
        i++;
    SL_CHECK(i < n, "%s is not in the table of metrics", r->name);
    SL_CHECK(d[i].kind == SL_METRIC_GAUGE || (d[i].kind == SL_METRIC_COUNTER && r->type == SL_SERIES_U64),
             "%s is neither a gauge nor a counter of this type", r->name);
    return d[i].kind == SL_METRIC_COUNTER;
}

/* The labels of element i of the row. */
static void labels_of(const sl_series_row *r, int i, const char *const *names,
                      const char *out[SL_SERIES_LABELS + 1])
{
    int n = 0;
    for (; n < SL_SERIES_LABELS && r->label[n]; n++)
        out[n] = r->label[n][0] == '@' ? names[r->label[n][1] - '0'] : r->label[n];
    if (r->each)
        out[n++] = r->each[i];
    out[n] = NULL;
}

static series find(sl_metrics *m, const sl_series_row *r, int i, const char *const *names)
{
    const char *labels[SL_SERIES_LABELS + 2];
    series s = {.type = r->type, .at = r->at + (size_t)i * size_of(r->type)};
    labels_of(r, i, names, labels);
    if (is_counter(r))
        s.counter = sl_metrics_counter(m, r->name, labels[0] ? labels : NULL);
    else
        s.gauge = sl_metrics_gauge(m, r->name, labels[0] ? labels : NULL);
    return s;
}

sl_status sl_series_open(sl_metrics *m, const sl_series_row *rows, size_t n, const char *const *names,
                         sl_series_list **out, sl_err *err)
{
    size_t all = 0;
    *out = NULL;
    for (size_t i = 0; i < n; i++)
        all += (size_t)rows[i].n;
    if (!m)
        return SL_OK;
    sl_series_list *r = calloc(1, sizeof *r + all * sizeof r->list[0]);
    if (!r)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    for (size_t i = 0; i < n; i++) {
        for (int k = 0; k < rows[i].n; k++)
            r->list[r->n++] = find(m, &rows[i], k, names);
    }
    *out = r;
    return SL_OK;
}

void sl_series_close(sl_series_list *r)
{
    free(r);
}

static double value_of(const series *s, const uint8_t *at)
{
    uint64_t u;
    int64_t i;
    int32_t small;
    double f;
    switch (s->type) {
    case SL_SERIES_U64:
        memcpy(&u, at, sizeof u);
        return (double)u;
    case SL_SERIES_I64:
        memcpy(&i, at, sizeof i);
        return (double)i;
    case SL_SERIES_I32:
        memcpy(&small, at, sizeof small);
        return small;
    case SL_SERIES_F64:
        memcpy(&f, at, sizeof f);
        return f;
    }
    return 0;
}

static void show(series *s, const uint8_t *at)
{
    uint64_t now;
    if (s->gauge)
        sl_gauge_set(s->gauge, value_of(s, at));
    if (!s->counter)
        return;
    memcpy(&now, at, sizeof now);
    sl_counter_add(s->counter, now - s->seen);
    s->seen = now;
}

void sl_series_show(sl_series_list *r, const void *numbers)
{
    for (size_t i = 0; r && i < r->n; i++)
        show(&r->list[i], (const uint8_t *)numbers + r->list[i].at);
}
