/* The group of a rank: its address, what must be equal on all ranks, and the wait for the others. See setup_impl.h. */
#include <stdio.h>
#include <string.h>

#include "kvstore/sysmem.h"
#include "worker/setup_impl.h"

enum {
    GROUP_MEET_MS = 300000
}; /* how long ranks wait for each other when they start; nothing is loaded before */

/* The address of this group: that of the role's first group, with the port increased by the number of this one. */
static sl_status address_of(const sl_setup *s, char *out, size_t cap, sl_err *err)
{
    char key[40];
    const char *first = sl_worker_group_address(&s->cfg->cluster, s->role);
    snprintf(key, sizeof key, "cluster.groups: %s", sl_role_name(s->role));
    char host[SL_TP_ADDRESS_MAX];
    uint16_t port;
    sl_status st = sl_tp_address_parse(first, host, sizeof host, &port, err);
    if (st != SL_OK)
        return sl_fail_in(err, st, "%s", key);
    if (!port || port + s->launch->group > UINT16_MAX)
        return sl_fail(err, SL_ERR_INVALID, "%s: %s: group %d needs port %d + %d, which must be 1 to %d", key,
                       first, s->launch->group, port, s->launch->group, UINT16_MAX);
    snprintf(out, cap, strchr(host, ':') ? "[%s]:%d" : "%s:%d", host, port + s->launch->group);
    return SL_OK;
}

static sl_status start(sl_setup *s, const char *address, sl_err *err)
{
    sl_parts *p = s->p;
    char library[32];
    SL_TRY(sl_comm_library(p->backend, library, sizeof library, err));
    sl_wgroup_opts o = {.address = address,
                        .name = p->name,
                        .cluster_tag = s->cfg->cluster.tag,
                        .formats = p->formats,
                        .library = library,
                        .device = sl_backend_device(p->backend),
                        .role = s->role,
                        .group = s->launch->group,
                        .rank = s->launch->group_rank,
                        .ranks = s->launch->group_ranks,
                        .id = &p->identity.id,
                        .whole = p->identity.whole,
                        .prints = p->identity.prints,
                        .step_tokens = sl_setup_step_tokens(s),
                        .host_bytes = s->cfg->kvstore.bytes,
                        .host_free = sl_sysmem_available(),
                        .metrics = p->metrics,
                        .meet_ms = GROUP_MEET_MS};
    sl_setup_links(s, &o.link);
    return sl_wgroup_start(&o, &p->group, err);
}

sl_status sl_setup_group(sl_setup *s, sl_err *err)
{
    sl_parts *p = s->p;
    const sl_worker_launch *l = s->launch;
    char address[SL_TP_ADDRESS_MAX + 8];
    if (l->group_ranks < 2)
        return SL_OK;
    uint64_t began = sl_now_ns();
    SL_TRY(address_of(s, address, sizeof address, err));
    SL_TRY(sl_worker_identity_of_rank(s->cfg, l->group_rank, l->group_ranks, &p->identity, err));
    snprintf(p->formats, sizeof p->formats, "%s rows, %s indexer", p->identity.row_format,
             p->identity.indexer);
    SL_TRY(start(s, address, err));
    sl_log(SL_LOG_INFO, s->comp, "group", "group=%d rank=%d ranks=%d address=%s", l->group, l->group_rank,
           l->group_ranks, address);
    SL_TRY(sl_wgroup_meet(p->group, l->stop, err));
    sl_log(SL_LOG_INFO, s->comp, "group_met", "group=%d rank=%d wait_ms=%.1f", l->group, l->group_rank,
           (double)(sl_now_ns() - began) / 1e6);
    return SL_OK;
}
