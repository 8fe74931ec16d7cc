/*
 * The unit of cache: what a layer keeps for every cached token, and the names under which formats are chosen.
 *
 * Registries of the choices that this room owns: row formats, index formats and victim policies. A configuration
 * carries the name; whoever sets something up resolves it here. Each find returns NULL for an unknown name
 * (sl_fail_unknown() of base/status.h makes the message); each names list ends with NULL and is in the order of the
 * enumeration.
 *
 * Everything here is constant or pure, any thread.
 */
#ifndef SL_KERNELS_CACHE_H
#define SL_KERNELS_CACHE_H

#include "kernels/params.h"

typedef struct sl_row_format_desc {
    const char *name, *description;
    sl_row_format format;
} sl_row_format_desc;

const sl_row_format_desc *sl_row_format_find(const char *name);
const char *const *sl_row_format_names(void);
/* "?" for a number that is no format. */
const char *sl_row_format_name(sl_row_format f);

typedef struct sl_index_format_desc {
    const char *name, *description;
    sl_index_format format;
} sl_index_format_desc;

const sl_index_format_desc *sl_index_format_find(const char *name);
const char *const *sl_index_format_names(void);
const char *sl_index_format_name(sl_index_format f);

/* Which hot row makes room for a missing one (SL_OP_RESOLVE). */
typedef struct sl_evict_policy_desc {
    const char *name, *description;
    sl_evict_policy policy;
} sl_evict_policy_desc;

const sl_evict_policy_desc *sl_evict_policy_find(const char *name);
const char *const *sl_evict_policy_names(void);
const char *sl_evict_policy_name(sl_evict_policy p);

#endif
