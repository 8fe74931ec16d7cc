/*
 * The most scratch memory that an op of any step of an engine asks for, from the model's config, its algorithm and the limits of a step:
 * kernels/scratch.h says what one op asks for, this room knows which ops there are. The plan sets it aside (sl_plan.scratch_bytes),
 * and an engine has its backend keep it (sl_be_scratch), so that serving never allocates. Pure; any thread.
 */
#ifndef SL_ENGINE_SCRATCH_H
#define SL_ENGINE_SCRATCH_H

#include "model/model.h"
#include "sparse/algorithm.h"

struct sl_gpu; /* kernels/paths.h */

/* The limits of a step. */
typedef struct sl_scratch_load {
    int32_t step_tokens, context; /* tokens of a step; of a sequence */
    int32_t seqs;                 /* rows of the page tables */
    int32_t ranks, experts; /* of a group: ranks, and the most routed experts of one; 1 rank: all experts */
    sl_dtype act;
} sl_scratch_load;

/*
 * Weights are taken in the stored forms that ask for most: linear layers as fp8, unless checkpoints keep them in 16 bits, experts as
 * bf16, fp8 or in the config's 4 bits. algorithm NULL: none. An algorithm says what its own ops need (sl_algo_desc.scratch);
 * one that does not gets what every op of selection but k-means can ask for with the model's dimensions.
 */
size_t sl_engine_scratch_bytes(const struct sl_gpu *g, const sl_model_config *c, const sl_cache_dims *cache,
                               const sl_algo_desc *algorithm, const sl_scratch_load *l);

#endif
