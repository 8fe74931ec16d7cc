/*
 * A model's identity: everything on which a cached row depends, except the tokens before it.
 *
 * The hash covers the values of the config that enter the mathematics, the numeric conventions of the cache and of the
 * activations, and for every tensor in use its name, dtype, shape and bytes: all bytes up to 64 KiB, of a larger tensor
 * sixteen evenly spaced samples of 4 KiB. So it depends neither on sharding nor on the name of the directory nor on the
 * backend, and a checkpoint of hundreds of gigabytes is identified by a small part of its bytes. It is no protection
 * against files that were changed on purpose.
 *
 * The print of a share is the same hash, but of the routed experts it reads the share's only: names, dtypes and shapes
 * of the other experts are hashed, their bytes are not touched. Of a fused tensor the share is a range of its bytes,
 * which is sampled as a tensor of its own. The share of all experts has the fingerprint.
 */
#include "model/model_impl.h"

#include <string.h>

#include "base/wire.h"

#define WHOLE ((size_t)64 << 10)
#define SAMPLE ((size_t)4 << 10)
#define SAMPLES 16

static void put_f64(sl_wr *w, double d)
{
    uint64_t u;
    memcpy(&u, &d, sizeof u);
    sl_wr_u64(w, u);
}

/* Whether the layers are of different classes. Prints of other models do not mention them. */
static bool has_classes(const sl_model_config *c)
{
    for (int32_t i = 0; i < c->n_layers; i++)
        if (c->layer_class[i])
            return true;
    return false;
}

/* Leaves out max_context and the ids of bos and eos: they do not change any row. */
static void put_config(sl_wr *w, const sl_model_config *c)
{
    const int32_t ints[] = {
        c->vocab_size,
        c->hidden_size,
        c->intermediate_size,
        c->moe.intermediate_size,
        c->n_layers,
        c->attn.n_heads,
        c->attn.q_lora_rank,
        c->attn.kv_lora_rank,
        c->attn.qk_nope_head_dim,
        c->attn.qk_rope_head_dim,
        c->attn.v_head_dim,
        c->index.n_heads,
        c->index.head_dim,
        c->index.topk,
        c->moe.n_routed,
        c->moe.n_shared,
        c->moe.per_token,
        c->moe.n_group,
        c->moe.topk_group,
        c->moe.norm_topk_prob,
        c->index.rope_interleaved,
        c->rope.original_max,
        (int32_t)c->rope.type,
        c->rope.truncate,
        c->tie_word_embeddings,
        c->fp8_acts,
    };
    const double reals[] = {
        c->moe.scaling_factor, c->rms_eps,        c->attn.lora_eps,
        c->index.eps,          c->rope.theta,     c->rope.factor,
        c->rope.beta_fast,     c->rope.beta_slow, c->rope.attention_factor,
        c->attn.softmax_scale,
    };
    sl_wr_str(w, c->family);
    sl_wr_i32s(w, ints, SL_COUNT(ints));
    for (size_t i = 0; i < SL_COUNT(reals); i++)
        put_f64(w, reals[i]);
    for (int32_t i = 0; i < c->n_layers; i++)
        sl_wr_u8(w, (uint8_t)(c->layer_is_moe[i] | c->layer_has_indexer[i] << 1));
    for (int32_t i = 0; has_classes(c) && i < c->n_layers; i++)
        sl_wr_u8(w, c->layer_class[i]);
    if (c->quant.n) /* the tensors say the rest */
        sl_wr_u32(w, (uint32_t)(c->quant.half_acts + 1) << 2 | (uint32_t)(c->quant.f8_acts + 1));
    if (c->attn.n_kv_heads)
        sl_wr_u32(w, (uint32_t)c->attn.n_kv_heads);
    if (c->rope.type == SL_ROPE_LLAMA3) {
        put_f64(w, c->rope.low_freq);
        put_f64(w, c->rope.high_freq);
    }
}

static void put_entries(sl_wr *w, const sl_model_config *c)
{
    const sl_entries_config *e = &c->entries;
    const int32_t ints[] = {e->window,        e->rate_chosen,  e->rate_pooled,       e->topk,
                            e->o_groups,      e->o_rank,       e->rope.original_max, (int32_t)e->rope.type,
                            e->rope.truncate, c->streams.iters};
    const double reals[] = {e->rope.theta,    e->rope.factor,    e->rope.beta_fast,       e->rope.beta_slow,
                            e->rope.low_freq, e->rope.high_freq, e->rope.attention_factor};
    sl_wr_i32s(w, ints, SL_COUNT(ints));
    for (size_t i = 0; i < SL_COUNT(reals); i++)
        put_f64(w, reals[i]);
    for (int32_t i = 0; i < c->n_layers; i++)
        sl_wr_u8(w, e->hashed[i]);
}

/* Layers with states, and what they compute. */
static void put_layers(sl_wr *w, const sl_model_config *c)
{
    const sl_linear_config *l = &c->linear;
    const sl_ngram_config *n = &c->ngram;
    const int32_t ints[] = {c->streams.rank, c->index.unit, l->key_heads, l->value_heads, l->key_dim,
                            l->value_dim,    l->taps,       l->silu_gate, n->order,       n->heads,
                            n->dim,          n->taps,       n->eos};
    bool any = false;
    for (size_t i = 0; i < SL_COUNT(ints); i++)
        any = any || ints[i] != 0;
    if (any)
        sl_wr_i32s(w, ints, SL_COUNT(ints));
    if (l->bound != 0)
        put_f64(w, l->bound);
    if (c->streams.iters && !c->entries.window)
        sl_wr_u32(w, (uint32_t)c->streams.iters);
    for (int32_t i = 0; n->order && i < c->n_layers; i++)
        sl_wr_u8(w, n->in_layer[i]);
}

/* What only some families have: prints of others do not mention it. */
static void put_more(sl_wr *w, const sl_model_config *c)
{
    const sl_glu *g[] = {&c->mlp_glu, &c->moe.glu};
    if (c->moe.shared_intermediate_size)
        sl_wr_u32(w, (uint32_t)c->moe.shared_intermediate_size);
    if (c->moe.score != SL_ROUTE_SIGMOID)
        sl_wr_u32(w, (uint32_t)c->moe.score);
    if (c->entries.window)
        put_entries(w, c);
    if (c->index.blocks.tokens) {
        sl_wr_u32(w, (uint32_t)c->index.blocks.tokens);
        sl_wr_u32(w, (uint32_t)c->index.blocks.local);
    }
    if (c->attn.rope_halves)
        sl_wr_str(w, "rope halves");
    if (c->streams.count) {
        sl_wr_u32(w, (uint32_t)c->streams.count);
        put_f64(w, c->streams.eps);
        put_f64(w, c->streams.magnitude);
    }
    put_layers(w, c);
    for (size_t i = 0; i < SL_COUNT(g); i++)
        if (g[i]->limit != 0 || g[i]->alpha != 0 || g[i]->offset != 0) {
            sl_wr_u8(w, (uint8_t)i);
            put_f64(w, g[i]->limit);
            put_f64(w, g[i]->alpha);
            put_f64(w, g[i]->offset);
        }
}

static sl_key hash_bytes(sl_key k, const uint8_t *data, size_t n)
{
    if (n <= WHOLE)
        return sl_hash_chain(k, data, n);
    for (size_t i = 0; i < SAMPLES; i++)
        k = sl_hash_chain(k, data + (n - SAMPLE) / (SAMPLES - 1) * i, SAMPLE);
    return sl_hash_chain(k, data + n - SAMPLE, SAMPLE);
}

/* Of the bytes of a tensor, those that belong to a share. */
static sl_key hash_share(sl_key k, const sl_ck_tensor *e, const sl_model_config *c,
                         const sl_share_of_experts *s)
{
    const uint8_t *data = e->t->data;
    size_t one = e->expert == SL_CK_FUSED ? e->t->bytes / (size_t)c->moe.n_routed : 0;
    if (e->expert == SL_CK_FUSED)
        return hash_bytes(k, data + one * (size_t)s->first, one * (size_t)(s->end - s->first));
    if (e->expert == SL_CK_COMMON || (e->expert >= s->first && e->expert < s->end))
        return hash_bytes(k, data, e->t->bytes);
    return k;
}

static sl_key hash_config(const sl_model_config *c, const sl_model_opts *o)
{
    sl_wr w;
    sl_wr_init(&w);
    sl_wr_str(&w, "sluice model 1");
    put_config(&w, c);
    put_more(&w, c);
    sl_wr_u8(&w, (uint8_t)o->index_format);
    sl_wr_u8(&w, (uint8_t)o->row_format);
    sl_wr_u8(&w, (uint8_t)o->act);
    SL_CHECK(!w.bad, "no memory for a fingerprint");
    sl_key k = sl_hash_chain((sl_key){0, 0}, w.data, w.len);
    sl_wr_free(&w);
    return k;
}

void sl_fingerprints(sl_checkpoint *ck, const sl_model_config *c, const sl_model_opts *o,
                     const sl_share_of_experts *shares, int32_t n, sl_key *out)
{
    out[0] = hash_config(c, o);
    for (int32_t s = 1; s < n; s++)
        out[s] = out[0];
    for (size_t i = 0; i < sl_checkpoint_count(ck); i++) {
        const sl_ck_tensor *e = sl_checkpoint_at(ck, i);
        const char *dtype = sl_st_dtype_name(e->t->dtype);
        for (int32_t s = 0; s < n && e->used; s++) {
            sl_key k = sl_hash_chain(out[s], e->t->name, strlen(e->t->name));
            k = sl_hash_chain(k, dtype, strlen(dtype));
            k = sl_hash_chain(k, e->t->shape, sizeof e->t->shape[0] * (size_t)e->t->rank);
            out[s] = hash_share(k, e, c, &shares[s]);
        }
    }
}

sl_key sl_fingerprint(sl_checkpoint *ck, const sl_model_config *c, const sl_model_opts *o)
{
    sl_key k;
    sl_fingerprints(ck, c, o, &(sl_share_of_experts){0, c->moe.n_routed}, 1, &k);
    return k;
}

/* In the fingerprint of a checkpoint the name of a tensor is what follows the config; this text is no such name. */
sl_key sl_fingerprint_dummy(const sl_model_config *c, const sl_model_opts *o, uint64_t seed)
{
    static const char what[] = "random weights 1";
    sl_key k = sl_hash_chain(hash_config(c, o), what, sizeof what);
    return sl_hash_chain(k, &seed, sizeof seed);
}
