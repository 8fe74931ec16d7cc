/*
 * The call by which a model passes one layer's attention to the owner of the cache (the sparse coordinator).
 *
 * The model has run the projections and fills what it knows: queries, raw rows, raw index keys, dimensions, norms.
 * What depends on the kind of attention is in the member of that kind. The receiver fills in where the cache is,
 * appends the new rows and keys, selects, swaps in, attends, and leaves the result where the member of the kind
 * says. Everything is enqueued on the backend's stream; buffers are valid until the model's forward pass has
 * completed.
 */
#ifndef SL_KERNELS_ATTN_H
#define SL_KERNELS_ATTN_H

#include "kernels/backend.h"
#include "kernels/cache.h"
#include "kernels/gqa.h"
#include "kernels/pooled.h"

/* SL_ATTN_MLA: absorbed queries over latent rows; the result goes to attn.o. */
typedef struct sl_attn_mla {
    sl_kv_append_params kv;     /* seqs, rows and host left for the receiver */
    sl_sparse_attn_params attn; /* phys, rows, k and ld_ids left for the receiver */
} sl_attn_mla;

/* SL_ATTN_GQA: queries over rows with keys and values of all KV heads; the result goes to attn.out. */
typedef struct sl_attn_gqa {
    sl_gqa_append_params kv; /* seqs, rows and host left for the receiver */
    sl_gqa_attn_params attn; /* phys, rows, k and ld_ids left for the receiver */
} sl_attn_gqa;

/*
 * What the model's indexer gives for one layer. A layer without an indexer fills heads, dim, topk and format only.
 */
typedef struct sl_attn_index {
    sl_index_append_params key; /* seqs, index_base, index_page_stride and host left for the receiver */
    const void *q;              /* [T][heads][dim], output of SL_OP_INDEX_QUERY */
    const float *weights;       /* [T][heads] */
    int32_t heads, dim, topk;
    sl_index_format format;
    /* With unit > 0 a key is that of this number of tokens: `pool` takes the place of `key` (seqs, base, page_stride and host left
     * for the receiver), weights may be NULL, and scores are multiplied by `scale` (kernels/pooled.h). */
    int32_t unit;
    sl_pool_append_params pool;
    float scale;
} sl_attn_index;

typedef struct sl_attn_call {
    sl_attn_kind kind; /* which member of the union is filled */
    int32_t layer;
    bool has_indexer;          /* false: a shared layer, reuse the selection of the last layer that had one */
    bool rows_only;            /* the new rows and keys are appended, and that is all: there are no queries */
    const sl_seq_tables *seqs; /* as passed to the forward pass */
    union {
        sl_attn_mla mla;
        sl_attn_gqa gqa;
    };
    sl_attn_index index;
    /*
     * Several passes of one layer, one token of each sequence in each, at positions one after the other: a list is shared by them.
     * again 0: an ordinary call, after which up to `later` calls with again = 1, 2, .. may follow, whose sequences are the first ones of
     * this call in the same order. again k: the indexer has not run; the list is the best by the scores of the first of these calls, with
     * the newest k tokens in any case.
     */
    int32_t again, later;
    /* NULL: the queries exist already (for MLA: attn.ql). Otherwise the receiver calls it once, before
     * SL_OP_SPARSE_ATTN, at the place on the stream that it chooses. It is set exactly where the receiver requested
     * it (sl_attend_seam.late). */
    sl_status (*queries)(void *ctx, sl_err *err);
    void *queries_ctx;
} sl_attn_call;

typedef sl_status (*sl_attend_fn)(void *ctx, const sl_attn_call *call, sl_err *err);

/*
 * What a layer keeps that is not rows of tokens (sl_layer_class of kernels/cache.h), for the ops of its family to read and
 * write. State: the slot of sequence s (a number of seqs->token_seq) is at state + s * state_stride, zero before the first token;
 * what lies in a slot says shape, and sl_layer_part() gives a part.
 * Planes of a class of kind BLOCKS, in their order: on the device by seqs->index_pages, and in the host pages by
 * seqs->host_pages; the ops write both. Addresses stay the same for the life of the owner.
 */
typedef struct sl_layer_plane {
    uint8_t *device; /* page p at device + p * device_stride, its units one after the other */
    int64_t device_stride;
    sl_host_plane host;
    /* Where tokens may be taken back (seqs->turns), and the plane has a value of the open unit: before a token changes its
     * segment, that goes to open + s * state_stride + k * turns->stride for the version k of the token. Else NULL. */
    uint8_t *open;
    /* base not NULL: a unit is a row of this view, in place of a unit of a device page. Those of hierarchical sequences are swapped
     * in: the ops append to the tail, and read rows that sl_attend_seam.fetch has resolved. */
    sl_row_view rows;
} sl_layer_plane;

typedef struct sl_layer_memory {
    uint8_t *state; /* NULL: the layer has none, or it is not known yet */
    int64_t state_stride;
    const sl_layer_state *shape; /* not NULL with a state */
    int32_t n_planes;
    sl_layer_plane planes[SL_CLASS_PLANES];
} sl_layer_memory;

/* Part i of the state of sequence 0; NULL without a state. */
static inline uint8_t *sl_layer_part(const sl_layer_memory *m, int32_t i)
{
    return m->state ? m->state + sl_layer_state_at(m->shape, i) : NULL;
}

typedef sl_status (*sl_memory_fn)(void *ctx, int32_t layer, sl_layer_memory *out, sl_err *err);

/* Of a layer whose first plane has `rows`: the units ids[T][k] of the step's tokens (ascending, -1 padded) come to the device; *phys
 * is where each is, device memory of the same shape, until the next call. Once for each layer of a step, after its units were
 * appended. */
typedef sl_status (*sl_fetch_fn)(void *ctx, int32_t layer, const sl_seq_tables *seqs, const int32_t *ids,
                                 const int32_t **phys, sl_err *err);

/*
 * The receiver of the calls as the model sees it, for one forward pass. The owner of the cache provides it, and it
 * alone decides which layers are late: a late layer's queries are made by the receiver, while rows are being
 * fetched. The model reads the flag before it launches the layer's projections.
 */
typedef struct sl_attend_seam {
    sl_attend_fn attend;
    void *ctx;
    const bool *late; /* [n_layers], valid until the pass has been enqueued; NULL: no layer is late */
    sl_memory_fn
        memory; /* of layers that keep more than rows, or something else; NULL: the owner keeps rows alone */
    sl_fetch_fn fetch; /* with memory */
} sl_attend_seam;

#endif
