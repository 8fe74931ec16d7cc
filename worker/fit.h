/*
 * The error when a checkpoint or its cache does not fit on the device: how much memory is missing, and what would fit.
 * Pure functions of numbers, so that every message can be tested without a device.
 */
#ifndef SL_WORKER_FIT_H
#define SL_WORKER_FIT_H

#include "engine/plan.h"

/* SL_ERR_DEVICE_MEMORY when weights of this size do not fit into free_bytes. what: whose weights they are, as "the
 * checkpoint's weights". stored: the type of most of them. */
sl_status sl_setup_fit_weights(const char *what, uint64_t weight_bytes, sl_dtype stored, uint64_t free_bytes,
                               uint64_t total_bytes, const char *device, sl_err *err);

/*
 * Calls sl_plan_pools(). After a failure err says how much memory is missing, and the largest number of requests and
 * the longest context that fit. role_key: the key that limits the requests, such as "decode.max_batch".
 */
sl_status sl_setup_fit_pools(const sl_plan *p, sl_residency mode, int32_t max_seqs, int32_t max_context,
                             const char *role_key, sl_engine_opts *out, sl_err *err);

#endif
