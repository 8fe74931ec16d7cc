/*
 * The step function of a request: how an attempt begins, how it is left, and how a request ends. request_worker.c has
 * the steps for messages of workers. The table is in request.h.
 */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "kvstore/page_key.h"
#include "router/core/request_impl.h"

enum { DEATHS_ALONE = 2 }; /* workers that died with a request before it is suspected */

const char *sl_request_state_name(sl_request_state s)
{
    static const char *const names[] = {"queued",   "reserving", "prefilling",
                                        "decoding", "finished",  "failed"};
    return (size_t)s < SL_COUNT(names) ? names[s] : "?";
}

uint32_t sl_request_produced(const sl_request *q)
{
    return (uint32_t)(q->n_tokens - q->n_prompt);
}

uint32_t sl_request_sent(const sl_request *q)
{
    return (uint32_t)((q->n_repeat > q->n_tokens ? q->n_repeat : q->n_tokens) - q->n_prompt);
}

bool sl_request_over(const sl_request *q)
{
    return q->state == SL_REQUEST_FINISHED || q->state == SL_REQUEST_FAILED;
}

uint32_t sl_request_remaining_ms(const sl_request *q, uint64_t now)
{
    uint64_t ns = q->times.deadline_ns > now ? q->times.deadline_ns - now : 0;
    uint64_t ms = ns / SL_MS + 1;
    return ms > UINT32_MAX ? UINT32_MAX : (uint32_t)ms;
}

sl_status sl_request_update_keys(sl_request *q, sl_key fingerprint)
{
    /* A prompt whose log-probabilities are wanted shares no pages. */
    size_t n = q->sampling.prompt_logprobs ? 0 : q->n_tokens / SL_KEY_PAGE_TOKENS;
    if (!(q->keys.seed.lo | q->keys.seed.hi) || !sl_key_eq(q->keys.fingerprint, fingerprint)) {
        q->keys.seed = sl_share_seed(fingerprint, &q->keys.domain);
        q->keys.fingerprint = fingerprint;
        q->keys.n = 0;
        if (!(q->keys.seed.lo | q->keys.seed.hi))
            return SL_ERR_NO_MEMORY;
    }
    if (n > q->keys.cap) {
        size_t cap = n + 16;
        sl_key *k = realloc(q->keys.v, cap * sizeof *k);
        if (!k)
            return SL_ERR_NO_MEMORY;
        q->keys.v = k;
        q->keys.cap = cap;
    }
    for (; q->keys.n < n; q->keys.n++)
        q->keys.v[q->keys.n] = sl_page_key(q->keys.n ? q->keys.v[q->keys.n - 1] : q->keys.seed,
                                           q->tokens + q->keys.n * SL_KEY_PAGE_TOKENS);
    return SL_OK;
}

/* ---- parts of steps ---- */

sl_effect *sl_step_add(sl_step *out, const sl_request *q, sl_effect_kind kind)
{
    SL_CHECK(out->n < SL_STEP_EFFECTS, "a step has more than %d effects", SL_STEP_EFFECTS);
    sl_effect *e = &out->list[out->n++];
    *e = (sl_effect){
        .kind = kind, .attempt = q->attempt.n, .prefill = q->attempt.prefill, .decode = q->attempt.decode};
    e->request = (sl_request *)q;
    return e;
}

bool sl_request_complete(const sl_request *q)
{
    uint32_t n = sl_request_produced(q);
    return n && q->n_repeat <= q->n_tokens &&
           (n >= (uint32_t)q->sampling.max_tokens || q->matched_token >= 0);
}

void sl_step_leave(sl_request *q, sl_status why, unsigned tell, sl_step *out)
{
    if (!q->attempt.decode)
        return;
    sl_effect *e = sl_step_add(out, q, SL_EFFECT_LEAVE);
    e->leave.tell = tell;
    e->leave.why = why;
    e->leave.writer = q->attempt.writer;
    e->leave.placed_tokens = q->attempt.placed_tokens;
    q->attempt.prefill = q->attempt.decode = 0;
    q->attempt.placed_tokens = 0;
    q->attempt.writer = SL_WRITER_NONE;
}

void sl_step_end(const sl_request_env *env, sl_request *q, sl_finish how, sl_status st, const char *reason,
                 sl_step *out)
{
    sl_step_add(out, q, SL_EFFECT_FOLLOW);
    sl_effect *e = sl_step_add(out, q, SL_EFFECT_END);
    q->state = st ? SL_REQUEST_FAILED : SL_REQUEST_FINISHED;
    e->end.finish = how;
    e->end.status = st;
    e->end.reason = reason;
    e->end.text_at = env->text->len;
    if (!st)
        sl_output_flush(env, q);
    e->end.text_len = env->text->len - e->end.text_at;
}

void sl_step_finish_complete(const sl_request_env *env, sl_request *q, sl_step *out)
{
    sl_step_end(env, q, q->matched_token >= 0 ? SL_FINISH_STOP : SL_FINISH_LENGTH, SL_OK, NULL, out);
}

void sl_step_requeue(sl_request *q, uint64_t now, sl_step *out)
{
    sl_step_add(out, q, SL_EFFECT_REQUEUE);
    q->state = SL_REQUEST_QUEUED;
    q->times.stage_ns = now;
}

/* Records the worker that the next attempt should avoid: the one that failed, and therefore is not told, or else the one
 * that had to act next. A prompt that is shipped waits for the decode worker. */
static void avoid(sl_request *q, unsigned tell)
{
    bool prefill_acts = q->state == SL_REQUEST_PREFILLING && q->attempt.writer != SL_WRITER_DONE;
    bool by_prefill = tell == (SL_TELL_PREFILL | SL_TELL_DECODE) ? prefill_acts : tell == SL_TELL_DECODE;
    *(by_prefill ? &q->avoid_prefill : &q->avoid_decode) =
        by_prefill ? q->attempt.prefill : q->attempt.decode;
}

static void count_retry(const sl_request_env *env, const sl_request *q)
{
    sl_counter_add(q->state == SL_REQUEST_DECODING     ? env->stats->requests.retry_decode
                   : q->state == SL_REQUEST_PREFILLING ? env->stats->requests.retry_prefill
                                                       : env->stats->requests.retry_reserve,
                   1);
    if (sl_request_produced(q))
        sl_counter_add(env->stats->requests.resumes, 1);
}

/* Doubles with every retry up to the limit; the loop avoids a shift by too many bits. */
static uint64_t backoff_ms(uint32_t retries)
{
    uint64_t ms = BACKOFF_MIN_MS;
    for (uint32_t i = 0; i < retries && ms < BACKOFF_MAX_MS; i++)
        ms *= 2;
    return ms < BACKOFF_MAX_MS ? ms : BACKOFF_MAX_MS;
}

void sl_step_retry(const sl_request_env *env, sl_request *q, sl_status st, const char *reason, unsigned tell,
                   uint64_t now, sl_step *out)
{
    if (sl_request_complete(q)) {
        sl_step_leave(q, st, tell, out);
        sl_step_finish_complete(env, q, out);
        return;
    }
    if (q->retries >= env->retries) {
        sl_step_leave(q, st, tell, out);
        sl_step_end(env, q, SL_FINISH_ERROR, SL_ERR_PEER, reason, out);
        return;
    }
    q->retries++;
    q->recoveries++;
    avoid(q, tell);
    count_retry(env, q);
    sl_log(SL_LOG_WARN, "router", "request_retry",
           "rid=%016lx attempt=%u state=%s produced=%u retry=%u reason=\"%s\"", q->rid, q->attempt.n,
           sl_request_state_name(q->state), sl_request_produced(q), q->retries, reason ? reason : "");
    q->times.not_before_ns = q->retries > 1 ? now + backoff_ms(q->retries) * SL_MS : 0;
    sl_step_leave(q, st, tell, out);
    sl_step_requeue(q, now, out);
}

/* ---- events that are not messages ---- */

static void on_placed(const sl_request_env *env, sl_request *q, const sl_request_event *ev, sl_step *out)
{
    if (!q->attempt.n) {
        sl_histogram_observe(env->stats->requests.queue, (double)(ev->now_ns - q->times.start_ns) / 1e9);
        sl_histogram_observe(env->stats->requests.overhead, (double)(ev->now_ns - q->times.start_ns) / 1e9);
    }
    q->attempt.n++;
    q->attempt.prefill = ev->placed.prefill;
    q->attempt.decode = ev->placed.decode;
    q->attempt.writer = SL_WRITER_NONE;
    q->attempt.placed_tokens = ev->placed.tokens;
    q->state = SL_REQUEST_RESERVING;
    q->times.stage_ns = ev->now_ns;
    sl_step_add(out, q, SL_EFFECT_RESERVE);
}

/* A worker died while it computed q. True: q has ended, because it ran alone on that worker. */
static bool count_death(const sl_request_env *env, sl_request *q, bool decode, unsigned tell, sl_step *out)
{
    if (q->state == SL_REQUEST_RESERVING)
        return false; /* no part of q was computed */
    if (q->deaths.decode != decode) {
        q->deaths.n = 0;
        q->deaths.alone = false;
    }
    q->deaths.decode = decode;
    q->deaths.n++;
    q->deaths.at = sl_request_produced(q);
    if (!q->deaths.alone || sl_request_complete(q)) {
        q->deaths.alone = q->deaths.n >= DEATHS_ALONE;
        return false;
    }
    sl_log(SL_LOG_ERROR, "router", "request_kills_workers",
           "rid=%016lx id=%s deaths=%u tokens=%zu produced=%u", q->rid, q->group ? sl_group_id(q->group) : "",
           q->deaths.n, q->n_tokens, sl_request_produced(q));
    sl_step_leave(q, SL_ERR_PEER, tell, out);
    sl_step_end(env, q, SL_FINISH_ERROR, SL_ERR_INTERNAL,
                "refused: every worker that computed this request died, the last one while it ran alone",
                out);
    return true;
}

static void on_lost(const sl_request_env *env, sl_request *q, const sl_request_event *ev, sl_step *out)
{
    bool concerned = ev->lost.decode || q->attempt.writer != SL_WRITER_DONE;
    unsigned tell = ev->lost.decode ? SL_TELL_PREFILL : SL_TELL_DECODE;
    if (concerned && ev->lost.died && count_death(env, q, ev->lost.decode, tell, out))
        return;
    if (ev->lost.decode)
        sl_step_retry(env, q, SL_ERR_PEER, "decode worker lost", SL_TELL_PREFILL, ev->now_ns, out);
    else if (q->attempt.writer != SL_WRITER_DONE)
        sl_step_retry(env, q, SL_ERR_PEER, "prefill worker lost", SL_TELL_DECODE, ev->now_ns, out);
}

static void on_stalled(const sl_request_env *env, sl_request *q, const sl_request_event *ev, sl_step *out)
{
    sl_step_retry(env, q, SL_ERR_TIMEOUT, "no progress for router.stage_timeout_ms",
                  SL_TELL_PREFILL | SL_TELL_DECODE, ev->now_ns, out);
}

static void on_end(const sl_request_env *env, sl_request *q, const sl_request_event *ev, sl_step *out)
{
    sl_status st = ev->end.status;
    sl_step_leave(q, st, SL_TELL_PREFILL | SL_TELL_DECODE, out);
    sl_step_end(env, q, st == SL_ERR_CANCELLED ? SL_FINISH_ABORT : SL_FINISH_ERROR, st, ev->end.reason, out);
}

/* ---- the table ---- */

#define IN(state) (1u << SL_REQUEST_##state)
#define PLACED_STATES (IN(RESERVING) | IN(PREFILLING) | IN(DECODING))
#define LIVE_STATES (IN(QUEUED) | PLACED_STATES)

static const struct {
    unsigned states;
    void (*step)(const sl_request_env *env, sl_request *q, const sl_request_event *ev, sl_step *out);
} table[SL_EVENT_COUNT] = {
    [SL_EVENT_PLACED] = {IN(QUEUED), on_placed},
    [SL_EVENT_RESERVED] = {IN(RESERVING), sl_step_reserved},
    [SL_EVENT_NO_ROOM] = {IN(RESERVING), sl_step_no_room},
    [SL_EVENT_PREFILLED] = {IN(PREFILLING) | IN(DECODING), sl_step_prefilled},
    [SL_EVENT_SCORES] = {IN(PREFILLING), sl_step_scores},
    [SL_EVENT_TOKENS] = {IN(PREFILLING) | IN(DECODING), sl_step_tokens},
    [SL_EVENT_DONE] = {IN(PREFILLING) | IN(DECODING), sl_step_done},
    [SL_EVENT_RETRACTED] = {IN(PREFILLING) | IN(DECODING), sl_step_retracted},
    [SL_EVENT_FAILED] = {PLACED_STATES, sl_step_failed},
    [SL_EVENT_LOST] = {PLACED_STATES, on_lost},
    [SL_EVENT_STALLED] = {PLACED_STATES, on_stalled},
    [SL_EVENT_END] = {LIVE_STATES, on_end},
};

bool sl_request_step(const sl_request_env *env, sl_request *q, const sl_request_event *ev, sl_step *out)
{
    out->n = 0;
    if (!(table[ev->kind].states & 1u << q->state))
        return false;
    table[ev->kind].step(env, q, ev, out);
    return true;
}
