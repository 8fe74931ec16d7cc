/* What the messages about one request contain: from its reservation to its last token, and the checksums of its pages. See msg_impl.h. */
#include <stdlib.h>

#include "base/msg_impl.h"

enum {
    TOKEN_MIN_BYTES = 9,       /* an encoded sl_msg_token without alternatives */
    MAX_TOKENS_PER_MSG = 4096, /* of sl_msg_tokens; a step produces one for each request */
};

/* n_tokens: of the prompt, which bounds the pages. */
static void source(sl_codec *c, size_t n_tokens, sl_msg_source *s)
{
    sl_mf_u32(c, "source.worker", &s->worker);
    sl_mf_str(c, "source.addr", s->addr, sizeof s->addr);
    sl_mf_u64(c, "source.epoch", &s->epoch);
    sl_mf_u32(c, "source.pages", &s->pages);
    sl_mf_require(c, "source.pages", s->pages <= sl_mf_pages_of(n_tokens));
    sl_mf_require(c, "source.addr", !s->pages == !s->addr[0]);
}

void sl_mf_of_reserve(sl_codec *c, sl_msg_reserve *m)
{
    sl_mf_request(c, &m->rid, &m->attempt);
    sl_mf_u32(c, "prefill_worker", &m->prefill_worker);
    sl_mf_prompt(c, &m->n_prompt, &m->tokens, &m->n_tokens);
    sl_mf_u32(c, "deadline_ms", &m->deadline_ms);
    sl_mf_blob(c, "sampling", &m->sampling);
    sl_mf_seed(c, "seed", &m->seed);
    sl_mf_u64(c, "tenant", &m->tenant);
    source(c, m->n_tokens, &m->source);
}

void sl_mf_of_prefetch(sl_codec *c, sl_msg_prefetch *m)
{
    sl_mf_request(c, &m->rid, &m->attempt);
    sl_mf_i32s(c, "tokens", &m->tokens, &m->n_tokens, SL_MSG_MAX_TOKENS);
    sl_mf_require(c, "tokens", m->n_tokens >= 1);
    sl_mf_seed(c, "seed", &m->seed);
    sl_mf_u64(c, "tenant", &m->tenant);
    source(c, m->n_tokens, &m->source);
}

void sl_mf_of_reserved(sl_codec *c, sl_msg_reserved *m)
{
    sl_mf_request(c, &m->rid, &m->attempt);
    sl_mf_u64(c, "ticket", &m->ticket);
    sl_mf_u32(c, "matched_pages", &m->matched_pages);
    sl_mf_u32s(c, "pages", &m->pages, &m->n_pages, sl_mf_pages_of(SL_MSG_MAX_TOKENS));
    sl_mf_require(c, "pages", m->n_pages >= 1);
    sl_mf_require(c, "matched_pages", m->matched_pages <= m->n_pages);
}

void sl_mf_of_prefill(sl_codec *c, sl_msg_prefill *m)
{
    sl_mf_request(c, &m->rid, &m->attempt);
    sl_mf_u64(c, "ticket", &m->ticket);
    sl_mf_u32(c, "decode_worker", &m->decode_worker);
    sl_mf_str(c, "decode_addr", m->decode_addr, sizeof m->decode_addr);
    sl_mf_u64(c, "decode_epoch", &m->decode_epoch);
    sl_mf_prompt(c, &m->n_prompt, &m->tokens, &m->n_tokens);
    sl_mf_u32(c, "matched_pages", &m->matched_pages);
    sl_mf_u32s(c, "pages", &m->pages, &m->n_pages, sl_mf_pages_of(SL_MSG_MAX_TOKENS));
    sl_mf_require(c, "pages",
                  m->n_pages >= sl_mf_pages_of(m->n_tokens)); /* and those of snapshots of states */
    sl_mf_require(c, "matched_pages", m->matched_pages <= sl_mf_pages_of(m->n_tokens));
    sl_mf_u32(c, "deadline_ms", &m->deadline_ms);
    sl_mf_blob(c, "sampling", &m->sampling);
    sl_mf_seed(c, "seed", &m->seed);
}

void sl_mf_of_prefilled(sl_codec *c, sl_msg_prefilled *m)
{
    sl_mf_request(c, &m->rid, &m->attempt);
    sl_mf_u32(c, "cached_tokens", &m->cached_tokens);
    sl_mf_u64(c, "queue_us", &m->queue_us);
    sl_mf_u64(c, "compute_us", &m->compute_us);
    sl_mf_u64(c, "ship_us", &m->ship_us);
    sl_mf_u64(c, "bytes", &m->bytes);
    sl_mf_u64(c, "overlap_us", &m->overlap_us);
}

void sl_mf_of_joined(sl_codec *c, sl_msg_joined *m)
{
    sl_mf_request(c, &m->rid, &m->attempt);
    sl_mf_u64(c, "load_us", &m->load_us);
    sl_mf_u64(c, "check_us", &m->check_us);
    sl_mf_u64(c, "wait_us", &m->wait_us);
}

void sl_mf_of_failed(sl_codec *c, sl_msg_failed *m)
{
    sl_mf_request(c, &m->rid, &m->attempt);
    sl_mf_i32(c, "status", &m->status);
    sl_mf_require(c, "status", m->status < 0);
    sl_mf_flag(c, "retryable", &m->retryable);
    sl_mf_str(c, "reason", m->reason, sizeof m->reason);
}

void sl_mf_of_loading(sl_codec *c, sl_msg_loading *m)
{
    sl_mf_request(c, &m->rid, &m->attempt);
    sl_mf_u32(c, "pages", &m->pages);
    sl_mf_require(c, "pages", m->pages >= 1 && m->pages <= sl_mf_pages_of(SL_MSG_MAX_TOKENS));
}

void sl_mf_of_commit(sl_codec *c, sl_msg_commit *m)
{
    sl_mf_request(c, &m->rid, &m->attempt);
    sl_mf_u64(c, "ticket", &m->ticket);
    sl_mf_u32(c, "worker_id", &m->worker_id);
    sl_mf_u32(c, "n_tokens", &m->n_tokens);
    sl_mf_require(c, "n_tokens", m->n_tokens >= 1 && m->n_tokens <= SL_MSG_MAX_TOKENS);
    sl_mf_u32(c, "first_page", &m->first_page);
    sl_mf_require(c, "first_page", m->first_page <= sl_mf_pages_of(m->n_tokens));
    sl_mf_u32s(c, "crc", &m->crc, &m->n_crc, SL_MSG_MAX_BLOB / sizeof(uint32_t));
    sl_mf_token(c, "first", &m->first);
    sl_mf_u32(c, "cached_tokens", &m->cached_tokens);
    sl_mf_blob(c, "hidden", &m->hidden);
    sl_mf_require(c, "hidden", m->hidden.len <= SL_MSG_MAX_HIDDEN);
}

void sl_mf_of_tokens(sl_codec *c, sl_msg_tokens *m)
{
    sl_mf_request(c, &m->rid, &m->attempt);
    sl_mf_u32(c, "first_index", &m->first_index);
    uint32_t n = (uint32_t)m->n_tokens;
    sl_mf_u32(c, "tokens", &n);
    if (c->r) {
        size_t left = (size_t)(c->r->end - c->r->p);
        sl_mf_require(c, "tokens", n <= MAX_TOKENS_PER_MSG && n <= left / TOKEN_MIN_BYTES);
        if (c->bad || !n)
            return;
        m->tokens = calloc(n, sizeof *m->tokens);
        if (!m->tokens) {
            sl_mf_fail(c, "tokens");
            return;
        }
        m->n_tokens = n;
    }
    for (uint32_t i = 0; i < n && !c->bad; i++)
        sl_mf_token(c, "tokens", &m->tokens[i]);
}

void sl_mf_of_done(sl_codec *c, sl_msg_done *m)
{
    sl_mf_request(c, &m->rid, &m->attempt);
    sl_mf_u8(c, "finish", &m->finish);
    sl_mf_require(c, "finish", m->finish <= SL_FINISH_ERROR);
    sl_mf_i32(c, "matched_stop", &m->matched_stop);
    sl_mf_require(c, "matched_stop", m->matched_stop >= -1);
    sl_mf_u32(c, "produced", &m->produced);
    sl_mf_u32(c, "cached_tokens", &m->cached_tokens);
    sl_mf_u64(c, "hits", &m->hits);
    sl_mf_u64(c, "misses", &m->misses);
    sl_mf_u64(c, "swap_bytes", &m->swap_bytes);
}

void sl_mf_of_retracted(sl_codec *c, sl_msg_retracted *m)
{
    sl_mf_request(c, &m->rid, &m->attempt);
    sl_mf_u32(c, "safe", &m->safe);
    sl_mf_flag(c, "damaged", &m->damaged);
}

void sl_mf_of_abort(sl_codec *c, sl_msg_abort *m)
{
    sl_mf_request(c, &m->rid, &m->attempt);
    sl_mf_i32(c, "status", &m->status);
    sl_mf_require(c, "status", m->status <= 0);
}

void sl_mf_of_pages_ask(sl_codec *c, sl_msg_pages_ask *m)
{
    sl_mf_request(c, &m->rid, &m->attempt);
    sl_mf_u64(c, "ticket", &m->ticket);
    sl_mf_u32(c, "first", &m->first);
    sl_mf_u32(c, "count", &m->count);
    sl_mf_require(c, "count", m->count >= 1 && m->count <= sl_mf_pages_of(SL_MSG_MAX_TOKENS));
    sl_mf_require(c, "first", m->first <= sl_mf_pages_of(SL_MSG_MAX_TOKENS));
}

void sl_mf_of_pages_crc(sl_codec *c, sl_msg_pages_crc *m)
{
    sl_mf_request(c, &m->rid, &m->attempt);
    sl_mf_u32(c, "first", &m->first);
    sl_mf_u32s(c, "crc", &m->crc, &m->n_crc, SL_MSG_MAX_BLOB / sizeof(uint32_t));
}
