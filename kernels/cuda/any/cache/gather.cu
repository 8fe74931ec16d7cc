/*
 * Swap-in copy: missing rows from the pinned arena into hot rows. A few thread blocks read the host memory in place
 * over the bus, so that kernels that run concurrently keep the other multiprocessors; one multiprocessor reaches 8
 * GB/s.
 *
 * A lane copies 16 bytes, and the 512 bytes of a warp begin at a multiple of 128, so that no line is requested
 * twice. A warp copies one row at a time where the rows of a layer lie far apart, and two where they lie together.
 * Rows of several kilobytes (blocks of tokens) are cut into pieces of 2 KiB, one per warp at a time, so that all warps
 * have work when few rows are missing.
 * Measured (docs/bench/notes-headline.md): a gather takes longer when its rows lie on more host pages, and more
 * reads in flight make it slower. Supposedly a rate of address translations is the limit. The number of misses is
 * read on the device, so there is no host round trip and a launch with nothing to do ends immediately. resolve
 * determines the order of the list. An attention that runs concurrently learns through counters which rows have
 * arrived.
 *
 * Rows with checksums (kernels/rowsum.h) are compared while they are in registers: each lane adds the values of its 16 bytes,
 * one reduction gives a warp the sum, and the wanted checksum is loaded together with the row. The kernels without
 * checksums are compiled apart and do not differ from what they would be if there were none.
 */
#include "kernels/cuda/any/cache/rows.cuh"
#include "kernels/rowsum.h"

#define GATHER_BLOCKS 6
#define GATHER_BLOCKS_LONG                                                                                   \
    8 /* where nothing runs concurrently: the bus is the limit, not the multiprocessor */
#define GATHER_THREADS 1024
#define LINE 128
#define PART 512 /* bytes that one load instruction of a warp reads */
#define PIECE_PARTS 4
#define PIECE (PIECE_PARTS * PART) /* of a long row */
static_assert(PIECE == SL_ROWSUM_PART, "a piece has one checksum");

/* The host row src. D: rows are divided by KV head or into blocks. */
template <bool D>
__device__ static inline const uint8_t *host_row(const sl_gather_params &p, const sl_rows &rows, int64_t src)
{
    const sl_host_plane &h = p.host;

    if (!D)
        return h.base + src / SL_PAGE_TOKENS * h.page_stride + src % SL_PAGE_TOKENS * h.row_stride;
    int64_t block = rows.heads > 1 ? src / rows.heads : src;
    int head = (int)(src - block * rows.heads);
    return h.base + (block >> rows.page_log2) * h.page_stride +
           (block & ((1 << rows.page_log2) - 1)) * h.row_stride + head * p.rows.row_bytes;
}

struct row_pair {
    int64_t src;
    int32_t dst;
};

/* The checksum of a part of host row src, for the lanes that compare; 0: none. */
__device__ static inline uint32_t wanted_sum(const sl_gather_params &p, int64_t src, int parts, int part,
                                             bool mine)
{
    return mine ? *(const volatile uint32_t *)(p.check.sums + src * parts + part) : 0;
}

/* Compares on one lane; sum: of the values of the whole part, on every lane. */
template <bool D>
__device__ static inline void compare_sum(const sl_gather_params &p, const sl_rows &rows, int64_t src,
                                          uint32_t want, uint32_t sum)
{
    if (want == 0 || want == sl_rowsum_end(sum))
        return;
    int64_t page = D ? (rows.heads > 1 ? src / rows.heads : src) >> rows.page_log2 : src / SL_PAGE_TOKENS;
    atomicOr(p.check.pages + page / 32, 1u << page % 32);
    *(volatile uint32_t *)p.check.any = 1;
}

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

/*
 * Copies `bytes` bytes of up to ROWS rows, PARTS parts of each at a time, and reads the list from entry i on while the loads are
 * in flight. S: adds this lane's values to the sums.
 */
template <int ROWS, int PARTS, bool S>
__device__ static inline void copy_rows(uint8_t *const (&to)[ROWS], const uint8_t *const (&from)[ROWS],
                                        int rows, int bytes, const sl_gather_params &p,
                                        row_pair (&next)[ROWS], int i, int n, uint32_t (&sum)[ROWS])
{
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
                if (r < rows && at >= 0 && at < bytes) {
                    *(uint4 *)(to[r] + at) = v[r][k];
                    if (S)
                        sum[r] += sl_rowsum_value(v[r][k].x, v[r][k].y, v[r][k].z, v[r][k].w, at / 16);
                }
            }
    }
}

__device__ static inline void copy_words(uint8_t *d, const uint8_t *s, int64_t bytes)
{
    for (int64_t i = 4 * (threadIdx.x & 31); i < bytes; i += 128)
        *(uint32_t *)(d + i) = *(const volatile uint32_t *)(s + i);
}

/* The same, by 16 bytes for each lane; returns the sum of this lane's values. */
__device__ static inline uint32_t copy_words_summed(uint8_t *d, const uint8_t *s, int bytes)
{
    uint32_t sum = 0;
    for (int i = 16 * (threadIdx.x & 31); i < bytes; i += PART) {
        uint32_t w[4] = {0, 0, 0, 0};
        for (int k = 0; k < 4 && i + 4 * k < bytes; k++) {
            w[k] = *(const volatile uint32_t *)(s + i + 4 * k);
            *(uint32_t *)(d + i + 4 * k) = w[k];
        }
        sum += sl_rowsum_value(w[0], w[1], w[2], w[3], i / 16);
    }
    return sum;
}

/* Copies the rows part by part, and compares each part with its checksum; lane r does so for row r. src: of this lane's row. */
template <int ROWS, int PARTS, bool D>
__device__ static inline void copy_compared(uint8_t *(&to)[ROWS], const uint8_t *(&from)[ROWS], int rows,
                                            bool wide, const sl_gather_params &p, const sl_rows &shape,
                                            int64_t src, row_pair (&next)[ROWS], int i, int n)
{
    int bytes = (int)p.rows.row_bytes, parts = (int)sl_rowsum_parts(bytes), lane = threadIdx.x & 31;

    for (int part = 0; part < parts; part++) {
        uint32_t want = wanted_sum(p, src, parts, part, lane < rows), sum[ROWS];
        int of = min(SL_ROWSUM_PART, bytes - part * SL_ROWSUM_PART);
#pragma unroll
        for (int r = 0; r < ROWS; r++)
            sum[r] = 0;
        if (wide) {
            copy_rows<ROWS, PARTS, true>(to, from, rows, of, p, next, i, n, sum);
        } else {
            for (int r = 0; r < ROWS; r++)
                if (r < rows)
                    sum[r] = copy_words_summed(to[r], from[r], of);
            read_pairs(next, p, i, n);
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            uint32_t all = __reduce_add_sync(0xffffffffu, sum[r]);
            if (lane == r)
                compare_sum<D>(p, shape, src, want, all);
            to[r] += SL_ROWSUM_PART, from[r] += SL_ROWSUM_PART;
        }
    }
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
    return SL_LAUNCH(sl_cuda_of(be), stamp_kernel, (sl_launch{1, 1}), err, at);
}

template <int ROWS, int PARTS, bool D, bool S>
__global__ static void __launch_bounds__(GATHER_THREADS)
    gather_kernel(sl_gather_params p, sl_rows shape, bool wide)
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
        uint32_t none[ROWS] = {};
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            to[r] = p.rows.base + next[r].dst * p.rows.row_bytes;
            from[r] = host_row<D>(p, shape, next[r].src);
        }
        if (S) {
            int64_t src = threadIdx.x & 31 ? next[ROWS - 1].src : next[0].src;
            copy_compared<ROWS, PARTS, D>(to, from, rows, wide, p, shape, src, next, i + each * warps, n);
        } else if (wide) {
            copy_rows<ROWS, PARTS, false>(to, from, rows, (int)p.rows.row_bytes, p, next, i + each * warps, n,
                                          none);
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

/* One piece of a row: all its loads are in flight before the first store. at: of the piece in the row; bytes: of the
 * row, a multiple of 16. S: returns the sum of this lane's values. */
template <bool S>
__device__ static inline uint32_t copy_piece(uint8_t *to, const uint8_t *from, int at, int bytes)
{
    uint4 v[PIECE_PARTS];
    uint32_t sum = 0;

    at += 16 * (threadIdx.x & 31);
#pragma unroll
    for (int k = 0; k < PIECE_PARTS; k++)
        sl_load_if(v[k], from + at + PART * k, at + PART * k < bytes);
#pragma unroll
    for (int k = 0; k < PIECE_PARTS; k++)
        if (at + PART * k < bytes) {
            *(uint4 *)(to + at + PART * k) = v[k];
            if (S)
                sum += sl_rowsum_value(v[k].x, v[k].y, v[k].z, v[k].w, (at + PART * k) % PIECE / 16);
        }
    return sum;
}

/* Rows longer than a piece, where no attention waits for single blocks. Item i is piece i % pieces of entry i / pieces of the list. */
template <bool D, bool S>
__global__ static void __launch_bounds__(GATHER_THREADS) gather_long_kernel(sl_gather_params p, sl_rows shape)
{
    begin_clock(p.clock);
    int pieces = (int)((p.rows.row_bytes + PIECE - 1) / PIECE), warps = gridDim.x * (blockDim.x >> 5);
    int64_t n = (int64_t)min(*p.miss_count, p.miss_cap) * pieces,
            i = blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5);
    int row = (int)(i / pieces), piece = (int)(i % pieces), rows = warps / pieces, rest = warps % pieces;
    int64_t src = i < n ? p.miss_src[row] : 0;
    int dst = i < n ? p.miss_dst[row] : 0;
    bool first = (threadIdx.x & 31) == 0;

    while (i < n) {
        uint8_t *to = p.rows.base + dst * p.rows.row_bytes;
        const uint8_t *from = host_row<D>(p, shape, src);
        int at = piece * PIECE;
        int64_t of = src;
        uint32_t want = S ? wanted_sum(p, src, pieces, piece, first) : 0;
        i += warps;
        row += rows + (piece + rest >= pieces);
        piece += rest - (piece + rest >= pieces ? pieces : 0);
        if (i < n) /* before the wait for the piece's bytes */
            src = p.miss_src[row], dst = p.miss_dst[row];
        uint32_t sum = copy_piece<S>(to, from, at, (int)p.rows.row_bytes);
        if (S) {
            sum = __reduce_add_sync(0xffffffffu, sum);
            if (first)
                compare_sum<D>(p, shape, of, want, sum);
        }
    }
    end_clock(p);
}

/* The kernel for these rows; pieces: it cuts them. */
template <bool D, bool S>
static sl_status launch_kernel(sl_cuda *cu, const sl_launch &l, const sl_gather_params *p, bool wide,
                               bool pieces, sl_err *err)
{
    bool dense =
        p->host.page_stride <= 2 * SL_PAGE_TOKENS * p->host.row_stride; /* a layer's pages are contiguous */
    /* a warp copies two rows at a time; otherwise one */
    bool two = dense && p->rows.row_bytes + LINE <= 2 * PART;
    sl_rows shape = sl_rows_of(&p->rows);

    if (pieces)
        return SL_LAUNCH(cu, (gather_long_kernel<D, S>), l, err, *p, shape);
    return two ? SL_LAUNCH(cu, (gather_kernel<2, 2, D, S>), l, err, *p, shape, wide)
               : SL_LAUNCH(cu, (gather_kernel<1, 3, D, S>), l, err, *p, shape, wide);
}

template <bool D>
static sl_status launch(sl_cuda *cu, const sl_launch &l, const sl_gather_params *p, bool wide, bool pieces,
                        sl_err *err)
{
    return p->check.sums ? launch_kernel<D, true>(cu, l, p, wide, pieces, err)
                         : launch_kernel<D, false>(cu, l, p, wide, pieces, err);
}

static sl_status run_gather(sl_backend *be, const void *params, sl_err *err)
{
    const sl_gather_params *p = (const sl_gather_params *)params;
    sl_cuda *cu = sl_cuda_of(be);
    bool side = cu->stream == cu->side_stream;
    /* On the side stream the blocks come in clusters of two, so that they leave pairs of multiprocessors free for the
     * clusters of two of the main stream's kernels. */
    int64_t align = (int64_t)(uintptr_t)p->rows.base | (int64_t)(uintptr_t)p->host.base | p->rows.row_bytes |
                    p->host.page_stride | p->host.row_stride;
    bool wide = align % 16 == 0, pieces = wide && p->rows.row_bytes > PIECE && !p->block_done;

    if (align % 4)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "cuda: gather: rows must be multiples of 4 bytes");
    int blocks = side            ? cu->gpu.side_sms
                 : p->block_done ? cu->gpu.gather_sms
                 : pieces        ? GATHER_BLOCKS_LONG
                                 : GATHER_BLOCKS;
    sl_launch l = {dim3(blocks), GATHER_THREADS, 0, false, !cu->gpu.bulk ? 0 : side ? 2 : 1};
    return sl_row_lists(&p->rows) > 1 || p->rows.block_log2 ? launch<true>(cu, l, p, wide, pieces, err)
                                                            : launch<false>(cu, l, p, wide, pieces, err);
}

const sl_op_impl sl_cuda_gather = {.run = run_gather};
