/*
 * Decode peer: a connection to a decode worker, on behalf of one router. Made when the first request of that router for
 * it comes, one per (session with the router, address, worker id, epoch), and kept while it works and the session lasts.
 * So two routers that use the same pair of workers have a connection each, and what ends one does not touch the other.
 *
 * PEER_HELLO is answered by PEER_WELCOME with the arena's address, size, geometry and key; nothing is posted
 * before that. A decode worker of another epoch than the ticket's is another session: its tickets are gone, and
 * the jobs fail as stale.
 *
 *     CONNECTING ──PEER_WELCOME──▶ UP ──error, refusal, timeout──▶ CLOSING ──closed──▶ CLOSED ──▶ freed
 *          └───────────────────────error, refusal, timeout────────────┘
 *
 * From CLOSING on no operation is posted. CLOSED lasts while its path still uses it (batches at the copier).
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
    uint64_t progress_ns;       /* of the last completion, or of the first post after none was in flight */
    uint32_t in_flight;         /* of all shipments */
    /* from PEER_WELCOME */
    sl_tp_rkey *rkey;
    uint64_t base;
    int64_t n_pages;
    sl_geometry geo;
    const sl_ship_path *path; /* NULL before UP */
    struct {                  /* path_direct.c alone */
        sl_direct *map;       /* its arena, mapped here; NULL on other paths */
        bool registered;      /* with the device: the copier may write there */
        int32_t batches;      /* mails about it at the copier */
    } direct;
};

/* The connection for this request of this session, made if there is none. */
sl_decode_peer *sl_peer_get(sl_prefill *p, uint32_t router, const sl_msg_prefill *m, sl_err *err);
void sl_peer_connected(sl_prefill *p, sl_wep *ep, sl_status st, const char *why);
/* Takes m. */
void sl_peer_msg(sl_prefill *p, sl_wep *ep, sl_wmsg *m);
void sl_peer_failed(sl_prefill *p, sl_wep *ep, sl_status st, const char *why);
void sl_peer_closed(sl_prefill *p, sl_wep *ep);
/* Fails every shipment to it and closes the connection by force. */
void sl_peer_drop(sl_prefill *p, sl_decode_peer *d, sl_status st, const char *why);
/* Deadlines; returns the next one. For sl_ship_tick. */
uint64_t sl_peer_tick(sl_prefill *p, uint64_t now);
/* Its path does not use it any more: frees a CLOSED peer. */
void sl_peer_unused(sl_prefill *p, sl_decode_peer *d);
/* After the threads have ended: all that are left. */
void sl_peer_free_all(sl_prefill *p);

#endif
