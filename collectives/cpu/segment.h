/*
 * The memory that the ranks of a CPU group share, and waiting in it.
 *
 * Layout. One memfd: a header, one sl_comm_slot per rank, then for every rank a window of two halves. Only the rank
 * itself writes its slot and its window; the first rank that finds a failure writes the header's `broken` and the
 * cause.
 *
 * Rounds (rounds.h) use the halves in turn. In round n a rank writes its half n % 2 and the round's
 * head, sets `posted` to n, waits until every rank has posted n, and reads the others' halves. No second wait is
 * needed: a rank that has seen all others post n - 1 knows that they have ended round n - 2, whose half it now
 * overwrites.
 *
 * Waiting: a short spin, then sched_yield(), then a futex in the header that every post rings. A sleeping rank wakes at
 * least every few milliseconds to look at the deadline, at `broken` and at the locks.
 *
 * Death. Every rank keeps a lock on one byte of the file, which belongs to its own open file description: the kernel
 * releases it when the process ends, for whatever reason, across PID namespaces too. A child process that inherits the
 * description keeps the lock; the deadline then ends the wait.
 *
 * Names. The file has none. A rank opens /proc/PID/fd/FD of the founder, which the kernel allows to processes of the
 * same user in the same PID namespace. A random number in the header shows that it is the right file.
 */
#ifndef SL_COLLECTIVES_CPU_SEGMENT_H
#define SL_COLLECTIVES_CPU_SEGMENT_H

#include <stdatomic.h>

#include "collectives/cpu/rounds.h"

enum { SL_COMM_ABSENT, SL_COMM_JOINED, SL_COMM_REFUSED, SL_COMM_LEFT };

typedef struct sl_comm_slot {
    _Alignas(64) _Atomic uint32_t posted; /* the last round whose half is ready */
    _Alignas(64) _Atomic uint32_t state;  /* SL_COMM_* above */
    char refusal[256];
    sl_comm_head head[2];
} sl_comm_slot;

typedef struct sl_comm_shared {
    uint64_t nonce;
    uint64_t bytes; /* of the file */
    uint64_t half_bytes;
    int32_t ranks;
    _Alignas(64) _Atomic uint32_t bell;     /* counts posts: the futex */
    _Alignas(64) _Atomic uint32_t sleepers; /* ranks in the futex */
    _Alignas(64) _Atomic uint32_t broken;   /* 0 whole, 1 the cause is being written, 2 it is written */
    int32_t status, lost;                   /* the cause: an sl_status, a rank or -1 */
    char cause[256];
    sl_comm_slot slot[];
} sl_comm_shared;

typedef struct sl_comm_segment {
    sl_comm_cpu cpu; /* first */
    int fd;          /* of this rank's own open file description */
    sl_comm_shared *shared;
    size_t bytes;
} sl_comm_segment;

/* Creates the memory for a group, and enters it as rank 0. own: what another rank needs to open it. */
sl_status sl_comm_segment_create(const sl_comm_opts *o, uint8_t *own, sl_comm_segment *c, sl_err *err);
/* Opens it without entering. */
sl_status sl_comm_segment_open(const uint8_t *own, sl_comm_segment *c, sl_err *err);
/* Takes the rank's slot and lock. SL_ERR_REFUSED: the rank is taken. */
sl_status sl_comm_segment_enter(sl_comm_segment *c, int32_t rank, sl_err *err);
/* Unmaps and closes. */
void sl_comm_segment_close(sl_comm_segment *c);

static inline sl_comm_slot *sl_comm_slot_of(const sl_comm_segment *c, int32_t rank)
{
    return &c->shared->slot[rank];
}

/* Breaks the group with this cause unless it is broken already; returns the cause that the group has. */
sl_status sl_comm_break(sl_comm_segment *c, sl_status st, int32_t lost, sl_err *err, const char *fmt, ...)
    __attribute__((format(printf, 5, 6)));
/* The same for sl_comm_abort(): any thread. */
void sl_comm_segment_abort(sl_comm_segment *c);
/* SL_OK, or the cause. */
sl_status sl_comm_broken(sl_comm_segment *c, sl_err *err);

/* Wakes all ranks that sleep. */
void sl_comm_ring(sl_comm_segment *c);
/* Waits until every rank has joined, or one was refused. */
sl_status sl_comm_wait_joined(sl_comm_segment *c, sl_err *err);
extern const sl_comm_rounds sl_comm_segment_rounds;

#endif
