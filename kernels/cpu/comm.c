/*
 * The collectives of the CPU backend, between processes of one host: the specification. Every collective is a number of
 * rounds (comm_segment.h) in which each rank puts a piece of its data into its window and copies what is for it out of
 * the windows of the others. The number of rounds follows from sizes that all ranks know, so all run the same number.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "kernels/cpu/comm_segment.h"
#include "kernels/cpu/cpu.h"

enum { BARRIER, ALL_GATHER, BROADCAST, ALL_TO_ALL };

static sl_comm_cpu *of(sl_comm *c)
{
    return (sl_comm_cpu *)c;
}

static sl_status no_library(uint32_t *version, sl_err *err)
{
    (void)err;
    *version = 0;
    return SL_OK;
}

static sl_comm_cpu *new_comm(const sl_comm_opts *opts)
{
    sl_comm_cpu *c = calloc(1, sizeof *c);

    if (c) {
        c->fd = -1;
        c->base.opts = *opts;
    }
    return c;
}

static sl_status cpu_found(sl_backend *be, const sl_comm_opts *opts, uint8_t *own, sl_comm **out, sl_err *err)
{
    sl_comm_cpu *c = new_comm(opts);
    sl_status st;

    (void)be;
    if (!c)
        return sl_fail(err, SL_ERR_NO_MEMORY, "comm: no memory");
    st = sl_comm_segment_create(opts, own, c, err);
    if (st != SL_OK) {
        free(c);
        return st;
    }
    *out = &c->base;
    return SL_OK;
}

/* Tells the group why this rank will not join. */
static sl_status refuse(sl_comm_cpu *c, const char *why)
{
    int32_t rank = c->base.opts.rank;
    uint32_t absent = SL_COMM_ABSENT;

    if (rank < c->shared->ranks) {
        sl_comm_slot *s = sl_comm_slot_of(c, rank);

        if (atomic_load(&s->state) == SL_COMM_ABSENT)
            snprintf(s->refusal, sizeof s->refusal, "%s", why);
        if (atomic_compare_exchange_strong(&s->state, &absent, SL_COMM_REFUSED))
            sl_comm_ring(c);
    } else {
        sl_comm_break(c, SL_ERR_REFUSED, -1, NULL, "%s", why);
    }
    return SL_ERR_REFUSED;
}

static sl_status cpu_join(sl_backend *be, const sl_comm_opts *opts, const uint8_t *own, const char *refusal,
                          sl_comm **out, sl_err *err)
{
    sl_comm_cpu *c = new_comm(opts);
    sl_status st;

    (void)be;
    if (!c)
        return sl_fail(err, SL_ERR_NO_MEMORY, "comm: no memory");
    st = sl_comm_segment_open(own, c, err);
    if (st != SL_OK)
        goto free_comm;
    st = refusal ? refuse(c, refusal) : sl_comm_segment_enter(c, opts->rank, err);
    if (st != SL_OK)
        goto close_segment;
    *out = &c->base;
    return SL_OK;
close_segment:
    sl_comm_segment_close(c);
free_comm:
    free(c);
    return st;
}

static sl_status cpu_form(sl_comm *c, sl_err *err)
{
    return sl_comm_wait_joined(of(c), err);
}

static void cpu_destroy(sl_comm *c)
{
    atomic_store(&sl_comm_slot_of(of(c), c->opts.rank)->state, SL_COMM_LEFT);
    sl_comm_ring(of(c));
    sl_comm_segment_close(of(c));
    free(c);
}

static void cpu_abort(sl_comm *c)
{
    sl_comm_segment_abort(of(c));
}

static sl_status cpu_state(sl_comm *c, sl_err *err)
{
    return sl_comm_broken(of(c), err);
}

/* ---- rounds of one piece ---- */

static void begin(sl_comm_cpu *c, sl_comm_call call)
{
    sl_comm_round_begin(c);
    sl_comm_head_of(c, c->base.opts.rank)->call = call;
}

static sl_status cpu_barrier(sl_comm *c, sl_err *err)
{
    begin(of(c), (sl_comm_call){.kind = BARRIER});
    return sl_comm_round_meet(of(c), err);
}

static size_t piece_of(size_t left, size_t most)
{
    return left < most ? left : most;
}

static sl_status cpu_all_gather(sl_comm *base, const void *src, void *dst, size_t bytes, sl_err *err)
{
    sl_comm_cpu *c = of(base);
    uint64_t began = sl_now_ns();

    for (size_t at = 0; at < bytes;) {
        size_t n = piece_of(bytes - at, c->shared->half_bytes);

        begin(c, (sl_comm_call){.kind = ALL_GATHER, .a = bytes, .b = at});
        memcpy(sl_comm_half(c, base->opts.rank), (const uint8_t *)src + at, n);
        SL_TRY(sl_comm_round_meet(c, err));
        for (int32_t r = 0; r < base->opts.ranks; r++)
            memcpy((uint8_t *)dst + (size_t)r * bytes + at, sl_comm_half(c, r), n);
        at += n;
    }
    base->stats.gathers++;
    base->stats.gather_ns += sl_now_ns() - began;
    return SL_OK;
}

static sl_status cpu_broadcast(sl_comm *base, void *buf, size_t bytes, int32_t root, sl_err *err)
{
    sl_comm_cpu *c = of(base);

    for (size_t at = 0; at < bytes;) {
        size_t n = piece_of(bytes - at, c->shared->half_bytes);

        begin(c, (sl_comm_call){.kind = BROADCAST, .detail = (uint32_t)root, .a = bytes, .b = at});
        if (base->opts.rank == root)
            memcpy(sl_comm_half(c, root), (const uint8_t *)buf + at, n);
        SL_TRY(sl_comm_round_meet(c, err));
        if (base->opts.rank != root)
            memcpy((uint8_t *)buf + at, sl_comm_half(c, root), n);
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

/* Copies what lies in [at, at + n) of the stream from or to the rows: block q of `blocks`, which are cap rows apart. */
static void fill_piece(const sl_comm_rows *p, const int32_t *count, int32_t rank, int32_t ranks, size_t at,
                       size_t n, uint8_t *half)
{
    size_t row = (size_t)p->row_bytes;

    for (int32_t q = 0; q < ranks; q++) {
        size_t first = block_begin(count, rank, q, row),
               end = first + (q == rank ? 0 : (size_t)count[q] * row);
        size_t from = first > at ? first : at, to = end < at + n ? end : at + n;

        if (from < to)
            memcpy(half + (from - at),
                   (const uint8_t *)p->send + (size_t)q * (size_t)p->cap * row + (from - first), to - from);
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

        memcpy(k->of[r], sl_comm_head_of(c, r)->count, sizeof k->of[r]);
        n = stream_bytes(k->of[r], r, ranks, (size_t)p->row_bytes);
        k->longest = n > k->longest ? n : k->longest;
        p->recv_count[r] = k->of[r][c->base.opts.rank];
    }
}

static sl_status check_counts(sl_comm_cpu *c, const sl_comm_rows *p, sl_err *err)
{
    for (int32_t q = 0; q < c->base.opts.ranks; q++)
        if (p->send_count[q] < 0 || p->send_count[q] > p->cap)
            return sl_comm_break(c, SL_ERR_INVALID, -1, err,
                                 "all_to_all: rank %d sends %d rows to rank %d, not within 0 and cap %d",
                                 c->base.opts.rank, p->send_count[q], q, p->cap);
    return SL_OK;
}

static sl_status cpu_all_to_all(sl_comm *base, const sl_comm_rows *p, sl_err *err)
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
        size_t mine = stream_bytes(k.of[rank], rank, ranks, row), most = c->shared->half_bytes;

        begin(c, (sl_comm_call){
                     .kind = ALL_TO_ALL, .detail = (uint32_t)p->cap, .a = (uint64_t)p->row_bytes, .b = at});
        memcpy(sl_comm_head_of(c, rank)->count, k.of[rank], sizeof k.of[rank]);
        if (at < mine)
            fill_piece(p, k.of[rank], rank, ranks, at, piece_of(mine - at, most), sl_comm_half(c, rank));
        SL_TRY(sl_comm_round_meet(c, err));
        if (at == 0)
            learn_counts(c, p, &k);
        for (int32_t r = 0; r < ranks; r++)
            if (r != rank)
                take_piece(p, k.of[r], rank, r, at, most, sl_comm_half(c, r));
        at += most;
    } while (at < k.longest);
    memcpy((uint8_t *)p->recv + own, (const uint8_t *)p->send + own, (size_t)k.of[rank][rank] * row);
    base->stats.exchanges++;
    base->stats.exchange_bytes += stream_bytes(k.of[rank], rank, ranks, row);
    base->stats.exchange_ns += sl_now_ns() - began;
    return SL_OK;
}

const sl_comm_desc sl_comm_shared_memory = {
    .name = "shared memory",
    .found = cpu_found,
    .join = cpu_join,
    .form = cpu_form,
    .destroy = cpu_destroy,
    .abort = cpu_abort,
    .state = cpu_state,
    .barrier = cpu_barrier,
    .all_gather = cpu_all_gather,
    .broadcast = cpu_broadcast,
    .all_to_all = cpu_all_to_all,
    .library = no_library,
};
