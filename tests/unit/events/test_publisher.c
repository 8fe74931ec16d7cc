/*
 * The thread with the sockets, with subscribers that do not read, a queue that is full, and clients that ask and do not listen:
 * what is lost is counted and can be had again, and nothing stops the others.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <zmq.h>

#include "base/log.h"
#include "events/events.h"
#include "tests/unit/run_suite.h"

#define LOST "sluice_kv_event_batches_lost_total"

static char endpoint[64], replay_endpoint[128];
static sl_metrics *metrics;
static sl_events *events;
static void *context;

static void open_events(int hwm, size_t steps, size_t queue_bytes)
{
    sl_err err = {0};
    snprintf(endpoint, sizeof endpoint, "ipc:///tmp/test-publisher-%d", (int)getpid());
    snprintf(replay_endpoint, sizeof replay_endpoint, "%s-replay", endpoint);
    ck_assert_int_eq(sl_metrics_create(SL_METRICS_DECODE, &metrics), SL_OK);
    sl_events_opts o = {.endpoint = endpoint,
                        .replay_endpoint = replay_endpoint,
                        .topic = "kv@w@m",
                        .medium = {"cpu", "disk", "shared"},
                        .hwm = hwm,
                        .buffer_steps = steps,
                        .buffer_bytes = 1 << 28,
                        .queue_bytes = queue_bytes,
                        .resend_all = true,
                        .metrics = metrics};
    ck_assert_msg(sl_events_open(&o, &events, &err) == SL_OK, "%s", err.text);
    context = zmq_ctx_new();
}

static void close_events(void)
{
    sl_events_close(events);
    zmq_ctx_term(context);
    sl_metrics_destroy(metrics);
    unlink(endpoint + strlen("ipc://"));
    unlink(replay_endpoint + strlen("ipc://"));
}

static uint64_t counted(const char *name, const char *reason)
{
    return sl_counter_value(sl_metrics_counter(metrics, name, reason ? SL_LABELS(reason) : NULL));
}

static void *connect_to(int type, const char *to, int hwm)
{
    void *s = zmq_socket(context, type);
    int linger = 0, timeout = 20000;
    zmq_setsockopt(s, ZMQ_LINGER, &linger, sizeof linger);
    zmq_setsockopt(s, ZMQ_RCVHWM, &hwm, sizeof hwm);
    zmq_setsockopt(s, ZMQ_RCVTIMEO, &timeout, sizeof timeout);
    if (type == ZMQ_SUB)
        zmq_setsockopt(s, ZMQ_SUBSCRIBE, "kv@", 3);
    ck_assert_int_eq(zmq_connect(s, to), 0);
    return s;
}

static uint64_t number_of(const uint8_t be[8])
{
    uint64_t v = 0;
    for (int i = 0; i < 8; i++)
        v = v << 8 | be[i];
    return v;
}

/* The number of the next message, whose frames before it are as many; *n: bytes of its payload. */
static uint64_t next(void *s, int before, size_t *n)
{
    static uint8_t bytes[1 << 20];
    uint8_t be[8];
    while (before--)
        ck_assert_int_ge(zmq_recv(s, bytes, sizeof bytes, 0), 0);
    ck_assert_int_eq(zmq_recv(s, be, sizeof be, 0), 8);
    int got = zmq_recv(s, bytes, sizeof bytes, 0);
    ck_assert_int_ge(got, 0);
    *n = (size_t)got;
    return number_of(be);
}

static void pause_ms(int ms)
{
    nanosleep(&(struct timespec){.tv_nsec = ms * 1000000l}, NULL);
}

/* One batch of 64 pages; returns its number. */
static uint64_t publish_batch(void)
{
    static uint64_t number;
    static int32_t tokens[64];
    for (uint64_t i = 0; i < 64; i++) {
        sl_events_block b = {.hash = number * 64 + i, .first = true, .tokens = tokens, .n_tokens = 64};
        sl_events_stored(events, SL_MEDIUM_HOST, &b);
    }
    sl_events_flush(events);
    return ++number;
}

static void wait_published(uint64_t n)
{
    for (int i = 0; i < 2000 && counted("sluice_kv_event_batches_published_total", NULL) < n; i++)
        pause_ms(10);
    ck_assert_uint_eq(counted("sluice_kv_event_batches_published_total", NULL), n);
}

static void wait_wants_all(uint64_t now)
{
    for (int i = 0; i < 2000 && !sl_events_wants_all(events, now); i++)
        pause_ms(10);
    ck_assert(sl_events_wants_all(events, now));
}

static void ask(void *s, uint8_t from)
{
    ck_assert_int_eq(zmq_send(s, (uint8_t[8]){[7] = from}, 8, ZMQ_DONTWAIT), 8);
}

/* It loses batches, that is counted, and its gap can be filled. */
START_TEST(slow_subscriber)
{
    enum { BATCHES = 600 };
    open_events(5, 10000, 0);
    void *slow = connect_to(ZMQ_SUB, endpoint, 5);
    wait_wants_all(sl_now_ns()); /* it has subscribed */
    sl_events_all_begin(events, sl_now_ns());
    sl_events_all_end(events);
    for (int i = 0; i < BATCHES; i++)
        publish_batch();
    wait_published(BATCHES + 2);
    ck_assert_uint_gt(counted(LOST, "subscriber"), 0);
    size_t n;
    uint64_t got = 0, last = 0;
    for (zmq_pollitem_t p = {.socket = slow, .events = ZMQ_POLLIN}; zmq_poll(&p, 1, 300) > 0; got++) {
        uint64_t at = next(slow, 1, &n);
        ck_assert(!got || at > last);
        last = at;
    }
    ck_assert_uint_lt(got, BATCHES);
    void *s = connect_to(ZMQ_DEALER, replay_endpoint, 1000000);
    ask(s, 0);
    for (uint64_t i = 0; i < BATCHES + 2; i++)
        ck_assert_uint_eq(next(s, 0, &n), i);
    ck_assert_uint_eq(next(s, 0, &n), UINT64_MAX);
    ck_assert_uint_eq(n, 0);
    zmq_close(s);
    zmq_close(slow);
    close_events();
}
END_TEST

/* A batch that finds the queue full is lost, and the whole cache is asked for when there is room again. */
START_TEST(full_queue)
{
    open_events(10, 100, 1);
    wait_published(1);
    ck_assert(!sl_events_wants_all(events, sl_now_ns()));
    for (int i = 0; i < 100000 && !counted(LOST, "queue"); i++)
        publish_batch();
    ck_assert_uint_gt(counted(LOST, "queue"), 0);
    uint64_t now = sl_now_ns();
    wait_wants_all(now);
    sl_events_all_begin(events, now);
    uint64_t before = counted(LOST, "queue");
    for (int i = 0; i < 50; i++)
        publish_batch();
    sl_events_all_end(events);
    ck_assert_uint_eq(counted(LOST, "queue"), before); /* the whole cache is never cut */
    ck_assert(!sl_events_wants_all(events, now + 3600000000000ull));
    ck_assert_uint_eq(counted("sluice_kv_event_resends_total", NULL), 1);
    close_events();
}
END_TEST

/* Requests without an end from a client that reads no answer: bounded, counted, and another client is served. */
START_TEST(client_that_does_not_read)
{
    enum { KEPT = 10 };
    open_events(10, KEPT, 0);
    for (int i = 0; i < 3 * KEPT; i++)
        publish_batch();
    wait_published(3 * KEPT + 1);
    void *deaf = connect_to(ZMQ_DEALER, replay_endpoint, 1),
         *s = connect_to(ZMQ_DEALER, replay_endpoint, 1000);
    for (int i = 0; i < 2000 && !counted(LOST, "replay"); i++) {
        zmq_send(deaf, (uint8_t[8]){0}, 8, ZMQ_DONTWAIT);
        if (i % 100 == 99)
            pause_ms(10);
    }
    for (int i = 0; i < 500 && !counted(LOST, "replay"); i++)
        pause_ms(10);
    ck_assert_uint_gt(counted(LOST, "replay"), 0);
    ask(s, 0);
    size_t n;
    for (uint64_t i = 2 * KEPT + 1; i < 3 * KEPT + 1; i++)
        ck_assert_uint_eq(next(s, 0, &n), i);
    ck_assert_uint_eq(next(s, 0, &n), UINT64_MAX);
    zmq_close(deaf);
    zmq_close(s);
    close_events();
}
END_TEST

int main(void)
{
    Suite *s = suite_create("publisher");
    TCase *c = tcase_create("publisher");
    tcase_set_timeout(c, 120);
    tcase_add_test(c, slow_subscriber);
    tcase_add_test(c, full_queue);
    tcase_add_test(c, client_that_does_not_read);
    suite_add_tcase(s, c);
    return run_suite(s);
}
