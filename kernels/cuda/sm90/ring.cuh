/*
 * The ring of bulk tensor copies of pipeline.cuh: stages with their barriers, sizes of boxes, where the values of a product are in
 * the threads of a warpgroup. Internal to kernels/cuda.
 */
#ifndef SL_KERNELS_CUDA_SM90_RING_CUH
#define SL_KERNELS_CUDA_SM90_RING_CUH

#include "kernels/cuda/sm90/wgmma.cuh"
#include "kernels/cuda/maps.h"

#define ST_TOKENS 64
#define ST_BOX 128 /* outputs per box, and bytes of k per stage */
#define ST_BOX_BYTES (ST_BOX * ST_BOX)
#define ST_X_BYTES (ST_TOKENS * ST_BOX)
#define ST_MULTIPLIERS 256 /* threads of the two warpgroups that multiply; thread ST_MULTIPLIERS copies */
#define ST_SCALES 64       /* groups of 128 inputs that a tile may have */
/* Registers per thread where a whole warpgroup copies: of that warpgroup, and of those that multiply. */
#define ST_COPY_REGS 40
#define ST_MULTIPLY_REGS 232

#define ST_XS_BYTES (ST_TOKENS * 4) /* scales of a stage's tokens */

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
/*
 * The stages of shared memory are a ring; each has two barriers. A phase of `full` ends after one arrival, that of the
 * thread that copies, and after all bytes that it announced have arrived. A phase of `empty` ends after one arrival of
 * each warp that multiplies.
 */
template <int N, int THREADS = ST_MULTIPLIERS>
__device__ static inline void st_init_stages(uint32_t full, uint32_t empty)
{
    for (int i = 0; i < N; i++) {
        sl_mbar_init(full + i * 8, 1);
        sl_mbar_init(empty + i * 8, THREADS / 32);
    }
    sl_mbar_init_fence();
}

/* Position in the ring of one of the two sides, the one that fills stages or the one that reads them. */
template <int N> struct st_ring {
    uint32_t base, full, empty; /* shared addresses */
    int stage;
    uint32_t phase; /* parity of the pass over the ring */
};

template <int N> __device__ static inline void st_next(st_ring<N> &r)
{
    if (++r.stage == N) {
        r.stage = 0;
        r.phase ^= 1;
    }
}

/* Reports that the calling warp has finished reading its stage. */
template <int N> __device__ static inline void st_release(const st_ring<N> &r)
{
    if ((threadIdx.x & 31) == 0)
        sl_mbar_arrive(r.empty + r.stage * 8);
}

/* The first of the two rows (tokens) of a product's 64 that this thread holds; the second is eight rows later. */
__device__ static inline int st_row(int lane)
{
    return (threadIdx.x >> 5 & 3) * 16 + lane / 4;
}

/*
 * Transposes the outputs of a row among the four neighbouring lanes that hold it. Before: lane q has columns 2 q and
 * 2 q + 1 of each block of eight, one word per block. After: of four blocks, lane q has all words of block q, in the
 * order of the columns.
 */
__device__ static inline uint4 st_turn(uint32_t v0, uint32_t v1, uint32_t v2, uint32_t v3)
{
    bool odd = threadIdx.x & 1, high = threadIdx.x & 2;
    uint32_t r0 = __shfl_xor_sync(0xffffffffu, odd ? v0 : v1, 1),
             r1 = __shfl_xor_sync(0xffffffffu, odd ? v2 : v3, 1);
    uint32_t t0 = odd ? r0 : v0, t1 = odd ? v1 : r0, u0 = odd ? r1 : v2, u1 = odd ? v3 : r1;
    uint32_t s0 = __shfl_xor_sync(0xffffffffu, high ? t0 : u0, 2),
             s1 = __shfl_xor_sync(0xffffffffu, high ? t1 : u1, 2);

    return high ? make_uint4(s0, s1, u0, u1) : make_uint4(t0, t1, s0, s1);
}

__device__ static inline uint32_t st_pack(float a, float b)
{
    __nv_bfloat162 v = __floats2bfloat162_rn(a, b);

    return *(uint32_t *)&v;
}

/* d (64 x 128) = [d +] a * b over 32 bytes of k: 32 fp8 or 16 bf16. */
template <bool F8> __device__ static inline void st_product(float (&d)[64], uint64_t a, uint64_t b, bool add)
{
    if constexpr (F8)
        sl_wgmma_n128_e4m3(d, a, b, add);
    else
        sl_wgmma_n128_bf16(d, a, b, add);
}
#endif

#endif
