/*
 * Collectives: operations in which all ranks of a group take part. A rank is one backend instance in one process; a
 * group is 1 to SL_COMM_RANKS_MAX ranks that run the same steps of one model. The members never call MPI: a group forms
 * from an invitation, which its founder makes and which the caller carries to the other ranks over links of its own.
 *
 *     rank 0                                       the other ranks
 *     sl_comm_found(be, opts, &invite, &c)
 *         ... the caller carries `invite` ...
 *                                                  sl_comm_join(be, opts, &invite, &c)
 *     sl_comm_form(c)                              sl_comm_form(c)          every rank waits for all the others
 *     collectives, in the same order on every rank
 *     sl_comm_destroy(c)                           sl_comm_destroy(c)
 *
 * Implementations: the CPU backend's, over memory that processes of one host share (collectives/cpu/memory.c), is the
 * specification; between hosts the CPU backend uses sockets (collectives/cpu/sockets.c); the CUDA backend's is NCCL and,
 * between GPUs of one host, kernels of our own (collectives/cuda/nccl.c). One suite tests all (tests/unit/collectives).
 *
 * Bits. A collective only moves bytes; it never adds. What a rank receives depends on what was sent and on nothing
 * else: not on the order of arrival, not on sizes, not on the number of ranks. Sums over ranks are ordinary ops, in an
 * order that the op defines.
 *
 * Order. Every rank calls the same collectives in the same order with the same sizes. The CPU implementation compares
 * the calls of all ranks and answers SL_ERR_INVALID, with both calls, if they differ; NCCL cannot notice it, and the
 * ranks then fail at the deadline.
 *
 * Streams. A collective is enqueued like an op (kernels/backend.h): it reads its input and writes its output in the
 * order of the selected stream, and is complete after sl_be_sync(). It may be captured in a graph if the backend has
 * graphs, after one call of the same kind and size outside of a capture; every rank must then launch its graph. The CPU
 * implementation has completed when the call returns.
 *
 * Memory. Ownership stays with the caller. Pointers are memory of the backend, SL_MEM_DEVICE or (for a few bytes)
 * SL_MEM_HOST; on the CPU any memory. They must stay valid until the collective has completed; input and output do not
 * overlap unless a function says so.
 *
 * Threads. A comm belongs to the thread of its backend, except sl_comm_abort(), which any thread may call until
 * sl_comm_destroy() begins. Lifetime: destroyed before its backend, which has at most one comm; graphs that captured
 * its collectives are destroyed before it.
 *
 * Failure. A wait for other ranks ends after at most opts.deadline_ms. A rank that died (its process has ended), left,
 * or did not arrive by the deadline (stopped, or stuck) breaks the group: every rank that waits, and every later
 * call, fails. On the CPU all ranks report the same cause, and an ended process is noticed within milliseconds (over
 * sockets: when its host says that the connection has ended; a host that is silent is noticed by the deadline); on CUDA
 * each rank reports what it noticed, from sl_be_sync(). Nothing waits for ever, so the deadline must be longer than the
 * longest time that a rank computes between two collectives. A broken group does not recover: destroy it, and form
 * another with a new invitation; backend, weights and caches are unaffected. What collectives in flight would have
 * written is undefined.
 *   SL_ERR_TIMEOUT    a rank did not arrive by the deadline
 *   SL_ERR_PEER       a rank's process ended, or it left the group
 *   SL_ERR_CANCELLED  a rank called sl_comm_abort()
 *   SL_ERR_INVALID    the ranks disagree about the call, or a parameter is bad (which breaks the group too)
 *   SL_ERR_DEVICE     the device or NCCL failed
 * After SIGKILL of all ranks nothing of the group remains on the host: its memory has no name.
 */
#ifndef SL_COLLECTIVES_COMM_H
#define SL_COLLECTIVES_COMM_H

#include "base/hash.h"
#include "kernels/backend.h"

#define SL_COMM_RANKS_MAX 64
#define SL_COMM_INVITE_BYTES 512
#define SL_COMM_WINDOW_BYTES ((size_t)64 << 20) /* cuda: the default of sl_comm_opts.window_bytes */

typedef struct sl_comm sl_comm;

typedef struct sl_comm_opts {
    int32_t rank, ranks; /* 0 <= rank < ranks */
    /* What must be equal on all ranks besides the build, the number of ranks and the library: the caller's hash of
     * checkpoint, formats and dimensions. A rank with another one is refused. */
    sl_key geometry;
    uint32_t deadline_ms; /* of every wait for other ranks, 1 .. 3,600,000 */
    /* Memory of a rank through which data pass, twice: on the CPU in pieces (0: 4 MiB); on CUDA what does not fit goes
     * through NCCL (0: 64 MiB). Equal on all ranks. */
    size_t window_bytes;
    /*
     * cpu, rank 0: a name or an address of its host at which the other ranks reach it, which makes sockets move the data;
     * NULL: shared memory does, so sl_comm_place() must be equal on all ranks. The invitation tells the other ranks. It is
     * used by sl_comm_found() only. CUDA leaves it to NCCL.
     */
    const char *sockets_at;
    bool library_only; /* cuda: NCCL alone moves the data; for comparisons. Equal on all ranks. */
    bool timed; /* cuda: sl_comm_stats contains NCCL's calls too, at the price of two launches for each */
} sl_comm_opts;

/* What a rank must know to join. Opaque, without pointers; it may be sent to processes of the same user only. */
typedef struct sl_comm_invite {
    uint8_t bytes[SL_COMM_INVITE_BYTES];
} sl_comm_invite;

/* The library that would move the bytes, with its version: "NCCL 2.28.9"; empty where there is none. Asked before a
 * group, so that one without it ends early. SL_ERR_UNSUPPORTED: as sl_comm_found(). */
sl_status sl_comm_library(sl_backend *be, char *out, size_t cap, sl_err *err);
/*
 * A number that is equal in processes which can share memory, and differs in others: those of another host (another
 * start of a kernel), another PID namespace, another network namespace (which is a host of its own for those that use it)
 * or another user. Never 0.
 */
uint64_t sl_comm_place(void);
/* Rank 0 makes the group. It returns at once. SL_ERR_UNSUPPORTED: the backend or this build has no collectives, or its
 * library is missing or has the wrong version; the message names it. SL_ERR_INVALID, SL_ERR_IO: opts.sockets_at is no
 * address of this host. */
sl_status sl_comm_found(sl_backend *be, const sl_comm_opts *opts, sl_comm_invite *invite, sl_comm **out,
                        sl_err *err);
/* The other ranks enter it. It returns at once. SL_ERR_REFUSED: this rank does not fit (build, number of ranks,
 * geometry, library), or the rank is taken: the message says what differs, and on the CPU the other ranks report it
 * too. SL_ERR_NOT_FOUND: the founder has ended. Over sockets only the founder knows whether a rank is taken, so
 * sl_comm_form() reports it, and that the founder has ended if its host has not answered before. */
sl_status sl_comm_join(sl_backend *be, const sl_comm_opts *opts, const sl_comm_invite *invite, sl_comm **out,
                       sl_err *err);
/* Waits until all ranks are there and the first collective can run. SL_ERR_TIMEOUT names the ranks that are missing,
 * where the implementation knows them; SL_ERR_REFUSED passes on why a rank could not join. */
sl_status sl_comm_form(sl_comm *c, sl_err *err);
/* Leaves the group and frees everything. On CUDA it waits for what is in flight, or aborts it if the group is
 * broken. */
void sl_comm_destroy(sl_comm *c);

int32_t sl_comm_rank(const sl_comm *c);
int32_t sl_comm_ranks(const sl_comm *c);
/* "shared memory, 4 ranks", "sockets, 2 ranks", "NCCL 2.28.9, 2 ranks": one line for the start log. */
const char *sl_comm_describe(const sl_comm *c);

/* Breaks the group: every wait in it ends. Any thread, any number of times. */
void sl_comm_abort(sl_comm *c);
/* SL_OK, or why the group is broken. It does not wait. */
sl_status sl_comm_state(sl_comm *c, sl_err *err);
/* The rank that was lost, or -1 if the group is whole or the implementation does not know it. */
int32_t sl_comm_lost(const sl_comm *c);

/* Cumulative. On CUDA the device counts, also in graphs, what was complete at the last sl_be_sync(); what NCCL moves is
 * counted only with sl_comm_opts.timed. */
typedef struct sl_comm_stats {
    uint64_t gathers,
        gather_ns; /* calls of sl_comm_all_gather() and sl_comm_agree(), and the time in them, which contains waiting */
    uint64_t exchanges,
        exchange_ns; /* the same of sl_comm_all_to_all(): exposed, the rank computes nothing meanwhile */
    /* of exchanges in halves, which this rank computed during, and not in exchange_ns; what it waited for at their end is
     * not told apart. 0 on the CPU, where a call waits */
    uint64_t hidden_ns;
    /* of exchange_ns and hidden_ns: this rank has written all that it sends and waits for rows of others, which are late
     * or still on the link. 0 where NCCL moves the rows. */
    uint64_t wait_ns;
    /* sent to other ranks by sl_comm_all_to_all(): the rows, or whole blocks where NCCL moves them */
    uint64_t exchange_bytes;
} sl_comm_stats;
void sl_comm_stats_get(const sl_comm *c, sl_comm_stats *out);

/* No rank continues before all have called it. */
sl_status sl_comm_barrier(sl_comm *c, sl_err *err);
/* dst[r] of [ranks][bytes] becomes what rank r passed as src [bytes]. bytes is the same on all ranks. */
sl_status sl_comm_all_gather(sl_comm *c, const void *src, void *dst, size_t bytes, sl_err *err);
/*
 * The same for a few bytes of ordinary host memory, complete when it returns: how ranks agree on what they do next, in the
 * least time. bytes: a multiple of 4 up to SL_COMM_AGREE_BYTES. Not in a capture. In the statistics it is a gather.
 */
#define SL_COMM_AGREE_BYTES 32
sl_status sl_comm_agree(sl_comm *c, const void *src, void *dst, size_t bytes, sl_err *err);
/* buf [bytes] becomes that of rank root, on all ranks. */
sl_status sl_comm_broadcast(sl_comm *c, void *buf, size_t bytes, int32_t root, sl_err *err);

/*
 * Memory of this rank that the other ranks write into: rows then need no copy where they arrive. Every rank calls it with
 * the same bytes, not in a capture; it is complete when it returns. *out: device memory that belongs to the group, until
 * sl_comm_destroy(); NULL on all ranks where not all of them can reach the memory of the others or have twice as much left, after
 * SL_COMM_MEMORIES of them, and always on the CPU.
 */
#define SL_COMM_MEMORIES 4
sl_status sl_comm_memory(sl_comm *c, size_t bytes, void **out, sl_err *err);
/* The address, for kernels and copies of this rank, of the place at rank r that corresponds to `own` in such memory of
 * this rank; NULL if own is no such place. */
void *sl_comm_at(const sl_comm *c, const void *own, int32_t r);

/*
 * Rows from every rank to every rank: the dispatch of tokens to the ranks that hold their experts, and the way back.
 * Block q of send goes to rank q, where it becomes block p = the sender's rank of recv; a rank's own block is copied.
 * Of a block only its first count rows are data. The rest of a block of recv is undefined afterwards; whether those
 * rows travel is the implementation's choice (the CPU's does not move them).
 * row_bytes and cap are the same on all ranks. recv_count[p] tells how many rows came from rank p. A count outside
 * 0..cap is SL_ERR_INVALID on the CPU, and is the caller's error on CUDA.
 *
 * recv in memory of sl_comm_memory(), at the same place on all ranks: the senders write into it. A rank may do so as soon
 * as it has ended the collective before, so what reads these rows is enqueued before that collective begins; hence no two
 * exchanges in a row use the same place.
 */
typedef enum { SL_COMM_IN_SEND, SL_COMM_OWN_PLACED, SL_COMM_PLACED } sl_comm_where;
typedef struct sl_comm_rows {
    const void *send;          /* [ranks][cap][row_bytes] */
    const int32_t *send_count; /* [ranks] */
    void *recv;                /* [ranks][cap][row_bytes] */
    int32_t *recv_count;       /* [ranks], out */
    int64_t row_bytes;         /* a multiple of 4 */
    int32_t cap;               /* rows of a block, >= 1 */
    /* What the work before this call has written to where it belongs: nothing; the own block, which is then not copied; or
     * the blocks for all ranks (sl_comm_at()), so that the counts alone travel. Not read from send, and with recv as above
     * only. The same on all ranks. */
    sl_comm_where placed;
} sl_comm_rows;
sl_status sl_comm_all_to_all(sl_comm *c, const sl_comm_rows *rows, sl_err *err);

/*
 * The same in two halves: what is enqueued between them on the main stream runs while rows travel, and touches neither
 * send nor recv. begin is enqueued after the work that made the rows, and what follows end has them. After a begin that
 * succeeded, end is called also when the work between failed; no other collective, sync or end of a capture comes
 * between them. Where a backend has one stream, or the backend is profiled, begin does everything.
 */
sl_status sl_comm_all_to_all_begin(sl_comm *c, const sl_comm_rows *rows, sl_err *err);
sl_status sl_comm_all_to_all_end(sl_comm *c, sl_err *err);

#endif
