/*
 * The tiles of the paths of routed experts that stream weights for few tokens (moe_few.cu, moe_half.cu): the (token,
 * choice) pairs are grouped by expert into rows, each expert's rows are padded to a multiple of eight, and a tile is up to
 * MT_TOKENS rows of one expert. Internal to kernels/cuda.
 */
#ifndef SL_KERNELS_CUDA_SM90_EXPERTS_MOE_TILES_CUH
#define SL_KERNELS_CUDA_SM90_EXPERTS_MOE_TILES_CUH

#include "kernels/cuda/any/experts/moe_group.cuh"
#include "kernels/cuda/any/experts/moe_list.cuh"

#define MT_TOKENS 32

struct moe_rows {
    int32_t *pair;   /* [rows], -1 for padding */
    int32_t *row_of; /* [pairs], -1 without a row */
    int32_t *tile_expert, *tile_first, *tile_count, *n_tiles;
};

/* Inputs of padding rows are not initialised: their results are not stored. */
__global__ static void __launch_bounds__(SL_MOE_MAX_EXPERTS)
    mt_group_kernel(const int32_t *ids, int pairs, int experts, moe_rows rows, sl_moe_arrived arrived,
                    uint32_t *deverr)
{
    if (sl_moe_list(arrived, deverr))
        return;
    sl_moe_group<MT_TOKENS, 8, 4>(
        ids, pairs, experts, rows.pair, rows.n_tiles, deverr,
        [&](int e, int at, int first, int count, int, int) {
            rows.tile_expert[at] = e;
            rows.tile_first[at] = first;
            rows.tile_count[at] = count;
        },
        [&](int i, int row) { rows.row_of[i] = row; });
}

#endif
