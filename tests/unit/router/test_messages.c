/*
 * What workers say about a request: full, retracted, repeated, stale, lost and wrong messages change no stream.
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

START_TEST(full_worker_waits_and_does_not_count_as_failure)
{
    h_open_cluster(&h, 1, 1);
    sl_mock_knob(h.w[1])->full = 5;
    client c = {0};
    h_ask(&h, &c, 70, 5);
    h_expect(&h, &c, 70, 5, 5000);
    ck_assert_uint_eq(h_request(&c, 0)->retries, 0);
    h_release(&h, &c, 1000);
}
END_TEST

START_TEST(retracted_stream_goes_on)
{
    h_open_cluster(&h, 1, 2);
    sl_mock_knob(h.w[1])->retract_at = 7;
    sl_mock_knob(h.w[2])->retract_at = 9;
    client c = {0};
    h_ask(&h, &c, 70, 25);
    h_expect(&h, &c, 70, 25, 3000);
    ck_assert_uint_ge(h_request(&c, 0)->attempt.n, 2);
    h_release(&h, &c, 1000);
}
END_TEST

static uint64_t dropped(void)
{
    return sl_counter_value(h.r->stats.workers.stale);
}

START_TEST(repeated_messages_change_nothing)
{
    h_open_cluster(&h, 1, 1);
    sl_mock_knob(h.w[0])->duplicate = true;
    sl_mock_knob(h.w[1])->duplicate = true;
    client c = {0};
    h_ask(&h, &c, 70, 10);
    h_expect(&h, &c, 70, 10, 2000);
    ck_assert_uint_ge(dropped(), 2);
    h_release(&h, &c, 1000);
}
END_TEST

START_TEST(stale_and_foreign_messages_are_dropped)
{
    h_open_cluster(&h, 1, 1);
    sl_mock_knob(h.w[1])->stale = true;
    client c = {0};
    h_ask(&h, &c, 70, 10);
    h_expect(&h, &c, 70, 10, 2000);
    h_run(&h, 5);
    ck_assert_uint_eq(dropped() + sl_counter_value(h.r->stats.workers.malformed),
                      20); /* attempt 0 is malformed */
    h_release(&h, &c, 1000);
}
END_TEST

START_TEST(missing_token_is_recomputed)
{
    h_open_cluster(&h, 1, 2);
    sl_mock_knob(h.w[1])->skip_token = 4;
    sl_mock_knob(h.w[2])->skip_token = 0;
    client c = {0};
    sl_request_spec s;
    for (int i = 0; i < 2; i++) { /* whichever worker it starts on */
        h_spec(&s, 70, 10);
        h_submit(&h, &c, &s);
        h_expect(&h, &c, 70, 10, 2000);
        sl_group_release(c.group);
    }
    H_UNTIL(&h, h_clean(&h), 1000);
}
END_TEST

START_TEST(wrong_count_at_the_end_is_no_answer)
{
    h_open_cluster(&h, 1, 1);
    sl_mock_knob(h.w[1])->wrong_count = true;
    client c = {0};
    h_ask(&h, &c, 70, 10);
    h_expect(&h, &c, 70, 10, 2000); /* all tokens are here: it is complete by our own count */
    h_release(&h, &c, 1000);
}
END_TEST

int main(void)
{
    const h_case cases[] = {
        {full_worker_waits_and_does_not_count_as_failure, 0},
        {retracted_stream_goes_on, 0},
        {repeated_messages_change_nothing, 0},
        {stale_and_foreign_messages_are_dropped, 0},
        {missing_token_is_recomputed, 0},
        {wrong_count_at_the_end_is_no_answer, 0},
    };
    return h_main("router/messages", setup, teardown, cases, SL_COUNT(cases));
}
