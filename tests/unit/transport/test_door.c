/*
 * A process to which strangers send arbitrary bytes. What must hold: no process dies, the number of descriptors and the
 * memory return to their values before, UCX's own ports cannot be reached, and a peer that connects concurrently or
 * afterwards is served.
 */
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/log.h"
#include "tests/unit/run_suite.h"
#include "tests/unit/transport/door_rig.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SANITIZED = 1 };
#else
enum { SANITIZED = 0 };
#endif

static int descriptors(void)
{
    int n = 0;
    DIR *d = opendir("/proc/self/fd");
    ck_assert_ptr_nonnull(d);
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

static void throw_at(client *server, uint16_t port, const void *bytes, size_t n)
{
    int fd = door_dial(port, 1000);
    ck_assert_msg(fd >= 0, "the door is shut: %s", strerror(errno));
    ssize_t sent = send(fd, bytes, n, MSG_NOSIGNAL);
    (void)sent; /* the other side may have closed already */
    door_run(server, 1);
    close(fd);
}

START_TEST(garbage_at_the_door)
{
    client s;
    char address[SL_TP_ADDRESS_MAX];
    uint8_t bytes[8192], knock[UX_DOOR_MAX];
    door_open(&s, address);
    uint16_t port = door_port(address);
    door_serves(&s, address); /* allocates what a first connection needs */
    int before = descriptors();
    for (size_t n = 0; n <= sizeof bytes; n = n < 40 ? n + 1 : n * 2) {
        for (size_t i = 0; i < n; i++)
            bytes[i] = (uint8_t)sl_random_u64();
        throw_at(&s, port, bytes, n);
    }
    static const char *const texts[] = {"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
                                        "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", "\x16\x03\x01\x02", "SLUICEDR",
                                        "SLTP"};
    for (size_t i = 0; i < SL_COUNT(texts); i++)
        throw_at(&s, port, texts[i], strlen(texts[i]));
    size_t n = door_knock_sample(knock);
    for (size_t cut = 0; cut < n; cut++)
        throw_at(&s, port, knock, cut);
    for (size_t bit = 0; bit < 8 * n; bit++) {
        door_knock_sample(knock);
        knock[bit / 8] ^= (uint8_t)(1u << bit % 8);
        throw_at(&s, port, knock, n);
    }
    door_run(&s, DOOR_TIMEOUT_MS + 100);
    ck_assert_uint_ge(door_refused(&s), 8 * n);
    door_serves(&s, address);
    door_run(&s, 2 * DOOR_TIMEOUT_MS + 200);
    ck_assert_int_le(descriptors(), before);
    client_close(&s);
}
END_TEST

/* Callers that send half a greeting, or nothing: they are kept until the deadline, at most UX_MAX_STRANGERS, and do
 * not delay other callers. */
START_TEST(silent_strangers)
{
    enum { MANY = 600 };
    client s;
    char address[SL_TP_ADDRESS_MAX];
    uint8_t knock[UX_DOOR_MAX], byte;
    int fd[MANY];
    struct rlimit files = {4096, 4096};
    setrlimit(RLIMIT_NOFILE, &files);
    door_open(&s, address);
    size_t n = door_knock_sample(knock);
    int before = descriptors();
    for (int i = 0; i < MANY; i++) {
        fd[i] = door_dial(door_port(address), 1000);
        ck_assert_int_ge(fd[i], 0);
        if (i % 2)
            ck_assert_int_eq(send(fd[i], knock, n / 2, 0), (ssize_t)(n / 2));
        door_run(&s, i % 16 == 0);
    }
    door_run(&s, 20);
    ck_assert_int_le(descriptors(), before + MANY + 256);
    door_serves(&s, address);
    door_run(&s, DOOR_TIMEOUT_MS + 200);
    for (int i = 0; i < MANY; i++) {
        ssize_t got = recv(fd[i], &byte, 1, MSG_DONTWAIT);
        ck_assert_msg(got == 0 || (got < 0 && errno != EAGAIN), "stranger %d is still in", i);
        close(fd[i]);
    }
    door_run(&s, 2 * DOOR_TIMEOUT_MS);
    ck_assert_int_le(descriptors(), before);
    ck_assert_uint_ge(door_refused(&s), MANY);
    client_close(&s);
}
END_TEST

/* With few descriptors strangers get a quarter of them, so that UCX, which ends a process that has none left, has the others. */
START_TEST(strangers_leave_descriptors)
{
    enum { MANY = 150, FILES = 400 };
    client s;
    char address[SL_TP_ADDRESS_MAX];
    int fd[MANY];
    struct rlimit files = {FILES, FILES};
    door_open(&s, address);
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &files), 0);
    int before = descriptors();
    for (int i = 0; i < MANY; i++) {
        fd[i] = door_dial(door_port(address), 1000);
        ck_assert_int_ge(fd[i], 0);
        door_run(&s, i % 16 == 0);
    }
    door_run(&s, 20);
    ck_assert_int_le(descriptors(), before + MANY + FILES / 4);
    ck_assert_int_ge(descriptors(), before + MANY + FILES / 8);
    door_serves(&s, address);
    for (int i = 0; i < MANY; i++)
        close(fd[i]);
    client_close(&s);
}
END_TEST

static size_t resident_kib(void)
{
    size_t pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    ck_assert_ptr_nonnull(f);
    ck_assert_int_eq(fscanf(f, "%*u %zu", &pages), 1);
    fclose(f);
    return pages * (size_t)sysconf(_SC_PAGESIZE) / 1024;
}

START_TEST(thousands_of_strangers)
{
    client s;
    char address[SL_TP_ADDRESS_MAX];
    uint8_t knock[UX_DOOR_MAX];
    door_open(&s, address);
    size_t n = door_knock_sample(knock), kib = 0;
    uint16_t port = door_port(address);
    for (int i = 0; i < 8000; i++) {
        int fd = door_dial(port, 1000);
        ck_assert_int_ge(fd, 0);
        if (i % 3)
            send(fd, i % 3 == 1 ? (const void *)"nonsense" : knock, i % 3 == 1 ? 8 : n - 1, MSG_NOSIGNAL);
        const struct linger reset = {.l_onoff = i % 2};
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
        close(fd);
        if (i % 32 == 0)
            door_run(&s, 0);
        if (i == 1000)
            kib = resident_kib();
    }
    door_run(&s, DOOR_TIMEOUT_MS + 100);
    if (!SANITIZED) /* sanitizers keep freed memory */
        ck_assert_msg(resident_kib() < kib + 512, "grew from %zu to %zu KiB", kib, resident_kib());
    ck_assert_uint_ge(door_refused(&s), 7900);
    door_serves(&s, address);
    client_close(&s);
}
END_TEST

/* UCX's own ports: only callers that the door has admitted reach them. */
START_TEST(gates_protect_ucx)
{
    client s;
    char address[SL_TP_ADDRESS_MAX];
    const ux_gate_ports other = door_listening();
    door_open(&s, address);
    const ux_gate_ports all = door_listening();
    ck_assert_uint_ge(all.n, other.n + 3); /* the door, UCX's listener, data of loopback and interfaces */
    for (int round = 0; round < 2; round++) {
        for (size_t i = 0; i < all.n; i++) {
            bool ucx = door_port_is_ucx(all.port[i], &other, address);
            int fd = ucx ? door_dial(all.port[i], 50) : -1;
            ck_assert_msg(fd < 0, "round %d: a port of ucx can be reached", round);
        }
        door_serves(&s, address); /* opens and closes the gates */
        door_run(&s, 2 * DOOR_TIMEOUT_MS + 200);
    }
    client_close(&s);
}
END_TEST

/* While the data gates are open, UCX refuses connections that are not from UCX. */
START_TEST(garbage_at_open_data_gates)
{
    client s;
    char address[SL_TP_ADDRESS_MAX];
    const ux_gate_ports other = door_listening();
    uint8_t bytes[4096];
    int reached = 0;
    door_open(&s, address);
    const ux_gate_ports all = door_listening();
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)sl_random_u64();
    for (size_t n = 0; n <= sizeof bytes; n = n ? n * 2 : 1) {
        door_serves(&s, address);
        for (size_t i = 0; i < all.n; i++) {
            bool ucx = door_port_is_ucx(all.port[i], &other, address);
            int fd = ucx ? door_dial(all.port[i], 20) : -1;
            if (fd < 0)
                continue; /* UCX's listener, or another interface's */
            reached++;
            send(fd, bytes, n, MSG_NOSIGNAL);
            door_run(&s, 1);
            close(fd);
        }
    }
    ck_assert_int_gt(reached, 5);
    door_serves(&s, address);
    client_close(&s);
}
END_TEST

/* A door that answers bytes without meaning, and one that is silent: `connected` gives the reason. */
START_TEST(nonsense_behind_an_address)
{
    static const char *const says[] = {"HTTP/1.1 400 Bad Request\r\n\r\n",
                                       "SLUICEDRxxxxxxxxxxxxxxxxxxxxxxxxx", "", NULL};
    for (int i = 0; i < 4; i++) {
        client c;
        sl_tp_ep *ep;
        sl_err err;
        char address[64];
        struct sockaddr_in sa = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        socklen_t len = sizeof sa;
        int lfd = socket(AF_INET, SOCK_STREAM, 0);
        ck_assert_int_eq(bind(lfd, (struct sockaddr *)&sa, len), 0);
        ck_assert_int_eq(listen(lfd, 1), 0);
        ck_assert_int_eq(getsockname(lfd, (struct sockaddr *)&sa, &len), 0);
        snprintf(address, sizeof address, "127.0.0.1:%u", ntohs(sa.sin_port));
        sl_tp_options o = sl_tp_options_default();
        o.connect_timeout_ms = DOOR_TIMEOUT_MS;
        client_open_with(&c, &door_variant, o);
        ck_assert_int_eq(sl_tp_connect(c.tp, address, &ep, &err), SL_OK);
        int fd = accept(lfd, NULL, NULL);
        if (says[i]) {
            ck_assert_int_eq(send(fd, says[i], strlen(says[i]), 0), (ssize_t)strlen(says[i]));
            shutdown(fd, SHUT_WR);
        }
        client_wait(&c, &c.connected, 1, 3000);
        ck_assert_int_eq(c.connect_status, says[i] ? SL_ERR_REFUSED : SL_ERR_TIMEOUT);
        ck_assert_msg(strstr(c.why, says[i] ? (*says[i] ? "no door of a sluice process" : "without an answer")
                                            : "no answer in time"),
                      "%s", c.why);
        sl_tp_close(ep, SL_TP_CLOSE_FORCE);
        client_wait(&c, &c.closed, 1, 2000);
        close(fd);
        close(lfd);
        client_close(&c);
    }
}
END_TEST

/* A process without free descriptors keeps running, and accepts callers again as soon as it has some. */
START_TEST(out_of_descriptors)
{
    enum { STRANGERS = 40 };
    client s;
    char address[SL_TP_ADDRESS_MAX];
    int fd[STRANGERS], taken[1024], n = 0;
    door_open(&s, address);
    door_serves(&s, address);
    for (int i = 0; i < STRANGERS; i++) { /* connected, they wait in the backlog */
        fd[i] = door_dial(door_port(address), 1000);
        ck_assert_int_ge(fd[i], 0);
    }
    struct rlimit files;
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &files), 0);
    files.rlim_cur = 256;
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &files), 0);
    while (n < 1024 && (taken[n] = dup(0)) >= 0)
        n++;
    door_run(&s, 150);
    close(taken[--n]);
    close(taken[--n]);
    door_run(&s, 300);
    while (n)
        close(taken[--n]);
    for (int i = 0; i < STRANGERS; i++)
        close(fd[i]);
    door_run(&s, DOOR_TIMEOUT_MS + 200);
    door_serves(&s, address);
    client_close(&s);
}
END_TEST

int main(void)
{
    sl_log_init(SL_LOG_WARN, false, "test");
    Suite *s = suite_create("transport_door");
    TCase *t = tcase_create("live");
    tcase_set_timeout(t, 120);
    tcase_add_test(t, garbage_at_the_door);
    tcase_add_test(t, silent_strangers);
    tcase_add_test(t, strangers_leave_descriptors);
    tcase_add_test(t, thousands_of_strangers);
    if (door_filters_taken()) {
        tcase_add_test(t, gates_protect_ucx);
        tcase_add_test(t, garbage_at_open_data_gates);
    }
    tcase_add_test(t, nonsense_behind_an_address);
    tcase_add_test(t, out_of_descriptors);
    suite_add_tcase(s, t);
    return run_suite(s);
}
