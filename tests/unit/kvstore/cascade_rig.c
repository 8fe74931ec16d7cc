/* See cascade_rig.h. */
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/log.h"
#include "tests/unit/kvstore/cascade_rig.h"

cascade_rig rig;

/* ---- the worker's part ---- */

static bool ask(rig_asked a, const int32_t *pages)
{
    if (rig.refuse_jobs)
        return false;
    ck_assert_int_lt(rig.n_jobs, JOBS);
    memcpy(a.pages, pages, (size_t)a.n * sizeof *pages);
    rig.jobs[rig.n_jobs++] = a;
    return true;
}

static bool read_sums(void *ctx, sl_cascade_job *job, const int32_t *pages, int32_t n)
{
    (void)ctx;
    return ask((rig_asked){.job = job, .n = n}, pages);
}

static bool check_sums(void *ctx, sl_cascade_job *job, const int32_t *pages, int32_t n, const uint32_t *crc)
{
    (void)ctx;
    return ask((rig_asked){.job = job, .n = n, .crc = crc}, pages);
}

static void answer(rig_asked a)
{
    uint32_t crc[PAGES][LAYERS];
    int32_t damaged[PAGES], n_damaged = 0;
    for (int i = 0; i < a.n; i++) {
        bool right = true;
        memcpy(crc[i], rig.kept[a.pages[i]], sizeof crc[i]);
        for (int l = 0; a.crc && l < LAYERS; l++)
            right &= sl_arena_page_crc(rig.arena, a.pages[i], l, PAGE) == a.crc[i * LAYERS + l];
        if (!right)
            damaged[n_damaged++] = a.pages[i];
    }
    for (int i = 0; a.crc && !n_damaged && i < a.n; i++)
        memcpy(rig.kept[a.pages[i]], a.crc + i * LAYERS, sizeof rig.kept[0]);
    if (a.crc)
        sl_cascade_checked(rig.cascade, a.job, damaged, n_damaged);
    else
        sl_cascade_sums(rig.cascade, a.job, crc[0]);
}

void rig_answer_all(void)
{
    while (rig.n_jobs) {
        rig_asked a = rig.jobs[0];
        memmove(rig.jobs, rig.jobs + 1, (size_t)--rig.n_jobs * sizeof *rig.jobs);
        answer(a);
    }
}

sl_cascade_stats rig_stats(void)
{
    sl_cascade_stats s;
    sl_cascade_stats_get(rig.cascade, 0, &s);
    return s;
}

sl_cascade_stats rig_second_stats(void)
{
    sl_cascade_stats s;
    sl_cascade_stats_get(rig.cascade, 1, &s);
    return s;
}

/* Something is in flight. */
static bool active(void)
{
    bool any = sl_cascade_waiting(rig.cascade) > 0;
    for (int t = 0; t < sl_cascade_n_tiers(rig.cascade); t++) {
        sl_cascade_stats s;
        sl_cascade_stats_get(rig.cascade, t, &s);
        any |= s.writing || s.loading;
    }
    return any;
}

void rig_news(void)
{
    sl_cascade_news news;
    while (sl_cascade_next(rig.cascade, &news)) {
        rig_waiting *w = (rig_waiting *)news.w;
        ck_assert(!w->ready);
        w->ready = news.ended;
        w->begun += news.ended ? 0 : news.pages;
    }
}

void rig_tick(uint64_t now_ns)
{
    sl_cascade_tick(rig.cascade, now_ns);
    rig_news();
}

void rig_turn(void)
{
    struct pollfd p = {.fd = sl_cascade_fd(rig.cascade), .events = POLLIN};
    if (!rig.n_jobs && active())
        poll(&p, 1, 20);
    rig_answer_all();
    rig_tick(sl_now_ns());
    sl_err err = {0};
    ck_assert_msg(sl_store_check(rig.store, &err) == SL_OK, "%s", err.text);
}

void rig_settle(void)
{
    for (int quiet = 0; quiet < 2;) {
        rig_turn();
        quiet = active() || rig.n_jobs ? 0 : quiet + 1;
    }
}

/* ---- prompts ---- */

const sl_key rig_seed = {7, 8};
static int32_t prompt_tokens[LONGEST * PAGE];

const int32_t *rig_prompt(int family, int shared, int own)
{
    for (int i = 0; i < LONGEST * PAGE; i++)
        prompt_tokens[i] = i / PAGE < shared ? family * 1000 + i % 97 : own * 7777 + family + i % 89;
    return prompt_tokens;
}

/* What page i of the prompt must contain: bytes from its key. */
static void expected(const int32_t *tokens, int i, uint8_t *out, size_t n)
{
    sl_key k = rig_seed;
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
    sl_arena_spans(rig.arena, page, spans);
    for (int s = 0; s < sl_arena_n_spans(rig.arena); at += spans[s++].iov_len) {
        if (write)
            memcpy(spans[s].iov_base, bytes + at, spans[s].iov_len);
        else
            ck_assert_msg(memcmp(spans[s].iov_base, bytes + at, spans[s].iov_len) == 0, "page %d is wrong",
                          page);
    }
    ck_assert_uint_eq(at, (size_t)sl_arena_geometry(rig.arena)->page_bytes);
}

/* A request of n full pages and one more token: checks the pages that matched, "computes" the others, publishes. Returns the number of
 * pages that matched, or -1: there was no room. */
int rig_request_now(const int32_t *tokens, int n)
{
    static uint8_t bytes[1 << 20];
    sl_lease *l;
    size_t size = (size_t)sl_arena_geometry(rig.arena)->page_bytes;
    if (sl_store_lease(rig.store, rig_seed, tokens, n * PAGE + 1, &l) != SL_OK)
        return -1;
    int matched = sl_lease_matched(l);
    for (int i = 0; i < n; i++) {
        int32_t page = sl_lease_pages(l)[i];
        expected(tokens, i, bytes, size);
        each_byte(page, bytes, i >= matched);
        for (int k = 0; i >= matched && k < LAYERS; k++)
            rig.kept[page][k] = sl_arena_page_crc(rig.arena, page, k, PAGE);
    }
    sl_lease_publish(l, tokens, n * PAGE);
    sl_lease_release(l, true);
    return matched;
}

bool rig_wait_for(rig_waiting *w, const int32_t *tokens, int n)
{
    w->ready = false;
    return sl_cascade_wait(rig.cascade, rig_seed, tokens, n * PAGE + 1, &w->w);
}

/* The same, but it waits for the tier first, as a worker does. */
int rig_request(const int32_t *tokens, int n)
{
    int32_t mine[LONGEST * PAGE];
    rig_waiting w = {0};
    memcpy(mine, tokens, sizeof mine);
    while (rig_wait_for(&w, mine, n)) {
        for (int i = 0; !w.ready; i++) {
            rig_turn();
            ck_assert_int_lt(i, 5000);
        }
    }
    return rig_request_now(mine, n);
}

/* ---- open and close ---- */

void rig_make_store(sl_layout layout)
{
    static const bool indexer[LAYERS] = {true, false};
    sl_err err = {0};
    sl_geometry g = mla_geometry((sl_key){1, 2}, layout, SL_ROW_MLA_FP8, SL_INDEX_OFFICIAL, LAYERS, indexer);
    sl_arena_opts ao = {.bytes = (uint64_t)(PAGES * g.page_bytes), .lock = SL_OFF, .numa_node = -1};
    sl_store_opts so = {.n_pages = PAGES, .prefix_cache = true};
    ck_assert_msg(sl_arena_create(&g, &ao, &rig.arena, &err) == SL_OK, "%s", err.text);
    ck_assert_msg(sl_store_create(&so, &rig.store, &err) == SL_OK, "%s", err.text);
}

static void on_stored(void *ctx, int tier, const sl_key *keys, int32_t n)
{
    (void)ctx;
    (void)keys;
    rig.stored[tier] += n;
}

static void on_gone(void *ctx, int tier, const sl_key *keys, int32_t n)
{
    (void)ctx;
    (void)keys;
    rig.gone[tier] += n;
}

static sl_cascade_tier open_tier(const rig_setting *s, rig_kind kind, const faults *f)
{
    sl_err err = {0};
    sl_cascade_tier t = {0};
    sl_tier_opts o = {.segment_bytes = 1 << 20,
                      .fingerprint = {1, 2},
                      .second_use = s->second_use,
                      .directory = kind == DISK ? tier_directory() : NULL};
    ck_assert(sl_cascade_page_format(sl_arena_geometry(rig.arena), &o.page_bytes, &o.format));
    o.capacity_bytes = s->capacity ? (uint64_t)s->capacity * o.page_bytes : 16 << 20;
    t.listener = sl_cascade_listen(&o);
    const sl_tier_ops *ops = kind == DISK ? &sl_tier_disk_ops : &sl_tier_memory_ops;
    ck_assert_msg(sl_tier_open(ops, &o, &t.tier, &err) == SL_OK, "%s", err.text);
    if (f)
        t.tier = fault_tier_wrap(t.tier, f);
    return t;
}

void rig_open_cascade(const rig_setting *s)
{
    mkdir(tier_directory(), 0700); /* it exists, unless a test opens a second time */
    sl_cascade_tier tiers[2] = {open_tier(s, s->tier, s->faults)};
    tiers[0].policy = s->policy;
    tiers[0].load_timeout_ms = s->timeout_ms ? s->timeout_ms : 60000;
    if (s->second.is) {
        tiers[1] = open_tier(&(rig_setting){0}, MEMORY, s->second.faults);
        tiers[1].policy = s->second.policy;
        tiers[1].load_timeout_ms = s->second.timeout_ms ? s->second.timeout_ms : 60000;
    }
    rig.tier = tiers[0].tier;
    rig.second = tiers[1].tier;
    sl_cascade_opts co = {
        .store = rig.store,
        .arena = rig.arena,
        .chunk_pages = s->chunk_pages,
        .calls = {.read_sums = read_sums, .check_sums = check_sums, .stored = on_stored, .gone = on_gone}};
    ck_assert_int_eq(sl_cascade_create(&co, tiers, s->second.is ? 2 : 1, &rig.cascade), SL_OK);
    rig.n_jobs = 0;
    rig.refuse_jobs = false;
    memset(rig.stored, 0, sizeof rig.stored);
    memset(rig.gone, 0, sizeof rig.gone);
}

void rig_open_all(const rig_setting *s)
{
    rig_make_store(SL_LAYOUT_LAYER_FIRST);
    rig_open_cascade(s);
}

void rig_close_store(void)
{
    sl_store_stats s;
    sl_store_stats_get(rig.store, &s);
    ck_assert_int_eq(s.held, 0);
    sl_store_destroy(rig.store);
    sl_arena_destroy(rig.arena);
}

void rig_close_all(void)
{
    sl_cascade_destroy(rig.cascade);
    rig_close_store();
    remove_tier_directory();
}

void rig_traffic(uint64_t *state, int requests)
{
    for (int i = 0; i < requests; i++) {
        const int32_t *tokens =
            rig_prompt(1 + rnd_below(state, 4), 1 + rnd_below(state, 6), 1 + rnd_below(state, 3));
        int n = 1 + rnd_below(state, 12);
        if (rnd_below(state, 3))
            rig_request(tokens, n);
        else
            rig_request_now(tokens, n);
        for (int k = rnd_below(state, 3); k > 0; k--)
            rig_turn();
        if (!rnd_below(state, 40))
            sl_store_flush(rig.store);
    }
}
