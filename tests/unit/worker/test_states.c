/*
 * Clusters of real workers and engines serve a model with four classes of layers (tests/unit/engine/toy_layers.h), of which two keep
 * states: prefill and decode workers over loopback with all layouts and ways of shipping. Every token is compared with the
 * restatement of the whole text.
 *
 *   moves      prompts of all kinds of lengths, again and on other workers: what was cached is what has a snapshot, and is pulled
 *              with it where only the decode worker has it
 *   pressure   more requests than the store holds: retraction, eviction of snapshots; spilled: more rows than the device holds
 *   death      a decode worker dies in the middle: what has no snapshot is computed again
 *   damage     snapshots in the stores are damaged: they are not used, and no token is wrong
 *   answers    conversations whose next turn does not compute the answer again: two steps in flight, drafts of which some stand,
 *              requests that give way, places that are given back, damaged snapshots among generated tokens
 */
#include <stdio.h>
#include <unistd.h>

#include "decode/decode_impl.h"
#include "kvstore/snapshot.h"
#include "tests/unit/engine/toy_layers.h"
#include "tests/unit/run_suite.h"
#include "tests/unit/worker/cluster.h"

enum { PAGE = SL_PAGE_TOKENS, SNAPSHOT = 2, TEXTS = 64, DRAFTS = 3 };

static cluster c;
static fix rigs[MAX_WORKERS];
static toy_text texts[TEXTS];
static uint64_t pool_bytes; /* of the decode workers that are made next */
static uint64_t moved;      /* bytes of pools, of workers that have ended */

/* Drafts are tokens of a text that has this token at this place; some are wrong on purpose, and all if it is another text. */
static sl_status draft(void *impl, sl_draft_item *items, int32_t n, sl_err *err)
{
    static uint64_t dice = 5;
    (void)impl;
    (void)err;
    for (int32_t i = 0; i < n; i++) {
        const int32_t len = sl_engine_seq_len(items[i].seq);
        const toy_text *t = &texts[0];
        while (t < texts + TEXTS - 1 && t->ids[len] != items[i].token)
            t++;
        for (int32_t k = 0; k < items[i].n; k++) {
            const bool wrong = (dice = dice * 6364136223846793005ull + 1442695040888963407ull) >> 61 == 0;
            const int32_t at = len + 1 + k;
            items[i].out[k] = at < TOY_CONTEXT && !wrong ? t->ids[at] : 0;
        }
    }
    return SL_OK;
}

/*
 * These steps take some microseconds, and a snapshot for which the checker has still not written the record when the next one is due
 * stands in its way. So shortly before the end of a page a step waits until the checker has no jobs and the last one had time to come
 * back, so that what is kept does not depend on the machine.
 */
static sl_status (*submit_step)(void *impl, sl_step_item *items, int32_t n, sl_err *err);
static sl_status (*run_step)(void *impl, sl_step_item *items, int32_t n, const sl_step_hooks *hooks,
                             sl_err *err);

static _Atomic int32_t hold_at; /* not 0: no step begins after this many tokens */

static void let_check(const void *impl, const sl_step_item *items, int32_t n)
{
    const cworker *w = c.w;
    while (w->runner.impl != impl)
        w++;
    for (int32_t i = 0; i < n && w->decode; i++) {
        const int32_t at = sl_engine_seq_len(items[i].seq) % PAGE;
        while (hold_at && sl_engine_seq_len(items[i].seq) >= hold_at)
            usleep(100);
        if (items[i].n_tokens > 1 + DRAFTS || at < PAGE - 8 || at >= PAGE - 4)
            continue;
        while (atomic_load(&w->decode->role.checker.watch.jobs) > 0)
            usleep(100);
        usleep(1000);
        return;
    }
}

static sl_status submit_slowly(void *impl, sl_step_item *items, int32_t n, sl_err *err)
{
    let_check(impl, items, n);
    return submit_step(impl, items, n, err);
}

static sl_status step_slowly(void *impl, sl_step_item *items, int32_t n, const sl_step_hooks *hooks,
                             sl_err *err)
{
    let_check(impl, items, n);
    return run_step(impl, items, n, hooks, err);
}

static sl_status truncate_seq(void *impl, void *seq, int32_t len, sl_err *err)
{
    return sl_engine_seq_truncate(impl, seq, len, err);
}

static bool make_runner(cworker *w)
{
    fix *f = &rigs[w - w->c->w];
    const bool prefill = w->role == SL_ROLE_PREFILL;
    fix_opts o = toy_opts();
    o.max_seqs = 6;
    o.max_hot = prefill ? 0 : 6;
    if (c.o.draft_tokens)
        o.item_tokens = 1 + DRAFTS, o.hot_rows *= 1 + DRAFTS, o.tail_rows = 2 * (1 + DRAFTS);
    o.arena = w->arena;
    o.layout = sl_arena_geometry(w->arena)->layout;
    o.row_pages = prefill ? 0 : c.o.row_pages;
    o.pool_bytes = prefill ? 0 : pool_bytes;
    fix_open(f, &o);
    w->runner = sl_runner_for_engine(f->engine, f->cfg, &f->eo);
    w->runner.overlaps = true;
    if (!prefill) {
        submit_step = w->runner.submit, w->runner.submit = submit_slowly;
        run_step = w->runner.step, w->runner.step = step_slowly;
    }
    if (c.o.draft_tokens)
        w->runner.draft = draft, w->runner.truncate = truncate_seq;
    return true;
}

static void drop_runner(cworker *w)
{
    sl_engine_stats s;
    sl_engine_stats_get(rigs[w - w->c->w].engine, &s);
    ck_assert_uint_eq(s.pool_free, s.pool_bytes); /* nothing is held any more */
    moved += s.pool_moved;
    fix_close(&rigs[w - w->c->w]);
}

static cluster_opts options(void)
{
    cluster_opts o = cluster_defaults();
    fix f;
    fix_opts fo = toy_opts();
    fo.host_pages = 4;
    fix_open(&f, &fo);
    o.geometry = *sl_arena_geometry(f.arena);
    o.vocab = TOY_VOCAB;
    fix_close(&f);
    o.chunk_tokens = 80;
    o.max_batch = 4;
    o.max_context = TOY_CONTEXT;
    o.prefill_pages = 60;
    o.decode_pages = 60;
    o.make_runner = make_runner;
    o.drop_runner = drop_runner;
    return o;
}

/* A request with this text, of whose first n tokens it is the continuation. */
static creq *ask(const toy_text *t, int32_t n, int32_t end)
{
    creq *r = cluster_request(&c, t->ids, n, end - n);
    r->sampling.ignore_eos = true;
    return r;
}

static creq *ask_new(int32_t n, int32_t end, uint64_t seed)
{
    toy_text *t = &texts[c.n_req];
    toy_make_text(t, n, end, seed);
    return ask(t, n, end);
}

static void all_equal(void)
{
    cluster_until(&c, cluster_idle, 60, "requests end");
    for (int i = 0; i < c.n_req; i++) {
        const creq *r = &c.req[i];
        toy_text t = {0};
        ck_assert_msg(r->state == REQ_DONE, "request %d: state %d, %s", i, r->state, r->reason);
        memcpy(t.ids, r->tokens, r->n_prompt * sizeof *t.ids);
        toy_restate(t.ids, (int32_t)r->n_prompt, (int32_t)r->n_tokens, t.next);
        for (size_t k = r->n_prompt; k < r->n_tokens; k++)
            if (r->tokens[k] != t.ids[k])
                ck_abort_msg("request %d: token %zu of a prompt of %zu is %d, not %d", i, k, r->n_prompt,
                             r->tokens[k], t.ids[k]);
    }
}

/* The tokens of a prompt that are cached when one like it was served before. */
static uint32_t kept(int32_t n)
{
    return (uint32_t)((n - 1) / PAGE * PAGE);
}

static const sl_shipping *const ways[] = {&sl_shipping_staging, &sl_shipping_direct, &sl_shipping_gpu};

START_TEST(moves)
{
    static const int32_t lengths[] = {1, 63, 64, 65, 128, 129, 200, 257, 300};
    enum { N = sizeof lengths / sizeof *lengths };
    cluster_opts o = options();
    o.n_prefill = o.n_decode = 2;
    o.prefill_layout = (sl_layout)(_i % 3);
    o.decode_layout = (sl_layout)(_i / 3);
    o.shipping = ways[_i % 3];
    o.prefill_pages = o.decode_pages = 160;
    cluster_start(&c, &o);
    creq *r[N];
    for (int i = 0; i < N; i++) {
        r[i] = ask_new(lengths[i], lengths[i] + 12, (uint64_t)(i + 10 * _i));
        r[i]->prefill = r[i]->decode = 0;
    }
    all_equal();
    for (int i = 0; i < N; i++)
        ck_assert_uint_eq(r[i]->cached_tokens, 0);
    /* On the same workers; on a prefill worker that pulls all; on a decode worker to which all is shipped from the cache. */
    for (int k = 0; k < 3; k++) {
        const int first = c.n_req;
        for (int i = 0; i < N; i++) {
            creq *again = ask(&texts[i], lengths[i], lengths[i] + 12);
            again->prefill = k == 1;
            again->decode = k == 2;
        }
        all_equal();
        for (int i = 0; i < N; i++) {
            const creq *again = &c.req[first + i];
            ck_assert_msg(again->cached_tokens == kept(lengths[i]), "turn %d: %u of %d tokens cached", k,
                          again->cached_tokens, lengths[i]);
            ck_assert_uint_eq(again->matched_pages, k == 2 ? 0 : kept(lengths[i]) / PAGE);
        }
    }
    cluster_stop(&c);
    ck_assert_uint_gt(c.tokens_pulled, 0);
}
END_TEST

/* A prefix that others share is cached up to its last snapshot, also where more rows are. */
START_TEST(prefixes)
{
    cluster_opts o = options();
    cluster_start(&c, &o);
    ask_new(200, 230, 3);
    all_equal();
    toy_text *like = &texts[10];
    toy_make_like(like, &texts[0], 150, 180, 200, 4); /* two pages in common; the snapshot is after three */
    const creq *r = ask(like, 180, 200);
    all_equal();
    ck_assert_uint_eq(r->cached_tokens, 0);
    /* The next turn of the conversation. */
    toy_make_like(like, &texts[0], 230, 260, 280, 5);
    r = ask(like, 260, 280);
    all_equal();
    ck_assert_uint_eq(r->cached_tokens, 192);
    ck_assert_uint_eq(r->matched_pages, 3);
    cluster_stop(&c);
}
END_TEST

START_TEST(pressure)
{
    cluster_opts o = options();
    o.n_prefill = 2;
    o.prefill_layout = SL_LAYOUT_LAYER_FIRST;
    o.decode_layout = SL_LAYOUT_PAGE_HEAD;
    o.prefill_pages = 20;
    o.decode_pages = 14;
    cluster_start(&c, &o);
    for (int i = 0; i < 8; i++) /* of which four would need 20 pages */
        ask_new(50 + i, 310, 100 + (uint64_t)i);
    all_equal();
    for (int i = 0; i < 8; i++)
        ask(&texts[i], 140 + 10 * i, 280);
    all_equal();
    int retracted = 0;
    for (int i = 0; i < c.n_req; i++)
        retracted += c.req[i].retractions;
    cluster_stop(&c);
    ck_assert_int_gt(retracted, 0);
}
END_TEST

/* Three row pages: the page that begins with row 192 spills whoever is resident; its states stay. */
START_TEST(spilled)
{
    cluster_opts o = options();
    o.row_pages = 3;
    cluster_start(&c, &o);
    for (int i = 0; i < 3; i++)
        ask_new(110 + 5 * i, 300, 60 + (uint64_t)i);
    all_equal();
    cluster_stop(&c);
    ck_assert_uint_gt(c.spilled, 0);
}
END_TEST

/*
 * States, hot rows and pages of one pool: requests that do not fit wait or are spilled, none fails, and its tokens are those of the
 * restatement. Many short ones, few long ones, and both; resident while there is memory (adaptive), or hierarchical at once.
 */
START_TEST(one_pool)
{
    cluster_opts o = options();
    o.row_pages = _i % 2 ? 40 : 0;
    pool_bytes = (uint64_t)(_i / 2 ? 13 : 40) * (16u << 10);
    cluster_start(&c, &o);
    for (int i = 0; i < 4; i++)
        ask_new(40 + 3 * i, 70, 80 + (uint64_t)i);
    all_equal();
    for (int i = 0; i < 3; i++)
        ask_new(200 + 20 * i, 330, 90 + (uint64_t)i);
    all_equal();
    for (int i = 0; i < 6; i++)
        ask_new(i % 2 ? 50 : 210 + 20 * i, i % 2 ? 90 : 350, 100 + (uint64_t)i);
    all_equal();
    cluster_stop(&c);
    ck_assert_msg(moved > 0 || _i < 3, "the pool had room for everything at any time");
}
END_TEST

START_TEST(death)
{
    cluster_opts o = options();
    o.n_decode = 2;
    cluster_start(&c, &o);
    creq *r = ask_new(130, 310, 7);
    r->decode = 0;
    while (r->n_tokens < 150 && r->state != REQ_DONE)
        cluster_poll(&c, 1);
    cworker_kill(cluster_worker(&c, SL_ROLE_DECODE, 0));
    r->decode = -1;
    all_equal();
    cworker_join(cluster_worker(&c, SL_ROLE_DECODE, 0));
    cluster_stop(&c);
}
END_TEST

/* ---- answers ---- */

/* The tokens after which the worker that has generated this text has its last snapshot: where a further step began. A step that goes
 * beyond the page with drafts may be the last one. */
static uint32_t answered(int32_t end, int32_t drafts)
{
    return (uint32_t)((end - 2 - drafts) / PAGE * PAGE);
}

/* The next turn: the text up to `same` tokens, and new ones; the first `end` tokens. */
static creq *next_turn(const toy_text *of, int32_t same, int32_t n, int32_t end, uint64_t number)
{
    toy_text *t = &texts[c.n_req];
    toy_make_like(t, of, same, n, end, number);
    return ask(t, n, end);
}

/* Conversations of three turns, one after the other: lengths around ends of pages. */
START_TEST(answers_are_reused)
{
    /* the first prompt, and the ends of the turns */
    static const int32_t text[][4] = {{1, 100, 150, 240},   {30, 66, 130, 194},  {64, 128, 192, 260},
                                      {65, 129, 194, 300},  {65, 130, 195, 290}, {100, 193, 197, 220},
                                      {127, 191, 255, 319}, {10, 250, 258, 280}};
    cluster_opts o = options();
    o.prefill_layout = (sl_layout)(_i % 3);
    o.decode_layout = (sl_layout)((_i + 1) % 3);
    o.shipping = ways[_i % 3];
    o.draft_tokens = _i % 2 ? DRAFTS : 0;
    o.prefill_pages = o.decode_pages = 160;
    cluster_start(&c, &o);
    for (size_t i = 0; i < sizeof text / sizeof *text; i++) {
        const int32_t *end = text[i];
        const toy_text *t = &texts[c.n_req];
        int32_t n = end[0];
        const creq *r = ask_new(n, end[1], 1000 * (uint64_t)_i + i);
        all_equal();
        ck_assert_uint_eq(r->cached_tokens, 0);
        for (int k = 1; k < 3; k++) {
            const uint32_t answer = answered(end[k], o.draft_tokens), before = kept(n);
            const uint32_t want = answer > before ? answer : before;
            const toy_text *next = &texts[c.n_req];
            n = end[k] + 2 + k;
            r = next_turn(t, end[k], n, end[k + 1], 70 * i + (uint64_t)k);
            all_equal();
            ck_assert_msg(r->cached_tokens == want ||
                              (r->cached_tokens > want && r->cached_tokens <= answered(end[k], 0)),
                          "turn %d of text %zu: %u cached, not %u", k, i, r->cached_tokens, want);
            t = next;
        }
    }
    cluster_stop(&c);
}
END_TEST

/* Several at a time, which make their snapshots in turn; then their next turns, on the other decode worker too. */
START_TEST(answers_of_many)
{
    cluster_opts o = options();
    o.n_prefill = o.n_decode = 2;
    o.prefill_pages = o.decode_pages = 200;
    o.pull = true;
    o.draft_tokens = _i ? DRAFTS : 0;
    cluster_start(&c, &o);
    enum { N = 8 };
    for (int i = 0; i < N; i++)
        ask_new(20 + 9 * i, 200 + 10 * i, 300 + (uint64_t)i)->decode = 0;
    all_equal();
    uint32_t reused = 0;
    for (int i = 0; i < N; i++) {
        creq *r = next_turn(&texts[i], 200 + 10 * i, 204 + 10 * i, 230 + 10 * i, 400 + (uint64_t)i);
        r->decode = i % 2;
        r->source = i % 2 ? 0 : -1;
        r->source_pages = (200 + 10 * i) / PAGE;
    }
    all_equal();
    for (int i = 0; i < N; i++)
        reused += c.req[N + i].cached_tokens > kept(20 + 9 * i);
    cluster_stop(&c);
    ck_assert_uint_ge(reused, N / 2);
}
END_TEST

/* A store with room for the pages of the request alone: it gets them, and the place of its snapshot is given back. */
START_TEST(places_are_given_back)
{
    cluster_opts o = options();
    o.decode_pages = 6;
    cluster_start(&c, &o);
    const creq *r = ask_new(50, 310, 21);
    all_equal();
    ck_assert_int_eq(r->retractions, 0);
    cluster_stop(&c);
}
END_TEST

/* A request whose attempt ends in the middle, because the router's connections break, begins again after what it has generated. */
START_TEST(answers_of_attempts_that_end)
{
    cluster_opts o = options();
    o.verify = SL_CFG_VERIFY_OFF; /* else it depends on when the patrol has made its rounds */
    o.draft_tokens = _i ? DRAFTS : 0;
    cluster_start(&c, &o);
    hold_at = 230;
    const creq *r = ask_new(30, 310, 500 + (uint64_t)_i);
    while (r->n_tokens < 220)
        cluster_poll(&c, 1);
    const uint32_t least = answered((int32_t)r->n_tokens, DRAFTS);
    c.auto_place = false; /* the next attempt begins when the first one has given its pages back */
    cluster_cut_all(&c);
    hold_at = 0;
    cluster_wait_pages(&c, 0);
    c.auto_place = true;
    all_equal();
    ck_assert_uint_gt(r->attempt, 1);
    ck_assert_msg(r->cached_tokens >= least, "%u of %u tokens are not computed again", r->cached_tokens,
                  least);
    cluster_stop(&c);
}
END_TEST

/* Snapshots begin with their magic number: changes one byte of the states of each. Returns their number. */
static int damage(const cworker *w)
{
    const sl_geometry *g = sl_arena_geometry(w->arena);
    int n = 0;
    for (int32_t i = 0; i < sl_arena_pages(w->arena); i++) {
        uint8_t *page = sl_arena_base(w->arena) + i * g->page_bytes;
        if (memcmp(page, "lStSnap", 7) != 0 && memcmp(page + 1, "lStSnap", 7) != 0)
            continue;
        page[SL_SNAPSHOT_HEADER + 9] ^= 1;
        n++;
    }
    return n;
}

START_TEST(damaged)
{
    cluster_opts o = options();
    o.n_prefill = 2;
    o.verify = _i ? SL_CFG_VERIFY_ALWAYS : SL_CFG_VERIFY_OFF;
    cluster_start(&c, &o);
    creq *r = ask_new(200, 220, 9);
    r->prefill = 0;
    all_equal();
    cluster_wait_pages(&c, 0);
    ck_assert_int_gt(damage(cluster_worker(&c, SL_ROLE_DECODE, 0)), 0);
    creq *pulls = ask(&texts[0], 200, 220); /* from the decode worker: computed again */
    pulls->prefill = 1;
    all_equal();
    if (!_i) /* else it is begun again, after a snapshot that its first attempt has made */
        ck_assert_uint_eq(pulls->cached_tokens, 0);
    damage(cluster_worker(&c, SL_ROLE_PREFILL, 0));
    damage(cluster_worker(&c, SL_ROLE_PREFILL, 1));
    damage(cluster_worker(&c, SL_ROLE_DECODE, 0));
    for (int p = 0; p < 2; p++)
        ask(&texts[0], 200, 220)->prefill = p;
    all_equal();
    cluster_stop(&c);
}
END_TEST

/* Among generated tokens: the next turn finds rows whose snapshot is wrong, computes them, and nothing is wrong. */
START_TEST(damaged_answers)
{
    cluster_opts o = options();
    o.verify = _i ? SL_CFG_VERIFY_ALWAYS : SL_CFG_VERIFY_OFF;
    cluster_start(&c, &o);
    ask_new(100, 270, 41);
    all_equal();
    cluster_wait_pages(&c, 0);
    ck_assert_int_gt(damage(cluster_worker(&c, SL_ROLE_DECODE, 0)), 0);
    const creq *r = next_turn(&texts[0], 270, 275, 300, 42);
    all_equal();
    if (!_i) /* else it is begun again, after a snapshot that its first attempt has made */
        ck_assert_uint_lt(r->cached_tokens, answered(270, 0));
    r = next_turn(&texts[0], 270, 276, 300, 43); /* it was made again, after this prompt's last full page */
    all_equal();
    ck_assert_uint_eq(r->cached_tokens, 256);
    cluster_stop(&c);
}
END_TEST

int main(void)
{
    sl_log_init(getenv("SL_TEST_LOG") ? SL_LOG_DEBUG : SL_LOG_ERROR, false, "test");
    Suite *s = suite_create("states");
    TCase *t = tcase_create("states");
    tcase_add_unchecked_fixture(t, toy_setup, toy_teardown);
    tcase_set_timeout(t, 280);
    tcase_add_loop_test(t, moves, 0, 9);
    tcase_add_test(t, prefixes);
    tcase_add_test(t, pressure);
    tcase_add_test(t, spilled);
    tcase_add_loop_test(t, one_pool, 0, 4);
    tcase_add_test(t, death);
    tcase_add_loop_test(t, damaged, 0, 2);
    tcase_add_loop_test(t, answers_are_reused, 0, 4);
    tcase_add_loop_test(t, answers_of_many, 0, 2);
    tcase_add_test(t, places_are_given_back);
    tcase_add_loop_test(t, answers_of_attempts_that_end, 0, 2);
    tcase_add_loop_test(t, damaged_answers, 0, 2);
    suite_add_tcase(s, t);
    return run_suite(s);
}
