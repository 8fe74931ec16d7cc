/* The messages of the greeting at a door; see door_msg.h. */
#include "transport/ucx/door_msg.h"

#include <string.h>

#include "base/hash.h"

static const uint8_t magic[8] = {'S', 'L', 'U', 'I', 'C', 'E', 'D', 'R'};

enum {
    AT_VERSION = 8,
    AT_KIND = 10,
    AT_LENGTH = 12,
    AT_CRC = 16,
    AT_NONCE = 4, /* in the body */
    AT_PROOF = AT_NONCE + SL_PROOF_BYTES,
    FIXED = AT_PROOF + SL_PROOF_BYTES /* bytes of a body without text */
};

static uint32_t get(const uint8_t *p, size_t bytes)
{
    uint32_t v = 0;
    for (size_t i = 0; i < bytes; i++)
        v |= (uint32_t)p[i] << (8 * i);
    return v;
}

static void put(uint8_t *p, size_t bytes, uint32_t v)
{
    for (size_t i = 0; i < bytes; i++)
        p[i] = (uint8_t)(v >> (8 * i));
}

static uint32_t checksum(const uint8_t *bytes, size_t body)
{
    return sl_crc32c(sl_crc32c(0, bytes, AT_CRC), bytes + UX_DOOR_HEADER, body);
}

static ux_door_parsed foreign(const char **why, const char *text)
{
    *why = text;
    return UX_DOOR_FOREIGN;
}

static ux_door_parsed read_body(const uint8_t *body, size_t n, ux_door_msg *m, const char **why)
{
    if (n < FIXED)
        return foreign(why, "a body that is too short");
    if (memchr(body + FIXED, 0, n - FIXED))
        return foreign(why, "a text with a zero byte");
    m->status = (uint16_t)get(body, 2);
    m->port = (uint16_t)get(body + 2, 2);
    memcpy(m->nonce, body + AT_NONCE, SL_PROOF_BYTES);
    memcpy(m->proof, body + AT_PROOF, SL_PROOF_BYTES);
    memcpy(m->text, body + FIXED, n - FIXED);
    m->text[n - FIXED] = 0;
    return UX_DOOR_WHOLE;
}

ux_door_parsed ux_door_parse(const uint8_t *bytes, size_t n, ux_door_msg *out, const char **why)
{
    if (n && memcmp(bytes, magic, n < sizeof magic ? n : sizeof magic) != 0)
        return foreign(why, "not the greeting of a sluice process");
    if (n < UX_DOOR_HEADER)
        return UX_DOOR_MORE;
    size_t body = get(bytes + AT_LENGTH, 4);
    if (body > UX_DOOR_BODY_MAX)
        return foreign(why, "a length out of bounds");
    if (n < UX_DOOR_HEADER + body)
        return UX_DOOR_MORE;
    if (n > UX_DOOR_HEADER + body)
        return foreign(why, "bytes after the greeting");
    if (get(bytes + AT_CRC, 4) != checksum(bytes, body))
        return foreign(why, "a wrong checksum");
    ux_door_msg m = {.version = (uint16_t)get(bytes + AT_VERSION, 2),
                     .kind = (uint16_t)get(bytes + AT_KIND, 2)};
    if (m.kind < UX_DOOR_KNOCK || m.kind > UX_DOOR_PROOF)
        return foreign(why, "an unknown kind");
    if (m.version == UX_DOOR_VERSION && read_body(bytes + UX_DOOR_HEADER, body, &m, why) != UX_DOOR_WHOLE)
        return UX_DOOR_FOREIGN;
    *out = m;
    return UX_DOOR_WHOLE;
}

size_t ux_door_write(const ux_door_msg *m, uint8_t *buf)
{
    size_t text = strnlen(m->text, UX_DOOR_BODY_MAX - FIXED), body = FIXED + text;
    memcpy(buf, magic, sizeof magic);
    put(buf + AT_VERSION, 2, m->version);
    put(buf + AT_KIND, 2, m->kind);
    put(buf + AT_LENGTH, 4, (uint32_t)body);
    put(buf + UX_DOOR_HEADER, 2, m->status);
    put(buf + UX_DOOR_HEADER + 2, 2, m->port);
    memcpy(buf + UX_DOOR_HEADER + AT_NONCE, m->nonce, SL_PROOF_BYTES);
    memcpy(buf + UX_DOOR_HEADER + AT_PROOF, m->proof, SL_PROOF_BYTES);
    memcpy(buf + UX_DOOR_HEADER + FIXED, m->text, text);
    put(buf + AT_CRC, 4, checksum(buf, body));
    return UX_DOOR_HEADER + body;
}
