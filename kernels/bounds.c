/* Units and names of bounds of blocks, and what their ops require of their parameters; see kernels/bounds.h. */
#include "kernels/bounds.h"

#include "kernels/check.h"
#include "kernels/gqa.h"

static const char *const reduce_names[] = {"max", "mean", "softmax", "union", NULL};

int64_t sl_bounds_unit_bytes(int32_t dim, sl_dtype dtype)
{
    const int64_t exponents = (dim + SL_BOUNDS_GROUP - 1) / SL_BOUNDS_GROUP;

    if (dtype == SL_I8)
        return 2 * (int64_t)dim + (exponents + 15) / 16 * 16;
    return dtype == SL_F32 ? 8 * (int64_t)dim : dtype == SL_BF16 ? 4 * (int64_t)dim : 0;
}

const char *const *sl_group_reduce_names(void)
{
    return reduce_names;
}

/* Heads, dimension and type of the bounds; and the plane on the device. */
static void chk_plane(sl_chk *c, int32_t heads, int32_t dim, sl_dtype dtype, int32_t block_log2,
                      const void *base, int64_t page_stride)
{
    sl_chk_key_heads(c, heads, dim);
    sl_chk_can(c, sl_bounds_unit_bytes(1, dtype) > 0, "dtype", "must be f32, bf16 or int8");
    sl_chk_can(c, dtype != SL_I8 || dim % SL_BOUNDS_GROUP == 0, "dim",
               "is not a multiple of 16, as int8 needs");
    sl_chk_can(c, block_log2 >= 0 && block_log2 <= SL_PAGE_LOG2, "block_log2", "is not in 0..6");
    if (c->st != SL_OK || !c->pointers)
        return;
    const int align = dtype == SL_I8 ? 16 : 4;
    sl_chk_ptr(c, "base", base, align);
    sl_chk_need(c,
                page_stride % align == 0 && page_stride >= (int64_t)(SL_PAGE_TOKENS >> block_log2) * heads *
                                                               sl_bounds_unit_bytes(dim, dtype),
                "page_stride", "is smaller than a page's bounds or not a multiple of 4, or of 16 with int8");
}

void sl_chk_bounds_append(sl_chk *c, const void *params)
{
    const sl_bounds_append_params *p = params;

    sl_chk_key_format(c, p->format, &p->rows);
    chk_plane(c, p->heads, p->dim, p->dtype, p->rows.block_log2, p->base, p->page_stride);
    sl_chk_key_source(c, &(sl_chk_keys){.seqs = p->seqs,
                                        .rows = &p->rows,
                                        .host_rows = &p->host_rows,
                                        .host = &p->host,
                                        .host_bytes = p->heads * sl_bounds_unit_bytes(p->dim, p->dtype),
                                        .heads = p->heads,
                                        .dim = p->dim,
                                        .format = p->format});
}

void sl_chk_bounds_scores(sl_chk *c, const void *params)
{
    const sl_bounds_scores_params *p = params;

    chk_plane(c, p->kv_heads, p->dim, p->dtype, p->block_log2, p->base, p->page_stride);
    sl_chk_list_scores(c, &(sl_chk_scores){.seqs = p->seqs,
                                           .q = p->q,
                                           .scores = p->scores,
                                           .heads = p->heads,
                                           .kv_heads = p->kv_heads,
                                           .lists = p->lists,
                                           .ld_scores = p->ld_scores,
                                           .token_first = p->token_first,
                                           .token_count = p->token_count,
                                           .reduce_known = (unsigned)p->reduce <= SL_GROUP_UNION,
                                           .softmax = p->reduce == SL_GROUP_SOFTMAX,
                                           .scale = p->scale});
}
