/*
 * The part of ptx.cuh for loads that C++ does not name: single bytes and halves from an address of shared memory, and words
 * of memory that no kernel writes meanwhile, in an order that the compiler keeps.
 */
#ifndef SL_KERNELS_CUDA_PTX_LOADS_CUH
#define SL_KERNELS_CUDA_PTX_LOADS_CUH
#include <stdint.h>

__device__ static inline uint32_t sl_shared_u16(uint32_t at)
{
    uint16_t v;

    asm volatile("ld.shared.u16 %0, [%1];" : "=h"(v) : "r"(at));
    return v;
}

__device__ static inline uint32_t sl_shared_u8(uint32_t at)
{
    uint32_t v;

    asm volatile("ld.shared.u8 %0, [%1];" : "=r"(v) : "r"(at));
    return v;
}

/* Words from `at`, which is a multiple of their bytes. */
__device__ static inline void sl_constant_word(uint32_t &a, uintptr_t at)
{
    asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(a) : "l"(at));
}

__device__ static inline void sl_constant_words(uint32_t &a, uint32_t &b, const void *at)
{
    asm volatile("ld.global.nc.v2.u32 {%0, %1}, [%2];" : "=r"(a), "=r"(b) : "l"(at));
}

__device__ static inline void sl_constant_words(uint32_t &a, uint32_t &b, uint32_t &c, uint32_t &d,
                                                const void *at)
{
    asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a), "=r"(b), "=r"(c), "=r"(d)
                 : "l"(at));
}

#endif
