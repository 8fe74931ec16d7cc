/*
 * Safetensors: a well-formed file is read; every other file is refused with file, tensor and reason before it is used.
 */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint_tools.h"
#include "tests/unit/run_suite.h"

/* A file in memory: length, header, n data bytes. */
static uint8_t *file(const char *header, size_t data, size_t *n)
{
    size_t h = strlen(header);
    uint8_t *b = calloc(1, 8 + h + data);
    for (int i = 0; i < 8; i++)
        b[i] = (uint8_t)(h >> (8 * i));
    memcpy(b + 8, header, h);
    for (size_t i = 0; i < data; i++)
        b[8 + h + i] = (uint8_t)i;
    *n = 8 + h + data;
    return b;
}

START_TEST(test_good)
{
    static const char header[] = "{\"__metadata__\":{\"format\":\"pt\"},"
                                 "\"b\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,24]},"
                                 "\"a\":{\"dtype\":\"BF16\",\"shape\":[],\"data_offsets\":[24,26]},"
                                 "\"empty\":{\"dtype\":\"I64\",\"shape\":[4,0],\"data_offsets\":[24,24]},"
                                 "\"c\":{\"dtype\":\"F8_E4M3\",\"shape\":[5],\"data_offsets\":[26,31]}}  ";
    size_t n, hn;
    sl_err err = {0};
    sl_safetensors *st;
    uint8_t *b = file(header, 31, &n);
    ck_assert_msg(sl_st_parse(b, n, "x", &st, &err) == SL_OK, "%s", err.text);
    ck_assert_uint_eq(sl_st_count(st), 4);
    ck_assert_str_eq(sl_st_at(st, 0)->name, "a");
    ck_assert_str_eq(sl_st_at(st, 3)->name, "empty");
    ck_assert_ptr_null(sl_st_at(st, 4));
    const sl_st_tensor *t = sl_st_find(st, "b");
    ck_assert(t->dtype == SL_ST_F32 && t->rank == 2 && t->shape[0] == 2 && t->shape[1] == 3 &&
              t->bytes == 24);
    ck_assert_uint_eq(((const uint8_t *)sl_st_find(st, "c")->data)[4], 30);
    ck_assert_int_eq(sl_st_find(st, "a")->rank, 0);
    ck_assert_uint_eq(sl_st_find(st, "empty")->bytes, 0);
    ck_assert_ptr_null(sl_st_find(st, "d"));
    ck_assert(memcmp(sl_st_header(st, &hn), header, sizeof header - 1) == 0 && hn == sizeof header - 1);
    sl_st_close(st);
    sl_st_close(NULL);
    free(b);
}
END_TEST

#define T(name, dtype, shape, offsets)                                                                       \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

static const struct {
    const char *header;
    size_t data;
    sl_status status;
    const char *says;
} bad[] = {
    {"", 0, SL_ERR_INVALID, "not a JSON object"},
    {"[]", 0, SL_ERR_INVALID, "not a JSON object"},
    {" {}", 0, SL_ERR_INVALID, "not a JSON object"},
    {"{", 0, SL_ERR_INVALID, "header"},
    {"{} x", 0, SL_ERR_INVALID, "header"},
    {"{}", 1, SL_ERR_INVALID, "belong to no tensor"},
    {"{\"a\":3}", 0, SL_ERR_INVALID, "tensor a: not an object"},
    {"{\"\":{}}", 0, SL_ERR_INVALID, "name has 0 bytes"},
    {"{\"a\xff\":{}}", 0, SL_ERR_INVALID, "header"},
    {"{\"a\\u0000b\":{}}", 0, SL_ERR_INVALID, "header"},
    {"{\"a\":{},\"a\":{}}", 0, SL_ERR_INVALID, "duplicate"},
    {"{\"__metadata__\":[]}", 0, SL_ERR_INVALID, "__metadata__"},
    {"{\"__metadata__\":{\"k\":1}}", 0, SL_ERR_INVALID, "not a string"},
    {"{\"a\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4, SL_ERR_INVALID, "tensor a: dtype"},
    {"{\"a\":{\"dtype\":\"F32\",\"data_offsets\":[0,4]}}", 4, SL_ERR_INVALID, "tensor a: shape"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, SL_ERR_INVALID, "tensor a: data_offsets"},
    {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"x\":1}}", 4, SL_ERR_INVALID,
     "unknown key"},
    {"{" T("a", "F33", "[1]", "[0,4]") "}", 4, SL_ERR_UNSUPPORTED, "unknown dtype \"F33\""},
    {"{" T("a", "F32", "[-1]", "[0,4]") "}", 4, SL_ERR_INVALID, "shape[0]"},
    {"{" T("a", "F32", "[1.0]", "[0,4]") "}", 4, SL_ERR_INVALID, "shape[0]"},
    {"{" T("a", "F32", "[1,1,1,1,1,1,1,1,1]", "[0,4]") "}", 4, SL_ERR_INVALID, "rank 9"},
    {"{" T("a", "F32", "[4294967296,4294967296]", "[0,0]") "}", 0, SL_ERR_INVALID, "too large"},
    {"{" T("a", "F32", "[4611686018427387904]", "[0,0]") "}", 0, SL_ERR_INVALID, "too large"},
    {"{" T("a", "F32", "[1]", "[0,5]") "}", 5, SL_ERR_INVALID, "5 bytes stored"},
    {"{" T("a", "F32", "[1]", "[0,4]") "}", 3, SL_ERR_INVALID,
     "truncated: tensor a ends at byte 4 of the data, but the file has 3 bytes of data"},
    {"{" T("a", "F32", "[1]", "[4,0]") "}", 4, SL_ERR_INVALID, "leave the data"},
    {"{" T("a", "F32", "[1]", "[-4,0]") "}", 4, SL_ERR_INVALID, "leave the data"},
    {"{" T("a", "F32", "[1]", "[0,4,8]") "}", 8, SL_ERR_INVALID, "not a pair"},
    {"{" T("a", "F32", "[1]", "[0,\"4\"]") "}", 4, SL_ERR_INVALID, "not a pair"},
    {"{" T("a", "F32", "[1]", "[0,9223372036854775808]") "}", 4, SL_ERR_INVALID, "header"},
    {"{" T("a", "F32", "[1]", "[0,4]") "," T("b", "F32", "[1]", "[2,6]") "}", 6, SL_ERR_INVALID, "overlaps"},
    {"{" T("a", "F32", "[1]", "[0,4]") "," T("b", "F32", "[1]", "[0,4]") "}", 4, SL_ERR_INVALID, "overlaps"},
    {"{" T("a", "F32", "[1]", "[4,8]") "}", 8, SL_ERR_INVALID, "gap"},
    {"{" T("a", "F32", "[1]", "[0,4]") "," T("b", "F32", "[1]", "[8,12]") "}", 12, SL_ERR_INVALID, "gap"},
    {"{" T("a", "F32", "[1]", "[0,4]") "}", 8, SL_ERR_INVALID, "belong to no tensor"},
};

START_TEST(test_bad)
{
    size_t n;
    sl_err err = {0};
    sl_safetensors *st = (void *)&err;
    uint8_t *b = file(bad[_i].header, bad[_i].data, &n);
    sl_status rc = sl_st_parse(b, n, "some/file", &st, &err);
    ck_assert_msg(rc == bad[_i].status, "%s: %s (%s)", bad[_i].header, sl_status_name(rc), err.text);
    ck_assert_msg(strstr(err.text, bad[_i].says), "\"%s\" does not say \"%s\"", err.text, bad[_i].says);
    ck_assert_msg(strncmp(err.text, "some/file: ", 11) == 0, "\"%s\" does not name the file", err.text);
    ck_assert_ptr_eq(st, (void *)&err); /* unchanged */
    free(b);
}
END_TEST

START_TEST(test_lengths)
{
    sl_err err = {0};
    sl_safetensors *st;
    uint8_t b[16] = {0};
    for (size_t n = 0; n < 8; n++)
        ck_assert_int_eq(sl_st_parse(b, n, "f", &st, &err), SL_ERR_INVALID);
    b[0] = 9; /* header length beyond the end */
    ck_assert_int_eq(sl_st_parse(b, 16, "f", &st, &err), SL_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(err.text, "end of the file"));
    memset(b, 0xff, 8);
    ck_assert_int_eq(sl_st_parse(b, 16, "f", &st, &err), SL_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(err.text, "limit"));
    char big[700] = "{\"";
    memset(big + 2, 'n', SL_ST_MAX_NAME + 1);
    snprintf(big + 2 + SL_ST_MAX_NAME + 1, 100, "\":{}}");
    size_t n;
    uint8_t *f = file(big, 0, &n);
    ck_assert_int_eq(sl_st_parse(f, n, "f", &st, &err), SL_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(err.text, "513 bytes"));
    free(f);
}
END_TEST

/* Every truncation of a real file is refused. */
START_TEST(test_truncation)
{
    ct_list *l = calloc(1, sizeof *l);
    char dir[256], path[300];
    ct_mkdir(dir);
    ct_add(l, "x", SL_ST_F32, 3, 2);
    ct_add(l, "y", SL_ST_BF16, 5, 0);
    ct_write(l, 0, 2, dir, "m", 0);
    snprintf(path, sizeof path, "%s/m", dir);
    FILE *f = fopen(path, "rb");
    uint8_t buf[512];
    size_t n = fread(buf, 1, sizeof buf, f);
    fclose(f);
    sl_safetensors *st;
    sl_err err = {0};
    for (size_t i = 0; i < n; i++)
        ck_assert_msg(sl_st_parse(buf, i, "f", &st, &err) == SL_ERR_INVALID, "first %zu bytes were accepted",
                      i);
    ck_assert_int_eq(sl_st_open(path, &st, &err), SL_OK);
    ck_assert_str_eq(sl_st_label(st), path);
    sl_st_close(st);
    ct_rmdir(dir);
    ct_free(l);
    free(l);
}
END_TEST

START_TEST(test_open_errors)
{
    sl_safetensors *st;
    sl_err err = {0};
    ck_assert_int_eq(sl_st_open("/nonexistent/model.safetensors", &st, &err), SL_ERR_NOT_FOUND);
    ck_assert_ptr_nonnull(strstr(err.text, "/nonexistent/model.safetensors"));
    ck_assert_int_eq(sl_st_open("/tmp", &st, &err), SL_ERR_INVALID);
    ck_assert_int_eq(sl_st_open("/dev/null", &st, &err), SL_ERR_INVALID);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("safetensors");
    TCase *t = tcase_create("safetensors");
    tcase_add_test(t, test_good);
    tcase_add_loop_test(t, test_bad, 0, SL_COUNT(bad));
    tcase_add_test(t, test_lengths);
    tcase_add_test(t, test_truncation);
    tcase_add_test(t, test_open_errors);
    suite_add_tcase(s, t);
    return run_suite(s);
}
