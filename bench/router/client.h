/*
 * The load generator of `sluice bench router`: keeps a constant number of requests in flight over HTTP/1.1 or gRPC and
 * records when each token arrived. One libuv loop on the calling thread; blocks until all requests are answered.
 */
#ifndef SL_BENCH_ROUTER_CLIENT_H
#define SL_BENCH_ROUTER_CLIENT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/status.h"

/* What a request asks for. Everything 0 but the prompt: greedy. */
typedef struct sl_bench_ask {
    const char *model; /* HTTP; NULL: "sluice" */
    const int32_t *prompt;
    uint32_t prompt_tokens, max_tokens;
    float temperature, top_p, min_p, presence_penalty, frequency_penalty, repetition_penalty; /* 0: not set */
    int32_t top_k;                                                                            /* 0: not set */
    int32_t logprobs; /* of this number of best tokens; 0: none */
    /* The form of the answer, in which no character has a special meaning to JSON; NULL: none. The answer has max_tokens tokens, so it
     * must be possible to go on for ever. */
    const char *regex;
    bool stream;
} sl_bench_ask;

/* How another thread watches and steers a run. Zeroed at the beginning. */
typedef struct sl_bench_watch {
    _Atomic uint32_t streaming; /* requests that have got a token */
    _Atomic uint32_t ended;
    _Atomic bool measuring; /* gaps are recorded from now on */
    _Atomic bool stop;      /* connections are closed at once, with the requests that are in flight */
} sl_bench_watch;

typedef struct sl_bench_load {
    bool grpc;                      /* else HTTP */
    const char *host;               /* of the router; NULL: 127.0.0.1 */
    int port;                       /* of the router */
    uint32_t concurrency, requests; /* requests in flight; requests in total */
    const sl_bench_ask *asks;       /* [n_asks]: place i sends asks[i % n_asks], again and again */
    uint32_t n_asks;
    sl_bench_watch *watch; /* NULL: all gaps are recorded, and the run ends with its requests */
} sl_bench_load;

/* Sorted samples in microseconds. */
typedef struct sl_bench_samples {
    double *v;
    size_t n, cap;
} sl_bench_samples;

typedef struct sl_bench_load_result {
    sl_bench_samples latency; /* from the request to the end of its answer */
    sl_bench_samples first;   /* streams only: from the request to its first token */
    sl_bench_samples gap; /* streams only: between two tokens, which are those of an event divided evenly */
    uint64_t tokens, errors;
    uint64_t complete; /* tokens of the requests that have ended, by the answers' own count */
    double seconds;
    char why[240]; /* of the first request that failed, as the router said it */
} sl_bench_load_result;

/*
 * Runs the load. HTTP answers are counted by their events, of which each is one token or more (text is held back until it is
 * whole); gRPC answers have the tokens. *out must be freed with sl_bench_load_result_free(), also after a failure. */
sl_status sl_bench_load_run(const sl_bench_load *l, sl_bench_load_result *out, sl_err *err);
void sl_bench_load_result_free(sl_bench_load_result *r);
/* The sample at quantile q (0 to 1); 0 when there are no samples. */
double sl_bench_quantile(const sl_bench_samples *s, double q);

#endif
