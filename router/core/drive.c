/* See drive.h. */
#include "router/core/drive.h"

#include "router/core/core_impl.h"

_Static_assert((int)SL_ROUTER_DRIVE_MS == (int)SL_ROUTER_TICK_MS, "the tick of the loop");

void sl_router_drive_join(sl_router *r, sl_tp_ep *ep, const char *address)
{
    sl_member_accept(r, ep, address);
}

void sl_router_drive_message(sl_tp_ep *ep, const sl_msg *m)
{
    if (ep->user)
        sl_router_link_received(ep->user, m);
}

uint32_t sl_router_drive_id(const sl_tp_ep *ep)
{
    return ep->user ? ((const sl_member *)ep->user)->id : 0;
}

void sl_router_drive_settle(sl_router *r)
{
    if (sl_effects_pending(r))
        sl_effects_run(r);
}

void sl_router_drive_tick(sl_router *r)
{
    uint64_t now = sl_now_ns();
    for (sl_member *w = r->cluster.members; w; w = w->next)
        w->last_seen_ns = now;
    r->cluster.last_tick_ns = r->cluster.last_ping_ns = now; /* they need not be asked whether they live */
    sl_router_core_tick(r, now);
    sl_groups_sweep(r);
}
