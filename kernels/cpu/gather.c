/* SL_OP_GATHER: copies missing rows from the host arena into the hot buffers. */
#include "kernels/cpu/cpu.h"

#include <string.h>

#include "base/log.h"
#include "kernels/cpu/place.h"

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
            memcpy(p->rows.base + p->miss_dst[i] * p->rows.row_bytes, source(p, &shape, i), bytes);
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
