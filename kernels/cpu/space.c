/*
 * Spaces of the CPU (kernels/space.h): mappings without access and without memory. A unit is only counted by its owner: the
 * system gives pages when they are touched, and takes them back with madvise().
 */
#include "kernels/space.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define LEAST ((size_t)16 << 10)

static size_t bytes_of(int32_t units)
{
    const long page = sysconf(_SC_PAGESIZE);
    return (size_t)units * (page > (long)LEAST ? (size_t)page : LEAST);
}

static size_t unit_bytes(const sl_backend *be)
{
    (void)be;
    return bytes_of(1);
}

static sl_status reserve(sl_backend *be, size_t bytes, uint8_t **out, sl_err *err)
{
    (void)be;
    void *p = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return sl_fail(err, SL_ERR_DEVICE_MEMORY, "cpu backend: no addresses for %zu bytes: %s", bytes,
                       strerror(errno));
    *out = p;
    return SL_OK;
}

static void release(sl_backend *be, uint8_t *base, size_t bytes)
{
    (void)be;
    munmap(base, bytes);
}

static sl_status create(sl_backend *be, sl_mem_unit *out, sl_err *err)
{
    (void)be, (void)err;
    *out = 0;
    return SL_OK;
}

static void destroy(sl_backend *be, sl_mem_unit unit)
{
    (void)be, (void)unit;
}

static sl_status map(sl_backend *be, uint8_t *at, const sl_mem_unit *units, int32_t n, sl_err *err)
{
    (void)be, (void)units;
    if (mprotect(at, bytes_of(n), PROT_READ | PROT_WRITE) != 0)
        return sl_fail(err, SL_ERR_DEVICE_MEMORY, "cpu backend: no memory for %d units: %s", n,
                       strerror(errno));
    return SL_OK;
}

static sl_status unmap(sl_backend *be, uint8_t *at, int32_t n, sl_err *err)
{
    (void)be;
    if (madvise(at, bytes_of(n), MADV_DONTNEED) != 0 || mprotect(at, bytes_of(n), PROT_NONE) != 0)
        return sl_fail(err, SL_ERR_DEVICE, "cpu backend: cannot take %d units back: %s", n, strerror(errno));
    return SL_OK;
}

static sl_status settle(sl_backend *be, sl_err *err)
{
    (void)be, (void)err;
    return SL_OK; /* ops are complete when run returns */
}

const sl_space_desc sl_space_cpu = {.backend = "cpu",
                                    .unit_bytes = unit_bytes,
                                    .reserve = reserve,
                                    .release = release,
                                    .create = create,
                                    .destroy = destroy,
                                    .map = map,
                                    .unmap = unmap,
                                    .settle = settle};
