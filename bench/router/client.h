/*
 * The load of `sluice bench router`: keeps so many requests in flight over HTTP/1.1 or gRPC and notes when
 * what came back. One libuv loop on the calling thread; blocks until all requests are answered.
 */
#ifndef SL_BENCH_ROUTER_CLIENT_H
#define SL_BENCH_ROUTER_CLIENT_H

#include "base/status.h"

typedef struct bench_load {
    bool grpc;
    int port;
    uint32_t concurrency, requests;
    uint32_t prompt_tokens, max_tokens;
    bool stream;
} bench_load;

/* Sorted samples in microseconds. */
typedef struct bench_samples {
    double *v;
    size_t n, cap;
} bench_samples;

typedef struct bench_result {
    bench_samples latency; /* whole request */
    bench_samples first;   /* first token (streams) */
    bench_samples gap;     /* between tokens (streams) */
    uint64_t tokens, errors;
    double seconds;
} bench_result;

sl_status bench_run(const bench_load *l, bench_result *out, sl_err *err);
void bench_result_free(bench_result *r);
double bench_quantile(const bench_samples *s, double q); /* 0 when empty */

#endif
