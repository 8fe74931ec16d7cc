/* Slots of the backend's table (kernels/backend_impl.h) that events.c implements. Internal to kernels/cuda. */
#ifndef SL_KERNELS_CUDA_EVENTS_H
#define SL_KERNELS_CUDA_EVENTS_H

#include "kernels/cuda/instance.h"

sl_status sl_cuda_event_create(sl_backend *be, sl_event **out, sl_err *err);
void sl_cuda_event_destroy(sl_event *ev);
sl_status sl_cuda_event_record(sl_backend *be, sl_event *ev, sl_err *err);
sl_status sl_cuda_event_query(sl_event *ev);
sl_status sl_cuda_event_sync(sl_event *ev, sl_err *err); /* waits only */
void sl_cuda_stream_use(sl_backend *be, sl_stream stream);
sl_status sl_cuda_stream_wait(sl_backend *be, sl_event *ev, sl_err *err);
sl_status sl_cuda_capture_begin(sl_backend *be, sl_err *err);
sl_status sl_cuda_capture_end(sl_backend *be, sl_graph **out, sl_err *err);
sl_status sl_cuda_graph_launch(sl_backend *be, sl_graph *graph, sl_err *err);
void sl_cuda_graph_destroy(sl_graph *graph);
sl_status sl_cuda_mark(sl_backend *be, int32_t i, sl_err *err);
sl_status sl_cuda_mark_ns(sl_backend *be, int32_t i, double *ns, sl_err *err);

/* Frees the scratch blocks that graphs may have used. Call it only when no graph exists. backend.c */
void sl_cuda_free_retired(sl_cuda *cu);

#endif
