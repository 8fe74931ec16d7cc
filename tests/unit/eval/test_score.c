/* Scorers against what published programs give the same texts (tests/golden/eval), and intervals against their equation. */
#include "eval/score.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/unit/run_suite.h"

enum { MOST = 16 };

static int32_t texts(const json_t *list, const char *out[MOST])
{
    const int32_t n = (int32_t)json_array_size(list);
    ck_assert_int_le(n, MOST);
    for (int32_t i = 0; i < n; i++)
        out[i] = json_string_value(json_array_get(list, (size_t)i));
    return n;
}

static void check_case(const char *line, int number, int seen[SL_EVAL_SCORERS])
{
    json_t *c = json_loads(line, 0, NULL);
    const char *answers[MOST], *choices[MOST];
    sl_eval_right_answers right = {.answers = answers, .choices = choices};
    sl_eval_scorer how;
    ck_assert_ptr_nonnull(c);
    ck_assert_int_eq(sl_eval_scorer_find(json_string_value(json_object_get(c, "scorer")), &how, NULL), SL_OK);
    right.n_answers = texts(json_object_get(c, "answers"), answers);
    right.n_choices = texts(json_object_get(c, "choices"), choices);
    const double want = json_number_value(json_object_get(c, "score"));
    const double got = sl_eval_score(how, &right, json_string_value(json_object_get(c, "text")));
    ck_assert_msg(fabs(got - want) < 1e-9, "line %d: %g instead of %g: %s", number, got, want, line);
    seen[how] += want > 0;
    json_decref(c);
}

START_TEST(scores_are_those_of_published_programs)
{
    FILE *from = fopen("tests/golden/eval/scores.jsonl", "re");
    char *line = NULL;
    size_t cap = 0;
    int number = 0, seen[SL_EVAL_SCORERS] = {0};
    ck_assert_ptr_nonnull(from);
    while (getline(&line, &cap, from) > 0)
        check_case(line, ++number, seen);
    free(line);
    fclose(from);
    for (int i = 0; i < SL_EVAL_SCORERS; i++)
        ck_assert_msg(seen[i] > 0, "no case of %s has a score", sl_eval_scorer_names[i]);
}
END_TEST

/* Texts that models write and no published program has: broken UTF-8, scripts without blanks, empty ones. */
START_TEST(any_text_has_a_score)
{
    static const char *const odd[] = {"",    "\xff\xfe", "\xe4\xb8", "他在北京",
                                      "the", "...",      "a\xc3",    "\xf0\x9f\x98\x80"};
    for (size_t i = 0; i < SL_COUNT(odd); i++)
        for (size_t j = 0; j < SL_COUNT(odd); j++)
            for (int how = 0; how < SL_EVAL_SCORERS; how++) {
                const sl_eval_right_answers right = {
                    .answers = &odd[j], .n_answers = 1, .choices = odd, .n_choices = 3};
                const double s = sl_eval_score((sl_eval_scorer)how, &right, odd[i]);
                ck_assert_msg(s >= 0 && s <= 1, "%s: %g", sl_eval_scorer_names[how], s);
            }
    /* Characters without blanks between them are compared one by one. */
    const char *want = "他在北京工作";
    const sl_eval_right_answers right = {.answers = &want, .n_answers = 1};
    ck_assert_double_eq_tol(sl_eval_score(SL_EVAL_F1, &right, "他在北京"), 2.0 * 4 / (4 + 6), 1e-12);
    ck_assert_double_eq_tol(sl_eval_score(SL_EVAL_ROUGE_L, &right, "北京"), 2.0 * 2 / (2 + 6), 1e-12);
}
END_TEST

/* The bounds are the shares whose own deviation reaches the mean: |mean - p| = z sqrt(p (1 - p) / n). */
START_TEST(wilson_bounds_solve_their_equation)
{
    const double z = 1.959963984540054;
    for (int n = 1; n < 200; n += 7)
        for (int right = 0; right <= n; right++) {
            const double mean = (double)right / n;
            double low, high;
            sl_eval_wilson(mean, n, &low, &high);
            ck_assert(low >= 0 && low <= mean + 1e-12 && high >= mean - 1e-12 && high <= 1);
            if (right > 0)
                ck_assert_double_eq_tol(mean - low, z * sqrt(low * (1 - low) / n), 1e-9);
            if (right < n)
                ck_assert_double_eq_tol(high - mean, z * sqrt(high * (1 - high) / n), 1e-9);
        }
    double low, high;
    sl_eval_wilson(0, 0, &low, &high);
    ck_assert(low == 0 && high == 1);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("eval score");
    TCase *t = tcase_create("score");
    tcase_add_test(t, scores_are_those_of_published_programs);
    tcase_add_test(t, any_text_has_a_score);
    tcase_add_test(t, wilson_bounds_solve_their_equation);
    suite_add_tcase(s, t);
    return run_suite(s);
}
