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
    KEEP_BYTES = 64 * 1024,  /* of a stream's buffer after it was emptied */
    TURN_BYTES = 128 * 1024, /* that are read of a connection in one turn of the loop */
    /* Frames that carry no request: at once, more for each second, for each request that begins, and for each frame of an
     * answer, for which a client may give window back twice. */
    CONTROL_BURST = 4096,
    CONTROL_RATE = 200,
    CONTROL_PER_REQUEST = 4,
    CONTROL_PER_ANSWER = 2,
    /* Calls without a key in one connection: that are open, in a burst, and in each second after it. */
    KEYLESS_STREAMS = 32,
    KEYLESS_BURST = 200,
    KEYLESS_RATE = 50,
    /* CPU time of the loop's turn after which no more is read, and what the sending of a flush may add. */
    READ_NS = 8000000,
    SEND_NS = 4000000,
    PREFACE_BYTES = 24,
    FRAME_HEAD = 9
};

struct h2_server {
    h2_options o;
    uv_tcp_t *listener;
    int port;
    h2_conn *conns, *dirty, *paused;
    uint64_t turn;
    uint32_t n_conns;
    uint64_t swept_ns;
    bool closing;
};

/* What may be used up and comes back at a rate. */
typedef struct h2_bucket {
    double left;
    uint64_t filled_ns;
} h2_bucket;

/* Where the bytes of a peer are in the sequence of its frames. */
typedef struct h2_frames {
    uint32_t skip; /* bytes of the preface, or of the payload of a frame, that are still to come */
    uint32_t n_head;
    uint8_t head[FRAME_HEAD];
} h2_frames;

struct h2_conn {
    h2_server *server;
    h2_conn *next, *prev, *dirty_next, *paused_next;
    uv_tcp_t tcp;
    nghttp2_session *session;
    SSL *ssl;
    BIO *rbio, *wbio;
    h2_stream *streams;
    uint8_t address[16]; /* of the peer */
    struct sockaddr_storage peer;
    uint64_t since_ns;   /* opened, or the last stream ended */
    uint64_t written_ns; /* the socket last took something, or had nothing to take */
    h2_frames frames;
    h2_bucket control, keyless;
    uint32_t keyless_streams;
    uint64_t turn; /* of which turn_bytes are */
    size_t turn_bytes;
    size_t list_bytes; /* of the headers that are being read, as HTTP/2 counts them */
    uint32_t seen;     /* in these: those that matter, a bit each */
    bool is_paused, abusive;
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
    bool keyless;  /* counted in conn->keyless_streams */
};

/* The connection has something to send: the next flush looks at it. */
void h2_mark(h2_conn *c);
sl_status h2_open_session(h2_conn *c);
/* Streams that are still open get `closed`, then they are freed. */
void h2_drop_streams(h2_conn *c);
/* Takes n from the bucket, which has `most` at most and gains `rate` a second; false when it has less. A negative n gives
 * back. */
bool h2_bucket_take(h2_bucket *b, double n, double most, double rate);
/* Tells the peer that it does too much, and closes the connection. */
void h2_abuse(h2_conn *c);
/* Bytes from the peer; false when the connection must be closed. */
bool h2_feed_session(h2_conn *c, const uint8_t *p, size_t n);

#endif
