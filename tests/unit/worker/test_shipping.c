/* The registry of cluster.shipping: its names, "auto", and what each entry means for the two roles. */
#include "tests/unit/run_suite.h"
#include "worker/shipping.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

START_TEST(names_are_found)
{
    const sl_shipping *s = NULL;
    sl_err err = {0};
    int n = 0;
    for (const char *const *name = sl_shipping_names(); *name; name++, n++) {
        ck_assert_int_eq(sl_shipping_choose(*name, &s, &err), SL_OK);
        ck_assert_ptr_eq(s, sl_shipping_find(*name));
        ck_assert_str_eq(s->name, *name);
        ck_assert(s->doc[0] != '\0');
    }
    ck_assert_int_eq(n, 3);
    ck_assert_int_eq(sl_shipping_choose("auto", &s, &err), SL_OK);
    ck_assert_ptr_null(s);
    ck_assert_int_eq(sl_shipping_choose("pigeon", &s, &err), SL_ERR_NOT_FOUND);
    ck_assert_ptr_nonnull(strstr(err.text, "cluster.shipping"));
    ck_assert_ptr_null(sl_shipping_find(NULL));
}
END_TEST

START_TEST(auto_takes_direct_and_staging)
{
    ck_assert(sl_shipping_allows(NULL, &sl_shipping_direct));
    ck_assert(sl_shipping_allows(NULL, &sl_shipping_staging));
    ck_assert(!sl_shipping_allows(NULL, &sl_shipping_gpu));
    ck_assert(sl_shipping_allows(&sl_shipping_gpu, &sl_shipping_gpu));
    ck_assert(!sl_shipping_allows(&sl_shipping_gpu, &sl_shipping_staging));
}
END_TEST

START_TEST(stores_are_shared_for_direct)
{
    ck_assert(sl_shipping_shares_store(NULL));
    ck_assert(sl_shipping_shares_store(&sl_shipping_direct));
    ck_assert(!sl_shipping_shares_store(&sl_shipping_staging));
    ck_assert(!sl_shipping_shares_store(&sl_shipping_gpu));
}
END_TEST

int main(void)
{
    Suite *s = suite_create("shipping");
    TCase *t = tcase_create("registry");
    tcase_add_test(t, names_are_found);
    tcase_add_test(t, auto_takes_direct_and_staging);
    tcase_add_test(t, stores_are_shared_for_direct);
    suite_add_tcase(s, t);
    return run_suite(s);
}
