/*
 * The scheduler protocol's unary questions: health, model, server, loads, flushing the caches.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/log.h"
#include "common.pb-c.h"
#include "router/grpc/rpc.h"
#include "kvstore/page_key.h"
#include "sglang_scheduler.pb-c.h"

#define S(name) Sglang__Grpc__Scheduler__##name
#define C(name) Smg__Grpc__Common__##name

bool rpc_read_empty(rpc_call *c, const ProtobufCMessageDescriptor *d, const uint8_t *data, size_t n)
{
    ProtobufCMessage *m = rpc_unpack(c, d, data, n);
    if (m)
        protobuf_c_message_free_unpacked(m, NULL);
    return m != NULL;
}

void rpc_health_check(rpc_call *c, const uint8_t *data, size_t n)
{
    if (!rpc_read_empty(c, &sglang__grpc__scheduler__health_check_request__descriptor, data, n))
        return;
    S(HealthCheckResponse) a = SGLANG__GRPC__SCHEDULER__HEALTH_CHECK_RESPONSE__INIT;
    sl_cluster_info k;
    sl_cluster_get_info(c->r, &k);
    a.healthy = k.ready;
    a.message = rpc_text(sl_cluster_health(&k));
    rpc_answer(c, &a.base);
}

void rpc_model_info(rpc_call *c, const uint8_t *data, size_t n)
{
    if (!rpc_read_empty(c, &sglang__grpc__scheduler__get_model_info_request__descriptor, data, n))
        return;
    const sl_served_model *m = sl_router_model(c->r);
    const sl_router_opts *o = c->g->o;
    sl_cluster_info k;
    sl_cluster_get_info(c->r, &k);
    S(GetModelInfoResponse) a = SGLANG__GRPC__SCHEDULER__GET_MODEL_INFO_RESPONSE__INIT;
    a.model_path = a.tokenizer_path =
        (char *)o->model.served_name; /* clients need not know where the files are */
    a.is_generation = true;
    a.served_model_name = (char *)o->model.served_name;
    a.max_context_length = k.max_context;
    a.max_req_input_len = k.max_context > 0 ? k.max_context - 1 : 0;
    a.vocab_size = k.vocab;
    a.model_type = (char *)m->model_type;
    a.n_eos_token_ids = m->n_eos;
    a.eos_token_ids = (int32_t *)m->eos;
    a.bos_token_id = sl_tokenizer_bos(m->tok);
    a.pad_token_id = -1;
    char *arch = (char *)m->architecture;
    a.n_architectures = *arch ? 1 : 0;
    a.architectures = &arch;
    rpc_answer(c, &a.base);
}

/* Of all decode workers that are ready. */
static int32_t total_tokens(const sl_router *r)
{
    uint64_t tokens = 0;
    size_t n;
    sl_member_info *list = sl_cluster_members(r, &n);
    for (size_t i = 0; i < n; i++) {
        if (sl_role_does(list[i].role, SL_ROLE_DECODE) && list[i].state == SL_MEMBER_READY)
            tokens += (uint64_t)list[i].total_pages * SL_KEY_PAGE_TOKENS;
    }
    free(list);
    return tokens > INT32_MAX ? INT32_MAX : (int32_t)tokens;
}

/* One string field of a google.protobuf.Struct. */
typedef struct field {
    Google__Protobuf__Struct__FieldsEntry entry;
    Google__Protobuf__Value value;
} field;

static void set_field(field *f, Google__Protobuf__Struct__FieldsEntry **slot, const char *key,
                      const char *text)
{
    google__protobuf__struct__fields_entry__init(&f->entry);
    google__protobuf__value__init(&f->value);
    f->value.kind_case = GOOGLE__PROTOBUF__VALUE__KIND_STRING_VALUE;
    f->value.string_value = (char *)text;
    f->entry.key = (char *)key;
    f->entry.value = &f->value;
    *slot = &f->entry;
}

void rpc_server_info(rpc_call *c, const uint8_t *data, size_t n)
{
    if (!rpc_read_empty(c, &sglang__grpc__scheduler__get_server_info_request__descriptor, data, n))
        return;
    const sl_router_opts *o = c->g->o;
    sl_cluster_info k;
    sl_cluster_get_info(c->r, &k);
    field f[3];
    Google__Protobuf__Struct__FieldsEntry *list[3];
    set_field(&f[0], &list[0], "policy", o->placement.policy);
    set_field(&f[1], &list[1], "transport", o->link.transport);
    set_field(&f[2], &list[2], "served_model_name", o->model.served_name);
    Google__Protobuf__Struct args = GOOGLE__PROTOBUF__STRUCT__INIT;
    args.n_fields = 3;
    args.fields = list;
    Google__Protobuf__Timestamp start = GOOGLE__PROTOBUF__TIMESTAMP__INIT;
    start.seconds = k.started_unix;
    S(GetServerInfoResponse) a = SGLANG__GRPC__SCHEDULER__GET_SERVER_INFO_RESPONSE__INIT;
    a.server_args = &args;
    a.active_requests = (int32_t)k.active;
    a.uptime_seconds = (double)(sl_now_ns() - k.started_ns) / 1e9;
    a.sglang_version = rpc_text("sluice");
    a.server_type = rpc_text("grpc");
    a.start_time = &start;
    a.max_total_num_tokens = total_tokens(c->r);
    rpc_answer(c, &a.base);
}

static void fill_load(const sl_member_info *w, S(SchedulerLoad) * l)
{
    sglang__grpc__scheduler__scheduler_load__init(l);
    uint32_t idle = w->load.free_pages + w->load.cached_pages, total = w->total_pages;
    uint32_t used = w->has_load && total > idle ? total - idle : 0;
    l->dp_rank = (int32_t)w->id;
    l->num_running_reqs = (int32_t)w->load.running;
    l->num_waiting_reqs = (int32_t)w->load.waiting;
    l->num_total_reqs = (int32_t)(w->load.running + w->load.waiting);
    l->num_used_tokens = (int32_t)(used * SL_KEY_PAGE_TOKENS);
    l->max_total_num_tokens = (int32_t)(total * SL_KEY_PAGE_TOKENS);
    l->token_usage = total ? (double)used / total : 0;
    uint64_t rows = w->load.hits + w->load.misses;
    l->cache_hit_rate = rows ? (double)w->load.hits / (double)rows : 0;
    l->utilization = w->max_batch ? (double)w->load.running / w->max_batch : 0;
    l->max_running_requests = (int32_t)w->max_batch;
}

/* Fills loads[0..n) and their sums from the decode workers that the request asks for; returns n. */
static size_t collect_loads(const sl_member_info *members, size_t n, const S(GetLoadsRequest) * q,
                            S(SchedulerLoad) * loads, S(SchedulerLoad) * *list, S(AggregateMetrics) * agg)
{
    size_t k = 0;
    for (size_t i = 0; i < n; i++) {
        const sl_member_info *w = &members[i];
        bool wanted = !q->_dp_rank_case || q->dp_rank == (int32_t)w->id;
        if (!sl_role_does(w->role, SL_ROLE_DECODE) || w->state == SL_MEMBER_DEAD || !wanted)
            continue;
        fill_load(w, &loads[k]);
        agg->total_running_reqs += loads[k].num_running_reqs;
        agg->total_waiting_reqs += loads[k].num_waiting_reqs;
        agg->avg_token_usage += loads[k].token_usage;
        agg->avg_utilization += loads[k].utilization;
        list[k] = &loads[k];
        k++;
    }
    agg->avg_token_usage /= k ? (double)k : 1;
    agg->avg_utilization /= k ? (double)k : 1;
    return k;
}

static void answer_loads(rpc_call *c, const S(GetLoadsRequest) * q, const sl_member_info *members, size_t n,
                         S(SchedulerLoad) * loads, S(SchedulerLoad) * *list)
{
    S(AggregateMetrics) agg = SGLANG__GRPC__SCHEDULER__AGGREGATE_METRICS__INIT;
    size_t k = collect_loads(members, n, q, loads, list, &agg);
    sl_cluster_info info;
    sl_cluster_get_info(c->r, &info);
    agg.total_waiting_reqs += (int32_t)info.queued;
    agg.total_reqs = agg.total_running_reqs + agg.total_waiting_reqs;
    char stamp[40];
    time_t t = time(NULL);
    struct tm tm;
    strftime(stamp, sizeof stamp, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&t, &tm));
    S(GetLoadsResponse) a = SGLANG__GRPC__SCHEDULER__GET_LOADS_RESPONSE__INIT;
    a.timestamp = stamp;
    a.version = rpc_text("sluice");
    a.dp_rank_count = (int32_t)k;
    a.n_loads = k;
    a.loads = list;
    a.aggregate = &agg;
    rpc_answer(c, &a.base);
}

void rpc_loads(rpc_call *c, const uint8_t *data, size_t n)
{
    S(GetLoadsRequest) *q = rpc_unpack(c, &sglang__grpc__scheduler__get_loads_request__descriptor, data, n);
    if (!q)
        return;
    size_t members;
    sl_member_info *info = sl_cluster_members(c->r, &members);
    S(SchedulerLoad) *loads = calloc(members + 1, sizeof *loads);
    S(SchedulerLoad) **list = calloc(members + 1, sizeof *list);
    if (loads && list)
        answer_loads(c, q, info, members, loads, list);
    else
        rpc_finish(c, RPC_RESOURCE_EXHAUSTED, "out of memory");
    free(info);
    free(loads);
    free(list);
    protobuf_c_message_free_unpacked(&q->base, NULL);
}

/* ---- FlushCache ---- */

static void answer_flush(rpc_call *c, bool ok, const char *text)
{
    C(FlushCacheResponse) a = SMG__GRPC__COMMON__FLUSH_CACHE_RESPONSE__INIT;
    a.success = ok;
    a.message = (char *)text;
    if (ok)
        sl_cluster_flush_cache(c->r);
    rpc_answer(c, &a.base);
}

void rpc_flush_tick(rpc_call *c, uint64_t now)
{
    uint64_t *deadline = c->user;
    if (!deadline)
        return;
    sl_cluster_info k;
    sl_cluster_get_info(c->r, &k);
    bool idle = !k.active;
    if (!idle && now < *deadline)
        return;
    c->user = NULL;
    free(deadline);
    answer_flush(c, idle, idle ? "flushed" : "requests are still running");
}

void rpc_flush_gone(rpc_call *c)
{
    free(c->user);
    c->user = NULL;
}

void rpc_flush_cache(rpc_call *c, const uint8_t *data, size_t n)
{
    if (!c->caller.admin) {
        rpc_finish(c, RPC_PERMISSION_DENIED, "this key has no admin rights (router.keys_file)");
        return;
    }
    C(FlushCacheRequest) *q = rpc_unpack(c, &smg__grpc__common__flush_cache_request__descriptor, data, n);
    if (!q)
        return;
    double wait = q->timeout_s > 0 && q->timeout_s < 3600 ? (double)q->timeout_s : 0;
    protobuf_c_message_free_unpacked(&q->base, NULL);
    uint64_t *deadline = malloc(sizeof *deadline);
    if (!deadline) {
        rpc_finish(c, RPC_RESOURCE_EXHAUSTED, "out of memory");
        return;
    }
    uint64_t now = sl_now_ns();
    *deadline = now + (uint64_t)(wait * 1e9);
    c->user = deadline;
    rpc_flush_tick(c, now);
}
