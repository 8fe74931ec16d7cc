/* See context.h. The form is 00-<32 hex>-<16 hex>-<2 hex>, in lower case; later versions may have more after another '-'. */
#include "router/trace/context.h"

#include <string.h>

enum { PARENT_LEN = 55 };

static int nibble(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* False unless 2n hexadecimal digits follow. */
static bool read_hex(const char *s, uint8_t *out, int n)
{
    for (int i = 0; i < n; i++) {
        int hi = nibble(s[2 * i]), lo = hi < 0 ? -1 : nibble(s[2 * i + 1]);
        if (lo < 0)
            return false;
        out[i] = (uint8_t)(hi << 4 | lo);
    }
    return true;
}

static bool any(const uint8_t *b, int n)
{
    for (int i = 0; i < n; i++)
        if (b[i])
            return true;
    return false;
}

static bool read_parent(const char *s, sl_trace_context *c)
{
    uint8_t version, flags;
    size_t n = strnlen(s, PARENT_LEN + 1);
    if (n < PARENT_LEN || s[2] != '-' || s[35] != '-' || s[52] != '-')
        return false;
    if (!read_hex(s, &version, 1) || !read_hex(s + 3, c->id, 16) || !read_hex(s + 36, c->parent, 8) ||
        !read_hex(s + 53, &flags, 1))
        return false;
    if (version == 0xff || !any(c->id, 16) || !any(c->parent, 8))
        return false;
    if (n > PARENT_LEN && (version == 0 || s[PARENT_LEN] != '-'))
        return false;
    c->sampled = flags & 1;
    return true;
}

/* It is only passed on, so nothing is asked but that it can be: printable, a list of KEY=VALUE, and not too long. */
static bool fits(const char *state)
{
    size_t n = 0;
    for (; state[n]; n++)
        if (state[n] < ' ' || state[n] > '~' || n == SL_TRACE_STATE_MAX)
            return false;
    return strchr(state, '=') != NULL;
}

void sl_trace_context_read(const char *traceparent, const char *tracestate, sl_trace_context *out)
{
    memset(out, 0, sizeof *out);
    if (!traceparent || !read_parent(traceparent, out)) {
        memset(out, 0, sizeof *out);
        return;
    }
    out->given = true;
    if (tracestate && fits(tracestate))
        memcpy(out->state, tracestate, strlen(tracestate));
}

void sl_trace_hex(const uint8_t *bytes, int n, char *out)
{
    static const char digits[] = "0123456789abcdef";
    for (int i = 0; i < n; i++) {
        out[2 * i] = digits[bytes[i] >> 4];
        out[2 * i + 1] = digits[bytes[i] & 15];
    }
    out[2 * n] = 0;
}
