/* See scratch.h. */
#include "kernels/scratch.h"

#include "kernels/paths.h"

static int64_t up_to(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

static int64_t up256(int64_t n)
{
    return up_to(n, 256) * 256;
}

int sl_gqa_parts(int sms, int64_t tokens, int kv_heads, int64_t list_tokens)
{
    const int64_t segments = up_to(list_tokens, SL_GQA_SEGMENT), lists = tokens * kv_heads,
                  whole = up_to(lists, sms) * segments, cut = up_to(lists * segments, sms);

    return 8 * whole > 9 * cut + 16 ? (int)segments : 1;
}

size_t sl_gqa_decode_scratch(int sms, int64_t tokens, int heads, int kv_heads, int dim, int64_t list_tokens)
{
    const int parts = sl_gqa_parts(sms, tokens, kv_heads, list_tokens);

    return parts > 1 ? (size_t)tokens * (size_t)heads * (size_t)parts * (size_t)(dim + 4) * 4 : 0;
}

size_t sl_gqa_decode_scratch_most(int sms, int64_t tokens, int heads, int kv_heads, int dim,
                                  int64_t list_tokens)
{
    size_t most = 0;

    for (int64_t n = 1; n <= tokens; n++) {
        const size_t bytes = sl_gqa_decode_scratch(sms, n, heads, kv_heads, dim, list_tokens);
        most = bytes > most ? bytes : most;
    }
    return most;
}

size_t sl_linear_scratch(int64_t tokens, int64_t in, int64_t out)
{
    const int64_t padded = up_to(tokens, 4) * 4, groups = up_to(in, SL_LINEAR_GROUP);

    /* + 128: a copy reads up to 128 scales at once. */
    return (size_t)(up256(padded * in) + up256((groups * padded + 128) * 4) +
                    (padded == tokens ? 0 : padded * out * 2));
}

size_t sl_moe_grouped_scratch(int64_t tokens, int top_k, int experts, int64_t hidden, int64_t inter, int size)
{
    enum { ROWS = 128 }; /* of a tile */
    const int64_t pairs = tokens * top_k, least = pairs < experts ? pairs : experts,
                  tiles = pairs < experts + pairs / ROWS ? pairs : experts + pairs / ROWS,
                  rows = pairs + 7 * least + ROWS, ld = up_to(rows, 4) * 4;
    const int64_t scales = size == 1 ? up256(ld * (hidden / SL_LINEAR_GROUP) * 4 + ROWS * 4) +
                                           up256(ld * (inter / SL_LINEAR_GROUP) * 4 + ROWS * 4)
                                     : 0;

    return (size_t)(up256(rows * hidden * size) + up256(rows * inter * size) + scales + tiles * 16 +
                    (rows + pairs + 1) * 4);
}
