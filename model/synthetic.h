/*
 * Models without a checkpoint, for benchmarks: the dimensions of a real model (or a tiny one), weights made
 * of random numbers on the device, of sensible magnitude so that activations stay finite. What such a model
 * computes means nothing; what it costs is the real model's.
 *
 * Expert parallelism is seen from one rank: the router chooses among all experts, the rank holds n / ranks of
 * them. With balanced load each rank receives, from all ranks together, as many (token, expert) pairs as its
 * own tokens choose. So the rank's own pairs stand for those that would arrive: after routing at its full
 * cost, the choices are replaced by random ones among the rank's experts (SL_OP_DRAW). The exchange between
 * ranks is left out; reads of experts, products and sums are those of a rank.
 */
#ifndef SL_MODEL_SYNTHETIC_H
#define SL_MODEL_SYNTHETIC_H

#include "model/model.h"

/* The name of the i-th preset (families list them, model/family.h); NULL after the last. The first is "deepseek_v32". */
const char *sl_synthetic_name(size_t i);
/* The config of a preset. layers: 0 for all of them. SL_ERR_INVALID: unknown name, or not that many layers. */
sl_status sl_synthetic_config(const char *name, int32_t layers, sl_model_config *out, sl_err *err);

typedef struct sl_synthetic_opts {
    int32_t ranks; /* of expert parallelism; divides the routed experts */
    uint64_t seed;
} sl_synthetic_opts;

/* As sl_model_load: fp8 weights with block scales where the published checkpoints have them (kv_b as bf16, as
 * absorption wants it), bf16 elsewhere. Same seed, same bits, on every backend. */
sl_status sl_model_synthetic(sl_backend *be, const sl_model_config *cfg, const sl_model_opts *opts,
                             const sl_synthetic_opts *synth, sl_model **out, sl_err *err);

#endif
