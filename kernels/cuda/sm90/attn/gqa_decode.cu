/*
 * Decode attention over keys and values: one query token of every list, or of every sequence whose tokens are all read;
 * bf16 activations, bf16 or fp8 rows, head dimensions 64, 128 and 256; also with the rule of skip_factor.
 *
 * The arithmetic is that of gqa_segments.cuh, so a token has the same bits here and in gqa_prompt.cu. A
 * unit of work is a whole list, whose segments are merged in registers; or, of few or long lists, one segment, and a
 * second kernel merges them. Both give the same bits, and no thread block waits for another one.
 *
 * Limit: tokens x 2 x dim x bytes / 4.58 TB/s. With a latency of 1 us this needs 35 KB in flight in each multiprocessor;
 * the ring holds 192 KB. A step of 128 tokens of dimension 128 is 64 KiB, 1.9 us of a multiprocessor's share. An earlier
 * kernel multiplied 64 rows for 4 heads: its products alone took 1.84 us, its copies alone 1.05 times the limit, and both
 * together 1.3 times. So the products held it, not the copies. Measured on an H200
 * (`cold --only gqa_attn`, 32 query and 8 KV heads of 128, bf16): 1.16 and 1.13 times for 64 and 128 lists of 2,048
 * tokens, 1.09 times for 16 requests of 65,536 tokens.
 *
 *     gqa_decode_fetch.cuh      the side that fills the ring
 *     gqa_decode_multiply.cuh   the side that multiplies; its products: gqa_decode_products.cuh
 */
#include "kernels/scratch.h"
#include "kernels/cuda/sm90/attn/gqa_decode_fetch.cuh"
#include "kernels/cuda/sm90/attn/gqa_decode_multiply.cuh"

template <int DIM, int MODE, bool SKIP>
__global__ static void __launch_bounds__(dec_size<DIM, MODE>::THREADS, 1)
    decode_kernel(const __grid_constant__ dec_work w, const __grid_constant__ CUtensorMap map)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    typedef dec_size<DIM, MODE> size;
    extern __shared__ __align__(1024) uint8_t smem[];
    dec_shared<DIM> *x = (dec_shared<DIM> *)(smem + size::INFO);

    if (threadIdx.x == 0) {
        for (int i = 0; i < size::STAGES; i++) {
            sl_mbar_init(&x->full_k[i], size::KEYS);
            sl_mbar_init(&x->full_v[i], size::VALUES);
            sl_mbar_init(&x->empty_k[i], DEC_WARPS);
            sl_mbar_init(&x->empty_v[i], DEC_WARPS);
        }
        sl_mbar_init_fence();
    }
    __syncthreads();
    sl_after_previous();
    sl_let_next_start();
    if (threadIdx.x < DEC_MULTIPLIERS)
        dec_multiply<DIM, MODE, SKIP>(w, smem, x);
    else if (MODE == DEC_BOXES)
        dec_fetch_boxes<DIM>(w, &map, smem, x);
    else
        dec_fetch_rows<DIM, MODE>(w, smem, x);
#endif
}

#define BATCH 16            /* segments whose loads are in flight together, of each group of threads */
#define COMBINE_THREADS 512 /* at most */

/* What a thread of combine_kernel has of BATCH segments: its column, and of each segment maximum and sum of weights. */
struct dec_batch {
    float v[BATCH];
    float2 ml[BATCH];
};

__device__ static inline void load_batch(dec_batch &b, const float *part, int base, int parts, int dim, int c)
{
#pragma unroll
    for (int u = 0; u < BATCH; u++) {
        const float *from = part + (int64_t)min(base + u, parts - 1) * (dim + 4);

        b.v[u] = __ldcg(from + c), b.ml[u] = __ldcg((const float2 *)(from + dim));
        b.ml[u].x = base + u < parts ? b.ml[u].x : -INFINITY;
    }
}

struct dec_merged {
    float o, m, l;
};

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
__device__ static inline void merge_batch(dec_merged &x, const dec_batch &b, bool first)
{
#pragma unroll
    for (int u = 0; u < BATCH; u++) {
        float keep, take;

        if (b.ml[u].x == -INFINITY) /* no token */
            continue;
        if (first && u == 0) {
            x = {b.v[u], b.ml[u].x, b.ml[u].y};
            continue;
        }
        gqa_merge_sums(x.m, x.l, b.ml[u].x, b.ml[u].y, &keep, &take);
        x.o = gqa_merge(x.o, keep, b.v[u], take);
    }
}
#endif

/*
 * Merges the segments of a query head, in their order. Each thread has one column. Groups of dim threads take batches of
 * segments in turn: the loads of all groups are in flight together, and what is merged so far passes from one group to
 * the next through shared memory.
 */
__global__ static void __launch_bounds__(COMBINE_THREADS) combine_kernel(const __grid_constant__ dec_work w)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    __shared__ dec_merged sum[256];
    int dim = w.g.p.dim, c = threadIdx.x % dim, group = threadIdx.x / dim, groups = blockDim.x / dim;
    const float *part = w.partial + (int64_t)blockIdx.x * w.parts * (dim + 4);
    dec_merged x = {0, -INFINITY, 0};
    dec_batch b;

    sl_after_previous();
    sl_let_next_start();
    load_batch(b, part, group * BATCH, w.parts, dim, c);
    for (int turn = 0, base = 0; base < w.parts; turn++, base += BATCH) {
        if (turn % groups == group) {
            if (turn > 0)
                x = sum[c];
            merge_batch(x, b, turn == 0);
            sum[c] = x;
            if (base + groups * BATCH < w.parts)
                load_batch(b, part, base + groups * BATCH, w.parts, dim, c);
            if (base + BATCH >= w.parts)
                ((__nv_bfloat16 *)w.g.p.out)[(int64_t)blockIdx.x * dim + c] =
                    __float2bfloat16_rn(gqa_output(x.o, x.l));
        }
        __syncthreads();
    }
#endif
}

static_assert(SEGMENT == SL_GQA_SEGMENT, "the scratch that is stated is that of these segments");

template <int DIM, int MODE>
static sl_status launch(sl_cuda *cu, const dec_work *w, const CUtensorMap *map, sl_err *err)
{
    const int smem = dec_size<DIM, MODE>::INFO + (int)sizeof(dec_shared<DIM>);
    int64_t units = (int64_t)w->g.p.tokens * w->g.p.kv_heads * w->parts;
    void (*kernel)(dec_work, CUtensorMap) =
        w->g.p.skip_factor > 0 ? decode_kernel<DIM, MODE, true> : decode_kernel<DIM, MODE, false>;

    return SL_LAUNCH(
        cu, kernel,
        (sl_launch{dim3((int)min(units, (int64_t)cu->sms)), (int)(dec_size<DIM, MODE>::THREADS), smem, true}),
        err, *w, *map);
}

template <int DIM>
static sl_status launch_mode(sl_cuda *cu, const dec_work *w, dec_mode mode, const CUtensorMap *map,
                             sl_err *err)
{
    switch (mode) {
    case DEC_BOXES:
        return launch<DIM, DEC_BOXES>(cu, w, map, err);
    case DEC_COPIES:
        return launch<DIM, DEC_COPIES>(cu, w, map, err);
    default:
        return launch<DIM, DEC_BYTES>(cu, w, map, err);
    }
}

/* How the rows of a call reach the ring, and where its boxes lie. */
static dec_mode mode_of(const gqa_work *w, dec_boxes *b, int64_t *pitch)
{
    const sl_gqa_attn_params *p = &w->p;
    int n = 1 << p->rows.block_log2;

    if (p->format == SL_ROW_GQA_FP8)
        return DEC_BYTES;
    b->head_x = w->heads > 1 ? p->dim * 2 : 0;
    if (n == 1) { /* a line is a row: the tokens of a page, if a row holds all heads */
        *pitch = p->rows.row_bytes;
        b->box = SL_PAGE_TOKENS, b->row_y = 1, b->side_y = 0, b->side_x = w->heads * p->dim * 2;
        return p->seqs && w->lists == 1 ? DEC_BOXES : DEC_COPIES;
    }
    *pitch = (int64_t)w->heads * p->dim * 2; /* a line is a token on one side of a row */
    b->box = n, b->row_y = 2 * n, b->side_y = n, b->side_x = 0;
    return n >= 8 && p->rows.row_bytes == 2 * n * *pitch ? DEC_BOXES : DEC_COPIES;
}

sl_status sl_cuda_gqa_decode(sl_cuda *cu, const sl_gqa_attn_params *p, sl_err *err)
{
    const int64_t list = (int64_t)p->k << p->rows.block_log2;
    dec_work w = {gqa_work_of(cu, p),
                  NULL,
                  p->skip_factor > 0 ? 1 : sl_gqa_parts(cu->sms, p->tokens, p->kv_heads, list),
                  {}};
    CUtensorMap map = {};
    int64_t pitch = 0;
    dec_mode mode = mode_of(&w.g, &w.b, &pitch);
    void *mem;

    if (mode == DEC_BOXES)
        SL_TRY(sl_cuda_map(cu, p->rows.base, INT32_MAX, pitch, pitch, w.b.box, &map, err));
    if (w.parts > 1) {
        SL_TRY(sl_cuda_scratch(
            cu, sl_gqa_decode_scratch(cu->sms, p->tokens, p->heads, p->kv_heads, p->dim, list), &mem, err));
        w.partial = (float *)mem;
    }
    SL_TRY(p->dim == 64    ? launch_mode<64>(cu, &w, mode, &map, err)
           : p->dim == 128 ? launch_mode<128>(cu, &w, mode, &map, err)
                           : launch_mode<256>(cu, &w, mode, &map, err));
    if (w.parts == 1)
        return SL_OK;
    return SL_LAUNCH(
        cu, combine_kernel,
        (sl_launch{dim3(sl_blocks((int64_t)p->tokens * p->heads)),
                   (int)(w.parts > BATCH ? max(p->dim, min(4 * p->dim, COMBINE_THREADS)) : p->dim), 0, true}),
        err, w);
}
