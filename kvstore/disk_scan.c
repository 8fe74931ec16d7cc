/* See disk_scan.h. Reads go through the page cache, which a tool may use: it needs no O_DIRECT and no io_uring. */
#include "kvstore/disk_scan.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

static sl_status failed(const sl_disk_scan *s, int e, sl_err *err)
{
    return sl_fail(err, e == ENOENT ? SL_ERR_NOT_FOUND : SL_ERR_IO, "%s: %s", s->path, strerror(e));
}

/* 0, or what went wrong: an errno, or EPIPE for the end of the file. */
static int read_at(const sl_disk_scan *s, uint64_t offset, void *to, size_t n)
{
    for (size_t got = 0; got < n;) {
        ssize_t k = pread(s->fd, (uint8_t *)to + got, n - got, (off_t)(offset + got));
        if (k < 0 && errno == EINTR)
            continue;
        if (k <= 0)
            return k < 0 ? errno : EPIPE;
        got += (size_t)k;
    }
    return 0;
}

static sl_status open_file(sl_disk_scan *s, sl_err *err)
{
    uint8_t block[SL_DISK_BLOCK];
    struct stat st;
    s->fd = openat(s->dir_fd, "pages.sluice", O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (s->fd < 0 || fstat(s->fd, &st) != 0)
        return failed(s, errno, err);
    int e = read_at(s, 0, block, sizeof block);
    if (e)
        return sl_fail(err, e == EPIPE ? SL_ERR_REFUSED : SL_ERR_IO, "%s: %s", s->path,
                       e == EPIPE ? "is too short for a store" : strerror(e));
    sl_status status = sl_disk_store_read(block, &s->store, err);
    if (status != SL_OK)
        return sl_fail_in(err, SL_ERR_REFUSED, "%s", s->path);
    s->file_bytes = (uint64_t)st.st_size;
    s->n_segments = (s->file_bytes - SL_DISK_BLOCK) / sl_disk_segment_bytes(&s->store);
    s->slot = malloc(sl_disk_slot_bytes(&s->store));
    return s->slot ? SL_OK : sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
}

sl_status sl_disk_scan_open(const char *directory, sl_disk_scan *out, sl_err *err)
{
    sl_disk_scan s = {.dir_fd = -1, .fd = -1};
    sl_status st;
    snprintf(s.path, sizeof s.path, "%.480s/pages.sluice", directory);
    s.dir_fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (s.dir_fd < 0)
        return sl_fail(err, errno == ENOENT ? SL_ERR_NOT_FOUND : SL_ERR_IO, "%s: %s", directory,
                       strerror(errno));
    if (flock(s.dir_fd, LOCK_SH | LOCK_NB) != 0)
        st = sl_fail(err, SL_ERR_REFUSED, "%s: is in use by a worker; stop it first", directory);
    else
        st = open_file(&s, err);
    if (st == SL_OK)
        *out = s;
    else
        sl_disk_scan_close(&s);
    return st;
}

void sl_disk_scan_close(sl_disk_scan *s)
{
    if (s->fd >= 0)
        close(s->fd);
    if (s->dir_fd >= 0)
        close(s->dir_fd);
    free(s->slot);
    *s = (sl_disk_scan){.dir_fd = -1, .fd = -1};
}

static bool belongs(const sl_disk_record *r, const sl_disk_store *s, uint64_t slot)
{
    return r->store_id == s->id && r->slot == slot && r->length == s->page_bytes &&
           sl_key_eq(r->fingerprint, s->fingerprint) && sl_key_eq(r->format, s->format);
}

/* A slot whose header is in s->slot. */
static void visit(const sl_disk_scan *s, const sl_disk_segment *g, uint64_t slot, bool pages,
                  const sl_disk_scan_calls *calls, sl_disk_scanned *out)
{
    sl_disk_found f = {.segment = g->index, .slot = slot};
    if (sl_disk_record_read(s->slot, &f.record) != SL_OK || !belongs(&f.record, &s->store, slot))
        return;
    if (f.record.generation != g->generation) {
        out->stale++;
        return;
    }
    f.damaged = pages && sl_crc32c(0, s->slot + SL_DISK_BLOCK, s->store.page_bytes) != f.record.crc;
    out->records++;
    out->damaged += f.damaged;
    if (f.record.sequence > out->sequence)
        out->sequence = f.record.sequence;
    if (out->records == 1 || f.record.sequence < out->oldest)
        out->oldest = f.record.sequence;
    if (calls->found)
        calls->found(calls->ctx, &f);
}

static sl_status scan_segment(sl_disk_scan *s, uint64_t i, bool pages, const sl_disk_scan_calls *calls,
                              sl_disk_scanned *out, sl_err *err)
{
    uint8_t block[SL_DISK_BLOCK];
    sl_disk_segment g;
    uint64_t at = sl_disk_segment_at(&s->store, i);
    int e = read_at(s, at, block, sizeof block);
    if (!e && (sl_disk_segment_read(block, &g) != SL_OK || g.store_id != s->store.id || g.index != i))
        return SL_OK; /* it was never filled */
    out->segments_used++;
    size_t n = pages ? sl_disk_slot_bytes(&s->store) : SL_DISK_BLOCK;
    for (uint32_t k = 0; !e && k < s->store.slots_per_segment; k++) {
        uint64_t slot = i * s->store.slots_per_segment + k;
        at = sl_disk_slot_at(&s->store, slot);
        e = read_at(s, at, s->slot, n);
        if (!e)
            visit(s, &g, slot, pages, calls, out);
    }
    return e ? sl_fail(err, SL_ERR_IO, "%s: offset %" PRIu64 ": %s", s->path, at,
                       e == EPIPE ? "the file ends" : strerror(e))
             : SL_OK;
}

sl_status sl_disk_scan_run(sl_disk_scan *s, bool pages, const sl_disk_scan_calls *calls, sl_disk_scanned *out,
                           sl_err *err)
{
    *out = (sl_disk_scanned){0};
    posix_fadvise(s->fd, 0, 0, pages ? POSIX_FADV_SEQUENTIAL : POSIX_FADV_RANDOM);
    for (uint64_t i = 0; i < s->n_segments; i++) {
        SL_TRY(scan_segment(s, i, pages, calls, out, err));
        if (pages) /* what was read will not be read again */
            posix_fadvise(s->fd, (off_t)sl_disk_segment_at(&s->store, i),
                          (off_t)sl_disk_segment_bytes(&s->store), POSIX_FADV_DONTNEED);
        if (calls->segment)
            calls->segment(calls->ctx, i + 1, s->n_segments);
    }
    return SL_OK;
}
