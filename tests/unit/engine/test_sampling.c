/*
 * Tokens that a step chooses are compared with those of sl_sample() from the same logits: sequences with parameters of every kind, which
 * join, pause, start again and are spilled; masks; lists that stay on the device, grow, are made anew, or have no room there; and
 * items that choose several tokens, of which those after a wrong draft are taken back.
 */
#include <check.h>
#include <stdlib.h>
#include <string.h>

#include "fix.h"
#include "tests/unit/run_suite.h"

enum { N = 7, PROMPT = 70, STEPS = 90 };

static fix f;
static fix_text text[N];
static fix_run run[N];
static sl_sampling how[N];
static sl_step_sample want[N];
static sl_sampler *host;
static uint32_t bits[N][2048];
static bool no_masks;
static sl_token_mask mask[N]; /* of the next token; bits NULL: none can be made */

static const fix_opts opts = {.dir = "tests/golden/model/ds-yarn",
                              .max_seqs = N,
                              .max_hot = N,
                              .max_context = 768,
                              .tail_rows = 8,
                              .graphs = SL_GRAPHS_PAD};

/* Greedy, plain, truncated, penalties, everything, min_tokens and bias, log-probabilities. */
static void make_parameters(void)
{
    static const sl_logit_bias bias[] = {{3, 4.5f}, {7, -100}, {11, 2}};
    static const int32_t stops[] = {5, 6};
    for (int i = 0; i < N; i++) {
        sl_sampling_default(&how[i]);
        how[i].seed = 1000 + (uint64_t)i;
        how[i].n_logprobs = i % 3 - 1;
    }
    how[0].temperature = 0;
    how[2].top_p = 0.9f, how[2].top_k = 40, how[2].temperature = 0.7f;
    how[3].frequency_penalty = 0.4f, how[3].presence_penalty = 0.3f;
    how[4].repetition_penalty = 1.2f, how[4].top_p = 0.95f, how[4].min_p = 0.01f;
    how[5].min_tokens = 20, how[5].temperature = 0;
    ck_assert_int_eq(sl_sampling_set_bias(&how[5], bias, 3), SL_OK);
    ck_assert_int_eq(sl_sampling_set_stop_ids(&how[5], stops, 2), SL_OK);
    how[6].repetition_penalty = 1.3f, how[6].frequency_penalty = -0.2f, how[6].n_logprobs = SL_LOGPROBS_MAX;
    ck_assert_int_eq(sl_sampling_set_bias(&how[6], bias, 3), SL_OK);
}

static sl_history history_of(int i)
{
    return (sl_history){text[i].ids, PROMPT, text[i].ids + PROMPT, (size_t)(text[i].n - PROMPT)};
}

static sl_token_mask mask_of(void *ctx)
{
    return *(const sl_token_mask *)ctx;
}

/* Of one sequence in three, a part of the vocabulary that changes from token to token. */
static void make_mask(int i)
{
    uint32_t h = (uint32_t)(i + 1) * 2654435761u + (uint32_t)text[i].n;
    ck_assert_uint_le(sl_sample_mask_words(f.cfg->vocab_size), SL_COUNT(bits[0]));
    for (size_t w = 0; w < SL_COUNT(bits[0]); w++) {
        h = h * 1664525u + 1013904223u;
        bits[i][w] = h & h >> 7;
    }
    bits[i][0] |= 1u << 9;
    mask[i] = (sl_token_mask){bits[i], text[i].n % 9 == 0};
}

static sl_step_item item_of(int i, int32_t from, bool logits)
{
    want[i] = (sl_step_sample){.sampling = &how[i], .history = history_of(i)};
    if (i % 3 == 2 && !no_masks) {
        make_mask(i);
        want[i].mask = mask_of;
        want[i].mask_ctx = &mask[i];
    }
    memset(&want[i].out, 0x5a, sizeof want[i].out);
    return (sl_step_item){.seq = run[i].seq,
                          .tokens = text[i].ids + from,
                          .n_tokens = text[i].n - from,
                          .want_logits = logits,
                          .sample = &want[i]};
}

/* What the step chose is what the host chooses from the same logits; it becomes the next token. */
static void take(const sl_step_item *it, int i)
{
    sl_sampled out;
    sl_history h = history_of(i);
    MUST(it->want_logits == (it->logits != NULL));
    MUST(want[i].out.fault == 0);
    if (it->logits) {
        sl_sampler_sample_or_fault(host, it->logits, &how[i], &h, (uint64_t)text[i].n,
                                   want[i].mask ? &mask[i] : NULL, &out);
        if (memcmp(&out, &want[i].out, sizeof out) != 0)
            ck_abort_msg("sequence %d: token %d at %d, the host chooses %d", i, want[i].out.id, text[i].n,
                         out.id);
    }
    if (want[i].mask)
        ck_assert_uint_ne(bits[i][want[i].out.id / 32] & 1u << (want[i].out.id & 31), 0);
    text[i].ids[text[i].n++] = want[i].out.id;
}

static void step(sl_step_item *items, const int *who, int n)
{
    sl_err err = {0};
    ck_assert_msg(sl_engine_step(f.engine, items, n, NULL, &err) == SL_OK, "%s", err.text);
    for (int k = 0; k < n; k++)
        take(&items[k], who[k]);
}

/* The prompt's last part gives the first token. cached: tokens whose rows are in the pages. */
static void open_seq(int i, int32_t cached)
{
    fix_prompt_open(&f, &run[i], SL_RESIDENT, cached, text[i].n, PROMPT);
    sl_step_item it = item_of(i, cached, true);
    step(&it, &i, 1);
}

static void start(const fix_opts *o)
{
    fix_open(&f, o);
    make_parameters();
    ck_assert_int_eq(sl_sampler_create(f.cfg->vocab_size, f.cfg->eos_ids, (size_t)f.cfg->n_eos, &host),
                     SL_OK);
    memset(run, 0, sizeof run);
    for (int i = 0; i < N; i++)
        fix_prompt(&f, &text[i], PROMPT, 70 + (uint64_t)i);
}

static void stop(void)
{
    for (int i = 0; i < N; i++) {
        if (run[i].seq)
            fix_seq_close(&f, &run[i], false);
        sl_sampling_free(&how[i]);
    }
    sl_sampler_destroy(host);
    fix_close(&f);
}

/* Between two steps: a sequence is spilled, or closed and opened again. */
static void shake(int s)
{
    int i = s % N;
    if (s % 11 == 3 && run[i].seq)
        ck_assert(sl_engine_seq_spill(f.engine, run[i].seq, NULL) == SL_OK || s > 14);
    if (s % 13 == 5 && run[i].seq) {
        int32_t rows = sl_engine_seq_len(run[i].seq);
        fix_seq_close(&f, &run[i], true);
        ck_assert_int_eq(rows, text[i].n - 1);
        open_seq(i, rows);
    }
}

START_TEST(tokens_are_those_of_the_host)
{
    start(&opts);
    for (int s = 0; s < STEPS; s++) {
        sl_step_item items[N];
        int who[N], n = 0;
        for (int i = 0; i < N; i++) {
            if (!run[i].seq && s / 2 >= i)
                open_seq(i, 0);
            if (!run[i].seq || (s + i) % 6 == 0)
                continue;
            fix_grow(&f, &run[i], text[i].n);
            who[n] = i;
            items[n++] = item_of(i, text[i].n - 1, (s + i) % 4 != 0);
        }
        if (n)
            step(items, who, n);
        shake(s);
    }
    sl_engine_stats st;
    sl_engine_stats_get(f.engine, &st);
    ck_assert_uint_gt(st.sampled, N * STEPS / 2);
    ck_assert_uint_eq(st.sampled_on_host, 0);
    ck_assert_uint_lt(st.sample_lists,
                      20); /* four sequences have lists, which pauses and spills do not end */
    stop();
}
END_TEST

/* A list that has counted a token which the sequence then did not get is not used; nor is one without room. */
START_TEST(lists_are_made_anew)
{
    start(&opts);
    open_seq(3, 0);
    for (int s = 0; s < 600; s++) { /* more than a list has room for */
        if (s == 20 || s == 70)     /* another token than the chosen one */
            text[3].ids[text[3].n - 1] = (text[3].ids[text[3].n - 1] + 1) % f.cfg->vocab_size;
        fix_grow(&f, &run[3], text[3].n);
        sl_step_item it = item_of(3, text[3].n - 1, true);
        step(&it, &(int){3}, 1);
    }
    sl_engine_stats st;
    sl_engine_stats_get(f.engine, &st);
    ck_assert_uint_eq(st.sample_lists, 1 + 2 + 1);
    stop();
}
END_TEST

/* Without memory for the list the host chooses, and only for that request. */
START_TEST(a_list_without_room_is_the_hosts)
{
    fix_opts o = opts;
    o.list_bytes = 10 << 10; /* for one of the two lists */
    start(&o);
    for (int i = 3; i <= 4; i++)
        open_seq(i, 0);
    for (int s = 0; s < 39; s++) {
        sl_step_item items[2];
        for (int i = 3; i <= 4; i++) {
            fix_grow(&f, &run[i], text[i].n);
            items[i - 3] = item_of(i, text[i].n - 1, s % 2 == 0);
        }
        step(items, (int[]){3, 4}, 2);
    }
    sl_engine_stats st;
    sl_engine_stats_get(f.engine, &st);
    ck_assert_uint_eq(st.sampled, 80);
    ck_assert_uint_eq(st.sampled_on_host, 40);
    stop();
}
END_TEST

/* A constraint that cannot say what is allowed fails its own request only; one that allows only the end is not held back. */
START_TEST(masks_that_are_missing_or_the_end)
{
    start(&opts);
    open_seq(0, 0);
    open_seq(5, 0);
    for (int i = 0; i <= 5; i += 5)
        fix_grow(&f, &run[i], text[i].n);
    sl_step_item items[] = {item_of(0, text[0].n - 1, true), item_of(5, text[5].n - 1, true)};
    mask[5].bits = NULL;
    sl_err err = {0};
    ck_assert_int_eq(sl_engine_step(f.engine, items, 2, NULL, &err), SL_OK);
    take(&items[0], 0);
    ck_assert_uint_eq(want[5].out.fault, SL_SAMPLE_NO_MASK);
    ck_assert_int_eq(sl_sample_fault_status(want[5].out.fault, 3, &err), SL_ERR_INVALID);
    text[5].ids[text[5].n++] = 7;
    for (int ends = 0; ends < 2; ends++) {
        fix_grow(&f, &run[5], text[5].n);
        items[1] = item_of(5, text[5].n - 1, true);
        memset(bits[5], 0, sizeof bits[5]);
        bits[5][0] = 1u << 6; /* a stop token, which min_tokens holds back */
        mask[5] = (sl_token_mask){bits[5], ends};
        ck_assert_int_eq(sl_engine_step(f.engine, &items[1], 1, NULL, &err), SL_OK);
        ck_assert_uint_eq(want[5].out.fault, ends ? SL_SAMPLE_FINE : SL_SAMPLE_NONE_LEFT);
        ck_assert_int_eq(want[5].out.id, ends ? 6 : -1);
        text[5].ids[text[5].n++] = 8;
    }
    stop();
}
END_TEST

/* ---- several tokens of an item ---- */

enum { MOST = 4, LONG = 120 };

static sl_sampled stream[N][LONG]; /* what steps of one token choose */
static uint32_t dice;

static uint32_t roll(uint32_t n)
{
    dice = dice * 1664525u + 1013904223u;
    return (dice >> 8) % n;
}

/* The streams by steps of one token; masks are left out because they follow the length of the text. */
static void make_streams(void)
{
    for (int i = 0; i < N; i++) {
        open_seq(i, 0);
        stream[i][0] = want[i].out;
    }
    for (int s = 1; s < LONG; s++)
        for (int i = 0; i < N; i++) {
            fix_grow(&f, &run[i], text[i].n);
            sl_step_item it = item_of(i, text[i].n - 1, false);
            step(&it, &i, 1);
            stream[i][s] = want[i].out;
        }
    for (int i = 0; i < N; i++) {
        fix_seq_close(&f, &run[i], false);
        run[i] = (fix_run){0};
    }
}

/* Drafts after the last token of sequence i: right ones of the stream, then perhaps a wrong one and others. */
static int32_t draft(int i, int32_t done)
{
    int32_t n = (int32_t)roll(MOST);
    for (int32_t k = 0; k < n; k++) {
        int32_t right = done + k < LONG ? stream[i][done + k].id : 0;
        text[i].ids[text[i].n + k] = roll(4) ? right : (int32_t)roll((uint32_t)f.cfg->vocab_size);
    }
    return n;
}

/* Drafts that the samples confirm stay, the others are taken back. Returns how many tokens are new. */
static int32_t confirm(int i, const sl_step_sample *w, int32_t drafts, int32_t done)
{
    int32_t kept = 0;
    for (int32_t k = 0; k <= drafts && done + k < LONG; k++, kept++) {
        if (memcmp(&w[k].out, &stream[i][done + k], sizeof w[k].out) != 0)
            ck_abort_msg("sequence %d: token %d at %d, a step of one token chooses %d", i, w[k].out.id,
                         done + k, stream[i][done + k].id);
        if (k < drafts && w[k].out.id != text[i].ids[text[i].n + k]) {
            kept++;
            break;
        }
    }
    for (int32_t k = 0; k < kept; k++)
        text[i].ids[text[i].n + k] = w[k].out.id;
    text[i].n += kept;
    ck_assert_int_eq(sl_engine_seq_truncate(f.engine, run[i].seq, text[i].n - 1, NULL), SL_OK);
    return kept;
}

static void run_drafts(uint32_t seed, bool spill)
{
    static sl_step_sample several[N][MOST];
    int32_t done[N], left = N;
    dice = seed;
    for (int i = 0; i < N; i++) {
        text[i].n = PROMPT;
        fix_seq_open(&f, &run[i], SL_RESIDENT, 0, PROMPT);
        sl_step_item it = item_of(i, 0, false);
        step(&it, &i, 1);
        done[i] = 1;
    }
    for (int s = 0; left > 0; s++) {
        sl_step_item items[N];
        int who[N], drafts[N], n = 0;
        left = 0;
        for (int i = 0; i < N; i++) {
            if (done[i] >= LONG || roll(7) == 0) {
                left += done[i] < LONG;
                continue;
            }
            if (spill && roll(29) == 0)
                (void)sl_engine_seq_spill(f.engine, run[i].seq, NULL); /* it may be spilled already */
            drafts[n] = draft(i, done[i]);
            fix_grow(&f, &run[i], text[i].n + drafts[n]);
            items[n] = (sl_step_item){.seq = run[i].seq, .tokens = text[i].ids + text[i].n - 1};
            items[n].n_tokens = items[n].n_samples = 1 + drafts[n];
            items[n].sample = several[i];
            for (int32_t k = 0; k <= drafts[n]; k++)
                several[i][k] = (sl_step_sample){
                    .sampling = &how[i],
                    .history = {text[i].ids, PROMPT, text[i].ids + PROMPT, (size_t)(text[i].n + k - PROMPT)}};
            who[n++] = i;
            left++;
        }
        sl_err err = {0};
        if (n)
            ck_assert_msg(sl_engine_step(f.engine, items, n, NULL, &err) == SL_OK, "%s", err.text);
        for (int k = 0; k < n; k++)
            done[who[k]] += confirm(who[k], several[who[k]], drafts[k], done[who[k]]);
    }
    for (int i = 0; i < N; i++)
        fix_seq_close(&f, &run[i], false);
    memset(run, 0, sizeof run);
}

/* Whatever the drafts are, the streams are those of steps of one token, bit by bit, with their log-probabilities. */
START_TEST(drafts_change_no_stream)
{
    fix_opts o = opts;
    o.item_tokens = MOST, o.hot_rows = 16 * MOST;
    if (_i == 1)
        o.graphs = SL_GRAPHS_OFF;
    if (_i == 2)
        o.list_bytes = 10 << 10; /* some lists are the host's */
    no_masks = true;
    start(&o);
    make_streams();
    run_drafts(5 + (uint32_t)_i, false);
    run_drafts(50 + (uint32_t)_i, true);
    sl_engine_stats st;
    sl_engine_stats_get(f.engine, &st);
    ck_assert((st.sampled_on_host > 0) == (_i == 2));
    ck_assert_uint_gt(st.sampled, N * LONG * 3);
    stop();
    no_masks = false;
}
END_TEST

START_TEST(wrong_items_are_refused)
{
    start(&opts);
    sl_err err = {0};
    fix_prompt_open(&f, &run[0], SL_RESIDENT, 0, PROMPT, PROMPT);
    sl_step_item it = item_of(0, 0, false);
    want[0].history.n_prompt--;
    ck_assert_int_eq(sl_engine_step(f.engine, &it, 1, NULL, &err), SL_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(err.text, "history"));
    it = item_of(0, 0, false);
    want[0].sampling = NULL;
    ck_assert_int_eq(sl_engine_step(f.engine, &it, 1, NULL, &err), SL_ERR_INVALID);
    ck_assert_ptr_nonnull(strstr(err.text, "parameters"));
    stop();
}
END_TEST

int main(void)
{
    Suite *s = suite_create("engine/sampling");
    TCase *c = tcase_create("sampling");
    tcase_set_timeout(c, 120);
    tcase_add_test(c, tokens_are_those_of_the_host);
    tcase_add_test(c, lists_are_made_anew);
    tcase_add_test(c, a_list_without_room_is_the_hosts);
    tcase_add_test(c, masks_that_are_missing_or_the_end);
    tcase_add_test(c, wrong_items_are_refused);
    tcase_add_loop_test(c, drafts_change_no_stream, 0, 3);
    suite_add_tcase(s, c);
    return run_suite(s);
}
