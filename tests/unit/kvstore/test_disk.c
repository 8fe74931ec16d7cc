/*
 * The disk tier beyond the conformance suite (test_tier.c): kill -9 at every point of a write, with writes that are torn at any block;
 * damage in every byte of the headers; slow and failing disks and some that hang; restart, wear, admission, eviction by segment.
 * test_disk_open.c has what the start refuses or sets aside.
 */
#include <errno.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "tests/unit/kvstore/disk_pages.h"

START_TEST(restart_finds_the_pages)
{
    open_tier(4);
    ck_assert_int_eq(ask(SL_TIER_SET, 0, 10), 10);
    ck_assert_int_eq(ask(SL_TIER_REMOVE, 3, 1), 1);
    uint64_t written = stats().bytes_written;
    ck_assert_uint_eq(written, 10 * SLOT + 3 * 4096 + 4096); /* records, segment headers, one removal */
    sl_tier_close(tier);
    open_tier(4);
    ck_assert_uint_eq(stats().recovered, 9);
    ck_assert_uint_ge(stats().bytes_written_ever, 10 * SLOT);
    ck_assert_uint_eq(stats().bytes_written, 0);
    ck_assert_int_eq(get(0, 11), 9);
    ck_assert_int_eq(results[3], SL_ERR_NOT_FOUND);
    ck_assert_int_eq(ask(SL_TIER_SET, 3, 1), 1);
    sl_tier_close(tier);
    open_tier(6); /* grows */
    ck_assert_int_eq(get(0, 10), 10);
    sl_tier_close(tier);
    open_tier(1); /* shrinks: what was after the end is forgotten */
    ck_assert_int_eq(get(0, 10), (int)stats().recovered);
    sl_tier_close(tier);
    struct stat st;
    ck_assert_int_eq(stat(file, &st), 0);
    ck_assert_int_le((int)st.st_size, 4096 + SEGMENT);
    ck_assert_int_eq((int)(st.st_mode & 0777), 0600);
}
END_TEST

START_TEST(eviction_by_segment)
{
    open_tier(3);
    ask(SL_TIER_SET, 0, SLOTS);
    ask(SL_TIER_SET, SLOTS, SLOTS);
    ask(SL_TIER_SET, 2 * SLOTS, SLOTS);
    get(0, SLOTS); /* the first segment was used again: the second one is evicted */
    ask(SL_TIER_SET, 3 * SLOTS, 1);
    ck_assert_int_eq(get(0, 4 * SLOTS), 2 * SLOTS + 1);
    ck_assert_int_eq(results[SLOTS], SL_ERR_NOT_FOUND);
    ck_assert_uint_eq(stats().evictions, SLOTS);
    sl_tier_close(tier);
    open_tier(3); /* the records of the old generation are not found again */
    ck_assert_uint_eq(stats().recovered, 2 * SLOTS + 1);
    sl_tier_close(tier);
}
END_TEST

START_TEST(admission_on_the_second_offer)
{
    sl_err err = {0};
    sl_tier_opts o = options(4);
    o.second_use = true;
    ck_assert_int_eq(sl_tier_open(&sl_tier_disk_ops, &o, &tier, &err), SL_OK);
    ck_assert_int_eq(ask(SL_TIER_SET, 0, 6), 0);
    for (int i = 0; i < 6; i++)
        ck_assert_int_eq(results[i], SL_AGAIN);
    ck_assert_uint_eq(stats().not_stored_admission, 6);
    ck_assert_uint_eq(stats().bytes_written, 0);
    ck_assert_int_eq(ask(SL_TIER_SET, 0, 6), 6);
    ck_assert_int_eq(get(0, 6), 6);
    sl_tier_close(tier);
}
END_TEST

/* ---- kill -9 ---- */

typedef struct death {
    sl_disk_op_kind kind;
    int nth, blocks; /* blocks: of the write that reach the disk; -1: dies after the write */
} death;

static void die(death *d, sl_disk_op_kind kind, int blocks)
{
    if (kind == d->kind && (blocks < 0) == (d->blocks < 0) && d->nth-- == 0)
        raise(SIGKILL);
}

static void before_write(void *ctx, sl_disk_op_kind kind, int fd, uint64_t offset, const uint8_t *bytes,
                         size_t n)
{
    death *d = ctx;
    if (kind == d->kind && d->blocks > 0 && d->nth == 0 && (size_t)d->blocks * 4096 <= n)
        ck_assert_int_eq((int)pwrite(fd, bytes, (size_t)d->blocks * 4096, (off_t)offset), d->blocks * 4096);
    die(d, kind, 0);
}

static void after_write(void *ctx, sl_disk_op_kind kind)
{
    die(ctx, kind, -1);
}

/* Stores and removes pages, through several evictions, and reports the keys of each step that is complete. */
static void child(const death *d, int ack, int segments, int n)
{
    death mine = *d;
    sl_disk_hooks h = {.ctx = &mine, .before = before_write, .after = after_write};
    sl_disk_test_hooks = &h;
    open_tier(segments);
    for (uint8_t i = 0; i + 3 <= n; i = (uint8_t)(i + 3)) {
        ask(SL_TIER_SET, i, 3);
        uint8_t done[2] = {i, 0};
        ck_assert_int_eq((int)write(ack, done, 2), 2);
        ask(SL_TIER_REMOVE, i + 1, 1);
        done[1] = 1;
        ck_assert_int_eq((int)write(ack, done, 2), 2);
    }
    sl_tier_close(tier);
    _exit(0);
}

/* False: the process ended before it came to this point. */
static bool killed_at(const death *d, int segments, int n, bool stored[KEYS], bool removed[KEYS])
{
    int ack[2], status;
    uint8_t step[2];
    unlink(file);
    ck_assert_int_eq(pipe(ack), 0);
    pid_t pid = fork();
    if (pid == 0)
        child(d, ack[1], segments, n);
    close(ack[1]);
    memset(stored, 0, KEYS);
    memset(removed, 0, KEYS);
    while (read(ack[0], step, 2) == 2) {
        for (int i = 0; i < 3; i++)
            stored[step[0] + i] = true;
        removed[step[0] + 1] = removed[step[0] + 1] || step[1];
    }
    close(ack[0]);
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
}

static void check_after_kill(int segments, int n, const bool stored[KEYS], const bool removed[KEYS])
{
    open_tier(segments);
    uint64_t there = stats().pages;
    int32_t arrived = get(0, n);
    ck_assert_int_eq(arrived, (int32_t)there); /* what is offered is complete, also after a torn write */
    for (int i = 0; i < n; i++) {
        if (removed[i])
            ck_assert_int_eq(results[i], SL_ERR_NOT_FOUND);
        if (stored[i] && i % 3 != 1 && segments >= n / SLOTS + 1)
            ck_assert_int_eq(results[i],
                             SL_OK); /* there was room for all: nothing that was reported is lost */
    }
    ck_assert_uint_eq(stats().damaged, 0);
    ck_assert_int_eq(ask(SL_TIER_SET, 0, 2), 2); /* and it continues to work */
    ck_assert_int_eq(get(0, 2), 2);
    sl_tier_close(tier);
}

static void kill_everywhere(int segments, int n)
{
    static const int record_cuts[] = {0, 1, 2, 3, 4, -1}, block_cuts[] = {0, 1, -1};
    bool stored[KEYS], removed[KEYS];
    int kills = 0;
    for (sl_disk_op_kind kind = SL_DISK_WRITE; kind <= SL_DISK_SEGMENT; kind++)
        for (int nth = 0; nth < 30; nth += nth < 6 ? 1 : 7)
            for (size_t c = 0; c < (kind == SL_DISK_WRITE ? SL_COUNT(record_cuts) : SL_COUNT(block_cuts));
                 c++) {
                death d = {kind, nth, kind == SL_DISK_WRITE ? record_cuts[c] : block_cuts[c]};
                if (!killed_at(&d, segments, n, stored, removed))
                    continue;
                kills++;
                check_after_kill(segments, n, stored, removed);
            }
    ck_assert_int_gt(kills, 60);
}

START_TEST(kill_at_every_point_with_room)
{
    kill_everywhere(12, 36);
}
END_TEST

START_TEST(kill_at_every_point_with_evictions)
{
    kill_everywhere(3, 36);
}
END_TEST

/* ---- damage ---- */

/* Every byte of every field of the record's header, and bytes of the page. */
START_TEST(a_flipped_bit_is_never_a_page)
{
    enum { RECORD = 4096 + 4096, FIELDS = 8 + 4 + 4 + 4 * 8 + 3 * 16 + 8 + 4 + 4 };
    open_tier(4);
    ask(SL_TIER_SET, 0, 1);
    for (int b = 0; b < FIELDS + 40; b++) {
        uint64_t at = b < FIELDS ? RECORD + (uint64_t)b : RECORD + 4096 + (uint64_t)(b - FIELDS) * 256;
        flip(at);
        ck_assert_int_eq(get(0, 1), 0);
        ck_assert_int_eq(results[0], SL_ERR_CORRUPT);
        sl_tier_close(tier);
        open_tier(4);
        ck_assert_int_eq(get(0, 1), 0);
        flip(at); /* right again, so that the next byte is the only one that is wrong */
        sl_tier_close(tier);
        open_tier(4);
        ck_assert_int_eq(get(0, 1), 1);
    }
    sl_tier_close(tier);
    for (uint64_t b = 0; b < 52; b++) { /* the segment's header */
        flip(4096 + b);
        open_tier(4);
        ck_assert_int_eq(get(0, 1), 0);
        sl_tier_close(tier);
        flip(4096 + b);
    }
    for (uint64_t b = 0; b < 72;
         b++) { /* the store's header, checksum included: set aside, and nothing is lost */
        flip(b);
        open_tier(4);
        ck_assert(stats().set_aside);
        ck_assert_int_eq(get(0, 1), 0);
        sl_tier_close(tier);
        ck_assert_int_eq(rename(aside, file), 0);
        flip(b);
    }
    open_tier(4);
    ck_assert_int_eq(get(0, 1), 1);
    sl_tier_close(tier);
}
END_TEST

/* ---- the device ---- */

START_TEST(writes_fail)
{
    sl_disk_test_hooks = &device_hooks;
    open_tier(4);
    ask(SL_TIER_SET, 0, 4);
    set_device(0, -ENOSPC);
    ck_assert_int_eq(ask(SL_TIER_SET, 4, 8), 0);
    for (int i = 0; i < 8; i++)
        ck_assert_int_eq(results[i], SL_ERR_IO);
    ck_assert_uint_eq(stats().not_stored_io, 8);
    ck_assert_uint_ge(stats().io_errors, 3);
    ck_assert_int_eq(health().state, SL_TIER_DEGRADED);
    ck_assert_ptr_nonnull(strstr(health().reason, strerror(ENOSPC)));
    ck_assert_ptr_nonnull(strstr(health().reason, "pages.sluice"));
    ck_assert_int_eq(get(0, 4), 4); /* reading still works */
    set_device(0, 0);
    poll(NULL, 0, 5100); /* it is tried again after 5 s */
    ck_assert_int_ge(ask(SL_TIER_SET, 4, 8), 1);
    ck_assert_int_eq(ask(SL_TIER_SET, 4, 8), 8);
    ck_assert_int_eq(health().state, SL_TIER_HEALTHY);
    ck_assert_int_eq(get(0, 12), 12);
    sl_tier_close(tier);
}
END_TEST

START_TEST(reads_fail_or_are_short)
{
    sl_disk_test_hooks = &device_hooks;
    open_tier(8);
    ask(SL_TIER_SET, 0, 20);
    set_device(4096, 0);
    ck_assert_int_eq(get(0, 1), 0);
    ck_assert_int_eq(results[0], SL_ERR_CORRUPT);
    ck_assert_int_eq(health().state, SL_TIER_HEALTHY);
    set_device(-EIO, 0);
    ck_assert_int_eq(get(1, 19), 0);
    ck_assert_int_eq(results[0], SL_ERR_IO);
    ck_assert_int_eq(health().state, SL_TIER_FAILED);
    set_device(0, 0);
    sl_tier_close(tier);
    open_tier(8); /* the device works again: nothing was lost */
    ck_assert_int_eq(get(0, 20), 20);
    sl_tier_close(tier);
}
END_TEST

START_TEST(a_slow_device_is_degraded)
{
    sl_err err = {0};
    sl_tier_opts o = options(4);
    int calls = 0;
    o.slow_ms = 50;
    sl_disk_test_hooks = &device_hooks;
    ck_assert_int_eq(sl_tier_open(&sl_tier_disk_ops, &o, &tier, &err), SL_OK);
    dev.sleep_ms = 400;
    sl_tier_req r = {.op = SL_TIER_SET, .n = 1, .keys = keys, .pages = from, .results = results};
    r.done = count, r.cookie = &calls;
    ck_assert_int_eq(sl_tier_submit(tier, &r), SL_OK);
    poll(NULL, 0, 200);
    ck_assert_int_eq(health().state, SL_TIER_DEGRADED);
    ck_assert_ptr_nonnull(strstr(health().reason, "in flight"));
    while (!calls)
        sl_tier_poll(tier);
    ck_assert_int_eq(results[0], SL_OK);
    ck_assert_int_eq(health().state, SL_TIER_HEALTHY);
    sl_tier_close(tier);
}
END_TEST

/* The kernel never ends a read: a pipe without a writer stands for the disk. A stop is bounded all the same, every request
 * ends, and no buffer of a request is touched afterwards. */
START_TEST(a_device_that_hangs_does_not_hold_the_end)
{
    int ends[2], calls[3] = {0};
    sl_err err = {0};
    sl_tier_opts o = options(4);
    o.slow_ms = 300;
    ck_assert_int_eq(sl_tier_open(&sl_tier_disk_ops, &o, &tier, &err), SL_OK);
    ask(SL_TIER_SET, 0, 8);
    sl_disk_tier *t = (sl_disk_tier *)tier;
    int disk = t->file.fd;
    ck_assert_int_eq(pipe(ends), 0);
    t->file.fd = ends[0];
    sl_tier_req r[3];
    sl_status st[3][8];
    for (int i = 0; i < 3; i++) {
        r[i] = (sl_tier_req){.op = i == 2 ? SL_TIER_SET : SL_TIER_GET, .n = 4, .keys = keys + 4 * i};
        r[i].pages = i == 2 ? from + 8 : into + 4 * i;
        r[i].results = st[i];
        r[i].done = count;
        r[i].cookie = &calls[i];
        if (i < 2 || _i)
            ck_assert_int_eq(sl_tier_submit(tier, &r[i]), SL_OK);
    }
    poll(NULL, 0, 100);
    uint64_t begin = sl_now_ns();
    sl_tier_close(tier);
    ck_assert_uint_ge(sl_now_ns() - begin, 200000000u);
    ck_assert_uint_lt(sl_now_ns() - begin, 5000000000u);
    ck_assert(calls[0] == 1 && calls[1] == 1 && calls[2] == _i);
    for (int i = 0; i < 4; i++)
        ck_assert(st[0][i] != SL_OK && st[1][i] != SL_OK);
    memset(got, 7, sizeof got);
    static uint8_t late[64 << 10];
    (void)!write(ends[1], late, sizeof late); /* the kernel comes back after all */
    poll(NULL, 0, 100);
    for (size_t i = 0; i < sizeof got; i++)
        ck_assert_uint_eq(((uint8_t *)got)[i], 7);
    close(disk);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("disk");
    TCase *t = tcase_create("disk");
    tcase_set_timeout(t, 300);
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, restart_finds_the_pages);
    tcase_add_test(t, eviction_by_segment);
    tcase_add_test(t, admission_on_the_second_offer);
    tcase_add_test(t, kill_at_every_point_with_room);
    tcase_add_test(t, kill_at_every_point_with_evictions);
    tcase_add_test(t, a_flipped_bit_is_never_a_page);
    tcase_add_test(t, writes_fail);
    tcase_add_test(t, reads_fail_or_are_short);
    tcase_add_test(t, a_slow_device_is_degraded);
    tcase_add_loop_test(t, a_device_that_hangs_does_not_hold_the_end, 0, 2);
    suite_add_tcase(s, t);
    return run_suite(s);
}
