/*
 * Prompts that this worker computes itself (role both). Engine thread.
 *
 * A step of the batch takes a chunk of prompts with it: the tokens of running requests and those of prompts are items of
 * one step of the runner, so a prompt never adds a step between two tokens of a running request. How many tokens of which
 * prompt a step computes is decided as on a prefill worker (worker/order.h), with one more bound: while a request
 * decodes, the prompt tokens of a step may take both.max_stall_ms (stall.h).
 *
 * The rows go straight to the pages that RESERVE has reserved. Pages enter the prefix tree as soon as they are full and
 * are sealed at the same time. Matched pages are verified while the rest of the prompt is computed; the first token
 * waits for the answer. A sequence is resident while its prompt is computed. When the prompt has ended it stays open if
 * the request joins the batch at once (residency.c), and is closed otherwise.
 */
#include <inttypes.h>
#include <stdlib.h>

#include "decode/decode_impl.h"

static const uint64_t MS = 1000000;
static const double FIRST_GUESS_NS = 1e5; /* of one prompt token, until a step was measured */
enum { PAGE = SL_PAGE_TOKENS };

sl_status sl_prompts_open(sl_decode *d, sl_err *err)
{
    const sl_prompt_opts *o = &d->o.prompts;
    size_t n = (size_t)o->max_requests;
    if (!o->chunk_tokens)
        return SL_OK;
    d->run.prompts.part = calloc(n, sizeof *d->run.prompts.part);
    d->run.prompts.turn = calloc(n, sizeof *d->run.prompts.turn);
    if (!d->run.prompts.part || !d->run.prompts.turn)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    d->run.prompts.bound = (sl_prefill_bound){.ns = (double)o->max_step_ms * (double)MS,
                                              .short_ns = (double)o->short_step_ms * (double)MS};
    return sl_pace_init(&d->run.prompts.pace, d->o.role.runner->max_context, FIRST_GUESS_NS, err);
}

void sl_prompts_close(sl_decode *d)
{
    free(d->run.prompts.part);
    free(d->run.prompts.turn);
    sl_pace_free(&d->run.prompts.pace);
}

/* ---- admission ---- */

static bool is_long(const sl_decode *d, const sl_ticket *t)
{
    return t->n_tokens > d->o.prompts.chunk_tokens;
}

/* How many prompts are being computed. *n_long, if not NULL: how many of them are longer than a chunk. */
static int32_t begun(const sl_decode *d, int32_t *n_long)
{
    int32_t n = 0, longer = 0;
    for (const sl_ticket *t = d->tickets.list; t; t = t->next) {
        bool has = t->state == TICKET_PROMPT && t->seq;
        n += has;
        longer += has && is_long(d, t);
    }
    if (n_long)
        *n_long = longer;
    return n;
}

static bool has_place(const sl_decode *d, const sl_ticket *t)
{
    int32_t n_long, n = begun(d, &n_long);
    return sl_prefill_has_place(n, n_long, is_long(d, t), d->o.prompts.max_requests);
}

/*
 * A prompt that has waited may match pages that were computed meanwhile: it gets another lease then. Its own pages, of
 * which none is written yet, are free at once, so there is room for that. False: t has failed.
 */
static bool match_again(sl_decode *d, sl_ticket *t)
{
    const sl_msg_reserve *r = &t->m->msg.reserve;
    int32_t had = sl_lease_matched(t->lease);
    if (t->checks || sl_store_match(d->role.store, r->seed, t->tokens, t->n_tokens) <= had)
        return true;
    sl_lease_release(t->lease, true);
    t->lease = NULL;
    sl_status st = sl_store_lease_for(d->role.store, r->tenant, r->seed, t->tokens, t->n_tokens, &t->lease);
    int32_t matched = st == SL_OK ? sl_lease_matched(t->lease) : 0;
    t->unverified = matched > had && sl_checker_seals(&d->role.checker);
    if (st == SL_OK && (!t->unverified || sl_patrol_verify(d, t, had, matched - had, false)))
        return true;
    sl_ticket_failed(d, t, st == SL_OK ? SL_ERR_NO_MEMORY : st, true, "cannot lease pages again");
    return false;
}

/* False: the device has no pages or no sequence for it now; it continues to wait. */
static bool begin(sl_decode *d, sl_ticket *t)
{
    const sl_runner *r = d->o.role.runner;
    sl_err err = {0};
    if (!match_again(d, t))
        return true;
    int32_t pages = sl_lease_n_pages(t->lease), matched = sl_lease_matched(t->lease);
    sl_status st;
    do {
        st = sl_runner_open(r, SL_RESIDENT, sl_lease_pages(t->lease), pages, matched * PAGE, t->n_prompt,
                            &t->seq, &err);
    } while (st == SL_ERR_EXHAUSTED && sl_residency_give(d));
    if (st == SL_ERR_EXHAUSTED && (d->tickets.n_running || begun(d, NULL)))
        return false;
    if (st != SL_OK) {
        sl_ticket_failed(d, t, st, true, "cannot open the sequence: %.200s", err.text);
        return true;
    }
    t->seq_pages = pages;
    t->pos = t->start = matched * PAGE;
    t->sealed = sl_checker_seals(&d->role.checker) ? matched : 0;
    t->started_ns = sl_now_ns();
    sl_counter_add(d->report.m.prompts.reused, (uint64_t)t->start);
    return true;
}

void sl_prompts_admit(sl_decode *d)
{
    bool room = true;
    for (sl_ticket *t = d->tickets.list, *next; t && room; t = next) {
        next = t->next;
        if (t->state == TICKET_PROMPT && !t->seq && has_place(d, t))
            room = begin(d, t);
    }
}

/* ---- steps ---- */

int32_t sl_prompts_collect(sl_decode *d, int32_t decoding)
{
    sl_prefill_turn *turn = d->run.prompts.turn;
    sl_prompt_part *part = d->run.prompts.part;
    const sl_prompt_opts *o = &d->o.prompts;
    bool short_prompt = false;
    int32_t n = 0, parts = 0;
    d->run.prompts.n_parts = 0;
    for (sl_ticket *t = d->tickets.list; t && o->chunk_tokens; t = t->next) {
        if (t->state != TICKET_PROMPT || !t->seq)
            continue;
        turn[n] = (sl_prefill_turn){.left = t->n_tokens - t->pos,
                                    .token_ns = sl_pace_token_ns(&d->run.prompts.pace, t->pos),
                                    .passed = t->passed};
        part[n++].ticket = t;
        short_prompt |= t->n_tokens - t->start <= SL_PREFILL_SHORT_TOKENS;
    }
    if (!n)
        return 0;
    sl_prefill_limit limit = {.tokens = o->chunk_tokens,
                              .min_tokens = o->min_step_tokens > 0 ? o->min_step_tokens : 1};
    sl_prefill_bound_next(&d->run.prompts.bound, short_prompt, &limit);
    sl_stall_limit(o->max_stall_ms, decoding, &limit);
    sl_prefill_order(turn, n, &limit);
    for (int32_t i = 0; i < n; i++) {
        sl_ticket *t = part[i].ticket;
        t->passed = turn[i].passed;
        if (!turn[i].take)
            continue;
        part[parts] = (sl_prompt_part){t, t->pos, t->pos + turn[i].take};
        d->run.items[decoding + parts++] = (sl_step_item){.seq = t->seq,
                                                          .tokens = t->tokens + t->pos,
                                                          .n_tokens = turn[i].take,
                                                          .want_logits = turn[i].take == turn[i].left};
    }
    return d->run.prompts.n_parts = parts;
}

/* Seals and publishes the pages that have become full. False: t has failed. */
static bool publish(sl_decode *d, sl_ticket *t)
{
    for (int32_t page = t->start / PAGE > t->sealed ? t->start / PAGE : t->sealed; page < t->pos / PAGE;
         page++) {
        if (!sl_patrol_seal(d, t, page)) {
            sl_ticket_failed(d, t, SL_ERR_NO_MEMORY, true, "out of memory");
            return false;
        }
    }
    sl_lease_publish(t->lease, t->tokens, sl_runner_public(d->o.role.runner, t->n_prompt, t->pos));
    return true;
}

static void finish(sl_decode *d, sl_ticket *t, const float *logits)
{
    if (!sl_batch_sample(d, t, logits, &t->first))
        return;
    uint64_t now = sl_now_ns();
    sl_msg m = {.type = SL_MSG_PREFILLED};
    t->cached_tokens = (uint32_t)t->start;
    m.prefilled = (sl_msg_prefilled){.rid = t->rid,
                                     .attempt = t->attempt,
                                     .cached_tokens = t->cached_tokens,
                                     .queue_us = (t->started_ns - t->reserved_ns) / 1000,
                                     .compute_us = (now - t->started_ns) / 1000};
    sl_worker_tell_router(d->worker, t->router, &m);
    sl_landing_computed(d, t);
}

/* The step has computed the parts; items are those of the parts. */
static void measure(sl_decode *d, int32_t decoding, uint64_t ns)
{
    const sl_prompt_part *part = d->run.prompts.part;
    int32_t n = d->run.prompts.n_parts, tokens = 0;
    sl_pace_part spans[SL_PROMPT_PARTS];
    double mine = sl_stall_of_prompts(&d->run.prompts.stall, decoding, (double)ns);
    for (int32_t i = 0; i < n; i++) {
        spans[i] = (sl_pace_part){part[i].first, part[i].end};
        tokens += part[i].end - part[i].first;
    }
    sl_pace_measured(&d->run.prompts.pace, spans, n, mine);
    atomic_store(&d->role.load.prefill_rate, sl_pace_rate_add(&d->run.prompts.rate, tokens, mine));
    sl_histogram_observe(d->report.m.prompts.chunk, (double)ns / 1e9);
    sl_counter_add(d->report.m.prompts.tokens, (uint64_t)tokens);
    d->run.count.prompt_tokens += (uint64_t)tokens;
}

void sl_prompts_computed(sl_decode *d, int32_t decoding, uint64_t ns)
{
    int32_t n = d->run.prompts.n_parts;
    if (!n) {
        sl_stall_decoded(&d->run.prompts.stall, decoding, (double)ns);
        return;
    }
    measure(d, decoding, ns);
    for (int32_t i = 0; i < n; i++) {
        sl_ticket *t = d->run.prompts.part[i].ticket;
        t->pos = d->run.prompts.part[i].end;
        if (publish(d, t) && t->pos == t->n_tokens)
            finish(d, t, d->run.items[decoding + i].logits);
    }
}

void sl_prompts_failed(sl_decode *d, sl_status st, const char *why)
{
    for (int32_t i = 0; i < d->run.prompts.n_parts; i++)
        sl_ticket_failed(d, d->run.prompts.part[i].ticket, st, true, "step: %.250s", why);
}
