/*
 * Scratch memory of ops on CUDA: what an op asks of the backend for temporary operands, by its parameters. Every op that asks for
 * any states it here (sl_op_scratch): the launchers take what these functions say, the memory plan takes the most of all ops
 * of its steps (engine/scratch.h), and a backend whose scratch is planned (sl_be_scratch) refuses an op that states more.
 * Pure.
 */
#ifndef SL_KERNELS_SCRATCH_H
#define SL_KERNELS_SCRATCH_H

#ifdef __cplusplus
#define _Noreturn [[noreturn]] /* as in kernels/cuda/instance.h, which may be included later */
extern "C" {
#endif

#include "kernels/paths.h"
#include "kernels/codes.h"
#include "kernels/labels.h"
#include "kernels/retained.h"
#include "kernels/window.h"

/* The most that an op with these parameters asks for on this GPU, whichever of its multiprocessors are left to it; 0: the op needs
 * none. The parameters have passed sl_op_check_shape(). */
size_t sl_op_scratch(const sl_gpu *g, sl_op op, const void *params);
/* The same of the ops that select, whose statements no GPU changes; 0 for others. scratch_select.c */
size_t sl_select_scratch(sl_op op, const void *params);

/* ---- products ---- */

/* SL_LINEAR_*: x as fp8 with scales, and outputs of padded tokens (out 0: of own kernels, which write none). */
size_t sl_linear_scratch(int64_t tokens, int64_t in, int64_t out);
enum {
    SL_LINEAR_NARROW_FEW = 128
}; /* SL_LINEAR_NARROW: up to this many tokens are cut, and their sums fit there */
/* Routed experts whose pairs are sorted into rows, in tiles of up to `tile` rows of an expert: rows, tiles and the distance of
 * scales, and bytes: of the inputs, of silu(gate) * up, of the scales of both, and of all with the lists. size: bytes of a value. */
typedef struct sl_moe_rows_size {
    int64_t rows, tiles, ld, x, mid, xs, ms;
    size_t bytes;
} sl_moe_rows_size;
sl_moe_rows_size sl_moe_rows_size_of(int tile, int64_t tokens, int top_k, int experts, int64_t hidden,
                                     int64_t inter, int size);
enum {
    SL_MOE_WIDE = 128,
    SL_MOE_NARROW = 32
}; /* rows of a tile: of the grouped paths, and of those of few tokens */
/* The most that a path with such rows asks for, whichever tiles it has. */
size_t sl_moe_grouped_scratch(int64_t tokens, int top_k, int experts, int64_t hidden, int64_t inter,
                              int size);
/* Rows that arrived from other ranks: the lists of their choices; with floats the results that a path keeps as float32, after
 * them. Each a multiple of 256 bytes. */
size_t sl_ep_lists_bytes(int64_t pairs);
size_t sl_ep_floats_bytes(int64_t pairs, int64_t hidden, int64_t inter);
enum {
    SL_EP_FUSED_TOKENS = 512
}; /* SL_OP_EP_SEND: up to this many are placed by the kernel that writes them */
size_t sl_ep_send_scratch(int32_t tokens, int32_t ranks);
size_t sl_ep_sum_scratch(int32_t tokens, int32_t top_k);
/* A weight of SL_OP_Q_ABSORB or SL_OP_V_UP as bf16; 0: it is already. A multiple of 256. */
size_t sl_absorb_scratch(const sl_weight *w);

/* ---- attention ---- */

enum { SL_GQA_SEGMENT = 512 }; /* tokens of a list that are added before they are merged */

/* Into how many units the list of `list_tokens` tokens of a token and KV head is cut: its segments, or 1 where whole lists
 * occupy the device nearly as well, which saves the second kernel and look-ups of lists. The unit of the times that are
 * compared is that of a segment. */
int sl_gqa_parts(int sms, int64_t tokens, int kv_heads, int64_t list_tokens);
/* The partial sums of SL_GQA_DECODE; 0: there is one part. */
size_t sl_gqa_decode_scratch(int sms, int64_t tokens, int heads, int kv_heads, int dim, int64_t list_tokens);
/* SL_GQA_PROMPT: the tiles of the step, a multiple of 256 bytes; and the sums that a thread block keeps of wide heads. */
enum { SL_GQA_PROMPT_ROWS = 64 }; /* queries of a warpgroup */
size_t sl_gqa_prompt_tiles(int64_t tokens);
size_t sl_gqa_prompt_sums(int sms, int dim);
/* SL_ATTN_TENSOR, SL_RING_TENSOR: partial sums of SL_MLA_HEADS heads for each thread block. */
enum { SL_MLA_HEADS = 64, SL_MLA_LORA = 512 };
size_t sl_mla_scratch(int sms);

/* ---- selection: the products of some tokens at a time ---- */

#define SL_SCRATCH_SLICE ((size_t)64 << 20) /* of products that are kept at once, unless one token has more */
enum { SL_SLICE_TOKENS = 4096 };            /* and at most this many tokens */

/* How many of `all` tokens, of `each` bytes, are worked on at a time; at least 1. */
int32_t sl_slice_of(size_t each, int32_t all);
/* The most bytes of these for any number of tokens up to `all`, and any bytes of a token up to `each`. */
size_t sl_slices_most(size_t each, int32_t all);
/* Of a token whose query heads have ld products each: these, and their sum as a double. */
size_t sl_raw_scratch(int32_t heads, int32_t ld);
/* Of a token: the places of the products of its heads (SL_GROUP_UNION). */
size_t sl_places_scratch(int32_t heads, int32_t ld);
/* Of a token and the KV heads: its queries as digits (bounds of int8), and the products of KV heads that share a list. */
size_t sl_digits_bytes(int32_t heads, int32_t kv_heads, int32_t dim, bool mean);
size_t sl_digits_scratch(int32_t heads, int32_t kv_heads, int32_t dim, int32_t lists, int32_t ld, bool mean);
/* Bytes of a token of scores that need all products of a query (labels, bounds). */
size_t sl_group_scratch(sl_group_reduce reduce, int32_t heads, int32_t ld, size_t digits);

/* Where the parts of the scratch of some tokens begin, and its end. */
typedef struct sl_codes_space {
    size_t places, tables, products, bytes; /* the sums are at 0 */
} sl_codes_space;
sl_codes_space sl_codes_space_of(int32_t tokens, int32_t heads, int32_t parts, int32_t k, int32_t ld);
typedef struct sl_clusters_space {
    size_t pages, tables, scores, bytes; /* the sums, or the places, are at 0 */
} sl_clusters_space;
sl_clusters_space sl_clusters_space_of(int32_t tokens, int32_t seqs, int32_t heads, int32_t kv_heads,
                                       int32_t ld_clusters, sl_group_reduce reduce);
/* Points of `heads` KV heads that are worked on at a time (kmeans: with distances and counts). */
typedef struct sl_points_space {
    size_t rows, half, labels, changed, done, distance, count, bytes; /* the values are at 0 */
} sl_points_space;
sl_points_space sl_points_space_of(int32_t heads, int32_t tokens, int32_t dim, int32_t parts, int32_t k);
/* How many of `heads` KV heads: as even as possible. */
int32_t sl_points_heads(int32_t heads, int32_t tokens, int32_t dim, int32_t parts, int32_t k);
/* SL_OP_WINDOW_VOTES: the sums of all keys, before the products. */
size_t sl_votes_sums(int32_t kv_heads, int32_t keys);
/* SL_OP_PROMPT_SCORES, of a block of 64 tokens: the products of plain strips; or its queries, sums and maxima for tensor cores. */
enum { SL_STRIPS = SL_PAGE_TOKENS / SL_PROMPT_STRIP, SL_STRIP_SEGMENT = 32 /* strips of a maximum */ };
size_t sl_prompt_plain_scratch(int32_t heads, int32_t pages);
typedef struct sl_prompt_space {
    size_t q, sums, tops; /* of a block, each a multiple of 256 */
} sl_prompt_space;
sl_prompt_space sl_prompt_space_of(int32_t heads, int32_t dim, int32_t pages);
/* SL_OP_TOPK: longer rows without a hint get one. */
enum { SL_TOPK_ROW_MAX = 32768 };

#ifdef __cplusplus
}
#endif
#endif
