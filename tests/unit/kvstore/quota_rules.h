/* Quotas for tests: rules whose tenants have small numbers instead of the hashes of their names. */
#ifndef SL_TESTS_UNIT_KVSTORE_QUOTA_RULES_H
#define SL_TESTS_UNIT_KVSTORE_QUOTA_RULES_H

#include "kvstore/quota.h"
#include "tests/unit/kvstore/test_kvstore.h"

/* Rules whose tenants have the numbers 1, 2, ... */
static inline sl_quota_opts rules(double share, double limit, int n, const char *const *texts)
{
    sl_quota_opts o = {.share = share, .limit = limit};
    sl_err err = {0};
    for (int i = 0; i < n; i++) {
        ck_assert_msg(sl_quota_add_rule(&o, texts[i], &err) == SL_OK, "%s", err.text);
        o.rules[i].tenant = (uint64_t)i + 1;
    }
    return o;
}
#define RULES(share, limit, ...)                                                                             \
    rules(share, limit, (int)(sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *)),                  \
          (const char *const[]){__VA_ARGS__})

#endif
