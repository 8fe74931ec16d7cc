/*
 * Inside model/: the state of a forward pass while its ops are enqueued, and the steps of which families compose it.
 *
 * A step enqueues ops on the model's backend; nothing has run when it returns. The residual stream is ws->x. A block
 * writes its contribution to ws->delta and sets `pending`; the next norm of the stream adds it, so that x is read and
 * written once per block. Threads: one at a time, like the model. Errors: those of the backend, with the
 * op's name in p->err.
 */
#ifndef SL_MODEL_STEPS_H
#define SL_MODEL_STEPS_H

#include "model/model_impl.h"

struct sl_pass {
    sl_model *m;
    const sl_forward *f;
    const sl_model_config *c;
    sl_workspace *ws;
    const sl_layer_weights *lw; /* of the current layer */
    sl_dtype act;
    int32_t tokens, layer;
    bool pending;   /* ws->delta is not yet added to ws->x */
    bool rows_only; /* of the layer, only its rows and index keys are made */
    bool dry;       /* ask whether the ops are supported instead of running them */
    sl_err *err;
};

/* Whether the owner of the cache makes the current layer's queries (sl_attend_seam): the layer leaves them to
 * sl_attn_call.queries. */
static inline bool sl_pass_is_late(const sl_pass *p)
{
    return p->f->seam.late && p->f->seam.late[p->layer];
}

/* Whether the current layer runs its own indexer in this pass. */
static inline bool sl_pass_indexes(const sl_pass *p)
{
    return p->c->layer_has_indexer[p->layer] && !(p->f->draft && p->f->draft->again > 0);
}

/* Enqueues one op. */
sl_status sl_pass_run(const sl_pass *p, sl_op op, const void *params);

/* The parameters of a linear layer with rows of ld_x and ld_out values. */
sl_linear_params sl_pass_linear_params(const sl_pass *p, const void *x, int32_t ld_x, const sl_weight *w,
                                       void *out, int32_t ld_out, sl_dtype out_dtype);
/* The same for dense rows; `next` is the next linear layer of a chain which reads the same x, or NULL. */
sl_linear_params sl_pass_chain(const sl_pass *p, const void *x, const sl_weight *w, void *out,
                               const sl_linear_params *next);
sl_linear_params sl_pass_chain_as(const sl_pass *p, const void *x, const sl_weight *w, void *out,
                                  sl_dtype out_dtype, const sl_linear_params *next);
sl_status sl_pass_linear_as(const sl_pass *p, const void *x, int32_t ld_x, const sl_weight *w, void *out,
                            int32_t ld_out, sl_dtype out_dtype);
/* out = x * w, rows dense, in the activations' dtype. */
sl_status sl_pass_linear(const sl_pass *p, const void *x, const sl_weight *w, void *out);

/* Adds y [T][hidden_size] to the parallel residual streams [T][C][hidden_size], as SL_OP_STREAMS_ADD does (kernels/streams.h): comb
 * mixes the streams first, post has a gate for each. NULL: they are not mixed, or every one gets y as it is. Nothing is pending
 * afterwards. */
sl_status sl_pass_streams_add(sl_pass *p, void *streams, const void *y, const float *post, const float *comb);
/* ws->x [T][hidden_size] from the streams, as SL_OP_STREAMS_OUT does, with the coefficients that fn[0] makes of a
 * token's streams; fn[1] and fn[2] are their base and scale. mix [T][fn->out]: scratch. post, comb: the gates and the
 * matrix of what follows the block; NULL: there are none. */
sl_status sl_pass_streams_out(const sl_pass *p, const void *streams, const sl_weight *fn, float *mix,
                              float *post, float *comb);
/* x += add (unless NULL); out = rmsnorm(x) * w, rows of w->out values. */
sl_status sl_pass_norm(const sl_pass *p, void *x, const void *add, const sl_weight *w, float eps,
                       int32_t tokens, void *out);

/* Before the first layer: x = the rows of the embedding table. */
sl_status sl_pass_embed(sl_pass *p);
/* The two halves of a gated MLP of h, the dense block or the shared experts: gate and up; then their product and down,
 * to `out`. */
sl_status sl_pass_mlp_in(sl_pass *p);
sl_status sl_pass_mlp_out(sl_pass *p, void *out);
/* The routed experts of the current layer, which the ranks of a group share: delta of this rank's tokens, which may be
 * none, from h and the choices of the router; and the layer's shared experts, to ws->extra. experts_group.c */
sl_status sl_pass_group_experts(sl_pass *p);
/* Takes memory of the group for what other ranks send, once for every group; all ranks call it in their first pass, which
 * is in no capture. Where there is none, rows arrive in the workspace. experts_group.c */
sl_status sl_model_arrivals(sl_model *m, sl_err *err);

/* What the current layer keeps besides rows of tokens (sl_attend_seam.memory); while ops are only asked about, no memory and the
 * largest distance of states. */
sl_status sl_pass_memory(const sl_pass *p, sl_layer_memory *out);

/* The steps of layer p->layer. forward.c */
sl_status sl_pass_layer(sl_pass *p);

/* draft.c: the MTP layer (sl_draft_pass). Before the pass: hidden states that must outlive it are moved. After the last
 * layer of the model: the hidden states of the tokens are kept, and when the head has run, the layer's rows are made. */
sl_status sl_pass_keep_hidden(sl_pass *p);
sl_status sl_pass_hidden(sl_pass *p);
sl_status sl_pass_draft_rows(sl_pass *p);
/* A pass of this layer alone, to its logits. */
sl_status sl_pass_draft(sl_pass *p);

/* Steps of a layer, for a family's list: */
sl_status sl_step_input_norm(sl_pass *p); /* x += pending delta; h = rmsnorm(x) with SL_T_INPUT_NORM */
sl_status sl_step_post_norm(sl_pass *p);  /* the same with SL_T_POST_NORM */
sl_status sl_step_mlp(sl_pass *p);     /* delta = the gated MLP (SiLU) of h: SL_T_GATE, SL_T_UP, SL_T_DOWN */
sl_status sl_step_experts(sl_pass *p); /* delta = the routed experts of h: SL_T_ROUTER, SL_T_ROUTER_BIAS */
sl_status sl_step_shared(sl_pass *p); /* delta += the shared experts (the gated MLP) of h; after the former */

#endif
