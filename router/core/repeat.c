/*
 * Tokens that are produced again. A decode worker that finds damage in the rows of a running request says how many of its
 * tokens are safe: those that were produced before its last clean round of checks began. The others have been sent, and
 * may be wrong. The next attempt starts after the safe ones, and what it produces is compared with what was sent. If all is
 * equal, the damage had no effect and the stream continues. If not, the client has wrong tokens, and is told so.
 *
 * Log-probabilities are compared only as closely as two computations of the same rows agree: rows that were decoded one
 * by one the first time may be computed together the second time, and sums of another order differ in the last bits.
 */
#include <math.h>

#include "base/log.h"
#include "kvstore/page_key.h"
#include "router/core/request_impl.h"

static const float LOGPROB_TOLERANCE = 0.05f;

void sl_repeat_from(sl_request *q, uint32_t safe)
{
    if (safe >= sl_request_produced(q))
        return;
    if (q->n_repeat < q->n_tokens)
        q->n_repeat = q->n_tokens;
    q->n_tokens = q->n_prompt + safe;
    if (q->keys.n > q->n_tokens / SL_KEY_PAGE_TOKENS)
        q->keys.n = q->n_tokens / SL_KEY_PAGE_TOKENS;
}

static bool same(const sl_request *q, size_t at, const sl_msg_token *t)
{
    if (q->tokens[at] != t->id)
        return false;
    float was = q->logprobs ? q->logprobs[at - q->n_prompt] : t->logprob;
    return was == t->logprob || fabsf(was - t->logprob) <= LOGPROB_TOLERANCE;
}

bool sl_repeat_take(const sl_request_env *env, sl_request *q, const sl_msg_token *t, size_t n, size_t *taken)
{
    size_t i = 0;
    for (; i < n && q->n_tokens < q->n_repeat; i++) {
        if (!same(q, q->n_tokens, &t[i])) {
            sl_counter_add(env->stats->requests.repeated_different, q->n_repeat - q->n_tokens);
            sl_log(SL_LOG_ERROR, "router", "sent_tokens_wrong",
                   "rid=%016lx attempt=%u first_wrong=%u sent=%u token=%d was=%d", q->rid, q->attempt.n,
                   sl_request_produced(q), sl_request_sent(q), t[i].id, q->tokens[q->n_tokens]);
            return false;
        }
        q->n_tokens++;
    }
    sl_counter_add(env->stats->requests.repeated_equal, i);
    *taken = i;
    return true;
}
