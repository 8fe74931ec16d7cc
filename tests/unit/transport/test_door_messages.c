/*
 * The door's messages: what is written is read back, damaged and truncated bytes are never taken for a message, and
 * another version is recognized.
 */
#include <string.h>

#include "base/log.h"
#include "tests/unit/run_suite.h"
#include "tests/unit/transport/door_rig.h"

START_TEST(message_round_trip)
{
    uint8_t buf[UX_DOOR_MAX];
    ux_door_msg m = {.version = UX_DOOR_VERSION, .kind = UX_DOOR_ANSWER, .status = 3, .port = 65535}, got;
    const char *why = NULL;
    memset(m.text, 'x', sizeof m.text - 1);
    memset(m.nonce, 1, sizeof m.nonce);
    memset(m.proof, 2, sizeof m.proof);
    size_t n = ux_door_write(&m, buf);
    ck_assert_uint_eq(n, UX_DOOR_MAX);
    ck_assert_uint_eq(n, 212); /* docs/protocol.md says so, and other versions rely on it */
    ck_assert_int_eq(ux_door_parse(buf, n, &got, &why), UX_DOOR_WHOLE);
    ck_assert_uint_eq(got.kind, m.kind);
    ck_assert_uint_eq(got.status, 3);
    ck_assert_uint_eq(got.port, 65535);
    ck_assert_mem_eq(got.nonce, m.nonce, sizeof m.nonce);
    ck_assert_mem_eq(got.proof, m.proof, sizeof m.proof);
    ck_assert_str_eq(got.text, m.text);
}
END_TEST

START_TEST(message_damaged)
{
    uint8_t buf[UX_DOOR_MAX + 1] = {0}, bad[UX_DOOR_MAX + 1];
    ux_door_msg got;
    const char *why;
    size_t n = door_knock_sample(buf);
    for (size_t cut = 0; cut < n; cut++)
        ck_assert_int_eq(ux_door_parse(buf, cut, &got, &why), UX_DOOR_MORE);
    ck_assert_int_eq(ux_door_parse(buf, n + 1, &got, &why), UX_DOOR_FOREIGN);
    ck_assert_str_eq(why, "bytes after the greeting");
    /* After an error that enlarges a length, the parser waits for more bytes. */
    for (size_t bit = 0; bit < 8 * n; bit++) {
        memcpy(bad, buf, n);
        bad[bit / 8] ^= (uint8_t)(1u << bit % 8);
        ck_assert_int_ne(ux_door_parse(bad, n, &got, &why), UX_DOOR_WHOLE);
    }
    ck_assert_int_eq(ux_door_parse((const uint8_t *)"G", 1, &got, &why), UX_DOOR_FOREIGN);
    ck_assert_str_eq(why, "not the greeting of a sluice process");
    memcpy(bad, buf, n);
    memset(bad + 12, 0xff, 4);
    ck_assert_int_eq(ux_door_parse(bad, n, &got, &why), UX_DOOR_FOREIGN);
    ck_assert_str_eq(why, "a length out of bounds");
}
END_TEST

START_TEST(message_of_another_version)
{
    uint8_t buf[UX_DOOR_MAX];
    ux_door_msg m = {.version = UX_DOOR_VERSION + 1, .kind = UX_DOOR_KNOCK}, got;
    const char *why;
    size_t n = ux_door_write(&m, buf);
    ck_assert_int_eq(ux_door_parse(buf, n, &got, &why), UX_DOOR_WHOLE);
    ck_assert_uint_eq(got.version, UX_DOOR_VERSION + 1);
}
END_TEST

int main(void)
{
    sl_log_init(SL_LOG_WARN, false, "test");
    Suite *s = suite_create("transport_door_messages");
    TCase *t = tcase_create("messages");
    tcase_set_timeout(t, 120);
    tcase_add_test(t, message_round_trip);
    tcase_add_test(t, message_damaged);
    tcase_add_test(t, message_of_another_version);
    suite_add_tcase(s, t);
    return run_suite(s);
}
