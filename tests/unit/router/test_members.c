/*
 * The member table: which workers are admitted and which are not, identity, restarts, liveness, drains, the prefix
 * index, and connections that are not workers at all.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kvstore/page_key.h"
#include "tests/unit/kvstore/mla_geometry.h"
#include "base/msg_batch.h"
#include "tests/unit/router/harness.h"

static harness h;

static void setup(void)
{
    h_init(&h);
    h_open(&h);
}

static void teardown(void)
{
    h_close(&h);
}

static int add_with(sl_mock_opts o)
{
    int i = h_add_opts(&h, &o);
    H_UNTIL(&h, sl_mock_count(h.w[i])->welcome || sl_mock_count(h.w[i])->refused, 2000);
    h_run(&h, 5);
    return i;
}

static void expect_refused(sl_mock_opts o, const char *word)
{
    int i = add_with(o);
    const sl_mock_counts *c = sl_mock_count(h.w[i]);
    ck_assert_msg(c->refused && !c->welcome, "was admitted");
    ck_assert_msg(strstr(c->refuse_reason, word) != NULL, "reason is '%s', want '%s'", c->refuse_reason,
                  word);
}

START_TEST(both_roles_make_it_ready)
{
    ck_assert(!sl_router_ready(h.r));
    h_add(&h, SL_ROLE_PREFILL);
    ck_assert(!sl_router_ready(h.r));
    h_add(&h, SL_ROLE_DECODE);
    ck_assert(sl_router_ready(h.r));
    ck_assert_int_eq(h.r->cluster.max_context, 4096);
}
END_TEST

/* The 4,096th worker gets the place of the first one in the table of ids. Both are found, also when one has left. */
START_TEST(ids_with_equal_low_bits_are_found)
{
    h_add(&h, SL_ROLE_PREFILL);
    h.r->cluster.next_id += SL_MEMBER_SLOTS - 1;
    h_add(&h, SL_ROLE_DECODE);
    uint32_t newer = h.r->cluster.next_id, older = newer - SL_MEMBER_SLOTS;
    ck_assert_int_eq(sl_member_find(h.r, older)->role, SL_ROLE_PREFILL);
    ck_assert_int_eq(sl_member_find(h.r, newer)->role, SL_ROLE_DECODE);
    sl_member_lost(sl_member_find(h.r, newer), SL_ERR_PEER, "test");
    ck_assert_ptr_null(sl_member_find(h.r, newer));
    ck_assert_int_eq(sl_member_find(h.r, older)->role, SL_ROLE_PREFILL);
}
END_TEST

START_TEST(misfits_are_refused_with_the_reason)
{
    h_add(&h, SL_ROLE_PREFILL);
    sl_mock_opts o = h.mo;
    o.role = SL_ROLE_DECODE;
    sl_mock_opts x = o;
    x.version = 99;
    expect_refused(x, "version 99");
    x = o, x.tag = "other";
    expect_refused(x, "cluster.tag");
    x = o, x.model = "other";
    expect_refused(x, "model");
    x = o, x.vocab = 100;
    expect_refused(x, "vocabulary");
    x = o, x.fingerprint.lo ^= 1;
    expect_refused(x, "fingerprint");
    x = o, x.bits = 80;
    expect_refused(x, "GPUs of compute capability 8.0, those of the cluster the bits of the CPU");
    x = o, x.geometry = "mocK", x.geometry_len = 4;
    expect_refused(x, "geometry");
    ck_assert_uint_eq(sl_members_count(h.r, SL_ROLE_DECODE), 0);
    ck_assert_uint_eq(sl_counter_value(h.r->stats.workers.refused), 7);
    h_add(&h, SL_ROLE_DECODE); /* the fitting one */
}
END_TEST

START_TEST(last_one_gone_frees_the_identity)
{
    int i = h_add(&h, SL_ROLE_PREFILL);
    sl_mock_kill(h.w[i]);
    H_UNTIL(&h, !sl_members_count(h.r, SL_ROLE_PREFILL), 1000);
    sl_mock_opts o = h.mo;
    o.role = SL_ROLE_DECODE;
    o.fingerprint.lo ^= 1;
    ck_assert(sl_mock_count(h.w[add_with(o)])->welcome);
}
END_TEST

/* The bits of the first member are the cluster's until the last one has gone. */
START_TEST(bits_are_those_of_the_first_member)
{
    const uint32_t others[] = {0, 80, 89, 100};
    sl_mock_opts o = h.mo;
    o.bits = 90, o.role = SL_ROLE_PREFILL;
    int i = add_with(o);
    ck_assert(sl_mock_count(h.w[i])->welcome);
    o.role = SL_ROLE_DECODE;
    for (size_t b = 0; b < SL_COUNT(others); b++) {
        o.bits = others[b];
        expect_refused(o, "bits");
    }
    sl_mock_kill(h.w[i]);
    H_UNTIL(&h, !sl_members_count(h.r, SL_ROLE_PREFILL), 1000);
    o.bits = 100;
    ck_assert(sl_mock_count(h.w[add_with(o)])->welcome);
    o.bits = 90, o.role = SL_ROLE_PREFILL;
    expect_refused(
        o,
        "GPUs of compute capability 9.0, those of the cluster the bits of GPUs of compute capability 10.0");
}
END_TEST

/* Another process of the same name is refused while the holder lives, with a reason that names the holder. */
START_TEST(living_holder_keeps_its_name)
{
    sl_mock_opts o = h.mo;
    o.role = SL_ROLE_DECODE;
    o.name = "decode/x";
    int first = add_with(o);
    for (int i = 0; i < 3; i++) {
        expect_refused(o, "decode/x is held by a living worker: pid");
        ck_assert_ptr_nonnull(strstr(sl_mock_count(h.w[h.n - 1])->refuse_reason, "on host mock"));
        ck_assert(sl_mock_count(h.w[h.n - 1])->refused_for_now);
    }
    sl_member *w = sl_member_find(h.r, sl_mock_count(h.w[first])->worker_id);
    ck_assert_ptr_nonnull(w);
    ck_assert_uint_eq(sl_members_count(h.r, SL_ROLE_DECODE), 1);
    sl_mock_kill(h.w[first]);
    H_UNTIL(&h, !sl_members_count(h.r, SL_ROLE_DECODE), 1000);
    ck_assert(sl_mock_count(h.w[add_with(o)])->welcome); /* the name is free */
}
END_TEST

/* The name of a holder that has fallen silent is free after dead_after_ms, although its connection stands. */
START_TEST(silent_holder_loses_its_name)
{
    sl_mock_opts o = h.mo;
    o.role = SL_ROLE_DECODE;
    o.name = "decode/x";
    sl_mock_knob(h.w[add_with(o)])->silent = true;
    expect_refused(o, "held by a living worker");
    h.r->o.link.dead_after_ms = 300;
    H_UNTIL(&h, !sl_members_count(h.r, SL_ROLE_DECODE), 2000);
    ck_assert(sl_mock_count(h.w[add_with(o)])->welcome);
}
END_TEST

/* Another connection of the same process replaces the former one at once. */
START_TEST(same_process_replaces_itself)
{
    sl_mock_opts o = h.mo;
    o.role = SL_ROLE_DECODE;
    o.name = "decode/x";
    o.instance = 7;
    add_with(o);
    add_with(o);
    ck_assert_uint_eq(sl_members_count(h.r, SL_ROLE_DECODE), 1);
    ck_assert_uint_eq(sl_mock_count(h.w[1])->worker_id, sl_mock_count(h.w[0])->worker_id + 1);
}
END_TEST

/* What is wrong is refused before the holder of the name is looked at. */
START_TEST(misfit_does_not_push_a_worker_out)
{
    sl_mock_opts o = h.mo;
    o.role = SL_ROLE_DECODE;
    o.name = "decode/x";
    o.instance = 7;
    add_with(o);
    o.fingerprint.lo ^= 1;
    expect_refused(o, "fingerprint");
    ck_assert(!sl_mock_count(h.w[1])->refused_for_now);
    ck_assert_uint_eq(sl_members_count(h.r, SL_ROLE_DECODE), 1);
    ck_assert_ptr_nonnull(sl_member_find(h.r, sl_mock_count(h.w[0])->worker_id));
}
END_TEST

static sl_wr encoded_geometry(sl_key fingerprint, sl_layout layout, sl_row_format rows)
{
    static const bool no_indexer[2];
    sl_geometry g = mla_geometry(fingerprint, layout, rows, SL_INDEX_PLAIN, 2, no_indexer);
    sl_wr w;
    sl_wr_init(&w);
    sl_geometry_write(&g, &w);
    return w;
}

/* A router that knows what it serves refuses a wrong worker that comes first, and takes every layout of the right
 * one. */
START_TEST(first_worker_does_not_define_the_cluster)
{
    sl_wr page = encoded_geometry(h.mo.fingerprint, SL_LAYOUT_PAGE_FIRST, SL_ROW_MLA_BF16);
    sl_wr layer = encoded_geometry(h.mo.fingerprint, SL_LAYOUT_LAYER_FIRST, SL_ROW_MLA_BF16);
    sl_wr f32 = encoded_geometry(h.mo.fingerprint, SL_LAYOUT_PAGE_FIRST, SL_ROW_MLA_F32);
    const sl_identity id = {h.mo.fingerprint, {page.data, page.len}};
    h_close(&h);
    h_init(&h);
    h.o.model.identity = &id;
    h_open(&h);
    sl_mock_opts o = h.mo, x;
    o.role = SL_ROLE_DECODE;
    o.geometry = page.data, o.geometry_len = page.len;
    x = o, x.fingerprint.lo ^= 1;
    expect_refused(x, "fingerprint");
    x = o, x.geometry = f32.data, x.geometry_len = f32.len;
    expect_refused(x, "page geometry differs from the cluster's: cache plane");
    ck_assert(sl_mock_count(h.w[add_with(o)])->welcome);
    x = o, x.role = SL_ROLE_PREFILL, x.geometry = layer.data, x.geometry_len = layer.len;
    ck_assert(sl_mock_count(h.w[add_with(x)])->welcome);
    client c = {0};
    h_ask(&h, &c, 70, 5);
    h_expect(&h, &c, 70, 5, 2000);
    sl_group_release(c.group);
    sl_mock_kill(h.w[2]);
    sl_mock_kill(h.w[3]);
    H_UNTIL(&h, !sl_members_count(h.r, SL_ROLE_DECODE) && !sl_members_count(h.r, SL_ROLE_PREFILL), 1000);
    x = o, x.fingerprint.lo ^= 1;
    expect_refused(x, "fingerprint"); /* also when all are gone */
    sl_wr_free(&page);
    sl_wr_free(&layer);
    sl_wr_free(&f32);
}
END_TEST

/* The heartbeat continues while the engine hangs: the worker is given up, and its requests move to another one. */
START_TEST(hung_engine_is_noticed)
{
    h_add(&h, SL_ROLE_PREFILL);
    int a = h_add(&h, SL_ROLE_DECODE);
    sl_mock_knob(h.w[a])->hold = true;
    client c = {0};
    h_ask(&h, &c, 70, 5);
    h_run(&h, 50);
    int b = h_add(&h, SL_ROLE_DECODE);
    sl_mock_knob(h.w[a])->engine_age_ms = 10 * h.r->o.link.dead_after_ms;
    h_run(&h, 100);
    ck_assert_uint_eq(sl_members_count(h.r, SL_ROLE_DECODE), 2); /* a long step is no hang */
    sl_mock_knob(h.w[a])->engine_age_ms++;
    h_expect(&h, &c, 70, 5, 2000);
    sl_group_release(c.group);
    ck_assert_uint_eq(sl_members_count(h.r, SL_ROLE_DECODE), 1);
    ck_assert_uint_eq(sl_mock_count(h.w[b])->received[SL_MSG_RESERVE], 1);
}
END_TEST

/* A decode worker may remember the id of a prefill worker that a former router has named. Neither that router's
 * successor nor a second router may give that id to another worker. */
START_TEST(ids_of_two_routers_differ)
{
    harness other;
    h_init(&other);
    h_open(&other);
    h_add(&h, SL_ROLE_PREFILL);
    h_add(&other, SL_ROLE_PREFILL);
    uint32_t a = sl_mock_count(h.w[0])->worker_id, b = sl_mock_count(other.w[0])->worker_id;
    ck_assert_msg(a && b && a != b, "both routers have named a worker %u", a);
    ck_assert_msg((int32_t)a > 0 && (int32_t)b > 0, "dp_rank is a signed number");
    h_close(&other);
}
END_TEST

/* The router's loop is held up for longer than dead_after_ms: no worker is lost. */
START_TEST(stalled_loop_loses_no_worker)
{
    h_add(&h, SL_ROLE_PREFILL);
    h_add(&h, SL_ROLE_DECODE);
    uint32_t id = sl_mock_count(h.w[0])->worker_id;
    h.r->o.link.dead_after_ms = 300;
    for (int i = 0; i < 3; i++) {
        usleep(3 * h.r->o.link.dead_after_ms * 1000);
        h_run(&h, 100);
    }
    ck_assert_uint_eq(sl_members_count(h.r, SL_ROLE_DECODE), 1);
    ck_assert_uint_eq(sl_members_count(h.r, SL_ROLE_PREFILL), 1);
    ck_assert_uint_eq(sl_mock_count(h.w[0])->worker_id, id);
}
END_TEST

START_TEST(impostor_does_not_push_a_worker_out)
{
    sl_mock_opts o = h.mo;
    o.role = SL_ROLE_DECODE;
    o.name = "decode/x";
    add_with(o);
    o.tag = "other";
    expect_refused(o, "cluster.tag");
    ck_assert_uint_eq(sl_members_count(h.r, SL_ROLE_DECODE), 1);
}
END_TEST

/* Whether every stream has ended or has n tokens more than in `had`. */
static bool all_advanced(client *c, const size_t *had, size_t n)
{
    for (int i = 0; i < 4; i++) {
        if (!h_done(&c[i]) && c[i].s[0].n < had[i] + n)
            return false;
    }
    return true;
}

/* Prefill workers are killed in any state. A decode worker is killed only after every stream has advanced: a request
 * that dies with three decode workers one after the other, without 8 tokens between the deaths, is refused as their
 * cause (request.h). */
START_TEST(restarts_under_load)
{
    sl_mock_opts p = h.mo, d = h.mo;
    p.role = SL_ROLE_PREFILL;
    d.role = SL_ROLE_DECODE;
    p.name = "prefill/a";
    d.name = "decode/a";
    d.step_us = 500;
    h.r->o.request.retries = 50;
    /* A request waits this long for the role that has no worker at the moment, and the machine may be busy just
     * then. */
    h.r->o.request.stage_timeout_ms = 10000;
    h.r->o.request.timeout_ms = 150000;
    add_with(p);
    add_with(d);
    client c[4] = {{0}};
    for (int i = 0; i < 4; i++) {
        h_ask(&h, &c[i], (size_t)(80 + i), 200);
    }
    for (int k = 0; k < 20; k++) {
        int which = k % 2;
        size_t had[4];
        for (int i = 0; i < 4; i++)
            had[i] = c[i].s[0].n;
        h_run(&h, 5);
        if (which == 1)
            H_UNTIL(&h, all_advanced(c, had, 9), 10000);
        sl_mock_kill(h.w[which]);
        sl_mock_destroy(h.w[which]);
        h.w[which] = NULL;
        sl_err err = {""};
        sl_mock_opts *o = which ? &d : &p;
        o->router_address = sl_router_worker_address(h.r);
        ck_assert_int_eq(sl_mock_create(o, &h.w[which], &err), SL_OK);
    }
    for (int i = 0; i < 4; i++) {
        h_expect(&h, &c[i], (size_t)(80 + i), 200, 20000);
        sl_group_release(c[i].group);
    }
    H_UNTIL(&h, h_clean(&h), 2000);
}
END_TEST

START_TEST(draining_worker_gets_nothing_new)
{
    h_add(&h, SL_ROLE_PREFILL);
    int a = h_add(&h, SL_ROLE_DECODE), b = h_add(&h, SL_ROLE_DECODE);
    sl_mock_knob(h.w[a])->draining = true;
    sl_member *w = sl_member_find(h.r, sl_mock_count(h.w[a])->worker_id);
    H_UNTIL(&h, w->state == SL_MEMBER_DRAINING, 5000);
    for (int i = 0; i < 6; i++) {
        client c = {0};
        h_ask(&h, &c, 70, 3);
        H_UNTIL(&h, h_done(&c), 2000);
        sl_group_release(c.group);
    }
    ck_assert_uint_eq(sl_mock_count(h.w[a])->received[SL_MSG_RESERVE], 0);
    ck_assert_uint_eq(sl_mock_count(h.w[b])->received[SL_MSG_RESERVE], 6);
}
END_TEST

START_TEST(drain_finishes_what_runs_and_refuses_the_rest)
{
    h.mo.step_us = 2000;
    h_add(&h, SL_ROLE_PREFILL);
    h_add(&h, SL_ROLE_DECODE);
    client c = {0}, late = {0};
    sl_request_spec s;
    h_ask(&h, &c, 70, 30);
    h_run(&h, 10);
    sl_router_stop(h.r);
    h_run(&h, 30);
    ck_assert(!sl_router_ready(h.r));
    sl_err err = {""};
    h_spec(&s, 70, 5);
    ck_assert_int_eq(h_try_submit(&h, &late, &s, &err), SL_ERR_PEER);
    sl_request_spec_free(&s);
    ck_assert(!h.r->life.stopping);
    h_expect(&h, &c, 70, 30, 2000);
    sl_group_release(c.group);
    H_UNTIL(&h, h.r->life.stopping, 1000);
    ck_assert_int_eq(h.r->life.result, SL_OK);
    ck_assert_uint_eq(sl_mock_count(h.w[0])->received[SL_MSG_DRAIN], 0); /* the next router needs them */
}
END_TEST

START_TEST(drain_has_a_limit)
{
    h.r->o.drain_timeout_ms = 50;
    h_add(&h, SL_ROLE_PREFILL);
    int d = h_add(&h, SL_ROLE_DECODE);
    sl_mock_knob(h.w[d])->hold = true;
    client c = {0};
    h_ask(&h, &c, 70, 30);
    sl_router_stop(h.r);
    H_UNTIL(&h, h.r->life.stopping, 300);
    ck_assert_int_eq(h.r->life.result, SL_ERR_DEADLINE);
    sl_group_release(c.group);
}
END_TEST

START_TEST(cache_events_feed_the_index)
{
    h_add(&h, SL_ROLE_PREFILL);
    h_add(&h, SL_ROLE_DECODE);
    client c = {0};
    sl_request_spec s;
    h_spec(&s, 200, 4);
    int32_t ids[200];
    memcpy(ids, s.prompts->ids, sizeof ids);
    h_submit(&h, &c, &s);
    H_UNTIL(&h, h_done(&c), 2000);
    sl_group_release(c.group);
    h_run(&h, 10);
    sl_key keys[3];
    sl_share_domain everybody;
    ck_assert(sl_share_domain_of(SL_SHARE_ALL, "", "", 0, &everybody));
    sl_page_keys(sl_share_seed(h.mo.fingerprint, &everybody), ids, 200, keys);
    sl_member *w = sl_member_find(h.r, sl_mock_count(h.w[1])->worker_id);
    ck_assert_uint_eq(sl_directory_lookup(h.r->directory, keys, 3)[w->place].host, 3);
    ck_assert_uint_eq(w->kv.sequence, 1);
    sl_cluster_flush_cache(h.r);
    h_run(&h, 10);
    ck_assert_uint_eq(sl_directory_count(h.r->directory, w->place, SL_MEDIUM_HOST), 0);
    ck_assert_uint_eq(sl_mock_count(h.w[1])->received[SL_MSG_FLUSH_CACHE], 1);
}
END_TEST

START_TEST(same_prefix_goes_to_the_same_worker)
{
    h.r->queue.policy = &sl_policy_cache_aware;
    h_add(&h, SL_ROLE_PREFILL);
    h_add(&h, SL_ROLE_DECODE);
    h_add(&h, SL_ROLE_DECODE);
    uint32_t first = 0;
    for (int i = 0; i < 6; i++) {
        client c = {0};
        sl_request_spec s;
        h_spec(&s, 300, 4);
        s.prompts->ids[299] = 'A' + i; /* the tail differs */
        h_submit(&h, &c, &s);
        uint32_t on = h_request(&c, 0)->attempt.decode;
        first = first ? first : on;
        ck_assert_uint_eq(on, first);
        H_UNTIL(&h, h_done(&c), 2000);
        sl_group_release(c.group);
        /* All four pages of the first answer are what the next request goes by: one of them is too few. */
        H_UNTIL(&h,
                sl_directory_count(h.r->directory, sl_member_find(h.r, first)->place, SL_MEDIUM_HOST) >= 4,
                2000);
        h_run(&h, 10);
    }
    ck_assert_uint_ge(sl_counter_value(h.r->stats.placement.by_prefix), 5);
}
END_TEST

/* A peer that is no worker: rubbish, then messages before HELLO. */
START_TEST(strangers_do_no_harm)
{
    h_add(&h, SL_ROLE_PREFILL);
    h_add(&h, SL_ROLE_DECODE);
    sl_tp_options o = sl_tp_options_default();
    o.fabric = h.fabric;
    sl_transport *tp;
    sl_tp_ep *ep;
    ck_assert_int_eq(sl_transport_create("loopback", &o, &tp, NULL), SL_OK);
    ck_assert_int_eq(sl_tp_connect(tp, sl_router_worker_address(h.r), &ep, NULL), SL_OK);
    for (int i = 0; i < 5; i++) {
        sl_tp_progress(tp);
        h_turn(&h);
    }
    uint8_t junk[256];
    for (int k = 0; k < 200; k++) {
        for (size_t i = 0; i < sizeof junk; i++)
            junk[i] = (uint8_t)rand();
        sl_tp_send(ep, (uint16_t)(k % 64), NULL, 0, junk, (size_t)k, NULL, NULL);
        sl_tp_progress(tp);
        h_turn(&h);
    }
    sl_msg m = {.type = SL_MSG_LOAD};
    sl_wr w;
    sl_wr_init(&w);
    sl_msg_encode(&m, &w);
    sl_tp_send(ep, SL_MSG_LOAD, NULL, 0, w.data, w.len, NULL, NULL);
    for (int i = 0; i < 5; i++) {
        sl_tp_progress(tp);
        h_turn(&h);
    }
    uint64_t malformed = sl_counter_value(h.r->stats.workers.malformed);
    ck_assert_uint_ge(malformed, 199);
    ck_assert_uint_eq(sl_counter_value(h.r->stats.workers.unknown), 1);
    sl_msg_batch b = {0}; /* the first one is whole, the second one is cut off */
    ck_assert(sl_msg_batch_add(&b, &m) && sl_msg_batch_add(&b, &m));
    sl_tp_send(ep, SL_MSG_BATCH, NULL, 0, b.w.data, b.w.len - 1, NULL, NULL);
    for (int i = 0; i < 5; i++) {
        sl_tp_progress(tp);
        h_turn(&h);
    }
    ck_assert_uint_eq(sl_counter_value(h.r->stats.workers.malformed), malformed + 1);
    ck_assert_uint_eq(sl_counter_value(h.r->stats.workers.unknown), 2);
    client c = {0};
    h_ask(&h, &c, 70, 5);
    h_expect(&h, &c, 70, 5, 2000);
    sl_group_release(c.group);
    sl_tp_destroy(tp);
    sl_msg_batch_free(&b);
    sl_wr_free(&w);
}
END_TEST

int main(void)
{
    const h_case cases[] = {
        {both_roles_make_it_ready, 0},
        {ids_with_equal_low_bits_are_found, 0},
        {misfits_are_refused_with_the_reason, 0},
        {last_one_gone_frees_the_identity, 0},
        {bits_are_those_of_the_first_member, 0},
        {living_holder_keeps_its_name, 0},
        {silent_holder_loses_its_name, 0},
        {same_process_replaces_itself, 0},
        {ids_of_two_routers_differ, 0},
        {misfit_does_not_push_a_worker_out, 0},
        {first_worker_does_not_define_the_cluster, 0},
        {hung_engine_is_noticed, 0},
        {stalled_loop_loses_no_worker, 0},
        {impostor_does_not_push_a_worker_out, 0},
        {restarts_under_load, 0},
        {draining_worker_gets_nothing_new, 0},
        {drain_finishes_what_runs_and_refuses_the_rest, 0},
        {drain_has_a_limit, 0},
        {cache_events_feed_the_index, 0},
        {same_prefix_goes_to_the_same_worker, 0},
        {strangers_do_no_harm, 0},
    };
    return h_main("router/members", setup, teardown, cases, SL_COUNT(cases));
}
