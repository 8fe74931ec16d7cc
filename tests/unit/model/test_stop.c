/*
 * Stop strings: wherever the text is cut, the emitted text is the text before the match that ends first, and no text is
 * held back longer than necessary.
 */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/stop.h"
#include "tests/unit/run_suite.h"

static const struct {
    const char *strings[4];
    const char *text, *out; /* out: what is emitted in all */
    int found;              /* index, or -1 */
} cases[] = {
    {{"STOP"}, "hello STOP world", "hello ", 0},
    {{"STOP"}, "hello STO", "hello STO", -1},
    {{"STOP"}, "STOP", "", 0},
    {{"aab"}, "aaaab", "aa", 0},
    {{"abab"}, "abaabab!", "aba", 0},
    {{"\n\n", "END"}, "one\ntwo\n\nEND", "one\ntwo", 0},
    {{"\n\n", "END"}, "one END\n\n", "one ", 1},
    {{"abcd", "bc"}, "xabcd", "xa", 1}, /* "bc" is complete first */
    {{"bc", "abc"}, "xabc", "x", 1},    /* both end together: the longer one */
    {{"é"}, "caf\xC3\xA8 caf\xC3\xA9!", "caf\xC3\xA8 caf", 0},
    {{"。"}, "你好。再见", "你好", 0},
    {{"</s>"}, "a < b </ s> </s", "a < b </ s> </s", -1},
    {{NULL}, "no strings at all", "no strings at all", -1},
    {{"x"}, "", "", -1},
};

static size_t count(size_t i)
{
    size_t n = 0;
    while (n < 4 && cases[i].strings[n])
        n++;
    return n;
}

static sl_stop *make(size_t i, bool include)
{
    sl_stop *s;
    sl_err err = {{0}};
    ck_assert_msg(sl_stop_create(cases[i].strings, count(i), include, &s, &err) == SL_OK, "%s", err.text);
    return s;
}

/* Feeds text in pieces of `step` bytes; returns what was emitted (static) and the match. */
static const char *run(sl_stop *s, const char *text, size_t step, int *found)
{
    static char out[256];
    size_t n = 0, len = strlen(text), n_emit;
    const char *emit;
    *found = -1;
    for (size_t at = 0; at < len; at += step) {
        int got = sl_stop_feed(s, text + at, len - at < step ? len - at : step, &emit, &n_emit);
        ck_assert_int_ge(got, -1);
        if (got >= 0) {
            ck_assert_int_eq(*found, -1);
            *found = got;
        }
        memcpy(out + n, emit, n_emit);
        n += n_emit;
    }
    sl_stop_finish(s, &emit, &n_emit);
    memcpy(out + n, emit, n_emit);
    out[n + n_emit] = '\0';
    return out;
}

START_TEST(any_cut_gives_the_same)
{
    for (size_t step = 1; step <= 8; step++) {
        int found;
        sl_stop *s = make((size_t)_i, false);
        ck_assert_str_eq(run(s, cases[_i].text, step, &found), cases[_i].out);
        ck_assert_int_eq(found, cases[_i].found);
        ck_assert_uint_eq(sl_stop_held(s), 0);
        sl_stop_destroy(s);
    }
}
END_TEST

START_TEST(include_emits_the_match)
{
    for (size_t step = 1; step <= 5; step++) {
        int found;
        sl_stop *s = make(0, true);
        ck_assert_str_eq(run(s, "hello STOP world", step, &found), "hello STOP");
        ck_assert_int_eq(found, 0);
        sl_stop_destroy(s);
    }
}
END_TEST

START_TEST(holds_back_only_what_may_match)
{
    static const char *const strings[] = {"<end>", "\xE2\x82\xAC"};
    sl_stop *s;
    const char *emit;
    size_t n;
    ck_assert_int_eq(sl_stop_create(strings, 2, false, &s, NULL), SL_OK);
    ck_assert_int_eq(sl_stop_feed(s, "abc", 3, &emit, &n), -1);
    ck_assert_uint_eq(n, 3);
    ck_assert_int_eq(sl_stop_feed(s, "d<en", 4, &emit, &n), -1);
    ck_assert_uint_eq(n, 1);
    ck_assert_uint_eq(sl_stop_held(s), 3);
    ck_assert_int_eq(sl_stop_feed(s, "<", 1, &emit, &n), -1);
    ck_assert_uint_eq(n, 3);
    ck_assert(memcmp(emit, "<en", 3) == 0);
    /* shares two bytes with the euro sign */
    ck_assert_int_eq(sl_stop_feed(s, "\xE2\x82\xAD", 3, &emit, &n), -1);
    ck_assert_uint_eq(n, 4);
    ck_assert_int_eq(sl_stop_feed(s, "\xE2\x82\xAC", 3, &emit, &n), 1);
    ck_assert_uint_eq(n, 0);
    ck_assert_int_eq(sl_stop_feed(s, "more", 4, &emit, &n), -1); /* ignored */
    ck_assert_uint_eq(n, 0);
    sl_stop_destroy(s);
    sl_stop_destroy(NULL);
}
END_TEST

/* Random texts over a small alphabet against a plain search of the whole text. */
START_TEST(random_texts_match_a_plain_search)
{
    uint64_t x = 99;
    for (int round = 0; round < 20000; round++) {
        char text[64], pat[3][6];
        const char *strings[3];
        x = x * 6364136223846793005ull + 1442695040888963407ull;
        size_t len = x >> 59, n = 1 + (x >> 40) % 3;
        for (size_t i = 0; i < len; i++) {
            x = x * 6364136223846793005ull + 1442695040888963407ull;
            text[i] = "ab"[x >> 63];
        }
        text[len] = '\0';
        for (size_t k = 0; k < n; k++) {
            x = x * 6364136223846793005ull + 1442695040888963407ull;
            size_t m = 1 + (x >> 33) % 5;
            for (size_t i = 0; i < m; i++)
                pat[k][i] = "ab"[x >> (40 + i) & 1];
            pat[k][m] = '\0';
            strings[k] = pat[k];
        }
        size_t best_end = SIZE_MAX, best_start = 0;
        for (size_t k = 0; k < n; k++) {
            const char *hit = strstr(text, pat[k]);
            size_t from = hit ? (size_t)(hit - text) : 0, to = from + strlen(pat[k]);
            if (hit && (to < best_end || (to == best_end && from < best_start))) {
                best_end = to;
                best_start = from;
            }
        }
        sl_stop *s;
        int found;
        ck_assert_int_eq(sl_stop_create(strings, n, false, &s, NULL), SL_OK);
        const char *out = run(s, text, 1 + (x >> 50) % 4, &found);
        ck_assert_int_eq(found >= 0, best_end != SIZE_MAX);
        ck_assert_uint_eq(strlen(out), best_end != SIZE_MAX ? best_start : len);
        ck_assert(memcmp(out, text, strlen(out)) == 0);
        sl_stop_destroy(s);
    }
}
END_TEST

START_TEST(bad_strings_are_named)
{
    static const char *const empty[] = {"ok", ""};
    static char big[SL_STOP_LEN_MAX + 2];
    memset(big, 'x', SL_STOP_LEN_MAX + 1);
    const char *const large[] = {big};
    const char *many[SL_STOP_MAX + 1];
    for (size_t i = 0; i <= SL_STOP_MAX; i++)
        many[i] = "s";
    sl_stop *s = NULL;
    sl_err err = {{0}};
    ck_assert_int_eq(sl_stop_create(empty, 2, false, &s, &err), SL_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(err.text, "stop[1]"));
    ck_assert_int_eq(sl_stop_create(large, 1, false, &s, &err), SL_ERR_INVALID);
    ck_assert_int_eq(sl_stop_create(many, SL_STOP_MAX + 1, false, &s, &err), SL_ERR_TOO_LARGE);
    ck_assert_ptr_null(s);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("stop");
    TCase *c = tcase_create("stop");
    tcase_set_timeout(c, 60);
    tcase_add_loop_test(c, any_cut_gives_the_same, 0, (int)SL_COUNT(cases));
    tcase_add_test(c, include_emits_the_match);
    tcase_add_test(c, holds_back_only_what_may_match);
    tcase_add_test(c, random_texts_match_a_plain_search);
    tcase_add_test(c, bad_strings_are_named);
    suite_add_tcase(s, c);
    return run_suite(s);
}
