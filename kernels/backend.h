/*
 * Compute backend: the seam between the model and a device. Users include this header; those who implement a
 * backend include kernels/backend_impl.h.
 *
 * A backend instance owns one device, its memory and its streams (see sl_stream). `run` enqueues an op; the op is
 * complete after sl_be_sync(), or when an event that was recorded after it is done. The CPU backend completes every
 * op before `run` returns, so its events are done when they are recorded. The CPU implementation is the
 * specification: every other backend is compared with it, op by op.
 *
 * Threads: an instance belongs to one thread, except sl_event_query() and sl_be_use_thread(), which any thread may
 * call, and sl_be_host_register(), for which another thread has called sl_be_use_thread(). Lifetime: buffers and events are freed by their creator, before the backend is destroyed.
 */
#ifndef SL_KERNELS_BACKEND_H
#define SL_KERNELS_BACKEND_H

#include "kernels/ops.h"
#include "kernels/params.h"

typedef struct sl_backend sl_backend;
typedef struct sl_event sl_event;

typedef enum {
    SL_MEM_DEVICE, /* the device's own memory */
    SL_MEM_HOST,   /* host memory that the device can read and write directly (pinned) */
} sl_mem_kind;

/* SL_OP_EMBED ...: the ops of kernels/ops.h. */
enum {
    /* device memory is host memory: SL_MEM_DEVICE pointers may be read by the host after sync */
    SL_BE_UNIFIED = 1u << 0,
    SL_BE_ASYNC = 1u << 1,  /* run returns before the op is complete */
    SL_BE_GRAPHS = 1u << 2, /* sl_be_capture_* are supported */
};

typedef struct sl_backend_opts {
    int device;  /* ordinal; ignored by cpu */
    int threads; /* cpu: worker threads, 0 = all cores of the process; ignored by cuda */
} sl_backend_opts;

/* Opens the backend called name ("cpu", "cuda"). SL_ERR_UNSUPPORTED names what is missing (not built in, no
 * device, too old). */
sl_status sl_backend_create(const char *name, const sl_backend_opts *opts, sl_backend **out, sl_err *err);
void sl_backend_destroy(sl_backend *be);
/* NULL-terminated names of all backends; create says which of them this build lacks. */
const char *const *sl_backend_names(void);
const char *sl_backend_name(const sl_backend *be);
unsigned sl_backend_caps(const sl_backend *be);
/* "NVIDIA H200, 132 SM, 139.8 GiB" — one line for the start log. */
const char *sl_backend_describe(const sl_backend *be);
/* What no other device has, on any host ("GPU-5f3c..."); empty for devices that instances share (cpu). */
const char *sl_backend_device(const sl_backend *be);
/* Makes the instance's device the current one of the calling thread. Libraries that use device memory on a thread
 * of their own (UCX) need this. Any thread; it does nothing where device memory is host memory. */
sl_status sl_be_use_thread(sl_backend *be, sl_err *err);
/* Free and total bytes of device memory. */
sl_status sl_be_memory(sl_backend *be, uint64_t *free_bytes, uint64_t *total_bytes, sl_err *err);

/* Memory, 256-byte aligned, contents undefined. */
sl_status sl_be_alloc(sl_backend *be, sl_mem_kind kind, size_t bytes, void **out, sl_err *err);
void sl_be_free(sl_backend *be, sl_mem_kind kind, void *ptr);
/* Makes existing host memory (the arena) directly readable by the device. On unified backends it does nothing and
 * returns SL_OK. */
sl_status sl_be_host_register(sl_backend *be, void *ptr, size_t bytes, sl_err *err);
void sl_be_host_unregister(sl_backend *be, void *ptr);
/* Enqueues a copy between device memory and host memory, or within either, in stream order. Pageable host memory is
 * allowed; the call may then block. */
sl_status sl_be_copy(sl_backend *be, void *dst, const void *src, size_t bytes, sl_err *err);
/* The same for `rows` rows of `width` bytes, with a pitch on each side. */
sl_status sl_be_copy_2d(sl_backend *be, void *dst, size_t dst_pitch, const void *src, size_t src_pitch,
                        size_t width, size_t rows, sl_err *err);
sl_status sl_be_fill(sl_backend *be, void *dst, uint8_t byte, size_t bytes, sl_err *err);

/* Whether this backend can run the op with these parameters; if not, err receives the reason (dimension, format,
 * dtype). */
sl_status sl_be_supports(sl_backend *be, sl_op op, const void *params, sl_err *err);
/* What sl_be_run() would refuse of parameters and addresses, before it runs. */
sl_status sl_be_check(const sl_backend *be, sl_op op, const void *params, sl_err *err);
/* The path on which this backend runs the op with these parameters (kernels/paths.h); NULL where it has one kernel. The
 * parameters have passed sl_be_supports(). */
const struct sl_path *sl_be_path(const sl_backend *be, sl_op op, const void *params);
/* Whose bits results have: 0: those of the specification, which the CPU computes; else those of devices of this compute capability,
 * 10 * major + minor. Rows of a cache that were made with others are another computation's. */
uint32_t sl_backend_bits(const sl_backend *be);
/* Enqueues one op; params is the op's struct of kernels/params.h. Bad parameters give SL_ERR_INVALID or
 * SL_ERR_UNSUPPORTED, never a wrong answer.
 * The first time that an op takes a path that is not meant to be fast, the log says so. */
sl_status sl_be_run(sl_backend *be, sl_op op, const void *params, sl_err *err);
/*
 * Scratch memory for temporary operands of ops, which a backend keeps. Until this is called it grows with what ops ask for. From then
 * on it has `bytes` and does not grow: an op that states more (sl_op_scratch) is
 * refused with SL_ERR_UNSUPPORTED and its name, the bytes it asks for and the bytes that are planned, before it enqueues anything. To be
 * called when what will run is known, outside of captures; another call can make it larger. Nothing on a backend without scratch.
 */
sl_status sl_be_scratch(sl_backend *be, size_t bytes, sl_err *err);
/* The GPU by which ops state their scratch: the backend's own, or that of sl_be_scratch_as(), or NULL: none is taken. */
const struct sl_gpu *sl_be_gpu(const sl_backend *be);
/* For tests: a backend without a GPU holds ops to their plan as if it had this one, which stays. NULL: no longer. */
void sl_be_scratch_as(sl_backend *be, const struct sl_gpu *gpu);
/* Called by collectives/ before a collective is enqueued: profiles and deferred errors then count it apart, as SL_OP_COUNT. */
void sl_be_collective(sl_backend *be);
/* Waits for everything enqueued; reports any deferred device error. */
sl_status sl_be_sync(sl_backend *be, sl_err *err);

sl_status sl_event_create(sl_backend *be, sl_event **out, sl_err *err);
void sl_event_destroy(sl_event *ev);
/* Marks this point of the selected stream; recording again moves the mark. */
sl_status sl_event_record(sl_backend *be, sl_event *ev, sl_err *err);
/* SL_OK: the work before the mark is done. SL_INPROGRESS: not yet. An error: the device failed. Any thread. */
sl_status sl_event_query(sl_event *ev);
/* sl_event_record() on the main stream, outside captures, for sl_event_wait(): that one waits for the work before the mark,
 * not for what was enqueued later, and reports what sl_be_sync() would have reported here. A failure that later work
 * has found meanwhile may be reported as well. */
sl_status sl_event_fence(sl_backend *be, sl_event *ev, sl_err *err);
sl_status sl_event_wait(sl_event *ev, sl_err *err);

/*
 * Streams. An instance has two: the main stream, which is selected after create, and a side stream for copies
 * that run concurrently with the computation on the main stream. Everything that enqueues (ops, copies,
 * fills, events, stamps) goes to the selected stream. Work of one stream runs in order; the two streams are
 * ordered by events only: sl_event_record() marks a point of the selected stream, sl_be_stream_wait() makes
 * the selected stream wait for the point that the event marked last.
 *
 * An asynchronous copy of rows is therefore this sequence of calls:
 *
 *     sl_event_record(be, forked)                         what the copy reads is complete
 *     sl_be_stream_use(be, SL_STREAM_SIDE)
 *     sl_be_stream_wait(be, forked), the copy, sl_event_record(be, arrived)
 *     sl_be_stream_use(be, SL_STREAM_MAIN), work that does not need the rows
 *     sl_be_stream_wait(be, arrived), work that does
 *
 * Rules: the main stream is selected, and has waited for every event recorded on the side stream, before a
 * sync and before a capture ends; ops that need scratch memory must not run on the side stream, because scratch
 * is reused in the order of the main stream. Captures record the same dependencies into the graph. A backend
 * with one stream runs everything in order, which satisfies every wait.
 */
typedef enum {
    SL_STREAM_MAIN,
    SL_STREAM_SIDE,
} sl_stream;
void sl_be_stream_use(sl_backend *be, sl_stream stream);
sl_status sl_be_stream_wait(sl_backend *be, sl_event *ev, sl_err *err);
/* Enqueues a time stamp: when the selected stream reaches this point, *at (device memory) receives the time of the
 * device's clock that sl_swap_clock uses. A backend with one stream leaves *at unchanged. */
sl_status sl_be_stamp(sl_backend *be, uint64_t *at, sl_err *err);

/* Records the ops that are enqueued between begin and end into a graph (SL_BE_GRAPHS); a launch enqueues the whole
 * graph. */
typedef struct sl_graph sl_graph;
sl_status sl_be_capture_begin(sl_backend *be, sl_err *err);
sl_status sl_be_capture_end(sl_backend *be, sl_graph **out, sl_err *err);
sl_status sl_be_graph_launch(sl_backend *be, sl_graph *graph, sl_err *err);
void sl_graph_destroy(sl_graph *graph);

/*
 * The time of each op, for profiles. Between begin and end every sl_be_run() records a mark in the stream. The time
 * between two marks is counted for the op at the first mark, together with the copies and fills that follow it. A
 * collective (collectives/comm.h) is counted as SL_OP_COUNT, with its wait for other ranks. At most `capacity` ops are
 * kept. end waits for the device; out[*n] is malloc'ed, the caller frees it. Profiles must
 * not be taken inside a capture: ops in graphs are not recorded.
 */
typedef struct sl_op_time {
    sl_op op;
    int32_t rows, cols; /* linear: outputs of the whole chain, and inputs; other ops: 0 */
    double ns;
} sl_op_time;
sl_status sl_be_profile_begin(sl_backend *be, int32_t capacity, sl_err *err);
bool sl_be_profiled(const sl_backend *be); /* between begin and end */
sl_status sl_be_profile_end(sl_backend *be, sl_op_time **out, int32_t *n, sl_err *err);

const char *sl_op_name(sl_op op);
const char *sl_op_text(sl_op op); /* one sentence */
size_t sl_op_params_size(sl_op op);

#endif
