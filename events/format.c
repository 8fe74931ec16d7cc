/* Events as msgpack, see format.h. Numbers and texts take the shortest of their encodings, as msgpack recommends. */
#include "events/format.h"

#include <string.h>

/* ---- msgpack ---- */

enum {
    MP_FIXMAP = 0x80,
    MP_FIXARRAY = 0x90,
    MP_FIXSTR = 0xa0,
    MP_NIL = 0xc0,
    MP_F64 = 0xcb,
    MP_U8 = 0xcc,
    MP_U16,
    MP_U32,
    MP_U64,
    MP_STR8 = 0xd9,
    MP_ARRAY32 = 0xdd,
};

/* Big-endian, as everything in msgpack. */
static void put_be(sl_wr *w, uint64_t v, int bytes)
{
    while (bytes-- > 0)
        sl_wr_u8(w, (uint8_t)(v >> (8 * bytes)));
}

static void put_uint(sl_wr *w, uint64_t v)
{
    if (v < 0x80) {
        sl_wr_u8(w, (uint8_t)v);
        return;
    }
    int size = v <= UINT8_MAX ? 0 : v <= UINT16_MAX ? 1 : v <= UINT32_MAX ? 2 : 3;
    sl_wr_u8(w, (uint8_t)(MP_U8 + size));
    put_be(w, v, 1 << size);
}

static void put_nil(sl_wr *w)
{
    sl_wr_u8(w, MP_NIL);
}

/* At most 255 bytes; a longer text is cut. */
static void put_str(sl_wr *w, const char *s)
{
    size_t n = strlen(s);
    if (n > UINT8_MAX)
        n = UINT8_MAX;
    if (n < 32) {
        sl_wr_u8(w, (uint8_t)(MP_FIXSTR + n));
    } else {
        sl_wr_u8(w, MP_STR8);
        sl_wr_u8(w, (uint8_t)n);
    }
    for (size_t i = 0; i < n; i++)
        sl_wr_u8(w, (uint8_t)s[i]);
}

static void put_array(sl_wr *w, uint32_t n)
{
    if (n < 16) {
        sl_wr_u8(w, (uint8_t)(MP_FIXARRAY + n));
        return;
    }
    sl_wr_u8(w, MP_ARRAY32);
    put_be(w, n, 4);
}

/* ---- events ---- */

/* Begins an event of n fields, the tag among them. */
static void begin(sl_wr *w, sl_events_form form, const char *type, uint8_t n)
{
    if (form == SL_EVENTS_ARRAY) {
        put_array(w, n);
    } else {
        sl_wr_u8(w, (uint8_t)(MP_FIXMAP + n));
        put_str(w, "type");
    }
    put_str(w, type);
}

/* In the positional form a field has no name. */
static void name(sl_wr *w, sl_events_form form, const char *field)
{
    if (form == SL_EVENTS_MAP)
        put_str(w, field);
}

static void put_hashes(sl_wr *w, sl_events_form form, uint64_t hash)
{
    name(w, form, "block_hashes");
    put_array(w, 1);
    put_uint(w, hash);
}

void sl_events_write_stored(sl_wr *w, sl_events_form form, const sl_events_block *b)
{
    begin(w, form, "BlockStored", 7);
    put_hashes(w, form, b->hash);
    name(w, form, "parent_block_hash");
    if (b->first)
        put_nil(w);
    else
        put_uint(w, b->parent);
    name(w, form, "token_ids");
    put_array(w, (uint32_t)b->n_tokens);
    for (size_t i = 0; i < b->n_tokens; i++)
        put_uint(w, (uint32_t)b->tokens[i]);
    name(w, form, "block_size");
    put_uint(w, b->n_tokens);
    name(w, form, "lora_id");
    put_nil(w);
    name(w, form, "medium");
    put_str(w, b->medium);
}

void sl_events_write_removed(sl_wr *w, sl_events_form form, uint64_t hash, const char *medium)
{
    begin(w, form, "BlockRemoved", 3);
    put_hashes(w, form, hash);
    name(w, form, "medium");
    put_str(w, medium);
}

void sl_events_write_cleared(sl_wr *w, sl_events_form form)
{
    begin(w, form, "AllBlocksCleared", 1);
}

/* ---- payloads ---- */

void sl_events_write_head(sl_wr *w, double ts, uint32_t n)
{
    uint64_t bits;
    memcpy(&bits, &ts, sizeof bits);
    put_array(w, 3);
    sl_wr_u8(w, MP_F64);
    put_be(w, bits, 8);
    put_array(w, n);
}

void sl_events_write_tail(sl_wr *w, int dp_rank)
{
    put_uint(w, (uint64_t)dp_rank);
}
