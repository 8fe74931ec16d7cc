/* See launch.cuh. */
#include "kernels/cuda/launch.h"

#include <nvtx3/nvToolsExt.h>

enum { YZ_MOST = 65535, SMALL = 4096 };

static sl_status failed(const sl_cuda *cu, const char *name, const char *why, sl_err *err, sl_status st)
{
    return sl_fail(err, st, "cuda: %s: kernel %s: %s", sl_op_name(cu->op), name, why);
}

sl_status sl_cuda_launch_begin(sl_cuda *cu, const char *name, const void *kernel, unsigned x, unsigned y,
                               unsigned z, size_t smem, sl_err *err)
{
    if (x > INT32_MAX)
        return failed(cu, name, "more than 2147483647 blocks", err, SL_ERR_UNSUPPORTED);
    if (y > YZ_MOST || z > YZ_MOST)
        return failed(cu, name, "more than 65535 blocks in y or z", err, SL_ERR_UNSUPPORTED);
    if (smem > cu->gpu.smem)
        return failed(cu, name, "more shared memory than a block of this device has", err,
                      SL_ERR_UNSUPPORTED);
    if (smem > SMALL) {
        cudaError_t e = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)smem);
        if (e != cudaSuccess)
            return sl_cuda_launched(cu, name, e, err);
    }
    nvtxRangePushA(sl_op_name(cu->op));
    return SL_OK;
}

sl_status sl_cuda_launched(sl_cuda *cu, const char *name, cudaError_t e, sl_err *err)
{
    if (e == cudaSuccess)
        return SL_OK;
    (void)cudaGetLastError();
    return failed(cu, name, cudaGetErrorString(e), err,
                  e == cudaErrorMemoryAllocation ? SL_ERR_DEVICE_MEMORY : SL_ERR_DEVICE);
}

sl_status sl_cuda_resident(sl_cuda *cu, const char *name, const void *kernel, int threads, size_t smem,
                           int blocks, sl_err *err)
{
    int each = 0;

    if (smem > SMALL)
        SL_TRY(sl_cuda_launched(
            cu, name, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)smem),
            err));
    SL_TRY(sl_cuda_launched(
        cu, name, cudaOccupancyMaxActiveBlocksPerMultiprocessor(&each, kernel, threads, smem), err));
    if ((int64_t)each * cu->gpu.sms >= blocks)
        return SL_OK;
    return sl_fail(
        err, SL_ERR_UNSUPPORTED,
        "cuda: %s: kernel %s: %d blocks of %d threads wait for each other, and this device runs %d at once",
        sl_op_name(cu->op), name, blocks, threads, each * cu->gpu.sms);
}

sl_status sl_cuda_launch_end(sl_cuda *cu, const char *name, cudaError_t e, sl_err *err)
{
    nvtxRangePop();
    return sl_cuda_launched(cu, name, e, err);
}
