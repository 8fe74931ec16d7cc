/*
 * Bytes that a model takes on the device, computed from its config alone: for plans, before anything is loaded. Pure
 * functions that allocate nothing. Any thread.
 */
#ifndef SL_MODEL_SIZES_H
#define SL_MODEL_SIZES_H

#include "model/model.h"

typedef struct sl_weight_bytes {
    uint64_t replicated; /* what every rank of a group holds: everything except routed experts */
    uint64_t expert;     /* of one routed expert, in all MoE layers together */
} sl_weight_bytes;

/*
 * The weights as sl_model_load() places them; routed experts in the form of sl_model_half_form(). stored: dtype of most
 * weights (sl_model_stored_dtype()); F8 stands for the published form: linear layers in F8 with one float32 scale for
 * each block of 128 x 128, the rest in BF16. act: of the options.
 */
void sl_model_weight_sizes(const sl_model_config *c, sl_dtype stored, sl_dtype act, sl_weight_bytes *out);

/* The form of routed experts in 4 bits that the config names first, or NULL: then they are stored as other linear layers.
 * Which other layers are in 4 bits is not known without the tensors; none is assumed to be. */
const sl_weight_form *sl_model_half_form(const sl_model_config *c);

/* Calls f with outputs and inputs of every linear layer, by the family's table, and whether a checkpoint may have it in fp8; routed experts
 * are not among them. */
typedef void sl_linear_fn(void *ctx, int64_t out, int64_t in, bool fp8);
void sl_model_each_linear(const sl_model_config *c, sl_linear_fn *f, void *ctx);

/* The buffers of a rank for the two exchanges of expert parallelism (kernels/ep.h), as the workspace of a model in a
 * group of that many ranks has them; max_tokens: of the options. 0 for one rank, and for a model without routed
 * experts. */
uint64_t sl_model_exchange_bytes(const sl_model_config *c, sl_dtype act, int32_t max_tokens, int32_t ranks);

#endif
