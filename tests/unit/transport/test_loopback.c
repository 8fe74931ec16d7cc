/* Loopback's fault injection does what loopback.h says; test_conformance.c tests the ordinary contract. One thread,
 * two instances. */
#include <check.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "tests/unit/run_suite.h"
#include "transport/loopback/loopback.h"

enum { BYTES = 4096 };

typedef struct side {
    sl_transport *tp;
    sl_tp_ep *ep;
    int connected, failed, closed, messages, done, done_ok;
    sl_status connect_status, last;
    uint8_t last_byte, bytes[64];
} side;

static side a, b; /* a connects to b and posts; b's memory is the target */
static uint8_t target[BYTES], source[BYTES];
static sl_tp_mem *mem_a, *mem_b;
static sl_tp_rkey *key;

static void on_accepted(void *arg, sl_tp_ep *ep, const char *peer)
{
    (void)peer;
    ((side *)arg)->ep = ep;
}

static void on_connected(void *arg, sl_tp_ep *ep, sl_status st, const char *why)
{
    side *s = arg;
    (void)why;
    s->ep = ep;
    s->connected++;
    s->connect_status = st;
}

static void on_failed(void *arg, sl_tp_ep *ep, sl_status st, const char *why)
{
    (void)ep;
    (void)st;
    (void)why;
    ((side *)arg)->failed++;
}

static void on_closed(void *arg, sl_tp_ep *ep)
{
    (void)ep;
    ((side *)arg)->closed++;
}

static void on_message(void *arg, sl_tp_ep *ep, uint16_t id, const void *header, size_t hn, const void *data,
                       size_t n)
{
    side *s = arg;
    (void)ep;
    (void)id;
    (void)header;
    (void)hn;
    s->last_byte = n ? ((const uint8_t *)data)[n / 2] : 0;
    if (s->messages < (int)sizeof s->bytes)
        s->bytes[s->messages] = s->last_byte;
    s->messages++;
}

static void on_done(void *cookie, sl_status st)
{
    side *s = cookie;
    s->done++;
    s->done_ok += st == SL_OK;
    s->last = st;
}

static void run(void)
{
    while (sl_tp_progress(a.tp) + sl_tp_progress(b.tp) > 0)
        ;
}

static void run_ms(int ms)
{
    uint64_t until = sl_now_ns() + (uint64_t)ms * 1000000u;
    do {
        run();
        struct pollfd p[2] = {{.fd = sl_tp_event_fd(a.tp), .events = POLLIN},
                              {.fd = sl_tp_event_fd(b.tp), .events = POLLIN}};
        poll(p, 2, 1);
    } while (sl_now_ns() < until);
}

static void open_side(side *s)
{
    sl_tp_options o = sl_tp_options_default();
    sl_err err = {0};
    *s = (side){0};
    o.fabric = "faults";
    o.events = (sl_tp_events){s, on_accepted, on_connected, on_failed, on_closed};
    ck_assert_int_eq(sl_transport_create("loopback", &o, &s->tp, &err), SL_OK);
    sl_tp_handle(s->tp, 1, on_message, s);
}

static void connect_a(void)
{
    sl_err err = {0};
    sl_tp_info info;
    sl_tp_ep *ep;
    uint8_t packed[SL_TP_RKEY_MAX];
    size_t n;
    sl_tp_query(b.tp, &info);
    ck_assert_int_eq(sl_tp_connect(a.tp, info.address, &ep, &err), SL_OK);
    run();
    ck_assert_int_eq(a.connect_status, SL_OK);
    ck_assert_int_eq(sl_tp_rkey_pack(mem_b, packed, sizeof packed, &n), SL_OK);
    ck_assert_int_eq(sl_tp_rkey_unpack(a.ep, packed, n, &key, &err), SL_OK);
}

static void setup(void)
{
    char address[SL_TP_ADDRESS_MAX];
    sl_err err = {0};
    open_side(&a);
    open_side(&b);
    memset(target, 0, BYTES);
    memset(source, 7, BYTES);
    ck_assert_int_eq(sl_tp_listen(b.tp, NULL, 0, address, sizeof address, &err), SL_OK);
    sl_tp_mem_register(a.tp, source, BYTES, SL_TP_HOST, SL_TP_LOCAL, &mem_a, &err);
    sl_tp_mem_register(b.tp, target, BYTES, SL_TP_HOST, SL_TP_REMOTE_READ | SL_TP_REMOTE_WRITE, &mem_b, &err);
    connect_a();
}

static void teardown(void)
{
    sl_tp_destroy(a.tp);
    sl_tp_destroy(b.tp);
}

static void put(size_t at, size_t n)
{
    ck_assert_int_eq(sl_tp_put(a.ep, source + at, mem_a, n, key->base + at, key, on_done, &a), SL_OK);
}

static void send(uint8_t value)
{
    uint8_t *m = malloc(3);
    memset(m, value, 3);
    ck_assert_int_eq(sl_tp_send_owned(a.ep, 1, m, 3), SL_OK);
}

/* The copy happens at delivery: the bytes that arrive are those that the source has at that time. */
START_TEST(delivery_reads_the_source_late)
{
    put(0, 16);
    memset(source, 9, 16); /* the contract forbids this write, so that its effect is visible here */
    run();
    ck_assert_int_eq(target[0], 9);
    ck_assert_int_eq(a.done_ok, 1);
}
END_TEST

START_TEST(delay)
{
    sl_loopback_set_faults(a.ep, &(sl_loopback_faults){.delay_ns = 50000000});
    uint64_t t0 = sl_now_ns();
    put(0, 16);
    run();
    ck_assert_int_eq(target[0], 0);
    ck_assert_int_eq(a.done, 0);
    while (a.done == 0 && sl_now_ns() - t0 < 2000000000u)
        run_ms(1);
    ck_assert_int_eq(target[0], 7);
    ck_assert_uint_ge(sl_now_ns() - t0, 50000000u);
}
END_TEST

START_TEST(lost_completion_ends_with_close)
{
    sl_loopback_set_faults(a.ep, &(sl_loopback_faults){.lose_completion = 2});
    put(0, 16);
    put(16, 16);
    run();
    ck_assert_int_eq(target[16], 7);
    ck_assert_int_eq(a.done, 1);
    sl_tp_rkey_release(key);
    sl_tp_close(a.ep, SL_TP_CLOSE_FLUSH);
    run();
    ck_assert_int_eq(a.closed, 0); /* close waits for the completion that never comes */
    sl_tp_close(a.ep, SL_TP_CLOSE_FORCE);
    run();
    ck_assert_int_eq(a.closed, 1);
    ck_assert_int_eq(a.done, 2);
    ck_assert_int_eq(a.last, SL_ERR_CANCELLED);
}
END_TEST

START_TEST(lost_and_damaged_puts)
{
    sl_loopback_set_faults(a.ep, &(sl_loopback_faults){.lose_put = 2, .damage_put = 3});
    for (size_t i = 0; i < 6; i++)
        put(i * 16, 16);
    run();
    ck_assert_int_eq(a.done_ok, 6); /* the faulty link reports that every operation has completed */
    ck_assert(memcmp(target, source, 16) == 0);
    ck_assert_int_eq(target[16], 0);
    ck_assert(memcmp(target + 32, source, 16) != 0);
    ck_assert_int_eq(target[32 + 8], 7 ^ 0x10);
    ck_assert_int_eq(target[48], 0);
    ck_assert(memcmp(target + 64, source, 16) == 0);
    ck_assert_int_eq(target[80], 0);
}
END_TEST

START_TEST(lost_damaged_repeated_messages)
{
    sl_loopback_set_faults(
        a.ep, &(sl_loopback_faults){.lose_message = 4, .damage_message = 3, .duplicate_message = 5});
    for (uint8_t i = 1; i <= 5; i++)
        send(i);
    run();
    static const uint8_t want[] = {1, 2, 3 ^ 0x10, 5, 5};
    ck_assert_int_eq(b.messages, 5);
    ck_assert(memcmp(b.bytes, want, sizeof want) == 0);
}
END_TEST

/* The most dangerous case: a write arrives after its flush has completed. Only the close of the target's endpoint
 * prevents it. */
START_TEST(late_put)
{
    /* Late by more than what a busy machine needs between the flush and the memset. */
    sl_loopback_set_faults(a.ep, &(sl_loopback_faults){.late_put = 1, .late_put_ns = 300000000});
    put(0, 16);
    sl_tp_flush(a.ep, on_done, &a);
    run();
    ck_assert_int_eq(a.done_ok, 2);
    memset(target, 1, 16);
    run_ms(600);
    ck_assert_int_eq(target[0], 7);
    put(0, 16);
    run();
    sl_tp_close(b.ep, SL_TP_CLOSE_FORCE);
    run();
    ck_assert_int_eq(b.closed, 1);
    memset(target, 1, 16);
    run_ms(600);
    ck_assert_int_eq(target[0], 1);
    ck_assert_int_eq(a.failed, 1);
}
END_TEST

START_TEST(late_put_survives_its_sender)
{
    sl_loopback_set_faults(a.ep, &(sl_loopback_faults){.late_put = 1, .late_put_ns = 30000000});
    put(0, 16);
    run();
    sl_tp_rkey_release(key);
    sl_tp_close(a.ep, SL_TP_CLOSE_FORCE);
    run();
    memset(target, 1, 16);
    run_ms(80);
    ck_assert_int_eq(target[0], 7);
    ck_assert_int_eq(b.failed, 1);
}
END_TEST

START_TEST(failing_operations)
{
    sl_loopback_set_faults(a.ep, &(sl_loopback_faults){.fail_op = 2});
    put(0, 16);
    put(16, 16);
    run();
    ck_assert_int_eq(a.done, 2);
    ck_assert_int_eq(a.last, SL_ERR_IO);
    ck_assert_int_eq(target[16], 0);
    ck_assert_int_eq(a.failed, 0); /* only one operation is lost, the peer is still connected */
}
END_TEST

START_TEST(revoked_memory)
{
    sl_tp_mem_deregister(mem_b);
    put(0, 16);
    run();
    ck_assert_int_eq(a.last, SL_ERR_IO);
    ck_assert_int_eq(target[0], 0);
}
END_TEST

START_TEST(die_after)
{
    sl_loopback_set_faults(a.ep, &(sl_loopback_faults){.die_after = 3});
    put(0, 16);
    run();
    put(16, 16);
    put(32, 16);
    ck_assert_int_eq(sl_tp_put(a.ep, source, mem_a, 16, key->base, key, on_done, &a), SL_ERR_PEER);
    run();
    ck_assert_int_eq(a.failed, 1);
    ck_assert_int_eq(b.failed, 1);
    ck_assert_int_eq(a.done, 3);
    ck_assert_int_eq(a.done_ok, 1);
    ck_assert_int_eq(a.last, SL_ERR_PEER);
    ck_assert_int_eq(target[16], 0);
}
END_TEST

START_TEST(stall)
{
    sl_loopback_set_faults(a.ep, &(sl_loopback_faults){.stall = true});
    put(0, 16);
    send(3);
    run_ms(20);
    ck_assert_int_eq(a.done, 0);
    ck_assert_int_eq(b.messages, 0);
    ck_assert_int_eq(a.failed + b.failed, 0);
    sl_loopback_set_faults(a.ep, NULL);
    run();
    ck_assert_int_eq(a.done_ok, 1);
    ck_assert_int_eq(b.messages, 1);
}
END_TEST

START_TEST(default_faults_and_refuse)
{
    sl_err err = {0};
    sl_tp_info info;
    sl_tp_ep *ep;
    sl_tp_query(b.tp, &info);
    sl_loopback_refuse(b.tp, 1);
    ck_assert_int_eq(sl_tp_connect(a.tp, info.address, &ep, &err), SL_OK);
    run();
    ck_assert_int_eq(a.connect_status, SL_ERR_REFUSED);
    sl_tp_close(ep, SL_TP_CLOSE_FORCE);
    run();
    ck_assert_int_eq(a.closed, 1);
    sl_loopback_set_default_faults(a.tp, &(sl_loopback_faults){.lose_message = 1});
    connect_a();
    send(1);
    run();
    ck_assert_int_eq(b.messages, 0);
}
END_TEST

START_TEST(kill)
{
    put(0, 16);
    sl_loopback_kill(b.tp);
    run();
    ck_assert_int_eq(a.failed, 1);
    ck_assert_int_eq(a.last, SL_ERR_PEER);
    ck_assert_int_eq(target[0], 0);
    ck_assert_int_eq(b.failed, 0); /* a killed instance receives no events */
    ck_assert_int_lt(sl_tp_send(b.ep, 1, NULL, 0, NULL, 0, NULL, NULL), 0);
}
END_TEST

START_TEST(fabrics_are_separate)
{
    sl_tp_options o = sl_tp_options_default();
    sl_transport *other;
    sl_err err = {0};
    char address[SL_TP_ADDRESS_MAX];
    o.fabric = "elsewhere";
    o.events.accepted = on_accepted;
    ck_assert_int_eq(sl_transport_create("loopback", &o, &other, &err), SL_OK);
    ck_assert_int_eq(sl_tp_listen(other, NULL, 77, address, sizeof address, &err), SL_OK);
    ck_assert_str_eq(address, "elsewhere:77");
    ck_assert_int_eq(sl_tp_listen(other, NULL, 78, address, sizeof address, &err), SL_ERR_INVALID);
    sl_tp_ep *ep;
    ck_assert_int_eq(sl_tp_connect(a.tp, "faults:77", &ep, &err), SL_OK);
    run();
    ck_assert_int_eq(a.connect_status, SL_ERR_REFUSED);
    sl_tp_destroy(other);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("loopback");
    TCase *t = tcase_create("faults");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, delivery_reads_the_source_late);
    tcase_add_test(t, delay);
    tcase_add_test(t, lost_completion_ends_with_close);
    tcase_add_test(t, lost_and_damaged_puts);
    tcase_add_test(t, lost_damaged_repeated_messages);
    tcase_add_test(t, late_put);
    tcase_add_test(t, late_put_survives_its_sender);
    tcase_add_test(t, failing_operations);
    tcase_add_test(t, revoked_memory);
    tcase_add_test(t, die_after);
    tcase_add_test(t, stall);
    tcase_add_test(t, default_faults_and_refuse);
    tcase_add_test(t, kill);
    tcase_add_test(t, fabrics_are_separate);
    suite_add_tcase(s, t);
    return run_suite(s);
}
