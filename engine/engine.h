/*
 * Engine: runs steps of a model over sequences whose cache is in the host arena. The mechanism is shared by the
 * prefill worker, the decode worker and `sluice generate`; they decide which sequence runs when.
 *
 * Owns the device side of the cache (index-key pages, resident rows, hot buffers, page tables) and the sparse
 * coordinator; borrows backend, model and arena, which must outlive it. Host pages belong to the caller: it
 * allocates them in the store, passes their numbers, and keeps them until the sequence is closed. The host pages
 * always hold the whole cache of a sequence: the step that makes rows and index keys of a token writes them there.
 *
 * Threads: one thread owns an engine and everything in it. Lifetime: sequences are closed before the engine is
 * destroyed.
 */
#ifndef SL_ENGINE_ENGINE_H
#define SL_ENGINE_ENGINE_H

#include "engine/device_pool.h"
#include "kvstore/row_sums.h"
#include "model/model.h"
#include "model/sampler.h"
#include "sparse/sparse.h"

typedef struct sl_engine sl_engine;
typedef struct sl_seq sl_seq;

typedef enum {
    SL_RESIDENT,     /* all rows on the device */
    SL_HIERARCHICAL, /* hot buffer and tail on the device, the rest swapped in on demand */
} sl_residency;

enum { SL_HOT_RESIDENT = -1 };

/*
 * How decode steps (at most max_item_tokens tokens of every sequence, no layer hook) run. Their inputs are padded to a
 * few sizes, and their shapes depend on the size, on the most tokens of a sequence and on the longest context rounded
 * up, so that a step can be the launch of one graph that was captured earlier. The logits are the same bit by bit in
 * every mode.
 */
typedef enum {
    SL_GRAPHS_AUTO, /* graphs where the backend has them, op by op elsewhere */
    SL_GRAPHS_OFF,  /* op by op */
    SL_GRAPHS_PAD,  /* op by op, padded as for a graph; testing */
} sl_graph_use;

typedef struct sl_engine_opts {
    const sl_algo_desc *algorithm; /* sl_algo_find() of its name */
    sl_select_options select;      /* its parameters; everything 0: its defaults */
    int32_t max_seqs;              /* sequences open at once */
    int32_t max_hot_seqs;          /* most of them that are hierarchical at once; 0: none ever is */
    int32_t max_step_tokens;       /* most tokens of one step, <= the model's max_tokens */
    /*
     * Most tokens that a hierarchical sequence appends in one step, and a sequence in a decode step, 0: 1; at most
     * SL_RUN_TOKENS_MAX. With more than 1 hot_rows must hold the lists of this many tokens, tail_rows twice as many tokens
     * less one (in rows of several tokens their blocks), and tokens can be taken back (sl_engine_seq_truncate()).
     */
    int32_t max_item_tokens;
    int32_t max_context; /* longest sequence, tokens */
    int32_t hot_rows,
        tail_rows; /* per hierarchical sequence and layer; hot_rows >= index_topk * max_item_tokens */
    /*
     * [n_layers] or NULL, read during create: hot rows by layer, 0 = hot_rows. SL_HOT_RESIDENT: all rows of
     * that layer are on the device, whatever a sequence's residency, in index_pages pages of rows.
     */
    const int32_t *hot_rows_layer;
    sl_evict_policy policy;
    int64_t index_pages, row_pages; /* device pool sizes in pages; row_pages bounds what can be resident */
    /*
     * Not 0: states, hot rows, index pages and row pages of all sequences come from one pool of this many bytes, as sequences need
     * them (engine/device_pool.h); max_seqs, max_hot_seqs, index_pages and row_pages are then numbers that are never exceeded, and cost
     * addresses, tables and the metadata of hot slots only. SL_ERR_UNSUPPORTED where the backend has no spaces
     * (sl_space_unit()). 0: each of them has its own memory.
     */
    uint64_t pool_bytes;
    sl_gates gates;
    const sl_coord_draw *draw; /* benchmarks: sparse/sparse.h; NULL, or read during create */
    sl_coord_probe probe;      /* measurements: sparse/sparse.h; seen NULL: none */
    bool count_tiles;          /* benchmarks: sparse/sparse.h */
    /*
     * Checksums of the arena's rows, borrowed; made readable to the device here. Every row that is fetched is compared with
     * the one that it has, see sl_engine_damaged(). NULL: none is.
     */
    const sl_row_sums *row_sums;
    bool arena_readable; /* the caller has registered the arena with the backend and will unregister it */
    /*
     * Groups of sequences per decode step: the rows of one group are fetched while another group computes.
     * 0: two groups from 32 sequences on, if the backend can; 1: one group.
     */
    int32_t groups;
    bool in_turn; /* benchmarks: rows of layers that share a list are fetched when it is the layer's turn */
    bool sequential; /* attention waits for all rows of a layer; otherwise for each block of rows */
    sl_graph_use graphs;
    int32_t max_graphs; /* graphs kept at once, of which the least recently used is replaced; 0: 64 */
    int32_t list_bytes; /* for lists of changed logits of the requests that are sampled; 0: 32 KiB for each */
    bool poison;        /* testing: fill freed and unused device rows with NaN */
    /* benchmarks: the states of a sequence that begins with cached tokens are zero, not unknown */
    bool zero_states;
} sl_engine_opts;

typedef struct sl_engine_stats { /* cumulative */
    uint64_t steps, tokens, hits, misses, tail_hits, evictions, swap_bytes;
    uint64_t tiles, tiles_skipped; /* sl_coord_tiles() */
    uint64_t step_ns, attend_ns;   /* attend: 0 on asynchronous backends, not measured there */
    /* fetching rows, and the part during which computing waited for rows: sl_coord_times() */
    uint64_t swap_ns, swap_exposed_ns;
    uint64_t host_ns;      /* of step_ns: everything except waiting for the device */
    uint64_t decode_steps; /* steps of one token per sequence, padded as for a graph; and their time: */
    uint64_t decode_ns, decode_host_ns;
    /* The device between the end of a step and the beginning of the next one, except after sl_engine_rest(); where the
     * backend computes before its calls return, the engine's thread. */
    uint64_t idle_ns;
    /* steps that were the launch of a graph; graphs captured so far */
    uint64_t graph_steps, graph_captures;
    /* Tokens that were chosen; those of them that the host chose, because no memory for a list was free; lists sent to the device. */
    uint64_t sampled, sampled_on_host, sample_lists;
    uint64_t drafted, draft_ns; /* tokens that were drafted, and the time that this took */
    int64_t index_pages_free, row_pages_free, hot_slots_free;
    /* With sl_engine_opts.pool_bytes: what no sequence holds, of pool_bytes, and how much has moved to another use so far. */
    uint64_t pool_bytes, pool_free, pool_moved;
    uint64_t pool_held[SL_DPOOL_KINDS]; /* bytes of what sequences hold, by kind; units at edges are larger */
    uint64_t device_bytes;
    /* Of device_bytes: index pages, row pages and hot slots; and the part of them that sequences hold. */
    uint64_t kv_bytes, kv_bytes_used;
} sl_engine_stats;

/* Per-layer counters of the swap-in, for metrics and residency decisions. */
typedef struct sl_layer_stats {
    uint64_t hits, misses, tail_hits, evictions, swap_bytes;
} sl_layer_stats;

/* What a model's cache is made of in these formats: sl_model_cache_dims(), with the formats set. */
sl_cache_dims sl_engine_cache_dims(const sl_model_config *cfg, sl_row_format row, sl_index_format index);
/* The page geometry of a model's cache under an algorithm; the arena of an engine is made with it. */
sl_status sl_engine_geometry(const sl_model_config *cfg, const sl_cache_dims *cache,
                             const sl_algo_desc *algorithm, sl_layout layout, sl_key fingerprint,
                             sl_geometry *out, sl_err *err);

/*
 * SL_ERR_INVALID / UNSUPPORTED names the option or combination that cannot work; SL_ERR_REFUSED when the
 * arena was made for another model or format. The arena is made readable to the device here and given back by
 * destroy.
 */
sl_status sl_engine_create(sl_backend *be, sl_model *model, sl_arena *arena, const sl_engine_opts *opts,
                           sl_engine **out, sl_err *err);
void sl_engine_destroy(sl_engine *e);
/* Waits for the device, except _peek, whose counters and times of the swap-in are those of a moment ago (a step or two): steps in
 * flight go on. Layers: out[n_layers]. */
void sl_engine_stats_get(const sl_engine *e, sl_engine_stats *out);
void sl_engine_stats_peek(const sl_engine *e, sl_engine_stats *out);
void sl_engine_layer_stats_get(const sl_engine *e, sl_layer_stats *out);
void sl_engine_layer_stats_peek(const sl_engine *e, sl_layer_stats *out);

/*
 * Opens a sequence of n_cached tokens whose rows and index keys are already in the host pages (0 for a new
 * one): loads the index keys, and for a resident one the rows, to the device. pages covers at least n_cached
 * tokens. user is the caller's tag. SL_ERR_EXHAUSTED when the device has no slot or pages for it (nothing
 * changed).
 */
sl_status sl_engine_seq_open(sl_engine *e, sl_residency residency, const int32_t *pages, int32_t n_pages,
                             int32_t n_cached, void *user, sl_seq **out, sl_err *err);
/*
 * The first `tokens` tokens of the sequence are its prompt; called between open and the first step. Algorithms that select
 * at the end of a prompt need it, others ignore it. With n_cached >= tokens their selection is read from the pages.
 * SL_ERR_INVALID when the cached tokens end within those that must be computed (sl_engine_prompt_window()), or when the
 * pages do not have the selection.
 */
sl_status sl_engine_seq_prompt(sl_engine *e, sl_seq *s, int32_t tokens, sl_err *err);
/* Tokens at the end of a prompt that one worker must compute, because their queries choose what is kept; 0: the algorithm
 * does not select at the end of a prompt. */
int32_t sl_engine_prompt_window(const sl_engine *e);
/* A step ends at a multiple of this number of tokens of a prompt, or at the prompt's end or later; others are refused. 1: anywhere. */
int32_t sl_engine_prompt_unit(const sl_engine *e);
/* The longest steps, of at most `chunk` tokens, in which a prompt of this many tokens can be computed; 0: there are none. Pure. */
int32_t sl_engine_prompt_chunk(const sl_engine *e, int32_t chunk, int32_t tokens);
/* Adds host pages at the end (the sequence grows). SL_ERR_EXHAUSTED when the device pools are full (nothing
 * changed). */
sl_status sl_engine_seq_add_pages(sl_engine *e, sl_seq *s, const int32_t *pages, int32_t n_pages,
                                  sl_err *err);
/*
 * The rows and index keys of tokens [length, n_cached) of a resident sequence are in its host pages now, for example because they
 * were fetched: loads them to the device; the sequence then has n_cached tokens. Its length must be whole pages. It can be called
 * again when further pages have arrived, and enqueues only: the device copies while the caller waits for the next pages.
 * SL_ERR_INVALID; after an error the length is what it was.
 */
sl_status sl_engine_seq_load(sl_engine *e, sl_seq *s, int32_t n_cached, sl_err *err);
/* A resident sequence becomes hierarchical: its device rows are freed, except the newest tail_rows rows.
 * SL_ERR_EXHAUSTED: no hot slot is free, or a pool has no memory for one, also with that of these rows; nothing changed. After
 * another error of an engine with a pool the sequence can only be closed. */
sl_status sl_engine_seq_spill(sl_engine *e, sl_seq *s, sl_err *err);
/*
 * The sequence has its first `len` tokens only: those after them, which its last step appended, are taken back, for
 * example because they were drafts that the model did not confirm. From here on everything is as if they had never been:
 * rows, keys and metadata in the device's and the host's pages up to `len`, selections, residency, and what the next
 * steps compute, bit by bit. What is in the host pages beyond `len` is undefined, as before a step. Counters say what was
 * computed and fetched, also for tokens that were taken back. Enqueues nothing, except copies of states (below). SL_ERR_INVALID: len is
 * less than before the last step or than a prompt that ends in a selection, or more than the length; SL_ERR_UNSUPPORTED:
 * max_item_tokens is 1, or the states before these tokens are not kept.
 */
sl_status sl_engine_seq_truncate(sl_engine *e, sl_seq *s, int32_t len, sl_err *err);
/*
 * States. Some models have layers that keep a state of fixed size instead of rows, or besides them (kernels/cache.h). It is
 * on the device alone and cannot be cut. So with max_item_tokens > 1 the engine keeps versions of states, those before each of the
 * last max_item_tokens tokens of a sequence's last step, and only these tokens can be taken back. When a sequence is opened or
 * loaded with cached tokens, or one of its steps failed, its steps are refused (SL_ERR_INVALID) until its states were restored
 * for exactly its tokens. A step in flight counts: a sequence whose last result is dropped can only be closed, and a snapshot
 * is made before. Without a snapshot they are computed again, from the first token or the last snapshot on.
 *
 * sl_engine_state_bytes(): of one sequence; 0: the model has none. The others take sl_snapshot_pages() host pages of the
 * caller, and a key that names the sequence's tokens (kvstore/snapshot.h); they wait for the device.
 */
int64_t sl_engine_state_bytes(const sl_engine *e);
sl_status sl_engine_seq_save(sl_engine *e, const sl_seq *s, sl_key key, const int32_t *pages, sl_err *err);
/* SL_ERR_CORRUPT: the pages do not hold the undamaged snapshot of these tokens; nothing has changed. */
sl_status sl_engine_seq_restore(sl_engine *e, sl_seq *s, sl_key key, const int32_t *pages, sl_err *err);
/* Whether the states after the first `tokens` tokens are there: those of all its tokens, or with max_item_tokens > 1 those before
 * one of the last tokens of its last step, also when some of these were taken back. A step can save them (sl_step_item.save). */
bool sl_engine_seq_keeps(const sl_engine *e, const sl_seq *s, int32_t tokens);
/* Frees the sequence's device memory. Host pages stay the caller's. */
void sl_engine_seq_close(sl_engine *e, sl_seq *s);
/* Pages of rows for which the device has memory that no sequence holds; and how many of them a resident sequence must have, so
 * that less is in use after it was spilled: with a pool a spilled sequence takes hot rows of this size, else 0. */
int64_t sl_engine_row_room(const sl_engine *e);
int32_t sl_engine_spill_pages(const sl_engine *e);
int32_t sl_engine_seq_len(const sl_seq *s);      /* tokens whose rows exist */
int32_t sl_engine_seq_capacity(const sl_seq *s); /* tokens its host pages can hold */
void *sl_engine_seq_user(const sl_seq *s);
/* Swap-in counters of this sequence so far. */
void sl_engine_seq_stats(const sl_engine *e, const sl_seq *s, sl_layer_stats *out);

/* A token that a step is to choose. A fault of its logits or parameters is this item's alone. */
typedef struct sl_step_sample {
    const sl_sampling *sampling; /* of the request: the same in every step of a sequence */
    sl_history history;          /* as many tokens as the sequence has after the step */
    /*
     * NULL: every token is possible. Else it is asked once, on the engine's thread, after the step's other work was enqueued
     * and before the token is chosen: it may wait for the bits, which are copied. Of an item that follows it is asked by
     * sl_engine_choose(), when the token before is known. A mask without bits is a fault of this item.
     */
    sl_token_mask (*mask)(void *ctx);
    void *mask_ctx;
    sl_sampled out; /* out; see sl_sample_fault_status() */
} sl_step_sample;

/*
 * The log-probabilities of tokens that are known, as a step of a prompt gives them: of the token that follows each of the
 * item's first n tokens, chosen among the model's logits by the sampling op, which is told which one. A step with these is
 * computed op by op and waits for the device; its logits take the place of those of one decode step, part after part.
 */
typedef struct sl_step_score {
    int32_t n;           /* 1 .. n_tokens */
    const int32_t *next; /* [n] */
    int32_t n_best;      /* 0 .. SL_LOGPROBS_MAX */
    sl_sampled *out; /* [n] out; a fault is this item's alone. A token whose logit is -inf has logprob -inf */
} sl_step_score;

/* The states after the first `tokens` tokens of a sequence are copied to these pages before the step appends anything: the states of
 * a snapshot, without its record, which sl_snapshot_seal() writes when the step was collected. Enqueued, not waited for. */
typedef struct sl_step_save {
    int32_t tokens; /* sl_engine_seq_keeps() */
    const int32_t *pages;
} sl_step_save;

/* One sequence's part of a step: these tokens are appended at its end. A hierarchical sequence takes at most
 * max_item_tokens. The bits of every token are those of steps of one token. */
typedef struct sl_step_item {
    sl_seq *seq;
    const int32_t *tokens;
    int32_t n_tokens;
    int32_t want_logits; /* of this many of its last tokens, 0 .. n_tokens */
    /* out: [want_logits][vocab], host readable, valid until the next step; NULL if not wanted */
    const float *logits;
    /* Its one token is the token that the step before has chosen for this sequence, and that step has not been collected:
     * the token goes from one step to the next on the device. `tokens` is not read; sl_engine_can_follow(). */
    bool follows;
    /* The token that follows the last one is chosen on the device, as sl_sample() would choose it, bit by bit; NULL: none
     * is. Without want_logits no logits leave the device. Borrowed during the step. */
    sl_step_sample *sample;
    /*
     * Several tokens are chosen: those that follow the last n_samples tokens of the item, sample[n_samples], each with a
     * history up to its place; at most max_item_tokens. 0: one. The next step of the sequence cannot follow such an item.
     */
    int32_t n_samples;
    sl_step_score *score; /* NULL: none. With it no logits are wanted */
    sl_step_save save;    /* pages NULL: none */
} sl_step_item;

/*
 * Steps in flight. sl_engine_submit() enqueues a step and returns; sl_engine_collect() waits for the oldest step that was
 * submitted and gives its results. At most SL_STEPS_IN_FLIGHT steps are in flight, so while the device computes one, the
 * caller handles the results of the one before, and submits the next one. The results are those of sl_engine_step(), which
 * is submit and collect, bit by bit. Where the backend computes before its calls return, submit computes.
 *
 * Items, and what they point to, are borrowed until the step is collected. Lengths of sequences say what was submitted. A
 * sequence of a step in flight may get pages and may be spilled; it must not be closed or truncated. A step with
 * want_logits is collected before the next one is submitted.
 *
 * A step in which an item that follows has a mask stays open: its pass runs, and its tokens are chosen by
 * sl_engine_choose(), which comes when the step before was collected, and before the next one is submitted. So the host learns
 * the token from which the mask follows, and makes the mask, while the device computes.
 *
 * When the token of a step that follows turns out to be the end of its request, or wrong, the caller drops the result of that
 * item and closes the sequence: its row is beyond the tokens that the caller counts, where the contents of the host's
 * pages are undefined as before a step. A token that could not be chosen is followed by a row of token 0.
 */
enum { SL_STEPS_IN_FLIGHT = 2 };

/* A sequence for which tokens are drafted. */
typedef struct sl_draft_item {
    sl_seq *seq;
    int32_t token;               /* that follows its last one: chosen, and in no step yet */
    int32_t n;                   /* tokens wanted after that, 1 .. max_item_tokens - 1 */
    const sl_sampling *sampling; /* of the request */
    int32_t *out;                /* out: [n] */
} sl_draft_item;

/* What a rank of a group wants drafted before a step, in which all ranks take part; see sl_engine_draft(). */
typedef struct sl_step_drafts {
    sl_draft_item *items; /* [n] */
    int32_t n;
    void (*made)(
        void *
            ctx); /* all are drafted; the items of the step are read after this. Not called after an error, or if n is 0 */
    void *ctx;
} sl_step_drafts;

typedef struct sl_step_hooks {
    void *ctx;
    /*
     * After layer `layer` has been enqueued and, on asynchronous backends, as soon as its rows and keys are
     * in the host pages: the new tokens of every item can be read there. Called on the engine's thread; must
     * not block. May be NULL.
     */
    void (*layer_done)(void *ctx, int32_t layer);
    const sl_step_drafts *drafts; /* in a group, whose engines have the MTP layer; NULL: none */
} sl_step_hooks;

/*
 * Runs one step: all items together, one forward pass, synchronous (returns when logits are readable). Each
 * item's pages must already hold its new tokens. On an error no sequence has advanced, and the items' rows
 * beyond their old length are undefined.
 *
 * A model in a group (sl_model_opts.ranks): a step is a step of all ranks, every rank calls this, each with its own
 * items. A rank without work passes no items, and its experts compute for the others. The ranks first agree on the
 * step's size. A rank whose step is refused because of its items takes part without items, so that the others do not
 * wait. An error on one rank later in the step, and every error of the group (collectives/comm.h), ends the step on every
 * rank: the group is broken.
 */
sl_status sl_engine_step(sl_engine *e, sl_step_item *items, int32_t n_items, const sl_step_hooks *hooks,
                         sl_err *err);

/*
 * The model's MTP layer (sl_model_opts.draft) drafts tokens, for a step that will append `token` and them, and choose the
 * tokens that follow each (sl_step_item.n_samples): those that are equal to what the model chooses stand, the rest is taken back
 * (sl_engine_seq_truncate()). So drafts decide how many tokens a step gives, and nothing else. Each is chosen with the request's
 * temperature, cuts and seed at its position, without bias and penalties. The layer runs once for each place in the order of
 * drafts, over all items that want one. Its rows go to places after the sequence's tokens, for which it must have pages; the
 * lengths of sequences stay as they are.
 *
 * No step is in flight. Afterwards a sequence cannot be truncated before its next step. SL_ERR_UNSUPPORTED: no MTP layer, or in a
 * group. After an error the sequences are as before.
 *
 * The experts of the layer are shared out among the ranks of a group, so there drafting is a part of the step, of all ranks
 * (sl_step_hooks.drafts): before each place they agree on the number of items, until none wants a further one.
 */
sl_status sl_engine_draft(sl_engine *e, sl_draft_item *items, int32_t n_items, sl_err *err);

/*
 * The hidden state of the sequence's last token, which the MTP layer needs for the row of the next one, and so for the first draft. It
 * goes with the pages of a sequence to another engine of the same model and activations, or waits while the sequence is closed.
 * Bytes: 0 without an MTP layer. seq_hidden waits for the device; false: it is not known, as after cached tokens, or could not
 * be read. set_hidden: the sequence has the tokens of the state; if it fails, the state is not known.
 */
size_t sl_engine_hidden_bytes(const sl_engine *e);
bool sl_engine_seq_hidden(sl_engine *e, const sl_seq *s, void *out);
void sl_engine_seq_set_hidden(sl_engine *e, sl_seq *s, const void *bytes);

/* Whether an item that follows can be submitted now. False: there is no step in flight that chooses a token for its sequence, or
 * the host must know that token first: it chooses itself, or has to make the list of changes of the sequence anew. */
bool sl_engine_can_follow(const sl_engine *e, const sl_step_item *it);
/* SL_ERR_INVALID with SL_STEPS_IN_FLIGHT steps; SL_ERR_UNSUPPORTED in a group. After an error this step is not in flight, and
 * no sequence has advanced. */
sl_status sl_engine_submit(sl_engine *e, sl_step_item *items, int32_t n_items, const sl_step_hooks *hooks,
                           sl_err *err);
/* Asks for the masks of the step that was submitted last, if it is open, and chooses its tokens. SL_ERR_INVALID: the step before was
 * not collected. After another error no step is in flight any more, as after one of collect. */
sl_status sl_engine_choose(sl_engine *e, sl_err *err);
/* SL_ERR_INVALID: no step is in flight. After another error no step is in flight any more, and no sequence has what they
 * appended. A step that is open is chosen first. */
sl_status sl_engine_collect(sl_engine *e, sl_err *err);
int32_t sl_engine_in_flight(const sl_engine *e);
/* Whether the device computes while the host continues, so that a step in flight costs the host no time. */
bool sl_engine_overlaps(const sl_engine *e);
/* The time that the step which was collected last has taken, from its inputs to its tokens: the device's, where it has a clock. */
uint64_t sl_engine_step_ns(const sl_engine *e);
/* When that step had its tokens, on the clock of sl_now_ns(); 0: no step was collected. Where the device has a clock of its own its
 * difference is estimated: the smallest, of a few hundred steps, between a step's end by that clock and the moment when the host
 * knew. So the time of that notice itself, some microseconds, is not in it. */
uint64_t sl_engine_ended_ns(const sl_engine *e);
/* The engine has work for a device without steps (a shape was run op by op, and is captured): whoever collects all steps before it
 * submits the next one gives their tokens away before that work, which that submit does. False: no step is in flight. */
bool sl_engine_wants_rest(const sl_engine *e);
/* Nothing waits to be computed: the time until the next step is not counted as idle. With no step in flight. */
void sl_engine_rest(sl_engine *e);

/*
 * The host pages of which a step since the last call has fetched rows that differ from their checksums (sl_engine_opts.row_sums):
 * calls `found` for each and returns their number. The steps themselves have succeeded, but no token of a sequence that has
 * one of these pages may be used, and the sequence goes no further. Waits for the device only if there are any; 0 without
 * checksums.
 */
int32_t sl_engine_damaged(sl_engine *e, void (*found)(void *ctx, int32_t page), void *ctx);

/* What a rank of a group says when the ranks agree on a step. The flags are the caller's. */
typedef struct sl_step_share {
    int32_t tokens;
    uint32_t flags;
} sl_step_share;

/* The group of the next steps, see sl_model_set_comm(); NULL: none. Graphs of the former group are forgotten, so this
 * is called before that group is destroyed. */
void sl_engine_set_comm(sl_engine *e, sl_comm *comm);
/* What this rank says in the next steps. */
void sl_engine_set_flags(sl_engine *e, uint32_t flags);
/* What the ranks said in the last step, [ranks], and the number of steps on which this group has agreed. */
const sl_step_share *sl_engine_shares(const sl_engine *e, uint64_t *steps);
/* What the routed experts of this rank have computed so far: sl_model_expert_load(). */
sl_ep_load sl_engine_expert_load(const sl_engine *e);

/*
 * Captures the graphs of decode steps of up to max_batch sequences of up to max_context tokens, with logits and of
 * every number of tokens of a sequence, so that no request waits for a capture; at most max_graphs of them, first one
 * token of the largest batches of the shortest contexts. done (may be NULL) is called after each. SL_OK with nothing
 * done where there are no graphs, and for a model in a group: its steps need all ranks, so each shape is captured when
 * it first occurs.
 */
sl_status sl_engine_capture(sl_engine *e, int32_t max_batch, int32_t max_context,
                            void (*done)(void *ctx, int32_t n, int32_t of), void *ctx, sl_err *err);

/*
 * Benchmarks: from now on misses are resolved and counted, but no row is copied ("rows are free"). Only the time of
 * such steps has a meaning, not their results. Turning it off again does not copy the missing rows later: close
 * every sequence that was open.
 */
void sl_engine_rows_free(sl_engine *e, bool on);

#endif
