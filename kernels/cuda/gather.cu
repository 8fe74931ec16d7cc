/*
 * Swap-in copy: missing rows from the pinned arena into hot rows, read in place over the bus by a few thread
 * blocks, so that what computes beside it keeps its SMs. One row a warp; 16 bytes a lane, a warp's 512 bytes
 * beginning where a line of 128 does, so that no line is asked for twice. Few rows under way at once are
 * faster than many where every row is on a host page of its own: more than about two hundred, and the lines
 * of a row wait for the page's translation one by one. The miss count is read on the device: no host round
 * trip, and a launch with nothing to do ends at once. The list's order is resolve's business. Attention
 * beside it is told of every row that has come. A multiprocessor gets 8 GB/s over the bus.
 */
#include "kernels/cuda/common.cuh"

#define GATHER_BLOCKS 6
#define GATHER_THREADS 1024
#define LINE 128
#define PARTS 3 /* of 512 bytes that a warp asks for at once: all of a row */

__device__ static inline const uint8_t *host_row(const sl_host_plane &h, int64_t src)
{
    return h.base + src / SL_PAGE_TOKENS * h.page_stride + src % SL_PAGE_TOKENS * h.row_stride;
}

/* Read once, if at all; without a branch, so that nothing comes between loads. */
__device__ static inline void load_if(uint4 &v, const uint8_t *p, bool on)
{
    asm volatile("{ .reg .pred q; setp.ne.u32 q, %5, 0;"
                 "@q ld.global.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4]; }"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p), "r"((uint32_t)on));
}

struct row_pair {
    int64_t src;
    int32_t dst;
};

__device__ static inline row_pair read_pair(const sl_gather_params &p, int i)
{
    return {p.miss_src[i], p.miss_dst[i]};
}

/* Copies one row, and reads entry i of the list, if it is below n, while the row is on its way. */
__device__ static inline void copy_row(uint8_t *to, const uint8_t *from, int bytes, const sl_gather_params &p,
                                       row_pair &next, int i, int n)
{
    int lane = 16 * (threadIdx.x & 31) - (int)((uintptr_t)from & (LINE - 1));

    for (int base = 0; base < bytes + LINE; base += 512 * PARTS) {
        uint4 v[PARTS];
#pragma unroll
        for (int k = 0; k < PARTS; k++) {
            int at = base + lane + 512 * k;
            load_if(v[k], from + at, at >= 0 && at < bytes);
        }
        if (base == 0 && i < n)
            next = read_pair(p, i);
#pragma unroll
        for (int k = 0; k < PARTS; k++) {
            int at = base + lane + 512 * k;
            if (at >= 0 && at < bytes)
                *(uint4 *)(to + at) = v[k];
        }
    }
}

__device__ static inline void copy_words(uint8_t *d, const uint8_t *s, int64_t bytes)
{
    for (int64_t i = 4 * (threadIdx.x & 31); i < bytes; i += 128)
        *(uint32_t *)(d + i) = *(const volatile uint32_t *)(s + i);
}

/* Counts the row's block once its bytes can be read by whoever sees the count. */
__device__ static inline void count_block(const sl_gather_params &p, int i)
{
    __syncwarp();
    if ((threadIdx.x & 31) == 0)
        asm volatile("red.release.gpu.global.add.s32 [%0], 1;" ::"l"(p.block_done + p.miss_block[i])
                     : "memory");
}

__device__ static inline void begin_clock(sl_swap_clock *c)
{
    if (c && threadIdx.x == 0)
        atomicMin((unsigned long long *)&c->begun, sl_clock_ns());
}

/* The last block adds up. */
__device__ static inline void end_clock(const sl_gather_params &p)
{
    sl_swap_clock *c = p.clock;

    if (!c)
        return;
    __syncthreads();
    if (threadIdx.x != 0 || atomicAdd(&c->left, 1u) + 1 != gridDim.x)
        return;
    uint64_t end = sl_clock_ns(), from = p.in_front ? p.in_front->ended : c->asked,
             taken = end - *(volatile uint64_t *)&c->begun, waited = taken;
    if (p.reached) {
        uint64_t reached = *(const volatile uint64_t *)p.reached;
        from = reached > from ? reached : from;
        waited = reached >= c->asked && end > from ? end - from : 0;
    }
    c->ended = end;
    c->taken += taken > waited ? taken : waited;
    c->waited += waited;
}

__global__ static void stamp_kernel(uint64_t *at)
{
    *at = sl_clock_ns();
}

sl_status sl_cuda_stamp(sl_cuda *cu, uint64_t *at, sl_err *err)
{
    stamp_kernel<<<1, 1, 0, cu->stream>>>(at);
    return SL_CU_LAUNCHED(err);
}

__global__ static void __launch_bounds__(GATHER_THREADS) gather_kernel(sl_gather_params p, bool wide)
{
    /* An attention behind may start from here on: all of our blocks are on their SMs and need nobody else. */
#if __CUDA_ARCH__ >= 900
    if (p.block_done)
        asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
    begin_clock(p.clock);
    int n = min(*p.miss_count, p.miss_cap), warps = gridDim.x * (blockDim.x >> 5);
    int first = blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5);
    row_pair next = {};

    if (first < n)
        next = read_pair(p, first);
    for (int i = first; i < n; i += warps) {
        uint8_t *to = p.rows.base + next.dst * p.rows.row_bytes;
        const uint8_t *from = host_row(p.host, next.src);
        if (wide) {
            copy_row(to, from, (int)p.rows.row_bytes, p, next, i + warps, n);
        } else {
            copy_words(to, from, p.rows.row_bytes);
            if (i + warps < n)
                next = read_pair(p, i + warps);
        }
        if (p.block_done)
            count_block(p, i);
    }
    end_clock(p);
}

sl_status sl_cuda_gather(sl_backend *be, const void *params, sl_err *err)
{
    const sl_gather_params *p = (const sl_gather_params *)params;
    sl_cuda *cu = sl_cuda_of(be);
    bool lane = cu->stream == cu->lane;
    cudaLaunchAttribute at; /* on the lane in pairs, so that clusters of two beside it find pairs as well */
    cudaLaunchConfig_t cfg = {};
    int64_t align = (int64_t)(uintptr_t)p->rows.base | (int64_t)(uintptr_t)p->host.base | p->rows.row_bytes |
                    p->host.page_stride | p->host.row_stride;

    if (align % 4)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "cuda: gather: rows must be multiples of 4 bytes");
    cfg.gridDim = dim3(lane ? SL_CUDA_LANE_SMS : p->block_done ? SL_CUDA_GATHER_SMS : GATHER_BLOCKS);
    cfg.blockDim = dim3(GATHER_THREADS), cfg.stream = cu->stream;
    at.id = cudaLaunchAttributeClusterDimension;
    at.val.clusterDim.x = lane ? 2 : 1;
    at.val.clusterDim.y = at.val.clusterDim.z = 1;
    cfg.attrs = &at, cfg.numAttrs = cu->cc >= 90 ? 1 : 0;
    return SL_CU(cudaLaunchKernelEx(&cfg, gather_kernel, *p, align % 16 == 0), err);
}
