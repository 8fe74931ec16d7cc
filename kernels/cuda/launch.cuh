/*
 * The one way in which kernels are launched: grid, cluster, early start, shared memory, a name for errors and profilers.
 *
 * An error names the op and the kernel. A grid beyond the limits of the device is refused here and nowhere else: x may have
 * 2^31 - 1 blocks, so the dimension that grows with the tokens of a step is x; y and z have at most 65,535 each, and a
 * launch whose tokens are in another dimension is cut into slices (sl_for_slices()).
 */
#ifndef SL_KERNELS_CUDA_LAUNCH_CUH
#define SL_KERNELS_CUDA_LAUNCH_CUH

#include "kernels/cuda/launch.h"

/* Blocks along x. More than there can be become a number that the launch refuses, instead of one that was cut off. */
static inline unsigned sl_blocks(int64_t n)
{
    return n > INT32_MAX ? UINT32_MAX : (unsigned)n;
}

struct sl_launch {
    dim3 grid;
    int threads;
    size_t smem; /* dynamic shared memory of a block */
    bool
        early; /* may begin while the kernel before it on the stream still runs, where the device can (programmatic stream
                   * serialization): each of its threads calls sl_after_previous() before it touches global memory that
                   * another kernel writes, also before an early return */
    int cluster; /* blocks of a cluster, along x; 0: no clusters */
};

template <typename... P, typename... A>
static inline sl_status sl_cuda_launch(sl_cuda *cu, const char *name, void (*kernel)(P...),
                                       const sl_launch &l, sl_err *err, const A &...args)
{
    cudaLaunchAttribute at[2] = {};
    cudaLaunchConfig_t cfg = {};

    SL_TRY(sl_cuda_launch_begin(cu, name, (const void *)kernel, l.grid.x, l.grid.y, l.grid.z, l.smem, err));
    cfg.gridDim = l.grid, cfg.blockDim = dim3(l.threads), cfg.dynamicSmemBytes = l.smem;
    cfg.stream = cu->stream, cfg.attrs = at;
    if (l.cluster) {
        at[cfg.numAttrs].id = cudaLaunchAttributeClusterDimension;
        at[cfg.numAttrs].val.clusterDim.x = l.cluster;
        at[cfg.numAttrs].val.clusterDim.y = at[cfg.numAttrs].val.clusterDim.z = 1;
        cfg.numAttrs++;
    }
    if (l.early && cu->gpu.early) {
        at[cfg.numAttrs].id = cudaLaunchAttributeProgrammaticStreamSerialization;
        at[cfg.numAttrs++].val.programmaticStreamSerializationAllowed = 1;
    }
    return sl_cuda_launch_end(cu, name, cudaLaunchKernelEx(&cfg, kernel, P(args)...), err);
}

/* SL_LAUNCH(cu, kernel, (sl_launch{grid, threads}), err, arguments...) */
#define SL_LAUNCH(cu, kernel, shape, err, ...)                                                               \
    sl_cuda_launch((cu), #kernel, kernel, shape, (err), __VA_ARGS__)

/* Calls f(first, count) for slices of at most `most` of n items; the first failure ends it. */
template <typename F> static inline sl_status sl_for_slices(int n, int most, F f)
{
    for (int first = 0; first < n; first += most)
        SL_TRY(f(first, n - first < most ? n - first : most));
    return SL_OK;
}
enum { SL_GRID_YZ = 65535 };

#endif
