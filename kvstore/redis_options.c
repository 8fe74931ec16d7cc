/* See redis_options.h. */
#include "kvstore/redis_options.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "kvstore/redis_format.h"

static const sl_option rows[] = {
    SL_OPTION(
        sl_redis_options, address, SL_OPTION_TEXT, 0, "", 0, 0,
        "Server that speaks the protocol of Redis, where decode workers keep pages for all clusters that use it "
        "(docs/caching.md): HOST:PORT or unix:PATH; of a Redis Cluster, any of its servers. Empty: none."),
    SL_OPTION(
        sl_redis_options, nodes, SL_OPTION_TEXTS, 0, "", 0, 0,
        "Redis Cluster: the servers that decode workers may connect to when a server names them, as the cluster announces "
        "them, replicas too: HOST, HOST:PORT, [IPV6]:PORT or NETWORK/BITS. Empty: the one at address alone, so a server "
        "cannot send workers elsewhere."),
    SL_OPTION(sl_redis_options, user, SL_OPTION_TEXT, 0, "", 0, 0,
              "User of the server. Empty: its default user."),
    SL_OPTION(
        sl_redis_options, password_file, SL_OPTION_TEXT, 0, "", 0, 0,
        "File whose first line is the password of the server. The password is never shown and in no command line."),
    SL_OPTION(sl_redis_options, database, SL_OPTION_INT, 0, "0", 0, 1000000,
              "Number of the server's database; 0 in a Redis Cluster."),
    SL_TIER_BYTES(
        sl_redis_options,
        "No page is stored while the server uses more memory than this. 0: the server's own maxmemory is the "
        "limit, and a server without maxmemory is refused."),
    SL_OPTION(
        sl_redis_options, ttl_s, SL_OPTION_INT, 0, "0", 0, 31536000,
        "Pages that were not used for this number of seconds disappear. 0: the server's policy alone decides."),
};

/* The first line of the file. */
static sl_status read_password(sl_redis_options *o, sl_err *err)
{
    FILE *f = fopen(o->password_file, "re");
    if (!f)
        return sl_fail(err, SL_ERR_IO, "password_file: %s: %s", o->password_file, strerror(errno));
    bool got = fgets(o->password, sizeof o->password, f) != NULL;
    bool whole = got && (strpbrk(o->password, "\r\n") || feof(f));
    fclose(f);
    o->password[got ? strcspn(o->password, "\r\n") : 0] = '\0';
    if (!o->password[0])
        return sl_fail(err, SL_ERR_INVALID, "password_file: %s: its first line is empty", o->password_file);
    return whole ? SL_OK
                 : sl_fail(err, SL_ERR_INVALID, "password_file: %s: its first line is too long",
                           o->password_file);
}

static sl_status finish(void *values, sl_err *err)
{
    sl_redis_options *o = values;
    sl_redis_rule rule;
    for (int i = 0; i < o->nodes.n; i++) {
        sl_status st = sl_redis_rule_parse(o->nodes.v[i], &rule, err);
        if (st != SL_OK)
            return sl_fail_in(err, st, "nodes");
    }
    if (o->user[0] && !o->password_file[0])
        return sl_fail(err, SL_ERR_INVALID, "user: needs kvstore.redis.password_file");
    return o->password_file[0] ? read_password(o, err) : SL_OK;
}

const sl_options sl_redis_table = {.section = "kvstore.redis",
                                   .name = "redis",
                                   .on = "address",
                                   .needs_reuse = true,
                                   .rows = rows,
                                   .n = SL_COUNT(rows),
                                   .bytes = sizeof(sl_redis_options),
                                   .finish = finish};
_Static_assert(sizeof(sl_redis_options) <= SL_TIER_OPTIONS_BYTES, "see tier.h");
