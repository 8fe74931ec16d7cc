/* See shipping.h. */
#include "worker/shipping.h"

#include <string.h>

const sl_shipping sl_shipping_staging = {.name = "staging",
                                         .doc =
                                             "through the prefill worker's pinned memory and the transport",
                                         .in_auto = true};
const sl_shipping sl_shipping_gpu = {
    .name = "gpu", .doc = "from GPU memory by the transport", .from_device = true};
const sl_shipping sl_shipping_direct = {.name = "direct",
                                        .doc = "written straight into the memory of a store on the same host",
                                        .in_auto = true,
                                        .shares_store = true};

static const sl_shipping *const table[] = {&sl_shipping_staging, &sl_shipping_gpu, &sl_shipping_direct};
static const char *const names[] = {"staging", "gpu", "direct", NULL};

const sl_shipping *sl_shipping_find(const char *name)
{
    for (size_t i = 0; name && i < SL_COUNT(table); i++) {
        if (strcmp(table[i]->name, name) == 0)
            return table[i];
    }
    return NULL;
}

const char *const *sl_shipping_names(void)
{
    return names;
}

sl_status sl_shipping_choose(const char *name, const sl_shipping **out, sl_err *err)
{
    const sl_shipping *found = sl_shipping_find(name);
    if (!found && strcmp(name, "auto") != 0)
        return sl_fail_unknown(err, "cluster.shipping", name, names);
    *out = found;
    return SL_OK;
}

bool sl_shipping_allows(const sl_shipping *chosen, const sl_shipping *way)
{
    return chosen ? chosen == way : way->in_auto;
}

bool sl_shipping_shares_store(const sl_shipping *chosen)
{
    for (size_t i = 0; i < SL_COUNT(table); i++) {
        if (table[i]->shares_store && sl_shipping_allows(chosen, table[i]))
            return true;
    }
    return false;
}
