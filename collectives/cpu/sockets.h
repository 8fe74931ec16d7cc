/*
 * Collectives of CPU ranks on several hosts: what the files of this implementation share. mesh.c connects the ranks,
 * notice.c breaks the group, sockets.c moves the rounds (rounds.h).
 *
 * Connections. Every pair of ranks has two: one for data, on which the rounds travel and which only the engine's thread
 * uses; one for notices, which are short, of one size, and few, so that a notice always fits the socket's buffer and
 * any thread may send one (under the lock) while the engine's thread is in the middle of a round.
 *
 * Rounds. A rank sends every other rank a frame (round, head, span) and the bytes of the span, and receives the same
 * from each, all at the same time and without blocking. A rank needs one half only, because the bytes of the next round
 * wait in the socket until this rank asks for them.
 *
 * Failure. The rank that finds a failure first sends BROKEN with the cause to all others, and who learns it passes it
 * on. A rank that leaves sends LEFT. Both connections of a process that ended are closed by the kernel of its host; if no
 * notice came before, the rank was lost. A stopped process, and a host that is silent, end a wait by its deadline. A
 * notice and data can pass each other, so a rank is lost only when both connections have ended and its data are
 * incomplete.
 *
 * Who may connect. The invitation has a secret of 128 bits. A hello and its answer carry a proof, a hash that begins
 * with the secret, and name sender and receiver, so a program that connects by accident or with another group's
 * invitation is refused. It is no encryption: like NCCL's, these connections belong in a network that is trusted.
 */
#ifndef SL_COLLECTIVES_CPU_SOCKETS_H
#define SL_COLLECTIVES_CPU_SOCKETS_H

#include <pthread.h>
#include <stdatomic.h>

#include "collectives/cpu/rounds.h"

enum { SL_COMM_DATA, SL_COMM_NOTICES, SL_COMM_WIRES }; /* the two connections of a pair */

/* Kinds of notices. From ROLL on only while the group forms. */
enum {
    SL_COMM_NOTE_BROKEN = 1, /* status, lost, text */
    SL_COMM_NOTE_LEFT,
    SL_COMM_NOTE_ROLL,    /* rank 0: who has joined */
    SL_COMM_NOTE_ADDRESS, /* rank 0: where `rank` listens: text, port */
    SL_COMM_NOTE_READY,   /* to rank 0: connected with all ranks */
    SL_COMM_NOTE_GO,      /* rank 0: all are ready */
};

typedef struct sl_comm_note {
    uint32_t kind;
    int32_t status, lost, rank;
    uint64_t joined; /* bit r: rank r */
    uint32_t port, spare;
    char text[256];
} sl_comm_note;

/* Before the bytes of a span. Of head.count only the first `ranks` entries travel. */
typedef struct sl_comm_frame {
    uint32_t round, spare;
    uint64_t at, bytes;
    sl_comm_head head;
} sl_comm_frame;

#define SL_COMM_HOST_MAX 176

/* Another rank. */
typedef struct sl_comm_link {
    int fd[SL_COMM_WIRES]; /* -1: not connected. fd[SL_COMM_NOTICES] is written under the lock */
    char host[SL_COMM_HOST_MAX];
    uint32_t port;     /* it listens there; 0: not known yet */
    uint64_t instance; /* random per process and group */
    bool ready;        /* rank 0: it is connected with all */
    bool left, notices_ended, data_ended;
    sl_comm_note note; /* that is being received */
    size_t note_got;
    sl_comm_frame out, in; /* of the round; bytes of frame and span that were sent and received */
    size_t sent, got;
} sl_comm_link;

typedef struct sl_comm_mesh sl_comm_mesh; /* mesh.c: while the group forms */

typedef struct sl_comm_sockets {
    sl_comm_cpu cpu; /* first */
    sl_key secret;
    int bell; /* eventfd: the group was broken by another thread */
    sl_comm_mesh *mesh;
    uint64_t joined; /* as rank 0 told last: bit r: rank r */
    bool go;
    sl_comm_link link[SL_COMM_RANKS_MAX];
    sl_comm_head own;
    uint8_t *halves; /* [ranks][half_bytes] */

    pthread_mutex_t lock;
    _Atomic bool broken; /* the cause is under the lock */
    sl_status status;
    int32_t lost;
    char cause[256];
} sl_comm_sockets;

static inline int32_t sl_comm_sockets_rank(const sl_comm_sockets *c)
{
    return c->cpu.base.opts.rank;
}

/* ---- notice.c ---- */

/* Breaks the group with this cause unless it is broken already, and tells all ranks. Any thread. */
void sl_comm_sockets_break(sl_comm_sockets *c, sl_status st, int32_t lost, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* SL_OK, or the cause. */
sl_status sl_comm_sockets_broken(sl_comm_sockets *c, sl_err *err);
/* A notice to one rank, or to all that are connected. */
void sl_comm_note_send(sl_comm_sockets *c, int32_t rank, const sl_comm_note *note);
void sl_comm_note_all(sl_comm_sockets *c, const sl_comm_note *note);
/* Acts on what has come from this rank, and on the end of the connection. It does not wait. */
void sl_comm_notes_read(sl_comm_sockets *c, int32_t rank);
/* "rank 1 at 10.0.0.2:40123", as far as the address is known. */
typedef struct sl_comm_who {
    char text[SL_COMM_HOST_MAX + 32];
} sl_comm_who;
sl_comm_who sl_comm_name(const sl_comm_sockets *c, int32_t rank);
/* Names the ranks for which `missing` is true: "rank 1 at 10.0.0.2:40123, rank 2"; returns the first one, or -1. */
int32_t sl_comm_names(const sl_comm_sockets *c, bool (*missing)(const sl_comm_sockets *c, int32_t rank),
                      char *out, size_t cap);

/* ---- mesh.c ---- */

/* Rank 0: listens. Fills `own` of the invitation. */
sl_status sl_comm_mesh_found(sl_comm_sockets *c, const char *host, uint8_t *own, sl_err *err);
/* Another rank: listens, and begins to connect with rank 0. `refusal`: as in sl_comm_desc.join; it may then wait until rank
 * 0's host has answered, at most for the deadline. */
sl_status sl_comm_mesh_join(sl_comm_sockets *c, const uint8_t *own, const char *refusal, sl_err *err);
/* Waits until every rank is connected with every other one; no process can connect afterwards. */
sl_status sl_comm_mesh_form(sl_comm_sockets *c, sl_err *err);
/* Ends the forming: closes what only it needs. NULL is allowed. */
void sl_comm_mesh_free(sl_comm_mesh *m);

#endif
