/* SL_OP_RANDOM and SL_OP_DRAW: synthetic data for benchmarks; see kernels/synth.h. */
#include "kernels/cpu/cpu.h"
#include "kernels/formats.h"
#include "kernels/synth.h"

#include <string.h>

static void random_part(void *ctx, int64_t first, int64_t count, int worker)
{
    const sl_random_params *p = ctx;

    (void)worker;
    for (int64_t i = first; i < first + count; i++) {
        float v = p->spread * sl_synth_uniform(p->seed, (uint64_t)i);

        v = p->mean + v;
        switch (p->dtype) {
        case SL_F32:
            ((float *)p->out)[i] = v;
            break;
        case SL_BF16:
            ((uint16_t *)p->out)[i] = sl_f32_to_bf16(v);
            break;
        case SL_F8_E4M3:
            ((uint8_t *)p->out)[i] = sl_f32_to_e4m3(v);
            break;
        default:
            ((int32_t *)p->out)[i] =
                (int32_t)p->mean + (int32_t)(sl_synth_hash(p->seed, (uint64_t)i) % (uint32_t)p->spread);
        }
    }
}

static sl_status run_random(sl_backend *be, const void *params, sl_err *err)
{
    sl_random_params p = *(const sl_random_params *)params;

    (void)err;
    sl_cpu_for((sl_cpu *)be, (int64_t)p.rows * p.cols, 10, random_part, &p);
    return SL_OK;
}

const sl_op_impl sl_cpu_random = {.run = run_random};

static int32_t draw_one(const sl_draw_params *p, int32_t seq, int32_t pos, int32_t list, int32_t i)
{
    return i < p->k ? sl_synth_draw(p, p->keep ? *p->keep : 0, seq, pos, list, i) : -1;
}

static sl_status run_draw(sl_backend *be, const void *params, sl_err *err)
{
    const sl_draw_params *p = params;

    (void)be;
    for (int32_t t = 0; t < p->seqs->n_tokens; t++) {
        int32_t seq = p->seqs->token_seq[t], pos = p->seqs->token_pos[t], lists = sl_draw_lists(p),
                *ids = p->ids + (int64_t)t * lists * p->ld_ids;

        if (seq == -1) { /* padding */
            memset(ids, 0xff, sizeof *ids * (size_t)lists * (size_t)p->ld_ids);
            continue;
        }
        if (seq < 0 || seq >= p->seqs->n_seqs)
            return sl_deverr(SL_DEVERR_SEQ, "draw", err);
        for (int32_t i = 0; i < lists * p->ld_ids && pos >= p->from_pos; i++)
            ids[i] = draw_one(p, seq, pos, i / p->ld_ids, i % p->ld_ids);
    }
    return SL_OK;
}

const sl_op_impl sl_cpu_draw = {.run = run_draw};
