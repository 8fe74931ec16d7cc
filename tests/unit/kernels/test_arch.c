/* Which GPUs a build may run on. */
#include <check.h>
#include <string.h>

#include "kernels/arch.h"
#include "tests/unit/run_suite.h"

static const struct {
    const char *archs;
    int cc;
    bool runs;
} cases[] = {
    {"90a", 90, true},         {"90a", 80, false},        {"90a", 100, false},
    {"90a", 103, false},       {"90", 90, false},         {"80,90", 90, false},
    {"80", 80, true},          {"80", 86, true},          {"86", 80, false},
    {"80", 90, false},         {"80", 100, false},        {"100", 103, true},
    {"103", 100, false},       {"100a", 100, true},       {"100a", 103, false},
    {"100", 120, false},       {"80,90a,100", 80, true},  {"80,90a,100", 89, true},
    {"80,90a,100", 90, true},  {"80,90a,100", 100, true}, {"80,90a,100", 120, false},
    {"80,90a,100", 75, false}, {"", 90, false},           {"nonsense", 90, false},
    {"120", 121, true},        {"90a,", 80, false},
};

START_TEST(which_run)
{
    for (size_t i = 0; i < SL_COUNT(cases); i++)
        ck_assert_msg(sl_arch_runs(cases[i].archs, cases[i].cc) == cases[i].runs, "\"%s\" on %d",
                      cases[i].archs, cases[i].cc);
}
END_TEST

START_TEST(what_is_said)
{
    sl_err err = {0};
    ck_assert_int_eq(sl_arch_check("90a", 90, true, "NVIDIA H200", &err), SL_OK);
    ck_assert_int_eq(sl_arch_check("90a", 80, true, "NVIDIA A100", &err), SL_ERR_UNSUPPORTED);
    ck_assert_msg(
        strstr(err.text, "NVIDIA A100 has compute capability 8.0, this program was built for 90a only"), "%s",
        err.text);
    ck_assert_msg(strstr(err.text, "-DSL_CUDA_ARCHS=80") != NULL, "%s", err.text);
    ck_assert_int_eq(sl_arch_check("80", 90, false, "NVIDIA H200", &err), SL_ERR_UNSUPPORTED);
    ck_assert_msg(strstr(err.text, "-DSL_CUDA_ARCHS=90a") != NULL, "%s", err.text);
    /* the text says it fits, the driver says it does not: the driver is right */
    ck_assert_int_eq(sl_arch_check("90a", 90, false, "NVIDIA H200", &err), SL_ERR_UNSUPPORTED);
    ck_assert_msg(strstr(err.text, "the driver finds no code") != NULL, "%s", err.text);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("arch");
    TCase *t = tcase_create("arch");
    tcase_add_test(t, which_run);
    tcase_add_test(t, what_is_said);
    suite_add_tcase(s, t);
    return run_suite(s);
}
