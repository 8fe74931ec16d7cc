/*
 * The storage tiers of a decode worker, in the order in which they are asked: the cheapest to read first. See setup_impl.h.
 * Every refusal names the key that has to be changed. A new tier needs a function here, in its place in the list.
 */
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

static sl_cascade_policy policy_of(sl_cfg_write write)
{
    static const sl_cascade_policy of[] = {[SL_CFG_WRITE_THROUGH] = SL_CASCADE_WRITE_THROUGH,
                                           [SL_CFG_WRITE_SELECTIVE] = SL_CASCADE_WRITE_SELECTIVE,
                                           [SL_CFG_WRITE_BACK] = SL_CASCADE_WRITE_BACK};
    return of[write];
}

static sl_status open_disk(const sl_setup *s, sl_tier_opts *o, sl_cascade_tier *out, sl_err *err)
{
    const sl_config *c = s->cfg;
    char directory[SL_CFG_PATH_BYTES];
    if (!c->kvstore.disk.path[0])
        return SL_OK;
    SL_TRY(own_directory(s, directory, sizeof directory, err));
    o->capacity_bytes = c->kvstore.disk.bytes;
    o->directory = directory;
    o->segment_bytes = c->kvstore.disk.segment_bytes;
    o->second_use = c->kvstore.disk.second_use;
    out->policy = policy_of(c->kvstore.disk.write);
    out->load_timeout_ms = (uint32_t)c->kvstore.disk.load_timeout_ms;
    sl_status st = sl_tier_open(&sl_tier_disk_ops, o, &out->tier, err);
    bool size = st == SL_ERR_EXHAUSTED || st == SL_ERR_INVALID;
    return st == SL_OK ? SL_OK : sl_fail_in(err, st, size ? "kvstore.disk.bytes" : "kvstore.disk.path");
}

/* Opens one tier with options of which page size, format, fingerprint and listener are set. out->tier stays NULL when the
 * configuration has no such tier. */
typedef sl_status open_fn(const sl_setup *s, sl_tier_opts *o, sl_cascade_tier *out, sl_err *err);

static open_fn *const list[] = {open_disk};
_Static_assert(SL_COUNT(list) <= SL_CASCADE_TIERS, "more tiers than a cascade can have");

sl_status sl_setup_tiers(sl_setup *s, sl_err *err)
{
    const sl_geometry *g = sl_arena_geometry(s->p->arena);
    for (size_t i = 0; i < SL_COUNT(list) && s->role == SL_ROLE_DECODE; i++) {
        sl_tier_opts o = {.fingerprint = g->fingerprint};
        sl_cascade_tier t = {.listener = sl_cascade_listen(&o)};
        if (!t.listener || !sl_cascade_page_format(g, &o.page_bytes, &o.format)) {
            sl_cascade_tier_close(&t);
            return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
        }
        sl_status st = list[i](s, &o, &t, err);
        if (t.tier)
            s->p->tiers[s->p->n_tiers++] = t;
        else
            sl_cascade_tier_close(&t);
        SL_TRY(st);
    }
    return SL_OK;
}
