/* What the ops of delta-rule layers, pooled index keys and n-gram embeddings require of their parameters (see kernels/check.h). */
#include <math.h>

#include "kernels/check.h"
#include "kernels/delta.h"
#include "kernels/ngram.h"
#include "kernels/pooled.h"

enum { MAX_CHANNELS = 1 << 20, MAX_HEADS = 1 << 12, MAX_INDEX_DIM = 1024 };

/* A state of `floats` values of four bytes. */
static void chk_state(sl_chk *c, const uint8_t *state, int64_t stride, int64_t values)
{
    sl_chk_need(c, stride >= 4 * values && stride % 4 == 0, "state_stride",
                "is less than a state, or no multiple of 4");
    sl_chk_ptr(c, "state", state, 4);
}

void sl_chk_conv(sl_chk *c, const void *params)
{
    const sl_conv_params *p = params;

    sl_chk_seqs(c, p->seqs);
    sl_chk_need(c, p->channels >= 1 && p->channels <= MAX_CHANNELS, "channels", "must be within 1..2^20");
    sl_chk_need(c, p->taps >= 2 && p->taps <= SL_CONV_TAPS_MAX, "taps", "must be within 2..16");
    sl_chk_need(c, p->dilation >= 1 && p->dilation <= 64, "dilation", "must be within 1..64");
    sl_chk_ld(c, "ld_x", p->ld_x, p->channels);
    sl_chk_act(c, "out_dtype", p->out_dtype);
    if (c->st != SL_OK)
        return;
    chk_state(c, p->state, p->state_stride, (int64_t)(p->taps - 1) * p->dilation * p->channels);
    sl_chk_ptr(c, "x", p->x, 4);
    sl_chk_ptr(c, "w", p->w, 4);
    sl_chk_values(c, "out", p->out, p->out_dtype);
}

void sl_chk_delta(sl_chk *c, const void *params)
{
    const sl_delta_params *p = params;

    sl_chk_seqs(c, p->seqs);
    sl_chk_need(c, p->value_heads >= 1 && p->value_heads <= MAX_HEADS, "value_heads",
                "must be within 1..4096");
    sl_chk_pos(c, "key_heads", p->key_heads);
    sl_chk_need(c, p->key_dim >= 1 && p->key_dim <= SL_DELTA_DIM_MAX, "key_dim", "must be within 1..256");
    sl_chk_need(c, p->value_dim >= 1 && p->value_dim <= SL_DELTA_DIM_MAX, "value_dim",
                "must be within 1..256");
    sl_chk_need(c, p->bound <= 0 && isfinite(p->bound), "bound", "is positive or no number");
    if (c->st != SL_OK)
        return;
    sl_chk_need(c, p->value_heads % p->key_heads == 0, "key_heads", "does not divide value_heads");
    sl_chk_ld(c, "ld_q", p->ld_q, (int64_t)p->key_heads * p->key_dim);
    sl_chk_ld(c, "ld_k", p->ld_k, (int64_t)p->key_heads * p->key_dim);
    sl_chk_ld(c, "ld_v", p->ld_v, (int64_t)p->value_heads * p->value_dim);
    chk_state(c, p->state, p->state_stride, (int64_t)p->value_heads * p->key_dim * p->value_dim);
    sl_chk_ptr(c, "q", p->q, 4);
    sl_chk_ptr(c, "k", p->k, 4);
    sl_chk_ptr(c, "v", p->v, 4);
    sl_chk_ptr(c, "gate", p->gate, 4);
    sl_chk_ptr(c, "beta", p->beta, 4);
    sl_chk_ptr(c, "a_log", p->a_log, 4);
    sl_chk_ptr(c, "dt_bias", p->dt_bias, 4);
    sl_chk_ptr(c, "out", p->out, 4);
}

void sl_chk_gated_norm(sl_chk *c, const void *params)
{
    const sl_gated_norm_params *p = params;

    sl_chk_count(c, "tokens", p->tokens);
    sl_chk_pos(c, "heads", p->heads);
    sl_chk_pos(c, "dim", p->dim);
    sl_chk_eps(c, p->eps);
    sl_chk_act(c, "act", p->act);
    sl_chk_need(c, (unsigned)p->form <= SL_GATE_SIGMOID, "form", "is unknown");
    sl_chk_ptr(c, "x", p->x, 4);
    if (p->gate)
        sl_chk_ptr(c, "gate", p->gate, 4);
    if (p->bias)
        sl_chk_ptr(c, "bias", p->bias, 4);
    sl_chk_ptr(c, "weight", p->weight, 4);
    sl_chk_values(c, "out", p->out, p->act);
}

static void chk_unit(sl_chk *c, int32_t unit_log2)
{
    sl_chk_need(c, unit_log2 >= 0 && unit_log2 <= SL_PAGE_LOG2, "unit_log2", "must be within 0..6");
}

void sl_chk_pool_append(sl_chk *c, const void *params)
{
    const sl_pool_append_params *p = params;

    sl_chk_seqs(c, p->seqs);
    chk_unit(c, p->unit_log2);
    sl_chk_need(c, p->dim >= 1 && p->dim <= MAX_INDEX_DIM, "dim", "must be within 1..1024");
    sl_chk_ld(c, "ld", p->ld, p->dim);
    sl_chk_act(c, "act", p->act);
    if (c->st != SL_OK)
        return;
    sl_chk_rope(c, p->rope, p->dim, p->cos_sin);
    if (p->norm)
        sl_chk_eps(c, p->eps);
    chk_state(c, p->state, p->state_stride, ((int64_t)p->dim << p->unit_log2) * (p->gate ? 2 : 1));
    sl_chk_ptr(c, "k", p->k, 4);
    sl_chk_ptr(c, "base", p->base, 4);
    if (p->gate)
        sl_chk_ptr(c, "ape", p->ape, 4);
    if (c->st != SL_OK || !c->pointers || !p->seqs->n_tokens)
        return;
    if (p->host.base)
        sl_chk_host(c, &p->host, 4 * (int64_t)p->dim);
    sl_chk_tables(c, p->seqs, SL_CHK_INDEX_PAGES | (p->host.base ? SL_CHK_HOST_PAGES : 0));
}

void sl_chk_pool_scores(sl_chk *c, const void *params)
{
    const sl_pool_scores_params *p = params;

    sl_chk_slice(c, p->seqs, p->token_first, p->token_count);
    chk_unit(c, p->unit_log2);
    sl_chk_pos(c, "heads", p->heads);
    sl_chk_need(c, p->heads <= MAX_HEADS, "heads", "must be at most 4096");
    sl_chk_need(c, p->dim >= 1 && p->dim <= MAX_INDEX_DIM, "dim", "must be within 1..1024");
    sl_chk_pos(c, "ld_scores", p->ld_scores);
    sl_chk_ptr(c, "q", p->q, 4);
    sl_chk_ptr(c, "base", p->base, 4);
    sl_chk_ptr(c, "scores", p->scores, 4);
    sl_chk_ptr(c, "unit_seq", p->unit_seq, 4);
    sl_chk_ptr(c, "unit_pos", p->unit_pos, 4);
    sl_chk_tables(c, p->seqs, SL_CHK_INDEX_PAGES);
}

void sl_chk_open_units(sl_chk *c, const void *params)
{
    const sl_open_units_params *p = params;

    sl_chk_seqs(c, p->seqs);
    chk_unit(c, p->unit_log2);
    sl_chk_pos(c, "ld_ids", p->ld_ids);
    sl_chk_ptr(c, "ids", p->ids, 4);
}

void sl_chk_ngram(sl_chk *c, const void *params)
{
    const sl_ngram_params *p = params;

    sl_chk_seqs(c, p->seqs);
    sl_chk_need(c, p->order >= 2 && p->order <= SL_NGRAM_MAX, "order", "must be within 2..8");
    sl_chk_need(c, p->heads >= 1 && p->heads <= SL_NGRAM_HEADS_MAX, "heads", "must be within 1..64");
    sl_chk_pos(c, "dim", p->dim);
    sl_chk_need(c, p->n_shards >= 1 && p->n_shards <= SL_NGRAM_SHARDS_MAX, "n_shards",
                "must be within 1..4096");
    sl_chk_float(c, "table_dtype", p->table_dtype);
    sl_chk_act(c, "act", p->act);
    if (c->st != SL_OK)
        return;
    chk_state(c, p->state, p->state_stride, p->order - 1);
    sl_chk_ptr(c, "ids", p->ids, 4);
    sl_chk_ptr(c, "multipliers", p->multipliers, 8);
    sl_chk_ptr(c, "sizes", p->sizes, 8);
    sl_chk_ptr(c, "offsets", p->offsets, 8);
    sl_chk_ptr(c, "shards", p->shards, sizeof(void *));
    sl_chk_ptr(c, "shard_rows", p->shard_rows, 8);
    sl_chk_values(c, "out", p->out, p->act);
}

void sl_chk_ngram_mix(sl_chk *c, const void *params)
{
    const sl_ngram_mix_params *p = params;

    sl_chk_count(c, "tokens", p->tokens);
    sl_chk_pos(c, "dim", p->dim);
    sl_chk_pos(c, "count", p->count);
    sl_chk_eps(c, p->eps);
    sl_chk_act(c, "act", p->act);
    if (c->st != SL_OK)
        return;
    sl_chk_size(c, "dim", p->dim, p->count);
    sl_chk_ptr(c, "key", p->key, 4);
    sl_chk_ptr(c, "value", p->value, 4);
    sl_chk_values(c, "streams", p->streams, p->act);
    sl_chk_ptr(c, "key_gain", p->key_gain, 4);
    sl_chk_ptr(c, "stream_gain", p->stream_gain, 4);
    sl_chk_ptr(c, "out_gain", p->out_gain, 4);
    sl_chk_ptr(c, "out", p->out, 4);
    sl_chk_ptr(c, "normed", p->normed, 4);
}
