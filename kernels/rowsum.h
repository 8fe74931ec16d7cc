/*
 * Checksums of rows: what a gather (SL_OP_GATHER) compares every row with that it copies, so that a row that has changed in
 * host memory is found before a token is computed from it. Once for C and for CUDA, with the same bits.
 *
 * A row has one checksum of 32 bits for each SL_ROWSUM_PART bytes that it begins. It is the sum of a value for every 16
 * bytes, so that the lanes of a warp can add theirs in any order:
 *
 *     v(w0 .. w3, i) = fold((w0 + k0) (w1 + k1) + (w2 + k2) (w3 + k3))   words of 32 bits, products of 64, k = key + i G
 *
 * where fold(x) = low half ^ high half, i counts the 16 bytes of the part, and bytes that a row does not have count as 0.
 * Sums of products of such pairs are a universal hash (NH): two rows have the same checksum with a probability of about
 * 2^-32, whichever of their bytes differ. This is against accidents and strangers to the process, not against somebody who
 * can compute the checksum too. 0 stands for "no checksum": a sum of 0 becomes 1.
 */
#ifndef SL_KERNELS_ROWSUM_H
#define SL_KERNELS_ROWSUM_H

#include <stddef.h>
#include <stdint.h>

#ifdef __CUDACC__
#define SL_ROWSUM_FN __host__ __device__ static inline
#else
#define SL_ROWSUM_FN static inline
#endif

#define SL_ROWSUM_PART 2048 /* bytes of a row that share a checksum */
#define SL_ROWSUM_STEP 0x9e3779b1u

/* The number of checksums of a row. */
SL_ROWSUM_FN int64_t sl_rowsum_parts(int64_t row_bytes)
{
    return (row_bytes + SL_ROWSUM_PART - 1) / SL_ROWSUM_PART;
}

/* The value of the 16 bytes of this number of a part. */
SL_ROWSUM_FN uint32_t sl_rowsum_value(uint32_t w0, uint32_t w1, uint32_t w2, uint32_t w3, uint32_t i)
{
    const uint32_t k = i * SL_ROWSUM_STEP;
    uint64_t x = (uint64_t)(w0 + k + 0x243f6a88u) * (w1 + k + 0x85a308d3u) +
                 (uint64_t)(w2 + k + 0x13198a2eu) * (w3 + k + 0x03707344u);
    return (uint32_t)x ^ (uint32_t)(x >> 32);
}

/* The checksum, from the sum of the values. */
SL_ROWSUM_FN uint32_t sl_rowsum_end(uint32_t sum)
{
    return sum ? sum : 1;
}

#ifdef __cplusplus
extern "C" {
#endif

/* The checksum of one part, of n <= SL_ROWSUM_PART bytes. */
uint32_t sl_rowsum(const void *part, size_t n);

#ifdef __cplusplus
}
#endif

#endif
