/*
 * See otlp.h. The numbers of fields are those of opentelemetry/proto/trace/v1/trace.proto. A message within a message begins with
 * its length, so each is written into a buffer of its own first.
 */
#include "router/trace/otlp.h"

#include <stdio.h>
#include <string.h>

#include "base/version.h"

enum { VARINT = 0, FIXED64 = 1, BYTES = 2 };
enum { KIND_INTERNAL = 1, KIND_SERVER = 2, STATUS_ERROR = 2 };

static void put_varint(sl_strbuf *out, uint64_t v)
{
    char b[10];
    size_t n = 0;
    do {
        b[n++] = (char)((v & 0x7f) | (v > 0x7f ? 0x80 : 0));
        v >>= 7;
    } while (v);
    sl_sb_append(out, b, n);
}

static void put_tag(sl_strbuf *out, unsigned field, unsigned type)
{
    put_varint(out, field << 3 | type);
}

static void put_number(sl_strbuf *out, unsigned field, uint64_t v)
{
    put_tag(out, field, VARINT);
    put_varint(out, v);
}

static void put_fixed64(sl_strbuf *out, unsigned field, uint64_t v)
{
    char b[8];
    for (int i = 0; i < 8; i++)
        b[i] = (char)(v >> 8 * i);
    put_tag(out, field, FIXED64);
    sl_sb_append(out, b, sizeof b);
}

static void put_bytes(sl_strbuf *out, unsigned field, const void *bytes, size_t n)
{
    put_tag(out, field, BYTES);
    put_varint(out, n);
    sl_sb_append(out, bytes, n);
}

/* Writes the inner message and frees it. */
static void put_message(sl_strbuf *out, unsigned field, sl_strbuf *inner)
{
    put_bytes(out, field, inner->data ? inner->data : "", inner->len);
    out->bad |= inner->bad;
    sl_sb_free(inner);
}

/* ---- attributes: KeyValue {key = 1, value = 2}, AnyValue {string = 1, int = 3, double = 4} ---- */

static void put_attribute(sl_strbuf *out, unsigned field, const char *key, sl_strbuf *value)
{
    sl_strbuf kv = {0};
    put_bytes(&kv, 1, key, strlen(key));
    put_message(&kv, 2, value);
    put_message(out, field, &kv);
}

static void put_text(sl_strbuf *out, unsigned field, const char *key, const char *text)
{
    sl_strbuf v = {0};
    put_bytes(&v, 1, text, strlen(text));
    put_attribute(out, field, key, &v);
}

static void put_int(sl_strbuf *out, unsigned field, const char *key, uint64_t n)
{
    sl_strbuf v = {0};
    put_number(&v, 3, n);
    put_attribute(out, field, key, &v);
}

static void put_seconds(sl_strbuf *out, unsigned field, const char *key, uint64_t ns)
{
    sl_strbuf v = {0};
    double s = (double)ns / 1e9;
    uint64_t bits;
    memcpy(&bits, &s, sizeof bits);
    put_fixed64(&v, 4, bits);
    put_attribute(out, field, key, &v);
}

/* ---- spans ---- */

enum { ATTRIBUTES = 9 };

static void put_call(sl_strbuf *out, const sl_trace *t, const sl_span *s, const char *model)
{
    char rid[20];
    snprintf(rid, sizeof rid, "%016lx", (unsigned long)t->rid);
    put_text(out, ATTRIBUTES, "gen_ai.request.model", model);
    put_text(out, ATTRIBUTES, "gen_ai.request.id", t->id);
    put_text(out, ATTRIBUTES, "sluice.rid", rid);
    put_text(out, ATTRIBUTES, "sluice.api", t->api);
    put_text(out, ATTRIBUTES, "sluice.outcome", t->outcome ? t->outcome : "");
    put_int(out, ATTRIBUTES, "sluice.choices", t->choices);
    if (t->first_token)
        put_seconds(out, ATTRIBUTES, "gen_ai.latency.time_to_first_token", t->first_token - s->begin);
    put_seconds(out, ATTRIBUTES, "gen_ai.latency.e2e", s->end > s->begin ? s->end - s->begin : 0);
    if (t->dropped)
        put_int(out, ATTRIBUTES, "sluice.dropped_spans", t->dropped);
}

static void put_id(sl_strbuf *out, unsigned field, uint64_t id)
{
    char b[8];
    for (int i = 0; i < 8; i++)
        b[i] = (char)(id >> (56 - 8 * i));
    put_bytes(out, field, b, sizeof b);
}

static void put_span(sl_strbuf *out, const sl_trace *t, uint32_t at, const char *model)
{
    const sl_span *s = &t->spans[at];
    const sl_span_form *f = sl_span_form_of(s->kind);
    uint64_t end = s->end > s->begin ? s->end : s->begin;
    sl_strbuf span = {0}, status = {0};
    put_bytes(&span, 1, t->context.id, sizeof t->context.id);
    put_id(&span, 2, sl_trace_span_id(t, at));
    if (t->context.state[0])
        put_bytes(&span, 3, t->context.state, strlen(t->context.state));
    if (s->parent >= 0)
        put_id(&span, 4, sl_trace_span_id(t, (uint32_t)s->parent));
    else if (t->context.given)
        put_bytes(&span, 4, t->context.parent, sizeof t->context.parent);
    put_bytes(&span, 5, f->name, strlen(f->name));
    put_number(&span, 6, s->kind == SL_SPAN_CALL ? KIND_SERVER : KIND_INTERNAL);
    put_fixed64(&span, 7, s->begin + (uint64_t)t->date);
    put_fixed64(&span, 8, end + (uint64_t)t->date);
    if (s->kind == SL_SPAN_CALL)
        put_call(&span, t, s, model);
    else
        put_int(&span, ATTRIBUTES, "sluice.choice", s->choice);
    if (s->attempt)
        put_int(&span, ATTRIBUTES, "sluice.attempt", s->attempt);
    for (int i = 0; i < SL_SPAN_VALUES && f->values[i]; i++)
        put_int(&span, ATTRIBUTES, f->values[i], s->values[i]);
    if (s->error) {
        put_bytes(&status, 2, s->error, strlen(s->error));
        put_number(&status, 3, STATUS_ERROR);
        put_message(&span, 15, &status);
    }
    put_message(out, 2, &span);
}

/* ---- resources ---- */

/* The spans of one worker: ResourceSpans {resource = 1, scope_spans = 2}, ScopeSpans {scope = 1, spans = 2}. */
static void put_worker(sl_strbuf *out, const sl_trace *t, uint32_t worker, const char *model)
{
    const sl_trace_worker *w = &t->workers[worker];
    sl_strbuf whole = {0}, resource = {0}, scope = {0}, spans = {0};
    char service[32];
    snprintf(service, sizeof service, "sluice-%s", w->role);
    put_text(&resource, 1, "service.name", service);
    put_text(&resource, 1, "service.instance.id", w->name);
    put_text(&resource, 1, "service.version", SL_VERSION);
    put_message(&whole, 1, &resource);
    put_bytes(&scope, 1, "sluice", 6);
    put_bytes(&scope, 2, SL_VERSION, strlen(SL_VERSION));
    put_message(&spans, 1, &scope);
    for (uint32_t i = 0; i < t->n; i++)
        if (t->spans[i].worker == worker)
            put_span(&spans, t, i, model);
    put_message(&whole, 2, &spans);
    put_message(out, 1, &whole);
}

void sl_otlp_add(sl_strbuf *out, const sl_trace *t, const char *model)
{
    for (uint32_t i = 0; i < t->n_workers; i++)
        put_worker(out, t, i, model);
}
