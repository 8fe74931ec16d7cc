/*
 * States of a model with four classes of layers (toy_layers.h) outlive their request as snapshots. Every token that any engine
 * here produces is compared with a restatement of the whole text.
 *
 *   prefix     requests continue after the last snapshot that the prefix tree has, after a death with all tokens so far; what
 *              follows it is computed again, and a damaged snapshot is not used
 *   disk       snapshots are stored with the pages by a cascade, and a restarted worker loads them
 *   steps      save states before they append, also those before a token that stood while later ones were taken back: the bytes
 *              are those of a sequence that never had other tokens. What is not kept, and pages that do not exist, are refused
 *
 * About 1 s. What moves between workers is in test_state_shipment.c, because UCX and ThreadSanitizer do not get along with the
 * thread of a disk in one program.
 */
#include <check.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "kvstore/cascade.h"
#include "kvstore/snapshot.h"
#include "kvstore/tier.h"
#include "tests/unit/run_suite.h"
#include "toy_layers.h"

enum { PAGE = SL_PAGE_TOKENS, PAGES = 24, LENGTH = 300, SNAPSHOT = 2, MOST = TOY_CONTEXT / PAGE + SNAPSHOT };

static const sl_key seed = {11, 12};

static void open_fix(fix *f, sl_layout layout)
{
    fix_opts o = toy_opts();
    o.layout = layout, o.host_pages = PAGES;
    fix_open(f, &o);
    ck_assert_int_eq(sl_snapshot_pages(sl_arena_geometry(f->arena)), SNAPSHOT);
}

static void must(sl_status st, const sl_err *err)
{
    ck_assert_msg(st == SL_OK, "%s", err->text);
}

/* ---- prefix tree: what a worker does with snapshots ---- */

typedef struct worker {
    fix f;
    sl_store *store;
} worker;

static void open_worker(worker *w, sl_layout layout)
{
    const sl_store_opts so = {.n_pages = PAGES, .prefix_cache = true};
    open_fix(&w->f, layout);
    ck_assert_int_eq(sl_store_create(&so, &w->store, NULL), SL_OK);
}

static void close_worker(worker *w)
{
    sl_store_stats s;
    sl_store_stats_get(w->store, &s);
    ck_assert_int_eq(s.held, 0);
    sl_store_destroy(w->store);
    fix_close(&w->f);
}

/* A lease of the full pages of the first n tokens and of the snapshot after them. */
static sl_lease *lease_snapshot(worker *w, const toy_text *t, int32_t n, int32_t *tokens)
{
    sl_lease *l = NULL;
    memcpy(tokens, t->ids, sizeof *tokens * (size_t)n);
    sl_snapshot_tokens(SNAPSHOT, tokens + n);
    ck_assert_int_eq(sl_store_lease_pages(w->store, 0, seed, tokens, n / PAGE + SNAPSHOT, &l), SL_OK);
    return l;
}

static void save(worker *w, const fix_run *r, const toy_text *t, int32_t n)
{
    int32_t tokens[MOST * PAGE];
    sl_err err = {0};
    sl_lease *l = lease_snapshot(w, t, n, tokens);
    if (sl_lease_matched(l) < sl_lease_n_pages(l)) {
        ck_assert_int_eq(sl_lease_matched(l), n / PAGE);
        must(sl_engine_seq_save(w->f.engine, r->seq, sl_snapshot_key(seed, t->ids, n),
                                sl_lease_pages(l) + n / PAGE, &err),
             &err);
        sl_lease_publish(l, tokens, (n / PAGE + SNAPSHOT) * PAGE);
    }
    sl_lease_release(l, true);
}

/* False: the snapshot is not usable; it has left the tree. */
static bool restore(worker *w, const fix_run *r, const toy_text *t, int32_t n)
{
    int32_t tokens[MOST * PAGE];
    sl_err err = {0};
    sl_lease *l = lease_snapshot(w, t, n, tokens);
    ck_assert_int_eq(sl_lease_matched(l), n / PAGE + SNAPSHOT);
    const sl_status st = sl_engine_seq_restore(w->f.engine, r->seq, sl_snapshot_key(seed, t->ids, n),
                                               sl_lease_pages(l) + n / PAGE, &err);
    if (st != SL_OK) {
        ck_assert_int_eq(st, SL_ERR_CORRUPT);
        ck_assert_int_gt(sl_lease_drop(l, n / PAGE), 0);
    }
    sl_lease_release(l, true);
    return st == SL_OK;
}

/*
 * A request whose prompt are the first `prompt` tokens, and that ends with `end` tokens; snapshots are made at multiples of
 * `every`. Returns how many tokens it did not compute.
 */
static int32_t serve(worker *w, const toy_text *t, int32_t prompt, int32_t end, int32_t every)
{
    const sl_geometry *g = sl_arena_geometry(w->f.arena);
    int32_t cached = sl_snapshot_find(w->store, g, seed, t->ids, prompt);
    fix_run r = {0};
    sl_lease *l = NULL;
    sl_err err = {0};
    for (bool open = false; !open;) {
        ck_assert_int_eq(sl_store_lease_part(w->store, 0, seed, t->ids, end, cached + 1, &l), SL_OK);
        ck_assert_int_eq(sl_lease_matched(l), cached / PAGE);
        r.n_pages = sl_lease_n_pages(l);
        memcpy(r.pages, sl_lease_pages(l), sizeof *r.pages * (size_t)r.n_pages);
        must(sl_engine_seq_open(w->f.engine, SL_RESIDENT, r.pages, r.n_pages, cached, &r, &r.seq, &err),
             &err);
        open = cached == 0 || restore(w, &r, t, cached);
        if (!open) {
            sl_engine_seq_close(w->f.engine, r.seq);
            sl_lease_release(l, true);
            cached = sl_snapshot_find(w->store, g, seed, t->ids, prompt);
        }
    }
    for (int32_t at = cached; at < prompt;) {
        const int32_t stop = at / every * every + every, to = stop < prompt ? stop : prompt;
        toy_feed(&w->f, &r, t, to, 50);
        sl_lease_publish(l, t->ids, to);
        if (to % PAGE == 0)
            save(w, &r, t, to);
        at = to;
    }
    toy_feed(&w->f, &r, t, prompt + (end - prompt) / 2, 1);
    must(sl_engine_seq_spill(w->f.engine, r.seq, &err), &err);
    toy_feed(&w->f, &r, t, end, 1);
    sl_lease_publish(l, t->ids, end);
    sl_engine_seq_close(w->f.engine, r.seq);
    sl_lease_release(l, true);
    must(sl_store_check(w->store, &err), &err);
    return cached;
}

/* Where the snapshot after n tokens begins. */
static uint8_t *snapshot_byte(worker *w, const toy_text *t, int32_t n, int64_t at)
{
    int32_t tokens[MOST * PAGE];
    uint8_t *byte;
    sl_lease *l = lease_snapshot(w, t, n, tokens);
    ck_assert_int_eq(sl_lease_matched(l), n / PAGE + SNAPSHOT);
    sl_snapshot_run(w->f.arena, sl_lease_pages(l) + n / PAGE, at, &byte);
    sl_lease_release(l, true);
    return byte;
}

START_TEST(prefixes_end_at_snapshots)
{
    worker w, other;
    toy_text t, u;
    open_worker(&w, (sl_layout)_i);
    toy_make_text(&t, 200, LENGTH, 1);
    ck_assert_int_eq(serve(&w, &t, 200, 230, 128), 0);
    /* Three full pages are cached, and a snapshot after two of them: a longer common prefix is computed again. */
    ck_assert_int_eq(sl_store_match(w.store, seed, t.ids, LENGTH), 3);
    ck_assert_int_eq(serve(&w, &t, 230, 260, 128), 128);
    toy_make_like(&u, &t, 150, 180, LENGTH, 2);
    ck_assert_int_eq(serve(&w, &u, 180, 200, 128), 128);
    toy_make_like(&u, &t, 100, 180, LENGTH, 3); /* one common page, after which there is no snapshot */
    ck_assert_int_eq(serve(&w, &u, 180, 190, 64), 0);
    ck_assert_int_eq(serve(&w, &u, 128, 150, 64), 64); /* a prompt is never cached whole */
    ck_assert_int_eq(sl_snapshot_find(w.store, sl_arena_geometry(w.f.arena), (sl_key){1, 1}, t.ids, 200), 0);
    /* A worker that knows nothing continues with all tokens of a request whose worker died. */
    open_worker(&other, SL_LAYOUT_PAGE_FIRST);
    ck_assert_int_eq(serve(&other, &t, 260, LENGTH, 64), 0);
    ck_assert_int_eq(serve(&other, &t, 260, LENGTH, 64), 256);
    close_worker(&other);
    close_worker(&w);
}
END_TEST

START_TEST(damaged_snapshots_are_computed_again)
{
    worker w;
    toy_text t;
    open_worker(&w, (sl_layout)_i);
    const sl_geometry *g = sl_arena_geometry(w.f.arena);
    toy_make_text(&t, 260, LENGTH, 5);
    ck_assert_int_eq(serve(&w, &t, 260, 261, 64), 0);
    *snapshot_byte(&w, &t, 256, 70) ^= 1;  /* a state */
    *snapshot_byte(&w, &t, 192, 12) ^= 64; /* the number of tokens */
    ck_assert_int_eq(serve(&w, &t, 260, 280, 64), 128);
    ck_assert_int_eq(serve(&w, &t, 260, LENGTH, 64), 256); /* it was made again */
    /* A snapshot of which a part was evicted is none. */
    sl_store_stats s;
    sl_lease *all = NULL;
    const int32_t none[PAGES * PAGE] = {0};
    ck_assert_int_eq(sl_snapshot_find(w.store, g, seed, t.ids, 100), 64);
    sl_store_stats_get(w.store, &s);
    ck_assert_int_eq(sl_store_lease(w.store, (sl_key){9, 8}, none, (s.free + 1) * PAGE, &all), SL_OK);
    sl_lease_release(all, false);
    ck_assert_int_eq(sl_snapshot_find(w.store, g, seed, t.ids, 100), 0);
    ck_assert_int_eq(sl_snapshot_find(w.store, g, seed, t.ids, 150), 128);
    /* Snapshots are evicted before the pages after which they were made, and then these are computed again. */
    sl_store_stats_get(w.store, &s);
    ck_assert_int_eq(sl_store_lease(w.store, (sl_key){9, 9}, none, (s.free + 4 * SNAPSHOT - 1) * PAGE, &all),
                     SL_OK);
    ck_assert_int_eq(sl_store_match(w.store, seed, t.ids, 260), 4);
    ck_assert_int_eq(sl_snapshot_find(w.store, g, seed, t.ids, 260), 0);
    sl_lease_release(all, false);
    ck_assert_int_eq(serve(&w, &t, 260, 270, 64), 0);
    ck_assert_int_eq(serve(&w, &t, 260, 270, 64), 256);
    close_worker(&w);
}
END_TEST

/* ---- disk ---- */

typedef struct job {
    sl_cascade_job *job;
    bool check;
    int32_t pages[PAGES], n;
    uint32_t crc[PAGES * TOY_LAYERS];
} job;

static job jobs[8];
static int n_jobs;

static bool ask(sl_cascade_job *j, const int32_t *pages, int32_t n, const uint32_t *crc)
{
    ck_assert_int_lt(n_jobs, (int)SL_COUNT(jobs));
    job *q = &jobs[n_jobs++];
    *q = (job){.job = j, .check = crc != NULL, .n = n};
    memcpy(q->pages, pages, sizeof *pages * (size_t)n);
    if (crc)
        memcpy(q->crc, crc, sizeof *crc * (size_t)(n * TOY_LAYERS));
    return true;
}

static bool read_sums(void *ctx, sl_cascade_job *j, const int32_t *pages, int32_t n)
{
    (void)ctx;
    return ask(j, pages, n, NULL);
}

static bool check_sums(void *ctx, sl_cascade_job *j, const int32_t *pages, int32_t n, const uint32_t *crc)
{
    (void)ctx;
    return ask(j, pages, n, crc);
}

static void answer(const worker *w, sl_cascade *c, const job *q)
{
    uint32_t now[PAGES * TOY_LAYERS];
    int32_t damaged[PAGES], n = 0;
    for (int32_t i = 0; i < q->n; i++)
        for (int32_t l = 0; l < TOY_LAYERS; l++)
            now[i * TOY_LAYERS + l] = sl_arena_page_crc(w->f.arena, q->pages[i], l, PAGE);
    for (int32_t i = 0; i < q->n; i++)
        if (memcmp(now + i * TOY_LAYERS, q->crc + i * TOY_LAYERS, TOY_LAYERS * sizeof *now) != 0)
            damaged[n++] = q->pages[i];
    if (q->check)
        sl_cascade_checked(c, q->job, damaged, n);
    else
        sl_cascade_sums(c, q->job, now);
}

static bool turn(const worker *w, sl_cascade *c, bool wait)
{
    struct pollfd p = {.fd = sl_cascade_fd(c), .events = POLLIN};
    sl_cascade_news news;
    bool ended = false;
    if (wait && n_jobs == 0)
        poll(&p, 1, 20);
    while (n_jobs > 0) {
        const job q = jobs[--n_jobs];
        answer(w, c, &q);
    }
    sl_cascade_tick(c, sl_now_ns());
    while (sl_cascade_next(c, &news))
        ended |= news.ended;
    return ended;
}

static sl_cascade *open_disk(worker *w, const char *directory)
{
    sl_err err = {0};
    sl_cascade *c;
    sl_cascade_tier tier = {.policy = SL_CASCADE_WRITE_THROUGH, .load_timeout_ms = 60000};
    sl_tier_opts o = {.segment_bytes = 1 << 20,
                      .capacity_bytes = 16 << 20,
                      .fingerprint = sl_arena_geometry(w->f.arena)->fingerprint,
                      .directory = directory};
    ck_assert(sl_cascade_page_format(sl_arena_geometry(w->f.arena), &o.page_bytes, &o.format));
    tier.listener = sl_cascade_listen(&o);
    must(sl_tier_open(&sl_tier_disk_ops, &o, &tier.tier, &err), &err);
    const sl_cascade_opts co = {
        .store = w->store, .arena = w->f.arena, .calls = {.read_sums = read_sums, .check_sums = check_sums}};
    ck_assert_int_eq(sl_cascade_create(&co, &tier, 1, &c), SL_OK);
    return c;
}

/* Loads the full pages of the first n tokens and the snapshot after them, as far as the disk has them. */
static void load(worker *w, sl_cascade *c, const toy_text *t, int32_t n)
{
    int32_t tokens[MOST * PAGE + 1];
    sl_cascade_waiter waiter = {0};
    memcpy(tokens, t->ids, sizeof *tokens * (size_t)n);
    sl_snapshot_tokens(SNAPSHOT, tokens + n);
    const int32_t all = n + SNAPSHOT * PAGE + 1;
    tokens[all - 1] = 0;
    for (int turns = 0; sl_cascade_wait(c, seed, tokens, all, &waiter);)
        while (!turn(w, c, true))
            ck_assert_int_lt(++turns, 3000);
}

START_TEST(snapshots_are_stored_with_pages)
{
    char path[] = "build/tier-XXXXXX", file[64];
    worker w;
    toy_text t;
    ck_assert_ptr_nonnull(mkdtemp(path));
    toy_make_text(&t, 200, LENGTH, 8);
    open_worker(&w, (sl_layout)_i);
    sl_cascade *c = open_disk(&w, path);
    ck_assert_int_eq(serve(&w, &t, 200, 230, 64), 0);
    for (int turns = 0; !sl_cascade_idle(c) || n_jobs > 0; turns++) {
        turn(&w, c, true);
        ck_assert_int_lt(turns, 3000);
    }
    sl_cascade_stats s;
    sl_cascade_stats_get(c, 0, &s);
    ck_assert_uint_eq(s.stored, 3 + 3 * SNAPSHOT);
    sl_cascade_destroy(c);
    close_worker(&w);

    open_worker(&w, (sl_layout)_i); /* its memory knows nothing */
    c = open_disk(&w, path);
    load(&w, c, &t, 128);
    ck_assert_int_eq(serve(&w, &t, 230, 231, 256), 128);
    load(&w, c, &t, 192);
    ck_assert_int_eq(serve(&w, &t, 230, LENGTH, 256), 192);
    sl_cascade_destroy(c);
    close_worker(&w);
    snprintf(file, sizeof file, "%s/pages.sluice", path);
    unlink(file);
    rmdir(path);
}
END_TEST

/* ---- steps that save ---- */

enum { MOST_TOKENS = 4, FIRST = 100, SAVES = 40 };

/* A step of n tokens after the `len` that the sequence has, of which the first `right` are those of the text; the others are taken back. */
static void some_tokens(const worker *w, const fix_run *r, const toy_text *t, int32_t n, int32_t right,
                        const sl_step_save *save)
{
    int32_t ids[MOST_TOKENS];
    sl_err err = {0};
    const int32_t len = sl_engine_seq_len(r->seq);
    for (int32_t i = 0; i < n; i++)
        ids[i] = i < right ? t->ids[len + i] : (t->ids[len + i] + 1 + i) % TOY_VOCAB;
    sl_step_item it = {.seq = r->seq, .tokens = ids, .n_tokens = n};
    if (save)
        it.save = *save;
    must(sl_engine_step(w->f.engine, &it, 1, NULL, &err), &err);
    must(sl_engine_seq_truncate(w->f.engine, r->seq, len + right, &err), &err);
}

/* Whether these pages have the bytes of a snapshot of a sequence that never had other tokens than the first n. */
static void is_snapshot_of(worker *w, const toy_text *t, int32_t n, const int32_t *pages)
{
    fix_run r = {0}, room = {0};
    sl_err err = {0};
    const sl_geometry *g = sl_arena_geometry(w->f.arena);
    const sl_key key = sl_snapshot_key(seed, t->ids, n);
    fix_grow(&w->f, &room, SNAPSHOT * PAGE);
    fix_seq_open(&w->f, &r, SL_RESIDENT, 0, n);
    toy_feed(&w->f, &r, t, n, 50);
    must(sl_engine_seq_save(w->f.engine, r.seq, key, room.pages, &err), &err);
    sl_snapshot_seal(w->f.arena, pages, n, key);
    for (int64_t at = 0, run = 0; at < SNAPSHOT * g->page_bytes; at += run) {
        uint8_t *got, *want;
        run = sl_snapshot_run(w->f.arena, pages, at, &got);
        (void)sl_snapshot_run(w->f.arena, room.pages, at, &want);
        ck_assert_msg(!memcmp(got, want, (size_t)run), "after %d tokens, bytes from %d on", n, (int)at);
    }
    fix_seq_close(&w->f, &r, false);
    fix_seq_close(&w->f, &room, false);
}

START_TEST(steps_save_what_stood)
{
    worker w;
    toy_text t;
    fix_run r = {0};
    int32_t pages[SNAPSHOT], versions = 0;
    uint64_t dice = 7 + (uint64_t)_i;
    fix_opts o = toy_opts();
    o.layout = (sl_layout)_i, o.host_pages = 3 * PAGES;
    o.item_tokens = MOST_TOKENS, o.hot_rows *= MOST_TOKENS, o.tail_rows = 2 * MOST_TOKENS;
    fix_open(&w.f, &o);
    toy_make_text(&t, FIRST, LENGTH, 77 + (uint64_t)_i);
    fix_grow(&w.f, &r, LENGTH);
    fix_run room = {0};
    fix_grow(&w.f, &room, SNAPSHOT * PAGE);
    memcpy(pages, room.pages, sizeof pages);
    fix_seq_open(&w.f, &r, _i ? SL_HIERARCHICAL : SL_RESIDENT, 0, LENGTH);
    toy_feed(&w.f, &r, &t, FIRST, _i ? 1 : 50);
    for (int i = 0; i < SAVES; i++) {
        const int32_t len = sl_engine_seq_len(r.seq);
        dice = dice * 6364136223846793005ull + 1442695040888963407ull;
        const int32_t n = 1 + (int32_t)(dice >> 40) % MOST_TOKENS, right = 1 + (int32_t)(dice >> 50) % n;
        some_tokens(&w, &r, &t, n, right, NULL);
        for (int32_t back = 0; back <= MOST_TOKENS + 1;
             back++) /* the states before the step's first token are the first ones */
            ck_assert_int_eq(sl_engine_seq_keeps(w.f.engine, r.seq, len + right - back), back <= right);
        const sl_step_save save = {len + right - (int32_t)(dice >> 60) % (right + 1), pages};
        versions += save.tokens < len + right;
        some_tokens(&w, &r, &t, 1 + (int32_t)(dice >> 33) % MOST_TOKENS, 1, &save);
        is_snapshot_of(&w, &t, save.tokens, pages);
    }
    ck_assert_int_gt(versions, SAVES / 4);
    toy_feed(&w.f, &r, &t, LENGTH, 1);
    fix_seq_close(&w.f, &r, false);
    fix_close(&w.f);
}
END_TEST

START_TEST(steps_refuse_what_is_not_kept)
{
    worker w;
    toy_text t;
    fix_run r = {0};
    sl_err err = {0};
    open_fix(&w.f, SL_LAYOUT_PAGE_FIRST);
    toy_make_text(&t, 100, 120, 5);
    fix_grow(&w.f, &r, 128);
    fix_seq_open(&w.f, &r, SL_RESIDENT, 0, 128);
    toy_feed(&w.f, &r, &t, 100, 50);
    const struct {
        int32_t tokens, page;
        const char *says;
    } wrong[] = {{99, 0, "the states after 99 tokens of a sequence of 100 tokens are not kept"},
                 {101, 0, "the states after 101 tokens of a sequence of 100 tokens are not kept"},
                 {-1, 0, "not kept"},
                 {100, PAGES, "host page 24 is outside the arena of 24 pages"},
                 {100, -1, "host page -1 is outside the arena"}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        const int32_t pages[SNAPSHOT] = {0, wrong[i].page};
        sl_step_item it = {
            .seq = r.seq, .tokens = t.ids + 100, .n_tokens = 1, .save = {wrong[i].tokens, pages}};
        ck_assert_int_eq(sl_engine_step(w.f.engine, &it, 1, NULL, &err), SL_ERR_INVALID);
        ck_assert_msg(strstr(err.text, wrong[i].says) != NULL, "%s", err.text);
        ck_assert_int_eq(sl_engine_seq_len(r.seq), 100);
    }
    toy_feed(&w.f, &r, &t, 120, 1); /* nothing has changed */
    fix_seq_close(&w.f, &r, false);
    fix_close(&w.f);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("snapshots");
    TCase *t = tcase_create("snapshots");
    tcase_add_unchecked_fixture(t, toy_setup, toy_teardown);
    tcase_set_timeout(t, 120);
    tcase_add_loop_test(t, prefixes_end_at_snapshots, 0, 3);
    tcase_add_loop_test(t, damaged_snapshots_are_computed_again, 0, 3);
    tcase_add_loop_test(t, snapshots_are_stored_with_pages, 0, 3);
    tcase_add_loop_test(t, steps_save_what_stood, 0, 3);
    tcase_add_test(t, steps_refuse_what_is_not_kept);
    suite_add_tcase(s, t);
    return run_suite(s);
}
