/*
 * Transport seam: moving bytes between processes. Endpoints, registered memory, put, get, active messages,
 * flush.
 *
 * An instance (sl_transport) belongs to the thread that created it: every call on it, its endpoints, memories
 * and keys is made on that thread. Nothing blocks. Every callback runs inside sl_tp_progress() on the owner
 * thread, never inside the call that started the operation; a callback may call anything except
 * sl_tp_progress() and sl_tp_destroy().
 *
 * Sleeping without spinning (also what makes keepalives and deadlines work, no timer of yours is needed):
 *
 *     for (;;) {
 *         while (sl_tp_progress(tp) > 0)
 *             ;
 *         if (sl_tp_arm(tp) != SL_OK)        // SL_AGAIN: something arrived meanwhile
 *             continue;
 *         poll(sl_tp_event_fd(tp), …);       // readable: progress again
 *     }
 *
 * The rule is edge-like: arm after the last progress and before every poll; any post after arm needs progress
 * + arm.
 *
 * Operations. A post returns SL_OK (exactly one `done` will follow), SL_AGAIN (too much pending: nothing was
 * posted, try after some completions) or a negative status (refused, no `done`). `done` may be NULL; failures
 * still count.
 *
 * Order. Messages of one endpoint arrive in the order they were sent, each once. Puts and gets have no order
 * among themselves or relative to messages. To tell the peer "the data is there": puts, sl_tp_flush(), and
 * send the message from the flush's `done`. `done` of a put only says the local bytes may be reused;
 * `done(SL_OK)` of a flush says that all earlier puts of this endpoint are in the peer's memory.
 *
 * Target side. A put or get may need the target's owner thread to progress (TCP does); do not stop
 * progressing a transport whose memory others write.
 *
 * Failure. When a peer dies or the connection breaks: every pending operation completes with SL_ERR_PEER (or
 * SL_ERR_CANCELLED), then `failed` is called once, later posts return SL_ERR_PEER. The owner then calls
 * sl_tp_close(). How soon a death is noticed depends on the implementation (a killed process on TCP:
 * milliseconds; a host that vanished: the keepalive interval; nothing is promised for a peer that hangs but
 * lives: use application heartbeats).
 *
 * After `closed` of a force close no put or get of the peer through this endpoint touches local memory any
 * more, and no posted operation of ours touches local memory. sl_tp_caps.close_fences says whether the
 * implementation guarantees that (ucx/README.md in this folder says by which mechanism); after a flush close
 * the peer may still be writing, because flush is about our own operations.
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

/* Public prefixes of the opaque objects; implementations embed them first. Read only for users, except
 * ep->user. */
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

/* DEVICE: a GPU's, the local side of puts; of other operations only where the implementation can. */
typedef enum { SL_TP_HOST, SL_TP_DEVICE } sl_tp_mem_kind;

enum { SL_TP_LOCAL = 1, SL_TP_REMOTE_READ = 2, SL_TP_REMOTE_WRITE = 4 }; /* access bits */

typedef enum {
    SL_TP_CLOSE_FLUSH, /* complete what was posted, then close; falls back to force when the peer fails */
    SL_TP_CLOSE_FORCE, /* cancel what was posted; works on failed and hanging peers */
} sl_tp_close_mode;

/* Completion of one operation: SL_OK, SL_ERR_PEER, SL_ERR_CANCELLED (closed by us) or SL_ERR_IO. */
typedef void sl_tp_done_fn(void *cookie, sl_status st);

/*
 * A received message. header and data are borrowed until the callback returns, without any alignment (NULL
 * when empty). The sender is any process that could connect: validate every byte (base/wire.h).
 */
typedef void sl_tp_message_fn(void *arg, sl_tp_ep *ep, uint16_t id, const void *header, size_t header_bytes,
                              const void *data, size_t bytes);

/* What the instance tells its owner. `arg` comes first everywhere. Unused ones may be NULL. */
typedef struct sl_tp_events {
    void *arg;
    /* A peer connected to our listener; ep is usable, ours to close. Without this callback peers are refused.
     */
    void (*accepted)(void *arg, sl_tp_ep *ep, const char *peer_address);
    /* sl_tp_connect() ended: SL_OK, SL_ERR_REFUSED (nobody there, or said no), SL_ERR_TIMEOUT, SL_ERR_PEER.
     * On failure `why` has the reason, `failed` is not called, and the endpoint must still be closed. */
    void (*connected)(void *arg, sl_tp_ep *ep, sl_status st, const char *why);
    /* A connected or accepted endpoint broke; once per endpoint, after its pending operations completed. */
    void (*failed)(void *arg, sl_tp_ep *ep, sl_status st, const char *why);
    /* sl_tp_close() is complete; ep is freed when the callback returns. */
    void (*closed)(void *arg, sl_tp_ep *ep);
} sl_tp_events;

/* All strings are copied by sl_transport_create; NULL, "" or 0 means the default. */
typedef struct sl_tp_options {
    sl_tp_events events;
    const char *tls; /* UCX_TLS ("tcp", "rc_verbs,self"…); default: UCX's choice */
    const char
        *net_devices; /* UCX_NET_DEVICES ("mlx5_0:1"…); default: the NICs nearest numa_node, else all */
    const char *sockaddr_priority; /* UCX_SOCKADDR_TLS_PRIORITY ("rdmacm", "tcp"); default: UCX's choice */
    const char *extra; /* more UCX settings, "NAME=VALUE;NAME=VALUE", without the UCX_ or UCX_TCP_ prefix */
    int numa_node;     /* of the memory that is moved; -1: do not care */
    uint32_t connect_timeout_ms; /* until connected(SL_ERR_TIMEOUT); default 5000 */
    uint32_t keepalive_ms;       /* between liveness probes of idle endpoints; default 2000 */
    uint32_t max_pending;        /* operations posted and not completed, per instance; default 65536 */
    const char *fabric; /* loopback: instances with the same name see each other; default "default" */
} sl_tp_options;

/* Defaults, so that a caller only writes what it means. numa_node is -1. */
sl_tp_options sl_tp_options_default(void);

typedef struct sl_tp_caps {
    bool cross_process; /* peers may be other processes and hosts */
    bool device_memory; /* SL_TP_DEVICE is possible; whether it is here: sl_tp_info */
    bool close_fences;  /* `closed` after a force close fences the peer's puts and gets (see the top) */
    bool fault_injection;
} sl_tp_caps;

typedef struct sl_tp_stats {
    uint64_t bytes_put, bytes_got; /* of completed operations */
    uint64_t device_bytes_put;     /* of bytes_put: from device memory */
    uint64_t puts, gets, flushes;  /* completed */
    uint64_t messages_sent, messages_received, message_bytes_sent, message_bytes_received;
    uint64_t messages_refused; /* malformed, unknown id or too large */
    uint64_t accesses_refused; /* puts and gets of peers outside of what was offered to them */
    uint64_t failed_ops, failed_endpoints, refused_connects;
    uint64_t endpoints, pending; /* now */
    uint64_t registered_bytes;   /* now */
} sl_tp_stats;

typedef struct sl_tp_info {
    const char *name;
    char address[SL_TP_ADDRESS_MAX]; /* of the listener; empty when not listening */
    char devices[256];               /* "eth0,mlx5_0:1"; what the implementation may use */
    char transports[256];            /* "tcp,rc_verbs" */
    char version[64];                /* of the library beneath */
    bool device_memory;              /* SL_TP_DEVICE may be registered in this process */
    char no_device_memory[160];      /* else why not */
} sl_tp_info;

/* The implementations by name ("ucx", "loopback"); NULL when unknown or not built. */
const sl_transport_ops *sl_transport_find(const char *name);
/* The i-th implementation, NULL after the last; and the same as names, which end with NULL. */
const sl_transport_ops *sl_transport_at(size_t i);
const char *const *sl_transport_names(void);

/* Slots are all required. Users call the wrappers below; implementers see transport_impl.h. */
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
 * Force-closes every endpoint (no callbacks any more), completes nothing, frees everything. Memories and keys
 * that are still alive are released too; their handles dangle. May take some milliseconds. NULL is fine.
 */
static inline void sl_tp_destroy(sl_transport *tp)
{
    if (tp)
        tp->ops->destroy(tp);
}

/* Advances everything and runs callbacks; returns how many events happened (0: nothing to do now). */
static inline int sl_tp_progress(sl_transport *tp)
{
    return tp->ops->progress(tp);
}

/* SL_OK: the event fd will become readable on the next event. SL_AGAIN: events are waiting, progress first.
 */
static inline sl_status sl_tp_arm(sl_transport *tp)
{
    return tp->ops->arm(tp);
}

/* A descriptor to poll for reading; owned by the instance, never read it. May sit inside an epoll or libuv
 * loop. */
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
 * Starts connecting to "host:port"; `connected` follows. Names are resolved here, which may take as long as
 * the resolver does: give numeric addresses where that matters. Messages and operations may be posted only
 * after connected(SL_OK). Errors: INVALID (address text, unknown host), NO_MEMORY.
 */
static inline sl_status sl_tp_connect(sl_transport *tp, const char *address, sl_tp_ep **out, sl_err *err)
{
    return tp->ops->connect(tp, address, out, err);
}

/*
 * Starts closing; `closed` follows always, no `failed` and no messages any more. Pending operations complete
 * first (force: SL_ERR_CANCELLED). A flush close lets the peer handle everything that was posted before it
 * sees `failed` ("closed by the peer"), and gives up on that after connect_timeout_ms; a force close may
 * follow it. Release the endpoint's rkeys before closing.
 */
static inline void sl_tp_close(sl_tp_ep *ep, sl_tp_close_mode mode)
{
    ep->tp->ops->close(ep, mode);
}

/* Sets the receiver of messages with this id on all endpoints of the instance; NULL removes it. Errors:
 * INVALID (id). */
static inline sl_status sl_tp_handle(sl_transport *tp, uint16_t id, sl_tp_message_fn *fn, void *arg)
{
    return tp->ops->handle(tp, id, fn, arg);
}

/*
 * Registers memory for put/get: as local side (SL_TP_LOCAL) or for peers (SL_TP_REMOTE_*). Slow (pins pages):
 * once per arena, not per transfer. The memory must stay mapped until deregistered. Device memory: what is
 * put must have been written before the put is posted (an event of the device's stream is done), and the
 * device must be the calling thread's (sl_be_use_thread). Errors: UNSUPPORTED (kind, with the reason),
 * INVALID, NO_MEMORY, IO.
 */
static inline sl_status sl_tp_mem_register(sl_transport *tp, void *ptr, size_t bytes, sl_tp_mem_kind kind,
                                           unsigned access, sl_tp_mem **out, sl_err *err)
{
    return tp->ops->mem_register(tp, ptr, bytes, kind, access, out, err);
}

/* Revokes it; no operation on it may be pending. NULL is fine. */
static inline void sl_tp_mem_deregister(sl_tp_mem *mem)
{
    if (mem)
        mem->tp->ops->mem_deregister(mem);
}

/* Writes the key that lets peers reach mem (to ship in a message). cap SL_TP_RKEY_MAX always suffices.
 * TOO_LARGE. */
static inline sl_status sl_tp_rkey_pack(const sl_tp_mem *mem, void *buf, size_t cap, size_t *len)
{
    return mem->tp->ops->rkey_pack(mem, buf, cap, len);
}

/* Makes a received key usable on this connected endpoint. Errors: CORRUPT (bytes), UNSUPPORTED, PEER,
 * NO_MEMORY. */
static inline sl_status sl_tp_rkey_unpack(sl_tp_ep *ep, const void *buf, size_t len, sl_tp_rkey **out,
                                          sl_err *err)
{
    return ep->tp->ops->rkey_unpack(ep, buf, len, out, err);
}

/* Releases the key; no operation with it may be pending. Before the endpoint is closed. NULL is fine. */
static inline void sl_tp_rkey_release(sl_tp_rkey *rkey)
{
    if (rkey)
        rkey->ep->tp->ops->rkey_release(rkey);
}

/*
 * Writes bytes of local memory (inside mem, untouched until `done`) to address `remote` of the peer. The
 * range must lie inside rkey's; bytes > 0. Errors: INVALID (range), AGAIN, PEER, NO_MEMORY.
 */
static inline sl_status sl_tp_put(sl_tp_ep *ep, const void *local, sl_tp_mem *mem, size_t bytes,
                                  uint64_t remote, sl_tp_rkey *rkey, sl_tp_done_fn *done, void *cookie)
{
    return ep->tp->ops->put(ep, local, mem, bytes, remote, rkey, done, cookie);
}

/* Reads bytes at `remote` of the peer into local memory (inside mem), which holds them when `done` says
 * SL_OK. */
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
 * Sends a message: header (<= SL_TP_AM_HEADER_MAX, copied now) and payload (<= SL_TP_AM_MAX, borrowed and
 * untouched until `done`). `done` says the bytes may be reused, not that the peer has handled them. Need not
 * be registered memory. Errors: TOO_LARGE, INVALID (id), AGAIN, PEER, NO_MEMORY.
 */
static inline sl_status sl_tp_send(sl_tp_ep *ep, uint16_t id, const void *header, size_t header_bytes,
                                   const void *data, size_t bytes, sl_tp_done_fn *done, void *cookie)
{
    return ep->tp->ops->send(ep, id, header, header_bytes, data, bytes, done, cookie);
}

/*
 * As sl_tp_send, but takes over a malloc'ed buffer (wire.h writers): freed when sent, and also when refused.
 * The easy way for control messages. NULL data with 0 bytes is fine.
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
 * Splits "host:port" or "[v6]:port" (also ":port": empty host). Pure; for config checks. host gets at most
 * cap-1 bytes. Errors: INVALID.
 */
sl_status sl_tp_address_parse(const char *text, char *host, size_t cap, uint16_t *port, sl_err *err);

#endif
