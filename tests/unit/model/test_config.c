/*
 * config.json: every key that matters is required, and its type and bounds are checked; both forms of the rope keys and
 * all forms of layer patterns are read; the derived numbers equal those of the reference.
 */
#include <check.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint_tools.h"
#include "model/config.h"
#include "model/family.h"
#include "model/rope.h"
#include "tests/unit/run_suite.h"

/* DeepSeek-V3.2 as published. */
static const char *const v32 =
    "{\"architectures\":[\"DeepseekV32ForCausalLM\"],\"model_type\":\"deepseek_v32\","
    "\"vocab_size\":129280,\"hidden_size\":7168,\"intermediate_size\":18432,"
    "\"moe_intermediate_size\":2048,\"num_hidden_layers\":61,\"first_k_dense_replace\":3,"
    "\"moe_layer_freq\":1,\"num_attention_heads\":128,\"num_key_value_heads\":128,\"q_lora_rank\":1536,"
    "\"kv_lora_rank\":512,\"qk_nope_head_dim\":128,\"qk_rope_head_dim\":64,\"v_head_dim\":128,"
    "\"index_n_heads\":64,\"index_head_dim\":128,\"index_topk\":2048,\"n_routed_experts\":256,"
    "\"n_shared_experts\":1,\"num_experts_per_tok\":8,\"n_group\":8,\"topk_group\":4,"
    "\"topk_method\":\"noaux_tc\",\"scoring_func\":\"sigmoid\",\"norm_topk_prob\":true,"
    "\"routed_scaling_factor\":2.5,\"hidden_act\":\"silu\",\"rms_norm_eps\":1e-06,"
    "\"attention_bias\":false,\"tie_word_embeddings\":false,\"num_nextn_predict_layers\":1,"
    "\"max_position_embeddings\":163840,\"rope_theta\":10000,\"bos_token_id\":0,\"eos_token_id\":1,"
    "\"rope_scaling\":{\"type\":\"yarn\",\"factor\":40,\"original_max_position_embeddings\":4096,"
    "\"beta_fast\":32,\"beta_slow\":1,\"mscale\":1.0,\"mscale_all_dim\":1.0},"
    "\"quantization_config\":{\"quant_method\":\"fp8\",\"fmt\":\"e4m3\","
    "\"activation_scheme\":\"dynamic\",\"weight_block_size\":[128,128],\"scale_fmt\":\"ue8m0\"}}";

/* The keys whose values differ in GLM-5.2. */
static const char *const glm =
    "{\"architectures\":[\"GlmMoeDsaForCausalLM\"],\"model_type\":\"glm_moe_dsa\",\"vocab_size\":154880,"
    "\"hidden_size\":6144,\"intermediate_size\":12288,\"num_hidden_layers\":78,"
    "\"num_attention_heads\":64,\"num_key_value_heads\":64,\"q_lora_rank\":2048,\"qk_nope_head_dim\":192,"
    "\"v_head_dim\":256,\"index_n_heads\":32,\"n_group\":1,\"topk_group\":1,\"rms_norm_eps\":1e-05,"
    "\"max_position_embeddings\":1048576,\"index_topk_freq\":4,\"index_skip_topk_offset\":3,"
    "\"head_dim\":192,\"rope_theta\":null,\"rope_scaling\":null,"
    "\"rope_parameters\":{\"rope_theta\":8000000,\"rope_type\":\"default\"}}";

static json_t *base(bool is_glm)
{
    json_t *j = json_loads(v32, 0, NULL), *g = is_glm ? json_loads(glm, 0, NULL) : NULL;
    ck_assert_ptr_nonnull(j);
    if (g)
        json_object_update(j, g);
    json_decref(g);
    return j;
}

/* Frees j. */
static sl_status parse(json_t *j, const char *generation, sl_model_config *c, sl_err *err)
{
    char *text = json_dumps(j, 0);
    sl_status rc =
        sl_model_config_parse(text, strlen(text), "dir/config.json", generation,
                              generation ? strlen(generation) : 0, "dir/generation_config.json", c, err);
    free(text);
    json_decref(j);
    return rc;
}

static sl_model_config good(json_t *j, const char *generation)
{
    sl_model_config c;
    sl_err err = {0};
    sl_status rc = parse(j, generation, &c, &err);
    ck_assert_msg(rc == SL_OK, "%s", err.text);
    return c;
}

START_TEST(test_v32)
{
    sl_model_config c = good(base(false), NULL);
    ck_assert_str_eq(c.family, "deepseek_v32");
    ck_assert(c.n_layers == 61 && c.hidden_size == 7168 && c.attn.n_heads == 128 && c.index.topk == 2048);
    ck_assert(!c.layer_is_moe[2] && c.layer_is_moe[3] && c.layer_is_moe[60] && c.layer_has_indexer[60]);
    ck_assert(c.rope.type == SL_ROPE_YARN && c.rope.theta == 10000 && c.rope.attention_factor == 1.0);
    ck_assert(!c.index.rope_interleaved && c.fp8_acts && c.moe.norm_topk_prob && !c.tie_word_embeddings);
    ck_assert_float_eq_tol(c.attn.softmax_scale, 0.13523378f, 1e-8f);
    ck_assert(c.rms_eps == 1e-6f && c.attn.lora_eps == 1e-6f && c.index.eps == 1e-6f);
    ck_assert(c.bos_id == 0 && c.n_eos == 1 && c.eos_ids[0] == 1 && c.n_nextn_layers == 1);
    ck_assert_int_eq(c.max_context, 163840);
}
END_TEST

START_TEST(test_yarn_frequencies)
{
    sl_model_config c = good(base(false), NULL);
    float f[32], table[2 * 64];
    sl_rope_frequencies(&c, f);
    for (int j = 0; j < 32; j++) { /* ramp from 10 to 23 */
        double plain = pow(10000, -2.0 * j / 64), keep = 1 - fmin(fmax((j - 10) / 13.0, 0), 1);
        double want = plain / 40 * (1 - keep) + plain * keep;
        ck_assert_msg(fabs(f[j] - want) <= want * 3e-7, "frequency %d: %g, not %g", j, f[j], want);
    }
    sl_rope_table(&c, 1000, 2, table);
    for (int j = 0; j < 32; j++) {
        ck_assert_float_eq_tol(table[64 + 2 * j], cosf(1001.0f * f[j]), 1e-7f);
        ck_assert_float_eq_tol(table[64 + 2 * j + 1], sinf(1001.0f * f[j]), 1e-7f);
    }
}
END_TEST

/* All frequencies divided by the factor; a correction of the softmax scale, which YaRN alone has here, is refused. */
START_TEST(test_linear_frequencies)
{
    json_t *j = base(false);
    float f[32];
    json_object_set_new(j, "rope_scaling", json_pack("{s:s, s:f}", "type", "linear", "factor", 8.0));
    sl_model_config c = good(json_deep_copy(j), NULL);
    sl_rope_frequencies(&c, f);
    for (int i = 0; i < 32; i++)
        ck_assert_float_eq_tol(f[i], pow(10000, -2.0 * i / 64) / 8, 1e-7f * f[i] + 1e-9f);
    ck_assert(c.rope.attention_factor == 1 && c.attn.softmax_scale == (float)pow(192, -0.5));
    json_object_set_new(json_object_get(j, "rope_scaling"), "mscale_all_dim", json_real(1));
    sl_err err = {0};
    ck_assert_int_eq(parse(j, NULL, &c, &err), SL_ERR_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(err.text, "mscale_all_dim: 1 is supported with rope_type \"yarn\" alone"));
}
END_TEST

/* Bit for bit what torch computes (transformers 5.17, rotary embedding of both models' configs). */
static const uint32_t torch_bits[2][32] = {
    {0x3f800000, 0x3f3ff911, 0x3f0ff59a, 0x3ed7e89b, 0x3ea1e89b, 0x3e72d423, 0x3e361887, 0x3e088d77,
     0x3dcccccd, 0x3d99940d, 0x3d6655c2, 0x3d1fc5ba, 0x3cdc321b, 0x3c968dc3, 0x3c4bf283, 0x3c088d77,
     0x3bb43959, 0x3b697066, 0x3b136a16, 0x3ab3a2cd, 0x3a4f3e37, 0x39d99312, 0x393a7753, 0x380bd471,
     0x37d1b717, 0x379d43a3, 0x376bdcf0, 0x3730df51, 0x3704a2b3, 0x36c6ecdd, 0x36952c42, 0x365fba4f},
    {0x3f800000, 0x3f1bc84c, 0x3ebd9851, 0x3e66bf20, 0x3e0c6a42, 0x3daae464, 0x3d4ffbfc, 0x3cfd2099,
     0x3c9a08c8, 0x3c3b77ab, 0x3be42844, 0x3b8ad6e3, 0x3b28f979, 0x3acda683, 0x3a7a4971, 0x3a184e4a,
     0x39b95d21, 0x396198d6, 0x3909480c, 0x38a71410, 0x384b57bd, 0x37f77a71, 0x379698c3, 0x373748a4,
     0x36df10c4, 0x3687bdae, 0x3625341a, 0x35c90f9a, 0x3574b383, 0x3514e825, 0x34b53a20, 0x345c8ff9}};

START_TEST(test_frequency_bits)
{
    sl_model_config c = good(base(_i == 1), NULL);
    float f[32];
    sl_rope_frequencies(&c, f);
    for (int j = 0; j < 32; j++) {
        uint32_t u;
        memcpy(&u, &f[j], 4);
        ck_assert_msg(u == torch_bits[_i][j], "frequency %d is %08x, not %08x", j, u, torch_bits[_i][j]);
    }
}
END_TEST

START_TEST(test_glm)
{
    sl_model_config c = good(base(true), NULL);
    ck_assert_str_eq(c.family, "glm_moe_dsa");
    int full = 0;
    for (int32_t i = 0; i < 78; i++) {
        bool want = i < 2 || i % 4 == 2;
        ck_assert_msg(c.layer_has_indexer[i] == want, "layer %d", i);
        full += c.layer_has_indexer[i];
    }
    ck_assert_int_eq(full, 21);
    ck_assert(c.index.rope_interleaved && c.rope.type == SL_ROPE_PLAIN && c.rope.theta == 8e6 &&
              c.rope.attention_factor == 1.0);
    ck_assert_float_eq_tol(c.attn.softmax_scale, 0.0625f, 1e-9f);
    ck_assert(c.rms_eps == 1e-5f && c.attn.lora_eps == 1e-6f && c.index.eps == 1e-6f);
}
END_TEST

static const char *const required[] = {
    "model_type",
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "moe_intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "q_lora_rank",
    "kv_lora_rank",
    "qk_nope_head_dim",
    "qk_rope_head_dim",
    "v_head_dim",
    "index_n_heads",
    "index_head_dim",
    "index_topk",
    "n_routed_experts",
    "n_shared_experts",
    "num_experts_per_tok",
    "n_group",
    "topk_group",
    "norm_topk_prob",
    "routed_scaling_factor",
    "rms_norm_eps",
    "max_position_embeddings",
    "first_k_dense_replace",
    "rope_theta",
};

START_TEST(test_required)
{
    const char *key = required[_i];
    for (int how = 0; how < 3; how++) { /* absent, null, of the wrong type */
        sl_model_config c;
        sl_err err = {0};
        json_t *j = base(false);
        if (how == 0)
            json_object_del(j, key);
        else
            json_object_set_new(j, key, how == 1 ? json_null() : json_array());
        sl_status rc = parse(j, NULL, &c, &err);
        ck_assert_msg(rc == SL_ERR_INVALID, "%s, variant %d: %s", key, how, sl_status_name(rc));
        ck_assert_msg(strstr(err.text, "dir/config.json: ") && strstr(err.text, key),
                      "\"%s\" does not name %s", err.text, key);
        ck_assert_msg(strstr(err.text, how < 2 ? "missing" : "not ") != NULL, "\"%s\"", err.text);
    }
}
END_TEST

static const struct {
    const char *key, *value; /* JSON; inside rope_scaling when the key starts with '/' */
    sl_status status;
    const char *says;
} wrong[] = {
    {"model_type", "\"mistral\"", SL_ERR_UNSUPPORTED, "model_type: \"mistral\""},
    {"model_type", "\"llama\"", SL_ERR_UNSUPPORTED, "architectures: \"DeepseekV32ForCausalLM\""},
    {"model_type", "\"glm_moe_dsa\"", SL_ERR_UNSUPPORTED, "architectures"},
    {"architectures", "[]", SL_ERR_INVALID, "architectures"},
    {"vocab_size", "1", SL_ERR_INVALID, "vocab_size"},
    {"hidden_size", "0", SL_ERR_INVALID, "hidden_size: 0 is not within"},
    {"hidden_size", "7168.0", SL_ERR_INVALID, "hidden_size: not an integer"},
    {"hidden_size", "9223372036854775807", SL_ERR_INVALID, "hidden_size"},
    {"num_hidden_layers", "257", SL_ERR_INVALID, "num_hidden_layers"},
    {"num_key_value_heads", "8", SL_ERR_INVALID, "num_key_value_heads"},
    {"qk_rope_head_dim", "63", SL_ERR_INVALID, "odd"},
    {"index_head_dim", "32", SL_ERR_INVALID, "less than qk_rope_head_dim"},
    {"v_head_dim", "8192", SL_OK, ""},
    {"num_attention_heads", "4096", SL_ERR_INVALID, "num_key_value_heads"},
    {"n_group", "7", SL_ERR_INVALID, "n_group"},
    {"n_group", "256", SL_ERR_INVALID, "n_group"},
    {"topk_group", "9", SL_ERR_INVALID, "topk_group"},
    {"num_experts_per_tok", "129", SL_ERR_INVALID, "num_experts_per_tok"},
    {"n_shared_experts", "0", SL_OK, ""},
    {"hidden_act", "\"gelu\"", SL_ERR_UNSUPPORTED, "hidden_act"},
    {"scoring_func", "\"softmax\"", SL_ERR_UNSUPPORTED, "scoring_func"},
    {"topk_method", "\"greedy\"", SL_ERR_UNSUPPORTED, "topk_method"},
    {"attention_bias", "true", SL_ERR_UNSUPPORTED, "attention_bias"},
    {"attention_bias", "1", SL_ERR_INVALID, "attention_bias"},
    {"moe_layer_freq", "2", SL_ERR_INVALID, "moe_layer_freq"},
    {"norm_topk_prob", "\"yes\"", SL_ERR_INVALID, "norm_topk_prob"},
    {"rms_norm_eps", "0", SL_ERR_INVALID, "rms_norm_eps"},
    {"routed_scaling_factor", "-1", SL_ERR_INVALID, "routed_scaling_factor"},
    {"layer_types", "[\"sliding_attention\"]", SL_ERR_UNSUPPORTED, "layer_types[0]"},
    {"mlp_layer_types", "[\"dense\"]", SL_ERR_INVALID, "mlp_layer_types"},
    {"mlp_layer_types", "\"dense\"", SL_ERR_INVALID, "mlp_layer_types"},
    {"index_topk_freq", "4", SL_ERR_UNSUPPORTED, "shares a selection"},
    {"rope_theta", "\"1e4\"", SL_ERR_INVALID, "rope_theta"},
    {"rope_theta", "1", SL_ERR_INVALID, "rope_theta"},
    {"rope_scaling", "[]", SL_ERR_INVALID, "rope_scaling"},
    {"rope_parameters", "7", SL_ERR_INVALID, "rope_parameters"},
    {"/type", "\"llama3\"", SL_ERR_INVALID, "low_freq_factor: missing"},
    {"/type", "\"longrope\"", SL_ERR_UNSUPPORTED,
     "rope_type: \"longrope\" is not supported (default, yarn, llama3, linear are)"},
    {"/partial_rotary_factor", "0.5", SL_ERR_UNSUPPORTED, "partial_rotary_factor"},
    {"/original_max_position_embeddings", "null", SL_ERR_INVALID, "original_max_position_embeddings"},
    {"/factor", "0", SL_ERR_INVALID, "factor"},
    {"/beta_fast", "\"x\"", SL_ERR_INVALID, "beta_fast"},
    {"quantization_config", "{\"quant_method\":\"gptq\"}", SL_ERR_UNSUPPORTED, "quant_method"},
    {"quantization_config", "{\"quant_method\":\"fp8\",\"weight_block_size\":[64,64]}", SL_ERR_UNSUPPORTED,
     "weight_block_size"},
    {"quantization_config", "{\"quant_method\":\"fp8\",\"activation_scheme\":\"static\"}", SL_ERR_UNSUPPORTED,
     "activation_scheme"},
    {"eos_token_id", "129280", SL_ERR_INVALID, "eos_token_id"},
    {"eos_token_id", "\"</s>\"", SL_ERR_INVALID, "eos_token_id"},
    {"eos_token_id", "[1,2,3,4,5,6,7,8,9]", SL_ERR_INVALID, "more than 8"},
    {"bos_token_id", "-1", SL_ERR_INVALID, "bos_token_id"},
    {"max_position_embeddings", "0", SL_ERR_INVALID, "max_position_embeddings"},
};

START_TEST(test_wrong)
{
    sl_model_config c;
    sl_err err = {0};
    json_t *j = base(false), *v = json_loads(wrong[_i].value, JSON_DECODE_ANY, NULL);
    ck_assert_ptr_nonnull(v);
    if (wrong[_i].key[0] == '/')
        json_object_set_new(json_object_get(j, "rope_scaling"), wrong[_i].key + 1, v);
    else
        json_object_set_new(j, wrong[_i].key, v);
    sl_status rc = parse(j, NULL, &c, &err);
    ck_assert_msg(rc == wrong[_i].status, "%s = %s: %s: %s", wrong[_i].key, wrong[_i].value,
                  sl_status_name(rc), err.text);
    ck_assert_msg(strstr(err.text, wrong[_i].says) != NULL, "\"%s\" does not say \"%s\"", err.text,
                  wrong[_i].says);
}
END_TEST

static json_t *with(json_t *j, const char *key, const char *value)
{
    json_object_set_new(j, key, json_loads(value, JSON_DECODE_ANY, NULL));
    return j;
}

START_TEST(test_patterns)
{
    json_t *j = with(with(base(true), "num_hidden_layers", "5"), "first_k_dense_replace", "2");
    sl_model_config c = good(with(json_deep_copy(j), "index_topk_pattern", "\"FFSFS\""), NULL);
    ck_assert(c.layer_has_indexer[1] && !c.layer_has_indexer[2] && c.layer_has_indexer[3] &&
              !c.layer_has_indexer[4]);
    c = good(with(json_deep_copy(j), "indexer_types",
                  "[\"full\",\"shared\",\"shared\",\"full\",\"shared\",\"full\"]"),
             NULL);
    ck_assert(!c.layer_has_indexer[1] && !c.layer_has_indexer[2] && c.layer_has_indexer[3] &&
              !c.layer_has_indexer[4]);
    c = good(
        with(json_deep_copy(j), "mlp_layer_types", "[\"sparse\",\"dense\",\"sparse\",\"dense\",\"dense\"]"),
        NULL);
    ck_assert(c.layer_is_moe[0] && !c.layer_is_moe[1] && c.layer_is_moe[2] && !c.layer_is_moe[3] &&
              !c.layer_is_moe[4]);
    static const struct {
        const char *key, *value, *says;
    } bad[] = {
        {"index_topk_pattern", "\"FFS\"", "index_topk_pattern: not 5 letters"},
        {"index_topk_pattern", "\"FFSxS\"", "index_topk_pattern[3]"},
        {"index_topk_pattern", "\"SFSFS\"", "layer 0"},
        {"index_topk_pattern", "7", "index_topk_pattern"},
        {"indexer_types", "[\"full\",\"none\",\"full\",\"full\",\"full\"]", "indexer_types[1]"},
        {"indexer_types", "[\"full\",\"full\",3,\"full\",\"full\"]", "indexer_types[2]"},
        {"index_topk_freq", "-1", "index_topk_freq"},
    };
    for (size_t i = 0; i < SL_COUNT(bad); i++) {
        sl_err err = {0};
        sl_status rc = parse(with(json_deep_copy(j), bad[i].key, bad[i].value), NULL, &c, &err);
        ck_assert_msg(rc == SL_ERR_INVALID && strstr(err.text, bad[i].says), "%s = %s: %s", bad[i].key,
                      bad[i].value, err.text);
    }
    json_decref(j);
}
END_TEST

/* Both forms of the same rope keys give the same config. */
START_TEST(test_rope_spellings)
{
    json_t *j = base(false);
    json_t *rope = json_deep_copy(json_object_get(j, "rope_scaling"));
    json_object_del(rope, "type");
    json_object_set_new(rope, "rope_type", json_string("yarn"));
    json_object_set_new(rope, "rope_theta", json_real(10000.0));
    json_object_del(j, "rope_scaling");
    json_object_del(j, "rope_theta");
    json_object_set_new(j, "rope_parameters", rope);
    sl_model_config a = good(base(false), NULL), b = good(json_deep_copy(j), NULL);
    ck_assert(a.attn.softmax_scale == b.attn.softmax_scale && a.rope.factor == b.rope.factor &&
              a.rope.theta == b.rope.theta && a.rope.original_max == b.rope.original_max &&
              b.rope.type == SL_ROPE_YARN);
    json_object_set_new(rope, "factor", json_null()); /* from the two lengths */
    json_object_del(rope, "mscale");
    b = good(json_deep_copy(j), NULL);
    ck_assert_double_eq_tol(b.rope.factor, 40, 1e-12);
    ck_assert_double_eq_tol(b.rope.attention_factor, 0.1 * log(40) + 1, 1e-12);
    json_object_del(rope, "rope_theta");
    sl_model_config c;
    sl_err err = {0};
    ck_assert_int_eq(parse(j, NULL, &c, &err), SL_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(err.text, "rope_theta: missing"));
}
END_TEST

START_TEST(test_generation)
{
    sl_model_config c =
        good(base(false), "{\"eos_token_id\":[1,5,7],\"bos_token_id\":3,\"temperature\":1.0}");
    ck_assert(c.n_eos == 3 && c.eos_ids[0] == 1 && c.eos_ids[1] == 5 && c.eos_ids[2] == 7 && c.bos_id == 3);
    sl_err err = {0};
    ck_assert_int_eq(parse(base(false), "{\"eos_token_id\":\"x\"}", &c, &err), SL_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(err.text, "dir/generation_config.json: eos_token_id"));
    ck_assert_int_eq(parse(base(false), "[]", &c, &err), SL_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(err.text, "generation_config.json: not a JSON object"));
}
END_TEST

START_TEST(test_text)
{
    static const char *const texts[] = {"",   "{", "[]", "{\"a\":1,\"a\":2}", "{\"model_type\":\"\xff\"}",
                                        "nul"};
    for (size_t i = 0; i < SL_COUNT(texts); i++) {
        sl_model_config c;
        sl_err err = {0};
        ck_assert_int_eq(sl_model_config_parse(texts[i], strlen(texts[i]), "f", NULL, 0, "", &c, &err),
                         SL_ERR_INVALID);
        ck_assert_msg(strncmp(err.text, "f: ", 3) == 0, "%s", err.text);
    }
}
END_TEST

START_TEST(test_directory)
{
    char dir[256];
    sl_model_config c;
    sl_err err = {0};
    ct_mkdir(dir);
    ck_assert_int_eq(sl_model_config_load(dir, &c, &err), SL_ERR_NOT_FOUND);
    ck_assert_ptr_nonnull(strstr(err.text, "config.json"));
    ct_write_text(dir, "config.json", v32);
    ck_assert_int_eq(sl_model_config_load(dir, &c, &err), SL_OK);
    ct_write_text(dir, "generation_config.json", "{\"eos_token_id\":[9]}");
    ck_assert_int_eq(sl_model_config_load(dir, &c, &err), SL_OK);
    ck_assert(c.n_eos == 2 && c.eos_ids[1] == 9);
    ct_rmdir(dir);
}
END_TEST

/* Every family drafts, or says by its name and the key why it does not; one that drafts refuses a checkpoint without the layer. */
START_TEST(test_drafts)
{
    int drafting = 0;
    for (size_t i = 0; sl_family_at(i); i++) {
        const sl_family *f = sl_family_at(i);
        sl_err err = {0};
        sl_model_config c = {.n_layers = 3};
        snprintf(c.family, sizeof c.family, "%s", f->model_type);
        ck_assert_int_eq(sl_model_config_draft(&c, &err), SL_ERR_UNSUPPORTED);
        ck_assert_ptr_nonnull(strstr(err.text, "model.draft_tokens"));
        ck_assert_int_eq(c.n_layers, 3);
        c.n_nextn_layers = 1;
        ck_assert_ptr_nonnull(strstr(err.text, f->row_steps ? "num_nextn_predict_layers" : f->model_type));
        if (f->row_steps) {
            ck_assert_ptr_null(f->no_drafts);
            ck_assert_int_eq(sl_model_config_draft(&c, &err), SL_OK);
            ck_assert_int_eq(c.n_layers, 4);
            drafting++;
        } else {
            ck_assert_int_eq(sl_model_config_draft(&c, &err), SL_ERR_UNSUPPORTED);
            ck_assert_ptr_nonnull(strstr(err.text, f->no_drafts ? f->no_drafts : "no MTP layer"));
        }
    }
    ck_assert_int_eq(drafting, 2);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("config");
    TCase *t = tcase_create("config");
    tcase_add_test(t, test_v32);
    tcase_add_test(t, test_yarn_frequencies);
    tcase_add_test(t, test_linear_frequencies);
    tcase_add_loop_test(t, test_frequency_bits, 0, 2);
    tcase_add_test(t, test_glm);
    tcase_add_loop_test(t, test_required, 0, SL_COUNT(required));
    tcase_add_loop_test(t, test_wrong, 0, SL_COUNT(wrong));
    tcase_add_test(t, test_patterns);
    tcase_add_test(t, test_rope_spellings);
    tcase_add_test(t, test_generation);
    tcase_add_test(t, test_text);
    tcase_add_test(t, test_directory);
    tcase_add_test(t, test_drafts);
    suite_add_tcase(s, t);
    return run_suite(s);
}
