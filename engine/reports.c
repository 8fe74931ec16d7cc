/* See reports.h. */
#include "engine/reports.h"

#include <stdlib.h>

struct sl_reports {
    sl_backend *be;
    const sl_step_hooks *hooks;
    sl_event **events; /* [n_layers]; NULL: ops are complete when run returns */
    int32_t n_layers;
    int32_t done; /* hooks called for layers below this */
    int32_t run;  /* layers that were enqueued */
};

sl_status sl_reports_create(sl_backend *be, int32_t n_layers, sl_reports **out, sl_err *err)
{
    sl_reports *r = *out = calloc(1, sizeof *r);
    if (!r)
        return sl_fail(err, SL_ERR_NO_MEMORY, "engine: out of memory");
    r->be = be, r->n_layers = n_layers;
    if (!(sl_backend_caps(be) & SL_BE_ASYNC))
        return SL_OK;
    r->events = calloc((size_t)n_layers, sizeof *r->events);
    if (!r->events)
        return sl_fail(err, SL_ERR_NO_MEMORY, "engine: out of memory");
    for (int32_t l = 0; l < n_layers; l++)
        SL_TRY(sl_event_create(be, &r->events[l], err));
    return SL_OK;
}

void sl_reports_destroy(sl_reports *r)
{
    if (!r)
        return;
    for (int32_t l = 0; r->events && l < r->n_layers; l++)
        sl_event_destroy(r->events[l]);
    free(r->events);
    free(r);
}

void sl_reports_hooks(sl_reports *r, const sl_step_hooks *hooks)
{
    r->hooks = hooks && hooks->layer_done ? hooks : NULL;
}

void sl_reports_begin(sl_reports *r)
{
    r->done = r->run = 0;
}

/* With `all` it waits until every layer that was enqueued is reported. */
static sl_status report(sl_reports *r, bool all, sl_err *err)
{
    while (r->hooks && r->done < r->run) {
        sl_status st = r->events ? sl_event_query(r->events[r->done]) : SL_OK;
        if (st == SL_INPROGRESS && !all)
            return SL_OK;
        if (st == SL_INPROGRESS)
            continue;
        if (st != SL_OK)
            return sl_fail(err, st, "layer %d did not complete", r->done);
        r->hooks->layer_done(r->hooks->ctx, r->done++);
    }
    return SL_OK;
}

sl_status sl_reports_enqueued(sl_reports *r, int32_t n, sl_err *err)
{
    for (; r->run < n; r->run++)
        if (r->events && r->hooks)
            SL_TRY(sl_event_record(r->be, r->events[r->run], err));
    return report(r, false, err);
}

sl_status sl_reports_finish(sl_reports *r, sl_err *err)
{
    return report(r, true, err);
}
