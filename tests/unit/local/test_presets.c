/*
 * The built-in models have the dimensions of the released ones: layers of each kind, bytes of the cache for a token and of the states for a
 * request, computed by hand from the released configs, and the number of parameters that their makers name.
 */
#include <check.h>
#include <math.h>
#include <string.h>

#include "engine/choose.h"
#include "engine/engine.h"
#include "local/checkpoint.h"
#include "model/sizes.h"
#include "model/synthetic.h"
#include "tests/unit/run_suite.h"

#define MIB (1ll << 20)

static const struct {
    const char *name, *rows, *indexer;
    int32_t layers, moe, indexed;
    int64_t token; /* bytes of all layers */
    int64_t state; /* of a request, in all layers */
    double billions;
} models[] = {
    {"deepseek_v32", "mla_fp8", "official", 61, 58, 61, 61 * (656 + 132), 0, 671},
    {"glm_5_2", "mla_fp8", "official", 78, 75, 21, 78 * 656 + 21 * 132, 0, 744},
    {"hy_v4", "mla_fp8", "official", 78, 77, 21, 78 * 656 + 21 * 132, 0, 770},
    {"axk2_light", "mla_bf16", "official", 48, 47, 48, 48 * (320 + 132), 0, 0},
    {"minimax_m3", "gqa_bf16", "plain", 60, 57, 57, 60 * 2048 + 57 * 512, 0, 428},
    /* A unit of 4 tokens has one index key of 128 floats. 36 layers keep 48 matrices and the inputs of a convolution, 12 an open unit. */
    {"qwen3.8_flash_next", "gqa_bf16", "plain", 48, 48, 12, 12 * (2048 + 128),
     36 * (3 * MIB + 3 * (2 * 16 + 48) * 128 * 4) + 12 * 4 * 128 * 4, 125},
    /* 320 billion are with the layer of drafts, which has experts of its own. */
    {"glm5.3_flash", "mla_fp8", "plain", 45, 42, 11, 11 * (528 + 128),
     34 * (4 * MIB + 3 * 3 * 8192 * 4) + 11 * 2 * 4 * 128 * 4, 313},
    /* Entries of 4 tokens with an index key, and of 128 tokens, of which a page has room for one; windows and open entries. */
    {"deepseek_v4_flash", "gqa_bf16", "plain", 43, 43, 0, 21 * (256 + 64) + 20 * 16, -1, 0},
    {"deepseek_v4_pro", "gqa_bf16", "plain", 61, 61, 0, 30 * (256 + 64) + 31 * 16, -1, 0},
    {"llama3_8b", "gqa_bf16", "plain", 32, 0, 0, 32 * 4096, 0, 8.03},
    {"qwen3_8b", "gqa_bf16", "plain", 36, 0, 0, 36 * 4096, 0, 8.19},
};

static int32_t sum(const bool *flags, int32_t n)
{
    int32_t all = 0;
    for (int32_t i = 0; i < n; i++)
        all += flags[i];
    return all;
}

START_TEST(released_sizes)
{
    sl_local_checkpoint m;
    sl_geometry g;
    sl_weight_bytes w;
    sl_err err = {0};
    const sl_algo_desc *algorithm = NULL;
    int64_t state = 0;
    ck_assert_msg(
        sl_local_checkpoint_preset(models[_i].name, models[_i].indexer, models[_i].rows, &m, &err) == SL_OK,
        "%s", err.text);
    sl_cache_dims cache = sl_engine_cache_dims(&m.cfg, m.row_format, m.index_format);
    ck_assert_int_eq(sl_choose_algorithm(NULL, &m.cfg, &algorithm, &err), SL_OK);
    ck_assert_int_eq(
        sl_engine_geometry(&m.cfg, &cache, algorithm, SL_LAYOUT_PAGE_FIRST, (sl_key){1, 1}, &g, &err), SL_OK);
    ck_assert_int_eq(m.cfg.n_layers, models[_i].layers);
    ck_assert_int_eq(sum(m.cfg.layer_is_moe, m.cfg.n_layers), models[_i].moe);
    ck_assert_int_eq(sum(m.cfg.layer_has_indexer, m.cfg.n_layers), models[_i].indexed);
    ck_assert_int_eq(g.page_bytes, SL_PAGE_TOKENS * models[_i].token);
    for (int32_t l = 0; l < g.n_layers; l++)
        state += g.classes[g.layer_class[l]].state.bytes;
    if (models[_i].state >= 0)
        ck_assert_int_eq(state, models[_i].state);
    sl_model_weight_sizes(&m.cfg, SL_BF16, SL_BF16, &w);
    double billions = (double)(w.replicated + w.expert * (uint64_t)m.cfg.moe.n_routed) / 2e9;
    ck_assert_msg(models[_i].billions == 0 || fabs(billions / models[_i].billions - 1) < 0.02,
                  "%s: %.1f billion parameters", models[_i].name, billions);
}
END_TEST

START_TEST(every_preset_is_checked)
{
    const char *name;
    for (size_t i = 0; (name = sl_synthetic_name(i)); i++) {
        bool found = strncmp(name, "tiny", 4) == 0;
        for (size_t k = 0; k < SL_COUNT(models); k++)
            found = found || strcmp(models[k].name, name) == 0;
        ck_assert_msg(found, "%s", name);
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("presets");
    TCase *t = tcase_create("presets");
    tcase_add_loop_test(t, released_sizes, 0, SL_COUNT(models));
    tcase_add_test(t, every_preset_is_checked);
    suite_add_tcase(s, t);
    return run_suite(s);
}
