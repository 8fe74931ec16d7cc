/* See trace.h. */
#include "router/trace/trace.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/hash.h"
#include "base/log.h"

enum { FIRST_SPANS = 16, MIN_SPANS = 64, SPANS_EACH = 16, MAX_SPANS = 1024, ERROR_BYTES = 160 };

const sl_span_form *sl_span_form_of(sl_span_kind kind)
{
    static const sl_span_form forms[SL_SPAN_KINDS] = {
        [SL_SPAN_CALL] = {"request",
                          {"gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens", "sluice.cached_tokens",
                           "sluice.retries"}},
        [SL_SPAN_READ] = {"read", {0}},
        [SL_SPAN_QUEUE] = {"queue", {0}},
        [SL_SPAN_RESERVE] = {"reserve", {0}},
        [SL_SPAN_PREFILL] = {"prefill", {0}},
        [SL_SPAN_DECODE] = {"decode", {"sluice.tokens"}},
        [SL_SPAN_LOAD] = {"load", {0}},
        [SL_SPAN_PROMPT_QUEUE] = {"prompt queue", {0}},
        [SL_SPAN_COMPUTE] = {"compute", {"sluice.tokens", "sluice.cached_tokens"}},
        [SL_SPAN_SHIPMENT] = {"shipment", {"sluice.bytes"}},
        [SL_SPAN_CHECK] = {"check", {0}},
        [SL_SPAN_JOIN] = {"join", {0}},
        [SL_SPAN_STEPS] = {"steps", {"sluice.hits", "sluice.misses", "sluice.swap_bytes"}},
    };
    return &forms[kind];
}

/* Texts of workers and clients are shown as ASCII: both documents must be UTF-8, and a collector refuses all spans with one that is
 * not. */
static void copy_plain(char *out, size_t cap, const char *text)
{
    size_t i = 0;
    for (; text[i] && i + 1 < cap; i++)
        out[i] = text[i] >= ' ' && text[i] <= '~' ? text[i] : '?';
    out[i] = 0;
}

static int64_t date_of_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec - (int64_t)sl_now_ns();
}

static void give_identity(sl_trace_context *c)
{
    uint64_t a = sl_random_u64() | 1, b = sl_random_u64();
    memcpy(c->id, &a, 8);
    memcpy(c->id + 8, &b, 8);
}

sl_trace *sl_trace_new(const sl_trace_context *context, const char *id, const char *api, uint32_t choices,
                       uint64_t begin)
{
    sl_trace *t = calloc(1, sizeof *t);
    if (!t)
        return NULL;
    uint64_t most = MIN_SPANS + (uint64_t)SPANS_EACH * choices;
    t->refs = 1;
    t->context = *context;
    t->choices = choices;
    t->api = api;
    t->base = sl_random_u64() >> 1 | 1; /* base + i is neither 0 nor wraps */
    t->date = date_of_now();
    t->most = most < MAX_SPANS ? (uint32_t)most : MAX_SPANS;
    t->n_workers = 1;
    t->workers[0] = (sl_trace_worker){.role = "router", .name = "router"};
    copy_plain(t->id, sizeof t->id, id);
    if (!context->given)
        give_identity(&t->context);
    sl_trace_open(t, SL_SPAN_CALL, -1, NULL, NULL, begin);
    if (!t->n) {
        sl_trace_unref(t);
        return NULL;
    }
    return t;
}

static bool make_room(sl_trace *t, sl_span_kind kind)
{
    bool early = kind == SL_SPAN_QUEUE || kind == SL_SPAN_RESERVE || kind == SL_SPAN_LOAD;
    if (t->n >= (early ? t->most - t->most / 4 : t->most))
        return false;
    if (t->n < t->cap)
        return true;
    uint32_t cap = t->cap ? 2 * t->cap : FIRST_SPANS;
    sl_span *s = realloc(t->spans, cap * sizeof *s);
    if (!s)
        return false;
    t->spans = s;
    t->cap = cap;
    return true;
}

/* A worker that does not fit any more is called "others". */
static uint32_t worker_of(sl_trace *t, const char *role, const char *name)
{
    if (!name)
        return 0;
    if (t->n_workers >= SL_TRACE_WORKERS - 1)
        name = "others";
    for (uint32_t i = 1; i < t->n_workers; i++)
        if (!strcmp(t->workers[i].name, name))
            return i;
    sl_trace_worker *w = &t->workers[t->n_workers];
    w->role = role;
    copy_plain(w->name, sizeof w->name, name);
    return t->n_workers++;
}

int32_t sl_trace_open(sl_trace *t, sl_span_kind kind, int32_t parent, const char *role, const char *worker,
                      uint64_t begin)
{
    if (!t)
        return -1;
    if (!make_room(t, kind)) {
        t->dropped++;
        return -1;
    }
    sl_span *s = &t->spans[t->n];
    *s = (sl_span){.kind = kind, .parent = parent, .begin = begin};
    if (parent < 0 && t->n)
        s->parent = 0;
    s->worker = worker_of(t, role, worker);
    return (int32_t)t->n++;
}

sl_span *sl_trace_at(sl_trace *t, int32_t span)
{
    return t && span >= 0 ? &t->spans[span] : NULL;
}

void sl_trace_close(sl_trace *t, int32_t span, uint64_t end, const char *error)
{
    sl_span *s = sl_trace_at(t, span);
    if (!s || s->end)
        return;
    s->end = end > s->begin ? end : s->begin;
    if (error)
        sl_trace_fail(t, span, error);
}

void sl_trace_fail(sl_trace *t, int32_t span, const char *error)
{
    sl_span *s = sl_trace_at(t, span);
    if (s && !s->error && (s->error = malloc(ERROR_BYTES)))
        copy_plain(s->error, ERROR_BYTES, error);
}

size_t sl_trace_bytes(const sl_trace *t)
{
    size_t n = sizeof *t + t->cap * sizeof *t->spans;
    for (uint32_t i = 0; i < t->n; i++)
        n += t->spans[i].error ? ERROR_BYTES : 0;
    return n;
}

uint64_t sl_trace_span_id(const sl_trace *t, uint32_t span)
{
    return t->base + span;
}

void sl_trace_ref(sl_trace *t)
{
    __atomic_add_fetch(&t->refs, 1, __ATOMIC_RELAXED);
}

void sl_trace_unref(sl_trace *t)
{
    if (!t || __atomic_sub_fetch(&t->refs, 1, __ATOMIC_ACQ_REL))
        return;
    for (uint32_t i = 0; i < t->n; i++)
        free(t->spans[i].error);
    free(t->spans);
    free(t);
}
