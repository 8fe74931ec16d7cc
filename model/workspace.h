/*
 * Inside model/: the buffers of a forward pass, taken from one device block when the model is loaded.
 *
 * The shared steps (steps.h) use the buffers that are named here; a family adds its own. Ownership: the model owns the
 * block until it is destroyed. Threads: one at a time, like the model.
 */
#ifndef SL_MODEL_WORKSPACE_H
#define SL_MODEL_WORKSPACE_H

#include "model/family.h"

enum { SL_DRAFT_SLICE = 512 };

/* The least number of values, at least dim, that takes whole lines of SL_ROW_ALIGN bytes: the width of a part of a row that
 * ops get as a matrix of its own, because it begins at a line then (kernels/check.h). */
int32_t sl_workspace_part(int32_t dim, sl_dtype act);

/* T = max_tokens; "act" is the activations' dtype. */
typedef struct sl_workspace {
    void *x;             /* [T][hidden] act, the residual stream */
    void *h;             /* [T][hidden] act, normalised */
    void *delta;         /* [T][hidden] act, what a block adds to x */
    void *extra;         /* [T][hidden] act, the shared experts' part of delta */
    void *gate_up;       /* [T][2 * sl_workspace_part(inter)] act: gate, then up */
    void *inter;         /* [T][inter] act; inter = the wider of dense and shared MLP */
    float *router;       /* [T][experts] */
    int32_t *expert_ids; /* [T][top_k] */
    float *expert_weights;
    void *moe;
    size_t moe_bytes;
    /* Of a model in a group of R ranks (kernels/ep.h), else NULL. Rows: [R][T]; results: [R][T * top_k]. */
    void *ep_send, *ep_recv, *ep_results, *ep_back;
    int32_t *ep_counts[4];      /* [R] each: rows sent, rows received, results sent, results received */
    void *picked, *picked_norm; /* [max_logit_rows][hidden] act */
    /* Of a model with an MTP layer, else NULL; S = SL_DRAFT_SLICE tokens, which are joined at a time. */
    void *draft_raw;      /* [S][hidden] act */
    void *draft_parts;    /* [2 * S][hidden] act: normalised embeddings, then normalised hidden states */
    void *draft_joined;   /* [S][2 * hidden] act: both of a token next to each other */
    int32_t *draft_order; /* [2 * S]: the rows of draft_parts in that order */
    void *own;            /* the family's struct (sl_family.workspace), host memory; NULL when it has none */
    void *block;
    size_t bytes;
} sl_workspace;

/* Takes the buffers of both exchanges of a group, if there are several ranks and routed experts. Rows that travel
 * unquantised are the larger ones, so they size the buffers. */
void sl_workspace_exchange(const sl_model_config *c, sl_dtype act, int32_t max_tokens, int32_t ranks,
                           sl_carve *k, sl_workspace *w);
/* Those of them in which rows and results of other ranks arrive: ep_recv and ep_back. */
void sl_workspace_arrivals(const sl_model_config *c, sl_dtype act, int32_t max_tokens, int32_t ranks,
                           sl_carve *k, sl_workspace *w);
/* On failure *out needs no freeing. */
sl_status sl_workspace_create(sl_backend *be, const sl_family *f, const sl_model_config *c,
                              const sl_model_opts *o, sl_workspace *out, sl_err *err);
/* A zeroed struct is allowed. */
void sl_workspace_free(sl_backend *be, sl_workspace *ws);

#endif
