/* Registries of kernels/cache.h: every name is found, is the name of its number, and nothing else is found. */
#include <check.h>
#include <stdlib.h>

#include "kernels/cache.h"
#include "kernels/gqa.h"
#include "tests/unit/run_suite.h"

START_TEST(row_formats)
{
    int n = 0;
    for (const char *const *name = sl_row_format_names(); *name; name++, n++) {
        const sl_row_format_desc *d = sl_row_format_find(*name);
        ck_assert(d && d->description && d->format == (sl_row_format)n);
        ck_assert_str_eq(sl_row_format_name(d->format), *name);
    }
    ck_assert_int_eq(n, SL_ROW_GQA_FP8 + 1);
    ck_assert_ptr_null(sl_row_format_find("mla_fp4"));
    ck_assert_ptr_null(sl_row_format_find(NULL));
    ck_assert_str_eq(sl_row_format_name((sl_row_format)99), "?");
}
END_TEST

START_TEST(index_formats)
{
    int n = 0;
    for (const char *const *name = sl_index_format_names(); *name; name++, n++) {
        const sl_index_format_desc *d = sl_index_format_find(*name);
        ck_assert(d && d->description && d->format == (sl_index_format)n);
        ck_assert_str_eq(sl_index_format_name(d->format), *name);
    }
    ck_assert_int_eq(n, SL_INDEX_OFFICIAL + 1);
    ck_assert_ptr_null(sl_index_format_find(""));
}
END_TEST

START_TEST(evict_policies)
{
    int n = 0;
    for (const char *const *name = sl_evict_policy_names(); *name; name++, n++) {
        const sl_evict_policy_desc *d = sl_evict_policy_find(*name);
        ck_assert(d && d->description && d->policy == (sl_evict_policy)n);
        ck_assert_str_eq(sl_evict_policy_name(d->policy), *name);
    }
    ck_assert_int_eq(n, SL_EVICT_CLOCK + 1);
    ck_assert_ptr_null(sl_evict_policy_find("fifo"));
}
END_TEST

/* Rows with keys and values are whole lines of 16 bytes, in every division, and the plane of the cache says the same size
 * as the ops; otherwise rows of one fp8 KV head travel in words of 4 bytes. */
START_TEST(rows_are_lines)
{
    static const int32_t heads[] = {1, 2, 3, 8}, dims[] = {2, 6, 64, 66, 128, 256}, tokens[] = {1, 16};
    int n = 0;

    for (int f = SL_ROW_GQA_F32; f <= SL_ROW_GQA_FP8; f++)
        for (int i = 0; i < 4 * 6 * 2 * 2; i++) {
            sl_cache_dims d = {.rows = sl_row_format_of((sl_row_format)f),
                               .kv_heads = heads[i % 4],
                               .head_dim = dims[i / 4 % 6],
                               .row_tokens = tokens[i / 24 % 2],
                               .row_scope = i / 48 ? SL_SCOPE_KV_HEAD : SL_SCOPE_REQUEST};
            const int32_t slots = d.row_tokens * (i / 48 ? 1 : d.kv_heads);
            const int64_t bytes = sl_gqa_row_bytes((sl_row_format)f, slots, d.head_dim);
            sl_cache_shape shape;
            sl_err err = {0};

            ck_assert_msg(sl_cache_shape_make(&d, &shape, &err) == SL_OK, "%s", err.text);
            ck_assert_int_eq(bytes % SL_ROW_ALIGN, 0);
            ck_assert_int_eq(sl_cache_unit_bytes(&shape.planes[SL_CACHE_ROWS]), bytes);
            n++;
        }
    ck_assert_int_eq(n, 288);
    ck_assert_int_eq(sl_gqa_row_bytes(SL_ROW_GQA_FP8, 1, 128), 272);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("cache");
    TCase *t = tcase_create("registries");
    tcase_add_test(t, row_formats);
    tcase_add_test(t, index_formats);
    tcase_add_test(t, evict_policies);
    tcase_add_test(t, rows_are_lines);
    suite_add_tcase(s, t);
    return run_suite(s);
}
