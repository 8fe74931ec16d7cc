/*
 * Arbitrary bytes as the blocks of a disk tier's file, and as a sequence of operations on its index: what is accepted
 * reads and writes again to the same values, and the index never counts more pages than slots or offers a page twice.
 */
#include <stdlib.h>
#include <string.h>

#include "kvstore/disk_impl.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { SEGMENTS = 4, SLOTS = 4 };

/* The header with a right checksum over whatever it says, as a damaged program could write it. */
static void blocks(const uint8_t *data, size_t size)
{
    uint8_t block[SL_DISK_BLOCK] = {0}, again[SL_DISK_BLOCK];
    sl_disk_store store;
    sl_disk_segment segment;
    sl_disk_record record;
    memcpy(block, data, size < sizeof block ? size : sizeof block);
    for (size_t at = 16; at < 160; at += 4) {
        uint32_t crc = sl_crc32c(0, block, at);
        uint8_t fixed[SL_DISK_BLOCK];
        memcpy(fixed, block, sizeof fixed);
        memcpy(fixed + at, &crc, sizeof crc);
        if (sl_disk_store_read(fixed, &store, NULL) == SL_OK) {
            sl_disk_store_write(&store, again);
            if (sl_disk_slot_at(&store, (uint64_t)1 << 20) < sl_disk_segment_bytes(&store) / SL_DISK_BLOCK ||
                sl_disk_store_read(again, &store, NULL) != SL_OK)
                abort();
        }
        if (sl_disk_segment_read(fixed, &segment) == SL_OK) {
            sl_disk_segment_write(&segment, again);
            if (sl_disk_segment_read(again, &segment) != SL_OK)
                abort();
        }
        if (sl_disk_record_read(fixed, &record) == SL_OK) {
            sl_disk_record_write(&record, again);
            if (sl_disk_record_read(again, &record) != SL_OK)
                abort();
        }
    }
}

static void check(const sl_disk_index *ix)
{
    uint64_t pages = 0;
    for (uint64_t i = 0; i < ix->n_slots; i++) {
        pages += ix->slots[i].state == SL_SLOT_STORED;
        if (ix->slots[i].state != SL_SLOT_EMPTY && sl_disk_index_find(ix, ix->slots[i].key) != (int64_t)i)
            abort();
    }
    if (pages != ix->pages)
        abort();
    for (int e = 0; e < ix->quota.n; e++) {
        int64_t used = 0;
        for (uint64_t i = 0; i < ix->n_segments; i++)
            used += ix->segs[i].owned && ix->segs[i].tenant == e;
        if (used != ix->quota.entries[e].used || used != ix->quota.entries[e].refs ||
            used > ix->quota.entries[e].limit)
            abort();
    }
}

static bool is_active(const sl_disk_index *ix, int64_t segment)
{
    for (int e = 0; e < ix->quota.n; e++)
        if (ix->active[e] == segment)
            return true;
    return false;
}

static void step(sl_disk_index *ix, const uint8_t *d, uint64_t *clock)
{
    sl_key key = {d[1] % 24, 1};
    int64_t slot = sl_disk_index_find(ix, key), segment;
    ++*clock;
    switch (d[0] % 6) {
    case 0:
        if (slot < 0)
            sl_disk_index_claim(ix, key, d[2] / 4 % 4, d[2] % 4);
        break;
    case 1:
        segment = sl_disk_index_recycle(ix, d[2] / 4 % 4, d[2] % 4, *clock, *clock);
        if (segment >= 0)
            sl_disk_index_open(ix, segment);
        break;
    case 2:
        if (slot >= 0 && ix->slots[slot].state == SL_SLOT_WRITING)
            sl_disk_index_publish(ix, slot);
        break;
    case 3:
        if (slot >= 0)
            sl_disk_index_drop(ix, slot);
        break;
    case 4:
        if (slot >= 0 && ix->slots[slot].state == SL_SLOT_STORED) {
            sl_disk_index_touch(ix, slot);
            sl_disk_index_lease(ix, slot, *clock + d[2] % 8);
        }
        break;
    default: /* as recovery does, on an empty slot of a segment that is not filled further */
        slot = d[2] % (SEGMENTS * SLOTS);
        if (ix->slots[slot].state == SL_SLOT_EMPTY && !ix->segs[slot / SLOTS].owned)
            sl_disk_index_own(ix, (uint64_t)(slot / SLOTS), *clock, d[2] / 4 % 4);
        if (ix->slots[slot].state == SL_SLOT_EMPTY && !is_active(ix, slot / SLOTS)) {
            ix->segs[slot / SLOTS].filled = SLOTS;
            sl_disk_index_adopt(ix, slot, key, d[0]);
        }
        sl_disk_index_trim(ix);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    sl_disk_store store = {.id = 1, .page_bytes = 100, .slots_per_segment = SLOTS};
    sl_disk_index ix;
    uint64_t clock = 1;
    blocks(data, size);
    sl_quota_opts quota = {.limit = 1};
    if (sl_quota_add_rule(&quota, "a share=0.5", NULL) != SL_OK ||
        sl_quota_add_rule(&quota, "b limit=0.25", NULL) != SL_OK)
        abort();
    for (int i = 0; i < quota.n_rules; i++)
        quota.rules[i].tenant = (uint64_t)i + 1;
    if (sl_disk_index_init(&ix, &store, SEGMENTS, &quota) != SL_OK)
        return 0;
    for (size_t i = 0; i + 3 <= size; i += 3) {
        step(&ix, data + i, &clock);
        check(&ix);
    }
    sl_disk_index_free(&ix);
    return 0;
}
