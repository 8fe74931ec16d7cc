/*
 * Weights in 4 and 8 bits with scales of groups: checkpoints in every published form give the bits of the same checkpoint
 * with the dequantised values in F32, whichever weights are quantised. The quantiser is here: it shares nothing with the
 * loader but the file format. What is not supported, or does not fit to the config, is refused by name.
 */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attend_resident.h"
#include "kernels/backend_impl.h"
#include "kernels/ep.h"
#include "kernels/formats.h"
#include "model/model_impl.h"
#include "model/sizes.h"
#include "quant_tools.h"
#include "tests/unit/run_suite.h"

#define N_IDS 40

#define CT "\"quant_method\":\"compressed-tensors\","
#define GROUP(weights, acts)                                                                                 \
    "\"config_groups\":{\"group_0\":{\"targets\":[\"Linear\"],\"weights\":{" weights                         \
    "},\"input_activations\":" acts ",\"output_activations\":null}}"
#define W4(size)                                                                                             \
    "\"num_bits\":4,\"type\":\"int\",\"symmetric\":true,\"strategy\":\"group\",\"dynamic\":false,"           \
    "\"actorder\":null,\"observer\":\"minmax\",\"group_size\":" size
#define IGNORE                                                                                               \
    ",\"ignore\":[\"lm_head\",\"re:.*self_attn.*\",\"re:.*mlp\\\\.gate$\",\"re:.*shared_experts.*\"]"
#define A8 "{\"num_bits\":8,\"type\":\"float\",\"symmetric\":true,\"strategy\":\"token\",\"dynamic\":true}"
#define A4                                                                                                   \
    "{\"num_bits\":4,\"type\":\"float\",\"strategy\":\"tensor_group\",\"group_size\":16,\"dynamic\":\"local\"}"
#define INT(size) "{" CT "\"format\":\"pack-quantized\"," GROUP(W4(size), "null") IGNORE "}"
#define NV                                                                                                   \
    "{" CT "\"format\":\"nvfp4-pack-quantized\"," GROUP(                                                     \
        "\"num_bits\":4,\"type\":\"float\",\"strategy\":\"tensor_group\",\"group_size\":16", A4) IGNORE "}"
#define MX                                                                                                   \
    "{" CT "\"format\":\"mxfp4-pack-quantized\"," GROUP(                                                     \
        "\"num_bits\":4,\"type\":\"float\",\"strategy\":\"group\",\"group_size\":32", "null") IGNORE "}"

static const form forms[] = {
    {"int4 of 32, experts", DS, INT("32"), INT4, 32, EXPERTS, SL_ST_BF16},
    {"int4 of 64, experts", DS, INT("64"), INT4, 64, EXPERTS, SL_ST_F16},
    {"int4 of 128, longer than rows", DS, INT("128"), INT4, 128, EXPERTS, SL_ST_F32},
    {"int4 of 16, every linear", DS, INT("16"), INT4, 16, ALL, SL_ST_BF16},
    {"int4 of 32, not attention", DS, INT("32"), INT4, 32, NO_ATTENTION, SL_ST_BF16},
    {"int4 of 32, some layers", DS, INT("32"), INT4, 32, EVEN_EXPERTS_LAYERS, SL_ST_BF16},
    {"int4 of 32, downs", DS, INT("32"), INT4, 32, DOWN_ONLY, SL_ST_BF16},
    {"int4 by output", DS,
     "{" CT "\"format\":\"pack-quantized\"," GROUP(
         "\"num_bits\":4,\"type\":\"int\",\"strategy\":\"channel\",\"group_size\":null", "null") "}",
     INT4, 0, EXPERTS, SL_ST_BF16},
    {"int4 of 32 with fp8 inputs", DS, "{" CT GROUP(W4("32"), A8) "}", INT4, 32, EXPERTS, SL_ST_BF16},
    {"int4 of two sizes", DS,
     "{" CT
     "\"format\":\"mixed-precision\",\"config_groups\":{\"a\":{\"targets\":[\"re:.*up.*\"],\"weights\":{" W4(
         "32") "}},\"b\":{\"targets\":[\"Linear\"],\"weights\":{" W4("64") "}}}}",
     INT4, -1, EXPERTS, SL_ST_BF16},
    {"NVFP4, experts", DS, NV, NVFP4, 16, EXPERTS, SL_ST_F32},
    {"NVFP4, every linear", DS, NV, NVFP4, 16, ALL, SL_ST_F32},
    {"NVFP4 of ModelOpt", DS,
     "{\"quant_method\":\"modelopt\",\"quant_algo\":\"NVFP4\",\"ignore\":[\"lm_head\"]}", NVFP4_MODELOPT, 16,
     NO_ATTENTION, SL_ST_F32},
    {"MXFP4, experts", DS, MX, MXFP4, 32, EXPERTS, SL_ST_F32},
    {"MXFP4, not attention", DS, MX, MXFP4, 32, NO_ATTENTION, SL_ST_F32},
    {"MXFP4 beside fp8", F8,
     "{\"quant_method\":\"fp8\",\"weight_block_size\":[128,128]},\"expert_dtype\":\"fp4\"", MXFP4_BYTES, 32,
     EXPERTS, SL_ST_F8_E8M0},
    {"fp8 by output", DS,
     "{" CT "\"format\":\"float-quantized\"," GROUP(
         "\"num_bits\":8,\"type\":\"float\",\"strategy\":\"channel\"", A8) "}",
     F8_CHANNEL, 0, ALL, SL_ST_BF16},
    {"fp8 by blocks with powers", DS, "{\"quant_method\":\"fp8\",\"weight_block_size\":[128,128]}", F8_POWERS,
     128, ALL, SL_ST_F8_E8M0},
};

static const sl_model_opts plain = {.index_format = SL_INDEX_PLAIN,
                                    .row_format = SL_ROW_MLA_F32,
                                    .act = SL_F32,
                                    .max_tokens = 64,
                                    .max_logit_rows = 64,
                                    .max_context = 256,
                                    .fp8_acts = SL_FP8_ACTS_OFF};

static sl_backend *backend(void)
{
    sl_err err = {0};
    sl_backend *be;
    sl_backend_opts o = {.threads = 1};
    ck_assert_msg(sl_backend_create("cpu", &o, &be, &err) == SL_OK, "%s", err.text);
    return be;
}

static float *answer(sl_backend *be, const char *from, const sl_model_opts *o)
{
    sl_err err = {0};
    sl_model *m;
    sl_resident *r;
    int32_t ids[N_IDS];
    for (int32_t i = 0; i < N_IDS; i++)
        ids[i] = (i * 37 + 11) % 90;
    ck_assert_msg(sl_model_load(be, from, o, &m, &err) == SL_OK, "%s", err.text);
    ck_assert_msg(sl_resident_create(be, m, 1, 64, &r, &err) == SL_OK, "%s", err.text);
    float *logits = malloc(sizeof *logits * N_IDS * (size_t)sl_model_get_config(m)->vocab_size);
    sl_resident_chunk c = {0, ids, N_IDS};
    ck_assert_msg(sl_resident_step(r, &c, 1, true, logits, &err) == SL_OK, "%s", err.text);
    sl_resident_destroy(r);
    sl_model_destroy(m);
    return logits;
}

/* The bits of the dequantised checkpoint; also from a device that holds copies. */
START_TEST(test_forms)
{
    const form *f = &forms[_i];
    sl_backend *be = backend(), *copying = backend();
    copying->caps &= ~(unsigned)SL_BE_UNIFIED;
    qt_begin(f);
    qt_make(f);
    float *want = answer(be, qt_dir_whole, &plain), *got = answer(be, qt_dir, &plain),
          *copied = answer(copying, qt_dir, &plain);
    for (int i = 0; i < N_IDS * 128; i++) {
        ck_assert_msg(isfinite(want[i]), "%s: logit %d is not finite", f->name, i);
        ck_assert_msg(memcmp(&want[i], &got[i], 4) == 0, "%s: logit %d is %.8g, dequantised %.8g", f->name, i,
                      (double)got[i], (double)want[i]);
    }
    ck_assert_mem_eq(got, copied, sizeof *got * N_IDS * 128);
    free(want);
    free(got);
    free(copied);
    qt_end();
    sl_backend_destroy(copying);
    sl_backend_destroy(be);
}
END_TEST

/* With bf16 activations and inputs as the config says: close to the dequantised checkpoint, and W4A8 differs from W4A16,
 * so the key has an effect. */
START_TEST(test_inputs)
{
    form f = forms[0], a8 = forms[8];
    sl_model_opts o = plain;
    sl_backend *be = backend();
    double off = 0, size = 0;
    ck_assert_str_eq(a8.name, "int4 of 32 with fp8 inputs");
    o.act = SL_BF16, o.row_format = SL_ROW_MLA_BF16, o.fp8_acts = SL_FP8_ACTS_AUTO;
    qt_begin(&f);
    qt_make(&f);
    float *a16 = answer(be, qt_dir, &o);
    qt_write_config(&a8, qt_dir, a8.config);
    float *quantised = answer(be, qt_dir, &o), *exact = answer(be, qt_dir_whole, &plain);
    ck_assert_int_ne(memcmp(a16, quantised, sizeof *a16 * N_IDS * 128), 0);
    for (int i = 0; i < N_IDS * 128; i++) {
        off += fabs((double)quantised[i] - exact[i]);
        size += fabs(exact[i]);
    }
    ck_assert_msg(off < 0.15 * size, "W4A8 is off by %.3g of %.3g", off, size);
    free(a16);
    free(quantised);
    free(exact);
    qt_end();
    sl_backend_destroy(be);
}
END_TEST

/* The ranks of a group place every expert once; what all place is the same. */
START_TEST(test_ranks)
{
    const form *f = &forms[_i ? 10 : 0];
    sl_err err = {0};
    uint64_t one, sum = 0, part[3];
    qt_begin(f);
    qt_make(f);
    ck_assert_msg(sl_model_placed_bytes(qt_dir, &plain, &one, &err) == SL_OK, "%s", err.text);
    for (int32_t r = 0; r < 3; r++) {
        sl_model_opts o = plain;
        o.rank = r, o.ranks = 3;
        ck_assert_msg(sl_model_placed_bytes(qt_dir, &o, &part[r], &err) == SL_OK, "%s", err.text);
        sum += part[r];
    }
    int32_t first[4];
    sl_ep_split(8, 3, first); /* the experts of three layers */
    const double values = 32 * 64 * 3,
                 each = f->kind == INT4 ? values / 2 + values / 32 * 2 : values / 2 + values / 16;
    const double common = (double)one - 8 * 3 * each;
    ck_assert_double_eq_tol((double)sum, 3 * common + 8 * 3 * each, 0.5);
    ck_assert_double_eq_tol((double)part[2], common + (first[3] - first[2]) * 3 * each, 0.5);
    qt_end();
}
END_TEST

/* A plan from the config alone says what the tensors say; random weights have the form of the config, the same on ranks. */
START_TEST(test_without_tensors)
{
    static const int of[] = {0, 7, 8, 10, 13};
    const form *f = &forms[of[_i]];
    sl_err err = {0};
    sl_model_config c;
    sl_weight_bytes w;
    uint64_t placed;
    sl_model *m, *rank;
    sl_backend *be = backend();
    sl_model_opts o = plain;
    qt_begin(f);
    qt_make(f);
    ck_assert_msg(sl_model_config_load(qt_dir, &c, &err) == SL_OK, "%s", err.text);
    ck_assert_msg(sl_model_placed_bytes(qt_dir, &o, &placed, &err) == SL_OK, "%s", err.text);
    sl_model_weight_sizes(&c, SL_F32, SL_F32, &w);
    ck_assert_uint_eq(placed, w.replicated + (uint64_t)c.moe.n_routed * w.expert);
    o.dummy = true, o.fp8_acts = SL_FP8_ACTS_AUTO, o.act = SL_BF16, o.row_format = SL_ROW_MLA_BF16;
    float *logits = answer(be, qt_dir, &o);
    for (int i = 0; i < N_IDS * 128; i++)
        ck_assert_msg(isfinite(logits[i]), "%s: logit %d", f->name, i);
    free(logits);
    ck_assert_msg(sl_model_load(be, qt_dir, &o, &m, &err) == SL_OK, "%s", err.text);
    o.rank = 1, o.ranks = 2;
    ck_assert_msg(sl_model_load(be, qt_dir, &o, &rank, &err) == SL_OK, "%s", err.text);
    const sl_weight *a = &m->weights.layers[1].down[7], *b = &rank->weights.layers[1].down[7];
    ck_assert_int_eq(a->dtype, c.quant.forms[0].dtype);
    ck_assert_int_eq(a->scale_type, c.quant.forms[0].scale_type);
    ck_assert_int_eq(a->acts_as_given, c.quant.half_acts != 1);
    ck_assert(a->dtype == b->dtype && a->group == b->group && a->scale_type == b->scale_type);
    ck_assert_mem_eq(a->data, b->data, (size_t)(a->out * a->in / 2));
    ck_assert_mem_eq(a->multiplier, b->multiplier, (size_t)a->out * sl_scale_size(a->scale_type));
    ck_assert_ptr_null(rank->weights.layers[1].down[0].data);
    sl_model_destroy(m);
    sl_model_destroy(rank);
    qt_end();
    sl_backend_destroy(be);
}
END_TEST

static void refused(sl_status status, const char *says)
{
    sl_backend *be = backend();
    sl_err err = {0};
    sl_model *m = NULL;
    sl_status rc = sl_model_load(be, qt_dir, &plain, &m, &err);
    ck_assert_msg(rc == status && strstr(err.text, says), "\"%s\" (%s) does not say \"%s\"", err.text,
                  sl_status_name(rc), says);
    ck_assert_msg(strncmp(err.text, qt_dir, strlen(qt_dir)) == 0, "\"%s\" does not name the file", err.text);
    sl_backend_destroy(be);
}

/* Whichever tensor of a quantised weight is missing, it is named. */
START_TEST(test_missing)
{
    static const int of[] = {0, 10, 12, 13};
    const form *f = &forms[of[_i]];
    qt_begin(f);
    qt_make(f);
    size_t n = qt_list->n;
    for (size_t i = 0; i < n; i++) {
        ct_tensor gone = qt_list->t[0];
        memmove(qt_list->t, qt_list->t + 1, (n - 1) * sizeof gone);
        qt_list->n = n - 1;
        bool needed = strstr(gone.name, "experts.") && strstr(gone.name, "weight") &&
                      !strstr(gone.name, "weight_shape");
        if (needed && i % 5 == 0) {
            ct_write(qt_list, 0, qt_list->n, qt_dir, "model.safetensors", 0);
            refused(SL_ERR_INVALID, gone.name);
        }
        qt_list->t[n - 1] = gone;
        qt_list->n = n;
    }
    qt_end();
}
END_TEST

#define E0 "model.layers.1.mlp.experts.0.gate_proj."
static const struct {
    int form;
    const char *name;
    sl_st_dtype dtype;
    int64_t rows, cols;
    sl_status status;
    const char *says;
} replaced[] = {
    {0, E0 "weight_packed", SL_ST_I32, 32, 16, SL_ERR_INVALID,
     "weight_packed: shape [32,16], the config asks for [32,8]"},
    {0, E0 "weight_packed", SL_ST_F32, 32, 8, SL_ERR_INVALID, "weight_packed: dtype F32"},
    {0, E0 "weight_scale", SL_ST_BF16, 32, 4, SL_ERR_INVALID, "weight_scale: BF16 [32,4] are not the scales"},
    {0, E0 "weight_scale", SL_ST_F8_E4M3, 32, 2, SL_ERR_INVALID, "weight_scale: dtype F8_E4M3"},
    {0, E0 "weight_shape", SL_ST_I64, 2, 0, SL_ERR_INVALID,
     "weight_shape: [0,0], the config asks for [32,64]"},
    {0, E0 "weight_zero_point", SL_ST_I32, 4, 2, SL_ERR_UNSUPPORTED, "weight_zero_point: zero points"},
    {0, E0 "weight_g_idx", SL_ST_I32, 64, 0, SL_ERR_UNSUPPORTED, "weight_g_idx"},
    {10, E0 "weight_global_scale", SL_ST_F32, 2, 0, SL_ERR_INVALID, "weight_global_scale: not one F32"},
    {10, E0 "weight_global_scale", SL_ST_F32, 1, 0, SL_ERR_INVALID, "weight_global_scale: 0 is no positive"},
    {10, E0 "weight_scale", SL_ST_BF16, 32, 4, SL_ERR_INVALID, "weight_scale: dtype BF16"},
    {12, E0 "weight_scale_2", SL_ST_F64, 1, 0, SL_ERR_INVALID, "weight_scale_2: not one F32"},
    {13, E0 "weight_scale", SL_ST_F8_E4M3, 32, 2, SL_ERR_INVALID, "not the scales"},
};

START_TEST(test_replaced)
{
    qt_begin(&forms[replaced[_i].form]);
    qt_make(&forms[replaced[_i].form]);
    for (size_t i = 0; i < qt_list->n; i++)
        if (strcmp(qt_list->t[i].name, replaced[_i].name) == 0) {
            ct_remove(qt_list, replaced[_i].name);
            break;
        }
    ct_add(qt_list, replaced[_i].name, replaced[_i].dtype, replaced[_i].rows, replaced[_i].cols);
    ct_write(qt_list, 0, qt_list->n, qt_dir, "model.safetensors", 0);
    refused(replaced[_i].status, replaced[_i].says);
    qt_end();
}
END_TEST

/* The config and the tensors must agree, and what the config says must be supported. */
static const struct {
    const char *config;
    sl_status status;
    const char *says;
} configs[] = {
    {NULL, SL_ERR_INVALID, "in one of the 0 forms"},
    {INT("64"), SL_ERR_INVALID, "are not the scales"},
    {NV, SL_ERR_INVALID, "are not the scales"},
    {INT("48"), SL_ERR_UNSUPPORTED, "group_size: 48"},
    {"{" CT GROUP("\"num_bits\":8,\"type\":\"int\",\"strategy\":\"channel\"", "null") "}", SL_ERR_UNSUPPORTED,
     "config_groups.group_0.weights: int of 8 bits"},
    {"{" CT GROUP(
         "\"num_bits\":4,\"type\":\"int\",\"symmetric\":false,\"strategy\":\"group\",\"group_size\":32",
         "null") "}",
     SL_ERR_UNSUPPORTED, "symmetric: false"},
    {"{" CT GROUP(
         "\"num_bits\":4,\"type\":\"int\",\"actorder\":\"group\",\"strategy\":\"group\",\"group_size\":32",
         "null") "}",
     SL_ERR_UNSUPPORTED, "actorder"},
    {"{" CT GROUP("\"num_bits\":4,\"type\":\"int\",\"strategy\":\"tensor\"", "null") "}", SL_ERR_UNSUPPORTED,
     "strategy: \"tensor\""},
    {"{" CT GROUP(W4("32"), "{\"num_bits\":8,\"type\":\"int\",\"dynamic\":true}") "}", SL_ERR_UNSUPPORTED,
     "input_activations: inputs as int of 8 bits"},
    {"{" CT GROUP(W4("32"), "{\"num_bits\":8,\"type\":\"float\",\"dynamic\":false}") "}", SL_ERR_UNSUPPORTED,
     "dynamic: false"},
    {"{" CT "\"format\":\"int-quantized\"," GROUP(W4("32"), "null") "}", SL_ERR_UNSUPPORTED, "format"},
    {"{" CT GROUP(W4("32"), "null") ",\"transform_config\":{\"config_groups\":{\"R1\":{}}}}",
     SL_ERR_UNSUPPORTED, "transform_config"},
    {"{" CT GROUP(W4("32"), "null") ",\"sparsity_config\":{\"format\":\"sparse-24-bitmask\"}}",
     SL_ERR_UNSUPPORTED, "sparsity_config"},
    {"{" CT "\"config_groups\":{}}", SL_ERR_INVALID, "config_groups"},
    {"{" CT "\"config_groups\":{\"a\":{\"targets\":[\"Linear\"]}}}", SL_ERR_UNSUPPORTED,
     "config_groups.a.weights"},
    {"{\"quant_method\":\"modelopt\",\"quant_algo\":\"FP8\"}", SL_ERR_UNSUPPORTED, "quant_algo: \"FP8\""},
    {"{\"quant_method\":\"awq\"}", SL_ERR_UNSUPPORTED, "quant_method \"awq\""},
    {"{" CT "\"config_groups\":{\"a\":{\"weights\":{" W4("32") "},\"input_activations\":" A8
                                                               "},\"b\":{\"weights\":{" W4("64") "}}}}",
     SL_ERR_UNSUPPORTED, "some weights of 4 bits have quantised inputs"},
};

START_TEST(test_configs)
{
    qt_begin(&forms[0]);
    qt_make(&forms[0]);
    qt_write_config(&forms[0], qt_dir, configs[_i].config);
    refused(configs[_i].status, configs[_i].says);
    qt_end();
}
END_TEST

/* hf_quant_config.json is read where config.json does not say how weights are quantised, and only there. */
START_TEST(test_hf_quant)
{
    const form *f = &forms[12];
    sl_backend *be = backend();
    ck_assert_str_eq(f->name, "NVFP4 of ModelOpt");
    qt_begin(f);
    qt_make(f);
    float *want = answer(be, qt_dir, &plain);
    ct_write_text(qt_dir, "hf_quant_config.json", "{\"quantization\":{\"quant_algo\":\"W8A8_SQ\"}}");
    float *other = answer(be, qt_dir, &plain);
    qt_write_config(f, qt_dir, NULL);
    refused(SL_ERR_UNSUPPORTED, "hf_quant_config.json: quant_algo: \"W8A8_SQ\"");
    ct_write_text(qt_dir, "hf_quant_config.json",
                  "{\"producer\":{\"name\":\"modelopt\"},\"quantization\":{\"quant_algo\":\"NVFP4\","
                  "\"kv_cache_quant_algo\":null,\"group_size\":16,\"exclude_modules\":[\"lm_head\"]}}");
    float *got = answer(be, qt_dir, &plain);
    ck_assert_mem_eq(want, other, sizeof *want * N_IDS * 128);
    ck_assert_mem_eq(want, got, sizeof *want * N_IDS * 128);
    free(want);
    free(other);
    free(got);
    qt_end();
    sl_backend_destroy(be);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("weights_quant");
    TCase *t = tcase_create("weights_quant");
    tcase_set_timeout(t, 120);
    tcase_add_loop_test(t, test_forms, 0, (int)SL_COUNT(forms));
    tcase_add_test(t, test_inputs);
    tcase_add_loop_test(t, test_ranks, 0, 2);
    tcase_add_loop_test(t, test_without_tensors, 0, 5);
    tcase_add_loop_test(t, test_missing, 0, 4);
    tcase_add_loop_test(t, test_replaced, 0, (int)SL_COUNT(replaced));
    tcase_add_loop_test(t, test_configs, 0, (int)SL_COUNT(configs));
    tcase_add_test(t, test_hf_quant);
    suite_add_tcase(s, t);
    return run_suite(s);
}
