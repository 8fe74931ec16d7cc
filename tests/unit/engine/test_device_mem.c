/*
 * Device memory of an engine (engine/device_mem.h): random takes, gives and exchanges of all kinds against a model that knows the
 * held numbers, without a pool and with pools of several sizes. A take gives the smallest free numbers or, if the pool has not enough,
 * changes nothing; what is held keeps its contents.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/device_mem.h"
#include "tests/unit/run_suite.h"

enum { MOST = 24 };

static sl_backend *be;
static sl_dmem *mem;
static uint8_t *base[SL_DPOOL_KINDS];
static int64_t size[SL_DPOOL_KINDS];
static int32_t count[SL_DPOOL_KINDS];
static bool held[SL_DPOOL_KINDS][MOST];
static sl_err err;

static void setup(void)
{
    ck_assert_int_eq(sl_backend_create("cpu", NULL, &be, NULL), SL_OK);
}

static void teardown(void)
{
    sl_backend_destroy(be);
}

static uint32_t random_below(uint64_t *seed, uint32_t n)
{
    *seed = *seed * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(*seed >> 33) % n;
}

/* Hot slots and rows are in one space, as those of a layer are; an object has half a unit to two units. */
static void make(int units, uint64_t *seed)
{
    const int64_t unit = (int64_t)sl_space_unit(be);
    ck_assert_int_eq(sl_dmem_create(be, (uint64_t)(units * unit), true, &mem, &err), SL_OK);
    memset(held, 0, sizeof held);
    for (int k = 0; k < SL_DPOOL_KINDS; k++) {
        count[k] = 1 + (int32_t)random_below(seed, MOST);
        size[k] = unit / 2 * (1 + random_below(seed, 4));
        ck_assert_int_eq(sl_dmem_numbers(mem, (sl_dpool_kind)k, count[k], &err), SL_OK);
    }
    for (int k = 0; k < SL_DPOOL_KINDS; k++) {
        const int64_t own = size[k] * count[k];
        if (k == SL_DPOOL_HOT)
            continue;
        ck_assert_int_eq(
            sl_dmem_objects(mem, (sl_dpool_kind)k, size[k],
                            own + (k == SL_DPOOL_ROWS ? size[SL_DPOOL_HOT] * count[SL_DPOOL_HOT] : 0),
                            &base[k], &err),
            SL_OK);
    }
    base[SL_DPOOL_HOT] = base[SL_DPOOL_ROWS] + size[SL_DPOOL_ROWS] * count[SL_DPOOL_ROWS];
    ck_assert_int_eq(sl_dmem_also(mem, SL_DPOOL_HOT, base[SL_DPOOL_HOT], size[SL_DPOOL_HOT], &err), SL_OK);
}

static void free_all(void)
{
    for (int k = 0; k < SL_DPOOL_KINDS; k++)
        if (k != SL_DPOOL_HOT)
            sl_dmem_free_objects(mem, base[k]);
    sl_dmem_destroy(mem);
}

static void mark(int k, int32_t i, bool write)
{
    uint8_t *p = base[k] + i * size[k], v = (uint8_t)(1 + k * MOST + i);
    if (write)
        p[0] = p[size[k] - 1] = v;
    ck_assert_uint_eq(p[0], v);
    ck_assert_uint_eq(p[size[k] - 1], v);
}

static void check_all(void)
{
    for (int k = 0; k < SL_DPOOL_KINDS; k++) {
        int32_t n = 0;
        for (int32_t i = 0; i < count[k]; i++)
            if (held[k][i])
                mark(k, i, false), n++;
        ck_assert_int_eq(sl_dmem_n(mem, (sl_dpool_kind)k), count[k]);
        ck_assert_int_eq(sl_dmem_n_free(mem, (sl_dpool_kind)k), count[k] - n);
        ck_assert_int_le(sl_dmem_room(mem, (sl_dpool_kind)k), count[k] - n);
    }
}

/* The n smallest numbers that are free. */
static void smallest(int k, int32_t n, int32_t *out)
{
    for (int32_t i = 0; n > 0; i++)
        if (!held[k][i])
            *out++ = i, n--;
}

static void took(int k, const int32_t *got, const int32_t *want, int32_t n)
{
    ck_assert_mem_eq(got, want, (size_t)n * sizeof *got);
    for (int32_t i = 0; i < n; i++) {
        held[k][got[i]] = true;
        mark(k, got[i], true);
    }
}

static bool take(int k, uint64_t *seed)
{
    int32_t got[MOST], want[MOST], n = (int32_t)random_below(seed, 5);
    n = n < sl_dmem_n_free(mem, (sl_dpool_kind)k) ? n : sl_dmem_n_free(mem, (sl_dpool_kind)k);
    smallest(k, n, want);
    sl_status st = sl_dmem_take(mem, (sl_dpool_kind)k, got, n, &err);
    if (st == SL_OK)
        took(k, got, want, n);
    else
        ck_assert(st == SL_ERR_EXHAUSTED && sl_dmem_pool(mem));
    for (int32_t i = 0; st != SL_OK && i < n; i++)
        ck_assert_int_eq(got[i], -1);
    return st == SL_OK;
}

/* Up to n held numbers of the kind. */
static int32_t choose(int k, int32_t n, int32_t *out, uint64_t *seed)
{
    int32_t c = 0, first = (int32_t)random_below(seed, (uint32_t)count[k]);
    for (int32_t i = 0; i < count[k] && c < n; i++)
        if (held[k][(first + i) % count[k]])
            out[c++] = (first + i) % count[k];
    return c;
}

static void give(int k, uint64_t *seed)
{
    int32_t out[MOST], n = choose(k, (int32_t)random_below(seed, 6), out, seed);
    for (int32_t i = 0; i < n; i++)
        held[k][out[i]] = false;
    sl_dmem_give(mem, (sl_dpool_kind)k, out, n);
    for (int32_t i = 0; i < n; i++)
        ck_assert_int_eq(out[i], -1);
}

/* A hot slot from the memory of rows, as a spill does. Returns 1 where it was possible, 0 where not. */
static int spill(uint64_t *seed)
{
    int32_t rows[MOST], slot, want, n = choose(SL_DPOOL_ROWS, 1 + (int32_t)random_below(seed, 8), rows, seed);
    if (sl_dmem_n_free(mem, SL_DPOOL_HOT) == 0)
        return 0;
    smallest(SL_DPOOL_HOT, 1, &want);
    if (sl_dmem_exchange(mem, SL_DPOOL_HOT, &slot, SL_DPOOL_ROWS, rows, n, &err) != SL_OK) {
        ck_assert_ptr_nonnull(sl_dmem_pool(mem));
        check_all(); /* the rows are there with what they held */
        return 0;
    }
    took(SL_DPOOL_HOT, &slot, &want, 1);
    for (int32_t i = 0; i < n; i++)
        held[SL_DPOOL_ROWS][rows[i]] = false;
    sl_dmem_give_numbers(mem, SL_DPOOL_ROWS, rows, n);
    return 1;
}

START_TEST(numbers_and_their_memory_match_a_model)
{
    uint64_t seed = (uint64_t)_i + 1;
    int refused = 0, spilled = 0;
    const int units = _i % 3 == 0 ? 0 : 8 + (int)random_below(&seed, 40);
    make(units, &seed);
    ck_assert_int_eq(sl_dmem_pool(mem) != NULL, units > 0);
    for (int step = 0; step < 250; step++) {
        const int k = (int)random_below(&seed, SL_DPOOL_KINDS);
        switch (random_below(&seed, 5)) {
        case 0:
        case 1:
            refused += !take(k, &seed);
            break;
        case 2:
            spilled += spill(&seed);
            break;
        default:
            give(k, &seed);
        }
        check_all();
    }
    ck_assert(units == 0 ? refused == 0 : true);
    ck_assert_int_gt(spilled, 0);
    free_all();
}
END_TEST

START_TEST(allocations_are_counted)
{
    uint64_t seed = 7, pool = sl_space_unit(be) * 16;
    void *p;
    ck_assert_int_eq(sl_dmem_create(be, pool, false, &mem, &err), SL_OK);
    ck_assert_uint_eq(sl_dmem_bytes(mem), pool);
    for (uint64_t all = pool, i = 0; i < 20; i++) {
        const uint64_t n = 1 + random_below(&seed, 5000);
        ck_assert_int_eq(sl_dmem_alloc(mem, n, &p, &err), SL_OK);
        sl_be_free(be, SL_MEM_DEVICE, p);
        sl_dmem_count(mem, 3);
        all += n + 3;
        ck_assert_uint_eq(sl_dmem_bytes(mem), all);
    }
    sl_dmem_destroy(mem);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("device_mem");
    TCase *t = tcase_create("device_mem");
    tcase_add_checked_fixture(t, setup, teardown);
    add_variants(t, numbers_and_their_memory_match_a_model, 15);
    tcase_add_test(t, allocations_are_counted);
    suite_add_tcase(s, t);
    return run_suite(s);
}
