/*
 * The batch: which tickets run, and one step of them. Engine thread. One turn of the engine loop has four phases;
 * tickets neither join nor leave during the third:
 *
 *   admit     WAITING -> RUNNING in the order in which tickets were verified, while there are slots and device memory
 *   grow      every running ticket gets the page that its next row needs. When there is none, on the host or on the
 *             device, a resident ticket is spilled or the ticket that was verified last is retracted: its full pages
 *             stay cached and the router starts it again
 *   compute   the runner takes the last token of every ticket in e.batch, appends its row and returns logits, and
 *             computes parts of prompts in the same step (prompts.c); no mail is handled meanwhile, so the batch cannot
 *             change
 *   take      the next token of each is sampled and sent; a ticket whose stream ends is done and leaves. A failed
 *             step fails every ticket in it
 *
 * Full pages are published as they fill, so that the next turn of a conversation finds them.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "decode/decode_impl.h"

enum { PAGE = SL_PAGE_TOKENS };

static bool push_token(sl_ticket *t, int32_t id)
{
    if (t->n_tokens == t->cap) {
        int32_t cap = t->cap * 2;
        int32_t *tokens = realloc(t->tokens, (size_t)cap * sizeof *tokens);
        if (!tokens)
            return false;
        t->tokens = tokens;
        t->cap = cap;
    }
    t->tokens[t->n_tokens++] = id;
    return true;
}

static void done(sl_decode *d, sl_ticket *t, sl_finish finish, int32_t matched)
{
    sl_msg m = {.type = SL_MSG_DONE};
    sl_layer_stats s = {0};
    if (t->seq)
        d->o.role.runner->seq_stats(d->o.role.runner->impl, t->seq, &s);
    m.done = (sl_msg_done){.rid = t->rid,
                           .attempt = t->attempt,
                           .finish = (uint8_t)finish,
                           .matched_stop = matched,
                           .produced = (uint32_t)(t->n_tokens - t->n_prompt),
                           .cached_tokens = t->cached_tokens,
                           .hits = s.hits,
                           .misses = s.misses,
                           .swap_bytes = s.swap_bytes};
    sl_worker_tell_router(d->worker, t->router, &m);
    sl_log(SL_LOG_DEBUG, "decode", "done",
           "rid=%016" PRIx64 " attempt=%u produced=%u finish=%d hits=%" PRIu64 " misses=%" PRIu64
           " swap_bytes=%" PRIu64,
           t->rid, t->attempt, m.done.produced, (int)finish, s.hits, s.misses, s.swap_bytes);
    sl_ticket_end(d, t, SL_OK);
}

/* Appends one token to the stream and sends it to the router; ends the ticket when the token ends the stream. */
static void emit(sl_decode *d, sl_ticket *t, const sl_msg_token *token)
{
    sl_msg m = {.type = SL_MSG_TOKENS};
    sl_msg_token copy = *token;
    m.tokens = (sl_msg_tokens){.rid = t->rid,
                               .attempt = t->attempt,
                               .first_index = (uint32_t)(t->n_tokens - t->n_prompt),
                               .tokens = &copy,
                               .n_tokens = 1};
    if (!push_token(t, token->id)) {
        sl_ticket_failed(d, t, SL_ERR_NO_MEMORY, true, "out of memory");
        return;
    }
    sl_worker_tell_router(d->worker, t->router, &m);
    d->run.count.tokens++;
    sl_counter_add(d->report.m.tokens, 1);
    if (sl_sampling_is_stop(&t->sampling, d->role.sampler, token->id))
        done(d, t, SL_FINISH_STOP, token->id);
    else if (t->n_tokens - t->n_prompt >= t->sampling.max_tokens ||
             t->n_tokens >= d->o.role.runner->max_context)
        done(d, t, SL_FINISH_LENGTH, -1);
}

void sl_batch_first_token(sl_decode *d, sl_ticket *t)
{
    emit(d, t, &t->first);
}

/* ---- pages ---- */

void sl_batch_retract(sl_decode *d, sl_ticket *t, const char *why)
{
    sl_msg m = {.type = SL_MSG_RETRACTED};
    m.retracted = (sl_msg_retracted){
        .rid = t->rid, .attempt = t->attempt, .safe = (uint32_t)(t->n_tokens - t->n_prompt)};
    sl_worker_tell_router(d->worker, t->router, &m);
    d->tickets.count.retracted++;
    sl_counter_add(d->report.m.retractions, 1);
    sl_log(SL_LOG_WARN, "decode", "retracted", "rid=%016" PRIx64 " attempt=%u produced=%d pages=%d why=%s",
           t->rid, t->attempt, t->n_tokens - t->n_prompt, sl_lease_n_pages(t->lease), why);
    sl_ticket_end(d, t, SL_OK);
}

/* Of the tickets that can be retracted, the one that was verified last. */
static sl_ticket *youngest(const sl_decode *d)
{
    sl_ticket *best = NULL;
    for (sl_ticket *t = d->tickets.list; t; t = t->next) {
        bool may = t->state == TICKET_RUNNING || t->state == TICKET_WAITING;
        if (may && (!best || t->order > best->order))
            best = t;
    }
    return best;
}

/*
 * Frees pages for t's next row by a retraction. False: t itself has ended. pages: the number that t needs; total: the
 * number that exist. A request that is alone and needs no more than exist is retracted as well, and not failed: pages
 * of requests that have ended can still be held by a check of their checksums, so not all other pages have to be free.
 */
static bool make_room(sl_decode *d, sl_ticket *t, const char *what, int64_t pages, int64_t total)
{
    sl_ticket *y = youngest(d);
    if (y == t && d->tickets.n == 1 && pages > total) {
        sl_ticket_failed(d, t, SL_ERR_EXHAUSTED, false, "%s: this request does not fit even alone", what);
        return false;
    }
    sl_batch_retract(d, y, "exhausted");
    return y != t;
}

/* Pages for the next row of t: on the host first, then on the device. False: t may have ended; look for it again. */
static bool grow(sl_decode *d, sl_ticket *t)
{
    const sl_runner *r = d->o.role.runner;
    sl_err err = {0};
    while (t->n_tokens > sl_lease_n_pages(t->lease) * PAGE) {
        if (sl_lease_grow(t->lease, 1) != SL_OK &&
            !make_room(d, t, "no host pages", sl_lease_n_pages(t->lease) + 1,
                       sl_arena_pages(d->o.role.arena)))
            return false;
    }
    int32_t have = sl_lease_n_pages(t->lease);
    while (t->seq_pages < have) {
        sl_status st =
            r->add_pages(r->impl, t->seq, sl_lease_pages(t->lease) + t->seq_pages, have - t->seq_pages, &err);
        if (st == SL_OK) {
            t->seq_pages = have;
        } else if (st != SL_ERR_EXHAUSTED) {
            sl_ticket_failed(d, t, st, true, "cannot grow: %.200s", err.text);
            return false;
        } else if (sl_residency_relieve(d, t)) {
            return false; /* collect() finds it again, if it still runs */
        } else if (!make_room(d, t, "no device pages", 1, 0)) {
            return false;
        }
    }
    return true;
}

/* ---- admission ---- */

/* WAITING -> RUNNING. False: there is no device memory now; t continues to wait. The host pages have the rows of all
 * tokens except the last. */
static bool join(sl_decode *d, sl_ticket *t)
{
    sl_err err = {0};
    int32_t pages = sl_lease_n_pages(t->lease);
    sl_status st = t->seq ? sl_residency_adopt(d, t, &err) : sl_residency_open(d, t, pages, &err);
    if (st == SL_OK) {
        t->seq_pages = pages;
        t->state = TICKET_RUNNING;
        d->tickets.n_running++;
        return true;
    }
    if (st == SL_ERR_EXHAUSTED && d->tickets.n_running)
        return false;
    sl_ticket_failed(d, t, st, true, "cannot open the sequence: %.200s", err.text);
    return true;
}

static void admit(sl_decode *d)
{
    while (d->tickets.n_running < d->o.max_batch) {
        sl_ticket *first = NULL;
        for (sl_ticket *t = d->tickets.list; t; t = t->next) {
            if (t->state == TICKET_WAITING && (!first || t->order < first->order))
                first = t;
        }
        if (!first || !join(d, first))
            return;
    }
}

/* A request that waits for a slot keeps no device memory; prompts that have not begun may need it. */
static void close_waiting(sl_decode *d)
{
    for (sl_ticket *t = d->tickets.list; t; t = t->next) {
        if (t->state != TICKET_WAITING || !t->seq)
            continue;
        d->o.role.runner->close(d->o.role.runner->impl, t->seq);
        t->seq = NULL;
    }
}

/* A worker that drains returns requests without a slot to the router at once: another worker can start them sooner. */
static void give_back(sl_decode *d)
{
    for (sl_ticket *t = d->tickets.list, *next; t; t = next) {
        next = t->next;
        if (t->state == TICKET_WAITING || (t->state == TICKET_PROMPT && !t->seq))
            sl_batch_retract(d, t, "draining");
    }
}

void sl_batch_admit(sl_decode *d)
{
    admit(d);
    close_waiting(d);
    if (d->role.draining)
        give_back(d);
    sl_prompts_admit(d);
}

/* ---- the step ---- */

static int32_t collect(sl_decode *d)
{
    bool again = true;
    while (again) {
        again = false;
        for (sl_ticket *t = d->tickets.list; t; t = t->next) {
            bool short_of_pages =
                t->state == TICKET_RUNNING && (t->n_tokens > sl_lease_n_pages(t->lease) * PAGE ||
                                               t->seq_pages < sl_lease_n_pages(t->lease));
            if (short_of_pages) {
                grow(d, t);
                again = true;
                break; /* the list may have changed */
            }
        }
    }
    int32_t n = 0;
    for (sl_ticket *t = d->tickets.list; t && n < d->o.max_batch; t = t->next) {
        if (t->state == TICKET_RUNNING)
            d->run.batch[n++] = t;
    }
    return n;
}

bool sl_batch_sample(sl_decode *d, sl_ticket *t, const float *logits, sl_msg_token *out)
{
    sl_history h = {.prompt = t->tokens,
                    .n_prompt = (size_t)t->n_prompt,
                    .output = t->tokens + t->n_prompt,
                    .n_output = (size_t)(t->n_tokens - t->n_prompt)};
    sl_sampled s;
    sl_err err = {0};
    sl_status st = sl_sample(d->role.sampler, logits, &t->sampling, &h, (uint64_t)t->n_tokens, &s, &err);
    if (st != SL_OK) {
        sl_ticket_failed(d, t, st, true, "sampling: %.200s", err.text);
        return false;
    }
    *out = sl_worker_token(&s);
    return true;
}

static void take_result(sl_decode *d, sl_ticket *t, const float *logits)
{
    sl_msg_token token;
    if (t->n_tokens % PAGE == 0) {
        if (!sl_patrol_seal(d, t, t->n_tokens / PAGE - 1)) {
            sl_ticket_failed(d, t, SL_ERR_NO_MEMORY, true, "out of memory");
            return;
        }
        sl_lease_publish(t->lease, t->tokens, sl_runner_public(d->o.role.runner, t->n_prompt, t->n_tokens));
    }
    if (sl_batch_sample(d, t, logits, &token))
        emit(d, t, &token);
}

sl_status sl_batch_step(sl_decode *d, bool *worked, sl_err *err)
{
    int32_t n = collect(d), parts = sl_prompts_collect(d, n);
    *worked = n + parts > 0;
    if (!*worked)
        return SL_OK;
    for (int32_t i = 0; i < n; i++)
        d->run.items[i] = (sl_step_item){.seq = d->run.batch[i]->seq,
                                         .tokens = &d->run.batch[i]->tokens[d->run.batch[i]->n_tokens - 1],
                                         .n_tokens = 1,
                                         .want_logits = true};
    uint64_t t0 = sl_now_ns();
    sl_status step = sl_runner_step(d->o.role.runner, d->run.items, n + parts, NULL, err);
    if (step > SL_ERR_DEVICE && sl_runner_broken(d->o.role.runner)) {
        *worked = false;
        return SL_OK; /* the sessions with the routers end, and with them every ticket */
    }
    uint64_t ns = sl_now_ns() - t0;
    if (n) {
        sl_histogram_observe(d->report.m.step, (double)ns / 1e9);
        sl_histogram_observe(d->report.m.batch, n);
    }
    d->run.count.steps++;
    for (int32_t i = 0; i < n; i++) {
        if (step == SL_OK)
            take_result(d, d->run.batch[i], d->run.items[i].logits);
        else
            sl_ticket_failed(d, d->run.batch[i], step, true, "step: %.250s", err->text);
    }
    if (step == SL_OK)
        sl_prompts_computed(d, n, ns);
    else
        sl_prompts_failed(d, step, err->text);
    return step <= SL_ERR_DEVICE ? step : SL_OK;
}
