/*
 * Prefetches as the engine thread sees them (prefill/prefetch.c, and their seam with schedule.c), with the real shipments, store and
 * checker; the test is the decode worker, the transport and the clock. What was fetched is found by the request, what was not is
 * pulled or computed, no other request waits, and nothing stays pinned, whenever it ends.
 */
#include <stdlib.h>
#include <string.h>

#include "tests/unit/prefill/rig.h"
#include "tests/unit/run_suite.h"

enum { PAGE = SL_PAGE_TOKENS };

static sl_wr sampling;

/* The device: sequences with their pages. Whatever is moved to it must be the decode worker's page, byte by byte, at that moment. */
typedef struct seq {
    int32_t pages[RIG_PAGES], n_pages, len;
} seq;

static struct {
    int open, most; /* sequences; most: for which there is room */
    int loads;
} device;

static void moved(seq *s, int32_t n_cached)
{
    ck_assert_int_le(n_cached, s->n_pages * PAGE);
    for (int32_t i = s->len / PAGE; i < n_cached / PAGE; i++)
        for (int32_t l = 0; l < RIG_LAYERS; l++)
            ck_assert_uint_eq(sl_arena_page_crc(r.here, s->pages[i], l, PAGE),
                              sl_arena_page_crc(r.there, 5 - i, l, PAGE));
    s->len = n_cached;
}

static sl_status run_add_pages(void *impl, void *of, const int32_t *pages, int32_t n, sl_err *err)
{
    (void)impl, (void)err;
    seq *s = of;
    ck_assert_int_le(s->n_pages + n, RIG_PAGES);
    memcpy(s->pages + s->n_pages, pages, (size_t)n * sizeof *pages);
    s->n_pages += n;
    return SL_OK;
}

static sl_status run_open(void *impl, sl_residency residency, const int32_t *pages, int32_t n_pages,
                          int32_t n_cached, void **out, sl_err *err)
{
    ck_assert_int_eq(residency, SL_RESIDENT);
    if (device.open == device.most)
        return sl_fail(err, SL_ERR_EXHAUSTED, "no room");
    seq *s = calloc(1, sizeof *s);
    device.open++;
    (void)run_add_pages(impl, s, pages, n_pages, err);
    moved(s, n_cached);
    *out = s;
    return SL_OK;
}

static sl_status run_load(void *impl, void *of, int32_t n_cached, sl_err *err)
{
    (void)impl, (void)err;
    device.loads++;
    ck_assert_int_gt(n_cached, ((seq *)of)->len);
    moved(of, n_cached);
    return SL_OK;
}

static int32_t run_len(const void *of)
{
    return ((const seq *)of)->len;
}

static void run_close(void *impl, void *of)
{
    (void)impl;
    device.open--;
    free(of);
}

static void on_mail(sl_wmail *m)
{
    if (m->kind == PM_CHECKED)
        sl_schedule_checked(r.p, (sl_check *)m);
    else
        sl_schedule_mail(r.p, m);
}

static void open_engine(void)
{
    static const sl_runner runner = {.max_context = 1024,
                                     .vocab = 8,
                                     .open = run_open,
                                     .add_pages = run_add_pages,
                                     .load = run_load,
                                     .len = run_len,
                                     .close = run_close};
    memset(&device, 0, sizeof device);
    device.most = 100;
    sl_err err = {0};
    rig_open(RIG_STAGING);
    rig_engine = on_mail;
    sl_prefill *p = r.p;
    p->o.role.runner = &runner;
    p->o.role.prefix_cache = true;
    p->o.max_requests = 4;
    p->o.chunk_tokens = 512;
    ck_assert_int_eq(sl_schedule_open(p, &err), SL_OK);
    sl_store_opts so = {.n_pages = sl_arena_pages(r.here), .prefix_cache = true};
    ck_assert_int_eq(sl_store_create(&so, &p->role.store, &err), SL_OK);
    ck_assert_int_eq(
        sl_checker_open(&p->role.checker, r.here, NULL, SL_CFG_VERIFY_ALWAYS, p->role.inbox, PM_CHECKED),
        SL_OK);
    sl_sampling s;
    sl_sampling_default(&s);
    sl_wr_init(&sampling);
    sl_sampling_write(&sampling, &s);
    sl_sampling_free(&s);
}

static int held(void)
{
    sl_store_stats st;
    sl_store_stats_get(r.p->role.store, &st);
    return st.held;
}

/* The checker's oldest job. False: it has none. */
static bool check_one(void)
{
    sl_check *k = (sl_check *)sl_mailbox_take(r.p->role.checker.inbox);
    if (!k)
        return false;
    while (!sl_checker_work(&r.p->role.checker, k))
        ;
    k->mail.kind = PM_CHECKED;
    sl_mailbox_post(r.p->role.inbox, &k->mail.link);
    return true;
}

/* Turns of both threads until nothing changes; operations in flight complete, and the checker works, unless they are kept back. */
static void turns(bool complete, bool check)
{
    for (int i = 0; i < 12; i++) {
        rig_tick();
        sl_schedule_admit(r.p);
        if (complete)
            rig_complete_all(SL_OK);
        while (check && check_one())
            ;
    }
}

static void close_engine(void)
{
    sl_err err = {0};
    turns(true, true);
    ck_assert(!r.p->jobs && !r.p->prefetches && !r.p->ships);
    ck_assert_int_eq(held(), 0);
    ck_assert_int_eq(device.open, 0);
    ck_assert_msg(sl_store_check(r.p->role.store, &err) == SL_OK, "%s", err.text);
    sl_store *store = r.p->role.store;
    sl_schedule_close(r.p);
    sl_checker_close(&r.p->role.checker);
    rig_engine = NULL;
    rig_close();
    sl_store_destroy(store);
    sl_wr_free(&sampling);
}

/* PREFILL of a prompt of RIG_TOKENS times this token. */
static void prefill(uint64_t rid, uint32_t matched, int32_t token)
{
    sl_wmsg *m = calloc(1, sizeof *m);
    m->msg.type = SL_MSG_PREFILL;
    m->router = RIG_ROUTER;
    m->msg.prefill = (sl_msg_prefill){.rid = rid,
                                      .attempt = 1,
                                      .ticket = 9,
                                      .decode_worker = 2,
                                      .decode_addr = "rig:1",
                                      .decode_epoch = 7,
                                      .n_prompt = RIG_TOKENS,
                                      .n_tokens = RIG_TOKENS,
                                      .matched_pages = matched,
                                      .n_pages = RIG_PAGES,
                                      .sampling = {sampling.data, sampling.len},
                                      .seed = rig_seed};
    m->msg.prefill.tokens = calloc(RIG_TOKENS, sizeof(int32_t));
    m->msg.prefill.pages = calloc(RIG_PAGES, sizeof(uint32_t));
    for (int i = 0; i < RIG_TOKENS; i++)
        m->msg.prefill.tokens[i] = token;
    for (uint32_t i = 0; i < RIG_PAGES; i++)
        m->msg.prefill.pages[i] = 5 - i;
    sl_ship_new(r.p, m);
}

static sl_prefill_job *request(uint64_t rid)
{
    sl_prefill_job *j = r.p->jobs;
    while (j && j->rid != rid)
        j = j->engine.next;
    ck_assert_ptr_nonnull(j);
    return j;
}

static int cached(void)
{
    int32_t tokens[RIG_TOKENS] = {0};
    return sl_store_match(r.p->role.store, rig_seed, tokens, RIG_TOKENS);
}

static void lease(int n)
{
    rig_lease(n, true);
    turns(true, true);
}

/* A prefetch whose connection is up and which has asked for its pages. Returns its request. */
static uint64_t begin(void)
{
    rig_begin_prefetch();
    rig_tick();
    rig_peer_up();
    turns(true, true);
    ck_assert_int_eq(r.seen.leases, 1);
    ck_assert_int_eq(held(), RIG_AHEAD);
    return r.job->rid;
}

static void abort_all(void)
{
    while (r.p->jobs) {
        sl_ship_abort(r.p, RIG_ROUTER, r.p->jobs->rid, 1);
        turns(true, true);
    }
}

/* The request waits for the pages, without another one's waiting for it, and begins after them; nothing is verified twice. */
START_TEST(the_request_finds_what_was_fetched)
{
    open_engine();
    uint64_t rid = begin();
    lease(2);
    ck_assert_int_eq(cached(), 2);
    prefill(rid, RIG_AHEAD, 0);
    prefill(7, 0, 1);
    turns(true, true);
    ck_assert_int_eq(request(rid)->engine.state, JOB_QUEUED);
    ck_assert_int_eq(request(7)->engine.state, JOB_RUNNING);
    ck_assert_int_eq(r.seen.leases, 2);
    rig_lease(1, true);
    turns(true, false);
    ck_assert_int_eq(request(rid)->engine.state, JOB_QUEUED); /* it is here, but was not compared */
    ck_assert(check_one());
    ck_assert_int_eq(device.open, 2); /* of the other request, and of the pages that are here */
    turns(true, false);
    const sl_prefill_job *j = request(rid);
    ck_assert_int_eq(j->engine.state, JOB_RUNNING);
    ck_assert_int_eq(j->engine.prompt.pos, RIG_AHEAD * PAGE);
    ck_assert(device.open == 2 &&
              device.loads == 1); /* each page was moved once: the request has taken the sequence over */
    ck_assert_int_eq(((const seq *)j->engine.seq)->n_pages, RIG_PAGES);
    ck_assert(!j->engine.unverified && !check_one());
    ck_assert_uint_eq(r.p->pulled, RIG_AHEAD * PAGE);
    ck_assert_uint_eq(r.p->reused, 0);
    ck_assert_ptr_null(r.p->prefetches);
    abort_all();
    close_engine();
}
END_TEST

/* Pages that the worker had before are verified, those that were fetched are not. */
START_TEST(only_older_pages_are_verified)
{
    open_engine();
    uint64_t rid = begin();
    lease(1);
    sl_ship_abort(r.p, RIG_ROUTER, rid, 1);
    turns(true, true);
    ck_assert_int_eq(cached(), 1);
    ck_assert_int_eq(held(), 0);
    rig_begin_prefetch();
    rid = r.job->rid;
    turns(true, true);
    ck_assert_int_eq(r.seen.lease_keys, RIG_AHEAD - 1);
    lease(2);
    prefill(rid, RIG_AHEAD, 0);
    turns(true, false);
    ck_assert_int_eq(request(rid)->engine.prompt.pos, RIG_AHEAD * PAGE);
    ck_assert(request(rid)->engine.unverified);
    sl_check *k = (sl_check *)sl_mailbox_take(r.p->role.checker.inbox);
    ck_assert(k && k->what == SL_CHECK_VERIFY && k->n_pages == 1);
    sl_mailbox_post(r.p->role.checker.inbox, &k->mail.link);
    ck_assert_uint_eq(r.p->reused, PAGE);
    ck_assert_uint_eq(r.p->pulled, 2 * PAGE);
    turns(true, true);
    abort_all();
    close_engine();
}
END_TEST

/* A page that was damaged while it was fetched, and those after it, are not used; the request pulls them by itself. */
START_TEST(damaged_pages_are_not_used)
{
    open_engine();
    uint64_t rid = begin();
    lease(1);
    rig_lease(2, true);
    rig_tick();
    uint8_t *page = sl_arena_base(r.there) + 4 * sl_arena_geometry(r.there)->page_bytes;
    page[100] ^= 1;
    turns(true, true);
    page[100] ^= 1;
    ck_assert_ptr_null(r.p->prefetches);
    ck_assert_int_eq(cached(), 1);
    prefill(rid, RIG_AHEAD, 0);
    turns(true, true);
    ck_assert_int_eq(request(rid)->engine.state, JOB_PULLING);
    ck_assert_int_eq(request(rid)->own_matched, 1);
    ck_assert_int_eq(r.seen.asked, 1);
    abort_all();
    close_engine();
}
END_TEST

/* A request that pulls page by page: what has been compared is on the device while later pages are in flight, and is published. */
START_TEST(pages_are_moved_while_others_come)
{
    open_engine();
    r.p->o.pull_chunk_bytes = 1;
    prefill(7, RIG_AHEAD, 0);
    r.job = r.p->ships;
    rig_tick();
    sl_schedule_admit(r.p);
    rig_tick();
    rig_peer_up();
    turns(false, true);
    const sl_prefill_job *j = request(7);
    ck_assert_int_eq(j->engine.state, JOB_PULLING);
    ck_assert_int_eq(r.seen.asked, 1);
    rig_pages_crc(true);
    for (int page = 0; page < RIG_AHEAD; page++) {
        ck_assert_int_eq(device.open, 1);
        ck_assert_int_eq(run_len(j->engine.seq), page * PAGE);
        ck_assert_int_eq(cached(), page);
        for (int n = r.n_ops / (RIG_AHEAD - page); n > 0; n--)
            rig_complete(SL_OK);
        turns(false, true);
    }
    ck_assert_int_eq(j->engine.state, JOB_RUNNING);
    ck_assert_int_eq(j->engine.prompt.pos, RIG_AHEAD * PAGE);
    ck_assert_int_eq(device.loads, RIG_AHEAD);
    ck_assert_uint_eq(r.p->pulled, RIG_AHEAD * PAGE);
    abort_all();
    close_engine();
}
END_TEST

/* Page _i is damaged while it is pulled: those before it are used, those after it are not, though they are right. Nothing is computed
 * before the last get has completed, because gets write to the pages that are computed then. */
START_TEST(a_damaged_page_ends_the_prefix)
{
    open_engine();
    r.p->o.pull_chunk_bytes = 1;
    prefill(7, RIG_AHEAD, 0);
    r.job = r.p->ships;
    rig_tick();
    sl_schedule_admit(r.p);
    rig_tick();
    rig_peer_up();
    turns(false, true);
    rig_pages_crc(true);
    uint8_t *page = sl_arena_base(r.there) + (5 - _i) * sl_arena_geometry(r.there)->page_bytes;
    page[100] ^= 1;
    int left = 1;
    while (r.n_ops > left)
        rig_complete(SL_OK);
    page[100] ^= _i < RIG_AHEAD - 1; /* of the last page the damaged row may be what comes last */
    turns(false, true);
    const sl_prefill_job *j = request(7);
    ck_assert_int_eq(j->engine.state, JOB_PULLING);
    rig_complete(SL_OK);
    page[100] ^= _i == RIG_AHEAD - 1;
    turns(false, true);
    ck_assert_int_eq(j->engine.state, JOB_RUNNING);
    ck_assert_int_eq(j->engine.prompt.pos, _i * PAGE);
    ck_assert_int_eq(run_len(j->engine.seq), _i * PAGE);
    ck_assert_int_eq(cached(), _i);
    abort_all();
    close_engine();
}
END_TEST

/* Pages of a prefetch that left the prefix tree before its request came: the sequence that has their rows is not used. */
START_TEST(a_sequence_of_other_pages_is_closed)
{
    open_engine();
    uint64_t rid = begin();
    lease(RIG_AHEAD);
    ck_assert_int_eq(device.open, 1);
    sl_store_flush(r.p->role.store);
    prefill(rid, 0, 0);
    turns(true, true);
    ck_assert_int_eq(request(rid)->engine.state, JOB_RUNNING);
    ck_assert_int_eq(run_len(request(rid)->engine.seq), 0);
    ck_assert_int_eq(device.open, 1);
    abort_all();
    close_engine();
}
END_TEST

/* The device has room for one sequence: a request gets it, also while a prefetch has it, whose request moves its pages later. */
START_TEST(requests_come_before_prefetches)
{
    open_engine();
    device.most = 1;
    uint64_t rid = begin();
    lease(2);
    ck_assert_int_eq(device.open, 1);
    prefill(7, 0, 1);
    turns(true, true);
    ck_assert_int_eq(request(7)->engine.state, JOB_RUNNING);
    lease(1);
    prefill(rid, RIG_AHEAD, 0);
    turns(true, true);
    ck_assert_int_eq(request(rid)->engine.state, JOB_READY);
    sl_ship_abort(r.p, RIG_ROUTER, 7, 1);
    turns(true, true);
    ck_assert_int_eq(request(rid)->engine.state, JOB_RUNNING);
    ck_assert_int_eq(run_len(request(rid)->engine.seq), RIG_AHEAD * PAGE);
    abort_all();
    close_engine();
}
END_TEST

/*
 * The decode worker cannot load the pages of a prefetch, because requests hold its pages that find none here, where the prefetch has
 * them. After any number of its pages it ends, and the requests begin. Its own request computes what is not left.
 */
START_TEST(requests_without_pages_end_prefetches)
{
    open_engine();
    uint64_t rid = begin();
    const int left = (int)sl_arena_pages(r.here) - held();
    if (_i)
        lease(_i);
    int n = 0;
    for (; n * RIG_PAGES <= left; n++)
        prefill(7 + (uint64_t)n, 0, 1 + n);
    turns(true, true);
    for (int i = 0; i < n; i++)
        ck_assert_int_eq(request(7 + (uint64_t)i)->engine.state, JOB_RUNNING);
    ck_assert_ptr_null(r.p->prefetches);
    abort_all();
    prefill(rid, 0, 0);
    turns(true, true);
    ck_assert_int_eq(request(rid)->engine.state, JOB_RUNNING);
    abort_all();
    close_engine();
}
END_TEST

/* The load ended early: what came is used. */
START_TEST(a_load_that_ends_early)
{
    open_engine();
    uint64_t rid = begin();
    lease(_i);
    if (_i)
        lease(0);
    prefill(rid, (uint32_t)_i, 0);
    turns(true, true);
    ck_assert_int_eq(request(rid)->engine.state, JOB_RUNNING);
    ck_assert_int_eq(request(rid)->engine.prompt.pos, _i * PAGE);
    ck_assert_ptr_null(r.p->prefetches);
    abort_all();
    close_engine();
}
END_TEST

/* Where there is nothing to fetch or no room for it, the decode worker is not asked, and nothing is taken. */
START_TEST(none_begins_without_need_or_room)
{
    open_engine();
    if (_i == 0) {
        r.p->role.draining = true;
    } else if (_i == 1) {
        r.p->o.role.prefix_cache = false;
    } else if (_i == 2) {
        begin();
        lease(RIG_AHEAD); /* they are here already */
        sl_ship_abort(r.p, RIG_ROUTER, r.job->rid, 1);
    } else {
        prefill(7, 0, 1);
        prefill(8, 0, 2);
        prefill(9, 0, 3); /* waits for pages */
        rig_tick();
        rig_peer_up();
    }
    turns(true, true);
    int before = held();
    rig_begin_prefetch();
    turns(true, true);
    ck_assert_ptr_null(r.p->prefetches);
    ck_assert_int_eq(held(), before);
    ck_assert_int_eq(r.seen.leases, 0);
    r.p->role.draining = false;
    abort_all();
    close_engine();
}
END_TEST

/* After each number of turns of one thread or the other, what ends it gives everything back. */
START_TEST(it_ends_at_any_moment)
{
    for (int steps = 0; steps < 24; steps++) {
        open_engine();
        rig_begin_prefetch();
        uint64_t rid = r.job->rid;
        bool up = false, asked = false;
        for (int i = 0; i < steps; i++) {
            rig_tick();
            sl_schedule_admit(r.p);
            if (i == 2)
                rig_peer_up(), up = true;
            if (i > 3 && i % 4 == 0 && r.seen.leases > r.seen.lease_ends && r.job && !asked)
                rig_lease(1, true), asked = true;
            if (i % 4 == 2)
                rig_complete_all(SL_OK), asked = false;
            if (i % 4 == 3)
                check_one();
            if (i == 9)
                prefill(rid, RIG_AHEAD, 0);
        }
        if (_i == 0)
            sl_ship_abort(r.p, RIG_ROUTER, rid, 1);
        else if (_i == 1)
            sl_ship_router_down(r.p, RIG_ROUTER);
        else if (up)
            sl_peer_drop(r.p, r.p->peers, SL_ERR_PEER, "the decode worker died");
        else
            sl_ship_abort(r.p, RIG_ROUTER, rid, 1);
        for (int i = 0; i < 3; i++) {
            turns(true, true);
            if (r.close_asked)
                rig_closed();
        }
        abort_all();
        close_engine();
    }
}
END_TEST

int main(void)
{
    sl_log_init(getenv("SL_TEST_LOG") ? SL_LOG_DEBUG : SL_LOG_ERROR, false, "test");
    Suite *s = suite_create("prefill_prefetch");
    TCase *t = tcase_create("prefill_prefetch");
    tcase_add_test(t, the_request_finds_what_was_fetched);
    tcase_add_test(t, only_older_pages_are_verified);
    tcase_add_test(t, damaged_pages_are_not_used);
    tcase_add_test(t, pages_are_moved_while_others_come);
    tcase_add_loop_test(t, a_damaged_page_ends_the_prefix, 0, RIG_AHEAD);
    tcase_add_test(t, a_sequence_of_other_pages_is_closed);
    tcase_add_test(t, requests_come_before_prefetches);
    tcase_add_loop_test(t, requests_without_pages_end_prefetches, 0, RIG_AHEAD + 1);
    tcase_add_loop_test(t, a_load_that_ends_early, 0, RIG_AHEAD);
    tcase_add_loop_test(t, none_begins_without_need_or_room, 0, 4);
    tcase_add_loop_test(t, it_ends_at_any_moment, 0, 3);
    suite_add_tcase(s, t);
    return run_suite(s);
}
