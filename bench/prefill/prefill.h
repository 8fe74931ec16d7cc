/*
 * `sluice bench prefill`: a prefill chunk of one rank of a model too big to come by, with random weights, by
 * op, for chunk sizes and contexts; and what that makes for the whole model. The model runs with a few of its
 * layers, each kind of layer at its real dimensions; the whole is its kinds times their numbers.
 *
 * Inside: prefill.c reads the flags, runs the sweep and prints, run.c runs one point.
 */
#ifndef SL_BENCH_PREFILL_PREFILL_H
#define SL_BENCH_PREFILL_PREFILL_H

#include "bench/decode/decode.h"

int sl_bench_prefill_main(int argc, char **argv);

/* ---- inside ---- */

typedef enum {
    PRE_DENSE,
    PRE_MOE,
    PRE_ENDS, /* before the first layer and behind the last */
    PRE_PARTS
} pre_part;
extern const char *const pre_part_names[];

typedef struct pre_opts {
    const char *backend, *model, *csv;
    int32_t layers, ranks, repeats, threads, equal; /* equal: tokens of the prompt to compare; 0: do not */
    bool ops;
    bench_list chunks, contexts, rows; /* rows: sl_row_format */
} pre_opts;

/* An op of one kind of layer. ns: of all its calls in one step. */
typedef struct pre_op {
    pre_part part;
    sl_op op;
    int32_t rows, cols; /* of a linear layer's weight */
    int32_t calls;
    double ns;
} pre_op;

typedef struct pre_result {
    sl_row_format rows;
    int32_t chunk, context;
    double step_ms, ops_ms;    /* the step as it ran: host clock (median), and the sum of its ops */
    double model_ms, tokens_s; /* all layers: sum of ops */
    const pre_op *ops;         /* sorted by part, then by time */
    int32_t n_ops;
} pre_result;

typedef struct pre_bench {
    pre_opts o;
    sl_local local;
    sl_local_opts open; /* what local is opened with, but for the row format */
    dec_host host;
    int32_t have[PRE_PARTS],
        whole[PRE_PARTS]; /* layers of each kind: here, and of the whole model; ENDS: 1 */
    void (*report)(void *ctx, const pre_result *r);
    void *report_ctx;
    sl_err err;
} pre_bench;

/* All chunks and contexts of one row format, reported as they come. */
sl_status pre_run_rows(pre_bench *b, sl_row_format rows);

#endif
