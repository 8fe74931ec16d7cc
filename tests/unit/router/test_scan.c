/*
 * The pass over a message before it is unpacked: depth is bounded whatever the depth, malformed bytes are refused, and
 * the bytes that unpacking takes are counted: at least what the allocator is asked for, for messages that are made at random from the
 * descriptors of the calls.
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

/* ---- messages made from descriptors ---- */

extern const ProtobufCMessageDescriptor sglang__grpc__scheduler__generate_request__descriptor;

static uint32_t below(uint32_t n)
{
    static uint64_t rng = 88172645463325252ull;
    rng ^= rng << 13;
    rng ^= rng >> 7;
    rng ^= rng << 17;
    return (uint32_t)(rng >> 20) % n;
}

/* Written from the end, as everything in space. */
static void put_varint(size_t *begin, uint64_t v)
{
    uint8_t bytes[10];
    size_t n = 0;
    do {
        bytes[n++] = (uint8_t)((v & 127) | (v > 127 ? 128 : 0));
        v >>= 7;
    } while (v);
    *begin -= n;
    memcpy(space + *begin, bytes, n);
}

static void put_bytes(size_t *begin, size_t n)
{
    *begin -= n;
    memset(space + *begin, below(2) ? 1 : 'a', n); /* for a packed list, many elements of one byte */
}

static void put_message(size_t *begin, const ProtobufCMessageDescriptor *d, int depth);

/* A field with this number: contents of its own type, or of another one. d: of a message field, else NULL. */
static void put_field(size_t *begin, uint32_t number, const ProtobufCMessageDescriptor *d, int depth)
{
    uint32_t wire = d && below(8) ? 2 : (const uint32_t[]){0, 1, 2, 5}[below(4)];
    size_t end = *begin;
    if (wire == 2 && d)
        put_message(begin, d, depth + 1);
    else if (wire == 2)
        put_bytes(begin, below(4) ? below(12) : below(400));
    else if (wire == 0)
        put_varint(begin, below(2) ? below(100) : UINT64_MAX);
    else
        put_bytes(begin, wire == 1 ? 8 : 4);
    if (wire == 2)
        put_varint(begin, end - *begin);
    put_varint(begin, (uint64_t)number << 3 | wire);
}

static void put_message(size_t *begin, const ProtobufCMessageDescriptor *d, int depth)
{
    uint32_t fields = below(depth ? 6 : 30);
    for (uint32_t i = 0; i<fields && * begin> SPACE / 2; i++) {
        bool known = d->n_fields && below(5);
        const ProtobufCFieldDescriptor *f = known ? &d->fields[below(d->n_fields)] : NULL;
        uint32_t number = f ? f->id : 200 + below(1000);
        uint32_t times = below(6) ? 1 : 1 + below(f && f->type != PROTOBUF_C_TYPE_MESSAGE ? 300 : 40);
        const bool message = f && f->type == PROTOBUF_C_TYPE_MESSAGE;
        for (uint32_t k = 0; k<times && * begin> SPACE / 2 && depth < 8; k++)
            put_field(begin, number, message ? f->descriptor : NULL, depth);
    }
}

typedef struct counted {
    size_t now, peak;
} counted;

enum { HEADER = 16 }; /* of an allocation, which the heap has, too */

static void *count_alloc(void *data, size_t n)
{
    counted *c = data;
    uint8_t *p = malloc(n + HEADER);
    memcpy(p, &n, sizeof n);
    c->now += n + HEADER;
    c->peak = c->now > c->peak ? c->now : c->peak;
    return p + HEADER;
}

static void count_free(void *data, void *p)
{
    size_t n;
    if (!p)
        return;
    memcpy(&n, (uint8_t *)p - HEADER, sizeof n);
    ((counted *)data)->now -= n + HEADER;
    free((uint8_t *)p - HEADER);
}

START_TEST(unpacking_takes_no_more_than_was_counted)
{
    const ProtobufCMessageDescriptor *d = _i ? VALUE : &sglang__grpc__scheduler__generate_request__descriptor;
    int unpacked = 0, large = 0;
    for (int round = 0; round < (_i ? 1500 : 8000); round++) {
        size_t begin = SPACE;
        put_message(&begin, d, 0);
        uint64_t bytes = 0;
        sl_err err = {""};
        if (rpc_scan(d, space + begin, SPACE - begin, &bytes, &err) != SL_OK)
            continue;
        counted c = {0};
        ProtobufCAllocator a = {.alloc = count_alloc, .free = count_free, .allocator_data = &c};
        ProtobufCMessage *m = protobuf_c_message_unpack(d, &a, SPACE - begin, space + begin);
        ck_assert_msg(c.peak <= bytes, "%zu bytes of a message: unpacking takes %zu, %zu were counted",
                      SPACE - begin, c.peak, (size_t)bytes);
        unpacked += m != NULL;
        large += m && c.peak > 2048;
        if (m)
            protobuf_c_message_free_unpacked(m, &a);
        ck_assert_uint_eq(c.now, 0);
    }
    ck_assert_msg(unpacked > 50 && large > 5, "%d were unpacked, %d of them large: the test shows nothing",
                  unpacked, large);
}
END_TEST

/* Fields of two bytes, known and unknown, of every type of the wire. */
START_TEST(the_smallest_fields_are_counted)
{
    const ProtobufCMessageDescriptor *d = &sglang__grpc__scheduler__generate_request__descriptor;
    for (uint32_t number = 1; number < 40; number++) {
        for (uint32_t wire = 0; wire < 6; wire += wire == 2 ? 3 : 1) {
            size_t begin = SPACE;
            for (int i = 0; i < 3000; i++) {
                put_bytes(&begin, wire == 1 ? 8 : wire == 5 ? 4 : 0);
                if (wire == 0 || wire == 2)
                    put_varint(&begin, 0);
                put_varint(&begin, number << 3 | wire);
            }
            uint64_t bytes = 0;
            if (rpc_scan(d, space + begin, SPACE - begin, &bytes, NULL) != SL_OK)
                continue;
            counted c = {0};
            ProtobufCAllocator a = {.alloc = count_alloc, .free = count_free, .allocator_data = &c};
            ProtobufCMessage *m = protobuf_c_message_unpack(d, &a, SPACE - begin, space + begin);
            ck_assert_msg(c.peak <= bytes, "field %u, wire type %u: unpacking takes %zu, %zu were counted",
                          number, wire, c.peak, (size_t)bytes);
            if (m)
                protobuf_c_message_free_unpacked(m, &a);
        }
    }
}
END_TEST

/* One message field twice is refused by name, wherever it is; repeated and unknown fields are not. */
START_TEST(a_message_that_comes_twice_is_refused)
{
    const ProtobufCMessageDescriptor *d = &sglang__grpc__scheduler__generate_request__descriptor;
    int seen = 0;
    for (unsigned i = 0; i < d->n_fields; i++) {
        const ProtobufCFieldDescriptor *f = &d->fields[i];
        size_t begin = SPACE;
        uint64_t bytes;
        sl_err err = {""};
        if (f->type != PROTOBUF_C_TYPE_MESSAGE || f->label == PROTOBUF_C_LABEL_REPEATED)
            continue;
        for (int twice = 0; twice < 2; twice++) {
            put_varint(&begin, 0);
            put_varint(&begin, f->id << 3 | 2);
            sl_status st = rpc_scan(d, space + begin, SPACE - begin, &bytes, &err);
            ck_assert_int_eq(st, twice ? SL_ERR_INVALID : SL_OK);
        }
        ck_assert_msg(strstr(err.text, f->name) && strstr(err.text, "more than once"), "%s", err.text);
        seen++;
    }
    ck_assert_int_gt(seen, 2);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("scan");
    TCase *t = tcase_create("scan");
    tcase_set_timeout(t, 60);
    tcase_add_test(t, depth_is_limited);
    tcase_add_test(t, malformed_bytes_are_refused);
    tcase_add_test(t, bytes_are_counted);
    tcase_add_loop_test(t, unpacking_takes_no_more_than_was_counted, 0, 2);
    tcase_add_test(t, the_smallest_fields_are_counted);
    tcase_add_test(t, a_message_that_comes_twice_is_refused);
    suite_add_tcase(s, t);
    return run_suite(s);
}
