/*
 * Tokens that are produced again after damage: equal ones let the stream go on, and a different one ends it with DATA_LOSS.
 * Each case says after how many tokens the damage began, which token was wrong, and when it was found.
 */
#include <string.h>

#include "tests/unit/router/harness.h"

enum { PROMPT = 100, OUTPUT = 40, NEVER = 1000 };

static harness h;

static void setup(void)
{
    h_init(&h);
    h.mo.step_us = 200;
    h_open_cluster(&h, 1, 2);
}

static void teardown(void)
{
    h_close(&h);
}

static void damage(uint32_t damage_at, uint32_t wrong_at, uint32_t found_at)
{
    for (int i = 1; i <= 2; i++) {
        sl_mock_knobs *k = sl_mock_knob(h.w[i]);
        k->damage_at = damage_at;
        k->wrong_at = wrong_at;
        k->retract_at = found_at;
    }
}

static void ask(client *c, int32_t n_logprobs)
{
    sl_request_spec s;
    h_spec(&s, PROMPT, OUTPUT);
    s.sampling.n_logprobs = n_logprobs;
    h_submit(&h, c, &s);
}

static void other_worker_is_sound(client *c)
{
    H_UNTIL(&h, h_request(c, 0)->avoid_decode, 2000);
    damage(0, 0, 0);
}

static uint64_t equal(void)
{
    return sl_counter_value(h.r->stats.requests.repeated_equal);
}

static uint64_t different(void)
{
    return sl_counter_value(h.r->stats.requests.repeated_different);
}

static void expect_data_loss(client *c)
{
    H_UNTIL(&h, h_done(c), 2000);
    ck_assert_int_eq(c->s[0].status, SL_ERR_DATA_LOSS);
    ck_assert_int_eq(c->s[0].finish, SL_FINISH_ERROR);
    ck_assert_int_eq(c->s[0].ends, 1);
    ck_assert_ptr_nonnull(strstr(c->s[0].error, "must not be used"));
    ck_assert_uint_eq(c->s[0].completion_tokens, c->s[0].n);
    ck_assert_uint_ge(different(), 1);
}

static const struct {
    uint32_t damage_at, found_at;
} harmless[] = {{1, 2}, {5, 20}, {28, 29}, {20, 20}, {3, 39}, {38, 39}};

START_TEST(equal_tokens_let_the_stream_go_on)
{
    client c = {0};
    damage(harmless[_i].damage_at, 0, harmless[_i].found_at);
    ask(&c, _i % 2 ? 2 : -1);
    other_worker_is_sound(&c);
    h_expect(&h, &c, PROMPT, OUTPUT, 2000); /* no token twice, none is missing */
    ck_assert_uint_eq(c.s[0].len, OUTPUT);
    ck_assert_uint_eq(equal(), harmless[_i].found_at - harmless[_i].damage_at);
    ck_assert_uint_eq(different(), 0);
    h_release(&h, &c, 1000);
}
END_TEST

static const struct {
    uint32_t damage_at, wrong_at, found_at;
} harmful[] = {{1, 2, 2}, {1, 2, 39}, {5, 12, 20}, {5, 20, 20}, {38, 39, 39}, {37, 39, 39}};

START_TEST(a_different_token_ends_it)
{
    client c = {0};
    damage(harmful[_i].damage_at, harmful[_i].wrong_at, harmful[_i].found_at);
    ask(&c, -1);
    other_worker_is_sound(&c);
    expect_data_loss(&c);
    ck_assert_uint_eq(equal(), harmful[_i].wrong_at - 1 - harmful[_i].damage_at);
    h_release(&h, &c, 1000);
}
END_TEST

/* The same token with another probability is as wrong, if the client asked for it. */
START_TEST(log_probabilities_are_compared)
{
    client c = {0};
    damage(5, 9, 20);
    for (int i = 1; i <= 2; i++)
        sl_mock_knob(h.w[i])->off_logprob = true;
    ask(&c, _i ? 0 : -1);
    other_worker_is_sound(&c);
    if (_i)
        expect_data_loss(&c);
    else
        h_expect(&h, &c, PROMPT, OUTPUT, 2000);
    h_release(&h, &c, 1000);
}
END_TEST

/* While tokens are repeated the worker is lost, and then another one finds damage: none is forgotten. */
START_TEST(what_must_be_repeated_survives_further_faults)
{
    h_add(&h, SL_ROLE_DECODE);
    client c = {0};
    damage(5, _i == 2 ? 19 : 0, 20);
    ask(&c, -1);
    other_worker_is_sound(&c);
    sl_request *q = h_request(&c, 0);
    ck_assert_uint_eq(sl_request_produced(q), 5);
    ck_assert_uint_eq(sl_request_sent(q), 20);
    H_UNTIL(&h, q->attempt.decode && sl_request_produced(q) >= 8, 2000);
    int at = 1;
    while (sl_mock_count(h.w[at])->worker_id != q->attempt.decode)
        at++;
    if (_i == 1) {
        sl_mock_knob(h.w[at])->damage_at = 4; /* before what was safe */
        sl_mock_knob(h.w[at])->retract_at = 1;
    } else {
        sl_mock_kill(h.w[at]);
    }
    H_UNTIL(&h, !q->attempt.decode || q->attempt.n > 2, 2000);
    ck_assert_uint_eq(sl_request_sent(q), 20);
    if (_i == 2)
        expect_data_loss(&c);
    else
        h_expect(&h, &c, PROMPT, OUTPUT, 2000);
    sl_group_release(c.group);
}
END_TEST

/* A worker that was given back to make room says that everything is safe; one that claims more than was sent is not
 * believed. */
START_TEST(safe_is_bounded)
{
    client c = {0};
    damage(_i ? NEVER : 0, 0, 20);
    ask(&c, -1);
    other_worker_is_sound(&c);
    h_expect(&h, &c, PROMPT, OUTPUT, 2000);
    ck_assert_uint_eq(equal() + different(), 0);
    h_release(&h, &c, 1000);
}
END_TEST

int main(void)
{
    const h_case cases[] = {
        {equal_tokens_let_the_stream_go_on, SL_COUNT(harmless)},
        {a_different_token_ends_it, SL_COUNT(harmful)},
        {log_probabilities_are_compared, 2},
        {what_must_be_repeated_survives_further_faults, 3},
        {safe_is_bounded, 2},
    };
    return h_main("router/repeat", setup, teardown, cases, SL_COUNT(cases));
}
