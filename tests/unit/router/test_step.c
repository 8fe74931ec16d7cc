/*
 * The step function of a request alone, without router, members or sinks: the whole table of states and events, what
 * effects carry, and how a stream ends. Effects are written as letters:
 *
 *   R reserve   P prefill   S settle   B block   L leave   Q requeue   F follow   E emit   X end
 */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "bench/mock/mock.h"
#include "router/core/request.h"
#include "tests/unit/run_suite.h"

enum { PROMPT = 70, DECODE_ID = 2, PREFILL_ID = 1, MAX_TOKENS = 5 };

static sl_tokenizer *tok;
static sl_served_model model;
static sl_router_stats stats;
static sl_strbuf text;
static sl_request_env env;
static sl_request q;
static sl_step step;
static sl_msg_token scored[PROMPT];

static void setup(void)
{
    sl_log_init(SL_LOG_ERROR, false, "test");
    ck_assert_int_eq(sl_mock_tokenizer(&tok, NULL), SL_OK);
    ck_assert_int_eq(sl_router_stats_init(&stats, "m"), SL_OK);
    model = (sl_served_model){.tok = tok};
    env = (sl_request_env){.model = &model, .vocab = 512, .retries = 3, .stats = &stats, .text = &text};
    env.piece = malloc(sl_detok_bound(tok) + 1);
}

static void forget(void)
{
    sl_output_free(&q);
    free(q.tokens);
    free(q.logprobs);
    memset(&q, 0, sizeof q);
    memset(scored, 0, sizeof scored);
    text.len = 0;
}

static void teardown(void)
{
    forget();
    free(env.piece);
    sl_sb_free(&text);
    sl_router_stats_free(&stats);
    sl_tokenizer_destroy(tok);
}

/* q in this state, with the history that leads there. */
static void make(sl_request_state state)
{
    forget();
    q.matched_token = -1;
    q.cap = PROMPT + 16;
    q.tokens = calloc(q.cap, sizeof *q.tokens);
    q.n_prompt = q.n_tokens = PROMPT;
    q.sampling.max_tokens = MAX_TOKENS;
    q.state = state;
    if (state == SL_REQUEST_QUEUED)
        return;
    q.attempt.n = 1;
    q.attempt.decode = DECODE_ID;
    q.attempt.prefill = PREFILL_ID;
    q.attempt.placed_tokens = PROMPT;
    if (state >= SL_REQUEST_PREFILLING)
        q.attempt.writer = SL_WRITER_ACTIVE;
    if (state == SL_REQUEST_DECODING)
        q.tokens[q.n_tokens++] = 'a';
}

static uint32_t pages[2] = {7, 8};
static sl_msg_reserved reserved = {.n_pages = 2, .pages = pages};
static sl_msg_prefilled prefilled;
static sl_msg_token one = {.id = 'b'};
static sl_msg_tokens tokens = {.tokens = &one, .n_tokens = 1};
static sl_msg_tokens scores = {.tokens = scored, .n_tokens = 1};
static sl_msg_retracted retracted = {.safe = UINT32_MAX};
static sl_msg_done done = {.finish = SL_FINISH_LENGTH, .matched_stop = -1};

/* A true event of this kind for q as it is. */
static sl_request_event make_event(sl_request_event_kind kind)
{
    sl_request_event ev = {.kind = kind, .now_ns = 1000};
    tokens.first_index = done.produced = sl_request_produced(&q);
    switch (kind) {
    case SL_EVENT_PLACED:
        ev.placed.tokens = PROMPT;
        ev.placed.prefill = PREFILL_ID;
        ev.placed.decode = DECODE_ID;
        break;
    case SL_EVENT_RESERVED:
        ev.reserved = &reserved;
        break;
    case SL_EVENT_PREFILLED:
        ev.prefilled = &prefilled;
        break;
    case SL_EVENT_SCORES:
        q.sampling.prompt_logprobs = 1;
        scores = (sl_msg_tokens){.tokens = scored, .n_tokens = 1, .first_index = 1};
        ev.tokens = &scores;
        break;
    case SL_EVENT_TOKENS:
        ev.tokens = &tokens;
        break;
    case SL_EVENT_DONE:
        ev.done = &done;
        break;
    case SL_EVENT_RETRACTED:
        ev.retracted = &retracted;
        break;
    case SL_EVENT_FAILED:
        ev.failed.by_decode = ev.failed.retryable = true;
        ev.failed.reason = "broken";
        break;
    case SL_EVENT_LOST:
        ev.lost.decode = true;
        break;
    case SL_EVENT_END:
        ev.end.status = SL_ERR_CANCELLED;
        ev.end.reason = "cancelled";
        break;
    default:
        break;
    }
    return ev;
}

static bool apply(sl_request_event ev)
{
    return sl_request_step(&env, &q, &ev, &step);
}

static const char *effects(void)
{
    static char letters[SL_STEP_EFFECTS + 1];
    for (size_t i = 0; i < step.n; i++)
        letters[i] = "RPSBLQFEX"[step.list[i].kind];
    letters[step.n] = 0;
    return letters;
}

static const struct {
    sl_request_state from;
    sl_request_event_kind event;
    sl_request_state to;
    const char *effects;
} rows[] = {
    {SL_REQUEST_QUEUED, SL_EVENT_PLACED, SL_REQUEST_RESERVING, "R"},
    {SL_REQUEST_QUEUED, SL_EVENT_END, SL_REQUEST_FAILED, "FX"},
    {SL_REQUEST_RESERVING, SL_EVENT_RESERVED, SL_REQUEST_PREFILLING, "P"},
    {SL_REQUEST_RESERVING, SL_EVENT_NO_ROOM, SL_REQUEST_QUEUED, "BLQ"},
    {SL_REQUEST_RESERVING, SL_EVENT_FAILED, SL_REQUEST_QUEUED, "LQ"},
    {SL_REQUEST_RESERVING, SL_EVENT_LOST, SL_REQUEST_QUEUED, "LQ"},
    {SL_REQUEST_RESERVING, SL_EVENT_STALLED, SL_REQUEST_QUEUED, "LQ"},
    {SL_REQUEST_RESERVING, SL_EVENT_END, SL_REQUEST_FAILED, "LFX"},
    {SL_REQUEST_PREFILLING, SL_EVENT_PREFILLED, SL_REQUEST_PREFILLING, "SF"},
    {SL_REQUEST_PREFILLING, SL_EVENT_SCORES, SL_REQUEST_PREFILLING, "E"},
    {SL_REQUEST_PREFILLING, SL_EVENT_TOKENS, SL_REQUEST_DECODING, "FE"},
    {SL_REQUEST_PREFILLING, SL_EVENT_DONE, SL_REQUEST_FINISHED, "LFX"},
    {SL_REQUEST_PREFILLING, SL_EVENT_RETRACTED, SL_REQUEST_QUEUED, "LQ"},
    {SL_REQUEST_PREFILLING, SL_EVENT_FAILED, SL_REQUEST_QUEUED, "LQ"},
    {SL_REQUEST_PREFILLING, SL_EVENT_LOST, SL_REQUEST_QUEUED, "LQ"},
    {SL_REQUEST_PREFILLING, SL_EVENT_STALLED, SL_REQUEST_QUEUED, "LQ"},
    {SL_REQUEST_PREFILLING, SL_EVENT_END, SL_REQUEST_FAILED, "LFX"},
    {SL_REQUEST_DECODING, SL_EVENT_PREFILLED, SL_REQUEST_DECODING, "SF"},
    {SL_REQUEST_DECODING, SL_EVENT_TOKENS, SL_REQUEST_DECODING, "E"},
    {SL_REQUEST_DECODING, SL_EVENT_DONE, SL_REQUEST_FINISHED, "LFX"},
    {SL_REQUEST_DECODING, SL_EVENT_RETRACTED, SL_REQUEST_QUEUED, "LQ"},
    {SL_REQUEST_DECODING, SL_EVENT_FAILED, SL_REQUEST_QUEUED, "LQ"},
    {SL_REQUEST_DECODING, SL_EVENT_LOST, SL_REQUEST_QUEUED, "LQ"},
    {SL_REQUEST_DECODING, SL_EVENT_STALLED, SL_REQUEST_QUEUED, "LQ"},
    {SL_REQUEST_DECODING, SL_EVENT_END, SL_REQUEST_FAILED, "LFX"},
};

static size_t find_row(sl_request_state s, sl_request_event_kind k)
{
    size_t i = 0;
    while (i < SL_COUNT(rows) && (rows[i].from != s || rows[i].event != k))
        i++;
    return i;
}

START_TEST(every_state_and_event)
{
    for (int s = SL_REQUEST_QUEUED; s <= SL_REQUEST_FAILED; s++) {
        for (int k = 0; k < SL_EVENT_COUNT; k++) {
            size_t i = find_row(s, k);
            make(s);
            bool took = apply(make_event(k));
            const char *name = sl_request_state_name(s);
            ck_assert_msg(took == (i < SL_COUNT(rows)), "state %s, event %d", name, k);
            ck_assert_msg(q.state == (took ? rows[i].to : (sl_request_state)s), "state %s, event %d", name,
                          k);
            ck_assert_msg(!strcmp(effects(), took ? rows[i].effects : ""), "state %s, event %d: effects %s",
                          name, k, effects());
        }
    }
}
END_TEST

/* One SCORES of the tokens [first, first + n) of the prompt. */
static bool send_scores(size_t first, size_t n)
{
    sl_request_event ev = make_event(SL_EVENT_SCORES);
    for (size_t i = 0; i < n; i++)
        scored[i] = (sl_msg_token){.id = first + i < PROMPT ? q.tokens[first + i] : 1, .logprob = -1};
    scores.first_index = (uint32_t)first;
    scores.n_tokens = n;
    return apply(ev);
}

/* Everything but the last token was said: a worker that goes on to the output has failed. */
static void go_on_too_early(uint32_t seed)
{
    ck_assert(apply(make_event(seed % 2 ? SL_EVENT_TOKENS : SL_EVENT_DONE)));
    ck_assert_str_eq(effects(), "LQ");
    q.state = SL_REQUEST_PREFILLING;
    q.retries = 0;
    q.attempt.decode = DECODE_ID, q.attempt.prefill = PREFILL_ID;
}

/* Parts of any size, in order; parts are repeated, as a second attempt does; no token is said twice, and none is left out. */
START_TEST(scores_are_said_once)
{
    for (uint32_t seed = 1; seed < 200; seed++) {
        uint32_t r = seed;
        make(SL_REQUEST_PREFILLING);
        for (int i = 0; i < PROMPT; i++)
            q.tokens[i] = i % 7;
        for (size_t said = 0; said < PROMPT - 1;) {
            r = r * 1664525u + 1013904223u;
            size_t n = 1 + (r >> 8) % 20, back = (r >> 16) % (said + 1), first = 1 + said - back;
            n = first + n > PROMPT ? PROMPT - first : n;
            ck_assert(send_scores(first, n));
            ck_assert_int_eq(q.state, SL_REQUEST_PREFILLING);
            size_t fresh = n > back ? n - back : 0;
            ck_assert_uint_eq(step.n, fresh > 0);
            if (fresh) {
                ck_assert(step.list[0].kind == SL_EFFECT_EMIT && step.list[0].emit.scores);
                ck_assert_uint_eq(step.list[0].emit.n_tokens, fresh);
                ck_assert_ptr_eq(step.list[0].emit.tokens, scored + back);
            }
            said += fresh;
            ck_assert_uint_eq(q.n_scored, said);
            if (said < PROMPT - 1 && seed % 3 == 0)
                go_on_too_early(r);
        }
        ck_assert(apply(make_event(SL_EVENT_TOKENS)));
        ck_assert_int_eq(q.state, SL_REQUEST_DECODING);
    }
}
END_TEST

START_TEST(wrong_scores_are_a_failure)
{
    static const struct {
        size_t first, n;
    } bad[] = {{0, 1}, {2, 1}, {PROMPT, 1}, {1, PROMPT}, {UINT32_MAX, 1}};
    for (size_t i = 0; i < SL_COUNT(bad); i++) {
        make(SL_REQUEST_PREFILLING);
        ck_assert(send_scores(bad[i].first, bad[i].n));
        ck_assert_msg(!strcmp(effects(), "LQ"), "case %zu: %s", i, effects());
    }
    make(SL_REQUEST_PREFILLING); /* of another token */
    sl_request_event ev = make_event(SL_EVENT_SCORES);
    scored[0].id = q.tokens[1] + 1;
    ck_assert(apply(ev));
    ck_assert_str_eq(effects(), "LQ");
    make(SL_REQUEST_PREFILLING); /* that was not asked for */
    ev = make_event(SL_EVENT_SCORES);
    scored[0].id = q.tokens[1];
    q.sampling.prompt_logprobs = 0;
    ck_assert(apply(ev));
    ck_assert_str_eq(effects(), "LQ");
}
END_TEST

START_TEST(effects_carry_the_attempt_that_is_left)
{
    make(SL_REQUEST_DECODING);
    ck_assert(apply(make_event(SL_EVENT_END)));
    const sl_effect *e = &step.list[0];
    ck_assert_int_eq(e->kind, SL_EFFECT_LEAVE);
    ck_assert(e->attempt == 1 && e->prefill == PREFILL_ID && e->decode == DECODE_ID);
    ck_assert_int_eq(e->leave.writer, SL_WRITER_ACTIVE);
    ck_assert_uint_eq(e->leave.tell, SL_TELL_PREFILL | SL_TELL_DECODE);
    ck_assert_uint_eq(e->leave.placed_tokens, PROMPT);
    ck_assert(!q.attempt.prefill && !q.attempt.decode && !q.attempt.placed_tokens &&
              q.attempt.writer == SL_WRITER_NONE);
}
END_TEST

START_TEST(a_worker_that_failed_is_not_told)
{
    for (int by_decode = 0; by_decode < 2; by_decode++) {
        make(SL_REQUEST_PREFILLING);
        sl_request_event ev = make_event(SL_EVENT_FAILED);
        ev.failed.by_decode = by_decode;
        ck_assert(apply(ev));
        ck_assert_uint_eq(step.list[0].leave.tell, by_decode ? SL_TELL_PREFILL : SL_TELL_DECODE);
        ck_assert_uint_eq(by_decode ? q.avoid_decode : q.avoid_prefill, by_decode ? DECODE_ID : PREFILL_ID);
    }
}
END_TEST

/* The worker that had to act next is the one that is avoided. */
START_TEST(a_stall_blames_the_one_that_had_to_act)
{
    static const struct {
        sl_request_state state;
        sl_writer writer;
        bool decode;
    } cases[] = {{SL_REQUEST_RESERVING, SL_WRITER_NONE, true},
                 {SL_REQUEST_PREFILLING, SL_WRITER_ACTIVE, false},
                 {SL_REQUEST_PREFILLING, SL_WRITER_DONE, true},
                 {SL_REQUEST_DECODING, SL_WRITER_ACTIVE, true},
                 {SL_REQUEST_DECODING, SL_WRITER_DONE, true}};
    for (size_t i = 0; i < SL_COUNT(cases); i++) {
        make(cases[i].state);
        q.attempt.writer = cases[i].writer;
        ck_assert(apply(make_event(SL_EVENT_STALLED)));
        ck_assert_uint_eq(q.avoid_decode, cases[i].decode ? DECODE_ID : 0);
        ck_assert_uint_eq(q.avoid_prefill, cases[i].decode ? 0 : PREFILL_ID);
    }
}
END_TEST

/* A stream that had all its tokens is not finished before those that may be wrong are confirmed. */
START_TEST(a_complete_stream_is_confirmed)
{
    for (uint32_t damaged = 0; damaged < 2; damaged++) {
        make(SL_REQUEST_DECODING);
        while (sl_request_produced(&q) < MAX_TOKENS)
            ck_assert(apply(make_event(SL_EVENT_TOKENS)));
        retracted = (sl_msg_retracted){.safe = MAX_TOKENS - 1, .damaged = (uint8_t)damaged};
        ck_assert(apply(make_event(SL_EVENT_RETRACTED)));
        ck_assert_str_eq(effects(), damaged ? "LQ" : "LFX");
        ck_assert_uint_eq(sl_request_sent(&q), MAX_TOKENS);
        ck_assert_uint_eq(sl_request_produced(&q), MAX_TOKENS - damaged);
    }
    q.state = SL_REQUEST_DECODING;
    ck_assert(apply(make_event(SL_EVENT_TOKENS))); /* the same as before: nothing is sent */
    ck_assert_str_eq(effects(), "");
    ck_assert(apply(make_event(SL_EVENT_DONE)));
    ck_assert_int_eq(q.state, SL_REQUEST_FINISHED);
    retracted = (sl_msg_retracted){.safe = UINT32_MAX};
}
END_TEST

START_TEST(final_failure_ends_it)
{
    make(SL_REQUEST_DECODING);
    sl_request_event ev = make_event(SL_EVENT_FAILED);
    ev.failed.retryable = false;
    ev.failed.status = SL_ERR_CORRUPT;
    ck_assert(apply(ev));
    ck_assert_str_eq(effects(), "LFX");
    ck_assert_int_eq(step.list[2].end.status, SL_ERR_CORRUPT);
    ck_assert_str_eq(step.list[2].end.reason, "broken");
    make(SL_REQUEST_DECODING);
    ev = make_event(SL_EVENT_FAILED);
    ev.failed.retryable = false;
    ev.failed.status = SL_ERR_EXHAUSTED;
    ck_assert(apply(ev));
    ck_assert_int_eq(step.list[2].end.status, SL_ERR_TOO_LARGE); /* 400, not 429 */
}
END_TEST

START_TEST(retries_end)
{
    for (uint32_t i = 0; i <= env.retries; i++) {
        uint32_t retries = q.retries;
        make(SL_REQUEST_RESERVING);
        q.retries = retries;
        ck_assert(apply(make_event(SL_EVENT_STALLED)));
        ck_assert_str_eq(effects(), i < env.retries ? "LQ" : "LFX");
    }
    ck_assert_int_eq(step.list[2].end.status, SL_ERR_PEER);
}
END_TEST

START_TEST(backoff_has_a_cap)
{
    env.retries = 100;
    for (uint32_t i = 0; i < env.retries; i++) {
        make(SL_REQUEST_RESERVING);
        q.retries = i;
        sl_request_event ev = make_event(SL_EVENT_STALLED);
        ck_assert(apply(ev));
        ck_assert_uint_le(q.times.not_before_ns, ev.now_ns + 500 * SL_MS);
        ck_assert(i == 0 || q.times.not_before_ns >= ev.now_ns + 40 * SL_MS);
    }
}
END_TEST

/* A request with this past loses its decode worker. */
static void lose(uint32_t deaths, uint32_t deaths_at, bool alone, bool died)
{
    make(SL_REQUEST_DECODING);
    q.deaths.n = deaths;
    q.deaths.at = deaths_at;
    q.deaths.decode = true;
    q.deaths.alone = alone;
    sl_request_event ev = make_event(SL_EVENT_LOST);
    ev.lost.died = died;
    ck_assert(apply(ev));
}

START_TEST(second_death_makes_a_suspect_and_the_next_one_ends_it)
{
    lose(0, 0, false, true);
    ck_assert_str_eq(effects(), "LQ");
    ck_assert(!q.deaths.alone && q.deaths.n == 1 && q.deaths.at == 1);
    lose(1, 0, false, false); /* it left by its own decision */
    ck_assert(!q.deaths.alone && q.deaths.n == 1);
    lose(1, 0, false, true);
    ck_assert_str_eq(effects(), "LQ");
    ck_assert(q.deaths.alone);
    make(SL_REQUEST_PREFILLING);
    q.deaths.n = 2;
    q.deaths.decode = q.deaths.alone = true;
    /* a worker of the other role: not what killed the others */
    sl_request_event ev = make_event(SL_EVENT_LOST);
    ev.lost.decode = false;
    ev.lost.died = true;
    ck_assert(apply(ev));
    ck_assert_str_eq(effects(), "LQ");
    ck_assert(!q.deaths.alone && q.deaths.n == 1);
    lose(2, 0, true, true);
    ck_assert_str_eq(effects(), "LFX");
    ck_assert_int_eq(step.list[2].end.status, SL_ERR_INTERNAL);
}
END_TEST

START_TEST(tokens_past_the_death_clear_a_suspect)
{
    make(SL_REQUEST_DECODING);
    q.sampling.max_tokens = 100;
    q.deaths.n = 2;
    q.deaths.at = 1;
    q.deaths.alone = true;
    for (int i = 0; i < 8; i++) {
        ck_assert(q.deaths.alone);
        ck_assert(apply(make_event(SL_EVENT_TOKENS)));
    }
    ck_assert(!q.deaths.alone && !q.deaths.n);
}
END_TEST

START_TEST(prefill_worker_lost_after_its_work_is_no_loss)
{
    make(SL_REQUEST_DECODING);
    q.attempt.writer = SL_WRITER_DONE;
    sl_request_event ev = make_event(SL_EVENT_LOST);
    ev.lost.decode = false;
    ck_assert(apply(ev));
    ck_assert_uint_eq(step.n, 0);
    ck_assert_int_eq(q.state, SL_REQUEST_DECODING);
}
END_TEST

START_TEST(complete_stream_needs_no_retry)
{
    make(SL_REQUEST_DECODING);
    while (sl_request_produced(&q) < MAX_TOKENS)
        q.tokens[q.n_tokens++] = 'a';
    ck_assert(apply(make_event(SL_EVENT_LOST)));
    ck_assert_str_eq(effects(), "LFX");
    ck_assert_int_eq(q.state, SL_REQUEST_FINISHED);
    ck_assert_int_eq(step.list[2].end.finish, SL_FINISH_LENGTH);
}
END_TEST

START_TEST(wrong_messages_are_failures)
{
    make(SL_REQUEST_RESERVING);
    reserved.n_pages = 1; /* 70 tokens need two */
    ck_assert(apply(make_event(SL_EVENT_RESERVED)));
    reserved.n_pages = 2;
    ck_assert_str_eq(effects(), "LQ");
    make(SL_REQUEST_DECODING);
    sl_request_event ev = make_event(SL_EVENT_TOKENS);
    tokens.first_index++; /* a hole */
    ck_assert(apply(ev));
    ck_assert_str_eq(effects(), "LQ");
    make(SL_REQUEST_DECODING);
    ev = make_event(SL_EVENT_TOKENS);
    tokens.first_index--; /* 'b' where 'a' was sent */
    ck_assert(apply(ev));
    ck_assert_str_eq(effects(), "LQ");
    ck_assert_uint_eq(sl_counter_value(stats.workers.malformed), 2);
}
END_TEST

/* A prefill of which the router expected `expected` tokens to be cached. */
static void prefill_with(uint32_t cached, uint32_t expected)
{
    sl_msg_prefilled m = {.cached_tokens = cached};
    sl_request_event ev = {.kind = SL_EVENT_PREFILLED, .now_ns = 1000, .prefilled = &m};
    q.attempt.placed_tokens = q.n_tokens - expected;
    sl_request_step(&env, &q, &ev, &step);
}

/* The first attempt that is prefilled says what was cached, also if others were refused pages before it, and whatever the router had
 * expected. An attempt that comes after it finds what it computed: neither its prefill nor its end changes the number. */
START_TEST(cached_tokens_are_those_of_the_first_prefill)
{
    for (uint32_t expected = 0; expected <= 64; expected += 32) {
        make(SL_REQUEST_PREFILLING);
        q.attempt.n = 3; /* two were refused pages */
        prefill_with(64, expected);
        ck_assert_uint_eq(q.cached_tokens, 64);
        for (uint32_t first = 0; first <= 32; first += 32) {
            make(SL_REQUEST_PREFILLING);
            prefill_with(first, expected);
            q.attempt.n = 2;
            prefill_with(64, expected);
            ck_assert_uint_eq(q.cached_tokens, first);
            done.cached_tokens = 64;
            ck_assert(apply(make_event(SL_EVENT_DONE)));
            ck_assert_int_eq(q.state, SL_REQUEST_FINISHED);
            ck_assert_uint_eq(q.cached_tokens, first);
            done.cached_tokens = 0;
        }
    }
}
END_TEST

START_TEST(stop_string_ends_the_stream_in_one_step)
{
    make(SL_REQUEST_DECODING);
    sl_request_spec s;
    sl_request_spec_init(&s);
    s.stops[s.n_stops++] = strdup("yz");
    ck_assert_int_eq(sl_output_init(&q, &s, NULL), SL_OK);
    sl_request_spec_free(&s);
    sl_msg_token word[] = {{.id = 'x'}, {.id = 'y'}, {.id = 'z'}, {.id = '!'}};
    sl_request_event ev = make_event(SL_EVENT_TOKENS);
    sl_msg_tokens m = {.first_index = 1, .tokens = word, .n_tokens = SL_COUNT(word)};
    ev.tokens = &m;
    ck_assert(apply(ev));
    ck_assert_str_eq(effects(), "ELFX");
    const sl_effect *e = &step.list[0];
    ck_assert_uint_eq(e->emit.n_tokens, 3); /* the one after the stop does not count */
    ck_assert_uint_eq(sl_request_produced(&q), 4);
    ck_assert_uint_eq(e->emit.text_len, 1);
    ck_assert_int_eq(text.data[e->emit.text_at], 'x');
    ck_assert_uint_eq(step.list[3].end.text_len, 0);
    ck_assert_str_eq(q.text.matched, "yz");
}
END_TEST

int main(void)
{
    Suite *s = suite_create("router/step");
    TCase *t = tcase_create("all");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, every_state_and_event);
    tcase_add_test(t, scores_are_said_once);
    tcase_add_test(t, wrong_scores_are_a_failure);
    tcase_add_test(t, effects_carry_the_attempt_that_is_left);
    tcase_add_test(t, a_worker_that_failed_is_not_told);
    tcase_add_test(t, a_stall_blames_the_one_that_had_to_act);
    tcase_add_test(t, a_complete_stream_is_confirmed);
    tcase_add_test(t, final_failure_ends_it);
    tcase_add_test(t, retries_end);
    tcase_add_test(t, backoff_has_a_cap);
    tcase_add_test(t, second_death_makes_a_suspect_and_the_next_one_ends_it);
    tcase_add_test(t, tokens_past_the_death_clear_a_suspect);
    tcase_add_test(t, prefill_worker_lost_after_its_work_is_no_loss);
    tcase_add_test(t, complete_stream_needs_no_retry);
    tcase_add_test(t, wrong_messages_are_failures);
    tcase_add_test(t, cached_tokens_are_those_of_the_first_prefill);
    tcase_add_test(t, stop_string_ends_the_stream_in_one_step);
    suite_add_tcase(s, t);
    return run_suite(s);
}
