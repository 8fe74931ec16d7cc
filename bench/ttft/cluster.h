/*
 * A small real cluster for benchmarks: router, one prefill and one decode worker, each this program started
 * again, on free ports of the loopback interface, over UCX; and the little HTTP that a benchmark needs.
 * For the benchmarks of this room.
 *
 * The processes end with sl_bench_cluster_stop() or, at the latest, with the thread that started them. One
 * thread.
 */
#ifndef SL_BENCH_TTFT_CLUSTER_H
#define SL_BENCH_TTFT_CLUSTER_H

#include <sys/types.h>

#include "base/status.h"

typedef struct sl_bench_cluster {
    pid_t pid[3]; /* router, prefill, decode; 0: not started */
    int http_port, prefill_metrics_port;
} sl_bench_cluster;

/* Starts all three and waits until the router reports ready. settings: n more "KEY=VALUE" for every process,
 * or "ROLE:KEY=VALUE" for one.
 * On failure nothing is left running. */
sl_status sl_bench_cluster_start(const char *model_dir, const char *const *settings, size_t n,
                                 sl_bench_cluster *out, sl_err *err);
void sl_bench_cluster_stop(sl_bench_cluster *c);

/*
 * One HTTP/1.1 request to 127.0.0.1:port; GET when body is NULL, else POST of JSON. *out is the body of the
 * answer, a malloc'ed string. SL_ERR_IO when the connection fails, SL_ERR_REFUSED (with the answer's
 * beginning in err) when the status is not 200. ns: time from the first byte sent to the last received; may
 * be NULL.
 */
sl_status sl_bench_http(int port, const char *path, const char *body, char **out, uint64_t *ns, sl_err *err);

/* Value of a sample of a metrics page by its full name with labels; -1 when it is not there. */
double sl_bench_metric(const char *page, const char *sample);

#endif
