/*
 * Decode peer: a decode worker to which this worker ships on behalf of one router, and the path that rows take to it. The
 * connection is worker/remote.h; it is made when the first request of that router for that worker arrives, and kept until it
 * fails or the session ends. If the epoch of the decode worker differs from that of the ticket, the ticket belongs to an earlier
 * session and no longer exists, and the jobs fail as stale.
 *
 * A CLOSED peer is kept while its path uses it (batches at the copier). Transport thread.
 */
#ifndef SL_PREFILL_PEER_H
#define SL_PREFILL_PEER_H

#include "prefill/prefill_impl.h"

/* The connection for this request of this session; it is made if it does not exist. */
sl_decode_peer *sl_peer_get(sl_prefill *p, uint32_t router, const sl_msg_prefill *m, sl_err *err);
void sl_peer_connected(sl_prefill *p, sl_wep *ep, sl_status st, const char *why);
/* Takes m. */
void sl_peer_msg(sl_prefill *p, sl_wep *ep, sl_wmsg *m);
void sl_peer_failed(sl_prefill *p, sl_wep *ep, sl_status st, const char *why);
void sl_peer_closed(sl_prefill *p, sl_wep *ep);
/* Fails every shipment to it and closes the connection by force. */
void sl_peer_drop(sl_prefill *p, sl_decode_peer *d, sl_status st, const char *why);
/* Handles the deadlines of peers; returns the next one. For sl_ship_tick(). */
uint64_t sl_peer_tick(sl_prefill *p, uint64_t now);
/* To be called when the path no longer uses the peer: frees it if it is CLOSED. */
void sl_peer_unused(sl_prefill *p, sl_decode_peer *d);
/* Frees all peers, after the threads have ended. */
void sl_peer_free_all(sl_prefill *p);

#endif
