/* See prompt_queue.h. */
#include "worker/prompt_queue.h"

#include <stdlib.h>

#include "base/log.h"

sl_status sl_prompt_queue_open(sl_prompt_queue *q, const sl_prompt_queue_opts *o, sl_err *err)
{
    if (o->unit > o->chunk_tokens)
        return sl_fail(
            err, SL_ERR_INVALID,
            "prefill.chunk_tokens %d: the sparse algorithm computes prompts by %d tokens, and a step "
            "must hold as many",
            o->chunk_tokens, o->unit);
    *q = (sl_prompt_queue){.o = *o,
                           .bound = {.ns = o->max_step_ns, .short_ns = o->short_step_ns},
                           .chunk = {.most = o->chunk_tokens, .automatic = o->automatic}};
    q->turn = calloc((size_t)o->max_prompts, sizeof *q->turn);
    if (!q->turn)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    return sl_pace_init(&q->pace, o->max_context, o->guess_ns, err);
}

void sl_prompt_queue_close(sl_prompt_queue *q)
{
    free(q->turn);
    q->turn = NULL;
    sl_pace_free(&q->pace);
}

static bool is_long(const sl_prompt_queue *q, int32_t tokens)
{
    return tokens >
           (q->o.automatic && q->o.chunk_tokens > SL_CHUNK_USUAL ? SL_CHUNK_USUAL : q->o.chunk_tokens);
}

bool sl_prompt_queue_has_place(const sl_prompt_queue *q, int32_t tokens)
{
    return sl_order_has_place(q->n, q->n_long, is_long(q, tokens), q->o.max_prompts);
}

void sl_prompt_queue_begin(sl_prompt_queue *q, sl_queued_prompt *p)
{
    SL_CHECK(!p->here && q->n < q->o.max_prompts, "%d prompts have a place", q->n);
    sl_queued_prompt *before = q->last;
    while (before && before->arrived > p->arrived)
        before = before->prev;
    p->prev = before;
    p->next = before ? before->next : q->first;
    *(before ? &before->next : &q->first) = p;
    *(p->next ? &p->next->prev : &q->last) = p;
    p->here = true;
    p->take = 0;
    q->n++;
    q->n_long += is_long(q, p->tokens);
}

void sl_prompt_queue_end(sl_prompt_queue *q, sl_queued_prompt *p)
{
    if (!p->here)
        return;
    *(p->prev ? &p->prev->next : &q->first) = p->next;
    *(p->next ? &p->next->prev : &q->last) = p->prev;
    p->here = p->ready = false;
    q->n--;
    q->n_long -= is_long(q, p->tokens);
}

int32_t sl_prompt_queue_share(sl_prompt_queue *q, double max_ns)
{
    int32_t n = 0;
    bool short_prompt = false;
    for (sl_queued_prompt *p = q->first; p; p = p->next) {
        p->take = 0;
        if (!p->ready)
            continue;
        q->turn[n++] = (sl_order_turn){
            .left = p->tokens - p->pos, .token_ns = sl_pace_token_ns(&q->pace, p->pos), .passed = p->passed};
        short_prompt |= p->tokens - p->start <= SL_ORDER_SHORT_TOKENS;
    }
    if (!n)
        return 0;
    sl_order_limit limit = {.min_tokens = q->o.min_step_tokens > 0 ? q->o.min_step_tokens : 1,
                            .unit = q->o.unit};
    if (q->o.automatic)
        limit.aged_tokens = SL_ORDER_PASSED_CHUNKS * SL_CHUNK_USUAL;
    sl_order_bound_next(&q->bound, short_prompt, &limit);
    sl_chunk_next(&q->chunk, q->n > 1 || max_ns > 0 || q->bound.steps > 0, &limit);
    if (max_ns > 0 && (limit.ns <= 0 || limit.ns > max_ns))
        limit.ns = max_ns;
    int32_t tokens = sl_order_prompts(q->turn, n, &limit);
    n = 0;
    for (sl_queued_prompt *p = q->first; p; p = p->next) {
        if (!p->ready)
            continue;
        p->passed = q->turn[n].passed;
        p->take = q->turn[n++].take;
        if (p->stop && p->pos + p->take > p->stop) {
            tokens -= p->pos + p->take - p->stop;
            p->take = p->stop - p->pos;
        }
    }
    return tokens;
}

uint32_t sl_prompt_queue_measured(sl_prompt_queue *q, const sl_pace_part *part, int32_t n, double ns)
{
    int32_t tokens = 0;
    for (int32_t i = 0; i < n; i++)
        tokens += part[i].end - part[i].first;
    sl_pace_measured(&q->pace, part, n, ns);
    sl_chunk_measured(&q->chunk, tokens, ns);
    return sl_pace_rate_add(&q->rate, tokens, ns);
}
