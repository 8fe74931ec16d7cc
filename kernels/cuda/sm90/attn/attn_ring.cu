/*
 * Attention over a window and compressed entries (SL_OP_RING_ATTN) for vectors of 512 values in bf16, on Hopper's tensor cores: the
 * thread blocks of attn_mla.cu, with rows that are key and value at once, have no rope columns and lie in three places: the step's own
 * vectors, the ring of the sequence, and its entries. A list has first the window, then the entries; an id is the address of a row.
 * Probabilities are rounded to bf16, as with bf16 rows there.
 */
#include "kernels/cuda/any/state/runs.cuh"
#include "kernels/cuda/sm90/attn/attn_mla_kernel.cuh"

#define ROW_BYTES (LORA * 2)
/* After attn_shared: the addresses of four blocks of each fetching warp, in place of its `lists`. */
#define RING_BYTES (SMEM_BYTES + 4 * 4 * 16 * sizeof(int64_t))

struct ring_work {
    using id = int64_t;      /* the address of a row; negative: none */
    sl_sparse_attn_params p; /* heads, tokens, sinks, scale, and k: more than any list has rows */
    float *partial;
    int groups, items, parts; /* as in attn_work */
    sl_ring_attn_params a;
    sl_seq_tables s;
    uint32_t *deverr;
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
template <> struct place<ring_work> {
    int item, block, rows;
    int64_t low, up;
    int seq, pos, near; /* of the item's token: near rows of the window come first */
};

__device__ static inline int64_t address(const void *base, int64_t bytes)
{
    return (int64_t)(uintptr_t)base + bytes;
}

__device__ static inline int64_t refuse(const ring_work &w, uint32_t what)
{
    atomicOr(w.deverr, what);
    return -1;
}

/* Entry number i of the token's list. */
__device__ static inline int64_t entry_at(const ring_work &w, const place<ring_work> &a, int i)
{
    const sl_ring_attn_params &p = w.a;
    int t = a.item / w.groups, e = i, rate = p.entries.rate;

    if (!rate || a.pos < 0 || (p.ids && i >= p.k))
        return -1;
    if (p.ids) {
        e = p.ids[(int64_t)t * p.ld_ids + i];
        if (e < 0)
            return -1;
    }
    if (e >= (a.pos + 1) / rate)
        return p.ids ? refuse(w, SL_DEVERR_SELECTION) : -1;
    if (p.phys) {
        int row = p.phys[(int64_t)t * p.ld_ids + i];
        return row < 0 ? refuse(w, SL_DEVERR_SELECTION) : address(p.rows, (int64_t)row * ROW_BYTES);
    }
    int page = (int)((((int64_t)e + 1) * rate - 1) / SL_PAGE_TOKENS),
        at = e - (int)((int64_t)page * SL_PAGE_TOKENS / rate),
        d = w.s.index_pages[(int64_t)a.seq * w.s.ld + page];
    return d < 0 ? refuse(w, SL_DEVERR_PAGE)
                 : address(p.entries.base, d * p.entries.page_stride + (int64_t)at * ROW_BYTES);
}

__device__ static inline int64_t row_of_list(const ring_work &w, const place<ring_work> &a, int i)
{
    int t = a.item / w.groups, back = a.near - 1 - i;

    if (back < 0)
        return entry_at(w, a, i - a.near);
    if (sl_in_step(w.s, t, a.seq, back))
        return address(w.a.kv, (int64_t)(t - back) * ROW_BYTES);
    return address(w.a.ring, a.seq * w.a.ring_stride + (int64_t)((a.pos - back) % w.a.window) * ROW_BYTES);
}

__device__ static inline void find_token(place<ring_work> &a, const ring_work &w)
{
    if (!sl_token(&w.s, a.item / w.groups, w.deverr, &a.seq, &a.pos))
        a.pos = -1; /* its list is empty */
    a.near = min(a.pos + 1, w.a.window);
}

__device__ static inline void look(place<ring_work> &a, const ring_work &w, int)
{
    int i = a.block * BLOCK + (int)(threadIdx.x & 31);

    a.low = row_of_list(w, a, i);
    a.up = row_of_list(w, a, i + 32);
}

__device__ static inline void start_item(place<ring_work> &a, const ring_work &w, int k)
{
    find_token(a, w);
    look(a, w, k);
}

__device__ static inline void wait_block(const place<ring_work> &, const ring_work &)
{
}

__device__ static inline bool has_rows(const ring_work &w, int rank)
{
    place<ring_work> a = {};

    if (w.parts == 1 || rank == 0)
        return true;
    a.item = blockIdx.y;
    find_token(a, w);
    return row_of_list(w, a, rank * SPLIT * BLOCK) >= 0;
}

__device__ static inline const uint8_t *row_at(const ring_work &w, int64_t id, int from)
{
    return (const uint8_t *)(id < 0 ? w.a.q : (const void *)(uintptr_t)id) + from;
}

__device__ static inline int64_t (*lists_of(const ring_work &, attn_shared *x))[16]
{
    return (int64_t(*)[16])(x + 1) + (threadIdx.x >> 5 & 3) * 4;
}

/* Queries of an item's heads as eight tiles; heads that do not exist are zero. */
template <typename E, int R, int N>
__device__ static inline void load_queries(uint8_t *tile, const ring_work &w, int item, int thread)
{
    const int total = HEADS * LORA / 8;
    int h0 = item % w.groups * HEADS;
    const uint4 *q = (const uint4 *)w.a.q + ((int64_t)(item / w.groups) * w.p.heads + h0) * (LORA / 8);

#pragma unroll 4
    for (int i = thread; i < total; i += N) {
        int r = i / (LORA / 8), c = i % (LORA / 8);
        *(uint4 *)(tile + c / 8 * SL_TILE + sl_swizzle(r, c % 8)) =
            h0 + r < w.p.heads ? q[i] : make_uint4(0, 0, 0, 0);
    }
}

__device__ static inline void store_pair(const ring_work &w, int64_t at, float a, float b)
{
    *(__nv_bfloat162 *)((__nv_bfloat16 *)w.a.out + at) = __floats2bfloat162_rn(a, b);
}

__device__ static inline void store_four(const ring_work &w, int64_t at, float4 v)
{
    store_pair(w, at, v.x, v.y);
    store_pair(w, at + 2, v.z, v.w);
}
#endif

__global__ static void __launch_bounds__(THREADS, 1) ring_kernel(const __grid_constant__ ring_work w)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    attend<__nv_bfloat16, 0>(w);
#endif
}

/* More rows than any list has. */
static int longest(const sl_ring_attn_params *p)
{
    if (!p->entries.rate)
        return p->window;
    return p->window + (p->ids ? p->k : (int)((int64_t)p->seqs->ld * SL_PAGE_TOKENS / p->entries.rate));
}

sl_status sl_cuda_attn_ring(sl_cuda *cu, const sl_ring_attn_params *p, sl_err *err)
{
    ring_work w = {};
    void *mem;

    static_assert(RING_BYTES <= 227 * 1024 && sizeof(attn_shared) % 16 == 0,
                  "shared memory of a thread block");
    w.p.tokens = p->tokens, w.p.heads = p->heads, w.p.sinks = p->sinks, w.p.scale = p->scale;
    w.p.k = w.p.ld_ids = longest(p);
    w.p.rows.row_bytes = ROW_BYTES;
    w.groups = sl_ceil_div(p->heads, HEADS);
    w.items = p->tokens * w.groups;
    w.parts = w.items > SL_GRID_YZ ? 1 : parts_for(cu->sms, sl_ceil_div(w.p.k, BLOCK), w.items);
    w.a = *p, w.s = *p->seqs, w.deverr = cu->deverr;
    SL_TRY(sl_cuda_scratch(cu, sizeof(float) * PARTIAL * (size_t)cu->sms, &mem, err));
    w.partial = (float *)mem;
    return SL_LAUNCH(cu, ring_kernel,
                     (sl_launch{w.parts > 1 ? dim3(w.parts, w.items) : dim3(min(w.items, cu->sms)), THREADS,
                                RING_BYTES, false, w.parts}),
                     err, w);
}
