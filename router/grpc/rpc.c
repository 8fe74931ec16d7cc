/*
 * The method table and what all calls share. Framing: each message is a flag byte (compressed: refused) and a
 * 32-bit big-endian length. Errors are grpc-status and a percent-encoded grpc-message in the trailers; temporary
 * ones also say when to try again, in the field that clients with a retry policy obey.
 */
#include "router/grpc/rpc.h"

#include <stdlib.h>
#include <string.h>

#include "base/log.h"

#define SCHED "/sglang.grpc.scheduler.SglangScheduler/"

/* Messages of methods that take no prompts are small; those that need no key are the smallest. */
enum { SMALL = 4 << 10, KEYED = 64 << 10 };

static const rpc_method methods[] = {
    {SCHED "Generate", false, false, 0, rpc_generate, rpc_generate_gone, rpc_generate_more},
    {SCHED "Abort", false, false, KEYED, rpc_abort, NULL, NULL},
    {SCHED "HealthCheck", false, false, KEYED, rpc_health_check, NULL, NULL},
    {SCHED "GetModelInfo", false, false, KEYED, rpc_model_info, NULL, NULL},
    {SCHED "GetServerInfo", false, false, KEYED, rpc_server_info, NULL, NULL},
    {SCHED "GetLoads", false, false, KEYED, rpc_loads, NULL, NULL},
    {SCHED "FlushCache", false, false, KEYED, rpc_flush_cache, rpc_flush_gone, NULL},
    {SCHED "GetTokenizer", false, false, KEYED, rpc_tokenizer, rpc_tokenizer_gone, rpc_tokenizer_more},
    {SCHED "SubscribeKvEvents", false, false, KEYED, rpc_kv_events, rpc_kv_events_gone, NULL},
    {"/grpc.health.v1.Health/Check", true, false, SMALL, rpc_std_check, NULL, NULL},
    {"/grpc.health.v1.Health/List", true, false, SMALL, rpc_std_list, NULL, NULL},
    {"/grpc.health.v1.Health/Watch", true, false, SMALL, rpc_std_watch, rpc_std_watch_gone, NULL},
    {"/grpc.reflection.v1.ServerReflection/ServerReflectionInfo", false, true, SMALL, rpc_reflection, NULL,
     NULL},
    {"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", false, true, SMALL, rpc_reflection,
     NULL, NULL},
};
const rpc_method *const rpc_methods = methods;

size_t rpc_method_count(void)
{
    return SL_COUNT(methods);
}

static const char *code_name(rpc_code code)
{
    static const char *const names[] = {
        "OK",        "CANCELLED",      "UNKNOWN",           "INVALID_ARGUMENT",   "DEADLINE_EXCEEDED",
        "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION",
        "ABORTED",   "OUT_OF_RANGE",   "UNIMPLEMENTED",     "INTERNAL",           "UNAVAILABLE",
        "DATA_LOSS", "UNAUTHENTICATED"};
    return (size_t)code < SL_COUNT(names) ? names[code] : "?";
}

rpc_code rpc_code_of(sl_status st)
{
    switch (st) {
    case SL_OK:
        return RPC_OK;
    case SL_ERR_INVALID:
    case SL_ERR_TOO_LARGE:
        return RPC_INVALID_ARGUMENT;
    case SL_ERR_NOT_FOUND:
        return RPC_NOT_FOUND;
    case SL_ERR_CANCELLED:
        return RPC_CANCELLED;
    case SL_ERR_DEADLINE:
        return RPC_DEADLINE_EXCEEDED;
    case SL_ERR_EXHAUSTED:
        return RPC_RESOURCE_EXHAUSTED;
    case SL_ERR_UNSUPPORTED:
        return RPC_UNIMPLEMENTED;
    case SL_ERR_DENIED:
        return RPC_UNAUTHENTICATED;
    case SL_ERR_DATA_LOSS:
        return RPC_DATA_LOSS;
    case SL_ERR_PEER:
    case SL_ERR_REFUSED:
    case SL_ERR_TIMEOUT:
        return RPC_UNAVAILABLE;
    default:
        return RPC_INTERNAL;
    }
}

/* grpc-message allows printable ASCII except '%'; the rest is %XX. */
static void percent_encode(const char *text, char *out, size_t cap)
{
    static const char hex[] = "0123456789ABCDEF";
    size_t n = 0;
    for (; *text && n + 4 < cap; text++) {
        unsigned char ch = (unsigned char)*text;
        if (ch >= 0x20 && ch < 0x7f && ch != '%') {
            out[n++] = (char)ch;
        } else {
            out[n++] = '%';
            out[n++] = hex[ch >> 4];
            out[n++] = hex[ch & 15];
        }
    }
    out[n] = 0;
}

/* Empty for codes after which the server gives no advice about a retry. */
static void pushback(const rpc_call *c, rpc_code code, char *out, size_t cap)
{
    out[0] = 0;
    if (code != RPC_RESOURCE_EXHAUSTED && code != RPC_UNAVAILABLE)
        return;
    uint32_t s = c->retry_after_s ? c->retry_after_s : sl_cluster_retry_after_s(c->r);
    snprintf(out, cap, "%ld", c->hopeless ? -1l : 1000l * s);
}

void rpc_finish(rpc_call *c, rpc_code code, const char *text)
{
    if (c->finished)
        return;
    c->finished = true;
    char status[8], retry[16], message[1024];
    snprintf(status, sizeof status, "%d", (int)code);
    percent_encode(text ? text : "", message, sizeof message);
    const char *method = c->m ? strrchr(c->m->path, '/') + 1 : "unknown";
    sl_router_stats_grpc(c->g->stats, method, code_name(code));
    pushback(c, code, retry, sizeof retry);
    h2_stream_finish(c->s, status, message, retry);
}

uint8_t *rpc_pack(const ProtobufCMessage *m, size_t *n)
{
    size_t body = protobuf_c_message_get_packed_size(m);
    uint8_t *buf = malloc(body + 5);
    if (!buf)
        return NULL;
    buf[0] = 0;
    for (int i = 0; i < 4; i++)
        buf[1 + i] = (uint8_t)(body >> (24 - 8 * i));
    protobuf_c_message_pack(m, buf + 5);
    *n = body + 5;
    return buf;
}

/* What a client does not read is memory too. */
static bool hold_answer(rpc_call *c, size_t n)
{
    const uint64_t waits = h2_stream_waiting(c->s) + n;
    if (c->m->more || waits <= c->answer)
        return true;
    if (!rpc_hold(c, c->held - c->answer + waits)) {
        rpc_finish(c, RPC_RESOURCE_EXHAUSTED, SL_FRONT_NO_ROOM);
        return false;
    }
    c->answer = waits;
    return true;
}

bool rpc_send_bytes(rpc_call *c, const uint8_t *bytes, size_t n)
{
    if (c->finished || !hold_answer(c, n))
        return false;
    h2_stream_respond(c->s, "application/grpc");
    bool ok = h2_stream_write(c->s, bytes, n);
    c->hopeless |= !ok;
    if (!ok)
        rpc_finish(c, RPC_RESOURCE_EXHAUSTED, "the client does not read its stream");
    return ok;
}

bool rpc_send(rpc_call *c, const ProtobufCMessage *m)
{
    if (c->finished)
        return false;
    size_t n;
    uint8_t *buf = rpc_pack(m, &n);
    if (!buf) {
        rpc_finish(c, RPC_RESOURCE_EXHAUSTED, "out of memory");
        return false;
    }
    bool ok = rpc_send_bytes(c, buf, n);
    free(buf);
    return ok;
}

void rpc_answer(rpc_call *c, const ProtobufCMessage *m)
{
    if (rpc_send(c, m))
        rpc_finish(c, RPC_OK, NULL);
}

void *rpc_unpack(rpc_call *c, const ProtobufCMessageDescriptor *d, const uint8_t *data, size_t n)
{
    uint64_t bytes;
    sl_err err = {""};
    if (rpc_scan(d, data, n, &bytes, &err)) {
        rpc_finish(c, RPC_INVALID_ARGUMENT, err.text);
        return NULL;
    }
    ProtobufCMessage *m = protobuf_c_message_unpack(d, NULL, n, data);
    if (!m) {
        char text[160];
        snprintf(text, sizeof text, "the request is no valid %s", d->name);
        rpc_finish(c, RPC_INVALID_ARGUMENT, text);
    }
    return m;
}

/* What a Generate call takes after its message has come is bounded by its client's account and turns. */
static bool in_work(const rpc_call *c)
{
    return c->whole && c->m && c->m->message == rpc_generate;
}

bool rpc_hold(rpc_call *c, uint64_t bytes)
{
    if (c->keyless)
        return sl_front_hold_keyless(c->r, &c->held, bytes);
    return in_work(c) ? sl_front_hold(c->r, &c->held, bytes)
                      : sl_front_hold_part(c->r, c->caller.client, &c->held, &c->part, bytes);
}

/* ---- receiving ---- */

/* v units, at most ten years, so that a deadline never overflows. */
static uint64_t long_time(uint64_t v, uint64_t unit_ns)
{
    const uint64_t most = 10ull * 365 * 24 * 3600 * 1000000000ull;
    return v > most / unit_ns ? most : v * unit_ns;
}

/* "100m", "5S"… to nanoseconds; UINT64_MAX when malformed. */
static uint64_t parse_timeout(const char *t)
{
    uint64_t v = 0;
    size_t n = 0;
    for (; t[n] >= '0' && t[n] <= '9'; n++)
        v = v * 10 + (uint64_t)(t[n] - '0');
    if (!n || n > 8 || !t[n] || t[n + 1])
        return UINT64_MAX;
    switch (t[n]) {
    case 'H':
        return long_time(v, 3600000000000ull);
    case 'M':
        return long_time(v, 60000000000ull);
    case 'S':
        return long_time(v, 1000000000ull);
    case 'm':
        return v * 1000000ull;
    case 'u':
        return v * 1000ull;
    case 'n':
        return v;
    default:
        return UINT64_MAX;
    }
}

/* A client who may not have another request is told so before its message is read. */
static void check_account(rpc_call *c)
{
    sl_err err = {""};
    sl_status st = sl_call_check(c->r, c->caller.client, &c->retry_after_s, &err);
    if (!st)
        return;
    sl_router_stats_request(c->g->stats, "generate", sl_router_stats_outcome(st));
    rpc_finish(c, rpc_code_of(st), err.text);
}

static void check_headers(rpc_call *c, const h2_headers *h)
{
    for (size_t i = 0; i < SL_COUNT(methods); i++) {
        if (!strcmp(methods[i].path, h->path))
            c->m = &methods[i];
    }
    uint64_t timeout = *h->timeout ? parse_timeout(h->timeout) : 0;
    bool known = sl_front_caller(c->r, h->authorization, h2_stream_peer(c->s), &c->caller);
    c->keyless = !known || !c->m || (c->m->open && !*h->authorization);
    if (!c->m)
        rpc_finish(c, RPC_UNIMPLEMENTED, "no such method");
    else if (!c->m->open && !known)
        rpc_finish(c, RPC_UNAUTHENTICATED, "incorrect or missing API key: send authorization: Bearer KEY");
    else if (h->encoding[0] && strcmp(h->encoding, "identity"))
        rpc_finish(c, RPC_UNIMPLEMENTED, "compressed messages are not supported");
    else if (timeout == UINT64_MAX)
        rpc_finish(c, RPC_INVALID_ARGUMENT, "grpc-timeout is malformed");
    else if (*h->timeout) /* 0 has passed already */
        c->deadline_ns = c->arrival_ns + timeout;
    if (!c->finished && c->m->message == rpc_generate)
        check_account(c);
}

static void on_begin(void *arg, h2_stream *s, const h2_headers *h)
{
    sl_grpc *g = arg;
    if (strcmp(h->method, "POST") || strncmp(h->content_type, "application/grpc", 16)) {
        h2_stream_keyless(s);
        h2_stream_refuse(s, strcmp(h->method, "POST") ? "405" : "415");
        return;
    }
    rpc_call *c = calloc(1, sizeof *c);
    if (!c) {
        h2_stream_refuse(s, "503");
        return;
    }
    c->g = g;
    c->r = g->r;
    c->s = s;
    c->arrival_ns = sl_now_ns();
    c->next = g->calls;
    if (c->next)
        c->next->prev = c;
    g->calls = c;
    h2_stream_set_user(s, c);
    check_headers(c, h);
    if (c->keyless && !h2_stream_keyless(s))
        rpc_finish(c, RPC_RESOURCE_EXHAUSTED, "too many calls without a key");
    else if (!c->finished && !rpc_hold(c, RPC_CALL_BYTES))
        rpc_finish(c, RPC_RESOURCE_EXHAUSTED, SL_FRONT_NO_ROOM);
}

/* The longest message of this call. */
static size_t max_message(const rpc_call *c)
{
    return c->m->max_bytes && c->m->max_bytes < c->g->o->front.max_body_bytes ? c->m->max_bytes
                                                                              : c->g->o->front.max_body_bytes;
}

static void too_large(rpc_call *c)
{
    c->hopeless = true;
    rpc_finish(c, RPC_RESOURCE_EXHAUSTED,
               c->m->max_bytes ? "the message is too large for this method"
                               : "the message exceeds router.max_body_bytes");
}

/* Forgets the bytes that were received. */
static void drop_body(rpc_call *c)
{
    size_t n = c->in.len;
    sl_sb_free(&c->in);
    rpc_hold(c, c->held > n ? c->held - n : 0); /* never grows, so it succeeds */
}

/* Hands over every complete message; bidi methods at once, others are checked in on_end. */
static void take_messages(rpc_call *c)
{
    size_t at = 0;
    while (!c->finished && c->in.len - at >= 5) {
        const uint8_t *p = (const uint8_t *)c->in.data + at;
        size_t n = (size_t)p[1] << 24 | (size_t)p[2] << 16 | (size_t)p[3] << 8 | p[4];
        if (p[0]) {
            rpc_finish(c, RPC_UNIMPLEMENTED, "compressed messages are not supported");
        } else if (n > max_message(c)) {
            too_large(c);
        } else if (c->in.len - at < 5 + n || !c->m->bidi) {
            break;
        } else {
            c->m->message(c, p + 5, n);
            c->arrival_ns = sl_now_ns(); /* the next one has as long to come */
            at += 5 + n;
        }
    }
    if (at && !c->in.bad) {
        memmove(c->in.data, c->in.data + at, c->in.len - at);
        c->in.len -= at;
    }
}

static void on_data(void *arg, h2_stream *s, const uint8_t *p, size_t n)
{
    (void)arg;
    rpc_call *c = h2_stream_user(s);
    if (!c || c->finished)
        return;
    if (c->in.len + n > max_message(c) + 5) {
        too_large(c);
    } else if (!rpc_hold(c, RPC_CALL_BYTES + c->answer + c->in.len + n)) {
        rpc_finish(c, RPC_RESOURCE_EXHAUSTED, SL_FRONT_NO_ROOM);
    } else {
        sl_sb_append(&c->in, (const char *)p, n);
        if (c->in.bad)
            rpc_finish(c, RPC_RESOURCE_EXHAUSTED, "out of memory");
        else
            take_messages(c);
    }
    if (c->finished)
        drop_body(c);
}

static void on_end(void *arg, h2_stream *s)
{
    (void)arg;
    rpc_call *c = h2_stream_user(s);
    if (!c || c->finished)
        return;
    c->whole = true;
    if (in_work(c))
        sl_front_leave_part(c->r, c->caller.client, &c->part);
    if (c->m->bidi) {
        rpc_finish(c, c->in.len ? RPC_INVALID_ARGUMENT : RPC_OK,
                   c->in.len ? "the stream ended within a message" : NULL);
        return;
    }
    if (c->deadline_ns && sl_now_ns() >= c->deadline_ns) {
        rpc_finish(c, RPC_DEADLINE_EXCEEDED, "the call's deadline passed");
        drop_body(c);
        return;
    }
    const uint8_t *p = (const uint8_t *)c->in.data;
    size_t n = c->in.len >= 5 ? (size_t)p[1] << 24 | (size_t)p[2] << 16 | (size_t)p[3] << 8 | p[4] : 0;
    if (c->in.len < 5 || c->in.len != n + 5) {
        rpc_finish(c, RPC_INVALID_ARGUMENT, "want exactly one whole message");
        return;
    }
    c->m->message(c, p + 5, n);
    if (c->in.data) /* Generate takes it over */
        drop_body(c);
}

static void on_closed(void *arg, h2_stream *s, bool clean)
{
    sl_grpc *g = arg;
    rpc_call *c = h2_stream_user(s);
    if (!c)
        return;
    if (!clean && !c->finished)
        sl_router_stats_grpc(c->g->stats, c->m ? strrchr(c->m->path, '/') + 1 : "unknown", "CANCELLED");
    if (c->m && c->m->gone)
        c->m->gone(c);
    if (c->prev)
        c->prev->next = c->next;
    else
        g->calls = c->next;
    if (c->next)
        c->next->prev = c->prev;
    sl_sb_free(&c->in);
    rpc_hold(c, 0);
    sl_front_leave_part(c->r, c->caller.client, &c->part);
    free(c);
}

static void on_connections(void *arg, int change)
{
    sl_grpc *g = arg;
    sl_gauge_add(g->stats->fronts.grpc_connections, change);
}

static void on_drained(void *arg, h2_stream *s)
{
    (void)arg;
    rpc_call *c = h2_stream_user(s);
    if (c && !c->finished && c->m->more)
        c->m->more(c);
}

static uint64_t on_turn_ns(void *arg)
{
    return sl_router_turn_ns(((sl_grpc *)arg)->r);
}

static void on_ended(void *arg, const char *reason)
{
    sl_router_stats_closed(((sl_grpc *)arg)->stats, "grpc", reason);
}

void rpc_callbacks(sl_grpc *g, h2_callbacks *out)
{
    *out = (h2_callbacks){.arg = g,
                          .begin = on_begin,
                          .data = on_data,
                          .end = on_end,
                          .closed = on_closed,
                          .connections = on_connections,
                          .drained = on_drained,
                          .turn_ns = on_turn_ns,
                          .ended = on_ended};
}

void rpc_tick(sl_grpc *g, uint64_t now)
{
    rpc_std_tick(g, now);
    for (rpc_call *c = g->calls; c; c = c->next) {
        if (c->finished)
            continue;
        if (c->deadline_ns && now >= c->deadline_ns) {
            rpc_finish(c, RPC_DEADLINE_EXCEEDED, "the call's deadline passed");
            if (c->m->gone)
                c->m->gone(
                    c); /* stops its work now; called again, without effect, when the stream is closed */
        } else if (!c->whole && now > c->arrival_ns &&
                   now - c->arrival_ns >= g->o->front.receive_timeout_ms * SL_MS) {
            sl_router_stats_closed(g->stats, "grpc", "receive");
            rpc_finish(c, RPC_DEADLINE_EXCEEDED,
                       "the request did not arrive within router.client_timeout_ms");
            drop_body(c);
        } else if (c->m && c->m->message == rpc_flush_cache) {
            rpc_flush_tick(c, now);
        } else if (c->m && c->m->message == rpc_kv_events) {
            rpc_kv_pump(c);
        }
    }
}
