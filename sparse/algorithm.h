/*
 * Sparse algorithm: the seam between the coordinator and a way of choosing which cached tokens a query
 * attends to.
 *
 * An algorithm is one const table: what it is (granularity, list scope, action, metadata), what it may be
 * combined with, and its functions. It chooses; it does not own rows, residency, sinks, recent window, dense
 * layers or the length gate: those are the coordinator's (sparse/sparse.h) and the swap-in manager's
 * (sparse/swapin.h), the same for every algorithm.
 *
 * Everything a function does is enqueued on the backend's stream; no function may wait for the device or
 * allocate, except create. Selection must be deterministic and *token-independent*: a token's list depends on
 * its query and its sequence's cache alone, never on the batch. The conformance suite
 * (tests/unit/sparse/test_conformance.c) runs against every registered algorithm. How to add one:
 * docs/sparse-algorithms.md.
 *
 * Threads: an instance belongs to its coordinator's thread.
 */
#ifndef SL_SPARSE_ALGORITHM_H
#define SL_SPARSE_ALGORITHM_H

#include "kernels/attn.h"

typedef enum { SL_GRAIN_TOKEN, SL_GRAIN_PAGE } sl_grain; /* unit of a list */
typedef enum {
    SL_SCOPE_REQUEST,
    SL_SCOPE_KV_HEAD,
    SL_SCOPE_QUERY_HEAD
} sl_list_scope; /* who shares one list */
typedef enum {
    SL_ACTION_VISIBILITY, /* the cache stays whole; a query sees part of it */
    SL_ACTION_EVICT,      /* tokens are dropped for good */
    SL_ACTION_KERNEL,     /* the attention kernel skips by itself; there are no lists */
} sl_algo_action;

/* Dimensions an algorithm is created for. */
typedef struct sl_algo_dims {
    int32_t n_layers, max_step_tokens, max_context;
    int32_t index_dim, index_heads, index_topk; /* 0 where the model has no indexer */
    sl_index_format index_format;
    int64_t workspace_bytes; /* most device memory for scores */
} sl_algo_dims;

/* Where one layer's metadata lives: in the planes of the host pages and, mirrored, on the device. */
typedef struct sl_algo_plane {
    uint8_t *device; /* page p at device + p * device_stride */
    int64_t device_stride;
    sl_host_plane host; /* base NULL: no host copy is kept */
} sl_algo_plane;

/* One attention of one layer, as the coordinator sees it. */
typedef struct sl_algo_call {
    const sl_attn_call *attn; /* queries, raw keys, tables, dimensions */
    sl_algo_plane plane;
    int32_t max_pos;                    /* largest position of the step */
    int32_t k;                          /* most ids of a list in this step: min(width, max_pos + 1) */
    int32_t sinks, recent, dense_below; /* gates, for the algorithm's selection op (sl_topk_params) */
} sl_algo_call;

/* The tables of tokens first .. first+count-1 alone; the arrays stay where they are. */
static inline sl_seq_tables sl_seq_tables_slice(const sl_seq_tables *t, int32_t first, int32_t count)
{
    sl_seq_tables s = *t;
    s.n_tokens = count;
    s.token_seq += first;
    s.token_pos += first;
    return s;
}

typedef struct sl_algo sl_algo; /* an instance; its struct begins with `const sl_algo_desc *desc` */

typedef struct sl_algo_desc {
    const char *name, *description;
    sl_grain grain;
    sl_list_scope scope;
    sl_algo_action action;
    bool needs_indexer;                                 /* the model must have index keys */
    bool prefix_reuse, chunked_prefill, disaggregation; /* what it may be combined with */

    /* Required. Bytes of metadata per page of 64 tokens and layer (0: none). They live in the page's index
     * plane; the model's own index keys count when the algorithm reads them. */
    int64_t (*page_bytes)(const sl_algo_dims *dims);
    /* Required. Longest list it can return, in tokens, gates included, at most max_context. Hierarchical
     * sequences need as many hot rows. */
    int32_t (*width)(const sl_algo_dims *dims, int32_t dense_below);
    /* Required. Device bytes an instance takes (scores and the like), within dims->workspace_bytes where it
     * can choose. */
    uint64_t (*device_bytes)(const sl_algo_dims *dims);
    /* Required. */
    sl_status (*create)(sl_backend *be, const sl_algo_dims *dims, sl_algo **out, sl_err *err);
    void (*destroy)(sl_algo *a);
    /*
     * Metadata of pages whose rows exist already (a prefix hit, pages that came from another worker): makes
     * the device's copy for one layer. n pages; host_pages and device_pages are host arrays. NULL: nothing to
     * do.
     */
    sl_status (*construct)(sl_algo *a, const sl_algo_plane *plane, const int32_t *host_pages,
                           const int32_t *device_pages, int32_t n, sl_err *err);
    /* Metadata of this step's new tokens, before retrieve. NULL: nothing to do. The model's own index keys
     * are captured by the coordinator whatever the algorithm is, so that pages stay whole. */
    sl_status (*update)(sl_algo *a, const sl_algo_call *call, sl_err *err);
    /*
     * Required. Logical ids of tokens first .. first+count-1 of the step: ids[count][call->k], row 0 belongs
     * to token `first`; ascending, -1 padded, each in 0..pos.
     */
    sl_status (*retrieve)(sl_algo *a, const sl_algo_call *call, int32_t first, int32_t count, int32_t *ids,
                          sl_err *err);
} sl_algo_desc;

struct sl_algo {
    const sl_algo_desc *desc;
};

extern const sl_algo_desc sl_algo_dsa;
extern const sl_algo_desc sl_algo_dense;

/* The registry: every algorithm of this build, NULL-terminated; and the same as names. */
const sl_algo_desc *const *sl_algo_registry(void);
const char *const *sl_algo_names(void);
/* NULL: no algorithm has this name. */
const sl_algo_desc *sl_algo_find(const char *name);

#endif
