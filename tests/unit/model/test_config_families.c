/* config.json of the families of 2026: what the published classes fill in, both spellings, and what is refused, by key. */
#include <check.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/config.h"
#include "model/synthetic.h"
#include "tests/unit/run_suite.h"

/* Only what has no default. */
static const char *const hy4 =
    "{\"architectures\": [\"HYV4ForCausalLM\"], \"model_type\": \"hy_v4\", \"vocab_size\": 120832, \"hidden_size\": 2816, "
    "\"intermediate_size\": 6912, \"moe_intermediate_size\": 768, \"num_hidden_layers\": 10, \"num_attention_heads\": 32, "
    "\"num_key_value_heads\": 8, \"max_position_embeddings\": 262144, \"rms_norm_eps\": 1e-5, \"n_routed_experts\": 256, "
    "\"num_experts_per_tok\": 8, \"q_lora_rank\": 1536, \"kv_lora_rank\": 512, \"qk_nope_head_dim\": 192, "
    "\"qk_rope_head_dim\": 64, \"v_head_dim\": 256, \"index_n_heads\": 16, \"index_head_dim\": 128, \"index_topk\": 2048, "
    "\"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 10000.0}}";

static const char *const axk2 =
    "{\"architectures\": [\"AXK2ForCausalLM\"], \"model_type\": \"axk2\", \"vocab_size\": 163840, \"hidden_size\": 2048, "
    "\"intermediate_size\": 5120, \"moe_intermediate_size\": 512, \"num_hidden_layers\": 3, \"num_attention_heads\": 32, "
    "\"max_position_embeddings\": 131072, \"rms_norm_eps\": 1e-6, \"n_routed_experts\": 128, \"num_experts_per_tok\": 8, "
    "\"q_lora_rank\": 384, \"kv_lora_rank\": 128, \"qk_nope_head_dim\": 64, \"qk_rope_head_dim\": 32, \"v_head_dim\": 64, "
    "\"index_n_heads\": 16, \"index_head_dim\": 128, \"index_topk\": 2048, "
    "\"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 10000.0}}";

/* As released: the text part is nested, lists of numbers by layer. */
static const char *const m3 =
    "{\"architectures\": [\"MiniMaxM3SparseForConditionalGeneration\"], \"model_type\": \"minimax_m3_vl\", "
    "\"vision_config\": {\"hidden_size\": 1280}, \"eos_token_id\": 200020, \"text_config\": {"
    "\"hidden_act\": \"swigluoai\", \"vocab_size\": 200064, \"hidden_size\": 6144, \"dense_intermediate_size\": 12288, "
    "\"intermediate_size\": 3072, \"shared_intermediate_size\": 3072, \"num_hidden_layers\": 4, \"num_attention_heads\": 64, "
    "\"num_key_value_heads\": 4, \"head_dim\": 128, \"rotary_dim\": 64, \"rope_theta\": 5000000, "
    "\"max_position_embeddings\": 524288, \"num_local_experts\": 128, \"num_experts_per_tok\": 4, \"moe_layer_freq\": [0, 0, 0, 1], "
    "\"sparse_attention_config\": {\"sparse_num_index_heads\": 4, \"sparse_index_dim\": 128, \"sparse_block_size\": 128, "
    "\"sparse_topk_blocks\": 16, \"sparse_local_block\": 1, \"sparse_init_block\": 0, \"sparse_score_type\": \"max\", "
    "\"sparse_disable_index_value\": true, \"sparse_attention_freq\": [0, 0, 0, 1]}}}";

/* As transformers writes the text part alone. */
static const char *const m3_text =
    "{\"architectures\": [\"MiniMaxM3VLForCausalLM\"], \"model_type\": \"minimax_m3_vl_text\", \"vocab_size\": 128, "
    "\"hidden_size\": 48, \"dense_intermediate_size\": 72, \"intermediate_size\": 24, \"shared_intermediate_size\": 40, "
    "\"num_hidden_layers\": 2, \"num_attention_heads\": 8, \"num_key_value_heads\": 4, \"head_dim\": 16, \"rotary_dim\": 64, "
    "\"max_position_embeddings\": 2048, \"num_local_experts\": 8, \"num_experts_per_tok\": 2, \"index_n_heads\": 2, "
    "\"index_head_dim\": 16, \"index_block_size\": 24, \"index_topk_blocks\": 3, "
    "\"layer_types\": [\"full_attention\", \"minimax_m3_sparse\"], \"mlp_layer_types\": [\"sparse\", \"dense\"], "
    "\"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 10000.0}}";

static const char *const v4 =
    "{\"architectures\": [\"DeepseekV4ForCausalLM\"], \"model_type\": \"deepseek_v4\", \"vocab_size\": 129280, "
    "\"hidden_size\": 4096, \"moe_intermediate_size\": 2048, \"num_hidden_layers\": 6, \"num_attention_heads\": 64, "
    "\"head_dim\": 512, \"q_lora_rank\": 1024, \"o_groups\": 8, \"o_lora_rank\": 1024, \"index_n_heads\": 64, "
    "\"index_head_dim\": 128, \"index_topk\": 512, \"n_routed_experts\": 256, \"num_experts_per_tok\": 6}";
#define YARN "\"rope_type\": \"yarn\", \"factor\": 16, \"original_max_position_embeddings\": 65536"
#define ROPES(main, compress) "{\"rope_parameters\": {\"main\": {" main "}, \"compress\": {" compress "}}}"

/* `base` with the keys of `more`, a JSON object. */
static sl_status parse(const char *base, const char *more, sl_model_config *c, sl_err *err)
{
    json_t *j = json_loads(base, 0, NULL), *m = json_loads(more, 0, NULL);
    ck_assert_msg(j && m && json_object_update(j, m) == 0, "%s", more);
    char *text = json_dumps(j, 0);
    sl_status rc = sl_model_config_parse(text, strlen(text), "dir/config.json", NULL, 0, NULL, c, err);
    free(text);
    json_decref(m);
    json_decref(j);
    return rc;
}

static sl_model_config accepted(const char *base, const char *more)
{
    sl_model_config c;
    sl_err err = {0};
    ck_assert_msg(parse(base, more, &c, &err) == SL_OK, "%s: %s", more, err.text);
    return c;
}

START_TEST(defaults_of_hy4)
{
    sl_model_config c = accepted(hy4, "{}");
    ck_assert(c.streams.count == 4 && c.streams.eps == 1e-6f && c.streams.magnitude == 2.0f);
    ck_assert(c.moe.glu.limit == 10.0f && c.mlp_glu.limit == 0 && c.moe.n_group == 1 && c.moe.norm_topk_prob);
    ck_assert(!c.attn.rope_halves && c.index.rope_interleaved && c.moe.scaling_factor == 2.827f);
    ck_assert(c.attn.lora_eps == 1e-6f && c.index.eps == 1e-5f && c.rms_eps == 1e-5f);
    for (int i = 0; i < 10; i++)
        ck_assert(c.layer_is_moe[i] == (i > 0) && c.layer_has_indexer[i] == (i == 0 || i % 4 == 1));
}
END_TEST

START_TEST(keys_of_hy4)
{
    sl_model_config c = accepted(hy4, "{\"rope_interleave\": false, \"swiglu_limit\": 0, \"hc_mult\": 2}");
    ck_assert(c.attn.rope_halves && !c.index.rope_interleaved && c.moe.glu.limit == 0 &&
              c.streams.count == 2);
    c = accepted(
        hy4,
        "{\"swiglu_limit\": -1.0, \"num_hidden_layers\": 2, \"indexer_types\": [\"full\", \"full\"], "
        "\"mlp_layer_types\": [\"sparse\", \"dense\"], \"layer_types\": [\"indexed_attention\", \"full_attention\"], "
        "\"enable_ihc\": true, \"gated_mla\": true, \"gating_type\": \"elementwise\", \"learnable_sink\": true, "
        "\"enable_lm_head_fp32\": true, \"head_dim\": 64, \"qk_head_dim\": 256}"); /* keys of the released model */
    ck_assert(c.moe.glu.limit == 0 && c.layer_has_indexer[1] && c.layer_is_moe[0] && !c.layer_is_moe[1]);
}
END_TEST

START_TEST(keys_of_axk2)
{
    sl_model_config c = accepted(axk2, "{\"n_group\": null, \"topk_group\": null}");
    ck_assert(c.norm_gate_rank == 16 && c.moe.n_group == 1 && c.moe.refused_groups_zero &&
              !c.index.rope_interleaved);
    ck_assert(!c.layer_is_moe[0] && c.layer_is_moe[1] && c.layer_has_indexer[2] &&
              c.moe.scaling_factor == 2.5f);
    c = accepted(axk2, "{\"n_group\": 8, \"topk_group\": 4, \"gated_norm_rank\": 3}");
    ck_assert(c.moe.n_group == 8 && c.moe.topk_group == 4 && c.norm_gate_rank == 3);
}
END_TEST

START_TEST(keys_of_minimax_m3)
{
    sl_model_config c = accepted(m3, "{}");
    ck_assert_str_eq(c.family, "minimax_m3_vl");
    ck_assert(c.attn.n_kv_heads == 4 && c.attn.v_head_dim == 128 && c.attn.qk_rope_head_dim == 64 &&
              c.attn.qk_nope_head_dim == 64);
    ck_assert(c.index.topk == 2048 && c.index.blocks.tokens == 128 && c.index.blocks.local == 1);
    ck_assert(c.intermediate_size == 12288 && c.moe.intermediate_size == 3072 && c.moe.n_shared == 1);
    ck_assert(!c.layer_is_moe[2] && c.layer_is_moe[3] && !c.layer_has_indexer[2] && c.layer_has_indexer[3]);
    ck_assert(c.mlp_glu.limit == 7 && c.moe.glu.alpha == 1.702f && c.mlp_glu.offset == 1 &&
              c.rms_eps == 1e-6f);
    ck_assert(c.n_eos == 1 && c.eos_ids[0] == 200020 && c.rope.theta == 5e6 && c.moe.scaling_factor == 2.0f);
    ck_assert_float_eq_tol(c.attn.softmax_scale, 0.0883883f, 1e-6f);

    /* rotary_dim is read where no rope_parameters are, which their class alone reads */
    c = accepted(m3_text, "{}");
    ck_assert(c.attn.qk_rope_head_dim == 16 && c.index.topk == 72 && c.index.blocks.tokens == 24 &&
              c.index.blocks.local == 1);
    ck_assert(c.layer_is_moe[0] && !c.layer_is_moe[1] && c.layer_has_indexer[1] && !c.layer_has_indexer[0]);
    c = accepted(m3_text, "{\"rope_parameters\": {\"rope_theta\": 1e4, \"partial_rotary_factor\": 0.25}}");
    ck_assert(c.attn.qk_rope_head_dim == 4 && c.attn.qk_nope_head_dim == 12);
    c = accepted(m3_text, "{\"rope_parameters\": null, \"rotary_dim\": 6}");
    ck_assert(c.attn.qk_rope_head_dim == 6 && c.rope.theta == 5e6);

    /* more lists than KV heads: each has one; fewer: they share */
    c = accepted(m3_text, "{\"index_n_heads\": 8}");
    ck_assert(c.attn.n_kv_heads == 8 && c.index.blocks.stored_kv_heads == 4);
    c = accepted(m3_text, "{\"index_n_heads\": 1}");
    ck_assert(c.attn.n_kv_heads == 4 && c.index.blocks.stored_kv_heads == 0);

    /* without both lists every layer attends to everything, as in the published class */
    c = accepted(m3_text, "{\"layer_types\": null, \"mlp_layer_types\": null}");
    ck_assert(c.index.topk == 0 && !c.layer_has_indexer[1] && c.layer_is_moe[0] && c.layer_is_moe[1]);
}
END_TEST

START_TEST(keys_of_v4)
{
    static const uint8_t by_default[] = {2, 2, 2, 3, 2, 3}, stated[] = {0, 0, 1, 2, 1, 2};
    sl_model_config c = accepted(v4, "{}");
    ck_assert(c.entries.window == 128 && c.entries.rate_chosen == 4 && c.entries.rate_pooled == 128);
    ck_assert(c.streams.count == 4 && c.streams.iters == 20 && c.attn.qk_rope_head_dim == 64 &&
              c.attn.softmax_scale == 0.044194173824159216f);
    ck_assert(c.rope.theta == 1e4 && c.entries.rope.theta == 1.6e5 && c.entries.rope.type == SL_ROPE_PLAIN);
    ck_assert(c.moe.score == SL_ROUTE_SQRT_SOFTPLUS && c.moe.norm_topk_prob && c.mlp_glu.limit == 10.0f &&
              c.max_context == 1 << 20);
    for (int i = 0; i < 6; i++)
        ck_assert(c.layer_class[i] == (by_default[i] == 3 ? 1 : 2) && c.layer_is_moe[i] &&
                  c.entries.hashed[i] == (i < 3));
    c = accepted(
        v4,
        "{\"compress_ratios\": [0, 0, 4, 128, 4, 128, 0, 0], \"num_hash_layers\": 0, \"compress_rate_hca\": 32, "
        "\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 16, \"original_max_position_embeddings\": 65536}}");
    ck_assert(memcmp(c.layer_class, stated, sizeof stated) == 0 && c.entries.rate_pooled == 32 &&
              !c.entries.hashed[0]);
    ck_assert(c.entries.rope.type == SL_ROPE_YARN && c.entries.rope.attention_factor == 1 &&
              c.rope.type == SL_ROPE_PLAIN);
    ck_assert(c.attn.softmax_scale == 0.044194173824159216f);
    c = accepted(
        v4, ROPES("\"rope_theta\": 10000.0, \"partial_rotary_factor\": 0.125", YARN
                  ", \"rope_theta\": 5000.0, \"partial_rotary_factor\": 0.125, \"attention_factor\": 1.5"));
    ck_assert(c.entries.rope.theta == 5000 && c.entries.rope.attention_factor == 1.5 &&
              c.rope.attention_factor == 1);
}
END_TEST

/* What ModelOpt writes of weights in NVFP4: one form for all, or one for each module; a form of draft layers is not read. */
START_TEST(modules_by_name)
{
#define NV "{\"quant_algo\": \"NVFP4\", \"group_size\": 16}"
    static const char *const forms[] = {
        "{\"quantization_config\": {\"quant_method\": \"modelopt\", \"quant_algo\": \"NVFP4\", \"ignore\": [\"lm_head\"]}}",
        "{\"quantization_config\": {\"quant_method\": \"modelopt\", \"quant_algo\": \"MIXED_PRECISION\", \"ignore\": [\"lm_head\"], "
        "\"quantized_layers\": {\"model.layers.3.mlp.experts\": " NV ", \"model.layers.4.mlp.experts\": " NV
        ", \"mtp.layers.0.mlp.experts\": {\"quant_algo\": \"FP8_PB_WO\"}}}}",
        "{\"expert_dtype\": \"fp4\", \"quantization_config\": {\"quant_method\": \"fp8\", \"weight_block_size\": [128, 128], "
        "\"quantized_layers\": {\"layers.0.ffn.experts\": " NV "}}}",
    };
    sl_model_config c = accepted(_i == 2 ? v4 : hy4, forms[_i]);
    ck_assert(c.quant.n == 1 && c.quant.forms[0].dtype == SL_F4_E2M1 &&
              c.quant.forms[0].scale_type == SL_SCALE_E4M3 && c.quant.forms[0].group == 16);
    ck_assert(c.quant.half_acts == -1 && c.fp8_acts == (_i == 2));
}
END_TEST

static const struct {
    const char *const *base;
    const char *more;
    sl_status status;
    const char *says;
} wrong[] = {
    {&v4, "{\"scoring_func\": \"softmax\"}", SL_ERR_UNSUPPORTED, "scoring_func"},
    {&v4, "{\"compress_ratios\": [0, 0, 4, 8, 4, 128]}", SL_ERR_UNSUPPORTED, "compress_ratios[3]"},
    {&v4, "{\"compress_ratios\": [0, 0, 4]}", SL_ERR_INVALID, "compress_ratios"},
    {&v4, "{\"layer_types\": [\"full_attention\", 1, 2, 3, 4, 5]}", SL_ERR_UNSUPPORTED, "layer_types[0]"},
    {&v4, "{\"mlp_layer_types\": [\"dense\", \"moe\", \"moe\", \"moe\", \"moe\", \"moe\"]}", SL_ERR_INVALID,
     "mlp_layer_types"},
    {&v4, "{\"compress_rates\": {\"compressed_sparse_attention\": 0}}", SL_ERR_INVALID,
     "compressed_sparse_attention"},
    {&v4, "{\"num_key_value_heads\": 2}", SL_ERR_INVALID, "num_key_value_heads"},
    {&v4, "{\"o_groups\": 7}", SL_ERR_INVALID, "o_groups"},
    {&v4, "{\"num_experts_per_tok\": 257}", SL_ERR_INVALID, "num_experts_per_tok"},
    {&v4, "{\"partial_rotary_factor\": 0.002}", SL_ERR_INVALID, "partial_rotary_factor"},
    {&v4, "{\"qk_rope_head_dim\": 130}", SL_ERR_INVALID, "index_head_dim"},
    {&v4, "{\"swiglu_limit\": 0}", SL_ERR_INVALID, "swiglu_limit"},
    {&v4, "{\"hc_sinkhorn_iters\": 0}", SL_ERR_INVALID, "hc_sinkhorn_iters"},
    {&v4, "{\"attention_bias\": true}", SL_ERR_UNSUPPORTED, "attention_bias"},
    {&v4, ROPES("\"rope_theta\": 10000.0", YARN ", \"rope_theta\": 5000.0"), SL_ERR_INVALID,
     "partial_rotary_factor"},
    {&v4,
     ROPES("\"partial_rotary_factor\": 0.125",
           YARN ", \"rope_theta\": 5000.0, \"partial_rotary_factor\": 0.125"),
     SL_ERR_INVALID, "rope_theta: missing"},
    {&axk2, "{\"n_group\": 8}", SL_ERR_INVALID, "n_group"},
    {&axk2, "{\"topk_group\": 8}", SL_ERR_INVALID, "topk_group"},
    {&axk2, "{\"n_group\": 7, \"topk_group\": 1}", SL_ERR_INVALID, "n_group: 7"},
    {&axk2, "{\"gated_norm_rank\": 0}", SL_ERR_INVALID, "gated_norm_rank"},
    {&axk2, "{\"num_key_value_heads\": 8}", SL_ERR_INVALID, "num_key_value_heads"},
    {&axk2, "{\"indexer_types\": [\"full\", \"full\", \"full\"]}", SL_ERR_UNSUPPORTED, "indexer_types"},
    {&hy4, "{\"attention_bias\": true}", SL_ERR_UNSUPPORTED, "attention_bias"},
    {&hy4, "{\"hidden_act\": \"gelu\"}", SL_ERR_UNSUPPORTED, "hidden_act"},
    {&hy4, "{\"q_lora_rank\": null}", SL_ERR_INVALID, "q_lora_rank: missing"},
    {&hy4, "{\"hc_mult\": 0}", SL_ERR_INVALID, "hc_mult"},
    {&hy4, "{\"hc_mult\": 17}", SL_ERR_INVALID, "hc_mult"},
    {&hy4, "{\"hc_mult\": \"4\"}", SL_ERR_INVALID, "hc_mult"},
    {&hy4, "{\"hc_eps\": -1}", SL_ERR_INVALID, "hc_eps"},
    {&hy4, "{\"hc_magnitude\": []}", SL_ERR_INVALID, "hc_magnitude"},
    {&hy4, "{\"swiglu_limit\": \"none\"}", SL_ERR_INVALID, "swiglu_limit"},
    {&hy4, "{\"rope_interleave\": 1}", SL_ERR_INVALID, "rope_interleave"},
    {&hy4, "{\"index_topk_freq\": 4}", SL_ERR_UNSUPPORTED, "index_topk_freq"},
    {&hy4, "{\"enable_ihc\": false}", SL_ERR_UNSUPPORTED, "enable_ihc"},
    {&hy4, "{\"gated_mla\": false}", SL_ERR_UNSUPPORTED, "gated_mla"},
    {&hy4, "{\"gating_type\": \"headwise\"}", SL_ERR_UNSUPPORTED, "gating_type"},
    {&hy4, "{\"learnable_sink\": false}", SL_ERR_UNSUPPORTED, "learnable_sink"},
    {&m3_text, "{\"use_gemma_norm\": false}", SL_ERR_UNSUPPORTED, "use_gemma_norm"},
    {&hy4, "{\"index_topk_pattern\": \"FFFFFFFFFF\"}", SL_ERR_UNSUPPORTED, "index_topk_pattern"},
    {&hy4, "{\"layer_types\": [\"sliding_attention\"]}", SL_ERR_UNSUPPORTED, "layer_types[0]"},
    {&hy4, "{\"scoring_func\": \"softmax\"}", SL_ERR_UNSUPPORTED, "scoring_func"},
    {&hy4, "{\"rope_parameters\": {\"rope_type\": \"default\"}}", SL_ERR_INVALID, "rope_theta: missing"},
    {&hy4, "{\"rope_parameters\": {\"rope_type\": \"longrope\", \"rope_theta\": 1e4}}", SL_ERR_UNSUPPORTED,
     "longrope"},
    {&hy4,
     "{\"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 1e4, \"partial_rotary_factor\": 0.5}}",
     SL_ERR_UNSUPPORTED, "partial_rotary_factor"},
    {&hy4,
     "{\"rope_parameters\": {\"rope_type\": \"llama3\", \"rope_theta\": 1e4, \"factor\": 8.0, \"low_freq_factor\": 1.0, "
     "\"high_freq_factor\": 4.0, \"original_max_position_embeddings\": 8192, \"mscale_all_dim\": 1.0}}",
     SL_ERR_UNSUPPORTED, "mscale_all_dim"},
    {&m3_text, "{\"index_block_size\": 0}", SL_ERR_INVALID, "index_block_size"},
    {&m3_text, "{\"index_topk_blocks\": null}", SL_ERR_INVALID, "index_topk_blocks: missing"},
    {&m3_text, "{\"index_local_blocks\": 4}", SL_ERR_UNSUPPORTED, "index_local_blocks: 4"},
    {&m3_text, "{\"index_n_heads\": 3}", SL_ERR_INVALID, "index_n_heads: 3"},
    {&m3_text, "{\"num_attention_heads\": 24, \"num_key_value_heads\": 4, \"index_n_heads\": 6}",
     SL_ERR_UNSUPPORTED, "index_n_heads: 6"},
    {&m3_text, "{\"index_head_dim\": 8}", SL_ERR_UNSUPPORTED, "index_head_dim: 8"},
    {&m3_text, "{\"index_head_dim\": 512}", SL_ERR_INVALID, "index_head_dim: 512"},
    {&m3_text, "{\"num_key_value_heads\": 3}", SL_ERR_INVALID, "num_key_value_heads: 3"},
    {&m3_text, "{\"layer_types\": [\"full_attention\", \"sliding_attention\"]}", SL_ERR_INVALID,
     "layer_types[1]"},
    {&m3_text, "{\"layer_types\": [\"full_attention\"]}", SL_ERR_INVALID, "layer_types"},
    {&m3_text, "{\"num_experts_per_tok\": 9}", SL_ERR_INVALID, "num_experts_per_tok: 9"},
    {&m3_text, "{\"hidden_act\": \"gelu\"}", SL_ERR_UNSUPPORTED, "hidden_act"},
    {&m3_text, "{\"swiglu_limit\": 0}", SL_ERR_INVALID, "swiglu_limit"},
    {&m3_text, "{\"use_qk_norm\": false}", SL_ERR_UNSUPPORTED, "use_qk_norm"},
    {&m3_text, "{\"qk_norm_type\": \"per_layer\"}", SL_ERR_UNSUPPORTED, "qk_norm_type"},
    {&m3_text, "{\"n_shared_experts\": 2}", SL_ERR_INVALID, "n_shared_experts"},
    {&m3_text, "{\"rope_parameters\": {\"rope_theta\": 1e4, \"partial_rotary_factor\": 0.05}}",
     SL_ERR_INVALID, "partial_rotary_factor"},
    {&m3_text, "{\"moe_layer_freq\": [1], \"mlp_layer_types\": null}", SL_ERR_INVALID, "moe_layer_freq"},
    {&m3_text, "{\"moe_layer_freq\": [1, 2], \"mlp_layer_types\": null}", SL_ERR_INVALID,
     "moe_layer_freq[1]"},
    {&m3_text, "{\"sparse_attention_config\": 7}", SL_ERR_INVALID, "sparse_attention_config"},
    {&m3_text, "{\"sparse_attention_config\": {\"sparse_init_block\": 1}}", SL_ERR_UNSUPPORTED,
     "sparse_init_block"},
    {&m3_text, "{\"sparse_attention_config\": {\"sparse_init_blocks\": 2}}", SL_ERR_UNSUPPORTED,
     "sparse_init_blocks"},
    {&m3_text, "{\"sparse_attention_config\": {\"sparse_score_type\": \"mean\"}}", SL_ERR_UNSUPPORTED,
     "sparse_score_type"},
    {&m3_text, "{\"sparse_attention_config\": {\"sparse_disable_index_value\": false}}", SL_ERR_UNSUPPORTED,
     "sparse_disable_index_value"},
    {&m3_text, "{\"sparse_attention_config\": {\"sparse_disable_index_value\": [0, 0]}}", SL_ERR_UNSUPPORTED,
     "sparse_disable_index_value"},
    {&m3, "{\"text_config\": []}", SL_ERR_INVALID, "text_config"},
    {&m3, "{\"text_config\": {\"model_type\": \"llama\"}}", SL_ERR_UNSUPPORTED, "text_config"},
    {&m3, "{\"text_config\": {}}", SL_ERR_INVALID, "vocab_size: missing"},
    {&m3, "{\"architectures\": [\"LlamaForCausalLM\"]}", SL_ERR_UNSUPPORTED, "architectures"},
    {&hy4, "{\"quantization_config\": {\"quant_method\": \"mxfp4\"}}", SL_ERR_UNSUPPORTED,
     "quantization_config"},
    {&hy4,
     "{\"quantization_config\": {\"quant_method\": \"modelopt\", \"quant_algo\": \"MXFP8\", \"group_size\": 32}}",
     SL_ERR_UNSUPPORTED, "MXFP8"}, /* Hy4-preview-FP8 */
    {&hy4, "{\"quantization_config\": {\"quant_method\": \"modelopt\", \"quant_algo\": \"MIXED_PRECISION\"}}",
     SL_ERR_INVALID, "quantized_layers"},
    {&hy4,
     "{\"quantization_config\": {\"quant_method\": \"modelopt\", \"quant_algo\": \"MIXED_PRECISION\", \"quantized_layers\": "
     "{\"model.layers.0.mlp.experts\": " NV
     ", \"model.layers.0.self_attn.o_proj\": {\"quant_algo\": \"FP8\"}}}}",
     SL_ERR_UNSUPPORTED, "quantized_layers.model.layers.0.self_attn.o_proj.quant_algo: \"FP8\""},
};

/* Every model that can be made says of every state what lies in it. */
START_TEST(states_have_shapes)
{
    int32_t states = 0;

    for (size_t i = 0; sl_synthetic_name(i); i++)
        for (int rows = 0; rows < 2; rows++) {
            sl_model_config c;
            sl_cache_dims d;
            sl_err err = {0};
            ck_assert_msg(sl_synthetic_config(sl_synthetic_name(i), 0, &c, &err) == SL_OK, "%s", err.text);
            sl_model_cache_dims(&c,
                                c.attn.kv_lora_rank > 0 ? (rows ? SL_ROW_MLA_BF16 : SL_ROW_MLA_F32)
                                                        : (rows ? SL_ROW_GQA_BF16 : SL_ROW_GQA_F32),
                                SL_INDEX_PLAIN, &d);
            for (int32_t k = 0; k < d.n_classes; k++) {
                const sl_layer_class *l = &d.classes[k];
                ck_assert_msg((l->state.bytes > 0) == (l->state.n_parts > 0), "%s: %s", c.family, l->name);
                ck_assert_msg(sl_layer_state_check(l->name, l->kind, l->window, &l->state, &err) == SL_OK,
                              "%s", err.text);
                states += l->state.n_parts > 0;
            }
        }
    ck_assert_int_gt(states, 0);
}
END_TEST

START_TEST(refused)
{
    sl_model_config c;
    sl_err err = {0};
    sl_status rc = parse(*wrong[_i].base, wrong[_i].more, &c, &err);
    ck_assert_msg(rc == wrong[_i].status && strstr(err.text, wrong[_i].says) &&
                      strstr(err.text, "dir/config.json"),
                  "%s: %s: %s", wrong[_i].more, sl_status_name(rc), err.text);
}
END_TEST

/* Every key that a config has is missing, null or of another type in turn: accepted, or refused with the key's name. */
START_TEST(every_key)
{
    static const char *const values[] = {"null", "[]", "{}", "\"x\"", "-7", "1e30", "true"};
    const char *base = _i == 3 ? v4 : _i == 2 ? m3_text : _i ? axk2 : hy4;
    json_t *j = json_loads(base, 0, NULL);
    const char *key;
    json_t *v;
    json_object_foreach(j, key, v) for (size_t i = 0; i < SL_COUNT(values); i++)
    {
        char more[128];
        sl_model_config c;
        sl_err err = {0};
        snprintf(more, sizeof more, "{\"%s\": %s}", key, values[i]);
        sl_status rc = parse(base, more, &c, &err);
        const char *name = strcmp(key, "rope_parameters") == 0 ? "rope" : key;
        ck_assert_msg(rc == SL_OK || strstr(err.text, name) || strstr(err.text, "heads * head dimension") ||
                          strstr(err.text, "rotary") || strstr(err.text, "a product of heads"),
                      "%s: %s", more, err.text);
    }
    json_decref(j);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("config of the families of 2026");
    TCase *t = tcase_create("config");
    tcase_add_test(t, defaults_of_hy4);
    tcase_add_test(t, keys_of_hy4);
    tcase_add_test(t, keys_of_axk2);
    tcase_add_test(t, keys_of_minimax_m3);
    tcase_add_test(t, keys_of_v4);
    tcase_add_test(t, states_have_shapes);
    tcase_add_loop_test(t, modules_by_name, 0, 3);
    tcase_add_loop_test(t, every_key, 0, 4);
    tcase_add_loop_test(t, refused, 0, SL_COUNT(wrong));
    suite_add_tcase(s, t);
    return run_suite(s);
}
