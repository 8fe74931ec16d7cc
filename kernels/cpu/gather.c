/*
 * SL_OP_GATHER: copies missing rows from the host arena into the hot buffers. What is compared with the checksum is the copy,
 * so that no write into the arena can come between the two.
 */
#include "kernels/cpu/cpu.h"

#include <string.h>

#include "base/log.h"
#include "kernels/cpu/place.h"
#include "kernels/rowsum.h"

typedef struct ctx {
    const sl_gather_params *p;
    uint32_t bad;
} ctx;

#define AHEAD 8 /* rows prefetched ahead, because the sources are scattered over the arena */

static inline const uint8_t *source(const sl_gather_params *p, const sl_row_shape *shape, int64_t i)
{
    int64_t block = p->miss_src[i], head = 0;

    if (shape->heads > 1) {
        head = block % shape->heads;
        block /= shape->heads;
    }
    return p->host.base + (block >> shape->page_log2) * p->host.page_stride +
           (block & ((1 << shape->page_log2) - 1)) * p->host.row_stride + head * p->rows.row_bytes;
}

/* Marks the page of entry i if the copy of its row differs from a checksum that it has. */
static void compare(const sl_gather_params *p, const sl_row_shape *shape, int64_t i, const uint8_t *copy)
{
    const int64_t bytes = p->rows.row_bytes, parts = sl_rowsum_parts(bytes);
    const uint32_t *sums = p->check.sums + p->miss_src[i] * parts;
    bool differs = false;

    for (int64_t k = 0; k < parts; k++) {
        int64_t at = k * SL_ROWSUM_PART, left = bytes - at;
        uint32_t want = __atomic_load_n(sums + k, __ATOMIC_RELAXED);

        if (want)
            differs |= want != sl_rowsum(copy + at, (size_t)(left < SL_ROWSUM_PART ? left : SL_ROWSUM_PART));
    }
    if (!differs)
        return;
    int64_t page = p->miss_src[i] / (shape->heads > 1 ? shape->heads : 1) >> shape->page_log2;
    __atomic_fetch_or(p->check.pages + page / 32, 1u << page % 32, __ATOMIC_RELAXED);
    __atomic_store_n(p->check.any, 1, __ATOMIC_RELAXED);
}

static void copy_row(const sl_gather_params *p, const sl_row_shape *shape, int64_t i)
{
    uint8_t *to = p->rows.base + p->miss_dst[i] * p->rows.row_bytes;

    memcpy(to, source(p, shape, i), (size_t)p->rows.row_bytes);
    if (p->check.sums)
        compare(p, shape, i, to);
}

static void rows(void *arg, int64_t first, int64_t count, int worker)
{
    ctx *c = arg;
    const sl_gather_params own = *c->p, *p = &own; /* a copy, which the rows that are written cannot change */
    const sl_row_shape shape = sl_row_shape_of(&own.rows);
    size_t bytes = (size_t)p->rows.row_bytes;

    (void)worker;
    for (int64_t i = first; i < first + count; i++) {
        if (i + AHEAD < first + count && p->miss_src[i + AHEAD] >= 0) {
            const uint8_t *next = source(p, &shape, i + AHEAD);

            for (size_t b = 0; b < bytes; b += 64)
                __builtin_prefetch(next + b);
        }
        if (p->miss_src[i] < 0 || p->miss_dst[i] < 0)
            sl_cpu_flag(&c->bad, SL_DEVERR_PAGE);
        else
            copy_row(p, &shape, i);
        if (p->block_done)
            __atomic_fetch_add(&p->block_done[p->miss_block[i]], 1, __ATOMIC_RELEASE);
    }
}

static void stop_clock(const sl_gather_params *p, uint64_t begun)
{
    sl_swap_clock *c = p->clock;
    uint64_t from = p->in_front ? p->in_front->ended : c->asked, taken, waited;

    c->begun = begun;
    c->ended = sl_now_ns();
    taken = waited = c->ended - begun;
    if (p->reached && *p->reached < c->asked) {
        waited = 0;
    } else if (p->reached) {
        from = *p->reached > from ? *p->reached : from;
        waited = c->ended > from ? c->ended - from : 0;
    }
    c->taken += taken > waited ? taken : waited;
    c->waited += waited;
}

static sl_status run_gather(sl_backend *be, const void *params, sl_err *err)
{
    const sl_gather_params *p = params;
    ctx c = {.p = p};
    int64_t n = *p->miss_count;
    uint64_t t0 = sl_now_ns();

    if (n > p->miss_cap)
        n = p->miss_cap;
    sl_cpu_for((sl_cpu *)be, n, p->rows.row_bytes / 8, rows, &c);
    if (p->clock)
        stop_clock(p, t0);
    return sl_deverr(c.bad, "gather", err);
}

const sl_op_impl sl_cpu_gather = {.run = run_gather};
