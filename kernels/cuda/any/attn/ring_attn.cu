/*
 * Attention over the window and compressed entries, and the ring of the window. The plain path: a thread block has a token and eight heads, one for
 * each warp; rows come into shared memory 16 at a time, and every warp goes over them with a running maximum. A lane has the channels
 * lane, lane + 32 and so on of its head.
 */
#include "kernels/cuda/any/state/runs.cuh"

#define WARPS 8
#define THREADS (WARPS * 32)
#define ROWS 16
#define DIM_MAX 512
#define PER (DIM_MAX / 32)

struct row_source {
    int t, seq, pos, near, n; /* rows of the window, and all rows */
};

/* Row i of the token's list, NULL: it does not exist. *at: the element at which it begins. */
__device__ static const void *row_of(const sl_ring_attn_params &p, const sl_seq_tables &s,
                                     const row_source &r, int i, int64_t *at, uint32_t *deverr)
{
    if (i < r.near) {
        int back = r.near - 1 - i;
        if (sl_in_step(s, r.t, r.seq, back)) {
            *at = (int64_t)(r.t - back) * p.dim;
            return p.kv;
        }
        *at = (int64_t)((r.pos - back) % p.window) * p.dim;
        return p.ring + r.seq * p.ring_stride;
    }
    int w = p.ids ? p.ids[(int64_t)r.t * p.ld_ids + i - r.near] : i - r.near,
        all = (r.pos + 1) / p.entries.rate;
    if (w < 0 || w >= all) {
        atomicOr(deverr, SL_DEVERR_SELECTION);
        return NULL;
    }
    if (p.phys) {
        int row = p.phys[(int64_t)r.t * p.ld_ids + i - r.near];
        if (row < 0) {
            atomicOr(deverr, SL_DEVERR_SELECTION);
            return NULL;
        }
        *at = (int64_t)row * p.dim;
        return p.rows;
    }
    int page = (int)((((int64_t)w + 1) * p.entries.rate - 1) / SL_PAGE_TOKENS);
    int place = w - (int)((int64_t)page * SL_PAGE_TOKENS / p.entries.rate),
        d = s.index_pages[(int64_t)r.seq * s.ld + page];
    if (d < 0) {
        atomicOr(deverr, SL_DEVERR_PAGE);
        return NULL;
    }
    *at = (int64_t)place * p.dim;
    return p.entries.base + d * p.entries.page_stride;
}

/* How many entries the token reads. */
__device__ static int entries_of(const sl_ring_attn_params &p, const row_source &r)
{
    int n = 0;

    if (!p.entries.rate)
        return 0;
    if (!p.ids)
        return (r.pos + 1) / p.entries.rate;
    for (int i = threadIdx.x; i < p.k; i += THREADS)
        n += p.ids[(int64_t)r.t * p.ld_ids + i] >= 0;
    return sl_block_sum(n);
}

__global__ static void __launch_bounds__(THREADS)
    attn_kernel(sl_ring_attn_params p, sl_seq_tables s, uint32_t *deverr)
{
    __shared__ float rows[ROWS][DIM_MAX];
    int lane = threadIdx.x & 31, h = (int)blockIdx.y * WARPS + (int)(threadIdx.x >> 5);
    row_source r = {.t = (int)blockIdx.x};
    bool real = sl_token(&s, r.t, deverr, &r.seq, &r.pos), mine = h < p.heads;
    int64_t out = ((int64_t)r.t * p.heads + h) * p.dim;
    float q[PER], o[PER], top = -INFINITY, sum = 0;

#pragma unroll
    for (int k = 0; k < PER; k++) {
        int c = lane + 32 * k;
        q[k] = mine && c < p.dim ? sl_ld(p.q, out + c, p.act) : 0;
        o[k] = 0;
    }
    if (real) {
        r.near = min(r.pos + 1, p.window);
        r.n = r.near + entries_of(p, r);
    }
    for (int first = 0; real && first < r.n; first += ROWS) {
        int here = min(ROWS, r.n - first);
        __syncthreads();
        for (int i = (int)(threadIdx.x >> 5); i < here; i += WARPS) {
            int64_t at;
            const void *from = row_of(p, s, r, first + i, &at, deverr);
            for (int c = lane; c < p.dim; c += 32)
                rows[i][c] = from ? sl_ld(from, at + c, p.entries.dtype) : 0;
        }
        __syncthreads();
        for (int i = 0; i < here; i++) {
            float dot = 0;
#pragma unroll
            for (int k = 0; k < PER; k++)
                if (lane + 32 * k < p.dim)
                    dot = fmaf(q[k], rows[i][lane + 32 * k], dot);
            dot = __fmul_rn(sl_warp_sum(dot), p.scale);
            float max = fmaxf(top, dot), keep = expf(top - max), w = expf(dot - max);
            sum = fmaf(sum, keep, w);
#pragma unroll
            for (int k = 0; k < PER; k++)
                if (lane + 32 * k < p.dim)
                    o[k] = fmaf(o[k], keep, w * rows[i][lane + 32 * k]);
            top = max;
        }
    }
    if (!mine)
        return;
    sum += real ? expf(p.sinks[h] - top) : 1;
#pragma unroll
    for (int k = 0; k < PER; k++)
        if (lane + 32 * k < p.dim)
            sl_st(p.out, out + lane + 32 * k, o[k] / sum, p.act);
}

static sl_status ask_ring_attn(sl_backend *, const void *params, sl_err *err)
{
    const sl_ring_attn_params *p = (const sl_ring_attn_params *)params;
    if (p->dim > DIM_MAX)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "cuda: ring_attn: dim %d exceeds %d", p->dim, DIM_MAX);
    return SL_OK;
}

static sl_status run_ring_attn(sl_backend *be, const void *params, sl_err *err)
{
    const sl_ring_attn_params *p = (const sl_ring_attn_params *)params;

    SL_TRY(ask_ring_attn(be, params, err));
    if (sl_path_ring_attn(&sl_cuda_of(be)->gpu, p) == SL_RING_TENSOR)
        return sl_cuda_attn_ring(sl_cuda_of(be), p, err);
    return SL_LAUNCH(sl_cuda_of(be), attn_kernel,
                     (sl_launch{dim3((unsigned)p->tokens, (unsigned)sl_ceil_div(p->heads, WARPS)), THREADS}),
                     err, *p, *p->seqs, sl_cuda_of(be)->deverr);
}

const sl_op_impl sl_cuda_ring_attn = {.run = run_ring_attn, .supports = ask_ring_attn};

/* ---- ring_store ---- */

__global__ static void store_kernel(sl_ring_store_params p, sl_seq_tables s, uint32_t *deverr)
{
    int t = blockIdx.x, seq, pos;

    if (!sl_token(&s, t, deverr, &seq, &pos) || sl_in_step(s, t, seq, -p.window))
        return;
    for (int c = threadIdx.x; c < p.dim; c += THREADS)
        sl_st(p.ring + seq * p.ring_stride, (int64_t)(pos % p.window) * p.dim + c,
              sl_ld(p.kv, (int64_t)t * p.dim + c, p.dtype), p.dtype);
}

static sl_status run_ring_store(sl_backend *be, const void *params, sl_err *err)
{
    const sl_ring_store_params *p = (const sl_ring_store_params *)params;

    return SL_LAUNCH(sl_cuda_of(be), store_kernel, (sl_launch{dim3((unsigned)p->seqs->n_tokens), THREADS}),
                     err, *p, *p->seqs, sl_cuda_of(be)->deverr);
}

const sl_op_impl sl_cuda_ring_store = {.run = run_ring_store};
