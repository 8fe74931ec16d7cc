/* The registry of benchmarks; see bench.h. */
#include "bench/bench.h"

#include <stddef.h>

#include "bench/comm/comm.h"
#include "bench/decode/decode.h"
#include "bench/prefill/prefill.h"
#include "bench/router/router.h"
#include "bench/serve/serve.h"
#include "bench/ship/ship.h"
#include "bench/swapin/swapin.h"
#include "bench/tier/tier.h"
#include "bench/transport/transport.h"
#include "bench/ttft/ttft.h"

const sl_bench sl_benches[] = {
    {"transport", "bandwidth and latency of puts, gets and messages between two processes",
     "sluice bench transport", sl_bench_transport_main},
    {"serve", "what clients of a cluster are served, compared with the engine's own step in the same seconds",
     "sluice bench serve", sl_bench_serve_main},
    {"router", "latency that the router adds, requests per second and concurrent streams, with mock workers",
     "sluice bench router", sl_bench_router_main},
    {"comm", "collectives of a group of ranks, with the shapes of expert parallelism",
     "sluice bench comm --ranks 2 --tokens 1,64,512", sl_bench_comm_main},
    {"swapin", "resolve and gather of missing rows, compared with a plain copy of the same rows",
     "sluice bench swapin", sl_bench_swapin_main},
    {"decode", "a decode step of a large model with random weights: largest batch, step time, time per op",
     "sluice bench decode --hot-rows 2048 --layout layer_first --host-bytes 24G", sl_bench_decode_main},
    {"prefill",
     "a prefill chunk of a large model with random weights: time per op for chunk sizes and contexts",
     "sluice bench prefill --chunks 128,1024,4096", sl_bench_prefill_main},
    {"ship",
     "copying a prefilled chunk's rows into another process's store by each path, compared with the link",
     "sluice bench ship", sl_bench_ship_main},
    {"tier",
     "storing and reading pages on a disk, in Redis or through NIXL, compared with plain loops and with fio",
     "sluice bench tier --tier redis", sl_bench_tier_main},
    {"ttft", "time to the first token of a cluster, compared with one process", "sluice bench ttft",
     sl_bench_ttft_main},
    {NULL, NULL, NULL, NULL},
};
