/* Units and names of bounds of retained pages, and what their ops require; see kernels/retained.h. */
#include "kernels/retained.h"

#include "kernels/check.h"
#include "kernels/gqa.h"

static const char *const type_names[] = {"float8_e5m2", "bfloat16", NULL};

int64_t sl_retained_unit_bytes(int32_t dim, sl_kt_type type)
{
    return type == SL_KT_E5M2 ? 2 * (int64_t)dim : type == SL_KT_BF16 ? 4 * (int64_t)dim : 0;
}

const char *const *sl_kt_type_names(void)
{
    return type_names;
}

/* keys: the op reads host rows and bounds, not only which tokens are retained. */
static void chk_retained(sl_chk *c, const sl_retained *r, bool keys)
{
    sl_chk_key_heads(c, r->kv_heads, r->dim);
    sl_chk_pos(c, "window", r->window);
    sl_chk_count(c, "ld_kept", r->ld_kept);
    sl_chk_can(c, r->page_log2 >= 0 && r->page_log2 <= SL_PAGE_LOG2, "page_log2", "is not in 0..6");
    sl_chk_ptr(c, "prompts", r->prompts, 4);
    if (r->ld_kept > 0)
        sl_chk_ptr(c, "kept", r->kept, 4);
    if (!keys)
        return;
    sl_chk_key_format(c, r->format, &r->rows);
    sl_chk_can(c, r->rows.block_log2 == 0, "rows.block_log2", "must be 0: rows of one token");
    sl_chk_can(c, sl_retained_unit_bytes(1, r->type) > 0, "type", "is unknown");
    if (c->st == SL_OK)
        sl_chk_need(c, r->page_stride >= sl_retained_page_bytes(r->kv_heads, r->dim, r->page_log2, r->type),
                    "page_stride", "is less than the units of a page");
    sl_chk_ptr(c, "base", r->base, 2);
    if (c->st != SL_OK || !c->pointers)
        return;
    sl_chk_key_rows(c, &r->rows, r->format, r->kv_heads, r->dim);
    sl_chk_need(c, r->host_rows.base != NULL, "host_rows.base", "is NULL");
    sl_chk_host(c, &r->host_rows, r->rows.row_bytes * sl_row_lists(&r->rows));
}

void sl_chk_retained_append(sl_chk *c, const void *params)
{
    const sl_retained_append_params *p = params;

    chk_retained(c, &p->r, true);
    sl_chk_seqs(c, p->seqs);
    sl_chk_tables(c, p->seqs, SL_CHK_HOST_PAGES | SL_CHK_INDEX_PAGES);
}

void sl_chk_retained_scores(sl_chk *c, const void *params)
{
    const sl_retained_scores_params *p = params;

    chk_retained(c, &p->r, true);
    sl_chk_slice(c, p->seqs, p->token_first, p->token_count);
    sl_chk_pos(c, "select", p->select);
    sl_chk_count(c, "dense_below", p->dense_below);
    sl_chk_group(c, p->heads, p->r.kv_heads);
    sl_chk_pos(c, "ld_scores", p->ld_scores);
    sl_chk_pos(c, "top_r", p->top_r);
    if (c->st != SL_OK)
        return;
    sl_chk_need(c, p->top_r <= p->r.dim, "top_r", "is larger than dim");
    sl_chk_need(c, p->scale > 0, "scale", "must be positive");
    sl_chk_size(c, "ld_scores", (int64_t)p->token_count * p->r.kv_heads, p->ld_scores);
    sl_chk_ptr(c, "q", p->q, 4);
    sl_chk_ptr(c, "scores", p->scores, 4);
    sl_chk_ptr(c, "place", p->place, 4);
    sl_chk_tables(c, p->seqs, SL_CHK_HOST_PAGES | SL_CHK_INDEX_PAGES);
}

void sl_chk_retained_lists(sl_chk *c, const void *params)
{
    const sl_retained_lists_params *p = params;

    chk_retained(c, &p->r, false);
    sl_chk_slice(c, p->seqs, p->token_first, p->token_count);
    sl_chk_pos(c, "select", p->select);
    sl_chk_count(c, "dense_below", p->dense_below);
    sl_chk_pos(c, "ld_ids", p->ld_ids);
    if (c->st != SL_OK)
        return;
    sl_chk_size(c, "ld_ids", (int64_t)p->token_count * p->r.kv_heads, p->ld_ids);
    sl_chk_ptr(c, "pages", p->pages, 4);
    sl_chk_ptr(c, "ids", p->ids, 4);
}
