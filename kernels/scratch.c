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

sl_moe_rows_size sl_moe_rows_size_of(int tile, int64_t tokens, int top_k, int experts, int64_t hidden,
                                     int64_t inter, int size)
{
    const int64_t pairs = tokens * top_k, least = pairs < experts ? pairs : experts;
    sl_moe_rows_size n = {.rows = pairs + 7 * least + tile,
                          .tiles = pairs < experts + pairs / tile ? pairs : experts + pairs / tile};

    n.ld = up_to(n.rows, 4) * 4;
    n.x = up256(n.rows * hidden * size), n.mid = up256(n.rows * inter * size);
    if (size == 1) { /* + tile: a copy reads the scales of a whole tile */
        n.xs = up256(n.ld * (hidden / SL_LINEAR_GROUP) * 4 + tile * 4);
        n.ms = up256(n.ld * (inter / SL_LINEAR_GROUP) * 4 + tile * 4);
    }
    n.bytes = (size_t)(n.x + n.mid + n.xs + n.ms + n.tiles * 16 + (n.rows + pairs + 1) * 4);
    return n;
}

size_t sl_moe_grouped_scratch(int64_t tokens, int top_k, int experts, int64_t hidden, int64_t inter, int size)
{
    const size_t wide = sl_moe_rows_size_of(128, tokens, top_k, experts, hidden, inter, size).bytes,
                 narrow = sl_moe_rows_size_of(32, tokens, top_k, experts, hidden, inter, size).bytes;

    return wide > narrow ? wide : narrow; /* the narrow tiles of tiny experts have the longer list */
}
