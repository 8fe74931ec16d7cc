/*
 * Placement by cost, in a router with mock workers: the owner of a prefix, a copy to another worker when the owner has much
 * work, what RESERVE names then, and the bounds of copies. The rule itself is tested in test_policy.c.
 */
#include <stdlib.h>
#include <string.h>

#include "kvstore/page_key.h"
#include "kvstore/snapshot.h"
#include "tests/unit/router/harness.h"

enum { OWNER = 1, OTHER = 2, PROMPT = 1000, PAGES = PROMPT / 64 };

static harness h;

static sl_member *member(int i)
{
    return sl_member_find(h.r, sl_mock_count(h.w[i])->worker_id);
}

/* No worker is known to have a request: the last report of each says so as well. */
static bool idle(void)
{
    for (const sl_member *w = h.r->cluster.members; w; w = w->next) {
        if (w->state != SL_MEMBER_DEAD && (w->load.running || w->load.waiting || w->load.queued_tokens ||
                                           w->load.free_pages + w->load.cached_pages < w->load.total_pages))
            return false;
    }
    return true;
}

static void ask(int32_t last)
{
    client c = {0};
    sl_request_spec s;
    h_spec(&s, PROMPT, 4);
    s.prompts->ids[PROMPT - 1] = last;
    snprintf(s.client, sizeof s.client, "acme");
    s.tenant = last % 2;
    h_submit(&h, &c, &s);
    H_UNTIL(&h, h_done(&c), 2000);
    ck_assert_int_eq(c.s[0].status, SL_OK);
    sl_group_release(c.group);
    h_run(&h, 10);
    H_UNTIL(&h, idle(), 1000);
}

static uint64_t reserved(int i)
{
    return sl_mock_count(h.w[i])->received[SL_MSG_RESERVE];
}

static void keys_of_prompt(sl_key keys[PAGES])
{
    sl_request_spec s;
    sl_share_domain everybody;
    h_spec(&s, PROMPT, 1);
    ck_assert(sl_share_domain_of(SL_SHARE_ALL, "", "", 0, &everybody));
    sl_page_keys(sl_share_seed(h.mo.fingerprint, &everybody), s.prompts->ids, PROMPT, keys);
    sl_request_spec_free(&s);
}

static uint32_t pages_at(int i)
{
    sl_key keys[PAGES];
    keys_of_prompt(keys);
    return sl_directory_lookup(h.r->directory, keys, PAGES)[member(i)->place].host;
}

static void setup(void)
{
    h_init(&h);
    h.o.placement.policy = "cache_aware";
    h_open_cluster(&h, 1, 1);
    ask('A'); /* while there is only one */
    ck_assert_int_eq(h_add(&h, SL_ROLE_DECODE), OTHER);
    H_UNTIL(&h, pages_at(OWNER) == PAGES, 1000);
    h.r->queue.stay_s = 640; /* 10 s for each of the 64 places */
}

static void teardown(void)
{
    h_close(&h);
}

START_TEST(requests_go_to_the_owner_of_their_prefix)
{
    for (int i = 0; i < 6; i++)
        ask('B' + i);
    ck_assert_uint_eq(reserved(OWNER), 7);
    ck_assert_uint_eq(reserved(OTHER), 0);
    ck_assert_uint_eq(sl_mock_count(h.w[OWNER])->source.pages, 0);
    ck_assert_uint_eq(sl_counter_value(h.r->stats.placement.by_prefix), 6);
}
END_TEST

/* The owner has one request more: 10 s against the copy of 15 pages. RESERVE names the owner, the other worker becomes a
 * second one, and no copy is made after that. */
START_TEST(under_load_a_prefix_is_copied_once)
{
    sl_member *owner = member(OWNER);
    owner->account.requests++;
    ask('B');
    ck_assert_uint_eq(reserved(OTHER), 1);
    const sl_msg_source *s = &sl_mock_count(h.w[OTHER])->source;
    ck_assert_uint_eq(s->worker, owner->id);
    ck_assert_str_eq(s->addr, owner->listen);
    ck_assert_uint_eq(s->epoch, owner->epoch);
    ck_assert_uint_eq(s->pages, PAGES);
    ck_assert_uint_eq(owner->account.pulls, 0);
    H_UNTIL(&h, pages_at(OTHER) == PAGES, 1000);
    ask('C');
    ck_assert_uint_eq(reserved(OTHER), 2);
    ck_assert_uint_eq(sl_mock_count(h.w[OTHER])->source.pages, 0);
    ck_assert_uint_eq(sl_counter_value(h.r->stats.placement.copies), 1);
    owner->account.requests--;
    H_UNTIL(&h, h_clean(&h), 1000);
}
END_TEST

/* Requests that fetch from a worker are counted until their pages are reserved, or their attempt has ended. */
START_TEST(copies_from_one_worker_are_bounded)
{
    sl_member *owner = member(OWNER);
    client c[12];
    memset(c, 0, sizeof c);
    owner->account.requests += 40;
    sl_mock_knob(h.w[OTHER])->hold = true;
    for (int i = 0; i < 12; i++)
        h_ask(&h, &c[i], PROMPT, 4);
    h_run(&h, 20);
    ck_assert_uint_eq(reserved(OTHER), 12); /* the others compute there */
    ck_assert_uint_eq(owner->account.pulls, 8);
    ck_assert_uint_eq(sl_mock_count(h.w[OTHER])->source.pages, 0);
    sl_group_release(c[0].group);
    h_run(&h, 10);
    ck_assert_uint_eq(owner->account.pulls, 7);
    sl_mock_knob(h.w[OTHER])->hold = false;
    H_UNTIL(&h, owner->account.pulls == 0, 1000);
    owner->account.requests -= 40;
    for (int i = 1; i < 12; i++)
        h_release(&h, &c[i], 1000);
}
END_TEST

START_TEST(a_lost_owner_is_no_source)
{
    sl_member *owner = member(OWNER);
    owner->account.requests++;
    sl_mock_knob(h.w[OTHER])->hold = true;
    client c = {0};
    h_ask(&h, &c, PROMPT, 4);
    h_run(&h, 20);
    ck_assert_uint_eq(owner->account.pulls, 1);
    owner->account.requests--;
    sl_member_lost(owner, SL_ERR_PEER, "test");
    sl_mock_kill(h.w[OWNER]);
    sl_mock_knob(h.w[OTHER])->hold = false;
    h_expect(&h, &c, PROMPT, 4, 2000);
    h_release(&h, &c, 1000);
    ask('B');
    ck_assert_uint_eq(sl_mock_count(h.w[OTHER])->source.pages, 0);
}
END_TEST

START_TEST(workers_are_told_the_tenant)
{
    ask('A'); /* odd: a tenant */
    ck_assert_uint_eq(sl_mock_count(h.w[OWNER])->tenant, sl_tenant_id("acme"));
    ask('B');
    ck_assert_uint_eq(sl_mock_count(h.w[OWNER])->tenant, 0);
}
END_TEST

static const sl_member_info *info_of(const sl_member_info *list, size_t n, const sl_member *w)
{
    for (size_t i = 0; i < n; i++) {
        if (list[i].id == w->id)
            return &list[i];
    }
    ck_abort_msg("member %u is not listed", w->id);
    return NULL;
}

/* The other worker has the prompt on its disk: used while nothing is known of that disk, and not after it was measured as
 * slower than computing. */
START_TEST(the_measured_speed_of_a_disk_decides)
{
    sl_key keys[PAGES];
    keys_of_prompt(keys);
    sl_cluster_flush_cache(h.r);
    for (size_t k = 0; k < PAGES; k++)
        sl_directory_add(h.r->directory, member(OTHER)->place, SL_MEDIUM_DISK, keys[k]);
    member(OTHER)->account.requests++; /* else both are equal when the disk does not count */
    h.r->queue.stay_s = 0;             /* 1 ms for each request */
    sl_mock_knob(h.w[OTHER])->disk_rate = _i ? 1000 : 0;
    H_UNTIL(&h, member(OTHER)->load.disk_rate == (_i ? 1000u : 0u), 1000);
    size_t n;
    sl_member_info *list = sl_cluster_members(h.r, &n);
    ck_assert_uint_eq(info_of(list, n, member(OTHER))->known_pages[SL_MEDIUM_DISK], PAGES);
    ck_assert_uint_eq(info_of(list, n, member(OTHER))->known_pages[SL_MEDIUM_HOST], 0);
    ck_assert_uint_eq(info_of(list, n, member(OTHER))->load.disk_rate, _i ? 1000 : 0);
    free(list);
    ask('B');
    member(OTHER)->account.requests--;
    ck_assert_uint_eq(reserved(OWNER), _i ? 2 : 1);
    ck_assert_uint_eq(reserved(OTHER), _i ? 0 : 1);
}
END_TEST

/* The other worker has the prompt on its disk, the owner in memory and much work. Where the pages come from is what was measured
 * as faster. */
START_TEST(its_disk_or_another_memory)
{
    static const struct {
        uint64_t disk, peer;
        uint32_t fetched;
    } cases[] = {{1000000000, 5000000000, PAGES}, {1000000000, 1500000000, 0}, {0, 0, 0}, {0, 5000000000, 0}};
    sl_key keys[PAGES];
    keys_of_prompt(keys);
    for (size_t k = 0; k < PAGES; k++)
        sl_directory_add(h.r->directory, member(OTHER)->place, SL_MEDIUM_DISK, keys[k]);
    sl_mock_knob(h.w[OTHER])->disk_rate = cases[_i].disk;
    sl_mock_knob(h.w[OTHER])->peer_rate = cases[_i].peer;
    H_UNTIL(&h, member(OTHER)->load.peer_rate == cases[_i].peer, 1000);
    member(OWNER)->account.requests++;
    ask('B');
    ck_assert_uint_eq(reserved(OTHER), 1);
    ck_assert_uint_eq(sl_mock_count(h.w[OTHER])->source.pages, cases[_i].fetched);
    member(OWNER)->account.requests--;
}
END_TEST

/* Two prefill workers, `first` and `second`, with this work. The prompt of 1,000 tokens is not cached. */
START_TEST(a_prefill_worker_is_chosen_by_prompts_and_tokens)
{
    static const struct {
        uint32_t placed[2], tokens[2], rate[2];
        int want;
    } cases[] = {
        {{1, 3}, {3000, 1000}, {0, 0}, 0}, /* more tokens, but fewer prompts that share its time */
        {{2, 3}, {8000, 1000}, {0, 0}, 1}, /* far more tokens */
        {{1, 0}, {0, 0}, {6000, 4000}, 1}, /* speeds that differ as much as lengths of prompts make them */
        {{1, 0}, {0, 0}, {6000, 500}, 0},  /* a slower machine */
        {{0, 1}, {0, 9000}, {2000, 9000}, 0},
    };
    int at[2] = {0, h_add(&h, SL_ROLE_PREFILL)};
    sl_cluster_flush_cache(h.r);
    h.r->queue.compute = 1000;
    for (int i = 0; i < 2; i++) {
        sl_mock_knob(h.w[at[i]])->prefill_rate = cases[_i].rate[i];
        H_UNTIL(&h, member(at[i])->has_load && member(at[i])->load.prefill_rate == cases[_i].rate[i], 1000);
        member(at[i])->account.requests += cases[_i].placed[i];
        member(at[i])->account.tokens += cases[_i].tokens[i];
    }
    uint64_t before = sl_mock_count(h.w[at[cases[_i].want]])->received[SL_MSG_PREFILL];
    ask('B');
    ck_assert_uint_eq(sl_mock_count(h.w[at[cases[_i].want]])->received[SL_MSG_PREFILL], before + 1);
    for (int i = 0; i < 2; i++) {
        member(at[i])->account.requests -= cases[_i].placed[i];
        member(at[i])->account.tokens -= cases[_i].tokens[i];
    }
}
END_TEST

/* What the decode worker has is no work of the prefill worker. */
START_TEST(only_what_is_computed_counts_as_work)
{
    client c = {0};
    sl_mock_knob(h.w[0])->hold = true;
    h_ask(&h, &c, PROMPT, 4); /* the owner has 15 pages */
    H_UNTIL(&h, member(0)->account.requests == 1, 1000);
    ck_assert_uint_eq(member(0)->account.tokens, PROMPT - PAGES * 64);
    sl_mock_knob(h.w[0])->hold = false;
    h_release(&h, &c, 1000);
    ck_assert_uint_eq(member(0)->account.tokens, 0);
}
END_TEST

/* With states what a worker has of a prompt counts up to its last snapshot: of random snapshots in random media, and of the pages
 * that a prompt of n tokens can use. */
START_TEST(prefixes_end_at_snapshots)
{
    enum { SNAPSHOT = 3 };
    sl_geometry *g = &h.r->cluster.geometry;
    const int64_t without = g->state_bytes;
    sl_key keys[PAGES];
    sl_estimate e;
    uint64_t seed = 5;
    keys_of_prompt(keys);
    g->state_bytes = SNAPSHOT * g->page_bytes - SL_SNAPSHOT_HEADER;
    ck_assert_int_eq(sl_snapshot_pages(g), SNAPSHOT);
    const uint32_t place = member(OWNER)->place;
    for (int turn = 0; turn < 200; turn++) {
        sl_medium medium[PAGES];
        bool has[PAGES];
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        sl_request q = {.keys.v = keys, .keys.n = PAGES, .n_tokens = 64 + (seed >> 40) % (PROMPT - 63)};
        q.keys.n = q.n_tokens / 64;
        uint32_t want = 0;
        for (uint32_t i = 0; i < PAGES; i++) {
            has[i] = seed >> (20 + i) & 1 && seed >> 60 & 1;
            medium[i] = (sl_medium)((seed >> i) % SL_MEDIUM_COUNT);
            if (has[i])
                sl_directory_add(h.r->directory, place, medium[i], sl_snapshot_page_key(keys[i], SNAPSHOT));
            if (has[i] && (i + 1) * 64 < q.n_tokens)
                want = i + 1;
        }
        sl_estimate_begin(h.r, &q, &e);
        const sl_directory_match *m = &e.held[place];
        ck_assert_msg(m->local + m->shared == want && m->host == want, "turn %d: %u pages, not %u", turn,
                      m->local + m->shared, want);
        for (uint32_t i = 0; i < PAGES; i++)
            if (has[i])
                sl_directory_remove(h.r->directory, place, medium[i],
                                    sl_snapshot_page_key(keys[i], SNAPSHOT));
    }
    g->state_bytes = without;
}
END_TEST

/* The time that requests stay is the price of a place. */
START_TEST(the_stay_is_measured)
{
    h.r->queue.stay_s = 0;
    ask('B');
    ck_assert(h.r->queue.stay_s > 0 && h.r->queue.stay_s < 10);
}
END_TEST

int main(void)
{
    const h_case cases[] = {
        {requests_go_to_the_owner_of_their_prefix, 0},
        {under_load_a_prefix_is_copied_once, 0},
        {copies_from_one_worker_are_bounded, 0},
        {a_lost_owner_is_no_source, 0},
        {workers_are_told_the_tenant, 0},
        {the_measured_speed_of_a_disk_decides, 2},
        {its_disk_or_another_memory, 4},
        {a_prefill_worker_is_chosen_by_prompts_and_tokens, 5},
        {only_what_is_computed_counts_as_work, 0},
        {the_stay_is_measured, 0},
        {prefixes_end_at_snapshots, 0},
    };
    return h_main("router/place", setup, teardown, cases, SL_COUNT(cases));
}
