/* A sampled token as messages carry it. Used by prefill for the first token and by decode for all others. */
#ifndef SL_WORKER_TOKEN_H
#define SL_WORKER_TOKEN_H

#include "base/msg.h"
#include "model/sampler.h"

static inline sl_msg_token sl_worker_token(const sl_sampled *s)
{
    sl_msg_token t = {.id = s->id, .logprob = s->logprob, .n_top = (uint8_t)s->n_top};
    for (uint32_t i = 0; i < s->n_top; i++) {
        t.top_ids[i] = s->top[i].id;
        t.top_logprobs[i] = s->top[i].logprob;
    }
    return t;
}

#endif
