/*
 * Connections that this rank makes while a group forms: sockets, the hello with its proof, and the way to the lower ranks.
 * See mesh.h.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "collectives/cpu/mesh.h"

#define MAGIC "slmesh1"
#define NOTICES_BUFFER (64 * 1024) /* SO_SNDBUF: an ADDRESS of every rank, and what follows */

/* ---- sockets ---- */

static uint32_t port_of(const struct sockaddr_storage *a)
{
    return ntohs(a->ss_family == AF_INET6 ? ((const struct sockaddr_in6 *)a)->sin6_port
                                          : ((const struct sockaddr_in *)a)->sin_port);
}

static void set_port(struct sockaddr_storage *a, uint32_t port)
{
    if (a->ss_family == AF_INET6)
        ((struct sockaddr_in6 *)a)->sin6_port = htons((uint16_t)port);
    else
        ((struct sockaddr_in *)a)->sin_port = htons((uint16_t)port);
}

/* The first address of a name, or of a number. family: AF_UNSPEC takes any. */
sl_status sl_comm_resolve(const char *host, int family, struct sockaddr_storage *out, socklen_t *len,
                          sl_err *err)
{
    struct addrinfo hints = {.ai_family = family, .ai_socktype = SOCK_STREAM}, *found = NULL;
    int e = getaddrinfo(host, NULL, &hints, &found);

    if (e != 0)
        return sl_fail(err, SL_ERR_INVALID, "comm: the address %s of rank 0: %s", host, gai_strerror(e));
    *out = (struct sockaddr_storage){0};
    memcpy(out, found->ai_addr, found->ai_addrlen);
    *len = found->ai_addrlen;
    freeaddrinfo(found);
    return SL_OK;
}

/* Listens at this address, at a port that the system chooses. */
sl_status sl_comm_listen(sl_comm_mesh *m, struct sockaddr_storage a, socklen_t len, const char *host,
                         sl_err *err)
{
    set_port(&a, 0);
    m->family = a.ss_family;
    m->listener = socket(a.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (m->listener < 0 || bind(m->listener, (struct sockaddr *)&a, len) != 0 ||
        listen(m->listener, SL_COMM_GUESTS) != 0 ||
        getsockname(m->listener, (struct sockaddr *)&a, &len) != 0)
        return sl_fail(err, SL_ERR_IO, "comm: cannot listen at %s for the other ranks: %s", host,
                       strerror(errno));
    m->port = port_of(&a);
    return SL_OK;
}

void sl_comm_prepare(int fd, uint32_t wire)
{
    int one = 1, size = NOTICES_BUFFER;

    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    if (wire == SL_COMM_NOTICES)
        (void)setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
}

void sl_comm_shut(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

/* Reads on until *got is cap. False: the connection has ended. */
bool sl_comm_read(int fd, void *to, size_t cap, size_t *got)
{
    while (*got < cap) {
        ssize_t n = recv(fd, (uint8_t *)to + *got, cap - *got, MSG_DONTWAIT);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return true;
        if (n <= 0)
            return false;
        *got += (size_t)n;
    }
    return true;
}

/* ---- hello ---- */

static sl_key proof_of(const sl_comm_sockets *c, const sl_comm_hello *h)
{
    return sl_hash_chain(c->secret, h, offsetof(sl_comm_hello, proof));
}

/* A new connection's buffer has room for it. */
bool sl_comm_say(const sl_comm_sockets *c, int fd, sl_comm_hello h)
{
    memcpy(h.magic, MAGIC, sizeof h.magic);
    h.from = sl_comm_sockets_rank(c);
    h.proof = proof_of(c, &h);
    return send(fd, &h, sizeof h, MSG_DONTWAIT | MSG_NOSIGNAL) == (ssize_t)sizeof h;
}

/* Whether it was made with the secret of this group, for this rank. */
bool sl_comm_genuine(const sl_comm_sockets *c, sl_comm_hello *h)
{
    h->text[sizeof h->text - 1] = '\0';
    return memcmp(h->magic, MAGIC, sizeof h->magic) == 0 && sl_key_eq(h->proof, proof_of(c, h)) &&
           h->to == sl_comm_sockets_rank(c) && h->wire < SL_COMM_WIRES;
}

/* This connection with rank q stands from now on. */
void sl_comm_take(sl_comm_sockets *c, int32_t q, uint32_t wire, int fd)
{
    pthread_mutex_lock(&c->lock); /* another thread may be sending notices */
    c->link[q].fd[wire] = fd;
    pthread_mutex_unlock(&c->lock);
}

/* ---- to whom this rank goes ---- */

static void unreachable(sl_comm_sockets *c, int32_t to, const char *why)
{
    if (to == 0)
        sl_comm_sockets_break(c, SL_ERR_NOT_FOUND, 0,
                              "%s cannot be reached by rank %d: %s: the founder has ended",
                              sl_comm_name(c, 0).text, sl_comm_sockets_rank(c), why);
    else
        sl_comm_sockets_break(c, SL_ERR_PEER, to, "%s cannot be reached by rank %d: %s",
                              sl_comm_name(c, to).text, sl_comm_sockets_rank(c), why);
}

void sl_comm_dial_begin(sl_comm_sockets *c, int32_t to, uint32_t wire)
{
    sl_comm_dial *d = &c->mesh->dial[to][wire];
    struct sockaddr_storage a;
    socklen_t len;
    sl_err err = {{0}};

    d->begun = true;
    if (sl_comm_resolve(c->link[to].host, c->mesh->family, &a, &len, &err) != SL_OK) {
        unreachable(c, to, err.text);
        return;
    }
    set_port(&a, c->link[to].port);
    d->fd = socket(a.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (d->fd >= 0)
        sl_comm_prepare(d->fd, wire);
    if (d->fd < 0 || (connect(d->fd, (struct sockaddr *)&a, len) != 0 && errno != EINPROGRESS))
        unreachable(c, to, strerror(errno));
}

void sl_comm_dial_ask(sl_comm_sockets *c, int32_t to, uint32_t wire)
{
    const sl_comm_mesh *m = c->mesh;
    sl_comm_dial *d = &c->mesh->dial[to][wire];
    struct pollfd p = {d->fd, POLLOUT, 0};
    sl_comm_hello h = {
        .kind = SL_COMM_HELLO, .wire = wire, .to = to, .port = m->port, .instance = m->instance};
    int e = 0;
    socklen_t len = sizeof e;

    if (m->refusal) {
        h.kind = SL_COMM_REFUSAL;
        snprintf(h.text, sizeof h.text, "%s", m->refusal);
    }
    if (poll(&p, 1, 0) <= 0)
        return;
    if (getsockopt(d->fd, SOL_SOCKET, SO_ERROR, &e, &len) != 0 || e != 0)
        unreachable(c, to, strerror(e ? e : errno));
    else if (!sl_comm_say(c, d->fd, h))
        unreachable(c, to, "it closed the connection");
    else
        d->asked = true;
}

static void answered(sl_comm_sockets *c, int32_t to, uint32_t wire)
{
    sl_comm_dial *d = &c->mesh->dial[to][wire];

    if (!sl_comm_genuine(c, &d->answer) || d->answer.from != to || d->answer.wire != wire ||
        (d->answer.kind != SL_COMM_WELCOME && d->answer.kind != SL_COMM_TAKEN)) {
        unreachable(c, to, "another program answers there");
    } else if (d->answer.kind == SL_COMM_TAKEN) {
        sl_comm_sockets_break(c, SL_ERR_REFUSED, -1, "%s", d->answer.text);
    } else {
        sl_comm_take(c, to, wire, d->fd);
        d->fd = -1;
    }
}

static void go_on(sl_comm_sockets *c, int32_t to, uint32_t wire)
{
    sl_comm_dial *d = &c->mesh->dial[to][wire];

    if (d->fd < 0 || atomic_load(&c->broken))
        return;
    if (!d->asked)
        sl_comm_dial_ask(c, to, wire);
    if (!d->asked)
        return;
    if (!sl_comm_read(d->fd, &d->answer, sizeof d->answer, &d->got))
        unreachable(c, to, "it closed the connection");
    else if (d->got == sizeof d->answer)
        answered(c, to, wire);
}

/* The connections to all lower ranks whose addresses are known. */
void sl_comm_dial_turn(sl_comm_sockets *c)
{
    for (int32_t to = 0; to < sl_comm_sockets_rank(c); to++)
        for (uint32_t wire = 0; wire < SL_COMM_WIRES && c->link[to].port; wire++) {
            if (!c->mesh->dial[to][wire].begun)
                sl_comm_dial_begin(c, to, wire);
            go_on(c, to, wire);
        }
}
