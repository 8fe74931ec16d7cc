/*
 * The transport interface: moves bytes between processes. Endpoints, registered memory, put, get, active
 * messages, flush.
 *
 * Threads. An instance (sl_transport) belongs to the thread that created it: every call on the instance, its
 * endpoints, memories and keys is made on that thread. No call waits for a peer. Every callback runs inside
 * sl_tp_progress() on the owner thread, never inside the call that started the operation. A callback may call
 * every function except sl_tp_progress() and sl_tp_destroy().
 *
 * Sleeping without polling. The event fd also covers keepalives and deadlines; the owner needs no timer:
 *
 *     for (;;) {
 *         while (sl_tp_progress(tp) > 0)
 *             ;
 *         if (sl_tp_arm(tp) != SL_OK)        // SL_AGAIN: an event has arrived since
 *             continue;
 *         poll(sl_tp_event_fd(tp), …);       // readable: progress again
 *     }
 *
 * The event fd behaves like an edge-triggered one: arm after the last progress and before every poll. After a post
 * that follows an arm, call progress and arm again.
 *
 * Operations. A post returns SL_OK (exactly one `done` will follow), SL_AGAIN (too many operations are
 * pending: nothing was posted, try again after some completions) or a negative status (refused, no `done`).
 * `done` may be NULL; failures are counted in any case.
 *
 * Order. Messages of one endpoint arrive in the order in which they were sent, each once. Puts and gets have
 * no order among themselves or relative to messages. To tell the peer that data has arrived, post the puts,
 * then sl_tp_flush(), and send the message from the flush's `done`. `done` of a put only says that the local
 * bytes may be reused; `done(SL_OK)` of a flush says that all earlier puts of this endpoint are in the peer's
 * memory.
 *
 * Target side. A put or get may need progress on the target's owner thread (TCP does), so the owner of memory
 * that others write must keep progressing its transport.
 *
 * Failure. When a peer dies or the connection breaks, every pending operation completes with SL_ERR_PEER (or
 * SL_ERR_CANCELLED), then `failed` is called once, and later posts return SL_ERR_PEER. The owner then calls
 * sl_tp_close(). The time until a death is noticed depends on the implementation: with TCP, milliseconds for a
 * killed process, and the keepalive interval for a lost host. A process that hangs but has not ended is not
 * noticed: use application heartbeats.
 *
 * After `closed` of a force close, no put or get of the peer through this endpoint and no posted operation of
 * this side accesses local memory. sl_tp_caps.close_fences says whether the implementation guarantees this
 * (ucx/README.md in this folder names the mechanism). After a flush close the peer may still be writing,
 * because a flush concerns this side's operations only.
 */
#ifndef SL_TRANSPORT_TRANSPORT_H
#define SL_TRANSPORT_TRANSPORT_H

#include "base/status.h"

#define SL_TP_AM_IDS 64                 /* message ids are 0..63 */
#define SL_TP_AM_HEADER_MAX 1024        /* bytes of a message's header */
#define SL_TP_AM_MAX ((size_t)64 << 20) /* bytes of a message's payload */
#define SL_TP_RKEY_MAX 512              /* bytes of a packed remote key */
#define SL_TP_ADDRESS_MAX 128           /* bytes of "host:port" or "[v6]:port", with NUL */

typedef struct sl_transport_ops sl_transport_ops;

/*
 * Public beginnings of the opaque objects; implementations embed them first. Users only read, except
 * ep->user.
 */
typedef struct sl_transport {
    const sl_transport_ops *ops;
} sl_transport;

typedef struct sl_tp_ep {
    sl_transport *tp;
    void *user; /* free for the endpoint's owner; NULL at first */
} sl_tp_ep;

typedef struct sl_tp_mem {
    sl_transport *tp;
    void *base;
    size_t bytes;
} sl_tp_mem;

typedef struct sl_tp_rkey {
    sl_tp_ep *ep;
    uint64_t base; /* remote address range that the key covers */
    uint64_t bytes;
} sl_tp_rkey;

/*
 * DEVICE: GPU memory, as the local side of puts, and of other operations only where the implementation can.
 */
typedef enum { SL_TP_HOST, SL_TP_DEVICE } sl_tp_mem_kind;

enum { SL_TP_LOCAL = 1, SL_TP_REMOTE_READ = 2, SL_TP_REMOTE_WRITE = 4 }; /* access bits */

typedef enum {
    SL_TP_CLOSE_FLUSH, /* complete what was posted, then close; falls back to force when the peer fails */
    SL_TP_CLOSE_FORCE, /* cancel what was posted; works on failed and hanging peers */
} sl_tp_close_mode;

/* Completion of one operation: SL_OK, SL_ERR_PEER, SL_ERR_CANCELLED (closed by us) or SL_ERR_IO. */
typedef void sl_tp_done_fn(void *cookie, sl_status st);

/*
 * A received message. header and data are borrowed until the callback returns and have no alignment (NULL
 * when empty). The sender may be any process that could connect: validate every byte (base/wire.h).
 */
typedef void sl_tp_message_fn(void *arg, sl_tp_ep *ep, uint16_t id, const void *header, size_t header_bytes,
                              const void *data, size_t bytes);

/* Callbacks of the instance to its owner; `arg` is their first argument. Unused callbacks may be NULL. */
typedef struct sl_tp_events {
    void *arg;
    /* A peer connected to the listener. The owner may use ep and must close it. NULL refuses every peer. */
    void (*accepted)(void *arg, sl_tp_ep *ep, const char *peer_address);
    /*
     * sl_tp_connect() ended: SL_OK, SL_ERR_REFUSED (no process listens, or it refused), SL_ERR_TIMEOUT or
     * SL_ERR_PEER. On failure `why` has the reason, `failed` is not called, and ep must still be closed.
     */
    void (*connected)(void *arg, sl_tp_ep *ep, sl_status st, const char *why);
    /* A connected or accepted endpoint broke; once per endpoint, after its pending operations completed. */
    void (*failed)(void *arg, sl_tp_ep *ep, sl_status st, const char *why);
    /* sl_tp_close() is complete; ep is freed when the callback returns. */
    void (*closed)(void *arg, sl_tp_ep *ep);
} sl_tp_events;

/* sl_transport_create() copies all strings; NULL, "" or 0 means the default. */
typedef struct sl_tp_options {
    sl_tp_events events;
    /* UCX_TLS ("tcp", "rc_verbs,self"…); default: UCX chooses. */
    const char *tls;
    /* UCX_NET_DEVICES ("mlx5_0:1"…); default: the NICs nearest to numa_node, otherwise all. */
    const char *net_devices;
    /* UCX_SOCKADDR_TLS_PRIORITY ("rdmacm", "tcp"); default: UCX chooses. */
    const char *sockaddr_priority;
    /* Further UCX settings, "NAME=VALUE;NAME=VALUE", without the prefix UCX_ or UCX_TCP_. */
    const char *extra;
    int numa_node;               /* of the memory that is moved; -1: unknown or any */
    uint32_t connect_timeout_ms; /* until connected(SL_ERR_TIMEOUT); default 5000 */
    uint32_t keepalive_ms;       /* between liveness probes of idle endpoints; default 2000 */
    uint32_t max_pending;        /* operations posted and not completed, per instance; default 65536 */
    /*
     * ucx: what both sides of every connection must know (at most 255 bytes, NULL or "": nothing). They prove it to
     * each other before any port of UCX opens for the caller, and again on the connection. loopback: not used.
     */
    const char *secret;
    /* ucx: messages are encrypted and authenticated, with keys made from the secret, which must be set. Both sides of a
     * connection must agree. Puts and gets are not encrypted: the network card does them. loopback: not used. */
    bool encrypt;
    const char *fabric; /* loopback: instances of one name see each other; default "default" */
} sl_tp_options;

/* The defaults, so that a caller sets only what differs. numa_node is -1. */
sl_tp_options sl_tp_options_default(void);

typedef struct sl_tp_caps {
    bool cross_process; /* peers may be other processes and hosts */
    bool device_memory; /* SL_TP_DEVICE is implemented; sl_tp_info says whether it works in this process */
    bool close_fences;  /* `closed` after a force close fences the peer's puts and gets (see the top) */
    bool fault_injection;
} sl_tp_caps;

typedef struct sl_tp_stats {
    uint64_t bytes_put, bytes_got; /* of completed operations */
    uint64_t device_bytes_put;     /* of bytes_put: from device memory */
    uint64_t puts, gets, flushes;  /* completed */
    uint64_t messages_sent, messages_received, message_bytes_sent, message_bytes_received;
    uint64_t messages_refused; /* malformed, unknown id or too large */
    uint64_t accesses_refused; /* puts and gets of peers outside the memory that was offered to them */
    uint64_t failed_ops, failed_endpoints, refused_connects;
    uint64_t endpoints, pending; /* at present */
    uint64_t registered_bytes;   /* at present */
} sl_tp_stats;

typedef struct sl_tp_info {
    const char *name;
    char address[SL_TP_ADDRESS_MAX]; /* of the listener; empty when not listening */
    char devices[256];               /* "eth0,mlx5_0:1": devices that the implementation may use */
    char transports[256];            /* "tcp,rc_verbs" */
    char version[64];                /* of the library that the implementation uses */
    bool device_memory;              /* SL_TP_DEVICE may be registered in this process */
    char no_device_memory[160];      /* otherwise the reason why not */
} sl_tp_info;

/* The implementations by name ("ucx", "loopback"); NULL when unknown or not built. */
const sl_transport_ops *sl_transport_find(const char *name);
/* The i-th implementation, NULL after the last. */
const sl_transport_ops *sl_transport_at(size_t i);

/* All slots are required. Users call the wrappers below; implementers see transport_impl.h. */
struct sl_transport_ops {
    const char *name, *description;
    sl_tp_caps caps;
    sl_status (*create)(const sl_tp_options *opts, sl_transport **out, sl_err *err);
    void (*destroy)(sl_transport *tp);
    int (*progress)(sl_transport *tp);
    sl_status (*arm)(sl_transport *tp);
    int (*event_fd)(const sl_transport *tp);
    sl_status (*listen)(sl_transport *tp, const char *host, uint16_t port, char *address, size_t cap,
                        sl_err *err);
    sl_status (*connect)(sl_transport *tp, const char *address, sl_tp_ep **out, sl_err *err);
    void (*close)(sl_tp_ep *ep, sl_tp_close_mode mode);
    sl_status (*handle)(sl_transport *tp, uint16_t id, sl_tp_message_fn *fn, void *arg);
    sl_status (*mem_register)(sl_transport *tp, void *ptr, size_t bytes, sl_tp_mem_kind kind, unsigned access,
                              sl_tp_mem **out, sl_err *err);
    void (*mem_deregister)(sl_tp_mem *mem);
    sl_status (*rkey_pack)(const sl_tp_mem *mem, void *buf, size_t cap, size_t *len);
    sl_status (*rkey_unpack)(sl_tp_ep *ep, const void *buf, size_t len, sl_tp_rkey **out, sl_err *err);
    void (*rkey_release)(sl_tp_rkey *rkey);
    sl_status (*put)(sl_tp_ep *ep, const void *local, sl_tp_mem *mem, size_t bytes, uint64_t remote,
                     sl_tp_rkey *rkey, sl_tp_done_fn *done, void *cookie);
    sl_status (*get)(sl_tp_ep *ep, void *local, sl_tp_mem *mem, size_t bytes, uint64_t remote,
                     sl_tp_rkey *rkey, sl_tp_done_fn *done, void *cookie);
    sl_status (*flush)(sl_tp_ep *ep, sl_tp_done_fn *done, void *cookie);
    sl_status (*send)(sl_tp_ep *ep, uint16_t id, const void *header, size_t header_bytes, const void *data,
                      size_t bytes, sl_tp_done_fn *done, void *cookie);
    void (*stats)(const sl_transport *tp, sl_tp_stats *out);
    void (*query)(const sl_transport *tp, sl_tp_info *out);
    void (*ep_query)(const sl_tp_ep *ep, char *text, size_t cap);
};

/* Creates an instance owned by the calling thread. Errors: INVALID (option), UNSUPPORTED, NO_MEMORY, IO. */
sl_status sl_transport_create(const char *name, const sl_tp_options *opts, sl_transport **out, sl_err *err);

/*
 * Force-closes every endpoint without further callbacks, completes nothing, frees everything. Memories and
 * keys that still exist are released too; their handles become invalid. May take some milliseconds. NULL is
 * allowed.
 */
static inline void sl_tp_destroy(sl_transport *tp)
{
    if (tp)
        tp->ops->destroy(tp);
}

/* Advances all operations and runs callbacks; returns the number of events (0: nothing to do now). */
static inline int sl_tp_progress(sl_transport *tp)
{
    return tp->ops->progress(tp);
}

/* SL_OK: the event fd will become readable on the next event. SL_AGAIN: events wait, progress first. */
static inline sl_status sl_tp_arm(sl_transport *tp)
{
    return tp->ops->arm(tp);
}

/*
 * A descriptor to poll for reading, also in an epoll or libuv loop. The instance owns it; never read from it.
 */
static inline int sl_tp_event_fd(const sl_transport *tp)
{
    return tp->ops->event_fd(tp);
}

/*
 * Starts accepting peers, once per instance. host NULL or "": all interfaces (the text then names this host's
 * address); port 0: any. Writes "host:port" as peers can use it. Errors: INVALID, IO (in use, no such
 * address).
 */
static inline sl_status sl_tp_listen(sl_transport *tp, const char *host, uint16_t port, char *address,
                                     size_t cap, sl_err *err)
{
    return tp->ops->listen(tp, host, port, address, cap, err);
}

/*
 * Starts connecting to "host:port"; `connected` follows. Never blocks: a name is looked up on another thread, within
 * connect_timeout_ms, and an unknown one is reported by connected(SL_ERR_INVALID). Messages and operations may be
 * posted only after connected(SL_OK). Errors: INVALID (address text), NO_MEMORY.
 */
static inline sl_status sl_tp_connect(sl_transport *tp, const char *address, sl_tp_ep **out, sl_err *err)
{
    return tp->ops->connect(tp, address, out, err);
}

/*
 * Starts closing. `closed` always follows; `failed` and messages do not. Pending operations complete first
 * (force: SL_ERR_CANCELLED). With a flush close the peer handles everything that was posted before it sees
 * `failed` ("closed by the peer"); after connect_timeout_ms the flush close stops waiting for that. A force
 * close may follow a flush close. Release the endpoint's rkeys before closing.
 */
static inline void sl_tp_close(sl_tp_ep *ep, sl_tp_close_mode mode)
{
    ep->tp->ops->close(ep, mode);
}

/* Sets the receiver of messages with this id for all endpoints; NULL removes it. Errors: INVALID (id). */
static inline sl_status sl_tp_handle(sl_transport *tp, uint16_t id, sl_tp_message_fn *fn, void *arg)
{
    return tp->ops->handle(tp, id, fn, arg);
}

/*
 * Registers memory for put/get: as local side (SL_TP_LOCAL) or for peers (SL_TP_REMOTE_*). Slow, because it
 * pins pages: register an arena once, not every transfer. The memory must stay mapped until deregistered.
 * Device memory: the bytes of a put must have been written before the put is posted (an event of the device's
 * stream has completed), and the device must be the calling thread's (sl_be_use_thread). Errors: UNSUPPORTED
 * (kind, with the reason), INVALID, NO_MEMORY, IO.
 */
static inline sl_status sl_tp_mem_register(sl_transport *tp, void *ptr, size_t bytes, sl_tp_mem_kind kind,
                                           unsigned access, sl_tp_mem **out, sl_err *err)
{
    return tp->ops->mem_register(tp, ptr, bytes, kind, access, out, err);
}

/* Revokes the registration; no operation on the memory may be pending. NULL is allowed. */
static inline void sl_tp_mem_deregister(sl_tp_mem *mem)
{
    if (mem)
        mem->tp->ops->mem_deregister(mem);
}

/*
 * Writes the key that lets peers reach mem, for a message. SL_TP_RKEY_MAX bytes suffice. Errors: TOO_LARGE.
 */
static inline sl_status sl_tp_rkey_pack(const sl_tp_mem *mem, void *buf, size_t cap, size_t *len)
{
    return mem->tp->ops->rkey_pack(mem, buf, cap, len);
}

/* Makes a received key usable on this connected endpoint. Errors: CORRUPT, UNSUPPORTED, PEER, NO_MEMORY. */
static inline sl_status sl_tp_rkey_unpack(sl_tp_ep *ep, const void *buf, size_t len, sl_tp_rkey **out,
                                          sl_err *err)
{
    return ep->tp->ops->rkey_unpack(ep, buf, len, out, err);
}

/* Releases the key, before its endpoint is closed; no operation with it may be pending. NULL is allowed. */
static inline void sl_tp_rkey_release(sl_tp_rkey *rkey)
{
    if (rkey)
        rkey->ep->tp->ops->rkey_release(rkey);
}

/*
 * Writes `bytes` bytes (> 0) of local memory to address `remote` of the peer. The local range lies inside mem
 * and must not change until `done`; the remote range must lie inside rkey's. Errors: INVALID (range), AGAIN,
 * PEER, NO_MEMORY.
 */
static inline sl_status sl_tp_put(sl_tp_ep *ep, const void *local, sl_tp_mem *mem, size_t bytes,
                                  uint64_t remote, sl_tp_rkey *rkey, sl_tp_done_fn *done, void *cookie)
{
    return ep->tp->ops->put(ep, local, mem, bytes, remote, rkey, done, cookie);
}

/* Reads bytes at `remote` of the peer into local memory inside mem, which holds them after `done(SL_OK)`. */
static inline sl_status sl_tp_get(sl_tp_ep *ep, void *local, sl_tp_mem *mem, size_t bytes, uint64_t remote,
                                  sl_tp_rkey *rkey, sl_tp_done_fn *done, void *cookie)
{
    return ep->tp->ops->get(ep, local, mem, bytes, remote, rkey, done, cookie);
}

/* `done(SL_OK)`: every put posted on ep before this call is in the peer's memory. */
static inline sl_status sl_tp_flush(sl_tp_ep *ep, sl_tp_done_fn *done, void *cookie)
{
    return ep->tp->ops->flush(ep, done, cookie);
}

/*
 * Sends a message: header (<= SL_TP_AM_HEADER_MAX bytes, copied now) and payload (<= SL_TP_AM_MAX bytes,
 * borrowed; it must not change until `done`). The payload need not be registered. `done` says that the bytes
 * may be reused, not that the peer has handled them. Errors: TOO_LARGE, INVALID (id), AGAIN, PEER, NO_MEMORY.
 */
static inline sl_status sl_tp_send(sl_tp_ep *ep, uint16_t id, const void *header, size_t header_bytes,
                                   const void *data, size_t bytes, sl_tp_done_fn *done, void *cookie)
{
    return ep->tp->ops->send(ep, id, header, header_bytes, data, bytes, done, cookie);
}

/*
 * As sl_tp_send, for control messages, but takes ownership of a malloc'ed buffer (of a wire.h writer): it is
 * freed when sent, and also when refused. NULL data with 0 bytes is allowed.
 */
sl_status sl_tp_send_owned(sl_tp_ep *ep, uint16_t id, void *data, size_t bytes);

/* Counters since creation (see sl_tp_stats). */
static inline void sl_tp_get_stats(const sl_transport *tp, sl_tp_stats *out)
{
    tp->ops->stats(tp, out);
}

/* Name, listener address, devices, transports. */
static inline void sl_tp_query(const sl_transport *tp, sl_tp_info *out)
{
    tp->ops->query(tp, out);
}

/* One line about an endpoint for logs: "peer=10.0.0.2:4711 tls=tcp/eth0". */
static inline void sl_tp_ep_query(const sl_tp_ep *ep, char *text, size_t cap)
{
    ep->tp->ops->ep_query(ep, text, cap);
}

/*
 * Splits "host:port" or "[v6]:port" (also ":port": empty host); any thread. host gets at most cap - 1 bytes.
 * Errors: INVALID.
 */
sl_status sl_tp_address_parse(const char *text, char *host, size_t cap, uint16_t *port, sl_err *err);

#endif
