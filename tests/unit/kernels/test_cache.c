/* Registries of kernels/cache.h: every name is found, is the name of its number, and nothing else is found. */
#include <check.h>
#include <stdlib.h>

#include "kernels/cache.h"
#include "tests/unit/run_suite.h"

START_TEST(row_formats)
{
    int n = 0;
    for (const char *const *name = sl_row_format_names(); *name; name++, n++) {
        const sl_row_format_desc *d = sl_row_format_find(*name);
        ck_assert(d && d->description && d->format == (sl_row_format)n);
        ck_assert_str_eq(sl_row_format_name(d->format), *name);
    }
    ck_assert_int_eq(n, SL_ROW_GQA_FP8 + 1);
    ck_assert_ptr_null(sl_row_format_find("mla_fp4"));
    ck_assert_ptr_null(sl_row_format_find(NULL));
    ck_assert_str_eq(sl_row_format_name((sl_row_format)99), "?");
}
END_TEST

START_TEST(index_formats)
{
    int n = 0;
    for (const char *const *name = sl_index_format_names(); *name; name++, n++) {
        const sl_index_format_desc *d = sl_index_format_find(*name);
        ck_assert(d && d->description && d->format == (sl_index_format)n);
        ck_assert_str_eq(sl_index_format_name(d->format), *name);
    }
    ck_assert_int_eq(n, SL_INDEX_OFFICIAL + 1);
    ck_assert_ptr_null(sl_index_format_find(""));
}
END_TEST

START_TEST(evict_policies)
{
    int n = 0;
    for (const char *const *name = sl_evict_policy_names(); *name; name++, n++) {
        const sl_evict_policy_desc *d = sl_evict_policy_find(*name);
        ck_assert(d && d->description && d->policy == (sl_evict_policy)n);
        ck_assert_str_eq(sl_evict_policy_name(d->policy), *name);
    }
    ck_assert_int_eq(n, SL_EVICT_CLOCK + 1);
    ck_assert_ptr_null(sl_evict_policy_find("fifo"));
}
END_TEST

int main(void)
{
    Suite *s = suite_create("cache");
    TCase *t = tcase_create("registries");
    tcase_add_test(t, row_formats);
    tcase_add_test(t, index_formats);
    tcase_add_test(t, evict_policies);
    suite_add_tcase(s, t);
    return run_suite(s);
}
