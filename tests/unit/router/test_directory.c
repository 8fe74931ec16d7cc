/*
 * The directory of cached pages: what a lookup says of every worker, random changes against a plain table, its bound, and
 * what remains of a worker that has left.
 */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "router/core/directory.h"
#include "tests/unit/chosen_keys.h"
#include "tests/unit/run_suite.h"

static const sl_medium HOST = SL_MEDIUM_HOST, DISK = SL_MEDIUM_DISK, SHARED = SL_MEDIUM_SHARED;

static sl_directory *d;

static void setup(void)
{
    ck_assert_int_eq(sl_directory_create(64u << 20, &d), SL_OK);
}

static void teardown(void)
{
    sl_directory_destroy(d);
}

static sl_key key(uint64_t i)
{
    return sl_hash_chain((sl_key){1, 1}, &i, sizeof i);
}

static uint64_t rnd(uint64_t *s)
{
    *s = *s * 6364136223846793005ull + 1442695040888963407ull;
    return *s >> 33;
}

static uint64_t held(sl_medium m)
{
    sl_directory_stats s;
    sl_directory_get_stats(d, &s);
    return s.held[m];
}

static uint64_t pages(void)
{
    sl_directory_stats s;
    sl_directory_get_stats(d, &s);
    return s.pages;
}

/* One letter for each page of a prompt: h host, d disk, b both, s shared as well (upper case: only there), - nowhere. */
static void put(uint32_t place, const char *where)
{
    for (uint64_t i = 0; where[i]; i++) {
        if (strchr("hb", where[i]))
            sl_directory_add(d, place, HOST, key(i));
        if (strchr("db", where[i]))
            sl_directory_add(d, place, DISK, key(i));
        if (where[i] == 's')
            sl_directory_add(d, place, SHARED, key(i));
    }
}

START_TEST(a_lookup_tells_the_prefix_in_each_medium)
{
    static const struct {
        const char *a, *b; /* what two workers hold; b also says what is shared */
        sl_directory_match at_a, at_b;
    } cases[] = {
        {"", "", {0}, {0}},
        {"hhh", "", {3, 3, 0, 0}, {0}},
        {"hh-h", "hhhh", {2, 2, 0, 0}, {4, 4, 0, 0}},
        {"hhdd", "-hhh", {2, 4, 2, 0}, {0}},
        {"ddhh", "bbb", {0, 4, 2, 0}, {3, 3, 0, 0}},
        {"bdbh", "dbdd", {1, 4, 1, 0}, {0, 4, 3, 0}},
        {"hh", "ssss", {2, 2, 0, 2}, {0, 0, 0, 4}},
        {"hd", "sss-s", {1, 2, 1, 1}, {0, 0, 0, 3}},
        {"hhh-h", "--sss", {3, 3, 0, 2}, {0}},
        {"", "hhs", {0}, {2, 2, 0, 1}},
    };
    const char *a = cases[_i].a, *b = cases[_i].b;
    uint32_t p = sl_directory_join(d), q = sl_directory_join(d);
    ck_assert_uint_ne(p, q);
    put(p, a);
    put(q, b);
    sl_key keys[6];
    for (uint64_t i = 0; i < 6; i++)
        keys[i] = key(i);
    const sl_directory_match *m = sl_directory_lookup(d, keys, 6);
    ck_assert_msg(!memcmp(&m[p], &cases[_i].at_a, sizeof *m), "%s of %s: %u %u %u %u", a, b, m[p].host,
                  m[p].local, m[p].disk, m[p].shared);
    ck_assert_msg(!memcmp(&m[q], &cases[_i].at_b, sizeof *m), "%s after %s: %u %u %u %u", b, a, m[q].host,
                  m[q].local, m[q].disk, m[q].shared);
    m = sl_directory_lookup(d, keys, 1); /* never more than was asked for */
    ck_assert_uint_le(m[p].local + m[p].shared, 1);
    m = sl_directory_lookup(d, keys, 0);
    ck_assert_uint_eq(m[p].local + m[p].shared + m[q].local + m[q].shared, 0);
}
END_TEST

/* A cut is what a lookup of fewer pages gives; how many of them are only on the disk it knows where those of memory come first. */
START_TEST(a_cut_is_a_shorter_prompt)
{
    static const char kinds[] = "hhhdddbss-";
    sl_key keys[12];
    uint64_t seed = 77;
    for (uint64_t i = 0; i < 12; i++)
        keys[i] = key(i);
    for (int turn = 0; turn < 500; turn++) {
        char what[13] = {0};
        for (int i = 0; i < 12; i++)
            what[i] = kinds[rnd(&seed) % (sizeof kinds - 1)];
        const uint32_t p = sl_directory_join(d), n = (uint32_t)(rnd(&seed) % 13);
        put(p, what);
        const sl_directory_match want = sl_directory_lookup(d, keys, n)[p];
        const sl_directory_match *m = sl_directory_lookup(d, keys, 12);
        const bool ordered = m[p].host == m[p].local - m[p].disk;
        sl_directory_cut(d, p, n);
        ck_assert_msg(m[p].host == want.host && m[p].local == want.local && m[p].shared == want.shared &&
                          m[p].disk <= m[p].local,
                      "%u pages of %s: %u %u %u %u", n, what, m[p].host, m[p].local, m[p].disk, m[p].shared);
        ck_assert(!ordered || m[p].disk == want.disk);
        sl_directory_leave(d, p);
        for (uint64_t i = 0; i < 12; i++)
            sl_directory_remove(d, p, SHARED, key(i));
    }
}
END_TEST

/* ---- random changes against a plain table ---- */

enum { WORKERS = 12, KEYS = 300 };

static bool truth[WORKERS][2][KEYS], shared[KEYS];
static uint32_t place[WORKERS];

static void change(uint64_t *seed)
{
    uint32_t w = (uint32_t)(rnd(seed) % WORKERS), k = (uint32_t)(rnd(seed) % KEYS),
             what = (uint32_t)(rnd(seed) % 1000);
    sl_medium m = (sl_medium)(rnd(seed) % 2);
    if (what < 600) {
        sl_directory_add(d, place[w], m, key(k));
        truth[w][m][k] = true;
    } else if (what < 960) {
        sl_directory_remove(d, place[w], m, key(k));
        truth[w][m][k] = false;
    } else if (what < 970) {
        sl_directory_add(d, SL_DIRECTORY_NONE, SHARED, key(k));
        shared[k] = true;
    } else if (what < 980) {
        sl_directory_remove(d, SL_DIRECTORY_NONE, SHARED, key(k));
        shared[k] = false;
    } else if (what < 985) {
        sl_directory_clear(d, place[w], m);
        memset(truth[w][m], 0, sizeof truth[w][m]);
    } else if (what < 987) {
        sl_directory_leave(d, place[w]);
        memset(truth[w], 0, sizeof truth[w]);
        place[w] = sl_directory_join(d);
    } else {
        sl_directory_sweep(d);
    }
}

static void compare(void)
{
    uint64_t n[SL_MEDIUM_COUNT] = {0};
    for (uint32_t w = 0; w < WORKERS; w++) {
        for (int m = 0; m < 2; m++) {
            size_t count = 0;
            for (uint32_t k = 0; k < KEYS; k++) {
                ck_assert_int_eq(sl_directory_has(d, place[w], (sl_medium)m, key(k)), truth[w][m][k]);
                count += truth[w][m][k];
            }
            ck_assert_uint_eq(sl_directory_count(d, place[w], (sl_medium)m), count);
            n[m] += count;
        }
    }
    for (uint32_t k = 0; k < KEYS; k++) {
        ck_assert_int_eq(sl_directory_has(d, SL_DIRECTORY_NONE, SHARED, key(k)), shared[k]);
        n[SHARED] += shared[k];
    }
    for (int m = 0; m < SL_MEDIUM_COUNT; m++)
        ck_assert_uint_eq(held((sl_medium)m), n[m]);
}

START_TEST(equals_a_plain_table)
{
    uint64_t seed = (uint64_t)_i + 1;
    memset(truth, 0, sizeof truth);
    memset(shared, 0, sizeof shared);
    for (int w = 0; w < WORKERS; w++)
        place[w] = sl_directory_join(d);
    for (int k = 0; k < 20000; k++) {
        change(&seed);
        if (k % 1000 == 999)
            compare();
    }
    for (int w = 0; w < WORKERS; w++)
        sl_directory_leave(d, place[w]);
    for (int k = 0; k < 1024; k++)
        sl_directory_sweep(d);
    uint64_t left = 0;
    for (int k = 0; k < KEYS; k++)
        left += shared[k];
    ck_assert_uint_eq(pages(), left); /* what is shared survives the workers, nothing else does */
}
END_TEST

/* ---- bounds ---- */

START_TEST(memory_is_bounded_and_what_is_used_stays)
{
    enum { BYTES = 2 << 20, HOT = 500, MANY = 400000 };
    sl_directory_destroy(d);
    ck_assert_int_eq(sl_directory_create(BYTES, &d), SL_OK);
    sl_directory_stats s;
    sl_directory_get_stats(d, &s);
    uint64_t fixed = s.bytes;
    ck_assert_uint_gt(fixed, 1600 << 10); /* the other arrays count too */
    ck_assert_uint_le(fixed, 1740 << 10);
    uint32_t p = sl_directory_join(d), others[20];
    for (int i = 0; i < 20; i++)
        others[i] = sl_directory_join(d);
    sl_key hot[HOT];
    for (uint64_t i = 0; i < HOT; i++)
        sl_directory_add(d, p, HOST, hot[i] = key(i));
    for (uint64_t i = HOT; i < MANY; i++) {
        sl_directory_add(d, p, HOST, key(i));
        if (i % 16 == 0)
            sl_directory_add(d, others[i / 16 % 20], DISK, key(i / 2));
        if (i % 5000 == 0)
            ck_assert_uint_eq(sl_directory_lookup(d, hot, HOT)[p].host, HOT);
    }
    for (uint64_t i = MANY - 1000; i < MANY; i++) /* many holders of one page */
        for (int k = 0; k < 20; k++)
            sl_directory_add(d, others[k], HOST, key(i));
    sl_directory_get_stats(d, &s);
    ck_assert_uint_le(s.bytes, fixed + BYTES);
    ck_assert_uint_gt(s.pages, BYTES / 64); /* a full table is at 3/4: 32 bytes for each page */
    ck_assert_uint_gt(s.forgotten, MANY / 2);
    ck_assert_uint_eq(s.held[HOST],
                      sl_directory_count(d, p, HOST) + 20 * sl_directory_count(d, others[0], HOST));
    ck_assert(sl_directory_has(d, p, HOST, key(MANY - 1)));
}
END_TEST

START_TEST(many_holders_of_one_page)
{
    uint32_t p[100];
    sl_key one = key(1);
    for (int i = 0; i < 100; i++)
        sl_directory_add(d, p[i] = sl_directory_join(d), HOST, one);
    const sl_directory_match *m = sl_directory_lookup(d, &one, 1);
    for (int i = 0; i < 100; i++)
        ck_assert_uint_eq(m[p[i]].host, 1);
    ck_assert_uint_eq(pages(), 1);
    ck_assert_uint_eq(held(HOST), 100);
    for (int i = 0; i < 100; i += 2)
        sl_directory_remove(d, p[i], HOST, one);
    m = sl_directory_lookup(d, &one, 1);
    for (int i = 0; i < 100; i++)
        ck_assert_uint_eq(m[p[i]].host, (uint32_t)(i % 2));
    for (int i = 1; i < 100; i += 2)
        sl_directory_remove(d, p[i], HOST, one);
    ck_assert_uint_eq(pages(), 0);
}
END_TEST

/* A worker that comes and goes, and one that clears its cache again and again, use up no numbers and keep no pages. */
START_TEST(workers_come_and_go)
{
    uint32_t stays = sl_directory_join(d);
    sl_directory_add(d, stays, HOST, key(0));
    for (uint64_t i = 0; i < 70000; i++) {
        uint32_t p = sl_directory_join(d);
        ck_assert_uint_eq(p, stays + 1);
        ck_assert(!sl_directory_has(d, p, HOST, key(1)));
        sl_directory_add(d, p, HOST, key(1));
        sl_directory_add(d, p, DISK, key(2 + i % 7));
        sl_directory_clear(d, p, i % 2 ? HOST : DISK);
        sl_directory_leave(d, p);
        if (i % 64 == 0)
            sl_directory_sweep(d);
    }
    ck_assert_uint_eq(held(HOST), 1);
    ck_assert_uint_eq(held(DISK), 0);
    for (int k = 0; k < 1024; k++)
        sl_directory_sweep(d);
    ck_assert_uint_eq(pages(), 1);
    ck_assert(sl_directory_has(d, stays, HOST, key(0)));
}
END_TEST

START_TEST(nothing_is_done_for_no_place)
{
    sl_key none = {0, 0};
    uint32_t p = sl_directory_join(d);
    sl_directory_add(d, SL_DIRECTORY_NONE, HOST, key(1));
    sl_directory_add(d, p + 1, HOST, key(1));
    sl_directory_add(d, p, HOST, none);
    sl_directory_clear(d, SL_DIRECTORY_NONE, DISK);
    sl_directory_leave(d, SL_DIRECTORY_NONE);
    ck_assert_uint_eq(pages(), 0);
    uint32_t n = 1;
    while (sl_directory_join(d) != SL_DIRECTORY_NONE)
        n++;
    ck_assert_uint_eq(n, 4096);
    sl_directory_leave(d, 77);
    ck_assert_uint_eq(sl_directory_join(d), 77);
    sl_directory *small;
    ck_assert_int_eq(sl_directory_create((1u << 20) - 1, &small), SL_ERR_INVALID);
}
END_TEST

static void use(sl_key (*key_of)(uint64_t))
{
    sl_directory *own;
    ck_assert_int_eq(sl_directory_create(64u << 20, &own), SL_OK);
    const uint32_t holder = sl_directory_join(own);
    for (uint64_t i = 1; i <= CHOSEN_N; i++)
        sl_directory_add(own, holder, HOST, key_of(i));
    for (uint64_t i = 1; i <= CHOSEN_N; i++)
        ck_assert(sl_directory_has(own, holder, HOST, key_of(i)));
    sl_directory_destroy(own);
}

START_TEST(chosen_keys_cost_what_others_do)
{
    chosen_check(use);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("router/directory");
    TCase *t = tcase_create("all");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_set_timeout(t, 60);
    tcase_add_loop_test(t, a_lookup_tells_the_prefix_in_each_medium, 0, 10);
    tcase_add_test(t, a_cut_is_a_shorter_prompt);
    tcase_add_loop_test(t, equals_a_plain_table, 0, 3);
    tcase_add_test(t, memory_is_bounded_and_what_is_used_stays);
    tcase_add_test(t, many_holders_of_one_page);
    tcase_add_test(t, workers_come_and_go);
    tcase_add_test(t, nothing_is_done_for_no_place);
    tcase_add_test(t, chosen_keys_cost_what_others_do);
    suite_add_tcase(s, t);
    return run_suite(s);
}
