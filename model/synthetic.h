/*
 * Models without a checkpoint, for benchmarks: the dimensions of a real model (or of a tiny one), with random weights
 * that are made on the device and scaled so that activations stay finite. The output of such a model has no meaning;
 * its cost is that of the real model.
 *
 * Expert parallelism is simulated for one rank: the model's router chooses among all experts, the rank has n / ranks of
 * them. With balanced load each rank receives, from all ranks together, as many (token, expert) pairs as its own tokens
 * choose. Therefore the rank's own pairs represent those that it would receive: the routing runs at its full cost, then
 * its choices are replaced by random choices among the rank's experts (SL_OP_DRAW). The exchange between ranks is left
 * out; reads of experts, products and sums are those of one rank.
 *
 * A model of a rank of a real group (sl_model_opts.comm or ranks) has this rank's experts with the bits that they have
 * in the model of one process, and rows travel. Its routing is the router's, or with `drawn` random choices among the
 * experts of all ranks, of which each expert gets as many as in the simulation of one rank.
 */
#ifndef SL_MODEL_SYNTHETIC_H
#define SL_MODEL_SYNTHETIC_H

#include "model/model.h"

/* The name of the i-th preset (families list them, model/family.h); NULL after the last. The first is
 * "deepseek_v32". */
const char *sl_synthetic_name(size_t i);
/* The config of a preset with the first `layers` layers; 0: all. SL_ERR_INVALID: the name is unknown, or the preset has
 * fewer layers. */
sl_status sl_synthetic_config(const char *name, int32_t layers, sl_model_config *out, sl_err *err);

#define SL_SYNTHETIC_EXPERTS "fp8, int4, w4a8, mxfp4, nvfp4"
/* Changes the routed experts of a config to one of these forms; fp8 leaves them as they are. int4 has groups of 128 inputs
 * and inputs in 16 bits, w4a8 the same with e4m3 inputs, mxfp4 e4m3 inputs too, nvfp4 inputs in 16 bits. SL_ERR_NOT_FOUND:
 * another name; SL_ERR_INVALID: there are no experts. */
sl_status sl_synthetic_experts(const char *name, sl_model_config *c, sl_err *err);

typedef struct sl_synthetic_opts {
    int32_t ranks; /* of the simulated expert parallelism; divides the routed experts; 1 in a real group */
    uint64_t seed;
    bool drawn; /* replaces the router's choices also where no group is simulated; other ones on every rank */
} sl_synthetic_opts;

/* As sl_model_load(). A config without quantisation gets BF16 weights. Otherwise weights are fp8 with block scales
 * where the published checkpoints have them, and bf16 elsewhere and for kv_b, which absorption reads as bf16. The same
 * seed gives the same bits on every backend. */
sl_status sl_model_synthetic(sl_backend *be, const sl_model_config *cfg, const sl_model_opts *opts,
                             const sl_synthetic_opts *synth, sl_model **out, sl_err *err);
/* Bytes of the memory for weights that sl_model_synthetic() would take; makes nothing and needs no backend. The rank and
 * the ranks are those of opts, without opts->comm. Errors as sl_model_synthetic(). */
sl_status sl_synthetic_bytes(const sl_model_config *cfg, const sl_model_opts *opts,
                             const sl_synthetic_opts *synth, uint64_t *out, sl_err *err);

#endif
