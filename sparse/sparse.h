/*
 * Sparse coordinator: everything between a model's projections and its attention output, for the sequences of one
 * engine.
 *
 * For every layer it captures (appends rows and index keys), selects (by the algorithm), swaps in, and attends. It
 * owns what is the same for every algorithm: sinks, recent window, dense layers, length gate, bounds of the
 * selection's workspace, the tracker of requests and the per-layer counters, and the device memory that these need.
 * It borrows backend, device rows, index pools and host pages, which must outlive it.
 *
 * Life cycle of a request: request_begin (its tables exist, cached pages are constructed, the tail is loaded), any
 * number of steps, request_spill at most once, request_end. Cached pages that arrive later are added by request_load. A
 * step: step_begin with the tokens that it will append, sl_coord_attend for every layer in order, step_end (or
 * step_abort, which forgets the hot rows of the step's requests).
 *
 * Nothing waits for the device except sl_coord_counters_get(), sl_coord_tiles() and, for testing, poisoning. Threads: one owner.
 */
#ifndef SL_SPARSE_SPARSE_H
#define SL_SPARSE_SPARSE_H

#include "sparse/algorithm.h"

/* One layer's memory, as the owner laid it out. */
typedef struct sl_coord_layer {
    /* True: the layer makes a selection of its own; false: it reuses that of the last layer that does. */
    bool has_indexer;
    /* The layer has no rows of tokens, and is never attended: it is none of the coordinator's. Implies `resident`. */
    bool absent;
    /*
     * All rows of this layer are on the device, also those of hierarchical sequences: the layer has a pool of its own,
     * paged by the index pages (which every sequence has for all of its tokens), and no hot slots.
     */
    bool resident;
    /* Device rows: pool, then hot slots; hot_rows differs by layer, tail_rows does not. How tokens and heads are
     * divided into rows (heads, block_log2) follows from the algorithm: the coordinator fills it in. */
    sl_row_view rows;
    sl_host_plane host_rows; /* base NULL: nothing is written to the host */
    sl_row_check check;      /* of the rows that are fetched from there */
    sl_algo_plane
        planes[SL_ALGO_PLANES]; /* by plane of the cache shape: those that are on the device whole; and the
                                             algorithm's state by index pages */
} sl_coord_layer;

/*
 * Gates. The first sink_tokens and the newest recent_tokens tokens are always selected (within the
 * algorithm's budget). A query at a position below min_tokens, and every query of a dense layer, attends to
 * everything. Dense layers cannot be combined with hierarchical sequences unless hot_rows holds the whole
 * context.
 */
typedef struct sl_gates {
    int32_t sink_tokens, recent_tokens, min_tokens;
    const int32_t *dense_layers; /* [n_dense_layers], read during create */
    int32_t n_dense_layers;
} sl_gates;

/* Features the caller is going to use; an algorithm that does not support one is refused with the reason. */
enum {
    SL_USE_PREFIX_REUSE = 1u << 0,
    SL_USE_CHUNKED_PREFILL = 1u << 1,
    SL_USE_DISAGGREGATION = 1u << 2,
    SL_USE_HIERARCHICAL = 1u << 3,
};

/*
 * Benchmarks of models with random weights: after the algorithm has selected at its full cost, the lists are
 * replaced by those of SL_OP_DRAW (kernels/synth.h) for tokens with pos + 1 >= span_tokens. The entries of a list are
 * drawn from the whole blocks of the first span_tokens tokens, for every list by itself. Algorithms that select by
 * positions alone keep their lists.
 */
typedef struct sl_coord_draw {
    const uint32_t *keep; /* device [n_layers], may be rewritten between steps */
    int32_t span_tokens;
    uint64_t seed;
} sl_coord_draw;

/* One attention over lists, as a probe sees it: tokens first .. first + count - 1 of the call. */
typedef struct sl_coord_seen {
    const sl_attn_call *call;
    const sl_coord_layer *layer;
    /* [count][lists][k], logical, ascending, -1 padded: blocks of 1 << block_log2 tokens */
    const int32_t *ids;
    int32_t first, count, lists, k, block_log2;
    /* by which ids were selected, `at` NULL: not by such scores; NULL: the same */
    const sl_algo_scores *scores;
    bool dense; /* the layer attends to everything, whatever the algorithm is */
} sl_coord_seen;

/* Measurements of what a selection misses: `seen` is called after every attention, on the coordinator's thread. Only for
 * backends whose device memory is host memory, because it reads queries, tables and lists. */
typedef struct sl_coord_probe {
    void (*seen)(void *ctx, const sl_coord_seen *s);
    void *ctx;
} sl_coord_probe;

/* Token groups per decode step; layers that share the list of a layer before them and whose rows are fetched with that list, at once. */
enum { SL_COORD_GROUPS_MAX = 8, SL_COORD_AHEAD = 3 };

typedef struct sl_coord_opts {
    const sl_algo_desc *algorithm;
    unsigned use; /* SL_USE_* */
    int32_t n_layers;
    const sl_coord_layer *layers; /* [n_layers], copied */
    sl_cache_dims cache;
    int32_t max_seqs, hot_slots, max_step_tokens, max_context;
    sl_evict_policy policy;
    sl_gates gates;
    /* Token groups per decode step: one group's rows are fetched while another computes; 0 chooses automatically: two
     * groups from 32 tokens on where the backend can copy while it computes, else one. */
    int32_t groups;
    /* Most tokens of one hierarchical sequence in a step, and of one sequence in a step that is shaped; 0: 1. All layers
     * with hot rows need room for the union of this many lists, and in the tail for tokens that are taken back. */
    int32_t run_tokens;
    bool in_turn; /* benchmarks: rows of layers that share a list are fetched when it is the layer's turn */
    bool overlap; /* attention of decode steps starts while rows are being copied, and waits block by block */
    int64_t workspace_bytes;   /* bound of the scores' memory; 0 = 64 MiB */
    const sl_coord_draw *draw; /* NULL, or copied */
    sl_coord_probe probe;      /* seen NULL: none */
    bool count_tiles;          /* benchmarks: sl_coord_tiles() also where every step has to wait for it */
    bool poison; /* testing: rows become NaN when they are stale, and again before they are swapped in */
} sl_coord_opts;

typedef struct sl_coord sl_coord;

/* SL_ERR_UNSUPPORTED names the combination that is refused and why. */
sl_status sl_coord_create(sl_backend *be, const sl_coord_opts *opts, sl_coord **out, sl_err *err);
void sl_coord_destroy(sl_coord *c);
/* Device bytes owned: residency metadata, selections, workspace. */
uint64_t sl_coord_device_bytes(const sl_coord *c);
/* The same without a device, for planning: bytes per hot slot, and bytes that do not depend on their number; of the latter,
 * those of the algorithm. It makes the same checks as create. */
sl_status sl_coord_plan_bytes(const sl_coord_opts *opts, uint64_t *per_hot_slot, uint64_t *fixed,
                              uint64_t *algorithm, sl_err *err);
/* Longest selection of a token, in tokens; and of the run_tokens tokens of a step together (of_run may be NULL), which is
 * the least hot_rows of a layer that is not resident. */
sl_status sl_coord_width(const sl_coord_opts *opts, int32_t *width, int32_t *of_run, sl_err *err);

/*
 * Hot rows of a layer, in tokens of one list, if those of the model are hot_rows: fewer where the algorithm's lists are shorter there
 * (sl_algo_desc.layer_width), in the same proportion. cache: with the options of the algorithm.
 */
int32_t sl_coord_layer_hot(const sl_algo_desc *algorithm, const sl_cache_dims *cache, const sl_gates *gates,
                           int32_t max_context, int32_t layer, int32_t hot_rows);

/* What request_begin needs to know. The arrays are host memory, read during the call only. */
typedef struct sl_coord_request {
    int32_t seq;      /* row of the page tables, 0..max_seqs-1 */
    int32_t hot_slot; /* -1: resident */
    int32_t n_cached; /* tokens whose rows and index keys are in the host pages */
    /* ceil(n_cached / 64) entries each; row_pages only if resident. */
    const int32_t *host_pages, *index_pages, *row_pages;
} sl_coord_request;

/* Loads what is cached: index keys, and rows (resident) or the newest tail_rows rows (hierarchical). */
sl_status sl_coord_request_begin(sl_coord *c, const sl_coord_request *r, sl_err *err);
/*
 * More tokens of a resident request are in the host pages now: loads those from its present length, which must be whole pages, to
 * r->n_cached; the rest of r is as for begin. After an error the length is what it was.
 */
sl_status sl_coord_request_load(sl_coord *c, const sl_coord_request *r, sl_err *err);
/* Says that the prompt of a request is its first `tokens` tokens; r as for begin, between begin and the first step.
 * Algorithms that select at the end of a prompt need it (sl_algo_desc.prompt); for others it does nothing. */
sl_status sl_coord_request_prompt(sl_coord *c, const sl_coord_request *r, int32_t tokens, sl_err *err);
/* A resident request becomes hierarchical; r as for begin, with the new hot slot. The row pages may be used for other
 * requests afterwards. */
sl_status sl_coord_request_spill(sl_coord *c, const sl_coord_request *r, sl_err *err);
/*
 * The request has its first `len` tokens only: those after them, which were appended by its last step, are taken back.
 * Enqueues nothing: what the next step appends takes their places, in the device's and in the host's pages, and until
 * then no op reads them. SL_ERR_INVALID: fewer tokens than before the last step, or than the prompt of an algorithm that
 * selects at its end; SL_ERR_UNSUPPORTED: the coordinator was made for
 * steps of one token (run_tokens).
 */
sl_status sl_coord_request_truncate(sl_coord *c, int32_t seq, int32_t len, sl_err *err);
/* The slot may be reused afterwards. */
void sl_coord_request_end(sl_coord *c, int32_t seq);

/* What a step appends: n tokens at the end of the request in row `seq`, in the order of the step's tokens. */
typedef struct sl_coord_run {
    int32_t seq, n;
} sl_coord_run;

sl_status sl_coord_step_begin(sl_coord *c, const sl_coord_run *runs, int32_t n_runs, sl_err *err);
/* Whether the running step has ops that other steps of its shape do not have, so that it must be run op by op: a prompt
 * ends in it, for example. */
bool sl_coord_step_once(const sl_coord *c);
/*
 * Called between step_begin and the first attend: the step has `tokens` tokens, `per` for every run, of which those
 * after the run's own and those after all runs are padding; and its ops get the shapes for positions below `context`,
 * even if its runs are shorter. Thus every step with the same three numbers runs the same ops.
 */
void sl_coord_step_shape(sl_coord *c, int32_t tokens, int32_t per, int32_t context);
/* What the model needs for the running step: sl_coord_attend, and which layers are late (kernels/attn.h). A layer is
 * late where the step is computed in groups and the layer has an indexer: rows are fetched while its queries are made.
 * Valid until the step ends. */
sl_attend_seam sl_coord_seam(sl_coord *c);
/* An sl_attend_fn; ctx is the sl_coord. */
sl_status sl_coord_attend(void *ctx, const sl_attn_call *call, sl_err *err);
/* A pass of the step has ended early: rows that are still being fetched for its later layers are waited for, before anything else. */
void sl_coord_step_settle(sl_coord *c);
void sl_coord_step_end(sl_coord *c);
void sl_coord_step_abort(sl_coord *c);
/* A step that had ended with step_end, and was enqueued, has failed: its runs are taken back, those of a later step first. */
void sl_coord_step_undo(sl_coord *c, const sl_coord_run *runs, int32_t n_runs);
/*
 * Takes back the last runs[i].n tokens of each request, fewer than run_tokens, which steps of one token have appended. As after a
 * truncation to the same length, but over several steps; a truncation is possible again after the next step. Between steps.
 */
void sl_coord_step_rewind(sl_coord *c, const sl_coord_run *runs, int32_t n_runs);

/* Whether the lists of the last attend, of an ordinary call with all its tokens, can be had again (sl_attn_call.again). Between steps. */
bool sl_coord_again(const sl_coord *c);

/* Benchmarks: from now on misses are resolved and counted, but no row is copied. */
void sl_coord_rows_free(sl_coord *c, bool on);

/* Device array [T][lists][*ld] of the ids that the last attend selected, valid until the next one; NULL for a dense
 * layer, which selects everything, and for algorithms whose lists are not kept. */
const int32_t *sl_coord_selection(const sl_coord *c, int32_t *ld);

typedef struct sl_coord_counters {
    uint64_t hits, misses, evictions, tail_hits;
} sl_coord_counters;

/* Reads the device's counters (waits for the device). layers[n_layers] and seq may be NULL; seq counters are
 * since request_begin. */
sl_status sl_coord_counters_get(sl_coord *c, sl_coord_counters *layers, int32_t seq_row,
                                sl_coord_counters *seq, sl_err *err);
/* The layers' counters of a moment ago, for metrics: waits for nothing, and starts the reading that the next call finds. */
sl_status sl_coord_counters_peek(sl_coord *c, sl_coord_counters *layers, sl_err *err);
/* Sums since create, of an algorithm that leaves out tiles of attention: the tiles of queries to which that applies, and
 * those that were left out (waits for the device where there is such an algorithm). Both 0 for other algorithms. Those that lists of
 * pages of prompts leave out are counted where device memory is host memory, and with count_tiles. */
sl_status sl_coord_tiles(sl_coord *c, uint64_t out[2], sl_err *err);
/*
 * Sums since create, in nanoseconds: in attend, fetching rows (swap), and the part of the latter during which nothing
 * else ran (exposed).
 *
 *   backend                          attend               swap                              exposed
 *   ops complete before run returns  wall time in attend  of which in resolve and gather    all of swap
 *   asynchronous                     0                    the device's time in gathers      from when the main stream
 *                                                                                           waits for a gather
 *
 * The device's times are as of the last sl_coord_counters_get() or sl_coord_counters_peek(). Attention that waits for
 * single blocks counts as waiting for the whole gather.
 */
typedef struct sl_coord_clock {
    uint64_t attend_ns, swap_ns, exposed_ns;
} sl_coord_clock;
void sl_coord_times(const sl_coord *c, sl_coord_clock *out);

#endif
