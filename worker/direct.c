/*
 * See direct.h. The writer opens both memfds through /proc/PID/fd, which the kernel allows to processes of the
 * same user; a random number in the control block proves that the right process was found.
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

#define MAGIC UINT64_C(0x32746365726c6c73)

/*
 * An entry has a cache line of its own, because its writer writes to it often.
 *
 * `use` contains the number of the grant that the entry serves (upper bits) and the state of its writer (lowest two
 * bits). The owner writes OFFERED and WITHDRAWN. A writer replaces OFFERED by ATTACHED with a compare-and-swap when it
 * attaches; when it detaches, its last access to the entry is to write LEFT. An attach that comes late, for an earlier
 * grant, fails because the number of the grant differs.
 */
typedef struct entry {
    _Alignas(64) _Atomic uint32_t granted, busy;
    _Atomic uint64_t use;
} entry;

enum { USE_OFFERED = 1, USE_ATTACHED = 2, USE_LEFT = 3, USE_WITHDRAWN = 0 };

static uint64_t use_of(uint32_t grant, unsigned step)
{
    return (uint64_t)grant << 2 | step;
}

typedef struct control {
    uint64_t magic, nonce[2], arena_inode, arena_bytes;
    entry slot[SL_DIRECT_SLOTS];
} control;

/*
 * REVOKING: the right was taken back, but the writer may still be writing. FENCED: no write of this writer can land in
 * the arena any more, but it may still read and write its words of the entry. FREE: no writer accesses the entry.
 */
typedef enum { SLOT_FREE, SLOT_GRANTED, SLOT_REVOKING, SLOT_FENCED } slot_state;

typedef struct writer_slot {
    slot_state state;
    uint32_t grant; /* number of the grant that the entry serves or served last */
    int pidfd;      /* of the writer's process; -1 when FREE */
} writer_slot;

struct sl_direct_host {
    int arena_fd, control_fd;
    uint64_t bytes;
    control *c;
    writer_slot slot[SL_DIRECT_SLOTS];
    uint32_t last_grant;
};

struct sl_direct {
    uint8_t *base;
    uint64_t bytes, mapped;
    control *c;
    entry *e;
    uint32_t grant, nesting;
    bool attached;
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
        return sl_fail(err, SL_ERR_UNSUPPORTED, "cannot create a memfd: %s", strerror(errno));
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
        return sl_fail(err, SL_ERR_UNSUPPORTED, "cannot read random numbers: %s", strerror(errno));
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

/*
 * Moves the entry from FENCED to FREE if its writer cannot access it any more: because it has detached, because it did
 * not attach and no longer can, or because its process has ended.
 */
static bool release_entry(sl_direct_host *h, int i)
{
    writer_slot *s = &h->slot[i];
    uint64_t use = atomic_load(&h->c->slot[i].use);
    if (use == use_of(s->grant, USE_ATTACHED) && !ended(s->pidfd))
        return false;
    close(s->pidfd);
    *s = (writer_slot){.state = SLOT_FREE, .grant = s->grant, .pidfd = -1};
    return true;
}

static int find_free(sl_direct_host *h)
{
    int found = -1;
    for (int i = 0; i < SL_DIRECT_SLOTS; i++) { /* all entries, so that no pidfd is kept longer than needed */
        bool free = h->slot[i].state == SLOT_FREE || (h->slot[i].state == SLOT_FENCED && release_entry(h, i));
        if (free && found < 0)
            found = i;
    }
    return found;
}

static sl_status write_descriptor(const sl_direct_host *h, int i, uint32_t grant, uint8_t *desc, size_t *n)
{
    sl_wr w;
    sl_wr_init(&w);
    sl_wr_u32(&w, (uint32_t)getpid());
    sl_wr_u32(&w, (uint32_t)h->control_fd);
    sl_wr_u32(&w, (uint32_t)h->arena_fd);
    sl_wr_u32(&w, (uint32_t)i);
    sl_wr_u32(&w, grant);
    sl_wr_u64(&w, h->c->nonce[0]);
    sl_wr_u64(&w, h->c->nonce[1]);
    bool ok = !w.bad && w.len <= SL_DIRECT_DESC_MAX;
    if (ok) {
        memcpy(desc, w.data, w.len);
        *n = w.len;
    }
    sl_wr_free(&w);
    return ok ? SL_OK : SL_ERR_NO_MEMORY;
}

int sl_direct_grant(sl_direct_host *h, uint32_t writer_pid, uint8_t *desc, size_t *n, sl_err *err)
{
    int i = find_free(h);
    if (i < 0)
        return sl_fail(err, SL_ERR_EXHAUSTED, "all %d entries for writers are in use", SL_DIRECT_SLOTS);
    int pidfd = writer_pid && writer_pid <= INT32_MAX ? pidfd_open(writer_pid) : -1;
    if (pidfd < 0)
        return sl_fail(err, SL_ERR_PEER, "no process %u on this host (or in this pid namespace)", writer_pid);
    uint32_t grant = ++h->last_grant;
    if (write_descriptor(h, i, grant, desc, n) != SL_OK) {
        close(pidfd);
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    }
    h->slot[i] = (writer_slot){.state = SLOT_GRANTED, .grant = grant, .pidfd = pidfd};
    entry *e = &h->c->slot[i];
    atomic_store(&e->busy, 0);
    atomic_store(&e->granted, 1);
    atomic_store(&e->use, use_of(grant, USE_OFFERED)); /* the last write: a writer may attach from now on */
    return i;
}

bool sl_direct_revoke(sl_direct_host *h, int i)
{
    SL_CHECK(i >= 0 && i < SL_DIRECT_SLOTS, "slot %d", i);
    writer_slot *s = &h->slot[i];
    entry *e = &h->c->slot[i];
    SL_CHECK(s->state == SLOT_GRANTED || s->state == SLOT_REVOKING, "slot %d in state %d", i, s->state);
    s->state = SLOT_REVOKING;
    atomic_store(&e->granted, 0);
    uint64_t offered = use_of(s->grant, USE_OFFERED);
    atomic_compare_exchange_strong(&e->use, &offered, use_of(s->grant, USE_WITHDRAWN));
    if (atomic_load(&e->busy) && !ended(s->pidfd))
        return false;
    s->state = SLOT_FENCED;
    release_entry(h, i); /* if it cannot be released yet, a later grant releases it */
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

/* Attaches: from then on the entry belongs to this writer until it detaches. */
static sl_status claim_entry(sl_direct *d, uint32_t grant, sl_err *err)
{
    uint64_t offered = use_of(grant, USE_OFFERED);
    if (!atomic_compare_exchange_strong(&d->e->use, &offered, use_of(grant, USE_ATTACHED)))
        return sl_fail(err, SL_ERR_UNSUPPORTED, "the right to write was taken back before it was used");
    d->grant = grant;
    d->attached = true;
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

typedef struct descriptor {
    uint32_t pid, control_fd, arena_fd, slot, grant;
    uint64_t nonce[2];
} descriptor;

static sl_status read_descriptor(const void *desc, size_t n, descriptor *out, sl_err *err)
{
    sl_rd r = sl_rd_init(desc, n);
    out->pid = sl_rd_u32(&r);
    out->control_fd = sl_rd_u32(&r);
    out->arena_fd = sl_rd_u32(&r);
    out->slot = sl_rd_u32(&r);
    out->grant = sl_rd_u32(&r);
    out->nonce[0] = sl_rd_u64(&r);
    out->nonce[1] = sl_rd_u64(&r);
    return sl_rd_done(&r) == SL_OK ? SL_OK : sl_fail(err, SL_ERR_CORRUPT, "its descriptor does not decode");
}

static sl_status map_both(sl_direct *d, const descriptor *at, uint64_t bytes, sl_err *err)
{
    int fd = -1;
    SL_TRY(open_of(at->pid, at->control_fd, &fd, err));
    sl_status st = map_control(d, fd, at->slot, at->nonce, err);
    close(fd);
    if (st != SL_OK)
        return st;
    SL_TRY(open_of(at->pid, at->arena_fd, &fd, err));
    st = map_pages(d, fd, bytes, err);
    close(fd);
    return st;
}

sl_status sl_direct_attach(const void *desc, size_t n, uint64_t bytes, sl_direct **out, sl_err *err)
{
    descriptor at;
    SL_TRY(read_descriptor(desc, n, &at, err));
    sl_direct *d = calloc(1, sizeof *d);
    if (!d)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    sl_status st = map_both(d, &at, bytes, err);
    if (st != SL_OK)
        goto detach;
    st = claim_entry(d, at.grant, err);
    if (st != SL_OK)
        goto detach;
    *out = d;
    return SL_OK;
detach:
    sl_direct_detach(d);
    return st;
}

void sl_direct_detach(sl_direct *d)
{
    if (!d)
        return;
    SL_CHECK(!d->nesting, "%u writes are still in flight", d->nesting);
    if (d->base)
        munmap(d->base, d->mapped);
    if (d->attached) /* the last access: from then on the entry may belong to another writer */
        atomic_store(&d->e->use, use_of(d->grant, USE_LEFT));
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
