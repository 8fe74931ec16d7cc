/*
 * The registry of fronts, and what they share.
 */
#include "router/front.h"

#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <strings.h>

static const sl_front_class *const fronts[SL_FRONTS] = {&sl_front_http, &sl_front_grpc};

const sl_front_class *sl_front_at(size_t i)
{
    return i < SL_COUNT(fronts) ? fronts[i] : NULL;
}

bool sl_front_key_ok(const char *authorization, const char *key)
{
    if (!key || !*key)
        return true;
    if (!authorization || strncasecmp(authorization, "Bearer ", 7))
        return false;
    const char *got = authorization + 7;
    size_t n = strlen(got), k = strlen(key);
    unsigned diff = n != k;
    for (size_t i = 0; i < n; i++)
        diff |= (unsigned char)got[i] ^ (unsigned char)key[i % k];
    return !diff;
}

bool sl_front_caller(sl_router *r, const char *authorization, const struct sockaddr *peer, sl_caller *out)
{
    const sl_router_opts *o = sl_router_options(r);
    bool has_file = o->front.keys_file && *o->front.keys_file,
         has_key = o->front.api_key && *o->front.api_key;
    *out = (sl_caller){0};
    sl_front_client(peer, out->client);
    if ((has_key || !has_file) && sl_front_key_ok(authorization, o->front.api_key)) {
        out->admin = true;
        return true;
    }
    if (!has_file || !authorization || strncasecmp(authorization, "Bearer ", 7))
        return false;
    const char *name = sl_router_tenant(r, authorization + 7, &out->admin);
    out->tenant = name != NULL;
    if (name)
        snprintf(out->client, sizeof out->client, "%s", name);
    return name != NULL;
}

/* As inet_ntop() writes it, without printf, because every request needs it. */
static void ip4_text(const struct in_addr *a, char *out)
{
    const uint8_t *b = (const uint8_t *)a;
    for (int i = 0; i < 4; i++) {
        if (b[i] >= 100)
            *out++ = (char)('0' + b[i] / 100);
        if (b[i] >= 10)
            *out++ = (char)('0' + b[i] / 10 % 10);
        *out++ = (char)('0' + b[i] % 10);
        *out++ = i < 3 ? '.' : 0;
    }
}

void sl_front_client(const struct sockaddr *a, char out[SL_CLIENT_MAX])
{
    out[0] = 0;
    if (a && a->sa_family == AF_INET) {
        ip4_text(&((const struct sockaddr_in *)a)->sin_addr, out);
    } else if (a && a->sa_family == AF_INET6) {
        struct sockaddr_in6 net = *(const struct sockaddr_in6 *)a;
        if (!IN6_IS_ADDR_V4MAPPED(&net.sin6_addr))
            memset(net.sin6_addr.s6_addr + 8, 0, 8);
        uv_ip6_name(&net, out, SL_CLIENT_MAX);
    }
}

uint32_t sl_front_per_address(const sl_router_opts *o)
{
    return o->front.max_connections > 1 ? o->front.max_connections / 2 : 1;
}

enum { COMPILE_WAIT_US = 2000 };
static pthread_mutex_t compile_lock = PTHREAD_MUTEX_INITIALIZER; /* of sl_front_compiling, held for moments */

/* Whether it is this turn now: nothing compiles, and no earlier turn waits. */
static bool begins(sl_front_compiling *c, size_t slot)
{
    bool first = !c->busy;
    for (size_t i = 0; i < SL_COUNT(c->turns); i++)
        first = first && (!c->turns[i] || c->turns[i] >= c->turns[slot]);
    if (first) {
        c->busy = true;
        c->turns[slot] = 0;
    }
    return first;
}

/* Waits for the turns before this one, in the order of coming: a client has few jobs on the pool, so that another one waits for few texts.
 * CANCELLED: the job's caller has gone. */
static sl_status take_turn(sl_front_compiling *c, sl_guard *guard, sl_err *err)
{
    size_t slot = 0;
    pthread_mutex_lock(&compile_lock);
    while (slot < SL_COUNT(c->turns) && c->turns[slot])
        slot++;
    SL_CHECK(slot < SL_COUNT(c->turns), "more jobs than the pool has threads");
    c->turns[slot] = ++c->last;
    for (;;) {
        if (begins(c, slot)) {
            pthread_mutex_unlock(&compile_lock);
            return SL_OK;
        }
        pthread_mutex_unlock(&compile_lock);
        usleep(COMPILE_WAIT_US);
        sl_status st = sl_guard_check(guard, err);
        pthread_mutex_lock(&compile_lock);
        if (st) {
            c->turns[slot] = 0;
            pthread_mutex_unlock(&compile_lock);
            return st;
        }
    }
}

static void end_turn(sl_front_compiling *c)
{
    pthread_mutex_lock(&compile_lock);
    c->busy = false;
    pthread_mutex_unlock(&compile_lock);
}

/* One text compiles at a time: it takes much memory for its length, and what it takes cannot be given back before its end. */
static sl_status compile_constraint(sl_router *r, const sl_sampling *s, const char *text, sl_guard *guard,
                                    sl_err *why)
{
    sl_front_compiling *compiling = &sl_router_shared(r)->compiling;
    const uint64_t bytes = sl_grammar_bytes(s->n_grammar);
    SL_TRY(take_turn(compiling, guard, why));
    sl_status st = sl_guard_take(guard, bytes, why), kept = st;
    if (!st)
        st = sl_grammar_check(sl_router_model(r)->grammars, s->constraint, text, s->n_grammar, why);
    if (!kept)
        sl_guard_give(guard, bytes);
    end_turn(compiling);
    return st == SL_ERR_TOO_LARGE && !kept ? SL_ERR_INVALID : st;
}

sl_status sl_front_check_constraint(sl_router *r, const sl_sampling *s, const char *field, sl_guard *guard,
                                    sl_err *err)
{
    sl_err why = {""};
    const char *text = s->grammar ? s->grammar : "";
    if (sl_grammar_known(sl_router_model(r)->grammars, s->constraint, text, s->n_grammar))
        return SL_OK;
    sl_status st = compile_constraint(r, s, text, guard, &why);
    if (st == SL_ERR_CANCELLED || st == SL_ERR_EXHAUSTED || st == SL_ERR_TOO_LARGE)
        return sl_fail(err, st, "%s", why.text);
    if (st == SL_OK)
        return SL_OK;
    if (st == SL_ERR_UNSUPPORTED)
        return sl_fail(err, st, "%s: this server cannot constrain answers: %.250s", field, why.text);
    return sl_fail(err, st == SL_ERR_NO_MEMORY ? st : SL_ERR_INVALID, "%s: %.300s", field, why.text);
}

/* 12 ms for each KiB of a hostile schema (tests/unit/model/test_grammar.c), where a text of this length takes 0.2. */
size_t sl_front_constraint_cost(const sl_sampling *s)
{
    return s->constraint ? 64 * s->n_grammar : 0;
}

void sl_front_count_refused(sl_router *r, const char *api, sl_status st)
{
    if (st != SL_ERR_EXHAUSTED)
        sl_router_stats_request(sl_router_get_stats(r), api, sl_router_stats_outcome(st));
}
