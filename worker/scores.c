/* See scores.h. */
#include "worker/scores.h"

#include <stdlib.h>
#include <string.h>

sl_status sl_scores_open(sl_scores *s, const sl_sampling *how, const int32_t *prompt, size_t n_prompt)
{
    *s = (sl_scores){.prompt = prompt, .n_prompt = (int32_t)n_prompt, .n_best = how->prompt_logprobs - 1};
    if (!how->prompt_logprobs || n_prompt < 2)
        return SL_OK;
    s->at = calloc((n_prompt - 1) * (size_t)how->prompt_logprobs, sizeof *s->at);
    return s->at ? SL_OK : SL_ERR_NO_MEMORY;
}

void sl_scores_close(sl_scores *s)
{
    free(s->at);
    s->at = NULL;
}

void sl_scores_room_free(sl_scores_room *r)
{
    free(r->out);
    free(r->items);
    *r = (sl_scores_room){0};
}

static bool wanted(const sl_scores *s, int32_t first)
{
    return s->at && first < s->n_prompt - 1; /* no token of the prompt follows its last one */
}

sl_step_score *sl_scores_ask(const sl_scores *s, int32_t first, int32_t n, sl_scores_room *r,
                             int32_t max_items, int32_t max_tokens)
{
    int32_t most = s->n_prompt - 1 - first;
    if (!wanted(s, first))
        return NULL;
    if (!r->out)
        r->out = calloc((size_t)max_tokens, sizeof *r->out);
    if (!r->items)
        r->items = calloc((size_t)max_items, sizeof *r->items);
    if (!r->out || !r->items || r->n == max_items || n > max_tokens - r->tokens)
        return NULL;
    sl_step_score *w = &r->items[r->n++];
    *w = (sl_step_score){.n = n < most ? n : most,
                         .next = s->prompt + first + 1,
                         .n_best = s->n_best,
                         .out = r->out + r->tokens};
    r->tokens += w->n;
    return w;
}

sl_status sl_scores_take(sl_scores *s, int32_t first, const sl_step_score *w, sl_err *err)
{
    size_t each = 1 + (size_t)s->n_best;
    if (!wanted(s, first))
        return SL_OK;
    if (!w || first != s->have)
        return sl_fail(err, SL_ERR_NO_MEMORY, "no room for the log-probabilities of the prompt");
    for (int32_t i = 0; i < w->n; i++) {
        const sl_sampled *x = &w->out[i];
        sl_logprob *to = s->at + (size_t)(first + i) * each;
        SL_TRY(sl_sample_fault_status(x->fault, first + i + 1, err));
        to[0] = (sl_logprob){x->id, x->logprob};
        for (uint32_t k = 0; k < each - 1; k++)
            to[1 + k] = k < x->n_top ? x->top[k] : (sl_logprob){.id = -1};
    }
    s->have = first + w->n;
    return SL_OK;
}

bool sl_scores_whole(const sl_scores *s)
{
    return !s->at || s->have == s->n_prompt - 1;
}

size_t sl_scores_message(const sl_scores *s, size_t from, sl_msg_token out[SL_SCORES_MESSAGE])
{
    size_t each = 1 + (size_t)s->n_best, n = 0;
    for (; s->at && n < SL_SCORES_MESSAGE && from + n <= (size_t)s->have; n++) {
        const sl_logprob *x = s->at + (from + n - 1) * each;
        sl_msg_token *t = &out[n];
        *t = (sl_msg_token){.id = x[0].id, .logprob = x[0].logprob};
        while (t->n_top < each - 1 && x[1 + t->n_top].id >= 0) {
            t->top_ids[t->n_top] = x[1 + t->n_top].id;
            t->top_logprobs[t->n_top] = x[1 + t->n_top].logprob;
            t->n_top++;
        }
    }
    return n;
}
