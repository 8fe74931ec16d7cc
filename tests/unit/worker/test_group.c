/*
 * Groups of ranks (worker/group.h) as threads of one process, over loopback and with a runner that only agrees on its
 * steps: how they meet, what they refuse, how steps of one rank wake the others, how a lost rank breaks the group and a
 * replacement makes it whole again.
 */
#include <check.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "tests/unit/kvstore/mla_geometry.h"
#include "transport/transport.h"
#include "worker/group.h"

/* QUICK_MS: dead_after_ms of tests that wait for it, and in which a rank that is lost too early does no harm. */
enum { RANKS_MAX = 4, PATIENCE_MS = 60000, DEAD_AFTER_MS = 5000, QUICK_MS = 500 };

/* A rank: its own thread runs the turns; the fields that the test reads or sets meanwhile are atomic. */
typedef struct rank {
    sl_wgroup_opts o;
    pthread_t thread;
    bool started;
    sl_wgroup *g;
    sl_comm *comm; /* of the runner */
    sl_step_share shares[SL_COMM_RANKS_MAX];
    uint64_t agreed;
    uint32_t flags;
    _Atomic bool stop;
    _Atomic bool whole, ended, listening;
    _Atomic int want;   /* tokens that this rank is to bring into steps, one in each */
    _Atomic int done;   /* steps with its own tokens */
    _Atomic int others; /* steps without them in which another rank had some */
    _Atomic int formed, broken;
    char over[64];               /* what moves the bytes, before `whole` is set */
    _Atomic uint32_t say, heard; /* flags; a rank that says it leaves asks for steps */
    _Atomic bool frozen;         /* the thread of its links stops running */
    sl_status st;
    sl_err err;
} rank;

static char fabric[32], address[64];
static bool two_hosts; /* ranks 0 and 2 are on one host, ranks 1 and 3 on another one, as far as they say */
static int fabrics;
static sl_wr geometry_bytes;
static sl_identity identity[RANKS_MAX];
/* Of the checkpoint, and of what each rank loads. */
static const sl_key WHOLE = {1, 2}, PRINTS[RANKS_MAX] = {{3, 0}, {3, 1}, {3, 2}, {3, 3}};

static void pause_ms(int ms)
{
    nanosleep(&(struct timespec){.tv_nsec = ms * 1000000L}, NULL);
}

#define UNTIL(what)                                                                                          \
    do {                                                                                                     \
        int waited_ = 0;                                                                                     \
        while (!(what)) {                                                                                    \
            ck_assert_msg(waited_++ < PATIENCE_MS / 2, "waited for: %s", #what);                             \
            pause_ms(2);                                                                                     \
        }                                                                                                    \
    } while (0)

/* ---- the runner ---- */

static void r_set_comm(void *impl, sl_comm *comm)
{
    rank *r = impl;
    r->comm = comm;
    r->agreed = 0;
    snprintf(r->over, sizeof r->over, "%s", comm ? sl_comm_describe(comm) : "");
}

static void r_set_flags(void *impl, uint32_t flags)
{
    ((rank *)impl)->flags = flags;
}

static const sl_step_share *r_shares(const void *impl, uint64_t *steps)
{
    *steps = ((const rank *)impl)->agreed;
    return ((const rank *)impl)->shares;
}

static sl_status r_step(void *impl, sl_step_item *items, int32_t n, const sl_step_hooks *hooks, sl_err *err)
{
    rank *r = impl;
    (void)items;
    (void)hooks;
    sl_step_share mine = {n, r->flags};
    SL_TRY(sl_comm_all_gather(r->comm, &mine, r->shares, sizeof mine, err));
    r->agreed++;
    return SL_OK;
}

/* ---- a rank ---- */

static void freeze(void *arg, sl_transport *tp)
{
    rank *r = arg;
    (void)tp;
    while (atomic_load(&r->frozen))
        pause_ms(1);
}

static sl_status one_turn(rank *r)
{
    sl_step_item item = {.n_tokens = 1};
    SL_TRY(sl_wgroup_turn(r->g, &r->err));
    atomic_store(&r->whole, sl_wgroup_whole(r->g));
    sl_wgroup_counts c;
    sl_wgroup_counts_get(r->g, &c);
    atomic_store(&r->formed, (int)c.formed);
    atomic_store(&r->broken, (int)c.broken);
    if (!sl_wgroup_whole(r->g) || atomic_load(&r->frozen)) {
        pause_ms(1);
        return SL_OK;
    }
    sl_wgroup_say(r->g, atomic_load(&r->say));
    atomic_store(&r->heard, sl_wgroup_others(r->g));
    if (atomic_load(&r->want) > 0) {
        if (sl_wgroup_step(r->g, &item, 1, NULL, NULL) == SL_OK) {
            atomic_fetch_sub(&r->want, 1);
            atomic_fetch_add(&r->done, 1);
        }
    } else if (sl_wgroup_take_part(r->g, atomic_load(&r->say) & SL_WGROUP_LEAVING)) {
        atomic_fetch_add(&r->others, 1);
    } else {
        pause_ms(1);
    }
    return SL_OK;
}

static void *run(void *arg)
{
    rank *r = arg;
    sl_backend *be = NULL;
    sl_runner runner = {
        .impl = r, .step = r_step, .set_comm = r_set_comm, .set_flags = r_set_flags, .shares = r_shares};
    r->st = sl_backend_create("cpu", &(sl_backend_opts){.threads = 1}, &be, &r->err);
    if (r->st == SL_OK)
        r->st = sl_wgroup_start(&r->o, &r->g, &r->err);
    atomic_store(&r->listening, r->st == SL_OK);
    if (r->st == SL_OK)
        r->st = sl_wgroup_meet(r->g, NULL, &r->err);
    if (r->st == SL_OK)
        sl_wgroup_attach(r->g, be, &runner);
    while (r->st == SL_OK && !atomic_load(&r->stop))
        r->st = one_turn(r);
    atomic_store(&r->whole, false);
    sl_wgroup_stop(r->g);
    r->g = NULL;
    sl_backend_destroy(be);
    atomic_store(&r->ended, true);
    return NULL;
}

static sl_wgroup_opts options(int n, int ranks)
{
    static const char *const devices[RANKS_MAX] = {"GPU-1", "GPU-2", "GPU-3", "GPU-4"};
    return (sl_wgroup_opts){.link = {.transport = "loopback",
                                     .fabric = fabric,
                                     .numa_node = -1,
                                     .heartbeat_ms = 50,
                                     .dead_after_ms = DEAD_AFTER_MS,
                                     .connect_timeout_ms = 5000,
                                     .reconnect_ms = 20},
                            .address = address,
                            .name = "test",
                            .cluster_tag = "t",
                            .formats = "f32 rows",
                            .library = "NCCL 2.28.9",
                            .device = devices[n],
                            .role = SL_ROLE_DECODE,
                            .rank = n,
                            .ranks = ranks,
                            .id = &identity[n],
                            .whole = n ? (sl_key){0, 0} : WHOLE,
                            .prints = n ? NULL : PRINTS,
                            .step_tokens = 64,
                            .place = two_hosts ? 1 + (uint64_t)(n % 2) : 0,
                            .sockets_at = two_hosts ? "127.0.0.1" : NULL,
                            .host_bytes = n ? 1 : 6ull << 30,
                            .host_free = 10ull << 30,
                            .meet_ms = PATIENCE_MS};
}

static void go(rank *r)
{
    memset(&r->thread, 0, sizeof r->thread);
    ck_assert_int_eq(pthread_create(&r->thread, NULL, run, r), 0);
    r->started = true;
}

static void start_with(rank *r, int n, int ranks, uint32_t dead_after_ms)
{
    memset(r, 0, sizeof *r);
    r->o = options(n, ranks);
    r->o.link.dead_after_ms = dead_after_ms;
    r->o.link.hook = freeze;
    r->o.link.hook_arg = r;
    go(r);
}

static void start(rank *r, int n, int ranks)
{
    start_with(r, n, ranks, DEAD_AFTER_MS);
}

static void end(rank *r)
{
    atomic_store(&r->stop, true);
    atomic_store(&r->frozen, false);
    if (r->started)
        pthread_join(r->thread, NULL);
    r->started = false;
}

static void start_all(rank *r, int ranks)
{
    for (int k = ranks - 1; k >= 0; k--)
        start(&r[k], k, ranks);
    for (int k = 0; k < ranks; k++) {
        UNTIL(r[k].whole);
        ck_assert_msg(strstr(r[k].over, two_hosts ? "sockets, " : "shared memory, ") == r[k].over, "%s",
                      r[k].over);
    }
}

static void end_all(rank *r, int ranks)
{
    for (int k = 0; k < ranks; k++)
        end(&r[k]);
}

/* A new fabric for every test, so that nothing of an earlier one is there. */
static void setup(void)
{
    static const bool indexers[2] = {true, true};
    sl_geometry g =
        mla_geometry((sl_key){0, 0}, SL_LAYOUT_PAGE_FIRST, SL_ROW_MLA_F32, SL_INDEX_PLAIN, 2, indexers);
    two_hosts = false;
    snprintf(fabric, sizeof fabric, "groups%d", ++fabrics);
    snprintf(address, sizeof address, "%s:7310", fabric);
    sl_wr_init(&geometry_bytes);
    sl_geometry_write(&g, &geometry_bytes);
    for (int n = 0; n < RANKS_MAX; n++)
        identity[n] = (sl_identity){PRINTS[n], {geometry_bytes.data, geometry_bytes.len}};
}

static void teardown(void)
{
    sl_wr_free(&geometry_bytes);
}

/* ---- tests ---- */

START_TEST(ranks_step_together)
{
    static rank r[RANKS_MAX];
    two_hosts = _i;
    start_all(r, 4);
    /* One rank has work, the others rest and are rung; then several, with different amounts. */
    atomic_store(&r[2].want, 20);
    UNTIL(r[2].done == 20);
    UNTIL(r[0].others >= 20 && r[1].others >= 20 && r[3].others >= 20);
    for (int k = 0; k < 4; k++)
        atomic_store(&r[k].want, 10 * k);
    for (int k = 0; k < 4; k++)
        UNTIL(r[k].want == 0);
    ck_assert_int_eq(r[3].done, 30);
    for (int k = 0; k < 4; k++)
        ck_assert_msg(r[k].whole && r[k].broken == 0, "rank %d", k);
    end_all(r, 4);
}
END_TEST

/* What a rank says reaches the others with the next step. */
START_TEST(flags_reach_the_others)
{
    static rank r[3];
    start_all(r, 3);
    ck_assert_uint_eq(r[0].heard, 0);
    atomic_store(&r[1].say, SL_WGROUP_LEAVING);
    atomic_store(&r[2].say, SL_WGROUP_BUSY);
    UNTIL(r[0].heard == (SL_WGROUP_LEAVING | SL_WGROUP_BUSY));
    UNTIL(r[1].heard == SL_WGROUP_BUSY && r[2].heard == SL_WGROUP_LEAVING);
    atomic_store(&r[2].say, 0);
    UNTIL(r[1].heard == 0);
    end_all(r, 3);
}
END_TEST

static void refused(rank *other, const char *what, const char *who)
{
    static rank zero;
    start(&zero, 0, 2);
    go(other);
    UNTIL(other->ended);
    pthread_join(other->thread, NULL);
    ck_assert_int_eq(other->st, SL_ERR_REFUSED);
    ck_assert_msg(strstr(other->err.text, what) && strstr(other->err.text, who), "%s", other->err.text);
    /* One that fits is taken afterwards. */
    static rank one;
    start(&one, 1, 2);
    UNTIL(zero.whole && one.whole);
    end(&one);
    end(&zero);
}

START_TEST(disagreements_are_refused)
{
    static rank r;
    sl_identity other = identity[1];
    memset(&r, 0, sizeof r);
    r.o = options(1, 2);
    switch (_i) {
    case 0:
        r.o.build = "0.0.1";
        refused(&r, "it is build 0.0.1, rank 0 is build", "rank 1 of the group");
        break;
    case 1:
        other.fingerprint =
            WHOLE; /* its own tensors must be those of rank 0's checkpoint, whatever it says else */
        r.o.id = &other;
        refused(&r,
                "the tensors that it loads have the fingerprint 00000000000000020000000000000001, the same "
                "tensors of rank 0's checkpoint 00000000000000010000000000000003",
                "process");
        break;
    case 2:
        r.o.formats = "fp8 rows";
        refused(&r, "its formats are fp8 rows, those of rank 0 f32 rows", "test");
        break;
    case 3:
        r.o.ranks = 3;
        refused(&r, "it expects a group of 3 ranks, rank 0 one of 2", "rank 1");
        break;
    case 4:
        r.o.step_tokens = 32;
        refused(&r, "its steps have up to 32 tokens, those of rank 0 64 (decode.max_batch)", "rank 1");
        break;
    case 5:
        r.o.role = SL_ROLE_PREFILL;
        refused(&r, "it belongs to prefill group 0, this address to decode group 0", "rank 1");
        break;
    case 6:
        r.o.cluster_tag = "other";
        refused(&r, "cluster.tag is \"other\"", "rank 1");
        break;
    case 7: /* each alone would fit */
        r.o.host_bytes = 6ull << 30;
        refused(&r, "the host stores of 2 ranks on",
                "ask for 12.00 GiB together, of which 10.00 GiB are available");
        break;
    case 8:
        r.o.library = "NCCL 2.27.3";
        refused(&r, "it has NCCL 2.27.3, rank 0 has NCCL 2.28.9", "rank 1");
        break;
    case 9:
        r.o.device = "GPU-1";
        refused(&r, "its device GPU-1 is that of rank 0 (test, process", "rank 1");
        break;
    default:
        r.o.group = 3;
        refused(&r, "it belongs to decode group 3", "rank 1");
    }
}
END_TEST

START_TEST(a_missing_rank_is_named)
{
    static rank r[3];
    for (int k = 0; k < 2; k++) {
        memset(&r[k], 0, sizeof r[k]);
        r[k].o = options(k, 3);
        r[k].o.meet_ms = k == 0 ? 400 : PATIENCE_MS;
        go(&r[k]);
    }
    UNTIL(r[0].ended && r[1].ended);
    end_all(r, 2);
    ck_assert_int_eq(r[0].st, SL_ERR_TIMEOUT);
    ck_assert_msg(strstr(r[0].err.text, "rank 2 of 3 did not join") ||
                      strstr(r[0].err.text, "rank 1, 2 of 3"),
                  "%s", r[0].err.text);
    /* The one that was there learns it from rank 0, unless it joined too late. */
    ck_assert_int_eq(r[1].st, SL_ERR_REFUSED);
    ck_assert_msg(strstr(r[1].err.text, "did not join the group"), "%s", r[1].err.text);
}
END_TEST

START_TEST(rank_zero_is_missing)
{
    static rank r;
    memset(&r, 0, sizeof r);
    r.o = options(1, 2);
    r.o.meet_ms = 150;
    go(&r);
    UNTIL(r.ended);
    end(&r);
    ck_assert_int_eq(r.st, SL_ERR_TIMEOUT);
    ck_assert_msg(strstr(r.err.text, "rank 1 of 2") && strstr(r.err.text, ":7310"), "%s", r.err.text);
}
END_TEST

START_TEST(a_rank_given_twice)
{
    static rank r[2], again, zero;
    start_all(r, 2);
    start_with(&again, 1, 2, QUICK_MS);
    UNTIL(
        again
            .ended); /* it tries for some time, because it might be the replacement of a rank that was just lost */
    end(&again);
    ck_assert_int_eq(again.st, SL_ERR_REFUSED);
    ck_assert_msg(strstr(again.err.text, "rank 1 is taken by test, process"), "%s", again.err.text);
    start(&zero, 0, 2);
    UNTIL(zero.ended);
    end(&zero);
    ck_assert_msg(strstr(zero.err.text, "the group's address") != NULL, "%s", zero.err.text);
    ck_assert(r[0].whole && r[1].whole && r[0].broken == 0);
    end_all(r, 2);
}
END_TEST

/* The lost rank is replaced; the others keep running and form with it. */
static void lose(int victim)
{
    static rank r[3], next;
    start_all(r, 3);
    atomic_store(&r[(victim + 1) % 3].want, 1000000);
    UNTIL(r[(victim + 1) % 3].done > 10);
    end(&r[victim]);
    for (int k = 0; k < 3; k++)
        UNTIL(k == victim || r[k].broken == 1);
    start(&next, victim, 3);
    for (int k = 0; k < 3; k++)
        UNTIL(k == victim || r[k].formed == 2);
    UNTIL(next.whole);
    int before = atomic_load(&r[(victim + 1) % 3].done);
    UNTIL(r[(victim + 1) % 3].done > before + 10);
    UNTIL(next.others > 5);
    atomic_store(&r[(victim + 1) % 3].want, 0);
    end_all(r, 3);
    end(&next);
}

START_TEST(a_lost_rank_is_replaced)
{
    two_hosts = _i >= 3;
    lose(_i % 3);
}
END_TEST

/* Every rank learns from rank 0 which checkpoint the group has. */
START_TEST(the_fingerprint_comes_from_rank_zero)
{
    static rank r[3];
    start_all(r, 3);
    for (int k = 0; k < 3; k++)
        ck_assert_msg(sl_key_eq(sl_wgroup_fingerprint(r[k].g), WHOLE), "rank %d", k);
    end_all(r, 3);
}
END_TEST

/* Rank 0 is replaced by one whose checkpoint has the same tensors for rank 1, and others elsewhere: rank 1, which has
 * computed with the former one, ends with the reason. */
START_TEST(another_checkpoint_at_rank_zero)
{
    static rank r[2], zero;
    start_all(r, 2);
    end(&r[0]);
    UNTIL(r[1].broken == 1);
    memset(&zero, 0, sizeof zero);
    zero.o = options(0, 2);
    zero.o.whole.lo ^= 1;
    go(&zero);
    UNTIL(r[1].ended);
    end(&r[1]);
    ck_assert_int_eq(r[1].st, SL_ERR_REFUSED);
    ck_assert_msg(strstr(r[1].err.text, "rank 0 is a new process with another checkpoint") != NULL, "%s",
                  r[1].err.text);
    end(&zero);
}
END_TEST

/* A rank whose links are silent, and which takes no turns, as a stopped process. */
START_TEST(a_silent_rank)
{
    static rank r[3];
    int silent = _i % 2;
    two_hosts = _i >= 2;
    for (int k = 0; k < 3; k++)
        start_with(&r[k], k, 3, QUICK_MS);
    UNTIL(r[0].whole && r[1].whole && r[2].whole);
    atomic_store(&r[silent].frozen, true);
    for (int k = 0; k < 3; k++)
        UNTIL(k == silent || !r[k].whole);
    atomic_store(&r[silent].frozen, false);
    for (int k = 0; k < 3; k++)
        UNTIL(r[k].formed >= 2 && r[k].whole);
    end_all(r, 3);
}
END_TEST

/* A program that connects to rank 0 and says nothing. */
typedef struct stranger {
    sl_transport *tp;
    sl_tp_ep *ep;
    bool connected, failed;
} stranger;

static void stranger_connected(void *arg, sl_tp_ep *ep, sl_status st, const char *why)
{
    (void)ep;
    ck_assert_msg(st == SL_OK, "%s", why);
    ((stranger *)arg)->connected = true;
}

static void stranger_failed(void *arg, sl_tp_ep *ep, sl_status st, const char *why)
{
    (void)ep;
    (void)st;
    (void)why;
    ((stranger *)arg)->failed = true;
}

static void stranger_closed(void *arg, sl_tp_ep *ep)
{
    (void)arg;
    (void)ep;
}

static void stranger_come(stranger *s)
{
    sl_err err = {{0}};
    sl_tp_options o = {
        .fabric = fabric,
        .events = {
            .arg = s, .connected = stranger_connected, .failed = stranger_failed, .closed = stranger_closed}};
    memset(s, 0, sizeof *s);
    ck_assert_int_eq(sl_transport_create("loopback", &o, &s->tp, &err), SL_OK);
    ck_assert_msg(sl_tp_connect(s->tp, address, &s->ep, &err) == SL_OK, "%s", err.text);
    UNTIL((sl_tp_progress(s->tp), s->connected));
}

START_TEST(who_never_joins_is_closed)
{
    /* 0: its time ends. 1: many come before anybody's time ends, so the first one has to go. */
    enum { MANY = 65 };
    static stranger s[MANY];
    rank r[2];
    int n = _i ? MANY : 1;
    start_with(&r[0], 0, 2, _i ? PATIENCE_MS : QUICK_MS);
    UNTIL(atomic_load(&r[0].listening));
    for (int i = 0; i < n; i++)
        stranger_come(&s[i]);
    UNTIL((sl_tp_progress(s[0].tp), s[0].failed));
    for (int i = 1; i < n; i++) {
        sl_tp_progress(s[i].tp);
        ck_assert_msg(!s[i].failed, "stranger %d was closed, too", i);
    }
    start_with(&r[1], 1, 2, _i ? PATIENCE_MS : QUICK_MS); /* they do no harm to the group */
    UNTIL(atomic_load(&r[0].whole) && atomic_load(&r[1].whole));
    for (int i = 0; i < n; i++)
        sl_tp_destroy(s[i].tp);
    end(&r[1]);
    end(&r[0]);
}
END_TEST

START_TEST(bad_options)
{
    sl_err err = {{0}};
    sl_wgroup *g;
    sl_wgroup_opts o = options(2, 2);
    ck_assert_int_eq(sl_wgroup_start(&o, &g, &err), SL_ERR_INVALID);
    o = options(0, 1);
    ck_assert_int_eq(sl_wgroup_start(&o, &g, &err), SL_ERR_INVALID);
    o = options(0, 2);
    o.address = "nowhere";
    ck_assert_int_eq(sl_wgroup_start(&o, &g, &err), SL_ERR_INVALID);
    o.address = "host:0";
    ck_assert_int_eq(sl_wgroup_start(&o, &g, &err), SL_ERR_INVALID);
    ck_assert_msg(strstr(err.text, "needs a port") != NULL, "%s", err.text);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("group");
    TCase *t = tcase_create("group");
    tcase_set_timeout(t, 240);
    tcase_add_checked_fixture(t, setup, teardown);
    tcase_add_loop_test(t, ranks_step_together, 0, 2);
    tcase_add_test(t, flags_reach_the_others);
    tcase_add_loop_test(t, disagreements_are_refused, 0, 11);
    tcase_add_test(t, a_missing_rank_is_named);
    tcase_add_test(t, rank_zero_is_missing);
    tcase_add_test(t, a_rank_given_twice);
    tcase_add_test(t, the_fingerprint_comes_from_rank_zero);
    tcase_add_test(t, another_checkpoint_at_rank_zero);
    tcase_add_loop_test(t, a_lost_rank_is_replaced, 0, 6);
    tcase_add_loop_test(t, a_silent_rank, 0, 4);
    tcase_add_loop_test(t, who_never_joins_is_closed, 0, 2);
    tcase_add_test(t, bad_options);
    suite_add_tcase(s, t);
    SRunner *sr = srunner_create(s);
    srunner_run_all(sr, CK_NORMAL);
    int failed = srunner_ntests_failed(sr);
    srunner_free(sr);
    return failed ? 1 : 0;
}
