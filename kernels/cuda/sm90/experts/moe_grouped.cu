/*
 * Routed experts of many tokens (a prefill chunk), in the pipeline of moe_pipeline.cuh. fp8 weights with fp8 activations: the result
 * is bit for bit that of moe_few.cu, which is faster for few tokens. bf16 weights with bf16 activations: any number of tokens.
 *
 * A tile has up to 128 rows. The tiles of one expert are consecutive, and within it all rows of one pair of boxes precede the next
 * pair, so that tiles that run at the same time share their weights and their rows in the L2 cache. Two warpgroups compute 64 rows
 * each by both boxes; while one adds its products to its float32 sums, the other uses the tensor cores.
 */
#include "kernels/cuda/sm90/experts/moe_pipeline.cuh"

#define ROWS 128 /* of a tile */

template <bool F8, bool DUAL>
struct grouped_plan
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    : moe_plan<DUAL, true>
#endif
{
    typedef moe_args Args;
    static constexpr int MULTIPLIERS = ST_MULTIPLIERS, THREADS = 384, COPY_REGS = ST_COPY_REGS,
                         MULTIPLY_REGS = ST_MULTIPLY_REGS, STAGES = 4, BOXES = 2, X = ROWS * ST_BOX,
                         XS = ROWS * 4, EXTRA = 0, TOGETHER = 1;
    static constexpr bool EARLY = false, LET_NEXT = false, SCALES_FIRST = true;

    static const char *name()
    {
        return DUAL ? "moe_grouped_up" : "moe_grouped_down";
    }
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    typedef moe_plan<DUAL, true> plan;

    __device__ static void copy_weights(const Args &p, const moe_item &t, uint32_t at, uint32_t bar, int g)
    {
        plan::copy_boxes(p, t, at, bar, g, X + (F8 ? XS : 0));
    }

    __device__ static void copy_tokens(const Args &p, const moe_item &t, uint32_t at, uint32_t xs,
                                       uint32_t bar, int g)
    {
        sl_copy_box(at, &p.x, g * ST_BOX, t.row, bar);
        if (F8)
            sl_copy_bulk(xs, p.xs + (int64_t)g * p.ld + t.row, XS, bar);
    }

    __device__ static void consume(const Args &p, pl_memory<grouped_plan> &m, int items)
    {
        const int wg = threadIdx.x >> 7, row = wg * 64 + st_row(threadIdx.x & 31);
        float acc[1][2][64];

        for (int w = plan::first(); w < items; w += plan::step()) {
            const moe_item t = plan::item(p, w);
            const bool exists = wg * 64 < t.count;
            const float *s[2] = {F8 ? plan::scales(p, t, 0) : NULL, F8 ? plan::scales(p, t, 1) : NULL};
            pl_multiply<grouped_plan, F8, 64>(
                m.ring, m.xs, 2 * ST_BOX_BYTES + wg * ST_X_BYTES, 0, row, p.stages, exists,
                [&](int b, int g) { return __ldg(s[b] + g); }, acc);
            if (!exists)
                continue;
            if constexpr (DUAL) {
#pragma unroll
                for (int i = 0; i < 64; i++)
                    acc[0][0][i] = moe_glu(acc[0][0][i], acc[0][1][i], p.glu);
                moe_store_mid<F8>(p, t, row, acc[0][0]);
            } else {
                moe_store_down(p, t, row, t.out[0], acc[0]);
            }
        }
    }
#endif
};

sl_status sl_cuda_moe_grouped(sl_cuda *cu, sl_moe_run *r, sl_err *err)
{
    const bool f8 = r->p.gate[0].dtype == SL_F8_E4M3;
    moe_args up = {}, down = {};

    static_assert(ROWS == SL_MOE_WIDE, "the scratch that is stated is that of these tiles");
    SL_TRY(moe_prepare<ROWS>(cu, r, f8 ? 1 : 2, f8 ? ST_BOX : ST_BOX / 2, ROWS, &up, &down, err));
    if (f8)
        return moe_launch<grouped_plan<true, true>, grouped_plan<true, false>>(cu, r, up, down, false, err);
    return moe_launch<grouped_plan<false, true>, grouped_plan<false, false>>(cu, r, up, down, false, err);
}
