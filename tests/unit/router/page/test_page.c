/* The live page without a router: figures from a worker's metrics, quantiles of histograms, and its texts. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "router/page/figures.h"
#include "router/page/history.h"
#include "router/page/page.h"
#include "tests/unit/run_suite.h"

START_TEST(figures_of_a_page)
{
    static sl_figures f;
    static const char text[] = "# HELP sluice_kv_pages Pages.\n# TYPE sluice_kv_pages gauge\n"
                               "sluice_kv_pages{state=\"total\"} 234\nsluice_kv_pages{state=\"free\"} 70\n"
                               "sluice_decode_step_seconds_sum 18.5\nsluice_decode_step_seconds_count 100\n"
                               "sluice_swap_rows_total{layer=\"0\",result=\"hit\"} 5\n"
                               "sluice_swap_rows_total{layer=\"2\",result=\"miss\"} 7\n"
                               "sluice_prefill_reused_tokens_total{source=\"local\"} 3\n"
                               "sluice_prefill_reused_tokens_total{source=\"remote\"} 4\n"
                               "sluice_tier_pages{tier=\"redis\"} 9\nsluice_unknown 1";
    sl_figures_read(text, sizeof text - 1, &f);
    ck_assert(f.pages_total == 234 && f.pages_free == 70 && f.step_seconds == 18.5 && f.steps == 100);
    ck_assert(f.n_layers == 3 && f.hits[0] == 5 && f.misses[2] == 7 && f.reused_tokens == 7 &&
              f.tier_pages[2] == 9);
}
END_TEST

/* What is no number of such a page is left out, and what follows is still read. */
START_TEST(figures_of_hostile_lines)
{
    static const char *const bad[] = {
        "sluice_decode_step_seconds_sum nan",
        "sluice_decode_step_seconds_sum -5",
        "sluice_decode_step_seconds_sum inf",
        "sluice_decode_step_seconds_sum 1 2 x",
        "sluice_decode_step_seconds_sum",
        "sluice_swap_rows_total{layer=\"-1\",result=\"hit\"} 5",
        "sluice_swap_rows_total{layer=\"512\",result=\"hit\"} 5",
        "sluice_swap_rows_total{layer=\"\",result=\"hit\"} 5",
        "sluice_swap_rows_total{layer=\"99999999999999999999\",result=\"hit\"} 5",
        "sluice_swap_rows_total} {5",
        "{",
        "} 1",
    };
    static sl_figures f;
    char text[4096];
    for (size_t i = 0; i < SL_COUNT(bad); i++) {
        snprintf(text, sizeof text, "%s\nsluice_decode_idle_seconds_total 2\n", bad[i]);
        sl_figures_read(text, strlen(text), &f);
        ck_assert_msg(f.step_seconds == 0 && f.n_layers == 0 && f.idle_seconds == 2, "%s", bad[i]);
    }
    memset(text, 'x', sizeof text);
    sl_figures_read(text, sizeof text, &f);
    ck_assert(f.idle_seconds == 0);
}
END_TEST

/* The estimate is within the bucket that has the value of that rank. */
START_TEST(quantiles)
{
    static const double bounds[] = {0.1, 0.2, 0.5, 1, 2};
    enum { N = 5 };
    srand(7);
    for (int round = 0; round < 200; round++) {
        uint64_t counts[N + 1], total = 0, below = 0;
        for (int i = 0; i <= N; i++)
            total += counts[i] = (uint64_t)(rand() % 10);
        const double q = (rand() % 100 + 1) / 100.0, v = sl_history_quantile(q, counts, bounds, N);
        if (!total) {
            ck_assert(v < 0);
            continue;
        }
        const uint64_t rank = (uint64_t)ceil(q * (double)total - 1e-9);
        int in = 0;
        while (in < N && below + counts[in] < rank)
            below += counts[in++];
        ck_assert_msg(in == N ? v == bounds[N - 1] : v >= (in ? bounds[in - 1] : 0) && v <= bounds[in],
                      "%g of bucket %d: %g", q, in, v);
    }
}
END_TEST

START_TEST(history_of_a_router)
{
    sl_router_stats s;
    sl_history *h = sl_history_create();
    ck_assert_int_eq(sl_router_stats_init(&s, "m"), SL_OK);
    uint64_t now = 1000000000;
    sl_history_tick(h, &s, now);
    sl_counter_add(s.requests.generated_tokens, 500);
    sl_histogram_observe(s.requests.ttft, 0.3);
    sl_router_stats_request(&s, "chat", "failed");
    sl_history_tick(h, &s, now + 5000000000);
    json_t *o = sl_history_json(h, now);
    ck_assert_uint_eq(json_array_size(json_object_get(o, "running")), 0); /* not due */
    json_decref(o);
    for (int i = 1; i <= SL_HISTORY_STEPS + 5; i++)
        sl_history_tick(h, &s, now + (uint64_t)i * SL_HISTORY_STEP_S * 1000000000);
    o = sl_history_json(h, now);
    ck_assert_uint_eq(json_array_size(json_object_get(o, "ttft_p50_s")), SL_HISTORY_STEPS);
    ck_assert(json_is_null(json_array_get(json_object_get(o, "ttft_p50_s"), SL_HISTORY_STEPS - 1)));
    json_decref(o);
    sl_history_free(h);

    h = sl_history_create();
    sl_history_tick(h, &s, now);
    sl_counter_add(s.requests.generated_tokens, 500);
    sl_histogram_observe(s.requests.ttft, 0.3);
    sl_router_stats_request(&s, "chat", "failed");
    sl_history_tick(h, &s, now + 10000000000);
    o = sl_history_json(h, now);
    ck_assert(json_real_value(json_array_get(json_object_get(o, "output_tokens_per_s"), 0)) == 50);
    const double p50 = json_real_value(json_array_get(json_object_get(o, "ttft_p50_s"), 0));
    ck_assert_msg(p50 > 0.1 && p50 < 1, "%g", p50);
    json_decref(o);
    o = sl_history_errors(h);
    ck_assert_int_ge(json_integer_value(json_object_get(o, "failed")), 1);
    json_decref(o);
    sl_history_free(h);
    sl_router_stats_free(&s);
}
END_TEST

/* The page loads nothing from elsewhere and puts no value in as markup. */
START_TEST(texts)
{
    static const char *const paths[] = {"/", "/page.css", "/page.js"};
    static const char *const never[] = {
        "http:",   "https:", "innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(",
        "@import", "url(",   " onclick",  " onload"};
    const char *type;
    size_t n;
    for (size_t i = 0; i < SL_COUNT(paths); i++) {
        const char *bytes = sl_page_text(paths[i], &type, &n);
        ck_assert_ptr_nonnull(bytes);
        for (size_t k = 0; k < SL_COUNT(never); k++) {
            const char *found = memmem(bytes, n, never[k], strlen(never[k]));
            const bool name_of_svg = found && strncmp(found, "http://www.w3.org/2000/svg", 26) == 0;
            ck_assert_msg(!found || name_of_svg, "%s: %s", paths[i], never[k]);
        }
    }
    ck_assert_ptr_null(sl_page_text("/page.html", &type, &n));
    ck_assert(strstr(sl_page_policy, "default-src 'none'") && !strstr(sl_page_policy, "unsafe"));
}
END_TEST

int main(void)
{
    Suite *s = suite_create("page");
    TCase *c = tcase_create("page");
    tcase_add_test(c, figures_of_a_page);
    tcase_add_test(c, figures_of_hostile_lines);
    tcase_add_test(c, quantiles);
    tcase_add_test(c, history_of_a_router);
    tcase_add_test(c, texts);
    suite_add_tcase(s, c);
    return run_suite(s);
}
