/* Units of labels, and what their ops require of their parameters; see kernels/labels.h. */
#include "kernels/labels.h"

#include "kernels/check.h"
#include "kernels/gqa.h"

enum { MAX_DIM = 1024, MAX_HEADS = 1 << 12 };

int64_t sl_labels_unit_bytes(int32_t count, sl_dtype dtype)
{
    const int64_t values = (int64_t)count * SL_PAGE_TOKENS;
    return dtype == SL_F32 ? 4 * values : dtype == SL_BF16 ? 2 * values : 0;
}

/* Heads, channels and type of the labels; and the plane on the device. */
static void chk_plane(sl_chk *c, int32_t heads, int32_t dim, int32_t count, sl_dtype dtype, const void *base,
                      int64_t page_stride)
{
    sl_chk_pos(c, "kv_heads", heads);
    sl_chk_pos(c, "dim", dim);
    sl_chk_pos(c, "count", count);
    sl_chk_can(c, dim <= MAX_DIM, "dim", "must be at most 1024");
    sl_chk_can(c, heads <= MAX_HEADS, "kv_heads", "must be at most 4096");
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
    const sl_row_view *r = &p->rows;

    sl_chk_can(c, sl_gqa_row_bytes(p->format, 1, 2) > 0, "format",
               "is not a format of rows with keys and values");
    sl_chk_row_blocks(c, r);
    chk_plane(c, p->heads, p->dim, p->count, p->dtype, p->base, p->page_stride);
    sl_chk_seqs(c, p->seqs);
    if (c->st != SL_OK || !c->pointers)
        return;
    sl_chk_ptr(c, "channels", p->channels, 4);
    sl_chk_need(c, r->heads == 0 || r->heads == p->heads, "rows.heads",
                "is neither 0 nor the number of KV heads");
    sl_chk_need(c, r->row_bytes == sl_gqa_row_bytes(p->format, sl_gqa_row_slots(r, p->heads), p->dim),
                "rows.row_bytes", "is not the format's row size");
    sl_chk_ptr(c, "rows.base", r->base, 4);
    if (p->host_rows.base)
        sl_chk_host(c, &p->host_rows, r->row_bytes * sl_row_lists(r));
    if (p->host.base)
        sl_chk_host(c, &p->host, p->heads * sl_labels_unit_bytes(p->count, p->dtype));
    if (c->st != SL_OK || !p->seqs || p->seqs->n_tokens == 0)
        return;
    sl_chk_ptr(c, "seqs.index_pages", p->seqs->index_pages, 4);
    sl_chk_ptr(c, "seqs.hot_slot", p->seqs->hot_slot, 4);
    sl_chk_ptr(c, "seqs.row_pages", p->seqs->row_pages, 4);
    if (p->host.base || p->host_rows.base)
        sl_chk_ptr(c, "seqs.host_pages", p->seqs->host_pages, 4);
}

void sl_chk_labels_scores(sl_chk *c, const void *params)
{
    const sl_labels_scores_params *p = params;

    chk_plane(c, p->kv_heads, p->dim, p->count, p->dtype, p->base, p->page_stride);
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
    sl_chk_ptr(c, "channels", p->channels, 4);
    if (c->st == SL_OK && c->pointers && p->seqs->n_tokens)
        sl_chk_ptr(c, "seqs.index_pages", p->seqs->index_pages, 4);
}
