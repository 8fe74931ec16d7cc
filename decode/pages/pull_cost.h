/*
 * Cost of a pull: whether pages are fetched from another worker's memory or computed again. Everything is measured by this
 * worker; nothing is configured:
 *
 *     pull      ask_s + (pages + lent) * page_bytes / bytes_per_s
 *     compute   pages * 64 / tokens_per_s
 *
 * ask_s is the time from the question to the lease, in which the owner may finish a decode step first. bytes_per_s is the
 * rate of the gets from that worker. lent are the pages that the owner lends to others at that moment, which share its link.
 * tokens_per_s is the speed at which prompts of this worker become complete: tokens that were computed, divided by the time
 * from RESERVED to COMMIT. It contains the time in the queue of the prefill worker, because a page that is pulled does not
 * wait there.
 *
 * Rates are moving averages. One that is not known, or older than SL_PULL_STALE_MS, does not forbid a pull, because only a
 * pull measures it again. Pure arithmetic; any thread.
 */
#ifndef SL_DECODE_PAGES_PULL_COST_H
#define SL_DECODE_PAGES_PULL_COST_H

#include <stdbool.h>
#include <stdint.h>

enum { SL_PULL_STALE_MS = 30000 };

/* A moving average. Zeroed: nothing was measured. */
typedef struct sl_pull_rate {
    double value;
    uint64_t at_ns; /* of the last measurement */
} sl_pull_rate;

/* Each measurement counts for a quarter. */
void sl_pull_rate_add(sl_pull_rate *r, double value, uint64_t now_ns);
/* 0: not known, or too old. */
double sl_pull_rate_get(const sl_pull_rate *r, uint64_t now_ns);

typedef struct sl_pull_cost {
    int32_t pages, lent;
    double page_bytes, ask_s;         /* ask_s 0: not known, 5 ms are assumed */
    double bytes_per_s, tokens_per_s; /* 0: not known */
} sl_pull_cost;

/* Whether pulling takes less time than computing, or cannot be judged yet. */
bool sl_pull_is_cheaper(const sl_pull_cost *c);

#endif
