#include "tests/unit/transport/door_rig.h"

#include <linux/filter.h>
#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"

const variant door_variant = {"ucx tcp", "ucx", "tcp", true, false};
const char *door_secret;
bool door_encrypts;

void door_open(client *c, char *address)
{
    sl_tp_options o = sl_tp_options_default();
    sl_err err;
    o.connect_timeout_ms = DOOR_TIMEOUT_MS;
    o.secret = door_secret;
    o.encrypt = door_encrypts;
    client_open_with(c, &door_variant, o);
    ck_assert_int_eq(sl_tp_listen(c->tp, "127.0.0.1", 0, address, SL_TP_ADDRESS_MAX, &err), SL_OK);
}

uint16_t door_port(const char *address)
{
    char host[64];
    uint16_t port;
    sl_err err;
    ck_assert_int_eq(sl_tp_address_parse(address, host, sizeof host, &port, &err), SL_OK);
    return port;
}

int door_dial(uint16_t port, int ms)
{
    struct sockaddr_in sa = {
        .sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), error = 0;
    socklen_t len = sizeof error;
    ck_assert_int_ge(fd, 0);
    if (connect(fd, (struct sockaddr *)&sa, sizeof sa) == 0)
        return fd;
    struct pollfd p = {.fd = fd, .events = POLLOUT};
    if (errno == EINPROGRESS && poll(&p, 1, ms) == 1 &&
        getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len) == 0 && !error)
        return fd;
    close(fd);
    errno = error ? error : ETIMEDOUT;
    return -1;
}

size_t door_knock_sample(uint8_t *buf)
{
    const ux_door_msg m = {.version = UX_DOOR_VERSION, .kind = UX_DOOR_KNOCK, .port = 40000, .text = "hello"};
    return ux_door_write(&m, buf);
}

void door_run(client *c, int ms)
{
    uint64_t until = sl_now_ns() + (uint64_t)ms * 1000000u, now;
    do {
        while (sl_tp_progress(c->tp) > 0)
            ;
        now = sl_now_ns();
        struct pollfd p = {.fd = sl_tp_event_fd(c->tp), .events = POLLIN};
        if (now < until && sl_tp_arm(c->tp) == SL_OK)
            poll(&p, 1, (int)((until - now) / 1000000u) + 1);
    } while (now < until);
}

uint64_t door_refused(const client *c)
{
    sl_tp_stats s;
    sl_tp_get_stats(c->tp, &s);
    return s.refused_connects;
}

/* One attempt to connect; false: not admitted in DOOR_TIMEOUT_MS, which a busy machine may take for a greeting. */
static bool connect_once(client *c, client *server, const char *address, sl_tp_ep **ep)
{
    sl_err err;
    int accepted = server->accepted;
    sl_tp_options o = sl_tp_options_default();
    o.secret = door_secret;
    client_open_with(c, &door_variant, o);
    ck_assert_int_eq(sl_tp_connect(c->tp, address, ep, &err), SL_OK);
    while (!c->connected) {
        door_run(c, 1);
        door_run(server, 1);
    }
    if (c->connect_status != SL_OK)
        return false;
    while (server->accepted == accepted)
        door_run(server, 1);
    return true;
}

void door_serves(client *server, const char *address)
{
    client c;
    sl_tp_ep *ep;
    uint64_t until = sl_now_ns() + 60000000000u;
    while (!connect_once(&c, server, address, &ep)) {
        ck_assert_msg(sl_now_ns() < until, "a peer was not admitted: %s", c.why);
        client_close(&c);
    }
    sl_tp_close(server->ep, SL_TP_CLOSE_FORCE);
    int closed = server->closed;
    sl_tp_close(ep, SL_TP_CLOSE_FORCE);
    while ((!c.closed || server->closed == closed) && sl_now_ns() < until) {
        door_run(&c, 1);
        door_run(server, 1);
    }
    ck_assert_int_eq(c.closed, 1);
    client_close(&c);
}

bool door_filters_taken(void)
{
    struct sock_filter all = BPF_STMT(BPF_RET | BPF_K, 0xffffffff);
    const struct sock_fprog program = {.len = 1, .filter = &all};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    bool taken = setsockopt(fd, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program) == 0;
    if (!taken)
        printf("# without gates_protect_ucx, garbage_at_open_data_gates: the kernel takes no socket "
               "filter: %s\n",
               strerror(errno));
    close(fd);
    return taken;
}

ux_gate_ports door_listening(void)
{
    ux_gate_ports p;
    ux_gate_snapshot(&p);
    return p;
}

bool door_port_is_ucx(uint16_t port, const ux_gate_ports *before, const char *address)
{
    bool known = port == door_port(address);
    for (size_t i = 0; i < before->n; i++)
        known |= before->port[i] == port;
    return !known;
}
