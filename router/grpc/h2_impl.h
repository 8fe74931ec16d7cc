/*
 * Inside the HTTP/2 server: what h2.c (sessions and streams) and h2_socket.c (connections, TLS, listening)
 * share.
 */
#ifndef SL_ROUTER_GRPC_H2_IMPL_H
#define SL_ROUTER_GRPC_H2_IMPL_H

#include <nghttp2/nghttp2.h>

#include "router/grpc/h2.h"

enum {
    READ_BYTES = 64 * 1024,
    QUEUE_BYTES = 256 * 1024, /* in the socket's queue before we stop pulling */
    WINDOW_BYTES = 1 << 20,
    HEADER_LIST_BYTES = 16 * 1024,
    RESET_BURST = 1000,
    RESET_RATE = 33,
    KEEPALIVE_S = 60,
    KEEP_BYTES = 64 * 1024, /* of a stream's buffer after it was emptied */
};

struct h2_server {
    h2_options o;
    uv_tcp_t *listener;
    int port;
    h2_conn *conns, *dirty;
    uint32_t n_conns;
    uint64_t swept_ns;
    bool closing;
};

struct h2_conn {
    h2_server *server;
    h2_conn *next, *prev, *dirty_next;
    uv_tcp_t tcp;
    nghttp2_session *session;
    SSL *ssl;
    BIO *rbio, *wbio;
    h2_stream *streams;
    uint8_t address[16]; /* of the peer */
    struct sockaddr_storage peer;
    uint64_t since_ns;   /* opened, or the last stream ended */
    uint64_t written_ns; /* the socket last took something, or had nothing to take */
    bool is_dirty, closing, counted, in_callback, broken, greeted, leaving;
};

struct h2_stream {
    h2_conn *conn;
    h2_stream *next, *prev;
    int32_t id;
    h2_headers h;
    void *user;
    sl_strbuf out;
    size_t taken;
    char status[8], pushback[16], *message;
    uint64_t progress_ns; /* the peer last took output, or none waited */
    bool begun, responded, finishing, deferred;
    bool complete; /* the peer has sent everything */
};

/* The connection has something to send: the next flush looks at it. */
void h2_mark(h2_conn *c);
sl_status h2_open_session(h2_conn *c);
/* Streams that are still open get `closed`, then they are freed. */
void h2_drop_streams(h2_conn *c);
/* Bytes from the peer; false when the connection must be closed. */
bool h2_feed_session(h2_conn *c, const uint8_t *p, size_t n);

#endif
