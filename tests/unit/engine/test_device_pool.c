/*
 * The pool of device memory (engine/device_pool.h): random takes and gives of objects of all kinds against a model of the units that
 * they touch. What is held keeps its contents wherever memory moves; a take succeeds exactly if the units that it needs are there.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/device_pool.h"
#include "tests/unit/run_suite.h"

enum { SPACES = 5, MOST = 40, UNITS = 24 };

/* Parts of the kinds, in 1/64 of a unit: sizes below, at and above a unit, and two kinds in one space. */
typedef struct layout {
    sl_dpool_kind kind;
    int space, at, bytes;
} layout;

static const layout parts[] = {
    {SL_DPOOL_STATES, 0, 0, 150}, {SL_DPOOL_HOT, 1, 5 * MOST, 64}, {SL_DPOOL_HOT, 2, 17 * MOST, 33},
    {SL_DPOOL_INDEX, 3, 0, 3},    {SL_DPOOL_INDEX, 4, 0, 1},       {SL_DPOOL_ROWS, 1, 0, 5},
    {SL_DPOOL_ROWS, 2, 0, 17},
};
static const int space_units[SPACES] = {150 * MOST / 64 + 1, 69 * MOST / 64 + 1, 50 * MOST / 64 + 1, 3, 1};

static sl_backend *be;
static sl_dpool *pool;
static uint8_t *base[SPACES];
static int64_t unit;
static bool held[SL_DPOOL_KINDS][MOST];
static sl_err err;

static void setup(void)
{
    ck_assert_int_eq(sl_backend_create("cpu", NULL, &be, NULL), SL_OK);
    unit = (int64_t)sl_space_unit(be);
    ck_assert_int_eq(sl_dpool_create(be, (uint64_t)(UNITS * unit), true, &pool, &err), SL_OK);
    for (int i = 0; i < SPACES; i++)
        ck_assert_int_eq(sl_dpool_space(pool, (uint64_t)(space_units[i] * unit), &base[i], &err), SL_OK);
    for (size_t i = 0; i < SL_COUNT(parts); i++)
        ck_assert_int_eq(sl_dpool_part(pool, parts[i].kind, base[parts[i].space] + parts[i].at * unit / 64,
                                       parts[i].bytes * unit / 64, &err),
                         SL_OK);
    memset(held, 0, sizeof held);
}

static void teardown(void)
{
    sl_dpool_destroy(pool);
    sl_backend_destroy(be);
}

static int64_t begin_of(const layout *p, int object)
{
    return (p->at + (int64_t)object * p->bytes) * unit / 64;
}

/* Units that the held objects touch. */
static int units_in_use(void)
{
    int n = 0;
    for (int s = 0; s < SPACES; s++)
        for (int u = 0; u < space_units[s]; u++) {
            bool used = false;
            for (size_t i = 0; i < SL_COUNT(parts); i++)
                for (int o = 0; parts[i].space == s && o < MOST; o++)
                    used = used || (held[parts[i].kind][o] && begin_of(&parts[i], o) < (u + 1) * unit &&
                                    begin_of(&parts[i], o + 1) > u * unit);
            n += used;
        }
    return n;
}

/* First and last byte of each part of an object. */
static void mark(sl_dpool_kind kind, int object, bool write)
{
    for (size_t i = 0; i < SL_COUNT(parts); i++) {
        if (parts[i].kind != kind)
            continue;
        uint8_t *p = base[parts[i].space], v = (uint8_t)(1 + (int)kind * MOST + object);
        int64_t at[2] = {begin_of(&parts[i], object), begin_of(&parts[i], object + 1) - 1};
        for (int k = 0; k < 2; k++) {
            if (write)
                p[at[k]] = v;
            ck_assert_uint_eq(p[at[k]], v);
        }
    }
}

static void check_all(void)
{
    sl_dpool_stats st;
    sl_dpool_stats_get(pool, &st);
    ck_assert_uint_eq(st.used, (uint64_t)(units_in_use() * unit));
    ck_assert_uint_eq(st.total, (uint64_t)(UNITS * unit));
    ck_assert_uint_eq(sl_dpool_free(pool), st.total - st.used);
    for (int k = 0; k < SL_DPOOL_KINDS; k++)
        for (int o = 0; o < MOST; o++)
            if (held[k][o])
                mark((sl_dpool_kind)k, o, false);
}

static uint32_t random_below(uint64_t *seed, uint32_t n)
{
    *seed = *seed * 6364136223846793005ull + 1442695040888963407ull;
    return (uint32_t)(*seed >> 33) % n;
}

/* Takes up to n objects of the kind that are not held. Returns whether there was room. */
static bool take(sl_dpool_kind kind, int n, uint64_t *seed)
{
    int32_t ids[MOST], k = 0;
    const int first = (int)random_below(seed, MOST);
    for (int i = 0; i < MOST && k < n; i++)
        if (!held[kind][(first + i) % MOST])
            ids[k++] = (first + i) % MOST;
    for (int i = 0; i < k; i++)
        held[kind][ids[i]] = true;
    const bool fits = units_in_use() <= UNITS;
    sl_status st = sl_dpool_take(pool, kind, ids, k, &err);
    ck_assert_msg(st == (fits ? SL_OK : SL_ERR_EXHAUSTED), "%d units: %s", units_in_use(), err.text);
    for (int i = 0; i < k; i++) {
        if (fits)
            mark(kind, ids[i], true);
        else
            held[kind][ids[i]] = false;
    }
    return fits;
}

static void give(sl_dpool_kind kind, int n, uint64_t *seed)
{
    int32_t ids[MOST], k = 0;
    const int first = (int)random_below(seed, MOST);
    for (int i = 0; i < MOST && k < n; i++)
        if (held[kind][(first + i) % MOST])
            ids[k++] = (first + i) % MOST;
    for (int i = 0; i < k; i++)
        held[kind][ids[i]] = false;
    sl_dpool_give(pool, kind, ids, k);
}

START_TEST(random_loads_keep_what_they_hold)
{
    uint64_t seed = (uint64_t)_i * 77 + 5;
    int refused = 0, taken = 0;
    for (int step = 0; step < 400; step++) {
        /* the mix changes: from time to time one kind alone grows */
        const sl_dpool_kind kind = step / 50 % 2 ? (sl_dpool_kind)(step / 100 % SL_DPOOL_KINDS)
                                                 : (sl_dpool_kind)random_below(&seed, SL_DPOOL_KINDS);
        if (random_below(&seed, 5) < 3)
            *(take(kind, 1 + (int)random_below(&seed, 6), &seed) ? &taken : &refused) += 1;
        else
            give((sl_dpool_kind)random_below(&seed, SL_DPOOL_KINDS), 1 + (int)random_below(&seed, 12), &seed);
        check_all();
    }
    sl_dpool_stats st;
    sl_dpool_stats_get(pool, &st);
    ck_assert_msg(refused > 10 && taken > 50 && st.moved > 10, "%d refused, %d taken, %llu moved", refused,
                  taken, (unsigned long long)st.moved);
}
END_TEST

/* All units for states, then all for pages, then again: each extreme has all of the memory, whatever was before. */
START_TEST(each_kind_can_have_all_of_it)
{
    static const sl_dpool_kind kinds[] = {SL_DPOOL_STATES, SL_DPOOL_HOT, SL_DPOOL_STATES, SL_DPOOL_ROWS,
                                          SL_DPOOL_HOT};
    static const int most[] = {10, 14, 10, MOST,
                               14}; /* states: 2.3 units each; hot: 1.5, and borders in two spaces */
    for (size_t i = 0; i < SL_COUNT(kinds); i++) {
        int32_t ids[MOST];
        int n = 0;
        for (ids[0] = 0; ids[0] < MOST && sl_dpool_take(pool, kinds[i], ids, 1, &err) == SL_OK; ids[0]++) {
            held[kinds[i]][n++] = true;
            mark(kinds[i], ids[0], true);
        }
        ck_assert_msg(n == most[i], "%zu: %d objects", i, n);
        check_all();
        for (int k = 0; k < n; k++)
            ids[k] = k;
        sl_dpool_give(pool, kinds[i], ids, n);
        memset(held, 0, sizeof held);
        check_all();
    }
}
END_TEST

/* Memory that comes to an object anew is not what another has left there. */
START_TEST(new_memory_is_poisoned)
{
    const int32_t a = 0;
    ck_assert_int_eq(sl_dpool_take(pool, SL_DPOOL_STATES, &a, 1, &err), SL_OK);
    for (int64_t i = 0; i < 150 * unit / 64; i++)
        ck_assert_uint_eq(base[0][i], 0xff);
    ck_assert_uint_eq(sl_dpool_object_bytes(pool, SL_DPOOL_STATES), (uint64_t)(150 * unit / 64));
    ck_assert_uint_eq(sl_dpool_object_bytes(pool, SL_DPOOL_ROWS), (uint64_t)(5 * unit / 64 + 17 * unit / 64));
    sl_dpool_give(pool, SL_DPOOL_STATES, &a, 1);
}
END_TEST

/* ---- pages that become scattered ---- */

enum { PER_UNIT = 64, PAGES = UNITS * PER_UNIT, GROUPS = 8, OF_GROUP = PAGES / GROUPS };

/* A pool of its own, of pages and of states of two units. */
static sl_dpool *pages_and_states(void)
{
    sl_dpool *p;
    uint8_t *pages, *states;
    ck_assert_int_eq(sl_dpool_create(be, (uint64_t)(UNITS * unit), true, &p, &err), SL_OK);
    ck_assert_int_eq(sl_dpool_space(p, (uint64_t)(UNITS * unit), &pages, &err), SL_OK);
    ck_assert_int_eq(sl_dpool_space(p, (uint64_t)(UNITS * unit), &states, &err), SL_OK);
    ck_assert_int_eq(sl_dpool_part(p, SL_DPOOL_ROWS, pages, unit / PER_UNIT, &err), SL_OK);
    ck_assert_int_eq(sl_dpool_part(p, SL_DPOOL_STATES, states, 2 * unit, &err), SL_OK);
    return p;
}

/* How many states fit now; they are given again. */
static int states_that_fit(sl_dpool *p)
{
    int32_t ids[UNITS / 2], n = 0;
    while (n < UNITS / 2 && sl_dpool_take(p, SL_DPOOL_STATES, &n, 1, &err) == SL_OK) {
        ids[n] = n;
        n++;
    }
    sl_dpool_give(p, SL_DPOOL_STATES, ids, n);
    return n;
}

/*
 * Eight sequences fill the pool, and every second one ends. Units are not compacted: those in which another sequence has a page stay.
 * Where sequences took whole prompts, most of what the others had is there for states. Where all grew in turns, page by page, nothing
 * is until the last of them ends; new pages take the holes, and need no unit.
 */
START_TEST(scattered_pages_hold_their_units)
{
    const bool in_turns = _i != 0;
    int32_t ids[GROUPS][OF_GROUP], all[PAGES / 2];
    sl_dpool *p = pages_and_states();
    for (int k = 0; k < PAGES; k++) {
        const int g = in_turns ? k % GROUPS : k / OF_GROUP, i = in_turns ? k / GROUPS : k % OF_GROUP;
        ids[g][i] = k;
        ck_assert_int_eq(sl_dpool_take(p, SL_DPOOL_ROWS, &ids[g][i], 1, &err), SL_OK);
    }
    ck_assert_int_eq(states_that_fit(p), 0);
    for (int g = 0; g < GROUPS; g += 2) {
        sl_dpool_give(p, SL_DPOOL_ROWS, ids[g], OF_GROUP);
        memcpy(all + g / 2 * OF_GROUP, ids[g], sizeof ids[g]);
    }
    ck_assert_int_eq(states_that_fit(p), in_turns ? 0 : UNITS / 4);
    ck_assert_int_eq(sl_dpool_take(p, SL_DPOOL_ROWS, all, PAGES / 2, &err), SL_OK); /* the holes */
    sl_dpool_give(p, SL_DPOOL_ROWS, all, PAGES / 2);
    for (int g = 1; g < GROUPS; g += 2) {
        sl_dpool_give(p, SL_DPOOL_ROWS, ids[g], OF_GROUP);
        if (in_turns && g < GROUPS - 1)
            ck_assert_int_eq(states_that_fit(p), 0);
    }
    ck_assert_int_eq(states_that_fit(p), UNITS / 2);
    sl_dpool_destroy(p);
}
END_TEST

START_TEST(a_pool_needs_a_unit)
{
    sl_dpool *none = NULL;
    ck_assert_int_eq(sl_dpool_create(be, (uint64_t)unit - 1, false, &none, &err), SL_ERR_DEVICE_MEMORY);
    ck_assert_ptr_null(none);
    ck_assert_int_eq(sl_dpool_part(pool, SL_DPOOL_ROWS, (const uint8_t *)&none, 1, &err), SL_ERR_INTERNAL);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("device_pool");
    TCase *t = tcase_create("device_pool");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_loop_test(t, random_loads_keep_what_they_hold, 0, 6);
    tcase_add_test(t, each_kind_can_have_all_of_it);
    tcase_add_test(t, new_memory_is_poisoned);
    tcase_add_loop_test(t, scattered_pages_hold_their_units, 0, 2);
    tcase_add_test(t, a_pool_needs_a_unit);
    suite_add_tcase(s, t);
    return run_suite(s);
}
