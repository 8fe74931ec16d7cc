/*
 * Linear layers of few tokens, by streaming (stream.cuh): fp8 with block scales, or bf16. A block makes 64
 * tokens x 256 outputs of its range of k; the ranges of one tile are a cluster, whose blocks add up their
 * parts in order through distributed shared memory. How many ranges there are follows from the weight's shape
 * alone.
 */
#include "kernels/cuda/stream.cuh"

#define GROUP 128
#define MOST_TOKENS 256
#define MOST_SPLITS 8
#define OUTS (2 * ST_BOX)
#define PART_LD (OUTS + 4) /* floats; the parts of a tile lie where the stages were */
#define BUSY 132           /* blocks that are enough; a constant, so that bits do not depend on the device */

struct linear_args {
    CUtensorMap x, w;
    const float *xs, *ws; /* [groups][ld_xs]; [outs / 128][groups] */
    void *out;
    int ld_xs, groups, chunk, splits, tokens, outs, ld_out; /* groups of 128 bytes of k */
    sl_dtype out_dtype;
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
__device__ static inline void cluster_sync(void)
{
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
}

/* Loads a float at a shared address of this block, in block `rank` of the cluster. */
__device__ static inline float remote(uint32_t at, int rank)
{
    float v;
    uint32_t there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(at), "r"(rank));
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(v) : "r"(there) : "memory");
    return v;
}

template <bool F8>
__device__ static void produce(const linear_args &p, uint32_t base, uint32_t full, uint32_t empty,
                               uint32_t xs_at, int g0, int g1, int t0, int out0)
{
    int boxes = (min(ST_TOKENS, p.tokens - t0) + 7) / 8;
    bool second = out0 + ST_BOX < p.outs;

    for (int g = g0, n = 0; g < g1; g++, n++) {
        int s = n % ST_STAGES;
        uint32_t at = base + s * ST_STAGE, bar = full + s * 8;
        st_bar_wait(empty + s * 8, (n / ST_STAGES & 1) ^ 1);
        st_bar_expect(bar, (second ? 2 : 1) * ST_BOX_BYTES + boxes * 1024 + (F8 ? ST_XS_BYTES : 0));
        st_copy_box(at, &p.w, g * GROUP, out0, bar);
        if (second)
            st_copy_box(at + ST_BOX_BYTES, &p.w, g * GROUP, out0 + ST_BOX, bar);
        for (int i = 0; i < boxes; i++)
            st_copy_box(at + 2 * ST_BOX_BYTES + i * 1024, &p.x, g * GROUP, t0 + 8 * i, bar);
        if (F8)
            st_copy_bytes(xs_at + s * ST_XS_BYTES, p.xs + (int64_t)g * p.ld_xs + t0, ST_XS_BYTES, bar);
    }
}

template <bool F8>
__device__ static void multiply(const linear_args &p, uint32_t base, uint32_t full, uint32_t empty,
                                const float *xs, int g0, int g1, int out, int wg, float (&acc)[64])
{
    int lane = threadIdx.x & 31, row = (threadIdx.x >> 5 & 3) * 16 + lane / 4, n = g1 - g0;
    const float *sw = F8 ? p.ws + (int64_t)(min(out, p.outs - 1) / GROUP) * p.groups + g0 : NULL;
    float s0 = F8 && lane < n ? sw[lane] : 0, s1 = F8 && lane + 32 < n ? sw[lane + 32] : 0, d[F8 ? 64 : 1];

#pragma unroll
    for (int i = 0; i < 64; i++)
        acc[i] = 0;
    for (int i = 0; i < n; i++) {
        int s = i % ST_STAGES;
        uint32_t at = base + s * ST_STAGE;
        uint64_t a = sl_desc_k(at + 2 * ST_BOX_BYTES), b = sl_desc_k(at + wg * ST_BOX_BYTES);
        st_bar_wait(full + s * 8, i / ST_STAGES & 1);
        sl_wgmma_fence();
        if constexpr (F8) {
            float w = __shfl_sync(0xffffffffu, i < 32 ? s0 : s1, i & 31);
#pragma unroll
            for (int k = 0; k < 4; k++)
                st_product<true>(d, a + 2 * k, b + 2 * k, k > 0);
            float x0 = __fmul_rn(xs[s * ST_TOKENS + row], w), x1 = __fmul_rn(xs[s * ST_TOKENS + row + 8], w);
            sl_wgmma_finish();
            if (lane == 0)
                st_bar_arrive(empty + s * 8);
#pragma unroll
            for (int k = 0; k < 64; k++)
                acc[k] = fmaf(d[k], k & 2 ? x1 : x0, acc[k]);
        } else {
#pragma unroll
            for (int k = 0; k < 4; k++)
                st_product<false>(acc, a + 2 * k, b + 2 * k, true);
            sl_wgmma_finish();
            if (lane == 0)
                st_bar_arrive(empty + s * 8);
        }
    }
}

__device__ static inline void store_pair(const linear_args &p, int64_t t, int out, float a, float b)
{
    if (out + 1 < p.outs && p.out_dtype == SL_BF16 && (p.ld_out & 1) == 0) {
        *(__nv_bfloat162 *)((__nv_bfloat16 *)p.out + t * p.ld_out + out) = __floats2bfloat162_rn(a, b);
        return;
    }
    if (out < p.outs)
        sl_st(p.out, t * p.ld_out + out, a, p.out_dtype);
    if (out + 1 < p.outs)
        sl_st(p.out, t * p.ld_out + out + 1, b, p.out_dtype);
}

/* A whole tile: straight to the output. */
__device__ static void store_tile(const linear_args &p, int t0, int out, const float (&acc)[64])
{
    int lane = threadIdx.x & 31, row = (threadIdx.x >> 5 & 3) * 16 + lane / 4;

#pragma unroll
    for (int i = 0; i < 32; i++) {
        int t = t0 + row + (i & 1) * 8;
        if (t < p.tokens)
            store_pair(p, t, out + i / 2 * 8 + (lane & 3) * 2, acc[2 * i], acc[2 * i + 1]);
    }
}

__device__ static void put_part(float *part, int wg, const float (&acc)[64])
{
    int lane = threadIdx.x & 31, row = (threadIdx.x >> 5 & 3) * 16 + lane / 4;

#pragma unroll
    for (int i = 0; i < 32; i++)
        *(float2 *)(part + (row + (i & 1) * 8) * PART_LD + wg * ST_BOX + i / 2 * 8 + (lane & 3) * 2) =
            make_float2(acc[2 * i], acc[2 * i + 1]);
}

/* This block's share of the tile: sums over the ranges of k, in order. */
__device__ static void add_parts(const linear_args &p, const float *part, int rank, int t0, int out0)
{
    int pairs = min(ST_TOKENS, p.tokens - t0) * (OUTS / 2);

    for (int i = rank * 256 + threadIdx.x; i < pairs; i += p.splits * 256) {
        int t = i / (OUTS / 2), o = i % (OUTS / 2) * 2;
        uint32_t at = sl_smem_addr(part + t * PART_LD + o);
        float a[MOST_SPLITS], b[MOST_SPLITS], sa = 0, sb = 0;
#pragma unroll
        for (int s = 0; s < MOST_SPLITS; s++)
            if (s < p.splits)
                a[s] = remote(at, s), b[s] = remote(at + 4, s);
#pragma unroll
        for (int s = 0; s < MOST_SPLITS; s++)
            if (s < p.splits) {
                sa = s ? __fadd_rn(sa, a[s]) : a[s];
                sb = s ? __fadd_rn(sb, b[s]) : b[s];
            }
        store_pair(p, t0 + t, out0 + o, sa, sb);
    }
}
#endif

/* blockIdx: range of k (the cluster), tile of outputs, tile of tokens. */
template <bool F8>
__global__ static void __launch_bounds__(ST_THREADS, 1) linear_kernel(const __grid_constant__ linear_args p)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    extern __shared__ uint8_t raw[];
    uint32_t raw_at = sl_smem_addr(raw), pad = (1024 - raw_at % 1024) % 1024, base = raw_at + pad;
    float *part = (float *)(raw + pad), *xs = (float *)(raw + pad + ST_STAGES * ST_STAGE);
    uint32_t full = sl_smem_addr(xs + ST_STAGES * ST_TOKENS), empty = full + ST_STAGES * 8;
    int g0 = blockIdx.x * p.chunk, g1 = min(p.groups, g0 + p.chunk), out0 = blockIdx.y * OUTS,
        t0 = blockIdx.z * ST_TOKENS, wg = threadIdx.x >> 7;

    if (threadIdx.x == 0) {
        for (int i = 0; i < ST_STAGES; i++) {
            st_bar_init(full + i * 8, 1);
            st_bar_init(empty + i * 8, 8);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    if (threadIdx.x >= 256) {
        if (threadIdx.x == 256)
            produce<F8>(p, base, full, empty, sl_smem_addr(xs), g0, g1, t0, out0);
        __syncwarp();
    } else {
        float acc[64];
        multiply<F8>(p, base, full, empty, xs, g0, g1, out0 + wg * ST_BOX, wg, acc);
        if (p.splits == 1) {
            store_tile(p, t0, out0 + wg * ST_BOX, acc);
        } else {
            sl_bar_sync(1, 256); /* both have read the last stage */
            put_part(part, wg, acc);
        }
    }
    if (p.splits == 1)
        return;
    cluster_sync();
    if (threadIdx.x < 256)
        add_parts(p, part, blockIdx.x, t0, out0);
    cluster_sync(); /* nobody leaves while its part is read */
#endif
}

/* Ranges of k: more while that fills the device, each of at least two groups. */
static int splits_of(int outs, int groups)
{
    int tiles = sl_ceil_div(outs, OUTS), s = 1;

    while (s < MOST_SPLITS && tiles * s * 2 <= BUSY && groups >= s * 4)
        s *= 2;
    return s;
}

bool sl_cuda_linear_stream_fits(const sl_cuda *cu, const sl_linear_params *p)
{
    bool f8 = p->w.dtype == SL_F8_E4M3 && p->fp8_acts,
         bf16 = p->w.dtype == SL_BF16 && (uintptr_t)p->x % 16 == 0 && p->ld_x % 8 == 0;
    int groups = (int)(p->w.in * (int64_t)sl_dtype_size(p->w.dtype) / GROUP);

    if (cu->cc != 90 || p->act != SL_BF16 || p->tokens > MOST_TOKENS || (!f8 && !bf16) ||
        (uintptr_t)p->w.data % 16 || p->w.in * (int64_t)sl_dtype_size(p->w.dtype) % GROUP || groups < 1)
        return false;
    /* One box of bf16 and no splits is what the library does well: the head. */
    return f8 ? sl_ceil_div(groups, splits_of(p->w.out, groups)) <= ST_SCALES : p->w.out <= 4096;
}

template <bool F8> static sl_status launch(sl_cuda *cu, const linear_args *a, sl_err *err)
{
    cudaLaunchConfig_t c = {};
    cudaLaunchAttribute at[1];
    sl_status st = SL_CU(cudaFuncSetAttribute((const void *)linear_kernel<F8>,
                                              cudaFuncAttributeMaxDynamicSharedMemorySize, ST_SMEM),
                         err);

    if (st != SL_OK)
        return st;
    at[0].id = cudaLaunchAttributeClusterDimension;
    at[0].val.clusterDim.x = (unsigned)a->splits;
    at[0].val.clusterDim.y = at[0].val.clusterDim.z = 1;
    c.gridDim = dim3((unsigned)a->splits, sl_ceil_div(a->outs, OUTS), sl_ceil_div(a->tokens, ST_TOKENS));
    c.blockDim = dim3(ST_THREADS);
    c.dynamicSmemBytes = ST_SMEM;
    c.stream = cu->stream;
    c.attrs = at, c.numAttrs = 1;
    return SL_CU(cudaLaunchKernelEx(&c, linear_kernel<F8>, *a), err);
}

sl_status sl_cuda_linear_stream(sl_cuda *cu, const sl_linear_params *p, const uint8_t *xq, const float *xs,
                                int ld_xs, sl_err *err)
{
    bool f8 = xq != NULL;
    int64_t bytes = p->w.in * (int64_t)sl_dtype_size(p->w.dtype);
    linear_args a = {};
    sl_status st = sl_cuda_map(cu, p->w.data, p->w.out, bytes, bytes, ST_BOX, &a.w, err);

    if (st == SL_OK)
        st = f8 ? sl_cuda_map(cu, xq, p->tokens, bytes, bytes, 8, &a.x, err)
                : sl_cuda_map(cu, p->x, p->tokens, bytes, (int64_t)p->ld_x * 2, 8, &a.x, err);
    if (st != SL_OK)
        return st;
    a.xs = xs, a.ws = p->w.scale, a.ld_xs = ld_xs, a.out = p->out;
    a.groups = (int)(bytes / GROUP), a.splits = splits_of(p->w.out, a.groups);
    a.chunk = sl_ceil_div(a.groups, a.splits);
    a.tokens = p->tokens, a.outs = p->w.out, a.ld_out = p->ld_out, a.out_dtype = p->out_dtype;
    return f8 ? launch<true>(cu, &a, err) : launch<false>(cu, &a, err);
}
