/*
 * Leases that other workers hold on pages of this one (decode/pages/lend.c): who gets which pages, that they stay in place until the
 * reader has drained or its connection is closed, and that nothing stays pinned. A prefill worker gets pages of a prompt while
 * its other pages are still being loaded from a tier.
 */
#include <time.h>

#include "tests/unit/decode/decode_double.h"
#include "tests/unit/run_suite.h"

static decode_double x;

/* A worker whose store has the 3 full pages of the prompt of 200 tokens, unpinned. */
static void open_with_pages(sl_cfg_verify verify)
{
    dd_opts o = dd_defaults();
    o.verify = verify;
    o.pages = 24;
    dd_open(&x, &o);
    dd_reserve(&x, 1, 200, 1, 0, 0);
    ck_assert_uint_eq(dd_expect(&x, SL_MSG_RESERVED, 1)->matched, 0);
    dd_commit(&x, 1, DD_WRITER, 0);
    dd_check(&x);
    dd_expect(&x, SL_MSG_TOKENS, 1);
    dd_expect(&x, SL_MSG_DONE, 1);
    ck_assert_int_eq(dd_held(&x), 0);
}

static const dd_said *lease(uint64_t id)
{
    dd_check(&x);
    return dd_expect(&x, SL_MSG_LEASE, id);
}

START_TEST(pages_are_lent_and_given_back)
{
    open_with_pages(_i ? SL_CFG_VERIFY_ALWAYS : SL_CFG_VERIFY_OFF);
    dd_lease_ask(&x, 10, 7, dd_seed, 0, 0, 5, 1000); /* it has 3 of them */
    dd_silent(&x);
    ck_assert_int_eq(dd_held(&x), 3);
    const dd_said *s = lease(10);
    ck_assert_uint_eq(s->n, 3);
    ck_assert_uint_eq(s->matched, 0);
    dd_lease_ask(&x, 11, 8, dd_seed, 0, 1, 2, 1000); /* another reader has the first page already */
    const dd_said *second = lease(11);
    ck_assert_uint_eq(second->n, 2);
    ck_assert_uint_eq(second->matched, 3); /* its load */
    ck_assert_int_eq(second->pages[0], s->pages[1]);
    dd_lease_end(&x, 10, 7);
    ck_assert_int_eq(dd_held(&x), 3); /* the second one pins the first page too, as the tree needs it */
    dd_lease_end(&x, 11, 8);
    ck_assert_int_eq(dd_held(&x), 0);
    ck_assert_int_eq(dd_stats(&x).lend.pages_now, 0);
    dd_lease_end(&x, 11, 8);                         /* late or repeated: dropped */
    dd_lease_ask(&x, 12, 7, dd_seed, 1, 0, 2, 1000); /* another prompt */
    ck_assert_uint_eq(lease(12)->n, 0);
    dd_lease_ask(&x, 13, 7, (sl_key){9, 9}, 0, 0, 2, 1000); /* the keys of another domain */
    ck_assert_uint_eq(lease(13)->n, 0);
    ck_assert_int_eq(dd_stats(&x).lend.leases, 0);
    dd_close(&x);
}
END_TEST

/* Pages of a lease are not given to another request, whatever happens to the cache. */
START_TEST(leased_pages_stay_in_place)
{
    open_with_pages(SL_CFG_VERIFY_OFF);
    dd_lease_ask(&x, 10, 7, dd_seed, 0, 0, 3, 1000);
    const dd_said *s = lease(10);
    int32_t pages[3] = {s->pages[0], s->pages[1], s->pages[2]};
    sl_store_flush(x.d->role.store);
    dd_reserve(&x, 3, 900, 2, 1, 0);
    dd_expect(&x, SL_MSG_RESERVED, 3);
    for (int i = 0; i < sl_lease_n_pages(dd_lease(&x, 3)); i++)
        for (int k = 0; k < 3; k++)
            ck_assert_int_ne(sl_lease_pages(dd_lease(&x, 3))[i], pages[k]);
    dd_abort(&x, 3, SL_ERR_CANCELLED);
    dd_drained(&x, 3, DD_WRITER);
    dd_expect(&x, SL_MSG_DRAINED, 3);
    ck_assert_int_eq(dd_held(&x), 3);
    dd_lease_ask(&x, 11, 7, dd_seed, 0, 0, 3, 1000); /* they are in no tree any more */
    ck_assert_uint_eq(lease(11)->n, 0);
    dd_lease_end(&x, 10, 7);
    dd_close(&x);
}
END_TEST

/* The end of the time closes the connection; the pages are free when the transport says that it is closed. */
START_TEST(the_end_of_the_time_frees_nothing_alone)
{
    open_with_pages(SL_CFG_VERIFY_OFF);
    dd_lease_ask(&x, 10, 7, dd_seed, 0, 0, 2, 20);
    dd_lease_ask(&x, 11, 9, dd_seed, 0, 0, 1, 60000);
    lease(10);
    dd_expect(&x, SL_MSG_LEASE, 11);
    uint64_t due = dd_tick(&x, sl_now_ns());
    ck_assert(due < sl_now_ns() + 20000000);
    ck_assert_int_eq(x.reader_fences, 0);
    nanosleep(&(struct timespec){0, 25000000}, NULL);
    dd_tick(&x, sl_now_ns());
    dd_tick(&x, sl_now_ns());
    ck_assert_int_eq(x.reader_fences, 1);
    ck_assert_uint_eq(x.fenced_reader, 7);
    ck_assert_int_eq(dd_held(&x), 2);
    dd_reader_gone(&x, 7);
    ck_assert_int_eq(dd_held(&x), 1);
    dd_reader_gone(&x, 7);
    dd_reader_gone(&x, 9);
    ck_assert_int_eq(dd_held(&x), 0);
    dd_close(&x);
}
END_TEST

/* The reader is lost while the checker reads the pages: they are free when it has ended, and nothing is said. */
START_TEST(the_reader_goes_while_checksums_are_read)
{
    open_with_pages(SL_CFG_VERIFY_OFF);
    dd_lease_ask(&x, 10, 7, dd_seed, 0, 0, 2, 1000);
    if (_i)
        dd_reader_gone(&x, 7);
    else
        dd_lease_end(&x, 10, 7);
    ck_assert_int_eq(dd_held(&x), 2);
    dd_check(&x);
    dd_silent(&x);
    ck_assert_int_eq(dd_held(&x), 0);
    ck_assert_int_eq(dd_stats(&x).lend.leases, 0);
    dd_close(&x);
}
END_TEST

START_TEST(lending_is_bounded)
{
    open_with_pages(SL_CFG_VERIFY_OFF);
    for (uint64_t id = 1; id <= 4; id++) { /* a quarter of 24 pages: two leases of three pages */
        dd_lease_ask(&x, id, 7, dd_seed, 0, 0, 3, 1000);
        ck_assert_uint_eq(lease(id)->n, id <= 2 ? 3 : 0);
    }
    dd_lease_ask(&x, 1, 7, dd_seed, 0, 0, 1, 1000); /* this lease exists: dropped */
    dd_check(&x);
    dd_silent(&x);
    dd_lease_end(&x, 1, 7);
    dd_lease_ask(&x, 5, 7, dd_seed, 0, 0, 3, 1000);
    ck_assert_uint_eq(lease(5)->n, 3);
    x.d->role.draining = true;
    dd_lease_end(&x, 2, 7);
    dd_lease_ask(&x, 6, 7, dd_seed, 0, 0, 3, 1000);
    ck_assert_uint_eq(lease(6)->n, 0);
    dd_lease_end(&x, 5, 7);
    x.d->role.draining = false;
    x.d->o.pages.lend = false; /* kvstore.workers.enabled: false */
    dd_lease_ask(&x, 7, 7, dd_seed, 0, 0, 3, 1000);
    ck_assert_uint_eq(lease(7)->n, 0);
    dd_close(&x);
}
END_TEST

static void flip(int32_t page)
{
    sl_arena_base(x.arena)[page * sl_arena_geometry(x.arena)->page_bytes + 100] ^= 0x10;
}

/* The reader says that pages of its lease arrived damaged. Those that are damaged here leave the tree with what continues
 * them, once; the word of the reader alone removes nothing. */
START_TEST(damage_that_a_reader_reports_is_looked_for)
{
    open_with_pages(SL_CFG_VERIFY_ALWAYS);
    dd_lease_ask(&x, 10, 7, dd_seed, 0, 0, 3, 1000);
    int32_t page = lease(10)->pages[1];
    dd_lease_damaged(&x, 10, 8, 0, 3); /* another connection */
    dd_lease_damaged(&x, 11, 7, 0, 3); /* another lease */
    dd_lease_damaged(&x, 10, 7, 1, 3); /* not its pages */
    ck_assert_int_eq(dd_check(&x), 0);
    dd_lease_damaged(&x, 10, 7, 0, 3);
    ck_assert_int_eq(dd_check(&x), 1);
    ck_assert_uint_eq(dd_damaged(&x), 0); /* they are right here */
    dd_lease_damaged(&x, 10, 7, 0, 3);
    ck_assert_int_eq(dd_check(&x), 0); /* once for each lease */
    dd_lease_end(&x, 10, 7);
    flip(page);
    dd_lease_ask(&x, 12, 7, dd_seed, 0, 0, 3, 1000);
    lease(12);
    dd_lease_damaged(&x, 12, 7, 1, 2);
    if (_i)
        dd_lease_end(&x, 12, 7); /* the checker still reads its pages */
    ck_assert_int_eq(dd_check(&x), 1);
    ck_assert_uint_eq(dd_damaged(&x), 1);
    if (!_i)
        dd_lease_end(&x, 12, 7);
    ck_assert_int_eq(dd_held(&x), 0);
    dd_lease_ask(&x, 13, 7, dd_seed, 0, 0, 3, 1000);
    ck_assert_uint_eq(lease(13)->n, 1); /* the second page and the third, which continued it, are gone */
    dd_lease_end(&x, 13, 7);
    dd_close(&x);
}
END_TEST

/* Requests that hold the damaged page end as they do when it is found otherwise; without kvstore.verify nothing is known. */
START_TEST(damage_in_a_lease_ends_requests_that_hold_it)
{
    open_with_pages(_i ? SL_CFG_VERIFY_OFF : SL_CFG_VERIFY_ALWAYS);
    dd_reserve(&x, 2, 200, 5, 0, 0);
    ck_assert_uint_eq(dd_expect(&x, SL_MSG_RESERVED, 2)->matched, 3);
    dd_check(&x);
    dd_lease_ask(&x, 10, 7, dd_seed, 0, 0, 3, 1000);
    flip(lease(10)->pages[0]);
    dd_drained(&x, 2, DD_WRITER);
    dd_lease_damaged(&x, 10, 7, 0, 3);
    ck_assert_int_eq(dd_check(&x), !_i);
    if (!_i)
        ck_assert_int_eq(dd_expect(&x, SL_MSG_FAILED, 2)->status, SL_ERR_CORRUPT);
    else
        dd_abort(&x, 2, SL_ERR_CANCELLED);
    x.seen = x.n_said;
    ck_assert_int_eq(dd_tickets(&x), 0);
    dd_lease_end(&x, 10, 7);
    ck_assert_int_eq(dd_held(&x), 0);
    dd_close(&x);
}
END_TEST

/* ---- while a load continues ---- */

/* A worker whose tier has the 3 full pages of the prompt, and which loads them for request 2: each is a chunk of its own, which has
 * arrived and waits for the checker. */
static void open_loading(void)
{
    dd_opts o = dd_defaults();
    o.verify = SL_CFG_VERIFY_ALWAYS;
    o.pages = 24;
    o.tier = true;
    o.load_chunk = 1;
    dd_open(&x, &o);
    dd_reserve(&x, 1, 200, 1, 0, 0);
    dd_settle(&x);
    dd_expect(&x, SL_MSG_RESERVED, 1);
    dd_commit(&x, 1, DD_WRITER, 0);
    dd_settle(&x);
    dd_expect(&x, SL_MSG_TOKENS, 1);
    dd_expect(&x, SL_MSG_DONE, 1);
    sl_store_flush(x.d->role.store);
    x.d->o.pages.lend = false; /* concerns decode workers only */
    dd_reserve(&x, 2, 200, 2, 0, 0);
    for (int i = 0; i < 20; i++)
        dd_tick(&x, sl_now_ns());
    ck_assert_uint_eq(dd_expect(&x, SL_MSG_LOADING, 2)->matched, 3);
    dd_silent(&x);
}

/* The end of request 2, which has its pages. */
static void end_loading(void)
{
    dd_settle(&x);
    dd_abort(&x, 2, SL_ERR_CANCELLED);
    dd_drained(&x, 2, DD_WRITER);
    dd_expect(&x, SL_MSG_DRAINED, 2);
    dd_settle(&x);
    dd_silent(&x);
    dd_close(&x);
}

/* The question waits for the first page, and gets it before the load has ended. */
START_TEST(pages_are_lent_while_others_are_loaded)
{
    open_loading();
    dd_lease_wait(&x, 10, 7, 0, 0, 3);
    dd_lease_wait(&x, 10, 7, 0, 0, 3); /* the same again: dropped */
    dd_silent(&x);
    ck_assert_int_eq(dd_stats(&x).lend.waiting, 1);
    ck_assert(dd_check_one(&x)); /* the first page is right */
    dd_silent(&x);
    dd_tick(&x, sl_now_ns());
    ck_assert_int_eq(dd_stats(&x).lend.waiting, 0);
    ck_assert_int_eq(dd_stats(&x).lend.pages_now, 1);
    dd_check(&x); /* the others, and the checksums of the first one */
    ck_assert_uint_eq(dd_expect(&x, SL_MSG_RESERVED, 2)->matched, 3);
    const dd_said *s = dd_expect(&x, SL_MSG_LEASE, 10);
    ck_assert_uint_eq(s->n, 1);
    dd_lease_end(&x, 10, 7);
    dd_lease_wait(&x, 11, 7, 0, 1, 2); /* they are here: nothing to wait for */
    ck_assert_int_eq(dd_stats(&x).lend.waiting, 0);
    dd_check(&x);
    ck_assert_uint_eq(dd_expect(&x, SL_MSG_LEASE, 11)->n, 2);
    dd_lease_end(&x, 11, 7);
    end_loading();
}
END_TEST

/* A damaged page: the question for it is answered, and so is the request. */
START_TEST(a_load_that_ends_early_answers)
{
    open_loading();
    dd_lease_wait(&x, 10, 7, 0, 1, 2);
    ck_assert(dd_check_one(&x));
    dd_tick(&x, sl_now_ns());
    ck_assert_int_eq(dd_stats(&x).lend.waiting, 1); /* this was the page before it */
    sl_check *k = (sl_check *)sl_mailbox_take(x.d->role.checker.inbox);
    ck_assert(k && k->what == SL_CHECK_KEEP && k->n_pages == 1);
    flip(k->pages[0]);
    sl_checker_post(&x.d->role.checker, k);
    dd_settle(&x);
    ck_assert_int_eq(dd_stats(&x).lend.waiting, 0);
    const dd_said *a = &x.said[x.seen], *b = &x.said[x.seen + 1];
    ck_assert_int_eq(x.n_said - x.seen, 2);
    const dd_said *lease = a->type == SL_MSG_LEASE ? a : b, *reserved = lease == a ? b : a;
    ck_assert(lease->type == SL_MSG_LEASE && lease->n == 0 && lease->rid == 10);
    ck_assert(reserved->type == SL_MSG_RESERVED && reserved->matched == 1);
    x.seen = x.n_said;
    end_loading();
}
END_TEST

typedef enum { ENDS_LEASE, READER_GONE, ABORTED, ROUTER_LOST, DRAINS, ENDS } ending;

/* Whatever ends the wait, nothing stays. */
START_TEST(every_wait_for_a_load_ends)
{
    open_loading();
    dd_lease_wait(&x, 10, 7, 0, 0, 3);
    dd_lease_wait(&x, 11, 8, 0, 1, 2);
    ck_assert_int_eq(dd_stats(&x).lend.waiting, 2);
    switch ((ending)_i) {
    case ENDS_LEASE:
        dd_lease_end(&x, 10, 7);
        dd_lease_end(&x, 11, 8);
        break;
    case READER_GONE:
        dd_reader_gone(&x, 7);
        dd_reader_gone(&x, 8);
        break;
    case ABORTED:
        dd_abort(&x, 2, SL_ERR_CANCELLED);
        break;
    case ROUTER_LOST:
        sl_run_router_down(x.d->run, DD_ROUTER);
        break;
    case DRAINS:
        x.d->role.draining = true;
        break;
    case ENDS:
        break;
    }
    ck_assert_int_eq(dd_stats(&x).lend.waiting, _i <= READER_GONE ? 0 : 2);
    int leases = 0;
    dd_settle(&x);
    for (; x.seen < x.n_said; x.seen++)
        leases += x.said[x.seen].type == SL_MSG_LEASE;
    ck_assert_int_eq(dd_stats(&x).lend.waiting, 0);
    ck_assert_int_eq(leases, _i <= READER_GONE ? 0 : 2);
    dd_reader_gone(&x, 7);
    dd_reader_gone(&x, 8);
    x.d->role.draining = false;
    dd_abort(&x, 2, SL_ERR_CANCELLED);
    dd_drained(&x, 2, DD_WRITER);
    x.seen = x.n_said;
    dd_settle(&x);
    dd_close(&x);
}
END_TEST

/* What no load brings is answered at once, and so is a question that does not wait. */
START_TEST(nothing_is_waited_for_in_vain)
{
    open_loading();
    dd_lease_wait(&x, 10, 7, 1, 0, 2); /* another prompt */
    ck_assert_uint_eq(dd_expect(&x, SL_MSG_LEASE, 10)->n, 0);
    dd_lease_ask(&x, 11, 7, dd_seed, 0, 0, 3, 1000);
    ck_assert_uint_eq(dd_expect(&x, SL_MSG_LEASE, 11)->n, 0);
    for (uint64_t id = 100; id < 100 + 300; id++) /* bounded: the others are answered */
        dd_lease_wait(&x, id, 7, 0, 0, 3);
    ck_assert_int_eq(dd_stats(&x).lend.waiting, 256);
    ck_assert_int_eq(x.n_said - x.seen, 300 - 256);
    dd_reader_gone(&x, 7);
    x.seen = x.n_said;
    dd_check(&x);
    ck_assert_uint_eq(dd_expect(&x, SL_MSG_RESERVED, 2)->matched, 3);
    end_loading();
}
END_TEST

int main(void)
{
    Suite *s = suite_create("lend");
    TCase *t = tcase_create("lend");
    tcase_add_loop_test(t, pages_are_lent_and_given_back, 0, 2);
    tcase_add_test(t, leased_pages_stay_in_place);
    tcase_add_test(t, the_end_of_the_time_frees_nothing_alone);
    tcase_add_loop_test(t, the_reader_goes_while_checksums_are_read, 0, 2);
    tcase_add_test(t, lending_is_bounded);
    tcase_add_loop_test(t, damage_that_a_reader_reports_is_looked_for, 0, 2);
    tcase_add_loop_test(t, damage_in_a_lease_ends_requests_that_hold_it, 0, 2);
    tcase_add_test(t, pages_are_lent_while_others_are_loaded);
    tcase_add_test(t, a_load_that_ends_early_answers);
    tcase_add_loop_test(t, every_wait_for_a_load_ends, 0, ENDS);
    tcase_add_test(t, nothing_is_waited_for_in_vain);
    suite_add_tcase(s, t);
    return run_suite(s);
}
