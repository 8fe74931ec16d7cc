/*
 * The registry and its exposition: the table follows the rules of Prometheus, every documented series with known labels
 * exists from the start, values and histograms are right, labels are escaped, updates from many threads are all
 * counted, and docs/metrics.md is up to date (SL_UPDATE_REFERENCE=1 rewrites it).
 */
#include <ctype.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "base/metrics.h"
#include "tests/unit/generated.h"
#include "tests/unit/run_suite.h"

static sl_metrics *create(unsigned roles)
{
    sl_metrics *m;
    ck_assert_int_eq(sl_metrics_create(roles, &m), SL_OK);
    return m;
}

/* True when the exposition has this whole line. */
static bool has_line(sl_metrics *m, const char *line)
{
    char *text = sl_metrics_text(m);
    size_t n = strlen(line);
    bool found = false;
    for (const char *p = text; (p = strstr(p, line)) && !found; p++)
        found = (p == text || p[-1] == '\n') && p[n] == '\n';
    if (!found)
        fprintf(stderr, "no line \"%s\"\n", line);
    free(text);
    return found;
}

START_TEST(table_follows_the_rules)
{
    size_t n;
    const sl_metric_def *t = sl_metrics_describe(&n);
    for (size_t i = 0; i < n; i++) {
        const char *name = t[i].name;
        for (const char *p = name; *p; p++)
            ck_assert_msg(islower(*p) || isdigit(*p) || *p == '_' || *p == ':', "%s", name);
        size_t len = strlen(name);
        bool total = len > 6 && !strcmp(name + len - 6, "_total");
        ck_assert_msg(total == (t[i].kind == SL_METRIC_COUNTER), "%s: _total is for counters", name);
        ck_assert_msg((t[i].buckets != NULL) == (t[i].kind == SL_METRIC_HISTOGRAM), "%s: buckets", name);
        ck_assert_msg(t[i].roles &&
                          (t[i].roles == SL_METRICS_RANK || !(t[i].roles & ~(unsigned)SL_METRICS_ALL)),
                      "%s: roles", name);
        ck_assert_msg(strlen(t[i].help) > 8, "%s: help", name);
        for (size_t j = 0; j < i; j++)
            ck_assert_msg(strcmp(t[j].name, name), "%s twice", name);
        for (size_t b = 1; t[i].buckets && b < t[i].buckets->n; b++)
            ck_assert(t[i].buckets->bounds[b - 1] < t[i].buckets->bounds[b]);
    }
}
END_TEST

START_TEST(documented_series_exist_from_the_start)
{
    const unsigned roles[] = {SL_METRICS_ROUTER, SL_METRICS_PREFILL, SL_METRICS_DECODE};
    size_t n;
    const sl_metric_def *t = sl_metrics_describe(&n);
    for (size_t r = 0; r < SL_COUNT(roles); r++) {
        sl_metrics *m = create(roles[r]);
        char *text = sl_metrics_text(m);
        for (size_t i = 0; i < n; i++) {
            char type[128];
            snprintf(type, sizeof type, "# TYPE %s ", t[i].name);
            /* a metric with an open label appears with its first series */
            bool open = false;
            for (const char *p = t[i].labels; *p && !open; p += strcspn(p, ","), p += *p == ',')
                open = strcspn(p, "=") >= strcspn(p, ",");
            bool want = (t[i].roles & roles[r]) && !open;
            ck_assert_msg((strstr(text, type) != NULL) == want, "%s in role %u", t[i].name, roles[r]);
        }
        free(text);
        sl_metrics_destroy(m);
    }
    sl_metrics_destroy(NULL);
}
END_TEST

START_TEST(values)
{
    sl_metrics *m = create(SL_METRICS_ALL);
    sl_counter *c = sl_metrics_counter(m, "sluice_decode_tokens_total", NULL);
    sl_counter_add(c, 3);
    sl_counter_add(c, 4);
    ck_assert_uint_eq(sl_counter_value(c), 7);
    ck_assert(has_line(m, "sluice_decode_tokens_total 7"));
    sl_counter_add(sl_metrics_counter(m, "sluice_swap_exposed_seconds_total", NULL), 1500000000);
    ck_assert(has_line(m, "sluice_swap_exposed_seconds_total 1.5"));
    sl_gauge *g = sl_metrics_gauge(m, "sluice_kv_arena_bytes", NULL);
    sl_gauge_set(g, 268435456);
    ck_assert(has_line(m, "sluice_kv_arena_bytes 268435456"));
    sl_gauge_add(g, -268435455.5);
    ck_assert(has_line(m, "sluice_kv_arena_bytes 0.5"));
    sl_counter_add(sl_metrics_counter(m, "sluice_swap_rows_total", SL_LABELS("3", "hit")), 2);
    ck_assert(has_line(m, "sluice_swap_rows_total{layer=\"3\",result=\"hit\"} 2"));
    ck_assert(has_line(m, "sluice_workers{role=\"decode\",state=\"dead\"} 0"));
    ck_assert_ptr_eq(c, sl_metrics_counter(m, "sluice_decode_tokens_total", NULL));
    ck_assert(has_line(m, "# TYPE sluice_decode_tokens_total counter"));
    ck_assert(has_line(m, "# HELP sluice_decode_tokens_total Tokens produced."));
    sl_metrics_destroy(m);
}
END_TEST

START_TEST(histograms)
{
    sl_metrics *m = create(SL_METRICS_DECODE);
    sl_histogram *h = sl_metrics_histogram(m, "sluice_decode_step_seconds", NULL);
    sl_histogram_observe(h, 0.005); /* on a bound: belongs to it */
    sl_histogram_observe(h, 0.006);
    sl_histogram_observe(h, 100);
    ck_assert_uint_eq(sl_histogram_count(h), 3);
    ck_assert(has_line(m, "sluice_decode_step_seconds_bucket{le=\"0.005\"} 1"));
    ck_assert(has_line(m, "sluice_decode_step_seconds_bucket{le=\"0.01\"} 2"));
    ck_assert(has_line(m, "sluice_decode_step_seconds_bucket{le=\"2.5\"} 2"));
    ck_assert(has_line(m, "sluice_decode_step_seconds_bucket{le=\"+Inf\"} 3"));
    ck_assert(has_line(m, "sluice_decode_step_seconds_count 3"));
    ck_assert(has_line(m, "sluice_decode_step_seconds_sum 100.011"));
    sl_metrics_destroy(m);
    m = create(SL_METRICS_ROUTER);
    sl_histogram_observe(sl_metrics_histogram(m, "sluice_request_stage_seconds", SL_LABELS("prefill")),
                         0.001);
    ck_assert(has_line(m, "sluice_request_stage_seconds_bucket{stage=\"prefill\",le=\"0.001\"} 1"));
    ck_assert(has_line(m, "sluice_request_stage_seconds_count{stage=\"prefill\"} 1"));
    sl_metrics_destroy(m);
}
END_TEST

START_TEST(label_values_are_escaped)
{
    sl_metrics *m = create(SL_METRICS_ROUTER);
    sl_gauge_set(sl_metrics_gauge(m, "vllm:kv_cache_usage_perc", SL_LABELS("a\"b\\c\nd")), 0.25);
    ck_assert(has_line(m, "vllm:kv_cache_usage_perc{model_name=\"a\\\"b\\\\c\\nd\"} 0.25"));
    sl_metrics_destroy(m);
}
END_TEST

/* The values are compared one by one, so that neither texts that begin alike nor quotes make two series the same. */
START_TEST(series_are_found_by_their_values)
{
    static const char *const pairs[][2] = {{"stop", "x"},     {"sto", "px"},   {"", "stopx"},
                                           {"stopx", ""},     {"st", "op"},    {"s\"", "\"t"},
                                           {"a\",b=\"", "c"}, {"a", "b=\"\"c"}};
    sl_metrics *m = create(SL_METRICS_ROUTER);
    sl_counter *c[SL_COUNT(pairs)];
    for (size_t i = 0; i < SL_COUNT(pairs); i++) {
        c[i] = sl_metrics_counter(m, "sluice_http_responses_total", SL_LABELS(pairs[i][0], pairs[i][1]));
        sl_counter_add(c[i], i + 1);
    }
    for (size_t i = 0; i < SL_COUNT(pairs); i++) {
        char first[16], second[16]; /* the texts count, not their addresses */
        snprintf(first, sizeof first, "%s", pairs[i][0]);
        snprintf(second, sizeof second, "%s", pairs[i][1]);
        ck_assert_ptr_eq(sl_metrics_counter(m, "sluice_http_responses_total", SL_LABELS(first, second)),
                         c[i]);
        ck_assert_uint_eq(sl_counter_value(c[i]), i + 1);
    }
    sl_metrics_destroy(m);
}
END_TEST

START_TEST(without_a_registry)
{
    sl_counter_add(sl_metrics_counter(NULL, "anything", NULL), 1);
    sl_gauge_set(sl_metrics_gauge(NULL, "anything", NULL), 1);
    sl_gauge_add(NULL, 1);
    sl_histogram_observe(sl_metrics_histogram(NULL, "anything", NULL), 1);
    ck_assert_uint_eq(sl_counter_value(NULL), 0);
    ck_assert_uint_eq(sl_histogram_count(NULL), 0);
    ck_assert(sl_gauge_value(NULL) == 0);
}
END_TEST

START_TEST(unknown_name_aborts)
{
    sl_metrics_counter(create(SL_METRICS_ROUTER), "sluice_no_such_total", NULL);
}
END_TEST

START_TEST(wrong_label_count_aborts)
{
    sl_metrics_counter(create(SL_METRICS_DECODE), "sluice_swap_rows_total", SL_LABELS("3"));
}
END_TEST

enum { THREADS = 4, ROUNDS = 5000 };

static void *update(void *arg)
{
    sl_metrics *m = arg;
    sl_counter *c = sl_metrics_counter(m, "sluice_decode_tokens_total", NULL);
    sl_gauge *g = sl_metrics_gauge(m, "sluice_transport_peers", NULL);
    sl_histogram *h = sl_metrics_histogram(m, "sluice_decode_step_seconds", NULL);
    for (int i = 0; i < ROUNDS; i++) {
        sl_counter_add(c, 1);
        sl_gauge_add(g, 1);
        sl_histogram_observe(h, 0.5);
        if (i % 500 == 0) {
            char layer[16];
            snprintf(layer, sizeof layer, "%d", i / 500); /* all threads create the same new series */
            sl_counter_add(sl_metrics_counter(m, "sluice_swap_evictions_total", SL_LABELS(layer)), 1);
            free(sl_metrics_text(m));
        }
    }
    return NULL;
}

START_TEST(threads)
{
    sl_metrics *m = create(SL_METRICS_DECODE);
    pthread_t t[THREADS];
    for (int i = 0; i < THREADS; i++)
        pthread_create(&t[i], NULL, update, m);
    for (int i = 0; i < THREADS; i++)
        pthread_join(t[i], NULL);
    ck_assert(has_line(m, "sluice_decode_tokens_total 20000"));
    ck_assert(has_line(m, "sluice_transport_peers 20000"));
    ck_assert(has_line(m, "sluice_decode_step_seconds_count 20000"));
    ck_assert(has_line(m, "sluice_decode_step_seconds_sum 10000"));
    ck_assert(has_line(m, "sluice_swap_evictions_total{layer=\"9\"} 4"));
    sl_metrics_destroy(m);
}
END_TEST

START_TEST(reference_page_is_fresh)
{
    check_generated("docs/metrics.md", sl_metrics_reference());
}
END_TEST

int main(void)
{
    Suite *s = suite_create("metrics");
    TCase *t = tcase_create("metrics");
    tcase_set_timeout(t, 60);
    tcase_add_test(t, table_follows_the_rules);
    tcase_add_test(t, documented_series_exist_from_the_start);
    tcase_add_test(t, values);
    tcase_add_test(t, histograms);
    tcase_add_test(t, label_values_are_escaped);
    tcase_add_test(t, series_are_found_by_their_values);
    tcase_add_test(t, without_a_registry);
    tcase_add_test_raise_signal(t, unknown_name_aborts, SIGABRT);
    tcase_add_test_raise_signal(t, wrong_label_count_aborts, SIGABRT);
    tcase_add_test(t, threads);
    tcase_add_test(t, reference_page_is_fresh);
    suite_add_tcase(s, t);
    return run_suite(s);
}
