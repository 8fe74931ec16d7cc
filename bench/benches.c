/* The registry of benchmarks; see bench.h. */
#include "bench/bench.h"

#include <stddef.h>

#include "bench/decode/decode.h"
#include "bench/prefill/prefill.h"
#include "bench/router/router.h"
#include "bench/ship/ship.h"
#include "bench/swapin/swapin.h"
#include "bench/transport/transport.h"
#include "bench/ttft/ttft.h"

const sl_bench sl_benches[] = {
    {"transport", "put, get and message bandwidth and latency between two processes",
     sl_bench_transport_main},
    {"router", "latency that the router adds, requests per second, many streams, with mock workers",
     sl_bench_router_main},
    {"swapin", "resolve and gather against a plain copy of the same rows", sl_bench_swapin_main},
    {"decode", "the decode step of a large model with random weights: batch, step time, time by op",
     sl_bench_decode_main},
    {"prefill", "a prefill chunk of a large model with random weights, by op: chunk sizes and contexts",
     sl_bench_prefill_main},
    {"ship", "rows of a prefilled chunk into another process's store, by each path, compared with the link",
     sl_bench_ship_main},
    {"ttft", "time to the first token through a cluster, compared with one process", sl_bench_ttft_main},
    {NULL, NULL, NULL},
};
