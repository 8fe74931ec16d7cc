/* Packet filters on UCX's TCP sockets; see gate.h. */
#include "transport/ucx/gate.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- finding ---- */

static bool listens(int fd, struct sockaddr_storage *sa)
{
    int on = 0;
    socklen_t n = sizeof on, len = sizeof *sa;
    return getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &on, &n) == 0 && on &&
           getsockname(fd, (struct sockaddr *)sa, &len) == 0 &&
           (sa->ss_family == AF_INET || sa->ss_family == AF_INET6);
}

/* The port in network order. IPv4 and IPv6 addresses have it at the same offset. */
static uint16_t port_of(const struct sockaddr_storage *sa)
{
    return ((const struct sockaddr_in *)sa)->sin_port;
}

/* Calls fn for each listening TCP socket of this process, until fn fails. */
static sl_status each(sl_status (*fn)(void *arg, int fd, const struct sockaddr_storage *sa), void *arg,
                      sl_err *err)
{
    DIR *dir = opendir("/proc/self/fd");
    sl_status st = SL_OK;
    if (!dir)
        return sl_fail(err, SL_ERR_IO, "/proc/self/fd: %s", strerror(errno));
    for (const struct dirent *e; st == SL_OK && (e = readdir(dir));) {
        struct sockaddr_storage sa;
        char *end;
        long fd = strtol(e->d_name, &end, 10);
        if (!*end && end != e->d_name && listens((int)fd, &sa))
            st = fn(arg, (int)fd, &sa);
    }
    closedir(dir);
    return st;
}

static sl_status note(void *arg, int fd, const struct sockaddr_storage *sa)
{
    ux_gate_ports *out = arg;
    (void)fd;
    if (out->n < UX_GATE_SNAPSHOT)
        out->port[out->n++] = ntohs(port_of(sa));
    return SL_OK;
}

void ux_gate_snapshot(ux_gate_ports *out)
{
    sl_err err;
    out->n = 0;
    each(note, out, &err);
}

typedef struct search {
    ux_gate *gate;
    const ux_gate_ports *before;
    const void *address;
    size_t bytes;
    uint16_t port;
    sl_err *err;
} search;

static bool wanted(const search *s, uint16_t port)
{
    for (size_t i = 0; i < s->before->n; i++)
        if (s->before->port[i] == ntohs(port))
            return false;
    return (s->port && ntohs(port) == s->port) ||
           (s->bytes && memmem(s->address, s->bytes, &port, sizeof port));
}

static sl_status take(void *arg, int fd, const struct sockaddr_storage *sa)
{
    const search *s = arg;
    if (!wanted(s, port_of(sa)))
        return SL_OK;
    if (s->gate->n == UX_GATE_SOCKETS)
        return sl_fail(s->err, SL_ERR_IO, "ucx listens on more than %d sockets", UX_GATE_SOCKETS);
    int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (own < 0)
        return sl_fail(s->err, SL_ERR_IO, "cannot gate a socket: %s", strerror(errno));
    s->gate->fds[s->gate->n++] = own;
    return SL_OK;
}

sl_status ux_gate_take(ux_gate *g, const ux_gate_ports *before, const void *address, size_t bytes,
                       uint16_t port, sl_err *err)
{
    search s = {.gate = g, .before = before, .address = address, .bytes = bytes, .port = port, .err = err};
    *g = (ux_gate){0};
    sl_status st = each(take, &s, err);
    if (st != SL_OK)
        goto release;
    st = ux_gate_shut(g, err);
    if (st != SL_OK)
        goto release;
    return SL_OK;
release:
    ux_gate_release(g);
    return st;
}

/* ---- filters ---- */

static sl_status attach(const ux_gate *g, struct sock_filter *code, size_t n, sl_err *err)
{
    const struct sock_fprog program = {.len = (unsigned short)n, .filter = code};
    for (size_t i = 0; i < g->n; i++)
        if (setsockopt(g->fds[i], SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program) != 0)
            return sl_fail(err, errno == ENOMEM ? SL_ERR_NO_MEMORY : SL_ERR_UNSUPPORTED,
                           "the kernel takes no socket filter: %s", strerror(errno));
    return SL_OK;
}

sl_status ux_gate_shut(const ux_gate *g, sl_err *err)
{
    struct sock_filter drop = BPF_STMT(BPF_RET | BPF_K, 0);
    return attach(g, &drop, 1, err);
}

sl_status ux_gate_open(const ux_gate *g, sl_err *err)
{
    const int unused = 0;
    for (size_t i = 0; i < g->n; i++)
        if (setsockopt(g->fds[i], SOL_SOCKET, SO_DETACH_FILTER, &unused, sizeof unused) != 0 &&
            errno != ENOENT)
            return sl_fail(err, SL_ERR_IO, "cannot open a gate: %s", strerror(errno));
    return SL_OK;
}

/*
 * Continues with the next instruction if the value matches, otherwise jumps over `skip` instructions. A
 * filter on a TCP socket sees the segment beginning with the TCP header (source port at offset 0); the IP
 * header is reached at SKF_NET_OFF.
 */
enum { PER_ENTRY = 14 };

static size_t equal(struct sock_filter *at, uint16_t size, uint32_t offset, uint32_t value, uint8_t skip)
{
    at[0] = (struct sock_filter)BPF_STMT((uint16_t)(BPF_LD | size | BPF_ABS), offset);
    at[1] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, skip);
    return 2;
}

/* Passes the segment if IP version, source address and source port are those of sa; otherwise continues. */
static size_t entry(struct sock_filter *at, const struct sockaddr_storage *sa)
{
    const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)sa;
    uint32_t words[4];
    bool mapped = sa->ss_family == AF_INET6 && IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr);
    bool four = sa->ss_family == AF_INET || mapped;
    uint8_t left = four ? 5 : 11; /* instructions after the jump on the version */
    size_t n = 0, count = four ? 1 : 4;
    if (sa->ss_family == AF_INET)
        memcpy(words, &((const struct sockaddr_in *)sa)->sin_addr, 4);
    else
        memcpy(words, (const uint8_t *)&v6->sin6_addr + (mapped ? 12 : 0), count * 4);
    at[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_B | BPF_ABS, (uint32_t)SKF_NET_OFF);
    at[n++] = (struct sock_filter)BPF_STMT(BPF_ALU | BPF_AND | BPF_K, 0xf0);
    at[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, four ? 0x40 : 0x60, 0, left);
    for (size_t i = 0; i < count; i++) {
        left -= 2;
        n += equal(at + n, BPF_W, (uint32_t)(SKF_NET_OFF + (four ? 12 : 8) + (int)(4 * i)), ntohl(words[i]),
                   left);
    }
    n += equal(at + n, BPF_H, 0, ntohs(port_of(sa)), 1);
    at[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, 0xffffffff);
    return n;
}

sl_status ux_gate_admit(const ux_gate *g, const struct sockaddr_storage *from, size_t n, sl_err *err)
{
    struct sock_filter code[UX_GATE_ADMITTED * PER_ENTRY + 1];
    size_t len = 0;
    for (size_t i = 0; i < n; i++)
        len += entry(code + len, &from[i]);
    code[len++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, 0);
    return attach(g, code, len, err);
}

bool ux_gate_holds(const ux_gate *g)
{
    for (size_t i = 0; i < g->n; i++) {
        struct sockaddr_storage sa;
        socklen_t len = sizeof sa;
        if (getsockname(g->fds[i], (struct sockaddr *)&sa, &len) != 0)
            continue;
        int fd = socket(sa.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
        if (fd < 0)
            continue;
        bool in = connect(fd, (struct sockaddr *)&sa, len) == 0;
        struct pollfd p = {.fd = fd, .events = POLLOUT};
        in = in || (errno == EINPROGRESS && poll(&p, 1, 10) == 1 && !(p.revents & (POLLERR | POLLHUP)));
        close(fd);
        if (in)
            return false;
    }
    return true;
}

void ux_gate_release(ux_gate *g)
{
    for (size_t i = 0; i < g->n; i++)
        close(g->fds[i]);
    g->n = 0;
}
