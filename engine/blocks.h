/*
 * Inside engine/: units of blocks that are swapped in, as rows of tokens are.
 *
 * A class of layers may say that a token reads few of its units (sl_layer_class.chosen). In an engine with hot slots these units are
 * rows: those of resident sequences in row pages, those of hierarchical ones in hot buffers with a tail, whose residency is in
 * a swap-in manager of its own. The families' ops append to them, and ask for the ones that a step reads (sl_attend_seam.fetch).
 * How many hot units a sequence has follows from the lists; the options for rows of tokens do not count here.
 */
#ifndef SL_ENGINE_BLOCKS_H
#define SL_ENGINE_BLOCKS_H

#include "engine/engine_impl.h"
#include "sparse/swapin.h"

typedef struct sl_blocks {
    sl_coord_layer *layers; /* [n_layers]; `absent` without such units */
    sl_swapin *swapin;
    int32_t *phys; /* device [max_step_tokens][k] */
    int32_t k;
} sl_blocks;

/* Sizes for a model and its engine. k 0: nothing is swapped in. */
typedef struct sl_block_sizes {
    int32_t class, k, log2, spare, hot, tail, of_run;
    int64_t bytes; /* of a unit */
} sl_block_sizes;

void sl_blocks_sizes(const sl_geometry *g, const sl_cache_dims *cache, const sl_model_config *cfg,
                     int32_t item_tokens, int32_t max_context, int32_t tail_rows, sl_block_sizes *out);
/* The plane of the shape whose units are swapped in; -1: none of this layer's. */
int32_t sl_blocks_plane(const sl_block_sizes *z, const sl_geometry *g, const sl_model_config *cfg,
                        int32_t layer);

/* Device bytes: of a page of all layers, which are in row pages instead of index pages; of a hot slot, rows and the rest; and what
 * does not depend on slots. */
typedef struct sl_blocks_bytes {
    uint64_t page, hot_rows, hot_meta, fixed;
} sl_blocks_bytes;
void sl_blocks_plan(const sl_block_sizes *z, const sl_geometry *g, const sl_model_config *cfg,
                    int32_t max_context, int32_t max_step_tokens, sl_evict_policy policy,
                    sl_blocks_bytes *out);

/* Sets sl_engine.blocks, which stays NULL where nothing is swapped in. */
sl_status sl_blocks_init(sl_engine *e, sl_err *err);
void sl_blocks_fini(sl_engine *e);
/* The sequence's units of pages [first, end) come to the device; a hierarchical one gets its tail, and no hot units. */
sl_status sl_blocks_load(sl_seq *s, int32_t first, int32_t end, sl_err *err);
/* A step begins; a step of these runs has failed. */
sl_status sl_blocks_step(sl_engine *e, sl_err *err);
void sl_blocks_forget(sl_engine *e, const sl_seq *s);
/* A sl_fetch_fn; ctx is the engine. */
sl_status sl_blocks_fetch(void *ctx, int32_t layer, const sl_seq_tables *seqs, const int32_t *ids,
                          const int32_t **phys, sl_err *err);

#endif
