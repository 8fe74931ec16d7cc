/*
 * The rate of the link between GPU 0 and GPU 1, one way and both ways at once: the limit of what an exchange of a group can
 * reach. One program drives both GPUs. Ways of copying: stores of 16 bytes, bulk copies through shared memory, both also
 * as reads from the other GPU, and the copy engines; by several numbers of thread blocks.
 *
 *   link_rate          prints CSV: kernel, push or pull, ways, bytes, blocks, us of a copy, GB/s of one direction
 */
#include <cuda_runtime.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define THREADS 512
#define UNROLL 4
#define STAGE 16384
#define STAGES 12
#define AHEAD 6 /* loads in flight before the first store */
#define COPIES 12
#define REPEATS 3

#define CK(call) check((call), #call)

static void check(cudaError_t e, const char *what)
{
    if (e == cudaSuccess)
        return;
    fprintf(stderr, "link_rate: %s: %s\n", what, cudaGetErrorString(e));
    exit(1);
}

__global__ static void __launch_bounds__(THREADS) store_kernel(uint4 *dst, const uint4 *src, size_t n)
{
    size_t step = (size_t)gridDim.x * THREADS, i = (size_t)blockIdx.x * THREADS + threadIdx.x;

    for (; i + (UNROLL - 1) * step < n; i += UNROLL * step) {
        uint4 v[UNROLL];
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
            v[u] = __ldcg(src + i + u * step);
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
            dst[i + u * step] = v[u];
    }
    for (; i < n; i += step)
        dst[i] = __ldcg(src + i);
}

__device__ static uint32_t shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* One thread of each block keeps AHEAD loads and STAGES - AHEAD stores in flight. */
__global__ static void bulk_kernel(uint8_t *dst, const uint8_t *src, size_t n)
{
    extern __shared__ __align__(128) uint8_t memory[];
    __shared__ __align__(8) uint64_t full[STAGES];
    uint32_t at = shared_address(memory), bars = shared_address(full);
    size_t pieces = n / STAGE, mine = (pieces + gridDim.x - 1 - blockIdx.x) / gridDim.x;

    if (threadIdx.x != 0)
        return;
    for (int i = 0; i < STAGES; i++)
        asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(bars + 8 * i));
    asm volatile("fence.mbarrier_init.release.cluster;");
    asm volatile("fence.proxy.async;");
    auto load = [&](size_t i) {
        uint32_t stage = (uint32_t)(i % STAGES);
        asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(bars + 8 * stage), "n"(STAGE)
                     : "memory");
        asm volatile(
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                at + stage * STAGE),
            "l"(src + (blockIdx.x + i * gridDim.x) * STAGE), "n"(STAGE), "r"(bars + 8 * stage)
            : "memory");
    };
    for (size_t i = 0; i < AHEAD && i < mine; i++)
        load(i);
    for (size_t i = 0; i < mine; i++) {
        uint32_t stage = (uint32_t)(i % STAGES), phase = (uint32_t)(i / STAGES & 1), there = 0;
        while (!there)
            asm volatile(
                "{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                : "=r"(there)
                : "r"(bars + 8 * stage), "r"(phase)
                : "memory");
        asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(
                         dst + (blockIdx.x + i * gridDim.x) * STAGE),
                     "r"(at + stage * STAGE), "n"(STAGE)
                     : "memory");
        asm volatile("cp.async.bulk.commit_group;" ::: "memory");
        if (i + AHEAD < mine) {
            asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(STAGES - AHEAD) : "memory");
            load(i + AHEAD);
        }
    }
    asm volatile("cp.async.bulk.wait_group 0;" ::: "memory");
}

typedef struct gpu {
    uint8_t *src, *dst;
    cudaStream_t stream;
    cudaEvent_t begun, ended;
} gpu;

static gpu gpus[2];

typedef void (*copy_fn)(const gpu *g, uint8_t *dst, const uint8_t *src, size_t n, int blocks);

static void by_stores(const gpu *g, uint8_t *dst, const uint8_t *src, size_t n, int blocks)
{
    store_kernel<<<blocks, THREADS, 0, g->stream>>>((uint4 *)dst, (const uint4 *)src, n / sizeof(uint4));
}

static void by_bulk(const gpu *g, uint8_t *dst, const uint8_t *src, size_t n, int blocks)
{
    CK(cudaFuncSetAttribute(bulk_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, STAGES * STAGE));
    bulk_kernel<<<blocks, 32, STAGES * STAGE, g->stream>>>(dst, src, n);
}

static void by_engine(const gpu *g, uint8_t *dst, const uint8_t *src, size_t n, int blocks)
{
    (void)blocks;
    CK(cudaMemcpyAsync(dst, src, n, cudaMemcpyDefault, g->stream));
}

static void enqueue(copy_fn copy, int device, bool pull, size_t n, int blocks)
{
    const gpu *own = &gpus[device], *other = &gpus[1 - device];

    CK(cudaSetDevice(device));
    copy(own, pull ? own->dst : other->dst, pull ? other->src : own->src, n, blocks);
    CK(cudaGetLastError());
}

/* Microseconds of a copy of the slower GPU; ways: 1 or 2. The first time is a warm-up. */
static double time_once(copy_fn copy, int ways, bool pull, size_t n, int blocks)
{
    double worst = 0;

    for (int d = 0; d < ways; d++) {
        enqueue(copy, d, pull, n, blocks);
        CK(cudaEventRecord(gpus[d].begun, gpus[d].stream));
        for (int i = 0; i < COPIES; i++)
            enqueue(copy, d, pull, n, blocks);
        CK(cudaEventRecord(gpus[d].ended, gpus[d].stream));
    }
    for (int d = 0; d < ways; d++) {
        float ms;

        CK(cudaEventSynchronize(gpus[d].ended));
        CK(cudaEventElapsedTime(&ms, gpus[d].begun, gpus[d].ended));
        worst = 1e3 * ms / COPIES > worst ? 1e3 * ms / COPIES : worst;
    }
    return worst;
}

static void measure(const char *name, copy_fn copy, bool pull, size_t n, int blocks)
{
    for (int ways = 1; ways <= 2; ways++) {
        double best = 0;

        for (int i = 0; i < REPEATS; i++) {
            double us = time_once(copy, ways, pull, n, blocks);
            best = i == 0 || us < best ? us : best;
        }
        printf("%s,%s,%d,%zu,%d,%.2f,%.1f\n", name, pull ? "pull" : "push", ways, n, blocks, best,
               (double)n / best / 1e3);
    }
    fflush(stdout);
}

static void open_gpus(size_t bytes)
{
    for (int d = 0; d < 2; d++) {
        CK(cudaSetDevice(d));
        CK(cudaDeviceEnablePeerAccess(1 - d, 0));
        CK(cudaMalloc((void **)&gpus[d].src, bytes));
        CK(cudaMalloc((void **)&gpus[d].dst, bytes));
        CK(cudaMemset(gpus[d].src, 1, bytes));
        CK(cudaStreamCreate(&gpus[d].stream));
        CK(cudaEventCreate(&gpus[d].begun));
        CK(cudaEventCreate(&gpus[d].ended));
        CK(cudaDeviceSynchronize());
    }
}

int main(void)
{
    /* Rows of 4,096 tokens of V3.2 as a dispatch and as results of single experts, down to whole stages. */
    const size_t sizes[] = {30203712 / STAGE * STAGE, 232601600 / STAGE * STAGE};
    const int blocks[] = {8, 16, 32, 64, 132};

    open_gpus(sizes[1]);
    printf("kernel,direction,ways,bytes,blocks,us,GB/s\n");
    for (int s = 0; s < 2; s++) {
        for (int b = 0; b < 5; b++) {
            measure("stores", by_stores, false, sizes[s], blocks[b]);
            measure("bulk", by_bulk, false, sizes[s], blocks[b]);
            measure("stores", by_stores, true, sizes[s], blocks[b]);
            measure("bulk", by_bulk, true, sizes[s], blocks[b]);
        }
        measure("engine", by_engine, false, sizes[s], 0);
    }
    return 0;
}
