/*
 * New latent rows: RMSNorm of the latent, RoPE of k_pe, encoding, and two writes: the device row (a row of a pool page
 * or of the tail) and the host row, directly in the pinned arena. One block per token; the row is first built in
 * shared memory, so that both writes consist of whole words.
 */
#include "kernels/cuda/common.cuh"

/* Encodes row[lora + rope] (floats) to bytes[] in the cache's format. fp8: one warp per group of 128. */
__device__ static void encode_row(const float *row, uint8_t *bytes, const sl_kv_append_params &p)
{
    int n = p.lora + p.rope;

    if (p.format == SL_ROW_MLA_F32) {
        for (int i = threadIdx.x; i < n; i += blockDim.x)
            ((float *)bytes)[i] = row[i];
        return;
    }
    if (p.format == SL_ROW_MLA_BF16) {
        for (int i = threadIdx.x; i < n; i += blockDim.x)
            ((__nv_bfloat16 *)bytes)[i] = __float2bfloat16_rn(row[i]);
        return;
    }
    int groups = (p.lora + 127) / 128, lane = threadIdx.x & 31;
    for (int g = threadIdx.x >> 5; g < groups; g += blockDim.x >> 5) {
        int end = min(p.lora, g * 128 + 128);
        float amax = 0;
        for (int i = g * 128 + lane; i < end; i += 32)
            amax = fmaxf(amax, fabsf(row[i]));
        float s = sl_scale_row_d(sl_warp_max(amax));
        for (int i = g * 128 + lane; i < end; i += 32)
            bytes[i] = sl_e4m3(row[i] / s);
        if (lane == 0)
            memcpy(bytes + p.lora + 4 * g, &s, 4);
    }
    __nv_bfloat16 *pe = (__nv_bfloat16 *)(bytes + p.lora + 4 * groups);
    for (int i = threadIdx.x; i < p.rope; i += blockDim.x)
        pe[i] = __float2bfloat16_rn(row[p.lora + i]);
}

__device__ static void copy_row(uint8_t *dst, const uint8_t *src, int64_t bytes)
{
    if (((uintptr_t)dst | (uintptr_t)bytes) % 16 == 0)
        for (int64_t i = threadIdx.x; i < bytes / 16; i += blockDim.x)
            ((uint4 *)dst)[i] = ((const uint4 *)src)[i];
    else if (((uintptr_t)dst | (uintptr_t)bytes) % 4 == 0)
        for (int64_t i = threadIdx.x; i < bytes / 4; i += blockDim.x)
            ((uint32_t *)dst)[i] = ((const uint32_t *)src)[i];
    else
        for (int64_t i = threadIdx.x; i < bytes; i += blockDim.x)
            dst[i] = src[i];
}

/* Whether token t is written to the tail. Of a hierarchical sequence's tokens only the last tail_rows are: earlier
 * ones would overwrite newer rows. */
__device__ static bool reaches_tail(const sl_seq_tables &s, const sl_row_view &r, int t, int seq)
{
    int64_t later = (int64_t)t + r.tail_rows;

    return s.hot_slot[seq] < 0 || later >= s.n_tokens || s.token_seq[later] != seq;
}

__global__ static void kv_append_kernel(sl_kv_append_params p, sl_seq_tables s, uint32_t *deverr)
{
    extern __shared__ __align__(16) uint8_t smem[];
    float *row = (float *)smem;
    uint8_t *bytes = smem + ((p.lora + p.rope) * sizeof(float) + 15) / 16 * 16;
    int t = blockIdx.x, seq, pos;
    int64_t kv0 = (int64_t)t * p.ld_kv;
    double sum = 0;

    if (!sl_token(&s, t, deverr, &seq, &pos))
        return;
    for (int i = threadIdx.x; i < p.lora; i += blockDim.x) {
        row[i] = sl_ld(p.kv, kv0 + i, p.act);
        sum += (double)row[i] * row[i];
    }
    sum = sl_block_sum(sum);
    float r = (float)(1.0 / sqrt(sum / p.lora + (double)p.eps));
    for (int i = threadIdx.x; i < p.lora; i += blockDim.x)
        row[i] = sl_actr(__fmul_rn(__fmul_rn(row[i], r), sl_ld(p.norm, i, p.norm_dtype)), p.act);
    const float *cs = p.cos_sin + (int64_t)pos * p.rope;
    for (int j = threadIdx.x; j < p.rope / 2; j += blockDim.x) {
        float a, b;
        sl_rotate(sl_ld(p.kv, kv0 + p.lora + 2 * j, p.act), sl_ld(p.kv, kv0 + p.lora + 2 * j + 1, p.act),
                  cs[2 * j], cs[2 * j + 1], &a, &b);
        row[p.lora + 2 * j] = sl_actr(a, p.act);
        row[p.lora + 2 * j + 1] = sl_actr(b, p.act);
    }
    __syncthreads();
    encode_row(row, bytes, p);
    __syncthreads();

    int64_t phys = sl_row_of(&s, &p.rows, seq, pos);
    int page = p.host.base ? s.host_pages[(int64_t)seq * s.ld + pos / SL_PAGE_TOKENS] : 0;
    if (phys < 0 || page < 0) {
        if (threadIdx.x == 0)
            atomicOr(deverr, SL_DEVERR_PAGE);
        return;
    }
    if (reaches_tail(s, p.rows, t, seq))
        copy_row(p.rows.base + phys * p.rows.row_bytes, bytes, p.rows.row_bytes);
    if (p.host.base)
        copy_row(p.host.base + page * p.host.page_stride + pos % SL_PAGE_TOKENS * p.host.row_stride, bytes,
                 p.rows.row_bytes);
}

static sl_status run_kv_append(sl_backend *be, const void *params, sl_err *err)
{
    const sl_kv_append_params *p = (const sl_kv_append_params *)params;
    size_t floats = ((size_t)(p->lora + p->rope) * 4 + 15) / 16 * 16,
           smem = floats + (size_t)p->rows.row_bytes;

    if (smem > 48 * 1024)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "cuda: kv_append: lora + rope = %d is too wide",
                       p->lora + p->rope);
    return SL_LAUNCH(sl_cuda_of(be), kv_append_kernel, (sl_launch{dim3(p->seqs->n_tokens), 128, smem}), err,
                     *p, *p->seqs, sl_cuda_of(be)->deverr);
}

const sl_op_impl sl_cuda_kv_append = {.run = run_kv_append};
