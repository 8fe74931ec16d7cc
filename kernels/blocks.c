/* What the ops on blocks require of their parameters; see kernels/blocks.h. */
#include "kernels/blocks.h"

#include "kernels/check.h"

enum { MAX_DIM = 256, MAX_HEADS = 1 << 12, MAX_BLOCK = 1 << 20 };

static void chk_heads(sl_chk *c, int32_t heads, int32_t block_tokens, int32_t ld_scores)
{
    sl_chk_pos(c, "heads", heads);
    sl_chk_can(c, heads <= MAX_HEADS, "heads", "must be at most 4096");
    sl_chk_pos(c, "block_tokens", block_tokens);
    sl_chk_can(c, block_tokens <= MAX_BLOCK, "block_tokens", "must be at most 2^20");
    sl_chk_pos(c, "ld_scores", ld_scores);
}

void sl_chk_block_scores(sl_chk *c, const void *params)
{
    const sl_block_scores_params *p = params;

    chk_heads(c, p->heads, p->block_tokens, p->ld_scores);
    sl_chk_pos(c, "dim", p->dim);
    sl_chk_can(c, p->dim <= MAX_DIM, "dim", "must be at most 256");
    sl_chk_slice(c, p->seqs, p->token_first, p->token_count);
    sl_chk_size(c, "ld_scores", (int64_t)p->token_count * p->heads, p->ld_scores);
    sl_chk_ptr(c, "q", p->q, 4);
    sl_chk_ptr(c, "scores", p->scores, 4);
    if (c->st != SL_OK || !c->pointers)
        return;
    sl_chk_rows(c, "index_base", p->index_base, 4, p->index_page_stride);
    sl_chk_need(c,
                p->index_page_stride % 4 == 0 &&
                    p->index_page_stride >= sl_index_block_bytes(SL_INDEX_PLAIN, p->dim),
                "index_page_stride", "is smaller than a page's keys or not a multiple of 4");
    sl_chk_tables(c, p->seqs, SL_CHK_INDEX_PAGES);
}

void sl_chk_block_lists(sl_chk *c, const void *params)
{
    const sl_block_lists_params *p = params;

    chk_heads(c, p->heads, p->block_tokens, p->ld_scores);
    sl_chk_pos(c, "k", p->k);
    sl_chk_pos(c, "lists", p->lists);
    sl_chk_can(c, p->lists <= MAX_HEADS, "lists", "must be at most 4096");
    if (c->st != SL_OK)
        return;
    sl_chk_need(c, p->lists % p->heads == 0, "lists", "is not a multiple of heads");
    sl_chk_need(c, p->block_log2 >= 0 && p->block_log2 <= SL_PAGE_LOG2, "block_log2", "is not in 0..6");
    if (c->st != SL_OK)
        return;
    sl_chk_need(c, p->block_tokens % (1 << p->block_log2) == 0, "block_log2", "does not divide block_tokens");
    sl_chk_pos(c, "ld_ids", p->ld_ids);
    sl_chk_count(c, "sinks", p->sinks);
    sl_chk_count(c, "recent", p->recent);
    sl_chk_count(c, "dense_below", p->dense_below);
    sl_chk_slice(c, p->seqs, p->token_first, p->token_count);
    sl_chk_size(c, "ld_scores", (int64_t)p->token_count * p->heads, p->ld_scores);
    sl_chk_ptr(c, "scores", p->scores, 4);
    sl_chk_ptr(c, "ids", p->ids, 4);
}
