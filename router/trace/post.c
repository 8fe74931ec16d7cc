/* See post.h. */
#include "router/trace/post.h"

#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"

enum { ANSWER_BYTES = 1024, LOOK_MS = 100 };

/* ---- the address ---- */

static sl_status bad_url(const char *url, const char *why, sl_err *err)
{
    return sl_fail(err, SL_ERR_INVALID, "router.traces: '%s': %s; want http://HOST[:PORT][/PATH]", url, why);
}

static bool is_port(const char *s)
{
    char *end;
    long n = strtol(s, &end, 10);
    return *s >= '0' && *s <= '9' && !*end && n >= 1 && n <= 65535;
}

static sl_status read_authority(const char *url, const char *s, size_t n, sl_trace_url *out, sl_err *err)
{
    char text[sizeof out->host];
    if (!n || n >= sizeof text)
        return bad_url(url, "there is no host", err);
    memcpy(text, s, n);
    text[n] = 0;
    char *host = text, *end = strrchr(text, ']'), *colon = strrchr(end ? end : text, ':');
    if (colon)
        *colon = 0;
    if (colon && !is_port(colon + 1))
        return bad_url(url, "the port is no number from 1 to 65535", err);
    if (*host == '[' && end && !end[1]) {
        host++;
        *end = 0;
    } else if (*host == '[' || end || strchr(host, ':') || strchr(host, '@')) {
        return bad_url(url, "the host is malformed", err);
    }
    if (!*host)
        return bad_url(url, "there is no host", err);
    snprintf(out->host, sizeof out->host, "%s", host);
    snprintf(out->port, sizeof out->port, "%s", colon ? colon + 1 : "4318");
    return SL_OK;
}

sl_status sl_trace_url_read(const char *url, sl_trace_url *out, sl_err *err)
{
    static const char http[] = "http://";
    if (!strncmp(url, "https://", 8))
        return bad_url(
            url,
            "TLS is not spoken here: name a collector on this host or in this network, which passes traces on",
            err);
    if (strncmp(url, http, sizeof http - 1) != 0)
        return bad_url(url, "it does not begin with http://", err);
    for (const char *s = url; *s; s++)
        if (*s <= ' ' || *s >= 0x7f || *s == '#')
            return bad_url(url, "it has a character that a URL cannot have", err);
    const char *s = url + sizeof http - 1, *slash = strchr(s, '/');
    const char *path = slash && slash[1] ? slash : "/v1/traces";
    if (strlen(path) >= sizeof out->path)
        return bad_url(url, "it is too long", err);
    SL_TRY(read_authority(url, s, slash ? (size_t)(slash - s) : strlen(s), out, err));
    snprintf(out->path, sizeof out->path, "%s", path);
    return SL_OK;
}

/* ---- the connection ---- */

/* Whether the socket is ready before the deadline. */
static bool ready(int fd, short events, const sl_post_limit *limit)
{
    for (;;) {
        uint64_t now = sl_now_ns(), stop = __atomic_load_n(limit->stop_ns, __ATOMIC_ACQUIRE);
        struct pollfd p = {.fd = fd, .events = events};
        if (now >= limit->ns || (stop && now >= stop))
            return false;
        int n = poll(&p, 1, LOOK_MS);
        if (n > 0)
            return true;
        if (n < 0 && errno != EINTR)
            return false;
    }
}

static int try_address(const struct addrinfo *a, const sl_post_limit *limit)
{
    int fd = socket(a->ai_family, a->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC, a->ai_protocol), error = 0;
    socklen_t len = sizeof error;
    if (fd < 0)
        return -1;
    if (connect(fd, a->ai_addr, a->ai_addrlen) == 0)
        return fd;
    if (errno == EINPROGRESS && ready(fd, POLLOUT, limit) &&
        getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len) == 0 && error == 0)
        return fd;
    close(fd);
    return -1;
}

static sl_status dial(const sl_trace_url *to, const sl_post_limit *limit, int *out, sl_err *err)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list = NULL;
    int rc = getaddrinfo(to->host, to->port, &hints, &list), fd = -1;
    if (rc)
        return sl_fail(err, SL_ERR_IO, "%s", gai_strerror(rc));
    for (const struct addrinfo *a = list; a && fd < 0; a = a->ai_next)
        fd = try_address(a, limit);
    freeaddrinfo(list);
    if (fd < 0)
        return sl_fail(err, SL_ERR_IO, "cannot connect");
    *out = fd;
    return SL_OK;
}

static bool write_all(int fd, const char *bytes, size_t n, const sl_post_limit *limit)
{
    while (n) {
        ssize_t k = send(fd, bytes, n, MSG_NOSIGNAL);
        if (k > 0) {
            bytes += k;
            n -= (size_t)k;
        } else if (k < 0 && errno != EAGAIN && errno != EINTR) {
            return false;
        } else if (!ready(fd, POLLOUT, limit)) {
            return false;
        }
    }
    return true;
}

/* The status of the answer, 0: there is none. */
static int read_code(int fd, const sl_post_limit *limit)
{
    char text[ANSWER_BYTES + 1];
    size_t n = 0;
    int code = 0;
    while (n < ANSWER_BYTES && !memchr(text, '\n', n)) {
        ssize_t k = recv(fd, text + n, ANSWER_BYTES - n, 0);
        if (k == 0 || (k < 0 && errno != EAGAIN && errno != EINTR))
            break;
        if (k > 0)
            n += (size_t)k;
        else if (!ready(fd, POLLIN, limit))
            break;
    }
    text[n] = 0;
    return sscanf(text, "HTTP/1.%*c %3d", &code) == 1 ? code : 0;
}

sl_status sl_trace_post(const sl_trace_url *to, const void *bytes, size_t n, const sl_post_limit *limit,
                        bool *again, sl_err *err)
{
    char head[1024];
    int fd = -1;
    *again = true;
    SL_TRY(dial(to, limit, &fd, err));
    bool six = strchr(to->host, ':');
    int len = snprintf(
        head, sizeof head,
        "POST %s HTTP/1.1\r\nHost: %s%s%s:%s\r\nUser-Agent: sluice\r\nContent-Type: application/x-protobuf\r\n"
        "Content-Length: %zu\r\nConnection: close\r\n\r\n",
        to->path, six ? "[" : "", to->host, six ? "]" : "", to->port, n);
    bool sent = write_all(fd, head, (size_t)len, limit) && write_all(fd, bytes, n, limit);
    int code = read_code(fd, limit); /* a refusal may come before everything is sent */
    close(fd);
    if (code >= 200 && code < 300)
        return SL_OK;
    if (!code)
        return sl_fail(err, SL_ERR_IO, sent ? "no answer" : "the connection ended");
    *again = code == 429 || code >= 502;
    return sl_fail(err, SL_ERR_REFUSED, "HTTP status %d", code);
}
