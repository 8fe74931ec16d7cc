/* The tensors of MiniMax-M3 and its row for the registry. */
#include "model/families/minimax_m3/minimax_m3.h"

static int64_t dim_head(const sl_model_config *c)
{
    return c->attn.v_head_dim;
}

static int64_t dim_index(const sl_model_config *c)
{
    return c->index.head_dim;
}

static int64_t dim_index_q(const sl_model_config *c)
{
    return (int64_t)c->index.n_heads * c->index.head_dim;
}

#define NORM (SL_SPEC_GAIN | SL_SPEC_CENTRED)

/* One row for each tensor, which clang-format would break up. Names: released ones, then those of the classes of transformers. */
/* clang-format off */
static const sl_tensor_spec model_tensors[] = {
    {"model.embed_tokens.weight", SL_T_EMBED, SL_K_TABLE, NULL, sl_dim_vocab, sl_dim_hidden, 0},
    {"model.norm.weight", SL_T_NORM, SL_K_FLOATS, NULL, sl_dim_hidden, sl_dim_one, NORM},
    {"lm_head.weight", SL_T_HEAD, SL_K_LINEAR, NULL, sl_dim_vocab, sl_dim_hidden, SL_SPEC_16BIT},
};

#define MLP(part, fused) "block_sparse_moe." part "_proj.weight|mlp." part "_proj.weight|mlp.gate_up_proj.weight#" fused
#define SHARED(part, fused) "block_sparse_moe.shared_experts." part "_proj.weight|mlp.shared_experts." part "_proj.weight|" \
    "mlp.shared_experts.gate_up_proj.weight#" fused
#define INDEX(name) "self_attn.index_" name ".weight|self_attn.indexer." name ".weight"

static const sl_tensor_spec layer_tensors[] = {
    {"input_layernorm.weight", SL_T_INPUT_NORM, SL_K_FLOATS, NULL, sl_dim_hidden, sl_dim_one, NORM},
    {"post_attention_layernorm.weight", SL_T_POST_NORM, SL_K_FLOATS, NULL, sl_dim_hidden, sl_dim_one, NORM},
    {"self_attn.q_proj.weight", SL_GQA_Q, SL_K_LINEAR, NULL, sl_gqa_dim_q, sl_dim_hidden, 0},
    {"self_attn.k_proj.weight", SL_GQA_K, SL_K_LINEAR, NULL, sl_gqa_dim_kv, sl_dim_hidden, 0},
    {"self_attn.v_proj.weight", SL_GQA_V, SL_K_LINEAR, NULL, sl_gqa_dim_kv, sl_dim_hidden, 0},
    {"self_attn.o_proj.weight", SL_GQA_O, SL_K_LINEAR, NULL, sl_dim_hidden, sl_gqa_dim_q, 0},
    {"self_attn.q_norm.weight", SL_GQA_Q_NORM, SL_K_FLOATS, NULL, dim_head, sl_dim_one, NORM},
    {"self_attn.k_norm.weight", SL_GQA_K_NORM, SL_K_FLOATS, NULL, dim_head, sl_dim_one, NORM},
    {INDEX("q_proj"), SL_M3_INDEX_Q, SL_K_LINEAR, sl_m3_in_sparse, dim_index_q, sl_dim_hidden, 0},
    {INDEX("k_proj"), SL_M3_INDEX_K, SL_K_LINEAR, sl_m3_in_sparse, dim_index, sl_dim_hidden, 0},
    {INDEX("q_norm"), SL_M3_INDEX_Q_NORM, SL_K_FLOATS, sl_m3_in_sparse, dim_index, sl_dim_one, NORM},
    {INDEX("k_norm"), SL_M3_INDEX_K_NORM, SL_K_FLOATS, sl_m3_in_sparse, dim_index, sl_dim_one, NORM},
    {MLP("gate", "0/2"), SL_T_GATE, SL_K_LINEAR, sl_in_dense, sl_dim_dense, sl_dim_hidden, 0},
    {MLP("up", "1/2"), SL_T_UP, SL_K_LINEAR, sl_in_dense, sl_dim_dense, sl_dim_hidden, 0},
    {"block_sparse_moe.down_proj.weight|mlp.down_proj.weight", SL_T_DOWN, SL_K_LINEAR, sl_in_dense, sl_dim_hidden, sl_dim_dense, 0},
    {"block_sparse_moe.gate.weight|mlp.gate.weight", SL_T_ROUTER, SL_K_LINEAR, sl_in_moe, sl_dim_experts, sl_dim_hidden,
     SL_SPEC_16BIT},
    {"block_sparse_moe.e_score_correction_bias|mlp.gate.e_score_correction_bias|block_sparse_moe.gate.e_score_correction_bias",
     SL_T_ROUTER_BIAS, SL_K_FLOATS, sl_in_moe, sl_dim_experts, sl_dim_one, 0},
    {SHARED("gate", "0/2"), SL_T_GATE, SL_K_LINEAR, sl_in_shared, sl_dim_shared, sl_dim_hidden, 0},
    {SHARED("up", "1/2"), SL_T_UP, SL_K_LINEAR, sl_in_shared, sl_dim_shared, sl_dim_hidden, 0},
    {"block_sparse_moe.shared_experts.down_proj.weight|mlp.shared_experts.down_proj.weight", SL_T_DOWN, SL_K_LINEAR, sl_in_shared,
     sl_dim_hidden, sl_dim_shared, 0},
};
/* clang-format on */

static int64_t stored_kv(const sl_model_config *c)
{
    return (int64_t)c->index.blocks.stored_kv_heads * c->attn.v_head_dim;
}

/* Of KV heads that are repeated: head h is head h * stored / heads of the file. */
static int64_t row_of_kv(const sl_model_config *c, int64_t row)
{
    const int64_t dim = c->attn.v_head_dim, head = row / dim;
    return head * c->index.blocks.stored_kv_heads / c->attn.n_kv_heads * dim + row % dim;
}

static const sl_row_map map_kv = {stored_kv, row_of_kv};

static const sl_row_map *row_map(const sl_model_config *c, int slot)
{
    return c->index.blocks.stored_kv_heads && (slot == SL_GQA_K || slot == SL_GQA_V) ? &map_kv : NULL;
}

/* Pictures, and layers that draft tokens. */
static const char *const unused[] = {"vision_tower.",
                                     "model.vision_tower.",
                                     "multi_modal_projector.",
                                     "model.multi_modal_projector.",
                                     "patch_merge_mlp.",
                                     "model.patch_merge_mlp.",
                                     "mtp.",
                                     "model.mtp.",
                                     NULL};

static void cache_dims(const sl_model_config *c, sl_cache_dims *out)
{
    out->kv_heads = c->attn.n_kv_heads;
    out->head_dim = c->attn.v_head_dim;
    out->query_heads = c->attn.n_heads;
    if (c->index.topk == 0)
        return;
    out->index_dim = c->index.head_dim;
    out->index_heads = c->index.n_heads;
    out->index_topk = c->index.topk;
    out->index_block = c->index.blocks.tokens;
    out->index_local = c->index.blocks.local;
}

static const char no_drafts[] = "its released checkpoints have no weights of an MTP layer";

const sl_family sl_family_minimax_m3 = {.model_type = "minimax_m3_vl",
                                        .architecture = "MiniMaxM3SparseForConditionalGeneration",
                                        .text_type = "minimax_m3_vl_text",
                                        .text_architecture = "MiniMaxM3VLForCausalLM",
                                        .hidden_act = "swigluoai",
                                        .begin = sl_m3_begin,
                                        .read_config = sl_m3_read_config,
                                        .cache_dims = cache_dims,
                                        .model_tensors = model_tensors,
                                        .layer_tensors = layer_tensors,
                                        .n_model_tensors = SL_COUNT(model_tensors),
                                        .n_layer_tensors = SL_COUNT(layer_tensors),
                                        .row_map = row_map,
                                        .unused = unused,
                                        .no_drafts = no_drafts,
                                        .workspace_size = sizeof(sl_m3_workspace),
                                        .workspace = sl_m3_carve,
                                        .steps = sl_m3_steps,
                                        .n_steps = SL_M3_N_STEPS,
                                        .ask_attend = sl_m3_ask_attend,
                                        .presets = sl_m3_presets};
