/*
 * Log-probabilities of the tokens of a prompt, which a step computes part by part. They are compared with what the logits of steps
 * of one token say: the same bits, whatever the chunks, the number of rows of logits, and the other sequences of the step are.
 */
#include <check.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "fix.h"
#include "tests/unit/run_suite.h"

enum { PROMPT = 150, BEST = 3 };

static fix f;
static fix_text text, other;
static sl_sampled want[PROMPT], got[PROMPT];

static const fix_opts opts = {.dir = "tests/golden/model/ds-yarn",
                              .max_tokens = 160,
                              .max_seqs = 3,
                              .max_hot = 3,
                              .max_context = 768,
                              .tail_rows = 8,
                              .graphs = SL_GRAPHS_PAD};

static void start(const fix_opts *o)
{
    fix_open(&f, o);
    fix_prompt(&f, &text, PROMPT, 70);
    fix_prompt(&f, &other, PROMPT, 71);
    memset(want, 0x5a, sizeof want);
    memset(got, 0x5a, sizeof got);
}

static void run_step(sl_step_item *items, int n)
{
    sl_err err = {0};
    ck_assert_msg(sl_engine_step(f.engine, items, n, NULL, &err) == SL_OK, "%s", err.text);
}

/* The logarithm of the softmax, in double. */
static double log_softmax(const float *x, int32_t id)
{
    double max = -INFINITY, sum = 0;
    for (int32_t i = 0; i < f.cfg->vocab_size; i++)
        max = x[i] > max ? x[i] : max;
    for (int32_t i = 0; i < f.cfg->vocab_size; i++)
        sum += exp(x[i] - max);
    return x[id] - max - log(sum);
}

/* What the logits of steps of one token say of the next token. The best ones: by the host's implementation of the op. */
static void expect(void)
{
    fix_run run = {0};
    size_t bytes = sl_sample_scratch_bytes(f.cfg->vocab_size);
    void *scratch = malloc(bytes);
    float *row = malloc((size_t)f.cfg->vocab_size * sizeof *row);
    sl_sample_row how = {.top_p = (uint64_t)1 << 32, .n_logprobs = BEST, .repetition = 1};
    ck_assert(scratch && row);
    fix_prompt_open(&f, &run, SL_RESIDENT, 0, text.n, PROMPT);
    for (int i = 0; i + 1 < PROMPT; i++) {
        sl_step_item it = {.seq = run.seq, .tokens = text.ids + i, .n_tokens = 1, .want_logits = 1};
        run_step(&it, 1);
        memcpy(row, it.logits, (size_t)f.cfg->vocab_size * sizeof *row);
        sl_sample_on_host(&how, row, f.cfg->vocab_size, scratch, &want[i]);
        want[i].id = text.ids[i + 1];
        want[i].logprob = (float)log_softmax(it.logits, want[i].id);
    }
    fix_seq_close(&f, &run, false);
    free(scratch);
    free(row);
}

static void compare(int i)
{
    ck_assert_uint_eq(got[i].fault, 0);
    ck_assert_int_eq(got[i].id, want[i].id);
    ck_assert_msg(fabsf(got[i].logprob - want[i].logprob) < 2e-6f, "token %d: %.9g, not %.9g", i,
                  (double)got[i].logprob, (double)want[i].logprob);
    ck_assert_uint_eq(got[i].n_top, BEST);
    ck_assert_int_eq(memcmp(got[i].top, want[i].top, sizeof got[i].top), 0);
}

/* The prompt in chunks of this size; another sequence takes steps together with it and chooses tokens. */
static void in_chunks(int32_t chunk, bool beside)
{
    fix_run run = {0}, second = {0};
    sl_sampling how;
    sl_sampling_default(&how);
    fix_prompt_open(&f, &run, SL_RESIDENT, 0, text.n, PROMPT);
    fix_prompt_open(&f, &second, SL_RESIDENT, 0, other.n, PROMPT);
    int32_t done = 0;
    for (int32_t from = 0; from < PROMPT; from += chunk) {
        int32_t n = from + chunk < PROMPT ? chunk : PROMPT - from, scored = from + n < PROMPT ? n : n - 1;
        sl_step_score score = {.n = scored, .next = text.ids + from + 1, .n_best = BEST, .out = got + from};
        sl_step_sample sample = {.sampling = &how, .history = {other.ids, (size_t)done + 1, NULL, 0}};
        sl_step_item items[] = {
            {.seq = second.seq, .tokens = other.ids + done, .n_tokens = 1, .sample = &sample},
            {.seq = run.seq, .tokens = text.ids + from, .n_tokens = n, .score = scored ? &score : NULL}};
        run_step(items + !beside, 1 + beside);
        done += beside;
        ck_assert(!beside || sample.out.fault == 0);
    }
    for (int i = 0; i + 1 < PROMPT; i++)
        compare(i);
    fix_seq_close(&f, &run, false);
    fix_seq_close(&f, &second, false);
}

START_TEST(chunks)
{
    static const int32_t sizes[] = {1, 2, 3, 7, 64, 65, 149, 150};
    start(&opts);
    expect();
    for (size_t i = 0; i < SL_COUNT(sizes); i++) {
        memset(got, 0x5a, sizeof got);
        in_chunks(sizes[i], i % 2);
    }
    fix_close(&f);
}
END_TEST

/* What cannot be scored is refused before anything is computed. */
START_TEST(refused)
{
    fix_run run = {0};
    sl_err err = {0};
    start(&opts);
    int32_t outside = f.cfg->vocab_size;
    const sl_step_score bad[] = {{.n = 0, .next = text.ids, .out = got},
                                 {.n = 3, .next = text.ids, .out = got},
                                 {.n = 1, .next = &outside, .out = got},
                                 {.n = 1, .next = text.ids, .n_best = -1, .out = got},
                                 {.n = 1, .next = text.ids, .n_best = SL_LOGPROBS_MAX + 1, .out = got}};
    fix_prompt_open(&f, &run, SL_RESIDENT, 0, text.n, PROMPT);
    for (size_t i = 0; i < SL_COUNT(bad); i++) {
        sl_step_score score = bad[i];
        sl_step_item it = {.seq = run.seq, .tokens = text.ids, .n_tokens = 2, .score = &score};
        ck_assert_int_eq(sl_engine_step(f.engine, &it, 1, NULL, &err), SL_ERR_INVALID);
    }
    sl_step_score fine = {.n = 1, .next = text.ids + 1, .out = got};
    sl_step_item both = {.seq = run.seq, .tokens = text.ids, .n_tokens = 2, .want_logits = 1, .score = &fine};
    ck_assert_int_eq(sl_engine_step(f.engine, &both, 1, NULL, &err), SL_ERR_INVALID);
    ck_assert_int_eq(sl_engine_seq_len(run.seq), 0);
    fix_seq_close(&f, &run, false);
    fix_close(&f);
}
END_TEST

int main(void)
{
    TCase *tc = tcase_create("score");
    tcase_set_timeout(tc, 300);
    tcase_add_test(tc, chunks);
    tcase_add_test(tc, refused);
    Suite *s = suite_create("score");
    suite_add_tcase(s, tc);
    return run_suite(s);
}
