/* The word that was probably meant: every word with one mistake finds itself again, and what is like no word finds none. */
#include <check.h>
#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "base/near.h"
#include "base/status.h"
#include "tests/unit/run_suite.h"

static const char *const words[] = {"model",  "cluster", "backend", "router",   "kvstore",
                                    "decode", "prefill", "metrics", "simulate", "calibrate"};

static const char *nearest(const char *wrong)
{
    sl_near near = sl_near_begin(wrong);
    for (size_t i = 0; i < SL_COUNT(words); i++)
        sl_near_try(&near, words[i]);
    return near.best;
}

static void finds(const char *wrong, const char *word)
{
    const char *found = nearest(wrong);
    ck_assert_msg(found && strcmp(found, word) == 0, "%s: found %s, want %s", wrong, found ? found : "none",
                  word);
}

/* Every letter of every word is replaced, left out, doubled, and exchanged with the next one. */
START_TEST(one_mistake)
{
    for (size_t w = 0; w < SL_COUNT(words); w++) {
        const char *word = words[w];
        const size_t n = strlen(word);
        finds(word, word);
        for (size_t i = 0; i < n; i++) {
            char wrong[32];
            snprintf(wrong, sizeof wrong, "%s", word);
            wrong[i] = (char)toupper((unsigned char)wrong[i]);
            finds(wrong, word);
            wrong[i] = 'z';
            finds(wrong, word);
            snprintf(wrong, sizeof wrong, "%.*s%s", (int)i, word, word + i + 1);
            finds(wrong, word);
            snprintf(wrong, sizeof wrong, "%.*s%s", (int)i + 1, word, word + i);
            finds(wrong, word);
            if (i + 1 == n)
                continue;
            snprintf(wrong, sizeof wrong, "%s", word);
            wrong[i] = word[i + 1], wrong[i + 1] = word[i];
            finds(wrong, word);
        }
    }
}
END_TEST

START_TEST(like_no_word)
{
    char longer[400];
    memset(longer, 'm', sizeof longer);
    longer[sizeof longer - 1] = 0;
    ck_assert_ptr_null(nearest(""));
    ck_assert_ptr_null(nearest("xyz"));
    ck_assert_ptr_null(nearest("temperature"));
    ck_assert_ptr_null(nearest(longer));
    sl_near near = sl_near_begin("mo");
    sl_near_try(&near, longer);
    ck_assert_ptr_null(near.best);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("near");
    TCase *c = tcase_create("near");
    tcase_add_test(c, one_mistake);
    tcase_add_test(c, like_no_word);
    suite_add_tcase(s, c);
    return run_suite(s);
}
