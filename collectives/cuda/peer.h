/*
 * Collectives by kernels of our own between GPUs of one host: every rank writes what is for another rank directly into
 * that rank's window, a piece of device memory that all ranks have mapped, and then a flag. An exchange is one kernel;
 * only the rows that are needed travel. nccl.c uses this where every rank can map every window and the call fits, else
 * NCCL: what is received is the same.
 *
 * Rows whose receivers have memory of the group for them (sl_comm_memory) are written there instead of to a window.
 *
 * Window: flags, then two halves, each with a slot for every sender, then the words of sl_peer_agree(). Exchange n uses
 * half n % 2. A rank that writes into a half for exchange n has seen the flags of all ranks for n - 1, so every rank
 * has ended exchange n - 2, which used that half. n is counted on the device, so a captured exchange counts on.
 *
 * Failure: a kernel waits for flags at most for the deadline, and ends when the host sets `stop`. It then writes the
 * rank that did not arrive to `report`, and every later kernel of this group ends at once. So no kernel waits for ever.
 *
 * Ownership: a rank owns its window; the others' mappings keep the memory alive until they are closed. Threads: those
 * of nccl.c. The struct of pointers is passed to kernels by value.
 */
#ifndef SL_COLLECTIVES_CUDA_PEER_H
#define SL_COLLECTIVES_CUDA_PEER_H

#include "kernels/cuda/instance.h"

#include "collectives/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

#define SL_PEER_FLAG_BYTES 128 /* apart, so that writers do not share a line */

#define SL_PEER_AGREE_WORDS (SL_COMM_AGREE_BYTES / 4)

/* What the host shares with the kernels: pinned memory. */
typedef struct sl_peer_host {
    volatile uint32_t stop;   /* host: end all waits */
    volatile uint32_t report; /* kernels: 0, or 1 + the rank that did not arrive */
    volatile uint32_t agreed; /* kernels: the last call of sl_peer_agree() whose words are there */
    volatile uint32_t words[SL_COMM_RANKS_MAX][SL_PEER_AGREE_WORDS];
} sl_peer_host;

/* Device memory of this rank alone. */
typedef struct sl_peer_state {
    uint32_t epoch;   /* exchanges that have ended */
    uint32_t written; /* blocks that have written their part */
    uint32_t left;    /* blocks that have ended */
    uint32_t broken;
} sl_peer_state;

typedef struct sl_peer_view {
    uint8_t *window[SL_COMM_RANKS_MAX]; /* as this rank sees them */
    sl_peer_state *state;
    sl_peer_host *host;
    uint64_t deadline_ns;
    uint64_t slot_bytes; /* of one sender in one half; a multiple of 256 */
    int32_t rank, ranks;
} sl_peer_view;

/*
 * One exchange. For every rank q: the first n_q rows of send + q * send_stride arrive at q in recv + rank *
 * recv_stride, n_q = send_count[q], or `rows` where send_count is NULL; at most `rows`. recv_count (or NULL) gets the
 * numbers of rows. Of blocks that exceed a slot one launch moves `slice` rows, from row `first` on. direct: to[q] is
 * recv of rank q (sl_comm_memory), rows are written there and not to a window, in one launch.
 */
typedef struct sl_peer_move {
    const uint8_t *send;
    uint8_t *recv;
    uint64_t send_stride, recv_stride, row_bytes;
    const int32_t *send_count;
    int32_t *recv_count;
    int32_t rows, first, slice;
    bool direct;
    sl_comm_where placed;
    uint8_t *to[SL_COMM_RANKS_MAX];
    sl_cuda_meter *meter; /* device: counts this call; or NULL */
    uint64_t *hidden_ns;  /* set by the launch: counts the time instead of the meter; or NULL */
    uint64_t *wait_ns;    /* set by the launch: counts the wait for other ranks; or NULL */
} sl_peer_move;

/* Where the words of sl_peer_agree() begin in a window, [2][ranks][SL_PEER_AGREE_WORDS] of 8 bytes, 0 at first. */
static inline uint64_t sl_peer_agree_at(int32_t ranks, uint64_t slot_bytes)
{
    return 2 * (uint64_t)ranks * (SL_PEER_FLAG_BYTES + slot_bytes);
}

static inline uint64_t sl_peer_agree_bytes(int32_t ranks)
{
    return 2 * (uint64_t)ranks * SL_PEER_AGREE_WORDS * sizeof(uint64_t);
}

/* Bytes of a window. */
static inline uint64_t sl_peer_window_bytes(int32_t ranks, uint64_t slot_bytes)
{
    return sl_peer_agree_at(ranks, slot_bytes) + sl_peer_agree_bytes(ranks);
}

/* Enqueues the exchange; slice * row_bytes must fit a slot. On the side stream it leaves most multiprocessors to the
 * main stream. */
sl_status sl_peer_launch(sl_cuda *cu, const sl_peer_view *v, const sl_peer_move *m, sl_err *err);
/* Enqueues the kernel of sl_comm_agree(): when host->agreed is `call`, host->words has the words of all ranks. bytes: a
 * multiple of 4 up to SL_COMM_AGREE_BYTES; call: 1 in the first call, then the next one. Not in a capture. */
sl_status sl_peer_agree(sl_cuda *cu, const sl_peer_view *v, const void *src, size_t bytes, uint32_t call,
                        sl_cuda_meter *meter, sl_err *err);
/* A call that NCCL makes, timed by a kernel before it and one after it; bytes: what this rank sends to others. */
sl_status sl_meter_begin(sl_cuda *cu, sl_cuda_meter *m, sl_err *err);
sl_status sl_meter_end(sl_cuda *cu, sl_cuda_meter *m, uint64_t bytes, sl_err *err);

/* SL_ERR_UNSUPPORTED: this device cannot run all blocks of an exchange at once. Asked when a group forms. */
sl_status sl_peer_resident(sl_cuda *cu, sl_err *err);

#ifdef __cplusplus
}
#endif
#endif
