/* The prompt queue: places, the order of arrival, what is not ready, the bound of the caller, and that every token of every prompt
 * is computed once. */
#include <check.h>
#include <string.h>

#include "kernels/params.h"
#include "tests/unit/run_suite.h"
#include "worker/prompt_queue.h"

enum { CHUNK = 256, PLACES = 4, PROMPTS = 60, PAGE = SL_PAGE_TOKENS };

static sl_prompt_queue q;

static void open_queue(int32_t places, int32_t unit)
{
    const sl_prompt_queue_opts o = {.chunk_tokens = CHUNK + unit / 2,
                                    .max_prompts = places,
                                    .min_step_tokens = 1,
                                    .unit = unit,
                                    .max_context = 1 << 16,
                                    .guess_ns = 1e6};
    ck_assert_int_eq(sl_prompt_queue_open(&q, &o, NULL), SL_OK);
}

static sl_queued_prompt prompt(uint64_t arrived, int32_t tokens)
{
    return (sl_queued_prompt){.arrived = arrived, .tokens = tokens, .ready = true};
}

/* One of the places is only for short prompts. */
START_TEST(test_places)
{
    open_queue(3, 0);
    sl_queued_prompt a = prompt(1, 1000), b = prompt(2, 1000), c = prompt(3, 30);
    sl_prompt_queue_begin(&q, &a);
    ck_assert(sl_prompt_queue_has_place(&q, 1000));
    sl_prompt_queue_begin(&q, &b);
    ck_assert(!sl_prompt_queue_has_place(&q, CHUNK + 1) && sl_prompt_queue_has_place(&q, CHUNK));
    sl_prompt_queue_begin(&q, &c);
    ck_assert(!sl_prompt_queue_has_place(&q, 1));
    sl_prompt_queue_end(&q, &a);
    sl_prompt_queue_end(&q, &a); /* it has none any more */
    ck_assert(sl_prompt_queue_has_place(&q, 1000));
    ck_assert_int_eq(q.n, 2);
    ck_assert_int_eq(q.n_long, 1);
    sl_prompt_queue_close(&q);
}
END_TEST

/* They stand in the order in which they came, whichever began first; of equal ones the oldest is computed. */
START_TEST(test_order)
{
    open_queue(3, 0);
    sl_queued_prompt a = prompt(1, 1000), b = prompt(2, 1000), c = prompt(3, 1000);
    sl_prompt_queue_begin(&q, &b);
    sl_prompt_queue_begin(&q, &c);
    sl_prompt_queue_begin(&q, &a);
    ck_assert_ptr_eq(q.first, &a);
    ck_assert_ptr_eq(a.next, &b);
    ck_assert_ptr_eq(q.last, &c);
    ck_assert_int_eq(sl_prompt_queue_share(&q, 0), CHUNK);
    ck_assert_int_eq(a.take, CHUNK);
    a.ready = false; /* its pages still arrive */
    ck_assert_int_eq(sl_prompt_queue_share(&q, 0), CHUNK);
    ck_assert_int_eq(a.take, 0);
    ck_assert_int_eq(b.take, CHUNK);
    sl_prompt_queue_end(&q, &b);
    sl_prompt_queue_end(&q, &c);
    ck_assert_int_eq(sl_prompt_queue_share(&q, 0), 0); /* none is ready */
    sl_prompt_queue_close(&q);
}
END_TEST

/* At 1 ms a token, a bound of 10 ms leaves 10 tokens; without it there is a chunk. */
START_TEST(test_bound)
{
    open_queue(1, 0);
    sl_queued_prompt a = prompt(1, 1000);
    sl_prompt_queue_begin(&q, &a);
    for (int i = 0; i < q.pace.n; i++)
        q.pace.span[i].token_ns = 1e6;
    q.pace.measured = true;
    ck_assert_int_eq(sl_prompt_queue_share(&q, 10e6), 10);
    ck_assert_int_eq(sl_prompt_queue_share(&q, 0), CHUNK);
    ck_assert_uint_eq(sl_prompt_queue_measured(&q, &(sl_pace_part){0, CHUNK}, 1, CHUNK * 1e6), 1000);
    sl_prompt_queue_end(&q, &a);
    sl_prompt_queue_close(&q);
}
END_TEST

/* Prompts of random lengths, half of which stop at places of their own, and some of which are ended in the middle: the others are
 * computed to their end, one token once. In odd runs steps end at whole pages, also where the bound of time allows less. */
START_TEST(test_all_tokens)
{
    sl_queued_prompt p[PROMPTS];
    unsigned seed = 7 + (unsigned)_i;
    int next = 0, done = 0;
    const int32_t unit = _i % 2 ? PAGE : 0;
    open_queue(PLACES, unit);
    for (int i = 0; i < PROMPTS; i++) {
        seed = seed * 1664525u + 1013904223u;
        p[i] = prompt((uint64_t)i, 1 + (int32_t)(seed >> 8) % (i % 3 ? 200 : 3000));
        p[i].stop = i % 2 || unit ? 0 : 1 + (int32_t)(seed >> 8) % p[i].tokens;
    }
    for (int step = 0; step < 5000 && done < PROMPTS; step++) {
        for (; next < PROMPTS && sl_prompt_queue_has_place(&q, p[next].tokens); next++)
            sl_prompt_queue_begin(&q, &p[next]);
        int32_t sum = 0, all = sl_prompt_queue_share(&q, step % 7 ? 0 : 50e6);
        ck_assert_int_le(all, CHUNK + unit / 2);
        ck_assert_int_gt(all, 0);
        for (sl_queued_prompt *x = q.first, *after; x; x = after) {
            after = x->next;
            sum += x->take;
            x->pos += x->take;
            ck_assert_int_le(x->pos, x->stop ? x->stop : x->tokens);
            ck_assert(!unit || x->pos == x->tokens || x->pos % unit == 0);
            if (!unit && x->pos == x->stop)
                x->stop = x->pos + 100 < x->tokens ? x->pos + 100 : x->tokens;
            if (x->pos == x->tokens || (step % 50 == 49 && x == q.last)) {
                sl_prompt_queue_end(&q, x);
                done++;
            }
        }
        ck_assert_int_eq(sum, all);
    }
    ck_assert_int_eq(done, PROMPTS);
    ck_assert_int_eq(q.n, 0);
    ck_assert_int_eq(q.n_long, 0);
    sl_prompt_queue_close(&q);
}
END_TEST

/* A step of less than a unit could never begin. */
START_TEST(test_unit_is_too_long)
{
    const sl_prompt_queue_opts o = {
        .chunk_tokens = PAGE - 1, .max_prompts = 1, .unit = PAGE, .max_context = 1 << 16, .guess_ns = 1e6};
    sl_err err = {0};
    ck_assert_int_eq(sl_prompt_queue_open(&q, &o, &err), SL_ERR_INVALID);
    ck_assert_msg(strstr(err.text, "prefill.chunk_tokens 63"), "%s", err.text);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("prompt_queue");
    TCase *c = tcase_create("queue");
    tcase_add_test(c, test_places);
    tcase_add_test(c, test_order);
    tcase_add_test(c, test_bound);
    tcase_add_test(c, test_unit_is_too_long);
    add_variants(c, test_all_tokens, 8);
    suite_add_tcase(s, c);
    return run_suite(s);
}
