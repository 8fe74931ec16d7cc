/* What is the same for every backend of SL_OP_SAMPLE (kernels/sample.h): the check of its parameters, and the messages of
 * its faults. */
#include "kernels/sample.h"

#include "kernels/check.h"

void sl_chk_sample(sl_chk *c, const void *params)
{
    const sl_sample_params *p = params;

    sl_chk_count(c, "n", p->n);
    sl_chk_pos(c, "vocab", p->vocab);
    sl_chk_need(c, p->vocab <= SL_SAMPLE_VOCAB_MAX, "vocab", "is more than 2^20");
    sl_chk_ld(c, "ld", p->ld, p->vocab);
    sl_chk_need(c, p->n_logits >= p->n, "n_logits", "is less than n");
    sl_chk_ptr(c, "logits", p->logits, 4);
    sl_chk_ptr(c, "rows", p->rows, 8);
    sl_chk_ptr(c, "out", p->out, 4);
}

sl_status sl_sample_fault_status(uint32_t fault, int32_t position, sl_err *err)
{
    switch ((sl_sample_fault)fault) {
    case SL_SAMPLE_FINE:
        return SL_OK;
    case SL_SAMPLE_NOT_FINITE:
        return sl_fail(err, SL_ERR_CORRUPT, "position %d: a logit is NaN or infinite", position);
    case SL_SAMPLE_ALL_INFINITE:
        return sl_fail(err, SL_ERR_CORRUPT, "position %d: every logit is -inf", position);
    case SL_SAMPLE_NONE_LEFT:
        return sl_fail(err, SL_ERR_INVALID,
                       "position %d: logit_bias, penalties, min_tokens and the constraint leave no token",
                       position);
    case SL_SAMPLE_LIST_FULL:
        return sl_fail(err, SL_ERR_EXHAUSTED, "position %d: the list of changed tokens is full", position);
    case SL_SAMPLE_NO_MASK:
        return sl_fail(err, SL_ERR_INVALID, "position %d: the constraint has no mask", position);
    }
    return sl_fail(err, SL_ERR_INTERNAL, "position %d: unknown fault %u", position, (unsigned)fault);
}
