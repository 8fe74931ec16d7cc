/*
 * HTTP/1.1 part of the load generator: one keep-alive connection for each request in flight. An answer ends with its
 * content length or with the last chunk. One server-sent event with text is counted as one token; the usage that ends an
 * answer is its own count.
 */
#include "bench/router/client_impl.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void http_send(client_slot *s)
{
    if (s->d->started >= s->d->l->requests)
        return;
    sl_client_begin(s);
    s->in_body = false;
    sl_client_write(&s->tcp, s->body, s->body_len);
}

/* Parses the head of the answer; false while it is incomplete. */
static bool http_head(client_slot *s)
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

/* The number after the last "completion_tokens": of [p, p+n), or 0. */
static uint32_t usage(const char *p, size_t n)
{
    static const char key[] = "\"completion_tokens\":";
    const char *at = memmem(p, n, key, sizeof key - 1);
    return at ? (uint32_t)strtoul(at + sizeof key - 1, NULL, 10) : 0;
}

/* Counts the events in [p, p+n) that contain a token. A chunk of the answer has whole events. */
static void http_events(client_slot *s, const char *p, size_t n)
{
    const char *end_p = p + n;
    uint32_t events = 0, count = usage(p, n);
    for (const char *q = p; (q = memmem(q, (size_t)(end_p - q), "\"text\":\"", 8)) != NULL; q += 8)
        events += q[8] != '"';
    if (events)
        sl_client_tokens(s, events);
    if (count)
        s->counted = count;
}

static void http_failed(client_slot *s, const char *p, size_t n)
{
    sl_bench_load_result *r = s->d->r;
    if (!r->why[0])
        snprintf(r->why, sizeof r->why, "HTTP %d: %.*s", s->code, (int)(n < 200 ? n : 200), p);
}

/* Parses the chunks that are complete; true after the last one of the answer. */
static bool http_chunks(client_slot *s)
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
    client_slot *s = st->data;
    if (n < 0) {
        sl_client_give_up(s->d, SL_ERR_PEER);
        return;
    }
    sl_sb_append(&s->in, buf->base, (size_t)n);
    if (!s->busy || (!s->in_body && !http_head(s)))
        return;
    bool done = s->chunked ? http_chunks(s) : (long)s->in.len >= s->body_left;
    if (!done)
        return;
    if (!s->chunked) {
        s->counted = usage(s->in.data, s->in.len);
        s->d->r->tokens += s->counted;
        if (s->code != 200)
            http_failed(s, s->in.data, s->in.len);
        s->in.len = 0;
    }
    sl_client_end(s, s->code == 200);
    http_send(s);
}

static void http_connected(uv_connect_t *c, int status)
{
    client_slot *s = c->data;
    free(c);
    if (status) {
        sl_client_give_up(s->d, SL_ERR_PEER);
        return;
    }
    uv_tcp_nodelay(&s->tcp, 1);
    uv_read_start((uv_stream_t *)&s->tcp, sl_client_alloc, http_read);
    http_send(s);
}

static void put_real(sl_strbuf *b, const char *name, float v)
{
    if (v != 0)
        sl_sb_printf(b, ",\"%s\":%.9g", name, (double)v);
}

static void put_ask(sl_strbuf *b, const sl_bench_ask *a)
{
    sl_sb_printf(b, "{\"model\":\"%s\",\"prompt\":[", a->model ? a->model : "sluice");
    for (uint32_t i = 0; i < a->prompt_tokens; i++)
        sl_sb_printf(b, "%s%d", i ? "," : "", a->prompt[i]);
    sl_sb_printf(b, "],\"max_tokens\":%u,\"temperature\":%.9g", a->max_tokens, (double)a->temperature);
    if (a->regex) /* a constraint and ignore_eos exclude each other */
        sl_sb_printf(b, ",\"regex\":\"%s\",\"min_tokens\":%u", a->regex, a->max_tokens);
    else
        sl_sb_str(b, ",\"ignore_eos\":true");
    put_real(b, "top_p", a->top_p);
    put_real(b, "min_p", a->min_p);
    put_real(b, "presence_penalty", a->presence_penalty);
    put_real(b, "frequency_penalty", a->frequency_penalty);
    put_real(b, "repetition_penalty", a->repetition_penalty);
    if (a->top_k)
        sl_sb_printf(b, ",\"top_k\":%d", a->top_k);
    if (a->logprobs)
        sl_sb_printf(b, ",\"logprobs\":%d", a->logprobs);
    sl_sb_str(b, a->stream ? ",\"stream\":true,\"stream_options\":{\"include_usage\":true}}" : "}");
}

void sl_client_http_body(client_slot *s)
{
    sl_strbuf b = {0}, r = {0};
    put_ask(&b, s->ask);
    sl_sb_printf(&r,
                 "POST /v1/completions HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\n"
                 "Content-Length: %zu\r\n\r\n",
                 b.len);
    sl_sb_append(&r, b.data, b.len);
    s->body_len = r.len;
    s->body = sl_sb_take(&r);
    sl_sb_free(&b);
}

void sl_client_http_start(client_driver *d)
{
    for (uint32_t i = 0; i < d->l->concurrency; i++)
        sl_client_connect(d, &d->slots[i].tcp, &d->slots[i], http_connected);
}
