/*
 * Internals of the CUDA backend: the instance, error translation, and one entry point per op. Only kernels/cuda
 * includes it; no CUDA type is visible outside of this folder. It compiles as C and as CUDA C++.
 *
 * Every CUDA call goes through SL_CU(), which turns a cudaError_t into a status with the text of the call. Failures
 * that kernels find in their data are ORed to `deverr` (SL_DEVERR_*) and reported by the next sync.
 */
#ifndef SL_KERNELS_CUDA_IMPL_H
#define SL_KERNELS_CUDA_IMPL_H

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#ifdef __cplusplus
#define _Noreturn [[noreturn]]
extern "C" {
#endif

#include "kernels/backend_impl.h"
#include "kernels/paths.h"
#include "kernels/scratch.h"
#include "kernels/sent.h"

/* the ops' parameters; kernels/paths.h has those of attention, clusters, entries, experts and pooled keys */
#include "kernels/blocks.h"
#include "kernels/bounds.h"
#include "kernels/delta.h"
#include "kernels/labels.h"
#include "kernels/ngram.h"
#include "kernels/retained.h"
#include "kernels/streams.h"
#include "kernels/turns.h"
#include "kernels/window.h"

#define SL_CUDA_WORKSPACE ((size_t)32 << 20) /* of cuBLASLt, and for split-K sums of our own kernels */

/* Device words: SL_DEVERR_* of each op, and at SL_OP_COUNT of the collectives; then sl_cuda_counts, and the barrier of
 * resolve's blocks. */
#define SL_CUDA_COUNTS 128
#define SL_CUDA_MEET 160
#define SL_CUDA_WORDS 192
/* Blocks of more bytes than this take gpu.exchange_sms_large on the side stream: then the linear layers are those of many
 * tokens, which leave what an exchange takes, and on few multiprocessors copies would take longer than the link. Not
 * measured. */
#define SL_CUDA_EXCHANGE_LARGE ((uint64_t)32 << 20)

/* The calls of one kind of collective, counted on the device. begun is private to the kernel that runs. */
typedef struct sl_cuda_meter {
    uint64_t calls, ns, bytes, begun;
} sl_cuda_meter;

/*
 * What kernels of this instance count, cumulative. It lies at word SL_CUDA_COUNTS and is read
 * with the errors by each sync, so counting needs no copy and no wait of its own and works in graphs. Kernels that may run
 * concurrently use atomics on it.
 */
typedef struct sl_cuda_counts {
    uint64_t rows, busiest; /* of sl_ep_load */
    uint64_t hidden_ns;     /* of exchanges on the side stream, instead of exchange.ns */
    uint64_t wait_ns;       /* of exchanges: sl_comm_stats.wait_ns */
    sl_cuda_meter gather, exchange;
} sl_cuda_counts;

/*
 * What a group of GPUs (collectives/cuda) has the backend do at a sync: wait for the selected stream, which may never end because
 * another rank does not come; and hand on what the device has counted since `seen`.
 */
typedef struct sl_cuda_group {
    void *ctx;
    sl_status (*wait)(void *ctx, sl_err *err);
    void (*count)(void *ctx, const sl_cuda_counts *now, const sl_cuda_counts *seen);
} sl_cuda_group;

typedef struct sl_cuda_lt sl_cuda_lt; /* cuBLASLt handle and the algorithm chosen for each shape: lt.c */

#ifndef __cplusplus
_Static_assert(sizeof(sl_cuda_counts) <= (SL_CUDA_MEET - SL_CUDA_COUNTS) * 4,
               "the counts fit before the barrier");
_Static_assert(SL_OP_COUNT < SL_CUDA_COUNTS, "every op and the collectives have a word for errors");
#endif

typedef struct sl_cuda {
    sl_backend base; /* first member */
    int device;
    sl_gpu gpu;
    /* Multiprocessors that an op of the main stream may use: all of them, or all except those that a gather on the
     * side stream occupies. */
    int sms;
    cudaStream_t stream; /* the one of the two below that is selected; all work is enqueued on it */
    cudaStream_t main_stream, side_stream;
    int side_pending; /* events recorded on the side stream that the main stream has not waited for yet */
    int side_sms;     /* multiprocessors that its work occupies: gpu.side_sms, or what an exchange has set */
    void *workspace;
    void *
        scratch; /* temporary operands of one op, e.g. quantised x; grows outside captures only, and not once it is planned */
    size_t scratch_bytes,
        stated;     /* what it has; what the op that is being enqueued states (kernels/scratch.h) */
    void **retired; /* scratch blocks that graphs may still use */
    int n_retired, n_graphs;
    /* Device words, see SL_CUDA_COUNTS; the host's copy has those before SL_CUDA_MEET. deverr: the word of the op that is
     * being enqueued. A graph keeps it, so a failure names its op. */
    uint32_t *words, *deverr;
    uint32_t *words_host;
    sl_cuda_counts seen;     /* at the last sync */
    struct sl_ep_load *load; /* where rows and busiest go: that of the last SL_OP_EP_EXPERTS, or NULL */
    sl_cuda_lt *lt;
    sl_sent *tables; /* device copies of the descriptors of experts: tables.c */
    bool capturing;
    void (*encode)(void); /* the driver's function that makes tensor maps: tables.c */
    cudaEvent_t *marks;   /* of the profile */
    int32_t n_marks;
    sl_op op;                   /* that is being enqueued, or was last; SL_OP_COUNT: a collective */
    const sl_cuda_group *group; /* the group of GPUs that this backend is in, or NULL: collectives/cuda */
} sl_cuda;

static inline sl_cuda *sl_cuda_of(sl_backend *be)
{
    return (sl_cuda *)be;
}

/* The counts in device memory. */
static inline sl_cuda_counts *sl_cuda_counts_of(const sl_cuda *cu)
{
    return (sl_cuda_counts *)(void *)(cu->words + SL_CUDA_COUNTS);
}

/* Status and text for a failed call; SL_OK for cudaSuccess. "Out of memory" is SL_ERR_DEVICE_MEMORY. */
sl_status sl_cuda_status(cudaError_t e, const char *what, sl_err *err);
#define SL_CU(call, err) sl_cuda_status((call), #call, (err))

/* At least `bytes` of scratch, 256-byte aligned, contents undefined; valid until the next op. It fails if these are more than the op
 * states, and during a capture if scratch would have to grow. */
sl_status sl_cuda_scratch(sl_cuda *cu, size_t bytes, void **out, sl_err *err);

/* The backend's stamp slot: see sl_be_stamp(). gather.cu */
sl_status sl_cuda_stamp(sl_backend *be, uint64_t *at, sl_err *err);

/*
 * Device copy of the present contents of a host array of n weight descriptors. It is kept per host address and sent
 * again when the contents have changed. Sending needs a sync, so it fails inside a capture: run a step once before you
 * capture it.
 */
sl_status sl_cuda_table(sl_cuda *cu, const sl_weight *host, int n, const sl_weight **out, sl_err *err);

sl_status sl_cuda_lt_create(sl_cuda *cu, sl_cuda_lt **out, sl_err *err);
void sl_cuda_lt_destroy(sl_cuda_lt *lt);

/*
 * One (batched) matrix product through cuBLASLt, column-major as in that library: D[m][n] = op(A) * B, with m =
 * outputs, n = tokens, k = inputs. Types: bf16 x bf16 -> bf16 | f32, f32 x f32 -> f32 (no TF32), e4m3 x e4m3 with
 * block scales -> bf16. Algorithms that split k are excluded: the sum of an element must not depend on the number of
 * tokens.
 */
typedef struct sl_cuda_gemm {
    const void *a, *b;
    void *d;
    const float *a_scale, *b_scale; /* e4m3 only: [ceil(m/128)][ceil(k/128)] and [k/128][n] */
    int64_t lda, ldb, ldd, stride_a, stride_b, stride_d; /* elements */
    int32_t m, n, k, batch;
    bool a_transposed; /* the k values of one output of a are contiguous: the [out][in] layout */
    sl_dtype in, out;
} sl_cuda_gemm;
sl_status sl_cuda_gemm_run(sl_cuda *cu, const sl_cuda_gemm *g, sl_err *err);
/* Whether the library has such an algorithm for this weight: a, m, k, types and batch of g. It does not depend on the
 * number of tokens, and the first answer holds for as long as the instance exists. */
bool sl_cuda_gemm_offered(sl_cuda *cu, const sl_cuda_gemm *g);

/* The tensor core paths of kernels/paths.h. */
sl_status sl_cuda_attn_mla(sl_cuda *cu, const sl_sparse_attn_params *p, sl_err *err); /* tokens <= 65535 */
/* Of which sl_path_ring_attn() gives SL_RING_TENSOR. */
sl_status sl_cuda_attn_ring(sl_cuda *cu, const struct sl_ring_attn_params *p, sl_err *err);
/* token_count <= 65535 */
sl_status sl_cuda_scores_mma(sl_cuda *cu, const sl_index_scores_params *p, sl_err *err);

/* The ops, each in a .cu of this folder; run enqueues on cu->stream. */
#define X(op, name, items, field, text) extern const sl_op_impl sl_cuda_##name;
SL_OPS(X)
#undef X

#ifdef __cplusplus
}
#endif
#endif
