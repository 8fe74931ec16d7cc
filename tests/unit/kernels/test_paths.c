/* Which kernel runs: decisions of the CUDA backend that need no GPU. */
#include <check.h>
#include <string.h>

#include "kernels/backend_impl.h"
#include "kernels/chain.h"
#include "kernels/paths.h"
#include "tests/unit/run_suite.h"

static const int32_t sizes[] = {8,   24,  40,   64,   72,   96,   128,  136,  192,   256,   384,   512,
                                576, 640, 1024, 1536, 2048, 4096, 7168, 7296, 12288, 16384, 18432, 129280};
static const int32_t counts[] = {1,   2,   3,   4,   5,    16,   63,   64,   65,
                                 128, 255, 256, 257, 1000, 2048, 2049, 8192, 70000};
static const int32_t capabilities[] = {80, 86, 89, 90, 100, 120};

static int order_of(const sl_gpu *g, sl_op op, const void *p)
{
    return sl_op_path(g, op, p)->order;
}

/* The order of sums of a weight is the same for every number of tokens; other paths would change a token's bits with the
 * batch. */
START_TEST(linear_order)
{
    const sl_gpu g = sl_gpu_of(capabilities[_i], 132, 227 << 10);
    const sl_dtype types[] = {SL_F32, SL_BF16, SL_F16, SL_F8_E4M3};
    long n = 0;

    for (size_t a = 0; a < SL_COUNT(sizes); a++)
        for (size_t b = 0; b < SL_COUNT(sizes); b++)
            for (size_t t = 0; t < SL_COUNT(types) * 8; t++) {
                sl_linear_params p = {.w = {.out = sizes[a], .in = sizes[b], .dtype = types[t / 8]},
                                      .ld_x = sizes[b],
                                      .ld_out = sizes[a],
                                      .fp8_acts = t & 1,
                                      .act = t & 2 ? SL_BF16 : SL_F32,
                                      .out_dtype = t & 4 ? SL_BF16 : SL_F32,
                                      .tokens = 1};
                const int order = order_of(&g, SL_OP_LINEAR, &p);

                for (size_t i = 1; i < SL_COUNT(counts); i++, n++) {
                    p.tokens = counts[i];
                    /* the library's chain has the order of the own kernels only where k is one range */
                    ck_assert(sl_path_linear(&g, &p) != SL_LINEAR_ONE_CHAIN || sl_linear_ranges(&p.w) == 1);
                    if (order_of(&g, SL_OP_LINEAR, &p) != order)
                        ck_abort_msg(
                            "a weight of %d x %d (type %d, case %zu) is summed otherwise for %d tokens",
                            p.w.out, p.w.in, p.w.dtype, t % 8, counts[i]);
                }
            }
    ck_assert_int_gt(n, 100000);
}
END_TEST

START_TEST(moe_order)
{
    const sl_gpu g = sl_gpu_of(90, 132, 227 << 10);
    const sl_dtype types[] = {SL_F32, SL_BF16, SL_F8_E4M3};

    for (size_t a = 0; a < SL_COUNT(sizes); a++)
        for (size_t t = 0; t < SL_COUNT(types) * 4; t++) {
            const sl_weight w = {.dtype = types[t / 4]};
            sl_moe_params p = {.gate = &w,
                               .up = &w,
                               .down = &w,
                               .hidden = sizes[a],
                               .inter = 2048,
                               .top_k = 8,
                               .experts = 256,
                               .act = t & 2 ? SL_BF16 : SL_F32,
                               .fp8_acts = t & 1,
                               .tokens = 1};
            const int order = order_of(&g, SL_OP_MOE, &p);

            for (size_t i = 1; i < SL_COUNT(counts); i++) {
                p.tokens = counts[i];
                ck_assert_int_eq(order_of(&g, SL_OP_MOE, &p), order);
            }
        }
}
END_TEST

/* Two orders of sums: the format, the dimension and the device decide, never the number of blocks or of tokens before them. */
START_TEST(prompt_scores_order)
{
    static const sl_row_format formats[] = {SL_ROW_GQA_F32, SL_ROW_GQA_BF16, SL_ROW_GQA_FP8};

    for (size_t f = 0; f < SL_COUNT(formats); f++)
        for (int32_t dim = 2; dim <= 512; dim += 2)
            for (size_t smem = 48 << 10; smem <= 227 << 10; smem += 16 << 10) {
                const sl_gpu g = sl_gpu_of(90, 132, smem);
                sl_prompt_scores_params p = {
                    .format = formats[f], .dim = dim, .heads = 8, .kv_heads = 2, .n = 1};
                const bool tensor = formats[f] == SL_ROW_GQA_BF16 && dim % 16 == 0 && smem >= 96 << 10;
                const int order = order_of(&g, SL_OP_PROMPT_SCORES, &p);

                ck_assert_int_eq(sl_op_path(&g, SL_OP_PROMPT_SCORES, &p)->plain, !tensor);
                p.n = 1000, p.max_pos = 1 << 20;
                ck_assert_int_eq(order_of(&g, SL_OP_PROMPT_SCORES, &p), order);
            }
}
END_TEST

/* No path depends on where memory lies. */
START_TEST(addresses)
{
    const sl_gpu g = sl_gpu_of(90, 132, 227 << 10);
    static uint8_t at[64];

    for (int shift = 0; shift < 16; shift++) {
        const void *p = at + shift;
        const sl_weight w = {
            .data = p, .scale = (const float *)p, .out = 7168, .in = 2048, .dtype = SL_F8_E4M3};
        sl_linear_params l = {.x = p,
                              .w = w,
                              .out = at + shift,
                              .tokens = 8,
                              .ld_x = 2048,
                              .ld_out = 7168,
                              .fp8_acts = true,
                              .act = SL_BF16,
                              .out_dtype = SL_BF16};
        sl_rmsnorm_params n = {.x = at + shift,
                               .weight = p,
                               .out = at + shift,
                               .tokens = 1,
                               .dim = 7168,
                               .ld_x = 7168,
                               .act = SL_BF16,
                               .weight_dtype = SL_BF16};
        sl_sparse_attn_params s = {.ql = p,
                                   .o = (float *)(void *)(at + shift),
                                   .tokens = 1,
                                   .heads = 128,
                                   .lora = 512,
                                   .rope = 64,
                                   .format = SL_ROW_MLA_FP8,
                                   .rows = {.base = at + shift, .row_bytes = 656}};
        sl_gqa_attn_params a = {.q = p,
                                .tokens = 1,
                                .heads = 32,
                                .kv_heads = 8,
                                .dim = 128,
                                .format = SL_ROW_GQA_FP8,
                                .act = SL_BF16,
                                .rows = {.base = at + shift}};

        ck_assert_int_eq(sl_path_linear(&g, &l), SL_LINEAR_FEW);
        ck_assert_int_eq(sl_path_rmsnorm(&n), SL_NORM_WIDE);
        ck_assert_int_eq(sl_path_sparse_attn(&g, &s), SL_ATTN_TENSOR);
        ck_assert_int_eq(sl_path_gqa_attn(&g, &a), SL_GQA_DECODE);
        a.rows.base = NULL;
    }
}
END_TEST

/* Attention by head: the number of tokens decides between two kernels of the same arithmetic, and nothing else. */
START_TEST(attention_by_head)
{
    const sl_gpu h200 = sl_gpu_of(90, 132, 227 << 10), none = sl_gpu_of(80, 108, 164 << 10);
    static const int dims[] = {64, 96, 128, 256, 512};
    static const sl_row_format formats[] = {SL_ROW_GQA_F32, SL_ROW_GQA_BF16, SL_ROW_GQA_FP8};

    for (size_t i = 0; i < SL_COUNT(dims) * SL_COUNT(formats) * 2 * 3; i++) {
        const sl_seq_tables three = {.n_seqs = 3};
        sl_gqa_attn_params a = {.heads = 32, .kv_heads = 8, .act = SL_BF16, .tokens = 3};
        a.dim = dims[i % SL_COUNT(dims)], a.format = formats[i / SL_COUNT(dims) % SL_COUNT(formats)];
        a.skip_factor = i / 15 % 2 ? 100 : 0;
        a.seqs = i / 30 ? &three : NULL, a.tokens = i / 30 == 2 ? 4 : 3;
        const bool own = a.format != SL_ROW_GQA_F32 && a.dim != 96 && a.dim != 512;

        ck_assert_int_eq(sl_path_gqa_attn(&h200, &a), !own          ? SL_GQA_PLAIN
                                                      : i / 30 == 2 ? SL_GQA_PROMPT
                                                                    : SL_GQA_DECODE);
        ck_assert_int_eq(sl_path_gqa_attn(&none, &a), SL_GQA_PLAIN);
    }
}
END_TEST

/* What paths need of addresses is refused by name instead. */
START_TEST(alignment)
{
    _Alignas(16) static uint8_t at[4096];
    sl_err err = {0};

    for (int shift = 0; shift < 32; shift += 2) {
        const sl_linear_params l = {.x = at,
                                    .w = {.data = at + shift, .out = 8, .in = 8, .dtype = SL_BF16},
                                    .out = at,
                                    .tokens = 1,
                                    .ld_x = 8,
                                    .ld_out = 8,
                                    .act = SL_BF16,
                                    .out_dtype = SL_BF16};
        ck_assert_int_eq(sl_op_check(SL_OP_LINEAR, &l, 1, &err), SL_OK);
        ck_assert_int_eq(sl_op_check(SL_OP_LINEAR, &l, SL_ROW_ALIGN, &err),
                         shift % 16 ? SL_ERR_INVALID : SL_OK);
        if (shift % 16)
            ck_assert_msg(strstr(err.text, "linear: w is not aligned to 16 bytes") != NULL, "%s", err.text);
    }
    const sl_linear_params odd = {.x = at,
                                  .w = {.data = at + 2, .out = 3, .in = 3, .dtype = SL_BF16},
                                  .out = at + 2,
                                  .tokens = 1,
                                  .ld_x = 3,
                                  .ld_out = 3,
                                  .act = SL_BF16,
                                  .out_dtype = SL_BF16};
    ck_assert_int_eq(sl_op_check(SL_OP_LINEAR, &odd, SL_ROW_ALIGN, &err), SL_OK);
}
END_TEST

/* Experts in 4 bits take one path for any number of tokens; forms and shapes that it does not know take the plain one. */
START_TEST(half_experts)
{
    static const struct {
        sl_dtype dtype;
        sl_scale_type scale_type;
        int32_t group, hidden;
        bool acts, as_given, half;
    } rows[] = {
        {SL_I4, SL_SCALE_BF16, 128, 7168, true, false, true},
        {SL_I4, SL_SCALE_F32, 32, 7168, false, false, true},
        {SL_I4, SL_SCALE_BF16, 64, 512, true, true, true},
        {SL_I4, SL_SCALE_BF16, 16, 512, true, false, false},
        {SL_I4, SL_SCALE_BF16, 128, 384, true, false, false},
        {SL_F4_E2M1, SL_SCALE_E8M0, 32, 7168, true, false, true},
        {SL_F4_E2M1, SL_SCALE_E8M0, 32, 7168, false, false, true},
        {SL_F4_E2M1, SL_SCALE_E4M3, 16, 7168, true, true, true},
        {SL_F4_E2M1, SL_SCALE_E4M3, 16, 7168, true, false, false}, /* its multipliers do not fit into e4m3 */
        {SL_F8_E4M3, SL_SCALE_F32, 7168, 7168, true, false, false},
    };
    const sl_gpu g = sl_gpu_of(90, 132, 227 << 10);

    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        const sl_weight w = {.dtype = rows[i].dtype,
                             .scale_type = rows[i].scale_type,
                             .group = rows[i].group,
                             .acts_as_given = rows[i].as_given};
        sl_moe_params p = {.gate = &w,
                           .up = &w,
                           .down = &w,
                           .hidden = rows[i].hidden,
                           .inter = 2048,
                           .experts = 32,
                           .top_k = 8,
                           .fp8_acts = rows[i].acts,
                           .act = SL_BF16};
        for (p.tokens = 1; p.tokens < 100000; p.tokens *= 7)
            ck_assert_msg(sl_path_moe(&g, &p, p.tokens, p.fp8_acts) ==
                              (rows[i].half ? SL_MOE_HALF : SL_MOE_PLAIN),
                          "row %zu of %d tokens", i, p.tokens);
        if (rows[i].half && rows[i].acts && !rows[i].as_given) /* rows that arrived as they are */
            ck_assert_int_eq(sl_path_moe(&g, &p, 8, false), SL_MOE_PLAIN);
    }
}
END_TEST

/* A layer whose experts have different types could take another path on the rank that has some of them. */
START_TEST(mixed_experts)
{
    _Alignas(16) static uint8_t at[1 << 17];
    static const float scale[1];
    sl_err err = {0};

    for (int odd = -1; odd < 3; odd++) {
        sl_weight w[3][2];
        for (int i = 0; i < 6; i++)
            w[i / 2][i % 2] = (sl_weight){.data = at, .out = 16, .in = 16, .dtype = SL_BF16};
        if (odd >= 0)
            w[odd][1].dtype = SL_F8_E4M3, w[odd][1].scale = scale;
        const sl_moe_params p = {.x = at,
                                 .gate = w[0],
                                 .up = w[1],
                                 .down = w[2],
                                 .expert_ids = (int32_t *)(void *)at,
                                 .weights = (float *)(void *)at,
                                 .out = at,
                                 .tokens = 1,
                                 .hidden = 16,
                                 .inter = 16,
                                 .experts = 2,
                                 .top_k = 1,
                                 .act = SL_BF16,
                                 .workspace = at,
                                 .workspace_bytes = sizeof at};
        const sl_status st = sl_op_check(SL_OP_MOE, &p, 1, &err);
        ck_assert_msg(st == (odd < 0 ? SL_OK : SL_ERR_UNSUPPORTED), "%d: %s", odd, err.text);
        if (odd >= 0)
            ck_assert_msg(strstr(err.text, "another dtype") != NULL, "%s", err.text);
    }
}
END_TEST

/* ---- an algorithm of a library ---- */

typedef struct algo {
    int32_t split;
    uint32_t scheme;
    bool says, sets, obeys;
} algo;

static bool get(const void *a, int32_t *split, uint32_t *scheme)
{
    const algo *x = a;
    *split = x->split, *scheme = x->scheme;
    return x->says;
}

static bool set(void *a, int32_t split, uint32_t scheme)
{
    algo *x = a;
    if (x->sets && x->obeys)
        x->split = split, x->scheme = scheme;
    return x->sets;
}

START_TEST(one_chain)
{
    static const sl_chain_calls calls = {.get = get, .set = set};
    const struct {
        algo a;
        bool ok;
    } rows[] = {
        {{1, 0, true, false, false}, true}, /* as it comes */
        {{0, 0, true, false, false}, true},
        {{4, 0, true, true, true}, true}, /* configured */
        {{1, 2, true, true, true}, true},
        {{4, 0, true, true, false}, false}, /* accepts the call and keeps its split */
        {{1, 2, true, true, false}, false},
        {{4, 0, true, false, true}, false}, /* refuses the call */
        {{1, 0, false, true, true}, false}, /* does not say */
    };

    for (size_t i = 0; i < SL_COUNT(rows); i++) {
        algo a = rows[i].a;
        ck_assert_msg(sl_chain_make(&calls, &a) == rows[i].ok, "row %zu", i);
    }
}
END_TEST

/* kind 0: it does not say. */
static bool kind(const void *a, uint32_t *out)
{
    *out = *(const uint32_t *)a;
    return *out != 0;
}

/* Two algorithms that do not say their kind are not of one. */
START_TEST(kinds)
{
    static const sl_chain_calls calls = {.kind = kind};

    for (uint32_t a = 0; a < 3; a++)
        for (uint32_t b = 0; b < 3; b++)
            ck_assert_int_eq(sl_chain_alike(&calls, &a, &b), a == b && a != 0);
}
END_TEST

/* ---- GPUs ---- */

START_TEST(constants_of_the_device)
{
    const sl_gpu h200 = sl_gpu_of(90, 132, 227 << 10);

    ck_assert_int_eq(h200.gather_sms, 4);
    ck_assert_int_eq(h200.side_sms, 6);
    ck_assert_int_eq(h200.exchange_sms, 16);
    ck_assert_int_eq(h200.exchange_sms_large, 64);
    for (int sms = 1; sms < 300; sms++) {
        const sl_gpu g = sl_gpu_of(90, sms, 227 << 10);
        ck_assert_int_ge(g.gather_sms, 2);
        ck_assert(g.side_sms >= 2 && g.side_sms % 2 == 0);
        ck_assert(g.exchange_sms >= 4 && g.exchange_sms_large >= g.exchange_sms);
        ck_assert(sms < 8 || g.exchange_sms_large < sms);
    }
}
END_TEST

/* Warpgroup products exist on 9.0 only; elsewhere the paths with their bits are never chosen. */
START_TEST(other_architectures)
{
    const sl_linear_params l = {.w = {.out = 7168, .in = 2048, .dtype = SL_F8_E4M3},
                                .tokens = 8,
                                .ld_x = 2048,
                                .ld_out = 7168,
                                .fp8_acts = true,
                                .act = SL_BF16,
                                .out_dtype = SL_BF16};
    const sl_sparse_attn_params latent = {.format = SL_ROW_MLA_FP8, .lora = 512, .rope = 64};
    const sl_gqa_attn_params by_head = {
        .format = SL_ROW_GQA_BF16, .dim = 128, .heads = 8, .kv_heads = 2, .act = SL_BF16};
    const sl_index_scores_params keys = {
        .format = SL_INDEX_OFFICIAL, .dim = 128, .heads = 64, .ld_scores = 64};
    const sl_prompt_scores_params blocks = {.format = SL_ROW_GQA_BF16, .dim = 128, .heads = 8, .kv_heads = 2};

    for (size_t i = 0; i < SL_COUNT(capabilities); i++) {
        const sl_gpu g = sl_gpu_of(capabilities[i], 132, 227 << 10);
        ck_assert_int_eq(g.wgmma, capabilities[i] == 90);
        ck_assert_int_eq(g.bulk, capabilities[i] >= 90);
        ck_assert_int_eq(sl_path_linear(&g, &l) == SL_LINEAR_PLAIN, capabilities[i] != 90);
        ck_assert_int_eq(sl_op_path(&g, SL_OP_LINEAR, &l)->plain, capabilities[i] != 90);
        ck_assert_int_eq(sl_op_path(&g, SL_OP_SPARSE_ATTN, &latent)->plain, capabilities[i] != 90);
        ck_assert_int_eq(sl_op_path(&g, SL_OP_GQA_ATTN, &by_head)->plain, capabilities[i] != 90);
        ck_assert_int_eq(sl_op_path(&g, SL_OP_INDEX_SCORES, &keys)->plain, capabilities[i] != 90);
        ck_assert_int_eq(sl_op_path(&g, SL_OP_PROMPT_SCORES, &blocks)->plain, false);
    }
}
END_TEST

/* Every table names each path once and says what it is for. */
START_TEST(tables)
{
    for (int op = 0; op < SL_OP_COUNT; op++) {
        int n;
        const sl_path *v = sl_op_paths((sl_op)op, &n);
        ck_assert(!v == (n == 0));
        for (int i = 0; i < n; i++) {
            ck_assert_ptr_nonnull(v[i].name);
            ck_assert_int_gt((int)strlen(v[i].shapes), 3);
            for (int k = 0; k < i; k++)
                ck_assert_str_ne(v[i].name, v[k].name);
        }
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("paths");
    TCase *tc = tcase_create("paths");

    tcase_set_timeout(tc, 60); /* linear_order takes a second under a sanitizer, more next to other work */
    tcase_add_loop_test(tc, linear_order, 0, SL_COUNT(capabilities));
    tcase_add_test(tc, moe_order);
    tcase_add_test(tc, prompt_scores_order);
    tcase_add_test(tc, addresses);
    tcase_add_test(tc, attention_by_head);
    tcase_add_test(tc, alignment);
    tcase_add_test(tc, mixed_experts);
    tcase_add_test(tc, half_experts);
    tcase_add_test(tc, one_chain);
    tcase_add_test(tc, kinds);
    tcase_add_test(tc, constants_of_the_device);
    tcase_add_test(tc, other_architectures);
    tcase_add_test(tc, tables);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
