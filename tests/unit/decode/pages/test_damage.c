/*
 * Pages of the store whose bytes were changed (decode/pages/damage.c says when they are found): published ones before another
 * request uses them, running ones by the patrol, landing ones at COMMIT. From then on no token is produced from them,
 * they leave the prefix tree, and the damage is counted.
 */
#include "tests/unit/decode/decode_double.h"
#include "tests/unit/run_suite.h"

static decode_double x;

static void open_with(sl_cfg_verify verify)
{
    dd_opts o = dd_defaults();
    o.verify = verify;
    o.pages = 24;
    dd_open(&x, &o);
}

/* Flips one bit of the rows of one layer. */
static void flip(int32_t page, int32_t layer, int i)
{
    const sl_geometry *g = sl_arena_geometry(x.arena);
    sl_host_plane r =
        sl_geometry_plane(g, sl_arena_base(x.arena), sl_arena_pages(x.arena), layer, SL_CACHE_ROWS);
    r.base[page * r.page_stride + i * 4001 % (SL_PAGE_TOKENS * sl_geometry_row_bytes(g))] ^=
        (uint8_t)(1 << i % 8);
}

static int32_t page_of(uint64_t rid, int i)
{
    return sl_lease_pages(dd_lease(&x, rid))[i];
}

/* RESERVE and COMMIT; the prefix tree has its first `matched` pages. */
static void arrive(uint64_t rid, int n_tokens, int max_tokens, int seed, uint32_t matched)
{
    dd_reserve(&x, rid, n_tokens, max_tokens, seed, 0);
    ck_assert_uint_eq(dd_expect(&x, SL_MSG_RESERVED, rid)->matched, matched);
    dd_commit(&x, rid, DD_WRITER, 0);
    dd_silent(&x);
}

/* A request that leaves 3 pages published; returns the number of one of them. */
static int32_t publish(uint64_t rid, int i)
{
    arrive(rid, 200, 1, 0, 0);
    int32_t page = page_of(rid, i);
    ck_assert_int_ge(dd_check(&x), 1);
    dd_expect(&x, SL_MSG_TOKENS, rid);
    dd_expect(&x, SL_MSG_DONE, rid);
    return page;
}

static void failed(uint64_t rid)
{
    const dd_said *s = dd_expect(&x, SL_MSG_FAILED, rid);
    ck_assert_int_eq(s->status, SL_ERR_CORRUPT);
    ck_assert(s->retryable);
}

/* All 12 cases: each page, each layer, before COMMIT and after it. */
START_TEST(published_pages)
{
    open_with(SL_CFG_VERIFY_ALWAYS);
    int page = _i % 3, layer = _i / 3 % 2;
    bool after_commit = _i / 6;
    flip(publish(1, page), layer, _i);
    dd_reserve(&x, 2, 200, 5, 0, 0);
    ck_assert_uint_eq(dd_expect(&x, SL_MSG_RESERVED, 2)->matched, 3);
    if (after_commit) {
        dd_commit(&x, 2, DD_WRITER, 0);
        dd_silent(&x);
    } else {
        dd_drained(&x, 2, DD_WRITER);
    }
    dd_check(&x);
    failed(2);
    dd_silent(&x);
    ck_assert_int_eq(dd_tickets(&x), 0);
    ck_assert_uint_eq(dd_damaged(&x), 1);
    arrive(3, 200, 1, 0, (uint32_t)page); /* what continues the page has gone with it */
    dd_check(&x);
    dd_expect(&x, SL_MSG_TOKENS, 3);
    dd_expect(&x, SL_MSG_DONE, 3);
    dd_close(&x);
}
END_TEST

/* Every request that holds the page ends, whichever check has found the damage. */
START_TEST(all_who_share_the_page)
{
    bool worked;
    open_with(SL_CFG_VERIFY_ALWAYS);
    int32_t page = publish(1, 1);
    arrive(2, 200, 50, 0, 3);
    dd_check(&x);
    dd_expect(&x, SL_MSG_TOKENS, 2);
    ck_assert_int_eq(dd_step(&x, &worked), SL_OK);
    dd_expect(&x, SL_MSG_TOKENS, 2);
    arrive(3, 200, 50, 0, 3); /* CHECKING */
    dd_check(&x);
    dd_expect(&x, SL_MSG_TOKENS, 3); /* WAITING */
    flip(page, 0, 3);
    dd_reserve(&x, 4, 200, 50, 0, 0);
    dd_expect(&x, SL_MSG_RESERVED, 4);
    dd_check(&x);
    dd_expect(&x, SL_MSG_RETRACTED, 2);
    dd_expect(&x, SL_MSG_RETRACTED, 3);
    failed(4);
    dd_silent(&x);
    ck_assert_int_eq(dd_ticket(&x, 4)->state, SL_TICKET_QUARANTINE); /* its writer may still write */
    dd_drained(&x, 4, DD_WRITER);
    dd_expect(&x, SL_MSG_DRAINED, 4);
    dd_close(&x);
}
END_TEST

/* Pages that were filled by decoding are sealed when they are full. */
START_TEST(generated_pages)
{
    bool worked;
    open_with(SL_CFG_VERIFY_ALWAYS);
    arrive(1, 130, 70, 0, 0);
    dd_check(&x);
    dd_expect(&x, SL_MSG_TOKENS, 1);
    for (int i = 0; i < 66; i++) {
        ck_assert_int_eq(dd_step(&x, &worked), SL_OK);
        dd_expect(&x, SL_MSG_TOKENS, 1);
        dd_check(&x);
    }
    ck_assert_int_eq(sl_ticket_sealed(&x.d->run->core.env, dd_ticket(&x, 1)), 3);
    flip(page_of(1, 2), 1, 5);
    uint64_t now = sl_now_ns();
    while (!dd_damaged(&x)) {
        ck_assert_uint_gt(sl_run_patrol(x.d->run, now += 20000000), now);
        ck_assert_int_eq(dd_check(&x), 1);
    }
    dd_expect(&x, SL_MSG_RETRACTED, 1);
    dd_silent(&x);
    dd_close(&x);
}
END_TEST

/* All 12 cases: the patrol finds each damaged page of a running request within one round. */
START_TEST(running_pages)
{
    bool worked;
    open_with(SL_CFG_VERIFY_ALWAYS);
    arrive(1, 64 * 6 + 10, 50, 0, 0);
    arrive(2, 64 * 6 + 10, 50, 1, 0);
    dd_check(&x);
    dd_expect(&x, SL_MSG_TOKENS, 1);
    dd_expect(&x, SL_MSG_TOKENS, 2);
    ck_assert_int_eq(dd_step(&x, &worked), SL_OK);
    dd_expect(&x, SL_MSG_TOKENS, 1);
    dd_expect(&x, SL_MSG_TOKENS, 2);
    uint64_t victim = 1 + (uint64_t)_i / 6, other = 3 - victim, now = sl_now_ns();
    for (int i = 0; i < 4; i++) { /* undamaged: nothing happens */
        sl_run_patrol(x.d->run, now += 20000000);
        dd_check(&x);
    }
    dd_silent(&x);
    flip(page_of(victim, _i % 6), _i % 2, _i);
    for (int i = 0; i < 12 && x.seen == x.n_said; i++) {
        sl_run_patrol(x.d->run, now += 20000000);
        ck_assert_int_eq(sl_run_patrol(x.d->run, now), UINT64_MAX); /* one job at a time */
        dd_check(&x);
    }
    dd_expect(&x, SL_MSG_RETRACTED, victim);
    dd_silent(&x);
    ck_assert_uint_eq(dd_damaged(&x), 1);
    dd_abort(&x, other, SL_ERR_CANCELLED);
    dd_expect(&x, SL_MSG_DRAINED, other);
    ck_assert_uint_eq(sl_run_patrol(x.d->run, now + 20000000), UINT64_MAX); /* nothing runs */
    dd_close(&x);
}
END_TEST

/* Damage that a writer does to its own landing pages is found by the checksums of COMMIT; the comparison is real
 * here. */
START_TEST(landing_pages)
{
    open_with(_i / 6 ? SL_CFG_VERIFY_OFF : SL_CFG_VERIFY_ALWAYS);
    arrive(1, 64 * 6 - 10, 5, 0, 0);
    flip(page_of(1, _i % 6), _i % 2, 0); /* token 0: valid in the last page too */
    dd_check(&x);
    failed(1);
    ck_assert_uint_eq(dd_counts(&x).corrupt, 1);
    dd_close(&x);
}
END_TEST

/* PAGES_ASK answers the checksums that were kept, not those of the pages as they are. */
START_TEST(asked_pages)
{
    open_with(SL_CFG_VERIFY_ALWAYS);
    int32_t page = publish(1, 1);
    uint32_t before = sl_arena_page_crc(x.arena, page, 1, SL_PAGE_TOKENS);
    flip(page, 1, 2);
    dd_reserve(&x, 2, 200, 5, 0, 0);
    dd_expect(&x, SL_MSG_RESERVED, 2);
    dd_pages_ask(&x, 2, 1, 1);
    sl_mail *verify = sl_mailbox_take(x.d->role.checker.inbox);
    sl_check *k = (sl_check *)sl_mailbox_take(x.d->role.checker.inbox);
    ck_assert(sl_checker_work(&x.d->role.checker, k));
    ck_assert_uint_eq(k->n_crc, DD_LAYERS);
    ck_assert_uint_eq(k->crc[1], before);
    ck_assert_uint_ne(before, sl_arena_page_crc(x.arena, page, 1, SL_PAGE_TOKENS));
    dd_answer(&x, k);
    dd_expect(&x, SL_MSG_PAGES_CRC, 2);
    sl_mailbox_post(x.d->role.checker.inbox, verify);
    dd_drained(&x, 2, DD_WRITER);
    dd_check(&x);
    failed(2);
    dd_close(&x);
}
END_TEST

/* Damage that is found after the request has ended: the page is dropped, and no message is sent. */
START_TEST(found_after_the_end)
{
    open_with(SL_CFG_VERIFY_ALWAYS);
    flip(publish(1, 0), 0, 1);
    arrive(2, 200, 5, 0, 3);
    dd_abort(&x, 2, SL_ERR_CANCELLED);
    dd_expect(&x, SL_MSG_DRAINED, 2);
    ck_assert_int_eq(dd_ticket(&x, 2)->state, SL_TICKET_ENDING);
    dd_check(&x);
    dd_silent(&x);
    ck_assert_int_eq(dd_tickets(&x), 0);
    arrive(3, 200, 1, 0, 0);
    dd_check(&x);
    dd_expect(&x, SL_MSG_TOKENS, 3);
    dd_expect(&x, SL_MSG_DONE, 3);
    dd_close(&x);
}
END_TEST

/* Sampled: a page that was overwritten is found at once; off: nothing is kept and no job is posted. */
START_TEST(sampled_and_off)
{
    open_with(SL_CFG_VERIFY_SAMPLED);
    int32_t page = publish(1, 2);
    flip(page, 0, 1);
    flip(page, 1, 1);
    arrive(2, 200, 5, 0, 3);
    dd_check(&x);
    failed(2);
    dd_close(&x);
    open_with(SL_CFG_VERIFY_OFF);
    publish(1, 2);
    arrive(2, 200, 1, 0, 3);
    ck_assert_int_eq(dd_check(&x), 1); /* COMMIT's */
    dd_expect(&x, SL_MSG_TOKENS, 2);
    dd_expect(&x, SL_MSG_DONE, 2);
    dd_close(&x);
}
END_TEST

/*
 * A step has fetched damaged rows of a page that one of three running requests holds alone, or that two share: who holds it is
 * RETRACTED and gets no token of that step, nor of the one that is in flight after it; the others get theirs.
 */
START_TEST(fetched_pages)
{
    bool worked, shared = _i % 2;
    int page = _i / 2 % 3;
    dd_opts o = dd_defaults();
    o.verify = SL_CFG_VERIFY_ALWAYS;
    o.pages = 24, o.max_batch = 3, o.overlaps = _i >= 6;
    dd_open(&x, &o);
    publish(9, 0);
    for (uint64_t rid = 1; rid <= 3; rid++) {
        arrive(rid, 200, 50, rid == 3, rid == 3 ? 0 : 3);
        dd_check(&x);
        dd_expect(&x, SL_MSG_TOKENS, rid);
    }
    for (int flights = 0; flights <= o.overlaps; flights++)
        ck_assert_int_eq(dd_step(&x, &worked), SL_OK);
    for (uint64_t rid = 1; rid <= 3; rid++)
        dd_expect(&x, SL_MSG_TOKENS, rid);
    x.bad_page = page_of(shared ? 1 : 3, page) + 1;
    ck_assert_int_eq(dd_step(&x, &worked), SL_OK);
    for (uint64_t rid = 1; rid <= 3; rid++) {
        if (shared == (rid < 3))
            dd_expect(&x, SL_MSG_RETRACTED, rid);
    }
    for (uint64_t rid = 1; rid <= 3; rid++) {
        if (shared != (rid < 3))
            dd_expect(&x, SL_MSG_TOKENS, rid);
    }
    dd_silent(&x);
    ck_assert_int_eq(dd_step(&x, &worked), SL_OK);
    for (uint64_t rid = 1; rid <= 3; rid++) {
        if (shared != (rid < 3))
            dd_expect(&x, SL_MSG_TOKENS, rid);
    }
    dd_silent(&x);
    ck_assert_uint_eq(dd_counts(&x).damaged_fetched, 1);
    for (uint64_t rid = 1; rid <= 3; rid++) {
        if (shared == (rid < 3))
            continue;
        dd_abort(&x, rid, SL_ERR_CANCELLED);
        dd_expect(&x, SL_MSG_DRAINED, rid);
    }
    while (dd_step(&x, &worked) == SL_OK && worked)
        ;
    dd_close(&x);
}
END_TEST

int main(void)
{
    sl_log_init(getenv("SL_TEST_LOG") ? SL_LOG_DEBUG : SL_LOG_ERROR, false, "test");
    Suite *s = suite_create("damage");
    TCase *t = tcase_create("damage");
    tcase_add_loop_test(t, published_pages, 0, 12);
    tcase_add_test(t, all_who_share_the_page);
    tcase_add_test(t, generated_pages);
    tcase_add_loop_test(t, running_pages, 0, 12);
    tcase_add_loop_test(t, landing_pages, 0, 12);
    tcase_add_loop_test(t, fetched_pages, 0, 12);
    tcase_add_test(t, asked_pages);
    tcase_add_test(t, found_after_the_end);
    tcase_add_test(t, sampled_and_off);
    suite_add_tcase(s, t);
    return run_suite(s);
}
