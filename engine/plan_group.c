/* See plan_group.h. The division of the experts and the sizes of buffers come from the functions that the model
 * uses. */
#include "engine/plan_group.h"

#include "kernels/ep.h"
#include "model/sizes.h"

#define MIB 1048576.0

static sl_status check(const sl_plan_group *g, const sl_model_config *c, sl_err *err)
{
    if (g->ranks < 1 || g->ranks > SL_COMM_RANKS_MAX)
        return sl_fail(err, SL_ERR_INVALID, "plan: a group has 1 to %d ranks, not %d", SL_COMM_RANKS_MAX,
                       g->ranks);
    if (c->moe.n_routed > 0 && g->ranks > c->moe.n_routed)
        return sl_fail(err, SL_ERR_INVALID, "plan: %d ranks share %d routed experts, every rank needs one",
                       g->ranks, c->moe.n_routed);
    if (g->ranks_per_host < 1 || g->ranks_per_host > g->ranks)
        return sl_fail(err, SL_ERR_INVALID, "plan: %d ranks on a host, of a group of %d", g->ranks_per_host,
                       g->ranks);
    return SL_OK;
}

/* Device memory of the CUDA backend's windows: two halves. */
static uint64_t window_bytes(int32_t ranks)
{
    return ranks > 1 ? 2 * (uint64_t)SL_COMM_WINDOW_BYTES : 0;
}

sl_status sl_plan_group_make(sl_plan_group *g, sl_plan_in *in, sl_plan *out, sl_err *err)
{
    int32_t first[SL_COMM_RANKS_MAX + 1];
    sl_weight_bytes w = {0};
    SL_TRY(check(g, in->cfg, err));
    sl_ep_split(in->cfg->moe.n_routed, g->ranks, first);
    g->rank = g->experts = 0;
    for (int32_t r = 0; r < g->ranks; r++)
        if (first[r + 1] - first[r] > g->experts)
            g->rank = r, g->experts = first[r + 1] - first[r];
    if (g->given_weights == UINT64_MAX)
        sl_model_weight_sizes(in->cfg, g->stored, g->act, &w);
    g->replicated_bytes = w.replicated;
    g->expert_bytes = (uint64_t)g->experts * w.expert;
    g->exchange_bytes = sl_model_exchange_bytes(in->cfg, g->act, in->max_step_tokens, g->ranks);
    g->window_bytes = window_bytes(g->ranks);
    in->group = g;
    in->weight_bytes =
        g->given_weights == UINT64_MAX ? g->replicated_bytes + g->expert_bytes : g->given_weights;
    in->host_bytes = g->host_bytes / (uint64_t)g->ranks_per_host;
    return sl_plan_make(in, out, err);
}

/* By how much one more request exceeds the device. */
static uint64_t device_lack(const sl_plan_in *in, const sl_plan *p, const sl_plan_row *row)
{
    uint64_t taken = in->weight_bytes + in->reserve_bytes + in->group->exchange_bytes +
                     in->group->window_bytes + p->fixed_bytes + row->hierarchical_bytes;
    return taken > in->gpu_bytes ? taken - in->gpu_bytes : 0;
}

sl_status sl_plan_group_need(const sl_plan_in *in, const sl_plan *p, const sl_plan_row *row,
                             sl_plan_need *out, sl_err *err)
{
    const sl_plan_group *g = in->group;
    int32_t experts = in->cfg->moe.n_routed;
    uint64_t host = row->host_bytes * (uint64_t)g->ranks_per_host;
    *out = (sl_plan_need){.device_bytes = device_lack(in, p, row),
                          .host_bytes = host > g->host_bytes ? host - g->host_bytes : 0};
    for (int32_t n = g->ranks + 1; out->device_bytes > 0 && n <= SL_COMM_RANKS_MAX && n <= experts; n++) {
        sl_plan_group larger = *g;
        sl_plan_in with = *in;
        sl_plan plan;
        larger.ranks = n;
        SL_TRY(sl_plan_group_make(&larger, &with, &plan, err));
        if (device_lack(&with, &plan, row) > 0)
            continue;
        out->ranks = n;
        break;
    }
    return SL_OK;
}

static void need_text(const sl_plan_in *in, const sl_plan *p, const sl_plan_row *row, sl_strbuf *sb)
{
    sl_plan_need n;
    if (row->context > p->max_context || row->hierarchical_batch > 0 ||
        sl_plan_group_need(in, p, row, &n, NULL) != SL_OK)
        return;
    sl_sb_printf(sb, "a request of %d tokens does not fit:", row->context);
    if (n.device_bytes > 0)
        sl_sb_printf(sb, " it needs %.1f MiB more device memory on every rank", (double)n.device_bytes / MIB);
    if (n.device_bytes > 0 && n.ranks > 0)
        sl_sb_printf(sb, ", or a group of %d ranks", n.ranks);
    else if (n.device_bytes > 0)
        sl_sb_str(sb, ", and more ranks alone do not help");
    if (n.host_bytes > 0)
        sl_sb_printf(sb, "%s it needs %.1f MiB more memory on every host", n.device_bytes ? ";" : "",
                     (double)n.host_bytes / MIB);
    sl_sb_char(sb, '\n');
}

void sl_plan_group_text(const sl_plan_in *in, const sl_plan *p, sl_strbuf *sb)
{
    const sl_plan_group *g = in->group;
    sl_sb_printf(
        sb, "\ngroup of %d ranks, %d on each host: rank %d has %d of %d routed experts, no rank has more\n",
        g->ranks, g->ranks_per_host, g->rank, g->experts, in->cfg->moe.n_routed);
    if (g->given_weights == UINT64_MAX)
        sl_sb_printf(sb, "weights of the rank: %.1f MiB that every rank has, %.1f MiB of routed experts\n",
                     (double)g->replicated_bytes / MIB, (double)g->expert_bytes / MIB);
    sl_sb_printf(sb, "exchange buffers for steps of %d tokens on every rank: %.1f MiB; windows: %.1f MiB\n",
                 in->max_step_tokens, (double)g->exchange_bytes / MIB, (double)g->window_bytes / MIB);
    sl_sb_printf(sb, "host memory of the rank: %.1f MiB, %lld pages\n", (double)in->host_bytes / MIB,
                 (long long)p->host_pages);
    sl_sb_printf(sb, "\n%9s  %14s %12s %10s   %10s %11s\n", "context", "index keys MiB", "hot rows MiB",
                 "host pages", "batch rank", "batch group");
    for (int32_t i = 0; i < p->n_rows; i++) {
        const sl_plan_row *r = &p->rows[i];
        uint64_t pages = (uint64_t)sl_pages_for(r->context);
        if (r->context <= p->max_context)
            sl_sb_printf(sb, "%9d  %14.1f %12.1f %10llu   %10lld %11lld\n", r->context,
                         (double)(pages * p->index_page_device) / MIB, (double)p->hot_rows_bytes / MIB,
                         (unsigned long long)pages, (long long)r->hierarchical_batch,
                         (long long)(r->hierarchical_batch * g->ranks));
    }
    for (int32_t i = 0; i < p->n_rows; i++)
        need_text(in, p, &p->rows[i], sb);
}

static void need_json(const sl_plan_in *in, const sl_plan *p, const sl_plan_row *row, sl_strbuf *sb)
{
    sl_plan_need n = {0};
    if (row->context <= p->max_context)
        (void)sl_plan_group_need(in, p, row, &n, NULL);
    sl_sb_printf(sb, "{\"context\": %d, \"device_bytes\": %llu, \"host_bytes\": %llu, \"ranks\": %d}",
                 row->context, (unsigned long long)n.device_bytes, (unsigned long long)n.host_bytes, n.ranks);
}

void sl_plan_group_json(const sl_plan_in *in, const sl_plan *p, sl_strbuf *sb)
{
    const sl_plan_group *g = in->group;
    sl_sb_printf(sb,
                 "\"group\": {\"ranks\": %d, \"ranks_per_host\": %d, \"rank\": %d, \"experts\": %d, "
                 "\"replicated_bytes\": %llu, \"expert_bytes\": %llu, \"exchange_bytes\": %llu, "
                 "\"window_bytes\": %llu, \"needed\": [",
                 g->ranks, g->ranks_per_host, g->rank, g->experts, (unsigned long long)g->replicated_bytes,
                 (unsigned long long)g->expert_bytes, (unsigned long long)g->exchange_bytes,
                 (unsigned long long)g->window_bytes);
    for (int32_t i = 0; i < p->n_rows; i++) {
        sl_sb_str(sb, i ? ", " : "");
        need_json(in, p, &p->rows[i], sb);
    }
    sl_sb_str(sb, "]}");
}
