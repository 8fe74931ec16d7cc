/*
 * Groups that fail: a rank is killed, stopped, missing, different, or calls something else. Every other rank must get a
 * status within the deadline, with the cause, and must be able to form another group with the same backend.
 */
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "tests/unit/collectives/cases.h"

#define SLACK_MS 4000 /* after the deadline: the machine may be busy */

static bool is_cpu(const cg_rank *r)
{
    return strcmp(r->backend, "cpu") == 0;
}

static bool is_last(const cg_rank *r)
{
    return r->rank == r->ranks - 1;
}

/* One all_gather, complete. */
static sl_status once(cg_rank *r, sl_err *err)
{
    static uint32_t mine, all[SL_COMM_RANKS_MAX];
    void *src = cg_mem(r, &mine, 4), *dst = cg_mem(r, NULL, sizeof all);
    sl_status st = sl_comm_all_gather(r->c, src, dst, 4, err);

    if (st == SL_OK)
        st = sl_be_sync(r->be, err);
    if (st == SL_OK || is_cpu(r)) { /* a device that failed frees at its end */
        cg_free(r, src);
        cg_free(r, dst);
    }
    return st;
}

/* Collectives until one fails, which must be within the deadline of the one before. */
static sl_status until_failure(cg_rank *r, sl_err *err)
{
    for (;;) {
        uint64_t start = sl_now_ns();
        sl_status st = once(r, err);
        uint64_t ms = (sl_now_ns() - start) / 1000000;

        if (st == SL_OK)
            continue;
        if (ms > r->opts.deadline_ms + SLACK_MS)
            cg_fail(r, "the failure came after %llu ms, the deadline is %u", (unsigned long long)ms,
                    r->opts.deadline_ms);
        return st;
    }
}

static void expect(cg_rank *r, sl_status st, const sl_err *err, sl_status want, const char *text)
{
    if (st != want || (text && !strstr(err->text, text)))
        cg_fail(r, "got %s (%s), not %s with \"%s\"", sl_status_name(st), err->text, sl_status_name(want),
                text ? text : "");
}

/* Leaves the broken group; the first n ranks form another one and use it. */
static void form_again(cg_rank *r, int32_t n)
{
    sl_err err = {{0}};

    expect(r, sl_comm_state(r->c, &err), &err, sl_comm_state(r->c, NULL), NULL);
    if (sl_comm_state(r->c, NULL) == SL_OK)
        cg_fail(r, "the broken group says that it is whole");
    sl_comm_destroy(r->c);
    r->c = NULL;
    if (r->failed || r->rank >= n)
        return;
    r->group = 1;
    r->opts.ranks = n;
    r->opts.deadline_ms = 20000;
    if (cg_form(r))
        for (int i = 0; i < 20 && !r->failed; i++)
            cg_ok(r, once(r, &err), &err, "a collective of the second group");
}

static void killed(cg_rank *r, const void *arg)
{
    sl_err err = {{0}};
    sl_status st;
    uint64_t start;

    (void)arg;
    for (int i = 0; i < 50 && !r->failed; i++)
        cg_ok(r, once(r, &err), &err, "a collective before the death");
    if (is_last(r))
        raise(SIGKILL);
    start = sl_now_ns();
    st = until_failure(r, &err);
    if (is_cpu(r)) {
        expect(r, st, &err, SL_ERR_PEER, "its process has ended");
        if (sl_comm_lost(r->c) != r->ranks - 1)
            cg_fail(r, "lost is rank %d", sl_comm_lost(r->c));
        if (sl_now_ns() - start > 3000000000ull)
            cg_fail(r, "the death was noticed after %.1f s", (double)(sl_now_ns() - start) / 1e9);
    }
    form_again(r, r->ranks - 1);
}

static void stopped(cg_rank *r, const void *arg)
{
    sl_err err = {{0}};
    sl_status st;

    (void)arg;
    for (int i = 0; i < 50 && !r->failed; i++)
        cg_ok(r, once(r, &err), &err, "a collective before the stop");
    if (is_last(r)) {
        raise(SIGSTOP); /* the parent continues it after the others have given up */
        st = until_failure(r, &err);
    } else {
        st = until_failure(r, &err);
        cg_gave_up(r);
    }
    if (is_cpu(r) && sl_comm_lost(r->c) != r->ranks - 1) /* which the stopped rank says, too */
        cg_fail(r, "lost is rank %d", sl_comm_lost(r->c));
    if (is_cpu(r))
        expect(r, st, &err, SL_ERR_TIMEOUT, "did not arrive within");
    form_again(r, r->ranks);
}

static void *abort_later(void *arg)
{
    usleep(100000);
    sl_comm_abort(arg);
    return NULL;
}

static void aborted(cg_rank *r, const void *arg)
{
    sl_err err = {{0}};
    pthread_t thread;
    sl_status st;

    (void)arg;
    if (is_last(r)) { /* does not take part; the others wait until it aborts, from a thread of its own */
        if (is_cpu(r)) {
            pthread_create(&thread, NULL, abort_later, r->c);
            pthread_join(thread, NULL);
        }
        st = sl_comm_state(r->c, &err);
    } else {
        if (!is_cpu(r))
            pthread_create(&thread, NULL, abort_later, r->c);
        st = until_failure(r, &err);
        if (!is_cpu(r))
            pthread_join(thread, NULL);
    }
    if (is_cpu(r) || !is_last(r))
        expect(r, st, &err, SL_ERR_CANCELLED, "abort");
    if (is_cpu(r))
        form_again(r, r->ranks);
}

/* A rank aborts while it waits for one that does not come. */
static void aborted_unformed(cg_rank *r, const void *arg)
{
    sl_err err = {{0}};
    pthread_t thread;
    uint64_t start = sl_now_ns();

    (void)arg;
    if (is_last(r) || !cg_ok(r, cg_enter(r, &err), &err, "enter"))
        return;
    if (r->rank == 1)
        pthread_create(&thread, NULL, abort_later, r->c);
    expect(r, sl_comm_form(r->c, &err), &err, SL_ERR_CANCELLED, "aborted by rank 1");
    if (r->rank == 1)
        pthread_join(thread, NULL);
    if (sl_now_ns() - start > r->opts.deadline_ms / 2 * 1000000ull)
        cg_fail(r, "form ended at the deadline");
}

static void missing(cg_rank *r, const void *arg)
{
    sl_err err = {{0}};
    char name[32];
    uint64_t start = sl_now_ns();

    (void)arg;
    snprintf(name, sizeof name, "rank %d", r->ranks - 1);
    if (is_last(r) || !cg_ok(r, cg_enter(r, &err), &err, "enter"))
        return;
    expect(r, sl_comm_form(r->c, &err), &err, SL_ERR_TIMEOUT, is_cpu(r) ? name : NULL);
    if (sl_now_ns() - start > (r->opts.deadline_ms + SLACK_MS) * 1000000ull)
        cg_fail(r, "form ended after the deadline");
}

static void other_geometry(cg_rank *r, const void *arg)
{
    sl_err err = {{0}};

    (void)arg;
    if (is_last(r)) {
        r->opts.geometry.lo++;
        expect(r, cg_enter(r, &err), &err, SL_ERR_REFUSED, "geometry");
        return;
    }
    if (!cg_ok(r, cg_enter(r, &err), &err, "enter"))
        return;
    if (is_cpu(r))
        expect(r, sl_comm_form(r->c, &err), &err, SL_ERR_REFUSED, "geometry");
    else
        expect(r, sl_comm_form(r->c, &err), &err, SL_ERR_TIMEOUT, NULL);
}

static void other_size(cg_rank *r, const void *arg)
{
    sl_err err = {{0}};

    (void)arg;
    if (is_last(r)) {
        r->opts.ranks++;
        expect(r, cg_enter(r, &err), &err, SL_ERR_REFUSED, "expects a group of");
    } else if (cg_ok(r, cg_enter(r, &err), &err, "enter")) {
        expect(r, sl_comm_form(r->c, &err), &err, SL_ERR_REFUSED, "expects a group of");
    }
}

static void twice(cg_rank *r, const void *arg)
{
    sl_err err = {{0}};
    sl_status st;

    (void)arg;
    if (r->ranks > 2 && is_last(r)) {
        while (!atomic_load(&r->shared->step[1]))
            usleep(100);
        r->opts.rank = 1;
        st = cg_enter(r, &err);
        if (st == SL_OK) /* over sockets the founder says it */
            st = sl_comm_form(r->c, &err);
        expect(r, st, &err, SL_ERR_REFUSED, "is taken");
        return;
    }
    if (cg_ok(r, cg_enter(r, &err), &err, "enter")) {
        atomic_store(&r->shared->step[r->rank], 1);
        expect(r, sl_comm_form(r->c, &err), &err, SL_ERR_TIMEOUT, NULL);
    }
}

static void founder_gone(cg_rank *r, const void *arg)
{
    sl_err err = {{0}};

    (void)arg;
    if (r->rank == 0) {
        if (cg_ok(r, cg_enter(r, &err), &err, "found")) {
            sl_comm_destroy(r->c);
            r->c = NULL;
        }
        atomic_store(&r->shared->step[0], 1);
        return;
    }
    while (!atomic_load(&r->shared->step[0]))
        usleep(100);
    expect(r, cg_enter(r, &err), &err, SL_ERR_NOT_FOUND, "founder");
}

static void no_invitation(cg_rank *r, const void *arg)
{
    sl_comm_invite nonsense = {{1, 2, 3}};
    sl_comm *c = NULL;
    sl_err err = {{0}};

    (void)arg;
    if (r->rank == 0) {
        r->opts.rank = r->ranks;
        expect(r, sl_comm_found(r->be, &r->opts, &nonsense, &c, &err), &err, SL_ERR_INVALID, "is not within");
        r->opts.rank = 1;
        expect(r, sl_comm_found(r->be, &r->opts, &nonsense, &c, &err), &err, SL_ERR_INVALID, "cannot found");
        r->opts = (sl_comm_opts){.ranks = SL_COMM_RANKS_MAX + 1, .deadline_ms = 1};
        expect(r, sl_comm_found(r->be, &r->opts, &nonsense, &c, &err), &err, SL_ERR_INVALID, "ranks");
        r->opts = (sl_comm_opts){.ranks = 2};
        expect(r, sl_comm_found(r->be, &r->opts, &nonsense, &c, &err), &err, SL_ERR_INVALID, "deadline");
        return;
    }
    expect(r, sl_comm_join(r->be, &r->opts, &nonsense, &c, &err), &err, SL_ERR_INVALID, "no invitation");
}

static void left(cg_rank *r, const void *arg)
{
    sl_err err = {{0}};

    (void)arg;
    cg_ok(r, once(r, &err), &err, "a collective");
    if (!is_last(r))
        expect(r, until_failure(r, &err), &err, SL_ERR_PEER, "has left");
}

static void disagree(cg_rank *r, const void *arg)
{
    uint8_t a[64], b[64 * SL_COMM_RANKS_MAX];
    sl_err err = {{0}};
    sl_status st;

    (void)arg;
    memset(a, 0, sizeof a);
    st = is_last(r) ? sl_comm_all_gather(r->c, a, b, 8, &err) : sl_comm_all_gather(r->c, a, b, 16, &err);
    expect(r, st, &err, SL_ERR_INVALID, "the ranks disagree");
    expect(r, sl_comm_barrier(r->c, &err), &err, SL_ERR_INVALID, "the ranks disagree");
}

static void bad_count(cg_rank *r, const void *arg)
{
    static uint8_t send[8 * SL_COMM_RANKS_MAX], recv[8 * SL_COMM_RANKS_MAX];
    int32_t count[SL_COMM_RANKS_MAX] = {0}, got[SL_COMM_RANKS_MAX];
    sl_comm_rows p = {
        .send = send, .send_count = count, .recv = recv, .recv_count = got, .row_bytes = 4, .cap = 2};
    sl_err err = {{0}};

    (void)arg;
    if (is_last(r))
        count[0] = 3;
    expect(r, sl_comm_all_to_all(r->c, &p, &err), &err, SL_ERR_INVALID, "sends 3 rows to rank 0");
}

static void bad_call(cg_rank *r, const void *arg)
{
    sl_err err = {{0}};
    sl_status st;

    (void)arg;
    if (is_last(r)) {
        st = sl_comm_all_gather(r->c, NULL, NULL, 4, &err);
        expect(r, st, &err, SL_ERR_INVALID, "NULL");
    } else {
        expect(r, until_failure(r, &err), &err, SL_ERR_CANCELLED, "abort");
    }
}

/* Rows cannot have been placed in memory that is not the group's. */
static void placed_elsewhere(cg_rank *r, const void *arg)
{
    static uint8_t send[8 * SL_COMM_RANKS_MAX], recv[8 * SL_COMM_RANKS_MAX];
    int32_t count[SL_COMM_RANKS_MAX] = {0}, got[SL_COMM_RANKS_MAX];
    sl_comm_rows p = {.send = send,
                      .send_count = count,
                      .recv = recv,
                      .recv_count = got,
                      .row_bytes = 4,
                      .cap = 2,
                      .placed = SL_COMM_PLACED};
    sl_err err = {{0}};

    (void)arg;
    if (is_last(r))
        expect(r, sl_comm_all_to_all(r->c, &p, &err), &err, SL_ERR_INVALID, "not in memory of the group");
    else
        expect(r, until_failure(r, &err), &err, SL_ERR_CANCELLED, "abort");
}

const cc_failure cc_failures[] = {
    {.name = "a rank is killed", .fn = killed, .least_ranks = 2, .deadline_ms = 3000, .kills_last = true},
    {.name = "a rank is stopped",
     .fn = stopped,
     .least_ranks = 2,
     .deadline_ms = 1000,
     .stop_ms = 120000,
     .stops_last = true,
     .waits = true},
    {.name = "abort from another thread", .fn = aborted, .least_ranks = 2, .deadline_ms = 20000},
    {.name = "abort while the group forms",
     .fn = aborted_unformed,
     .least_ranks = 3,
     .deadline_ms = 20000,
     .unformed = true,
     .cpu_only = true},
    {.name = "a rank does not come",
     .fn = missing,
     .least_ranks = 2,
     .deadline_ms = 1500,
     .unformed = true,
     .waits = true},
    {.name = "a rank has another geometry",
     .fn = other_geometry,
     .least_ranks = 2,
     .deadline_ms = 3000,
     .unformed = true},
    {.name = "a rank expects another number of ranks",
     .fn = other_size,
     .least_ranks = 2,
     .deadline_ms = 20000,
     .unformed = true,
     .cpu_only = true},
    {.name = "two processes are one rank",
     .fn = twice,
     .least_ranks = 3,
     .deadline_ms = 1500,
     .unformed = true,
     .cpu_only = true,
     .waits = true},
    {.name = "the founder has gone",
     .fn = founder_gone,
     .least_ranks = 2,
     .deadline_ms = 1000,
     .unformed = true,
     .cpu_only = true},
    {.name = "bad options", .fn = no_invitation, .least_ranks = 2, .deadline_ms = 1000, .unformed = true},
    {.name = "a rank leaves", .fn = left, .least_ranks = 2, .deadline_ms = 20000, .cpu_only = true},
    {.name = "the ranks disagree", .fn = disagree, .least_ranks = 2, .deadline_ms = 20000, .cpu_only = true},
    {.name = "a count is out of range",
     .fn = bad_count,
     .least_ranks = 2,
     .deadline_ms = 20000,
     .cpu_only = true},
    {.name = "a rank passes bad parameters",
     .fn = bad_call,
     .least_ranks = 2,
     .deadline_ms = 20000,
     .cpu_only = true},
    {.name = "rows are placed in other memory",
     .fn = placed_elsewhere,
     .least_ranks = 2,
     .deadline_ms = 20000,
     .cpu_only = true},
};
const size_t cc_n_failures = SL_COUNT(cc_failures);
