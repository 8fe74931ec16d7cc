/*
 * The libmicrohttpd daemon in the router's loop: listening, running it when its descriptor is ready or its
 * timer has expired, stopping it.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <gnutls/abstract.h>
#include <netdb.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "router/http/http_impl.h"

enum { RUN_ROUNDS = 8, ROUNDS_NS = 12000000 };

static void on_ready(uv_poll_t *p, int status, int events)
{
    (void)status;
    (void)events;
    sl_http *h = p->data;
    h->dirty = true; /* prepare runs it */
}

static void on_timer(uv_timer_t *t)
{
    sl_http *h = t->data;
    h->dirty = true;
}

/* One round serves every connection that is ready; several do what the round before has made possible, while the turn is
 * short. */
static bool http_flush(sl_front *f)
{
    sl_http *h = (sl_http *)f;
    if (h->turn != sl_router_turn(h->r)) {
        h->turn = sl_router_turn(h->r);
        http_begin_postponed(h);
    }
    if (!h->dirty)
        return h->postponed != NULL;
    MHD_UNSIGNED_LONG_LONG ms = 0;
    for (int i = 0; i < RUN_ROUNDS; i++) {
        h->dirty = false;
        MHD_run(h->daemon);
        if (MHD_get_timeout(h->daemon, &ms) != MHD_YES)
            ms = 1000;
        if ((ms && !h->dirty) || sl_router_turn_ns(h->r) >= ROUNDS_NS)
            break;
    }
    h->dirty |= !ms;
    uv_timer_start(h->timer, on_timer, ms, 0);
    return true;
}

static bool http_behind(const sl_front *f)
{
    return ((const sl_http *)f)->dirty;
}

static void log_mhd(void *cls, const char *fmt, va_list ap)
{
    (void)cls;
    char text[300];
    vsnprintf(text, sizeof text, fmt, ap);
    text[strcspn(text, "\n")] = 0;
    sl_log(SL_LOG_DEBUG, "http", "library", "text=\"%s\"", text);
}

static sl_status bind_to(const char *host, int port, int *fd, int *real, sl_err *err)
{
    char service[16];
    snprintf(service, sizeof service, "%d", port);
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *list;
    int e = getaddrinfo(host && *host ? host : NULL, service, &hints, &list);
    if (e)
        return sl_fail(err, SL_ERR_IO, "router.host %s: %s", host, gai_strerror(e));
    int s = -1;
    for (struct addrinfo *a = list; a && s < 0; a = a->ai_next) {
        s = socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        int on = 1;
        if (s >= 0)
            setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
        if (s >= 0 && (bind(s, a->ai_addr, a->ai_addrlen) || listen(s, 1024))) {
            close(s);
            s = -1;
        }
    }
    freeaddrinfo(list);
    if (s < 0)
        return sl_fail(err, SL_ERR_IO, "router.http_port: cannot listen for HTTP on %s:%d: %s", host, port,
                       strerror(errno));
    struct sockaddr_storage sa;
    socklen_t n = sizeof sa;
    getsockname(s, (struct sockaddr *)&sa, &n);
    *real = ntohs(sa.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&sa)->sin6_port
                                           : ((struct sockaddr_in *)&sa)->sin_port);
    *fd = s;
    return SL_OK;
}

/* The daemon's own credentials are empty: each connection gets the current ones when it begins (connections.c). */
static int no_certificate(gnutls_session_t session, const gnutls_datum_t *request, int n_request,
                          const gnutls_pk_algorithm_t *algorithms, int n_algorithms, gnutls_pcert_st **certs,
                          unsigned *n_certs, gnutls_privkey_t *key)
{
    (void)session, (void)request, (void)n_request, (void)algorithms, (void)n_algorithms;
    (void)certs, (void)n_certs, (void)key;
    return -1;
}

/* Levels of strictness: 0 leaves to strict.c what 1 would end without an answer; later versions have 3, "whatever the
 * standard forbids". */
#if MHD_VERSION < 0x00097701
#define STRICT MHD_OPTION_STRICT_FOR_CLIENT, 0
#else
#define STRICT MHD_OPTION_CLIENT_DISCIPLINE_LVL, 3
#endif

static sl_status start_daemon(sl_http *h, int fd, sl_err *err)
{
    const sl_router_opts *o = h->o;
    bool tls = sl_router_tls(h->r) != NULL;
    struct MHD_OptionItem https[] = {{MHD_OPTION_HTTPS_PRIORITIES, 0, (void *)(uintptr_t)sl_tls_priorities},
                                     {MHD_OPTION_HTTPS_CERT_CALLBACK, 0, (void *)(uintptr_t)no_certificate},
                                     {MHD_OPTION_END, 0, NULL}};
    struct MHD_OptionItem none[] = {{MHD_OPTION_END, 0, NULL}};
    unsigned flags = MHD_USE_EPOLL | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ERROR_LOG | (tls ? MHD_USE_TLS : 0);
    h->daemon =
        MHD_start_daemon(flags, 0, NULL, NULL, http_on_access, h, MHD_OPTION_EXTERNAL_LOGGER, log_mhd, NULL,
                         MHD_OPTION_LISTEN_SOCKET, fd, MHD_OPTION_NOTIFY_COMPLETED, http_on_completed, h,
                         MHD_OPTION_NOTIFY_CONNECTION, http_on_connection, h, MHD_OPTION_CONNECTION_LIMIT,
                         (unsigned)o->front.max_connections, MHD_OPTION_PER_IP_CONNECTION_LIMIT,
                         (unsigned)sl_front_per_address(o), MHD_OPTION_CONNECTION_TIMEOUT,
                         (unsigned)((o->front.idle_timeout_ms + 999) / 1000),
                         MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)64 * 1024, MHD_OPTION_URI_LOG_CALLBACK,
                         http_on_uri, h, STRICT, MHD_OPTION_ARRAY, tls ? https : none, MHD_OPTION_END);
    if (!h->daemon)
        return sl_fail(err, SL_ERR_INTERNAL, "cannot start the HTTP server");
    return SL_OK;
}

static sl_status poll_daemon(sl_http *h, sl_err *err)
{
    const union MHD_DaemonInfo *di = MHD_get_daemon_info(h->daemon, MHD_DAEMON_INFO_EPOLL_FD);
    h->poll = calloc(1, sizeof *h->poll);
    h->timer = calloc(1, sizeof *h->timer);
    if (!di || !h->poll || !h->timer)
        return sl_fail(err, SL_ERR_NO_MEMORY, "cannot poll the HTTP server");
    uv_timer_init(h->loop, h->timer);
    uv_poll_init(h->loop, h->poll, di->epoll_fd);
    h->poll->data = h->timer->data = h;
    uv_poll_start(h->poll, UV_READABLE, on_ready);
    h->dirty = true;
    return SL_OK;
}

static sl_status open_http(sl_http *h, sl_err *err)
{
    int fd = -1;
    SL_TRY(bind_to(h->o->front.host, h->o->front.http_port, &fd, &h->port, err));
    sl_status st = start_daemon(h, fd, err);
    if (st) {
        close(fd);
        return st;
    }
    return poll_daemon(h, err);
}

static void http_destroy(sl_front *f);

static sl_status http_create(sl_router *r, uv_loop_t *loop, sl_front **out, sl_err *err)
{
    const sl_router_opts *o = sl_router_options(r);
    *out = NULL;
    if (o->front.http_port < 0)
        return SL_OK;
    sl_http *h = calloc(1, sizeof *h);
    if (!h)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    h->front.c = &sl_front_http;
    h->r = r;
    h->loop = loop;
    h->o = o;
    h->ends_fd = epoll_create1(EPOLL_CLOEXEC);
    h->stats = sl_router_get_stats(r);
    h->env = (sl_oai_env){.tok = sl_router_model(r)->tok,
                          .chat = sl_router_model(r)->chat,
                          .served_name = o->model.served_name,
                          .parse_special = o->model.parse_special};
    h->page = sl_page_create(r, loop);
    sl_status st = h->page && h->ends_fd >= 0
                       ? open_http(h, err)
                       : sl_fail(err, SL_ERR_NO_MEMORY, "cannot start the HTTP server");
    if (st) {
        http_destroy(&h->front);
        return st;
    }
    *out = &h->front;
    return SL_OK;
}

static int http_port(const sl_front *f)
{
    return ((const sl_http *)f)->port;
}

static void http_tick(sl_front *f, uint64_t now_ns)
{
    http_sweep((sl_http *)f, now_ns);
    sl_page_tick(((sl_http *)f)->page, now_ns);
}

/* Health checks are still answered during a drain; new calls are refused by the core. */
static void http_drain(sl_front *f)
{
    (void)f;
}

static bool http_idle(const sl_front *f)
{
    return !((const sl_http *)f)->started;
}

static void http_kv_batch(sl_front *f)
{
    (void)f; /* no page subscribes */
}

static void free_handle(uv_handle_t *p)
{
    free(p);
}

static void close_owned(uv_handle_t *p)
{
    if (p && p->loop)
        uv_close(p, free_handle);
    else
        free(p);
}

static void http_destroy(sl_front *f)
{
    sl_http *h = (sl_http *)f;
    for (http_req *q = h->reqs; q; q = q->next) { /* libmicrohttpd cannot stop with suspended connections */
        q->dead = true;
        http_let_go(q);
        http_wake(q);
    }
    if (h->poll && h->poll->loop)
        uv_poll_stop(h->poll);
    if (h->daemon)
        MHD_stop_daemon(h->daemon);
    if (h->ends_fd >= 0)
        close(h->ends_fd);
    close_owned((uv_handle_t *)h->poll);
    close_owned((uv_handle_t *)h->timer);
    http_free_closed(h);
    http_kept_free(h);
    sl_page_close(h->page);
    free(h);
}

const sl_front_class sl_front_http = {
    .name = "http",
    .create = http_create,
    .port = http_port,
    .flush = http_flush,
    .behind = http_behind,
    .tick = http_tick,
    .drain = http_drain,
    .idle = http_idle,
    .kv_batch = http_kv_batch,
    .destroy = http_destroy,
};
