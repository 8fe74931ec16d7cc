/*
 * Connections: receiving a body, waiting for tokens, sending answers. See http_impl.h for how libmicrohttpd
 * runs in the loop.
 *
 * A request is suspended whenever it waits (for the thread pool or for tokens) and resumed by its own events;
 * libmicrohttpd then calls back here, where the reply that is ready is queued. Errors that come before the
 * first byte get their proper status code, because a streaming response is only begun when there is something
 * to send.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "base/log.h"
#include "router/http/http_impl.h"

enum {
    /* Of one turn of the loop: requests that begin, and CPU time after which no more begin. Others wait for a later one. */
    TURN_REQUESTS = 64,
    BEGIN_NS = 12000000,
    GROWS_BYTES = 256 << 10, /* of a body: from here on making its buffer larger copies much */
    DRAIN_BYTES = 16 << 20,  /* of a body over the limit that are read before the connection is closed */
    STREAM_BLOCK = 16384
};

/* ---- waiting ---- */

static void on_watch_closed(uv_handle_t *h)
{
    free(h->data);
}

static void stop_watch(http_req *q)
{
    if (!q->watch)
        return;
    q->watch->q = NULL;
    uv_poll_stop(&q->watch->poll);
    uv_close((uv_handle_t *)&q->watch->poll, on_watch_closed);
    q->watch = NULL;
}

void http_wake(http_req *q)
{
    if (!q->suspended)
        return;
    q->suspended = false;
    q->h->dirty = true;
    MHD_resume_connection(q->c);
}

void http_let_go(http_req *q)
{
    sl_group *g = q->group;
    q->group = NULL;
    sl_group_release(g);
    sl_cache_forget(q->cache_call);
    q->cache_call = NULL;
}

static void on_socket(uv_poll_t *p, int status, int events)
{
    http_watch *w = p->data;
    http_req *q = w->q;
    if (!q || (status >= 0 && !(events & UV_DISCONNECT)))
        return;
    uv_poll_stop(p);
    q->dead = true;
    if (q->group || q->job)
        sl_counter_add(q->h->stats->fronts.disconnects, 1);
    http_let_go(q);
    http_drop_job(q);
    http_wake(q);
}

/* Notices when the client closes; libmicrohttpd does not look at suspended connections. */
static void start_watch(http_req *q)
{
    if (q->watch)
        return;
    const union MHD_ConnectionInfo *ci = MHD_get_connection_info(q->c, MHD_CONNECTION_INFO_CONNECTION_FD);
    http_watch *w = ci ? calloc(1, sizeof *w) : NULL;
    if (!w)
        return;
    if (uv_poll_init_socket(q->h->loop, &w->poll, ci->connect_fd)) {
        free(w);
        return;
    }
    w->q = q;
    w->poll.data = w;
    q->watch = w;
    uv_poll_start(&w->poll, UV_DISCONNECT, on_socket);
}

static void suspend(http_req *q)
{
    q->suspended = true;
    start_watch(q);
    MHD_suspend_connection(q->c);
}

/* ---- replies ---- */

static bool takes_gzip(const http_req *q)
{
    return q->route && q->route->run == http_generate;
}

static void add_retry_after(http_req *q, struct MHD_Response *res)
{
    char seconds[16];
    uint32_t s = q->retry_after_s ? q->retry_after_s : sl_cluster_retry_after_s(q->h->r);
    snprintf(seconds, sizeof seconds, "%u", s);
    MHD_add_response_header(res, MHD_HTTP_HEADER_RETRY_AFTER, seconds);
}

static void add_headers(http_req *q, struct MHD_Response *res, const char *type)
{
    MHD_add_response_header(res, MHD_HTTP_HEADER_CONTENT_TYPE, type);
    if (q->given_id[0] || q->id[0])
        MHD_add_response_header(res, "X-Request-Id", q->given_id[0] ? q->given_id : q->id);
    http_add_origin(q, res);
    if (q->route && q->route->page)
        http_page_headers(res);
    if (q->allow)
        MHD_add_response_header(res, MHD_HTTP_HEADER_ALLOW, q->allow);
    if (q->code == 401)
        MHD_add_response_header(res, MHD_HTTP_HEADER_WWW_AUTHENTICATE, "Bearer");
    if (q->code == 429 || q->code == 503)
        add_retry_after(q, res);
    if (q->code == 415)
        MHD_add_response_header(res, MHD_HTTP_HEADER_ACCEPT_ENCODING, takes_gzip(q) ? "gzip" : "identity");
    if (q->code == 413 || q->close)
        MHD_add_response_header(res, MHD_HTTP_HEADER_CONNECTION, "close");
}

static enum MHD_Result queue(http_req *q, int code, struct MHD_Response *res)
{
    if (!res)
        return MHD_NO;
    q->queued = true;
    sl_router_stats_http(q->h->stats, q->route ? q->route->path : "other", code);
    enum MHD_Result ok = MHD_queue_response(q->c, (unsigned)code, res);
    MHD_destroy_response(res);
    return ok;
}

/* A reply that others get too. */
static enum MHD_Result queue_shared(http_req *q)
{
    q->queued = true;
    sl_router_stats_http(q->h->stats, q->route->path, q->code);
    return MHD_queue_response(q->c, (unsigned)q->code, q->shared);
}

static enum MHD_Result queue_reply(http_req *q)
{
    if (q->shared && !q->close)
        return queue_shared(q);
    struct MHD_Response *res =
        MHD_create_response_from_buffer(q->reply_len, q->reply ? q->reply : (void *)"",
                                        q->reply ? MHD_RESPMEM_MUST_FREE : MHD_RESPMEM_PERSISTENT);
    if (res) {
        q->reply = NULL; /* the response owns it */
        add_headers(q, res, q->type);
    }
    return queue(q, q->code, res);
}

static ssize_t on_read(void *cls, uint64_t pos, char *buf, size_t max)
{
    (void)pos;
    http_req *q = cls;
    if (q->dead)
        return MHD_CONTENT_READER_END_WITH_ERROR;
    size_t n;
    const char *bytes = sl_oai_answer_bytes(q->answer, &n);
    if (n) {
        n = n < max ? n : max;
        memcpy(buf, bytes, n);
        sl_oai_answer_consume(q->answer, n);
        http_hold_answer(q);
        return (ssize_t)n;
    }
    if (sl_oai_answer_done(q->answer))
        return MHD_CONTENT_READER_END_OF_STREAM;
    suspend(q);
    return 0;
}

static enum MHD_Result queue_stream(http_req *q)
{
    struct MHD_Response *res =
        MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, STREAM_BLOCK, on_read, q, NULL);
    if (res) {
        add_headers(q, res, "text/event-stream; charset=utf-8");
        MHD_add_response_header(res, MHD_HTTP_HEADER_CACHE_CONTROL, "no-cache");
        MHD_add_response_header(res, "X-Accel-Buffering", "no");
    }
    return queue(q, 200, res);
}

/* Queues what is ready, or waits. */
static enum MHD_Result advance(http_req *q)
{
    sl_oai_answer *a = q->answer;
    bool failed = a && sl_oai_answer_status(a);
    if (!q->code && failed && !(sl_oai_answer_stream(a) && sl_oai_answer_began(a))) {
        http_reply_status(q, sl_oai_answer_status(a), sl_oai_answer_error(a));
    }
    if (q->code)
        return queue_reply(q);
    if (a && sl_oai_answer_stream(a) && sl_oai_answer_began(a))
        return queue_stream(q);
    suspend(q);
    return MHD_YES;
}

/* ---- receiving ---- */

static http_req *open_request(sl_http *h, struct MHD_Connection *c)
{
    http_req *q = calloc(1, sizeof *q);
    if (!q)
        return NULL;
    q->h = h;
    q->c = c;
    q->next = h->reqs;
    if (q->next)
        q->next->prev = q;
    h->reqs = q;
    return q;
}

static void too_large(http_req *q)
{
    char text[128];
    snprintf(text, sizeof text, "the body exceeds %lu bytes (router.max_body_bytes)",
             q->h->o->front.max_body_bytes);
    http_reply_error(q, 413, text, "invalid_request_error", "request_too_large");
}

static void no_room(http_req *q)
{
    sl_router_stats_request(q->h->stats, "completions", "rejected");
    http_reply_status(q, SL_ERR_EXHAUSTED, SL_FRONT_NO_ROOM);
}

/* The path is not what it seems to be: the mark that http_on_uri() leaves until there is a request. */
static char not_plain;

/*
 * No path of the router takes a query. The library would keep each of its parts in the memory of the connection, and where they do not fit
 * (about 900 parts), it neither answers nor reads on. So the query ends here, where it was received, before the library divides it.
 */
static void cut_query(const char *uri)
{
    char *query = strchr(uri, '?');
    if (query && query[1])
        query[1] = 0; /* the library has found the '?' before this call */
}

void *http_on_uri(void *cls, const char *uri, struct MHD_Connection *c)
{
    (void)cls;
    http_conn *k = http_conn_of(c);
    if (k) {
        k->uri = uri;
        k->uri_end = uri + strlen(uri);
    }
    bool plain = http_path_is_plain(uri);
    cut_query(uri);
    return plain ? NULL : &not_plain;
}

/* What another program could read differently ends here, with its connection. */
static enum MHD_Result refuse_head(http_req *q, const char *wrong)
{
    q->close = true;
    http_reply_error(q, 400, wrong, "invalid_request_error", "malformed_request");
    return queue_reply(q);
}

/* RFC 9110 gives gzip two names. */
static void check_coding(http_req *q)
{
    const char *coding = MHD_lookup_connection_value(q->c, MHD_HEADER_KIND, MHD_HTTP_HEADER_CONTENT_ENCODING);
    if (!coding || q->code || q->no_body)
        return;
    bool gzip = takes_gzip(q);
    q->gzip = gzip && (!strcasecmp(coding, "gzip") || !strcasecmp(coding, "x-gzip"));
    if (!q->gzip)
        http_reply_error(q, 415,
                         gzip ? "Content-Encoding: a body is sent as it is, without this header, or with gzip"
                              : "Content-Encoding: to this path a body is sent as it is, without this header",
                         "invalid_request_error", "unsupported_content_encoding");
}

static bool hold_body(http_req *q, uint64_t bytes)
{
    uint64_t part = q->arrival_ns ? 0 : q->held; /* the body has arrived, and a job owns it */
    return sl_front_hold_part(q->h->r, q->caller.client, &q->held, &part, bytes);
}

/* A body that does not fit the budget now is refused before it is read. receive() holds the bytes that arrive. */
static enum MHD_Result check_length(http_req *q)
{
    const char *text = MHD_lookup_connection_value(q->c, MHD_HEADER_KIND, MHD_HTTP_HEADER_CONTENT_LENGTH);
    uint64_t length = text ? strtoull(text, NULL, 10) : 0, limit = q->h->o->front.max_body_bytes;
    if (length > limit) {
        too_large(q);
        return length > limit + DRAIN_BYTES ? queue_reply(q)
                                            : MHD_YES; /* a reply now: the body is not read */
    }
    if (q->code == 429 && length > SL_FRONT_SMALL)
        return queue_reply(q);
    if (q->code || q->no_body)
        return MHD_YES;
    if (!hold_body(q, length)) {
        no_room(q);
        return queue_reply(q);
    }
    hold_body(q, 0);
    return MHD_YES;
}

static enum MHD_Result first_call(http_req *q, const char *url, const char *method, const char *version,
                                  bool plain)
{
    http_enter_state(q->c, HTTP_CONN_RECEIVING);
    const char *wrong = http_head_wrong(q->c, method, version, &q->close);
    if (!wrong && !plain)
        wrong = "the path contains a character that must be encoded, or a zero";
    if (wrong)
        return refuse_head(q, wrong);
    http_adopt(q);
    http_route_request(q, url, method);
    q->no_body = q->route && (!strcmp(q->route->method, "GET") || !q->route->key);
    check_coding(q);
    return check_length(q);
}

/* ---- turns of the loop ---- */

static bool turn_is_full(const sl_http *h)
{
    return h->turn_requests >= TURN_REQUESTS || sl_router_turn_ns(h->r) >= BEGIN_NS;
}

static enum MHD_Result postpone(http_req *q)
{
    sl_http *h = q->h;
    q->postponed = q->suspended = true;
    q->postponed_next = NULL;
    *(h->postponed ? &h->postponed_last->postponed_next : &h->postponed) = q;
    h->postponed_last = q;
    MHD_suspend_connection(q->c);
    return MHD_YES;
}

void http_begin_postponed(sl_http *h)
{
    h->turn_requests = 0;
    for (int i = 0; i < TURN_REQUESTS && h->postponed; i++) {
        http_req *q = h->postponed;
        h->postponed = q->postponed_next;
        http_wake(q);
    }
}

/*
 * Making the buffer of a long body larger copies the whole body, and many bodies can come to that in one turn: when the turn is long
 * enough, all but one of them wait for the next turn.
 */
static bool grows_too_late(http_req *q, size_t got)
{
    sl_http *h = q->h;
    if (q->code || q->no_body || q->body.cap < GROWS_BYTES || q->body.len + got < q->body.cap)
        return false;
    if (sl_router_turn_ns(h->r) >= BEGIN_NS && h->grown == h->turn)
        return true;
    h->grown = h->turn;
    return false;
}

static enum MHD_Result receive(http_req *q, const char *data, size_t *n)
{
    size_t got = *n;
    q->postponed = false;
    if (grows_too_late(q, got))
        return postpone(q); /* libmicrohttpd keeps what was not taken */
    *n = 0;
    if (!q->code && !q->no_body && q->body.len + got > q->h->o->front.max_body_bytes)
        too_large(q);
    else if (!q->code && !q->no_body && !hold_body(q, q->body.len + got))
        no_room(q);
    if (q->code || q->no_body) {
        q->dropped += got;
        sl_sb_free(&q->body);
        hold_body(q, 0);
        return q->dropped > q->h->o->front.max_body_bytes + DRAIN_BYTES ? MHD_NO : MHD_YES;
    }
    const char *before = sl_router_work(q->h->r, "a body over HTTP");
    sl_sb_append(&q->body, data, got);
    sl_router_work(q->h->r, before);
    return MHD_YES;
}

static void begin(http_req *q)
{
    q->started = true;
    q->h->started++;
    q->h->turn_requests++;
    http_enter_state(q->c, HTTP_CONN_BUSY);
    if (q->code || (!q->close && http_kept_find(q)))
        return;
    const char *before = sl_router_work(q->h->r, q->route->path);
    q->route->run(q);
    if (!q->close)
        http_kept_add(q);
    sl_router_work(q->h->r, before);
}

enum MHD_Result http_on_access(void *cls, struct MHD_Connection *c, const char *url, const char *method,
                               const char *version, const char *data, size_t *n, void **state)
{
    bool plain = *state != &not_plain;
    http_req *q = plain ? *state : NULL;
    if (!q) {
        q = open_request(cls, c);
        *state = q;
        return q ? first_call(q, url, method, version, plain) : MHD_NO;
    }
    if (*n)
        return receive(q, data, n);
    if (q->dead)
        return MHD_NO;
    if (!q->started && !q->postponed && turn_is_full(q->h))
        return postpone(q);
    if (!q->started)
        begin(q);
    return advance(q);
}

void http_on_completed(void *cls, struct MHD_Connection *c, void **state, enum MHD_RequestTerminationCode why)
{
    sl_http *h = cls;
    http_req *q = *state == &not_plain ? NULL : *state;
    *state = NULL;
    if (!q)
        return;
    const char *before = sl_router_work(h->r, "end of an HTTP request");
    http_enter_state(c, HTTP_CONN_IDLE);
    stop_watch(q);
    if ((q->group || q->job) && why != MHD_REQUEST_TERMINATED_COMPLETED_OK && !q->dead)
        sl_counter_add(h->stats->fronts.disconnects, 1);
    http_let_go(q);
    http_drop_job(q);
    if (q->prev)
        q->prev->next = q->next;
    else
        h->reqs = q->next;
    if (q->next)
        q->next->prev = q->prev;
    h->started -= q->started;
    http_drop_document(q);
    http_drop_answer(q);
    sl_sb_free(&q->body);
    hold_body(q, 0);
    sl_front_hold(h->r, &q->answer_held, 0);
    free(q->reply);
    free(q);
    sl_router_work(h->r, before);
}
