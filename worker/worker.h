/*
 * Worker core: the transport thread of a prefill or decode worker, with the router link and the endpoints of the peers.
 * The role (prefill/ or decode/) adds its callbacks on that thread and runs its engine on the caller's thread.
 * worker/role.h has what both roles add to the core.
 *
 * The two threads share only mail: the engine thread posts sl_wmail to the worker (sl_worker_post), the transport
 * thread posts to the mailbox of the engine thread. Everything in sl_worker_calls runs on the transport thread. Every
 * function below must be called there, too, except where the comment names another thread.
 *
 * Router links: one for each router, independent of each other. A link connects, sends HELLO and receives WELCOME; then
 * it sends LOAD and PING at every heartbeat. If the connection breaks, or the router is silent for too long (link.c),
 * it is closed by force and connected again after a pause that grows with every failure. From WELCOME to the loss of
 * the connection a link has a session, whose number is never used again in this process. Requests belong to the session
 * in which they arrived; messages to a session that has ended are dropped. Each session has a new epoch, so that a peer
 * that received an address in an earlier session can see that it is stale. A REFUSE before the first WELCOME is final
 * when every router has refused; while one has not, the link is tried again after the longest pause.
 *
 * Lifetime: start returns after the transport has been opened, the memory registered and the listener started; stop
 * joins the thread.
 */
#ifndef SL_WORKER_WORKER_H
#define SL_WORKER_WORKER_H

#include "base/config.h"
#include "base/mailbox.h"
#include "base/metrics.h"
#include "base/msg.h"
#include "base/msg_batch.h"
#include "transport/transport.h"

typedef struct sl_worker sl_worker;
typedef struct sl_wep sl_wep; /* an endpoint with its queue of unsent messages */

/* Every mail between the two threads begins with this. Kinds below 0 belong to the core. */
typedef struct sl_wmail {
    sl_mail link;
    int kind;
} sl_wmail;

/* A received message with its bytes, into which its blobs point. Its last holder frees it with sl_wmsg_free(). */
typedef struct sl_wmsg {
    sl_wmail mail; /* for posting it to the other thread, which sets kind */
    sl_msg msg;
    uint32_t ep_serial; /* serial of the endpoint on which it arrived */
    /* The session of the router that sent it, or (set by the role) of the router that introduced the sender. */
    uint32_t router;
    uint32_t worker_id; /* of a peer, set by the role; 0: a router sent it */
    uint8_t bytes[];
} sl_wmsg;

void sl_wmsg_free(sl_wmsg *m);

typedef struct sl_worker_calls {
    void *arg;
    const char *comp; /* log component: "prefill" */
    /* A session begins and ends; both are called exactly once for each. */
    void (*router_up)(void *arg, uint32_t router, const sl_msg_welcome *w);
    void (*router_down)(void *arg, uint32_t router, sl_status st, const char *why);
    /* The worker cannot continue (every router has refused it). Called at most once. */
    void (*fatal)(void *arg, sl_status st, const char *why);
    /* A message of a router, except those of the link itself (WELCOME, REFUSE, PING, PONG). The role owns m. */
    void (*router_msg)(void *arg, sl_wmsg *m);
    void (*load)(void *arg, sl_msg_load *out);
    /* Endpoints other than the routers'. */
    void (*ep_accepted)(void *arg, sl_wep *ep, const char *address);
    void (*ep_connected)(void *arg, sl_wep *ep, sl_status st, const char *why);
    void (*ep_msg)(void *arg, sl_wep *ep, sl_wmsg *m);
    void (*ep_failed)(void *arg, sl_wep *ep, sl_status st, const char *why); /* the role must close it */
    void (*ep_closed)(void *arg, sl_wep *ep); /* ep is freed after this returns */
    /* A mail that was posted with sl_worker_post(). */
    void (*mail)(void *arg, sl_wmail *m);
    /* Called at the latest at the time (ns) that its last call returned; UINT64_MAX: nothing is due. */
    uint64_t (*tick)(void *arg, uint64_t now);
} sl_worker_calls;

enum { SL_WORKER_ROUTERS_MAX = SL_CFG_MAX_ROUTERS };

typedef struct sl_worker_range {
    void *base;
    size_t bytes;
} sl_worker_range;

typedef struct sl_worker_opts {
    const char *transport, *tls, *fabric; /* as in sl_tp_options */
    int numa_node;
    const char *secret;                         /* as in sl_tp_options */
    bool encrypt;                               /* as in sl_tp_options */
    const char *routers[SL_WORKER_ROUTERS_MAX]; /* "host:port" each; copied */
    int n_routers;
    bool listens;
    const char *listen_host; /* as in sl_tp_listen */
    uint16_t listen_port;
    bool held; /* joins no router before sl_worker_hold(w, false) */
    /* Host of the address that other processes are told; NULL or "": the host of the listener. */
    const char *advertise_host;
    /* These apply until WELCOME sets other values. */
    uint32_t heartbeat_ms, dead_after_ms, connect_timeout_ms, reconnect_ms;
    void *memory; /* registered for puts and gets by this worker, and by its peers if it listens */
    size_t memory_bytes;
    /* GPU memory that puts read from. sl_worker_start() fails if the transport cannot register it. */
    const sl_worker_range *device_memory;
    int n_device_memory;
    /* Runs first on the transport thread; an error makes the start fail. May be NULL. */
    sl_status (*enter)(void *arg, sl_err *err);
    void *enter_arg;
    const sl_msg_hello *hello; /* copied; blobs must outlive the worker. epoch and listen are filled in */
    sl_metrics *metrics;       /* may be NULL */
    /* For tests: runs on the transport thread once per iteration of its loop. NULL in production. */
    void (*hook)(void *arg, sl_transport *tp);
    void *hook_arg;
} sl_worker_opts;

/* Owner thread (the one that starts and stops). */
sl_status sl_worker_start(const sl_worker_opts *opts, const sl_worker_calls *calls, sl_worker **out,
                          sl_err *err);
/*
 * Passes the mail that is still queued to sl_worker_calls.mail, closes everything and joins the thread. w may be NULL.
 */
void sl_worker_stop(sl_worker *w);

/*
 * Any thread except the transport thread. on: ends the sessions with all routers and joins none, until it is called
 * again with false. A rank does so while its group is broken. `tell` (may be NULL) then gets a mail of kind
 * SL_WMAIL_HELD, after every mail that the ends of the sessions have caused.
 */
void sl_worker_hold(sl_worker *w, bool on, sl_mailbox *tell);
/* Any thread. Whether there is a session whose router has not said LEAVE. When it becomes false, every message that the
 * routers sent before has been passed to sl_worker_calls.router_msg. */
bool sl_worker_needed(const sl_worker *w);
/* Any thread. */
void sl_worker_post(sl_worker *w, sl_wmail *m);
/* Any thread except the transport thread: sends msg to the router of this session; dropped when it has ended. */
void sl_worker_tell_router(sl_worker *w, uint32_t router, const sl_msg *msg);
/* The same with a message or a batch that is encoded already; takes bytes.data. */
void sl_worker_tell_router_bytes(sl_worker *w, uint32_t router, sl_msg_bytes bytes);
/* The same to the routers of all sessions. */
void sl_worker_tell_routers(sl_worker *w, const sl_msg *msg);
/* Any thread except the transport thread: sends msg to the peer with this serial, if it still exists. */
void sl_worker_tell_peer(sl_worker *w, uint32_t ep_serial, const sl_msg *msg);

/* Transport thread. */
void sl_worker_send_router(sl_worker *w, uint32_t router, const sl_msg *msg);
sl_status sl_worker_connect(sl_worker *w, const char *address, void *user, sl_wep **out, sl_err *err);
void sl_wep_send(sl_wep *ep, const sl_msg *msg);
/* May be called a second time, with force, while the endpoint is closing. */
void sl_wep_close(sl_wep *ep, sl_tp_close_mode mode);
bool sl_wep_closing(const sl_wep *ep);
void sl_wep_set_user(sl_wep *ep, void *user);
void *sl_wep_user(const sl_wep *ep);
uint32_t sl_wep_serial(const sl_wep *ep); /* unique in the worker, never 0 */
sl_tp_ep *sl_wep_tp(sl_wep *ep);
sl_tp_mem *sl_worker_memory(sl_worker *w);
/* The registered GPU memory that contains address; NULL: none. */
sl_tp_mem *sl_worker_device_memory(sl_worker *w, const void *address);
/* Epoch of a session, and this worker's id there; 0: the session has ended. */
uint64_t sl_worker_epoch(const sl_worker *w, uint32_t router);
uint32_t sl_worker_id(const sl_worker *w, uint32_t router);
/* The session of this epoch; 0: there is none, or it has ended. */
uint32_t sl_worker_session(const sl_worker *w, uint64_t epoch);
/* The address that peers connect to; empty when the worker does not listen. Constant after start: any thread. */
const char *sl_worker_address(const sl_worker *w);

#endif
