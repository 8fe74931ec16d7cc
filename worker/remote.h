/*
 * Remote: a decode worker whose arena this worker reads or writes, and the connection to it. Prefill workers have one for each
 * decode worker to which they ship (prefill/peer.h), decode workers one for each whose pages they read (decode/link/owners.c). It is
 * made on behalf of one router: one for each (session with the router, epoch of the remote worker, address), so two routers that
 * name the same pair of workers have separate ones, and the end of one session does not affect the other.
 *
 *     CONNECTING ──PEER_WELCOME──▶ UP ──error, refusal, timeout──▶ CLOSING ──closed──▶ CLOSED
 *          └───────────────────────error, refusal, timeout────────────┘
 *
 * PEER_HELLO is answered by PEER_WELCOME with address, size, geometry and key of the arena; nothing is posted before that. In
 * CLOSING and CLOSED nothing is posted either. The close cancels operations in flight, and the key is released when none uses it.
 *
 * This is the part that both rooms share. It calls none of them: they embed it, hand it what has happened, and do with an end
 * what their requests need. Transport thread.
 */
#ifndef SL_WORKER_REMOTE_H
#define SL_WORKER_REMOTE_H

#include "base/msg.h"
#include "kvstore/arena.h"
#include "worker/worker.h"

typedef enum { SL_REMOTE_CONNECTING, SL_REMOTE_UP, SL_REMOTE_CLOSING, SL_REMOTE_CLOSED } sl_remote_state;

typedef struct sl_remote {
    sl_wep *ep; /* NULL when CLOSED */
    char address[128];
    uint32_t router;    /* the session with the router that introduces the two */
    uint32_t worker_id; /* its id at that router */
    uint32_t own_id;    /* this worker's; 0 before PEER_HELLO */
    uint64_t epoch;     /* of its session with that router */
    sl_remote_state state;
    uint64_t hello_deadline_ns; /* for PEER_WELCOME; UINT64_MAX: none */
    uint64_t progress_ns;       /* time of the last completion, or of a post when nothing was in flight */
    uint32_t in_flight;         /* operations that have not completed */
    /* set by PEER_WELCOME */
    sl_geometry geo; /* its layout may differ from that of this worker */
    uint64_t base;   /* address of page 0 there */
    int64_t n_pages;
    sl_tp_rkey *rkey;
} sl_remote;

/* What this worker says of itself. */
typedef struct sl_remote_self {
    sl_worker *worker;
    const sl_msg_hello *hello; /* the cluster's tag and the identity */
    const sl_geometry *geo;
    bool reader;         /* it only reads */
    uint32_t direct_pid; /* it wants to write directly, see worker/direct.h; 0: it does not */
} sl_remote_self;

/* Whether this is the connection to the worker at this address and epoch for this session, and may be used. */
bool sl_remote_is(const sl_remote *r, uint32_t router, uint64_t epoch, const char *address);
/* Begins to connect; r is filled in but for what its holder adds. user: of the endpoint. Errors as the transport's. */
sl_status sl_remote_connect(sl_remote *r, const sl_remote_self *self, const sl_remote *to, void *user,
                            sl_err *err);
/* The connection is made: sends PEER_HELLO. SL_ERR_PEER: the router that named it is gone. */
sl_status sl_remote_greet(sl_remote *r, const sl_remote_self *self, sl_err *err);
/*
 * Reads w, the answer, and unpacks its key; the holder makes it UP by sl_remote_up(). SL_ERR_STALE: it is of another session.
 * SL_ERR_CORRUPT, SL_ERR_REFUSED and errors of the transport: it cannot be used with pages of this worker.
 */
sl_status sl_remote_welcome(sl_remote *r, const sl_remote_self *self, const sl_msg_peer_welcome *w,
                            sl_err *err);
void sl_remote_up(sl_remote *r);
/* Closes by force. False: it is closing or closed already. */
bool sl_remote_drop(sl_remote *r);
/* The connection is closed: no operation is in flight. */
void sl_remote_closed(sl_remote *r);

/* An operation was posted, or has completed. */
void sl_remote_posted(sl_remote *r);
void sl_remote_completed(sl_remote *r);
/* Why it has to be dropped now, with SL_ERR_TIMEOUT; NULL: it has not. stall_ns: how long operations may show no progress. */
const char *sl_remote_late(const sl_remote *r, uint64_t now, uint64_t stall_ns);
/* When it may become late. */
uint64_t sl_remote_due(const sl_remote *r, uint64_t stall_ns);

#endif
