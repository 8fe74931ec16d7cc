/*
 * The metrics of a prefill worker. metrics.c alone finds them by their names, and decides which there are; the files that count add
 * to them, from the engine thread or from the transport thread. Internal to the room.
 */
#ifndef SL_PREFILL_METRICS_H
#define SL_PREFILL_METRICS_H

#include "base/metrics.h"
#include "kvstore/snapshot.h"

/* docs/metrics.md says what each counts. All belong to the registry. */
typedef struct sl_prefill_metrics {
    sl_counter *tokens, *reused_local, *reused_remote, *reused_ahead, *moved_early, *moved_late, *transfer_ok,
        *transfer_aborted, *transfer_failed, *transfer_bytes, *put_ok, *put_failed, *put_bytes, *get_ok,
        *get_failed, *get_bytes, *stale, *checksum;
    sl_counter *snapshots[SL_SNAPSHOT_EVENTS];
    sl_gauge *running, *waiting;
    sl_histogram *chunk, *exposed;
} sl_prefill_metrics;

void sl_prefill_metrics_find(sl_prefill_metrics *c, sl_metrics *m);

#endif
