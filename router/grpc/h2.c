/*
 * One nghttp2 session per connection. Bytes in: socket -> (TLS) -> nghttp2 -> callbacks. Bytes out: stream
 * buffers -> nghttp2 -> (TLS) -> socket, pulled in h2_server_flush and only while the socket's queue is
 * short, so that memory is bounded by flow control and not by how fast tokens come.
 */
#include "router/grpc/h2_impl.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"

void h2_mark(h2_conn *c)
{
    if (c->is_dirty || c->closing || !c->server)
        return;
    c->is_dirty = true;
    c->dirty_next = c->server->dirty;
    c->server->dirty = c;
}

/* ---- streams ---- */

static h2_stream *open_stream(h2_conn *c, int32_t id)
{
    h2_stream *s = calloc(1, sizeof *s);
    if (!s)
        return NULL;
    s->conn = c;
    s->id = id;
    s->next = c->streams;
    if (s->next)
        s->next->prev = s;
    c->streams = s;
    return s;
}

static void free_stream(h2_stream *s)
{
    if (s->prev)
        s->prev->next = s->next;
    else
        s->conn->streams = s->next;
    if (s->next)
        s->next->prev = s->prev;
    s->conn->keyless_streams -= s->keyless;
    if (!s->conn->streams)
        s->conn->since_ns = sl_now_ns();
    sl_sb_free(&s->out);
    free(s->message);
    free(s);
}

void *h2_stream_user(const h2_stream *s)
{
    return s->user;
}

void h2_stream_set_user(h2_stream *s, void *user)
{
    s->user = user;
}

#define NV(name, value)                                                                                      \
    {                                                                                                        \
        (uint8_t *)(name), (uint8_t *)(value), strlen(name), strlen(value), NGHTTP2_NV_FLAG_NONE             \
    }

enum { MAX_TRAILERS = 3 };

static size_t fill_trailers(const h2_stream *s, nghttp2_nv *nv)
{
    size_t n = 0;
    nv[n++] = (nghttp2_nv)NV("grpc-status", s->status);
    if (s->message)
        nv[n++] = (nghttp2_nv)NV("grpc-message", s->message);
    if (s->pushback[0])
        nv[n++] = (nghttp2_nv)NV("grpc-retry-pushback-ms", s->pushback);
    return n;
}

static void drop_taken(h2_stream *s)
{
    memmove(s->out.data, s->out.data + s->taken, s->out.len - s->taken);
    s->out.len -= s->taken;
    s->taken = 0;
}

static ssize_t on_pull(nghttp2_session *session, int32_t id, uint8_t *buf, size_t len, uint32_t *flags,
                       nghttp2_data_source *src, void *user)
{
    (void)user;
    h2_stream *s = src->ptr;
    const h2_callbacks *cb = &s->conn->server->o.cb;
    if (s->out.len == s->taken && !s->finishing && cb->drained)
        cb->drained(cb->arg, s);
    size_t n = s->out.len - s->taken;
    s->progress_ns = sl_now_ns();
    if (!n && !s->finishing) {
        s->deferred = true;
        return NGHTTP2_ERR_DEFERRED;
    }
    n = n < len ? n : len;
    if (n)
        memcpy(buf, s->out.data + s->taken, n);
    s->taken += n;
    if (s->taken < s->out.len) {
        if (s->taken > s->out.len / 2) /* so that a buffer that is never completely empty does not grow */
            drop_taken(s);
        return (ssize_t)n;
    }
    s->taken = s->out.len = 0;
    if (s->out.cap > KEEP_BYTES)
        sl_sb_free(&s->out);
    if (s->finishing) {
        *flags |= NGHTTP2_DATA_FLAG_EOF | NGHTTP2_DATA_FLAG_NO_END_STREAM;
        nghttp2_nv nv[MAX_TRAILERS];
        nghttp2_submit_trailer(session, id, nv, fill_trailers(s, nv));
    }
    return (ssize_t)n;
}

static void wake(h2_stream *s)
{
    if (s->deferred) {
        s->deferred = false;
        nghttp2_session_resume_data(s->conn->session, s->id);
    }
    h2_mark(s->conn);
}

void h2_stream_respond(h2_stream *s, const char *content_type)
{
    if (s->responded)
        return;
    s->responded = true;
    nghttp2_nv nv[] = {NV(":status", "200"), NV("content-type", content_type)};
    nghttp2_data_provider dp = {.source.ptr = s, .read_callback = on_pull};
    nghttp2_submit_response(s->conn->session, s->id, nv, 2, &dp);
    h2_mark(s->conn);
}

void h2_stream_refuse(h2_stream *s, const char *status)
{
    if (s->responded)
        return;
    s->responded = s->finishing = true;
    nghttp2_nv nv[] = {NV(":status", status)};
    nghttp2_submit_response(s->conn->session, s->id, nv, 1, NULL);
    h2_mark(s->conn);
}

bool h2_stream_write(h2_stream *s, const void *p, size_t n)
{
    if (s->finishing)
        return true;
    size_t waited = s->out.len - s->taken;
    if (!waited)
        s->progress_ns = sl_now_ns();
    sl_sb_append(&s->out, p, n);
    wake(s);
    return !s->out.bad && waited <= s->conn->server->o.max_buffered;
}

size_t h2_stream_waiting(const h2_stream *s)
{
    return s->out.len - s->taken;
}

void h2_stream_finish(h2_stream *s, const char *grpc_status, const char *grpc_message,
                      const char *pushback_ms)
{
    if (s->finishing)
        return;
    s->finishing = true;
    if (s->out.len == s->taken)
        s->progress_ns = sl_now_ns();
    snprintf(s->status, sizeof s->status, "%s", grpc_status);
    snprintf(s->pushback, sizeof s->pushback, "%s", pushback_ms ? pushback_ms : "");
    s->message = grpc_message && *grpc_message ? strdup(grpc_message) : NULL;
    if (!s->responded) { /* trailers only */
        s->responded = true;
        nghttp2_nv nv[2 + MAX_TRAILERS] = {NV(":status", "200"), NV("content-type", "application/grpc")};
        nghttp2_submit_response(s->conn->session, s->id, nv, 2 + fill_trailers(s, nv + 2), NULL);
        h2_mark(s->conn);
        return;
    }
    wake(s);
}

/* ---- nghttp2 callbacks ---- */

static int on_begin_headers(nghttp2_session *session, const nghttp2_frame *f, void *user)
{
    ((h2_conn *)user)->list_bytes = 0;
    ((h2_conn *)user)->seen = 0;
    if (f->hd.type != NGHTTP2_HEADERS || f->headers.cat != NGHTTP2_HCAT_REQUEST)
        return 0;
    h2_stream *s = open_stream(user, f->hd.stream_id);
    if (!s)
        return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
    nghttp2_session_set_stream_user_data(session, f->hd.stream_id, s);
    return 0;
}

static void keep(char *out, size_t cap, const uint8_t *value, size_t n)
{
    if (n >= cap) { /* too long to be valid: replaced by a value that matches nothing */
        out[0] = '?';
        out[1] = 0;
        return;
    }
    memcpy(out, value, n);
    out[n] = 0;
}

/* One byte can stand for a header of 4 KiB that the library looks through again, so the list has the limit that was announced; what
 * exceeds it ends the connection, and the library passes over the rest of the list. Trailers of a request count likewise. */
static bool list_fits(h2_conn *c, size_t n)
{
    enum { FIELD_BYTES = 32 }; /* as HTTP/2 counts them */
    c->list_bytes += n + FIELD_BYTES;
    if (c->list_bytes > HEADER_LIST_BYTES)
        h2_abuse(c);
    return c->list_bytes <= HEADER_LIST_BYTES;
}

static int on_header(nghttp2_session *session, const nghttp2_frame *f, const uint8_t *name, size_t nn,
                     const uint8_t *value, size_t vn, uint8_t flags, void *user)
{
    (void)flags;
    if (!list_fits(user, nn + vn))
        return NGHTTP2_ERR_TEMPORAL_CALLBACK_FAILURE;
    if (f->hd.type != NGHTTP2_HEADERS || f->headers.cat != NGHTTP2_HCAT_REQUEST)
        return 0;
    h2_stream *s = nghttp2_session_get_stream_user_data(session, f->hd.stream_id);
    if (!s)
        return 0;
    h2_headers *h = &s->h;
    const struct {
        const char *name;
        char *out;
        size_t cap;
    } wanted[] = {{":method", h->method, sizeof h->method},
                  {":path", h->path, sizeof h->path},
                  {"content-type", h->content_type, sizeof h->content_type},
                  {"grpc-timeout", h->timeout, sizeof h->timeout},
                  {"grpc-encoding", h->encoding, sizeof h->encoding},
                  {"authorization", h->authorization, sizeof h->authorization},
                  {"traceparent", h->traceparent, sizeof h->traceparent},
                  {"tracestate", h->tracestate, sizeof h->tracestate}};
    for (size_t i = 0; i < SL_COUNT(wanted); i++) {
        if (strlen(wanted[i].name) != nn || memcmp(wanted[i].name, name, nn))
            continue;
        /* Of two keys, or two deadlines, a proxy may read the other one: a value that matches nothing. */
        const bool again = ((h2_conn *)user)->seen & 1u << i;
        ((h2_conn *)user)->seen |= 1u << i;
        keep(wanted[i].out, again ? 0 : wanted[i].cap, value, vn);
    }
    return 0;
}

static int on_frame(nghttp2_session *session, const nghttp2_frame *f, void *user)
{
    h2_conn *c = user;
    c->greeted |= f->hd.type == NGHTTP2_SETTINGS;
    if (f->hd.type != NGHTTP2_HEADERS && f->hd.type != NGHTTP2_DATA)
        return 0;
    h2_stream *s = nghttp2_session_get_stream_user_data(session, f->hd.stream_id);
    if (!s)
        return 0;
    const h2_callbacks *cb = &c->server->o.cb;
    if (f->hd.type == NGHTTP2_HEADERS && !s->begun) {
        s->begun = true;
        cb->begin(cb->arg, s, &s->h);
    }
    if (f->hd.flags & NGHTTP2_FLAG_END_STREAM) {
        s->complete = true;
        cb->end(cb->arg, s);
    }
    return 0;
}

/* The answer is sent and the peer still sends its request, which is not read any more. */
static int on_frame_sent(nghttp2_session *session, const nghttp2_frame *f, void *user)
{
    h2_conn *c = user;
    if (f->hd.type == NGHTTP2_DATA)
        h2_bucket_take(&c->control, -CONTROL_PER_ANSWER, CONTROL_BURST, CONTROL_RATE);
    bool last = f->hd.flags & NGHTTP2_FLAG_END_STREAM;
    if (!last || (f->hd.type != NGHTTP2_HEADERS && f->hd.type != NGHTTP2_DATA))
        return 0;
    h2_stream *s = nghttp2_session_get_stream_user_data(session, f->hd.stream_id);
    if (s && !s->complete)
        nghttp2_submit_rst_stream(session, NGHTTP2_FLAG_NONE, f->hd.stream_id, NGHTTP2_NO_ERROR);
    return 0;
}

static int on_data(nghttp2_session *session, uint8_t flags, int32_t id, const uint8_t *p, size_t n,
                   void *user)
{
    (void)flags;
    h2_conn *c = user;
    h2_stream *s = nghttp2_session_get_stream_user_data(session, id);
    if (s && s->begun && !s->finishing)
        c->server->o.cb.data(c->server->o.cb.arg, s, p, n);
    return 0;
}

static int on_stream_close(nghttp2_session *session, int32_t id, uint32_t code, void *user)
{
    h2_conn *c = user;
    h2_stream *s = nghttp2_session_get_stream_user_data(session, id);
    if (!s)
        return 0;
    nghttp2_session_set_stream_user_data(session, id, NULL);
    if (s->begun)
        c->server->o.cb.closed(c->server->o.cb.arg, s, s->finishing && code == NGHTTP2_NO_ERROR);
    free_stream(s);
    return 0;
}

sl_status h2_open_session(h2_conn *c)
{
    nghttp2_session_callbacks *cb;
    nghttp2_option *opt;
    if (nghttp2_session_callbacks_new(&cb))
        return SL_ERR_NO_MEMORY;
    if (nghttp2_option_new(&opt)) {
        nghttp2_session_callbacks_del(cb);
        return SL_ERR_NO_MEMORY;
    }
    nghttp2_session_callbacks_set_on_begin_headers_callback(cb, on_begin_headers);
    nghttp2_session_callbacks_set_on_header_callback(cb, on_header);
    nghttp2_session_callbacks_set_on_frame_recv_callback(cb, on_frame);
    nghttp2_session_callbacks_set_on_frame_send_callback(cb, on_frame_sent);
    nghttp2_session_callbacks_set_on_data_chunk_recv_callback(cb, on_data);
    nghttp2_session_callbacks_set_on_stream_close_callback(cb, on_stream_close);
    nghttp2_option_set_stream_reset_rate_limit(opt, RESET_BURST, RESET_RATE);
    nghttp2_option_set_max_send_header_block_length(opt, HEADER_LIST_BYTES);
    c->frames = (h2_frames){.skip = PREFACE_BYTES};
    c->control = (h2_bucket){CONTROL_BURST, 0};
    c->keyless = (h2_bucket){KEYLESS_BURST, 0};
    int e = nghttp2_session_server_new2(&c->session, cb, c, opt);
    nghttp2_option_del(opt);
    nghttp2_session_callbacks_del(cb);
    if (e)
        return SL_ERR_NO_MEMORY;
    nghttp2_settings_entry iv[] = {{NGHTTP2_SETTINGS_MAX_CONCURRENT_STREAMS, c->server->o.max_streams},
                                   {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, WINDOW_BYTES},
                                   {NGHTTP2_SETTINGS_MAX_HEADER_LIST_SIZE, HEADER_LIST_BYTES},
                                   {NGHTTP2_SETTINGS_NO_RFC7540_PRIORITIES, 1}};
    nghttp2_submit_settings(c->session, NGHTTP2_FLAG_NONE, iv, SL_COUNT(iv));
    nghttp2_session_set_local_window_size(c->session, NGHTTP2_FLAG_NONE, 0, 4 * WINDOW_BYTES);
    return SL_OK;
}

void h2_drop_streams(h2_conn *c)
{
    while (c->streams) {
        h2_stream *s = c->streams;
        if (c->session)
            nghttp2_session_set_stream_user_data(c->session, s->id, NULL);
        if (s->begun)
            c->server->o.cb.closed(c->server->o.cb.arg, s, false);
        free_stream(s);
    }
}

/* ---- rates ---- */

bool h2_bucket_take(h2_bucket *b, double n, double most, double rate)
{
    uint64_t now = sl_now_ns();
    b->left += b->filled_ns && now > b->filled_ns ? (double)(now - b->filled_ns) / 1e9 * rate : 0;
    b->filled_ns = now;
    b->left -= n;
    if (b->left > most)
        b->left = most;
    return b->left >= 0;
}

void h2_abuse(h2_conn *c)
{
    if (c->abusive)
        return;
    c->abusive = c->broken = true; /* the next flush sends the reason and closes */
    const h2_callbacks *cb = c->server ? &c->server->o.cb : NULL;
    if (cb && cb->ended)
        cb->ended(cb->arg, "rate");
    nghttp2_session_terminate_session(c->session, NGHTTP2_ENHANCE_YOUR_CALM);
    h2_mark(c);
}

bool h2_stream_keyless(h2_stream *s)
{
    h2_conn *c = s->conn;
    s->keyless = true;
    c->keyless_streams++;
    bool ok =
        h2_bucket_take(&c->keyless, 1, KEYLESS_BURST, KEYLESS_RATE) && c->keyless_streams <= KEYLESS_STREAMS;
    if (!ok)
        h2_abuse(c);
    return ok;
}

bool h2_same_connection(const h2_stream *a, const h2_stream *b)
{
    return a->conn == b->conn;
}

/* What a frame takes of the rate of those that carry no request; negative: it gives. */
static int control_of(const uint8_t head[FRAME_HEAD])
{
    enum { DATA = 0, HEADERS = 1, END_STREAM = 1, SMALL_DATA = 64 };
    bool small = !head[0] && !head[1] && head[2] < SMALL_DATA; /* it may be padding only */
    if (head[3] == HEADERS)
        return -CONTROL_PER_REQUEST;
    return head[3] == DATA && (!small || head[4] & END_STREAM) ? 0 : 1;
}

/* Counts the frames in the bytes of the peer, of every type, also of those that the library does not report. Returns what
 * they take of the rate. */
static int count_frames(h2_frames *f, const uint8_t *p, size_t n)
{
    int taken = 0;
    while (n) {
        if (f->skip) {
            size_t k = f->skip < n ? f->skip : n;
            f->skip -= (uint32_t)k;
            p += k;
            n -= k;
            continue;
        }
        f->head[f->n_head++] = *p++;
        n--;
        if (f->n_head < FRAME_HEAD)
            continue;
        f->n_head = 0;
        f->skip = (uint32_t)f->head[0] << 16 | (uint32_t)f->head[1] << 8 | f->head[2];
        taken += control_of(f->head);
    }
    return taken;
}

bool h2_feed_session(h2_conn *c, const uint8_t *p, size_t n)
{
    if (c->abusive)
        return false;
    if (!h2_bucket_take(&c->control, count_frames(&c->frames, p, n), CONTROL_BURST, CONTROL_RATE)) {
        h2_abuse(c);
        return false;
    }
    ssize_t used = nghttp2_session_mem_recv(c->session, p, n);
    h2_mark(c);
    return used == (ssize_t)n && !c->abusive;
}
