/*
 * Connections: reading, TLS, writing with a bounded queue, listening, closing.
 */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "router/grpc/h2_impl.h"

enum { SWEEP_MS = 100 };

static void free_conn(uv_handle_t *h)
{
    h2_conn *c = h->data;
    nghttp2_session_del(c->session);
    SSL_free(c->ssl);
    free(c);
}

static void close_conn(h2_conn *c)
{
    if (c->closing)
        return;
    c->closing = true;
    h2_server *sv = c->server;
    h2_drop_streams(c);
    if (c->is_dirty) {
        h2_conn **p = &sv->dirty;
        while (*p && *p != c)
            p = &(*p)->dirty_next;
        if (*p)
            *p = c->dirty_next;
    }
    if (c->is_paused) {
        h2_conn **p = &sv->paused;
        while (*p && *p != c)
            p = &(*p)->paused_next;
        if (*p)
            *p = c->paused_next;
    }
    if (c->prev)
        c->prev->next = c->next;
    else
        sv->conns = c->next;
    if (c->next)
        c->next->prev = c->prev;
    sv->n_conns--;
    if (sv->o.cb.connections)
        sv->o.cb.connections(sv->o.cb.arg, -1);
    uv_close((uv_handle_t *)&c->tcp, free_conn);
}

typedef struct out_write {
    uv_write_t req;
    h2_conn *conn;
    char *data;
} out_write;

static void on_written(uv_write_t *req, int status)
{
    out_write *w = req->data;
    w->conn->written_ns = sl_now_ns();
    if (status && !w->conn->closing)
        close_conn(w->conn);
    else if (!w->conn->closing)
        h2_mark(w->conn); /* there may be room for more */
    free(w->data);
    free(w);
}

static void write_socket(h2_conn *c, sl_strbuf *sb)
{
    if (!sb->len) {
        sl_sb_free(sb);
        return;
    }
    out_write *w = calloc(1, sizeof *w);
    if (!w || sb->bad) {
        free(w);
        sl_sb_free(sb);
        close_conn(c);
        return;
    }
    w->conn = c;
    w->req.data = w;
    uv_buf_t b = uv_buf_init(sb->data, (unsigned)sb->len);
    w->data = sl_sb_take(sb);
    if (!uv_stream_get_write_queue_size((uv_stream_t *)&c->tcp))
        c->written_ns = sl_now_ns();
    if (uv_write(&w->req, (uv_stream_t *)&c->tcp, &b, 1, on_written)) {
        free(w->data);
        free(w);
        close_conn(c);
    }
}

/* Moves what TLS wants to send to the socket. */
static void drain_tls(h2_conn *c, sl_strbuf *sb)
{
    char buf[16384];
    int n;
    while ((n = BIO_read(c->wbio, buf, sizeof buf)) > 0)
        sl_sb_append(sb, buf, (size_t)n);
}

static void send_pending(h2_conn *c)
{
    sl_strbuf sb = {0};
    bool open = !c->ssl || SSL_is_init_finished(c->ssl);
    while (open && !c->closing &&
           sb.len + uv_stream_get_write_queue_size((uv_stream_t *)&c->tcp) < QUEUE_BYTES) {
        const uint8_t *p;
        ssize_t n = nghttp2_session_mem_send(c->session, &p);
        if (n < 0)
            c->broken = true;
        if (n <= 0)
            break;
        if (!c->ssl)
            sl_sb_append(&sb, (const char *)p, (size_t)n);
        else if (SSL_write(c->ssl, p, (int)n) <= 0)
            c->broken = true; /* memory BIOs take everything once the handshake is done */
        else
            drain_tls(c, &sb);
    }
    if (c->ssl)
        drain_tls(c, &sb);
    write_socket(c, &sb);
    if (c->closing)
        return;
    bool over = !nghttp2_session_want_read(c->session) && !nghttp2_session_want_write(c->session);
    if (c->broken || (over && !uv_stream_get_write_queue_size((uv_stream_t *)&c->tcp)))
        close_conn(c);
}

static bool feed_tls(h2_conn *c, const uint8_t *p, size_t n)
{
    uint8_t plain[16384];
    BIO_write(c->rbio, p, (int)n);
    if (!SSL_is_init_finished(c->ssl)) {
        int e = SSL_do_handshake(c->ssl);
        h2_mark(c);
        if (e != 1)
            return SSL_get_error(c->ssl, e) == SSL_ERROR_WANT_READ;
    }
    for (;;) {
        int k = SSL_read(c->ssl, plain, sizeof plain);
        if (k <= 0)
            return SSL_get_error(c->ssl, k) == SSL_ERROR_WANT_READ;
        if (!h2_feed_session(c, plain, (size_t)k))
            return false;
    }
}

static uint64_t turn_ns(const h2_server *sv)
{
    return sv->o.cb.turn_ns ? sv->o.cb.turn_ns(sv->o.cb.arg) : 0;
}

/* No buffer for a connection that was read enough in this turn, or when the turn was long enough: on_read() is told. */
static void on_alloc(uv_handle_t *h, size_t hint, uv_buf_t *buf)
{
    (void)hint;
    /* a read callback is done with it before the next allocation */
    static _Thread_local char space[READ_BYTES];
    h2_conn *c = h->data;
    if (c->turn != c->server->turn) {
        c->turn = c->server->turn;
        c->turn_bytes = 0;
    }
    bool enough = c->turn_bytes >= TURN_BYTES || turn_ns(c->server) >= READ_NS;
    *buf = uv_buf_init(space, enough ? 0 : sizeof space);
}

/* The connection is read again in the next turn. */
static void pause_reading(h2_conn *c)
{
    if (c->is_paused)
        return;
    uv_read_stop((uv_stream_t *)&c->tcp);
    c->is_paused = true;
    c->paused_next = c->server->paused;
    c->server->paused = c;
}

static void on_read(uv_stream_t *st, ssize_t n, const uv_buf_t *buf)
{
    h2_conn *c = st->data;
    if (n == 0 || c->closing)
        return;
    if (n == UV_ENOBUFS) {
        pause_reading(c);
        return;
    }
    if (n < 0) {
        close_conn(c);
        return;
    }
    c->turn_bytes += (size_t)n;
    bool ok = c->ssl ? feed_tls(c, (const uint8_t *)buf->base, (size_t)n)
                     : h2_feed_session(c, (const uint8_t *)buf->base, (size_t)n);
    if (!ok) {
        send_pending(c); /* sends the GOAWAY with the reason */
        close_conn(c);
    }
}

static void resume_reading(h2_server *sv)
{
    h2_conn *list = sv->paused;
    sv->paused = NULL;
    while (list) {
        h2_conn *c = list;
        list = c->paused_next;
        c->is_paused = false;
        uv_read_start((uv_stream_t *)&c->tcp, on_alloc, on_read);
    }
}

static int choose_alpn(SSL *ssl, const unsigned char **out, unsigned char *outlen, const unsigned char *in,
                       unsigned inlen, void *arg)
{
    (void)ssl;
    (void)arg;
    for (unsigned i = 0; i < inlen; i += 1u + in[i]) {
        if (in[i] == 2 && i + 3 <= inlen && !memcmp(in + i + 1, "h2", 2)) {
            *out = in + i + 1;
            *outlen = 2;
            return SSL_TLSEXT_ERR_OK;
        }
    }
    return SSL_TLSEXT_ERR_ALERT_FATAL;
}

static sl_status start_tls(h2_conn *c)
{
    const h2_options *o = &c->server->o;
    SSL_CTX *tls = o->tls ? o->tls(o->tls_arg) : NULL;
    if (!tls)
        return SL_OK;
    SSL_CTX_set_alpn_select_cb(tls, choose_alpn, NULL);
    c->ssl = SSL_new(tls);
    c->rbio = BIO_new(BIO_s_mem());
    c->wbio = BIO_new(BIO_s_mem());
    if (!c->ssl || !c->rbio || !c->wbio) {
        BIO_free(c->rbio);
        BIO_free(c->wbio);
        return SL_ERR_NO_MEMORY;
    }
    SSL_set_bio(c->ssl, c->rbio, c->wbio);
    SSL_set_accept_state(c->ssl);
    return SL_OK;
}

/* Keeps the peer's address; false when that address has too many connections. */
static bool address_allowed(h2_conn *c)
{
    h2_server *sv = c->server;
    int len = sizeof c->peer;
    if (uv_tcp_getpeername(&c->tcp, (struct sockaddr *)&c->peer, &len))
        return false;
    if (c->peer.ss_family == AF_INET6)
        memcpy(c->address, &((struct sockaddr_in6 *)&c->peer)->sin6_addr, 16);
    else
        memcpy(c->address, &((struct sockaddr_in *)&c->peer)->sin_addr, 4);
    uint32_t n = 0;
    for (const h2_conn *k = sv->conns; k; k = k->next)
        n += !memcmp(k->address, c->address, sizeof c->address);
    return n <= sv->o.max_per_address;
}

static void count_ended(const h2_server *sv, const char *reason)
{
    if (sv->o.cb.ended)
        sv->o.cb.ended(sv->o.cb.arg, reason);
}

static void on_connection(uv_stream_t *l, int status)
{
    h2_server *sv = l->data;
    h2_conn *c = status ? NULL : calloc(1, sizeof *c);
    if (!c)
        return;
    c->server = sv;
    c->tcp.data = c;
    uv_tcp_init(sv->o.loop, &c->tcp);
    c->next = sv->conns;
    if (c->next)
        c->next->prev = c;
    sv->conns = c;
    sv->n_conns++;
    if (sv->o.cb.connections)
        sv->o.cb.connections(sv->o.cb.arg, 1);
    c->since_ns = c->written_ns = sl_now_ns();
    bool accepted = !uv_accept(l, (uv_stream_t *)&c->tcp);
    bool allowed = accepted && sv->n_conns <= sv->o.max_connections && address_allowed(c);
    if (!allowed || start_tls(c) || h2_open_session(c)) {
        if (accepted && !allowed)
            count_ended(sv, "limit");
        close_conn(c);
        return;
    }
    uv_tcp_nodelay(&c->tcp, 1);
    uv_tcp_keepalive(&c->tcp, 1, KEEPALIVE_S);
    uv_read_start((uv_stream_t *)&c->tcp, on_alloc, on_read);
    if (!c->ssl)
        h2_mark(c); /* sends the SETTINGS frame */
}

/* ---- server ---- */

static void free_listener(uv_handle_t *h)
{
    h2_server *sv = h->data;
    free(h);
    free(sv);
}

static sl_status bind_to(h2_server *sv, sl_err *err)
{
    struct sockaddr_storage sa;
    int e = uv_ip4_addr(sv->o.host, sv->o.port, (struct sockaddr_in *)&sa);
    if (e)
        e = uv_ip6_addr(sv->o.host, sv->o.port, (struct sockaddr_in6 *)&sa);
    if (e) {
        uv_getaddrinfo_t req;
        struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
        e = uv_getaddrinfo(sv->o.loop, &req, NULL, sv->o.host, NULL, &hints);
        if (e)
            return sl_fail(err, SL_ERR_IO, "router.host %s: %s", sv->o.host, uv_strerror(e));
        memcpy(&sa, req.addrinfo->ai_addr, req.addrinfo->ai_addrlen);
        if (sa.ss_family == AF_INET)
            ((struct sockaddr_in *)&sa)->sin_port = htons((uint16_t)sv->o.port);
        else
            ((struct sockaddr_in6 *)&sa)->sin6_port = htons((uint16_t)sv->o.port);
        uv_freeaddrinfo(req.addrinfo);
    }
    e = uv_tcp_bind(sv->listener, (struct sockaddr *)&sa, 0);
    if (!e)
        e = uv_listen((uv_stream_t *)sv->listener, 1024, on_connection);
    if (e)
        return sl_fail(err, SL_ERR_IO, "router.grpc_port: cannot listen for gRPC on %s:%d: %s", sv->o.host,
                       sv->o.port, uv_strerror(e));
    int n = sizeof sa;
    uv_tcp_getsockname(sv->listener, (struct sockaddr *)&sa, &n);
    sv->port = ntohs(sa.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&sa)->sin6_port
                                              : ((struct sockaddr_in *)&sa)->sin_port);
    return SL_OK;
}

sl_status h2_server_create(const h2_options *o, h2_server **out, sl_err *err)
{
    h2_server *sv = calloc(1, sizeof *sv);
    uv_tcp_t *l = calloc(1, sizeof *l);
    if (!sv || !l) {
        free(sv);
        free(l);
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    }
    sv->o = *o;
    sv->listener = l;
    l->data = sv;
    uv_tcp_init(o->loop, l);
    sl_status st = bind_to(sv, err);
    if (st)
        uv_close((uv_handle_t *)l, free_listener);
    else
        *out = sv;
    return st;
}

int h2_server_port(const h2_server *s)
{
    return s->port;
}

bool h2_server_flush(h2_server *s)
{
    s->turn++;
    resume_reading(s);
    h2_conn *list = s->dirty;
    s->dirty = NULL;
    bool any = list != NULL;
    uint64_t most = turn_ns(s) + SEND_NS;
    while (list && (!s->o.cb.turn_ns || turn_ns(s) < most)) {
        h2_conn *c = list;
        list = c->dirty_next;
        c->is_dirty = false;
        send_pending(c); /* may close c, never another */
    }
    while (list) { /* first of the next flush */
        h2_conn *c = list;
        list = c->dirty_next;
        c->dirty_next = s->dirty;
        s->dirty = c;
    }
    return any;
}

bool h2_server_behind(const h2_server *s)
{
    return s->dirty != NULL;
}

/* ---- what took too long ---- */

/* Streams whose output waits without progress: their client does not read. */
static void reset_stalled(h2_conn *c, uint64_t limit_ns, uint64_t now)
{
    for (h2_stream *s = c->streams; s; s = s->next) {
        bool waits = s->responded && (s->finishing || s->out.len > s->taken);
        if (!waits || now < s->progress_ns || now - s->progress_ns < limit_ns)
            continue;
        count_ended(c->server, "unread");
        s->progress_ns = now; /* the stream is freed when the reset has been sent */
        nghttp2_submit_rst_stream(c->session, NGHTTP2_FLAG_NONE, s->id, NGHTTP2_CANCEL);
        h2_mark(c);
    }
}

static void sweep_conn(h2_conn *c, uint64_t now)
{
    const h2_options *o = &c->server->o;
    uint64_t idle_ns = o->idle_ms * 1000000ull;
    uint64_t quiet = now > c->since_ns ? now - c->since_ns : 0;
    uint64_t unsent = now > c->written_ns ? now - c->written_ns : 0;
    if (!c->greeted && quiet >= o->handshake_ms * 1000000ull) {
        count_ended(c->server, "handshake");
        close_conn(c);
    } else if (uv_stream_get_write_queue_size((uv_stream_t *)&c->tcp) && unsent >= idle_ns) {
        count_ended(c->server, "unread");
        close_conn(c);
    } else if (!c->streams && !c->leaving && quiet >= idle_ns) {
        count_ended(c->server, "idle");
        c->leaving = true;
        nghttp2_session_terminate_session(c->session, NGHTTP2_NO_ERROR);
        h2_mark(c);
    } else {
        reset_stalled(c, idle_ns, now);
    }
}

void h2_server_tick(h2_server *s, uint64_t now_ns)
{
    if (now_ns - s->swept_ns < SWEEP_MS * 1000000ull)
        return;
    s->swept_ns = now_ns;
    for (h2_conn *c = s->conns, *next; c; c = next) {
        next = c->next;
        sweep_conn(c, now_ns);
    }
}

void h2_server_goaway(h2_server *s)
{
    for (h2_conn *c = s->conns; c; c = c->next) {
        nghttp2_submit_goaway(c->session, NGHTTP2_FLAG_NONE,
                              nghttp2_session_get_last_proc_stream_id(c->session), NGHTTP2_NO_ERROR, NULL, 0);
        h2_mark(c);
    }
}

void h2_server_destroy(h2_server *s)
{
    if (!s)
        return;
    while (s->conns)
        close_conn(s->conns);
    uv_close((uv_handle_t *)s->listener, free_listener);
}

const h2_headers *h2_stream_headers(const h2_stream *s)
{
    return &s->h;
}

const struct sockaddr *h2_stream_peer(const h2_stream *s)
{
    return (const struct sockaddr *)&s->conn->peer;
}
