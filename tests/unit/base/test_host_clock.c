/* Times of other processes: which of them mean something here. */
#include <check.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/host_clock.h"
#include "tests/unit/run_suite.h"

static const uint64_t S = 1000000000ull;

START_TEST(processes_of_a_host_share_a_number)
{
    int pipe_of[2], status;
    uint64_t theirs = 0;
    const uint64_t own = sl_host_clock();
    ck_assert_uint_ne(own, 0);
    ck_assert_int_eq(pipe(pipe_of), 0);
    const pid_t child = fork();
    if (child == 0) {
        const uint64_t its = sl_host_clock();
        _exit(write(pipe_of[1], &its, sizeof its) == sizeof its ? 0 : 1);
    }
    ck_assert_int_eq(read(pipe_of[0], &theirs, sizeof theirs), sizeof theirs);
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_uint_eq(theirs, own);
    close(pipe_of[0]);
    close(pipe_of[1]);
}
END_TEST

START_TEST(only_times_of_this_clock_count)
{
    const uint64_t own = sl_host_clock(), now = 1000 * S;
    static const struct {
        uint64_t ns, want;
    } times[] = {{1000 * S, 1000 * S},
                 {1000 * S + 1, 0},
                 {999 * S, 999 * S},
                 {941 * S, 941 * S},
                 {940 * S, 0},
                 {1, 0},
                 {0, 0},
                 {UINT64_MAX, 0}};
    for (size_t i = 0; i < sizeof times / sizeof times[0]; i++) {
        ck_assert_uint_eq(sl_stamp_ns(&(sl_stamp){own, times[i].ns}, now), times[i].want);
        ck_assert_uint_eq(sl_stamp_ns(&(sl_stamp){own ^ 1, times[i].ns}, now), 0);
        ck_assert_uint_eq(sl_stamp_ns(&(sl_stamp){0, times[i].ns}, now), 0);
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("host_clock");
    TCase *t = tcase_create("host_clock");
    tcase_add_test(t, processes_of_a_host_share_a_number);
    tcase_add_test(t, only_times_of_this_clock_count);
    suite_add_tcase(s, t);
    return run_suite(s);
}
