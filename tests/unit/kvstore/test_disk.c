/*
 * The disk tier beyond the conformance suite: kill -9 at every point of a write, with writes that are torn at any block;
 * damage in every byte of the headers; full, read-only, slow and failing disks; what open refuses; restart, wear,
 * admission, eviction by segment.
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "kvstore/disk_impl.h"
#include "tests/unit/kvstore/test_kvstore.h"

enum { BYTES = 10000, KEYS = 64, SLOT = 4 * 4096, SEGMENT = 4096 + 4 * SLOT, SLOTS = 4 };

static char directory[64], file[128], aside[128];
static sl_tier *tier;
static uint8_t content[KEYS][BYTES], got[KEYS][BYTES];
static struct iovec content_spans[KEYS], got_spans[KEYS];
static sl_tier_page from[KEYS], into[KEYS];
static sl_key keys[KEYS];
static sl_status results[KEYS];

static sl_tier_opts options(int segments)
{
    return (sl_tier_opts){.page_bytes = BYTES,
                          .capacity_bytes = 4096 + (uint64_t)segments * SEGMENT,
                          .segment_bytes = SEGMENT,
                          .directory = directory,
                          .fingerprint = {1, 2},
                          .format = {3, 4}};
}

static void setup(void)
{
    uint64_t seed = 11;
    sl_key_secret(15); /* the memory of offers has few places here: the same ones in every run */
    snprintf(directory, sizeof directory, "build/disk-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(directory));
    snprintf(file, sizeof file, "%s/pages.sluice", directory);
    snprintf(aside, sizeof aside, "%s/pages.damaged", directory);
    for (int p = 0; p < KEYS; p++) {
        keys[p] = (sl_key){rnd(&seed), rnd(&seed)};
        for (int b = 0; b < BYTES; b++)
            content[p][b] = (uint8_t)rnd(&seed);
        content_spans[p] = (struct iovec){content[p], BYTES};
        got_spans[p] = (struct iovec){got[p], BYTES};
        from[p] = (sl_tier_page){&content_spans[p], 1};
        into[p] = (sl_tier_page){&got_spans[p], 1};
    }
    sl_disk_test_hooks = NULL;
}

static void teardown(void)
{
    unlink(file);
    ck_assert_int_eq(rmdir(directory), 0); /* and nothing else was left in it */
}

static void open_tier(int segments)
{
    sl_err err = {0};
    sl_tier_opts o = options(segments);
    ck_assert_msg(sl_tier_open(&sl_tier_disk_ops, &o, &tier, &err) == SL_OK, "%s", err.text);
}

/* Opening must fail with this status and name each of these words. */
static void refused(const sl_tier_opts *o, sl_status want, const char *word, const char *word2)
{
    sl_err err = {0};
    sl_status st = sl_tier_open(&sl_tier_disk_ops, o, &tier, &err);
    ck_assert_msg(st == want, "%s: %s", sl_status_name(st), err.text);
    ck_assert_msg(strstr(err.text, word) && strstr(err.text, word2), "%s", err.text);
}

static void count(sl_tier_req *req, sl_status st)
{
    (void)st;
    (*(int *)req->cookie)++;
}

static int32_t ask(sl_tier_op op, int first, int n)
{
    int calls = 0;
    sl_tier_req r = {
        .op = op, .n = n, .keys = keys + first, .results = results, .done = count, .cookie = &calls};
    r.pages = op == SL_TIER_SET ? from + first : into + first;
    ck_assert_int_eq(sl_tier_submit(tier, &r), SL_OK);
    while (!calls) {
        struct pollfd p = {.fd = sl_tier_fd(tier), .events = POLLIN};
        ck_assert_int_eq(poll(&p, 1, 20000), 1);
        sl_tier_poll(tier);
    }
    int32_t ok = 0;
    for (int i = 0; i < n; i++)
        ok += results[i] == SL_OK;
    return ok;
}

/* The number of pages that arrived, all of them right. */
static int32_t get(int first, int n)
{
    memset(got, 0, sizeof got);
    int32_t ok = ask(SL_TIER_GET, first, n);
    for (int i = 0; i < n; i++)
        if (results[i] == SL_OK)
            ck_assert_mem_eq(got[first + i], content[first + i], BYTES);
    return ok;
}

static sl_tier_stats stats(void)
{
    sl_tier_stats s;
    sl_tier_get_stats(tier, &s);
    return s;
}

static sl_tier_health health(void)
{
    sl_tier_health h;
    sl_tier_get_health(tier, &h);
    return h;
}

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

static void flip(uint64_t at)
{
    uint8_t b;
    int fd = open(file, O_RDWR);
    ck_assert_int_eq((int)pread(fd, &b, 1, (off_t)at), 1);
    b ^= (uint8_t)(1u << at % 8);
    ck_assert_int_eq((int)pwrite(fd, &b, 1, (off_t)at), 1);
    ck_assert_int_eq(fsync(fd), 0);
    close(fd);
}

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

typedef struct device {
    int32_t read, write; /* what the operations give instead of their bytes; 0: nothing changes */
    int sleep_ms;
    int open_error;
    const char *open_step;
} device;

static int32_t device_result(void *ctx, sl_disk_op_kind kind, int32_t res)
{
    device *d = ctx;
    int32_t other = __atomic_load_n(kind == SL_DISK_READ ? &d->read : &d->write, __ATOMIC_RELAXED);
    if (d->sleep_ms)
        poll(NULL, 0, d->sleep_ms);
    return other ? other : res;
}

static int device_open(void *ctx, const char *step)
{
    const device *d = ctx;
    return d->open_step && strcmp(d->open_step, step) == 0 ? d->open_error : 0;
}

static device dev;
static const sl_disk_hooks device_hooks = {.ctx = &dev, .result = device_result, .open_errno = device_open};

static void set_device(int32_t reads, int32_t writes)
{
    __atomic_store_n(&dev.read, reads, __ATOMIC_RELAXED);
    __atomic_store_n(&dev.write, writes, __ATOMIC_RELAXED);
}

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

/* ---- what open refuses ---- */

START_TEST(another_store_is_refused_and_kept)
{
    open_tier(4);
    ask(SL_TIER_SET, 0, 4);
    sl_tier_opts o = options(4);
    refused(&o, SL_ERR_REFUSED, directory, "in use by another process");
    sl_tier_close(tier);
    o.fingerprint.lo = 9;
    refused(&o, SL_ERR_REFUSED, file, "fingerprint");
    o = options(4);
    o.format.hi = 9;
    refused(&o, SL_ERR_REFUSED, file, "format");
    o = options(4);
    o.page_bytes = BYTES + 1;
    refused(&o, SL_ERR_REFUSED, file, "page_bytes");
    o = options(4);
    open_tier(4);
    ck_assert_int_eq(get(0, 4), 4);
    sl_tier_close(tier);
}
END_TEST

static void another_version(void)
{
    uint8_t *block = aligned_alloc(4096, 4096);
    int fd = open(file, O_RDWR);
    ck_assert_int_eq((int)pread(fd, block, 4096, 0), 4096);
    block[8] = 2;
    uint32_t crc = sl_crc32c(0, block, 68);
    memcpy(block + 68, &crc, 4);
    ck_assert_int_eq((int)pwrite(fd, block, 4096, 0), 4096);
    close(fd);
    free(block);
}

static void write_bytes(const void *bytes, size_t n)
{
    int fd = open(file, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    ck_assert_int_eq((int)write(fd, bytes, n), (int)n);
    close(fd);
}

static void make_empty(void)
{
    write_bytes("", 0);
}

static void make_short(void)
{
    write_bytes("short", 5);
}

static void make_text(void)
{
    static char text[9000];
    memset(text, 'x', sizeof text);
    write_bytes(text, sizeof text);
}

static void make_directory(void)
{
    unlink(file);
    ck_assert_int_eq(mkdir(file, 0700), 0);
}

static void make_link(void)
{
    unlink(file);
    ck_assert_int_eq(symlink("/dev/null", file), 0);
}

static void make_dangling_link(void)
{
    unlink(file);
    ck_assert_int_eq(symlink("nowhere", file), 0);
}

static void make_pipe(void)
{
    unlink(file);
    ck_assert_int_eq(mkfifo(file, 0600), 0);
}

static void make_socket(void)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    unlink(file);
    ck_assert_uint_lt(strlen(file), sizeof at.sun_path);
    memcpy(at.sun_path, file, strlen(file) + 1);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&at, sizeof at), 0);
    close(fd);
}

static void make_zeros(void)
{
    int fd = open(file, O_WRONLY);
    ck_assert_int_eq(ftruncate(fd, 0), 0);
    ck_assert_int_eq(ftruncate(fd, 5 * SEGMENT), 0);
    close(fd);
}

static void (*const unreadable[])(void) = {another_version, make_empty, make_short,         make_text,
                                           make_directory,  make_link,  make_dangling_link, make_pipe,
                                           make_socket,     make_zeros};

/* Whatever has the name of the store: it is renamed, the tier works, and so does the next start. */
START_TEST(what_cannot_be_read_is_set_aside)
{
    struct stat before, after;
    open_tier(4);
    ask(SL_TIER_SET, 0, 4);
    ck_assert(!stats().set_aside);
    sl_tier_close(tier);
    unreadable[_i]();
    ck_assert_int_eq(lstat(file, &before), 0);
    open_tier(4);
    ck_assert(stats().set_aside);
    ck_assert_int_eq(lstat(aside, &after), 0);
    ck_assert_uint_eq(before.st_ino, after.st_ino);
    ck_assert_int_eq(get(0, 4), 0);
    ck_assert_int_eq(ask(SL_TIER_SET, 0, 4), 4);
    sl_tier_close(tier);
    open_tier(4);
    ck_assert(!stats().set_aside);
    ck_assert_int_eq(get(0, 4), 4);
    sl_tier_close(tier);
    if (S_ISDIR(after.st_mode)) {
        flip(0); /* an older directory cannot be replaced */
        sl_tier_opts o = options(4);
        refused(&o, SL_ERR_IO, file, "pages.damaged");
        flip(0);
        ck_assert_int_eq(rmdir(aside), 0);
    } else {
        make_empty(); /* an older file is replaced */
        open_tier(4);
        sl_tier_close(tier);
        ck_assert_int_eq(lstat(aside, &after), 0);
        ck_assert(S_ISREG(after.st_mode) && !after.st_size);
        unlink(aside);
    }
}
END_TEST

/* A file that was cut off keeps the pages that are left. */
START_TEST(a_file_that_was_cut_off_is_used)
{
    open_tier(4);
    ask(SL_TIER_SET, 0, 12);
    sl_tier_close(tier);
    ck_assert_int_eq(truncate(file, 4096 + SEGMENT + SEGMENT / 2), 0);
    open_tier(4);
    ck_assert(!stats().set_aside);
    int32_t left = get(0, 12);
    ck_assert(left > 0 && left < 12);
    ck_assert_int_eq(ask(SL_TIER_SET, 0, 12), 12);
    ck_assert_int_eq(get(0, 12), 12);
    sl_tier_close(tier);
}
END_TEST

START_TEST(bad_directories)
{
    sl_tier_opts o = options(4);
    bool root = geteuid() == 0;
    o.directory = NULL;
    refused(&o, SL_ERR_INVALID, "directory", "mandatory");
    o.directory = "build/no-such-directory";
    refused(&o, SL_ERR_NOT_FOUND, "no-such-directory", "No such file");
    o.directory = root ? directory : "/";
    if (root)
        ck_assert_int_eq(chown(directory, 65534, 65534), 0);
    refused(&o, SL_ERR_REFUSED, o.directory, "belongs to user");
    if (root)
        ck_assert_int_eq(chown(directory, 0, 0), 0);
    o.directory = directory;
    ck_assert_int_eq(chmod(directory, 0770), 0);
    refused(&o, SL_ERR_REFUSED, directory, "written by other users");
    ck_assert_int_eq(chmod(directory, 0700), 0);
    sl_disk_test_hooks = &device_hooks;
    dev = (device){.open_step = "open", .open_error = EINVAL};
    refused(&o, SL_ERR_UNSUPPORTED, file, "O_DIRECT");
    dev.open_error = EROFS;
    refused(&o, SL_ERR_IO, file, strerror(EROFS));
    dev = (device){.open_step = "fallocate", .open_error = EOPNOTSUPP};
    refused(&o, SL_ERR_UNSUPPORTED, file, "capacity_bytes");
    dev.open_error = ENOSPC;
    refused(&o, SL_ERR_EXHAUSTED, file, "capacity_bytes");
}
END_TEST

START_TEST(a_directory_without_write_permission)
{
    int status;
    if (geteuid() == 0)
        ck_assert_int_eq(chown(directory, 65534, 65534), 0);
    ck_assert_int_eq(chmod(directory, 0500), 0);
    pid_t pid = fork();
    if (pid == 0) {
        sl_tier_opts o = options(4);
        /* the path as seen by a user who may not search the folders above */
        ck_assert_int_eq(chdir(directory), 0);
        o.directory = ".";
        if (geteuid() == 0)
            ck_assert_int_eq(setuid(65534), 0);
        refused(&o, SL_ERR_IO, "./pages.sluice", strerror(EACCES));
        _exit(7);
    }
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 7);
}
END_TEST

START_TEST(a_full_disk_refuses_the_start)
{
    sl_tier_opts o = options(4);
    o.capacity_bytes = (uint64_t)1 << 60;
    o.segment_bytes = (uint64_t)1 << 34;
    refused(&o, SL_ERR_EXHAUSTED, file, "free");
    o.capacity_bytes = 0;
    refused(&o, SL_ERR_INVALID, "capacity_bytes", "mandatory");
    o.capacity_bytes = 4096 + SLOT;
    refused(&o, SL_ERR_INVALID, "capacity_bytes", "at least");
    signal(SIGXFSZ, SIG_IGN);
    struct rlimit lim;
    ck_assert_int_eq(getrlimit(RLIMIT_FSIZE, &lim), 0);
    struct rlimit small = {2 * SEGMENT, lim.rlim_max};
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &small), 0);
    o = options(4);
    refused(&o, SL_ERR_EXHAUSTED, file, strerror(EFBIG));
    ck_assert_int_eq(setrlimit(RLIMIT_FSIZE, &lim), 0);
    open_tier(4);
    sl_tier_close(tier);
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
    tcase_add_test(t, another_store_is_refused_and_kept);
    tcase_add_loop_test(t, what_cannot_be_read_is_set_aside, 0, SL_COUNT(unreadable));
    tcase_add_test(t, a_file_that_was_cut_off_is_used);
    tcase_add_test(t, bad_directories);
    tcase_add_test(t, a_directory_without_write_permission);
    tcase_add_test(t, a_full_disk_refuses_the_start);
    suite_add_tcase(s, t);
    return run_suite(s);
}
