/* CRC32C against its published check value, chaining properties of page keys. */
#include <string.h>

#include "base/hash.h"
#include "tests/unit/run_suite.h"

START_TEST(crc_known_value)
{
    ck_assert_uint_eq(sl_crc32c(0, "123456789", 9), 0xE3069283u);
    ck_assert_uint_eq(sl_crc32c(0, "", 0), 0);
    unsigned char zeros[32] = {0};
    ck_assert_uint_eq(sl_crc32c(0, zeros, sizeof zeros), 0x8A9136AAu);
}
END_TEST

START_TEST(crc_continues)
{
    uint32_t crc = sl_crc32c(0, "1234", 4);
    ck_assert_uint_eq(sl_crc32c(crc, "56789", 5), 0xE3069283u);
}
END_TEST

START_TEST(chain_depends_on_prefix_and_bytes)
{
    sl_key zero = {0}, a = sl_hash_chain(zero, "abc", 3), b = sl_hash_chain(zero, "abd", 3);
    ck_assert(!sl_key_eq(a, b));
    ck_assert(sl_key_eq(a, sl_hash_chain(zero, "abc", 3)));
    ck_assert(!sl_key_eq(sl_hash_chain(a, "x", 1), sl_hash_chain(b, "x", 1)));
    ck_assert(!sl_key_eq(sl_hash_chain(zero, NULL, 0), zero));
}
END_TEST

START_TEST(random_differs)
{
    ck_assert(sl_random_u64() != sl_random_u64());
}
END_TEST

int main(void)
{
    Suite *s = suite_create("hash");
    TCase *t = tcase_create("hash");
    tcase_add_test(t, crc_known_value);
    tcase_add_test(t, crc_continues);
    tcase_add_test(t, chain_depends_on_prefix_and_bytes);
    tcase_add_test(t, random_differs);
    suite_add_tcase(s, t);
    return run_suite(s);
}
