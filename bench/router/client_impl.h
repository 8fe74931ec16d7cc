/*
 * What the files of the load generator share: client.c runs the loop and records the times, client_http.c and
 * client_grpc.c speak their protocol. One thread.
 */
#ifndef SL_BENCH_ROUTER_CLIENT_IMPL_H
#define SL_BENCH_ROUTER_CLIENT_IMPL_H

#include <nghttp2/nghttp2.h>
#include <uv.h>

#include "base/strbuf.h"
#include "bench/router/client.h"

typedef struct client_driver client_driver;

/* One place for a request in flight; a finished request is followed by the next one in the same slot. */
typedef struct client_slot {
    client_driver *d;
    bool busy;
    uint64_t begin_ns, last_ns; /* when the request began; when its last token arrived */
    uint32_t tokens, counted;   /* that have arrived; the last answer's own count */
    const sl_bench_ask *ask;
    char *body; /* the bytes of its request: HTTP text or a gRPC message; NULL: not made */
    size_t body_len;

    /* HTTP: the slot's connection */
    uv_tcp_t tcp;
    sl_strbuf in; /* received bytes that are not parsed yet */
    bool in_body, chunked;
    long body_left;
    int code;

    /* gRPC: the stream of the request */
    uint8_t head[5]; /* of the message that is arriving */
    size_t n_head, message_left;
    sl_strbuf message;
    bool failed;
} client_slot;

struct client_driver {
    const sl_bench_load *l;
    sl_bench_load_result *r;
    uv_loop_t loop;
    client_slot *slots; /* [l->concurrency] */
    uint32_t started, ended;
    sl_status st;     /* first failure of a connection */
    uv_timer_t timer; /* looks at the watch */
    struct sockaddr_storage address;

    /* gRPC: the one connection of all streams */
    uv_tcp_t tcp;
    nghttp2_session *h2;
};

/* client.c: the life of a request, whatever the protocol. */
void sl_client_begin(client_slot *s);
/* n > 0 tokens of the slot's request have arrived. */
void sl_client_tokens(client_slot *s, uint32_t n);
/* The request is answered. Ends the run when it was the last one. */
void sl_client_end(client_slot *s, bool ok);
/* Ends the run because a connection failed. */
void sl_client_give_up(client_driver *d, sl_status st);

/* client.c: connections. data becomes tcp->data and the data of the connect request, which cb frees. */
void sl_client_connect(client_driver *d, uv_tcp_t *tcp, void *data, uv_connect_cb cb);
/* Writes a copy of the bytes. */
void sl_client_write(uv_tcp_t *t, const void *data, size_t n);
/* The allocation callback of every connection: a buffer that is valid until the read callback returns. */
void sl_client_alloc(uv_handle_t *h, size_t hint, uv_buf_t *buf);

/*
 * Each protocol: makes the body of a slot (NULL when out of memory), then opens the connections, which send as soon as they
 * can.
 */
void sl_client_http_body(client_slot *s);
void sl_client_http_start(client_driver *d);
void sl_client_grpc_body(client_slot *s);
void sl_client_grpc_start(client_driver *d);

#endif
