/*
 * Routed experts of many tokens (a prefill chunk). fp8 weights with fp8 activations: the result is bit for bit that
 * of moe_few.cu, which is faster for few tokens. bf16 weights with bf16 activations: any number of tokens.
 *
 * The (token, choice) pairs are sorted by expert on the device, and their inputs are stored in that order. A tile
 * is up to 128 rows of one expert by two boxes of 128 outputs (gate and up, or two of down). The tiles of one
 * expert are consecutive, and within it all rows of one pair of boxes precede the next pair, so that tiles that run
 * at the same time share their weights and their rows in the L2 cache. There is one persistent block per SM: one
 * thread keeps a ring of bulk tensor copies full, and two warpgroups compute 64 rows each. While one warpgroup adds
 * its products to its float32 sums, the other uses the tensor cores.
 *
 * Sums. fp8: the tensor core sums each group of 128 inputs, in four products in the order of k; across groups
 * acc += dot * (s_x * s_w) in float32, in order. bf16: the tensor core sums all of k as one chain. Neither depends
 * on the other rows of the tile. Each result is stored for its (token, choice), and the results of a token are
 * added in the order of its choices, without atomics. The sort leaves the order of an expert's rows undefined; no
 * result depends on it.
 */
#include "kernels/cuda/sm90/experts/moe_grouped.cuh"
#include "kernels/scratch.h"

struct grouped_memory {
    uint8_t *x, *mid;
    float *xs, *ms;
    int64_t rows, ld;
    mg_rows lists;
};

/* size: bytes per value. */
static sl_status reserve(sl_cuda *cu, sl_moe_run *r, int size, grouped_memory *m, sl_err *err)
{
    const sl_moe_params *p = &r->p;
    int64_t pairs = (int64_t)p->tokens * p->top_k, tiles = min(pairs, p->experts + pairs / MG_ROWS);
    m->rows = pairs + 7 * min(pairs, (int64_t)p->experts) + MG_ROWS;
    m->ld = (m->rows + 3) / 4 * 4;
    int64_t x = sl_moe_up256(m->rows * p->hidden * size), mid = sl_moe_up256(m->rows * p->inter * size),
            xs = size == 1 ? sl_moe_up256(m->ld * (p->hidden / 128) * 4 + MG_XS_BYTES) : 0,
            ms = size == 1 ? sl_moe_up256(m->ld * (p->inter / 128) * 4 + MG_XS_BYTES) : 0;
    uint8_t *mem;
    SL_TRY(sl_moe_begin(cu, r, false,
                        sl_moe_grouped_scratch(p->tokens, p->top_k, p->experts, p->hidden, p->inter, size),
                        (void **)&mem, err));
    m->x = mem, m->mid = mem + x;
    m->xs = (float *)(m->mid + mid), m->ms = (float *)((uint8_t *)m->xs + xs);
    m->lists.tile = (int4 *)((uint8_t *)m->ms + ms);
    m->lists.pair = (int32_t *)(m->lists.tile + tiles);
    m->lists.row_of = m->lists.pair + m->rows;
    m->lists.n_tiles = m->lists.row_of + pairs;
    return SL_OK;
}

static sl_status describe(sl_cuda *cu, const sl_moe_run *r, const grouped_memory *m, int size, mg_args *up,
                          mg_args *down, sl_err *err)
{
    const sl_moe_params *p = &r->p;
    int64_t in = (int64_t)p->hidden * size, mid = (int64_t)p->inter * size;

    SL_TRY(sl_moe_weights(cu, p->gate, p->experts, &up->ta, &up->wa, err));
    SL_TRY(sl_moe_weights(cu, p->up, p->experts, &up->tb, &up->wb, err));
    SL_TRY(sl_moe_weights(cu, p->down, p->experts, &down->ta, &down->wa, err));
    SL_TRY(sl_cuda_map(cu, m->x, m->rows, in, in, MG_ROWS, &up->x, err));
    SL_TRY(sl_cuda_map(cu, m->mid, m->rows, mid, mid, MG_ROWS, &down->x, err));
    up->rows = down->rows = m->lists;
    up->ld = down->ld = (int)m->ld;
    up->xs = m->xs, up->ms = m->ms, up->mid = m->mid;
    up->glu = p->glu;
    up->groups = (int)(in / ST_BOX), up->outs = p->inter, up->out_tiles = p->inter / ST_BOX;
    down->to = r->arrived.to;
    down->xs = m->ms, down->res = (__nv_bfloat16 *)p->workspace;
    down->groups = (int)(mid / ST_BOX), down->outs = p->hidden;
    down->out_tiles = sl_ceil_div(p->hidden, 2 * ST_BOX);
    return SL_OK;
}

template <bool F8, bool DUAL> static sl_status launch(sl_cuda *cu, const mg_args *a, sl_err *err)
{
    return SL_LAUNCH(cu, (mg_gemm_kernel<F8, DUAL>), (sl_launch{dim3(cu->sms), MG_THREADS, MG_SMEM}), err,
                     *a);
}

/* Stores the inputs of every pair in the order of the rows. */
static sl_status lay_out(sl_cuda *cu, const sl_moe_run *r, const grouped_memory *m, bool f8, sl_err *err)
{
    const sl_moe_params *p = &r->p;

    SL_TRY(SL_LAUNCH(cu, mg_group_kernel, (sl_launch{dim3(sl_moe_sort_blocks(&r->arrived)), 1024}), err,
                     p->expert_ids, p->tokens * p->top_k, p->experts, m->lists, r->arrived, cu->deverr));
    if (f8)
        return sl_moe_rows_f8(cu, r, m->lists.row_of, m->lists.pair, m->x, m->xs, (int)m->ld, err);
    return sl_moe_rows_bf16(cu, r, m->lists.row_of, m->lists.pair, m->x, err);
}

sl_status sl_cuda_moe_grouped(sl_cuda *cu, sl_moe_run *r, sl_err *err)
{
    const sl_moe_params *p = &r->p;
    bool f8 = p->gate[0].dtype == SL_F8_E4M3;
    int size = f8 ? 1 : 2;
    mg_args up = {}, down = {};
    grouped_memory m;
    SL_TRY(reserve(cu, r, size, &m, err));
    SL_TRY(describe(cu, r, &m, size, &up, &down, err));
    SL_TRY(lay_out(cu, r, &m, f8, err));
    SL_TRY((f8 ? launch<true, true>(cu, &up, err) : launch<false, true>(cu, &up, err)));
    SL_TRY((f8 ? launch<true, false>(cu, &down, err) : launch<false, false>(cu, &down, err)));
    return sl_moe_finish(cu, r, down.res, err);
}
