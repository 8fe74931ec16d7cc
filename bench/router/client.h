/*
 * The load of `sluice bench router`: keeps a constant number of requests in flight over HTTP/1.1 or gRPC and
 * records when each token arrived. One libuv loop on the calling thread; blocks until all requests are answered.
 */
#ifndef SL_BENCH_ROUTER_CLIENT_H
#define SL_BENCH_ROUTER_CLIENT_H

#include "base/status.h"

typedef struct sl_bench_load {
    bool grpc;
    int port;
    uint32_t concurrency, requests;
    uint32_t prompt_tokens, max_tokens;
    bool stream;
} sl_bench_load;

/* Sorted samples in microseconds. */
typedef struct sl_bench_samples {
    double *v;
    size_t n, cap;
} sl_bench_samples;

typedef struct sl_bench_load_result {
    sl_bench_samples latency; /* whole request */
    sl_bench_samples first;   /* first token (streams) */
    sl_bench_samples gap;     /* between tokens (streams) */
    uint64_t tokens, errors;
    double seconds;
} sl_bench_load_result;

sl_status sl_bench_load_run(const sl_bench_load *l, sl_bench_load_result *out, sl_err *err);
void sl_bench_load_result_free(sl_bench_load_result *r);
double sl_bench_quantile(const sl_bench_samples *s, double q); /* 0 when empty */

#endif
