/*
 * CUDA backend: instance, memory and the table of ops. What it needs from a machine is checked at creation and named
 * in the error; streams, events and graphs are in events.c, the ops in the other files of this folder.
 *
 * Pinned host memory is mapped, so that kernels read the arena in place. The backend does not choose a device for the
 * caller and never touches the device's settings.
 */
#include "kernels/cuda/any/select/codes_step.h"
#include "kernels/cuda/events.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "kernels/arch.h"
#include "kernels/cuda/probe.h"
#include "kernels/ep.h"

#define MIN_CC 80

sl_status sl_cuda_status(cudaError_t e, const char *what, sl_err *err)
{
    if (e == cudaSuccess)
        return SL_OK;
    (void)cudaGetLastError();
    if (e == cudaErrorMemoryAllocation)
        return sl_fail(err, SL_ERR_DEVICE_MEMORY, "cuda: %s: out of memory", what);
    return sl_fail(err, SL_ERR_DEVICE, "cuda: %s: %s", what, cudaGetErrorString(e));
}

/* Frees a scratch block: immediately, or when the last graph that may use it has been destroyed. */
static sl_status retire(sl_cuda *cu, void *block, sl_err *err)
{
    void **v;

    if (!block || cu->n_graphs == 0) {
        cudaFree(block);
        return SL_OK;
    }
    v = realloc(cu->retired, sizeof *v * (size_t)(cu->n_retired + 1));
    if (!v)
        return sl_fail(err, SL_ERR_NO_MEMORY, "cuda: no memory for a list of %d blocks", cu->n_retired + 1);
    cu->retired = v;
    v[cu->n_retired++] = block;
    return SL_OK;
}

void sl_cuda_free_retired(sl_cuda *cu)
{
    while (cu->n_retired > 0)
        cudaFree(cu->retired[--cu->n_retired]);
}

/* Scratch of at least `bytes`: graphs may still use what was there. */
static sl_status grow(sl_cuda *cu, size_t bytes, sl_err *err)
{
    sl_status st;
    void *fresh;

    if (bytes <= cu->scratch_bytes)
        return SL_OK;
    if (cu->capturing)
        return sl_fail(
            err, SL_ERR_UNSUPPORTED,
            "cuda: %s: scratch must grow from %zu to %zu bytes inside a capture: run the step once before the capture",
            sl_op_name(cu->op), cu->scratch_bytes, bytes);
    SL_TRY(SL_CU(cudaMalloc(&fresh, bytes), err));
    st = SL_CU(cudaStreamSynchronize(cu->stream), err);
    if (st == SL_OK)
        st = retire(cu, cu->scratch, err);
    if (st != SL_OK) {
        cudaFree(fresh);
        return st;
    }
    cu->scratch = fresh;
    cu->scratch_bytes = bytes;
    return SL_OK;
}

static sl_status cuda_scratch(sl_backend *be, size_t bytes, sl_err *err)
{
    return grow(sl_cuda_of(be), bytes, err);
}

sl_status sl_cuda_scratch(sl_cuda *cu, size_t bytes, void **out, sl_err *err)
{
    if (bytes > cu->stated)
        return sl_fail(err, SL_ERR_INTERNAL,
                       "cuda: %s: it takes %zu bytes of scratch memory and states %zu (kernels/scratch.h)",
                       sl_op_name(cu->op), bytes, cu->stated);
    if (bytes > cu->scratch_bytes) /* it is not planned yet: a quarter more, so that it grows seldom */
        SL_TRY(grow(cu, (bytes + bytes / 4 + 255) & ~(size_t)255, err));
    *out = cu->scratch;
    return SL_OK;
}

static void cuda_destroy(sl_backend *be)
{
    sl_cuda *cu = sl_cuda_of(be);

    if (cu->main_stream)
        cudaStreamSynchronize(cu->main_stream);
    sl_sent_destroy(cu->tables);
    sl_cuda_lt_destroy(cu->lt);
    for (int32_t i = 0; i < cu->n_marks; i++)
        cudaEventDestroy(cu->marks[i]);
    free(cu->marks);
    sl_cuda_free_retired(cu);
    free(cu->retired);
    cudaFree(cu->scratch);
    cudaFree(cu->workspace);
    cudaFree(cu->words);
    cudaFreeHost(cu->words_host);
    if (cu->side_stream)
        cudaStreamDestroy(cu->side_stream);
    if (cu->main_stream)
        cudaStreamDestroy(cu->main_stream);
    free(cu);
}

/* False if the device cannot run this build's code. Other errors do not concern the architecture: a later call returns
 * them with their own text. */
static bool can_load(void)
{
    cudaError_t e = sl_cuda_probe();

    return e != cudaErrorNoKernelImageForDevice && e != cudaErrorInvalidDeviceFunction &&
           e != cudaErrorInvalidKernelImage && e != cudaErrorUnsupportedPtxVersion;
}

/* As nvidia-smi -L writes it. */
static void write_id(sl_backend *be, const uint8_t *uuid)
{
    size_t n = (size_t)snprintf(be->device, sizeof be->device, "GPU-");

    for (int i = 0; i < 16; i++)
        n += (size_t)snprintf(be->device + n, sizeof be->device - n, "%s%02x",
                              i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", uuid[i]);
}

/* Checks, in this order: the driver can run this build, the device exists and is new enough, and this build contains
 * code for it. */
static sl_status open_device(sl_cuda *cu, int device, sl_err *err)
{
    struct cudaDeviceProp prop;
    int count = 0;
    cudaError_t e = cudaGetDeviceCount(&count);

    if (e == cudaErrorInsufficientDriver) {
        int driver = 0;
        cudaDriverGetVersion(&driver);
        if (driver == 0)
            return sl_fail(err, SL_ERR_UNSUPPORTED,
                           "cuda: no NVIDIA driver on this machine: install one for CUDA %d.%d or newer",
                           CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "cuda: the driver supports CUDA %d.%d, this build needs %d.%d: update the driver",
                       driver / 1000, driver % 1000 / 10, CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
    }
    if (e != cudaSuccess || count == 0)
        return sl_fail(err, SL_ERR_UNSUPPORTED, "cuda: no device: %s",
                       e ? cudaGetErrorString(e) : "the driver lists none");
    if (device < 0 || device >= count)
        return sl_fail(
            err, SL_ERR_INVALID,
            "backend.devices: %d, but this host has devices 0..%d; workers may share one: with backend.devices: "
            "[0], or one for each rank, and with kvstore.bytes and decode.device_bytes that fit "
            "together",
            device, count - 1);
    e = cudaGetDeviceProperties(&prop, device);
    if (e != cudaSuccess)
        return SL_CU(e, err);
    cu->device = device;
    cu->gpu = sl_gpu_of(prop.major * 10 + prop.minor, prop.multiProcessorCount, prop.sharedMemPerBlockOptin);
    cu->sms = cu->gpu.sms;
    cu->side_sms = cu->gpu.side_sms;
    if (cu->gpu.cc < MIN_CC)
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "cuda: %s has compute capability %d.%d, at least %d.%d is needed", prop.name,
                       prop.major, prop.minor, MIN_CC / 10, MIN_CC % 10);
    snprintf(cu->base.describe, sizeof cu->base.describe, "%.60s, %d SM, %.1f GiB, compute capability %d.%d",
             prop.name, cu->sms, (double)prop.totalGlobalMem / (1u << 30), prop.major, prop.minor);
    write_id(&cu->base, (const uint8_t *)prop.uuid.bytes);
    SL_TRY(SL_CU(cudaSetDevice(device), err));
    SL_TRY(sl_arch_check(SL_CUDA_ARCHS_TEXT, cu->gpu.cc, can_load(), prop.name, err));
    if (!cu->gpu.wgmma)
        sl_log(
            SL_LOG_WARN, "kernels", "plain-device",
            "device=\"%s\" compute_capability=%d.%d the fast kernels of products, experts and attention exist for 9.0 "
            "only: here they run on the library or on plain kernels, with other bits than those of a 9.0",
            prop.name, prop.major, prop.minor);
    return SL_OK;
}

static sl_status allocate(sl_cuda *cu, sl_err *err)
{
    SL_TRY(SL_CU(cudaStreamCreateWithFlags(&cu->main_stream, cudaStreamNonBlocking), err));
    cu->stream = cu->main_stream;
    SL_TRY(SL_CU(cudaStreamCreateWithPriority(&cu->side_stream, cudaStreamNonBlocking, -5), err));
    SL_TRY(SL_CU(cudaMalloc(&cu->workspace, SL_CUDA_WORKSPACE), err));
    SL_TRY(SL_CU(cudaMalloc((void **)&cu->words, SL_CUDA_WORDS * sizeof(uint32_t)), err));
    cu->deverr = cu->words;
    SL_TRY(SL_CU(cudaMemset(cu->words, 0, SL_CUDA_WORDS * sizeof(uint32_t)), err));
    SL_TRY(SL_CU(
        cudaHostAlloc((void **)&cu->words_host, SL_CUDA_MEET * sizeof(uint32_t), cudaHostAllocDefault), err));
    return sl_cuda_lt_create(cu, &cu->lt, err);
}

static sl_status cuda_create(const sl_backend_opts *opts, sl_backend **out, sl_err *err)
{
    sl_cuda *cu = calloc(1, sizeof *cu);
    sl_status st;

    if (!cu)
        return sl_fail(err, SL_ERR_NO_MEMORY, "cuda: no memory for the instance");
    cu->base.desc = &sl_backend_cuda;
    cu->base.caps = SL_BE_ASYNC | SL_BE_GRAPHS;
    st = open_device(cu, opts->device, err);
    if (st != SL_OK)
        goto destroy;
    st = allocate(cu, err);
    if (st != SL_OK)
        goto destroy;
    *out = &cu->base;
    return SL_OK;
destroy:
    cuda_destroy(&cu->base);
    return st;
}

static sl_status cuda_use_thread(sl_backend *be, sl_err *err)
{
    return SL_CU(cudaSetDevice(sl_cuda_of(be)->device), err);
}

static sl_status cuda_memory(sl_backend *be, uint64_t *free_bytes, uint64_t *total_bytes, sl_err *err)
{
    size_t f, t;

    (void)be;
    SL_TRY(SL_CU(cudaMemGetInfo(&f, &t), err));
    *free_bytes = f;
    *total_bytes = t;
    return SL_OK;
}

static sl_status cuda_alloc(sl_backend *be, sl_mem_kind kind, size_t bytes, void **out, sl_err *err)
{
    void *p = NULL;
    cudaError_t e =
        kind == SL_MEM_DEVICE ? cudaMalloc(&p, bytes) : cudaHostAlloc(&p, bytes, cudaHostAllocMapped);
    size_t f = 0, t = 0;

    (void)be;
    if (e == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError();
        cudaMemGetInfo(&f, &t);
        return kind == SL_MEM_DEVICE
                   ? sl_fail(err, SL_ERR_DEVICE_MEMORY,
                             "cuda: %zu bytes of device memory requested, %zu of %zu free", bytes, f, t)
                   : sl_fail(err, SL_ERR_NO_MEMORY,
                             "cuda: %zu bytes of pinned memory refused: check `ulimit -l` and free memory",
                             bytes);
    }
    if (e != cudaSuccess)
        return SL_CU(e, err);
    *out = p;
    return SL_OK;
}

static void cuda_free(sl_backend *be, sl_mem_kind kind, void *ptr)
{
    (void)be;
    if (kind == SL_MEM_DEVICE)
        cudaFree(ptr);
    else
        cudaFreeHost(ptr);
}

static sl_status cuda_copy(sl_backend *be, void *dst, const void *src, size_t bytes, sl_err *err)
{
    return SL_CU(cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, sl_cuda_of(be)->stream), err);
}

static sl_status cuda_copy_2d(sl_backend *be, void *dst, size_t dst_pitch, const void *src, size_t src_pitch,
                              size_t width, size_t rows, sl_err *err)
{
    return SL_CU(cudaMemcpy2DAsync(dst, dst_pitch, src, src_pitch, width, rows, cudaMemcpyDefault,
                                   sl_cuda_of(be)->stream),
                 err);
}

static sl_status cuda_fill(sl_backend *be, void *dst, uint8_t byte, size_t bytes, sl_err *err)
{
    return SL_CU(cudaMemsetAsync(dst, byte, bytes, sl_cuda_of(be)->stream), err);
}

static sl_status wait_stream(sl_cuda *cu, sl_err *err)
{
    if (cu->group) /* another rank may never come */
        return cu->group->wait(cu->group->ctx, err);
    cudaError_t e = cudaStreamSynchronize(cu->stream);
    if (e == cudaSuccess)
        return SL_OK;
    (void)cudaGetLastError();
    return sl_fail(err, SL_ERR_DEVICE, "cuda: the device failed: %s; the op that was enqueued last is %s",
                   cudaGetErrorString(e), sl_op_name(cu->op));
}

/* Hands on what the device has counted since the last sync. */
static void take_counts(sl_cuda *cu)
{
    sl_cuda_counts now;

    memcpy(&now, cu->words_host + SL_CUDA_COUNTS, sizeof now);
    if (cu->load && now.rows != cu->seen.rows) {
        cu->load->rows += now.rows - cu->seen.rows;
        cu->load->busiest += now.busiest - cu->seen.busiest;
    }
    if (cu->group)
        cu->group->count(cu->group->ctx, &now, &cu->seen);
    cu->seen = now;
}

static const sl_gpu *cuda_gpu(const sl_backend *be)
{
    return &((const sl_cuda *)be)->gpu;
}

static void cuda_begin(sl_backend *be, sl_op op, size_t scratch)
{
    sl_cuda *cu = sl_cuda_of(be);

    cu->op = op;
    cu->stated = scratch;
    cu->deverr = cu->words + op;
}

static sl_status copy_words(sl_cuda *cu, sl_err *err)
{
    return SL_CU(cudaMemcpyAsync(cu->words_host, cu->words, SL_CUDA_MEET * sizeof(uint32_t),
                                 cudaMemcpyDeviceToHost, cu->stream),
                 err);
}

/* What the device has counted, and what it has found wrong. */
static sl_status take_words(sl_cuda *cu, sl_err *err)
{
    take_counts(cu);
    for (int op = 0; op <= SL_OP_COUNT; op++)
        if (cu->words_host[op]) {
            SL_TRY(
                SL_CU(cudaMemsetAsync(cu->words, 0, (SL_OP_COUNT + 1) * sizeof(uint32_t), cu->stream), err));
            return sl_deverr(cu->words_host[op], sl_op_name((sl_op)op), err);
        }
    return SL_OK;
}

static sl_status cuda_sync(sl_backend *be, sl_err *err)
{
    sl_cuda *cu = sl_cuda_of(be);

    SL_TRY(copy_words(cu, err));
    SL_TRY(wait_stream(cu, err));
    return take_words(cu, err);
}

static sl_status cuda_event_fence(sl_backend *be, sl_event *ev, sl_err *err)
{
    SL_TRY(copy_words(sl_cuda_of(be), err));
    return sl_cuda_event_record(be, ev, err);
}

static sl_status cuda_event_wait(sl_event *ev, sl_err *err)
{
    sl_cuda *cu = sl_cuda_of(ev->be);

    if (cu->group) /* another rank may never come */
        return cuda_sync(ev->be, err);
    SL_TRY(sl_cuda_event_sync(ev, err));
    return take_words(cu, err);
}

static sl_status cuda_host_register(sl_backend *be, void *ptr, size_t bytes, sl_err *err)
{
    cudaError_t e = cudaHostRegister(ptr, bytes, cudaHostRegisterMapped | cudaHostRegisterPortable);

    (void)be;
    if (e == cudaErrorMemoryAllocation || e == cudaErrorOperatingSystem) {
        (void)cudaGetLastError();
        return sl_fail(
            err, SL_ERR_NO_MEMORY,
            "cuda: pinning %zu bytes was refused: raise `ulimit -l`, or make kvstore.bytes smaller", bytes);
    }
    return SL_CU(e, err);
}

static void cuda_host_unregister(sl_backend *be, void *ptr)
{
    (void)be;
    cudaHostUnregister(ptr);
}

const sl_backend_desc sl_backend_cuda = {
    .name = "cuda",
    .description = "NVIDIA GPUs, compute capability 8.0 and newer; kernels tuned for 9.0",
    .row_align = SL_ROW_ALIGN,
    .create = cuda_create,
    .begin = cuda_begin,
    .scratch = cuda_scratch,
    .gpu = cuda_gpu,
    .destroy = cuda_destroy,
    .use_thread = cuda_use_thread,
    .memory = cuda_memory,
    .alloc = cuda_alloc,
    .free = cuda_free,
    .copy = cuda_copy,
    .copy_2d = cuda_copy_2d,
    .fill = cuda_fill,
    .sync = cuda_sync,
    .event_create = sl_cuda_event_create,
    .event_destroy = sl_cuda_event_destroy,
    .event_record = sl_cuda_event_record,
    .event_query = sl_cuda_event_query,
    .event_fence = cuda_event_fence,
    .event_wait = cuda_event_wait,
    .stream_use = sl_cuda_stream_use,
    .stream_wait = sl_cuda_stream_wait,
    .stamp = sl_cuda_stamp,
    .host_register = cuda_host_register,
    .host_unregister = cuda_host_unregister,
    .capture_begin = sl_cuda_capture_begin,
    .capture_end = sl_cuda_capture_end,
    .graph_launch = sl_cuda_graph_launch,
    .graph_destroy = sl_cuda_graph_destroy,
    .mark = sl_cuda_mark,
    .mark_ns = sl_cuda_mark_ns,
    .ops =
        {
#define X(op, name, items, field, text) [SL_OP_##op] = &sl_cuda_##name,
            SL_OPS(X)
#undef X
        },
};
