/* See http_client.h. */
#include "base/http_client.h"

#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "base/log.h"
#include "base/strbuf.h"

enum { ANSWER_MAX = 256 << 20 };

sl_status sl_http_server_parse(const char *url, sl_http_server *out, sl_err *err)
{
    const char *at = strncmp(url, "http://", 7) == 0 ? url + 7 : url;
    size_t n = strcspn(at, "/");
    const char *colon = memrchr(at, ':', n);
    size_t host = colon ? (size_t)(colon - at) : 0, port = colon ? n - host - 1 : 0;
    bool v6 = host > 2 && at[0] == '[' && at[host - 1] == ']';
    if (strstr(url, "://") && at == url)
        return sl_fail(err, SL_ERR_INVALID, "\"%s\": only http:// is possible (no TLS)", url);
    if (!host || host >= sizeof out->host || !port || port >= sizeof out->port ||
        strspn(colon + 1, "0123456789") < port || strlen(at + n) > 1)
        return sl_fail(err, SL_ERR_INVALID, "\"%s\" is not http://HOST:PORT", url);
    memset(out->host, 0, sizeof out->host);
    memset(out->port, 0, sizeof out->port);
    memcpy(out->host, at + v6, host - (v6 ? 2 : 0));
    memcpy(out->port, colon + 1, port);
    out->key = "";
    return SL_OK;
}

static sl_status dial(const sl_http_server *s, int timeout_s, int *out, sl_err *err)
{
    struct addrinfo *found = NULL, hints = {.ai_socktype = SOCK_STREAM};
    int e = getaddrinfo(s->host, s->port, &hints, &found), fd = -1;
    if (e)
        return sl_fail(err, SL_ERR_PEER, "%s:%s: %s", s->host, s->port, gai_strerror(e));
    struct timeval limit = {.tv_sec = timeout_s};
    for (const struct addrinfo *a = found; a && fd < 0; a = a->ai_next) {
        fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
        if (fd >= 0 && (setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit) != 0 ||
                        setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit) != 0 ||
                        connect(fd, a->ai_addr, a->ai_addrlen) != 0)) {
            e = errno;
            close(fd);
            fd = -1;
        }
    }
    freeaddrinfo(found);
    *out = fd;
    return fd >= 0 ? SL_OK : sl_fail(err, SL_ERR_PEER, "%s:%s: %s", s->host, s->port, strerror(e));
}

static sl_status lost(const sl_http_server *s, sl_err *err)
{
    if (errno == EAGAIN || errno == EWOULDBLOCK)
        return sl_fail(err, SL_ERR_DEADLINE, "%s:%s: no answer in time", s->host, s->port);
    return sl_fail(err, SL_ERR_PEER, "%s:%s: %s", s->host, s->port, strerror(errno));
}

static sl_status send_all(const sl_http_server *s, int fd, const sl_strbuf *q, sl_err *err)
{
    for (size_t at = 0; at < q->len;) {
        ssize_t n = send(fd, q->data + at, q->len - at, MSG_NOSIGNAL);
        if (n < 0 && errno != EINTR)
            return lost(s, err);
        at += n > 0 ? (size_t)n : 0;
    }
    return SL_OK;
}

/* The server closes the connection after its answer. */
static sl_status receive_all(const sl_http_server *s, int fd, sl_strbuf *a, sl_err *err)
{
    char bytes[16384];
    for (;;) {
        ssize_t n = recv(fd, bytes, sizeof bytes, 0);
        if (n == 0)
            return SL_OK;
        if (n < 0 && errno != EINTR)
            return lost(s, err);
        if (n > 0)
            sl_sb_append(a, bytes, (size_t)n);
        if (a->bad || a->len > ANSWER_MAX)
            return sl_fail(err, SL_ERR_NO_MEMORY, "%s:%s: the answer is too long", s->host, s->port);
    }
}

sl_status sl_http_answer_read(char *text, size_t len, sl_http_answer *out, sl_err *err)
{
    char *body = len ? strstr(text, "\r\n\r\n") : NULL;
    if (!body || strncmp(text, "HTTP/1.", 7) != 0 || body - text < 12)
        return sl_fail(err, SL_ERR_CORRUPT, "does not speak HTTP");
    *body = 0;
    if (strcasestr(text, "\r\ntransfer-encoding:"))
        return sl_fail(err, SL_ERR_UNSUPPORTED, "sends a chunked answer");
    const char *length = strcasestr(text, "\r\ncontent-length:");
    size_t n = len - (size_t)(body + 4 - text);
    if (length && strtoull(length + strlen("\r\ncontent-length:"), NULL, 10) != n)
        return sl_fail(err, SL_ERR_PEER,
                       "the answer ended early: the server stopped, or the connection was cut; try again");
    *out = (sl_http_answer){.code = (int)strtol(text + 9, NULL, 10), .body = text, .len = n};
    memmove(text, body + 4, n);
    text[n] = 0;
    return SL_OK;
}

sl_status sl_http_ask(const sl_http_server *s, const char *method, const char *path, const char *body,
                      int timeout_s, sl_http_answer *out, sl_err *err)
{
    int fd = -1;
    sl_strbuf q = {0}, a = {0};
    *out = (sl_http_answer){0};
    SL_TRY(dial(s, timeout_s, &fd, err));
    bool v6 = strchr(s->host, ':') != NULL;
    sl_sb_printf(&q, "%s %s HTTP/1.1\r\nHost: %s%s%s:%s\r\nConnection: close\r\n", method, path,
                 v6 ? "[" : "", s->host, v6 ? "]" : "", s->port);
    if (s->key[0])
        sl_sb_printf(&q, "Authorization: Bearer %s\r\n", s->key);
    if (body)
        sl_sb_printf(&q, "Content-Type: application/json\r\nContent-Length: %zu\r\n", strlen(body));
    sl_sb_str(&q, "\r\n");
    if (body)
        sl_sb_str(&q, body);
    const uint64_t begin = sl_now_ns();
    sl_status st = q.bad ? sl_fail(err, SL_ERR_NO_MEMORY, "out of memory") : send_all(s, fd, &q, err);
    if (st == SL_OK)
        st = receive_all(s, fd, &a, err);
    const uint64_t ns = sl_now_ns() - begin;
    close(fd);
    sl_sb_free(&q);
    if (st == SL_OK) {
        st = sl_http_answer_read(a.data, a.len, out, err);
        out->ns = ns;
        if (st == SL_OK)
            return SL_OK; /* the text of a belongs to the answer now */
        sl_fail_in(err, st, "%s:%s", s->host, s->port);
    }
    sl_sb_free(&a);
    return st;
}

sl_status sl_http_read_key(const char *path, char *key, size_t cap, sl_err *err)
{
    FILE *f = fopen(path, "re");
    if (!f)
        return sl_fail(err, SL_ERR_IO, "--key-file %s: %m", path);
    bool got = fgets(key, (int)cap, f) != NULL;
    fclose(f);
    key[got ? strcspn(key, "\r\n") : 0] = 0;
    return key[0] ? SL_OK : sl_fail(err, SL_ERR_INVALID, "--key-file %s: the first line is empty", path);
}
