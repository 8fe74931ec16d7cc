/* The options of the Redis tier. They exist also in builds without hiredis, which refuse them by name. */
#ifndef SL_KVSTORE_REDIS_OPTIONS_H
#define SL_KVSTORE_REDIS_OPTIONS_H

#include "kvstore/tier.h"

enum { SL_REDIS_RULES = 16 };

typedef struct sl_redis_options {
    sl_tier_common common;
    /* "HOST:PORT", "[IPV6]:PORT" or "unix:PATH"; of a Redis Cluster, any of its servers */
    char address[1024];
    /* The servers that a server of a cluster may name besides the one at `address`. */
    struct {
        int n;
        char v[SL_REDIS_RULES][SL_OPTION_ITEM_BYTES]; /* as sl_redis_rule_parse() takes them */
    } nodes;
    char user[128]; /* empty: the default user */
    char password_file[1024];
    char password[256]; /* no option: the first line of that file; empty: none */
    int database;       /* SELECT; 0 in a cluster */
    int ttl_s;          /* pages disappear when they are not used for so long; 0: never by time */
    int timeout_ms;     /* no option: a server that does not answer for so long is disconnected; 0: 2,000 */
} sl_redis_options;

extern const sl_options sl_redis_table;

#endif
