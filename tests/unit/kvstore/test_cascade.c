/*
 * The cascade against the memory tier, the disk tier, and both with injected faults. The test plays the worker: it makes
 * pages, keeps their checksums, answers the cascade's questions for checksums, and reserves pages as a request does. Every
 * page's bytes follow from its prefix, so each page that a request gets from the tree is compared with what it must contain.
 */
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "kvstore/cascade.h"
#include "kvstore/page_key.h"
#include "tests/unit/kvstore/fault_tier.h"
#include "tests/unit/kvstore/mla_geometry.h"
#include "tests/unit/kvstore/test_kvstore.h"

enum { PAGE = SL_KEY_PAGE_TOKENS, LAYERS = 2, PAGES = 32, LONGEST = PAGES + 1, JOBS = 64 };

typedef enum { MEMORY, DISK } kind;

typedef struct asked {
    sl_cascade_job *job;
    const uint32_t *crc; /* NULL: the kept ones are wanted */
    int32_t pages[PAGES], n;
} asked;

static sl_arena *arena;
static sl_store *store;
static sl_tier *tier; /* as the cascade has it */
static sl_cascade *cascade;
static uint32_t kept[PAGES][LAYERS];
static asked jobs[JOBS];
static int n_jobs;
static bool refuse_jobs;

/* ---- the worker's part ---- */

static bool ask(asked a, const int32_t *pages)
{
    if (refuse_jobs)
        return false;
    ck_assert_int_lt(n_jobs, JOBS);
    memcpy(a.pages, pages, (size_t)a.n * sizeof *pages);
    jobs[n_jobs++] = a;
    return true;
}

static bool read_sums(void *ctx, sl_cascade_job *job, const int32_t *pages, int32_t n)
{
    (void)ctx;
    return ask((asked){.job = job, .n = n}, pages);
}

static bool check_sums(void *ctx, sl_cascade_job *job, const int32_t *pages, int32_t n, const uint32_t *crc)
{
    (void)ctx;
    return ask((asked){.job = job, .n = n, .crc = crc}, pages);
}

static void answer(asked a)
{
    uint32_t crc[PAGES][LAYERS];
    bool right = true;
    for (int i = 0; i < a.n; i++) {
        memcpy(crc[i], kept[a.pages[i]], sizeof crc[i]);
        for (int l = 0; a.crc && l < LAYERS; l++)
            right &= sl_arena_page_crc(arena, a.pages[i], l, PAGE) == a.crc[i * LAYERS + l];
    }
    for (int i = 0; a.crc && right && i < a.n; i++)
        memcpy(kept[a.pages[i]], a.crc + i * LAYERS, sizeof kept[0]);
    if (a.crc)
        sl_cascade_checked(cascade, a.job, right);
    else
        sl_cascade_sums(cascade, a.job, crc[0]);
}

static void answer_all(void)
{
    while (n_jobs) {
        asked a = jobs[0];
        memmove(jobs, jobs + 1, (size_t)--n_jobs * sizeof *jobs);
        answer(a);
    }
}

static sl_cascade_stats stats(void)
{
    sl_cascade_stats s;
    sl_cascade_stats_get(cascade, &s);
    return s;
}

static void turn(void)
{
    struct pollfd p = {.fd = sl_cascade_fd(cascade), .events = POLLIN};
    sl_cascade_stats s = stats();
    if (!n_jobs && (s.writing || s.loading || s.waiting))
        poll(&p, 1, 20);
    answer_all();
    sl_cascade_tick(cascade, sl_now_ns());
    sl_err err = {0};
    ck_assert_msg(sl_store_check(store, &err) == SL_OK, "%s", err.text);
}

/* Turns until nothing is in flight. */
static void settle(void)
{
    for (int quiet = 0; quiet < 2;) {
        turn();
        sl_cascade_stats s = stats();
        quiet = s.writing || s.loading || s.waiting || n_jobs ? 0 : quiet + 1;
    }
}

/* ---- prompts: token i of prompt number `kind`; prompts of one family share their first `shared` pages ---- */

static const sl_key seed = {7, 8};
static int32_t prompt_tokens[LONGEST * PAGE];

static const int32_t *prompt(int family, int shared, int own)
{
    for (int i = 0; i < LONGEST * PAGE; i++)
        prompt_tokens[i] = i / PAGE < shared ? family * 1000 + i % 97 : own * 7777 + family + i % 89;
    return prompt_tokens;
}

/* What page i of the prompt must contain: bytes from its key. */
static void expected(const int32_t *tokens, int i, uint8_t *out, size_t n)
{
    sl_key k = seed;
    for (int p = 0; p <= i; p++)
        k = sl_page_key(k, tokens + p * PAGE);
    uint64_t state = k.lo;
    for (size_t b = 0; b < n; b++)
        out[b] = b % 8 ? (uint8_t)(out[b - 1] * 5 + 1) : (uint8_t)rnd(&state);
}

static void each_byte(int32_t page, uint8_t *bytes, bool write)
{
    struct iovec spans[LAYERS * SL_CACHE_PLANES];
    size_t at = 0;
    sl_arena_spans(arena, page, spans);
    for (int s = 0; s < sl_arena_n_spans(arena); at += spans[s++].iov_len) {
        if (write)
            memcpy(spans[s].iov_base, bytes + at, spans[s].iov_len);
        else
            ck_assert_msg(memcmp(spans[s].iov_base, bytes + at, spans[s].iov_len) == 0, "page %d is wrong",
                          page);
    }
    ck_assert_uint_eq(at, (size_t)sl_arena_geometry(arena)->page_bytes);
}

/* A request of n full pages and one more token: checks the pages that matched, "computes" the others, publishes. Returns the number of
 * pages that matched, or -1: there was no room. */
static int request_now(const int32_t *tokens, int n)
{
    static uint8_t bytes[1 << 20];
    sl_lease *l;
    size_t size = (size_t)sl_arena_geometry(arena)->page_bytes;
    if (sl_store_lease(store, seed, tokens, n * PAGE + 1, &l) != SL_OK)
        return -1;
    int matched = sl_lease_matched(l);
    for (int i = 0; i < n; i++) {
        int32_t page = sl_lease_pages(l)[i];
        expected(tokens, i, bytes, size);
        each_byte(page, bytes, i >= matched);
        for (int k = 0; i >= matched && k < LAYERS; k++)
            kept[page][k] = sl_arena_page_crc(arena, page, k, PAGE);
    }
    sl_lease_publish(l, tokens, n * PAGE);
    sl_lease_release(l, true);
    return matched;
}

typedef struct waiting {
    sl_cascade_waiter w;
    bool ready;
} waiting;

static void on_ready(sl_cascade_waiter *w)
{
    ((waiting *)w)->ready = true;
}

static bool wait_for(waiting *w, const int32_t *tokens, int n)
{
    w->w.ready = on_ready;
    w->ready = false;
    return sl_cascade_wait(cascade, seed, tokens, n * PAGE + 1, &w->w);
}

/* The same, but it waits for the tier first, as a worker does. */
static int request(const int32_t *tokens, int n)
{
    int32_t mine[LONGEST * PAGE];
    waiting w = {0};
    memcpy(mine, tokens, sizeof mine);
    while (wait_for(&w, mine, n)) {
        for (int i = 0; !w.ready; i++) {
            turn();
            ck_assert_int_lt(i, 5000);
        }
    }
    return request_now(mine, n);
}

/* ---- open and close ---- */

static const char *directory(void)
{
    static char path[64];
    if (!path[0]) {
        snprintf(path, sizeof path, "build/cascade-XXXXXX");
        ck_assert_ptr_nonnull(mkdtemp(path));
    }
    return path;
}

static void remove_directory(void)
{
    char file[128];
    snprintf(file, sizeof file, "%s/pages.sluice", directory());
    unlink(file);
    rmdir(directory());
}

static void make_store(sl_layout layout)
{
    static const bool indexer[LAYERS] = {true, false};
    sl_err err = {0};
    sl_geometry g = mla_geometry((sl_key){1, 2}, layout, SL_ROW_MLA_FP8, SL_INDEX_OFFICIAL, LAYERS, indexer);
    sl_arena_opts ao = {.bytes = (uint64_t)(PAGES * g.page_bytes), .lock = SL_OFF, .numa_node = -1};
    sl_store_opts so = {.n_pages = PAGES, .prefix_cache = true};
    ck_assert_msg(sl_arena_create(&g, &ao, &arena, &err) == SL_OK, "%s", err.text);
    ck_assert_msg(sl_store_create(&so, &store, &err) == SL_OK, "%s", err.text);
}

typedef struct setting {
    kind tier;
    sl_cascade_policy policy;
    const faults *faults;
    bool second_use;
    uint32_t timeout_ms;
} setting;

static void open_cascade(const setting *s)
{
    sl_err err = {0};
    sl_tier_opts o = {.capacity_bytes = 16 << 20,
                      .segment_bytes = 1 << 20,
                      .fingerprint = {1, 2},
                      .second_use = s->second_use,
                      .directory = s->tier == DISK ? directory() : NULL};
    ck_assert(sl_cascade_page_format(sl_arena_geometry(arena), &o.page_bytes, &o.format));
    mkdir(directory(), 0700); /* it exists, unless a test opens a second time */
    const sl_tier_ops *ops = s->tier == DISK ? &sl_tier_disk_ops : &sl_tier_memory_ops;
    ck_assert_msg(sl_tier_open(ops, &o, &tier, &err) == SL_OK, "%s", err.text);
    if (s->faults)
        tier = fault_tier_wrap(tier, s->faults);
    sl_cascade_opts co = {.store = store,
                          .arena = arena,
                          .policy = s->policy,
                          .load_timeout_ms = s->timeout_ms ? s->timeout_ms : 60000,
                          .calls = {.read_sums = read_sums, .check_sums = check_sums}};
    ck_assert_int_eq(sl_cascade_create(&co, tier, &cascade), SL_OK);
    n_jobs = 0;
    refuse_jobs = false;
}

static void open_all(const setting *s)
{
    make_store(SL_LAYOUT_LAYER_FIRST);
    open_cascade(s);
}

static void close_store(void)
{
    sl_store_stats s;
    sl_store_stats_get(store, &s);
    ck_assert_int_eq(s.held, 0);
    sl_store_destroy(store);
    sl_arena_destroy(arena);
}

static void close_all(void)
{
    sl_cascade_destroy(cascade);
    close_store();
    remove_directory();
}

static const faults slow = {.delay_polls = 3};

/* Variants of a loop test. */
static const setting variants[] = {
    {MEMORY, SL_CASCADE_WRITE_BACK, NULL, false, 0},  {MEMORY, SL_CASCADE_WRITE_THROUGH, NULL, false, 0},
    {MEMORY, SL_CASCADE_WRITE_BACK, &slow, false, 0}, {MEMORY, SL_CASCADE_WRITE_THROUGH, &slow, false, 0},
    {DISK, SL_CASCADE_WRITE_BACK, NULL, false, 0},    {DISK, SL_CASCADE_WRITE_THROUGH, NULL, false, 0},
};

static int32_t a[LONGEST * PAGE], b[LONGEST * PAGE];

static void two_prompts(void)
{
    memcpy(a, prompt(1, LONGEST, 0), sizeof a);
    memcpy(b, prompt(2, LONGEST, 0), sizeof b);
}

/* Evicts everything. In steps, so that a cascade that writes at eviction keeps up. */
static void evict(void)
{
    for (int i = 0; i < 12; i++) {
        ck_assert_int_ge(request_now(prompt(100 + i, LONGEST, i), 3), 0);
        settle();
    }
}

/* ---- tests ---- */

START_TEST(evicted_pages_come_back)
{
    open_all(&variants[_i]);
    two_prompts();
    ck_assert_int_eq(request(a, 6), 0);
    settle();
    evict();
    ck_assert_int_eq(sl_store_match(store, seed, a, 6 * PAGE + 1), 0);
    ck_assert_uint_eq(stats().lost[SL_LOST_PRESSURE], 0);
    ck_assert_int_eq(request(a, 6), 6);
    sl_cascade_stats s = stats();
    ck_assert_uint_eq(s.hits, 6);
    ck_assert_uint_ge(s.stored, 6);
    ck_assert_uint_eq(s.loads, 1);
    ck_assert_uint_gt(s.bytes_loaded, 6 * (uint64_t)sl_arena_geometry(arena)->page_bytes);
    ck_assert_int_eq(request(a, 8), 6); /* the last two are not there */
    ck_assert_int_eq(request(b, 2), 0);
    close_all();
}
END_TEST

START_TEST(write_through_needs_no_eviction)
{
    open_all(&(setting){MEMORY, SL_CASCADE_WRITE_THROUGH, NULL, false, 0});
    two_prompts();
    request(a, 5);
    settle();
    ck_assert_uint_eq(stats().stored, 5);
    ck_assert(sl_cascade_idle(cascade));
    sl_store_flush(store);
    ck_assert_int_eq(request(a, 5), 5);
    close_all();
}
END_TEST

START_TEST(write_back_writes_when_it_must)
{
    open_all(&(setting){MEMORY, SL_CASCADE_WRITE_BACK, NULL, false, 0});
    two_prompts();
    request(a, 5);
    settle();
    ck_assert_uint_eq(stats().stored, 0);
    sl_cascade_finish(cascade);
    ck_assert(!sl_cascade_idle(cascade));
    settle();
    ck_assert(sl_cascade_idle(cascade));
    ck_assert_uint_eq(stats().stored, 5);
    ck_assert(!wait_for(&(waiting){0}, b, 3)); /* nothing is loaded any more */
    close_all();
}
END_TEST

/* The order of rows in memory may change between page_first and layer_first; page_head is another format. */
START_TEST(the_second_process_finds_them)
{
    static const sl_layout layouts[][2] = {{SL_LAYOUT_LAYER_FIRST, SL_LAYOUT_PAGE_FIRST},
                                           {SL_LAYOUT_PAGE_FIRST, SL_LAYOUT_LAYER_FIRST},
                                           {SL_LAYOUT_PAGE_HEAD, SL_LAYOUT_PAGE_HEAD}};
    setting s = {DISK, SL_CASCADE_WRITE_THROUGH, NULL, false, 0};
    size_t bytes;
    sl_key first, second;
    make_store(layouts[_i][0]);
    open_cascade(&s);
    ck_assert(sl_cascade_page_format(sl_arena_geometry(arena), &bytes, &first));
    two_prompts();
    request(a, 6);
    settle();
    sl_cascade_destroy(cascade);
    close_store();
    make_store(layouts[_i][1]);
    open_cascade(&s);
    ck_assert_int_eq(request(a, 6), 6);
    close_all();
    make_store(_i == 2 ? SL_LAYOUT_PAGE_FIRST : SL_LAYOUT_PAGE_HEAD);
    ck_assert(sl_cascade_page_format(sl_arena_geometry(arena), &bytes, &second));
    ck_assert(!sl_key_eq(first, second));
    close_store();
}
END_TEST

START_TEST(one_load_for_all)
{
    open_all(&(setting){MEMORY, SL_CASCADE_WRITE_THROUGH, NULL, false, 0});
    two_prompts();
    request(a, 8);
    settle();
    sl_store_flush(store);
    waiting w[4] = {0};
    for (int i = 0; i < 4; i++)
        ck_assert(wait_for(&w[i], a, 4 + i));
    sl_cascade_leave(cascade, &w[0].w); /* the request that began the load is gone */
    ck_assert_int_eq(stats().waiting, 3);
    while (!w[1].ready)
        turn();
    ck_assert(!w[0].ready && w[2].ready && w[3].ready);
    ck_assert_uint_eq(stats().loads, 1);
    ck_assert_int_eq(request_now(a, 4), 4);
    ck_assert(!wait_for(&w[0], a, 4));
    ck_assert_int_eq(request(a, 7), 7); /* the pages that the first load did not cover, by a second one */
    ck_assert_uint_eq(stats().loads, 2);
    ck_assert_uint_eq(stats().hits, 7);
    close_all();
}
END_TEST

static sl_key key_of(const int32_t *tokens, int i)
{
    sl_key k = seed;
    for (int p = 0; p <= i; p++)
        k = sl_page_key(k, tokens + p * PAGE);
    return k;
}

START_TEST(a_damaged_page_is_computed_again)
{
    open_all(&(setting){_i ? DISK : MEMORY, SL_CASCADE_WRITE_THROUGH, NULL, false, 0});
    two_prompts();
    request(a, 6);
    settle();
    sl_store_flush(store);
    ck_assert(tier->ops->damage(tier, key_of(a, 3)));
    ck_assert_int_eq(request(a, 6), 3);
    ck_assert_uint_eq(stats().misses[SL_MISS_DAMAGED], 3);
    settle();
    sl_store_flush(store);
    ck_assert_int_eq(request(a, 6), 6); /* it was written again */
    close_all();
}
END_TEST

/* Rows that were changed in memory before they were written have a right checksum on the device. */
START_TEST(damage_before_the_write_is_found)
{
    open_all(&(setting){MEMORY, SL_CASCADE_WRITE_THROUGH, NULL, false, 0});
    two_prompts();
    request_now(a, 4);
    sl_lease *l;
    ck_assert_int_eq(sl_store_lease(store, seed, a, 4 * PAGE + 1, &l), SL_OK);
    struct iovec spans[LAYERS * SL_CACHE_PLANES];
    sl_arena_spans(arena, sl_lease_pages(l)[2], spans);
    ((uint8_t *)spans[0].iov_base)[5] ^= 1;
    sl_lease_release(l, true);
    settle();
    sl_store_flush(store);
    ck_assert_int_eq(request(a, 4), 0);
    ck_assert_uint_eq(stats().misses[SL_MISS_DAMAGED], 4);
    settle();
    sl_store_flush(store);
    ck_assert_int_eq(request(a, 4), 4);
    close_all();
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
    open_all(&(setting){MEMORY, SL_CASCADE_WRITE_THROUGH, NULL, false, 0});
    two_prompts();
    size_t bytes;
    bool done = false;
    sl_status result;
    sl_key format, key = key_of(b, 0);
    ck_assert(sl_cascade_page_format(sl_arena_geometry(arena), &bytes, &format));
    struct iovec span = {calloc(1, bytes), bytes};
    sl_tier_page page = {&span, 1};
    sl_tier_req r = {.op = SL_TIER_SET, .n = 1, .keys = &key, .pages = &page, .results = &result};
    r.done = on_set;
    r.cookie = &done;
    ck_assert_int_eq(sl_tier_submit(tier, &r), SL_OK);
    while (!done)
        sl_tier_poll(tier);
    ck_assert_int_eq(result, SL_OK);
    ck_assert_int_eq(request(b, 3), 0);
    ck_assert_uint_eq(stats().loads, 1);
    ck_assert_uint_eq(stats().misses[SL_MISS_ABSENT], 3);
    free(span.iov_base);
    close_all();
}
END_TEST

START_TEST(a_late_load_lets_requests_go)
{
    faults f = {.delay_polls = 0};
    open_all(&(setting){MEMORY, SL_CASCADE_WRITE_THROUGH, &f, false, 10});
    two_prompts();
    request(a, 4);
    settle();
    sl_store_flush(store);
    fault_tier_set(tier, &(faults){.delay_polls = 1 << 20});
    waiting w = {0}, v = {0};
    ck_assert(wait_for(&w, a, 4));
    ck_assert(wait_for(&v, a, 3));
    sl_cascade_tick(cascade, sl_now_ns() + 20000000);
    ck_assert(w.ready && v.ready);
    ck_assert_uint_eq(stats().misses[SL_MISS_LATE], 4);
    ck_assert(!wait_for(&w, a, 4)); /* it does not wait twice */
    w = (waiting){0};
    ck_assert(!wait_for(&w, b, 4)); /* and no other load begins while one is late */
    ck_assert_uint_eq(stats().misses[SL_MISS_LATE], 8);
    ck_assert_int_eq(request_now(a, 4), 0);
    ck_assert_int_eq(stats().waiting, 0);
    close_all(); /* with the load in flight */
}
END_TEST

START_TEST(a_dead_tier_costs_hits_only)
{
    faults f = {0};
    open_all(&(setting){_i ? DISK : MEMORY, SL_CASCADE_WRITE_THROUGH, &f, false, 0});
    two_prompts();
    request(a, 4);
    settle();
    sl_store_flush(store);
    fault_tier_set(tier, &(faults){.die_after = 1});
    ck_assert_int_eq(request(a, 4), 0);
    ck_assert_uint_ge(stats().misses[SL_MISS_IO] + stats().misses[SL_MISS_ABSENT], 4);
    settle();
    ck_assert_uint_eq(stats().lost[SL_LOST_IO], 4);
    ck_assert_uint_eq(stats().stored, 4);
    close_all();
}
END_TEST

/* A page that is evicted while it is being written keeps its memory until the write has ended. */
START_TEST(memory_is_free_after_the_write)
{
    faults f = {.delay_polls = 40};
    open_all(&(setting){MEMORY, SL_CASCADE_WRITE_THROUGH, &f, false, 0});
    two_prompts();
    enum { HELD = PAGES / 8 };
    sl_store_stats s;
    ck_assert_int_eq(request_now(a, HELD), 0);
    turn();
    turn(); /* its pages are with the tier */
    ck_assert_int_eq(stats().writing, HELD);
    ck_assert_int_eq(sl_store_available(store), PAGES - HELD);
    ck_assert_int_eq(request_now(b, 22), 0);
    ck_assert_int_eq(request_now(prompt(3, LONGEST, 0), PAGES - HELD),
                     -1);                                        /* with its last token one page too long */
    ck_assert_int_eq(request_now(prompt(3, LONGEST, 0), 10), 0); /* evicts the pages that are written */
    sl_store_stats_get(store, &s);
    ck_assert_int_eq(s.leaving, HELD);
    ck_assert_int_eq(sl_store_match(store, seed, a, PAGE + 1), 0);
    fault_tier_set(tier, &(faults){0});
    settle();
    sl_store_stats_get(store, &s);
    ck_assert_int_eq(s.leaving, 0);
    ck_assert_int_eq(request(a, HELD + 2), HELD); /* what was written is what was there before the eviction */
    close_all();
}
END_TEST

START_TEST(what_is_lost_is_counted)
{
    faults f = {.delay_polls = 50};
    open_all(&(setting){MEMORY, SL_CASCADE_WRITE_BACK, &f, false, 0});
    two_prompts();
    request_now(a, 20);
    request_now(b, 30); /* evicts at once, without a turn for the cascade */
    ck_assert_uint_ge(stats().lost[SL_LOST_PRESSURE], 18);
    close_all();
    open_all(&(setting){DISK, SL_CASCADE_WRITE_THROUGH, NULL, true, 0});
    request_now(a, 5);
    settle();
    ck_assert_uint_eq(stats().lost[SL_LOST_ADMISSION], 5);
    sl_store_flush(store);
    ck_assert_int_eq(request(a, 5), 0);
    settle();
    sl_store_flush(store);
    ck_assert_int_eq(request(a, 5), 5); /* stored at the second offer */
    settle();
    refuse_jobs = true;
    request_now(b, 4);
    settle();
    ck_assert_uint_eq(stats().lost[SL_LOST_SUMS], 4);
    sl_store_flush(store);
    ck_assert_int_eq(request(a, 5), 0); /* checksums cannot be compared: no hit */
    close_all();
}
END_TEST

/* The end of a worker with everything in flight. */
START_TEST(it_ends_at_any_moment)
{
    for (int turns = 0; turns < 12; turns++) {
        faults f = {.delay_polls = turns % 3};
        open_all(&(setting){turns % 2 ? DISK : MEMORY, SL_CASCADE_WRITE_THROUGH, &f, false, 0});
        two_prompts();
        request(a, 6);
        settle();
        sl_store_flush(store);
        waiting w = {0};
        ck_assert(wait_for(&w, a, 6));
        request_now(b, 8);
        for (int i = 0; i < turns; i++)
            sl_cascade_tick(cascade, sl_now_ns());
        if (turns > 6)
            answer_all();
        if (!w.ready)
            sl_cascade_leave(cascade, &w.w);
        close_all();
    }
}
END_TEST

/* Random prompts of a few families against all faults: whatever happens, no page of the tree is wrong. */
START_TEST(never_a_wrong_page)
{
    uint64_t r = 99 + (uint64_t)_i;
    faults f = {.delay_polls = 2, .lose_every = 11, .short_every = 13, .damage_every = 17};
    open_all(&(setting){_i % 2 ? DISK : MEMORY, _i < 2 ? SL_CASCADE_WRITE_THROUGH : SL_CASCADE_WRITE_BACK, &f,
                        _i == 3, 0});
    for (int i = 0; i < 250; i++) {
        const int32_t *tokens = prompt(1 + rnd_below(&r, 4), 1 + rnd_below(&r, 6), 1 + rnd_below(&r, 3));
        int n = 1 + rnd_below(&r, 12);
        if (rnd_below(&r, 3))
            request(tokens, n);
        else
            request_now(tokens, n);
        for (int k = rnd_below(&r, 3); k > 0; k--)
            turn();
        if (!rnd_below(&r, 40))
            sl_store_flush(store);
    }
    ck_assert_uint_gt(stats().hits, 0);
    ck_assert_uint_gt(stats().stored, 0);
    close_all();
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
