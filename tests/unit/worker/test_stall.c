/* How many prompt tokens a step may hold while requests decode: the bound, the measure, and the two together. */
#include <check.h>

#include "worker/stall.h"
#include "tests/unit/run_suite.h"
#include "worker/prompt_queue.h"

static const double MS = 1e6;

START_TEST(the_bound_by_backend)
{
    ck_assert_int_eq(sl_stall_bound_ms(-1, true), 10);
    ck_assert_int_eq(sl_stall_bound_ms(-1, false), 50);
    ck_assert_int_eq(sl_stall_bound_ms(0, false), 0);
    ck_assert_int_eq(sl_stall_bound_ms(7, true), 7);
}
END_TEST

/* Only while a request decodes. */
START_TEST(the_limit_of_a_step)
{
    ck_assert_double_eq(sl_stall_max_ns(50, 0), 0);
    ck_assert_double_eq(sl_stall_max_ns(0, 3), 0);
    ck_assert_double_eq(sl_stall_max_ns(50, 3), 50 * MS);
}
END_TEST

/* What the prompts of a step have caused is the step without the tokens that are decoded. */
START_TEST(the_part_of_prompts)
{
    sl_stall s = {0};
    ck_assert_double_eq(sl_stall_of_prompts(&s, 4, 10 * MS), 10 * MS); /* nothing is known yet */
    sl_stall_decoded(&s, 4, 8 * MS);
    ck_assert_double_eq(sl_stall_of_prompts(&s, 0, 10 * MS), 10 * MS);
    ck_assert_double_eq(sl_stall_of_prompts(&s, 2, 10 * MS), 6 * MS);
    ck_assert_double_eq(sl_stall_of_prompts(&s, 4, 10 * MS), 2 * MS);
    ck_assert_double_eq(sl_stall_of_prompts(&s, 50, 10 * MS), 1 * MS); /* the estimate is old */
    for (int i = 0; i < 400; i++)
        sl_stall_decoded(&s, 1, 1 * MS);
    ck_assert_double_eq_tol(s.token_ns, 1 * MS, 100);
}
END_TEST

/*
 * A worker of 4,000 prompt tokens per second, whose decode tokens take 1 ms each. With a bound of 50 ms the chunks become 200
 * tokens, whole pages of them, whatever the batch; without requests that decode they are full again.
 */
START_TEST(chunks_follow_the_measured_speed)
{
    sl_prompt_queue q;
    sl_err err = {0};
    sl_stall s = {0};
    sl_queued_prompt p = {.tokens = 60000, .ready = true};
    const sl_prompt_queue_opts o = {
        .chunk_tokens = 512, .max_prompts = 1, .min_step_tokens = 64, .max_context = 65536, .guess_ns = 1e5};
    const double token_ns = 0.25 * MS;
    ck_assert_int_eq(sl_prompt_queue_open(&q, &o, &err), SL_OK);
    sl_prompt_queue_begin(&q, &p);
    sl_stall_decoded(&s, 8, 8 * MS);
    for (int step = 0; step < 200; step++) {
        int32_t decoding = step < 100 ? _i : 0;
        int32_t last = sl_prompt_queue_share(&q, sl_stall_max_ns(50, decoding));
        if (decoding && step > 20)
            ck_assert_msg(last >= 128 && last <= 200, "step %d has %d tokens", step, last);
        if (!decoding)
            ck_assert_int_eq(last, 512);
        double ns = last * token_ns + decoding * MS;
        sl_prompt_queue_measured(&q, &(sl_pace_part){p.pos, p.pos + last}, 1,
                                 sl_stall_of_prompts(&s, decoding, ns));
        p.pos = (p.pos + last) % 40000;
    }
    sl_prompt_queue_close(&q);
}
END_TEST

static Suite *suite(void)
{
    Suite *s = suite_create("stall");
    TCase *t = tcase_create("stall");
    tcase_add_test(t, the_bound_by_backend);
    tcase_add_test(t, the_limit_of_a_step);
    tcase_add_test(t, the_part_of_prompts);
    tcase_add_loop_test(t, chunks_follow_the_measured_speed, 1, 33);
    suite_add_tcase(s, t);
    return s;
}

int main(void)
{
    return run_suite(suite());
}
