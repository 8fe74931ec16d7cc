/* The cipher of messages: what was sealed opens once, in its order, and nothing else opens. */
#include <string.h>

#include "base/status.h"
#include "tests/unit/run_suite.h"
#include "transport/cipher.h"

enum { LONGEST = 4000 };

static const uint8_t key[SL_CIPHER_KEY] = "a key of this test, of 32 bytes";
static uint8_t text[LONGEST], sealed[LONGEST + SL_CIPHER_TAG], opened[LONGEST];
static sl_cipher *from, *to;

static void setup(void)
{
    for (int i = 0; i < LONGEST; i++)
        text[i] = (uint8_t)(i * 7);
    from = sl_cipher_new(key, true);
    to = sl_cipher_new(key, false);
    ck_assert(from && to);
}

static void teardown(void)
{
    sl_cipher_free(from);
    sl_cipher_free(to);
}

static bool pass(size_t n, size_t received)
{
    ck_assert(sl_cipher_seal(from, "head", 4, text, n, sealed));
    return sl_cipher_open(to, "head", 4, sealed, received, opened);
}

START_TEST(what_was_sealed_opens)
{
    static const size_t lengths[] = {0, 1, 15, 16, 17, 1000, LONGEST};
    for (size_t i = 0; i < SL_COUNT(lengths); i++) {
        memset(opened, 0, sizeof opened);
        ck_assert(pass(lengths[i], lengths[i] + SL_CIPHER_TAG));
        ck_assert_int_eq(memcmp(opened, text, lengths[i]), 0);
        ck_assert(lengths[i] < 15 || memmem(sealed, lengths[i], text, 15) == NULL);
    }
}
END_TEST

/* The same text twice does not give the same bytes, and the first message does not open in the place of the second. */
START_TEST(a_repeated_message_does_not_open)
{
    uint8_t first[100 + SL_CIPHER_TAG];
    ck_assert(pass(100, sizeof first));
    memcpy(first, sealed, sizeof first);
    ck_assert(sl_cipher_seal(from, "head", 4, text, 100, sealed));
    ck_assert_int_ne(memcmp(first, sealed, 100), 0);
    ck_assert(!sl_cipher_open(to, "head", 4, first, sizeof first, opened));
}
END_TEST

START_TEST(a_missing_message_is_noticed)
{
    ck_assert(sl_cipher_seal(from, "head", 4, text, 100, sealed));
    ck_assert(!pass(100, 100 + SL_CIPHER_TAG));
}
END_TEST

/* Every bit of the message, of its tag and of the open bytes counts; so does its length. */
START_TEST(a_changed_message_does_not_open)
{
    enum { N = 5, ALL = N + SL_CIPHER_TAG };
    for (int bit = 0; bit < 8 * (ALL + 4); bit++) {
        char head[] = "head";
        teardown();
        setup();
        ck_assert(sl_cipher_seal(from, head, 4, text, N, sealed));
        uint8_t *at = bit < 8 * ALL ? sealed : (uint8_t *)head - ALL;
        at[bit / 8] ^= (uint8_t)(1 << bit % 8);
        ck_assert_msg(!sl_cipher_open(to, head, 4, sealed, ALL, opened), "bit %d", bit);
    }
    for (size_t n = 0; n < ALL; n++) {
        teardown();
        setup();
        ck_assert_msg(!pass(N, n), "%zu bytes", n);
    }
}
END_TEST

START_TEST(another_key_does_not_open)
{
    uint8_t other[SL_CIPHER_KEY] = {0};
    sl_cipher_free(to);
    to = sl_cipher_new(other, false);
    ck_assert(!pass(100, 100 + SL_CIPHER_TAG));
}
END_TEST

int main(void)
{
    Suite *s = suite_create("transport_cipher");
    TCase *t = tcase_create("cipher");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, what_was_sealed_opens);
    tcase_add_test(t, a_repeated_message_does_not_open);
    tcase_add_test(t, a_missing_message_is_noticed);
    tcase_add_test(t, a_changed_message_does_not_open);
    tcase_add_test(t, another_key_does_not_open);
    suite_add_tcase(s, t);
    return run_suite(s);
}
