/* Peers and clients of the conformance tests; see harness.h. */
#include "tests/unit/transport/harness.h"

#include <check.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/log.h"
#include "tests/unit/run_suite.h"
#include "transport/loopback/loopback.h"

extern char **environ;

const variant variants[] = {
    {"loopback, threads", "loopback", NULL, false, false},
    {"ucx tcp, processes", "ucx", "tcp", true, false},
    {"ucx default, processes", "ucx", NULL, true, false},
    {"ucx tcp, threads", "ucx", "tcp", false, false},
    {"ucx tcp, processes, encrypted", "ucx", "tcp", true, true},
};
const int n_variants = SL_COUNT(variants);

static void add_secret(const variant *v, sl_tp_options *o)
{
    if (!v->encrypt)
        return;
    o->secret = HARNESS_SECRET;
    o->encrypt = true;
}

static sl_tp_options options(const variant *v)
{
    sl_tp_options o = sl_tp_options_default();
    o.tls = v->tls;
    add_secret(v, &o);
    return o;
}

/* ---- peers ---- */

static void peer_made(void *arg, sl_transport *tp)
{
    ((peer *)arg)->tp = tp;
}

static void peer_ready(void *arg, const char *address)
{
    peer *p = arg;
    pthread_mutex_lock(&p->mutex);
    snprintf(p->address, sizeof p->address, "%s", address);
    p->up = true;
    pthread_cond_signal(&p->cond);
    pthread_mutex_unlock(&p->mutex);
}

static void *peer_thread(void *arg)
{
    peer *p = arg;
    sl_tp_options o = options(p->v);
    SL_CHECK(peer_serve(p->v->transport, &o, peer_ready, p, peer_made, &p->stop) == 0, "peer");
    return NULL;
}

/* The path of transport_peer: where it was built, or SL_PEER when the test runs on another machine. */
static char *peer_path(void)
{
    char *given = getenv("SL_PEER");
    return given ? given : (char *)SL_PEER_PATH;
}

static void start_process(peer *p)
{
    int fds[2];
    char *argv[] = {peer_path(), (char *)p->v->transport, (char *)(p->v->tls ? p->v->tls : "default"),
                    p->v->encrypt ? (char *)HARNESS_SECRET : NULL, NULL};
    posix_spawn_file_actions_t actions;
    ck_assert_int_eq(pipe(fds), 0);
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, fds[1], 1);
    posix_spawn_file_actions_addclose(&actions, fds[0]);
    posix_spawn_file_actions_addclose(&actions, fds[1]);
    ck_assert_int_eq(posix_spawn(&p->pid, peer_path(), &actions, NULL, argv, environ), 0);
    posix_spawn_file_actions_destroy(&actions);
    close(fds[1]);
    FILE *f = fdopen(fds[0], "r");
    ck_assert_ptr_nonnull(f);
    ck_assert_msg(fgets(p->address, sizeof p->address, f) != NULL, "the peer process did not start");
    p->address[strcspn(p->address, "\n")] = 0;
    fclose(f);
}

void peer_start(peer *p, const variant *v)
{
    *p = (peer){.v = v};
    if (v->process) {
        start_process(p);
        return;
    }
    pthread_mutex_init(&p->mutex, NULL);
    pthread_cond_init(&p->cond, NULL);
    ck_assert_int_eq(pthread_create(&p->thread, NULL, peer_thread, p), 0);
    pthread_mutex_lock(&p->mutex);
    while (!p->up)
        pthread_cond_wait(&p->cond, &p->mutex);
    pthread_mutex_unlock(&p->mutex);
}

void peer_kill(peer *p)
{
    if (p->v->process)
        ck_assert_int_eq(kill(p->pid, SIGKILL), 0);
    else
        sl_loopback_kill(p->tp), atomic_store(&p->stop, true);
}

void peer_join(peer *p)
{
    int status;
    if (p->v->process) {
        ck_assert_int_eq(waitpid(p->pid, &status, 0), p->pid);
        ck_assert_msg(WIFSIGNALED(status) ? WTERMSIG(status) == SIGKILL : WEXITSTATUS(status) == 0,
                      "the peer ended with status %#x", (unsigned)status);
    } else {
        pthread_join(p->thread, NULL);
    }
}

/* ---- client ---- */

static void on_accepted(void *arg, sl_tp_ep *ep, const char *address)
{
    client *c = arg;
    (void)address;
    c->accepted++;
    c->ep = ep;
}

static void on_connected(void *arg, sl_tp_ep *ep, sl_status st, const char *why)
{
    client *c = arg;
    c->connected++;
    c->connect_status = st;
    c->ep = ep;
    snprintf(c->why, sizeof c->why, "%s", why);
}

static void on_failed(void *arg, sl_tp_ep *ep, sl_status st, const char *why)
{
    client *c = arg;
    c->failed++;
    c->fail_status = st;
    snprintf(c->why, sizeof c->why, "%s", why);
    if (c->close_on_fail)
        sl_tp_close(ep, SL_TP_CLOSE_FORCE);
}

static void on_closed(void *arg, sl_tp_ep *ep)
{
    client *c = arg;
    c->closed++;
    if (c->ep == ep)
        c->ep = NULL;
}

static void on_echo(void *arg, sl_tp_ep *ep, uint16_t id, const void *header, size_t hn, const void *data,
                    size_t n)
{
    client *c = arg;
    (void)ep;
    (void)id;
    ck_assert_uint_eq(hn, sizeof c->echo_header);
    memcpy(&c->echo_header, header, hn);
    free(c->echo);
    c->echo = malloc(n + 1);
    if (n)
        memcpy(c->echo, data, n);
    c->echo_bytes = n;
    ck_assert_uint_eq(c->echo_header.tag, (unsigned)c->echoes); /* answers arrive in order */
    c->echoes++;
}

static void on_key(void *arg, sl_tp_ep *ep, uint16_t id, const void *header, size_t hn, const void *data,
                   size_t n)
{
    client *c = arg;
    (void)ep;
    (void)id;
    ck_assert_uint_eq(hn, sizeof c->key);
    memcpy(&c->key, header, hn);
    memcpy(c->key_bytes, data, n);
    c->key_len = n;
    c->keys++;
}

static void on_value(void *arg, sl_tp_ep *ep, uint16_t id, const void *header, size_t hn, const void *data,
                     size_t n)
{
    client *c = arg;
    (void)ep;
    (void)id;
    (void)data;
    (void)n;
    ck_assert_uint_eq(hn, sizeof c->value);
    memcpy(&c->value, header, hn);
    c->values++;
}

static void on_blast(void *arg, sl_tp_ep *ep, uint16_t id, const void *header, size_t hn, const void *data,
                     size_t n)
{
    client *c = arg;
    uint32_t index;
    (void)ep;
    (void)id;
    ck_assert_uint_eq(hn, sizeof index);
    memcpy(&index, header, hn);
    ck_assert_uint_eq(index, (unsigned)c->blasts);
    ck_assert_uint_eq(n, blast_size(index));
    ck_assert(pattern_check(data, n, index));
    c->blasts++;
}

void client_open_with(client *c, const variant *v, sl_tp_options o)
{
    sl_err err = {0};
    *c = (client){0};
    add_secret(v, &o);
    o.events = (sl_tp_events){.arg = c,
                              .accepted = on_accepted,
                              .connected = on_connected,
                              .failed = on_failed,
                              .closed = on_closed};
    sl_status st = sl_transport_create(v->transport, &o, &c->tp, &err);
    ck_assert_msg(st == SL_OK, "%s", err.text);
    sl_tp_handle(c->tp, AM_ECHO, on_echo, c);
    sl_tp_handle(c->tp, AM_KEY, on_key, c);
    sl_tp_handle(c->tp, AM_VALUE, on_value, c);
    sl_tp_handle(c->tp, AM_BLAST, on_blast, c);
}

void client_open(client *c, const variant *v)
{
    client_open_with(c, v, options(v));
}

bool client_wait(client *c, const int *counter, int want, int ms)
{
    uint64_t until = sl_now_ns() + (uint64_t)ms * 1000000u;
    while (*counter < want) {
        if (sl_tp_progress(c->tp) > 0)
            continue;
        if (sl_now_ns() > until)
            return false;
        if (sl_tp_arm(c->tp) != SL_OK)
            continue;
        struct pollfd p = {.fd = sl_tp_event_fd(c->tp), .events = POLLIN};
        poll(&p, 1, 100);
    }
    return true;
}

void client_run(client *c, int ms)
{
    int never = 0;
    client_wait(c, &never, 1, ms);
}

void client_connect(client *c, const peer *p)
{
    sl_err err = {0};
    sl_tp_ep *ep;
    int before = c->connected;
    ck_assert_msg(sl_tp_connect(c->tp, p->address, &ep, &err) == SL_OK, "%s", err.text);
    ck_assert(client_wait(c, &c->connected, before + 1, 10000));
    ck_assert_msg(c->connect_status == SL_OK, "%s", c->why);
    ck_assert_ptr_eq(c->ep, ep);
}

void client_send(client *c, peer_command cmd, const void *data, size_t n)
{
    ck_assert_int_eq(sl_tp_send(c->ep, AM_COMMAND, &cmd, sizeof cmd, data, n, NULL, NULL), SL_OK);
}

uint64_t client_ask(client *c, peer_command cmd)
{
    int before = c->values;
    client_send(c, cmd, NULL, 0);
    ck_assert(client_wait(c, &c->values, before + 1, 20000));
    return c->value.a;
}

sl_tp_rkey *client_key(client *c)
{
    sl_tp_rkey *rkey;
    sl_err err = {0};
    int before = c->keys;
    client_send(c, (peer_command){.verb = DO_KEY}, NULL, 0);
    ck_assert(client_wait(c, &c->keys, before + 1, 10000));
    ck_assert_msg(sl_tp_rkey_unpack(c->ep, c->key_bytes, c->key_len, &rkey, &err) == SL_OK, "%s", err.text);
    ck_assert_uint_eq(rkey->base, c->key.base);
    ck_assert_uint_eq(rkey->bytes, c->key.bytes);
    return rkey;
}

void client_close(client *c)
{
    sl_tp_destroy(c->tp);
    free(c->echo);
    c->echo = NULL;
    c->tp = NULL;
}

void client_finish(client *c, peer *p)
{
    int before = c->closed;
    client_send(c, (peer_command){.verb = DO_QUIT}, NULL, 0);
    sl_tp_close(c->ep, SL_TP_CLOSE_FLUSH);
    ck_assert(client_wait(c, &c->closed, before + 1, 10000));
    peer_join(p);
    client_close(c);
}

void client_done(void *cookie, sl_status st)
{
    client *c = cookie;
    c->done++;
    c->done_ok += st == SL_OK;
    c->last_done = st;
}

bool variant_is_loopback(const variant *v)
{
    return strcmp(v->transport, "loopback") == 0;
}

void putter_open(putter *t, client *c, size_t bytes)
{
    sl_err err = {0};
    *t = (putter){.c = c, .bytes = bytes, .buf = malloc(bytes)};
    ck_assert_int_eq(sl_tp_mem_register(c->tp, t->buf, bytes, SL_TP_HOST, SL_TP_LOCAL, &t->mem, &err), SL_OK);
    t->rkey = client_key(c);
}

void putter_close(putter *t)
{
    sl_tp_rkey_release(t->rkey);
    sl_tp_mem_deregister(t->mem);
    free(t->buf);
}

void putter_put(putter *t, size_t from, size_t n, uint64_t to)
{
    sl_status st;
    while ((st = sl_tp_put(t->c->ep, t->buf + from, t->mem, n, t->rkey->base + to, t->rkey, client_done,
                           t->c)) == SL_AGAIN)
        sl_tp_progress(t->c->tp);
    ck_assert_int_eq(st, SL_OK);
}

int harness_run(const char *suite, TCase *tests)
{
    sl_log_init(SL_LOG_WARN, false, "test");
    signal(SIGPIPE, SIG_IGN);
    tcase_set_timeout(tests, 120);
    Suite *s = suite_create(suite);
    suite_add_tcase(s, tests);
    return run_suite(s);
}
