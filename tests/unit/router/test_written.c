/* How long tokens take to the sockets: which messages are counted, and with which time. */
#include "tests/unit/router/harness.h"
#include "tests/unit/run_suite.h"

static uint64_t counted(const harness *h, bool from_step)
{
    return sl_histogram_count(from_step ? h->r->link.written.from_step : h->r->link.written.from_arrival);
}

/* Whole requests over mock workers on this host, and on one with another clock. */
static void run_requests(uint64_t clock)
{
    harness h;
    h_init(&h);
    h.mo.clock = clock;
    h_open_cluster(&h, 1, 1);
    client c[3] = {0};
    for (int i = 0; i < 3; i++)
        h_ask(&h, &c[i], 70, 20);
    ck_assert_uint_eq(counted(&h, false), 0);
    for (int i = 0; i < 3; i++)
        h_expect(&h, &c[i], 70, 20, 5000);
    h_run(&h, 3);
    const uint64_t n = counted(&h, false);
    ck_assert_uint_ge(n, 19); /* tokens of one step come together, and those of a stream in its own steps */
    ck_assert_uint_le(n, 3 * 20);
    if (clock)
        ck_assert_uint_eq(counted(&h, true), 0);
    else
        ck_assert(counted(&h, true) >= 19 && counted(&h, true) <= n); /* first tokens follow from no step */
    for (int i = 0; i < 3; i++)
        sl_group_release(c[i].group);
    h_close(&h);
}

START_TEST(messages_with_tokens_are_counted)
{
    run_requests(0);
    run_requests(12345);
}
END_TEST

/* A message counts once, when nothing waits any more; more than there is room for in one turn are left out. */
START_TEST(each_counts_once)
{
    sl_metrics *m;
    sl_written w = {0};
    ck_assert_int_eq(sl_metrics_create(SL_METRICS_ROUTER, &m), SL_OK);
    sl_written_open(&w, m);
    const sl_histogram *all = w.from_arrival, *steps = w.from_step;
    const uint64_t now = sl_now_ns();
    const sl_stamp here = {sl_host_clock(), now}, elsewhere = {sl_host_clock() ^ 1, now}, none = {0};
    sl_written_done(&w);
    sl_written_note(&w, &here, now);
    sl_written_note(&w, &elsewhere, now);
    sl_written_note(&w, &none, now);
    ck_assert_uint_eq(sl_histogram_count(all), 0);
    sl_written_done(&w);
    sl_written_done(&w);
    ck_assert_uint_eq(sl_histogram_count(all), 3);
    ck_assert_uint_eq(sl_histogram_count(steps), 1);
    for (int i = 0; i < 2 * SL_WRITTEN_MOST; i++)
        sl_written_note(&w, &here, now);
    sl_written_done(&w);
    ck_assert_uint_eq(sl_histogram_count(all), 3 + SL_WRITTEN_MOST);
    sl_metrics_destroy(m);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("router/written");
    TCase *t = tcase_create("written");
    tcase_set_timeout(t, 60);
    tcase_add_test(t, messages_with_tokens_are_counted);
    tcase_add_test(t, each_counts_once);
    suite_add_tcase(s, t);
    return run_suite(s);
}
