/* config.json of Llama, Qwen 2 and Qwen 3: published spellings, RoPE by the formulas, and what is refused. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/config.h"
#include "model/rope.h"

#define SIZES                                                                                                      \
    "\"hidden_size\": 4096, \"intermediate_size\": 14336, \"num_hidden_layers\": 2, \"num_attention_heads\": 32, " \
    "\"vocab_size\": 128256, \"max_position_embeddings\": 131072, \"rms_norm_eps\": 1e-5, \"hidden_act\": \"silu\""
#define LLAMA "\"architectures\": [\"LlamaForCausalLM\"], \"model_type\": \"llama\", " SIZES
#define QWEN2                                                                                                \
    "\"architectures\": [\"Qwen2ForCausalLM\"], \"model_type\": \"qwen2\", \"num_key_value_heads\": 8, "     \
    "\"rope_theta\": 1000000.0, " SIZES
#define QWEN3                                                                                                \
    "\"architectures\": [\"Qwen3ForCausalLM\"], \"model_type\": \"qwen3\", \"num_key_value_heads\": 8, "     \
    "\"rope_theta\": 1000000.0, " SIZES
#define ROPE3                                                                                                \
    "\"rope_type\": \"llama3\", \"factor\": 8.0, \"low_freq_factor\": 1.0, \"high_freq_factor\": 4.0, "      \
    "\"original_max_position_embeddings\": 8192"

static sl_status parse(const char *keys, sl_model_config *c, sl_err *err)
{
    char text[2048];
    int n = snprintf(text, sizeof text, "{%s}", keys);
    ck_assert(n > 0 && (size_t)n < sizeof text);
    return sl_model_config_parse(text, (size_t)n, "dir/config.json", NULL, 0, NULL, c, err);
}

static sl_model_config accepted(const char *keys)
{
    sl_model_config c;
    sl_err err = {0};
    ck_assert_msg(parse(keys, &c, &err) == SL_OK, "%s", err.text);
    return c;
}

START_TEST(heads)
{
    sl_model_config c = accepted(LLAMA ", \"rope_theta\": 10000.0");
    ck_assert(c.attn.n_kv_heads == 32 && c.attn.qk_rope_head_dim == 128 && c.attn.v_head_dim == 128 &&
              c.attn.qk_nope_head_dim == 0);
    ck_assert_double_eq_tol((double)c.attn.softmax_scale, pow(128, -0.5), 1e-8);
    c = accepted(LLAMA ", \"rope_theta\": 10000.0, \"num_key_value_heads\": 8, \"head_dim\": 64");
    ck_assert(c.attn.n_kv_heads == 8 && c.attn.v_head_dim == 64);
    c = accepted(QWEN3 ", \"head_dim\": 256, \"use_sliding_window\": false, \"sliding_window\": null");
    ck_assert(c.attn.v_head_dim == 256 && c.attn.n_kv_heads == 8 && !c.layer_is_moe[0] &&
              !c.layer_has_indexer[0]);
    c = accepted(QWEN2 ", \"layer_types\": [\"full_attention\", \"full_attention\"]");
    ck_assert(c.attn.v_head_dim == 128 && !c.tie_word_embeddings);
}
END_TEST

START_TEST(cache_dims)
{
    sl_model_config c =
        accepted(LLAMA ", \"rope_theta\": 10000.0, \"num_key_value_heads\": 8, \"head_dim\": 64");
    sl_cache_dims d;
    sl_model_cache_dims(&c, SL_ROW_GQA_BF16, SL_INDEX_PLAIN, &d);
    ck_assert(d.kv_heads == 8 && d.head_dim == 64 && d.latent == 0 && d.rope == 0 && d.index_dim == 0 &&
              d.index_heads == 0 && d.index_topk == 0);
    snprintf(c.family, sizeof c.family, "unknown");
    sl_model_cache_dims(&c, SL_ROW_GQA_BF16, SL_INDEX_PLAIN, &d);
    ck_assert(d.kv_heads == 0 && d.head_dim == 0);
}
END_TEST

/* Both spellings of Llama 3.1's RoPE, against the formula in double. */
START_TEST(rope_of_llama3)
{
    const char *spellings[] = {LLAMA ", \"rope_theta\": 500000.0, \"rope_scaling\": {" ROPE3 "}",
                               LLAMA ", \"rope_parameters\": {\"rope_theta\": 500000.0, " ROPE3 "}"};
    for (size_t s = 0; s < SL_COUNT(spellings); s++) {
        sl_model_config c = accepted(spellings[s]);
        float freq[64];
        int kept = 0, divided = 0, between = 0;
        ck_assert(c.rope.type == SL_ROPE_LLAMA3 && c.rope.attention_factor == 1);
        sl_rope_frequencies(&c, freq);
        for (int i = 0; i < 64; i++) {
            double w = pow(500000, -2.0 * i / 128), length = 2 * M_PI / w,
                   smooth = (8192 / length - 1) / (4 - 1);
            double want = length > 8192 ? w / 8 : length < 8192 / 4.0 ? w : (1 - smooth) * w / 8 + smooth * w;
            kept += length<8192 / 4.0, divided += length> 8192;
            between += length >= 8192 / 4.0 && length <= 8192;
            ck_assert_double_eq_tol((double)freq[i] / want, 1, 1e-5);
        }
        ck_assert(kept > 0 && divided > 0 && between > 0);
    }
}
END_TEST

START_TEST(rope_of_qwen)
{
    sl_model_config c = accepted(QWEN2 ", \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4.0, "
                                       "\"original_max_position_embeddings\": 32768}");
    ck_assert(c.rope.type == SL_ROPE_YARN);
    ck_assert_double_eq_tol(c.rope.attention_factor, 0.1 * log(4) + 1, 1e-12);
    ck_assert_double_eq_tol((double)c.attn.softmax_scale, pow(128, -0.5), 1e-8);
}
END_TEST

static const struct {
    const char *keys;
    sl_status status;
    const char *says;
} wrong[] = {
    {LLAMA, SL_ERR_INVALID, "rope_theta: missing"},
    {LLAMA ", \"rope_theta\": 1e4, \"num_key_value_heads\": 5", SL_ERR_INVALID,
     "num_key_value_heads: 5 does not divide"},
    {LLAMA ", \"rope_theta\": 1e4, \"num_key_value_heads\": 0", SL_ERR_INVALID, "num_key_value_heads"},
    {LLAMA ", \"rope_theta\": 1e4, \"head_dim\": 63", SL_ERR_INVALID, "head_dim: 63 is odd"},
    {LLAMA ", \"rope_theta\": 1e4, \"head_dim\": 2048", SL_ERR_INVALID, "head_dim"},
    {LLAMA ", \"rope_theta\": 1e4, \"head_dim\": \"128\"", SL_ERR_INVALID, "head_dim: not an integer"},
    {LLAMA ", \"rope_theta\": 1e4, \"attention_bias\": true", SL_ERR_UNSUPPORTED, "attention_bias"},
    {LLAMA ", \"rope_theta\": 1e4, \"mlp_bias\": true", SL_ERR_UNSUPPORTED, "mlp_bias"},
    {LLAMA ", \"rope_theta\": 1e4, \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8.0, "
           "\"low_freq_factor\": 4.0, \"high_freq_factor\": 4.0, \"original_max_position_embeddings\": 8192}",
     SL_ERR_INVALID, "high_freq_factor: 4 is not above"},
    {LLAMA ", \"rope_theta\": 1e4, \"rope_scaling\": {\"rope_type\": \"llama3\", \"low_freq_factor\": 1.0, "
           "\"high_freq_factor\": 4.0, \"original_max_position_embeddings\": 8192}",
     SL_ERR_INVALID, "factor: missing"},
    {QWEN2 ", \"use_sliding_window\": true", SL_ERR_UNSUPPORTED, "use_sliding_window"},
    {QWEN3 ", \"layer_types\": [\"full_attention\", \"sliding_attention\"]", SL_ERR_UNSUPPORTED,
     "layer_types[1]"},
    {QWEN3 ", \"layer_types\": \"full_attention\"", SL_ERR_INVALID, "layer_types: not a list"},
    {"\"architectures\": [\"Qwen3ForCausalLM\"], \"model_type\": \"qwen3\", \"rope_theta\": 1e6, " SIZES,
     SL_ERR_INVALID, "num_key_value_heads: missing"},
    {"\"architectures\": [\"Qwen2ForCausalLM\"], \"model_type\": \"llama\", \"rope_theta\": 1e6, " SIZES,
     SL_ERR_UNSUPPORTED, "architectures"},
};

START_TEST(refused)
{
    sl_model_config c;
    sl_err err = {0};
    ck_assert_int_eq(parse(wrong[_i].keys, &c, &err), wrong[_i].status);
    ck_assert_msg(strncmp(err.text, "dir/config.json: ", 17) == 0 && strstr(err.text, wrong[_i].says), "%s",
                  err.text);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("config_gqa");
    TCase *t = tcase_create("config_gqa");
    tcase_add_test(t, heads);
    tcase_add_test(t, cache_dims);
    tcase_add_test(t, rope_of_llama3);
    tcase_add_test(t, rope_of_qwen);
    tcase_add_loop_test(t, refused, 0, SL_COUNT(wrong));
    suite_add_tcase(s, t);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? EXIT_FAILURE : EXIT_SUCCESS;
}
