/*
 * Traces without a router: the headers of clients, bounds of spans and of the list of the last traces, the documents, and the exporter
 * against servers that take nothing, answer slowly, or are not there. That the bytes are OTLP is shown by tests/e2e/test_traces.py.
 */
#include <arpa/inet.h>
#include <check.h>
#include <jansson.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "router/trace/exporter.h"
#include "router/trace/otlp.h"
#include "router/trace/post.h"
#include "router/trace/traces.h"
#include "tests/unit/run_suite.h"

static const char good[] = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

/* ---- the client's headers ---- */

START_TEST(context_is_read)
{
    sl_trace_context c;
    char hex[33];
    sl_trace_context_read(good, "congo=t61rcWkgMzE,rojo=00f067aa0ba902b7", &c);
    ck_assert(c.given && c.sampled);
    sl_trace_hex(c.id, 16, hex);
    ck_assert_str_eq(hex, "0af7651916cd43dd8448eb211c80319c");
    sl_trace_hex(c.parent, 8, hex);
    ck_assert_str_eq(hex, "b7ad6b7169203331");
    ck_assert_str_eq(c.state, "congo=t61rcWkgMzE,rojo=00f067aa0ba902b7");
    sl_trace_context_read("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-02", NULL, &c);
    ck_assert(c.given && !c.sampled && !c.state[0]);
    sl_trace_context_read("cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-what-the-future-will-be",
                          NULL, &c);
    ck_assert(c.given && c.sampled); /* a later version */
    sl_trace_context_read(NULL, "a=b", &c);
    ck_assert(!c.given && !c.state[0]);
}
END_TEST

/* Every byte of a good header replaced by every other one, and every length. */
START_TEST(every_damaged_header_is_absent)
{
    sl_trace_context c;
    char s[sizeof good + 1];
    for (size_t i = 0; i < sizeof good - 1; i++) {
        for (int b = 1; b < 256; b++) {
            memcpy(s, good, sizeof good);
            s[i] = (char)b;
            sl_trace_context_read(s, NULL, &c);
            bool hex = (b >= '0' && b <= '9') || (b >= 'a' && b <= 'f'), dash = i == 2 || i == 35 || i == 52;
            bool want = dash ? b == '-' : hex;
            ck_assert_msg(c.given == want, "byte %d at %zu", b, i);
        }
        memcpy(s, good, sizeof good);
        s[i] = 0;
        sl_trace_context_read(s, NULL, &c);
        ck_assert(!c.given);
    }
    snprintf(s, sizeof s, "%s-", good); /* version 0 has no more */
    sl_trace_context_read(s, NULL, &c);
    ck_assert(!c.given);
    for (int zero = 0; zero < 3; zero++) {
        memcpy(s, good, sizeof good);
        if (zero == 2)
            memcpy(s, "ff", 2);
        else
            memset(s + (zero ? 36 : 3), '0', zero ? 16 : 32);
        sl_trace_context_read(s, NULL, &c);
        ck_assert(!c.given);
    }
}
END_TEST

START_TEST(state_is_bounded)
{
    sl_trace_context c;
    char s[SL_TRACE_STATE_MAX + 2];
    memset(s, '=', sizeof s);
    s[SL_TRACE_STATE_MAX] = 0;
    sl_trace_context_read(good, s, &c);
    ck_assert_uint_eq(strlen(c.state), SL_TRACE_STATE_MAX);
    s[SL_TRACE_STATE_MAX] = '=';
    s[SL_TRACE_STATE_MAX + 1] = 0;
    sl_trace_context_read(good, s, &c);
    ck_assert(c.given && !c.state[0]);
    sl_trace_context_read(good, "a=\r\nX: y", &c);
    ck_assert(c.given && !c.state[0]);
}
END_TEST

/* ---- spans ---- */

static sl_trace *make(const char *id, uint64_t rid, uint32_t choices)
{
    sl_trace_context c;
    sl_trace_context_read(NULL, NULL, &c);
    sl_trace *t = sl_trace_new(&c, id, "chat", choices, sl_now_ns());
    ck_assert_ptr_nonnull(t);
    t->rid = rid;
    return t;
}

/* However many spans are made: the number is bounded, the rest is counted, and the stages that repeat leave room. */
START_TEST(spans_are_bounded)
{
    sl_trace *t = make("many", 1, (uint32_t)_i);
    uint32_t tried = 0;
    for (int i = 0; i < 5000; i++, tried++) {
        int32_t s = sl_trace_open(t, i & 1 ? SL_SPAN_QUEUE : SL_SPAN_RESERVE, -1, NULL, NULL, sl_now_ns());
        sl_trace_close(t, s, sl_now_ns(), i % 3 ? NULL : "no room");
    }
    uint32_t before = t->n;
    ck_assert_uint_eq(t->n + t->dropped, tried + 1);
    ck_assert_int_ge(sl_trace_open(t, SL_SPAN_DECODE, -1, NULL, NULL, 1), 0);
    for (int i = 0; i < 5000; i++) {
        char name[32];
        snprintf(name, sizeof name, "decode/%d", i);
        sl_trace_open(t, SL_SPAN_STEPS, 0, "decode", name, 1);
    }
    ck_assert_uint_gt(t->n, before + 10);
    ck_assert_uint_le(t->n, 1024);
    ck_assert_uint_le(t->n_workers, SL_TRACE_WORKERS);
    for (uint32_t i = 1; i < t->n; i++) {
        ck_assert(t->spans[i].parent >= 0 && (uint32_t)t->spans[i].parent < i);
        ck_assert_uint_lt(t->spans[i].worker, t->n_workers);
    }
    sl_trace_unref(t);
}
END_TEST

/* Texts of clients and of workers cannot break the document. */
START_TEST(chrome_is_json)
{
    sl_trace *t = make("\"},{\"ph\":\"X\\", 7, 1);
    int32_t s = sl_trace_open(t, SL_SPAN_STEPS, -1, "decode", "a\"b\n\xff", t->spans[0].begin + 5);
    sl_trace_close(t, s, t->spans[0].begin, "bad \"reason\"\x01"); /* an end before the begin */
    char *text = sl_trace_chrome(t);
    json_error_t e;
    json_t *o = json_loads(text, 0, &e);
    ck_assert_msg(o != NULL, "%s: %s", e.text, text);
    json_t *events = json_object_get(o, "traceEvents");
    ck_assert_uint_eq(json_array_size(events), 4);
    json_t *last = json_array_get(events, 3);
    ck_assert_str_eq(json_string_value(json_object_get(last, "name")), "steps");
    ck_assert(json_number_value(json_object_get(last, "dur")) == 0);
    json_decref(o);
    free(text);
    sl_trace_unref(t);
}
END_TEST

/* ---- the last traces ---- */

START_TEST(the_newest_are_kept)
{
    sl_traces *s;
    sl_traces_options o = {.model = "m"};
    sl_err err = {""};
    ck_assert_int_eq(sl_traces_create(&o, &s, &err), SL_OK);
    const int n = SL_TRACES_KEPT + 100;
    char id[32];
    for (int i = 0; i < n; i++) {
        snprintf(id, sizeof id, "id-%d", i);
        sl_traces_add(s, make(id, 0x1000u + 4 * (unsigned)i, 3));
    }
    ck_assert_ptr_null(sl_traces_find(s, "id-99"));
    ck_assert_str_eq(sl_traces_find(s, "id-100")->id, "id-100");
    snprintf(id, sizeof id, "id-%d", n - 1);
    const sl_trace *last = sl_traces_find(s, id);
    ck_assert_str_eq(last->id, id);
    for (unsigned k = 0; k < 5; k++) {
        snprintf(id, sizeof id, "%016lx", (unsigned long)last->rid + k);
        ck_assert(k < 3 ? sl_traces_find(s, id) == last : !sl_traces_find(s, id));
    }
    char hex[33];
    sl_trace_hex(last->context.id, 16, hex);
    ck_assert_ptr_eq(sl_traces_find(s, hex), last);
    ck_assert_ptr_null(sl_traces_find(s, ""));
    ck_assert_ptr_null(sl_traces_find(s, "000000000000000g"));
    sl_traces_close(s);
}
END_TEST

START_TEST(memory_of_the_last_is_bounded)
{
    enum { MOST = 8 << 20 };
    sl_traces *s;
    sl_traces_options o = {.model = "m"};
    sl_err err = {""};
    ck_assert_int_eq(sl_traces_create(&o, &s, &err), SL_OK);
    size_t bytes = 0;
    char id[32];
    int n = 0;
    for (; bytes < 4 * MOST; n++) {
        snprintf(id, sizeof id, "big-%d", n);
        sl_trace *t = make(id, (uint64_t)n + 1, 64);
        for (int i = 0; i < 800; i++)
            sl_trace_close(t, sl_trace_open(t, SL_SPAN_DECODE, -1, NULL, NULL, 1), 2, "an error");
        bytes += sl_trace_bytes(t);
        sl_traces_add(s, t);
    }
    size_t kept = 0;
    for (int i = 0; i < n; i++) {
        snprintf(id, sizeof id, "big-%d", i);
        const sl_trace *t = sl_traces_find(s, id);
        kept += t ? sl_trace_bytes(t) : 0;
    }
    ck_assert_uint_gt(kept, MOST / 2);
    ck_assert_uint_le(kept, MOST);
    sl_traces_close(s);
}
END_TEST

/* ---- the exporter ---- */

START_TEST(urls)
{
    static const struct {
        const char *url, *host, *port, *path; /* host NULL: refused */
    } cases[] = {
        {"http://h", "h", "4318", "/v1/traces"},
        {"http://h/", "h", "4318", "/v1/traces"},
        {"http://h:80/x/y?z", "h", "80", "/x/y?z"},
        {"http://[::1]:1", "::1", "1", "/v1/traces"},
        {"http://[fe80::1]/p", "fe80::1", "4318", "/p"},
        {"http://10.0.0.1:65535", "10.0.0.1", "65535", "/v1/traces"},
        {"", NULL, "", ""},
        {"h:80", NULL, "", ""},
        {"https://h", NULL, "", ""},
        {"HTTP://h", NULL, "", ""},
        {"http://", NULL, "", ""},
        {"http:///x", NULL, "", ""},
        {"http://:80", NULL, "", ""},
        {"http://h:", NULL, "", ""},
        {"http://h:0", NULL, "", ""},
        {"http://h:65536", NULL, "", ""},
        {"http://h: 80", NULL, "", ""},
        {"http://h:+80", NULL, "", ""},
        {"http://a:b@h", NULL, "", ""},
        {"http://u@h", NULL, "", ""},
        {"http://::1", NULL, "", ""},
        {"http://[::1", NULL, "", ""},
        {"http://[]", NULL, "", ""},
        {"http://h/\r\nX: y", NULL, "", ""},
        {"http://h/#f", NULL, "", ""},
    };
    for (size_t i = 0; i < SL_COUNT(cases); i++) {
        sl_trace_url u;
        sl_err err = {""};
        sl_status st = sl_trace_url_read(cases[i].url, &u, &err);
        ck_assert_msg((st == SL_OK) == (cases[i].host != NULL), "%s: %s", cases[i].url, err.text);
        if (st) {
            ck_assert_msg(strstr(err.text, "router.traces") != NULL, "%s", err.text);
            continue;
        }
        ck_assert_str_eq(u.host, cases[i].host);
        ck_assert_str_eq(u.port, cases[i].port);
        ck_assert_str_eq(u.path, cases[i].path);
    }
}
END_TEST

/* Listens, and takes connections only if asked to. */
static int listen_here(int *port)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof a;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
    ck_assert_int_eq(listen(fd, 16), 0);
    ck_assert_int_eq(getsockname(fd, (struct sockaddr *)&a, &n), 0);
    *port = ntohs(a.sin_port);
    return fd;
}

static uint64_t spans(sl_metrics *m, const char *result)
{
    return sl_counter_value(sl_metrics_counter(m, "sluice_trace_spans_total", SL_LABELS(result)));
}

/* A trace that has this many spans more. */
static sl_trace *longer(uint64_t rid, int more)
{
    sl_trace *t = make("x", rid, 1);
    for (int i = 0; i < more; i++)
        sl_trace_close(t, sl_trace_open(t, SL_SPAN_QUEUE, -1, NULL, NULL, 1), 1, "no room");
    return t;
}

/* A collector that never answers: posting continues without waiting, what does not fit is dropped and counted, and closing ends. In the
 * end every span was counted once. Small traces come to the bound of their number, large ones to that of their bytes. */
START_TEST(a_silent_collector)
{
    const unsigned most = 2048, n = most + 600;
    const size_t most_bytes = 16 << 20;
    int port, fd = listen_here(&port);
    char url[64];
    sl_metrics *m;
    sl_exporter *e;
    sl_err err = {""};
    size_t bytes = 0, each = 0;
    ck_assert_int_eq(sl_metrics_create(SL_METRICS_ROUTER, &m), SL_OK);
    snprintf(url, sizeof url, "http://127.0.0.1:%d", port);
    ck_assert_int_eq(sl_trace_exporter_create(url, "m", m, &e, &err), SL_OK);
    struct pollfd waiting = {.fd = fd, .events = POLLIN};
    for (unsigned i = 0; i < n; i++) {
        sl_trace *t = longer(i + 1, _i ? 40 : 0);
        bytes = sl_trace_bytes(t);
        each = t->n;
        sl_trace_exporter_post(e, t);
        sl_trace_unref(t);
        if (!i) /* until the thread has taken it and connects: it takes no other while no answer comes */
            ck_assert_int_eq(poll(&waiting, 1, 60000), 1);
    }
    const unsigned fit = _i ? (unsigned)(most_bytes / bytes) : most;
    ck_assert_msg((most_bytes / bytes < most) == _i, "%zu bytes", bytes);
    ck_assert_uint_eq(spans(m, "dropped"), (n - 1 - fit) * each);
    sl_trace_exporter_close(e);
    ck_assert_uint_eq(spans(m, "exported"), 0);
    ck_assert_uint_eq(spans(m, "dropped") + spans(m, "failed"), n * each);
    sl_metrics_destroy(m);
    close(fd);
}
END_TEST

typedef struct answers {
    int fd;
    const char *const *list; /* of one connection each */
    size_t n, got;
} answers;

static void *serve(void *arg)
{
    answers *a = arg;
    static char sink[1 << 16];
    for (; a->got < a->n; a->got++) {
        int c = accept(a->fd, NULL, NULL);
        if (c < 0)
            break;
        ck_assert_int_ge(recv(c, sink, sizeof sink, 0), 0);
        for (const char *s = a->list[a->got]; *s; s++) /* one byte at a time */
            (void)send(c, s, 1, MSG_NOSIGNAL);         /* it closes when it has read the first line */
        shutdown(c, SHUT_WR);
        while (recv(c, sink, sizeof sink, 0) > 0)
            ;
        close(c);
    }
    return NULL;
}

/* What passes is sent again, what is wrong is not. */
START_TEST(answers_of_collectors)
{
    static const char ok[] = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
                      accepted[] = "HTTP/1.1 202 Accepted\r\n\r\n";
    static const char busy[] = "HTTP/1.1 429 Too Many\r\n\r\n", gone[] = "", odd[] = "SSH-2.0-x\r\n",
                      wrong[] = "HTTP/1.1 400 Bad\r\n\r\n", moved[] = "HTTP/1.1 301 Moved\r\n\r\n",
                      long_line[] = "HTTP/1.1 200";
    static const struct {
        const char *list[3];
        size_t n;
        bool taken;
    } cases[] = {{{ok}, 1, true},      {{accepted}, 1, true}, {{busy, ok}, 2, true}, {{gone, ok}, 2, true},
                 {{odd, ok}, 2, true}, {{wrong}, 1, false},   {{moved}, 1, false},   {{long_line}, 1, true}};
    for (size_t i = 0; i < SL_COUNT(cases); i++) {
        answers a = {.list = cases[i].list, .n = cases[i].n};
        int port;
        char url[64];
        pthread_t thread;
        sl_metrics *m;
        sl_exporter *e;
        sl_err err = {""};
        a.fd = listen_here(&port);
        ck_assert_int_eq(pthread_create(&thread, NULL, serve, &a), 0);
        snprintf(url, sizeof url, "http://127.0.0.1:%d", port);
        ck_assert_int_eq(sl_metrics_create(SL_METRICS_ROUTER, &m), SL_OK);
        ck_assert_int_eq(sl_trace_exporter_create(url, "m", m, &e, &err), SL_OK);
        sl_trace *t = make("x", 1, 1);
        sl_trace_exporter_post(e, t);
        pthread_join(thread, NULL);
        sl_trace_exporter_close(e);
        ck_assert_uint_eq(spans(m, "exported"), cases[i].taken);
        ck_assert_uint_eq(spans(m, "failed"), !cases[i].taken);
        ck_assert_uint_eq(t->refs, 1);
        sl_trace_unref(t);
        sl_metrics_destroy(m);
        close(a.fd);
    }
}
END_TEST

/* A collector that always refuses is asked five times, and not a sixth time. The pauses between them are waited for. */
START_TEST(five_tries)
{
    static const char busy[] = "HTTP/1.1 429 Too Many\r\n\r\n",
                      ok[] = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
    static const char *const list[] = {busy, busy, busy, busy, busy, ok};
    answers a = {.list = list, .n = SL_COUNT(list)};
    int port;
    char url[64];
    pthread_t thread;
    sl_metrics *m;
    sl_exporter *e;
    sl_err err = {""};
    a.fd = listen_here(&port);
    ck_assert_int_eq(pthread_create(&thread, NULL, serve, &a), 0);
    snprintf(url, sizeof url, "http://127.0.0.1:%d", port);
    ck_assert_int_eq(sl_metrics_create(SL_METRICS_ROUTER, &m), SL_OK);
    ck_assert_int_eq(sl_trace_exporter_create(url, "m", m, &e, &err), SL_OK);
    sl_trace *t = make("x", 1, 1);
    sl_trace_exporter_post(e, t);
    while (!spans(m, "failed") && !spans(m, "exported"))
        usleep(10000);
    ck_assert_uint_eq(spans(m, "failed"), 1);
    shutdown(a.fd, SHUT_RD); /* it waits for the sixth: accept() fails */
    pthread_join(thread, NULL);
    ck_assert_uint_eq(a.got, 5);
    sl_trace_exporter_close(e);
    sl_trace_unref(t);
    sl_metrics_destroy(m);
    close(a.fd);
}
END_TEST

/* No process listens: what is posted is counted as failed when the exporter ends, and that is soon. */
START_TEST(nobody_listens)
{
    int port, fd = listen_here(&port);
    char url[64];
    sl_metrics *m;
    sl_exporter *e;
    sl_err err = {""};
    close(fd);
    ck_assert_int_eq(sl_metrics_create(SL_METRICS_ROUTER, &m), SL_OK);
    snprintf(url, sizeof url, "http://127.0.0.1:%d", port);
    ck_assert_int_eq(sl_trace_exporter_create(url, "m", m, &e, &err), SL_OK);
    for (unsigned i = 0; i < 300; i++) {
        sl_trace *t = make("x", i + 1, 1);
        sl_trace_exporter_post(e, t);
        sl_trace_unref(t);
    }
    sl_trace_exporter_close(e);
    ck_assert_uint_eq(spans(m, "failed"), 300);
    sl_metrics_destroy(m);
}
END_TEST

/* The bytes are a sequence of length-delimited field 1, whatever the spans are; bounded by the spans. */
START_TEST(otlp_is_a_sequence_of_resources)
{
    sl_trace *t = make("id", 1, 2);
    sl_strbuf out = {0};
    for (uint32_t i = 0; i < 40; i++)
        sl_trace_close(t,
                       sl_trace_open(t, (sl_span_kind)(1 + i % (SL_SPAN_KINDS - 1)), -1, "decode",
                                     i % 3 ? "decode/0" : NULL, i),
                       i + 1, i % 5 ? NULL : "why");
    sl_otlp_add(&out, t, "m");
    size_t at = 0, n = 0;
    while (at < out.len) {
        ck_assert_uint_eq((unsigned char)out.data[at], 1 << 3 | 2);
        size_t len = 0;
        for (int shift = 0;; shift += 7) {
            unsigned char b = (unsigned char)out.data[++at];
            len |= (size_t)(b & 127) << shift;
            if (b < 128)
                break;
        }
        at += 1 + len;
        n++;
    }
    ck_assert_uint_eq(at, out.len);
    ck_assert_uint_eq(n, t->n_workers);
    sl_sb_free(&out);
    sl_trace_unref(t);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("trace");
    TCase *t = tcase_create("trace");
    tcase_set_timeout(t, 120);
    tcase_add_test(t, context_is_read);
    tcase_add_test(t, every_damaged_header_is_absent);
    tcase_add_test(t, state_is_bounded);
    tcase_add_loop_test(t, spans_are_bounded, 1, 3);
    tcase_add_test(t, chrome_is_json);
    tcase_add_test(t, the_newest_are_kept);
    tcase_add_test(t, memory_of_the_last_is_bounded);
    tcase_add_test(t, urls);
    tcase_add_loop_test(t, a_silent_collector, 0, 2);
    tcase_add_test(t, answers_of_collectors);
    tcase_add_test(t, nobody_listens);
    tcase_add_test(t, five_tries);
    tcase_add_test(t, otlp_is_a_sequence_of_resources);
    suite_add_tcase(s, t);
    return run_suite(s);
}
