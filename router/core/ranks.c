/*
 * The ranks of a group (docs/groups.md) as the router sees them: each is a member with requests of its own, but none can
 * compute without the others, so their health is one. The ranks of a group that have joined are in a ring.
 *
 * A rank is ready only while all ranks of its group have joined; otherwise it waits, and gets no request. When one is
 * lost, the others wait from that moment on. Their requests stay with them: the ranks notice the loss themselves, and each
 * ends its session with LOAD.group_broken, or it continues if only the lost rank's connection to this router had failed.
 * When one drains, the router lets all drain, because the group ends with it.
 */
#include <string.h>

#include "router/core/core_impl.h"

static sl_member *find_rank(sl_router *r, const sl_member *except, const sl_msg_hello *h, bool same_rank)
{
    for (sl_member *w = r->cluster.members; w; w = w->next) {
        if (w != except && w->rank.ranks && w->state != SL_MEMBER_DEAD && w->role == h->role &&
            w->rank.group == h->group && (!same_rank || w->rank.rank == h->rank))
            return w;
    }
    return NULL;
}

sl_status sl_ranks_check(sl_router *r, const sl_member *w, const sl_msg_hello *h, sl_err *err)
{
    const sl_member *o = h->ranks ? find_rank(r, w, h, false) : NULL;
    if (o && o->rank.ranks != h->ranks)
        return sl_fail(err, SL_ERR_REFUSED,
                       "it is a rank of %s group %u with %u ranks, of which %s says that it has %u",
                       sl_role_name((sl_role)h->role), h->group, h->ranks, o->name, o->rank.ranks);
    o = h->ranks ? find_rank(r, w, h, true) : NULL;
    if (o && o->instance != h->instance)
        return sl_fail(err, SL_ERR_REFUSED,
                       "rank %u of %s group %u is held by a living worker: %s, pid %u on host %s", h->rank,
                       sl_role_name((sl_role)h->role), h->group, o->name, o->pid, o->host);
    return SL_OK;
}

static uint32_t ring_length(const sl_member *w)
{
    uint32_t n = 0;
    const sl_member *o = w;
    do
        n++;
    while ((o = o->rank.next) != w);
    return n;
}

/* Every rank of the ring that is in state `from` is in state `to` afterwards. */
static void move_all(sl_member *w, sl_member_state from, sl_member_state to)
{
    sl_member *o = w;
    do
        o->state = o->state == from ? to : o->state;
    while ((o = o->rank.next) != w);
}

static bool any_drains(const sl_member *w)
{
    const sl_member *o = w;
    do {
        if (o->state == SL_MEMBER_DRAINING)
            return true;
    } while ((o = o->rank.next) != w);
    return false;
}

void sl_ranks_joined(sl_member *w)
{
    if (!w->rank.ranks)
        return;
    const sl_msg_hello key = {.role = w->role, .group = w->rank.group};
    sl_member *o = find_rank(w->r, w, &key, false);
    w->rank.next = o ? o->rank.next : w;
    if (o)
        o->rank.next = w;
    w->state = any_drains(w) ? SL_MEMBER_DRAINING : SL_MEMBER_WAITING;
    w->drain_ns = sl_now_ns();
    if (ring_length(w) == w->rank.ranks)
        move_all(w, SL_MEMBER_WAITING, SL_MEMBER_READY);
    sl_log(SL_LOG_INFO, "router", "rank_joined", "worker=%s group=%u rank=%u ranks=%u joined=%u", w->name,
           w->rank.group, w->rank.rank, w->rank.ranks, ring_length(w));
}

void sl_ranks_lost(sl_member *w)
{
    if (!w->rank.next)
        return;
    sl_member *before = w;
    while (before->rank.next != w)
        before = before->rank.next;
    before->rank.next = w->rank.next;
    if (before != w)
        move_all(before, SL_MEMBER_READY, SL_MEMBER_WAITING);
    w->rank.next = NULL;
}

void sl_ranks_drain(sl_member *w)
{
    if (w->state != SL_MEMBER_READY && w->state != SL_MEMBER_WAITING)
        return;
    uint64_t now = sl_now_ns();
    w->drain_ns = now;
    for (sl_member *o = w->rank.next; o && o != w; o = o->rank.next)
        o->drain_ns = o->state == SL_MEMBER_DRAINING ? o->drain_ns : now;
    if (w->rank.next) {
        move_all(w, SL_MEMBER_READY, SL_MEMBER_DRAINING);
        move_all(w, SL_MEMBER_WAITING, SL_MEMBER_DRAINING);
    }
    w->state = SL_MEMBER_DRAINING;
    sl_log(SL_LOG_INFO, "router", "worker_draining", "worker=%s id=%u ranks=%u", w->name, w->id,
           w->rank.ranks ? ring_length(w) : 1);
}
