/* Forgets the rows of one hot slot or of all slots: afterwards no token has a row, and no entry is in use. One
 * thread per entry. */
#include "kernels/cuda/common.cuh"

#define BLOCKS 16 /* per slot */
#define THREADS 256
#define NO_SLOT 0xffffu

__global__ static void hot_reset_kernel(sl_hot_reset_params p, int first)
{
    int64_t slot = first + blockIdx.y;
    int stride = gridDim.x * blockDim.x, i0 = blockIdx.x * blockDim.x + threadIdx.x, n = p.hot_rows;

    for (int i = i0; i < p.hot.max_tokens; i += stride)
        p.hot.slot_of[slot * p.hot.max_tokens + i] = NO_SLOT;
    for (int i = i0; i < n; i += stride) {
        p.hot.token_of[slot * n + i] = -1;
        p.hot.stamp[slot * n + i] = 0;
    }
    for (int i = i0; p.hot.next && i <= n; i += stride) { /* the lru policy's list */
        p.hot.next[slot * (n + 1) + i] = (uint16_t)(i == n ? 0 : i + 1);
        p.hot.prev[slot * (n + 1) + i] = (uint16_t)(i == 0 ? n : i - 1);
    }
    if (i0 < 4)
        p.hot.counters[slot * 4 + i0] = 0;
    if (i0 == 0 && p.hot.cursor) /* the clock policy's hand */
        p.hot.cursor[slot] = 0;
}

static sl_status run_hot_reset(sl_backend *be, const void *params, sl_err *err)
{
    const sl_hot_reset_params *p = (const sl_hot_reset_params *)params;
    int first = p->slot < 0 ? 0 : p->slot, n = p->slot < 0 ? p->hot_slots : 1;

    return sl_for_slices(n, SL_GRID_YZ, [&](int done, int count) {
        return SL_LAUNCH(sl_cuda_of(be), hot_reset_kernel, (sl_launch{dim3(BLOCKS, count), THREADS}), err, *p,
                         first + done);
    });
}

const sl_op_impl sl_cuda_hot_reset = {.run = run_hot_reset};
