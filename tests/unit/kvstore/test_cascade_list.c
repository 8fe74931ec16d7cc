/*
 * The cascade with two tiers: order and mixture of tiers in one load, policies, tiers that fail, are late or have
 * damaged pages, chunks of a load, and the end of loads for which no request waits.
 * tests/unit/kvstore/test_cascade.c has one tier.
 */
#include <string.h>

#include "base/log.h"
#include "tests/unit/kvstore/cascade_rig.h"

static int32_t a[LONGEST * PAGE], b[LONGEST * PAGE];
static const faults none = {0};

/* Two tiers that can be made to fail, both written through. */
static rig_setting both(void)
{
    return (rig_setting){.tier = MEMORY,
                         .policy = SL_CASCADE_WRITE_THROUGH,
                         .faults = &none,
                         .second = {.is = true, .policy = SL_CASCADE_WRITE_THROUGH, .faults = &none}};
}

/* Opens, and n pages of prompt a are in both tiers but not in memory. */
static void open_with_pages(const rig_setting *s, int n)
{
    rig_open_all(s);
    memcpy(a, rig_prompt(1, LONGEST, 0), sizeof a);
    memcpy(b, rig_prompt(2, LONGEST, 0), sizeof b);
    ck_assert_int_eq(rig_request(a, n), 0);
    rig_settle();
    sl_store_flush(rig.store);
}

static sl_key key_of(const int32_t *tokens, int i)
{
    sl_key k = rig_seed;
    for (int p = 0; p <= i; p++)
        k = sl_page_key(k, tokens + p * PAGE);
    return k;
}

static void on_done(sl_tier_req *req, sl_status st)
{
    ck_assert_int_eq(st, SL_OK);
    *(bool *)req->cookie = true;
}

static sl_status ask(sl_tier *tier, sl_tier_op op, int page)
{
    bool done = false;
    sl_status result;
    sl_key key = key_of(a, page);
    sl_tier_req r = {.op = op, .n = 1, .keys = &key, .results = &result, .done = on_done, .cookie = &done};
    ck_assert_int_eq(sl_tier_submit(tier, &r), SL_OK);
    while (!done)
        sl_tier_poll(tier);
    return result;
}

static sl_tier_stats tier_stats(sl_tier *tier)
{
    sl_tier_stats s;
    sl_tier_get_stats(tier, &s);
    return s;
}

/* Nothing is in use, in the store or in a tier, and everything has ended. */
static void check_given_back(void)
{
    sl_store_stats s;
    rig_settle();
    for (int i = 0; i < 1000 && !sl_cascade_idle(rig.cascade); i++)
        rig_turn();
    ck_assert(sl_cascade_idle(rig.cascade));
    sl_store_stats_get(rig.store, &s);
    ck_assert_int_eq(s.held, 0);
    ck_assert_int_eq(s.leases, 0);
    ck_assert_uint_eq(tier_stats(rig.tier).leased, 0);
    ck_assert_uint_eq(tier_stats(rig.second).leased, 0);
    ck_assert_int_eq(sl_cascade_waiting(rig.cascade), 0);
}

START_TEST(the_first_tier_is_enough)
{
    rig_setting s = both();
    open_with_pages(&s, 6);
    ck_assert_int_eq(rig.stored[0], 6);
    ck_assert_int_eq(rig.stored[1], 6);
    ck_assert_int_eq(rig_request(a, 6), 6);
    ck_assert_uint_eq(rig_stats().hits, 6);
    ck_assert_uint_eq(rig_second_stats().hits, 0);
    ck_assert_uint_eq(rig_second_stats().misses[SL_MISS_ABSENT],
                      6); /* of the first request: it was not asked again */
    check_given_back();
    ck_assert_uint_eq(rig_stats().stored, 6);         /* what came from it is not offered to it again, */
    ck_assert_uint_eq(rig_second_stats().stored, 12); /* but to the other one, which may have lost it */
    ck_assert_uint_eq(tier_stats(rig.second).sets, 6);
    rig_close_all();
}
END_TEST

static uint64_t now;

/* Loads 8 pages; each turn takes 1 ms. */
static void load_in_turns(void)
{
    rig_waiting w = {0};
    sl_store_flush(rig.store);
    ck_assert(rig_wait_for(&w, a, 8));
    while (!w.ready) {
        now += 1000000;
        rig_turn();
    }
    ck_assert_int_eq(rig_request_now(a, 8), 8);
    check_given_back();
}

/* Pages that both tiers have are read from the second one when it was measured as much faster, for as long as that is recent. */
START_TEST(a_much_faster_tier_is_asked_first)
{
    enum { LOADS = 16 }; /* until enough bytes were read */
    const faults slow = {.delay_polls = _i ? 1 : 50};
    rig_setting s = both();
    now = sl_now_ns();
    sl_now_virtual(&now);
    open_with_pages(&s, 8);
    fault_tier_set(rig.tier, &slow);
    for (int k = 0; k < LOADS; k++)
        load_in_turns();
    ck_assert_uint_eq(rig_stats().hits,
                      8 * LOADS); /* the order that was given: nothing is known of the second one */
    for (int k = 0; k < LOADS; k++) {
        for (int i = 0; i < 8; i++)
            ck_assert_int_eq(ask(rig.tier, SL_TIER_REMOVE, i), SL_OK);
        load_in_turns();
    }
    ck_assert_uint_eq(rig_second_stats().hits, 8 * LOADS);
    load_in_turns();
    ck_assert_uint_eq(rig_stats().hits, 8 * (LOADS + _i)); /* 1: less than twice as fast: as given */
    ck_assert_uint_eq(rig_second_stats().hits, 8 * (LOADS + !_i));
    now += 31000000000;
    load_in_turns();
    ck_assert_uint_eq(rig_stats().hits, 8 * (LOADS + _i + 1));
    fault_tier_set(rig.tier, &none);
    rig_close_all();
    sl_now_virtual(NULL);
}
END_TEST

START_TEST(a_load_mixes_tiers)
{
    rig_setting s = both();
    s.chunk_pages = 1 + 3 * _i;
    open_with_pages(&s, 8);
    ck_assert_int_eq(ask(rig.tier, SL_TIER_REMOVE, 1), SL_OK);
    ck_assert_int_eq(ask(rig.tier, SL_TIER_REMOVE, 4), SL_OK);
    ck_assert_int_eq(ask(rig.tier, SL_TIER_REMOVE, 5), SL_OK);
    ck_assert_int_eq(ask(rig.second, SL_TIER_REMOVE, 2), SL_OK);
    ck_assert_int_eq(rig_request(a, 8), 8);
    ck_assert_uint_eq(rig_stats().hits, 5);
    ck_assert_uint_eq(rig_stats().misses[SL_MISS_ABSENT], 8 + 3); /* of the first request, and of this one */
    ck_assert_uint_eq(rig_second_stats().hits, 3);
    ck_assert_uint_eq(rig_stats().loads, 1);
    ck_assert(rig_stats().read_rate > 0 && rig_second_stats().read_rate > 0);
    check_given_back();
    ck_assert_int_eq(ask(rig.tier, SL_TIER_EXISTS, 4), SL_OK); /* it was promoted to the cheaper tier */
    sl_store_flush(rig.store);
    ck_assert_int_eq(ask(rig.tier, SL_TIER_REMOVE, 3), SL_OK);
    ck_assert_int_eq(ask(rig.second, SL_TIER_REMOVE, 3), SL_OK);
    ck_assert_int_eq(rig_request(a, 8), 3); /* what no tier has ends the prefix */
    check_given_back();
    rig_close_all();
}
END_TEST

START_TEST(damage_in_one_tier_is_repaired_from_the_next)
{
    rig_setting s = both();
    s.tier = _i % 2 ? DISK : MEMORY;
    s.chunk_pages = _i / 2 ? 2 : 0;
    open_with_pages(&s, 6);
    ck_assert(rig.tier->ops->damage(rig.tier, key_of(a, 3)));
    ck_assert_int_eq(rig_request(a, 6), 6);
    ck_assert_uint_eq(rig_stats().misses[SL_MISS_DAMAGED], 1);
    ck_assert_uint_eq(rig_stats().hits, 5);
    ck_assert_uint_eq(rig_second_stats().hits, 1);
    ck_assert_int_eq(rig.gone[0], 1);
    check_given_back();
    sl_store_flush(rig.store);
    ck_assert_int_eq(rig_request(a, 6), 6); /* it was written again */
    ck_assert_uint_eq(rig_second_stats().hits, 1);
    rig_close_all();
}
END_TEST

/* The same damaged rows are in both tiers, which have the right checksums of them: the owner's checksums find them. */
START_TEST(damage_in_both_tiers_is_found)
{
    rig_setting s = both();
    if (_i)
        s.second.policy = SL_CASCADE_READ_ONLY;
    rig_open_all(&s);
    memcpy(a, rig_prompt(1, LONGEST, 0), sizeof a);
    rig_request_now(a, 4);
    sl_lease *l;
    ck_assert_int_eq(sl_store_lease(rig.store, rig_seed, a, 4 * PAGE + 1, &l), SL_OK);
    struct iovec spans[LAYERS * SL_CACHE_PLANES];
    sl_arena_spans(rig.arena, sl_lease_pages(l)[2], spans);
    ((uint8_t *)spans[0].iov_base)[5] ^= 1;
    sl_lease_release(l, true);
    rig_settle();
    sl_store_flush(rig.store);
    ck_assert_int_eq(rig_request(a, 4), 2);
    ck_assert_uint_eq(rig_stats().misses[SL_MISS_DAMAGED], 2);
    ck_assert_uint_eq(rig_second_stats().misses[SL_MISS_DAMAGED], _i ? 0 : 1);
    ck_assert_int_eq(rig.gone[0], 1);
    ck_assert_int_eq(rig.gone[1], _i ? 0 : 1);
    check_given_back();
    rig_close_all();
}
END_TEST

/* Replaces a page of the tier by one with another row and the old label: right for the tier, wrong for the owner. */
static void replace_rows(sl_tier *tier, int i)
{
    size_t bytes;
    sl_key format, key = key_of(a, i);
    ck_assert(sl_cascade_page_format(sl_arena_geometry(rig.arena), &bytes, &format));
    struct iovec span = {calloc(1, bytes), bytes};
    sl_tier_page page = {&span, 1};
    static const sl_tier_op ops[] = {SL_TIER_GET, SL_TIER_REMOVE, SL_TIER_SET};
    for (size_t k = 0; k < SL_COUNT(ops); k++) {
        bool done = false;
        sl_status result;
        sl_tier_req r = {.op = ops[k], .n = 1, .keys = &key, .pages = &page, .results = &result};
        r.done = on_done;
        r.cookie = &done;
        ck_assert_int_eq(sl_tier_submit(tier, &r), SL_OK);
        while (!done)
            sl_tier_poll(tier);
        ck_assert_int_eq(result, SL_OK);
        ((uint8_t *)span.iov_base)[5] ^= ops[k] == SL_TIER_GET;
    }
    free(span.iov_base);
}

/* Wrong rows in the middle of a chunk: this page alone leaves the tier and comes from the next one. */
START_TEST(only_the_wrong_page_is_replaced)
{
    rig_setting s = both();
    open_with_pages(&s, 6);
    replace_rows(rig.tier, 2);
    ck_assert_int_eq(rig_request(a, 6), 6);
    ck_assert_uint_eq(rig_stats().hits, 5);
    ck_assert_uint_eq(rig_stats().misses[SL_MISS_DAMAGED], 1);
    ck_assert_uint_eq(rig_second_stats().hits, 1);
    ck_assert_int_eq(rig.gone[0], 1);
    ck_assert_int_eq(rig.gone[1], 0);
    check_given_back();
    rig_close_all();
}
END_TEST

START_TEST(a_dead_tier_does_not_stop_the_other)
{
    rig_setting s = both();
    open_with_pages(&s, 5);
    fault_tier_set(_i ? rig.second : rig.tier, &(faults){.die_after = 1});
    ck_assert_int_eq(rig_request(a, 5), 5);
    sl_cascade_stats living = _i ? rig_stats() : rig_second_stats();
    ck_assert_uint_eq(living.hits, 5);
    ck_assert_uint_eq(rig_stats().misses[SL_MISS_IO], _i ? 0 : 5);
    rig_request(b, 3);
    check_given_back();
    living = _i ? rig_stats() : rig_second_stats();
    ck_assert_uint_ge(living.stored, 8);
    ck_assert_uint_ge((_i ? rig_second_stats() : rig_stats()).lost[SL_LOST_IO], 3);
    rig_close_all();
}
END_TEST

/* The first tier has failed, and the second one is asked only for requests that name a worker: the request continues at once, and does
 * not wait for a time to end. */
START_TEST(no_tier_to_ask_ends_the_wait_at_once)
{
    rig_setting s = both();
    open_with_pages(&s, 5);
    fault_tier_set(rig.tier, &(faults){.die_after = 1});
    ck_assert_int_eq(ask(rig.tier, SL_TIER_EXISTS, 0), SL_ERR_IO);
    static sl_tier_ops workers;
    workers = *rig.second->ops;
    workers.needs_source = true;
    rig.second->ops = &workers;
    rig_waiting w = {0};
    bool waits = rig_wait_for(&w, a, 5);
    rig_news();
    ck_assert(!waits || w.ready);
    ck_assert_int_eq(sl_cascade_waiting(rig.cascade), 0);
    ck_assert_uint_eq(rig_stats().misses[SL_MISS_IO], 5);
    check_given_back();
    rig_close_all();
}
END_TEST

/* What a request was told that its pages were loaded stays pinned until it asks for more news, also when it does not take them. */
START_TEST(loaded_pages_stay_pinned_until_the_next_news)
{
    rig_setting s = both();
    sl_store_stats st;
    sl_cascade_news news;
    open_with_pages(&s, 5);
    rig_waiting w = {0}, v = {0};
    ck_assert(rig_wait_for(&w, a, 5));
    ck_assert(rig_wait_for(&v, a, 5));
    while (sl_cascade_waiting(rig.cascade)) {
        rig_answer_all();
        sl_cascade_tick(rig.cascade, sl_now_ns());
    }
    ck_assert_uint_eq(sl_cascade_tick(rig.cascade, 77), 77); /* there is news */
    ck_assert(!sl_cascade_idle(rig.cascade));
    if (_i == 0) {
        ck_assert(sl_cascade_next(rig.cascade, &news) && news.ended && news.w == &w.w);
        sl_store_stats_get(rig.store, &st);
        ck_assert_int_eq(st.held, 5);
        ck_assert(w.w.loaded == 0 && w.w.loaded_end == 5);
        ck_assert(sl_cascade_next(rig.cascade, &news) && news.ended && news.w == &v.w);
        sl_store_stats_get(rig.store, &st);
        ck_assert_int_eq(st.held, 5);
    } else { /* both leave without their news */
        sl_cascade_leave(rig.cascade, &v.w);
        sl_cascade_leave(rig.cascade, &w.w);
    }
    ck_assert(!sl_cascade_next(rig.cascade, &news));
    sl_store_stats_get(rig.store, &st);
    ck_assert_int_eq(st.held, 0);
    check_given_back();
    rig_close_all();
}
END_TEST

/* The first tier does not answer: to the question which pages it has, or to the request to read them. */
START_TEST(a_late_tier_does_not_stop_the_other)
{
    rig_setting s = both();
    s.timeout_ms = 50;
    open_with_pages(&s, 4);
    rig_waiting w = {0}, v = {0};
    const faults stuck = {.delay_polls = 1000};
    if (_i == 0)
        fault_tier_set(rig.tier, &stuck);
    ck_assert(rig_wait_for(&w, a, 4));
    if (_i == 1) {
        rig_tick(sl_now_ns()); /* the tier has answered the lookup, and is not able to answer the read */
        fault_tier_set(rig.tier, &stuck);
        while (!rig_stats().loading)
            rig_tick(sl_now_ns());
    }
    ck_assert(!w.ready);
    rig_tick(sl_now_ns() + 60000000);
    ck_assert_uint_eq(rig_stats().misses[SL_MISS_LATE],
                      _i ? 4 : 0); /* with the lookup when its load has ended */
    if (_i) {
        ck_assert(w.ready);
        ck_assert(rig_wait_for(&w, a, 4)); /* again, because another tier may have the pages */
    }
    while (!w.ready)
        rig_turn();
    ck_assert_uint_eq(rig_stats().misses[SL_MISS_LATE], _i ? 8 : 4);
    ck_assert_uint_eq(rig_second_stats().hits, 4);
    ck_assert_int_eq(rig_request_now(a, 4), 4);
    ck_assert(!rig_wait_for(&v, a, 4));
    fault_tier_set(rig.tier, &none);
    check_given_back();
    sl_store_flush(rig.store);
    ck_assert_int_eq(rig_request(a, 4), 4); /* the tier is asked again when it has drained */
    ck_assert_uint_eq(rig_stats().hits, 4);
    rig_close_all();
}
END_TEST

START_TEST(selective_writes_at_the_second_use)
{
    rig_setting s = both();
    s.second.policy = SL_CASCADE_WRITE_SELECTIVE;
    rig_open_all(&s);
    memcpy(a, rig_prompt(1, LONGEST, 0), sizeof a);
    rig_request(a, 6);
    rig_settle();
    ck_assert_uint_eq(rig_stats().stored, 6);
    ck_assert_uint_eq(rig_second_stats().stored, 0);
    rig_request(a, 4);
    check_given_back();
    ck_assert_uint_eq(rig_second_stats().stored, 4);
    sl_store_flush(rig.store); /* no eviction */
    ck_assert_uint_eq(rig_second_stats().lost[SL_LOST_ADMISSION], 0);
    ck_assert_int_eq(rig_request(a, 6), 6); /* from the first one: this is a second use of the last two */
    check_given_back();
    ck_assert_uint_eq(tier_stats(rig.second).sets, 6);
    sl_cascade_finish(rig.cascade);
    rig_request_now(rig_prompt(2, LONGEST, 0), 2);
    check_given_back();
    ck_assert_uint_eq(tier_stats(rig.second).sets, 6); /* nor does a stop write what was used once */
    rig_close_all();
}
END_TEST

START_TEST(read_only_is_never_written)
{
    rig_setting s = both();
    s.second.policy = SL_CASCADE_READ_ONLY;
    open_with_pages(&s, 6);
    sl_cascade_finish(rig.cascade);
    check_given_back();
    ck_assert_uint_eq(tier_stats(rig.second).sets, 0);
    ck_assert_uint_eq(tier_stats(rig.tier).sets, 6);
    rig_close_all();
}
END_TEST

/* write_back in one tier does not keep the other from being written through, and the other way round. */
START_TEST(each_tier_has_its_policy)
{
    rig_setting s = both();
    s.policy = SL_CASCADE_WRITE_BACK;
    rig_open_all(&s);
    rig_request(rig_prompt(1, LONGEST, 0), 6);
    rig_settle();
    ck_assert_uint_eq(rig_stats().stored, 0);
    ck_assert_uint_eq(rig_second_stats().stored, 6);
    sl_cascade_finish(rig.cascade);
    check_given_back();
    ck_assert_uint_eq(rig_stats().stored, 6);
    rig_close_all();
}
END_TEST

/* A tier that is stuck holds its share of the pages and no more; the other one is written. */
START_TEST(a_stuck_writer_does_not_stop_the_other)
{
    rig_setting s = both();
    rig_open_all(&s);
    fault_tier_set(rig.tier, &(faults){.delay_polls = 1000});
    memcpy(a, rig_prompt(1, LONGEST, 0), sizeof a);
    rig_request_now(a, 12);
    for (int i = 0; i < 100 && rig_second_stats().stored < 12; i++)
        rig_turn();
    ck_assert_uint_eq(rig_second_stats().stored, 12);
    ck_assert_int_le(rig_stats().writing, PAGES / 8);
    fault_tier_set(rig.tier, &none);
    check_given_back();
    ck_assert_uint_eq(rig_stats().stored, 12);
    rig_close_all();
}
END_TEST

/* Each chunk that is verified is worth something, whatever happens to the following ones. */
START_TEST(a_load_has_chunks)
{
    rig_setting s = both();
    s.second.is = false;
    s.chunk_pages = 2;
    rig_open_all(&s);
    memcpy(a, rig_prompt(1, LONGEST, 0), sizeof a);
    rig_request(a, 12);
    rig_settle();
    sl_store_flush(rig.store);
    rig_waiting w = {0};
    ck_assert(rig_wait_for(&w, a, 12));
    uint64_t changes = sl_cascade_changes(rig.cascade);
    while (rig_stats().hits < 4)
        rig_turn();
    ck_assert(!w.ready);
    ck_assert_int_eq(w.begun, 12); /* told once */
    ck_assert_uint_gt(sl_cascade_changes(rig.cascade), changes);
    ck_assert(sl_cascade_may_load(rig.cascade, rig_seed, key_of(a, 11)));
    ck_assert(!sl_cascade_may_load(rig.cascade, rig_seed, key_of(a, 12)));
    ck_assert(!sl_cascade_may_load(rig.cascade, (sl_key){8, 8}, key_of(a, 11)));
    changes = sl_cascade_changes(rig.cascade);
    ck_assert_int_ge(sl_store_match(rig.store, rig_seed, a, 12 * PAGE + 1), 4);
    sl_cascade_leave(rig.cascade, &w.w); /* the load ends early */
    ck_assert_uint_gt(sl_cascade_changes(rig.cascade), changes);
    ck_assert(!sl_cascade_may_load(rig.cascade, rig_seed, key_of(a, 11)));
    rig_settle();
    for (int i = 0; i < 20; i++)
        rig_turn();
    int have = sl_store_match(rig.store, rig_seed, a, 12 * PAGE + 1);
    ck_assert_int_ge(have, 4);
    ck_assert_int_lt(have, 12);
    ck_assert_uint_eq(tier_stats(rig.tier).leased, 0);
    ck_assert(sl_cascade_idle(rig.cascade));
    ck_assert_int_eq(rig_request(a, 12), 12);
    sl_store_flush(rig.store);
    ck_assert(rig.tier->ops->damage(rig.tier, key_of(a, 7)));
    ck_assert_int_eq(rig_request(a, 12), 7);
    rig_close_all();
}
END_TEST

/* The time of a load ends while the checksums of what has arrived are compared: its pages are late; they do not lack room. */
START_TEST(late_while_checksums_are_compared)
{
    rig_setting s = both();
    s.second.is = _i == 1;
    s.chunk_pages = 2;
    rig_open_all(&s);
    memcpy(a, rig_prompt(1, LONGEST, 0), sizeof a);
    rig_request(a, 12);
    rig_settle();
    sl_store_flush(rig.store);
    if (_i == 1) /* the first chunk comes from both tiers */
        ck_assert_int_eq(ask(rig.tier, SL_TIER_REMOVE, 1), SL_OK);
    rig_waiting w = {0};
    ck_assert(rig_wait_for(&w, a, 12));
    while (!rig.n_jobs)
        rig_tick(sl_now_ns());
    rig_tick(sl_now_ns() + 61000000000u);
    ck_assert(w.ready);
    uint64_t elsewhere = _i == 1 ? 1 : 0;
    ck_assert_uint_eq(rig_stats().misses[SL_MISS_ROOM], 0);
    ck_assert_uint_eq(rig_stats().misses[SL_MISS_LATE], 12 - elsewhere);
    ck_assert_uint_eq(rig_stats().misses[SL_MISS_ABSENT], 12 + elsewhere); /* 12 at the first request */
    if (_i == 1)
        ck_assert_uint_eq(rig_second_stats().misses[SL_MISS_LATE], 1);
    rig_settle();
    rig_close_all();
}
END_TEST

/* A request that leaves at any moment leaves nothing in use. */
START_TEST(leaving_gives_everything_back)
{
    for (int turns = 0; turns < 14; turns++) {
        rig_setting s = both();
        s.tier = turns % 2 ? DISK : MEMORY;
        s.chunk_pages = 3;
        open_with_pages(&s, 12);
        ask(rig.tier, SL_TIER_REMOVE, 5);
        rig_waiting w = {0}, v = {0};
        ck_assert(rig_wait_for(&w, a, 12));
        ck_assert(rig_wait_for(&v, a, 10));
        sl_cascade_leave(rig.cascade, &w.w);
        for (int i = 0; i < turns; i++)
            i % 3 == 2 ? rig_answer_all() : rig_tick(sl_now_ns());
        sl_cascade_leave(rig.cascade, &v.w);
        check_given_back();
        ck_assert_int_eq(rig_request(a, 12), 12);
        check_given_back();
        rig_close_all();
    }
}
END_TEST

/* The cascade tells what is in a tier and what is not any more. */
START_TEST(what_tiers_have_is_told)
{
    rig_setting s = both();
    s.capacity = 6;
    rig_open_all(&s);
    rig_request(rig_prompt(1, LONGEST, 0), 4);
    rig_settle();
    rig_request(rig_prompt(2, LONGEST, 0), 5);
    rig_settle();
    ck_assert_int_eq(rig.stored[0] - rig.gone[0], (int)tier_stats(rig.tier).pages);
    ck_assert_int_eq(rig.gone[0], 3);
    ck_assert_int_eq(rig.stored[1], 9);
    ck_assert_int_eq(rig.gone[1], 0);
    rig_close_all();
}
END_TEST

/* Random prompts against all faults in both tiers: whatever happens, no page of the tree is wrong and everything ends. */
START_TEST(never_a_wrong_page_from_two_tiers)
{
    uint64_t r = 5 + (uint64_t)_i;
    const faults f = {.delay_polls = 2, .lose_every = 11, .short_every = 13, .damage_every = 17},
                 g = {.delay_polls = 1, .lose_every = 7, .short_every = 19, .damage_every = 23};
    rig_setting s = both();
    s.tier = _i % 2 ? DISK : MEMORY;
    s.faults = &f;
    s.second.faults = &g;
    s.second.policy = _i < 2 ? SL_CASCADE_WRITE_SELECTIVE : SL_CASCADE_WRITE_BACK;
    s.chunk_pages = 1 + _i;
    s.capacity = _i % 2 ? 0 : 20;
    rig_open_all(&s);
    rig_traffic(&r, 200);
    ck_assert_uint_gt(rig_stats().hits, 0);
    ck_assert_uint_gt(rig_second_stats().hits, 0);
    check_given_back();
    rig_close_all();
}
END_TEST

int main(void)
{
    Suite *s = suite_create("cascade_list");
    TCase *t = tcase_create("cascade_list");
    tcase_set_timeout(t, 60);
    tcase_add_test(t, the_first_tier_is_enough);
    tcase_add_loop_test(t, a_much_faster_tier_is_asked_first, 0, 2);
    tcase_add_loop_test(t, a_load_mixes_tiers, 0, 3);
    tcase_add_loop_test(t, damage_in_one_tier_is_repaired_from_the_next, 0, 4);
    tcase_add_loop_test(t, damage_in_both_tiers_is_found, 0, 2);
    tcase_add_test(t, only_the_wrong_page_is_replaced);
    tcase_add_loop_test(t, a_dead_tier_does_not_stop_the_other, 0, 2);
    tcase_add_test(t, no_tier_to_ask_ends_the_wait_at_once);
    tcase_add_loop_test(t, loaded_pages_stay_pinned_until_the_next_news, 0, 2);
    tcase_add_loop_test(t, a_late_tier_does_not_stop_the_other, 0, 2);
    tcase_add_test(t, selective_writes_at_the_second_use);
    tcase_add_test(t, read_only_is_never_written);
    tcase_add_test(t, each_tier_has_its_policy);
    tcase_add_test(t, a_stuck_writer_does_not_stop_the_other);
    tcase_add_test(t, a_load_has_chunks);
    tcase_add_loop_test(t, late_while_checksums_are_compared, 0, 2);
    tcase_add_test(t, leaving_gives_everything_back);
    tcase_add_test(t, what_tiers_have_is_told);
    tcase_add_loop_test(t, never_a_wrong_page_from_two_tiers, 0, 4);
    suite_add_tcase(s, t);
    return run_suite(s);
}
