/*
 * The Redis tier against real redis-server processes that are killed in the middle of a request, hang, or answer byte by byte; and
 * against three that form a cluster.
 */
#include "tests/unit/kvstore/redis_pages.h"

/* Killed while megabytes are in flight in both directions: every request ends, and what arrived is right. */
START_TEST(killed_in_the_middle)
{
    const char *why;
    redis_rig *victim = redis_rig_start(REDIS_RIG_LRU, &why);
    ck_assert_msg(victim != NULL, "%s", why);
    open_tier(victim, MAX_BYTES);
    int lost = 0;
    for (int round = 0; round < 6; round++) {
        answer reads, writes;
        ck_assert_int_gt(run(SL_TIER_SET, 0, 16), 0);
        memset(memory, 0, (size_t)16 * MAX_BYTES);
        fill(16, 16);
        submit(&reads, SL_TIER_GET, 0, 16);
        submit(&writes, SL_TIER_SET, 16, 16);
        sleep_ms(round);
        redis_rig_stop(victim);
        wait_for(&reads);
        wait_for(&writes);
        for (int i = 0; i < 16; i++) {
            sl_status st = reads.results[i];
            ck_assert(st == SL_ERR_IO || (st == SL_OK && is_right(i)));
            ck_assert(writes.results[i] == SL_OK || writes.results[i] == SL_ERR_IO);
            lost += st != SL_OK;
        }
        redis_rig_again(victim);
        wait_health(SL_TIER_HEALTHY);
    }
    ck_assert_int_gt(lost, 0);
    ck_assert_uint_gt(stats().io_errors, 0);
    sl_tier_close(tier);
    redis_rig_stop(victim);
}
END_TEST

/* A server that hangs costs its time limit, once; requests after that end at once. */
START_TEST(a_server_that_hangs)
{
    const char *why;
    sl_err err = {0};
    redis_rig *frozen = redis_rig_start(REDIS_RIG_LRU, &why);
    ck_assert_msg(frozen != NULL, "%s", why);
    page_bytes = 4096;
    snprintf(prefix, sizeof prefix, "r%d", (int)getpid());
    sl_tier_values r = at_server(frozen);
    ((sl_redis_options *)(void *)r.bytes)->timeout_ms = 300;
    ck_assert_int_eq(open_with(&r, 0, &err), SL_OK);
    ck_assert_int_eq(run(SL_TIER_SET, 0, 4), 4);
    kill(redis_rig_pid(frozen), SIGSTOP);
    uint64_t begin = sl_now_ns();
    ck_assert_int_eq(result_of_get(0), SL_ERR_IO);
    ck_assert_uint_ge(sl_now_ns() - begin, 250000000u);
    ck_assert_int_ne(health().state, SL_TIER_HEALTHY);
    answer a;
    submit(&a, SL_TIER_GET, 0, 4);
    sl_tier_close(tier); /* does not wait for longer than the limit */
    ck_assert_int_eq(a.calls, 1);
    kill(redis_rig_pid(frozen), SIGCONT);
    ck_assert_int_eq(open_with(&r, 0, &err), SL_OK);
    ck_assert_int_eq(run(SL_TIER_GET, 0, 4), 4);
    sl_tier_close(tier);
    redis_rig_stop(frozen);
}
END_TEST

/* Own commands are no sign of life: a server that stopped is noticed although requests keep coming, and with them output. */
START_TEST(a_server_that_hangs_under_load)
{
    const char *why;
    sl_err err = {0};
    redis_rig *frozen = redis_rig_start(REDIS_RIG_LRU, &why);
    ck_assert_msg(frozen != NULL, "%s", why);
    enum { REQUESTS = 100 };
    static answer a[REQUESTS];
    page_bytes = 4096;
    snprintf(prefix, sizeof prefix, "r%d", (int)getpid());
    sl_tier_values r = at_server(frozen);
    ((sl_redis_options *)(void *)r.bytes)->timeout_ms = 500;
    ck_assert_int_eq(open_with(&r, 0, &err), SL_OK);
    kill(redis_rig_pid(frozen), SIGSTOP);
    int sent = 0;
    while (sent < REQUESTS && (sent == 0 || !a[0].calls)) {
        submit(&a[sent++], SL_TIER_EXISTS, 0, 1);
        sleep_ms(50);
        sl_tier_poll(tier);
    }
    ck_assert_msg(a[0].calls == 1, "it was not noticed while %d requests came, one every 50 ms", REQUESTS);
    ck_assert_int_eq(a[0].results[0], SL_ERR_IO);
    for (int i = 0; i < sent; i++)
        wait_for(&a[i]);
    sl_tier_close(tier);
    redis_rig_stop(frozen);
}
END_TEST

/* Reads until this word came. */
static void read_until(int fd, const char *word)
{
    char in[4096];
    size_t n = 0;
    ssize_t got = 1;
    in[0] = '\0';
    while (!strstr(in, word) && got > 0 && n < sizeof in - 1) {
        got = recv(fd, in + n, sizeof in - 1 - n, 0);
        n += got > 0 ? (size_t)got : 0;
        in[n] = '\0';
    }
}

/* A server that never completes the answer to a GET and never stops to send: one byte every few ms. */
static void *trickle(void *listener)
{
    static const char info[] = "$48\r\nused_memory:1\r\nmaxmemory:9\r\nmaxmemory_policy:x\r\n\r\n"
                               "$17\r\ncluster_enabled:0\r\n";
    int fd = accept(*(int *)listener, NULL, NULL);
    read_until(fd, "cluster");
    ssize_t sent = send(fd, info, sizeof info - 1, MSG_NOSIGNAL);
    read_until(fd, "GET");
    sent = sent > 0 ? send(fd, "$4192\r\n", 7, MSG_NOSIGNAL) : 0;
    while (sent > 0) {
        sleep_ms(20);
        sent = send(fd, "x", 1, MSG_NOSIGNAL);
    }
    close(fd);
    return NULL;
}

START_TEST(a_server_that_trickles_does_not_hold_close)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    char address[sizeof at.sun_path + 8];
    sl_err err = {0};
    pthread_t thread;
    int listener = socket(AF_UNIX, SOCK_STREAM, 0);
    snprintf(at.sun_path, sizeof at.sun_path, "build/trickle-%d.sock", (int)getpid());
    snprintf(address, sizeof address, "unix:%s", at.sun_path);
    ck_assert(bind(listener, (struct sockaddr *)&at, sizeof at) == 0 && listen(listener, 1) == 0);
    ck_assert_int_eq(pthread_create(&thread, NULL, trickle, &listener), 0);
    page_bytes = 4096;
    snprintf(prefix, sizeof prefix, "t");
    sl_tier_values r = at_address(address);
    ((sl_redis_options *)(void *)r.bytes)->timeout_ms = 1000;
    ck_assert_msg(open_with(&r, 0, &err) == SL_OK, "%s", err.text);
    answer a;
    submit(&a, SL_TIER_GET, 0, 1);
    sleep_ms(200);
    uint64_t begin = sl_now_ns();
    sl_tier_close(tier); /* the answer would take 4192 times 20 ms */
    ck_assert_uint_lt(sl_now_ns() - begin, 40000000000u);
    ck_assert_int_eq(a.calls, 1);
    ck_assert_int_eq(a.results[0], SL_ERR_IO);
    pthread_join(thread, NULL);
    close(listener);
    unlink(at.sun_path);
}
END_TEST

/* ---- a cluster of three servers ---- */

static int free_port(void)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t n = sizeof at;
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    ck_assert(fd >= 0 && bind(fd, (struct sockaddr *)&at, sizeof at) == 0);
    ck_assert_int_eq(getsockname(fd, (struct sockaddr *)&at, &n), 0);
    close(fd);
    return ntohs(at.sin_port);
}

typedef struct cluster {
    redis_rig *nodes[3];
    int ports[3];
    char files[3][64];
} cluster;

/* The server takes commands and knows the slots of all three. */
static bool is_whole(const redis_rig *r)
{
    const char *info = redis_rig_ask(r, "CLUSTER INFO");
    return strstr(info, "cluster_state:ok") && strstr(info, "cluster_slots_assigned:16384");
}

static void start_cluster(cluster *c)
{
    const char *why;
    char text[400];
    int bus[3];
    for (int i = 0; i < 3; i++) {
        c->ports[i] = free_port();
        bus[i] = free_port();
        snprintf(c->files[i], sizeof c->files[i], "build/nodes-%d-%d.conf", (int)getpid(), i);
        snprintf(text, sizeof text,
                 REDIS_RIG_LRU " --port %d --cluster-port %d --bind 127.0.0.1 --cluster-enabled yes "
                               "--cluster-require-full-coverage no --cluster-config-file %s",
                 c->ports[i], bus[i], c->files[i]);
        c->nodes[i] = redis_rig_start(text, &why);
        ck_assert_msg(c->nodes[i] != NULL, "%s", why);
        snprintf(text, sizeof text, "CLUSTER ADDSLOTSRANGE %d %d", i * 5461,
                 i == 2 ? 16383 : i * 5461 + 5460);
        redis_rig_ask(c->nodes[i], text);
        snprintf(text, sizeof text, "CLUSTER SET-CONFIG-EPOCH %d",
                 i + 1); /* else they are equal, and slots can go back */
        redis_rig_ask(c->nodes[i], text);
    }
    for (int i = 1; i < 3; i++) {
        snprintf(text, sizeof text, "CLUSTER MEET 127.0.0.1 %d %d", c->ports[i], bus[i]);
        redis_rig_ask(c->nodes[0], text);
    }
    for (int i = 0, known = 0; known < 3 && i < 1000; i++, sleep_ms(10)) {
        known = 0;
        for (int k = 0; k < 3; k++)
            known += is_whole(c->nodes[k]);
    }
}

static void stop_cluster(cluster *c)
{
    for (int i = 0; i < 3; i++) {
        redis_rig_stop(c->nodes[i]);
        unlink(c->files[i]);
    }
}

static int node_of(int page)
{
    int slot = sl_redis_slot(name_of(page), strlen(name_of(page))), node = slot / 5461;
    return node > 2 ? 2 : node;
}

/* A slot moves from one server to another: first with ASK, then with MOVED. */
static void move_slot(const cluster *c, int page, int to)
{
    int from = node_of(page), slot = sl_redis_slot(name_of(page), strlen(name_of(page)));
    char id[2][64], text[200];
    snprintf(id[0], sizeof id[0], "%s", redis_rig_ask(c->nodes[from], "CLUSTER MYID"));
    snprintf(id[1], sizeof id[1], "%s", redis_rig_ask(c->nodes[to], "CLUSTER MYID"));
    snprintf(text, sizeof text, "CLUSTER SETSLOT %d IMPORTING %s", slot, id[0]);
    redis_rig_ask(c->nodes[to], text);
    snprintf(text, sizeof text, "CLUSTER SETSLOT %d MIGRATING %s", slot, id[1]);
    redis_rig_ask(c->nodes[from], text);
    ck_assert_int_eq(run(SL_TIER_REMOVE, page, 1), 1);
    ck_assert_int_eq(run(SL_TIER_EXISTS, page, 1), 0); /* ASK, and there is nothing */
    ck_assert_int_eq(run(SL_TIER_SET, page, 1), 1);    /* stored by the server that imports */
    ck_assert_int_eq(run(SL_TIER_GET, page, 1), 1);
    for (int i = 0; i < 3; i++) {
        snprintf(text, sizeof text, "CLUSTER SETSLOT %d NODE %s", slot, id[1]);
        redis_rig_ask(c->nodes[i], text);
    }
    ck_assert_msg(run(SL_TIER_GET, page, 1) == 1, "after MOVED: %s", health().reason);
}

START_TEST(a_cluster_of_servers)
{
    cluster c;
    sl_err err = {0};
    char address[32];
    start_cluster(&c);
    page_bytes = 4096;
    snprintf(prefix, sizeof prefix, "r%d", (int)getpid());
    snprintf(address, sizeof address, "localhost:%d", c.ports[0]);
    sl_tier_values r = at_address(address);
    set(&r, "nodes", "127.0.0.1");
    ck_assert_msg(open_with(&r, 0, &err) == SL_OK, "%s", err.text);
    ck_assert_int_eq(run(SL_TIER_SET, 0, MAX_PAGES), MAX_PAGES);
    ck_assert_int_eq(run(SL_TIER_EXISTS, 0, MAX_PAGES), MAX_PAGES);
    ck_assert_int_eq(run(SL_TIER_GET, 0, MAX_PAGES), MAX_PAGES);
    int on[3] = {0};
    for (int p = 0; p < MAX_PAGES; p++)
        on[node_of(p)]++;
    for (int i = 0; i < 3; i++)
        ck_assert_int_eq((int)strtol(redis_rig_ask(c.nodes[i], "DBSIZE"), NULL, 10), on[i]);
    int moved = 0;
    while (node_of(moved) != 1)
        moved++;
    move_slot(&c, moved, 0);
    redis_rig_stop(c.nodes[2]);
    ck_assert_int_eq(run(SL_TIER_GET, 0, MAX_PAGES), MAX_PAGES - on[2]); /* the others are not harmed */
    wait_health(SL_TIER_DEGRADED);
    ck_assert_int_eq(run(SL_TIER_REMOVE, 0, MAX_PAGES), MAX_PAGES - on[2]);
    sl_tier_close(tier);
    set(&r, "database", "3");
    ck_assert_int_eq(open_with(&r, 0, &err), SL_ERR_DENIED);
    ck_assert_ptr_nonnull(strstr(err.text, "kvstore.redis.database"));
    stop_cluster(&c);
}
END_TEST

int main(void)
{
    const char *why;
    server = redis_rig_start(REDIS_RIG_LRU, &why);
    if (!server) {
        printf("SKIP redis: %s\n", why);
        return 77;
    }
    Suite *s = suite_create("redis_stops");
    TCase *t = tcase_create("redis_stops");
    tcase_set_timeout(t, 120);
    tcase_add_test(t, killed_in_the_middle);
    tcase_add_test(t, a_server_that_hangs);
    tcase_add_test(t, a_server_that_hangs_under_load);
    tcase_add_test(t, a_server_that_trickles_does_not_hold_close);
    tcase_add_test(t, a_cluster_of_servers);
    suite_add_tcase(s, t);
    int code = run_suite(s);
    redis_rig_stop(server);
    return code;
}
