/*
 * The part of ptx.cuh, which includes it, that is for one warp: products (mma.sync), the loads of their operands from shared
 * memory (ldmatrix), and a small asynchronous copy. Sums of products have the bits of the warpgroup products over the same k,
 * 16 values at a time.
 */
#ifndef SL_KERNELS_CUDA_PTX_WARP_CUH
#define SL_KERNELS_CUDA_PTX_WARP_CUH
#include <stdint.h>

/* As sl_copy16(), with 4 bytes and through the L1 cache. */
__device__ static inline void sl_copy4(uint32_t to, const void *from, bool some)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(some ? 4 : 0)
                 : "memory");
}

/* Four matrices of 8 rows of 16 bytes; lane i names row i % 8 of matrix i / 8. Thread t receives of each matrix the
 * four bytes t % 4 of row t / 4. */
__device__ static inline void sl_ldmatrix(uint32_t (&r)[4], uint32_t at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}

/* The same transposed, in units of two bytes: thread t receives unit t / 4 of the rows 2 (t % 4) and 2 (t % 4) + 1. */
__device__ static inline void sl_ldmatrix_trans(uint32_t (&r)[4], uint32_t at)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}

/* d += a * b: 16 rows, 8 columns, 16 values of k. Thread t holds of d the columns 2 (t % 4) and the next one, in row
 * t / 4 (d[0], d[1]) and in row t / 4 + 8 (d[2], d[3]). */
__device__ static inline void sl_mma_bf16(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
        "{%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

#endif
