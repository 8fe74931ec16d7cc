/*
 * The Redis tier's object, shared by its parts: redis_conn.c (one connection), redis_cluster.c (which server has which key),
 * redis_io.c (the thread: commands and answers), tier_redis.c (the owner's side, open and close). No other file includes it.
 */
#ifndef SL_KVSTORE_REDIS_IMPL_H
#define SL_KVSTORE_REDIS_IMPL_H

#include "base/list.h"
#include "kvstore/page_record.h"
#include "kvstore/redis_conn.h"
#include "kvstore/redis_options.h"
#include "kvstore/tier_thread.h"

enum {
    SL_REDIS_NODES = 128,        /* servers of a cluster that are used */
    SL_REDIS_OPS = 2048,         /* commands in flight */
    SL_REDIS_REDIRECTS = 5,      /* of one command */
    SL_REDIS_TEXT_MAX = 1 << 20, /* bytes of an answer that is not a page */
};

typedef enum {
    SL_REDIS_EXISTS, /* STRLEN: there, and of the right length; also marks it as used */
    SL_REDIS_GET,
    SL_REDIS_PROBE, /* STRLEN before a set, which is not sent when the page is there */
    SL_REDIS_SET,
    SL_REDIS_REMOVE,
    SL_REDIS_IGNORE, /* the answer does not matter */
    SL_REDIS_LOGIN,  /* AUTH, SELECT */
    SL_REDIS_INFO,
    SL_REDIS_MODE, /* INFO cluster */
    SL_REDIS_SIZE, /* DBSIZE */
    SL_REDIS_LIST, /* CLUSTER NODES */
} sl_redis_command;

/* A command in flight. */
typedef struct sl_redis_op {
    struct sl_redis_op *next;
    sl_redis_command command;
    sl_tier_req *req; /* NULL: not for a key */
    int32_t i;        /* key of req */
    int slot, redirects;
    bool asking;  /* ASKING comes before it */
    uint64_t end; /* bytes of the connection's output after which it is complete */
    uint64_t start_ns;
} sl_redis_op;

typedef SL_LIST(sl_redis_op) sl_redis_ops;

typedef struct sl_redis_server {
    sl_redis_conn *conn;
    struct sl_redis_tier *tier;
    sl_redis_ops sent, held; /* held: until the connection is ready */
    bool wanted;             /* has slots, or is the server of the configuration */
    bool listed;             /* CLUSTER NODES is in flight */
    uint64_t info_ns, used, limit, keys;
    uint64_t seen; /* tier.commands at the last INFO */
    char policy[32];
} sl_redis_server;

/* How the first attempt to connect ended. */
typedef enum { SL_REDIS_TRYING, SL_REDIS_MET, SL_REDIS_UNREACHED, SL_REDIS_REJECTED } sl_redis_outcome;

typedef struct sl_redis_tier {
    sl_tier base;
    sl_tier_thread th;
    sl_tier_opts o;
    sl_redis_options r;                  /* the password is overwritten when the tier ends */
    sl_redis_rule rules[SL_REDIS_RULES]; /* of r.nodes */
    char stem[SL_PAGE_NAME_BYTES];
    sl_redis_server servers[SL_REDIS_NODES];
    int32_t n_servers;
    int16_t slots[SL_REDIS_SLOTS]; /* server; -1: not known, the first one is asked */
    bool clustered, closing;
    uint64_t closing_ns; /* when the thread has learned that the tier closes */
    uint64_t listed_ns;  /* when the node list was last asked for */
    sl_redis_op pool[SL_REDIS_OPS], *unused;
    int32_t n_unused, reads, writes; /* reads, writes: pages in flight */
    int32_t depth_reads, depth_writes;
    uint64_t commands;     /* of keys */
    uint64_t unconfirmed;  /* bytes of pages that were sent since the last INFO */
    uint64_t complaint_ns; /* when a server last refused a command */
    uint64_t foreign_ns;   /* when a server last named one that is not used */

    /* With th.lock. */
    sl_tier_stats st;
    sl_tier_health health;
    char complaint[160], foreign[100];
    char full[160]; /* why new pages are not stored; the thread alone reads it without the lock */
    sl_redis_outcome outcome;
    sl_err first;
    pthread_cond_t met;
} sl_redis_tier;

/* The thread. */
void *sl_redis_main(void *tier);
/* redis_answer.c. Takes an answer of a connection (see redis_conn.h). */
void sl_redis_on_answer(sl_redis_conn *c, const sl_redis_answer *a);

/* redis_io.c; all for the thread. Sends a command that is not for a key; false: it could not be queued. */
bool sl_redis_control(sl_redis_server *s, sl_redis_command command, int argc, const char *const *argv);
/* Sends a key's command to this server, or keeps it until the server is ready, or ends the key. */
void sl_redis_dispatch(sl_redis_tier *t, sl_redis_op *op, int32_t server);
/* Ends the key of a command, and the command. */
void sl_redis_end(sl_redis_tier *t, sl_redis_op *op, sl_status st);
void sl_redis_op_free(sl_redis_tier *t, sl_redis_op *op);
/* The first commands of a connection, and what follows when all are answered. */
void sl_redis_handshake(sl_redis_server *s);
void sl_redis_ready(sl_redis_server *s);
/* Asks a server that is ready for the node list, at most once in 200 ms. */
void sl_redis_ask_nodes(sl_redis_tier *t);
/* "host:port" or the path, for messages. */
const char *sl_redis_at_text(const sl_redis_address *a, char out[SL_REDIS_HOST_BYTES + 16]);

/* redis_cluster.c. The server of a slot; -1: there is none. Servers that the configuration does not name (its address and nodes)
 * are never added by the answer of a server, and sl_redis_tier.foreign says which one it was. */
int32_t sl_redis_server_of(const sl_redis_tier *t, int slot);
/* Finds or adds a server; when all places are taken, in the place of one that has left the cluster. -1: there are too many, or no
 * memory. */
int32_t sl_redis_server_add(sl_redis_tier *t, const sl_redis_address *at);
/* Takes over the answer of CLUSTER NODES that this server gave. */
void sl_redis_learn_nodes(sl_redis_tier *t, int32_t server, const char *text, size_t n);
/* Takes over MOVED (not ASK) that this server answered; the server to ask now. -1: there are too many, or it is not allowed. */
int32_t sl_redis_learn_redirect(sl_redis_tier *t, int32_t server, const sl_redis_redirect *to);

#endif
