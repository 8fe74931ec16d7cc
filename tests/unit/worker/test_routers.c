/*
 * Several routers at once on the same workers, with real transport threads over loopback: both are served, and what
 * becomes of one (it dies, is silent, refuses, comes back, uses the same numbers) touches none of the other's requests.
 *
 * The two test routers count their request ids and worker ids from the same numbers, so every message that was taken
 * for one of the other router would be about a request that exists.
 */
#include "tests/unit/run_suite.h"
#include "tests/unit/worker/cluster.h"

static const uint64_t MS = 1000000;

static cluster a, b;

static void start(cluster_opts *o)
{
    o->second = &b;
    cluster_start(&a, o);
}

static void poll_both(int ms)
{
    uint64_t end = sl_now_ns() + (uint64_t)ms * MS;
    while (sl_now_ns() < end) {
        cluster_poll(&a, 1);
        cluster_poll(&b, 1);
    }
}

static bool joined(cluster *c)
{
    for (int i = 0; i < c->n; i++) {
        if (!c->w[i].id || !c->w[i].load.total_pages)
            return false;
    }
    return true;
}

static bool b_decodes(cluster *c)
{
    (void)c;
    for (int i = 0; i < b.n_req; i++) {
        if (b.req[i].n_tokens < b.req[i].n_prompt + 3)
            return false;
    }
    return true;
}

/* The requests in flight at b end as if nothing had happened: none failed, none began again. */
static void b_was_not_disturbed(void)
{
    cluster_until(&a, cluster_idle, 30, "requests end");
    cluster_check_streams(&b);
    for (int i = 0; i < b.n_req; i++)
        ck_assert_msg(b.req[i].attempts == 0 && b.req[i].retractions == 0, "request %d: %d attempts, %s", i,
                      b.req[i].attempts, b.req[i].reason);
}

START_TEST(both_are_served)
{
    cluster_opts o = cluster_defaults();
    o.n_prefill = o.n_decode = 2;
    o.decode_pages = 200;
    o.times.prefill_layer_us = 200;
    start(&o);
    for (int i = 0; i < 12; i++) {
        cluster_ask(&a, 1 + (i * 97) % 500, 10 + i * 5, 100 + (uint64_t)i);
        cluster_ask(&b, 1 + (i * 61) % 500, 10 + i * 5, 200 + (uint64_t)i);
    }
    poll_both(20);
    sl_msg flush = {.type = SL_MSG_FLUSH_CACHE};
    for (int i = 0; i < b.n; i++)
        cluster_send(&b.w[i], &flush);
    cluster_until(&a, cluster_idle, 60, "requests end");
    cluster_check_streams(&a);
    cluster_check_streams(&b);
    cluster_stop(&a);
}
END_TEST

/* Each router is told the whole prefix tree, whoever's requests made it. */
START_TEST(cache_events_go_to_both)
{
    cluster_opts o = cluster_defaults();
    start(&o);
    cluster_ask(&a, 500, 10, 1);
    cluster_until(&a, cluster_idle, 20, "the request");
    poll_both(50);
    const cworker *x = cluster_worker(&a, SL_ROLE_DECODE, 0), *y = cluster_worker(&b, SL_ROLE_DECODE, 0);
    ck_assert_uint_ge(x->kv_stored, 500 / 64);
    ck_assert_uint_eq(x->kv_stored, y->kv_stored);

    /* Everything is sent once more to the router that asks, and to no other. */
    uint64_t all = x->kv_stored;
    sl_msg resync = {.type = SL_MSG_KV_RESYNC};
    cluster_send(cluster_worker(&a, SL_ROLE_DECODE, 0), &resync);
    poll_both(100);
    ck_assert_uint_eq(x->kv_stored, 2 * all);
    ck_assert_uint_eq(y->kv_stored, all);
    cluster_stop(&a);
}
END_TEST

static bool swallow_reserved(cluster *c, cworker *w, const sl_msg *m)
{
    (void)c;
    (void)w;
    return m->type == SL_MSG_RESERVED;
}

/* a dies while its requests reserve, are computed and decode; b's go on. Then a comes back and is served. */
START_TEST(one_dies_in_the_middle)
{
    cluster_opts o = cluster_defaults();
    o.n_prefill = o.n_decode = 2;
    o.decode_pages = 200;
    o.times.prefill_layer_us = 500;
    o.times.decode_layer_us = 500;
    start(&o);
    for (int i = 0; i < 6; i++)
        cluster_ask(&b, 100 + i * 40, 60, 300 + (uint64_t)i);
    cluster_until(&a, b_decodes, 30, "streams at b");
    for (int i = 0; i < 6; i++)
        cluster_ask(&a, 60 + i * 90, 60, 400 + (uint64_t)i);
    for (int i = 0; i < 4; i++) /* these are computed while a dies */
        cluster_ask(&b, 700, 20, 500 + (uint64_t)i);
    poll_both(5 + _i * 10);
    cluster_router_kill(&a);
    b_was_not_disturbed();

    cluster_router_open(&a);
    cluster_until(&a, joined, 20, "workers to find the router again");
    cluster_ask(&a, 300, 20, 600);
    cluster_until(&a, cluster_idle, 20, "the request");
    cluster_check_streams(&a);
    ck_assert_int_eq(a.req[0].attempts, 0);
    cluster_stop(&a); /* which checks that every page and every ticket came back */
}
END_TEST

static uint32_t former_id;

/* The successor of a router gives the prefill worker the same id. */
static bool same_id(cluster *c, cworker *w, const sl_msg *m)
{
    if (m->type == SL_MSG_HELLO)
        c->next_id = (w->role == SL_ROLE_PREFILL ? former_id : former_id + 100) - 1;
    return false;
}

static bool reserved_pages(cluster *c)
{
    (void)c;
    const sl_msg_load *l = &cluster_worker(&b, SL_ROLE_DECODE, 0)->load;
    return l->total_pages && l->free_pages + l->cached_pages < l->total_pages;
}

/* a dies while pages are reserved whose writer has not connected: such a writer is banned until it has been refused
 * once. A successor that gives another worker the same id does not inherit the ban. */
START_TEST(a_ban_ends_with_its_router)
{
    cluster_opts o = cluster_defaults();
    start(&o);
    a.on_msg = swallow_reserved;
    cluster_ask(&a, 300, 5, 1);
    cluster_until(&a, reserved_pages, 10, "the reservation");
    former_id = cluster_worker(&a, SL_ROLE_PREFILL, 0)->id;
    cluster_router_kill(&a);
    poll_both(50);
    a.on_msg = same_id;
    cluster_router_open(&a);
    cluster_until(&a, joined, 20, "workers to find the router again");
    ck_assert_uint_eq(cluster_worker(&a, SL_ROLE_PREFILL, 0)->id, former_id);
    a.on_msg = NULL;
    cluster_ask(&a, 300, 5, 2);
    cluster_until(&a, cluster_idle, 20, "the request");
    cluster_check_streams(&a);
    ck_assert_msg(a.req[0].attempts == 0, "%s", a.req[0].reason);
    cluster_stop(&a);
}
END_TEST

/* a makes no progress (its connections stay): its requests end when it is given up, b's go on all the time. */
START_TEST(one_is_silent)
{
    cluster_opts o = cluster_defaults();
    o.times.dead_after_ms = 1500;
    o.times.decode_layer_us = 1000;
    start(&o);
    cluster_ask(&a, 200, 400, 1);
    cluster_ask(&b, 200, 400, 2);
    cluster_until(&a, b_decodes, 30, "streams");
    uint64_t end = sl_now_ns() + 60000 * MS;
    const sl_msg_load *l = &cluster_worker(&b, SL_ROLE_DECODE, 0)->load;
    while (!cluster_idle(&b) || l->running || l->waiting) {
        cluster_poll(&b, 1);
        ck_assert_msg(sl_now_ns() < end, "running %u waiting %u", l->running, l->waiting);
    }
    cluster_check_streams(&b);
    ck_assert_int_eq(b.req[0].attempts, 0);
    cluster_router_kill(&a);
    cluster_router_open(&a);
    cluster_stop(&a);
}
END_TEST

/* The router at b refuses every worker: they go on with a. They end when a refuses them too. */
static bool refuse(cluster *c, cworker *w, const sl_msg *m)
{
    if (m->type != SL_MSG_HELLO)
        return false;
    sl_msg no = {.type = SL_MSG_REFUSE};
    no.refuse = (sl_msg_refuse){.status = SL_ERR_REFUSED, .reason = "another checkpoint"};
    w->ep = c->greeting;
    cluster_send(w, &no);
    w->ep = NULL;
    w->refused = true;
    return true;
}

static bool a_joined_b_refused(cluster *c)
{
    return c == &a ? joined(c) : b.w[0].refused && b.w[1].refused;
}

START_TEST(one_refuses)
{
    cluster_opts o = cluster_defaults();
    o.second_refuses = refuse;
    start(&o);
    cluster_until(&a, a_joined_b_refused, 20, "refusals");
    cluster_ask(&a, 200, 20, 1);
    cluster_until(&a, cluster_idle, 20, "the request");
    cluster_check_streams(&a);
    b.on_msg = NULL; /* it was started again with the right checkpoint */
    cluster_until(&a, joined, 20, "workers to join it");
    cluster_ask(&b, 200, 20, 2);
    cluster_until(&a, cluster_idle, 20, "the request");
    cluster_check_streams(&b);
    cluster_stop(&a);
}
END_TEST

static bool all_leave(cluster *c)
{
    for (int i = 0; i < c->n; i++) {
        if (!c->w[i].load.draining)
            return false;
    }
    return true;
}

static bool all_ended(cluster *c)
{
    (void)c; /* the workers are those of the first cluster */
    for (int i = 0; i < a.n; i++) {
        if (!atomic_load(&a.w[i].ended))
            return false;
    }
    return true;
}

static bool prefilling(cluster *c)
{
    return !c->n_req || c->req[0].state >= REQ_PREFILLING;
}

static void let_go(cluster *c)
{
    c->keeps = false;
    for (int i = 0; i < c->n; i++)
        cluster_send(&c->w[i], &(sl_msg){.type = SL_MSG_LEAVE});
}

/* Told to stop, the workers serve a router that does not answer LEAVE: requests that were there, and new ones. They end
 * soon after the answer. _i: a second router has let them go at once. */
START_TEST(leaving_workers_serve_until_they_are_let_go)
{
    cluster_opts o = cluster_defaults();
    o.times.leave_ms = 60000;
    o.times.prefill_layer_us = 2000;
    if (_i)
        o.second = &b;
    cluster_start(&a, &o);
    a.keeps = true;
    cluster_until(&a, joined, 10, "workers join");
    cluster_ask(&a, 300, 20, 1);
    cluster_until(&a, prefilling, 10, "the prompt is computed");
    for (int i = 0; i < a.n; i++)
        __atomic_store_n(&a.w[i].stop, 1, __ATOMIC_RELAXED);
    cluster_until(&a, all_leave, 10, "workers leave");
    cluster_ask(&a, 200, 20, 2);
    cluster_finish(&a, 10);
    cluster_ask(&a, 100, 20, 3); /* after a pause without work */
    cluster_run_ms(&a, 400);
    cluster_finish(&a, 10);
    for (int i = 0; i < a.n; i++)
        ck_assert(!atomic_load(&a.w[i].ended));
    for (int i = 0; i < a.n_req; i++)
        ck_assert_msg(a.req[i].attempts == 0 && a.req[i].retractions == 0, "%s", a.req[i].reason);
    let_go(&a);
    cluster_until(&a, all_ended, 2, "workers end");
    cluster_stop(&a);
}
END_TEST

/* A router that is lost needs no worker. */
START_TEST(leaving_workers_do_not_wait_for_a_lost_router)
{
    cluster_opts o = cluster_defaults();
    o.times.leave_ms = 600000;
    cluster_start(&a, &o);
    a.keeps = true;
    cluster_until(&a, joined, 10, "workers join");
    for (int i = 0; i < a.n; i++)
        __atomic_store_n(&a.w[i].stop, 1, __ATOMIC_RELAXED);
    cluster_until(&a, all_leave, 10, "workers leave");
    a.keeps = false; /* of later sessions */
    cluster_cut_all(&a);
    cluster_until(&a, all_ended, 10, "workers end");
    cluster_stop(&a);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("routers");
    TCase *t = tcase_create("routers");
    tcase_set_timeout(t, 300);
    tcase_add_loop_test(t, leaving_workers_serve_until_they_are_let_go, 0, 2);
    tcase_add_test(t, leaving_workers_do_not_wait_for_a_lost_router);
    tcase_add_test(t, both_are_served);
    tcase_add_test(t, cache_events_go_to_both);
    tcase_add_loop_test(t, one_dies_in_the_middle, 0, 3);
    tcase_add_test(t, a_ban_ends_with_its_router);
    tcase_add_test(t, one_is_silent);
    tcase_add_test(t, one_refuses);
    suite_add_tcase(s, t);
    return run_suite(s);
}
