/*
 * Spans of requests (core/traced.c), with mock workers: whatever happens to the requests of a call, its trace is complete when the
 * call ends. Every span is closed and lies in its parent's place, the stages of a request follow each other without gaps, and what
 * failed says so.
 */
#include "router/core/core_impl.h"
#include "tests/unit/router/harness.h"

static harness h;

static void setup(void)
{
    h_init(&h);
    h_open_cluster(&h, 2, 2);
}

static void teardown(void)
{
    h_close(&h);
}

static bool stage_of_router(sl_span_kind k)
{
    return k >= SL_SPAN_QUEUE && k <= SL_SPAN_DECODE;
}

static sl_span_kind parent_of(sl_span_kind k)
{
    static const sl_span_kind parents[SL_SPAN_KINDS] = {
        [SL_SPAN_LOAD] = SL_SPAN_RESERVE,    [SL_SPAN_PROMPT_QUEUE] = SL_SPAN_PREFILL,
        [SL_SPAN_COMPUTE] = SL_SPAN_PREFILL, [SL_SPAN_SHIPMENT] = SL_SPAN_PREFILL,
        [SL_SPAN_CHECK] = SL_SPAN_PREFILL,   [SL_SPAN_JOIN] = SL_SPAN_DECODE,
        [SL_SPAN_STEPS] = SL_SPAN_DECODE};
    return parents[k]; /* SL_SPAN_CALL of the stages */
}

/* The stages of one request: from the beginning to the end of the call's part, each one begins where the last one has ended. */
static void check_stages(const sl_trace *t, uint32_t choice)
{
    const sl_span *last = NULL;
    for (uint32_t i = 0; i < t->n; i++) {
        const sl_span *s = &t->spans[i];
        if (!stage_of_router(s->kind) || s->choice != choice)
            continue;
        ck_assert(last ? s->begin == last->end : s->kind == SL_SPAN_QUEUE);
        if (last && s->kind == SL_SPAN_QUEUE) /* it begins again for a reason */
            ck_assert_ptr_nonnull(last->error);
        if (last && s->kind != SL_SPAN_QUEUE)
            ck_assert_int_eq(s->kind, last->kind + 1);
        last = s;
    }
    ck_assert_ptr_nonnull(last);
}

static void check_trace(const sl_trace *t, uint32_t choices)
{
    ck_assert_uint_eq(t->choices, choices);
    ck_assert_ptr_nonnull(t->outcome);
    for (uint32_t i = 0; i < t->n; i++) {
        const sl_span *s = &t->spans[i];
        ck_assert_msg(s->end >= s->begin && s->end, "span %u (%s) is open", i,
                      sl_span_form_of(s->kind)->name);
        if (!i)
            continue;
        ck_assert_int_eq(t->spans[s->parent].kind, parent_of(s->kind));
        ck_assert_uint_eq(s->worker > 0, s->kind >= SL_SPAN_LOAD);
        if (s->parent)
            ck_assert_uint_eq(t->spans[s->parent].choice, s->choice);
    }
    for (uint32_t c = 0; c < choices && !t->dropped; c++)
        check_stages(t, c);
}

static uint32_t count(const sl_trace *t, sl_span_kind k, bool failed)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < t->n; i++)
        n += t->spans[i].kind == k && (t->spans[i].error != NULL) == failed;
    return n;
}

static void submit(client *c, const char *id, size_t n_prompt, uint32_t n)
{
    sl_request_spec s;
    h_spec(&s, n_prompt, 20);
    snprintf(s.id, sizeof s.id, "%s", id);
    s.n = n;
    h_submit(&h, c, &s);
}

static const sl_trace *trace_of(const char *id)
{
    return sl_traces_find(h.r->traces, id);
}

START_TEST(a_plain_request)
{
    client c = {0};
    submit(&c, "plain", 100, 1);
    ck_assert_ptr_null(trace_of("plain"));
    H_UNTIL(&h, h_done(&c), 1000);
    const sl_trace *t = trace_of("plain");
    check_trace(t, 1);
    ck_assert_str_eq(t->outcome, "finished");
    ck_assert_uint_gt(t->first_token, t->spans[0].begin);
    for (sl_span_kind k = SL_SPAN_QUEUE; k <= SL_SPAN_DECODE; k++)
        ck_assert_uint_eq(count(t, k, false), 1);
    ck_assert_uint_eq(t->spans[0].values[0], 100);
    ck_assert_uint_eq(t->spans[0].values[1], 20);
    h_release(&h, &c, 1000);
}
END_TEST

/* Every fault of workers at some point, then the same faults together. */
START_TEST(faults)
{
    static const int list[] = {1, 2, 4, 8, 15};
    sl_mock_knobs *k = sl_mock_knob(h.w[_i % 2 ? 3 : 0]); /* a decode worker, a prefill worker */
    client c[4] = {0};
    char id[4][16];
    const int fault = list[_i / 2];
    if (fault & 1)
        k->fail = 1;
    if (fault & 2)
        k->full = 2;
    if (fault & 4)
        k->retract_at = 5;
    if (fault & 8)
        k->die_at = 10;
    for (int i = 0; i < 4; i++) {
        snprintf(id[i], sizeof id[i], "fault-%d", i);
        submit(&c[i], id[i], 60 + 70 * (size_t)i, 1 + (uint32_t)i % 3);
    }
    for (int i = 0; i < 4; i++)
        H_UNTIL(&h, h_done(&c[i]), 6000);
    for (int i = 0; i < 4; i++) {
        check_trace(trace_of(id[i]), 1 + (uint32_t)i % 3);
        sl_group_release(c[i].group);
    }
    h_run(&h, 5);
}
END_TEST

/* The client leaves after any number of turns. */
START_TEST(cancelled_at_any_time)
{
    for (int turns = 0; turns < 40; turns += 2) {
        client c = {0};
        char id[16];
        snprintf(id, sizeof id, "leave-%d", turns);
        submit(&c, id, 130, 2);
        for (int i = 0; i < turns; i++)
            h_turn(&h);
        bool done = h_done(&c);
        sl_group_release(c.group);
        h_run(&h, 1);
        const sl_trace *t = trace_of(id);
        check_trace(t, 2);
        ck_assert_str_eq(t->outcome, done ? "finished" : "cancelled");
        ck_assert(done || t->spans[0].error);
    }
}
END_TEST

/* A worker that is always full: the stages repeat, and the trace is bounded and still ends with what counts. */
START_TEST(many_refusals)
{
    client c = {0};
    sl_request_spec s;
    sl_mock_knob(h.w[2])->full = sl_mock_knob(h.w[3])->full = UINT32_MAX;
    h_spec(&s, 100, 20);
    snprintf(s.id, sizeof s.id, "full");
    h_submit(&h, &c, &s);
    sl_request *q = h_request(&c, 0);
    for (int i = 0; i < 300; i++) { /* refused more often than there is room for */
        sl_request_event refused = {.kind = SL_EVENT_NO_ROOM, .now_ns = sl_now_ns()};
        H_UNTIL(&h, q->state == SL_REQUEST_QUEUED || q->state == SL_REQUEST_RESERVING, 1000);
        if (q->state == SL_REQUEST_RESERVING)
            sl_request_apply(h.r, q, &refused);
        q->times.backoff_ms = 0;
        sl_member_find(h.r, sl_mock_count(h.w[2])->worker_id)->blocked_until_ns = 0;
        sl_member_find(h.r, sl_mock_count(h.w[3])->worker_id)->blocked_until_ns = 0;
        h_turn(&h);
    }
    sl_mock_knob(h.w[2])->full = sl_mock_knob(h.w[3])->full = 0;
    H_UNTIL(&h, h_done(&c), 5000);
    const sl_trace *t = trace_of("full");
    check_trace(t, 1);
    ck_assert_uint_gt(t->dropped, 0);
    ck_assert_uint_eq(count(t, SL_SPAN_DECODE, false), 1);
    h_release(&h, &c, 1000);
}
END_TEST

/* What a worker reports is placed where it belongs, also when it is absurd; JOINED of another attempt or worker has no effect. */
START_TEST(reports_of_workers)
{
    client c = {0};
    submit(&c, "reports", 100, 1);
    sl_request *q = h_request(&c, 0);
    H_UNTIL(&h, q->state == SL_REQUEST_DECODING, 1000);
    sl_member *w = sl_member_find(h.r, q->attempt.decode);
    sl_member *other = sl_member_find(h.r, sl_mock_count(h.w[0])->worker_id);
    sl_msg_joined m = {.rid = q->rid,
                       .attempt = q->attempt.n,
                       .load_us = 3,
                       .check_us = UINT64_MAX,
                       .wait_us = UINT64_MAX / 500};
    sl_traced_joined(h.r, other, &m);
    m.attempt++;
    sl_traced_joined(h.r, w, &m);
    m.attempt--;
    sl_traced_joined(h.r, w, &m);
    sl_traced_joined(h.r, w, &m); /* once more */
    H_UNTIL(&h, h_done(&c), 1000);
    const sl_trace *t = trace_of("reports");
    check_trace(t, 1);
    for (sl_span_kind k = SL_SPAN_LOAD; k < SL_SPAN_KINDS; k++)
        ck_assert_uint_eq(count(t, k, false), 1);
    h_release(&h, &c, 1000);
}
END_TEST

/* Tokens may come before the prefill worker says that it is done: they are not tokens that it computed. */
START_TEST(tokens_before_the_prefill_worker_is_done)
{
    client c = {0};
    submit(&c, "early", 100, 1);
    sl_request *q = h_request(&c, 0);
    H_UNTIL(&h, q->state == SL_REQUEST_DECODING && q->n_tokens > 105, 1000);
    const sl_msg_prefilled m = {.rid = q->rid, .attempt = q->attempt.n, .cached_tokens = 64, .compute_us = 1};
    const sl_request_event ev = {.kind = SL_EVENT_PREFILLED, .now_ns = sl_now_ns(), .prefilled = &m};
    sl_traced_step(h.r, q, q->state, &ev);
    H_UNTIL(&h, h_done(&c), 1000);
    const sl_trace *t = trace_of("early");
    ck_assert_uint_eq(count(t, SL_SPAN_COMPUTE, false), 2);
    for (uint32_t i = 0; i < t->n; i++) {
        if (t->spans[i].kind == SL_SPAN_COMPUTE)
            ck_assert_uint_eq(t->spans[i].values[0] + t->spans[i].values[1], 100);
    }
    h_release(&h, &c, 1000);
}
END_TEST

int main(void)
{
    const h_case cases[] = {
        {a_plain_request, 0},       {faults, 10},
        {cancelled_at_any_time, 0}, {many_refusals, 0},
        {reports_of_workers, 0},    {tokens_before_the_prefill_worker_is_done, 0},
    };
    return h_main("traced", setup, teardown, cases, SL_COUNT(cases));
}
