/*
 * Loopback transport, private parts shared by its files: loopback.c (instance, progress), connect.c, post.c,
 * wire.c (packets and their delivery). Design: loopback.c. Fields are guarded by the world's mutex unless
 * marked "owner".
 */
#ifndef SL_TRANSPORT_LOOPBACK_LOOPBACK_IMPL_H
#define SL_TRANSPORT_LOOPBACK_LOOPBACK_IMPL_H

#include <pthread.h>

#include "transport/loopback/loopback.h"
#include "transport/transport_impl.h"

typedef struct lb_transport lb_transport;
typedef struct lb_ep lb_ep;

typedef enum { EP_CONNECTING, EP_OPEN, EP_FAILED, EP_CLOSING } lb_state;

typedef struct lb_mem {
    sl_tp_mem base;
    uint64_t id;
    unsigned access;
    bool device;
    struct lb_mem *next;
} lb_mem;

typedef struct lb_rkey {
    sl_tp_rkey base;
    uint64_t id;
    struct lb_rkey *prev, *next;
} lb_rkey;

/* A packet in flight to an endpoint. */
typedef struct lb_packet {
    struct lb_packet *next;
    sl_tp_op *op; /* of the initiator; NULL for a late put or a duplicate */
    uint64_t due_ns;
    sl_tp_op_kind kind;
    const void *out; /* source of a put or a message: the initiator's memory, read at delivery */
    void *in;        /* destination of a get */
    size_t bytes;
    uint64_t remote, mem_id;
    uint16_t id;
    size_t header_bytes;
    uint8_t *header; /* owned */
    uint8_t *copy;   /* owned bytes of a late put */
    bool device, lose, damage, duplicate, no_completion, fail, late;
    uint64_t stray;
    uint64_t late_ns;
} lb_packet;

typedef enum { EV_DONE, EV_ACCEPTED, EV_CONNECTED, EV_MESSAGE, EV_FAILED, EV_CLOSED } lb_event_kind;

typedef struct lb_event {
    struct lb_event *next;
    lb_event_kind kind;
    lb_ep *ep;
    sl_tp_op *op;
    sl_status status;
    const char *why;
    uint16_t id;
    size_t header_bytes, bytes;
    /* Header and payload of a message, both at odd offsets, because receivers must not assume alignment. */
    uint8_t *block;
} lb_event;

struct lb_ep {
    sl_tp_ep base;
    lb_ep *next; /* in the instance's list */
    lb_ep *peer; /* NULL when the connection is cut */
    lb_state state;
    lb_packet *inbox, **inbox_tail;
    lb_packet *late;        /* late puts of the peer, any order */
    sl_tp_op_queue pending; /* posted and not completed, oldest first */
    bool close_wanted;
    bool closing; /* sl_tp_close was called; owner thread only */
    uint64_t connect_deadline_ns;
    sl_loopback_faults faults;
    uint64_t n_put, n_get, n_msg, n_op, n_post;
    char peer_address[SL_TP_ADDRESS_MAX];
};

typedef struct lb_hello {
    struct lb_hello *next;
    lb_ep *from;
} lb_hello;

struct lb_transport {
    sl_transport base;
    sl_tp_options opts;
    lb_transport *next; /* in the world */
    pthread_t owner;
    sl_tp_waker waker;
    int wake_fd;
    uint16_t port; /* 0: not listening */
    bool dead;
    bool poked; /* something arrived since the last collect */
    uint32_t refuse;
    lb_hello *hellos;
    lb_ep *eps;
    lb_mem *mems;
    lb_rkey *rkeys;
    sl_tp_op_pool pool;
    lb_event *events, **events_tail;
    sl_tp_message_fn *handlers[SL_TP_AM_IDS];
    void *handler_args[SL_TP_AM_IDS];
    sl_loopback_faults default_faults;
    sl_tp_stats stats;
};

/* Shared by all instances of the process. */
extern struct lb_world {
    pthread_mutex_t mutex;
    lb_transport *instances;
    uint64_t next_id;
    uint16_t next_port;
} lb_world;

/* wire.c */
void lb_lock(void);
void lb_unlock(void);
lb_transport *lb_of(const lb_ep *ep);
/* Allocates; ends the process when out of memory, because a test double does not test exhaustion. */
void *lb_must(void *p);
/* Appends an event for the owner. */
lb_event *lb_push_event(lb_transport *tp, lb_event_kind kind, lb_ep *ep);
/* Wakes the owner. */
void lb_poke(lb_transport *tp);
/* Ends a pending operation: its `done` runs in the owner's next progress. */
void lb_complete(lb_ep *ep, sl_tp_op *op, sl_status st);
void lb_complete_all(lb_ep *ep, sl_status st);
void lb_packet_free(lb_packet *p);
void lb_drop_packets(lb_packet **list);
/* Ends the connection of ep and its peer; lb_break also tells the owner, lb_break_pair both owners. */
void lb_cut(lb_ep *ep);
void lb_break(lb_ep *ep, const char *why);
void lb_break_pair(lb_ep *ep, const char *why);
/* Payload of a message event; NULL when empty. */
const uint8_t *lb_event_data(const lb_event *ev);
/* Lowers *deadline (0: none) to t. */
void lb_earliest(uint64_t *deadline, uint64_t t);
/*
 * Executes the packets that are due to ep; returns their number, and lowers *deadline to the next due time.
 */
int lb_deliver_due(lb_ep *ep, uint64_t now, uint64_t *deadline);

/* connect.c */
lb_ep *lb_ep_new(lb_transport *tp);
/* The connect of ep failed. */
void lb_refuse(lb_ep *ep, sl_status st, const char *why);
int lb_accept_hellos(lb_transport *tp);
void lb_withdraw_hello(lb_ep *ep);
int lb_check_connects(lb_transport *tp, uint64_t now, uint64_t *deadline);
sl_status lb_listen(sl_transport *base, const char *host, uint16_t port, char *address, size_t cap,
                    sl_err *err);
sl_status lb_connect(sl_transport *base, const char *address, sl_tp_ep **out, sl_err *err);
void lb_close(sl_tp_ep *base, sl_tp_close_mode mode);
int lb_check_closes(lb_transport *tp);

/* post.c */
sl_status lb_put(sl_tp_ep *ep, const void *local, sl_tp_mem *mem, size_t bytes, uint64_t remote,
                 sl_tp_rkey *rkey, sl_tp_done_fn *done, void *cookie);
sl_status lb_get(sl_tp_ep *ep, void *local, sl_tp_mem *mem, size_t bytes, uint64_t remote, sl_tp_rkey *rkey,
                 sl_tp_done_fn *done, void *cookie);
sl_status lb_flush(sl_tp_ep *ep, sl_tp_done_fn *done, void *cookie);
sl_status lb_send(sl_tp_ep *ep, uint16_t id, const void *header, size_t header_bytes, const void *data,
                  size_t bytes, sl_tp_done_fn *done, void *cookie);
sl_status lb_handle(sl_transport *base, uint16_t id, sl_tp_message_fn *fn, void *arg);
sl_status lb_mem_register(sl_transport *base, void *ptr, size_t bytes, sl_tp_mem_kind kind, unsigned access,
                          sl_tp_mem **out, sl_err *err);
void lb_mem_deregister(sl_tp_mem *base);
sl_status lb_rkey_pack(const sl_tp_mem *mem, void *buf, size_t cap, size_t *len);
sl_status lb_rkey_unpack(sl_tp_ep *base, const void *buf, size_t len, sl_tp_rkey **out, sl_err *err);
void lb_rkey_release(sl_tp_rkey *rkey);

#endif
