/* config.json of Qwen 4: what the published class fills in, the spellings of several versions, and what is refused, by key. */
#include <check.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "model/config.h"
#include "tests/unit/run_suite.h"

static const char *const qwen4 =
    "{\"architectures\": [\"Qwen4ExpForCausalLM\"], \"model_type\": \"qwen4_exp_text\", \"vocab_size\": 248320, \"hidden_size\": 2560, "
    "\"num_hidden_layers\": 8, \"num_attention_heads\": 24, \"num_key_value_heads\": 2, \"head_dim\": 256, "
    "\"max_position_embeddings\": 262144, \"rms_norm_eps\": 1e-6, \"linear_num_key_heads\": 16, \"linear_num_value_heads\": 48, "
    "\"linear_key_head_dim\": 128, \"linear_value_head_dim\": 128, \"num_experts\": 512, \"num_experts_per_tok\": 10, "
    "\"moe_intermediate_size\": 640, \"shared_expert_intermediate_size\": 640, \"hc_count\": 4, \"hc_lowrank\": 320, "
    "\"indexer_n_heads\": 4, \"indexer_kv_heads\": 1, \"indexer_head_dim\": 128, \"indexer_budget\": 2048, "
    "\"indexer_compress_ratio\": 4, \"ple_layer_ids\": [2], \"eos_token_id\": [7, 8], "
    "\"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 10000000.0, \"partial_rotary_factor\": 0.25}}";

/* The config with the keys of `more`, a JSON object. */
static sl_status parse(const char *more, sl_model_config *c, sl_err *err)
{
    json_t *j = json_loads(qwen4, 0, NULL), *m = json_loads(more, 0, NULL);
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

START_TEST(defaults_of_qwen4)
{
    sl_model_config c = accepted("{}");
    sl_cache_dims d;
    ck_assert(c.linear.taps == 4 && c.linear.silu_gate && c.moe.norm_topk_prob &&
              c.moe.score == SL_ROUTE_SOFTMAX);
    ck_assert(c.ngram.order == 3 && c.ngram.heads == 8 && c.ngram.dim == 160 && c.ngram.eos == 7 &&
              c.n_eos == 2);
    ck_assert(c.attn.qk_rope_head_dim == 64 && c.attn.softmax_scale == 0.0625f && c.index.topk == 2048 &&
              c.index.unit == 4);
    for (int i = 0; i < 8; i++)
        ck_assert(c.layer_class[i] == (i % 4 == 3 ? 0
                                       : i == 1   ? 2
                                                  : 1) &&
                  c.layer_has_indexer[i] == (i % 4 == 3) && c.layer_is_moe[i] &&
                  c.ngram.in_layer[i] == (i == 1));
    sl_model_cache_dims(&c, SL_ROW_GQA_BF16, SL_INDEX_PLAIN, &d);
    ck_assert(d.classes[0].state.bytes == 4 * 128 * 4);
    ck_assert(d.classes[1].state.bytes == 3 * 10240 * 4 + 48 * 128 * 128 * 4);
    ck_assert(d.classes[2].state.bytes == d.classes[1].state.bytes + 2 * 4 + 9 * 4 * 2560 * 4);
}
END_TEST

/* The words of several versions, and keys that change what is computed. */
START_TEST(keys_of_qwen4)
{
    sl_model_config c =
        accepted("{\"num_hidden_layers\": 5, \"layer_types\": [\"full_attention\", \"linear_attention\", "
                 "\"indexed_attention\", \"qwen_sparse_attention\", \"deepseek_sparse_attention\"], "
                 "\"output_gate_type\": \"sigmoid\", \"norm_topk_prob\": false, \"eos_token_id\": 9}");
    ck_assert(!c.linear.silu_gate && !c.moe.norm_topk_prob && c.layer_class[1] == 2 &&
              c.layer_class[4] == 0 && c.ngram.eos == 9);
    c = accepted("{\"ple_layer_ids\": [], \"full_attention_interval\": 2, \"eos_token_id\": null}");
    ck_assert(c.ngram.order == 0 && c.layer_class[1] == 0 && c.layer_class[2] == 1);
    c = accepted(
        "{\"text_config\": {\"model_type\": \"qwen4_exp_text\", \"hidden_size\": 1280}, \"ple_embed_dim\": 32, "
        "\"model_type\": \"qwen4_exp\", \"architectures\": [\"Qwen4ExpForConditionalGeneration\"]}");
    ck_assert(c.hidden_size == 1280 && c.ngram.dim == 2 && strcmp(c.family, "qwen4_exp") == 0);
}
END_TEST

/* Key or contradiction, status, and what the message names. */
static const struct {
    const char *more;
    sl_status status;
    const char *says;
} wrong[] = {
    {"{\"attention_bias\": true}", SL_ERR_UNSUPPORTED, "attention_bias"},
    {"{\"output_gate_type\": \"gelu\"}", SL_ERR_UNSUPPORTED, "output_gate_type"},
    {"{\"attn_output_gate\": false}", SL_ERR_UNSUPPORTED, "attn_output_gate"},
    {"{\"indexer_compress_ratio\": 3, \"indexer_budget\": 2049}", SL_ERR_UNSUPPORTED,
     "indexer_compress_ratio: 3"},
    {"{\"indexer_compress_ratio\": 128}", SL_ERR_UNSUPPORTED, "indexer_compress_ratio: 128"},
    {"{\"indexer_budget\": 2047}", SL_ERR_INVALID, "indexer_budget: 2047"},
    {"{\"indexer_kv_heads\": 2}", SL_ERR_INVALID, "indexer_kv_heads"},
    {"{\"indexer_head_dim\": 62}", SL_ERR_INVALID, "indexer_head_dim: 62"},
    {"{\"num_key_value_heads\": 5}", SL_ERR_INVALID, "num_key_value_heads: 5"},
    {"{\"linear_num_key_heads\": 5}", SL_ERR_INVALID, "linear_num_key_heads: 5"},
    {"{\"linear_key_head_dim\": 257}", SL_ERR_INVALID, "linear_key_head_dim"},
    {"{\"linear_conv_kernel_dim\": 1}", SL_ERR_INVALID, "linear_conv_kernel_dim"},
    {"{\"num_experts_per_tok\": 513}", SL_ERR_INVALID, "num_experts_per_tok"},
    {"{\"full_attention_interval\": 9}", SL_ERR_UNSUPPORTED, "no layer attends"},
    {"{\"layer_types\": [\"full_attention\"]}", SL_ERR_INVALID, "layer_types"},
    {"{\"num_hidden_layers\": 2, \"layer_types\": [\"full_attention\", \"sliding_attention\"]}",
     SL_ERR_UNSUPPORTED, "layer_types[1]"},
    {"{\"ple_layer_ids\": [4]}", SL_ERR_UNSUPPORTED, "ple_layer_ids: layer 4"},
    {"{\"ple_layer_ids\": [0]}", SL_ERR_INVALID, "ple_layer_ids"},
    {"{\"ple_embed_dim\": 100}", SL_ERR_INVALID, "ple_embed_dim: 100"},
    {"{\"ngram_size\": 9}", SL_ERR_INVALID, "ngram_size"},
    {"{\"eos_token_id\": null}", SL_ERR_INVALID, "eos_token_id"},
    {"{\"hc_lowrank\": 0}", SL_ERR_INVALID, "hc_lowrank"},
    {"{\"rope_parameters\": {\"rope_type\": \"default\", \"rope_theta\": 1e4, \"partial_rotary_factor\": 0.001}}",
     SL_ERR_INVALID, "partial_rotary_factor"},
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
    json_t *j = json_loads(qwen4, 0, NULL);
    const char *key;
    json_t *v;
    json_object_foreach(j, key, v) for (size_t i = 0; i < SL_COUNT(values); i++)
    {
        char more[128];
        sl_model_config c;
        sl_err err = {0};
        snprintf(more, sizeof more, "{\"%s\": %s}", key, values[i]);
        sl_status rc = parse(more, &c, &err);
        const char *name = strcmp(key, "rope_parameters") == 0 ? "rope" : key;
        ck_assert_msg(rc == SL_OK || strstr(err.text, name) || strstr(err.text, "layer_types"), "%s: %s",
                      more, err.text);
    }
    json_decref(j);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("config of Qwen 4");
    TCase *t = tcase_create("config");
    tcase_add_test(t, defaults_of_qwen4);
    tcase_add_test(t, keys_of_qwen4);
    tcase_add_test(t, every_key);
    tcase_add_loop_test(t, refused, 0, SL_COUNT(wrong));
    suite_add_tcase(s, t);
    return run_suite(s);
}
