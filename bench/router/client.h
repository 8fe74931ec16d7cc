/*
 * The load generator of `sluice bench router`: keeps a constant number of requests in flight over HTTP/1.1 or gRPC and
 * records when each token arrived. One libuv loop on the calling thread; blocks until all requests are answered.
 */
#ifndef SL_BENCH_ROUTER_CLIENT_H
#define SL_BENCH_ROUTER_CLIENT_H

#include "base/status.h"

typedef struct sl_bench_load {
    bool grpc;                          /* else HTTP */
    int port;                           /* of the router on 127.0.0.1 */
    uint32_t concurrency, requests;     /* requests in flight; requests in total */
    uint32_t prompt_tokens, max_tokens; /* of each request */
    bool stream;
} sl_bench_load;

/* Sorted samples in microseconds. */
typedef struct sl_bench_samples {
    double *v;
    size_t n, cap;
} sl_bench_samples;

typedef struct sl_bench_load_result {
    sl_bench_samples latency; /* from the request to the end of its answer */
    sl_bench_samples first;   /* streams only: from the request to its first token */
    sl_bench_samples gap;     /* streams only: between two tokens */
    uint64_t tokens, errors;
    double seconds;
} sl_bench_load_result;

/* Runs the load. *out must be freed with sl_bench_load_result_free(), also after a failure. */
sl_status sl_bench_load_run(const sl_bench_load *l, sl_bench_load_result *out, sl_err *err);
void sl_bench_load_result_free(sl_bench_load_result *r);
/* The sample at quantile q (0 to 1); 0 when there are no samples. */
double sl_bench_quantile(const sl_bench_samples *s, double q);

#endif
