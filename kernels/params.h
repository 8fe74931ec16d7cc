/*
 * Parameters of every compute op: plain structs of pointers, shapes and strides, the same for every backend.
 *
 * Conventions
 * - Pointers are device addresses of the backend that runs the op (for the CPU backend: ordinary memory), except where
 *   a field says "host". Ops own nothing; everything must stay valid until the op has completed.
 * - T is the number of tokens of the step (of all sequences together), S the number of sequences. Matrices are
 *   row-major; `ld` is a row stride in elements. Activations are SL_F32 or SL_BF16 (field `act`); sums are float32.
 * - Every op is *token-independent*: the bits of token t's result depend only on token t's inputs (and on the cache
 *   rows that it reads), never on T, on the token's position in the batch or on the number of threads. Exactness of
 *   batching, chunking, disaggregation and recovery rests on this; the conformance suite checks it.
 * - Rounding: "rounded to act" means one round-to-nearest-even to bf16 when act is SL_BF16, and nothing when it is
 *   SL_F32. Everything between two such points is float32 (products and sums are rounded separately in RoPE, Hadamard
 *   and quantisation, so that their bytes are the same on every backend). Sums inside norms are taken in double, and
 *   the factor 1/sqrt(..) is rounded once to float32. All ops except SL_OP_INDEX_* treat act this way; the official
 *   index convention has its own fixed bf16 points, for every act.
 * - e4m3: round to nearest even, |x| > 448 saturates to 448, NaN stays NaN (0x7f). Power-of-two scale of a group: t =
 *   amax * (1/448) in float32; s = 2^ceil(log2 t) from the exponent bits. Lower bounds: amax >= 1e-4 for activations,
 *   index keys and queries (1.3); t >= 1e-4 for latent rows (3.1).
 * - A failure that only the device can see (an id or position out of range, a missing page, a capacity) never writes
 *   outside a buffer; the CPU backend returns it from run, an asynchronous backend from the next sync.
 * - Formulas: the numbers name sections 1.3 to 1.6 and 3.1 of the notes on DSA models; tests/unit/kernels restates
 *   every formula in double precision.
 */
#ifndef SL_KERNELS_PARAMS_H
#define SL_KERNELS_PARAMS_H

#include "kernels/weight.h"

#define SL_PAGE_TOKENS 64 /* tokens of a page; also keys of an index block */
#define SL_PAGE_LOG2 6
/* Bytes. Matrices whose rows are multiples of this number begin at a multiple: so a shape says whether wide loads are
 * possible, and no path depends on where memory lies. The CUDA backend requires it. */
#define SL_ROW_ALIGN 16
/* LRU indices have 16 bits, of which the two largest values stand for the list's sentinel and for "not there". */
#define SL_HOT_ROWS_MAX 65534
/* Most tokens of one hierarchical sequence in a step (SL_OP_RESOLVE). */
#define SL_RUN_TOKENS_MAX 16

/* The number of pages that hold this number of tokens. */
static inline int32_t sl_pages_for(int64_t tokens)
{
    return (int32_t)((tokens + SL_PAGE_TOKENS - 1) / SL_PAGE_TOKENS);
}

/* The number of blocks of 64 rows in which attention reads a list of k ids. */
static inline int32_t sl_list_blocks(int32_t k)
{
    return sl_pages_for(k);
}

/* Row formats. Latent rows, of lora = kv_lora_rank and rope = qk_rope_head_dim: see sl_row_bytes(). Keys and values by
 * head: kernels/gqa.h. */
typedef enum {
    SL_ROW_MLA_F32,  /* (lora + rope) x f32 */
    SL_ROW_MLA_BF16, /* (lora + rope) x bf16 */
    SL_ROW_MLA_FP8,  /* lora x e4m3 | ceil(lora/128) x f32 power-of-two scale | rope x bf16 */
    SL_ROW_GQA_F32,
    SL_ROW_GQA_BF16,
    SL_ROW_GQA_FP8,
} sl_row_format;

/* Kinds of attention: what its calls carry (kernels/attn.h) and which rows it reads. */
typedef enum { SL_ATTN_MLA, SL_ATTN_GQA, SL_ATTN_KINDS } sl_attn_kind;

/* Numeric convention of the indexer. Cached pages carry it; pages of different conventions are never mixed. */
typedef enum {
    SL_INDEX_PLAIN,    /* float32 keys and scores, no Hadamard (transformers) */
    SL_INDEX_OFFICIAL, /* Hadamard, then e4m3 with power-of-two scale per key / per query head */
} sl_index_format;

/* Where the cache of this step's sequences is. All arrays device-readable. */
typedef struct sl_seq_tables {
    int32_t n_tokens, n_seqs, ld; /* T, S, entries per row of the page tables */
    /*
     * [T] row in the tables below; tokens of a sequence are adjacent and ascending. -1: a padding token, at
     * position 0, which fills the step up to a fixed size. No cache is written for it, and its lists are empty
     * (-1).
     */
    const int32_t *token_seq;
    const int32_t *token_pos;   /* [T] absolute position; the token sees keys 0..pos */
    const int32_t *host_pages;  /* [S][ld] page of the host arena, -1 beyond the end */
    const int32_t *index_pages; /* [S][ld] page of the device index-key pool */
    const int32_t *row_pages;   /* [S][ld] page of the device row pool; -1 for hierarchical sequences */
    const int32_t *hot_slot;    /* [S] hot-buffer slot of a hierarchical sequence, -1 = resident */
    const struct sl_turns
        *turns; /* how ops that change states take the tokens (kernels/turns.h); NULL: all at once */
} sl_seq_tables;

/*
 * Units of one plane of one layer (kernels/cache.h), in bytes:
 * unit(page, i, head) = base + page * page_stride + i * row_stride + head * unit bytes.
 */
typedef struct sl_host_plane {
    uint8_t *base;
    int64_t page_stride, row_stride;
} sl_host_plane;

/*
 * One layer's rows on the device, each of row_bytes bytes. A row holds one block, which is 1 << block_log2 consecutive
 * tokens, of all heads or of one KV head. With H = sl_row_lists() and B = 64 >> block_log2 blocks of a page, the rows
 * are the row pool, and from hot_base on the hot slots:
 *   block i of device page p, head h      (p * B + i) * H + h
 *   LRU index i of hot slot s, head h     hot_base + s * (hot_rows + tail_rows) + h * (hot_rows / H) + i
 *   tail row of block b, head h           hot_base + s * (hot_rows + tail_rows) + hot_rows + b % (tail_rows / H) * H + h
 * In rows of one token for all heads, a block is a position, B is 64 and H is 1.
 */
typedef struct sl_row_view {
    uint8_t *base;
    int64_t row_bytes;
    int32_t hot_base;
    int32_t hot_rows, tail_rows; /* of a slot, over all heads: multiples of H */
    int32_t heads;               /* KV heads that have rows of their own; 0: a row holds all heads */
    int32_t block_log2;          /* 0..SL_PAGE_LOG2 */
} sl_row_view;

/* Lists of rows per token: every KV head with rows of its own has a list of its own. */
static inline int32_t sl_row_lists(const sl_row_view *r)
{
    return r->heads > 1 ? r->heads : 1;
}

/* The number of blocks that hold this number of tokens, of which the first one begins a block. */
static inline int32_t sl_blocks_for(int32_t tokens, int32_t block_log2)
{
    return (int32_t)(((int64_t)tokens + (1 << block_log2) - 1) >> block_log2);
}

/* The most blocks in which the first `sinks` and the newest `recent` tokens of a sequence lie. */
static inline int32_t sl_forced_blocks(int32_t sinks, int32_t recent, int32_t block_log2)
{
    int32_t newest = recent > 0 ? sl_blocks_for(recent - 1, block_log2) + 1 : 0;
    return sl_blocks_for(sinks, block_log2) + newest;
}

/* out[t] = table[ids[t]] as act dtype. */
typedef struct sl_embed_params {
    const int32_t *ids; /* [T], each in [0, vocab) */
    const void *table;  /* [vocab][dim] */
    void *out;          /* [T][dim] */
    int32_t tokens, dim, vocab;
    sl_dtype table_dtype, act;
} sl_embed_params;

/*
 * If add != NULL: s = x32 + add32, x = s rounded to act (in place, the residual stream); else s = x32.
 * out = (s * rsqrt(mean(s^2) + eps)) * w32, rounded to act. The norm is taken from the unrounded sum. 1.3
 */
typedef struct sl_rmsnorm_params {
    void *x;            /* [T][ld_x], updated only when add != NULL */
    const void *add;    /* [T][dim] or NULL */
    const void *weight; /* [dim] */
    void *out;          /* [T][dim] dense, or NULL when only the addition is wanted */
    int32_t tokens, dim, ld_x;
    float eps;
    sl_dtype act, weight_dtype;
    int32_t
        groups; /* 0, or the number of weights [groups][dim] that rows take in turn; then tokens are rows, and add is NULL */
} sl_rmsnorm_params;

/*
 * out = x * w^T. With fp8_acts and a weight of 8 or 4 bits (sl_weight_takes_e4m3) the input is quantised per token and 128
 * inputs, and per 128 inputs, or per group of the weight if that is shorter, acc += dot * (s_x * s_w) (1.3). Otherwise
 * such weights are code * multiplier in float32. fp8_acts with another weight is ignored: each weight decides by itself. next: a further layer with the same x (x, tokens,
 * ld_x and act are equal); the results are as if it were called by itself; outputs do not overlap.
 */
typedef struct sl_linear_params {
    const void *x; /* [T][ld_x] */
    sl_weight w;
    void *out; /* [T][ld_out] of out_dtype */
    int32_t tokens, ld_x, ld_out;
    bool fp8_acts;
    sl_dtype act, out_dtype;
    const struct sl_linear_params *next; /* or NULL; at most SL_LINEAR_CHAIN in all */
} sl_linear_params;
#define SL_LINEAR_CHAIN 4

/*
 * Queries into latent space (1.5): RoPE (interleaved pairs) on the last `rope` of each head, then the
 * no-position part times W_UK: ql[t][h] = [ q_nope[h] @ W_UK[h] (lora) | q_pe (rope) ]. kv_b rows: head h has
 * `nope` rows of W_UK then `v` of W_UV. q_pe is rounded to act after RoPE; a dequantised F8 kv_b is rounded
 * to act (absorption works on bf16 weights); the products stay float32. RoPE here and for k_pe leaves the
 * pairs interleaved.
 */
typedef struct sl_q_absorb_params {
    const void *q;        /* [T][H][nope + rope] */
    sl_weight kv_b;       /* [H * (nope + v)][lora] */
    const int32_t *pos;   /* [T] */
    const float *cos_sin; /* [max_pos][rope/2][2] */
    void *ql;             /* [T][H][lora + rope] float32 */
    int32_t tokens, heads, nope, rope, v, lora;
    sl_dtype act;
} sl_q_absorb_params;

/* out[t][h] = o[t][h] @ W_UV[h]^T : [T][H][lora] float32 -> [T][H][v] act; F8 kv_b as in q_absorb. 1.5 */
typedef struct sl_v_up_params {
    const float *o;
    sl_weight kv_b;
    void *out;
    int32_t tokens, heads, nope, v, lora;
    sl_dtype act;
} sl_v_up_params;

/*
 * New cache rows (1.5, 3.1): c = rmsnorm(kv[:lora]) * norm, k_pe = rope(kv[lora:]) interleaved; encoded in
 * `format`; written to the device (row pool page, or tail row of a hierarchical sequence) and to the host
 * arena, byte for byte the same. c and k_pe are rounded to act before encoding. Of a hierarchical sequence's
 * tokens only the last tail_rows reach the tail.
 */
typedef struct sl_kv_append_params {
    const void *kv;   /* [T][ld_kv]: lora | rope */
    const void *norm; /* [lora] */
    const float *cos_sin;
    const sl_seq_tables *seqs; /* host struct of device arrays */
    sl_row_view rows;
    sl_host_plane host; /* base NULL: do not write to the host */
    int32_t ld_kv, lora, rope;
    float eps;
    sl_row_format format;
    sl_dtype act, norm_dtype;
} sl_kv_append_params;

/*
 * New index keys (1.6): LayerNorm(k) (weight, bias, eps), or without a bias the RMS norm (k * rsqrt(mean(k^2) + eps)) * weight,
 * RoPE on the first `rope` of dim (half-split, or
 * interleaved when `interleaved`), then by `format`: plain -> f32[dim]; official -> Hadamard, e4m3 + f32
 * scale. A block of a page is 64 keys, then (official) 64 f32 scales. Written to the device index pool and to
 * the host arena. Rounding: plain, none but the input's own act (after LayerNorm and after RoPE rounded to
 * act). Official: input, LayerNorm result, RoPE result and Hadamard result are each rounded to bf16, whatever
 * act is; the Hadamard runs its butterflies in float32, stride 1 first (a+b, a-b), then * (float)dim^-0.5;
 * dim must be a power of two. Groups of min(128, dim) share a scale: dim <= 128.
 */
typedef struct sl_index_append_params {
    const void *k;                       /* [T][ld_k] */
    const void *norm_weight, *norm_bias; /* [dim]; norm_bias NULL: RMS norm */
    const float *cos_sin;
    const sl_seq_tables *seqs;
    uint8_t *index_base; /* device pool of this layer: page p at index_base + p * index_page_stride */
    int64_t index_page_stride;
    sl_host_plane host; /* row_stride unused: a block is contiguous */
    int32_t ld_k, dim, rope;
    bool interleaved;
    float eps;
    sl_index_format format;
    sl_dtype act, norm_dtype;
} sl_index_append_params;

/*
 * Index queries (1.6): RoPE as for the keys, then plain -> q f32; official -> Hadamard, e4m3 per head with
 * scale folded into the head weight. weights[t][h] = wproj[t][h] * H^-0.5 (* q scale when official) *
 * dim^-0.5, float32, left to right. Rounding points as in index_append (without the LayerNorm).
 */
typedef struct sl_index_query_params {
    const void *q;      /* [T][H][dim] act */
    const float *wproj; /* [T][H] */
    const int32_t *pos;
    const float *cos_sin;
    void *q_out;    /* [T][H][dim] f32 or e4m3 */
    float *weights; /* [T][H] */
    int32_t tokens, heads, dim, rope;
    bool interleaved;
    sl_index_format format;
    sl_dtype act;
} sl_index_query_params;

/*
 * scores[t][j] = k_scale[j] * sum_h relu(q[t][h] . k[j]) * weights[t][h] for j <= pos[t] (1.6); scores of later
 * keys are not written. Row t - token_first of scores belongs to token t; q and weights hold all T tokens.
 */
typedef struct sl_index_scores_params {
    const void *q;
    const float *weights;
    const sl_seq_tables *seqs;
    const uint8_t *index_base;
    int64_t index_page_stride;
    float *scores;                    /* [token_count][ld_scores] */
    int32_t token_first, token_count; /* slice of the step's tokens, to bound the workspace */
    int32_t heads, dim, ld_scores;
    sl_index_format format;
    /* NULL, or sl_topk_hint_bytes() of memory, in which a backend may record what makes the following top-k faster */
    void *hint;
} sl_index_scores_params;

/*
 * Exact top-k by (score descending, token ascending) over scores[t][0..pos[t]]; ids are written in ascending
 * token order (the canonical order of attention), padded with -1 up to ld_ids. pos + 1 <= k selects
 * everything. NaN scores rank below all others (among themselves by token); -0.0 equals 0.0.
 */
typedef struct sl_topk_params {
    const float *scores; /* [token_count][ld_scores] */
    const sl_seq_tables *seqs;
    int32_t *ids; /* [T][ld_ids], rows token_first.. are written */
    int32_t token_first, token_count, k, ld_scores, ld_ids;
    /*
     * The coordinator's gates, all 0 by default. The first `sinks` and the newest `recent` tokens of 0..pos
     * rank above all others, within k (sinks + recent <= k). A token with pos + 1 <= dense_below selects
     * everything, so up to max(k, dense_below) <= ld_ids ids are written and padded.
     */
    int32_t sinks, recent, dense_below;
    /*
     * Lists per token, 0 for one, and the blocks of 1 << block_log2 tokens that scores and ids stand for: with L lists,
     * scores is [token_count][L][ld_scores] and ids is [T][L][ld_ids], and a token at pos selects among blocks
     * 0..pos >> block_log2. The gates above stay numbers of tokens: a block is a sink or recent if one of its tokens
     * is.
     */
    int32_t lists, block_log2;
    /*
     * 0, or the share of the scores that a list needs, which are weights then; what is not above 0 counts as 0. Of the list by
     * the rules above those are written whose weights, added in the order of rank, reach `mass` times the sum of all weights
     * 0..pos, and no more of them; sinks and recent ones in any case, and at least one. pos + 1 <= k is no exception then, but
     * dense_below is. Weights are the whole numbers of kernels/mass.h.
     */
    float mass;
    /* NULL, or device [lists]: list h has at most k_of[h] entries, the best ones, but sinks and recent ones in any case, and at
     * least one. k stays the limit of all. As with mass, pos + 1 <= k is no exception, but dense_below is. */
    const int32_t *k_of;
    /* NULL, or the memory in which index_scores of this backend recorded its hint for the same tokens and
     * ld_scores. Its contents are private to the backend. It changes the time, not the result. */
    const void *hint;
} sl_topk_params;

typedef enum { SL_EVICT_LRU, SL_EVICT_CLOCK } sl_evict_policy;

/*
 * Residency of one layer's hot buffers. Device arrays, owned by the swap-in manager; initialised by SL_OP_HOT_RESET.
 * Where KV heads have rows of their own (sl_row_view), every head of a slot has a state of its own: hot_slots stands
 * for [slots][heads], hot_rows for the rows of one head. In rows of several tokens, "token" below stands for a block.
 */
typedef struct sl_hot_state {
    uint16_t *slot_of;     /* [hot_slots][max_tokens] LRU index of a token or 0xffff */
    int32_t *token_of;     /* [hot_slots][hot_rows] token of an LRU index or -1 */
    uint32_t *stamp;       /* [hot_slots][hot_rows] step of last use, 0 never; clock: bit 31 = referenced */
    uint16_t *prev, *next; /* [hot_slots][hot_rows + 1] LRU list; entry hot_rows is the sentinel (lru) */
    int32_t *cursor;       /* [hot_slots] clock hand (clock policy) */
    uint32_t *counters; /* [hot_slots][4]: hits, misses, evictions, tail hits; since the slot's last reset */
    int32_t max_tokens;
} sl_hot_state;

/*
 * Logical ids -> physical rows of sl_row_view. For resident sequences the rows are found through row_pages. For
 * hierarchical ones an id is a tail hit, a hot hit or a miss. For a miss, `policy` chooses a victim that is not selected
 * in this step, the maps are updated, and the row is put on the miss list.
 *
 * A run is what a step appends to one hierarchical sequence: at most SL_RUN_TOKENS_MAX tokens, which are neighbours in the
 * step and at consecutive positions. Its lists are resolved one after the other, but a row that one of them selects is
 * "in use" for the whole run: those that are hot before its first list is resolved, those that are missing from when they
 * are placed. So a row that several of them select is fetched once, and none is replaced that a later one needs. Needs tail_rows - tail_spare >= 1 and
 * hot_rows <= SL_HOT_ROWS_MAX, and hot_rows must hold the union of the run's lists without the tail hits (hot_rows >= k
 * times the tokens of a run always suffices).
 *
 * What follows is written for one list per token of rows of one token. With H lists (sl_row_lists()) ids and phys are
 * [T][H][ld_ids], and every list is resolved by itself against the rows and the residency of its KV head; hot_rows and
 * tail_rows below are then those of one head. In rows of several tokens an id and pos are numbers of blocks.
 *
 * Per token of a run in its order, with last the position of the run's last token:
 *
 * 1. An id > last - (tail_rows - tail_spare) is a tail hit: its row is tail row id % tail_rows, the hot state is not
 *    touched. So the tail must really hold these positions up to last; whoever admits a sequence fills it (SL_OP_GATHER
 *    with a list of its own). tail_spare rows of the tail are not read: tokens that were taken back have overwritten them.
 *
 * 2. An id with slot_of != 0xffff is a hit, the others are misses. A row in use is never a victim.
 *
 * 3. There are as many victims as misses; the m-th miss in ascending token order takes the m-th victim.
 *    Taking an LRU index whose token_of is not -1 counts as an eviction and sets slot_of of the old token to
 *    0xffff. The order of victims:
 *
 *    LRU: walking from the least recent entry (next[hot_rows]) to the most recent, every entry not in use.
 *    Then all entries in use move to the most recent end (prev[hot_rows]) in ascending token order.
 *    stamp = step for entries in use.
 *
 *    CLOCK: stamp = step | 1 << 31 for entries in use; step < 2^31. The hand starts at cursor and visits
 *    i, i + 1, ... mod hot_rows: an entry in use is passed; one with bit 31 has it cleared and is passed;
 *    else it is a victim. The hand stops immediately after the last victim, within two turns; it does not move
 *    when nothing missed. cursor = hand. Entries in use are marked before the hand moves, new rows as they
 *    are placed. (In parallel: victims are first the entries not in use without bit 31 in hand order, then
 *    those with it; every entry passed and not in use loses the bit.)
 *
 * 4. phys keeps the order of ids; -1 beyond the end, up to ld_ids.
 *
 * After a reset the LRU list is 0, 1, ... hot_rows - 1 from least to most recent and the hand is at 0.
 *
 * The counters count entries of lists; only misses are rows that are fetched. The miss list holds each token's misses in
 * ascending order of miss_src; the order of the tokens is not specified. More misses than miss_cap is SL_ERR_EXHAUSTED;
 * a run of more than SL_RUN_TOKENS_MAX tokens, or of several with block_need, is SL_ERR_UNSUPPORTED; the hot state of
 * the slots concerned is then undefined until SL_OP_HOT_RESET.
 *
 * For attention that runs concurrently with the gather (sl_sparse_attn_params): block_need[t * ld_blocks + b]
 * becomes the number of misses among ids 64 b .. 64 b + 63 of token t, block_done an array of zeros of the
 * same shape, and miss_block names the block of each miss. The first two are NULL when the attention waits for
 * all rows, and miss_block may be.
 */
typedef struct sl_swap_clock sl_swap_clock;

typedef struct sl_resolve_params {
    const int32_t *ids; /* [T][ld_ids], -1 padded, ascending */
    int32_t *phys;      /* [T][ld_ids], -1 padded, same order */
    const sl_seq_tables *seqs;
    sl_row_view rows;
    sl_hot_state hot;
    int64_t
        *miss_src; /* [miss_cap] host row number: (page * B + block in page) * H + head, see sl_row_view */
    int32_t *miss_dst;   /* [miss_cap] physical row */
    int32_t *miss_count; /* [1] */
    int32_t miss_cap, k, ld_ids;
    int32_t tail_spare; /* rows of the tail, of one head, that are not read; below tail_rows */
    /* Device [1]: ascending, never 0, below 2^31 with clock. It is a pointer so that a step can be a captured
     * graph. */
    const uint32_t *step;
    sl_evict_policy policy;
    int32_t *block_need, *block_done; /* [T][ld_blocks] or NULL */
    int32_t *miss_block;              /* [miss_cap] index into block_need, or NULL */
    int32_t ld_blocks;                /* at least sl_list_blocks(k) */
    sl_swap_clock *clock;             /* of the gather that follows; NULL: not measured */
} sl_resolve_params;

/*
 * How long the gathers that share this clock took, measured on the device. Its owner sets it to zero once.
 * SL_OP_RESOLVE starts a measurement, SL_OP_GATHER ends it and adds to the sums; the fields after the sums are
 * private to these ops. Times are nanoseconds of the device's clock.
 */
struct sl_swap_clock {
    /* Sums of nanoseconds. taken: from the beginning of a gather, or from the time at which a stream began to wait for
     * it if that was earlier, to its end. waited: the part of this time during which the stream waited. */
    uint64_t taken, waited;
    uint64_t asked, begun, ended;
    uint32_t left, unused; /* thread blocks that have ended */
};

/*
 * Checksums with which a gather compares the rows that it copies (kernels/rowsum.h). The owner of the rows writes sums, also
 * while the gather runs, but never those of a row that changes: a row is checked against the sum that it has or against
 * none. A row that differs is copied all the same; its page is marked, and the owner of the step reads the marks when the
 * step has completed and delivers nothing that was computed from this page.
 */
typedef struct sl_row_check {
    const uint32_t *
        sums; /* host memory: [host rows][sl_rowsum_parts(row_bytes)], 0: no checksum; NULL: nothing is compared */
    uint32_t
        *pages; /* device: bit p of the bitmap becomes 1 when a row of host page p differs; never 0 again */
    uint32_t *any; /* device-accessible host memory: becomes 1 together with a bit */
} sl_row_check;

/* Bytes of the bitmap of this number of pages. */
static inline uint64_t sl_row_marks_bytes(int64_t n_pages)
{
    return (uint64_t)(n_pages / 32 + 1) * sizeof(uint32_t);
}

/*
 * rows[miss_dst[i]] = host row miss_src[i], i < min(*miss_count, miss_cap). Row = row_bytes bytes. With
 * block_done, block_done[miss_block[i]] is incremented when row i can be read; the next op in the
 * stream may then be an attention that waits for blocks.
 */
typedef struct sl_gather_params {
    sl_row_view rows;
    sl_host_plane host;
    const int64_t *miss_src;
    const int32_t *miss_dst;
    const int32_t *miss_count;
    int32_t miss_cap;
    const int32_t *miss_block; /* with block_done */
    int32_t *block_done;       /* or NULL */
    sl_swap_clock *clock;      /* or NULL */
    /*
     * With clock, for a gather on the side stream. reached: when the main stream reached its wait for this gather,
     * if it has (sl_be_stamp); NULL: the main stream waits for the whole gather. in_front: the measurement of the
     * previous gather on the side stream; NULL: there was none since resolve.
     */
    const uint64_t *reached;
    const sl_swap_clock *in_front;
    sl_row_check check;
} sl_gather_params;

/* Forgets all hot rows of one slot of one layer, or of all slots when slot < 0. */
typedef struct sl_hot_reset_params {
    sl_hot_state hot;
    int32_t slot, hot_slots, hot_rows;
} sl_hot_reset_params;

/*
 * Sparse MLA (1.5): s[h][j] = scale * ql[t][h] . row_j (lora + rope), softmax over the selected rows in list
 * order, in blocks of 64 rows with a running maximum, o = sum p * c_j. Rows are decoded from `format`. A -1
 * entry ends the list, and all entries after it are -1 too (at most k are read); an empty list gives 0. So
 * the bits of o depend on the list's order and the rows' bytes only, in decode as in prefill.
 *
 * With block_need and block_done (of SL_OP_RESOLVE) rows may still be in flight: block b of token t is read
 * when block_done[t * ld_blocks + b] has reached block_need[..]. The op must then follow directly after the
 * SL_OP_GATHER that counts these blocks; it runs concurrently with the gather if the backend can, and
 * completes only after it.
 */
typedef struct sl_sparse_attn_params {
    const float *ql;     /* [T][H][lora + rope] */
    const int32_t *phys; /* [T][ld_ids] */
    sl_row_view rows;
    float *o; /* [T][H][lora] */
    int32_t tokens, heads, lora, rope, k, ld_ids;
    float scale;
    sl_row_format format;
    const int32_t *block_need, *block_done; /* [T][ld_blocks] or NULL */
    int32_t ld_blocks;
    /* [H] or NULL: a logit of each head that takes part in the softmax after the last row, is not scaled and has no value.
     * An empty list gives 0 with it too. */
    const float *sinks;
} sl_sparse_attn_params;

/*
 * The variants of a gated MLP's activation. With g = min(gate, limit) and u = up within -limit and limit:
 * g / (1 + exp(-alpha * g)) * (u + offset). Zeros stand for no limit, alpha 1 and no offset: silu(gate) * up.
 */
typedef struct sl_glu {
    float limit, alpha, offset;
} sl_glu;

/* out = silu(gate) * up, or a variant, in float32, rounded to act : [T][dim] each; gate and up may be halves of one
 * matrix (ld). */
typedef struct sl_silu_mul_params {
    const void *gate, *up;
    void *out;
    int32_t tokens, dim, ld_in, ld_out;
    sl_dtype act;
    sl_glu glu;
} sl_silu_mul_params;

/* What a router makes of its logits, in float32. */
typedef enum {
    SL_ROUTE_SIGMOID,
    SL_ROUTE_SOFTMAX,       /* over all experts */
    SL_ROUTE_SQRT_SOFTPLUS, /* sqrt(ln(1 + e^x)) */
} sl_route_score;

/*
 * Router (1.5): s = sigmoid(logits), or another score; c = s + bias. Group score = sum of its two largest c (of one, if a group
 * has one expert); the top_groups best groups stay, of their experts the top_k best c. Ties: smaller index.
 * weights = s / sum of the chosen s (if normalise, summed in ascending expert order) * scale. groups <= 1: no
 * groups. With a table the experts of a token are those of the row of its id, whatever their scores, and there are no groups;
 * an expert that is there twice has two weights.
 */
typedef struct sl_moe_route_params {
    const float *logits;  /* [T][experts] */
    const float *bias;    /* [experts] or NULL */
    int32_t *experts_out; /* [T][top_k] ascending expert id */
    float *weights_out;   /* [T][top_k] */
    int32_t tokens, experts, groups, top_groups, top_k;
    bool normalise;
    bool
        zero_refused; /* experts of the other groups stay, with c = 0, so one of them may be chosen before a negative c */
    float scale;
    sl_route_score score;
    const int32_t *table; /* [vocab][top_k] experts; NULL and vocab 0: experts are chosen by scores */
    const int32_t *ids;   /* [T], each in [0, vocab); with a table */
    int32_t vocab;
} sl_moe_route_params;

/*
 * Routed experts: out[t] = sum over chosen e (ascending id) of weight * down_e(silu(gate_e x) * up_e x),
 * or a variant (sl_glu), float32, one cast to act. Results of gate, up, their product and down are each rounded to act, as if by
 * SL_OP_LINEAR and SL_OP_SILU_MUL. An expert id of -1 adds nothing. Experts that no token chose are not read.
 */
typedef struct sl_moe_params {
    const void *x;
    const int32_t *expert_ids;         /* [T][top_k] */
    const float *weights;              /* [T][top_k] */
    const sl_weight *gate, *up, *down; /* host arrays of `experts` entries */
    void *out;                         /* [T][hidden] */
    void *workspace;                   /* at least sl_moe_workspace_bytes() */
    size_t workspace_bytes;
    int32_t tokens, hidden, inter, experts, top_k;
    bool fp8_acts;
    sl_dtype act;
    sl_glu glu;
} sl_moe_params;

/* x += y in float32, rounded to act : [T][dim]. */
typedef struct sl_add_params {
    void *x;
    const void *y;
    int32_t tokens, dim;
    sl_dtype act;
} sl_add_params;

/* out[i] = x[rows[i]]: takes the rows of the last positions, before the model's head. */
typedef struct sl_pick_params {
    const void *x;
    const int32_t *rows; /* [n] */
    void *out;           /* [n][dim] */
    int32_t n, dim;
    sl_dtype act;
} sl_pick_params;

/* In this order: bytes of one latent row (0 for other rows), of one 64-key index block, of one element. Pure. */
int64_t sl_row_bytes(sl_row_format f, int32_t lora, int32_t rope);
int64_t sl_index_block_bytes(sl_index_format f, int32_t dim);
size_t sl_dtype_size(sl_dtype d); /* 0 for a half-byte type: ask for the bytes of an even number of them */
int64_t sl_dtype_bytes(sl_dtype d, int64_t n);
/* Bytes of the hint that index_scores passes to topk; enough for every backend. Pure. */
size_t sl_topk_hint_bytes(int32_t token_count, int32_t ld_scores);
/* Enough for every backend; 0 when a product overflows or an argument is not positive. */
size_t sl_moe_workspace_bytes(int32_t tokens, int32_t hidden, int32_t inter, int32_t experts, int32_t top_k);

#endif
