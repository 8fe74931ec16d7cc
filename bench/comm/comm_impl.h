/* Inside bench/comm: the options, and what a rank runs. */
#ifndef SL_BENCH_COMM_COMM_IMPL_H
#define SL_BENCH_COMM_COMM_IMPL_H

#include <stdio.h>

#include "bench/list.h"
#include "collectives/comm.h"

enum { SL_BENCH_COMM_TOP_K_MAX = 64, SL_BENCH_COMM_REPEATS_MAX = 1000 };

typedef struct sl_bench_comm {
    const char *backend;
    sl_bench_list tokens;
    int32_t ranks, hidden, top_k, experts; /* experts: of a rank */
    int32_t inner, repeats;
    uint64_t most_bytes;
    double link_gbs;
} sl_bench_comm;

/* Measures all collectives on a formed group; rank 0 prints the lines of the CSV. way: their column of this name. */
sl_status sl_bench_comm_measure(const sl_bench_comm *o, sl_backend *be, sl_comm *c, const char *way,
                                FILE *out, sl_err *err);

#endif
