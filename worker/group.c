/* The half of a group that runs on the engine thread: enters and leaves formings, and runs steps. See group.h. */
#include "worker/group_impl.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/version.h"
#include "kvstore/sysmem.h"

/* LOOK_MS: how often sl_wgroup_meet() looks at *stop. REFUSE_S: how long rank 0 waits until its refusals have left. */
enum { LOOK_MS = 100, REFUSE_S = 2 };
enum { DEADLINE_MAX_MS = 3600000 }; /* of collectives/comm.h */

/* ---- start and end ---- */

static void fill_join(sl_wgroup *g)
{
    const sl_wgroup_opts *o = &g->o;
    sl_msg_group_join *j = &g->join;
    *j = (sl_msg_group_join){.role = (uint8_t)o->role,
                             .group = (uint32_t)o->group,
                             .rank = (uint32_t)o->rank,
                             .ranks = (uint32_t)o->ranks,
                             .id = *o->id,
                             .step_tokens = (uint32_t)o->step_tokens,
                             .pid = (uint32_t)getpid(),
                             .instance = sl_random_u64(),
                             .host_bytes = o->host_bytes,
                             .host_free = o->host_free,
                             .host_space = sl_sysmem_space(),
                             .place = o->place ? o->place : sl_comm_place()};
    snprintf(j->build, sizeof j->build, "%s", o->build ? o->build : SL_VERSION);
    snprintf(j->cluster_tag, sizeof j->cluster_tag, "%s", o->cluster_tag);
    snprintf(j->formats, sizeof j->formats, "%s", o->formats);
    snprintf(j->name, sizeof j->name, "%s", o->name);
    snprintf(j->library, sizeof j->library, "%s", o->library ? o->library : "");
    snprintf(j->device, sizeof j->device, "%s", o->device ? o->device : "");
    gethostname(j->host, sizeof j->host - 1);
}

sl_status sl_wgroup_start(const sl_wgroup_opts *opts, sl_wgroup **out, sl_err *err)
{
    if (opts->ranks < 2 || opts->ranks > SL_COMM_RANKS_MAX || opts->rank < 0 || opts->rank >= opts->ranks)
        return sl_fail(err, SL_ERR_INVALID, "rank %d of %d: a group has 2 to %d ranks, counted from 0",
                       opts->rank, opts->ranks, SL_COMM_RANKS_MAX);
    sl_wgroup *g = calloc(1, sizeof *g);
    if (!g)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    g->o = *opts;
    snprintf(g->address, sizeof g->address, "%s", opts->address);
    fill_join(g);
    if (opts->rank == 0) {
        g->checkpoint = opts->whole;
        memcpy(g->prints, opts->prints, sizeof *g->prints * (size_t)opts->ranks);
    }
    sl_group_count_open(&g->count, g->o.metrics);
    pthread_mutex_init(&g->lock, NULL);
    pthread_cond_init(&g->changed, NULL);
    sl_status st = sl_wgroup_link_start(g, err);
    if (st != SL_OK) {
        sl_wgroup_stop(g);
        return st;
    }
    *out = g;
    return SL_OK;
}

static sl_status not_met(sl_wgroup *g, sl_err *err)
{
    if (g->o.rank != 0)
        return sl_fail(err, SL_ERR_TIMEOUT,
                       "rank %d of %d: the group did not get complete at %s within %u ms (rank 0 names the "
                       "ranks that are missing)",
                       g->o.rank, g->o.ranks, g->address, g->o.meet_ms);
    return sl_fail(err, SL_ERR_TIMEOUT, "rank %s of %d did not join the group at %s within %u ms", g->missing,
                   g->o.ranks, g->address, g->o.meet_ms);
}

/* The group does not get complete: the ranks that wait learn why, before this one ends. */
static void refuse_all(sl_wgroup *g, const char *why)
{
    sl_wgroup_mail *m = calloc(1, sizeof *m);
    SL_CHECK(m, "out of memory");
    m->mail.kind = SL_WGROUP_MAIL_REFUSE;
    snprintf(m->msg.reason, sizeof m->msg.reason, "%.250s", why);
    sl_worker_post(g->link, &m->mail);
    const struct timespec until = sl_wall_after(REFUSE_S * 1000000000ull);
    pthread_mutex_lock(&g->lock);
    while (g->open_links > 0 && pthread_cond_timedwait(&g->changed, &g->lock, &until) == 0)
        ;
    pthread_mutex_unlock(&g->lock);
}

sl_status sl_wgroup_meet(sl_wgroup *g, const volatile int *stop, sl_err *err)
{
    uint64_t end = sl_now_ns() + g->o.meet_ms * 1000000ull;
    sl_status st = SL_INPROGRESS;
    pthread_mutex_lock(&g->lock);
    while (st == SL_INPROGRESS) {
        if (g->refused != SL_OK)
            st = sl_fail(err, g->refused, "%s", g->refusal);
        else if (g->met)
            st = SL_OK;
        else if (stop && __atomic_load_n(stop, __ATOMIC_RELAXED))
            st = sl_fail(err, SL_ERR_CANCELLED, "stopped while the group was not complete");
        else if (sl_now_ns() > end)
            st = not_met(g, err);
        else {
            const struct timespec until = sl_wall_after(LOOK_MS * 1000000ull);
            pthread_cond_timedwait(&g->changed, &g->lock, &until);
        }
    }
    pthread_mutex_unlock(&g->lock);
    if (st == SL_ERR_TIMEOUT && g->o.rank == 0 && err)
        refuse_all(g, err->text);
    return st;
}

sl_key sl_wgroup_fingerprint(sl_wgroup *g)
{
    pthread_mutex_lock(&g->lock);
    sl_key k = g->checkpoint;
    pthread_mutex_unlock(&g->lock);
    return k;
}

static void tell(sl_wgroup *g, sl_group_news news, uint64_t forming, uint64_t step, const char *reason,
                 const sl_comm_invite *invite)
{
    sl_wgroup_mail *m = calloc(1, sizeof *m);
    SL_CHECK(m, "out of memory");
    m->mail.kind = SL_WGROUP_MAIL_NEWS;
    m->msg = (sl_msg_group){.news = (uint8_t)news, .forming = forming, .step = step};
    snprintf(m->msg.reason, sizeof m->msg.reason, "%s", reason ? reason : "");
    if (invite) {
        m->invite = *invite;
        m->msg.invite = (sl_blob){m->invite.bytes, sizeof m->invite.bytes};
    }
    sl_worker_post(g->link, &m->mail);
}

static void become_ready(sl_wgroup *g)
{
    pthread_mutex_lock(&g->lock);
    g->ready = true;
    pthread_mutex_unlock(&g->lock);
    tell(g, SL_GROUP_READY, 0, 0, NULL, NULL);
}

void sl_wgroup_attach(sl_wgroup *g, sl_backend *be, sl_runner *r)
{
    g->be = be;
    g->runner = *r;
    r->group = g;
    r->group_number = g->join.group;
    r->group_rank = g->join.rank;
    r->group_ranks = g->join.ranks;
    r->group_step = sl_wgroup_step;
    r->group_whole = sl_wgroup_whole;
    become_ready(g);
}

void sl_wgroup_wake(sl_wgroup *g)
{
    pthread_cond_broadcast(&g->changed);
    if (!g->inbox)
        return;
    sl_wmail *m = calloc(1, sizeof *m);
    SL_CHECK(m, "out of memory");
    m->kind = SL_WMAIL_WAKE;
    sl_mailbox_post(g->inbox, &m->link);
}

void sl_wgroup_wake_at(sl_wgroup *g, sl_mailbox *inbox)
{
    pthread_mutex_lock(&g->lock);
    g->inbox = inbox;
    pthread_mutex_unlock(&g->lock);
}

void sl_wgroup_stop(sl_wgroup *g)
{
    if (!g)
        return;
    sl_worker_stop(g->link);
    sl_comm_destroy(g->comm);
    pthread_cond_destroy(&g->changed);
    pthread_mutex_destroy(&g->lock);
    free(g->clock);
    free(g);
}

/* ---- formings ---- */

/*
 * The longest wait in a collective: that for a rank whose engine hangs, which gets the time that a router gives it. A rank
 * that ended or was stopped is noticed earlier, on the links, and its collectives are then aborted.
 */
static uint32_t deadline_ms(const sl_wgroup *g)
{
    uint64_t ms = (uint64_t)SL_ENGINE_PATIENCE * g->o.link.dead_after_ms;
    return ms < DEADLINE_MAX_MS ? (uint32_t)ms : DEADLINE_MAX_MS;
}

static sl_comm_opts comm_opts(sl_wgroup *g)
{
    sl_key k = sl_hash_chain(sl_wgroup_fingerprint(g), g->join.id.geometry.data, g->join.id.geometry.len);
    return (sl_comm_opts){.rank = g->o.rank,
                          .ranks = g->o.ranks,
                          .geometry = sl_hash_chain(k, &g->join.step_tokens, sizeof g->join.step_tokens),
                          .deadline_ms = deadline_ms(g),
                          .timed = true};
}

/* Leaves the forming, if there is one, tells rank 0 why, and is ready for the next. */
static void leave(sl_wgroup *g, const char *why)
{
    pthread_mutex_lock(&g->lock);
    sl_comm *c = g->comm;
    uint64_t forming = c ? g->entered : g->forming;
    bool invited_anew = c && g->invited && g->forming != g->entered;
    char first[sizeof g->why];
    /* What the links knew first is the cause; what this rank noticed is often the consequence. */
    snprintf(first, sizeof first, "%s", g->broken && g->why[0] ? g->why : why);
    g->comm = NULL;
    g->entered = 0;
    g->broken = g->found_due = false;
    if (!invited_anew) {
        g->forming = 0;
        g->invited = false;
    }
    pthread_mutex_unlock(&g->lock);
    if (g->whole) {
        sl_group_count_broken(&g->count);
        sl_log(SL_LOG_WARN, "group", "broken", "forming=%016" PRIx64 " steps=%" PRIu64 " reason=\"%s\"",
               forming, g->count.n.steps, first);
    }
    g->whole = g->active = false;
    if (c) {
        g->runner.set_comm(g->runner.impl, NULL);
        sl_comm_destroy(c);
    }
    tell(g, SL_GROUP_BROKEN, forming, 0, first, NULL);
    become_ready(g);
}

/* The collectives exist, the invitation is sent: waits for the other ranks. */
static void form(sl_wgroup *g, sl_comm *c, uint64_t forming)
{
    sl_err err = {0};
    sl_status st = sl_comm_form(c, &err);
    if (st != SL_OK) {
        sl_log(SL_LOG_WARN, "group", "not_formed", "forming=%016" PRIx64 " status=%s reason=\"%s\"", forming,
               sl_status_name(st), err.text);
        leave(g, err.text);
        return;
    }
    g->runner.set_comm(g->runner.impl, c);
    g->active = false;
    sl_group_count_formed(&g->count);
    g->whole = true;
    sl_log(SL_LOG_INFO, "group", "formed", "group=%d rank=%d ranks=%d forming=%016" PRIx64 " over=\"%s\"",
           g->o.group, g->o.rank, g->o.ranks, forming, sl_comm_describe(c));
}

static void entered(sl_wgroup *g, sl_comm *c, uint64_t forming)
{
    pthread_mutex_lock(&g->lock);
    g->comm = c;
    g->entered = forming;
    g->ready = g->found_due = false;
    if (g->forming == forming)
        g->invited = false;
    else
        g->broken = true; /* a newer invitation has come */
    if (g->broken)        /* a rank was lost meanwhile: do not wait for it */
        sl_comm_abort(c);
    pthread_mutex_unlock(&g->lock);
}

static sl_status found(sl_wgroup *g, uint64_t forming, bool across, sl_err *err)
{
    sl_comm_opts o = comm_opts(g);
    sl_comm_invite invite;
    sl_comm *c;
    if (across)
        o.sockets_at = g->o.sockets_at ? g->o.sockets_at : g->host;
    SL_TRY(sl_comm_found(g->be, &o, &invite, &c, err));
    entered(g, c, forming);
    tell(g, SL_GROUP_INVITE, forming, 0, NULL, &invite);
    form(g, c, forming);
    return SL_OK;
}

static void join(sl_wgroup *g, uint64_t forming, const sl_comm_invite *invite)
{
    sl_comm_opts o = comm_opts(g);
    sl_comm *c;
    sl_err err = {0};
    sl_status st = sl_comm_join(g->be, &o, invite, &c, &err);
    if (st != SL_OK) {
        sl_log(SL_LOG_WARN, "group", "not_joined", "forming=%016" PRIx64 " status=%s reason=\"%s\"", forming,
               sl_status_name(st), err.text);
        leave(g, err.text);
        return;
    }
    entered(g, c, forming);
    form(g, c, forming);
}

sl_status sl_wgroup_turn(sl_wgroup *g, sl_err *err)
{
    pthread_mutex_lock(&g->lock);
    sl_status refused = g->refused;
    bool broken = g->broken, found_due = g->found_due, invited = g->invited, across = g->across;
    uint64_t forming = g->forming;
    sl_comm_invite invite = g->invite;
    if (refused != SL_OK)
        (void)sl_fail(err, refused, "%s", g->refusal);
    pthread_mutex_unlock(&g->lock);
    if (refused != SL_OK)
        return refused;
    if (broken)
        leave(g, "");
    else if (found_due)
        return found(g, forming, across, err);
    else if (invited)
        join(g, forming, &invite);
    return SL_OK;
}

_Static_assert(SL_MSG_MAX_RANKS == SL_COMM_RANKS_MAX, "HELLO bounds the ranks");

bool sl_wgroup_whole(const sl_wgroup *g)
{
    return g->whole;
}

/* ---- steps ---- */

void sl_wgroup_say(sl_wgroup *g, uint32_t flags)
{
    if (flags != g->flags)
        g->runner.set_flags(g->runner.impl, flags);
    g->flags = flags;
}

static void ring(sl_wgroup *g, uint64_t step)
{
    tell(g, SL_GROUP_RING, g->entered, step, NULL, NULL);
}

/* A step on which all ranks have agreed. */
static void count_step(sl_wgroup *g, const sl_step_share *s)
{
    sl_comm_stats now;
    sl_comm_stats_get(g->comm, &now);
    g->active = sl_group_count_step(&g->count, s, g->o.ranks, g->o.rank, &now);
    if (g->runner.expert_load)
        sl_group_count_experts(&g->count, g->runner.expert_load(g->runner.impl));
}

/* The step of this rank, with items or without; afterwards the group is active, resting or broken. */
static sl_status run(sl_wgroup *g, sl_step_item *items, int32_t n, const sl_step_hooks *hooks, sl_err *err)
{
    uint64_t steps;
    sl_err own = {0};
    sl_status st = g->runner.step(g->runner.impl, items, n, hooks, &own);
    sl_err why = {0};
    if (sl_comm_state(g->comm, &why) != SL_OK) {
        if (err)
            *err = own.text[0] ? own : why;
        st = st == SL_OK ? SL_ERR_PEER : st;
        leave(g, why.text);
        return st;
    }
    if (st != SL_OK && err)
        *err = own;
    const sl_step_share *s = g->runner.shares(g->runner.impl, &steps);
    count_step(g, s);
    return st;
}

sl_status sl_wgroup_step(sl_wgroup *g, sl_step_item *items, int32_t n, const sl_step_hooks *hooks,
                         sl_err *err)
{
    uint64_t steps;
    if (!g->whole)
        return sl_fail(err, SL_ERR_PEER, "the group of this rank is not formed");
    (void)g->runner.shares(g->runner.impl, &steps);
    if (!g->active)
        ring(g, steps + 1);
    return run(g, items, n, hooks, err);
}

bool sl_wgroup_take_part(sl_wgroup *g, bool want)
{
    uint64_t steps;
    if (!g->whole)
        return false;
    (void)g->runner.shares(g->runner.impl, &steps);
    pthread_mutex_lock(&g->lock);
    bool rung = g->ring > steps;
    pthread_mutex_unlock(&g->lock);
    if (!g->active && !rung && !want)
        return false;
    if (!g->active && !rung)
        ring(g, steps + 1);
    (void)run(g, NULL, 0, NULL, NULL);
    return g->active;
}

uint32_t sl_wgroup_others(const sl_wgroup *g)
{
    uint64_t steps;
    uint32_t flags = 0;
    const sl_step_share *s = g->runner.shares(g->runner.impl, &steps);
    for (int32_t r = 0; steps && r < g->o.ranks; r++)
        flags |= r == g->o.rank ? 0 : s[r].flags;
    return flags;
}

void sl_wgroup_counts_get(const sl_wgroup *g, sl_wgroup_counts *out)
{
    *out = g->count.n;
}
