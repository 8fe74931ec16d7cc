/* What the ops of kernels/entries.h require of their parameters (see kernels/check.h). */
#include "kernels/entries.h"

#include "kernels/check.h"

enum { MAX_RATE = 1 << 16, MAX_DIM = 1 << 13 };

static void chk_store(sl_chk *c, const char *field, sl_dtype d)
{
    sl_chk_can(c, d == SL_F32 || d == SL_BF16, field, "must be f32 or bf16");
}

static void chk_dim(sl_chk *c, int32_t dim)
{
    sl_chk_pos(c, "dim", dim);
    sl_chk_can(c, dim <= MAX_DIM, "dim", "must be at most 8192");
}

static void chk_view(sl_chk *c, const sl_entries_view *v)
{
    chk_dim(c, v->dim);
    sl_chk_need(c, v->rate >= 1 && v->rate <= MAX_RATE, "entries.rate", "must be within 1..65536");
    chk_store(c, "entries.dtype", v->dtype);
    sl_chk_values(c, "entries.base", v->base, v->dtype);
}

void sl_chk_head_rotate(sl_chk *c, const void *params)
{
    const sl_head_rotate_params *p = params;

    sl_chk_count(c, "tokens", p->tokens);
    sl_chk_pos(c, "heads", p->heads);
    chk_dim(c, p->dim);
    sl_chk_size(c, "heads", p->heads, p->dim);
    sl_chk_ld(c, "ld_x", p->ld_x, (int64_t)p->heads * p->dim);
    sl_chk_rope(c, p->rope, p->dim, p->cos_sin);
    sl_chk_act(c, "act", p->act);
    chk_store(c, "out_dtype", p->out_dtype);
    if (p->eps != 0)
        sl_chk_eps(c, p->eps);
    if (p->norm)
        sl_chk_float(c, "norm_dtype", p->norm_dtype);
    sl_chk_need(c, p->x != p->out || (p->act == p->out_dtype && p->ld_x == p->heads * p->dim) || !c->pointers,
                "out", "is x, which has another dtype or is not dense");
    sl_chk_values(c, "x", p->x, p->act);
    sl_chk_values(c, "out", p->out, p->out_dtype);
    sl_chk_ptr(c, "pos", p->pos, 4);
}

void sl_chk_entries_append(sl_chk *c, const void *params)
{
    const sl_entries_append_params *p = params;

    chk_dim(c, p->dim);
    sl_chk_need(c, p->rate >= 1 && p->rate <= MAX_RATE, "rate", "must be within 1..65536");
    sl_chk_seqs(c, p->seqs);
    sl_chk_rope(c, p->rope, p->dim, p->cos_sin);
    sl_chk_eps(c, p->eps);
    chk_store(c, "dtype", p->dtype);
    sl_chk_float(c, "norm_dtype", p->norm_dtype);
    if (c->st != SL_OK)
        return;
    const int64_t entry = p->dim * (int64_t)sl_dtype_size(p->dtype),
                  page = sl_entries_per_page(p->rate) * entry;
    if (c->pointers) {
        sl_chk_ld(c, "open_stride", p->open_stride, sl_entries_open_bytes(p->rate, p->dim, p->overlap));
        if (!p->rows.base)
            sl_chk_ld(c, "device_stride", p->device_stride, page);
        sl_chk_ld(c, "host.row_stride", p->host.row_stride, entry);
    }
    sl_chk_ptr(c, "kv", p->kv, 4);
    sl_chk_ptr(c, "gate", p->gate, 4);
    sl_chk_ptr(c, "bias", p->bias, 4);
    sl_chk_values(c, "norm", p->norm, p->norm_dtype);
    sl_chk_ptr(c, "open", p->open, 4);
    if (p->rows.base) {
        sl_chk_row_blocks(c, &p->rows);
        sl_chk_need(c, p->rate == 1 << p->rows.block_log2 && p->rows.heads == 0 && p->rows.row_bytes == entry,
                    "rows", "are not divided into entries");
        sl_chk_values(c, "rows.base", p->rows.base, p->dtype);
    } else {
        sl_chk_values(c, "device", p->device, p->dtype);
    }
    sl_chk_values(c, "host.base", p->host.base, p->dtype);
}

void sl_chk_entry_scores(sl_chk *c, const void *params)
{
    const sl_entry_scores_params *p = params;

    chk_view(c, &p->entries);
    sl_chk_slice(c, p->seqs, p->token_first, p->token_count);
    sl_chk_pos(c, "heads", p->heads);
    sl_chk_pos(c, "ld_scores", p->ld_scores);
    if (c->st != SL_OK)
        return;
    sl_chk_size(c, "ld_scores", p->token_count, p->ld_scores);
    sl_chk_ptr(c, "q", p->q, 4);
    sl_chk_ptr(c, "weights", p->weights, 4);
    sl_chk_ptr(c, "scores", p->scores, 4);
    sl_chk_ptr(c, "seen_seq", p->seen_seq, 4);
    sl_chk_ptr(c, "seen_pos", p->seen_pos, 4);
}

void sl_chk_ring_attn(sl_chk *c, const void *params)
{
    const sl_ring_attn_params *p = params;

    sl_chk_count(c, "tokens", p->tokens);
    sl_chk_pos(c, "heads", p->heads);
    chk_dim(c, p->dim);
    sl_chk_pos(c, "window", p->window);
    sl_chk_size(c, "heads", p->heads, p->dim);
    sl_chk_seqs(c, p->seqs);
    sl_chk_act(c, "act", p->act);
    sl_chk_need(c, p->scale > 0, "scale", "must be positive");
    chk_store(c, "entries.dtype", p->entries.dtype);
    if (c->st != SL_OK)
        return;
    if (p->phys) {
        sl_chk_need(c, p->ids != NULL && p->entries.rate >= 1, "phys", "has no list of entries");
        sl_chk_values(c, "rows", p->rows, p->entries.dtype);
    } else if (p->entries.rate != 0) {
        chk_view(c, &p->entries);
        sl_chk_need(c, p->entries.dim == p->dim, "entries.dim", "is not that of the heads");
    }
    if (p->ids)
        sl_chk_ld(c, "ld_ids", p->ld_ids, p->k);
    const size_t size = sl_dtype_size(p->entries.dtype);
    if (c->pointers)
        sl_chk_ld(c, "ring_stride", p->ring_stride, (int64_t)p->window * p->dim * (int64_t)size);
    sl_chk_values(c, "q", p->q, p->act);
    sl_chk_ptr(c, "kv", p->kv, size);
    sl_chk_ptr(c, "ring", p->ring, size);
    sl_chk_ptr(c, "sinks", p->sinks, 4);
    sl_chk_values(c, "out", p->out, p->act);
}

void sl_chk_ring_store(sl_chk *c, const void *params)
{
    const sl_ring_store_params *p = params;

    chk_dim(c, p->dim);
    sl_chk_pos(c, "window", p->window);
    sl_chk_seqs(c, p->seqs);
    chk_store(c, "dtype", p->dtype);
    if (c->pointers && c->st == SL_OK)
        sl_chk_ld(c, "ring_stride", p->ring_stride,
                  (int64_t)p->window * p->dim * (int64_t)sl_dtype_size(p->dtype));
    sl_chk_values(c, "kv", p->kv, p->dtype);
    sl_chk_values(c, "ring", p->ring, p->dtype);
}
