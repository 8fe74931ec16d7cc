/*
 * HTTP requests as bytes, through the real front: sockets, libmicrohttpd, routes, parser, queue, of a router without
 * workers. The bytes of an input are what one connection sends before it closes its side. Whatever they are, every answer
 * begins as one, and nothing is left when the connection is gone.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "tests/fuzz/front.h"

enum { TURNS = 20000, ANSWER_BYTES = 1 << 16 };

static sl_router *router;
static sl_front *front;

static void turn(void)
{
    uv_run(&router->loop, UV_RUN_NOWAIT);
}

/* Everything that belongs to a connection is gone. */
static bool quiet(void)
{
    return front->c->idle(front) && !router->requests.active && !router->requests.groups &&
           !router->queue.length && !sl_router_shared(router)->budget.held;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static char answer[ANSWER_BYTES];
    if (!router)
        front = fuzz_front_open(FUZZ_HTTP, &router);
    int fd = fuzz_front_connect(front);
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
    fuzz_front_close(fd, n);
    if (!fuzz_front_wait(router, quiet)) {
        fprintf(stderr, "an object has not been freed with its connection\n");
        abort();
    }
    return 0;
}
