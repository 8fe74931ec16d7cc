/*
 * A small real cluster for benchmarks: a router, a prefill worker and a decode worker, which are further processes of
 * this program, connected by UCX, on free ports of the loopback interface. Also a minimal HTTP client.
 *
 * The processes end with sl_bench_cluster_stop() or, at the latest, with the thread that started them. One thread.
 */
#ifndef SL_BENCH_TTFT_CLUSTER_H
#define SL_BENCH_TTFT_CLUSTER_H

#include <sys/types.h>

#include "base/status.h"

typedef struct sl_bench_cluster {
    pid_t pid[3]; /* router, prefill, decode; 0: not started */
    int http_port, prefill_metrics_port;
} sl_bench_cluster;

/*
 * Starts the three processes and waits until the router reports that it is ready. settings: n further settings, each
 * "KEY=VALUE" for every process or "ROLE:KEY=VALUE" for one. After a failure no process is left running.
 */
sl_status sl_bench_cluster_start(const char *model_dir, const char *const *settings, size_t n,
                                 sl_bench_cluster *out, sl_err *err);
void sl_bench_cluster_stop(sl_bench_cluster *c);

/*
 * Sends one HTTP/1.1 request to 127.0.0.1:port: GET when body is NULL, else POST of the JSON text body. *out receives
 * the body of the answer, which the caller frees. SL_ERR_IO when the connection fails; SL_ERR_REFUSED, with the
 * beginning of the answer in err, when the HTTP status is not 200. *ns (may be NULL): the time from the first byte sent
 * to the last byte received.
 */
sl_status sl_bench_http(int port, const char *path, const char *body, char **out, uint64_t *ns, sl_err *err);

/* The value of a sample of a metrics page. sample: its name with labels. -1 when the page does not have it. */
double sl_bench_metric(const char *page, const char *sample);

#endif
