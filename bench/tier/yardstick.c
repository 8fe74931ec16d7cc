/* What the tier is compared with: see tier.h. */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "bench/tier/tier.h"
#include "kvstore/uring.h"

typedef struct loop {
    sl_uring ring;
    int fd;
    bool reads;
    size_t n;
    uint8_t *buffers;
} loop;

static void start(loop *l, int32_t block, int32_t buffer)
{
    struct io_uring_sqe *e = sl_uring_prepare(&l->ring);
    e->opcode = l->reads ? IORING_OP_READ_FIXED : IORING_OP_WRITE_FIXED;
    e->fd = l->fd;
    e->buf_index = (uint16_t)buffer;
    e->addr = (uintptr_t)(l->buffers + (size_t)buffer * l->n);
    e->len = (uint32_t)l->n;
    e->off = (uint64_t)block * l->n;
    e->user_data = (uint64_t)buffer;
}

static bool run_loop(loop *l, int32_t count, int32_t depth)
{
    int32_t next = 0, in_flight = 0, res;
    uint64_t buffer;
    for (; next < count && next < depth; in_flight++, next++)
        start(l, next, next);
    while (in_flight) {
        if (sl_uring_enter(&l->ring, true) != SL_OK)
            return false;
        while (sl_uring_next(&l->ring, &buffer, &res)) {
            if (res != (int32_t)l->n)
                return false;
            in_flight--;
            if (next < count) {
                start(l, next++, (int32_t)buffer);
                in_flight++;
            }
        }
    }
    return true;
}

static double timed_loop(loop *l, int32_t count, int32_t depth)
{
    struct iovec iov[64];
    for (int32_t i = 0; i < depth; i++)
        iov[i] = (struct iovec){l->buffers + (size_t)i * l->n, l->n};
    if (sl_uring_register(&l->ring, iov, (unsigned)depth) != SL_OK)
        return -1;
    uint64_t t = sl_now_ns();
    if (!run_loop(l, count, depth))
        return -1;
    return (double)l->n * count / 1048576.0 * 1e9 / (double)(sl_now_ns() - t);
}

double sl_bench_tier_plain(const char *path, bool reads, size_t n, int32_t count, int32_t depth)
{
    double speed = -1;
    loop l = {.reads = reads, .n = n};
    l.fd = open(path, O_RDWR | O_DIRECT | O_CLOEXEC | (reads ? 0 : O_CREAT | O_TRUNC), 0600);
    if (l.fd < 0)
        return -1;
    l.buffers = aligned_alloc(4096, n * (size_t)depth);
    if (l.buffers && (reads || fallocate(l.fd, 0, 0, (off_t)n * count) == 0) &&
        sl_uring_open(&l.ring, (unsigned)depth, NULL) == SL_OK) {
        memset(l.buffers, 0x5a, n * (size_t)depth);
        speed = timed_loop(&l, count, depth);
        sl_uring_close(&l.ring);
    }
    close(l.fd);
    free(l.buffers);
    return speed;
}

/* The bandwidth, in KiB/s, is the 7th field of fio's terse output for reads and the 48th for writes. */
static double parse_terse(char *line, bool reads)
{
    char *at = line, *field = NULL;
    for (int i = 1; i <= (reads ? 7 : 48); i++)
        if (!(field = strsep(&at, ";")))
            return -1;
    return strtod(field, NULL) / 1024;
}

static void exec_fio(const char *path, bool reads, size_t n, int32_t count, int32_t depth, int out)
{
    char file[600], bs[32], size[48], iodepth[32];
    snprintf(file, sizeof file, "--filename=%s", path);
    snprintf(bs, sizeof bs, "--bs=%zu", n);
    snprintf(size, sizeof size, "--size=%llu", (unsigned long long)n * (unsigned long long)count);
    snprintf(iodepth, sizeof iodepth, "--iodepth=%d", depth);
    dup2(out, 1);
    execlp("fio", "fio", "--name=tier", "--minimal", "--direct=1", "--ioengine=io_uring", "--fixedbufs",
           "--thread", reads ? "--rw=read" : "--rw=write", file, bs, size, iodepth, (char *)NULL);
    _exit(127);
}

double sl_bench_tier_fio(const char *path, bool reads, size_t n, int32_t count, int32_t depth)
{
    int p[2], status;
    char text[8192];
    size_t len = 0;
    if (pipe(p) != 0)
        return -1;
    pid_t pid = fork();
    if (pid == 0)
        exec_fio(path, reads, n, count, depth, p[1]);
    close(p[1]);
    for (ssize_t got; pid > 0 && (got = read(p[0], text + len, sizeof text - 1 - len)) > 0;)
        len += (size_t)got;
    close(p[0]);
    text[len] = 0;
    if (pid < 0 || waitpid(pid, &status, 0) != pid || !WIFEXITED(status) || WEXITSTATUS(status) != 0)
        return -1;
    return parse_terse(text, reads);
}
