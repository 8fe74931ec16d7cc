/*
 * The Redis tier's thread: takes keys from the queues, sends their commands to the servers that have them, and keeps the
 * connections. What the answers mean is in redis_answer.c.
 *
 * Everything is pipelined: a connection has many commands in flight, and answers come in their order. So the pages of a
 * batch are asked for in one round trip, although Redis has no command that says for each of several keys whether it
 * exists. Pages in flight are limited by bytes, so that a reader waits for at most 8 MiB of pages that are written.
 *
 * A command whose connection is lost ends with SL_ERR_IO, which is a miss for the owner: it is not sent again,
 * because the owner can compute the page while a retry could wait for seconds. A lost server is tried again after
 * 50 ms, later after up to 5 s.
 */
#include <poll.h>
#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "kvstore/redis_impl.h"

#define SECOND_NS 1000000000ull

const char *sl_redis_at_text(const sl_redis_address *a, char out[SL_REDIS_HOST_BYTES + 16])
{
    if (a->port)
        snprintf(out, SL_REDIS_HOST_BYTES + 16, strchr(a->host, ':') ? "[%s]:%d" : "%s:%d", a->host, a->port);
    else
        snprintf(out, SL_REDIS_HOST_BYTES + 16, "unix:%s", a->host);
    return out;
}

/* ---- commands ---- */

static sl_redis_op *op_take(sl_redis_tier *t, sl_redis_command command)
{
    sl_redis_op *op = t->unused;
    if (!op)
        return NULL;
    t->unused = op->next;
    t->n_unused--;
    *op = (sl_redis_op){.command = command, .slot = -1, .start_ns = sl_now_ns()};
    return op;
}

void sl_redis_op_free(sl_redis_tier *t, sl_redis_op *op)
{
    op->next = t->unused;
    t->unused = op;
    t->n_unused++;
}

static void count_failure(sl_redis_tier *t, const sl_redis_op *op, sl_status st)
{
    bool set = op->req->op == SL_TIER_SET;
    pthread_mutex_lock(&t->th.lock);
    t->st.io_errors += st == SL_ERR_IO;
    t->st.not_stored_io += set && st == SL_ERR_IO;
    t->st.not_stored_room += set && st == SL_ERR_EXHAUSTED;
    pthread_mutex_unlock(&t->th.lock);
}

void sl_redis_end(sl_redis_tier *t, sl_redis_op *op, sl_status st)
{
    t->reads -= op->req->op == SL_TIER_GET;
    t->writes -= op->req->op == SL_TIER_SET;
    if (st == SL_ERR_IO || st == SL_ERR_EXHAUSTED)
        count_failure(t, op, st);
    sl_tier_thread_end_key(&t->th, op->req, op->i, st);
    sl_redis_op_free(t, op);
}

static void sent(sl_redis_server *s, sl_redis_op *op)
{
    op->end = s->conn->queued;
    sl_list_push(&s->sent, op);
}

bool sl_redis_control(sl_redis_server *s, sl_redis_command command, int argc, const char *const *argv)
{
    sl_redis_op *op = op_take(s->tier, command);
    if (!op)
        return false;
    if (sl_redis_conn_command(s->conn, argc, argv) != SL_OK) {
        sl_redis_op_free(s->tier, op);
        return false;
    }
    sent(s, op);
    return true;
}

static void name_of(const sl_redis_tier *t, const sl_redis_op *op, char out[SL_PAGE_NAME_BYTES])
{
    char key[33];
    sl_page_name_key(op->req->keys[op->i], key);
    snprintf(out, SL_PAGE_NAME_BYTES, "%.*s%s", SL_PAGE_NAME_BYTES - 33, t->stem, key);
}

static sl_status store(sl_redis_tier *t, sl_redis_server *s, const sl_redis_op *op, const char *name)
{
    uint8_t head[SL_PAGE_RECORD_BYTES];
    const sl_tier_page *page = &op->req->pages[op->i];
    sl_page_record r = sl_page_record_of(page, op->req->keys[op->i], &t->o);
    sl_page_record_write(&r, head);
    return sl_redis_conn_store(s->conn, name, t->r.ttl_s, head, sizeof head, page->spans, page->n_spans);
}

/* A page that is asked for or read is used: its time to live begins again. The answer of this command comes before that of
 * the key's own, so a page that is found lives at least as long as the lease. */
static void extend(sl_redis_tier *t, sl_redis_server *s, const sl_redis_op *op, const char *name)
{
    char ttl[24];
    uint64_t ms = t->r.ttl_s * 1000ull;
    if (!ms || (op->command != SL_REDIS_EXISTS && op->command != SL_REDIS_GET))
        return;
    if (ms < op->req->lease_ms && op->command == SL_REDIS_EXISTS)
        ms = op->req->lease_ms;
    snprintf(ttl, sizeof ttl, "%llu", (unsigned long long)ms);
    sl_redis_control(s, SL_REDIS_IGNORE, 3, (const char *[]){"PEXPIRE", name, ttl});
}

static void send_key(sl_redis_tier *t, sl_redis_server *s, sl_redis_op *op)
{
    static const char *const word[] = {[SL_REDIS_EXISTS] = "STRLEN",
                                       [SL_REDIS_PROBE] = "STRLEN",
                                       [SL_REDIS_GET] = "GET",
                                       [SL_REDIS_REMOVE] = "UNLINK"};
    char name[SL_PAGE_NAME_BYTES];
    sl_status st;
    name_of(t, op, name);
    if (op->asking)
        sl_redis_control(s, SL_REDIS_IGNORE, 1, (const char *[]){"ASKING"});
    else
        extend(t, s, op, name);
    if (op->command == SL_REDIS_SET)
        st = store(t, s, op, name);
    else
        st = sl_redis_conn_command(s->conn, 2, (const char *[]){word[op->command], name});
    if (st != SL_OK) {
        sl_redis_end(t, op, SL_ERR_IO);
        return;
    }
    sent(s, op);
}

void sl_redis_dispatch(sl_redis_tier *t, sl_redis_op *op, int32_t server)
{
    sl_redis_server *s = server >= 0 ? &t->servers[server] : NULL;
    if (s && s->conn->phase == SL_REDIS_READY)
        send_key(t, s, op);
    else if (s && !t->closing && (s->conn->phase != SL_REDIS_DOWN || s->conn->failures == 0))
        sl_list_push(&s->held, op);
    else
        sl_redis_end(t, op, SL_ERR_IO);
}

/* ---- health ---- */

static void judge(const sl_redis_tier *t, uint64_t now, sl_tier_health *h)
{
    char at[SL_REDIS_HOST_BYTES + 16];
    uint64_t slow = (t->o.slow_ms ? t->o.slow_ms : 5000) * 1000000ull;
    int32_t ready = 0;
    const sl_redis_server *down = NULL, *late = NULL;
    *h = (sl_tier_health){.state = SL_TIER_HEALTHY};
    for (int32_t i = 0; i < t->n_servers; i++) {
        const sl_redis_server *s = &t->servers[i];
        if (!s->wanted)
            continue;
        ready += s->conn->phase == SL_REDIS_READY;
        if (s->conn->failures && s->conn->phase != SL_REDIS_READY)
            down = s;
        if (s->sent.head && now - s->sent.head->start_ns > slow)
            late = s;
    }
    if (down) {
        h->state = ready ? SL_TIER_DEGRADED : SL_TIER_FAILED;
        snprintf(h->reason, sizeof h->reason, "redis %.100s: %.120s", sl_redis_at_text(&down->conn->at, at),
                 down->conn->why);
    } else if (late) {
        h->state = SL_TIER_DEGRADED;
        snprintf(h->reason, sizeof h->reason, "redis %.100s: a command has been in flight for %.1f s",
                 sl_redis_at_text(&late->conn->at, at), (double)(now - late->sent.head->start_ns) / 1e9);
    } else if (t->full[0]) {
        h->state = SL_TIER_DEGRADED;
        snprintf(h->reason, sizeof h->reason, "redis: %.160s; new pages are not stored", t->full);
    } else if (t->foreign[0] && now - t->foreign_ns < 10 * SECOND_NS) {
        h->state = SL_TIER_DEGRADED;
        snprintf(h->reason, sizeof h->reason,
                 "redis: the server names %s, which kvstore.redis.nodes does not list; its keys are misses",
                 t->foreign);
    } else if (t->complaint[0] && now - t->complaint_ns < 10 * SECOND_NS) {
        h->state = SL_TIER_DEGRADED;
        snprintf(h->reason, sizeof h->reason, "redis: the server answered: %.160s", t->complaint);
    }
}

static void publish_health(sl_redis_tier *t)
{
    pthread_mutex_lock(&t->th.lock);
    judge(t, sl_now_ns(), &t->health);
    pthread_mutex_unlock(&t->th.lock);
}

/* ---- connections ---- */

void sl_redis_handshake(sl_redis_server *s)
{
    sl_redis_tier *t = s->tier;
    char number[16];
    snprintf(number, sizeof number, "%d", t->r.database);
    s->conn->phase = SL_REDIS_HANDSHAKE;
    if (t->r.user[0])
        sl_redis_control(s, SL_REDIS_LOGIN, 3, (const char *[]){"AUTH", t->r.user, t->r.password});
    else if (t->r.password[0])
        sl_redis_control(s, SL_REDIS_LOGIN, 2, (const char *[]){"AUTH", t->r.password});
    if (t->r.database)
        sl_redis_control(s, SL_REDIS_LOGIN, 2, (const char *[]){"SELECT", number});
    sl_redis_control(s, SL_REDIS_INFO, 2, (const char *[]){"INFO", "memory"});
    sl_redis_control(s, SL_REDIS_MODE, 2, (const char *[]){"INFO", "cluster"});
}

void sl_redis_ready(sl_redis_server *s)
{
    char at[SL_REDIS_HOST_BYTES + 16];
    sl_redis_tier *t = s->tier;
    sl_redis_op *op;
    s->conn->phase = SL_REDIS_READY;
    s->conn->failures = 0;
    s->info_ns = sl_now_ns();
    sl_log(SL_LOG_INFO, "tier", "redis_connected", "server=%s cluster=%d maxmemory=%lu policy=%s",
           sl_redis_at_text(&s->conn->at, at), t->clustered, s->limit, s->policy);
    while ((op = s->held.head)) {
        sl_list_pop(&s->held);
        sl_redis_dispatch(
            t, op, op->slot < 0 || op->asking ? (int32_t)(s - t->servers) : sl_redis_server_of(t, op->slot));
    }
}

/* Every command of this server ends; keys with SL_ERR_IO. */
static void lose(sl_redis_server *s, const char *why)
{
    char at[SL_REDIS_HOST_BYTES + 16];
    sl_redis_tier *t = s->tier;
    sl_redis_op *lists[2] = {s->sent.head, s->held.head};
    bool was_ready = s->conn->phase == SL_REDIS_READY;
    if (was_ready || s->conn->failures == 0)
        sl_log(SL_LOG_WARN, "tier", "redis_lost", "server=%s reason=\"%s\"",
               sl_redis_at_text(&s->conn->at, at), why);
    sl_redis_conn_fail(s->conn, "%s", why);
    publish_health(t); /* the owner can ask as soon as the first key has ended */
    sl_list_init(&s->sent);
    sl_list_init(&s->held);
    s->listed = false;
    for (int l = 0; l < 2; l++)
        while (lists[l]) {
            sl_redis_op *op = lists[l];
            lists[l] = op->next;
            if (op->req)
                sl_redis_end(t, op, SL_ERR_IO);
            else
                sl_redis_op_free(t, op);
        }
}

void sl_redis_ask_nodes(sl_redis_tier *t)
{
    uint64_t now = sl_now_ns();
    if (now - t->listed_ns < SECOND_NS / 5)
        return;
    for (int32_t i = 0; i < t->n_servers; i++) {
        sl_redis_server *s = &t->servers[i];
        if (s->conn->phase == SL_REDIS_READY && !s->listed) {
            t->listed_ns = now;
            s->listed = sl_redis_control(s, SL_REDIS_LIST, 2, (const char *[]){"CLUSTER", "NODES"});
            return;
        }
    }
}

/* How the first attempt ended; open waits for it. */
static void meet(sl_redis_tier *t)
{
    const sl_redis_conn *c = t->servers[0].conn;
    char at[SL_REDIS_HOST_BYTES + 16];
    pthread_mutex_lock(&t->th.lock);
    if (t->outcome == SL_REDIS_TRYING && (c->phase == SL_REDIS_READY || c->failures > 0)) {
        t->outcome = c->phase == SL_REDIS_READY ? SL_REDIS_MET : SL_REDIS_UNREACHED;
        if (c->failures)
            sl_fail(&t->first, SL_ERR_IO, "%.200s: %.250s", sl_redis_at_text(&c->at, at), c->why);
    }
    if (t->outcome != SL_REDIS_TRYING)
        pthread_cond_signal(&t->met);
    pthread_mutex_unlock(&t->th.lock);
}

/* What time demands of a connection: a first or another attempt, an answer that does not come, the regular INFO. */
static void keep(sl_redis_server *s, uint64_t now)
{
    sl_redis_tier *t = s->tier;
    sl_redis_conn *c = s->conn;
    char why[80];
    uint64_t limit = t->r.timeout_ms * 1000000ull;
    if (c->phase == SL_REDIS_DOWN) {
        if ((s->wanted || s->held.head) && now >= c->retry_ns && !t->closing &&
            sl_redis_conn_connect(c) != SL_OK) {
            snprintf(why, sizeof why, "%.79s", c->why);
            lose(s, why);
        }
        return;
    }
    uint64_t since = c->phase == SL_REDIS_READY ? c->progress_ns : c->connect_ns;
    bool waits = c->phase != SL_REDIS_READY || s->sent.head;
    if (waits && now - since > limit) {
        snprintf(why, sizeof why, "no answer within %u ms", t->r.timeout_ms);
        lose(s, why);
    } else if (!s->wanted && !s->sent.head && !s->held.head) {
        lose(s, "it is not in the cluster any more");
        c->failures = 0;
    } else if (c->phase == SL_REDIS_READY &&
               now - s->info_ns > (t->commands != s->seen ? SECOND_NS : 5 * SECOND_NS)) {
        s->info_ns = now;
        s->seen = t->commands;
        sl_redis_control(s, SL_REDIS_INFO, 2, (const char *[]){"INFO", "memory"});
        sl_redis_control(s, SL_REDIS_SIZE, 1, (const char *[]){"DBSIZE"});
    }
}

/* What is read under the lock: statistics of the servers, health, how the first attempt ended. */
static void publish(sl_redis_tier *t)
{
    uint64_t used = 0, limit = 0, keys = 0;
    for (int32_t i = 0; i < t->n_servers; i++) {
        used += t->servers[i].wanted ? t->servers[i].used : 0;
        limit += t->servers[i].wanted ? t->servers[i].limit : 0;
        keys += t->servers[i].wanted ? t->servers[i].keys : 0;
    }
    pthread_mutex_lock(&t->th.lock);
    judge(t, sl_now_ns(), &t->health);
    t->st.pages = keys;
    t->st.bytes = used;
    t->st.capacity_bytes =
        t->o.capacity_bytes && (!limit || t->o.capacity_bytes < limit) ? t->o.capacity_bytes : limit;
    pthread_mutex_unlock(&t->th.lock);
    meet(t);
}

/* ---- the loop ---- */

static bool begin(sl_redis_tier *t, sl_tier_queue_kind queue, sl_redis_command command)
{
    sl_tier_req *r;
    int32_t i;
    char name[SL_PAGE_NAME_BYTES];
    if (t->n_unused < 64 || !sl_tier_thread_next(&t->th, queue, &r, &i))
        return false;
    sl_redis_op *op = op_take(t, r->op == SL_TIER_REMOVE ? SL_REDIS_REMOVE : command);
    op->req = r;
    op->i = i;
    t->reads += r->op == SL_TIER_GET;
    t->writes += r->op == SL_TIER_SET;
    t->commands++;
    name_of(t, op, name);
    op->slot = sl_redis_slot(name, strlen(name));
    sl_redis_dispatch(t, op, sl_redis_server_of(t, op->slot));
    return true;
}

static void begin_all(sl_redis_tier *t)
{
    while (begin(t, SL_TIER_QUICK, SL_REDIS_EXISTS))
        ;
    while (t->reads < t->depth_reads && begin(t, SL_TIER_READS, SL_REDIS_GET))
        ;
    while (t->writes < t->depth_writes && begin(t, SL_TIER_WRITES, SL_REDIS_PROBE))
        ;
}

static void serve(sl_redis_server *s, short events)
{
    sl_redis_conn *c = s->conn;
    sl_status st = SL_OK;
    if (c->phase == SL_REDIS_CONNECTING && (events & (POLLOUT | POLLERR | POLLHUP))) {
        st = sl_redis_conn_connected(c);
        if (st == SL_OK)
            sl_redis_handshake(s);
    }
    if (st >= 0 && c->phase >= SL_REDIS_HANDSHAKE && (events & (POLLIN | POLLERR | POLLHUP)))
        st = sl_redis_conn_read(c);
    if (st < 0) {
        char why[sizeof c->broken];
        memcpy(why, c->broken, sizeof why);
        lose(s, why);
    }
}

static void write_all(sl_redis_tier *t)
{
    for (int32_t i = 0; i < t->n_servers; i++) {
        sl_redis_server *s = &t->servers[i];
        if (s->conn->phase >= SL_REDIS_HANDSHAKE && sl_redis_conn_write(s->conn) != SL_OK) {
            char why[sizeof s->conn->broken];
            memcpy(why, s->conn->broken, sizeof why);
            lose(s, why);
        }
    }
}

static bool is_busy(const sl_redis_tier *t)
{
    for (int32_t i = 0; i < t->n_servers; i++)
        if (t->servers[i].sent.head || t->servers[i].held.head ||
            (t->servers[i].wanted && t->servers[i].conn->phase != SL_REDIS_READY))
            return true;
    return false;
}

static void wait(sl_redis_tier *t)
{
    struct pollfd p[SL_REDIS_NODES + 1];
    int32_t server[SL_REDIS_NODES + 1], n = 1;
    p[0] = (struct pollfd){.fd = t->th.wake, .events = POLLIN};
    for (int32_t i = 0; i < t->n_servers; i++) {
        const sl_redis_conn *c = t->servers[i].conn;
        if (c->phase == SL_REDIS_DOWN)
            continue;
        short events = c->phase == SL_REDIS_CONNECTING ? POLLOUT : POLLIN;
        if (c->phase != SL_REDIS_CONNECTING && sl_redis_conn_has_output(c))
            events |= POLLOUT;
        server[n] = i;
        p[n++] = (struct pollfd){.fd = sl_redis_conn_fd(c), .events = events};
    }
    if (poll(p, (nfds_t)n, is_busy(t) ? 25 : 500) <= 0)
        return;
    if (p[0].revents)
        sl_tier_thread_awake(&t->th);
    for (int32_t k = 1; k < n; k++)
        if (p[k].revents)
            serve(&t->servers[server[k]], p[k].revents);
}

/* Keys in flight end by their answers or by the time limit of their connection; what waits for a connection ends at once. All
 * together they have the time of one answer, because a server that sends single bytes would keep its connection for ever. */
static bool has_ended(sl_redis_tier *t)
{
    bool open = false;
    uint64_t now = sl_now_ns();
    t->closing = sl_tier_thread_stopping(&t->th);
    if (!t->closing)
        return false;
    if (!t->closing_ns)
        t->closing_ns = now;
    bool over = now - t->closing_ns > t->r.timeout_ms * 1000000ull;
    for (int32_t i = 0; i < t->n_servers; i++) {
        if ((over || t->servers[i].conn->phase != SL_REDIS_READY) &&
            (t->servers[i].sent.head || t->servers[i].held.head))
            lose(&t->servers[i],
                 over ? "the tier closes, and answers were not complete in time" : "the tier closes");
        for (const sl_redis_op *op = t->servers[i].sent.head; op; op = op->next)
            open = open || op->req;
    }
    return !open;
}

void *sl_redis_main(void *tier)
{
    sl_redis_tier *t = tier;
    do {
        uint64_t now = sl_now_ns();
        for (int32_t i = 0; i < t->n_servers; i++)
            keep(&t->servers[i], now);
        for (int32_t i = 0; t->clustered && i < t->n_servers; i++)
            if (t->servers[i].wanted && t->servers[i].conn->failures)
                sl_redis_ask_nodes(t);
        begin_all(t);
        write_all(t);
        publish(t);
        wait(t);
    } while (!has_ended(t));
    return NULL;
}
