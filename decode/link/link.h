/*
 * Connections of a decode worker: prefill workers and readers that connect to it (wpeer.c), decode workers whose pages it reads
 * (owner.c). Transport thread.
 */
#ifndef SL_DECODE_LINK_LINK_H
#define SL_DECODE_LINK_LINK_H

#include "decode/decode.h"
#include "decode/mail.h"
#include "decode/pages/pull.h"
#include "worker/direct.h"

enum { MAX_BANS = 64 };

/* The first member of what an endpoint's user pointer points to. */
typedef enum { DPEER_ACCEPTED, DPEER_OWNER } sl_dpeer_kind;

/* The connection of a writer, or of a reader; transport thread. */
typedef struct sl_wpeer {
    sl_dpeer_kind kind;
    bool reader; /* known from PEER_HELLO on */
    struct sl_wpeer *next;
    sl_wep *ep;       /* NULL: closed, but its direct writes may not have ended */
    sl_writer writer; /* id 0: before PEER_HELLO */
    int slot;         /* entry of its right to write directly, -1: none */
    uint64_t hello_deadline_ns;
    char address[SL_TP_ADDRESS_MAX];
} sl_wpeer;

typedef struct sl_link {
    sl_wpeer *peers;
    sl_direct_host *direct; /* NULL: no writer writes directly. Made before the thread starts */
    sl_writer bans[MAX_BANS];
    uint32_t n_bans;
    sl_owner *owners;
} sl_link;

/* wpeer.c, transport thread */
void sl_wpeer_accepted(sl_decode *d, sl_wep *ep, const char *address);
void sl_wpeer_msg(sl_decode *d, sl_wep *ep, sl_wmsg *m);
void sl_wpeer_failed(sl_decode *d, sl_wep *ep, sl_status st, const char *why);
void sl_wpeer_closed(sl_decode *d, sl_wep *ep);
void sl_wpeer_fence(sl_decode *d, sl_fence *f);
void sl_wpeer_fence_reader(sl_decode *d, uint32_t ep_serial);
/* Closes the connections of the writers and readers that this router has introduced. */
void sl_wpeer_router_down(sl_decode *d, uint32_t router);
uint64_t sl_wpeer_tick(sl_decode *d, uint64_t now);

/* owner.c, transport thread */
void sl_owner_ask(sl_decode *d, sl_pull *p);
void sl_owner_get(sl_decode *d, sl_pull_get *g);
/* Of a question or a get, which may have been answered already. */
void sl_owner_cancel(sl_decode *d, uint64_t id);
void sl_owner_connected(sl_decode *d, sl_wep *ep, sl_status st, const char *why);
/* Takes m. */
void sl_owner_msg(sl_decode *d, sl_wep *ep, sl_wmsg *m);
void sl_owner_failed(sl_decode *d, sl_wep *ep, sl_status st, const char *why);
void sl_owner_closed(sl_decode *d, sl_wep *ep);
/* Closes the connections to the owners that this router has named. */
void sl_owner_router_down(sl_decode *d, uint32_t router);
uint64_t sl_owner_tick(sl_decode *d, uint64_t now);
/* The threads have ended. */
void sl_owner_free_all(sl_decode *d);

#endif
