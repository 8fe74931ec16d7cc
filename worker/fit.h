/*
 * The error when a checkpoint or its cache does not fit on the device: how much memory is missing, and what would fit.
 * Pure functions of numbers, so that every message can be tested without a device.
 */
#ifndef SL_WORKER_FIT_H
#define SL_WORKER_FIT_H

#include "engine/plan.h"

/* Bytes of a checkpoint's weights: the sizes of its safetensors files. 0: there are none. */
uint64_t sl_fit_file_bytes(const char *dir);

/* SL_ERR_DEVICE_MEMORY when weights of that size cannot be loaded into free_bytes. stored: their type. */
sl_status sl_fit_weights(uint64_t weight_bytes, sl_dtype stored, uint64_t free_bytes, uint64_t total_bytes,
                         const char *device, sl_err *err);

/* As sl_plan_pools; when that fails the error says what is missing, and the most requests and the longest
 * context that the same memory holds. role_key: the key that bounds requests, "decode.max_batch". */
sl_status sl_fit_pools(const sl_plan *p, sl_residency mode, int32_t max_seqs, int32_t max_context,
                       const char *role_key, sl_engine_opts *out, sl_err *err);

#endif
