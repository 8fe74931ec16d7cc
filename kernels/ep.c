/* The arithmetic of kernels/ep.h that is the same for all backends. */
#include "kernels/ep.h"

#include "kernels/formats.h"

static int64_t up_to_4(int64_t n)
{
    return (n + 3) / 4 * 4;
}

void sl_ep_split(int32_t experts, int32_t ranks, int32_t *first)
{
    for (int32_t r = 0; r <= ranks; r++)
        first[r] = (int32_t)((int64_t)experts * r / ranks);
}

sl_ep_row sl_ep_row_of(const sl_ep_layout *l)
{
    sl_ep_row p;

    p.scales = up_to_4(l->hidden * (l->quantised ? 1 : (int64_t)sl_dtype_size(l->act)));
    p.ids = p.scales + (l->quantised ? (int64_t)sizeof(float) * sl_fp8_groups(l->hidden) : 0);
    p.bytes = p.ids + (int64_t)sizeof(int32_t) * l->top_k;
    return p;
}

int64_t sl_ep_row_bytes(const sl_ep_layout *l)
{
    return sl_ep_row_of(l).bytes;
}

int64_t sl_ep_result_bytes(const sl_ep_layout *l)
{
    return up_to_4(l->hidden * (int64_t)sl_dtype_size(l->act));
}

int32_t sl_ep_result_cap(const sl_ep_layout *l)
{
    return l->cap * l->top_k;
}
