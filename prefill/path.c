/* See path.h: the list of paths, and the choice of one. */
#include "prefill/path.h"

#include <stdio.h>
#include <stdlib.h>

#include "prefill/prefill_impl.h"

/* The order is that in which `auto` tries the paths. */
static const sl_ship_path *const paths[] = {&sl_path_direct, &sl_path_gpu, &sl_path_staging};

static bool wanted(const sl_prefill *p, const sl_ship_path *path)
{
    return sl_shipping_allows(p->o.shipping, path->way);
}

bool sl_path_needs_process(const sl_prefill *p)
{
    for (size_t i = 0; i < SL_COUNT(paths); i++) {
        if (wanted(p, paths[i]) && paths[i]->needs_process)
            return true;
    }
    return false;
}

sl_status sl_paths_prepare(sl_prefill *p, sl_err *err)
{
    for (size_t i = 0; i < SL_COUNT(paths); i++) {
        if (wanted(p, paths[i]) && paths[i]->prepare)
            SL_TRY(paths[i]->prepare(p, err));
    }
    return SL_OK;
}

sl_status sl_path_find_device_layers(sl_prefill *p, sl_err *err)
{
    const sl_runner *runner = p->o.role.runner;
    if (!runner->device_layers || p->dev_layers)
        return SL_OK;
    p->dev_layers = calloc((size_t)runner->n_layers, sizeof *p->dev_layers);
    if (!p->dev_layers)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    runner->device_layers(runner->impl, p->dev_layers);
    return SL_OK;
}

void sl_paths_close(sl_prefill *p)
{
    sl_copies_destroy(p);
    free(p->dev_layers);
    free(p->dev_memory);
}

/* why: the reason why an earlier path was not possible, or "". */
static void take(sl_prefill *p, sl_decode_peer *d, const sl_ship_path *path, const char *why)
{
    char named[64];
    snprintf(named, sizeof named, "cluster.shipping is %s", path->way->name);
    d->path = path;
    sl_log(SL_LOG_INFO, "prefill", "shipping", "path=%s address=%s worker_id=%u reason=\"%s\"",
           path->way->name, d->remote.address, d->remote.worker_id,
           *why           ? why
           : path->reason ? path->reason
                          : named);
    if (path->opened)
        path->opened(p, d);
}

sl_status sl_path_choose(sl_prefill *p, sl_decode_peer *d, const sl_msg_peer_welcome *w, sl_err *err)
{
    const char *name = "auto";
    sl_err why = {0};
    for (size_t i = 0; i < SL_COUNT(paths); i++) {
        if (!wanted(p, paths[i]))
            continue;
        sl_err no = {0};
        if (paths[i]->open(p, d, w, &no) == SL_OK) {
            take(p, d, paths[i], why.text);
            return SL_OK;
        }
        why = no;
        name = paths[i]->way->name;
    }
    return sl_fail(err, SL_ERR_REFUSED, "cluster.shipping is %s, which is not possible: %s", name, why.text);
}
