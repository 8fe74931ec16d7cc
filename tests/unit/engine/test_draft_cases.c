/*
 * Streams with drafts against those without, for drawn cases: the family, formats, layout and policy; of each request its sampling
 * settings, penalties, bias, constraint, log-probabilities and prompt; and for every step who is in it, how many tokens are drafted, by whom
 * (the MTP layer, where there is one; somebody who is right as often as the case says; or at random), how much of a prompt is computed,
 * and whether a request is spilled, begins again on pages that it kept (retracted, resumed), or loses them all (its worker died). Each token
 * and its log-probabilities have the bits of a model without an MTP layer that computes one request alone, one token at a time.
 *
 * A case is its number. SLUICE_TEST_CASES=FIRST:COUNT runs others than the suite's; a failure names its case. Run from the repository's
 * root.
 */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fix.h"
#include "late.h"
#include "tests/unit/run_suite.h"

enum { STREAMS = 3, MOST = 5, CONTEXT = 320, PROMPT = 150, OUTPUT = 40, MASK_WORDS = 64 };
enum { CASES = RUN_SUITE_SANITIZED ? 12 : 48 };

#define DIR(name) "tests/golden/model/" name

/* list: as the kinds of test_several.c; 0: the model's index_topk. block: tokens of a row. drafts: it has an MTP layer. */
static const struct family {
    const char *dir, *algorithm;
    int32_t list, block;
    bool drafts, gqa;
} families[] = {
    {DIR("ds-mtp"), "dsa", 0, 1, true, false},
    {DIR("glm-mtp"), "dsa", 0, 1, true, false},
    {DIR("ds-mtp"), "dense", CONTEXT, 1, true, false},
    {DIR("hy4-share"), "dsa", 0, 1, false, false},
    {DIR("axk2-light"), "dsa", 0, 1, false, false},
    {DIR("m3-lists"), "msa", 20, 4, false, true},
    {DIR("qwen4-ngram"), "pooled", 36, 4, false, true},
    {DIR("v4-flash"), "dense", CONTEXT, 1, false, true},
    {DIR("llama-odd"), "dense", CONTEXT, 1, false, true},
    {DIR("glm5-flash"), "pooled", CONTEXT, 1, false, false},
};

typedef struct stream {
    sl_sampling how;
    int32_t prompt, end; /* tokens of the prompt, and with the output */
    int32_t ids[CONTEXT];
    sl_sampled want[CONTEXT]; /* what was chosen for each position after the prompt */
    int32_t known;            /* tokens that the request has */
    bool masked, hot;
    uint32_t right; /* percent of the drafts of somebody who knows */
    fix_run run;
    uint32_t mask[MASK_WORDS];
} stream;

/* A step of a stream: the first n tokens of `ids` follow its rows. */
typedef struct turn {
    stream *s;
    int32_t ids[PROMPT + OUTPUT], n, drafts;
    int32_t output[OUTPUT + MOST]; /* of the request, and the drafts */
    sl_step_sample sample[MOST];
} turn;

static fix f;
static stream streams[STREAMS];
static const struct family *family;
static uint64_t number, dice, totals[4]; /* cases, tokens, drafts, drafts that stood */

static uint32_t roll(uint32_t n)
{
    dice ^= dice << 13, dice ^= dice >> 7, dice ^= dice << 17;
    return (uint32_t)(dice >> 20) % n;
}

static float between(float low, float high)
{
    return low + (high - low) * (float)roll(1000) / 1000;
}

static void must(sl_status st, const sl_err *err)
{
    if (st != SL_OK)
        ck_abort_msg("case %lu: %s", (unsigned long)number, err->text);
}

/* ---- what a case is ---- */

static void draw_sampling(sl_sampling *s, int32_t vocab)
{
    sl_sampling_default(s);
    s->seed = roll(1u << 20);
    s->temperature = roll(3) ? between(0.2f, 1.5f) : 0;
    s->top_k = roll(3) ? 0 : 1 + (int32_t)roll(40);
    s->top_p = roll(3) ? 1 : between(0.05f, 1);
    s->min_p = roll(4) ? 0 : between(0, 0.5f);
    s->frequency_penalty = roll(3) ? 0 : between(-2, 2);
    s->presence_penalty = roll(3) ? 0 : between(-2, 2);
    s->repetition_penalty = roll(3) ? 1 : between(0.5f, 2);
    s->n_logprobs = (int32_t)roll(8) - 1;
    s->min_tokens = roll(3) ? 0 : (int32_t)roll(OUTPUT);
    s->ignore_eos = roll(2);
    sl_logit_bias bias[6];
    const uint32_t n = roll(2) ? 0 : roll(7), from = roll((uint32_t)vocab);
    for (uint32_t i = 0; i < n; i++)
        bias[i] = (sl_logit_bias){(int32_t)((from + 3 * i) % (uint32_t)vocab), roll(4)   ? between(-8, 8)
                                                                               : roll(2) ? 100
                                                                                         : -100};
    ck_assert_int_eq(sl_sampling_set_bias(s, bias, n), SL_OK);
    const int32_t stops[] = {(int32_t)roll((uint32_t)vocab)};
    ck_assert_int_eq(sl_sampling_set_stop_ids(s, stops, roll(2)), SL_OK);
}

static fix_opts draw_engine(void)
{
    static const sl_row_format mla[] = {SL_ROW_MLA_F32, SL_ROW_MLA_BF16, SL_ROW_MLA_FP8},
                               gqa[] = {SL_ROW_GQA_F32, SL_ROW_GQA_BF16};
    family = &families[roll(2) ? roll(3) : roll(SL_COUNT(families))];
    const bool whole = !strcmp(family->algorithm, "msa") || !strcmp(family->algorithm, "pooled");
    const uint32_t format = roll(family->gqa ? 2 : 3);
    const int32_t spare = (MOST - 1 + family->block - 1) / family->block;
    fix_opts o = {.dir = family->dir, .algorithm = family->algorithm, .threads = 1, .item_tokens = MOST};
    o.rows = family->gqa ? gqa[format] : mla[format];
    o.act = format ? SL_BF16 : SL_F32;
    o.index = format && roll(2) && !whole && family->drafts ? SL_INDEX_OFFICIAL : SL_INDEX_PLAIN;
    o.layout = roll(2) ? SL_LAYOUT_LAYER_FIRST : SL_LAYOUT_PAGE_FIRST;
    o.policy = roll(2) ? SL_EVICT_CLOCK : SL_EVICT_LRU;
    o.graphs = roll(2) ? SL_GRAPHS_PAD : SL_GRAPHS_AUTO;
    o.groups = (int32_t)roll(4);
    o.wrap =
        family->drafts && roll(3) == 0 ? late_wrap : NULL; /* of the ops of others it keeps no parameters */
    o.max_seqs = o.max_hot = STREAMS, o.max_tokens = o.max_context = CONTEXT;
    o.tail_rows = (2 * spare + 1 + (int32_t)roll(4)) * family->block;
    sl_model_config cfg;
    sl_err err = {0};
    must(sl_model_config_load(o.dir, &cfg, &err), &err);
    o.hot_rows = MOST * (family->list ? family->list : cfg.index.topk) + (int32_t)roll(3) * family->block;
    o.hot_rows = o.hot_rows < CONTEXT ? o.hot_rows : CONTEXT;
    return o;
}

/* Of a third of the requests a constraint allows every fourth token, and others after each token. */
static sl_token_mask mask_of(void *bits)
{
    return (sl_token_mask){.bits = bits};
}

static void make_mask(stream *s, int32_t known)
{
    memset(s->mask, 0, sizeof s->mask);
    for (int32_t v = (s->ids[known - 1] + known) % 4; v < f.cfg->vocab_size; v += 4)
        s->mask[v / 32] |= 1u << v % 32;
}

/* What is to be chosen after the first `known` tokens, which are those of the prompt and of `output`. */
static void want_sample(stream *s, sl_step_sample *w, const int32_t *output, int32_t known)
{
    *w = (sl_step_sample){.sampling = &s->how,
                          .history = {s->ids, (size_t)s->prompt, output, (size_t)(known - s->prompt)}};
    if (!s->masked)
        return;
    make_mask(s, known);
    w->mask = mask_of, w->mask_ctx = s->mask;
}

/* ---- without drafts ---- */

static void reference(stream *s)
{
    sl_err err = {0};
    s->known = s->prompt;
    fix_seq_open(&f, &s->run, SL_RESIDENT, 0, s->end);
    for (int32_t len = 0; s->known < s->end; len = s->known - 1) {
        sl_step_sample w;
        sl_step_item it = {
            .seq = s->run.seq, .tokens = s->ids + len, .n_tokens = s->known - len, .sample = &w};
        want_sample(s, &w, s->ids + s->prompt, s->known);
        must(sl_engine_step(f.engine, &it, 1, NULL, &err), &err);
        s->want[s->known] = w.out;
        if (w.out.fault != SL_SAMPLE_FINE) /* the stream ends: bias and mask may leave nothing */
            s->end = s->known;
        else
            s->ids[s->known++] = w.out.id;
    }
    fix_seq_close(&f, &s->run, false);
}

static void draw_streams(const fix_opts *o)
{
    fix_opts plain = *o;
    plain.draft = false, plain.wrap = NULL;
    fix_open(&f, &plain);
    ck_assert_int_le(f.cfg->vocab_size, 32 * MASK_WORDS);
    for (int i = 0; i < STREAMS; i++) {
        stream *s = &streams[i];
        *s = (stream){.prompt = 1 + (int32_t)roll(PROMPT), .right = roll(101), .masked = roll(4) == 0};
        s->end = s->prompt + 1 + (int32_t)roll(OUTPUT);
        draw_sampling(&s->how, f.cfg->vocab_size);
        for (int32_t k = 0; k < s->prompt; k++)
            s->ids[k] = (int32_t)roll((uint32_t)f.cfg->vocab_size);
        reference(s);
    }
    fix_close(&f);
}

/* ---- with drafts ---- */

static void begin(stream *s, int32_t cached)
{
    s->hot = roll(2);
    fix_seq_open(&f, &s->run, s->hot ? SL_HIERARCHICAL : SL_RESIDENT, cached, s->known);
}

/* It is spilled, is retracted and resumed on a part of its pages, or its worker has died. */
static void shake(stream *s)
{
    sl_err err = {0};
    const bool states = sl_engine_state_bytes(f.engine) > 0;
    const int32_t len = sl_engine_seq_len(s->run.seq);
    switch (roll(24)) {
    case 0:
        if (!s->hot)
            must(sl_engine_seq_spill(f.engine, s->run.seq, &err), &err);
        s->hot = true;
        break;
    case 1:
        if (states)
            break;
        fix_seq_close(&f, &s->run, true);
        begin(s, roll(2) ? len : len / SL_PAGE_TOKENS * SL_PAGE_TOKENS);
        break;
    case 2:
        fix_seq_close(&f, &s->run, false);
        begin(s, 0);
    }
}

/* Drafts that are right as often as the stream says, and after a wrong one anything. */
static void draft_by_hand(turn *t)
{
    const stream *s = t->s;
    for (int32_t k = 1; k <= t->drafts; k++) {
        const int32_t at = s->known - 1 + k;
        const bool right = at < s->end && roll(100) < s->right;
        t->ids[k] = right ? s->ids[at] : (int32_t)roll((uint32_t)f.cfg->vocab_size);
    }
}

/* The next step of s: a part of what it has no rows of, or its last token and drafts. s->ids are the whole stream without drafts. */
static void make_turn(turn *t, stream *s)
{
    const int32_t len = sl_engine_seq_len(s->run.seq), left = s->known - len,
                  most = s->hot ? MOST : CONTEXT / STREAMS - MOST;
    *t = (turn){.s = s, .n = 1 + (int32_t)roll((uint32_t)(left < most ? left : most))};
    memcpy(t->ids, s->ids + len, (size_t)t->n * sizeof *t->ids);
    if (left == 1 && !s->masked)
        t->drafts = (int32_t)roll(MOST);
    t->n += t->drafts;
    fix_grow(&f, &s->run, len + t->n);
    draft_by_hand(t);
}

static void draft_by_layer(turn *turns, int n)
{
    sl_draft_item items[STREAMS];
    sl_err err = {0};
    int m = 0;
    for (int i = 0; i < n; i++)
        if (turns[i].drafts && family->drafts && roll(3))
            items[m++] = (sl_draft_item){.seq = turns[i].s->run.seq,
                                         .token = turns[i].ids[0],
                                         .n = turns[i].drafts,
                                         .sampling = &turns[i].s->how,
                                         .out = turns[i].ids + 1};
    if (m)
        must(sl_engine_draft(f.engine, items, m, &err), &err);
}

static void differs(const turn *t, int32_t k, const sl_sampled *have, const sl_sampled *want)
{
    const stream *s = t->s;
    ck_abort_msg(
        "case %lu, %s: request %d, token %d after a prompt of %d, %d of %d in its step%s: token %d, log-probability %.9g, "
        "fault %u; without drafts %d, %.9g, %u",
        (unsigned long)number, family->dir, (int)(s - streams), s->known - s->prompt, s->prompt, k, t->n,
        s->hot ? ", rows swapped in" : "", have->id, (double)have->logprob, have->fault, want->id,
        (double)want->logprob, want->fault);
}

/* What the step chose, up to the first wrong draft; the rest is taken back. */
static void settle(turn *t)
{
    sl_err err = {0};
    stream *s = t->s;
    if (sl_engine_seq_len(s->run.seq) < s->known) /* a part of a prompt */
        return;
    const int32_t before = s->known;
    for (int32_t k = 0; k <= t->drafts && s->known < s->end; k++) {
        const sl_sampled *have = &t->sample[k].out, *want = &s->want[s->known];
        if (memcmp(have, want, sizeof *want) != 0)
            differs(t, k, have, want);
        s->known++;
        if (k < t->drafts && t->ids[t->n - t->drafts + k] != want->id)
            break;
    }
    totals[1] += (uint64_t)(s->known - before);
    totals[2] += (uint64_t)t->drafts, totals[3] += (uint64_t)(s->known - before - 1);
    if (t->drafts)
        must(sl_engine_seq_truncate(f.engine, s->run.seq, s->known - 1, &err), &err);
}

static void put_output(turn *t)
{
    const stream *s = t->s;
    const size_t n = (size_t)(s->known - s->prompt);
    memcpy(t->output, s->ids + s->prompt, n * sizeof *t->output);
    memcpy(t->output + n, t->ids + t->n - t->drafts, (size_t)t->drafts * sizeof *t->output);
}

static void one_step(void)
{
    static turn turns[STREAMS];
    sl_step_item items[STREAMS];
    sl_err err = {0};
    int n = 0;
    for (int i = 0; i < STREAMS; i++)
        if (streams[i].known < streams[i].end && roll(5))
            make_turn(&turns[n++], &streams[i]);
    draft_by_layer(turns, n);
    for (int i = 0; i < n; i++) {
        turn *t = &turns[i];
        stream *s = t->s;
        const bool chooses = sl_engine_seq_len(s->run.seq) + t->n >= s->known;
        items[i] = (sl_step_item){.seq = s->run.seq, .tokens = t->ids, .n_tokens = t->n};
        if (!chooses)
            continue;
        items[i].sample = t->sample, items[i].n_samples = 1 + t->drafts;
        put_output(t);
        for (int32_t k = 0; k <= t->drafts; k++)
            want_sample(s, &t->sample[k], t->output, s->known + k);
    }
    if (n == 0)
        return;
    must(sl_engine_step(f.engine, items, n, NULL, &err), &err);
    for (int i = 0; i < n; i++)
        settle(&turns[i]);
    for (int i = 0; i < n; i++)
        if (turns[i].s->known < turns[i].s->end)
            shake(turns[i].s);
}

/* ---- cases ---- */

static void run_case(uint64_t n)
{
    number = n;
    dice = 0x9e3779b97f4a7c15ull * (n + 1);
    fix_opts o = draw_engine();
    draw_streams(&o);
    o.draft = family->drafts;
    fix_open(&f, &o);
    const int32_t pages = f.n_free;
    int32_t left = 1;
    for (int i = 0; i < STREAMS; i++) {
        streams[i].known = streams[i].prompt;
        begin(&streams[i], 0);
    }
    for (int steps = 0; left > 0; steps++) {
        if (steps > 100 * CONTEXT)
            ck_abort_msg("case %lu: no end", (unsigned long)number);
        one_step();
        left = 0;
        for (int i = 0; i < STREAMS; i++)
            left += streams[i].end - streams[i].known;
    }
    for (int i = 0; i < STREAMS; i++) {
        fix_seq_close(&f, &streams[i].run, false);
        sl_sampling_free(&streams[i].how);
    }
    ck_assert_int_eq(f.n_free, pages);
    fix_close(&f);
    totals[0]++;
}

START_TEST(streams_are_those_without_drafts)
{
    unsigned long first = 0, count = CASES;
    const char *cases = getenv("SLUICE_TEST_CASES");
    if (cases && sscanf(cases, "%lu:%lu", &first, &count) != 2)
        ck_abort_msg("SLUICE_TEST_CASES: \"%s\" is no FIRST:COUNT", cases);
    for (uint64_t n = first; n < first + count; n++)
        run_case(n);
    ck_assert_uint_eq(totals[0], count);
    if (!cases) { /* else a case alone may have few */
        ck_assert_uint_gt(totals[2], totals[1] / 4);
        ck_assert_uint_gt(totals[3], totals[2] / 10);
        ck_assert_uint_lt(totals[3], totals[2]);
    }
}
END_TEST

int main(void)
{
    Suite *s = suite_create("engine/draft_cases");
    TCase *c = tcase_create("cases");
    tcase_set_timeout(c, 3600);
    tcase_add_test(c, streams_are_those_without_drafts);
    suite_add_tcase(s, c);
    return run_suite(s);
}
