/*
 * The NIXL tier: what the conformance suite (test_tier.c) cannot ask of every tier. Files are tested with NIXL's library and its POSIX
 * plug-in where it is installed. Objects, and a store that hangs, are tested with a test double (fake_nixl.h);
 * tests/e2e/test_shared_tiers.py has a real server of S3's protocol.
 */
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>

#include "base/log.h"
#include "kvstore/nixl_impl.h"
#include "tests/unit/kvstore/nixl_rig.h"
#include "tests/unit/kvstore/test_kvstore.h"

enum { BYTES = 8000, N = 40, RECORD = 8192 };

static const char *library;
static uint32_t slow_ms;
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

static void set(sl_tier_values *v, const char *name, const char *text)
{
    sl_err err = {0};
    ck_assert_msg(sl_options_set(sl_tier_nixl_ops.options, v->bytes, name, text, &err) == SL_OK, "%s",
                  err.text);
}

static sl_tier_values opts_of(const char *lib, const char *backend)
{
    sl_tier_values v;
    sl_options_default(sl_tier_nixl_ops.options, v.bytes);
    set(&v, "library", lib);
    set(&v, "backend", backend);
    return v;
}

static sl_tier_values posix_opts(void)
{
    return opts_of(library, "POSIX");
}

static bool starts_without;

static sl_status open_at(const char *directory, uint64_t records, const sl_tier_values *n, sl_key fingerprint,
                         sl_err *err)
{
    sl_tier_opts o = {.page_bytes = BYTES,
                      .capacity_bytes = records * RECORD,
                      .directory = directory,
                      .required = !starts_without,
                      .options = n,
                      .prefix = directory ? "n" : "o",
                      .slow_ms = slow_ms,
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
    sl_tier_values n = posix_opts();
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
    sl_tier_values n = posix_opts();
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

/* What another user of the directory puts in the place of a page: neither followed, nor changed, nor waited for. */
START_TEST(links_and_pipes_are_no_pages)
{
    char other[SL_NIXL_PATH_BYTES];
    struct stat st;
    open_tier(100);
    ck_assert_int_eq(run(SL_TIER_SET, 0, 2, 0), 2);
    snprintf(other, sizeof other, "%s/other", tier_directory());
    ck_assert_int_eq(rename(path_of(0), other), 0); /* a record that is whole and right */
    ck_assert_int_eq(utimensat(AT_FDCWD, other, (struct timespec[2]){{1000000, 0}, {1000000, 0}}, 0), 0);
    ck_assert_int_eq(symlink("../../other", path_of(0)), 0);
    ck_assert_int_eq(stat(path_of(0), &st), 0); /* the link leads there */
    ck_assert_int_eq(unlink(path_of(1)), 0);
    ck_assert_int_eq(mkfifo(path_of(1), 0600), 0);
    ck_assert_int_eq(run(SL_TIER_EXISTS, 0, 2, 60000), 0);
    ck_assert_int_eq(run(SL_TIER_GET, 0, 2, 0), 0);
    sl_tier_release(tier, keys, 2);
    ck_assert_int_eq(run(SL_TIER_SET, 0, 2, 0), 2); /* in their place, not through them */
    ck_assert_int_eq(run(SL_TIER_GET, 0, 2, 0), 2);
    ck_assert_int_eq(stat(other, &st), 0);
    ck_assert_int_eq(st.st_mtim.tv_sec, 1000000);
    ck_assert_int_eq(lstat(path_of(0), &st), 0);
    ck_assert(S_ISREG(st.st_mode));
    end_test();
}
END_TEST

enum { ELSEWHERE_S = 1000000 };

static void cut_path(char *path, int levels)
{
    for (int i = 0; i < levels; i++)
        *strrchr(path, '/') = '\0';
}

/* A link at each level of a page's path leads to a tree of right pages that are not the tier's: directory of the model, of two digits, and
 * the page. Nothing there is read, marked as used, leased, changed, removed to make room, or added to, and no directory is made there. */
START_TEST(links_are_not_followed_at_any_level)
{
    char there[SL_NIXL_PATH_BYTES], link[SL_NIXL_PATH_BYTES], away[SL_NIXL_PATH_BYTES],
        inside[SL_NIXL_PATH_BYTES + 64];
    struct stat st;
    int up = _i % 3; /* 0: the page is the link, 1: its directory, 2: that of the model */
    bool dangling = _i >= 3;
    open_tier(2);
    ck_assert_int_eq(run(SL_TIER_SET, 0, 1, 0), 1);
    snprintf(there, sizeof there, "%s", path_of(0));
    snprintf(link, sizeof link, "%s", there);
    cut_path(link, up);
    snprintf(away, sizeof away, "%s.away", tier_directory()); /* where no list of the directory comes */
    ck_assert_int_eq(rename(link, away), 0);
    snprintf(inside, sizeof inside, "%s%s", away, there + strlen(link)); /* the page in its new place */
    ck_assert_int_eq(utimensat(AT_FDCWD, inside, (struct timespec[2]){{ELSEWHERE_S, 0}, {ELSEWHERE_S, 0}}, 0),
                     0);
    char *target = realpath(away, NULL);
    if (dangling)
        nixl_rig_remove(away);
    ck_assert_int_eq(symlink(target, link), 0);
    free(target);
    ck_assert_int_eq(stat(there, &st), dangling ? -1 : 0); /* a path leads there */
    ck_assert_int_eq(run(SL_TIER_EXISTS, 0, 1, 60000), 0);
    ck_assert_int_eq(run(SL_TIER_GET, 0, 1, 0), 0);
    sl_tier_release(tier, keys, 1);
    ck_assert(!sl_tier_nixl_ops.damage(tier, keys[0]));
    ck_assert_int_eq(run(SL_TIER_SET, 0, 1, 0),
                     up == 0); /* in the place of a link, but not where one leads */
    if (up)
        ck_assert_int_eq(run(SL_TIER_REMOVE, 0, 1, 0), 0);
    run(SL_TIER_SET, 1, 6, 0); /* more than there is room for: the oldest page would be the one over there */
    sl_tier_close(tier);
    open_tier(2); /* lists the directory */
    ck_assert_int_eq(stat(inside, &st), dangling ? -1 : 0);
    if (!dangling) {
        ck_assert_int_eq(st.st_mtim.tv_sec, ELSEWHERE_S);
        ck_assert_int_eq(st.st_size, RECORD);
        cut_path(inside, 1);
        ck_assert_int_eq(stat(inside, &st), 0);
        ck_assert(!up || st.st_nlink == 2); /* no directory was made next to the page */
        nixl_rig_remove(away);
    }
    ck_assert_int_eq(lstat(away, &st), -1);
    end_test();
}
END_TEST

START_TEST(refused_at_open)
{
    sl_err err = {0};
    const sl_key f = {1, 2};
    sl_tier_values n = posix_opts();
    ck_assert_int_eq(open_at("/nowhere/at/all", 10, &n, f, &err), SL_ERR_IO);
    ck_assert_ptr_nonnull(strstr(err.text, "/nowhere/at/all: No such file"));
    ck_assert_int_eq(open_at("README.md", 10, &n, f, &err), SL_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(err.text, "is not a directory"));
    ck_assert_int_eq(open_at(tier_directory(), 0, &n, f, &err), SL_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(err.text, "kvstore.nixl.bytes"));
    ck_assert_int_eq(chmod(tier_directory(), 0777), 0);
    ck_assert_int_eq(open_at(tier_directory(), 10, &n, f, &err), SL_ERR_REFUSED);
    ck_assert_ptr_nonnull(strstr(err.text, "can be written by every user"));
    ck_assert_int_eq(chmod(tier_directory(), 0700), 0);
    set(&n, "backend", "TAPE");
    ck_assert_int_eq(open_at(tier_directory(), 10, &n, f, &err), SL_ERR_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(err.text, "no plug-in \"TAPE\""));
    ck_assert_ptr_nonnull(strstr(err.text, "POSIX"));
    const char *const bad[] = {"use_uring"};
    n = posix_opts();
    set(&n, "parameters", bad[0]);
    ck_assert_int_eq(open_at(tier_directory(), 10, &n, f, &err), SL_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(err.text, "KEY=VALUE"));
    nixl_rig_remove(tier_directory());
}
END_TEST

START_TEST(without_the_library)
{
    sl_err err = {0};
    sl_tier_values n = posix_opts();
    set(&n, "library", "libno_such_nixl.so");
    ck_assert_int_eq(open_at("build", 10, &n, (sl_key){1, 2}, &err), SL_ERR_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(err.text, "libno_such_nixl.so"));
    set(&n, "library", "libc.so.6"); /* a library, but another one */
    ck_assert_int_eq(open_at("build", 10, &n, (sl_key){1, 2}, &err), SL_ERR_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(err.text, "nixl_capi_"));
}
END_TEST

/* ---- who calls the file system ---- */

static pthread_t owner;
static atomic_int changed_by_owner;

/* Instead of the C library's function: counts the calls of the tier's owner. */
int utimensat(int directory, const char *path, const struct timespec times[2], int flags)
{
    if (pthread_equal(pthread_self(), owner))
        atomic_fetch_add(&changed_by_owner, 1);
    return (int)syscall(SYS_utimensat, directory, path, times, flags);
}

static bool is_leased(int page)
{
    struct stat st;
    ck_assert_int_eq(stat(path_of(page), &st), 0);
    return st.st_mtim.tv_sec > time(NULL) + 10;
}

START_TEST(the_owner_makes_no_calls_of_the_file_system)
{
    open_tier(100);
    owner = pthread_self();
    ck_assert_int_eq(run(SL_TIER_SET, 0, 6, 0), 6);
    ck_assert_int_eq(run(SL_TIER_EXISTS, 0, 6, 60000), 6);
    ck_assert_int_eq(run(SL_TIER_GET, 0, 6, 0), 6);
    for (int i = 0; i < 6; i++)
        ck_assert(is_leased(i));
    sl_tier_release(tier, keys, 3);
    sl_tier_release(tier, keys + 3, 1);
    ck_assert_int_eq(run(SL_TIER_EXISTS, 9, 1, 0), 0); /* a request that is made later sees it */
    for (int i = 0; i < 6; i++)
        ck_assert_int_eq(is_leased(i), i > 3);
    sl_tier_release(tier, keys, 6);
    sl_tier_close(tier); /* also by close */
    open_tier(100);
    for (int i = 0; i < 6; i++)
        ck_assert(!is_leased(i));
    ck_assert_int_eq(atomic_load(&changed_by_owner), 0);
    end_test();
}
END_TEST

/* ---- a store that hangs ---- */

/* A request with memory of its own, so that a sanitizer sees who uses it after close. */
static answer *submit(sl_tier_op op, int first, int n)
{
    answer *a = calloc(1, sizeof *a);
    sl_tier_page *own = calloc((size_t)n, sizeof *own);
    struct iovec *span = calloc((size_t)n, sizeof *span);
    ck_assert(a && own && span);
    for (int i = 0; i < n; i++) {
        span[i] = (struct iovec){malloc(BYTES), BYTES};
        ck_assert_ptr_nonnull(span[i].iov_base);
        memset(span[i].iov_base, 7, BYTES);
        own[i] = (sl_tier_page){&span[i], 1};
    }
    a->req = (sl_tier_req){.op = op, .n = n, .keys = keys + first, .pages = own, .done = on_done};
    a->req.results = a->results, a->req.cookie = a;
    ck_assert_int_eq(sl_tier_submit(tier, &a->req), SL_OK);
    return a;
}

static void free_request(answer *a)
{
    struct iovec *span = (struct iovec *)(uintptr_t)a->req.pages[0].spans;
    for (int i = 0; i < a->req.n; i++)
        free(span[i].iov_base);
    free(span);
    free((sl_tier_page *)(uintptr_t)a->req.pages);
    free(a);
}

static void close_in_time(void)
{
    uint64_t begin = sl_now_ns();
    sl_tier_close(tier);
    ck_assert_uint_lt(sl_now_ns() - begin, 30000000000u);
}

static void wait_state(sl_tier_state state, const char *why)
{
    sl_tier_health h = {0};
    for (int i = 0; i < 2000 && (h.state != state || !strstr(h.reason, why)); i++) {
        sl_tier_get_health(tier, &h);
        nanosleep(&(struct timespec){0, 5000000}, NULL);
    }
    ck_assert_msg(h.state == state && strstr(h.reason, why), "health %d: %s", h.state, h.reason);
}

START_TEST(transfers_that_never_end_do_not_hold_close)
{
    library = fake_nixl_path();
    slow_ms = 200;
    open_tier(100);
    ck_assert_int_eq(run(SL_TIER_SET, 0, 3, 0), 3);
    atomic_store(&fake_nixl()->endless, 1);
    answer *a[2] = {submit(SL_TIER_GET, 0, 3), submit(SL_TIER_SET, 10, 2)};
    wait_state(SL_TIER_DEGRADED, "in flight for");
    close_in_time();
    for (int i = 0; i < 2; i++) {
        ck_assert_int_eq(a[i]->calls, 1);
        for (int k = 0; k < a[i]->req.n; k++)
            ck_assert_int_eq(a[i]->results[k], SL_ERR_IO);
        free_request(a[i]);
    }
    atomic_store(&fake_nixl()->endless, 0);
    open_tier(
        100); /* another tier of the same process is not harmed, and sees nothing of the write that did not end */
    ck_assert_int_eq(run(SL_TIER_GET, 0, 3, 0), 3);
    ck_assert_int_eq(run(SL_TIER_EXISTS, 10, 2, 0), 0);
    ck_assert_int_eq(run(SL_TIER_SET, 10, 2, 0), 2);
    end_test();
}
END_TEST

static sl_status open_objects(const char *parameter, uint64_t records, sl_err *err)
{
    sl_tier_values n = opts_of(fake_nixl_path(), "OBJ");
    set(&n, "parameters", parameter);
    return open_at(NULL, records, &n, (sl_key){1, 2}, err);
}

START_TEST(calls_that_hang_do_not_hold_close)
{
    static const fake_nixl_call calls[] = {FAKE_NIXL_REGISTER, FAKE_NIXL_STATUS, FAKE_NIXL_QUERY};
    sl_err err = {0};
    library = fake_nixl_path();
    slow_ms = 100;
    if (calls[_i] == FAKE_NIXL_QUERY)
        ck_assert_int_eq(open_objects("bucket=b", 0, &err), SL_OK);
    else
        open_tier(100);
    ck_assert_int_eq(run(SL_TIER_SET, 0, 3, 0), 3);
    atomic_store(&fake_nixl()->hanging, (int)calls[_i]);
    answer *a[3] = {submit(SL_TIER_GET, 0, 3), submit(SL_TIER_SET, 10, 2), submit(SL_TIER_EXISTS, 0, 3)};
    while (!atomic_load(&fake_nixl()->in_call))
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    close_in_time();
    for (int i = 0; i < 3; i++) {
        ck_assert_int_eq(a[i]->calls, 1);
        free_request(a[i]);
    }
    atomic_store(&fake_nixl()->hanging, FAKE_NIXL_NONE);
    while (atomic_load(&fake_nixl()->in_call))
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    nanosleep(&(struct timespec){0, 50000000}, NULL); /* the thread ends, and uses nothing of the requests */
    nixl_rig_remove(tier_directory());
}
END_TEST

/* ---- objects ---- */

START_TEST(objects)
{
    sl_err err = {0};
    fake_nixl_faults *f = fake_nixl();
    ck_assert_msg(open_objects("bucket=b", 0, &err) == SL_OK, "%s", err.text);
    ck_assert_int_eq(run(SL_TIER_EXISTS, 0, 10, 0), 0);
    ck_assert_int_eq(run(SL_TIER_GET, 0, 1, 0), 0);
    ck_assert_int_eq(last[0], SL_ERR_NOT_FOUND);
    ck_assert_int_eq(run(SL_TIER_SET, 0, 10, 0), 10);
    ck_assert_int_eq(run(SL_TIER_EXISTS, 0, 12, 0), 10);
    ck_assert_int_eq(run(SL_TIER_GET, 0, 10, 0), 10);
    ck_assert_int_eq(run(SL_TIER_REMOVE, 3, 1, 0), 1); /* it cannot be deleted, but is not offered any more */
    ck_assert_int_eq(run(SL_TIER_REMOVE, 3, 1, 0), 0);
    ck_assert_int_eq(run(SL_TIER_EXISTS, 3, 1, 0), 0);
    ck_assert_int_eq(run(SL_TIER_GET, 3, 1, 0), 0);
    ck_assert_int_eq(run(SL_TIER_SET, 3, 1, 0), 1);
    ck_assert_int_eq(run(SL_TIER_GET, 3, 1, 0), 1);
    atomic_store(&f->damage, 1);
    ck_assert_int_eq(run(SL_TIER_GET, 4, 1, 0), 0);
    ck_assert_int_eq(last[0], SL_ERR_CORRUPT);
    atomic_store(&f->damage, 0);
    ck_assert_int_eq(run(SL_TIER_EXISTS, 4, 1, 0), 0);
    ck_assert_int_eq(run(SL_TIER_SET, 4, 1, 0), 1);
    ck_assert_int_eq(run(SL_TIER_GET, 0, 10, 0), 10);
    sl_tier_release(tier, keys, 10); /* there are no leases */
    sl_tier_close(tier);
}
END_TEST

START_TEST(a_store_of_objects_that_is_not_reached)
{
    sl_err err = {0};
    fake_nixl_faults *f = fake_nixl();
    ck_assert_int_eq(open_objects("bucket=b", 0, &err), SL_OK);
    ck_assert_int_eq(run(SL_TIER_SET, 0, 4, 0), 4);
    atomic_store(&f->unreachable, 1);
    ck_assert_int_eq(run(SL_TIER_EXISTS, 0, 4, 0), 0); /* misses, not errors: the request computes */
    ck_assert_int_eq(run(SL_TIER_GET, 0, 4, 0), 0);
    for (int i = 0; i < 4; i++)
        ck_assert_int_eq(last[i], SL_ERR_IO);
    wait_state(SL_TIER_DEGRADED, "nixl OBJ");
    ck_assert_int_eq(run(SL_TIER_SET, 4, 16, 0), 0);
    wait_state(SL_TIER_FAILED, "nixl OBJ");
    atomic_store(&f->unreachable, 0);
    ck_assert_int_eq(run(SL_TIER_SET, 4, 2, 0), 2); /* the next write finds it again */
    wait_state(SL_TIER_HEALTHY, "");
    ck_assert_int_eq(run(SL_TIER_GET, 0, 6, 0), 6);
    sl_tier_close(tier);
    atomic_store(&f->unreachable, 1);
    ck_assert_int_eq(open_objects("bucket=b", 0, &err), SL_ERR_REFUSED);
    ck_assert_ptr_nonnull(strstr(err.text, "endpoint_override"));
    starts_without = true;
    ck_assert_int_eq(open_objects("bucket=b", 0, &err), SL_OK);
    ck_assert_int_eq(run(SL_TIER_EXISTS, 0, 4, 0), 0);
    atomic_store(&f->unreachable, 0);
    ck_assert_int_eq(run(SL_TIER_EXISTS, 0, 4, 0), 4);
    sl_tier_close(tier);
}
END_TEST

START_TEST(objects_refused_at_open)
{
    sl_err err = {0};
    ck_assert_int_eq(open_objects("access_key=wrong", 0, &err), SL_ERR_REFUSED);
    ck_assert_ptr_nonnull(strstr(err.text, "credentials"));
    ck_assert_int_eq(open_objects("bucket=absent", 0, &err), SL_ERR_REFUSED);
    ck_assert_ptr_nonnull(strstr(err.text, "does the bucket exist"));
    ck_assert_int_eq(open_objects("bucket=b", 10, &err), SL_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(err.text, "kvstore.nixl.bytes"));
}
END_TEST

int main(void)
{
    Suite *s = suite_create("nixl");
    TCase *t = tcase_create("nixl");
    tcase_set_timeout(t, 60);
    library = nixl_rig_library();
    tcase_add_test(t, without_the_library);
    tcase_add_test(t, processes_share_a_directory);
    tcase_add_test(t, the_directory_stays_in_its_limit);
    tcase_add_test(t, files_of_others_stay);
    tcase_add_test(t, what_is_not_whole_is_not_offered);
    tcase_add_test(t, links_and_pipes_are_no_pages);
    tcase_add_loop_test(t, links_are_not_followed_at_any_level, 0, 6);
    tcase_add_test(t, refused_at_open);
    tcase_add_test(t, the_owner_makes_no_calls_of_the_file_system);
    tcase_add_test(t, transfers_that_never_end_do_not_hold_close);
    tcase_add_loop_test(t, calls_that_hang_do_not_hold_close, 0, 3);
    tcase_add_test(t, objects);
    tcase_add_test(t, a_store_of_objects_that_is_not_reached);
    tcase_add_test(t, objects_refused_at_open);
    suite_add_tcase(s, t);
    return run_suite(s);
}
