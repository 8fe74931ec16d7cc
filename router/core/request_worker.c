/*
 * The steps of a request for messages of its workers. messages.c has checked that a message belongs to the attempt
 * (rid, attempt, sender). This file checks the contents: tokens are compared with those that were already sent.
 */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "kvstore/page_key.h"
#include "router/core/request_impl.h"

enum {
    TELL_BOTH = SL_TELL_PREFILL | SL_TELL_DECODE,
    PROVEN_TOKENS = 8, /* number of tokens after the last death; then the deaths are forgotten */
};

static double seconds_since(uint64_t from_ns, uint64_t now_ns)
{
    return (double)(now_ns - from_ns) / 1e9;
}

void sl_step_reserved(const sl_request_env *env, sl_request *q, const sl_request_event *ev, sl_step *out)
{
    const sl_msg_reserved *m = ev->reserved;
    size_t pages = (q->n_tokens + SL_KEY_PAGE_TOKENS - 1) / SL_KEY_PAGE_TOKENS;
    if (m->n_pages < pages || m->matched_pages > pages) { /* more: snapshots of states */
        sl_step_retry(env, q, SL_ERR_CORRUPT, "decode worker reserved a wrong number of pages", TELL_BOTH,
                      ev->now_ns, out);
        return;
    }
    sl_histogram_observe(env->stats->requests.reserve, seconds_since(q->times.stage_ns, ev->now_ns));
    q->state = SL_REQUEST_PREFILLING;
    q->times.stage_ns = ev->now_ns;
    q->attempt.ticket = m->ticket;
    q->attempt.writer = SL_WRITER_ACTIVE;
    sl_effect *e = sl_step_add(out, q, SL_EFFECT_PREFILL);
    e->landing.pages = m->pages;
    e->landing.n_pages = m->n_pages;
    e->landing.matched_pages = m->matched_pages;
}

void sl_step_no_room(const sl_request_env *env, sl_request *q, const sl_request_event *ev, sl_step *out)
{
    (void)env;
    q->times.backoff_ms = q->times.backoff_ms ? q->times.backoff_ms * 2 : BACKOFF_MIN_MS;
    if (q->times.backoff_ms > BACKOFF_MAX_MS)
        q->times.backoff_ms = BACKOFF_MAX_MS;
    sl_step_add(out, q, SL_EFFECT_BLOCK)->until_ns = ev->now_ns + q->times.backoff_ms * SL_MS;
    sl_step_leave(q, SL_OK, 0, out);
    sl_step_requeue(q, ev->now_ns, out);
}

void sl_step_prefilled(const sl_request_env *env, sl_request *q, const sl_request_event *ev, sl_step *out)
{
    const sl_msg_prefilled *m = ev->prefilled;
    sl_step_add(out, q, SL_EFFECT_SETTLE)->placed_tokens = q->attempt.placed_tokens;
    if (!q->cached_known) { /* placed_tokens does not tell whether output is computed again: it leaves out what is cached */
        q->cached_tokens = m->cached_tokens < q->n_prompt ? m->cached_tokens : (uint32_t)q->n_prompt;
        q->cached_known = true;
    }
    q->attempt.placed_tokens = 0;
    q->attempt.writer = SL_WRITER_DONE;
    sl_histogram_observe(env->stats->requests.transfer, (double)m->ship_us / 1e6);
    if (q->state == SL_REQUEST_PREFILLING) {
        sl_histogram_observe(env->stats->requests.prefill, seconds_since(q->times.stage_ns, ev->now_ns));
        q->times.stage_ns = ev->now_ns;
    }
    sl_step_add(out, q, SL_EFFECT_FOLLOW);
}

/* ---- tokens ---- */

/* The error in these log-probabilities of the prompt, or NULL. */
static const char *check_scores(const sl_request *q, const sl_msg_tokens *m)
{
    if (!q->sampling.prompt_logprobs || !m->first_index || m->first_index > q->n_scored + 1)
        return "log-probabilities of the prompt that were not asked for, or are missing";
    for (size_t i = 0; i < m->n_tokens; i++) {
        size_t at = m->first_index + i;
        if (at >= q->n_prompt || m->tokens[i].id != q->tokens[at])
            return "log-probabilities of a token that the prompt does not have";
    }
    return NULL;
}

static bool scores_missing(const sl_request *q)
{
    return q->sampling.prompt_logprobs && q->n_scored + 1 < q->n_prompt;
}

/* Another attempt repeats them: those that were sent are left out. */
void sl_step_scores(const sl_request_env *env, sl_request *q, const sl_request_event *ev, sl_step *out)
{
    const sl_msg_tokens *m = ev->tokens;
    const char *wrong = check_scores(q, m);
    if (wrong) {
        sl_counter_add(env->stats->workers.malformed, 1);
        sl_step_retry(env, q, SL_ERR_CORRUPT, wrong, TELL_BOTH, ev->now_ns, out);
        return;
    }
    size_t skip = q->n_scored + 1 - m->first_index;
    q->times.stage_ns = ev->now_ns;
    if (skip >= m->n_tokens)
        return;
    sl_effect *e = sl_step_add(out, q, SL_EFFECT_EMIT);
    e->emit.tokens = m->tokens + skip;
    e->emit.n_tokens = m->n_tokens - skip;
    e->emit.scores = true;
    e->emit.text_at = env->text->len;
    q->n_scored += (uint32_t)e->emit.n_tokens;
}

static bool room_for(sl_request *q, size_t n)
{
    if (q->n_tokens + n <= q->cap)
        return true;
    size_t cap = q->cap * 2 > q->n_tokens + n ? q->cap * 2 : q->n_tokens + n + 64;
    int32_t *t = realloc(q->tokens, cap * sizeof *t);
    if (!t)
        return false;
    q->tokens = t;
    q->cap = cap;
    return true;
}

static bool keep_logprobs(sl_request *q, const sl_msg_token *t, size_t n)
{
    if (q->sampling.n_logprobs < 0)
        return true;
    float *p = realloc(q->logprobs, (q->cap - q->n_prompt) * sizeof *p);
    if (!p)
        return false;
    q->logprobs = p;
    for (size_t i = 0; i < n; i++)
        p[q->n_tokens - q->n_prompt + i] = t[i].logprob;
    return true;
}

static void observe_tokens(const sl_request_env *env, sl_request *q, size_t n, uint64_t now)
{
    sl_router_stats *s = env->stats;
    sl_counter_add(s->requests.generated_tokens, n);
    if (!q->times.first_token_ns) {
        q->times.first_token_ns = now;
        sl_histogram_observe(s->requests.ttft, seconds_since(q->times.start_ns, now));
        n--;
    }
    for (size_t i = 0; i < n; i++) /* several tokens in one message share the time */
        sl_histogram_observe(s->requests.itl, seconds_since(q->times.last_token_ns, now) / (double)n);
    q->times.last_token_ns = now;
}

/* The error in these tokens, or NULL. */
static const char *check_tokens(const sl_request_env *env, const sl_request *q, const sl_msg_tokens *m)
{
    uint32_t have = sl_request_produced(q);
    if (m->first_index > have)
        return "tokens are missing";
    if (scores_missing(q))
        return "log-probabilities of the prompt are missing";
    for (size_t i = 0; i < m->n_tokens; i++) {
        int32_t id = m->tokens[i].id;
        if (id < 0 || (uint32_t)id >= env->vocab)
            return "token id outside the vocabulary";
        size_t at = m->first_index + i;
        if (at < have && q->tokens[q->n_prompt + at] != id)
            return "repeated token differs from the one sent before";
        if (at >= (size_t)q->sampling.max_tokens)
            return "more tokens than asked for";
    }
    return NULL;
}

static void out_of_memory(const sl_request_env *env, sl_request *q, sl_step *out)
{
    sl_step_leave(q, SL_ERR_NO_MEMORY, TELL_BOTH, out);
    sl_step_end(env, q, SL_FINISH_ERROR, SL_ERR_NO_MEMORY, "out of memory", out);
}

/* Appends t[0..n), which continue the stream, to the history and to the text, and emits them. */
static void take_tokens(const sl_request_env *env, sl_request *q, const sl_msg_token *t, size_t n,
                        uint64_t now, sl_step *out)
{
    if (!room_for(q, n) || !keep_logprobs(q, t, n)) {
        out_of_memory(env, q, out);
        return;
    }
    observe_tokens(env, q, n, now);
    q->avoid_decode = q->avoid_prefill = 0;
    if (q->deaths.n && sl_request_produced(q) + n >= q->deaths.at + PROVEN_TOKENS) {
        q->deaths.alone = false;
        q->deaths.n = 0;
    }
    size_t at = env->text->len, used = 0;
    bool stopped = false;
    sl_status st = sl_output_tokens(env, q, t, n, &used, &stopped);
    for (size_t i = 0; i < used; i++)
        q->tokens[q->n_tokens++] = t[i].id;
    if (st) {
        out_of_memory(env, q, out);
        return;
    }
    sl_effect *e = sl_step_add(out, q, SL_EFFECT_EMIT);
    e->emit.tokens = t;
    e->emit.n_tokens = used;
    e->emit.text_at = at;
    e->emit.text_len = env->text->len - at;
    if (stopped) { /* by a stop string, which the decode worker does not know */
        sl_step_leave(q, SL_ERR_CANCELLED, TELL_BOTH, out);
        sl_step_end(env, q, SL_FINISH_STOP, SL_OK, NULL, out);
    }
}

static void wrong_tokens(const sl_request_env *env, sl_request *q, sl_step *out)
{
    sl_step_leave(q, SL_ERR_DATA_LOSS, TELL_BOTH, out);
    sl_step_end(
        env, q, SL_FINISH_ERROR, SL_ERR_DATA_LOSS,
        "memory of the worker was damaged, and tokens that were sent differ from those that a repeated "
        "computation yields: the output must not be used",
        out);
}

void sl_step_tokens(const sl_request_env *env, sl_request *q, const sl_request_event *ev, sl_step *out)
{
    const sl_msg_tokens *m = ev->tokens;
    const char *wrong = check_tokens(env, q, m);
    if (wrong) {
        sl_counter_add(env->stats->workers.malformed, 1);
        sl_step_retry(env, q, SL_ERR_CORRUPT, wrong, TELL_BOTH, ev->now_ns, out);
        return;
    }
    if (q->state == SL_REQUEST_PREFILLING) {
        q->state = SL_REQUEST_DECODING;
        if (q->attempt.writer != SL_WRITER_DONE)
            sl_histogram_observe(env->stats->requests.prefill, seconds_since(q->times.stage_ns, ev->now_ns));
        sl_step_add(out, q, SL_EFFECT_FOLLOW);
    }
    q->times.stage_ns = ev->now_ns;
    size_t skip = sl_request_produced(q) - m->first_index; /* tokens of a repeated message */
    if (skip >= m->n_tokens)
        return;
    size_t again;
    if (!sl_repeat_take(env, q, m->tokens + skip, m->n_tokens - skip, &again))
        wrong_tokens(env, q, out);
    else if (skip + again < m->n_tokens)
        take_tokens(env, q, m->tokens + skip + again, m->n_tokens - skip - again, ev->now_ns, out);
}

/* ---- ends of an attempt ---- */

void sl_step_done(const sl_request_env *env, sl_request *q, const sl_request_event *ev, sl_step *out)
{
    const sl_msg_done *m = ev->done;
    if (m->produced != sl_request_produced(q) || scores_missing(q)) {
        sl_counter_add(env->stats->workers.malformed, 1);
        sl_step_retry(env, q, SL_ERR_CORRUPT, "the worker ended before it sent everything", TELL_BOTH,
                      ev->now_ns, out);
        return;
    }
    if (m->finish != SL_FINISH_STOP && m->finish != SL_FINISH_LENGTH) {
        sl_step_retry(env, q, SL_ERR_CANCELLED, "the worker gave the request up", SL_TELL_PREFILL, ev->now_ns,
                      out);
        return;
    }
    if (q->n_repeat > q->n_tokens) { /* it ends earlier than the first time */
        wrong_tokens(env, q, out);
        return;
    }
    if (m->cached_tokens && !q->cached_known && m->cached_tokens <= q->n_prompt)
        q->cached_tokens = m->cached_tokens;
    if (m->matched_stop >= 0)
        q->matched_token = m->matched_stop;
    sl_step_leave(q, SL_OK, SL_TELL_PREFILL, out);
    sl_step_end(env, q, (sl_finish)m->finish, SL_OK, NULL, out);
}

void sl_step_retracted(const sl_request_env *env, sl_request *q, const sl_request_event *ev, sl_step *out)
{
    const sl_msg_retracted *m = ev->retracted;
    sl_log(SL_LOG_INFO, "router", "request_retracted", "rid=%016lx attempt=%u produced=%u safe=%u damaged=%d",
           q->rid, q->attempt.n, sl_request_produced(q), m->safe, m->damaged);
    if (m->damaged)
        sl_repeat_from(q, m->safe);
    q->avoid_decode = q->attempt.decode;
    sl_step_leave(q, SL_OK, SL_TELL_PREFILL, out);
    if (sl_request_complete(q))
        sl_step_finish_complete(env, q, out);
    else
        sl_step_requeue(q, ev->now_ns, out);
}

void sl_step_failed(const sl_request_env *env, sl_request *q, const sl_request_event *ev, sl_step *out)
{
    unsigned tell = ev->failed.by_decode ? SL_TELL_PREFILL : SL_TELL_DECODE;
    if (ev->failed.retryable) {
        sl_step_retry(env, q, SL_ERR_PEER, ev->failed.reason, tell, ev->now_ns, out);
        return;
    }
    sl_status st = ev->failed.status < 0 ? ev->failed.status : SL_ERR_INTERNAL;
    if (st == SL_ERR_EXHAUSTED) /* final: it never fits, and a client must not be told to try again */
        st = SL_ERR_TOO_LARGE;
    sl_step_leave(q, SL_ERR_CANCELLED, tell, out);
    sl_step_end(env, q, SL_FINISH_ERROR, st, ev->failed.reason, out);
}
