/*
 * A front: a protocol that clients speak to the router. The registry in front.c lists all of them; the router
 * creates each, flushes it before the loop sleeps, ticks it, drains it and destroys it, and knows nothing else.
 *
 * A front turns bytes into an sl_request_spec, hands it to core.h, and turns outputs into bytes. Its state begins
 * with an sl_front. It owns its sockets and its groups and must release every group in destroy().
 *
 * Also here: what the fronts share among themselves, so that every protocol enforces the same limits: the budget of
 * bytes, connections per address, the keys of clients.
 *
 * Threads: the loop's thread only.
 */
#ifndef SL_ROUTER_FRONT_H
#define SL_ROUTER_FRONT_H

#include <uv.h>

#include "router/budget.h"
#include "router/core.h"
#include "router/pool.h"
#include "router/tls.h"

typedef struct sl_front_class sl_front_class;

typedef struct sl_front {
    const sl_front_class *c;
} sl_front;

struct sl_front_class {
    const char *name;
    /* Listens. *out is NULL with SL_OK when the options turn the protocol off; the other functions are not called
     * then. */
    sl_status (*create)(sl_router *r, uv_loop_t *loop, sl_front **out, sl_err *err);
    int (*port)(const sl_front *f);
    /* Does what became possible since the last call; true when anything was done. */
    bool (*flush)(sl_front *f);
    /* The last flush has left what sockets may take, because the turn was long. */
    bool (*behind)(const sl_front *f);
    void (*tick)(sl_front *f, uint64_t now_ns); /* every 20 ms */
    /* A drain begins: running calls go on, new ones are refused by the core. */
    void (*drain)(sl_front *f);
    /* No call is in work. */
    bool (*idle)(const sl_front *f);
    /* A batch of changes of a prefix cache arrived: subscribers may sl_kv_read() it. */
    void (*kv_batch)(sl_front *f);
    void (*destroy)(sl_front *f);
};

/* ---- what the fronts share ---- */

/* Whose turn it is to compile a constraint, among the jobs of the pool. */
typedef struct sl_front_compiling {
    bool busy;
    uint64_t last, turns[4]; /* of those that wait, by their threads; 0: free */
} sl_front_compiling;

/* The state of budget and pool; one per router, zero at start. */
typedef struct sl_front_shared {
    sl_budget budget;
    sl_pool pool;
    sl_front_compiling compiling;
} sl_front_shared;
sl_front_shared *sl_router_shared(sl_router *r);

/* The certificates for a connection that begins now; NULL = plain. The connection takes a reference. Whether it is NULL
 * never changes while the router runs. */
sl_tls *sl_router_tls(sl_router *r);

/* Connections that one address may have, by the options. */
uint32_t sl_front_per_address(const sl_router_opts *o);

/* The registry: a new front adds its name in front.c and its declaration here. */
enum { SL_FRONTS = 2 };
extern const sl_front_class sl_front_http, sl_front_grpc;
const sl_front_class *sl_front_at(size_t i); /* NULL after the last */

/* Whether an Authorization header (NULL or "" when absent) carries the key. With an empty key every call is allowed.
 * The time depends on the lengths only. */
bool sl_front_key_ok(const char *authorization, const char *key);
/*
 * Who calls: false when the key is missing or wrong. With router.keys_file the client is the tenant of the key; with
 * router.api_key alone, or without any key, it is the address, and every caller is an admin. A caller with
 * router.api_key is an admin too. authorization: the header, NULL or "" when absent.
 */
typedef struct sl_caller {
    char client[SL_CLIENT_MAX]; /* for spec.client */
    bool tenant;                /* client is the name of a tenant */
    bool admin;                 /* may use what concerns others: FlushCache, Abort of any request, /workers */
} sl_caller;
bool sl_front_caller(sl_router *r, const char *authorization, const struct sockaddr *peer, sl_caller *out);

/* The name of the client at this address, for spec.client: IPv4, or the network of 64 bits of an IPv6 address, because
 * a host usually has the whole network. Without a usable address the name is "". */
void sl_front_client(const struct sockaddr *a, char out[SL_CLIENT_MAX]);
/* A call that the core or a parser refused: counted, and one line in the log of this front. EXHAUSTED was counted by
 * the core. */
void sl_front_count_refused(sl_router *r, const char *api, sl_status st);

/* Whether the workers can follow the constraint of these parameters: it is compiled here, which may take a second, so on a thread of
 * the pool, and in memory of the guard, which gets it back. field: what err calls it. INVALID, UNSUPPORTED (no library), NO_MEMORY, and
 * what the guard says. */
sl_status sl_front_check_constraint(sl_router *r, const sl_sampling *s, const char *field, sl_guard *guard,
                                    sl_err *err);
/* What compiling this constraint is worth in bytes of ordinary work, for the lanes of the pool; 0 without one. */
size_t sl_front_constraint_cost(const sl_sampling *s);

#endif
