/*
 * Scratch memory of ops (kernels/scratch.h): what an op states has room for everything that its launcher places there, for made-up
 * shapes of every op that asks for any; and a backend whose scratch is planned refuses an op that states more.
 */
#include <check.h>
#include <stdio.h>
#include <string.h>

#include "kernels/backend_impl.h"
#include "kernels/formats.h"
#include "kernels/scratch.h"
#include "tests/unit/run_suite.h"

enum { SHAPES = 3000 };

static uint64_t rng = 88172645463325252u;

/* 1 .. most, small values as often as large ones. */
static int32_t some(int32_t most)
{
    rng ^= rng << 13, rng ^= rng >> 7, rng ^= rng << 17;
    const int32_t up_to = (int32_t)(most >> (rng >> 40) % 16);
    return 1 + (int32_t)(rng % (uint64_t)(up_to > 0 ? up_to : 1));
}

static sl_gpu h200(void)
{
    return sl_gpu_of(90, 132, 227 << 10);
}

/* At a memory for tests, the parts of an op follow each other: *at is where the next may begin. */
static void part(size_t *at, size_t begin, size_t bytes)
{
    ck_assert_uint_ge(begin, *at);
    *at = begin + bytes;
}

/* ---- what is placed fits ---- */

START_TEST(products)
{
    const sl_gpu g = h200();

    for (int i = 0; i < SHAPES; i++) {
        sl_linear_params last = {.w = {.in = 8 * some(4096), .out = 8 * some(4096), .dtype = SL_F8_E4M3},
                                 .tokens = some(9000),
                                 .fp8_acts = true,
                                 .act = i % 3 ? SL_BF16 : SL_F32,
                                 .out_dtype = i % 3 ? SL_BF16 : SL_F32};
        last.ld_x = last.w.in, last.ld_out = last.w.out;
        sl_linear_params p = last;
        p.w.out = 8 * some(4096), p.ld_out = p.w.out, p.next = i % 2 ? &last : NULL;
        const sl_linear_path path = sl_path_linear(&g, &p);
        const size_t padded = ((size_t)p.tokens + 3) / 4 * 4, in = (size_t)p.w.in,
                     scales = 4 * ((in + 127) / 128 * padded + 128),
                     stated = sl_op_scratch(&g, SL_OP_LINEAR, &p);
        size_t at = 0;

        part(&at, 0, padded * in);
        part(&at, (padded * in + 255) / 256 * 256, scales);
        if (path == SL_LINEAR_ONE_CHAIN || path == SL_LINEAR_SCALED || path == SL_LINEAR_LIBRARY)
            part(&at, (at + 255) / 256 * 256, padded == (size_t)p.tokens ? 0 : padded * (size_t)p.w.out * 2);
        ck_assert_msg(at <= stated, "%d tokens of %d x %d: %zu, %zu stated", p.tokens, p.w.out, p.w.in, at,
                      stated);
        if (p.next)
            ck_assert_uint_ge(stated, sl_op_scratch(&g, SL_OP_LINEAR, p.next));
        p.fp8_acts = false, p.next = NULL;
        ck_assert_uint_eq(sl_op_scratch(&g, SL_OP_LINEAR, &p), 0);
    }
}
END_TEST

START_TEST(latent_products)
{
    const sl_gpu g = h200();

    for (int i = 0; i < SHAPES; i++) {
        const sl_v_up_params v = {
            .kv_b = {.out = 8 * some(1000), .in = 16 * some(64), .dtype = i % 2 ? SL_BF16 : SL_F8_E4M3},
            .tokens = some(9000),
            .heads = some(128),
            .nope = 8 * some(16),
            .v = 8 * some(16),
            .lora = 8 * some(64),
            .act = SL_BF16};
        const size_t own = i % 2 ? 0 : (size_t)v.kv_b.out * (size_t)v.kv_b.in * 2;
        ck_assert_uint_ge(sl_op_scratch(&g, SL_OP_V_UP, &v),
                          own + 2 * (size_t)v.tokens * (size_t)v.heads * (size_t)v.lora);
        const sl_q_absorb_params q = {
            .kv_b = v.kv_b, .tokens = 9, .heads = 2, .nope = 8, .rope = 8, .v = 8, .lora = 8, .act = SL_BF16};
        ck_assert_uint_ge(sl_op_scratch(&g, SL_OP_Q_ABSORB, &q), own);
    }
}
END_TEST

/* The rows of experts as the kernel that sorts them makes them: every expert's rows begin at a multiple of 8. */
static void sorted(const int32_t *pairs_of, int experts, int tile, const sl_moe_rows_size *n)
{
    int64_t rows = 0, tiles = 0, last = 0;

    for (int e = 0; e < experts; e++) {
        if (!pairs_of[e])
            continue;
        tiles += (pairs_of[e] + tile - 1) / tile;
        last = rows + (pairs_of[e] - 1) / tile * tile + tile; /* a copy reads whole tiles */
        rows += (pairs_of[e] + 7) / 8 * 8;
    }
    ck_assert_int_le(rows, n->rows);
    ck_assert_int_le(last, n->rows + tile);
    ck_assert_int_le(tiles, n->tiles);
}

START_TEST(experts)
{
    static int32_t pairs_of[1024];
    const sl_gpu g = h200();
    const sl_weight forms[] = {{.dtype = SL_BF16},
                               {.dtype = SL_F8_E4M3},
                               {.dtype = SL_I4, .scale_type = SL_SCALE_BF16, .group = 128},
                               {.dtype = SL_F4_E2M1, .scale_type = SL_SCALE_E8M0, .group = 32},
                               {.dtype = SL_F32}};

    for (int i = 0; i < SHAPES; i++) {
        const sl_weight *w = &forms[i % (int)SL_COUNT(forms)];
        const int ranks = 1 + i % 4;
        const sl_moe_params p = {.gate = w,
                                 .up = w,
                                 .down = w,
                                 .tokens = some(3000),
                                 .hidden = 256 * some(16),
                                 .inter = 256 * some(8),
                                 .experts = some(1024),
                                 .top_k = some(8),
                                 .fp8_acts = i % 3 != 0,
                                 .act = SL_BF16};
        const sl_moe_path path = sl_path_moe(&g, &p, p.tokens, p.fp8_acts);
        const bool wide = path == SL_MOE_GROUPED || path == SL_MOE_GROUPED_BF16;
        const size_t rows = (size_t)p.tokens * (size_t)p.top_k, stated = sl_op_scratch(&g, SL_OP_MOE, &p);

        ck_assert(path == SL_MOE_PLAIN ? stated == 0
                                       : stated >= rows * ((size_t)p.hidden + (size_t)p.inter + 8));
        const sl_moe_rows_size n = sl_moe_rows_size_of(wide ? SL_MOE_WIDE : SL_MOE_NARROW, p.tokens, p.top_k,
                                                       p.experts, p.hidden, p.inter, 2);
        memset(pairs_of, 0, sizeof pairs_of);
        for (size_t k = 0; k < rows; k++)
            pairs_of[i % 2 ? some(p.experts) - 1 : 0]++;
        sorted(pairs_of, p.experts, wide ? SL_MOE_WIDE : SL_MOE_NARROW, &n);
        /* the same experts after an exchange: lists in addition, and all rows of all ranks */
        int32_t first[5] = {0};
        for (int r = 1; r <= ranks; r++)
            first[r] = r * p.experts;
        const sl_ep_experts_params e = {.layout = {.first = first,
                                                   .ranks = ranks,
                                                   .cap = p.tokens,
                                                   .hidden = p.hidden,
                                                   .top_k = p.top_k,
                                                   .act = p.act,
                                                   .quantised = p.fp8_acts && sl_weight_takes_e4m3(w)},
                                        .gate = w,
                                        .up = w,
                                        .down = w,
                                        .inter = p.inter,
                                        .fp8_acts = p.fp8_acts};
        const size_t all = rows * (size_t)ranks, floats = sl_path_ep_experts(&g, &e) == SL_MOE_PLAIN
                                                              ? all * ((size_t)p.hidden + (size_t)p.inter) * 4
                                                              : 0;
        ck_assert_uint_ge(sl_op_scratch(&g, SL_OP_EP_EXPERTS, &e), all * 8 + floats);
        if (!floats)
            ck_assert_uint_ge(sl_op_scratch(&g, SL_OP_EP_EXPERTS, &e), stated + all * 8);
        const sl_ep_send_params s = {.layout = e.layout, .tokens = p.tokens};
        const sl_ep_sum_params u = {.layout = e.layout, .tokens = p.tokens};
        if (p.tokens > SL_EP_FUSED_TOKENS)
            ck_assert_uint_ge(sl_op_scratch(&g, SL_OP_EP_SEND, &s), 4 * (size_t)p.tokens * (size_t)ranks);
        ck_assert_uint_ge(sl_op_scratch(&g, SL_OP_EP_SUM, &u), 4 * rows);
    }
}
END_TEST

/* At 20 requests of 128K of a model with 64 / 8 heads it is 173 MB, where the plan once kept 64 MiB free. */
START_TEST(attention)
{
    const sl_gpu g = h200();

    ck_assert_uint_eq(sl_gqa_decode_scratch(132, 20, 64, 8, 128, 131072), 20ull * 64 * 256 * 132 * 4);
    ck_assert_uint_eq(sl_gqa_decode_scratch(132, 1, 64, 8, 128, 512), 0); /* one segment */
    for (int i = 0; i < SHAPES; i++) {
        const int kv = some(16), dims[] = {64, 128, 256};
        const sl_seq_tables one = {.n_seqs = 1};
        sl_gqa_attn_params p = {.heads = kv * some(16),
                                .kv_heads = kv,
                                .dim = dims[i % 3],
                                .k = some(200000),
                                .tokens = 1 + some(5000),
                                .format = i % 2 ? SL_ROW_GQA_BF16 : SL_ROW_GQA_FP8,
                                .act = SL_BF16};
        /* whatever work on the side stream leaves: all of them, or without those of a gather or an exchange */
        for (int taken = 0; taken <= g.exchange_sms_large; taken++)
            ck_assert_uint_ge(
                sl_op_scratch(&g, SL_OP_GQA_ATTN, &p),
                sl_gqa_decode_scratch(g.sms - taken, p.tokens, p.heads, p.kv_heads, p.dim, p.k));
        p.skip_factor = 100;
        ck_assert_uint_eq(sl_op_scratch(&g, SL_OP_GQA_ATTN, &p), 0);
        p.seqs = &one;
        ck_assert_uint_ge(sl_op_scratch(&g, SL_OP_GQA_ATTN, &p),
                          4 * ((size_t)p.tokens + 2) + (p.dim > 128 ? 132ull * 128 * 256 * 4 : 0));
    }
    const sl_sparse_attn_params s = {.lora = 512, .rope = 64, .format = SL_ROW_MLA_BF16};
    ck_assert_uint_eq(sl_op_scratch(&g, SL_OP_SPARSE_ATTN, &s), 132ull * 64 * 512 * 4);
}
END_TEST

/* Slices: at least one token, within the limit where it is not the only one, and never more than there are. */
START_TEST(slices)
{
    for (int i = 0; i < SHAPES; i++) {
        const size_t each = (size_t)some(1 << 28);
        const int32_t all = some(1 << 20), n = sl_slice_of(each, all);
        ck_assert(n >= 1 && n <= all && n <= SL_SLICE_TOKENS);
        ck_assert(n == 1 || (size_t)n * each <= SL_SCRATCH_SLICE);
        ck_assert_uint_le((size_t)n * each, sl_slices_most(each, all));
        for (int k = 1; k < 5; k++) /* a smaller share of a token, and fewer tokens, never need more */
            ck_assert_uint_le((size_t)sl_slice_of(each / (size_t)k + 1, all / k + 1) * (each / (size_t)k + 1),
                              sl_slices_most(each + 1, all + 1));
    }
}
END_TEST

START_TEST(scores)
{
    const sl_gpu g = h200();

    for (int i = 0; i < SHAPES; i++) {
        const int kv = some(16), heads = kv * some(16), ld = some(150000), dim = 16 * some(16);
        const sl_group_reduce reduce = (sl_group_reduce)(i % 4);
        const bool whole = reduce == SL_GROUP_SOFTMAX || reduce == SL_GROUP_UNION;
        const sl_bounds_scores_params b = {.heads = heads,
                                           .kv_heads = kv,
                                           .dim = dim,
                                           .lists = i % 3 ? kv : 1,
                                           .ld_scores = ld,
                                           .token_count = some(5000),
                                           .reduce = reduce,
                                           .dtype = i % 2 ? SL_I8 : SL_BF16};
        const size_t raw = whole ? (size_t)heads * (4 * (size_t)ld + 8) : 0,
                     places = reduce == SL_GROUP_UNION ? 16 * (size_t)heads * (size_t)ld : 0,
                     digits = b.dtype == SL_I8
                                  ? (size_t)kv * sl_digits_bytes(heads, kv, dim, reduce == SL_GROUP_MEAN)
                                  : 0,
                     each = sl_group_scratch(reduce, heads, ld,
                                             b.dtype == SL_I8 ? sl_digits_scratch(heads, kv, dim, b.lists, ld,
                                                                                  reduce == SL_GROUP_MEAN)
                                                              : 0);
        ck_assert_uint_ge(each, raw + places + digits);
        ck_assert_uint_eq(sl_op_scratch(&g, SL_OP_BOUNDS_SCORES, &b),
                          (size_t)sl_slice_of(each, b.token_count) * each);
        const sl_labels_scores_params l = {
            .heads = heads, .kv_heads = kv, .ld_scores = ld, .token_count = b.token_count, .reduce = reduce};
        ck_assert_uint_eq(sl_op_scratch(&g, SL_OP_LABELS_SCORES, &l),
                          (size_t)sl_slice_of(raw + places, b.token_count) * (raw + places));
        const sl_retained_scores_params r = {.heads = heads, .ld_scores = ld, .token_count = b.token_count};
        const size_t of = (size_t)heads * (4 * (size_t)ld + 8);
        ck_assert_uint_eq(sl_op_scratch(&g, SL_OP_RETAINED_SCORES, &r),
                          (size_t)sl_slice_of(of, b.token_count) * of);
        const sl_window_votes_params v = {
            .heads = heads, .kv_heads = kv, .tokens = ld + 64, .window = some(64)};
        ck_assert_uint_ge(sl_op_scratch(&g, SL_OP_WINDOW_VOTES, &v),
                          8 * (size_t)kv * (size_t)(v.tokens - v.window) + of);
    }
}
END_TEST

START_TEST(clusters_and_codes)
{
    const sl_gpu g = h200();

    for (int i = 0; i < SHAPES; i++) {
        const int kv = some(16), heads = kv * some(8), parts = 1 << i % 4, dim = parts * some(64),
                  k = some(256);
        const size_t n = (size_t)some(5000);
        const sl_codes_space c = sl_codes_space_of((int32_t)n, heads, parts, k, some(100000));
        const size_t rows = n * (size_t)heads;
        size_t at = 0;
        part(&at, 0, 8 * rows);
        part(&at, c.places, 8 * n);
        part(&at, c.tables, 4 * rows * (size_t)(parts * k));
        ck_assert_uint_ge(c.products, at);
        ck_assert(c.places % 8 == 0 && c.tables % 4 == 0 && c.products % 4 == 0 &&
                  c.bytes >= c.products + 4 * rows);

        const int32_t ld = some(5000), seqs = some(64);
        const sl_clusters_space l =
            sl_clusters_space_of((int32_t)n, seqs, heads, kv, ld, (sl_group_reduce)(i % 4));
        at = 0;
        part(&at, 0,
             i % 4 == SL_GROUP_UNION     ? 16 * rows * (size_t)ld
             : i % 4 == SL_GROUP_SOFTMAX ? 8 * rows
                                         : 0);
        part(&at, l.pages, 4 * (size_t)seqs * (((size_t)ld + 63) / 64));
        part(&at, l.tables, 8 * n);
        part(&at, l.scores, 4 * n * (size_t)ld * (size_t)(i % 4 >= SL_GROUP_SOFTMAX ? heads : kv));
        ck_assert_uint_le(at, l.bytes);

        const sl_points_space s = sl_points_space_of(kv, (int32_t)n, dim, parts, k);
        const size_t sets = (size_t)kv * (size_t)parts, width = (size_t)(dim / parts + 7) / 8 * 8;
        at = 0;
        part(&at, 0, 4 * (size_t)kv * n * (size_t)dim);
        part(&at, s.rows, 4 * sets * (size_t)k * width);
        part(&at, s.half, 4 * sets * (size_t)k);
        part(&at, s.labels, 4 * sets * n);
        part(&at, s.changed, 4 * sets);
        part(&at, s.done, 4 * sets);
        part(&at, s.distance, 8 * sets * n);
        part(&at, s.count, 4 * sets * (size_t)k);
        ck_assert(at <= s.bytes && s.distance % 256 == 0);
        const sl_kmeans_params m = {
            .keys = {.heads = kv, .dim = dim}, .tokens = (int32_t)n, .parts = parts, .k = k};
        const int32_t at_once = sl_points_heads(kv, (int32_t)n, dim, parts, k);
        ck_assert(at_once >= 1 && at_once <= kv);
        ck_assert_uint_eq(sl_op_scratch(&g, SL_OP_KMEANS, &m),
                          sl_points_space_of(at_once, (int32_t)n, dim, parts, k).bytes);
        ck_assert_uint_le(sl_op_scratch(&g, SL_OP_KMEANS, &m),
                          sl_slices_most(sl_points_space_of(1, (int32_t)n, dim, parts, k).bytes, kv));
    }
}
END_TEST

START_TEST(prompts_and_lists)
{
    const sl_gpu g = h200();

    for (int i = 0; i < SHAPES; i++) {
        const sl_prompt_scores_params p = {
            .n = some(500), .heads = some(64), .dim = 16 * some(16), .max_pos = some(200000)};
        const size_t pages = (size_t)p.max_pos / 64 + 1, rows = (size_t)p.heads * 4,
                     plain = 4 * rows * pages * 4,
                     tensor = rows * 16 * (size_t)p.dim * 2 + 4 * rows * pages +
                              4 * rows * ((pages * 4 + 31) / 32);
        const size_t stated = sl_op_scratch(&g, SL_OP_PROMPT_SCORES, &p);
        ck_assert_uint_ge(stated, (size_t)sl_slice_of(plain, p.n) * plain);
        ck_assert_uint_ge(stated, tensor);
        const sl_topk_params t = {
            .token_count = some(100), .k = 2048, .ld_scores = 32769 + some(200000), .lists = i % 9};
        ck_assert_uint_ge(sl_op_scratch(&g, SL_OP_TOPK, &t), (size_t)t.token_count *
                                                                 (size_t)(t.lists > 1 ? t.lists : 1) *
                                                                 (size_t)(t.ld_scores / 2));
        const sl_topk_params everything = {.token_count = 8192, .k = 300000, .ld_scores = 300000};
        ck_assert_uint_eq(sl_op_scratch(&g, SL_OP_TOPK, &everything), 0);
    }
}
END_TEST

/* ---- the plan of a backend ---- */

/* A backend without a GPU takes none; as if it had one, an op is refused that states a byte more than is planned, with its name and
 * both numbers, and one that states as much runs. */
START_TEST(a_plan_is_kept)
{
    enum { IN = 256, OUT = 128, TOKENS = 37 };
    static uint8_t x[TOKENS * IN * 2], w[OUT * IN], out[TOKENS * OUT * 2];
    static const float scale[2] = {1, 1};
    const sl_gpu g = h200();
    const sl_linear_params p = {.x = x,
                                .w = {.data = w, .scale = scale, .out = OUT, .in = IN, .dtype = SL_F8_E4M3},
                                .out = out,
                                .tokens = TOKENS,
                                .ld_x = IN,
                                .ld_out = OUT,
                                .fp8_acts = true,
                                .act = SL_BF16,
                                .out_dtype = SL_BF16};
    const size_t need = sl_op_scratch(&g, SL_OP_LINEAR, &p);
    sl_backend *be = NULL;
    sl_err err = {0};
    char asked[32], planned[32];

    ck_assert_int_eq(sl_backend_create("cpu", NULL, &be, &err), SL_OK);
    ck_assert_ptr_null(sl_be_gpu(be));
    ck_assert_int_eq(sl_be_scratch(be, 0, &err), SL_OK);
    ck_assert_int_eq(sl_be_run(be, SL_OP_LINEAR, &p, &err), SL_OK);
    sl_be_scratch_as(be, &g);
    ck_assert_int_eq(sl_be_scratch(be, need - 1, &err), SL_OK);
    ck_assert_int_eq(sl_be_run(be, SL_OP_LINEAR, &p, &err), SL_ERR_UNSUPPORTED);
    snprintf(asked, sizeof asked, "%zu bytes", need);
    snprintf(planned, sizeof planned, "%zu:", need - 1);
    ck_assert_msg(strstr(err.text, "linear") && strstr(err.text, asked) && strstr(err.text, planned), "%s",
                  err.text);
    ck_assert_int_eq(sl_be_scratch(be, need, &err), SL_OK);
    ck_assert_int_eq(sl_be_run(be, SL_OP_LINEAR, &p, &err), SL_OK);
    ck_assert_int_eq(sl_be_scratch(be, 1, &err),
                     SL_OK); /* it does not become smaller: another engine has it */
    ck_assert_int_eq(sl_be_run(be, SL_OP_LINEAR, &p, &err), SL_OK);
    sl_backend_destroy(be);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("scratch");
    TCase *tc = tcase_create("scratch");

    tcase_set_timeout(tc, 60);
    tcase_add_test(tc, products);
    tcase_add_test(tc, latent_products);
    tcase_add_test(tc, experts);
    tcase_add_test(tc, attention);
    tcase_add_test(tc, slices);
    tcase_add_test(tc, scores);
    tcase_add_test(tc, clusters_and_codes);
    tcase_add_test(tc, prompts_and_lists);
    tcase_add_test(tc, a_plan_is_kept);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
