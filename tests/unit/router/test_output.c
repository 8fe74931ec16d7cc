/*
 * Tokens to text: stop strings, hold-back, stop tokens.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/unit/router/harness.h"

static harness h;

static void setup(void)
{
    h_init(&h);
}

static void teardown(void)
{
    h_close(&h);
}

START_TEST(stop_string_ends_it_here_and_there)
{
    static const int32_t script[] = {'a', 'b', 'c', 'S', 'T', 'O', 'P', 'x', 'y'};
    h.mo.script = script;
    h.mo.n_script = SL_COUNT(script);
    h_open_cluster(&h, 1, 1);
    client c = {0};
    sl_request_spec s;
    h_spec(&s, 70, 30);
    s.stops[s.n_stops++] = strdup("STOP");
    h_submit(&h, &c, &s);
    H_UNTIL(&h, h_done(&c), 2000);
    ck_assert_int_eq(c.s[0].finish, SL_FINISH_STOP);
    ck_assert_str_eq(c.s[0].matched, "STOP");
    ck_assert_uint_eq(c.s[0].len, 3);
    ck_assert_int_eq(memcmp(c.s[0].text, "abc", 3), 0);
    ck_assert_uint_eq(c.s[0].completion_tokens, 7);
    h_release(&h, &c, 1000);
}
END_TEST

START_TEST(held_back_text_comes_out_at_the_end)
{
    static const int32_t script[] = {'a', 'b', 'S', 'T', 'O'};
    h.mo.script = script;
    h.mo.n_script = SL_COUNT(script);
    h_open_cluster(&h, 1, 1);
    client c = {0};
    sl_request_spec s;
    h_spec(&s, 70, 5);
    s.stops[s.n_stops++] = strdup("STOP");
    h_submit(&h, &c, &s);
    H_UNTIL(&h, h_done(&c), 2000);
    ck_assert_int_eq(c.s[0].finish, SL_FINISH_LENGTH);
    ck_assert_uint_eq(c.s[0].len, 5);
    ck_assert_int_eq(memcmp(c.s[0].text, "abSTO", 5), 0);
    sl_group_release(c.group);
}
END_TEST

START_TEST(stop_token_yields_no_text)
{
    static const int32_t script[] = {'a', 'b', 'q', 'z'};
    h.mo.script = script;
    h.mo.n_script = SL_COUNT(script);
    h_open_cluster(&h, 1, 1);
    client c = {0};
    sl_request_spec s;
    h_spec(&s, 70, 30);
    int32_t id = 'q';
    sl_sampling_set_stop_ids(&s.sampling, &id, 1);
    h_submit(&h, &c, &s);
    H_UNTIL(&h, h_done(&c), 2000);
    ck_assert_int_eq(c.s[0].finish, SL_FINISH_STOP);
    ck_assert_int_eq(c.s[0].matched_token, 'q');
    ck_assert_uint_eq(c.s[0].n, 3);
    ck_assert_uint_eq(c.s[0].len, 2);
    sl_group_release(c.group);
}
END_TEST

int main(void)
{
    const h_case cases[] = {
        {stop_string_ends_it_here_and_there, 0},
        {held_back_text_comes_out_at_the_end, 0},
        {stop_token_yields_no_text, 0},
    };
    return h_main("router/output", setup, teardown, cases, SL_COUNT(cases));
}
