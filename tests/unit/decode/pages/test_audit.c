/*
 * Looking into the cache of a worker that serves (decode/pages/inspect.c, decode/pages/audit.c): lists in parts, a verify that finds damage
 * in memory and in a tier, a drop, and what ends them.
 */
#include <stdio.h>

#include "kvstore/page_key.h"
#include "tests/unit/decode/decode_double.h"
#include "tests/unit/run_suite.h"

static decode_double x;
static uint64_t question;

static void ask_for(sl_msg_cache_ask q)
{
    q.ask = ++question;
    dd_cache_ask(&x, &q);
}

/* The status of the answer. */
static sl_status job(sl_cache_action action, const char *tier)
{
    sl_msg_cache_ask q = {.action = (uint8_t)action, .rate = 1ull << 40};
    snprintf(q.tier, sizeof q.tier, "%s", tier);
    ask_for(q);
    while (x.seen < x.n_said && x.said[x.seen].type == SL_MSG_KV_EVENTS)
        x.seen++;
    return dd_expect(&x, SL_MSG_CACHE_JOB, question)->status;
}

/* Turns until the job has ended; its state is in x.job. */
static void finish(void)
{
    for (int turns = 0;; turns++) {
        ck_assert_int_lt(turns, 1000);
        dd_tick(&x, sl_now_ns());
        dd_tick(&x, UINT64_MAX);
        dd_check(&x);
        ck_assert_int_eq(job(SL_CACHE_STATUS, ""), SL_OK);
        if (x.job.state != SL_CACHE_RUNNING)
            return;
    }
}

static void keys_of(int seed, sl_key keys[3])
{
    int32_t tokens[200];
    for (int i = 0; i < 200; i++)
        tokens[i] = (i * 7 + seed) % DD_VOCAB;
    sl_page_keys(dd_seed, tokens, 200, keys);
}

/* A worker with the 3 full pages of one prompt in memory, and with `tier` in a tier too. */
static void open_with_pages(sl_cfg_verify verify, bool tier)
{
    dd_opts o = dd_defaults();
    o.verify = verify;
    o.pages = 24;
    o.tier = tier;
    o.local = tier;
    dd_open(&x, &o);
    dd_reserve(&x, 1, 200, 1, 0, 0);
    dd_settle(&x);
    dd_expect(&x, SL_MSG_RESERVED, 1);
    dd_commit(&x, 1, DD_WRITER, 0);
    dd_settle(&x);
    dd_expect(&x, SL_MSG_TOKENS, 1);
    dd_expect(&x, SL_MSG_DONE, 1);
}

/* Changes a byte of the page in host memory that has this key. */
static void damage_host(sl_key key)
{
    sl_store_entry e[24];
    int32_t at = 0, n = sl_store_list(x.d->role.store, &at, e, 24);
    for (int32_t i = 0; i < n; i++) {
        if (!sl_key_eq(e[i].key, key))
            continue;
        struct iovec spans[256];
        ck_assert_int_le(sl_arena_n_spans(x.arena), 256);
        sl_arena_spans(x.arena, e[i].page, spans);
        ((uint8_t *)spans[0].iov_base)[3] ^= 4;
        return;
    }
    ck_abort_msg("no such page");
}

static sl_tier *tier(void)
{
    return sl_cascade_tier_at(sl_pages_cascade(x.d->pages), 0);
}

static uint64_t tier_pages(void)
{
    sl_tier_stats s;
    sl_tier_get_stats(tier(), &s);
    return s.pages;
}

static int32_t host_pages(void)
{
    sl_store_stats s;
    sl_store_stats_get(x.d->role.store, &s);
    return s.cached;
}

/* Everything that matches, in parts of `most`; how many pages. */
static int list(const char *only, sl_key prefix, int bits, int most, sl_key *keys, uint32_t *tokens)
{
    int n = 0;
    uint64_t cursor = 0;
    do {
        sl_msg_cache_ask q = {.action = SL_CACHE_LIST,
                              .prefix = prefix,
                              .prefix_bits = (uint8_t)bits,
                              .cursor = cursor,
                              .most = (uint32_t)most};
        snprintf(q.tier, sizeof q.tier, "%s", only);
        ask_for(q);
        int got = (int)dd_expect(&x, SL_MSG_CACHE_PAGES, question)->n;
        ck_assert_int_le(got, most);
        sl_rd r = sl_rd_init(x.list.pages.data, x.list.pages.len);
        for (int i = 0; i < got; i++, n++) {
            keys[n].lo = sl_rd_u64(&r);
            keys[n].hi = sl_rd_u64(&r);
            tokens[n] = sl_rd_u32(&r);
            sl_rd_u32(&r);
            uint64_t age = sl_rd_u64(&r);
            ck_assert(tokens[n] ? age < 3600000 : age == UINT64_MAX);
        }
        cursor = x.list.cursor;
    } while (cursor);
    return n;
}

START_TEST(lists_come_in_parts)
{
    sl_key keys[3], got[64];
    uint32_t tokens[64], all = 0;
    open_with_pages(SL_CFG_VERIFY_ALWAYS, true);
    keys_of(0, keys);
    ck_assert_int_eq(list("host", (sl_key){0, 0}, 0, _i, got, tokens), 3);
    for (int i = 0; i < 3; i++) {
        for (int k = 0; k < 3; k++) {
            if (sl_key_eq(got[i], keys[k])) {
                ck_assert_uint_eq(tokens[i], (uint32_t)(k + 1) * SL_PAGE_TOKENS);
                all |= 1u << k;
            }
        }
    }
    ck_assert_uint_eq(all, 7);
    ck_assert_int_eq(list("memory", (sl_key){0, 0}, 0, _i, got, tokens), 3);
    ck_assert_uint_eq(tokens[0], 0); /* a tier knows keys only */
    ck_assert_int_eq(list("", (sl_key){0, 0}, 0, _i, got, tokens), 6);
    for (int bits = 1; bits <= 128; bits += 127) {
        int n = list("host", keys[1], bits, _i, got, tokens), want = 0;
        for (int k = 0; k < 3; k++)
            want += bits == 128 ? k == 1 : keys[k].hi >> 63 == keys[1].hi >> 63;
        ck_assert_int_eq(n, want);
    }
    ask_for((sl_msg_cache_ask){.action = SL_CACHE_LIST, .tier = "tape", .most = 1});
    ck_assert_int_eq(dd_expect(&x, SL_MSG_CACHE_JOB, question)->status, SL_ERR_INVALID);
    /* a cursor that no answer had */
    ask_for((sl_msg_cache_ask){.action = SL_CACHE_LIST, .cursor = UINT64_MAX, .most = 1});
    ck_assert_uint_eq(dd_expect(&x, SL_MSG_CACHE_PAGES, question)->n, 0);
    ask_for((sl_msg_cache_ask){.action = SL_CACHE_LIST, .cursor = 1ull << 40, .most = 1});
    ck_assert_uint_eq(dd_expect(&x, SL_MSG_CACHE_PAGES, question)->n, 0);
    dd_close(&x);
}
END_TEST

START_TEST(verify_finds_nothing)
{
    open_with_pages(SL_CFG_VERIFY_ALWAYS, true);
    ck_assert_int_eq(job(SL_CACHE_STATUS, ""), SL_OK);
    ck_assert_int_eq(x.job.state, SL_CACHE_NONE);
    ck_assert_int_eq(job(SL_CACHE_VERIFY, ""), SL_OK);
    finish();
    ck_assert_int_eq(x.job.state, SL_CACHE_DONE);
    ck_assert_uint_eq(x.job.done, 6);
    ck_assert_uint_eq(x.job.bytes, 6u * (uint64_t)x.d->geo->page_bytes);
    ck_assert_uint_eq(x.job.damaged + x.job.unreadable + x.job.gone, 0);
    ck_assert_int_eq(host_pages(), 3);
    ck_assert_uint_eq(tier_pages(), 3);
    dd_close(&x);
}
END_TEST

/* A page in memory: it and the pages that continue it leave, the first one stays; what the tier has is right. */
START_TEST(verify_finds_damage_in_memory)
{
    sl_key keys[3];
    open_with_pages(SL_CFG_VERIFY_ALWAYS, true);
    keys_of(0, keys);
    damage_host(keys[1]);
    ck_assert_int_eq(job(SL_CACHE_VERIFY, ""), SL_OK);
    finish();
    ck_assert_uint_eq(x.job.damaged, 1);
    ck_assert_uint_eq(x.job.keys.len, sizeof(sl_key));
    ck_assert(sl_key_eq(x.damaged[0], keys[1]));
    ck_assert_int_eq(host_pages(), 1);
    ck_assert_uint_eq(tier_pages(), 3);
    dd_reserve(&x, 2, 200, 2, 0, 0);
    dd_settle(&x);
    ck_assert_uint_eq(dd_expect(&x, SL_MSG_RESERVED, 2)->matched, 3); /* two of them from the tier */
    dd_abort(&x, 2, SL_ERR_CANCELLED);
    dd_drained(&x, 2, DD_WRITER);
    dd_expect(&x, SL_MSG_DRAINED, 2);
    dd_settle(&x);
    dd_close(&x);
}
END_TEST

/* The stored bytes have changed, or they are those that were damaged in memory before they were written (_i 1). */
START_TEST(verify_finds_damage_in_a_tier)
{
    sl_key keys[3];
    keys_of(0, keys);
    if (_i) {
        dd_opts o = dd_defaults();
        o.verify = SL_CFG_VERIFY_ALWAYS;
        o.pages = 24;
        o.tier = o.local = true;
        dd_open(&x, &o);
        dd_reserve(&x, 1, 200, 1, 0, 0);
        dd_settle(&x);
        dd_expect(&x, SL_MSG_RESERVED, 1);
        dd_commit(&x, 1, DD_WRITER, 0);
        dd_check(&x); /* the checksums are kept; nothing is written yet */
        damage_host(keys[2]);
        dd_settle(&x);
        dd_expect(&x, SL_MSG_TOKENS, 1);
        dd_expect(&x, SL_MSG_DONE, 1);
    } else {
        open_with_pages(SL_CFG_VERIFY_ALWAYS, true);
        ck_assert(tier()->ops->damage(tier(), keys[2]));
    }
    ck_assert_int_eq(job(SL_CACHE_VERIFY, "memory"), SL_OK);
    finish();
    ck_assert_uint_eq(x.job.done, 3);
    ck_assert_uint_eq(x.job.damaged, 1);
    ck_assert_uint_eq(x.job.gone, 0);
    ck_assert(sl_key_eq(x.damaged[0], keys[2]));
    ck_assert_uint_eq(tier_pages(), 2);
    ck_assert_int_eq(host_pages(), 3);
    dd_close(&x);
}
END_TEST

/* A request that uses the damaged page begins again at another attempt. */
START_TEST(verify_ends_requests_with_damaged_pages)
{
    sl_key keys[3];
    open_with_pages(SL_CFG_VERIFY_ALWAYS, false);
    keys_of(0, keys);
    dd_reserve(&x, 2, 200, 40, 0, 0);
    ck_assert_uint_eq(dd_expect(&x, SL_MSG_RESERVED, 2)->matched, 3);
    dd_commit(&x, 2, DD_WRITER, 0);
    dd_check(&x);
    dd_expect(&x, SL_MSG_TOKENS, 2);
    damage_host(keys[0]);
    ck_assert_int_eq(job(SL_CACHE_VERIFY, "host"), SL_OK);
    for (int turns = 0; x.seen == x.n_said; turns++) {
        ck_assert_int_lt(turns, 100);
        dd_tick(&x, UINT64_MAX);
        dd_check(&x);
    }
    dd_expect(&x, SL_MSG_RETRACTED, 2);
    finish();
    ck_assert_uint_eq(x.job.damaged, 1);
    ck_assert_int_eq(dd_tickets(&x), 0);
    ck_assert_int_eq(host_pages(), 0);
    dd_close(&x);
}
END_TEST

/* What is evicted or flushed while the checker reads it keeps its memory until then. */
START_TEST(pages_may_leave_meanwhile)
{
    sl_key keys[3];
    open_with_pages(SL_CFG_VERIFY_ALWAYS, false);
    keys_of(0, keys);
    damage_host(keys[0]);
    ck_assert_int_eq(job(SL_CACHE_VERIFY, "host"), SL_OK);
    dd_tick(&x, UINT64_MAX); /* the checker has its job */
    sl_store_flush(x.d->role.store);
    ck_assert_int_eq(dd_held(&x), 3);
    finish();
    ck_assert_int_eq(dd_held(&x), 0);
    ck_assert_uint_eq(x.job.done, 3);
    dd_close(&x);
}
END_TEST

START_TEST(one_at_a_time_and_cancel)
{
    open_with_pages(SL_CFG_VERIFY_ALWAYS, true);
    ck_assert_int_eq(job(SL_CACHE_VERIFY, _i ? "memory" : "host"), SL_OK);
    ck_assert_int_eq(x.job.state, SL_CACHE_RUNNING);
    ck_assert_int_eq(job(SL_CACHE_DROP, "memory"), SL_ERR_REFUSED);
    ck_assert_int_eq(job(SL_CACHE_VERIFY, ""), SL_ERR_REFUSED);
    dd_tick(&x, UINT64_MAX); /* a batch is in flight */
    ck_assert_int_eq(job(SL_CACHE_CANCEL, ""), SL_OK);
    ck_assert_int_eq(x.job.state, SL_CACHE_RUNNING); /* until the batch is back */
    finish();
    ck_assert_int_eq(x.job.state, SL_CACHE_CANCELLED);
    ck_assert_int_eq(dd_held(&x), 0);
    ck_assert_int_eq(job(SL_CACHE_CANCEL, ""), SL_OK); /* nothing runs */
    ck_assert_int_eq(job(SL_CACHE_VERIFY, ""), SL_OK);
    finish();
    ck_assert_int_eq(x.job.state, SL_CACHE_DONE);
    ck_assert_uint_eq(x.job.done, 6);
    dd_close(&x);
}
END_TEST

START_TEST(the_worker_ends_meanwhile)
{
    open_with_pages(SL_CFG_VERIFY_ALWAYS, true);
    ck_assert_int_eq(job(SL_CACHE_VERIFY, "memory"), SL_OK);
    dd_tick(&x, UINT64_MAX); /* a read is in flight */
    if (_i) {
        x.d->role.draining = true;
        finish();
        ck_assert_int_eq(x.job.state, SL_CACHE_CANCELLED);
        ck_assert_int_eq(job(SL_CACHE_VERIFY, ""), SL_ERR_REFUSED);
    }
    dd_close(&x);
}
END_TEST

START_TEST(drop_empties_one_tier)
{
    open_with_pages(SL_CFG_VERIFY_ALWAYS, true);
    dd_router_up(&x, DD_ROUTER);
    dd_tick(&x, sl_now_ns());
    x.seen = x.n_said;
    ck_assert_int_eq(job(SL_CACHE_DROP, "memory"), SL_OK);
    finish();
    ck_assert_int_eq(x.job.action, SL_CACHE_DROP);
    ck_assert_uint_eq(x.job.done, 3);
    ck_assert_uint_eq(tier_pages(), 0);
    ck_assert_int_eq(host_pages(), 3);
    dd_tick(&x, sl_now_ns());
    int removed = 0;
    for (int i = 0; i < x.n_said; i++)
        removed += x.said[i].type == SL_MSG_KV_EVENTS && x.said[i].rid == SL_MEDIUM_DISK
                       ? (int)x.said[i].matched
                       : 0;
    ck_assert_int_eq(removed, 3); /* the routers are told */
    x.seen = x.n_said;
    ck_assert_int_eq(job(SL_CACHE_DROP, "host"), SL_OK);
    ck_assert_int_eq(x.job.state, SL_CACHE_DONE);
    ck_assert_uint_eq(x.job.done, 3);
    ck_assert_int_eq(host_pages(), 0);
    dd_close(&x);
}
END_TEST

START_TEST(without_kept_checksums)
{
    open_with_pages(SL_CFG_VERIFY_OFF, true);
    ck_assert_int_eq(job(SL_CACHE_VERIFY, "host"), SL_ERR_UNSUPPORTED);
    ck_assert_int_eq(job(SL_CACHE_VERIFY, ""), SL_OK);
    finish();
    ck_assert_uint_eq(x.job.done, 3); /* of the tier */
    ck_assert_str_eq(x.job.tier, "memory");
    dd_close(&x);
}
END_TEST

/* A slow rate makes pauses: nothing is read before they are over. */
START_TEST(the_rate_is_kept)
{
    open_with_pages(SL_CFG_VERIFY_ALWAYS, false);
    sl_msg_cache_ask q = {.action = SL_CACHE_VERIFY, .tier = "host", .rate = 1};
    ask_for(q);
    dd_expect(&x, SL_MSG_CACHE_JOB, question);
    uint64_t now = sl_now_ns();
    dd_tick(&x, now);
    ck_assert_int_eq(dd_check(&x), 1);
    uint64_t due = dd_tick(&x, now);
    ck_assert_uint_gt(due, now + 1000000000ull);
    ck_assert_int_eq(dd_check(&x), 0);
    ck_assert_int_eq(job(SL_CACHE_CANCEL, ""), SL_OK);
    finish();
    ck_assert_uint_eq(x.job.done, 1);
    dd_close(&x);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("audit");
    TCase *t = tcase_create("all");
    tcase_set_timeout(t, 60);
    tcase_add_loop_test(t, lists_come_in_parts, 1, 6);
    tcase_add_test(t, verify_finds_nothing);
    tcase_add_test(t, verify_finds_damage_in_memory);
    tcase_add_loop_test(t, verify_finds_damage_in_a_tier, 0, 2);
    tcase_add_test(t, verify_ends_requests_with_damaged_pages);
    tcase_add_test(t, pages_may_leave_meanwhile);
    tcase_add_loop_test(t, one_at_a_time_and_cancel, 0, 2);
    tcase_add_loop_test(t, the_worker_ends_meanwhile, 0, 2);
    tcase_add_test(t, drop_empties_one_tier);
    tcase_add_test(t, without_kept_checksums);
    tcase_add_test(t, the_rate_is_kept);
    suite_add_tcase(s, t);
    return run_suite(s);
}
