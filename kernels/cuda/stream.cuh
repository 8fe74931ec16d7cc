/*
 * Products of few tokens with big weights, bound by reading the weights: one persistent block an SM, a warp
 * that keeps a ring of bulk tensor copies full across tiles, two warpgroups that multiply. Inside of
 * kernels/cuda.
 *
 * A tile is 64 tokens x two boxes of 128 outputs x a range of k: tokens are the product's 64 rows whether
 * they exist or not, so every shape runs the same instructions and a token's bits do not depend on its
 * company. Each warpgroup has one box. How k is cut is a function of the weight's shape alone; parts are
 * added in order.
 */
#ifndef SL_KERNELS_CUDA_STREAM_CUH
#define SL_KERNELS_CUDA_STREAM_CUH

#include "kernels/cuda/wgmma.cuh"
#include "kernels/cuda/stream.h"

#define ST_TOKENS 64
#define ST_BOX 128 /* outputs of a box, bytes of k a stage */
#define ST_BOX_BYTES (ST_BOX * ST_BOX)
#define ST_X_BYTES (ST_TOKENS * ST_BOX)
#define ST_STAGE (2 * ST_BOX_BYTES + ST_X_BYTES)
#define ST_STAGES 5
#define ST_THREADS 288
#define ST_SCALES 64 /* groups of 128 inputs a tile may have */

/* Shared memory: stages, a box of bf16 for the exchange, scales of tokens, barriers; + 1024 to align. */
#define ST_EXCHANGE (ST_TOKENS * ST_BOX * 2)
#define ST_XS_BYTES (ST_TOKENS * 4)
#define ST_SMEM (ST_STAGES * (ST_STAGE + ST_XS_BYTES) + ST_EXCHANGE + 2 * ST_STAGES * 8 + 64 + 1024)

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
/* Waits until the kernels before have written everything; only in kernels launched to start early. */
__device__ static inline void st_wait_before(void)
{
    asm volatile("griddepcontrol.wait;" ::: "memory");
}

__device__ static inline void st_bar_init(uint32_t bar, int count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory");
}

__device__ static inline void st_bar_expect(uint32_t bar, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}

__device__ static inline void st_bar_arrive(uint32_t bar)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}

__device__ static inline void st_bar_wait(uint32_t bar, uint32_t parity)
{
    asm volatile("{\n.reg .pred p;\n"
                 "WAIT_%=:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
                 "@p bra DONE_%=;\n"
                 "bra WAIT_%=;\n"
                 "DONE_%=:\n}\n" ::"r"(bar),
                 "r"(parity)
                 : "memory");
}

/* Stages of shared memory with a pair of barriers each, gone round by who fills and by who reads. */
template <int N> struct st_ring {
    uint32_t base, full, empty; /* shared addresses */
    int stage;
    uint32_t phase;
};

template <int N> __device__ static inline void st_next(st_ring<N> &r)
{
    if (++r.stage == N) {
        r.stage = 0;
        r.phase ^= 1;
    }
}

/* The calling warp has read its stage. */
template <int N> __device__ static inline void st_release(const st_ring<N> &r)
{
    if ((threadIdx.x & 31) == 0)
        st_bar_arrive(r.empty + r.stage * 8);
}

/* A box of a two-dimensional byte map: x bytes along the row, y rows. */
__device__ static inline void st_copy_box(uint32_t dst, const CUtensorMap *map, int x, int y, uint32_t bar)
{
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, "
        "%3}], [%4];" ::"r"(dst),
        "l"(map), "r"(x), "r"(y), "r"(bar)
        : "memory");
}

__device__ static inline void st_copy_bytes(uint32_t dst, const void *src, uint32_t bytes, uint32_t bar)
{
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(dst),
        "l"(src), "r"(bytes), "r"(bar)
        : "memory");
}

/*
 * Four neighbouring lanes hold a row's outputs two by two: lane q columns 2 q.. of each block of eight. Given
 * the words of four blocks, lane q gets those of block q, in the order of the columns.
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

#define ST_D64                                                                                               \
    "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                                \
    "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "                       \
    "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "                       \
    "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}"
#define ST_R8(d, i)                                                                                          \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]),              \
        "+f"(d[i + 6]), "+f"(d[i + 7])
#define ST_R64(d)                                                                                            \
    ST_R8(d, 0), ST_R8(d, 8), ST_R8(d, 16), ST_R8(d, 24), ST_R8(d, 32), ST_R8(d, 40), ST_R8(d, 48),          \
        ST_R8(d, 56)

/* d (64 x 128) = [d +] a * b over 32 bytes of k: 32 fp8 or 16 bf16. */
template <bool F8> __device__ static inline void st_product(float (&d)[64], uint64_t a, uint64_t b, bool add)
{
    if constexpr (F8)
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3 " ST_D64
                     ", %64, %65, p, 1, 1;\n}\n"
                     : ST_R64(d)
                     : "l"(a), "l"(b), "r"((int)add));
    else
        asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
                     "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 " ST_D64
                     ", %64, %65, p, 1, 1, 0, 0;\n}\n"
                     : ST_R64(d)
                     : "l"(a), "l"(b), "r"((int)add));
}
#endif

#endif
