/*
 * UCX transport, private parts shared by its files:
 *
 *   config.c     settings                     context.c    the instance: worker, progress, sleeping
 *   connect.c    how connections begin        endpoint.c   from connecting to closed
 *   door.c       who may connect              stranger.c   callers that are not admitted yet
 *   knock.c      calling another door         door_msg.h   the bytes of the greeting
 *   gate.h       who may reach UCX's sockets  message.c    active messages in order
 *   data.c       memory, put, get, flush      stream.c     put, get, flush as messages, for TCP
 *
 * Everything here belongs to the owner thread. UCX's callbacks only record events; closing and destroying,
 * which would re-enter UCX, are done by ux_service() after the callback has returned.
 */
#ifndef SL_TRANSPORT_UCX_UCX_IMPL_H
#define SL_TRANSPORT_UCX_UCX_IMPL_H

#include <netinet/in.h>
#include <pthread.h>
#include <ucp/api/ucp.h>

#include "transport/cipher.h"
#include "transport/lookup.h"
#include "transport/transport_impl.h"
#include "transport/ucx/door_msg.h"
#include "transport/ucx/gate.h"

enum {
    UX_AM_ID = 1,             /* UCX's id of all messages; the user's id is in the wire header */
    UX_STREAM_ID = 2,         /* UCX's id of the frames of stream.c */
    UX_HASH = 256,            /* buckets of endpoints by UCX handle */
    UX_FENCE_ROUNDS = 8,      /* worker progress calls after a force close until `closed`; see README.md */
    UX_MAX_HELD = 4096,       /* messages of one endpoint that wait for an earlier one */
    UX_MAX_FETCH = 4,         /* rendezvous receives of one endpoint in flight */
    UX_MAX_SERVING = 1 << 17, /* gets of one peer that wait for their data */
    /* connections at the door that are not admitted; above this the oldest is closed */
    UX_MAX_STRANGERS = 256,
    UX_ID_HELLO = 0xfff0,     /* client's first message */
    UX_ID_WELCOME = 0xfff1,   /* server's first message */
    UX_ID_BYE = 0xfff2,       /* orderly close: the last message */
    UX_ID_CHALLENGE = 0xfff3, /* with a secret: the server's answer to hello */
    UX_ID_PROOF = 0xfff4,     /* the client's answer to the challenge */
    UX_PROTOCOL = 4,
};

/* Labels of proofs, which say what each one proves. */
#define UX_PROOF_CALLER "sluice door, caller"
#define UX_PROOF_DOOR "sluice door, door"
#define UX_PROOF_SESSION "sluice door, session"
#define UX_PROOF_CLIENT "sluice connection, client"
#define UX_PROOF_SERVER "sluice connection, server"
/* Labels of the keys of a connection's messages: whose messages a key encrypts. */
#define UX_KEY_CLIENT "sluice messages, client"
#define UX_KEY_SERVER "sluice messages, server"

typedef struct ux_transport ux_transport;
typedef struct ux_ep ux_ep;
typedef struct ux_knock ux_knock; /* below */

/* Precedes the user's header in every message; native byte order, both sides are checked by the hello. */
typedef struct ux_wire {
    uint32_t seq;
    uint16_t id, header_bytes;
} ux_wire;

/* Header of hello, challenge, proof and welcome. */
typedef struct ux_hello {
    char magic[4]; /* "SLTP" */
    uint32_t protocol;
    uint32_t encrypt; /* 1: the sender encrypts messages, and expects the same of the other side */
    uint8_t nonce[SL_PROOF_BYTES]; /* hello, challenge: of the sender */
    uint8_t proof[SL_PROOF_BYTES]; /* proof, welcome */
} ux_hello;

/* The values that the proofs of a connection cover; they come from the door and from the connection itself. */
typedef struct ux_session {
    uint8_t door[SL_PROOF_BYTES]; /* value from the greeting at the door; zeros without a door */
    uint8_t client[SL_PROOF_BYTES], server[SL_PROOF_BYTES]; /* nonces of hello and challenge */
} ux_session;

/* Header of a frame of stream.c. */
typedef struct ux_frame {
    uint32_t kind, seq;
    uint64_t key, address, bytes;
} ux_frame;

/* Puts and gets of one endpoint as messages; unused where UCX has one-sided operations. */
typedef struct ux_stream {
    bool used;                    /* this endpoint's operations are sent as messages */
    bool busy;                    /* UCX holds `frame`, which belongs to the head of `queue` */
    uint32_t tx_seq, rx_seq;      /* numbers of the next frames */
    sl_tp_op_queue queue;         /* not sent completely: own operations, and answers to the peer */
    sl_tp_op_queue flushes, gets; /* sent, not answered */
    unsigned serving;             /* answers to gets of the peer in queue */
    size_t payload;               /* bytes of data in frame */
    ux_frame frame;
} ux_stream;

/* A received message that waits: for its payload, for an earlier message, or for a fetch slot. */
typedef struct ux_held {
    struct ux_held *next;                /* the endpoint's list, by seq */
    struct ux_held *all_prev, *all_next; /* the instance's list */
    ux_transport *tp;
    ux_ep *ep; /* NULL: the endpoint is freed; free this when the fetch ends */
    uint32_t seq;
    uint16_t id, header_bytes;
    bool ready, fetching;
    void *desc; /* UCX's descriptor, until the fetch starts */
    size_t bytes;
    uint8_t *data;
    uint8_t header[];
} ux_held;

typedef enum {
    UX_CONNECTING, /* client, until the welcome arrives */
    UX_GREETING,   /* server, until the hello arrives; the owner does not know it yet */
    UX_OPEN,
} ux_state;

typedef enum { UX_LIVE, UX_WANTED, UX_FENCING, UX_GONE } ux_teardown;

struct ux_ep {
    sl_tp_ep base;
    ux_ep *prev, *next, *hash_next, *attention_next;
    bool in_attention;
    ucp_ep_h handle; /* NULL when creation failed or after the close started */
    ux_state state;
    ux_teardown teardown;
    bool broken, told; /* the connection failed; the owner was told */
    bool close_requested, bye_started;
    sl_tp_close_mode close_mode;
    sl_status status; /* when broken: why */
    char why[160];
    unsigned fence_left;
    bool close_pending;   /* UCX has not finished the force close */
    uint64_t deadline_ns; /* for connecting, greeting or a flush close; 0: none */
    uint32_t tx_seq, rx_seq;
    ux_held *held;
    unsigned n_held;
    ux_stream stream;
    size_t inflight; /* operations whose `done` has not run */
    ux_session session;
    bool challenged; /* the challenge was sent (server) or answered (client) */
    sl_cipher *seals,
        *opens;        /* of the owner's messages, while the connection is open and they are encrypted */
    sl_lookup *lookup; /* client, while the host's name is looked up */
    ux_knock *knock;   /* client, until the other door has admitted it */
    char peer_address[SL_TP_ADDRESS_MAX];
};

typedef struct ux_mem {
    sl_tp_mem base;
    ucp_mem_h handle;
    unsigned access;
    uint64_t key; /* random; 0: device memory, not reachable by stream.c */
    bool device;
    struct ux_mem *prev, *next;
} ux_mem;

typedef struct ux_rkey {
    sl_tp_rkey base;
    ucp_rkey_h handle;
    uint64_t key; /* ux_mem.key of the target */
    struct ux_rkey *prev, *next;
} ux_rkey;

/* A connection at a door: a stranger at our door, or this process at another one. */
struct ux_knock {
    ux_knock *prev, *next; /* prev is younger */
    int fd;
    ux_ep *ep;       /* our endpoint that waits to be admitted; NULL: a stranger at our door */
    int reserved_fd; /* with ep: keeps the port reserved until UCX binds it */
    struct sockaddr_storage peer, from;
    uint8_t caller_nonce[SL_PROOF_BYTES], door_nonce[SL_PROOF_BYTES];
    bool challenged;      /* the challenge was sent (stranger) or answered (with ep) */
    uint64_t deadline_ns; /* for strangers */
    size_t got;
    uint8_t in[UX_DOOR_MAX + 1];
};

/* Which processes may connect; see door.c. */
typedef struct ux_door {
    bool used;               /* false: UCX's own listener is the address (rdmacm alone) */
    int listen_fd, epoll_fd; /* -1: none */
    unsigned watched;        /* descriptors in epoll_fd */
    bool ready;              /* epoll_fd has events that were not handled */
    uint64_t polled_ns;      /* time of the last poll of epoll_fd */
    /* not 0: listen_fd is not in epoll_fd until then, because no descriptor was free */
    uint64_t paused_until_ns;
    uint64_t logged_ns;     /* time of the last log line about a stranger */
    ux_knock *first, *last; /* by age, youngest first */
    unsigned strangers;     /* number of entries that are strangers */
    uint16_t port;          /* port of UCX's listener */
    ux_gate listener, data; /* gates of UCX's listening socket and of the sockets that carry the data */
    bool data_open;
    uint64_t data_shut_ns; /* when to shut the data gate */
    size_t n_admitted;     /* addresses that may reach UCX's listener */
    struct sockaddr_storage admitted[UX_GATE_ADMITTED];
    uint64_t admitted_until_ns[UX_GATE_ADMITTED];
    uint8_t admitted_session[UX_GATE_ADMITTED][SL_PROOF_BYTES];
} ux_door;

struct ux_transport {
    sl_transport base;
    sl_tp_options opts;
    pthread_t owner;
    ucp_context_h context;
    ucp_worker_h worker;
    ucp_listener_h listener;
    ux_door door;
    uint64_t memory_types; /* kinds of memory that the context can move */
    char address[SL_TP_ADDRESS_MAX];
    sl_tp_waker waker;
    ux_ep *eps, *attention, *by_handle[UX_HASH];
    unsigned lookups; /* endpoints whose host's name is being looked up */
    ux_held *all_held;
    ux_mem *mems;
    ux_rkey *rkeys;
    sl_tp_op_pool pool;
    sl_tp_op_queue finished, postponed; /* postponed: messages sent in a callback of UCX */
    bool in_ucx;                        /* true during ucp_worker_progress */
    uint64_t next_deadline_ns;          /* no deadline is earlier than this; 0: none */
    bool destroying;
    sl_tp_message_fn *handlers[SL_TP_AM_IDS];
    void *handler_args[SL_TP_AM_IDS];
    sl_tp_stats stats;
};

/* IPv4 and IPv6 addresses have the port at the same offset. */
static inline void ux_set_port(struct sockaddr_storage *sa, uint16_t port)
{
    ((struct sockaddr_in *)sa)->sin_port = htons(port);
}

static inline uint16_t ux_port(const struct sockaddr_storage *sa)
{
    return ntohs(((const struct sockaddr_in *)sa)->sin_port);
}

static inline ux_transport *ux_of(const ux_ep *ep)
{
    return (ux_transport *)ep->base.tp;
}

/* config.c */
/* UCX's configuration for these options; the caller releases it. Errors: INVALID (a setting), NO_MEMORY. */
sl_status ux_config_read(const sl_tp_options *o, ucp_config_t **out, sl_err *err);
/* Adds an item to a comma-separated list of cap bytes. */
void ux_append(char *text, size_t cap, const char *item);

/* connect.c */
sl_status ux_listen(sl_transport *tp, const char *host, uint16_t port, char *address, size_t cap,
                    sl_err *err);
sl_status ux_connect(sl_transport *tp, const char *address, sl_tp_ep **out, sl_err *err);
/* Connects the endpoints whose lookups have ended; returns their number. */
int ux_lookups_progress(ux_transport *tp);
/* Gives up ep's lookup, if it has one. */
void ux_lookup_leave(ux_ep *ep);
/* Lets UCX connect ep to `to` from `from` (NULL: any port), after the other door has admitted this process. */
void ux_connect_ucx(ux_ep *ep, const struct sockaddr_storage *to, const struct sockaddr_storage *from);

/* door.c */
/*
 * Decides by options and environment whether the instance uses a door, and shuts gates on UCX's data sockets,
 * which are those that began to listen since `before`. Errors: IO.
 */
sl_status ux_door_init(ux_transport *tp, const ux_gate_ports *before, sl_err *err);
/*
 * Opens the door on sa, and shuts the gate of UCX's listener, which began to listen on `port` since `before`.
 * sa becomes the door's address. Errors: IO.
 */
sl_status ux_door_open(ux_transport *tp, struct sockaddr_storage *sa, socklen_t len,
                       const ux_gate_ports *before, uint16_t port, sl_err *err);
void ux_door_close(ux_transport *tp);
/* Closes ep's connection to the other door, if it has one. */
void ux_door_leave(ux_ep *ep);
/* UCX's listener has accepted this caller: removes its admission. session: the value from the greeting at the door, or
 * zeros if the caller was not admitted. */
void ux_door_arrived(ux_transport *tp, const struct sockaddr_storage *from, uint8_t session[SL_PROOF_BYTES]);
/* Handles all events that wait; returns their number. Cheap enough to be called often. */
int ux_door_progress(ux_transport *tp);
/* True when events wait: the owner must not sleep. */
bool ux_door_ready(ux_transport *tp);
/* Handles the deadlines of strangers, admissions, the data gate and a pause. */
void ux_door_deadlines(ux_transport *tp, uint64_t now);
/* Lets connections from the caller's address and port reach UCX's listener. Errors: AGAIN (too many wait). */
sl_status ux_door_admit(ux_transport *tp, const struct sockaddr_storage *caller,
                        const uint8_t session[SL_PROOF_BYTES]);
/*
 * A proof about the greeting k. It covers both nonces, the address and port from which the caller will connect, and the
 * address of the door. Both sides compute the same value if they know the secret and see the same addresses. So a
 * process that relays messages between them cannot use a proof, because its own address differs.
 */
void ux_door_prove(const ux_transport *tp, const ux_knock *k, const char *label,
                   const struct sockaddr_storage *caller, const struct sockaddr_storage *door,
                   uint8_t out[SL_PROOF_BYTES]);
static inline bool ux_has_secret(const ux_transport *tp)
{
    return tp->opts.secret && *tp->opts.secret;
}
/* Stops accepting for a moment, because no descriptor is free. */
void ux_door_pause(ux_transport *tp);
/* Opens the gates of UCX's data sockets for twice connect_timeout_ms from now. */
void ux_door_open_data(ux_transport *tp);
/* Makes a connection that the door watches; NULL when out of memory. ep: NULL for a stranger. */
ux_knock *ux_knock_new(ux_transport *tp, int fd, ux_ep *ep, uint32_t events);
void ux_knock_free(ux_transport *tp, ux_knock *k);
/* Reads the bytes that have arrived; false when there were none. *gone: the other side closed or failed. */
bool ux_knock_read(ux_knock *k, bool *gone);

/* stranger.c */
/* Accepts the callers that wait; returns how many. */
int ux_stranger_accept(ux_transport *tp);
/* Reads from a stranger and answers, refuses or waits for more; frees k unless it waits. */
void ux_stranger_hear(ux_transport *tp, ux_knock *k);
/* Closes k without an answer; logs the cause, at most once per second. */
void ux_stranger_refuse(ux_transport *tp, ux_knock *k, const char *cause);

/* knock.c */
/* Knocks at sa for ep; ends in ux_connect_ucx, or breaks ep. */
void ux_door_knock(ux_ep *ep, const struct sockaddr_storage *sa, socklen_t len);
/* The connection to the other door is established, or failed. */
void ux_knock_connected(ux_transport *tp, ux_knock *k);
/* The answer of the other door can be read. */
void ux_knock_heard(ux_transport *tp, ux_knock *k);

/* endpoint.c */
ux_ep *ux_ep_new(ux_transport *tp, ux_state state);
void ux_ep_adopt(ux_ep *ep, ucp_ep_h handle);
void ux_ep_deadline(ux_ep *ep, uint32_t ms);
/* Makes ux_run_deadlines run at ns or earlier. */
void ux_deadline(ux_transport *tp, uint64_t ns);
void ux_close(sl_tp_ep *ep, sl_tp_close_mode mode);
void ux_ep_query(const sl_tp_ep *ep, char *text, size_t cap);
/* Puts ep on the list that ux_service handles. */
void ux_attend(ux_ep *ep);
/* Marks the connection as unusable; the first cause is kept. */
void ux_break(ux_ep *ep, sl_status st, const char *why);
ux_ep *ux_ep_find(ux_transport *tp, ucp_ep_h handle);
void ux_ep_free(ux_ep *ep);
/* Sends hello or welcome. */
sl_status ux_send_greeting(ux_ep *ep, uint16_t id);
/* Handles a handshake message, in order with the other messages. */
void ux_control_received(ux_ep *ep, uint16_t id, const void *header, size_t header_bytes);
/* Handles the endpoints on the attention list; returns the number of events. */
int ux_service(ux_transport *tp);
int ux_run_deadlines(ux_transport *tp, uint64_t now);
/* Hands finished operations to their owners; returns how many. */
int ux_run_finished(ux_transport *tp);

/* message.c */
ucs_status_t ux_am_receive(void *arg, const void *header, size_t header_length, void *data, size_t length,
                           const ucp_am_recv_param_t *param);
sl_status ux_send(sl_tp_ep *ep, uint16_t id, const void *header, size_t header_bytes, const void *data,
                  size_t bytes, sl_tp_done_fn *done, void *cookie);
sl_status ux_send_control(ux_ep *ep, uint16_t id, const void *header, size_t header_bytes);
/*
 * Gives UCX the messages that were sent during its callbacks, which only queue them: UCX 1.13's TCP aborts
 * when a send in a receive callback of one connection finds that another connection is dead whose own event
 * is in the same batch (tcp_iface.c:307).
 */
int ux_run_postponed(ux_transport *tp);
/* Frees the messages that were received and not delivered. */
void ux_held_drop(ux_ep *ep);
void ux_held_free(ux_transport *tp, ux_held *held);

/* data.c */
sl_status ux_mem_register(sl_transport *tp, void *ptr, size_t bytes, sl_tp_mem_kind kind, unsigned access,
                          sl_tp_mem **out, sl_err *err);
void ux_mem_deregister(sl_tp_mem *mem);
sl_status ux_rkey_pack(const sl_tp_mem *mem, void *buf, size_t cap, size_t *len);
sl_status ux_rkey_unpack(sl_tp_ep *ep, const void *buf, size_t len, sl_tp_rkey **out, sl_err *err);
void ux_rkey_release(sl_tp_rkey *rkey);
sl_status ux_put(sl_tp_ep *ep, const void *local, sl_tp_mem *mem, size_t bytes, uint64_t remote,
                 sl_tp_rkey *rkey, sl_tp_done_fn *done, void *cookie);
sl_status ux_get(sl_tp_ep *ep, void *local, sl_tp_mem *mem, size_t bytes, uint64_t remote, sl_tp_rkey *rkey,
                 sl_tp_done_fn *done, void *cookie);
sl_status ux_flush(sl_tp_ep *ep, sl_tp_done_fn *done, void *cookie);
/* A new operation of ep, with UCX's completion wired to it. Errors: AGAIN, PEER, CANCELLED, NO_MEMORY. */
sl_status ux_op_begin(ux_ep *ep, sl_tp_op_kind kind, size_t bytes, sl_tp_done_fn *done, void *cookie,
                      sl_tp_op **out, ucp_request_param_t *param);
/* The parameters of UCX's call for op. */
ucp_request_param_t ux_op_param(sl_tp_op *op);
/* Tells UCX the kind of the local memory; otherwise UCX looks up every address. */
void ux_op_memory(const sl_tp_op *op, ucp_request_param_t *param);
/* Records what UCX's call returned for op: pending, completed or failed. */
sl_status ux_op_posted(ux_ep *ep, sl_tp_op *op, ucs_status_ptr_t request);

/* NULL when device memory may be registered; otherwise the reason why not. */
const char *ux_no_device_memory(const ux_transport *tp);
/* The local memory with this key, NULL when there is none. */
const ux_mem *ux_mem_find(const ux_transport *tp, uint64_t key);

/* stream.c */
void ux_stream_init(ux_ep *ep);
/* Whether the endpoint's transports have no one-sided operations. Slow: once per endpoint. */
bool ux_stream_wanted(const ux_ep *ep);
/* Posts an operation of ux_op_begin; bytes, local, remote and key are set where the kind has them. */
sl_status ux_stream_put(ux_ep *ep, sl_tp_op *op);
sl_status ux_stream_get(ux_ep *ep, sl_tp_op *op);
sl_status ux_stream_flush(ux_ep *ep, sl_tp_op *op);
/* Sends as many frames as UCX accepts now. */
void ux_stream_pump(ux_ep *ep);
/* Ends every operation except the one that UCX holds; part of a close, before FENCING. */
void ux_stream_abort(ux_ep *ep);
ucs_status_t ux_stream_receive(void *arg, const void *header, size_t header_length, void *data, size_t length,
                               const ucp_am_recv_param_t *param);

/* The sl_status of a UCX status, for operations and connections. */
sl_status ux_status(ucs_status_t st);

#endif
