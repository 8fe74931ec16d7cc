/*
 * gRPC front: the scheduler protocol, health and reflection, on nghttp2 in the router's loop. Here: method table,
 * message framing, deadlines, authentication, status, over h2.h. A call lives until its `gone` runs; finishing it does
 * not free it, because its last bytes may not have been sent yet. Loop thread only.
 */
#ifndef SL_ROUTER_GRPC_RPC_H
#define SL_ROUTER_GRPC_RPC_H

#include <protobuf-c/protobuf-c.h>

#include "router/front.h"
#include "router/grpc/h2.h"

typedef enum {
    RPC_OK = 0,
    RPC_CANCELLED = 1,
    RPC_UNKNOWN = 2,
    RPC_INVALID_ARGUMENT = 3,
    RPC_DEADLINE_EXCEEDED = 4,
    RPC_NOT_FOUND = 5,
    RPC_ALREADY_EXISTS = 6,
    RPC_PERMISSION_DENIED = 7,
    RPC_RESOURCE_EXHAUSTED = 8,
    RPC_FAILED_PRECONDITION = 9,
    RPC_UNIMPLEMENTED = 12,
    RPC_INTERNAL = 13,
    RPC_UNAVAILABLE = 14,
    RPC_DATA_LOSS = 15,
    RPC_UNAUTHENTICATED = 16,
} rpc_code;

typedef struct sl_grpc sl_grpc;
typedef struct rpc_call rpc_call;
typedef struct rpc_archive rpc_archive;

typedef struct rpc_method {
    const char *path; /* "/package.Service/Method" */
    bool open;        /* served without the API key */
    /* messages are handled when they arrive; else exactly one, when the client has ended its stream */
    bool bidi;
    size_t max_bytes; /* of a message; 0: router.max_body_bytes */
    void (*message)(rpc_call *c, const uint8_t *data, size_t n);
    void (*gone)(rpc_call *c); /* the stream has ended, for any reason; may be NULL */
    /* Nothing waits to be sent: the next part of a long answer. NULL: answers are short, and rpc_send_bytes() takes what waits from the
     * budget; the others do that themselves. */
    void (*more)(rpc_call *c);
} rpc_method;

enum {
    RPC_CALL_BYTES = 4096,    /* what a call takes of the budget before it has a body */
    RPC_ROOM_BYTES = 64 << 10 /* more of a long answer is made when less than this waits */
};

struct rpc_call {
    sl_grpc *g;
    sl_router *r;
    h2_stream *s;
    const rpc_method *m;
    rpc_call *next, *prev;
    sl_strbuf in;
    sl_caller caller;
    uint64_t deadline_ns, arrival_ns;
    uint64_t held;          /* of the budget */
    uint64_t part;          /* of these, in the part of the client (budget.h) */
    uint64_t answer;        /* of these, for what waits to be sent */
    uint32_t retry_after_s; /* of a refusal; 0: an estimate */
    bool hopeless;          /* the same call would be refused again: the client is told not to retry */
    bool keyless; /* the method needs no key, or there is none: held from what such calls may have */
    bool finished, counted, whole; /* whole: the client has sent everything */
    void *user;                    /* of the method */
};

struct sl_grpc {
    sl_front front; /* first: an sl_front pointer is an sl_grpc pointer */
    sl_router *r;
    uv_loop_t *loop;
    const sl_router_opts *o;
    sl_router_stats *stats;
    h2_server *h2;
    rpc_call *calls;
    struct rpc_watch *watches; /* of health.c */
    rpc_archive *archive;      /* of the tokenizer's files; NULL: no call has asked for it */
    uint32_t generating;       /* Generate calls that have not finished */
    bool was_ready;
};

/* protobuf-c has no const strings; packing does not write to them. */
static inline char *rpc_text(const char *s)
{
    return (char *)s;
}

extern const rpc_method *const rpc_methods;
size_t rpc_method_count(void);

/* Sends one message; false when the client does not read, or there is no room in the budget (the call is finished then). */
bool rpc_send(rpc_call *c, const ProtobufCMessage *m);
/* A message with its frame's head, malloc'ed, *n bytes; NULL when out of memory. Any thread. */
uint8_t *rpc_pack(const ProtobufCMessage *m, size_t *n);
/* Sends a part of a packed message; false when the client does not read (the call is finished then). */
bool rpc_send_bytes(rpc_call *c, const uint8_t *bytes, size_t n);
/* Changes what the call holds of the budget; false when it does not fit. */
bool rpc_hold(rpc_call *c, uint64_t bytes);
/* Ends the call. text may be NULL. RESOURCE_EXHAUSTED and UNAVAILABLE carry grpc-retry-pushback-ms: when to try again,
 * or -1 when a retry cannot succeed. */
void rpc_finish(rpc_call *c, rpc_code code, const char *text);
/* A unary answer: message, then OK. */
void rpc_answer(rpc_call *c, const ProtobufCMessage *m);
rpc_code rpc_code_of(sl_status st);
/* scan.c: what unpacking this message will allocate. INVALID: it is nested too deeply, or malformed. Any thread. */
sl_status rpc_scan(const ProtobufCMessageDescriptor *d, const uint8_t *data, size_t n, uint64_t *bytes,
                   sl_err *err);
/* Scans and unpacks a message; on failure finishes the call and returns NULL. */
void *rpc_unpack(rpc_call *c, const ProtobufCMessageDescriptor *d, const uint8_t *data, size_t n);

/* The parts of a front that need no socket; for create and for the fuzzer. */
void rpc_front_init(sl_grpc *g, sl_router *r);
/* h2 callbacks of a server (arg: sl_grpc). */
void rpc_callbacks(sl_grpc *g, h2_callbacks *out);
void rpc_tick(sl_grpc *g, uint64_t now);

/* Reads a request without fields: its bytes must still be a valid message; else the call is finished. */
bool rpc_read_empty(rpc_call *c, const ProtobufCMessageDescriptor *d, const uint8_t *data, size_t n);

/* Methods, by file. */
void rpc_generate(rpc_call *c, const uint8_t *data, size_t n);
void rpc_generate_gone(rpc_call *c);
void rpc_generate_more(rpc_call *c);
void rpc_abort(rpc_call *c, const uint8_t *data, size_t n);
void rpc_health_check(rpc_call *c, const uint8_t *data, size_t n);
void rpc_model_info(rpc_call *c, const uint8_t *data, size_t n);
void rpc_server_info(rpc_call *c, const uint8_t *data, size_t n);
void rpc_loads(rpc_call *c, const uint8_t *data, size_t n);
void rpc_flush_cache(rpc_call *c, const uint8_t *data, size_t n);
void rpc_flush_gone(rpc_call *c);
void rpc_flush_tick(rpc_call *c, uint64_t now);
void rpc_tokenizer(rpc_call *c, const uint8_t *data, size_t n);
void rpc_tokenizer_gone(rpc_call *c);
void rpc_tokenizer_more(rpc_call *c);
/* The front is destroyed. */
void rpc_archive_drop(sl_grpc *g);
void rpc_kv_events(rpc_call *c, const uint8_t *data, size_t n);
void rpc_kv_events_gone(rpc_call *c);
/* Sends the batches that the call has not had, as far as its stream takes them. */
void rpc_kv_pump(rpc_call *c);
void rpc_kv_publish(sl_front *f);
void rpc_std_check(rpc_call *c, const uint8_t *data, size_t n);
void rpc_std_list(rpc_call *c, const uint8_t *data, size_t n);
void rpc_std_watch(rpc_call *c, const uint8_t *data, size_t n);
void rpc_std_watch_gone(rpc_call *c);
void rpc_std_tick(sl_grpc *g, uint64_t now);
void rpc_std_changed(sl_grpc *g);
void rpc_reflection(rpc_call *c, const uint8_t *data, size_t n);

/* zip.c: an uncompressed archive of files that exist, each of 64 MiB at most; malloc'ed. CANCELLED: the guard was stopped
 * while they were read. */
sl_status rpc_zip(const char *dir, const char *const *names, size_t n, const sl_guard *guard, uint8_t **out,
                  size_t *len, sl_err *err);

#endif
