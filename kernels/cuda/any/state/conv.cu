/*
 * Causal convolution of each channel: one thread per channel of a token. Outputs read the step's values or the state; a second
 * kernel then stores the values of the last tokens of each sequence, so that no token reads a state that has changed.
 */
#include "kernels/cuda/any/state/runs.cuh"

#define THREADS 256

__global__ static void __launch_bounds__(THREADS)
    conv_kernel(sl_conv_params p, sl_seq_tables s, uint32_t *deverr)
{
    int t = blockIdx.x, c = blockIdx.y * THREADS + threadIdx.x, ring = (p.taps - 1) * p.dilation, seq, pos;
    float sum = 0;

    if (c >= p.channels || !sl_token(&s, t, deverr, &seq, &pos))
        return;
    const float *state = (const float *)(p.state + seq * p.state_stride), *w = p.w + (int64_t)c * p.taps;
    for (int j = 0; j < p.taps; j++) {
        int back = (p.taps - 1 - j) * p.dilation;
        float x = 0;
        if (sl_in_step(s, t, seq, back))
            x = p.x[(int64_t)(t - back) * p.ld_x + c];
        else if (pos >= back)
            x = state[(int64_t)((pos - back) % ring) * p.channels + c];
        sum = __fadd_rn(sum, __fmul_rn(w[j], x));
    }
    sum = __fmul_rn(sum, sl_sigmoid(sum));
    int64_t at = (int64_t)t * p.channels + c;
    sl_st(p.out, at, p.add ? __fadd_rn(sum, p.add[at]) : sum, p.out_dtype);
}

__global__ static void __launch_bounds__(THREADS)
    keep_kernel(sl_conv_params p, sl_seq_tables s, uint32_t *deverr)
{
    int t = blockIdx.x, c = blockIdx.y * THREADS + threadIdx.x, ring = (p.taps - 1) * p.dilation, seq, pos;

    if (c >= p.channels || !sl_token(&s, t, deverr, &seq, &pos) || sl_in_step(s, t, seq, -ring))
        return;
    ((float *)(p.state + seq * p.state_stride))[(int64_t)(pos % ring) * p.channels + c] =
        p.x[(int64_t)t * p.ld_x + c];
}

static sl_status run_conv(sl_backend *be, const void *params, sl_err *err)
{
    const sl_conv_params *p = (const sl_conv_params *)params;
    sl_cuda *cu = sl_cuda_of(be);
    sl_launch shape = {dim3((unsigned)p->seqs->n_tokens, (unsigned)sl_ceil_div(p->channels, THREADS)),
                       THREADS};

    SL_TRY(SL_LAUNCH(cu, conv_kernel, shape, err, *p, *p->seqs, cu->deverr));
    return SL_LAUNCH(cu, keep_kernel, shape, err, *p, *p->seqs, cu->deverr);
}

const sl_op_impl sl_cuda_conv = {.run = run_conv};
