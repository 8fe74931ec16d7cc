/*
 * The scheduler protocol's unary questions: health, model, server, loads, flushing the caches, the tokenizer
 * files.
 */
#include <openssl/sha.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common.pb-c.h"
#include "router/grpc/rpc.h"
#include "router/core/keyset.h"
#include "kvstore/page_key.h"
#include "sglang_scheduler.pb-c.h"

#define S(name) Sglang__Grpc__Scheduler__##name
#define C(name) Smg__Grpc__Common__##name

enum { ZIP_CHUNK = 1 << 20 };

/* Empty requests: the bytes must still be a message. */
static bool read_empty(rpc_call *c, const ProtobufCMessageDescriptor *d, const uint8_t *data, size_t n)
{
    ProtobufCMessage *m = rpc_unpack(c, d, data, n);
    if (m)
        protobuf_c_message_free_unpacked(m, NULL);
    return m != NULL;
}

void rpc_health_check(rpc_call *c, const uint8_t *data, size_t n)
{
    if (!read_empty(c, &sglang__grpc__scheduler__health_check_request__descriptor, data, n))
        return;
    S(HealthCheckResponse) a = SGLANG__GRPC__SCHEDULER__HEALTH_CHECK_RESPONSE__INIT;
    a.healthy = sl_router_ready(c->r);
    a.message = rpc_text(a.healthy ? "ok" : c->r->draining ? "draining" : "waiting for workers");
    rpc_answer(c, &a.base);
}

void rpc_model_info(rpc_call *c, const uint8_t *data, size_t n)
{
    if (!read_empty(c, &sglang__grpc__scheduler__get_model_info_request__descriptor, data, n))
        return;
    sl_router *r = c->r;
    S(GetModelInfoResponse) a = SGLANG__GRPC__SCHEDULER__GET_MODEL_INFO_RESPONSE__INIT;
    a.model_path = a.tokenizer_path = (char *)(r->o.model_path ? r->o.model_path : "");
    a.is_generation = true;
    a.served_model_name = (char *)r->o.served_name;
    a.max_context_length = r->max_context;
    a.max_req_input_len = r->max_context > 0 ? r->max_context - 1 : 0;
    a.vocab_size = r->cluster_vocab ? (int32_t)r->cluster_vocab : sl_tokenizer_vocab_size(r->tok);
    a.model_type = r->model_type;
    a.n_eos_token_ids = r->n_eos;
    a.eos_token_ids = r->eos;
    a.bos_token_id = sl_tokenizer_bos(r->tok);
    a.pad_token_id = -1;
    char *arch = r->architecture;
    a.n_architectures = *arch ? 1 : 0;
    a.architectures = &arch;
    rpc_answer(c, &a.base);
}

static int32_t total_tokens(const sl_router *r)
{
    uint64_t n = 0;
    for (const sl_member *w = r->workers; w; w = w->next) {
        if (w->id && w->role == SL_ROLE_DECODE && w->state == SL_MEMBER_READY)
            n += (uint64_t)w->total_pages * SL_KEY_PAGE_TOKENS;
    }
    return n > INT32_MAX ? INT32_MAX : (int32_t)n;
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
    if (!read_empty(c, &sglang__grpc__scheduler__get_server_info_request__descriptor, data, n))
        return;
    sl_router *r = c->r;
    field f[3];
    Google__Protobuf__Struct__FieldsEntry *list[3];
    set_field(&f[0], &list[0], "policy", r->policy->name);
    set_field(&f[1], &list[1], "transport", r->o.transport);
    set_field(&f[2], &list[2], "served_model_name", r->o.served_name);
    Google__Protobuf__Struct args = GOOGLE__PROTOBUF__STRUCT__INIT;
    args.n_fields = 3;
    args.fields = list;
    Google__Protobuf__Timestamp start = GOOGLE__PROTOBUF__TIMESTAMP__INIT;
    start.seconds = r->started_unix;
    S(GetServerInfoResponse) a = SGLANG__GRPC__SCHEDULER__GET_SERVER_INFO_RESPONSE__INIT;
    a.server_args = &args;
    a.active_requests = (int32_t)r->active;
    a.uptime_seconds = (double)(sl_now_ns() - r->started_ns) / 1e9;
    a.sglang_version = rpc_text("sluice");
    a.server_type = rpc_text("grpc");
    a.start_time = &start;
    a.max_total_num_tokens = total_tokens(r);
    rpc_answer(c, &a.base);
}

static void fill_load(const sl_member *w, S(SchedulerLoad) * l)
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

void rpc_loads(rpc_call *c, const uint8_t *data, size_t n)
{
    S(GetLoadsRequest) *q = rpc_unpack(c, &sglang__grpc__scheduler__get_loads_request__descriptor, data, n);
    if (!q)
        return;
    enum { MAX = 1024 };
    static S(SchedulerLoad) loads[MAX]; /* loop thread only */
    static S(SchedulerLoad) * list[MAX];
    size_t k = 0;
    S(AggregateMetrics) agg = SGLANG__GRPC__SCHEDULER__AGGREGATE_METRICS__INIT;
    for (const sl_member *w = c->r->workers; w && k < MAX; w = w->next) {
        bool wanted = !q->_dp_rank_case || q->dp_rank == (int32_t)w->id;
        if (!w->id || w->role != SL_ROLE_DECODE || w->state == SL_MEMBER_DEAD || !wanted)
            continue;
        fill_load(w, &loads[k]);
        agg.total_running_reqs += loads[k].num_running_reqs;
        agg.total_waiting_reqs += loads[k].num_waiting_reqs;
        agg.avg_token_usage += loads[k].token_usage;
        agg.avg_utilization += loads[k].utilization;
        list[k] = &loads[k];
        k++;
    }
    agg.total_waiting_reqs += (int32_t)c->r->queued;
    agg.total_reqs = agg.total_running_reqs + agg.total_waiting_reqs;
    agg.avg_token_usage /= k ? (double)k : 1;
    agg.avg_utilization /= k ? (double)k : 1;
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
    protobuf_c_message_free_unpacked(&q->base, NULL);
}

/* ---- FlushCache ---- */

static void answer_flush(rpc_call *c, bool ok, const char *text)
{
    C(FlushCacheResponse) a = SMG__GRPC__COMMON__FLUSH_CACHE_RESPONSE__INIT;
    a.success = ok;
    a.message = (char *)text;
    if (ok)
        sl_members_flush_cache(c->r);
    rpc_answer(c, &a.base);
}

void rpc_flush_tick(rpc_call *c, uint64_t now)
{
    uint64_t *deadline = c->user;
    if (!deadline)
        return;
    bool idle = !c->r->active;
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

/* ---- GetTokenizer ---- */

static void hex_sha256(const uint8_t *data, size_t n, char out[65])
{
    unsigned char md[SHA256_DIGEST_LENGTH];
    SHA256(data, n, md);
    for (int i = 0; i < SHA256_DIGEST_LENGTH; i++)
        snprintf(out + 2 * i, 3, "%02x", md[i]);
}

void rpc_tokenizer(rpc_call *c, const uint8_t *data, size_t n)
{
    static const char *const files[] = {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
                                        "config.json", "generation_config.json"};
    if (!read_empty(c, &smg__grpc__common__get_tokenizer_request__descriptor, data, n))
        return;
    if (!c->r->o.model_path || !*c->r->o.model_path) {
        rpc_finish(c, RPC_NOT_FOUND, "this server has no tokenizer files");
        return;
    }
    uint8_t *zip;
    size_t len;
    sl_err err = {""};
    sl_status st = rpc_zip(c->r->o.model_path, files, SL_COUNT(files), &zip, &len, &err);
    if (st) {
        rpc_finish(c, rpc_code_of(st), err.text);
        return;
    }
    char sha[65];
    hex_sha256(zip, len, sha);
    bool ok = true;
    for (size_t at = 0; at < len && ok; at += ZIP_CHUNK) {
        C(GetTokenizerChunk) k = SMG__GRPC__COMMON__GET_TOKENIZER_CHUNK__INIT;
        k.data.data = zip + at;
        k.data.len = len - at < ZIP_CHUNK ? len - at : ZIP_CHUNK;
        if (at + k.data.len == len)
            k.sha256 = sha;
        ok = rpc_send(c, &k.base);
    }
    free(zip);
    if (ok)
        rpc_finish(c, RPC_OK, NULL);
}
