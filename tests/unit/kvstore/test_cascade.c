/* The cascade against the memory tier, the disk tier, and both with injected faults; cascade_rig.h plays the worker. */
#include <string.h>

#include "base/log.h"
#include "tests/unit/kvstore/cascade_rig.h"

static const faults slow = {.delay_polls = 3};

/* Variants of a loop test. */
static const rig_setting variants[] = {
    {.tier = MEMORY, .policy = SL_CASCADE_WRITE_BACK},
    {.tier = MEMORY, .policy = SL_CASCADE_WRITE_THROUGH},
    {.tier = MEMORY, .policy = SL_CASCADE_WRITE_BACK, .faults = &slow},
    {.tier = MEMORY, .policy = SL_CASCADE_WRITE_THROUGH, .faults = &slow},
    {.tier = DISK, .policy = SL_CASCADE_WRITE_BACK},
    {.tier = DISK, .policy = SL_CASCADE_WRITE_THROUGH},
};

static int32_t a[LONGEST * PAGE], b[LONGEST * PAGE];

static void two_prompts(void)
{
    memcpy(a, rig_prompt(1, LONGEST, 0), sizeof a);
    memcpy(b, rig_prompt(2, LONGEST, 0), sizeof b);
}

/* Evicts everything. In steps, so that a cascade that writes at eviction keeps up. */
static void evict(void)
{
    for (int i = 0; i < 12; i++) {
        ck_assert_int_ge(rig_request_now(rig_prompt(100 + i, LONGEST, i), 3), 0);
        rig_settle();
    }
}

START_TEST(evicted_pages_come_back)
{
    rig_open_all(&variants[_i]);
    two_prompts();
    ck_assert_int_eq(rig_request(a, 6), 0);
    rig_settle();
    evict();
    ck_assert_int_eq(sl_store_match(rig.store, rig_seed, a, 6 * PAGE + 1), 0);
    ck_assert_uint_eq(rig_stats().lost[SL_LOST_PRESSURE], 0);
    ck_assert_int_eq(rig_request(a, 6), 6);
    sl_cascade_stats s = rig_stats();
    ck_assert_uint_eq(s.hits, 6);
    ck_assert_uint_ge(s.stored, 6);
    ck_assert_uint_eq(s.loads, 1);
    ck_assert_uint_gt(s.bytes_loaded, 6 * (uint64_t)sl_arena_geometry(rig.arena)->page_bytes);
    ck_assert_int_eq(rig_request(a, 8), 6); /* the last two are not there */
    ck_assert_int_eq(rig_request(b, 2), 0);
    rig_close_all();
}
END_TEST

START_TEST(write_through_needs_no_eviction)
{
    rig_open_all(&(rig_setting){.tier = MEMORY, .policy = SL_CASCADE_WRITE_THROUGH});
    two_prompts();
    rig_request(a, 5);
    rig_settle();
    ck_assert_uint_eq(rig_stats().stored, 5);
    ck_assert(sl_cascade_idle(rig.cascade));
    sl_store_flush(rig.store);
    ck_assert_int_eq(rig_request(a, 5), 5);
    rig_close_all();
}
END_TEST

START_TEST(write_back_writes_when_it_must)
{
    rig_open_all(&(rig_setting){.tier = MEMORY, .policy = SL_CASCADE_WRITE_BACK});
    two_prompts();
    rig_request(a, 5);
    rig_settle();
    ck_assert_uint_eq(rig_stats().stored, 0);
    sl_cascade_finish(rig.cascade);
    ck_assert(!sl_cascade_idle(rig.cascade));
    rig_settle();
    ck_assert(sl_cascade_idle(rig.cascade));
    ck_assert_uint_eq(rig_stats().stored, 5);
    ck_assert(!rig_wait_for(&(rig_waiting){0}, b, 3)); /* nothing is loaded any more */
    rig_close_all();
}
END_TEST

/* The order of rows in memory may change between page_first and layer_first; page_head is another format. */
START_TEST(the_second_process_finds_them)
{
    static const sl_layout layouts[][2] = {{SL_LAYOUT_LAYER_FIRST, SL_LAYOUT_PAGE_FIRST},
                                           {SL_LAYOUT_PAGE_FIRST, SL_LAYOUT_LAYER_FIRST},
                                           {SL_LAYOUT_PAGE_HEAD, SL_LAYOUT_PAGE_HEAD}};
    rig_setting s = {.tier = DISK, .policy = SL_CASCADE_WRITE_THROUGH};
    size_t bytes;
    sl_key first, second;
    rig_make_store(layouts[_i][0]);
    rig_open_cascade(&s);
    ck_assert(sl_cascade_page_format(sl_arena_geometry(rig.arena), &bytes, &first));
    two_prompts();
    rig_request(a, 6);
    rig_settle();
    sl_cascade_destroy(rig.cascade);
    rig_close_store();
    rig_make_store(layouts[_i][1]);
    rig_open_cascade(&s);
    ck_assert_int_eq(rig_request(a, 6), 6);
    rig_close_all();
    rig_make_store(_i == 2 ? SL_LAYOUT_PAGE_FIRST : SL_LAYOUT_PAGE_HEAD);
    ck_assert(sl_cascade_page_format(sl_arena_geometry(rig.arena), &bytes, &second));
    ck_assert(!sl_key_eq(first, second));
    rig_close_store();
}
END_TEST

START_TEST(one_load_for_all)
{
    rig_open_all(&(rig_setting){.tier = MEMORY, .policy = SL_CASCADE_WRITE_THROUGH});
    two_prompts();
    rig_request(a, 8);
    rig_settle();
    sl_store_flush(rig.store);
    rig_waiting w[4] = {0};
    for (int i = 0; i < 4; i++)
        ck_assert(rig_wait_for(&w[i], a, 4 + i));
    sl_cascade_leave(rig.cascade, &w[0].w); /* the request that began the load is gone */
    ck_assert_int_eq(sl_cascade_waiting(rig.cascade), 3);
    while (!w[1].ready)
        rig_turn();
    ck_assert(!w[0].ready && w[2].ready && w[3].ready);
    ck_assert_uint_eq(rig_stats().loads, 1);
    ck_assert_int_eq(rig_request_now(a, 4), 4);
    ck_assert(!rig_wait_for(&w[0], a, 4));
    ck_assert_int_eq(rig_request(a, 7), 7); /* the pages that the first load did not cover, by a second one */
    ck_assert_uint_eq(rig_stats().loads, 2);
    ck_assert_uint_eq(rig_stats().hits, 7);
    rig_close_all();
}
END_TEST

static sl_key key_of(const int32_t *tokens, int i)
{
    sl_key k = rig_seed;
    for (int p = 0; p <= i; p++)
        k = sl_page_key(k, tokens + p * PAGE);
    return k;
}

START_TEST(a_damaged_page_is_computed_again)
{
    rig_open_all(&(rig_setting){.tier = _i ? DISK : MEMORY, .policy = SL_CASCADE_WRITE_THROUGH});
    two_prompts();
    rig_request(a, 6);
    rig_settle();
    sl_store_flush(rig.store);
    ck_assert(rig.tier->ops->damage(rig.tier, key_of(a, 3)));
    ck_assert_int_eq(rig_request(a, 6), 3);
    ck_assert_uint_eq(rig_stats().misses[SL_MISS_DAMAGED], 3);
    rig_settle();
    sl_store_flush(rig.store);
    ck_assert_int_eq(rig_request(a, 6), 6); /* it was written again */
    rig_close_all();
}
END_TEST

/* Rows that were changed in memory before they were written have a right checksum on the device. */
START_TEST(damage_before_the_write_is_found)
{
    rig_open_all(&(rig_setting){.tier = MEMORY, .policy = SL_CASCADE_WRITE_THROUGH});
    two_prompts();
    rig_request_now(a, 4);
    sl_lease *l;
    ck_assert_int_eq(sl_store_lease(rig.store, rig_seed, a, 4 * PAGE + 1, &l), SL_OK);
    struct iovec spans[LAYERS * SL_CACHE_PLANES];
    sl_arena_spans(rig.arena, sl_lease_pages(l)[2], spans);
    ((uint8_t *)spans[0].iov_base)[5] ^= 1;
    sl_lease_release(l, true);
    rig_settle();
    sl_store_flush(rig.store);
    ck_assert_int_eq(rig_request(a, 4), 2); /* those before it are right, and used */
    ck_assert_uint_eq(rig_stats().hits, 2);
    ck_assert_uint_eq(rig_stats().misses[SL_MISS_DAMAGED], 2);
    ck_assert_int_eq(rig.gone[0], 1); /* the page after it is right as well, and stays in the tier */
    rig_settle();
    sl_store_flush(rig.store);
    ck_assert_int_eq(rig_request(a, 4), 4);
    rig_close_all();
}
END_TEST

static void on_set(sl_tier_req *req, sl_status st)
{
    ck_assert_int_eq(st, SL_OK);
    *(bool *)req->cookie = true;
}

/* A page without this prompt's tokens under its key: what a collision of keys would be. */
START_TEST(another_prompt_of_the_same_key_is_no_hit)
{
    rig_open_all(&(rig_setting){.tier = MEMORY, .policy = SL_CASCADE_WRITE_THROUGH});
    two_prompts();
    size_t bytes;
    bool done = false;
    sl_status result;
    sl_key format, key = key_of(b, 0);
    ck_assert(sl_cascade_page_format(sl_arena_geometry(rig.arena), &bytes, &format));
    struct iovec span = {calloc(1, bytes), bytes};
    sl_tier_page page = {&span, 1};
    sl_tier_req r = {.op = SL_TIER_SET, .n = 1, .keys = &key, .pages = &page, .results = &result};
    r.done = on_set;
    r.cookie = &done;
    ck_assert_int_eq(sl_tier_submit(rig.tier, &r), SL_OK);
    while (!done)
        sl_tier_poll(rig.tier);
    ck_assert_int_eq(result, SL_OK);
    ck_assert_int_eq(rig_request(b, 3), 0);
    ck_assert_uint_eq(rig_stats().loads, 1);
    ck_assert_uint_eq(rig_stats().misses[SL_MISS_ABSENT], 3);
    free(span.iov_base);
    rig_close_all();
}
END_TEST

START_TEST(a_late_load_lets_requests_go)
{
    faults f = {.delay_polls = 0};
    rig_open_all(
        &(rig_setting){.tier = MEMORY, .policy = SL_CASCADE_WRITE_THROUGH, .faults = &f, .timeout_ms = 10});
    two_prompts();
    rig_request(a, 4);
    rig_settle();
    sl_store_flush(rig.store);
    fault_tier_set(rig.tier, &(faults){.delay_polls = 1 << 20});
    rig_waiting w = {0}, v = {0};
    ck_assert(rig_wait_for(&w, a, 4));
    ck_assert(rig_wait_for(&v, a, 3));
    rig_tick(sl_now_ns() + 20000000);
    ck_assert(w.ready && v.ready);
    ck_assert_uint_eq(rig_stats().misses[SL_MISS_LATE], 4);
    ck_assert(!rig_wait_for(&w, a, 4)); /* it does not wait twice */
    w = (rig_waiting){0};
    ck_assert(!rig_wait_for(&w, b, 4)); /* and no other load begins while one is late */
    ck_assert_uint_eq(rig_stats().misses[SL_MISS_LATE], 8);
    ck_assert_int_eq(rig_request_now(a, 4), 0);
    ck_assert_int_eq(sl_cascade_waiting(rig.cascade), 0);
    rig_close_all(); /* with the load in flight */
}
END_TEST

START_TEST(a_dead_tier_costs_hits_only)
{
    faults f = {0};
    rig_open_all(
        &(rig_setting){.tier = _i ? DISK : MEMORY, .policy = SL_CASCADE_WRITE_THROUGH, .faults = &f});
    two_prompts();
    rig_request(a, 4);
    rig_settle();
    sl_store_flush(rig.store);
    fault_tier_set(rig.tier, &(faults){.die_after = 1});
    ck_assert_int_eq(rig_request(a, 4), 0);
    ck_assert_uint_ge(rig_stats().misses[SL_MISS_IO] + rig_stats().misses[SL_MISS_ABSENT], 4);
    rig_settle();
    ck_assert_uint_eq(rig_stats().lost[SL_LOST_IO], 4);
    ck_assert_uint_eq(rig_stats().stored, 4);
    rig_close_all();
}
END_TEST

/* A page that is evicted while it is being written keeps its memory until the write has ended. */
START_TEST(memory_is_free_after_the_write)
{
    faults f = {.delay_polls = 40};
    rig_open_all(&(rig_setting){.tier = MEMORY, .policy = SL_CASCADE_WRITE_THROUGH, .faults = &f});
    two_prompts();
    enum { HELD = PAGES / 8 };
    sl_store_stats s;
    ck_assert_int_eq(rig_request_now(a, HELD), 0);
    rig_turn();
    rig_turn(); /* its pages are with the tier */
    ck_assert_int_eq(rig_stats().writing, HELD);
    ck_assert_int_eq(sl_store_available(rig.store), PAGES - HELD);
    ck_assert_int_eq(rig_request_now(b, 22), 0);
    ck_assert_int_eq(rig_request_now(rig_prompt(3, LONGEST, 0), PAGES - HELD),
                     -1); /* with its last token one page too long */
    ck_assert_int_eq(rig_request_now(rig_prompt(3, LONGEST, 0), 10),
                     0); /* evicts the pages that are written */
    sl_store_stats_get(rig.store, &s);
    ck_assert_int_eq(s.leaving, HELD);
    ck_assert_int_eq(sl_store_match(rig.store, rig_seed, a, PAGE + 1), 0);
    fault_tier_set(rig.tier, &(faults){0});
    rig_settle();
    sl_store_stats_get(rig.store, &s);
    ck_assert_int_eq(s.leaving, 0);
    ck_assert_int_eq(rig_request(a, HELD + 2),
                     HELD); /* what was written is what was there before the eviction */
    rig_close_all();
}
END_TEST

START_TEST(what_is_lost_is_counted)
{
    faults f = {.delay_polls = 50};
    rig_open_all(&(rig_setting){.tier = MEMORY, .policy = SL_CASCADE_WRITE_BACK, .faults = &f});
    two_prompts();
    rig_request_now(a, 20);
    rig_request_now(b, 30); /* evicts at once, without a turn for the cascade */
    ck_assert_uint_ge(rig_stats().lost[SL_LOST_PRESSURE], 18);
    rig_close_all();
    rig_open_all(&(rig_setting){.tier = DISK, .policy = SL_CASCADE_WRITE_THROUGH, .second_use = true});
    rig_request_now(a, 5);
    rig_settle();
    ck_assert_uint_eq(rig_stats().lost[SL_LOST_ADMISSION], 5);
    sl_store_flush(rig.store);
    ck_assert_int_eq(rig_request(a, 5), 0);
    rig_settle();
    sl_store_flush(rig.store);
    ck_assert_int_eq(rig_request(a, 5), 5); /* stored at the second offer */
    rig_settle();
    rig.refuse_jobs = true;
    rig_request_now(b, 4);
    rig_settle();
    ck_assert_uint_eq(rig_stats().lost[SL_LOST_SUMS], 4);
    sl_store_flush(rig.store);
    ck_assert_int_eq(rig_request(a, 5), 0); /* checksums cannot be compared: no hit */
    rig_close_all();
}
END_TEST

/* The end of a worker with everything in flight. */
START_TEST(it_ends_at_any_moment)
{
    for (int turns = 0; turns < 12; turns++) {
        faults f = {.delay_polls = turns % 3};
        rig_open_all(&(rig_setting){
            .tier = turns % 2 ? DISK : MEMORY, .policy = SL_CASCADE_WRITE_THROUGH, .faults = &f});
        two_prompts();
        rig_request(a, 6);
        rig_settle();
        sl_store_flush(rig.store);
        rig_waiting w = {0};
        ck_assert(rig_wait_for(&w, a, 6));
        rig_request_now(b, 8);
        for (int i = 0; i < turns; i++)
            rig_tick(sl_now_ns());
        if (turns > 6)
            rig_answer_all();
        if (!w.ready)
            sl_cascade_leave(rig.cascade, &w.w);
        rig_close_all();
    }
}
END_TEST

/* Random prompts of a few families against all faults: whatever happens, no page of the tree is wrong. */
START_TEST(never_a_wrong_page)
{
    uint64_t r = 99 + (uint64_t)_i;
    faults f = {.delay_polls = 2, .lose_every = 11, .short_every = 13, .damage_every = 17};
    rig_open_all(&(rig_setting){.tier = _i % 2 ? DISK : MEMORY,
                                .policy = _i < 2 ? SL_CASCADE_WRITE_THROUGH : SL_CASCADE_WRITE_BACK,
                                .faults = &f,
                                .second_use = _i == 3});
    rig_traffic(&r, 250);
    ck_assert_uint_gt(rig_stats().hits, 0);
    ck_assert_uint_gt(rig_stats().stored, 0);
    rig_close_all();
}
END_TEST

int main(void)
{
    Suite *s = suite_create("cascade");
    TCase *t = tcase_create("cascade");
    tcase_set_timeout(t, 60);
    tcase_add_loop_test(t, evicted_pages_come_back, 0, (int)(sizeof variants / sizeof *variants));
    tcase_add_test(t, write_through_needs_no_eviction);
    tcase_add_test(t, write_back_writes_when_it_must);
    tcase_add_loop_test(t, the_second_process_finds_them, 0, 3);
    tcase_add_test(t, one_load_for_all);
    tcase_add_loop_test(t, a_damaged_page_is_computed_again, 0, 2);
    tcase_add_test(t, damage_before_the_write_is_found);
    tcase_add_test(t, another_prompt_of_the_same_key_is_no_hit);
    tcase_add_test(t, a_late_load_lets_requests_go);
    tcase_add_loop_test(t, a_dead_tier_costs_hits_only, 0, 2);
    tcase_add_test(t, memory_is_free_after_the_write);
    tcase_add_test(t, what_is_lost_is_counted);
    tcase_add_test(t, it_ends_at_any_moment);
    tcase_add_loop_test(t, never_a_wrong_page, 0, 4);
    suite_add_tcase(s, t);
    return run_suite(s);
}
