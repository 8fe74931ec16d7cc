/* See redis_format.h. */
#include "kvstore/redis_format.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

/* A piece of a text. */
typedef struct piece {
    const char *p;
    size_t n;
} piece;

/* Decimal digits only, at most `most`. */
static bool number(piece s, uint64_t most, uint64_t *out)
{
    uint64_t v = 0;
    if (!s.n)
        return false;
    for (size_t i = 0; i < s.n; i++) {
        unsigned digit = (unsigned)s.p[i] - '0';
        if (digit > 9 || v > (most - digit) / 10)
            return false;
        v = v * 10 + digit;
    }
    *out = v;
    return v <= most;
}

static bool text_of(piece s, char *out, size_t cap)
{
    if (s.n >= cap || memchr(s.p, 0, s.n))
        return false;
    memcpy(out, s.p, s.n);
    out[s.n] = '\0';
    return true;
}

static bool is(piece s, const char *text)
{
    return s.n == strlen(text) && memcmp(s.p, text, s.n) == 0;
}

/* HOST:PORT or [HOST]:PORT; the host may be empty. */
static bool host_and_port(piece s, sl_redis_address *out)
{
    uint64_t port;
    size_t colon = s.n;
    while (colon && s.p[colon - 1] != ':')
        colon--;
    if (!colon || !number((piece){s.p + colon, s.n - colon}, 65535, &port) || port == 0)
        return false;
    piece host = {s.p, colon - 1};
    if (host.n >= 2 && host.p[0] == '[' && host.p[host.n - 1] == ']')
        host = (piece){host.p + 1, host.n - 2};
    out->port = (int)port;
    return text_of(host, out->host, sizeof out->host);
}

sl_status sl_redis_address_parse(const char *text, sl_redis_address *out, sl_err *err)
{
    if (strncmp(text, "unix:", 5) == 0) {
        *out = (sl_redis_address){0};
        if (!text[5] || !text_of((piece){text + 5, strlen(text + 5)}, out->host, 100))
            return sl_fail(err, SL_ERR_INVALID,
                           "\"%.200s\": want unix:PATH with a path of 1 to 99 characters", text);
        return SL_OK;
    }
    if (strstr(text, "://"))
        return sl_fail(err, SL_ERR_INVALID,
                       "\"%.200s\": is a URL; want HOST:PORT or unix:PATH (TLS is not supported)", text);
    if (!host_and_port((piece){text, strlen(text)}, out) || !out->host[0])
        return sl_fail(err, SL_ERR_INVALID, "\"%.200s\": want HOST:PORT, [IPV6]:PORT or unix:PATH", text);
    return SL_OK;
}

/* A numeric address as one of IPv6. Other spellings of IPv4 that resolvers take (one number, octal) are names here. */
static bool numeric(const char *host, uint8_t out[16])
{
    static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};
    if (inet_pton(AF_INET6, host, out) == 1)
        return true;
    memcpy(out, mapped, sizeof mapped);
    return inet_pton(AF_INET, host, out + sizeof mapped) == 1;
}

/* NETWORK/BITS */
static bool network_of(const char *text, const char *slash, sl_redis_rule *out)
{
    uint64_t bits;
    if (!text_of((piece){text, (size_t)(slash - text)}, out->host, sizeof out->host) ||
        !numeric(out->host, out->net))
        return false;
    bool v6 = strchr(out->host, ':') != NULL;
    if (!number((piece){slash + 1, strlen(slash + 1)}, v6 ? 128 : 32, &bits))
        return false;
    out->bits = (int)bits + (v6 ? 0 : 96);
    return true;
}

sl_status sl_redis_rule_parse(const char *text, sl_redis_rule *out, sl_err *err)
{
    sl_redis_address at = {0};
    const char *slash = strchr(text, '/');
    size_t n = strlen(text);
    *out = (sl_redis_rule){.bits = 128};
    bool right = n > 0;
    if (right && slash) {
        right = out->numeric = network_of(text, slash, out);
    } else if (right) {
        bool bare = numeric(text, out->net) || !strpbrk(text, ":[]");
        right = bare ? text_of((piece){text, n}, at.host, sizeof at.host)
                     : host_and_port((piece){text, n}, &at) && at.host[0];
        memcpy(out->host, at.host, sizeof out->host);
        out->port = at.port;
        out->numeric = right && numeric(at.host, out->net);
    }
    return right ? SL_OK
                 : sl_fail(err, SL_ERR_INVALID,
                           "\"%.200s\": want HOST, HOST:PORT, [IPV6]:PORT or NETWORK/BITS", text);
}

bool sl_redis_rule_allows(const sl_redis_rule *rule, const sl_redis_address *at)
{
    uint8_t host[16];
    if (!at->port || (rule->port && rule->port != at->port))
        return false;
    if (!rule->numeric || !numeric(at->host, host))
        return !rule->numeric && strcasecmp(rule->host, at->host) == 0;
    for (int i = 0; i < rule->bits; i++)
        if ((rule->net[i / 8] ^ host[i / 8]) >> (7 - i % 8) & 1)
            return false;
    return true;
}

int sl_redis_slot(const char *key, size_t n)
{
    unsigned crc = 0;
    for (size_t i = 0; i < n; i++) {
        crc ^= (unsigned)(unsigned char)key[i] << 8;
        for (int b = 0; b < 8; b++)
            crc = (crc & 0x8000 ? crc << 1 ^ 0x1021 : crc << 1) & 0xffff;
    }
    return (int)(crc % SL_REDIS_SLOTS);
}

/* The next part of s that ends with `end` or at its end, without it; false when s is used up. */
static bool part(piece *s, char end, piece *out)
{
    if (!s->n)
        return false;
    const char *e = memchr(s->p, end, s->n);
    size_t n = e ? (size_t)(e - s->p) : s->n;
    *out = (piece){s->p, n};
    size_t used = n + (e != NULL);
    *s = (piece){s->p + used, s->n - used};
    return true;
}

bool sl_redis_redirect_parse(const char *text, size_t n, sl_redis_redirect *out)
{
    piece s = {text, n}, word, slot, address;
    uint64_t v;
    *out = (sl_redis_redirect){0};
    if (!part(&s, ' ', &word) || !part(&s, ' ', &slot) || !part(&s, ' ', &address))
        return false;
    out->ask = is(word, "ASK");
    if ((!out->ask && !is(word, "MOVED")) || !number(slot, SL_REDIS_SLOTS - 1, &v))
        return false;
    out->slot = (int)v;
    return host_and_port(address, &out->to);
}

static bool has_flag(piece flags, const char *name)
{
    piece f;
    while (part(&flags, ',', &f))
        if (is(f, name))
            return true;
    return false;
}

/* ID IP:PORT@BUS[,HOSTNAME…] FLAGS MASTER PING PONG EPOCH LINK [RANGE…] */
static bool node_of(piece line, sl_redis_node *out)
{
    piece field[8], address;
    for (size_t i = 0; i < SL_COUNT(field); i++)
        if (!part(&line, ' ', &field[i]))
            return false;
    *out = (sl_redis_node){.myself = has_flag(field[2], "myself"),
                           .master = has_flag(field[2], "master"),
                           .failed = has_flag(field[2], "fail") || has_flag(field[2], "noaddr"),
                           .ranges = line.p,
                           .ranges_n = line.n};
    return part(&field[1], '@', &address) && host_and_port(address, &out->at);
}

bool sl_redis_node_next(const char *text, size_t n, size_t *at, sl_redis_node *out)
{
    while (*at < n) {
        piece rest = {text + *at, n - *at}, line;
        part(&rest, '\n', &line);
        *at = n - rest.n;
        if (line.n && line.p[line.n - 1] == '\r')
            line.n--;
        if (node_of(line, out))
            return true;
    }
    return false;
}

bool sl_redis_range_next(const sl_redis_node *node, size_t *at, int *first, int *last)
{
    while (*at < node->ranges_n) {
        piece rest = {node->ranges + *at, node->ranges_n - *at}, range, from;
        uint64_t a, b;
        part(&rest, ' ', &range);
        *at = node->ranges_n - rest.n;
        if (!part(&range, '-', &from) || !number(from, SL_REDIS_SLOTS - 1, &a)) /* "[…" is migrating */
            continue;
        b = a;
        if (range.n && !number(range, SL_REDIS_SLOTS - 1, &b))
            continue;
        if (b < a)
            continue;
        *first = (int)a;
        *last = (int)b;
        return true;
    }
    return false;
}

static bool info_field(const char *text, size_t n, const char *name, piece *out)
{
    piece rest = {text, n}, line, found;
    while (part(&rest, '\n', &line)) {
        if (line.n && line.p[line.n - 1] == '\r')
            line.n--;
        if (part(&line, ':', &found) && is(found, name)) {
            *out = line;
            return true;
        }
    }
    return false;
}

bool sl_redis_info_u64(const char *text, size_t n, const char *name, uint64_t *out)
{
    piece v;
    return info_field(text, n, name, &v) && number(v, UINT64_MAX, out);
}

bool sl_redis_info_text(const char *text, size_t n, const char *name, char *out, size_t cap)
{
    piece v;
    return info_field(text, n, name, &v) && text_of(v, out, cap);
}
