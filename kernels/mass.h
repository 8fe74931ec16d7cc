/*
 * Weights as whole numbers, for lists that end with a share of a sum (sl_topk_params.mass, sl_cluster_lists_params.mass): sums of
 * whole numbers do not depend on their order, so that every backend ends a list at the same entry.
 *
 * The largest weight of a list stands for 2^40, the others for their share of this number, rounded down; what is not above 0 counts as 0.
 */
#ifndef SL_KERNELS_MASS_H
#define SL_KERNELS_MASS_H

#include <stdint.h>

#ifdef __CUDACC__
#define SL_MASS_FN __host__ __device__ static inline
#else
#define SL_MASS_FN static inline
#endif

#define SL_MASS_BITS 40

/* best: the largest weight of the list, above 0. */
SL_MASS_FN uint64_t sl_mass_units(float weight, float best)
{
    const uint64_t one = (uint64_t)1 << SL_MASS_BITS;

    if (!(weight > 0))
        return 0;
    return weight < best ? (uint64_t)((double)weight / (double)best * (double)one) : one;
}

/* The units that a list needs of `all`. */
SL_MASS_FN uint64_t sl_mass_need(float share, uint64_t all)
{
    return share < 1 ? (uint64_t)((double)share * (double)all) : all;
}

#endif
