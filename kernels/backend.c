/*
 * Registry and dispatcher of the compute backends: thin wrappers that check what is the same everywhere and
 * call the implementation's table (kernels/backend_impl.h). No state of its own.
 */
#include "kernels/backend_impl.h"

#include <stdatomic.h>
#include <string.h>

#include "base/log.h"
#include "kernels/scratch.h"

static const sl_backend_desc *const backends[] = {
    &sl_backend_cpu,
#ifdef SL_CUDA
    &sl_backend_cuda,
#endif
};

static const char *const backend_names[] = {
    "cpu",
    "cuda",
    NULL,
};

const char *const *sl_backend_names(void)
{
    return backend_names;
}

sl_status sl_backend_create(const char *name, const sl_backend_opts *opts, sl_backend **out, sl_err *err)
{
    sl_backend_opts defaults = {0};

    if (!name || !out)
        return sl_fail(err, SL_ERR_INVALID, "backend: name or out is NULL");
    for (size_t i = 0; i < SL_COUNT(backends); i++)
        if (strcmp(backends[i]->name, name) == 0)
            return backends[i]->create(opts ? opts : &defaults, out, err);
    if (strcmp(name, "cuda") == 0)
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "backend cuda is not in this build (configure with -DSL_CUDA=ON)");
    return sl_fail(err, SL_ERR_UNSUPPORTED, "backend \"%s\" does not exist", name);
}

void sl_backend_destroy(sl_backend *be)
{
    if (be)
        be->desc->destroy(be);
}

const char *sl_backend_name(const sl_backend *be)
{
    return be->desc->name;
}

unsigned sl_backend_caps(const sl_backend *be)
{
    return be->caps;
}

const char *sl_backend_describe(const sl_backend *be)
{
    return be->describe;
}

const char *sl_backend_device(const sl_backend *be)
{
    return be->device;
}

sl_status sl_be_use_thread(sl_backend *be, sl_err *err)
{
    return be->desc->use_thread ? be->desc->use_thread(be, err) : SL_OK;
}

sl_status sl_be_memory(sl_backend *be, uint64_t *free_bytes, uint64_t *total_bytes, sl_err *err)
{
    return be->desc->memory(be, free_bytes, total_bytes, err);
}

/* ---- memory ---- */

sl_status sl_be_alloc(sl_backend *be, sl_mem_kind kind, size_t bytes, void **out, sl_err *err)
{
    if (bytes > PTRDIFF_MAX)
        return sl_fail(err, SL_ERR_TOO_LARGE, "%s: an allocation of %zu bytes is impossible", be->desc->name,
                       bytes);
    return be->desc->alloc(be, kind, bytes ? bytes : 1, out, err);
}

void sl_be_free(sl_backend *be, sl_mem_kind kind, void *ptr)
{
    if (ptr)
        be->desc->free(be, kind, ptr);
}

sl_status sl_be_host_register(sl_backend *be, void *ptr, size_t bytes, sl_err *err)
{
    if (!be->desc->host_register || bytes == 0)
        return SL_OK;
    return be->desc->host_register(be, ptr, bytes, err);
}

void sl_be_host_unregister(sl_backend *be, void *ptr)
{
    if (be->desc->host_unregister && ptr)
        be->desc->host_unregister(be, ptr);
}

sl_status sl_be_copy(sl_backend *be, void *dst, const void *src, size_t bytes, sl_err *err)
{
    if (bytes == 0)
        return SL_OK;
    if (!dst || !src)
        return sl_fail(err, SL_ERR_INVALID, "copy: dst or src is NULL");
    return be->desc->copy(be, dst, src, bytes, err);
}

sl_status sl_be_copy_2d(sl_backend *be, void *dst, size_t dst_pitch, const void *src, size_t src_pitch,
                        size_t width, size_t rows, sl_err *err)
{
    if (width == 0 || rows == 0)
        return SL_OK;
    if (!dst || !src)
        return sl_fail(err, SL_ERR_INVALID, "copy_2d: dst or src is NULL");
    if (dst_pitch < width || src_pitch < width)
        return sl_fail(err, SL_ERR_INVALID, "copy_2d: a pitch is smaller than width %zu", width);
    return be->desc->copy_2d(be, dst, dst_pitch, src, src_pitch, width, rows, err);
}

sl_status sl_be_fill(sl_backend *be, void *dst, uint8_t byte, size_t bytes, sl_err *err)
{
    if (bytes == 0)
        return SL_OK;
    if (!dst)
        return sl_fail(err, SL_ERR_INVALID, "fill: dst is NULL");
    return be->desc->fill(be, dst, byte, bytes, err);
}

/* ---- ops ---- */

sl_status sl_be_supports(sl_backend *be, sl_op op, const void *params, sl_err *err)
{
    SL_TRY(sl_op_check_shape(op, params, err));
    return be->desc->ops[op]->supports ? be->desc->ops[op]->supports(be, params, err) : SL_OK;
}

sl_status sl_be_check(const sl_backend *be, sl_op op, const void *params, sl_err *err)
{
    return sl_op_check(op, params, be->desc->row_align, err);
}

const sl_path *sl_be_path(const sl_backend *be, sl_op op, const void *params)
{
    return be->desc->gpu ? sl_op_path(be->desc->gpu(be), op, params) : NULL;
}

uint32_t sl_backend_bits(const sl_backend *be)
{
    return be->desc->gpu ? (uint32_t)be->desc->gpu(be)->cc : 0;
}

/* Once for each op of the process: with a real model it means that a shape or a type has no kernel of its own. */
static void tell_plain(const sl_backend *be, sl_op op, const void *params)
{
    static atomic_bool told[SL_OP_COUNT];
    const sl_path *path = be->desc->gpu && !told[op] ? sl_be_path(be, op, params) : NULL;

    if (!path || !path->plain || atomic_exchange(&told[op], true))
        return;
    sl_log(
        SL_LOG_WARN, "kernels", "plain-kernel",
        "op=%s backend=%s it computes every shape and is slow; docs/kernels.md has the shapes with a fast one",
        sl_op_name(op), be->desc->name);
}

/* ---- scratch ---- */

const sl_gpu *sl_be_gpu(const sl_backend *be)
{
    return be->desc->gpu ? be->desc->gpu(be) : be->plan.as;
}

void sl_be_scratch_as(sl_backend *be, const sl_gpu *gpu)
{
    be->plan.as = gpu;
}

sl_status sl_be_scratch(sl_backend *be, size_t bytes, sl_err *err)
{
    if (bytes < be->plan.bytes)
        bytes = be->plan.bytes;
    if (be->desc->scratch)
        SL_TRY(be->desc->scratch(be, bytes, err));
    be->plan.bytes = bytes, be->plan.made = true;
    return SL_OK;
}

/* *bytes = what the op states; SL_ERR_UNSUPPORTED: more than is planned. */
static sl_status state_scratch(const sl_backend *be, sl_op op, const void *params, size_t *bytes, sl_err *err)
{
    const sl_gpu *g = sl_be_gpu(be);

    *bytes = g ? sl_op_scratch(g, op, params) : 0;
    if (be->plan.made && *bytes > be->plan.bytes)
        return sl_fail(
            err, SL_ERR_UNSUPPORTED,
            "%s: it asks for %zu bytes of scratch memory, the plan has %zu: the op is outside of what was "
            "planned at start",
            sl_op_name(op), *bytes, be->plan.bytes);
    return SL_OK;
}

sl_status sl_be_run(sl_backend *be, sl_op op, const void *params, sl_err *err)
{
    size_t scratch;

    SL_TRY(sl_op_check_shape(op, params, err));
    if (sl_op_items(op, params) == 0)
        return SL_OK;
    SL_TRY(sl_op_check(op, params, be->desc->row_align, err));
    const struct sl_turns *turns = sl_op_turns(op, params);
    if (turns)
        return sl_run_turns(be, op, params, turns, err);
    SL_TRY(state_scratch(be, op, params, &scratch, err));
    if (be->profile)
        sl_profile_op(be, op, params);
    tell_plain(be, op, params);
    if (be->desc->begin)
        be->desc->begin(be, op, scratch);
    return be->desc->ops[op]->run(be, params, err);
}

void sl_be_collective(sl_backend *be)
{
    if (be->profile)
        sl_profile_op(be, SL_OP_COUNT, NULL);
    if (be->desc->begin)
        be->desc->begin(be, SL_OP_COUNT, 0);
}

bool sl_be_profiled(const sl_backend *be)
{
    return be->profile != NULL;
}

sl_status sl_be_sync(sl_backend *be, sl_err *err)
{
    return be->desc->sync(be, err);
}

sl_status sl_deverr(uint32_t mask, const char *op, sl_err *err)
{
    static const struct {
        uint32_t bit;
        sl_status st;
        const char *text;
    } rows[] = {
        {SL_DEVERR_ID, SL_ERR_INVALID, "an id is outside its table"},
        {SL_DEVERR_SEQ, SL_ERR_INVALID, "a token's sequence is not in the batch"},
        {SL_DEVERR_POS, SL_ERR_INVALID, "a position is outside the tables"},
        {SL_DEVERR_PAGE, SL_ERR_INVALID, "a page that is needed is missing"},
        {SL_DEVERR_SELECTION, SL_ERR_INVALID, "selected ids are not ascending within 0..pos"},
        {SL_DEVERR_MULTI_TOKEN, SL_ERR_UNSUPPORTED,
         "several tokens of one hierarchical sequence in a step, which are too many or wait for single blocks"},
        {SL_DEVERR_HOT_CAPACITY, SL_ERR_EXHAUSTED, "rows.hot_rows is smaller than the selection"},
        {SL_DEVERR_MISS_CAPACITY, SL_ERR_EXHAUSTED, "more misses than miss_cap"},
        {SL_DEVERR_STEP, SL_ERR_INVALID, "step is 0, or not below 2^31 with clock: reset the hot state"},
        {SL_DEVERR_ROWS, SL_ERR_INVALID, "a rank sent fewer results than the tokens have choices"},
    };

    for (size_t i = 0; i < SL_COUNT(rows); i++)
        if (mask & rows[i].bit)
            return sl_fail(err, rows[i].st, "%s: %s", op, rows[i].text);
    return mask ? sl_fail(err, SL_ERR_INTERNAL, "%s: unknown device error %#x", op, mask) : SL_OK;
}

/* ---- events, streams and graphs ---- */

sl_status sl_event_create(sl_backend *be, sl_event **out, sl_err *err)
{
    return be->desc->event_create(be, out, err);
}

void sl_event_destroy(sl_event *ev)
{
    if (ev)
        ev->be->desc->event_destroy(ev);
}

sl_status sl_event_record(sl_backend *be, sl_event *ev, sl_err *err)
{
    return be->desc->event_record(be, ev, err);
}

sl_status sl_event_query(sl_event *ev)
{
    return ev->be->desc->event_query(ev);
}

sl_status sl_event_fence(sl_backend *be, sl_event *ev, sl_err *err)
{
    return be->desc->event_fence ? be->desc->event_fence(be, ev, err) : be->desc->event_record(be, ev, err);
}

sl_status sl_event_wait(sl_event *ev, sl_err *err)
{
    const sl_backend_desc *d = ev->be->desc;
    sl_status st;
    if (d->event_wait)
        return d->event_wait(ev, err);
    while ((st = d->event_query(ev)) == SL_INPROGRESS)
        ;
    return st == SL_OK ? SL_OK : sl_fail(err, st, "%s: work before an event did not complete", d->name);
}

void sl_be_stream_use(sl_backend *be, sl_stream stream)
{
    if (be->desc->stream_use)
        be->desc->stream_use(be, stream);
}

sl_status sl_be_stream_wait(sl_backend *be, sl_event *ev, sl_err *err)
{
    return be->desc->stream_wait ? be->desc->stream_wait(be, ev, err) : SL_OK;
}

sl_status sl_be_stamp(sl_backend *be, uint64_t *at, sl_err *err)
{
    return be->desc->stamp ? be->desc->stamp(be, at, err) : SL_OK;
}

static sl_status no_graphs(const sl_backend *be, sl_err *err)
{
    return sl_fail(err, SL_ERR_UNSUPPORTED, "the %s backend has no graphs", be->desc->name);
}

sl_status sl_be_capture_begin(sl_backend *be, sl_err *err)
{
    return be->desc->capture_begin ? be->desc->capture_begin(be, err) : no_graphs(be, err);
}

sl_status sl_be_capture_end(sl_backend *be, sl_graph **out, sl_err *err)
{
    return be->desc->capture_end ? be->desc->capture_end(be, out, err) : no_graphs(be, err);
}

sl_status sl_be_graph_launch(sl_backend *be, sl_graph *graph, sl_err *err)
{
    return be->desc->graph_launch ? be->desc->graph_launch(be, graph, err) : no_graphs(be, err);
}

void sl_graph_destroy(sl_graph *graph)
{
    if (graph)
        graph->be->desc->graph_destroy(graph);
}
