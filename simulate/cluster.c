/*
 * The cluster: the router's core with its endpoints, the clock, the arrivals of the trace, and the outputs.
 *
 * The router is created as always, with a transport that is never used: its members have endpoints of the simulator, whose
 * `send` makes an event for when the worker has the message. Messages of workers are given to the router directly. The loop
 * of the router never runs; its tick and its effects are called here.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/log.h"
#include "base/strbuf.h"
#include "simulate/sim_impl.h"

static const uint64_t START_NS = 1000000000000u; /* of the virtual clock: 0 means "never" in many places */
static const int32_t VOCABULARY = (1 << 30);
enum { MAX_CONTEXT = 1 << 28 }; /* simulated tokens of a request: its arrays of tokens double as it grows */

void sl_sim_after(sl_sim *s, double ns, sl_sim_event_fn *fn, void *arg, uint64_t number)
{
    sl_sim_events_add(&s->events, s->now_ns + (uint64_t)(ns > 0 ? ns : 0), fn, arg, number);
}

sl_sim_worker *sl_sim_find(sl_sim *s, uint32_t id)
{
    sl_sim_worker *w = s->by_id[id % SL_SIM_IDS];
    return w && w->id == id ? w : NULL;
}

/* ---- from workers to the router ---- */

void sl_sim_tell(sl_sim_worker *w, const sl_msg *m)
{
    sl_router_drive_message(&w->ep, m);
}

void sl_sim_tell_failed(sl_sim_worker *w, uint64_t rid, uint32_t attempt, sl_status st)
{
    sl_msg m = {.type = SL_MSG_FAILED};
    m.failed.rid = rid;
    m.failed.attempt = attempt;
    m.failed.status = st;
    m.failed.retryable = true;
    sl_sim_tell(w, &m);
}

/*
 * As worker/link.c: the load is told with every heartbeat while there is work, and when it has changed much, at the
 * earliest an eighth of a heartbeat after the last time. The worker looks at its load after every change, so there is no event for
 * each eighth: with hundreds of workers these would be most of all events.
 */
static bool changed_much(const sl_msg_load *a, const sl_msg_load *b)
{
    uint32_t pa = a->free_pages + a->cached_pages, pb = b->free_pages + b->cached_pages;
    return a->running != b->running || a->waiting != b->waiting ||
           (pa > pb ? pa - pb : pb - pa) > a->total_pages / 16;
}

static void load_of(const sl_sim_worker *w, sl_msg_load *out)
{
    if (w->role == SL_ROLE_PREFILL)
        sl_sim_prefill_load(w, out);
    else
        sl_sim_decode_load(w, out);
}

static void on_beat(void *arg, uint64_t number)
{
    sl_sim_worker *w = arg;
    sl_msg m = {.type = SL_MSG_LOAD};
    if (w->beat_ns != number)
        return; /* an earlier look was made since */
    w->beat_ns = UINT64_MAX;
    load_of(w, &m.load);
    if (changed_much(&m.load, &w->told) ||
        w->s->now_ns - w->told_ns >= w->s->router_opts.link.heartbeat_ms * SL_MS) {
        w->told = m.load;
        w->told_ns = w->s->now_ns;
        sl_sim_tell(w, &m);
    }
    if (m.load.running || m.load.waiting)
        sl_sim_beat(w);
}

void sl_sim_beat(sl_sim_worker *w)
{
    uint64_t beat = w->s->router_opts.link.heartbeat_ms * SL_MS, now = w->s->now_ns;
    sl_msg_load load = {0};
    if (w->role == SL_ROLE_PREFILL)
        sl_sim_prefill_load(w, &load);
    else
        sl_sim_decode_work(w, &load);
    uint64_t due = w->told_ns + (changed_much(&load, &w->told) ? beat / 8 : beat);
    due = due > now ? due : now;
    if (due >= w->beat_ns)
        return;
    w->beat_ns = due;
    sl_sim_after(w->s, (double)(due - now), on_beat, w, due);
}

/* ---- from the router to workers ---- */

typedef struct delivery {
    sl_sim_worker *w;
    const void *data; /* borrowed until done */
    size_t bytes;
    sl_tp_done_fn *done;
    void *cookie;
} delivery;

static void handle(sl_sim_worker *w, sl_msg *m)
{
    switch (m->type) {
    case SL_MSG_WELCOME:
        w->id = m->welcome.worker_id;
        w->s->by_id[w->id % SL_SIM_IDS] = w;
        break;
    case SL_MSG_RESERVE:
        sl_sim_decode_reserve(w, m);
        return;
    case SL_MSG_PREFILL:
        sl_sim_prefill_begin(w, m);
        return;
    case SL_MSG_ABORT:
        if (w->role == SL_ROLE_PREFILL)
            sl_sim_prefill_abort(w, &m->abort);
        else
            sl_sim_decode_abort(w, &m->abort);
        break;
    default: /* PING: the tick counts its members as heard */
        break;
    }
    sl_msg_free(m);
}

static void on_delivery(void *arg, uint64_t number)
{
    delivery *d = arg;
    sl_msg m;
    sl_err err = {""};
    (void)number;
    SL_CHECK(sl_msg_decode(d->data, d->bytes, &m, &err) == SL_OK, "%s", err.text);
    handle(d->w, &m);
    d->done(d->cookie, SL_OK);
    free(d);
}

/* Frees a message that will never arrive. */
static void drop_delivery(delivery *d)
{
    d->done(d->cookie, SL_ERR_CANCELLED);
    free(d);
}

static sl_status send_message(sl_tp_ep *ep, uint16_t id, const void *header, size_t header_bytes,
                              const void *data, size_t bytes, sl_tp_done_fn *done, void *cookie)
{
    sl_sim_worker *w = (sl_sim_worker *)ep;
    delivery *d = malloc(sizeof *d);
    (void)id;
    (void)header;
    (void)header_bytes;
    if (!d)
        return SL_ERR_NO_MEMORY;
    *d = (delivery){w, data, bytes, done, cookie};
    sl_sim_after(w->s, w->s->c->message_us * 1e3, on_delivery, d, 0);
    return SL_OK;
}

static void close_endpoint(sl_tp_ep *ep, sl_tp_close_mode mode)
{
    (void)mode;
    ep->user = NULL;
}

static const sl_transport_ops endpoint_ops = {
    .name = "simulated", .send = send_message, .close = close_endpoint};

/* ---- calls ---- */

static void on_tick(void *arg, uint64_t number)
{
    sl_sim *s = arg;
    (void)number;
    sl_router_drive_tick(s->router);
    s->ticking = s->open_calls > 0;
    if (s->ticking)
        sl_sim_after(s, SL_ROUTER_DRIVE_MS * 1e6, on_tick, s, 0);
}

static void on_output(void *arg, sl_group *group, const sl_output *o)
{
    sl_sim *s = arg;
    sl_sim_call *c = &s->out.calls[strtoull(sl_group_id(group), NULL, 10)];
    if (o->n_tokens && !c->first_ns)
        c->first_ns = s->now_ns;
    c->tokens = o->completion_tokens;
    c->cached = o->cached_tokens;
    if (!o->finished)
        return;
    c->end_ns = s->now_ns;
    c->failed = o->status != SL_OK;
    s->open_calls--;
    sl_group_release(group);
}

static int32_t scaled(const sl_sim *s, int32_t tokens)
{
    double n = ceil(tokens * s->o.length / s->per_token);
    return n < 1 ? 1 : n > INT32_MAX ? INT32_MAX : (int32_t)n;
}

static bool fill_prompt(const sl_sim *s, const sl_sim_request *q, sl_request_spec *spec)
{
    size_t n = (size_t)scaled(s, q->input), block = (size_t)s->block;
    spec->prompts = calloc(1, sizeof *spec->prompts);
    int32_t *ids = spec->prompts ? malloc(n * sizeof *ids) : NULL;
    if (!ids)
        return false;
    for (size_t i = 0; i < n; i++) {
        size_t b = i / block;
        ids[i] = (int32_t)s->o.trace->ids[q->first + (b < q->n_blocks ? b : q->n_blocks - 1)];
    }
    *spec->prompts = (sl_prompt){ids, n};
    spec->n_prompts = 1;
    return true;
}

static void on_call(void *arg, uint64_t number)
{
    sl_sim *s = arg;
    const sl_sim_request *q = &s->o.trace->requests[number];
    sl_sim_call *c = &s->out.calls[number];
    sl_request_spec spec;
    sl_group *group;
    sl_err err = {""};
    sl_request_spec_init(&spec);
    snprintf(spec.id, sizeof spec.id, "%lu", (unsigned long)number);
    snprintf(spec.client, sizeof spec.client, "trace");
    spec.no_text = spec.has_max_tokens = spec.has_seed = true;
    spec.sampling.max_tokens = scaled(s, q->output);
    spec.sampling.ignore_eos = true;
    SL_CHECK(fill_prompt(s, q, &spec), "out of memory");
    sl_status st = sl_group_submit(s->router, &spec, on_output, s, &group, &err);
    sl_request_spec_free(&spec);
    if (st != SL_OK) {
        c->refused = true;
        c->end_ns = s->now_ns;
        return;
    }
    s->open_calls++;
    sl_router_drive_settle(s->router);
    if (!s->ticking) {
        s->ticking = true;
        sl_sim_after(s, SL_ROUTER_DRIVE_MS * 1e6, on_tick, s, 0);
    }
}

/* A request arrives: the router has it after the front has read it. The next one of the trace becomes an event. */
static void on_arrival(void *arg, uint64_t number)
{
    sl_sim *s = arg;
    const sl_sim_trace *t = s->o.trace;
    double tokens = scaled(s, t->requests[number].input) * s->per_token;
    s->out.calls[number].start_ns = s->now_ns;
    sl_sim_after(s, s->c->request_us * 1e3 + s->c->request_ns_per_token * tokens, on_call, s, number);
    if (++number < t->n)
        sl_sim_after(s, (double)(s->start_ns + t->requests[number].arrival_ns - s->now_ns), on_arrival, s,
                     number);
}

/* ---- making and joining ---- */

/* The smallest tokenizer that can be: prompts are token ids, and no text is made. */
static sl_status make_tokenizer(sl_tokenizer **out, sl_err *err)
{
    static const char text[] =
        "{\"version\":\"1.0\",\"added_tokens\":[],\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"ByteLevel\","
        "\"add_prefix_space\":false,\"trim_offsets\":true,\"use_regex\":false},\"post_processor\":null,\"decoder\":"
        "{\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"trim_offsets\":true,\"use_regex\":true},\"model\":{\"type\":"
        "\"BPE\",\"dropout\":null,\"unk_token\":null,\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,"
        "\"fuse_unk\":false,\"byte_fallback\":false,\"vocab\":{";
    sl_strbuf sb = {0};
    unsigned next = 0;
    sl_sb_str(&sb, text);
    for (unsigned b = 0; b < 256; b++) {
        bool printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        sl_sb_printf(&sb, "%s\"\\u%04x\":%u", b ? "," : "", printable ? b : 256 + next++, b);
    }
    sl_sb_str(&sb, "},\"merges\":[]}}");
    size_t n = sb.len;
    char *json = sl_sb_take(&sb);
    if (!json)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    sl_status st = sl_tokenizer_parse(json, n, "the simulator's tokenizer", out, err);
    free(json);
    return st;
}

/* A cache of one small layer: pages have no rows here, only the number of layers costs memory. */
static sl_status make_geometry(sl_geometry *out, sl_err *err)
{
    sl_cache_dims d = {.rows = sl_row_format_of(SL_ROW_MLA_BF16), .latent = 128, .rope = 16};
    sl_cache_shape shape;
    sl_geometry_opts o = {.fingerprint = {1, 2}, .shape = &shape, .n_layers = 1};
    SL_TRY(sl_cache_shape_make(&d, &shape, err));
    return sl_geometry_make(&o, out, err);
}

static sl_status open_router(sl_sim *s, sl_err *err)
{
    sl_router_opts *r = &s->router_opts;
    sl_router_opts_from_config(s->o.cfg, r);
    r->link.transport = "loopback";
    r->link.fabric = "simulator";
    r->link.port = 0;
    r->placement.sources = r->placement.prefetch = false; /* the workers here do neither */
    r->link.secret = NULL;
    r->link.encrypt = false;
    r->model.tokenizer = s->tokenizer;
    r->model.path = NULL;
    r->model.chat_template = "auto";
    r->model.served_name = "simulated";
    r->link.cluster_tag = "simulator";
    r->model.max_context = 0;
    r->front.keys_file = NULL;
    r->front.tls_cert = NULL;
    r->front.http_port = r->front.grpc_port = -1;
    r->signals = false;
    r->link.dead_after_ms = 1u << 30;
    return sl_router_create_opts(r, &s->router, err);
}

static sl_status join(sl_sim_worker *w, sl_err *err)
{
    sl_sim *s = w->s;
    sl_msg m = {.type = SL_MSG_HELLO};
    sl_wr geometry;
    sl_wr_init(&geometry);
    sl_geometry_write(&s->geometry, &geometry);
    bool decode = sl_sim_decodes(w);
    m.hello = (sl_msg_hello){.version = SL_MSG_VERSION,
                             .role = (uint8_t)w->role,
                             .epoch = (uint64_t)w->index + 1,
                             .instance = (uint64_t)w->index + 1,
                             .max_context = (uint32_t)s->max_context,
                             .vocab_size = (uint32_t)VOCABULARY};
    snprintf(m.hello.name, sizeof m.hello.name, "%s/%d", sl_role_name(w->role), w->index);
    snprintf(m.hello.cluster_tag, sizeof m.hello.cluster_tag, "%s", s->router_opts.link.cluster_tag);
    snprintf(m.hello.model, sizeof m.hello.model, "%s", s->router_opts.model.served_name);
    snprintf(m.hello.listen, sizeof m.hello.listen, "simulator:%d", w->index + 1);
    snprintf(m.hello.host, sizeof m.hello.host, "simulated");
    m.hello.id = (sl_identity){{1, 2}, {geometry.data, geometry.len}};
    m.hello.max_batch = (uint32_t)(decode ? s->o.cfg->decode.max_batch : s->o.cfg->prefill.max_requests);
    sl_store_stats st;
    sl_store_stats_get(decode ? w->decode.store : w->prefill.store, &st);
    m.hello.total_pages = (uint32_t)st.total;
    w->ep.tp = &s->transport;
    sl_router_drive_join(s->router, &w->ep, "simulated");
    sl_sim_tell(w, &m);
    sl_wr_free(&geometry);
    return sl_router_drive_id(&w->ep)
               ? SL_OK
               : sl_fail(err, SL_ERR_INTERNAL, "the router refused worker %s", m.hello.name);
}

static sl_status open_workers(sl_sim *s, sl_err *err)
{
    s->workers = calloc((size_t)(s->o.prefills + s->o.decodes), sizeof *s->workers);
    if (!s->workers)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    s->n_workers = s->o.prefills + s->o.decodes;
    SL_TRY(sl_sim_groups_make(s, err));
    s->n_workers = 0;
    for (int32_t i = 0; i < s->o.prefills + s->o.decodes; i++) {
        sl_sim_worker *w = &s->workers[i];
        *w = (sl_sim_worker){.s = s,
                             .role = i < s->o.prefills ? SL_ROLE_PREFILL
                                     : s->o.both       ? SL_ROLE_BOTH
                                                       : SL_ROLE_DECODE,
                             .index = i,
                             .group = w->group,
                             .beat_ns = UINT64_MAX};
        s->n_workers++;
        SL_TRY(i < s->o.prefills ? sl_sim_prefill_open(w, err) : sl_sim_decode_open(w, err));
        SL_TRY(join(w, err));
    }
    return SL_OK;
}

/* A run ends without events. When a start fails, those of the workers that have joined are left: WELCOME and load reports. */
static void drop_events(sl_sim *s)
{
    for (sl_sim_event e; sl_sim_events_take(&s->events, &e);)
        if (e.fn == on_delivery)
            drop_delivery(e.arg);
}

static void close_all(sl_sim *s)
{
    for (int32_t i = 0; i < s->n_workers; i++)
        s->workers[i].ep.user = NULL; /* the router hears nothing of the end */
    drop_events(s);
    for (int32_t i = 0; i < s->n_workers; i++) {
        if (s->workers[i].role == SL_ROLE_PREFILL)
            sl_sim_prefill_close(&s->workers[i]);
        else
            sl_sim_decode_close(&s->workers[i]);
    }
    sl_router_destroy(s->router);
    sl_tokenizer_destroy(s->tokenizer);
    sl_sim_events_free(&s->events);
    free(s->workers);
    free(s->groups);
    free(s->out.calls);
}

/* ---- the run ---- */

static sl_status check_workers(const sl_sim_opts *o, sl_err *err)
{
    int32_t p = o->prefill_ranks > 1 ? o->prefill_ranks : 1, d = o->decode_ranks > 1 ? o->decode_ranks : 1;
    if (o->both && o->prefills)
        return sl_fail(
            err, SL_ERR_INVALID,
            "cluster: %d prefill workers next to workers of role both, which compute their prompts "
            "themselves; want 0",
            o->prefills);
    if ((o->prefills < 1 && !o->both) || o->decodes < 1 || o->prefills + o->decodes > 4000)
        return sl_fail(
            err, SL_ERR_INVALID,
            "cluster: %d prefill and %d decode workers; want at least one of each and at most 4000",
            o->prefills, o->decodes);
    if (o->prefills % p || o->decodes % d)
        return sl_fail(err, SL_ERR_INVALID,
                       "cluster: %d %s workers in groups of %d ranks; want a multiple of the ranks",
                       o->prefills % p ? o->prefills : o->decodes,
                       o->prefills % p ? "prefill"
                       : o->both       ? "both"
                                       : "decode",
                       o->prefills % p ? p : d);
    return SL_OK;
}

static sl_status check(const sl_sim *s, sl_err *err)
{
    double block = SL_SIM_BLOCK_TOKENS * s->o.length / s->per_token;
    SL_TRY(check_workers(&s->o, err));
    if (!(s->o.length > 0) || block < 1 || block != floor(block))
        return sl_fail(err, SL_ERR_INVALID,
                       "a block of %d tokens with length %g has %g tokens of %g each; want a whole number",
                       SL_SIM_BLOCK_TOKENS, s->o.length, block, s->per_token);
    double pages = (double)s->o.host_bytes / s->page_bytes;
    if (s->longest > MAX_CONTEXT)
        return sl_fail(err, SL_ERR_INVALID,
                       "the longest request of the trace has %ld tokens of %g each; want at most %d",
                       (long)s->longest, s->per_token, MAX_CONTEXT);
    if (sl_sim_pages(s->max_context) > pages)
        return sl_fail(err, SL_ERR_INVALID,
                       "kvstore.bytes: %.0f pages; the longest request of the trace needs %d", pages,
                       sl_sim_pages(s->max_context));
    return SL_OK;
}

static void prepare(sl_sim *s, const sl_sim_opts *o)
{
    *s = (sl_sim){
        .o = *o, .c = o->costs, .now_ns = START_NS, .start_ns = START_NS, .transport.ops = &endpoint_ops};
    if (!s->o.host_bytes)
        s->o.host_bytes = o->cfg->kvstore.bytes;
    s->per_token = (double)o->page_tokens / PAGE;
    s->page_bytes = o->page_tokens * o->costs->kv_bytes_per_token;
    s->block = (int32_t)(SL_SIM_BLOCK_TOKENS * o->length / s->per_token);
    /* auto: what a step of simulated workers holds is not found by trying */
    s->chunk_tokens = (int32_t)(sl_chunk_most(o->cfg->prefill.chunk_tokens, true, 1) / s->per_token);
    s->chunk_tokens = s->chunk_tokens > 0 ? s->chunk_tokens : 1;
    for (size_t i = 0; i < o->trace->n; i++) {
        int64_t n =
            (int64_t)scaled(s, o->trace->requests[i].input) + scaled(s, o->trace->requests[i].output) + 1;
        s->longest = n > s->longest ? n : s->longest;
    }
    s->max_context = s->longest > MAX_CONTEXT ? MAX_CONTEXT : (int32_t)s->longest;
}

static sl_status open_all(sl_sim *s, sl_err *err)
{
    SL_TRY(check(s, err));
    s->out.calls = calloc(s->o.trace->n, sizeof *s->out.calls);
    if (!s->out.calls)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    SL_TRY(make_geometry(&s->geometry, err));
    SL_TRY(make_tokenizer(&s->tokenizer, err));
    SL_TRY(open_router(s, err));
    return open_workers(s, err);
}

/* Until no event is left: the last calls have ended, and the tiers have written what they were given. */
static uint64_t run(sl_sim *s)
{
    sl_sim_event e;
    uint64_t n = 0;
    sl_sim_after(s, (double)s->o.trace->requests[0].arrival_ns, on_arrival, s, 0);
    for (; sl_sim_events_take(&s->events, &e); n++) {
        s->now_ns = e.at_ns;
        e.fn(e.arg, e.number);
        sl_router_drive_settle(s->router);
    }
    return n;
}

sl_status sl_simulate(const sl_sim_opts *o, sl_sim_result *out, sl_err *err)
{
    double began = (double)sl_now_ns() / 1e9;
    sl_key_secret(1); /* equal runs */
    sl_sim *s = malloc(sizeof *s);
    if (!s)
        return sl_fail(err, SL_ERR_NO_MEMORY, "out of memory");
    prepare(s, o);
    *out = (sl_sim_result){0};
    sl_now_virtual(&s->now_ns);
    sl_status st = open_all(s, err);
    if (st == SL_OK) {
        out->events = run(s);
        SL_CHECK(!s->open_calls, "%u calls have not ended", s->open_calls);
        sl_sim_summarize(s, out);
    }
    close_all(s);
    sl_now_virtual(NULL);
    free(s);
    out->real_seconds = (double)sl_now_ns() / 1e9 - began;
    return st;
}
