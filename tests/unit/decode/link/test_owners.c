/*
 * Connections to owners of pages (decode/link/owners.c) without threads: the test plays the worker core, the transport and the clock.
 * Whether a connection that is never made ends, when questions are late, and what is logged about an end.
 */
#include <stdio.h>
#include <unistd.h>

#include "base/log.h"
#include "decode/link/link.h"
#include "decode/pages/pull.h"
#include "tests/unit/kvstore/mla_geometry.h"
#include "tests/unit/run_suite.h"

static const uint64_t S = 1000000000;
static uint64_t now;
static sl_link *l;
static sl_worker *worker; /* which the functions below never look into */
static sl_mailbox *inbox;
static sl_arena *arena;
static sl_msg_hello hello;
static sl_wr geometry;
static sl_geometry geo;
static sl_pull pull;

/* ---- the worker core and the transport ---- */

static struct {
    void *user;
    bool closed;
    sl_msg_type sent[8];
    int n_sent, released;
} wire;
static sl_tp_rkey key;

static sl_status unpack(sl_tp_ep *ep, const void *buf, size_t len, sl_tp_rkey **out, sl_err *err)
{
    (void)buf;
    (void)len;
    (void)err;
    key.ep = ep;
    *out = &key;
    return SL_OK;
}

static void release(sl_tp_rkey *k)
{
    ck_assert_ptr_eq(k, &key);
    wire.released++;
}

static void query(const sl_tp_ep *ep, char *text, size_t cap)
{
    (void)ep;
    snprintf(text, cap, "test=1");
}

static const sl_transport_ops ops = {.rkey_unpack = unpack, .rkey_release = release, .ep_query = query};
static sl_transport transport = {&ops};
static sl_tp_ep tp_ep = {&transport, NULL};

sl_status sl_worker_connect(sl_worker *w, const char *address, void *user, sl_wep **out, sl_err *err)
{
    (void)w;
    (void)address;
    (void)err;
    wire.user = user;
    *out = (sl_wep *)&wire;
    return SL_OK;
}

uint32_t sl_worker_id(const sl_worker *w, uint32_t router)
{
    (void)w;
    (void)router;
    return 7;
}

uint64_t sl_worker_epoch(const sl_worker *w, uint32_t router)
{
    (void)w;
    (void)router;
    return 8;
}

uint32_t sl_worker_session(const sl_worker *w, uint64_t epoch)
{
    (void)w;
    (void)epoch;
    return 0;
}

void sl_worker_send_router(sl_worker *w, uint32_t router, const sl_msg *msg)
{
    (void)w;
    (void)msg;
    ck_abort_msg("a message to router %u", router);
}

void sl_wep_set_user(sl_wep *ep, void *user)
{
    (void)ep;
    wire.user = user;
}

bool sl_wep_closing(const sl_wep *ep)
{
    (void)ep;
    return wire.closed;
}

sl_tp_mem *sl_worker_memory(sl_worker *w)
{
    (void)w;
    return NULL;
}

void sl_wep_send(sl_wep *ep, const sl_msg *m)
{
    (void)ep;
    wire.sent[wire.n_sent++] = m->type;
}

void sl_wep_close(sl_wep *ep, sl_tp_close_mode mode)
{
    (void)ep;
    (void)mode;
    wire.closed = true;
}

void *sl_wep_user(const sl_wep *ep)
{
    (void)ep;
    return wire.user;
}

uint32_t sl_wep_serial(const sl_wep *ep)
{
    (void)ep;
    return 9;
}

sl_tp_ep *sl_wep_tp(sl_wep *ep)
{
    (void)ep;
    return &tp_ep;
}

void sl_wmsg_free(sl_wmsg *m)
{
    free(m);
}

/* ---- what a test does ---- */

static int saved, fds[2];

static void open_all(void)
{
    static const bool has_indexer[2] = {true, true};
    geo =
        mla_geometry((sl_key){1, 2}, SL_LAYOUT_PAGE_FIRST, SL_ROW_MLA_FP8, SL_INDEX_OFFICIAL, 2, has_indexer);
    memset(&wire, 0, sizeof wire);
    now = 100 * S;
    sl_now_virtual(&now);
    sl_log_init(SL_LOG_INFO, false, "test");
    ck_assert_int_eq(pipe(fds), 0);
    saved = dup(STDERR_FILENO);
    dup2(fds[1], STDERR_FILENO);
    close(fds[1]);
    sl_err err = {0};
    sl_arena_opts ao = {.bytes = 16 * (uint64_t)geo.page_bytes, .lock = SL_OFF, .numa_node = -1};
    ck_assert_int_eq(sl_arena_create(&geo, &ao, &arena, &err), SL_OK);
    ck_assert_int_eq(sl_mailbox_create(&inbox), SL_OK);
    sl_link_opts o = {.worker = &worker,
                      .inbox = inbox,
                      .hello = &hello,
                      .geometry = &geometry,
                      .arena = arena,
                      .shipping = &sl_shipping_staging,
                      .stall_ms = 1000};
    ck_assert_msg(sl_link_create(&o, &l, &err) == SL_OK, "%s", err.text);
    pull = (sl_pull){
        .id = 1, .source = {.router = 1, .worker = 2, .epoch = 3, .pages = 4, .address = "a:1"}, .n = 4};
    pull.keys = calloc(4, sizeof *pull.keys);
    pull.mail.kind = DM_PULL_ASK;
    sl_link_mail(l, &pull.mail);
    ck_assert_ptr_nonnull(wire.user);
}

/* Ends what is left, and returns what was logged. */
static const char *close_all(void)
{
    static char text[8192];
    if (wire.user)
        sl_link_closed(l, (sl_wep *)&wire);
    dup2(saved, STDERR_FILENO);
    close(saved);
    size_t len = 0;
    for (ssize_t n; (n = read(fds[0], text + len, sizeof text - 1 - len)) > 0;)
        len += (size_t)n;
    text[len] = '\0';
    close(fds[0]);
    while (sl_mailbox_take(inbox))
        ;
    sl_mailbox_destroy(inbox);
    sl_link_destroy(l);
    sl_arena_destroy(arena);
    free(pull.keys);
    sl_now_virtual(NULL);
    return text;
}

static void welcome(void)
{
    sl_wr w;
    sl_wmsg *m = calloc(1, sizeof *m);
    sl_wr_init(&w);
    sl_geometry_write(&geo, &w);
    m->msg.type = SL_MSG_PEER_WELCOME;
    m->msg.peer_welcome = (sl_msg_peer_welcome){.epoch = 3,
                                                .arena_addr = 4096,
                                                .arena_bytes = 16 * (uint64_t)geo.page_bytes,
                                                .total_pages = 16,
                                                .geometry = {w.data, w.len}};
    sl_link_msg(l, (sl_wep *)&wire, m);
    sl_wr_free(&w);
    ck_assert_int_eq(wire.sent[wire.n_sent - 1], SL_MSG_LEASE_ASK);
}

static void cancel(uint64_t id)
{
    sl_pull_cancel *m = calloc(1, sizeof *m);
    *m = (sl_pull_cancel){.mail.kind = DM_PULL_CANCEL, .id = id};
    sl_link_mail(l, &m->mail);
}

static void answered(sl_status st)
{
    ck_assert_ptr_eq(sl_mailbox_take(inbox), &pull.mail.link);
    ck_assert_int_eq(pull.mail.kind, DM_PULL_ASKED);
    ck_assert_int_eq(pull.status, st);
}

/* The next turn is always in the future, so that the transport thread sleeps; also while a connection is being made. */
static void tick_later(void)
{
    ck_assert_uint_gt(sl_link_tick(l, now), now);
}

START_TEST(a_connection_that_is_never_made_ends)
{
    open_all();
    for (int i = 0; i < 9; i++) {
        now += S;
        tick_later();
        ck_assert(!wire.closed);
    }
    now += 2 * S;
    tick_later();
    ck_assert(wire.closed);
    answered(SL_ERR_TIMEOUT);
    ck_assert_ptr_nonnull(strstr(close_all(), "level=warn proc=test comp=decode ev=owner_lost"));
}
END_TEST

/* A question has its time from the moment on when it is asked: a slow connection does not shorten it. */
START_TEST(the_time_of_a_question_begins_when_it_is_asked)
{
    open_all();
    now += 9 * S;
    tick_later();
    sl_link_connected(l, (sl_wep *)&wire, SL_OK, "");
    ck_assert_int_eq(wire.sent[0], SL_MSG_PEER_HELLO);
    now += 6 * S;
    tick_later();
    ck_assert(!wire.closed);
    welcome();
    now += 9 * S;
    tick_later();
    ck_assert(!wire.closed);
    now += 2 * S;
    tick_later();
    ck_assert(wire.closed);
    answered(SL_ERR_TIMEOUT);
    close_all();
    ck_assert_int_eq(wire.released, 1);
}
END_TEST

/* What nothing uses may end: its owner leaves, its session ends, or it was idle. It is a loss while a question is open. */
START_TEST(a_normal_end_is_no_warning)
{
    open_all();
    sl_link_connected(l, (sl_wep *)&wire, SL_OK, "");
    welcome();
    bool used = _i >= 3;
    if (!used) {
        cancel(1);
        answered(SL_ERR_CANCELLED);
    }
    if (_i % 3 == 0) {
        sl_link_router_down(l, 1);
    } else if (_i % 3 == 1) {
        sl_link_failed(l, (sl_wep *)&wire, SL_ERR_PEER, "it has left");
    } else {
        now += 121 * S;
        tick_later();
    }
    ck_assert(wire.closed);
    if (used)
        answered(_i == 5 ? SL_ERR_TIMEOUT : SL_ERR_PEER);
    const char *log = close_all();
    ck_assert_msg(!strstr(log, "level=warn") == !used, "%s", log);
    ck_assert_ptr_nonnull(strstr(log, used ? "ev=owner_lost" : "ev=owner_closed"));
}
END_TEST

int main(void)
{
    Suite *s = suite_create("owner");
    TCase *t = tcase_create("owner");
    tcase_add_test(t, a_connection_that_is_never_made_ends);
    tcase_add_test(t, the_time_of_a_question_begins_when_it_is_asked);
    tcase_add_loop_test(t, a_normal_end_is_no_warning, 0, 6);
    suite_add_tcase(s, t);
    return run_suite(s);
}
