/* The compute device of a worker, and the network devices next to its memory. See setup_impl.h. */
#include <stdio.h>

#include "transport/nic.h"
#include "worker/setup_impl.h"

/*
 * The device of backend.devices for this rank, else the one of the local rank. The router uses no
 * device, so that on its host device 0 belongs to the next rank.
 */
static int pick_device(const sl_setup *s)
{
    const sl_config *c = s->cfg;
    const int listed = sl_config_device(&c->backend, s->launch->rank);
    if (listed >= 0)
        return listed;
    int local = s->launch->local_rank, first = s->launch->rank - local;
    if (local < 0)
        return 0;
    for (int r = first; r >= 0 && r < s->launch->rank && r < c->cluster.roles.n; r++) {
        if (c->cluster.roles.v[r] == SL_ROLE_ROUTER)
            return local - 1;
    }
    return local;
}

sl_status sl_setup_backend(sl_setup *s, sl_err *err)
{
    sl_parts *p = s->p;
    sl_backend_opts o = {.device = pick_device(s), .threads = s->cfg->backend.threads};
    SL_TRY(sl_backend_create(s->cfg->backend.name, &o, &p->backend, err));
    p->device = o.device;
    sl_log(SL_LOG_INFO, s->comp, "device", "backend=%s number=%d device=\"%s\"", sl_backend_name(p->backend),
           o.device, sl_backend_describe(p->backend));
    return SL_OK;
}

void sl_setup_nics(sl_setup *s)
{
    sl_nic nics[SL_NIC_MAX];
    size_t n = 0;
    char text[1024] = "";
    s->p->numa_node = -1;
    if (sl_nic_list(nics, SL_COUNT(nics), &n, NULL) != SL_OK)
        n = 0;
    for (size_t i = 0; i < n && s->p->numa_node < 0; i++)
        s->p->numa_node = nics[i].active ? nics[i].numa_node : -1;
    sl_nic_describe(nics, n, text, sizeof text);
    sl_log(SL_LOG_INFO, s->comp, "nics", "numa_node=%d found=\"%s\"", s->p->numa_node, n ? text : "none");
}
