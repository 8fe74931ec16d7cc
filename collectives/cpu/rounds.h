/*
 * Rounds: what the collectives of the CPU backend (rounds.c) are made of, whichever way the bytes move: memory that the
 * ranks share (segment.c) or sockets between hosts (sockets.c).
 *
 * In a round every rank writes a head (the call, and for rows the counts) and the half of a window, and says which
 * span of its half is for which rank. After the round has met it can read the heads of all ranks, and of every rank's
 * half the span that is for it, at the same place. What lies outside of these spans is undefined. head[] and half[] of
 * other ranks stay valid until the next round begins.
 *
 * The number of rounds of a collective follows from sizes that all ranks know, so all run the same number.
 */
#ifndef SL_COLLECTIVES_CPU_ROUNDS_H
#define SL_COLLECTIVES_CPU_ROUNDS_H

#include "collectives/comm_impl.h"

#define SL_COMM_CPU_WINDOW ((size_t)4 << 20) /* default of sl_comm_opts.window_bytes */

/* The call to which a round belongs; equal on all ranks, or the ranks disagree. */
typedef struct sl_comm_call {
    uint32_t kind; /* 0 barrier, 1 all_gather, 2 broadcast, 3 all_to_all */
    uint32_t detail;
    uint64_t a, b;
} sl_comm_call;

typedef struct sl_comm_head {
    sl_comm_call call;
    int32_t count[SL_COMM_RANKS_MAX]; /* all_to_all: rows for each rank, of the whole call */
} sl_comm_head;

/* Bytes [at, at + bytes) of a half. */
typedef struct sl_comm_span {
    size_t at, bytes;
} sl_comm_span;

typedef struct sl_comm_cpu sl_comm_cpu;

/* One way in which bytes move. */
typedef struct sl_comm_rounds {
    /* c->round has been counted up: sets head[] and half[] for it, of which the own ones may now be written. */
    void (*begin)(sl_comm_cpu *c);
    /* Gives the own head and spans to the others and waits for theirs. Errors: collectives/comm.h, Failure. */
    sl_status (*meet)(sl_comm_cpu *c, sl_err *err);
    /* Breaks the group with this cause unless it is broken already; returns the cause that the group has. lost: a rank
     * or -1. */
    sl_status (*brk)(sl_comm_cpu *c, sl_status st, int32_t lost, const char *cause, sl_err *err);
} sl_comm_rounds;

struct sl_comm_cpu {
    sl_comm base; /* first */
    const sl_comm_rounds *rounds;
    size_t half_bytes; /* equal on all ranks */
    uint32_t round;
    sl_comm_head *head[SL_COMM_RANKS_MAX];
    uint8_t *half[SL_COMM_RANKS_MAX];
    sl_comm_span span[SL_COMM_RANKS_MAX]; /* of the own half: what is for rank q */
};

/* Bytes of a half for these options: whole pages. */
size_t sl_comm_half_bytes(const sl_comm_opts *o);

/* The collectives of an implementation made of rounds; they are what sl_comm_desc says. */
sl_status sl_comm_cpu_barrier(sl_comm *c, sl_err *err);
sl_status sl_comm_cpu_all_gather(sl_comm *c, const void *src, void *dst, size_t bytes, sl_err *err);
sl_status sl_comm_cpu_broadcast(sl_comm *c, void *buf, size_t bytes, int32_t root, sl_err *err);
sl_status sl_comm_cpu_all_to_all(sl_comm *c, const sl_comm_rows *rows, sl_err *err);
/* There is no library: version 0. */
sl_status sl_comm_cpu_library(uint32_t *version, sl_err *err);

/* Between hosts: collectives/cpu/sockets.c. */
extern const sl_comm_desc sl_comm_over_sockets;

#endif
