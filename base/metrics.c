/*
 * The registry: for each row of the table a list of series, to which series are added under a lock and from which none
 * is removed. Values are C11 atomics: updates take no lock, so neither a scrape nor an update waits for the other.
 *
 * The router looks some series up for every request, because their labels depend on the request. So the row is found by
 * the hash of its name, the series by its label values, and the text of the labels is made for a new series only.
 *
 * Series do not expire, processes are not aggregated, and there are no summaries: quantiles are computed by the
 * scraper.
 */
#include "base/metrics.h"

#include "base/log.h"
#include "base/strbuf.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

enum { MAX_LABELS = 4, LABEL_TEXT = 512, SPEC_VALUES = 16, SLOTS = 1024 };

typedef struct series {
    struct series *next;
    char *labels; /* a="b",c="d" as in the exposition; "" without labels */
    char *values; /* the label values alone, each with its final 0 */
    size_t n_values;
    const sl_buckets *set;     /* histograms */
    _Atomic uint64_t value;    /* counter; or the bits of a double: gauge, sum of a histogram */
    _Atomic uint64_t counts[]; /* histogram: set->n + 1 */
} series;

/* Each public handle type is a series; its kind is checked when the handle is created. */
struct sl_counter {
    series s;
};
struct sl_gauge {
    series s;
};
struct sl_histogram {
    series s;
};

struct sl_metrics {
    pthread_mutex_t lock;
    unsigned roles;
    size_t nfamilies;
    uint16_t *slots;    /* hash table: row of the table + 1 by the hash of its name; 0: free */
    series *families[]; /* by table row, newest last */
};

static uint64_t bits_of(double v)
{
    uint64_t b;
    memcpy(&b, &v, sizeof b);
    return b;
}

static double double_of(uint64_t b)
{
    double v;
    memcpy(&v, &b, sizeof v);
    return v;
}

static void add_double(_Atomic uint64_t *cell, double v)
{
    uint64_t old = atomic_load_explicit(cell, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(cell, &old, bits_of(double_of(old) + v),
                                                  memory_order_relaxed, memory_order_relaxed))
        ;
}

/* ---- series ---- */

typedef struct label_spec {
    char name[48];
    char values[SPEC_VALUES][32];
    size_t nvalues; /* 0: its values are not known in advance */
} label_spec;

/* Splits "stage,outcome=ok|failed". A test checks the table, so a wrong length is a broken invariant. */
static size_t parse_labels(const char *text, label_spec out[MAX_LABELS])
{
    size_t n = 0;
    while (*text) {
        SL_CHECK(n < MAX_LABELS, "too many labels");
        label_spec *l = &out[n++];
        *l = (label_spec){0};
        size_t len = strcspn(text, ",=");
        snprintf(l->name, sizeof l->name, "%.*s", (int)len, text);
        text += len;
        while (*text == '=' || *text == '|') {
            SL_CHECK(l->nvalues < SPEC_VALUES, "too many label values");
            len = strcspn(++text, "|,");
            snprintf(l->values[l->nvalues++], sizeof l->values[0], "%.*s", (int)len, text);
            text += len;
        }
        text += *text == ',';
    }
    return n;
}

static void put_escaped(sl_strbuf *sb, const char *s, bool quote)
{
    for (; *s; s++) {
        if (*s == '\n')
            sl_sb_str(sb, "\\n");
        else if (*s == '\\' || (quote && *s == '"'))
            sl_sb_printf(sb, "\\%c", *s);
        else
            sl_sb_char(sb, *s);
    }
}

static char *label_text(const sl_metric_def *def, const char *const *values)
{
    label_spec specs[MAX_LABELS];
    size_t n = parse_labels(def->labels, specs), given = 0;
    while (values && values[given])
        given++;
    SL_CHECK(given == n, "%s has %zu labels, got %zu", def->name, n, given);
    sl_strbuf sb = {0};
    for (size_t i = 0; i < n; i++) {
        sl_sb_printf(&sb, "%s%s=\"", i ? "," : "", specs[i].name);
        put_escaped(&sb, values[i], true);
        sl_sb_char(&sb, '"');
    }
    return sl_sb_take(&sb);
}

static void free_series(series *s)
{
    free(s->labels);
    free(s->values);
    free(s);
}

static sl_status copy_values(series *s, const char *const *values)
{
    size_t bytes = 0;
    while (values && values[s->n_values])
        bytes += strlen(values[s->n_values++]) + 1;
    char *at = s->values = malloc(bytes + 1);
    if (!at)
        return SL_ERR_NO_MEMORY;
    for (size_t i = 0; i < s->n_values; i++) {
        size_t n = strlen(values[i]) + 1;
        memcpy(at, values[i], n);
        at += n;
    }
    return SL_OK;
}

static series *new_series(const sl_metric_def *def, const char *const *values)
{
    size_t n = def->kind == SL_METRIC_HISTOGRAM ? def->buckets->n + 1 : 0;
    series *s = calloc(1, sizeof *s + n * sizeof s->counts[0]);
    if (!s)
        return NULL;
    s->set = def->buckets;
    s->labels = label_text(def, values);
    if (!s->labels || copy_values(s, values)) {
        free_series(s);
        return NULL;
    }
    return s;
}

static bool has_values(const series *s, const char *const *values)
{
    const char *own = s->values;
    size_t n = 0;
    for (; values && values[n]; n++) {
        if (n == s->n_values || strcmp(own, values[n]))
            return false;
        own += strlen(own) + 1;
    }
    return n == s->n_values;
}

/* ---- rows of the table ---- */

static size_t first_slot(const char *name)
{
    return XXH3_64bits(name, strlen(name)) % SLOTS;
}

static sl_status index_rows(sl_metrics *m, const sl_metric_def *table)
{
    SL_CHECK(m->nfamilies < SLOTS / 2, "%d slots are too few for %zu metrics", SLOTS, m->nfamilies);
    m->slots = calloc(SLOTS, sizeof *m->slots);
    if (!m->slots)
        return SL_ERR_NO_MEMORY;
    for (size_t row = 0; row < m->nfamilies; row++) {
        size_t i = first_slot(table[row].name);
        while (m->slots[i])
            i = (i + 1) % SLOTS;
        m->slots[i] = (uint16_t)(row + 1);
    }
    return SL_OK;
}

static size_t row_of(const sl_metrics *m, const sl_metric_def *table, const char *name)
{
    size_t i = first_slot(name);
    while (m->slots[i] && strcmp(table[m->slots[i] - 1].name, name))
        i = (i + 1) % SLOTS;
    SL_CHECK(m->slots[i], "metric %s is not in the table", name);
    return m->slots[i] - 1u;
}

static series *get_or_create(sl_metrics *m, const char *name, sl_metric_kind kind, const char *const *values)
{
    if (!m)
        return NULL;
    size_t n;
    const sl_metric_def *table = sl_metrics_describe(&n);
    size_t row = row_of(m, table, name);
    SL_CHECK(table[row].kind == kind, "metric %s is of another kind", name);
    pthread_mutex_lock(&m->lock);
    series **at = &m->families[row];
    while (*at && !has_values(*at, values))
        at = &(*at)->next;
    if (!*at)
        *at = new_series(&table[row], values);
    series *s = *at;
    pthread_mutex_unlock(&m->lock);
    return s;
}

sl_counter *sl_metrics_counter(sl_metrics *m, const char *name, const char *const *labels)
{
    return (sl_counter *)get_or_create(m, name, SL_METRIC_COUNTER, labels);
}

sl_gauge *sl_metrics_gauge(sl_metrics *m, const char *name, const char *const *labels)
{
    return (sl_gauge *)get_or_create(m, name, SL_METRIC_GAUGE, labels);
}

sl_histogram *sl_metrics_histogram(sl_metrics *m, const char *name, const char *const *labels)
{
    return (sl_histogram *)get_or_create(m, name, SL_METRIC_HISTOGRAM, labels);
}

/* Creates the series of every combination of label values; none if the values of a label are not known in advance. */
static sl_status create_known(sl_metrics *m, const sl_metric_def *def)
{
    label_spec specs[MAX_LABELS];
    size_t n = parse_labels(def->labels, specs), total = 1;
    for (size_t i = 0; i < n; i++)
        total *= specs[i].nvalues;
    for (size_t c = 0; c < total; c++) {
        const char *values[MAX_LABELS + 1] = {0};
        size_t rest = c;
        for (size_t i = n; i-- > 0; rest /= specs[i].nvalues)
            values[i] = specs[i].values[rest % specs[i].nvalues];
        if (!get_or_create(m, def->name, def->kind, values))
            return SL_ERR_NO_MEMORY;
    }
    return SL_OK;
}

sl_status sl_metrics_create(unsigned roles, sl_metrics **out)
{
    size_t n;
    const sl_metric_def *table = sl_metrics_describe(&n);
    sl_metrics *m = calloc(1, sizeof *m + n * sizeof m->families[0]);
    if (!m)
        return SL_ERR_NO_MEMORY;
    m->roles = roles;
    m->nfamilies = n;
    pthread_mutex_init(&m->lock, NULL);
    sl_status st = index_rows(m, table);
    for (size_t i = 0; i < n && !st; i++) {
        if (table[i].roles & roles)
            st = create_known(m, &table[i]);
    }
    if (st) {
        sl_metrics_destroy(m);
        return st;
    }
    *out = m;
    return SL_OK;
}

void sl_metrics_destroy(sl_metrics *m)
{
    if (!m)
        return;
    for (size_t i = 0; i < m->nfamilies; i++) {
        for (series *s = m->families[i], *next; s; s = next) {
            next = s->next;
            free_series(s);
        }
    }
    pthread_mutex_destroy(&m->lock);
    free(m->slots);
    free(m);
}

/* ---- updates ---- */

void sl_counter_add(sl_counter *c, uint64_t n)
{
    if (c)
        atomic_fetch_add_explicit(&c->s.value, n, memory_order_relaxed);
}

void sl_gauge_set(sl_gauge *g, double v)
{
    if (g)
        atomic_store_explicit(&g->s.value, bits_of(v), memory_order_relaxed);
}

void sl_gauge_add(sl_gauge *g, double v)
{
    if (g)
        add_double(&g->s.value, v);
}

void sl_histogram_observe(sl_histogram *h, double v)
{
    if (!h || isnan(v))
        return;
    size_t i = 0;
    while (i < h->s.set->n && v > h->s.set->bounds[i])
        i++;
    atomic_fetch_add_explicit(&h->s.counts[i], 1, memory_order_relaxed);
    add_double(&h->s.value, v);
}

uint64_t sl_counter_value(const sl_counter *c)
{
    return c ? atomic_load_explicit(&c->s.value, memory_order_relaxed) : 0;
}

double sl_gauge_value(const sl_gauge *g)
{
    return g ? double_of(atomic_load_explicit(&g->s.value, memory_order_relaxed)) : 0;
}

uint64_t sl_histogram_count(const sl_histogram *h)
{
    uint64_t total = 0;
    for (size_t i = 0; h && i <= h->s.set->n; i++)
        total += atomic_load_explicit(&h->s.counts[i], memory_order_relaxed);
    return total;
}

/* ---- exposition ---- */

static void put_number(sl_strbuf *sb, double v)
{
    char text[40];
    if (isinf(v)) {
        sl_sb_str(sb, v > 0 ? "+Inf" : "-Inf");
        return;
    }
    snprintf(text, sizeof text, "%.15g", v);
    if (strtod(text, NULL) != v)
        snprintf(text, sizeof text, "%.17g", v);
    sl_sb_str(sb, text);
}

static void put_header(sl_strbuf *sb, const char *name, const char *type, const char *help)
{
    sl_sb_printf(sb, "# HELP %s ", name);
    put_escaped(sb, help, false);
    sl_sb_printf(sb, "\n# TYPE %s %s\n", name, type);
}

static void put_histogram(sl_strbuf *sb, const sl_metric_def *def, series *s)
{
    const char *comma = s->labels[0] ? "," : "";
    uint64_t total = 0;
    for (size_t i = 0; i <= s->set->n; i++) {
        total += atomic_load_explicit(&s->counts[i], memory_order_relaxed);
        sl_sb_printf(sb, "%s_bucket{%s%sle=\"", def->name, s->labels, comma);
        put_number(sb, i < s->set->n ? s->set->bounds[i] : INFINITY);
        sl_sb_printf(sb, "\"} %llu\n", (unsigned long long)total);
    }
    const char *open = s->labels[0] ? "{" : "", *close = s->labels[0] ? "}" : "";
    sl_sb_printf(sb, "%s_sum%s%s%s ", def->name, open, s->labels, close);
    put_number(sb, double_of(atomic_load_explicit(&s->value, memory_order_relaxed)));
    sl_sb_printf(sb, "\n%s_count%s%s%s %llu\n", def->name, open, s->labels, close, (unsigned long long)total);
}

static void put_family(sl_strbuf *sb, const sl_metric_def *def, series *s)
{
    static const char *const types[] = {"counter", "gauge", "histogram"};
    put_header(sb, def->name, types[def->kind], def->help);
    for (; s; s = s->next) {
        if (def->kind == SL_METRIC_HISTOGRAM) {
            put_histogram(sb, def, s);
            continue;
        }
        uint64_t raw = atomic_load_explicit(&s->value, memory_order_relaxed);
        sl_sb_printf(sb, "%s%s%s%s ", def->name, s->labels[0] ? "{" : "", s->labels, s->labels[0] ? "}" : "");
        if (def->kind == SL_METRIC_GAUGE)
            put_number(sb, double_of(raw));
        else if (def->nanoseconds)
            put_number(sb, (double)raw * 1e-9);
        else
            sl_sb_printf(sb, "%llu", (unsigned long long)raw);
        sl_sb_char(sb, '\n');
    }
}

/* The standard process_ metrics, read from /proc; left out when there is no /proc. */
static void put_process(sl_strbuf *sb)
{
    unsigned long utime, stime, rss;
    unsigned long long start;
    FILE *f = fopen("/proc/self/stat", "re");
    if (!f)
        return;
    char line[1024];
    bool got = fgets(line, sizeof line, f) != NULL;
    fclose(f);
    const char *after = got ? strrchr(line, ')') : NULL;
    if (!after ||
        sscanf(after + 1,
               " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu %*d %*d %*d %*d %*d %*d %llu %*u %lu",
               &utime, &stime, &start, &rss) != 4)
        return;
    double tick = (double)sysconf(_SC_CLK_TCK);
    put_header(sb, "process_cpu_seconds_total", "counter", "CPU time used, user and system.");
    sl_sb_printf(sb, "process_cpu_seconds_total %.2f\n", (double)(utime + stime) / tick);
    put_header(sb, "process_resident_memory_bytes", "gauge", "Resident memory.");
    sl_sb_printf(sb, "process_resident_memory_bytes %llu\n",
                 (unsigned long long)rss * (unsigned long long)sysconf(_SC_PAGESIZE));
    struct timespec now, up;
    clock_gettime(CLOCK_REALTIME, &now);
    clock_gettime(CLOCK_BOOTTIME, &up);
    double booted = (double)now.tv_sec - (double)up.tv_sec + (double)(now.tv_nsec - up.tv_nsec) * 1e-9;
    put_header(sb, "process_start_time_seconds", "gauge", "Start of the process since the epoch.");
    sl_sb_printf(sb, "process_start_time_seconds %.2f\n", booted + (double)start / tick);
}

/* Copies the counters that the process keeps outside of the registry. */
static void fetch_process_wide(sl_metrics *m)
{
    sl_counter *lost = sl_metrics_counter(m, "sluice_log_lines_lost_total", NULL);
    if (lost)
        atomic_store_explicit(&lost->s.value, sl_log_lines_lost(), memory_order_relaxed);
}

char *sl_metrics_text(sl_metrics *m)
{
    size_t n;
    fetch_process_wide(m);
    const sl_metric_def *table = sl_metrics_describe(&n);
    sl_strbuf sb = {0};
    pthread_mutex_lock(&m->lock);
    for (size_t i = 0; i < n; i++)
        if (m->families[i])
            put_family(&sb, &table[i], m->families[i]);
    pthread_mutex_unlock(&m->lock);
    put_process(&sb);
    return sl_sb_take(&sb);
}

/* ---- documentation ---- */

static void put_roles(sl_strbuf *sb, unsigned roles)
{
    static const char *const names[] = {"router", "prefill", "decode"};
    bool any = false;
    for (unsigned i = 0; i < SL_COUNT(names); i++) {
        if (roles & 1u << i) {
            sl_sb_printf(sb, "%s%s", any ? ", " : "", names[i]);
            any = true;
        }
    }
}

static void put_doc_labels(sl_strbuf *sb, const char *labels)
{
    label_spec specs[MAX_LABELS];
    size_t n = parse_labels(labels, specs);
    for (size_t i = 0; i < n; i++) {
        sl_sb_printf(sb, "%s`%s`", i ? "; " : "", specs[i].name);
        for (size_t v = 0; v < specs[i].nvalues; v++)
            sl_sb_printf(sb, "%s%s", v ? ", " : ": ", specs[i].values[v]);
    }
}

char *sl_metrics_reference(void)
{
    static const char *const types[] = {"counter", "gauge", "histogram"};
    size_t n;
    const sl_metric_def *table = sl_metrics_describe(&n);
    sl_strbuf sb = {0};
    sl_sb_str(&sb,
              "# Metrics\n\nThe router serves them on `/metrics` of its HTTP port, workers on `metrics.port` "
              "+ rank. This page is generated from the table in `base/metrics_table.c`; a test keeps it "
              "up to date.\n\n| metric | type | exported by | labels | meaning |\n|---|---|---|---|---|\n");
    for (size_t i = 0; i < n; i++) {
        sl_sb_printf(&sb, "| `%s` | %s | ", table[i].name, types[table[i].kind]);
        put_roles(&sb, table[i].roles);
        sl_sb_str(&sb, " | ");
        put_doc_labels(&sb, table[i].labels);
        sl_sb_printf(&sb, " | %s |\n", table[i].help);
    }
    return sl_sb_take(&sb);
}
