/*
 * Sparse algorithm: the seam between the coordinator and a way of choosing which cached tokens a query attends to.
 *
 * An algorithm is one const table: what it selects and by which scores (sl_selector), the properties of its lists,
 * its planes of metadata, what it may be combined with, and its functions. It only chooses: rows, residency, sinks,
 * recent window, dense layers and the length gate belong to the coordinator (sparse/sparse.h) and the swap-in
 * manager (sparse/swapin.h) and are the same for every algorithm.
 *
 * Everything a function does is enqueued on the backend's stream; no function may wait for the device or allocate,
 * except create. Selection must be deterministic and *token-independent*: a token's list depends on its query and
 * its sequence's cache alone, never on the batch. The conformance suite (tests/unit/sparse/test_conformance.c) runs
 * against every registered algorithm. How to add one: docs/sparse-algorithms.md.
 *
 * Threads: an instance belongs to its coordinator's thread.
 */
#ifndef SL_SPARSE_ALGORITHM_H
#define SL_SPARSE_ALGORITHM_H

#include "base/options.h"
#include "kernels/attn.h"
#include "kernels/cache.h"

typedef enum {
    SL_ACTION_VISIBILITY, /* the cache stays whole; a query sees a part */
    SL_ACTION_EVICT,      /* tokens are dropped permanently */
    SL_ACTION_KERNEL,     /* the attention kernel leaves out tiles by itself; lists hold everything */
} sl_algo_action;

/* What the key of an index unit is made of. */
typedef enum {
    SL_KEY_NONE,       /* units have no key: positions decide, or nothing is selected */
    SL_KEY_STORED,     /* one token, its key as stored */
    SL_KEY_MEAN,       /* mean of the tokens' keys */
    SL_KEY_GATED_POOL, /* sum of the tokens' keys, weighted by a softmax over learned gates */
    SL_KEY_COMPRESSOR, /* a learned projection of the unit's and its predecessors' tokens */
    SL_KEY_BOUNDS,     /* smallest and largest value of each channel */
} sl_unit_key;

/* Score of a unit for one head of the indexer (or of attention), from query q and the unit's key. */
typedef enum {
    SL_SCORE_NONE,
    SL_SCORE_RAW,           /* q . k */
    SL_SCORE_RELU,          /* sum over heads of relu(q . k) */
    SL_SCORE_WEIGHTED_RELU, /* the same, weighted by head */
    SL_SCORE_BOUND,         /* sum over channels of max(q * largest, q * smallest) */
} sl_score_form;

/* How the scores of the units of one block become one. */
typedef enum { SL_REDUCE_NONE, SL_REDUCE_MAX, SL_REDUCE_SUM } sl_score_reduce;

/*
 * What is selected, and by which scores: enough to describe the trained families (lightning indexer, pooled keys,
 * blocks with lists per KV head, compressed entries) as well as selectors without training. The coordinator and the
 * adaptor decide from it whether they can serve the algorithm; how the score is computed is left to the algorithm.
 */
typedef struct sl_selector {
    int32_t unit_tokens; /* tokens per index unit; a finished unit never changes */
    /* Tokens of what is selected: unit_tokens, or several units whose scores become one. */
    int32_t block_tokens;
    /* Tokens of an entry of a list, and of a row: a whole fraction of block_tokens, whose entries are all selected together; 0:
     * block_tokens. */
    int32_t entry_tokens;
    sl_unit_key key;
    sl_score_form score;
    sl_score_reduce reduce;          /* over the units of a block */
    sl_list_scope scope;             /* who shares a list */
    int32_t force_first, force_last; /* blocks at the begin and the end that are always selected */
    bool force_open;                 /* tokens of the unit that is still open are always selected */
    /* Layers without an indexer use the list of the last layer that has one; otherwise, where only layers with an indexer select
     * (needs_indexer), they attend to everything, and all their rows are on the device. */
    bool shared_by_layers;
} sl_selector;

static inline int32_t sl_selector_entry(const sl_selector *s)
{
    return s->entry_tokens > 0 ? s->entry_tokens : s->block_tokens;
}

/* SL_ERR_INVALID names the field, or the two fields, that contradict each other. */
sl_status sl_selector_check(const sl_selector *s, sl_err *err);

/* Dimensions an algorithm is created for. */
typedef struct sl_algo_dims {
    int32_t n_layers, max_step_tokens, max_context;
    sl_cache_dims cache;
    sl_cache_shape shape;    /* the model's planes and the algorithm's own */
    int64_t workspace_bytes; /* most device memory for scores */
    int32_t max_seqs;        /* rows of the page tables; requests at once */
    int32_t sinks, recent;   /* the gates */
    bool truncates;          /* tokens of a step may be taken back; see sl_algo_desc.update */
} sl_algo_dims;

/* One plane of one layer that is on the device whole: its pool there, and its host pages. */
typedef struct sl_algo_plane {
    /* Page p at device + p * device_stride. NULL: the layer does not have this plane, or only in the host pages. */
    uint8_t *device;
    int64_t device_stride;
    sl_host_plane host; /* base NULL: no host copy is kept */
} sl_algo_plane;

/* The planes of a layer, by plane of the shape, and after them what the algorithm keeps by index pages (page_state). */
enum { SL_ALGO_STATE = SL_CACHE_PLANES, SL_ALGO_PLANES };

/* Pages of one layer whose rows exist already: a prefix hit, or pages that came from another worker. */
typedef struct sl_algo_pages {
    int32_t layer;
    const sl_algo_plane *planes; /* [SL_CACHE_PLANES] by plane of the shape; that of the rows is empty */
    sl_host_plane host_rows;     /* the rows of these tokens, in the host pages */
    const int32_t *host_pages, *device_pages; /* [n_pages] host arrays */
    int32_t n_pages, n_tokens;
} sl_algo_pages;

/* One request in one layer, before its first step: where its prompt ends. */
typedef struct sl_algo_prompt {
    int32_t layer, seq;
    int32_t tokens;                          /* of the prompt */
    int32_t n_cached;                        /* tokens whose rows exist */
    const sl_algo_plane *planes;             /* [SL_ALGO_PLANES] by plane of the shape */
    const int32_t *host_pages, *index_pages; /* [ceil(n_cached / 64)] host arrays */
    sl_row_view rows;                        /* how the rows of this layer are divided */
    sl_host_plane host_rows;                 /* the rows of the cached tokens, in the host pages */
} sl_algo_prompt;

/* What a step appends to one request. */
typedef struct sl_algo_run {
    int32_t seq;
    int32_t first, n; /* tokens of the step: first .. first + n - 1 */
    int32_t pos;      /* of the first one */
    int32_t prompt;   /* tokens of the prompt; 0: unknown */
    bool hot;         /* hierarchical: only some of its rows are on the device, all are in the host pages */
} sl_algo_run;

/* The scores by which retrieve selected, for measurements: [count][lists][ld], of the units of tokens first .. first +
 * count - 1 of the step, device memory that stays until the next call. Queries before from_pos read everything, the
 * first `sinks` and the newest `recent` tokens are read in any case: these units have none. */
typedef struct sl_algo_scores {
    const float *at; /* NULL: it does not select by scores of the units of its lists */
    int32_t first, count, ld, from_pos, sinks, recent;
} sl_algo_scores;

/* One attention of one layer, as the coordinator sees it. */
typedef struct sl_algo_call {
    const sl_attn_call *attn;    /* queries, raw keys, tables, dimensions */
    const sl_algo_plane *planes; /* [SL_ALGO_PLANES] of this layer, by plane of the shape */
    /* The rows of this layer, for keys made of what attention reads. In update, rows of this step's tokens exist in
     * both, unless the algorithm is groupable and does not state reads_rows. */
    sl_row_view rows;
    sl_host_plane host_rows;
    int32_t max_pos;         /* largest position of the step */
    const sl_algo_run *runs; /* [n_runs], in the order of the step's tokens */
    int32_t n_runs;
    /* Lists per token (1, or the number of KV heads), and log2 of the tokens of a block, as the selector states. */
    int32_t lists, block_log2;
    int32_t k; /* most blocks of a list in this step: min(those of width, those of max_pos + 1) */
    int32_t sinks, recent,
        dense_below; /* gates in tokens, for the algorithm's selection op (sl_topk_params) */
    /* Of prompt_lists: [2] in host memory, to which it adds the tiles of 64 tokens of its tokens and KV heads, and those that
     * are left out; it may wait for the device. NULL: they are not counted. */
    uint64_t *tiles;
    /* where retrieve may say by which scores it selected, or NULL: nothing reads them */
    sl_algo_scores *scores;
} sl_algo_call;

/* The tables of tokens first .. first+count-1 alone; the arrays stay where they are. */
static inline sl_seq_tables sl_seq_tables_slice(const sl_seq_tables *t, int32_t first, int32_t count)
{
    sl_seq_tables s = *t;
    s.n_tokens = count;
    s.token_seq += first;
    s.token_pos += first;
    return s;
}

struct sl_gates; /* sparse/sparse.h */

/* The model for which options are prepared; n_heads and kv_heads are 0 where attention has no KV heads. */
typedef struct sl_algo_model {
    const char *architecture; /* for instance "LlamaForCausalLM" */
    int32_t n_layers, n_heads, kv_heads, head_dim, hidden_size, vocab_size;
    int32_t max_context;
    /* A hash of the weights that make queries and keys, for files that were made for a model; 0: not known. It reads files, so it
     * is called only where it is compared. NULL: not known. */
    uint64_t (*print)(const void *print_ctx);
    const void *print_ctx;
} sl_algo_model;

typedef struct sl_algo sl_algo; /* an instance; its struct begins with `const sl_algo_desc *desc` */

typedef struct sl_algo_desc {
    const char *name, *description;
    sl_algo_action action;
    bool prefix_reuse, chunked_prefill, disaggregation; /* what it may be combined with */
    bool needs_indexer; /* the model must have an indexer; only its layers select */
    bool index_blocks;  /* with needs_indexer: the model's index keys must be those that select blocks */
    /* of an indexer: its keys are those of units of tokens; otherwise every token has one */
    bool pooled_keys;
    bool needs_kv_heads; /* the model must have grouped-query attention */
    bool host_only;      /* it runs where device memory is host memory, and is refused elsewhere */
    bool reads_all;      /* a list holds everything before the query */
    bool keeps_lists;    /* lists are kept for the whole step, and reused by the layers that share them */
    bool constant_k; /* the length of a list is a constant of the model, not of the step's longest sequence */
    bool groupable;  /* tokens of a decode step may select group by group, in any order */
    /* update reads the rows of this step's tokens: they are appended before it, also in groups */
    bool reads_rows;

    /* The key of sparse_attention that bounds the tokens of a list, for tools that compare algorithms at equal budgets
     * (`sluice eval`): one of its options, or recent_tokens, a window, which is the rest of the budget after the sinks. NULL: there is
     * none. */
    const char *budget_key;
    /* Tokens of one unit of budget_key, with these options. NULL: one. */
    int32_t (*budget_unit)(const void *options);

    /*
     * The options that it reads, with the keys that the section sparse_attention gets from them; at most SL_SELECT_BYTES of
     * values. NULL: none. prepare checks them against the model, and may read files that they name: what pages depend on
     * in these is *content, a hash, and 0 before. Errors begin with the option. NULL: nothing to do.
     */
    const sl_options *options;
    sl_status (*prepare)(void *options, const sl_algo_model *model, uint64_t *content, sl_err *err);

    /* The gates of a configuration that sets neither, for an algorithm that cannot be without; else 0. */
    int32_t default_sinks, default_recent;

    /* Required. What is selected, for a model of these dimensions. */
    sl_selector (*selector)(const sl_cache_dims *dims);
    /* Planes of metadata of its own, appended to the model's: writes at most `most` and returns their number. They lie
     * in the host pages and travel with them. NULL: none. */
    int32_t (*planes)(const sl_cache_dims *dims, sl_cache_plane *out, int32_t most);
    /* Bytes of state of its own for each index page of a request, in every layer, on the device alone; at SL_ALGO_STATE
     * among the planes. A page that a request gets has any contents. NULL: none. */
    int64_t (*page_state)(const sl_cache_dims *dims);
    /* Of a request with this prompt and this many tokens: the number of tokens that need such state, at most
     * `tokens`, and not less for more tokens. Where nothing else is in index pages (planes, rows of resident layers), a
     * request has them for these alone, from sl_engine_seq_prompt() on. NULL: for all of its tokens. */
    int32_t (*state_tokens)(const sl_cache_dims *dims, int32_t prompt, int32_t tokens);
    /* SL_ERR_INVALID names the parameter that cannot be, or that does not fit the gates. NULL: everything can. */
    sl_status (*check)(const sl_algo_dims *dims, const struct sl_gates *gates, sl_err *err);
    /* SL_ACTION_KERNEL: skip_factor of the attention (sl_gqa_attn_params). */
    float (*skip_factor)(const sl_cache_dims *dims);
    /* Bytes of metadata outside of the planes that a query reads in one layer of a request of this many tokens, for
     * `sluice eval`. NULL: none. */
    uint64_t (*query_bytes)(const sl_cache_dims *dims, int32_t tokens);
    /* Required. Longest list it can return, in tokens, gates included, at most max_context. Hierarchical
     * sequences need as many hot rows. */
    int32_t (*width)(const sl_algo_dims *dims, int32_t dense_below);
    /* The same of one layer, at most width; hierarchical sequences need as many hot rows there. NULL: width for all layers. */
    int32_t (*layer_width)(const sl_algo_dims *dims, int32_t dense_below, int32_t layer);
    /* Required. Device bytes that an instance takes (scores and other scratch), within dims->workspace_bytes where it
     * can choose. */
    uint64_t (*device_bytes)(const sl_algo_dims *dims);
    /* The most scratch memory that a backend's ops of k-means, codes and cluster lists need for it (kernels/scratch.h),
     * whatever a step has. What any other op of selection asks for is planned for every algorithm. NULL: it uses none
     * of the three. */
    size_t (*scratch)(const sl_algo_dims *dims);
    /* Required. */
    sl_status (*create)(sl_backend *be, const sl_algo_dims *dims, sl_algo **out, sl_err *err);
    void (*destroy)(sl_algo *a);
    /* Makes the device's copy of the metadata of pages whose rows exist already, for one layer, from the host's
     * copy or from the rows. It is called for every layer, with or without an indexer. NULL: nothing to do. */
    sl_status (*construct)(sl_algo *a, const sl_algo_pages *pages, sl_err *err);
    /* Makes the metadata of this step's new tokens, before retrieve. NULL: nothing to do. The coordinator always
     * captures the model's own index keys, whatever the algorithm is, so that pages are complete. With dims->truncates a
     * run may begin at a position that a step before has computed already: its tokens were taken back, and nothing
     * that update makes now may depend on them. */
    sl_status (*update)(sl_algo *a, const sl_algo_call *call, sl_err *err);
    /*
     * For an algorithm that selects at the end of a prompt: called for every layer of a request before its first step,
     * after construct. The tokens of the prompt attend to everything (call->k is then the whole context), and are
     * resident; from the token after the prompt on, lists are those of retrieve. update sees the runs that reach the
     * prompt's end and makes the selection there, once. What it selects must depend on the tokens of the prompt and on
     * their number alone, and must be in the host pages when the step ends: another worker opens the same pages with
     * n_cached >= tokens. SL_ERR_INVALID: n_cached ends in tokens that the selection needs to see. NULL: prompts have
     * no meaning for the algorithm.
     */
    sl_status (*prompt)(sl_algo *a, const sl_algo_prompt *p, sl_err *err);
    /* Tokens at the end of a prompt that must be computed together with the selection: a prefix that is reused ends
     * before them. Set together with prompt. */
    int32_t (*prompt_window)(const sl_cache_dims *dims);
    /*
     * Whether update, for runs after their prompts, enqueues anything that it does not enqueue in every step of as many
     * tokens: clusters of a group of tokens that is complete now, for example. Such a step is run op by op. Other
     * decode steps may be repeated as graphs, in which update runs no more, and what it has enqueued finds everything
     * that changes in the device's tables. A step with tokens of a prompt is run op by op in any case, if prompt is
     * set. NULL: no other step.
     */
    bool (*once)(const sl_algo *a, const sl_algo_run *runs, int32_t n_runs);
    /*
     * Required. Logical ids of tokens first .. first+count-1 of the step: ids[count][call->lists][call->k], of which
     * the first lists belong to token `first`; ascending, -1 padded. An id is a block, each in 0..pos >>
     * call->block_log2.
     */
    sl_status (*retrieve)(sl_algo *a, const sl_algo_call *call, int32_t first, int32_t count, int32_t *ids,
                          sl_err *err);
    /* Whether retrieve can answer calls with sl_attn_call.again after the call of `tokens` tokens that it answered last. NULL: never. */
    bool (*again)(const sl_algo *a, int32_t tokens);
    /*
     * For an algorithm that selects pages for the tokens of prompts, whose rows are on the device: the lists of tokens first ..
     * first + count - 1 of the step, whole runs of resident sequences, valid until the next call (sl_gqa_prompt_lists; `of` begins with
     * token `first`, and tokens after a prompt have none). Called instead of retrieve, in steps that have tokens of prompts. What a
     * token reads may depend on the tokens of its prompt up to the end of its page: a step computes every page of 64 tokens
     * that lies in the prompt as a whole, and one that would divide it is refused. With prompt, reads_all and needs_kv_heads. NULL:
     * retrieve is for all tokens.
     */
    sl_status (*prompt_lists)(sl_algo *a, const sl_algo_call *call, int32_t first, int32_t count,
                              sl_gqa_prompt_lists *out, sl_err *err);
} sl_algo_desc;

struct sl_algo {
    const sl_algo_desc *desc;
};

static inline int64_t sl_algo_page_state(const sl_algo_desc *a, const sl_cache_dims *dims)
{
    return a->page_state ? a->page_state(dims) : 0;
}

/* The options of an algorithm from dimensions, into a struct of its table: those that are set, or the defaults. */
void sl_algo_options(const sl_options *table, const sl_cache_dims *dims, void *out);
/* Options with these values, and else the defaults; not prepared, stamp 0. text: "name=value:name=value". Errors begin with
 * the option. */
sl_status sl_algo_select(const sl_algo_desc *algo, const char *text, sl_select_options *out, sl_err *err);

/* SL_ERR_UNSUPPORTED: the algorithm selects by what rows of this kind of attention, or the model's index keys, do not have. */
sl_status sl_algo_serves(const sl_algo_desc *algo, const sl_cache_dims *dims, sl_err *err);
/* Whether a layer of the model attends to everything because the algorithm selects in others alone. */
bool sl_algo_leaves_out(const sl_algo_desc *algo, const sl_cache_dims *dims, bool has_indexer);

/*
 * The cache of a model under an algorithm: the model's planes, then the algorithm's. Rows are divided as the algorithm
 * selects, into blocks and by KV head, if their format can be. SL_ERR_INVALID names the field.
 */
sl_status sl_algo_cache_shape(const sl_algo_desc *algo, const sl_cache_dims *dims, sl_cache_shape *out,
                              sl_err *err);

extern const sl_algo_desc sl_algo_dsa;
extern const sl_algo_desc sl_algo_msa;
extern const sl_algo_desc sl_algo_pooled;
extern const sl_algo_desc sl_algo_dense;
extern const sl_algo_desc sl_algo_cluster_kv;
extern const sl_algo_desc sl_algo_pq_cache;
extern const sl_algo_desc sl_algo_quest;
extern const sl_algo_desc sl_algo_snapkv;
extern const sl_algo_desc sl_algo_rocket_kv;
extern const sl_algo_desc sl_algo_streaming_llm;
extern const sl_algo_desc sl_algo_double_sparsity;
extern const sl_algo_desc sl_algo_skip_softmax;
extern const sl_algo_desc sl_algo_xattention;

/* The registry: every algorithm of this build and of loaded plug-ins, NULL-terminated; and the same as names. */
const sl_algo_desc *const *sl_algo_registry(void);
const char *const *sl_algo_names(void);
/* A hash of the object that an algorithm comes from (sparse/plugin.h), which the stamp of pages has; 0: this build. */
uint64_t sl_algo_object(const sl_algo_desc *a);
/* NULL: no algorithm has this name. */
const sl_algo_desc *sl_algo_find(const char *name);

#endif
