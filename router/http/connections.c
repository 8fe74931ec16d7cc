/*
 * Connections and how long they may take for what they do: the headers of a first request, a body, nothing.
 * libmicrohttpd has one timeout, between bytes, so a peer that sends a byte from time to time would hold a
 * connection permanently.
 *
 * And the ends of connections. libmicrohttpd is told of changes of a socket only (EPOLLET), and takes a read that did not fill its
 * buffer for the last one. An end of the client's side that comes with the bytes before it is therefore not seen: the connection was
 * kept until a timeout closed it. A set of ours (without EPOLLET) tells each end, and shutdown() makes it a change again, after
 * which libmicrohttpd reads what is left, answers it, and closes.
 */
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include "base/log.h"
#include "router/http/http_impl.h"

enum { SWEEP_MS = 100, ENDS_AT_ONCE = 256 };

http_conn *http_conn_of(struct MHD_Connection *c)
{
    const union MHD_ConnectionInfo *ci = MHD_get_connection_info(c, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return ci ? ci->socket_context : NULL;
}

void http_enter_state(struct MHD_Connection *c, http_conn_state state)
{
    http_conn *k = http_conn_of(c);
    if (k && k->state != state) {
        k->state = state;
        k->since_ns = sl_now_ns();
    }
}

/* Without this call a session has no certificate, and its handshake fails (no_certificate in daemon.c). */
static void use_tls(sl_http *h, struct MHD_Connection *c, http_conn *k)
{
    sl_tls *t = sl_router_tls(h->r);
    const union MHD_ConnectionInfo *ci =
        t ? MHD_get_connection_info(c, MHD_CONNECTION_INFO_GNUTLS_SESSION) : NULL;
    if (ci && ci->tls_session && !sl_tls_use(t, ci->tls_session))
        k->tls = sl_tls_ref(t);
}

/*
 * Not at once when an end is told: while libmicrohttpd has not yet taken notice of the bytes before it, both changes would be one again. So
 * each sweep repeats it, until the connection is closed.
 */
static void tell_ends(sl_http *h)
{
    struct epoll_event ends[ENDS_AT_ONCE];
    int n = epoll_wait(h->ends_fd, ends, ENDS_AT_ONCE, 0);
    for (int i = 0; i < n; i++)
        shutdown(((const http_conn *)ends[i].data.ptr)->fd, SHUT_RD);
    h->dirty |= n > 0;
}

static void watch_end(sl_http *h, http_conn *k)
{
    struct epoll_event e = {.events = EPOLLRDHUP, .data.ptr = k};
    epoll_ctl(h->ends_fd, EPOLL_CTL_ADD, k->fd, &e); /* a failure costs the time until a timeout */
}

static void open_conn(sl_http *h, struct MHD_Connection *c, void **ctx)
{
    const union MHD_ConnectionInfo *ci = MHD_get_connection_info(c, MHD_CONNECTION_INFO_CONNECTION_FD);
    http_conn *k = ci ? calloc(1, sizeof *k) : NULL;
    *ctx = k;
    if (!k)
        return;
    use_tls(h, c, k);
    k->fd = ci->connect_fd;
    k->since_ns = sl_now_ns();
    k->next = h->conns;
    if (k->next)
        k->next->prev = k;
    h->conns = k;
    watch_end(h, k);
}

static void close_conn(sl_http *h, http_conn *k)
{
    if (!k)
        return;
    epoll_ctl(h->ends_fd, EPOLL_CTL_DEL, k->fd, NULL);
    if (k->prev)
        k->prev->next = k->next;
    else
        h->conns = k->next;
    if (k->next)
        k->next->prev = k->prev;
    k->next = h->closed; /* libmicrohttpd ends the TLS session only after this call */
    h->closed = k;
}

void http_free_closed(sl_http *h)
{
    while (h->closed) {
        http_conn *k = h->closed;
        h->closed = k->next;
        sl_tls_unref(k->tls);
        free(k);
    }
}

void http_on_connection(void *cls, struct MHD_Connection *c, void **ctx,
                        enum MHD_ConnectionNotificationCode code)
{
    sl_http *h = cls;
    bool started = code == MHD_CONNECTION_NOTIFY_STARTED;
    sl_gauge_add(h->stats->fronts.http_connections, started ? 1 : -1);
    if (started) {
        open_conn(h, c, ctx);
    } else {
        close_conn(h, *ctx);
        *ctx = NULL;
    }
}

void http_sweep(sl_http *h, uint64_t now_ns)
{
    static const char *const reasons[] = {"handshake", "receive", NULL, "idle"};
    const uint64_t limits[] = {h->o->front.handshake_timeout_ms * SL_MS,
                               h->o->front.receive_timeout_ms * SL_MS, UINT64_MAX,
                               h->o->front.idle_timeout_ms * SL_MS};
    if (now_ns - h->swept_ns < SWEEP_MS * SL_MS)
        return;
    h->swept_ns = now_ns;
    tell_ends(h);
    http_free_closed(h);
    for (http_conn *k = h->conns; k; k = k->next) {
        if (now_ns - k->since_ns < limits[k->state] || now_ns < k->since_ns)
            continue;
        sl_router_stats_closed(h->stats, "http", reasons[k->state]);
        shutdown(k->fd, SHUT_RDWR); /* libmicrohttpd reads the end and closes it */
        k->since_ns = now_ns;       /* counted once */
        h->dirty = true;
    }
}
