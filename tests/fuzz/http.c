/*
 * HTTP requests as bytes, through the real front: sockets, libmicrohttpd, routes, parser, queue, of a router without
 * workers. The bytes of an input are what one connection sends before it closes its side. Whatever they are, every answer
 * begins as one, and nothing is left when the connection is gone.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "bench/mock/mock.h"
#include "router/core/core_impl.h"
#include "router/front.h"

enum { TURNS = 20000, QUIET_MS = 10000, ANSWER_BYTES = 1 << 16 };

static sl_router *router;
static sl_front *front;

static void open_front(void)
{
    static sl_tokenizer *tok;
    sl_router_opts o;
    sl_err err = {""};
    sl_log_init(SL_LOG_ERROR, false, "fuzz");
    sl_router_opts_default(&o);
    o.transport = "loopback";
    o.http_host = "127.0.0.1";
    o.http_port = 0;
    o.grpc_port = -1;
    o.served_name = "m";
    o.max_context = 4096;
    o.handshake_timeout_ms = o.receive_timeout_ms = o.idle_timeout_ms = 100; /* a body that stays away */
    if (sl_mock_tokenizer(&tok, NULL))
        abort();
    o.tokenizer = tok;
    if (sl_router_create_opts(&o, &router, &err)) {
        fprintf(stderr, "%s\n", err.text);
        abort();
    }
    front = router->fronts[0];
}

static void turn(void)
{
    uv_run(&router->loop, UV_RUN_NOWAIT);
}

static int connect_front(void)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)front->c->port(front))};
    inet_pton(AF_INET, "127.0.0.1", &a.sin_addr);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&a, sizeof a))
        abort();
    return fd;
}

/* Everything that belongs to a connection is gone. */
static bool quiet(void)
{
    return front->c->idle(front) && !router->requests.active && !router->requests.groups &&
           !router->queue.length && !sl_router_shared(router)->held;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static char answer[ANSWER_BYTES];
    if (!router)
        open_front();
    int fd = connect_front();
    size_t got = 0, sent = 0;
    ssize_t k = 1;
    for (int i = 0; i < TURNS && k; i++) {
        if (sent < n) {
            k = send(fd, data + sent, n - sent, MSG_DONTWAIT | MSG_NOSIGNAL);
            sent += k > 0 ? (size_t)k : 0;
            if (sent == n || (k < 0 && errno != EAGAIN)) {
                sent = n;
                shutdown(fd, SHUT_WR);
            }
        } else if (!n) {
            shutdown(fd, SHUT_WR);
        }
        turn();
        k = recv(fd, answer + got, sizeof answer - got, MSG_DONTWAIT);
        got += k > 0 ? (size_t)k : 0;
        got = got == sizeof answer ? sizeof answer / 2 : got;
        if (k < 0 && errno != EAGAIN)
            break;
        k = k ? 1 : 0;
    }
    if (got >= 9 && memcmp(answer, "HTTP/1.1 ", 9))
        abort();
    close(fd);
    for (int i = 0; i < QUIET_MS && !quiet(); i++) {
        turn();
        usleep(1000);
    }
    if (!quiet())
        abort(); /* an object has not been freed with its connection */
    return 0;
}
