/*
 * CPU backend: instance, memory, events and the table of ops. Device memory is ordinary memory
 * (SL_BE_UNIFIED); everything is done when a call returns, so events and sync have nothing to wait for. No
 * graphs.
 */
#include "kernels/cpu/cpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/cpu/place.h"
#include "kernels/cpu/vec.h"

static sl_status cpu_create(const sl_backend_opts *opts, sl_backend **out, sl_err *err)
{
    sl_cpu *c = calloc(1, sizeof(*c));
    sl_status st;

    if (!c)
        return sl_fail(err, SL_ERR_NO_MEMORY, "cpu backend: out of memory");
    st = sl_pool_create(opts->threads, &c->pool, err);
    if (st != SL_OK)
        goto free_instance;
    c->threads = sl_pool_threads(c->pool);
    c->base.desc = &sl_backend_cpu;
    c->base.caps = SL_BE_UNIFIED;
    snprintf(c->base.describe, sizeof(c->base.describe), "CPU, %d thread%s, %s", c->threads,
             c->threads == 1 ? "" : "s", sl_vec_kind());
    *out = &c->base;
    return SL_OK;
free_instance:
    free(c);
    return st;
}

static void cpu_destroy(sl_backend *be)
{
    sl_cpu *c = (sl_cpu *)be;

    sl_pool_destroy(c->pool);
    for (int i = 0; i < SL_SCRATCH_COUNT; i++)
        free(c->scratch[i].data);
    free(c);
}

static sl_status cpu_memory(sl_backend *be, uint64_t *free_bytes, uint64_t *total_bytes, sl_err *err)
{
    long page = sysconf(_SC_PAGESIZE), avail = sysconf(_SC_AVPHYS_PAGES), all = sysconf(_SC_PHYS_PAGES);

    (void)be;
    if (page <= 0 || avail < 0 || all < 0)
        return sl_fail(err, SL_ERR_INTERNAL,
                       "cpu backend: the system does not report the size of its memory");
    *free_bytes = (uint64_t)avail * (uint64_t)page;
    *total_bytes = (uint64_t)all * (uint64_t)page;
    return SL_OK;
}

static sl_status cpu_alloc(sl_backend *be, sl_mem_kind kind, size_t bytes, void **out, sl_err *err)
{
    void *p = aligned_alloc(256, (bytes + 255) & ~(size_t)255);

    (void)be;
    if (!p)
        return sl_fail(err, kind == SL_MEM_DEVICE ? SL_ERR_DEVICE_MEMORY : SL_ERR_NO_MEMORY,
                       "cpu backend: cannot allocate %zu bytes", bytes);
    *out = p;
    return SL_OK;
}

static void cpu_free(sl_backend *be, sl_mem_kind kind, void *ptr)
{
    (void)be;
    (void)kind;
    free(ptr);
}

static sl_status cpu_copy(sl_backend *be, void *dst, const void *src, size_t bytes, sl_err *err)
{
    (void)be;
    (void)err;
    memmove(dst, src, bytes);
    return SL_OK;
}

static sl_status cpu_copy_2d(sl_backend *be, void *dst, size_t dst_pitch, const void *src, size_t src_pitch,
                             size_t width, size_t rows, sl_err *err)
{
    (void)be;
    (void)err;
    for (size_t i = 0; i < rows; i++)
        memmove((uint8_t *)dst + i * dst_pitch, (const uint8_t *)src + i * src_pitch, width);
    return SL_OK;
}

static sl_status cpu_fill(sl_backend *be, void *dst, uint8_t byte, size_t bytes, sl_err *err)
{
    (void)be;
    (void)err;
    memset(dst, byte, bytes);
    return SL_OK;
}

static sl_status cpu_sync(sl_backend *be, sl_err *err)
{
    (void)be;
    (void)err;
    return SL_OK;
}

static sl_status cpu_event_create(sl_backend *be, sl_event **out, sl_err *err)
{
    sl_event *ev = malloc(sizeof(*ev));

    if (!ev)
        return sl_fail(err, SL_ERR_NO_MEMORY, "cpu backend: out of memory");
    ev->be = be;
    *out = ev;
    return SL_OK;
}

static void cpu_event_destroy(sl_event *ev)
{
    free(ev);
}

static sl_status cpu_event_record(sl_backend *be, sl_event *ev, sl_err *err)
{
    (void)be;
    (void)ev;
    (void)err;
    return SL_OK;
}

static sl_status cpu_event_query(sl_event *ev)
{
    (void)ev;
    return SL_OK;
}

/* ---- scratch and parallel loops ---- */

sl_status sl_cpu_scratch(sl_cpu *c, sl_scratch_area area, size_t bytes, void **out, sl_err *err)
{
    if (c->scratch[area].bytes < bytes) {
        size_t want = (bytes + bytes / 4 + 4095) & ~(size_t)4095;
        void *p = want >= bytes ? aligned_alloc(64, want) : NULL;

        if (!p)
            return sl_fail(err, SL_ERR_DEVICE_MEMORY, "cpu backend: cannot allocate %zu bytes of scratch",
                           bytes);
        free(c->scratch[area].data);
        c->scratch[area].data = p;
        c->scratch[area].bytes = want;
    }
    if (out)
        *out = c->scratch[area].data;
    return SL_OK;
}

sl_status sl_cpu_scratch_threads(sl_cpu *c, size_t bytes, sl_err *err)
{
    /* a cache line between the parts, so that no two workers share one */
    size_t stride = (bytes + 127) & ~(size_t)63;

    c->thread_stride = stride;
    return sl_cpu_scratch(c, SL_SCRATCH_THREADS, stride * (size_t)c->threads, NULL, err);
}

void sl_cpu_for(sl_cpu *c, int64_t items, int64_t cost, sl_pool_fn fn, void *ctx)
{
    int64_t grain = 20000 / (cost > 0 ? cost : 1); /* waking a worker costs some microseconds */

    sl_pool_run(c->pool, items, grain > 1 ? grain : 1, fn, ctx);
}

typedef struct job {
    const sl_cpu *cpu;
    sl_cpu_task task;
    const void *ctx;
    bool scratch;
    uint32_t bad;
} job;

static void run_items(void *arg, int64_t first, int64_t count, int worker)
{
    job *j = arg;
    void *own = j->scratch ? sl_cpu_own(j->cpu, worker) : NULL;
    uint32_t bad = 0;

    for (int64_t i = first; i < first + count; i++)
        bad |= j->task(j->ctx, i, own);
    if (bad & ~SL_PLACE_NONE)
        sl_cpu_flag(&j->bad, bad & ~SL_PLACE_NONE);
}

sl_status sl_cpu_run(sl_backend *be, const char *op, size_t scratch, int64_t items, int64_t cost,
                     sl_cpu_task task, const void *ctx, sl_err *err)
{
    job j = {.cpu = (sl_cpu *)be, .task = task, .ctx = ctx, .scratch = scratch > 0};

    if (scratch > 0)
        SL_TRY(sl_cpu_scratch_threads((sl_cpu *)be, scratch, err));
    sl_cpu_for((sl_cpu *)be, items, cost, run_items, &j);
    return sl_deverr(j.bad, op, err);
}

const sl_backend_desc sl_backend_cpu = {
    .name = "cpu",
    .description =
        "CPU cores, with AVX2 if available; the reference with which every other backend is compared",
    .row_align = 1,
    .create = cpu_create,
    .destroy = cpu_destroy,
    .memory = cpu_memory,
    .alloc = cpu_alloc,
    .free = cpu_free,
    .copy = cpu_copy,
    .copy_2d = cpu_copy_2d,
    .fill = cpu_fill,
    .sync = cpu_sync,
    .event_create = cpu_event_create,
    .event_destroy = cpu_event_destroy,
    .event_record = cpu_event_record,
    .event_query = cpu_event_query,
    .ops =
        {
#define X(op, name, items, field, text) [SL_OP_##op] = &sl_cpu_##name,
            SL_OPS(X)
#undef X
        },
};
