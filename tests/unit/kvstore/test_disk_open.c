/*
 * What the start of a disk tier finds: a store of another model, format or size, a file that is none and is set aside, a file that was
 * cut off, directories that cannot be used, and a disk without room.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>

#include "tests/unit/kvstore/disk_pages.h"

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

/* A link where the directory of a worker should be leads to another one that would do: neither read, nor made, nor written to. A link above
 * it is the operator's. */
START_TEST(the_directory_of_a_worker_is_no_link)
{
    char top[600], own[700], other[700], made[800];
    struct stat st;
    sl_tier_values v;
    sl_err err = {0};
    sl_tier_opts o = options(4);
    snprintf(top, sizeof top, "%s/top", directory);
    snprintf(own, sizeof own, "%s/decode-0", top);
    snprintf(other, sizeof other, "%s/other", directory);
    snprintf(made, sizeof made, "%s/pages.sluice", other);
    ck_assert_int_eq(mkdir(top, 0700), 0);
    sl_options_default(sl_tier_disk_ops.options, v.bytes);
    ck_assert_int_eq(sl_options_set(sl_tier_disk_ops.options, v.bytes, "path", top, &err), SL_OK);
    o.options = &v;
    o.directory = NULL;
    o.instance = "decode-0";
    o.required = true;
    ck_assert_int_eq(symlink("../other", own), 0);
    refused(&o, SL_ERR_REFUSED, own, "links are not followed"); /* dangling */
    ck_assert_int_eq(lstat(other, &st), -1);
    ck_assert_int_eq(mkdir(other, 0700), 0);
    refused(&o, SL_ERR_REFUSED, own, "kvstore.disk.path");
    ck_assert_int_eq(lstat(made, &st), -1);
    ck_assert_int_eq(unlink(own), 0);
    ck_assert_int_eq(rename(top, other), 0);
    ck_assert_int_eq(symlink("other", top), 0);
    ck_assert_msg(sl_tier_open(&sl_tier_disk_ops, &o, &tier, &err) == SL_OK, "%s", err.text);
    sl_tier_close(tier);
    snprintf(made, sizeof made, "%s/pages.sluice", own);
    ck_assert_int_eq(unlink(made), 0);
    ck_assert_int_eq(rmdir(own), 0);
    ck_assert_int_eq(unlink(top), 0);
    ck_assert_int_eq(rmdir(other), 0);
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
    Suite *s = suite_create("disk_open");
    TCase *t = tcase_create("disk_open");
    tcase_set_timeout(t, 300);
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, another_store_is_refused_and_kept);
    tcase_add_loop_test(t, what_cannot_be_read_is_set_aside, 0, SL_COUNT(unreadable));
    tcase_add_test(t, a_file_that_was_cut_off_is_used);
    tcase_add_test(t, bad_directories);
    tcase_add_test(t, the_directory_of_a_worker_is_no_link);
    tcase_add_test(t, a_directory_without_write_permission);
    tcase_add_test(t, a_full_disk_refuses_the_start);
    suite_add_tcase(s, t);
    return run_suite(s);
}
