/*
 * Routed experts of few tokens with fp8 weights, in the pipeline of moe_pipeline.cuh: the time is that of reading the weights. A tile
 * has up to 32 rows, which are copied in boxes of eight; the results of the other 32 rows of the product are unused. One warpgroup
 * computes one box, so up goes to the warpgroup of gate by shared memory.
 */
#include "kernels/cuda/sm90/experts/moe_pipeline.cuh"

#define TOKENS 32        /* of a tile */
#define BAR_UP_WRITTEN 1 /* named barrier: the results of up are in the exchange memory */
#define BAR_UP_READ 2    /* named barrier: they have been read, and the next tile may overwrite them */

template <bool DUAL>
struct few_plan
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    : moe_plan<DUAL, false>
#endif
{
    typedef moe_args Args;
    /* Supposedly DRAM delivers 256 contiguous bytes of each weight row, those of two stages, faster than pieces of 128 bytes;
     * this was not measured alone. */
    static constexpr int MULTIPLIERS = ST_MULTIPLIERS, THREADS = MULTIPLIERS + 32, COPY_REGS = 0,
                         MULTIPLY_REGS = 0, STAGES = 6, BOXES = 2, X = TOKENS * ST_BOX, XS = TOKENS * 4,
                         EXTRA = TOKENS * ST_BOX * 2, TOGETHER = 2;
    static constexpr bool EARLY = true, LET_NEXT = true, SCALES_FIRST = false;

    static const char *name()
    {
        return DUAL ? "moe_few_up" : "moe_few_down";
    }
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    typedef moe_plan<DUAL, false> plan;

    __device__ static void copy_weights(const Args &p, const moe_item &t, uint32_t at, uint32_t bar, int g)
    {
        plan::copy_boxes(p, t, at, bar, g, (t.count + 7) / 8 * 1024 + XS);
    }

    __device__ static void copy_tokens(const Args &p, const moe_item &t, uint32_t at, uint32_t xs,
                                       uint32_t bar, int g)
    {
        for (int i = 0; i < t.count; i += 8)
            sl_copy_box(at + i * 128, &p.x, g * ST_BOX, t.row + i, bar);
        sl_copy_bulk(xs, p.xs + (int64_t)g * p.ld + t.row, XS, bar);
    }

    /* gate is v, up comes from the exchange memory. */
    __device__ static void dual(const Args &p, const moe_item &t, int wg, int row, uint32_t *exchange,
                                float (&v)[64])
    {
        const bool real = (threadIdx.x & 127) < 2 * TOKENS; /* 16 rows per warp */

        if (wg == 1 && real)
#pragma unroll
            for (int i = 0; i < 32; i++)
                exchange[i * 2 * TOKENS + (threadIdx.x & 127)] = st_pack(v[2 * i], v[2 * i + 1]);
        sl_bar_sync(BAR_UP_WRITTEN, MULTIPLIERS);
        if (wg == 0 && real) {
#pragma unroll
            for (int i = 0; i < 32; i++) {
                uint32_t pair = exchange[i * 2 * TOKENS + (threadIdx.x & 127)];
                float2 u = __bfloat1622float2(*(__nv_bfloat162 *)&pair);
                v[2 * i] = moe_glu(v[2 * i], u.x, p.glu);
                v[2 * i + 1] = moe_glu(v[2 * i + 1], u.y, p.glu);
            }
            moe_store_mid<true>(p, t, row, v);
        }
        sl_bar_sync(BAR_UP_READ, MULTIPLIERS);
    }

    __device__ static void consume(const Args &p, pl_memory<few_plan> &m, int items)
    {
        const int wg = threadIdx.x >> 7, row = st_row(threadIdx.x & 31);
        float acc[1][1][64];

        for (int w = plan::first(); w < items; w += plan::step()) {
            const moe_item t = plan::item(p, w);
            const pl_scales s = pl_load_scales(plan::scales(p, t, wg), p.stages);
            pl_multiply<few_plan, true, TOKENS>(
                m.ring, m.xs, 2 * ST_BOX_BYTES, wg * ST_BOX_BYTES, row, p.stages, true,
                [&](int, int g) { return pl_scale(s, g); }, acc);
            if constexpr (DUAL)
                dual(p, t, wg, row, (uint32_t *)m.extra, acc[0][0]);
            else if ((threadIdx.x >> 5 & 3) * 16 < t.count)
                moe_store_down(p, t, row, moe_out(t, wg), acc[0]);
        }
    }
#endif
};

sl_status sl_cuda_moe_few(sl_cuda *cu, sl_moe_run *r, sl_err *err)
{
    moe_args up = {}, down = {};

    static_assert(TOKENS == SL_MOE_NARROW, "the scratch that is stated is that of these tiles");
    SL_TRY(moe_prepare<TOKENS>(cu, r, 1, ST_BOX, 8, &up, &down, err));
    return moe_launch<few_plan<true>, few_plan<false>>(cu, r, up, down, true, err);
}
