/*
 * Who may join a group: rank 0 compares what another rank says of itself (JOIN) with what it is, and refuses a rank that
 * differs, or whose number another process has. Runs on the thread of the links, as group_link.c does.
 *
 * Strangers are connections over which no JOIN has come. One ends after dead_after_ms, and the oldest one when there are
 * more than the table holds, so that programs that connect and say nothing cannot use up rank 0's descriptors.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "worker/group_impl.h"

static const uint64_t MS = 1000000;

/* ---- strangers ---- */

static void end_stranger(sl_wgroup_stranger *s, const char *why)
{
    sl_wep *ep = s->ep;
    s->ep = NULL;
    sl_log(SL_LOG_WARN, "group", "stranger_ended", "reason=\"%s\"", why);
    sl_wep_close(ep, SL_TP_CLOSE_FORCE);
}

void sl_wgroup_stranger_add(sl_wgroup *g, sl_wep *ep)
{
    sl_wgroup_stranger *slot = &g->strangers[0];
    for (int i = 0; i < SL_WGROUP_STRANGERS && slot->ep; i++) {
        sl_wgroup_stranger *s = &g->strangers[i];
        if (!s->ep || s->until_ns < slot->until_ns)
            slot = s;
    }
    if (slot->ep)
        end_stranger(slot, "too many connections have not joined");
    *slot = (sl_wgroup_stranger){ep, sl_now_ns() + g->o.link.dead_after_ms * MS};
}

void sl_wgroup_stranger_forget(sl_wgroup *g, const sl_wep *ep)
{
    for (int i = 0; i < SL_WGROUP_STRANGERS; i++) {
        if (g->strangers[i].ep == ep)
            g->strangers[i].ep = NULL;
    }
}

void sl_wgroup_strangers_end(sl_wgroup *g, uint64_t now)
{
    for (int i = 0; i < SL_WGROUP_STRANGERS; i++) {
        if (g->strangers[i].ep && now >= g->strangers[i].until_ns)
            end_stranger(&g->strangers[i], "it has not joined within dead_after_ms");
    }
}

/* ---- joining ---- */

bool sl_wgroup_all_joined(const sl_wgroup *g)
{
    for (int32_t r = 1; r < g->o.ranks; r++) {
        if (!g->peers[r].joined)
            return false;
    }
    return true;
}

void sl_wgroup_list_missing(sl_wgroup *g)
{
    size_t n = 0;
    char text[sizeof g->missing] = "";
    for (int32_t r = 1; r < g->o.ranks && n + 8 < sizeof text; r++) {
        if (!g->peers[r].joined)
            n += (size_t)snprintf(text + n, sizeof text - n, n ? ", %d" : "%d", r);
    }
    pthread_mutex_lock(&g->lock);
    memcpy(g->missing, text, sizeof text);
    pthread_mutex_unlock(&g->lock);
}

void sl_wgroup_refuse(sl_wep *ep, const char *why, bool retry)
{
    sl_msg m = {.type = SL_MSG_REFUSE};
    m.refuse = (sl_msg_refuse){.status = SL_ERR_REFUSED, .retry = retry};
    snprintf(m.refuse.reason, sizeof m.refuse.reason, "%.390s", why);
    sl_wep_send(ep, &m);
    sl_wep_close(ep, SL_TP_CLOSE_FLUSH);
}

/* What of a rank differs from this one, which is rank 0: a sentence, or an empty one. */
static void compare(const sl_wgroup *g, const sl_msg_group_join *j, char *why, size_t cap)
{
    const sl_msg_group_join *own = &g->join;
    const sl_key print = j->rank < (uint32_t)g->o.ranks ? g->prints[j->rank] : (sl_key){0, 0};
    sl_geometry mine, theirs;
    sl_err err = {0};
    why[0] = '\0';
    if (strcmp(j->cluster_tag, own->cluster_tag) != 0)
        snprintf(why, cap, "cluster.tag is \"%s\", that of rank 0 is \"%s\"", j->cluster_tag,
                 own->cluster_tag);
    else if (j->role != own->role || j->group != own->group)
        snprintf(why, cap, "it belongs to %s group %u, this address to %s group %u",
                 sl_role_name((sl_role)j->role), j->group, sl_role_name((sl_role)own->role), own->group);
    else if (strcmp(j->build, own->build) != 0)
        snprintf(why, cap, "it is build %s, rank 0 is build %s", j->build, own->build);
    else if (j->ranks != own->ranks)
        snprintf(why, cap, "it expects a group of %u ranks, rank 0 one of %u", j->ranks, own->ranks);
    else if (!sl_key_eq(j->id.fingerprint, print))
        snprintf(why, cap,
                 "the tensors that it loads have the fingerprint %016" PRIx64 "%016" PRIx64
                 ", the same tensors of rank 0's checkpoint %016" PRIx64 "%016" PRIx64,
                 j->id.fingerprint.hi, j->id.fingerprint.lo, print.hi, print.lo);
    else if (strcmp(j->formats, own->formats) != 0)
        snprintf(why, cap, "its formats are %s, those of rank 0 %s", j->formats, own->formats);
    else if (sl_geometry_read(own->id.geometry.data, own->id.geometry.len, &mine, &err) != SL_OK ||
             sl_geometry_read(j->id.geometry.data, j->id.geometry.len, &theirs, &err) != SL_OK ||
             sl_geometry_compatible(&mine, &theirs, &err) != SL_OK)
        snprintf(why, cap, "its pages differ: %.200s", err.text);
    else if (strcmp(j->library, own->library) != 0)
        snprintf(why, cap, "it has %s, rank 0 has %s", j->library[0] ? j->library : "no library of its own",
                 own->library[0] ? own->library : "none");
    else if (j->step_tokens != own->step_tokens)
        snprintf(why, cap, "its steps have up to %u tokens, those of rank 0 %u (%s)", j->step_tokens,
                 own->step_tokens,
                 own->role == SL_ROLE_PREFILL  ? "prefill.chunk_tokens"
                 : own->role == SL_ROLE_DECODE ? "decode.max_batch"
                                               : "prefill.chunk_tokens and decode.max_batch");
}

/* Adds what a rank on the same host, which has not made its store yet, will take. */
static void add_store(const sl_msg_group_join *j, const char *host, const sl_wgroup_memory *m,
                      sl_wgroup_memory *sum, int32_t *ranks)
{
    if (m->space != j->host_space || strcmp(host, j->host) != 0)
        return;
    sum->bytes += m->bytes;
    sum->free = m->free < sum->free ? m->free : sum->free;
    ++*ranks;
}

/*
 * Whether the host stores of all ranks of a host fit it together. No rank makes its store before all have joined, so what
 * each found available at its start is for all of them. One that joins later is counted alone.
 */
static void check_host(sl_wgroup *g, const sl_msg_group_join *j, char *why, size_t cap)
{
    sl_wgroup_memory sum = {j->host_bytes, j->host_free, j->host_space};
    const sl_wgroup_memory own = {g->join.host_bytes, g->join.host_free, g->join.host_space};
    int32_t ranks = 1;
    pthread_mutex_lock(&g->lock);
    bool met = g->met;
    pthread_mutex_unlock(&g->lock);
    if (!met)
        add_store(j, g->join.host, &own, &sum, &ranks);
    for (int32_t r = 1; r < g->o.ranks; r++) {
        const sl_wgroup_peer *p = &g->peers[r];
        if (p->joined && !p->welcomed && (uint32_t)r != j->rank)
            add_store(j, p->host, &p->memory, &sum, &ranks);
    }
    if (sum.bytes > sum.free)
        snprintf(
            why, cap,
            "the host stores of %d ranks on %s ask for %.2f GiB together, of which %.2f GiB are available; lower "
            "kvstore.bytes, or start fewer ranks on this host",
            ranks, j->host, (double)sum.bytes / (1u << 30), (double)sum.free / (1u << 30));
}

/* Who else has this rank's device: a sentence, or an empty one. */
static void find_device(const sl_wgroup *g, const sl_msg_group_join *j, char *why, size_t cap)
{
    why[0] = '\0';
    if (!j->device[0])
        return;
    if (strcmp(j->device, g->join.device) == 0)
        snprintf(why, cap, "its device %s is that of rank 0 (%s, process %u on %s)", j->device, g->join.name,
                 g->join.pid, g->join.host);
    for (int32_t r = 1; r < g->o.ranks && !why[0]; r++) {
        const sl_wgroup_peer *p = &g->peers[r];
        if (p->joined && (uint32_t)r != j->rank && strcmp(j->device, p->device) == 0)
            snprintf(why, cap, "its device %s is that of rank %d (%s, process %u on %s)", j->device, r,
                     p->name, p->pid, p->host);
    }
}

/* Tells the ranks that do not know it yet that all are there. */
static void welcome(sl_wgroup *g)
{
    sl_msg_group news = {.news = SL_GROUP_WELCOME, .fingerprint = sl_wgroup_fingerprint(g)};
    if (!sl_wgroup_all_joined(g))
        return;
    for (int32_t r = 1; r < g->o.ranks; r++) {
        if (!g->peers[r].welcomed)
            sl_wgroup_send(g->peers[r].ep, &news);
        g->peers[r].welcomed = true;
    }
    sl_wgroup_met(g, news.fingerprint);
}

void sl_wgroup_on_join(sl_wgroup *g, sl_wep *ep, const sl_msg_group_join *j)
{
    char why[300], text[800];
    sl_wgroup_peer *p = j->rank < (uint32_t)g->o.ranks ? &g->peers[j->rank] : NULL;
    bool taken = false;
    sl_wgroup_stranger_forget(g, ep);
    compare(g, j, why, sizeof why);
    if (!why[0] && j->rank == 0) {
        snprintf(why, sizeof why, "rank 0 is %s, process %u on %s", g->join.name, g->join.pid, g->join.host);
    } else if (!why[0] && p->ep && p->instance != j->instance) {
        taken = true;
        snprintf(why, sizeof why, "rank %u is taken by %s, process %u on %s", j->rank, p->name, p->pid,
                 p->host);
    } else if (!why[0]) {
        find_device(g, j, why, sizeof why);
    }
    if (!why[0])
        check_host(g, j, why, sizeof why);
    if (why[0]) {
        snprintf(text, sizeof text, "rank %u of the group at %s (%s, process %u on %s): %s", j->rank,
                 g->address, j->name, j->pid, j->host, why);
        sl_log(SL_LOG_WARN, "group", "rank_refused", "reason=\"%s\"", text);
        sl_wgroup_refuse(ep, text, taken);
        return;
    }
    if (p->ep) { /* a former connection of the same process */
        sl_wep_set_user(p->ep, NULL);
        sl_wep_close(p->ep, SL_TP_CLOSE_FORCE);
    }
    *p = (sl_wgroup_peer){.ep = ep,
                          .joined = true,
                          .instance = j->instance,
                          .heard_ns = sl_now_ns(),
                          .pid = j->pid,
                          .place = j->place,
                          .memory = {j->host_bytes, j->host_free, j->host_space}};
    memcpy(p->name, j->name, sizeof p->name);
    memcpy(p->host, j->host, sizeof p->host);
    memcpy(p->device, j->device, sizeof p->device);
    sl_wep_set_user(ep, p);
    sl_wgroup_list_missing(g);
    sl_log(SL_LOG_INFO, "group", "rank_joined", "rank=%u name=%s host=%s pid=%u missing=\"%s\"", j->rank,
           p->name, p->host, p->pid, g->missing);
    welcome(g);
}
