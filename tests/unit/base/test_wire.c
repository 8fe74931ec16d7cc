/* The codec: byte layout, encoding and decoding, refusal of every input that is too short, refusal of wrong counts
 * before anything is allocated. */
#include <string.h>

#include "base/wire.h"
#include "tests/unit/run_suite.h"

START_TEST(layout_is_little_endian)
{
    sl_wr w;
    sl_wr_init(&w);
    sl_wr_u16(&w, 0x0102);
    sl_wr_u32(&w, 0x03040506);
    sl_wr_str(&w, "ab");
    const uint8_t want[] = {2, 1, 6, 5, 4, 3, 2, 0, 0, 0, 'a', 'b'};
    ck_assert_uint_eq(w.len, sizeof want);
    ck_assert_mem_eq(w.data, want, sizeof want);
    sl_wr_free(&w);
    ck_assert_ptr_null(w.data);
}
END_TEST

static void write_all(sl_wr *w)
{
    const int32_t is[] = {-1, 0, INT32_MAX};
    const uint32_t us[] = {UINT32_MAX};
    sl_wr_init(w);
    sl_wr_u8(w, 200);
    sl_wr_u16(w, 60000);
    sl_wr_u32(w, 4000000000u);
    sl_wr_u64(w, 1ull << 63);
    sl_wr_i32(w, -5);
    sl_wr_f32(w, -0.5f);
    sl_wr_blob(w, "x\0y", 3);
    sl_wr_str(w, "name");
    sl_wr_i32s(w, is, 3);
    sl_wr_u32s(w, us, 1);
    sl_wr_i32s(w, NULL, 0);
    ck_assert(!w->bad);
}

/* Reads what write_all has written; returns whether all values are right. Frees the arrays in both cases. */
static bool read_all(sl_rd *r)
{
    char name[16];
    size_t nb, ni, nu, nz;
    int32_t *is, *none;
    uint32_t *us;
    bool ok = sl_rd_u8(r) == 200;
    ok &= sl_rd_u16(r) == 60000;
    ok &= sl_rd_u32(r) == 4000000000u;
    ok &= sl_rd_u64(r) == 1ull << 63;
    ok &= sl_rd_i32(r) == -5;
    ok &= sl_rd_f32(r) == -0.5f;
    const uint8_t *blob = sl_rd_blob(r, &nb);
    ok &= nb == 3 && blob && !memcmp(blob, "x\0y", 3);
    sl_rd_str(r, name, sizeof name);
    ok &= !strcmp(name, "name");
    sl_rd_i32s(r, &is, &ni, 10);
    ok &= ni == 3 && is && is[0] == -1 && is[2] == INT32_MAX;
    sl_rd_u32s(r, &us, &nu, 10);
    ok &= nu == 1 && us && us[0] == UINT32_MAX;
    sl_rd_i32s(r, &none, &nz, 10);
    ok &= nz == 0 && !none;
    free(is);
    free(us);
    free(none);
    return ok;
}

START_TEST(round_trip)
{
    sl_wr w;
    write_all(&w);
    sl_rd r = sl_rd_init(w.data, w.len);
    ck_assert(read_all(&r));
    ck_assert_int_eq(sl_rd_done(&r), SL_OK);
    sl_wr_free(&w);
}
END_TEST

START_TEST(every_truncation_and_surplus_is_refused)
{
    sl_wr w;
    write_all(&w);
    for (size_t n = 0; n < w.len; n++) {
        uint8_t *exact = malloc(n ? n : 1); /* exact size, so a sanitizer sees any byte too many */
        memcpy(exact, w.data, n);
        sl_rd r = sl_rd_init(exact, n);
        read_all(&r);
        ck_assert_int_eq(sl_rd_done(&r), SL_ERR_CORRUPT);
        free(exact);
    }
    sl_wr_u8(&w, 0);
    sl_rd r = sl_rd_init(w.data, w.len);
    ck_assert(read_all(&r));
    ck_assert_int_eq(sl_rd_done(&r), SL_ERR_CORRUPT);
    sl_wr_free(&w);
}
END_TEST

START_TEST(forged_counts)
{
    const uint8_t huge[] = {0xff, 0xff, 0xff, 0xff, 1, 2, 3, 4};
    int32_t *v;
    size_t n = 7;
    sl_rd r = sl_rd_init(huge, sizeof huge);
    sl_rd_i32s(&r, &v, &n, SIZE_MAX);
    ck_assert(r.bad && !v && n == 0);
    r = sl_rd_init(huge, sizeof huge);
    ck_assert_ptr_null(sl_rd_blob(&r, &n));
    ck_assert(r.bad && n == 0);
    const uint8_t two[] = {2, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0};
    r = sl_rd_init(two, sizeof two);
    sl_rd_i32s(&r, &v, &n, 1); /* more than the caller allows */
    ck_assert(r.bad && !v);
    ck_assert_uint_eq(sl_rd_u32(&r), 0); /* later reads yield zero */
}
END_TEST

START_TEST(strings_must_fit_and_have_no_nul)
{
    char out[4];
    const uint8_t nul[] = {2, 0, 0, 0, 'a', 0}, four[] = {4, 0, 0, 0, 'a', 'b', 'c', 'd'},
                  three[] = {3, 0, 0, 0, 'a', 'b', 'c'};
    sl_rd r = sl_rd_init(nul, sizeof nul);
    sl_rd_str(&r, out, sizeof out);
    ck_assert(r.bad && !out[0]);
    r = sl_rd_init(four, sizeof four);
    sl_rd_str(&r, out, sizeof out);
    ck_assert(r.bad && !out[0]);
    r = sl_rd_init(three, sizeof three);
    sl_rd_str(&r, out, sizeof out);
    ck_assert_str_eq(out, "abc");
    ck_assert_int_eq(sl_rd_done(&r), SL_OK);
}
END_TEST

START_TEST(writer_grows)
{
    sl_wr w;
    sl_wr_init(&w);
    for (uint32_t i = 0; i < 100000; i++)
        sl_wr_u32(&w, i);
    ck_assert_uint_eq(w.len, 400000);
    sl_rd r = sl_rd_init(w.data, w.len);
    for (uint32_t i = 0; i < 100000; i++)
        ck_assert_uint_eq(sl_rd_u32(&r), i);
    ck_assert_int_eq(sl_rd_done(&r), SL_OK);
    sl_wr_free(&w);
}
END_TEST

START_TEST(empty_input)
{
    sl_rd r = sl_rd_init(NULL, 0);
    ck_assert_int_eq(sl_rd_done(&r), SL_OK);
    ck_assert_uint_eq(sl_rd_u8(&r), 0);
    ck_assert_int_eq(sl_rd_done(&r), SL_ERR_CORRUPT);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("wire");
    TCase *t = tcase_create("wire");
    tcase_add_test(t, layout_is_little_endian);
    tcase_add_test(t, round_trip);
    tcase_add_test(t, every_truncation_and_surplus_is_refused);
    tcase_add_test(t, forged_counts);
    tcase_add_test(t, strings_must_fit_and_have_no_nul);
    tcase_add_test(t, writer_grows);
    tcase_add_test(t, empty_input);
    suite_add_tcase(s, t);
    return run_suite(s);
}
