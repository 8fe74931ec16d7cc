/*
 * The door: its messages, and a process to which strangers send arbitrary bytes. What must hold: no process
 * dies, the number of descriptors and the memory return to their values before, UCX's own ports cannot be
 * reached, and a peer that connects concurrently or afterwards is served.
 */
#include <linux/filter.h>
#include <arpa/inet.h>
#include <check.h>
#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/log.h"
#include "tests/unit/transport/harness.h"
#include "transport/ucx/door_msg.h"
#include "transport/ucx/gate.h"

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SANITIZED = 1 };
#else
enum { SANITIZED = 0 };
#endif

enum { TIMEOUT_MS = 700 }; /* connect_timeout_ms of the servers here */

/* ---- messages ---- */

static size_t sample(uint8_t *buf)
{
    const ux_door_msg m = {.version = UX_DOOR_VERSION, .kind = UX_DOOR_KNOCK, .port = 40000, .text = "hello"};
    return ux_door_write(&m, buf);
}

START_TEST(message_round_trip)
{
    uint8_t buf[UX_DOOR_MAX];
    ux_door_msg m = {.version = UX_DOOR_VERSION, .kind = UX_DOOR_ANSWER, .status = 3, .port = 65535}, got;
    const char *why = NULL;
    memset(m.text, 'x', sizeof m.text - 1);
    memset(m.nonce, 1, sizeof m.nonce);
    memset(m.proof, 2, sizeof m.proof);
    size_t n = ux_door_write(&m, buf);
    ck_assert_uint_eq(n, UX_DOOR_MAX);
    ck_assert_int_eq(ux_door_parse(buf, n, &got, &why), UX_DOOR_WHOLE);
    ck_assert_uint_eq(got.kind, m.kind);
    ck_assert_uint_eq(got.status, 3);
    ck_assert_uint_eq(got.port, 65535);
    ck_assert_mem_eq(got.nonce, m.nonce, sizeof m.nonce);
    ck_assert_mem_eq(got.proof, m.proof, sizeof m.proof);
    ck_assert_str_eq(got.text, m.text);
}
END_TEST

START_TEST(message_damaged)
{
    uint8_t buf[UX_DOOR_MAX + 1] = {0}, bad[UX_DOOR_MAX + 1];
    ux_door_msg got;
    const char *why;
    size_t n = sample(buf);
    for (size_t cut = 0; cut < n; cut++)
        ck_assert_int_eq(ux_door_parse(buf, cut, &got, &why), UX_DOOR_MORE);
    ck_assert_int_eq(ux_door_parse(buf, n + 1, &got, &why), UX_DOOR_FOREIGN);
    ck_assert_str_eq(why, "bytes after the greeting");
    for (size_t bit = 0; bit < 8 * n;
         bit++) { /* after an error that enlarges a length it waits for more bytes */
        memcpy(bad, buf, n);
        bad[bit / 8] ^= (uint8_t)(1u << bit % 8);
        ck_assert_int_ne(ux_door_parse(bad, n, &got, &why), UX_DOOR_WHOLE);
    }
    ck_assert_int_eq(ux_door_parse((const uint8_t *)"G", 1, &got, &why), UX_DOOR_FOREIGN);
    ck_assert_str_eq(why, "not the greeting of a sluice process");
    memcpy(bad, buf, n);
    memset(bad + 12, 0xff, 4);
    ck_assert_int_eq(ux_door_parse(bad, n, &got, &why), UX_DOOR_FOREIGN);
    ck_assert_str_eq(why, "a length out of bounds");
}
END_TEST

START_TEST(message_of_another_version)
{
    uint8_t buf[UX_DOOR_MAX];
    ux_door_msg m = {.version = UX_DOOR_VERSION + 1, .kind = UX_DOOR_KNOCK}, got;
    const char *why;
    size_t n = ux_door_write(&m, buf);
    ck_assert_int_eq(ux_door_parse(buf, n, &got, &why), UX_DOOR_WHOLE);
    ck_assert_uint_eq(got.version, UX_DOOR_VERSION + 1);
}
END_TEST

/* ---- a server and its strangers ---- */

static const char *server_secret; /* of server_open */

static const variant server_variant = {"ucx tcp", "ucx", "tcp", true};

static uint16_t port_of(const char *address)
{
    char host[64];
    uint16_t port;
    sl_err err;
    ck_assert_int_eq(sl_tp_address_parse(address, host, sizeof host, &port, &err), SL_OK);
    return port;
}

/* A socket connected to a port of this host, or -1 with errno; waits at most ms. */
static int dial(uint16_t port, int ms)
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

static void server_open(client *c, char *address)
{
    sl_tp_options o = sl_tp_options_default();
    sl_err err;
    o.connect_timeout_ms = TIMEOUT_MS;
    o.secret = server_secret;
    client_open_with(c, &server_variant, o);
    ck_assert_int_eq(sl_tp_listen(c->tp, "127.0.0.1", 0, address, SL_TP_ADDRESS_MAX, &err), SL_OK);
}

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

/* Runs progress for ms, and sleeps in between; at least once. */
static void run(client *c, int ms)
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

static uint64_t refused(const client *c)
{
    sl_tp_stats s;
    sl_tp_get_stats(c->tp, &s);
    return s.refused_connects;
}

/* Another instance, with the server's secret, connects to the server, is admitted, and disconnects. */
static void serves(client *server, const char *address)
{
    client c;
    sl_tp_ep *ep;
    sl_err err;
    int accepted = server->accepted;
    sl_tp_options o = sl_tp_options_default();
    o.secret = server_secret;
    client_open_with(&c, &server_variant, o);
    ck_assert_int_eq(sl_tp_connect(c.tp, address, &ep, &err), SL_OK);
    uint64_t until = sl_now_ns() + 5000000000u;
    while ((!c.connected || server->accepted == accepted) && sl_now_ns() < until) {
        run(&c, 1);
        run(server, 1);
    }
    ck_assert_msg(c.connected == 1 && c.connect_status == SL_OK, "a peer was not let in: %s", c.why);
    sl_tp_close(server->ep, SL_TP_CLOSE_FORCE);
    int closed = server->closed;
    sl_tp_close(ep, SL_TP_CLOSE_FORCE);
    while ((!c.closed || server->closed == closed) && sl_now_ns() < until) {
        run(&c, 1);
        run(server, 1);
    }
    ck_assert_int_eq(c.closed, 1);
    client_close(&c);
}

static void throw_at(client *server, uint16_t port, const void *bytes, size_t n)
{
    int fd = dial(port, 1000);
    ck_assert_msg(fd >= 0, "the door is shut: %s", strerror(errno));
    ssize_t sent = send(fd, bytes, n, MSG_NOSIGNAL);
    (void)sent; /* the other side may have closed already */
    run(server, 1);
    close(fd);
}

/* Some kernels take filters only from a process with CAP_NET_ADMIN; the transport then goes on without gates.
 */
static bool filters_taken(void)
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

/* Every listening TCP port of this process, those of UCX included. */
static ux_gate_ports listening(void)
{
    ux_gate_ports p;
    ux_gate_snapshot(&p);
    return p;
}

START_TEST(garbage_at_the_door)
{
    client s;
    char address[SL_TP_ADDRESS_MAX];
    uint8_t bytes[8192], knock[UX_DOOR_MAX];
    server_open(&s, address);
    uint16_t port = port_of(address);
    serves(&s, address); /* allocates what a first connection needs */
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
    size_t n = sample(knock);
    for (size_t cut = 0; cut < n; cut++)
        throw_at(&s, port, knock, cut);
    for (size_t bit = 0; bit < 8 * n; bit++) {
        sample(knock);
        knock[bit / 8] ^= (uint8_t)(1u << bit % 8);
        throw_at(&s, port, knock, n);
    }
    run(&s, TIMEOUT_MS + 100);
    ck_assert_uint_ge(refused(&s), 8 * n);
    serves(&s, address);
    run(&s, 2 * TIMEOUT_MS + 200);
    ck_assert_int_le(descriptors(), before);
    client_close(&s);
}
END_TEST

/* A caller that does not know the secret is refused with the reason, and no port of UCX opens for it. */
START_TEST(secret_at_the_door)
{
    static const char *const mine[] = {"the secret of this cluster", NULL};
    static const struct {
        const char *secret, *why;
    } callers[] = {{"the secret of another one", "another secret"},
                   {NULL, "the door asks for the cluster's secret"},
                   {"the secret of this cluste", "another secret"}};
    client s;
    char address[SL_TP_ADDRESS_MAX];
    server_secret = mine[0];
    const ux_gate_ports other = listening();
    server_open(&s, address);
    const ux_gate_ports all = listening();
    for (size_t i = 0; i < SL_COUNT(callers); i++) {
        client c;
        sl_tp_ep *ep;
        sl_err err;
        sl_tp_options o = sl_tp_options_default();
        o.secret = callers[i].secret;
        client_open_with(&c, &server_variant, o);
        ck_assert_int_eq(sl_tp_connect(c.tp, address, &ep, &err), SL_OK);
        for (int k = 0; k < 2000 && !c.connected; k++) {
            run(&c, 1);
            run(&s, 1);
        }
        ck_assert_int_eq(c.connect_status, SL_ERR_REFUSED);
        ck_assert_msg(strstr(c.why, callers[i].why) != NULL, "%s", c.why);
        for (size_t p = 0; filters_taken() && p < all.n; p++) {
            bool known = all.port[p] == port_of(address);
            for (size_t k = 0; k < other.n; k++)
                known |= other.port[k] == all.port[p];
            ck_assert_msg(known || dial(all.port[p], 50) < 0, "a port of ucx has opened");
        }
        client_close(&c);
    }
    ck_assert_int_eq(s.accepted, 0);
    ck_assert_uint_ge(refused(&s), SL_COUNT(callers));
    serves(&s, address);
    client_close(&s);
    server_secret = NULL;
}
END_TEST

/* A door without the secret, and one with another, get no connection from a caller that has one. */
START_TEST(door_without_the_secret)
{
    for (int i = 0; i < 2; i++) {
        client s, c;
        char address[SL_TP_ADDRESS_MAX];
        sl_tp_ep *ep;
        sl_err err;
        sl_tp_options o = sl_tp_options_default();
        server_secret = i ? "another secret, of 32 characters" : NULL;
        server_open(&s, address);
        o.secret = "the secret of this cluster";
        client_open_with(&c, &server_variant, o);
        ck_assert_int_eq(sl_tp_connect(c.tp, address, &ep, &err), SL_OK);
        for (int k = 0; k < 2000 && !c.connected; k++) {
            run(&c, 1);
            run(&s, 1);
        }
        ck_assert_int_eq(c.connect_status, SL_ERR_REFUSED);
        ck_assert_msg(strstr(c.why, "cluster.secret_file") != NULL, "%s", c.why);
        client_close(&c);
        client_close(&s);
    }
    server_secret = NULL;
}
END_TEST

/* Sends a message of the greeting and returns what the door of s answers. */
static ux_door_msg say(client *s, int fd, const ux_door_msg *m)
{
    uint8_t bytes[UX_DOOR_MAX];
    ux_door_msg got;
    const char *why = "";
    size_t n = ux_door_write(m, bytes);
    ck_assert_int_eq(send(fd, bytes, n, 0), (ssize_t)n);
    ssize_t len = -1;
    for (int i = 0; i < 5000 && len <= 0; i++) {
        run(s, 1);
        len = recv(fd, bytes, sizeof bytes, MSG_DONTWAIT);
    }
    ck_assert_int_gt(len, 0);
    ck_assert_msg(ux_door_parse(bytes, (size_t)len, &got, &why) == UX_DOOR_WHOLE, "%s", why);
    return got;
}

static uint8_t *put_loopback(uint8_t *p, uint16_t port)
{
    static const uint8_t host[16] = {[10] = 0xff, 0xff, 127, 0, 0, 1};
    memcpy(p, host, sizeof host);
    p[16] = (uint8_t)(port >> 8);
    p[17] = (uint8_t)port;
    return p + 18;
}

/* The proof of a caller that knows the secret, as docs/protocol.md says it. */
static void prove(const ux_door_msg *knock, const ux_door_msg *challenge, uint16_t door,
                  uint8_t out[SL_PROOF_BYTES])
{
    uint8_t about[2 * SL_PROOF_BYTES + 2 * 18], *p = about;
    memcpy(p, knock->nonce, SL_PROOF_BYTES);
    memcpy(p + SL_PROOF_BYTES, challenge->nonce, SL_PROOF_BYTES);
    p = put_loopback(p + 2 * SL_PROOF_BYTES, knock->port);
    put_loopback(p, door);
    sl_proof_make(server_secret, "sluice door, caller", about, sizeof about, out);
}

/* A greeting that was recorded: its proof was right, and the same bytes on another connection are refused. */
START_TEST(replayed_proof_is_refused)
{
    client s;
    char address[SL_TP_ADDRESS_MAX];
    ux_door_msg knock = {.version = UX_DOOR_VERSION, .kind = UX_DOOR_KNOCK, .port = 40000},
                proof = {.version = UX_DOOR_VERSION, .kind = UX_DOOR_PROOF};
    server_secret = "the secret of this cluster";
    server_open(&s, address);
    sl_proof_nonce(knock.nonce);
    for (int i = 0; i < 3; i++) {
        int fd = dial(port_of(address), 1000);
        ck_assert_int_ge(fd, 0);
        ux_door_msg challenge = say(&s, fd, &knock);
        ck_assert_int_eq(challenge.kind, UX_DOOR_CHALLENGE);
        if (i == 0)
            prove(&knock, &challenge, port_of(address), proof.proof);
        ux_door_msg answer = say(&s, fd, &proof);
        ck_assert_int_eq(answer.kind, UX_DOOR_ANSWER);
        ck_assert_msg(answer.status == (i ? UX_DOOR_NO_PROOF : UX_DOOR_COME_IN), "connection %d: %s", i,
                      answer.text);
        ck_assert_int_eq(answer.port != 0, i == 0);
        close(fd);
    }
    ck_assert_uint_eq(refused(&s), 2);
    serves(&s, address);
    client_close(&s);
    server_secret = NULL;
}
END_TEST

/* A wrong proof is answered by a refusal without a port; each knock gets another nonce, so that a proof that was
 * recorded is of no use. */
START_TEST(wrong_proof_is_refused)
{
    client s;
    char address[SL_TP_ADDRESS_MAX];
    uint8_t bytes[UX_DOOR_MAX], in[UX_DOOR_MAX];
    ux_door_msg m = {.version = UX_DOOR_VERSION, .kind = UX_DOOR_KNOCK, .port = 40000}, got;
    const char *why;
    uint8_t first[SL_PROOF_BYTES] = {0};
    server_secret = "the secret of this cluster";
    server_open(&s, address);
    for (int i = 0; i < 2; i++) {
        int fd = dial(port_of(address), 1000);
        ck_assert_int_ge(fd, 0);
        m.kind = UX_DOOR_KNOCK;
        size_t n = ux_door_write(&m, bytes);
        ck_assert_int_eq(send(fd, bytes, n, 0), (ssize_t)n);
        run(&s, 20);
        ssize_t len = recv(fd, in, sizeof in, MSG_DONTWAIT);
        ck_assert_int_gt(len, 0);
        ck_assert_int_eq(ux_door_parse(in, (size_t)len, &got, &why), UX_DOOR_WHOLE);
        ck_assert_int_eq(got.kind, UX_DOOR_CHALLENGE);
        ck_assert_int_ne(memcmp(got.nonce, first, sizeof first), 0); /* asks something else each time */
        memcpy(first, got.nonce, sizeof first);
        m.kind = UX_DOOR_PROOF;
        memset(m.proof, 7, sizeof m.proof);
        n = ux_door_write(&m, bytes);
        ck_assert_int_eq(send(fd, bytes, n, 0), (ssize_t)n);
        run(&s, 20);
        len = recv(fd, in, sizeof in, MSG_DONTWAIT);
        ck_assert_int_gt(len, 0);
        ck_assert_int_eq(ux_door_parse(in, (size_t)len, &got, &why), UX_DOOR_WHOLE);
        ck_assert_uint_eq(got.status, UX_DOOR_NO_PROOF);
        ck_assert_uint_eq(got.port, 0);
        close(fd);
    }
    serves(&s, address);
    client_close(&s);
    server_secret = NULL;
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
    server_open(&s, address);
    size_t n = sample(knock);
    int before = descriptors();
    for (int i = 0; i < MANY; i++) {
        fd[i] = dial(port_of(address), 1000);
        ck_assert_int_ge(fd[i], 0);
        if (i % 2)
            ck_assert_int_eq(send(fd[i], knock, n / 2, 0), (ssize_t)(n / 2));
        run(&s, i % 16 == 0);
    }
    run(&s, 20);
    ck_assert_int_le(descriptors(), before + MANY + 256);
    serves(&s, address);
    run(&s, TIMEOUT_MS + 200);
    for (int i = 0; i < MANY; i++) {
        ssize_t got = recv(fd[i], &byte, 1, MSG_DONTWAIT);
        ck_assert_msg(got == 0 || (got < 0 && errno != EAGAIN), "stranger %d is still in", i);
        close(fd[i]);
    }
    run(&s, 2 * TIMEOUT_MS);
    ck_assert_int_le(descriptors(), before);
    ck_assert_uint_ge(refused(&s), MANY);
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
    server_open(&s, address);
    size_t n = sample(knock), kib = 0;
    uint16_t port = port_of(address);
    for (int i = 0; i < 8000; i++) {
        int fd = dial(port, 1000);
        ck_assert_int_ge(fd, 0);
        if (i % 3)
            send(fd, i % 3 == 1 ? (const void *)"nonsense" : knock, i % 3 == 1 ? 8 : n - 1, MSG_NOSIGNAL);
        const struct linger reset = {.l_onoff = i % 2};
        setsockopt(fd, SOL_SOCKET, SO_LINGER, &reset, sizeof reset);
        close(fd);
        if (i % 32 == 0)
            run(&s, 0);
        if (i == 1000)
            kib = resident_kib();
    }
    run(&s, TIMEOUT_MS + 100);
    if (!SANITIZED) /* sanitizers keep freed memory */
        ck_assert_msg(resident_kib() < kib + 512, "grew from %zu to %zu KiB", kib, resident_kib());
    ck_assert_uint_ge(refused(&s), 7900);
    serves(&s, address);
    client_close(&s);
}
END_TEST

/* UCX's own ports: only callers that the door has admitted reach them. */
START_TEST(gates_protect_ucx)
{
    client s;
    char address[SL_TP_ADDRESS_MAX];
    const ux_gate_ports other = listening();
    server_open(&s, address);
    const ux_gate_ports all = listening();
    ck_assert_uint_ge(all.n, other.n + 3); /* the door, UCX's listener, data of loopback and interfaces */
    for (int round = 0; round < 2; round++) {
        for (size_t i = 0; i < all.n; i++) {
            bool known = all.port[i] == port_of(address);
            for (size_t k = 0; k < other.n; k++)
                known |= other.port[k] == all.port[i];
            int fd = known ? -1 : dial(all.port[i], 50);
            ck_assert_msg(fd < 0, "round %d: a port of ucx can be reached", round);
        }
        serves(&s, address); /* opens and closes the gates */
        run(&s, 2 * TIMEOUT_MS + 200);
    }
    client_close(&s);
}
END_TEST

/* While the data gates are open, UCX refuses connections that are not from UCX. */
START_TEST(garbage_at_open_data_gates)
{
    client s;
    char address[SL_TP_ADDRESS_MAX];
    const ux_gate_ports other = listening();
    uint8_t bytes[4096];
    int reached = 0;
    server_open(&s, address);
    const ux_gate_ports all = listening();
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)sl_random_u64();
    for (size_t n = 0; n <= sizeof bytes; n = n ? n * 2 : 1) {
        serves(&s, address);
        for (size_t i = 0; i < all.n; i++) {
            bool known = all.port[i] == port_of(address);
            for (size_t k = 0; k < other.n; k++)
                known |= other.port[k] == all.port[i];
            int fd = known ? -1 : dial(all.port[i], 20);
            if (fd < 0)
                continue; /* UCX's listener, or another interface's */
            reached++;
            send(fd, bytes, n, MSG_NOSIGNAL);
            run(&s, 1);
            close(fd);
        }
    }
    ck_assert_int_gt(reached, 5);
    serves(&s, address);
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
        o.connect_timeout_ms = TIMEOUT_MS;
        client_open_with(&c, &server_variant, o);
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
    server_open(&s, address);
    serves(&s, address);
    for (int i = 0; i < STRANGERS; i++) { /* connected, they wait in the backlog */
        fd[i] = dial(port_of(address), 1000);
        ck_assert_int_ge(fd[i], 0);
    }
    struct rlimit files;
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &files), 0);
    files.rlim_cur = 256;
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &files), 0);
    while (n < 1024 && (taken[n] = dup(0)) >= 0)
        n++;
    run(&s, 150);
    close(taken[--n]);
    close(taken[--n]);
    run(&s, 300);
    while (n)
        close(taken[--n]);
    for (int i = 0; i < STRANGERS; i++)
        close(fd[i]);
    run(&s, TIMEOUT_MS + 200);
    serves(&s, address);
    client_close(&s);
}
END_TEST

int main(void)
{
    sl_log_init(SL_LOG_WARN, false, "test");
    Suite *s = suite_create("transport_door");
    TCase *messages = tcase_create("messages"), *live = tcase_create("live");
    tcase_add_test(messages, message_round_trip);
    tcase_add_test(messages, message_damaged);
    tcase_add_test(messages, message_of_another_version);
    tcase_set_timeout(live, 120);
    tcase_add_test(live, garbage_at_the_door);
    tcase_add_test(live, secret_at_the_door);
    tcase_add_test(live, door_without_the_secret);
    tcase_add_test(live, replayed_proof_is_refused);
    tcase_add_test(live, wrong_proof_is_refused);
    tcase_add_test(live, silent_strangers);
    tcase_add_test(live, thousands_of_strangers);
    if (filters_taken()) {
        tcase_add_test(live, gates_protect_ucx);
        tcase_add_test(live, garbage_at_open_data_gates);
    }
    tcase_add_test(live, nonsense_behind_an_address);
    tcase_add_test(live, out_of_descriptors);
    suite_add_tcase(s, messages);
    suite_add_tcase(s, live);
    SRunner *r = srunner_create(s);
    srunner_run_all(r, CK_NORMAL);
    int failed = srunner_ntests_failed(r);
    srunner_free(r);
    return failed ? 1 : 0;
}
