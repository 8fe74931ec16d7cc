/* Conversions, scales, rows and index blocks against the reference's arithmetic: exhaustive where the domain
 * allows. */
#include <check.h>
#include <math.h>
#include <stdlib.h>

#include "kernels/cpu/vec.h"
#include "kernels/cache.h"
#include "kernels/formats.h"
#include "kernels/gqa.h"
#include "kernels/row_codec.h"
#include "tests/unit/kernels/cf.h"
#include "tests/unit/kernels/ref.h"
#include "tests/unit/run_suite.h"

static bool same(double a, double b)
{
    return a == b || (isnan(a) && isnan(b));
}

START_TEST(e4m3_all_codes)
{
    for (int c = 0; c < 256; c++) {
        ck_assert(same((double)sl_e4m3_to_f32((uint8_t)c), ref_e4m3_value((uint8_t)c)));
        ck_assert(same((double)sl_e4m3_table()[c], ref_e4m3_value((uint8_t)c)));
        if ((c & 0x7f) != 0x7f)
            ck_assert_uint_eq(sl_f32_to_e4m3(sl_e4m3_to_f32((uint8_t)c)), c);
    }
    for (int first = 0; first < 18; first++) { /* whole arrays from any start, in both ways */
        uint8_t codes[265];
        float got[256];

        for (int i = 0; i < 265; i++)
            codes[i] = (uint8_t)i;
        sl_vec_force_portable(first >= 9);
        sl_load_f32(SL_F8_E4M3, codes, first % 9, 256, got);
        sl_vec_force_portable(false);
        for (int i = 0; i < 256; i++)
            ck_assert(same((double)got[i], ref_e4m3_value((uint8_t)(first % 9 + i))));
    }
    ck_assert_uint_eq(sl_f32_to_e4m3(NAN), 0x7f);
    ck_assert_uint_eq(sl_f32_to_e4m3(-NAN), 0xff);
    ck_assert_uint_eq(sl_f32_to_e4m3(INFINITY), 0x7e);
    ck_assert_uint_eq(sl_f32_to_e4m3(-1e9f), 0xfe);
    ck_assert_uint_eq(sl_f32_to_e4m3(448.0f), 0x7e);
    ck_assert_uint_eq(sl_f32_to_e4m3(464.0f), 0x7e);
}
END_TEST

START_TEST(e4m3_rounding)
{
    /* Every midpoint of two codes and its float neighbours, and every 4099th float pattern. */
    for (int c = 0; c < 0x7e; c++) {
        float mid = (float)((ref_e4m3_value((uint8_t)c) + ref_e4m3_value((uint8_t)(c + 1))) / 2);
        float around[3] = {nextafterf(mid, 0), mid, nextafterf(mid, 1e9f)};

        for (int i = 0; i < 3; i++) {
            ck_assert_uint_eq(sl_f32_to_e4m3(around[i]), ref_e4m3((double)around[i]));
            ck_assert_uint_eq(sl_f32_to_e4m3(-around[i]), ref_e4m3(-(double)around[i]));
        }
    }
    for (uint64_t u = 0; u < 1ull << 32; u += 4099 * 61) {
        float f = sl_bits_f32((uint32_t)u);

        if (!isnan(f))
            ck_assert_msg(sl_f32_to_e4m3(f) == ref_e4m3((double)f), "%a: %#x, not %#x", (double)f,
                          sl_f32_to_e4m3(f), ref_e4m3((double)f));
    }
}
END_TEST

START_TEST(bf16_and_f16)
{
    for (uint32_t c = 0; c < 65536; c++) {
        float f = sl_bf16_to_f32((uint16_t)c);

        ck_assert(same((double)f, ref_bf16_value((uint16_t)c)));
        ck_assert(same((double)sl_f16_to_f32((uint16_t)c), ref_at(&(uint16_t){(uint16_t)c}, SL_F16, 0)) ||
                  (c >> 10 & 31) == 31); /* the reference has no f16 infinities */
        if (!isnan(f))
            ck_assert_uint_eq(sl_f32_to_bf16(f), c);
    }
    ck_assert(isinf(sl_f16_to_f32(0x7c00)) && isnan(sl_f16_to_f32(0x7c01)));
    for (uint64_t u = 0; u < 1ull << 32; u += 4099 * 13) {
        float f = sl_bits_f32((uint32_t)u);

        if (!isnan(f))
            ck_assert_uint_eq(sl_f32_to_bf16(f), ref_bf16((double)f));
    }
    ck_assert_uint_eq(sl_f32_to_bf16(sl_bits_f32(0x3f808000)), 0x3f80); /* a tie goes to the even code */
    ck_assert_uint_eq(sl_f32_to_bf16(sl_bits_f32(0x3f818000)), 0x3f82);
    ck_assert(isnan(sl_round_bf16(sl_bits_f32(0x7f800001))));
}
END_TEST

START_TEST(scales)
{
    for (int i = 0; i < 20000; i++) {
        float amax = ldexpf(1.0f + fabsf(cf_uniform(1, i)), (int)(cf_hash(2, i) % 60) - 40);
        float act = sl_scale_act(amax), row = sl_scale_row(amax), t = amax * (1.0f / 448.0f);

        ck_assert(act == ref_pow2_ceil((double)(fmaxf(amax, 1e-4f) * (1.0f / 448.0f))));
        ck_assert(row == ref_pow2_ceil(fmax((double)t, (double)1e-4f)));
        ck_assert(amax / act <= 448.0f * 1.000001f && amax / row <= 448.0f * 1.000001f);
    }
    ck_assert(sl_scale_act(0) == 0x1p-22f && sl_scale_row(0) == 0x1p-13f); /* the two floors */
    ck_assert(sl_scale_act(448.0f) == 1.0f && sl_scale_act(449.0f) == 2.0f && sl_scale_act(224.0f) == 0.5f);
    ck_assert(sl_pow2_ceil(1.0f) == 1.0f && sl_pow2_ceil(1.0000001f) == 2.0f);
    ck_assert(sl_amax((float[]){-3, NAN, 2}, 3) == 3.0f && sl_amax(NULL, 0) == 0);
}
END_TEST

START_TEST(sizes)
{
    ck_assert_int_eq(sl_row_bytes(SL_ROW_MLA_FP8, 512, 64), 656);
    ck_assert_int_eq(sl_row_bytes(SL_ROW_MLA_BF16, 512, 64), 1152);
    ck_assert_int_eq(sl_row_bytes(SL_ROW_MLA_F32, 128, 16), 576);
    ck_assert_int_eq(sl_row_bytes(SL_ROW_MLA_FP8, 130, 2), 130 + 8 + 4);
    ck_assert_int_eq(sl_index_block_bytes(SL_INDEX_OFFICIAL, 128), 8448);
    ck_assert_int_eq(sl_index_block_bytes(SL_INDEX_PLAIN, 32), 64 * 128);
    ck_assert_uint_eq(sl_dtype_size(SL_F8_E4M3), 1);
    ck_assert_uint_eq(sl_moe_workspace_bytes(0, 1, 1, 1, 1), 0);
    ck_assert_int_eq(sl_fp8_groups(INT32_MAX), 1 << 24);
    ck_assert_int_eq(sl_fp8_groups(129), 2);
    ck_assert_uint_eq(sl_moe_workspace_bytes(INT32_MAX, INT32_MAX, INT32_MAX, 1, INT32_MAX), 0);
    ck_assert_uint_ge(sl_moe_workspace_bytes(1, 1, 1, 1, 1), 1);
}
END_TEST

/* The bytes of one 656-byte row, place by place. */
START_TEST(fp8_row_layout)
{
    float v[576], back[576];
    uint8_t row[656];
    float s;

    for (int i = 0; i < 576; i++)
        v[i] = ldexpf(cf_uniform(3, i), i / 128 - 2);
    v[0] = 0;
    sl_row_encode(SL_ROW_MLA_FP8, 512, 64, v, row);
    for (int g = 0; g < 4; g++) {
        memcpy(&s, row + 512 + 4 * g, 4);
        ck_assert(s == sl_scale_row(sl_amax(v + 128 * g, 128)));
        for (int i = 128 * g; i < 128 * g + 128; i++)
            ck_assert_uint_eq(row[i], ref_e4m3((double)v[i] / (double)s));
    }
    for (int i = 0; i < 64; i++) {
        uint16_t h;

        memcpy(&h, row + 528 + 2 * i, 2);
        ck_assert_uint_eq(h, ref_bf16((double)v[512 + i]));
    }
    sl_row_decode(SL_ROW_MLA_FP8, 512, 64, row, back);
    for (int i = 0; i < 512; i++)
        ck_assert(fabsf(back[i] - v[i]) <= fabsf(v[i]) / 16 + 0x1p-13f * 0x1p-10f);
    for (int f = SL_ROW_MLA_F32; f <= SL_ROW_MLA_BF16; f++) {
        uint8_t wide[2304];

        sl_row_encode((sl_row_format)f, 512, 64, v, wide);
        sl_row_decode((sl_row_format)f, 512, 64, wide, back);
        for (int i = 0; i < 576; i++)
            ck_assert(back[i] == (f == SL_ROW_MLA_F32 ? v[i] : sl_round_bf16(v[i])));
    }
}
END_TEST

/* Some slots of a row at once, neighbours or every step-th one, are what they are one by one (all: keys, then values), and
 * nothing after them is written. */
static void check_slots(sl_row_format f, int32_t slots, int32_t dim, int seed, const uint8_t *row,
                        const float *all)
{
    static float out[8 * 128 + 1];

    for (int side = 0; side < 2; side++) {
        const int32_t step = 1 + (seed + side) % 3, first = seed / 3 % slots,
                      most = (slots - first + step - 1) / step, count = 1 + seed / 7 % most;
        const sl_gqa_slots s = sl_gqa_slots_of(f, slots, dim, side, first, step);

        out[count * dim] = 12345;
        sl_gqa_slots_decode(&s, row, count, out);
        for (int32_t i = 0; i < count; i++)
            ck_assert_mem_eq(out + i * dim, all + (side * slots + first + i * step) * dim, 4 * (size_t)dim);
        ck_assert(out[count * dim] == 12345);
    }
}

/* Every format of rows, at any address: its plane of a cache has its bytes, what is stored comes back within the format's error, and
 * nothing beyond the row is written. */
START_TEST(rows_of_every_format)
{
    enum { ROUNDS = 300, MOST = 3 * 600 + 16 };
    static float v[MOST], back[MOST];
    static uint8_t memory[4 * MOST + 64];
    const sl_row_format last = SL_ROW_GQA_FP8;

    ck_assert_ptr_null(sl_row_codec_of((sl_row_format)(last + 1)));
    for (int i = 0; i < ROUNDS * ((int)last + 1); i++) {
        const sl_row_format f = (sl_row_format)(i % ((int)last + 1));
        const sl_row_codec *c = sl_row_codec_of(f);
        const int32_t a = 1 + (int32_t)(fabsf(cf_uniform(11, i)) * (c->by_head ? 7 : 599)),
                      b = 2 * (1 + (int32_t)(fabsf(cf_uniform(12, i)) * 63)),
                      n = c->by_head ? 2 * a * b : a + b, exact = c->by_head ? 0 : a,
                      shift = c->by_head ? 0 : i % 5;
        sl_cache_dims d = {.rows = sl_row_format_of(f), .latent = a, .rope = b, .kv_heads = a, .head_dim = b};
        const int64_t bytes = c->by_head ? sl_gqa_row_bytes(f, a, b) : sl_row_bytes(f, a, b);
        sl_cache_plane plane;
        uint8_t *row = memory + 16 + shift;

        ck_assert_int_eq(d.rows->plane(&d, &plane, NULL), SL_OK);
        ck_assert_int_eq(sl_cache_unit_bytes(&plane), bytes);
        ck_assert_int_eq(c->by_head ? sl_row_bytes(f, a, b) : sl_gqa_row_bytes(f, a, b), 0);
        for (int j = 0; j < n; j++)
            v[j] = ldexpf(cf_uniform(13 + i, j), j / 64 % 5 - 2);
        memset(memory, 0x5a, sizeof memory);
        if (c->by_head)
            sl_gqa_row_encode(f, a, b, 0, a, v, v + n / 2, row);
        else
            sl_row_encode(f, a, b, v, row);
        for (int j = 0; j < 16; j++)
            ck_assert(row[-1 - j] == 0x5a && row[bytes + j] == 0x5a);
        for (int32_t slot = 0; c->by_head && slot < a; slot++)
            sl_gqa_row_decode(f, a, b, row, slot, back + slot * b, back + n / 2 + slot * b);
        if (!c->by_head)
            sl_row_decode(f, a, b, row, back);
        else
            check_slots(f, a, b, i, row, back);
        for (int j = 0; j < n; j++) {
            const sl_dtype type = j >= exact && !c->by_head ? c->rope : c->values;
            const float want = type == SL_F32 ? v[j] : sl_round_bf16(v[j]);
            if (type == SL_F8_E4M3)
                ck_assert(fabsf(back[j] - v[j]) <= fabsf(v[j]) / 16 + 0x1p-15f);
            else
                ck_assert(back[j] == want);
        }
    }
}
END_TEST

START_TEST(index_block_layout)
{
    static uint8_t block[8448];
    float key[128], back[128], s;

    memset(block, 0xff, sizeof(block));
    for (int i = 0; i < 128; i++)
        key[i] = cf_uniform(4, i);
    sl_index_key_encode(SL_INDEX_OFFICIAL, 128, key, block, 5);
    memcpy(&s, block + 64 * 128 + 4 * 5, 4);
    ck_assert(s == sl_scale_act(sl_amax(key, 128)));
    for (int i = 0; i < 128; i++)
        ck_assert_uint_eq(block[5 * 128 + i], ref_e4m3((double)key[i] / (double)s));
    ck_assert(block[5 * 128 - 1] == 0xff && block[6 * 128] == 0xff && block[64 * 128 + 19] == 0xff &&
              block[64 * 128 + 24] == 0xff);
    sl_index_key_decode(SL_INDEX_OFFICIAL, 128, block, 5, back);
    for (int i = 0; i < 128; i++)
        ck_assert(fabsf(back[i] - key[i]) <= fabsf(key[i]) / 16 + s * 0x1p-10f);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("kernels/formats");
    TCase *tc = tcase_create("formats");

    tcase_set_timeout(tc, 120);
    tcase_add_test(tc, e4m3_all_codes);
    tcase_add_test(tc, e4m3_rounding);
    tcase_add_test(tc, bf16_and_f16);
    tcase_add_test(tc, scales);
    tcase_add_test(tc, sizes);
    tcase_add_test(tc, fp8_row_layout);
    tcase_add_test(tc, rows_of_every_format);
    tcase_add_test(tc, index_block_layout);
    suite_add_tcase(s, tc);
    return run_suite(s);
}
