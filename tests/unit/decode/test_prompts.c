/*
 * Prompts that a worker of role both computes itself: their tokens are those of one process, they never add a step between
 * two tokens of a running request, and everything is given back whatever ends them.
 */
#include "tests/unit/decode/decode_double.h"
#include "tests/unit/run_suite.h"

static decode_double x;
static dd_opts o;

static void open_both(void)
{
    o = dd_defaults();
    o.pages = 32;
    o.chunk = 64;
    o.prompts = 2;
    dd_open(&x, &o);
}

static void step(void)
{
    bool worked;
    ck_assert_int_eq(dd_step(&x, &worked), SL_OK);
}

/* The prompt of dd_reserve(). */
static void prompt_of(int seed, int n, int32_t *out)
{
    for (int i = 0; i < n; i++)
        out[i] = (i * 7 + seed) % DD_VOCAB;
}

/* Steps until the prompt is computed; the stream has its first token then. */
static void compute(uint64_t rid)
{
    while (dd_ticket(&x, rid)->state == SL_TICKET_PROMPT)
        step();
}

static void expect_stream(const sl_ticket *t, int n_prompt, int seed)
{
    int32_t prompt[1024], want[64];
    prompt_of(seed, n_prompt, prompt);
    fake_reference(x.d->geo, DD_VOCAB, prompt, n_prompt, want, t->n_tokens - n_prompt);
    ck_assert_mem_eq(t->tokens + n_prompt, want, (size_t)(t->n_tokens - n_prompt) * sizeof *want);
}

static void end(uint64_t rid)
{
    dd_abort(&x, rid, SL_ERR_CANCELLED);
    dd_expect(&x, SL_MSG_DRAINED, rid);
}

START_TEST(from_reserve_to_done)
{
    open_both();
    dd_reserve_own(&x, 1, 130, 3, 5);
    const dd_said *s = dd_expect(&x, SL_MSG_RESERVED, 1);
    ck_assert_uint_eq(s->n, 3);
    ck_assert_int_eq(dd_ticket(&x, 1)->state, SL_TICKET_PROMPT);
    step();
    step();
    dd_silent(&x);
    ck_assert_int_eq(dd_ticket(&x, 1)->rows, 128);
    ck_assert_int_eq(sl_store_match(x.d->role.store, dd_seed, dd_ticket(&x, 1)->tokens, 130), 2);
    step();
    ck_assert_uint_eq(dd_expect(&x, SL_MSG_PREFILLED, 1)->n, 0);
    ck_assert_uint_eq(dd_expect(&x, SL_MSG_TOKENS, 1)->first_index, 0);
    ck_assert_int_eq(dd_ticket(&x, 1)->state, SL_TICKET_WAITING);
    step();
    ck_assert_uint_eq(dd_expect(&x, SL_MSG_TOKENS, 1)->first_index, 1);
    ck_assert_int_eq(dd_ticket(&x, 1)->state, SL_TICKET_RUNNING);
    expect_stream(dd_ticket(&x, 1), 130, 5);
    step();
    dd_expect(&x, SL_MSG_TOKENS, 1);
    ck_assert_uint_eq(dd_expect(&x, SL_MSG_DONE, 1)->produced, 3);
    dd_silent(&x);
    dd_close(&x);
}
END_TEST

/* A long prompt in flight: every step yields a token of the stream that runs, and computes some of the prompt. */
START_TEST(a_long_prompt_does_not_stop_a_stream)
{
    open_both();
    dd_reserve_own(&x, 1, 70, 60, 1);
    dd_expect(&x, SL_MSG_RESERVED, 1);
    compute(1);
    dd_expect(&x, SL_MSG_PREFILLED, 1);
    dd_expect(&x, SL_MSG_TOKENS, 1);
    dd_reserve_own(&x, 2, 900, 5, 2);
    dd_expect(&x, SL_MSG_RESERVED, 2);
    int steps = 0;
    for (; dd_ticket(&x, 2)->state == SL_TICKET_PROMPT; steps++) {
        int before = dd_ticket(&x, 2)->rows;
        step();
        dd_expect(&x, SL_MSG_TOKENS, 1);
        const sl_ticket *t = dd_ticket(&x, 2);
        ck_assert_int_gt(t->rows, before);
        ck_assert_int_le(t->rows - before, o.chunk);
    }
    ck_assert_int_ge(steps, 900 / 64);
    dd_expect(&x, SL_MSG_PREFILLED, 2);
    dd_expect(&x, SL_MSG_TOKENS, 2);
    step();
    dd_expect(&x, SL_MSG_TOKENS, 1);
    dd_expect(&x, SL_MSG_TOKENS, 2);
    expect_stream(dd_ticket(&x, 1), 70, 1);
    expect_stream(dd_ticket(&x, 2), 900, 2);
    end(1);
    end(2);
    dd_close(&x);
}
END_TEST

/* The stall bound: with a speed of 1 ms a token and a bound of 10 ms a step computes 10 prompt tokens while a request
 * decodes, and a chunk when none does. */
START_TEST(the_bound_holds_only_while_a_request_decodes)
{
    open_both();
    x.d->run->o.prompts.max_stall_ms = 10;
    for (int i = 0; i < x.d->run->prompts.pace.n; i++)
        x.d->run->prompts.pace.span[i].token_ns = 1e6;
    x.d->run->prompts.pace.measured = true;
    dd_reserve_own(&x, 1, 300, 5, 1);
    dd_expect(&x, SL_MSG_RESERVED, 1);
    sl_prompts_admit(x.d->run);
    sl_run_flight *f = &x.d->run->flight[0];
    f->decoding = 0;
    sl_prompts_collect(x.d->run, f);
    ck_assert_int_eq(f->prompts, 1);
    ck_assert_int_eq(f->items[0].n_tokens, 64);
    f->decoding = 1;
    sl_prompts_collect(x.d->run, f);
    ck_assert_int_eq(f->prompts, 1);
    ck_assert_int_eq(f->items[1].n_tokens, 10);
    ck_assert(!f->items[1].sample);
    x.d->run->o.prompts.max_stall_ms = 0;
    sl_prompts_collect(x.d->run, f);
    ck_assert_int_eq(f->prompts, 1);
    ck_assert_int_eq(f->items[1].n_tokens, 64);
    end(1);
    dd_close(&x);
}
END_TEST

/* Before its first step, during the prompt, while it waits for a slot, and while it decodes. */
START_TEST(abort_in_every_state)
{
    open_both();
    dd_reserve_own(&x, 1, 130, 50, 1);
    dd_expect(&x, SL_MSG_RESERVED, 1);
    for (int i = 0; i < (int[]){0, 1, 3, 5}[_i]; i++)
        step();
    static const sl_ticket_state states[] = {SL_TICKET_PROMPT, SL_TICKET_PROMPT, SL_TICKET_WAITING,
                                             SL_TICKET_RUNNING};
    ck_assert_int_eq(dd_ticket(&x, 1)->state, states[_i]);
    x.seen = x.n_said;
    end(1);
    dd_silent(&x);
    dd_close(&x);
}
END_TEST

/* The session of the router ends: so do its requests, without a fence, since there is no writer. */
START_TEST(router_lost)
{
    open_both();
    dd_reserve_own(&x, 1, 130, 50, 1);
    dd_reserve_own(&x, 2, 130, 50, 2);
    dd_reserve_own(&x, 3, 130, 50, 3); /* has no place */
    step();
    sl_run_router_down(x.d->run, x.router);
    ck_assert_int_eq(dd_tickets(&x), 0);
    ck_assert_int_eq(x.fences, 0);
    dd_close(&x);
}
END_TEST

/* A second request with the same beginning computes only what differs; one that has waited finds what was computed. */
START_TEST(prefixes_are_reused)
{
    open_both();
    dd_reserve_own(&x, 1, 200, 50, 1);
    dd_reserve_own(&x, 2, 330, 50, 2);
    dd_reserve_own(&x, 3, 190, 50, 1); /* waits for a place: there are two */
    for (uint64_t rid = 1; rid <= 3; rid++)
        ck_assert_uint_eq(dd_expect(&x, SL_MSG_RESERVED, rid)->matched, 0);
    compute(1);
    dd_expect(&x, SL_MSG_PREFILLED, 1);
    dd_expect(&x, SL_MSG_TOKENS, 1);
    end(1);
    x.seen = x.n_said;
    while (dd_ticket(&x, 3)->state == SL_TICKET_PROMPT)
        step();
    ck_assert_int_eq(dd_ticket(&x, 3)->cached_tokens, 128);
    expect_stream(dd_ticket(&x, 3), 190, 1);
    x.seen = x.n_said;
    end(2);
    end(3);
    dd_close(&x);
}
END_TEST

/* Flips a bit of the rows of a page. */
static void damage(int32_t page)
{
    sl_host_plane r =
        sl_geometry_plane(x.d->geo, sl_arena_base(x.arena), sl_arena_pages(x.arena), 0, SL_CACHE_ROWS);
    r.base[page * r.page_stride] ^= 1;
}

/* With seals: matched pages are verified concurrently, and a damaged one ends the request before its first token. */
START_TEST(damaged_prefix)
{
    open_both();
    dd_close(&x);
    o.verify = SL_CFG_VERIFY_ALWAYS;
    dd_open(&x, &o);
    for (uint64_t rid = 1; rid <= 2; rid++) {
        dd_reserve_own(&x, rid, 200, 50, 1);
        dd_expect(&x, SL_MSG_RESERVED, rid);
        if (rid == 2 && _i)
            damage(sl_lease_pages(dd_lease(&x, 2))[1]);
        while (dd_ticket(&x, rid) && dd_ticket(&x, rid)->state == SL_TICKET_PROMPT)
            step();
        if (rid == 2) {
            ck_assert_int_eq(dd_ticket(&x, 2)->state, SL_TICKET_CHECKING); /* the answer is not there */
            dd_expect(&x, SL_MSG_PREFILLED, 2);
            dd_silent(&x);
        }
        dd_check(&x);
        if (rid == 2 && _i)
            break;
        if (rid == 1)
            dd_expect(&x, SL_MSG_PREFILLED, 1);
        dd_expect(&x, SL_MSG_TOKENS, rid);
        expect_stream(dd_ticket(&x, rid), 200, 1);
        dd_abort(&x, rid, SL_ERR_CANCELLED);
        dd_expect(&x, SL_MSG_DRAINED, rid);
    }
    if (_i) {
        const dd_said *s = dd_expect(&x, SL_MSG_FAILED, 2);
        ck_assert(s->retryable && s->status == SL_ERR_CORRUPT);
    }
    dd_check(&x);
    dd_close(&x);
}
END_TEST

/* The step fails: so do its prompts, and the stream that ran. A sequence cannot be opened: the request fails. */
START_TEST(failures)
{
    open_both();
    dd_reserve_own(&x, 1, 70, 60, 1);
    compute(1);
    step();
    dd_reserve_own(&x, 2, 130, 60, 2);
    x.seen = x.n_said;
    x.fail_step = SL_ERR_UNSUPPORTED;
    step();
    ck_assert(dd_expect(&x, SL_MSG_FAILED, 1)->retryable);
    ck_assert(dd_expect(&x, SL_MSG_FAILED, 2)->retryable);
    dd_reserve_own(&x, 3, 130, 60, 2);
    dd_expect(&x, SL_MSG_RESERVED, 3);
    x.fail_open = SL_ERR_EXHAUSTED; /* it is alone: waiting would not help */
    step();
    ck_assert(dd_expect(&x, SL_MSG_FAILED, 3)->retryable);
    dd_silent(&x);
    dd_close(&x);
}
END_TEST

/* A prompt waits while the device is full, and is returned to the router by a worker that drains. */
START_TEST(waiting_and_draining)
{
    open_both();
    dd_reserve_own(&x, 1, 70, 60, 1);
    compute(1);
    step();
    dd_reserve_own(&x, 2, 70, 60, 2);
    x.seen = x.n_said;
    x.fail_open = SL_ERR_EXHAUSTED;
    step();
    dd_expect(&x, SL_MSG_TOKENS, 1);
    ck_assert_ptr_null(sl_run_of(dd_ticket(&x, 2))->seq);
    x.d->role.draining = true;
    x.fail_open = SL_OK;
    step();
    dd_expect(&x, SL_MSG_RETRACTED, 2);
    dd_expect(&x, SL_MSG_TOKENS, 1);
    end(1);
    dd_close(&x);
}
END_TEST

/* All slots are taken: what is computed waits for one without device memory, and continues with the same tokens. */
START_TEST(slots)
{
    open_both();
    for (uint64_t rid = 1; rid <= 4; rid++) {
        dd_reserve_own(&x, rid, 100, 60, (int)rid);
        compute(rid);
    }
    step();
    ck_assert_int_eq(dd_running(&x), 2);
    ck_assert_int_eq(fake_open_seqs(x.fake), 2);
    x.seen = x.n_said;
    end(1);
    end(2);
    step();
    step();
    ck_assert_int_eq(dd_running(&x), 2);
    expect_stream(dd_ticket(&x, 3), 100, 3);
    expect_stream(dd_ticket(&x, 4), 100, 4);
    x.seen = x.n_said;
    end(3);
    end(4);
    dd_close(&x);
}
END_TEST

/* The device is full of prompts that are being computed, and nothing runs: what is computed waits for the memory of these. */
START_TEST(prompts_hold_the_device)
{
    open_both();
    for (uint64_t rid = 1; rid <= 3; rid++) {
        dd_reserve_own(&x, rid, 100, 60, (int)rid);
        compute(rid);
    }
    step();
    ck_assert_int_eq(dd_ticket(&x, 3)->state, SL_TICKET_WAITING); /* for one of two slots */
    dd_reserve_own(&x, 4, 500, 60, 4);
    step();
    ck_assert_int_eq(dd_ticket(&x, 4)->state, SL_TICKET_PROMPT);
    ck_assert_ptr_nonnull(sl_run_of(dd_ticket(&x, 4))->seq);
    x.seen = x.n_said;
    end(1);
    end(2);
    x.fail_open = SL_ERR_EXHAUSTED;
    step();
    ck_assert_int_eq(x.fail_open, SL_OK); /* it was tried */
    ck_assert_int_eq(dd_ticket(&x, 3)->state, SL_TICKET_WAITING);
    step();
    ck_assert_int_eq(dd_ticket(&x, 3)->state, SL_TICKET_RUNNING);
    compute(4);
    step();
    expect_stream(dd_ticket(&x, 3), 100, 3);
    expect_stream(dd_ticket(&x, 4), 500, 4);
    x.seen = x.n_said;
    end(3);
    end(4);
    dd_close(&x);
}
END_TEST

/* The same while the only one that holds memory has its prompt and waits for the checker. */
START_TEST(a_checked_prompt_holds_the_device)
{
    open_both();
    dd_close(&x);
    o.verify = SL_CFG_VERIFY_ALWAYS;
    dd_open(&x, &o);
    dd_reserve_own(&x, 1, 200, 50, 1);
    compute(1);
    dd_check(&x);
    x.seen = x.n_said;
    end(1);
    dd_reserve_own(&x, 2, 200, 50, 1); /* finds the pages of the first */
    compute(2);
    ck_assert_int_eq(dd_ticket(&x, 2)->state, SL_TICKET_CHECKING);
    dd_reserve_own(&x, 3, 130, 50, 3);
    x.fail_open = SL_ERR_EXHAUSTED;
    step();
    ck_assert_int_eq(x.fail_open, SL_OK); /* it was tried */
    ck_assert_int_eq(dd_ticket(&x, 3)->state, SL_TICKET_PROMPT);
    compute(3);
    dd_check(&x);
    step();
    expect_stream(dd_ticket(&x, 2), 200, 1);
    expect_stream(dd_ticket(&x, 3), 130, 3);
    x.seen = x.n_said;
    end(2);
    end(3);
    dd_close(&x);
}
END_TEST

/* A worker of role both also takes prompts that a prefill worker ships; a decode worker computes none. */
START_TEST(with_and_without_a_writer)
{
    open_both();
    dd_verified(&x, 1, 130, 50, 1);
    dd_reserve_own(&x, 2, 130, 50, 2);
    dd_expect(&x, SL_MSG_RESERVED, 2);
    dd_commit(&x, 2, DD_WRITER, 0); /* it has no writer */
    ck_assert_int_eq(dd_ticket(&x, 2)->state, SL_TICKET_PROMPT);
    step();
    dd_expect(&x, SL_MSG_TOKENS, 1);
    end(1);
    end(2);
    dd_close(&x);
    o = dd_defaults();
    dd_open(&x, &o);
    dd_reserve_own(&x, 3, 130, 50, 3);
    const dd_said *s = dd_expect(&x, SL_MSG_FAILED, 3);
    ck_assert(!s->retryable && s->status == SL_ERR_INVALID);
    dd_close(&x);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("prompts");
    TCase *t = tcase_create("prompts");
    tcase_add_test(t, from_reserve_to_done);
    tcase_add_test(t, a_long_prompt_does_not_stop_a_stream);
    tcase_add_test(t, the_bound_holds_only_while_a_request_decodes);
    tcase_add_loop_test(t, abort_in_every_state, 0, 4);
    tcase_add_test(t, router_lost);
    tcase_add_test(t, prefixes_are_reused);
    tcase_add_loop_test(t, damaged_prefix, 0, 2);
    tcase_add_test(t, failures);
    tcase_add_test(t, waiting_and_draining);
    tcase_add_test(t, slots);
    tcase_add_test(t, prompts_hold_the_device);
    tcase_add_test(t, a_checked_prompt_holds_the_device);
    tcase_add_test(t, with_and_without_a_writer);
    suite_add_tcase(s, t);
    return run_suite(s);
}
