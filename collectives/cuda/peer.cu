/*
 * The kernel of peer.h. Three phases: every block writes its part of every block of rows; the last block to have
 * written posts the flags; every block waits for all flags and copies its part out of the own window. Of rows that are
 * written to memory of the group, or that the work before has placed there, nothing is copied out: the block that posted
 * the flags waits alone.
 *
 * Latency decides for few rows: the kernel may begin early (sl_launch.early), counts are read once, one thread
 * fences and posts, and nothing at the end waits for what it counts.
 *
 * A flag is posted when all blocks of its kernel have written, and other ranks' blocks wait for it. So all blocks of a
 * kernel must become resident together: there is at most one for every multiprocessor.
 */
#include "collectives/cuda/peer.h"

#include "kernels/cuda/common.cuh"

#define THREADS 512
#define BLOCK_BYTES 16384 /* of all blocks of rows: what one thread block copies at least */
#define LOOKS 256         /* polls of a flag between two checks of the clock and of the host's `stop` */

/* Flags carry the exchange's number and the number of rows. After a fence of the same thread. */
__device__ static void post(uint64_t *flag, uint32_t epoch, uint32_t rows)
{
    uint64_t v = (uint64_t)epoch << 32 | rows;

    sl_store_system(flag, v);
}

__device__ static uint64_t look(const uint64_t *flag)
{
    return sl_load_acquire_system(flag);
}

__device__ static uint64_t *flag_of(const sl_peer_view &v, int32_t at, uint32_t half, int32_t sender)
{
    return (uint64_t *)(v.window[at] + ((uint64_t)half * v.ranks + sender) * SL_PEER_FLAG_BYTES);
}

__device__ static uint8_t *slot_of(const sl_peer_view &v, int32_t at, uint32_t half, int32_t sender)
{
    return v.window[at] + 2ull * v.ranks * SL_PEER_FLAG_BYTES +
           ((uint64_t)half * v.ranks + sender) * v.slot_bytes;
}

__device__ static int32_t rows_for(const sl_peer_move &m, int32_t q)
{
    int32_t n = m.send_count ? m.send_count[q] : m.rows;

    return n < 0 ? 0 : n > m.rows ? m.rows : n;
}

/* Those of them that this launch moves. */
__device__ static uint64_t slice_bytes(const sl_peer_move &m, int32_t rows)
{
    int32_t n = min(rows - m.first, m.slice);

    return n > 0 ? (uint64_t)n * m.row_bytes : 0;
}

/* This block's part of a copy of `bytes`, a multiple of sizeof(V). Reads bypass the first-level cache, because the
 * slots of a window are written by other GPUs. */
template <typename V> __device__ static void copy_part(uint8_t *dst, const uint8_t *src, uint64_t bytes)
{
    uint64_t n = bytes / sizeof(V), step = (uint64_t)gridDim.x * THREADS;
    uint64_t i = (uint64_t)blockIdx.x * THREADS + threadIdx.x;
    const V *s = (const V *)src;
    V *d = (V *)dst;

    for (; i + 3 * step < n; i += 4 * step) {
        V a = __ldcg(s + i), b = __ldcg(s + i + step), c = __ldcg(s + i + 2 * step),
          e = __ldcg(s + i + 3 * step);

        d[i] = a;
        d[i + step] = b;
        d[i + 2 * step] = c;
        d[i + 3 * step] = e;
    }
    for (; i < n; i += step)
        d[i] = __ldcg(s + i);
}

/* Waits for the flag of one sender; false at the deadline, when the host has set `stop`, or when the group is
 * broken. */
__device__ static bool wait_for(const sl_peer_view &v, uint32_t epoch, int32_t sender, int32_t *rows)
{
    const uint64_t *flag = flag_of(v, v.rank, epoch & 1, sender);
    uint64_t end = sl_clock_ns() + v.deadline_ns;

    for (uint32_t i = 1;; i++) {
        uint64_t f = look(flag);

        if ((uint32_t)(f >> 32) == epoch) {
            *rows = (int32_t)(uint32_t)f;
            return true;
        }
        if (i % LOOKS != 0)
            continue;
        if (*(volatile uint32_t *)&v.state->broken)
            return false;
        if (sl_clock_ns() > end || v.host->stop) {
            v.state->broken = 1;
            v.host->report = 1 + (uint32_t)sender;
            __threadfence_system();
            return false;
        }
    }
}

/* sent[q]: rows for rank q. */
template <typename V>
__device__ static void write_out(const sl_peer_view &v, const sl_peer_move &m, uint32_t half,
                                 const int32_t *sent)
{
    uint64_t first = (uint64_t)m.first * m.row_bytes;

    for (int32_t d = 1; d < v.ranks; d++) {
        int32_t q = (v.rank + d) % v.ranks; /* ranks begin with different receivers */
        uint8_t *to = m.direct ? m.to[q] + (uint64_t)v.rank * m.recv_stride : slot_of(v, q, half, v.rank);

        copy_part<V>(to, m.send + (uint64_t)q * m.send_stride + first, slice_bytes(m, sent[q]));
    }
}

/* The own block; after the flags are posted, while those of the others are on the link. */
template <typename V>
__device__ static void copy_own(const sl_peer_view &v, const sl_peer_move &m, const int32_t *sent)
{
    uint64_t first = (uint64_t)m.first * m.row_bytes;

    copy_part<V>(m.recv + (uint64_t)v.rank * m.recv_stride + first,
                 m.send + (uint64_t)v.rank * m.send_stride + first, slice_bytes(m, sent[v.rank]));
}

/* The block that is the last to have written tells the other ranks; true in this block. One thread does it: its fences
 * order what all threads of all blocks have written before the flags. */
__device__ static bool post_flags(const sl_peer_view &v, uint32_t epoch, const int32_t *sent)
{
    __shared__ bool last;

    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence_system();
        last = gridDim.x == 1 || atomicAdd(&v.state->written, 1) == gridDim.x - 1;
        if (last && gridDim.x > 1) {
            v.state->written = 0;
            __threadfence_system();
        }
        for (int32_t q = 0; last && q < v.ranks; q++)
            if (q != v.rank)
                post(flag_of(v, q, epoch & 1, v.rank), epoch, (uint32_t)sent[q]);
    }
    __syncthreads();
    return last;
}

/* counts[s]: rows from s; this block also stores them where `tells`. False when a rank did not arrive. */
__device__ static bool wait_all(const sl_peer_view &v, const sl_peer_move &m, uint32_t epoch, bool tells,
                                const int32_t *sent, int32_t *counts)
{
    bool there = true;
    int32_t s = (int32_t)threadIdx.x;

    if (s < v.ranks) {
        if (s == v.rank)
            counts[s] = sent[s];
        else
            there = wait_for(v, epoch, s, &counts[s]);
        if (there && tells && m.recv_count)
            m.recv_count[s] = counts[s];
    }
    return __syncthreads_and(there);
}

template <typename V>
__device__ static void read_in(const sl_peer_view &v, const sl_peer_move &m, uint32_t half,
                               const int32_t *counts)
{
    for (int32_t d = 1; d < v.ranks; d++) {
        int32_t s = (v.rank + d) % v.ranks;

        copy_part<V>(m.recv + (uint64_t)s * m.recv_stride + (uint64_t)m.first * m.row_bytes,
                     slot_of(v, v.rank, half, s), slice_bytes(m, counts[s]));
    }
}

/* Adds a call to a meter; the time goes to `hidden` unless that is NULL. Nothing waits for it. */
__device__ static void count(sl_cuda_meter *m, uint64_t *hidden, uint64_t calls, uint64_t bytes, uint64_t ns)
{
    atomicAdd((unsigned long long *)&m->calls, calls);
    atomicAdd((unsigned long long *)&m->bytes, bytes);
    atomicAdd((unsigned long long *)(hidden ? hidden : &m->ns), ns);
}

__device__ static uint64_t bytes_out(const sl_peer_view &v, const sl_peer_move &m, const int32_t *sent)
{
    uint64_t bytes = 0;

    for (int32_t q = 0; q < v.ranks; q++)
        bytes += q == v.rank ? 0 : slice_bytes(m, sent[q]);
    return bytes;
}

/* The rest of an exchange, in one block: the next exchange may begin. */
__device__ static void end_exchange(const sl_peer_view &v, const sl_peer_move &m, uint32_t epoch,
                                    const int32_t *sent, uint64_t begun)
{
    v.state->epoch = epoch;
    if (m.meter)
        count(m.meter, m.hidden_ns, m.first == 0, bytes_out(v, m, sent), sl_clock_ns() - begun);
}

template <typename V> __global__ void __launch_bounds__(THREADS) exchange(sl_peer_view v, sl_peer_move m)
{
    __shared__ int32_t counts[SL_COMM_RANKS_MAX], sent[SL_COMM_RANKS_MAX];
    __shared__ uint32_t epoch;
    __shared__ bool broken;

    sl_after_previous();
    sl_let_next_start();
    uint64_t begun = sl_clock_ns();
    if (threadIdx.x == 0) {
        epoch = *(volatile uint32_t *)&v.state->epoch + 1;
        broken = *(volatile uint32_t *)&v.state->broken != 0;
    }
    if ((int32_t)threadIdx.x < v.ranks)
        sent[threadIdx.x] = rows_for(m, (int32_t)threadIdx.x);
    __syncthreads();
    if (broken)
        return;
    if (m.placed != SL_COMM_PLACED)
        write_out<V>(v, m, epoch & 1, sent);
    bool last = post_flags(v, epoch, sent);
    if (m.placed == SL_COMM_IN_SEND)
        copy_own<V>(v, m, sent);
    uint64_t waits = sl_clock_ns();
    /* Rows that are written where they belong need no block to read them: one waits, so that the kernel does. */
    if ((last || !m.direct) && !wait_all(v, m, epoch, last, sent, counts))
        return;
    if (last && m.wait_ns && threadIdx.x == 0)
        atomicAdd((unsigned long long *)m.wait_ns, sl_clock_ns() - waits);
    if (m.direct) { /* every block has read the number of the exchange before this one was the last to write */
        if (last && threadIdx.x == 0)
            end_exchange(v, m, epoch, sent, begun);
        return;
    }
    read_in<V>(v, m, epoch & 1, counts);
    __syncthreads();
    if (threadIdx.x == 0 && atomicAdd(&v.state->left, 1) == gridDim.x - 1) {
        v.state->left = 0;
        end_exchange(v, m, epoch, sent, begun);
    }
}

__global__ static void meter_begin_kernel(sl_cuda_meter *m)
{
    m->begun = sl_clock_ns();
}

__global__ static void meter_end_kernel(sl_cuda_meter *m, uint64_t *hidden, uint64_t bytes)
{
    count(m, hidden, 1, bytes, sl_clock_ns() - m->begun);
}

/* Where the time of what is enqueued now is counted; NULL: in its meter. */
static uint64_t *hidden_of(const sl_cuda *cu)
{
    return cu->stream == cu->side_stream ? &sl_cuda_counts_of(cu)->hidden_ns : NULL;
}

extern "C" sl_status sl_meter_begin(sl_cuda *cu, sl_cuda_meter *m, sl_err *err)
{
    return SL_LAUNCH(cu, meter_begin_kernel, (sl_launch{1, 1}), err, m);
}

extern "C" sl_status sl_meter_end(sl_cuda *cu, sl_cuda_meter *m, uint64_t bytes, sl_err *err)
{
    return SL_LAUNCH(cu, meter_end_kernel, (sl_launch{1, 1}), err, m, hidden_of(cu), bytes);
}

/* An exchange waits inside for other blocks of its launch and for other ranks, so all its blocks must run at once. Asked
 * of the device when a group forms, for the kernel with the most registers and for as many blocks as a launch may have. */
extern "C" sl_status sl_peer_resident(sl_cuda *cu, sl_err *err)
{
    void (*const kernels[])(sl_peer_view, sl_peer_move) = {exchange<uint4>, exchange<uint32_t>,
                                                           exchange<unsigned char>};

    cu->op = SL_OP_COUNT; /* for the message */
    for (int i = 0; i < 3; i++)
        SL_TRY(sl_cuda_resident(cu, "exchange", (const void *)kernels[i], THREADS, 0, cu->gpu.sms, err));
    return SL_OK;
}

extern "C" sl_status sl_peer_launch(sl_cuda *cu, const sl_peer_view *v, const sl_peer_move *m, sl_err *err)
{
    uint64_t all = (uint64_t)m->slice * m->row_bytes * (uint64_t)v->ranks;
    bool side = cu->stream == cu->side_stream;
    bool large = (uint64_t)m->rows * m->row_bytes > SL_CUDA_EXCHANGE_LARGE;
    uint64_t most = (uint64_t)(!side ? cu->sms : large ? cu->gpu.exchange_sms_large : cu->gpu.exchange_sms);
    uint64_t unit = (uint64_t)(uintptr_t)m->send | (uint64_t)(uintptr_t)m->recv | m->send_stride |
                    m->recv_stride | m->row_bytes;
    uint64_t blocks = (all + BLOCK_BYTES - 1) / BLOCK_BYTES;
    sl_peer_move move = *m;

    int threads = m->placed == SL_COMM_PLACED ? SL_COMM_RANKS_MAX : THREADS;

    if (m->placed == SL_COMM_PLACED)
        blocks = 1;
    move.hidden_ns = hidden_of(cu);
    move.wait_ns = m->meter == &sl_cuda_counts_of(cu)->exchange ? &sl_cuda_counts_of(cu)->wait_ns : NULL;
    blocks = blocks < 1 ? 1 : blocks > most ? most : blocks;
    if (side)
        cu->side_sms = (int)blocks;
    void (*kernel)(sl_peer_view, sl_peer_move) = unit % 16 == 0  ? exchange<uint4>
                                                 : unit % 4 == 0 ? exchange<uint32_t>
                                                                 : exchange<unsigned char>;

    if (!side)
        return SL_LAUNCH(cu, kernel, (sl_launch{dim3((unsigned)blocks), threads, 0, true}), err, *v, move);
    return SL_LAUNCH(cu, kernel, (sl_launch{dim3((unsigned)blocks), threads}), err, *v, move);
}
