/*
 * All PTX instructions that the kernels use and for which CUDA C++ has no name, one function each, in this order:
 * launches, barriers, clusters, registers, copies, single loads and stores, tensor cores. A function here is exactly
 * one instruction, or one instruction in the loop that it needs; what it means for a kernel is explained where it is
 * called. Nothing here depends on a layout: tiles and descriptors are in wgmma.cuh.
 *
 * Instructions of compute capability 9.0 and newer compile for older GPUs only as long as no kernel calls them there;
 * those that exist for sm_90a alone are inside __CUDA_ARCH_FEAT_SM90_ALL.
 */
#ifndef SL_KERNELS_CUDA_PTX_CUH
#define SL_KERNELS_CUDA_PTX_CUH

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <stdint.h>

/* The address in shared memory, in the form that the instructions below take. */
__device__ static inline uint32_t sl_smem_addr(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* ---- the order of launches ---- */

/* Waits until the kernels before this one are complete and their writes are visible. Only a kernel that was launched
 * with permission to start early (programmatic stream serialization) must call it. */
__device__ static inline void sl_after_previous(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* From here on the next kernel may start, if it was launched with that permission. If a kernel calls this after
 * sl_after_previous(), everything before this kernel is complete for the next one, as without an early start. */
__device__ static inline void sl_let_next_start(void)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* Nanoseconds of the clock that all multiprocessors share; the clock of sl_swap_clock. */
__device__ static inline unsigned long long sl_clock_ns(void)
{
    unsigned long long t;

    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t)::"memory");
    return t;
}

/* ---- barriers ---- */

/* The named barrier `id` of the block; `threads` is the number of threads that call this. */
__device__ static inline void sl_bar_sync(int id, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/*
 * Barriers in shared memory (mbarrier). A phase ends after `count` arrivals and after all bytes that were announced
 * with sl_mbar_expect() have arrived. A wait names the parity of the phase whose end it waits for; the first phase has
 * parity 0.
 */
__device__ static inline void sl_mbar_init(uint32_t b, int count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(b), "r"(count) : "memory");
}

/* Called by the thread that initialised barriers: makes the initialisation visible to the copy engine. */
__device__ static inline void sl_mbar_init_fence(void)
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ static inline void sl_mbar_arrive(uint32_t b)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(b) : "memory");
}

/* Arrives, and announces the number of bytes that bulk copies will bring. */
__device__ static inline void sl_mbar_expect(uint32_t b, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(b), "r"(bytes) : "memory");
}

/* Arrives as soon as this thread's sl_copy16() copies are complete; counts as one of the barrier's arrivals. */
__device__ static inline void sl_mbar_arrive_copies(uint32_t b)
{
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(b) : "memory");
}

__device__ static inline void sl_mbar_wait(uint32_t b, uint32_t parity)
{
    asm volatile("{\n.reg .pred p;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
                 "@p bra done;\n"
                 "bra again;\n"
                 "done:\n}\n" ::"r"(b),
                 "r"(parity)
                 : "memory");
}

/* Whether the phase of that parity has ended; the hardware may wait for a limited time before it answers. */
__device__ static inline bool sl_mbar_try_wait(uint32_t b, uint32_t parity)
{
    uint32_t done;

    asm volatile("{\n.reg .pred p;\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, p;\n}\n"
                 : "=r"(done)
                 : "r"(b), "r"(parity)
                 : "memory");
    return done;
}

/* The same functions for callers that hold a pointer. */
__device__ static inline void sl_mbar_init(uint64_t *b, int count)
{
    sl_mbar_init(sl_smem_addr(b), count);
}

__device__ static inline void sl_mbar_arrive(uint64_t *b)
{
    sl_mbar_arrive(sl_smem_addr(b));
}

__device__ static inline void sl_mbar_arrive_copies(uint64_t *b)
{
    sl_mbar_arrive_copies(sl_smem_addr(b));
}

__device__ static inline void sl_mbar_wait(uint64_t *b, uint32_t parity)
{
    sl_mbar_wait(sl_smem_addr(b), parity);
}

/* Makes this thread's writes to shared memory visible to the copy engine and the tensor cores. */
__device__ static inline void sl_fence_async(void)
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* ---- clusters ---- */

/* The barrier of a cluster in two halves, arrive and wait; all lanes of a warp call them together. */
__device__ static inline void sl_cluster_arrive(void)
{
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}

__device__ static inline void sl_cluster_wait(void)
{
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

__device__ static inline void sl_cluster_sync(void)
{
    sl_cluster_arrive();
    sl_cluster_wait();
}

/* The whole barrier, for callers where the threads of a warp may arrive at different times. */
__device__ static inline void sl_cluster_sync_by_thread(void)
{
    asm volatile("barrier.cluster.arrive.release;\nbarrier.cluster.wait.acquire;" ::: "memory");
}

/* The address in block `rank` of the cluster that corresponds to `at` in this block. */
__device__ static inline uint32_t sl_cluster_addr(uint32_t at, int rank)
{
    uint32_t a;

    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(a) : "r"(at), "r"(rank));
    return a;
}

__device__ static inline uint32_t sl_cluster_load(uint32_t a)
{
    uint32_t v;

    asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(v) : "r"(a) : "memory");
    return v;
}

__device__ static inline float4 sl_cluster_load_float4(uint32_t a)
{
    float4 v;

    asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
                 : "r"(a)
                 : "memory");
    return v;
}

__device__ static inline void sl_cluster_store(uint32_t a, uint32_t v)
{
    asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(a), "r"(v) : "memory");
}

/* ---- copies that run asynchronously ---- */

/* Copies 16 bytes to shared memory without the L1 cache. If `some` is false, it reads nothing and writes zeros. */
__device__ static inline void sl_copy16(uint32_t to, const void *from, bool some)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(some ? 16 : 0)
                 : "memory");
}

/* Copies a multiple of 16 bytes to shared memory; the barrier counts the bytes that arrive. */
__device__ static inline void sl_copy_bulk(uint32_t to, const void *from, uint32_t bytes, uint32_t bar)
{
    asm volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(to),
        "l"(from), "r"(bytes), "r"(bar)
        : "memory");
}

/* The same with a policy for the L2 cache. */
__device__ static inline void sl_copy_bulk(uint32_t to, const void *from, uint32_t bytes, uint32_t bar,
                                           uint64_t policy)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1], %2, [%3], %4;" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(bar), "l"(policy)
                 : "memory");
}

/* Copies a box of a two-dimensional map of bytes (sl_cuda_map), from byte x of row y on. */
__device__ static inline void sl_copy_box(uint32_t to, const CUtensorMap *map, int x, int y, uint32_t bar)
{
    asm volatile(
        "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%2, "
        "%3}], [%4];" ::"r"(to),
        "l"(map), "r"(x), "r"(y), "r"(bar)
        : "memory");
}

/* Policies for the L2 cache: one for data that is read once, one for all other data. */
__device__ static inline uint64_t sl_policy_evict_first(void)
{
    uint64_t policy;

    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

__device__ static inline uint64_t sl_policy_evict_normal(void)
{
    uint64_t policy;

    asm volatile("createpolicy.fractional.L2::evict_normal.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

/* Loads to the L2 cache the line that holds p, or a multiple of 16 bytes from p on. */
__device__ static inline void sl_prefetch_l2(const void *p)
{
    asm volatile("prefetch.global.L2 [%0];" ::"l"(p) : "memory");
}

__device__ static inline void sl_prefetch_l2(const void *p, uint32_t bytes)
{
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(p), "r"(bytes) : "memory");
}

/* ---- single loads and stores ---- */

/* Loads if `on`, otherwise leaves v undefined. It does not branch, so that the compiler can issue all loads of a loop
 * one after another. The L1 cache does not keep the data. */
__device__ static inline void sl_load_if(uint4 &v, const void *p, bool on)
{
    asm volatile("{ .reg .pred q; setp.ne.u32 q, %5, 0;"
                 "@q ld.global.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4]; }"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p), "r"((uint32_t)on));
}

/* Load from the L2 cache: the L1 cache may hold a sector that is older than what another kernel has just written. */
__device__ static inline uint2 sl_load8_l2(const void *p)
{
    uint2 v;

    asm volatile("ld.global.cg.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(p) : "memory");
    return v;
}

__device__ static inline float sl_load_float_l2(const void *p)
{
    float v;

    asm volatile("ld.global.cg.f32 %0, [%1];" : "=f"(v) : "l"(p) : "memory");
    return v;
}

/* A counter between kernels that run concurrently: a reader that sees a value with acquire sees everything that was
 * written before that value was added with release. */
__device__ static inline int sl_load_acquire(const int32_t *p)
{
    int v;

    asm volatile("ld.acquire.gpu.global.s32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
    return v;
}

__device__ static inline void sl_increment_release(int32_t *p)
{
    asm volatile("red.release.gpu.global.add.s32 [%0], 1;" ::"l"(p) : "memory");
}

__device__ static inline void sl_store16_shared(uint32_t to, uint4 v)
{
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w)
                 : "memory");
}

/* Words of memory that other devices and the host read and write. */
__device__ static inline void sl_store_system(uint64_t *p, uint64_t v)
{
    asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(p), "l"(v) : "memory");
}

__device__ static inline uint64_t sl_load_system(const uint64_t *p)
{
    uint64_t v;

    asm volatile("ld.relaxed.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}

__device__ static inline uint64_t sl_load_acquire_system(const uint64_t *p)
{
    uint64_t v;

    asm volatile("ld.acquire.sys.global.u64 %0, [%1];" : "=l"(v) : "l"(p) : "memory");
    return v;
}

/* ---- arithmetic ---- */

/* 2^v with a relative error of about 2^-22; subnormal results are 0. */
__device__ static inline float sl_exp2_approx(float v)
{
    float r;

    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v));
    return r;
}

/* threadIdx.x & 31 as a value that the compiler does not recompute from threadIdx. */
__device__ static inline int sl_lane_id(void)
{
    int lane;

    asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane));
    return lane;
}

/*
 * d = a * b with 16 rows, 8 columns and 32 signed bytes of k, in one warp. Lane l holds, four consecutive k each, from
 * k = 4 (l % 4) on: a[0] row l / 4, a[1] row l / 4 + 8, a[2] and a[3] the same 16 further on; b.x column l / 4, b.y 16
 * further on; and d[0], d[1] row l / 4, columns 2 (l % 4) + {0, 1}, d[2], d[3] row l / 4 + 8.
 */
__device__ static inline void sl_mma_s8(int (&d)[4], const uint32_t (&a)[4], uint2 b)
{
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, "
        "%10, %10, %10};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b.x), "r"(b.y), "r"(0));
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
/* ---- registers ---- */

/* Changes the number of registers per thread of the calling warpgroup. One that needs few gives the others to the
 * block; one that needs many waits until they are free and takes them. All warps of the warpgroup call it; N is a
 * multiple of 8. */
template <int N> __device__ static inline void sl_registers_give(void)
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

template <int N> __device__ static inline void sl_registers_take(void)
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

/* ---- products of a warpgroup ---- */

/* Required before the first product, and after a write to registers that a product reads or adds to. */
__device__ static inline void sl_wgmma_fence(void)
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

/* Ends a group of products. */
__device__ static inline void sl_wgmma_commit(void)
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

/* Waits until at most N groups are still in flight. */
template <int N> __device__ static inline void sl_wgmma_wait(void)
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory");
}

/* After a wait while other groups are still in flight: the compiler does not read d before this point. */
template <int N> __device__ static inline void sl_wgmma_results(float (&d)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+f"(d[i])::"memory");
}

/* Ends a group of products and waits for it. */
__device__ static inline void sl_wgmma_finish(void)
{
    asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;" ::: "memory");
}

/*
 * d = [d +] a * b with 64 rows, N columns and 32 bytes of k (16 values of 16 bits, or 32 of 8 bits). a and b are
 * descriptors of shared memory (wgmma.cuh), or a is four registers. d is float32 in registers: for block j of eight
 * columns, thread t of the warpgroup holds
 *
 *   | registers          | row                          | columns                     |
 *   |--------------------|------------------------------|-----------------------------|
 *   | d[4 j], d[4 j + 1] | 16 (t / 32) + t % 32 / 4     | 8 j + 2 (t % 4) + {0, 1}    |
 *   | d[4 j + 2 .. + 3]  | the same + 8                 | the same                    |
 */
#define SL_OUT_16(d, i)                                                                                      \
    "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]),              \
        "+f"(d[i + 6]), "+f"(d[i + 7]), "+f"(d[i + 8]), "+f"(d[i + 9]), "+f"(d[i + 10]), "+f"(d[i + 11]),    \
        "+f"(d[i + 12]), "+f"(d[i + 13]), "+f"(d[i + 14]), "+f"(d[i + 15])
#define SL_OUT_32(d) SL_OUT_16(d, 0), SL_OUT_16(d, 16)
#define SL_OUT_64(d) SL_OUT_16(d, 0), SL_OUT_16(d, 16), SL_OUT_16(d, 32), SL_OUT_16(d, 48)
#define SL_REGS_16 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15"
#define SL_REGS_32                                                                                           \
    SL_REGS_16 ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define SL_REGS_64                                                                                           \
    SL_REGS_32 ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47"            \
               ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"

/* Arguments: shape and types; the registers of d; the operands after them; whether d is added to; signs and orders of
 * the operands. */
#define SL_WGMMA_TEXT(shape, regs, operands, add, tail)                                                      \
    "{\n.reg .pred p;\nsetp.ne.b32 p, " add ", 0;\nwgmma.mma_async.sync.aligned." shape " {" regs            \
    "}, " operands ", p, 1, 1" tail ";\n}\n"

/* 64 x 64; the rows of both operands are contiguous in k. */
__device__ static inline void sl_wgmma_n64_f16(float (&d)[32], uint64_t a, uint64_t b, bool add)
{
    asm volatile(SL_WGMMA_TEXT("m64n64k16.f32.f16.f16", SL_REGS_32, "%32, %33", "%34", ", 0, 0")
                 : SL_OUT_32(d)
                 : "l"(a), "l"(b), "r"((int)add));
}

__device__ static inline void sl_wgmma_n64_bf16(float (&d)[32], uint64_t a, uint64_t b, bool add)
{
    asm volatile(SL_WGMMA_TEXT("m64n64k16.f32.bf16.bf16", SL_REGS_32, "%32, %33", "%34", ", 0, 0")
                 : SL_OUT_32(d)
                 : "l"(a), "l"(b), "r"((int)add));
}

/* 64 x 128; the rows of both operands are contiguous in k. */
__device__ static inline void sl_wgmma_n128_bf16(float (&d)[64], uint64_t a, uint64_t b, bool add)
{
    asm volatile(SL_WGMMA_TEXT("m64n128k16.f32.bf16.bf16", SL_REGS_64, "%64, %65", "%66", ", 0, 0")
                 : SL_OUT_64(d)
                 : "l"(a), "l"(b), "r"((int)add));
}

__device__ static inline void sl_wgmma_n128_e4m3(float (&d)[64], uint64_t a, uint64_t b, bool add)
{
    asm volatile(SL_WGMMA_TEXT("m64n128k32.f32.e4m3.e4m3", SL_REGS_64, "%64, %65", "%66", "")
                 : SL_OUT_64(d)
                 : "l"(a), "l"(b), "r"((int)add));
}

/* 64 x 128; the rows of b are contiguous in its outputs (sl_desc_mn). */
__device__ static inline void sl_wgmma_n128_f16_mn(float (&d)[64], uint64_t a, uint64_t b, bool add)
{
    asm volatile(SL_WGMMA_TEXT("m64n128k16.f32.f16.f16", SL_REGS_64, "%64, %65", "%66", ", 0, 1")
                 : SL_OUT_64(d)
                 : "l"(a), "l"(b), "r"((int)add));
}

__device__ static inline void sl_wgmma_n128_bf16_mn(float (&d)[64], uint64_t a, uint64_t b, bool add)
{
    asm volatile(SL_WGMMA_TEXT("m64n128k16.f32.bf16.bf16", SL_REGS_64, "%64, %65", "%66", ", 0, 1")
                 : SL_OUT_64(d)
                 : "l"(a), "l"(b), "r"((int)add));
}

/* 64 x 64 and 64 x 128; a is in registers, the rows of b are contiguous in its outputs (sl_desc_mn). */
__device__ static inline void sl_wgmma_bf16_mn(float (&d)[32], const uint32_t *a, uint64_t b, bool add)
{
    asm volatile(
        SL_WGMMA_TEXT("m64n64k16.f32.bf16.bf16", SL_REGS_32, "{%32, %33, %34, %35}, %36", "%37", ", 1")
        : SL_OUT_32(d)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)add));
}

__device__ static inline void sl_wgmma_bf16_mn(float (&d)[64], const uint32_t *a, uint64_t b, bool add)
{
    asm volatile(
        SL_WGMMA_TEXT("m64n128k16.f32.bf16.bf16", SL_REGS_64, "{%64, %65, %66, %67}, %68", "%69", ", 1")
        : SL_OUT_64(d)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)add));
}

/* 64 x 32 and 64 x 64; a is in registers. */
__device__ static inline void sl_wgmma_e4m3(float (&d)[16], const uint32_t *a, uint64_t b, bool add)
{
    asm volatile(SL_WGMMA_TEXT("m64n32k32.f32.e4m3.e4m3", SL_REGS_16, "{%16, %17, %18, %19}, %20", "%21", "")
                 : SL_OUT_16(d, 0)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)add));
}

__device__ static inline void sl_wgmma_e4m3(float (&d)[32], const uint32_t *a, uint64_t b, bool add)
{
    asm volatile(SL_WGMMA_TEXT("m64n64k32.f32.e4m3.e4m3", SL_REGS_32, "{%32, %33, %34, %35}, %36", "%37", "")
                 : SL_OUT_32(d)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)add));
}

/* 64 x 32; a is in registers, the rows of b are contiguous in k. */
__device__ static inline void sl_wgmma_bf16(float (&d)[16], const uint32_t *a, uint64_t b, bool add)
{
    asm volatile(
        SL_WGMMA_TEXT("m64n32k16.f32.bf16.bf16", SL_REGS_16, "{%16, %17, %18, %19}, %20", "%21", ", 0")
        : SL_OUT_16(d, 0)
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)add));
}

#undef SL_WGMMA_TEXT
#undef SL_REGS_64
#undef SL_REGS_32
#undef SL_REGS_16
#undef SL_OUT_64
#undef SL_OUT_32
#undef SL_OUT_16

/* Copies a box of a five-dimensional map; the barrier counts its bytes. */
__device__ static inline void sl_copy_box5(uint32_t to, const CUtensorMap *map, int c, int slot, int head,
                                           int side, int block, uint32_t bar)
{
    asm volatile(
        "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, "
        "{%2, %3, %4, %5, %6}], [%7];" ::"r"(to),
        "l"(map), "r"(c), "r"(slot), "r"(head), "r"(side), "r"(block), "r"(bar)
        : "memory");
}

/* Arrives at a named barrier without waiting. */
__device__ static inline void sl_bar_arrive(int id, int threads)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/* Gives other warps a turn. */
__device__ static inline void sl_yield()
{
    asm volatile("nanosleep.u32 0;" ::: "memory");
}
#endif

#include "kernels/cuda/ptx_warp.cuh"

#endif
