/*
 * `sluice bench prefill`: the time of each op of a prefill chunk, for one rank of a large model with random weights,
 * and for each combination of chunk size and context. The model runs with a few of its layers, every kind of layer at
 * its real dimensions; the time of the whole model is computed from the time of each kind and the number of its layers.
 *
 * With --group the rank is one of a real group: every rank (bench/ranks.h) computes chunks of its own sequence and runs
 * the sweep twice, in the group and then without the exchange; rank 0 prints both and their ratio. The ranks' steps begin
 * together either way, and a step in the group is compared with that of the slowest rank, because a group is never faster.
 * The experts of a token are drawn either way, so that an expert gets as many tokens.
 *
 * With --ttft it computes whole prompts of a model with KV heads instead, with dense attention and with other algorithms.
 *
 * prefill.c reads the flags, runs the sweep and prints; run.c measures one point; ttft.c is --ttft.
 */
#ifndef SL_BENCH_PREFILL_PREFILL_H
#define SL_BENCH_PREFILL_PREFILL_H

#include <stdio.h>

#include "bench/host.h"
#include "bench/list.h"

int sl_bench_prefill_main(int argc, char **argv);

/* ---- private to this folder ---- */

typedef enum {
    SL_BENCH_DENSE,
    SL_BENCH_MOE,
    SL_BENCH_ENDS, /* the ops before the first layer and after the last */
    SL_BENCH_PARTS
} sl_bench_part;
extern const char *const sl_bench_part_names[];

typedef struct sl_bench_prefill_opts {
    const char *backend, *model, *csv;
    const char *algorithms; /* of --ttft, next to dense */
    int32_t layers, ranks, group, experts, repeats, threads;
    int32_t equal; /* tokens of the prompt of --equal; 0: none */
    bool ops;
    sl_bench_list chunks, contexts, rows; /* rows: sl_row_format */
    sl_bench_list ttft;                   /* tokens of prompts */
} sl_bench_prefill_opts;

/* One op, of one shape, in one kind of layer. */
typedef struct sl_bench_prefill_op {
    sl_bench_part part;
    sl_op op;
    int32_t rows, cols; /* shape of a linear layer's weight; else 0 */
    int32_t calls;      /* in one step */
    double ns;          /* sum over these calls */
} sl_bench_prefill_op;

typedef struct sl_bench_prefill_result {
    sl_row_format rows;
    int32_t chunk, context;
    double step_ms, ops_ms;       /* the measured step: median by the host clock, and the sum of its ops */
    double least_ms, most_ms;     /* the fastest and the slowest of the measured steps */
    double model_ms, tokens_s;    /* the whole model, computed from the ops */
    double exposed_ms, hidden_ms; /* a step's exchanges (sl_comm_stats), and the waiting in them; 0: none */
    double wait_ms;
    const sl_bench_prefill_op *ops; /* sorted by part, then by time */
    int32_t n_ops;
} sl_bench_prefill_result;

typedef struct sl_bench_prefill {
    sl_bench_prefill_opts o;
    sl_local local;
    sl_local_opts open; /* the options that local is opened with, except the row format */
    sl_bench_host host;
    /* the ranks that take part, also those that compute without an exchange; NULL: this one alone */
    sl_comm *group;
    int32_t have[SL_BENCH_PARTS];  /* number of layers of each kind that run here; ENDS: 1 */
    int32_t whole[SL_BENCH_PARTS]; /* the same for the whole model */
    void (*report)(void *ctx, const sl_bench_prefill_result *r);
    void *report_ctx;
    sl_err err;
} sl_bench_prefill;

/* Measures all chunk sizes and contexts with one row format; reports each result when it is complete. */
sl_status sl_bench_prefill_rows(sl_bench_prefill *b, sl_row_format rows);

/* Whole prompts, with every algorithm; prints, and writes rows to csv unless it is NULL. */
sl_status sl_bench_prefill_ttft(sl_bench_prefill *b, FILE *csv);

#endif
