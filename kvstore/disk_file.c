/*
 * Directory and file of the disk tier: who may use them, creation, size. Everything that a later write could find wrong
 * is found here: the space is allocated at open, so a full disk refuses the start and not a page.
 *
 * A new store is written as `pages.sluice.new` and renamed when it is complete, so an interrupted creation leaves nothing
 * that looks like a store.
 *
 * A cache must not keep a worker from starting. So what has the name of the store but cannot be read as one (a damaged
 * first block, an empty file, another format version, a directory, a link, a pipe) is renamed to `pages.damaged`, in place
 * of an older one, and a new store is begun. A store of another model or geometry is whole: it is refused and kept.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/log.h"
#include "kvstore/disk_impl.h"

#define NAME "pages.sluice"
#define NEW_NAME "pages.sluice.new"
#define ASIDE_NAME "pages.damaged"

const sl_disk_hooks *sl_disk_test_hooks;

static int injected(const char *step)
{
    const sl_disk_hooks *h = sl_disk_test_hooks;
    return h && h->open_errno ? h->open_errno(h->ctx, step) : 0;
}

/* The worker's own directory. What is in the directories above it is the operator's matter; a link in its own place could have
 * been put there by another user of the directory above, and is not followed. */
static sl_status open_directory(const char *path, int *out, sl_err *err)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 && (errno == ELOOP || errno == ENOTDIR))
        return sl_fail(err, SL_ERR_REFUSED,
                       "tier disk: %s is a link or no directory; links are not followed here: name the other "
                       "directory in kvstore.disk.path",
                       path);
    if (fd < 0)
        return sl_fail(err, errno == ENOENT ? SL_ERR_NOT_FOUND : SL_ERR_IO, "tier disk: directory %s: %s",
                       path, strerror(errno));
    sl_status status = SL_ERR_REFUSED;
    if (fstat(fd, &st) != 0)
        status = sl_fail(err, SL_ERR_IO, "tier disk: directory %s: %s", path, strerror(errno));
    else if (st.st_uid != geteuid())
        sl_fail(err, status, "tier disk: directory %s belongs to user %u, this process runs as user %u", path,
                (unsigned)st.st_uid, (unsigned)geteuid());
    else if (st.st_mode & (S_IWGRP | S_IWOTH))
        sl_fail(err, status, "tier disk: directory %s can be written by other users (mode %03o); chmod 700",
                path, (unsigned)st.st_mode & 0777);
    else if (flock(fd, LOCK_EX | LOCK_NB) != 0)
        sl_fail(err, status, "tier disk: directory %s is in use by another process", path);
    else {
        *out = fd;
        return SL_OK;
    }
    close(fd);
    return status;
}

/* -errno, or a descriptor. */
static int open_file(int dir_fd, const char *name, int flags)
{
    int e = injected("open");
    if (e)
        return -e;
    int fd = openat(dir_fd, name, flags | O_RDWR | O_DIRECT | O_NOFOLLOW | O_CLOEXEC, 0600);
    return fd < 0 ? -errno : fd;
}

static sl_status open_failed(const char *path, int e, sl_err *err)
{
    if (e == EINVAL)
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "tier disk: %s: the file system has no O_DIRECT; choose a directory on "
                       "a local disk",
                       path);
    return sl_fail(err, SL_ERR_IO, "tier disk: %s: %s", path, strerror(e));
}

/* Allocates the file up to this size; SL_ERR_EXHAUSTED names the key. */
static sl_status allocate(int fd, const char *path, uint64_t from, uint64_t to, sl_err *err)
{
    struct statvfs v;
    if (fstatvfs(fd, &v) == 0 && v.f_bavail * v.f_frsize < to - from)
        return sl_fail(err, SL_ERR_EXHAUSTED,
                       "tier disk: %s: capacity_bytes asks for %" PRIu64
                       " more bytes, the file system has %" PRIu64 " free (" ASIDE_NAME
                       " in its directory, if there is one, may be deleted)",
                       path, to - from, (uint64_t)(v.f_bavail * v.f_frsize));
    int e = injected("fallocate");
    if (!e && fallocate(fd, 0, (off_t)from, (off_t)(to - from)) != 0)
        e = errno;
    if (!e)
        return SL_OK;
    return sl_fail(err, e == ENOSPC || e == EFBIG || e == EDQUOT ? SL_ERR_EXHAUSTED : SL_ERR_UNSUPPORTED,
                   "tier disk: %s: cannot allocate capacity_bytes (%" PRIu64 " bytes): %s", path, to,
                   strerror(e));
}

static sl_status set_segments(const sl_tier_opts *o, sl_disk_file *f, sl_err *err)
{
    uint64_t least = SL_DISK_BLOCK + sl_disk_segment_bytes(&f->store);
    if (o->capacity_bytes < least)
        return sl_fail(err, SL_ERR_INVALID,
                       "tier disk: capacity_bytes %" PRIu64 " holds no segment; at least %" PRIu64
                       " for pages of %zu bytes",
                       o->capacity_bytes, least, o->page_bytes);
    f->n_segments = sl_disk_segments_in(&f->store, o->capacity_bytes);
    return SL_OK;
}

static sl_status block_io(const sl_disk_file *f, uint8_t *block, bool write, sl_err *err)
{
    ssize_t n = write ? pwrite(f->fd, block, SL_DISK_BLOCK, 0) : pread(f->fd, block, SL_DISK_BLOCK, 0);
    if (n == SL_DISK_BLOCK)
        return SL_OK;
    return sl_fail(err, n < 0 ? SL_ERR_IO : SL_ERR_CORRUPT, "tier disk: %s: %s of the header: %s", f->path,
                   write ? "write" : "read", n < 0 ? strerror(errno) : "short");
}

static sl_status create(const sl_tier_opts *o, sl_disk_file *f, uint8_t *block, sl_err *err)
{
    f->store = (sl_disk_store){.id = sl_random_u64(),
                               .page_bytes = o->page_bytes,
                               .fingerprint = o->fingerprint,
                               .format = o->format};
    f->store.slots_per_segment = sl_disk_slots_of(&f->store, o->capacity_bytes, o->segment_bytes);
    SL_TRY(set_segments(o, f, err));
    f->fd = open_file(f->dir_fd, NEW_NAME, O_CREAT | O_TRUNC);
    if (f->fd < 0) {
        sl_status st = open_failed(f->path, -f->fd, err);
        unlinkat(f->dir_fd, NEW_NAME, 0);
        return st;
    }
    sl_disk_store_write(&f->store, block);
    sl_status st = allocate(f->fd, f->path, 0, sl_disk_segment_at(&f->store, f->n_segments), err);
    if (st == SL_OK)
        st = block_io(f, block, true, err);
    if (st == SL_OK && (fdatasync(f->fd) != 0 || renameat(f->dir_fd, NEW_NAME, f->dir_fd, NAME) != 0 ||
                        fsync(f->dir_fd) != 0))
        st = sl_fail(err, SL_ERR_IO, "tier disk: %s: %s", f->path, strerror(errno));
    if (st != SL_OK)
        unlinkat(f->dir_fd, NEW_NAME, 0);
    return st;
}

static sl_status check_identity(const sl_tier_opts *o, const sl_disk_file *f, sl_err *err)
{
    const sl_disk_store *s = &f->store;
    if (s->page_bytes != o->page_bytes)
        return sl_fail(err, SL_ERR_REFUSED,
                       "tier disk: %s: page_bytes: the store has pages of %" PRIu64
                       " bytes, this model's have %zu",
                       f->path, s->page_bytes, o->page_bytes);
    if (!sl_key_eq(s->fingerprint, o->fingerprint))
        return sl_fail(err, SL_ERR_REFUSED,
                       "tier disk: %s: fingerprint: the store belongs to model %016" PRIx64 "%016" PRIx64
                       ", this one is %016" PRIx64 "%016" PRIx64 "; use another directory",
                       f->path, s->fingerprint.hi, s->fingerprint.lo, o->fingerprint.hi, o->fingerprint.lo);
    if (!sl_key_eq(s->format, o->format))
        return sl_fail(err, SL_ERR_REFUSED,
                       "tier disk: %s: format: the store has another page geometry; use another "
                       "directory",
                       f->path);
    return SL_OK;
}

/* Grows or shrinks an existing file; segments after the new end are forgotten. */
static sl_status resize(const sl_tier_opts *o, sl_disk_file *f, sl_err *err)
{
    struct stat st;
    SL_TRY(set_segments(o, f, err));
    uint64_t want = sl_disk_segment_at(&f->store, f->n_segments);
    if (fstat(f->fd, &st) != 0)
        return sl_fail(err, SL_ERR_IO, "tier disk: %s: %s", f->path, strerror(errno));
    if ((uint64_t)st.st_size < want)
        return allocate(f->fd, f->path, (uint64_t)st.st_size, want, err);
    if ((uint64_t)st.st_size > want && ftruncate(f->fd, (off_t)want) != 0)
        return sl_fail(err, SL_ERR_IO, "tier disk: %s: %s", f->path, strerror(errno));
    return SL_OK;
}

/* Opens what has the name of the store. SL_ERR_NOT_FOUND: nothing has. SL_ERR_CORRUPT, or SL_ERR_UNSUPPORTED with an open
 * file: it is no store that this program can read. */
static sl_status read_store(sl_disk_file *f, uint8_t *block, sl_err *err)
{
    struct stat st;
    if (fstatat(f->dir_fd, NAME, &st, AT_SYMLINK_NOFOLLOW) == 0 &&
        (!S_ISREG(st.st_mode) || st.st_uid != geteuid()))
        return sl_fail(err, SL_ERR_CORRUPT, "it is not a regular file of this user");
    f->fd = open_file(f->dir_fd, NAME, 0);
    if (f->fd == -ENOENT)
        return sl_fail(err, SL_ERR_NOT_FOUND, "absent");
    if (f->fd < 0)
        return open_failed(f->path, -f->fd, err);
    if (fstat(f->fd, &st) != 0)
        return sl_fail(err, SL_ERR_IO, "tier disk: %s: %s", f->path, strerror(errno));
    if (st.st_size < SL_DISK_BLOCK)
        return sl_fail(err, SL_ERR_CORRUPT, "it has %lld bytes, fewer than a header", (long long)st.st_size);
    SL_TRY(block_io(f, block, false, err));
    return sl_disk_store_read(block, &f->store, err);
}

/* Renames what has the name of the store. A directory is not replaced by rename(), so an older one stops this. */
static sl_status set_aside(sl_disk_file *f, const char *reason, sl_err *err)
{
    if (renameat(f->dir_fd, NAME, f->dir_fd, ASIDE_NAME) != 0)
        return sl_fail(err, SL_ERR_IO,
                       "tier disk: %s: cannot be used (%.200s), and not be renamed to " ASIDE_NAME
                       ": %s; delete it, or what has that name",
                       f->path, reason, strerror(errno));
    f->set_aside = true;
    sl_log(SL_LOG_ERROR, "tier", "set_aside",
           "file=%s to=" ASIDE_NAME " reason=\"%s\" effect=\"a new store is begun\" "
           "advice=\"look for a failing disk, then delete " ASIDE_NAME "\"",
           f->path, reason);
    return SL_OK;
}

static sl_status open_in_directory(const sl_tier_opts *o, sl_disk_file *f, sl_err *err)
{
    void *block = aligned_alloc(SL_DISK_BLOCK, SL_DISK_BLOCK);
    sl_err why = {0};
    if (!block)
        return sl_fail(err, SL_ERR_NO_MEMORY, "tier disk: out of memory");
    sl_status st = read_store(f, block, &why);
    bool absent = st == SL_ERR_NOT_FOUND;
    bool unreadable = st == SL_ERR_CORRUPT || (st == SL_ERR_UNSUPPORTED && f->fd >= 0);
    if (unreadable) {
        if (f->fd >= 0)
            close(f->fd);
        f->fd = -1;
        st = set_aside(f, why.text, err);
    } else if (absent) {
        st = SL_OK;
    } else if (st != SL_OK) {
        sl_fail(err, st, "%s", why.text);
    } else if ((st = check_identity(o, f, err)) == SL_OK) {
        st = resize(o, f, err);
    }
    if (st == SL_OK && (absent || unreadable))
        st = create(o, f, block, err);
    free(block);
    return st;
}

sl_status sl_disk_file_open(const sl_tier_opts *o, sl_disk_file *out, sl_err *err)
{
    sl_disk_file f = {.dir_fd = -1, .fd = -1};
    if (!o->page_bytes || o->page_bytes > (size_t)1 << 30)
        return sl_fail(err, SL_ERR_INVALID, "tier disk: page_bytes %zu is not in 1..2^30", o->page_bytes);
    if (!o->capacity_bytes)
        return sl_fail(err, SL_ERR_INVALID, "tier disk: capacity_bytes is mandatory");
    if (!o->directory || strlen(o->directory) + sizeof NEW_NAME + 1 > sizeof f.path)
        return sl_fail(err, SL_ERR_INVALID, "tier disk: directory is %s",
                       o->directory ? "too long" : "mandatory");
    snprintf(f.path, sizeof f.path, "%s/" NAME, o->directory);
    SL_TRY(open_directory(o->directory, &f.dir_fd, err));
    sl_status st = open_in_directory(o, &f, err);
    if (st != SL_OK) {
        sl_disk_file_close(&f);
        return st;
    }
    *out = f;
    return SL_OK;
}

void sl_disk_file_close(sl_disk_file *f)
{
    if (f->fd >= 0)
        close(f->fd);
    if (f->dir_fd >= 0)
        close(f->dir_fd);
    f->fd = f->dir_fd = -1;
}
