/*
 * What the mock does as a decode worker: it drives the product's machine of requests (decode/core/) with pages that are only
 * counted, answers that come after given times, and tokens by a formula. The knobs change messages, or send events.
 */
#include <stdlib.h>
#include <string.h>

#include "base/log.h"
#include "bench/mock/mock_impl.h"
#include "kvstore/page_key.h"

enum { PAGE = SL_KEY_PAGE_TOKENS, UNLIMITED = INT32_MAX / 4, ROUTER = 1 };

typedef struct mock_ticket {
    sl_ticket t;     /* first member */
    uint64_t due_ns; /* of what comes next: the answer to RESERVE, the end of the prompt, a token */
    bool answered;   /* the time before the answer to RESERVE has passed */
    bool scored;     /* the log-probabilities of its prompt were sent */
    uint32_t pages;
    sl_key *keys;
    size_t n_keys;
} mock_ticket;

static mock_ticket *of(const sl_ticket *t)
{
    return (mock_ticket *)(uintptr_t)t;
}

/* ---- messages ---- */

static void tell_reserved(void *ctx, sl_ticket *t)
{
    sl_mock *m = ctx;
    uint32_t *pages = calloc((size_t)t->n_pages + 1, sizeof *pages);
    SL_CHECK(pages, "out of memory");
    for (int32_t i = 0; i < t->n_pages; i++)
        pages[i] = (uint32_t)i;
    sl_msg s = {.type = SL_MSG_RESERVED};
    s.reserved.rid = t->rid;
    s.reserved.attempt = t->attempt;
    s.reserved.ticket = t->number;
    s.reserved.matched_pages = (uint32_t)t->matched;
    s.reserved.pages = pages;
    s.reserved.n_pages = (size_t)t->n_pages;
    sl_mock_send_router(m, &s);
    free(pages);
}

static void tell_failed(void *ctx, const sl_ticket *t, sl_status st, bool retryable, const char *why)
{
    (void)why;
    sl_mock_send_failed(ctx, t->rid, t->attempt, st, retryable);
}

static void tell_prefilled(void *ctx, const sl_ticket *t)
{
    sl_msg s = {.type = SL_MSG_PREFILLED};
    s.prefilled.rid = t->rid;
    s.prefilled.attempt = t->attempt;
    sl_mock_send_router(ctx, &s);
}

static void send_token(sl_mock *m, const sl_ticket *t, int32_t id, uint32_t index)
{
    bool off = m->k.off_logprob && index + 1 == m->k.wrong_at;
    sl_msg_token token = {.id = id, .logprob = off ? -0.9f : -0.5f};
    if (t->sampling.n_logprobs > 0) {
        token.n_top = 2;
        token.top_ids[0] = id;
        token.top_logprobs[0] = -0.5f;
        token.top_ids[1] = id == m->o.token_lo ? id + 1 : m->o.token_lo;
        token.top_logprobs[1] = -1.5f;
    }
    sl_msg s = {.type = SL_MSG_TOKENS};
    s.tokens.rid = t->rid;
    s.tokens.attempt = t->attempt;
    s.tokens.first_index = index;
    s.tokens.tokens = &token;
    s.tokens.n_tokens = 1;
    if (!m->k.skip_token || index + 1 != m->k.skip_token)
        sl_mock_send_router(m, &s);
    if (m->k.stale) {
        s.tokens.attempt--;
        sl_mock_send_router(m, &s);
        s.tokens.attempt++;
        s.tokens.rid ^= 0x5555;
        sl_mock_send_router(m, &s);
    }
    m->c.tokens++;
}

/* Token `at` of the prompt has -at / 8, and the best one -1 / 16. Once for a ticket, before its first token. */
static void send_scores(sl_mock *m, const sl_ticket *t)
{
    enum { PART = 100 };
    sl_msg_token list[PART] = {0};
    sl_msg s = {.type = SL_MSG_SCORES};
    s.tokens.rid = t->rid;
    s.tokens.attempt = t->attempt;
    s.tokens.tokens = list;
    for (int32_t at = 1; at < t->n_prompt; at += PART) {
        s.tokens.first_index = (uint32_t)at;
        for (s.tokens.n_tokens = 0; s.tokens.n_tokens < PART; s.tokens.n_tokens++) {
            const int32_t i = at + (int32_t)s.tokens.n_tokens;
            if (i == t->n_prompt)
                break;
            sl_msg_token *k = &list[s.tokens.n_tokens];
            *k = (sl_msg_token){.id = t->tokens[i], .logprob = -(float)i / 8};
            k->n_top = t->sampling.prompt_logprobs > 1;
            k->top_ids[0] = m->o.token_lo;
            k->top_logprobs[0] = -1.0f / 16;
        }
        sl_mock_send_router(m, &s);
    }
}

static void tell_tokens(void *ctx, sl_ticket *t, int32_t first_index, const sl_msg_token *list, int32_t n)
{
    sl_mock *m = ctx;
    if (t->sampling.prompt_logprobs && !of(t)->scored) {
        of(t)->scored = true;
        send_scores(m, t);
    }
    for (int32_t i = 0; i < n; i++)
        send_token(m, t, list[i].id, (uint32_t)(first_index + i));
    of(t)->due_ns = sl_now_ns() + m->o.step_us * 1000ull;
    if (m->stepping && m->k.die_at && m->c.tokens >= m->k.die_at)
        m->k.silent = true;
}

static void tell_cached(sl_mock *m, const sl_ticket *t)
{
    const mock_ticket *x = of(t);
    uint8_t buf[64 * 32];
    sl_wr tokens;
    sl_wr_init(&tokens);
    size_t n = 0;
    for (size_t i = 0; i < x->n_keys && n < 64; i++) {
        if (sl_keyset_has(m->prefix, x->keys[i]))
            continue;
        sl_keyset_add(m->prefix, x->keys[i]);
        sl_key pair[2] = {i ? x->keys[i - 1] : (sl_key){0, 0}, x->keys[i]};
        memcpy(buf + 32 * n++, pair, 32);
        for (size_t k = 0; k < PAGE; k++)
            sl_wr_i32(&tokens, t->tokens[i * PAGE + k]);
    }
    sl_msg e = {.type = SL_MSG_KV_EVENTS};
    e.kv_events.stored = (sl_blob){buf, 32 * n};
    e.kv_events.tokens = (sl_blob){tokens.data, tokens.len};
    if (n) {
        e.kv_events.sequence = ++m->kv_sequence;
        sl_mock_send_router(m, &e);
    }
    sl_wr_free(&tokens);
}

static void tell_done(void *ctx, sl_ticket *t, sl_finish finish, int32_t matched)
{
    sl_mock *m = ctx;
    sl_msg d = {.type = SL_MSG_DONE};
    d.done.rid = t->rid;
    d.done.attempt = t->attempt;
    d.done.finish = (uint8_t)finish;
    d.done.matched_stop = matched;
    d.done.produced = (uint32_t)sl_ticket_produced(t) + m->k.wrong_count;
    m->k.wrong_count = false;
    sl_mock_send_router(m, &d);
    tell_cached(m, t);
}

static void tell_retracted(void *ctx, sl_ticket *t, const char *why)
{
    (void)why;
    sl_mock *m = ctx;
    sl_msg r = {.type = SL_MSG_RETRACTED};
    r.retracted =
        (sl_msg_retracted){.rid = t->rid,
                           .attempt = t->attempt,
                           .safe = m->k.damage_at ? m->k.damage_at : (uint32_t)sl_ticket_produced(t),
                           .damaged = m->k.damage_at != 0};
    m->k.damage_at = m->k.wrong_at = 0;
    m->k.off_logprob = false;
    sl_mock_send_router(m, &r);
}

static void tell_drained(void *ctx, const sl_ticket *t)
{
    sl_mock_send_id(ctx, SL_MSG_DRAINED, t->rid, t->attempt);
}

/* ---- pages ---- */

static bool no_check(void *ctx, sl_ticket *t, sl_ticket_job what, int32_t first, int32_t n,
                     const sl_msg_commit *commit)
{
    (void)ctx, (void)t, (void)what, (void)first, (void)n, (void)commit;
    return false; /* the environment asks for none */
}

static void no_publish(void *ctx, sl_ticket *t, int32_t rows)
{
    (void)ctx, (void)t, (void)rows;
}

static void nothing(void *ctx, sl_ticket *t)
{
    (void)ctx, (void)t;
}

static void no_count(void *ctx, const sl_ticket *t)
{
    (void)ctx, (void)t;
}

/* No row is ever written, so a writer cannot write any more. */
static void fence(void *ctx, const sl_ticket *t)
{
    sl_mock *m = ctx;
    sl_core_signal(&m->core, (sl_ticket *)(uintptr_t)t, SL_ON_FENCED, sl_now_ns());
}

static void release(void *ctx, sl_ticket *t)
{
    sl_mock *m = ctx;
    m->c.pages_used -= of(t)->pages;
    of(t)->pages = 0;
}

static uint32_t pages_of(const sl_ticket *t)
{
    return (uint32_t)((t->n_tokens + PAGE - 1) / PAGE);
}

static int32_t missing(void *ctx, const sl_ticket *t)
{
    (void)ctx, (void)t;
    return 0; /* lease() counts */
}

static int32_t available(void *ctx)
{
    (void)ctx;
    return UNLIMITED;
}

/* The answer comes after reserve_us. */
static bool wait_for_answer(void *ctx, sl_ticket *t)
{
    (void)ctx;
    return !of(t)->answered;
}

static sl_status lease(void *ctx, sl_ticket *t, sl_grant *out)
{
    sl_mock *m = ctx;
    uint32_t pages = pages_of(t);
    if (m->c.pages_used + m->k.leaked + pages > m->o.total_pages)
        return SL_ERR_EXHAUSTED;
    m->c.pages_used += pages;
    of(t)->pages = pages;
    of(t)->due_ns = sl_now_ns() + m->o.prefill_us * 1000ull;
    *out = (sl_grant){.n_pages = (int32_t)pages,
                      .matched = (int32_t)sl_keyset_match(m->prefix, of(t)->keys, of(t)->n_keys)};
    return SL_OK;
}

/* ---- events ---- */

static bool is_stop(const void *ctx, const sl_sampling *s, int32_t id)
{
    const sl_mock *m = ctx;
    for (uint32_t i = 0; i < s->n_stop_ids; i++) {
        if (s->stop_ids[i] == id)
            return true;
    }
    return id == m->o.eos && !s->ignore_eos;
}

static void free_ticket(sl_ticket *t)
{
    free(of(t)->keys);
}

void sl_mock_reserve(sl_mock *m, const sl_msg_reserve *r)
{
    sl_ticket *t = sl_tickets_new(&m->core.tickets);
    SL_CHECK(t, "out of memory");
    mock_ticket *x = of(t);
    t->rid = r->rid;
    t->attempt = r->attempt;
    t->router = ROUTER;
    t->writer = r->prefill_worker;
    t->n_prompt = (int32_t)r->n_prompt;
    t->n_tokens = (int32_t)r->n_tokens;
    t->cap = t->n_tokens + 1024;
    t->tokens = t->own = malloc((size_t)t->cap * sizeof *t->own);
    x->keys = calloc(r->n_tokens / PAGE + 1, sizeof *x->keys);
    SL_CHECK(t->own && x->keys, "out of memory");
    memcpy(t->own, r->tokens, r->n_tokens * sizeof *t->own);
    x->n_keys = sl_page_keys(r->seed, r->tokens, r->n_tokens, x->keys);
    sl_rd rd = sl_rd_init(r->sampling.data, r->sampling.len);
    SL_CHECK(sl_sampling_read(&rd, &t->sampling) == SL_OK, "the router sent unreadable sampling parameters");
    uint64_t now = sl_now_ns();
    x->due_ns = now + m->o.reserve_us * 1000ull;
    sl_tickets_enter(&m->core.tickets, t);
    sl_admission_ask(&m->core, t, now);
}

void sl_mock_committed(sl_mock *m, const sl_msg_commit *c)
{
    sl_ticket *t = sl_tickets_find(&m->core.tickets, ROUTER, c->rid, c->attempt);
    sl_ticket_event ev = {.kind = SL_ON_COMMIT, .now_ns = sl_now_ns(), .commit = c};
    bool late = t && t->state == SL_TICKET_QUARANTINE;
    m->c.commits_stale += !t || !sl_core_event(&m->core, t, &ev) || late;
}

void sl_mock_aborted(sl_mock *m, const sl_msg_abort *a)
{
    sl_ticket *t = sl_tickets_find(&m->core.tickets, ROUTER, a->rid, a->attempt);
    sl_ticket_event ev = {.kind = SL_ON_ABORT, .now_ns = sl_now_ns(), .abort_why = (sl_status)a->status};
    if (!t)
        return;
    sl_core_event(&m->core, t, &ev);
    if (a->status == SL_ERR_PEER && t->state == SL_TICKET_QUARANTINE)
        fence(m, t);
}

void sl_mock_drained(sl_mock *m, const sl_msg_id *id)
{
    sl_ticket *t = sl_tickets_find(&m->core.tickets, ROUTER, id->rid, id->attempt);
    sl_ticket_event ev = {.kind = SL_ON_DRAINED, .now_ns = sl_now_ns()};
    if (t)
        sl_core_event(&m->core, t, &ev);
}

static sl_msg_token next_token(const sl_mock *m, const sl_ticket *t)
{
    return (sl_msg_token){.id =
                              sl_mock_next_token(&m->o, t->tokens, (size_t)t->n_tokens, (size_t)t->n_prompt),
                          .logprob = -0.5f};
}

/* A step of this ticket alone. */
static void compute(sl_mock *m, sl_ticket *t, uint64_t now)
{
    sl_ticket_event ev = {.kind = SL_ON_STEPPED, .now_ns = now};
    ev.stepped.rows = t->n_tokens;
    sl_core_signal(&m->core, t, SL_ON_STEP, now);
    sl_core_event(&m->core, t, &ev);
}

static void retract_if_told(sl_mock *m, sl_ticket *t, uint64_t now)
{
    bool decodes = t->state == SL_TICKET_WAITING || t->state == SL_TICKET_RUNNING;
    if (!decodes || !m->k.retract_at || sl_ticket_produced(t) < (int32_t)m->k.retract_at)
        return;
    sl_ticket_event ev = {.kind = SL_ON_RETRACT, .now_ns = now, .retract_why = "the test asked"};
    if (sl_core_event(&m->core, t, &ev))
        m->k.retract_at = 0;
}

static void step(sl_mock *m, sl_ticket *t, uint64_t now)
{
    sl_msg_token token = next_token(m, t);
    if (m->k.wrong_at && !m->k.off_logprob && sl_ticket_produced(t) + 1 == (int32_t)m->k.wrong_at)
        token.id ^= 1;
    sl_ticket_event ev = {.kind = SL_ON_TOKENS, .now_ns = now};
    ev.tokens.list = &token;
    ev.tokens.n = 1;
    m->stepping = true;
    compute(m, t, now);
    sl_core_event(&m->core, t, &ev);
    m->stepping = false;
}

/* Role both: the prompt was computed here. */
static void finish_prompt(sl_mock *m, sl_ticket *t, uint64_t now)
{
    sl_ticket_event ev = {.kind = SL_ON_COMPUTED, .now_ns = now};
    if (m->k.hold_commit)
        return;
    ev.computed.first = next_token(m, t);
    m->stepping = true;
    sl_core_signal(&m->core, t, SL_ON_JOINED, now);
    compute(m, t, now);
    sl_core_event(&m->core, t, &ev);
    m->stepping = false;
}

static const unsigned timed =
    SL_TICKETS_IN(LOADING) | SL_TICKETS_IN(PROMPT) | SL_TICKETS_IN(WAITING) | SL_TICKETS_IN(RUNNING);

void sl_mock_run_tickets(sl_mock *m, uint64_t now)
{
    sl_mock_gather(m, true);
    for (sl_ticket *t = NULL; !m->c.dead && (t = sl_tickets_next(&m->core.tickets, t, timed));) {
        retract_if_told(m, t, now);
        if (t->state == SL_TICKET_WAITING)
            sl_core_signal(&m->core, t, SL_ON_JOINED, now);
        if (of(t)->due_ns > now || m->k.hold)
            continue;
        if (t->state == SL_TICKET_LOADING) {
            of(t)->answered = true;
            sl_admission_ask(&m->core, t, now);
        } else if (t->state == SL_TICKET_PROMPT) {
            finish_prompt(m, t, now);
        } else if (t->state == SL_TICKET_RUNNING) {
            step(m, t, now);
        }
        retract_if_told(m, t, now);
    }
    sl_mock_gather(m, false);
    sl_tickets_sweep(&m->core.tickets);
}

uint64_t sl_mock_tickets_due(const sl_mock *m)
{
    uint64_t due = UINT64_MAX;
    for (const sl_ticket *t = NULL; (t = sl_tickets_next(&m->core.tickets, t, timed));)
        due = of(t)->due_ns < due ? of(t)->due_ns : due;
    return due;
}

/* ---- numbers, life ---- */

void sl_mock_tickets_load(const sl_mock *m, sl_msg_load *out)
{
    const unsigned computes = SL_TICKETS_IN(PROMPT) | SL_TICKETS_IN(WAITING) | SL_TICKETS_IN(RUNNING);
    for (const sl_ticket *t = NULL; (t = sl_tickets_next(&m->core.tickets, t, computes));) {
        out->running++;
        out->queued_tokens += t->state == SL_TICKET_PROMPT ? (uint64_t)t->n_tokens : 0;
    }
}

sl_status sl_mock_tickets_open(sl_mock *m, sl_err *err)
{
    m->core.env = (sl_ticket_env){.vocab = INT32_MAX,
                                  .max_context = INT32_MAX,
                                  .quarantine_ms = UINT32_MAX, /* only DRAINED ends it */
                                  .is_stop = is_stop,
                                  .ctx = m};
    m->core.world = (sl_world){.ctx = m,
                               .tell_reserved = tell_reserved,
                               .tell_failed = tell_failed,
                               .tell_prefilled = tell_prefilled,
                               .tell_tokens = tell_tokens,
                               .tell_done = tell_done,
                               .tell_retracted = tell_retracted,
                               .tell_drained = tell_drained,
                               .check = no_check,
                               .publish = no_publish,
                               .accepted = no_count,
                               .quarantined = no_count,
                               .fence = fence,
                               .close = nothing,
                               .leave = nothing,
                               .release = release,
                               .missing = missing,
                               .available = available,
                               .load = wait_for_answer,
                               .lease = lease};
    m->core.tickets.bytes = sizeof(mock_ticket);
    m->core.tickets.free = free_ticket;
    m->core.admission.o = (sl_admission_opts){UNLIMITED, UNLIMITED};
    return sl_core_open(&m->core, err);
}
