/*
 * The arena of another worker, as its PEER_WELCOME describes it: what one-sided operations on it need. The same checks for
 * writers (prefill/peer.c) and readers (decode/link/owner.c).
 *
 * Threads: the transport thread. Ownership: the holder releases the key (sl_tp_rkey_release) when no operation uses it.
 */
#ifndef SL_WORKER_REMOTE_ARENA_H
#define SL_WORKER_REMOTE_ARENA_H

#include "base/msg.h"
#include "kvstore/arena.h"
#include "transport/transport.h"

typedef struct sl_remote_arena {
    sl_geometry geo; /* its layout may differ from that of this worker */
    uint64_t base;   /* address of page 0 there */
    int64_t n_pages;
    sl_tp_rkey *rkey;
} sl_remote_arena;

/*
 * Reads w, which came on this connection, and unpacks its key. SL_ERR_STALE: it is of another session than `epoch`.
 * SL_ERR_CORRUPT, SL_ERR_REFUSED and errors of the transport: it cannot be used with pages of `own`. After an error there is
 * nothing to release.
 */
sl_status sl_remote_arena_open(sl_tp_ep *ep, const sl_msg_peer_welcome *w, uint64_t epoch,
                               const sl_geometry *own, sl_remote_arena *out, sl_err *err);

#endif
