/* See replay.h. */
#include "events/replay.h"

#include <stdlib.h>
#include <string.h>

enum { SEQUENCE_BYTES = 8 };

sl_events_batch *sl_events_batch_new(uint64_t sequence, const void *bytes, size_t n)
{
    sl_events_batch *b = malloc(sizeof *b + n);
    if (!b)
        return NULL;
    *b = (sl_events_batch){.sequence = sequence, .n = n};
    atomic_init(&b->holders, 1);
    memcpy(b->bytes, bytes, n);
    return b;
}

void sl_events_batch_hold(sl_events_batch *b)
{
    atomic_fetch_add(&b->holders, 1);
}

void sl_events_batch_release(sl_events_batch *b)
{
    if (atomic_fetch_sub(&b->holders, 1) == 1)
        free(b);
}

sl_status sl_replay_open(sl_replay *r, size_t max_batches, size_t max_bytes)
{
    *r = (sl_replay){.max_batches = max_batches, .max_bytes = max_bytes};
    if (!max_batches)
        return SL_OK;
    for (r->cap = 1; r->cap < max_batches;)
        r->cap *= 2;
    r->ring = calloc(r->cap, sizeof(sl_events_batch *));
    return r->ring ? SL_OK : SL_ERR_NO_MEMORY;
}

static void drop_oldest(sl_replay *r)
{
    sl_events_batch *b = sl_replay_at(r, 0);
    r->first = (r->first + 1) & (r->cap - 1);
    r->n--;
    r->bytes -= b->n;
    sl_events_batch_release(b);
}

void sl_replay_close(sl_replay *r)
{
    while (r->n)
        drop_oldest(r);
    free(r->ring);
    r->ring = NULL;
}

void sl_replay_keep(sl_replay *r, sl_events_batch *b)
{
    if (!r->max_batches)
        return;
    while (r->n && (r->n == r->max_batches || r->bytes + b->n > r->max_bytes))
        drop_oldest(r);
    sl_events_batch_hold(b);
    r->ring[(r->first + r->n++) & (r->cap - 1)] = b;
    r->bytes += b->n;
}

sl_events_batch *sl_replay_at(const sl_replay *r, size_t i)
{
    return r->ring[(r->first + i) & (r->cap - 1)];
}

size_t sl_replay_find(const sl_replay *r, uint64_t from)
{
    size_t low = 0, high = r->n; /* sequences grow, but may skip a batch that was dropped */
    while (low < high) {
        size_t mid = low + (high - low) / 2;
        if (sl_replay_at(r, mid)->sequence < from)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

bool sl_replay_parse(const sl_replay_frame *frames, size_t n, uint64_t *from, bool *delimiter)
{
    *delimiter = n == 2 && frames[0].n == 0;
    const sl_replay_frame *f = *delimiter ? &frames[1] : frames;
    if (n != (*delimiter ? 2u : 1u) || f->n != SEQUENCE_BYTES)
        return false;
    *from = 0;
    for (size_t i = 0; i < SEQUENCE_BYTES; i++)
        *from = *from << 8 | ((const uint8_t *)f->data)[i];
    return true;
}
