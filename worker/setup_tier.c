/*
 * The quotas of tenants, and the storage tiers of a decode worker, in the order in which they are asked: the
 * cheapest to read first. See setup_impl.h. Every refusal names the key that has to be changed. A new tier needs a
 * function here, in its place in the list.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "kvstore/cascade.h"
#include "worker/setup_impl.h"

sl_status sl_setup_quota(sl_setup *s, sl_err *err)
{
    const sl_config *c = s->cfg;
    s->p->quota = (sl_quota_opts){.share = c->kvstore.quota.share, .limit = c->kvstore.quota.limit};
    for (int i = 0; i < c->kvstore.quota.tenants.n; i++) {
        sl_status st = sl_quota_add_rule(&s->p->quota, c->kvstore.quota.tenants.v[i], err);
        if (st != SL_OK)
            return sl_fail_in(err, st, "kvstore.quota.tenants");
    }
    s->p->has_quota = sl_role_does(s->role, SL_ROLE_DECODE) &&
                      (s->p->quota.share > 0 || s->p->quota.limit < 1 || s->p->quota.n_rules);
    return SL_OK;
}

/* The worker's own directory in kvstore.disk.path, which exists; it is made if it does not exist. */
static sl_status own_directory(const sl_setup *s, char *out, size_t cap, sl_err *err)
{
    const char *path = s->cfg->kvstore.disk.path;
    struct stat st;
    const char *role = sl_role_name(s->role);
    int n = s->launch->index < 0 ? snprintf(out, cap, "%s/%s", path, role)
                                 : snprintf(out, cap, "%s/%s-%d", path, role, s->launch->index);
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
    o->quota = s->p->has_quota ? &s->p->quota : NULL;
    s->p->disk_ages = sl_worker_ages_find(s->p->metrics, "disk");
    o->aged = sl_worker_ages_add;
    o->aged_ctx = &s->p->disk_ages;
    out->policy = policy_of(c->kvstore.disk.write);
    out->load_timeout_ms = (uint32_t)c->kvstore.disk.load_timeout_ms;
    sl_status st = sl_tier_open(&sl_tier_disk_ops, o, &out->tier, err);
    bool size = st == SL_ERR_EXHAUSTED || st == SL_ERR_INVALID;
    return st == SL_OK ? SL_OK : sl_fail_in(err, st, size ? "kvstore.disk.bytes" : "kvstore.disk.path");
}

/* The tier of this name; the builds of some machines lack one. */
static sl_status find_tier(const char *name, const char *key, const sl_tier_ops **out, sl_err *err)
{
    *out = sl_tier_find(name);
    return *out
               ? SL_OK
               : sl_fail(
                     err, SL_ERR_UNSUPPORTED,
                     "%s: this build has no tier \"%s\", because its library was not there when it was built "
                     "(docs/dependencies.md)",
                     key, name);
}

static sl_status open_redis(const sl_setup *s, sl_tier_opts *o, sl_cascade_tier *out, sl_err *err)
{
    const sl_config *c = s->cfg;
    const sl_tier_ops *ops;
    if (!c->kvstore.redis.address[0])
        return SL_OK;
    SL_TRY(find_tier("redis", "kvstore.redis.address", &ops, err));
    sl_tier_redis_opts r = {.address = c->kvstore.redis.address,
                            .user = c->kvstore.redis.user,
                            .password = c->kvstore.redis.password,
                            .prefix = c->kvstore.redis.prefix,
                            .database = c->kvstore.redis.database,
                            .ttl_s = (uint32_t)c->kvstore.redis.ttl_s,
                            .timeout_ms = (uint32_t)c->kvstore.redis.timeout_ms,
                            .required = c->kvstore.redis.required};
    o->redis = &r;
    o->capacity_bytes = c->kvstore.redis.bytes;
    out->policy = policy_of(c->kvstore.redis.write);
    out->load_timeout_ms = (uint32_t)c->kvstore.redis.load_timeout_ms;
    sl_status st = sl_tier_open(ops, o, &out->tier, err);
    if (st == SL_OK ||
        (err && strstr(err->text, "kvstore.redis."))) /* the answer of the server names the key */
        return st;
    const char *key = err && strstr(err->text, "prefix")     ? "kvstore.redis.prefix"
                      : err && strstr(err->text, "capacity") ? "kvstore.redis.bytes"
                                                             : "kvstore.redis.address";
    return sl_fail_in(err, st, "%s", key);
}

static sl_status open_nixl(const sl_setup *s, sl_tier_opts *o, sl_cascade_tier *out, sl_err *err)
{
    const sl_config *c = s->cfg;
    const char *parameters[SL_CFG_MAX_NIXL_PARAMETERS];
    if (!c->kvstore.nixl.backend[0])
        return SL_OK;
    for (int i = 0; i < c->kvstore.nixl.parameters.n; i++)
        parameters[i] = c->kvstore.nixl.parameters.v[i];
    sl_tier_nixl_opts n = {.library = c->kvstore.nixl.library,
                           .backend = c->kvstore.nixl.backend,
                           .parameters = parameters,
                           .n_parameters = c->kvstore.nixl.parameters.n,
                           .prefix = c->kvstore.nixl.prefix,
                           .required = c->kvstore.nixl.required};
    o->nixl = &n;
    o->capacity_bytes = c->kvstore.nixl.bytes;
    o->directory = c->kvstore.nixl.path;
    out->policy = policy_of(c->kvstore.nixl.write);
    out->load_timeout_ms = (uint32_t)c->kvstore.nixl.load_timeout_ms;
    sl_status st = sl_tier_open(&sl_tier_nixl_ops, o, &out->tier, err);
    if (st == SL_OK)
        return SL_OK;
    const char *text = err ? err->text : "";
    const char *key = strstr(text, "capacity")     ? "kvstore.nixl.bytes"
                      : strstr(text, "plug-in \"") ? "kvstore.nixl.backend"
                      : strstr(text, "parameter")  ? "kvstore.nixl.parameters"
                      : c->kvstore.nixl.path[0] && strstr(text, c->kvstore.nixl.path)
                          ? "kvstore.nixl.path"
                          : "kvstore.nixl.library";
    return sl_fail_in(err, st, "%s", key);
}

/* Opens one tier with options of which page size, format, fingerprint and listener are set. out->tier stays NULL when the
 * configuration has no such tier. */
typedef sl_status open_fn(const sl_setup *s, sl_tier_opts *o, sl_cascade_tier *out, sl_err *err);

static open_fn *const list[] = {open_disk, open_nixl, open_redis};
_Static_assert(SL_COUNT(list) <= SL_CASCADE_TIERS, "more tiers than a cascade can have");

sl_status sl_setup_tiers(sl_setup *s, sl_err *err)
{
    const sl_geometry *g = sl_arena_geometry(s->p->arena);
    for (size_t i = 0; i < SL_COUNT(list) && sl_role_does(s->role, SL_ROLE_DECODE); i++) {
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
