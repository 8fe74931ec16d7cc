/* See group_count.h. */
#include "worker/group_count.h"

void sl_group_count_open(sl_group_count *c, sl_metrics *m)
{
    c->m.formed = sl_metrics_gauge(m, "sluice_group_formed", NULL);
    c->m.formings = sl_metrics_counter(m, "sluice_group_formings_total", NULL);
    c->m.breaks = sl_metrics_counter(m, "sluice_group_breaks_total", NULL);
    c->m.steps_own = sl_metrics_counter(m, "sluice_group_steps_total", SL_LABELS("own"));
    c->m.steps_none = sl_metrics_counter(m, "sluice_group_steps_total", SL_LABELS("none"));
    c->m.own = sl_metrics_counter(m, "sluice_group_tokens_total", SL_LABELS("own"));
    c->m.slowest = sl_metrics_counter(m, "sluice_group_tokens_total", SL_LABELS("slowest"));
    c->m.all = sl_metrics_counter(m, "sluice_group_tokens_total", SL_LABELS("all"));
    c->m.wait = sl_metrics_histogram(m, "sluice_group_step_wait_seconds", NULL);
    c->m.hidden_ns = sl_metrics_counter(m, "sluice_group_exchange_hidden_seconds_total", NULL);
    c->m.exposed_ns = sl_metrics_counter(m, "sluice_group_exchange_exposed_seconds_total", NULL);
    c->m.exchange_wait_ns = sl_metrics_counter(m, "sluice_group_exchange_wait_seconds_total", NULL);
    c->m.exchange_bytes = sl_metrics_counter(m, "sluice_group_exchange_bytes_total", NULL);
    c->m.experts = sl_metrics_gauge(m, "sluice_group_experts", NULL);
    c->m.rows_all = sl_metrics_counter(m, "sluice_group_expert_rows_total", SL_LABELS("all"));
    c->m.rows_busiest = sl_metrics_counter(m, "sluice_group_expert_rows_total", SL_LABELS("busiest"));
}

void sl_group_count_formed(sl_group_count *c)
{
    c->n.formed++;
    c->seen = (sl_comm_stats){0};
    sl_counter_add(c->m.formings, 1);
    sl_gauge_set(c->m.formed, 1);
}

void sl_group_count_broken(sl_group_count *c)
{
    c->n.broken++;
    sl_counter_add(c->m.breaks, 1);
    sl_gauge_set(c->m.formed, 0);
}

void sl_group_count_experts(sl_group_count *c, sl_ep_load now)
{
    sl_gauge_set(c->m.experts, now.experts);
    sl_counter_add(c->m.rows_all, now.rows - c->load.rows);
    sl_counter_add(c->m.rows_busiest, now.busiest - c->load.busiest);
    c->load = now;
}

static void count_exchanges(sl_group_count *c, const sl_comm_stats *now)
{
    sl_counter_add(c->m.exposed_ns, now->exchange_ns - c->seen.exchange_ns);
    sl_counter_add(c->m.hidden_ns, now->hidden_ns - c->seen.hidden_ns);
    sl_counter_add(c->m.exchange_wait_ns, now->wait_ns - c->seen.wait_ns);
    sl_counter_add(c->m.exchange_bytes, now->exchange_bytes - c->seen.exchange_bytes);
    c->seen = *now;
}

bool sl_group_count_step(sl_group_count *c, const sl_step_share *s, int32_t ranks, int32_t rank,
                         const sl_comm_stats *now)
{
    uint64_t most = 0, sum = 0;
    for (int32_t r = 0; r < ranks; r++) {
        uint64_t tokens = (uint64_t)s[r].tokens;
        sum += tokens;
        most = tokens > most ? tokens : most;
    }
    if (sum) {
        bool own = s[rank].tokens > 0;
        c->n.steps++;
        c->n.steps_idle += !own;
        sl_counter_add(own ? c->m.steps_own : c->m.steps_none, 1);
        sl_counter_add(c->m.own, (uint64_t)s[rank].tokens);
        sl_counter_add(c->m.slowest, most);
        sl_counter_add(c->m.all, sum);
        sl_histogram_observe(c->m.wait, (double)(now->gather_ns - c->seen.gather_ns) / 1e9);
    }
    count_exchanges(c, now);
    return sum > 0;
}
