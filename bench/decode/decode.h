/*
 * `sluice bench decode`: the decode step of a large model, or of one of its ranks, with random weights and synthetic
 * access patterns. It reports the largest batch, the step time and the tokens per second with the cache resident and
 * read whole (dense), resident, hierarchical, and hierarchical with rows whose fetching takes no time, all with the same
 * number of device bytes, and the time of each op. The last lines are a table of the ratios that these have within one
 * run.
 *
 * With and without the exchange (--group, --ranks) the experts of a token are drawn, so that an expert gets as many
 * tokens either way; the router of random weights would prefer some experts, and would do so differently among the
 * experts of one rank and of all. The output says how many tokens the experts got.
 *
 * With --group every rank (bench/ranks.h) runs the sweep twice: in the group, then as the same rank without the exchange,
 * and the ratio is printed.
 *
 * With --draft a step is what a worker with drafts does: the MTP layer drafts, the model computes the last token and the drafts, and
 * every token's successor is chosen on the device. Random weights confirm no drafts, so how many stand is drawn from a seed.
 *
 * flags.c reads the flags, decode.c runs the sweep, run.c measures one engine after another, pairs.c counts the tokens of
 * the experts, print.c writes the output, summary.c the table of ratios.
 */
#ifndef SL_BENCH_DECODE_DECODE_H
#define SL_BENCH_DECODE_DECODE_H

#include <stdio.h>

#include "base/drawn.h"
#include "bench/host.h"
#include "bench/list.h"
#include "engine/plan.h"
#include "local/selection.h"
#include "sparse/channels.h"
#include "sparse/profile.h"

int sl_bench_decode_main(int argc, char **argv);

/* ---- private to this folder ---- */

typedef enum {
    SL_BENCH_RESIDENT,
    SL_BENCH_HIERARCHICAL,
    SL_BENCH_FREE_ROWS,
    SL_BENCH_FIRST_RESIDENT, /* hierarchical, but all rows of the first layers are on the device */
    SL_BENCH_CHECKED,        /* hierarchical, and every row that is fetched is compared with its checksum */
    SL_BENCH_IN_TURN, /* hierarchical, but rows of layers that share a list are fetched at the layer's turn */
    SL_BENCH_READ_ALL, /* resident, and a query reads every row; the algorithm is `dense` */
} sl_bench_mode;

extern const char *const sl_bench_mode_names[];

/* Whether all rows are on the device. */
static inline bool sl_bench_on_device(sl_bench_mode m)
{
    return m == SL_BENCH_RESIDENT || m == SL_BENCH_READ_ALL;
}

typedef struct sl_bench_decode_opts {
    const char *backend, *model, *csv, *layout; /* layout: that of the host store */
    const char *weights;                        /* of routed experts: SL_SYNTHETIC_EXPERTS */
    sl_local_selection selection;               /* options of the algorithms */
    int32_t layers, ranks, group, experts, resident_layers, hot_rows, tail_rows, steps, warmup, max_batch,
        threads, groups;
    uint64_t host_bytes, reserve_bytes, kv_bytes;
    bool shared, ops;
    sl_bench_list batches, contexts, modes, profiles;
    sl_bench_list rows, algorithms; /* sl_row_format, indices of sl_algo_names(); empty: those of the model */
    int32_t budget, channels;       /* token_budget and heavy_channels of the algorithms that have them */
    int32_t draft; /* tokens that the MTP layer drafts for each step; -1: the model has none */
    double accept
        [SL_DRAWN_DRAFTS]; /* the part of the steps in which the first k + 1 drafts stand, which is drawn */
} sl_bench_decode_opts;

/* One point of the sweep. */
typedef struct sl_bench_decode_result {
    sl_row_format rows;
    const char *algorithm;
    int32_t context, batch, gpu_batch, host_sets, hot_rows, resident_layers;
    sl_bench_mode mode;
    sl_profile profile;
    double step_ms, min_ms, max_ms, mean_ms, tokens_s; /* median, extremes and mean of the steps */
    double misses, hits, tail_hits;                    /* per request, layer and step */
    /* Per step: time of fetching rows, and the part during which computing waited for rows. */
    double swap_ms, exposed_ms;
    /* Of one step, op by op: selection (scores and top-k) and attention; negative where it was not profiled. */
    double select_ms, attend_ms;
    double tokens_step,
        draft_ms; /* with --draft: tokens of a request in a step, as drawn; time of drafting in step_ms */
    uint64_t kv_bytes, kv_used, device_bytes;
    double open_s;
    /* (token, expert) pairs of an expert of this rank in a layer: of all layers of the last step the least, the
     * most, the mean; and the part of the experts that get none, and that get more than a tile of 32 */
    int32_t pairs_least, pairs_most;
    double pairs_mean, pairs_none, pairs_over;
    double exchange_ratio; /* of this step without the exchange: the step with it, by this; else 0 */
    sl_op_time *ops;       /* times of the ops of one eager step, or NULL */
    int32_t n_ops;
} sl_bench_decode_result;

typedef struct sl_bench_decode {
    sl_bench_decode_opts o;
    sl_local local;
    sl_local_opts open;   /* the options that local is opened with, except the row format */
    sl_bench_list modes;  /* those of the algorithm that is open */
    sl_channels channels; /* for double_sparsity: the first channels of every head */
    sl_bench_host host;
    sl_evict_policy policy;              /* the one that a worker without settings chooses on this backend */
    uint64_t kv_bytes;                   /* device bytes for the cache, the same in every mode */
    uint32_t *keep;                      /* device [layers] */
    int32_t hot_layer[SL_MAX_LAYERS];    /* for SL_BENCH_FIRST_RESIDENT */
    int32_t all_resident[SL_MAX_LAYERS]; /* for SL_BENCH_READ_ALL */
    void (*report)(void *ctx, const sl_bench_decode_result *r);
    void *report_ctx;
    sl_err err;
} sl_bench_decode;

/* Sets *o from the command line. False: the program ends with *exit_code. */
bool sl_bench_decode_flags(sl_bench_decode_opts *o, int argc, char **argv, int *exit_code);

/* Measures all modes and profiles with requests of `context` tokens; reports each result when it is complete. */
sl_status sl_bench_decode_context(sl_bench_decode *b, sl_row_format rows, int32_t context);

/* Fills r->pairs_*: steps of r->batch tokens on every rank, at position pos. pairs.c */
void sl_bench_decode_pairs(const sl_bench_decode *b, int32_t pos, sl_bench_decode_result *r);

void sl_bench_decode_print_facts(FILE *out, const sl_bench_decode *b);
void sl_bench_decode_print_csv_head(FILE *out);
void sl_bench_decode_print_csv(FILE *out, const sl_bench_decode_result *r);
void sl_bench_decode_print_row(FILE *out, const sl_bench_decode_result *r);
void sl_bench_decode_print_ops(FILE *out, const sl_bench_decode_result *r);
/* One line for each result, with its ratios to others of the same rows and context:
 *   batch, tokens/s   to the dense result with the most tokens/s, or where there is none, to the resident one
 *   step              to that of free_rows of the same algorithm, profile and batch
 *   selection         the part of the step that it takes */
void sl_bench_decode_print_summary(FILE *out, const sl_bench_decode_result *r, int32_t n);

#endif
