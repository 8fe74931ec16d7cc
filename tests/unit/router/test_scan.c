/*
 * The pass over a message before it is unpacked: depth is bounded whatever the depth, malformed bytes are refused, and
 * the bytes that unpacking takes are counted.
 */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "router/grpc/rpc.h"
#include "tests/unit/run_suite.h"

/* google/protobuf/struct.pb-c.h, which only the router's own build sees. */
extern const ProtobufCMessageDescriptor google__protobuf__value__descriptor;
#define VALUE (&google__protobuf__value__descriptor)

enum { SPACE = 1 << 20, LIST_VALUE = 6 << 3 | 2, VALUES = 1 << 3 | 2 };
static uint8_t space[SPACE];

/* A length-delimited field before the bytes [*begin, SPACE): the buffer is filled from its end. */
static void enclose(size_t *begin, uint8_t tag)
{
    uint8_t head[8];
    size_t n = 0, len = SPACE - *begin;
    head[n++] = tag;
    do {
        head[n++] = (uint8_t)((len & 127) | (len > 127 ? 128 : 0));
        len >>= 7;
    } while (len);
    *begin -= n;
    memcpy(space + *begin, head, n);
}

/* Lists in lists. */
static size_t nested(unsigned depth)
{
    size_t begin = SPACE;
    for (unsigned i = 0; i < depth; i++) {
        enclose(&begin, VALUES);
        enclose(&begin, LIST_VALUE);
    }
    return begin;
}

START_TEST(depth_is_limited)
{
    static const struct {
        unsigned depth;
        sl_status st;
    } cases[] = {{0, SL_OK},
                 {1, SL_OK},
                 {49, SL_OK},
                 {50, SL_ERR_INVALID},
                 {200, SL_ERR_INVALID},
                 {3000, SL_ERR_INVALID},
                 {60000, SL_ERR_INVALID}};
    for (size_t i = 0; i < SL_COUNT(cases); i++) {
        size_t begin = nested(cases[i].depth);
        uint64_t bytes = 0;
        sl_err err = {""};
        sl_status st = rpc_scan(VALUE, space + begin, SPACE - begin, &bytes, &err);
        ck_assert_msg(st == cases[i].st, "depth %u: %s %s", cases[i].depth, sl_status_name(st), err.text);
        if (!st) {
            ProtobufCMessage *m = protobuf_c_message_unpack(VALUE, NULL, SPACE - begin, space + begin);
            ck_assert_ptr_nonnull(m);
            protobuf_c_message_free_unpacked(m, NULL);
        }
    }
}
END_TEST

START_TEST(malformed_bytes_are_refused)
{
    static const struct {
        uint8_t bytes[12];
        size_t n;
    } cases[] = {{{0x80}, 1},             /* half a tag */
                 {{LIST_VALUE, 5, 0}, 3}, /* longer than the message */
                 {{LIST_VALUE}, 1},       /* no length */
                 {{LIST_VALUE, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1}, 11},
                 {{0x09, 1, 2}, 3},                /* half a fixed64 */
                 {{0x0b, 0x0c}, 2},                /* a group */
                 {{LIST_VALUE, 2, VALUES, 1}, 4}}; /* a part longer than its whole */
    for (size_t i = 0; i < SL_COUNT(cases); i++) {
        uint64_t bytes;
        sl_err err = {""};
        ck_assert_msg(rpc_scan(VALUE, cases[i].bytes, cases[i].n, &bytes, &err) == SL_ERR_INVALID, "case %zu",
                      i);
    }
}
END_TEST

START_TEST(bytes_are_counted)
{
    uint64_t none, many;
    sl_err err = {""};
    ck_assert_int_eq(rpc_scan(VALUE, space, 0, &none, &err), SL_OK);
    size_t begin = SPACE;
    for (int i = 0; i < 1000; i++) { /* 1,000 empty values of two bytes each */
        space[--begin] = 0;
        space[--begin] = VALUES;
    }
    enclose(&begin, LIST_VALUE);
    ck_assert_int_eq(rpc_scan(VALUE, space + begin, SPACE - begin, &many, &err), SL_OK);
    ck_assert_uint_gt(many, none + 1000 * VALUE->sizeof_message);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("scan");
    TCase *t = tcase_create("scan");
    tcase_add_test(t, depth_is_limited);
    tcase_add_test(t, malformed_bytes_are_refused);
    tcase_add_test(t, bytes_are_counted);
    suite_add_tcase(s, t);
    return run_suite(s);
}
