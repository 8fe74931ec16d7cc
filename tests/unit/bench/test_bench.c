/* The benchmarks as commands of the `sluice` program: refused arguments, and the TTFT of a real cluster. */
#include <stdio.h>
#include <string.h>

#include "tests/unit/cli/program.h"

START_TEST(messages)
{
    fails("bench decode --contexts 256,x", 2, "bench decode: --contexts 256,x is not a list");
    fails("bench decode --batch 0", 2, "bench decode: --batch 0 is not a list");
    fails("bench decode --rows mla_fp", 2,
          "bench decode: --rows mla_fp is not a list of at most 8 names; there are: mla_f32,");
    fails("bench decode --batch 1,2,3,4,5,6,7,8,9", 2, "is not a list");
    fails("bench prefill --chunks 1", 2, "bench prefill: --chunks 1 is not a list");
    fails("bench prefill --contexts ,", 2,
          "bench prefill: --contexts , is not a list of at most 8 whole numbers from 0");
}
END_TEST

/* A real cluster of three processes answers what one process answers (the benchmark compares), and ships
 * rows. */
START_TEST(bench_ttft)
{
    fails("bench ttft --lengths 0", 1, "--lengths");
    fails("bench ttft --model tests/nowhere", 1, "nowhere");
    int status = run("bench ttft --lengths 200 --repeats 1", false);
    ck_assert_msg(status == 0, "status %d: %s%s", status, output, said());
    const char *row = strstr(output, "\n200,1,");
    ck_assert_msg(row != NULL, "%s", output);
    double v[6], bytes;
    ck_assert_int_eq(sscanf(row, " 200,1,%lf,%lf,%lf,%lf,%lf,%lf", &v[0], &v[1], &v[2], &v[3], &v[4], &bytes),
                     6);
    ck_assert(v[0] > 0 && v[1] > 0);
    ck_assert_msg(bytes > 200 * 2000, "%f bytes shipped", bytes);
}
END_TEST

int main(int argc, char **argv)
{
    Suite *s = suite_create("bench");
    TCase *c = tcase_create("bench");
    tcase_set_timeout(c, 120);
    tcase_add_test(c, messages);
#if !defined __SANITIZE_ADDRESS__ &&                                                                         \
    !defined __SANITIZE_THREAD__ /* clusters under sanitizers: end-to-end tests */
    tcase_add_test(c, bench_ttft);
#else
    (void)bench_ttft;
#endif
    suite_add_tcase(s, c);
    return program_main(argc, argv, s);
}
