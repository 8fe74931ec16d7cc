/*
 * Names of hosts are looked up without blocking the transport's thread. getaddrinfo() is replaced by a double: names
 * that begin with "slow" take a time that the test sets, "unknown" does not exist, every other name and every number is
 * 127.0.0.1.
 */
#include <arpa/inet.h>
#include <check.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "tests/unit/transport/harness.h"
#include "transport/lookup.h"

static const uint64_t MS = 1000000;
static const variant tcp = {"ucx tcp", "ucx", "tcp", true, false};
static atomic_int slow_ms, slow_calls, slow_running;

/* ---- the double ---- */

static void sleep_ms(int ms)
{
    const struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000L};
    nanosleep(&t, NULL);
}

int getaddrinfo(const char *host, const char *service, const struct addrinfo *hints, struct addrinfo **out)
{
    bool numeric = !host || (*host >= '0' && *host <= '9');
    if (!numeric && hints && hints->ai_flags & AI_NUMERICHOST)
        return EAI_NONAME;
    if (host && !strncmp(host, "slow", 4)) {
        slow_calls++;
        slow_running++;
        sleep_ms(slow_ms);
        slow_running--;
    }
    if (host && !strcmp(host, "unknown"))
        return EAI_NONAME;
    struct {
        struct addrinfo info;
        struct sockaddr_in sa;
    } *made = calloc(1, sizeof *made);
    made->sa = (struct sockaddr_in){.sin_family = AF_INET,
                                    .sin_port = htons((uint16_t)strtoul(service, NULL, 10)),
                                    .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    made->info = (struct addrinfo){.ai_family = AF_INET,
                                   .ai_socktype = SOCK_STREAM,
                                   .ai_addrlen = sizeof made->sa,
                                   .ai_addr = (struct sockaddr *)&made->sa};
    *out = &made->info;
    return 0;
}

void freeaddrinfo(struct addrinfo *info)
{
    free(info);
}

/* ---- a server and a client in this thread ---- */

static client server, caller;
static char port[8];

static void setup(void)
{
    char address[SL_TP_ADDRESS_MAX];
    sl_err err;
    sl_tp_options o = sl_tp_options_default();
    slow_ms = slow_calls = 0;
    client_open_with(&server, &tcp, o);
    ck_assert_int_eq(sl_tp_listen(server.tp, "127.0.0.1", 0, address, sizeof address, &err), SL_OK);
    snprintf(port, sizeof port, "%s", strrchr(address, ':') + 1);
    o.connect_timeout_ms = 400;
    client_open_with(&caller, &tcp, o);
}

static void teardown(void)
{
    client_close(&caller);
    client_close(&server);
    while (slow_running) /* abandoned lookups end by themselves; a leak checker counts them otherwise */
        sleep_ms(5);
    sleep_ms(20);
}

static sl_tp_ep *call(const char *host)
{
    char address[SL_TP_ADDRESS_MAX];
    sl_tp_ep *ep;
    sl_err err;
    snprintf(address, sizeof address, "%s:%s", host, port);
    uint64_t began = sl_now_ns();
    ck_assert_int_eq(sl_tp_connect(caller.tp, address, &ep, &err), SL_OK);
    ck_assert_msg(sl_now_ns() - began < 1000 * MS, "sl_tp_connect(\"%s\") blocked", host);
    return ep;
}

/* Both make progress, and sleep in between, until *counter >= want. */
static void until(const int *counter, int want)
{
    uint64_t end = sl_now_ns() + 20000 * MS;
    while (*counter < want) {
        ck_assert_msg(sl_now_ns() < end, "%d instead of %d after 20 s", *counter, want);
        struct pollfd p[2] = {{.fd = sl_tp_event_fd(server.tp), .events = POLLIN},
                              {.fd = sl_tp_event_fd(caller.tp), .events = POLLIN}};
        if (sl_tp_progress(server.tp) + sl_tp_progress(caller.tp) == 0 && sl_tp_arm(server.tp) == SL_OK &&
            sl_tp_arm(caller.tp) == SL_OK)
            poll(p, 2, 20000); /* the end of a lookup wakes it */
    }
}

/* ---- tests ---- */

/* While a name server is silent, connections to other hosts begin; when it answers, its own begins too. */
START_TEST(a_slow_name_delays_nobody_else)
{
    slow_ms = 3000;
    sl_tp_options o = sl_tp_options_default();
    o.connect_timeout_ms = 15000; /* on a busy machine a connection can take seconds after the lookup */
    client_close(&caller);
    client_open_with(&caller, &tcp, o);
    call("slow.test");
    call("127.0.0.1");
    call("quick.test");
    uint64_t began = sl_now_ns();
    until(&caller.connected, 2);
    ck_assert_msg(sl_now_ns() - began < 2500 * MS, "others waited for the slow name");
    ck_assert_int_eq(caller.connect_status, SL_OK);
    until(&caller.connected, 3);
    ck_assert_int_eq(caller.connect_status, SL_OK);
    ck_assert_int_eq(slow_calls, 1);
}
END_TEST

/* A dead name server: each attempt ends at its deadline, and all attempts together cost one thread. */
START_TEST(a_dead_name_server_costs_one_thread)
{
    slow_ms = 3000;
    for (int i = 1; i <= 3; i++) {
        sl_tp_ep *ep = call("slow.test");
        until(&caller.connected, i);
        ck_assert_int_eq(caller.connect_status, SL_ERR_TIMEOUT);
        sl_tp_close(ep, SL_TP_CLOSE_FORCE);
        until(&caller.closed, i);
    }
    ck_assert_int_eq(slow_calls, 1);
    call("slow.test"); /* the transport is destroyed while its name is looked up */
}
END_TEST

START_TEST(an_unknown_name_is_reported)
{
    call("unknown");
    until(&caller.connected, 1);
    ck_assert_int_eq(caller.connect_status, SL_ERR_INVALID);
    ck_assert_msg(strstr(caller.why, "host \"unknown\"") != NULL, "%s", caller.why);
    sl_tp_ep *ep = call("slow.test"); /* closed before it is known */
    sl_tp_close(ep, SL_TP_CLOSE_FORCE);
    until(&caller.closed, 1);
}
END_TEST

/* The number of threads is bounded. */
START_TEST(many_names)
{
    sl_lookup *all[SL_LOOKUPS_MAX], *more = NULL;
    sl_err err = {0};
    char host[32];
    slow_ms = 2000;
    for (int i = 0; i < SL_LOOKUPS_MAX; i++) {
        snprintf(host, sizeof host, "slow%d.test", i);
        ck_assert_int_eq(sl_lookup_start(host, 1, &all[i], &err), SL_OK);
    }
    ck_assert_int_eq(sl_lookup_start("slow.test", 1, &more, &err), SL_ERR_EXHAUSTED);
    ck_assert_int_eq(sl_lookup_start(host, 1, &more, &err), SL_OK); /* the same name is no other thread */
    sl_lookup_release(more);
    struct pollfd p = {.fd = sl_lookup_fd(all[0]), .events = POLLIN};
    ck_assert_int_eq(poll(&p, 1, 20000), 1);
    struct sockaddr_storage sa;
    socklen_t len;
    sl_status st;
    ck_assert(sl_lookup_done(all[0], &st, &sa, &len, &err) && st == SL_OK);
    for (int i = 0; i < SL_LOOKUPS_MAX; i++)
        sl_lookup_release(all[i]);
}
END_TEST

int main(void)
{
    TCase *t = tcase_create("lookup");
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_test(t, a_slow_name_delays_nobody_else);
    tcase_add_test(t, a_dead_name_server_costs_one_thread);
    tcase_add_test(t, an_unknown_name_is_reported);
    tcase_add_test(t, many_names);
    return harness_run("transport/lookup", t);
}
