/*
 * Parameters of the ops of attention over a window of the last tokens and compressed entries (DeepSeek-V4). The conventions are
 * those of kernels/params.h.
 *
 * An entry stands for `rate` consecutive tokens, and exists from the last of them on: token pos sees the entries 0 ..
 * (pos + 1) / rate - 1. Entry w is in the page of its last token. A page has room for sl_entries_per_page() entries, those that
 * end in it in their order, each of dim values; what has no entry yet is zero. A window row is the vector of a token, which is
 * key and value at once, and lies in a ring: that of position p in place p % window of the sequence's state.
 *
 * What a step computes is read from the step, and the state holds what was before it. So SL_OP_RING_STORE comes after the
 * attention that reads the ring.
 */
#ifndef SL_KERNELS_ENTRIES_H
#define SL_KERNELS_ENTRIES_H

#include "kernels/params.h"

/* Most entries that end in one page. */
static inline int32_t sl_entries_per_page(int32_t rate)
{
    return rate % SL_PAGE_TOKENS == 0 ? 1 : (SL_PAGE_TOKENS + rate - 1) / rate;
}
/* The page of the request in which entry w ends, and its place there. */
static inline int32_t sl_entry_page(int32_t w, int32_t rate, int32_t *place)
{
    int32_t page = (int32_t)((((int64_t)w + 1) * rate - 1) / SL_PAGE_TOKENS);
    *place = w - (int32_t)((int64_t)page * SL_PAGE_TOKENS / rate);
    return page;
}

/* Entries of a layer on the device: page p at base + p * page_stride. */
typedef struct sl_entries_view {
    const uint8_t *base;
    int64_t page_stride;
    int32_t rate, dim;
    sl_dtype dtype; /* SL_F32 or SL_BF16 */
} sl_entries_view;

/* Bytes of the part of a sequence's state in which SL_OP_ENTRIES_APPEND keeps what is not an entry yet. */
static inline int64_t sl_entries_open_bytes(int32_t rate, int32_t dim, bool overlap)
{
    return 4 * (int64_t)dim * (overlap ? 2 * rate * 4 : 3);
}

/*
 * Heads of a token: their norm, and the rotation of the last `rope` of their values as neighbouring pairs.
 *   v = x * rsqrt(mean(x^2) + eps) * norm, rounded to act; without eps v = x, without norm it counts as 1
 *   out = v with the last `rope` values rotated by the angle of the position, or by its negative with `back`; rounded to act,
 *   then to out_dtype
 */
typedef struct sl_head_rotate_params {
    const void *x;        /* [T][ld_x]: heads * dim */
    void *out;            /* [T][heads][dim]; may be x if the dtypes are equal and x is dense */
    const void *norm;     /* [dim] or NULL */
    const int32_t *pos;   /* [T] */
    const float *cos_sin; /* [max_pos][rope/2][2] */
    int32_t tokens, heads, dim, rope, ld_x;
    float eps; /* 0: no norm */
    bool back;
    sl_dtype act, out_dtype, norm_dtype;
} sl_head_rotate_params;

/*
 * The entries that end with tokens of the step. Of each token kv and gate have n = dim values, with overlap 2 * dim. bias row j is
 * added to the gates of the j-th token of an entry. For each channel c of the dim:
 *   without overlap: weights = softmax of the gates [c] over the entry's tokens; sum of weights * kv[c]
 *   with overlap:    the same over the channel dim + c of the entry's tokens, and c of the tokens of the entry before; entry 0
 *                    has its own alone. The bias of a token is that of its place in its own entry.
 * Then RMS norm with `norm`, rotation of the last `rope` values by the position of the entry's first token, rounded to `dtype`, to
 * the device and to the host. All in float32, in the order of tokens, with a running maximum without overlap.
 *
 * open is a part of the sequence's state: without overlap [3][dim] maximum, sum of weights, sum of products of the tokens of the
 * open entry; with overlap [2 * rate][2][2 * dim] kv and gate + bias of the last tokens, in place pos % (2 * rate). A token
 * that is the first of a page makes the page's entries zero, so that a page is the same whoever used it before.
 *
 * With rows.base, entries are rows of that view (params.h) on the device, as rows of tokens are: those of resident sequences by
 * row_pages, of hierarchical ones in the tail. Then rate is 1 << rows.block_log2, and device is not used.
 */
typedef struct sl_entries_append_params {
    const float *kv, *gate; /* [T][n] */
    const float *bias;      /* [rate][n] */
    const void *norm;       /* [dim] */
    const float *cos_sin;
    const sl_seq_tables *seqs;
    uint8_t *open; /* of sequence s at open + s * open_stride */
    int64_t open_stride;
    uint8_t *device; /* page p at device + p * device_stride */
    int64_t device_stride;
    sl_host_plane host; /* row_stride: bytes between the entries of a page */
    sl_row_view rows;   /* base NULL: entries are in device pages */
    int32_t dim, rope, rate;
    bool overlap;
    float eps;
    sl_dtype dtype, norm_dtype;
} sl_entries_append_params;

/*
 * scores[t][w] = sum over h of weights[t][h] * relu(q[t][h] . entry w), for the entries that token t sees. For SL_OP_TOPK, whose
 * tokens are entries then: seen_seq[t] = the token's sequence and seen_pos[t] = its entries - 1, or -1 and 0 if it sees none.
 */
typedef struct sl_entry_scores_params {
    const float *q;       /* [T][heads][dim] */
    const float *weights; /* [T][heads] */
    const sl_seq_tables *seqs;
    sl_entries_view entries;
    float *scores;                    /* [token_count][ld_scores] */
    int32_t *seen_seq, *seen_pos;     /* [T], of tokens token_first .. */
    int32_t token_first, token_count; /* slice of the step's tokens */
    int32_t heads, ld_scores;
} sl_entry_scores_params;

/*
 * Attention of every head over the window rows of positions pos - window + 1 .. pos and then over entries, in one softmax with the
 * logit `sinks` of the head: s = scale * q . row, o = sum of p * row. The rows are added in this order, in blocks of 64 with a
 * running maximum. Rows of the step are read from kv, earlier ones from the ring. Entries are those of `ids`, or all that
 * the token sees; rate 0: none. With phys, the i-th of the list is row phys[i], and entries.base is not read. A padding token gets 0.
 */
typedef struct sl_ring_attn_params {
    const void *q;  /* [T][heads][dim] act */
    const void *kv; /* [T][dim] of the ring's dtype */
    const sl_seq_tables *seqs;
    const uint8_t *ring; /* of sequence s at ring + s * ring_stride: [window][dim] */
    int64_t ring_stride;
    sl_entries_view entries; /* the dtype is that of the ring, too */
    const int32_t *ids;      /* [T][ld_ids] entries, ascending, -1 padded; NULL: all */
    const int32_t *phys; /* NULL, or as ids: where they are (SL_OP_RESOLVE), row r at rows + r * dim values */
    const uint8_t *rows;
    const float *sinks; /* [heads] */
    void *out;          /* [T][heads][dim] act */
    int32_t tokens, heads, dim, window, k, ld_ids;
    float scale;
    sl_dtype act;
} sl_ring_attn_params;

/* The window rows of the step's tokens into the rings, but those that later tokens of the step overwrite. */
typedef struct sl_ring_store_params {
    const void *kv; /* [T][dim] */
    const sl_seq_tables *seqs;
    uint8_t *ring;
    int64_t ring_stride;
    int32_t window, dim;
    sl_dtype dtype;
} sl_ring_store_params;

#endif
