/* SL_OP_RANDOM and SL_OP_DRAW: synthetic data for benchmarks; see kernels/synth.h. */
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/any/select/select.cuh"
#include "kernels/synth.h"

__device__ static void store_random(const sl_random_params &p, int64_t i)
{
    if (p.dtype == SL_I32) {
        ((int32_t *)p.out)[i] = (int32_t)p.mean + (int32_t)(sl_synth_hash(p.seed, i) % (uint32_t)p.spread);
        return;
    }
    float v = __fadd_rn(p.mean, __fmul_rn(p.spread, sl_synth_uniform(p.seed, i)));
    if (p.dtype == SL_F8_E4M3)
        ((uint8_t *)p.out)[i] = sl_e4m3(v);
    else
        sl_st(p.out, i, v, p.dtype);
}

__global__ static void random_kernel(sl_random_params p, int64_t n)
{
    for (int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * blockDim.x)
        store_random(p, i);
}

static sl_status run_random(sl_backend *be, const void *params, sl_err *err)
{
    const sl_random_params *p = (const sl_random_params *)params;
    int64_t n = (int64_t)p->rows * p->cols;

    return SL_LAUNCH(sl_cuda_of(be), random_kernel,
                     (sl_launch{dim3(min((int64_t)4096, (n + 255) / 256)), 256}), err, *p, n);
}

const sl_op_impl sl_cuda_random = {.run = run_random};

/* The kernel before this one may still be reading or writing the lists that this kernel replaces; the tables are
 * older. So only the store has to wait for it. */
__global__ static void draw_kernel(sl_draw_params p, sl_seq_tables s, uint32_t *deverr)
{
    int seq, pos, at = blockIdx.y * blockDim.x + threadIdx.x, all = sl_draw_lists(&p) * p.ld_ids, id = -1;
    int list = at / p.ld_ids, i = at % p.ld_ids;
    bool padding = s.token_seq[blockIdx.x] == -1, real = sl_token(&s, blockIdx.x, deverr, &seq, &pos),
         mine = at < all && (padding || (real && pos >= p.from_pos));

    if (mine && real && i < p.k)
        id = sl_synth_draw(&p, p.keep ? *p.keep : 0, seq, pos, list, i);
    sl_after_previous();
    sl_let_next_start();
    if (mine)
        p.ids[(int64_t)blockIdx.x * all + at] = id;
}

static sl_status run_draw(sl_backend *be, const void *params, sl_err *err)
{
    const sl_draw_params *p = (const sl_draw_params *)params;

    return SL_LAUNCH(
        sl_cuda_of(be), draw_kernel,
        (sl_launch{dim3(p->seqs->n_tokens, sl_ceil_div(sl_draw_lists(p) * p->ld_ids, 256)), 256, 0, true}),
        err, *p, *p->seqs, sl_cuda_of(be)->deverr);
}

const sl_op_impl sl_cuda_draw = {.run = run_draw};
