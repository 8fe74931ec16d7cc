/*
 * The format in which other programs read events of a KV cache: msgpack, as vLLM publishes it. One payload is
 *
 *     [ts f64, [event, event…], dp_rank]
 *
 * and an event has one of two forms:
 *
 *   map     {"type": "BlockStored", "block_hashes": [h], "parent_block_hash": h | nil, "token_ids": […],
 *            "block_size": n, "lora_id": nil, "medium": text}
 *           {"type": "BlockRemoved", "block_hashes": [h], "medium": text}
 *           {"type": "AllBlocksCleared"}
 *   array   ["BlockStored", [h], h | nil, […], n, nil, text], ["BlockRemoved", [h], text], ["AllBlocksCleared"]
 *
 * Fields that have their default (lora_name, extra_keys, group_idx) are left out, as the format allows. There is no
 * group_idx: a page holds the rows and the index keys of its tokens together, so it is one block and not one of each group.
 *
 * Writers append to a buffer of the caller (base/wire.h), whose `bad` says that memory was exhausted. Pure, any thread.
 */
#ifndef SL_EVENTS_FORMAT_H
#define SL_EVENTS_FORMAT_H

#include "base/wire.h"

typedef enum { SL_EVENTS_MAP, SL_EVENTS_ARRAY } sl_events_form;

typedef struct sl_events_block {
    uint64_t hash, parent;
    bool first; /* it has no parent */
    const int32_t *tokens;
    size_t n_tokens;
    const char *medium;
} sl_events_block;

void sl_events_write_stored(sl_wr *w, sl_events_form form, const sl_events_block *b);
void sl_events_write_removed(sl_wr *w, sl_events_form form, uint64_t hash, const char *medium);
void sl_events_write_cleared(sl_wr *w, sl_events_form form);

/* What comes before and after n events. ts: seconds since 1970. */
void sl_events_write_head(sl_wr *w, double ts, uint32_t n);
void sl_events_write_tail(sl_wr *w, int dp_rank);

#endif
