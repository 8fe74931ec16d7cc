/*
 * A peer posts puts or gets without a pause and is killed, or stopped, while operations are posted and frames are in
 * the socket. The target must continue to run. There are many rounds, because errors depend on the moment. The
 * memory is freed after `closed`, and no byte changes between `closed` and the free.
 */
#include <check.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/log.h"
#include "tests/unit/transport/harness.h"

enum { BYTES = 1 << 20 };

typedef enum { KILLED, STOPPED, STOPPED_THEN_KILLED, ENDINGS } ending;

static const int rounds_of[ENDINGS] = {12, 4, 4};
static const size_t sizes[] = {BYTES, 43008, 4096, 200000};

/* Waits until operations arrive: until the last byte is written, or for gets a short time. */
static void storm(client *c, const volatile uint8_t *last, bool gets)
{
    uint64_t until = sl_now_ns() + 10000000000ull;
    while (!gets && *last == 0 && sl_now_ns() < until)
        sl_tp_progress(c->tp);
    ck_assert(gets || *last != 0);
    client_run(c, gets ? 10 : 2);
}

/* The peer ends while we run no progress; what it had sent is in the socket. */
static void end_peer(client *c, peer *p, ending how, int round)
{
    usleep((useconds_t)(round % 7) * 1000);
    if (how != KILLED)
        ck_assert_int_eq(kill(p->pid, SIGSTOP), 0);
    if (how == STOPPED_THEN_KILLED)
        client_run(c, 20);
    if (how != STOPPED) {
        peer_kill(p);
        usleep((useconds_t)(round % 3) * 1000);
        ck_assert(client_wait(c, &c->failed, round + 1, 20000));
    } else {
        client_run(c, 50);
    }
}

static void one_round(client *c, const variant *v, int round, ending how, bool gets)
{
    peer p;
    sl_tp_mem *mem;
    sl_err err = {0};
    uint8_t *buf = calloc(1, BYTES), key[SL_TP_RKEY_MAX];
    size_t n, bytes = sizes[(size_t)round % SL_COUNT(sizes)];
    peer_start(&p, v);
    client_connect(c, &p);
    ck_assert_int_eq(sl_tp_mem_register(c->tp, buf, BYTES, SL_TP_HOST,
                                        gets ? SL_TP_REMOTE_READ : SL_TP_REMOTE_WRITE, &mem, &err),
                     SL_OK);
    ck_assert_int_eq(sl_tp_rkey_pack(mem, key, sizeof key, &n), SL_OK);
    client_send(c, (peer_command){.verb = DO_HAMMER, .a = (uintptr_t)buf, .b = bytes, .c = gets}, key, n);
    storm(c, buf + bytes - 1, gets);
    end_peer(c, &p, how, round);
    sl_tp_close(c->ep, SL_TP_CLOSE_FORCE);
    ck_assert(client_wait(c, &c->closed, round + 1, 10000));
    uint32_t before = sl_crc32c(0, buf, BYTES);
    if (how == STOPPED) {
        kill(p.pid, SIGCONT);
        client_run(c, 20);
        peer_kill(&p);
    }
    client_run(c, 5);
    ck_assert_uint_eq(before, sl_crc32c(0, buf, BYTES));
    sl_tp_mem_deregister(mem);
    free(buf);
    peer_join(&p);
}

static void rounds(const variant *v, ending how, bool gets)
{
    client c;
    sl_tp_stats s;
    if (!v->process)
        return;
    int n = v->tls ? rounds_of[how] : rounds_of[how] / 4;
    client_open(&c, v);
    for (int round = 0; round < n; round++)
        one_round(&c, v, round, how, gets);
    sl_tp_get_stats(c.tp, &s);
    ck_assert_uint_eq(s.pending, 0);
    ck_assert_uint_eq(s.endpoints, 0);
    ck_assert_uint_eq(s.messages_refused, 0);
    client_close(&c);
}

START_TEST(writer_dies)
{
    rounds(&variants[_i / ENDINGS], (ending)(_i % ENDINGS), false);
}
END_TEST

START_TEST(reader_dies)
{
    rounds(&variants[_i / ENDINGS], (ending)(_i % ENDINGS), true);
}
END_TEST

/* A put with a key that allows only reading, and a put to memory that is not registered any more, end the connection
 * of their sender. The memory does not change, and the target continues to run. */
START_TEST(forbidden)
{
    const variant *v = &variants[_i];
    peer p;
    client c;
    sl_tp_stats s;
    sl_err err = {0};
    if (strcmp(v->transport, "ucx") != 0)
        return;
    peer_start(&p, v);
    client_open(&c, v);
    for (int round = 0; round < 4; round++) {
        sl_tp_mem *mem;
        uint8_t *buf = calloc(1, BYTES), key[SL_TP_RKEY_MAX];
        bool gets = round & 1, gone = round & 2;
        size_t n;
        unsigned access = gone   ? SL_TP_REMOTE_READ | SL_TP_REMOTE_WRITE
                          : gets ? SL_TP_REMOTE_WRITE
                                 : SL_TP_REMOTE_READ;
        client_connect(&c, &p);
        ck_assert_int_eq(sl_tp_mem_register(c.tp, buf, BYTES, SL_TP_HOST, access, &mem, &err), SL_OK);
        ck_assert_int_eq(sl_tp_rkey_pack(mem, key, sizeof key, &n), SL_OK);
        if (gone)
            sl_tp_mem_deregister(mem);
        client_send(&c, (peer_command){.verb = DO_HAMMER, .a = (uintptr_t)buf, .b = 4096, .c = gets}, key, n);
        ck_assert(client_wait(&c, &c.failed, round + 1, 10000));
        ck_assert_msg(strstr(c.why, "outside of the memory"), "%s", c.why);
        sl_tp_close(c.ep, SL_TP_CLOSE_FORCE);
        ck_assert(client_wait(&c, &c.closed, round + 1, 10000));
        for (size_t i = 0; i < BYTES; i++)
            ck_assert_uint_eq(buf[i], 0);
        if (!gone)
            sl_tp_mem_deregister(mem);
        free(buf);
        sl_tp_get_stats(c.tp, &s);
        ck_assert_uint_eq(s.accesses_refused, (unsigned)round + 1);
    }
    client_connect(&c, &p);
    client_finish(&c, &p);
}
END_TEST

int main(void)
{
    TCase *t = tcase_create("writer_dies");
    tcase_add_loop_test(t, writer_dies, 0, n_variants * ENDINGS);
    tcase_add_loop_test(t, reader_dies, 0, n_variants * ENDINGS);
    tcase_add_loop_test(t, forbidden, 0, n_variants);
    return harness_run("transport_writer_dies", t);
}
