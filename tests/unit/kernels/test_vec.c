/*
 * The inner loops of kernels/cpu/vec.h touch exactly what they are given: every operand ends where a page without
 * access begins, or begins where one ends. AddressSanitizer does not watch vec_avx2.c itself; it is told the
 * ranges, and the last test shows that it judges them.
 */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kernels/cpu/vec.h"
#include "tests/unit/run_suite.h"

/* `bytes` in front of a page without access (at_end), or after one. The process ends soon: never unmapped. */
static void *fenced(size_t bytes, bool at_end)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), size = (bytes + page - 1) / page * page;
    uint8_t *p = mmap(NULL, size + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    ck_assert_ptr_ne(p, MAP_FAILED);
    ck_assert_int_eq(mprotect(p + page, size, PROT_READ | PROT_WRITE), 0);
    return at_end ? p + page + size - bytes : p + page;
}

static float *numbers(int32_t n, bool at_end)
{
    float *x = fenced(4 * (size_t)n, at_end);

    for (int32_t i = 0; i < n; i++)
        x[i] = (float)((i * 37 + n) % 19 - 9) / 8;
    return x;
}

enum { ROWS = 10, TOKENS = 7, LONGEST = 41 };

static void dots_of(int32_t rows, int32_t tokens, int32_t n, bool at_end)
{
    float want[ROWS * TOKENS];
    sl_dot_job j = {.rows = rows,
                    .tokens = tokens,
                    .n = n,
                    .ld_w = n,
                    .ld_x = n,
                    .ld_out = rows,
                    .ld_scale_x = 1,
                    .scale_w = 0.5f};
    bool acc = (rows + tokens + n) % 2;

    j.w = numbers(rows * n, at_end);
    j.x = numbers(tokens * n, at_end);
    j.scale_x = acc ? numbers(tokens, at_end) : NULL;
    j.acc = acc;
    j.out = want;
    memset(want, 0, sizeof(want));
    sl_vec_force_portable(true);
    sl_vec_dots(&j);
    sl_vec_force_portable(false);
    j.out = fenced(4 * (size_t)(rows * tokens), at_end);
    sl_vec_dots(&j);
    ck_assert_msg(memcmp(j.out, want, 4 * (size_t)(rows * tokens)) == 0, "%d rows, %d tokens, %d", rows,
                  tokens, n);
}

START_TEST(dots_stay_in_their_operands)
{
    const int32_t lengths[] = {1, 7, 8, 9, 24, 31};

    for (int32_t rows = 1; rows <= ROWS; rows++)
        for (int32_t tokens = 1; tokens <= TOKENS; tokens++)
            dots_of(rows, tokens, lengths[(rows + tokens) % 6], _i);
    for (int32_t n = 1; n <= LONGEST; n++)
        dots_of(3, 2, n, _i);
}
END_TEST

START_TEST(sums_of_rows_stay_in_their_operands)
{
    for (int32_t n = 1; n <= 2 * LONGEST; n++) {
        const float *rows = numbers(3 * n, _i), *p = numbers(3, _i);
        float *out = fenced(4 * (size_t)n, _i), want[2 * LONGEST] = {0};

        sl_vec_axpy(out, n, p, rows, n, 3);
        sl_vec_force_portable(true);
        sl_vec_axpy(want, n, p, rows, n, 3);
        sl_vec_force_portable(false);
        ck_assert_int_eq(memcmp(out, want, 4 * (size_t)n), 0);
    }
}
END_TEST

START_TEST(conversions_stay_in_their_operands)
{
    for (int32_t n = 1; n <= LONGEST; n++) {
        uint8_t *codes = fenced((size_t)n, _i);
        uint16_t *halves = fenced(2 * (size_t)n, _i);
        float *out = fenced(4 * (size_t)n, _i), want[LONGEST];

        for (int32_t i = 0; i < n; i++) {
            codes[i] = (uint8_t)(i * 11 + n);
            halves[i] = (uint16_t)(i * 4099 + n);
        }
        for (int kind = 0; kind < 2; kind++) {
            for (int portable = 0; portable < 2; portable++) {
                sl_vec_force_portable(portable);
                if (kind)
                    sl_vec_load_bf16(halves, n, portable ? want : out);
                else
                    sl_vec_load_e4m3(codes, n, portable ? want : out);
            }
            sl_vec_force_portable(false);
            ck_assert_int_eq(memcmp(out, want, 4 * (size_t)n), 0);
        }
    }
}
END_TEST

#ifdef __SANITIZE_ADDRESS__
/* Each call gets one operand that is a float shorter than it says; the sanitizer ends the process with 1. */
START_TEST(asan_sees_a_short_operand)
{
    float *shorter = malloc(4 * 23), *whole = calloc(64, 4);
    sl_dot_job j = {.w = whole,
                    .x = whole,
                    .out = whole + 48,
                    .ld_w = 8,
                    .ld_x = 8,
                    .ld_out = 3,
                    .rows = 3,
                    .tokens = 1,
                    .n = 8};

    memset(shorter, 0, 4 * 23);
    if (_i == 0)
        j.w = shorter;
    else if (_i == 1)
        sl_vec_axpy(whole, 8, whole, shorter, 8, 3);
    else if (_i == 2)
        sl_vec_load_e4m3((const uint8_t *)whole, 24, shorter);
    else
        sl_vec_load_bf16((const uint16_t *)(const void *)shorter, 47, whole);
    sl_vec_dots(&j);
    free(shorter);
    free(whole);
}
END_TEST
#endif

int main(void)
{
    Suite *s = suite_create("vec");
    TCase *tc = tcase_create("ranges");

    tcase_add_loop_test(tc, dots_stay_in_their_operands, 0, 2);
    tcase_add_loop_test(tc, sums_of_rows_stay_in_their_operands, 0, 2);
    tcase_add_loop_test(tc, conversions_stay_in_their_operands, 0, 2);
#ifdef __SANITIZE_ADDRESS__
    tcase_add_loop_exit_test(tc, asan_sees_a_short_operand, 1, 0, 4);
#endif
    suite_add_tcase(s, tc);
    return run_suite(s);
}
