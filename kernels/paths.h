/*
 * Which kernel of the CUDA backend runs an op: one function per op that has several. They are plain C over the op's
 * parameters and what the GPU can do, so that anybody can ask them (sl_op_path): the backend before it launches, the log at
 * start, the documentation (docs/kernels.md), and tests on a machine without a GPU.
 *
 * A path is chosen by types and shapes. It may depend on the number of tokens only where the paths add in the same order,
 * because the bits of a token must not depend on the other tokens; sl_path.order says which paths do. It never depends on
 * where memory lies: what a path needs of addresses is a requirement of sl_op_check().
 *
 * Paths ask for features of a GPU, not for its number. Kernels with warpgroup products exist for compute capability 9.0
 * alone; what they compute has the bits of that architecture.
 */
#ifndef SL_KERNELS_PATHS_H
#define SL_KERNELS_PATHS_H

#include "kernels/ops.h"

#include "kernels/params.h"
#include "kernels/bounds.h"
#include "kernels/clusters.h"
#include "kernels/entries.h"
#include "kernels/ep.h"
#include "kernels/gqa.h"
#include "kernels/pooled.h"

/* What paths ask of a GPU, and how many multiprocessors work on the side stream gets. */
typedef struct sl_gpu {
    int cc;         /* 10 * major + minor */
    int sms;        /* multiprocessors */
    size_t smem;    /* most shared memory of a block */
    bool wgmma;     /* products of warpgroups */
    bool bulk;      /* clusters, and copies of tensors and lines by the copy engine */
    bool early;     /* a kernel may begin before the previous one ends */
    int gather_sms; /* of a gather that runs concurrently with an attention */
    int side_sms;   /* of a gather on the side stream; even, because its clusters have two blocks */
    int exchange_sms, exchange_sms_large; /* of an exchange there; of one of large blocks */
} sl_gpu;
sl_gpu sl_gpu_of(int cc, int sms, size_t smem);

typedef struct sl_path {
    const char *name;
    bool plain;         /* computes every shape, and is not meant to be fast */
    int order;          /* paths of an op with the same number give the same bits */
    const char *shapes; /* what it is for, for the documentation */
} sl_path;

typedef enum {
    SL_LINEAR_FEW,
    SL_LINEAR_MANY,
    SL_LINEAR_ONE_CHAIN,
    SL_LINEAR_LIBRARY,
    SL_LINEAR_SCALED,
    SL_LINEAR_NARROW,
    SL_LINEAR_PLAIN
} sl_linear_path;
typedef enum { SL_ABSORB_LIBRARY, SL_ABSORB_PLAIN } sl_absorb_path;
typedef enum { SL_NORM_WIDE, SL_NORM_PLAIN } sl_norm_path;
typedef enum { SL_MOE_FEW, SL_MOE_GROUPED, SL_MOE_GROUPED_BF16, SL_MOE_HALF, SL_MOE_PLAIN } sl_moe_path;
typedef enum { SL_ATTN_TENSOR, SL_ATTN_PLAIN } sl_attn_path;
typedef enum { SL_RING_TENSOR, SL_RING_PLAIN } sl_ring_path;
typedef enum { SL_GQA_DECODE, SL_GQA_PROMPT, SL_GQA_PLAIN } sl_gqa_path;
typedef enum { SL_SCORES_TENSOR, SL_SCORES_PLAIN } sl_scores_path;
typedef enum { SL_KEYS_TILED, SL_KEYS_PLAIN } sl_keys_path;
typedef enum { SL_QUERY_LANES, SL_QUERY_PLAIN } sl_query_path;
typedef enum { SL_ROUTE_256, SL_ROUTE_PLAIN } sl_route_path;
typedef enum { SL_PROMPT_SCORES_TENSOR, SL_PROMPT_SCORES_PLAIN } sl_prompt_scores_path;

/* The table of an op's paths, by its enumeration; *n of them. NULL: the op has one kernel. */
const sl_path *sl_op_paths(sl_op op, int *n);
/* The path of a call, or NULL. Pure; the parameters have passed sl_op_check_shape(). */
const sl_path *sl_op_path(const sl_gpu *g, sl_op op, const void *params);

sl_linear_path sl_path_linear(const sl_gpu *g, const sl_linear_params *p);
sl_absorb_path sl_path_q_absorb(const sl_q_absorb_params *p);
sl_absorb_path sl_path_v_up(const sl_v_up_params *p);
sl_norm_path sl_path_rmsnorm(const sl_rmsnorm_params *p);
/* rows: tokens, or of rows that arrived from other ranks a block of them; quantised: their values are e4m3, or will be. */
sl_moe_path sl_path_moe(const sl_gpu *g, const sl_moe_params *p, int64_t rows, bool quantised);
/* What SL_OP_MOE would be asked for the rows that arrived, without their memory: tokens are all places of rows. And its path, which
 * follows from the rows of one rank. */
sl_moe_params sl_ep_experts_as_moe(const sl_ep_experts_params *e);
sl_moe_path sl_path_ep_experts(const sl_gpu *g, const sl_ep_experts_params *e);
sl_attn_path sl_path_sparse_attn(const sl_gpu *g, const sl_sparse_attn_params *p);
sl_ring_path sl_path_ring_attn(const sl_gpu *g, const sl_ring_attn_params *p);
sl_gqa_path sl_path_gqa_attn(const sl_gpu *g, const sl_gqa_attn_params *p);
sl_prompt_scores_path sl_path_prompt_scores(const sl_gpu *g, const sl_prompt_scores_params *p);
sl_keys_path sl_path_pool_scores(const sl_pool_scores_params *p);
sl_keys_path sl_path_entry_scores(const sl_entry_scores_params *p);
sl_scores_path sl_path_index_scores(const sl_gpu *g, const sl_index_scores_params *p);
sl_query_path sl_path_index_query(const sl_index_query_params *p);
sl_route_path sl_path_moe_route(const sl_moe_route_params *p);

/*
 * How a linear weight is summed. k is cut into ranges that are added in order; their number follows from the weight's
 * shape alone. The limit on the blocks of a launch is a constant and not the device's, because it decides bits.
 */
enum {
    SL_LINEAR_GROUP = 128,
    SL_LINEAR_FEW_TOKENS = 256,
    SL_LINEAR_SCALES = 64,
    SL_LINEAR_NARROW_MOST = 256
};
int sl_linear_ranges(const sl_weight *w);

enum { SL_MOE_MOST_EXPERTS = 1024, SL_GQA_MOST_GROUP = 16 };
enum { SL_PROMPT_SCORES_SMEM = 96 << 10 }; /* shared memory of the kernel on tensor cores */
/* fp8: from this average number of pairs per expert on, the grouped path is faster than the stream. */
#ifndef SL_MOE_GROUPED_ROWS
#define SL_MOE_GROUPED_ROWS 24
#endif

#endif
