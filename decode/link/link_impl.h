/*
 * The two kinds of connections of a decode worker, and what they share. Only files of this folder include it.
 */
#ifndef SL_DECODE_LINK_LINK_IMPL_H
#define SL_DECODE_LINK_LINK_IMPL_H

#include <stdatomic.h>

#include "decode/link/link.h"
#include "decode/pages/pull.h"

/* The first member of what an endpoint's user pointer points to. */
typedef enum { SL_LINK_PEER, SL_LINK_OWNER } sl_link_kind;

typedef struct sl_link_env {
    sl_link_opts o;
    const sl_geometry *geo;
    _Atomic uint64_t stale, refused;
} sl_link_env;

static inline sl_worker *sl_link_worker(const sl_link_env *e)
{
    return *e->o.worker;
}

/* peers.c: the connections of writers and readers */
typedef struct sl_peers sl_peers;

sl_status sl_peers_new(sl_link_env *e, sl_peers **out, sl_err *err);
void sl_peers_free(sl_peers *s);
void sl_peers_accepted(sl_peers *s, sl_wep *ep, const char *address);
/* Takes m. */
void sl_peers_msg(sl_peers *s, sl_wep *ep, sl_wmsg *m);
void sl_peers_failed(sl_peers *s, sl_wep *ep, sl_status st, const char *why);
void sl_peers_closed(sl_peers *s, sl_wep *ep);
/* Takes f. */
void sl_peers_fence(sl_peers *s, sl_fence *f);
void sl_peers_fence_reader(sl_peers *s, uint32_t ep_serial);
void sl_peers_router_down(sl_peers *s, uint32_t router);
uint64_t sl_peers_tick(sl_peers *s, uint64_t now);

/* owners.c: the connections to workers whose pages are read */
typedef struct sl_owners sl_owners;

/* NULL: out of memory. */
sl_owners *sl_owners_new(sl_link_env *e);
void sl_owners_free(sl_owners *s);
void sl_owners_ask(sl_owners *s, sl_pull *p);
void sl_owners_get(sl_owners *s, sl_pull_get *g);
/* Of a question or a get, which may have been answered already. */
void sl_owners_cancel(sl_owners *s, uint64_t id);
void sl_owners_connected(sl_owners *s, sl_wep *ep, sl_status st, const char *why);
/* Takes m. */
void sl_owners_msg(sl_owners *s, sl_wep *ep, sl_wmsg *m);
void sl_owners_failed(sl_owners *s, sl_wep *ep, sl_status st, const char *why);
void sl_owners_closed(sl_owners *s, sl_wep *ep);
void sl_owners_router_down(sl_owners *s, uint32_t router);
uint64_t sl_owners_tick(sl_owners *s, uint64_t now);

#endif
