/* See segment.h. */
#include "collectives/cpu/segment.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"

#define SPINS 200        /* polls before the first sched_yield() */
#define YIELDS 200       /* yields before the first sleep */
#define SLEEP_NS 2000000 /* longest sleep; after it the locks are checked */
#define PAGE 4096

/* `own` of the invitation. */
typedef struct address {
    int32_t pid, fd;
    uint64_t nonce;
} address;

static size_t header_bytes(int32_t ranks)
{
    size_t n = sizeof(sl_comm_shared) + sizeof(sl_comm_slot) * (size_t)ranks;

    return (n + PAGE - 1) / PAGE * PAGE;
}

static sl_status map(sl_comm_segment *c, size_t bytes, sl_err *err)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, c->fd, 0);

    if (p == MAP_FAILED)
        return sl_fail(err, SL_ERR_NO_MEMORY, "comm: cannot map %zu bytes of shared memory: %s", bytes,
                       strerror(errno));
    c->shared = p;
    c->bytes = bytes;
    return SL_OK;
}

sl_status sl_comm_segment_create(const sl_comm_opts *o, uint8_t *own, sl_comm_segment *c, sl_err *err)
{
    size_t half = sl_comm_half_bytes(o);
    size_t bytes = header_bytes(o->ranks) + 2 * half * (size_t)o->ranks;
    address a = {.pid = (int32_t)getpid(), .nonce = sl_random_u64()};
    sl_status st;

    c->fd = memfd_create("sluice-comm", MFD_CLOEXEC);
    if (c->fd < 0)
        return sl_fail(err, SL_ERR_IO, "comm: memfd_create: %s", strerror(errno));
    if (ftruncate(c->fd, (off_t)bytes) != 0) {
        st = sl_fail(err, SL_ERR_NO_MEMORY, "comm: %zu bytes of shared memory: %s", bytes, strerror(errno));
        goto close_segment;
    }
    st = map(c, bytes, err);
    if (st != SL_OK)
        goto close_segment;
    c->shared->nonce = a.nonce;
    c->shared->bytes = bytes;
    c->shared->half_bytes = c->cpu.half_bytes = half;
    c->shared->ranks = o->ranks;
    c->shared->lost = -1;
    st = sl_comm_segment_enter(c, 0, err);
    if (st != SL_OK)
        goto close_segment;
    a.fd = c->fd;
    memcpy(own, &a, sizeof a);
    return SL_OK;
close_segment:
    sl_comm_segment_close(c);
    return st;
}

sl_status sl_comm_segment_open(const uint8_t *own, sl_comm_segment *c, sl_err *err)
{
    address a;
    struct stat info;
    char path[64];
    sl_status st;

    memcpy(&a, own, sizeof a);
    snprintf(path, sizeof path, "/proc/%d/fd/%d", a.pid, a.fd);
    c->fd = open(path, O_RDWR | O_CLOEXEC);
    if (c->fd < 0)
        return sl_fail(
            err, SL_ERR_NOT_FOUND,
            "comm: %s: %s: the founder has ended, or it runs as another user, on another host or in another "
            "PID namespace",
            path, strerror(errno));
    if (fstat(c->fd, &info) != 0 || (size_t)info.st_size < header_bytes(1)) {
        st = sl_fail(err, SL_ERR_NOT_FOUND, "comm: %s is not the memory of a group: the founder has ended",
                     path);
        goto close_segment;
    }
    st = map(c, (size_t)info.st_size, err);
    if (st != SL_OK)
        goto close_segment;
    if (c->shared->nonce != a.nonce || c->shared->bytes != c->bytes) {
        st = sl_fail(err, SL_ERR_NOT_FOUND, "comm: %s is the memory of another group: the founder has ended",
                     path);
        goto close_segment;
    }
    c->cpu.half_bytes = c->shared->half_bytes;
    return SL_OK;
close_segment:
    sl_comm_segment_close(c);
    return st;
}

static struct flock lock_of(int32_t rank, short type)
{
    return (struct flock){.l_type = type, .l_whence = SEEK_SET, .l_start = rank, .l_len = 1};
}

sl_status sl_comm_segment_enter(sl_comm_segment *c, int32_t rank, sl_err *err)
{
    struct flock lock = lock_of(rank, F_WRLCK);
    uint32_t absent = SL_COMM_ABSENT;

    if (rank >= c->shared->ranks)
        return sl_fail(err, SL_ERR_REFUSED, "comm: rank %d: the group has %d ranks", rank, c->shared->ranks);
    if (fcntl(c->fd, F_OFD_SETLK, &lock) != 0)
        return sl_fail(err, SL_ERR_REFUSED, "comm: rank %d is taken by another process", rank);
    if (!atomic_compare_exchange_strong(&sl_comm_slot_of(c, rank)->state, &absent, SL_COMM_JOINED))
        return sl_fail(err, SL_ERR_REFUSED, "comm: rank %d was in this group before: form another group",
                       rank);
    sl_comm_ring(c);
    return SL_OK;
}

void sl_comm_segment_close(sl_comm_segment *c)
{
    if (c->shared)
        munmap(c->shared, c->bytes);
    if (c->fd >= 0)
        close(c->fd);
    c->shared = NULL;
    c->fd = -1;
}

static uint8_t *half_of(const sl_comm_segment *c, int32_t rank)
{
    return (uint8_t *)c->shared + header_bytes(c->shared->ranks) +
           (2 * (size_t)rank + c->cpu.round % 2) * c->cpu.half_bytes;
}

/* ---- failure ---- */

static void ring(sl_comm_shared *s)
{
    atomic_fetch_add(&s->bell, 1);
    if (atomic_load(&s->sleepers) > 0)
        syscall(SYS_futex, &s->bell, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

void sl_comm_ring(sl_comm_segment *c)
{
    ring(c->shared);
}

sl_status sl_comm_broken(sl_comm_segment *c, sl_err *err)
{
    sl_comm_shared *s = c->shared;
    uint32_t broken = atomic_load_explicit(&s->broken, memory_order_acquire);

    if (!broken)
        return SL_OK;
    /* The rank that breaks the group writes the cause within a few instructions, unless it died or was stopped
     * there. */
    for (int i = 0; broken == 1 && i < 1000; i++) {
        sched_yield();
        broken = atomic_load_explicit(&s->broken, memory_order_acquire);
    }
    if (broken == 1)
        return sl_fail(err, SL_ERR_PEER, "comm: the group is broken, the cause is unknown");
    c->cpu.base.lost = s->lost;
    return sl_fail(err, (sl_status)s->status, "comm: %.*s", (int)sizeof s->cause - 1, s->cause);
}

/* The first cause stays. */
static void break_with(sl_comm_shared *s, sl_status st, int32_t lost, const char *fmt, va_list args)
{
    uint32_t whole = 0;

    if (!atomic_compare_exchange_strong(&s->broken, &whole, 1))
        return;
    s->status = st;
    s->lost = lost;
    vsnprintf(s->cause, sizeof s->cause, fmt, args);
    atomic_store_explicit(&s->broken, 2, memory_order_release);
    ring(s);
}

sl_status sl_comm_break(sl_comm_segment *c, sl_status st, int32_t lost, sl_err *err, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    break_with(c->shared, st, lost, fmt, args);
    va_end(args);
    return sl_comm_broken(c, err);
}

static void abort_with(sl_comm_shared *s, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    break_with(s, SL_ERR_CANCELLED, -1, fmt, args);
    va_end(args);
}

void sl_comm_segment_abort(sl_comm_segment *c)
{
    abort_with(c->shared, "aborted by rank %d", c->cpu.base.opts.rank);
}

/* Whether the rank's process still has the lock that every living rank has. */
static bool alive(const sl_comm_segment *c, int32_t rank)
{
    struct flock lock = lock_of(rank, F_WRLCK);

    return rank == c->cpu.base.opts.rank || fcntl(c->fd, F_OFD_GETLK, &lock) != 0 || lock.l_type != F_UNLCK;
}

/* ---- waiting ---- */

/* Sleeps until the bell is no longer `heard`, for at most SLEEP_NS. */
static void sleep_until_bell(sl_comm_segment *c, uint32_t heard)
{
    struct timespec t = {.tv_nsec = SLEEP_NS};

    atomic_fetch_add(&c->shared->sleepers, 1);
    syscall(SYS_futex, &c->shared->bell, FUTEX_WAIT, heard, &t, NULL, 0);
    atomic_fetch_sub(&c->shared->sleepers, 1);
}

/* Which rank is not ready yet, from rank `from` on; -1: all are. */
typedef int32_t (*unready_fn)(const sl_comm_segment *c, int32_t from);

static int32_t not_posted(const sl_comm_segment *c, int32_t from)
{
    for (int32_t r = from; r < c->shared->ranks; r++)
        if ((int32_t)(atomic_load_explicit(&sl_comm_slot_of(c, r)->posted, memory_order_acquire) -
                      c->cpu.round) < 0)
            return r;
    return -1;
}

static int32_t not_joined(const sl_comm_segment *c, int32_t from)
{
    for (int32_t r = from; r < c->shared->ranks; r++)
        if (atomic_load_explicit(&sl_comm_slot_of(c, r)->state, memory_order_acquire) == SL_COMM_ABSENT)
            return r;
    return -1;
}

/* Looks for ranks that will never be ready: left, or ended. */
static sl_status check_ranks(sl_comm_segment *c, unready_fn unready, sl_err *err)
{
    for (int32_t r = unready(c, 0); r >= 0; r = unready(c, r + 1)) {
        uint32_t state = atomic_load_explicit(&sl_comm_slot_of(c, r)->state, memory_order_acquire);

        if (state == SL_COMM_LEFT && unready(c, r) == r)
            return sl_comm_break(c, SL_ERR_PEER, r, err, "rank %d has left the group", r);
        if (state == SL_COMM_JOINED && !alive(c, r) && unready(c, r) == r)
            return sl_comm_break(c, SL_ERR_PEER, r, err, "rank %d was lost: its process has ended", r);
    }
    return SL_OK;
}

static sl_status late(sl_comm_segment *c, unready_fn unready, const char *what, sl_err *err)
{
    char names[64] = "";
    int32_t first = unready(c, 0);
    int at = 0;

    for (int32_t r = first; r >= 0 && at < 50; r = unready(c, r + 1))
        at += snprintf(names + at, sizeof names - (size_t)at, at ? ", %d" : "%d", r);
    return sl_comm_break(c, SL_ERR_TIMEOUT, first, err, "rank %s %s within %u ms, says rank %d", names, what,
                         c->cpu.base.opts.deadline_ms, c->cpu.base.opts.rank);
}

static sl_status wait_ready(sl_comm_segment *c, unready_fn unready, const char *what, sl_err *err)
{
    uint64_t end = 0;

    for (int32_t i = 0;; i++) {
        uint32_t heard = atomic_load(&c->shared->bell);

        if (unready(c, 0) < 0)
            return SL_OK;
        if (i < SPINS)
            continue;
        if (atomic_load_explicit(&c->shared->broken, memory_order_acquire))
            return sl_comm_broken(c, err);
        if (i < SPINS + YIELDS) {
            sched_yield();
            continue;
        }
        SL_TRY(check_ranks(c, unready, err));
        if (end == 0)
            end = sl_now_ns() + c->cpu.base.opts.deadline_ms * 1000000ull;
        else if (sl_now_ns() > end && unready(c, 0) >= 0)
            return late(c, unready, what, err);
        sleep_until_bell(c, heard);
    }
}

sl_status sl_comm_wait_joined(sl_comm_segment *c, sl_err *err)
{
    SL_TRY(wait_ready(c, not_joined, "has not joined", err));
    for (int32_t r = 0; r < c->shared->ranks; r++)
        if (atomic_load(&sl_comm_slot_of(c, r)->state) == SL_COMM_REFUSED)
            return sl_comm_break(c, SL_ERR_REFUSED, r, err, "%.250s", sl_comm_slot_of(c, r)->refusal);
    return SL_OK;
}

/* ---- rounds ---- */

static sl_comm_segment *of(sl_comm_cpu *c)
{
    return (sl_comm_segment *)c;
}

static void segment_begin(sl_comm_cpu *cpu)
{
    sl_comm_segment *c = of(cpu);

    for (int32_t r = 0; r < c->shared->ranks; r++) {
        cpu->head[r] = &sl_comm_slot_of(c, r)->head[cpu->round % 2];
        cpu->half[r] = half_of(c, r);
    }
}

static sl_status segment_meet(sl_comm_cpu *cpu, sl_err *err)
{
    sl_comm_segment *c = of(cpu);

    SL_TRY(sl_comm_broken(c, err));
    atomic_store_explicit(&sl_comm_slot_of(c, cpu->base.opts.rank)->posted, cpu->round, memory_order_release);
    sl_comm_ring(c);
    return wait_ready(c, not_posted, "did not arrive", err);
}

static sl_status segment_break(sl_comm_cpu *cpu, sl_status st, int32_t lost, const char *cause, sl_err *err)
{
    return sl_comm_break(of(cpu), st, lost, err, "%s", cause);
}

const sl_comm_rounds sl_comm_segment_rounds = {
    .begin = segment_begin, .meet = segment_meet, .brk = segment_break};
