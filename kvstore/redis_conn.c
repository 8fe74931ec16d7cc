/* See redis_conn.h. */
#include "kvstore/redis_conn.h"

#include <errno.h>
#include <hiredis/hiredis.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/hash.h"
#include "base/log.h"

enum { READ_BYTES = 1 << 18, READS_PER_TURN = 16, IOV = 64 };

/* ---- answers: hiredis calls these for each parsed element; an answer of ours is one element without a parent ---- */

static void *give(const redisReadTask *task, const sl_redis_answer *a)
{
    sl_redis_conn *c = task->privdata;
    if (task->parent)
        return c; /* an element of an array, which was refused as a whole */
    if (!c->broken[0]) {
        c->unanswered -= c->unanswered > 0;
        c->answer(c, a);
    }
    return c;
}

static void *on_string(const redisReadTask *task, char *s, size_t n)
{
    sl_redis_type type = task->type == REDIS_REPLY_ERROR    ? SL_REDIS_ERROR
                         : task->type == REDIS_REPLY_STATUS ? SL_REDIS_STATUS
                                                            : SL_REDIS_BULK;
    return give(task, &(sl_redis_answer){.type = type, .text = s, .n = n});
}

static void *on_array(const redisReadTask *task, int n)
{
    sl_redis_conn *c = task->privdata;
    (void)n;
    snprintf(c->broken, sizeof c->broken, "an array came as answer: this is not the server of this protocol");
    return c;
}

static void *on_integer(const redisReadTask *task, long long v)
{
    return give(task, &(sl_redis_answer){.type = SL_REDIS_INTEGER, .integer = v});
}

static void *on_nil(const redisReadTask *task)
{
    return give(task, &(sl_redis_answer){.type = SL_REDIS_NIL});
}

static void no_free(void *p)
{
    (void)p;
}

/* ---- connecting ---- */

sl_status sl_redis_conn_connect(sl_redis_conn *c)
{
    static redisReplyObjectFunctions parsed = {on_string, on_array, on_integer, on_nil, no_free};
    c->redis =
        c->at.port ? redisConnectNonBlock(c->at.host, c->at.port) : redisConnectUnixNonBlock(c->at.host);
    c->connect_ns = c->progress_ns = sl_now_ns();
    c->queued = c->written = c->unanswered = 0;
    c->is_full = false;
    c->broken[0] = '\0';
    if (!c->input)
        c->input = malloc(READ_BYTES);
    if (!c->redis || c->redis->err || !c->input) {
        sl_redis_conn_fail(c, "%s", c->redis && c->redis->err ? c->redis->errstr : "out of memory");
        return SL_ERR_PEER;
    }
    c->redis->reader->fn = &parsed;
    c->redis->reader->privdata = c;
    c->redis->reader->maxbuf = 0; /* keeps its buffer, whose size is that of the largest answer */
    c->phase = SL_REDIS_CONNECTING;
    return SL_OK;
}

sl_status sl_redis_conn_connected(sl_redis_conn *c)
{
    int error = 0, one = 1, fd = c->redis->fd;
    socklen_t n = sizeof error;
    struct sockaddr_storage peer;
    socklen_t peer_n = sizeof peer;
    if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &n) != 0)
        error = errno;
    if (error) {
        snprintf(c->broken, sizeof c->broken, "%s", strerror(error));
        return SL_ERR_PEER;
    }
    if (getpeername(fd, (struct sockaddr *)&peer, &peer_n) != 0)
        return SL_INPROGRESS;
    if (c->at.port) {
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
    }
    return SL_OK;
}

static void forget_output(sl_redis_conn *c)
{
    if (c->text_n)
        explicit_bzero(c->text, c->text_n); /* it can contain the password */
    c->text_n = c->n_pieces = c->first_piece = 0;
}

void sl_redis_conn_fail(sl_redis_conn *c, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(c->why, sizeof c->why, fmt, ap);
    va_end(ap);
    if (c->redis)
        redisFree(c->redis);
    c->redis = NULL;
    c->phase = SL_REDIS_DOWN;
    forget_output(c);
    uint64_t wait_ms = 50u << (c->failures < 7 ? c->failures : 7);
    c->failures++;
    wait_ms = wait_ms > 5000 ? 5000 : wait_ms;
    c->retry_ns = sl_now_ns() + (wait_ms + sl_random_u64() % (wait_ms / 4 + 1)) * 1000000u;
}

void sl_redis_conn_free(sl_redis_conn *c)
{
    if (c->redis)
        redisFree(c->redis);
    forget_output(c);
    free(c->text);
    free(c->pieces);
    free(c->input);
    free(c);
}

int sl_redis_conn_fd(const sl_redis_conn *c)
{
    return c->redis ? c->redis->fd : -1;
}

/* ---- output ---- */

/* Where the text that is not written yet begins in the text buffer. */
static size_t text_begin(const sl_redis_conn *c)
{
    for (size_t i = c->first_piece; i < c->n_pieces; i++)
        if (!c->pieces[i].memory)
            return c->pieces[i].at;
    return c->text_n;
}

/* Moves what is not written yet to the beginning of both buffers. Without this they would grow for as long as there is always
 * something to write. */
static void compact(sl_redis_conn *c, size_t begin)
{
    size_t n = c->n_pieces - c->first_piece;
    memmove(c->pieces, c->pieces + c->first_piece, n * sizeof *c->pieces);
    c->n_pieces = n;
    c->first_piece = 0;
    for (size_t i = 0; i < n; i++)
        if (!c->pieces[i].memory)
            c->pieces[i].at -= begin;
    memmove(c->text, c->text + begin, c->text_n - begin);
    c->text_n -= begin;
    explicit_bzero(c->text + c->text_n, begin);
}

/* Room for this much more. The buffers are compacted when at least half of one is written, so that the cost of moving is
 * less than that of having queued what was written. */
static bool reserve(sl_redis_conn *c, size_t text, size_t pieces)
{
    if (c->n_pieces && (c->text_n + text > c->text_cap || c->n_pieces + pieces > c->pieces_cap)) {
        size_t begin = text_begin(c);
        if (2 * begin >= c->text_n || 2 * c->first_piece >= c->n_pieces)
            compact(c, begin);
    }
    if (c->text_n + text > c->text_cap) {
        size_t cap = (c->text_n + text) * 2;
        char *p = malloc(cap); /* not realloc: the old buffer may contain the password */
        if (!p)
            return false;
        if (c->text_n) {
            memcpy(p, c->text, c->text_n);
            explicit_bzero(c->text, c->text_n);
        }
        free(c->text);
        c->text = p;
        c->text_cap = cap;
    }
    if (c->n_pieces + pieces > c->pieces_cap) {
        size_t cap = (c->n_pieces + pieces) * 2;
        sl_redis_piece *p = realloc(c->pieces, cap * sizeof *p);
        if (!p)
            return false;
        c->pieces = p;
        c->pieces_cap = cap;
    }
    return true;
}

/* Both need room that was reserved. */
static void add_text(sl_redis_conn *c, const void *s, size_t n)
{
    sl_redis_piece *last = c->n_pieces > c->first_piece ? &c->pieces[c->n_pieces - 1] : NULL;
    memcpy(c->text + c->text_n, s, n);
    if (last && !last->memory)
        last->n += n;
    else
        c->pieces[c->n_pieces++] = (sl_redis_piece){NULL, c->text_n, n};
    c->text_n += n;
    c->queued += n;
}

static void add_memory(sl_redis_conn *c, const void *p, size_t n)
{
    c->pieces[c->n_pieces++] = (sl_redis_piece){p, 0, n};
    c->queued += n;
}

static void count_command(sl_redis_conn *c)
{
    if (!c->unanswered++)
        c->progress_ns = sl_now_ns(); /* the limit for an answer begins now, not when the last one came */
}

sl_status sl_redis_conn_command(sl_redis_conn *c, int argc, const char *const *argv)
{
    char *command = NULL;
    int n = redisFormatCommandArgv(&command, argc, (const char **)(uintptr_t)argv, NULL);
    if (n < 0 || !reserve(c, (size_t)n, 1)) {
        redisFreeCommand(command);
        return SL_ERR_NO_MEMORY;
    }
    count_command(c);
    add_text(c, command, (size_t)n);
    explicit_bzero(command, (size_t)n);
    redisFreeCommand(command);
    return SL_OK;
}

/* hiredis formats commands into one block, which would copy the page; so this one is formatted here. */
sl_status sl_redis_conn_store(sl_redis_conn *c, const char *name, uint32_t ttl_s, const uint8_t *head,
                              size_t head_n, const struct iovec *spans, int32_t n_spans)
{
    char before[256], after[64] = "\r\n", ttl[16];
    size_t value = head_n;
    for (int32_t i = 0; i < n_spans; i++)
        value += spans[i].iov_len;
    int n = snprintf(before, sizeof before, "*%d\r\n$3\r\nSET\r\n$%zu\r\n%s\r\n$%zu\r\n", ttl_s ? 5 : 3,
                     strlen(name), name, value);
    int ttl_n = snprintf(ttl, sizeof ttl, "%u", ttl_s);
    if (ttl_s)
        snprintf(after, sizeof after, "\r\n$2\r\nEX\r\n$%d\r\n%s\r\n", ttl_n, ttl);
    if (!reserve(c, (size_t)n + head_n + strlen(after), (size_t)n_spans + 2))
        return SL_ERR_NO_MEMORY;
    count_command(c);
    add_text(c, before, (size_t)n);
    add_text(c, head, head_n);
    for (int32_t i = 0; i < n_spans; i++)
        if (spans[i].iov_len)
            add_memory(c, spans[i].iov_base, spans[i].iov_len);
    add_text(c, after, strlen(after));
    return SL_OK;
}

static void consume(sl_redis_conn *c, size_t n)
{
    c->written += n;
    while (n) {
        sl_redis_piece *p = &c->pieces[c->first_piece];
        size_t part = n < p->n ? n : p->n;
        if (p->memory)
            p->memory = (const char *)p->memory + part;
        else
            p->at += part;
        p->n -= part;
        n -= part;
        c->first_piece += p->n == 0;
    }
    if (c->first_piece == c->n_pieces)
        forget_output(c);
}

sl_status sl_redis_conn_write(sl_redis_conn *c)
{
    while (sl_redis_conn_has_output(c)) {
        struct iovec iov[IOV];
        int n = 0;
        for (size_t i = c->first_piece; i < c->n_pieces && n < IOV; i++, n++) {
            const sl_redis_piece *p = &c->pieces[i];
            iov[n].iov_base = (void *)(uintptr_t)(p->memory ? p->memory : c->text + p->at);
            iov[n].iov_len = p->n;
        }
        struct msghdr m = {.msg_iov = iov, .msg_iovlen = (size_t)n};
        ssize_t sent = sendmsg(c->redis->fd, &m, MSG_NOSIGNAL);
        if (sent < 0 && errno == EINTR)
            continue;
        if (sent < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
            c->is_full = true;
            return SL_OK;
        }
        if (sent < 0) {
            snprintf(c->broken, sizeof c->broken, "%s", strerror(errno));
            return SL_ERR_PEER;
        }
        if (c->is_full)
            c->progress_ns = sl_now_ns();
        c->is_full = false;
        consume(c, (size_t)sent);
    }
    return SL_OK;
}

static sl_status parse(sl_redis_conn *c)
{
    redisReader *r = c->redis->reader;
    void *reply;
    do {
        reply = NULL;
        if (redisReaderGetReply(r, &reply) != REDIS_OK) {
            snprintf(c->broken, sizeof c->broken, "%s", r->errstr);
            return SL_ERR_PEER;
        }
    } while (reply && !c->broken[0]);
    if (!c->broken[0] && r->len - r->pos > c->answer_max)
        snprintf(c->broken, sizeof c->broken, "an answer of more than %zu bytes came", c->answer_max);
    return c->broken[0] ? SL_ERR_PEER : SL_OK;
}

sl_status sl_redis_conn_read(sl_redis_conn *c)
{
    for (int turn = 0; turn < READS_PER_TURN; turn++) {
        ssize_t n = recv(c->redis->fd, c->input, READ_BYTES, 0);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK))
            return SL_OK;
        if (n <= 0) {
            snprintf(c->broken, sizeof c->broken, "%s",
                     n ? strerror(errno) : "the server closed the connection");
            return SL_ERR_PEER;
        }
        c->progress_ns = sl_now_ns();
        if (redisReaderFeed(c->redis->reader, c->input, (size_t)n) != REDIS_OK) {
            snprintf(c->broken, sizeof c->broken, "out of memory");
            return SL_ERR_PEER;
        }
        SL_TRY(parse(c));
        if (n < READ_BYTES)
            return SL_OK;
    }
    return SL_OK;
}
