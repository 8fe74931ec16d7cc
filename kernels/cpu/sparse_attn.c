/*
 * SL_OP_SPARSE_ATTN: attention over a list of rows, in blocks of 64 with a running maximum. A task is a group of
 * heads of one token; it decodes the rows of a block once for all its heads. The order of all sums is the order of
 * the list. Ops run one after the other here, so a block whose rows have not arrived is an error.
 */
#include "kernels/cpu/cpu.h"

#include <math.h>
#include <string.h>

#include "kernels/cpu/softmax.h"
#include "kernels/formats.h"

#define BLOCK 64
#define HEADS 16 /* heads of a task */

typedef struct ctx {
    const sl_sparse_attn_params *p;
    int32_t groups; /* groups of heads */
} ctx;

typedef struct state {
    float max[HEADS], sum[HEADS];
} state;

static int32_t list_length(const int32_t *phys, int32_t k)
{
    int32_t n = 0;

    while (n < k && phys[n] >= 0)
        n++;
    return n;
}

static uint32_t attend(const void *arg, int64_t item, void *own)
{
    const ctx *c = arg;
    const sl_sparse_attn_params *p = c->p;
    const int64_t t = item / c->groups;
    const int32_t h0 = (int32_t)(item % c->groups) * HEADS,
                  heads = p->heads - h0 < HEADS ? p->heads - h0 : HEADS;
    const int32_t *phys = p->phys + t * p->ld_ids;
    float *scores = own, *rows = scores + HEADS * BLOCK;
    int32_t dim = p->lora + p->rope, n = list_length(phys, p->k);
    const float *q = p->ql + (t * p->heads + h0) * dim;
    float *o = p->o + (t * p->heads + h0) * p->lora;
    state st;

    memset(o, 0, 4 * (size_t)heads * (size_t)p->lora);
    for (int32_t h = 0; h < heads; h++) {
        st.max[h] = -INFINITY;
        st.sum[h] = 0;
    }
    for (int32_t first = 0; first < n; first += BLOCK) {
        int32_t count = n - first < BLOCK ? n - first : BLOCK;

        for (int32_t r = 0; r < count; r++)
            sl_row_decode(p->format, p->lora, p->rope, p->rows.base + phys[first + r] * p->rows.row_bytes,
                          rows + (int64_t)r * dim);
        sl_vec_products((sl_vec_rows){rows, dim, count}, (sl_vec_rows){q, dim, heads}, dim, scores, BLOCK);
        for (int32_t h = 0; h < heads; h++)
            sl_softmax_block(p->scale, count, scores + h * BLOCK, rows, dim, p->lora, &st.max[h], &st.sum[h],
                             o + (int64_t)h * p->lora);
    }
    for (int32_t h = 0; n && p->sinks && h < heads; h++)
        st.sum[h] += expf(p->sinks[h0 + h] - st.max[h]);
    for (int32_t h = 0; n && h < heads; h++)
        for (int32_t i = 0; i < p->lora; i++)
            o[(int64_t)h * p->lora + i] /= st.sum[h];
    return 0;
}

static bool blocks_done(const sl_sparse_attn_params *p)
{
    for (int64_t t = 0; p->block_need && t < p->tokens; t++)
        for (int32_t b = 0; b < (p->k + BLOCK - 1) / BLOCK; b++)
            if (p->block_done[t * p->ld_blocks + b] < p->block_need[t * p->ld_blocks + b])
                return false;
    return true;
}

static sl_status run_sparse_attn(sl_backend *be, const void *params, sl_err *err)
{
    const sl_sparse_attn_params *p = params;
    const ctx c = {p, (p->heads + HEADS - 1) / HEADS};
    int64_t dim = (int64_t)p->lora + p->rope, heads = p->heads < HEADS ? p->heads : HEADS;
    if (!blocks_done(p))
        return sl_fail(err, SL_ERR_INVALID,
                       "sparse_attn: block_done: rows are missing that no gather has fetched");
    return sl_cpu_run(be, "sparse_attn", 4 * BLOCK * (HEADS + (size_t)dim), (int64_t)p->tokens * c.groups,
                      p->k * dim * heads / 8, attend, &c, err);
}

const sl_op_impl sl_cpu_sparse_attn = {.run = run_sparse_attn};
