/*
 * Batch independence of the matrix products, bit for bit: every batch size 1..40, every position in it, 1, 2
 * and 4 threads, with and without AVX2; and the same weights as part of an expert.
 */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/vec.h"
#include "kernels/formats.h"
#include "tests/unit/kernels/cf.h"
#include "tests/unit/run_suite.h"

enum { OUT = 75, IN = 203, MOST = 40 };

typedef struct fixture {
    sl_backend *be;
    sl_linear_params p;
    float x[MOST][IN], alone[MOST][OUT], out[MOST][OUT];
    uint8_t w[OUT * IN * 4];
    float scale[2];
} fixture;

static fixture f;

static void setup(int threads, sl_dtype dtype, bool fp8)
{
    ck_assert_int_eq(sl_backend_create("cpu", &(sl_backend_opts){.threads = threads}, &f.be, NULL), SL_OK);
    for (int i = 0; i < OUT * IN; i++) {
        float v = cf_uniform(1, i);
        uint16_t h = sl_f32_to_bf16(v);

        if (dtype == SL_F32)
            memcpy(f.w + 4 * (size_t)i, &v, 4);
        else if (dtype == SL_BF16)
            memcpy(f.w + 2 * (size_t)i, &h, 2);
        else
            f.w[i] = sl_f32_to_e4m3(300 * v);
    }
    for (int t = 0; t < MOST; t++)
        for (int i = 0; i < IN; i++)
            f.x[t][i] = cf_uniform(2 + (uint32_t)t, i);
    f.scale[0] = 0.0071f;
    f.scale[1] = 0.0033f;
    f.p = (sl_linear_params){.ld_x = IN, .ld_out = OUT, .act = SL_F32, .out_dtype = SL_F32, .fp8_acts = fp8};
    f.p.w = (sl_weight){.data = f.w, .scale = f.scale, .out = OUT, .in = IN, .dtype = dtype};
    f.p.x = f.x;
    f.p.out = f.out;
}

static void run(const void *x, int tokens)
{
    sl_err err = {0};

    f.p.x = x;
    f.p.tokens = tokens;
    memset(f.out, 0xff, sizeof(f.out));
    ck_assert_msg(sl_be_run(f.be, SL_OP_LINEAR, &f.p, &err) == SL_OK, "%s", err.text);
}

static const struct {
    sl_dtype dtype;
    bool fp8;
} kinds[] = {{SL_F32, false}, {SL_BF16, false}, {SL_F8_E4M3, false}, {SL_F8_E4M3, true}};

START_TEST(rows_do_not_depend_on_the_batch)
{
    setup(1, kinds[_i].dtype, kinds[_i].fp8);
    for (int t = 0; t < MOST; t++) {
        run(f.x[t], 1);
        memcpy(f.alone[t], f.out[0], sizeof(f.out[0]));
    }
    sl_backend_destroy(f.be);
    for (int threads = 1; threads <= 4; threads *= 2) {
        setup(threads, kinds[_i].dtype, kinds[_i].fp8);
        for (int n = 1; n <= MOST; n++)
            /* so that every token has many positions */
            for (int first = 0; first + n <= MOST; first += n < 8 ? 1 : n / 4) {
                run(f.x[first], n);
                ck_assert_msg(memcmp(f.out, f.alone[first], sizeof(f.out[0]) * (size_t)n) == 0,
                              "tokens %d.. of %d with %d threads", first, n, threads);
                ck_assert(isnan(f.out[n % MOST][0]) || n == MOST); /* nothing is written after the batch */
            }
        sl_backend_destroy(f.be);
    }
}
END_TEST

START_TEST(portable_code_gives_the_same_bits)
{
    float fast[MOST][OUT], sums[2][37];

    setup(2, kinds[_i].dtype, kinds[_i].fp8);
    run(f.x, MOST);
    memcpy(fast, f.out, sizeof(fast));
    sl_vec_force_portable(true);
    ck_assert_str_eq(sl_vec_kind(), "portable");
    run(f.x, MOST);
    ck_assert_int_eq(memcmp(fast, f.out, sizeof(fast)), 0);
    for (int way = 0; way < 2; way++) {
        sl_vec_force_portable(way);
        memset(sums[way], 0, sizeof(sums[way]));
        sl_vec_axpy(sums[way], 37, f.x[0], f.x[1], IN, 20);
    }
    sl_vec_force_portable(false);
    ck_assert_int_eq(memcmp(sums[0], sums[1], sizeof(sums[0])), 0);
    sl_backend_destroy(f.be);
}
END_TEST

START_TEST(an_expert_is_a_linear)
{
    /* One expert with weight 1: exactly linear, silu_mul, linear. */
    enum { H = 96, I = 40, T = 9 };
    static float x[T][H], g[T][I], u[T][I], h[T][I], want[T][H], got[T][H], w[3][H * I], one[T];
    static int32_t ids[T];
    sl_weight gate = {.data = w[0], .out = I, .in = H, .dtype = SL_F32},
              up = {.data = w[1], .out = I, .in = H, .dtype = SL_F32},
              down = {.data = w[2], .out = H, .in = I, .dtype = SL_F32};
    sl_linear_params l = {.tokens = T, .ld_x = H, .ld_out = I, .act = SL_F32, .out_dtype = SL_F32};
    sl_silu_mul_params s = {g, u, h, T, I, I, I, SL_F32, {0, 0, 0}};
    sl_moe_params m = {
        .x = x, .expert_ids = ids, .weights = one, .gate = &gate, .up = &up, .down = &down, .out = got};
    sl_backend *be = NULL;

    for (int i = 0; i < H * I; i++)
        for (int k = 0; k < 3; k++)
            w[k][i] = cf_uniform(10 + (uint32_t)k, i);
    for (int t = 0; t < T; t++) {
        one[t] = 1;
        for (int i = 0; i < H; i++)
            x[t][i] = cf_uniform(20, t * H + i);
    }
    m.tokens = T;
    m.hidden = H;
    m.inter = I;
    m.experts = m.top_k = 1;
    m.act = SL_F32;
    m.workspace_bytes = sl_moe_workspace_bytes(T, H, I, 1, 1);
    m.workspace = aligned_alloc(64, (m.workspace_bytes + 63) & ~(size_t)63);
    ck_assert_ptr_nonnull(m.workspace);
    ck_assert_int_eq(sl_backend_create("cpu", NULL, &be, NULL), SL_OK);
    l.x = x;
    l.w = gate;
    l.out = g;
    ck_assert_int_eq(sl_be_run(be, SL_OP_LINEAR, &l, NULL), SL_OK);
    l.w = up;
    l.out = u;
    ck_assert_int_eq(sl_be_run(be, SL_OP_LINEAR, &l, NULL), SL_OK);
    ck_assert_int_eq(sl_be_run(be, SL_OP_SILU_MUL, &s, NULL), SL_OK);
    l = (sl_linear_params){.x = h,
                           .w = down,
                           .out = want,
                           .tokens = T,
                           .ld_x = I,
                           .ld_out = H,
                           .act = SL_F32,
                           .out_dtype = SL_F32};
    ck_assert_int_eq(sl_be_run(be, SL_OP_LINEAR, &l, NULL), SL_OK);
    ck_assert_int_eq(sl_be_run(be, SL_OP_MOE, &m, NULL), SL_OK);
    ck_assert_int_eq(memcmp(want, got, sizeof(want)), 0);
    free(m.workspace);
    sl_backend_destroy(be);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("kernels/linear");
    TCase *tc = tcase_create("linear");

    tcase_set_timeout(tc, 240);
    tcase_add_loop_test(tc, rows_do_not_depend_on_the_batch, 0, SL_COUNT(kinds));
    tcase_add_loop_test(tc, portable_code_gives_the_same_bits, 0, SL_COUNT(kinds));
    tcase_add_test(tc, an_expert_is_a_linear);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
