/*
 * Ranks of groups in a router with mock workers: one health for all of them, what a loss and a drain mean for the others,
 * who is blamed for a loss, which ranks are refused, and how requests are spread over the ranks of a group.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/unit/router/harness.h"

static harness h;

static void setup(void)
{
    h_init(&h);
    h.o.placement.policy = "cache_aware";
    h.mo.max_context = 40000;
    h.mo.total_pages = 2000;
    h_open(&h);
    h_add(&h, SL_ROLE_PREFILL);
}

static void teardown(void)
{
    h_close(&h);
}

static sl_mock_opts rank_opts(uint32_t group, uint32_t rank, uint32_t ranks)
{
    sl_mock_opts o = h.mo;
    o.role = SL_ROLE_DECODE;
    o.group = group;
    o.rank = rank;
    o.ranks = ranks;
    return o;
}

static int add(const sl_mock_opts *o)
{
    int i = h_add_opts(&h, o);
    H_UNTIL(&h, sl_mock_count(h.w[i])->welcome || sl_mock_count(h.w[i])->refused, 2000);
    return i;
}

static int add_rank(uint32_t group, uint32_t rank, uint32_t ranks)
{
    sl_mock_opts o = rank_opts(group, rank, ranks);
    int i = add(&o);
    ck_assert_msg(sl_mock_count(h.w[i])->welcome, "%s", sl_mock_count(h.w[i])->refuse_reason);
    return i;
}

static sl_member *member(int i)
{
    return sl_member_find(h.r, sl_mock_count(h.w[i])->worker_id);
}

static uint64_t reserved(int i)
{
    return sl_mock_count(h.w[i])->received[SL_MSG_RESERVE];
}

START_TEST(a_group_is_ready_when_all_ranks_are_there)
{
    int a = add_rank(0, 0, 3), b = add_rank(0, 2, 3);
    ck_assert_int_eq(member(a)->state, SL_MEMBER_WAITING);
    ck_assert(!sl_router_ready(h.r));
    int c = add_rank(0, 1, 3);
    ck_assert(member(a)->state == SL_MEMBER_READY && member(b)->state == SL_MEMBER_READY &&
              member(c)->state == SL_MEMBER_READY);
    ck_assert(sl_router_ready(h.r));
    /* a rank of another group changes nothing */
    int other = add_rank(1, 0, 2);
    ck_assert_int_eq(member(other)->state, SL_MEMBER_WAITING);
    ck_assert_int_eq(member(a)->state, SL_MEMBER_READY);
}
END_TEST

/* The loss of one rank makes the others unavailable in the same turn; its replacement makes all ready. */
START_TEST(a_lost_rank_takes_the_others_with_it)
{
    int a = add_rank(0, 0, 2), b = add_rank(0, 1, 2), single = h_add(&h, SL_ROLE_DECODE);
    sl_member_lost(member(b), SL_ERR_PEER, "test");
    ck_assert_int_eq(member(a)->state, SL_MEMBER_WAITING);
    for (int i = 0; i < 4; i++) {
        client c = {0};
        h_ask(&h, &c, 70, 2);
        h_expect(&h, &c, 70, 2, 2000);
        h_release(&h, &c, 2000);
    }
    ck_assert_uint_eq(reserved(a), 0);
    ck_assert_uint_eq(reserved(single), 4);
    sl_mock_kill(h.w[b]);
    int again = add_rank(0, 1, 2);
    ck_assert(member(a)->state == SL_MEMBER_READY && member(again)->state == SL_MEMBER_READY);
}
END_TEST

START_TEST(a_drain_is_that_of_the_group)
{
    int a = add_rank(0, 0, 2), b = add_rank(0, 1, 2);
    sl_mock_knob(h.w[b])->draining = true;
    H_UNTIL(&h, member(b)->state == SL_MEMBER_DRAINING, 5000);
    ck_assert_int_eq(member(a)->state, SL_MEMBER_DRAINING);
    ck_assert(!sl_router_ready(h.r));
    /* the one that left ends; the other stays as it is until its own session ends */
    sl_member_lost(member(b), SL_ERR_PEER, "test");
    ck_assert_int_eq(member(a)->state, SL_MEMBER_DRAINING);
    ck_assert_uint_eq(h.r->stats.workers.lost[1], 0);
}
END_TEST

/* A rank whose group broke leaves at once; its requests start again, and are not suspected of having caused it. */
START_TEST(the_others_are_not_to_blame)
{
    h.mo.step_us = 2000;
    int a = add_rank(0, 0, 2), b = add_rank(0, 1, 2);
    client c[2] = {{0}};
    for (int i = 0; i < 2; i++)
        h_ask(&h, &c[i], (size_t)(70 + i), 40);
    H_UNTIL(&h, c[0].s[0].n > 2 && c[1].s[0].n > 2, 5000);
    int at_b = h_request(&c[1], 0)->attempt.decode == member(b)->id;
    ck_assert_uint_ne(h_request(&c[0], 0)->attempt.decode, h_request(&c[1], 0)->attempt.decode);
    sl_request *innocent = h_request(&c[!at_b], 0), *culprit = h_request(&c[at_b], 0);
    sl_mock_knob(h.w[a])->group_broken = true;
    H_UNTIL(&h, !member(a), 5000);
    ck_assert_int_eq(member(b)->state, SL_MEMBER_WAITING);
    sl_mock_kill(h.w[b]);
    sl_member_lost(member(b), SL_ERR_PEER, "test");
    ck_assert_uint_eq(innocent->deaths.n, 0);
    ck_assert_uint_eq(culprit->deaths.n, 1);
    ck_assert_uint_eq(h.r->stats.workers.lost[1], 1);
    h_add(&h, SL_ROLE_DECODE);
    for (int i = 0; i < 2; i++) {
        h_expect(&h, &c[i], (size_t)(70 + i), 40, 10000);
        sl_group_release(c[i].group);
    }
}
END_TEST

START_TEST(ranks_that_differ_are_refused)
{
    add_rank(0, 0, 2);
    sl_mock_opts o = rank_opts(0, 1, 4);
    const sl_mock_counts *c = sl_mock_count(h.w[add(&o)]);
    ck_assert_msg(c->refused && strstr(c->refuse_reason, "decode group 0 with 4 ranks") &&
                      strstr(c->refuse_reason, "says that it has 2"),
                  "%s", c->refuse_reason);
    o = rank_opts(0, 0, 2);
    o.name = "decode/other";
    c = sl_mock_count(h.w[add(&o)]);
    ck_assert_msg(c->refused && c->refused_for_now &&
                      strstr(c->refuse_reason, "rank 0 of decode group 0 is held"),
                  "%s", c->refuse_reason);
    /* the same numbers of the other role are another group */
    o = rank_opts(0, 0, 3);
    o.role = SL_ROLE_PREFILL;
    ck_assert(sl_mock_count(h.w[add(&o)])->welcome);
}
END_TEST

/* Requests that run at the same time are spread over the ranks, and a long one weighs as several short ones. */
START_TEST(work_is_balanced_over_the_ranks)
{
    enum { SHORT = 6 };
    h.mo.step_us = 50000;
    int a = add_rank(0, 0, 2), b = add_rank(0, 1, 2);
    client c[SHORT + 1] = {{0}};
    h_ask(&h, &c[0], 30535, 40); /* 3 x SL_CONTEXT_PER_REQUEST, so it is 4 requests */
    H_UNTIL(&h, reserved(a) + reserved(b) == 1, 5000);
    int busy = reserved(a) ? a : b, other = reserved(a) ? b : a;
    for (int i = 1; i <= SHORT; i++) {
        h_ask(&h, &c[i], (size_t)(10 * i), 40);
        H_UNTIL(&h, reserved(a) + reserved(b) == (uint64_t)i + 1, 5000);
    }
    ck_assert_uint_ge(reserved(other), 4);
    ck_assert_uint_le(reserved(busy), 3);
    ck_assert_uint_ge(member(busy)->account.context, 30535);
    for (int i = 0; i <= SHORT; i++)
        sl_group_release(c[i].group);
    H_UNTIL(&h, h_clean(&h), 5000);
    ck_assert_uint_eq(member(a)->account.context + member(b)->account.context, 0);
}
END_TEST

int main(void)
{
    const h_case cases[] = {
        {a_group_is_ready_when_all_ranks_are_there, 0},
        {a_lost_rank_takes_the_others_with_it, 0},
        {a_drain_is_that_of_the_group, 0},
        {the_others_are_not_to_blame, 0},
        {ranks_that_differ_are_refused, 0},
        {work_is_balanced_over_the_ranks, 0},
    };
    return h_main("router/ranks", setup, teardown, cases, SL_COUNT(cases));
}
