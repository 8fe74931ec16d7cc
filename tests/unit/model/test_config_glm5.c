/* config.json of GLM-5.3-Flash: what the published class fills in, the spellings of several versions, and what is refused, by key. */
#include <check.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "model/config.h"
#include "model/families/glm5_next/glm5.h"
#include "tests/unit/run_suite.h"

static const char *const glm5 =
    "{\"architectures\": [\"Glm5NextForConditionalGeneration\"], \"model_type\": \"glm5_next\", \"vocab_size\": 154880, "
    "\"hidden_size\": 4096, \"intermediate_size\": 12288, \"moe_intermediate_size\": 2048, \"num_hidden_layers\": 45, "
    "\"num_attention_heads\": 64, \"num_key_value_heads\": 64, \"q_lora_rank\": 1536, \"kv_lora_rank\": 512, "
    "\"qk_nope_head_dim\": 256, \"qk_rope_head_dim\": 0, \"v_head_dim\": 256, \"index_n_heads\": 32, \"index_head_dim\": 128, "
    "\"index_topk\": 2048, \"index_kpool\": 4, \"linear_num_heads\": 64, \"linear_head_dim\": 128, \"n_routed_experts\": 288, "
    "\"num_experts_per_tok\": 8, \"hidden_act\": \"silu\", \"eos_token_id\": [7, 8]}";

/* The config with the keys of `more`, a JSON object. */
static sl_status parse(const char *more, sl_model_config *c, sl_err *err)
{
    json_t *j = json_loads(glm5, 0, NULL), *m = json_loads(more, 0, NULL);
    ck_assert_msg(j && m && json_object_update(j, m) == 0, "%s", more);
    char *text = json_dumps(j, 0);
    sl_status rc = sl_model_config_parse(text, strlen(text), "dir/config.json", NULL, 0, NULL, c, err);
    free(text);
    json_decref(m);
    json_decref(j);
    return rc;
}

static sl_model_config accepted(const char *more)
{
    sl_model_config c;
    sl_err err = {0};
    ck_assert_msg(parse(more, &c, &err) == SL_OK, "%s: %s", more, err.text);
    return c;
}

/* The sizes are those of the released model: 145 MiB of states for a request. */
START_TEST(defaults_of_glm5)
{
    sl_model_config c = accepted("{}");
    sl_cache_dims d;
    ck_assert(c.linear.taps == 4 && c.linear.bound == -5 && c.moe.norm_topk_prob && c.moe.n_group == 1 &&
              c.moe.n_shared == 1 && c.moe.scaling_factor == 2.5f && c.mlp_glu.limit == 10 &&
              c.moe.glu.limit == 10);
    ck_assert(c.streams.count == 4 && c.streams.iters == 20 && c.streams.eps == 1e-6f &&
              c.streams.magnitude == 2);
    ck_assert(c.attn.qk_rope_head_dim == 0 && c.attn.softmax_scale == 0.0625f && c.rms_eps == 1e-5f &&
              c.attn.lora_eps == c.rms_eps && c.max_context == 1048576 && c.n_eos == 2);
    for (int i = 0; i < 45; i++)
        ck_assert(c.layer_class[i] == (i % 4 == 3 ? SL_GLM5_ATTENTION : SL_GLM5_LINEAR) &&
                  c.layer_has_indexer[i] == (i % 4 == 3) && c.layer_is_moe[i] == (i >= 3));
    sl_model_cache_dims(&c, SL_ROW_MLA_FP8, SL_INDEX_PLAIN, &d);
    ck_assert(d.latent == 512 && d.rope == 0 && d.kv_heads == 0 && d.index_unit == 4);
    ck_assert(d.classes[SL_GLM5_ATTENTION].state.bytes == 2 * 4 * 128 * 4 &&
              d.classes[SL_GLM5_SHARED].state.bytes == 0);
    ck_assert(d.classes[SL_GLM5_LINEAR].state.bytes == 64 * 128 * 128 * 4 + 3 * 3 * 8192 * 4);
    ck_assert_int_eq(34 * d.classes[SL_GLM5_LINEAR].state.bytes >> 20, 145);
}
END_TEST

/* The words of several versions, and keys that change what is computed. */
START_TEST(keys_of_glm5)
{
    sl_model_config c = accepted(
        "{\"num_hidden_layers\": 5, \"layer_types\": [\"full_attention\", \"deepseek_sparse_attention\", "
        "\"linear_attention\", \"indexed_attention\", \"linear_attention\"], \"first_k_dense_replace\": 1, "
        "\"indexer_types\": [\"full\", \"shared\", \"shared\", \"full\", \"shared\"], \"norm_topk_prob\": false, "
        "\"linear_lower_bound\": null, \"index_kpool\": null, \"swiglu_limit\": 7.5}");
    static const uint8_t kinds[] = {SL_GLM5_ATTENTION, SL_GLM5_SHARED, SL_GLM5_LINEAR, SL_GLM5_ATTENTION,
                                    SL_GLM5_LINEAR};
    ck_assert(memcmp(c.layer_class, kinds, sizeof kinds) == 0 && c.linear.bound == 0 && c.index.unit == 16);
    ck_assert(c.layer_has_indexer[0] && !c.layer_has_indexer[1] && !c.layer_has_indexer[2] &&
              c.layer_has_indexer[3] && !c.layer_has_indexer[4] && !c.moe.norm_topk_prob);
    ck_assert(!c.layer_is_moe[0] && c.layer_is_moe[1] && c.mlp_glu.limit == 7.5f);
    c = accepted(
        "{\"linear_attn_config\": {\"num_heads\": 8, \"head_dim\": 64, \"short_conv_kernel_size\": 3, "
        "\"gate_lower_bound\": -2.5}, \"linear_num_heads\": null}");
    ck_assert(c.linear.value_heads == 8 && c.linear.key_heads == 8 && c.linear.value_dim == 64 &&
              c.linear.key_dim == 64 && c.linear.taps == 3 && c.linear.bound == -2.5f);
    c = accepted("{\"linear_attn_config\": {\"gate_lower_bound\": null}}");
    ck_assert(c.linear.bound == -5 && c.linear.value_heads == 64);
    c = accepted("{\"linear_attn_config\": {\"gate_lower_bound\": null, \"safe_gate\": false}}");
    ck_assert(c.linear.bound == 0);
    c = accepted(
        "{\"mhc\": true, \"mla_use_nope\": true, \"index_kpool_compress\": true, \"indexer_rope_interleave\": true, "
        "\"head_dim\": 0, \"num_hidden_layers\": 2, \"layer_types\": [\"linear_attention\", \"deepseek_sparse_attention\"], "
        "\"linear_attn_config\": {\"num_heads\": 8, \"head_dim\": 64, \"kda_layers\": [0], \"full_attn_layers\": [1]}}");
    ck_assert(c.layer_class[0] == SL_GLM5_LINEAR &&
              c.linear.value_heads == 8); /* keys of the released model */
    c = accepted("{\"index_kpool\": 1, \"index_kpool_always_select_tail\": false}");
    ck_assert(c.index.unit == 1);
}
END_TEST

/* Of the text part null means that there is no bound, where the document says nothing. */
START_TEST(text_part_of_glm5)
{
    sl_model_config c =
        accepted("{\"text_config\": {\"model_type\": \"glm5_next_text\", \"hidden_size\": 1280, "
                 "\"linear_lower_bound\": null, \"vocab_size\": null}}");
    ck_assert(c.hidden_size == 1280 && c.linear.bound == 0 && c.vocab_size == 154880 &&
              strcmp(c.family, "glm5_next") == 0);
    c = accepted("{\"model_type\": \"glm5_next_text\", \"architectures\": [\"Glm5NextForCausalLM\"]}");
    ck_assert(strcmp(c.family, "glm5_next") == 0);
}
END_TEST

/* Key or contradiction, status, and what the message names. */
static const struct {
    const char *more;
    sl_status status;
    const char *says;
} wrong[] = {
    {"{\"attention_bias\": true}", SL_ERR_UNSUPPORTED, "attention_bias"},
    {"{\"hidden_act\": \"gelu\"}", SL_ERR_UNSUPPORTED, "hidden_act"},
    {"{\"qk_rope_head_dim\": 64}", SL_ERR_UNSUPPORTED, "qk_rope_head_dim: 64"},
    {"{\"qk_rope_head_dim\": \"x\"}", SL_ERR_INVALID, "qk_rope_head_dim"},
    {"{\"num_key_value_heads\": 8}", SL_ERR_INVALID, "num_key_value_heads"},
    {"{\"index_kpool\": 3, \"index_topk\": 2049}", SL_ERR_UNSUPPORTED, "index_kpool: 3"},
    {"{\"index_kpool\": 128}", SL_ERR_UNSUPPORTED, "index_kpool: 128"},
    {"{\"index_topk\": 2047}", SL_ERR_INVALID, "index_topk: 2047"},
    {"{\"index_kpool_always_select_tail\": false}", SL_ERR_UNSUPPORTED, "index_kpool_always_select_tail"},
    {"{\"linear_lower_bound\": 0}", SL_ERR_INVALID, "linear_lower_bound"},
    {"{\"linear_lower_bound\": 5.0}", SL_ERR_INVALID, "linear_lower_bound"},
    {"{\"linear_attn_config\": {\"gate_lower_bound\": \"x\"}}", SL_ERR_INVALID, "linear_lower_bound"},
    {"{\"linear_attn_config\": {\"safe_gate\": 1}}", SL_ERR_INVALID, "safe_gate"},
    {"{\"linear_attn_config\": []}", SL_ERR_INVALID, "linear_attn_config"},
    {"{\"linear_attn_config\": {\"kda_layers\": [0, 1]}}", SL_ERR_UNSUPPORTED, "kda_layers"},
    {"{\"mhc\": false}", SL_ERR_UNSUPPORTED, "mhc"},
    {"{\"mla_use_nope\": false}", SL_ERR_UNSUPPORTED, "mla_use_nope"},
    {"{\"index_kpool_compress\": false}", SL_ERR_UNSUPPORTED, "index_kpool_compress"},
    {"{\"linear_attn_config\": {\"head_dim\": 257}}", SL_ERR_INVALID, "linear_head_dim"},
    {"{\"linear_conv_kernel_dim\": 1}", SL_ERR_INVALID, "linear_conv_kernel_dim"},
    {"{\"linear_num_heads\": 4096, \"linear_head_dim\": 256}", SL_ERR_INVALID, "linear_num_heads"},
    {"{\"layer_types\": [\"full_attention\"]}", SL_ERR_INVALID, "layer_types"},
    {"{\"num_hidden_layers\": 3}", SL_ERR_UNSUPPORTED, "no layer attends"},
    {"{\"num_hidden_layers\": 2, \"layer_types\": [\"full_attention\", \"sliding_attention\"]}",
     SL_ERR_UNSUPPORTED, "layer_types[1]"},
    {"{\"num_hidden_layers\": 2, \"layer_types\": [\"linear_attention\", \"full_attention\"], "
     "\"indexer_types\": [\"full\", \"shared\"]}",
     SL_ERR_UNSUPPORTED, "indexer_types[1]"},
    {"{\"num_hidden_layers\": 3, \"layer_types\": [\"full_attention\", \"full_attention\", \"full_attention\"], "
     "\"indexer_types\": [\"full\", \"shared\", \"shared\"]}",
     SL_ERR_UNSUPPORTED, "indexer_types[2]"},
    {"{\"indexer_types\": [\"full\"]}", SL_ERR_INVALID, "indexer_types"},
    {"{\"num_experts_per_tok\": 289}", SL_ERR_INVALID, "num_experts_per_tok"},
    {"{\"scoring_func\": \"softmax\"}", SL_ERR_UNSUPPORTED, "scoring_func"},
    {"{\"hc_mult\": 17}", SL_ERR_INVALID, "hc_mult"},
    {"{\"hc_sinkhorn_iters\": 0}", SL_ERR_INVALID, "hc_sinkhorn_iters"},
    {"{\"hc_eps\": -1}", SL_ERR_INVALID, "hc_eps"},
    {"{\"swiglu_limit\": 0}", SL_ERR_INVALID, "swiglu_limit"},
    {"{\"linear_head_dim\": null}", SL_ERR_INVALID, "linear_head_dim"},
};

START_TEST(refused)
{
    sl_model_config c;
    sl_err err = {0};
    sl_status rc = parse(wrong[_i].more, &c, &err);
    ck_assert_msg(rc == wrong[_i].status && strstr(err.text, wrong[_i].says) &&
                      strstr(err.text, "dir/config.json"),
                  "%s: %s: %s", wrong[_i].more, sl_status_name(rc), err.text);
}
END_TEST

/* Every key is missing, null or of another type in turn: accepted, or refused with the key's name. */
START_TEST(every_key)
{
    static const char *const values[] = {"null", "[]", "{}", "\"x\"", "-7", "1e30", "true"};
    json_t *j = json_loads(glm5, 0, NULL);
    const char *key;
    json_t *v;
    json_object_foreach(j, key, v) for (size_t i = 0; i < SL_COUNT(values); i++)
    {
        char more[128];
        sl_model_config c;
        sl_err err = {0};
        snprintf(more, sizeof more, "{\"%s\": %s}", key, values[i]);
        sl_status rc = parse(more, &c, &err);
        ck_assert_msg(rc == SL_OK || strstr(err.text, key), "%s: %s", more, err.text);
    }
    json_decref(j);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("config of GLM-5.3-Flash");
    TCase *t = tcase_create("config");
    tcase_add_test(t, defaults_of_glm5);
    tcase_add_test(t, keys_of_glm5);
    tcase_add_test(t, text_part_of_glm5);
    tcase_add_test(t, every_key);
    tcase_add_loop_test(t, refused, 0, SL_COUNT(wrong));
    suite_add_tcase(s, t);
    return run_suite(s);
}
