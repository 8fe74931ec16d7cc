/*
 * The NIXL tier against the real library with its POSIX plug-in, in a directory: what the conformance suite (test_tier.c) cannot
 * ask of every tier. Skipped, with the reason, where the library is not installed.
 */
#include <fcntl.h>
#include <poll.h>
#include <string.h>
#include <sys/stat.h>

#include "kvstore/nixl_impl.h"
#include "tests/unit/kvstore/nixl_rig.h"
#include "tests/unit/kvstore/test_kvstore.h"

enum { BYTES = 8000, N = 40, RECORD = 8192 };

static const char *library;
static sl_tier *tier;
static uint8_t memory[N][BYTES];
static struct iovec spans[N];
static sl_tier_page pages[N];
static sl_key keys[N];

typedef struct answer {
    int calls;
    sl_status results[N];
    sl_tier_req req;
} answer;

static void on_done(sl_tier_req *req, sl_status st)
{
    (void)st;
    ((answer *)req->cookie)->calls++;
}

static sl_tier_nixl_opts posix_opts(void)
{
    return (sl_tier_nixl_opts){.library = library, .backend = "POSIX", .prefix = "n"};
}

static sl_status open_at(const char *directory, uint64_t records, const sl_tier_nixl_opts *n,
                         sl_key fingerprint, sl_err *err)
{
    sl_tier_opts o = {.page_bytes = BYTES,
                      .capacity_bytes = records * RECORD,
                      .directory = directory,
                      .nixl = n,
                      .fingerprint = fingerprint,
                      .format = {3, 4}};
    uint64_t seed = 4;
    for (int p = 0; p < N; p++) {
        keys[p] = (sl_key){rnd(&seed), rnd(&seed)};
        spans[p] = (struct iovec){memory[p], BYTES};
        pages[p] = (sl_tier_page){&spans[p], 1};
    }
    return sl_tier_open(&sl_tier_nixl_ops, &o, &tier, err);
}

static void open_tier(uint64_t records)
{
    sl_err err = {0};
    sl_tier_nixl_opts n = posix_opts();
    ck_assert_msg(open_at(tier_directory(), records, &n, (sl_key){1, 2}, &err) == SL_OK, "%s", err.text);
}

static void end_test(void)
{
    sl_tier_close(tier);
    nixl_rig_remove(tier_directory());
}

static sl_status last[N];

static int run(sl_tier_op op, int first, int n, uint32_t lease_ms)
{
    answer a = {.req = {.op = op, .n = n, .keys = keys + first, .pages = pages + first, .done = on_done}};
    a.req.results = a.results, a.req.cookie = &a, a.req.lease_ms = lease_ms;
    for (int p = first; p < first + n; p++)
        memset(memory[p], op == SL_TIER_SET ? p + 1 : 0, BYTES);
    ck_assert_int_eq(sl_tier_submit(tier, &a.req), SL_OK);
    while (!a.calls) {
        struct pollfd p = {.fd = sl_tier_fd(tier), .events = POLLIN};
        ck_assert_int_eq(poll(&p, 1, 20000), 1);
        sl_tier_poll(tier);
    }
    int ok = 0;
    for (int i = 0; i < n; i++) {
        last[i] = a.results[i];
        ok += a.results[i] == SL_OK;
        for (int b = 0; op == SL_TIER_GET && a.results[i] == SL_OK && b < BYTES; b++)
            ck_assert_int_eq(memory[first + i][b], first + i + 1);
    }
    return ok;
}

static const char *path_of(int page)
{
    static char path[SL_NIXL_PATH_BYTES];
    sl_nixl_tier *t = (sl_nixl_tier *)tier;
    sl_nixl_file_path(&t->files, keys[page], path);
    return path;
}

START_TEST(processes_share_a_directory)
{
    sl_err err = {0};
    open_tier(100);
    sl_tier *first = tier;
    ck_assert_int_eq(run(SL_TIER_SET, 0, 10, 0), 10);
    open_tier(100);
    ck_assert_int_eq(run(SL_TIER_EXISTS, 0, 12, 0), 10);
    ck_assert_int_eq(run(SL_TIER_GET, 0, 10, 0), 10);
    ck_assert_int_eq(run(SL_TIER_REMOVE, 3, 1, 0), 1);
    sl_tier_close(tier);
    sl_tier_nixl_opts n = posix_opts();
    ck_assert_int_eq(open_at(tier_directory(), 100, &n, (sl_key){8, 2}, &err),
                     SL_OK); /* another checkpoint */
    ck_assert_int_eq(run(SL_TIER_EXISTS, 0, 10, 0), 0);
    ck_assert_int_eq(run(SL_TIER_GET, 0, 10, 0), 0);
    sl_tier_close(tier);
    tier = first;
    ck_assert_int_eq(run(SL_TIER_GET, 0, 10, 0), 9);
    end_test();
}
END_TEST

START_TEST(the_directory_stays_in_its_limit)
{
    open_tier(10);
    ck_assert_int_eq(run(SL_TIER_SET, 0, 10, 0), 10);
    ck_assert_int_eq(run(SL_TIER_EXISTS, 0, 3, 60000), 3); /* the oldest three are leased */
    ck_assert_int_eq(run(SL_TIER_SET, 10, 4, 0), 4);
    ck_assert_int_eq(run(SL_TIER_EXISTS, 0, 3, 0), 3);
    ck_assert_int_eq(run(SL_TIER_EXISTS, 10, 4, 0), 4);
    ck_assert_int_eq(run(SL_TIER_EXISTS, 3, 7, 0), 3); /* four of the others made room */
    sl_tier_stats s;
    sl_tier_get_stats(tier, &s);
    ck_assert_uint_le(s.bytes, 10 * RECORD);
    ck_assert_uint_eq(s.evictions, 4);
    run(SL_TIER_EXISTS, 0, 14, 60000); /* everything is leased */
    ck_assert_int_eq(run(SL_TIER_SET, 20, 5, 0), 0);
    for (int i = 0; i < 5; i++)
        ck_assert_int_eq(last[i], SL_ERR_EXHAUSTED);
    sl_tier_release(tier, keys, 14);
    ck_assert_int_eq(run(SL_TIER_SET, 20, 5, 0), 5);
    end_test();
}
END_TEST

/* A directory with other files at the depth of pages, also old ones: the limit does not count or remove them. */
START_TEST(files_of_others_stay)
{
    char other[2][SL_NIXL_PATH_BYTES + 32];
    open_tier(4);
    ck_assert_int_eq(run(SL_TIER_SET, 0, 1, 0), 1);
    for (int i = 0; i < 2; i++) {
        snprintf(other[i], sizeof other[i], "%s", path_of(0));
        snprintf(strrchr(other[i], '/'), 40, i ? "/notes.tmp-1" : "/notes");
        int fd = open(other[i], O_WRONLY | O_CREAT, 0600);
        ck_assert_int_eq(ftruncate(fd, 100 * RECORD), 0);
        close(fd);
        utimensat(AT_FDCWD, other[i], (struct timespec[2]){{1000000, 0}, {1000000, 0}}, 0);
    }
    sl_tier_close(tier);
    open_tier(4);
    ck_assert_int_eq(run(SL_TIER_SET, 1, 4, 0), 4);
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(unlink(other[i]), 0);
    end_test();
}
END_TEST

START_TEST(what_is_not_whole_is_not_offered)
{
    open_tier(100);
    ck_assert_int_eq(run(SL_TIER_SET, 0, 4, 0), 4);
    ck_assert_int_eq(truncate(path_of(0), 5000), 0);
    ck_assert_int_eq(run(SL_TIER_EXISTS, 0, 1, 0), 0);
    ck_assert_int_eq(run(SL_TIER_GET, 0, 1, 0), 0);
    ck_assert_int_eq(last[0], SL_ERR_CORRUPT);
    for (int at = 0; at < RECORD; at += at < SL_PAGE_RECORD_BYTES ? 5 : 501) {
        run(SL_TIER_SET, 1, 1, 0);
        int fd = open(path_of(1), O_RDWR);
        uint8_t byte;
        ck_assert_int_eq(pread(fd, &byte, 1, at), 1);
        byte ^= 0x20;
        ck_assert_int_eq(pwrite(fd, &byte, 1, at), 1);
        close(fd);
        bool counts = at < SL_PAGE_RECORD_BYTES + BYTES; /* after it comes what fills up the block */
        ck_assert_int_eq(run(SL_TIER_GET, 1, 1, 0), !counts);
        ck_assert_int_eq(run(SL_TIER_EXISTS, 1, 1, 0), !counts);
    }
    /* A file of a process that was killed while it wrote: it has another name, and is removed when it is old. */
    char stale[SL_NIXL_PATH_BYTES + 32];
    run(SL_TIER_SET, 2, 1, 0);
    snprintf(stale, sizeof stale, "%s.tmp-1-2-3", path_of(2));
    int fd = open(stale, O_WRONLY | O_CREAT, 0600);
    close(fd);
    utimensat(AT_FDCWD, stale, (struct timespec[2]){{1000000, 0}, {1000000, 0}}, 0);
    ck_assert_int_eq(run(SL_TIER_REMOVE, 2, 1, 0), 1);
    ck_assert_int_eq(run(SL_TIER_EXISTS, 2, 1, 0), 0);
    sl_tier_close(tier);
    open_tier(100);
    ck_assert_int_ne(access(stale, F_OK), 0);
    end_test();
}
END_TEST

START_TEST(refused_at_open)
{
    sl_err err = {0};
    const sl_key f = {1, 2};
    sl_tier_nixl_opts n = posix_opts();
    ck_assert_int_eq(open_at("/nowhere/at/all", 10, &n, f, &err), SL_ERR_IO);
    ck_assert_ptr_nonnull(strstr(err.text, "/nowhere/at/all: No such file"));
    ck_assert_int_eq(open_at("README.md", 10, &n, f, &err), SL_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(err.text, "is not a directory"));
    ck_assert_int_eq(open_at(tier_directory(), 0, &n, f, &err), SL_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(err.text, "capacity"));
    ck_assert_int_eq(chmod(tier_directory(), 0777), 0);
    ck_assert_int_eq(open_at(tier_directory(), 10, &n, f, &err), SL_ERR_REFUSED);
    ck_assert_ptr_nonnull(strstr(err.text, "can be written by every user"));
    ck_assert_int_eq(chmod(tier_directory(), 0700), 0);
    n.backend = "TAPE";
    ck_assert_int_eq(open_at(tier_directory(), 10, &n, f, &err), SL_ERR_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(err.text, "POSIX"));
    const char *const bad[] = {"use_uring"};
    n = posix_opts();
    n.parameters = bad, n.n_parameters = 1;
    ck_assert_int_eq(open_at(tier_directory(), 10, &n, f, &err), SL_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(err.text, "KEY=VALUE"));
    nixl_rig_remove(tier_directory());
}
END_TEST

START_TEST(without_the_library)
{
    sl_err err = {0};
    sl_tier_nixl_opts n = posix_opts();
    n.library = "libno_such_nixl.so";
    ck_assert_int_eq(open_at("build", 10, &n, (sl_key){1, 2}, &err), SL_ERR_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(err.text, "libno_such_nixl.so"));
    n.library = "libc.so.6"; /* a library, but another one */
    ck_assert_int_eq(open_at("build", 10, &n, (sl_key){1, 2}, &err), SL_ERR_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(err.text, "nixl_capi_"));
}
END_TEST

int main(void)
{
    const char *why;
    Suite *s = suite_create("nixl");
    TCase *t = tcase_create("nixl");
    tcase_set_timeout(t, 60);
    library = nixl_rig_library(&why);
    tcase_add_test(t, without_the_library);
    if (library) {
        tcase_add_test(t, processes_share_a_directory);
        tcase_add_test(t, the_directory_stays_in_its_limit);
        tcase_add_test(t, files_of_others_stay);
        tcase_add_test(t, what_is_not_whole_is_not_offered);
        tcase_add_test(t, refused_at_open);
    } else {
        printf("SKIP with the library: %s\n", why);
    }
    suite_add_tcase(s, t);
    return run_suite(s);
}
