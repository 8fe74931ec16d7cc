/*
 * What the Redis tier reads out of texts: the configured address, redirections and the node list of a Redis Cluster, fields
 * of INFO. hiredis parses the protocol itself. Pure functions, any thread; every text may be arbitrary bytes that do
 * not end with zero (tests/fuzz/redis.c).
 */
#ifndef SL_KVSTORE_REDIS_FORMAT_H
#define SL_KVSTORE_REDIS_FORMAT_H

#include "base/status.h"

enum { SL_REDIS_SLOTS = 16384, SL_REDIS_HOST_BYTES = 256 };

/* Where a server listens. */
typedef struct sl_redis_address {
    char host[SL_REDIS_HOST_BYTES]; /* name or address without brackets; of a Unix socket the path */
    int port;                       /* 0: a Unix socket */
} sl_redis_address;

/* "HOST:PORT", "[IPV6]:PORT" or "unix:PATH". SL_ERR_INVALID with the reason. */
sl_status sl_redis_address_parse(const char *text, sl_redis_address *out, sl_err *err);

/*
 * Which addresses the configuration names: "HOST", "HOST:PORT", "[IPV6]:PORT" or "NETWORK/BITS". Hosts that are numeric addresses
 * are compared as such, with IPv4 equal to IPv4 in IPv6; names as texts without case, and never resolved. So what an answer
 * of a server names is looked up only after the configuration has named it too.
 */
typedef struct sl_redis_rule {
    char host[SL_REDIS_HOST_BYTES]; /* without brackets; of a network its address */
    uint8_t net[16];                /* IPv6, or IPv4 in IPv6; valid if numeric */
    int port, bits;                 /* port 0: any; bits: of net that count */
    bool numeric;
} sl_redis_rule;
/* SL_ERR_INVALID with the reason. */
sl_status sl_redis_rule_parse(const char *text, sl_redis_rule *out, sl_err *err);
/* False for Unix sockets: no server can name one. */
bool sl_redis_rule_allows(const sl_redis_rule *rule, const sl_redis_address *at);

/* The slot of a key in a Redis Cluster: CRC16 (polynomial 0x1021, start 0) modulo 16,384. Our names contain no hash tag. */
int sl_redis_slot(const char *key, size_t n);

/*
 * An error reply "MOVED SLOT HOST:PORT" or "ASK SLOT HOST:PORT". An empty host stands for that of the server that
 * answered. False: it is another error.
 */
typedef struct sl_redis_redirect {
    bool ask;
    int slot;
    sl_redis_address to;
} sl_redis_redirect;
bool sl_redis_redirect_parse(const char *text, size_t n, sl_redis_redirect *out);

/*
 * The answer to CLUSTER NODES, line by line: begins with *at = 0 and ends with false. Lines that are not understood, and nodes
 * without an address, are skipped. ranges: the part of the line that names its slots, for sl_redis_range_next().
 */
typedef struct sl_redis_node {
    sl_redis_address at;
    bool myself, master, failed;
    const char *ranges;
    size_t ranges_n;
} sl_redis_node;
bool sl_redis_node_next(const char *text, size_t n, size_t *at, sl_redis_node *out);
/* Ranges of slots, both ends inclusive; slots that are migrating are not listed. */
bool sl_redis_range_next(const sl_redis_node *node, size_t *at, int *first, int *last);

/* A field of INFO ("name:value" lines): false when it is missing, not a number, or does not fit. */
bool sl_redis_info_u64(const char *text, size_t n, const char *name, uint64_t *out);
bool sl_redis_info_text(const char *text, size_t n, const char *name, char *out, size_t cap);

#endif
