/*
 * Grouped-query attention: the parameters of its ops, and the rows that they keep. The conventions are those of
 * kernels/params.h, and the ops belong to sl_op as the others do.
 *
 * g = heads / kv_heads query heads share one KV head: query head h reads KV head h / g. Any g and any even head
 * dimension are possible.
 *
 * A row is what a block of consecutive tokens keeps in one layer, for all KV heads together or for one (sl_row_view).
 * Its slots are the block's tokens, within a token its heads:
 *
 *   gqa_f32   k f32 [slots][dim]  | v f32 [slots][dim]
 *   gqa_bf16  k bf16 [slots][dim] | v bf16 [slots][dim]
 *   gqa_fp8   k e4m3 [slots][dim] | v e4m3 [slots][dim] | scale of k f32 [slots] | scale of v f32 [slots]
 *
 *   rows                          row_scope and row_tokens of sl_cache_dims   slots of a row
 *   of one token, all heads       REQUEST, 1                                  kv_heads
 *   of 16 tokens, by KV head      KV_HEAD, 16                                 16
 *   of 16 tokens, all heads       REQUEST, 16                                 16 * kv_heads
 *
 * A row is filled up with zeros to a multiple of 16 bytes (SL_ROW_ALIGN), so that it travels over the link and into shared
 * memory in whole lines: a gqa_fp8 row of one KV head with 128 channels has 272 bytes, of which 264 are in use. A slot 0 that
 * is written writes the zeros.
 *
 * Keys are stored as attention multiplies them: after bias, norm and RoPE. The scales of gqa_fp8 are powers of two, one
 * per token, head and side (sl_scale_row).
 *
 * Both backends have these ops; attention of the CUDA backend is for groups of at most 16 query heads.
 */
#ifndef SL_KERNELS_GQA_H
#define SL_KERNELS_GQA_H

#include "kernels/params.h"

/* One head, in this order: y = x + bias, rounded to act; with a norm y = (y * rsqrt(mean(y^2) + eps)) * norm, rounded
 * to act; RoPE of the first `rope` values, or of all dim values, in halves (i, i + rope / 2), rounded to act. */
typedef struct sl_gqa_head_params {
    const float *bias;    /* [heads][dim] or NULL */
    const float *norm;    /* [dim] or NULL */
    const float *cos_sin; /* [max_pos][rope / 2][2] */
    float eps;            /* read with a norm only */
    int32_t rope;         /* 0: all of a head; even, at most dim */
} sl_gqa_head_params;

static inline int32_t sl_gqa_rope(const sl_gqa_head_params *p, int32_t dim)
{
    return p->rope ? p->rope : dim;
}

/* Queries: out[t][h] = the head as above. out may be q. */
typedef struct sl_gqa_query_params {
    const float *q; /* [T][heads][dim] as projected, not rounded */
    sl_gqa_head_params head;
    const int32_t *pos; /* [T] */
    float *out;         /* [T][heads][dim] */
    int32_t tokens, heads, dim;
    sl_dtype act;
} sl_gqa_query_params;

/* New cache rows: keys as above, values v + v_bias rounded to act; encoded in `format` and written as SL_OP_KV_APPEND
 * writes its rows: to the device row (pool page or tail) and, byte for byte the same, to the host arena. */
typedef struct sl_gqa_append_params {
    const float *k, *v; /* [T][heads][dim] as projected, not rounded */
    sl_gqa_head_params key;
    const float *v_bias; /* [heads][dim] or NULL */
    const sl_seq_tables *seqs;
    sl_row_view rows;
    sl_host_plane host; /* base NULL: do not write to the host */
    int32_t heads, dim; /* KV heads */
    sl_row_format format;
    sl_dtype act;
} sl_gqa_append_params;

/*
 * Attention over lists of rows: s[h][j] = scale * q[t][h] . k_j, softmax over the tokens of the listed rows in list
 * order, 64 tokens at a time with a running maximum, out = sum p * v_j, rounded to act. A -1 entry ends the list, and
 * all entries after it are -1 too (at most k are read); an empty list gives 0. The bits depend on the list's order and
 * the rows' bytes only. Dense causal attention is this op with the lists of all blocks 0..pos >> block_log2, and its
 * bits do not depend on how tokens and heads are divided into rows.
 *
 * Where KV heads have rows of their own, each has a list of its own, phys and ids are [T][kv_heads][ld_ids], and the
 * query heads of a group attend over the list of their KV head. Of a row of several tokens those after pos are not
 * read.
 *
 * With skip_factor > 0, tokens at positions pos >= skip_from with pos + 1 > skip_factor leave out tiles (the 64 tokens
 * that are added at a time): those in which for every query head of the group the largest s is below the maximum before the
 * tile by more than ln((pos + 1) / skip_factor). Then the tile's values are not read, and its weights are 0 (BLASST, arXiv
 * 2512.12087). The first tile is never left out. tiles[0] grows by the number of tiles of such tokens and KV heads,
 * tiles[1] by those that were left out.
 *
 * With seqs there are no lists: token t attends to everything before it, that is, to all blocks 0..pos >> block_log2 of
 * its sequence in the row pool (row_pages), at most k of them. phys, ids, pos and ld_ids are not read; a padding token
 * gives 0. The sequences are resident: hot_slot is not read. The bits are those of the same blocks as lists, unless a
 * key or a value of a later token of the step is not finite.
 *
 * With prompt.of, which needs seqs, token t attends to the pages of list prompt.of[t], by KV head, and not to those between
 * them: pages are blocks of 64 tokens of its sequence, ascending, -1 padded, the last one is that of its own position, whose
 * later tokens it does not see. prompt.of[t] < 0: everything before it. The bits are those of a sequence that has only these
 * pages; lists of all pages give those without lists. Tokens of one list are neighbours in the step.
 */
typedef struct sl_gqa_prompt_lists {
    const int32_t *of;    /* [T] list of a token, or -1; NULL: there are no lists */
    const int32_t *pages; /* [lists][kv_heads][ld] */
    int32_t ld;
} sl_gqa_prompt_lists;

typedef struct sl_gqa_attn_params {
    const float *q;      /* [T][heads][dim], values that act can represent */
    const int32_t *phys; /* [T][ld_ids], see above */
    const int32_t *ids;  /* the blocks of phys, same shape; read for rows of several tokens only */
    const int32_t *pos;  /* [T]; read for rows of several tokens, and with skip_factor */
    sl_row_view rows;
    void *out; /* [T][heads][dim] act */
    int32_t tokens, heads, kv_heads, dim, k, ld_ids;
    float scale;
    sl_row_format format;
    sl_dtype act;
    float skip_factor; /* 0: nothing is left out */
    int32_t skip_from;
    uint64_t *tiles;           /* [2] device; read with skip_factor only */
    const sl_seq_tables *seqs; /* of the same tokens, host struct of device arrays; NULL: the lists of phys */
    sl_gqa_prompt_lists prompt;
} sl_gqa_attn_params;

/*
 * How much 64 neighbouring tokens of a prompt attend to each page before them, estimated from every 16th diagonal of the
 * products (XAttention, arXiv 2503.16428). The tokens first[i] .. first[i] + 63 of the step are those of page b of a sequence. With
 * strips of 16 tokens, and c = 4 b + 3 the last strip of these tokens, strip m (0..3) of the queries and strip j of the keys have
 *
 *   a[h][m][j] = scale / 16 * sum over r = 0..15 of q[64 b + 16 m + r][h] . k[16 j + 15 - r]       j <= 4 b + m
 *
 * and the score of page p <= b for KV head v is the sum, over the query heads h of v, over m, and over the strips j of p, of the
 * softmax over j of a[h][m]. So the scores of a list sum to 4 * heads / kv_heads. scores of later pages are not written.
 */
enum { SL_PROMPT_STRIP = 16 };
typedef struct sl_prompt_scores_params {
    const float *q; /* [T][heads][dim], values that act can represent */
    const sl_seq_tables *seqs;
    const int32_t *first; /* [n] device: index in the step of the first token of each block of 64 */
    sl_row_view rows;     /* of resident sequences: row_pages */
    float *scores;        /* [n][kv_heads][ld_scores] */
    int32_t n, heads, kv_heads, dim, ld_scores;
    int32_t
        max_pos; /* largest position of these tokens; it bounds scratch memory and shapes, and changes no score */
    float scale;
    sl_row_format format;
} sl_prompt_scores_params;

/* Of a model with kv_heads KV heads: the heads in one row, and the slots of a row. Pure. */
static inline int32_t sl_gqa_row_heads(const sl_row_view *r, int32_t kv_heads)
{
    return r->heads > 0 ? 1 : kv_heads;
}
static inline int32_t sl_gqa_row_slots(const sl_row_view *r, int32_t kv_heads)
{
    return sl_gqa_row_heads(r, kv_heads) << r->block_log2;
}
/* Bytes of a row; 0 for a format of another kind of attention. Pure. */
int64_t sl_gqa_row_bytes(sl_row_format f, int32_t slots, int32_t dim);
/* Host code: encodes keys and values, each [count][dim], into slots first .. first + count - 1 of a row; decodes one
 * slot. */
void sl_gqa_row_encode(sl_row_format f, int32_t slots, int32_t dim, int32_t first, int32_t count,
                       const float *k, const float *v, uint8_t *row);
void sl_gqa_row_decode(sl_row_format f, int32_t slots, int32_t dim, const uint8_t *row, int32_t slot,
                       float *k, float *v);
/* The key or the value of a slot alone. */
void sl_gqa_key_decode(sl_row_format f, int32_t slots, int32_t dim, const uint8_t *row, int32_t slot,
                       float *k);
void sl_gqa_value_decode(sl_row_format f, int32_t slots, int32_t dim, const uint8_t *row, int32_t slot,
                         float *v);

#endif
