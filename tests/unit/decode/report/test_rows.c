/*
 * Metrics as rows (decode/report/rows.h): a series shows the number that its row names, whatever its type is; counters grow with
 * it, and two rows of one counter add up; arrays and names become labels.
 */
#include "decode/report/rows.h"

#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/run_suite.h"

typedef struct numbers {
    struct {
        uint64_t stale, bytes, ns;
    } in;
    uint64_t more_stale, misses[5], pages;
    int64_t cached;
    int32_t leases;
    double rate;
} numbers;

static const char *const reasons[] = {"absent", "damaged", "io", "late", "room"};

static const sl_series_row rows[] = {
    SL_SERIES(numbers, in.stale, "sluice_messages_dropped_total", "stale"),
    SL_SERIES(numbers, more_stale, "sluice_messages_dropped_total", "stale"),
    SL_SERIES(numbers, in.bytes, "sluice_pull_bytes_total"),
    SL_SERIES(numbers, in.ns, "sluice_pull_seconds_total"),
    SL_SERIES_EACH(numbers, misses, "sluice_tier_miss_pages_total", reasons, "@0"),
    SL_SERIES(numbers, pages, "sluice_tier_pages", "@0"),
    SL_SERIES(numbers, cached, "sluice_tenant_cached_pages", "@0", "@1"),
    SL_SERIES(numbers, leases, "sluice_lend_leases"),
    SL_SERIES(numbers, rate, "sluice_tier_read_rate_bytes", "@0"),
};

static sl_metrics *m;
static sl_series_list *r;

static uint64_t counter(const char *name, const char *const *labels)
{
    return sl_counter_value(sl_metrics_counter(m, name, labels));
}

static double gauge(const char *name, const char *const *labels)
{
    return sl_gauge_value(sl_metrics_gauge(m, name, labels));
}

START_TEST(series_show_the_numbers)
{
    numbers n = {.in = {3, 100, 2000000000}, .more_stale = 4, .cached = -7, .leases = -2, .rate = 0.5};
    n.misses[3] = 11;
    n.pages = 1ull << 40;
    ck_assert_int_eq(sl_metrics_create(SL_METRICS_DECODE, &m), SL_OK);
    ck_assert_int_eq(sl_series_open(m, rows, SL_COUNT(rows), SL_LABELS("disk", "blue"), &r, NULL), SL_OK);
    for (int turn = 0; turn < 2; turn++) { /* numbers that stay change nothing */
        sl_series_show(r, &n);
        ck_assert_uint_eq(counter("sluice_messages_dropped_total", SL_LABELS("stale")), 7);
        ck_assert_uint_eq(counter("sluice_pull_bytes_total", NULL), 100);
        ck_assert_uint_eq(counter("sluice_pull_seconds_total", NULL), 2000000000);
        ck_assert_uint_eq(counter("sluice_tier_miss_pages_total", SL_LABELS("disk", "late")), 11);
        ck_assert_uint_eq(counter("sluice_tier_miss_pages_total", SL_LABELS("disk", "io")), 0);
        ck_assert(gauge("sluice_tier_pages", SL_LABELS("disk")) == 1099511627776.0);
        ck_assert(gauge("sluice_tenant_cached_pages", SL_LABELS("disk", "blue")) == -7);
        ck_assert(gauge("sluice_lend_leases", NULL) == -2);
        ck_assert(gauge("sluice_tier_read_rate_bytes", SL_LABELS("disk")) == 0.5);
    }
    n.in.stale = 10;
    n.more_stale = 5;
    n.misses[3]++;
    n.leases = 6;
    sl_series_show(r, &n);
    ck_assert_uint_eq(counter("sluice_messages_dropped_total", SL_LABELS("stale")), 15);
    ck_assert_uint_eq(counter("sluice_tier_miss_pages_total", SL_LABELS("disk", "late")), 12);
    ck_assert(gauge("sluice_lend_leases", NULL) == 6);
    sl_series_close(r);
    sl_metrics_destroy(m);
}
END_TEST

/* The series of all rows exist as soon as the table is opened, so that a scraper finds them with 0. */
START_TEST(series_exist_from_the_start)
{
    ck_assert_int_eq(sl_metrics_create(SL_METRICS_DECODE, &m), SL_OK);
    ck_assert_int_eq(sl_series_open(m, rows, SL_COUNT(rows), SL_LABELS("disk", "blue"), &r, NULL), SL_OK);
    char *text = sl_metrics_text(m);
    for (size_t i = 0; i < SL_COUNT(reasons); i++) {
        char line[128];
        snprintf(line, sizeof line, "sluice_tier_miss_pages_total{tier=\"disk\",reason=\"%s\"} 0",
                 reasons[i]);
        ck_assert_msg(strstr(text, line) != NULL, "%s", line);
    }
    ck_assert_ptr_nonnull(strstr(text, "sluice_tenant_cached_pages{tier=\"disk\",tenant=\"blue\"} 0"));
    free(text);
    sl_series_close(r);
    sl_metrics_destroy(m);
}
END_TEST

START_TEST(without_metrics_nothing_is_shown)
{
    const numbers n = {0};
    ck_assert_int_eq(sl_series_open(NULL, rows, SL_COUNT(rows), SL_LABELS("disk", "blue"), &r, NULL), SL_OK);
    ck_assert_ptr_null(r);
    sl_series_show(r, &n);
    sl_series_close(r);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("rows");
    TCase *t = tcase_create("rows");
    tcase_add_test(t, series_show_the_numbers);
    tcase_add_test(t, series_exist_from_the_start);
    tcase_add_test(t, without_metrics_nothing_is_shown);
    suite_add_tcase(s, t);
    return run_suite(s);
}
