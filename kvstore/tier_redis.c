/*
 * The Redis tier as its owner sees it: pages in a server that speaks the protocol of Redis, or in a Redis Cluster, shared with
 * other Sluice clusters. The commands are sent by a thread of its own (redis_io.c).
 *
 * What the contract of kvstore/tier.h means here:
 *   - A page is one string, named by page_record.h, whose value carries length and checksum. A name contains model,
 *     numeric convention and geometry, so clusters of other ones never meet.
 *   - The server evicts, by its own maxmemory and policy. Nothing can be pinned: exists marks the pages as used, so that
 *     the server evicts others first, and extends their time to live (ttl_s) to the lease at least. A page that is evicted
 *     nevertheless is a miss of the get. release does nothing.
 *   - capacity_bytes limits what this process adds: no page is stored while the server uses more memory than that (read
 *     once in a second, and counted in between). 0: the maxmemory of the server alone, which then must not be 0.
 *   - stats: pages are the keys and bytes the memory of all servers, whoever uses it, as of the last second.
 */
#include <ctype.h>
#include <errno.h>
#include <hiredis/hiredis.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/log.h"
#include "kvstore/redis_impl.h"

#define READ_BYTES ((uint64_t)32 << 20)
#define WRITE_BYTES ((uint64_t)8 << 20)

static void r_health(sl_tier *base, sl_tier_health *out)
{
    sl_redis_tier *t = (sl_redis_tier *)base;
    pthread_mutex_lock(&t->th.lock);
    *out = t->health;
    pthread_mutex_unlock(&t->th.lock);
}

static void r_submit(sl_tier *base, sl_tier_req *r)
{
    sl_tier_thread_submit(&((sl_redis_tier *)base)->th, r);
}

static void r_cancel(sl_tier *base, sl_tier_req *r)
{
    sl_tier_thread_cancel(&((sl_redis_tier *)base)->th, r);
}

static int r_fd(const sl_tier *base)
{
    return ((const sl_redis_tier *)base)->th.event;
}

static int r_poll(sl_tier *base)
{
    return sl_tier_thread_poll(&((sl_redis_tier *)base)->th);
}

static void r_release(sl_tier *base, const sl_key *keys, int32_t n)
{
    (void)base, (void)keys, (void)n; /* nothing is pinned */
}

static void r_stats(sl_tier *base, sl_tier_stats *out)
{
    sl_redis_tier *t = (sl_redis_tier *)base;
    pthread_mutex_lock(&t->th.lock);
    *out = t->st;
    pthread_mutex_unlock(&t->th.lock);
}

/* For tests: a connection of its own, to one server without a cluster. */
static bool r_damage(sl_tier *base, sl_key key)
{
    sl_redis_tier *t = (sl_redis_tier *)base;
    const sl_redis_address *at = &t->servers[0].conn->at;
    char digits[33];
    bool done = false;
    size_t where = SL_PAGE_RECORD_BYTES + t->o.page_bytes / 2;
    redisContext *c = at->port ? redisConnect(at->host, at->port) : redisConnectUnix(at->host);
    sl_page_name_key(key, digits);
    if (c && !c->err) {
        if (t->r.password[0])
            freeReplyObject(redisCommand(c, "AUTH %s", t->r.password));
        redisReply *old = redisCommand(c, "GETRANGE %s%s %lu %lu", t->stem, digits, (unsigned long)where,
                                       (unsigned long)where);
        if (old && old->type == REDIS_REPLY_STRING && old->len == 1) {
            char changed = (char)(old->str[0] ^ 0x40);
            freeReplyObject(redisCommand(c, "SETRANGE %s%s %lu %b", t->stem, digits, (unsigned long)where,
                                         &changed, (size_t)1));
            done = true;
        }
        freeReplyObject(old);
    }
    if (c)
        redisFree(c);
    return done;
}

/* ---- open and close ---- */

static void free_tier(sl_redis_tier *t)
{
    for (int32_t i = 0; i < t->n_servers; i++)
        sl_redis_conn_free(t->servers[i].conn);
    sl_tier_thread_free(&t->th);
    pthread_cond_destroy(&t->met);
    explicit_bzero(t->r.password, sizeof t->r.password);
    free(t);
}

static void r_close(sl_tier *base)
{
    sl_redis_tier *t = (sl_redis_tier *)base;
    sl_tier_thread_stop(&t->th);
    sl_tier_thread_drain(&t->th);
    free_tier(t);
}

static sl_status check_prefix(const char *prefix, sl_err *err)
{
    size_t n = strlen(prefix);
    bool right = n >= 1 && n <= SL_PAGE_PREFIX_MAX;
    for (size_t i = 0; i < n; i++)
        right = right && (isalnum((unsigned char)prefix[i]) || strchr("_-.", prefix[i]));
    return right ? SL_OK
                 : sl_fail(err, SL_ERR_INVALID,
                           "kvstore.prefix: \"%.64s\": want 1 to %d letters, digits, '_', '-' or '.'", prefix,
                           SL_PAGE_PREFIX_MAX);
}

static int32_t depth(uint64_t bytes, const sl_tier_opts *o)
{
    uint64_t n = bytes / (SL_PAGE_RECORD_BYTES + o->page_bytes);
    if (o->queue_depth > 0)
        return o->queue_depth < 1024 ? o->queue_depth : 1024;
    return n < 2 ? 2 : n > 128 ? 128 : (int32_t)n;
}

static sl_status prepare(sl_redis_tier *t, const sl_tier_opts *o, sl_err *err)
{
    sl_redis_address at;
    const sl_redis_options *r = o->options;
    if (!r)
        return sl_fail(err, SL_ERR_INVALID, "tier redis: options are mandatory");
    if (!o->page_bytes || o->page_bytes > (size_t)256 << 20)
        return sl_fail(err, SL_ERR_INVALID, "tier redis: pages of %zu bytes: a value has at most 256 MiB",
                       o->page_bytes);
    if (o->capacity_bytes && o->capacity_bytes < o->page_bytes)
        return sl_fail(err, SL_ERR_INVALID, "kvstore.redis.bytes: %lu bytes hold no page of %zu",
                       o->capacity_bytes, o->page_bytes);
    SL_TRY(check_prefix(o->prefix ? o->prefix : "", err));
    sl_status st = sl_redis_address_parse(r->address, &at, err);
    if (st != SL_OK)
        return sl_fail_in(err, st, "kvstore.redis.address");
    t->o = *o;
    t->r = *r;
    t->o.options = NULL, t->o.prefix = t->o.instance = NULL;
    for (int i = 0; i < r->nodes.n; i++)
        if ((st = sl_redis_rule_parse(r->nodes.v[i], &t->rules[i], err)) != SL_OK)
            return sl_fail_in(err, st, "kvstore.redis.nodes");
    t->r.timeout_ms = r->timeout_ms ? r->timeout_ms : 2000;
    sl_page_name_stem(o->prefix, o, ':', t->stem);
    t->depth_reads = depth(READ_BYTES, o);
    t->depth_writes = depth(WRITE_BYTES, o);
    memset(t->slots, -1, sizeof t->slots);
    for (int i = 0; i < SL_REDIS_OPS; i++)
        sl_redis_op_free(t, &t->pool[i]);
    return sl_redis_server_add(t, &at) == 0 ? SL_OK
                                            : sl_fail(err, SL_ERR_NO_MEMORY, "tier redis: out of memory");
}

/* Waits for the first attempt to connect, whose length the thread limits. */
static sl_status meet(sl_redis_tier *t, sl_err *err)
{
    pthread_mutex_lock(&t->th.lock);
    while (t->outcome == SL_REDIS_TRYING)
        pthread_cond_wait(&t->met, &t->th.lock);
    sl_redis_outcome outcome = t->outcome;
    sl_err first = t->first;
    pthread_mutex_unlock(&t->th.lock);
    switch (outcome) {
    case SL_REDIS_REJECTED: {
        bool room = strncmp(first.text, "kvstore.redis.bytes", 19) == 0;
        return sl_fail(err, room ? SL_ERR_INVALID : SL_ERR_DENIED, "%.400s", first.text);
    }
    case SL_REDIS_UNREACHED:
        if (t->o.required)
            return sl_fail(err, SL_ERR_IO, "kvstore.redis.address: %.400s", first.text);
        sl_log(SL_LOG_WARN, "tier", "redis_unreachable", "reason=\"%s\" effect=\"started without it\"",
               first.text);
        return SL_OK;
    default:
        return SL_OK;
    }
}

static sl_status r_open(const sl_tier_opts *o, sl_tier **out, sl_err *err)
{
    sl_redis_tier *t = calloc(1, sizeof *t);
    if (!t)
        return sl_fail(err, SL_ERR_NO_MEMORY, "tier redis: out of memory");
    t->base.ops = &sl_tier_redis_ops;
    pthread_cond_init(&t->met, NULL);
    sl_status st = sl_tier_thread_init(&t->th, o);
    if (st != SL_OK)
        sl_fail(err, st, "tier redis: out of descriptors");
    if (st == SL_OK)
        st = prepare(t, o, err);
    if (st == SL_OK && (st = sl_tier_thread_start(&t->th, sl_redis_main, t)) != SL_OK)
        sl_fail(err, st, "tier redis: no thread");
    if (st == SL_OK)
        st = meet(t, err);
    if (st != SL_OK) {
        sl_tier_thread_stop(&t->th);
        free_tier(t);
        return st;
    }
    *out = &t->base;
    return SL_OK;
}

const sl_tier_ops sl_tier_redis_ops = {.name = "redis",
                                       .description = "pages in a server that speaks the protocol of Redis",
                                       .options = &sl_redis_table,
                                       .shared = true,
                                       .open = r_open,
                                       .close = r_close,
                                       .fd = r_fd,
                                       .submit = r_submit,
                                       .cancel = r_cancel,
                                       .release = r_release,
                                       .poll = r_poll,
                                       .health = r_health,
                                       .stats = r_stats,
                                       .damage = r_damage};
