/*
 * Client calls: admission, the bound of the queue, several requests of one prompt, release from inside the sink.
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

START_TEST(queue_is_bounded)
{
    h.o.max_queue = 3;
    h.mo.max_batch = 1; /* room for 2 placed requests */
    h_open_cluster(&h, 1, 1);
    sl_mock_knob(h.w[1])->hold = true;
    client c[6] = {{0}};
    sl_err err = {""};
    sl_status st = SL_OK;
    int n = 0;
    for (; n < 6 && !st; n++) {
        sl_request_spec s;
        h_spec(&s, 70, 4);
        st = h_try_submit(&h, &c[n], &s, &err);
        if (st)
            sl_request_spec_free(&s);
    }
    ck_assert_int_eq(st, SL_ERR_EXHAUSTED);
    ck_assert_int_eq(n, 6); /* two placed, three waiting, the sixth refused */
    sl_mock_knob(h.w[1])->hold = false;
    for (int i = 0; i < 5; i++) {
        h_expect(&h, &c[i], 70, 4, 5000);
        sl_group_release(c[i].group);
    }
    H_UNTIL(&h, h_clean(&h), 1000);
}
END_TEST

START_TEST(choices_wait_for_the_first_prefill)
{
    h.mo.prefill_us = 20000;
    h_open_cluster(&h, 1, 1);
    client c = {0};
    sl_request_spec s;
    h_spec(&s, 200, 6);
    s.n = 4;
    h_submit(&h, &c, &s);
    h_run(&h, 10);
    ck_assert_uint_eq(sl_mock_count(h.w[1])->received[SL_MSG_RESERVE], 1);
    H_UNTIL(&h, h_done(&c), 3000);
    for (int i = 0; i < 4; i++)
        h_check_stream(&h, &c.s[i], 200, 6);
    h_release(&h, &c, 1000);
}
END_TEST

START_TEST(choices_go_on_when_the_first_fails)
{
    h_open_cluster(&h, 1, 1);
    sl_mock_knob(h.w[0])->fail_final = 1;
    client c = {0};
    sl_request_spec s;
    h_spec(&s, 200, 6);
    s.n = 2;
    h_submit(&h, &c, &s);
    H_UNTIL(&h, h_done(&c), 3000);
    ck_assert_int_eq(c.s[0].status, SL_ERR_INTERNAL);
    h_check_stream(&h, &c.s[1], 200, 6);
    h_release(&h, &c, 1000);
}
END_TEST

static void release_in_sink(client *c, const sl_output *o)
{
    if (o->completion_tokens == 5)
        sl_group_release(c->group);
}

START_TEST(release_from_inside_the_sink)
{
    h_open_cluster(&h, 1, 1);
    client c = {.hook = release_in_sink};
    sl_request_spec s;
    h_spec(&s, 70, 30);
    s.n = 3;
    h_submit(&h, &c, &s);
    H_UNTIL(&h, !h.r->requests.active, 2000);
    ck_assert_int_eq(c.s[0].ends, 0);
    H_UNTIL(&h, h_clean(&h), 1000);
}
END_TEST

START_TEST(admission_names_the_reason)
{
    h_open_cluster(&h, 1, 1);
    client c = {0};
    sl_err err = {""};
    sl_request_spec s;
    h_spec(&s, 0, 5);
    ck_assert_int_eq(h_try_submit(&h, &c, &s, &err), SL_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(err.text, "prompt"));
    sl_request_spec_free(&s);
    h_spec(&s, 4096, 5);
    ck_assert_int_eq(h_try_submit(&h, &c, &s, &err), SL_ERR_TOO_LARGE);
    sl_request_spec_free(&s);
    h_spec(&s, 4000, 500);
    ck_assert_int_eq(h_try_submit(&h, &c, &s, &err), SL_ERR_TOO_LARGE);
    ck_assert_ptr_nonnull(strstr(err.text, "max_tokens"));
    sl_request_spec_free(&s);
    h_spec(&s, 10, 5);
    s.prompts->ids[3] = 512;
    ck_assert_int_eq(h_try_submit(&h, &c, &s, &err), SL_ERR_INVALID);
    sl_request_spec_free(&s);
    h_spec(&s, 10, 0);
    ck_assert_int_eq(h_try_submit(&h, &c, &s, &err), SL_ERR_INVALID);
    sl_request_spec_free(&s);
    ck_assert_uint_eq(h.r->requests.active, 0);
}
END_TEST

int main(void)
{
    const h_case cases[] = {
        {queue_is_bounded, 0},
        {choices_wait_for_the_first_prefill, 0},
        {choices_go_on_when_the_first_fails, 0},
        {release_from_inside_the_sink, 0},
        {admission_names_the_reason, 0},
    };
    return h_main("router/group", setup, teardown, cases, SL_COUNT(cases));
}
