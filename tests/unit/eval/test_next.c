/* Next tokens: windows of a text, and agreement, KL and perplexity against sums that are written out here. */
#include "eval/next.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/run_suite.h"

START_TEST(windows)
{
    int32_t tokens[10], begin[1] = {99};
    for (int i = 0; i < 10; i++)
        tokens[i] = i;
    sl_eval_text t = {.tokens = tokens, .n = 10};
    ck_assert_int_eq(sl_eval_windows(&t, 4), 2);
    ck_assert_int_eq(sl_eval_windows(&t, 11), 0);
    int32_t *w = sl_eval_window(&t, 4, 1);
    ck_assert(w[0] == 4 && w[3] == 7);
    free(w);
    t.begin = begin, t.n_begin = 1; /* every window begins as a text does */
    ck_assert_int_eq(sl_eval_windows(&t, 4), 3);
    ck_assert_int_eq(sl_eval_windows(&t, 1), 0);
    w = sl_eval_window(&t, 4, 2);
    ck_assert(w[0] == 99 && w[1] == 6 && w[3] == 8);
    free(w);
}
END_TEST

START_TEST(sums)
{
    enum { VOCAB = 5, STEPS = 40 };
    sl_eval_next got = {0}, other = {0};
    double kl = 0, surprise = 0;
    int agreed = 0;
    srand(3);
    for (int s = 0; s < STEPS; s++) {
        float p[VOCAB], q[VOCAB];
        double sp = 0, sq = 0;
        int bp = 0, bq = 0, token = rand() % VOCAB;
        for (int i = 0; i < VOCAB; i++) {
            p[i] = (float)(rand() % 100) / 10,
            q[i] = s % 4 ? (float)(rand() % 100) / 10 : p[i] + 300; /* a shift changes nothing */
            bp = p[i] > p[bp] ? i : bp, bq = q[i] > q[bq] ? i : bq;
        }
        for (int i = 0; i < VOCAB; i++)
            sp += exp((double)p[i] - 300), sq += exp((double)q[i] - 300);
        for (int i = 0; i < VOCAB; i++) {
            const double a = exp((double)p[i] - 300) / sp, b = exp((double)q[i] - 300) / sq;
            kl += a * log(a / b);
        }
        surprise -= log(exp((double)q[token] - 300) / sq);
        agreed += bp == bq;
        sl_eval_next_see(s % 2 ? &got : &other, p, q, VOCAB, token);
    }
    ck_assert_double_eq(sl_eval_agreement(&(sl_eval_next){0}), -1);
    sl_eval_next_add(&got, &other);
    ck_assert_int_eq(got.tokens, STEPS);
    ck_assert_double_eq_tol(sl_eval_agreement(&got), (double)agreed / STEPS, 1e-12);
    ck_assert_double_eq_tol(sl_eval_kl(&got), kl / STEPS, 1e-4);
    ck_assert_double_eq_tol(sl_eval_perplexity(&got), exp(surprise / STEPS), 1e-3 * exp(surprise / STEPS));
    ck_assert(agreed > STEPS / 4 && agreed < STEPS && kl > 0);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("eval next");
    TCase *t = tcase_create("next");
    tcase_add_test(t, windows);
    tcase_add_test(t, sums);
    suite_add_tcase(s, t);
    return run_suite(s);
}
