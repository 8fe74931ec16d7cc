/* Units and names of bounds of blocks, and what their ops require of their parameters; see kernels/bounds.h. */
#include "kernels/bounds.h"

#include <string.h>

#include "kernels/check.h"
#include "kernels/gqa.h"

static const char *const reduce_names[] = {"max", "mean", "softmax", NULL};

enum { MAX_DIM = 1024, MAX_HEADS = 1 << 12 };

int64_t sl_bounds_unit_bytes(int32_t dim, sl_dtype dtype)
{
    return dtype == SL_F32 ? 8 * (int64_t)dim : dtype == SL_BF16 ? 4 * (int64_t)dim : 0;
}

const char *const *sl_group_reduce_names(void)
{
    return reduce_names;
}

bool sl_group_reduce_find(const char *name, sl_group_reduce *out)
{
    for (int i = 0; name && reduce_names[i]; i++)
        if (strcmp(name, reduce_names[i]) == 0) {
            *out = (sl_group_reduce)i;
            return true;
        }
    return false;
}

/* Heads, dimension and type of the bounds; and the plane on the device. */
static void chk_plane(sl_chk *c, int32_t heads, int32_t dim, sl_dtype dtype, int32_t block_log2,
                      const void *base, int64_t page_stride)
{
    sl_chk_pos(c, "kv_heads", heads);
    sl_chk_pos(c, "dim", dim);
    sl_chk_can(c, dim <= MAX_DIM, "dim", "must be at most 1024");
    sl_chk_can(c, heads <= MAX_HEADS, "kv_heads", "must be at most 4096");
    sl_chk_can(c, sl_bounds_unit_bytes(1, dtype) > 0, "dtype", "must be f32 or bf16");
    sl_chk_can(c, block_log2 >= 0 && block_log2 <= SL_PAGE_LOG2, "block_log2", "is not in 0..6");
    if (c->st != SL_OK || !c->pointers)
        return;
    sl_chk_ptr(c, "base", base, 4);
    sl_chk_need(c,
                page_stride % 4 == 0 && page_stride >= (int64_t)(SL_PAGE_TOKENS >> block_log2) * heads *
                                                           sl_bounds_unit_bytes(dim, dtype),
                "page_stride", "is smaller than a page's bounds or not a multiple of 4");
}

void sl_chk_bounds_append(sl_chk *c, const void *params)
{
    const sl_bounds_append_params *p = params;
    const sl_row_view *r = &p->rows;

    sl_chk_can(c, sl_gqa_row_bytes(p->format, 1, 2) > 0, "format",
               "is not a format of rows with keys and values");
    sl_chk_row_blocks(c, r);
    chk_plane(c, p->heads, p->dim, p->dtype, r->block_log2, p->base, p->page_stride);
    sl_chk_seqs(c, p->seqs);
    if (c->st != SL_OK || !c->pointers)
        return;
    sl_chk_need(c, r->heads == 0 || r->heads == p->heads, "rows.heads",
                "is neither 0 nor the number of KV heads");
    sl_chk_need(c, r->row_bytes == sl_gqa_row_bytes(p->format, sl_gqa_row_slots(r, p->heads), p->dim),
                "rows.row_bytes", "is not the format's row size");
    sl_chk_need(c, r->base || p->host_rows.base, "rows.base", "and host_rows.base are both NULL");
    if (p->host_rows.base)
        sl_chk_host(c, &p->host_rows, r->row_bytes * sl_row_lists(r));
    if (p->host.base)
        sl_chk_host(c, &p->host, p->heads * sl_bounds_unit_bytes(p->dim, p->dtype));
    if (c->st != SL_OK || !p->seqs || p->seqs->n_tokens == 0)
        return;
    sl_chk_ptr(c, "seqs.index_pages", p->seqs->index_pages, 4);
    if (r->base) {
        sl_chk_ptr(c, "seqs.hot_slot", p->seqs->hot_slot, 4);
        sl_chk_ptr(c, "seqs.row_pages", p->seqs->row_pages, 4);
    }
    if (p->host.base || p->host_rows.base)
        sl_chk_ptr(c, "seqs.host_pages", p->seqs->host_pages, 4);
}

void sl_chk_bounds_scores(sl_chk *c, const void *params)
{
    const sl_bounds_scores_params *p = params;

    chk_plane(c, p->kv_heads, p->dim, p->dtype, p->block_log2, p->base, p->page_stride);
    sl_chk_pos(c, "heads", p->heads);
    sl_chk_pos(c, "ld_scores", p->ld_scores);
    sl_chk_seqs(c, p->seqs);
    if (c->st != SL_OK)
        return;
    sl_chk_need(c, p->heads % p->kv_heads == 0, "kv_heads", "does not divide heads");
    sl_chk_need(c, p->lists == 1 || p->lists == p->kv_heads, "lists", "is neither 1 nor kv_heads");
    sl_chk_need(c, (unsigned)p->reduce <= SL_GROUP_SOFTMAX, "reduce", "is unknown");
    sl_chk_need(c, p->reduce != SL_GROUP_SOFTMAX || p->scale > 0, "scale", "must be positive");
    sl_chk_count(c, "token_first", p->token_first);
    sl_chk_count(c, "token_count", p->token_count);
    if (p->seqs)
        sl_chk_need(c, (int64_t)p->token_first + p->token_count <= p->seqs->n_tokens, "token_count",
                    "reaches beyond the step's tokens");
    sl_chk_size(c, "ld_scores", (int64_t)p->token_count * p->lists, p->ld_scores);
    sl_chk_ptr(c, "q", p->q, 4);
    sl_chk_ptr(c, "scores", p->scores, 4);
    if (c->st == SL_OK && c->pointers && p->seqs->n_tokens)
        sl_chk_ptr(c, "seqs.index_pages", p->seqs->index_pages, 4);
}
