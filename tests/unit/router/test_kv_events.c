/*
 * Changes of prefix caches as subscribers get them: numbers for each worker, replay, what the ring forgets, and lost
 * workers.
 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kvstore/page_key.h"
#include "tests/unit/router/harness.h"

static harness h;
static sl_member *w[2];
static uint64_t sent[2];

static void setup(void)
{
    h_init(&h);
    h_open(&h);
    for (int i = 0; i < 2; i++) {
        int at = h_add(&h, SL_ROLE_DECODE);
        w[i] = sl_member_find(h.r, sl_mock_count(h.w[at])->worker_id);
        sent[i] = 0;
    }
}

static void teardown(void)
{
    h_close(&h);
}

/* Worker i reports a batch with n stored pages; every page has the tokens of `text`. */
static void say_medium(int i, size_t n, sl_medium medium, bool cleared)
{
    uint8_t *keys = calloc(n, 32), *tokens = calloc(n, 256);
    for (size_t k = 0; k < n; k++) {
        keys[32 * k] = k ? (uint8_t)(1 + i) : 0; /* a first page has no parent */
        keys[32 * k + 16] = (uint8_t)(1 + i);
        memcpy(keys + 32 * k + 24, &k, sizeof k);
        tokens[256 * k] = (uint8_t)(10 + i);
    }
    sl_msg_kv_events e = {.sequence = ++sent[i],
                          .stored = {keys, 32 * n},
                          .tokens = {tokens, 256 * n},
                          .cleared = cleared,
                          .medium = (uint8_t)medium};
    sl_kv_on_events(w[i], &e);
    free(keys);
    free(tokens);
}

static void say(int i, size_t n)
{
    say_medium(i, n, SL_MEDIUM_HOST, false);
}

static size_t known(int i, sl_medium medium)
{
    return sl_directory_count(h.r->directory, w[i]->place, medium);
}

static void expect(sl_kv_cursor *c, int i, uint64_t sequence, bool cleared, size_t n_stored)
{
    sl_kv_batch gap;
    const sl_kv_batch *b = sl_kv_read(h.r, c, &gap);
    ck_assert_msg(b, "nothing to read");
    ck_assert_uint_eq(b->worker, w[i]->id);
    ck_assert_uint_eq(b->sequence, sequence);
    ck_assert_int_eq(b->cleared, cleared);
    ck_assert_uint_eq(b->n_stored, n_stored);
}

static void expect_none(sl_kv_cursor *c)
{
    sl_kv_batch gap;
    ck_assert_ptr_null(sl_kv_read(h.r, c, &gap));
}

START_TEST(numbers_are_each_worker_s_own)
{
    sl_kv_cursor c = sl_kv_subscribe(h.r, 0);
    for (int turn = 0; turn < 600; turn++) { /* the ring grows meanwhile */
        say(0, 1);
        say(1, 2);
    }
    for (uint64_t turn = 1; turn <= 600; turn++) {
        expect(&c, 0, turn, false, 1);
        expect(&c, 1, turn, false, 2);
    }
    expect_none(&c);
}
END_TEST

START_TEST(batches_carry_tokens_and_first_pages_have_no_parent)
{
    sl_kv_cursor c = sl_kv_subscribe(h.r, 0);
    sl_kv_batch gap;
    h.r->o.front.keys_file = "keys"; /* admins only: nothing is withheld */
    say(1, 2);
    h.r->o.front.keys_file = NULL;
    const sl_kv_batch *b = sl_kv_read(h.r, &c, &gap);
    ck_assert_int_eq(b->tokens[0], 11);
    ck_assert_int_eq(b->tokens[SL_KEY_PAGE_TOKENS], 11);
    ck_assert(sl_key_eq(b->stored[0], (sl_key){0, 0}));
    ck_assert(sl_directory_has(h.r->directory, w[1]->place, SL_MEDIUM_HOST, b->stored[1]));
}
END_TEST

START_TEST(a_subscription_begins_where_it_asks_to)
{
    for (int turn = 0; turn < 3; turn++)
        say(0, 1);
    say(1, 1);
    sl_kv_cursor now = sl_kv_subscribe(h.r, 0), second = sl_kv_subscribe(h.r, 2),
                 all = sl_kv_subscribe(h.r, 1), other = sl_kv_subscribe(h.r, 1000);
    expect(&second, 0, 2, false, 1);
    expect(&second, 0, 3, false, 1);
    expect_none(&second); /* worker 1 has said number 1 only */
    for (uint64_t k = 1; k <= 3; k++) {
        expect(&all, 0, k, false, 1);
        expect(&other, 0, k, false, 1); /* numbered by another router: everything */
    }
    expect(&all, 1, 1, false, 1);
    expect(&other, 1, 1, false, 1);
    say(1, 4);
    sl_kv_cursor *each[] = {&now, &second, &all, &other};
    for (int i = 0; i < 4; i++) {
        expect(each[i], 1, 2, false, 4);
        expect_none(each[i]);
    }
}
END_TEST

START_TEST(what_the_ring_forgot_is_announced)
{
    sl_kv_cursor slow = sl_kv_subscribe(h.r, 0);
    say(1, 1);
    expect(&slow, 1, 1, false, 1);
    size_t pages = 4096, each = sizeof(sl_kv_batch) + pages * (32 + 256), kept = SL_KV_RING_BYTES / each;
    for (size_t i = 0; i < kept + 5; i++)
        say(0, pages);
    ck_assert_uint_le(h.r->kv.bytes, SL_KV_RING_BYTES);
    sl_kv_cursor late = sl_kv_subscribe(h.r, 1), recent = sl_kv_subscribe(h.r, 6);
    expect(&slow, 0, 5, true, 0); /* and worker 1, of which it has read everything, is not mentioned */
    expect(&late, 0, 5, true, 0);
    expect(&late, 1, 1, true, 0);
    expect(&recent, 1, 1, true, 0); /* it has not reached number 5: replayed as a whole */
    for (size_t i = 0; i < kept; i++) {
        expect(&slow, 0, 6 + i, false, pages);
        expect(&late, 0, 6 + i, false, pages);
        expect(&recent, 0, 6 + i, false, pages);
    }
    expect_none(&slow);
    expect_none(&late);
    expect_none(&recent);
}
END_TEST

START_TEST(a_lost_batch_voids_what_was_known)
{
    sl_kv_cursor c = sl_kv_subscribe(h.r, 0);
    say(0, 3);
    sent[0]++;
    say(0, 1);
    ck_assert_uint_eq(sl_directory_count(h.r->directory, w[0]->place, SL_MEDIUM_HOST), 1);
    expect(&c, 0, 1, false, 3);
    expect(&c, 0, 3, true, 1);
    sent[0] = 1; /* a number that was used */
    say(0, 1);
    expect_none(&c);
    ck_assert_uint_eq(sl_counter_value(h.r->stats.workers.malformed), 1);
}
END_TEST

static uint64_t resyncs(int i)
{
    return sl_mock_count(h.w[i])->received[SL_MSG_KV_RESYNC];
}

/* After a gap nothing is known of the worker, and it is asked to report everything; again only after a second. */
START_TEST(a_gap_is_healed_by_a_full_report)
{
    say(0, 3);
    say_medium(0, 5, SL_MEDIUM_DISK, false);
    say(1, 2);
    sent[0]++;
    say_medium(0, 1, SL_MEDIUM_DISK, false);
    ck_assert_uint_eq(known(0, SL_MEDIUM_HOST), 0);
    ck_assert_uint_eq(known(0, SL_MEDIUM_DISK), 1);
    ck_assert_uint_eq(known(1, SL_MEDIUM_HOST), 2);
    ck_assert(w[0]->kv.gap);
    H_UNTIL(&h, resyncs(0) == 1, 1000);
    ck_assert(!w[0]->kv.gap);
    sent[0]++; /* a batch before the full report is lost as well */
    say(0, 1);
    h_run(&h, 100);
    ck_assert_uint_eq(resyncs(0), 1);
    say_medium(0, 3, SL_MEDIUM_HOST, true);
    say_medium(0, 5, SL_MEDIUM_DISK, true);
    ck_assert_uint_eq(known(0, SL_MEDIUM_HOST), 3);
    ck_assert_uint_eq(known(0, SL_MEDIUM_DISK), 5);
    w[0]->kv.resync_ns = 0; /* the second has passed */
    H_UNTIL(&h, resyncs(0) == 2, 1000);
    ck_assert_uint_eq(resyncs(1), 0);
    ck_assert_uint_eq(sl_counter_value(h.r->stats.directory.gaps), 2);
    ck_assert_uint_eq(sl_counter_value(h.r->stats.directory.resyncs), 2);
}
END_TEST

static int saved, fds[2];

static void capture(void)
{
    sl_log_init(SL_LOG_WARN, false, "test");
    ck_assert_int_eq(pipe(fds), 0);
    saved = dup(STDERR_FILENO);
    dup2(fds[1], STDERR_FILENO);
    close(fds[1]);
}

/* How often this event was logged since capture(). */
static int logged(const char *event)
{
    static char text[1 << 16];
    size_t len = 0;
    int count = 0;
    dup2(saved, STDERR_FILENO);
    close(saved);
    for (ssize_t n; (n = read(fds[0], text + len, sizeof text - 1 - len)) > 0;)
        len += (size_t)n;
    text[len] = '\0';
    close(fds[0]);
    for (const char *at = text; (at = strstr(at, event)); at++)
        count++;
    return count;
}

/* A worker that leaves out a number each time is asked for reports again and again, and named in the log once; after a batch
 * without a gap the next gap is news. */
START_TEST(a_gap_is_logged_once)
{
    capture();
    say(0, 1);
    for (int i = 0; i < 20; i++) {
        sent[0]++;
        say(0, 1);
        sl_kv_tick(w[0], sl_now_ns());
        w[0]->kv.resync_ns = 0;
    }
    say(0, 1);
    sent[0]++;
    say(0, 1);
    ck_assert_int_eq(logged("ev=kv_events_gap"), 2);
    ck_assert_uint_eq(sl_counter_value(h.r->stats.directory.gaps), 21);
}
END_TEST

static void expect_medium(sl_kv_cursor *c, sl_medium medium, bool cleared, bool all)
{
    sl_kv_batch gap;
    const sl_kv_batch *b = sl_kv_read(h.r, c, &gap);
    ck_assert(b && b->medium == medium && b->cleared == cleared && b->all == all);
}

START_TEST(each_medium_is_told_and_cleared_by_itself)
{
    sl_kv_cursor c = sl_kv_subscribe(h.r, 0);
    say(0, 3);
    say_medium(0, 5, SL_MEDIUM_DISK, false);
    say_medium(0, 4, SL_MEDIUM_SHARED, false);
    say_medium(0, 2, SL_MEDIUM_HOST, true);
    ck_assert_uint_eq(known(0, SL_MEDIUM_HOST), 2);
    ck_assert_uint_eq(known(0, SL_MEDIUM_DISK), 5);
    say_medium(0, 1, SL_MEDIUM_DISK, true);
    ck_assert_uint_eq(known(0, SL_MEDIUM_DISK), 1);
    expect_medium(&c, SL_MEDIUM_HOST, false, false);
    expect_medium(&c, SL_MEDIUM_DISK, false, false);
    expect_medium(&c, SL_MEDIUM_SHARED, false, false);
    expect_medium(&c, SL_MEDIUM_HOST, true, false);
    expect_medium(&c, SL_MEDIUM_DISK, true, false);
    sl_cluster_flush_cache(h.r); /* host memory only; the workers report what follows */
    ck_assert_uint_eq(known(0, SL_MEDIUM_HOST), 0);
    ck_assert_uint_eq(known(0, SL_MEDIUM_DISK), 1);
    sl_member_lost(w[0], SL_ERR_PEER, "test");
    expect_medium(&c, SL_MEDIUM_HOST, true, true);
    sl_directory_stats s;
    sl_directory_get_stats(h.r->directory, &s);
    ck_assert_uint_eq(s.held[SL_MEDIUM_HOST] + s.held[SL_MEDIUM_DISK], 0);
    ck_assert_uint_eq(s.held[SL_MEDIUM_SHARED], 4); /* which the other worker can read */
}
END_TEST

/* The tokens of a salted prompt are withheld in every medium: its keys do not follow from the tokens. */
START_TEST(tokens_are_withheld_on_disk_too)
{
    sl_kv_cursor c = sl_kv_subscribe(h.r, 0);
    say_medium(0, 2, SL_MEDIUM_DISK, false);
    sl_kv_batch gap;
    const sl_kv_batch *b = sl_kv_read(h.r, &c, &gap);
    ck_assert(b && b->tokens && b->tokens[0] == SL_KV_WITHHELD);
    ck_assert_int_eq(b->tokens[SL_KEY_PAGE_TOKENS], SL_KV_WITHHELD);
}
END_TEST

/* The directory has pages of snapshots, subscribers do not get them. */
START_TEST(snapshots_are_for_the_directory_alone)
{
    enum { N = 40 };
    uint8_t keys[32 * N] = {0}, tokens[256 * N] = {0};
    uint64_t seed = 3;
    size_t left = 0;
    h.r->o.front.keys_file = "keys";
    sl_kv_cursor c = sl_kv_subscribe(h.r, 0);
    for (size_t k = 0; k < N; k++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        const int32_t first = seed >> 63 ? -1 - (int32_t)(seed >> 50 & 3) : (int32_t)k + 1;
        keys[32 * k + 16] = (uint8_t)(k + 1);
        memcpy(tokens + 256 * k, &first, sizeof first);
        left += first > 0;
    }
    ck_assert(left > 0 && left < N);
    const sl_msg_kv_events e = {.sequence = ++sent[0],
                                .stored = {keys, sizeof keys},
                                .tokens = {tokens, sizeof tokens},
                                .medium = SL_MEDIUM_HOST};
    sl_kv_on_events(w[0], &e);
    h.r->o.front.keys_file = NULL;
    ck_assert_uint_eq(known(0, SL_MEDIUM_HOST), N);
    sl_kv_batch gap;
    const sl_kv_batch *b = sl_kv_read(h.r, &c, &gap);
    ck_assert(b && b->n_stored == left);
    for (size_t i = 0; i < left; i++) /* keys and tokens still belong together */
        ck_assert_int_eq(b->tokens[i * SL_KEY_PAGE_TOKENS], (int32_t)b->stored[2 * i + 1].lo);
}
END_TEST

START_TEST(a_lost_worker_ends_its_numbers)
{
    sl_kv_cursor c = sl_kv_subscribe(h.r, 0);
    say(0, 3);
    sl_member_lost(w[0], SL_ERR_PEER, "test");
    expect(&c, 0, 1, false, 3);
    expect(&c, 0, 2, true, 0);
    expect_none(&c);
}
END_TEST

int main(void)
{
    const h_case cases[] = {
        {numbers_are_each_worker_s_own, 0},          {batches_carry_tokens_and_first_pages_have_no_parent, 0},
        {a_subscription_begins_where_it_asks_to, 0}, {what_the_ring_forgot_is_announced, 0},
        {a_lost_batch_voids_what_was_known, 0},      {a_lost_worker_ends_its_numbers, 0},
        {a_gap_is_healed_by_a_full_report, 0},       {each_medium_is_told_and_cleared_by_itself, 0},
        {tokens_are_withheld_on_disk_too, 0},        {a_gap_is_logged_once, 0},
        {snapshots_are_for_the_directory_alone, 0},
    };
    return h_main("router/kv_events", setup, teardown, cases, SL_COUNT(cases));
}
