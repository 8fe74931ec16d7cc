/* What the ops of grouped-query attention require of their parameters (see kernels/check.h). */
#include "kernels/check.h"
#include "kernels/gqa.h"

enum { MAX_DIM = 1024, MAX_HEADS = 1 << 12 };

static void chk_dims(sl_chk *c, int32_t heads, int32_t dim)
{
    sl_chk_pos(c, "heads", heads);
    sl_chk_pos(c, "dim", dim);
    sl_chk_need(c, dim % 2 == 0, "dim", "is odd");
    sl_chk_can(c, dim <= MAX_DIM, "dim", "must be at most 1024");
    sl_chk_can(c, heads <= MAX_HEADS, "heads", "must be at most 4096");
}

static void chk_head(sl_chk *c, const sl_gqa_head_params *p, int32_t dim)
{
    sl_chk_need(c, p->rope >= 0 && p->rope <= dim && p->rope % 2 == 0, "rope",
                "is odd, negative or more than dim");
    if (p->bias)
        sl_chk_ptr(c, "bias", p->bias, 4);
    if (p->norm) {
        sl_chk_ptr(c, "norm", p->norm, 4);
        sl_chk_eps(c, p->eps);
    }
    sl_chk_ptr(c, "cos_sin", p->cos_sin, 4);
}

static void chk_format(sl_chk *c, sl_row_format f)
{
    sl_chk_can(c, sl_gqa_row_bytes(f, 1, 2) > 0, "format", "is not a format of rows with keys and values");
}

void sl_chk_key_rows(sl_chk *c, const sl_row_view *r, sl_row_format f, int32_t kv_heads, int32_t dim)
{
    sl_chk_need(c, r->heads == 0 || r->heads == kv_heads, "rows.heads",
                "is neither 0 nor the number of KV heads");
    if (c->st != SL_OK)
        return;
    sl_chk_need(c, r->row_bytes == sl_gqa_row_bytes(f, sl_gqa_row_slots(r, kv_heads), dim), "rows.row_bytes",
                "is not the format's row size");
}

void sl_chk_group(sl_chk *c, int32_t heads, int32_t kv_heads)
{
    sl_chk_pos(c, "heads", heads);
    sl_chk_pos(c, "kv_heads", kv_heads);
    if (c->st == SL_OK)
        sl_chk_need(c, heads % kv_heads == 0, "kv_heads", "does not divide heads");
}

void sl_chk_key_heads(sl_chk *c, int32_t kv_heads, int32_t dim)
{
    sl_chk_pos(c, "kv_heads", kv_heads);
    sl_chk_pos(c, "dim", dim);
    sl_chk_can(c, dim <= MAX_DIM, "dim", "must be at most 1024");
    sl_chk_can(c, kv_heads <= MAX_HEADS, "kv_heads", "must be at most 4096");
}

void sl_chk_key_format(sl_chk *c, sl_row_format format, const sl_row_view *rows)
{
    chk_format(c, format);
    sl_chk_row_blocks(c, rows);
}

void sl_chk_key_source(sl_chk *c, const sl_chk_keys *k)
{
    sl_chk_seqs(c, k->seqs);
    if (c->st != SL_OK || !c->pointers)
        return;
    sl_chk_key_rows(c, k->rows, k->format, k->heads, k->dim);
    if (k->device_rows)
        sl_chk_rows(c, "rows.base", k->rows->base, 4, k->rows->row_bytes);
    else
        sl_chk_need(c, k->rows->base || k->host_rows->base, "rows.base", "and host_rows.base are both NULL");
    if (k->host_rows->base)
        sl_chk_host(c, k->host_rows, k->rows->row_bytes * sl_row_lists(k->rows));
    if (k->host->base)
        sl_chk_host(c, k->host, k->host_bytes);
    if (c->st != SL_OK || !k->seqs || k->seqs->n_tokens == 0)
        return;
    sl_chk_ptr(c, "seqs.index_pages", k->seqs->index_pages, 4);
    if (k->rows->base) {
        sl_chk_ptr(c, "seqs.hot_slot", k->seqs->hot_slot, 4);
        sl_chk_ptr(c, "seqs.row_pages", k->seqs->row_pages, 4);
    }
    if (k->host->base || k->host_rows->base)
        sl_chk_ptr(c, "seqs.host_pages", k->seqs->host_pages, 4);
}

void sl_chk_list_scores(sl_chk *c, const sl_chk_scores *s)
{
    sl_chk_group(c, s->heads, s->kv_heads);
    sl_chk_pos(c, "ld_scores", s->ld_scores);
    sl_chk_slice(c, s->seqs, s->token_first, s->token_count);
    sl_chk_need(c, s->lists == 1 || s->lists == s->kv_heads, "lists", "is neither 1 nor kv_heads");
    sl_chk_need(c, s->reduce_known, "reduce", "is unknown");
    sl_chk_need(c, !s->softmax || s->scale > 0, "scale", "must be positive");
    sl_chk_size(c, "ld_scores", (int64_t)s->token_count * s->lists, s->ld_scores);
    sl_chk_ptr(c, "q", s->q, 4);
    sl_chk_ptr(c, "scores", s->scores, 4);
    sl_chk_tables(c, s->seqs, SL_CHK_INDEX_PAGES);
}

static void chk_rows(sl_chk *c, const sl_row_view *r, sl_row_format f, int32_t kv_heads, int32_t dim)
{
    sl_chk_row_blocks(c, r);
    sl_chk_key_rows(c, r, f, kv_heads, dim);
    if (c->st != SL_OK)
        return;
    sl_chk_count(c, "rows.hot_base", r->hot_base);
    sl_chk_rows(c, "rows.base", r->base, 4, r->row_bytes);
}

void sl_chk_gqa_query(sl_chk *c, const void *params)
{
    const sl_gqa_query_params *p = params;

    sl_chk_count(c, "tokens", p->tokens);
    chk_dims(c, p->heads, p->dim);
    if (c->st != SL_OK)
        return;
    sl_chk_size(c, "tokens", p->tokens, (int64_t)p->heads * p->dim);
    chk_head(c, &p->head, p->dim);
    sl_chk_act(c, "act", p->act);
    sl_chk_ptr(c, "q", p->q, 4);
    sl_chk_ptr(c, "pos", p->pos, 4);
    sl_chk_ptr(c, "out", p->out, 4);
}

void sl_chk_gqa_append(sl_chk *c, const void *params)
{
    const sl_gqa_append_params *p = params;

    chk_format(c, p->format);
    chk_dims(c, p->heads, p->dim);
    if (c->st != SL_OK)
        return;
    chk_head(c, &p->key, p->dim);
    sl_chk_act(c, "act", p->act);
    sl_chk_ptr(c, "k", p->k, 4);
    sl_chk_ptr(c, "v", p->v, 4);
    if (p->v_bias)
        sl_chk_ptr(c, "v_bias", p->v_bias, 4);
    sl_chk_seqs(c, p->seqs);
    if (!c->pointers)
        return;
    chk_rows(c, &p->rows, p->format, p->heads, p->dim);
    if (p->host.base)
        sl_chk_host(c, &p->host, p->rows.row_bytes * sl_row_lists(&p->rows));
    sl_chk_tables(c, p->seqs, SL_CHK_HOT_SLOT | SL_CHK_ROW_PAGES | (p->host.base ? SL_CHK_HOST_PAGES : 0));
}

static void chk_lists(sl_chk *c, const sl_gqa_attn_params *p)
{
    sl_chk_ptr(c, "phys", p->phys, 4);
    if (p->rows.block_log2)
        sl_chk_ptr(c, "ids", p->ids, 4);
    if (p->rows.block_log2 || p->skip_factor > 0)
        sl_chk_ptr(c, "pos", p->pos, 4);
}

static void chk_causal(sl_chk *c, const sl_gqa_attn_params *p)
{
    sl_chk_seqs(c, p->seqs);
    sl_chk_need(c, p->seqs->n_tokens == p->tokens, "seqs.n_tokens", "is not the number of tokens");
    if (p->tokens)
        sl_chk_ptr(c, "seqs.row_pages", p->seqs->row_pages, 4);
    if (!p->prompt.of)
        return;
    sl_chk_ptr(c, "prompt.pages", p->prompt.pages, 4);
    sl_chk_pos(c, "prompt.ld", p->prompt.ld);
}

void sl_chk_prompt_scores(sl_chk *c, const void *params)
{
    const sl_prompt_scores_params *p = params;

    chk_format(c, p->format);
    sl_chk_count(c, "n", p->n);
    chk_dims(c, p->heads, p->dim);
    sl_chk_group(c, p->heads, p->kv_heads);
    sl_chk_seqs(c, p->seqs);
    if (c->st != SL_OK)
        return;
    sl_chk_need(c, p->scale > 0, "scale", "must be positive");
    sl_chk_need(c, p->max_pos >= 0, "max_pos", "is negative");
    sl_chk_need(c, p->ld_scores > p->max_pos / SL_PAGE_TOKENS, "ld_scores",
                "is less than the pages of max_pos");
    sl_chk_rows(c, "q", p->q, 4, 4 * (int64_t)p->dim);
    sl_chk_ptr(c, "first", p->first, 4);
    sl_chk_ptr(c, "scores", p->scores, 4);
    if (!c->pointers)
        return;
    chk_rows(c, &p->rows, p->format, p->kv_heads, p->dim);
    sl_chk_ptr(c, "seqs.row_pages", p->seqs->row_pages, 4);
}

void sl_chk_gqa_attn(sl_chk *c, const void *params)
{
    const sl_gqa_attn_params *p = params;

    chk_format(c, p->format);
    sl_chk_count(c, "tokens", p->tokens);
    chk_dims(c, p->heads, p->dim);
    sl_chk_group(c, p->heads, p->kv_heads);
    sl_chk_pos(c, "k", p->k);
    if (!p->seqs)
        sl_chk_ld(c, "ld_ids", p->ld_ids, p->k);
    if (c->st != SL_OK)
        return;
    sl_chk_need(c, p->scale > 0, "scale", "must be positive");
    sl_chk_need(c, p->skip_factor >= 0, "skip_factor", "must not be negative");
    sl_chk_count(c, "skip_from", p->skip_from);
    sl_chk_act(c, "act", p->act);
    sl_chk_size(c, "tokens", p->tokens, (int64_t)p->heads * p->dim);
    sl_chk_rows(c, "q", p->q, 4, 4 * (int64_t)p->dim);
    sl_chk_rows(c, "out", p->out, sl_dtype_size(p->act), p->dim * (int64_t)sl_dtype_size(p->act));
    if (!c->pointers)
        return;
    chk_rows(c, &p->rows, p->format, p->kv_heads, p->dim);
    if (p->seqs)
        chk_causal(c, p);
    else
        chk_lists(c, p);
    sl_chk_need(c, !p->prompt.of || p->seqs, "prompt", "has lists, but there are no sequences");
    if (p->skip_factor > 0)
        sl_chk_ptr(c, "tiles", p->tiles, 8);
}
