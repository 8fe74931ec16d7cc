/* The same bits on every way for algorithms that select at the end of a prompt; see ways.h. */
#include <check.h>
#include <string.h>

#include "ways.h"

void ways_prompt_open(fix *f, fix_run *r, sl_residency residency, int32_t n_cached, int32_t prompt)
{
    fix_prompt_open(f, r, residency, n_cached, WAYS_LENGTH, prompt);
}

/* Reference: resident, the prompt in one step. */
static void reference(const fix_opts *o, uint64_t seed, int32_t prompt, sl_key *out)
{
    fix f;
    fix_run r = {0};
    fix_text t;
    fix_open(&f, o);
    fix_prompt(&f, &t, WAYS_LENGTH, seed);
    ways_prompt_open(&f, &r, SL_RESIDENT, 0, prompt);
    ways_hashes(&f, &r, &t, prompt, out);
    fix_seq_close(&f, &r, false);
    fix_close(&f);
}

/* Chunks of the prompt, also such that divide the window; and chunks that reach beyond the prompt's end, as when a
 * request is computed again with the tokens that it had generated. */
void ways_prompt_chunks(fix_opts o)
{
    static const int32_t chunks[] = {1, 7, 64, WAYS_CONTEXT};
    static const int32_t again[] = {WAYS_PROMPT - 1, WAYS_PROMPT - 1, WAYS_PROMPT + 1, WAYS_PROMPT + 43};
    sl_key want[WAYS_LENGTH + 1], got[WAYS_LENGTH + 1];
    reference(&o, 5, WAYS_PROMPT, want);
    for (size_t k = 0; k < SL_COUNT(chunks); k++) {
        fix f;
        fix_run r = {0};
        fix_text t;
        o.threads = 1 + (int)k % 2;
        fix_open(&f, &o);
        fix_prompt(&f, &t, WAYS_LENGTH, 5);
        ways_prompt_open(&f, &r, SL_RESIDENT, 0, WAYS_PROMPT);
        fix_feed(&f, &r, &t, again[k], chunks[k]);
        ways_hashes(&f, &r, &t, again[k] + 1, got);
        ways_same(want, got, again[k] + 1, "chunks");
        fix_seq_close(&f, &r, false);
        fix_close(&f);
    }
}

/* Spilled after the prompt, with the fewest possible hot rows, in slots that another request has used. */
void ways_prompt_hierarchical(fix_opts o, int i)
{
    sl_key want[WAYS_LENGTH + 1], got[WAYS_LENGTH + 1], other[WAYS_LENGTH + 1];
    o.policy = i % 2 ? SL_EVICT_CLOCK : SL_EVICT_LRU;
    o.layout = (sl_layout)(i % 3);
    reference(&o, 9, WAYS_PROMPT, want);
    fix f;
    fix_open(&f, &o);
    for (int round = 0; round < 2; round++) {
        fix_run r = {0};
        fix_text t;
        sl_layer_stats s;
        fix_prompt(&f, &t, WAYS_LENGTH, round ? 9 : 1234);
        ways_prompt_open(&f, &r, SL_RESIDENT, 0, WAYS_PROMPT);
        fix_feed(&f, &r, &t, WAYS_PROMPT, 40);
        ways_spill(&f, &r);
        ways_hashes(&f, &r, &t, WAYS_PROMPT + 1, round ? got : other);
        sl_engine_seq_stats(f.engine, r.seq, &s);
        ck_assert_uint_gt(s.hits, 0);
        ck_assert_uint_gt(s.misses, 0);
        ck_assert_uint_gt(s.tail_hits, 0);
        fix_seq_close(&f, &r, false);
    }
    ways_same(want, got, WAYS_PROMPT + 1, "hierarchical");
    fix_close(&f);
}

/* Pages of a longer text, up to the window, are continued; and pages of the whole prompt, with its selection, are opened
 * as a decode worker does, hierarchical at once, also with tokens after the prompt. */
void ways_prompt_pages(fix_opts o, int i)
{
    sl_key want[WAYS_LENGTH + 1], got[WAYS_LENGTH + 1];
    const int32_t window = o.select.window;
    const int32_t cuts[] = {1, 63, 64, WAYS_PROMPT - window, WAYS_PROMPT, WAYS_PROMPT + 1, WAYS_PROMPT + 45};
    o.layout = (sl_layout)((i + 1) % 3);
    reference(&o, 31, WAYS_PROMPT, want);
    for (size_t k = 0; k < SL_COUNT(cuts); k++) {
        bool whole = cuts[k] >= WAYS_PROMPT;
        fix f;
        fix_run r = {0};
        fix_text t;
        fix_open(&f, &o);
        fix_prompt(&f, &t, WAYS_LENGTH, 31);
        ways_prompt_open(&f, &r, SL_RESIDENT, 0, whole ? WAYS_PROMPT : WAYS_LENGTH - 20);
        fix_feed(&f, &r, &t, whole ? cuts[k] : WAYS_LENGTH - 20, 100);
        fix_seq_close(&f, &r, true);
        ways_prompt_open(&f, &r, whole && k % 2 ? SL_HIERARCHICAL : SL_RESIDENT, cuts[k], WAYS_PROMPT);
        if (!whole)
            fix_feed(&f, &r, &t, WAYS_PROMPT - 1, 33);
        int32_t from = whole ? cuts[k] + 1 : WAYS_PROMPT;
        ways_hashes(&f, &r, &t, from, got);
        ways_same(want, got, from, "pages");
        fix_seq_close(&f, &r, false);
        fix_close(&f);
    }
}

/* A prompt that is being computed, a resident and a hierarchical request in the same steps. */
void ways_prompt_batch(fix_opts o)
{
    enum { N = 3, STEPS = 12, CHUNK = 13 };
    static const uint64_t seeds[N] = {41, 42, 43};
    sl_key want[N][WAYS_LENGTH + 1];
    fix f;
    fix_run r[N] = {0};
    static fix_text t[N];
    sl_step_item items[N];
    sl_err err = {0};
    for (int i = 0; i < N; i++)
        reference(&o, seeds[i], WAYS_PROMPT, want[i]);
    fix_open(&f, &o);
    for (int i = 0; i < N; i++) {
        fix_prompt(&f, &t[i], WAYS_LENGTH, seeds[i]);
        ways_prompt_open(&f, &r[i], SL_RESIDENT, 0, WAYS_PROMPT);
        fix_feed(&f, &r[i], &t[i], i ? WAYS_PROMPT + 7 * i : WAYS_PROMPT - CHUNK * STEPS / 2, 50);
    }
    ways_spill(&f, &r[2]);
    for (int32_t step = 0; step < STEPS; step++) {
        for (int i = 0; i < N; i++) {
            int32_t at = sl_engine_seq_len(r[i].seq);
            items[i] = (sl_step_item){.seq = r[i].seq,
                                      .tokens = t[i].ids + at,
                                      .n_tokens = i == 0 && at < WAYS_PROMPT ? CHUNK : 1,
                                      .want_logits = true};
        }
        ck_assert_msg(sl_engine_step(f.engine, items, N, NULL, &err) == SL_OK, "%s", err.text);
        for (int i = 0; i < N; i++) {
            int32_t len = sl_engine_seq_len(r[i].seq);
            sl_key now = fix_hash(&f, items[i].logits);
            ck_assert_msg(len < WAYS_PROMPT || memcmp(&now, &want[i][len], sizeof now) == 0,
                          "request %d differs after token %d", i, len);
        }
    }
    for (int i = 0; i < N; i++)
        fix_seq_close(&f, &r[i], false);
    fix_close(&f);
}

void ways_prompt_dense(fix_opts o, int32_t prompt)
{
    sl_key want[WAYS_LENGTH + 1], got[WAYS_LENGTH + 1];
    o.hot_rows = WAYS_CONTEXT;
    o.gates = (sl_gates){0};
    reference(&o, 3, prompt, got);
    o.select = (select_params){0}, o.algorithm = "dense";
    reference(&o, 3, prompt, want);
    ways_same(want, got, prompt, "dense");
}
