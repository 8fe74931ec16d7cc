/* The sampler's parameters: validation by field name, and the wire form. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/sampler.h"
#include "tests/unit/run_suite.h"

static void expect_field(const sl_sampling *s, const char *field)
{
    sl_err err = {{0}};
    ck_assert_int_lt(sl_sampling_validate(s, 100, &err), 0);
    ck_assert_msg(strncmp(err.text, field, strlen(field)) == 0 && err.text[strlen(field)] == ':',
                  "\"%s\" is not about %s", err.text, field);
}

#define REFUSED(field, value, name)                                                                          \
    do {                                                                                                     \
        sl_sampling s_;                                                                                      \
        sl_sampling_default(&s_);                                                                            \
        s_.field = (value);                                                                                  \
        expect_field(&s_, name);                                                                             \
    } while (0)

START_TEST(validation_names_the_field)
{
    sl_sampling s;
    sl_sampling_default(&s);
    ck_assert_int_eq(sl_sampling_validate(&s, 100, NULL), SL_OK);
    REFUSED(temperature, -0.1f, "temperature");
    REFUSED(temperature, NAN, "temperature");
    REFUSED(temperature, INFINITY, "temperature");
    REFUSED(top_p, 0, "top_p");
    REFUSED(top_p, 1.01f, "top_p");
    REFUSED(top_p, NAN, "top_p");
    REFUSED(min_p, -0.5f, "min_p");
    REFUSED(frequency_penalty, 2.5f, "frequency_penalty");
    REFUSED(presence_penalty, -2.5f, "presence_penalty");
    REFUSED(repetition_penalty, 0, "repetition_penalty");
    REFUSED(repetition_penalty, 1e-44f, "repetition_penalty"); /* a logit divided by it would be infinite */
    REFUSED(top_k, -1, "top_k");
    REFUSED(n_logprobs, 21, "logprobs");
    REFUSED(n_logprobs, -2, "logprobs");
    REFUSED(prompt_logprobs, 22, "prompt_logprobs");
    REFUSED(prompt_logprobs, -1, "prompt_logprobs");
    REFUSED(max_tokens, 0, "max_tokens");
    REFUSED(constraint_after, 1, "constraint_after"); /* without a constraint */
    REFUSED(min_tokens, -1, "min_tokens");
    s.max_tokens = 5;
    s.min_tokens = 6;
    expect_field(&s, "min_tokens");
    s.min_tokens = 0;
    static const sl_logit_bias twice[] = {{3, 1}, {3, 2}}, outside[] = {{100, 1}}, strong[] = {{1, 101}};
    sl_sampling_set_bias(&s, twice, 2);
    expect_field(&s, "logit_bias");
    sl_sampling_set_bias(&s, outside, 1);
    expect_field(&s, "logit_bias");
    sl_sampling_set_bias(&s, strong, 1);
    expect_field(&s, "logit_bias");
    sl_sampling_set_bias(&s, NULL, 0);
    static const int32_t stop[] = {-1};
    sl_sampling_set_stop_ids(&s, stop, 1);
    expect_field(&s, "stop_token_ids");
    sl_sampling_set_stop_ids(&s, NULL, 0);
    sl_sampling_set_constraint(&s, SL_GRAMMAR_REGEX, "a+", 2);
    ck_assert_int_eq(sl_sampling_validate(&s, 100, NULL), SL_OK);
    s.n_grammar = SL_GRAMMAR_BYTES_MAX + 1;
    expect_field(&s, "regex");
    sl_sampling_free(&s);
}
END_TEST

static void fill(sl_sampling *s)
{
    static const sl_logit_bias bias[] = {{3, -1.5f}, {77, 100}};
    static const int32_t stop[] = {4, 5, 6};
    *s = (sl_sampling){.temperature = 0.7f,
                       .top_k = 40,
                       .top_p = 0.9f,
                       .min_p = 0.01f,
                       .frequency_penalty = -0.5f,
                       .presence_penalty = 0.25f,
                       .repetition_penalty = 1.1f,
                       .seed = 0x0123456789ABCDEFull,
                       .n_logprobs = 7,
                       .min_tokens = 2,
                       .max_tokens = 99,
                       .ignore_eos = true};
    ck_assert_int_eq(sl_sampling_set_bias(s, bias, 2), SL_OK);
    ck_assert_int_eq(sl_sampling_set_constraint(s, SL_GRAMMAR_CHOICE, "[\"a\"]", 5), SL_OK);
    ck_assert_int_eq(sl_sampling_set_stop_ids(s, stop, 3), SL_OK);
}

static void expect_same(const sl_sampling *a, const sl_sampling *b)
{
    sl_wr x, y;
    sl_wr_init(&x);
    sl_wr_init(&y);
    sl_sampling_write(&x, a);
    sl_sampling_write(&y, b);
    ck_assert_uint_eq(x.len, y.len);
    ck_assert(memcmp(x.data, y.data, x.len) == 0);
    sl_wr_free(&x);
    sl_wr_free(&y);
}

/* A constraint that begins later is in the message as a kind that older workers do not know. */
START_TEST(wire_of_a_later_constraint)
{
    sl_sampling s, got;
    sl_wr w;
    fill(&s);
    sl_wr_init(&w);
    sl_sampling_write(&w, &s);
    size_t plain = w.len;
    sl_wr_free(&w);
    for (s.constraint_after = 1; s.constraint_after <= 100; s.constraint_after += 33) {
        ck_assert_int_eq(sl_sampling_validate(&s, 100, NULL), SL_OK);
        sl_wr_init(&w);
        sl_sampling_write(&w, &s);
        ck_assert_uint_eq(w.len, plain + 4);
        sl_rd r = sl_rd_init(w.data, w.len);
        ck_assert_int_eq(sl_sampling_read(&r, &got), SL_OK);
        ck_assert_int_eq(sl_rd_done(&r), SL_OK);
        ck_assert_int_eq(got.constraint_after, s.constraint_after);
        expect_same(&s, &got);
        sl_sampling_free(&got);
        memset(w.data + w.len - 4, 0, 4); /* from the first token, which has the other form */
        r = sl_rd_init(w.data, w.len);
        ck_assert_int_eq(sl_sampling_read(&r, &got), SL_ERR_CORRUPT);
        sl_wr_free(&w);
    }
    s.constraint_after = 101;
    expect_field(&s, "constraint_after");
    sl_sampling_free(&s);
}
END_TEST

/* Those of a prompt are in the message only if they are asked for: other requests have the form that older workers read. */
START_TEST(wire_of_prompt_logprobs)
{
    sl_sampling s, got;
    sl_wr plain, asked;
    fill(&s);
    sl_wr_init(&plain);
    sl_sampling_write(&plain, &s);
    for (s.prompt_logprobs = 1; s.prompt_logprobs <= 1 + SL_LOGPROBS_MAX; s.prompt_logprobs++) {
        sl_wr_init(&asked);
        sl_sampling_write(&asked, &s);
        ck_assert_uint_ne(asked.data[0], plain.data[0]);
        ck_assert_uint_eq(asked.len, plain.len + 4);
        sl_rd r = sl_rd_init(asked.data, asked.len);
        ck_assert_int_eq(sl_sampling_read(&r, &got), SL_OK);
        ck_assert_int_eq(sl_rd_done(&r), SL_OK);
        ck_assert_int_eq(got.prompt_logprobs, s.prompt_logprobs);
        sl_sampling_free(&got);
        r = sl_rd_init(asked.data, asked.len - 1);
        ck_assert_int_eq(sl_sampling_read(&r, &got), SL_ERR_CORRUPT);
        memset(asked.data + asked.len - 4, 0, 4); /* none, which has the other form */
        r = sl_rd_init(asked.data, asked.len);
        ck_assert_int_eq(sl_sampling_read(&r, &got), SL_ERR_CORRUPT);
        sl_wr_free(&asked);
    }
    sl_wr_free(&plain);
    sl_sampling_free(&s);
}
END_TEST

START_TEST(wire_round_trip)
{
    sl_sampling s, got, copy;
    sl_wr w;
    fill(&s);
    sl_wr_init(&w);
    sl_sampling_write(&w, &s);
    sl_rd r = sl_rd_init(w.data, w.len);
    ck_assert_int_eq(sl_sampling_read(&r, &got), SL_OK);
    ck_assert_int_eq(sl_rd_done(&r), SL_OK);
    ck_assert_float_eq(got.temperature, 0.7f);
    ck_assert_int_eq(got.top_k, 40);
    ck_assert_float_eq(got.repetition_penalty, 1.1f);
    ck_assert_uint_eq(got.seed, 0x0123456789ABCDEFull);
    ck_assert(got.ignore_eos && got.n_bias == 2 && got.bias[1].id == 77 && got.n_stop_ids == 3 &&
              got.stop_ids[2] == 6);
    expect_same(&s, &got);
    ck_assert_int_eq(sl_sampling_copy(&got, &copy), SL_OK);
    sl_sampling_free(&got);
    expect_same(&s, &copy);
    sl_sampling_free(&copy);
    for (size_t cut = 0; cut < w.len; cut++) { /* every truncation is refused */
        r = sl_rd_init(w.data, cut);
        sl_sampling untouched = {.top_k = -99};
        ck_assert_int_eq(sl_sampling_read(&r, &untouched), SL_ERR_CORRUPT);
        ck_assert_int_eq(untouched.top_k, -99);
    }
    w.data[0] = 99; /* another version */
    r = sl_rd_init(w.data, w.len);
    ck_assert_int_eq(sl_sampling_read(&r, &got), SL_ERR_CORRUPT);
    sl_wr_free(&w);
    sl_sampling_free(&s);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("sampler parameters");
    TCase *c = tcase_create("parameters");
    tcase_add_test(c, validation_names_the_field);
    tcase_add_test(c, wire_round_trip);
    tcase_add_test(c, wire_of_prompt_logprobs);
    tcase_add_test(c, wire_of_a_later_constraint);
    suite_add_tcase(s, c);
    return run_suite(s);
}
