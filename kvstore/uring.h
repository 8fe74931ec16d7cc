/*
 * A minimal io_uring: one ring of one thread, through the system calls, so that nothing has to be installed. It does
 * only what the disk tier needs: fixed buffers, reads, writes and a poll of one descriptor.
 *
 * Threads: the thread that calls sl_uring_enter() owns the ring. Lifetime: the buffers of an operation stay until its
 * completion has been seen.
 */
#ifndef SL_KVSTORE_URING_H
#define SL_KVSTORE_URING_H

#include <linux/io_uring.h>
#include <sys/uio.h>

#include "base/status.h"

typedef struct sl_uring {
    int fd;
    void *ring;
    size_t ring_bytes, sqe_bytes;
    struct io_uring_sqe *sqes;
    struct io_uring_cqe *cqes;
    unsigned *sq_tail, *sq_array, *cq_head, *cq_tail;
    unsigned sq_mask, cq_mask, prepared; /* prepared: not yet given to the kernel */
} sl_uring;

/* entries: the most operations in flight. SL_ERR_UNSUPPORTED says why this machine refuses io_uring. */
sl_status sl_uring_open(sl_uring *u, unsigned entries, sl_err *err);
void sl_uring_close(sl_uring *u);
/* Registers the fixed buffers. SL_ERR_NO_MEMORY: the limit of locked memory is too small (nothing is registered). */
sl_status sl_uring_register(sl_uring *u, const struct iovec *buffers, unsigned n);
/* A zeroed entry to fill in; the caller never has more operations in flight than entries. */
struct io_uring_sqe *sl_uring_prepare(sl_uring *u);
/* Submits what is prepared; wait: until at least one completion has arrived. A signal is not an error. SL_ERR_IO: the
 * ring is unusable. */
sl_status sl_uring_enter(sl_uring *u, bool wait);
/* The next completion that has arrived; false: none. */
bool sl_uring_next(sl_uring *u, uint64_t *user_data, int32_t *res);

#endif
