/* Names of the ways of pooling, and what the ops of an observation window require of their parameters; see
 * kernels/window.h. */
#include "kernels/window.h"

#include "kernels/check.h"
#include "kernels/gqa.h"

static const char *const pooling_names[] = {"avgpool", "maxpool", NULL};

enum { MAX_DIM = 1024, MAX_HEADS = 1 << 12 };

const char *const *sl_pooling_names(void)
{
    return pooling_names;
}

static void chk_votes_rows(sl_chk *c, const sl_window_votes_params *p)
{
    const sl_row_view *r = &p->rows;

    sl_chk_row_blocks(c, r);
    sl_chk_can(c, r->block_log2 == 0, "rows.block_log2", "must be 0: rows of one token");
    sl_chk_key_rows(c, r, p->format, p->kv_heads, p->dim);
    sl_chk_ptr(c, "rows.base", r->base, 4);
}

void sl_chk_window_votes(sl_chk *c, const void *params)
{
    const sl_window_votes_params *p = params;

    sl_chk_count(c, "tokens", p->tokens);
    sl_chk_pos(c, "window", p->window);
    sl_chk_group(c, p->heads, p->kv_heads);
    sl_chk_pos(c, "dim", p->dim);
    sl_chk_pos(c, "kernel", p->kernel);
    sl_chk_can(c, p->dim <= MAX_DIM, "dim", "must be at most 1024");
    sl_chk_can(c, p->heads <= MAX_HEADS, "heads", "must be at most 4096");
    sl_chk_can(c, sl_gqa_row_bytes(p->format, 1, 2) > 0, "format",
               "is not a format of rows with keys and values");
    if (c->st != SL_OK)
        return;
    sl_chk_need(c, p->tokens == 0 || p->tokens > p->window, "tokens", "must be more than the window");
    sl_chk_need(c, p->kernel % 2 == 1, "kernel", "must be odd");
    sl_chk_need(c, (unsigned)p->pooling <= SL_POOLING_MAX, "pooling", "is unknown");
    sl_chk_need(c, p->scale > 0, "scale", "must be positive");
    sl_chk_ld(c, "ld_votes", p->ld_votes, p->tokens - p->window);
    sl_chk_size(c, "window", p->window, (int64_t)p->heads * p->dim);
    sl_chk_size(c, "ld_votes", p->kv_heads, p->ld_votes);
    sl_chk_ptr(c, "q", p->q, 4);
    sl_chk_ptr(c, "row_pages", p->row_pages, 4);
    sl_chk_ptr(c, "votes", p->votes, 4);
    if (c->pointers && c->st == SL_OK)
        chk_votes_rows(c, p);
}

void sl_chk_kept_store(sl_chk *c, const void *params)
{
    const sl_kept_store_params *p = params;
    const sl_host_plane *h = &p->host;

    sl_chk_seqs(c, p->seqs);
    sl_chk_pos(c, "lists", p->lists);
    sl_chk_count(c, "ld_kept", p->ld_kept);
    sl_chk_can(c, p->lists <= MAX_HEADS, "lists", "must be at most 4096");
    sl_chk_need(c, p->unit_bytes >= SL_KEPT_HEADER && p->unit_bytes % 4 == 0, "unit_bytes",
                "is not a size of units");
    sl_chk_need(c, h->page_stride >= (int64_t)p->lists * p->unit_bytes && h->page_stride % 4 == 0,
                "host.page_stride", "is not possible for such units");
    sl_chk_ptr(c, "host.base", h->base, 4);
    sl_chk_ptr(c, "prompts", p->prompts, 4);
    if (p->ld_kept > 0)
        sl_chk_ptr(c, "kept", p->kept, 4);
    sl_chk_tables(c, p->seqs, SL_CHK_HOST_PAGES);
}

void sl_chk_kept_lists(sl_chk *c, const void *params)
{
    const sl_kept_lists_params *p = params;

    sl_chk_slice(c, p->seqs, p->token_first, p->token_count);
    sl_chk_pos(c, "lists", p->lists);
    sl_chk_pos(c, "ld_ids", p->ld_ids);
    sl_chk_pos(c, "window", p->window);
    sl_chk_count(c, "ld_kept", p->ld_kept);
    sl_chk_count(c, "output", p->output);
    sl_chk_count(c, "dense_below", p->dense_below);
    if (c->st != SL_OK)
        return;
    sl_chk_size(c, "ld_ids", (int64_t)p->token_count * p->lists, p->ld_ids);
    sl_chk_ptr(c, "prompts", p->prompts, 4);
    sl_chk_ptr(c, "ids", p->ids, 4);
    if (p->ld_kept > 0)
        sl_chk_ptr(c, "kept", p->kept, 4);
}
