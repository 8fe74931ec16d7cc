/* Implementation of host.h; what the pages contain is made by fill.c. */
#include <pthread.h>

#include "base/log.h"
#include "engine/random_pages.h"
#include "bench/host.h"

enum { MAX_THREADS = 16 };

typedef struct filler {
    const sl_bench_host *h;
    const sl_random_pages *fill; /* NULL: checksums are made */
    int32_t first, end;          /* pages */
} filler;

static double seconds_since(uint64_t t0)
{
    return (double)(sl_now_ns() - t0) / 1e9;
}

static void *fill_main(void *arg)
{
    const filler *f = arg;
    for (int32_t p = f->first; p < f->end; p++) {
        if (f->fill)
            sl_engine_random_pages_fill(f->fill, f->h->arena, p);
        else
            sl_row_sums_make(f->h->sums, p);
    }
    return NULL;
}

/* Every page once, by several threads. */
static void each_page(const sl_bench_host *h, const sl_random_pages *fill, int threads)
{
    pthread_t ids[MAX_THREADS];
    filler parts[MAX_THREADS];
    int32_t pages = sl_arena_pages(h->arena), started = 0;
    threads = threads < 1 ? 1 : threads > MAX_THREADS ? MAX_THREADS : threads;
    for (int i = 0; i < threads; i++) {
        parts[i] = (filler){.h = h,
                            .fill = fill,
                            .first = (int32_t)((int64_t)pages * i / threads),
                            .end = (int32_t)((int64_t)pages * (i + 1) / threads)};
        if (pthread_create(&ids[i], NULL, fill_main, &parts[i]) != 0)
            fill_main(&parts[i]), ids[i] = pthread_self();
        else
            started |= 1 << i;
    }
    for (int i = 0; i < threads; i++)
        if (started & 1 << i)
            pthread_join(ids[i], NULL);
}

static sl_status fill_arena(const sl_bench_host *h, int threads, sl_err *err)
{
    sl_random_pages fill;
    SL_TRY(sl_engine_random_pages_open(&fill, sl_arena_geometry(h->arena), err));
    each_page(h, &fill, threads);
    sl_engine_random_pages_close(&fill);
    return SL_OK;
}

sl_status sl_bench_host_sums(sl_bench_host *h, int threads, sl_err *err)
{
    if (h->sums)
        return SL_OK;
    SL_TRY(sl_row_sums_create(h->arena, &h->sums, err));
    each_page(h, NULL, threads);
    return SL_OK;
}

sl_status sl_bench_host_open(sl_bench_host *h, sl_local *l, const sl_local_opts *o, int threads, sl_err *err)
{
    uint64_t t0 = sl_now_ns();
    *h = (sl_bench_host){.be = l->be};
    SL_TRY(sl_local_open_store(l, o, err));
    h->arena = l->arena;
    h->populate_s = seconds_since(t0);
    t0 = sl_now_ns();
    SL_TRY(fill_arena(h, threads, err));
    h->fill_s = seconds_since(t0);
    t0 = sl_now_ns();
    SL_TRY(sl_be_host_register(l->be, sl_arena_base(h->arena), sl_arena_bytes(h->arena), err));
    h->readable = true;
    h->pin_s = seconds_since(t0);
    return SL_OK;
}

void sl_bench_host_close(sl_bench_host *h)
{
    if (h->readable)
        sl_be_host_unregister(h->be, sl_arena_base(h->arena));
    sl_row_sums_destroy(h->sums);
    *h = (sl_bench_host){0};
}

sl_status sl_bench_host_pages(const sl_bench_host *h, bool shared, int32_t i, int32_t n, int32_t per_seq,
                              int32_t own, int32_t *pages, int32_t *sets, sl_err *err)
{
    int64_t have = sl_arena_pages(h->arena), common = per_seq - own, room = have - (int64_t)n * own;
    int64_t fit = common > 0 ? room / common : n;
    if (room < 0 || fit < 1 || (fit < n && !shared))
        return sl_fail(err, SL_ERR_EXHAUSTED,
                       "the host store of %lld pages holds %lld requests of %d pages, %d are wanted",
                       (long long)have, (long long)(have / per_seq), per_seq, n);
    *sets = fit < n ? (int32_t)fit : n;
    for (int32_t p = 0; p < per_seq; p++)
        pages[p] = (int32_t)(p < common ? (int64_t)n * own + (i % *sets) * common + p
                                        : (int64_t)i * own + (p - common));
    return SL_OK;
}
