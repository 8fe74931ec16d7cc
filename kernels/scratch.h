/*
 * Scratch memory of ops on CUDA: what the ops of a model's own layers ask of the backend for temporary operands, by their
 * parameters. The kernels' launchers and the memory plan use the same functions. Pure.
 */
#ifndef SL_KERNELS_SCRATCH_H
#define SL_KERNELS_SCRATCH_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { SL_GQA_SEGMENT = 512 }; /* tokens of a list that are added before they are merged */

/* Into how many units the list of `list_tokens` tokens of a token and KV head is cut: its segments, or 1 where whole lists
 * occupy the device nearly as well, which saves the second kernel and look-ups of lists. The unit of the times that are
 * compared is that of a segment. */
int sl_gqa_parts(int sms, int64_t tokens, int kv_heads, int64_t list_tokens);
/* The partial sums of SL_GQA_DECODE; 0: there is one part. */
size_t sl_gqa_decode_scratch(int sms, int64_t tokens, int heads, int kv_heads, int dim, int64_t list_tokens);
/* The most that any number of tokens up to `tokens` asks for. */
size_t sl_gqa_decode_scratch_most(int sms, int64_t tokens, int heads, int kv_heads, int dim,
                                  int64_t list_tokens);
/* SL_LINEAR_*: x as fp8 with scales, and outputs of padded tokens. */
size_t sl_linear_scratch(int64_t tokens, int64_t in, int64_t out);
/* Routed experts whose pairs are sorted into rows, in tiles of up to `tile` rows of an expert: rows, tiles and the distance of
 * scales, and bytes: of the inputs, of silu(gate) * up, of the scales of both, and of all with the lists. size: bytes of a value. */
typedef struct sl_moe_rows_size {
    int64_t rows, tiles, ld, x, mid, xs, ms;
    size_t bytes;
} sl_moe_rows_size;
sl_moe_rows_size sl_moe_rows_size_of(int tile, int64_t tokens, int top_k, int experts, int64_t hidden,
                                     int64_t inter, int size);
/* The most that a path with such rows asks for, whichever tiles it has. */
size_t sl_moe_grouped_scratch(int64_t tokens, int top_k, int experts, int64_t hidden, int64_t inter,
                              int size);

#ifdef __cplusplus
}
#endif
#endif
