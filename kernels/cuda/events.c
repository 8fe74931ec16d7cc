/*
 * CUDA backend: the streams, events and graphs of an instance, and the marks of profiles.
 *
 * Gathers that run concurrently with the computation are on the side stream, which has the higher priority; everything
 * else is on the main stream. The backend knows when such a gather may be running by the events: one that was recorded
 * on the side stream counts as pending until the main stream waits for it.
 */
#include "kernels/cuda/events.h"

#include <stdlib.h>

struct cuda_event {
    sl_event base;
    cudaEvent_t ev;
    bool side_pending; /* recorded on the side stream, and the main stream has not waited for it yet */
};

struct cuda_graph {
    sl_graph base;
    cudaGraphExec_t exec;
};

sl_status sl_cuda_event_create(sl_backend *be, sl_event **out, sl_err *err)
{
    struct cuda_event *e = calloc(1, sizeof *e);
    sl_status st;

    if (!e)
        return sl_fail(err, SL_ERR_NO_MEMORY, "cuda: no memory for an event");
    e->base.be = be;
    st = SL_CU(cudaEventCreateWithFlags(&e->ev, cudaEventDisableTiming), err);
    if (st != SL_OK)
        goto free_event;
    *out = &e->base;
    return SL_OK;
free_event:
    free(e);
    return st;
}

/* Whether e stands for work of the side stream that the main stream has not waited for. As long as there is such
 * work, ops of the main stream leave it its multiprocessors. */
static void set_side_pending(sl_cuda *cu, struct cuda_event *e, bool pending)
{
    cu->side_pending += (int)pending - (int)e->side_pending;
    e->side_pending = pending;
    if (cu->side_pending == 0)
        cu->side_sms = cu->gpu.side_sms;
    cu->sms =
        cu->side_pending > 0 && cu->gpu.sms > 2 * cu->side_sms ? cu->gpu.sms - cu->side_sms : cu->gpu.sms;
}

void sl_cuda_event_destroy(sl_event *ev)
{
    struct cuda_event *e = (struct cuda_event *)ev;

    set_side_pending(sl_cuda_of(ev->be), e, false);
    cudaEventDestroy(e->ev);
    free(e);
}

sl_status sl_cuda_event_record(sl_backend *be, sl_event *ev, sl_err *err)
{
    sl_cuda *cu = sl_cuda_of(be);
    struct cuda_event *e = (struct cuda_event *)ev;

    set_side_pending(cu, e, cu->stream == cu->side_stream);
    return SL_CU(cudaEventRecord(e->ev, cu->stream), err);
}

void sl_cuda_stream_use(sl_backend *be, sl_stream stream)
{
    sl_cuda *cu = sl_cuda_of(be);

    cu->stream = stream == SL_STREAM_SIDE ? cu->side_stream : cu->main_stream;
}

sl_status sl_cuda_stream_wait(sl_backend *be, sl_event *ev, sl_err *err)
{
    sl_cuda *cu = sl_cuda_of(be);
    struct cuda_event *e = (struct cuda_event *)ev;

    if (cu->stream == cu->main_stream)
        set_side_pending(cu, e, false);
    return SL_CU(cudaStreamWaitEvent(cu->stream, e->ev, 0), err);
}

sl_status sl_cuda_event_query(sl_event *ev)
{
    cudaError_t e = cudaEventQuery(((struct cuda_event *)ev)->ev);

    if (e == cudaErrorNotReady) {
        (void)cudaGetLastError();
        return SL_INPROGRESS;
    }
    return SL_CU(e, NULL);
}

sl_status sl_cuda_event_sync(sl_event *ev, sl_err *err)
{
    return SL_CU(cudaEventSynchronize(((struct cuda_event *)ev)->ev), err);
}

sl_status sl_cuda_capture_begin(sl_backend *be, sl_err *err)
{
    sl_cuda *cu = sl_cuda_of(be);
    sl_status st = SL_CU(cudaStreamBeginCapture(cu->stream, cudaStreamCaptureModeThreadLocal), err);

    cu->capturing = st == SL_OK;
    return st;
}

static sl_status make_graph(sl_backend *be, cudaGraph_t recorded, sl_graph **out, sl_err *err)
{
    struct cuda_graph *g = calloc(1, sizeof *g);
    sl_status st;

    if (!g)
        return sl_fail(err, SL_ERR_NO_MEMORY, "cuda: no memory for a graph");
    st = SL_CU(cudaGraphInstantiate(&g->exec, recorded, 0), err);
    if (st != SL_OK)
        goto free_graph;
    g->base.be = be;
    sl_cuda_of(be)->n_graphs++;
    *out = &g->base;
    return SL_OK;
free_graph:
    free(g);
    return st;
}

sl_status sl_cuda_capture_end(sl_backend *be, sl_graph **out, sl_err *err)
{
    sl_cuda *cu = sl_cuda_of(be);
    cudaGraph_t recorded = NULL;
    sl_status st = SL_CU(cudaStreamEndCapture(cu->stream, &recorded), err);

    cu->capturing = false;
    if (st == SL_OK)
        st = make_graph(be, recorded, out, err);
    if (recorded)
        cudaGraphDestroy(recorded);
    return st;
}

sl_status sl_cuda_graph_launch(sl_backend *be, sl_graph *graph, sl_err *err)
{
    return SL_CU(cudaGraphLaunch(((struct cuda_graph *)graph)->exec, sl_cuda_of(be)->stream), err);
}

void sl_cuda_graph_destroy(sl_graph *graph)
{
    sl_cuda *cu = sl_cuda_of(graph->be);

    cudaGraphExecDestroy(((struct cuda_graph *)graph)->exec);
    free(graph);
    if (--cu->n_graphs == 0) {
        cudaStreamSynchronize(cu->stream); /* a launch of the graph may still be in flight */
        sl_cuda_free_retired(cu);
    }
}

sl_status sl_cuda_mark(sl_backend *be, int32_t i, sl_err *err)
{
    sl_cuda *cu = sl_cuda_of(be);

    if (i >= cu->n_marks) {
        int32_t cap = i < 512 ? 1024 : 2 * i;
        cudaEvent_t *v = realloc(cu->marks, sizeof *v * (size_t)cap);
        if (!v)
            return sl_fail(err, SL_ERR_NO_MEMORY, "cuda: no memory for marks");
        cu->marks = v;
        for (; cu->n_marks < cap; cu->n_marks++) {
            SL_TRY(SL_CU(cudaEventCreate(&cu->marks[cu->n_marks]), err));
        }
    }
    return SL_CU(cudaEventRecord(cu->marks[i], cu->stream), err);
}

sl_status sl_cuda_mark_ns(sl_backend *be, int32_t i, double *ns, sl_err *err)
{
    sl_cuda *cu = sl_cuda_of(be);
    float ms = 0;
    sl_status st = SL_CU(cudaEventElapsedTime(&ms, cu->marks[i], cu->marks[i + 1]), err);

    *ns = (double)ms * 1e6;
    return st;
}
