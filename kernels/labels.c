/* Units of labels, and what their ops require of their parameters; see kernels/labels.h. */
#include "kernels/labels.h"

#include "kernels/check.h"
#include "kernels/gqa.h"

int64_t sl_labels_unit_bytes(int32_t count, sl_dtype dtype)
{
    const int64_t values = (int64_t)count * SL_PAGE_TOKENS;
    return dtype == SL_F32 ? 4 * values : dtype == SL_BF16 ? 2 * values : 0;
}

/* Heads, channels and type of the labels; and the plane on the device. */
static void chk_plane(sl_chk *c, int32_t heads, int32_t dim, int32_t count, sl_dtype dtype, const void *base,
                      int64_t page_stride)
{
    sl_chk_key_heads(c, heads, dim);
    sl_chk_pos(c, "count", count);
    sl_chk_need(c, count <= dim, "count", "is larger than dim");
    sl_chk_can(c, sl_labels_unit_bytes(1, dtype) > 0, "dtype", "must be f32 or bf16");
    if (c->st != SL_OK || !c->pointers)
        return;
    sl_chk_ptr(c, "base", base, 4);
    sl_chk_need(c, page_stride % 4 == 0 && page_stride >= heads * sl_labels_unit_bytes(count, dtype),
                "page_stride", "is smaller than a page's labels or not a multiple of 4");
}

void sl_chk_labels_append(sl_chk *c, const void *params)
{
    const sl_labels_append_params *p = params;

    sl_chk_key_format(c, p->format, &p->rows);
    chk_plane(c, p->heads, p->dim, p->count, p->dtype, p->base, p->page_stride);
    sl_chk_ptr(c, "channels", p->channels, 4);
    sl_chk_key_source(c, &(sl_chk_keys){.seqs = p->seqs,
                                        .rows = &p->rows,
                                        .host_rows = &p->host_rows,
                                        .host = &p->host,
                                        .host_bytes = p->heads * sl_labels_unit_bytes(p->count, p->dtype),
                                        .heads = p->heads,
                                        .dim = p->dim,
                                        .format = p->format,
                                        .device_rows = true});
}

void sl_chk_labels_scores(sl_chk *c, const void *params)
{
    const sl_labels_scores_params *p = params;

    chk_plane(c, p->kv_heads, p->dim, p->count, p->dtype, p->base, p->page_stride);
    sl_chk_ptr(c, "channels", p->channels, 4);
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
