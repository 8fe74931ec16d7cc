/*
 * Inside model/: what a loaded model is made of.
 */
#ifndef SL_MODEL_MODEL_IMPL_H
#define SL_MODEL_MODEL_IMPL_H

#include "kernels/ep.h"
#include "model/weights.h"
#include "model/workspace.h"

struct sl_model {
    sl_backend *be;
    sl_model_config config; /* max_context and fp8_acts as effective */
    sl_model_opts opts;
    const sl_family *family;
    sl_checkpoint *ck;
    sl_weights weights;
    sl_workspace ws;
    float *cos_sin;   /* device [max_context][rope / 2][2] */
    float *cos_sin_2; /* the same of sl_entries_config.rope, or NULL */
    sl_key fingerprint;
    /* Synthetic models: the number of experts that this rank has; tokens choose among them at random. 0: all experts,
     * chosen by the router. */
    int32_t local_experts;
    bool drawn_experts; /* synthetic models: tokens choose among all experts at random */
    sl_ep_load expert_load;
    /* Where rows and results of other ranks arrive: in memory of the group `arrives_of`, or in the workspace. */
    void *arrive_rows, *arrive_results;
    sl_comm *arrives_of;
};

/* model/finish.c: whether the options are possible, and the rank among them; what follows the weights: rope tables, workspace, and
 * whether the backend can run it all. */
sl_status sl_model_check_opts(const sl_model_opts *o, sl_err *err);
sl_status sl_model_check_rank(const sl_model_opts *o, sl_err *err);
sl_status sl_model_finish(sl_model *m, sl_err *err);

/* model/forward.c: whether the backend can run every op of a forward pass of this model; SL_ERR_UNSUPPORTED
 * says which not. */
sl_status sl_model_ask(sl_model *m, sl_err *err);

/* model/fingerprint.c: the fingerprint; reads a sample of every tensor's bytes. */
sl_key sl_fingerprint(sl_checkpoint *ck, const sl_model_config *c, const sl_model_opts *o);

/* The fingerprint of a model with the random weights of this seed; the config as the file has it. */
sl_key sl_fingerprint_dummy(const sl_model_config *c, const sl_model_opts *o, uint64_t seed);

/* The routed experts from `first` to `end` - 1, and everything that is not a routed expert. */
typedef struct sl_share_of_experts {
    int32_t first, end;
} sl_share_of_experts;

/* The prints of n >= 1 shares: samples are read of the tensors of these shares only. */
void sl_fingerprints(sl_checkpoint *ck, const sl_model_config *c, const sl_model_opts *o,
                     const sl_share_of_experts *shares, int32_t n, sl_key *out);

#endif
