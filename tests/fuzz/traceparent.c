/* Headers of W3C Trace Context, and the URL of a collector: what is accepted has the form that is passed on. */
#include <stdlib.h>
#include <string.h>

#include "router/trace/context.h"
#include "router/trace/post.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_context(const char *parent, const char *state)
{
    sl_trace_context c;
    char hex[33], again[64];
    uint8_t any = 0;
    sl_trace_context_read(parent, state, &c);
    for (int i = 0; i < 16; i++)
        any |= c.id[i];
    if (c.given != (any != 0) || strlen(c.state) > SL_TRACE_STATE_MAX ||
        (!c.given && (c.sampled || c.state[0])))
        abort();
    if (!c.given)
        return;
    sl_trace_hex(c.id, 16, hex);
    if (strncmp(hex, parent + 3, 32) != 0)
        abort();
    memcpy(again, parent, 55); /* without what later versions add */
    again[55] = 0;
    memcpy(again, "00", 2);
    sl_trace_context_read(again, NULL, &c);
    if (!c.given)
        abort();
}

static void check_url(const char *text)
{
    sl_trace_url u;
    sl_err err = {""};
    if (sl_trace_url_read(text, &u, &err)) {
        if (!err.text[0])
            abort();
        return;
    }
    if (!u.host[0] || strtol(u.port, NULL, 10) < 1 || strtol(u.port, NULL, 10) > 65535 || u.path[0] != '/' ||
        strpbrk(u.host, "\r\n /") || strpbrk(u.path, "\r\n "))
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1);
    if (!text)
        return 0;
    memcpy(text, data, size);
    text[size] = 0;
    size_t first = strlen(text); /* a zero separates the two headers */
    check_context(text, first < size ? text + first + 1 : NULL);
    check_url(text);
    free(text);
    return 0;
}
