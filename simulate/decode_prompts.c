/*
 * Prompts that a decode worker of role both computes: as decode/run/prompts.c, in virtual time. Places, the order of prompts and
 * the bounds of a step are the product's (worker/prompt_queue.h, worker/stall.h); a ticket is in PROMPT until its first
 * token (decode/core/ticket.h).
 *
 * A step that decodes and computes prompts reads the weights once. Its time is the sum of both parts, less the smaller of the two
 * shortest steps of the costs, which is mostly that reading. A simulated step stands for as many real ones as a simulated token
 * stands for tokens, and each of these may be held back.
 */
#include "simulate/sim_impl.h"

static void begin(sl_sim_worker *w, sl_ticket *t)
{
    sl_sim_decode *d = &w->decode;
    sl_sim_outcome *o = &w->s->out;
    int32_t matched = t->matched * PAGE;
    int32_t start = matched < t->n_tokens ? matched : t->n_tokens - 1;
    sl_sim_ticket_of(t)->prompt = (sl_queued_prompt){
        .arrived = t->number, .tokens = t->n_tokens, .start = start, .pos = start, .ready = true, .owner = t};
    sl_prompt_queue_begin(&d->prompts, &sl_sim_ticket_of(t)->prompt);
    sl_core_signal(&d->core, t, SL_ON_JOINED, w->s->now_ns);
    if (t->n_tokens != t->n_prompt) /* it was retracted, and counted before */
        return;
    o->computed += t->n_tokens - start;
    o->block_hits += matched / w->s->block;
    o->blocks += (t->n_tokens + w->s->block - 1) / w->s->block;
}

void sl_sim_prompts_admit(sl_sim_worker *w)
{
    sl_sim_decode *d = &w->decode;
    for (sl_ticket *t = NULL; (t = sl_tickets_next(&d->core.tickets, t, SL_TICKETS_IN(PROMPT)));)
        if (!t->begun && sl_prompt_queue_has_place(&d->prompts, t->n_tokens))
            begin(w, t);
}

double sl_sim_prompts_step(sl_sim_worker *w, int32_t decoding)
{
    sl_sim_decode *d = &w->decode;
    const sl_sim *s = w->s;
    const sl_sim_costs *c = s->c;
    double ns = 0, k = s->per_token;
    int32_t tokens = sl_prompt_queue_share(&d->prompts, k * sl_stall_max_ns(d->stall_ms, decoding));
    for (const sl_queued_prompt *p = d->prompts.first; tokens && p; p = p->next) {
        if (!p->take)
            continue;
        ns += sl_sim_prefill_ns(c, tokens * k, p->take * k, p->pos * k);
        sl_core_signal(&d->core, p->owner, SL_ON_STEP, s->now_ns);
    }
    if (!decoding || !(ns > 0))
        return ns;
    double once =
        c->decode.step_ms.v[0] < c->prefill.step_ms.v[0] ? c->decode.step_ms.v[0] : c->prefill.step_ms.v[0];
    once *= k * SL_MS;
    return ns > once ? ns - once : 0;
}

/* The tokens of t's part of the step have rows; after the last part its first token follows. */
static void computed(sl_sim_worker *w, sl_ticket *t, int32_t end)
{
    sl_core *c = &w->decode.core;
    sl_ticket_event stepped = {.kind = SL_ON_STEPPED, .now_ns = w->s->now_ns},
                    first = {.kind = SL_ON_COMPUTED, .now_ns = w->s->now_ns};
    stepped.stepped.rows = end;
    first.computed.first.id = SL_SIM_OUTPUT_TOKEN + (int32_t)(t->rid % SL_SIM_OUTPUT_TOKEN);
    first.computed.cached_tokens = (uint32_t)(t->matched * PAGE);
    bool ended = end == t->n_tokens;
    sl_core_event(c, t, &stepped);
    if (t->state != SL_TICKET_PROMPT || !ended)
        return;
    sl_prompt_queue_end(&w->decode.prompts, &sl_sim_ticket_of(t)->prompt);
    sl_core_event(c, t, &first);
}

void sl_sim_prompts_stepped(sl_sim_worker *w, int32_t decoding, double ns)
{
    enum { PARTS = 1024 /* the largest prefill.max_requests */ };
    sl_sim_decode *d = &w->decode;
    sl_pace_part part[PARTS];
    int32_t n = 0;
    for (sl_ticket *t = NULL; (t = sl_tickets_next(&d->core.tickets, t, ~SL_TICKETS_IN(GONE)));) {
        sl_queued_prompt *p = &sl_sim_ticket_of(t)->prompt;
        if (!t->steps || !p->take)
            continue;
        part[n++] = (sl_pace_part){p->pos, p->pos + p->take};
        p->pos += p->take;
        p->take = 0;
        computed(w, t, p->pos);
    }
    if (n)
        d->tokens_per_s =
            sl_prompt_queue_measured(&d->prompts, part, n, sl_stall_of_prompts(&d->stall, decoding, ns));
    else if (decoding)
        sl_stall_decoded(&d->stall, decoding, ns);
}
