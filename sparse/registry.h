/*
 * Inside sparse/: algorithms that are added to the registry while the process starts (sparse/plugin.h). One thread.
 */
#ifndef SL_SPARSE_REGISTRY_H
#define SL_SPARSE_REGISTRY_H

#include "sparse/algorithm.h"

/* object: a hash of the bytes of its object, not 0. SL_ERR_TOO_LARGE: the registry is full. */
sl_status sl_registry_add(const sl_algo_desc *a, uint64_t object, sl_err *err);

#endif
