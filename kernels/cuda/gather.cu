/*
 * Swap-in copy: missing rows from the pinned arena into hot rows. A few thread blocks read the host memory in place
 * over the bus, so that kernels that run concurrently keep the other multiprocessors; one multiprocessor reaches 8
 * GB/s.
 *
 * A lane copies 16 bytes, and the 512 bytes of a warp begin at a multiple of 128, so that no line is requested
 * twice. A warp copies one row at a time where the rows of a layer lie far apart, and two where they lie together.
 * Measured (docs/bench/notes-headline.md): a gather takes longer when its rows lie on more host pages, and more
 * reads in flight make it slower. Supposedly a rate of address translations is the limit. The number of misses is
 * read on the device, so there is no host round trip and a launch with nothing to do ends immediately. resolve
 * determines the order of the list. An attention that runs concurrently learns through counters which rows have
 * arrived.
 */
#include "kernels/cuda/common.cuh"

#define GATHER_BLOCKS 6
#define GATHER_THREADS 1024
#define LINE 128
#define PART 512 /* bytes that one load instruction of a warp reads */

__device__ static inline const uint8_t *host_row(const sl_host_plane &h, int64_t src)
{
    return h.base + src / SL_PAGE_TOKENS * h.page_stride + src % SL_PAGE_TOKENS * h.row_stride;
}

struct row_pair {
    int64_t src;
    int32_t dst;
};

/* Reads ROWS entries of the list from entry i on; after the end of the list the last entry is repeated. */
template <int ROWS>
__device__ static inline void read_pairs(row_pair (&at)[ROWS], const sl_gather_params &p, int i, int n)
{
#pragma unroll
    for (int r = 0; r < ROWS; r++)
        if (i < n) {
            int j = min(i + r, n - 1);
            at[r] = {p.miss_src[j], p.miss_dst[j]};
        }
}

/* Copies up to ROWS rows, PARTS parts of each at a time, and reads the list from entry i on while the loads are in
 * flight. */
template <int ROWS, int PARTS>
__device__ static inline void copy_rows(uint8_t *const (&to)[ROWS], const uint8_t *const (&from)[ROWS],
                                        int rows, const sl_gather_params &p, row_pair (&next)[ROWS], int i,
                                        int n)
{
    int bytes = (int)p.rows.row_bytes;

    for (int base = 0; base < bytes + LINE; base += PART * PARTS) {
        uint4 v[ROWS][PARTS];
#pragma unroll
        for (int r = 0; r < ROWS; r++)
#pragma unroll
            for (int k = 0; k < PARTS; k++) {
                int at = base + PART * k + 16 * (threadIdx.x & 31) - (int)((uintptr_t)from[r] & (LINE - 1));
                sl_load_if(v[r][k], from[r] + at, r < rows && at >= 0 && at < bytes);
            }
        if (base == 0)
            read_pairs(next, p, i, n);
#pragma unroll
        for (int r = 0; r < ROWS; r++)
#pragma unroll
            for (int k = 0; k < PARTS; k++) {
                int at = base + PART * k + 16 * (threadIdx.x & 31) - (int)((uintptr_t)from[r] & (LINE - 1));
                if (r < rows && at >= 0 && at < bytes)
                    *(uint4 *)(to[r] + at) = v[r][k];
            }
    }
}

__device__ static inline void copy_words(uint8_t *d, const uint8_t *s, int64_t bytes)
{
    for (int64_t i = 4 * (threadIdx.x & 31); i < bytes; i += 128)
        *(uint32_t *)(d + i) = *(const volatile uint32_t *)(s + i);
}

/* Adds the rows to the counters of their blocks, with release: a reader of the count with acquire can read the
 * rows. */
__device__ static inline void count_blocks(const sl_gather_params &p, int first, int rows)
{
    int lane = threadIdx.x & 31;

    __syncwarp();
    if (lane < rows)
        sl_increment_release(p.block_done + p.miss_block[first + lane]);
}

__device__ static inline void begin_clock(sl_swap_clock *c)
{
    if (c && threadIdx.x == 0)
        atomicMin((unsigned long long *)&c->begun, sl_clock_ns());
}

/* The block that ends last adds the times to the clock. */
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

sl_status sl_cuda_stamp(sl_backend *be, uint64_t *at, sl_err *err)
{
    stamp_kernel<<<1, 1, 0, sl_cuda_of(be)->stream>>>(at);
    return SL_CU_LAUNCHED(err);
}

template <int ROWS, int PARTS>
__global__ static void __launch_bounds__(GATHER_THREADS) gather_kernel(sl_gather_params p, bool wide)
{
    /* The attention that follows may start now: all blocks of this kernel are resident. */
    if (p.block_done)
        sl_let_next_start();
    begin_clock(p.clock);
    int n = min(*p.miss_count, p.miss_cap), warps = gridDim.x * (blockDim.x >> 5);
    int each = min(ROWS, (n + warps - 1) / warps),
        first = each * (blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5));
    row_pair next[ROWS];

    read_pairs(next, p, first, n);
    for (int i = first; i < n; i += each * warps) {
        int rows = min(each, n - i);
        uint8_t *to[ROWS];
        const uint8_t *from[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            to[r] = p.rows.base + next[r].dst * p.rows.row_bytes;
            from[r] = host_row(p.host, next[r].src);
        }
        if (wide) {
            copy_rows<ROWS, PARTS>(to, from, rows, p, next, i + each * warps, n);
        } else {
            for (int r = 0; r < ROWS; r++)
                if (r < rows)
                    copy_words(to[r], from[r], p.rows.row_bytes);
            read_pairs(next, p, i + each * warps, n);
        }
        if (p.block_done)
            count_blocks(p, i, rows);
    }
    end_clock(p);
}

sl_status sl_cuda_gather(sl_backend *be, const void *params, sl_err *err)
{
    const sl_gather_params *p = (const sl_gather_params *)params;
    sl_cuda *cu = sl_cuda_of(be);
    bool side = cu->stream == cu->side_stream;
    bool dense =
        p->host.page_stride <= 2 * SL_PAGE_TOKENS * p->host.row_stride; /* a layer's pages are contiguous */
    /* a warp copies two rows at a time; otherwise one */
    bool two = dense && p->rows.row_bytes + LINE <= 2 * PART;
    /* On the side stream the blocks come in clusters of two, so that they leave pairs of multiprocessors free for the
     * clusters of two of the main stream's kernels. */
    cudaLaunchAttribute at;
    cudaLaunchConfig_t cfg = {};
    int64_t align = (int64_t)(uintptr_t)p->rows.base | (int64_t)(uintptr_t)p->host.base | p->rows.row_bytes |
                    p->host.page_stride | p->host.row_stride;

    if (sl_row_lists(&p->rows) > 1 || p->rows.block_log2)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "cuda: gather: rows by KV head or of several tokens");
    if (align % 4)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "cuda: gather: rows must be multiples of 4 bytes");
    cfg.gridDim = dim3(side ? SL_CUDA_SIDE_SMS : p->block_done ? SL_CUDA_GATHER_SMS : GATHER_BLOCKS);
    cfg.blockDim = dim3(GATHER_THREADS), cfg.stream = cu->stream;
    at.id = cudaLaunchAttributeClusterDimension;
    at.val.clusterDim.x = side ? 2 : 1;
    at.val.clusterDim.y = at.val.clusterDim.z = 1;
    cfg.attrs = &at, cfg.numAttrs = cu->cc >= 90 ? 1 : 0;
    return SL_CU(
        cudaLaunchKernelEx(&cfg, two ? gather_kernel<2, 2> : gather_kernel<1, 3>, *p, align % 16 == 0), err);
}
