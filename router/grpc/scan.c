/*
 * Looks through the bytes of a protobuf message before protobuf-c unpacks them. protobuf-c 1.4 calls itself for every
 * submessage without a limit, so 42 KB of nested lists overflow the stack; and a field of two bytes may become a
 * structure of a hundred. This pass follows the descriptors with a stack of its own: it refuses what is nested too
 * deeply and adds up what unpacking will allocate. One pass over the bytes, no memory.
 *
 * Strings are checked. Otherwise it does not validate: what it accepts may still be refused by protobuf_c_message_unpack.
 */
#include <string.h>

#include "model/tokenizer_utf8.h"
#include "router/grpc/rpc.h"

enum {
    /* As other implementations of protobuf allow. */
    MAX_DEPTH = 100,
    /* What protobuf-c needs for a field while it unpacks (40 bytes in a list that grows by doubling), and keeps of one that it does
     * not know (24 bytes and a copy with the header of its allocation). */
    FIELD_BYTES = 144,
    /* The header of one allocation. */
    ALLOC_BYTES = 16
};

typedef struct level {
    const ProtobufCMessageDescriptor *d;
    const uint8_t *end;
    uint64_t seen; /* bit i: field i of d, a message that is not repeated, has occurred */
} level;

static bool read_varint(const uint8_t **p, const uint8_t *end, uint64_t *out)
{
    uint64_t v = 0;
    for (unsigned shift = 0; shift < 64 && *p < end; shift += 7) {
        uint8_t b = *(*p)++;
        v |= (uint64_t)(b & 127) << shift;
        if (b < 128) {
            *out = v;
            return true;
        }
    }
    return false;
}

/* Bytes of one element after unpacking, for a packed list; 0 when the type cannot be packed. */
static size_t element_bytes(const ProtobufCFieldDescriptor *f)
{
    switch (f->type) {
    case PROTOBUF_C_TYPE_STRING:
    case PROTOBUF_C_TYPE_BYTES:
    case PROTOBUF_C_TYPE_MESSAGE:
        return 0;
    case PROTOBUF_C_TYPE_UINT64:
    case PROTOBUF_C_TYPE_INT64:
    case PROTOBUF_C_TYPE_SINT64:
    case PROTOBUF_C_TYPE_FIXED64:
    case PROTOBUF_C_TYPE_SFIXED64:
    case PROTOBUF_C_TYPE_DOUBLE:
        return 8;
    default:
        return 4;
    }
}

/* Skips the value of a field that is not length-delimited. */
static bool skip_scalar(unsigned wire, const uint8_t **p, const uint8_t *end)
{
    uint64_t v;
    size_t n = wire == 1 ? 8 : 4;
    if (wire == 0)
        return read_varint(p, end, &v);
    if ((wire != 1 && wire != 5) || (size_t)(end - *p) < n)
        return false; /* groups are not supported by protobuf-c either */
    *p += n;
    return true;
}

/* protobuf-c joins the occurrences of a message by copying both, so that a message of many occurrences takes the square of
 * its bytes. No client sends a field twice. */
static bool occurs_again(level *at, const ProtobufCFieldDescriptor *f)
{
    size_t i = (size_t)(f - at->d->fields);
    uint64_t bit = i < 64 ? 1ull << i : 1ull << 63;
    bool again = f->label != PROTOBUF_C_LABEL_REPEATED && at->seen & bit;
    at->seen |= bit;
    return again;
}

/* A string of proto3 is UTF-8, which protobuf-c does not look at; and it may have a zero, at which the text would end for us without a word.
 * Names and ids come to logs, answers in JSON and other processes. */
static sl_status check_text(const ProtobufCFieldDescriptor *f, const uint8_t *p, size_t n, sl_err *err)
{
    if (f->type != PROTOBUF_C_TYPE_STRING)
        return SL_OK;
    if (memchr(p, 0, n))
        return sl_fail(err, SL_ERR_INVALID, "%s: contains a zero byte", f->name);
    return sl_utf8_valid_len((const char *)p, n) == n
               ? SL_OK
               : sl_fail(err, SL_ERR_INVALID, "%s: is no valid UTF-8", f->name);
}

static sl_status malformed(sl_err *err)
{
    return sl_fail(err, SL_ERR_INVALID, "the message is no valid protobuf");
}

sl_status rpc_scan(const ProtobufCMessageDescriptor *d, const uint8_t *data, size_t n, uint64_t *bytes,
                   sl_err *err)
{
    level stack[MAX_DEPTH];
    size_t depth = 0;
    const uint8_t *p = data;
    uint64_t total = d->sizeof_message + ALLOC_BYTES;
    stack[0] = (level){d, data + n, 0};
    for (;;) {
        level *at = &stack[depth];
        if (p == at->end) {
            if (!depth--)
                break;
            continue;
        }
        uint64_t tag, len;
        if (!read_varint(&p, at->end, &tag))
            return malformed(err);
        total += FIELD_BYTES;
        if ((tag & 7) != 2) {
            if (!skip_scalar((unsigned)(tag & 7), &p, at->end))
                return malformed(err);
            continue;
        }
        if (!read_varint(&p, at->end, &len) || len > (uint64_t)(at->end - p))
            return malformed(err);
        const ProtobufCFieldDescriptor *f =
            tag >> 3 <= UINT32_MAX ? protobuf_c_message_descriptor_get_field(at->d, (unsigned)(tag >> 3))
                                   : NULL;
        if (f && f->type == PROTOBUF_C_TYPE_MESSAGE) {
            const ProtobufCMessageDescriptor *sub = f->descriptor;
            if (depth + 1 == MAX_DEPTH)
                return sl_fail(err, SL_ERR_INVALID, "the message is nested deeper than %d levels", MAX_DEPTH);
            if (occurs_again(at, f))
                return sl_fail(err, SL_ERR_INVALID, "%s: occurs more than once", f->name);
            total += sub->sizeof_message + ALLOC_BYTES;
            stack[++depth] = (level){sub, p + len, 0};
            continue;
        }
        if (f)
            SL_TRY(check_text(f, p, (size_t)len, err));
        total += f && element_bytes(f) ? len * element_bytes(f) : len + ALLOC_BYTES;
        p += len;
    }
    *bytes = total;
    return SL_OK;
}
