/*
 * Labels of new tokens: a few channels of each key, rounded to the type of the labels, with the bytes of the CPU
 * backend, written to the device and directly to the pinned host arena. One thread per channel of a token and KV head.
 *
 * Limit: the label of a token is 64 bytes per KV head with 32 channels in bf16, and each channel is in another sector
 * of its key, so that whole keys are read: 2 KB per token for 8 heads of 128. A chunk of 4,096 tokens reads 8.4 MB, 2 us
 * at 4.2 TB/s, and writes 2.1 MB to the host, 38 us over the bus.
 */
#include "kernels/cuda/any/cache/key_rows.cuh"

#define THREADS 128

__global__ static void __launch_bounds__(THREADS)
    labels_append_kernel(sl_labels_append_params p, sl_seq_tables s, sl_key_rows keys, uint32_t *deverr)
{
    int e = blockIdx.y * THREADS + threadIdx.x, head = e / p.count, i = e % p.count, t = blockIdx.x, seq, pos;
    int64_t size = p.dtype == SL_F32 ? 4 : 2;
    sl_key_at at;

    if (head >= p.heads || !sl_token(&s, t, deverr, &seq, &pos))
        return;
    uint32_t bad = sl_key_of(keys, s, t, seq, pos, head, &at);
    int64_t entry = (int64_t)seq * s.ld + pos / SL_PAGE_TOKENS;
    int page = s.index_pages[entry], host_page = p.host.base ? s.host_pages[entry] : 0;
    bad = bad ? bad : page < 0 || host_page < 0 ? SL_DEVERR_PAGE : 0;
    if (bad) {
        atomicOr(deverr, bad);
        return;
    }
    float v = sl_key_value(keys, at, p.channels[e]);
    int64_t to = (int64_t)head * SL_PAGE_TOKENS * p.count * size;
    int64_t in_unit = (int64_t)(pos % SL_PAGE_TOKENS) * p.count + i;
    sl_st(p.base + page * p.page_stride + to, in_unit, v, p.dtype);
    if (p.host.base)
        sl_st(p.host.base + host_page * p.host.page_stride + to, in_unit, v, p.dtype);
}

static sl_status run_labels_append(sl_backend *be, const void *params, sl_err *err)
{
    const sl_labels_append_params *p = (const sl_labels_append_params *)params;
    dim3 grid((unsigned)p->seqs->n_tokens, (unsigned)sl_ceil_div((int64_t)p->heads * p->count, THREADS));

    return SL_LAUNCH(sl_cuda_of(be), labels_append_kernel, (sl_launch{grid, THREADS}), err, *p, *p->seqs,
                     sl_key_rows_of(&p->rows, &p->host_rows, p->heads, p->dim, p->format),
                     sl_cuda_of(be)->deverr);
}

const sl_op_impl sl_cuda_labels_append = {.run = run_labels_append};
