/* What a rank of the benchmark does: it draws a random routing, fills buffers, and measures times. */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "bench/comm/comm_impl.h"
#include "bench/stats.h"

#define H200_GBS 354.0 /* a copy kernel over NVLink, one way, 67 MB */
#define COPY_BYTES ((size_t)64 << 20)

enum { WARM_UP = 2 };     /* runs of a shape before the measured ones */
enum { AGREE_BYTES = 8 }; /* what a rank says of its step: sl_step_share in engine/engine.h */

/* One collective with its buffers. It is an all_to_all if rows.cap is set, an all_gather if `bytes` is set, else a
 * barrier. */
typedef struct shape {
    const char *what;
    int32_t tokens;
    sl_comm_rows rows; /* all_to_all */
    void *src, *dst;   /* all_gather */
    size_t bytes;      /* all_gather: what each rank contributes */
    double rows_out;
} shape;

typedef struct ctx {
    const sl_bench_comm *o;
    sl_backend *be;
    sl_comm *c;
    FILE *out;
    const char *way;
    double link_gbs;
    void *memory; /* of the group, for recv; or NULL */
    size_t memory_bytes;
    sl_err *err;
} ctx;

static uint64_t next_random(uint64_t *s)
{
    *s ^= *s << 13;
    *s ^= *s >> 7;
    *s ^= *s << 17;
    return *s;
}

/*
 * Draws top_k different experts for every token. to[q] receives the number of tokens with an expert on rank q, each[q]
 * the number of their experts there.
 */
static void route(const sl_bench_comm *o, int32_t rank, int32_t tokens, int32_t *to, int32_t *each)
{
    int32_t all = o->experts * o->ranks;
    uint64_t s = 0x9e3779b97f4a7c15ull * (uint64_t)(rank + 1) + (uint64_t)tokens;

    memset(to, 0, sizeof(int32_t) * (size_t)o->ranks);
    memset(each, 0, sizeof(int32_t) * (size_t)o->ranks);
    for (int32_t t = 0; t < tokens; t++) {
        int32_t chosen[SL_BENCH_COMM_TOP_K_MAX], on[SL_COMM_RANKS_MAX] = {0};

        for (int32_t k = 0; k < o->top_k;) {
            int32_t e = (int32_t)(next_random(&s) % (uint64_t)all), i = 0;

            while (i < k && chosen[i] != e)
                i++;
            if (i < k)
                continue;
            chosen[k++] = e;
            on[e / o->experts]++;
        }
        for (int32_t q = 0; q < o->ranks; q++) {
            to[q] += on[q] > 0;
            each[q] += on[q];
        }
    }
}

static sl_status run_one(const ctx *x, const shape *s, sl_err *err)
{
    if (s->rows.cap)
        return sl_comm_all_to_all(x->c, &s->rows, err);
    if (s->bytes)
        return sl_comm_all_gather(x->c, s->src, s->dst, s->bytes, err);
    return sl_comm_barrier(x->c, err);
}

static sl_status run_inner(const ctx *x, const shape *s, sl_err *err)
{
    for (int32_t i = 0; i < x->o->inner; i++)
        SL_TRY(run_one(x, s, err));
    return SL_OK;
}

/* A graph of all inner collectives, or NULL where there are no graphs. */
static sl_status capture(const ctx *x, const shape *s, sl_graph **out, sl_err *err)
{
    sl_status st;

    *out = NULL;
    if (!(sl_backend_caps(x->be) & SL_BE_GRAPHS))
        return SL_OK;
    SL_TRY(sl_be_capture_begin(x->be, err));
    st = run_inner(x, s, err);
    if (st == SL_OK)
        return sl_be_capture_end(x->be, out, err);
    (void)sl_be_capture_end(x->be, out, NULL);
    return st;
}

static void print(const ctx *x, const shape *s, double us)
{
    double bytes =
        s->rows.cap ? s->rows_out * (double)s->rows.row_bytes : (double)s->bytes * (x->o->ranks - 1);
    double limit = bytes / x->link_gbs / 1e3;

    if (sl_comm_rank(x->c) != 0)
        return;
    fprintf(x->out, "%s,%s,%d,%d,%lld,%d,%.1f,%.0f,%.2f,%.2f,%.2f,%.2f\n", s->what, x->way, x->o->ranks,
            s->tokens, (long long)s->rows.row_bytes, s->rows.cap, s->rows_out, bytes, us, bytes / us / 1e3,
            limit, limit > 0 ? us / limit : 0);
    fflush(x->out);
}

/* Runs the collective `inner` times, after all ranks have arrived. *us: the time of one in microseconds. */
static sl_status time_once(const ctx *x, const shape *s, sl_graph *g, double *us)
{
    SL_TRY(sl_comm_barrier(x->c, x->err));
    SL_TRY(sl_be_sync(x->be, x->err));
    uint64_t start = sl_now_ns();
    SL_TRY(g ? sl_be_graph_launch(x->be, g, x->err) : run_inner(x, s, x->err));
    SL_TRY(sl_be_sync(x->be, x->err));
    *us = (double)(sl_now_ns() - start) / 1e3 / x->o->inner;
    return SL_OK;
}

static sl_status time_shape(const ctx *x, const shape *s)
{
    size_t n = (size_t)x->o->repeats;
    sl_graph *g = NULL;

    SL_TRY(run_one(x, s, x->err));
    SL_TRY(sl_be_sync(x->be, x->err));
    double *us = calloc(WARM_UP + n, sizeof *us);
    if (!us)
        return sl_fail(x->err, SL_ERR_NO_MEMORY, "no memory");
    sl_status st = capture(x, s, &g, x->err);
    for (size_t i = 0; i < WARM_UP + n && st == SL_OK; i++)
        st = time_once(x, s, g, &us[i]);
    if (g)
        sl_graph_destroy(g);
    if (st == SL_OK)
        print(x, s, sl_bench_median(us + WARM_UP, n));
    free(us);
    return st;
}

/* s with recv in memory of the group and the own block placed, as in a decode step, and one that carries counts alone.
 * Contrary to the contract the exchanges of a graph use the same place one after the other: here nothing reads it. */
static sl_status time_direct(const ctx *x, const shape *s)
{
    ctx direct = *x;
    shape d = *s;

    direct.way = "direct";
    d.rows.recv = x->memory;
    d.rows.placed = SL_COMM_OWN_PLACED;
    SL_TRY(time_shape(&direct, &d));
    direct.way = "placed";
    d.rows.placed = SL_COMM_PLACED;
    return time_shape(&direct, &d);
}

/* An all_to_all with count[q] rows to rank q. */
static sl_status time_rows(const ctx *x, const char *what, int32_t tokens, int64_t row_bytes, int32_t cap,
                           const int32_t *count)
{
    int32_t ranks = x->o->ranks, rank = sl_comm_rank(x->c);
    size_t block = (size_t)row_bytes * (size_t)cap, all = block * (size_t)ranks;
    size_t count_bytes = sizeof(int32_t) * (size_t)ranks;
    void *send = NULL, *recv = NULL, *counts = NULL;
    sl_status st;

    if (all > x->o->most_bytes) {
        if (rank == 0)
            fprintf(x->out, "# %s of %d tokens left out: %zu bytes of a rank\n", what, tokens, all);
        return SL_OK;
    }
    if ((st = sl_be_alloc(x->be, SL_MEM_DEVICE, all, &send, x->err)) != SL_OK ||
        (st = sl_be_alloc(x->be, SL_MEM_DEVICE, all, &recv, x->err)) != SL_OK ||
        (st = sl_be_alloc(x->be, SL_MEM_DEVICE, 2 * count_bytes, &counts, x->err)) != SL_OK ||
        (st = sl_be_fill(x->be, send, 1, all, x->err)) != SL_OK ||
        (st = sl_be_copy(x->be, counts, count, count_bytes, x->err)) != SL_OK)
        goto free_buffers;

    shape s = {.what = what,
               .tokens = tokens,
               .rows = {.send = send,
                        .send_count = counts,
                        .recv = recv,
                        .recv_count = (int32_t *)counts + ranks,
                        .row_bytes = row_bytes,
                        .cap = cap}};
    for (int32_t q = 0; q < ranks; q++)
        s.rows_out += q == rank ? 0 : count[q];
    st = time_shape(x, &s);
    if (st == SL_OK && all <= x->memory_bytes)
        st = time_direct(x, &s);
free_buffers:
    sl_be_free(x->be, SL_MEM_DEVICE, send);
    sl_be_free(x->be, SL_MEM_DEVICE, recv);
    sl_be_free(x->be, SL_MEM_DEVICE, counts);
    return st;
}

static sl_status time_all_gather(const ctx *x, int32_t tokens, size_t row_bytes)
{
    shape s = {.what = "all_gather", .tokens = tokens, .bytes = row_bytes * (size_t)tokens};
    SL_TRY(sl_be_alloc(x->be, SL_MEM_DEVICE, s.bytes, &s.src, x->err));
    sl_status st = sl_be_alloc(x->be, SL_MEM_DEVICE, s.bytes * (size_t)x->o->ranks, &s.dst, x->err);
    if (st != SL_OK)
        goto free_source;
    st = time_shape(x, &s);
    sl_be_free(x->be, SL_MEM_DEVICE, s.dst);
free_source:
    sl_be_free(x->be, SL_MEM_DEVICE, s.src);
    return st;
}

/* sl_comm_agree(), one after the other. */
static sl_status time_agree(const ctx *x)
{
    size_t n = (size_t)x->o->repeats;
    shape s = {.what = "agree", .bytes = AGREE_BYTES};
    uint8_t own[AGREE_BYTES] = {0}, all[AGREE_BYTES * SL_COMM_RANKS_MAX];
    double us[WARM_UP + SL_BENCH_COMM_REPEATS_MAX];
    sl_status st = SL_OK;

    for (size_t i = 0; i < WARM_UP + n && st == SL_OK; i++) {
        st = sl_comm_barrier(x->c, x->err);
        if (st == SL_OK)
            st = sl_be_sync(x->be, x->err);
        uint64_t start = sl_now_ns();
        for (int32_t k = 0; k < x->o->inner && st == SL_OK; k++)
            st = sl_comm_agree(x->c, own, all, sizeof own, x->err);
        us[i] = (double)(sl_now_ns() - start) / 1e3 / x->o->inner;
    }
    if (st == SL_OK)
        print(x, &s, sl_bench_median(us + WARM_UP, n));
    return st;
}

static double measure_copy(void)
{
    uint8_t *a = malloc(COPY_BYTES), *b = malloc(COPY_BYTES);
    double best = 0;

    for (int i = 0; a && b && i < 4; i++) {
        uint64_t start;

        memset(a, i, COPY_BYTES);
        start = sl_now_ns();
        memcpy(b, a, COPY_BYTES);
        double gbs = (double)COPY_BYTES / (double)(sl_now_ns() - start);
        best = gbs > best ? gbs : best;
    }
    free(a);
    free(b);
    return best > 0 ? best : 1;
}

/* Memory of the group for the largest shape that is not left out. */
static sl_status take_memory(ctx *x)
{
    const sl_bench_comm *o = x->o;
    int32_t most = o->top_k < o->experts ? o->top_k : o->experts;
    size_t bytes = 0;

    for (int i = 0; i < o->tokens.n; i++) {
        size_t each = 2 * (size_t)o->hidden * (size_t)(o->tokens.v[i] * most) * (size_t)o->ranks;

        bytes = each <= o->most_bytes && each > bytes ? each : bytes;
    }
    if (bytes)
        SL_TRY(sl_comm_memory(x->c, bytes, &x->memory, x->err));
    x->memory_bytes = x->memory ? bytes : 0;
    return SL_OK;
}

sl_status sl_bench_comm_measure(const sl_bench_comm *o, sl_backend *be, sl_comm *c, const char *way,
                                FILE *out, sl_err *err)
{
    ctx x = {.o = o, .be = be, .c = c, .way = way, .out = out, .err = err};
    size_t quantised = (size_t)o->hidden + sizeof(float) * (((size_t)o->hidden + 127) / 128);
    shape barrier = {.what = "barrier"};

    quantised = (quantised + 3) / 4 * 4;
    x.link_gbs = o->link_gbs > 0                       ? o->link_gbs
                 : sl_backend_caps(be) & SL_BE_UNIFIED ? measure_copy()
                                                       : H200_GBS;
    SL_TRY(time_shape(&x, &barrier));
    SL_TRY(time_agree(&x));
    SL_TRY(take_memory(&x));
    for (int i = 0; i < o->tokens.n; i++) {
        int32_t tokens = o->tokens.v[i], to[SL_COMM_RANKS_MAX], each[SL_COMM_RANKS_MAX];
        int32_t most = o->top_k < o->experts ? o->top_k : o->experts;

        route(o, sl_comm_rank(c), tokens, to, each);
        SL_TRY(time_rows(&x, "dispatch", tokens, (int64_t)quantised, tokens, to));
        SL_TRY(time_rows(&x, "combine", tokens, 2ll * o->hidden, tokens, to));
        SL_TRY(time_rows(&x, "combine_each", tokens, 2ll * o->hidden, tokens * most, each));
        SL_TRY(time_all_gather(&x, tokens, quantised));
    }
    return SL_OK;
}
