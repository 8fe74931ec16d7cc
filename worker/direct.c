/*
 * See direct.h. Both memfds are opened by the writer through /proc/PID/fd, which the kernel allows to
 * processes of the same user; a random number in the control block proves that the right one was found.
 */
#include "worker/direct.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif

#define MAGIC UINT64_C(0x31746365726c6c73)

/* An entry has a cache line of its own: two processes spin on nothing here, but write often. */
typedef struct entry {
    _Alignas(64) _Atomic uint32_t granted, busy;
} entry;

typedef struct control {
    uint64_t magic, nonce[2], arena_inode, arena_bytes;
    entry slot[SL_DIRECT_SLOTS];
} control;

typedef enum { SLOT_FREE, SLOT_GRANTED, SLOT_REVOKED } slot_state;

struct sl_direct_host {
    int arena_fd, control_fd;
    uint64_t bytes;
    control *c;
    struct {
        slot_state state;
        int pidfd; /* of the last writer, until its process has ended; -1: entry never used, or it has */
    } slot[SL_DIRECT_SLOTS];
};

struct sl_direct {
    uint8_t *base;
    uint64_t bytes, mapped;
    control *c;
    entry *e;
    uint32_t nesting;
};

/* ---- owner ---- */

static int pidfd_open(uint32_t pid)
{
    return (int)syscall(SYS_pidfd_open, (pid_t)pid, 0);
}

static bool ended(int pidfd)
{
    struct pollfd p = {.fd = pidfd, .events = POLLIN};
    return poll(&p, 1, 0) > 0;
}

static sl_status make_control(sl_direct_host *h, sl_err *err)
{
    struct stat st;
    h->control_fd = memfd_create("sluice-direct", MFD_CLOEXEC);
    if (h->control_fd < 0 || ftruncate(h->control_fd, sizeof *h->c) != 0)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "no memfd: %s", strerror(errno));
    void *p = mmap(NULL, sizeof *h->c, PROT_READ | PROT_WRITE, MAP_SHARED, h->control_fd, 0);
    if (p == MAP_FAILED)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "cannot map a memfd: %s", strerror(errno));
    h->c = p;
    if (fstat(h->arena_fd, &st) != 0 || (uint64_t)st.st_size < h->bytes)
        return sl_fail(err, SL_ERR_INVALID, "the arena's file is shorter than the arena");
    h->c->arena_inode = st.st_ino;
    h->c->arena_bytes = h->bytes;
    h->c->magic = MAGIC;
    if (getrandom(h->c->nonce, sizeof h->c->nonce, 0) != (ssize_t)sizeof h->c->nonce)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "no random numbers: %s", strerror(errno));
    int self = pidfd_open((uint32_t)getpid());
    if (self < 0)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "this kernel has no pidfd: %s", strerror(errno));
    close(self);
    return SL_OK;
}

sl_status sl_direct_host_create(int arena_fd, uint64_t bytes, sl_direct_host **out, sl_err *err)
{
    sl_direct_host *h = calloc(1, sizeof *h);
    if (!h)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    h->arena_fd = arena_fd;
    h->control_fd = -1;
    h->bytes = bytes;
    for (int i = 0; i < SL_DIRECT_SLOTS; i++)
        h->slot[i].pidfd = -1;
    sl_status st = make_control(h, err);
    if (st != SL_OK) {
        sl_direct_host_destroy(h);
        return st;
    }
    *out = h;
    return SL_OK;
}

void sl_direct_host_destroy(sl_direct_host *h)
{
    if (!h)
        return;
    for (int i = 0; i < SL_DIRECT_SLOTS; i++) {
        if (h->c)
            atomic_store(&h->c->slot[i].granted, 0);
        if (h->slot[i].pidfd >= 0)
            close(h->slot[i].pidfd);
    }
    if (h->c)
        munmap(h->c, sizeof *h->c);
    if (h->control_fd >= 0)
        close(h->control_fd);
    free(h);
}

/* An entry that nobody can write through: never used, or its writer's process has ended. */
static int find_slot(sl_direct_host *h)
{
    for (int i = 0; i < SL_DIRECT_SLOTS; i++) {
        if (h->slot[i].state != SLOT_FREE)
            continue;
        if (h->slot[i].pidfd >= 0) {
            if (!ended(h->slot[i].pidfd))
                continue;
            close(h->slot[i].pidfd);
            h->slot[i].pidfd = -1;
        }
        return i;
    }
    return -1;
}

int sl_direct_grant(sl_direct_host *h, uint32_t writer_pid, uint8_t *desc, size_t *n, sl_err *err)
{
    int i = find_slot(h);
    if (i < 0)
        return sl_fail(err, SL_ERR_EXHAUSTED, "all %d entries for writers are in use", SL_DIRECT_SLOTS);
    int pidfd = writer_pid && writer_pid <= INT32_MAX ? pidfd_open(writer_pid) : -1;
    if (pidfd < 0)
        return sl_fail(err, SL_ERR_PEER, "no process %u on this host (or in this pid namespace)", writer_pid);
    sl_wr w;
    sl_wr_init(&w);
    sl_wr_u32(&w, (uint32_t)getpid());
    sl_wr_u32(&w, (uint32_t)h->control_fd);
    sl_wr_u32(&w, (uint32_t)h->arena_fd);
    sl_wr_u32(&w, (uint32_t)i);
    sl_wr_u64(&w, h->c->nonce[0]);
    sl_wr_u64(&w, h->c->nonce[1]);
    if (w.bad || w.len > SL_DIRECT_DESC_MAX) {
        sl_wr_free(&w);
        close(pidfd);
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    }
    memcpy(desc, w.data, w.len);
    *n = w.len;
    sl_wr_free(&w);
    h->slot[i].state = SLOT_GRANTED;
    h->slot[i].pidfd = pidfd;
    atomic_store(&h->c->slot[i].busy, 0);
    atomic_store(&h->c->slot[i].granted, 1);
    return i;
}

bool sl_direct_revoke(sl_direct_host *h, int slot)
{
    SL_CHECK(slot >= 0 && slot < SL_DIRECT_SLOTS && h->slot[slot].state != SLOT_FREE, "slot %d", slot);
    h->slot[slot].state = SLOT_REVOKED;
    atomic_store(&h->c->slot[slot].granted, 0);
    if (atomic_load(&h->c->slot[slot].busy) && !ended(h->slot[slot].pidfd))
        return false;
    h->slot[slot].state = SLOT_FREE;
    return true;
}

/* ---- writer ---- */

static sl_status open_of(uint32_t pid, uint32_t fd, int *out, sl_err *err)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%" PRIu32 "/fd/%" PRIu32, pid, fd);
    *out = open(path, O_RDWR | O_CLOEXEC);
    if (*out < 0)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "cannot open its memory (%s): %s", path, strerror(errno));
    return SL_OK;
}

static void *map_fd(int fd, uint64_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return p == MAP_FAILED ? NULL : p;
}

static sl_status map_control(sl_direct *d, int fd, uint32_t slot, const uint64_t nonce[2], sl_err *err)
{
    struct stat st;
    if (fstat(fd, &st) != 0 || (uint64_t)st.st_size != sizeof *d->c || slot >= SL_DIRECT_SLOTS)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "what was found there is not its control block");
    d->c = map_fd(fd, sizeof *d->c);
    if (!d->c)
        return sl_fail(err, SL_ERR_NO_MEMORY, "cannot map its control block: %s", strerror(errno));
    if (d->c->magic != MAGIC || memcmp(d->c->nonce, nonce, sizeof d->c->nonce) != 0)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "it is a process of another host or pid namespace");
    d->e = &d->c->slot[slot];
    return SL_OK;
}

static sl_status map_pages(sl_direct *d, int fd, uint64_t bytes, sl_err *err)
{
    struct stat st;
    if (fstat(fd, &st) != 0 || st.st_ino != d->c->arena_inode || d->c->arena_bytes != bytes ||
        (uint64_t)st.st_size < bytes)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "what was found there is not its arena");
    d->base = map_fd(fd, (uint64_t)st.st_size);
    if (!d->base)
        return sl_fail(err, SL_ERR_NO_MEMORY, "cannot map its arena: %s", strerror(errno));
    d->mapped = (uint64_t)st.st_size;
    d->bytes = bytes;
    return SL_OK;
}

sl_status sl_direct_attach(const void *desc, size_t n, uint64_t bytes, sl_direct **out, sl_err *err)
{
    sl_rd r = sl_rd_init(desc, n);
    uint32_t pid = sl_rd_u32(&r), control_fd = sl_rd_u32(&r), arena_fd = sl_rd_u32(&r), slot = sl_rd_u32(&r);
    uint64_t nonce[2];
    nonce[0] = sl_rd_u64(&r);
    nonce[1] = sl_rd_u64(&r);
    if (sl_rd_done(&r) != SL_OK)
        return sl_fail(err, SL_ERR_CORRUPT, "its descriptor does not decode");
    sl_direct *d = calloc(1, sizeof *d);
    if (!d)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    int cfd = -1, afd = -1;
    sl_status st = open_of(pid, control_fd, &cfd, err);
    if (st == SL_OK)
        st = map_control(d, cfd, slot, nonce, err);
    if (st == SL_OK)
        st = open_of(pid, arena_fd, &afd, err);
    if (st == SL_OK)
        st = map_pages(d, afd, bytes, err);
    if (cfd >= 0)
        close(cfd);
    if (afd >= 0)
        close(afd);
    if (st != SL_OK) {
        sl_direct_detach(d);
        return st;
    }
    *out = d;
    return SL_OK;
}

void sl_direct_detach(sl_direct *d)
{
    if (!d)
        return;
    SL_CHECK(!d->nesting, "%u writes on their way", d->nesting);
    if (d->base)
        munmap(d->base, d->mapped);
    if (d->c)
        munmap(d->c, sizeof *d->c);
    free(d);
}

uint8_t *sl_direct_base(const sl_direct *d)
{
    return d->base;
}

uint64_t sl_direct_bytes(const sl_direct *d)
{
    return d->bytes;
}

bool sl_direct_begin(sl_direct *d)
{
    if (!d->nesting)
        atomic_store(&d->e->busy, 1);
    if (!atomic_load(&d->e->granted)) {
        if (!d->nesting)
            atomic_store(&d->e->busy, 0);
        return false;
    }
    d->nesting++;
    return true;
}

void sl_direct_end(sl_direct *d)
{
    SL_CHECK(d->nesting, "end without begin");
    if (!--d->nesting)
        atomic_store(&d->e->busy, 0);
}
