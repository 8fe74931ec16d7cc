/*
 * UCX transport, private parts shared by its files. Design: context.c (instance), connect.c (how connections
 * begin), door.c and knock.c (who may connect), gate.h (and reach UCX's sockets), endpoint.c (life of a
 * connection), message.c (active messages in order), data.c (memory, put, get, flush), stream.c (the same as
 * messages, for TCP).
 *
 * Everything here belongs to the owner thread. UCX's own callbacks only note what happened; what would
 * re-enter UCX in delicate ways (closing, destroying) is done by ux_service() outside of them.
 */
#ifndef SL_TRANSPORT_UCX_UCX_IMPL_H
#define SL_TRANSPORT_UCX_UCX_IMPL_H

#include <netinet/in.h>
#include <pthread.h>
#include <ucp/api/ucp.h>

#include "transport/transport_impl.h"
#include "transport/ucx/door_msg.h"
#include "transport/ucx/gate.h"

enum {
    UX_AM_ID = 1,             /* the UCX id of all messages; ours is in the wire header */
    UX_STREAM_ID = 2,         /* of stream.c's frames */
    UX_HASH = 256,            /* buckets of endpoints by UCX handle */
    UX_FENCE_ROUNDS = 8,      /* worker progress calls after a force close until `closed`; see README.md */
    UX_MAX_HELD = 4096,       /* messages of one endpoint that wait for an earlier one */
    UX_MAX_FETCH = 4,         /* rendezvous receives of one endpoint under way at once */
    UX_MAX_SERVING = 1 << 17, /* gets of one peer that wait for their data */
    UX_MAX_STRANGERS = 256,   /* connections at the door that have not been let in; the oldest goes first */
    UX_ID_HELLO = 0xfff0,     /* client's first message */
    UX_ID_WELCOME = 0xfff1,   /* server's first message */
    UX_ID_BYE = 0xfff2,       /* orderly close: nothing follows */
    UX_PROTOCOL = 2,
};

typedef struct ux_transport ux_transport;
typedef struct ux_ep ux_ep;
typedef struct ux_knock ux_knock; /* below */

/* Precedes the user's header in every message; native byte order, both sides are checked by the hello. */
typedef struct ux_wire {
    uint32_t seq;
    uint16_t id, header_bytes;
} ux_wire;

/* Header of hello and welcome. */
typedef struct ux_hello {
    char magic[4]; /* "SLTP" */
    uint32_t protocol;
} ux_hello;

/* Header of a frame of stream.c. */
typedef struct ux_frame {
    uint32_t kind, seq;
    uint64_t key, address, bytes;
} ux_frame;

/* Puts and gets of one endpoint as messages; unused where UCX has real ones. */
typedef struct ux_stream {
    bool used;                    /* this endpoint's operations go this way */
    bool busy;                    /* UCX holds `frame`, which belongs to queue's head */
    uint32_t tx_seq, rx_seq;      /* of frames */
    sl_tp_op_queue queue;         /* not sent completely: ours, and answers to the peer */
    sl_tp_op_queue flushes, gets; /* sent, not answered */
    unsigned serving;             /* gets of the peer in queue */
    size_t payload;               /* of frame */
    ux_frame frame;
} ux_stream;

/* A received message that waits: for its payload, for an earlier message, or for a fetch slot. */
typedef struct ux_held {
    struct ux_held *next;                /* of the endpoint, by seq */
    struct ux_held *all_prev, *all_next; /* of the instance */
    ux_transport *tp;
    ux_ep *ep; /* NULL: the endpoint is gone, free when the fetch ends */
    uint32_t seq;
    uint16_t id, header_bytes;
    bool ready, fetching;
    void *desc; /* UCX's, until the fetch starts */
    size_t bytes;
    uint8_t *data;
    uint8_t header[];
} ux_held;

typedef enum {
    UX_CONNECTING, /* client: until the welcome */
    UX_GREETING,   /* server: until the hello; the owner does not know it yet */
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
    sl_status status; /* of broken */
    char why[160];
    unsigned fence_left;
    bool close_pending;   /* UCX has not finished the force close */
    uint64_t deadline_ns; /* of connecting, greeting or a flush close; 0: none */
    uint32_t tx_seq, rx_seq;
    ux_held *held;
    unsigned n_held;
    ux_stream stream;
    size_t inflight; /* operations whose `done` has not run */
    ux_knock *knock; /* client: until the other side let us in */
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

/* A connection at a door: a stranger at ours, or ours at another's. */
struct ux_knock {
    ux_knock *prev, *next; /* prev: younger */
    int fd;
    ux_ep *ep;       /* ours, waiting to be let in; NULL: a stranger at our door */
    int reserved_fd; /* ours: keeps the port until UCX takes it */
    struct sockaddr_storage peer, from;
    uint64_t deadline_ns; /* a stranger's */
    size_t got;
    uint8_t in[UX_DOOR_MAX + 1];
};

/* Who may connect; see door.c. */
typedef struct ux_door {
    bool used;               /* else UCX's own listener is the door (rdmacm alone) */
    int listen_fd, epoll_fd; /* of ours; -1: none */
    unsigned watched;        /* descriptors in epoll_fd */
    bool ready;              /* something is there */
    uint64_t looked_ns;      /* when epoll_fd was asked last */
    uint64_t deaf_until_ns;  /* no descriptors are left: the listener is out of epoll_fd until then; 0: no */
    uint64_t said_ns;        /* when the last stranger was logged */
    ux_knock *first, *last;  /* by age */
    unsigned strangers;      /* of them at our door */
    uint16_t port;           /* of UCX's listener */
    ux_gate listener, data;  /* its socket; the sockets that carry the data */
    bool data_open;
    uint64_t data_shut_ns; /* when to shut it */
    size_t n_admitted;     /* may reach UCX's listener */
    struct sockaddr_storage admitted[UX_GATE_ADMITTED];
    uint64_t admitted_until_ns[UX_GATE_ADMITTED];
} ux_door;

struct ux_transport {
    sl_transport base;
    sl_tp_options opts;
    pthread_t owner;
    ucp_context_h context;
    ucp_worker_h worker;
    ucp_listener_h listener;
    ux_door door;
    uint64_t memory_types; /* what the context can move */
    char address[SL_TP_ADDRESS_MAX];
    sl_tp_waker waker;
    ux_ep *eps, *attention, *by_handle[UX_HASH];
    ux_held *all_held;
    ux_mem *mems;
    ux_rkey *rkeys;
    sl_tp_op_pool pool;
    sl_tp_op_queue finished, postponed; /* postponed: messages sent in a callback of UCX */
    bool in_ucx;                        /* in ucp_worker_progress */
    uint64_t next_deadline_ns;          /* no deadline is earlier; 0: none */
    bool destroying;
    sl_tp_message_fn *handlers[SL_TP_AM_IDS];
    void *handler_args[SL_TP_AM_IDS];
    sl_tp_stats stats;
};

/* Both families have the port at the same place. */
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

/* connect.c */
sl_status ux_listen(sl_transport *tp, const char *host, uint16_t port, char *address, size_t cap,
                    sl_err *err);
sl_status ux_connect(sl_transport *tp, const char *address, sl_tp_ep **out, sl_err *err);
/* The other side's door let ep in: UCX connects from `from` (NULL: from anywhere) to `to`. */
void ux_connect_ucx(ux_ep *ep, const struct sockaddr_storage *to, const struct sockaddr_storage *from);

/* door.c */
/* Whether there is a door, by the options and the environment; and gates UCX's data sockets, which are those
 * that began to listen since `before`. Errors: IO. */
sl_status ux_door_init(ux_transport *tp, const ux_gate_ports *before, sl_err *err);
/* Opens the door on sa and shuts UCX's listener, which began to listen since `before`, on `port`. sa becomes
 * the door's address. Errors: IO. */
sl_status ux_door_open(ux_transport *tp, struct sockaddr_storage *sa, socklen_t len,
                       const ux_gate_ports *before, uint16_t port, sl_err *err);
void ux_door_close(ux_transport *tp);
/* Ends ep's knocking. */
void ux_door_leave(ux_ep *ep);
/* UCX's listener has this caller's connection. */
void ux_door_arrived(ux_transport *tp, const struct sockaddr_storage *from);
/* Does what is to do; returns events. Cheap when called often. */
int ux_door_progress(ux_transport *tp);
/* True when something is to do at once: do not sleep. */
bool ux_door_ready(ux_transport *tp);
void ux_door_deadlines(ux_transport *tp, uint64_t now);
/* UCX's data sockets are open for a while from now on. */
void ux_door_open_data(ux_transport *tp);
/* A watched connection; NULL when out of memory. ep NULL: a stranger's. */
ux_knock *ux_knock_new(ux_transport *tp, int fd, ux_ep *ep, uint32_t events);
void ux_knock_free(ux_transport *tp, ux_knock *k);
/* Reads what is there; false when nothing came. *gone: the other side closed or failed. */
bool ux_knock_read(ux_knock *k, bool *gone);

/* knock.c */
/* Knocks at sa on behalf of ep; ends in ux_connect_ucx, or breaks ep. */
void ux_door_knock(ux_ep *ep, const struct sockaddr_storage *sa, socklen_t len);
/* Its connection is up, or failed. */
void ux_knock_connected(ux_transport *tp, ux_knock *k);
/* It can be read. */
void ux_knock_heard(ux_transport *tp, ux_knock *k);

/* endpoint.c */
ux_ep *ux_ep_new(ux_transport *tp, ux_state state);
void ux_ep_adopt(ux_ep *ep, ucp_ep_h handle);
void ux_ep_deadline(ux_ep *ep, uint32_t ms);
/* Has ux_run_deadlines run at ns, or earlier. */
void ux_deadline(ux_transport *tp, uint64_t ns);
void ux_close(sl_tp_ep *ep, sl_tp_close_mode mode);
void ux_ep_query(const sl_tp_ep *ep, char *text, size_t cap);
/* Has ux_service look at ep. */
void ux_attend(ux_ep *ep);
/* The connection is unusable from now on; the first cause wins. */
void ux_break(ux_ep *ep, sl_status st, const char *why);
ux_ep *ux_ep_find(ux_transport *tp, ucp_ep_h handle);
void ux_ep_free(ux_ep *ep);
/* Hello or welcome. */
sl_status ux_send_greeting(ux_ep *ep, uint16_t id);
/* Handshake messages, in order with the others. */
void ux_control_received(ux_ep *ep, uint16_t id, const void *header, size_t header_bytes);
/* Runs the attention list and expired deadlines; returns events. */
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
 * Sends what was sent in UCX's callbacks; they hold it back. UCX 1.13's TCP aborts when a send in a receive
 * callback of one connection finds another one dead whose own event is in the same batch (tcp_iface.c:307).
 */
int ux_run_postponed(ux_transport *tp);
/* Drops what was received and not delivered. */
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
/* What UCX is given with it. */
ucp_request_param_t ux_op_param(sl_tp_op *op);
/* Has UCX read the local side as what it is: without it UCX looks every address up. */
void ux_op_memory(const sl_tp_op *op, ucp_request_param_t *param);
/* Books what UCX returned for it. */
sl_status ux_op_posted(ux_ep *ep, sl_tp_op *op, ucs_status_ptr_t request);

/* NULL: device memory may be registered; else why not. */
const char *ux_no_device_memory(const ux_transport *tp);
/* The local memory with this key, NULL when there is none. */
const ux_mem *ux_mem_find(const ux_transport *tp, uint64_t key);

/* stream.c */
void ux_stream_init(ux_ep *ep);
/* Whether the endpoint's transports have no one-sided operations. Slow: once per endpoint. */
bool ux_stream_wanted(const ux_ep *ep);
/* Post a begun operation: bytes, local, remote and key are set as far as it has them. */
sl_status ux_stream_put(ux_ep *ep, sl_tp_op *op);
sl_status ux_stream_get(ux_ep *ep, sl_tp_op *op);
sl_status ux_stream_flush(ux_ep *ep, sl_tp_op *op);
/* Sends what UCX takes now. */
void ux_stream_pump(ux_ep *ep);
/* Ends every operation but the one that UCX holds; on the way to FENCING. */
void ux_stream_abort(ux_ep *ep);
ucs_status_t ux_stream_receive(void *arg, const void *header, size_t header_length, void *data, size_t length,
                               const ucp_am_recv_param_t *param);

/* UCX status to ours, for operations and connections. */
sl_status ux_status(ucs_status_t st);

#endif
