/* See link.h: hands on to the kind of connection that each event belongs to. */
#include "decode/link/link.h"

#include <stdlib.h>

#include "decode/link/link_impl.h"

struct sl_link {
    sl_link_env e;
    sl_peers *peers;
    sl_owners *owners;
};

sl_status sl_link_create(const sl_link_opts *o, sl_link **out, sl_err *err)
{
    sl_link *l = calloc(1, sizeof *l);
    if (!l)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    l->e.o = *o;
    l->e.geo = sl_arena_geometry(o->arena);
    l->owners = sl_owners_new(&l->e);
    sl_status st =
        l->owners ? sl_peers_new(&l->e, &l->peers, err) : sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    if (st != SL_OK)
        sl_link_destroy(l);
    else
        *out = l;
    return st;
}

void sl_link_destroy(sl_link *l)
{
    if (!l)
        return;
    sl_owners_free(l->owners);
    sl_peers_free(l->peers);
    free(l);
}

void sl_link_accepted(sl_link *l, sl_wep *ep, const char *address)
{
    sl_peers_accepted(l->peers, ep, address);
}

/* This role connects to owners of pages only. */
void sl_link_connected(sl_link *l, sl_wep *ep, sl_status st, const char *why)
{
    sl_owners_connected(l->owners, ep, st, why);
}

static bool is_owner(const sl_wep *ep)
{
    const sl_link_kind *kind = sl_wep_user(ep);
    return *kind == SL_LINK_OWNER;
}

void sl_link_msg(sl_link *l, sl_wep *ep, sl_wmsg *m)
{
    if (!sl_wep_user(ep))
        sl_wmsg_free(m);
    else if (is_owner(ep))
        sl_owners_msg(l->owners, ep, m);
    else
        sl_peers_msg(l->peers, ep, m);
}

void sl_link_failed(sl_link *l, sl_wep *ep, sl_status st, const char *why)
{
    if (!sl_wep_user(ep))
        return;
    if (is_owner(ep))
        sl_owners_failed(l->owners, ep, st, why);
    else
        sl_peers_failed(l->peers, ep, st, why);
}

void sl_link_closed(sl_link *l, sl_wep *ep)
{
    if (!sl_wep_user(ep))
        return;
    if (is_owner(ep))
        sl_owners_closed(l->owners, ep);
    else
        sl_peers_closed(l->peers, ep);
}

void sl_link_mail(sl_link *l, sl_wmail *m)
{
    switch (m->kind) {
    case DM_FENCE:
        sl_peers_fence(l->peers, (sl_fence *)m);
        return;
    case DM_READER_FENCE:
        sl_peers_fence_reader(l->peers, ((sl_reader_mail *)m)->ep_serial);
        break;
    case DM_PULL_ASK:
        sl_owners_ask(l->owners, (sl_pull *)m);
        return;
    case DM_PULL_GET:
        sl_owners_get(l->owners, (sl_pull_get *)m);
        return;
    case DM_PULL_CANCEL:
        sl_owners_cancel(l->owners, ((sl_pull_cancel *)m)->id);
        break;
    default:
        SL_CHECK(false, "mail %d", m->kind);
    }
    free(m);
}

uint64_t sl_link_tick(sl_link *l, uint64_t now)
{
    uint64_t peers = sl_peers_tick(l->peers, now), owners = sl_owners_tick(l->owners, now);
    return peers < owners ? peers : owners;
}

void sl_link_router_down(sl_link *l, uint32_t router)
{
    sl_peers_router_down(l->peers, router);
    sl_owners_router_down(l->owners, router);
}

void sl_link_stats_get(const sl_link *l, sl_link_stats *out)
{
    *out = (sl_link_stats){.stale = atomic_load(&l->e.stale), .refused = atomic_load(&l->e.refused)};
}
