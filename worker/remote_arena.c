/* See remote_arena.h. */
#include "worker/remote_arena.h"

sl_status sl_remote_arena_open(sl_tp_ep *ep, const sl_msg_peer_welcome *w, uint64_t epoch,
                               const sl_geometry *own, sl_remote_arena *out, sl_err *err)
{
    *out = (sl_remote_arena){.base = w->arena_addr, .n_pages = w->total_pages};
    if (w->epoch != epoch)
        return sl_fail(err, SL_ERR_STALE, "it has begun another session since");
    SL_TRY(sl_geometry_read(w->geometry.data, w->geometry.len, &out->geo, err));
    SL_TRY(sl_geometry_compatible(own, &out->geo, err));
    if (!w->total_pages || w->arena_bytes / (uint64_t)out->geo.page_bytes < w->total_pages)
        return sl_fail(err, SL_ERR_CORRUPT, "%u pages do not fit into its arena of %lu bytes", w->total_pages,
                       w->arena_bytes);
    return sl_tp_rkey_unpack(ep, w->rkey.data, w->rkey.len, &out->rkey, err);
}
