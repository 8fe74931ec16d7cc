/*
 * A router without workers for the fuzzers of its ports: one front on a free port of 127.0.0.1, a tokenizer of the mock cluster,
 * and limits of time that are short, because a body may stay away.
 */
#ifndef SL_TESTS_FUZZ_FRONT_H
#define SL_TESTS_FUZZ_FRONT_H

#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.h"
#include "bench/mock/mock.h"
#include "router/core/core_impl.h"
#include "router/front.h"

/* Indices of the fronts of a router. */
enum { FUZZ_HTTP, FUZZ_GRPC };
enum { FUZZ_QUIET_TURNS = 200000, FUZZ_QUIET_US = 50, FUZZ_ORDERLY = 16 };

/* Opens *router with the front `which` alone; returns that front. Aborts when it cannot. */
static inline sl_front *fuzz_front_open(int which, sl_router **router)
{
    static sl_tokenizer *tok;
    sl_router_opts o;
    sl_err err = {""};
    sl_log_init(SL_LOG_ERROR, false, "fuzz");
    sl_router_opts_default(&o);
    o.link.transport = "loopback";
    o.front.host = "127.0.0.1";
    o.front.http_port = which == FUZZ_HTTP ? 0 : -1;
    o.front.grpc_port = which == FUZZ_GRPC ? 0 : -1;
    o.model.served_name = "m";
    o.model.max_context = 4096;
    o.front.handshake_timeout_ms = o.front.receive_timeout_ms = o.front.idle_timeout_ms = 100;
    if (sl_mock_tokenizer(&tok, NULL))
        abort();
    o.model.tokenizer = tok;
    if (sl_router_create_opts(&o, router, &err)) {
        fprintf(stderr, "%s\n", err.text);
        abort();
    }
    return (*router)->fronts[which];
}

/* A socket that is connected to the front. Aborts when there is none. */
static inline int fuzz_front_connect(const sl_front *front)
{
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)front->c->port(front))};
    inet_pton(AF_INET, "127.0.0.1", &a.sin_addr);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    while (fd >= 0 && connect(fd, (struct sockaddr *)&a, sizeof a)) {
        if (errno ==
            EINTR) { /* a signal of the fuzzer's own clock; the kernel still makes that connection, which is not used */
            close(fd);
            fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
            continue;
        }
        close(fd);
        fd = -1;
    }
    if (fd < 0) {
        perror("connection to the front");
        abort();
    }
    return fd;
}

/* Closes the client's side: after most inputs with a reset, which leaves no port waiting, so that fuzzers that run for hours do not use up
 * the ports of the machine; after one in FUZZ_ORDERLY, by its length, in order. */
static inline void fuzz_front_close(int fd, size_t n)
{
    const struct linger now = {.l_onoff = 1};
    if (n % FUZZ_ORDERLY)
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
    close(fd);
}

/* Turns the loop until quiet(), for ten seconds at least; false when it does not come. */
static inline bool fuzz_front_wait(sl_router *router, bool (*quiet)(void))
{
    for (int i = 0; i < FUZZ_QUIET_TURNS && !quiet(); i++) {
        uv_run(&router->loop, UV_RUN_NOWAIT);
        if (!quiet())
            usleep(FUZZ_QUIET_US);
    }
    return quiet();
}

#endif
