/* The offline reader of disk stores, against a file that is written here record by record, and against every way to damage it. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "kvstore/disk_scan.h"
#include "tests/unit/run_suite.h"

enum { SEGMENTS = 3, SLOTS = 4, PAGE_BYTES = 5000 };

static const sl_disk_store store = {
    .id = 77, .page_bytes = PAGE_BYTES, .slots_per_segment = SLOTS, .fingerprint = {1, 2}, .format = {3, 4}};
static char dir[] = "/tmp/test-disk-scan-XXXXXX", path[128];
static int fd;

static void put(uint64_t at, const void *bytes, size_t n)
{
    ck_assert_int_eq(pwrite(fd, bytes, n, (off_t)at), (ssize_t)n);
}

static void put_segment(uint64_t i, uint64_t generation)
{
    uint8_t block[SL_DISK_BLOCK];
    sl_disk_segment g = {.store_id = store.id, .index = i, .generation = generation, .sequence = generation};
    sl_disk_segment_write(&g, block);
    put(sl_disk_segment_at(&store, i), block, sizeof block);
}

static sl_disk_record record_of(uint64_t slot, uint64_t generation, const uint8_t *page)
{
    return (sl_disk_record){.store_id = store.id,
                            .slot = slot,
                            .generation = generation,
                            .sequence = 100 + slot,
                            .key = {slot, 9},
                            .fingerprint = store.fingerprint,
                            .format = store.format,
                            .length = PAGE_BYTES,
                            .crc = sl_crc32c(0, page, PAGE_BYTES)};
}

static void put_record(const sl_disk_record *r, uint64_t slot, const uint8_t *page)
{
    uint8_t block[SL_DISK_BLOCK];
    sl_disk_record_write(r, block);
    put(sl_disk_slot_at(&store, slot), block, sizeof block);
    put(sl_disk_slot_at(&store, slot) + SL_DISK_BLOCK, page, PAGE_BYTES);
}

static void fill_page(uint8_t *page, uint64_t slot)
{
    for (size_t i = 0; i < PAGE_BYTES; i++)
        page[i] = (uint8_t)(i * 7 + slot);
}

/* Segment 0: 4 pages. Segment 1: a page of generation 5, and one of generation 4. Segment 2 was never filled. */
static void setup(void)
{
    uint8_t block[SL_DISK_BLOCK], page[PAGE_BYTES];
    memcpy(dir + strlen(dir) - 6, "XXXXXX", 6);
    ck_assert_ptr_nonnull(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/pages.sluice", dir);
    fd = open(path, O_RDWR | O_CREAT, 0600);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(ftruncate(fd, (off_t)sl_disk_segment_at(&store, SEGMENTS)), 0);
    sl_disk_store_write(&store, block);
    put(0, block, sizeof block);
    put_segment(0, 1);
    put_segment(1, 5);
    for (uint64_t slot = 0; slot < SLOTS + 2; slot++) {
        fill_page(page, slot);
        sl_disk_record r = record_of(slot, slot < SLOTS ? 1 : slot == SLOTS ? 5 : 4, page);
        put_record(&r, slot, page);
    }
}

static void teardown(void)
{
    close(fd);
    unlink(path);
    rmdir(dir);
}

typedef struct seen {
    int n, damaged, segments;
    uint64_t last_damaged;
} seen;

static void on_found(void *ctx, const sl_disk_found *f)
{
    seen *s = ctx;
    ck_assert_uint_eq(f->record.key.lo, f->slot);
    ck_assert_uint_eq(f->segment, f->slot / SLOTS);
    s->n++;
    s->damaged += f->damaged;
    if (f->damaged)
        s->last_damaged = f->slot;
}

static void on_segment(void *ctx, uint64_t done, uint64_t of)
{
    seen *s = ctx;
    ck_assert_uint_eq(done, (uint64_t)++s->segments);
    ck_assert_uint_eq(of, SEGMENTS);
}

static sl_disk_scanned scan(bool pages, seen *s)
{
    sl_disk_scan d;
    sl_disk_scanned r;
    sl_err err = {0};
    *s = (seen){0};
    sl_disk_scan_calls calls = {.ctx = s, .found = on_found, .segment = on_segment};
    ck_assert_msg(sl_disk_scan_open(dir, &d, &err) == SL_OK, "%s", err.text);
    ck_assert_msg(sl_disk_scan_run(&d, pages, &calls, &r, &err) == SL_OK, "%s", err.text);
    sl_disk_scan_close(&d);
    ck_assert_uint_eq(r.records, (uint64_t)s->n);
    ck_assert_uint_eq(r.damaged, (uint64_t)s->damaged);
    return r;
}

START_TEST(counts_what_counts)
{
    seen s;
    for (int pages = 0; pages < 2; pages++) {
        sl_disk_scanned r = scan(pages, &s);
        ck_assert_int_eq(s.n, SLOTS + 1);
        ck_assert_int_eq(s.damaged, 0);
        ck_assert_uint_eq(r.stale, 1);
        ck_assert_uint_eq(r.segments_used, 2);
        ck_assert_uint_eq(r.sequence, 100 + SLOTS);
        ck_assert_uint_eq(r.oldest, 100);
    }
}
END_TEST

/* Each bit of a page that flips is found; each that flips in a header takes the record away, or changes nothing. */
START_TEST(damage)
{
    seen s;
    uint64_t at = sl_disk_slot_at(&store, 2);
    for (uint64_t i = 0; i < SL_DISK_BLOCK + PAGE_BYTES; i += i < 160 ? 1 : 487) {
        uint8_t byte;
        ck_assert_int_eq(pread(fd, &byte, 1, (off_t)(at + i)), 1);
        byte ^= (uint8_t)(1 << i % 8);
        put(at + i, &byte, 1);
        scan(true, &s);
        if (i >= SL_DISK_BLOCK) {
            ck_assert_int_eq(s.damaged, 1);
            ck_assert_uint_eq(s.last_damaged, 2);
        } else {
            ck_assert_int_eq(s.damaged, 0);
            ck_assert_int_ge(s.n, SLOTS);
        }
        byte ^= (uint8_t)(1 << i % 8);
        put(at + i, &byte, 1);
    }
    scan(true, &s);
    ck_assert_int_eq(s.n, SLOTS + 1);
}
END_TEST

static void refused(sl_status want, const char *why)
{
    sl_disk_scan d;
    sl_err err = {0};
    ck_assert_int_eq(sl_disk_scan_open(dir, &d, &err), want);
    ck_assert_msg(strstr(err.text, why) && strstr(err.text, dir), "%s", err.text);
}

START_TEST(refusals)
{
    int other = open(dir, O_RDONLY | O_DIRECTORY);
    ck_assert_int_eq(flock(other, LOCK_EX | LOCK_NB), 0);
    refused(SL_ERR_REFUSED, "is in use by a worker");
    close(other);
    put(0, "other", 5);
    refused(SL_ERR_REFUSED, "pages.sluice");
    ck_assert_int_eq(ftruncate(fd, 100), 0);
    refused(SL_ERR_REFUSED, "too short");
    unlink(path);
    refused(SL_ERR_NOT_FOUND, "No such file");
}
END_TEST

/* A store that was grown or cut by hand: whole segments count, others are not read. */
START_TEST(cut)
{
    seen s;
    sl_disk_scan d;
    sl_disk_scanned r;
    ck_assert_int_eq(ftruncate(fd, (off_t)sl_disk_slot_at(&store, SLOTS + 1)), 0);
    ck_assert_int_eq(sl_disk_scan_open(dir, &d, NULL), SL_OK);
    s = (seen){0};
    sl_disk_scan_calls calls = {.ctx = &s, .found = on_found};
    ck_assert_int_eq(sl_disk_scan_run(&d, true, &calls, &r, NULL), SL_OK);
    ck_assert_int_eq(s.n, SLOTS);
    /* It becomes shorter while it is read. */
    ck_assert_int_eq(ftruncate(fd, (off_t)sl_disk_slot_at(&store, 2)), 0);
    sl_err err = {0};
    ck_assert_int_eq(sl_disk_scan_run(&d, true, &calls, &r, &err), SL_ERR_IO);
    ck_assert_msg(strstr(err.text, "the file ends") != NULL, "%s", err.text);
    sl_disk_scan_close(&d);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("disk_scan");
    TCase *c = tcase_create("disk_scan");
    tcase_add_checked_fixture(c, setup, teardown);
    tcase_add_test(c, counts_what_counts);
    tcase_add_test(c, damage);
    tcase_add_test(c, refusals);
    tcase_add_test(c, cut);
    suite_add_tcase(s, c);
    return run_suite(s);
}
