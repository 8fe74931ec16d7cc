/*
 * Inside gqa_decode.cu: the side that walks the lists and fills the ring. Boxes are started by one warp: each lane finds
 * one box of a step and starts it for the keys and for the values. What lies after the end of a segment is not copied:
 * scores are masked there, and dec_clear_values() clears the values.
 */
#ifndef SL_KERNELS_CUDA_SM90_ATTN_GQA_DECODE_FETCH_CUH
#define SL_KERNELS_CUDA_SM90_ATTN_GQA_DECODE_FETCH_CUH
#include "kernels/cuda/sm90/attn/gqa_decode_impl.cuh"
#include "kernels/cuda/ptx.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
/* The tokens [first, end) of a unit within its list, and what gqa_entry() needs. */
struct dec_part {
    gqa_list l;
    int first, end;
};

/* The part of a list of rows that a unit covers, by one warp. All loads are independent of each other. */
__device__ static inline dec_part dec_listed(const gqa_work &w, const dec_unit &u)
{
    int64_t list = u.t * w.lists + (w.lists > 1 ? u.kv_head : 0);
    dec_part a = {
        {w.p.phys + list * w.p.ld_ids, w.p.ids + list * w.p.ld_ids, u.kv_head, 0}, u.part * SEGMENT, 0};
    int log2 = w.p.rows.block_log2, lane = threadIdx.x & 31, from = a.first >> log2;
    int most = min(SEGMENT >> log2, w.p.k - from), n = 0, last = 0, pos = log2 ? w.p.pos[u.t] : 0;
    bool more = from + most < w.p.k && a.l.rows[from + most] >= 0;

    if (log2 == 0) {
        a.end = a.first + gqa_entries(a.l.rows + from, most);
        return a;
    }
    for (int i = 0; i < most; i += 32) {
        int entry = i + lane < most ? a.l.rows[from + i + lane] : -1;
        int block = i + lane < most ? a.l.blocks[from + i + lane] : 0;
        int have = __popc(__ballot_sync(0xffffffffu, entry >= 0));

        if (have > 0)
            last = __shfl_sync(0xffffffffu, block, have - 1);
        n += have;
    }
    a.end = a.first + (n << log2);
    if (n > 0 && !more) { /* of the list's last block, the tokens that are not after pos */
        int64_t left = (int64_t)pos + 1 - ((int64_t)last << log2);

        a.end += (int)max(min(left, (int64_t)1 << log2), (int64_t)0) - (1 << log2);
    }
    return a;
}

__device__ static inline dec_part dec_part_of(const dec_work &w, const dec_unit &u)
{
    if (!w.g.p.seqs && w.parts > 1)
        return dec_listed(w.g, u);
    dec_part a = {gqa_list_of(w.g, u.t, u.kv_head), u.part * SEGMENT, 0};

    a.end = w.parts > 1 ? min(a.l.n, a.first + SEGMENT) : a.l.n;
    return a;
}

/* Stores what the multiplying side must know of a step. */
template <int DIM, int STEP>
__device__ static inline void dec_describe(dec_shared<DIM> *x, int s, const dec_part &a, int at)
{
    x->rows[s] = max(min(a.end - at, STEP), 0);
    x->last[s] = at + STEP >= a.end;
}

template <int DIM>
__device__ static inline void dec_fetch_boxes(const dec_work &w, const CUtensorMap *map, uint8_t *smem,
                                              dec_shared<DIM> *x)
{
    typedef dec_size<DIM, DEC_BOXES> size;
    const int step = size::STEP, halves = DIM / 64;
    int lane = threadIdx.x & 31, units = dec_units(w), it = 0, boxes = step / w.b.box;
    int box = lane % boxes, half = lane / boxes, token = box * w.b.box;
    uint32_t to = sl_smem_addr(smem) + half * (step * 128) + token * 128;

    for (int i = blockIdx.x; i < units; i += gridDim.x) {
        dec_unit u = dec_unit_at(w, i);
        dec_part a = dec_part_of(w, u);
        int byte = u.kv_head * w.b.head_x + half * 128;
        int entry = half < halves && a.first + token < a.end ? gqa_entry(w.g, a.l, a.first + token) : -1;

        for (int at = a.first; at < a.end || at == a.first; at += step, it++) {
            int s = it % size::STAGES, round = it / size::STAGES;
            int64_t row = gqa_row(w.g, a.l, at + token, entry);
            bool mine = row >= 0;
            uint32_t bytes = __popc(__ballot_sync(0xffffffffu, mine)) * w.b.box * 128;

            if (half < halves && at + token < a.end && !mine)
                atomicOr(w.g.deverr, SL_DEVERR_PAGE);
            /* needed in the next round: its latency passes while this step is waited for */
            entry = half < halves && at + step + token < a.end ? gqa_entry(w.g, a.l, at + step + token) : -1;
#pragma unroll
            for (int side = 0; side < 2; side++) {
                uint32_t full = sl_smem_addr(side ? &x->full_v[s] : &x->full_k[s]);

                if (round > 0)
                    sl_mbar_wait(side ? &x->empty_v[s] : &x->empty_k[s], (round - 1) & 1);
                if (lane == 0) {
                    if (side == 0)
                        dec_describe<DIM, step>(x, s, a, at);
                    sl_mbar_expect(full, bytes);
                }
                __syncwarp();
                if (mine)
                    sl_copy_box(to + (s * 2 + side) * size::SIDE, map, byte + side * w.b.side_x,
                                (int)row * w.b.row_y + side * w.b.side_y, full);
            }
        }
    }
}

/* Copies one side (0: keys, 1: values) of this warp's tokens of a step to the tiles at `to`. */
template <int DIM, int STEP>
__device__ static inline void dec_copy(const gqa_work &w, int64_t place, uint32_t to, int side)
{
    const int chunks = DIM / 8, per = 32 / chunks,
              mine = STEP / 4; /* chunks of a token; tokens at a time; of a warp */
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5 & 3, c = lane % chunks;
    const uint8_t *base = w.p.rows.base + side * (int64_t)w.slots * DIM * 2 + c * 16;

#pragma unroll
    for (int j = 0; j < mine; j += per) {
        int r = j + lane / chunks;
        int64_t at = __shfl_sync(0xffffffffu, place, r);

        sl_copy16(to + c / 8 * (STEP * 128) + sl_swizzle(warp * mine + r, c % 8), base + (at < 0 ? 0 : at),
                  at >= 0);
    }
}

/* Byte of chunk c (16 bytes) of token r of one side of a step of fp8 rows. No two of eight adjacent tokens share a bank. */
template <int DIM, int STEP> __device__ static inline uint32_t dec_byte(int r, int c)
{
    if (DIM == 64) /* two tokens to a line of 128 bytes */
        return r * 64 + ((c ^ (r >> 1 & 3)) << 4);
    return c / 8 * (STEP * 128) + sl_swizzle(r, c % 8);
}

/* Copies one side of this warp's tokens of a step of fp8 rows, and their scales. */
template <int DIM, int STEP>
__device__ static inline void dec_copy_bytes(const gqa_work &w, int64_t at, const float *scale, uint32_t to,
                                             float *scales, int side)
{
    const int chunks = DIM / 16, per = 32 / chunks,
              mine = STEP / 4; /* chunks of a token; tokens at a time; of a warp */
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5 & 3, c = lane % chunks;
    const uint8_t *base = w.p.rows.base + side * (int64_t)w.slots * DIM + c * 16;

    if (lane < mine)
        sl_copy4(sl_smem_addr(scales + warp * mine + lane), scale + side * w.slots, at >= 0);
#pragma unroll
    for (int j = 0; j < mine; j += per) {
        int r = j + lane / chunks;
        int64_t from = __shfl_sync(0xffffffffu, at, r);

        sl_copy16(to + dec_byte<DIM, STEP>(warp * mine + r, c), base + (from < 0 ? 0 : from), from >= 0);
    }
}

/* Where this lane's token is: bytes from the base of the rows to its key, or -1; with fp8 rows, its scales. */
template <int MODE>
__device__ static inline int64_t dec_find(const gqa_work &w, const dec_part &a, int i, int entry,
                                          const float **scale)
{
    int64_t row = i < a.end ? gqa_row(w, a.l, i, entry) : -1, slot = gqa_slot(w, a.l, i);
    int64_t at = row * w.p.rows.row_bytes;

    *scale = (const float *)w.p.rows.base;
    if (row < 0) {
        if (i < a.end)
            atomicOr(w.deverr, SL_DEVERR_PAGE);
        return -1;
    }
    if (MODE == DEC_BYTES)
        *scale = (const float *)(w.p.rows.base + at + 2 * (int64_t)w.slots * w.p.dim) + slot;
    return at + slot * w.p.dim * (MODE == DEC_BYTES ? 1 : 2);
}

/* The same by four warps, each of which brings a quarter of a step's tokens; those after the end are zeros. */
template <int DIM, int MODE>
__device__ static inline void dec_fetch_rows(const dec_work &w, uint8_t *smem, dec_shared<DIM> *x)
{
    typedef dec_size<DIM, MODE> size;
    const int step = size::STEP, mine = step / 4;
    int lane = threadIdx.x & 31, warp = threadIdx.x >> 5 & 3, units = dec_units(w), it = 0;
    int token = warp * mine + lane % mine;
    uint32_t ring = sl_smem_addr(smem);

    for (int i = blockIdx.x; i < units; i += gridDim.x) {
        dec_part a = dec_part_of(w, dec_unit_at(w, i));
        int entry = a.first + token < a.end ? gqa_entry(w.g, a.l, a.first + token) : -1;

        for (int at = a.first; at < a.end || at == a.first; at += step, it++) {
            int s = it % size::STAGES, round = it / size::STAGES;
            const float *scale;
            int64_t place = dec_find<MODE>(w.g, a, at + token, entry, &scale);

            /* needed in the next round: its latency passes while this step is copied */
            entry = at + step + token < a.end ? gqa_entry(w.g, a.l, at + step + token) : -1;
#pragma unroll
            for (int side = 0; side < 2; side++) {
                uint64_t *full = side ? &x->full_v[s] : &x->full_k[s];
                uint32_t to = ring + (s * 2 + side) * size::SIDE;

                if (round > 0)
                    sl_mbar_wait(side ? &x->empty_v[s] : &x->empty_k[s], (round - 1) & 1);
                if (side == 0 && (threadIdx.x & 127) == 0) {
                    dec_describe<DIM, step>(x, s, a, at);
                    sl_mbar_arrive(full);
                }
                if (MODE == DEC_BYTES)
                    dec_copy_bytes<DIM, step>(w.g, place, scale, to, x->scale[s][side], side);
                else
                    dec_copy<DIM, step>(w.g, place, to, side);
                sl_mbar_arrive_copies(full);
            }
        }
    }
}
#endif

#endif
