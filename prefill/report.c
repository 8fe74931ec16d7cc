/* What a prefill worker reports: the load for the heartbeat, and the metrics. Engine thread. */
#include "prefill/prefill_impl.h"

void sl_prefill_metrics_find(sl_prefill *p, sl_metrics *m)
{
    p->c.tokens = sl_metrics_counter(m, "sluice_prefill_tokens_total", NULL);
    p->c.reused_local = sl_metrics_counter(m, "sluice_prefill_reused_tokens_total", SL_LABELS("local"));
    p->c.reused_remote = sl_metrics_counter(m, "sluice_prefill_reused_tokens_total", SL_LABELS("remote"));
    p->c.reused_ahead = sl_metrics_counter(m, "sluice_prefill_reused_tokens_total", SL_LABELS("ahead"));
    p->c.moved_early = sl_metrics_counter(m, "sluice_prefill_moved_tokens_total", SL_LABELS("arriving"));
    p->c.moved_late = sl_metrics_counter(m, "sluice_prefill_moved_tokens_total", SL_LABELS("complete"));
    p->c.transfer_ok = sl_metrics_counter(m, "sluice_transfers_total", SL_LABELS("ok"));
    p->c.transfer_aborted = sl_metrics_counter(m, "sluice_transfers_total", SL_LABELS("aborted"));
    p->c.transfer_failed = sl_metrics_counter(m, "sluice_transfers_total", SL_LABELS("failed"));
    p->c.transfer_bytes = sl_metrics_counter(m, "sluice_transfer_bytes_total", NULL);
    p->c.put_ok = sl_metrics_counter(m, "sluice_transport_operations_total", SL_LABELS("put", "ok"));
    p->c.put_failed = sl_metrics_counter(m, "sluice_transport_operations_total", SL_LABELS("put", "failed"));
    p->c.put_bytes = sl_metrics_counter(m, "sluice_transport_bytes_total", SL_LABELS("put"));
    p->c.get_ok = sl_metrics_counter(m, "sluice_transport_operations_total", SL_LABELS("get", "ok"));
    p->c.get_failed = sl_metrics_counter(m, "sluice_transport_operations_total", SL_LABELS("get", "failed"));
    p->c.get_bytes = sl_metrics_counter(m, "sluice_transport_bytes_total", SL_LABELS("get"));
    p->c.stale = sl_metrics_counter(m, "sluice_messages_dropped_total", SL_LABELS("stale"));
    p->c.checksum = sl_metrics_counter(m, "sluice_checksum_failures_total", NULL);
    for (int i = 0; i < SL_SNAPSHOT_EVENTS; i++)
        p->c.snapshots[i] =
            sl_metrics_counter(m, "sluice_state_snapshots_total", SL_LABELS(sl_snapshot_event_names[i]));
    p->c.running = sl_metrics_gauge(m, "sluice_prefill_requests_running", NULL);
    p->c.waiting = sl_metrics_gauge(m, "sluice_prefill_requests_waiting", NULL);
    p->c.chunk = sl_metrics_histogram(m, "sluice_prefill_chunk_seconds", NULL);
    p->c.exposed = sl_metrics_histogram(m, "sluice_transfer_exposed_seconds", NULL);
}

void sl_prefill_load_publish(sl_prefill *p)
{
    sl_worker_report now = {0};
    for (const sl_prefill_job *j = p->jobs; j; j = j->engine.next) {
        if (j->engine.state == JOB_QUEUED)
            now.waiting++;
        else if (j->engine.state != JOB_STOPPED)
            now.running++;
        size_t theirs = (size_t)j->msg->matched_pages * SL_PAGE_TOKENS, done = (size_t)j->engine.prompt.pos;
        size_t have = done > theirs ? done : theirs; /* what the decode worker has is not computed */
        if (j->engine.state != JOB_STOPPED && have < j->msg->n_tokens)
            now.queued_tokens += j->msg->n_tokens - have;
    }
    sl_worker_role_report(&p->role, &now);
    sl_gauge_set(p->c.running, now.running);
    sl_gauge_set(p->c.waiting, now.waiting);
}
