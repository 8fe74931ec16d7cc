/*
 * A handler sends to a peer that has just died: the message that starts the handler and the hang-up of the dead peer
 * are found by the same wake-up. The send must fail with a status, and this process must continue to run.
 */
#include <check.h>
#include <signal.h>
#include <unistd.h>

#include "base/log.h"
#include "tests/unit/run_suite.h"
#include "tests/unit/transport/harness.h"

enum { ROUNDS = 12, UNREAD = 20 };

static sl_tp_ep *dead;
static int answers, sends;

/* Handles the answers of the peer that is alive: sends each to the other peer. */
static void pass_on(void *arg, sl_tp_ep *ep, uint16_t id, const void *header, size_t hn, const void *data,
                    size_t n)
{
    client *c = arg;
    const peer_command cmd = {.verb = DO_ECHO};
    (void)ep;
    (void)id;
    (void)header;
    (void)hn;
    (void)data;
    (void)n;
    answers++;
    sl_status st = sl_tp_send(dead, AM_COMMAND, &cmd, sizeof cmd, NULL, 0, client_done, c);
    sends += st == SL_OK;
    ck_assert_msg(st == SL_OK || st == SL_ERR_PEER, "status %d", (int)st);
}

static sl_tp_ep *join(client *c, peer *p, const variant *v)
{
    peer_start(p, v);
    client_connect(c, p);
    return c->ep;
}

START_TEST(send_to_the_dead)
{
    static const variant v = {"ucx tcp, processes", "ucx", "tcp", true, false};
    client c;
    peer living, dying;
    client_open(&c, &v);
    sl_tp_ep *alive = join(&c, &living, &v);
    for (int round = 0; round < ROUNDS; round++) {
        dead = join(&c, &dying, &v);
        c.done = answers = sends = 0;
        sl_tp_handle(c.tp, AM_ECHO, pass_on, &c);
        const peer_command cmd = {.verb = DO_ECHO};
        ck_assert_int_eq(kill(dying.pid, SIGSTOP), 0);
        for (int i = 0; i < UNREAD; i++) /* unread data makes the end of that peer a TCP reset */
            ck_assert_int_eq(sl_tp_send(dead, AM_COMMAND, &cmd, sizeof cmd, NULL, 0, NULL, NULL), SL_OK);
        client_run(&c, 5);
        for (int i = 0; i < UNREAD; i++)
            ck_assert_int_eq(sl_tp_send(alive, AM_COMMAND, &cmd, sizeof cmd, NULL, 0, NULL, NULL), SL_OK);
        usleep(20000); /* the answers have arrived and have not been handled */
        peer_kill(&dying);
        peer_join(&dying);
        int failed = c.failed, closed = c.closed;
        ck_assert_msg(client_wait(&c, &c.failed, failed + 1, 5000), "round %d: the death was not noticed",
                      round);
        ck_assert(client_wait(&c, &answers, UNREAD, 5000));
        ck_assert(client_wait(&c, &c.done, sends, 5000));
        sl_tp_close(dead, SL_TP_CLOSE_FORCE);
        ck_assert(client_wait(&c, &c.closed, closed + 1, 5000));
    }
    c.ep = alive;
    client_finish(&c, &living);
}
END_TEST

int main(void)
{
    sl_log_init(SL_LOG_WARN, false, "test");
    signal(SIGPIPE, SIG_IGN);
    Suite *s = suite_create("transport_send_to_the_dead");
    TCase *t = tcase_create("send_to_the_dead");
    tcase_set_timeout(t, 60);
    tcase_add_test(t, send_to_the_dead);
    suite_add_tcase(s, t);
    return run_suite(s);
}
