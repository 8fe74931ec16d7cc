/*
 * Arrays of the host that are copied to a device and kept there: the descriptors of a layer's experts, and what is made of them
 * (their tensor maps). An array is found by its address and compared by its contents, so a changed array is sent again.
 *
 * Two promises, for which the device is an interface, so that tests can make it fail. After SL_OK the device has what the
 * host has, also when sending or making failed before. And memory that was handed out stays where it is until the table is
 * destroyed, because graphs name it.
 *
 * Ownership: the table owns the memory on the device and a copy of what it sent. Threads: that of the backend.
 */
#ifndef SL_KERNELS_SENT_H
#define SL_KERNELS_SENT_H

#include "base/status.h"

#include <stdbool.h>

typedef struct sl_sent sl_sent;

/* The device. */
typedef struct sl_sent_device {
    void *ctx;
    sl_status (*alloc)(void *ctx, size_t bytes, void **out, sl_err *err);
    void (*free)(void *ctx, void *device);
    /* Complete when it returns; no work that is in flight reads what was there. */
    sl_status (*send)(void *ctx, void *device, const void *host, size_t bytes, sl_err *err);
} sl_sent_device;

/* NULL: no memory. */
sl_sent *sl_sent_create(const sl_sent_device *device);
void sl_sent_destroy(sl_sent *t);

/* *out: the array on the device. frozen: nothing may be sent now, as inside a capture; SL_ERR_UNSUPPORTED if it would be. */
sl_status sl_sent_array(sl_sent *t, const void *host, size_t bytes, bool frozen, const void **out,
                        sl_err *err);

/* Makes `bytes` of host memory from the array; an error is that of the call that wanted it. */
typedef sl_status (*sl_sent_make)(void *ctx, const void *host, void *made, size_t bytes, sl_err *err);
/* *out: what make() makes of the array, on the device; made again after the array has changed. made_bytes: a multiple of 64, the
 * same for an array in every call. */
sl_status sl_sent_made(sl_sent *t, const void *host, size_t bytes, size_t made_bytes, sl_sent_make make,
                       void *ctx, bool frozen, const void **out, sl_err *err);

#endif
