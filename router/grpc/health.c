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

/* `user` of a Watch call: the status that was sent last. An unknown service stays SERVICE_UNKNOWN. */
typedef struct watch {
    bool unknown;
    serving last;
    uint64_t since_ns; /* it began, or was told something */
} watch;

/* Streams of Watch without a key: the most of a connection and of an address, and how long one lasts without news. A
 * client asks again when its stream ends. */
enum { CONNECTION_WATCHES = 4, ADDRESS_WATCHES = 64, WATCH_S = 600 };

static bool may_watch(const rpc_call *c)
{
    uint32_t own = 0, address = 0;
    for (const rpc_call *k = c->g->calls; k; k = k->next) {
        if (k == c || !k->keyless || k->finished || !k->user || k->m->message != rpc_std_watch)
            continue;
        own += h2_same_connection(k->s, c->s);
        address += !strcmp(k->caller.client, c->caller.client);
    }
    return own < CONNECTION_WATCHES && address < ADDRESS_WATCHES;
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
    if (c->keyless && !may_watch(c)) {
        rpc_finish(c, RPC_RESOURCE_EXHAUSTED, "too many streams of Watch without a key");
    } else if (!(w = calloc(1, sizeof *w))) {
        rpc_finish(c, RPC_RESOURCE_EXHAUSTED, "out of memory");
    } else {
        c->user = w;
        w->unknown = !known(q->service);
        send_status(c, w,
                    w->unknown ? GRPC__HEALTH__V1__HEALTH_CHECK_RESPONSE__SERVING_STATUS__SERVICE_UNKNOWN
                               : status_of(c->r));
    }
    protobuf_c_message_free_unpacked(&q->base, NULL);
}

void rpc_std_watch_gone(rpc_call *c)
{
    free(c->user);
    c->user = NULL;
}

void rpc_std_watch_tick(rpc_call *c, uint64_t now)
{
    const watch *w = c->user;
    if (w && c->keyless && now > w->since_ns && now - w->since_ns >= WATCH_S * 1000 * SL_MS)
        rpc_finish(c, RPC_UNAVAILABLE, "nothing has changed for a long time: ask again");
}

void rpc_std_changed(sl_grpc *g)
{
    for (rpc_call *c = g->calls; c; c = c->next) {
        watch *w = c->m && c->m->message == rpc_std_watch ? c->user : NULL;
        if (w && !c->finished && !w->unknown && w->last != status_of(g->r))
            send_status(c, w, status_of(g->r));
    }
}
