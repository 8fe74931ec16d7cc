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
#include "base/metrics_impl.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <xxhash.h>

enum { SLOTS = 1024 };

static uint64_t bits_of(double v)
{
    uint64_t b;
    memcpy(&b, &v, sizeof b);
    return b;
}

static void add_double(_Atomic uint64_t *cell, double v)
{
    uint64_t old = atomic_load_explicit(cell, memory_order_relaxed);
    while (!atomic_compare_exchange_weak_explicit(cell, &old, bits_of(sl_metric_double(old) + v),
                                                  memory_order_relaxed, memory_order_relaxed))
        ;
}

/* ---- series ---- */

/* A test checks the table, so a wrong length is a broken invariant. */
size_t sl_metric_labels(const char *text, sl_label_spec out[SL_METRIC_LABELS])
{
    size_t n = 0;
    while (*text) {
        SL_CHECK(n < SL_METRIC_LABELS, "too many labels");
        sl_label_spec *l = &out[n++];
        *l = (sl_label_spec){0};
        size_t len = strcspn(text, ",=");
        snprintf(l->name, sizeof l->name, "%.*s", (int)len, text);
        text += len;
        while (*text == '=' || *text == '|') {
            SL_CHECK(l->nvalues < SL_METRIC_VALUES, "too many label values");
            len = strcspn(++text, "|,");
            snprintf(l->values[l->nvalues++], sizeof l->values[0], "%.*s", (int)len, text);
            text += len;
        }
        text += *text == ',';
    }
    return n;
}

void sl_metric_put_escaped(sl_strbuf *sb, const char *s, bool quote)
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
    sl_label_spec specs[SL_METRIC_LABELS];
    size_t n = sl_metric_labels(def->labels, specs), given = 0;
    while (values && values[given])
        given++;
    SL_CHECK(given == n, "%s has %zu labels, got %zu", def->name, n, given);
    sl_strbuf sb = {0};
    for (size_t i = 0; i < n; i++) {
        sl_sb_printf(&sb, "%s%s=\"", i ? "," : "", specs[i].name);
        sl_metric_put_escaped(&sb, values[i], true);
        sl_sb_char(&sb, '"');
    }
    return sl_sb_take(&sb);
}

static void free_series(sl_series *s)
{
    free(s->labels);
    free(s->values);
    free(s);
}

static sl_status copy_values(sl_series *s, const char *const *values)
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

static sl_series *new_series(const sl_metric_def *def, const char *const *values)
{
    size_t n = def->kind == SL_METRIC_HISTOGRAM ? def->buckets->n + 1 : 0;
    sl_series *s = calloc(1, sizeof *s + n * sizeof s->counts[0]);
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

static bool has_values(const sl_series *s, const char *const *values)
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

static sl_series *get_or_create(sl_metrics *m, const char *name, sl_metric_kind kind,
                                const char *const *values)
{
    if (!m)
        return NULL;
    size_t n;
    const sl_metric_def *table = sl_metrics_describe(&n);
    size_t row = row_of(m, table, name);
    SL_CHECK(table[row].kind == kind, "metric %s is of another kind", name);
    pthread_mutex_lock(&m->lock);
    sl_series **at = &m->families[row];
    while (*at && !has_values(*at, values))
        at = &(*at)->next;
    if (!*at)
        *at = new_series(&table[row], values);
    sl_series *s = *at;
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
    sl_label_spec specs[SL_METRIC_LABELS];
    size_t n = sl_metric_labels(def->labels, specs), total = 1;
    for (size_t i = 0; i < n; i++)
        total *= specs[i].nvalues;
    for (size_t c = 0; c < total; c++) {
        const char *values[SL_METRIC_LABELS + 1] = {0};
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
        for (sl_series *s = m->families[i], *next; s; s = next) {
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
    return g ? sl_metric_double(atomic_load_explicit(&g->s.value, memory_order_relaxed)) : 0;
}

uint64_t sl_histogram_count(const sl_histogram *h)
{
    uint64_t total = 0;
    for (size_t i = 0; h && i <= h->s.set->n; i++)
        total += atomic_load_explicit(&h->s.counts[i], memory_order_relaxed);
    return total;
}

size_t sl_histogram_read(const sl_histogram *h, uint64_t *counts, size_t cap, const double **bounds)
{
    if (!h || h->s.set->n >= cap)
        return 0;
    for (size_t i = 0; i <= h->s.set->n; i++)
        counts[i] = atomic_load_explicit(&h->s.counts[i], memory_order_relaxed);
    *bounds = h->s.set->bounds;
    return h->s.set->n;
}
