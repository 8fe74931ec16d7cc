/* See disk_format.h. A header is: magic (8 bytes), version, zero, its fields, then the CRC32C of all before it. */
#include "kvstore/disk_format.h"

#include <inttypes.h>
#include <string.h>

#define STORE_MAGIC 0x65726f7453536c53u   /* "SlSStore" */
#define SEGMENT_MAGIC 0x746e656d67536c53u /* "SlSgment" */
#define RECORD_MAGIC 0x64726f6365526c53u  /* "SlRecord" */
/* Limits that keep every offset far from an overflow. */
#define MAX_PAGE_BYTES ((uint64_t)1 << 30)
#define MAX_SLOTS ((uint32_t)1 << 20)

typedef struct cursor {
    uint8_t *block;
    size_t at;
} cursor;

static void put(cursor *c, uint64_t v, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        c->block[c->at++] = (uint8_t)(v >> (8 * i));
}

static void put_key(cursor *c, sl_key k)
{
    put(c, k.lo, 8);
    put(c, k.hi, 8);
}

static cursor begin(uint8_t *block, uint64_t magic)
{
    cursor c = {block, 0};
    memset(block, 0, SL_DISK_BLOCK);
    put(&c, magic, 8);
    put(&c, SL_DISK_VERSION, 4);
    put(&c, 0, 4);
    return c;
}

static void end(cursor *c)
{
    put(c, sl_crc32c(0, c->block, c->at), 4);
}

typedef struct source {
    const uint8_t *block;
    size_t at;
} source;

static uint64_t take(source *s, size_t bytes)
{
    uint64_t v = 0;
    for (size_t i = 0; i < bytes; i++)
        v |= (uint64_t)s->block[s->at++] << (8 * i);
    return v;
}

static sl_key take_key(source *s)
{
    uint64_t lo = take(s, 8);
    return (sl_key){.lo = lo, .hi = take(s, 8)};
}

static bool good_crc(source *s)
{
    uint32_t crc = sl_crc32c(0, s->block, s->at);
    return take(s, 4) == crc;
}

void sl_disk_store_write(const sl_disk_store *st, uint8_t *block)
{
    cursor c = begin(block, STORE_MAGIC);
    put(&c, st->id, 8);
    put(&c, st->page_bytes, 8);
    put(&c, st->slots_per_segment, 4);
    put_key(&c, st->fingerprint);
    put_key(&c, st->format);
    end(&c);
}

sl_status sl_disk_store_read(const uint8_t *block, sl_disk_store *out, sl_err *err)
{
    source s = {block, 0};
    if (take(&s, 8) != STORE_MAGIC)
        return sl_fail(err, SL_ERR_CORRUPT, "this is not a store of pages");
    uint64_t version = take(&s, 4);
    take(&s, 4);
    sl_disk_store st = {.id = take(&s, 8)};
    st.page_bytes = take(&s, 8);
    st.slots_per_segment = (uint32_t)take(&s, 4);
    st.fingerprint = take_key(&s);
    st.format = take_key(&s);
    bool good = good_crc(&s); /* a damaged byte of the version is damage */
    if (!good)
        return sl_fail(err, SL_ERR_CORRUPT, "the header is damaged, or of another version than %d",
                       SL_DISK_VERSION);
    if (version != SL_DISK_VERSION)
        return sl_fail(err, SL_ERR_UNSUPPORTED,
                       "format version %" PRIu64 ", this program reads and writes version %d", version,
                       SL_DISK_VERSION);
    if (!st.page_bytes || st.page_bytes > MAX_PAGE_BYTES || !st.slots_per_segment ||
        st.slots_per_segment > MAX_SLOTS)
        return sl_fail(err, SL_ERR_CORRUPT, "the header has impossible sizes");
    *out = st;
    return SL_OK;
}

void sl_disk_segment_write(const sl_disk_segment *g, uint8_t *block)
{
    cursor c = begin(block, SEGMENT_MAGIC);
    put(&c, g->store_id, 8);
    put(&c, g->index, 8);
    put(&c, g->generation, 8);
    put(&c, g->sequence, 8);
    end(&c);
    put(&c, g->tenant, 8);
    end(&c);
}

sl_status sl_disk_segment_read(const uint8_t *block, sl_disk_segment *out)
{
    source s = {block, 0};
    if (take(&s, 8) != SEGMENT_MAGIC || take(&s, 4) != SL_DISK_VERSION)
        return SL_ERR_CORRUPT;
    take(&s, 4);
    sl_disk_segment g = {.store_id = take(&s, 8)};
    g.index = take(&s, 8);
    g.generation = take(&s, 8);
    g.sequence = take(&s, 8);
    if (!good_crc(&s))
        return SL_ERR_CORRUPT;
    uint64_t tenant = take(&s, 8);
    g.tenant = good_crc(&s) ? tenant : 0;
    *out = g;
    return SL_OK;
}

void sl_disk_record_write(const sl_disk_record *r, uint8_t *block)
{
    cursor c = begin(block, RECORD_MAGIC);
    put(&c, r->store_id, 8);
    put(&c, r->slot, 8);
    put(&c, r->generation, 8);
    put(&c, r->sequence, 8);
    put_key(&c, r->key);
    put_key(&c, r->fingerprint);
    put_key(&c, r->format);
    put(&c, r->length, 8);
    put(&c, r->crc, 4);
    end(&c);
}

sl_status sl_disk_record_read(const uint8_t *block, sl_disk_record *out)
{
    source s = {block, 0};
    if (take(&s, 8) != RECORD_MAGIC || take(&s, 4) != SL_DISK_VERSION)
        return SL_ERR_CORRUPT;
    take(&s, 4);
    sl_disk_record r = {.store_id = take(&s, 8)};
    r.slot = take(&s, 8);
    r.generation = take(&s, 8);
    r.sequence = take(&s, 8);
    r.key = take_key(&s);
    r.fingerprint = take_key(&s);
    r.format = take_key(&s);
    r.length = take(&s, 8);
    r.crc = (uint32_t)take(&s, 4);
    if (!good_crc(&s))
        return SL_ERR_CORRUPT;
    *out = r;
    return SL_OK;
}

uint32_t sl_disk_slots_of(const sl_disk_store *s, uint64_t capacity, uint64_t segment_bytes)
{
    uint64_t want = segment_bytes;
    if (!want) {
        want = capacity / 64;
        want = want < (16u << 20) ? 16u << 20 : want > (256u << 20) ? 256u << 20 : want;
        want = want > capacity / 8 ? capacity / 8 : want;
    }
    uint64_t n = want > SL_DISK_BLOCK ? (want - SL_DISK_BLOCK) / sl_disk_slot_bytes(s) : 0;
    return n < 1 ? 1 : n > (1u << 20) ? 1u << 20 : (uint32_t)n;
}
