/*
 * Chooses the number of hot rows of each layer from measured locality: which layers should be resident, which need
 * no more than the selection itself, and what the others get.
 *
 * Input is the /metrics text of a decode worker (sluice_swap_rows_total by layer, step and swap time); output is
 * the list for sparse_attention.hot_rows. Pure functions, any thread.
 *
 * The rule. A decode worker that is full makes batch / step time tokens per second. Keeping all rows of a layer on
 * the device reduces the batch: a request's device bytes grow by (context - hot rows) x row bytes. It also reduces
 * the step time, by the layer's share of all misses times the part of a step that swapping takes. Layers are made
 * resident one by one, those with most misses first, while that gains more than it costs. Of the remaining layers,
 * those with a hit ratio below SL_LOCALITY_NONE keep only their selection, because their other rows are rarely
 * selected again; the rows that they give up go to the layers that have locality. The bytes of a hot slot do not
 * increase.
 */
#ifndef SL_ENGINE_LOCALITY_H
#define SL_ENGINE_LOCALITY_H

#include "engine/plan.h"

#define SL_LOCALITY_NONE 0.10

typedef struct sl_locality {
    int32_t n_layers;
    double hits[SL_MAX_LAYERS], misses[SL_MAX_LAYERS]; /* rows, since the worker started */
    double step_seconds;                               /* all decode steps */
    double exposed_seconds;                            /* of that, waiting for rows; 0: not measured */
    double swap_bytes;
} sl_locality;

/*
 * Reads the /metrics text of a decode worker, n bytes; other metrics are skipped. SL_ERR_INVALID names the line: a
 * layer outside 0..n_layers-1, a value that is no number, or no layer with rows at all.
 */
sl_status sl_locality_read(const char *text, size_t n, int32_t n_layers, sl_locality *out, sl_err *err);

/* The part of a step that swapping takes, 0..1: as measured or, if it was not measured, the time of the copied
 * bytes at `link` bytes/s (an upper bound). */
double sl_locality_swap_share(const sl_locality *m, double link);

/* hot_rows_layer[n_layers] for requests of `context` tokens: SL_HOT_RESIDENT, or a capacity. p is the plan of
 * the same model with one capacity for all. */
void sl_locality_choose(const sl_locality *m, const sl_plan *p, int32_t context, double swap_share,
                        int32_t *hot_rows_layer);

#endif
