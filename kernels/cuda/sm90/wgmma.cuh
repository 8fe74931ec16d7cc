/*
 * The layout of the tiles in shared memory that Hopper's warpgroup products (ptx.cuh) read, and the descriptors that
 * name them. A tile has rows of 128 bytes, swizzled: the 16-byte chunk c of row r lies at byte
 * r * 128 + ((c ^ (r & 7)) << 4), and the tile starts at a multiple of 1,024 bytes.
 *
 * Whoever writes a tile with ordinary stores calls sl_fence_async() before the barrier at which the readers wait.
 */
#ifndef SL_KERNELS_CUDA_SM90_WGMMA_CUH
#define SL_KERNELS_CUDA_SM90_WGMMA_CUH

#include "kernels/cuda/common.cuh"

#define SL_TILE 8192    /* bytes of a tile of 64 rows */
#define SL_TILE_16 2048 /* bytes of 16 of its rows */

/* Byte of chunk c (16 bytes) of row r in a tile. */
__device__ static inline int sl_swizzle(int r, int c)
{
    return r * 128 + ((c ^ (r & 7)) << 4);
}

/* A tile whose rows are outputs (or tokens) and hold 128 bytes of k. */
__device__ static inline uint64_t sl_desc_k(uint32_t addr)
{
    return (uint64_t)((addr & 0x3ffff) >> 4) | (uint64_t)1 << 16 | (uint64_t)(1024 >> 4) << 32 |
           (uint64_t)1 << 62;
}

/* A tile whose rows are k and hold 64 outputs; the next 64 outputs are a tile `next` bytes further on. */
__device__ static inline uint64_t sl_desc_mn(uint32_t addr, uint32_t next)
{
    return (uint64_t)((addr & 0x3ffff) >> 4) | (uint64_t)(next >> 4) << 16 | (uint64_t)(1024 >> 4) << 32 |
           (uint64_t)1 << 62;
}

#endif
