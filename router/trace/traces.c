/* See traces.h. */
#include "router/trace/traces.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "router/trace/exporter.h"

struct sl_traces {
    double sample;
    sl_exporter *exporter; /* NULL: none */
    sl_trace *ring[SL_TRACES_KEPT];
    uint64_t first, next; /* numbers of those that are kept: [first, next) */
    size_t bytes;
};

/* Divides "URL [sample=X]". */
static sl_status read_target(const char *to, char *url, size_t cap, double *sample, sl_err *err)
{
    static const char name[] = "sample=";
    size_t n = strcspn(to, " ");
    const char *rest = to + n + strspn(to + n, " ");
    char *end;
    *sample = 1;
    if (n >= cap)
        return sl_fail(err, SL_ERR_INVALID, "router.traces: the URL is longer than %zu bytes", cap - 1);
    memcpy(url, to, n);
    url[n] = 0;
    if (!*rest)
        return SL_OK;
    const char *value = rest + sizeof name - 1;
    bool known = !strncmp(rest, name, sizeof name - 1) && *value >= '0' && *value <= '9';
    if (known)
        *sample = strtod(value, &end);
    if (!known || *end || !(*sample <= 1))
        return sl_fail(err, SL_ERR_INVALID, "router.traces: '%s': want URL [sample=X] with X from 0 to 1",
                       to);
    return SL_OK;
}

sl_status sl_traces_create(const sl_traces_options *o, sl_traces **out, sl_err *err)
{
    char url[600];
    sl_traces *s = calloc(1, sizeof *s);
    if (!s)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    sl_status st = SL_OK;
    if (o->to && *o->to) {
        st = read_target(o->to, url, sizeof url, &s->sample, err);
        st = st ? st : sl_trace_exporter_create(url, o->model, o->metrics, &s->exporter, err);
    }
    if (st)
        free(s);
    else
        *out = s;
    return st;
}

void sl_traces_sample(const sl_traces *s, sl_trace_context *c)
{
    uint64_t draw;
    if (c->given)
        return;
    memcpy(&draw, c->id + 8, sizeof draw); /* an id that was just drawn */
    c->sampled = (double)(draw >> 11) * 0x1p-53 < s->sample;
}

static void forget_oldest(sl_traces *s)
{
    sl_trace **t = &s->ring[s->first++ % SL_TRACES_KEPT];
    s->bytes -= sl_trace_bytes(*t);
    sl_trace_unref(*t);
    *t = NULL;
}

void sl_traces_add(sl_traces *s, sl_trace *t)
{
    if (s->exporter && t->context.sampled)
        sl_trace_exporter_post(s->exporter, t);
    s->bytes += sl_trace_bytes(t);
    if (s->next - s->first == SL_TRACES_KEPT)
        forget_oldest(s);
    s->ring[s->next++ % SL_TRACES_KEPT] = t;
    while (s->bytes > SL_TRACES_BYTES && s->next - s->first > 1)
        forget_oldest(s);
}

static bool is_it(const sl_trace *t, const char *id, uint64_t rid)
{
    char trace[33];
    if ((t->id[0] && !strcmp(t->id, id)) || (rid && rid - t->rid < t->choices))
        return true;
    sl_trace_hex(t->context.id, 16, trace);
    return !strcmp(trace, id);
}

const sl_trace *sl_traces_find(const sl_traces *s, const char *id)
{
    char *end;
    uint64_t rid = strlen(id) == 16 ? strtoull(id, &end, 16) : 0;
    if (rid && *end)
        rid = 0;
    for (uint64_t i = s->next; i > s->first; i--)
        if (is_it(s->ring[(i - 1) % SL_TRACES_KEPT], id, rid))
            return s->ring[(i - 1) % SL_TRACES_KEPT];
    return NULL;
}

void sl_traces_close(sl_traces *s)
{
    if (!s)
        return;
    while (s->first < s->next)
        forget_oldest(s);
    sl_trace_exporter_close(s->exporter);
    free(s);
}
