/*
 * The collectives of the CPU backend: the specification. Every collective is a number of rounds (rounds.h) in which
 * each rank puts a piece of its data into its half and copies what is for it out of the halves of the others. This file
 * is all that shared memory and sockets have in common, so the bits are the same; who moves the halves, who is lost, and
 * how long a rank waits is theirs.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "collectives/cpu/rounds.h"

#define PAGE 4096

enum { BARRIER, ALL_GATHER, BROADCAST, ALL_TO_ALL };

static sl_comm_cpu *of(sl_comm *c)
{
    return (sl_comm_cpu *)c;
}

sl_status sl_comm_cpu_library(uint32_t *version, sl_err *err)
{
    (void)err;
    *version = 0;
    return SL_OK;
}

size_t sl_comm_half_bytes(const sl_comm_opts *o)
{
    return ((o->window_bytes ? o->window_bytes : SL_COMM_CPU_WINDOW) + PAGE - 1) / PAGE * PAGE;
}

/* ---- rounds ---- */

static sl_status break_group(sl_comm_cpu *c, sl_err *err, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static sl_status break_group(sl_comm_cpu *c, sl_err *err, const char *fmt, ...)
{
    char cause[256];
    va_list args;

    va_start(args, fmt);
    vsnprintf(cause, sizeof cause, fmt, args);
    va_end(args);
    return c->rounds->brk(c, SL_ERR_INVALID, -1, cause, err);
}

static const char *call_text(const sl_comm_call *k, char *text, size_t cap)
{
    switch (k->kind) {
    case BARRIER:
        snprintf(text, cap, "barrier");
        break;
    case ALL_GATHER:
        snprintf(text, cap, "all_gather of %llu bytes", (unsigned long long)k->a);
        break;
    case BROADCAST:
        snprintf(text, cap, "broadcast of %llu bytes from rank %u", (unsigned long long)k->a, k->detail);
        break;
    default:
        snprintf(text, cap, "all_to_all of %u rows of %llu bytes at most", k->detail,
                 (unsigned long long)k->a);
    }
    return text;
}

static sl_status compare_calls(sl_comm_cpu *c, sl_err *err)
{
    const sl_comm_call *mine = &c->head[c->base.opts.rank]->call;
    char a[96], b[96];

    for (int32_t r = 0; r < c->base.opts.ranks; r++) {
        const sl_comm_call *k = &c->head[r]->call;

        if (k->kind != mine->kind || k->detail != mine->detail || k->a != mine->a || k->b != mine->b)
            return break_group(c, err, "the ranks disagree: rank %d calls %s, rank %d %s", c->base.opts.rank,
                               call_text(mine, a, sizeof a), r, call_text(k, b, sizeof b));
    }
    return SL_OK;
}

/* A round of this call, with nothing for anybody yet. */
static void begin(sl_comm_cpu *c, sl_comm_call call)
{
    c->round++;
    c->rounds->begin(c);
    c->head[c->base.opts.rank]->call = call;
    memset(c->span, 0, sizeof c->span[0] * (size_t)c->base.opts.ranks);
}

/* The first n bytes of the own half are for every rank. */
static void for_all(sl_comm_cpu *c, size_t n)
{
    for (int32_t q = 0; q < c->base.opts.ranks; q++)
        c->span[q] = (sl_comm_span){0, n};
}

static sl_status meet(sl_comm_cpu *c, sl_err *err)
{
    SL_TRY(c->rounds->meet(c, err));
    return compare_calls(c, err);
}

sl_status sl_comm_cpu_barrier(sl_comm *c, sl_err *err)
{
    begin(of(c), (sl_comm_call){.kind = BARRIER});
    return meet(of(c), err);
}

static size_t piece_of(size_t left, size_t most)
{
    return left < most ? left : most;
}

sl_status sl_comm_cpu_all_gather(sl_comm *base, const void *src, void *dst, size_t bytes, sl_err *err)
{
    sl_comm_cpu *c = of(base);
    uint64_t began = sl_now_ns();

    for (size_t at = 0; at < bytes;) {
        size_t n = piece_of(bytes - at, c->half_bytes);

        begin(c, (sl_comm_call){.kind = ALL_GATHER, .a = bytes, .b = at});
        memcpy(c->half[base->opts.rank], (const uint8_t *)src + at, n);
        for_all(c, n);
        SL_TRY(meet(c, err));
        for (int32_t r = 0; r < base->opts.ranks; r++)
            memcpy((uint8_t *)dst + (size_t)r * bytes + at, c->half[r], n);
        at += n;
    }
    base->stats.gathers++;
    base->stats.gather_ns += sl_now_ns() - began;
    return SL_OK;
}

sl_status sl_comm_cpu_broadcast(sl_comm *base, void *buf, size_t bytes, int32_t root, sl_err *err)
{
    sl_comm_cpu *c = of(base);

    for (size_t at = 0; at < bytes;) {
        size_t n = piece_of(bytes - at, c->half_bytes);

        begin(c, (sl_comm_call){.kind = BROADCAST, .detail = (uint32_t)root, .a = bytes, .b = at});
        if (base->opts.rank == root) {
            memcpy(c->half[root], (const uint8_t *)buf + at, n);
            for_all(c, n);
        }
        SL_TRY(meet(c, err));
        if (base->opts.rank != root)
            memcpy((uint8_t *)buf + at, c->half[root], n);
        at += n;
    }
    return SL_OK;
}

/* ---- rows ---- */

/* The bytes of the rows for all ranks form one stream of a rank, block after block; a round carries the next piece of
 * every rank's stream. Where the block for rank `to` begins in the stream of rank `from`: */
static size_t block_begin(const int32_t *count, int32_t from, int32_t to, size_t row)
{
    size_t rows = 0;

    for (int32_t q = 0; q < to; q++)
        rows += q == from ? 0 : (size_t)count[q];
    return rows * row;
}

static size_t stream_bytes(const int32_t *count, int32_t from, int32_t ranks, size_t row)
{
    return block_begin(count, from, ranks, row);
}

/* Copies what lies in [at, at + n) of the own stream from the rows, and says which span is for whom. */
static void fill_piece(sl_comm_cpu *c, const sl_comm_rows *p, const int32_t *count, size_t at, size_t n)
{
    size_t row = (size_t)p->row_bytes;
    int32_t rank = c->base.opts.rank;

    for (int32_t q = 0; q < c->base.opts.ranks; q++) {
        size_t first = block_begin(count, rank, q, row),
               end = first + (q == rank ? 0 : (size_t)count[q] * row);
        size_t from = first > at ? first : at, to = end < at + n ? end : at + n;

        if (from >= to)
            continue;
        memcpy(c->half[rank] + (from - at),
               (const uint8_t *)p->send + (size_t)q * (size_t)p->cap * row + (from - first), to - from);
        c->span[q] = (sl_comm_span){from - at, to - from};
    }
}

static void take_piece(const sl_comm_rows *p, const int32_t *count, int32_t rank, int32_t sender, size_t at,
                       size_t n, const uint8_t *half)
{
    size_t row = (size_t)p->row_bytes, first = block_begin(count, sender, rank, row);
    size_t end = first + (size_t)count[rank] * row;
    size_t from = first > at ? first : at, to = end < at + n ? end : at + n;

    if (from < to)
        memcpy((uint8_t *)p->recv + (size_t)sender * (size_t)p->cap * row + (from - first),
               half + (from - at), to - from);
}

/* Own counts, and those of all ranks as the first round shows them. */
typedef struct counts {
    int32_t of[SL_COMM_RANKS_MAX][SL_COMM_RANKS_MAX]; /* [sender][receiver] */
    size_t longest;                                   /* bytes of the longest stream */
} counts;

static void learn_counts(const sl_comm_cpu *c, const sl_comm_rows *p, counts *k)
{
    int32_t ranks = c->base.opts.ranks;

    k->longest = 0;
    for (int32_t r = 0; r < ranks; r++) {
        size_t n;

        memcpy(k->of[r], c->head[r]->count, sizeof k->of[r]);
        n = stream_bytes(k->of[r], r, ranks, (size_t)p->row_bytes);
        k->longest = n > k->longest ? n : k->longest;
        p->recv_count[r] = k->of[r][c->base.opts.rank];
    }
}

static sl_status check_counts(sl_comm_cpu *c, const sl_comm_rows *p, sl_err *err)
{
    for (int32_t q = 0; q < c->base.opts.ranks; q++)
        if (p->send_count[q] < 0 || p->send_count[q] > p->cap)
            return break_group(c, err,
                               "all_to_all: rank %d sends %d rows to rank %d, not within 0 and cap %d",
                               c->base.opts.rank, p->send_count[q], q, p->cap);
    return SL_OK;
}

sl_status sl_comm_cpu_all_to_all(sl_comm *base, const sl_comm_rows *p, sl_err *err)
{
    sl_comm_cpu *c = of(base);
    int32_t rank = base->opts.rank, ranks = base->opts.ranks;
    size_t row = (size_t)p->row_bytes, own = (size_t)rank * (size_t)p->cap * row;
    counts k = {.longest = 0};
    size_t at = 0;
    uint64_t began = sl_now_ns();

    SL_TRY(check_counts(c, p, err));
    memcpy(k.of[rank], p->send_count, sizeof(int32_t) * (size_t)ranks);
    do {
        size_t mine = stream_bytes(k.of[rank], rank, ranks, row), most = c->half_bytes;

        begin(c, (sl_comm_call){
                     .kind = ALL_TO_ALL, .detail = (uint32_t)p->cap, .a = (uint64_t)p->row_bytes, .b = at});
        memcpy(c->head[rank]->count, k.of[rank], sizeof k.of[rank]);
        if (at < mine)
            fill_piece(c, p, k.of[rank], at, piece_of(mine - at, most));
        uint64_t waits = sl_now_ns();
        SL_TRY(meet(c, err));
        base->stats.wait_ns += sl_now_ns() - waits;
        if (at == 0)
            learn_counts(c, p, &k);
        for (int32_t r = 0; r < ranks; r++)
            if (r != rank)
                take_piece(p, k.of[r], rank, r, at, most, c->half[r]);
        at += most;
    } while (at < k.longest);
    memcpy((uint8_t *)p->recv + own, (const uint8_t *)p->send + own, (size_t)k.of[rank][rank] * row);
    base->stats.exchanges++;
    base->stats.exchange_bytes += stream_bytes(k.of[rank], rank, ranks, row);
    base->stats.exchange_ns += sl_now_ns() - began;
    return SL_OK;
}
