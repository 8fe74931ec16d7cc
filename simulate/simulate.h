/*
 * The simulator: replays a trace of requests against a cluster that exists only as measured costs, in virtual time, with
 * the code of the product wherever a decision is made:
 *
 *   the router       the whole core (router/core): queue, placement, policy, attempts, deadlines. It sends and receives the
 *                    messages of base/msg.h; its endpoints are the simulator's (cluster.c)
 *   pages            the host stores of both kinds of worker (kvstore/store.h), the cascade (kvstore/cascade.h), and the
 *                    index of the disk tier (kvstore/disk_index.h)
 *   prefill          which tokens a step computes and how many prompts run (worker/order.h, worker/pace.h)
 *   decode           requests, pages and places (decode/core/), and how long prompts may hold a step back (worker/stall.h)
 *
 * The workers themselves are modelled, because the real ones compute on threads, which have no virtual time: a step takes
 * the time of the costs (costs.h), a page has a number and tokens but no rows. What is not modelled: deaths, several
 * routers, prefetch, pages that are read from other workers' memory, tenants and their quotas, HTTP beyond its cost, and that
 * steps of one worker slow those of another. Ranks of a group step together, and the exchange between them is one number of the costs.
 *
 * Deterministic: equal inputs give equal results. Threads: one; sl_now_ns() of the calling thread is virtual meanwhile.
 */
#ifndef SL_SIMULATE_SIMULATE_H
#define SL_SIMULATE_SIMULATE_H

#include "base/config.h"
#include "simulate/costs.h"
#include "simulate/trace.h"

/* What a request of the trace saw. A request that was refused or failed has zeros. */
typedef struct sl_sim_each {
    size_t request;          /* index in the trace */
    bool ok;                 /* it has finished */
    double ttft_ms, tpot_ms; /* tpot: 0 with fewer than two tokens */
    double cached_tokens;    /* of its prompt, as the router tells its client */
} sl_sim_each;

typedef struct sl_sim_opts {
    const sl_config *cfg; /* kvstore.*, prefill.*, decode.*, router.* are used */
    const sl_sim_costs *costs;
    const sl_sim_trace *trace;
    int32_t prefills, decodes; /* workers, at least 1 each; both: no prefill workers */
    bool both; /* the decode workers are of role both: they compute their prompts themselves */
    int32_t prefill_ranks, decode_ranks; /* workers that form a group and step together; 0 or 1: none */
    uint64_t host_bytes;                 /* of each decode worker; 0: kvstore.bytes */
    uint64_t disk_bytes;                 /* of each decode worker; 0: none */
    bool shared;                         /* decode workers also have the shared store of the costs */
    double length;       /* every length of the trace is multiplied by it, blocks included; 1: unchanged */
    int32_t page_tokens; /* tokens of a simulated page: SL_PAGE_TOKENS, or a multiple: faster and coarser */
    double ttft_ms, itl_ms;                        /* targets of goodput */
    void (*each)(void *ctx, const sl_sim_each *r); /* NULL, or called at the end for each request */
    void *each_ctx;
} sl_sim_opts;

typedef struct sl_sim_percentiles {
    double p50, p90, p99, max, mean;
} sl_sim_percentiles;

typedef struct sl_sim_result {
    uint64_t requests, finished, refused, failed; /* requests = the sum of the others */
    double seconds;                               /* virtual, from the first arrival to the last end */
    double real_seconds;
    sl_sim_percentiles ttft_ms, itl_ms; /* itl: of the gaps between tokens of a request */
    sl_sim_percentiles tpot_ms;         /* of the mean gap of each request that has two tokens or more */
    double goodput;                     /* share of requests whose TTFT and mean ITL are within the targets */
    double ttft_missed,
        itl_missed; /* shares of requests beyond each target; those that were refused or failed missed TTFT */
    /* Prompt tokens by where they came from. The sum is that of all prompts that were placed. */
    double tokens_host, tokens_disk, tokens_shared, tokens_prefill_cache, tokens_computed;
    double block_hits;     /* share of blocks that were found in any of these */
    double block_hits_lru; /* of an LRU cache of the same number of pages as all host stores together */
    double block_hits_max; /* of a cache without limit */
    double prefill_busy, decode_busy, link_busy, disk_busy,
        shared_busy; /* shares of the time in which they compute or move rows, mean over workers; waiting for other ranks is not among it.
                        Role both: prefill_busy and decode_busy are parts of the same workers' time */
    double batch;    /* mean over decode steps */
    uint64_t retracted, host_evictions, disk_pages, disk_evictions;
    double disk_written_bytes;
    uint64_t events;
    double output_tokens;
} sl_sim_result;

/* SL_ERR_INVALID names what cannot be; SL_ERR_NO_MEMORY. */
sl_status sl_simulate(const sl_sim_opts *o, sl_sim_result *out, sl_err *err);

/* The share of a trace's blocks that an LRU cache of this number of blocks would hit, counted only as leading blocks of a prompt; 0:
 * of a cache without limit. Negative: out of memory. */
double sl_sim_lru(const sl_sim_trace *t, uint64_t blocks);

/* ---- sizes ---- */

/* The cost of a cluster by costs.price. */
double sl_sim_price(const sl_sim_opts *o);

typedef struct sl_sim_search {
    double goodput; /* target, 0..1 */
    int32_t max_runs;
    /* Called after each run. */
    void (*tried)(void *ctx, const sl_sim_opts *o, const sl_sim_result *r, double price, bool good);
    void *ctx;
    /* Whether workers of these sizes can be at all, as far as the simulator does not know it; NULL: all can. Sizes that cannot are
     * not run, and never the result. */
    sl_status (*fits)(void *ctx, const sl_sim_opts *o, sl_err *err);
    void *fits_ctx;
} sl_sim_search;

/*
 * The cheapest sizes that reach the target, found by descent: from `o` workers are added until the target is reached, of the
 * role whose target more requests miss, and of the other role when that has gained nothing; then
 * host memory, disk and workers are reduced one at a time, the change that saves most first, as long as it is reached.
 * Not every combination is tried. best gets the sizes, result their run. SL_ERR_EXHAUSTED: the target is not reached with
 * 64 times as many workers, or within max_runs, or more workers of both roles have gained nothing.
 */
sl_status sl_sim_search_run(const sl_sim_opts *o, const sl_sim_search *s, sl_sim_opts *best,
                            sl_sim_result *result, sl_err *err);

#endif
