/*
 * A helper thread that hangs is seen by the age of its work: while it works, and also when it does not wake up for a job. A
 * signal handler that does not return stands for what holds the thread.
 */
#include <check.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "tests/unit/kvstore/mla_geometry.h"
#include "tests/unit/run_suite.h"
#include "worker/checker.h"

enum { PAGES = 4, BACK = 7 };

static sem_t held, go_on;
static sl_arena *arena;
static sl_mailbox *back;
static sl_checker checker;

static void hold(int signal)
{
    (void)signal;
    sem_post(&held);
    while (sem_wait(&go_on) != 0)
        ;
}

static void sleep_ms(long ms)
{
    nanosleep(&(struct timespec){.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000}, NULL);
}

static uint32_t age(void)
{
    return sl_watch_age_ms(&checker.watch, sl_now_ns());
}

static void setup(void)
{
    sl_err err = {0};
    const bool indexer[2] = {true, true};
    sl_geometry g =
        mla_geometry((sl_key){1, 2}, SL_LAYOUT_PAGE_FIRST, SL_ROW_MLA_FP8, SL_INDEX_OFFICIAL, 2, indexer);
    sl_arena_opts o = {.bytes = (uint64_t)(PAGES * g.page_bytes), .lock = SL_OFF, .numa_node = -1};
    ck_assert_msg(sl_arena_create(&g, &o, &arena, &err) == SL_OK, "%s", err.text);
    ck_assert_int_eq(sl_mailbox_create(&back), SL_OK);
    memset(&checker, 0, sizeof checker);
    ck_assert_int_eq(sl_checker_open(&checker, arena, NULL, SL_CFG_VERIFY_ALWAYS, back, BACK), SL_OK);
    ck_assert_int_eq(sl_checker_start(&checker, &err), SL_OK);
    sem_init(&held, 0, 0);
    sem_init(&go_on, 0, 0);
    signal(SIGUSR1, hold);
}

static void teardown(void)
{
    sl_checker_close(&checker);
    sl_mailbox_destroy(back);
    sl_arena_destroy(arena);
}

static void post(void)
{
    static const int32_t pages[PAGES] = {0, 1, 2, 3};
    sl_checker_post(&checker, sl_check_new(SL_CHECK_SEAL, pages, PAGES, NULL));
}

static void take(void)
{
    sl_check *k;
    while (!(k = (sl_check *)sl_mailbox_take(back)))
        sl_mailbox_wait(back, 10);
    sl_check_free(k);
}

START_TEST(a_thread_that_waits_is_young)
{
    post();
    take();
    sleep_ms(60);
    ck_assert_uint_eq(age(), 0);
}
END_TEST

START_TEST(one_that_does_not_wake_up_is_old)
{
    ck_assert_int_eq(pthread_kill(checker.thread, SIGUSR1), 0);
    sem_wait(&held);
    ck_assert_uint_eq(age(), 0); /* no job waits */
    post();
    ck_assert_uint_lt(age(), 40);
    sleep_ms(60);
    ck_assert_uint_ge(age(), 60);
    post(); /* more work does not make it younger */
    ck_assert_uint_ge(age(), 60);
    sem_post(&go_on);
    take();
    take();
    ck_assert_uint_eq(age(), 0);
}
END_TEST

/* Jobs that take turns are progress, as long as turns end. */
START_TEST(turns_are_progress)
{
    sl_watch w = {0};
    sl_watch_post(&w);
    for (int i = 0; i < 3; i++) {
        sleep_ms(30);
        ck_assert_uint_ge(sl_watch_age_ms(&w, sl_now_ns()), 30);
        sl_watch_turn(&w);
        ck_assert_uint_lt(sl_watch_age_ms(&w, sl_now_ns()), 30);
    }
    sl_watch_pause(&w);
    ck_assert_uint_eq(sl_watch_age_ms(&w, sl_now_ns() + 3600000000000u), 0);
    sl_watch_turn(&w);
    ck_assert_uint_ge(sl_watch_age_ms(&w, sl_now_ns() + 1000000000u), 1000);
    sl_watch_back(&w);
    ck_assert_uint_eq(sl_watch_age_ms(&w, sl_now_ns() + 1000000000u), 0);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("worker/watch");
    TCase *t = tcase_create("all");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, a_thread_that_waits_is_young);
    tcase_add_test(t, one_that_does_not_wake_up_is_old);
    tcase_add_test(t, turns_are_progress);
    suite_add_tcase(s, t);
    return run_suite(s);
}
