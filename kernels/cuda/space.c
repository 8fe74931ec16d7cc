/*
 * Spaces of a GPU (kernels/space.h): reserved virtual addresses, and physical memory in units of the device's granularity. The
 * functions are the driver's; they are asked for by name, so that no program needs the driver's library to start.
 */
#include "kernels/space.h"

#include <cuda.h>
#include <pthread.h>
#include <string.h>

#include "kernels/cuda/instance.h"

#define UNIT ((size_t)2 << 20)

/* The driver's functions, with their types in cuda.h. */
#define FUNCTIONS(X)                                                                                         \
    X(CUresult, cuMemAddressReserve, (CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long))       \
    X(CUresult, cuMemAddressFree, (CUdeviceptr, size_t))                                                     \
    X(CUresult, cuMemCreate,                                                                                 \
      (CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *, unsigned long long))             \
    X(CUresult, cuMemRelease, (CUmemGenericAllocationHandle))                                                \
    X(CUresult, cuMemMap, (CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long))   \
    X(CUresult, cuMemUnmap, (CUdeviceptr, size_t))                                                           \
    X(CUresult, cuMemSetAccess, (CUdeviceptr, size_t, const CUmemAccessDesc *, size_t))                      \
    X(CUresult, cuMemGetAllocationGranularity,                                                               \
      (size_t *, const CUmemAllocationProp *, CUmemAllocationGranularity_flags))

typedef struct driver {
#define X(type, name, arguments) type(*name) arguments;
    FUNCTIONS(X)
#undef X
} driver;

static bool find(const char *name, void *out)
{
    enum cudaDriverEntryPointQueryResult found;
    void *fn = NULL;

    if (cudaGetDriverEntryPointByVersion(name, &fn, 12000, cudaEnableDefault, &found) != cudaSuccess ||
        found != cudaDriverEntryPointSuccess || !fn) {
        (void)cudaGetLastError();
        return false;
    }
    memcpy(out, &fn, sizeof fn);
    return true;
}

static driver drv;
static bool loaded; /* all of them were found */

static void load(void)
{
    loaded = true;
#define X(type, name, arguments) loaded = find(#name, &drv.name) && loaded;
    FUNCTIONS(X)
#undef X
}

static bool have_driver(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, load);
    return loaded;
}

static CUmemAllocationProp memory_of(const sl_backend *be)
{
    return (CUmemAllocationProp){
        .type = CU_MEM_ALLOCATION_TYPE_PINNED,
        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = ((const sl_cuda *)be)->device}};
}

static sl_status check(CUresult r, const char *what, sl_err *err)
{
    if (r == CUDA_SUCCESS)
        return SL_OK;
    return sl_fail(err, r == CUDA_ERROR_OUT_OF_MEMORY ? SL_ERR_DEVICE_MEMORY : SL_ERR_DEVICE,
                   "cuda: %s: error %d of the driver", what, (int)r);
}

static size_t unit_bytes(const sl_backend *be)
{
    const CUmemAllocationProp prop = memory_of(be);
    size_t granularity = 0;

    if (!have_driver() || drv.cuMemGetAllocationGranularity(&granularity, &prop,
                                                            CU_MEM_ALLOC_GRANULARITY_MINIMUM) != CUDA_SUCCESS)
        return 0;
    return granularity > 0 && UNIT % granularity == 0 ? UNIT : 0;
}

static sl_status reserve(sl_backend *be, size_t bytes, uint8_t **out, sl_err *err)
{
    CUdeviceptr at = 0;

    (void)be;
    SL_TRY(check(drv.cuMemAddressReserve(&at, bytes, UNIT, 0, 0), "addresses of a space", err));
    *out = (uint8_t *)(uintptr_t)at;
    return SL_OK;
}

static void release(sl_backend *be, uint8_t *base, size_t bytes)
{
    (void)be;
    (void)drv.cuMemAddressFree((CUdeviceptr)(uintptr_t)base, bytes);
}

static sl_status create(sl_backend *be, sl_mem_unit *out, sl_err *err)
{
    const CUmemAllocationProp prop = memory_of(be);
    CUmemGenericAllocationHandle h = 0;

    SL_TRY(check(drv.cuMemCreate(&h, UNIT, &prop, 0), "a unit of device memory", err));
    *out = h;
    return SL_OK;
}

static void destroy(sl_backend *be, sl_mem_unit unit)
{
    (void)be;
    (void)drv.cuMemRelease(unit);
}

static sl_status unmap(sl_backend *be, uint8_t *at, int32_t n, sl_err *err)
{
    (void)be;
    return check(drv.cuMemUnmap((CUdeviceptr)(uintptr_t)at, (size_t)n * UNIT), "units are taken back", err);
}

static sl_status map(sl_backend *be, uint8_t *at, const sl_mem_unit *units, int32_t n, sl_err *err)
{
    const CUmemAccessDesc access = {.location = memory_of(be).location,
                                    .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    const CUdeviceptr first = (CUdeviceptr)(uintptr_t)at;
    sl_status st = SL_OK;
    int32_t done = 0;

    while (done < n && st == SL_OK) {
        st = check(drv.cuMemMap(first + (size_t)done * UNIT, UNIT, 0, units[done], 0), "a unit is mapped",
                   err);
        done += st == SL_OK;
    }
    if (st == SL_OK)
        st = check(drv.cuMemSetAccess(first, (size_t)n * UNIT, &access, 1), "access to units", err);
    if (st != SL_OK && done > 0)
        (void)unmap(be, at, done, NULL);
    return st;
}

static sl_status settle(sl_backend *be, sl_err *err)
{
    sl_cuda *cu = sl_cuda_of(be);

    if (cu->group) /* another rank may never come */
        return cu->group->wait(cu->group->ctx, err);
    SL_TRY(SL_CU(cudaStreamSynchronize(cu->side_stream), err));
    return SL_CU(cudaStreamSynchronize(cu->main_stream), err);
}

const sl_space_desc sl_space_cuda = {.backend = "cuda",
                                     .unit_bytes = unit_bytes,
                                     .reserve = reserve,
                                     .release = release,
                                     .create = create,
                                     .destroy = destroy,
                                     .map = map,
                                     .unmap = unmap,
                                     .settle = settle};
