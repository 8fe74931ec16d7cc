/* What the tiers of shared stores are compared with: see tier.h. */
#include <fcntl.h>
#include <netdb.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/log.h"
#include "bench/tier/tier.h"
#include "kvstore/redis_format.h"

/* ---- files ---- */

typedef struct files {
    const char *directory;
    bool reads, failed;
    size_t n;
    int32_t count, first, step; /* this thread has the files first, first + step, … */
    pthread_t thread;
    uint8_t *buffer;
} files;

static bool move_file(const files *f, int32_t i)
{
    char path[600];
    snprintf(path, sizeof path, "%s/plain-%d", f->directory, i);
    int fd = open(path, O_DIRECT | O_CLOEXEC | (f->reads ? O_RDONLY : O_WRONLY | O_CREAT | O_EXCL), 0600);
    if (fd < 0)
        return false;
    ssize_t moved = f->reads ? pread(fd, f->buffer, f->n, 0) : pwrite(fd, f->buffer, f->n, 0);
    close(fd);
    return moved == (ssize_t)f->n;
}

static void *move_files(void *arg)
{
    files *f = arg;
    for (int32_t i = f->first; i < f->count; i += f->step)
        f->failed = f->failed || !move_file(f, i);
    return NULL;
}

double sl_bench_tier_files(const char *directory, bool reads, size_t n, int32_t count, int32_t depth)
{
    files f[64];
    int32_t started = 0;
    bool failed = false;
    uint8_t *buffers = aligned_alloc(4096, n * (size_t)depth);
    if (!buffers)
        return -1;
    memset(buffers, 0x5a, n * (size_t)depth);
    uint64_t t = sl_now_ns();
    for (; started < depth; started++) {
        f[started] =
            (files){directory, reads, false, n, count, started, depth, 0, buffers + (size_t)started * n};
        if (pthread_create(&f[started].thread, NULL, move_files, &f[started]) != 0)
            break;
    }
    for (int32_t i = 0; i < started; i++) {
        pthread_join(f[i].thread, NULL);
        failed = failed || f[i].failed;
    }
    double seconds = (double)(sl_now_ns() - t) / 1e9;
    free(buffers);
    return failed || started < depth ? -1 : (double)n * count / 1048576.0 / seconds;
}

void sl_bench_tier_files_remove(const char *directory, int32_t count)
{
    char path[600];
    for (int32_t i = 0; i < count; i++) {
        snprintf(path, sizeof path, "%s/plain-%d", directory, i);
        unlink(path);
    }
}

/* ---- Redis ---- */

static int connect_to(const sl_redis_address *at)
{
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    struct addrinfo *found = NULL, hints = {.ai_socktype = SOCK_STREAM};
    char port[16];
    snprintf(un.sun_path, sizeof un.sun_path, "%.100s", at->host);
    snprintf(port, sizeof port, "%d", at->port);
    if (at->port && getaddrinfo(at->host, port, &hints, &found) != 0)
        return -1;
    int fd = socket(at->port ? found->ai_family : AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const struct sockaddr *to = at->port ? found->ai_addr : (const struct sockaddr *)&un;
    if (fd >= 0 && connect(fd, to, at->port ? found->ai_addrlen : sizeof un) != 0) {
        close(fd);
        fd = -1;
    }
    if (found)
        freeaddrinfo(found);
    return fd;
}

static bool send_all(int fd, const char *p, size_t n)
{
    while (n) {
        ssize_t sent = send(fd, p, n, MSG_NOSIGNAL);
        if (sent <= 0)
            return false;
        p += sent;
        n -= (size_t)sent;
    }
    return true;
}

typedef struct values {
    int fd;
    bool reads;
    size_t n;
    char *value, *answer;
    char expected[32]; /* the beginning of every answer */
    size_t expected_n, answer_n;
} values;

static bool send_command(const values *v, int32_t i)
{
    char name[48], head[160];
    int name_n = snprintf(name, sizeof name, "sluice-bench-plain:%d", i);
    int n = v->reads
                ? snprintf(head, sizeof head, "*2\r\n$3\r\nGET\r\n$%d\r\n%s\r\n", name_n, name)
                : snprintf(head, sizeof head, "*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%zu\r\n", name_n, name, v->n);
    return send_all(v->fd, head, (size_t)n) &&
           (v->reads || (send_all(v->fd, v->value, v->n) && send_all(v->fd, "\r\n", 2)));
}

/* All answers have the same length, so they are read without a parser. */
static bool take_answer(const values *v)
{
    return recv(v->fd, v->answer, v->answer_n, MSG_WAITALL) == (ssize_t)v->answer_n &&
           memcmp(v->answer, v->expected, v->expected_n) == 0;
}

static void remove_values(const values *v, int32_t count)
{
    char text[96], answer[4];
    for (int32_t i = 0; i < count; i++) {
        int n = snprintf(text, sizeof text, "UNLINK sluice-bench-plain:%d\r\n", i);
        if (!send_all(v->fd, text, (size_t)n) ||
            recv(v->fd, answer, sizeof answer, MSG_WAITALL) != sizeof answer)
            return;
    }
}

static double timed_values(const values *v, int32_t count, int32_t depth)
{
    bool right = true;
    uint64_t t = sl_now_ns();
    for (int32_t sent = 0, answered = 0; right && answered < count;) {
        if (sent < count && sent - answered < depth)
            right = send_command(v, sent++);
        else
            right = take_answer(v) && ++answered;
    }
    double seconds = (double)(sl_now_ns() - t) / 1e9;
    return right ? (double)v->n * count / 1048576.0 / seconds : -1;
}

double sl_bench_tier_redis(const char *address, bool reads, size_t n, int32_t count, int32_t depth)
{
    sl_redis_address at;
    double speed = -1;
    values v = {.fd = -1, .reads = reads, .n = n, .value = malloc(n), .answer = malloc(n + 64)};
    v.expected_n = (size_t)(reads ? snprintf(v.expected, sizeof v.expected, "$%zu\r\n", n)
                                  : snprintf(v.expected, sizeof v.expected, "+OK\r\n"));
    v.answer_n = reads ? v.expected_n + n + 2 : v.expected_n;
    if (v.value && v.answer && sl_redis_address_parse(address, &at, NULL) == SL_OK)
        v.fd = connect_to(&at);
    if (v.fd >= 0) {
        memset(v.value, 0x5a, n);
        speed = timed_values(&v, count, depth);
        if (reads)
            remove_values(&v, count);
        close(v.fd);
    }
    free(v.value);
    free(v.answer);
    return speed;
}
