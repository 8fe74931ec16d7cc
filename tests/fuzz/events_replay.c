/*
 * A request for replay, from frames of any number and size, and the buffer that answers it: what is found is the first batch
 * with at least the number that is wanted, and the bounds of the buffer hold.
 */
#include <stdlib.h>

#include "events/replay.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { FRAMES = 5, MOST_BATCHES = 7, MOST_BYTES = 300 };

static void fill(sl_replay *r, const uint8_t *data, size_t size)
{
    uint64_t sequence = 0;
    for (size_t i = 0; i < size && i < 64; i++) {
        sequence += 1 + data[i] % 3;
        sl_events_batch *b = sl_events_batch_new(sequence, data, data[i] < size ? data[i] : size);
        if (!b)
            abort();
        sl_replay_keep(r, b);
        sl_events_batch_release(b);
        if (r->n > MOST_BATCHES || (r->n > 1 && r->bytes > MOST_BYTES))
            abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    sl_replay_frame frames[FRAMES];
    size_t n = 0, at = 0;
    while (n < FRAMES && at < size) { /* a byte of length before each frame */
        size_t len = data[at++];
        len = len < size - at ? len : size - at;
        frames[n++] = (sl_replay_frame){data + at, len};
        at += len;
    }
    uint64_t from;
    bool delimiter;
    if (!sl_replay_parse(frames, n, &from, &delimiter))
        return 0;
    sl_replay r;
    if (sl_replay_open(&r, MOST_BATCHES, MOST_BYTES) != SL_OK)
        abort();
    fill(&r, data, size);
    from %= 130;
    size_t i = sl_replay_find(&r, from);
    if (i > r.n || (i < r.n && sl_replay_at(&r, i)->sequence < from) ||
        (i > 0 && sl_replay_at(&r, i - 1)->sequence >= from))
        abort();
    sl_replay_close(&r);
    return 0;
}
