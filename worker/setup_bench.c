/* What benchmarks replace in a worker (section bench of the configuration). See setup_impl.h. */
#include <string.h>

#include "base/drawn.h"
#include "sparse/profile.h"
#include "worker/setup_impl.h"

enum { SEED = 20261 };

static sl_status check_draw(const sl_setup *s, const sl_plan *plan, int32_t span, sl_err *err)
{
    if (span < plan->width)
        return sl_fail(err, SL_ERR_INVALID,
                       "bench.cached_tokens: %d tokens are fewer than the %d that bench.selection draws",
                       span, plan->width);
    if (s->cfg->bench.cached_tokens > s->p->engine_opts.max_context)
        return sl_fail(err, SL_ERR_INVALID, "bench.cached_tokens: %d tokens exceed the context of %d",
                       s->cfg->bench.cached_tokens, s->p->engine_opts.max_context);
    return SL_OK;
}

sl_status sl_setup_check_bench(const sl_setup *s, sl_err *err)
{
    if (!s->cfg->bench.cached_tokens || (s->role == SL_ROLE_BOTH && s->launch->group_ranks <= 1))
        return SL_OK;
    return sl_fail(
        err, SL_ERR_UNSUPPORTED,
        "bench.cached_tokens: only workers of role both that belong to no group fill the pages of prompts");
}

sl_status sl_setup_draw(sl_setup *s, const sl_plan *plan, sl_err *err)
{
    sl_drawn d;
    uint32_t keep[SL_MAX_LAYERS];
    sl_parts *p = s->p;
    int32_t layers = s->mc.n_layers;
    int32_t span = s->cfg->bench.cached_tokens - s->cfg->bench.cached_tokens % SL_PAGE_TOKENS;
    SL_TRY(sl_drawn_parse(s->cfg->bench.selection, &d, err));
    int profile = sl_coord_profile_find(d.profile);
    p->engine_opts.zero_states = span > 0; /* those after prompts that count as computed */
    if (strcmp(d.profile, "off") == 0)
        return SL_OK;
    if (profile < 0)
        return sl_fail_unknown(err, "bench.selection", d.profile, sl_coord_profile_names());
    SL_TRY(check_draw(s, plan, span, err));
    for (int32_t l = 0; l < layers; l++)
        keep[l] = sl_coord_profile_keep((sl_profile)profile, l, layers);
    SL_TRY(sl_be_alloc(p->backend, SL_MEM_DEVICE, sizeof *keep * (size_t)layers, (void **)&p->drawn, err));
    SL_TRY(sl_be_copy(p->backend, p->drawn, keep, sizeof *keep * (size_t)layers, err));
    SL_TRY(sl_be_sync(p->backend, err));
    p->draw = (sl_coord_draw){.keep = p->drawn, .span_tokens = span, .seed = SEED};
    p->engine_opts.draw = &p->draw;
    sl_log(SL_LOG_WARN, s->comp, "drawn",
           "profile=%s tokens=%d reason=\"bench.selection replaces what the model selects\"", d.profile,
           span);
    return SL_OK;
}
