/*
 * gRPC part of the load generator: one connection with one stream for each request in flight, as gateways use it.
 */
#include "bench/router/client_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sglang_scheduler.pb-c.h"

static void fill_params(Sglang__Grpc__Scheduler__SamplingParams *p, const sl_bench_ask *a)
{
    p->_max_new_tokens_case = SGLANG__GRPC__SCHEDULER__SAMPLING_PARAMS___MAX_NEW_TOKENS_MAX_NEW_TOKENS;
    p->max_new_tokens = a->max_tokens;
    p->ignore_eos = !a->regex; /* a constraint and ignore_eos exclude each other */
    if (a->regex) {
        p->constraint_case = SGLANG__GRPC__SCHEDULER__SAMPLING_PARAMS__CONSTRAINT_REGEX;
        p->regex = (char *)(uintptr_t)a->regex;
        p->min_new_tokens = a->max_tokens;
    }
    p->temperature = a->temperature;
    p->top_p = a->top_p;
    p->min_p = a->min_p;
    p->top_k = a->top_k;
    p->presence_penalty = a->presence_penalty;
    p->frequency_penalty = a->frequency_penalty;
    p->repetition_penalty = a->repetition_penalty;
}

void sl_client_grpc_body(client_slot *s)
{
    const sl_bench_ask *a = s->ask;
    Sglang__Grpc__Scheduler__GenerateRequest q = SGLANG__GRPC__SCHEDULER__GENERATE_REQUEST__INIT;
    Sglang__Grpc__Scheduler__TokenizedInput t = SGLANG__GRPC__SCHEDULER__TOKENIZED_INPUT__INIT;
    Sglang__Grpc__Scheduler__SamplingParams p = SGLANG__GRPC__SCHEDULER__SAMPLING_PARAMS__INIT;
    t.n_input_ids = a->prompt_tokens;
    t.input_ids = (uint32_t *)(uintptr_t)a->prompt;
    fill_params(&p, a);
    q.tokenized = &t;
    q.sampling_params = &p;
    q.stream = a->stream;
    q.return_logprob = a->logprobs > 0;
    q.top_logprobs_num = a->logprobs;
    size_t n = protobuf_c_message_get_packed_size(&q.base);
    uint8_t *b = malloc(n + 5);
    if (!b)
        return;
    b[0] = 0;
    for (int i = 0; i < 4; i++)
        b[1 + i] = (uint8_t)(n >> (24 - 8 * i));
    protobuf_c_message_pack(&q.base, b + 5);
    s->body = (char *)b;
    s->body_len = n + 5;
}

typedef struct upload {
    const client_slot *s;
    size_t at;
} upload;

static ssize_t grpc_body(nghttp2_session *h, int32_t id, uint8_t *buf, size_t cap, uint32_t *flags,
                         nghttp2_data_source *src, void *user)
{
    (void)h;
    (void)id;
    (void)user;
    upload *u = src->ptr;
    size_t n = u->s->body_len - u->at;
    n = n < cap ? n : cap;
    memcpy(buf, u->s->body + u->at, n);
    u->at += n;
    if (u->at == u->s->body_len) {
        *flags |= NGHTTP2_DATA_FLAG_EOF;
        free(u);
    }
    return (ssize_t)n;
}

#define NV(name, value)                                                                                      \
    {                                                                                                        \
        (uint8_t *)(name), (uint8_t *)(value), sizeof(name) - 1, sizeof(value) - 1, NGHTTP2_NV_FLAG_NONE     \
    }

static void grpc_send(client_slot *s)
{
    client_driver *d = s->d;
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
        sl_client_give_up(d, SL_ERR_NO_MEMORY);
        return;
    }
    u->s = s;
    nghttp2_data_provider dp = {.source.ptr = u, .read_callback = grpc_body};
    sl_client_begin(s);
    s->n_head = s->message_left = 0;
    s->message.len = 0;
    nghttp2_submit_request(d->h2, NULL, nv, SL_COUNT(nv), &dp, s);
}

static void grpc_flush(client_driver *d)
{
    sl_strbuf sb = {0};
    const uint8_t *p;
    ssize_t n;
    while ((n = nghttp2_session_mem_send(d->h2, &p)) > 0)
        sl_sb_append(&sb, (const char *)p, (size_t)n);
    if (sb.len)
        sl_client_write(&d->tcp, sb.data, sb.len);
    sl_sb_free(&sb);
}

static void take_message(client_slot *s)
{
    Sglang__Grpc__Scheduler__GenerateResponse *r = sglang__grpc__scheduler__generate_response__unpack(
        NULL, s->message.len, (const uint8_t *)s->message.data);
    s->message.len = 0;
    if (!r)
        return;
    if (r->response_case == SGLANG__GRPC__SCHEDULER__GENERATE_RESPONSE__RESPONSE_CHUNK &&
        r->chunk->n_token_ids)
        sl_client_tokens(s, (uint32_t)r->chunk->n_token_ids);
    if (r->response_case == SGLANG__GRPC__SCHEDULER__GENERATE_RESPONSE__RESPONSE_COMPLETE) {
        s->counted = r->complete->completion_tokens;
        if (!s->ask->stream)
            s->d->r->tokens += s->counted;
    }
    sglang__grpc__scheduler__generate_response__free_unpacked(r, NULL);
}

static int grpc_data(nghttp2_session *h, uint8_t flags, int32_t id, const uint8_t *p, size_t n, void *user)
{
    (void)flags;
    (void)user;
    client_slot *s = nghttp2_session_get_stream_user_data(h, id);
    while (s && n) {
        if (s->message_left) {
            size_t k = n < s->message_left ? n : s->message_left;
            sl_sb_append(&s->message, (const char *)p, k);
            s->message_left -= k;
            p += k;
            n -= k;
            if (!s->message_left)
                take_message(s);
            continue;
        }
        s->head[s->n_head++] = *p++;
        n--;
        if (s->n_head < 5)
            continue;
        s->n_head = 0;
        s->message_left =
            (size_t)s->head[1] << 24 | (size_t)s->head[2] << 16 | (size_t)s->head[3] << 8 | s->head[4];
    }
    return 0;
}

static int grpc_header(nghttp2_session *h, const nghttp2_frame *f, const uint8_t *name, size_t nn,
                       const uint8_t *value, size_t vn, uint8_t flags, void *user)
{
    (void)flags;
    (void)user;
    client_slot *s = nghttp2_session_get_stream_user_data(h, f->hd.stream_id);
    if (s && nn == 11 && !memcmp(name, "grpc-status", 11) && !(vn == 1 && *value == '0'))
        s->failed = true;
    if (s && nn == 12 && !memcmp(name, "grpc-message", 12) && !s->d->r->why[0])
        snprintf(s->d->r->why, sizeof s->d->r->why, "gRPC: %.*s", (int)(vn < 200 ? vn : 200),
                 (const char *)value);
    return 0;
}

static int grpc_closed(nghttp2_session *h, int32_t id, uint32_t code, void *user)
{
    (void)user;
    client_slot *s = nghttp2_session_get_stream_user_data(h, id);
    if (!s)
        return 0;
    sl_client_end(s, !s->failed && !code);
    grpc_send(s);
    return 0;
}

static void grpc_read(uv_stream_t *st, ssize_t n, const uv_buf_t *buf)
{
    client_driver *d = st->data;
    if (n < 0 || nghttp2_session_mem_recv(d->h2, (const uint8_t *)buf->base, (size_t)n) != n)
        sl_client_give_up(d, SL_ERR_PEER);
    else
        grpc_flush(d);
}

static void grpc_connected(uv_connect_t *c, int status)
{
    client_driver *d = c->data;
    free(c);
    if (status) {
        sl_client_give_up(d, SL_ERR_PEER);
        return;
    }
    uv_tcp_nodelay(&d->tcp, 1);
    uv_read_start((uv_stream_t *)&d->tcp, sl_client_alloc, grpc_read);
    nghttp2_session_callbacks *cb;
    if (nghttp2_session_callbacks_new(&cb)) {
        sl_client_give_up(d, SL_ERR_NO_MEMORY);
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

void sl_client_grpc_start(client_driver *d)
{
    sl_client_connect(d, &d->tcp, d, grpc_connected);
}
