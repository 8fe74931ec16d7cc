/*
 * Decode peer: a connection to a decode worker on behalf of one router. It is made when the first request of that
 * router for that worker arrives, one for each (session with the router, address, worker id, epoch), and kept until it
 * fails or the session ends. So two routers that use the same pair of workers have separate connections, and the end of
 * one does not affect the other.
 *
 * The decode worker answers PEER_HELLO by PEER_WELCOME, which contains address, size, geometry and key of the arena;
 * nothing is posted before that. If the epoch of the decode worker differs from that of the ticket, the ticket belongs
 * to an earlier session and no longer exists, and the jobs fail as stale.
 *
 *     CONNECTING ──PEER_WELCOME──▶ UP ──error, refusal, timeout──▶ CLOSING ──closed──▶ CLOSED ──▶ freed
 *          └───────────────────────error, refusal, timeout────────────┘
 *
 * In CLOSING and CLOSED no operation is posted. A CLOSED peer is kept while its path uses it (batches at the copier).
 * Transport thread.
 */
#ifndef SL_PREFILL_PEER_H
#define SL_PREFILL_PEER_H

#include "kvstore/arena.h"
#include "prefill/shipment.h"
#include "worker/direct.h"

typedef struct sl_ship_path sl_ship_path;

typedef enum { PEER_CONNECTING, PEER_UP, PEER_CLOSING, PEER_CLOSED } sl_peer_state;

struct sl_decode_peer {
    sl_decode_peer *next;
    sl_wep *ep; /* NULL when CLOSED */
    char address[128];
    uint32_t router;    /* the session with the router that introduces the two */
    uint32_t worker_id; /* its id at that router */
    uint32_t own_id;    /* this worker's; 0 before PEER_HELLO */
    uint64_t epoch;     /* of its session with that router */
    sl_peer_state state;
    uint64_t hello_deadline_ns; /* for PEER_WELCOME; UINT64_MAX: none */
    uint64_t progress_ns;       /* time of the last completion, or of a post when nothing was in flight */
    uint32_t in_flight;         /* operations of all shipments */
    /* set by PEER_WELCOME */
    sl_tp_rkey *rkey;
    uint64_t base;
    int64_t n_pages;
    sl_geometry geo;
    const sl_ship_path *path; /* NULL before UP */
    struct {                  /* used by path_direct.c only */
        sl_direct *map;       /* the mapped arena of the peer; NULL on other paths */
        bool registered;      /* the map is registered with the device, so the copier may write there */
        int32_t batches;      /* mails for this peer that the copier holds */
    } direct;
};

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
