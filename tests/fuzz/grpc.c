/*
 * gRPC input, from HTTP/2 frames to messages, through the real front: sockets, HTTP/2 session, methods, queue, of a router
 * without workers. The first byte chooses: even: the rest is what a client sends after its preface; odd: the second byte
 * chooses a method, and the rest is the body of a well-formed call. Whatever comes, nothing is left when the connection is gone.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "router/grpc/rpc.h"
#include "tests/fuzz/front.h"

enum {
    MAX_BODY = 256 << 10,
    FRAME_BYTES = 16000,
    TURNS = 20000,
    ANSWER_TURNS = 20,
    POOL_TURNS = 20,
    POOL_US = 50
};

static const char preface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
static sl_router *router;
static sl_front *front;

static void put(sl_strbuf *b, const void *p, size_t n)
{
    sl_sb_append(b, p, n);
}

static void put_frame(sl_strbuf *b, uint8_t type, uint8_t flags, uint8_t stream, size_t n)
{
    uint8_t h[9] = {(uint8_t)(n >> 16), (uint8_t)(n >> 8), (uint8_t)n, type, flags, 0, 0, 0, stream};
    put(b, h, sizeof h);
}

/* A literal header field without indexing. */
static void put_header(sl_strbuf *b, const char *name, const char *value)
{
    uint8_t len[2] = {(uint8_t)strlen(name), (uint8_t)strlen(value)};
    sl_sb_char(b, 0x10);
    put(b, &len[0], 1);
    sl_sb_str(b, name);
    put(b, &len[1], 1);
    sl_sb_str(b, value);
}

static void well_formed(sl_strbuf *b, uint8_t method, const uint8_t *data, size_t n)
{
    sl_strbuf h = {0};
    put_header(&h, ":method", "POST");
    put_header(&h, ":scheme", "http");
    put_header(&h, ":path", rpc_methods[method % rpc_method_count()].path);
    put_header(&h, ":authority", "x"); /* without it the library ends the stream */
    put_header(&h, "content-type", "application/grpc");
    put_header(&h, "te", "trailers");
    put_frame(b, 4, 0, 0, 0);
    put_frame(b, 1, 4, 1, h.len);
    put(b, h.data, h.len);
    sl_sb_free(&h);
    n = n < MAX_BODY ? n : MAX_BODY;
    uint8_t prefix[5] = {0, 0, (uint8_t)(n >> 16), (uint8_t)(n >> 8), (uint8_t)n};
    put_frame(b, 0, n == 0, 1, 5);
    put(b, prefix, 5);
    for (size_t at = 0, part; at < n; at += part) { /* deeply nested messages are longer than one frame */
        part = n - at < FRAME_BYTES ? n - at : FRAME_BYTES;
        put_frame(b, 0, at + part == n, 1, part);
        put(b, data + at, part);
    }
}

/* False: the router has closed the connection. */
static bool turn(int fd)
{
    static char answer[1 << 16];
    uv_run(&router->loop, UV_RUN_NOWAIT);
    ssize_t k = recv(fd, answer, sizeof answer, MSG_DONTWAIT);
    return k > 0 || (k < 0 && (errno == EAGAIN || errno == EINTR));
}

static void send_all(int fd, const char *data, size_t n)
{
    size_t sent = 0;
    for (int i = 0; i < TURNS && sent < n && turn(fd); i++) {
        ssize_t k = send(fd, data + sent, n - sent, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (k < 0 && errno != EAGAIN && errno != EINTR)
            return;
        sent += k > 0 ? (size_t)k : 0;
    }
    for (int i = 0; i < ANSWER_TURNS + POOL_TURNS && turn(fd); i++) { /* the pool works on what has come */
        if (i >= ANSWER_TURNS && !sl_router_shared(router)->pool.running)
            return;
        usleep(i < ANSWER_TURNS ? 0 : POOL_US);
    }
}

static bool quiet(void)
{
    const sl_grpc *g = (const sl_grpc *)front;
    return front->c->idle(front) && !g->calls && !g->generating && !router->requests.active &&
           !router->requests.groups && !router->queue.length;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (!router)
        front = fuzz_front_open(FUZZ_GRPC, &router);
    if (n < 2)
        return 0;
    sl_strbuf b = {0};
    put(&b, preface, sizeof preface - 1);
    if (data[0] & 1)
        well_formed(&b, data[1], data + 2, n - 2);
    else
        put(&b, data + 1, n - 1);
    int fd = fuzz_front_connect(front);
    send_all(fd, b.data, b.len);
    fuzz_front_close(fd, b.len);
    sl_sb_free(&b);
    if (!fuzz_front_wait(router, quiet)) { /* an object has not been freed with its connection */
        const sl_grpc *g = (const sl_grpc *)front;
        fprintf(
            stderr,
            "left after the connection: idle %d, calls %d, generating %u, requests %u, groups %d, queue %u\n",
            front->c->idle(front), g->calls != NULL, g->generating, router->requests.active,
            router->requests.groups != NULL, router->queue.length);
        abort();
    }
    return 0;
}
