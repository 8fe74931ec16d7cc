/*
 * bench.selection: generated values are read as they were written, and no text that differs from one in a character is read as
 * something else than what its characters say; drafts stand as often as the list says.
 */
#include "base/drawn.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/run_suite.h"

static uint64_t dice = 7;

static uint32_t roll(uint32_t n)
{
    dice = dice * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(dice >> 33) % n;
}

/* A list of n numbers of thousandths that do not rise, as text. */
static void make_list(char between, int n, int *thousandths, char *out, size_t room)
{
    int last = 1000;
    size_t at = 0;
    for (int k = 0; k < n; k++) {
        last = thousandths[k] = (int)roll((uint32_t)last + 1);
        at += (size_t)snprintf(out + at, room - at, "%s%d.%03d", k ? (char[]){between, 0} : "", last / 1000,
                               last % 1000);
    }
}

START_TEST(what_was_written)
{
    for (int round = 0; round < 5000; round++) {
        char list[64], text[96];
        int n = 1 + (int)roll(SL_DRAWN_DRAFTS), want[SL_DRAWN_DRAFTS] = {0};
        sl_drawn d;
        sl_err err = {0};
        make_list('/', n, want, list, sizeof list);
        snprintf(text, sizeof text, "keep85/%s", list);
        ck_assert_msg(sl_drawn_parse(text, &d, &err) == SL_OK, "%s: %s", text, err.text);
        ck_assert_str_eq(d.profile, "keep85");
        ck_assert(d.drafts);
        for (int k = 0; k < SL_DRAWN_DRAFTS; k++)
            ck_assert_msg((int)(d.accept[k] * 1000 + 0.5) == want[k], "%s: place %d is %f", text, k,
                          d.accept[k]);
    }
    sl_drawn d;
    ck_assert_int_eq(sl_drawn_parse("off", &d, NULL), SL_OK);
    ck_assert_str_eq(d.profile, "off");
    ck_assert(!d.drafts);
}
END_TEST

START_TEST(what_is_none)
{
    static const char *const bad[] = {
        "",         "/0.5",          "keep85/",     "keep85/0.5/", "keep85//0.5",
        "off/1.1",  "off/-0.1",      "off/0.5/0.6", "off/nan",     "off/0.5,0.4",
        "off/0.5x", "off/1/1/1/1/1", "off/0.5 0.4"};
    char longer[200];
    sl_drawn d;
    for (size_t i = 0; i < SL_COUNT(bad); i++) {
        sl_err err = {0};
        ck_assert_msg(sl_drawn_parse(bad[i], &d, &err) == SL_ERR_INVALID, "%s", bad[i]);
        ck_assert_msg(strstr(err.text, "bench.selection") != NULL, "%s: %s", bad[i], err.text);
    }
    memset(longer, 'a', sizeof longer - 1);
    longer[sizeof longer - 1] = 0;
    ck_assert_int_eq(sl_drawn_parse(longer, &d, NULL), SL_ERR_INVALID);
}
END_TEST

/* A character of a value is replaced: the value is refused, or its numbers still do not rise and are within 0 and 1. */
START_TEST(characters)
{
    static const char some[] = "0159./-+eEinfx ,\t";
    for (int round = 0; round < 20000; round++) {
        char list[64], text[96];
        int want[SL_DRAWN_DRAFTS];
        sl_drawn d;
        make_list('/', 1 + (int)roll(SL_DRAWN_DRAFTS), want, list, sizeof list);
        snprintf(text, sizeof text, "layered/%s", list);
        text[roll((uint32_t)strlen(text))] = some[roll(sizeof some - 1)];
        if (sl_drawn_parse(text, &d, NULL) != SL_OK || !d.drafts)
            continue;
        for (int k = 0; k < SL_DRAWN_DRAFTS; k++)
            ck_assert_msg(d.accept[k] >= 0 && d.accept[k] <= (k ? d.accept[k - 1] : 1), "%s", text);
    }
}
END_TEST

START_TEST(how_often_drafts_stand)
{
    enum { DRAWS = 100000 };
    static const double accept[SL_DRAWN_DRAFTS] = {0.85, 0.68, 0.5, 0};
    int at_least[SL_DRAWN_DRAFTS + 1] = {0};
    for (int i = 0; i < DRAWS; i++) {
        int k = sl_drawn_standing(accept, SL_DRAWN_DRAFTS, (i + 0.5) / DRAWS);
        for (int j = 0; j <= k; j++)
            at_least[j]++;
        ck_assert_int_eq(sl_drawn_standing(accept, 1, (i + 0.5) / DRAWS), k < 1 ? k : 1);
    }
    for (int k = 0; k < SL_DRAWN_DRAFTS; k++)
        ck_assert_int_eq(at_least[k + 1], (int)(accept[k] * DRAWS + 0.5));
}
END_TEST

int main(void)
{
    Suite *s = suite_create("base/drawn");
    TCase *c = tcase_create("drawn");
    tcase_add_test(c, what_was_written);
    tcase_add_test(c, what_is_none);
    tcase_add_test(c, characters);
    tcase_add_test(c, how_often_drafts_stand);
    suite_add_tcase(s, c);
    return run_suite(s);
}
