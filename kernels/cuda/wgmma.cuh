/*
 * Hopper's warpgroup matrix product, wrapped: d (64 x n, float32, in registers) = [d +] a * b, both operands
 * as shared memory tiles or a from registers. Tiles are swizzled in 128-byte rows: the 16-byte chunk c of row
 * r lies at r * 128 + ((c ^ (r & 7)) << 4), and a tile starts at a multiple of 1024 bytes.
 *
 * sl_desc_k: rows are outputs, the row holds k. sl_desc_mn: rows are k, the row holds 64 outputs and further
 * 64-output tiles follow at `next`. Writers of a tile fence with sl_fence_async() before the barrier that
 * readers wait at. Only where __CUDA_ARCH_FEAT_SM90_ALL is defined (sm_90a).
 */
#ifndef SL_KERNELS_CUDA_WGMMA_CUH
#define SL_KERNELS_CUDA_WGMMA_CUH

#include "kernels/cuda/common.cuh"

#define SL_TILE 8192 /* bytes of 64 rows of 128 */

__device__ static inline uint32_t sl_smem_addr(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* Byte of chunk c (16 bytes) of row r in a tile. */
__device__ static inline int sl_swizzle(int r, int c)
{
    return r * 128 + ((c ^ (r & 7)) << 4);
}

__device__ static inline uint64_t sl_desc_k(uint32_t addr)
{
    return (uint64_t)((addr & 0x3ffff) >> 4) | (uint64_t)1 << 16 | (uint64_t)(1024 >> 4) << 32 |
           (uint64_t)1 << 62;
}

__device__ static inline uint64_t sl_desc_mn(uint32_t addr, uint32_t next)
{
    return (uint64_t)((addr & 0x3ffff) >> 4) | (uint64_t)(next >> 4) << 16 | (uint64_t)(1024 >> 4) << 32 |
           (uint64_t)1 << 62;
}

__device__ static inline void sl_fence_async(void)
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ static inline void sl_bar_sync(int id, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/* Barriers in shared memory (mbarrier): `count` arrivals end a phase; waiting is for the phase of that
 * parity. */
__device__ static inline void sl_mbar_init(uint64_t *b, int count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(sl_smem_addr(b)), "r"(count) : "memory");
}

__device__ static inline void sl_mbar_arrive(uint64_t *b)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(sl_smem_addr(b)) : "memory");
}

/* Arrives once this thread's cp.async copies have landed; counts among the barrier's arrivals. */
__device__ static inline void sl_mbar_arrive_copies(uint64_t *b)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(sl_smem_addr(b)) : "memory");
}

__device__ static inline void sl_mbar_wait(uint64_t *b, uint32_t parity)
{
    asm volatile("{\n.reg .pred p;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
                 "@p bra done;\n"
                 "bra again;\n"
                 "done:\n}\n" ::"r"(sl_smem_addr(b)),
                 "r"(parity)
                 : "memory");
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
__device__ static inline void sl_wgmma_fence(void)
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

/* Ends a group of products and waits for it. */
__device__ static inline void sl_wgmma_finish(void)
{
    asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;" ::: "memory");
}

/* Output registers of a product and their places in its text, 16 at a time. */
#define SL_OUT_16(d, i)                                                                                      \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]),              \
        "+f"(d[i + 6]), "+f"(d[i + 7]), "+f"(d[i + 8]), "+f"(d[i + 9]), "+f"(d[i + 10]), "+f"(d[i + 11]),    \
        "+f"(d[i + 12]), "+f"(d[i + 13]), "+f"(d[i + 14]), "+f"(d[i + 15])
#define SL_REGS_0 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define SL_REGS_16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define SL_REGS_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"
#define SL_REGS_48 ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

/* Both operands with k in their rows. */
#define SL_WGMMA_N64K16(type)                                                                                \
    __device__ static inline void sl_wgmma_ss_m64n64k16_##type(float(&d)[32], uint64_t a, uint64_t b,        \
                                                               bool add)                                     \
    {                                                                                                        \
        asm volatile("{\n.reg .pred p;\n"                                                                    \
                     "setp.ne.b32 p, %34, 0;\n"                                                              \
                     "wgmma.mma_async.sync.aligned.m64n64k16.f32." #type "." #type " {" SL_REGS_0 SL_REGS_16 \
                     "}, %32, %33, p, 1, 1, 0, 0;\n}\n"                                                      \
                     : SL_OUT_16(d, 0), SL_OUT_16(d, 16)                                                     \
                     : "l"(a), "l"(b), "r"((int)add));                                                       \
    }

/* b with its outputs in the rows (sl_desc_mn). */
#define SL_WGMMA_N128K16_MN(type)                                                                            \
    __device__ static inline void sl_wgmma_ss_m64n128k16_##type##_mn(float(&d)[64], uint64_t a, uint64_t b,  \
                                                                     bool add)                               \
    {                                                                                                        \
        asm volatile("{\n.reg .pred p;\n"                                                                    \
                     "setp.ne.b32 p, %66, 0;\n"                                                              \
                     "wgmma.mma_async.sync.aligned.m64n128k16.f32." #type "." #type                          \
                     " {" SL_REGS_0 SL_REGS_16 SL_REGS_32 SL_REGS_48 "}, %64, %65, p, 1, 1, 0, 1;\n}\n"      \
                     : SL_OUT_16(d, 0), SL_OUT_16(d, 16), SL_OUT_16(d, 32), SL_OUT_16(d, 48)                 \
                     : "l"(a), "l"(b), "r"((int)add));                                                       \
    }

SL_WGMMA_N64K16(f16)
SL_WGMMA_N64K16(bf16)
SL_WGMMA_N128K16_MN(f16)
SL_WGMMA_N128K16_MN(bf16)
#undef SL_WGMMA_N64K16
#undef SL_WGMMA_N128K16_MN

/* a from registers. */
__device__ static inline void sl_wgmma_rs_m64n32k32_e4m3(float (&d)[16], const uint32_t *a, uint64_t b,
                                                         bool add)
{
    asm volatile("{\n.reg .pred p;\n"
                 "setp.ne.b32 p, %21, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n32k32.f32.e4m3.e4m3 {" SL_REGS_0
                 "}, {%16, %17, %18, %19}, %20, p, 1, 1;\n}\n"
                 : SL_OUT_16(d, 0)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)add));
}

#endif

#endif
