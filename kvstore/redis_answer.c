/*
 * What the answers of Redis mean: results of keys, redirections of a cluster, refusals, and what INFO says about memory. This
 * runs on the tier's thread, inside sl_redis_conn_read(), so a connection is never closed here: `broken` asks for it.
 */
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "kvstore/redis_impl.h"

static bool begins(const sl_redis_answer *a, const char *word)
{
    size_t n = strlen(word);
    return a->n >= n && memcmp(a->text, word, n) == 0;
}

/* The text of an answer for people: one line of printable characters. */
static void quote(const sl_redis_answer *a, char *out, size_t cap)
{
    size_t n = a->n < cap - 1 ? a->n : cap - 1;
    for (size_t i = 0; i < n; i++)
        out[i] = a->text[i] >= ' ' && a->text[i] < 127 && a->text[i] != '"' ? a->text[i] : '?';
    out[n] = '\0';
}

static void complain(sl_redis_tier *t, const sl_redis_answer *a)
{
    uint64_t now = sl_now_ns();
    char text[sizeof t->complaint];
    quote(a, text, sizeof text);
    if (!t->complaint_ns || now - t->complaint_ns > 10000000000ull)
        sl_log(SL_LOG_WARN, "tier", "redis_refused", "answer=\"%s\"", text);
    pthread_mutex_lock(&t->th.lock);
    memcpy(t->complaint, text, sizeof text);
    pthread_mutex_unlock(&t->th.lock);
    t->complaint_ns = now;
}

/* ---- what is stored ---- */

static size_t record_bytes(const sl_redis_tier *t)
{
    return SL_PAGE_RECORD_BYTES + t->o.page_bytes;
}

/* Sets t->full: why no page may be stored now. Names keys of the configuration, because its reader can change these. */
static void judge_room(sl_redis_tier *t)
{
    uint64_t used = t->unconfirmed;
    bool unlimited = false;
    char full[sizeof t->full] = "";
    for (int32_t i = 0; i < t->n_servers; i++) {
        const sl_redis_server *s = &t->servers[i];
        if (!s->wanted || s->conn->phase != SL_REDIS_READY)
            continue;
        used += s->used;
        unlimited = unlimited || !s->limit;
    }
    if (unlimited && !t->o.capacity_bytes)
        snprintf(full, sizeof full,
                 "kvstore.redis.bytes is 0 and the server has no maxmemory: nothing would limit the store");
    else if (t->o.capacity_bytes && used + record_bytes(t) > t->o.capacity_bytes)
        snprintf(full, sizeof full, "kvstore.redis.bytes: the server uses %lu of %lu bytes", used,
                 t->o.capacity_bytes);
    pthread_mutex_lock(&t->th.lock);
    memcpy(t->full, full, sizeof full);
    pthread_mutex_unlock(&t->th.lock);
}

static void on_info(sl_redis_server *s, const sl_redis_answer *a)
{
    sl_redis_tier *t = s->tier;
    if (a->type != SL_REDIS_BULK || !sl_redis_info_u64(a->text, a->n, "used_memory", &s->used)) {
        snprintf(s->conn->broken, sizeof s->conn->broken, "INFO memory has no used_memory");
        return;
    }
    if (!sl_redis_info_u64(a->text, a->n, "maxmemory", &s->limit))
        s->limit = 0;
    if (!sl_redis_info_text(a->text, a->n, "maxmemory_policy", s->policy, sizeof s->policy))
        s->policy[0] = '\0';
    t->unconfirmed = 0;
    if (s->conn->phase == SL_REDIS_READY)
        judge_room(t);
}

/* ---- results of keys ---- */

static void count(sl_redis_tier *t, uint64_t *counter, uint64_t *bytes)
{
    pthread_mutex_lock(&t->th.lock);
    (*counter)++;
    if (bytes)
        *bytes += record_bytes(t);
    pthread_mutex_unlock(&t->th.lock);
}

/* A damaged page is removed, so that it is not offered again. */
static void on_get(sl_redis_server *s, sl_redis_op *op, const sl_redis_answer *a)
{
    sl_redis_tier *t = s->tier;
    sl_key key = op->req->keys[op->i];
    char name[SL_PAGE_NAME_BYTES], digits[33];
    if (a->type == SL_REDIS_NIL) {
        count(t, &t->st.misses, NULL);
        sl_redis_end(t, op, SL_ERR_NOT_FOUND);
        return;
    }
    if (a->type == SL_REDIS_BULK && sl_page_record_verify((const uint8_t *)a->text, a->n, key, &t->o)) {
        sl_tier_scatter((const uint8_t *)a->text + SL_PAGE_RECORD_BYTES, &op->req->pages[op->i],
                        t->o.page_bytes);
        count(t, &t->st.hits, &t->st.bytes_read);
        sl_redis_end(t, op, SL_OK);
        return;
    }
    sl_page_name_key(key, digits);
    snprintf(name, sizeof name, "%.*s%s", SL_PAGE_NAME_BYTES - 33, t->stem, digits);
    sl_redis_control(s, SL_REDIS_IGNORE, 2, (const char *[]){"UNLINK", name});
    count(t, &t->st.damaged, NULL);
    sl_tier_thread_gone(&t->th, key);
    sl_redis_end(t, op, SL_ERR_CORRUPT);
}

static void on_probe(sl_redis_server *s, sl_redis_op *op, const sl_redis_answer *a)
{
    sl_redis_tier *t = s->tier;
    if (a->type == SL_REDIS_INTEGER && (uint64_t)a->integer == record_bytes(t)) {
        sl_redis_end(t, op, SL_OK);
        return;
    }
    if (t->o.capacity_bytes)
        judge_room(t); /* with what was sent since the last INFO */
    if (t->full[0]) {
        sl_redis_end(t, op, SL_ERR_EXHAUSTED);
        return;
    }
    t->unconfirmed += record_bytes(t);
    op->command = SL_REDIS_SET;
    sl_redis_dispatch(t, op, (int32_t)(s - t->servers));
}

static void on_key(sl_redis_server *s, sl_redis_op *op, const sl_redis_answer *a)
{
    sl_redis_tier *t = s->tier;
    switch (op->command) {
    case SL_REDIS_EXISTS:
        sl_redis_end(t, op,
                     a->type == SL_REDIS_INTEGER && (uint64_t)a->integer == record_bytes(t)
                         ? SL_OK
                         : SL_ERR_NOT_FOUND);
        break;
    case SL_REDIS_GET:
        on_get(s, op, a);
        break;
    case SL_REDIS_PROBE:
        on_probe(s, op, a);
        break;
    case SL_REDIS_SET:
        count(t, &t->st.sets, &t->st.bytes_written);
        sl_redis_end(t, op, SL_OK);
        break;
    default: /* SL_REDIS_REMOVE */
        sl_redis_end(t, op, a->type == SL_REDIS_INTEGER && a->integer > 0 ? SL_OK : SL_ERR_NOT_FOUND);
        break;
    }
}

/* ---- errors ---- */

static void on_key_error(sl_redis_server *s, sl_redis_op *op, const sl_redis_answer *a)
{
    sl_redis_tier *t = s->tier;
    sl_redis_redirect to;
    if (sl_redis_redirect_parse(a->text, a->n, &to) && op->redirects++ < SL_REDIS_REDIRECTS) {
        op->asking = to.ask;
        int32_t server = sl_redis_learn_redirect(t, (int32_t)(s - t->servers), &to);
        if (server < 0) {
            sl_redis_end(t, op, SL_ERR_IO);
            return;
        }
        if (op->command == SL_REDIS_SET && !to.ask)
            op->command = SL_REDIS_PROBE; /* the page may be there already */
        sl_redis_dispatch(t, op, server);
        if (!to.ask)
            sl_redis_ask_nodes(t);
        return;
    }
    complain(t, a);
    bool other_type = begins(a, "WRONGTYPE"); /* another program's value under this name: not a page */
    if (begins(a, "NOAUTH"))
        snprintf(s->conn->broken, sizeof s->conn->broken,
                 "the server wants a password (kvstore.redis.password_file)");
    if (op->command == SL_REDIS_SET && begins(a, "OOM"))
        sl_redis_end(t, op, SL_ERR_EXHAUSTED);
    else
        sl_redis_end(t, op, other_type && op->req->op != SL_TIER_SET ? SL_ERR_NOT_FOUND : SL_ERR_IO);
}

/* A refusal of the handshake. Wrong credentials do not become right by themselves, so open fails with them in any case. */
static void on_refused(sl_redis_server *s, const sl_redis_op *op, const sl_redis_answer *a)
{
    sl_redis_tier *t = s->tier;
    char text[96];
    const char *key = NULL;
    quote(a, text, sizeof text);
    if (begins(a, "WRONGPASS") || begins(a, "NOAUTH") || begins(a, "ERR invalid password") ||
        begins(a, "ERR AUTH") || begins(a, "ERR Client sent AUTH"))
        key = "kvstore.redis.password_file";
    else if (begins(a, "NOPERM"))
        key = "kvstore.redis.user";
    else if (op->command == SL_REDIS_LOGIN)
        key = "kvstore.redis.database";
    snprintf(s->conn->broken, sizeof s->conn->broken, "%s%s%s", key ? key : "", key ? ": " : "", text);
    pthread_mutex_lock(&t->th.lock);
    if (key && t->outcome == SL_REDIS_TRYING) {
        t->outcome = SL_REDIS_REJECTED;
        sl_fail(&t->first, SL_ERR_REFUSED, "%s: the server answered: %s", key, text);
    }
    pthread_mutex_unlock(&t->th.lock);
}

static void after_handshake(sl_redis_server *s)
{
    sl_redis_tier *t = s->tier;
    sl_redis_ready(s);
    judge_room(t);
    pthread_mutex_lock(&t->th.lock);
    if (t->outcome == SL_REDIS_TRYING && t->foreign[0] && t->o.required) {
        t->outcome = SL_REDIS_REJECTED;
        sl_fail(
            &t->first, SL_ERR_DENIED,
            "kvstore.redis.nodes: the cluster has a server at %s, which is not listed; add it, or its network, if it "
            "belongs to the cluster",
            t->foreign);
    }
    if (t->outcome == SL_REDIS_TRYING && t->full[0] && !t->o.capacity_bytes) {
        t->outcome = SL_REDIS_REJECTED;
        sl_fail(&t->first, SL_ERR_INVALID, "%s; set one of the two", t->full);
    }
    pthread_mutex_unlock(&t->th.lock);
}

/* ---- commands that are not for a key ---- */

static void on_control(sl_redis_server *s, sl_redis_command command, const sl_redis_answer *a)
{
    sl_redis_tier *t = s->tier;
    uint64_t enabled = 0;
    switch (command) {
    case SL_REDIS_INFO:
        on_info(s, a);
        break;
    case SL_REDIS_MODE:
        if (a->type == SL_REDIS_BULK && sl_redis_info_u64(a->text, a->n, "cluster_enabled", &enabled) &&
            enabled)
            t->clustered = true;
        if (t->clustered && s == &t->servers[0]) /* the first list is part of the handshake */
            s->listed = sl_redis_control(s, SL_REDIS_LIST, 2, (const char *[]){"CLUSTER", "NODES"});
        if (!s->listed)
            after_handshake(s);
        break;
    case SL_REDIS_LIST:
        s->listed = false;
        if (a->type == SL_REDIS_BULK)
            sl_redis_learn_nodes(t, (int32_t)(s - t->servers), a->text, a->n);
        if (s->conn->phase == SL_REDIS_HANDSHAKE)
            after_handshake(s);
        break;
    case SL_REDIS_SIZE:
        s->keys = a->type == SL_REDIS_INTEGER && a->integer > 0 ? (uint64_t)a->integer : 0;
        break;
    default: /* SL_REDIS_LOGIN, SL_REDIS_IGNORE */
        break;
    }
}

void sl_redis_on_answer(sl_redis_conn *c, const sl_redis_answer *a)
{
    sl_redis_server *s = c->owner;
    sl_redis_op *op = s->sent.head;
    char text[80];
    if (!op ||
        c->written < op->end) { /* the memory of an unfinished command may still be in use: not answered */
        quote(a, text, a->text ? sizeof text : 1);
        snprintf(c->broken, sizeof c->broken, "an answer came before its command was complete: %s", text);
        return;
    }
    sl_list_pop(&s->sent);
    if (op->req && a->type == SL_REDIS_ERROR) {
        on_key_error(s, op, a);
    } else if (op->req) {
        on_key(s, op, a);
    } else {
        sl_redis_command command = op->command;
        if (a->type == SL_REDIS_ERROR && c->phase == SL_REDIS_HANDSHAKE)
            on_refused(s, op, a);
        sl_redis_op_free(s->tier, op);
        if (a->type != SL_REDIS_ERROR)
            on_control(s, command, a);
        else if (command == SL_REDIS_LIST)
            s->listed = false;
    }
}
