/* The tensors of DeepSeek-V4, what its layers keep, and its row for the registry. */
#include <stdio.h>

#include "model/families/deepseek_v4/v4.h"

bool sl_v4_in_chosen(const sl_model_config *c, int32_t layer)
{
    return c->layer_class[layer] == SL_V4_CHOSEN;
}

bool sl_v4_in_entries(const sl_model_config *c, int32_t layer)
{
    return c->layer_class[layer] != SL_V4_WINDOW;
}

static bool in_pooled(const sl_model_config *c, int32_t layer)
{
    return c->layer_class[layer] == SL_V4_POOLED;
}

static bool in_hashed(const sl_model_config *c, int32_t layer)
{
    return c->entries.hashed[layer];
}

static bool in_scored(const sl_model_config *c, int32_t layer)
{
    return !c->entries.hashed[layer];
}

static int32_t rate_of(const sl_model_config *c, int class)
{
    return class == SL_V4_CHOSEN   ? c->entries.rate_chosen
           : class == SL_V4_POOLED ? c->entries.rate_pooled
                                   : 0;
}

int32_t sl_v4_rate(const sl_model_config *c, int32_t layer)
{
    return rate_of(c, c->layer_class[layer]);
}

static int64_t dim_streams(const sl_model_config *c)
{
    return c->streams.count;
}

static int64_t dim_gates(const sl_model_config *c)
{
    return (2 + (int64_t)c->streams.count) * c->streams.count;
}

static int64_t dim_all(const sl_model_config *c)
{
    return (int64_t)c->streams.count * c->hidden_size;
}

static int64_t dim_three(const sl_model_config *c)
{
    (void)c;
    return 3;
}

static int64_t dim_heads(const sl_model_config *c)
{
    return c->attn.n_heads;
}

static int64_t dim_head(const sl_model_config *c)
{
    return c->attn.v_head_dim;
}

static int64_t dim_two_head(const sl_model_config *c)
{
    return 2 * (int64_t)c->attn.v_head_dim;
}

static int64_t dim_q(const sl_model_config *c)
{
    return (int64_t)c->attn.n_heads * c->attn.v_head_dim;
}

static int64_t dim_q_lora(const sl_model_config *c)
{
    return c->attn.q_lora_rank;
}

static int64_t dim_group(const sl_model_config *c)
{
    return dim_q(c) / c->entries.o_groups;
}

static int64_t dim_o_a(const sl_model_config *c)
{
    return (int64_t)c->entries.o_groups * c->entries.o_rank;
}

static int64_t dim_index(const sl_model_config *c)
{
    return c->index.head_dim;
}

static int64_t dim_two_index(const sl_model_config *c)
{
    return 2 * (int64_t)c->index.head_dim;
}

static int64_t dim_index_q(const sl_model_config *c)
{
    return (int64_t)c->index.n_heads * c->index.head_dim;
}

static int64_t dim_index_heads(const sl_model_config *c)
{
    return c->index.n_heads;
}

static int64_t dim_chosen(const sl_model_config *c)
{
    return c->entries.rate_chosen;
}

static int64_t dim_pooled(const sl_model_config *c)
{
    return c->entries.rate_pooled;
}

static int64_t dim_choices(const sl_model_config *c)
{
    return c->moe.per_token;
}

/* One row for each tensor, which clang-format would break up. Names: published ones, then those of the class of transformers. */
/* clang-format off */
static const sl_tensor_spec model_tensors[] = {
    {"embed.weight|model.embed_tokens.weight|model.embed.weight", SL_T_EMBED, SL_K_TABLE, NULL, sl_dim_vocab, sl_dim_hidden, 0},
    {"norm.weight|model.norm.weight", SL_T_NORM, SL_K_VECTOR, NULL, sl_dim_hidden, sl_dim_one, SL_SPEC_GAIN},
    {"head.weight|lm_head.weight", SL_T_HEAD, SL_K_LINEAR, NULL, sl_dim_vocab, sl_dim_hidden, SL_SPEC_16BIT},
    {"hc_head_fn|model.hc_head.hc_fn|model.hc_head_fn", SL_V4_HEAD_FN, SL_K_LINEAR, NULL, dim_streams, dim_all, SL_SPEC_16BIT},
    {"hc_head_base|model.hc_head.hc_base|model.hc_head_base", SL_V4_HEAD_BASE, SL_K_FLOATS, NULL, dim_streams, sl_dim_one, 0},
    {"hc_head_scale|model.hc_head.hc_scale|model.hc_head_scale", SL_V4_HEAD_SCALE, SL_K_FLOATS, NULL, sl_dim_one, sl_dim_one, 0},
};

static const sl_tensor_spec layer_tensors[] = {
    {"attn_norm.weight|input_layernorm.weight", SL_T_INPUT_NORM, SL_K_VECTOR, NULL, sl_dim_hidden, sl_dim_one, SL_SPEC_GAIN},
    {"ffn_norm.weight|post_attention_layernorm.weight", SL_T_POST_NORM, SL_K_VECTOR, NULL, sl_dim_hidden, sl_dim_one, SL_SPEC_GAIN},
    {"hc_attn_fn|attn_hc.fn", SL_V4_ATTN_FN, SL_K_LINEAR, NULL, dim_gates, dim_all, SL_SPEC_16BIT},
    {"hc_attn_base|attn_hc.base", SL_V4_ATTN_BASE, SL_K_FLOATS, NULL, dim_gates, sl_dim_one, 0},
    {"hc_attn_scale|attn_hc.scale", SL_V4_ATTN_SCALE, SL_K_FLOATS, NULL, dim_three, sl_dim_one, 0},
    {"hc_ffn_fn|ffn_hc.fn", SL_V4_MLP_FN, SL_K_LINEAR, NULL, dim_gates, dim_all, SL_SPEC_16BIT},
    {"hc_ffn_base|ffn_hc.base", SL_V4_MLP_BASE, SL_K_FLOATS, NULL, dim_gates, sl_dim_one, 0},
    {"hc_ffn_scale|ffn_hc.scale", SL_V4_MLP_SCALE, SL_K_FLOATS, NULL, dim_three, sl_dim_one, 0},
    {"attn.wq_a.weight", SL_V4_Q_A, SL_K_LINEAR, NULL, dim_q_lora, sl_dim_hidden, 0},
    {"attn.q_norm.weight", SL_V4_Q_NORM, SL_K_VECTOR, NULL, dim_q_lora, sl_dim_one, SL_SPEC_GAIN},
    {"attn.wq_b.weight", SL_V4_Q_B, SL_K_LINEAR, NULL, dim_q, dim_q_lora, 0},
    {"attn.wkv.weight", SL_V4_KV, SL_K_LINEAR, NULL, dim_head, sl_dim_hidden, 0},
    {"attn.norm.weight|attn.kv_norm.weight", SL_V4_KV_NORM, SL_K_VECTOR, NULL, dim_head, sl_dim_one, SL_SPEC_GAIN},
    {"attn.attn_sink", SL_V4_SINKS, SL_K_FLOATS, NULL, dim_heads, sl_dim_one, 0},
    {"attn.wo_a.weight", SL_V4_O_A, SL_K_LINEAR, NULL, dim_o_a, dim_group, 0},
    {"attn.wo_b.weight", SL_V4_O_B, SL_K_LINEAR, NULL, sl_dim_hidden, dim_o_a, 0},
    {"attn.compressor.wkv.weight", SL_V4_ENTRY_KV, SL_K_LINEAR, sl_v4_in_chosen, dim_two_head, sl_dim_hidden, SL_SPEC_16BIT},
    {"attn.compressor.wgate.weight", SL_V4_ENTRY_GATE, SL_K_LINEAR, sl_v4_in_chosen, dim_two_head, sl_dim_hidden, SL_SPEC_16BIT},
    {"attn.compressor.ape", SL_V4_ENTRY_BIAS, SL_K_FLOATS, sl_v4_in_chosen, dim_chosen, dim_two_head, 0},
    {"attn.compressor.wkv.weight", SL_V4_ENTRY_KV, SL_K_LINEAR, in_pooled, dim_head, sl_dim_hidden, SL_SPEC_16BIT},
    {"attn.compressor.wgate.weight", SL_V4_ENTRY_GATE, SL_K_LINEAR, in_pooled, dim_head, sl_dim_hidden, SL_SPEC_16BIT},
    {"attn.compressor.ape", SL_V4_ENTRY_BIAS, SL_K_FLOATS, in_pooled, dim_pooled, dim_head, 0},
    {"attn.compressor.norm.weight", SL_V4_ENTRY_NORM, SL_K_VECTOR, sl_v4_in_entries, dim_head, sl_dim_one, SL_SPEC_GAIN},
    {"attn.indexer.compressor.wkv.weight", SL_V4_INDEX_KV, SL_K_LINEAR, sl_v4_in_chosen, dim_two_index, sl_dim_hidden,
     SL_SPEC_16BIT},
    {"attn.indexer.compressor.wgate.weight", SL_V4_INDEX_GATE, SL_K_LINEAR, sl_v4_in_chosen, dim_two_index, sl_dim_hidden,
     SL_SPEC_16BIT},
    {"attn.indexer.compressor.ape", SL_V4_INDEX_BIAS, SL_K_FLOATS, sl_v4_in_chosen, dim_chosen, dim_two_index, 0},
    {"attn.indexer.compressor.norm.weight", SL_V4_INDEX_NORM, SL_K_VECTOR, sl_v4_in_chosen, dim_index, sl_dim_one, SL_SPEC_GAIN},
    {"attn.indexer.wq_b.weight", SL_V4_INDEX_Q, SL_K_LINEAR, sl_v4_in_chosen, dim_index_q, dim_q_lora, 0},
    {"attn.indexer.weights_proj.weight", SL_V4_INDEX_WEIGHTS, SL_K_LINEAR, sl_v4_in_chosen, dim_index_heads, sl_dim_hidden,
     SL_SPEC_16BIT},
    {"ffn.gate.weight", SL_T_ROUTER, SL_K_LINEAR, NULL, sl_dim_experts, sl_dim_hidden, SL_SPEC_16BIT},
    {"ffn.gate.bias", SL_T_ROUTER_BIAS, SL_K_FLOATS, in_scored, sl_dim_experts, sl_dim_one, 0},
    {"ffn.gate.tid2eid", SL_T_ROUTER_TABLE, SL_K_EXPERTS, in_hashed, sl_dim_vocab, dim_choices, 0},
    {"ffn.shared_experts.w1.weight", SL_T_GATE, SL_K_LINEAR, NULL, sl_dim_shared, sl_dim_hidden, 0},
    {"ffn.shared_experts.w3.weight", SL_T_UP, SL_K_LINEAR, NULL, sl_dim_shared, sl_dim_hidden, 0},
    {"ffn.shared_experts.w2.weight", SL_T_DOWN, SL_K_LINEAR, NULL, sl_dim_hidden, sl_dim_shared, 0},
};
/* clang-format on */

/* ---- the cache ---- */

sl_dtype sl_v4_kept_dtype(sl_row_format rows)
{
    return rows == SL_ROW_GQA_F32 || rows == SL_ROW_MLA_F32 ? SL_F32 : SL_BF16;
}

/* What is kept of an entry that is not complete (kernels/entries.h). It follows a ring of any length. */
static void add_open(sl_layer_state *s, const char *name, int32_t rate, int32_t dim, bool overlap)
{
    if (overlap)
        sl_layer_state_add(s, name, SL_F32, 16, 2 * (int64_t)rate, 2, 2 * (int64_t)dim);
    else
        sl_layer_state_add(s, name, SL_F32, 16, 3, dim, 1);
}

static sl_layer_state state_of(const sl_model_config *c, int class, sl_dtype dtype)
{
    sl_layer_state s = {0};
    snprintf(s.format, sizeof s.format, dtype == SL_F32 ? "v4 f32" : "v4 bf16");
    sl_layer_state_add(&s, "ring", dtype, 16, c->entries.window, c->attn.v_head_dim, 1);
    if (class != SL_V4_WINDOW)
        add_open(&s, "open entry", rate_of(c, class), c->attn.v_head_dim, class == SL_V4_CHOSEN);
    if (class == SL_V4_CHOSEN)
        add_open(&s, "open entry key", rate_of(c, class), c->index.head_dim, true);
    return s;
}

/* An entry is in the page of its last token. Where entries divide no page, those of a page are one unit. */
static sl_cache_plane plane(const char *name, int32_t rate, int32_t dim, sl_dtype dtype)
{
    const bool whole = SL_PAGE_TOKENS % rate == 0 || rate % SL_PAGE_TOKENS == 0;
    sl_cache_plane p = {.format = "v4 entries", .role = SL_PLANE_BLOCKS, .heads = 1, .n_parts = 1};
    p.unit_tokens = whole ? rate : SL_PAGE_TOKENS;
    p.parts[0] = (sl_cache_part){"entry", dtype, whole ? SL_PER_CLOSED_UNIT : SL_PER_OPEN_UNIT,
                                 whole ? dim : sl_entries_per_page(rate) * dim};
    snprintf(p.name, sizeof p.name, "%s", name);
    return p;
}

static void cache_dims(const sl_model_config *c, sl_cache_dims *out)
{
    static const char *const names[] = {"window", "chosen", "pooled"};
    const sl_dtype kept = sl_v4_kept_dtype(out->rows ? out->rows->format : SL_ROW_GQA_BF16);
    /* No layer has rows of tokens, so every row format is possible; it says the type of what is kept. */
    out->kv_heads = out->query_heads = 1;
    out->head_dim = c->attn.v_head_dim;
    out->latent = c->attn.qk_nope_head_dim, out->rope = c->attn.qk_rope_head_dim;
    out->n_classes = (int32_t)SL_COUNT(names);
    for (int k = 0; k < out->n_classes; k++) {
        sl_layer_class *l = &out->classes[k];
        *l = (sl_layer_class){.kind = k == SL_V4_WINDOW ? SL_LAYER_RING : SL_LAYER_BLOCKS,
                              .window = c->entries.window,
                              .open = SL_OPEN_ADDED,
                              .chosen = k == SL_V4_CHOSEN ? c->entries.topk : 0,
                              .state = state_of(c, k, kept)};
        snprintf(l->name, sizeof l->name, "%s", names[k]);
        if (k != SL_V4_WINDOW)
            l->planes[l->n_planes++] =
                plane(k == SL_V4_CHOSEN ? "entries" : "pooled", rate_of(c, k), c->attn.v_head_dim, kept);
        if (k == SL_V4_CHOSEN)
            l->planes[l->n_planes++] = plane("entry keys", rate_of(c, k), c->index.head_dim, kept);
    }
}

static const char *const unused[] = {"mtp.", "model.mtp.", NULL};

static const char no_drafts[] =
    "its MTP layer (mtp.*) continues the residual streams and has a window of its own, and drafts carry neither";

const sl_family sl_family_deepseek_v4 = {.model_type = "deepseek_v4",
                                         .architecture = "DeepseekV4ForCausalLM",
                                         .begin = sl_v4_begin,
                                         .read_config = sl_v4_read_config,
                                         .cache_dims = cache_dims,
                                         .model_tensors = model_tensors,
                                         .layer_tensors = layer_tensors,
                                         .n_model_tensors = SL_COUNT(model_tensors),
                                         .n_layer_tensors = SL_COUNT(layer_tensors),
                                         .unused = unused,
                                         .no_drafts = no_drafts,
                                         .workspace_size = sizeof(sl_v4_workspace),
                                         .workspace = sl_v4_carve,
                                         .steps = sl_v4_steps,
                                         .n_steps = SL_V4_N_STEPS,
                                         .presets = sl_v4_presets};
