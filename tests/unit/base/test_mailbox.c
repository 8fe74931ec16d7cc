/*
 * The mailbox: the messages of a producer keep their order, no message is lost, and no wake-up is lost when the
 * consumer really sleeps (several producers, and a consumer that blocks each time the mailbox is empty; a lost signal
 * appears as a timeout).
 */
#include <poll.h>
#include <pthread.h>
#include <unistd.h>
#include <sched.h>
#include <stdatomic.h>

#include "base/log.h"
#include "base/mailbox.h"
#include "tests/unit/run_suite.h"

enum { PRODUCERS = 4, PER_PRODUCER = 20000 };

typedef struct item {
    sl_mail mail;
    int producer, seq;
} item;

typedef struct job {
    sl_mailbox *mb;
    item *items;
    int producer;
} job;

static void *produce(void *arg)
{
    job *j = arg;
    for (int i = 0; i < PER_PRODUCER; i++) {
        item *it = &j->items[i];
        it->producer = j->producer;
        it->seq = i;
        sl_mailbox_post(j->mb, &it->mail);
        if (i % 64 == 0)
            sched_yield(); /* lets the consumer empty the mailbox and sleep */
    }
    return NULL;
}

static void run_many(bool by_fd)
{
    sl_mailbox *mb;
    ck_assert_int_eq(sl_mailbox_create(&mb), SL_OK);
    pthread_t threads[PRODUCERS];
    job jobs[PRODUCERS];
    for (int p = 0; p < PRODUCERS; p++) {
        jobs[p] = (job){mb, calloc(PER_PRODUCER, sizeof(item)), p};
        pthread_create(&threads[p], NULL, produce, &jobs[p]);
    }
    int next[PRODUCERS] = {0}, got = 0;
    while (got < PRODUCERS * PER_PRODUCER) {
        sl_mail *m = sl_mailbox_take(mb);
        if (m) {
            item *it = (item *)m;
            ck_assert_int_eq(it->seq, next[it->producer]);
            next[it->producer]++;
            got++;
            continue;
        }
        if (by_fd) {
            struct pollfd p = {.fd = sl_mailbox_fd(mb), .events = POLLIN};
            ck_assert_msg(poll(&p, 1, 20000) == 1, "wake-up lost after %d messages", got);
            sl_mailbox_ack(mb);
        } else {
            uint64_t t0 = sl_now_ns();
            sl_mailbox_wait(mb, 20000);
            ck_assert_msg(sl_now_ns() - t0 < 15000000000u, "wake-up lost after %d messages", got);
        }
    }
    for (int p = 0; p < PRODUCERS; p++) {
        pthread_join(threads[p], NULL);
        free(jobs[p].items);
    }
    ck_assert_ptr_null(sl_mailbox_take(mb));
    sl_mailbox_destroy(mb);
}

START_TEST(many_producers_wait)
{
    run_many(false);
}
END_TEST

START_TEST(many_producers_fd)
{
    run_many(true);
}
END_TEST

/*
 * One message at a time. The delay between the take of a message and the next post changes slowly, so that posts hit
 * every moment between the consumer's "found nothing" and its sleep, many times.
 */
enum { PING_PONG = 100000 };
static atomic_int taken;

static void *produce_singly(void *arg)
{
    sl_mailbox *mb = arg;
    static sl_mail mails[2];
    for (int i = 0; i < PING_PONG; i++) {
        while (atomic_load(&taken) < i)
            ;
        for (volatile int spin = i % 127; spin > 0; spin--)
            ;
        sl_mailbox_post(mb, &mails[i % 2]);
    }
    return NULL;
}

START_TEST(no_lost_wakeup)
{
    sl_mailbox *mb;
    pthread_t thread;
    ck_assert_int_eq(sl_mailbox_create(&mb), SL_OK);
    atomic_store(&taken, 0);
    pthread_create(&thread, NULL, produce_singly, mb);
    struct pollfd p = {.fd = sl_mailbox_fd(mb), .events = POLLIN};
    for (int got = 0; got < PING_PONG;) {
        if (sl_mailbox_take(mb)) {
            atomic_store(&taken, ++got);
            for (volatile int spin = got % 509; spin > 0; spin--)
                ;
            continue;
        }
        ck_assert_msg(poll(&p, 1, 20000) == 1, "wake-up lost after %d messages", got);
        sl_mailbox_ack(mb);
    }
    pthread_join(thread, NULL);
    sl_mailbox_destroy(mb);
}
END_TEST

START_TEST(wait_without_draining)
{
    sl_mailbox *mb;
    ck_assert_int_eq(sl_mailbox_create(&mb), SL_OK);
    sl_mail a, b, c;
    sl_mailbox_post(mb, &a);
    sl_mailbox_post(mb, &b);
    sl_mailbox_post(mb, &c);
    for (int i = 0; i < 3; i++) {
        uint64_t t0 = sl_now_ns();
        sl_mailbox_wait(mb, 60000);
        ck_assert(sl_now_ns() - t0 < 30000000000u);
        sl_mail *m = sl_mailbox_take(mb);
        ck_assert_ptr_eq(m, i == 0 ? &a : i == 1 ? &b : &c);
    }
    ck_assert_ptr_null(sl_mailbox_take(mb));
    sl_mailbox_post(mb, &a); /* a node may be posted again once taken */
    ck_assert_ptr_eq(sl_mailbox_take(mb), &a);
    sl_mailbox_destroy(mb);
    sl_mailbox_destroy(NULL);
}
END_TEST

START_TEST(another_descriptor_ends_the_wait)
{
    sl_mailbox *mb;
    int fds[2];
    char byte = 0;
    ck_assert_int_eq(sl_mailbox_create(&mb), SL_OK);
    ck_assert_int_eq(pipe(fds), 0);
    ck_assert_int_eq(write(fds[1], &byte, 1), 1);
    sl_mailbox_wait_or(mb, fds[0], 60000); /* returns at once, or the test runs into its limit */
    ck_assert_int_eq(read(fds[0], &byte, 1), 1);
    sl_mail mail;
    sl_mailbox_post(mb, &mail);
    sl_mailbox_wait_or(mb, fds[0], 60000);
    ck_assert_ptr_eq(sl_mailbox_take(mb), &mail);
    close(fds[0]);
    close(fds[1]);
    sl_mailbox_destroy(mb);
}
END_TEST

START_TEST(wait_times_out)
{
    sl_mailbox *mb;
    ck_assert_int_eq(sl_mailbox_create(&mb), SL_OK);
    uint64_t t0 = sl_now_ns();
    sl_mailbox_wait(mb, 50);
    ck_assert(sl_now_ns() - t0 >= 45000000u);
    ck_assert_ptr_null(sl_mailbox_take(mb));
    sl_mailbox_destroy(mb);
}
END_TEST

START_TEST(signals_only_when_asleep)
{
    sl_mailbox *mb;
    ck_assert_int_eq(sl_mailbox_create(&mb), SL_OK);
    ck_assert_ptr_null(sl_mailbox_take(mb)); /* empty: the next post must signal */
    sl_mail a, b;
    struct pollfd p = {.fd = sl_mailbox_fd(mb), .events = POLLIN};
    sl_mailbox_post(mb, &a);
    ck_assert_int_eq(poll(&p, 1, 0), 1);
    sl_mailbox_ack(mb);
    sl_mailbox_post(mb, &b); /* consumer awake: no syscall, no signal */
    ck_assert_int_eq(poll(&p, 1, 0), 0);
    ck_assert_ptr_eq(sl_mailbox_take(mb), &a);
    ck_assert_ptr_eq(sl_mailbox_take(mb), &b);
    ck_assert_ptr_null(sl_mailbox_take(mb));
    sl_mailbox_destroy(mb);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("mailbox");
    TCase *t = tcase_create("mailbox");
    tcase_set_timeout(t, 120);
    tcase_add_test(t, many_producers_wait);
    tcase_add_test(t, many_producers_fd);
    tcase_add_test(t, no_lost_wakeup);
    tcase_add_test(t, wait_without_draining);
    tcase_add_test(t, another_descriptor_ends_the_wait);
    tcase_add_test(t, wait_times_out);
    tcase_add_test(t, signals_only_when_asleep);
    suite_add_tcase(s, t);
    return run_suite(s);
}
