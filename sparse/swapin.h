/*
 * Swap-in manager: records which rows of a hierarchical sequence are on the device, and copies missing rows from the
 * host.
 *
 * For each layer it owns the residency state (sl_hot_state) of all hot slots, and for each group of tokens a miss list;
 * the rows themselves are the caller's. Resident layers have neither. It knows no scores: it takes lists of logical
 * ids, resolves them to physical rows (hit, tail hit, or a victim whose row is replaced), and gathers the missing rows
 * from the host pages. Everything is enqueued on the backend's streams. Threads: one owner.
 */
#ifndef SL_SPARSE_SWAPIN_H
#define SL_SPARSE_SWAPIN_H

#include "sparse/sparse.h"

typedef struct sl_swapin sl_swapin;

typedef struct sl_swapin_opts {
    int32_t n_layers;
    const sl_coord_layer *layers; /* [n_layers], borrowed */
    int32_t hot_slots;            /* 0: resident sequences only; hot_rows is then 0 in every layer */
    int32_t max_tokens;           /* longest sequence */
    int32_t width;                /* longest list, in rows */
    sl_evict_policy policy;
    bool poison;    /* testing: a row that is replaced becomes NaN before its copy arrives */
    int32_t groups; /* miss lists that are in use at the same time; 0: 1 */
    /* Attention of steps of at most this number of tokens runs while rows arrive; 0: never. */
    int32_t overlap_tokens;
    /* Lists per token, 0 for one, and log2 of the tokens of a row: as in the layers' views. Each list of a slot has hot
     * rows and a residency of its own. */
    int32_t lists, block_log2;
    int32_t of_run; /* most rows that the lists of one head of a slot select in a step; 0: width */
    int32_t spare;  /* rows of a list's tail that are not read (sl_resolve_params.tail_spare) */
} sl_swapin_opts;

sl_status sl_swapin_create(sl_backend *be, const sl_swapin_opts *opts, sl_swapin **out, sl_err *err);
void sl_swapin_destroy(sl_swapin *s);
uint64_t sl_swapin_device_bytes(const sl_swapin *s);
/* Device bytes per hot slot (all layers) and independent of them. */
void sl_swapin_plan_bytes(const sl_swapin_opts *opts, uint64_t *per_slot, uint64_t *fixed);

/*
 * Forgets the hot rows of a slot in all layers. The slot's counters are first added to the layers' sums and then set to
 * zero. tail: the tail rows are another request's too; this matters only with `poison`.
 */
sl_status sl_swapin_reset(sl_swapin *s, int32_t slot, bool tail, sl_err *err);
/* Starts a step: rows that are used from here on get its stamp. several: a hierarchical sequence may have more than one
 * token in it; then attention waits for all rows, not for blocks of them. */
sl_status sl_swapin_step(sl_swapin *s, bool several, sl_err *err);
/* Changes `several` of the running step. */
void sl_swapin_several(sl_swapin *s, bool several);

/*
 * Resolves ids[T][lists][k] of one layer into phys of the same shape, with T tokens of seqs. After the gather that
 * follows has completed, all listed rows are on the device. All tokens of a hierarchical sequence in a step are
 * resolved by one call.
 */
sl_status sl_swapin_resolve(sl_swapin *s, int32_t layer, const sl_seq_tables *seqs, const int32_t *ids,
                            int32_t *phys, int32_t k, sl_err *err);
sl_status sl_swapin_gather(sl_swapin *s, int32_t layer, sl_err *err);
/*
 * Whether attention of `tokens` tokens with lists of k, directly after gather, may start before all rows have
 * arrived; then it must wait for blocks as p says from here on.
 */
bool sl_swapin_overlap(const sl_swapin *s, int32_t layer, int32_t tokens, int32_t k,
                       sl_sparse_attn_params *p);
/* Benchmarks: while this is on, gather does nothing. */
void sl_swapin_rows_free(sl_swapin *s, bool on);
/*
 * Chooses the miss list (0 .. groups - 1) of the next resolve and gather. Each group of tokens has its own, so that the
 * gathers of several groups can be in flight on the backend's side stream; attention then waits for whole groups.
 * -1, which is also the state after create: the step is not divided into groups.
 */
void sl_swapin_group(sl_swapin *s, int32_t group);
/* The gather of the current group on the side stream: it starts after everything enqueued so far and runs
 * concurrently with what is enqueued on the main stream until sl_swapin_wait() of that group. */
sl_status sl_swapin_gather_aside(sl_swapin *s, int32_t layer, sl_err *err);
/* The main stream waits until the group's rows have arrived. Once for every sl_swapin_gather_aside(), also after
 * an error. */
sl_status sl_swapin_wait(sl_swapin *s, int32_t layer, int32_t group, sl_err *err);
/* The residency state of a layer (device pointers), for tests and tools. */
const sl_hot_state *sl_swapin_state(const sl_swapin *s, int32_t layer);

/* Counters since create per layer (layers[n_layers], may be NULL) and since the slot's last reset (slot < 0:
 * none). Waits. */
sl_status sl_swapin_counters(sl_swapin *s, sl_coord_counters *layers, int32_t slot,
                             sl_coord_counters *of_slot, sl_err *err);
/* The layers' counters of a moment ago, those of the step before or so; waits for nothing. */
sl_status sl_swapin_peek(sl_swapin *s, sl_coord_counters *layers, sl_err *err);
/* The time that gathers took, and the part during which the main stream waited, by the device's clock, as of
 * the last sl_swapin_counters() or what the last sl_swapin_peek() found. */
void sl_swapin_times(const sl_swapin *s, uint64_t *taken_ns, uint64_t *waited_ns);

#endif
