/*
 * Two small clients with one driver. HTTP: one keep-alive connection per request in flight; the end of an
 * answer is its content length or the last chunk. gRPC: one connection, a stream per request in flight, as
 * gateways do. Tokens are counted by what arrives: one server-sent event or one gRPC message each.
 */
#include "bench/router/client.h"

#include <nghttp2/nghttp2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <uv.h>

#include "base/log.h"
#include "base/strbuf.h"
#include "sglang_scheduler.pb-c.h"

typedef struct slot slot;
typedef struct driver driver;

struct slot {
    driver *d;
    uv_tcp_t tcp;
    bool busy;
    uint64_t begin_ns, last_ns;
    uint32_t tokens;
    sl_strbuf in; /* HTTP: what is not consumed yet */
    bool in_body, chunked;
    long body_left;
    int code;
    int32_t stream_id; /* gRPC */
    uint8_t head[5];   /* of the message that is arriving */
    size_t n_head, message_left;
    bool failed;
};

struct driver {
    const sl_bench_load *l;
    sl_bench_load_result *r;
    uv_loop_t loop;
    slot *slots;
    uint32_t started, ended;
    char *body; /* request: HTTP text or gRPC message */
    size_t body_len;
    size_t body_at;
    uv_tcp_t tcp; /* gRPC's one connection */
    nghttp2_session *h2;
    sl_status st;
    uint64_t begin_ns;
};

static void add(sl_bench_samples *s, double us)
{
    if (s->n == s->cap) {
        size_t cap = s->cap ? s->cap * 2 : 1024;
        double *v = realloc(s->v, cap * sizeof *v);
        if (!v)
            return;
        s->v = v;
        s->cap = cap;
    }
    s->v[s->n++] = us;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double sl_bench_quantile(const sl_bench_samples *s, double q)
{
    if (!s->n)
        return 0;
    size_t i = (size_t)(q * (double)(s->n - 1) + 0.5);
    return s->v[i];
}

void sl_bench_load_result_free(sl_bench_load_result *r)
{
    free(r->latency.v);
    free(r->first.v);
    free(r->gap.v);
    memset(r, 0, sizeof *r);
}

/* ---- one request's life, whatever the protocol ---- */

static void begin(slot *s)
{
    s->busy = true;
    s->begin_ns = s->last_ns = sl_now_ns();
    s->tokens = 0;
    s->failed = false;
    s->d->started++;
}

static void token(slot *s)
{
    uint64_t now = sl_now_ns();
    sl_bench_load_result *r = s->d->r;
    add(s->tokens ? &r->gap : &r->first, (double)(now - s->last_ns) / 1e3);
    s->last_ns = now;
    s->tokens++;
    r->tokens++;
}

static void finish_all(driver *d)
{
    uv_stop(&d->loop);
}

static void end(slot *s, bool ok)
{
    driver *d = s->d;
    s->busy = false;
    d->ended++;
    d->r->errors += !ok;
    add(&d->r->latency, (double)(sl_now_ns() - s->begin_ns) / 1e3);
    if (d->ended == d->l->requests)
        finish_all(d);
}

static void give_up(driver *d, sl_status st)
{
    if (!d->st)
        d->st = st;
    finish_all(d);
}

static void on_alloc(uv_handle_t *h, size_t hint, uv_buf_t *buf)
{
    (void)h;
    (void)hint;
    static _Thread_local char space[65536];
    *buf = uv_buf_init(space, sizeof space);
}

static void on_written(uv_write_t *w, int status)
{
    (void)status;
    free(w);
}

/* data stays valid until written: it follows the request in the same allocation. */
static void write_copy(uv_tcp_t *t, const void *data, size_t n)
{
    uv_write_t *w = malloc(sizeof *w + n);
    if (!w)
        return;
    memcpy(w + 1, data, n);
    uv_buf_t b = uv_buf_init((char *)(w + 1), (unsigned)n);
    if (uv_write(w, (uv_stream_t *)t, &b, 1, on_written))
        free(w);
}

/* ---- HTTP ---- */

static void http_send(slot *s)
{
    if (s->d->started >= s->d->l->requests)
        return;
    begin(s);
    s->in_body = false;
    write_copy(&s->tcp, s->d->body, s->d->body_len);
}

static bool http_head(slot *s)
{
    char *head_end = s->in.len ? strstr(s->in.data, "\r\n\r\n") : NULL;
    if (!head_end)
        return false;
    *head_end = 0;
    s->code = (int)strtol(s->in.data + 9, NULL, 10);
    s->chunked = strcasestr(s->in.data, "transfer-encoding: chunked") != NULL;
    const char *cl = strcasestr(s->in.data, "content-length:");
    s->body_left = cl ? strtol(cl + 15, NULL, 10) : 0;
    size_t used = (size_t)(head_end + 4 - s->in.data);
    memmove(s->in.data, s->in.data + used, s->in.len - used + 1);
    s->in.len -= used;
    s->in_body = true;
    return true;
}

/* Counts events in [p, p+n) that carry a token. */
static void http_events(slot *s, const char *p, size_t n)
{
    const char *end_p = p + n;
    while ((p = memmem(p, (size_t)(end_p - p), "\"text\":\"", 8)) != NULL) {
        if (p[8] != '"')
            token(s);
        p += 8;
    }
}

/* Takes whole chunks; true at the last one. */
static bool http_chunks(slot *s)
{
    size_t at = 0;
    bool last = false;
    while (!last) {
        char *line = memmem(s->in.data + at, s->in.len - at, "\r\n", 2);
        if (!line)
            break;
        size_t n = strtoul(s->in.data + at, NULL, 16), head = (size_t)(line + 2 - (s->in.data + at));
        if (s->in.len - at < head + n + 2)
            break;
        http_events(s, s->in.data + at + head, n);
        at += head + n + 2;
        last = n == 0;
    }
    memmove(s->in.data, s->in.data + at, s->in.len - at + 1);
    s->in.len -= at;
    return last;
}

static void http_read(uv_stream_t *st, ssize_t n, const uv_buf_t *buf)
{
    slot *s = st->data;
    if (n < 0) {
        give_up(s->d, SL_ERR_PEER);
        return;
    }
    sl_sb_append(&s->in, buf->base, (size_t)n);
    if (!s->busy || (!s->in_body && !http_head(s)))
        return;
    bool done = s->chunked ? http_chunks(s) : (long)s->in.len >= s->body_left;
    if (!done)
        return;
    if (!s->chunked) {
        s->in.len = 0;
        s->d->r->tokens += s->d->l->max_tokens;
    }
    end(s, s->code == 200);
    http_send(s);
}

static void http_connected(uv_connect_t *c, int status)
{
    slot *s = c->data;
    free(c);
    if (status) {
        give_up(s->d, SL_ERR_PEER);
        return;
    }
    uv_tcp_nodelay(&s->tcp, 1);
    uv_read_start((uv_stream_t *)&s->tcp, on_alloc, http_read);
    http_send(s);
}

static void make_http_body(driver *d)
{
    sl_strbuf b = {0}, r = {0};
    sl_sb_str(&b, "{\"model\":\"sluice\",\"prompt\":[");
    for (uint32_t i = 0; i < d->l->prompt_tokens; i++)
        sl_sb_printf(&b, "%s%u", i ? "," : "", 65 + i % 26);
    sl_sb_printf(&b, "],\"max_tokens\":%u,\"temperature\":0,\"ignore_eos\":true,\"stream\":%s}",
                 d->l->max_tokens, d->l->stream ? "true" : "false");
    sl_sb_printf(&r,
                 "POST /v1/completions HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
                 "Content-Length: %zu\r\n\r\n",
                 b.len);
    sl_sb_append(&r, b.data, b.len);
    d->body_len = r.len;
    d->body = sl_sb_take(&r);
    sl_sb_free(&b);
}

static void connect_to(driver *d, uv_tcp_t *tcp, void *data, uv_connect_cb cb)
{
    struct sockaddr_in sa;
    uv_ip4_addr("127.0.0.1", d->l->port, &sa);
    uv_tcp_init(&d->loop, tcp);
    tcp->data = data;
    uv_connect_t *c = calloc(1, sizeof *c);
    if (!c) {
        give_up(d, SL_ERR_NO_MEMORY);
        return;
    }
    c->data = data;
    if (uv_tcp_connect(c, tcp, (struct sockaddr *)&sa, cb)) {
        free(c);
        give_up(d, SL_ERR_PEER);
    }
}

/* ---- gRPC ---- */

static void make_grpc_body(driver *d)
{
    Sglang__Grpc__Scheduler__GenerateRequest q = SGLANG__GRPC__SCHEDULER__GENERATE_REQUEST__INIT;
    Sglang__Grpc__Scheduler__TokenizedInput t = SGLANG__GRPC__SCHEDULER__TOKENIZED_INPUT__INIT;
    Sglang__Grpc__Scheduler__SamplingParams p = SGLANG__GRPC__SCHEDULER__SAMPLING_PARAMS__INIT;
    t.n_input_ids = d->l->prompt_tokens;
    t.input_ids = calloc(t.n_input_ids + 1, sizeof *t.input_ids);
    if (!t.input_ids)
        return;
    for (uint32_t i = 0; i < d->l->prompt_tokens; i++)
        t.input_ids[i] = 65 + i % 26;
    p._max_new_tokens_case = SGLANG__GRPC__SCHEDULER__SAMPLING_PARAMS___MAX_NEW_TOKENS_MAX_NEW_TOKENS;
    p.max_new_tokens = d->l->max_tokens;
    p.ignore_eos = true;
    q.tokenized = &t;
    q.sampling_params = &p;
    q.stream = d->l->stream;
    size_t n = protobuf_c_message_get_packed_size(&q.base);
    uint8_t *b = malloc(n + 5);
    if (b) {
        b[0] = 0;
        for (int i = 0; i < 4; i++)
            b[1 + i] = (uint8_t)(n >> (24 - 8 * i));
        protobuf_c_message_pack(&q.base, b + 5);
        d->body = (char *)b;
        d->body_len = n + 5;
    }
    free(t.input_ids);
}

typedef struct upload {
    driver *d;
    size_t at;
} upload;

static ssize_t grpc_body(nghttp2_session *h, int32_t id, uint8_t *buf, size_t cap, uint32_t *flags,
                         nghttp2_data_source *src, void *user)
{
    (void)h;
    (void)id;
    (void)user;
    upload *u = src->ptr;
    size_t n = u->d->body_len - u->at;
    n = n < cap ? n : cap;
    memcpy(buf, u->d->body + u->at, n);
    u->at += n;
    if (u->at == u->d->body_len) {
        *flags |= NGHTTP2_DATA_FLAG_EOF;
        free(u);
    }
    return (ssize_t)n;
}

#define NV(name, value)                                                                                      \
    {                                                                                                        \
        (uint8_t *)(name), (uint8_t *)(value), sizeof(name) - 1, sizeof(value) - 1, NGHTTP2_NV_FLAG_NONE     \
    }

static void grpc_send(slot *s)
{
    driver *d = s->d;
    if (d->started >= d->l->requests)
        return;
    static const nghttp2_nv nv[] = {NV(":method", "POST"),
                                    NV(":scheme", "http"),
                                    NV(":path", "/sglang.grpc.scheduler.SglangScheduler/Generate"),
                                    NV(":authority", "bench"),
                                    NV("content-type", "application/grpc"),
                                    NV("te", "trailers")};
    upload *u = calloc(1, sizeof *u);
    if (!u) {
        give_up(d, SL_ERR_NO_MEMORY);
        return;
    }
    u->d = d;
    nghttp2_data_provider dp = {.source.ptr = u, .read_callback = grpc_body};
    begin(s);
    s->n_head = s->message_left = 0;
    s->stream_id = nghttp2_submit_request(d->h2, NULL, nv, SL_COUNT(nv), &dp, s);
}

static void grpc_flush(driver *d)
{
    sl_strbuf sb = {0};
    const uint8_t *p;
    ssize_t n;
    while ((n = nghttp2_session_mem_send(d->h2, &p)) > 0)
        sl_sb_append(&sb, (const char *)p, (size_t)n);
    if (sb.len)
        write_copy(&d->tcp, sb.data, sb.len);
    sl_sb_free(&sb);
}

static int grpc_data(nghttp2_session *h, uint8_t flags, int32_t id, const uint8_t *p, size_t n, void *user)
{
    (void)flags;
    driver *d = user;
    slot *s = nghttp2_session_get_stream_user_data(h, id);
    while (s && n) {
        if (s->message_left) {
            size_t k = n < s->message_left ? n : s->message_left;
            s->message_left -= k;
            p += k;
            n -= k;
            continue;
        }
        s->head[s->n_head++] = *p++;
        n--;
        if (s->n_head < 5)
            continue;
        s->n_head = 0;
        s->message_left =
            (size_t)s->head[1] << 24 | (size_t)s->head[2] << 16 | (size_t)s->head[3] << 8 | s->head[4];
        if (d->l->stream && s->tokens < d->l->max_tokens)
            token(s);
        else if (!d->l->stream)
            d->r->tokens += d->l->max_tokens;
    }
    return 0;
}

static int grpc_header(nghttp2_session *h, const nghttp2_frame *f, const uint8_t *name, size_t nn,
                       const uint8_t *value, size_t vn, uint8_t flags, void *user)
{
    (void)flags;
    (void)user;
    slot *s = nghttp2_session_get_stream_user_data(h, f->hd.stream_id);
    if (s && nn == 11 && !memcmp(name, "grpc-status", 11) && !(vn == 1 && *value == '0'))
        s->failed = true;
    return 0;
}

static int grpc_closed(nghttp2_session *h, int32_t id, uint32_t code, void *user)
{
    (void)user;
    slot *s = nghttp2_session_get_stream_user_data(h, id);
    if (!s)
        return 0;
    end(s, !s->failed && !code);
    grpc_send(s);
    return 0;
}

static void grpc_read(uv_stream_t *st, ssize_t n, const uv_buf_t *buf)
{
    driver *d = st->data;
    if (n < 0 || nghttp2_session_mem_recv(d->h2, (const uint8_t *)buf->base, (size_t)n) != n)
        give_up(d, SL_ERR_PEER);
    else
        grpc_flush(d);
}

static void grpc_connected(uv_connect_t *c, int status)
{
    driver *d = c->data;
    free(c);
    if (status) {
        give_up(d, SL_ERR_PEER);
        return;
    }
    uv_tcp_nodelay(&d->tcp, 1);
    uv_read_start((uv_stream_t *)&d->tcp, on_alloc, grpc_read);
    nghttp2_session_callbacks *cb;
    if (nghttp2_session_callbacks_new(&cb)) {
        give_up(d, SL_ERR_NO_MEMORY);
        return;
    }
    nghttp2_session_callbacks_set_on_data_chunk_recv_callback(cb, grpc_data);
    nghttp2_session_callbacks_set_on_header_callback(cb, grpc_header);
    nghttp2_session_callbacks_set_on_stream_close_callback(cb, grpc_closed);
    nghttp2_session_client_new(&d->h2, cb, d);
    nghttp2_session_callbacks_del(cb);
    nghttp2_settings_entry iv = {NGHTTP2_SETTINGS_INITIAL_WINDOW_SIZE, 1 << 20};
    nghttp2_submit_settings(d->h2, NGHTTP2_FLAG_NONE, &iv, 1);
    nghttp2_session_set_local_window_size(d->h2, NGHTTP2_FLAG_NONE, 0, 64 << 20);
    for (uint32_t i = 0; i < d->l->concurrency; i++)
        grpc_send(&d->slots[i]);
    grpc_flush(d);
}

/* ---- run ---- */

static void close_handle(uv_handle_t *h, void *arg)
{
    (void)arg;
    if (!uv_is_closing(h))
        uv_close(h, NULL);
}

static void sort(sl_bench_samples *s)
{
    if (s->n)
        qsort(s->v, s->n, sizeof *s->v, compare);
}

sl_status sl_bench_load_run(const sl_bench_load *l, sl_bench_load_result *out, sl_err *err)
{
    driver d = {.l = l, .r = out};
    memset(out, 0, sizeof *out);
    d.slots = calloc(l->concurrency, sizeof *d.slots);
    if (!d.slots || uv_loop_init(&d.loop)) {
        free(d.slots);
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    }
    if (l->grpc)
        make_grpc_body(&d);
    else
        make_http_body(&d);
    for (uint32_t i = 0; i < l->concurrency; i++)
        d.slots[i].d = &d;
    uint64_t t0 = sl_now_ns();
    if (l->grpc)
        connect_to(&d, &d.tcp, &d, grpc_connected);
    else
        for (uint32_t i = 0; i < l->concurrency; i++)
            connect_to(&d, &d.slots[i].tcp, &d.slots[i], http_connected);
    if (d.body && !d.st)
        uv_run(&d.loop, UV_RUN_DEFAULT);
    out->seconds = (double)(sl_now_ns() - t0) / 1e9;
    uv_walk(&d.loop, close_handle, NULL);
    uv_run(&d.loop, UV_RUN_DEFAULT);
    uv_loop_close(&d.loop);
    nghttp2_session_del(d.h2);
    for (uint32_t i = 0; i < l->concurrency; i++)
        sl_sb_free(&d.slots[i].in);
    free(d.slots);
    free(d.body);
    sort(&out->latency);
    sort(&out->first);
    sort(&out->gap);
    if (!d.st && out->errors)
        return sl_fail(err, SL_ERR_INTERNAL, "%lu of %u requests failed", out->errors, l->requests);
    return d.st ? sl_fail(err, d.st, "the connection to the router broke") : SL_OK;
}
