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
 */
#include <stdio.h>

#include "kvstore/snapshot.h"
#include "tests/unit/engine/toy_layers.h"
#include "tests/unit/run_suite.h"
#include "tests/unit/worker/cluster.h"

enum { PAGE = SL_PAGE_TOKENS, SNAPSHOT = 2, TEXTS = 64 };

static cluster c;
static fix rigs[MAX_WORKERS];
static toy_text texts[TEXTS];

static bool make_runner(cworker *w)
{
    fix *f = &rigs[w - w->c->w];
    const bool prefill = w->role == SL_ROLE_PREFILL;
    fix_opts o = toy_opts();
    o.max_seqs = 6;
    o.max_hot = prefill ? 0 : 6;
    o.arena = w->arena;
    o.layout = sl_arena_geometry(w->arena)->layout;
    o.row_pages = prefill ? 0 : c.o.row_pages;
    fix_open(f, &o);
    w->runner = sl_runner_for_engine(f->engine, f->cfg, &f->eo);
    w->runner.overlaps = true;
    return true;
}

static void drop_runner(cworker *w)
{
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
    tcase_add_test(t, death);
    tcase_add_loop_test(t, damaged, 0, 2);
    suite_add_tcase(s, t);
    return run_suite(s);
}
