/* Options of the worker core: transport, addresses, intervals. See setup_impl.h. */
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "worker/setup_impl.h"

enum { RECONNECT_MS = 500 };

/*
 * The local address of the route to the router, which is the address that the network of the router has for this host.
 */
static void route_address(const char *router, char *out, size_t cap)
{
    char host[SL_TP_ADDRESS_MAX], port[8];
    uint16_t number;
    struct addrinfo *found = NULL, hints = {.ai_socktype = SOCK_DGRAM};
    out[0] = '\0';
    if (sl_tp_address_parse(router, host, sizeof host, &number, NULL) != SL_OK)
        return;
    snprintf(port, sizeof port, "%u", number ? number : 9);
    if (getaddrinfo(host, port, &hints, &found) != 0)
        return;
    int fd = socket(found->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    struct sockaddr_storage me;
    socklen_t n = sizeof me;
    if (fd >= 0 && connect(fd, found->ai_addr, found->ai_addrlen) == 0 &&
        getsockname(fd, (struct sockaddr *)&me, &n) == 0 &&
        getnameinfo((struct sockaddr *)&me, n, out, (socklen_t)cap, NULL, 0, NI_NUMERICHOST) != 0)
        out[0] = '\0';
    if (fd >= 0)
        close(fd);
    freeaddrinfo(found);
}

/* Runs on the transport thread, which must be able to use the device if the transport puts from device memory. */
static sl_status use_device(void *arg, sl_err *err)
{
    return sl_be_use_thread(arg, err);
}

void sl_setup_links(const sl_setup *s, sl_worker_opts *out)
{
    const sl_config *c = s->cfg;
    *out = (sl_worker_opts){.transport = "ucx",
                            .tls = c->cluster.tls,
                            .numa_node = s->p->numa_node,
                            .secret = c->cluster.secret,
                            .encrypt = c->cluster.encrypt,
                            .heartbeat_ms = (uint32_t)sl_config_heartbeat_ms(&c->cluster),
                            .dead_after_ms = (uint32_t)c->cluster.dead_after_ms,
                            .connect_timeout_ms = (uint32_t)c->cluster.connect_timeout_ms,
                            .reconnect_ms = RECONNECT_MS};
}

void sl_setup_core(sl_setup *s, sl_worker_opts *out)
{
    const sl_config *c = s->cfg;
    sl_parts *p = s->p;
    sl_setup_links(s, out);
    if (!c->cluster.advertise_host[0])
        route_address(s->launch->routers[0], p->listen_host, sizeof p->listen_host);
    out->n_routers = s->launch->n_routers;
    out->listen_host = p->listen_host;
    out->listen_port = (uint16_t)c->cluster.listen_port;
    out->advertise_host = c->cluster.advertise_host;
    out->metrics = p->metrics;
    memcpy(out->routers, s->launch->routers, sizeof out->routers);
    if (s->role == SL_ROLE_PREFILL && p->shipping && p->shipping->from_device) {
        out->enter = use_device;
        out->enter_arg = p->backend;
    }
}
