/*
 * The worker core's data, shared by its parts: worker.c (thread and loop), endpoint.c (endpoints and sends),
 * link.c (routers).
 */
#ifndef SL_WORKER_WORKER_IMPL_H
#define SL_WORKER_WORKER_IMPL_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/log.h"
#include "worker/worker.h"

/* Kinds of mail that belong to worker/. */
enum {
    SL_WMAIL_STOP = -1,  /* to the transport thread: end */
    SL_WMAIL_SEND = -2,  /* to the transport thread: an sl_wsend */
    SL_WMAIL_FATAL = -3, /* to the engine thread: the worker cannot continue (role.c) */
    SL_WMAIL_HOLD = -4,  /* to the transport thread: join no router; SL_WMAIL_JOIN ends this */
    SL_WMAIL_JOIN = -5,
    SL_WMAIL_HELD = -7, /* to the engine thread: the answer to SL_WMAIL_HOLD */
    SL_WMAIL_WAKE = -6, /* to the engine thread: there is news of the group (group.c) */
};

/* An encoded message: in the queue of an endpoint, or posted to the transport and not completed yet. */
typedef struct sl_wout {
    struct sl_wout *next, **pprev; /* pprev: only while posted */
    sl_worker *w;
    uint8_t *data;
    size_t bytes;
    uint16_t id;
} sl_wout;

/* Mail: a message that another thread asks the transport thread to send. */
typedef struct sl_wsend {
    sl_wmail mail;
    uint32_t serial; /* 0: all routers */
    uint16_t id;
    uint8_t *data;
    size_t bytes;
    uint64_t since_ns; /* of sl_msg_bytes */
} sl_wsend;

/* Mail: join no router, or join them again. */
typedef struct sl_whold {
    sl_wmail mail;
    sl_mailbox *tell; /* or NULL */
} sl_whold;

struct sl_wep {
    sl_wep *next, **pprev;
    sl_worker *w;
    sl_tp_ep *tp_ep;
    void *user;
    uint32_t serial;
    bool up, closing, closing_by_force;
    sl_wout *out_head, *out_tail;
};

typedef enum { LINK_IDLE, LINK_CONNECTING, LINK_HELLO, LINK_UP, LINK_CLOSING } sl_wlink_state;

/* The link to one router. Its session is named by the serial of its endpoint. */
typedef struct sl_wlink {
    sl_worker *w;
    char address[SL_TP_ADDRESS_MAX];
    sl_wep *ep;
    sl_wlink_state state;
    uint64_t epoch;
    uint32_t worker_id;
    uint64_t next_try_ns, last_heard_ns, next_beat_ns;
    uint32_t pause_ms, heartbeat_ms, dead_after_ms;
    bool welcomed_once;
    bool dismissed;      /* the router said LEAVE in this session */
    bool gave_up;        /* the last refusal was final for this link */
    uint64_t refused_ns; /* first refusal of this kind that may be retried; 0: none since the last WELCOME */
    sl_msg_load told;    /* last */
    uint64_t told_ns;
} sl_wlink;

struct sl_worker {
    sl_worker_calls calls;
    sl_worker_opts o;
    sl_msg_hello hello;
    pthread_t thread;
    sl_mailbox *inbox;
    sl_transport *tp;
    sl_tp_mem *mem, **device_mem; /* device_mem: by address */
    int n_device_mem;
    char address[SL_TP_ADDRESS_MAX];
    sl_wep *eps;
    sl_wout *posted;
    uint32_t next_serial;
    sl_wlink links[SL_WORKER_ROUTERS_MAX];
    int n_links;
    bool ended;         /* fatal was called: no link connects again */
    bool held;          /* no link connects now */
    _Atomic int needed; /* sessions whose router has not said LEAVE */
    bool stopping, waiting_out;
    uint64_t last_loop_ns;
    /* the result of the start, passed to sl_worker_start() under the mutex */
    pthread_mutex_t lock;
    pthread_cond_t started_cond;
    bool started;
    sl_status start_status;
    sl_err start_err;
    sl_wmail stop_mail;
    sl_counter *c_malformed, *c_unknown, *c_failed;
    sl_gauge *g_peers;
    sl_histogram *h_sent;
};

/* endpoint.c */
void sl_wep_events(sl_worker *w, sl_tp_events *out);
sl_status sl_wep_handlers(sl_worker *w);
void sl_wep_send_bytes(sl_wep *ep, uint16_t id, uint8_t *data, size_t bytes);
/* Posts the messages that wait in queues; true when one was posted. */
bool sl_wep_flush_queues(sl_worker *w);
void sl_wep_free_all(sl_worker *w);
sl_wep *sl_wep_find(sl_worker *w, uint32_t serial);

/* link.c */
void sl_worker_links_init(sl_worker *w);
/* The clock, for all links; returns when it must run again. */
uint64_t sl_worker_links_tick(sl_worker *w, uint64_t now);
/* Ends all sessions and connects no link, or lets them connect again. */
void sl_worker_links_hold(sl_worker *w, bool on);
/* The link whose endpoint this is, NULL: it is a peer's. */
sl_wlink *sl_worker_link_of(const sl_wep *ep);
void sl_worker_link_connected(sl_wlink *l, sl_status st, const char *why);
void sl_worker_link_failed(sl_wlink *l, sl_status st, const char *why);
void sl_worker_link_closed(sl_wlink *l);
void sl_worker_link_msg(sl_wlink *l, sl_wmsg *m);

#endif
