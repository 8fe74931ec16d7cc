/*
 * The connections of a decode worker: prefill workers that write into its arena and readers (peers.c), and decode workers whose
 * pages it reads itself (owners.c, for decode/pages/pull.h). Transport thread, except where a function says otherwise; with
 * the engine thread it exchanges mail alone (decode/mail/mail.h).
 */
#ifndef SL_DECODE_LINK_LINK_H
#define SL_DECODE_LINK_LINK_H

#include "decode/mail/mail.h"
#include "kvstore/arena.h"
#include "worker/shipping.h"
#include "worker/worker.h"

typedef struct sl_link sl_link;

/* Everything that is pointed to outlives the room. */
typedef struct sl_link_opts {
    sl_worker *const *worker;  /* set before the transport thread begins */
    sl_mailbox *inbox;         /* of the engine thread */
    const sl_msg_hello *hello; /* of this worker */
    const sl_wr *geometry;     /* the bytes that hello contains */
    const sl_arena *arena;
    /* NULL: auto. Where it allows `direct`, writers of this host may write into the arena directly, provided that it is
     * shared memory and the system supports it. */
    const sl_shipping *shipping;
    uint32_t stall_ms; /* gets without progress for this time end the connection */
} sl_link_opts;

/* Caller's thread. SL_ERR_NO_MEMORY; SL_ERR_UNSUPPORTED when `direct` was chosen and is not possible. */
sl_status sl_link_create(const sl_link_opts *o, sl_link **out, sl_err *err);
/* The transport thread has ended. NULL is allowed. */
void sl_link_destroy(sl_link *l);

/* As in sl_worker_calls. */
void sl_link_accepted(sl_link *l, sl_wep *ep, const char *address);
void sl_link_connected(sl_link *l, sl_wep *ep, sl_status st, const char *why);
void sl_link_msg(sl_link *l, sl_wep *ep, sl_wmsg *m);
void sl_link_failed(sl_link *l, sl_wep *ep, sl_status st, const char *why);
void sl_link_closed(sl_link *l, sl_wep *ep);
void sl_link_mail(sl_link *l, sl_wmail *m);
uint64_t sl_link_tick(sl_link *l, uint64_t now);
/* The session has ended: closes the connections that this router has introduced or named. */
void sl_link_router_down(sl_link *l, uint32_t router);

typedef struct sl_link_stats {
    uint64_t stale, refused; /* messages that were dropped; greetings that were refused */
} sl_link_stats;

/* Any thread. */
void sl_link_stats_get(const sl_link *l, sl_link_stats *out);

#endif
