/*
 * Spaces of a backend (kernels/space.h), the same for all: addresses keep what was written while they have memory; memory that
 * moves to another space has the same units; what must not be is refused or, on the CPU, ends the process.
 *
 *     test_space [--backend cuda]
 */
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/space.h"
#include "tests/unit/run_suite.h"

enum { UNITS = 5 };

static const char *backend = "cpu";
static sl_backend *be;
static sl_err err;
static size_t unit;

static void setup(void)
{
    ck_assert_msg(sl_backend_create(backend, NULL, &be, &err) == SL_OK, "%s", err.text);
    unit = sl_space_unit(be);
    ck_assert_uint_gt(unit, 0);
    ck_assert_uint_eq(unit & (unit - 1), 0);
}

static void teardown(void)
{
    sl_backend_destroy(be);
}

static void ok(sl_status st)
{
    ck_assert_msg(st == SL_OK, "%s", err.text);
}

/* Every byte of n units at p is v. */
static void holds(uint8_t *p, int n, uint8_t v)
{
    const size_t bytes = (size_t)n * unit;
    uint8_t *got = malloc(bytes), *want = malloc(bytes);
    memset(want, v, bytes);
    ok(sl_be_copy(be, got, p, bytes, &err));
    ok(sl_be_sync(be, &err));
    ck_assert(memcmp(got, want, bytes) == 0);
    free(want);
    free(got);
}

static void fill(uint8_t *p, int n, uint8_t v)
{
    ok(sl_be_fill(be, p, v, (size_t)n * unit, &err));
}

START_TEST(memory_moves_between_spaces)
{
    uint8_t *a = NULL, *b = NULL;
    sl_mem_unit u[UNITS];
    for (int i = 0; i < UNITS; i++)
        ok(sl_unit_create(be, &u[i], &err));
    ok(sl_space_reserve(be, 100 * unit - 1, &a, &err));
    ok(sl_space_reserve(be, 7 * unit, &b, &err));
    ck_assert_uint_eq((uintptr_t)a % 256, 0);
    ok(sl_space_map(be, a + 95 * unit, u, UNITS,
                    &err)); /* the last units, also where the size is not whole */
    fill(a + 95 * unit, UNITS, 3);
    holds(a + 95 * unit, UNITS, 3);
    ok(sl_space_settle(be, &err));
    ok(sl_space_unmap(be, a + 96 * unit, 2, &err)); /* a hole */
    ok(sl_space_map(be, b + 4 * unit, u + 1, 2, &err));
    fill(b + 4 * unit, 2, 5);
    holds(a + 95 * unit, 1, 3);
    holds(a + 98 * unit, 2, 3);
    holds(b + 4 * unit, 2, 5);
    ok(sl_space_settle(be, &err));
    ok(sl_space_unmap(be, b + 4 * unit, 2, &err));
    ok(sl_space_map(be, a + 96 * unit, u + 1, 2, &err)); /* the same addresses again */
    fill(a + 96 * unit, 2, 7);
    holds(a + 95 * unit, 1, 3);
    holds(a + 96 * unit, 2, 7);
    holds(a + 98 * unit, 2, 3);
    ok(sl_space_settle(be, &err));
    ok(sl_space_unmap(be, a + 95 * unit, UNITS, &err)); /* units that were mapped in several calls */
    sl_space_release(be, a, 100 * unit - 1);
    sl_space_release(be, b, 7 * unit);
    for (int i = 0; i < UNITS; i++)
        sl_unit_destroy(be, u[i]);
}
END_TEST

/* Copies across the border of two units that were mapped one by one, and with a pitch. */
START_TEST(units_that_touch_are_one_range)
{
    uint8_t *a = NULL, *host = malloc(2 * unit);
    sl_mem_unit u[2];
    ok(sl_space_reserve(be, 2 * unit, &a, &err));
    for (int i = 0; i < 2; i++) {
        ok(sl_unit_create(be, &u[i], &err));
        ok(sl_space_map(be, a + (size_t)i * unit, &u[i], 1, &err));
    }
    for (size_t i = 0; i < 2 * unit; i++)
        host[i] = (uint8_t)(i * 7);
    fill(a, 2, 0);
    ok(sl_be_copy_2d(be, a + unit - 1000, 100, host, 300, 100, 20, &err));
    uint8_t got[2000];
    ok(sl_be_copy(be, got, a + unit - 1000, sizeof got, &err));
    ok(sl_be_sync(be, &err));
    for (size_t i = 0; i < sizeof got; i++)
        ck_assert_uint_eq(got[i], host[i / 100 * 300 + i % 100]);
    ok(sl_space_unmap(be, a, 2, &err));
    sl_space_release(be, a, 2 * unit);
    for (int i = 0; i < 2; i++)
        sl_unit_destroy(be, u[i]);
    free(host);
}
END_TEST

START_TEST(impossible_sizes_are_refused)
{
    uint8_t *a = NULL;
    ck_assert_int_eq(sl_space_reserve(be, 0, &a, &err), SL_ERR_TOO_LARGE);
    ck_assert_int_eq(sl_space_reserve(be, SIZE_MAX, &a, &err), SL_ERR_TOO_LARGE);
    ck_assert_ptr_null(a);
    ok(sl_space_map(be, NULL, NULL, 0, &err));
    ok(sl_space_unmap(be, NULL, 0, &err));
    sl_space_release(be, NULL, 1);
}
END_TEST

#if !defined __SANITIZE_ADDRESS__ && !defined __SANITIZE_THREAD__ /* they report the signal and exit */
/* i: 0 never had memory, 1 has none any more. */
START_TEST(addresses_without_memory_end_the_process)
{
    uint8_t *a = NULL;
    sl_mem_unit u;
    if (strcmp(backend, "cpu") != 0)
        raise(SIGSEGV); /* only kernels can touch them there */
    ok(sl_unit_create(be, &u, &err));
    ok(sl_space_reserve(be, 2 * unit, &a, &err));
    ok(sl_space_map(be, a, &u, 1, &err));
    a[0] = 1;
    if (_i == 1)
        ok(sl_space_unmap(be, a, 1, &err));
    *(volatile uint8_t *)(a + (_i == 0 ? unit : 0)) = 1;
}
END_TEST
#endif

int main(int argc, char **argv)
{
    Suite *s = suite_create("space");
    TCase *t = tcase_create("space");
    if (argc == 3 && strcmp(argv[1], "--backend") == 0)
        backend = argv[2];
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, memory_moves_between_spaces);
    tcase_add_test(t, units_that_touch_are_one_range);
    tcase_add_test(t, impossible_sizes_are_refused);
#if !defined __SANITIZE_ADDRESS__ && !defined __SANITIZE_THREAD__
    tcase_add_loop_test_raise_signal(t, addresses_without_memory_end_the_process, SIGSEGV, 0, 2);
#endif
    suite_add_tcase(s, t);
    return run_suite(s);
}
