/* The registry as text: the page that a scrape gets, and the reference of all metrics (docs/metrics.md). */
#include "base/metrics_impl.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"

/* ---- exposition ---- */

static const char *const types[] = {"counter", "gauge", "histogram"}; /* by sl_metric_kind */

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
    sl_metric_put_escaped(sb, help, false);
    sl_sb_printf(sb, "\n# TYPE %s %s\n", name, type);
}

static void put_histogram(sl_strbuf *sb, const sl_metric_def *def, sl_series *s)
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
    put_number(sb, sl_metric_double(atomic_load_explicit(&s->value, memory_order_relaxed)));
    sl_sb_printf(sb, "\n%s_count%s%s%s %llu\n", def->name, open, s->labels, close, (unsigned long long)total);
}

static void put_family(sl_strbuf *sb, const sl_metric_def *def, sl_series *s)
{
    put_header(sb, def->name, types[def->kind], def->help);
    for (; s; s = s->next) {
        if (def->kind == SL_METRIC_HISTOGRAM) {
            put_histogram(sb, def, s);
            continue;
        }
        uint64_t raw = atomic_load_explicit(&s->value, memory_order_relaxed);
        sl_sb_printf(sb, "%s%s%s%s ", def->name, s->labels[0] ? "{" : "", s->labels, s->labels[0] ? "}" : "");
        if (def->kind == SL_METRIC_GAUGE)
            put_number(sb, sl_metric_double(raw));
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
    static const char *const names[] = {"router", "prefill", "decode", "ranks of groups"};
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
    sl_label_spec specs[SL_METRIC_LABELS];
    size_t n = sl_metric_labels(labels, specs);
    for (size_t i = 0; i < n; i++) {
        sl_sb_printf(sb, "%s`%s`", i ? "; " : "", specs[i].name);
        for (size_t v = 0; v < specs[i].nvalues; v++)
            sl_sb_printf(sb, "%s%s", v ? ", " : ": ", specs[i].values[v]);
    }
}

char *sl_metrics_reference(void)
{
    size_t n;
    const sl_metric_def *table = sl_metrics_describe(&n);
    sl_strbuf sb = {0};
    sl_sb_str(
        &sb, "# Metrics\n\nThe router serves them on `/metrics` of its HTTP port, workers on `metrics.port` "
             "+ rank. This page is generated from the\ntable in `base/metrics_table.c`; a test keeps "
             "it up to date.\n\n| metric | type | exported by | labels | meaning |\n|---|---|---|---|---|\n");
    for (size_t i = 0; i < n; i++) {
        sl_sb_printf(&sb, "| `%s` | %s | ", table[i].name, types[table[i].kind]);
        put_roles(&sb, table[i].roles);
        sl_sb_str(&sb, " | ");
        put_doc_labels(&sb, table[i].labels);
        sl_sb_printf(&sb, " | %s |\n", table[i].help);
    }
    return sl_sb_take(&sb);
}
