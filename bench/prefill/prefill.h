/*
 * `sluice bench prefill`: a prefill chunk of one rank of a large model, with random weights, by
 * op, for chunk sizes and contexts; and what that makes for the whole model. The model runs with a few of its
 * layers, each kind of layer at its real dimensions; the whole is its kinds times their numbers.
 *
 * Inside: prefill.c reads the flags, runs the sweep and prints, run.c runs one point.
 */
#ifndef SL_BENCH_PREFILL_PREFILL_H
#define SL_BENCH_PREFILL_PREFILL_H

#include <stdio.h>

#include "bench/host.h"
#include "bench/list.h"

int sl_bench_prefill_main(int argc, char **argv);

/* ---- inside ---- */

typedef enum {
    SL_BENCH_DENSE,
    SL_BENCH_MOE,
    SL_BENCH_ENDS, /* before the first layer and after the last */
    SL_BENCH_PARTS
} sl_bench_part;
extern const char *const sl_bench_part_names[];

typedef struct sl_bench_prefill_opts {
    const char *backend, *model, *csv;
    int32_t layers, ranks, repeats, threads, equal; /* equal: tokens of the prompt to compare; 0: do not */
    bool ops;
    sl_bench_list chunks, contexts, rows; /* rows: sl_row_format */
} sl_bench_prefill_opts;

/* An op of one kind of layer. ns: of all its calls in one step. */
typedef struct sl_bench_prefill_op {
    sl_bench_part part;
    sl_op op;
    int32_t rows, cols; /* of a linear layer's weight */
    int32_t calls;
    double ns;
} sl_bench_prefill_op;

typedef struct sl_bench_prefill_result {
    sl_row_format rows;
    int32_t chunk, context;
    double step_ms, ops_ms;         /* the step as it ran: host clock (median), and the sum of its ops */
    double model_ms, tokens_s;      /* all layers: sum of ops */
    const sl_bench_prefill_op *ops; /* sorted by part, then by time */
    int32_t n_ops;
} sl_bench_prefill_result;

typedef struct sl_bench_prefill {
    sl_bench_prefill_opts o;
    sl_local local;
    sl_local_opts open; /* what local is opened with, but for the row format */
    sl_bench_host host;
    int32_t have[SL_BENCH_PARTS],
        whole[SL_BENCH_PARTS]; /* layers of each kind: here, and of the whole model; ENDS: 1 */
    void (*report)(void *ctx, const sl_bench_prefill_result *r);
    void *report_ctx;
    sl_err err;
} sl_bench_prefill;

/* All chunks and contexts of one row format, reported as they come. */
sl_status sl_bench_prefill_rows(sl_bench_prefill *b, sl_row_format rows);

#endif
