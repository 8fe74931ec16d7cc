/*
 * The collectives of the CUDA backend: NCCL's host calls on the backend's selected stream.
 *
 * Nothing blocks. The communicator is non-blocking (ncclConfig_t.blocking = 0): a call that must wait for other ranks
 * returns "in progress", and settle() polls until it has ended, the deadline has passed, or a thread has called
 * sl_comm_abort(). What is in flight on the device is watched by wait_stream(), which sl_be_sync() calls instead
 * of cudaStreamSynchronize() as long as the backend has a communicator.
 *
 * Failure in two steps. When the group breaks, ncclCommRevoke() stops what is in flight and keeps the communicator's
 * memory, because graphs that captured its kernels may still exist. sl_comm_destroy() then frees it by ncclCommAbort(),
 * which needs no other rank; by the contract those graphs are gone by then.
 *
 * Two ways. Between GPUs of one host that can reach each other, kernels of our own move rows through windows
 * (peer.h), larger blocks in slices; the rest is NCCL's. Which way a call takes follows from options and sizes that are equal on all ranks,
 * and what is received is the same. NCCL's all-to-all moves whole blocks of cap rows: a host call has a fixed size, and
 * the counts are on the device. They travel in the same NCCL group as the rows.
 */
#include "collectives/comm_impl.h"

#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "collectives/cuda/nccl_load.h"
#include "collectives/cuda/window.h"

#define AGREE_SPIN_NS 2000000ull /* then the processor is left to others while a rank is late */
#define DRAIN_NS 5000000000ull   /* for kernels to end after they were told to */

typedef struct sl_cuda_comm {
    sl_comm base; /* first */
    sl_cuda *cu;
    sl_cuda_group group; /* what the backend calls at a sync */
    const sl_nccl *n;
    ncclComm_t comm; /* NULL before form */
    bool ready;      /* NCCL has formed the group */
    ncclUniqueId id;
    uint32_t *meet;  /* device [1 + ranks]: what a barrier gathers */
    uint8_t *pinned; /* for nccl_agree() without windows: what this rank says, then what all say */
    uint32_t agreements;
    sl_cuda_windows windows;
    sl_status broken;
    sl_err cause;
    _Atomic bool aborted;
} sl_cuda_comm;
_Static_assert(sizeof(ncclUniqueId) <= SL_COMM_OWN_BYTES, "the id must fit an invitation");

static sl_cuda_comm *of(sl_comm *c)
{
    return (sl_cuda_comm *)c;
}

static uint64_t deadline(const sl_cuda_comm *c)
{
    return sl_now_ns() + c->base.opts.deadline_ms * 1000000ull;
}

/* ---- failure ---- */

static sl_status cause(const sl_cuda_comm *c, sl_err *err)
{
    return c->broken == SL_OK ? SL_OK : sl_fail(err, c->broken, "%s", c->cause.text);
}

static bool in_flight(const sl_cuda_comm *c)
{
    ncclResult_t r = ncclSuccess;

    (void)c->n->comm_async_error(c->comm, &r);
    return r == ncclInProgress || cudaStreamQuery(c->cu->main_stream) == cudaErrorNotReady ||
           cudaStreamQuery(c->cu->side_stream) == cudaErrorNotReady;
}

/* Waits until neither the device nor NCCL has anything in flight, at most DRAIN_NS. */
static void drain(sl_cuda_comm *c)
{
    uint64_t end = sl_now_ns() + DRAIN_NS;

    while (in_flight(c)) {
        if (sl_now_ns() > end) {
            sl_fail_in(&c->cause, c->broken, "work in flight did not end");
            break;
        }
        sched_yield();
    }
    (void)cudaGetLastError();
}

/* Breaks the group with the text in c->cause. */
static sl_status fail(sl_cuda_comm *c, sl_status st, sl_err *err)
{
    c->broken = st;
    if (c->windows.open)
        c->windows.view.host->stop = 1;
    if (c->ready && !c->cu->capturing) { /* else nothing is in flight; destroy ends what NCCL is forming */
        (void)c->n->comm_revoke(c->comm, 0);
        drain(c);
    }
    return cause(c, err);
}

static sl_status fail_nccl(sl_cuda_comm *c, ncclResult_t r, const char *what, sl_err *err)
{
    const char *detail = c->comm ? c->n->last_error(c->comm) : "";
    sl_status st = r == ncclRemoteError                                ? SL_ERR_PEER
                   : r == ncclInvalidArgument || r == ncclInvalidUsage ? SL_ERR_INVALID
                                                                       : SL_ERR_DEVICE;

    (void)sl_fail(&c->cause, st, "comm: %s: NCCL: %s%s%.300s", what, c->n->error_string(r),
                  detail[0] ? ": " : "", detail);
    return fail(c, st, err);
}

static sl_status fail_late(sl_cuda_comm *c, const char *what, sl_err *err)
{
    if (atomic_load(&c->aborted))
        (void)sl_fail(&c->cause, SL_ERR_CANCELLED, "comm: %s: aborted by rank %d", what, c->base.opts.rank);
    else
        (void)sl_fail(&c->cause, SL_ERR_TIMEOUT,
                      "comm: %s: not all of %d ranks arrived within %u ms, says rank %d", what,
                      c->base.opts.ranks, c->base.opts.deadline_ms, c->base.opts.rank);
    return fail(c, atomic_load(&c->aborted) ? SL_ERR_CANCELLED : SL_ERR_TIMEOUT, err);
}

/* Whether a kernel has given up waiting for a rank. */
static sl_status check_report(sl_cuda_comm *c, sl_err *err)
{
    uint32_t report = c->windows.open ? c->windows.view.host->report : 0;

    if (report == 0 || c->broken != SL_OK)
        return cause(c, err);
    c->base.lost = (int32_t)report - 1;
    (void)sl_fail(&c->cause, SL_ERR_TIMEOUT, "comm: rank %d did not arrive within %u ms, says rank %d",
                  c->base.lost, c->base.opts.deadline_ms, c->base.opts.rank);
    return fail(c, SL_ERR_TIMEOUT, err);
}

/* sl_cuda_group.count: to the statistics of the group. */
static void count(void *ctx, const sl_cuda_counts *now, const sl_cuda_counts *seen)
{
    sl_comm_stats *s = &((sl_cuda_comm *)ctx)->base.stats;

    s->gathers += now->gather.calls - seen->gather.calls;
    s->gather_ns += now->gather.ns - seen->gather.ns;
    s->exchanges += now->exchange.calls - seen->exchange.calls;
    s->exchange_ns += now->exchange.ns - seen->exchange.ns;
    s->hidden_ns += now->hidden_ns - seen->hidden_ns;
    s->wait_ns += now->wait_ns - seen->wait_ns;
    s->exchange_bytes += now->exchange.bytes - seen->exchange.bytes;
}

/* Waits until the call that returned r has ended. */
static sl_status settle(sl_cuda_comm *c, ncclResult_t r, const char *what, sl_err *err)
{
    uint64_t end = 0;

    while (r == ncclInProgress) {
        if (end == 0)
            end = deadline(c);
        if (atomic_load(&c->aborted) || sl_now_ns() > end)
            return fail_late(c, what, err);
        sched_yield();
        if (c->n->comm_async_error(c->comm, &r) != ncclSuccess)
            r = ncclInternalError;
    }
    return r == ncclSuccess ? SL_OK : fail_nccl(c, r, what, err);
}

/* sl_cuda_group.wait: as cudaStreamSynchronize() on the selected stream, but it ends when the group breaks or the deadline
 * passes; then everything in flight is stopped, and the status says why. */
static sl_status wait_stream(void *ctx, sl_err *err)
{
    sl_cuda_comm *c = ctx;
    uint64_t end = deadline(c);

    for (uint32_t i = 1;; i++) {
        cudaError_t e = cudaStreamQuery(c->cu->stream);
        ncclResult_t r = ncclSuccess;

        if (e == cudaSuccess)
            return check_report(c, err);
        if (e != cudaErrorNotReady)
            return SL_CU(e, err);
        (void)cudaGetLastError();
        if (c->broken != SL_OK)
            return cause(c, err);
        if (atomic_load(&c->aborted) || sl_now_ns() > end)
            return fail_late(c, "sync", err);
        if (c->comm && i % 1024 == 0 && c->n->comm_async_error(c->comm, &r) == ncclSuccess &&
            r != ncclSuccess && r != ncclInProgress)
            return fail_nccl(c, r, "sync", err);
        sched_yield();
    }
}

/* ---- found, join, form, destroy ---- */

static sl_status open_comm(sl_backend *be, const sl_comm_opts *opts, sl_cuda_comm **out, sl_err *err)
{
    sl_cuda *cu = sl_cuda_of(be);
    const sl_nccl *n;
    sl_cuda_comm *c;
    sl_status st;

    if (cu->group)
        return sl_fail(err, SL_ERR_INVALID, "comm: this backend is in a group already");
    SL_TRY(sl_nccl_load(&n, err));
    c = calloc(1, sizeof *c);
    if (!c)
        return sl_fail(err, SL_ERR_NO_MEMORY, "comm: no memory");
    c->cu = cu;
    c->n = n;
    c->base.opts = *opts;
    st = SL_CU(cudaMalloc((void **)&c->meet, sizeof(uint32_t) * (1 + (size_t)opts->ranks)), err);
    if (st == SL_OK)
        st = SL_CU(cudaHostAlloc((void **)&c->pinned, SL_COMM_AGREE_BYTES * (1 + (size_t)opts->ranks),
                                 cudaHostAllocMapped),
                   err);
    if (st != SL_OK) {
        cudaFree(c->meet);
        free(c);
        return st;
    }
    c->group = (sl_cuda_group){.ctx = c, .wait = wait_stream, .count = count};
    cu->group = &c->group;
    *out = c;
    return SL_OK;
}

static void nccl_destroy(sl_comm *base)
{
    sl_cuda_comm *c = of(base);

    if (c->comm && c->broken == SL_OK)
        (void)wait_stream(c, NULL);
    sl_cuda_windows_close(&c->windows);
    if (c->comm)
        (void)c->n->comm_abort(c->comm);
    if (c->broken != SL_OK) /* what kernels found in data that did not arrive is no failure of later ops */
        (void)cudaMemset(c->cu->words, 0, (SL_OP_COUNT + 1) * sizeof(uint32_t));
    c->cu->group = NULL;
    cudaFree(c->meet);
    cudaFreeHost(c->pinned);
    free(c);
}

static sl_status nccl_found(sl_backend *be, const sl_comm_opts *opts, uint8_t *own, sl_comm **out,
                            sl_err *err)
{
    sl_cuda_comm *c;
    ncclResult_t r;

    SL_TRY(open_comm(be, opts, &c, err));
    r = c->n->get_unique_id(&c->id);
    if (r != ncclSuccess) {
        sl_status st = fail_nccl(c, r, "found", err);

        nccl_destroy(&c->base);
        return st;
    }
    memcpy(own, &c->id, sizeof c->id);
    *out = &c->base;
    return SL_OK;
}

static sl_status nccl_join(sl_backend *be, const sl_comm_opts *opts, const uint8_t *own, const char *refusal,
                           sl_comm **out, sl_err *err)
{
    sl_cuda_comm *c;

    if (refusal) /* no channel to the other ranks yet: they report that a rank is missing */
        return SL_ERR_REFUSED;
    SL_TRY(open_comm(be, opts, &c, err));
    memcpy(&c->id, own, sizeof c->id);
    *out = &c->base;
    return SL_OK;
}

static sl_status nccl_barrier(sl_comm *base, sl_err *err);

/* sl_cuda_gather_fn by NCCL. */
static sl_status gather_host(void *ctx, const void *src, void *dst, size_t bytes, sl_err *err)
{
    sl_cuda_comm *c = ctx;
    size_t all = bytes * (size_t)c->base.opts.ranks;
    uint8_t *tmp = NULL;
    sl_status st = SL_CU(cudaMalloc((void **)&tmp, bytes + all), err);

    if (st == SL_OK)
        st = SL_CU(cudaMemcpyAsync(tmp, src, bytes, cudaMemcpyHostToDevice, c->cu->stream), err);
    if (st == SL_OK)
        st = settle(c, c->n->all_gather(tmp, tmp + bytes, bytes, ncclInt8, c->comm, c->cu->stream), "form",
                    err);
    if (st == SL_OK)
        st = SL_CU(cudaMemcpyAsync(dst, tmp + bytes, all, cudaMemcpyDeviceToHost, c->cu->stream), err);
    if (st == SL_OK)
        st = wait_stream(c, err);
    cudaFree(tmp);
    return st;
}

static sl_status nccl_form(sl_comm *base, sl_err *err)
{
    sl_cuda_comm *c = of(base);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    ncclResult_t r;

    SL_TRY(cause(c, err));
    config.blocking = 0;
    r = c->n->comm_init(&c->comm, base->opts.ranks, c->id, base->opts.rank, &config);
    SL_TRY(settle(c, r, "form", err));
    c->ready = true;
    SL_TRY(SL_CU(cudaMemsetAsync(c->meet, 0, sizeof(uint32_t), c->cu->stream), err));
    SL_TRY(nccl_barrier(base, err));
    SL_TRY(wait_stream(c, err));
    SL_TRY(sl_peer_resident(c->cu, err));
    SL_TRY(sl_cuda_windows_open(&base->opts, gather_host, c, &c->windows, err));
    if (c->windows.open) {
        size_t n = strlen(base->describe);

        snprintf(base->describe + n, sizeof base->describe - n, ", windows");
    }
    return SL_OK;
}

static void nccl_abort(sl_comm *base)
{
    atomic_store(&of(base)->aborted, true);
}

static sl_status nccl_state(sl_comm *base, sl_err *err)
{
    sl_cuda_comm *c = of(base);

    if (c->broken == SL_OK && atomic_load(&c->aborted))
        return fail_late(c, "state", err);
    return check_report(c, err);
}

/* ---- collectives ---- */

/* Whether a block of this size passes through a window; the same on all ranks. */
static bool fits_window(const sl_cuda_comm *c, size_t block)
{
    return c->windows.open && block <= c->windows.view.slot_bytes;
}

/* Before and after a call of NCCL that a meter counts. */
static sl_status begin_timed(sl_cuda_comm *c, sl_cuda_meter *meter, sl_err *err)
{
    return c->base.opts.timed && meter ? sl_meter_begin(c->cu, meter, err) : SL_OK;
}

static sl_status end_timed(sl_cuda_comm *c, sl_cuda_meter *meter, uint64_t bytes, sl_err *err)
{
    return c->base.opts.timed && meter ? sl_meter_end(c->cu, meter, bytes, err) : SL_OK;
}

/* meter: NULL for what is no sl_comm_all_gather(). */
static sl_status gather(sl_cuda_comm *c, const void *src, void *dst, size_t bytes, sl_cuda_meter *meter,
                        sl_err *err)
{
    SL_TRY(nccl_state(&c->base, err));
    if (fits_window(c, bytes)) {
        sl_peer_move m = {.send = src,
                          .recv = dst,
                          .recv_stride = bytes,
                          .row_bytes = bytes,
                          .rows = 1,
                          .slice = 1,
                          .meter = meter};

        return sl_peer_launch(c->cu, &c->windows.view, &m, err);
    }
    SL_TRY(begin_timed(c, meter, err));
    SL_TRY(settle(c, c->n->all_gather(src, dst, bytes, ncclInt8, c->comm, c->cu->stream), "all_gather", err));
    return end_timed(c, meter, bytes * (size_t)(c->base.opts.ranks - 1), err);
}

static sl_status nccl_all_gather(sl_comm *base, const void *src, void *dst, size_t bytes, sl_err *err)
{
    return gather(of(base), src, dst, bytes, &sl_cuda_counts_of(of(base)->cu)->gather, err);
}

/* Waits until the words of a call have reached the host; they come without the end of the kernel. */
static sl_status wait_agreed(sl_cuda_comm *c, uint32_t call, sl_err *err)
{
    const sl_peer_host *h = c->windows.view.host;
    uint64_t end = sl_now_ns() + AGREE_SPIN_NS;

    while (h->agreed != call && sl_now_ns() < end)
        ;
    if (h->agreed == call)
        return SL_OK;
    SL_TRY(wait_stream(c, err));
    return h->agreed == call
               ? SL_OK
               : sl_fail(err, SL_ERR_DEVICE, "comm: agree: the words of the ranks did not arrive");
}

static sl_status nccl_agree(sl_comm *base, const void *src, void *dst, size_t bytes, sl_err *err)
{
    sl_cuda_comm *c = of(base);
    uint8_t *all = c->pinned + SL_COMM_AGREE_BYTES;
    int32_t ranks = base->opts.ranks;

    SL_TRY(nccl_state(base, err));
    if (!c->windows.open) {
        memcpy(c->pinned, src, bytes);
        SL_TRY(nccl_all_gather(base, c->pinned, all, bytes, err));
        SL_TRY(sl_be_sync(base->be, err));
        memcpy(dst, all, bytes * (size_t)ranks);
        return SL_OK;
    }
    SL_TRY(sl_peer_agree(c->cu, &c->windows.view, src, bytes, ++c->agreements,
                         &sl_cuda_counts_of(c->cu)->gather, err));
    SL_TRY(wait_agreed(c, c->agreements, err));
    atomic_thread_fence(memory_order_acquire);
    for (int32_t r = 0; r < ranks; r++)
        memcpy((uint8_t *)dst + (size_t)r * bytes, (const void *)c->windows.view.host->words[r], bytes);
    return SL_OK;
}

static sl_status nccl_barrier(sl_comm *base, sl_err *err)
{
    sl_cuda_comm *c = of(base);

    return gather(c, c->meet, c->meet + 1, sizeof(uint32_t), NULL, err);
}

static sl_status nccl_broadcast(sl_comm *base, void *buf, size_t bytes, int32_t root, sl_err *err)
{
    sl_cuda_comm *c = of(base);

    SL_TRY(nccl_state(base, err));
    return settle(c, c->n->broadcast(buf, buf, bytes, ncclInt8, root, c->comm, c->cu->stream), "broadcast",
                  err);
}

static sl_status nccl_memory(sl_comm *base, size_t bytes, void **out, sl_err *err)
{
    sl_cuda_comm *c = of(base);

    SL_TRY(nccl_state(base, err));
    return sl_cuda_windows_memory(&c->windows, &base->opts, bytes, gather_host, c, out, err);
}

static void *nccl_at(const sl_comm *base, const void *own, int32_t r)
{
    return sl_cuda_windows_at(&((const sl_cuda_comm *)base)->windows, own, r);
}

static sl_status nccl_all_to_all(sl_comm *base, const sl_comm_rows *p, sl_err *err)
{
    sl_cuda_comm *c = of(base);
    size_t block = (size_t)p->row_bytes * (size_t)p->cap;
    bool moved;
    sl_cuda_meter *meter = &sl_cuda_counts_of(c->cu)->exchange;
    ncclResult_t rows, counts, r;

    SL_TRY(nccl_state(base, err));
    SL_TRY(sl_cuda_windows_move(c->cu, &c->windows, p, &moved, err));
    if (moved)
        return SL_OK;
    SL_TRY(begin_timed(c, meter, err));
    r = c->n->group_start();
    if (r != ncclSuccess)
        return fail_nccl(c, r, "all_to_all", err);
    rows = c->n->all_to_all(p->send, p->recv, block, ncclInt8, c->comm, c->cu->stream);
    counts = c->n->all_to_all(p->send_count, p->recv_count, 1, ncclInt32, c->comm, c->cu->stream);
    r = c->n->group_end();
    if (rows != ncclSuccess && rows != ncclInProgress)
        return fail_nccl(c, rows, "all_to_all", err);
    if (counts != ncclSuccess && counts != ncclInProgress)
        return fail_nccl(c, counts, "all_to_all", err);
    SL_TRY(settle(c, r, "all_to_all", err));
    return end_timed(c, meter, block * (size_t)(base->opts.ranks - 1), err);
}

const sl_comm_desc sl_comm_nccl = {
    .name = "NCCL",
    .found = nccl_found,
    .join = nccl_join,
    .form = nccl_form,
    .destroy = nccl_destroy,
    .abort = nccl_abort,
    .state = nccl_state,
    .barrier = nccl_barrier,
    .all_gather = nccl_all_gather,
    .agree = nccl_agree,
    .broadcast = nccl_broadcast,
    .all_to_all = nccl_all_to_all,
    .memory = nccl_memory,
    .at = nccl_at,
    .library = sl_nccl_version,
};
