/* A trace as Chrome's trace event format: one process for each worker, one thread for each request of the call, complete events. */
#include <inttypes.h>
#include <string.h>

#include "base/strbuf.h"
#include "router/trace/trace.h"

static void add_text(sl_strbuf *out, const char *key, const char *text)
{
    sl_sb_printf(out, ",\"%s\":", key);
    sl_sb_json(out, text, strlen(text));
}

static void add_process(sl_strbuf *out, const sl_trace_worker *w, uint32_t i)
{
    sl_sb_printf(out,
                 "%s{\"ph\":\"M\",\"name\":\"process_name\",\"pid\":%u,\"tid\":0,\"args\":{\"role\":\"%s\"",
                 i ? "," : "", i, w->role);
    add_text(out, "name", w->name);
    sl_sb_str(out, "}}");
}

static void add_args(sl_strbuf *out, const sl_trace *t, const sl_span *s)
{
    const sl_span_form *f = sl_span_form_of(s->kind);
    sl_sb_printf(out, "{\"attempt\":%u", s->attempt);
    for (int i = 0; i < SL_SPAN_VALUES && f->values[i]; i++)
        sl_sb_printf(out, ",\"%s\":%" PRIu64, f->values[i], s->values[i]);
    if (s->error)
        add_text(out, "error", s->error);
    if (s->kind == SL_SPAN_CALL) {
        char id[33];
        sl_trace_hex(t->context.id, 16, id);
        add_text(out, "trace_id", id);
        add_text(out, "request_id", t->id);
        add_text(out, "api", t->api);
        add_text(out, "outcome", t->outcome ? t->outcome : "");
        if (t->first_token)
            sl_sb_printf(out, ",\"time_to_first_token_ms\":%.3f", (double)(t->first_token - s->begin) / 1e6);
        sl_sb_printf(out, ",\"dropped_spans\":%u", t->dropped);
    }
    sl_sb_char(out, '}');
}

static double us(uint64_t ns)
{
    return (double)ns / 1e3;
}

char *sl_trace_chrome(const sl_trace *t)
{
    sl_strbuf out = {0};
    uint64_t zero = t->spans[0].begin;
    sl_sb_str(&out, "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[");
    for (uint32_t i = 0; i < t->n_workers; i++)
        add_process(&out, &t->workers[i], i);
    for (uint32_t i = 0; i < t->n; i++) {
        const sl_span *s = &t->spans[i];
        uint64_t begin = s->begin > zero ? s->begin : zero, end = s->end > begin ? s->end : begin;
        sl_sb_printf(
            &out,
            ",\n{\"ph\":\"X\",\"name\":\"%s\",\"cat\":\"sluice\",\"pid\":%u,\"tid\":%u,\"ts\":%.3f,\"dur\":%.3f,\"args\":",
            sl_span_form_of(s->kind)->name, s->worker, s->choice, us(begin - zero), us(end - begin));
        add_args(&out, t, s);
        sl_sb_char(&out, '}');
    }
    sl_sb_str(&out, "]}\n");
    return sl_sb_take(&out);
}
