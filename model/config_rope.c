/* The keys of config.json that describe the rotary embedding, in the old and the new layout; the registry of rope
 * types. */
#include <string.h>

#include "model/config_read.h"
#include "model/rope.h"

static sl_status no_partial(sl_config_reader *x, const json_t *rope)
{
    double partial;
    SL_TRY(sl_cfg_real_or(x, sl_cfg_get(rope, "partial_rotary_factor"), "partial_rotary_factor", 0, 1, 1,
                          &partial));
    if (partial != 1)
        return sl_cfg_cannot(x, "partial_rotary_factor: %g is not supported", partial);
    return SL_OK;
}

static sl_status read_yarn(sl_config_reader *x, const json_t *rope)
{
    sl_model_config *c = x->c;
    SL_TRY(sl_cfg_int(x, sl_cfg_get(rope, "original_max_position_embeddings"),
                      "original_max_position_embeddings", 1, 1 << 24, &c->rope.original_max));
    SL_TRY(sl_cfg_real_or(x, sl_cfg_get(rope, "factor"), "factor", 1e-3, 1e6,
                          (double)c->max_context / c->rope.original_max, &c->rope.factor));
    SL_TRY(sl_cfg_real_or(x, sl_cfg_get(rope, "beta_fast"), "beta_fast", 1e-3, 1e6, 32, &c->rope.beta_fast));
    SL_TRY(sl_cfg_real_or(x, sl_cfg_get(rope, "beta_slow"), "beta_slow", 1e-3, 1e6, 1, &c->rope.beta_slow));
    SL_TRY(sl_cfg_real_or(x, sl_cfg_get(rope, "mscale"), "mscale", 0, 1e3, 0, &c->rope.mscale));
    SL_TRY(sl_cfg_real_or(x, sl_cfg_get(rope, "mscale_all_dim"), "mscale_all_dim", 0, 1e3, 0,
                          &c->rope.mscale_all_dim));
    SL_TRY(sl_cfg_real_or(x, sl_cfg_get(rope, "attention_factor"), "attention_factor", 1e-3, 1e3, 0,
                          &c->rope.attention_factor));
    SL_TRY(sl_cfg_bool_or(x, rope, "truncate", true, &c->rope.truncate));
    return SL_OK;
}

static sl_status read_plain(sl_config_reader *x, const json_t *rope)
{
    (void)x, (void)rope;
    return SL_OK;
}

/* The published classes correct the softmax scale for every type but "default"; here YaRN alone has it. */
static sl_status no_scale(sl_config_reader *x, const json_t *rope)
{
    double all;
    SL_TRY(sl_cfg_real_or(x, sl_cfg_get(rope, "mscale_all_dim"), "mscale_all_dim", 0, 1e3, 0, &all));
    return all == 0 ? SL_OK
                    : sl_cfg_cannot(x, "mscale_all_dim: %g is supported with rope_type \"yarn\" alone", all);
}

static sl_status read_llama3(sl_config_reader *x, const json_t *rope)
{
    sl_model_config *c = x->c;
    SL_TRY(sl_cfg_int(x, sl_cfg_get(rope, "original_max_position_embeddings"),
                      "original_max_position_embeddings", 1, 1 << 24, &c->rope.original_max));
    SL_TRY(sl_cfg_real(x, sl_cfg_get(rope, "factor"), "factor", 1, 1e6, &c->rope.factor));
    SL_TRY(
        sl_cfg_real(x, sl_cfg_get(rope, "low_freq_factor"), "low_freq_factor", 1e-3, 1e6, &c->rope.low_freq));
    SL_TRY(sl_cfg_real(x, sl_cfg_get(rope, "high_freq_factor"), "high_freq_factor", 1e-3, 1e6,
                       &c->rope.high_freq));
    if (c->rope.high_freq <= c->rope.low_freq)
        return sl_cfg_bad(x, "high_freq_factor: %g is not above low_freq_factor %g", c->rope.high_freq,
                          c->rope.low_freq);
    return no_scale(x, rope);
}

/* Every frequency is divided by the factor: llama3 with an original context that all wavelengths are long against. */
static sl_status read_linear(sl_config_reader *x, const json_t *rope)
{
    sl_rope_config *r = &x->c->rope;
    SL_TRY(sl_cfg_real(x, sl_cfg_get(rope, "factor"), "factor", 1e-3, 1e6, &r->factor));
    r->original_max = 1, r->low_freq = 1, r->high_freq = 2;
    return no_scale(x, rope);
}

/* The registry of rope types. read: the type's own keys. */
static const struct {
    const char *name;
    sl_rope_type type;
    sl_status (*read)(sl_config_reader *x, const json_t *rope);
} types[] = {
    {"default", SL_ROPE_PLAIN, read_plain},
    {"yarn", SL_ROPE_YARN, read_yarn},
    {"llama3", SL_ROPE_LLAMA3, read_llama3},
    {"linear", SL_ROPE_LLAMA3, read_linear},
};

const char *sl_rope_type_name(sl_rope_type type)
{
    for (size_t i = 0; i < SL_COUNT(types); i++)
        if (types[i].type == type)
            return types[i].name;
    return "?";
}

/* The type that the keys name, and its own keys. */
static sl_status read_type(sl_config_reader *x, const json_t *rope)
{
    const char *name = NULL, *old = NULL;
    SL_TRY(sl_cfg_string(x, rope, "rope_type", &name));
    SL_TRY(sl_cfg_string(x, rope, "type", &old));
    name = name ? name : old ? old : types[0].name;
    for (size_t i = 0; i < SL_COUNT(types); i++) {
        if (strcmp(name, types[i].name) == 0) {
            x->c->rope.type = types[i].type;
            return types[i].read(x, rope);
        }
    }
    return sl_cfg_cannot(x, "rope_type: \"%.32s\" is not supported (default, yarn, llama3, linear are)",
                         name);
}

static const json_t *rope_object(const sl_config_reader *x)
{
    const json_t *rope = sl_cfg_get(x->root, "rope_parameters");
    return rope ? rope : sl_cfg_get(x->root, "rope_scaling");
}

sl_status sl_cfg_rope_of(sl_config_reader *x, const json_t *rope, const json_t *theta)
{
    sl_model_config *c = x->c;
    SL_TRY(sl_cfg_real(x, theta, "rope_theta", 1.001, 1e12, &c->rope.theta));
    c->rope.factor = c->rope.attention_factor = 1;
    c->rope.type = SL_ROPE_PLAIN;
    if (rope)
        SL_TRY(read_type(x, rope));
    sl_rope_finish_config(c);
    return SL_OK;
}

static sl_status read_rope(sl_config_reader *x, bool part)
{
    const json_t *rope = sl_cfg_get(x->root, "rope_parameters"), *old = sl_cfg_get(x->root, "rope_scaling");
    if (rope && !json_is_object(rope))
        return sl_cfg_bad(x, "rope_parameters: not an object");
    if (old && !json_is_object(old))
        return sl_cfg_bad(x, "rope_scaling: not an object");
    if (!rope)
        rope = old;
    const json_t *theta = rope ? sl_cfg_get(rope, "rope_theta") : NULL;
    if (rope && !part)
        SL_TRY(no_partial(x, rope));
    return sl_cfg_rope_of(x, rope, theta ? theta : sl_cfg_get(x->root, "rope_theta"));
}

sl_status sl_cfg_rope(sl_config_reader *x)
{
    return read_rope(x, false);
}

sl_status sl_cfg_rope_part(sl_config_reader *x, int32_t head_dim, int32_t rotated)
{
    static const char key[] = "partial_rotary_factor";
    const json_t *rope = rope_object(x), *v = json_is_object(rope) ? sl_cfg_get(rope, key) : NULL;
    double factor;
    v = v ? v : sl_cfg_get(x->root, key);
    if (v) {
        SL_TRY(sl_cfg_real(x, v, key, 0, 1, &factor));
        rotated = (int32_t)(head_dim * factor);
    }
    if (rotated < 2 || rotated > head_dim || rotated % 2)
        return sl_cfg_bad(x, "%s: %d of %d values of a head would be rotated", key, rotated, head_dim);
    x->c->attn.qk_rope_head_dim = rotated, x->c->attn.qk_nope_head_dim = head_dim - rotated;
    return read_rope(x, true);
}
