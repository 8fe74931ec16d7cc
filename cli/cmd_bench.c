/* `sluice bench NAME …`: the benchmarks of the rooms; each prints CSV with the machine's facts before it. */
#include <stdio.h>
#include <string.h>

#include "cli/bench_decode.h"
#include "cli/bench_prefill.h"
#include "cli/bench_ship.h"
#include "cli/bench_ttft.h"
#include "cli/cli.h"
#include "kernels/bench_swapin.h"
#include "router/bench.h"
#include "transport/bench.h"

static const sl_command benches[] = {
    {"transport", "put, get and message bandwidth and latency between two processes",
     sl_bench_transport_main},
    {"router", "latency the router adds, requests per second, wide streams, with mock workers",
     sl_bench_router_main},
    {"swapin", "resolve and gather against a plain copy of the same rows", sl_bench_swapin_main},
    {"decode", "the decode step of a big model, made up: batch, step time, where it goes",
     sl_bench_decode_main},
    {"prefill", "a prefill chunk of a big model, made up, by op: chunk sizes and contexts",
     sl_bench_prefill_main},
    {"ship", "rows of a prefilled chunk into another process's store, by each path, beside the link",
     sl_bench_ship_main},
    {"ttft", "time to the first token through a cluster beside one process", sl_bench_ttft_main},
};

int sl_cmd_bench(int argc, char **argv)
{
    for (size_t i = 0; argc > 1 && i < SL_COUNT(benches); i++)
        if (strcmp(argv[1], benches[i].name) == 0) {
            char name[32]; /* what its messages call it: "sluice bench ttft: …" */
            snprintf(name, sizeof name, "bench %s", benches[i].name);
            argv[1] = name;
            return benches[i].run(argc - 1, argv + 1);
        }
    FILE *out = argc > 1 && strcmp(argv[1], "--help") == 0 ? stdout : stderr;
    if (out == stderr && argc > 1)
        fprintf(out, "sluice bench: unknown benchmark '%s'\n", argv[1]);
    fprintf(out, "usage: sluice bench NAME [flags]   (NAME --help for its flags)\n");
    for (size_t i = 0; i < SL_COUNT(benches); i++)
        fprintf(out, "  %-10s %s\n", benches[i].name, benches[i].help);
    return out == stdout ? SL_EXIT_OK : SL_EXIT_USAGE;
}
