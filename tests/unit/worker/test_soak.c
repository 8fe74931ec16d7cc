/*
 * Many requests at once, more than fit, with aborts at random moments and shared prefixes: every stream is right, and
 * every page is free at the end. The numbers of stories are those of the project's list of disaggregation failures.
 */
#include "tests/unit/run_suite.h"
#include "tests/unit/worker/cluster.h"

static cluster c;

/* Stories 2, 4, 17, 21, 25: many requests, more than fit, with aborts at random moments and shared prefixes. */
START_TEST(soak)
{
    enum { N = RUN_SUITE_SANITIZED ? 120 : 300, AT_ONCE = 24 };
    cluster_opts o = cluster_defaults();
    o.n_prefill = 2;
    o.n_decode = 2;
    o.decode_pages = 40;
    o.prefill_pages = 40;
    o.max_batch = 4;
    o.max_waiting = 3;
    o.times.prefill_layer_us = 200;
    o.times.decode_layer_us = 50;
    o.prefill_faults.delay_ns = _i ? 3000000 : 0;
    cluster_start(&c, &o);
    uint64_t seed = 7 + (uint64_t)_i;
    int made = 0, aborted = 0;
    uint64_t end = sl_now_ns() + 90000000000u * CLUSTER_PATIENCE;
    while (made < N || !cluster_idle(&c)) {
        int open = 0;
        for (int i = 0; i < c.n_req; i++)
            open += c.req[i].state < REQ_DONE;
        if (made < N && open < AT_ONCE) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            /* five prompts, shared */
            cluster_ask(&c, 1 + (int)(seed >> 33) % 400, 1 + (int)(seed >> 45) % 60, (seed >> 20) % 5);
            made++;
        }
        cluster_poll(&c, 1);
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        creq *victim = &c.req[(seed >> 33) % (uint64_t)c.n_req];
        if ((seed >> 50) % 16 == 0 && victim->state < REQ_DONE && victim->state != REQ_NEW) {
            cluster_abort(&c, victim, SL_ERR_CANCELLED);
            aborted++;
        }
        if (sl_now_ns() > end)
            ck_abort_msg("soak hangs: %d made, %d open", made, open);
    }
    cluster_finish(&c, 1);
    ck_assert_int_gt(aborted, 5);
    ck_assert_int_lt(aborted, N);
    cluster_wait_pages(&c, 0);
    cluster_stop(&c);
}
END_TEST

int main(void)
{
    sl_log_init(getenv("SL_TEST_LOG") ? SL_LOG_DEBUG : SL_LOG_ERROR, false, "test");
    Suite *s = suite_create("soak");
    TCase *t = tcase_create("soak");
    tcase_set_timeout(t, 1000);
    tcase_add_loop_test(t, soak, 0, 2);
    suite_add_tcase(s, t);
    return run_suite(s);
}
