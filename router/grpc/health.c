/*
 * grpc.health.v1: Check, List and Watch. The whole server ("") and the scheduler service have one status;
 * SERVING when both roles have a worker and no drain has begun.
 */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "grpc/health.pb-c.h"
#include "router/grpc/rpc.h"

#define H(name) Grpc__Health__V1__##name
typedef Grpc__Health__V1__HealthCheckResponse__ServingStatus serving;

static const char *const services[] = {"", "sglang.grpc.scheduler.SglangScheduler"};

static serving status_of(const sl_router *r)
{
    sl_cluster_info c;
    sl_cluster_get_info(r, &c);
    return c.ready ? GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVING
                   : GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__NOT_SERVING;
}

static bool known(const char *service)
{
    for (size_t i = 0; i < SL_COUNT(services); i++) {
        if (!strcmp(services[i], service ? service : ""))
            return true;
    }
    return false;
}

void rpc_std_check(rpc_call *c, const uint8_t *data, size_t n)
{
    H(HealthCheckRequest) *q = rpc_unpack(c, &grpc__health__v1__health_check_request__descriptor, data, n);
    if (!q)
        return;
    if (known(q->service)) {
        H(HealthCheckResponse) a = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__INIT;
        a.status = status_of(c->r);
        rpc_answer(c, &a.base);
    } else {
        rpc_finish(c, RPC_NOT_FOUND, "unknown service");
    }
    protobuf_c_message_free_unpacked(&q->base, NULL);
}

void rpc_std_list(rpc_call *c, const uint8_t *data, size_t n)
{
    H(HealthListRequest) *q = rpc_unpack(c, &grpc__health__v1__health_list_request__descriptor, data, n);
    if (!q)
        return;
    protobuf_c_message_free_unpacked(&q->base, NULL);
    H(HealthCheckResponse) value = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__INIT;
    value.status = status_of(c->r);
    H(HealthListResponse__StatusesEntry) entry[SL_COUNT(services)], *list[SL_COUNT(services)];
    for (size_t i = 0; i < SL_COUNT(services); i++) {
        grpc__health__v1__health_list_response__statuses_entry__init(&entry[i]);
        entry[i].key = (char *)services[i];
        entry[i].value = &value;
        list[i] = &entry[i];
    }
    H(HealthListResponse) a = GRPC__HEALTH__V1__HEALTH_LIST_RESPONSE__INIT;
    a.n_statuses = SL_COUNT(services);
    a.statuses = list;
    rpc_answer(c, &a.base);
}

/* `user` of a Watch call: the status that was sent last. An unknown service stays SERVICE_UNKNOWN. In the list of its front, because
 * there are far more calls than watches. */
typedef struct rpc_watch {
    rpc_call *call;
    struct rpc_watch *next, *prev;
    bool unknown;
    serving last;
    uint64_t since_ns; /* it began, or was told something */
} watch;

/* Streams of Watch: the most of a connection and of an address or tenant, and how long one lasts without news. A key does not change
 * that: who has one needs no more of them. A client asks again when its stream ends. */
enum { CONNECTION_WATCHES = 4, ADDRESS_WATCHES = 64, WATCH_S = 600 };

static bool may_watch(const rpc_call *c)
{
    uint32_t own = 0, address = 0;
    for (const watch *w = c->g->watches; w; w = w->next) {
        own += h2_same_connection(w->call->s, c->s);
        address += !strcmp(w->call->caller.client, c->caller.client);
    }
    return own < CONNECTION_WATCHES && address < ADDRESS_WATCHES;
}

static void add_watch(rpc_call *c, watch *w)
{
    w->call = c;
    w->next = c->g->watches;
    if (w->next)
        w->next->prev = w;
    c->g->watches = w;
    c->user = w;
}

static void send_status(rpc_call *c, watch *w, serving s)
{
    w->last = s;
    w->since_ns = sl_now_ns();
    H(HealthCheckResponse) a = GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__INIT;
    a.status = s;
    rpc_send(c, &a.base);
}

void rpc_std_watch(rpc_call *c, const uint8_t *data, size_t n)
{
    H(HealthCheckRequest) *q = rpc_unpack(c, &grpc__health__v1__health_check_request__descriptor, data, n);
    if (!q)
        return;
    watch *w = NULL;
    if (!may_watch(c)) {
        rpc_finish(c, RPC_RESOURCE_EXHAUSTED, "too many streams of Watch");
    } else if (!(w = calloc(1, sizeof *w))) {
        rpc_finish(c, RPC_RESOURCE_EXHAUSTED, "out of memory");
    } else {
        add_watch(c, w);
        w->unknown = !known(q->service);
        send_status(c, w,
                    w->unknown ? GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVICE_UNKNOWN
                               : status_of(c->r));
    }
    protobuf_c_message_free_unpacked(&q->base, NULL);
}

void rpc_std_watch_gone(rpc_call *c)
{
    watch *w = c->user;
    c->user = NULL;
    if (!w)
        return;
    if (w->prev)
        w->prev->next = w->next;
    else
        c->g->watches = w->next;
    if (w->next)
        w->next->prev = w->prev;
    free(w);
}

void rpc_std_tick(sl_grpc *g, uint64_t now)
{
    for (watch *w = g->watches; w; w = w->next) {
        if (!w->call->finished && now > w->since_ns && now - w->since_ns >= WATCH_S * 1000 * SL_MS)
            rpc_finish(w->call, RPC_UNAVAILABLE, "nothing has changed for a long time: ask again");
    }
}

void rpc_std_changed(sl_grpc *g)
{
    for (watch *w = g->watches; w; w = w->next) {
        if (!w->call->finished && !w->unknown && w->last != status_of(g->r))
            send_status(w->call, w, status_of(g->r));
    }
}
