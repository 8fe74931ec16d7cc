/*
 * What decode steps read of the cache, and what they miss: the share of attention that lies on the selected tokens, and
 * bytes.
 *
 * For each query head of a decode step the probabilities of dense attention are computed, from the head's query and all
 * keys that the host pages have: p_j = softmax over all positions j of scale * q . k_j, in double precision. The mass
 * kept is the sum of p_j over the selected positions. Most of the mass is often on the first and the newest tokens, which
 * every algorithm reads, so the sums are also made over the positions in the middle alone: all but the first
 * SL_EVAL_SINKS and the newest SL_EVAL_NEWEST.
 *
 * Layers that attend to everything count, too. One thread; backends whose device memory is host memory.
 */
#ifndef SL_EVAL_READS_H
#define SL_EVAL_READS_H

#include <stdio.h>

#include "sparse/sparse.h"

enum { SL_EVAL_SINKS = 4, SL_EVAL_NEWEST = 64 };

/* Sums over decode steps, layers and query heads. */
typedef struct sl_eval_reads {
    double all, kept;           /* mass: all is 1 for each head, kept is on selected positions */
    double middle, middle_kept; /* the same in the middle */
    uint64_t steps;             /* decode steps */
    uint64_t row_bytes;         /* of the selected rows, of all layers */
    uint64_t meta_bytes; /* of index keys and metadata by which layers select that do not read every token */
    /* Of an algorithm that leaves out tiles of attention, with prompts (sl_engine_stats); from the engine, not from a meter. */
    uint64_t tiles, tiles_skipped;
} sl_eval_reads;

void sl_eval_reads_add(sl_eval_reads *to, const sl_eval_reads *from);
/* Shares of the mass; -1 when nothing was measured. */
double sl_eval_mass(const sl_eval_reads *r);
double sl_eval_middle_mass(const sl_eval_reads *r);
/* Share of the tiles that were read; -1 when there were none that could be left out. */
double sl_eval_tiles(const sl_eval_reads *r);

typedef struct sl_eval_meter sl_eval_meter;

/* algorithm: by whose index keys or metadata rows are selected, with the dimensions dims, copied; shape: of its cache,
 * copied; heads: query heads that share a key. NULL: out of memory. */
sl_eval_meter *sl_eval_meter_create(const sl_algo_desc *algorithm, const sl_cache_dims *dims,
                                    const sl_cache_shape *shape, int32_t heads, int32_t max_context);
void sl_eval_meter_destroy(sl_eval_meter *m);
/* For sl_engine_opts.probe. */
sl_coord_probe sl_eval_meter_probe(sl_eval_meter *m);
/* Writes every list from now on to a file (eval/dump.h), which outlives the meter. False: out of memory. */
bool sl_eval_meter_dump(sl_eval_meter *m, FILE *to);
/* What was read since the last call. */
sl_eval_reads sl_eval_meter_take(sl_eval_meter *m);

#endif
