/* See written.h. */
#include "router/core/written.h"

#include "base/log.h"

void sl_written_open(sl_written *w, sl_metrics *m)
{
    w->from_arrival = sl_metrics_histogram(m, "sluice_router_tokens_written_seconds", SL_LABELS("arrival"));
    w->from_step = sl_metrics_histogram(m, "sluice_router_tokens_written_seconds", SL_LABELS("step"));
}

void sl_written_note(sl_written *w, const sl_stamp *stepped, uint64_t now)
{
    if (w->n == SL_WRITTEN_MOST)
        return;
    w->at[w->n].arrived_ns = now;
    w->at[w->n++].stepped_ns = sl_stamp_ns(stepped, now);
}

void sl_written_done(sl_written *w)
{
    const uint64_t now = w->n ? sl_now_ns() : 0;
    for (int i = 0; i < w->n; i++) {
        sl_histogram_observe(w->from_arrival, (double)(now - w->at[i].arrived_ns) / 1e9);
        if (w->at[i].stepped_ns)
            sl_histogram_observe(w->from_step, (double)(now - w->at[i].stepped_ns) / 1e9);
    }
    w->n = 0;
}
