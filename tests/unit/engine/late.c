/* See late.h. */
#include "late.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "kernels/backend_impl.h"
#include "tape.h"

static const uint64_t LATE_CLOCK = 1ull << 60; /* its clock began at another time */
enum { COPY = SL_OP_COUNT, COPY_2D, FILL, RECORD, STAMP, RANGES = 64, FAULT = 1 };

typedef struct work {
    struct work *next;
    int what; /* an sl_op, or one of the above */
    void *dst;
    const void *src;
    size_t dst_pitch, src_pitch, width, rows;
    uint8_t byte;
    sl_event *event;
    void *own; /* the source of a copy, taken when it was enqueued */
    tape_params kept;
} work;

typedef struct late_event {
    sl_event base;
    int waiting; /* its marks that have not been reached */
} late_event;

static sl_backend_desc desc;
static sl_op_impl impls[SL_OP_COUNT];
static work *first, **last = &first;
static int n_waiting, fail_op, fail_in;
static uint32_t faults;
static struct {
    const uint8_t *at;
    size_t bytes;
} pinned[RANGES], device[1024];
static int n_pinned, n_device;

int late_waiting(void)
{
    return n_waiting;
}

void late_fail(sl_op op, int n)
{
    fail_op = (int)op;
    fail_in = n;
}

/* Whether the device can reach this memory itself. */
static bool reached(const void *p)
{
    const uint8_t *at = p;
    for (int i = 0; i < n_pinned; i++)
        if (at >= pinned[i].at && at < pinned[i].at + pinned[i].bytes)
            return true;
    for (int i = 0; i < n_device; i++)
        if (at >= device[i].at && at < device[i].at + device[i].bytes)
            return true;
    return false;
}

static work *add(int what)
{
    work *w = calloc(1, sizeof *w);
    SL_CHECK(w, "out of memory");
    w->what = what;
    *last = w;
    last = &w->next;
    n_waiting++;
    return w;
}

static sl_status do_op(sl_backend *be, work *w, sl_err *err)
{
    if (fail_in > 0 && w->what == fail_op && --fail_in == 0) {
        faults |= FAULT;
        return SL_OK;
    }
    return sl_backend_cpu.ops[w->what]->run(be, w->kept.params, err);
}

static sl_status do_work(sl_backend *be, work *w, sl_err *err)
{
    switch (w->what) {
    case COPY:
        return sl_backend_cpu.copy(be, w->dst, w->own ? w->own : w->src, w->width, err);
    case COPY_2D:
        return sl_backend_cpu.copy_2d(be, w->dst, w->dst_pitch, w->src, w->src_pitch, w->width, w->rows, err);
    case FILL:
        return sl_backend_cpu.fill(be, w->dst, w->byte, w->width, err);
    case RECORD:
        ((late_event *)w->event)->waiting--;
        return SL_OK;
    case STAMP:
        *(uint64_t *)w->dst = sl_now_ns() + LATE_CLOCK;
        return SL_OK;
    default:
        return do_op(be, w, err);
    }
}

/* Computes until the event is reached; NULL: everything. A failure is told after that, as a device does. */
static sl_status compute(sl_backend *be, const late_event *until, sl_err *err)
{
    sl_status st = SL_OK;
    while (first && (!until || until->waiting > 0)) {
        work *w = first;
        sl_err why = {0};
        sl_status got = do_work(be, w, &why);
        if (got != SL_OK && st == SL_OK) {
            st = got;
            if (err)
                *err = why;
        }
        first = w->next;
        last = first ? last : &first;
        n_waiting--;
        free(w->own);
        free(w);
    }
    if (faults && st == SL_OK)
        st = sl_fail(err, SL_ERR_INVALID, "the device has found a fault");
    faults = 0;
    return st;
}

static sl_status late_alloc(sl_backend *be, sl_mem_kind kind, size_t bytes, void **out, sl_err *err)
{
    SL_TRY(sl_backend_cpu.alloc(be, kind, bytes, out, err));
    if (kind == SL_MEM_HOST) {
        SL_CHECK(n_pinned < RANGES, "more than %d pinned ranges", RANGES);
        pinned[n_pinned].at = *out;
        pinned[n_pinned++].bytes = bytes;
    } else {
        SL_CHECK(n_device < (int)SL_COUNT(device), "too much device memory");
        device[n_device].at = *out;
        device[n_device++].bytes = bytes;
    }
    return SL_OK;
}

static void late_free(sl_backend *be, sl_mem_kind kind, void *ptr)
{
    (void)compute(be, NULL, NULL);
    sl_backend_cpu.free(be, kind, ptr);
}

static sl_status late_register(sl_backend *be, void *ptr, size_t bytes, sl_err *err)
{
    (void)be, (void)err;
    SL_CHECK(n_pinned < RANGES, "more than %d pinned ranges", RANGES);
    pinned[n_pinned].at = ptr;
    pinned[n_pinned++].bytes = bytes;
    return SL_OK;
}

static void late_unregister(sl_backend *be, void *ptr)
{
    (void)ptr;
    (void)compute(be, NULL, NULL);
}

static sl_status late_copy(sl_backend *be, void *dst, const void *src, size_t bytes, sl_err *err)
{
    work *w = add(COPY);
    w->dst = dst, w->src = src, w->width = bytes;
    if (!reached(src)) {
        w->own = malloc(bytes);
        SL_CHECK(w->own, "out of memory");
        memcpy(w->own, src, bytes);
    }
    return reached(dst) ? SL_OK : compute(be, NULL, err);
}

static sl_status late_copy_2d(sl_backend *be, void *dst, size_t dp, const void *src, size_t sp, size_t width,
                              size_t rows, sl_err *err)
{
    work *w = add(COPY_2D);
    *w = (work){.what = COPY_2D,
                .dst = dst,
                .src = src,
                .dst_pitch = dp,
                .src_pitch = sp,
                .width = width,
                .rows = rows};
    return reached(src) && reached(dst) ? SL_OK : compute(be, NULL, err);
}

static sl_status late_fill(sl_backend *be, void *dst, uint8_t byte, size_t bytes, sl_err *err)
{
    (void)be, (void)err;
    work *w = add(FILL);
    w->dst = dst, w->byte = byte, w->width = bytes;
    return SL_OK;
}

static sl_status late_sync(sl_backend *be, sl_err *err)
{
    return compute(be, NULL, err);
}

static sl_status event_create(sl_backend *be, sl_event **out, sl_err *err)
{
    late_event *e = calloc(1, sizeof *e);
    if (!e)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    e->base.be = be;
    *out = &e->base;
    return SL_OK;
}

static void event_destroy(sl_event *ev)
{
    (void)compute(ev->be, NULL, NULL);
    free(ev);
}

static sl_status event_record(sl_backend *be, sl_event *ev, sl_err *err)
{
    (void)be, (void)err;
    add(RECORD)->event = ev;
    ((late_event *)ev)->waiting++;
    return SL_OK;
}

static sl_status event_query(sl_event *ev)
{
    const late_event *e = (const late_event *)ev;
    if (e->waiting == 0)
        return SL_OK;
    (void)compute(ev->be, e, NULL);
    return SL_INPROGRESS;
}

static sl_status event_wait(sl_event *ev, sl_err *err)
{
    return compute(ev->be, (const late_event *)ev, err);
}

static sl_status late_stamp(sl_backend *be, uint64_t *at, sl_err *err)
{
    (void)be, (void)err;
    add(STAMP)->dst = at;
    return SL_OK;
}

/* An op does not know its number, so each has its own function. */
#define X(op, name, items, field, text)                                                                      \
    static sl_status late_##name(sl_backend *be, const void *params, sl_err *err)                            \
    {                                                                                                        \
        (void)be, (void)err;                                                                                 \
        tape_keep(&add(SL_OP_##op)->kept, SL_OP_##op, params);                                               \
        return SL_OK;                                                                                        \
    }
SL_OPS(X)
#undef X

void late_wrap(sl_backend *be)
{
    SL_CHECK(!first, "work of an earlier device waits");
    n_pinned = n_device = 0;
    fail_in = 0;
    desc = sl_backend_cpu;
    desc.row_align = SL_ROW_ALIGN;
    desc.alloc = late_alloc, desc.free = late_free;
    desc.host_register = late_register, desc.host_unregister = late_unregister;
    desc.copy = late_copy, desc.copy_2d = late_copy_2d, desc.fill = late_fill;
    desc.sync = late_sync;
    desc.event_create = event_create, desc.event_destroy = event_destroy;
    desc.event_record = event_record, desc.event_query = event_query;
    desc.event_fence = event_record, desc.event_wait = event_wait;
    desc.stamp = late_stamp;
#define X(op, name, items, field, text)                                                                      \
    impls[SL_OP_##op] =                                                                                      \
        (sl_op_impl){.run = late_##name, .supports = sl_backend_cpu.ops[SL_OP_##op]->supports};              \
    desc.ops[SL_OP_##op] = &impls[SL_OP_##op];
    SL_OPS(X)
#undef X
    be->desc = &desc;
    be->caps = SL_BE_ASYNC;
}
