/*
 * What the messages about workers and their caches contain: who joins and with what, load, connections between workers, leases of
 * pages, groups of ranks, events and commands of the cache. See msg_impl.h.
 */
#include "base/msg_impl.h"

void sl_mf_of_hello(sl_codec *c, sl_msg_hello *m)
{
    sl_mf_u32(c, "version", &m->version);
    sl_mf_u8(c, "role", &m->role);
    sl_mf_require(c, "role", m->role <= SL_ROLE_BOTH);
    sl_mf_str(c, "name", m->name, sizeof m->name);
    sl_mf_str(c, "cluster_tag", m->cluster_tag, sizeof m->cluster_tag);
    sl_mf_str(c, "model", m->model, sizeof m->model);
    sl_mf_str(c, "listen", m->listen, sizeof m->listen);
    sl_mf_str(c, "metrics", m->metrics, sizeof m->metrics);
    sl_mf_u64(c, "epoch", &m->epoch);
    sl_mf_identity(c, &m->id);
    sl_mf_u32(c, "max_context", &m->max_context);
    sl_mf_u32(c, "max_batch", &m->max_batch);
    sl_mf_u32(c, "total_pages", &m->total_pages);
    sl_mf_u32(c, "vocab_size", &m->vocab_size);
    sl_mf_u32(c, "pid", &m->pid);
    sl_mf_str(c, "host", m->host, sizeof m->host);
    sl_mf_u64(c, "instance", &m->instance);
    sl_mf_u32(c, "group", &m->group);
    sl_mf_u32(c, "rank", &m->rank);
    sl_mf_u32(c, "ranks", &m->ranks);
    sl_mf_require(c, "ranks", m->ranks != 1 && m->ranks <= SL_MSG_MAX_RANKS);
    sl_mf_require(c, "rank", m->ranks ? m->rank < m->ranks : !m->rank && !m->group);
    sl_mf_u32(c, "bits", &m->bits);
}

void sl_mf_of_welcome(sl_codec *c, sl_msg_welcome *m)
{
    sl_mf_u32(c, "worker_id", &m->worker_id);
    sl_mf_u64(c, "router_epoch", &m->router_epoch);
    sl_mf_u32(c, "heartbeat_ms", &m->heartbeat_ms);
    sl_mf_u32(c, "dead_after_ms", &m->dead_after_ms);
}

void sl_mf_of_refuse(sl_codec *c, sl_msg_refuse *m)
{
    sl_mf_i32(c, "status", &m->status);
    sl_mf_require(c, "status", m->status < 0);
    sl_mf_str(c, "reason", m->reason, sizeof m->reason);
    sl_mf_flag(c, "retry", &m->retry);
}

void sl_mf_of_load(sl_codec *c, sl_msg_load *m)
{
    sl_mf_u32(c, "running", &m->running);
    sl_mf_u32(c, "waiting", &m->waiting);
    sl_mf_u32(c, "free_pages", &m->free_pages);
    sl_mf_u32(c, "cached_pages", &m->cached_pages);
    sl_mf_u32(c, "total_pages", &m->total_pages);
    sl_mf_u64(c, "queued_tokens", &m->queued_tokens);
    sl_mf_u64(c, "tokens_done", &m->tokens_done);
    sl_mf_u64(c, "hits", &m->hits);
    sl_mf_u64(c, "misses", &m->misses);
    sl_mf_u64(c, "swap_bytes", &m->swap_bytes);
    sl_mf_flag(c, "draining", &m->draining);
    sl_mf_u32(c, "engine_age_ms", &m->engine_age_ms);
    sl_mf_u32(c, "prefill_rate", &m->prefill_rate);
    sl_mf_u64(c, "disk_rate", &m->disk_rate);
    sl_mf_u64(c, "shared_rate", &m->shared_rate);
    sl_mf_u64(c, "peer_rate", &m->peer_rate);
    sl_mf_u32(c, "checker_age_ms", &m->checker_age_ms);
    sl_mf_u32(c, "copier_age_ms", &m->copier_age_ms);
    sl_mf_flag(c, "group_broken", &m->group_broken);
}

void sl_mf_of_peer_hello(sl_codec *c, sl_msg_peer_hello *m)
{
    sl_mf_u32(c, "version", &m->version);
    sl_mf_u32(c, "worker_id", &m->worker_id);
    sl_mf_u64(c, "epoch", &m->epoch);
    sl_mf_str(c, "cluster_tag", m->cluster_tag, sizeof m->cluster_tag);
    sl_mf_identity(c, &m->id);
    sl_mf_u32(c, "direct_pid", &m->direct_pid);
    sl_mf_u64(c, "decode_epoch", &m->decode_epoch);
    sl_mf_flag(c, "reader", &m->reader);
    sl_mf_require(c, "direct_pid", !m->reader || !m->direct_pid);
}

void sl_mf_of_peer_welcome(sl_codec *c, sl_msg_peer_welcome *m)
{
    sl_mf_u64(c, "epoch", &m->epoch);
    sl_mf_u64(c, "arena_addr", &m->arena_addr);
    sl_mf_u64(c, "arena_bytes", &m->arena_bytes);
    sl_mf_require(c, "arena_bytes", m->arena_bytes <= UINT64_MAX - m->arena_addr);
    sl_mf_u32(c, "total_pages", &m->total_pages);
    sl_mf_blob(c, "geometry", &m->geometry);
    sl_mf_blob(c, "rkey", &m->rkey);
    sl_mf_blob(c, "direct", &m->direct);
}

void sl_mf_of_kv_events(sl_codec *c, sl_msg_kv_events *m)
{
    sl_mf_u64(c, "sequence", &m->sequence);
    sl_mf_blob(c, "stored", &m->stored);
    sl_mf_require(c, "stored", m->stored.len % (2 * SL_MSG_KEY_BYTES) == 0);
    sl_mf_blob(c, "removed", &m->removed);
    sl_mf_require(c, "removed", m->removed.len % SL_MSG_KEY_BYTES == 0);
    sl_mf_flag(c, "cleared", &m->cleared);
    sl_mf_blob(c, "tokens", &m->tokens);
    sl_mf_require(c, "tokens",
                  !m->tokens.len ||
                      m->tokens.len == m->stored.len / (2 * SL_MSG_KEY_BYTES) * SL_MSG_PAGE_TOKENS * 4);
    sl_mf_u8(c, "medium", &m->medium);
    sl_mf_require(c, "medium", m->medium < SL_MEDIUM_COUNT);
}

void sl_mf_of_lease_ask(sl_codec *c, sl_msg_lease_ask *m)
{
    sl_mf_u64(c, "lease", &m->lease);
    sl_mf_u32(c, "ms", &m->ms);
    sl_mf_require(c, "ms", m->ms >= 1);
    sl_mf_seed(c, "seed", &m->seed);
    sl_mf_blob(c, "keys", &m->keys);
    sl_mf_require(c, "keys",
                  m->keys.len && m->keys.len % SL_MSG_KEY_BYTES == 0 &&
                      m->keys.len / SL_MSG_KEY_BYTES <= sl_mf_pages_of(SL_MSG_MAX_TOKENS));
    sl_mf_flag(c, "wait", &m->wait);
}

void sl_mf_of_lease(sl_codec *c, sl_msg_lease *m)
{
    sl_mf_u64(c, "lease", &m->lease);
    sl_mf_u32(c, "ms", &m->ms);
    sl_mf_u32(c, "lent", &m->lent);
    sl_mf_u32s(c, "pages", &m->pages, &m->n_pages, sl_mf_pages_of(SL_MSG_MAX_TOKENS));
    sl_mf_blob(c, "labels", &m->labels);
    sl_mf_require(c, "labels",
                  m->n_pages ? m->labels.len && m->labels.len % m->n_pages == 0 : !m->labels.len);
}

void sl_mf_of_lease_damaged(sl_codec *c, sl_msg_lease_damaged *m)
{
    sl_mf_u64(c, "lease", &m->lease);
    sl_mf_u32(c, "first", &m->first);
    sl_mf_u32(c, "count", &m->count);
    sl_mf_require(c, "first", m->first <= sl_mf_pages_of(SL_MSG_MAX_TOKENS));
    sl_mf_require(c, "count", m->count >= 1 && m->count <= sl_mf_pages_of(SL_MSG_MAX_TOKENS));
}

void sl_mf_of_group_join(sl_codec *c, sl_msg_group_join *m)
{
    sl_mf_str(c, "cluster_tag", m->cluster_tag, sizeof m->cluster_tag);
    sl_mf_u8(c, "role", &m->role);
    sl_mf_require(c, "role", m->role != SL_ROLE_ROUTER && m->role <= SL_ROLE_BOTH);
    sl_mf_u32(c, "group", &m->group);
    sl_mf_u32(c, "rank", &m->rank);
    sl_mf_u32(c, "ranks", &m->ranks);
    sl_mf_require(c, "rank", m->rank < m->ranks);
    sl_mf_str(c, "build", m->build, sizeof m->build);
    sl_mf_str(c, "formats", m->formats, sizeof m->formats);
    sl_mf_identity(c, &m->id);
    sl_mf_u32(c, "step_tokens", &m->step_tokens);
    sl_mf_str(c, "name", m->name, sizeof m->name);
    sl_mf_str(c, "host", m->host, sizeof m->host);
    sl_mf_u32(c, "pid", &m->pid);
    sl_mf_u64(c, "instance", &m->instance);
    sl_mf_u64(c, "host_bytes", &m->host_bytes);
    sl_mf_u64(c, "host_free", &m->host_free);
    sl_mf_u64(c, "host_space", &m->host_space);
    sl_mf_u64(c, "place", &m->place);
    sl_mf_str(c, "library", m->library, sizeof m->library);
    sl_mf_str(c, "device", m->device, sizeof m->device);
}

void sl_mf_of_group(sl_codec *c, sl_msg_group *m)
{
    sl_mf_u8(c, "news", &m->news);
    sl_mf_require(c, "news", m->news < SL_GROUP_NEWS_COUNT);
    sl_mf_u64(c, "forming", &m->forming);
    sl_mf_u64(c, "step", &m->step);
    sl_mf_str(c, "reason", m->reason, sizeof m->reason);
    sl_mf_blob(c, "invite", &m->invite);
    sl_mf_key(c, "fingerprint", &m->fingerprint);
}

void sl_mf_of_cache_ask(sl_codec *c, sl_msg_cache_ask *m)
{
    sl_mf_u64(c, "ask", &m->ask);
    sl_mf_u8(c, "action", &m->action);
    sl_mf_require(c, "action", m->action < SL_CACHE_ACTIONS);
    sl_mf_str(c, "tier", m->tier, sizeof m->tier);
    sl_mf_require(c, "tier", m->action != SL_CACHE_DROP || m->tier[0]);
    sl_mf_key(c, "prefix", &m->prefix);
    sl_mf_u8(c, "prefix_bits", &m->prefix_bits);
    sl_mf_require(c, "prefix_bits", m->prefix_bits <= 128);
    sl_mf_u64(c, "cursor", &m->cursor);
    sl_mf_u32(c, "most", &m->most);
    sl_mf_require(c, "most", m->most <= SL_CACHE_PAGES_MAX && (m->most || m->action != SL_CACHE_LIST));
    sl_mf_u64(c, "rate", &m->rate);
}

void sl_mf_of_cache_pages(sl_codec *c, sl_msg_cache_pages *m)
{
    sl_mf_u64(c, "ask", &m->ask);
    sl_mf_str(c, "tier", m->tier, sizeof m->tier);
    sl_mf_u64(c, "cursor", &m->cursor);
    sl_mf_blob(c, "pages", &m->pages);
    sl_mf_require(c, "pages",
                  m->pages.len % SL_CACHE_PAGE_BYTES == 0 &&
                      m->pages.len / SL_CACHE_PAGE_BYTES <= SL_CACHE_PAGES_MAX);
}

void sl_mf_of_cache_job(sl_codec *c, sl_msg_cache_job *m)
{
    sl_mf_u64(c, "ask", &m->ask);
    sl_mf_i32(c, "status", &m->status);
    sl_mf_require(c, "status", m->status <= 0);
    sl_mf_str(c, "reason", m->reason, sizeof m->reason);
    sl_mf_u8(c, "action", &m->action);
    sl_mf_require(c, "action", m->action < SL_CACHE_ACTIONS);
    sl_mf_u8(c, "state", &m->state);
    sl_mf_require(c, "state", m->state < SL_CACHE_STATES);
    sl_mf_str(c, "tier", m->tier, sizeof m->tier);
    sl_mf_u64(c, "done", &m->done);
    sl_mf_u64(c, "total", &m->total);
    sl_mf_u64(c, "damaged", &m->damaged);
    sl_mf_u64(c, "unreadable", &m->unreadable);
    sl_mf_u64(c, "gone", &m->gone);
    sl_mf_u64(c, "bytes", &m->bytes);
    sl_mf_u64(c, "ms", &m->ms);
    sl_mf_blob(c, "keys", &m->keys);
    sl_mf_require(c, "keys",
                  m->keys.len % SL_MSG_KEY_BYTES == 0 &&
                      m->keys.len / SL_MSG_KEY_BYTES <= SL_CACHE_DAMAGED_MAX);
}
