/* Copies of states, for sequences whose last tokens may be taken back. A task is a token. */
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/place.h"
#include "kernels/turns.h"

static uint32_t keep_state(const void *arg, int64_t t, void *own)
{
    const sl_state_keep_params *p = arg;
    sl_place at;
    uint32_t bad = sl_place_of(p->seqs, t, &at);

    (void)own;
    if (!bad)
        memcpy(p->to + at.seq * p->stride, p->from + at.seq * p->stride, (size_t)p->bytes);
    return bad;
}

static sl_status run_state_keep(sl_backend *be, const void *params, sl_err *err)
{
    const sl_state_keep_params *p = params;
    return sl_cpu_run(be, "state_keep", 0, p->seqs->n_tokens, p->bytes / 16, keep_state, p, err);
}

const sl_op_impl sl_cpu_state_keep = {.run = run_state_keep};
