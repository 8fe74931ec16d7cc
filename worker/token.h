/* A sampled token as messages carry it. Used by prefill for the first token and by decode for all others. */
#ifndef SL_WORKER_TOKEN_H
#define SL_WORKER_TOKEN_H

#include "base/msg.h"
#include "engine/engine.h"

static inline sl_msg_token sl_worker_token(const sl_sampled *s)
{
    sl_msg_token t = {.id = s->id, .logprob = s->logprob, .n_top = (uint8_t)s->n_top};
    for (uint32_t i = 0; i < s->n_top; i++) {
        t.top_ids[i] = s->top[i].id;
        t.top_logprobs[i] = s->top[i].logprob;
    }
    return t;
}

/* The token that a step has chosen; an error is the request's. */
static inline sl_status sl_worker_chosen(const sl_step_sample *w, sl_msg_token *out, sl_err *err)
{
    SL_TRY(sl_sample_fault_status(w->out.fault, (int32_t)(w->history.n_prompt + w->history.n_output), err));
    *out = sl_worker_token(&w->out);
    return SL_OK;
}

#endif
