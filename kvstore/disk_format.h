/*
 * The disk tier's file: one file `pages.sluice`, preallocated, of blocks of 4,096 bytes. All numbers are little-endian.
 *
 *   block 0                  store header: page size, fingerprint, geometry
 *   segments, one by one     1 block segment header, then slots_per_segment slots. All pages of a segment belong to one
 *                            tenant. Its number follows the header with a checksum of its own: programs that do not know
 *                            it read the same header, and in what they write it is absent, which means 0
 *   slot                     1 block record header, then the page, filled up to whole blocks
 *
 * The page begins at a block, so that it can be read by O_DIRECT without its header. Every header ends with a CRC32C of
 * its own fields, and a record has the CRC32C of its page. A record counts only if it names the store, the place where
 * it lies and the present generation of its segment; a new generation is on disk before its first record
 * is written, so the records of the old one are gone at once.
 *
 * Pure functions on blocks; any thread. They accept arbitrary bytes (tests/fuzz/disk.c).
 */
#ifndef SL_KVSTORE_DISK_FORMAT_H
#define SL_KVSTORE_DISK_FORMAT_H

#include "base/hash.h"

enum { SL_DISK_BLOCK = 4096, SL_DISK_VERSION = 1 };

typedef struct sl_disk_store {
    uint64_t id; /* random, of this store */
    uint64_t page_bytes;
    uint32_t slots_per_segment;
    sl_key fingerprint, format;
} sl_disk_store;

typedef struct sl_disk_segment {
    uint64_t store_id, index, generation;
    uint64_t sequence; /* of the first record that was written after it */
    uint64_t tenant;   /* to which its pages belong (kvstore/quota.h) */
} sl_disk_segment;

typedef struct sl_disk_record {
    uint64_t store_id, slot, generation;
    uint64_t sequence; /* one more for every record of the store, over all its life */
    sl_key key, fingerprint, format;
    uint64_t length;
    uint32_t crc; /* of the page */
} sl_disk_record;

/* Each writes one whole block. */
void sl_disk_store_write(const sl_disk_store *s, uint8_t *block);
void sl_disk_segment_write(const sl_disk_segment *s, uint8_t *block);
void sl_disk_record_write(const sl_disk_record *r, uint8_t *block);
/* SL_ERR_UNSUPPORTED: another format version; SL_ERR_CORRUPT: not a store header, damaged, or impossible values. */
sl_status sl_disk_store_read(const uint8_t *block, sl_disk_store *out, sl_err *err);
/* SL_ERR_CORRUPT: not such a header, or damaged. */
sl_status sl_disk_segment_read(const uint8_t *block, sl_disk_segment *out);
sl_status sl_disk_record_read(const uint8_t *block, sl_disk_record *out);

/* Sizes and offsets in the file, in bytes. Slots are numbered through all segments. */
static inline uint64_t sl_disk_slot_bytes(const sl_disk_store *s)
{
    return SL_DISK_BLOCK + (s->page_bytes + SL_DISK_BLOCK - 1) / SL_DISK_BLOCK * SL_DISK_BLOCK;
}

static inline uint64_t sl_disk_segment_bytes(const sl_disk_store *s)
{
    return SL_DISK_BLOCK + s->slots_per_segment * sl_disk_slot_bytes(s);
}

static inline uint64_t sl_disk_segment_at(const sl_disk_store *s, uint64_t index)
{
    return SL_DISK_BLOCK + index * sl_disk_segment_bytes(s);
}

static inline uint64_t sl_disk_slot_at(const sl_disk_store *s, uint64_t slot)
{
    return sl_disk_segment_at(s, slot / s->slots_per_segment) + SL_DISK_BLOCK +
           slot % s->slots_per_segment * sl_disk_slot_bytes(s);
}

/* How many slots a segment of a new store of capacity bytes has: segments of segment_bytes, or, if that is 0, of about 1/64 of the
 * capacity between 16 and 256 MiB, at most 1/8; 1 to 2^20 slots. s: its page_bytes are read. */
uint32_t sl_disk_slots_of(const sl_disk_store *s, uint64_t capacity, uint64_t segment_bytes);
/* How many segments of s->slots_per_segment slots capacity bytes have room for, after the header of the store. */
static inline uint64_t sl_disk_segments_in(const sl_disk_store *s, uint64_t capacity)
{
    return capacity < SL_DISK_BLOCK ? 0 : (capacity - SL_DISK_BLOCK) / sl_disk_segment_bytes(s);
}

#endif
