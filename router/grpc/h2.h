/*
 * HTTP/2 server: sockets, TLS and nghttp2, on the router's loop. It knows streams, headers, data and
 * trailers; rpc.h knows what they mean.
 *
 * Owns listeners, connections and streams. A stream lives from its headers until `closed`; afterwards its
 * pointer is invalid. Output is buffered per stream and sent as flow control allows; `drained` asks for more
 * when a stream has nothing left to send, so that long answers are made part by part. Limits against hostile
 * peers: concurrent streams, header bytes, the library's stream reset rate limit, connections (in all and of
 * one address), time for the handshake, time without a stream, time without progress of a stream's output.
 * Frames without a request, and calls without a key, have a rate; a connection that exceeds it is closed. What is read
 * and sent in one turn of the loop is bounded, for each connection and for all.
 * A stream that is answered before its client has sent everything is reset after the answer. Loop thread only.
 */
#ifndef SL_ROUTER_GRPC_H2_H
#define SL_ROUTER_GRPC_H2_H

#include <openssl/ssl.h>
#include <uv.h>

#include "base/strbuf.h"

typedef struct h2_server h2_server;
typedef struct h2_conn h2_conn;
typedef struct h2_stream h2_stream;

/* Request headers that matter; others are dropped. Zero-terminated, "" when absent. */
typedef struct h2_headers {
    char method[16], path[256], content_type[64], timeout[16], encoding[32];
    char authorization[320];
    char traceparent[64], tracestate[520];
} h2_headers;

typedef struct h2_callbacks {
    void *arg;
    void (*begin)(void *arg, h2_stream *s, const h2_headers *h); /* headers are complete */
    void (*data)(void *arg, h2_stream *s, const uint8_t *p, size_t n);
    void (*end)(void *arg, h2_stream *s);                /* the client has sent everything */
    void (*closed)(void *arg, h2_stream *s, bool clean); /* clean: we ended it and it was delivered */
    void (*connections)(void *arg, int change);
    /* Nothing waits to be sent: may write more, or finish. NULL: unused. */
    void (*drained)(void *arg, h2_stream *s);
    /* Nanoseconds for which the loop's turn has run. NULL: unused, nothing is bounded. */
    uint64_t (*turn_ns)(void *arg);
    /* The server ended a connection or a stream: "limit", "handshake", "idle", "unread", "rate".
     * NULL: unused. */
    void (*ended)(void *arg, const char *reason);
} h2_callbacks;

typedef struct h2_options {
    uv_loop_t *loop;
    const char *host;
    int port;
    /* The context of a connection that begins now; NULL = plain. The connection takes its own reference. */
    SSL_CTX *(*tls)(void *tls_arg);
    void *tls_arg;
    uint32_t max_connections, max_per_address, max_streams;
    uint32_t handshake_ms, idle_ms;
    size_t max_buffered;
    h2_callbacks cb;
} h2_options;

sl_status h2_server_create(const h2_options *o, h2_server **out, sl_err *err);
int h2_server_port(const h2_server *s);
/* Sends what is waiting; true when there was anything. */
bool h2_server_flush(h2_server *s);
/* Connections wait for the next flush. */
bool h2_server_behind(const h2_server *s);
/* Ends what took too long; to be called several times per second. */
void h2_server_tick(h2_server *s, uint64_t now_ns);
/* GOAWAY on every connection; open streams continue. */
void h2_server_goaway(h2_server *s);
/* Closes everything; streams get `closed` first. The memory is freed when the loop has closed the handles. */
void h2_server_destroy(h2_server *s);

void *h2_stream_user(const h2_stream *s);
/* The peer's address, as it was when it connected. Valid as long as the stream. */
const struct sockaddr *h2_stream_peer(const h2_stream *s);
/* As in begin(). */
const h2_headers *h2_stream_headers(const h2_stream *s);
void h2_stream_set_user(h2_stream *s, void *user);
/* The call has no key: one of the few that the connection may have at once, and of those in a second. False: it has too
 * many, and the connection ends. */
bool h2_stream_keyless(h2_stream *s);
bool h2_same_connection(const h2_stream *a, const h2_stream *b);
/* Begins the response with status 200 and this content type. */
void h2_stream_respond(h2_stream *s, const char *content_type);
/* Response without a body (plain HTTP error). */
void h2_stream_refuse(h2_stream *s, const char *status);
/* Appends body bytes; false when more than max_buffered waited already (the stream should be ended). */
bool h2_stream_write(h2_stream *s, const void *p, size_t n);
/* Body bytes that the client has not taken yet. */
size_t h2_stream_waiting(const h2_stream *s);
/* Ends the body with the trailers grpc-status, grpc-message and grpc-retry-pushback-ms (each of the last two only when
 * it is neither NULL nor empty); the first data may follow the headers already sent or not. */
void h2_stream_finish(h2_stream *s, const char *grpc_status, const char *grpc_message,
                      const char *pushback_ms);

#endif
