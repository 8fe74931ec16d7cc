/*
 * One connection of the Redis tier against a listener of the test, which does what a real server cannot be made to do; and the
 * places of servers in a cluster whose addresses change. The tier as a whole is tested in test_redis.c.
 */
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "kvstore/redis_impl.h"
#include "tests/unit/kvstore/test_kvstore.h"

static sl_redis_conn *conn;
static int listener, peer;
static int answers;

static void on_answer(sl_redis_conn *c, const sl_redis_answer *a)
{
    (void)c, (void)a;
    answers++;
}

static void open_conn(void)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    snprintf(at.sun_path, sizeof at.sun_path, "build/conn-%d.sock", (int)getpid());
    listener = socket(AF_UNIX, SOCK_STREAM, 0);
    ck_assert(listener >= 0 && bind(listener, (struct sockaddr *)&at, sizeof at) == 0 &&
              listen(listener, 1) == 0);
    conn = calloc(1, sizeof *conn);
    ck_assert_ptr_nonnull(conn);
    snprintf(conn->at.host, sizeof conn->at.host, "%s", at.sun_path);
    conn->answer = on_answer;
    conn->answer_max = 1 << 20;
    ck_assert_int_eq(sl_redis_conn_connect(conn), SL_OK);
    peer = accept(listener, NULL, NULL);
    ck_assert_int_ge(peer, 0);
    ck_assert_int_eq(sl_redis_conn_connected(conn), SL_OK);
    int small = 4096; /* so that output waits in this connection, and not in the system */
    ck_assert_int_eq(setsockopt(sl_redis_conn_fd(conn), SOL_SOCKET, SO_SNDBUF, &small, sizeof small), 0);
    conn->phase = SL_REDIS_READY;
    unlink(at.sun_path);
}

static void close_conn(void)
{
    sl_redis_conn_free(conn);
    close(peer);
    close(listener);
}

static void command(const char *key)
{
    ck_assert_int_eq(sl_redis_conn_command(conn, 2, (const char *[]){"STRLEN", key}), SL_OK);
}

static void write_some(void)
{
    ck_assert_int_eq(sl_redis_conn_write(conn), SL_OK);
}

/* Reads the bytes that have arrived at the peer, at most n; continues the checksum. */
static size_t receive(size_t n, uint32_t *crc)
{
    static uint8_t in[1 << 16];
    ssize_t got = recv(peer, in, n < sizeof in ? n : sizeof in, MSG_DONTWAIT);
    if (got > 0)
        *crc = sl_crc32c(*crc, in, (size_t)got);
    return got > 0 ? (size_t)got : 0;
}

static uint8_t page[512];

/* Queues the i-th command, and continues the checksum of what has to arrive. */
static void queue(int i, bool pages, uint32_t *crc)
{
    char name[32], text[128];
    int n = snprintf(name, sizeof name, "key-%08d", i);
    if (!pages) {
        command(name);
        n = snprintf(text, sizeof text, "*2\r\n$6\r\nSTRLEN\r\n$%d\r\n%s\r\n", n, name);
        *crc = sl_crc32c(*crc, text, (size_t)n);
        return;
    }
    struct iovec span = {page, sizeof page};
    ck_assert_int_eq(sl_redis_conn_store(conn, name, 0, (const uint8_t *)"head", 4, &span, 1), SL_OK);
    n = snprintf(text, sizeof text, "*3\r\n$3\r\nSET\r\n$%d\r\n%s\r\n$%zu\r\nhead", n, name, sizeof page + 4);
    *crc = sl_crc32c(*crc, text, (size_t)n);
    *crc = sl_crc32c(*crc, page, sizeof page);
    *crc = sl_crc32c(*crc, "\r\n", 2);
}

/* There is always something to write, for as long as the connection lives: its buffers hold what waits, not what was sent. */
START_TEST(output_that_never_becomes_empty_is_bounded)
{
    bool pages = _i == 0;
    uint32_t queued = 0, received = 0;
    int empty = 0;
    size_t text = 0, pieces = 0;                       /* of the buffers, at most */
    size_t most = pages ? 64 * sizeof page : 16 << 10; /* bytes that wait, in this connection */
    open_conn();
    memset(page, 0x5a, sizeof page);
    for (int i = 0; i < 5000; i++) {
        queue(i, pages, &queued);
        write_some();
        while (conn->queued - conn->written > most) {
            receive(3000, &received);
            write_some();
        }
        empty += i >= 2500 && !sl_redis_conn_has_output(conn);
        text = conn->text_cap > text ? conn->text_cap : text;
        pieces = conn->pieces_cap > pieces ? conn->pieces_cap : pieces;
    }
    ck_assert_int_eq(empty, 0);
    ck_assert_uint_le(text, 64 << 10);
    ck_assert_uint_le(pieces, 1024);
    uint64_t left = 1;
    while (sl_redis_conn_has_output(conn) || left) {
        left = receive(1 << 16, &received);
        write_some();
    }
    ck_assert_uint_eq(received, queued);
    close_conn();
}
END_TEST

static void wait_a_little(void)
{
    uint64_t now = sl_now_ns();
    while (sl_now_ns() == now)
        nanosleep(&(struct timespec){0, 1000000}, NULL);
}

/* The time limit of an answer is measured from what the server did last, whatever this side does meanwhile. */
START_TEST(only_the_server_makes_progress)
{
    uint32_t crc = 0;
    open_conn();
    command("a");
    write_some();
    uint64_t first = conn->progress_ns;
    wait_a_little();
    command("b");
    write_some();
    ck_assert_uint_eq(conn->progress_ns, first);

    ck_assert_int_eq(send(peer, ":1\r\n", 4, 0), 4);
    ck_assert_int_eq(sl_redis_conn_read(conn), SL_OK);
    uint64_t second = conn->progress_ns;
    ck_assert_uint_gt(second, first);
    wait_a_little();
    command("c"); /* b is not answered */
    ck_assert_uint_eq(conn->progress_ns, second);

    ck_assert_int_eq(send(peer, ":1\r\n:1\r\n", 8, 0), 8);
    ck_assert_int_eq(sl_redis_conn_read(conn), SL_OK);
    ck_assert_int_eq(answers, 3);
    second = conn->progress_ns;
    wait_a_little();
    command("d"); /* the time that passed before it does not count */
    ck_assert_uint_gt(conn->progress_ns, second);

    while (!conn->is_full) {
        command("e");
        write_some();
    }
    uint64_t third = conn->progress_ns;
    wait_a_little();
    write_some(); /* it takes nothing */
    ck_assert_uint_eq(conn->progress_ns, third);
    while (receive(1 << 16, &crc))
        ;
    write_some(); /* it has read */
    ck_assert_uint_gt(conn->progress_ns, third);
    close_conn();
}
END_TEST

/* A cluster whose three servers get new addresses again and again: always those three have the slots. */
START_TEST(addresses_of_servers_change)
{
    sl_redis_tier *t = calloc(1, sizeof *t);
    ck_assert_ptr_nonnull(t);
    memset(t->slots, -1, sizeof t->slots);
    t->clustered = true;
    t->r.nodes.n = 2;
    ck_assert_int_eq(sl_redis_rule_parse("10.0.0.0/16", &t->rules[0], NULL), SL_OK);
    ck_assert_int_eq(sl_redis_rule_parse("one-more", &t->rules[1], NULL), SL_OK);
    const sl_redis_address configured = {"configured", 1};
    ck_assert_int_eq(sl_redis_server_add(t, &configured), 0);
    for (int round = 0; round < 200; round++) {
        char text[512];
        int n = 0;
        for (int k = 0; k < 3; k++)
            n += snprintf(text + n, sizeof text - (size_t)n,
                          "id%d 10.0.%d.%d:7000@17000 master - 0 0 1 connected %d-%d\n", k, round, k,
                          k * 5461, k == 2 ? 16383 : k * 5461 + 5460);
        sl_redis_learn_nodes(t, 0, text, (size_t)n);
        for (int k = 0; k < 3; k++) {
            char host[32];
            snprintf(host, sizeof host, "10.0.%d.%d", round, k);
            int first = sl_redis_server_of(t, k * 5461), other = 0;
            const sl_redis_server *s = &t->servers[first];
            ck_assert_str_eq(s->conn->at.host, host);
            ck_assert(s->wanted && s->conn->owner == s);
            for (int slot = k * 5461; slot < (k == 2 ? 16384 : (k + 1) * 5461); slot++)
                other += sl_redis_server_of(t, slot) != first;
            ck_assert_int_eq(other, 0);
        }
    }
    ck_assert_str_eq(t->servers[0].conn->at.host, "configured");

    /* Nothing that is in use is given away: every place has a connection, and one more server finds none. */
    for (int32_t i = 0; i < t->n_servers; i++)
        t->servers[i].conn->phase = SL_REDIS_READY;
    const sl_redis_address more = {"one-more", 2};
    ck_assert_int_eq(sl_redis_server_add(t, &more), -1);
    t->servers[77].conn->phase = SL_REDIS_DOWN;
    t->servers[77].wanted = false;
    t->slots[5] = 77;
    ck_assert_int_eq(sl_redis_server_add(t, &more), 77);
    ck_assert_int_eq(sl_redis_server_of(t, 5), 0); /* the old server's slots are not those of the new one */
    for (int32_t i = 0; i < t->n_servers; i++)
        sl_redis_conn_free(t->servers[i].conn);
    free(t);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("redis_conn");
    TCase *t = tcase_create("redis_conn");
    tcase_set_timeout(t, 60);
    tcase_add_loop_test(t, output_that_never_becomes_empty_is_bounded, 0, 2);
    tcase_add_test(t, only_the_server_makes_progress);
    tcase_add_test(t, addresses_of_servers_change);
    suite_add_tcase(s, t);
    return run_suite(s);
}
