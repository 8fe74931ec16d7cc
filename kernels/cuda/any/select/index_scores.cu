/*
 * Index scores over paged keys: relu(q . k), weighted and summed over heads, times the key's scale.
 *
 * This is the plain path for any head count and dimension and both conventions: one block per (token, page). The
 * page's 64 keys and the token's queries are floats in shared memory; heads are summed in ascending order. Scores of
 * keys after the token's position are not written. Padding tokens (sequence -1) are skipped.
 */
#include "kernels/cuda/any/select/select.cuh"

#define HEADS_AT_ONCE 16

__global__ static void __launch_bounds__(256)
    plain_scores_kernel(sl_index_scores_params p, sl_seq_tables s, uint32_t *deverr)
{
    extern __shared__ float smem[];
    int ld = p.dim + 1, t = p.token_first + blockIdx.y, first = blockIdx.x * SL_PAGE_TOKENS, seq, pos;
    float *keys = smem, *q = smem + SL_PAGE_TOKENS * ld, *part = q + HEADS_AT_ONCE * ld;

    if (!sl_token(&s, t, deverr, &seq, &pos) || first > pos)
        return;
    if (pos >= p.ld_scores) {
        if (threadIdx.x == 0)
            atomicOr(deverr, SL_DEVERR_POS);
        return;
    }
    int page = s.index_pages[(int64_t)seq * s.ld + blockIdx.x];
    if (page < 0) {
        if (threadIdx.x == 0)
            atomicOr(deverr, SL_DEVERR_PAGE);
        return;
    }
    bool official = p.format == SL_INDEX_OFFICIAL;
    const uint8_t *block = p.index_base + page * p.index_page_stride;
    for (int i = threadIdx.x; i < SL_PAGE_TOKENS * p.dim; i += blockDim.x)
        keys[i / p.dim * ld + i % p.dim] = sl_ld(block, i, official ? SL_F8_E4M3 : SL_F32);
    int key = threadIdx.x % SL_PAGE_TOKENS, quarter = threadIdx.x / SL_PAGE_TOKENS;
    float sum = 0;
    for (int h0 = 0; h0 < p.heads; h0 += HEADS_AT_ONCE) {
        int nh = min(HEADS_AT_ONCE, p.heads - h0);
        __syncthreads();
        for (int i = threadIdx.x; i < nh * p.dim; i += blockDim.x)
            q[i / p.dim * ld + i % p.dim] =
                sl_ld(p.q, ((int64_t)t * p.heads + h0) * p.dim + i, official ? SL_F8_E4M3 : SL_F32);
        __syncthreads();
        for (int h = quarter; h < nh; h += 4) {
            float dot = 0;
            for (int d = 0; d < p.dim; d++)
                dot = fmaf(q[h * ld + d], keys[key * ld + d], dot);
            part[h * SL_PAGE_TOKENS + key] =
                __fmul_rn(fmaxf(dot, 0.0f), p.weights[(int64_t)t * p.heads + h0 + h]);
        }
        __syncthreads();
        if (quarter == 0)
            for (int h = 0; h < nh; h++)
                sum = __fadd_rn(sum, part[h * SL_PAGE_TOKENS + key]);
    }
    if (quarter == 0 && first + key <= pos) {
        float scale = official ? ((const float *)(block + SL_PAGE_TOKENS * p.dim))[key] : 1.0f;
        p.scores[(int64_t)blockIdx.y * p.ld_scores + first + key] = __fmul_rn(sum, scale);
    }
}

static sl_status run_index_scores(sl_backend *be, const void *params, sl_err *err)
{
    const sl_index_scores_params *p = (const sl_index_scores_params *)params;
    size_t smem = ((size_t)(SL_PAGE_TOKENS + HEADS_AT_ONCE) * (p->dim + 1) + HEADS_AT_ONCE * SL_PAGE_TOKENS) *
                  sizeof(float);
    int pages = sl_ceil_div(p->ld_scores, SL_PAGE_TOKENS);

    if (p->dim > 256 || p->token_count > 65535)
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "cuda: index_scores: dim %d (at most 256), %d tokens (at most 65535)", p->dim,
                       p->token_count);
    if (sl_path_index_scores(&sl_cuda_of(be)->gpu, p) == SL_SCORES_TENSOR)
        return sl_cuda_scores_mma(sl_cuda_of(be), p, err);
    pages = min(pages, p->seqs->ld);
    SL_TRY(SL_LAUNCH(sl_cuda_of(be), plain_scores_kernel, (sl_launch{dim3(pages, p->token_count), 256, smem}),
                     err, *p, *p->seqs, sl_cuda_of(be)->deverr));
    if (!p->hint || p->ld_scores <= SL_HINT_MIN)
        return SL_OK;
    return sl_cuda_hint(sl_cuda_of(be), p->scores, p->seqs, p->token_first, p->token_count, p->ld_scores,
                        SL_HINT_MIN + 1, (float *)p->hint, err);
}

const sl_op_impl sl_cuda_index_scores = {.run = run_index_scores};
