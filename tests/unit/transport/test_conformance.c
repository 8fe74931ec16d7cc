/*
 * What transport.h promises, against every implementation: loopback, and UCX between threads and between processes.
 * Each test runs once per variant (harness.c; under a sanitizer with half of them), in a process of its own, so that no
 * state remains from one test to the next. This file: connecting, messages, sleeping. Memory: test_remote_memory.c; how
 * connections end: test_endings.c.
 */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "base/hash.h"
#include "base/log.h"
#include "tests/unit/run_suite.h"
#include "tests/unit/transport/harness.h"

START_TEST(connect_and_close)
{
    const variant *v = &variants[_i];
    peer p;
    client c;
    sl_tp_info info;
    char text[256];
    peer_start(&p, v);
    client_open(&c, v);
    client_connect(&c, &p);
    sl_tp_query(c.tp, &info);
    ck_assert_str_eq(info.name, v->transport);
    ck_assert_uint_gt(strlen(info.transports), 0);
    sl_tp_ep_query(c.ep, text, sizeof text);
    ck_assert_msg(strncmp(text, "peer=", 5) == 0 && !strstr(text, "tls=none"), "%s", text);
    client_finish(&c, &p);
    ck_assert_int_eq(c.failed, 0);
}
END_TEST

START_TEST(connect_refused)
{
    const variant *v = &variants[_i];
    client c;
    sl_tp_ep *ep;
    sl_err err = {0};
    client_open(&c, v);
    /* No listener at this address. */
    ck_assert_int_eq(sl_tp_connect(c.tp, variant_is_loopback(v) ? "default:9" : "127.0.0.1:9", &ep, &err),
                     SL_OK);
    ck_assert_int_eq(c.connected, 0); /* the event never comes inside the call */
    ck_assert(client_wait(&c, &c.connected, 1, 10000));
    ck_assert_int_eq(c.connect_status, SL_ERR_REFUSED);
    ck_assert_uint_gt(strlen(c.why), 0);
    ck_assert_int_ne(sl_tp_send(ep, AM_COMMAND, NULL, 0, NULL, 0, NULL, NULL), SL_OK);
    sl_tp_close(ep, SL_TP_CLOSE_FLUSH);
    ck_assert(client_wait(&c, &c.closed, 1, 10000));
    ck_assert_int_eq(c.failed, 0);
    /* An address without meaning is refused in the call. */
    ck_assert_int_eq(sl_tp_connect(c.tp, "nonsense", &ep, &err), SL_ERR_INVALID);
    ck_assert_int_eq(sl_tp_connect(c.tp, "127.0.0.1:99999", &ep, &err), SL_ERR_INVALID);
    client_close(&c);
}
END_TEST

/* There is a listener, but it does not accept: its events table has no `accepted`. */
START_TEST(connect_rejected)
{
    const variant *v = &variants[_i];
    client c;
    sl_transport *deaf;
    sl_tp_ep *ep;
    sl_err err = {0};
    char address[SL_TP_ADDRESS_MAX];
    sl_tp_options o = sl_tp_options_default();
    o.tls = v->tls;
    client_open(&c, v);
    ck_assert_int_eq(sl_transport_create(v->transport, &o, &deaf, &err), SL_OK);
    ck_assert_int_eq(sl_tp_listen(deaf, "127.0.0.1", 0, address, sizeof address, &err), SL_OK);
    ck_assert_int_eq(sl_tp_connect(c.tp, address, &ep, &err), SL_OK);
    for (int i = 0; i < 10000 && !c.connected; i++) {
        sl_tp_progress(deaf);
        client_run(&c, 1);
    }
    ck_assert_int_eq(c.connected, 1);
    ck_assert_int_eq(c.connect_status, SL_ERR_REFUSED);
    client_close(&c);
    sl_tp_destroy(deaf);
}
END_TEST

/* The listener's owner never runs progress: the deadline ends the attempt, and the client need not poll for it. */
START_TEST(connect_times_out)
{
    const variant *v = &variants[_i];
    client c;
    sl_transport *silent;
    sl_tp_ep *ep;
    sl_err err = {0};
    char address[SL_TP_ADDRESS_MAX];
    sl_tp_options o = sl_tp_options_default();
    o.tls = v->tls;
    ck_assert_int_eq(sl_transport_create(v->transport, &o, &silent, &err), SL_OK);
    ck_assert_int_eq(sl_tp_listen(silent, "127.0.0.1", 0, address, sizeof address, &err), SL_OK);
    o.connect_timeout_ms = 300;
    client_open_with(&c, v, o);
    uint64_t t0 = sl_now_ns();
    ck_assert_int_eq(sl_tp_connect(c.tp, address, &ep, &err), SL_OK);
    ck_assert(client_wait(&c, &c.connected, 1, 5000));
    double ms = (double)(sl_now_ns() - t0) / 1e6;
    ck_assert_int_eq(c.connect_status, SL_ERR_TIMEOUT);
    ck_assert_msg(ms > 250 && ms < 2500, "%.0f ms", ms);
    sl_tp_close(ep, SL_TP_CLOSE_FORCE);
    ck_assert(client_wait(&c, &c.closed, 1, 5000));
    client_close(&c);
    sl_tp_destroy(silent);
}
END_TEST

/* Several endpoints of one instance, some made long after the first: every answer arrives at the right endpoint. */
START_TEST(late_join_many_endpoints)
{
    enum { N = 24 };
    const variant *v = &variants[_i];
    peer p;
    client c;
    sl_tp_ep *eps[N];
    static const uint8_t zeros[4096];
    uint32_t zeros_crc = sl_crc32c(0, zeros, sizeof zeros);
    peer_start(&p, v);
    client_open(&c, v);
    for (int i = 0; i < N; i++) {
        client_connect(&c, &p);
        eps[i] = c.ep;
        ck_assert_uint_eq(client_ask(&c, (peer_command){.verb = DO_CRC, .a = 0, .b = 4096}), zeros_crc);
    }
    for (int i = N - 1; i > 0; i--) {
        c.ep = eps[i];
        client_ask(&c, (peer_command){.verb = DO_CRC, .a = 0, .b = 1});
        sl_tp_close(eps[i], i % 2 ? SL_TP_CLOSE_FLUSH : SL_TP_CLOSE_FORCE);
        ck_assert(client_wait(&c, &c.closed, N - i, 10000));
    }
    c.ep = eps[0];
    client_ask(&c, (peer_command){.verb = DO_CRC, .a = 0, .b = 1});
    client_finish(&c, &p);
}
END_TEST

START_TEST(messages_echo)
{
    static const size_t sizes[] = {0, 1, 7, 64, 1000, 4096, 8191, 8192, 65536, 65537, 1u << 20, 8u << 20};
    const variant *v = &variants[_i];
    peer p;
    client c;
    uint8_t *buf = malloc(8u << 20);
    peer_start(&p, v);
    client_open(&c, v);
    client_connect(&c, &p);
    for (int round = 0; round < 3; round++)
        for (size_t i = 0; i < SL_COUNT(sizes); i++) {
            int n = c.echoes;
            pattern_fill(buf, sizes[i], i + 77);
            client_send(&c, (peer_command){.verb = DO_ECHO, .tag = (uint32_t)n}, sizes[i] ? buf : NULL,
                        sizes[i]);
            ck_assert(client_wait(&c, &c.echoes, n + 1, 20000));
            ck_assert_uint_eq(c.echo_bytes, sizes[i]);
            ck_assert(pattern_check(c.echo, sizes[i], i + 77));
        }
    client_finish(&c, &p);
    free(buf);
}
END_TEST

/* Both directions concurrently, small and large messages mixed: the order is kept although large ones take a
 * rendezvous. */
START_TEST(messages_in_order_both_ways)
{
    enum { N = 120 };
    const variant *v = &variants[_i];
    peer p;
    client c;
    uint8_t *bufs[12];
    peer_start(&p, v);
    client_open(&c, v);
    client_connect(&c, &p);
    client_send(&c, (peer_command){.verb = DO_BLAST, .a = N}, NULL, 0);
    for (uint32_t i = 0; i < 12; i++) {
        bufs[i] = malloc(blast_size(i) + 1);
        pattern_fill(bufs[i], blast_size(i), i);
    }
    for (uint32_t i = 0; i < N; i++)
        client_send(&c, (peer_command){.verb = DO_ECHO, .tag = i}, bufs[i % 12], blast_size(i));
    ck_assert(client_wait(&c, &c.echoes, N, 60000));
    ck_assert(client_wait(&c, &c.blasts, N, 60000));
    client_finish(&c, &p);
    for (int i = 0; i < 12; i++)
        free(bufs[i]);
}
END_TEST

START_TEST(message_limits)
{
    const variant *v = &variants[_i];
    static uint8_t header[SL_TP_AM_HEADER_MAX + 1];
    peer p;
    client c;
    peer_start(&p, v);
    client_open(&c, v);
    client_connect(&c, &p);
    ck_assert_int_eq(sl_tp_send(c.ep, SL_TP_AM_IDS, NULL, 0, NULL, 0, NULL, NULL), SL_ERR_INVALID);
    ck_assert_int_eq(sl_tp_send(c.ep, 1, header, sizeof header, NULL, 0, NULL, NULL), SL_ERR_TOO_LARGE);
    ck_assert_int_eq(sl_tp_send(c.ep, 1, NULL, 0, header, SL_TP_AM_MAX + 1, NULL, NULL), SL_ERR_TOO_LARGE);
    ck_assert_int_eq(sl_tp_handle(c.tp, SL_TP_AM_IDS, NULL, NULL), SL_ERR_INVALID);
    /* An id without a handler, and a full header: the receiver refuses and counts it, and the connection stays open. */
    ck_assert_int_eq(sl_tp_send(c.ep, 9, header, SL_TP_AM_HEADER_MAX, "x", 1, client_done, &c), SL_OK);
    client_ask(&c, (peer_command){.verb = DO_CRC, .a = 0, .b = 1});
    ck_assert_int_eq(c.done_ok, 1);
    ck_assert_int_eq(sl_tp_send_owned(c.ep, 10, NULL, 0), SL_OK);
    ck_assert_int_eq(sl_tp_send_owned(c.ep, 10, calloc(1, 100000), 100000), SL_OK);
    ck_assert_int_eq(sl_tp_send_owned(c.ep, 1000, calloc(1, 100), 100), SL_ERR_INVALID);
    client_ask(&c, (peer_command){.verb = DO_CRC, .a = 0, .b = 1});
    client_finish(&c, &p);
}
END_TEST

/* The largest message that is allowed. */
START_TEST(message_largest)
{
    const variant *v = &variants[_i];
    peer p;
    client c;
    uint8_t *buf = malloc(SL_TP_AM_MAX);
    pattern_fill(buf, SL_TP_AM_MAX, 5);
    peer_start(&p, v);
    client_open(&c, v);
    client_connect(&c, &p);
    client_send(&c, (peer_command){.verb = DO_ECHO}, buf, SL_TP_AM_MAX);
    ck_assert(client_wait(&c, &c.echoes, 1, 60000));
    ck_assert_uint_eq(c.echo_bytes, SL_TP_AM_MAX);
    ck_assert(memcmp(c.echo, buf, SL_TP_AM_MAX) == 0);
    client_finish(&c, &p);
    free(buf);
}
END_TEST

static double cpu_seconds(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
           (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

/* Connected and idle for a second: the owner sleeps on the descriptor, keepalives included, and answers afterwards. */
START_TEST(idle_sleeps)
{
    const variant *v = &variants[_i];
    peer p;
    client c;
    sl_tp_options o = sl_tp_options_default();
    o.tls = v->tls;
    o.keepalive_ms = 200;
    peer_start(&p, v);
    client_open_with(&c, v, o);
    client_connect(&c, &p);
    client_ask(&c, (peer_command){.verb = DO_CRC, .a = 0, .b = 1});
    client_run(&c, 100);
    double before = cpu_seconds();
    client_run(&c, 1000);
    double used = cpu_seconds() - before;
    fprintf(stderr, "# %s: %.1f ms of CPU in 1 s idle\n", v->name, used * 1e3);
    ck_assert_msg(used < 0.05, "%.3f s", used);
    client_ask(&c, (peer_command){.verb = DO_CRC, .a = 0, .b = 1});
    ck_assert_int_eq(c.failed, 0);
    client_finish(&c, &p);
}
END_TEST

int main(void)
{
    TCase *t = tcase_create("conformance");
    add_variants(t, connect_and_close, n_variants);
    add_variants(t, connect_refused, n_variants);
    add_variants(t, connect_rejected, n_variants);
    add_variants(t, connect_times_out, n_variants);
    add_variants(t, late_join_many_endpoints, n_variants);
    add_variants(t, messages_echo, n_variants);
    add_variants(t, messages_in_order_both_ways, n_variants);
    add_variants(t, message_limits, n_variants);
    add_variants(t, message_largest, n_variants);
    add_variants(t, idle_sleeps, n_variants);
    return harness_run("transport_conformance", t);
}
