/*
 * Operating-system parts shared by all transports: the descriptor that wakes the owner, and socket addresses.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include "transport/transport_impl.h"

sl_status sl_tp_waker_init(sl_tp_waker *w, sl_err *err)
{
    sl_tp_waker made = {.epoll_fd = epoll_create1(EPOLL_CLOEXEC), .timer_fd = -1};
    if (made.epoll_fd < 0)
        return sl_fail(err, SL_ERR_IO, "epoll_create1: %s", strerror(errno));
    made.timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (made.timer_fd < 0) {
        sl_status st = sl_fail(err, SL_ERR_IO, "timerfd_create: %s", strerror(errno));
        sl_tp_waker_fini(&made);
        return st;
    }
    sl_status st = sl_tp_waker_add(&made, made.timer_fd, err);
    if (st != SL_OK) {
        sl_tp_waker_fini(&made);
        return st;
    }
    *w = made;
    return SL_OK;
}

sl_status sl_tp_waker_add(sl_tp_waker *w, int fd, sl_err *err)
{
    struct epoll_event ev = {.events = EPOLLIN, .data.fd = fd};
    if (epoll_ctl(w->epoll_fd, EPOLL_CTL_ADD, fd, &ev) != 0)
        return sl_fail(err, SL_ERR_IO, "epoll_ctl: %s", strerror(errno));
    return SL_OK;
}

void sl_tp_waker_remove(sl_tp_waker *w, int fd)
{
    epoll_ctl(w->epoll_fd, EPOLL_CTL_DEL, fd, NULL);
}

void sl_tp_waker_arm(sl_tp_waker *w, uint64_t deadline_ns)
{
    if (deadline_ns == w->armed_ns)
        return;
    struct itimerspec its = {.it_value = {.tv_sec = (time_t)(deadline_ns / 1000000000u),
                                          .tv_nsec = (long)(deadline_ns % 1000000000u)}};
    /* This also clears an expiration that was not read, so the descriptor is not readable before the new time. */
    int rc = timerfd_settime(w->timer_fd, TFD_TIMER_ABSTIME, &its, NULL);
    SL_CHECK(rc == 0, "timerfd_settime");
    w->armed_ns = deadline_ns;
}

void sl_tp_waker_fini(sl_tp_waker *w)
{
    if (w->timer_fd >= 0)
        close(w->timer_fd);
    if (w->epoll_fd >= 0)
        close(w->epoll_fd);
    w->timer_fd = w->epoll_fd = -1;
}

/* Returns the error of getaddrinfo(), 0: none. */
static int resolve(const char *host, uint16_t port, const struct addrinfo *hints,
                   struct sockaddr_storage *out, socklen_t *len)
{
    char service[8];
    struct addrinfo *list = NULL;
    snprintf(service, sizeof service, "%u", port);
    int rc = getaddrinfo(host, service, hints, &list);
    if (rc != 0)
        return rc;
    memset(out, 0, sizeof *out);
    memcpy(out, list->ai_addr, list->ai_addrlen);
    *len = list->ai_addrlen;
    freeaddrinfo(list);
    return 0;
}

sl_status sl_tp_resolve(const char *host, uint16_t port, bool passive, struct sockaddr_storage *out,
                        socklen_t *len, sl_err *err)
{
    struct addrinfo hints = {.ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    if (passive && !*host) {
        hints.ai_flags |= AI_PASSIVE;
        hints.ai_family = AF_INET;
    }
    int rc = resolve(*host ? host : (passive ? NULL : "localhost"), port, &hints, out, len);
    return rc ? sl_fail(err, SL_ERR_INVALID, "host \"%.200s\": %s", host, gai_strerror(rc)) : SL_OK;
}

bool sl_tp_resolve_numeric(const char *host, uint16_t port, struct sockaddr_storage *out, socklen_t *len)
{
    const struct addrinfo hints = {
        .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV | AI_NUMERICHOST};
    return *host && !resolve(host, port, &hints, out, len);
}

void sl_tp_address_text(const struct sockaddr_storage *sa, char *text, size_t cap)
{
    char host[INET6_ADDRSTRLEN] = "?";
    if (sa->ss_family == AF_INET6) {
        const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)sa;
        inet_ntop(AF_INET6, &v6->sin6_addr, host, sizeof host);
        snprintf(text, cap, "[%s]:%u", host, ntohs(v6->sin6_port));
    } else {
        const struct sockaddr_in *v4 = (const struct sockaddr_in *)sa;
        inet_ntop(AF_INET, &v4->sin_addr, host, sizeof host);
        snprintf(text, cap, "%s:%u", host, ntohs(v4->sin_port));
    }
}

/* Copies the interface's address into sa, keeping sa's port. */
static void take_address(struct sockaddr_storage *sa, const struct sockaddr *from)
{
    if (sa->ss_family == AF_INET)
        ((struct sockaddr_in *)sa)->sin_addr = ((const struct sockaddr_in *)(const void *)from)->sin_addr;
    else
        ((struct sockaddr_in6 *)sa)->sin6_addr = ((const struct sockaddr_in6 *)(const void *)from)->sin6_addr;
}

static bool is_any(const struct sockaddr_storage *sa)
{
    if (sa->ss_family == AF_INET)
        return ((const struct sockaddr_in *)sa)->sin_addr.s_addr == htonl(INADDR_ANY);
    return IN6_IS_ADDR_UNSPECIFIED(&((const struct sockaddr_in6 *)sa)->sin6_addr);
}

/* True for an address that other hosts can use without a scope id. */
static bool routable(const struct ifaddrs *i, sa_family_t family)
{
    if (!i->ifa_addr || i->ifa_addr->sa_family != family || !(i->ifa_flags & IFF_UP) ||
        (i->ifa_flags & IFF_LOOPBACK))
        return false;
    if (family != AF_INET6)
        return true;
    return !IN6_IS_ADDR_LINKLOCAL(&((const struct sockaddr_in6 *)(const void *)i->ifa_addr)->sin6_addr);
}

void sl_tp_address_concrete(struct sockaddr_storage *sa)
{
    struct ifaddrs *list = NULL;
    if (!is_any(sa))
        return;
    const struct sockaddr *found = NULL;
    if (getifaddrs(&list) == 0)
        for (const struct ifaddrs *i = list; i && !found; i = i->ifa_next)
            if (routable(i, sa->ss_family))
                found = i->ifa_addr;
    if (found)
        take_address(sa, found);
    else if (sa->ss_family == AF_INET)
        ((struct sockaddr_in *)sa)->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    else
        ((struct sockaddr_in6 *)sa)->sin6_addr = in6addr_loopback;
    if (list)
        freeifaddrs(list);
}
