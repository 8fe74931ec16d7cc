/*
 * Drafts of the MTP layer: the tokens and logits of the golden files; streams that are, bit by bit, those of a model without the
 * layer, whatever is drafted, for every kind of parameters, resident and hierarchical, spilled, in batches, on a prefix that is
 * read again, on a device that computes as late as it may; and pages that have no trace of what was taken back. Run from the repository's root.
 */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/engine_impl.h"
#include "fix.h"
#include "late.h"
#include "model/safetensors.h"
#include "tests/unit/run_suite.h"

enum { N = 5, PROMPT = 45, LONG = 150, MOST = 5 };

#define DIR(name) "tests/golden/model/" name

static const fix_opts kinds[] = {
    {.dir = DIR("ds-mtp"), .graphs = SL_GRAPHS_PAD},
    {.dir = DIR("glm-mtp"),
     .rows = SL_ROW_MLA_BF16,
     .index = SL_INDEX_OFFICIAL,
     .act = SL_BF16,
     .policy = SL_EVICT_CLOCK},
    {.dir = DIR("ds-mtp"),
     .rows = SL_ROW_MLA_FP8,
     .index = SL_INDEX_OFFICIAL,
     .act = SL_BF16,
     .layout = SL_LAYOUT_LAYER_FIRST},
    {.dir = DIR("glm-mtp"), .graphs = SL_GRAPHS_PAD, .groups = 2},
    {.dir = DIR("ds-mtp"), .wrap = late_wrap, .graphs = SL_GRAPHS_PAD, .groups = 2}, /* as a GPU computes */
};

static fix f;
static fix_text text[N];
static fix_run run[N];
static sl_sampling how[N];
static sl_sampled stream[N][LONG];
static uint64_t steps, drafted, accepted;
static uint32_t dice;

static uint32_t roll(uint32_t n)
{
    dice = dice * 1664525u + 1013904223u;
    return (dice >> 8) % n;
}

static void make_parameters(void)
{
    static const sl_logit_bias bias[] = {{3, 4.5f}, {7, -100}, {11, 2}};
    for (int i = 0; i < N; i++) {
        sl_sampling_default(&how[i]);
        how[i].seed = 1000 + (uint64_t)i, how[i].n_logprobs = i - 1;
        how[i].temperature = i % 2 ? 0.5f : 0;
    }
    how[2].repetition_penalty = 1.2f, how[2].frequency_penalty = 0.2f, how[2].temperature = 0.8f;
    how[3].top_p = 0.9f, how[3].top_k = 20;
    how[4].min_tokens = 60;
    ck_assert_int_eq(sl_sampling_set_bias(&how[4], bias, 3), SL_OK);
}

static void start(const fix_opts *kind, bool draft)
{
    fix_opts o = *kind;
    o.draft = draft, o.max_seqs = o.max_hot = N, o.max_context = 400;
    o.item_tokens = MOST, o.hot_rows = 16 * MOST, o.tail_rows = 16;
    fix_open(&f, &o);
    memset(run, 0, sizeof run);
}

static void stop(void)
{
    for (int i = 0; i < N; i++)
        if (run[i].seq)
            fix_seq_close(&f, &run[i], false);
    fix_close(&f);
}

/* A step that appends the last `n` tokens of each text (the drafts among them), and chooses what follows the last `samples`. */
static void step(const int *who, const int32_t *n, const int32_t *samples, sl_step_sample out[][MOST],
                 int count)
{
    sl_step_item items[N];
    sl_err err = {0};
    for (int k = 0; k < count; k++) {
        const fix_text *t = &text[who[k]];
        items[k] = (sl_step_item){.seq = run[who[k]].seq,
                                  .tokens = t->ids + t->n - n[k],
                                  .n_tokens = n[k],
                                  .n_samples = samples[k]};
        items[k].sample = samples[k] ? out[k] : NULL;
        for (int32_t j = 0; j < samples[k]; j++)
            out[k][j] = (sl_step_sample){
                .sampling = &how[who[k]],
                .history = {t->ids, PROMPT, t->ids + PROMPT, (size_t)(t->n - PROMPT - (samples[k] - 1 - j))}};
    }
    ck_assert_msg(sl_engine_step(f.engine, items, count, NULL, &err) == SL_OK, "%s", err.text);
    steps++;
}

static void open_seq(int i, sl_residency residency, int32_t cached)
{
    static sl_step_sample out[1][MOST];
    fix_seq_open(&f, &run[i], residency, cached, text[i].n);
    const int32_t most = residency == SL_HIERARCHICAL ? MOST : 100, to = text[i].n;
    while (sl_engine_seq_len(run[i].seq) < to) { /* text[i].n is where a step ends */
        int32_t len = sl_engine_seq_len(run[i].seq), n = to - len < most ? to - len : most;
        text[i].n = len + n;
        step(&i, &n, &(int32_t){len + n == to}, out, 1);
    }
    text[i].ids[text[i].n++] = out[0][0].out.id;
    stream[i][text[i].n - 1 - PROMPT] = out[0][0].out;
}

/* The streams of the model without its MTP layer, one token at a time. */
static void make_streams(const fix_opts *kind)
{
    static sl_step_sample out[1][MOST];
    start(kind, false);
    for (int i = 0; i < N; i++) {
        fix_prompt(&f, &text[i], PROMPT, 70 + (uint64_t)i);
        open_seq(i, SL_RESIDENT, 0);
        while (text[i].n < PROMPT + LONG) {
            fix_grow(&f, &run[i], text[i].n);
            step(&i, &(int32_t){1}, &(int32_t){1}, out, 1);
            stream[i][text[i].n - PROMPT] = out[0][0].out;
            text[i].ids[text[i].n++] = out[0][0].out.id;
        }
    }
    stop();
    steps = 0;
}

/* Drafts of the layer for some of the sequences; of others they are drawn, and some get none. */
static void draft(const int *who, int32_t *n, int32_t out[][MOST], int count)
{
    sl_draft_item items[N];
    sl_err err = {0};
    int m = 0;
    for (int k = 0; k < count; k++) {
        fix_text *t = &text[who[k]];
        int32_t left = PROMPT + LONG - t->n;
        n[k] = 1 + (int32_t)roll(MOST);
        n[k] = n[k] - 1 < left ? n[k] : left + 1;
        fix_grow(&f, &run[who[k]], t->n + n[k]);
        for (int32_t j = 0; j < MOST; j++)
            out[k][j] = (int32_t)roll((uint32_t)f.cfg->vocab_size);
        if (n[k] > 1 && roll(5) > 0)
            items[m++] = (sl_draft_item){.seq = run[who[k]].seq,
                                         .token = t->ids[t->n - 1],
                                         .n = n[k] - 1,
                                         .sampling = &how[who[k]],
                                         .out = out[k]};
    }
    if (m)
        ck_assert_msg(sl_engine_draft(f.engine, items, m, &err) == SL_OK, "%s", err.text);
}

/* What the step chose is the stream, up to the first wrong draft; the rest is taken back. */
static void confirm(int i, int32_t n, const sl_step_sample *w, const int32_t *drafts)
{
    int32_t first = text[i].n - (n - 1), kept = 0;
    drafted += (uint64_t)(n - 1);
    text[i].n = first;
    for (int32_t k = 0; k < n && text[i].n < PROMPT + LONG; k++) {
        const sl_sampled *want = &stream[i][text[i].n - PROMPT];
        if (memcmp(&w[k].out, want, sizeof *want) != 0)
            ck_abort_msg("sequence %d: token %d at %d, without drafts %d", i, w[k].out.id, text[i].n,
                         want->id);
        text[i].ids[text[i].n++] = want->id;
        kept++;
        if (k == n - 1 || drafts[k] != want->id)
            break;
        accepted++;
    }
    ck_assert_int_eq(sl_engine_seq_truncate(f.engine, run[i].seq, first - 1 + kept, NULL), SL_OK);
    ck_assert_int_eq(sl_engine_seq_len(run[i].seq), text[i].n - 1);
}

/* A batch until every stream is complete. */
static void run_batch(bool hierarchical)
{
    static sl_step_sample out[N][MOST];
    int32_t drafts[N][MOST], n[N];
    for (int i = 0; i < N; i++) {
        text[i].n = PROMPT;
        open_seq(i, hierarchical ? SL_HIERARCHICAL : SL_RESIDENT, 0);
    }
    for (;;) {
        int who[N], count = 0, left = 0;
        for (int i = 0; i < N; i++) {
            left += text[i].n < PROMPT + LONG;
            if (text[i].n < PROMPT + LONG && roll(6) > 0)
                who[count++] = i;
            if (!hierarchical && roll(80) == 0)
                (void)sl_engine_seq_spill(f.engine, run[i].seq, NULL); /* once */
            if (text[i].n < PROMPT + LONG && count && who[count - 1] == i && roll(60) == 0) {
                int32_t cached = text[i].n - 1; /* it begins again on its own pages */
                fix_seq_close(&f, &run[i], true);
                fix_seq_open(&f, &run[i], roll(2) ? SL_HIERARCHICAL : SL_RESIDENT, cached, text[i].n);
            }
        }
        if (left == 0)
            break;
        if (count == 0)
            continue;
        draft(who, n, drafts, count);
        for (int k = 0; k < count; k++) {
            fix_text *t = &text[who[k]];
            memcpy(t->ids + t->n, drafts[k], (size_t)(n[k] - 1) * sizeof(int32_t));
            t->n += n[k] - 1;
        }
        step(who, n, n, out, count);
        for (int k = 0; k < count; k++)
            confirm(who[k], n[k], out[k], drafts[k]);
    }
    for (int i = 0; i < N; i++)
        fix_seq_close(&f, &run[i], false);
    memset(run, 0, sizeof run);
}

START_TEST(streams_are_those_without_drafts)
{
    make_parameters();
    make_streams(&kinds[_i]);
    dice = 77 + (uint32_t)_i;
    drafted = accepted = 0;
    start(&kinds[_i], true);
    while (steps < 560) /* 2,800 of all kinds */
        run_batch(steps % 2 == 1);
    sl_engine_stats st;
    sl_engine_stats_get(f.engine, &st);
    ck_assert_uint_gt(st.drafted, drafted / 2);
    ck_assert_uint_gt(accepted, drafted / 20);
    ck_assert_uint_lt(accepted, drafted * 9 / 10);
    stop();
    for (int i = 0; i < N; i++)
        sl_sampling_free(&how[i]);
}
END_TEST

/* ---- pages ---- */

/* The rows and keys of the first n tokens. */
static sl_key pages_hash(int i, int32_t n)
{
    sl_key k = {0};
    const sl_geometry *g = sl_arena_geometry(f.arena);
    for (int32_t p = 0; p < n / SL_PAGE_TOKENS; p++)
        for (int32_t l = 0; l < g->n_layers; l++) {
            uint32_t crc = sl_arena_page_crc(f.arena, run[i].pages[p], l, SL_PAGE_TOKENS);
            k = sl_hash_chain(k, &crc, sizeof crc);
        }
    return k;
}

/* Pages after drafts are those of steps of one token, in the MTP layer, too. */
START_TEST(drafts_leave_no_trace)
{
    static sl_step_sample out[N][MOST];
    sl_key want[N];
    int32_t drafts[N][MOST], n[N];
    make_parameters();
    make_streams(&kinds[_i]);
    dice = 5;
    start(&kinds[_i], true);
    for (int i = 0; i < N; i++) {
        text[i].n = PROMPT;
        open_seq(i, SL_RESIDENT, 0);
        while (text[i].n < PROMPT + LONG) {
            fix_grow(&f, &run[i], text[i].n);
            step(&i, &(int32_t){1}, &(int32_t){1}, out, 1);
            ck_assert_mem_eq(&out[0][0].out, &stream[i][text[i].n - PROMPT], sizeof(sl_sampled));
            text[i].ids[text[i].n++] = out[0][0].out.id;
        }
        want[i] = pages_hash(i, text[i].n - 1);
        fix_seq_close(&f, &run[i], false);
        run[i] = (fix_run){0};
    }
    for (int i = 0; i < N; i++) {
        text[i].n = PROMPT;
        open_seq(i, i % 2 ? SL_HIERARCHICAL : SL_RESIDENT, 0);
        while (text[i].n < PROMPT + LONG) {
            draft(&i, n, drafts, 1);
            memcpy(text[i].ids + text[i].n, drafts[0], (size_t)(n[0] - 1) * sizeof(int32_t));
            text[i].n += n[0] - 1;
            step(&i, n, n, out, 1);
            confirm(i, n[0], out[0], drafts[0]);
        }
        sl_key have = pages_hash(i, text[i].n - 1);
        ck_assert_msg(have.lo == want[i].lo && have.hi == want[i].hi, "sequence %d", i);
    }
    stop();
    for (int i = 0; i < N; i++)
        sl_sampling_free(&how[i]);
}
END_TEST

/* ---- the golden files ---- */

static const void *part(sl_safetensors *st, int i, const char *what, int32_t *n)
{
    char name[64];
    snprintf(name, sizeof name, "p%d.%s", i, what);
    const sl_st_tensor *t = sl_st_find(st, name);
    ck_assert_msg(t != NULL, "%s", name);
    *n = (int32_t)t->shape[0];
    return t->data;
}

START_TEST(drafts_are_the_golden_ones)
{
    char path[128];
    sl_err err = {0};
    sl_safetensors *st;
    fix_opts o = kinds[_i];
    o.rows = SL_ROW_MLA_F32, o.index = SL_INDEX_PLAIN, o.act = SL_F32;
    snprintf(path, sizeof path, "%s/golden.safetensors", o.dir);
    ck_assert_msg(sl_st_open(path, &st, &err) == SL_OK, "%s", err.text);
    start(&o, true);
    sl_sampling greedy;
    sl_sampling_default(&greedy);
    greedy.temperature = 0;
    for (int i = 0; i < 4; i++) {
        int32_t len, n, out[MOST];
        const int32_t *ids = part(st, i, "ids", &len), *next = part(st, i, "greedy", &n),
                      *want = part(st, i, "drafts", &n);
        const float *logits = part(st, i, "draft_logits", &n);
        ck_assert_int_eq(n, MOST - 1);
        memcpy(text[0].ids, ids, (size_t)len * sizeof *ids);
        text[0].n = 0;
        fix_seq_open(&f, &run[0], SL_RESIDENT, 0, len + MOST);
        const float *last = fix_feed(&f, &run[0], &text[0], len, 7);
        ck_assert_int_eq(fix_argmax(&f, last), next[0]);
        for (int32_t d = 1; d < MOST; d++) {
            sl_draft_item it = {.seq = run[0].seq, .token = next[0], .n = d, .sampling = &greedy, .out = out};
            ck_assert_msg(sl_engine_draft(f.engine, &it, 1, &err) == SL_OK, "%s", err.text);
            for (int32_t k = 0; k < d; k++)
                ck_assert_int_eq(out[k], want[k]);
            for (int32_t v = 0; v < f.cfg->vocab_size; v++) {
                float x = f.engine->logits_host[v], y = logits[(d - 1) * f.cfg->vocab_size + v];
                ck_assert_msg(fabsf(x - y) <= 1e-4f, "prompt %d, draft %d, logit %d: %g, golden %g", i, d, v,
                              (double)x, (double)y);
            }
        }
        fix_seq_close(&f, &run[0], false);
        run[0] = (fix_run){0};
    }
    sl_st_close(st);
    stop();
}
END_TEST

/* ---- the state of the last token ---- */

static uint32_t draft_after(int i, int32_t *out)
{
    sl_err err = {0};
    sl_sampling greedy;
    sl_sampling_default(&greedy);
    greedy.temperature = 0;
    fix_grow(&f, &run[i], text[i].n + MOST);
    sl_draft_item it = {.seq = run[i].seq,
                        .token = text[i].ids[text[i].n - 1],
                        .n = MOST - 1,
                        .sampling = &greedy,
                        .out = out};
    ck_assert_msg(sl_engine_draft(f.engine, &it, 1, &err) == SL_OK, "%s", err.text);
    return sl_crc32c(0, f.engine->logits_host, (size_t)f.cfg->vocab_size * sizeof(float));
}

/* A sequence that is opened again on its pages, in another row and in the other residency, drafts what it would have drafted, if it is
 * given the state of its last token; without it the logits of the drafts are others. */
START_TEST(states_travel_with_pages)
{
    static sl_step_sample out[1][MOST];
    static uint8_t state[4096];
    make_parameters();
    start(&kinds[_i], true);
    const size_t bytes = sl_engine_hidden_bytes(f.engine);
    ck_assert(bytes > 0 && bytes <= sizeof state);
    for (int i = 0; i + 1 < N; i++) {
        int32_t want[MOST], have[MOST], without[MOST];
        fix_prompt(&f, &text[i], PROMPT + i, 170 + (uint64_t)i);
        open_seq(i, i % 2 ? SL_HIERARCHICAL : SL_RESIDENT, 0);
        for (int k = 0; k < i; k++) { /* after steps, too */
            fix_grow(&f, &run[i], text[i].n);
            step(&i, &(int32_t){1}, &(int32_t){1}, out, 1);
            text[i].ids[text[i].n++] = out[0][0].out.id;
        }
        const uint32_t logits = draft_after(i, want);
        ck_assert(sl_engine_seq_hidden(f.engine, run[i].seq, state));
        fix_seq_close(&f, &run[i], true);
        fix_seq_open(&f, &run[N - 1], SL_RESIDENT, 0, 5); /* takes the row */
        fix_seq_open(&f, &run[i], i % 2 ? SL_RESIDENT : SL_HIERARCHICAL, text[i].n - 1, text[i].n);
        ck_assert(!sl_engine_seq_hidden(f.engine, run[i].seq, have));
        if (sl_backend_caps(f.be) & SL_BE_UNIFIED) /* else they stay on the device */
            ck_assert_uint_ne(draft_after(i, without), logits);
        sl_engine_seq_set_hidden(f.engine, run[i].seq, state);
        ck_assert_uint_eq(draft_after(i, have), logits);
        ck_assert_mem_eq(have, want, (MOST - 1) * sizeof *want);
        fix_seq_close(&f, &run[N - 1], false);
        run[N - 1] = (fix_run){0};
    }
    stop();
    start(&kinds[_i], false);
    ck_assert_uint_eq(sl_engine_hidden_bytes(f.engine), 0);
    stop();
    for (int i = 0; i < N; i++)
        sl_sampling_free(&how[i]);
}
END_TEST

/* ---- what is refused ---- */

START_TEST(wrong_drafts_are_refused)
{
    int32_t out[MOST];
    sl_err err = {0};
    sl_sampling plain;
    sl_sampling_default(&plain);
    make_parameters();
    start(&kinds[0], true);
    fix_prompt(&f, &text[0], SL_PAGE_TOKENS - 2, 1);
    open_seq(0, SL_RESIDENT, 0);
    sl_draft_item it = {.seq = run[0].seq, .token = 5, .n = MOST, .sampling = &plain, .out = out};
    ck_assert_int_eq(sl_engine_draft(f.engine, &it, 1, &err), SL_ERR_INVALID);
    it.n = 0;
    ck_assert_int_eq(sl_engine_draft(f.engine, &it, 1, &err), SL_ERR_INVALID);
    it.n = 4;
    ck_assert_int_eq(sl_engine_draft(f.engine, &it, 1, &err), SL_ERR_EXHAUSTED); /* its page has room for 2 */
    ck_assert_ptr_nonnull(strstr(err.text, "pages"));
    it.n = 1, it.token = f.cfg->vocab_size;
    ck_assert_int_eq(sl_engine_draft(f.engine, &it, 1, &err), SL_ERR_INVALID);
    stop();
    start(&kinds[0], false);
    open_seq(0, SL_RESIDENT, 0);
    it = (sl_draft_item){.seq = run[0].seq, .token = 5, .n = 1, .sampling = &plain, .out = out};
    ck_assert_int_eq(sl_engine_draft(f.engine, &it, 1, &err), SL_ERR_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(err.text, "MTP"));
    stop();
}
END_TEST

int main(void)
{
    Suite *s = suite_create("engine/draft");
    TCase *c = tcase_create("draft");
    tcase_set_timeout(c, 300);
    tcase_add_loop_test(c, drafts_are_the_golden_ones, 0, 2);
    tcase_add_loop_test(c, streams_are_those_without_drafts, 0, SL_COUNT(kinds));
    tcase_add_loop_test(c, drafts_leave_no_trace, 0, SL_COUNT(kinds));
    tcase_add_loop_test(c, states_travel_with_pages, 0, SL_COUNT(kinds));
    tcase_add_test(c, wrong_drafts_are_refused);
    suite_add_tcase(s, c);
    return run_suite(s);
}
