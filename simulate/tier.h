/*
 * A storage tier in virtual time, an implementation of kvstore/tier.h: it keeps which pages there are and their
 * labels, not their rows, and a request takes the time that the device of the costs needs. Which page is in which
 * slot, admission, leases and which segment is emptied next are decided by the index of the disk tier
 * (kvstore/disk_index.h), so that the hit rate is that of the product. One device has one queue for reads and one
 * for writes; tiers may share a device (`busy`), as all decode workers do with a shared store.
 *
 * Threads: one. The owner calls sl_tier_poll() at sl_sim_tier_due().
 */
#ifndef SL_SIMULATE_TIER_H
#define SL_SIMULATE_TIER_H

#include "kvstore/tier.h"
#include "simulate/costs.h"

/* When the device has ended what it was given; nanoseconds of reading and writing so far. */
typedef struct sl_sim_busy {
    uint64_t read_until_ns, write_until_ns;
    double read_ns, write_ns;
} sl_sim_busy;

typedef struct sl_sim_tier_opts {
    uint64_t pages;         /* that it has room for */
    double page_bytes;      /* of a page with its rows, for the time */
    size_t label_bytes;     /* of the last span of a page, which is kept */
    uint32_t segment_pages; /* unit of eviction */
    double exists_us;       /* of a lookup */
    bool second_use;
    sl_sim_device device;
    sl_sim_busy *busy;                                         /* borrowed */
    void (*evicted)(void *ctx, const sl_key *keys, int32_t n); /* as in sl_tier_opts; NULL: not wanted */
    void *evicted_ctx;
    sl_tier *same_as; /* NULL, or a tier with which this one has its pages in common */
} sl_sim_tier_opts;

/* SL_ERR_NO_MEMORY, SL_ERR_INVALID. */
sl_status sl_sim_tier_open(const sl_sim_tier_opts *o, sl_tier **out, sl_err *err);
/* When the first of its requests ends; UINT64_MAX: there is none. */
uint64_t sl_sim_tier_due(const sl_tier *t);

#endif
