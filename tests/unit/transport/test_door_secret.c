/*
 * The secret of a cluster at the door: a caller without it, or with another one, is refused with the reason and reaches
 * no port of UCX; proofs that are wrong or were recorded are refused.
 */
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/log.h"
#include "tests/unit/run_suite.h"
#include "tests/unit/transport/door_rig.h"

/* Opens c with this secret: the door of s refuses it, and the reason contains `why`. The caller closes c. */
static void expect_refused(client *c, const char *secret, client *s, const char *address, const char *why)
{
    sl_tp_ep *ep;
    sl_err err;
    sl_tp_options o = sl_tp_options_default();
    o.secret = secret;
    client_open_with(c, &door_variant, o);
    ck_assert_int_eq(sl_tp_connect(c->tp, address, &ep, &err), SL_OK);
    for (int k = 0; k < 2000 && !c->connected; k++) {
        door_run(c, 1);
        door_run(s, 1);
    }
    ck_assert_int_eq(c->connect_status, SL_ERR_REFUSED);
    ck_assert_msg(strstr(c->why, why) != NULL, "%s", c->why);
}

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
    door_secret = mine[0];
    const ux_gate_ports other = door_listening();
    door_open(&s, address);
    const ux_gate_ports all = door_listening();
    for (size_t i = 0; i < SL_COUNT(callers); i++) {
        client c;
        expect_refused(&c, callers[i].secret, &s, address, callers[i].why);
        for (size_t p = 0; door_filters_taken() && p < all.n; p++) {
            bool ucx = door_port_is_ucx(all.port[p], &other, address);
            ck_assert_msg(!ucx || door_dial(all.port[p], 50) < 0, "a port of ucx has opened");
        }
        client_close(&c);
    }
    ck_assert_int_eq(s.accepted, 0);
    ck_assert_uint_ge(door_refused(&s), SL_COUNT(callers));
    door_serves(&s, address);
    client_close(&s);
    door_secret = NULL;
}
END_TEST

/* One side encrypts messages and the other does not: refused after the door, in both directions, naming the key. */
START_TEST(both_sides_encrypt_or_none)
{
    door_secret = "the secret of this cluster";
    for (int i = 0; i < 2; i++) {
        client s, c;
        sl_tp_ep *ep;
        sl_err err;
        char address[SL_TP_ADDRESS_MAX];
        sl_tp_options o = sl_tp_options_default();
        o.secret = door_secret;
        o.encrypt = i;
        door_encrypts = !i;
        door_open(&s, address);
        client_open_with(&c, &door_variant, o);
        ck_assert_int_eq(sl_tp_connect(c.tp, address, &ep, &err), SL_OK);
        for (int k = 0; k < 5000 && !c.connected; k++) {
            door_run(&c, 1);
            door_run(&s, 1);
        }
        ck_assert_int_eq(c.connect_status, SL_ERR_REFUSED);
        ck_assert_msg(strstr(c.why, "cluster.encrypt differs") != NULL, "%s", c.why);
        ck_assert_int_eq(s.accepted, 0);
        client_close(&c);
        client_close(&s);
    }
    door_encrypts = false;
    door_secret = NULL;
}
END_TEST

/* A door without the secret, and one with another, get no connection from a caller that has one. */
START_TEST(door_without_the_secret)
{
    for (int i = 0; i < 2; i++) {
        client s, c;
        char address[SL_TP_ADDRESS_MAX];
        door_secret = i ? "another secret, of 32 characters" : NULL;
        door_open(&s, address);
        expect_refused(&c, "the secret of this cluster", &s, address, "cluster.secret_file");
        client_close(&c);
        client_close(&s);
    }
    door_secret = NULL;
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
        door_run(s, 1);
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
    sl_proof_make(door_secret, "sluice door, caller", about, sizeof about, out);
}

/* A greeting that was recorded: its proof was right, and the same bytes on another connection are refused. */
START_TEST(replayed_proof_is_refused)
{
    client s;
    char address[SL_TP_ADDRESS_MAX];
    ux_door_msg knock = {.version = UX_DOOR_VERSION, .kind = UX_DOOR_KNOCK, .port = 40000},
                proof = {.version = UX_DOOR_VERSION, .kind = UX_DOOR_PROOF};
    door_secret = "the secret of this cluster";
    door_open(&s, address);
    sl_proof_nonce(knock.nonce);
    for (int i = 0; i < 3; i++) {
        int fd = door_dial(door_port(address), 1000);
        ck_assert_int_ge(fd, 0);
        ux_door_msg challenge = say(&s, fd, &knock);
        ck_assert_int_eq(challenge.kind, UX_DOOR_CHALLENGE);
        if (i == 0)
            prove(&knock, &challenge, door_port(address), proof.proof);
        ux_door_msg answer = say(&s, fd, &proof);
        ck_assert_int_eq(answer.kind, UX_DOOR_ANSWER);
        ck_assert_msg(answer.status == (i ? UX_DOOR_NO_PROOF : UX_DOOR_COME_IN), "connection %d: %s", i,
                      answer.text);
        ck_assert_int_eq(answer.port != 0, i == 0);
        close(fd);
    }
    ck_assert_uint_eq(door_refused(&s), 2);
    door_serves(&s, address);
    client_close(&s);
    door_secret = NULL;
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
    door_secret = "the secret of this cluster";
    door_open(&s, address);
    for (int i = 0; i < 2; i++) {
        int fd = door_dial(door_port(address), 1000);
        ck_assert_int_ge(fd, 0);
        m.kind = UX_DOOR_KNOCK;
        size_t n = ux_door_write(&m, bytes);
        ck_assert_int_eq(send(fd, bytes, n, 0), (ssize_t)n);
        door_run(&s, 20);
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
        door_run(&s, 20);
        len = recv(fd, in, sizeof in, MSG_DONTWAIT);
        ck_assert_int_gt(len, 0);
        ck_assert_int_eq(ux_door_parse(in, (size_t)len, &got, &why), UX_DOOR_WHOLE);
        ck_assert_uint_eq(got.status, UX_DOOR_NO_PROOF);
        ck_assert_uint_eq(got.port, 0);
        close(fd);
    }
    door_serves(&s, address);
    client_close(&s);
    door_secret = NULL;
}
END_TEST

int main(void)
{
    sl_log_init(SL_LOG_WARN, false, "test");
    Suite *s = suite_create("transport_door_secret");
    TCase *t = tcase_create("secret");
    tcase_set_timeout(t, 120);
    tcase_add_test(t, secret_at_the_door);
    tcase_add_test(t, door_without_the_secret);
    tcase_add_test(t, both_sides_encrypt_or_none);
    tcase_add_test(t, replayed_proof_is_refused);
    tcase_add_test(t, wrong_proof_is_refused);
    suite_add_tcase(s, t);
    return run_suite(s);
}
