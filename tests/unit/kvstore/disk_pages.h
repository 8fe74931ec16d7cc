/*
 * Pages in a disk tier in a directory of its own, for the suites of the tier (test_disk.c, test_disk_open.c): one tier at a time,
 * pages whose bytes follow from their number, requests that are waited for.
 */
#ifndef SL_TEST_DISK_PAGES_H
#define SL_TEST_DISK_PAGES_H

#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
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

static inline sl_tier_opts options(int segments)
{
    return (sl_tier_opts){.page_bytes = BYTES,
                          .capacity_bytes = 4096 + (uint64_t)segments * SEGMENT,
                          .segment_bytes = SEGMENT,
                          .directory = directory,
                          .fingerprint = {1, 2},
                          .format = {3, 4}};
}

static inline void setup(void)
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

static inline void teardown(void)
{
    unlink(file);
    ck_assert_int_eq(rmdir(directory), 0); /* and nothing else was left in it */
}

static inline void open_tier(int segments)
{
    sl_err err = {0};
    sl_tier_opts o = options(segments);
    ck_assert_msg(sl_tier_open(&sl_tier_disk_ops, &o, &tier, &err) == SL_OK, "%s", err.text);
}

/* Opening must fail with this status and name each of these words. */
static inline void refused(const sl_tier_opts *o, sl_status want, const char *word, const char *word2)
{
    sl_err err = {0};
    sl_status st = sl_tier_open(&sl_tier_disk_ops, o, &tier, &err);
    ck_assert_msg(st == want, "%s: %s", sl_status_name(st), err.text);
    ck_assert_msg(strstr(err.text, word) && strstr(err.text, word2), "%s", err.text);
}

static inline void count(sl_tier_req *req, sl_status st)
{
    (void)st;
    (*(int *)req->cookie)++;
}

static inline int32_t ask(sl_tier_op op, int first, int n)
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
static inline int32_t get(int first, int n)
{
    memset(got, 0, sizeof got);
    int32_t ok = ask(SL_TIER_GET, first, n);
    for (int i = 0; i < n; i++)
        if (results[i] == SL_OK)
            ck_assert_mem_eq(got[first + i], content[first + i], BYTES);
    return ok;
}

static inline sl_tier_stats stats(void)
{
    sl_tier_stats s;
    sl_tier_get_stats(tier, &s);
    return s;
}

static inline sl_tier_health health(void)
{
    sl_tier_health h;
    sl_tier_get_health(tier, &h);
    return h;
}

/* ---- the file and the device ---- */

static inline void flip(uint64_t at)
{
    uint8_t b;
    int fd = open(file, O_RDWR);
    ck_assert_int_eq((int)pread(fd, &b, 1, (off_t)at), 1);
    b ^= (uint8_t)(1u << at % 8);
    ck_assert_int_eq((int)pwrite(fd, &b, 1, (off_t)at), 1);
    ck_assert_int_eq(fsync(fd), 0);
    close(fd);
}

typedef struct device {
    int32_t read, write; /* what the operations give instead of their bytes; 0: nothing changes */
    int sleep_ms;
    int open_error;
    const char *open_step;
} device;

static inline int32_t device_result(void *ctx, sl_disk_op_kind kind, int32_t res)
{
    device *d = ctx;
    int32_t other = __atomic_load_n(kind == SL_DISK_READ ? &d->read : &d->write, __ATOMIC_RELAXED);
    if (d->sleep_ms)
        poll(NULL, 0, d->sleep_ms);
    return other ? other : res;
}

static inline int device_open(void *ctx, const char *step)
{
    const device *d = ctx;
    return d->open_step && strcmp(d->open_step, step) == 0 ? d->open_error : 0;
}

static device dev;
static const sl_disk_hooks device_hooks = {.ctx = &dev, .result = device_result, .open_errno = device_open};

static inline void set_device(int32_t reads, int32_t writes)
{
    __atomic_store_n(&dev.read, reads, __ATOMIC_RELAXED);
    __atomic_store_n(&dev.write, writes, __ATOMIC_RELAXED);
}

#endif
