/*
 * Where an algorithm finds the keys of one request in one layer: in the host pages if the request's rows are not all on the
 * device, else on the device. Both hold the same bytes. For ops that read keys of tokens before the present step
 * (kernels/clusters.h). Pure.
 */
#ifndef SL_SPARSE_KEYS_H
#define SL_SPARSE_KEYS_H

#include "kernels/clusters.h"
#include "sparse/algorithm.h"

/* In update: the tokens of the run and those before it. */
sl_key_source sl_algo_keys_of_run(const sl_cache_dims *d, const sl_algo_call *call, const sl_algo_run *run);
/* In prompt: the cached tokens. pages: a copy of p->host_pages in memory that the device reads. */
sl_key_source sl_algo_keys_of_prompt(const sl_cache_dims *d, const sl_algo_prompt *p, const int32_t *pages);

#endif
