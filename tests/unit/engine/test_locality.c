/* Hot rows by layer from a worker's metrics: what is read, what is refused, and what the rule decides. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/locality.h"
#include "tests/unit/run_suite.h"

static const char scrape[] = "# HELP sluice_swap_rows_total x\n"
                             "# TYPE sluice_swap_rows_total counter\n"
                             "sluice_swap_rows_total{layer=\"0\",result=\"hit\"} 10\n"
                             "sluice_swap_rows_total{layer=\"0\",result=\"miss\"} 990\n"
                             "sluice_swap_rows_total{layer=\"1\",result=\"hit\"} 800\n"
                             "sluice_swap_rows_total{layer=\"1\",result=\"miss\"} 200\n"
                             "sluice_swap_rows_total{layer=\"2\",result=\"miss\"} 5e1\n"
                             "sluice_swap_rows_total{layer=\"2\",result=\"hit\"} 950\n"
                             "sluice_decode_step_seconds_sum 20\n"
                             "sluice_decode_step_seconds_count 7\n"
                             "sluice_swap_bytes_total 1e10\n"
                             "sluice_swap_exposed_seconds_total 0\n";

static const sl_plan plan = {.width = 2048,
                             .hot_rows = 4096,
                             .tail_rows = 64,
                             .row_bytes = 656,
                             .index_page_device = 3 * 8448,
                             .hot_rows_bytes = 3 * 4160 * 656,
                             .hot_meta_bytes = 3 * 100000};

static sl_locality measured(void)
{
    sl_locality m;
    sl_err err = {0};
    ck_assert_msg(sl_locality_read(scrape, sizeof scrape - 1, 3, &m, &err) == SL_OK, "%s", err.text);
    return m;
}

START_TEST(reads_a_scrape)
{
    sl_locality m = measured();
    ck_assert_double_eq(m.hits[0], 10);
    ck_assert_double_eq(m.misses[0], 990);
    ck_assert_double_eq(m.misses[2], 50);
    ck_assert_double_eq(m.step_seconds, 20);
    /* not measured: bytes over link */
    ck_assert_double_eq_tol(sl_locality_swap_share(&m, 50e9), 0.01, 1e-12);
    m.exposed_seconds = 5;
    ck_assert_double_eq_tol(sl_locality_swap_share(&m, 50e9), 0.25, 1e-12);
    m.exposed_seconds = 50;
    ck_assert_double_eq(sl_locality_swap_share(&m, 50e9), 1);
}
END_TEST

START_TEST(refuses_what_is_wrong)
{
    static const struct {
        const char *text, *says;
    } bad[] = {
        {"", "no sluice_swap_rows_total"},
        {"sluice_decode_step_seconds_sum 3\n", "no sluice_swap_rows_total"},
        {"sluice_swap_rows_total{layer=\"3\",result=\"hit\"} 1\n", "3 layers"},
        {"sluice_swap_rows_total{layer=\"-1\",result=\"hit\"} 1\n", "3 layers"},
        {"sluice_swap_rows_total{layer=\"\",result=\"hit\"} 1\n", "3 layers"},
        {"sluice_swap_rows_total{result=\"hit\"} 1\n", "3 layers"},
        {"sluice_swap_rows_total{layer=\"1\",result=\"hit\"} many\n", "no number"},
        {"sluice_swap_rows_total{layer=\"1\",result=\"hit\"} nan\n", "no number"},
        {"sluice_swap_rows_total{layer=\"1\",result=\"hit\"} -4\n", "no number"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        sl_locality m;
        sl_err err = {0};
        ck_assert_int_eq(sl_locality_read(bad[i].text, strlen(bad[i].text), 3, &m, &err), SL_ERR_INVALID);
        ck_assert_msg(strstr(err.text, bad[i].says), "%zu: %s", i, err.text);
    }
}
END_TEST

/* Swapping takes almost no time: no layer is worth being resident. Layers without locality keep only their
 * selection, the other layers share the rows that these give up. The bytes of a slot do not change. */
START_TEST(capacity_moves_to_locality)
{
    sl_locality m = measured();
    int32_t rows[3];
    sl_locality_choose(&m, &plan, 65536, 0.001, rows);
    ck_assert_int_eq(rows[0], 2048);
    ck_assert_int_eq(rows[1], 4096 + 1024);
    ck_assert_int_eq(rows[2], 4096 + 1024);
    ck_assert_int_le(rows[0] + rows[1] + rows[2], 3 * plan.hot_rows);
}
END_TEST

START_TEST(resident_when_it_pays)
{
    sl_locality m = measured();
    int32_t rows[3];
    sl_locality_choose(&m, &plan, 16384, 0.6, rows);
    ck_assert_int_eq(rows[0], SL_HOT_RESIDENT); /* 990 of 1,240 misses */
    ck_assert_int_eq(rows[1], 4096);
    ck_assert_int_eq(rows[2], 4096);
    /* the same at a context where that layer's rows outweigh what they save */
    sl_locality_choose(&m, &plan, 1 << 20, 0.3, rows);
    ck_assert_int_eq(rows[0], 2048);
    /* a context that fits the hot buffer costs nothing */
    sl_locality_choose(&m, &plan, 4000, 0.1, rows);
    for (int l = 0; l < 3; l++)
        ck_assert_int_eq(rows[l], SL_HOT_RESIDENT);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("locality");
    TCase *t = tcase_create("locality");
    tcase_add_test(t, reads_a_scrape);
    tcase_add_test(t, refuses_what_is_wrong);
    tcase_add_test(t, capacity_moves_to_locality);
    tcase_add_test(t, resident_when_it_pays);
    suite_add_tcase(s, t);
    return run_suite(s);
}
