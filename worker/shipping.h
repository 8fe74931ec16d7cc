/*
 * Shipping: the registry of cluster.shipping, the ways in which rows reach the store of a decode worker. Both roles
 * read it: the prefill worker chooses a path for each connection (prefill/path.h), the decode worker decides whether
 * writers of its host may write into its store. The code of a path is in prefill/path_*.c; this file has only the
 * properties that more than one room must know.
 *
 * The configuration names one entry, or says "auto". A NULL pointer stands for "auto", which allows every entry that is
 * `in_auto`. The table is constant; any thread.
 */
#ifndef SL_WORKER_SHIPPING_H
#define SL_WORKER_SHIPPING_H

#include "base/status.h"

typedef struct sl_shipping {
    const char *name, *doc;
    bool in_auto;
    bool shares_store; /* the decode worker's store is shared memory that writers of its host may map */
    bool from_device;  /* the transport thread of the prefill worker puts from device memory */
} sl_shipping;

extern const sl_shipping sl_shipping_staging, sl_shipping_gpu, sl_shipping_direct;

/* NULL for an unknown name, and for "auto". */
const sl_shipping *sl_shipping_find(const char *name);
/* The names of the registry, ends with NULL. */
const char *const *sl_shipping_names(void);
/* *out: the entry that the configuration names; NULL: auto. SL_ERR_NOT_FOUND for another name. */
sl_status sl_shipping_choose(const char *name, const sl_shipping **out, sl_err *err);
/* Whether `way` may be used if the configuration chose `chosen` (NULL: auto). */
bool sl_shipping_allows(const sl_shipping *chosen, const sl_shipping *way);
/* Whether a decode worker's store must be shared memory. */
bool sl_shipping_shares_store(const sl_shipping *chosen);

#endif
