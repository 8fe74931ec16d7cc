/*
 * Prefill and decode workers together over loopback with fake runners: streams equal the single process
 * reference, whatever the sizes, layouts and batch; prefixes are reused on the same and on another prefill
 * worker; growth and retraction.
 */
#include "tests/unit/run_suite.h"
#include "tests/unit/worker/cluster.h"

static cluster c;
static int32_t prompt[4096];

START_TEST(one_request)
{
    static const int lens[] = {1, 2, 63, 64, 65, 127, 128, 129, 300, 1000};
    cluster_opts o = cluster_defaults();
    cluster_start(&c, &o);
    for (size_t i = 0; i < SL_COUNT(lens); i++) {
        cluster_make_prompt(prompt, lens[i], o.vocab, 5 + i);
        creq *r = cluster_request(&c, prompt, lens[i], 20);
        cluster_finish(&c, 10);
        ck_assert_uint_eq(r->n_tokens, (size_t)lens[i] + 20);
        ck_assert_int_eq(r->finish, SL_FINISH_LENGTH);
        ck_assert_int_eq(r->attempts, 0);
    }
    ck_assert_uint_gt(cluster_worker(&c, SL_ROLE_DECODE, 0)->kv_stored, 10);
    cluster_stop(&c);
}
END_TEST

START_TEST(layouts_and_formats)
{
    cluster_opts o = cluster_defaults();
    o.prefill_layout = (sl_layout)(_i % 3);
    o.decode_layout = (sl_layout)(_i / 3 % 3);
    o.rows = _i % 2 ? SL_ROW_MLA_BF16 : SL_ROW_MLA_FP8;
    o.index = _i % 2 ? SL_INDEX_PLAIN : SL_INDEX_OFFICIAL;
    o.chunk_tokens = 96; /* chunks end in the middle of pages */
    o.indexers = _i / 3;
    cluster_start(&c, &o);
    cluster_make_prompt(prompt, 700, o.vocab, 77);
    cluster_request(&c, prompt, 700, 70);
    cluster_make_prompt(prompt, 130, o.vocab, 78);
    cluster_request(&c, prompt, 130, 70);
    cluster_finish(&c, 20);
    cluster_stop(&c);
}
END_TEST

START_TEST(many_at_once)
{
    cluster_opts o = cluster_defaults();
    o.n_prefill = 2;
    o.n_decode = 2;
    o.times.prefill_layer_us = 200;
    o.times.decode_layer_us = 100;
    o.decode_pages = 200;
    cluster_start(&c, &o);
    for (int i = 0; i < 24; i++) {
        int n = 1 + (i * 97) % 500;
        cluster_make_prompt(prompt, n, o.vocab, 100 + (uint64_t)i);
        cluster_request(&c, prompt, n, 10 + i * 5);
    }
    cluster_finish(&c, 60);
    cluster_stop(&c);
}
END_TEST

START_TEST(thousand_tokens)
{
    cluster_opts o = cluster_defaults();
    o.layers = 2;
    o.max_context = 4096;
    cluster_start(&c, &o);
    cluster_make_prompt(prompt, 200, o.vocab, 3);
    creq *r = cluster_request(&c, prompt, 200, 1100);
    cluster_finish(&c, 60);
    ck_assert_uint_eq(r->n_tokens, 1300);
    /* the next request of the conversation finds prompt and answer in the cache */
    int32_t next[1400];
    memcpy(next, r->tokens, 1300 * sizeof *next);
    cluster_make_prompt(next + 1300, 50, o.vocab, 4);
    creq *s = cluster_request(&c, next, 1350, 10);
    cluster_finish(&c, 20);
    ck_assert_uint_ge(s->matched_pages, 1299 / 64);
    cluster_stop(&c);
}
END_TEST

/* Prefix on the decode worker and on this or another prefill worker: nothing, shipped from cache, or pulled.
 */
START_TEST(prefix_reuse)
{
    cluster_opts o = cluster_defaults();
    o.n_prefill = 2;
    o.n_decode = 2;
    cluster_start(&c, &o);
    cluster_make_prompt(prompt, 1000, o.vocab, 9);
    creq *a = cluster_request(&c, prompt, 600, 10);
    a->prefill = 0, a->decode = 0;
    cluster_finish(&c, 10);
    ck_assert_uint_eq(a->cached_tokens, 0);
    creq *b = cluster_request(&c, prompt, 700, 10); /* both have 9 pages */
    b->prefill = 0, b->decode = 0;
    cluster_finish(&c, 10);
    ck_assert_uint_eq(b->matched_pages, 9);
    ck_assert_uint_eq(b->cached_tokens, 9 * 64);
    creq *d = cluster_request(&c, prompt, 800, 10); /* the other prefill worker has nothing: pulls 10 pages */
    d->prefill = 1, d->decode = 0;
    cluster_finish(&c, 10);
    ck_assert_uint_eq(d->matched_pages, 10);
    ck_assert_uint_eq(d->cached_tokens, 10 * 64);
    /* the other decode worker has nothing: shipped from cache */
    creq *e = cluster_request(&c, prompt, 900, 10);
    e->prefill = 1, e->decode = 1;
    cluster_finish(&c, 10);
    ck_assert_uint_eq(e->matched_pages, 0);
    ck_assert_uint_eq(e->cached_tokens, 12 * 64);
    cluster_stop(&c);
}
END_TEST

/* The same tokens with another seed: nothing is reused, neither of the prefill worker's pages nor of the decode
 * worker's, and the stream is the same. With the first seed again, both are. */
START_TEST(seeds_share_nothing)
{
    cluster_opts o = cluster_defaults();
    cluster_start(&c, &o);
    cluster_make_prompt(prompt, 640, o.vocab, 9);
    creq *a = cluster_request(&c, prompt, 640, 30);
    cluster_finish(&c, 20);
    creq *b = cluster_request(&c, prompt, 640, 30);
    b->seed = (sl_key){1, 2};
    cluster_finish(&c, 20);
    ck_assert_uint_eq(b->cached_tokens, 0);
    ck_assert_uint_eq(b->matched_pages, 0);
    ck_assert_mem_eq(a->tokens, b->tokens, 670 * sizeof *a->tokens);
    creq *d = cluster_request(&c, prompt, 640, 30);
    cluster_finish(&c, 20);
    ck_assert_uint_eq(d->cached_tokens, 9 * 64);
    ck_assert_uint_eq(d->matched_pages, 9);
    cluster_stop(&c);
}
END_TEST

START_TEST(retraction)
{
    cluster_opts o = cluster_defaults();
    o.decode_pages = 12;
    cluster_start(&c, &o);
    for (int i = 0; i < 4; i++) { /* each grows to 5 pages; 12 hold two */
        cluster_make_prompt(prompt, 100, o.vocab, 40 + (uint64_t)i);
        cluster_request(&c, prompt, 100, 200);
    }
    cluster_finish(&c, 60);
    int retractions = 0;
    for (int i = 0; i < c.n_req; i++)
        retractions += c.req[i].retractions;
    ck_assert_int_gt(retractions, 0);
    cluster_stop(&c);
}
END_TEST

START_TEST(does_not_fit)
{
    cluster_opts o = cluster_defaults();
    o.decode_pages = 4;
    cluster_start(&c, &o);
    cluster_make_prompt(prompt, 300, o.vocab, 1);
    creq *r = cluster_request(&c, prompt, 300, 10);  /* needs 5 pages from the beginning */
    creq *s = cluster_request(&c, prompt, 200, 100); /* grows beyond 4 */
    cluster_until(&c, cluster_idle, 20, "requests end");
    ck_assert_int_eq(r->state, REQ_FAILED);
    ck_assert_int_eq(r->status, SL_ERR_TOO_LARGE);
    ck_assert_msg(strstr(r->reason, "kvstore.bytes") != NULL, "%s", r->reason);
    ck_assert_int_eq(s->state, REQ_FAILED);
    ck_assert_int_eq(s->status, SL_ERR_EXHAUSTED);
    cluster_check_stream(&c, s); /* the tokens that were produced are right */
    cluster_stop(&c);
}
END_TEST

START_TEST(bad_requests)
{
    cluster_opts o = cluster_defaults();
    o.max_context = 256;
    cluster_start(&c, &o);
    cluster_make_prompt(prompt, 400, o.vocab, 1);
    creq *r = cluster_request(&c, prompt, 300, 10);
    int32_t odd[3] = {1, 97, 2};
    creq *s = cluster_request(&c, odd, 3, 10);
    creq *t = cluster_request(&c, prompt, 250, 100); /* ends at the context */
    cluster_until(&c, cluster_idle, 20, "requests end");
    ck_assert_int_eq(r->status, SL_ERR_TOO_LARGE);
    ck_assert_int_eq(s->status, SL_ERR_INVALID);
    ck_assert_int_eq(t->state, REQ_DONE);
    ck_assert_int_eq(t->finish, SL_FINISH_LENGTH);
    ck_assert_uint_eq(t->n_tokens, 256);
    cluster_stop(&c);
}
END_TEST

START_TEST(stops)
{
    cluster_opts o = cluster_defaults();
    cluster_start(&c, &o);
    cluster_make_prompt(prompt, 100, o.vocab, 21);
    creq *r = cluster_request(&c, prompt, 100, 40);
    cluster_finish(&c, 10);
    int32_t stop = r->tokens[100 + 7];
    int first = 0;
    while (r->tokens[100 + first] != stop)
        first++;
    creq *s = cluster_request(&c, prompt, 100, 40);
    ck_assert_int_eq(sl_sampling_set_stop_ids(&s->sampling, &stop, 1), SL_OK);
    s->sampling.n_logprobs = 3;
    cluster_finish(&c, 10);
    ck_assert_int_eq(s->finish, SL_FINISH_STOP);
    ck_assert_int_eq(s->matched_stop, stop);
    ck_assert_uint_eq(s->n_tokens, 100 + (size_t)first + 1);
    ck_assert_int_eq(s->last.n_top, 3);
    ck_assert_int_eq(s->last.top_ids[0], s->last.id);
    creq *one = cluster_request(&c, prompt, 100, 1); /* ends with the first token */
    cluster_finish(&c, 10);
    ck_assert_uint_eq(one->n_tokens, 101);
    cluster_stop(&c);
}
END_TEST

START_TEST(flush_cache)
{
    cluster_opts o = cluster_defaults();
    cluster_start(&c, &o);
    cluster_make_prompt(prompt, 500, o.vocab, 9);
    cluster_request(&c, prompt, 500, 10);
    cluster_finish(&c, 10);
    sl_msg m = {.type = SL_MSG_FLUSH_CACHE};
    cluster_send(cluster_worker(&c, SL_ROLE_DECODE, 0), &m);
    cluster_send(cluster_worker(&c, SL_ROLE_PREFILL, 0), &m);
    creq *r = cluster_request(&c, prompt, 500, 10);
    cluster_finish(&c, 10);
    ck_assert_uint_eq(r->matched_pages, 0);
    ck_assert_uint_eq(r->cached_tokens, 0);
    cluster_stop(&c);
}
END_TEST

/* The longest prompt that the context allows. */
START_TEST(longest_prompt)
{
    cluster_opts o = cluster_defaults();
    o.layers = 2;
    cluster_start(&c, &o);
    creq *a = cluster_ask(&c, 4095, 5, 1);
    cluster_finish(&c, 40);
    ck_assert_uint_eq(a->n_tokens, 4096);
    cluster_stop(&c);
}
END_TEST

int main(void)
{
    sl_log_init(getenv("SL_TEST_LOG") ? SL_LOG_DEBUG : SL_LOG_ERROR, false, "test");
    Suite *s = suite_create("cluster");
    TCase *t = tcase_create("cluster");
    tcase_set_timeout(t, 120);
    tcase_add_test(t, one_request);
    tcase_add_loop_test(t, layouts_and_formats, 0, 9);
    tcase_add_test(t, many_at_once);
    tcase_add_test(t, thousand_tokens);
    tcase_add_test(t, prefix_reuse);
    tcase_add_test(t, seeds_share_nothing);
    tcase_add_test(t, retraction);
    tcase_add_test(t, does_not_fit);
    tcase_add_test(t, bad_requests);
    tcase_add_test(t, stops);
    tcase_add_test(t, flush_cache);
    tcase_add_test(t, longest_prompt);
    suite_add_tcase(s, t);
    return run_suite(s);
}
