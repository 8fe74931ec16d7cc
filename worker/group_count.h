/*
 * What a rank counts of its group: formings, steps, and what the exchanges and the experts took, in the metrics and for the log.
 * group_count.c alone writes it. The sums that the collectives and the engine keep grow; what is added to the metrics is how much they
 * have grown since the last call. Threads: the engine thread.
 */
#ifndef SL_WORKER_GROUP_COUNT_H
#define SL_WORKER_GROUP_COUNT_H

#include "base/metrics.h"
#include "collectives/comm.h"
#include "engine/engine.h"
#include "worker/group.h"

typedef struct sl_group_count {
    sl_wgroup_counts n;
    sl_comm_stats seen; /* of the collectives, as far as the metrics have them */
    sl_ep_load load;    /* of the experts, likewise */
    struct {
        sl_gauge *formed, *experts;
        sl_counter *formings, *breaks, *steps_own, *steps_none, *own, *slowest, *all, *hidden_ns, *exposed_ns,
            *exchange_wait_ns, *exchange_bytes, *rows_all, *rows_busiest;
        sl_histogram *wait;
    } m;
} sl_group_count;

void sl_group_count_open(sl_group_count *c, sl_metrics *m);
void sl_group_count_formed(sl_group_count *c); /* with new collectives, whose sums begin at 0 */
void sl_group_count_broken(sl_group_count *c);
/* A step on which all ranks have agreed, with what each rank has said, and what the exchanges took so far. Also of ranks that agree on
 * having nothing to do: then it is the last step before the group rests, whose exchanges ended after it had been counted. Returns whether
 * any rank has tokens. */
bool sl_group_count_step(sl_group_count *c, const sl_step_share *s, int32_t ranks, int32_t rank,
                         const sl_comm_stats *now);
void sl_group_count_experts(sl_group_count *c, sl_ep_load now);

#endif
