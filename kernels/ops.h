/*
 * The table of ops: one line per op, from which follow the enumeration sl_op, the names, the sizes, the declarations of
 * checks and implementations, the tables of both backends, and a page of the documentation (docs/kernels.md).
 *
 *     X(ENUM, name, items, field, text)
 *
 *   SL_OP_<ENUM>             its number
 *   sl_<name>_params         its parameters, in the header of its family
 *   sl_chk_<name>()          what it requires of them (kernels/check.h)
 *   sl_cpu_<name>            its implementation on the CPU, a sl_op_impl in a file of kernels/cpu
 *   sl_cuda_<name>           on CUDA, in a file of kernels/cuda
 *   items, field             on how much it works, so that nothing runs for nothing: COUNT, the int32 `field`; SEQS, the
 *                            tokens of the tables at `field`; ALWAYS, it runs even without tokens (field is any member)
 *   text                     one sentence for the documentation
 *
 * A new op is one line here, its parameters, its check, its two implementations and its cases of the conformance suite.
 */
#ifndef SL_KERNELS_OPS_H
#define SL_KERNELS_OPS_H

/* clang-format off */
#define SL_OPS(X) \
    X(EMBED,           embed,           COUNT,  tokens,          "Rows of the embedding table.") \
    X(RMSNORM,         rmsnorm,         COUNT,  tokens,          "RMS norm, with an addition to the residual stream before it.") \
    X(LINEAR,          linear,          COUNT,  tokens,          "Product with a weight, or with several weights that read the same input.") \
    X(Q_ABSORB,        q_absorb,        COUNT,  tokens,          "Queries of latent attention in the space of the latent rows.") \
    X(V_UP,            v_up,            COUNT,  tokens,          "Outputs of latent attention, from the latent space to the heads.") \
    X(KV_APPEND,       kv_append,       SEQS,   seqs,            "New latent rows: norm, rotation, encoding, into the device and the host.") \
    X(INDEX_APPEND,    index_append,    SEQS,   seqs,            "New index keys.") \
    X(INDEX_QUERY,     index_query,     COUNT,  tokens,          "Index queries and the weights of their heads.") \
    X(INDEX_SCORES,    index_scores,    COUNT,  token_count,     "Scores of all index keys of a sequence.") \
    X(BLOCK_SCORES,    block_scores,    COUNT,  token_count,     "Scores of blocks: the largest product of an index query with a key of the block.") \
    X(BLOCK_LISTS,     block_lists,     COUNT,  token_count,     "The best blocks of every list, as the rows that they are made of.") \
    X(TOPK,            topk,            COUNT,  token_count,     "The best k scores, as ascending lists of tokens or blocks.") \
    X(RESOLVE,         resolve,         ALWAYS, seqs,            "Where each selected row is; which ones are missing, and whose place they take.") \
    X(GATHER,          gather,          ALWAYS, miss_count,      "Missing rows from host memory into the hot buffer.") \
    X(HOT_RESET,       hot_reset,       COUNT,  hot_slots,       "Empties hot buffers.") \
    X(SPARSE_ATTN,     sparse_attn,     COUNT,  tokens,          "Attention over selected latent rows.") \
    X(GQA_QUERY,       gqa_query,       COUNT,  tokens,          "Queries by head: norm and rotation.") \
    X(GQA_APPEND,      gqa_append,      SEQS,   seqs,            "New keys and values by head, into the device and the host.") \
    X(GQA_ATTN,        gqa_attn,        COUNT,  tokens,          "Attention over keys and values by head, of lists or of the whole context.") \
    X(PROMPT_SCORES,   prompt_scores,   COUNT,  n,               "How much blocks of a prompt attend to the pages before them, estimated.") \
    X(BOUNDS_APPEND,   bounds_append,   SEQS,   seqs,            "Bounds of the keys of a block.") \
    X(BOUNDS_SCORES,   bounds_scores,   COUNT,  token_count,     "Upper bounds of the products of queries with a block's keys.") \
    X(LABELS_APPEND,   labels_append,   SEQS,   seqs,            "The few channels of a key that are scored.") \
    X(LABELS_SCORES,   labels_scores,   COUNT,  token_count,     "Scores from these channels.") \
    X(KEPT_STORE,      kept_store,      SEQS,   seqs,            "Which tokens of a prompt are kept, as metadata of its pages.") \
    X(WINDOW_VOTES,    window_votes,    COUNT,  tokens,          "Votes of the last tokens of a prompt for earlier ones.") \
    X(KEPT_LISTS,      kept_lists,      COUNT,  token_count,     "Lists of kept and newer tokens.") \
    X(KMEANS,          kmeans,          COUNT,  tokens,          "Clusters of keys.") \
    X(CLUSTER_LISTS,   cluster_lists,   COUNT,  token_count,     "Lists of the tokens of the best clusters.") \
    X(CODES,           codes,           COUNT,  tokens,          "Codes of keys: the nearest centroid of each part.") \
    X(CODE_SCORES,     code_scores,     COUNT,  token_count,     "Scores from codes.") \
    X(RETAINED_APPEND, retained_append, SEQS,   seqs,            "Bounds of pages of retained tokens.") \
    X(RETAINED_SCORES, retained_scores, COUNT,  token_count,     "Scores of pages of retained tokens.") \
    X(RETAINED_LISTS,  retained_lists,  COUNT,  token_count,     "Lists of the tokens of the best pages.") \
    X(SILU_MUL,        silu_mul,        COUNT,  tokens,          "The gate of an MLP: silu(gate) times up, and its variants.") \
    X(SIGMOID_MUL,     sigmoid_mul,     COUNT,  tokens,          "x times the sigmoid of a gate.") \
    X(JOIN,            join,            COUNT,  tokens,          "Rows of two matrices, one after the other.") \
    X(STREAMS_OUT,     streams_out,     COUNT,  tokens,          "One row from parallel residual streams, and the gates of what is added to them.") \
    X(STREAMS_ADD,     streams_add,     COUNT,  tokens,          "A row added to every residual stream, by its gate.") \
    X(STREAMS_MIX,     streams_mix,     COUNT,  tokens,          "One row from normalised streams by gates of each value, and the gates of what is added.") \
    X(UNARY,           unary,           COUNT,  tokens,          "silu or sigmoid of a matrix.") \
    X(CONV,            conv,            SEQS,   seqs,            "Causal convolution of each channel over the tokens of a sequence.") \
    X(DELTA,           delta,           SEQS,   seqs,            "The recurrence of delta-rule layers over the tokens of a sequence.") \
    X(GATED_NORM,      gated_norm,      COUNT,  tokens,          "RMS norm of each head, times a gate.") \
    X(POOL_APPEND,     pool_append,     SEQS,   seqs,            "Index keys of units of tokens that are complete.") \
    X(POOL_SCORES,     pool_scores,     COUNT,  token_count,     "Scores of the complete units of a sequence.") \
    X(OPEN_UNITS,      open_units,      SEQS,   seqs,            "The open unit of each token, at the end of its list.") \
    X(NGRAM,           ngram,           SEQS,   seqs,            "Rows of a table in host memory by hashes of the last tokens.") \
    X(NGRAM_MIX,       ngram_mix,       COUNT,  tokens,          "What an n-gram embedding adds to each stream, and its norm.") \
    X(HEAD_ROTATE,     head_rotate,     COUNT,  tokens,          "Norm of heads, and rotation of their last values, forth or back.") \
    X(ENTRIES_APPEND,  entries_append,  SEQS,   seqs,            "New compressed entries, and what is open of the next ones.") \
    X(ENTRY_SCORES,    entry_scores,    COUNT,  token_count,     "Scores of all compressed index keys of a sequence.") \
    X(RING_ATTN,       ring_attn,       COUNT,  tokens,          "Attention over a window and compressed entries.") \
    X(RING_STORE,      ring_store,      SEQS,   seqs,            "New rows of a window.") \
    X(STATE_KEEP,      state_keep,      SEQS,   seqs,            "Copies of states, from before tokens that may be taken back.") \
    X(MOE_ROUTE,       moe_route,       COUNT,  tokens,          "The experts of each token and their weights.") \
    X(MOE,             moe,             COUNT,  tokens,          "Routed experts on this device.") \
    X(EP_SEND,         ep_send,         ALWAYS, tokens,          "Rows of tokens to the ranks of their experts.") \
    X(EP_EXPERTS,      ep_experts,      ALWAYS, layout,          "The experts of this rank on the rows that arrived.") \
    X(EP_SUM,          ep_sum,          COUNT,  tokens,          "The results that came back, summed in the order of the experts.") \
    X(ADD,             add,             COUNT,  tokens,          "x += y.") \
    X(PICK,            pick,            COUNT,  n,               "Copies of chosen rows.") \
    X(SAMPLE,          sample,          COUNT,  n,               "The next token of each request, and log-probabilities.") \
    X(RANDOM,          random,          COUNT,  rows,            "Random values for benchmarks.") \
    X(DRAW,            draw,            SEQS,   seqs,            "Random lists for benchmarks.")
/* clang-format on */

typedef enum {
#define X(op, name, items, field, text) SL_OP_##op,
    SL_OPS(X)
#undef X
        SL_OP_COUNT,
} sl_op;

#endif
