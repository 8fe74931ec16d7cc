/* SL_OP_EMBED and SL_OP_PICK: copies of rows of a table. The rows are few and short, so no threads are used. */
#include "kernels/cpu/cpu.h"

#include "kernels/formats.h"

#include <string.h>

static sl_status run_embed(sl_backend *be, const void *params, sl_err *err)
{
    const sl_embed_params *p = params;
    void *mem;
    SL_TRY(sl_cpu_scratch((sl_cpu *)be, SL_SCRATCH_X, 4 * (size_t)p->dim, &mem, err));
    for (int32_t t = 0; t < p->tokens; t++)
        if (p->ids[t] < 0 || p->ids[t] >= p->vocab)
            return sl_deverr(SL_DEVERR_ID, "embed", err);
    for (int32_t t = 0; t < p->tokens; t++) {
        sl_load_f32(p->table_dtype, p->table, (int64_t)p->ids[t] * p->dim, p->dim, mem);
        sl_store_f32(p->act, mem, p->dim, p->out, (int64_t)t * p->dim);
    }
    return SL_OK;
}

const sl_op_impl sl_cpu_embed = {.run = run_embed};

static sl_status run_pick(sl_backend *be, const void *params, sl_err *err)
{
    const sl_pick_params *p = params;
    size_t row = (size_t)p->dim * sl_dtype_size(p->act);

    (void)be;
    for (int32_t i = 0; i < p->n; i++)
        if (p->rows[i] < 0)
            return sl_deverr(SL_DEVERR_ID, "pick", err);
    for (int32_t i = 0; i < p->n; i++)
        memcpy((uint8_t *)p->out + (size_t)i * row, (const uint8_t *)p->x + (size_t)p->rows[i] * row, row);
    return SL_OK;
}

const sl_op_impl sl_cpu_pick = {.run = run_pick};
