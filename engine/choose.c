/* See choose.h: the rules of that comment, and the registries for every name other than auto. */
#include "engine/choose.h"

#include <string.h>

#include "kernels/backend.h"

static bool is_auto(const char *name)
{
    return !name || strcmp(name, "auto") == 0;
}

sl_status sl_choose_policy(const char *name, unsigned caps, sl_evict_policy *out, sl_err *err)
{
    if (is_auto(name)) {
        *out = caps & SL_BE_UNIFIED ? SL_EVICT_LRU : SL_EVICT_CLOCK;
        return SL_OK;
    }
    const sl_evict_policy_desc *d = sl_evict_policy_find(name);
    if (!d)
        return sl_fail_unknown(err, "victim policy", name, sl_evict_policy_names());
    *out = d->policy;
    return SL_OK;
}

sl_status sl_choose_layout(const char *name, unsigned caps, sl_layout *out, sl_err *err)
{
    if (is_auto(name)) {
        *out = caps & SL_BE_UNIFIED ? SL_LAYOUT_PAGE_FIRST : SL_LAYOUT_LAYER_FIRST;
        return SL_OK;
    }
    const sl_layout_desc *d = sl_layout_find(name);
    if (!d)
        return sl_fail_unknown(err, "layout", name, sl_layout_names());
    *out = d->layout;
    return SL_OK;
}

sl_status sl_choose_algorithm(const char *name, const sl_model_config *cfg, const sl_algo_desc **out,
                              sl_err *err)
{
    if (is_auto(name)) {
        *out = cfg->index_topk > 0 ? &sl_algo_dsa : &sl_algo_dense;
        return SL_OK;
    }
    const sl_algo_desc *found = sl_algo_find(name);
    if (!found)
        return sl_fail_unknown(err, "sparse algorithm", name, sl_algo_names());
    *out = found;
    return SL_OK;
}
