/* Shared by all transports: registry, options, address text, operation records. Contract: transport.h. */
#include "transport/transport.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "transport/transport_impl.h"

static const sl_transport_ops *const registry[] = {&sl_transport_ucx, &sl_transport_loopback};

const sl_transport_ops *sl_transport_at(size_t i)
{
    return i < SL_COUNT(registry) ? registry[i] : NULL;
}

const sl_transport_ops *sl_transport_find(const char *name)
{
    for (size_t i = 0; i < SL_COUNT(registry); i++)
        if (strcmp(registry[i]->name, name) == 0)
            return registry[i];
    return NULL;
}

sl_status sl_transport_create(const char *name, const sl_tp_options *opts, sl_transport **out, sl_err *err)
{
    const sl_transport_ops *ops = sl_transport_find(name);
    if (!ops)
        return sl_fail(err, SL_ERR_INVALID, "transport \"%s\" is unknown (ucx, loopback)", name);
    return ops->create(opts, out, err);
}

sl_tp_options sl_tp_options_default(void)
{
    return (sl_tp_options){.numa_node = -1,
                           .connect_timeout_ms = 5000,
                           .keepalive_ms = 2000,
                           .max_pending = 65536,
                           .fabric = "default"};
}

/* Empty means default, as it does in configuration files. */
static bool copy_string(const char **s)
{
    if (*s && !**s)
        *s = NULL;
    return !*s || (*s = strdup(*s)) != NULL;
}

sl_status sl_tp_options_copy(sl_tp_options *dst, const sl_tp_options *src)
{
    sl_tp_options def = sl_tp_options_default(), o = *src;
    o.connect_timeout_ms = o.connect_timeout_ms ? o.connect_timeout_ms : def.connect_timeout_ms;
    o.keepalive_ms = o.keepalive_ms ? o.keepalive_ms : def.keepalive_ms;
    o.max_pending = o.max_pending ? o.max_pending : def.max_pending;
    o.fabric = o.fabric && *o.fabric ? o.fabric : def.fabric;
    bool ok = copy_string(&o.tls);
    ok &= copy_string(&o.net_devices);
    ok &= copy_string(&o.sockaddr_priority);
    ok &= copy_string(&o.extra);
    ok &= copy_string(&o.fabric);
    ok &= copy_string(&o.secret);
    if (!ok) {
        sl_tp_options_free(&o);
        return SL_ERR_NO_MEMORY;
    }
    *dst = o;
    return SL_OK;
}

void sl_tp_options_free(sl_tp_options *o)
{
    free((char *)o->tls);
    free((char *)o->net_devices);
    free((char *)o->sockaddr_priority);
    free((char *)o->extra);
    free((char *)o->fabric);
    free((char *)o->secret);
    o->tls = o->net_devices = o->sockaddr_priority = o->extra = o->fabric = o->secret = NULL;
}

/* The buffer's address is the cookie, so an owned send costs no extra allocation. */
static void free_owned(void *cookie, sl_status st)
{
    (void)st;
    free(cookie);
}

sl_status sl_tp_send_owned(sl_tp_ep *ep, uint16_t id, void *data, size_t bytes)
{
    sl_status st = sl_tp_send(ep, id, NULL, 0, data, bytes, free_owned, data);
    if (st != SL_OK)
        free(data);
    return st;
}

static sl_status parse_port(const char *text, const char *digits, uint16_t *port, sl_err *err)
{
    uint32_t v = 0;
    size_t n = strlen(digits);
    if (n == 0 || n > 5)
        return sl_fail(err, SL_ERR_INVALID, "address \"%.100s\": bad port", text);
    for (size_t i = 0; i < n; i++) {
        if (digits[i] < '0' || digits[i] > '9')
            return sl_fail(err, SL_ERR_INVALID, "address \"%.100s\": bad port", text);
        v = v * 10 + (uint32_t)(digits[i] - '0');
    }
    if (v > UINT16_MAX)
        return sl_fail(err, SL_ERR_INVALID, "address \"%.100s\": port above 65535", text);
    *port = (uint16_t)v;
    return SL_OK;
}

sl_status sl_tp_address_parse(const char *text, char *host, size_t cap, uint16_t *port, sl_err *err)
{
    const char *begin = text, *end = strrchr(text, ':');
    if (!end)
        return sl_fail(err, SL_ERR_INVALID, "address \"%.100s\": expected host:port", text);
    const char *digits = end + 1;
    if (*text == '[') {
        begin = text + 1;
        if (end == text || end[-1] != ']' || end - 1 <= begin)
            return sl_fail(err, SL_ERR_INVALID, "address \"%.100s\": expected [v6]:port", text);
        end--;
    } else if (memchr(text, ':', (size_t)(end - text))) {
        return sl_fail(err, SL_ERR_INVALID, "address \"%.100s\": write IPv6 as [v6]:port", text);
    }
    size_t n = (size_t)(end - begin);
    if (n >= cap || memchr(begin, ']', n) || memchr(begin, '[', n))
        return sl_fail(err, SL_ERR_INVALID, "address \"%.100s\": bad host", text);
    uint16_t value = 0;
    SL_TRY(parse_port(text, digits, &value, err));
    memcpy(host, begin, n);
    host[n] = 0;
    *port = value;
    return SL_OK;
}

enum { OPS_PER_CHUNK = 128 };

static bool grow(sl_tp_op_pool *pool, bool with_header)
{
    size_t each = sizeof(sl_tp_op) + (with_header ? SL_TP_OP_HEADER : 0);
    void **chunks = realloc(pool->chunks, (pool->n_chunks + 1) * sizeof(void *));
    if (!chunks)
        return false;
    pool->chunks = chunks;
    uint8_t *mem = calloc(OPS_PER_CHUNK, each);
    if (!mem)
        return false;
    chunks[pool->n_chunks++] = mem;
    for (size_t i = 0; i < OPS_PER_CHUNK; i++) {
        sl_tp_op *op = (sl_tp_op *)(void *)(mem + i * each);
        op->header = with_header ? (uint8_t *)(op + 1) : NULL;
        sl_tp_op_put(pool, op);
    }
    return true;
}

sl_tp_op *sl_tp_op_get(sl_tp_op_pool *pool, bool with_header)
{
    sl_tp_op **list = with_header ? &pool->free_header : &pool->free_plain;
    if (!*list && !grow(pool, with_header))
        return NULL;
    sl_tp_op *op = *list;
    *list = op->next;
    *op = (sl_tp_op){.header = op->header};
    return op;
}

void sl_tp_op_put(sl_tp_op_pool *pool, sl_tp_op *op)
{
    sl_tp_op **list = op->header ? &pool->free_header : &pool->free_plain;
    free(op->sealed);
    op->sealed = NULL;
    op->done = NULL;
    op->next = *list;
    *list = op;
}

/* Frees the buffers of operations that have not completed: those that sl_tp_send_owned took over, and encrypted ones. */
static void free_owned_of(uint8_t *chunk)
{
    size_t each = sizeof(sl_tp_op) + (((sl_tp_op *)(void *)chunk)->header ? SL_TP_OP_HEADER : 0);
    for (size_t i = 0; i < OPS_PER_CHUNK; i++) {
        sl_tp_op *op = (sl_tp_op *)(void *)(chunk + i * each);
        if (op->done == free_owned)
            free(op->cookie);
        free(op->sealed);
    }
}

void sl_tp_op_pool_free(sl_tp_op_pool *pool)
{
    for (size_t i = 0; i < pool->n_chunks; i++) {
        free_owned_of(pool->chunks[i]);
        free(pool->chunks[i]);
    }
    free(pool->chunks);
    *pool = (sl_tp_op_pool){0};
}

void sl_tp_stats_done(sl_tp_stats *stats, const sl_tp_op *op)
{
    if (op->status != SL_OK) {
        stats->failed_ops++;
        return;
    }
    switch (op->kind) {
    case SL_TP_OP_PUT:
        stats->puts++;
        stats->bytes_put += op->bytes;
        stats->device_bytes_put += op->device ? op->bytes : 0;
        break;
    case SL_TP_OP_GET:
        stats->gets++;
        stats->bytes_got += op->bytes;
        break;
    case SL_TP_OP_FLUSH:
        stats->flushes++;
        break;
    case SL_TP_OP_SEND:
        stats->messages_sent++;
        stats->message_bytes_sent += op->bytes;
        break;
    case SL_TP_OP_CONTROL:
        break;
    }
}
