/*
 * The configuration as a whole: finding a key and the known key that is most similar to a wrong one, defaults, `--set`,
 * and the checks and derived values after every source has been read. Others: options.c converts texts to values,
 * config_parts.c has the options of implementations, config_yaml.c reads files, config_doc.c writes documents, config_gone.c
 * has the keys of former versions.
 */
#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/config_impl.h"
#include "base/drawn.h"
#include "base/near.h"

enum { KEY_MAX = SL_CFG_KEY_MAX };

const sl_cfg_row *sl_cfg_find(const char *key)
{
    sl_cfg_ready();
    for (size_t i = 0; i < sl_cfg_nrows; i++)
        if (!strcmp(sl_cfg_rows[i].key, key))
            return &sl_cfg_rows[i];
    return NULL;
}

/* A section whose name is similar to a key without a dot; NULL: none is. */
static const char *nearest_section(const char *key)
{
    sl_near near = sl_near_begin(key);
    for (size_t i = 0; i < sl_cfg_nsections; i++)
        sl_near_try(&near, sl_cfg_sections[i].name);
    return near.best;
}

/* The known key that is most similar to a wrong one; NULL: none is similar. */
static const char *nearest_key(const char *key)
{
    const char *tail = strrchr(key, '.');
    sl_near near = sl_near_begin(key);
    tail = tail ? tail + 1 : key;
    for (size_t i = 0; i < sl_cfg_nrows; i++) {
        const char *known = sl_cfg_rows[i].key;
        if (!strcmp(tail, strchr(known, '.') + 1))
            sl_near_rate(&near, known, 1); /* right name, wrong or missing section */
        else
            sl_near_try(&near, known);
    }
    return near.best;
}

const char *sl_cfg_unknown(const char *key, char *buf, size_t n)
{
    const char *gone = sl_cfg_gone(key), *near = NULL;
    bool section = false;
    if (gone) {
        snprintf(buf, n, "this key of former versions is gone: %s", gone);
        return buf;
    }
    if (key[0] && strlen(key) < KEY_MAX) {
        near = nearest_key(key);
        if (!near && !strchr(key, '.'))
            section = (near = nearest_section(key)) != NULL;
    }
    snprintf(buf, n, "unknown key%s%s%s", near ? "; did you mean " : "", near ? near : "",
             section ? ":?"
             : near  ? "?"
                     : "");
    return buf;
}

sl_status sl_config_set(sl_config *cfg, const char *assignment, sl_err *err)
{
    const char *eq = strchr(assignment, '=');
    if (!eq)
        return sl_fail(err, SL_ERR_INVALID, "--set %.64s: want key=value", assignment);
    char key[KEY_MAX], why[320];
    int klen = eq - assignment < KEY_MAX ? (int)(eq - assignment) : KEY_MAX - 1;
    snprintf(key, sizeof key, "%.*s", klen, assignment);
    const sl_cfg_row *row = sl_cfg_find(key);
    if (!row)
        return sl_fail(err, SL_ERR_INVALID, "--set %s: %s", key, sl_cfg_unknown(key, why, sizeof why));
    json_t *text = json_string(eq + 1); /* jansson checks that it is UTF-8, as libyaml does for files */
    if (!text)
        return sl_fail(err, SL_ERR_INVALID, "--set %s: the value is not valid UTF-8", key);
    json_decref(text);
    sl_status st = sl_cfg_set(cfg, row, eq + 1, SL_CFG_SET, err);
    return st ? sl_fail_in(err, st, "--set %s", key) : SL_OK;
}

const char *sl_config_enum_name(const char *key, int value)
{
    const sl_cfg_row *row = sl_cfg_find(key);
    if (!row || (row->o->type != SL_OPTION_ENUM && row->o->type != SL_OPTION_ENUMS))
        return NULL;
    const char *const *names = sl_option_names(row->o);
    for (int i = 0; names[i]; i++)
        if (i == value)
            return names[i];
    return NULL;
}

/* A table of choices that does not fit the configuration. */
static bool has_choice(const sl_config_choice *table, const char *key)
{
    for (; table && table->key; table++)
        if (!strcmp(table->key, key))
            return true;
    return false;
}

const char *sl_config_unbound(const sl_config_choice *table)
{
    for (const sl_config_choice *c = table; c->key; c++) {
        const sl_cfg_row *row = sl_cfg_find(c->key);
        if (!row || row->o->type != SL_OPTION_CHOICE)
            return c->key;
    }
    for (size_t i = 0; i < sl_cfg_nrows; i++)
        if (sl_cfg_rows[i].o->type == SL_OPTION_CHOICE && !has_choice(table, sl_cfg_rows[i].key))
            return sl_cfg_rows[i].key;
    return NULL;
}

/* served_name: the last component of model.path, without trailing slashes; "model" if that is "." or empty. */
static void name_after_path(sl_cfg_model *c)
{
    const char *path = c->path;
    size_t end = strlen(path);
    while (end && path[end - 1] == '/')
        end--;
    size_t start = end;
    while (start && path[start - 1] != '/')
        start--;
    if (end == start || !strncmp(path + start, ".", end - start))
        snprintf(c->served_name, sizeof c->served_name, "%s", "model");
    else
        snprintf(c->served_name, sizeof c->served_name, "%.*s", (int)(end - start), path + start);
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
    sl_status st = sl_option_parse(cfg, sl_cfg_find("router.api_key")->o, line, err);
    return st ? sl_fail_in(err, st, "router.api_key_file: %s", path) : SL_OK;
}

static sl_status read_cluster_secret(sl_cfg_cluster *c, sl_err *err)
{
    char line[SL_CFG_NAME_BYTES + 1] = "";
    const char *path = c->secret_file;
    SL_TRY(read_first_line("cluster.secret_file", path, line, err));
    size_t n = strlen(line);
    if (n < SECRET_MIN || n >= sizeof c->secret)
        return sl_fail(err, SL_ERR_INVALID,
                       "cluster.secret_file: %s: its first line has %zu characters, want %d to %zu "
                       "(`openssl rand -hex 32` prints a good one)",
                       path, n, SECRET_MIN, sizeof c->secret - 1);
    memcpy(c->secret, line, n + 1);
    return SL_OK;
}

static sl_status check_routers(const sl_cfg_cluster *c, sl_err *err)
{
    for (int i = 0; i < c->routers.n; i++) {
        for (int k = 0; k < i; k++) {
            if (!strcmp(c->routers.v[i], c->routers.v[k]))
                return sl_fail(err, SL_ERR_INVALID, "cluster.routers: has %s twice", c->routers.v[i]);
        }
    }
    return SL_OK;
}

static sl_status check_roles(const sl_cfg_cluster *c, sl_err *err)
{
    int count[SL_ROLE_BOTH + 1] = {0};
    if (!c->roles.n)
        return SL_OK;
    for (int i = 0; i < c->roles.n; i++)
        count[c->roles.v[i]]++;
    int routers = count[SL_ROLE_ROUTER], addresses = c->routers.n;
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

bool sl_config_insecure(const sl_cfg_cluster *c, sl_cfg_exposed whom)
{
    for (int i = 0; i < c->insecure.n; i++)
        if (c->insecure.v[i] == (int)whom)
            return true;
    return false;
}

int sl_config_load_timeout_ms(const sl_config *cfg)
{
    int half = cfg->router.stage_timeout_ms / 2;
    if (cfg->kvstore.load_timeout_ms)
        return cfg->kvstore.load_timeout_ms;
    return half < 1 ? 1 : half < 5000 ? half : 5000;
}

int sl_config_device(const sl_cfg_backend *c, int rank)
{
    if (c->devices.n == 1)
        return c->devices.v[0];
    return rank >= 0 && rank < c->devices.n ? c->devices.v[rank] : -1;
}

bool sl_config_hot_by_layer(const sl_cfg_sparse *c)
{
    return c->hot_rows.n > 1 || (c->hot_rows.n == 1 && c->hot_rows.v[0] < 0);
}

int sl_config_hot_rows(const sl_cfg_sparse *c)
{
    return c->hot_rows.n && !sl_config_hot_by_layer(c) ? c->hot_rows.v[0] : 0;
}

uint64_t sl_config_load_chunk_bytes(const sl_cfg_kvstore *c)
{
    uint64_t part = c->bytes / 64;
    return part < 32 << 20 ? part : 32 << 20;
}

int sl_config_heartbeat_ms(const sl_cfg_cluster *c)
{
    return c->dead_after_ms < 50 ? 5 : c->dead_after_ms / 10;
}

int sl_config_max_waiting(const sl_cfg_decode *c)
{
    return 4 * c->max_batch;
}

static sl_status check_loads(const sl_config *cfg, sl_err *err)
{
    if (cfg->kvstore.load_timeout_ms >= cfg->router.stage_timeout_ms)
        return sl_fail(
            err, SL_ERR_INVALID,
            "kvstore.load_timeout_ms (%d) must be less than router.stage_timeout_ms (%d), after which "
            "the router gives the worker up",
            cfg->kvstore.load_timeout_ms, cfg->router.stage_timeout_ms);
    return SL_OK;
}

/* ---- groups ---- */

static sl_status wrong_group(const char *text, const char *why, sl_err *err)
{
    return sl_fail(
        err, SL_ERR_INVALID,
        "cluster.groups: \"%s\" %s (want ROLE=RANKS or ROLE=RANKS@HOST:PORT, with role prefill, decode "
        "or both and 1 to 64 ranks)",
        text, why);
}

/* One entry of cluster.groups. */
static sl_status read_group(sl_cfg_cluster *c, const char *text, sl_err *err)
{
    const char *eq = strchr(text, '='), *at = strchr(text, '@');
    int role = SL_ROLE_PREFILL;
    while (role <= SL_ROLE_BOTH) {
        const char *name = sl_config_enum_name("cluster.roles", role);
        if (eq && strlen(name) == (size_t)(eq - text) && !strncmp(text, name, strlen(name)))
            break;
        role++;
    }
    if (role > SL_ROLE_BOTH)
        return wrong_group(text, "does not begin with a role", err);
    char *end;
    long ranks = strtol(eq + 1, &end, 10);
    if (end == eq + 1 || (*end && end != at) || ranks < 1 || ranks > 64)
        return wrong_group(text, "has no number of ranks", err);
    if (at && (!strrchr(at, ':') || at[1] == ':'))
        return wrong_group(text, "has no HOST:PORT", err);
    if (c->group[role].ranks)
        return wrong_group(text, "names a role twice", err);
    c->group[role].ranks = (int)ranks;
    if (at)
        snprintf(c->group[role].address, SL_CFG_ITEM_BYTES, "%s", at + 1);
    return SL_OK;
}

static sl_status read_groups(sl_cfg_cluster *c, sl_err *err)
{
    static const char *const listens[] = {[SL_ROLE_PREFILL] = "127.0.0.1:7310",
                                          [SL_ROLE_DECODE] = "127.0.0.1:7350",
                                          [SL_ROLE_BOTH] = "127.0.0.1:7390"};
    memset(c->group, 0, sizeof c->group);
    for (int i = 0; i < c->groups.n; i++)
        SL_TRY(read_group(c, c->groups.v[i], err));
    for (int role = SL_ROLE_PREFILL; role <= SL_ROLE_BOTH; role++) {
        sl_cfg_group *g = &c->group[role];
        g->ranks = g->ranks ? g->ranks : 1;
        if (!g->address[0])
            snprintf(g->address, sizeof g->address, "%s", listens[role]);
    }
    return SL_OK;
}

/* What replaces a model's own work must never reach a cluster whose answers somebody reads. */
static sl_status check_bench(const sl_config *cfg, sl_err *err)
{
    const bool off = strcmp(cfg->bench.selection, "off") == 0;
    sl_drawn d;
    SL_TRY(sl_drawn_parse(cfg->bench.selection, &d, err));
    if (cfg->model.load_format != SL_CFG_LOAD_DUMMY)
        return off && !cfg->bench.cached_tokens
                   ? SL_OK
                   : sl_fail(err, SL_ERR_INVALID,
                             "bench.%s: for benchmarks with random weights, needs model.load_format dummy",
                             off ? "cached_tokens" : "selection");
    if (strcmp(d.profile, "off") != 0 && !cfg->bench.cached_tokens)
        return sl_fail(err, SL_ERR_INVALID,
                       "bench.selection: needs bench.cached_tokens, from which it draws");
    return d.drafts && cfg->model.draft_tokens == SL_CFG_DRAFTS_NONE
               ? sl_fail(err, SL_ERR_INVALID,
                         "bench.selection: draws which drafts stand, but model.draft_tokens is 0")
               : SL_OK;
}

sl_status sl_config_finish(sl_config *cfg, sl_err *err)
{
    if (!cfg->model.served_name[0] && cfg->model.path[0])
        name_after_path(&cfg->model);
    if (cfg->router.api_key_file[0]) {
        if (cfg->router.api_key[0])
            return sl_fail(err, SL_ERR_INVALID, "router.api_key and router.api_key_file are both set");
        SL_TRY(read_api_key(cfg, err));
    }
    if (cfg->cluster.secret_file[0])
        SL_TRY(read_cluster_secret(&cfg->cluster, err));
    else if (cfg->cluster.encrypt)
        return sl_fail(err, SL_ERR_INVALID,
                       "cluster.encrypt: needs cluster.secret_file, from which the keys are made");
    if (!cfg->router.tls_cert[0] != !cfg->router.tls_key[0])
        return sl_fail(err, SL_ERR_INVALID, "router.tls_cert and router.tls_key: set both or neither");
    if (cfg->router.tls_client_ca[0] && !cfg->router.tls_cert[0])
        return sl_fail(err, SL_ERR_INVALID, "router.tls_client_ca: needs router.tls_cert and router.tls_key");
    if (cfg->router.http_port && cfg->router.http_port == cfg->router.grpc_port)
        return sl_fail(err, SL_ERR_INVALID, "router.http_port and router.grpc_port are both %d",
                       cfg->router.http_port);
    SL_TRY(check_bench(cfg, err));
    SL_TRY(sl_config_finish_parts(cfg, err));
    SL_TRY(check_loads(cfg, err));
    SL_TRY(read_groups(&cfg->cluster, err));
    SL_TRY(check_routers(&cfg->cluster, err));
    return check_roles(&cfg->cluster, err);
}
