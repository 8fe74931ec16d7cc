/*
 * What the ops on the cache require of their parameters (see kernels/check.h): appending rows and index keys,
 * scoring, top-k, residency, gather and sparse attention.
 */
#include "kernels/check.h"
#include "kernels/row_codec.h"

void sl_chk_seqs(sl_chk *c, const sl_seq_tables *s)
{
    if (!s) {
        sl_chk_need(c, !c->pointers, "seqs", "is NULL");
        return;
    }
    sl_chk_count(c, "seqs.n_tokens", s->n_tokens);
    sl_chk_count(c, "seqs.n_seqs", s->n_seqs);
    sl_chk_count(c, "seqs.ld", s->ld);
    sl_chk_size(c, "seqs.ld", s->ld, SL_PAGE_TOKENS);
    if (s->n_tokens == 0)
        return;
    sl_chk_pos(c, "seqs.n_seqs", s->n_seqs);
    sl_chk_ptr(c, "seqs.token_seq", s->token_seq, 4);
    sl_chk_ptr(c, "seqs.token_pos", s->token_pos, 4);
}

void sl_chk_slice(sl_chk *c, const sl_seq_tables *s, int32_t first, int32_t count)
{
    sl_chk_seqs(c, s);
    sl_chk_count(c, "token_first", first);
    sl_chk_count(c, "token_count", count);
    if (s)
        sl_chk_need(c, (int64_t)first + count <= s->n_tokens, "token_count",
                    "reaches beyond the step's tokens");
}

void sl_chk_tables(sl_chk *c, const sl_seq_tables *s, unsigned which)
{
    if (c->st != SL_OK || !c->pointers || !s || s->n_tokens == 0)
        return;
    if (which & SL_CHK_INDEX_PAGES)
        sl_chk_ptr(c, "seqs.index_pages", s->index_pages, 4);
    if (which & SL_CHK_HOT_SLOT)
        sl_chk_ptr(c, "seqs.hot_slot", s->hot_slot, 4);
    if (which & SL_CHK_ROW_PAGES)
        sl_chk_ptr(c, "seqs.row_pages", s->row_pages, 4);
    if (which & SL_CHK_HOST_PAGES)
        sl_chk_ptr(c, "seqs.host_pages", s->host_pages, 4);
}

void sl_chk_host(sl_chk *c, const sl_host_plane *h, int64_t row_bytes)
{
    sl_chk_need(c, h->page_stride >= 0, "host.page_stride", "is negative");
    sl_chk_need(c, h->row_stride >= row_bytes, "host.row_stride", "is smaller than a row");
}

void sl_chk_hot(sl_chk *c, const sl_hot_state *h, sl_evict_policy policy)
{
    sl_chk_pos(c, "hot.max_tokens", h->max_tokens);
    sl_chk_ptr(c, "hot.slot_of", h->slot_of, 2);
    sl_chk_ptr(c, "hot.token_of", h->token_of, 4);
    sl_chk_ptr(c, "hot.stamp", h->stamp, 4);
    sl_chk_ptr(c, "hot.counters", h->counters, 4);
    if (policy == SL_EVICT_LRU) {
        sl_chk_ptr(c, "hot.prev", h->prev, 2);
        sl_chk_ptr(c, "hot.next", h->next, 2);
    } else {
        sl_chk_ptr(c, "hot.cursor", h->cursor, 4);
    }
}

void sl_chk_row_blocks(sl_chk *c, const sl_row_view *r)
{
    sl_chk_count(c, "rows.hot_rows", r->hot_rows);
    sl_chk_count(c, "rows.tail_rows", r->tail_rows);
    sl_chk_count(c, "rows.heads", r->heads);
    sl_chk_need(c, r->block_log2 >= 0 && r->block_log2 <= SL_PAGE_LOG2, "rows.block_log2", "is not in 0..6");
    if (c->st == SL_OK)
        sl_chk_need(c, r->hot_rows % sl_row_lists(r) == 0 && r->tail_rows % sl_row_lists(r) == 0,
                    "rows.hot_rows", "or tail_rows is not a multiple of heads");
}

static void chk_rows(sl_chk *c, const sl_row_view *r, int64_t row_bytes)
{
    sl_chk_need(c, r->row_bytes >= 1 && r->row_bytes == row_bytes, "rows.row_bytes",
                "is not the format's row size");
    sl_chk_count(c, "rows.hot_base", r->hot_base);
    sl_chk_row_blocks(c, r);
    if (c->st == SL_OK)
        sl_chk_can(c, r->hot_rows / sl_row_lists(r) <= SL_HOT_ROWS_MAX, "rows.hot_rows",
                   "must be at most 65534");
    sl_chk_rows(c, "rows.base", r->base, 4, r->row_bytes);
}

/* Latent rows hold one token, and all heads read them. */
static void chk_latent_rows(sl_chk *c, const sl_row_view *r, int64_t row_bytes)
{
    sl_chk_need(c, r->heads == 0, "rows.heads", "is not 0, but rows are latent");
    sl_chk_need(c, r->block_log2 == 0, "rows.block_log2", "is not 0, but rows are latent");
    chk_rows(c, r, row_bytes);
}

static void chk_row_format(sl_chk *c, sl_row_format f)
{
    const sl_row_codec *codec = sl_row_codec_of(f);
    sl_chk_can(c, codec && !codec->by_head, "format", "is not a row format");
}

static void chk_index_format(sl_chk *c, sl_index_format f, int32_t dim)
{
    sl_chk_can(c, f == SL_INDEX_PLAIN || f == SL_INDEX_OFFICIAL, "format", "is not an index format");
    sl_chk_pos(c, "dim", dim);
    if (f == SL_INDEX_OFFICIAL)
        sl_chk_can(c, dim <= 128 && (dim & (dim - 1)) == 0, "dim",
                   "must be a power of two up to 128 (official)");
    sl_chk_can(c, dim <= 4096, "dim", "must be at most 4096");
}

void sl_chk_kv_append(sl_chk *c, const void *params)
{
    const sl_kv_append_params *p = params;

    chk_row_format(c, p->format);
    sl_chk_pos(c, "lora", p->lora);
    sl_chk_need(c, p->rope >= 0 && p->rope % 2 == 0, "rope", "must be even and not negative");
    sl_chk_can(c, p->lora <= 8192 && p->rope <= 8192, "lora", "and rope must be at most 8192");
    if (c->st != SL_OK)
        return;
    sl_chk_rope(c, p->rope, p->rope, p->cos_sin);
    sl_chk_ld(c, "ld_kv", p->ld_kv, p->lora + p->rope);
    sl_chk_eps(c, p->eps);
    sl_chk_act(c, "act", p->act);
    sl_chk_float(c, "norm_dtype", p->norm_dtype);
    sl_chk_values(c, "kv", p->kv, p->act);
    sl_chk_values(c, "norm", p->norm, p->norm_dtype);
    sl_chk_seqs(c, p->seqs);
    if (!c->pointers)
        return;
    chk_latent_rows(c, &p->rows, sl_row_bytes(p->format, p->lora, p->rope));
    if (p->host.base) {
        sl_chk_host(c, &p->host, p->rows.row_bytes);
        sl_chk_tables(c, p->seqs, SL_CHK_HOST_PAGES);
    }
    sl_chk_tables(c, p->seqs, SL_CHK_HOT_SLOT | SL_CHK_ROW_PAGES);
}

void sl_chk_index_append(sl_chk *c, const void *params)
{
    const sl_index_append_params *p = params;

    chk_index_format(c, p->format, p->dim);
    sl_chk_rope(c, p->rope, p->dim, p->cos_sin);
    sl_chk_ld(c, "ld_k", p->ld_k, p->dim);
    sl_chk_eps(c, p->eps);
    sl_chk_act(c, "act", p->act);
    sl_chk_float(c, "norm_dtype", p->norm_dtype);
    sl_chk_values(c, "k", p->k, p->act);
    sl_chk_values(c, "norm_weight", p->norm_weight, p->norm_dtype);
    if (p->norm_bias)
        sl_chk_values(c, "norm_bias", p->norm_bias, p->norm_dtype);
    sl_chk_seqs(c, p->seqs);
    if (!c->pointers)
        return;
    sl_chk_rows(c, "index_base", p->index_base, 4, p->index_page_stride);
    sl_chk_need(
        c, p->index_page_stride >= sl_index_block_bytes(p->format, p->dim) && p->index_page_stride % 4 == 0,
        "index_page_stride", "is smaller than a block or not a multiple of 4");
    if (p->host.base)
        sl_chk_need(c, p->host.page_stride >= sl_index_block_bytes(p->format, p->dim), "host.page_stride",
                    "is smaller than a block");
    sl_chk_tables(c, p->seqs, SL_CHK_INDEX_PAGES | (p->host.base ? SL_CHK_HOST_PAGES : 0));
}

void sl_chk_index_query(sl_chk *c, const void *params)
{
    const sl_index_query_params *p = params;

    sl_chk_count(c, "tokens", p->tokens);
    sl_chk_pos(c, "heads", p->heads);
    chk_index_format(c, p->format, p->dim);
    sl_chk_rope(c, p->rope, p->dim, p->cos_sin);
    sl_chk_act(c, "act", p->act);
    sl_chk_size(c, "tokens", p->tokens, (int64_t)p->heads * p->dim);
    sl_chk_rows(c, "q", p->q, sl_dtype_size(p->act), p->dim * (int64_t)sl_dtype_size(p->act));
    sl_chk_ptr(c, "wproj", p->wproj, 4);
    if (p->rope)
        sl_chk_ptr(c, "pos", p->pos, 4);
    const size_t e = p->format == SL_INDEX_PLAIN ? 4 : 1;
    sl_chk_rows(c, "q_out", p->q_out, e, p->dim * (int64_t)e);
    sl_chk_ptr(c, "weights", p->weights, 4);
}

void sl_chk_index_scores(sl_chk *c, const void *params)
{
    const sl_index_scores_params *p = params;

    sl_chk_pos(c, "heads", p->heads);
    chk_index_format(c, p->format, p->dim);
    sl_chk_slice(c, p->seqs, p->token_first, p->token_count);
    sl_chk_pos(c, "ld_scores", p->ld_scores);
    sl_chk_size(c, "scores", p->token_count, p->ld_scores);
    sl_chk_size(c, "heads", p->heads, p->dim);
    const size_t e = p->format == SL_INDEX_PLAIN ? 4 : 1;
    sl_chk_rows(c, "q", p->q, e, p->dim * (int64_t)e);
    sl_chk_ptr(c, "weights", p->weights, 4);
    sl_chk_ptr(c, "scores", p->scores, 4);
    if (!c->pointers)
        return;
    sl_chk_rows(c, "index_base", p->index_base, 4, p->index_page_stride);
    sl_chk_need(
        c, p->index_page_stride >= sl_index_block_bytes(p->format, p->dim) && p->index_page_stride % 4 == 0,
        "index_page_stride", "is smaller than a block or not a multiple of 4");
    sl_chk_tables(c, p->seqs, SL_CHK_INDEX_PAGES);
}

void sl_chk_topk(sl_chk *c, const void *params)
{
    const sl_topk_params *p = params;

    sl_chk_slice(c, p->seqs, p->token_first, p->token_count);
    sl_chk_pos(c, "k", p->k);
    sl_chk_count(c, "lists", p->lists);
    sl_chk_need(c, p->block_log2 >= 0 && p->block_log2 <= 30, "block_log2", "is not in 0..30");
    sl_chk_count(c, "sinks", p->sinks);
    sl_chk_count(c, "recent", p->recent);
    sl_chk_count(c, "dense_below", p->dense_below);
    sl_chk_need(c, p->mass >= 0 && p->mass <= 1, "mass", "is not in 0..1");
    if (c->st != SL_OK)
        return;
    int32_t dense = sl_blocks_for(p->dense_below, p->block_log2);
    sl_chk_ld(c, "ld_ids", p->ld_ids, dense > p->k ? dense : p->k);
    sl_chk_need(c,
                (int64_t)p->sinks + p->recent <= INT32_MAX &&
                    sl_forced_blocks(p->sinks, p->recent, p->block_log2) <= p->k,
                "sinks", "and recent exceed k");
    sl_chk_pos(c, "ld_scores", p->ld_scores);
    sl_chk_ptr(c, "scores", p->scores, 4);
    sl_chk_ptr(c, "ids", p->ids, 4);
}

void sl_chk_resolve(sl_chk *c, const void *params)
{
    const sl_resolve_params *p = params;
    const sl_seq_tables *s = p->seqs;

    sl_chk_pos(c, "k", p->k);
    sl_chk_ld(c, "ld_ids", p->ld_ids, p->k);
    sl_chk_count(c, "miss_cap", p->miss_cap);
    sl_chk_can(c, p->policy == SL_EVICT_LRU || p->policy == SL_EVICT_CLOCK, "policy", "is not lru or clock");
    sl_chk_seqs(c, s);
    if (!c->pointers)
        return;
    chk_rows(c, &p->rows, p->rows.row_bytes);
    sl_chk_ptr(c, "miss_count", p->miss_count, 4);
    if (!s || s->n_tokens == 0)
        return;
    sl_chk_ptr(c, "ids", p->ids, 4);
    sl_chk_ptr(c, "phys", p->phys, 4);
    sl_chk_ptr(c, "seqs.hot_slot", s->hot_slot, 4);
    sl_chk_ptr(c, "seqs.row_pages", s->row_pages, 4);
    if (p->block_need || p->block_done || p->miss_block)
        sl_chk_need(c, p->ld_blocks >= sl_list_blocks(p->k), "ld_blocks",
                    "is smaller than the list's blocks");
    if (p->block_need || p->block_done) {
        sl_chk_ptr(c, "block_need", p->block_need, 4);
        sl_chk_ptr(c, "block_done", p->block_done, 4);
        if (p->miss_cap)
            sl_chk_ptr(c, "miss_block", p->miss_block, 4);
    }
    if (p->rows.hot_rows == 0)
        return; /* no hot buffers: every sequence must be resident, which the op checks */
    sl_chk_pos(c, "rows.tail_rows", p->rows.tail_rows);
    sl_chk_need(c, p->tail_spare >= 0 && p->tail_spare < p->rows.tail_rows / sl_row_lists(&p->rows),
                "tail_spare", "is not below tail_rows");
    sl_chk_hot(c, &p->hot, p->policy);
    sl_chk_ptr(c, "step", p->step, 4);
    sl_chk_ptr(c, "seqs.host_pages", s->host_pages, 4);
    if (p->miss_cap) {
        sl_chk_ptr(c, "miss_src", p->miss_src, 8);
        sl_chk_ptr(c, "miss_dst", p->miss_dst, 4);
    }
}

void sl_chk_gather(sl_chk *c, const void *params)
{
    const sl_gather_params *p = params;

    sl_chk_count(c, "miss_cap", p->miss_cap);
    if (!c->pointers)
        return;
    chk_rows(c, &p->rows, p->rows.row_bytes);
    sl_chk_ptr(c, "miss_count", p->miss_count, 4);
    if (p->miss_cap == 0)
        return;
    sl_chk_ptr(c, "miss_src", p->miss_src, 8);
    sl_chk_ptr(c, "miss_dst", p->miss_dst, 4);
    sl_chk_ptr(c, "host.base", p->host.base, 1);
    sl_chk_host(c, &p->host, p->rows.row_bytes * sl_row_lists(&p->rows));
    if (p->block_done)
        sl_chk_ptr(c, "miss_block", p->miss_block, 4);
    if (p->clock)
        sl_chk_ptr(c, "clock", p->clock, 8);
    if (!p->check.sums)
        return;
    sl_chk_ptr(c, "check.sums", p->check.sums, 4);
    sl_chk_ptr(c, "check.pages", p->check.pages, 4);
    sl_chk_ptr(c, "check.any", p->check.any, 4);
}

void sl_chk_hot_reset(sl_chk *c, const void *params)
{
    const sl_hot_reset_params *p = params;

    sl_chk_count(c, "hot_slots", p->hot_slots);
    sl_chk_need(c, p->slot < p->hot_slots, "slot", "is not below hot_slots");
    sl_chk_pos(c, "hot_rows", p->hot_rows);
    sl_chk_can(c, p->hot_rows <= SL_HOT_ROWS_MAX, "hot_rows", "must be at most 65534");
    sl_chk_hot(c, &p->hot, p->hot.next ? SL_EVICT_LRU : SL_EVICT_CLOCK);
}

void sl_chk_sparse_attn(sl_chk *c, const void *params)
{
    const sl_sparse_attn_params *p = params;

    chk_row_format(c, p->format);
    sl_chk_count(c, "tokens", p->tokens);
    sl_chk_pos(c, "heads", p->heads);
    sl_chk_pos(c, "lora", p->lora);
    sl_chk_count(c, "rope", p->rope);
    sl_chk_can(c, p->lora <= 8192 && p->rope <= 8192, "lora", "and rope must be at most 8192");
    sl_chk_pos(c, "k", p->k);
    sl_chk_ld(c, "ld_ids", p->ld_ids, p->k);
    if (c->st != SL_OK)
        return;
    sl_chk_size(c, "tokens", p->tokens, (int64_t)p->heads * (p->lora + p->rope));
    sl_chk_rows(c, "ql", p->ql, 4, 4 * (p->lora + (int64_t)p->rope));
    sl_chk_ptr(c, "phys", p->phys, 4);
    sl_chk_rows(c, "o", p->o, 4, 4 * (int64_t)p->lora);
    sl_chk_need(c, (uintptr_t)p->sinks % 4 == 0, "sinks", "is not aligned to its elements");
    if (p->block_need || p->block_done) {
        sl_chk_need(c, p->ld_blocks >= sl_list_blocks(p->k), "ld_blocks",
                    "is smaller than the list's blocks");
        sl_chk_ptr(c, "block_need", p->block_need, 4);
        sl_chk_ptr(c, "block_done", p->block_done, 4);
    }
    if (c->pointers)
        chk_latent_rows(c, &p->rows, sl_row_bytes(p->format, p->lora, p->rope));
}
