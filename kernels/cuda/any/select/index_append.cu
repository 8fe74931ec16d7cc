/*
 * New index keys: LayerNorm or RMS norm, RoPE, Hadamard and fp8 as the convention says, written to the device pool and to the
 * host arena in the block layout (64 keys, then 64 scales). One warp per token.
 */
#include "kernels/cuda/any/select/index_key.cuh"

__device__ static void put_key(uint8_t *block, int slot, const float *v, float scale, const sl_index_vec &c)
{
    int lane = threadIdx.x & 31;

    if (!c.official) {
        for (int i = lane; i < c.dim; i += 32)
            ((float *)block)[slot * c.dim + i] = v[i];
        return;
    }
    for (int i = lane; i < c.dim; i += 32)
        block[slot * c.dim + i] = sl_e4m3(v[i] / scale);
    if (lane == 0)
        ((float *)(block + SL_PAGE_TOKENS * c.dim))[slot] = scale;
}

__global__ static void index_append_kernel(sl_index_append_params p, sl_seq_tables s, uint32_t *deverr)
{
    __shared__ float rows[4][SL_INDEX_DIM_MAX];
    float *v = rows[threadIdx.x >> 5];
    int lane = threadIdx.x & 31, t = blockIdx.x * 4 + (threadIdx.x >> 5), seq, pos;
    sl_index_vec c = {p.dim, p.rope, p.interleaved, p.format == SL_INDEX_OFFICIAL, p.act};
    double sum = 0, sq = 0;

    if (t >= s.n_tokens || !sl_token(&s, t, deverr, &seq, &pos))
        return;
    for (int i = lane; i < p.dim; i += 32) {
        v[i] = sl_ld(p.k, (int64_t)t * p.ld_k + i, p.act);
        if (c.official)
            v[i] = sl_bf16r(v[i]);
        sum += v[i];
    }
    const bool rms = p.norm_bias == NULL;
    double mean = rms ? 0 : sl_warp_sum(sum) / p.dim;
    for (int i = lane; i < p.dim; i += 32)
        sq += (v[i] - mean) * (v[i] - mean);
    float r = (float)(1.0 / sqrt(sl_warp_sum(sq) / p.dim + (double)p.eps)), m = (float)mean;
    for (int i = lane; i < p.dim; i += 32) {
        float n = __fmul_rn(__fsub_rn(v[i], m), r);
        n = __fmul_rn(n, sl_ld(p.norm_weight, i, p.norm_dtype));
        if (!rms)
            n = __fadd_rn(n, sl_ld(p.norm_bias, i, p.norm_dtype));
        v[i] = sl_index_round(c, n);
    }
    __syncwarp();
    sl_index_rope(v, p.cos_sin + (int64_t)pos * p.rope, c);
    float scale = 1.0f;
    if (c.official) {
        sl_index_hadamard(v, p.dim);
        scale = sl_index_scale(v, p.dim);
    }
    int64_t entry = (int64_t)seq * s.ld + pos / SL_PAGE_TOKENS;
    int page = s.index_pages[entry], host = p.host.base ? s.host_pages[entry] : 0;
    if (page < 0 || host < 0) {
        if (lane == 0)
            atomicOr(deverr, SL_DEVERR_PAGE);
        return;
    }
    put_key(p.index_base + page * p.index_page_stride, pos % SL_PAGE_TOKENS, v, scale, c);
    if (p.host.base)
        put_key(p.host.base + host * p.host.page_stride, pos % SL_PAGE_TOKENS, v, scale, c);
}

static sl_status run_index_append(sl_backend *be, const void *params, sl_err *err)
{
    const sl_index_append_params *p = (const sl_index_append_params *)params;

    if (p->dim > SL_INDEX_DIM_MAX)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "cuda: index_append: dim %d exceeds %d", p->dim,
                       SL_INDEX_DIM_MAX);
    return SL_LAUNCH(sl_cuda_of(be), index_append_kernel,
                     (sl_launch{dim3(sl_ceil_div(p->seqs->n_tokens, 4)), 128}), err, *p, *p->seqs,
                     sl_cuda_of(be)->deverr);
}

const sl_op_impl sl_cuda_index_append = {.run = run_index_append};
