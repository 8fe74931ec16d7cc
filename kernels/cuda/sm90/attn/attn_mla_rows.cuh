/*
 * Inside attn_mla.cu: the warpgroup that walks the lists and fills the ring of row blocks.
 *
 * Its loads are one block ahead of the ring and its prefetches into the L2 cache two blocks, also across the end of an
 * item, so that the latency of memory is hidden. fp8 rows pass through registers, where they become f16;
 * everything else is copied asynchronously, bf16 rows by quarters of a block, because quarters become free one
 * after the other. Rows after the end of a list are zeros.
 */
#ifndef SL_KERNELS_CUDA_SM90_ATTN_ATTN_MLA_ROWS_CUH
#define SL_KERNELS_CUDA_SM90_ATTN_ATTN_MLA_ROWS_CUH
#include "kernels/cuda/sm90/attn/attn_mla_impl.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
__device__ static inline uint32_t pack(float a, float b, __half)
{
    const float top = 65504.0f;
    __half2 v = __floats2half2_rn(fminf(fmaxf(a, -top), top), fminf(fmaxf(b, -top), top));

    return *(uint32_t *)&v;
}

__device__ static inline uint32_t pack(float a, float b, __nv_bfloat16)
{
    __nv_bfloat162 v = __floats2bfloat162_rn(a, b);

    return *(uint32_t *)&v;
}

__device__ static inline uint32_t dequant2(uint32_t two, __half2 scale)
{
    __half2_raw raw = __nv_cvt_fp8x2_to_halfraw2((__nv_fp8x2_storage_t)two, __NV_E4M3);
    __half2 v = __hmul2(__half2(raw), scale);

    return *(uint32_t *)&v;
}

__device__ static inline uint4 dequant8(uint32_t lo, uint32_t hi, __half2 s)
{
    return make_uint4(dequant2(lo & 0xffff, s), dequant2(lo >> 16, s), dequant2(hi & 0xffff, s),
                      dequant2(hi >> 16, s));
}

/* Row id, or any row when id is negative. */
__device__ static inline const uint8_t *row_of(const uint8_t *base, const sl_row_view &rows, int id)
{
    return base + (uint64_t)(uint32_t)max(id, 0) * (uint32_t)rows.row_bytes;
}

/* The address of a row, `from` bytes into it; any address when there is none. */
__device__ static inline const uint8_t *row_at(const attn_work &w, int32_t id, int from)
{
    return row_of(w.p.rows.base + from, w.p.rows, id);
}

/* Of the calling warp. */
__device__ static inline int32_t (*lists_of(const attn_work &, attn_shared *x))[16]
{
    return x->lists[threadIdx.x >> 5 & 3];
}

/* ---- the walk ---- */

template <typename W> struct place { /* a block of an item; item < 0: after the last item */
    const int32_t *list;             /* the item's list, from this thread's lane on */
    int item, block;
    int rows;               /* number of valid rows */
    typename W::id low, up; /* physical rows of entries lane and lane + 32; used by settle() */
    int need;               /* rows of the block that a gather fetches */
};

/* What differs where rows are no rows of one view, W other than attn_work: look(), start_item(), has_rows(), lists_of() and
 * row_at(), which attn_ring.cu overloads. */

/* Whether thread block `rank` of an item's cluster has any rows. A thread block without a cluster always has a
 * block of rows, which may be empty. */
__device__ static inline bool has_rows(const attn_work &w, int rank)
{
    int first = rank * SPLIT * BLOCK;

    return w.parts == 1 || rank == 0 ||
           (first < min(w.p.k, w.p.ld_ids) &&
            w.p.phys[(int64_t)(blockIdx.y / w.groups) * w.p.ld_ids + first] >= 0);
}

/* Starts to read a place's list entries; settle() uses them later, when they have arrived. */
__device__ static inline void look(place<attn_work> &a, const attn_work &w, int k)
{
    int i = a.block * BLOCK, left = k - i - (int)(threadIdx.x & 31);

    a.low = left > 0 ? a.list[i] : -1;
    a.up = left > 32 ? a.list[i + 32] : -1;
    if (w.p.block_need)
        a.need = w.p.block_need[(int64_t)(a.item / w.groups) * w.p.ld_blocks + a.block];
}

/* Whether all rows of the block have arrived; if so, this thread may read them. */
__device__ static inline bool is_ready(const place<attn_work> &a, const attn_work &w)
{
    int done;

    if (!w.p.block_need || a.item < 0 || a.need == 0)
        return true;
    done = sl_load_acquire(w.p.block_done + (int64_t)(a.item / w.groups) * w.p.ld_blocks + a.block);
    return __all_sync(0xffffffffu, done >= a.need);
}

__device__ static inline void wait_block(const place<attn_work> &a, const attn_work &w)
{
    while (!is_ready(a, w))
        __nanosleep(100);
}

__device__ static inline void start_item(place<attn_work> &a, const attn_work &w, int k)
{
    a.list = w.p.phys + (int64_t)(a.item / w.groups) * w.p.ld_ids + (threadIdx.x & 31);
    if (a.block == 0) /* the whole list is requested into the L2 cache while its beginning is processed */
        for (int i = (threadIdx.x & 127) * 32; i < k; i += 128 * 32)
            sl_prefetch_l2(a.list - (threadIdx.x & 31) + i);
    look(a, w, k);
}

template <typename W> __device__ static inline void next_item(place<W> &a, const W &w, int k)
{
    a.block = 0;
    a.item = w.parts > 1 || a.item + (int)gridDim.x >= w.items ? -1 : a.item + (int)gridDim.x;
    a.low = a.up = -1;
    if (a.item >= 0)
        start_item(a, w, k);
}

template <typename W> __device__ static inline void count_rows(place<W> &a)
{
    uint32_t bad_low = __ballot_sync(0xffffffffu, a.low < 0), bad_up = __ballot_sync(0xffffffffu, a.up < 0);

    a.rows = bad_low ? __ffs(bad_low) - 1 : bad_up ? 31 + __ffs(bad_up) : BLOCK;
}

/* Counts the place's rows. If the list ended before the place, the place becomes the first one of the next item. */
template <typename W> __device__ static inline void find_rows(place<W> &a, const W &w, int k)
{
    count_rows(a);
    if (a.rows == 0 && a.item >= 0 && a.block > (w.parts > 1 ? (int)blockIdx.x * SPLIT : 0)) {
        next_item(a, w, k);
        count_rows(a);
    }
}

/* Finds the place's rows, stores this warp's 16 of them in shared memory (-1 for none) and prefetches them into the L2
 * cache. */
__device__ static inline void settle(place<attn_work> &a, int32_t *list, const attn_work &w, int k)
{
    int warp = threadIdx.x >> 5 & 3, lane = threadIdx.x & 31;

    find_rows(a, w, k);
    int id = warp < 2 ? a.low : a.up;
    if (lane >> 4 == (warp & 1))
        list[lane & 15] = warp * 16 + (lane & 15) < a.rows ? id : -1;
    __syncwarp();
    id = list[lane & 15];
    if (id >= 0) {
        const uint8_t *row = row_of(w.p.rows.base, w.p.rows, id) + (lane >> 4) * 128;
#pragma unroll
        for (int i = 0; i < 5; i++)
            if (i * 256 + (lane >> 4) * 128 < (int)w.p.rows.row_bytes + 127)
                sl_prefetch_l2(i * 256 + (lane >> 4) * 128 < (int)w.p.rows.row_bytes
                                   ? row + i * 256
                                   : row - (lane >> 4) * 128 + w.p.rows.row_bytes - 1);
    }
}

/* bf16 rows: row of the block that is row u of this warp, four of each quarter of a block, in order. */
__device__ static inline int block_row(int u)
{
    return (u >> 2) * 16 + (threadIdx.x >> 5 & 3) * 4 + (u & 3);
}

/* settle() for rows in the order of block_row(); each row is prefetched with one instruction. */
template <typename W>
__device__ static inline void settle_quarters(place<W> &a, typename W::id *list, const W &w, int k)
{
    int lane = threadIdx.x & 31, row = block_row(lane & 15);

    find_rows(a, w, k);
    typename W::id low = __shfl_sync(0xffffffffu, a.low, row & 31),
                   up = __shfl_sync(0xffffffffu, a.up, row & 31),
                   id = row < a.rows ? row < 32 ? low : up : -1;
    if (lane < 16) {
        list[lane] = id;
        if (id >= 0)
            sl_prefetch_l2(row_at(w, id, 0), (uint32_t)w.p.rows.row_bytes);
    }
    __syncwarp();
}

/* The place after a, which is settled, as far as it is known without the list entries of that place. */
template <typename W> __device__ static inline place<W> next_place(const place<W> &a, const W &w, int k)
{
    place<W> n = a;
    int end = w.parts > 1 ? ((int)blockIdx.x + 1) * SPLIT : 1 << 24;

    n.low = n.up = -1;
    if (a.item < 0)
        return n;
    n.block++;
    if (a.rows == BLOCK && n.block < end && n.block * BLOCK < k)
        look(n, w, k);
    else
        next_item(n, w, k);
    return n;
}

/* Copies `tiles` tiles of 64 columns of 16 bits, from tile number `tile` on, of this warp's rows. Their data begins
 * `from` bytes into a row. */
__device__ static inline void copy_tiles(uint32_t kv, const sl_row_view &rows, const int32_t *list, int tile,
                                         int tiles, int from)
{
    int w = threadIdx.x >> 5 & 3, lane = threadIdx.x & 31, chunk = lane & 7;

#pragma unroll
    for (int g = 0; g < 4; g++) {
        int u = g * 4 + (lane >> 3), id = list[u];
        const uint8_t *row = row_of(rows.base + from + chunk * 16, rows, id);
        uint32_t to = kv + tile * SL_TILE + w * SL_TILE_16 + sl_swizzle(u, chunk);
        for (int i = 0; i < tiles; i++)
            sl_copy16(to + i * SL_TILE, row + i * 128, id >= 0);
    }
}

/* ---- fp8 rows ---- */

struct fp8_rows {   /* sixteen rows as one lane holds them */
    uint2 v[16][2]; /* columns from 8 * lane on, and from 256 + 8 * lane on */
    /* of row lane % 16: columns from 128 * (lane / 16) on, and from 256 + 128 * (lane / 16) on */
    float scale[2];
};

__device__ static inline void load_scales(fp8_rows &f, const sl_row_view &rows, const int32_t *list, int lane)
{
    const uint8_t *scales = row_of(rows.base + LORA + (lane >> 4) * 4, rows, list[lane & 15]);

#pragma unroll
    for (int i = 0; i < 2; i++)
        f.scale[i] = sl_load_float_l2(scales + 8 * i);
}

/* Loads four rows, from row 4 g on. */
__device__ static inline void load_four(fp8_rows &f, const sl_row_view &rows, const int32_t *list, int g,
                                        int lane)
{
    const uint8_t *base = rows.base + lane * 8;
    int4 ids = *(const int4 *)(list + 4 * g);

#pragma unroll
    for (int j = 0; j < 4; j++) {
        const uint8_t *row = row_of(base, rows, j == 0 ? ids.x : j == 1 ? ids.y : j == 2 ? ids.z : ids.w);
        f.v[4 * g + j][0] = sl_load8_l2(row);
        f.v[4 * g + j][1] = sl_load8_l2(row + 256);
    }
}

/* Rows beyond `rows` of the block become zeros. */
__device__ static inline void clear_rows(fp8_rows &f, int rows, int lane)
{
    int w = threadIdx.x >> 5 & 3;

#pragma unroll
    for (int u = 0; u < 16; u++)
        if (w * 16 + u >= rows)
            f.v[u][0] = f.v[u][1] = make_uint2(0, 0);
    if (w * 16 + (lane & 15) >= rows)
        f.scale[0] = f.scale[1] = 0;
}

/* Stores rows u and u + 1 of this warp in the tiles. Everything is computed before the first store, so that no
 * instruction waits until a store has read its registers. scale: two f16 each, of lane's row as in fp8_rows. */
__device__ static inline void store_two(uint32_t to, const fp8_rows &f, const uint32_t (&scale)[2], int u,
                                        int lane)
{
    uint4 t[4];

#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint32_t s = __shfl_sync(0xffffffffu, scale[i & 1], (lane & 16) + u + i / 2);
        t[i] = dequant8(f.v[u + i / 2][i & 1].x, f.v[u + i / 2][i & 1].y, *(__half2 *)&s);
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        sl_store16_shared((to ^ ((u + i / 2) & 7) << 4) + (u + i / 2) * 128 + (i & 1) * 4 * SL_TILE, t[i]);
}

/* The block in stage `at` is complete as soon as its copies land: arrives for this thread's copies and, once per
 * warp, for the warp's stores. */
template <typename W>
__device__ static inline void announce(attn_shared *x, int at, const place<W> &cur, const place<W> &next)
{
    if ((threadIdx.x & 127) == 0) {
        x->rows[at] = cur.rows;
        x->last[at] = next.item != cur.item;
    }
    sl_mbar_arrive_copies(&x->full[at]);
    __syncwarp();
    if ((threadIdx.x & 31) == 0)
        sl_mbar_arrive(&x->full[at]);
}

template <typename W> __device__ static inline place<W> first_place(const W &w, int k)
{
    place<W> a = {};

    a.item = w.parts > 1 ? (int)blockIdx.y : (int)blockIdx.x;
    a.block = w.parts > 1 ? (int)blockIdx.x * SPLIT : 0;
    start_item(a, w, k);
    return a;
}

/*
 * Four places are in use. The block that is being filled, the next one (its loads are in flight) and the one after
 * it (its rows are requested into the L2 cache) are settled; of the fourth, the list entries are being read. lists:
 * this warp's lists, indexed by block number % 4.
 */
template <int R>
__device__ static inline void produce(uint32_t smem, const attn_work &w, attn_shared *x, __half)
{
    int32_t(*lists)[16] = x->lists[threadIdx.x >> 5 & 3];
    int k = min(w.p.k, w.p.ld_ids), lane;
    place<attn_work> cur = first_place(w, k), next, after;
    fp8_rows f;

    lane = sl_lane_id();
    uint32_t mine = smem + (lane >> 3) * SL_TILE + (threadIdx.x >> 5 & 3) * SL_TILE_16 + (lane & 7) * 16;
    settle(cur, lists[0], w, k);
    next = next_place(cur, w, k);
    wait_block(cur, w);
    load_scales(f, w.p.rows, lists[0], lane);
#pragma unroll
    for (int g = 0; g < 4; g++)
        load_four(f, w.p.rows, lists[0], g, lane);
    settle(next, lists[1], w, k);
    after = next_place(next, w, k);
    for (int it = 0; cur.item >= 0; it++) {
        int at = it & 1;
        const int32_t *list = lists[it + 1 & 3];
        if (it >= 2)
            sl_mbar_wait(&x->empty[at][QUARTERS - 1], (it >> 1 & 1) ^ 1);
        if (R > 0)
            copy_tiles(smem + at * STAGE, w.p.rows, lists[it & 3], 8, 1, LORA + 16);
        if (cur.rows < BLOCK)
            clear_rows(f, cur.rows, lane);
        __half2 s0 = __float2half2_rn(f.scale[0]), s1 = __float2half2_rn(f.scale[1]);
        uint32_t scale[2] = {*(uint32_t *)&s0, *(uint32_t *)&s1};
#pragma unroll
        for (int u = 0; u < 16; u += 2)
            store_two(mine + at * STAGE, f, scale, u, lane);
        announce(x, at, cur, next); /* before the wait for rows of the next block */
        wait_block(next, w);
        load_scales(f, w.p.rows, list, lane);
#pragma unroll
        for (int g = 0; g < 4; g++)
            load_four(f, w.p.rows, list, g, lane);
        settle(after, lists[it + 2 & 3], w, k);
        cur = next;
        next = after;
        after = next_place(next, w, k);
    }
}

/* ---- bf16 rows ---- */

/* copy_tiles() for this warp's four rows of a quarter. */
template <typename W>
__device__ static inline void copy_quarter(uint32_t kv, const W &w, const typename W::id *list, int q,
                                           int tile, int tiles, int from)
{
    int lane = threadIdx.x & 31, chunk = lane & 7;
    typename W::id id = list[q * 4 + (lane >> 3)];
    const uint8_t *row = row_at(w, id, from + chunk * 16);
    uint32_t to = kv + tile * SL_TILE + sl_swizzle(block_row(4 * q) + (lane >> 3), chunk);

    for (int i = 0; i < tiles; i++)
        sl_copy16(to + i * SL_TILE, row + i * 128, id >= 0);
}

__device__ static inline void wait_quarter(attn_shared *x, int it, int q)
{
    if (it >= 2)
        sl_mbar_wait(&x->empty[it & 1][q], (it >> 1 & 1) ^ 1);
}

template <int R, typename W>
__device__ static inline void produce(uint32_t smem, const W &w, attn_shared *x, __nv_bfloat16)
{
    typename W::id(*lists)[16] = lists_of(w, x);
    int k = min(w.p.k, w.p.ld_ids);
    place<W> cur = first_place(w, k), next, after;

    settle_quarters(cur, lists[0], w, k);
    next = next_place(cur, w, k);
    settle_quarters(next, lists[1], w, k);
    after = next_place(next, w, k);
    for (int it = 0; cur.item >= 0; it++) {
        int at = it & 1;
        wait_block(cur, w);
#pragma unroll
        for (int q = 0; q < QUARTERS; q++) {
            wait_quarter(x, it, q);
            copy_quarter(smem + at * STAGE, w, lists[it & 3], q, 0, TILES - 1, 0);
        }
#pragma unroll
        /* the rope columns; their memory held the probabilities of the previous block */
        for (int q = 0; q < QUARTERS && R > 0; q++)
            copy_quarter(smem + at * STAGE, w, lists[it & 3], q, TILES - 1, 1, LORA * 2);
        announce(x, at, cur, next);
        settle_quarters(after, lists[it + 2 & 3], w, k);
        cur = next;
        next = after;
        after = next_place(next, w, k);
    }
}
#endif

#endif
