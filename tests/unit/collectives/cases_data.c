/*
 * Healthy groups: what every rank receives is compared, byte by byte, with what each sender must have sent: every byte
 * is a function of the case, the sender, the receiver and its place. Memory after the output must not change. Ranks
 * arrive in varying order.
 */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/unit/collectives/cases.h"

#define GUARD 64

static void dawdle(const cg_rank *r, uint64_t seed)
{
    uint32_t us = cg_hash(seed, (uint64_t)r->rank) % 400;

    if (us < 200)
        usleep(us);
}

static uint8_t byte_of(uint64_t seed, int32_t from, int32_t to, size_t i)
{
    return (uint8_t)cg_hash(seed * 131 + (uint64_t)from * 17 + (uint64_t)to, i / 4) ^ (uint8_t)i;
}

static uint8_t *temp(cg_rank *r, size_t bytes)
{
    uint8_t *p = malloc(bytes + GUARD);

    SL_CHECK(p, "no memory");
    (void)r;
    return p;
}

static void check_guard(cg_rank *r, const uint8_t *p)
{
    for (int i = 0; i < GUARD && !r->failed; i++)
        if (p[i] != 0xa5)
            cg_fail(r, "byte %d after the output was written", i);
}

static void check_bytes(cg_rank *r, const uint8_t *got, size_t n, uint64_t seed, int32_t from, int32_t to,
                        size_t first)
{
    for (size_t i = 0; i < n && !r->failed; i++)
        if (got[i] != byte_of(seed, from, to, first + i))
            cg_fail(r, "byte %zu from rank %d is 0x%02x, not 0x%02x", first + i, from, got[i],
                    byte_of(seed, from, to, first + i));
}

/* times */
static void barrier(cg_rank *r, const int64_t *a)
{
    sl_err err = {{0}};

    for (int64_t i = 1; i <= a[0] && !r->failed; i++) {
        dawdle(r, (uint64_t)i);
        atomic_store(&r->shared->step[r->rank], (uint32_t)i);
        if (!cg_ok(r, sl_comm_barrier(r->c, &err), &err, "barrier") ||
            !cg_ok(r, sl_be_sync(r->be, &err), &err, "sync"))
            return;
        for (int32_t q = 0; q < r->ranks; q++)
            if (atomic_load(&r->shared->step[q]) < (uint32_t)i)
                cg_fail(r, "barrier %d: rank %d has not called it yet", (int)i, q);
    }
    cg_ok(r, sl_comm_barrier(r->c, &err), &err, "last barrier");
    cg_ok(r, sl_be_sync(r->be, &err), &err, "sync");
    atomic_store(&r->shared->step[r->rank], 0);
    cg_ok(r, sl_comm_barrier(r->c, &err), &err, "barrier after the reset");
}

/* bytes, times */
static void all_gather(cg_rank *r, const int64_t *a)
{
    size_t n = (size_t)a[0], all = n * (size_t)r->ranks;
    uint8_t *mine = temp(r, n), *got = temp(r, all);
    sl_err err = {{0}};

    for (int64_t k = 0; k < a[1] && !r->failed; k++) {
        uint64_t seed = 1000 + (uint64_t)k;
        void *src, *dst;

        for (size_t i = 0; i < n; i++)
            mine[i] = byte_of(seed, r->rank, 0, i);
        src = cg_mem(r, mine, n);
        dst = cg_mem(r, NULL, all + GUARD);
        dawdle(r, seed);
        if (!r->failed)
            cg_ok(r, sl_comm_all_gather(r->c, src, dst, n, &err), &err, "all_gather");
        if (!r->failed)
            cg_get(r, got, dst, all + GUARD);
        for (int32_t q = 0; q < r->ranks && !r->failed; q++)
            check_bytes(r, got + (size_t)q * n, n, seed, q, 0, 0);
        check_guard(r, got + all);
        cg_free(r, src);
        cg_free(r, dst);
    }
    free(mine);
    free(got);
}

/* bytes, times; every rank says something else in each call, and some are late */
static void agree(cg_rank *r, const int64_t *a)
{
    size_t n = (size_t)a[0];
    uint8_t mine[SL_COMM_AGREE_BYTES], got[SL_COMM_AGREE_BYTES * SL_COMM_RANKS_MAX + GUARD];
    sl_err err = {{0}};

    for (int64_t k = 0; k < a[1] && !r->failed; k++) {
        uint64_t seed = 4000 + (uint64_t)k;

        for (size_t i = 0; i < n; i++)
            mine[i] = byte_of(seed, r->rank, 0, i);
        memset(got, 0xa5, sizeof got);
        if (k % 5 == 0)
            dawdle(r, seed);
        if (!cg_ok(r, sl_comm_agree(r->c, mine, got, n, &err), &err, "agree"))
            return;
        for (int32_t q = 0; q < r->ranks && !r->failed; q++)
            check_bytes(r, got + (size_t)q * n, n, seed, q, 0, 0);
        check_guard(r, got + n * (size_t)r->ranks);
    }
}

/* bytes; from every root */
static void broadcast(cg_rank *r, const int64_t *a)
{
    size_t n = (size_t)a[0];
    uint8_t *mine = temp(r, n);
    sl_err err = {{0}};

    for (int32_t root = 0; root < r->ranks && !r->failed; root++) {
        uint64_t seed = 77 + (uint64_t)root;
        uint8_t *buf;

        memset(mine, 0xa5, n + GUARD);
        for (size_t i = 0; i < n; i++)
            mine[i] = byte_of(seed, r->rank, 1, i);
        buf = cg_mem(r, mine, n + GUARD);
        dawdle(r, seed);
        cg_ok(r, sl_comm_broadcast(r->c, buf, n, root, &err), &err, "broadcast");
        if (!r->failed)
            cg_get(r, mine, buf, n + GUARD);
        check_bytes(r, mine, n, seed, root, 1, 0);
        check_guard(r, mine + n);
        cg_free(r, buf);
    }
    free(mine);
}

/* How many rows rank `from` sends to rank `to`. */
enum { NONE, FULL, RANDOM, ONE_SENDER, ONE_RECEIVER };
static int32_t rows_of(int64_t pattern, uint64_t seed, int32_t from, int32_t to, int32_t cap, int32_t ranks)
{
    switch (pattern) {
    case NONE:
        return 0;
    case FULL:
        return cap;
    case ONE_SENDER:
        return from == (int32_t)(seed % (uint64_t)ranks) ? cap : 0;
    case ONE_RECEIVER:
        return to == (int32_t)(seed % (uint64_t)ranks) ? (cap + 1) / 2 : 0;
    default:
        return (int32_t)(cg_hash(seed * 64 + (uint64_t)from, (uint64_t)to + 999) % (uint32_t)(cap + 1));
    }
}

typedef struct exchange {
    sl_comm_rows p;
    uint8_t *send, *recv;
    int32_t count[SL_COMM_RANKS_MAX];
    size_t block;
} exchange;

static void fill_send(cg_rank *r, exchange *x, int64_t pattern, uint64_t seed)
{
    memset(x->send, 0x5a, x->block * (size_t)r->ranks);
    for (int32_t q = 0; q < r->ranks; q++) {
        size_t n;

        x->count[q] = rows_of(pattern, seed, r->rank, q, x->p.cap, r->ranks);
        n = (size_t)x->count[q] * (size_t)x->p.row_bytes;
        for (size_t i = 0; i < n; i++)
            x->send[(size_t)q * x->block + i] = byte_of(seed, r->rank, q, i);
    }
    cg_put(r, (void *)(uintptr_t)x->p.send, x->send, x->block * (size_t)r->ranks);
    cg_put(r, (void *)(uintptr_t)x->p.send_count, x->count, 4 * (size_t)r->ranks);
}

static void check_recv(cg_rank *r, exchange *x, int64_t pattern, uint64_t seed)
{
    int32_t count[SL_COMM_RANKS_MAX];

    cg_get(r, x->recv, x->p.recv, x->block * (size_t)r->ranks + GUARD);
    cg_get(r, count, x->p.recv_count, 4 * (size_t)r->ranks);
    for (int32_t q = 0; q < r->ranks && !r->failed; q++) {
        int32_t want = rows_of(pattern, seed, q, r->rank, x->p.cap, r->ranks);

        if (count[q] != want)
            cg_fail(r, "%d rows from rank %d, not %d", count[q], q, want);
        else
            check_bytes(r, x->recv + (size_t)q * x->block, (size_t)want * (size_t)x->p.row_bytes, seed, q,
                        r->rank, 0);
    }
    check_guard(r, x->recv + x->block * (size_t)r->ranks);
}

static void open_exchange(cg_rank *r, exchange *x, int64_t row_bytes, int64_t cap)
{
    size_t all;

    *x = (exchange){.p = {.row_bytes = row_bytes, .cap = (int32_t)cap}, .block = (size_t)(row_bytes * cap)};
    all = x->block * (size_t)r->ranks;
    x->send = temp(r, all);
    x->recv = temp(r, all);
    x->p.send = cg_mem(r, NULL, all);
    x->p.recv = cg_mem(r, NULL, all + GUARD);
    x->p.send_count = cg_mem(r, NULL, 4 * (size_t)r->ranks);
    x->p.recv_count = cg_mem(r, NULL, 4 * (size_t)r->ranks);
}

static void close_exchange(cg_rank *r, exchange *x)
{
    cg_free(r, (void *)(uintptr_t)x->p.send);
    cg_free(r, x->p.recv);
    cg_free(r, (void *)(uintptr_t)x->p.send_count);
    cg_free(r, x->p.recv_count);
    free(x->send);
    free(x->recv);
}

/* In two halves, with work on the main stream between them. */
static sl_status exchange_in_halves(cg_rank *r, const exchange *x, void *work, sl_err *err)
{
    SL_TRY(sl_comm_all_to_all_begin(r->c, &x->p, err));
    sl_status st = sl_be_fill(r->be, work, 1, GUARD, err), end = sl_comm_all_to_all_end(r->c, err);
    return st == SL_OK ? end : st;
}

static sl_status run_exchange(cg_rank *r, const exchange *x, void *work, sl_err *err)
{
    return work ? exchange_in_halves(r, x, work, err) : sl_comm_all_to_all(r->c, &x->p, err);
}

/* Every second one in two halves: row_bytes, cap, pattern, times */
static void all_to_all(cg_rank *r, const int64_t *a)
{
    exchange x;
    sl_err err = {{0}};
    void *work = cg_mem(r, NULL, GUARD);

    open_exchange(r, &x, a[0], a[1]);
    for (int64_t k = 0; k < a[3] && !r->failed; k++) {
        uint64_t seed = (uint64_t)(k * 7 + a[0] + a[2]);

        fill_send(r, &x, a[2], seed);
        dawdle(r, seed);
        if (!r->failed && cg_ok(r, run_exchange(r, &x, k % 2 ? work : NULL, &err), &err, "all_to_all"))
            check_recv(r, &x, a[2], seed);
    }
    cg_free(r, work);
    close_exchange(r, &x);
}

/* What work of this rank has placed before the exchange. The own block of send then is what must not be read. */
static void place_rows(cg_rank *r, const exchange *x)
{
    sl_err err = {{0}};

    for (int32_t q = 0; q < r->ranks && !r->failed; q++) {
        uint8_t *to = sl_comm_at(r->c, x->p.recv, q);

        if (x->p.placed == SL_COMM_OWN_PLACED && q != r->rank)
            continue;
        if (!to)
            cg_fail(r, "the memory of rank %d cannot be reached, but that of this rank is shared", q);
        else
            cg_ok(r,
                  sl_be_copy(r->be, to + (size_t)r->rank * x->block, x->send + (size_t)q * x->block, x->block,
                             &err),
                  &err, "copy");
    }
    /* What is placed is not read from send. */
    for (int32_t q = 0; q < r->ranks && !r->failed; q++)
        if (x->p.placed == SL_COMM_PLACED || q == r->rank)
            cg_ok(r,
                  sl_be_fill(r->be, (uint8_t *)(uintptr_t)x->p.send + (size_t)q * x->block, 0xee, x->block,
                             &err),
                  &err, "fill");
}

/* Exchanges whose rows are written into memory of the receivers: by the exchange, then all except the own block, then none:
 * row_bytes, cap, pattern, times. Without such memory they are ordinary ones. */
static void memory(cg_rank *r, const int64_t *a)
{
    exchange x;
    sl_err err = {{0}};
    void *own, *mem = NULL, *work = cg_mem(r, NULL, GUARD);

    open_exchange(r, &x, a[0], a[1]);
    own = x.p.recv;
    if (!cg_ok(r, sl_comm_memory(r->c, x.block * (size_t)r->ranks + GUARD, &mem, &err), &err, "memory"))
        return;
    if (mem && sl_comm_at(r->c, mem, r->rank) != mem)
        cg_fail(r, "a rank's own place in its memory is elsewhere");
    if (sl_comm_at(r->c, own, 0))
        cg_fail(r, "ordinary memory is said to be shared");
    x.p.recv = mem ? mem : own;
    for (int64_t k = 0; k < a[3] && !r->failed; k++) {
        uint64_t seed = (uint64_t)(k * 11 + a[0] + a[2]);

        cg_ok(r, sl_be_fill(r->be, x.p.recv, 0xa5, x.block * (size_t)r->ranks + GUARD, &err), &err, "fill");
        cg_ok(r, sl_comm_barrier(r->c, &err), &err, "barrier"); /* before it no rank writes to another */
        x.p.placed = mem ? (sl_comm_where)(k % 3) : SL_COMM_IN_SEND;
        fill_send(r, &x, a[2], seed);
        dawdle(r, seed);
        if (x.p.placed != SL_COMM_IN_SEND)
            place_rows(r, &x);
        if (!r->failed && cg_ok(r, run_exchange(r, &x, k % 2 ? work : NULL, &err), &err, "all_to_all"))
            check_recv(r, &x, a[2], seed);
    }
    x.p.recv = own;
    cg_free(r, work);
    close_exchange(r, &x);
}

/* The statistics of `times` exchanges and gathers, against what was sent: exchanges and gathers that this rank has made
 * before are in `before`. halves: they were begun and ended on a backend with a side stream. */
static void check_stats(cg_rank *r, const exchange *x, const sl_comm_stats *before, int64_t pattern,
                        uint64_t seed, int64_t times, bool halves)
{
    bool library = strncmp(sl_comm_describe(r->c), "NCCL", 4) == 0; /* it moves whole blocks */
    uint64_t rows = 0, row = (uint64_t)x->p.row_bytes, got;
    uint64_t blocks = (uint64_t)times * (uint64_t)(r->ranks - 1) * (uint64_t)x->block;
    sl_comm_stats now;

    for (int64_t k = 0; k < times; k++)
        for (int32_t q = 0; q < r->ranks; q++)
            rows += q == r->rank
                        ? 0
                        : (uint64_t)rows_of(pattern, seed + (uint64_t)k, r->rank, q, x->p.cap, r->ranks);
    sl_comm_stats_get(r->c, &now);
    got = now.exchange_bytes - before->exchange_bytes;
    if (r->opts.library_only ? got != blocks : got != rows * row && !(library && got == blocks))
        cg_fail(r, "%llu bytes of exchanges are counted; rows have %llu, blocks %llu",
                (unsigned long long)got, (unsigned long long)(rows * row), (unsigned long long)blocks);
    if (now.exchanges - before->exchanges != (uint64_t)times ||
        now.gathers - before->gathers != (uint64_t)times)
        cg_fail(r, "%llu exchanges and %llu gathers are counted, there were %d",
                (unsigned long long)(now.exchanges - before->exchanges),
                (unsigned long long)(now.gathers - before->gathers), (int)times);
    uint64_t exposed = now.exchange_ns - before->exchange_ns, hidden = now.hidden_ns - before->hidden_ns;
    if (halves != (hidden > 0) || halves == (exposed > 0) || now.gather_ns == before->gather_ns)
        cg_fail(r, "exchanges took %llu ns and hidden %llu, gathers %llu", (unsigned long long)exposed,
                (unsigned long long)hidden, (unsigned long long)(now.gather_ns - before->gather_ns));
    uint64_t waited = now.wait_ns - before->wait_ns;
    if (waited > exposed + hidden || (waited == 0 && r->ranks > 1 && !library))
        cg_fail(r, "of %llu ns of exchanges %llu are counted as waiting",
                (unsigned long long)(exposed + hidden), (unsigned long long)waited);
}

/* Several collectives in one graph, launched with other data and other counts each time: row_bytes, cap, launches, in halves */
static void graph(cg_rank *r, const int64_t *a)
{
    exchange x;
    sl_graph *g = NULL;
    sl_err err = {{0}};
    uint32_t id = 0, ids[SL_COMM_RANKS_MAX];
    sl_comm_stats before;
    void *src, *dst, *work;

    if (!(sl_backend_caps(r->be) & SL_BE_GRAPHS))
        return;
    open_exchange(r, &x, a[0], a[1]);
    src = cg_mem(r, &id, 4);
    dst = cg_mem(r, NULL, 4 * SL_COMM_RANKS_MAX);
    work = cg_mem(r, NULL, GUARD);
    for (int pass = 0; pass < 2 && !r->failed; pass++) { /* once outside of a capture, then recorded */
        fill_send(r, &x, RANDOM, 5);
        cg_ok(r, sl_be_sync(r->be, &err), &err, "sync");
        if (pass && !r->failed)
            cg_ok(r, sl_be_capture_begin(r->be, &err), &err, "capture");
        if (!r->failed)
            cg_ok(r, sl_comm_all_gather(r->c, src, dst, 4, &err), &err, "all_gather");
        if (!r->failed)
            cg_ok(r, run_exchange(r, &x, a[3] ? work : NULL, &err), &err, "all_to_all");
        if (!r->failed)
            cg_ok(r, sl_comm_barrier(r->c, &err), &err, "barrier");
        if (pass && !r->failed)
            cg_ok(r, sl_be_capture_end(r->be, &g, &err), &err, "end of the capture");
        cg_ok(r, sl_be_sync(r->be, &err), &err, "sync");
    }
    sl_comm_stats_get(r->c, &before);
    for (int64_t k = 0; k < a[2] && !r->failed; k++) {
        id = (uint32_t)(k * 100 + r->rank);
        fill_send(r, &x, RANDOM, (uint64_t)k + 50);
        cg_put(r, src, &id, 4);
        dawdle(r, (uint64_t)k);
        if (!r->failed && cg_ok(r, sl_be_graph_launch(r->be, g, &err), &err, "launch"))
            check_recv(r, &x, RANDOM, (uint64_t)k + 50);
        cg_get(r, ids, dst, 4 * (size_t)r->ranks);
        for (int32_t q = 0; q < r->ranks && !r->failed; q++)
            if (ids[q] != (uint32_t)(k * 100 + q))
                cg_fail(r, "launch %d: all_gather got %u from rank %d", (int)k, ids[q], q);
    }
    if (!r->failed)
        check_stats(r, &x, &before, RANDOM, 50, a[2], a[3]);
    if (g)
        sl_graph_destroy(g);
    cg_free(r, src);
    cg_free(r, dst);
    cg_free(r, work);
    close_exchange(r, &x);
}

/* What the statistics count, without graphs: row_bytes, cap, times */
static void counted(cg_rank *r, const int64_t *a)
{
    exchange x;
    sl_comm_stats before;
    sl_err err = {{0}};
    void *src = cg_mem(r, &r->rank, 4), *dst = cg_mem(r, NULL, 4 * SL_COMM_RANKS_MAX);

    open_exchange(r, &x, a[0], a[1]);
    sl_comm_stats_get(r->c, &before);
    for (int64_t k = 0; k < a[2] && !r->failed; k++) {
        fill_send(r, &x, RANDOM, 900 + (uint64_t)k);
        if (!r->failed)
            cg_ok(r, sl_comm_all_gather(r->c, src, dst, 4, &err), &err, "all_gather");
        if (!r->failed)
            cg_ok(r, sl_comm_barrier(r->c, &err), &err, "barrier"); /* no gather */
        if (!r->failed && cg_ok(r, sl_comm_all_to_all(r->c, &x.p, &err), &err, "all_to_all"))
            check_recv(r, &x, RANDOM, 900 + (uint64_t)k);
    }
    if (!r->failed)
        check_stats(r, &x, &before, RANDOM, 900, a[2], false);
    close_exchange(r, &x);
    cg_free(r, src);
    cg_free(r, dst);
}

const cc_case cc_cases[] = {
    {"barrier x 300", barrier, {300}},
    {"all_gather 1 B", all_gather, {1, 20}},
    {"all_gather 7 B", all_gather, {7, 20}},
    {"all_gather 4,096 B", all_gather, {4096, 20}},
    {"all_gather 100,003 B", all_gather, {100003, 4}},
    {"all_gather 1.3 MB", all_gather, {1300001, 2}},
    {"agree 4 B", agree, {4, 200}},
    {"agree 32 B", agree, {32, 50}},
    {"broadcast 1 B", broadcast, {1}},
    {"broadcast 333 B", broadcast, {333}},
    {"broadcast 900,001 B", broadcast, {900001}},
    {"all_to_all 4 B, cap 1", all_to_all, {4, 1, RANDOM, 30}},
    {"all_to_all 16 B, none", all_to_all, {16, 5, NONE, 5}},
    {"all_to_all 20 B, cap 300", all_to_all, {20, 300, RANDOM, 10}},
    {"all_to_all 7,392 B, cap 64, full", all_to_all, {7392, 64, FULL, 2}},
    {"all_to_all 7,392 B, cap 64", all_to_all, {7392, 64, RANDOM, 6}},
    {"all_to_all 7,392 B, one sender", all_to_all, {7392, 33, ONE_SENDER, 8}},
    {"all_to_all 14,336 B, one receiver", all_to_all, {14336, 17, ONE_RECEIVER, 8}},
    {"all_to_all 14,336 B, cap 128", all_to_all, {14336, 128, RANDOM, 2}},
    {"graph", graph, {7392, 40, 20}},
    {"counted", counted, {20, 30, 10}},
    {"graph, in halves", graph, {7392, 40, 20, 1}},
    {"graph, in halves, slices of a window", graph, {14336, 128, 6, 1}},
    {"memory of the group, 20 B, cap 300", memory, {20, 300, RANDOM, 9}},
    {"memory of the group, 7,392 B, cap 64", memory, {7392, 64, RANDOM, 9}},
    {"memory of the group, 14,336 B, cap 128, full", memory, {14336, 128, FULL, 3}},
    {"barrier x 20", barrier, {20}},
};
const size_t cc_n_cases = SL_COUNT(cc_cases);
