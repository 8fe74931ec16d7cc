/*
 * One connection to a Redis server, without waiting: connects, writes commands, and gives each answer to a callback in the
 * order of the commands. hiredis connects, formats commands and parses answers; large values are written straight from
 * the caller's memory, so no page is copied before it is sent. Answers are given from the parser's buffer, so at most one
 * answer for each connection is held in memory.
 *
 * It belongs to one thread. It knows nothing about pages; the tier that is made of such connections is redis_io.c.
 */
#ifndef SL_KVSTORE_REDIS_CONN_H
#define SL_KVSTORE_REDIS_CONN_H

#include <sys/uio.h>

#include "kvstore/redis_format.h"

struct redisContext;
struct redisReader;

typedef enum {
    SL_REDIS_DOWN,       /* not connected; it may be tried again after retry_ns */
    SL_REDIS_CONNECTING, /* the system connects */
    SL_REDIS_HANDSHAKE,  /* the first commands are in flight */
    SL_REDIS_READY,
} sl_redis_phase;

typedef enum { SL_REDIS_STATUS, SL_REDIS_ERROR, SL_REDIS_INTEGER, SL_REDIS_BULK, SL_REDIS_NIL } sl_redis_type;

/* An answer. text is valid during the call only, and does not end with zero. */
typedef struct sl_redis_answer {
    sl_redis_type type;
    int64_t integer;
    const char *text;
    size_t n;
} sl_redis_answer;

/* A piece of what has to be written: a part of the text buffer, or memory of the caller. */
typedef struct sl_redis_piece {
    const void *memory; /* NULL: in the text buffer */
    size_t at, n;
} sl_redis_piece;

typedef struct sl_redis_conn {
    /* The owner's, set before connecting. Called inside sl_redis_conn_read(); must not close the connection. */
    void (*answer)(struct sl_redis_conn *c, const sl_redis_answer *a);
    void *owner;
    sl_redis_address at;
    size_t answer_max; /* bytes; a longer answer is an error of the protocol */

    sl_redis_phase phase;
    struct redisContext *redis;
    char *input; /* what one read brought */
    char *text;
    size_t text_n, text_cap;
    sl_redis_piece *pieces;
    size_t n_pieces, pieces_cap, first_piece;
    uint64_t queued, written; /* bytes, since it was connected */
    uint64_t unanswered;      /* commands */
    bool is_full;             /* the system took no more output at the last attempt */
    uint64_t connect_ns;      /* when connecting began */
    /* When the server last did something: it sent bytes, or read some for which the system had no room before. That the
     * system takes our bytes shows nothing about the server. With no command unanswered: when the next one is queued. */
    uint64_t progress_ns;
    uint64_t retry_ns; /* when it may be tried again */
    int32_t failures;  /* since it was last ready */
    char why[256];     /* the last failure */
    char broken[160];  /* set by the answer callback: the connection has to be closed */
} sl_redis_conn;

/* Begins to connect; on failure the connection stays down and says why. Resolving a host name waits for the resolver. */
sl_status sl_redis_conn_connect(sl_redis_conn *c);
/* After the descriptor became writable while connecting: SL_OK - connected, SL_INPROGRESS - not yet, SL_ERR_PEER. */
sl_status sl_redis_conn_connected(sl_redis_conn *c);
/* Closes it, forgets what is not written, and sets retry_ns: 50 ms doubled with each failure, at most 5 s. */
void sl_redis_conn_fail(sl_redis_conn *c, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void sl_redis_conn_free(sl_redis_conn *c);

/* Queue a command. SL_ERR_NO_MEMORY: nothing is queued. `value` (spans and a text before them) is the last argument. */
sl_status sl_redis_conn_command(sl_redis_conn *c, int argc, const char *const *argv);
sl_status sl_redis_conn_store(sl_redis_conn *c, const char *name, uint32_t ttl_s, const uint8_t *head,
                              size_t head_n, const struct iovec *spans, int32_t n_spans);

/* Writes and reads what is possible. SL_ERR_PEER: it failed, the reason is in `broken`. */
sl_status sl_redis_conn_write(sl_redis_conn *c);
sl_status sl_redis_conn_read(sl_redis_conn *c);
int sl_redis_conn_fd(const sl_redis_conn *c);
static inline bool sl_redis_conn_has_output(const sl_redis_conn *c)
{
    return c->written < c->queued;
}

#endif
