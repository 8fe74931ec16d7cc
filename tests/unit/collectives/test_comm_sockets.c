/*
 * The doors of a group over sockets (collectives/cpu/mesh.h): who connects and is no rank, who answers and is no founder,
 * and what comes over a connection and is no round. The collectives themselves are tested by comm_conformance. Ranks are
 * threads here.
 */
#include <arpa/inet.h>
#include <check.h>
#include <netinet/in.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "collectives/cpu/mesh.h"

enum { STRANGERS = SL_COMM_GUESTS + 20, QUICK_MS = 400, PATIENCE_MS = 60000 };

typedef struct rank {
    sl_backend *be;
    sl_comm_opts o;
    sl_comm *c;
    pthread_t thread;
    sl_status st; /* of sl_comm_form() */
    sl_err err;
} rank;

static rank r[2];
static sl_comm_invite invite;

static sl_comm_sockets *sockets_of(const rank *k)
{
    return (sl_comm_sockets *)k->c;
}

static void open_rank(int i, uint32_t deadline_ms)
{
    r[i] = (rank){.o = {.rank = i, .ranks = 2, .deadline_ms = deadline_ms, .sockets_at = "127.0.0.1"}};
    ck_assert_int_eq(sl_backend_create("cpu", &(sl_backend_opts){.threads = 1}, &r[i].be, &r[i].err), SL_OK);
}

static void found(uint32_t deadline_ms)
{
    open_rank(0, deadline_ms);
    ck_assert_msg(sl_comm_found(r[0].be, &r[0].o, &invite, &r[0].c, &r[0].err) == SL_OK, "%s", r[0].err.text);
}

static void *form(void *arg)
{
    rank *k = arg;
    k->st = sl_comm_form(k->c, &k->err);
    return NULL;
}

static void join(uint32_t deadline_ms)
{
    open_rank(1, deadline_ms);
    r[1].st = sl_comm_join(r[1].be, &r[1].o, &invite, &r[1].c, &r[1].err);
}

/* What rank 0 says may be known in sl_comm_join() already. */
static void join_and_form(uint32_t deadline_ms)
{
    join(deadline_ms);
    if (r[1].st == SL_OK)
        form(&r[1]);
}

static void form_both(void)
{
    found(PATIENCE_MS);
    pthread_create(&r[0].thread, NULL, form, &r[0]);
    join_and_form(PATIENCE_MS);
    pthread_join(r[0].thread, NULL);
    ck_assert_msg(r[0].st == SL_OK && r[1].st == SL_OK, "%s %s", r[0].err.text, r[1].err.text);
}

static void close_ranks(void)
{
    for (int i = 0; i < 2; i++) {
        sl_comm_destroy(r[i].c);
        if (r[i].be)
            sl_backend_destroy(r[i].be);
        r[i] = (rank){0};
    }
}

/* The field of the invitation in which collectives/cpu/mesh.c keeps the secret; the port is 24 bytes after its beginning. */
static uint8_t *secret_in_invite(void)
{
    uint8_t *p = memmem(invite.bytes, sizeof invite.bytes, &sockets_of(&r[0])->secret, sizeof(sl_key));
    ck_assert_ptr_nonnull(p);
    return p;
}

static int knock(uint32_t port)
{
    struct sockaddr_in a = {
        .sin_family = AF_INET, .sin_port = htons((uint16_t)port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(connect(fd, (struct sockaddr *)&a, sizeof a), 0);
    return fd;
}

/* The other side has closed it, with or without an answer. */
static void is_closed(int fd)
{
    char byte;
    ck_assert_int_le(recv(fd, &byte, 1, 0), 0);
    close(fd);
}

static void says(uint32_t port, const void *bytes, size_t n)
{
    int fd = knock(port);
    ck_assert_int_eq(send(fd, bytes, n, MSG_NOSIGNAL), (ssize_t)n);
    is_closed(fd);
}

/* ---- who comes ---- */

/* What a rank would send, but for what `change` says. */
static sl_comm_hello hello_of(int change)
{
    const sl_comm_sockets *c = sockets_of(&r[0]);
    sl_comm_hello h = {
        .magic = "slmesh1", .kind = SL_COMM_HELLO, .from = 1, .to = 0, .port = 9, .instance = 7};
    sl_key secret = c->secret;

    secret.hi += change == 0;
    h.from += change == 1; /* the group has two ranks */
    h.from -= change == 2;
    h.to += change == 3;
    h.kind = change == 4 ? SL_COMM_WELCOME : change == 5 ? 77 : SL_COMM_HELLO;
    h.wire = change == 6 ? SL_COMM_WIRES : SL_COMM_DATA;
    h.magic[0] = change == 7 ? 'x' : 's';
    h.proof = sl_hash_chain(secret, &h, offsetof(sl_comm_hello, proof));
    h.instance += change == 8; /* after the proof was made */
    return h;
}

START_TEST(strangers_are_turned_away)
{
    static const char http[] = "GET / HTTP/1.1\r\nHost: sluice\r\n\r\n";
    static uint8_t noise[4096];
    static int silent[STRANGERS];
    uint32_t port;

    found(PATIENCE_MS);
    port = sockets_of(&r[0])->mesh->port;
    pthread_create(&r[0].thread, NULL, form, &r[0]);
    for (size_t i = 0; i < sizeof noise; i++)
        noise[i] = (uint8_t)(i * 37);
    says(port, noise, sizeof noise);
    for (int change = 0; change < 9; change++) {
        sl_comm_hello h = hello_of(change);
        says(port, &h, sizeof h);
    }
    silent[0] = knock(port);
    ck_assert_int_gt(send(silent[0], http, sizeof http, MSG_NOSIGNAL),
                     0); /* less than a hello: it is waited for */
    for (int i = 1; i < STRANGERS; i++)
        silent[i] = knock(port);
    is_closed(silent[0]); /* there were too many */
    join_and_form(PATIENCE_MS);
    pthread_join(r[0].thread, NULL);
    ck_assert_msg(r[0].st == SL_OK && r[1].st == SL_OK, "%s %s", r[0].err.text, r[1].err.text);
    for (int i = 1; i < STRANGERS; i++)
        is_closed(silent[i]); /* no process listens any more */
    close_ranks();
}
END_TEST

/* The hello of the test above without a change is right, and who comes later is no rank. */
START_TEST(a_rank_that_is_taken)
{
    sl_comm_hello h, answer = {.kind = 77};
    int fd;

    found(QUICK_MS);
    h = hello_of(-1);
    fd = knock(sockets_of(&r[0])->mesh->port);
    pthread_create(&r[0].thread, NULL, form, &r[0]);
    ck_assert_int_eq(send(fd, &h, sizeof h, MSG_NOSIGNAL), (ssize_t)sizeof h);
    ck_assert_int_eq(recv(fd, &answer, sizeof answer, MSG_WAITALL), (ssize_t)sizeof answer);
    ck_assert_int_eq(answer.kind, SL_COMM_WELCOME);
    join_and_form(PATIENCE_MS);
    pthread_join(r[0].thread, NULL);
    ck_assert_int_eq(r[1].st, SL_ERR_REFUSED);
    ck_assert_msg(strstr(r[1].err.text, "rank 1 is taken by another process") != NULL, "%s", r[1].err.text);
    ck_assert_int_eq(r[0].st, SL_ERR_TIMEOUT);
    close(fd);
    close_ranks();
}
END_TEST

START_TEST(another_secret)
{
    found(QUICK_MS);
    secret_in_invite()[3] ^= 1;
    pthread_create(&r[0].thread, NULL, form, &r[0]);
    join_and_form(PATIENCE_MS);
    pthread_join(r[0].thread, NULL);
    ck_assert_int_eq(r[1].st, SL_ERR_NOT_FOUND);
    ck_assert_msg(strstr(r[1].err.text, "rank 0 at 127.0.0.1:") &&
                      strstr(r[1].err.text, "closed the connection"),
                  "%s", r[1].err.text);
    ck_assert_int_eq(r[0].st, SL_ERR_TIMEOUT);
    ck_assert_msg(strstr(r[0].err.text, "rank 1 has not joined within 400 ms") != NULL, "%s", r[0].err.text);
    close_ranks();
}
END_TEST

/* ---- who answers ---- */

START_TEST(another_program_at_the_address)
{
    static const char *const want[3] = {"it closed the connection", "another program answers there",
                                        "did not answer within 400 ms"};
    static uint8_t noise[sizeof(sl_comm_hello)];
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof a;
    uint32_t port;
    char name[64];
    int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), fd[2] = {-1, -1};

    ck_assert_int_eq(bind(listener, (struct sockaddr *)&a, sizeof a), 0);
    ck_assert_int_eq(listen(listener, 4), 0);
    ck_assert_int_eq(getsockname(listener, (struct sockaddr *)&a, &len), 0);
    port = ntohs(a.sin_port);
    found(PATIENCE_MS);
    memcpy(secret_in_invite() + 24, &port, sizeof port);
    join(QUICK_MS);
    ck_assert_msg(r[1].st == SL_OK, "%s", r[1].err.text);
    for (int i = 0; i < 2 && _i < 2; i++) {
        fd[i] = accept(listener, NULL, NULL);
        if (_i == 1)
            ck_assert_int_eq(send(fd[i], noise, sizeof noise, MSG_NOSIGNAL), (ssize_t)sizeof noise);
        else
            close(fd[i]);
    }
    form(&r[1]);
    ck_assert_int_eq(r[1].st, _i == 2 ? SL_ERR_TIMEOUT : SL_ERR_NOT_FOUND);
    snprintf(name, sizeof name, "rank 0 at 127.0.0.1:%u", port);
    ck_assert_msg(strstr(r[1].err.text, want[_i]) && strstr(r[1].err.text, name), "%s", r[1].err.text);
    close(listener);
    if (_i == 1)
        close(fd[0]), close(fd[1]);
    close_ranks();
}
END_TEST

START_TEST(addresses_of_no_host)
{
    open_rank(0, QUICK_MS);
    r[0].o.sockets_at = _i == 0 ? "no address" : "192.0.2.1";
    ck_assert_int_eq(sl_comm_found(r[0].be, &r[0].o, &invite, &r[0].c, &r[0].err),
                     _i == 0 ? SL_ERR_INVALID : SL_ERR_IO);
    ck_assert_msg(strstr(r[0].err.text, r[0].o.sockets_at) != NULL, "%s", r[0].err.text);
    close_ranks();
}
END_TEST

/* ---- what comes ---- */

/* Rank 1 does not call a collective, but does this to its connections with rank 0. */
static void misbehave(int how, sl_comm_sockets *c)
{
    static uint8_t noise[2048];
    sl_comm_frame f = {.round = 1, .at = c->cpu.half_bytes, .bytes = 1};

    memset(noise, 0x5a, sizeof noise);
    if (how == 0)
        ck_assert_int_gt(send(c->link[0].fd[SL_COMM_DATA], noise, sizeof noise, MSG_NOSIGNAL), 0);
    else if (how == 1) /* one byte after the end of the half */
        ck_assert_int_gt(send(c->link[0].fd[SL_COMM_DATA], &f, sizeof f, MSG_NOSIGNAL), 0);
    else if (how == 2)
        ck_assert_int_gt(send(c->link[0].fd[SL_COMM_NOTICES], noise, sizeof noise, MSG_NOSIGNAL), 0);
    else /* its data end, but its process has not */
        ck_assert_int_eq(shutdown(c->link[0].fd[SL_COMM_DATA], SHUT_WR), 0);
}

START_TEST(no_round)
{
    static const char *const want[4] = {"sent what is no round", "sent what is no round",
                                        "sent what is no notice", "did not arrive within 400 ms"};
    sl_err err = {{0}};
    char name[64];
    sl_status st;

    form_both();
    r[0].c->opts.deadline_ms = _i == 3 ? QUICK_MS : PATIENCE_MS;
    misbehave(_i, sockets_of(&r[1]));
    st = sl_comm_barrier(r[0].c, &err);
    ck_assert_int_eq(st, _i == 3 ? SL_ERR_TIMEOUT : SL_ERR_PEER);
    snprintf(name, sizeof name, "rank 1 at 127.0.0.1:%u", sockets_of(&r[0])->link[1].port);
    ck_assert_msg(strstr(err.text, want[_i]) && strstr(err.text, name), "%s", err.text);
    ck_assert_int_eq(sl_comm_lost(r[0].c), 1);
    /* Rank 1 learns it without a collective, and its next one fails. */
    while (sl_comm_state(r[1].c, &err) == SL_OK)
        usleep(100);
    ck_assert_int_eq(sl_comm_barrier(r[1].c, &err), st);
    close_ranks();
}
END_TEST

/* ---- place ---- */

START_TEST(places)
{
    uint64_t here = sl_comm_place();
    int status;
    pid_t pid;

    ck_assert_uint_ne(here, 0);
    pid = fork();
    if (pid == 0) {
        int differs = sl_comm_place() != here;
        /* A network of its own is a host of its own. */
        if (!differs && unshare(CLONE_NEWNET) == 0)
            differs = sl_comm_place() == here ? 2 : 0;
        _exit(differs);
    }
    waitpid(pid, &status, 0);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "status %d", status);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("comm_sockets");
    TCase *t = tcase_create("comm_sockets");
    tcase_set_timeout(t, 120);
    tcase_add_test(t, strangers_are_turned_away);
    tcase_add_test(t, a_rank_that_is_taken);
    tcase_add_test(t, another_secret);
    tcase_add_loop_test(t, another_program_at_the_address, 0, 3);
    tcase_add_loop_test(t, addresses_of_no_host, 0, 2);
    tcase_add_loop_test(t, no_round, 0, 4);
    tcase_add_test(t, places);
    suite_add_tcase(s, t);
    SRunner *sr = srunner_create(s);
    srunner_run_all(sr, CK_NORMAL);
    int failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed ? 1 : 0;
}
