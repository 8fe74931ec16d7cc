/*
 * Inside model/: the tensors of a checkpoint, in the memory of the backend and in the form that the ops need.
 *
 * Loading has two passes: `bind` finds every tensor that the family's table lists, checks its shape and dtype, and
 * refuses tensors that no row of the table names; `place` puts the bytes where the backend can read them. When the
 * backend uses host memory, a tensor stays in the mapped file unless it must be converted or is not aligned; otherwise
 * everything is copied into one block. Quantisation is decided for each tensor: an F8_E4M3 tensor must have a tensor
 * with its scales, weights of 4 bits are packed into tensors of other names (weights_linear.c), and no plain tensor may have
 * scales. Ownership: borrows backend and checkpoint, which must outlive it.
 * Threads: one at a time during the load; then only read.
 */
#ifndef SL_MODEL_WEIGHTS_H
#define SL_MODEL_WEIGHTS_H

#include "model/checkpoint.h"
#include "model/family.h"

/* A table in host memory (sl_table_spec). The arrays are in device memory. */
typedef struct sl_host_table {
    const void **shards;
    int64_t *shard_rows; /* the first row after each shard */
    int64_t rows;
    int32_t n_shards;
    sl_dtype dtype;
} sl_host_table;

typedef struct sl_layer_weights {
    sl_weight w[SL_LAYER_SLOTS]; /* vectors: out = length, in = 1; data NULL: the layer has none */
    /* [moe.n_routed] of an MoE layer, else NULL. Experts of other ranks have their shape and dtype, but no data. */
    sl_weight *gate, *up, *down;
    sl_host_table table; /* n_shards 0: the layer has none */
    bool quantised;      /* gates and ups of all experts take e4m3 inputs (sl_weight_takes_e4m3) */
} sl_layer_weights;

typedef struct sl_weights {
    sl_backend *be;
    sl_weight w[SL_MODEL_SLOTS];
    sl_layer_weights *layers; /* [n_layers] */
    int32_t n_layers;
    sl_weight *experts;                          /* storage for gate, up, down of all layers */
    void *block;                                 /* device memory of what was copied, or NULL */
    void *tables;                                /* host memory of tables that were copied, or NULL */
    uint64_t table_bytes;                        /* of all tables */
    uint64_t bytes;                              /* of all tensors in use */
    int32_t rank, ranks;                         /* of the group; 0 of 1 without one */
    int32_t expert_first[SL_COMM_RANKS_MAX + 1]; /* rank r holds the experts from [r] to [r + 1] - 1 */
} sl_weights;

/* Errors name file and tensor: SL_ERR_INVALID (missing, unexpected, wrong shape or dtype),
 * SL_ERR_DEVICE_MEMORY… */
sl_status sl_weights_load(sl_backend *be, sl_checkpoint *ck, const sl_family *f, const sl_model_config *c,
                          const sl_model_opts *o, sl_weights *out, sl_err *err);
/* Finds and checks the tensors as sl_weights_load does, and marks them as used, but places nothing. *bytes (may be NULL):
 * what this rank would place. */
sl_status sl_weights_find(sl_checkpoint *ck, const sl_family *f, const sl_model_config *c,
                          const sl_model_opts *o, uint64_t *bytes, sl_err *err);
/* A zeroed struct is allowed. */
void sl_weights_free(sl_weights *w);

#endif
