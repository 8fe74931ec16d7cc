/*
 * The loop of the engine thread: mail, deadlines, a step, the report; draining; and the turns of a rank of a group. See
 * role.h.
 */
#include "worker/group.h"
#include "worker/role.h"

static const uint64_t MS = 1000000;
/* LEAVE_MS: the least time from DRAIN to the end, so that a router that has just connected is told. */
enum { IDLE_MS = 100, LEAVE_MS = 150 };

/* The flag may be set by a signal handler or by another thread. */
static bool stop_asked(const volatile int *stop)
{
    return __atomic_load_n(stop, __ATOMIC_RELAXED) != 0;
}

/* Tells the routers to place no further request here. */
static void begin_draining(sl_worker_role *r, sl_worker *w, const sl_worker_engine *e)
{
    r->leaving = true;
    e->report(e->arg);
    sl_worker_tell_routers(w, &(sl_msg){.type = SL_MSG_DRAIN});
}

/*
 * The turn of a rank of a group. It is joined to the routers only while the group is whole. A rank that leaves drains
 * the whole group, because the others can compute nothing without it.
 */
static sl_status group_turn(sl_worker_role *r, sl_worker *w, const sl_worker_engine *e, bool leaving,
                            sl_err *err)
{
    bool needed = r->leaving && !r->draining;
    if (r->joined && !sl_wgroup_whole(r->group)) { /* also if it forms again in this turn */
        r->joined = false;
        r->ending++;
        sl_worker_hold(w, true, r->inbox);
    }
    SL_TRY(sl_wgroup_turn(r->group, err));
    bool whole = sl_wgroup_whole(r->group);
    if (whole && !r->joined) {
        r->joined = true;
        r->leaving = leaving;
        r->draining = false;
        sl_worker_hold(w, false, NULL);
    }
    if (whole && !r->leaving && sl_wgroup_others(r->group) & SL_WGROUP_LEAVING)
        begin_draining(r, w, e);
    sl_wgroup_say(r->group,
                  (e->idle(e->arg) && !needed ? 0u : SL_WGROUP_BUSY) | (leaving ? SL_WGROUP_LEAVING : 0u));
    return SL_OK;
}

/* Whether no other rank needs this one any more. */
static bool may_leave(const sl_worker_role *r)
{
    return !r->group || !sl_wgroup_whole(r->group) || !(sl_wgroup_others(r->group) & SL_WGROUP_BUSY);
}

/* Own work first, but none of a session that ended when the group broke; a rank without work takes part in the step
 * of the others. A rank that leaves asks for steps, in which it says so and learns whether the others still have
 * work. */
static sl_status step_of(sl_worker_role *r, const sl_worker_engine *e, bool leaving, bool *worked,
                         sl_err *err)
{
    if (!r->group)
        return e->step(e->arg, worked, err);
    if (!sl_wgroup_whole(r->group))
        return SL_OK;
    if (!r->ending)
        SL_TRY(e->step(e->arg, worked, err));
    if (!*worked)
        *worked = sl_wgroup_take_part(r->group, leaving);
    return SL_OK;
}

static sl_status run(sl_worker_role *r, sl_worker *w, const sl_worker_engine *e, const volatile int *stop,
                     uint32_t drain_timeout_ms, sl_err *err)
{
    bool leaving = false;
    uint64_t leave_ns = UINT64_MAX, give_up_ns = UINT64_MAX;
    for (;;) {
        atomic_store(&r->load.turn_ns, sl_now_ns());
        bool dismissed =
            !sl_worker_needed(w); /* before the mail, in which everything is that was sent earlier */
        for (sl_wmail *m; (m = sl_worker_role_take(r));)
            e->mail(e->arg, m);
        if (r->failed)
            return sl_fail(err, r->fatal_status, "%s", r->fatal_reason);
        uint64_t now = sl_now_ns();
        if (!leaving && stop_asked(stop)) {
            leaving = true;
            leave_ns = now + LEAVE_MS * MS;
            give_up_ns = now + drain_timeout_ms * MS;
            begin_draining(r, w, e);
        }
        r->draining = r->leaving && dismissed;
        if (r->group)
            SL_TRY(group_turn(r, w, e, leaving, err));
        uint64_t due = e->tick(e->arg, now);
        if (leaving &&
            ((r->draining && e->idle(e->arg) && now >= leave_ns && may_leave(r)) || now >= give_up_ns)) {
            e->report(e->arg);
            return SL_OK;
        }
        bool worked = false;
        sl_status st = step_of(r, e, leaving, &worked, err);
        e->report(e->arg);
        if (st != SL_OK)
            return st;
        if (worked)
            continue;
        uint64_t ms = due > now ? (due - now) / MS + 1 : 1;
        sl_mailbox_wait_or(r->inbox, e->wake_fd, ms < IDLE_MS ? (int)ms : IDLE_MS);
    }
}

sl_status sl_worker_role_run(sl_worker_role *r, sl_worker *w, const sl_worker_engine *e,
                             const volatile int *stop, uint32_t drain_timeout_ms, sl_err *err)
{
    if (r->group)
        sl_wgroup_wake_at(r->group, r->inbox);
    sl_status st = run(r, w, e, stop, drain_timeout_ms, err);
    if (r->group)
        sl_wgroup_wake_at(r->group, NULL);
    return st;
}
