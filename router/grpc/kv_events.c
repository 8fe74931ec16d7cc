/*
 * SubscribeKvEvents: changes of the decode workers' prefix caches, as they report them, numbered for each worker
 * (dp_rank). A subscriber that names a sequence number gets what the router still keeps from there on. Batches are
 * sent as far as its stream has room; a gap, because it reads too slowly or asks too late, is announced (router/core.h,
 * sl_kv_cursor).
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common.pb-c.h"
#include "kvstore/page_key.h"
#include "router/grpc/rpc.h"

#define C(name) Smg__Grpc__Common__##name

/* One batch as protobuf pieces that borrow from each other. */
typedef struct batch_out {
    C(KvEventBatch) batch;
    C(KvCacheEvent) * events;
    C(KvCacheEvent) * *list;
    C(KvBlocksStored) * stored;
    C(KvBlock) * blocks;
    C(KvBlock) * *block_list;
    C(KvBlocksRemoved) removed;
    C(KvCacheCleared) cleared;
    int64_t *hashes;
    uint32_t *tokens;
} batch_out;

static void free_batch(batch_out *o)
{
    free(o->events);
    free(o->list);
    free(o->stored);
    free(o->blocks);
    free(o->block_list);
    free(o->hashes);
    free(o->tokens);
}

static C(KvCacheEvent) * next_event(batch_out *o, const sl_kv_batch *b)
{
    size_t i = o->batch.n_events++;
    C(KvCacheEvent) *e = &o->events[i];
    smg__grpc__common__kv_cache_event__init(e);
    e->event_id = (b->sequence << 20) + i; /* grows within a dp_rank */
    o->list[i] = e;
    return e;
}

/* KvBlock.cache_level of a medium other than host memory, which is the default. */
static int32_t level_of(sl_medium m)
{
    return m == SL_MEDIUM_DISK ? 2 : 3;
}

static void fill_stored(batch_out *o, const sl_kv_batch *b, size_t i)
{
    C(KvBlock) *k = &o->blocks[i];
    smg__grpc__common__kv_block__init(k);
    k->block_hash = (int64_t)b->stored[2 * i + 1].lo;
    k->block_size = SL_KEY_PAGE_TOKENS;
    if (b->tokens && b->tokens[i * SL_KEY_PAGE_TOKENS] != SL_KV_WITHHELD) {
        k->token_ids = o->tokens + i * SL_KEY_PAGE_TOKENS;
        k->n_token_ids = SL_KEY_PAGE_TOKENS;
    }
    if (b->medium != SL_MEDIUM_HOST) {
        k->_cache_level_case = SMG__GRPC__COMMON__KV_BLOCK___CACHE_LEVEL_CACHE_LEVEL;
        k->cache_level = level_of(b->medium);
    }
    o->block_list[i] = k;
    C(KvBlocksStored) *s = &o->stored[i];
    smg__grpc__common__kv_blocks_stored__init(s);
    s->n_blocks = 1;
    s->blocks = &o->block_list[i];
    if (b->stored[2 * i].lo | b->stored[2 * i].hi) {
        s->_parent_block_hash_case =
            SMG__GRPC__COMMON__KV_BLOCKS_STORED___PARENT_BLOCK_HASH_PARENT_BLOCK_HASH;
        s->parent_block_hash = (int64_t)b->stored[2 * i].lo;
    }
    C(KvCacheEvent) *e = next_event(o, b);
    e->data_case = SMG__GRPC__COMMON__KV_CACHE_EVENT__DATA_STORED;
    e->stored = s;
}

static bool make_batch(const sl_kv_batch *b, batch_out *o)
{
    size_t pairs = b->n_stored;
    memset(o, 0, sizeof *o);
    smg__grpc__common__kv_event_batch__init(&o->batch);
    o->events = calloc(pairs + 2, sizeof *o->events);
    o->list = calloc(pairs + 2, sizeof *o->list);
    o->stored = calloc(pairs + 1, sizeof *o->stored);
    o->blocks = calloc(pairs + 1, sizeof *o->blocks);
    o->block_list = calloc(pairs + 1, sizeof *o->block_list);
    o->hashes = calloc(b->n_removed + 1, sizeof *o->hashes);
    o->tokens = calloc(pairs * SL_KEY_PAGE_TOKENS + 1, sizeof *o->tokens);
    if (!o->events || !o->list || !o->stored || !o->blocks || !o->block_list || !o->hashes || !o->tokens)
        return false;
    for (size_t i = 0; b->tokens && i < pairs * SL_KEY_PAGE_TOKENS; i++)
        o->tokens[i] = (uint32_t)b->tokens[i];
    o->batch.events = o->list;
    o->batch.sequence_number = b->sequence;
    o->batch.timestamp = (double)time(NULL);
    o->batch._dp_rank_case = SMG__GRPC__COMMON__KV_EVENT_BATCH___DP_RANK_DP_RANK;
    o->batch.dp_rank = (int32_t)b->worker;
    if (b->cleared) {
        C(KvCacheEvent) *e = next_event(o, b);
        smg__grpc__common__kv_cache_cleared__init(&o->cleared);
        if (!b->all) {
            o->cleared._cache_level_case = SMG__GRPC__COMMON__KV_CACHE_CLEARED___CACHE_LEVEL_CACHE_LEVEL;
            o->cleared.cache_level = b->medium == SL_MEDIUM_HOST ? 1 : level_of(b->medium);
        }
        e->data_case = SMG__GRPC__COMMON__KV_CACHE_EVENT__DATA_CLEARED;
        e->cleared = &o->cleared;
    }
    if (b->n_removed) {
        C(KvCacheEvent) *e = next_event(o, b);
        smg__grpc__common__kv_blocks_removed__init(&o->removed);
        if (b->medium != SL_MEDIUM_HOST) {
            o->removed._cache_level_case = SMG__GRPC__COMMON__KV_BLOCKS_REMOVED___CACHE_LEVEL_CACHE_LEVEL;
            o->removed.cache_level = level_of(b->medium);
        }
        for (size_t i = 0; i < b->n_removed; i++)
            o->hashes[i] = (int64_t)b->removed[i].lo;
        o->removed.n_block_hashes = b->n_removed;
        o->removed.block_hashes = o->hashes;
        e->data_case = SMG__GRPC__COMMON__KV_CACHE_EVENT__DATA_REMOVED;
        e->removed = &o->removed;
    }
    for (size_t i = 0; i < pairs; i++)
        fill_stored(o, b, i);
    return true;
}

/* False: the call is finished. */
static bool send_batch(rpc_call *c, const sl_kv_batch *b)
{
    batch_out o;
    bool sent = false;
    if (make_batch(b, &o))
        sent = rpc_send(c, &o.batch.base);
    else
        rpc_finish(c, RPC_RESOURCE_EXHAUSTED, "out of memory");
    free_batch(&o);
    return sent;
}

enum { WAITING_BYTES = 128 << 10 }; /* of one subscriber's stream; the ring waits for the rest */

void rpc_kv_pump(rpc_call *c)
{
    const sl_kv_batch *b;
    sl_kv_batch gap;
    while (c->user && !c->finished && h2_stream_waiting(c->s) < WAITING_BYTES &&
           (b = sl_kv_read(c->r, c->user, &gap))) {
        if (!send_batch(c, b))
            return;
    }
}

void rpc_kv_publish(sl_front *f)
{
    for (rpc_call *c = ((sl_grpc *)f)->calls; c; c = c->next) {
        if (c->m && c->m->message == rpc_kv_events)
            rpc_kv_pump(c);
    }
}

void rpc_kv_events(rpc_call *c, const uint8_t *data, size_t n)
{
    if (!c->caller.admin) { /* the events carry the tokens of everybody's prompts */
        rpc_finish(c, RPC_PERMISSION_DENIED, "this key has no admin rights (router.keys_file)");
        return;
    }
    C(SubscribeKvEventsRequest) *q =
        rpc_unpack(c, &smg__grpc__common__subscribe_kv_events_request__descriptor, data, n);
    if (!q)
        return;
    uint64_t from = q->start_sequence_number;
    protobuf_c_message_free_unpacked(&q->base, NULL);
    sl_err err = {0};
    sl_status st = sl_kv_may_subscribe(c->r, &err);
    if (st != SL_OK) {
        rpc_finish(c, rpc_code_of(st), err.text);
        return;
    }
    sl_kv_cursor *cursor = malloc(sizeof *cursor);
    if (!cursor) {
        rpc_finish(c, RPC_RESOURCE_EXHAUSTED, "out of memory");
        return;
    }
    *cursor = sl_kv_subscribe(c->r, from);
    c->user = cursor;
    h2_stream_respond(c->s, "application/grpc");
    rpc_kv_pump(c);
}

void rpc_kv_events_gone(rpc_call *c)
{
    free(c->user);
    c->user = NULL;
}
