/* prefill.chunk_tokens auto: which number of tokens a step may hold, by what has happened; and that short prompts next to long ones
 * get their first token as with a fixed number. The clock is the test's. */
#include <check.h>

#include "tests/unit/run_suite.h"
#include "worker/chunk.h"
#include "worker/prompt_queue.h"

static const double MS = 1e6;

/* One step of a prompt that is alone: what it may hold, computed at `fixed_ms` for a step and `token_ms` for a token. */
static int32_t alone(sl_chunk *c, double fixed_ms, double token_ms)
{
    sl_order_limit l = {.ns = 200 * MS, .min_tokens = 1};
    sl_chunk_next(c, false, &l);
    sl_chunk_measured(c, l.tokens, (fixed_ms + token_ms * l.tokens) * MS);
    return l.tokens;
}

START_TEST(a_fixed_number)
{
    sl_chunk c = {.most = 640};
    for (int i = 0; i < 100; i++)
        ck_assert_int_eq(alone(&c, 20, 0.25), 640);
    sl_order_limit l = {.ns = 200 * MS};
    sl_chunk_next(&c, false, &l);
    ck_assert_double_eq(l.ns, 200 * MS);
    ck_assert_int_eq(sl_chunk_most(640, false, 8), 640);
    ck_assert_int_eq(sl_chunk_most(0, false, 1), SL_CHUNK_MOST);
    ck_assert_int_eq(sl_chunk_most(0, true, 1), SL_CHUNK_USUAL);
    ck_assert_int_eq(sl_chunk_most(0, false, 2), SL_CHUNK_USUAL);
}
END_TEST

/* The fixed part of a step decides: where it is large the largest step is the fastest, where there is none no double gains. */
START_TEST(the_fastest_number)
{
    sl_chunk c = {.most = 4096, .automatic = true};
    int32_t tokens = 0;
    for (int i = 0; i < SL_CHUNK_QUIET_STEPS - 1; i++)
        ck_assert_int_eq(alone(&c, 60, 0.2),
                         4096); /* nothing is known yet about who waits: its time bounds the step */
    for (int i = 0; i < 8; i++)
        tokens = alone(&c, 60, 0.2);
    ck_assert_int_eq(tokens, 4096);
    sl_chunk even = {.most = 4096, .automatic = true};
    int usual = 0, n = 400;
    for (int i = 0; i < n; i++)
        usual += alone(&even, 0, 0.25) == SL_CHUNK_USUAL;
    ck_assert_msg(usual > n * 9 / 10, "%d of %d", usual, n);
    /* 2,048 is the fastest: from there on a token takes longer */
    sl_chunk peak = {.most = 4096, .automatic = true};
    int best = 0;
    for (int i = 0; i < n; i++) {
        tokens = alone(&peak, 60, peak.size > 2048 ? 0.3 : 0.2);
        best += tokens == 2048;
    }
    ck_assert_msg(best > n * 9 / 10, "%d of %d", best, n);
}
END_TEST

START_TEST(somebody_waits)
{
    sl_chunk c = {.most = 2048, .automatic = true};
    for (int i = 0; i < 50; i++)
        alone(&c, 60, 0.2);
    sl_order_limit l = {.ns = 200 * MS};
    sl_chunk_next(&c, false, &l);
    ck_assert(l.tokens == 2048 && l.ns > 200 * MS);
    for (int i = 0; i <= SL_CHUNK_QUIET_STEPS - 1; i++) {
        l.ns = 200 * MS;
        sl_chunk_next(&c, i == 0, &l);
        ck_assert(l.tokens == 2048 && l.ns <= 200 * MS);
    }
    l.ns = 200 * MS;
    sl_chunk_next(&c, false, &l);
    ck_assert(l.ns > 200 * MS);
    l.ns = 0; /* no bound stays none */
    sl_chunk_next(&c, false, &l);
    ck_assert(l.ns <= 0);
}
END_TEST

/* One in 400 ms on average, at no fixed phase. */
static double arrival(int i)
{
    return ((i + 1) * 400 + i * 7919 % 389) * MS;
}

/* Mean time to the first token of short prompts next to a long one, in ms. */
static double first_tokens(bool automatic)
{
    enum { SHORT = 100, LONG = 400000, N = 300 };
    sl_prompt_queue q;
    sl_prompt_queue_opts o = {.chunk_tokens = automatic ? SL_CHUNK_MOST : SL_CHUNK_USUAL,
                              .automatic = automatic,
                              .max_prompts = 8,
                              .max_step_ns = 200 * MS,
                              .short_step_ns = 100 * MS,
                              .min_step_tokens = 64,
                              .max_context = LONG + 1,
                              .guess_ns = 0.25 * MS};
    sl_queued_prompt long_one = {.tokens = LONG, .ready = true}, s[N] = {0};
    double now = 0, sum = 0, came[N];
    int begun = 0, ended = 0;
    ck_assert_int_eq(sl_prompt_queue_open(&q, &o, NULL), SL_OK);
    sl_prompt_queue_begin(&q, &long_one);
    while (ended < N) {
        for (; begun < N && now >= arrival(begun); begun++) {
            s[begun] = (sl_queued_prompt){.arrived = (uint64_t)begun + 1, .tokens = SHORT, .ready = true};
            came[begun] = arrival(begun);
            sl_prompt_queue_begin(&q, &s[begun]);
        }
        sl_pace_part part[8];
        int32_t n = 0, tokens = sl_prompt_queue_share(&q, 0);
        for (sl_queued_prompt *p = q.first; p; p = p->next)
            if (p->take)
                part[n++] = (sl_pace_part){p->pos, p->pos + p->take};
        double ns = (20 + 0.25 * tokens) * MS;
        now += ns;
        sl_prompt_queue_measured(&q, part, n, ns);
        for (sl_queued_prompt *p = q.first, *next; p; p = next) {
            next = p->next;
            p->pos += p->take;
            if (p->pos < p->tokens || p == &long_one)
                continue;
            sum += now - came[p - s];
            sl_prompt_queue_end(&q, p);
            ended++;
        }
        ck_assert_int_lt(long_one.pos, LONG);
    }
    sl_prompt_queue_end(&q, &long_one);
    sl_prompt_queue_close(&q);
    return sum / N / MS;
}

START_TEST(short_prompts)
{
    double fixed = first_tokens(false), automatic = first_tokens(true);
    ck_assert_msg(automatic <= 1.05 * fixed, "%.1f ms, and %.1f ms with a fixed number", automatic, fixed);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("chunk");
    TCase *t = tcase_create("chunk");
    tcase_add_test(t, a_fixed_number);
    tcase_add_test(t, the_fastest_number);
    tcase_add_test(t, somebody_waits);
    tcase_add_test(t, short_prompts);
    suite_add_tcase(s, t);
    return run_suite(s);
}
