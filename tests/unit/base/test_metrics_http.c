/* The exporter over a real socket: both pages, errors, HEAD, a request with a body, a taken port, and a
 * clean stop. */
#include <netinet/in.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/metrics_http.h"
#include "tests/unit/run_suite.h"

static char reply[1 << 17];

/* Sends raw bytes, reads until the server closes. */
static const char *talk(int port, const char *request)
{
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    ck_assert_int_eq(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    ck_assert_int_eq(send(fd, request, strlen(request), MSG_NOSIGNAL), (ssize_t)strlen(request));
    size_t len = 0;
    ssize_t n;
    while (len < sizeof reply - 1 && (n = recv(fd, reply + len, sizeof reply - 1 - len, 0)) > 0)
        len += (size_t)n;
    reply[len] = '\0';
    close(fd);
    return reply;
}

static atomic_bool sick;

static bool health(void *arg, char *text, size_t n)
{
    (void)arg;
    if (atomic_load(&sick))
        snprintf(text, n, "no router");
    return !atomic_load(&sick);
}

#define CLOSE "Host: x\r\nConnection: close\r\n\r\n"

START_TEST(pages)
{
    sl_metrics *m;
    sl_exporter *e;
    sl_err err = {0};
    ck_assert_int_eq(sl_metrics_create(SL_METRICS_DECODE, &m), SL_OK);
    ck_assert_msg(sl_exporter_start(m, "127.0.0.1", 0, health, NULL, &e, &err) == SL_OK, "%s", err.text);
    int port = sl_exporter_port(e);
    ck_assert_int_gt(port, 0);

    const char *r = talk(port, "GET /metrics HTTP/1.1\r\n" CLOSE);
    ck_assert_ptr_nonnull(strstr(r, "HTTP/1.1 200"));
    ck_assert_ptr_nonnull(strstr(r, SL_METRICS_CONTENT_TYPE));
    ck_assert_ptr_nonnull(strstr(r, "\nsluice_decode_tokens_total 0\n"));
    ck_assert_ptr_nonnull(strstr(r, "\nprocess_resident_memory_bytes "));
    r = talk(port, "GET /health HTTP/1.1\r\n" CLOSE);
    ck_assert_ptr_nonnull(strstr(r, "HTTP/1.1 200"));
    ck_assert_ptr_nonnull(strstr(r, "\r\n\r\nok"));
    atomic_store(&sick, true);
    r = talk(port, "GET /health HTTP/1.1\r\n" CLOSE);
    ck_assert_ptr_nonnull(strstr(r, "HTTP/1.1 503"));
    ck_assert_ptr_nonnull(strstr(r, "no router"));
    ck_assert_ptr_nonnull(strstr(talk(port, "GET / HTTP/1.1\r\n" CLOSE), "HTTP/1.1 404"));
    r = talk(port, "POST /metrics HTTP/1.1\r\nContent-Length: 5\r\n" CLOSE "hello");
    ck_assert_ptr_nonnull(strstr(r, "HTTP/1.1 405"));
    ck_assert_ptr_nonnull(strstr(r, "Allow: GET, HEAD"));
    r = talk(port, "HEAD /metrics HTTP/1.1\r\n" CLOSE);
    ck_assert_ptr_nonnull(strstr(r, "HTTP/1.1 200"));
    ck_assert_ptr_null(strstr(r, "sluice_"));

    sl_exporter *second;
    ck_assert_int_eq(sl_exporter_start(m, "127.0.0.1", port, NULL, NULL, &second, &err), SL_ERR_IO);
    char want[64];
    snprintf(want, sizeof want, "127.0.0.1:%d", port);
    ck_assert_ptr_nonnull(strstr(err.text, want));
    sl_exporter_stop(e);
    ck_assert_msg(sl_exporter_start(m, "127.0.0.1", port, NULL, NULL, &second, &err) == SL_OK, "%s",
                  err.text);
    ck_assert_ptr_nonnull(strstr(talk(port, "GET /health HTTP/1.1\r\n" CLOSE), "HTTP/1.1 200"));
    sl_exporter_stop(second);
    sl_exporter_stop(NULL);
    sl_metrics_destroy(m);
}
END_TEST

START_TEST(bad_host)
{
    sl_exporter *e;
    sl_err err = {0};
    ck_assert_int_eq(sl_exporter_start(NULL, "192.0.2.1", 0, NULL, NULL, &e, &err), SL_ERR_IO);
    ck_assert_ptr_nonnull(strstr(err.text, "192.0.2.1"));
}
END_TEST

int main(void)
{
    Suite *s = suite_create("metrics_http");
    TCase *t = tcase_create("metrics_http");
    tcase_set_timeout(t, 30);
    tcase_add_test(t, pages);
    tcase_add_test(t, bad_host);
    suite_add_tcase(s, t);
    return run_suite(s);
}
