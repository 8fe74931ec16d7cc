/*
 * The interface between the dispatcher and a compute backend. Users of a backend include kernels/backend.h only.
 *
 * An implementation is one const sl_backend_desc, which is listed by name in kernels/backend.c (no constructors). Its
 * instance struct begins with an sl_backend, its events with an sl_event, its graphs with an sl_graph; create() fills
 * the base. Before it calls a slot, the dispatcher (kernels/backend.c) does what is the same for all backends:
 *   - null checks of out-parameters, zero-byte alloc/copy/fill;
 *   - sl_op_check(): everything about an op's parameters that the host can see (null pointers, shapes, strides, dtypes,
 *     formats, overflow of products). A slot may rely on it and checks only its own limits;
 *   - tokens == 0 (n == 0 for pick) is SL_OK and never reaches an op slot.
 * What only the device can see (ids, positions, page numbers, capacities) is checked by the op itself. The op writes
 * nothing outside its buffers, and the failure is reported by run (synchronous backends) or by the next sync
 * (asynchronous backends) with the same status: see SL_DEVERR_*.
 *
 * Threads and lifetime: as backend.h promises; slots are called from the instance's one thread, except event_query.
 */
#ifndef SL_KERNELS_BACKEND_IMPL_H
#define SL_KERNELS_BACKEND_IMPL_H

#include "kernels/backend.h"

typedef struct sl_backend_desc sl_backend_desc;
struct sl_gpu;                        /* kernels/paths.h */
typedef struct sl_profile sl_profile; /* kernels/profile.c */

/* The plan of scratch memory: sl_be_scratch(). */
typedef struct sl_be_plan {
    const struct sl_gpu *as; /* sl_be_scratch_as() */
    size_t bytes;
    bool made;
} sl_be_plan;

/* Base of every instance; desc->create() fills it. */
struct sl_backend {
    const sl_backend_desc *desc;
    unsigned caps;       /* SL_BE_* of this instance */
    char describe[128];  /* sl_backend_describe() */
    char device[48];     /* sl_backend_device() */
    sl_profile *profile; /* NULL unless a profile is being taken */
    sl_be_plan plan;
};

struct sl_event {
    sl_backend *be;
};

struct sl_graph {
    sl_backend *be;
};

/* One op of one backend. supports may be NULL: everything that sl_op_check accepts is supported. */
typedef struct sl_op_impl {
    sl_status (*run)(sl_backend *be, const void *params, sl_err *err);
    sl_status (*supports)(sl_backend *be, const void *params, sl_err *err);
} sl_op_impl;

struct sl_backend_desc {
    const char *name;        /* "cpu", "cuda" */
    const char *description; /* one line for `--help` */
    /* What rows that are multiples of SL_ROW_ALIGN bytes are aligned to: SL_ROW_ALIGN, or 1 for a backend that chooses no path
     * by it (the CPU reads weights where the file was mapped). */
    size_t row_align;
    /* Required: instance, memory, stream. Arguments are never NULL except err; bytes are never 0. */
    sl_status (*create)(const sl_backend_opts *opts, sl_backend **out, sl_err *err);
    void (*destroy)(sl_backend *be);
    /* Optional: what the device can do, by which paths are chosen (kernels/paths.h). NULL: an op has one kernel. */
    const struct sl_gpu *(*gpu)(const sl_backend *be);
    /* Optional: the next calls of this instance enqueue this op, which states `scratch` bytes of scratch memory; SL_OP_COUNT: a
     * collective. For messages. */
    void (*begin)(sl_backend *be, sl_op op, size_t scratch);
    /* Optional: scratch memory has at least these bytes from now on. NULL: the backend takes none. */
    sl_status (*scratch)(sl_backend *be, size_t bytes, sl_err *err);
    sl_status (*memory)(sl_backend *be, uint64_t *free_bytes, uint64_t *total_bytes, sl_err *err);
    sl_status (*alloc)(sl_backend *be, sl_mem_kind kind, size_t bytes, void **out, sl_err *err);
    void (*free)(sl_backend *be, sl_mem_kind kind, void *ptr);
    sl_status (*copy)(sl_backend *be, void *dst, const void *src, size_t bytes, sl_err *err);
    sl_status (*copy_2d)(sl_backend *be, void *dst, size_t dst_pitch, const void *src, size_t src_pitch,
                         size_t width, size_t rows, sl_err *err);
    sl_status (*fill)(sl_backend *be, void *dst, uint8_t byte, size_t bytes, sl_err *err);
    sl_status (*sync)(sl_backend *be, sl_err *err);
    sl_status (*event_create)(sl_backend *be, sl_event **out, sl_err *err);
    void (*event_destroy)(sl_event *ev);
    sl_status (*event_record)(sl_backend *be, sl_event *ev, sl_err *err);
    sl_status (*event_query)(sl_event *ev);
    /* Optional, both or none. NULL: events are asked until they are done, and failures are reported by run. */
    sl_status (*event_fence)(sl_backend *be, sl_event *ev, sl_err *err);
    sl_status (*event_wait)(sl_event *ev, sl_err *err);
    /* Optional. NULL: a thread needs no preparation. May be called from any thread. */
    sl_status (*use_thread)(sl_backend *be, sl_err *err);
    /* Optional. NULL: registering does nothing and returns SL_OK; captures are SL_ERR_UNSUPPORTED. */
    sl_status (*host_register)(sl_backend *be, void *ptr, size_t bytes, sl_err *err);
    void (*host_unregister)(sl_backend *be, void *ptr);
    sl_status (*capture_begin)(sl_backend *be, sl_err *err);
    sl_status (*capture_end)(sl_backend *be, sl_graph **out, sl_err *err);
    sl_status (*graph_launch)(sl_backend *be, sl_graph *graph, sl_err *err);
    void (*graph_destroy)(sl_graph *graph);
    /* Optional, for asynchronous backends: mark() records mark i in the stream; after a sync, mark_ns() gives the time
     * from mark i to mark i + 1. */
    sl_status (*mark)(sl_backend *be, int32_t i, sl_err *err);
    sl_status (*mark_ns)(sl_backend *be, int32_t i, double *ns, sl_err *err);
    /* Optional, all or none: a side stream. NULL: there is one stream, which runs everything in order. */
    void (*stream_use)(sl_backend *be, sl_stream stream);
    sl_status (*stream_wait)(sl_backend *be, sl_event *ev, sl_err *err);
    sl_status (*stamp)(sl_backend *be, uint64_t *at, sl_err *err);
    const sl_op_impl *ops[SL_OP_COUNT]; /* every op: the linker refuses a backend that lacks one */
};

extern const sl_backend_desc sl_backend_cpu;
#ifdef SL_CUDA
extern const sl_backend_desc sl_backend_cuda;
#endif

/* Checks what the host can see of an op's parameters; SL_ERR_INVALID / UNSUPPORTED with the field's name. align: see
 * sl_backend_desc.row_align. Pure. */
sl_status sl_op_check(sl_op op, const void *params, size_t align, sl_err *err);
/* The same without the data pointers, which may be NULL (for sl_be_supports: only dimensions, dtypes and formats). */
sl_status sl_op_check_shape(sl_op op, const void *params, sl_err *err);
/* The number of tokens (or rows) on which the op would work; 0 means that there is nothing to do. The parameters must
 * have passed sl_op_check. */
int64_t sl_op_items(sl_op op, const void *params);
/* turns.c: how the op is to take the tokens of its tables; NULL: all at once. run: the op in these turns. */
const struct sl_turns *sl_op_turns(sl_op op, const void *params);
sl_status sl_run_turns(sl_backend *be, sl_op op, const void *params, const struct sl_turns *turns,
                       sl_err *err);

/* Records that an op is about to run, if a profile is being taken. */
void sl_profile_op(sl_backend *be, sl_op op, const void *params);

/*
 * Data-dependent failures that a device finds while it runs. An asynchronous backend keeps a bit mask of them (kernels
 * OR bits to it, sync reads and clears it); synchronous backends use the same function for the message. If several
 * bits are set, the lowest is reported.
 */
enum {
    SL_DEVERR_ID = 1u << 0,   /* embed: id outside [0, vocab); pick: row negative; moe: expert out of range */
    SL_DEVERR_SEQ = 1u << 1,  /* token_seq outside [0, S) */
    SL_DEVERR_POS = 1u << 2,  /* position negative, beyond the tables (ld * 64), scores or max_tokens */
    SL_DEVERR_PAGE = 1u << 3, /* a page that is needed is -1 */
    SL_DEVERR_SELECTION = 1u << 4,    /* ids not ascending or outside [0, pos] */
    SL_DEVERR_MULTI_TOKEN = 1u << 5,  /* resolve: a run that is too long, or waits for blocks (unsupported) */
    SL_DEVERR_HOT_CAPACITY = 1u << 6, /* resolve: fewer hot rows than the selection needs */
    SL_DEVERR_MISS_CAPACITY = 1u << 7, /* resolve: more misses than miss_cap */
    SL_DEVERR_STEP = 1u << 8,          /* resolve: step 0, or beyond what the policy's stamps can hold */
    SL_DEVERR_ROWS = 1u << 9,          /* ep_sum: fewer results came than the tokens have choices */
};
/* Status and text of the lowest bit set in mask, for op's name; SL_OK when mask is 0. */
sl_status sl_deverr(uint32_t mask, const char *op, sl_err *err);

#endif
