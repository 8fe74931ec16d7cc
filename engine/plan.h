/*
 * Memory plan: what a model's requests cost on the device and on the host, how many fit, and the pool sizes
 * of an engine that uses a given budget. Arithmetic on the model's config alone: no weights, no device, any
 * machine. It is what `sluice plan` prints, and what a worker logs at start. Pure functions, any thread.
 */
#ifndef SL_ENGINE_PLAN_H
#define SL_ENGINE_PLAN_H

#include "engine/engine.h"

/* Of a rank of a group (plan_group.h). */
typedef struct sl_plan_group {
    int32_t ranks;
    int32_t ranks_per_host; /* 1 .. ranks: how many ranks share the memory of a host */
    sl_dtype stored, act;   /* of the weights and of the activations, as in model/sizes.h */
    uint64_t host_bytes;    /* of a host, for pages */
    uint64_t given_weights; /* device bytes of a rank's weights; UINT64_MAX: computed from the config */

    /* Set by sl_plan_group_make(). */
    /* the rank with the most experts (the first such rank), and how many it has in a layer */
    int32_t rank, experts;
    uint64_t replicated_bytes, expert_bytes; /* weights on the device; both 0 when the weights are given */
    uint64_t exchange_bytes;                 /* buffers of the workspace */
    uint64_t window_bytes; /* of the CUDA backend, with the default of sl_comm_opts.window_bytes */
} sl_plan_group;

typedef struct sl_plan_in {
    const sl_model_config *cfg;
    sl_cache_dims cache; /* sl_engine_cache_dims() */
    const sl_algo_desc *algorithm;
    int32_t hot_rows;                     /* 0: sl_plan_default_hot_rows() */
    const int32_t *hot_rows_layer;        /* as in sl_engine_opts, or NULL */
    int32_t tail_rows;                    /* 0: 64 */
    int32_t max_item_tokens;              /* as in sl_engine_opts */
    int32_t max_context, max_step_tokens; /* max_context 0: the model's */
    /* most requests, for which tables and state are set aside; 0: 256, and batches are not bounded */
    int32_t max_seqs;
    sl_evict_policy policy;
    sl_gates gates;
    uint64_t weight_bytes; /* on the device */
    /* Kept free on the device: activations, libraries, fragmentation. */
    uint64_t reserve_bytes;
    uint64_t gpu_bytes, host_bytes;
    /* Bytes of a unit of one pool for states, hot rows and pages, of a model whose layers keep states (sl_engine_opts.pool_bytes):
     * sl_space_unit(), or SL_PLAN_UNIT of a GPU; 0: each has its own memory. */
    uint64_t pool_unit;
    /* rows of the host's pages have checksums (kvstore/row_sums.h), which take memory in addition to host_bytes */
    bool row_sums;
    /* the backend has no GPU: its ops take their scratch memory from the host, outside of gpu_bytes */
    bool on_host;
    /* of a rank of a group: see sl_plan_group_make(); NULL: one process alone */
    const sl_plan_group *group;
} sl_plan_in;

/* Device bytes of what the exchanges of a group need. */
static inline uint64_t sl_plan_group_bytes(const sl_plan_in *in)
{
    return in->group ? in->group->exchange_bytes + in->group->window_bytes : 0;
}

/* One context length: bytes of one request, and the largest batch within the budgets. The host budget limits
 * resident requests too, because they hold host pages as well. */
typedef struct sl_plan_row {
    int32_t context;
    uint64_t resident_bytes, hierarchical_bytes, host_bytes;
    int64_t resident_batch, hierarchical_batch;         /* device and host together */
    int64_t resident_gpu, hierarchical_gpu, host_batch; /* each budget alone */
} sl_plan_row;

enum { SL_PLAN_ROWS = 4, SL_PLAN_GENERATED = 1024, SL_PLAN_UNIT = 2 << 20 };

typedef struct sl_plan {
    int32_t width, hot_rows, tail_rows, max_context;
    int32_t item_tokens;     /* most tokens of a sequence in a step for which the hot rows suffice */
    int32_t index_layers;    /* layers with an indexer */
    int32_t resident_layers; /* layers whose rows never leave the device */
    /* No hot buffer can hold a list, because lists are as long as the context: every layer is planned as resident. The
     * engine must be told so (SL_HOT_RESIDENT in hot_rows_layer) if it has hot slots. */
    bool all_resident;
    int64_t row_bytes, index_block_bytes, page_bytes;
    /* Of a request, whatever its length: the states of its layers on the device, and the host pages of one snapshot. */
    uint64_t state_device, snapshot_host;
    /* Device bytes of a page: in the planes that are on the device whole, together with the rows of resident
     * layers; and of the other rows of a resident sequence. */
    uint64_t index_page_device, row_page_device;
    /* Tokens of a long request for which it is planned to have index pages: those that need the algorithm's state after a long
     * prompt, and SL_PLAN_GENERATED; 0: it has them for all tokens. */
    int32_t index_tokens;
    uint64_t hot_rows_bytes, hot_meta_bytes; /* device bytes of a hot slot, all layers */
    uint64_t fixed_bytes;                    /* coordinator, tables, logits */
    /* Of fixed_bytes: what the algorithm keeps for its requests and its scores, and the logits. Both are for max_seqs
     * requests of max_context tokens, whatever runs. */
    uint64_t algorithm_bytes, logit_bytes;
    /* Of fixed_bytes: the scratch memory of ops on CUDA, the most that one of them asks for (engine/scratch.h). */
    uint64_t scratch_bytes;
    int32_t max_seqs;
    uint64_t cache_bytes; /* device budget left for the cache; 0 when nothing is left */
    /* One pool: bytes of a unit, and those that objects at the edges of units may take in addition, all together. 0: no pool. */
    uint64_t pool_unit, pool_edges;
    int64_t host_pages;
    uint64_t row_sums_bytes;        /* of host memory, for these pages, whether they are kept or not */
    sl_plan_row rows[SL_PLAN_ROWS]; /* 16K, 32K, 64K, 128K; context beyond max_context: batch 0 */
    int32_t n_rows;
} sl_plan;

/* The default size of a hot buffer, in rows: twice the longest selection, so that rows stay which the next step
 * selects again; for an algorithm whose lists grow with the context, the longest list, because it needs no more.
 * width: tokens of the longest list; of_run: of the lists of the tokens that a sequence has in one step. */
int32_t sl_plan_default_hot_rows(const sl_algo_desc *algorithm, int32_t width, int32_t of_run);

/* Errors: what sl_engine_create would refuse (combination, hot_rows). Too small budgets are not errors:
 * batches are 0. */
sl_status sl_plan_make(const sl_plan_in *in, sl_plan *out, sl_err *err);

/*
 * Pool sizes for max_seqs sequences of up to max_context tokens within the plan's device budget. Hierarchical: a hot
 * slot for every sequence, index pages for all of them at full length or as far as the memory goes, row pages with what
 * is left (resident while there is room). Resident: index and row pages alike. Sets max_seqs, max_hot_seqs,
 * max_context, hot_rows, tail_rows, max_item_tokens, index_pages and row_pages of *out, nothing else (the caller passes
 * hot_rows_layer on). SL_ERR_DEVICE_MEMORY when not even one sequence fits, with the numbers. Of a plan with a pool:
 * pool_bytes is all that is left, without the metadata of max_seqs hot slots, and the numbers are the most that any
 * load could have; it is enough that one sequence fits, how many do is decided when they come.
 */
sl_status sl_plan_pools(const sl_plan *p, sl_residency mode, int32_t max_seqs, int32_t max_context,
                        sl_engine_opts *out, sl_err *err);

/* A table for people, malloc'ed; and the same as JSON. NULL when out of memory. */
char *sl_plan_text(const sl_plan_in *in, const sl_plan *p);
char *sl_plan_json(const sl_plan_in *in, const sl_plan *p);

#endif
