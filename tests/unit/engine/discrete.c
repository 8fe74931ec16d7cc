/* See discrete.h. */
#include "discrete.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/log.h"
#include "fix.h"
#include "kernels/backend_impl.h"
#include "tape.h"

#define REGION (256u << 20)

discrete_counts discrete;
static sl_backend_desc desc;
static struct tape *recording; /* the graph being captured */
static uint8_t *region;
static size_t used;
static int depth;

static void enter(void)
{
    if (depth++ == 0)
        MUST(mprotect(region, REGION, PROT_READ | PROT_WRITE) == 0);
}

static sl_status leave(sl_status st)
{
    if (--depth == 0)
        MUST(mprotect(region, REGION, PROT_NONE) == 0);
    return st;
}

static sl_status wrap_alloc(sl_backend *be, sl_mem_kind kind, size_t bytes, void **out, sl_err *err)
{
    if (kind == SL_MEM_HOST)
        return sl_backend_cpu.alloc(be, kind, bytes, out, err);
    size_t need = (bytes + 255) / 256 * 256;
    MUST(need <= REGION - used);
    *out = region + used;
    used += need;
    return SL_OK;
}

static void wrap_free(sl_backend *be, sl_mem_kind kind, void *ptr)
{
    if (kind == SL_MEM_HOST)
        sl_backend_cpu.free(be, kind, ptr);
    else
        MUST((uint8_t *)ptr >= region && (uint8_t *)ptr < region + REGION);
}

static sl_status wrap_copy(sl_backend *be, void *dst, const void *src, size_t bytes, sl_err *err)
{
    MUST(!recording);
    enter();
    return leave(sl_backend_cpu.copy(be, dst, src, bytes, err));
}

static sl_status wrap_copy_2d(sl_backend *be, void *dst, size_t dp, const void *src, size_t sp, size_t width,
                              size_t rows, sl_err *err)
{
    enter();
    return leave(sl_backend_cpu.copy_2d(be, dst, dp, src, sp, width, rows, err));
}

static sl_status wrap_fill(sl_backend *be, void *dst, uint8_t byte, size_t bytes, sl_err *err)
{
    MUST(!recording);
    enter();
    return leave(sl_backend_cpu.fill(be, dst, byte, bytes, err));
}

/* ---- graphs ---- */

enum { TAPE_OPS = 1000, TAPES = 16 };

enum { STREAM_USE = SL_OP_COUNT, STREAM_WAIT, EVENT_RECORD, STAMP };

typedef struct taped {
    int op; /* an sl_op, or one of the above */
    sl_stream stream;
    sl_event *event;
    uint64_t *at;
    tape_params kept;
} taped;

typedef struct tape {
    sl_graph base;
    int n;
    taped ops[TAPE_OPS];
} tape;

static void keep(taped *t, sl_op op, const void *params)
{
    t->op = op;
    tape_keep(&t->kept, op, params);
}

static taped *next_place(void)
{
    MUST(recording->n < TAPE_OPS);
    return &recording->ops[recording->n++];
}

static sl_status record(sl_op op, const void *params)
{
    keep(next_place(), op, params);
    return SL_OK;
}

/* ---- streams and late events ---- */

enum { SIDE_OPS = 4 };

typedef struct late_event {
    sl_event base;
    int queries_left; /* -1: never recorded */
    int n;            /* work of the side stream that is done when the main stream waits for this event */
    taped ops[SIDE_OPS];
} late_event;

static int unwaited; /* ops on the side stream whose event the main stream has not waited for */
static sl_stream selected;
static taped on_side[SIDE_OPS]; /* enqueued on the side stream since its last event */
static int n_on_side;

static sl_status run_now(sl_backend *be, sl_op op, const void *params, sl_err *err)
{
    if (selected == SL_STREAM_SIDE) {
        MUST(n_on_side < SIDE_OPS);
        keep(&on_side[n_on_side++], op, params);
        return SL_OK;
    }
    enter();
    return leave(sl_backend_cpu.ops[op]->run(be, params, err));
}

static sl_status late_create(sl_backend *be, sl_event **out, sl_err *err)
{
    (void)err;
    late_event *e = calloc(1, sizeof *e);
    e->base.be = be;
    e->queries_left = -1;
    *out = &e->base;
    return SL_OK;
}

static void late_destroy(sl_event *ev)
{
    MUST(((late_event *)ev)->n == 0);
    free(ev);
}

static void record_now(late_event *e)
{
    e->queries_left = 3;
    if (selected == SL_STREAM_MAIN)
        return;
    MUST(e->n == 0); /* the main stream has waited for the event's last use */
    memcpy(e->ops, on_side, sizeof on_side);
    e->n = n_on_side;
    unwaited += n_on_side;
    n_on_side = 0;
}

static sl_status wait_now(sl_backend *be, late_event *e, sl_err *err)
{
    sl_status st = SL_OK;
    if (selected == SL_STREAM_SIDE)
        return SL_OK; /* the main stream's work is done at once */
    MUST(e->queries_left >= 0);
    discrete.stream_waits++;
    for (int i = 0; i < e->n && st == SL_OK; i++)
        st = run_now(be, (sl_op)e->ops[i].op, e->ops[i].kept.params, err);
    unwaited -= e->n;
    e->n = 0;
    return st;
}

static void stamp_now(uint64_t *at)
{
    enter();
    *at = sl_now_ns();
    (void)leave(SL_OK);
}

static sl_status late_record(sl_backend *be, sl_event *ev, sl_err *err)
{
    (void)be, (void)err;
    if (recording)
        *next_place() = (taped){.op = EVENT_RECORD, .event = ev};
    else
        record_now((late_event *)ev);
    return SL_OK;
}

static sl_status late_query(sl_event *ev)
{
    late_event *e = (late_event *)ev;
    MUST(e->queries_left >= 0); /* asked about an event that was never recorded */
    if (e->queries_left == 0)
        return SL_OK;
    e->queries_left--;
    discrete.pending_queries++;
    return SL_INPROGRESS;
}

static void stream_use(sl_backend *be, sl_stream stream)
{
    (void)be;
    if (recording)
        *next_place() = (taped){.op = STREAM_USE, .stream = stream};
    else
        selected = stream;
}

static sl_status stream_wait(sl_backend *be, sl_event *ev, sl_err *err)
{
    if (!recording)
        return wait_now(be, (late_event *)ev, err);
    *next_place() = (taped){.op = STREAM_WAIT, .event = ev};
    return SL_OK;
}

static sl_status stamp(sl_backend *be, uint64_t *at, sl_err *err)
{
    (void)be, (void)err;
    if (recording)
        *next_place() = (taped){.op = STAMP, .at = at};
    else
        stamp_now(at);
    return SL_OK;
}

static sl_status wrap_sync(sl_backend *be, sl_err *err)
{
    MUST(selected == SL_STREAM_MAIN && n_on_side == 0 && unwaited == 0);
    return sl_backend_cpu.sync(be, err);
}

static sl_status replay(sl_backend *be, const taped *o, sl_err *err)
{
    switch (o->op) {
    case STREAM_USE:
        selected = o->stream;
        return SL_OK;
    case STREAM_WAIT:
        return wait_now(be, (late_event *)o->event, err);
    case EVENT_RECORD:
        record_now((late_event *)o->event);
        return SL_OK;
    case STAMP:
        stamp_now(o->at);
        return SL_OK;
    default:
        return run_now(be, (sl_op)o->op, o->kept.params, err);
    }
}

static sl_status tape_begin(sl_backend *be, sl_err *err)
{
    (void)err;
    MUST(!recording);
    recording = calloc(1, sizeof *recording);
    recording->base.be = be;
    return SL_OK;
}

static sl_status tape_end(sl_backend *be, sl_graph **out, sl_err *err)
{
    (void)be, (void)err;
    MUST(recording && recording->n > 0);
    *out = &recording->base;
    recording = NULL;
    discrete.tapes++;
    return SL_OK;
}

static sl_status tape_launch(sl_backend *be, sl_graph *graph, sl_err *err)
{
    tape *t = (tape *)graph;
    sl_status st = SL_OK;
    discrete.launches++;
    for (int i = 0; i < t->n && st == SL_OK; i++)
        st = replay(be, &t->ops[i], err);
    return st;
}

static void tape_destroy(sl_graph *graph)
{
    discrete.tapes--;
    free(graph);
}

/* ---- ops ---- */

#define OP(name)                                                                                             \
    static sl_status run_##name(sl_backend *be, const void *params, sl_err *err)                             \
    {                                                                                                        \
        return recording ? record(name, params) : run_now(be, name, params, err);                            \
    }
#define OPS(X)                                                                                               \
    X(SL_OP_EMBED)                                                                                           \
    X(SL_OP_RMSNORM)                                                                                         \
    X(SL_OP_LINEAR)                                                                                          \
    X(SL_OP_Q_ABSORB)                                                                                        \
    X(SL_OP_V_UP)                                                                                            \
    X(SL_OP_KV_APPEND)                                                                                       \
    X(SL_OP_INDEX_APPEND)                                                                                    \
    X(SL_OP_INDEX_QUERY)                                                                                     \
    X(SL_OP_INDEX_SCORES)                                                                                    \
    X(SL_OP_TOPK)                                                                                            \
    X(SL_OP_RESOLVE)                                                                                         \
    X(SL_OP_GATHER)                                                                                          \
    X(SL_OP_HOT_RESET)                                                                                       \
    X(SL_OP_SPARSE_ATTN)                                                                                     \
    X(SL_OP_GQA_QUERY)                                                                                       \
    X(SL_OP_GQA_APPEND)                                                                                      \
    X(SL_OP_GQA_ATTN)                                                                                        \
    X(SL_OP_BOUNDS_APPEND)                                                                                   \
    X(SL_OP_BOUNDS_SCORES)                                                                                   \
    X(SL_OP_KMEANS)                                                                                          \
    X(SL_OP_CLUSTER_LISTS)                                                                                   \
    X(SL_OP_CODES)                                                                                           \
    X(SL_OP_CODE_SCORES)                                                                                     \
    X(SL_OP_KEPT_STORE)                                                                                      \
    X(SL_OP_WINDOW_VOTES)                                                                                    \
    X(SL_OP_KEPT_LISTS)                                                                                      \
    X(SL_OP_RETAINED_APPEND)                                                                                 \
    X(SL_OP_RETAINED_SCORES)                                                                                 \
    X(SL_OP_RETAINED_LISTS)                                                                                  \
    X(SL_OP_SILU_MUL)                                                                                        \
    X(SL_OP_MOE_ROUTE)                                                                                       \
    X(SL_OP_MOE)                                                                                             \
    X(SL_OP_ADD)                                                                                             \
    X(SL_OP_PICK)
OPS(OP)

void discrete_wrap(sl_backend *be)
{
    region = mmap(NULL, REGION, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    MUST(region != MAP_FAILED);
    used = 0;
    desc = sl_backend_cpu;
    desc.row_align = SL_ROW_ALIGN;
    desc.alloc = wrap_alloc, desc.free = wrap_free;
    desc.copy = wrap_copy, desc.copy_2d = wrap_copy_2d, desc.fill = wrap_fill;
    desc.event_create = late_create, desc.event_destroy = late_destroy;
    desc.event_record = late_record, desc.event_query = late_query;
    desc.capture_begin = tape_begin, desc.capture_end = tape_end;
    desc.stream_use = stream_use, desc.stream_wait = stream_wait, desc.stamp = stamp;
    desc.sync = wrap_sync;
    desc.graph_launch = tape_launch, desc.graph_destroy = tape_destroy;
    static sl_op_impl impls[SL_OP_COUNT];
#define ROW(name)                                                                                            \
    impls[name] = (sl_op_impl){.run = run_##name, .supports = sl_backend_cpu.ops[name]->supports};           \
    desc.ops[name] = &impls[name];
    OPS(ROW)
    be->desc = &desc;
    be->caps = SL_BE_ASYNC | SL_BE_GRAPHS;
}
