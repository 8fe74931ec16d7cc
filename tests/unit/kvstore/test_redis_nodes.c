/*
 * What a Redis server can make a worker connect to: a false server names other ones, in every way that the protocol has, and a
 * listener at the place that it names sees no connection. With kvstore.redis.nodes it sees one. Cost: less than a second.
 */
#include <arpa/inet.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "kvstore/redis_format.h"
#include "kvstore/redis_options.h"
#include "kvstore/tier.h"
#include "tests/unit/kvstore/test_kvstore.h"

enum { CONNS = 16, PAGE = 4096, KEYS = 32 };

/* ---- a listener, and the false server that uses one ---- */

static int listen_at(const char *host, int *port)
{
    struct sockaddr_storage at = {0};
    struct sockaddr_in *v4 = (struct sockaddr_in *)&at;
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)&at;
    bool is6 = strchr(host, ':') != NULL;
    socklen_t n = is6 ? sizeof *v6 : sizeof *v4;
    at.ss_family = is6 ? AF_INET6 : AF_INET;
    ck_assert_int_eq(inet_pton(at.ss_family, host, is6 ? (void *)&v6->sin6_addr : (void *)&v4->sin_addr), 1);
    int fd = socket(at.ss_family, SOCK_STREAM, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&at, n) != 0)
        return -1;
    ck_assert_int_eq(listen(fd, 64), 0);
    ck_assert_int_eq(getsockname(fd, (struct sockaddr *)&at, &n), 0);
    *port = ntohs(is6 ? v6->sin6_port : v4->sin_port);
    return fd;
}

typedef struct fake {
    int listener, port, conns[CONNS], n;
    char keys[200],
        nodes[1024];     /* its answers: to commands of keys, and to CLUSTER NODES ("": it is no cluster) */
    atomic_int answered; /* commands of keys */
    atomic_bool stop;
    pthread_t thread;
} fake;

static fake server;
static int elsewhere, elsewhere_port; /* the listener that no client may be sent to */

static void say(int fd, const char *text)
{
    char out[2048];
    int n = snprintf(out, sizeof out, "$%zu\r\n%s\r\n", strlen(text), text);
    ck_assert_int_eq(send(fd, out, (size_t)n, MSG_NOSIGNAL), n);
}

/* Commands are short and answered as they come: the words that tell them apart are found in the text. */
static void answer(fake *f, int fd, const char *in)
{
    static const char ok[] = "+OK\r\n";
    for (const char *p = in; (p = strchr(p, '*')); p++) {
        const char *word = strchr(p, '$'), *end = strchr(p + 1, '*');
        char command[256];
        if (!word)
            return;
        snprintf(command, sizeof command, "%.*s", end ? (int)(end - word) : 200, word);
        if (strstr(command, "memory"))
            say(fd, "used_memory:1\r\nmaxmemory:99999999\r\nmaxmemory_policy:allkeys-lru\r\n");
        else if (strstr(command, "INFO"))
            say(fd, f->nodes[0] ? "cluster_enabled:1\r\n" : "cluster_enabled:0\r\n");
        else if (strstr(command, "CLUSTER"))
            say(fd, f->nodes);
        else if (strstr(command, "DBSIZE"))
            send(fd, ":0\r\n", 4, MSG_NOSIGNAL);
        else if (strstr(command, "ASKING") || strstr(command, "AUTH"))
            send(fd, ok, sizeof ok - 1, MSG_NOSIGNAL);
        else {
            f->answered++;
            send(fd, f->keys, strlen(f->keys), MSG_NOSIGNAL);
        }
    }
}

static void *serve(void *arg)
{
    fake *f = arg;
    while (!f->stop) {
        struct pollfd p[CONNS + 1] = {{.fd = f->listener, .events = POLLIN}};
        for (int i = 0; i < f->n; i++)
            p[i + 1] = (struct pollfd){.fd = f->conns[i], .events = POLLIN};
        int n = f->n;
        if (poll(p, (nfds_t)n + 1, 20) <= 0)
            continue;
        if (p[0].revents && f->n < CONNS)
            f->conns[f->n++] = accept(f->listener, NULL, NULL);
        for (int i = 0; i < n; i++) {
            char in[1 << 16];
            ssize_t got = p[i + 1].revents ? recv(f->conns[i], in, sizeof in - 1, 0) : -1;
            if (got > 0) {
                in[got] = '\0';
                answer(f, f->conns[i], in);
            } else if (got == 0) {
                close(f->conns[i]);
                f->conns[i] = -1; /* poll() leaves it out */
            }
        }
    }
    return NULL;
}

/* keys may contain one %d, which is the server's own port. */
static void begin(const char *keys, const char *nodes)
{
    server = (fake){0};
    server.listener = listen_at("127.0.0.1", &server.port);
    ck_assert_int_ge(server.listener, 0);
    snprintf(server.keys, sizeof server.keys, keys, server.port);
    snprintf(server.nodes, sizeof server.nodes, "%s", nodes);
    ck_assert_int_eq(pthread_create(&server.thread, NULL, serve, &server), 0);
}

static void end(void)
{
    server.stop = true;
    pthread_join(server.thread, NULL);
    for (int i = 0; i < server.n; i++)
        if (server.conns[i] >= 0)
            close(server.conns[i]);
    close(server.listener);
}

/* Whether somebody has connected to the listener; forgets it. */
static bool was_called(void)
{
    struct pollfd p = {.fd = elsewhere, .events = POLLIN};
    bool called = false;
    while (poll(&p, 1, 0) == 1) {
        close(accept(elsewhere, NULL, NULL));
        called = true;
    }
    return called;
}

/* ---- the tier ---- */

static sl_tier *tier;

static sl_status open_tier(const char *nodes, bool required, sl_err *err)
{
    const sl_tier_ops *ops = sl_tier_find("redis");
    sl_tier_values v;
    char address[64];
    snprintf(address, sizeof address, "127.0.0.1:%d", server.port);
    sl_options_default(ops->options, v.bytes);
    ck_assert_int_eq(sl_options_set(ops->options, v.bytes, "address", address, err), SL_OK);
    ck_assert_int_eq(sl_options_set(ops->options, v.bytes, "nodes", nodes, err), SL_OK);
    sl_tier_opts o = {.page_bytes = PAGE,
                      .required = required,
                      .options = &v,
                      .prefix = "nodes",
                      .fingerprint = {1, 2},
                      .format = {3, 4}};
    return sl_tier_open(ops, &o, &tier, err);
}

static void on_done(sl_tier_req *req, sl_status st)
{
    *(sl_status *)req->cookie = st;
}

/* Looks for n keys; how many were errors of the device. */
static int look_for(int n)
{
    sl_key keys[KEYS];
    sl_status results[KEYS], done = SL_INPROGRESS;
    uint64_t seed = 9;
    for (int i = 0; i < n; i++)
        keys[i] = (sl_key){rnd(&seed), rnd(&seed)};
    sl_tier_req req = {
        .op = SL_TIER_EXISTS, .n = n, .keys = keys, .results = results, .done = on_done, .cookie = &done};
    ck_assert_int_eq(sl_tier_submit(tier, &req), SL_OK);
    while (done == SL_INPROGRESS) {
        struct pollfd p = {.fd = sl_tier_fd(tier), .events = POLLIN};
        ck_assert_int_eq(poll(&p, 1, 60000), 1);
        sl_tier_poll(tier);
    }
    int failed = 0;
    for (int i = 0; i < n; i++)
        failed += results[i] == SL_ERR_IO;
    return failed;
}

static const char *reason(void)
{
    static sl_tier_health h;
    sl_tier_get_health(tier, &h);
    return h.reason;
}

/* ---- redirections ---- */

/* %d: the port of the listener. */
static const char *const redirections[] = {
    "-MOVED 1 127.0.0.1:%d\r\n",
    "-ASK 1 127.0.0.1:%d\r\n",
    "-MOVED 1 localhost:%d\r\n",          /* a name */
    "-MOVED 1 :%d\r\n",                   /* the host of the server that answers */
    "-MOVED 1 [::ffff:127.0.0.1]:%d\r\n", /* IPv4 in IPv6 */
    "-MOVED 1 2130706433:%d\r\n",         /* 127.0.0.1 for resolvers */
    "-MOVED 1 0:%d\r\n",
    "-ASK 1 127.1:%d\r\n",
};

START_TEST(no_redirection_leads_elsewhere)
{
    char text[100];
    snprintf(text, sizeof text, redirections[_i], elsewhere_port);
    begin(text, "");
    sl_err err = {0};
    ck_assert_msg(open_tier("", true, &err) == SL_OK, "%s", err.text);
    ck_assert_int_eq(look_for(KEYS), KEYS);
    ck_assert_ptr_nonnull(strstr(reason(), "kvstore.redis.nodes"));
    snprintf(text, sizeof text, ":%d,", elsewhere_port);
    ck_assert_ptr_nonnull(strstr(reason(), text));
    sl_tier_close(tier);
    ck_assert(!was_called());
    ck_assert_int_eq(server.answered, KEYS); /* each was asked for once */

    /* What the configuration names is used; the text is then that of the answer. */
    if (_i < 2) {
        ck_assert_msg(open_tier("10.0.0.0/8, 127.0.0.0/24", true, &err) == SL_OK, "%s", err.text);
        struct pollfd p = {.fd = elsewhere, .events = POLLIN};
        sl_status done = SL_INPROGRESS, result;
        sl_key key = {5, 6};
        sl_tier_req req = {
            .op = SL_TIER_EXISTS, .n = 1, .keys = &key, .results = &result, .done = on_done, .cookie = &done};
        ck_assert_int_eq(sl_tier_submit(tier, &req), SL_OK);
        ck_assert_int_eq(poll(&p, 1, 60000), 1);
        ck_assert(was_called());
        sl_tier_close(tier);
    }
    end();
}
END_TEST

START_TEST(ipv6_and_addresses_that_are_none)
{
    int port6, keep = elsewhere, port = elsewhere_port;
    sl_err err = {0};
    char text[100];
    int fd = listen_at("::1", &port6);
    if (fd >= 0)
        elsewhere = fd, elsewhere_port = port6;
    snprintf(text, sizeof text, "-MOVED 1 [::1]:%d\r\n", elsewhere_port);
    begin(text, "");
    ck_assert_msg(open_tier("10.0.0.0/8", true, &err) == SL_OK, "%s", err.text);
    ck_assert_int_eq(look_for(4), 4);
    for (size_t i = 0; i < 4; i++) { /* no redirection at all: an error of the server */
        static const char *const wrong[] = {"-MOVED 1 127.0.0.1:0\r\n", "-MOVED 1 127.0.0.1\r\n",
                                            "-MOVED x y\r\n", "-MOVED 1 unix:/tmp/x\r\n"};
        sl_tier_close(tier);
        end();
        begin(wrong[i], "");
        ck_assert_msg(open_tier("0.0.0.0/0, ::/0", true, &err) == SL_OK, "%s", err.text);
        ck_assert_int_eq(look_for(4), 4);
        ck_assert_int_eq(server.answered, 4);
    }
    sl_tier_close(tier);
    ck_assert(!was_called());
    end();
    if (fd >= 0)
        close(fd);
    elsewhere = keep, elsewhere_port = port;
}
END_TEST

/* A server that sends every key to itself: each is asked for a bounded number of times, on one connection. */
START_TEST(a_storm_of_redirections_ends)
{
    sl_err err = {0};
    begin(_i ? "-ASK 7 127.0.0.1:%d\r\n" : "-MOVED 7 127.0.0.1:%d\r\n", "");
    ck_assert_msg(open_tier("", true, &err) == SL_OK, "%s", err.text);
    ck_assert_int_eq(look_for(KEYS), KEYS);
    ck_assert_int_le(server.answered, KEYS * 6);
    sl_tier_close(tier);
    end();
    ck_assert_int_eq(server.n, 1);
}
END_TEST

/* ---- maps of slots ---- */

static const char *const maps[] = {
    "a 127.0.0.1:%d@1 master - 0 0 1 connected 0-16383\n",
    "a localhost:%d@1,localhost master - 0 0 1 connected 0-16383\n",
    "a :%d@1 master - 0 0 1 connected 0-100 200\n",
    "a [::ffff:127.0.0.1]:%d@1 master - 0 0 1 connected 7\n",
};

START_TEST(no_map_leads_elsewhere)
{
    char nodes[300];
    sl_err err = {0};
    int n = snprintf(nodes, sizeof nodes, "m 127.0.0.1:1@2 myself,master - 0 0 1 connected 0-8000\n");
    snprintf(nodes + n, sizeof nodes - (size_t)n, maps[_i], elsewhere_port);
    begin(":0\r\n", nodes);
    ck_assert_int_eq(open_tier("", true, &err), SL_ERR_DENIED); /* told at the start */
    ck_assert_ptr_nonnull(strstr(err.text, "kvstore.redis.nodes"));
    snprintf(nodes, sizeof nodes, ":%d, which", elsewhere_port);
    ck_assert_msg(strstr(err.text, nodes) != NULL, "%s", err.text);
    ck_assert_msg(open_tier("", false, &err) == SL_OK, "%s", err.text);
    ck_assert_int_eq(look_for(KEYS), 0); /* the server at `address` answers for all slots */
    ck_assert_ptr_nonnull(strstr(reason(), "kvstore.redis.nodes"));
    sl_tier_close(tier);
    ck_assert(!was_called());
    end();
}
END_TEST

/* ---- rules ---- */

START_TEST(rules)
{
    static const struct {
        const char *rule, *host;
        int port;
        bool allowed;
    } cases[] = {
        {"10.0.0.1", "10.0.0.1", 6379, true},
        {"10.0.0.1", "10.0.0.10", 6379, false},
        {"10.0.0.1:6379", "10.0.0.1", 6380, false},
        {"10.0.0.1:6379", "::ffff:10.0.0.1", 6379, true},
        {"10.0.0.0/8", "10.255.0.1", 1, true},
        {"10.0.0.0/8", "11.0.0.1", 1, false},
        {"10.0.0.0/31", "10.0.0.1", 1, true},
        {"10.0.0.0/31", "10.0.0.2", 1, false},
        {"0.0.0.0/0", "::1", 1, false}, /* all of IPv4 */
        {"0.0.0.0/0", "8.8.8.8", 1, true},
        {"::/0", "::1", 1, true},
        {"::1", "0:0:0:0:0:0:0:1", 1, true},
        {"[::1]:5", "::1", 5, true},
        {"[::1]:5", "::1", 6, false},
        {"fd00::/8", "fd12::1", 1, true},
        {"fd00::/8", "fe80::1", 1, false},
        {"fd00::/8", "fd12::1%lo", 1, false}, /* a name */
        {"Redis-1.internal:7000", "redis-1.INTERNAL", 7000, true},
        {"redis-1.internal", "redis-1.internal.evil", 7000, false},
        {"10.0.0.0/8", "10.1", 1, false}, /* spellings that only resolvers take */
        {"10.0.0.0/8", "012.0.0.1", 1, false},
        {"10.0.0.0/8", "redis-1.internal", 1, false},
        {"10.0.0.1", "10.0.0.1", 0, false}, /* a Unix socket */
    };
    static const char *const wrong[] = {"",        ":6379",        "[::1]",      "a:b",    "a:0",
                                        "a:70000", "10.0.0.0/33",  "::/129",     "name/8", "10.0.0.0/",
                                        "/8",      "10.0.0.0/8:1", "10.0.0.0/-1"};
    sl_redis_rule r;
    for (size_t i = 0; i < SL_COUNT(cases); i++) {
        sl_redis_address at = {.port = cases[i].port};
        snprintf(at.host, sizeof at.host, "%s", cases[i].host);
        ck_assert_msg(sl_redis_rule_parse(cases[i].rule, &r, NULL) == SL_OK, "%s", cases[i].rule);
        ck_assert_msg(sl_redis_rule_allows(&r, &at) == cases[i].allowed, "%s and %s:%d", cases[i].rule,
                      cases[i].host, cases[i].port);
    }
    for (size_t i = 0; i < SL_COUNT(wrong); i++) {
        sl_err err = {0};
        ck_assert_msg(sl_redis_rule_parse(wrong[i], &r, &err) == SL_ERR_INVALID, "%s", wrong[i]);
        ck_assert_ptr_nonnull(strstr(err.text, "NETWORK/BITS"));
    }
}
END_TEST

static void begin_listener(void)
{
    elsewhere = listen_at("127.0.0.1", &elsewhere_port);
}

int main(void)
{
    Suite *s = suite_create("redis_nodes");
    TCase *t = tcase_create("redis_nodes");
    tcase_add_unchecked_fixture(t, begin_listener, NULL);
    tcase_set_timeout(t, 60);
    tcase_add_loop_test(t, no_redirection_leads_elsewhere, 0, SL_COUNT(redirections));
    tcase_add_test(t, ipv6_and_addresses_that_are_none);
    tcase_add_loop_test(t, a_storm_of_redirections_ends, 0, 2);
    tcase_add_loop_test(t, no_map_leads_elsewhere, 0, SL_COUNT(maps));
    tcase_add_test(t, rules);
    suite_add_tcase(s, t);
    return run_suite(s);
}
