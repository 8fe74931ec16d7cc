/*
 * `sluice bench decode`: the decode step of one rank of a model too big to come by, with random weights and
 * made-up access patterns: largest batch, step time and tokens per second with the cache resident,
 * hierarchical, and hierarchical with rows that cost nothing to fetch, all within the same device bytes; and
 * where the time goes.
 *
 * Inside: decode.c reads the flags and runs the sweep, host.c makes the host store,
 * run.c one engine after another, print.c the output.
 */
#ifndef SL_BENCH_DECODE_DECODE_H
#define SL_BENCH_DECODE_DECODE_H

#include <stdio.h>

#include "bench/list.h"
#include "engine/plan.h"
#include "local/open.h"

int sl_bench_decode_main(int argc, char **argv);

/* ---- inside ---- */

enum { DEC_SEED = 20261 };

typedef enum {
    DEC_RESIDENT,
    DEC_HIERARCHICAL,
    DEC_FREE_ROWS,
    DEC_FIRST_RESIDENT, /* hierarchical, all rows of the first layers on the device */
    DEC_MODES
} dec_mode;
typedef enum { DEC_KEEP85, DEC_LAYERED, DEC_RANDOM, DEC_PROFILES } dec_profile;

extern const char *const dec_mode_names[], *const dec_profile_names[];

typedef struct dec_opts {
    const char *backend, *model, *csv, *layout; /* layout: of the host store */
    int32_t layers, ranks, resident_layers, hot_rows, tail_rows, steps, warmup, max_batch, threads, groups;
    uint64_t host_bytes, reserve_bytes, kv_bytes;
    bool shared, ops;
    bench_list batches, contexts, modes, profiles, rows; /* rows: sl_row_format */
} dec_opts;

/* The host store of one row format, filled with random valid rows and keys. */
typedef struct dec_host {
    sl_arena *arena; /* the local's */
    sl_backend *be;
    bool readable;
    double populate_s, fill_s, pin_s;
} dec_host;

/* Opens l's store, fills it and registers it with the backend. */
sl_status dec_host_open(dec_host *h, sl_local *l, const sl_local_opts *o, int threads, sl_err *err);
/* Before l's store is closed. */
void dec_host_close(dec_host *h);
/*
 * Host pages of request i of n: `own` of its last pages are its own; those before belong to it alone while
 * the arena has enough, else (shared) requests take turns at as many sets of pages as there are. pages has
 * per_seq entries. *sets: how many. SL_ERR_EXHAUSTED when the arena is too small.
 */
sl_status dec_host_pages(const dec_host *h, bool shared, int32_t i, int32_t n, int32_t per_seq, int32_t own,
                         int32_t *pages, int32_t *sets, sl_err *err);

/* One measured point. */
typedef struct dec_result {
    sl_row_format rows;
    int32_t context, batch, gpu_batch, host_sets, hot_rows, resident_layers;
    dec_mode mode;
    dec_profile profile;
    double step_ms, min_ms, max_ms, mean_ms, tokens_s; /* median, extremes and mean of the steps */
    double misses, hits, tail_hits;                    /* per request, layer and step */
    double swap_ms, exposed_ms; /* a step: bringing rows; of it, what computing waited (sl_engine_stats) */
    uint64_t kv_bytes, kv_used, device_bytes;
    double open_s;
    sl_op_time *ops; /* of one eager step, or NULL */
    int32_t n_ops;
} dec_result;

typedef struct dec_bench {
    dec_opts o;
    sl_local local;
    sl_local_opts open; /* what local is opened with, but for the row format */
    dec_host host;
    sl_evict_policy policy;           /* what a worker without settings has on this backend */
    uint64_t kv_bytes;                /* device bytes for the cache, the same in every mode */
    uint32_t *keep;                   /* device [layers] */
    int32_t hot_layer[SL_MAX_LAYERS]; /* for DEC_FIRST_RESIDENT */
    void (*report)(void *ctx, const dec_result *r);
    void *report_ctx;
    sl_err err;
} dec_bench;

/* All modes and profiles at one context, reported as they come. */
sl_status dec_run_context(dec_bench *b, sl_row_format rows, int32_t context);

void dec_print_facts(FILE *out, const dec_bench *b);
void dec_print_csv_head(FILE *out);
void dec_print_csv(FILE *out, const dec_result *r);
void dec_print_row(FILE *out, const dec_result *r);
void dec_print_ops(FILE *out, const dec_result *r);

#endif
