/* Copies of states, for sequences whose last tokens may be taken back. A task is a token. */
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/place.h"
#include "kernels/turns.h"

typedef struct keep_ctx {
    const sl_state_keep_params *p;
    uint32_t bad;
} keep_ctx;

static void keep_tasks(void *arg, int64_t first, int64_t count, int worker)
{
    keep_ctx *c = arg;
    const sl_state_keep_params *p = c->p;
    (void)worker;

    for (int64_t t = first; t < first + count; t++) {
        sl_place at;
        uint32_t bad = sl_place_of(p->seqs, t, &at);

        if (bad)
            sl_cpu_flag(&c->bad, bad & ~SL_PLACE_NONE);
        else
            memcpy(p->to + at.seq * p->stride, p->from + at.seq * p->stride, (size_t)p->bytes);
    }
}

static sl_status run_state_keep(sl_backend *be, const void *params, sl_err *err)
{
    const sl_state_keep_params *p = params;
    keep_ctx c = {.p = p};
    sl_cpu_for((sl_cpu *)be, p->seqs->n_tokens, p->bytes / 16, keep_tasks, &c);
    return sl_deverr(c.bad, "state_keep", err);
}

const sl_op_impl sl_cpu_state_keep = {.run = run_state_keep};
