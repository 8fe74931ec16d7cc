/*
 * Bounds of docs/security.md that a test of a whole cluster cannot reach or could not tell from another bound, with the numbers of the
 * documentation: the ten minutes of a stream of Watch in virtual time, the requests that begin in one turn of the loop and the time after
 * which they are put off, `n` of a request in the core, and the length of the longest token.
 */
#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/strbuf.h"
#include "router/front.h"
#include "tests/unit/router/harness.h"
#include "tests/unit/run_suite.h"

enum { CLIENTS = 200, TURN_REQUESTS = 64 };
#define BEGIN_NS 12000000ull
#define WATCH_NS (600ull * 1000 * 1000000)

static harness h;

/* ---- how long the turn has lasted ---- */

static uint64_t turn_ns; /* what the router is told; 0: the truth */

uint64_t __real_sl_router_turn_ns(const sl_router *r);
uint64_t __wrap_sl_router_turn_ns(const sl_router *r);
uint64_t __wrap_sl_router_turn_ns(const sl_router *r)
{
    return turn_ns ? turn_ns : __real_sl_router_turn_ns(r);
}

static void open_router(void)
{
    turn_ns = 0;
    h_init(&h);
    h.o.front.http_port = h.o.front.grpc_port = 0;
    h.o.front.max_connections = 1000;
    h.o.request.max_queue = 100000;
    h_open(&h);
}

static int connect_to(const sl_front_class *c)
{
    struct sockaddr_in a = {.sin_family = AF_INET};
    for (size_t i = 0; i < SL_FRONTS; i++) {
        if (h.r->fronts[i] && h.r->fronts[i]->c == c)
            a.sin_port = htons((uint16_t)c->port(h.r->fronts[i]));
    }
    inet_pton(AF_INET, "127.0.0.1", &a.sin_addr);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert(fd >= 0 && connect(fd, (struct sockaddr *)&a, sizeof a) == 0);
    return fd;
}

/* ---- turns over HTTP/1.1 ---- */

static int fds[CLIENTS];

/* How many of the clients have an answer, which stays where it is. */
static int answered(void)
{
    char one;
    int n = 0;
    for (int i = 0; i < CLIENTS; i++)
        n += recv(fds[i], &one, 1, MSG_PEEK | MSG_DONTWAIT) == 1;
    return n;
}

/* All requests are there before the next turn begins. */
static void ask_all(void)
{
    static const char request[] = "GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n";
    for (int i = 0; i < CLIENTS; i++)
        fds[i] = connect_to(&sl_front_http);
    h_run(&h, 50);
    ck_assert_int_eq(answered(), 0);
    for (int i = 0; i < CLIENTS; i++)
        ck_assert_int_eq(send(fds[i], request, sizeof request - 1, 0), sizeof request - 1);
}

static void close_all(void)
{
    for (int i = 0; i < CLIENTS; i++)
        close(fds[i]);
    h_close(&h);
}

/* The turn is said to be just short enough, so that only their number ends it. */
START_TEST(some_requests_begin_in_a_turn)
{
    int before = 0, most = 0;
    open_router();
    ask_all();
    turn_ns = BEGIN_NS - 1;
    for (const uint64_t end = sl_now_ns() + 60 * 1000000000ull; before < CLIENTS && sl_now_ns() < end;) {
        h_turn(&h);
        const int now = answered();
        most = now - before > most ? now - before : most;
        before = now;
    }
    ck_assert_int_eq(before, CLIENTS);
    ck_assert_int_eq(most, TURN_REQUESTS);
    close_all();
}
END_TEST

START_TEST(a_long_turn_puts_requests_off)
{
    const bool puts_off = _i;
    open_router();
    ask_all();
    turn_ns = puts_off ? BEGIN_NS : BEGIN_NS - 1;
    h_turn(&h); /* which learns that there are bytes; the next turn reads them */
    h_turn(&h);
    ck_assert_int_eq(answered(), puts_off ? 0 : TURN_REQUESTS);
    H_UNTIL(&h, answered() == CLIENTS, 2000); /* each turn begins with some of those that were put off */
    close_all();
}
END_TEST

/* ---- Watch ---- */

static void frame(sl_strbuf *b, int type, int flags, int id, const char *bytes, size_t n)
{
    const char head[] = {0, 0, (char)n, (char)type, (char)flags, 0, 0, 0, (char)id};
    sl_sb_append(b, head, sizeof head);
    sl_sb_append(b, bytes, n);
}

static void header(sl_strbuf *b, const char *name, const char *value)
{
    sl_sb_char(b, 0);
    sl_sb_char(b, (char)strlen(name));
    sl_sb_str(b, name);
    sl_sb_char(b, (char)strlen(value));
    sl_sb_str(b, value);
}

static int watch(void)
{
    enum { DATA = 0, HEADERS = 1, SETTINGS = 4, END_STREAM = 1, END_HEADERS = 4 };
    sl_strbuf b = {0}, list = {0};
    header(&list, ":method", "POST");
    header(&list, ":scheme", "http");
    header(&list, ":path", "/grpc.health.v1.Health/Watch");
    header(&list, ":authority", "x");
    header(&list, "content-type", "application/grpc");
    header(&list, "te", "trailers");
    sl_sb_str(&b, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
    frame(&b, SETTINGS, 0, 0, "", 0);
    frame(&b, HEADERS, END_HEADERS, 1, list.data, list.len);
    frame(&b, DATA, END_STREAM, 1, "\0\0\0\0\0", 5);
    int fd = connect_to(&sl_front_grpc);
    ck_assert(!b.bad && !list.bad && send(fd, b.data, b.len, 0) == (ssize_t)b.len);
    sl_sb_free(&b);
    sl_sb_free(&list);
    return fd;
}

/* Whether stream 1 has ended by what was received so far; messages: how many it had. */
static bool watch_ended(int fd, int *messages)
{
    static unsigned char got[1 << 16];
    ssize_t n = recv(fd, got, sizeof got, MSG_PEEK | MSG_DONTWAIT);
    bool end = n == 0;
    *messages = 0;
    for (ssize_t at = 0, len; at + 9 <= n; at += 9 + len) {
        len = got[at] << 16 | got[at + 1] << 8 | got[at + 2];
        *messages += got[at + 3] == 0 && got[at + 8] == 1;
        end |= got[at + 8] == 1 && (got[at + 3] == 3 || (got[at + 3] <= 1 && got[at + 4] & 1));
    }
    return end;
}

START_TEST(a_watch_without_news_lasts_ten_minutes)
{
    int messages;
    open_router(); /* without workers: the status stays */
    uint64_t now = sl_now_ns();
    sl_now_virtual(&now);
    int fd = watch();
    for (int i = 0; i < 100000 && (watch_ended(fd, &messages), !messages); i++)
        h_turn(&h);
    ck_assert_int_eq(messages, 1);
    const uint64_t begun = now;
    for (; now < begun + WATCH_NS - 10000000; now += WATCH_NS / 100) {
        for (int i = 0; i < 3; i++)
            h_turn(&h);
        ck_assert_msg(!watch_ended(fd, &messages), "after %lu s",
                      (unsigned long)((now - begun) / 1000000000u));
    }
    now = begun + WATCH_NS - 1;
    for (int i = 0; i < 50; i++)
        h_turn(&h);
    ck_assert(!watch_ended(fd, &messages));
    now = begun + WATCH_NS + 200000000; /* and a tick */
    for (int i = 0; i < 1000 && !watch_ended(fd, &messages); i++) {
        h_turn(&h);
        usleep(1000); /* timers of the loop have their own clock */
    }
    ck_assert(watch_ended(fd, &messages));
    ck_assert_int_eq(messages, 1);
    sl_now_virtual(NULL);
    close(fd);
    h_close(&h);
}
END_TEST

/* ---- requests ---- */

START_TEST(n_of_a_request)
{
    static const struct {
        uint32_t n;
        size_t prompts;
        bool taken;
    } cases[] = {{1, 1, true},   {128, 1, true},  {129, 1, false}, {0, 1, false},
                 {128, 8, true}, {128, 9, false}, {1, 0, false}};
    open_router();
    h_add(&h, SL_ROLE_PREFILL);
    h_add(&h, SL_ROLE_DECODE);
    for (size_t i = 0; i < SL_COUNT(cases); i++) {
        sl_request_spec s;
        sl_err err = {""};
        client c = {0};
        h_spec(&s, 5, 1);
        sl_prompt *list = calloc(cases[i].prompts + 1, sizeof *list);
        for (size_t k = 0; k < cases[i].prompts; k++) {
            list[k] = s.prompts[0];
            list[k].ids = calloc(s.prompts[0].n, sizeof *list[k].ids);
            memcpy(list[k].ids, s.prompts[0].ids, s.prompts[0].n * sizeof *list[k].ids);
        }
        free(s.prompts[0].ids);
        free(s.prompts);
        s.prompts = list;
        s.n_prompts = cases[i].prompts;
        s.n = cases[i].n;
        const sl_status st = h_try_submit(&h, &c, &s, &err);
        ck_assert_msg((st != SL_ERR_INVALID) == cases[i].taken, "%u of %zu: %s", cases[i].n, cases[i].prompts,
                      err.text);
        sl_group_release(c.group);
        sl_request_spec_free(&s);
    }
    h_close(&h);
}
END_TEST

/* A body counts as its bytes divided by 1,024 before it is tokenized. */
START_TEST(the_longest_token)
{
    uint32_t retry_s;
    sl_err err = {""};
    open_router();
    h_add(&h, SL_ROLE_PREFILL);
    h_add(&h, SL_ROLE_DECODE);
    sl_tenant t = {.name = "a", .weight = 1, .tokens_per_minute = 10};
    h.r->tenants.list = &t;
    h.r->tenants.n = 1;
    ck_assert_int_eq(sl_call_begin(h.r, "a", 10 * 1024 + 1023, &retry_s, &err), SL_OK);
    ck_assert_int_eq(sl_call_begin(h.r, "a", 11 * 1024, &retry_s, &err), SL_ERR_INVALID);
    ck_assert_msg(strstr(err.text, "11 tokens at least"), "%s", err.text);
    h.r->tenants.list = NULL;
    h.r->tenants.n = 0;
    h_close(&h);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("router/bounds");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 120);
    tcase_add_test(t, some_requests_begin_in_a_turn);
    tcase_add_loop_test(t, a_long_turn_puts_requests_off, 0, 2);
    tcase_add_test(t, a_watch_without_news_lasts_ten_minutes);
    tcase_add_test(t, n_of_a_request);
    tcase_add_test(t, the_longest_token);
    suite_add_tcase(s, t);
    return run_suite(s);
}
