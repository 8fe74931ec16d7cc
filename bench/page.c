/* See page.h. */
#include "bench/page.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/http_client.h"

enum { PATIENCE_S = 600 };

sl_status sl_bench_http(const char *host, int port, const char *path, const char *body, char **out,
                        uint64_t *ns, sl_err *err)
{
    sl_http_server at = {.key = ""};
    sl_http_answer a;
    snprintf(at.host, sizeof at.host, "%s", host);
    snprintf(at.port, sizeof at.port, "%d", port);
    SL_TRY(sl_http_ask(&at, body ? "POST" : "GET", path, body, PATIENCE_S, &a, err));
    if (a.code != 200) {
        sl_status st = sl_fail(err, SL_ERR_REFUSED, "HTTP %d: %.300s", a.code, a.body);
        free(a.body);
        return st;
    }
    if (ns)
        *ns = a.ns;
    *out = a.body;
    return SL_OK;
}

double sl_bench_metric(const char *page, const char *sample)
{
    size_t n = strlen(sample);
    for (const char *line = page; line && *line;) {
        if (strncmp(line, sample, n) == 0 && line[n] == ' ')
            return strtod(line + n, NULL);
        line = strchr(line, '\n');
        line = line ? line + 1 : NULL;
    }
    return -1;
}

double sl_bench_metric_sum(const char *page, const char *name)
{
    size_t n = strlen(name);
    double sum = 0;
    bool any = false;
    for (const char *line = page; line && *line;) {
        const char *end = strchr(line, '\n'), *last = end ? end : line + strlen(line);
        if (strncmp(line, name, n) == 0 && (line[n] == ' ' || line[n] == '{')) {
            while (last > line && *last != ' ')
                last--;
            sum += strtod(last, NULL);
            any = true;
        }
        line = end ? end + 1 : NULL;
    }
    return any ? sum : -1;
}

/* The next line of the page that begins with `start`, from `line` on; NULL: none. */
static const char *next_line(const char *line, const char *start)
{
    const size_t n = strlen(start);
    while (line && strncmp(line, start, n) != 0) {
        line = strchr(line, '\n');
        line = line ? line + 1 : NULL;
    }
    return line;
}

void sl_bench_histogram_add(sl_bench_histogram *h, const char *page, const char *name, const char *label)
{
    char start[160];
    int i = 0;
    snprintf(start, sizeof start, "%s_bucket{", name);
    for (const char *line = page; (line = next_line(line, start)) && i < SL_BENCH_BOUNDS; line++) {
        const char *end = strchr(line, '}'), *bound = strstr(line, "le=\""),
                   *own = label ? strstr(line, label) : line;
        if (!end || !bound || bound > end || !own || own > end)
            continue;
        h->bounds[i] = strtod(bound + 4, NULL); /* +Inf is one */
        h->counts[i++] += strtod(end + 1, NULL);
    }
    h->n = i > h->n ? i : h->n;
}

double sl_bench_histogram_quantile(const sl_bench_histogram *from, const sl_bench_histogram *to, double q)
{
    const double all = to->n ? to->counts[to->n - 1] - from->counts[to->n - 1] : 0;
    double below = 0;
    for (int i = 0; i < to->n && all > 0; i++) {
        const double upto = to->counts[i] - from->counts[i], low = i ? to->bounds[i - 1] : 0;
        if (upto >= q * all)
            return i == to->n - 1 ? low : low + (to->bounds[i] - low) * (q * all - below) / (upto - below);
        below = upto;
    }
    return -1;
}
