/* See page.h. The HTTP client uses blocking sockets: its own speed does not matter for what is measured. */
#include "bench/page.h"

#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"

static int dial(const char *host, int port)
{
    char number[8];
    struct addrinfo *found = NULL, hints = {.ai_socktype = SOCK_STREAM};
    snprintf(number, sizeof number, "%d", port);
    if (getaddrinfo(host, number, &hints, &found) != 0)
        return -1;
    int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, found->ai_addr, found->ai_addrlen) != 0) {
        close(fd);
        fd = -1;
    }
    freeaddrinfo(found);
    return fd;
}

static bool send_all(int fd, const char *p, size_t n)
{
    while (n > 0) {
        ssize_t k = send(fd, p, n, MSG_NOSIGNAL);
        if (k <= 0)
            return false;
        p += k;
        n -= (size_t)k;
    }
    return true;
}

/* Receives until the peer closes the connection; returns the bytes as a string, or NULL when out of memory. */
static char *receive_all(int fd)
{
    size_t cap = 1 << 16, n = 0;
    char *text = malloc(cap);
    for (ssize_t k = 1; text && k > 0; n += k > 0 ? (size_t)k : 0) {
        if (cap - n < 4096) {
            char *more = realloc(text, cap *= 2);
            if (!more)
                free(text);
            text = more;
        }
        k = text ? recv(fd, text + n, cap - n - 1, 0) : 0;
    }
    if (text)
        text[n] = '\0';
    return text;
}

/* The requests say "Connection: close", so the body ends where the answer ends. Chunked bodies are not supported. */
static sl_status take_body(char *answer, char **out, sl_err *err)
{
    char *body = answer ? strstr(answer, "\r\n\r\n") : NULL;
    if (!body)
        return sl_fail(err, SL_ERR_IO, "the answer is not HTTP");
    if (strncmp(answer, "HTTP/1.1 200", 12) != 0)
        return sl_fail(err, SL_ERR_REFUSED, "%.12s: %.300s", answer, body + 4);
    *out = strdup(body + 4);
    return *out ? SL_OK : SL_ERR_NO_MEMORY;
}

sl_status sl_bench_http(const char *host, int port, const char *path, const char *body, char **out,
                        uint64_t *ns, sl_err *err)
{
    char head[256];
    size_t n = body ? strlen(body) : 0;
    int fd = dial(host, port);
    if (fd < 0)
        return sl_fail(err, SL_ERR_IO, "%s:%d does not accept connections", host, port);
    snprintf(head, sizeof head,
             "%s %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n"
             "Content-Length: %zu\r\n\r\n",
             body ? "POST" : "GET", path, n);
    uint64_t t0 = sl_now_ns();
    bool sent = send_all(fd, head, strlen(head)) && (!body || send_all(fd, body, n));
    char *answer = sent ? receive_all(fd) : NULL;
    if (ns)
        *ns = sl_now_ns() - t0;
    close(fd);
    sl_status st = take_body(answer, out, err);
    free(answer);
    return st;
}

double sl_bench_metric(const char *page, const char *sample)
{
    size_t n = strlen(sample);
    for (const char *line = page; line && *line;) {
        if (strncmp(line, sample, n) == 0 && line[n] == ' ')
            return strtod(line + n, NULL);
        line = strchr(line, '\n');
        line = line ? line + 1 : NULL;
    }
    return -1;
}

double sl_bench_metric_sum(const char *page, const char *name)
{
    size_t n = strlen(name);
    double sum = 0;
    bool any = false;
    for (const char *line = page; line && *line;) {
        const char *end = strchr(line, '\n'), *last = end ? end : line + strlen(line);
        if (strncmp(line, name, n) == 0 && (line[n] == ' ' || line[n] == '{')) {
            while (last > line && *last != ' ')
                last--;
            sum += strtod(last, NULL);
            any = true;
        }
        line = end ? end + 1 : NULL;
    }
    return any ? sum : -1;
}

/* The next line of the page that begins with `start`, from `line` on; NULL: none. */
static const char *next_line(const char *line, const char *start)
{
    const size_t n = strlen(start);
    while (line && strncmp(line, start, n) != 0) {
        line = strchr(line, '\n');
        line = line ? line + 1 : NULL;
    }
    return line;
}

void sl_bench_histogram_add(sl_bench_histogram *h, const char *page, const char *name, const char *label)
{
    char start[160];
    int i = 0;
    snprintf(start, sizeof start, "%s_bucket{", name);
    for (const char *line = page; (line = next_line(line, start)) && i < SL_BENCH_BOUNDS; line++) {
        const char *end = strchr(line, '}'), *bound = strstr(line, "le=\""),
                   *own = label ? strstr(line, label) : line;
        if (!end || !bound || bound > end || !own || own > end)
            continue;
        h->bounds[i] = strtod(bound + 4, NULL); /* +Inf is one */
        h->counts[i++] += strtod(end + 1, NULL);
    }
    h->n = i > h->n ? i : h->n;
}

double sl_bench_histogram_quantile(const sl_bench_histogram *from, const sl_bench_histogram *to, double q)
{
    const double all = to->n ? to->counts[to->n - 1] - from->counts[to->n - 1] : 0;
    double below = 0;
    for (int i = 0; i < to->n && all > 0; i++) {
        const double upto = to->counts[i] - from->counts[i], low = i ? to->bounds[i - 1] : 0;
        if (upto >= q * all)
            return i == to->n - 1 ? low : low + (to->bounds[i] - low) * (q * all - below) / (upto - below);
        below = upto;
    }
    return -1;
}
