/* See metrics.h. */
#include "prefill/metrics.h"

void sl_prefill_metrics_find(sl_prefill_metrics *c, sl_metrics *m)
{
    c->tokens = sl_metrics_counter(m, "sluice_prefill_tokens_total", NULL);
    c->reused_local = sl_metrics_counter(m, "sluice_prefill_reused_tokens_total", SL_LABELS("local"));
    c->reused_remote = sl_metrics_counter(m, "sluice_prefill_reused_tokens_total", SL_LABELS("remote"));
    c->reused_ahead = sl_metrics_counter(m, "sluice_prefill_reused_tokens_total", SL_LABELS("ahead"));
    c->moved_early = sl_metrics_counter(m, "sluice_prefill_moved_tokens_total", SL_LABELS("arriving"));
    c->moved_late = sl_metrics_counter(m, "sluice_prefill_moved_tokens_total", SL_LABELS("complete"));
    c->transfer_ok = sl_metrics_counter(m, "sluice_transfers_total", SL_LABELS("ok"));
    c->transfer_aborted = sl_metrics_counter(m, "sluice_transfers_total", SL_LABELS("aborted"));
    c->transfer_failed = sl_metrics_counter(m, "sluice_transfers_total", SL_LABELS("failed"));
    c->transfer_bytes = sl_metrics_counter(m, "sluice_transfer_bytes_total", NULL);
    c->put_ok = sl_metrics_counter(m, "sluice_transport_operations_total", SL_LABELS("put", "ok"));
    c->put_failed = sl_metrics_counter(m, "sluice_transport_operations_total", SL_LABELS("put", "failed"));
    c->put_bytes = sl_metrics_counter(m, "sluice_transport_bytes_total", SL_LABELS("put"));
    c->get_ok = sl_metrics_counter(m, "sluice_transport_operations_total", SL_LABELS("get", "ok"));
    c->get_failed = sl_metrics_counter(m, "sluice_transport_operations_total", SL_LABELS("get", "failed"));
    c->get_bytes = sl_metrics_counter(m, "sluice_transport_bytes_total", SL_LABELS("get"));
    c->stale = sl_metrics_counter(m, "sluice_messages_dropped_total", SL_LABELS("stale"));
    c->checksum = sl_metrics_counter(m, "sluice_checksum_failures_total", NULL);
    for (int i = 0; i < SL_SNAPSHOT_EVENTS; i++)
        c->snapshots[i] =
            sl_metrics_counter(m, "sluice_state_snapshots_total", SL_LABELS(sl_snapshot_event_names[i]));
    c->running = sl_metrics_gauge(m, "sluice_prefill_requests_running", NULL);
    c->waiting = sl_metrics_gauge(m, "sluice_prefill_requests_waiting", NULL);
    c->chunk = sl_metrics_histogram(m, "sluice_prefill_chunk_seconds", NULL);
    c->exposed = sl_metrics_histogram(m, "sluice_transfer_exposed_seconds", NULL);
}
