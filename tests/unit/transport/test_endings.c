/*
 * What transport.h promises about the end of a connection, against every implementation (see test_conformance.c):
 * peers that die, hang or close; closing by force as a fence; destroying with everything in flight.
 */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/hash.h"
#include "base/log.h"
#include "tests/unit/transport/harness.h"

/* The peer dies with everything in flight: each operation completes exactly once, then `failed` comes once, then close
 * works. */
START_TEST(peer_killed)
{
    enum { PUTS = 200, SENDS = 20 };
    const variant *v = &variants[_i];
    peer p;
    client c;
    putter t;
    sl_tp_stats s;
    uint8_t *big;
    if (!v->process && !variant_is_loopback(v))
        return; /* a thread cannot be killed */
    big = calloc(1, 8u << 20);
    peer_start(&p, v);
    client_open(&c, v);
    client_connect(&c, &p);
    putter_open(&t, &c, 8 << 20);
    client_send(&c, (peer_command){.verb = DO_SLEEP, .a = variant_is_loopback(v) ? 1000 : 100000}, NULL, 0);
    client_run(&c, 100);
    for (int i = 0; i < PUTS; i++)
        putter_put(&t, 0, 1 << 20, 0);
    ck_assert_int_eq(sl_tp_flush(c.ep, client_done, &c), SL_OK);
    for (int i = 0; i < SENDS; i++)
        ck_assert_int_eq(sl_tp_send(c.ep, 9, "h", 1, big, 8u << 20, client_done, &c), SL_OK);
    client_run(&c, 50);
    uint64_t t0 = sl_now_ns();
    peer_kill(&p);
    ck_assert_msg(client_wait(&c, &c.failed, 1, 20000), "the death was not noticed");
    double ms = (double)(sl_now_ns() - t0) / 1e6;
    fprintf(stderr, "# %s: death noticed after %.1f ms (%s)\n", v->name, ms, c.why);
    ck_assert_msg(ms < 5000, "%.0f ms", ms);
    ck_assert_int_eq(c.fail_status, SL_ERR_PEER);
    ck_assert_int_eq(c.done, PUTS + 1 + SENDS);
    ck_assert_int_eq(c.last_done, SL_ERR_PEER);
    ck_assert_int_eq(sl_tp_send(c.ep, 9, NULL, 0, NULL, 0, NULL, NULL), SL_ERR_PEER);
    sl_tp_get_stats(c.tp, &s);
    ck_assert_uint_eq(s.pending, 0);
    ck_assert_uint_eq(s.failed_endpoints, 1);
    sl_tp_rkey_release(t.rkey);
    sl_tp_close(c.ep, SL_TP_CLOSE_FLUSH);
    ck_assert(client_wait(&c, &c.closed, 1, 10000));
    ck_assert_int_eq(c.failed, 1);
    sl_tp_mem_deregister(t.mem);
    client_close(&c);
    peer_join(&p);
    free(big);
    free(t.buf);
}
END_TEST

/* An idle connection also detects the death of its peer, and the same instance can reach a new peer. */
START_TEST(peer_killed_idle_then_reconnect)
{
    const variant *v = &variants[_i];
    peer p, q;
    client c;
    if (!v->process)
        return;
    peer_start(&p, v);
    peer_start(&q, v);
    client_open(&c, v);
    c.close_on_fail = true;
    client_connect(&c, &p);
    client_run(&c, 100);
    peer_kill(&p);
    ck_assert(client_wait(&c, &c.failed, 1, 10000));
    ck_assert(client_wait(&c, &c.closed, 1, 10000));
    peer_join(&p);
    for (int i = 0; i < 5; i++) {
        client_connect(&c, &q);
        client_ask(&c, (peer_command){.verb = DO_CRC, .a = 0, .b = 1});
        sl_tp_close(c.ep, SL_TP_CLOSE_FORCE);
        ck_assert(client_wait(&c, &c.closed, i + 2, 10000));
    }
    client_connect(&c, &q);
    client_finish(&c, &q);
    ck_assert_int_eq(c.failed, 1);
}
END_TEST

/* A peer that hangs (stopped, not dead): a force close ends every operation without the peer. */
START_TEST(close_force_on_hanging_peer)
{
    enum { PUTS = 100, SENDS = 8 };
    const variant *v = &variants[_i];
    peer p;
    client c;
    putter t;
    uint8_t *big = calloc(1, 8u << 20);
    peer_start(&p, v);
    client_open(&c, v);
    client_connect(&c, &p);
    putter_open(&t, &c, 8 << 20);
    client_send(&c, (peer_command){.verb = DO_SLEEP, .a = 3000}, NULL, 0);
    client_run(&c, 50);
    for (int i = 0; i < PUTS; i++)
        putter_put(&t, 0, 1 << 20, 0);
    ck_assert_int_eq(sl_tp_flush(c.ep, client_done, &c), SL_OK);
    for (int i = 0; i < SENDS; i++)
        ck_assert_int_eq(sl_tp_send(c.ep, 9, NULL, 0, big, 8u << 20, client_done, &c), SL_OK);
    client_run(&c, 100);
    ck_assert_int_lt(c.done, PUTS + 1 + SENDS);
    sl_tp_rkey_release(t.rkey);
    uint64_t t0 = sl_now_ns();
    sl_tp_close(c.ep, SL_TP_CLOSE_FORCE);
    ck_assert_int_eq(sl_tp_send(c.ep, 9, NULL, 0, NULL, 0, NULL, NULL), SL_ERR_CANCELLED);
    ck_assert_msg(client_wait(&c, &c.closed, 1, 10000), "close did not end (%d of %d done)", c.done,
                  PUTS + 1 + SENDS);
    double ms = (double)(sl_now_ns() - t0) / 1e6;
    ck_assert_msg(ms < 1500, "%.0f ms", ms);
    ck_assert_int_eq(c.done, PUTS + 1 + SENDS);
    ck_assert_int_eq(c.last_done, SL_ERR_CANCELLED);
    ck_assert_int_eq(c.failed, 0);
    free(big);
    /* The peer itself continues to run and serves a new connection. */
    client_connect(&c, &p);
    sl_tp_mem_deregister(t.mem);
    free(t.buf);
    client_finish(&c, &p);
}
END_TEST

/* The fence: a peer writes to our memory without a pause; after `closed` no byte changes. */
START_TEST(close_fences_remote_writes)
{
    enum { BYTES = 256 << 10, ROUNDS = 12 };
    const variant *v = &variants[_i];
    peer p;
    client c;
    sl_err err = {0};
    ck_assert(sl_transport_find(v->transport)->caps.close_fences);
    peer_start(&p, v);
    client_open(&c, v);
    for (int round = 0; round < ROUNDS; round++) {
        sl_tp_mem *mem;
        uint8_t *buf = calloc(1, BYTES), key[SL_TP_RKEY_MAX];
        size_t n;
        client_connect(&c, &p);
        ck_assert_int_eq(sl_tp_mem_register(c.tp, buf, BYTES, SL_TP_HOST, SL_TP_REMOTE_WRITE, &mem, &err),
                         SL_OK);
        ck_assert_int_eq(sl_tp_rkey_pack(mem, key, sizeof key, &n), SL_OK);
        client_send(&c, (peer_command){.verb = DO_HAMMER, .a = (uintptr_t)buf, .b = BYTES}, key, n);
        uint64_t until = sl_now_ns() + 5000000000ull;
        while (((volatile uint8_t *)buf)[BYTES - 1] == 0 && sl_now_ns() < until)
            sl_tp_progress(c.tp);
        ck_assert_uint_ne(buf[BYTES - 1], 0);
        sl_tp_close(c.ep, SL_TP_CLOSE_FORCE);
        ck_assert(client_wait(&c, &c.closed, round + 1, 10000));
        uint32_t before = sl_crc32c(0, buf, BYTES);
        client_run(&c, 60);
        ck_assert_uint_eq(before, sl_crc32c(0, buf, BYTES));
        sl_tp_mem_deregister(mem);
        free(buf); /* a late write would now be found by the sanitizer, or change another round's buffer */
    }
    client_connect(&c, &p);
    client_finish(&c, &p);
}
END_TEST

/* The peer closes: one event tells us, after everything that the peer sent before has been delivered. */
START_TEST(peer_closes)
{
    const variant *v = &variants[_i];
    peer p;
    client c;
    peer_start(&p, v);
    client_open(&c, v);
    client_connect(&c, &p);
    client_send(&c, (peer_command){.verb = DO_BLAST, .a = 24}, NULL, 0);
    client_send(&c, (peer_command){.verb = DO_CLOSE, .a = SL_TP_CLOSE_FLUSH}, NULL, 0);
    ck_assert(client_wait(&c, &c.failed, 1, 10000));
    ck_assert_int_eq(c.fail_status, SL_ERR_PEER);
    ck_assert_msg(strstr(c.why, "closed by the peer"), "%s", c.why);
    ck_assert_int_eq(c.blasts, 24);
    sl_tp_close(c.ep, SL_TP_CLOSE_FLUSH);
    ck_assert(client_wait(&c, &c.closed, 1, 10000));
    client_connect(&c, &p);
    client_send(&c, (peer_command){.verb = DO_CLOSE, .a = SL_TP_CLOSE_FORCE}, NULL, 0);
    ck_assert(client_wait(&c, &c.failed, 2, 10000));
    sl_tp_close(c.ep, SL_TP_CLOSE_FORCE);
    ck_assert(client_wait(&c, &c.closed, 2, 10000));
    client_connect(&c, &p);
    client_finish(&c, &p);
}
END_TEST

/* Destroying an instance with everything open and in flight leaks nothing and runs no callback. */
START_TEST(destroy_while_busy)
{
    const variant *v = &variants[_i];
    peer p;
    client c;
    putter t;
    peer_start(&p, v);
    client_open(&c, v);
    client_connect(&c, &p);
    putter_open(&t, &c, 1 << 20);
    client_send(&c, (peer_command){.verb = DO_BLAST, .a = 24}, NULL, 0);
    for (int i = 0; i < 50; i++)
        putter_put(&t, 0, 1 << 20, 0);
    client_run(&c, 3);
    int done = c.done;
    client_close(&c);
    ck_assert_int_eq(c.done, done);
    free(t.buf);
    client_open(&c, v);
    client_connect(&c, &p);
    client_finish(&c, &p);
}
END_TEST

int main(void)
{
    TCase *t = tcase_create("endings");
    tcase_add_loop_test(t, peer_killed, 0, n_variants);
    tcase_add_loop_test(t, peer_killed_idle_then_reconnect, 0, n_variants);
    tcase_add_loop_test(t, close_force_on_hanging_peer, 0, n_variants);
    tcase_add_loop_test(t, close_fences_remote_writes, 0, n_variants);
    tcase_add_loop_test(t, peer_closes, 0, n_variants);
    tcase_add_loop_test(t, destroy_while_busy, 0, n_variants);
    return harness_run("transport_endings", t);
}
