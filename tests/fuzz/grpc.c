/*
 * gRPC input, from HTTP/2 frames to messages, sent to a router without workers and sockets. The first byte chooses:
 * even: the rest is what a client sends after its preface; odd: the second byte chooses a method, and the rest is the
 * body of a well-formed call.
 */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "router/core/core_impl.h"
#include "router/grpc/rpc.h"
#include "bench/mock/mock.h"

enum { MAX_BODY = 256 << 10, FRAME_BYTES = 16000 };

static const char preface[] = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
static sl_router *router;
static sl_grpc grpc;

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

static void open_router(void)
{
    router = calloc(1, sizeof *router);
    sl_tokenizer *tok = NULL;
    if (!router || sl_mock_tokenizer(&tok, NULL))
        abort();
    sl_log_init(SL_LOG_ERROR, false, "fuzz");
    sl_router_opts_default(&router->o);
    router->model.tok = tok;
    router->cluster.max_context = router->model.context = 4096;
    router->queue.policy = &sl_policy_round_robin;
    router->fronts[1] = &grpc.front;
    rpc_front_init(&grpc, router);
    if (sl_router_stats_init(&router->stats, "m") || sl_effects_init(router))
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (!router)
        open_router();
    if (n < 2)
        return 0;
    sl_strbuf b = {0};
    put(&b, preface, sizeof preface - 1);
    if (data[0] & 1)
        well_formed(&b, data[1], data + 2, n - 2);
    else
        put(&b, data + 1, n - 1);
    h2_callbacks cb;
    rpc_callbacks(&grpc, &cb);
    h2_feed(&cb, (const uint8_t *)b.data, b.len);
    sl_sb_free(&b);
    sl_effects_run(router);
    sl_groups_sweep(router);
    if (grpc.calls || grpc.generating || router->requests.active || router->requests.groups ||
        router->queue.length)
        abort(); /* an object has not been freed with its connection */
    return 0;
}
