/* See uring.h. Head and tail of both queues are shared with the kernel, hence the acquire and release operations. */
#include "kvstore/uring.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static sl_status map_queues(sl_uring *u, const struct io_uring_params *p, sl_err *err)
{
    if (!(p->features & IORING_FEAT_SINGLE_MMAP))
        return sl_fail(err, SL_ERR_UNSUPPORTED, "io_uring of this kernel is too old");
    size_t sq = p->sq_off.array + p->sq_entries * sizeof(unsigned);
    size_t cq = p->cq_off.cqes + p->cq_entries * sizeof(struct io_uring_cqe);
    u->ring_bytes = sq > cq ? sq : cq;
    u->sqe_bytes = p->sq_entries * sizeof(struct io_uring_sqe);
    u->ring = mmap(NULL, u->ring_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, u->fd,
                   IORING_OFF_SQ_RING);
    if (u->ring == MAP_FAILED)
        return sl_fail(err, SL_ERR_NO_MEMORY, "io_uring: mmap: %s", strerror(errno));
    u->sqes =
        mmap(NULL, u->sqe_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, u->fd, IORING_OFF_SQES);
    if (u->sqes == MAP_FAILED) {
        munmap(u->ring, u->ring_bytes);
        return sl_fail(err, SL_ERR_NO_MEMORY, "io_uring: mmap: %s", strerror(errno));
    }
    char *base = u->ring;
    u->sq_tail = (unsigned *)(void *)(base + p->sq_off.tail);
    u->sq_array = (unsigned *)(void *)(base + p->sq_off.array);
    u->sq_mask = *(unsigned *)(void *)(base + p->sq_off.ring_mask);
    u->cq_head = (unsigned *)(void *)(base + p->cq_off.head);
    u->cq_tail = (unsigned *)(void *)(base + p->cq_off.tail);
    u->cq_mask = *(unsigned *)(void *)(base + p->cq_off.ring_mask);
    u->cqes = (struct io_uring_cqe *)(void *)(base + p->cq_off.cqes);
    return SL_OK;
}

sl_status sl_uring_open(sl_uring *u, unsigned entries, sl_err *err)
{
    struct io_uring_params p = {0};
    *u = (sl_uring){.fd = -1};
    u->fd = (int)syscall(__NR_io_uring_setup, entries, &p);
    if (u->fd < 0)
        return sl_fail(
            err, SL_ERR_UNSUPPORTED,
            "io_uring: %s (a container's seccomp profile or kernel.io_uring_disabled can refuse it)",
            strerror(errno));
    sl_status st = map_queues(u, &p, err);
    if (st != SL_OK) {
        close(u->fd);
        u->fd = -1;
    }
    return st;
}

void sl_uring_close(sl_uring *u)
{
    if (u->fd < 0)
        return;
    munmap(u->sqes, u->sqe_bytes);
    munmap(u->ring, u->ring_bytes);
    close(u->fd);
    u->fd = -1;
}

sl_status sl_uring_register(sl_uring *u, const struct iovec *buffers, unsigned n)
{
    long rc = syscall(__NR_io_uring_register, u->fd, IORING_REGISTER_BUFFERS, buffers, n);
    return rc < 0 ? SL_ERR_NO_MEMORY : SL_OK;
}

struct io_uring_sqe *sl_uring_prepare(sl_uring *u)
{
    unsigned tail = *u->sq_tail, at = tail & u->sq_mask; /* only this thread writes the tail */
    struct io_uring_sqe *e = &u->sqes[at];
    memset(e, 0, sizeof *e);
    u->sq_array[at] = at;
    __atomic_store_n(u->sq_tail, tail + 1, __ATOMIC_RELEASE);
    u->prepared++;
    return e;
}

sl_status sl_uring_enter(sl_uring *u, bool wait)
{
    bool arrived = *u->cq_head != __atomic_load_n(u->cq_tail, __ATOMIC_ACQUIRE);
    long rc = syscall(__NR_io_uring_enter, u->fd, u->prepared, wait && !arrived ? 1 : 0,
                      IORING_ENTER_GETEVENTS, NULL, 0);
    if (rc >= 0)
        u->prepared -= (unsigned)rc;
    else if (errno != EINTR && errno != EAGAIN && errno != EBUSY && errno != ENOMEM)
        return SL_ERR_IO;
    return SL_OK;
}

bool sl_uring_next(sl_uring *u, uint64_t *user_data, int32_t *res)
{
    unsigned head = *u->cq_head;
    if (head == __atomic_load_n(u->cq_tail, __ATOMIC_ACQUIRE))
        return false;
    const struct io_uring_cqe *c = &u->cqes[head & u->cq_mask];
    *user_data = c->user_data;
    *res = c->res;
    __atomic_store_n(u->cq_head, head + 1, __ATOMIC_RELEASE);
    return true;
}
