/*
 * The codec of messages. There is one description for each type, which serves both directions: fields_of_reserve(c, m)
 * writes the struct when the codec has a writer and fills it when the codec has a reader. So what one side writes is
 * always what the other side reads; for this reason the descriptions are not divided. Names for logs are in msg_names.c.
 *
 * The decoder must be safe for any input: every count is compared with the bytes that are present before anything is
 * allocated (base/wire.h), enumerations and bounds between fields are checked after each field, and the first wrong field is
 * named in the error. The receiver checks what the fields mean: whether the rid is known, whether the page is its own.
 */
#include "base/msg.h"

#include <stdlib.h>
#include <string.h>

enum {
    TOKEN_MIN_BYTES = 9,       /* an encoded sl_msg_token without alternatives */
    MAX_TOKENS_PER_MSG = 4096, /* of sl_msg_tokens; a step produces one for each request */
    PAGE_TOKENS = 64,
    KEY_BYTES = 16,
};

/* Exactly one of w and r is set. `field` is the first field that failed. */
typedef struct codec {
    sl_wr *w;
    sl_rd *r;
    const char *field;
    bool bad;
} codec;

static void fail(codec *c, const char *field)
{
    if (!c->bad)
        c->field = field;
    c->bad = true;
}

/* Called after each read: if the reader has failed, remembers the name of the field. */
static void settle(codec *c, const char *field)
{
    if (c->r && c->r->bad)
        fail(c, field);
}

static void require(codec *c, const char *field, bool ok)
{
    if (c->r && !c->bad && !ok)
        fail(c, field);
}

#define SCALAR(suffix, type)                                                                                 \
    static void f_##suffix(codec *c, const char *field, type *v)                                             \
    {                                                                                                        \
        if (c->w)                                                                                            \
            sl_wr_##suffix(c->w, *v);                                                                        \
        else                                                                                                 \
            *v = sl_rd_##suffix(c->r);                                                                       \
        settle(c, field);                                                                                    \
    }
SCALAR(u8, uint8_t)
SCALAR(u32, uint32_t)
SCALAR(u64, uint64_t)
SCALAR(i32, int32_t)
SCALAR(f32, float)
#undef SCALAR

static void f_str(codec *c, const char *field, char *s, size_t cap)
{
    if (c->w)
        sl_wr_blob(c->w, s, strnlen(s, cap - 1));
    else
        sl_rd_str(c->r, s, cap);
    settle(c, field);
}

static void f_blob(codec *c, const char *field, sl_blob *b)
{
    if (c->w) {
        sl_wr_blob(c->w, b->data, b->len);
    } else {
        b->data = sl_rd_blob(c->r, &b->len);
        settle(c, field);
        require(c, field, b->len <= SL_MSG_MAX_BLOB);
    }
}

static void f_i32s(codec *c, const char *field, int32_t **v, size_t *n, size_t max)
{
    if (c->w)
        sl_wr_i32s(c->w, *v, *n);
    else
        sl_rd_i32s(c->r, v, n, max);
    settle(c, field);
}

static void f_u32s(codec *c, const char *field, uint32_t **v, size_t *n, size_t max)
{
    if (c->w)
        sl_wr_u32s(c->w, *v, *n);
    else
        sl_rd_u32s(c->r, v, n, max);
    settle(c, field);
}

static void f_key(codec *c, const char *field, sl_key *k)
{
    f_u64(c, field, &k->lo);
    f_u64(c, field, &k->hi);
}

static void f_flag(codec *c, const char *field, uint8_t *v)
{
    f_u8(c, field, v);
    require(c, field, *v <= 1);
}

static void f_request(codec *c, uint64_t *rid, uint32_t *attempt)
{
    f_u64(c, "rid", rid);
    f_u32(c, "attempt", attempt);
    require(c, "attempt", *attempt >= 1);
}

static size_t pages_of(size_t tokens)
{
    return (tokens + PAGE_TOKENS - 1) / PAGE_TOKENS;
}

static void f_identity(codec *c, sl_identity *id)
{
    f_key(c, "id.fingerprint", &id->fingerprint);
    f_blob(c, "id.geometry", &id->geometry);
}

static void f_token(codec *c, const char *field, sl_msg_token *t)
{
    f_i32(c, field, &t->id);
    f_f32(c, field, &t->logprob);
    f_u8(c, field, &t->n_top);
    require(c, field, t->n_top <= SL_MSG_MAX_TOP);
    if (c->bad)
        return;
    for (int i = 0; i < t->n_top; i++) {
        f_i32(c, field, &t->top_ids[i]);
        f_f32(c, field, &t->top_logprobs[i]);
    }
}

/* Prompt, sampling and seed: the same in RESERVE and PREFILL. */
static void f_prompt(codec *c, uint32_t *n_prompt, int32_t **tokens, size_t *n_tokens)
{
    f_u32(c, "n_prompt", n_prompt);
    f_i32s(c, "tokens", tokens, n_tokens, SL_MSG_MAX_TOKENS);
    require(c, "tokens", *n_tokens >= 1);
    require(c, "n_prompt", *n_prompt >= 1 && *n_prompt <= *n_tokens);
}

/* Zero means "none": a sender that forgot the seed would let everybody share. */
static void f_seed(codec *c, const char *field, sl_key *seed)
{
    f_key(c, field, seed);
    require(c, field, seed->lo | seed->hi);
}

static void fields_of_hello(codec *c, sl_msg_hello *m)
{
    f_u32(c, "version", &m->version);
    f_u8(c, "role", &m->role);
    require(c, "role", m->role <= SL_ROLE_BOTH);
    f_str(c, "name", m->name, sizeof m->name);
    f_str(c, "cluster_tag", m->cluster_tag, sizeof m->cluster_tag);
    f_str(c, "model", m->model, sizeof m->model);
    f_str(c, "listen", m->listen, sizeof m->listen);
    f_str(c, "metrics", m->metrics, sizeof m->metrics);
    f_u64(c, "epoch", &m->epoch);
    f_identity(c, &m->id);
    f_u32(c, "max_context", &m->max_context);
    f_u32(c, "max_batch", &m->max_batch);
    f_u32(c, "total_pages", &m->total_pages);
    f_u32(c, "vocab_size", &m->vocab_size);
    f_u32(c, "pid", &m->pid);
    f_str(c, "host", m->host, sizeof m->host);
    f_u64(c, "instance", &m->instance);
    f_u32(c, "group", &m->group);
    f_u32(c, "rank", &m->rank);
    f_u32(c, "ranks", &m->ranks);
    require(c, "ranks", m->ranks != 1 && m->ranks <= SL_MSG_MAX_RANKS);
    require(c, "rank", m->ranks ? m->rank < m->ranks : !m->rank && !m->group);
}

static void fields_of_welcome(codec *c, sl_msg_welcome *m)
{
    f_u32(c, "worker_id", &m->worker_id);
    f_u64(c, "router_epoch", &m->router_epoch);
    f_u32(c, "heartbeat_ms", &m->heartbeat_ms);
    f_u32(c, "dead_after_ms", &m->dead_after_ms);
}

static void fields_of_refuse(codec *c, sl_msg_refuse *m)
{
    f_i32(c, "status", &m->status);
    require(c, "status", m->status < 0);
    f_str(c, "reason", m->reason, sizeof m->reason);
    f_flag(c, "retry", &m->retry);
}

static void fields_of_load(codec *c, sl_msg_load *m)
{
    f_u32(c, "running", &m->running);
    f_u32(c, "waiting", &m->waiting);
    f_u32(c, "free_pages", &m->free_pages);
    f_u32(c, "cached_pages", &m->cached_pages);
    f_u32(c, "total_pages", &m->total_pages);
    f_u64(c, "queued_tokens", &m->queued_tokens);
    f_u64(c, "tokens_done", &m->tokens_done);
    f_u64(c, "hits", &m->hits);
    f_u64(c, "misses", &m->misses);
    f_u64(c, "swap_bytes", &m->swap_bytes);
    f_flag(c, "draining", &m->draining);
    f_u32(c, "engine_age_ms", &m->engine_age_ms);
    f_u32(c, "prefill_rate", &m->prefill_rate);
    f_u64(c, "disk_rate", &m->disk_rate);
    f_u64(c, "shared_rate", &m->shared_rate);
    f_u64(c, "peer_rate", &m->peer_rate);
    f_u32(c, "checker_age_ms", &m->checker_age_ms);
    f_u32(c, "copier_age_ms", &m->copier_age_ms);
    f_flag(c, "group_broken", &m->group_broken);
}

/* n_tokens: of the prompt, which bounds the pages. */
static void f_source(codec *c, size_t n_tokens, sl_msg_source *s)
{
    f_u32(c, "source.worker", &s->worker);
    f_str(c, "source.addr", s->addr, sizeof s->addr);
    f_u64(c, "source.epoch", &s->epoch);
    f_u32(c, "source.pages", &s->pages);
    require(c, "source.pages", s->pages <= pages_of(n_tokens));
    require(c, "source.addr", !s->pages == !s->addr[0]);
}

static void fields_of_reserve(codec *c, sl_msg_reserve *m)
{
    f_request(c, &m->rid, &m->attempt);
    f_u32(c, "prefill_worker", &m->prefill_worker);
    f_prompt(c, &m->n_prompt, &m->tokens, &m->n_tokens);
    f_u32(c, "deadline_ms", &m->deadline_ms);
    f_blob(c, "sampling", &m->sampling);
    f_seed(c, "seed", &m->seed);
    f_u64(c, "tenant", &m->tenant);
    f_source(c, m->n_tokens, &m->source);
}

static void fields_of_prefetch(codec *c, sl_msg_prefetch *m)
{
    f_request(c, &m->rid, &m->attempt);
    f_i32s(c, "tokens", &m->tokens, &m->n_tokens, SL_MSG_MAX_TOKENS);
    require(c, "tokens", m->n_tokens >= 1);
    f_seed(c, "seed", &m->seed);
    f_u64(c, "tenant", &m->tenant);
    f_source(c, m->n_tokens, &m->source);
}

static void fields_of_reserved(codec *c, sl_msg_reserved *m)
{
    f_request(c, &m->rid, &m->attempt);
    f_u64(c, "ticket", &m->ticket);
    f_u32(c, "matched_pages", &m->matched_pages);
    f_u32s(c, "pages", &m->pages, &m->n_pages, pages_of(SL_MSG_MAX_TOKENS));
    require(c, "pages", m->n_pages >= 1);
    require(c, "matched_pages", m->matched_pages <= m->n_pages);
}

static void fields_of_prefill(codec *c, sl_msg_prefill *m)
{
    f_request(c, &m->rid, &m->attempt);
    f_u64(c, "ticket", &m->ticket);
    f_u32(c, "decode_worker", &m->decode_worker);
    f_str(c, "decode_addr", m->decode_addr, sizeof m->decode_addr);
    f_u64(c, "decode_epoch", &m->decode_epoch);
    f_prompt(c, &m->n_prompt, &m->tokens, &m->n_tokens);
    f_u32(c, "matched_pages", &m->matched_pages);
    f_u32s(c, "pages", &m->pages, &m->n_pages, pages_of(SL_MSG_MAX_TOKENS));
    require(c, "pages", m->n_pages >= pages_of(m->n_tokens)); /* and those of snapshots of states */
    require(c, "matched_pages", m->matched_pages <= pages_of(m->n_tokens));
    f_u32(c, "deadline_ms", &m->deadline_ms);
    f_blob(c, "sampling", &m->sampling);
    f_seed(c, "seed", &m->seed);
}

static void fields_of_prefilled(codec *c, sl_msg_prefilled *m)
{
    f_request(c, &m->rid, &m->attempt);
    f_u32(c, "cached_tokens", &m->cached_tokens);
    f_u64(c, "queue_us", &m->queue_us);
    f_u64(c, "compute_us", &m->compute_us);
    f_u64(c, "ship_us", &m->ship_us);
    f_u64(c, "bytes", &m->bytes);
    f_u64(c, "overlap_us", &m->overlap_us);
}

static void fields_of_joined(codec *c, sl_msg_joined *m)
{
    f_request(c, &m->rid, &m->attempt);
    f_u64(c, "load_us", &m->load_us);
    f_u64(c, "check_us", &m->check_us);
    f_u64(c, "wait_us", &m->wait_us);
}

static void fields_of_failed(codec *c, sl_msg_failed *m)
{
    f_request(c, &m->rid, &m->attempt);
    f_i32(c, "status", &m->status);
    require(c, "status", m->status < 0);
    f_flag(c, "retryable", &m->retryable);
    f_str(c, "reason", m->reason, sizeof m->reason);
}

static void fields_of_peer_hello(codec *c, sl_msg_peer_hello *m)
{
    f_u32(c, "version", &m->version);
    f_u32(c, "worker_id", &m->worker_id);
    f_u64(c, "epoch", &m->epoch);
    f_str(c, "cluster_tag", m->cluster_tag, sizeof m->cluster_tag);
    f_identity(c, &m->id);
    f_u32(c, "direct_pid", &m->direct_pid);
    f_u64(c, "decode_epoch", &m->decode_epoch);
    f_flag(c, "reader", &m->reader);
    require(c, "direct_pid", !m->reader || !m->direct_pid);
}

static void fields_of_peer_welcome(codec *c, sl_msg_peer_welcome *m)
{
    f_u64(c, "epoch", &m->epoch);
    f_u64(c, "arena_addr", &m->arena_addr);
    f_u64(c, "arena_bytes", &m->arena_bytes);
    require(c, "arena_bytes", m->arena_bytes <= UINT64_MAX - m->arena_addr);
    f_u32(c, "total_pages", &m->total_pages);
    f_blob(c, "geometry", &m->geometry);
    f_blob(c, "rkey", &m->rkey);
    f_blob(c, "direct", &m->direct);
}

static void fields_of_commit(codec *c, sl_msg_commit *m)
{
    f_request(c, &m->rid, &m->attempt);
    f_u64(c, "ticket", &m->ticket);
    f_u32(c, "worker_id", &m->worker_id);
    f_u32(c, "n_tokens", &m->n_tokens);
    require(c, "n_tokens", m->n_tokens >= 1 && m->n_tokens <= SL_MSG_MAX_TOKENS);
    f_u32(c, "first_page", &m->first_page);
    require(c, "first_page", m->first_page <= pages_of(m->n_tokens));
    f_u32s(c, "crc", &m->crc, &m->n_crc, SL_MSG_MAX_BLOB / sizeof(uint32_t));
    f_token(c, "first", &m->first);
    f_u32(c, "cached_tokens", &m->cached_tokens);
}

static void fields_of_tokens(codec *c, sl_msg_tokens *m)
{
    f_request(c, &m->rid, &m->attempt);
    f_u32(c, "first_index", &m->first_index);
    uint32_t n = (uint32_t)m->n_tokens;
    f_u32(c, "tokens", &n);
    if (c->r) {
        size_t left = (size_t)(c->r->end - c->r->p);
        require(c, "tokens", n <= MAX_TOKENS_PER_MSG && n <= left / TOKEN_MIN_BYTES);
        if (c->bad || !n)
            return;
        m->tokens = calloc(n, sizeof *m->tokens);
        if (!m->tokens) {
            fail(c, "tokens");
            return;
        }
        m->n_tokens = n;
    }
    for (uint32_t i = 0; i < n && !c->bad; i++)
        f_token(c, "tokens", &m->tokens[i]);
}

static void fields_of_done(codec *c, sl_msg_done *m)
{
    f_request(c, &m->rid, &m->attempt);
    f_u8(c, "finish", &m->finish);
    require(c, "finish", m->finish <= SL_FINISH_ERROR);
    f_i32(c, "matched_stop", &m->matched_stop);
    require(c, "matched_stop", m->matched_stop >= -1);
    f_u32(c, "produced", &m->produced);
    f_u32(c, "cached_tokens", &m->cached_tokens);
    f_u64(c, "hits", &m->hits);
    f_u64(c, "misses", &m->misses);
    f_u64(c, "swap_bytes", &m->swap_bytes);
}

static void fields_of_retracted(codec *c, sl_msg_retracted *m)
{
    f_request(c, &m->rid, &m->attempt);
    f_u32(c, "safe", &m->safe);
    f_flag(c, "damaged", &m->damaged);
}

static void fields_of_abort(codec *c, sl_msg_abort *m)
{
    f_request(c, &m->rid, &m->attempt);
    f_i32(c, "status", &m->status);
    require(c, "status", m->status <= 0);
}

static void fields_of_kv_events(codec *c, sl_msg_kv_events *m)
{
    f_u64(c, "sequence", &m->sequence);
    f_blob(c, "stored", &m->stored);
    require(c, "stored", m->stored.len % (2 * KEY_BYTES) == 0);
    f_blob(c, "removed", &m->removed);
    require(c, "removed", m->removed.len % KEY_BYTES == 0);
    f_flag(c, "cleared", &m->cleared);
    f_blob(c, "tokens", &m->tokens);
    require(c, "tokens",
            !m->tokens.len || m->tokens.len == m->stored.len / (2 * KEY_BYTES) * PAGE_TOKENS * 4);
    f_u8(c, "medium", &m->medium);
    require(c, "medium", m->medium < SL_MEDIUM_COUNT);
}

static void fields_of_pages_ask(codec *c, sl_msg_pages_ask *m)
{
    f_request(c, &m->rid, &m->attempt);
    f_u64(c, "ticket", &m->ticket);
    f_u32(c, "first", &m->first);
    f_u32(c, "count", &m->count);
    require(c, "count", m->count >= 1 && m->count <= pages_of(SL_MSG_MAX_TOKENS));
    require(c, "first", m->first <= pages_of(SL_MSG_MAX_TOKENS));
}

static void fields_of_pages_crc(codec *c, sl_msg_pages_crc *m)
{
    f_request(c, &m->rid, &m->attempt);
    f_u32(c, "first", &m->first);
    f_u32s(c, "crc", &m->crc, &m->n_crc, SL_MSG_MAX_BLOB / sizeof(uint32_t));
}

static void fields_of_lease_ask(codec *c, sl_msg_lease_ask *m)
{
    f_u64(c, "lease", &m->lease);
    f_u32(c, "ms", &m->ms);
    require(c, "ms", m->ms >= 1);
    f_seed(c, "seed", &m->seed);
    f_blob(c, "keys", &m->keys);
    require(c, "keys",
            m->keys.len && m->keys.len % KEY_BYTES == 0 &&
                m->keys.len / KEY_BYTES <= pages_of(SL_MSG_MAX_TOKENS));
    f_flag(c, "wait", &m->wait);
}

static void fields_of_loading(codec *c, sl_msg_loading *m)
{
    f_request(c, &m->rid, &m->attempt);
    f_u32(c, "pages", &m->pages);
    require(c, "pages", m->pages >= 1 && m->pages <= pages_of(SL_MSG_MAX_TOKENS));
}

static void fields_of_lease(codec *c, sl_msg_lease *m)
{
    f_u64(c, "lease", &m->lease);
    f_u32(c, "ms", &m->ms);
    f_u32(c, "lent", &m->lent);
    f_u32s(c, "pages", &m->pages, &m->n_pages, pages_of(SL_MSG_MAX_TOKENS));
    f_blob(c, "labels", &m->labels);
    require(c, "labels", m->n_pages ? m->labels.len && m->labels.len % m->n_pages == 0 : !m->labels.len);
}

static void fields_of_lease_damaged(codec *c, sl_msg_lease_damaged *m)
{
    f_u64(c, "lease", &m->lease);
    f_u32(c, "first", &m->first);
    f_u32(c, "count", &m->count);
    require(c, "first", m->first <= pages_of(SL_MSG_MAX_TOKENS));
    require(c, "count", m->count >= 1 && m->count <= pages_of(SL_MSG_MAX_TOKENS));
}

static void fields_of_group_join(codec *c, sl_msg_group_join *m)
{
    f_str(c, "cluster_tag", m->cluster_tag, sizeof m->cluster_tag);
    f_u8(c, "role", &m->role);
    require(c, "role", m->role != SL_ROLE_ROUTER && m->role <= SL_ROLE_BOTH);
    f_u32(c, "group", &m->group);
    f_u32(c, "rank", &m->rank);
    f_u32(c, "ranks", &m->ranks);
    require(c, "rank", m->rank < m->ranks);
    f_str(c, "build", m->build, sizeof m->build);
    f_str(c, "formats", m->formats, sizeof m->formats);
    f_identity(c, &m->id);
    f_u32(c, "step_tokens", &m->step_tokens);
    f_str(c, "name", m->name, sizeof m->name);
    f_str(c, "host", m->host, sizeof m->host);
    f_u32(c, "pid", &m->pid);
    f_u64(c, "instance", &m->instance);
    f_u64(c, "host_bytes", &m->host_bytes);
    f_u64(c, "host_free", &m->host_free);
    f_u64(c, "host_space", &m->host_space);
    f_u64(c, "place", &m->place);
    f_str(c, "library", m->library, sizeof m->library);
    f_str(c, "device", m->device, sizeof m->device);
}

static void fields_of_group(codec *c, sl_msg_group *m)
{
    f_u8(c, "news", &m->news);
    require(c, "news", m->news < SL_GROUP_NEWS_COUNT);
    f_u64(c, "forming", &m->forming);
    f_u64(c, "step", &m->step);
    f_str(c, "reason", m->reason, sizeof m->reason);
    f_blob(c, "invite", &m->invite);
    f_key(c, "fingerprint", &m->fingerprint);
}

static void fields_of_cache_ask(codec *c, sl_msg_cache_ask *m)
{
    f_u64(c, "ask", &m->ask);
    f_u8(c, "action", &m->action);
    require(c, "action", m->action < SL_CACHE_ACTIONS);
    f_str(c, "tier", m->tier, sizeof m->tier);
    require(c, "tier", m->action != SL_CACHE_DROP || m->tier[0]);
    f_key(c, "prefix", &m->prefix);
    f_u8(c, "prefix_bits", &m->prefix_bits);
    require(c, "prefix_bits", m->prefix_bits <= 128);
    f_u64(c, "cursor", &m->cursor);
    f_u32(c, "most", &m->most);
    require(c, "most", m->most <= SL_CACHE_PAGES_MAX && (m->most || m->action != SL_CACHE_LIST));
    f_u64(c, "rate", &m->rate);
}

static void fields_of_cache_pages(codec *c, sl_msg_cache_pages *m)
{
    f_u64(c, "ask", &m->ask);
    f_str(c, "tier", m->tier, sizeof m->tier);
    f_u64(c, "cursor", &m->cursor);
    f_blob(c, "pages", &m->pages);
    require(c, "pages",
            m->pages.len % SL_CACHE_PAGE_BYTES == 0 &&
                m->pages.len / SL_CACHE_PAGE_BYTES <= SL_CACHE_PAGES_MAX);
}

static void fields_of_cache_job(codec *c, sl_msg_cache_job *m)
{
    f_u64(c, "ask", &m->ask);
    f_i32(c, "status", &m->status);
    require(c, "status", m->status <= 0);
    f_str(c, "reason", m->reason, sizeof m->reason);
    f_u8(c, "action", &m->action);
    require(c, "action", m->action < SL_CACHE_ACTIONS);
    f_u8(c, "state", &m->state);
    require(c, "state", m->state < SL_CACHE_STATES);
    f_str(c, "tier", m->tier, sizeof m->tier);
    f_u64(c, "done", &m->done);
    f_u64(c, "total", &m->total);
    f_u64(c, "damaged", &m->damaged);
    f_u64(c, "unreadable", &m->unreadable);
    f_u64(c, "gone", &m->gone);
    f_u64(c, "bytes", &m->bytes);
    f_u64(c, "ms", &m->ms);
    f_blob(c, "keys", &m->keys);
    require(c, "keys", m->keys.len % KEY_BYTES == 0 && m->keys.len / KEY_BYTES <= SL_CACHE_DAMAGED_MAX);
}

/* False for a type without a description. */
static bool fields(codec *c, sl_msg *m)
{
    switch (m->type) {
    case SL_MSG_HELLO:
        return fields_of_hello(c, &m->hello), true;
    case SL_MSG_WELCOME:
        return fields_of_welcome(c, &m->welcome), true;
    case SL_MSG_REFUSE:
        return fields_of_refuse(c, &m->refuse), true;
    case SL_MSG_LOAD:
        return fields_of_load(c, &m->load), true;
    case SL_MSG_PING:
    case SL_MSG_PONG:
        return f_u64(c, "stamp", &m->ping.stamp), true;
    case SL_MSG_RESERVE:
        return fields_of_reserve(c, &m->reserve), true;
    case SL_MSG_RESERVED:
        return fields_of_reserved(c, &m->reserved), true;
    case SL_MSG_PREFILL:
        return fields_of_prefill(c, &m->prefill), true;
    case SL_MSG_PREFILLED:
        return fields_of_prefilled(c, &m->prefilled), true;
    case SL_MSG_FAILED:
        return fields_of_failed(c, &m->failed), true;
    case SL_MSG_PEER_HELLO:
        return fields_of_peer_hello(c, &m->peer_hello), true;
    case SL_MSG_PEER_WELCOME:
        return fields_of_peer_welcome(c, &m->peer_welcome), true;
    case SL_MSG_COMMIT:
        return fields_of_commit(c, &m->commit), true;
    case SL_MSG_TOKENS:
    case SL_MSG_SCORES:
        return fields_of_tokens(c, &m->tokens), true;
    case SL_MSG_JOINED:
        return fields_of_joined(c, &m->joined), true;
    case SL_MSG_DONE:
        return fields_of_done(c, &m->done), true;
    case SL_MSG_RETRACTED:
        return fields_of_retracted(c, &m->retracted), true;
    case SL_MSG_DRAINED:
        return f_request(c, &m->id.rid, &m->id.attempt), true;
    case SL_MSG_ABORT:
        return fields_of_abort(c, &m->abort), true;
    case SL_MSG_KV_EVENTS:
        return fields_of_kv_events(c, &m->kv_events), true;
    case SL_MSG_PAGES_ASK:
        return fields_of_pages_ask(c, &m->pages_ask), true;
    case SL_MSG_PAGES_CRC:
        return fields_of_pages_crc(c, &m->pages_crc), true;
    case SL_MSG_PREFETCH:
        return fields_of_prefetch(c, &m->prefetch), true;
    case SL_MSG_LEASE_ASK:
        return fields_of_lease_ask(c, &m->lease_ask), true;
    case SL_MSG_LEASE:
        return fields_of_lease(c, &m->lease), true;
    case SL_MSG_LEASE_END:
        return f_u64(c, "lease", &m->lease_end.lease), true;
    case SL_MSG_LEASE_DAMAGED:
        return fields_of_lease_damaged(c, &m->lease_damaged), true;
    case SL_MSG_GROUP_JOIN:
        return fields_of_group_join(c, &m->group_join), true;
    case SL_MSG_GROUP:
        return fields_of_group(c, &m->group), true;
    case SL_MSG_CACHE_ASK:
        return fields_of_cache_ask(c, &m->cache_ask), true;
    case SL_MSG_CACHE_PAGES:
        return fields_of_cache_pages(c, &m->cache_pages), true;
    case SL_MSG_CACHE_JOB:
        return fields_of_cache_job(c, &m->cache_job), true;
    case SL_MSG_LOADING:
        return fields_of_loading(c, &m->loading), true;
    case SL_MSG_DRAIN:
    case SL_MSG_LEAVE:
    case SL_MSG_FLUSH_CACHE:
    case SL_MSG_KV_RESYNC:
        return true;
    case SL_MSG_TYPE_COUNT:
        break;
    }
    return false;
}

void sl_msg_encode(const sl_msg *msg, sl_wr *w)
{
    codec c = {.w = w};
    sl_wr_u8(w, (uint8_t)msg->type);
    sl_wr_u8(w, SL_MSG_VERSION);
    /* A codec with a writer only reads the struct; the cast is needed because a description also serves the reader. */
    bool known = fields(&c, (sl_msg *)msg);
    SL_CHECK(known, "message type %d", (int)msg->type);
}

sl_status sl_msg_decode(const void *bytes, size_t n, sl_msg *out, sl_err *err)
{
    sl_rd r = sl_rd_init(bytes, n);
    uint8_t type = sl_rd_u8(&r), version = sl_rd_u8(&r);
    if (r.bad)
        return sl_fail(err, SL_ERR_CORRUPT, "message of %zu bytes has no header", n);
    if (version != SL_MSG_VERSION)
        return sl_fail(err, SL_ERR_CORRUPT, "message version %u, this build has version %d", version,
                       SL_MSG_VERSION);
    sl_msg m;
    memset(&m, 0, sizeof m);
    m.type = (sl_msg_type)type;
    codec c = {.r = &r};
    if (!fields(&c, &m))
        return sl_fail(err, SL_ERR_CORRUPT, "message type %u is unknown", type);
    if (!c.bad && sl_rd_done(&r) != SL_OK)
        fail(&c, "bytes after the last field");
    if (c.bad) {
        sl_msg_free(&m);
        return sl_fail(err, SL_ERR_CORRUPT, "%s: bad %s", sl_msg_type_name(m.type), c.field);
    }
    *out = m;
    return SL_OK;
}

void sl_msg_free(sl_msg *msg)
{
    switch (msg->type) {
    case SL_MSG_RESERVE:
        free(msg->reserve.tokens);
        msg->reserve.tokens = NULL;
        break;
    case SL_MSG_PREFETCH:
        free(msg->prefetch.tokens);
        msg->prefetch.tokens = NULL;
        break;
    case SL_MSG_LEASE:
        free(msg->lease.pages);
        msg->lease.pages = NULL;
        break;
    case SL_MSG_RESERVED:
        free(msg->reserved.pages);
        msg->reserved.pages = NULL;
        break;
    case SL_MSG_PREFILL:
        free(msg->prefill.tokens);
        free(msg->prefill.pages);
        msg->prefill.tokens = NULL;
        msg->prefill.pages = NULL;
        break;
    case SL_MSG_COMMIT:
        free(msg->commit.crc);
        msg->commit.crc = NULL;
        break;
    case SL_MSG_PAGES_CRC:
        free(msg->pages_crc.crc);
        msg->pages_crc.crc = NULL;
        break;
    case SL_MSG_TOKENS:
    case SL_MSG_SCORES:
        free(msg->tokens.tokens);
        msg->tokens.tokens = NULL;
        break;
    default:
        break;
    }
}
