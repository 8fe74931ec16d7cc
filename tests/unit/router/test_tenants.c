/* The file of keys: what is read, what is refused and why; whose key it is; the two buckets of an account. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kvstore/domain.h"
#include "router/core/tenants.h"
#include "tests/unit/run_suite.h"

/* SHA-256 of "alpha" and "beta". */
#define ALPHA "8ed3f6ad685b959ead7022518e1af76cd816f8e8ec7ccdda1ed4018e8f2223f8"
#define BETA "f44e64e75f3948e9f73f8dfa94721c4ce8cbb4f265c4790c702b2d41cfbf2753"
static const uint64_t S = 1000000000ull;

static char path[] = "/tmp/tenantsXXXXXX";
static sl_tenants t;
static sl_err err;

static void setup(void)
{
    memcpy(path + sizeof path - 7, "XXXXXX", 6);
    int fd = mkstemp(path);
    ck_assert_int_ge(fd, 0);
    close(fd);
    err.text[0] = 0;
}

static void teardown(void)
{
    sl_tenants_free(&t);
    unlink(path);
}

static sl_status load(const char *text)
{
    FILE *f = fopen(path, "w");
    fputs(text, f);
    fclose(f);
    return sl_tenants_load(path, &t, &err);
}

START_TEST(lines)
{
    ck_assert_int_eq(load("# who may call\n\na sha256=" ALPHA " weight=3 requests_per_minute=60 admin\n"
                          "b-2 tokens_per_minute=1000 concurrency=2 sha256=" BETA),
                     SL_OK);
    ck_assert_uint_eq(t.n, 2);
    const sl_tenant *a = sl_tenants_of_key(&t, "alpha"), *b = sl_tenants_of_key(&t, "beta");
    ck_assert(a && a == sl_tenants_find(&t, "a") && a->weight == 3 && a->requests_per_minute == 60 &&
              a->admin);
    ck_assert(b && b == sl_tenants_find(&t, "b-2") && b->weight == 1 && b->tokens_per_minute == 1000 &&
              b->concurrency == 2 && !b->admin);
    ck_assert_ptr_null(sl_tenants_of_key(&t, "gamma"));
    ck_assert_ptr_null(sl_tenants_of_key(&t, ""));
    ck_assert_ptr_null(sl_tenants_find(&t, "c"));
}
END_TEST

START_TEST(wrong_lines_name_the_line)
{
    static const char *const wrong[] = {
        "a\n",
        "a sha256=12\n",
        "a sha256=" ALPHA " weight=0\n",
        "a sha256=" ALPHA " weight=-1\n",
        "a sha256=" ALPHA " colour=2\n",
        "a.b sha256=" ALPHA "\n",
        "a sha256=" ALPHA "\na sha256=" BETA "\n",
        "a sha256=" ALPHA "\nb sha256=" ALPHA "\n",
    };
    for (size_t i = 0; i < SL_COUNT(wrong); i++) {
        ck_assert_int_eq(load(wrong[i]), SL_ERR_INVALID);
        ck_assert_msg(strstr(err.text, path) && strstr(err.text, i < 6 ? ":1:" : ":2:"), "%s", err.text);
        ck_assert_uint_eq(t.n, 0);
    }
    ck_assert_int_eq(sl_tenants_load("/no/such/file", &t, &err), SL_ERR_IO);
    /* the text of the error is logged */
    ck_assert_int_eq(load("a sk-the-key-itself admin\n"), SL_ERR_INVALID);
    ck_assert_msg(strstr(err.text, "word 2") && !strstr(err.text, "sk-"), "%s", err.text);
    ck_assert_int_eq(load("a sha256=" ALPHA " c2stdGhlLWtleQ==\n"), SL_ERR_INVALID);
    ck_assert_msg(strstr(err.text, "word 3") && !strstr(err.text, "c2st"), "%s", err.text);
}
END_TEST

static sl_status take(sl_account *a, const sl_tenant *who, uint32_t n, uint64_t tokens, uint64_t now,
                      uint32_t *retry)
{
    return sl_account_take(a, who, n, tokens, 0, now, retry, &err);
}

START_TEST(buckets)
{
    sl_tenant who = {.requests_per_minute = 60, .tokens_per_minute = 6000};
    sl_account a = {0};
    uint32_t retry = 0;
    ck_assert_int_eq(take(&a, &who, 61, 10, S, &retry), SL_ERR_INVALID);
    ck_assert_int_eq(take(&a, &who, 1, 6001, S, &retry), SL_ERR_INVALID);
    ck_assert_int_eq(take(&a, &who, 1, 6000, S, &retry), SL_OK);
    ck_assert_int_eq(take(&a, &who, 1, 3000, S, &retry), SL_ERR_EXHAUSTED); /* 100 tokens a second */
    ck_assert_uint_eq(retry, 31);
    ck_assert_int_eq(take(&a, &who, 1, 3000, 32 * S, &retry), SL_OK);
    a.tokens -= 1000; /* output */
    ck_assert_int_eq(take(&a, &who, 1, 100, 33 * S, &retry), SL_ERR_EXHAUSTED);
    ck_assert_int_eq(take(&a, &who, 60, 100, 60 * S, &retry), SL_OK);
    ck_assert_int_eq(take(&a, &who, 1, 1, 60 * S, &retry), SL_ERR_EXHAUSTED);
    ck_assert_uint_le(retry, 2);
    sl_tenant few = {.concurrency = 2};
    ck_assert_int_eq(sl_account_take(&a, &few, 3, 1, 0, S, &retry, &err), SL_ERR_INVALID);
    ck_assert_int_eq(sl_account_take(&a, &few, 1, 1, 2, S, &retry, &err), SL_ERR_EXHAUSTED);
    ck_assert_int_eq(sl_account_take(&a, &few, 1, 1, 1, S, &retry, &err), SL_OK);
}
END_TEST

/* The number that workers are told: the first bytes of SHA-256, so it is the same in every router. */
START_TEST(the_number_follows_from_the_name)
{
    ck_assert_uint_eq(sl_tenant_id("acme"), 0xa048c187ad332b82u);
    ck_assert_uint_ne(sl_tenant_id("acme2"), sl_tenant_id("acme"));
    ck_assert_uint_ne(sl_tenant_id(""), 0);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("router/tenants");
    TCase *c = tcase_create("all");
    tcase_add_checked_fixture(c, setup, teardown);
    tcase_add_test(c, lines);
    tcase_add_test(c, wrong_lines_name_the_line);
    tcase_add_test(c, buckets);
    tcase_add_test(c, the_number_follows_from_the_name);
    suite_add_tcase(s, c);
    return run_suite(s);
}
