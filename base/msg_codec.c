/* From the type of a message to the description of its fields, in both directions; and what a decoded message owns. See msg_impl.h. */
#include <stdlib.h>
#include <string.h>

#include "base/msg_impl.h"

/* False for a type without a description. */
static bool fields(sl_codec *c, sl_msg *m)
{
    switch (m->type) {
    case SL_MSG_HELLO:
        return sl_mf_of_hello(c, &m->hello), true;
    case SL_MSG_WELCOME:
        return sl_mf_of_welcome(c, &m->welcome), true;
    case SL_MSG_REFUSE:
        return sl_mf_of_refuse(c, &m->refuse), true;
    case SL_MSG_LOAD:
        return sl_mf_of_load(c, &m->load), true;
    case SL_MSG_PING:
    case SL_MSG_PONG:
        return sl_mf_u64(c, "stamp", &m->ping.stamp), true;
    case SL_MSG_RESERVE:
        return sl_mf_of_reserve(c, &m->reserve), true;
    case SL_MSG_RESERVED:
        return sl_mf_of_reserved(c, &m->reserved), true;
    case SL_MSG_PREFILL:
        return sl_mf_of_prefill(c, &m->prefill), true;
    case SL_MSG_PREFILLED:
        return sl_mf_of_prefilled(c, &m->prefilled), true;
    case SL_MSG_FAILED:
        return sl_mf_of_failed(c, &m->failed), true;
    case SL_MSG_PEER_HELLO:
        return sl_mf_of_peer_hello(c, &m->peer_hello), true;
    case SL_MSG_PEER_WELCOME:
        return sl_mf_of_peer_welcome(c, &m->peer_welcome), true;
    case SL_MSG_COMMIT:
        return sl_mf_of_commit(c, &m->commit), true;
    case SL_MSG_TOKENS:
    case SL_MSG_SCORES:
        return sl_mf_of_tokens(c, &m->tokens), true;
    case SL_MSG_JOINED:
        return sl_mf_of_joined(c, &m->joined), true;
    case SL_MSG_DONE:
        return sl_mf_of_done(c, &m->done), true;
    case SL_MSG_RETRACTED:
        return sl_mf_of_retracted(c, &m->retracted), true;
    case SL_MSG_DRAINED:
        return sl_mf_request(c, &m->id.rid, &m->id.attempt), true;
    case SL_MSG_ABORT:
        return sl_mf_of_abort(c, &m->abort), true;
    case SL_MSG_KV_EVENTS:
        return sl_mf_of_kv_events(c, &m->kv_events), true;
    case SL_MSG_PAGES_ASK:
        return sl_mf_of_pages_ask(c, &m->pages_ask), true;
    case SL_MSG_PAGES_CRC:
        return sl_mf_of_pages_crc(c, &m->pages_crc), true;
    case SL_MSG_PREFETCH:
        return sl_mf_of_prefetch(c, &m->prefetch), true;
    case SL_MSG_LEASE_ASK:
        return sl_mf_of_lease_ask(c, &m->lease_ask), true;
    case SL_MSG_LEASE:
        return sl_mf_of_lease(c, &m->lease), true;
    case SL_MSG_LEASE_END:
        return sl_mf_u64(c, "lease", &m->lease_end.lease), true;
    case SL_MSG_LEASE_DAMAGED:
        return sl_mf_of_lease_damaged(c, &m->lease_damaged), true;
    case SL_MSG_GROUP_JOIN:
        return sl_mf_of_group_join(c, &m->group_join), true;
    case SL_MSG_GROUP:
        return sl_mf_of_group(c, &m->group), true;
    case SL_MSG_CACHE_ASK:
        return sl_mf_of_cache_ask(c, &m->cache_ask), true;
    case SL_MSG_CACHE_PAGES:
        return sl_mf_of_cache_pages(c, &m->cache_pages), true;
    case SL_MSG_CACHE_JOB:
        return sl_mf_of_cache_job(c, &m->cache_job), true;
    case SL_MSG_LOADING:
        return sl_mf_of_loading(c, &m->loading), true;
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
    sl_codec c = {.w = w};
    sl_wr_u8(w, (uint8_t)msg->type);
    sl_wr_u8(w, SL_MSG_VERSION);
    /* A sl_codec with a writer only reads the struct; the cast is needed because a description also serves the reader. */
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
    sl_codec c = {.r = &r};
    if (!fields(&c, &m))
        return sl_fail(err, SL_ERR_CORRUPT, "message type %u is unknown", type);
    if (!c.bad && sl_rd_done(&r) != SL_OK)
        sl_mf_fail(&c, "bytes after the last field");
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
