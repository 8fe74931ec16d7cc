/* Status names, error texts and their context, cutting instead of overflowing, and the panic's message. */
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/status.h"
#include "tests/unit/run_suite.h"

START_TEST(names_are_distinct)
{
    const sl_status all[] = {SL_OK,
                             SL_INPROGRESS,
                             SL_AGAIN,
                             SL_ERR_INVALID,
                             SL_ERR_NOT_FOUND,
                             SL_ERR_TOO_LARGE,
                             SL_ERR_CANCELLED,
                             SL_ERR_DEADLINE,
                             SL_ERR_EXHAUSTED,
                             SL_ERR_UNSUPPORTED,
                             SL_ERR_CORRUPT,
                             SL_ERR_STALE,
                             SL_ERR_DENIED,
                             SL_ERR_DATA_LOSS,
                             SL_ERR_PEER,
                             SL_ERR_REFUSED,
                             SL_ERR_TIMEOUT,
                             SL_ERR_DEVICE,
                             SL_ERR_DEVICE_MEMORY,
                             SL_ERR_NO_MEMORY,
                             SL_ERR_IO,
                             SL_ERR_INTERNAL};
    for (size_t i = 0; i < SL_COUNT(all); i++) {
        ck_assert_str_ne(sl_status_name(all[i]), "unknown");
        for (size_t j = 0; j < i; j++)
            ck_assert_str_ne(sl_status_name(all[i]), sl_status_name(all[j]));
    }
    ck_assert_str_eq(sl_status_name((sl_status)-999), "unknown");
}
END_TEST

START_TEST(context_is_prepended)
{
    sl_err err = {0};
    ck_assert_int_eq(sl_fail(&err, SL_ERR_INVALID, "want %d, got %d", 3, 4), SL_ERR_INVALID);
    ck_assert_str_eq(err.text, "want 3, got 4");
    ck_assert_int_eq(sl_fail_in(&err, SL_ERR_INVALID, "config.json: %s", "n"), SL_ERR_INVALID);
    ck_assert_str_eq(err.text, "config.json: n: want 3, got 4");
    sl_err empty = {0};
    sl_fail_in(&empty, SL_ERR_IO, "only");
    ck_assert_str_eq(empty.text, "only");
    ck_assert_int_eq(sl_fail(NULL, SL_ERR_IO, "x"), SL_ERR_IO);
    ck_assert_int_eq(sl_fail_in(NULL, SL_ERR_IO, "x"), SL_ERR_IO);
}
END_TEST

START_TEST(an_unknown_name_lists_the_known_ones)
{
    sl_err err = {0};
    static const char *const names[] = {"page_first", "page_head", NULL}, *const none[] = {NULL};
    ck_assert_int_eq(sl_fail_unknown(&err, "kvstore.layout", "rows", names), SL_ERR_NOT_FOUND);
    ck_assert_str_eq(err.text, "kvstore.layout \"rows\" does not exist; there are: page_first, page_head");
    sl_fail_unknown(&err, "tier", NULL, none);
    ck_assert_str_eq(err.text, "tier \"\" does not exist; there are: ");
    const char *many[200] = {0}; /* more than the text holds */
    for (int i = 0; i < 199; i++)
        many[i] = "a_long_name";
    ck_assert_int_eq(sl_fail_unknown(&err, "x", "y", many), SL_ERR_NOT_FOUND);
    ck_assert_int_eq(sl_fail_unknown(NULL, "x", "y", names), SL_ERR_NOT_FOUND);
}
END_TEST

START_TEST(long_texts_are_cut)
{
    for (size_t n = 480; n < 530; n++) { /* around the size of the buffer */
        char big[600];
        memset(big, 'b', n);
        big[n] = '\0';
        sl_err err = {0};
        sl_fail(&err, SL_ERR_IO, "tail");
        sl_fail_in(&err, SL_ERR_IO, "%s", big);
        size_t len = strlen(err.text);
        ck_assert_uint_lt(len, sizeof err.text);
        ck_assert_uint_ge(len, n < 511 ? n : 511);
        sl_fail_in(&err, SL_ERR_IO, "front");
        ck_assert_int_eq(strncmp(err.text, "front: bbb", 10), 0);
        ck_assert_uint_lt(strlen(err.text), sizeof err.text);
    }
}
END_TEST

START_TEST(panic_names_the_place)
{
    int fds[2], status, one = 1;
    ck_assert_int_eq(pipe(fds), 0);
    pid_t pid = fork();
    if (pid == 0) {
        dup2(fds[1], STDERR_FILENO);
        SL_CHECK(one == 2, "one is %d", one);
        _exit(0);
    }
    close(fds[1]);
    char text[4096] = "";
    size_t len = 0;
    ssize_t n;
    while (len < sizeof text - 1 && (n = read(fds[0], text + len, sizeof text - 1 - len)) > 0)
        len += (size_t)n;
    waitpid(pid, &status, 0);
    close(fds[0]);
    ck_assert(WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT);
    ck_assert_ptr_nonnull(strstr(text, "test_status.c:"));
    ck_assert_msg(strstr(text, "one == 2 does not hold: one is 1"), "%s", text);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("status");
    TCase *t = tcase_create("status");
    tcase_add_test(t, names_are_distinct);
    tcase_add_test(t, context_is_prepended);
    tcase_add_test(t, an_unknown_name_lists_the_known_ones);
    tcase_add_test(t, long_texts_are_cut);
    tcase_add_test(t, panic_names_the_place);
    suite_add_tcase(s, t);
    return run_suite(s);
}
