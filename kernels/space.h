/*
 * Spaces: ranges of device addresses without memory, to which memory is given in units, and from which it is taken back, while the
 * addresses stay what they are. So several pools can lie in spaces that are each as large as all of the memory, and share it by
 * demand, and no kernel has to know: captured graphs and tables hold addresses alone.
 *
 * On the GPU a space is a reservation of virtual addresses and a unit a piece of physical memory (cuMemMap and its relatives); on the
 * CPU a space is a mapping that may not be touched, so an access to an address without memory ends the process.
 *
 * Owns nothing. Threads: as the backend. Lifetime: units are unmapped before they are destroyed, and spaces when nothing is mapped in
 * them; both before the backend.
 */
#ifndef SL_KERNELS_SPACE_H
#define SL_KERNELS_SPACE_H

#include "kernels/backend.h"

typedef uint64_t sl_mem_unit;

/* Bytes of a unit, a power of two; 0: this backend, or its device, has no spaces. */
size_t sl_space_unit(const sl_backend *be);
/* Addresses for `bytes`, rounded up to units; aligned as sl_be_alloc(). SL_ERR_UNSUPPORTED: the backend has no spaces. */
sl_status sl_space_reserve(sl_backend *be, size_t bytes, uint8_t **out, sl_err *err);
void sl_space_release(sl_backend *be, uint8_t *base, size_t bytes);
/* SL_ERR_DEVICE_MEMORY: there is none left. */
sl_status sl_unit_create(sl_backend *be, sl_mem_unit *out, sl_err *err);
void sl_unit_destroy(sl_backend *be, sl_mem_unit unit);
/* Gives the n units at `at` memory, whose contents are undefined; all or nothing. No unit there has memory. */
sl_status sl_space_map(sl_backend *be, uint8_t *at, const sl_mem_unit *units, int32_t n, sl_err *err);
/* Takes it back; nothing that was enqueued uses it any more (sl_space_settle()). */
sl_status sl_space_unmap(sl_backend *be, uint8_t *at, int32_t n, sl_err *err);
/* Waits for everything that was enqueued. Unlike sl_be_sync() it leaves failures that the device has found where they are, for the
 * caller that waits for the step. */
sl_status sl_space_settle(sl_backend *be, sl_err *err);

/* A backend's implementation: one row of the table in space.c. unit_bytes: 0 where the device has none. */
typedef struct sl_space_desc {
    const char *backend;
    size_t (*unit_bytes)(const sl_backend *be);
    sl_status (*reserve)(sl_backend *be, size_t bytes, uint8_t **out, sl_err *err);
    void (*release)(sl_backend *be, uint8_t *base, size_t bytes);
    sl_status (*create)(sl_backend *be, sl_mem_unit *out, sl_err *err);
    void (*destroy)(sl_backend *be, sl_mem_unit unit);
    sl_status (*map)(sl_backend *be, uint8_t *at, const sl_mem_unit *units, int32_t n, sl_err *err);
    sl_status (*unmap)(sl_backend *be, uint8_t *at, int32_t n, sl_err *err);
    sl_status (*settle)(sl_backend *be, sl_err *err);
} sl_space_desc;

extern const sl_space_desc sl_space_cpu;
#ifdef SL_CUDA
extern const sl_space_desc sl_space_cuda;
#endif

#endif
