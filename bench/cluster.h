/*
 * A small real cluster for benchmarks: one router and workers, which are further processes of this program on this host,
 * connected by UCX, on free ports of the loopback interface.
 *
 * The processes end with sl_bench_cluster_stop() or, at the latest, with the thread that started them. One thread.
 */
#ifndef SL_BENCH_CLUSTER_H
#define SL_BENCH_CLUSTER_H

#include <sys/types.h>

#include "base/msg.h"

enum { SL_BENCH_PROCESSES = 32 };

typedef struct sl_bench_process {
    sl_role role;
    pid_t pid;
    int metrics_port; /* of a worker; the router serves its metrics on its HTTP port */
} sl_bench_process;

typedef struct sl_bench_cluster {
    sl_bench_process p[SL_BENCH_PROCESSES]; /* in the order of the roles */
    int n, http_port, grpc_port;
} sl_bench_cluster;

typedef struct sl_bench_cluster_opts {
    const sl_role *roles; /* [n_roles], a router first */
    int n_roles;
    const char *config; /* a file, or NULL */
    const char *const
        *settings; /* [n] "KEY=VALUE" for every process, or "ROLE:KEY=VALUE" for those of one role */
    size_t n;
    int ready_s; /* how long loading may take */
} sl_bench_cluster_opts;

/* Starts the processes and waits until all workers are ready. After a failure no process is left running. */
sl_status sl_bench_cluster_start(const sl_bench_cluster_opts *o, sl_bench_cluster *out, sl_err *err);
/* Asks all to end, the router last, and kills what has not ended after 10 s. */
void sl_bench_cluster_stop(sl_bench_cluster *c);

/* Workers of a running cluster that are ready; -1: its router does not answer. */
int sl_bench_ready_workers(const char *host, int port);

#endif
