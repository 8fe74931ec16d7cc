/* The tensors of Qwen 4, rows that are parts of one tensor, and its row for the registry. */
#include "model/families/qwen4_exp/qwen4.h"

int64_t sl_qwen4_dim_all(const sl_model_config *c)
{
    return (int64_t)c->streams.count * c->hidden_size;
}

int64_t sl_qwen4_dim_channels(const sl_model_config *c)
{
    return 2 * (int64_t)c->linear.key_heads * c->linear.key_dim + sl_qwen4_dim_values(c);
}

int64_t sl_qwen4_dim_values(const sl_model_config *c)
{
    return (int64_t)c->linear.value_heads * c->linear.value_dim;
}

int64_t sl_qwen4_dim_q(const sl_model_config *c)
{
    return (int64_t)c->attn.n_heads * c->attn.v_head_dim;
}

int64_t sl_qwen4_dim_kv(const sl_model_config *c)
{
    return (int64_t)c->attn.n_kv_heads * c->attn.v_head_dim;
}

int64_t sl_qwen4_dim_index_q(const sl_model_config *c)
{
    return (int64_t)c->index.n_heads * c->index.head_dim;
}

int64_t sl_qwen4_dim_ngram(const sl_model_config *c)
{
    return c->ngram.order ? (int64_t)(c->ngram.order - 1) * c->ngram.heads * c->ngram.dim : 0;
}

static int64_t dim_count(const sl_model_config *c)
{
    return c->streams.count;
}

static int64_t dim_rank(const sl_model_config *c)
{
    return c->streams.rank;
}

static int64_t dim_value_heads(const sl_model_config *c)
{
    return c->linear.value_heads;
}

static int64_t dim_value(const sl_model_config *c)
{
    return c->linear.value_dim;
}

static int64_t dim_taps(const sl_model_config *c)
{
    return c->linear.taps;
}

static int64_t dim_head(const sl_model_config *c)
{
    return c->attn.v_head_dim;
}

static int64_t dim_index(const sl_model_config *c)
{
    return c->index.head_dim;
}

static int64_t dim_ngram_taps(const sl_model_config *c)
{
    return c->ngram.taps;
}

static int64_t dim_order(const sl_model_config *c)
{
    return c->ngram.order;
}

static int64_t dim_parts(const sl_model_config *c)
{
    return (int64_t)(c->ngram.order - 1) * c->ngram.heads;
}

static int64_t dim_ngram_row(const sl_model_config *c)
{
    return c->ngram.dim;
}

bool sl_qwen4_in_linear(const sl_model_config *c, int32_t layer)
{
    return c->layer_class[layer] != SL_QWEN4_ATTENTION;
}

bool sl_qwen4_in_attention(const sl_model_config *c, int32_t layer)
{
    return c->layer_class[layer] == SL_QWEN4_ATTENTION;
}

bool sl_qwen4_in_ngram(const sl_model_config *c, int32_t layer)
{
    return c->ngram.in_layer[layer];
}

/* One row for each tensor, which clang-format would break up. */
/* clang-format off */
enum { CENTRED = SL_SPEC_GAIN | SL_SPEC_CENTRED };

static const sl_tensor_spec model_tensors[] = {
    {"model.embed_tokens.weight", SL_T_EMBED, SL_K_TABLE, NULL, sl_dim_vocab, sl_dim_hidden, 0},
    {"lm_head.weight", SL_T_HEAD, SL_K_LINEAR, NULL, sl_dim_vocab, sl_dim_hidden, SL_SPEC_16BIT},
    {"model.hyper_connection_mixer.hc_norm.weight", SL_QWEN4_MIX_NORM, SL_K_FLOATS, NULL, sl_qwen4_dim_all, sl_dim_one, CENTRED},
    {"model.hyper_connection_mixer.input_mix_weight_down.weight", SL_QWEN4_MIX_DOWN, SL_K_LINEAR, NULL, dim_rank, sl_qwen4_dim_all, SL_SPEC_16BIT},
    {"model.hyper_connection_mixer.input_mix_weight_up.weight", SL_QWEN4_MIX_UP, SL_K_LINEAR, NULL, sl_qwen4_dim_all, dim_rank, SL_SPEC_16BIT},
};

#define GATES(name, which) \
    {name "_hyper_connection.hc_norm.weight", SL_QWEN4_##which##_NORM, SL_K_FLOATS, NULL, sl_qwen4_dim_all, sl_dim_one, CENTRED}, \
    {name "_hyper_connection.input_mix_weight_down.weight", SL_QWEN4_##which##_DOWN, SL_K_LINEAR, NULL, dim_rank, sl_qwen4_dim_all, SL_SPEC_16BIT}, \
    {name "_hyper_connection.input_mix_weight_up.weight", SL_QWEN4_##which##_UP, SL_K_LINEAR, NULL, sl_qwen4_dim_all, dim_rank, SL_SPEC_16BIT}, \
    {name "_hyper_connection.block_inject_weight.weight", SL_QWEN4_##which##_INJECT, SL_K_LINEAR, NULL, dim_count, sl_qwen4_dim_all, SL_SPEC_16BIT}

static const sl_tensor_spec layer_tensors[] = {
    GATES("attn", ATTN),
    GATES("mlp", MLP),
    {"linear_attn.in_proj_qkv.weight", SL_QWEN4_QKV, SL_K_LINEAR, sl_qwen4_in_linear, sl_qwen4_dim_channels, sl_dim_hidden, 0},
    {"linear_attn.in_proj_z.weight", SL_QWEN4_Z, SL_K_LINEAR, sl_qwen4_in_linear, sl_qwen4_dim_values, sl_dim_hidden, 0},
    {"linear_attn.in_proj_a.weight", SL_QWEN4_A, SL_K_LINEAR, sl_qwen4_in_linear, dim_value_heads, sl_dim_hidden, SL_SPEC_16BIT},
    {"linear_attn.in_proj_b.weight", SL_QWEN4_B, SL_K_LINEAR, sl_qwen4_in_linear, dim_value_heads, sl_dim_hidden, SL_SPEC_16BIT},
    {"linear_attn.conv1d.weight", SL_QWEN4_CONV, SL_K_TAPS, sl_qwen4_in_linear, sl_qwen4_dim_channels, dim_taps, 0},
    {"linear_attn.A_log", SL_QWEN4_A_LOG, SL_K_FLOATS, sl_qwen4_in_linear, dim_value_heads, sl_dim_one, 0},
    {"linear_attn.dt_bias", SL_QWEN4_DT_BIAS, SL_K_FLOATS, sl_qwen4_in_linear, dim_value_heads, sl_dim_one, 0},
    {"linear_attn.norm.weight", SL_QWEN4_OUT_NORM, SL_K_FLOATS, sl_qwen4_in_linear, dim_value, sl_dim_one, SL_SPEC_GAIN},
    {"linear_attn.out_proj.weight", SL_QWEN4_OUT, SL_K_LINEAR, sl_qwen4_in_linear, sl_dim_hidden, sl_qwen4_dim_values, 0},
    {"self_attn.q_proj.weight", SL_QWEN4_Q, SL_K_LINEAR, sl_qwen4_in_attention, sl_qwen4_dim_q, sl_dim_hidden, 0},
    {"self_attn.q_proj.weight", SL_QWEN4_GATE, SL_K_LINEAR, sl_qwen4_in_attention, sl_qwen4_dim_q, sl_dim_hidden, 0},
    {"self_attn.k_proj.weight", SL_QWEN4_K, SL_K_LINEAR, sl_qwen4_in_attention, sl_qwen4_dim_kv, sl_dim_hidden, 0},
    {"self_attn.v_proj.weight", SL_QWEN4_V, SL_K_LINEAR, sl_qwen4_in_attention, sl_qwen4_dim_kv, sl_dim_hidden, 0},
    {"self_attn.o_proj.weight", SL_QWEN4_O, SL_K_LINEAR, sl_qwen4_in_attention, sl_dim_hidden, sl_qwen4_dim_q, 0},
    {"self_attn.q_norm.weight", SL_QWEN4_Q_NORM, SL_K_FLOATS, sl_qwen4_in_attention, dim_head, sl_dim_one, CENTRED},
    {"self_attn.k_norm.weight", SL_QWEN4_K_NORM, SL_K_FLOATS, sl_qwen4_in_attention, dim_head, sl_dim_one, CENTRED},
    {"self_attn.indexer.index_qk_proj.weight", SL_QWEN4_INDEX_Q, SL_K_LINEAR, sl_qwen4_in_attention, sl_qwen4_dim_index_q, sl_dim_hidden, SL_SPEC_16BIT},
    {"self_attn.indexer.index_qk_proj.weight", SL_QWEN4_INDEX_K, SL_K_LINEAR, sl_qwen4_in_attention, dim_index, sl_dim_hidden, SL_SPEC_16BIT},
    {"self_attn.indexer.q_layernorm.weight", SL_QWEN4_INDEX_Q_NORM, SL_K_FLOATS, sl_qwen4_in_attention, dim_index, sl_dim_one, CENTRED},
    {"self_attn.indexer.k_layernorm.weight", SL_QWEN4_INDEX_K_NORM, SL_K_FLOATS, sl_qwen4_in_attention, dim_index, sl_dim_one, CENTRED},
    {"mlp.gate.weight", SL_T_ROUTER, SL_K_LINEAR, NULL, sl_dim_experts, sl_dim_hidden, SL_SPEC_16BIT},
    {"mlp.shared_expert.gate_proj.weight", SL_T_GATE, SL_K_LINEAR, NULL, sl_dim_shared, sl_dim_hidden, 0},
    {"mlp.shared_expert.up_proj.weight", SL_T_UP, SL_K_LINEAR, NULL, sl_dim_shared, sl_dim_hidden, 0},
    {"mlp.shared_expert.down_proj.weight", SL_T_DOWN, SL_K_LINEAR, NULL, sl_dim_hidden, sl_dim_shared, 0},
    {"mlp.shared_expert_gate.weight", SL_QWEN4_SHARED_GATE, SL_K_LINEAR, NULL, sl_dim_one, sl_dim_hidden, SL_SPEC_16BIT},
    {"ple.key_proj.weight", SL_QWEN4_NGRAM_KEY, SL_K_LINEAR, sl_qwen4_in_ngram, sl_qwen4_dim_all, sl_qwen4_dim_ngram, 0},
    {"ple.value_proj.weight", SL_QWEN4_NGRAM_VALUE, SL_K_LINEAR, sl_qwen4_in_ngram, sl_dim_hidden, sl_qwen4_dim_ngram, 0},
    {"ple.norm_key.weight", SL_QWEN4_NGRAM_KEY_NORM, SL_K_FLOATS, sl_qwen4_in_ngram, sl_qwen4_dim_all, sl_dim_one, CENTRED},
    {"ple.norm_query.weight", SL_QWEN4_NGRAM_QUERY_NORM, SL_K_FLOATS, sl_qwen4_in_ngram, sl_qwen4_dim_all, sl_dim_one, CENTRED},
    {"ple.norm_conv.weight", SL_QWEN4_NGRAM_OUT_NORM, SL_K_FLOATS, sl_qwen4_in_ngram, sl_qwen4_dim_all, sl_dim_one, CENTRED},
    {"ple.conv1d.weight", SL_QWEN4_NGRAM_CONV, SL_K_TAPS, sl_qwen4_in_ngram, sl_qwen4_dim_all, dim_ngram_taps, 0},
    {"ple.ple_embedding.layer_multipliers", SL_QWEN4_NGRAM_MULTIPLIERS, SL_K_LONGS, sl_qwen4_in_ngram, dim_order, sl_dim_one, 0},
    {"ple.ple_embedding.ngram_heads_vocab_sizes", SL_QWEN4_NGRAM_SIZES, SL_K_LONGS, sl_qwen4_in_ngram, dim_parts, sl_dim_one, 0},
    {"ple.ple_embedding.ngram_heads_offsets", SL_QWEN4_NGRAM_OFFSETS, SL_K_LONGS, sl_qwen4_in_ngram, dim_parts, sl_dim_one, 0},
};
/* clang-format on */

/* q_proj has for each head its query, then its gate; index_qk_proj the queries of all heads, then the key. */
static int64_t both_q(const sl_model_config *c)
{
    return 2 * sl_qwen4_dim_q(c);
}

static int64_t both_index(const sl_model_config *c)
{
    return sl_qwen4_dim_index_q(c) + c->index.head_dim;
}

static int64_t row_of_q(const sl_model_config *c, int64_t row)
{
    return row + row / c->attn.v_head_dim * c->attn.v_head_dim;
}

static int64_t row_of_gate(const sl_model_config *c, int64_t row)
{
    return row_of_q(c, row) + c->attn.v_head_dim;
}

static int64_t row_of_index_q(const sl_model_config *c, int64_t row)
{
    (void)c;
    return row;
}

static int64_t row_of_index_k(const sl_model_config *c, int64_t row)
{
    return sl_qwen4_dim_index_q(c) + row;
}

static const sl_row_map map_q = {both_q, row_of_q}, map_gate = {both_q, row_of_gate},
                        map_index_q = {both_index, row_of_index_q},
                        map_index_k = {both_index, row_of_index_k};

static const sl_row_map *row_map(const sl_model_config *c, int slot)
{
    (void)c;
    return slot == SL_QWEN4_Q         ? &map_q
           : slot == SL_QWEN4_GATE    ? &map_gate
           : slot == SL_QWEN4_INDEX_Q ? &map_index_q
           : slot == SL_QWEN4_INDEX_K ? &map_index_k
                                      : NULL;
}

static const sl_table_spec table = {.name = "ple.ple_embedding.ngram_embedding",
                                    .when = sl_qwen4_in_ngram,
                                    .cols = dim_ngram_row,
                                    .sizes = SL_QWEN4_NGRAM_SIZES,
                                    .offsets = SL_QWEN4_NGRAM_OFFSETS};

/* The draft layer, and the part that sees pictures. */
static const char *const unused[] = {"mtp.", "model.mtp.", "model.visual.", "visual.", NULL};

static const char no_drafts[] =
    "its MTP layer (mtp.*) continues the residual streams and has a mixer of its own, and drafts carry no streams";

const sl_family sl_family_qwen4_exp = {.model_type = "qwen4_exp",
                                       .architecture = "Qwen4ExpForConditionalGeneration",
                                       .text_type = "qwen4_exp_text",
                                       .text_architecture = "Qwen4ExpForCausalLM",
                                       .begin = sl_qwen4_begin,
                                       .read_config = sl_qwen4_read_config,
                                       .cache_dims = sl_qwen4_cache_dims,
                                       .model_tensors = model_tensors,
                                       .layer_tensors = layer_tensors,
                                       .n_model_tensors = SL_COUNT(model_tensors),
                                       .n_layer_tensors = SL_COUNT(layer_tensors),
                                       .row_map = row_map,
                                       .table = &table,
                                       .unused = unused,
                                       .no_drafts = no_drafts,
                                       .workspace_size = sizeof(sl_qwen4_workspace),
                                       .workspace = sl_qwen4_carve,
                                       .steps = sl_qwen4_steps,
                                       .n_steps = SL_QWEN4_N_STEPS,
                                       .ask_attend = sl_qwen4_ask_attend,
                                       .presets = sl_qwen4_presets};
