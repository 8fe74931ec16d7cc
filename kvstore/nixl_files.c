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

/* A page, or its temporary file: its name, and the directory that has it. */
typedef struct place {
    int fd;
    char name[SL_NIXL_NAME_BYTES];
} place;

/* A directory in a directory, made if it is not there. -1 with errno: ELOOP or ENOTDIR when it is a link. */
static int enter(int parent, const char *name, bool make, int flags)
{
    const int how = flags | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC;
    int fd = openat(parent, name, how);
    if (fd < 0 && errno == ENOENT && make && (mkdirat(parent, name, 0700) == 0 || errno == EEXIST))
        fd = openat(parent, name, how);
    return fd;
}

/* The place of name, which begins with the key, in STEM/xx. False: errno says why. Ends with leave(). */
static bool find(const sl_nixl_files *f, const char *stem, const char *name, bool make, place *out)
{
    const char part[3] = {name[0], name[1], '\0'};
    int top = open(f->directory, O_PATH | O_DIRECTORY | O_CLOEXEC);
    int middle = top < 0 ? -1 : enter(top, stem, make, O_PATH);
    out->fd = middle < 0 ? -1 : enter(middle, part, make, O_PATH);
    snprintf(out->name, sizeof out->name, "%s", name);
    int reason = errno;
    if (top >= 0)
        close(top);
    if (middle >= 0)
        close(middle);
    errno = reason;
    return out->fd >= 0;
}

static bool find_page(const sl_nixl_files *f, sl_key key, place *out)
{
    char name[33];
    sl_page_name_key(key, name);
    return find(f, f->stem, name, false, out);
}

static void leave(const place *p)
{
    int reason = errno;
    close(p->fd);
    errno = reason;
}

static bool look(const place *p, struct stat *st)
{
    return fstatat(p->fd, p->name, st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st->st_mode);
}

static void set_time(const place *p, uint64_t ns)
{
    struct timespec t = {(time_t)(ns / 1000000000u), (long)(ns % 1000000000u)};
    utimensat(p->fd, p->name, (struct timespec[2]){t, t}, AT_SYMLINK_NOFOLLOW);
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
    place p;
    struct stat st;
    if (!find_page(f, key, &p))
        return false;
    bool there = look(&p, &st) && (uint64_t)st.st_size == f->record_bytes;
    uint64_t until = sl_wall_ns() + lease_ms * 1000000ull;
    if (there && time_of(&st) < until) /* of several leases the latest end counts */
        set_time(&p, until);
    leave(&p);
    return there;
}

void sl_nixl_file_release(const sl_nixl_files *f, sl_key key)
{
    place p;
    struct stat st;
    uint64_t now = sl_wall_ns();
    if (!find_page(f, key, &p))
        return;
    if (look(&p, &st) && time_of(&st) > now)
        set_time(&p, now);
    leave(&p);
}

/* Opens with O_DIRECT where the file system has it, which a file of its own shows. */
static int open_file(sl_nixl_files *f, const place *p, int flags)
{
    int fd = openat(p->fd, p->name, flags | O_CLOEXEC | O_NOFOLLOW | (f->direct ? O_DIRECT : 0), 0600);
    if (fd >= 0 || errno != EINVAL || !f->direct)
        return fd;
    if (flags & O_CREAT) {
        f->direct = false;
        unlinkat(p->fd, p->name, 0); /* it may have been created */
    }
    return openat(p->fd, p->name, flags | O_CLOEXEC | O_NOFOLLOW, 0600);
}

sl_status sl_nixl_file_read(sl_nixl_files *f, sl_key key, int *fd)
{
    place p;
    struct stat st;
    int opened = -1;
    if (find_page(f, key, &p)) {
        opened =
            open_file(f, &p, O_RDONLY | O_NONBLOCK); /* a pipe under this name must not hold the thread */
        leave(&p);
    }
    if (opened < 0)
        return errno == ENOENT || errno == ENOTDIR ? SL_ERR_NOT_FOUND
               : errno == ELOOP                    ? SL_ERR_CORRUPT
                                                   : SL_ERR_IO;
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

sl_status sl_nixl_file_create(sl_nixl_files *f, sl_key key, char temporary[SL_NIXL_NAME_BYTES], int *fd)
{
    char name[33];
    place p;
    sl_page_name_key(key, name);
    snprintf(temporary, SL_NIXL_NAME_BYTES, "%s.tmp-%d-%llx-%llu", name, (int)getpid(),
             (unsigned long long)(uintptr_t)f, (unsigned long long)f->number++);
    if (!find(f, f->stem, temporary, true, &p))
        return SL_ERR_IO;
    *fd = open_file(f, &p, O_WRONLY | O_CREAT | O_EXCL);
    leave(&p);
    return *fd >= 0 ? SL_OK : SL_ERR_IO;
}

void sl_nixl_file_give_up(sl_nixl_files *f, const char *temporary)
{
    place p;
    if (temporary[0] && find(f, f->stem, temporary, false, &p)) {
        unlinkat(p.fd, p.name, 0);
        leave(&p);
    }
    f->pending -= f->record_bytes;
}

/* NIXL's POSIX plug-in does not report every failed or short write: the length has to be seen. */
static bool commit(const sl_nixl_files *f, sl_key key, const char *temporary, int fd)
{
    char name[33];
    place p;
    struct stat st;
    sl_page_name_key(key, name);
    if (fstat(fd, &st) != 0 || (uint64_t)st.st_size != f->record_bytes) {
        errno = ENOSPC;
        return false;
    }
    if (!find(f, f->stem, temporary, false, &p))
        return false;
    bool done = renameat(p.fd, p.name, p.fd, name) == 0;
    leave(&p);
    return done;
}

sl_status sl_nixl_file_commit(sl_nixl_files *f, sl_key key, const char *temporary, int fd)
{
    if (!commit(f, key, temporary, fd)) {
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
    place p;
    if (!find_page(f, key, &p))
        return false;
    bool removed = unlinkat(p.fd, p.name, 0) == 0;
    leave(&p);
    if (removed)
        f->used -= f->used < f->record_bytes ? f->used : f->record_bytes;
    return removed;
}

bool sl_nixl_file_damage(const sl_nixl_files *f, sl_key key, uint64_t at)
{
    place p;
    uint8_t byte;
    if (!find_page(f, key, &p))
        return false;
    int fd = openat(p.fd, p.name, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    bool done = fd >= 0 && pread(fd, &byte, 1, (off_t)at) == 1;
    byte = done ? byte ^ 0x40 : 0;
    done = done && pwrite(fd, &byte, 1, (off_t)at) == 1;
    if (fd >= 0)
        close(fd);
    leave(&p);
    return done;
}

/* ---- the size limit ---- */

typedef struct found {
    uint64_t time, bytes;
    char *stem, name[33];
} found;

typedef struct listing {
    found *v;
    size_t n, cap;
    uint64_t bytes;
} listing;

static bool keep(listing *l, const char *stem, const char *name, const struct stat *st)
{
    if (l->n == l->cap) {
        size_t cap = l->cap ? 2 * l->cap : 256;
        found *v = realloc(l->v, cap * sizeof *v);
        if (!v)
            return false;
        l->v = v;
        l->cap = cap;
    }
    found at = {.time = time_of(st), .bytes = (uint64_t)st->st_size, .stem = strdup(stem)};
    if (!at.stem)
        return false;
    memcpy(at.name, name, sizeof at.name - 1); /* 32 digits */
    l->v[l->n++] = at;
    return true;
}

/* Whether this is the name of a page, or of its temporary file: other files are neither counted nor removed. */
static bool is_page_name(const char *name)
{
    return strspn(name, "0123456789abcdef") == 32 && (!name[32] || strncmp(name + 32, ".tmp-", 5) == 0);
}

static void list_file(listing *l, int dir, const char *stem, const char *name)
{
    struct stat st;
    if (!is_page_name(name) || fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) != 0 || !S_ISREG(st.st_mode))
        return;
    if (!name[32]) {
        l->bytes += (uint64_t)st.st_size;
        keep(l, stem, name, &st);
    } else if (time_of(&st) + STALE_S * 1000000000ull < sl_wall_ns()) {
        unlinkat(dir, name, 0);
    }
}

/* Files of DIRECTORY/STEM/xx, of all stems, because the limit is that of the directory. Takes fd; stem: of depths 1 and 2. */
static void list_files(listing *l, int fd, const char *stem, int depth)
{
    DIR *d = fd < 0 ? NULL : fdopendir(fd);
    struct dirent *e;
    if (!d && fd >= 0)
        close(fd);
    while (d && (e = readdir(d))) {
        if (e->d_name[0] == '.')
            continue;
        if (depth == 2)
            list_file(l, dirfd(d), stem, e->d_name);
        else
            list_files(l, enter(dirfd(d), e->d_name, false, O_RDONLY), depth ? stem : e->d_name, depth + 1);
    }
    if (d)
        closedir(d);
}

static void list_all(const sl_nixl_files *f, listing *l)
{
    list_files(l, open(f->directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC), "", 0);
}

static int by_time(const void *a, const void *b)
{
    const found *x = a, *y = b;
    return (x->time > y->time) - (x->time < y->time);
}

static void free_listing(listing *l)
{
    for (size_t i = 0; i < l->n; i++)
        free(l->v[i].stem);
    free(l->v);
}

static void evict(sl_nixl_files *f, uint64_t most, uint64_t *evicted)
{
    listing l = {0};
    place p;
    uint64_t now = sl_wall_ns();
    list_all(f, &l);
    if (l.n)
        qsort(l.v, l.n, sizeof *l.v, by_time);
    for (size_t i = 0; i < l.n && l.bytes > most && l.v[i].time <= now; i++) {
        if (!find(f, l.v[i].stem, l.v[i].name, false, &p))
            continue;
        if (unlinkat(p.fd, p.name, 0) == 0) {
            l.bytes -= l.v[i].bytes;
            (*evicted)++;
        }
        leave(&p);
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
    list_all(f, &l);
    f->used = l.bytes;
    free_listing(&l);
    return SL_OK;
}
