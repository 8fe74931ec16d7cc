/* Replay buffer and its requests, endpoints and topics, and the owner's side with a real subscriber that does not read. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "events/events.h"
#include "events/replay.h"
#include "tests/unit/run_suite.h"

/* ---- replay ---- */

static bool parse(const char *a, size_t n_a, const char *b, size_t n_b, size_t n, uint64_t *from,
                  bool *delimiter)
{
    sl_replay_frame f[3] = {{a, n_a}, {b, n_b}, {"", 0}};
    return sl_replay_parse(f, n, from, delimiter);
}

START_TEST(requests)
{
    static const char number[] = "\x01\x02\x03\x04\x05\x06\x07\x08";
    uint64_t from;
    bool delimiter;
    ck_assert(parse(number, 8, NULL, 0, 1, &from, &delimiter));
    ck_assert_uint_eq(from, 0x0102030405060708);
    ck_assert(!delimiter);
    ck_assert(parse("", 0, number, 8, 2, &from, &delimiter));
    ck_assert_uint_eq(from, 0x0102030405060708);
    ck_assert(delimiter);
    ck_assert(!parse(number, 7, NULL, 0, 1, &from, &delimiter));
    ck_assert(!parse("", 0, number, 7, 2, &from, &delimiter));
    ck_assert(!parse(number, 8, number, 8, 2, &from, &delimiter));
    ck_assert(!parse("", 0, number, 8, 3, &from, &delimiter));
    ck_assert(!parse("", 0, NULL, 0, 1, &from, &delimiter));
    ck_assert(!sl_replay_parse(NULL, 0, &from, &delimiter));
}
END_TEST

static void keep(sl_replay *r, uint64_t sequence, size_t n)
{
    static const char bytes[100];
    sl_events_batch *b = sl_events_batch_new(sequence, bytes, n);
    sl_replay_keep(r, b);
    sl_events_batch_release(b);
}

/* Bounded in batches and in bytes, and found by a number even when some are absent. */
START_TEST(buffer)
{
    sl_replay r;
    ck_assert_int_eq(sl_replay_open(&r, 5, 100), SL_OK);
    ck_assert_uint_eq(sl_replay_find(&r, 0), 0);
    for (uint64_t i = 0; i < 20; i++) {
        keep(&r, 2 * i, 10);
        ck_assert_uint_le(r.n, 5);
    }
    ck_assert_uint_eq(r.n, 5);
    ck_assert_uint_eq(sl_replay_at(&r, 0)->sequence, 30);
    ck_assert_uint_eq(sl_replay_find(&r, 0), 0);
    ck_assert_uint_eq(sl_replay_find(&r, 33), 2);
    ck_assert_uint_eq(sl_replay_find(&r, 38), 4);
    ck_assert_uint_eq(sl_replay_find(&r, 39), 5);
    keep(&r, 50, 85);
    ck_assert_uint_eq(r.n, 2);
    ck_assert_uint_eq(r.bytes, 95);
    keep(&r, 51, 100);
    ck_assert_uint_eq(r.n, 1);
    sl_replay_close(&r);
    ck_assert_int_eq(sl_replay_open(&r, 0, 100), SL_OK);
    keep(&r, 1, 10);
    ck_assert_uint_eq(r.n, 0);
    sl_replay_close(&r);
}
END_TEST

/* ---- endpoints and topics ---- */

static const char *endpoint(const char *configured, int index)
{
    static char out[SL_EVENTS_ENDPOINT_MAX];
    static sl_err err;
    return sl_events_endpoint(configured, index, out, &err) == SL_OK ? out : err.text;
}

START_TEST(endpoints)
{
    ck_assert_str_eq(endpoint("tcp://*:5557", 3), "tcp://*:5560");
    ck_assert_str_eq(endpoint("tcp://[::1]:80", 0), "tcp://[::1]:80");
    ck_assert_str_eq(endpoint("ipc:///run/kv", 1), "ipc:///run/kv-1");
    static const char *const wrong[] = {
        "",          "tcp://",        "tcp://host",    "tcp://:5",      "tcp://host:",
        "tcp://h:x", "tcp://h:65536", "tcp://h:65535", "tcp://h:-1",    "ipc://",
        "udp://h:1", "tcp://h:0",     "h:5557",        "tcp://h:999999"};
    for (size_t i = 0; i < SL_COUNT(wrong); i++)
        ck_assert_msg(endpoint(wrong[i], 1)[0] == '"', "\"%s\" gives %s", wrong[i], endpoint(wrong[i], 1));
    char host[32];
    sl_events_endpoint_host("tcp://[::1]:80", host, sizeof host);
    ck_assert_str_eq(host, "::1");
    sl_events_endpoint_host("tcp://127.0.0.1:80", host, sizeof host);
    ck_assert_str_eq(host, "127.0.0.1");
    sl_events_endpoint_host("tcp://*:80", host, sizeof host);
    ck_assert_str_eq(host, "");
    sl_events_endpoint_host("ipc:///run/kv", host, sizeof host);
    ck_assert_str_eq(host, "");
}
END_TEST

START_TEST(topics)
{
    char out[32];
    ck_assert(sl_events_topic("kv@{worker}@{model}", "decode/0", "m", "h", out, sizeof out));
    ck_assert_str_eq(out, "kv@decode/0@m");
    ck_assert(sl_events_topic("{host}{no}{", "w", "m", "here", out, sizeof out));
    ck_assert_str_eq(out, "here{no}{");
    ck_assert(!sl_events_topic("{model}{model}", "w", "twenty bytes of a name", "h", out, sizeof out));
}
END_TEST

/* ---- the owner's side ---- */

static const sl_events_opts ipc_opts = {.topic = "t",
                                        .medium = {"cpu", "disk", "shared"},
                                        .hwm = 10,
                                        .buffer_steps = 100,
                                        .buffer_bytes = 1 << 20,
                                        .resend_all = true};

static sl_status open_at(const char *name, const char *replay, sl_events **out, sl_err *err)
{
    char path[128];
    snprintf(path, sizeof path, "ipc:///tmp/test-events-%s-%d", name, (int)getpid());
    sl_events_opts o = ipc_opts;
    o.endpoint = path;
    o.replay_endpoint = replay;
    sl_status st = sl_events_open(&o, out, err);
    unlink(path + strlen("ipc://")); /* this test connects nothing to it */
    return st;
}

/* Changes are never waited for, without a subscriber; and nothing is to be told again without a subscriber or a loss. */
START_TEST(no_subscriber)
{
    sl_events *e = NULL;
    sl_err err = {0};
    sl_status st = open_at("alone", "", &e, &err);
    if (st == SL_ERR_UNSUPPORTED)
        return;
    ck_assert_msg(st == SL_OK, "%s", err.text);
    int32_t tokens[64] = {1, 2, 3};
    for (uint64_t i = 0; i < 20000; i++) {
        sl_events_block b = {.hash = i, .parent = i - 1, .first = !i, .tokens = tokens, .n_tokens = 64};
        sl_events_stored(e, SL_MEDIUM_HOST, &b);
        sl_events_removed(e, SL_MEDIUM_DISK, i);
    }
    sl_events_flush(e);
    ck_assert(!sl_events_wants_all(e, sl_now_ns()));
    sl_events_close(e);
    sl_events_close(NULL);
}
END_TEST

START_TEST(refused)
{
    sl_events *e = NULL;
    sl_err err = {0};
    sl_status st = open_at("refused", "tcp://no such host:1", &e, &err);
    if (st == SL_ERR_UNSUPPORTED)
        return;
    ck_assert_int_eq(st, SL_ERR_INVALID);
    ck_assert_msg(strstr(err.text, "replay_endpoint \"tcp://no such host:1\": ") != NULL, "%s", err.text);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("events");
    TCase *c = tcase_create("events");
    tcase_set_timeout(c, 60);
    tcase_add_test(c, requests);
    tcase_add_test(c, buffer);
    tcase_add_test(c, endpoints);
    tcase_add_test(c, topics);
    tcase_add_test(c, no_subscriber);
    tcase_add_test(c, refused);
    suite_add_tcase(s, c);
    return run_suite(s);
}
