/*
 * The gRPC front as a whole: create, tick, drain, destroy.
 */
#include <stdlib.h>

#include "router/grpc/rpc.h"

enum { MAX_STREAMS = 1024 };

void rpc_front_init(sl_grpc *g, sl_router *r)
{
    g->front.c = &sl_front_grpc;
    g->r = r;
    g->o = sl_router_options(r);
    g->stats = sl_router_get_stats(r);
}

static bool ready(const sl_grpc *g)
{
    sl_cluster_info c;
    sl_cluster_get_info(g->r, &c);
    return c.ready;
}

static SSL_CTX *ssl_context(void *router)
{
    sl_tls *t = sl_router_tls(router);
    return t ? sl_tls_openssl(t) : NULL;
}

static sl_status grpc_create(sl_router *r, uv_loop_t *loop, sl_front **out, sl_err *err)
{
    const sl_router_opts *ro = sl_router_options(r);
    *out = NULL;
    if (ro->front.grpc_port < 0)
        return SL_OK;
    sl_grpc *g = calloc(1, sizeof *g);
    if (!g)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    rpc_front_init(g, r);
    g->loop = loop;
    h2_options o = {.loop = loop,
                    .host = ro->front.host,
                    .port = ro->front.grpc_port,
                    .max_connections = ro->front.max_connections,
                    .max_per_address = sl_front_per_address(ro),
                    .max_streams = MAX_STREAMS,
                    .handshake_ms = ro->front.handshake_timeout_ms,
                    .idle_ms = ro->front.idle_timeout_ms,
                    .max_buffered = ro->front.max_unread_bytes};
    o.tls = ssl_context;
    o.tls_arg = r;
    rpc_callbacks(g, &o.cb);
    sl_status st = h2_server_create(&o, &g->h2, err);
    if (st) {
        free(g);
        return st;
    }
    *out = &g->front;
    return SL_OK;
}

static int grpc_port(const sl_front *f)
{
    return h2_server_port(((const sl_grpc *)f)->h2);
}

static bool grpc_flush(sl_front *f)
{
    return h2_server_flush(((sl_grpc *)f)->h2);
}

static void grpc_tick(sl_front *f, uint64_t now)
{
    sl_grpc *g = (sl_grpc *)f;
    rpc_tick(g, now);
    h2_server_tick(g->h2, now);
    bool is_ready = ready(g);
    if (is_ready != g->was_ready) {
        g->was_ready = is_ready;
        rpc_std_changed(g);
    }
}

/* Health says NOT_SERVING, connections get GOAWAY; running calls continue. */
static void grpc_drain(sl_front *f)
{
    sl_grpc *g = (sl_grpc *)f;
    g->was_ready = false;
    rpc_std_changed(g); /* watchers are told before the GOAWAY */
    h2_server_goaway(g->h2);
}

/* Calls that answer at once and subscriptions do not count. */
static bool grpc_behind(const sl_front *f)
{
    return h2_server_behind(((const sl_grpc *)f)->h2);
}

static bool grpc_idle(const sl_front *f)
{
    return !((const sl_grpc *)f)->generating;
}

static void grpc_destroy(sl_front *f)
{
    sl_grpc *g = (sl_grpc *)f;
    h2_server_destroy(g->h2);
    rpc_archive_drop(g);
    free(g);
}

const sl_front_class sl_front_grpc = {
    .name = "grpc",
    .create = grpc_create,
    .port = grpc_port,
    .flush = grpc_flush,
    .behind = grpc_behind,
    .tick = grpc_tick,
    .drain = grpc_drain,
    .idle = grpc_idle,
    .kv_batch = rpc_kv_publish,
    .destroy = grpc_destroy,
};
