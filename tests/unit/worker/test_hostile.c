/*
 * Forbidden writes into the stores of workers: into pages of the prefix tree of both roles, and by a writer whose puts
 * also land in pages outside its ticket, which no transport refuses (docs/protocol.md, "Least rights"). The streams
 * that follow equal those of one process, and the damage is counted.
 */
#include "tests/unit/run_suite.h"
#include "tests/unit/worker/cluster.h"

static cluster c;
static int32_t prompt[4096];

static creq *run(int n, int max, uint64_t seed)
{
    cluster_make_prompt(prompt, n, c.o.vocab, seed);
    creq *r = cluster_request(&c, prompt, n, max);
    cluster_until(&c, cluster_idle, 20, "the request ends");
    ck_assert_msg(r->state == REQ_DONE, "state %d, %s", r->state, r->reason);
    cluster_check_stream(&c, r);
    return r;
}

/* Flips one bit in each page, in a row from `first` on and a layer that differ from page to page, or in every layer of the page. */
static void flip_rows_from(const cworker *w, int32_t first, bool every_layer)
{
    const sl_geometry *g = sl_arena_geometry(w->arena);
    int32_t pages = sl_arena_pages(w->arena);
    for (int32_t i = 0; i < pages * g->n_layers; i++) {
        int32_t p = i / g->n_layers, layer = i % g->n_layers;
        if (!every_layer && layer != p % g->n_layers)
            continue;
        sl_host_plane r = sl_geometry_plane(g, sl_arena_base(w->arena), pages, layer, SL_CACHE_ROWS);
        int32_t row = first + p * 7 % (SL_PAGE_TOKENS - first);
        r.base[p * r.page_stride + row * r.row_stride + p % 32] ^= 0x20;
    }
}

static void flip_every_page(const cworker *w, bool every_layer)
{
    flip_rows_from(w, 0, every_layer);
}

static void run_next(const creq *r, uint64_t seed)
{
    int32_t next[1024];
    memcpy(next, r->tokens, r->n_tokens * sizeof *next);
    cluster_make_prompt(next + r->n_tokens, 40, c.o.vocab, seed);
    const creq *turn = cluster_request(&c, next, (int)r->n_tokens + 40, 5);
    cluster_until(&c, cluster_idle, 20, "the next turn ends");
    ck_assert_msg(turn->state == REQ_DONE, "state %d, %s", turn->state, turn->reason);
    cluster_check_stream(&c, turn);
}

static void flush(sl_role role)
{
    sl_msg m = {.type = SL_MSG_FLUSH_CACHE};
    cluster_send(cluster_worker(&c, role, 0), &m);
}

/* The decode worker's published pages, prompt and answer; the prefill worker's are right. */
START_TEST(decode_store)
{
    cluster_opts o = cluster_defaults();
    /* sampled: finds pages that were overwritten */
    o.verify = _i ? SL_CFG_VERIFY_SAMPLED : SL_CFG_VERIFY_ALWAYS;
    cluster_start(&c, &o);
    creq *first = run(500, 100, 1);
    ck_assert_int_eq(first->attempts, 0);
    flip_every_page(cluster_worker(&c, SL_ROLE_DECODE, 0), _i);
    creq *again = run(500, 100, 1);
    ck_assert_int_eq(again->attempts, 1);
    int32_t next[640];
    memcpy(next, again->tokens, 600 * sizeof *next);
    cluster_make_prompt(next + 600, 40, o.vocab, 2);
    flip_every_page(cluster_worker(&c, SL_ROLE_DECODE, 0), _i);
    creq *turn = cluster_request(&c, next, 640, 20);
    cluster_until(&c, cluster_idle, 20, "the next turn ends");
    cluster_check_stream(&c, turn);
    ck_assert_int_eq(turn->attempts, 1);
    cluster_stop(&c);
    ck_assert_uint_ge(c.damaged_decode, 2);
    ck_assert_uint_eq(c.damaged_prefill, 0);
}
END_TEST

/* The prefill worker's own cache is damaged. Its pages are shipped if the decode worker has none; else only read. */
START_TEST(prefill_store)
{
    cluster_opts o = cluster_defaults();
    cluster_start(&c, &o);
    run(500, 20, 1);
    for (int i = 0; i < 6; i++) {
        if (i % 2)
            flush(SL_ROLE_DECODE);
        flip_every_page(cluster_worker(&c, SL_ROLE_PREFILL, 0), false);
        creq *r = run(500 + 64 * (i / 2), 20, 1);
        ck_assert_int_eq(r->attempts, 1);
    }
    cluster_stop(&c);
    ck_assert_uint_ge(c.damaged_prefill, 6 * 7);
    ck_assert_uint_eq(c.damaged_decode, 0);
}
END_TEST

/* Pages that were pulled from a decode worker whose store was damaged in between. */
START_TEST(pulled_pages)
{
    cluster_opts o = cluster_defaults();
    cluster_start(&c, &o);
    run(500, 20, 1);
    flush(SL_ROLE_PREFILL);
    flip_every_page(cluster_worker(&c, SL_ROLE_DECODE, 0), _i);
    creq *r = run(700, 20, 1);
    ck_assert_int_eq(r->attempts, 1);
    cluster_stop(&c);
    ck_assert_uint_ge(c.damaged_decode, 1);
}
END_TEST

/* Pages that are right in both stores and were damaged between them: they are not used, and no attempt fails. */
START_TEST(pulled_pages_damaged_in_transit)
{
    cluster_opts o = cluster_defaults();
    o.shipping = &sl_shipping_staging; /* gets */
    o.prefill_faults.damage_get = 5;
    cluster_start(&c, &o);
    run(500, 20, 1);
    flush(SL_ROLE_PREFILL);
    creq *r = run(700, 20, 1);
    ck_assert_int_eq(r->attempts, 0);
    cworker_faults(cluster_worker(&c, SL_ROLE_PREFILL, 0), (sl_loopback_faults){0});
    cluster_cut_all(&c); /* endpoints with faults are closed; new ones have none */
    run(300, 20, 2);     /* they are connected again */
    flush(SL_ROLE_PREFILL);
    run(900, 20, 1);
    cluster_stop(&c);
    ck_assert_uint_eq(c.tokens_pulled, 700 / 64 * 64);
    ck_assert_uint_eq(c.damaged_decode, 0);
}
END_TEST

/* A hostile writer: each of its puts also lands `stray` pages away, in published pages and in landing ones. */
START_TEST(writer_writes_elsewhere)
{
    cluster_opts o = cluster_defaults();
    o.shipping = &sl_shipping_staging; /* puts */
    o.n_prefill = 2;
    cluster_start(&c, &o);
    creq *a = run(500, 20, 1);
    a->prefill = 1;
    int64_t page = sl_arena_geometry(cluster_worker(&c, SL_ROLE_DECODE, 0)->arena)->page_bytes;
    sl_loopback_faults f = {
        .stray_put = (uint64_t)((o.decode_pages - 2 - 3 * _i) * page)}; /* 2, 5, 8, 11 pages before */
    cworker_faults(cluster_worker(&c, SL_ROLE_PREFILL, 0), f);
    cluster_cut_all(&c); /* endpoints without faults are closed */
    for (int i = 0; i < 100; i++)
        cluster_poll(&c, 2);
    for (uint64_t seed = 2; seed < 5; seed++) {
        cluster_make_prompt(prompt, 500, o.vocab, seed);
        creq *hostile = cluster_request(&c, prompt, 500, 1); /* its own pages are right or it fails */
        hostile->prefill = 0;
        hostile->max_attempts = 2;
        cluster_until(&c, cluster_idle, 20, "the hostile writer's request ends");
        cluster_check_stream(&c, hostile);
        for (uint64_t old = 1; old < seed; old++) {
            cluster_make_prompt(prompt, 500, o.vocab, old);
            creq *r = cluster_request(&c, prompt, 500, 20);
            r->prefill = 1;
            r->max_attempts = 20;
            cluster_until(&c, cluster_idle, 20, "the request ends");
            ck_assert_msg(r->state == REQ_DONE, "state %d, %s", r->state, r->reason);
            cluster_check_stream(&c, r);
        }
    }
    cluster_stop(&c);
    ck_assert_uint_ge(c.damaged_decode, 1);
}
END_TEST

static bool prompt_is_held(cluster *k)
{
    return fake_hangs(cluster_worker(k, SL_ROLE_PREFILL, 0)->fake);
}

/* The prefill worker's store is damaged while it computes a prompt: what follows from the damaged rows is neither shipped nor
 * kept, and the stream is right. Pages that are full are damaged once their checksums are there: between two steps, each of
 * which computes a page, and after time for the checker. Rows that change before that are not found (docs/protocol.md). */
START_TEST(prompts_being_computed)
{
    cluster_opts o = cluster_defaults();
    o.times.prefill_layer_us = 2000;
    o.chunk_tokens = 64;
    cluster_start(&c, &o);
    int attempts = 0;
    for (uint64_t seed = 1; seed <= 4; seed++) {
        cluster_make_prompt(prompt, 700, c.o.vocab, seed);
        const cworker *w = cluster_worker(&c, SL_ROLE_PREFILL, 0);
        fake_hang_at(w->fake, 2 + (int)seed);
        creq *r = cluster_request(&c, prompt, 700, 10);
        cluster_until(&c, prompt_is_held, 20, "the prompt is being computed");
        cluster_run_ms(&c, 300);
        flip_every_page(w, true);
        fake_hang(w->fake, false);
        cluster_until(&c, cluster_idle, 20, "the request ends");
        ck_assert_msg(r->state == REQ_DONE, "state %d, %s", r->state, r->reason);
        cluster_check_stream(&c, r);
        attempts += r->attempts;
        flush(SL_ROLE_DECODE);
        run(700, 10, seed); /* what the prefill worker has kept is right */
    }
    cluster_stop(&c);
    ck_assert_int_gt(attempts, 0);
    ck_assert_uint_ge(c.damaged_prefill, 1);
    ck_assert_uint_eq(c.damaged_decode, 0);
}
END_TEST

static bool decode_is_held(cluster *k)
{
    return fake_hangs(cluster_worker(k, SL_ROLE_DECODE, 0)->fake);
}

/* Rows of a running request are damaged after some tokens. It ends with the tokens of one process, or with DATA_LOSS; tokens
 * that are wrong are never passed for right. The request is held between two steps meanwhile, a few tokens after it has filled a
 * page, which the checker has time to seal. Rows are damaged that the page which it is filling does not have yet: no checksum
 * covers those that it has (docs/protocol.md). _i: the layer, and how fast the request is. */
START_TEST(rows_of_running_requests)
{
    enum { N = 10 * SL_PAGE_TOKENS - 40, STEPS = 45, FROM = 32 }; /* the page has 4 to 10 rows */
    cluster_opts o = cluster_defaults();
    int lost = 0, repeated = 0;
    o.times.decode_layer_us = _i % 2 ? 100 : 1000;
    o.prefill_pages = o.decode_pages = 128;
    cluster_start(&c, &o);
    for (uint64_t seed = 1; seed <= 6; seed++) {
        const cworker *w = cluster_worker(&c, SL_ROLE_DECODE, 0);
        cluster_make_prompt(prompt, N, c.o.vocab, seed);
        fake_hang_at(w->fake, STEPS + (int)seed);
        creq *r = cluster_request(&c, prompt, N, 90);
        cluster_until(&c, decode_is_held, 20, "the request decodes");
        cluster_run_ms(&c, 300);
        flip_rows_from(w, FROM, _i < 2);
        fake_hang(w->fake, false);
        cluster_until(&c, cluster_idle, 20, "the request ends");
        bool right = r->state == REQ_DONE;
        ck_assert_msg(right || r->status == SL_ERR_DATA_LOSS, "state %d, %s", r->state, r->reason);
        ck_assert_int_ge(r->retractions, 1);
        lost += !right;
        repeated += r->repeated;
        if (right)
            cluster_check_stream(&c, r);
        /* The next turn finds no page that was computed from damaged rows. */
        if (right)
            run_next(r, seed);
    }
    cluster_stop(&c);
    ck_assert_uint_ge(c.damaged_decode, 6);
    ck_assert_int_gt(lost + repeated, 0);
}
END_TEST

int main(void)
{
    sl_log_init(getenv("SL_TEST_LOG") ? SL_LOG_DEBUG : SL_LOG_ERROR, false, "test");
    Suite *s = suite_create("hostile");
    TCase *t = tcase_create("hostile");
    tcase_set_timeout(t, 120);
    tcase_add_loop_test(t, decode_store, 0, 2);
    tcase_add_test(t, prefill_store);
    tcase_add_test(t, pulled_pages);
    tcase_add_test(t, pulled_pages_damaged_in_transit);
    tcase_add_loop_test(t, writer_writes_elsewhere, 0, 4);
    tcase_add_test(t, prompts_being_computed);
    tcase_add_loop_test(t, rows_of_running_requests, 0, 4);
    suite_add_tcase(s, t);
    return run_suite(s);
}
