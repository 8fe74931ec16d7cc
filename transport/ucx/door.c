/*
 * UCX transport, the doorman: who may connect.
 *
 * UCX 1.13's TCP listener ends the process when it gets bytes that are not UCX's. So the address that others
 * know is a listener of our own, and UCX's sockets are behind gates in the kernel (gate.h):
 *
 *   caller   connects to the door, takes a free port of its own, sends KNOCK {that port}
 *   door     lets segments from (the caller's address, that port) pass to UCX's listener, answers {its port}
 *   caller   has UCX connect from that port to that listener; the door shuts behind it
 *
 * UCX's data sockets, whose connections come from ports that UCX chooses, are open to everybody for as long
 * as a connection may take from a knock on (twice connect_timeout_ms, on both sides) and shut else. In that
 * time UCX itself turns away connections that do not begin with its magic number.
 *
 * A stranger gets nothing: no answer, UX_DOOR_MAX bytes of ours, a place among UX_MAX_STRANGERS until its
 * first wrong byte, the deadline, or UX_MAX_STRANGERS later ones. This is no authentication: who speaks this
 * protocol comes in.
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

enum { LOOK_NS = 1000000, DEAF_NS = 100000000, SAY_NS = 1000000000, EVENTS = 64 };
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
    close(k->fd); /* leaves epoll_fd, too */
    if (k->reserved_fd >= 0)
        close(k->reserved_fd);
    free(k);
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
}

void ux_door_arrived(ux_transport *tp, const struct sockaddr_storage *from)
{
    ux_door *d = &tp->door;
    char came[SL_TP_ADDRESS_MAX], expected[SL_TP_ADDRESS_MAX];
    sl_tp_address_text(from, came, sizeof came);
    for (size_t i = 0; i < d->n_admitted; i++) {
        sl_tp_address_text(&d->admitted[i], expected, sizeof expected);
        if (strcmp(came, expected) == 0) {
            forget(d, i);
            admit_all(d);
            return;
        }
    }
}

/* ---- strangers ---- */

/* At most one line a second, however many come. */
static void turn_away(ux_transport *tp, ux_knock *k, const char *cause)
{
    ux_door *d = &tp->door;
    uint64_t now = sl_now_ns();
    char peer[SL_TP_ADDRESS_MAX], bytes[2 * 16 + 1] = "";
    tp->stats.refused_connects++;
    if (k->got && now >= d->said_ns + SAY_NS) {
        for (size_t i = 0; i < k->got && i < 16; i++)
            snprintf(bytes + 2 * i, 3, "%02x", k->in[i]);
        sl_tp_address_text(&k->peer, peer, sizeof peer);
        sl_log(SL_LOG_WARN, "ucx", "turned_away", "peer=%s cause=\"%s\" began=%s total=%llu", peer, cause,
               bytes, (unsigned long long)tp->stats.refused_connects);
        d->said_ns = now;
    }
    ux_knock_free(tp, k);
}

static void answer(ux_knock *k, uint16_t status, uint16_t port, const char *text)
{
    uint8_t out[UX_DOOR_MAX];
    ux_door_msg m = {.version = UX_DOOR_VERSION, .kind = UX_DOOR_ANSWER, .status = status, .port = port};
    snprintf(m.text, sizeof m.text, "%s", text);
    size_t n = ux_door_write(&m, out);
    if (send(k->fd, out, n, MSG_NOSIGNAL | MSG_DONTWAIT) != (ssize_t)n)
        sl_log(SL_LOG_DEBUG, "ucx", "door", "cause=\"an answer was not taken\"");
}

/* A whole message came from a stranger. */
static void heard(ux_transport *tp, ux_knock *k, const ux_door_msg *m)
{
    ux_door *d = &tp->door;
    if (m->kind != UX_DOOR_KNOCK) {
        turn_away(tp, k, "not a knock");
    } else if (m->version != UX_DOOR_VERSION) {
        char text[64];
        snprintf(text, sizeof text, "the door speaks version %d, the caller %u", UX_DOOR_VERSION, m->version);
        answer(k, UX_DOOR_OTHER_VERSION, 0, text);
        turn_away(tp, k, "another version");
    } else if (!m->port) {
        turn_away(tp, k, "a knock without a port");
    } else if (tp->destroying || !tp->opts.events.accepted) {
        answer(k, UX_DOOR_NOBODY_IN, 0, "it accepts no connections");
        turn_away(tp, k, "connections are not accepted");
    } else if (d->n_admitted == UX_GATE_ADMITTED) {
        answer(k, UX_DOOR_BUSY, 0, "too many are connecting to it");
        turn_away(tp, k, "too many connect at once");
    } else {
        uint64_t until = sl_now_ns() + (uint64_t)tp->opts.connect_timeout_ms * 1000000u;
        d->admitted[d->n_admitted] = k->peer;
        ux_set_port(&d->admitted[d->n_admitted], m->port);
        d->admitted_until_ns[d->n_admitted++] = until;
        ux_deadline(tp, until);
        admit_all(d);
        ux_door_open_data(tp);
        answer(k, UX_DOOR_COME_IN, d->port, "");
        ux_knock_free(tp, k);
    }
}

/* Reads what is there; false when nothing came. *gone: the other side closed or failed. */
bool ux_knock_read(ux_knock *k, bool *gone)
{
    ssize_t n = recv(k->fd, k->in + k->got, sizeof k->in - k->got, MSG_DONTWAIT);
    *gone = n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR);
    k->got += n > 0 ? (size_t)n : 0;
    return n > 0;
}

static void hear_stranger(ux_transport *tp, ux_knock *k)
{
    bool gone;
    ux_door_msg m;
    const char *why;
    if (!ux_knock_read(k, &gone)) {
        if (gone)
            turn_away(tp, k, "gone in the middle of the greeting");
        return;
    }
    ux_door_parsed parsed = ux_door_parse(k->in, k->got, &m, &why);
    if (parsed == UX_DOOR_WHOLE)
        heard(tp, k, &m);
    else if (parsed == UX_DOOR_FOREIGN)
        turn_away(tp, k, why);
}

static ux_knock *oldest_stranger(ux_door *d)
{
    ux_knock *k = d->last;
    while (k && k->ep)
        k = k->prev;
    return k;
}

/* No descriptor is left for a caller: the longest waiting stranger gives up its own; without any, a pause. */
static void out_of_descriptors(ux_transport *tp)
{
    ux_door *d = &tp->door;
    ux_knock *k = oldest_stranger(d);
    if (k) {
        turn_away(tp, k, "no descriptors are left");
        return;
    }
    if (epoll_ctl(d->epoll_fd, EPOLL_CTL_DEL, d->listen_fd, NULL) == 0)
        d->watched--;
    d->deaf_until_ns = sl_now_ns() + DEAF_NS;
    ux_deadline(tp, d->deaf_until_ns);
    sl_log(SL_LOG_WARN, "ucx", "door", "cause=\"no descriptors are left for callers\"");
}

static int let_knock(ux_transport *tp)
{
    ux_door *d = &tp->door;
    for (int n = 0; n < EVENTS; n++) {
        struct sockaddr_storage peer = {0};
        socklen_t len = sizeof peer;
        int fd = accept4(d->listen_fd, (struct sockaddr *)&peer, &len, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd < 0) {
            if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)
                out_of_descriptors(tp);
            return n;
        }
        if (d->strangers >= UX_MAX_STRANGERS)
            turn_away(tp, oldest_stranger(d), "too many strangers");
        ux_knock *k = ux_knock_new(tp, fd, NULL, EPOLLIN);
        if (!k) {
            close(fd);
            continue;
        }
        k->peer = peer;
        k->deadline_ns = sl_now_ns() + (uint64_t)tp->opts.connect_timeout_ms * 1000000u;
        ux_deadline(tp, k->deadline_ns);
        hear_stranger(tp, k); /* it has often said it all already */
    }
    return EVENTS;
}

/* ---- life ---- */

/* UCX takes its connections by TCP unless it is told to use rdmacm alone. */
static bool door_wanted(const sl_tp_options *o)
{
    const char *list = o->sockaddr_priority ? o->sockaddr_priority : getenv("UCX_SOCKADDR_TLS_PRIORITY");
    return !list || !*list || strstr(list, "tcp") || strstr(list, "sockcm") || strstr(list, "all") ||
           strchr(list, '*') || !strstr(list, "rdmacm");
}

/* Once per process: a kernel that takes filters and ignores them leaves UCX's sockets open. */
static void check_gate(const ux_gate *g)
{
    if (g->n && !ux_gate_holds(g))
        sl_log(SL_LOG_WARN, "ucx", "gate",
               "cause=\"this kernel ignores socket filters: ucx's own ports are open to everybody\"");
}

/* Takes gates, or goes on without them where there can be none. */
static sl_status take_gates(ux_gate *g, const ux_gate_ports *before, const void *address, size_t bytes,
                            uint16_t port, sl_err *err)
{
    sl_status st = ux_gate_take(g, before, address, bytes, port, err);
    if (st == SL_ERR_UNSUPPORTED) {
        sl_log(SL_LOG_WARN, "ucx", "gate", "cause=\"%s: ucx's own ports are open to everybody\"", err->text);
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
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on); /* a router comes back at its port at once */
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
    sl_status st = take_gates(&d->listener, before, NULL, 0, port, err);
    if (st != SL_OK)
        return st;
    check_gate(&d->listener);
    sl_tp_address_text(sa, text, sizeof text);
    int fd = listen_on(sa, len);
    if (fd < 0 || !watch(d, fd, EPOLLIN, NULL)) {
        st = sl_fail(err, SL_ERR_IO, "cannot listen on %s: %s", text, strerror(errno));
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
    if (!d->ready && now < d->looked_ns + LOOK_NS)
        return 0;
    d->looked_ns = now;
    d->ready = false;
    int n = epoll_wait(d->epoll_fd, events, EVENTS, 0);
    for (int i = 0; i < n; i++) {
        ux_knock *k = events[i].data.ptr;
        if (!k)
            knocking = true; /* last: it may turn others away, whose events are in this list */
        else if (!k->ep)
            hear_stranger(tp, k);
        else if (k->reserved_fd < 0)
            ux_knock_connected(tp, k);
        else
            ux_knock_heard(tp, k);
    }
    if (knocking)
        n += let_knock(tp);
    return n > 0 ? n : 0;
}

static void end_pause(ux_transport *tp, uint64_t now)
{
    ux_door *d = &tp->door;
    if (!d->deaf_until_ns || d->listen_fd < 0)
        return;
    if (d->deaf_until_ns > now) {
        ux_deadline(tp, d->deaf_until_ns);
        return;
    }
    d->deaf_until_ns = 0;
    if (!watch(d, d->listen_fd, EPOLLIN, NULL)) {
        d->deaf_until_ns = now + DEAF_NS;
        ux_deadline(tp, d->deaf_until_ns);
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
            turn_away(tp, k, "no whole greeting in time");
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
