/*
 * Inside model/: what a loaded model is made of.
 */
#ifndef SL_MODEL_MODEL_IMPL_H
#define SL_MODEL_MODEL_IMPL_H

#include "model/weights.h"

/*
 * Buffers of a forward pass, carved out of one device block when the model is loaded; T = max_tokens. "act"
 * is the activations' dtype.
 */
typedef struct sl_workspace {
    void *x;              /* [T][hidden] act, the residual stream */
    void *h;              /* [T][hidden] act, normalised */
    void *delta;          /* [T][hidden] act, what a block adds to x */
    void *extra;          /* [T][hidden] act, the shared experts' share of delta */
    void *q_a;            /* [T][q_lora] act */
    void *q_r;            /* [T][q_lora] act, normalised */
    void *q;              /* [T][heads][nope + rope] act */
    void *kv;             /* [T][lora + rope] act */
    float *ql;            /* [T][heads][lora + rope] */
    float *o;             /* [T][heads][lora] */
    void *attn;           /* [T][heads][v] act */
    void *index_k;        /* [T][index_dim] act */
    void *index_q;        /* [T][index_heads][index_dim] act */
    void *index_q_out;    /* the same, f32 or e4m3 */
    float *index_proj;    /* [T][index_heads] */
    float *index_weights; /* [T][index_heads] */
    void *gate_up;        /* [T][2 * inter] act */
    void *inter;          /* [T][inter] act; inter = the wider of dense and shared MLP */
    float *router;        /* [T][experts] */
    int32_t *expert_ids;  /* [T][top_k] */
    float *expert_weights;
    void *moe;
    size_t moe_bytes;
    void *picked, *picked_norm; /* [max_logit_rows][hidden] act */
    void *block;
    size_t bytes;
} sl_workspace;

struct sl_model {
    sl_backend *be;
    sl_model_config config; /* max_context and fp8_acts as effective */
    sl_model_opts opts;
    const sl_family *family;
    sl_checkpoint *ck;
    sl_weights weights;
    sl_workspace ws;
    float *cos_sin; /* device [max_context][rope / 2][2] */
    sl_key fingerprint;
    int32_t local_experts; /* made-up models: experts of this rank, chosen at random; 0: all, as routed */
};

/* model/model.c: what follows the weights: rope tables, workspace, and whether the backend can run it all. */
sl_status sl_model_finish(sl_model *m, sl_err *err);

/* model/workspace.c */
sl_status sl_workspace_create(sl_backend *be, const sl_model_config *c, const sl_model_opts *o,
                              sl_workspace *out, sl_err *err);
void sl_workspace_free(sl_backend *be, sl_workspace *ws);

/* model/forward.c: whether the backend can run every op of a forward pass of this model; SL_ERR_UNSUPPORTED
 * says which not. */
sl_status sl_model_ask(sl_model *m, sl_err *err);

/* model/fingerprint.c: reads a sample of every tensor's bytes. */
sl_key sl_fingerprint(sl_checkpoint *ck, const sl_model_config *c, const sl_model_opts *o);

#endif
