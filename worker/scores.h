/*
 * The log-probabilities of a prompt (sl_sampling.prompt_logprobs) on the worker that computes it: asked of the steps chunk by
 * chunk, kept until the prompt is complete and verified, and sent in SCORES of a few tokens each, before the message that
 * carries the first token.
 *
 * Such a prompt shares no cached page (sl_scores_shared()): the positions of cached pages would have no log-probabilities. So
 * every attempt has all of them, also one that begins again after a worker has died.
 *
 * Owned by the job of a prompt; used by one thread at a time.
 */
#ifndef SL_WORKER_SCORES_H
#define SL_WORKER_SCORES_H

#include "base/msg.h"
#include "engine/engine.h"

enum { SL_SCORES_MESSAGE = 128 }; /* tokens of one SCORES */

typedef struct sl_scores {
    const int32_t *prompt; /* borrowed */
    int32_t n_prompt, n_best;
    int32_t have;   /* tokens 1 .. have of the prompt have theirs */
    sl_logprob *at; /* [n_prompt - 1][1 + n_best]; id -1: there is none. NULL: nothing is asked for */
} sl_scores;

/* Nothing is allocated for a request that asks for none. SL_ERR_NO_MEMORY. */
sl_status sl_scores_open(sl_scores *s, const sl_sampling *how, const int32_t *prompt, size_t n_prompt);
void sl_scores_close(sl_scores *s);

/* Memory for what one step scores; allocated by the first request that asks. A zeroed one is empty. */
typedef struct sl_scores_room {
    sl_sampled *out;
    sl_step_score *items;
    int32_t tokens, n; /* in use */
} sl_scores_room;

void sl_scores_room_free(sl_scores_room *r);
/* What a step scores that computes the tokens [first, first + n) of a prompt, for sl_step_item.score, of at most max_items
 * items and max_tokens tokens; NULL: nothing, or there is no memory, which sl_scores_take() reports. The caller sets tokens and n
 * to 0 before each step. */
sl_step_score *sl_scores_ask(const sl_scores *s, int32_t first, int32_t n, sl_scores_room *r,
                             int32_t max_items, int32_t max_tokens);
/* Takes what that step has computed; w: of sl_scores_ask(). SL_ERR_CORRUPT: logits that are no numbers; SL_ERR_NO_MEMORY. */
sl_status sl_scores_take(sl_scores *s, int32_t first, const sl_step_score *w, sl_err *err);

/* Tokens [from, from + the result) of the prompt for the next message, from 1 on; 0: none is left. */
size_t sl_scores_message(const sl_scores *s, size_t from, sl_msg_token out[SL_SCORES_MESSAGE]);
/* Nothing is asked for, or every token has its log-probabilities. */
bool sl_scores_whole(const sl_scores *s);

/* The tokens of a request whose pages may be shared, of `shared` otherwise. */
static inline int32_t sl_scores_shared(const sl_sampling *how, int32_t shared)
{
    return how->prompt_logprobs ? 0 : shared;
}

#endif
