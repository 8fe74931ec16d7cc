/*
 * UCX transport, the door: decides which processes may connect.
 *
 * UCX 1.13's TCP listener ends the process when it receives bytes that are not UCX's. So the address that
 * other processes know is a listener of our own, and packet filters in the kernel (gate.h) protect the
 * sockets of UCX:
 *
 *   caller   connects to the door, reserves a free port, sends KNOCK {that port, a nonce}
 *   door     with a secret: sends CHALLENGE {a nonce}
 *   caller   with a secret: sends PROOF {that it knows the secret}, about both nonces and the addresses of both
 *   door     admits segments from (the caller's address, that port) to UCX's listener, and answers
 *            {its port, its own proof}
 *   caller   has UCX connect from that port to that listener; then the door removes the admission
 *
 * The caller proves first: every process may call a door, and must not receive a proof on which it could test guessed
 * secrets.
 *
 * UCX chooses the source ports of its data connections. So its data sockets are open to every caller for the time that
 * connecting may take after a knock (twice connect_timeout_ms, on both sides), and shut at other times. While they are
 * open, UCX itself rejects connections that do not begin with its magic number.
 *
 * This file has the listener, the admissions and the gates; stranger.c has the callers that are not admitted yet;
 * knock.c has this process in the role of a caller.
 */
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/log.h"
#include "transport/ucx/door_msg.h"
#include "transport/ucx/ucx_impl.h"

enum {
    POLL_EVERY_NS = 1000000, /* interval of polling epoll_fd while no event is known */
    PAUSE_NS = 100000000,    /* time without accepting after descriptors ran out */
    EVENTS = 64,
};

static bool watch(ux_door *d, int fd, uint32_t events, void *what)
{
    struct epoll_event ev = {.events = events, .data.ptr = what};
    if (epoll_ctl(d->epoll_fd, EPOLL_CTL_ADD, fd, &ev) != 0)
        return false;
    d->watched++;
    return true;
}

ux_knock *ux_knock_new(ux_transport *tp, int fd, ux_ep *ep, uint32_t events)
{
    ux_door *d = &tp->door;
    ux_knock *k = calloc(1, sizeof *k);
    if (!k || !watch(d, fd, events, k)) {
        free(k);
        return NULL;
    }
    k->fd = fd;
    k->ep = ep;
    k->reserved_fd = -1;
    k->next = d->first;
    *(d->first ? &d->first->prev : &d->last) = k;
    d->first = k;
    d->strangers += !ep;
    return k;
}

void ux_knock_free(ux_transport *tp, ux_knock *k)
{
    ux_door *d = &tp->door;
    *(k->prev ? &k->prev->next : &d->first) = k->next;
    *(k->next ? &k->next->prev : &d->last) = k->prev;
    d->strangers -= !k->ep;
    if (k->ep)
        k->ep->knock = NULL;
    d->watched--;
    close(k->fd); /* this also removes it from epoll_fd */
    if (k->reserved_fd >= 0)
        close(k->reserved_fd);
    free(k);
}

bool ux_knock_read(ux_knock *k, bool *gone)
{
    ssize_t n = recv(k->fd, k->in + k->got, sizeof k->in - k->got, MSG_DONTWAIT);
    *gone = n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR);
    k->got += n > 0 ? (size_t)n : 0;
    return n > 0;
}

void ux_door_leave(ux_ep *ep)
{
    if (ep->knock)
        ux_knock_free(ux_of(ep), ep->knock);
}

/* ---- gates ---- */

static void gate_failed(const sl_err *err)
{
    sl_log(SL_LOG_ERROR, "ucx", "gate", "cause=\"%s\"", err->text);
}

void ux_door_open_data(ux_transport *tp)
{
    ux_door *d = &tp->door;
    sl_err err = {0};
    d->data_shut_ns = sl_now_ns() + (uint64_t)tp->opts.connect_timeout_ms * 2000000u;
    ux_deadline(tp, d->data_shut_ns);
    if (d->data_open)
        return;
    d->data_open = true;
    if (ux_gate_open(&d->data, &err) != SL_OK)
        gate_failed(&err);
}

static void admit_all(ux_door *d)
{
    sl_err err = {0};
    if (ux_gate_admit(&d->listener, d->admitted, d->n_admitted, &err) != SL_OK)
        gate_failed(&err);
}

static void forget(ux_door *d, size_t i)
{
    d->n_admitted--;
    d->admitted[i] = d->admitted[d->n_admitted];
    d->admitted_until_ns[i] = d->admitted_until_ns[d->n_admitted];
    memcpy(d->admitted_session[i], d->admitted_session[d->n_admitted], SL_PROOF_BYTES);
}

/* Writes an address and its port in 18 bytes; IPv4 addresses are written as IPv4-mapped IPv6 addresses. */
static uint8_t *put_address(uint8_t *p, const struct sockaddr_storage *sa)
{
    uint16_t port = ux_port(sa);
    if (sa->ss_family == AF_INET6) {
        memcpy(p, &((const struct sockaddr_in6 *)sa)->sin6_addr, 16);
    } else {
        memset(p, 0, 10);
        memset(p + 10, 0xff, 2);
        memcpy(p + 12, &((const struct sockaddr_in *)sa)->sin_addr, 4);
    }
    p[16] = (uint8_t)(port >> 8);
    p[17] = (uint8_t)port;
    return p + 18;
}

void ux_door_prove(const ux_transport *tp, const ux_knock *k, const char *label,
                   const struct sockaddr_storage *caller, const struct sockaddr_storage *door,
                   uint8_t out[SL_PROOF_BYTES])
{
    uint8_t about[2 * SL_PROOF_BYTES + 2 * 18], *p = about;
    memcpy(p, k->caller_nonce, SL_PROOF_BYTES);
    memcpy(p + SL_PROOF_BYTES, k->door_nonce, SL_PROOF_BYTES);
    p = put_address(p + 2 * SL_PROOF_BYTES, caller);
    put_address(p, door);
    sl_proof_make(tp->opts.secret, label, about, sizeof about, out);
}

sl_status ux_door_admit(ux_transport *tp, const struct sockaddr_storage *caller,
                        const uint8_t session[SL_PROOF_BYTES])
{
    ux_door *d = &tp->door;
    if (d->n_admitted == UX_GATE_ADMITTED)
        return SL_AGAIN;
    uint64_t until = sl_now_ns() + (uint64_t)tp->opts.connect_timeout_ms * 1000000u;
    d->admitted[d->n_admitted] = *caller;
    memcpy(d->admitted_session[d->n_admitted], session, SL_PROOF_BYTES);
    d->admitted_until_ns[d->n_admitted++] = until;
    ux_deadline(tp, until);
    admit_all(d);
    ux_door_open_data(tp);
    return SL_OK;
}

void ux_door_arrived(ux_transport *tp, const struct sockaddr_storage *from, uint8_t session[SL_PROOF_BYTES])
{
    ux_door *d = &tp->door;
    memset(session, 0, SL_PROOF_BYTES);
    char came[SL_TP_ADDRESS_MAX], expected[SL_TP_ADDRESS_MAX];
    sl_tp_address_text(from, came, sizeof came);
    for (size_t i = 0; i < d->n_admitted; i++) {
        sl_tp_address_text(&d->admitted[i], expected, sizeof expected);
        if (strcmp(came, expected) == 0) {
            memcpy(session, d->admitted_session[i], SL_PROOF_BYTES);
            forget(d, i);
            admit_all(d);
            return;
        }
    }
}

/* ---- opening, closing, progress ---- */

/* UCX accepts connections over TCP unless it is configured to use rdmacm alone. */
static bool door_wanted(const sl_tp_options *o)
{
    const char *list = o->sockaddr_priority ? o->sockaddr_priority : getenv("UCX_SOCKADDR_TLS_PRIORITY");
    return !list || !*list || strstr(list, "tcp") || strstr(list, "sockcm") || strstr(list, "all") ||
           strchr(list, '*') || !strstr(list, "rdmacm");
}

/* Warns when the kernel accepts filters and ignores them, which leaves UCX's sockets open. */
static void check_gate(const ux_gate *g)
{
    if (g->n && !ux_gate_holds(g))
        sl_log(SL_LOG_WARN, "ucx", "gate",
               "cause=\"this kernel ignores socket filters: ucx's own ports are open to every caller\"");
}

/* Takes gates; continues without gates if the kernel does not allow them. */
static sl_status take_gates(ux_gate *g, const ux_gate_ports *before, const void *address, size_t bytes,
                            uint16_t port, sl_err *err)
{
    sl_status st = ux_gate_take(g, before, address, bytes, port, err);
    if (st == SL_ERR_UNSUPPORTED) {
        sl_log(SL_LOG_WARN, "ucx", "gate", "cause=\"%s: ucx's own ports are open to every caller\"",
               err->text);
        return SL_OK;
    }
    if (st == SL_OK && port && !g->n)
        sl_log(SL_LOG_WARN, "ucx", "gate", "cause=\"no socket of ucx listens on port %u\"", port);
    return st;
}

sl_status ux_door_init(ux_transport *tp, const ux_gate_ports *before, sl_err *err)
{
    ux_door *d = &tp->door;
    ucp_address_t *address;
    size_t bytes;
    d->used = door_wanted(&tp->opts);
    if (!d->used)
        return SL_OK;
    ucs_status_t ucs = ucp_worker_get_address(tp->worker, &address, &bytes);
    if (ucs != UCS_OK)
        return sl_fail(err, SL_ERR_IO, "ucp_worker_get_address: %s", ucs_status_string(ucs));
    sl_status st = take_gates(&d->data, before, address, bytes, 0, err);
    ucp_worker_release_address(tp->worker, address);
    if (st != SL_OK)
        return st;
    d->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (d->epoll_fd < 0)
        return sl_fail(err, SL_ERR_IO, "epoll_create1: %s", strerror(errno));
    return sl_tp_waker_add(&tp->waker, d->epoll_fd, err);
}

static int listen_on(struct sockaddr_storage *sa, socklen_t len)
{
    const int on = 1;
    int fd = socket(sa->ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -1;
    /* a restarted router needs its port immediately */
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (bind(fd, (struct sockaddr *)sa, len) != 0 || listen(fd, SOMAXCONN) != 0 ||
        getsockname(fd, (struct sockaddr *)sa, &len) != 0) {
        int error = errno;
        close(fd);
        errno = error;
        return -1;
    }
    return fd;
}

sl_status ux_door_open(ux_transport *tp, struct sockaddr_storage *sa, socklen_t len,
                       const ux_gate_ports *before, uint16_t port, sl_err *err)
{
    ux_door *d = &tp->door;
    char text[SL_TP_ADDRESS_MAX];
    SL_TRY(take_gates(&d->listener, before, NULL, 0, port, err));
    check_gate(&d->listener);
    sl_tp_address_text(sa, text, sizeof text);
    int fd = listen_on(sa, len);
    if (fd < 0 || !watch(d, fd, EPOLLIN, NULL)) {
        sl_status st = sl_fail(err, SL_ERR_IO, "cannot listen on %s: %s", text, strerror(errno));
        if (fd >= 0)
            close(fd);
        ux_gate_release(&d->listener);
        return st;
    }
    d->listen_fd = fd;
    d->port = port;
    return SL_OK;
}

void ux_door_close(ux_transport *tp)
{
    ux_door *d = &tp->door;
    while (d->first)
        ux_knock_free(tp, d->first);
    if (d->listen_fd >= 0)
        close(d->listen_fd);
    if (d->epoll_fd >= 0)
        close(d->epoll_fd);
    d->listen_fd = d->epoll_fd = -1;
    d->watched = 0;
    ux_gate_release(&d->listener);
    ux_gate_release(&d->data);
}

bool ux_door_ready(ux_transport *tp)
{
    ux_door *d = &tp->door;
    struct epoll_event ev;
    if (d->watched && !d->ready)
        d->ready = epoll_wait(d->epoll_fd, &ev, 1, 0) > 0;
    return d->ready;
}

int ux_door_progress(ux_transport *tp)
{
    ux_door *d = &tp->door;
    struct epoll_event events[EVENTS];
    bool knocking = false;
    if (!d->watched)
        return 0;
    uint64_t now = sl_now_ns();
    if (!d->ready && now < d->polled_ns + POLL_EVERY_NS)
        return 0;
    d->polled_ns = now;
    d->ready = false;
    int n = epoll_wait(d->epoll_fd, events, EVENTS, 0);
    for (int i = 0; i < n; i++) {
        ux_knock *k = events[i].data.ptr;
        if (!k)
            knocking = true; /* handled last: it may refuse strangers whose events are in this list */
        else if (!k->ep)
            ux_stranger_hear(tp, k);
        else if (k->reserved_fd < 0)
            ux_knock_connected(tp, k);
        else
            ux_knock_heard(tp, k);
    }
    if (knocking)
        n += ux_stranger_accept(tp);
    return n > 0 ? n : 0;
}

void ux_door_pause(ux_transport *tp)
{
    ux_door *d = &tp->door;
    if (epoll_ctl(d->epoll_fd, EPOLL_CTL_DEL, d->listen_fd, NULL) == 0)
        d->watched--;
    d->paused_until_ns = sl_now_ns() + PAUSE_NS;
    ux_deadline(tp, d->paused_until_ns);
}

static void end_pause(ux_transport *tp, uint64_t now)
{
    ux_door *d = &tp->door;
    if (!d->paused_until_ns || d->listen_fd < 0)
        return;
    if (d->paused_until_ns > now) {
        ux_deadline(tp, d->paused_until_ns);
        return;
    }
    d->paused_until_ns = 0;
    if (!watch(d, d->listen_fd, EPOLLIN, NULL)) {
        d->paused_until_ns = now + PAUSE_NS;
        ux_deadline(tp, d->paused_until_ns);
    }
}

void ux_door_deadlines(ux_transport *tp, uint64_t now)
{
    ux_door *d = &tp->door;
    size_t before = d->n_admitted;
    sl_err err = {0};
    for (ux_knock *k = d->first, *next; k; k = next) {
        next = k->next;
        if (k->ep)
            continue;
        if (k->deadline_ns > now)
            ux_deadline(tp, k->deadline_ns);
        else
            ux_stranger_refuse(tp, k, "no complete greeting in time");
    }
    for (size_t i = d->n_admitted; i-- > 0;)
        if (d->admitted_until_ns[i] > now)
            ux_deadline(tp, d->admitted_until_ns[i]);
        else
            forget(d, i);
    if (d->n_admitted != before)
        admit_all(d);
    end_pause(tp, now);
    if (d->data_open && d->data_shut_ns > now) {
        ux_deadline(tp, d->data_shut_ns);
    } else if (d->data_open) {
        d->data_open = false;
        if (ux_gate_shut(&d->data, &err) != SL_OK)
            gate_failed(&err);
    }
}
