/*
 * Pages of a running cluster: asking for one, and the values of a metrics page. Blocking; any thread.
 */
#ifndef SL_BENCH_PAGE_H
#define SL_BENCH_PAGE_H

#include "base/status.h"

/*
 * Sends one HTTP/1.1 request to host:port: GET when body is NULL, else POST of the JSON text body. *out receives
 * the body of the answer, which the caller frees. Errors are those of base/http_client.h; SL_ERR_REFUSED, with the
 * beginning of the answer in err, when the HTTP status is not 200. *ns (may be NULL): the time from the first byte sent
 * to the last byte received.
 */
sl_status sl_bench_http(const char *host, int port, const char *path, const char *body, char **out,
                        uint64_t *ns, sl_err *err);

/* The value of a sample of a metrics page. sample: its name with labels. -1 when the page does not have it. */
double sl_bench_metric(const char *page, const char *sample);
/* The sum of the samples of a name, whatever their labels are. -1 when the page has none. */
double sl_bench_metric_sum(const char *page, const char *name);

/* A histogram of a page, or of several: counts[i] observations up to bounds[i], the last of which has no bound. All zero: empty. */
enum { SL_BENCH_BOUNDS = 40 };
typedef struct sl_bench_histogram {
    int n;
    double bounds[SL_BENCH_BOUNDS], counts[SL_BENCH_BOUNDS];
} sl_bench_histogram;

/* Adds the series of a name that has this label (`from="step"`; NULL: any). A page without it adds nothing. */
void sl_bench_histogram_add(sl_bench_histogram *h, const char *page, const char *name, const char *label);
/* The quantile q of what was observed between two readings, between the bounds of its bucket as Prometheus estimates it; in
 * the last bucket its lower bound. -1: nothing was. */
double sl_bench_histogram_quantile(const sl_bench_histogram *from, const sl_bench_histogram *to, double q);

#endif
