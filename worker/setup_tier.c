/* The disk tier of a decode worker. See setup_impl.h. Every refusal names the key that has to be changed. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "kvstore/cascade.h"
#include "worker/setup_impl.h"

/* The worker's own directory in kvstore.disk.path, which exists; it is made if it does not exist. */
static sl_status own_directory(const sl_setup *s, char *out, size_t cap, sl_err *err)
{
    const char *path = s->cfg->kvstore.disk.path;
    struct stat st;
    int n = s->launch->index < 0 ? snprintf(out, cap, "%s/decode", path)
                                 : snprintf(out, cap, "%s/decode-%d", path, s->launch->index);
    if (n >= (int)cap)
        return sl_fail(err, SL_ERR_INVALID, "kvstore.disk.path: is too long");
    if (stat(path, &st) != 0)
        return sl_fail(err, SL_ERR_IO, "kvstore.disk.path: %.300s: %s", path, strerror(errno));
    if (!S_ISDIR(st.st_mode))
        return sl_fail(err, SL_ERR_INVALID, "kvstore.disk.path: %.300s is not a directory", path);
    if (mkdir(out, 0700) != 0 && errno != EEXIST)
        return sl_fail(err, SL_ERR_IO, "kvstore.disk.path: %.300s: %s", out, strerror(errno));
    return SL_OK;
}

sl_status sl_setup_tier(sl_setup *s, sl_err *err)
{
    const sl_config *c = s->cfg;
    const sl_geometry *g = sl_arena_geometry(s->p->arena);
    char directory[SL_CFG_PATH_BYTES];
    if (s->role != SL_ROLE_DECODE || !c->kvstore.disk.path[0])
        return SL_OK;
    SL_TRY(own_directory(s, directory, sizeof directory, err));
    sl_tier_opts o = {.capacity_bytes = c->kvstore.disk.bytes,
                      .fingerprint = g->fingerprint,
                      .directory = directory,
                      .segment_bytes = c->kvstore.disk.segment_bytes,
                      .second_use = c->kvstore.disk.second_use};
    if (!sl_cascade_page_format(g, &o.page_bytes, &o.format))
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    sl_status st = sl_tier_open(&sl_tier_disk_ops, &o, &s->p->tier, err);
    bool size = st == SL_ERR_EXHAUSTED || st == SL_ERR_INVALID;
    return st == SL_OK ? SL_OK : sl_fail_in(err, st, size ? "kvstore.disk.bytes" : "kvstore.disk.path");
}
