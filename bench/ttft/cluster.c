/* See cluster.h. The HTTP client uses blocking sockets: its own speed does not matter for what is measured. */
#include "bench/ttft/cluster.h"

#include <arpa/inet.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/log.h"

enum { MAX_SETTINGS = 24, READY_S = 120 };

static void nap(long ms)
{
    struct timespec t = {ms / 1000, ms % 1000 * 1000000};
    nanosleep(&t, NULL);
}

/* ---- HTTP ---- */

static int dial(int port)
{
    struct sockaddr_in sa = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&sa, sizeof sa) != 0) {
        close(fd);
        fd = -1;
    }
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

sl_status sl_bench_http(int port, const char *path, const char *body, char **out, uint64_t *ns, sl_err *err)
{
    char head[256];
    size_t n = body ? strlen(body) : 0;
    int fd = dial(port);
    if (fd < 0)
        return sl_fail(err, SL_ERR_IO, "127.0.0.1:%d does not accept connections", port);
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

/* ---- processes ---- */

/*
 * A port on which no process listens; 0 if none was found. It is below the ports that the kernel gives to
 * connections (from 32768 on); otherwise a connection could get it before the process that is to listen there.
 */
static int free_port(void)
{
    enum { LOWEST = 20000, BEYOND = 32768, TRIES = 200 };
    for (int i = 0; i < TRIES; i++) {
        int port = LOWEST + (int)(sl_random_u64() % (BEYOND - LOWEST));
        struct sockaddr_in sa = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
        int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
        bool free = fd >= 0 && bind(fd, (struct sockaddr *)&sa, sizeof sa) == 0;
        if (fd >= 0)
            close(fd);
        if (free)
            return port;
    }
    return 0;
}

static pid_t start(const char *role, const char *const *settings, size_t n)
{
    const char *argv[2 + 2 * MAX_SETTINGS + 1];
    size_t k = 0;
    argv[k++] = "sluice";
    argv[k++] = role;
    for (size_t i = 0; i < n; i++) {
        const char *s = settings[i], *colon = strchr(s, ':'), *equal = strchr(s, '=');
        bool named = colon && equal && colon < equal; /* "decode:backend.device=1" */
        if (named && strncmp(s, role, (size_t)(colon - s)) != 0)
            continue;
        argv[k++] = "--set";
        argv[k++] = named ? colon + 1 : s;
    }
    argv[k] = NULL;
    pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        dup2(STDERR_FILENO, STDOUT_FILENO); /* stdout of this process is the CSV */
        execv("/proc/self/exe", (char *const *)argv);
        _exit(127);
    }
    return pid;
}

static sl_status wait_ready(const sl_bench_cluster *c, sl_err *err)
{
    uint64_t until = sl_now_ns() + READY_S * 1000000000ull;
    char *page = NULL;
    while (sl_now_ns() < until) {
        for (int i = 0; i < 3; i++) {
            int status;
            if (waitpid(c->pid[i], &status, WNOHANG) != 0)
                return sl_fail(err, SL_ERR_IO,
                               "a process of the cluster ended; its message was printed before this one");
        }
        if (sl_bench_http(c->http_port, "/health", NULL, &page, NULL, NULL) == SL_OK) {
            free(page);
            return SL_OK;
        }
        nap(100);
    }
    return sl_fail(err, SL_ERR_TIMEOUT, "the cluster is not ready after %d s", READY_S);
}

sl_status sl_bench_cluster_start(const char *model_dir, const char *const *settings, size_t n,
                                 sl_bench_cluster *out, sl_err *err)
{
    static const char *const roles[] = {"router", "prefill", "decode"};
    const char *all[MAX_SETTINGS];
    char model[1100], http[48], workers[48], metrics[48];
    sl_bench_cluster c = {.http_port = free_port(), .prefill_metrics_port = free_port()};
    size_t k = 0;
    if (n + 6 > MAX_SETTINGS)
        return sl_fail(err, SL_ERR_TOO_LARGE, "too many settings");
    snprintf(model, sizeof model, "model.path=%.1024s", model_dir);
    snprintf(http, sizeof http, "router.http_port=%d", c.http_port);
    snprintf(workers, sizeof workers, "cluster.router_port=%d", free_port());
    snprintf(metrics, sizeof metrics, "metrics.port=%d", c.prefill_metrics_port);
    all[k++] = model;
    all[k++] = http;
    all[k++] = workers;
    all[k++] = "router.grpc_port=0";
    all[k++] = "log.level=warn";
    for (size_t i = 0; i < n; i++)
        all[k++] = settings[i];
    for (int i = 0; i < 3; i++) {
        all[k] = metrics;
        c.pid[i] = start(roles[i], all, k + (i == 1));
        if (c.pid[i] <= 0) {
            c.pid[i] = 0;
            sl_bench_cluster_stop(&c);
            return sl_fail(err, SL_ERR_IO, "cannot start a process");
        }
    }
    sl_status st = wait_ready(&c, err);
    if (st != SL_OK)
        sl_bench_cluster_stop(&c);
    else
        *out = c;
    return st;
}

void sl_bench_cluster_stop(sl_bench_cluster *c)
{
    for (int i = 2; i >= 0; i--) { /* the router last, because workers log the loss of their router */
        if (c->pid[i] > 0)
            kill(c->pid[i], SIGKILL); /* no request is in flight */
    }
    for (int i = 0; i < 3; i++) {
        if (c->pid[i] > 0)
            waitpid(c->pid[i], NULL, 0);
        c->pid[i] = 0;
    }
}
