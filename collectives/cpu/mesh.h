/*
 * How ranks on several hosts become a group: what mesh.c (the order of events), dial.c (connections that this
 * rank makes) and door.c (connections that come) share. Everything here runs in the thread of the backend and does
 * not block, except that looking a name up may; sl_comm_mesh exists only while a group forms.
 */
#ifndef SL_COLLECTIVES_CPU_MESH_H
#define SL_COLLECTIVES_CPU_MESH_H

#include <sys/socket.h>

#include "collectives/cpu/sockets.h"

enum { SL_COMM_GUESTS = 2 * SL_COMM_RANKS_MAX + 32 }; /* connections from which no hello has come */
enum { SL_COMM_HELLO, SL_COMM_REFUSAL, SL_COMM_WELCOME, SL_COMM_TAKEN }; /* hello.kind */

/* The first bytes of a connection, and their answer. */
typedef struct sl_comm_hello {
    char magic[8];
    uint32_t kind, wire; /* wire: SL_COMM_DATA or SL_COMM_NOTICES */
    int32_t from, to;
    uint32_t port, spare; /* HELLO: `from` listens there */
    uint64_t instance;    /* HELLO: of `from` */
    char text[256];       /* REFUSAL, TAKEN: why */
    sl_key proof;
} sl_comm_hello;

/* A connection that this rank makes. */
typedef struct sl_comm_dial {
    int fd; /* -1: none */
    bool begun, asked;
    size_t got;
    sl_comm_hello answer;
} sl_comm_dial;

/* A connection to this rank from which no hello has come. */
typedef struct sl_comm_guest {
    int fd; /* -1: none */
    uint64_t number;
    size_t got;
    char host[SL_COMM_HOST_MAX];
    sl_comm_hello hello;
} sl_comm_guest;

struct sl_comm_mesh {
    int listener, family;
    uint32_t port;
    uint64_t instance, guests; /* guests so far */
    bool told;                 /* rank 0: the addresses; others: READY */
    const char *refusal;       /* sl_comm_desc.join */
    uint64_t refused;          /* rank 0: bit r: rank r does not fit */
    char why[256];
    sl_comm_dial dial[SL_COMM_RANKS_MAX][SL_COMM_WIRES];
    sl_comm_guest guest[SL_COMM_GUESTS];
};

/* Whether both connections with this rank stand. */
static inline bool sl_comm_connected(const sl_comm_sockets *c, int32_t q)
{
    return q == sl_comm_sockets_rank(c) ||
           (c->link[q].fd[SL_COMM_DATA] >= 0 && c->link[q].fd[SL_COMM_NOTICES] >= 0);
}

/* ---- dial.c ---- */

/* The first address of a name, or of a number. family: AF_UNSPEC takes any. SL_ERR_INVALID: there is none. */
sl_status sl_comm_resolve(const char *host, int family, struct sockaddr_storage *out, socklen_t *len,
                          sl_err *err);
/* Listens at this address, at a port that the system chooses. host: its name, for the error. */
sl_status sl_comm_listen(sl_comm_mesh *m, struct sockaddr_storage a, socklen_t len, const char *host,
                         sl_err *err);
/* Options of a new connection. */
void sl_comm_prepare(int fd, uint32_t wire);
void sl_comm_shut(int *fd);
/* Reads on until *got is cap. False: the connection has ended. */
bool sl_comm_read(int fd, void *to, size_t cap, size_t *got);
/* Sends a hello or an answer, with the proof. False: the connection has ended. */
bool sl_comm_say(const sl_comm_sockets *c, int fd, sl_comm_hello h);
/* Whether it was made with the secret of this group, for this rank. */
bool sl_comm_genuine(const sl_comm_sockets *c, sl_comm_hello *h);
/* This connection with rank q stands from now on. */
void sl_comm_take(sl_comm_sockets *c, int32_t q, uint32_t wire, int fd);
/* Begins to connect with a rank whose address is known; breaks the group if that is impossible. */
void sl_comm_dial_begin(sl_comm_sockets *c, int32_t to, uint32_t wire);
/* Says hello, or mesh->refusal, once the other host has answered. */
void sl_comm_dial_ask(sl_comm_sockets *c, int32_t to, uint32_t wire);
/* Everything that can be done now for the connections to all lower ranks whose addresses are known. */
void sl_comm_dial_turn(sl_comm_sockets *c);

/* ---- door.c ---- */

/* Everything that can be done now for those that connect with this rank. */
void sl_comm_door_turn(sl_comm_sockets *c);

#endif
