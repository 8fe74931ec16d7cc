/*
 * The pages that are answered at once: health, models, workers, metrics, what the server is.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/version.h"
#include "router/http/http_impl.h"

static const char JSON_TYPE[] = "application/json";

void http_reply(http_req *q, int code, const char *type, char *text)
{
    free(q->reply);
    q->reply = text;
    q->reply_len = text ? strlen(text) : 0;
    q->code = text ? code : 500;
    q->type = type;
}

/* Whether errors have Anthropic's form. */
static bool is_messages(const http_req *q)
{
    sl_oai_api api = q->route ? sl_oai_find(q->route->path) : OAI_APIS;
    return api == OAI_MESSAGES || api == OAI_COUNT_TOKENS;
}

void http_reply_status(http_req *q, sl_status st, const char *text)
{
    int code;
    char *body = sl_oai_error_json(st, text, &code);
    if (is_messages(q)) {
        free(body);
        body = sl_oai_messages_error(code, text && *text ? text : sl_status_name(st));
    }
    http_reply(q, code, JSON_TYPE, body);
}

void http_reply_error(http_req *q, int code, const char *message, const char *type, const char *ecode)
{
    http_reply(q, code, JSON_TYPE,
               is_messages(q) ? sl_oai_messages_error(code, message)
                              : sl_oai_error_text(message, type, ecode, NULL));
}

static void reply_json(http_req *q, int code, json_t *o)
{
    http_reply(q, code, JSON_TYPE, o ? json_dumps(o, JSON_COMPACT) : NULL);
    json_decref(o);
}

static sl_cluster_info cluster_info(const http_req *q)
{
    sl_cluster_info c;
    sl_cluster_get_info(q->h->r, &c);
    return c;
}

void http_page_health(http_req *q)
{
    sl_cluster_info c = cluster_info(q);
    reply_json(q, c.ready ? 200 : 503,
               json_pack("{s:s, s:i, s:i}", "status", sl_cluster_health(&c), "prefill", (int)c.prefill,
                         "decode", (int)c.decode));
}

/* An answer shows that the loop runs. It says nothing about workers: a probe that restarts the router must not depend
 * on them. */
void http_page_live(http_req *q)
{
    reply_json(q, 200, json_pack("{s:s}", "status", "ok"));
}

void http_page_metrics(http_req *q)
{
    /* What each tenant does is for admins. */
    http_reply(q, 200, SL_METRICS_CONTENT_TYPE, sl_router_metrics_text(q->h->r, q->caller.admin));
}

static json_t *model_json(const http_req *q)
{
    sl_cluster_info c = cluster_info(q);
    return json_pack("{s:s, s:s, s:I, s:s, s:i}", "id", q->h->o->model.served_name, "object", "model",
                     "created", (json_int_t)c.started_unix, "owned_by", "sluice", "max_model_len",
                     (int)c.max_context);
}

void http_page_models(http_req *q)
{
    reply_json(q, 200, json_pack("{s:s, s:[o]}", "object", "list", "data", model_json(q)));
}

void http_page_model(http_req *q)
{
    const char *name = q->path + strlen("/v1/models/");
    if (!strcmp(name, q->h->o->model.served_name))
        reply_json(q, 200, model_json(q));
    else
        http_reply_status(q, SL_ERR_NOT_FOUND, "model: does not exist");
}

void http_page_trace(http_req *q)
{
    char *text = NULL;
    sl_status st = sl_cluster_trace(q->h->r, q->path + strlen("/trace/"), &text);
    if (st == SL_ERR_NOT_FOUND)
        http_reply_error(
            q, 404,
            "no finished request with this id is among the last ones of this router; ids are those of answers or of "
            "X-Request-Id, the rid of logs, or a trace's",
            "invalid_request_error", "not_found");
    else
        http_reply(q, 200, JSON_TYPE, text);
}

static json_t *worker_json(const sl_member_info *w)
{
    const struct {
        const char *key;
        uint64_t value;
    } numbers[] = {
        {"pid", w->pid},
        {"placed", w->placed},
        {"running", w->load.running},
        {"waiting", w->load.waiting},
        {"max_batch", w->max_batch},
        {"total_pages", w->total_pages},
        {"free_pages", w->load.free_pages},
        {"cached_pages", w->load.cached_pages},
        {"queued_tokens", w->load.queued_tokens},
        {"tokens_done", w->load.tokens_done},
        {"swap_hits", w->load.hits},
        {"swap_misses", w->load.misses},
        {"prefill_rate", w->load.prefill_rate},
        {"disk_rate", w->load.disk_rate},
        {"shared_rate", w->load.shared_rate},
        {"peer_rate", w->load.peer_rate},
        {"known_host_pages", w->known_pages[SL_MEDIUM_HOST]},
        {"known_disk_pages", w->known_pages[SL_MEDIUM_DISK]},
    };
    json_t *o = json_pack("{s:i, s:s, s:s, s:s, s:s, s:s}", "id", (int)w->id, "name", w->name, "role",
                          sl_role_name(w->role), "state", sl_member_state_name(w->state), "listen", w->listen,
                          "metrics", w->metrics);
    for (size_t i = 0; o && i < SL_COUNT(numbers); i++)
        json_object_set_new(o, numbers[i].key, json_integer((json_int_t)numbers[i].value));
    if (o && w->ranks) {
        json_object_set_new(o, "group", json_integer(w->group));
        json_object_set_new(o, "rank", json_integer(w->rank));
        json_object_set_new(o, "ranks", json_integer(w->ranks));
    }
    return o;
}

static bool same_group(const sl_member_info *a, const sl_member_info *b)
{
    return b->ranks && b->state != SL_MEMBER_DEAD && a->role == b->role && a->group == b->group;
}

/* The group of this rank: its ranks have one state, that of any of them. */
static json_t *group_json(const sl_member_info *list, size_t n, const sl_member_info *w)
{
    json_int_t joined = 0, placed = 0, running = 0;
    for (size_t i = 0; i < n; i++) {
        if (!same_group(w, &list[i]))
            continue;
        joined++;
        placed += list[i].placed;
        running += list[i].load.running;
    }
    return json_pack("{s:s, s:i, s:s, s:i, s:I, s:I, s:I}", "role", sl_role_name(w->role), "group",
                     (int)w->group, "state", sl_member_state_name(w->state), "ranks", (int)w->ranks, "joined",
                     joined, "placed", placed, "running", running);
}

static json_t *groups_json(const sl_member_info *list, size_t n)
{
    json_t *groups = json_array();
    for (size_t i = 0; i < n; i++) {
        size_t first = 0;
        while (first < i && !same_group(&list[i], &list[first]))
            first++;
        if (first == i && same_group(&list[i], &list[i]))
            json_array_append_new(groups, group_json(list, n, &list[i]));
    }
    return groups;
}

void http_page_workers(http_req *q)
{
    sl_cluster_info c = cluster_info(q);
    size_t n;
    sl_member_info *list = sl_cluster_members(q->h->r, &n);
    json_t *workers = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(workers, worker_json(&list[i]));
    json_t *groups = groups_json(list, n);
    free(list);
    reply_json(q, 200,
               json_pack("{s:o, s:o, s:i, s:i}", "workers", workers, "groups", groups, "queued",
                         (int)c.queued, "active", (int)c.active));
}

/* As FlushCache over gRPC with timeout_s 0. */
void http_page_flush(http_req *q)
{
    if (cluster_info(q).active) {
        http_reply_error(q, 409, "requests are still running", "invalid_request_error", "busy");
        return;
    }
    sl_cluster_flush_cache(q->h->r);
    reply_json(q, 200, json_pack("{s:b}", "success", 1));
}

void http_page_version(http_req *q)
{
    reply_json(q, 200, json_pack("{s:s}", "version", SL_VERSION));
}

static json_t *eos_json(const sl_served_model *m)
{
    json_t *list = json_array();
    for (size_t i = 0; i < m->n_eos; i++)
        json_array_append_new(list, json_integer(m->eos[i]));
    return list;
}

/* As GetModelInfo over gRPC: names instead of paths. */
void http_page_model_info(http_req *q)
{
    const sl_served_model *m = sl_router_model(q->h->r);
    const char *name = q->h->o->model.served_name;
    sl_cluster_info c = cluster_info(q);
    reply_json(q, 200,
               json_pack("{s:s, s:s, s:b, s:s, s:s, s:s, s:i, s:i, s:i, s:o}", "model_path", name,
                         "tokenizer_path", name, "is_generation", 1, "served_model_name", name, "model_type",
                         m->model_type, "architecture", m->architecture, "max_context_length",
                         (int)c.max_context, "vocab_size", (int)c.vocab, "bos_token_id",
                         (int)sl_tokenizer_bos(m->tok), "eos_token_ids", eos_json(m)));
}

/* internal_states: SGLang's load scripts read figures of speculation from its first member, and do without one that is absent. */
void http_page_server_info(http_req *q)
{
    sl_cluster_info c = cluster_info(q);
    reply_json(q, 200,
               json_pack("{s:s, s:s, s:s, s:i, s:i, s:i, s:i, s:i, s:I, s:[{}]}", "version", SL_VERSION,
                         "served_model_name", q->h->o->model.served_name, "status", sl_cluster_health(&c),
                         "prefill_workers", (int)c.prefill, "decode_workers", (int)c.decode,
                         "max_total_num_tokens", (int)c.max_context, "queued", (int)c.queued, "active",
                         (int)c.active, "started", (json_int_t)c.started_unix, "internal_states"));
}

/* As vLLM has it: the members of tokenizer_config.json that clients use to work without the files. */
void http_page_tokenizer_info(http_req *q)
{
    const sl_served_model *m = sl_router_model(q->h->r);
    const char *bos = sl_tokenizer_token(m->tok, sl_tokenizer_bos(m->tok)),
               *eos = sl_tokenizer_token(m->tok, sl_tokenizer_eos(m->tok));
    reply_json(q, 200,
               json_pack("{s:s, s:s?, s:s?, s:n, s:i, s:i, s:n}", "tokenizer_class",
                         "PreTrainedTokenizerFast", "bos_token", bos, "eos_token", eos, "pad_token",
                         "model_max_length", (int)cluster_info(q).max_context, "vocab_size",
                         (int)sl_tokenizer_vocab_size(m->tok), "chat_template"));
}
