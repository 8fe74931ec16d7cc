/* See window.h. */
#include "collectives/cuda/window.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define ALIGN 256
#define MOST_SLICES 64                 /* a slice without rows still takes the time of a barrier */
#define SHARED_ALIGN ((size_t)2 << 20) /* smaller allocations share a handle with others */

/* What a rank tells the others. */
typedef struct card {
    uint64_t host; /* equal on one host, and only there */
    cudaIpcMemHandle_t handle;
    uint32_t there; /* the rank has a window */
} card;

/* The kernel's number of this boot: other hosts and other virtual machines have another one. */
static uint64_t host_number(void)
{
    char id[64] = "";
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, id, sizeof id) : -1;

    if (fd >= 0)
        close(fd);
    return n > 0 ? sl_hash_chain((sl_key){0, 0}, id, (size_t)n).lo : 0;
}

static bool wanted(const sl_comm_opts *o)
{
    const char *off = getenv("NCCL_P2P_DISABLE");

    return o->ranks > 1 && !o->library_only && !(off && strcmp(off, "1") == 0);
}

/* This rank's window, with all flags 0. */
static bool make_own(const sl_comm_opts *o, sl_peer_view *v, cudaIpcMemHandle_t *handle)
{
    uint64_t half = o->window_bytes ? o->window_bytes : SL_COMM_WINDOW_BYTES;
    void *window = NULL;

    v->slot_bytes = half / (uint64_t)o->ranks / ALIGN * ALIGN;
    if (v->slot_bytes == 0 ||
        cudaMalloc(&window, sl_peer_window_bytes(o->ranks, v->slot_bytes)) != cudaSuccess)
        return false;
    v->window[o->rank] = window;
    return cudaMemset(window, 0, 2 * (size_t)o->ranks * SL_PEER_FLAG_BYTES) == cudaSuccess &&
           cudaMemset((uint8_t *)window + sl_peer_agree_at(o->ranks, v->slot_bytes), 0,
                      sl_peer_agree_bytes(o->ranks)) == cudaSuccess &&
           cudaMalloc((void **)&v->state, sizeof *v->state) == cudaSuccess &&
           cudaMemset(v->state, 0, sizeof *v->state) == cudaSuccess &&
           cudaHostAlloc((void **)&v->host, sizeof *v->host, cudaHostAllocMapped) == cudaSuccess &&
           memset((void *)v->host, 0, sizeof *v->host) && cudaDeviceSynchronize() == cudaSuccess &&
           cudaIpcGetMemHandle(handle, window) == cudaSuccess;
}

static bool all_there(const card *cards, const card *mine, int32_t ranks)
{
    for (int32_t r = 0; r < ranks; r++)
        if (!cards[r].there || cards[r].host != mine->host)
            return false;
    return mine->host != 0;
}

/* at[r]: the memory of rank r. */
static bool map_others(const sl_comm_opts *o, const card *cards, uint8_t **at)
{
    for (int32_t r = 0; r < o->ranks; r++) {
        void *p = NULL;

        if (r == o->rank)
            continue;
        if (cudaIpcOpenMemHandle(&p, cards[r].handle, cudaIpcMemLazyEnablePeerAccess) != cudaSuccess)
            return false;
        at[r] = p;
    }
    return true;
}

/* Maps the memory of all ranks; *every: all ranks have, else this rank's mappings must be closed. */
static sl_status map_all(const sl_comm_opts *o, const card *mine, sl_cuda_gather_fn gather, void *ctx,
                         uint8_t **at, bool *every, sl_err *err)
{
    card cards[SL_COMM_RANKS_MAX];
    uint32_t mapped, all_mapped[SL_COMM_RANKS_MAX];

    SL_TRY(gather(ctx, mine, cards, sizeof *mine, err));
    mapped = all_there(cards, mine, o->ranks) && map_others(o, cards, at);
    SL_TRY(gather(ctx, &mapped, all_mapped, sizeof mapped, err));
    (void)cudaGetLastError(); /* what failed only means that there is no such memory */
    *every = true;
    for (int32_t r = 0; r < o->ranks; r++)
        *every = *every && all_mapped[r];
    return SL_OK;
}

sl_status sl_cuda_windows_open(const sl_comm_opts *o, sl_cuda_gather_fn gather, void *ctx, sl_cuda_windows *w,
                               sl_err *err)
{
    card mine = {.host = host_number()};
    sl_status st;

    *w = (sl_cuda_windows){
        .view = {.rank = o->rank, .ranks = o->ranks, .deadline_ns = o->deadline_ms * 1000000ull}};
    mine.there = wanted(o) && make_own(o, &w->view, &mine.handle);
    st = map_all(o, &mine, gather, ctx, w->view.window, &w->open, err);
    if (st != SL_OK || !w->open)
        sl_cuda_windows_close(w);
    return st;
}

static void unmap(uint8_t *const *at, int32_t rank, int32_t ranks)
{
    for (int32_t r = 0; r < ranks; r++)
        if (at[r] && r != rank)
            cudaIpcCloseMemHandle(at[r]);
    cudaFree(ranks ? at[rank] : NULL);
}

void sl_cuda_windows_close(sl_cuda_windows *w)
{
    sl_peer_view *v = &w->view;

    for (int32_t i = 0; i < w->n_shared; i++)
        unmap(w->shared[i].at, v->rank, v->ranks);
    unmap(v->window, v->rank, v->ranks);
    cudaFree(v->state);
    cudaFreeHost((void *)v->host);
    (void)cudaGetLastError();
    *w = (sl_cuda_windows){.open = false};
}

static void close_shared(sl_cuda_shared *s)
{
    unmap(s->at, s->rank, s->ranks);
    (void)cudaGetLastError();
    *s = (sl_cuda_shared){.bytes = 0};
}

/* SL_OK also when there will be none: see s->bytes. */
static sl_status open_shared(const sl_comm_opts *o, size_t bytes, sl_cuda_gather_fn gather, void *ctx,
                             sl_cuda_shared *s, sl_err *err)
{
    size_t size = (bytes + SHARED_ALIGN - 1) / SHARED_ALIGN * SHARED_ALIGN;
    card mine = {.host = host_number()};
    size_t left = 0, total = 0;
    void *own = NULL;
    bool every = false;
    sl_status st;

    *s = (sl_cuda_shared){.bytes = bytes, .rank = o->rank, .ranks = o->ranks};
    /* As much must remain for what grows with the first steps. */
    mine.there = cudaMemGetInfo(&left, &total) == cudaSuccess && left / 2 >= size &&
                 cudaMalloc(&own, size) == cudaSuccess &&
                 cudaIpcGetMemHandle(&mine.handle, own) == cudaSuccess;
    s->at[o->rank] = own;
    st = map_all(o, &mine, gather, ctx, s->at, &every, err);
    if (st != SL_OK || !every)
        close_shared(s);
    return st;
}

sl_status sl_cuda_windows_memory(sl_cuda_windows *w, const sl_comm_opts *o, size_t bytes,
                                 sl_cuda_gather_fn gather, void *ctx, void **out, sl_err *err)
{
    sl_cuda_shared *s = &w->shared[w->n_shared];

    if (!w->open || w->n_shared == SL_COMM_MEMORIES)
        return SL_OK;
    SL_TRY(open_shared(o, bytes, gather, ctx, s, err));
    if (s->bytes)
        *out = w->shared[w->n_shared++].at[o->rank];
    return SL_OK;
}

void *sl_cuda_windows_at(const sl_cuda_windows *w, const void *own, int32_t r)
{
    for (int32_t i = 0; i < w->n_shared; i++) {
        const sl_cuda_shared *s = &w->shared[i];
        uintptr_t at = (uintptr_t)own - (uintptr_t)s->at[s->rank];

        if (at < s->bytes)
            return s->at[r] + at;
    }
    return NULL;
}

/* Rows of a block that one launch moves through the windows, so that a block takes at most MOST_SLICES of them; 0: NCCL
 * must move them. */
static int32_t slice_of(const sl_cuda_windows *w, const sl_comm_rows *p)
{
    uint64_t fit = w->open ? w->view.slot_bytes / (uint64_t)p->row_bytes : 0;

    if (fit >= (uint64_t)p->cap)
        return p->cap;
    return fit * MOST_SLICES >= (uint64_t)p->cap ? (int32_t)fit : 0;
}

sl_status sl_cuda_windows_move(sl_cuda *cu, const sl_cuda_windows *w, const sl_comm_rows *p, bool *moved,
                               sl_err *err)
{
    size_t block = (size_t)p->row_bytes * (size_t)p->cap;
    int32_t slice = slice_of(w, p);
    sl_peer_move m = {.send = p->send,
                      .recv = p->recv,
                      .send_stride = block,
                      .recv_stride = block,
                      .row_bytes = (uint64_t)p->row_bytes,
                      .send_count = p->send_count,
                      .recv_count = p->recv_count,
                      .rows = p->cap,
                      .slice = p->cap,
                      .direct = sl_cuda_windows_at(w, p->recv, w->view.rank) != NULL,
                      .placed = p->placed,
                      .meter = &sl_cuda_counts_of(cu)->exchange};

    *moved = m.direct || slice > 0;
    for (int32_t r = 0; m.direct && r < w->view.ranks; r++)
        m.to[r] = sl_cuda_windows_at(w, p->recv, r);
    if (m.direct)
        return sl_peer_launch(cu, &w->view, &m, err);
    for (; *moved && m.first < p->cap; m.first += slice) {
        m.slice = slice < p->cap - m.first ? slice : p->cap - m.first;
        SL_TRY(sl_peer_launch(cu, &w->view, &m, err));
    }
    return SL_OK;
}
