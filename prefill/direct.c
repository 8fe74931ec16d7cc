/*
 * Paths: which way the rows of a connection go, and the direct one (worker/direct.h): copies into the decode
 * worker's arena, mapped here. They are made on the transport thread, so when a span is posted it has landed;
 * the flush of the other path has nothing to wait for, and DRAINED is true as soon as it can be said.
 */
#include <string.h>

#include "prefill/prefill_impl.h"

static const char *why_not(sl_prefill *p, const sl_msg_peer_welcome *w)
{
    if (p->o.shipping == SL_CFG_SHIP_STAGING)
        return "cluster.shipping is staging";
    return w->direct.len ? NULL : "the decode worker does not offer it: another host, or its log says why";
}

sl_status sl_path_choose(sl_prefill *p, sl_dpeer *d, const sl_msg_peer_welcome *w, sl_err *err)
{
    sl_err reason = {0};
    const char *no = why_not(p, w);
    if (!no && sl_direct_attach(w->direct.data, w->direct.len, w->arena_bytes, &d->direct, &reason) != SL_OK)
        no = reason.text;
    if (no && p->o.shipping == SL_CFG_SHIP_DIRECT)
        return sl_fail(err, SL_ERR_REFUSED, "cluster.shipping is direct, which is not possible: %s", no);
    sl_log(SL_LOG_INFO, "prefill", "shipping", "path=%s address=%s worker_id=%u reason=\"%s\"",
           no ? "staging" : "direct", d->address, d->worker_id, no ? no : "its store is memory of this host");
    return SL_OK;
}

static sl_status write_there(const sl_prefill *p, sl_direct *d, uint8_t *there, const sl_span *s)
{
    if (!sl_direct_begin(d))
        return SL_ERR_PEER;
    if (p->o.direct_hook)
        p->o.direct_hook(p->o.direct_hook_arg);
    memcpy(there, s->local, (size_t)s->bytes);
    sl_direct_end(d);
    return SL_OK;
}

sl_status sl_direct_copy(sl_prefill *p, sl_pjob *j, const sl_span *s, bool pull)
{
    sl_dpeer *d = j->t.peer;
    uint64_t at = s->remote - d->base, bytes = (uint64_t)s->bytes;
    SL_CHECK(at <= sl_direct_bytes(d->direct) && bytes <= sl_direct_bytes(d->direct) - at,
             "a span outside the decode worker's arena");
    if (p->direct_left <= 0)
        return SL_AGAIN;
    p->direct_left -= s->bytes;
    uint8_t *there = sl_direct_base(d->direct) + at;
    if (pull) { /* its pages are pinned by the ticket; checksums tell if they no longer are */
        memcpy(s->local, there, (size_t)bytes);
    } else {
        sl_status st = write_there(p, d->direct, there, s);
        if (st != SL_OK)
            return st;
        j->t.bytes += bytes;
    }
    sl_counter_add(pull ? p->c.get_ok : p->c.put_ok, 1);
    sl_counter_add(pull ? p->c.get_bytes : p->c.put_bytes, bytes);
    return SL_OK;
}
