/*
 * HTTP/1.1 part of the load generator: one keep-alive connection for each request in flight. An answer ends with its
 * content length or with the last chunk. One server-sent event is counted as one token.
 */
#include "bench/router/client_impl.h"

#include <stdlib.h>
#include <string.h>

static void http_send(client_slot *s)
{
    if (s->d->started >= s->d->l->requests)
        return;
    sl_client_begin(s);
    s->in_body = false;
    sl_client_write(&s->tcp, s->d->body, s->d->body_len);
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

/* Counts the events in [p, p+n) that contain a token. */
static void http_events(client_slot *s, const char *p, size_t n)
{
    const char *end_p = p + n;
    while ((p = memmem(p, (size_t)(end_p - p), "\"text\":\"", 8)) != NULL) {
        if (p[8] != '"')
            sl_client_token(s);
        p += 8;
    }
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
        s->in.len = 0;
        s->d->r->tokens += s->d->l->max_tokens;
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

void sl_client_http_body(client_driver *d)
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

void sl_client_http_start(client_driver *d)
{
    for (uint32_t i = 0; i < d->l->concurrency; i++)
        sl_client_connect(d, &d->slots[i].tcp, &d->slots[i], http_connected);
}
