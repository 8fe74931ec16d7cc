/*
 * UCX transport, this process as a caller at the door of another process (door.c): it connects, reserves a port, sends
 * the greeting, and lets UCX connect when it is admitted. Every failure is reported as a refused connection with the
 * reason.
 */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "transport/ucx/door_msg.h"
#include "transport/ucx/ucx_impl.h"

static void not_let_in(ux_ep *ep, sl_status st, const char *why)
{
    ux_door_leave(ep);
    ux_break(ep, st, why);
}

/* Reserves a free port on the local address of the connection to the door; UCX will connect from it. */
static bool reserve(ux_knock *k)
{
    socklen_t len = sizeof k->from;
    if (getsockname(k->fd, (struct sockaddr *)&k->from, &len) != 0)
        return false;
    ux_set_port(&k->from, 0);
    k->reserved_fd = socket(k->from.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    return k->reserved_fd >= 0 && bind(k->reserved_fd, (struct sockaddr *)&k->from, len) == 0 &&
           getsockname(k->reserved_fd, (struct sockaddr *)&k->from, &len) == 0;
}

/* The connection to the door is established, or failed. */
void ux_knock_connected(ux_transport *tp, ux_knock *k)
{
    uint8_t out[UX_DOOR_MAX];
    int error = 0;
    socklen_t len = sizeof error;
    struct epoll_event ev = {.events = EPOLLIN, .data.ptr = k};
    if (getsockopt(k->fd, SOL_SOCKET, SO_ERROR, &error, &len) != 0 || error) {
        not_let_in(k->ep, error == ETIMEDOUT ? SL_ERR_TIMEOUT : SL_ERR_REFUSED, strerror(error));
        return;
    }
    if (!reserve(k)) {
        not_let_in(k->ep, SL_ERR_REFUSED, strerror(errno));
        return;
    }
    ux_door_msg m = {.version = UX_DOOR_VERSION, .kind = UX_DOOR_KNOCK, .port = ux_port(&k->from)};
    sl_proof_nonce(k->caller_nonce);
    memcpy(m.nonce, k->caller_nonce, sizeof m.nonce);
    size_t n = ux_door_write(&m, out);
    if (send(k->fd, out, n, MSG_NOSIGNAL) != (ssize_t)n ||
        epoll_ctl(tp->door.epoll_fd, EPOLL_CTL_MOD, k->fd, &ev) != 0)
        not_let_in(k->ep, SL_ERR_REFUSED, "the door did not accept the knock");
}

static void come_in(ux_transport *tp, ux_knock *k, uint16_t port)
{
    ux_ep *ep = k->ep;
    struct sockaddr_storage to = k->peer, from = k->from;
    if (ux_has_secret(tp))
        ux_door_prove(tp, k, UX_PROOF_SESSION, &k->from, &k->peer, ep->session.door);
    ux_set_port(&to, port);
    ux_door_leave(ep); /* also frees the port for UCX */
    ux_door_open_data(tp);
    ux_connect_ucx(ep, &to, &from);
}

/* The door asks whether this process knows the cluster's secret. */
static void answer_challenge(ux_transport *tp, ux_knock *k, const ux_door_msg *asked)
{
    uint8_t out[UX_DOOR_MAX];
    ux_door_msg m = {.version = UX_DOOR_VERSION, .kind = UX_DOOR_PROOF};
    if (!ux_has_secret(tp)) {
        not_let_in(k->ep, SL_ERR_REFUSED, "the door asks for the cluster's secret: set cluster.secret_file");
        return;
    }
    if (k->challenged) {
        not_let_in(k->ep, SL_ERR_REFUSED, "no door of a sluice process: two challenges");
        return;
    }
    k->challenged = true;
    k->got = 0;
    memcpy(k->door_nonce, asked->nonce, sizeof k->door_nonce);
    ux_door_prove(tp, k, UX_PROOF_CALLER, &k->from, &k->peer, m.proof);
    size_t n = ux_door_write(&m, out);
    if (send(k->fd, out, n, MSG_NOSIGNAL) != (ssize_t)n)
        not_let_in(k->ep, SL_ERR_REFUSED, "the door did not accept the proof");
}

/* True if the door has proved that it knows the secret, and if there is no secret. */
static bool door_is_right(const ux_transport *tp, const ux_knock *k, const ux_door_msg *m)
{
    uint8_t right[SL_PROOF_BYTES];
    if (!ux_has_secret(tp))
        return true;
    if (!k->challenged)
        return false;
    ux_door_prove(tp, k, UX_PROOF_DOOR, &k->from, &k->peer, right);
    return sl_proof_equal(right, m->proof);
}

void ux_knock_heard(ux_transport *tp, ux_knock *k)
{
    bool gone;
    ux_door_msg m;
    const char *why;
    char text[sizeof k->ep->why];
    if (!ux_knock_read(k, &gone)) {
        if (gone)
            not_let_in(k->ep, SL_ERR_REFUSED, "closed by the peer without an answer");
        return;
    }
    ux_door_parsed parsed = ux_door_parse(k->in, k->got, &m, &why);
    if (parsed == UX_DOOR_MORE)
        return;
    if (parsed == UX_DOOR_WHOLE && m.kind == UX_DOOR_CHALLENGE && m.version == UX_DOOR_VERSION) {
        answer_challenge(tp, k, &m);
    } else if (parsed == UX_DOOR_FOREIGN || m.kind != UX_DOOR_ANSWER) {
        snprintf(text, sizeof text, "no door of a sluice process: %s",
                 parsed == UX_DOOR_FOREIGN ? why : "no answer");
        not_let_in(k->ep, SL_ERR_REFUSED, text);
    } else if (m.version != UX_DOOR_VERSION) {
        snprintf(text, sizeof text, "the door speaks version %u, this is %d", m.version, UX_DOOR_VERSION);
        not_let_in(k->ep, SL_ERR_REFUSED, text);
    } else if (m.status != UX_DOOR_COME_IN || !m.port) {
        snprintf(text, sizeof text, "refused: %s", m.text);
        not_let_in(k->ep, SL_ERR_REFUSED, text);
    } else if (!door_is_right(tp, k, &m)) {
        not_let_in(k->ep, SL_ERR_REFUSED, "the door does not prove the secret of cluster.secret_file");
    } else {
        come_in(tp, k, m.port);
    }
}

void ux_door_knock(ux_ep *ep, const struct sockaddr_storage *sa, socklen_t len)
{
    ux_transport *tp = ux_of(ep);
    const int on = 1;
    int fd = socket(sa->ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0) {
        ux_break(ep, SL_ERR_REFUSED, strerror(errno));
        return;
    }
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    if (connect(fd, (const struct sockaddr *)sa, len) != 0 && errno != EINPROGRESS) {
        ux_break(ep, SL_ERR_REFUSED, strerror(errno));
        close(fd);
        return;
    }
    ep->knock = ux_knock_new(tp, fd, ep, EPOLLOUT);
    if (!ep->knock) {
        ux_break(ep, SL_ERR_REFUSED, "out of memory for a knock");
        close(fd);
        return;
    }
    ep->knock->peer = *sa;
}
