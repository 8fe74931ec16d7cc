/* sl_model_attention_print(): see model.h. Fine-tunes of one model differ in it, since training changes queries and keys. */
#include <string.h>

#include "base/hash.h"
#include "model/checkpoint.h"
#include "model/model.h"

enum { SAMPLE = 4096, SAMPLES = 4 };

/* "model.layers.3.self_attn.k_proj.weight", in the families with query, key and value of their own or in one. */
static bool makes_keys(const char *name)
{
    static const char *const parts[] = {".q_proj.weight", ".k_proj.weight", ".qkv_proj.weight"};
    for (size_t i = 0; i < SL_COUNT(parts); i++)
        if (strstr(name, parts[i]))
            return true;
    return false;
}

static sl_key add_tensor(sl_key k, const sl_st_tensor *t)
{
    const uint8_t *data = t->data;
    const size_t n = t->bytes < SAMPLE ? t->bytes : SAMPLE;
    k = sl_hash_chain(k, t->name, strlen(t->name));
    k = sl_hash_chain(k, t->shape, sizeof t->shape[0] * (size_t)t->rank);
    for (size_t i = 0; i < SAMPLES; i++)
        k = sl_hash_chain(k, data + (t->bytes - n) / (SAMPLES - 1) * i, n);
    return k;
}

uint64_t sl_model_attention_print(const sl_model_config *c)
{
    const int32_t shape[] = {c->n_layers,        c->attn.n_heads, c->attn.n_kv_heads,
                             c->attn.v_head_dim, c->hidden_size,  c->vocab_size};
    sl_checkpoint *ck = NULL;
    sl_key k = sl_hash_chain((sl_key){0, 0}, shape, sizeof shape);
    bool any = false;
    if (!c->dir[0] || sl_checkpoint_open(c->dir, &ck, NULL) != SL_OK)
        return 0;
    for (size_t i = 0; i < sl_checkpoint_count(ck); i++) {
        const sl_st_tensor *t = sl_checkpoint_at(ck, i)->t;
        if (!makes_keys(t->name))
            continue;
        k = add_tensor(k, t);
        any = true;
    }
    sl_checkpoint_close(ck);
    return any ? k.lo | 1 : 0;
}
