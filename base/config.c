/*
 * The configuration as a whole: finding a key and the known key that is most similar to a wrong one, defaults, `--set`,
 * and the checks and derived values after every source has been read. Others: config_value.c converts texts to values,
 * config_yaml.c reads files, config_doc.c writes documents.
 */
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/config_impl.h"

enum { KEY_MAX = SL_CFG_KEY_MAX };

const sl_cfg_row *sl_cfg_find(const char *key)
{
    for (size_t i = 0; i < sl_cfg_nrows; i++)
        if (!strcmp(sl_cfg_rows[i].key, key))
            return &sl_cfg_rows[i];
    return NULL;
}

static size_t min3(size_t a, size_t b, size_t c)
{
    size_t m = a < b ? a : b;
    return m < c ? m : c;
}

/* Edits (insert, delete, replace) between two keys, both shorter than KEY_MAX. */
static size_t edits(const char *a, const char *b)
{
    size_t row[KEY_MAX + 1], nb = strlen(b);
    for (size_t j = 0; j <= nb; j++)
        row[j] = j;
    for (size_t i = 1; a[i - 1]; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= nb; j++) {
            size_t above = row[j];
            row[j] = min3(above + 1, row[j - 1] + 1, diagonal + (a[i - 1] != b[j - 1]));
            diagonal = above;
        }
    }
    return row[nb];
}

const char *sl_cfg_nearest(const char *key)
{
    const char *best = NULL, *tail = strrchr(key, '.');
    tail = tail ? tail + 1 : key;
    if (strlen(key) >= KEY_MAX || !key[0])
        return NULL;
    size_t best_cost = strlen(key) / 2 + 1;
    for (size_t i = 0; i < sl_cfg_nrows; i++) {
        const char *known = sl_cfg_rows[i].key;
        size_t cost, na = strlen(key), nb = strlen(known);
        if (!strcmp(tail, strchr(known, '.') + 1))
            cost = 1; /* right name, wrong or missing section */
        else if ((na > nb ? na - nb : nb - na) >= best_cost)
            continue; /* the difference in length alone is too large */
        else
            cost = edits(key, known);
        if (cost < best_cost) {
            best_cost = cost;
            best = known;
        }
    }
    return best;
}

void sl_config_init(sl_config *cfg)
{
    memset(cfg, 0, sizeof *cfg);
    for (size_t i = 0; i < sl_cfg_nrows; i++) {
        sl_err err = {0};
        sl_status st = sl_cfg_set_text(cfg, &sl_cfg_rows[i], sl_cfg_rows[i].dflt, &err);
        SL_CHECK(!st, "default of %s: %s", sl_cfg_rows[i].key, err.text);
    }
}

sl_status sl_config_set(sl_config *cfg, const char *assignment, sl_err *err)
{
    const char *eq = strchr(assignment, '=');
    if (!eq)
        return sl_fail(err, SL_ERR_INVALID, "--set %.64s: want key=value", assignment);
    char key[KEY_MAX];
    int klen = eq - assignment < KEY_MAX ? (int)(eq - assignment) : KEY_MAX - 1;
    snprintf(key, sizeof key, "%.*s", klen, assignment);
    const sl_cfg_row *row = sl_cfg_find(key);
    if (!row) {
        const char *near = sl_cfg_nearest(key);
        return sl_fail(err, SL_ERR_INVALID, "--set %s: unknown key%s%s%s", key, near ? "; did you mean " : "",
                       near ? near : "", near ? "?" : "");
    }
    json_t *text = json_string(eq + 1); /* jansson checks that it is UTF-8, as libyaml does for files */
    if (!text)
        return sl_fail(err, SL_ERR_INVALID, "--set %s: the value is not valid UTF-8", key);
    json_decref(text);
    sl_status st = sl_cfg_set_text(cfg, row, eq + 1, err);
    return st ? sl_fail_in(err, st, "--set %s", key) : SL_OK;
}

const char *sl_config_enum_name(const char *key, int value)
{
    const sl_cfg_row *row = sl_cfg_find(key);
    if (!row || (row->type != SL_CFG_ENUM && row->type != SL_CFG_ENUM_LIST))
        return NULL;
    for (int i = 0; row->names[i]; i++)
        if (i == value)
            return row->names[i];
    return NULL;
}

/* served_name: the last component of model.path, without trailing slashes; "model" if that is "." or empty. */
static void name_after_path(sl_config *cfg)
{
    const char *path = cfg->model.path;
    size_t end = strlen(path);
    while (end && path[end - 1] == '/')
        end--;
    size_t start = end;
    while (start && path[start - 1] != '/')
        start--;
    if (end == start || !strncmp(path + start, ".", end - start))
        snprintf(cfg->model.served_name, sizeof cfg->model.served_name, "%s", "model");
    else
        snprintf(cfg->model.served_name, sizeof cfg->model.served_name, "%.*s", (int)(end - start),
                 path + start);
}

enum { SECRET_MIN = 16 }; /* characters of the cluster's secret */

/* The first line of a file that holds a secret. */
static sl_status read_first_line(const char *key, const char *path, char line[SL_CFG_NAME_BYTES + 1],
                                 sl_err *err)
{
    FILE *f = fopen(path, "re");
    if (!f)
        return sl_fail(err, SL_ERR_IO, "%s: %s: %s", key, path, strerror(errno));
    bool got = fgets(line, SL_CFG_NAME_BYTES + 1, f) != NULL;
    fclose(f);
    line[got ? strcspn(line, "\r\n") : 0] = '\0';
    if (!line[0])
        return sl_fail(err, SL_ERR_INVALID, "%s: %s: its first line is empty", key, path);
    return SL_OK;
}

static sl_status read_api_key(sl_config *cfg, sl_err *err)
{
    const char *path = cfg->router.api_key_file;
    char line[SL_CFG_NAME_BYTES + 1] = "";
    SL_TRY(read_first_line("router.api_key_file", path, line, err));
    sl_status st = sl_cfg_parse(cfg, sl_cfg_find("router.api_key"), line, err);
    return st ? sl_fail_in(err, st, "router.api_key_file: %s", path) : SL_OK;
}

static sl_status read_cluster_secret(sl_config *cfg, sl_err *err)
{
    char line[SL_CFG_NAME_BYTES + 1] = "";
    const char *path = cfg->cluster.secret_file;
    SL_TRY(read_first_line("cluster.secret_file", path, line, err));
    size_t n = strlen(line);
    if (n < SECRET_MIN || n >= sizeof cfg->cluster.secret)
        return sl_fail(err, SL_ERR_INVALID,
                       "cluster.secret_file: %s: its first line has %zu characters, want %d to %zu "
                       "(`openssl rand -hex 32` prints a good one)",
                       path, n, SECRET_MIN, sizeof cfg->cluster.secret - 1);
    memcpy(cfg->cluster.secret, line, n + 1);
    return SL_OK;
}

static sl_status check_routers(const sl_config *cfg, sl_err *err)
{
    for (int i = 0; i < cfg->cluster.routers.n; i++) {
        for (int k = 0; k < i; k++) {
            if (!strcmp(cfg->cluster.routers.v[i], cfg->cluster.routers.v[k]))
                return sl_fail(err, SL_ERR_INVALID, "cluster.routers: has %s twice",
                               cfg->cluster.routers.v[i]);
        }
    }
    return SL_OK;
}

static sl_status check_roles(const sl_config *cfg, sl_err *err)
{
    int count[SL_ROLE_BOTH + 1] = {0};
    if (!cfg->cluster.roles.n)
        return SL_OK;
    for (int i = 0; i < cfg->cluster.roles.n; i++)
        count[cfg->cluster.roles.v[i]]++;
    int routers = count[SL_ROLE_ROUTER], addresses = cfg->cluster.routers.n;
    if (routers < 1 || routers > SL_CFG_MAX_ROUTERS)
        return sl_fail(err, SL_ERR_INVALID, "cluster.roles: has %d routers, want 1 to %d", routers,
                       SL_CFG_MAX_ROUTERS);
    if (addresses && addresses != routers)
        return sl_fail(err, SL_ERR_INVALID,
                       "cluster.routers: has %d addresses for the %d routers of cluster.roles", addresses,
                       routers);
    if (!count[SL_ROLE_PREFILL] != !count[SL_ROLE_DECODE] && count[SL_ROLE_BOTH])
        return sl_fail(err, SL_ERR_INVALID,
                       "cluster.roles: has %s workers without %s workers: workers of role both compute their "
                       "prompts themselves, so these would have nothing to do",
                       count[SL_ROLE_PREFILL] ? "prefill" : "decode",
                       count[SL_ROLE_PREFILL] ? "decode" : "prefill");
    if (!count[SL_ROLE_BOTH] && (!count[SL_ROLE_PREFILL] || !count[SL_ROLE_DECODE]))
        return sl_fail(
            err, SL_ERR_INVALID,
            "cluster.roles: needs at least one prefill and one decode worker, or one of role both");
    return SL_OK;
}

static sl_status check_events(const sl_config *cfg, sl_err *err)
{
    bool on = cfg->events.zmq.endpoint[0] != '\0', replay = cfg->events.zmq.replay_endpoint[0] != '\0';
    if (replay && !on)
        return sl_fail(err, SL_ERR_INVALID,
                       "events.zmq.replay_endpoint: has no effect without events.zmq.endpoint");
    if (replay && !strcmp(cfg->events.zmq.endpoint, cfg->events.zmq.replay_endpoint))
        return sl_fail(err, SL_ERR_INVALID,
                       "events.zmq.replay_endpoint: is the same as events.zmq.endpoint (%s)",
                       cfg->events.zmq.endpoint);
    if (on && !cfg->events.zmq.topic[0])
        return sl_fail(err, SL_ERR_INVALID, "events.zmq.topic: is empty");
    if (on && !cfg->kvstore.prefix_cache)
        return sl_fail(err, SL_ERR_INVALID,
                       "events.zmq.endpoint: needs kvstore.prefix_cache, without which no page is cached");
    if (on && cfg->kvstore.share != SL_CFG_SHARE_ALL)
        return sl_fail(
            err, SL_ERR_INVALID,
            "events.zmq.endpoint: needs kvstore.share: all, because subscribers are not authenticated and "
            "pages that are kept apart are not published");
    return SL_OK;
}

int sl_config_pull_timeout_ms(const sl_config *cfg)
{
    int half = cfg->router.stage_timeout_ms / 2;
    if (cfg->kvstore.workers.load_timeout_ms)
        return cfg->kvstore.workers.load_timeout_ms;
    return half < 1 ? 1 : half < 5000 ? half : 5000;
}

/* key: that of the time for which a load waits for a tier. */
static sl_status check_load_timeout(const sl_config *cfg, const char *key, int load_timeout_ms, sl_err *err)
{
    if (load_timeout_ms >= cfg->router.stage_timeout_ms)
        return sl_fail(
            err, SL_ERR_INVALID,
            "%s (%d) must be less than router.stage_timeout_ms (%d), after which the router gives the "
            "worker up",
            key, load_timeout_ms, cfg->router.stage_timeout_ms);
    return SL_OK;
}

static sl_status check_workers(const sl_config *cfg, sl_err *err)
{
    return check_load_timeout(cfg, "kvstore.workers.load_timeout_ms", cfg->kvstore.workers.load_timeout_ms,
                              err);
}

/* The entries of kvstore.quota.tenants are checked by whoever knows their format (worker/setup_tier.c). */
static sl_status check_quota(const sl_config *cfg, sl_err *err)
{
    if (cfg->kvstore.quota.share > cfg->kvstore.quota.limit)
        return sl_fail(err, SL_ERR_INVALID,
                       "kvstore.quota.share (%g) is larger than kvstore.quota.limit (%g)",
                       cfg->kvstore.quota.share, cfg->kvstore.quota.limit);
    return SL_OK;
}

/* What every tier needs of the other keys. key: the one that turns the tier on. */
static sl_status check_tier(const sl_config *cfg, const char *key, const char *late_key, int load_timeout_ms,
                            sl_err *err)
{
    if (!cfg->kvstore.prefix_cache)
        return sl_fail(err, SL_ERR_INVALID,
                       "%s: needs kvstore.prefix_cache, because pages are found by their prefix", key);
    if (cfg->kvstore.share == SL_CFG_SHARE_NONE)
        return sl_fail(
            err, SL_ERR_INVALID,
            "%s: has no use with kvstore.share: none, where no request may reuse pages of an earlier one",
            key);
    return check_load_timeout(cfg, late_key, load_timeout_ms, err);
}

static sl_status check_disk(const sl_config *cfg, sl_err *err)
{
    bool path = cfg->kvstore.disk.path[0] != '\0';
    if (path && !cfg->kvstore.disk.bytes)
        return sl_fail(
            err, SL_ERR_INVALID,
            "kvstore.disk.bytes: is mandatory with kvstore.disk.path: the size of the store on disk");
    if (!path && cfg->kvstore.disk.bytes)
        return sl_fail(err, SL_ERR_INVALID, "kvstore.disk.bytes: has no effect without kvstore.disk.path");
    return path ? check_tier(cfg, "kvstore.disk.path", "kvstore.disk.load_timeout_ms",
                             cfg->kvstore.disk.load_timeout_ms, err)
                : SL_OK;
}

static sl_status check_redis(sl_config *cfg, sl_err *err)
{
    char line[SL_CFG_NAME_BYTES + 1] = "";
    bool on = cfg->kvstore.redis.address[0] != '\0';
    const char *file = cfg->kvstore.redis.password_file;
    if (!on && (file[0] || cfg->kvstore.redis.user[0] || cfg->kvstore.redis.bytes))
        return sl_fail(err, SL_ERR_INVALID, "kvstore.redis.%s: has no effect without kvstore.redis.address",
                       file[0]                      ? "password_file"
                       : cfg->kvstore.redis.user[0] ? "user"
                                                    : "bytes");
    if (cfg->kvstore.redis.user[0] && !file[0])
        return sl_fail(err, SL_ERR_INVALID, "kvstore.redis.user: needs kvstore.redis.password_file");
    if (file[0]) {
        SL_TRY(read_first_line("kvstore.redis.password_file", file, line, err));
        if (strlen(line) >= sizeof cfg->kvstore.redis.password)
            return sl_fail(err, SL_ERR_INVALID, "kvstore.redis.password_file: %s: its first line is too long",
                           file);
        memcpy(cfg->kvstore.redis.password, line, strlen(line) + 1);
    }
    return on ? check_tier(cfg, "kvstore.redis.address", "kvstore.redis.load_timeout_ms",
                           cfg->kvstore.redis.load_timeout_ms, err)
              : SL_OK;
}

static sl_status check_nixl(const sl_config *cfg, sl_err *err)
{
    bool on = cfg->kvstore.nixl.backend[0] != '\0';
    if (!on && (cfg->kvstore.nixl.path[0] || cfg->kvstore.nixl.bytes || cfg->kvstore.nixl.parameters.n))
        return sl_fail(err, SL_ERR_INVALID, "kvstore.nixl.%s: has no effect without kvstore.nixl.backend",
                       cfg->kvstore.nixl.path[0] ? "path"
                       : cfg->kvstore.nixl.bytes ? "bytes"
                                                 : "parameters");
    if (!cfg->kvstore.nixl.path[0] != !cfg->kvstore.nixl.bytes)
        return sl_fail(
            err, SL_ERR_INVALID,
            "kvstore.nixl.bytes and kvstore.nixl.path: files need both, the directory and its size limit; "
            "objects need neither");
    for (int i = 0; i < cfg->kvstore.nixl.parameters.n; i++) {
        const char *text = cfg->kvstore.nixl.parameters.v[i];
        bool key = strncmp(text, "secret_key=", 11) == 0;
        if (key || strncmp(text, "session_token=", 14) == 0)
            return sl_fail(
                err, SL_ERR_INVALID,
                "kvstore.nixl.parameters: %s would be shown with the configuration; give it to the workers in "
                "the environment (%s), or in the file that AWS_SHARED_CREDENTIALS_FILE names",
                key ? "secret_key" : "session_token", key ? "AWS_SECRET_ACCESS_KEY" : "AWS_SESSION_TOKEN");
    }
    return on ? check_tier(cfg, "kvstore.nixl.backend", "kvstore.nixl.load_timeout_ms",
                           cfg->kvstore.nixl.load_timeout_ms, err)
              : SL_OK;
}

sl_status sl_config_finish(sl_config *cfg, sl_err *err)
{
    if (!cfg->model.served_name[0] && cfg->model.path[0])
        name_after_path(cfg);
    if (cfg->router.api_key_file[0]) {
        if (cfg->router.api_key[0])
            return sl_fail(err, SL_ERR_INVALID, "router.api_key and router.api_key_file are both set");
        SL_TRY(read_api_key(cfg, err));
    }
    if (cfg->cluster.secret_file[0])
        SL_TRY(read_cluster_secret(cfg, err));
    else if (cfg->cluster.encrypt)
        return sl_fail(err, SL_ERR_INVALID,
                       "cluster.encrypt: needs cluster.secret_file, from which the keys are made");
    if (!cfg->router.tls_cert[0] != !cfg->router.tls_key[0])
        return sl_fail(err, SL_ERR_INVALID, "router.tls_cert and router.tls_key: set both or neither");
    if (cfg->router.tls_client_ca[0] && !cfg->router.tls_cert[0])
        return sl_fail(err, SL_ERR_INVALID, "router.tls_client_ca: needs router.tls_cert and router.tls_key");
    if (cfg->cluster.dead_after_ms < 2 * cfg->cluster.heartbeat_ms)
        return sl_fail(err, SL_ERR_INVALID,
                       "cluster.dead_after_ms (%d) must be at least twice cluster.heartbeat_ms (%d)",
                       cfg->cluster.dead_after_ms, cfg->cluster.heartbeat_ms);
    if (cfg->router.http_port && cfg->router.http_port == cfg->router.grpc_port &&
        !strcmp(cfg->router.http_host, cfg->router.grpc_host))
        return sl_fail(err, SL_ERR_INVALID, "router.http_port and router.grpc_port are both %d",
                       cfg->router.http_port);
    SL_TRY(check_quota(cfg, err));
    SL_TRY(check_disk(cfg, err));
    SL_TRY(check_redis(cfg, err));
    SL_TRY(check_nixl(cfg, err));
    SL_TRY(check_events(cfg, err));
    SL_TRY(check_workers(cfg, err));
    SL_TRY(check_routers(cfg, err));
    return check_roles(cfg, err);
}
