/*
 * Client calls: admission, the bound of the queue, several requests of one prompt, release from inside the sink.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/unit/router/harness.h"

static harness h;

static void setup(void)
{
    h_init(&h);
}

static void teardown(void)
{
    h_close(&h);
}

START_TEST(queue_is_bounded)
{
    h.o.request.max_queue = 3;
    h.mo.max_batch = 1; /* room for 2 placed requests */
    h_open_cluster(&h, 1, 1);
    sl_mock_knob(h.w[1])->hold = true;
    client c[6] = {{0}};
    sl_err err = {""};
    sl_status st = SL_OK;
    int n = 0;
    for (; n < 6 && !st; n++) {
        sl_request_spec s;
        h_spec(&s, 70, 4);
        st = h_try_submit(&h, &c[n], &s, &err);
        if (st)
            sl_request_spec_free(&s);
    }
    ck_assert_int_eq(st, SL_ERR_EXHAUSTED);
    ck_assert_int_eq(n, 6); /* two placed, three waiting, the sixth refused */
    sl_mock_knob(h.w[1])->hold = false;
    for (int i = 0; i < 5; i++) {
        h_expect(&h, &c[i], 70, 4, 5000);
        sl_group_release(c[i].group);
    }
    H_UNTIL(&h, h_clean(&h), 1000);
}
END_TEST

/* Fills the places of a small cluster that holds everything back, in the name of this client. */
static sl_status ask_as(const char *name, client *c, size_t n_prompt, uint32_t n)
{
    sl_request_spec s;
    sl_err err = {""};
    h_spec(&s, n_prompt, 4);
    s.n = n;
    sl_copy_text(s.client, sizeof s.client, name);
    sl_status st = h_try_submit(&h, c, &s, &err);
    if (st)
        sl_request_spec_free(&s);
    return st;
}

static void finish_all(client *c, int n)
{
    for (int i = 0; i < n; i++) {
        if (!c[i].group)
            continue;
        H_UNTIL(&h, h_done(&c[i]), 5000);
        sl_group_release(c[i].group);
    }
    H_UNTIL(&h, h_clean(&h), 1000);
}

/* The bound is looked at before anything is added: what is refused leaves nothing in the queue. */
START_TEST(one_call_does_not_fill_the_queue)
{
    h.o.request.max_queue = 16;
    h.mo.max_batch = 1;
    h_open_cluster(&h, 1, 1);
    sl_mock_knob(h.w[1])->hold = true;
    static client c[24];
    memset(c, 0, sizeof c);
    ck_assert_int_eq(ask_as("greedy", &c[0], 70, 128), SL_ERR_INVALID); /* never fits: no retry helps */
    ck_assert_uint_eq(h.r->queue.length, 0);
    ck_assert_uint_eq(h.r->requests.active, 0);
    ck_assert_int_eq(ask_as("greedy", &c[0], 70, 8), SL_OK);
    ck_assert_int_eq(ask_as("greedy", &c[1], 70, 8), SL_ERR_EXHAUSTED);
    int n = 1;
    while (n < 20 && ask_as("greedy", &c[n], 70, 1) == SL_OK)
        n++;
    ck_assert_uint_lt(h.r->queue.length, h.o.request.max_queue);
    ck_assert_int_eq(ask_as("honest", &c[20], 70, 1), SL_OK);
    ck_assert_uint_eq(sl_counter_value(sl_metrics_counter(h.r->stats.m, "sluice_requests_total",
                                                          SL_LABELS("generate", "rejected"))) > 0,
                      true);
    sl_mock_knob(h.w[1])->hold = false;
    finish_all(c, 24);
}
END_TEST

/* The largest call that ever fits is four fifths of the queue and of the places together; what is larger is the client's
 * error, and not a reason to try again. While there is no worker of a role, nothing is called impossible. */
START_TEST(the_largest_call)
{
    h.o.request.max_queue = 4;
    h.mo.max_batch = 2;
    h_open_cluster(&h, 1, 1);
    uint32_t free_places, places;
    sl_places(h.r, &free_places, &places);
    ck_assert_uint_eq(places, 3); /* a batch of 2, and a quarter of its size that waits */
    const uint32_t most = (4 + 3 + 1) * 4 / 5;
    client c = {0};
    ck_assert_int_eq(ask_as("one", &c, 70, most + 1), SL_ERR_INVALID);
    ck_assert_int_eq(ask_as("one", &c, 70, most), SL_OK);
    finish_all(&c, 1);

    sl_lane lane = {0};
    h.r->o.request.max_queue = 0;
    sl_mock_kill(h.w[1]);
    H_UNTIL(&h, sl_members_count(h.r, SL_ROLE_DECODE) == 0, 5000);
    ck_assert_int_eq(sl_queue_check(h.r, &lane, 1, NULL), SL_ERR_EXHAUSTED);
}
END_TEST

/* Retry-After: the time in which the queue of now is served at the rate of now, from 1 to 60 seconds. */
START_TEST(retry_after_is_the_time_of_the_queue)
{
    h_open_cluster(&h, 1, 1);
    const struct {
        double rate;
        uint32_t length, seconds;
    } cases[] = {{0, 0, 1}, {0, 5, 60}, {2, 9, 5}, {2, 0, 1}, {0.5, 9, 20}, {100, 9, 1}, {0.1, 1000, 60}};
    sl_queue kept = h.r->queue;
    for (size_t i = 0; i < SL_COUNT(cases); i++) {
        h.r->queue.rate = cases[i].rate;
        h.r->queue.length = cases[i].length;
        ck_assert_uint_eq(sl_cluster_retry_after_s(h.r), cases[i].seconds);
    }
    h.r->queue = kept;
}
END_TEST

/* Four clients ask one after the other, the first one six times: they are served in turn. */
START_TEST(clients_are_served_in_turn)
{
    h.mo.max_batch = 1;
    h_open_cluster(&h, 1, 1);
    sl_mock_knob(h.w[1])->hold = true;
    client c[12] = {{0}};
    const char *const names[] = {"a", "a", "a", "a", "a", "a", "b", "c", "d"};
    const int n = (int)SL_COUNT(names);
    for (int i = 0; i < n; i++)
        ck_assert_int_eq(ask_as(names[i], &c[i], 70, 1), SL_OK);
    h_run(&h, 20); /* the first two of a are placed */
    sl_mock_knob(h.w[1])->hold = false;
    int order[SL_COUNT(names)], at = 0;
    bool seen[SL_COUNT(names)] = {false};
    while (at < n) {
        h_turn(&h);
        for (int i = 0; i < n; i++) {
            if (!seen[i] && h_request(&c[i], 0)->attempt.n) {
                seen[i] = true;
                order[at++] = i;
            }
        }
    }
    for (int k = 6; k < n; k++) /* of the six first places, two went to a before the others came */
        ck_assert_msg(order[k] < 6, "request %d was the last but %d", order[k], n - 1 - k);
    finish_all(c, n);
}
END_TEST

START_TEST(weights_share_tokens)
{
    h_open(&h); /* no worker: only the order is looked at */
    sl_lane *a = sl_queue_lane(h.r, "a", 3), *b = sl_queue_lane(h.r, "b", 1);
    ck_assert_ptr_eq(a, sl_queue_lane(h.r, "a", 3));
    sl_group ga = {.r = h.r, .lane = a}, gb = {.r = h.r, .lane = b};
    sl_request q[8];
    memset(q, 0, sizeof q);
    for (int i = 0; i < 8; i++) {
        q[i].group = i < 4 ? &ga : &gb;
        sl_queue_push(h.r, &q[i], false);
    }
    int of_a = 0;
    for (int i = 0; i < 4; i++) {
        sl_request *next = sl_queue_next(h.r, 1);
        of_a += next->group == &ga;
        sl_queue_charge(next, 100);
        sl_queue_remove(h.r, next);
    }
    ck_assert_int_eq(of_a, 3);
    for (int i = 0; i < 8; i++)
        sl_queue_remove(h.r, &q[i]);
    ck_assert_uint_eq(h.r->queue.length, 0);
}
END_TEST

/* A request that is refused pages while others pass gets a worker to itself until it has them. */
START_TEST(refused_pages_are_set_aside_in_the_end)
{
    h.mo.max_batch = 8;
    h.mo.total_pages = 24;
    h.mo.step_us = 1000;
    h_open_cluster(&h, 1, 1);
    client big = {0}, small[6] = {{0}};
    for (int i = 0; i < 6; i++)
        h_ask(&h, &small[i], 200, 12);
    h_run(&h, 5);
    h_ask(&h, &big, 1400, 4); /* 22 pages and a little of 24 */
    uint64_t end = sl_now_ns() + 5000 * SL_MS * H_PATIENCE;
    while (!h_done(&big)) {
        ck_assert_msg(sl_now_ns() < end, "the long one starves");
        h_turn(&h);
        for (int i = 0; i < 6; i++) {
            if (!h_done(&small[i]))
                continue;
            sl_group_release(small[i].group);
            h_turn(&h);
            memset(&small[i], 0, sizeof small[i]);
            h_ask(&h, &small[i], 200, 12);
        }
    }
    ck_assert_uint_eq(h_request(&big, 0)->aside.decode, 0);
    for (const sl_member *w = h.r->cluster.members; w; w = w->next)
        ck_assert_uint_eq(w->set_aside, 0);
    h_check_stream(&h, &big.s[0], 1400, 4);
    sl_group_release(big.group);
    finish_all(small, 6);
}
END_TEST

/* Several are refused for long, so that one gets the worker. Whoever it is, none of the others stands in its way. */
START_TEST(a_worker_set_aside_is_used)
{
    h_open_cluster(&h, 1, 1);
    sl_mock_knob(h.w[1])->full = 32;
    client c[4] = {{0}};
    for (int i = 0; i < 4; i++)
        h_ask(&h, &c[i], 70, 4);
    H_UNTIL(&h, !sl_mock_knob(h.w[1])->full, 20000);
    ck_assert_uint_ge(sl_counter_value(h.r->stats.placement.set_aside_pages), 1);
    for (int i = 0; i < 4; i++) {
        h_expect(&h, &c[i], 70, 4, 5000);
        sl_group_release(c[i].group);
    }
    H_UNTIL(&h, h_clean(&h), 1000);
    for (const sl_member *w = h.r->cluster.members; w; w = w->next)
        ck_assert_uint_eq(w->set_aside, 0);
}
END_TEST

START_TEST(choices_wait_for_the_first_prefill)
{
    h.mo.prefill_us = 300000; /* many times what a busy machine takes for the 10 ms below */
    h_open_cluster(&h, 1, 1);
    client c = {0};
    sl_request_spec s;
    h_spec(&s, 200, 6);
    s.n = 4;
    h_submit(&h, &c, &s);
    h_run(&h, 10);
    ck_assert_uint_eq(sl_mock_count(h.w[1])->received[SL_MSG_RESERVE], 1);
    H_UNTIL(&h, h_done(&c), 20000);
    for (int i = 0; i < 4; i++)
        h_check_stream(&h, &c.s[i], 200, 6);
    h_release(&h, &c, 1000);
}
END_TEST

START_TEST(choices_go_on_when_the_first_fails)
{
    h_open_cluster(&h, 1, 1);
    sl_mock_knob(h.w[0])->fail_final = 1;
    client c = {0};
    sl_request_spec s;
    h_spec(&s, 200, 6);
    s.n = 2;
    h_submit(&h, &c, &s);
    H_UNTIL(&h, h_done(&c), 3000);
    ck_assert_int_eq(c.s[0].status, SL_ERR_INTERNAL);
    h_check_stream(&h, &c.s[1], 200, 6);
    h_release(&h, &c, 1000);
}
END_TEST

static void release_in_sink(client *c, const sl_output *o)
{
    if (o->completion_tokens == 5)
        sl_group_release(c->group);
}

START_TEST(release_from_inside_the_sink)
{
    h_open_cluster(&h, 1, 1);
    client c = {.hook = release_in_sink};
    sl_request_spec s;
    h_spec(&s, 70, 30);
    s.n = 3;
    h_submit(&h, &c, &s);
    H_UNTIL(&h, !h.r->requests.active, 2000);
    ck_assert_int_eq(c.s[0].ends, 0);
    H_UNTIL(&h, h_clean(&h), 1000);
}
END_TEST

START_TEST(admission_names_the_reason)
{
    h_open_cluster(&h, 1, 1);
    client c = {0};
    sl_err err = {""};
    sl_request_spec s;
    h_spec(&s, 0, 5);
    ck_assert_int_eq(h_try_submit(&h, &c, &s, &err), SL_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(err.text, "prompt"));
    sl_request_spec_free(&s);
    h_spec(&s, 4096, 5);
    ck_assert_int_eq(h_try_submit(&h, &c, &s, &err), SL_ERR_TOO_LARGE);
    sl_request_spec_free(&s);
    h_spec(&s, 4000, 500);
    ck_assert_int_eq(h_try_submit(&h, &c, &s, &err), SL_ERR_TOO_LARGE);
    ck_assert_ptr_nonnull(strstr(err.text, "max_tokens"));
    sl_request_spec_free(&s);
    h_spec(&s, 10, 5);
    s.prompts->ids[3] = 512;
    ck_assert_int_eq(h_try_submit(&h, &c, &s, &err), SL_ERR_INVALID);
    sl_request_spec_free(&s);
    h_spec(&s, 10, 0);
    ck_assert_int_eq(h_try_submit(&h, &c, &s, &err), SL_ERR_INVALID);
    sl_request_spec_free(&s);
    ck_assert_uint_eq(h.r->requests.active, 0);
}
END_TEST

int main(void)
{
    const h_case cases[] = {
        {queue_is_bounded, 0},
        {one_call_does_not_fill_the_queue, 0},
        {the_largest_call, 0},
        {retry_after_is_the_time_of_the_queue, 0},
        {clients_are_served_in_turn, 0},
        {weights_share_tokens, 0},
        {refused_pages_are_set_aside_in_the_end, 0},
        {a_worker_set_aside_is_used, 0},
        {choices_wait_for_the_first_prefill, 0},
        {choices_go_on_when_the_first_fails, 0},
        {release_from_inside_the_sink, 0},
        {admission_names_the_reason, 0},
    };
    return h_main("router/group", setup, teardown, cases, SL_COUNT(cases));
}
