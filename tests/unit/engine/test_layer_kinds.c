/*
 * Layers of four classes through the engine on the CPU (toy_layers.h): prompts in chunks, decode, spill and padded steps give
 * the tokens of a restatement, token by token; so do sequences in one batch, and sequences of which tokens are taken back, over
 * 2,000 steps with spills. What cannot be is refused by name: more tokens are not taken back than have versions, and no step is
 * computed from a state that does not stand for the sequence's tokens. The device memory is that of the plan. About 3 s.
 */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "engine/plan.h"
#include "fix.h"
#include "kernels/backend_impl.h"
#include "kvstore/snapshot.h"
#include "tests/unit/run_suite.h"
#include "toy_layers.h"

enum { CONTEXT = TOY_CONTEXT, PROMPT = 150, LENGTH = 300, SEQS = TOY_SEQS };

static void spill(fix *f, fix_run *r)
{
    sl_err err = {0};
    ck_assert_msg(sl_engine_seq_spill(f->engine, r->seq, &err) == SL_OK, "%s", err.text);
}

START_TEST(prefill_and_decode)
{
    static const int32_t chunks[] = {CONTEXT, 1, 7, 64, 50};
    fix f;
    fix_run r = {0};
    toy_text t;
    fix_opts o = toy_opts();
    o.graphs = _i % 2 ? SL_GRAPHS_PAD : SL_GRAPHS_OFF;
    toy_make_text(&t, PROMPT, LENGTH, (uint64_t)_i + 1);
    fix_open(&f, &o);
    fix_seq_open(&f, &r, SL_RESIDENT, 0, LENGTH);
    toy_feed(&f, &r, &t, PROMPT, chunks[_i]);
    toy_feed(&f, &r, &t, PROMPT + 30, 1);
    spill(&f, &r);
    toy_feed(&f, &r, &t, LENGTH, 1);
    sl_layer_stats layers[TOY_LAYERS];
    sl_engine_layer_stats_get(f.engine, layers);
    ck_assert_uint_gt(layers[1].misses, 0); /* sinks came from the host pages */
    ck_assert_uint_eq(layers[0].hits + layers[0].misses + layers[2].misses, 0);
    fix_seq_close(&f, &r, false);
    fix_close(&f);
}
END_TEST

/* Sequences of other lengths, resident and hierarchical, that begin and end at other times: no sequence gets another's state. */
START_TEST(sequences_in_one_batch)
{
    fix f;
    fix_run r[SEQS] = {0};
    toy_text t[SEQS + 1];
    fix_opts o = toy_opts();
    o.graphs = SL_GRAPHS_PAD;
    fix_open(&f, &o);
    for (int i = 0; i <= SEQS; i++)
        toy_make_text(&t[i], 40 + 23 * i, LENGTH, (uint64_t)i + 100);
    for (int i = 0; i < SEQS; i++) {
        fix_seq_open(&f, &r[i], SL_RESIDENT, 0, LENGTH);
        toy_feed(&f, &r[i], &t[i], 40 + 23 * i, 33);
    }
    spill(&f, &r[1]);
    for (int step = 0; step < 120; step++) {
        sl_step_item it[SEQS];
        sl_err err = {0};
        if (step == 50) { /* another request takes the place of the first */
            fix_seq_close(&f, &r[0], false);
            fix_seq_open(&f, &r[0], SL_RESIDENT, 0, LENGTH);
            t[0] = t[SEQS];
            toy_feed(&f, &r[0], &t[0], 100, 11);
        }
        for (int i = 0; i < SEQS; i++)
            it[i] = (sl_step_item){.seq = r[i].seq,
                                   .tokens = t[i].ids + sl_engine_seq_len(r[i].seq),
                                   .n_tokens = 1,
                                   .want_logits = 1};
        ck_assert_msg(sl_engine_step(f.engine, it, SEQS, NULL, &err) == SL_OK, "%s", err.text);
        for (int i = 0; i < SEQS; i++)
            ck_assert_int_eq(fix_argmax(&f, it[i].logits), t[i].next[sl_engine_seq_len(r[i].seq) - 1]);
    }
    for (int i = 0; i < SEQS; i++)
        fix_seq_close(&f, &r[i], false);
    fix_close(&f);
}
END_TEST

/* The token goes from step to step on the device; each result is taken when the next step is in flight already. */
START_TEST(steps_in_flight)
{
    fix f;
    fix_run r = {0};
    toy_text t;
    fix_opts o = toy_opts();
    sl_sampling greedy;
    sl_step_sample chosen[2];
    sl_step_item items[2];
    sl_err err = {0};
    toy_make_text(&t, PROMPT, LENGTH, 21);
    fix_open(&f, &o);
    fix_seq_open(&f, &r, SL_RESIDENT, 0, LENGTH);
    toy_feed(&f, &r, &t, PROMPT, 64);
    spill(&f, &r);
    sl_sampling_default(&greedy);
    greedy.temperature = 0, greedy.ignore_eos = true;
    for (int32_t n = PROMPT; n < LENGTH; n++) {
        sl_step_sample *w = &chosen[n % 2];
        *w = (sl_step_sample){.sampling = &greedy,
                              .history = {t.ids, PROMPT, t.ids + PROMPT, (size_t)(n + 1 - PROMPT)}};
        items[n % 2] = (sl_step_item){.seq = r.seq, .n_tokens = 1, .follows = n > PROMPT, .sample = w};
        if (n == PROMPT)
            items[n % 2].tokens = t.ids + n;
        else
            ck_assert(sl_engine_can_follow(f.engine, &items[n % 2]));
        ck_assert_msg(sl_engine_submit(f.engine, &items[n % 2], 1, NULL, &err) == SL_OK, "%s", err.text);
        if (n == PROMPT)
            continue;
        ck_assert_msg(sl_engine_collect(f.engine, &err) == SL_OK, "%s", err.text);
        ck_assert_int_eq(chosen[(n - 1) % 2].out.id, t.next[n - 1]);
    }
    ck_assert_int_eq(sl_engine_collect(f.engine, &err), SL_OK);
    ck_assert_int_eq(chosen[(LENGTH - 1) % 2].out.id, t.next[LENGTH - 1]);
    fix_seq_close(&f, &r, false);
    fix_close(&f);
}
END_TEST

/* The hook says that a layer is done only when its host pages have what the step wrote, also of layers without attention. */
static int32_t hooked[TOY_LAYERS + 1], n_hooked;

static void on_layer(void *ctx, int32_t layer)
{
    (void)ctx;
    ck_assert_int_lt(n_hooked, TOY_LAYERS);
    hooked[n_hooked++] = layer;
}

START_TEST(every_layer_is_reported_once)
{
    fix f;
    fix_run r = {0};
    toy_text t;
    fix_opts o = toy_opts();
    sl_err err = {0};
    const sl_step_hooks hooks = {.layer_done = on_layer};
    toy_make_text(&t, 70, 71, 9);
    fix_open(&f, &o);
    fix_seq_open(&f, &r, SL_RESIDENT, 0, 70);
    sl_step_item it = {.seq = r.seq, .tokens = t.ids, .n_tokens = 70};
    n_hooked = 0;
    ck_assert_msg(sl_engine_step(f.engine, &it, 1, &hooks, &err) == SL_OK, "%s", err.text);
    ck_assert_int_eq(n_hooked, TOY_LAYERS);
    for (int l = 0; l < TOY_LAYERS; l++)
        ck_assert_int_eq(hooked[l], l);
    fix_seq_close(&f, &r, false);
    fix_close(&f);
}
END_TEST

static void refused(fix *f, fix_run *r, const toy_text *t, sl_status want, const char *says)
{
    sl_err err = {0};
    sl_step_item it = {
        .seq = r->seq, .tokens = t->ids + sl_engine_seq_len(r->seq), .n_tokens = 1, .want_logits = 1};
    ck_assert_int_eq(sl_engine_step(f->engine, &it, 1, NULL, &err), want);
    ck_assert_msg(strstr(err.text, says) != NULL, "%s", err.text);
}

/* A backend whose n-th writing of rows from now on fails. */
static int fail_after;

static sl_status failing_append(sl_backend *be, const void *params, sl_err *err)
{
    if (fail_after > 0 && --fail_after == 0)
        return sl_fail(err, SL_ERR_INTERNAL, "an op fails");
    return sl_backend_cpu.ops[SL_OP_GQA_APPEND]->run(be, params, err);
}

static void wrap(sl_backend *be)
{
    static sl_backend_desc desc;
    static sl_op_impl append;
    desc = sl_backend_cpu;
    append = *desc.ops[SL_OP_GQA_APPEND];
    append.run = failing_append;
    desc.ops[SL_OP_GQA_APPEND] = &append;
    be->desc = &desc;
}

START_TEST(states_that_do_not_fit_are_refused)
{
    fix f;
    fix_run r = {0};
    toy_text t;
    fix_opts o = toy_opts();
    sl_err err = {0};
    o.wrap = wrap;
    o.item_tokens = 2, o.hot_rows = 2 * (TOY_SINKS + TOY_RECENT), o.tail_rows = 8;
    toy_make_text(&t, PROMPT, LENGTH, 3);
    fix_open(&f, &o);
    fix_seq_open(&f, &r, SL_RESIDENT, 0, LENGTH);
    toy_feed(&f, &r, &t, PROMPT, 64);
    ck_assert_int_eq(sl_engine_seq_truncate(f.engine, r.seq, PROMPT - 3, &err), SL_ERR_UNSUPPORTED);
    ck_assert_msg(strstr(err.text, "kept for the last 2 tokens of a step, of which it has 2: they are not "
                                   "known for 147 tokens") != NULL,
                  "%s", err.text);
    ck_assert_int_eq(sl_engine_seq_truncate(f.engine, r.seq, PROMPT, &err), SL_OK);
    ck_assert_int_eq(sl_engine_seq_truncate(f.engine, r.seq, PROMPT - 1, &err), SL_OK);
    ck_assert_int_eq(sl_engine_seq_truncate(f.engine, r.seq, PROMPT - 3, &err), SL_ERR_UNSUPPORTED);
    ck_assert_int_eq(sl_engine_seq_truncate(f.engine, r.seq, PROMPT - 2, &err), SL_OK);
    toy_feed(&f, &r, &t, PROMPT + 3, 1);
    ck_assert_int_eq(sl_engine_seq_truncate(f.engine, r.seq, PROMPT + 1, &err), SL_ERR_UNSUPPORTED);
    ck_assert_int_eq(sl_engine_seq_truncate(f.engine, r.seq, PROMPT + 2, &err), SL_OK);
    toy_feed(&f, &r, &t, PROMPT + 3, 1);
    fail_after = 2; /* in the second layer with rows: others have changed their states already */
    refused(&f, &r, &t, SL_ERR_INTERNAL, "an op fails");
    ck_assert_int_eq(fail_after, 0);
    ck_assert_int_eq(sl_engine_seq_len(r.seq), PROMPT + 3);
    refused(&f, &r, &t, SL_ERR_INVALID, "states of a sequence of 153 tokens are not known");
    fix_seq_close(&f, &r, true);
    fix_seq_open(&f, &r, SL_RESIDENT, 128, LENGTH);
    refused(&f, &r, &t, SL_ERR_INVALID, "states of a sequence of 128 tokens are not known");
    fix_seq_close(&f, &r, true);
    fix_seq_open(&f, &r, SL_RESIDENT, 0, LENGTH);
    ck_assert_int_eq(sl_engine_seq_load(f.engine, r.seq, 64, &err), SL_OK);
    refused(&f, &r, &t, SL_ERR_INVALID, "states of a sequence of 64 tokens stand for 0 tokens");
    fix_seq_close(&f, &r, true);
    fix_seq_open(&f, &r, SL_RESIDENT, 0, LENGTH);
    toy_feed(&f, &r, &t, LENGTH, 37);
    fix_seq_close(&f, &r, false);
    fix_close(&f);
}
END_TEST

/* ---- tokens that are taken back ---- */

enum { MOST = 4, CUT_STEPS = 2000 };

typedef struct cut_stream {
    fix_run run;
    toy_text text;
    bool hot;
    uint32_t crc[LENGTH / SL_PAGE_TOKENS][TOY_LAYERS];
} cut_stream;

static uint64_t rng;

static int32_t roll(int32_t n)
{
    rng ^= rng << 13, rng ^= rng >> 7, rng ^= rng << 17;
    return (int32_t)(rng % (uint64_t)n);
}

static uint32_t crc_of(const fix *f, const cut_stream *s, int32_t page, int32_t layer)
{
    return sl_arena_page_crc(f->arena, s->run.pages[page], layer, SL_PAGE_TOKENS);
}

/* What the pages of the text contain when no token is taken back. */
static void make_stream(fix *f, cut_stream *s, int i)
{
    toy_make_text(&s->text, 60 + 31 * i, LENGTH, 40 + (uint64_t)i);
    fix_seq_open(f, &s->run, SL_RESIDENT, 0, LENGTH);
    toy_feed(f, &s->run, &s->text, LENGTH, CONTEXT);
    for (int32_t p = 0; p < LENGTH / SL_PAGE_TOKENS; p++)
        for (int32_t l = 0; l < TOY_LAYERS; l++)
            s->crc[p][l] = crc_of(f, s, p, l);
    fix_seq_close(f, &s->run, false);
}

/* An item of tokens of the text, of which the last `wrong` ones are others. */
static int32_t cut_item(const cut_stream *s, int32_t *tokens, int32_t *wrong)
{
    const int32_t len = sl_engine_seq_len(s->run.seq), most = s->hot || roll(5) ? MOST : 50;
    int32_t n = 1 + roll(most);
    n = n < LENGTH - len ? n : LENGTH - len;
    *wrong = roll(3) ? roll((n < MOST ? n : MOST) + 1) : 0;
    for (int32_t k = 0; k < n; k++) {
        const int32_t is = s->text.ids[len + k];
        tokens[k] = k < n - *wrong ? is : (is + 1 + roll(TOY_VOCAB - 1)) % TOY_VOCAB;
    }
    return n;
}

/* Takes back what was wrong, and sometimes more, in one or two calls. */
static void cut(fix *f, cut_stream *s, const sl_step_item *it, int32_t wrong)
{
    sl_err err = {0};
    const int32_t len = sl_engine_seq_len(s->run.seq), first = len - it->n_tokens;
    const int32_t back = roll(8) ? wrong : it->n_tokens < MOST ? it->n_tokens : MOST;
    for (int32_t k = 0; k < it->n_tokens - wrong; k++)
        if (k >= it->n_tokens - it->want_logits)
            ck_assert_int_eq(
                fix_argmax(f, it->logits + (k - it->n_tokens + it->want_logits) * f->cfg->vocab_size),
                s->text.next[first + k]);
    if (back > 1 && roll(3) == 0)
        ck_assert_msg(sl_engine_seq_truncate(f->engine, s->run.seq, len - 1, &err) == SL_OK, "%s", err.text);
    ck_assert_msg(sl_engine_seq_truncate(f->engine, s->run.seq, len - back, &err) == SL_OK, "%s", err.text);
}

static void end_stream(fix *f, cut_stream *s)
{
    for (int32_t p = 0; p < LENGTH / SL_PAGE_TOKENS; p++)
        for (int32_t l = 0; l < TOY_LAYERS; l++)
            ck_assert_uint_eq(crc_of(f, s, p, l), s->crc[p][l]);
    fix_seq_close(f, &s->run, false);
    s->hot = false;
}

static void cut_step(fix *f, cut_stream *s, int *ended)
{
    static int32_t tokens[SEQS][50];
    sl_step_item it[SEQS];
    cut_stream *who[SEQS];
    int32_t wrong[SEQS], n = 0;
    sl_err err = {0};
    for (int i = 0; i < SEQS; i++) {
        if (!s[i].run.seq)
            fix_seq_open(f, &s[i].run, SL_RESIDENT, 0, LENGTH);
        if (roll(5) == 0)
            continue;
        who[n] = &s[i];
        it[n] = (sl_step_item){.seq = s[i].run.seq, .tokens = tokens[n]};
        it[n].n_tokens = cut_item(&s[i], tokens[n], &wrong[n]);
        it[n].want_logits = it[n].n_tokens < MOST ? it[n].n_tokens : MOST;
        n++;
    }
    if (n == 0)
        return;
    ck_assert_msg(sl_engine_step(f->engine, it, n, NULL, &err) == SL_OK, "%s", err.text);
    for (int i = 0; i < n; i++) {
        cut(f, who[i], &it[i], wrong[i]);
        if (sl_engine_seq_len(who[i]->run.seq) == LENGTH) {
            end_stream(f, who[i]);
            ++*ended;
        } else if (!who[i]->hot && roll(25) == 0) {
            spill(f, &who[i]->run);
            who[i]->hot = true;
        }
    }
}

START_TEST(tokens_are_taken_back)
{
    static cut_stream s[SEQS];
    fix f;
    fix_opts o = toy_opts();
    int ended = 0;
    o.item_tokens = MOST, o.hot_rows = MOST * (TOY_SINKS + TOY_RECENT), o.tail_rows = 2 * MOST;
    o.graphs = _i ? SL_GRAPHS_PAD : SL_GRAPHS_OFF;
    rng = 99 + (uint64_t)_i;
    memset(s, 0, sizeof s);
    fix_open(&f, &o);
    for (int i = 0; i < SEQS; i++)
        make_stream(&f, &s[i], i);
    for (int step = 0; step < CUT_STEPS / 2; step++)
        cut_step(&f, s, &ended);
    ck_assert_int_gt(ended, 10);
    for (int i = 0; i < SEQS; i++)
        if (s[i].run.seq)
            fix_seq_close(&f, &s[i].run, false);
    fix_close(&f);
}
END_TEST

START_TEST(the_plan_counts_states)
{
    fix f;
    fix_opts o = toy_opts();
    sl_err err = {0};
    sl_plan p, without;
    fix_open(&f, &o);
    sl_plan_in in = {.cfg = f.cfg,
                     .cache = sl_engine_cache_dims(f.cfg, o.rows, o.index),
                     .algorithm = sl_algo_find("streaming_llm"),
                     .gates = o.gates,
                     .max_context = CONTEXT,
                     .max_step_tokens = CONTEXT,
                     .max_seqs = SEQS,
                     .gpu_bytes = 64 << 20,
                     .host_bytes = 64 << 20};
    ck_assert_msg(sl_plan_make(&in, &p, &err) == SL_OK, "%s", err.text);
    const uint64_t table = (4 * (8 + TOY_TABLE) + 255) / 256 * 256;
    ck_assert_uint_eq(p.state_device, 2 * table + 256); /* two layers with a state, one with a ring */
    ck_assert_int_eq(sl_engine_state_bytes(f.engine), 2 * 4 * (8 + TOY_TABLE) + 4 * TOY_RING);
    ck_assert_int_eq(sl_snapshot_pages(sl_arena_geometry(f.arena)), 2);
    ck_assert_uint_eq(p.snapshot_host, 2 * (uint64_t)p.page_bytes);
    /* A page: two layers of rows, two layers with 16 units of 4 tokens and a part of a unit of 128. */
    ck_assert_int_eq(p.page_bytes, 2 * 64 * 2 * TOY_HEADS * TOY_DIM * 4 + 2 * (16 + 1) * 8);
    in.max_item_tokens = 3; /* three versions, and those of four open units */
    ck_assert_msg(sl_plan_make(&in, &without, &err) == SL_OK, "%s", err.text);
    ck_assert_uint_eq(without.state_device, 4 * (p.state_device + 4 * 256));
    in.max_item_tokens = 0;
    in.cache.classes[2].state.bytes = 256;
    ck_assert_msg(sl_plan_make(&in, &without, &err) == SL_OK, "%s", err.text);
    const uint64_t less = 2 * (table - 256);
    ck_assert_uint_eq(p.rows[0].resident_bytes, without.rows[0].resident_bytes + less);
    ck_assert_uint_eq(p.rows[0].hierarchical_bytes, without.rows[0].hierarchical_bytes + less);
    sl_engine_opts eo;
    in.gpu_bytes = p.fixed_bytes + SEQS * p.state_device; /* no room for anything but states */
    ck_assert_msg(sl_plan_make(&in, &p, &err) == SL_OK, "%s", err.text);
    ck_assert_int_eq(sl_plan_pools(&p, SL_HIERARCHICAL, SEQS, CONTEXT, &eo, &err), SL_ERR_DEVICE_MEMORY);
    ck_assert_int_eq(sl_plan_pools(&p, SL_HIERARCHICAL, 1, CONTEXT, &eo, &err), SL_OK);
    fix_close(&f);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("layer_kinds");
    TCase *t = tcase_create("layer_kinds");
    tcase_add_unchecked_fixture(t, toy_setup, toy_teardown);
    tcase_set_timeout(t, 120);
    tcase_add_loop_test(t, prefill_and_decode, 0, 5);
    tcase_add_test(t, sequences_in_one_batch);
    tcase_add_test(t, steps_in_flight);
    tcase_add_test(t, every_layer_is_reported_once);
    tcase_add_test(t, states_that_do_not_fit_are_refused);
    tcase_add_loop_test(t, tokens_are_taken_back, 0, 2);
    tcase_add_test(t, the_plan_counts_states);
    suite_add_tcase(s, t);
    return run_suite(s);
}
