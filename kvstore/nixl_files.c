/*
 * The NIXL tier's pages in a directory: one file for each page, DIRECTORY/MODEL AND GEOMETRY/xx/KEY, where xx are the first two
 * digits of the key. A file is written under a temporary name and renamed when it is complete, so a page that is there is
 * whole, whoever was killed. Several processes and clusters may use one directory at the same time.
 *
 * The size limit is that of the directory, whoever wrote the files: before a write that would exceed it, all files are
 * listed, and those that were used least recently are removed until a tenth of the room is free. So the list is read once
 * for each tenth of the capacity that is written. Two processes that write at the same time can exceed the limit by what
 * both write between two lists, a tenth each at most.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "kvstore/nixl_impl.h"

#define STALE_S 3600 /* a temporary file of this age belongs to a process that died */

static void set_time(const char *path, uint64_t ns)
{
    struct timespec t = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
    utimensat(AT_FDCWD, path, (struct timespec[2]){t, t}, AT_SYMLINK_NOFOLLOW);
}

static uint64_t time_of(const struct stat *st)
{
    return (uint64_t)st->st_mtim.tv_sec * 1000000000u + (uint64_t)st->st_mtim.tv_nsec;
}

void sl_nixl_file_path(const sl_nixl_files *f, sl_key key, char out[SL_NIXL_PATH_BYTES])
{
    char name[33];
    sl_page_name_key(key, name);
    snprintf(out, SL_NIXL_PATH_BYTES, "%s/%s/%.2s/%s", f->directory, f->stem, name, name);
}

bool sl_nixl_file_touch(const sl_nixl_files *f, sl_key key, uint32_t lease_ms)
{
    char path[SL_NIXL_PATH_BYTES];
    struct stat st;
    sl_nixl_file_path(f, key, path);
    if (lstat(path, &st) != 0 || !S_ISREG(st.st_mode) || (uint64_t)st.st_size != f->record_bytes)
        return false;
    uint64_t until = sl_wall_ns() + lease_ms * 1000000ull;
    if (time_of(&st) < until) /* of several leases the latest end counts */
        set_time(path, until);
    return true;
}

void sl_nixl_file_release(const sl_nixl_files *f, sl_key key)
{
    char path[SL_NIXL_PATH_BYTES];
    struct stat st;
    uint64_t now = sl_wall_ns();
    sl_nixl_file_path(f, key, path);
    if (lstat(path, &st) == 0 && S_ISREG(st.st_mode) && time_of(&st) > now)
        set_time(path, now);
}

/* Opens with O_DIRECT where the file system has it. */
static int open_file(sl_nixl_files *f, const char *path, int flags)
{
    int fd = open(path, flags | O_CLOEXEC | O_NOFOLLOW | (f->direct ? O_DIRECT : 0), 0600);
    if (fd < 0 && errno == EINVAL && f->direct) {
        f->direct = false;
        unlink(path); /* it may have been created */
        fd = open(path, flags | O_CLOEXEC | O_NOFOLLOW, 0600);
    }
    return fd;
}

sl_status sl_nixl_file_read(sl_nixl_files *f, sl_key key, int *fd)
{
    char path[SL_NIXL_PATH_BYTES];
    struct stat st;
    sl_nixl_file_path(f, key, path);
    const int flags =
        O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK; /* a pipe under this name must not hold the thread */
    int opened = open(path, flags | (f->direct ? O_DIRECT : 0));
    if (opened < 0 && errno == EINVAL)
        opened = open(path, flags);
    if (opened < 0)
        return errno == ENOENT || errno == ENOTDIR ? SL_ERR_NOT_FOUND : SL_ERR_IO;
    if (fstat(opened, &st) != 0 || !S_ISREG(st.st_mode) || (uint64_t)st.st_size != f->record_bytes) {
        close(opened);
        return SL_ERR_CORRUPT;
    }
    uint64_t now = sl_wall_ns();
    if (time_of(&st) < now)
        futimens(opened, (struct timespec[2]){{.tv_nsec = UTIME_NOW}, {.tv_nsec = UTIME_NOW}});
    *fd = opened;
    return SL_OK;
}

static sl_status make_directories(const char *file)
{
    char path[SL_NIXL_PATH_BYTES];
    snprintf(path, sizeof path, "%s", file);
    for (int up = 0; up < 2; up++) { /* DIRECTORY/STEM/xx: the stem first */
        char *end = path + strlen(file);
        for (int slashes = up ? 1 : 2; slashes; slashes--)
            while (*--end != '/')
                ;
        snprintf(path, sizeof path, "%.*s", (int)(end - path), file);
        if (mkdir(path, 0700) != 0 && errno != EEXIST)
            return SL_ERR_IO;
        snprintf(path, sizeof path, "%s", file);
    }
    return SL_OK;
}

sl_status sl_nixl_file_create(sl_nixl_files *f, sl_key key, char temporary[SL_NIXL_PATH_BYTES], int *fd)
{
    char path[SL_NIXL_PATH_BYTES];
    sl_nixl_file_path(f, key, path);
    int n = snprintf(temporary, SL_NIXL_PATH_BYTES, "%.*s.tmp-%d-%llx-%llu", SL_NIXL_PATH_BYTES - 64, path,
                     (int)getpid(), (unsigned long long)(uintptr_t)f, (unsigned long long)f->number++);
    if (n >= SL_NIXL_PATH_BYTES) {
        errno = ENAMETOOLONG;
        return SL_ERR_IO;
    }
    *fd = open_file(f, temporary, O_WRONLY | O_CREAT | O_EXCL);
    if (*fd < 0 && errno == ENOENT && make_directories(path) == SL_OK)
        *fd = open_file(f, temporary, O_WRONLY | O_CREAT | O_EXCL);
    return *fd >= 0 ? SL_OK : SL_ERR_IO;
}

void sl_nixl_file_give_up(sl_nixl_files *f, const char *temporary)
{
    if (temporary[0])
        unlink(temporary);
    f->pending -= f->record_bytes;
}

sl_status sl_nixl_file_commit(sl_nixl_files *f, sl_key key, const char *temporary, int fd)
{
    char path[SL_NIXL_PATH_BYTES];
    struct stat st;
    sl_nixl_file_path(f, key, path);
    /* NIXL's POSIX plug-in does not report every failed or short write: the length has to be seen. */
    bool whole = fstat(fd, &st) == 0 && (uint64_t)st.st_size == f->record_bytes;
    if (!whole)
        errno = ENOSPC;
    if (!whole || rename(temporary, path) != 0) {
        int reason = errno;
        sl_nixl_file_give_up(f, temporary);
        errno = reason;
        return SL_ERR_IO;
    }
    f->pending -= f->record_bytes;
    f->used += f->record_bytes;
    return SL_OK;
}

bool sl_nixl_file_remove(sl_nixl_files *f, sl_key key)
{
    char path[SL_NIXL_PATH_BYTES];
    sl_nixl_file_path(f, key, path);
    bool removed = unlink(path) == 0;
    if (removed)
        f->used -= f->used < f->record_bytes ? f->used : f->record_bytes;
    return removed;
}

/* ---- the size limit ---- */

typedef struct found {
    uint64_t time, bytes;
    char *path;
} found;

typedef struct listing {
    found *v;
    size_t n, cap;
    uint64_t bytes;
} listing;

static bool keep(listing *l, const char *path, const struct stat *st)
{
    if (l->n == l->cap) {
        size_t cap = l->cap ? 2 * l->cap : 256;
        found *v = realloc(l->v, cap * sizeof *v);
        if (!v)
            return false;
        l->v = v;
        l->cap = cap;
    }
    char *copy = strdup(path);
    if (!copy)
        return false;
    l->v[l->n++] = (found){time_of(st), (uint64_t)st->st_size, copy};
    return true;
}

/* Whether this is the name of a page, or of its temporary file: other files are neither counted nor removed. */
static bool is_page_name(const char *name)
{
    return strspn(name, "0123456789abcdef") == 32 && (!name[32] || strncmp(name + 32, ".tmp-", 5) == 0);
}

/* Files of DIRECTORY/STEM/xx, of all stems, because the limit is that of the directory. */
static void list_files(listing *l, const char *path, int depth)
{
    DIR *d = opendir(path);
    struct dirent *e;
    while (d && (e = readdir(d))) {
        char child[SL_NIXL_PATH_BYTES];
        struct stat st;
        if (e->d_name[0] == '.' ||
            snprintf(child, sizeof child, "%s/%s", path, e->d_name) >= (int)sizeof child ||
            lstat(child, &st) != 0)
            continue;
        if (S_ISDIR(st.st_mode) && depth < 2)
            list_files(l, child, depth + 1);
        if (!S_ISREG(st.st_mode) || depth != 2 || !is_page_name(e->d_name))
            continue;
        if (strstr(e->d_name, ".tmp-")) {
            if (time_of(&st) + STALE_S * 1000000000ull < sl_wall_ns())
                unlink(child);
            continue;
        }
        l->bytes += (uint64_t)st.st_size;
        keep(l, child, &st);
    }
    if (d)
        closedir(d);
}

static int by_time(const void *a, const void *b)
{
    const found *x = a, *y = b;
    return (x->time > y->time) - (x->time < y->time);
}

static void free_listing(listing *l)
{
    for (size_t i = 0; i < l->n; i++)
        free(l->v[i].path);
    free(l->v);
}

static void evict(sl_nixl_files *f, uint64_t most, uint64_t *evicted)
{
    listing l = {0};
    uint64_t now = sl_wall_ns();
    list_files(&l, f->directory, 0);
    if (l.n)
        qsort(l.v, l.n, sizeof *l.v, by_time);
    for (size_t i = 0; i < l.n && l.bytes > most && l.v[i].time <= now; i++)
        if (unlink(l.v[i].path) == 0) {
            l.bytes -= l.v[i].bytes;
            (*evicted)++;
        }
    f->used = l.bytes;
    free_listing(&l);
}

bool sl_nixl_files_make_room(sl_nixl_files *f, uint64_t *evicted)
{
    uint64_t next = f->pending + f->record_bytes, tenth = f->capacity / 10;
    if (next > f->capacity)
        return false;
    if (f->used + next > f->capacity) {
        uint64_t spare = tenth > next ? tenth : next;
        evict(f, f->capacity - spare, evicted);
    }
    if (f->used + next > f->capacity)
        return false;
    f->pending = next;
    return true;
}

sl_status sl_nixl_files_open(sl_nixl_files *f, const sl_tier_opts *o, const char *prefix, sl_err *err)
{
    struct stat st;
    listing l = {0};
    size_t whole = SL_PAGE_RECORD_BYTES + o->page_bytes;
    const char *path = o->directory ? o->directory : ((const sl_nixl_options *)o->options)->path;
    if (!path[0] || strlen(path) >= sizeof f->directory)
        return sl_fail(err, SL_ERR_INVALID,
                       "kvstore.nixl.path: a directory of 1 to %zu characters is mandatory",
                       sizeof f->directory - 1);
    snprintf(f->directory, sizeof f->directory, "%s", path);
    f->record_bytes = (whole + SL_NIXL_ALIGN - 1) / SL_NIXL_ALIGN * SL_NIXL_ALIGN;
    f->capacity = o->capacity_bytes;
    f->direct = true;
    if (f->capacity < f->record_bytes)
        return sl_fail(err, SL_ERR_INVALID, "kvstore.nixl.bytes: %lu bytes hold no record of %zu",
                       f->capacity, f->record_bytes);
    if (stat(f->directory, &st) != 0)
        return sl_fail(err, SL_ERR_IO, "kvstore.nixl.path: %.300s: %s", f->directory, strerror(errno));
    if (!S_ISDIR(st.st_mode))
        return sl_fail(err, SL_ERR_INVALID, "kvstore.nixl.path: %.300s is not a directory", f->directory);
    if (st.st_uid != geteuid())
        return sl_fail(err, SL_ERR_REFUSED, "kvstore.nixl.path: %.300s belongs to another user",
                       f->directory);
    if (st.st_mode & S_IWOTH)
        return sl_fail(err, SL_ERR_REFUSED, "kvstore.nixl.path: %.300s can be written by every user",
                       f->directory);
    if (access(f->directory, R_OK | W_OK | X_OK) != 0)
        return sl_fail(err, SL_ERR_IO, "kvstore.nixl.path: %.300s: %s", f->directory, strerror(errno));
    sl_page_name_stem(prefix, o, '-', f->stem);
    f->stem[strlen(f->stem) - 1] = '\0'; /* its last separator */
    list_files(&l, f->directory, 0);
    f->used = l.bytes;
    free_listing(&l);
    return SL_OK;
}
