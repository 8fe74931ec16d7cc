/* See locality.h. */
#include "engine/locality.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LINE_MAX_BYTES = 512 };

/* The number after the last space of a sample's line. */
static bool value_of(const char *line, double *out)
{
    const char *at = strrchr(line, ' ');
    char *end;
    if (!at)
        return false;
    *out = strtod(at + 1, &end);
    return end != at + 1 && *end == '\0' && isfinite(*out) && *out >= 0;
}

static bool starts(const char *line, const char *name)
{
    return strncmp(line, name, strlen(name)) == 0;
}

static sl_status read_rows(sl_locality *m, const char *line, double v, sl_err *err)
{
    static const char key[] = "layer=\"";
    const char *at = strstr(line, key);
    char *end;
    long l = at ? strtol(at + sizeof key - 1, &end, 10) : -1;
    if (!at || end == at + sizeof key - 1 || *end != '"' || l < 0 || l >= m->n_layers)
        return sl_fail(err, SL_ERR_INVALID, "locality: the model has %d layers: %.120s", m->n_layers, line);
    if (strstr(line, "result=\"hit\""))
        m->hits[l] += v;
    else
        m->misses[l] += v;
    return SL_OK;
}

static sl_status read_line(sl_locality *m, const char *line, sl_err *err)
{
    double v, *plain = starts(line, "sluice_decode_step_seconds_sum")      ? &m->step_seconds
                       : starts(line, "sluice_swap_exposed_seconds_total") ? &m->exposed_seconds
                       : starts(line, "sluice_swap_bytes_total")           ? &m->swap_bytes
                                                                           : NULL;
    bool rows = starts(line, "sluice_swap_rows_total{");
    if (!plain && !rows)
        return SL_OK;
    if (!value_of(line, &v))
        return sl_fail(err, SL_ERR_INVALID, "locality: no number: %.120s", line);
    if (rows)
        return read_rows(m, line, v, err);
    *plain += v;
    return SL_OK;
}

sl_status sl_locality_read(const char *text, size_t n, int32_t n_layers, sl_locality *out, sl_err *err)
{
    sl_locality m = {.n_layers = n_layers};
    double seen = 0;
    SL_CHECK(n_layers > 0 && n_layers <= SL_MAX_LAYERS, "%d layers", n_layers);
    for (size_t at = 0; at < n;) {
        const char *nl = memchr(text + at, '\n', n - at);
        size_t len = nl ? (size_t)(nl - text) - at : n - at;
        char line[LINE_MAX_BYTES];
        if (len < sizeof line) { /* no line of a worker's /metrics is longer */
            memcpy(line, text + at, len);
            line[len] = '\0';
            SL_TRY(read_line(&m, line, err));
        }
        at += len + 1;
    }
    for (int32_t l = 0; l < n_layers; l++)
        seen += m.hits[l] + m.misses[l];
    if (seen <= 0)
        return sl_fail(
            err, SL_ERR_INVALID,
            "locality: no sluice_swap_rows_total with rows: scrape /metrics of a decode worker that "
            "has served requests in hierarchical mode");
    *out = m;
    return SL_OK;
}

double sl_locality_swap_share(const sl_locality *m, double link)
{
    double t = m->exposed_seconds > 0 ? m->exposed_seconds : m->swap_bytes / link;
    if (m->step_seconds <= 0)
        return 0;
    return t < m->step_seconds ? t / m->step_seconds : 1;
}

static int32_t most_misses(const sl_locality *m, const int32_t *chosen)
{
    int32_t best = -1;
    for (int32_t l = 0; l < m->n_layers; l++)
        if (!chosen[l] && (best < 0 || m->misses[l] > m->misses[best]))
            best = l;
    return best;
}

static void make_resident(const sl_locality *m, const sl_plan *p, int32_t context, double share,
                          int32_t *rows)
{
    double pages = ceil((double)context / SL_PAGE_TOKENS), all = 0;
    double request =
        pages * (double)p->index_page_device + (double)p->hot_rows_bytes + (double)p->hot_meta_bytes;
    double extra = ((double)context - p->hot_rows - p->tail_rows) * (double)p->row_bytes, step = 1;
    for (int32_t l = 0; l < m->n_layers; l++)
        all += m->misses[l];
    for (int32_t l; all > 0 && (l = most_misses(m, rows)) >= 0;) {
        double saved = share * m->misses[l] / all;
        if (extra > 0 && step / (step - saved) <= (request + extra) / request)
            return;
        rows[l] = SL_HOT_RESIDENT;
        request += extra > 0 ? extra : 0;
        step -= saved;
        if (step <= 0)
            return;
    }
}

void sl_locality_choose(const sl_locality *m, const sl_plan *p, int32_t context, double swap_share,
                        int32_t *hot_rows_layer)
{
    int32_t n = m->n_layers, local = 0;
    int64_t freed = 0;
    memset(hot_rows_layer, 0, (size_t)n * sizeof *hot_rows_layer);
    make_resident(m, p, context, swap_share, hot_rows_layer);
    for (int32_t l = 0; l < n; l++) {
        double seen = m->hits[l] + m->misses[l];
        if (hot_rows_layer[l])
            continue;
        if (seen > 0 && m->hits[l] < SL_LOCALITY_NONE * seen) {
            hot_rows_layer[l] = p->width;
            freed += p->hot_rows - p->width;
        } else {
            local++;
        }
    }
    int64_t each = p->hot_rows + (local ? freed / local : 0);
    for (int32_t l = 0; l < n; l++)
        if (!hot_rows_layer[l])
            hot_rows_layer[l] = (int32_t)(each < SL_HOT_ROWS_MAX ? each : SL_HOT_ROWS_MAX);
}
